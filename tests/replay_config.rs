//! The corpus of the fuzz target `config`, as it is and with each of its bytes cut off, changed
//! or doubled.

use std::fs;
use std::path::Path;

use deuteron::model::config::check_any_text;

fn corpus() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/config");
    let entries = fs::read_dir(folder).expect("the folder is in the repository");
    let read = |entry: std::io::Result<fs::DirEntry>| fs::read(entry.expect("it was listed").path());
    let files: Vec<_> = entries.map(|entry| read(entry).expect("a seed can be read")).collect();
    assert!(files.len() >= 10, "the corpus is there");
    files
}

#[test]
fn the_corpus_is_read_or_refused_inside_its_text() {
    for text in corpus() {
        check_any_text(&text);
    }
}

#[test]
fn a_changed_corpus_is_read_or_refused_inside_its_text() {
    for text in corpus() {
        for at in 0..text.len() {
            check_any_text(&text[..at]);
            for byte in *b"\0\n\"{[<-9\xff" {
                let mut changed = text.clone();
                changed[at] = byte;
                check_any_text(&changed);
            }
            let mut doubled = text.clone();
            doubled.insert(at, text[at]);
            check_any_text(&doubled);
        }
    }
}
