//! The corpora of the fuzz targets `config`, `config_json` and `config_toml`, as they are and with each of
//! their bytes cut off, changed or doubled.

use std::fs;
use std::path::Path;

use deuteron::model::config::check_any_text;
use deuteron::model::parse::text::Notation;

fn corpora() -> Vec<(Notation, Vec<u8>)> {
    let folders = [
        (Notation::Text, "fuzz/corpus/config"),
        (Notation::Json, "fuzz/corpus/config_json"),
        (Notation::Toml, "fuzz/corpus/config_toml"),
    ];
    let mut texts = Vec::new();
    for (notation, folder) in folders {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let entries = fs::read_dir(folder).expect("the folder is in the repository");
        let read = |entry: std::io::Result<fs::DirEntry>| fs::read(entry.expect("it was listed").path());
        let files: Vec<_> = entries.map(|entry| read(entry).expect("a seed can be read")).collect();
        assert!(files.len() >= 10, "the corpus is there");
        texts.extend(files.into_iter().map(|file| (notation, file)));
    }
    texts
}

#[test]
fn the_corpus_is_read_or_refused_inside_its_text() {
    for (notation, text) in corpora() {
        check_any_text(notation, &text);
    }
}

#[test]
fn a_changed_corpus_is_read_or_refused_inside_its_text() {
    for (notation, text) in corpora() {
        for at in 0..text.len() {
            check_any_text(notation, &text[..at]);
            for byte in *b"\0\n\"{[<-9\xff" {
                let mut changed = text.clone();
                changed[at] = byte;
                check_any_text(notation, &changed);
            }
            let mut doubled = text.clone();
            doubled.insert(at, text[at]);
            check_any_text(notation, &doubled);
        }
    }
}
