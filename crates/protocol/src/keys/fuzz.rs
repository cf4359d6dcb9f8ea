//! The properties of any text as a file of API keys, as a function: called by the fuzz target
//! `api_keys`, and by a test that replays its corpus.

use std::collections::BTreeSet;

use crate::keys::file::{ANONYMOUS, KeyFile, is_name};
use crate::keys::{ClassSet, KeyTable};
use crate::limits::API_KEY_CONCURRENCY_MAX;
use base::limits::API_KEYS_MAX;

/// Reads any bytes as a file of keys and checks its properties: clients are told apart by name and
/// by key, each has some access, its bounds hold; a mistake is one line that quotes no value. A
/// panic is a finding.
pub fn check_any_file(text: &[u8]) {
    let text = String::from_utf8_lossy(text);
    match KeyFile::read(&text) {
        Ok(file) => check_file(&file),
        Err(error) => check_error(&error, &text),
    }
}

fn check_file(file: &KeyFile) {
    assert!(!file.entries.is_empty() || file.anonymous.is_some(), "somebody may do something");
    let (mut names, mut digests) = (BTreeSet::from([ANONYMOUS]), BTreeSet::new());
    for entry in &file.entries {
        assert!(is_name(&entry.name) && names.insert(&entry.name), "'{}' is a name, and its own", entry.name);
        assert!(!entry.digests.is_empty(), "'{}' has a key", entry.name);
        assert!(entry.digests.iter().all(|digest| digests.insert(digest.hex())), "each key has one owner");
    }
    assert!(digests.len() <= API_KEYS_MAX);
    for entry in file.entries.iter().chain(&file.anonymous) {
        assert!(entry.classes != ClassSet::default(), "'{}' may do something", entry.name);
        assert!(entry.concurrency_max.is_none_or(|most| (1..=API_KEY_CONCURRENCY_MAX).contains(&most)));
    }
    // The use that a shard makes of it.
    let table = KeyTable::new(file, None, 2);
    let renewed = KeyTable::new(file, Some(&table), 2);
    for entry in &file.entries {
        let find = |digest| renewed.find_digest(digest).map(|client| client.name());
        assert!(entry.digests.iter().all(|digest| find(digest) == Some(&entry.name)), "a key is its owner's");
    }
}

fn check_error(error: &str, text: &str) {
    let line = error.strip_prefix("line ").and_then(|rest| rest.split_once(": "));
    let (number, why) = line.expect("an error names its line");
    let number: usize = number.parse().expect("a line has a number");
    assert!((1..=text.matches('\n').count() + 1).contains(&number), "line {number} is in the text");
    assert!(!why.is_empty() && !error.contains('\n'), "an error is one line");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_corpus_and_its_changes_hold() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/api_keys");
        let seeds: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(seeds.len() >= 6, "the corpus is there");
        let mut good_count = 0;
        for seed in seeds {
            let text = std::fs::read(&seed).unwrap();
            check_any_file(&text);
            good_count += usize::from(KeyFile::read(std::str::from_utf8(&text).unwrap()).is_ok());
            for at in 0..text.len() {
                for byte in *b"\"[]=\n 0a\xff" {
                    let mut mutant = text.clone();
                    mutant[at] = byte;
                    check_any_file(&mutant);
                }
                let mut mutant = text.clone();
                mutant.remove(at);
                check_any_file(&mutant);
            }
        }
        assert!(good_count >= 3, "some of it are files: {good_count}");
    }
}
