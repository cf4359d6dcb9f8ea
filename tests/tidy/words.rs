//! Plain English in comments, as far as a pattern shows it: first words that a doc comment may not have, and phrases that
//! no comment may have.

use std::fs;
use std::path::{Path, PathBuf};

use crate::source::collect;

/// Words with which no doc comment begins, nor a paragraph of one: it names the thing, or says what a function does in
/// the third person.
const FIRST_WORDS: &[&str] = &["How", "What", "Where", "Whether", "Who"];

/// Phrases that no comment has, each with a plain one that says the same.
const PHRASES: &[(&str, &str)] = &[
    ("any more", "no longer"),
    ("are none", "has none"),
    ("is none", "`None`, empty, is not"),
    ("no more", "no longer, at most, no further"),
    ("nobody", "no client, no thread"),
    ("none where", "`None` without"),
    ("so many", "`count` rows"),
    ("whoever", "the caller, the client"),
    ("whom", "the caller, the client"),
];

/// A paragraph of a comment.
struct Paragraph {
    /// The number of its first line.
    line: usize,
    is_doc: bool,
    text: String,
}

/// The paragraphs of all comments that have their lines to themselves.
fn paragraphs(text: &str) -> Vec<Paragraph> {
    let mut found: Vec<Paragraph> = Vec::new();
    let mut before = None;
    for (index, line) in text.lines().enumerate() {
        let marker = ["///", "//!", "//"].into_iter().find(|marker| line.trim_start().starts_with(marker));
        let said = marker.map_or("", |marker| line.trim_start()[marker.len()..].trim());
        match found.last_mut() {
            _ if said.is_empty() => {}
            Some(paragraph) if before == marker => paragraph.text = format!("{} {said}", paragraph.text),
            _ => found.push(Paragraph { line: index + 1, is_doc: marker != Some("//"), text: said.to_owned() }),
        }
        before = marker.filter(|_| !said.is_empty());
    }
    found
}

/// The fault of a paragraph; `None` if it is plain.
fn fault(paragraph: &Paragraph) -> Option<String> {
    let text = &paragraph.text;
    let is_inner = |letter: char| letter.is_alphanumeric() || letter == '_';
    let begins = |word: &&&str| text.strip_prefix(**word).is_some_and(|rest| !rest.starts_with(is_inner));
    if let Some(word) = FIRST_WORDS.iter().find(begins).filter(|_| paragraph.is_doc) {
        return Some(format!("begins with '{word}': name the thing, or say what the function returns"));
    }
    let text = format!(" {} ", text.to_lowercase());
    let has = |phrase: &str| {
        text.match_indices(phrase)
            .any(|(at, _)| !text[..at].ends_with(is_inner) && !text[at + phrase.len()..].starts_with(is_inner))
    };
    let (phrase, plain) = PHRASES.iter().find(|(phrase, _)| has(phrase))?;
    Some(format!("says '{phrase}': {plain}"))
}

/// The Rust files whose comments are held to it: those of every crate, of tests, benchmarks and fuzz targets.
fn files() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    ["src", "tests", "benches", "fuzz/fuzz_targets"].iter().for_each(|folder| collect(&root.join(folder), &mut files));
    for entry in fs::read_dir(root.join("crates")).into_iter().flatten() {
        collect(&entry.unwrap().path().join("src"), &mut files);
    }
    files
}

#[test]
fn comments_are_in_plain_english() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut faults, mut count) = (Vec::new(), 0);
    for file in files() {
        let name = file.strip_prefix(root).unwrap().display();
        for paragraph in paragraphs(&fs::read_to_string(&file).unwrap()) {
            count += 1;
            faults.extend(fault(&paragraph).map(|fault| format!("{name}:{}: {fault}", paragraph.line)));
        }
    }
    assert!(count > 10_000, "the comments were found");
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn a_riddle_in_a_comment_is_found_across_lines() {
    let check = |text: &str, want: &[usize]| {
        let found: Vec<_> = paragraphs(text).iter().filter(|it| fault(it).is_some()).map(|it| it.line).collect();
        assert_eq!(found, want, "{text}");
    };
    check("//! What it costs.\n\nfn a() {}\n/// Whether it\n/// runs.\nfn b() {}", &[1, 4]);
    check("/// Its cost.\n///\n/// How it is paid.\n// What a statement does.\n// It has so\n// many.", &[3, 4]);
    check("/// Waits no\n/// more.\n// Nobody: it is.\nlet a = \"// whoever\";", &[1, 3]);
    check("/// However it is. No memory is nonempty, somewhere.\n/// Somewhat.", &[]);
}
