//! The recording: the answers of tritonserver 2.51 to each case, as a text file for people and for tests.

use std::{fmt::Write as _, fs, path::PathBuf};

use crate::oracle::case::Case;

/// One case as recorded.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Entry {
    /// The case's name.
    pub name: String,
    /// The request, as text.
    pub ask: String,
    /// Triton's answer, as text.
    pub answer: String,
}

const HEAD: &str = "What tritonserver 2.51.0 answers to each case: `>` was sent, `<` came back. Bytes that are no text are \\xNN.\n\
    Written by: DEUTERON_TESTS=triton UPDATE_EXPECT=1 cargo test --test it oracle::live::\n";

/// Writes the recording as a file's text.
pub fn encode(entries: &[Entry]) -> String {
    let mut text = HEAD.to_owned();
    for entry in entries {
        let _ = writeln!(text, "\n=== {}", entry.name);
        entry.ask.split('\n').for_each(|line| push_line(&mut text, '>', line));
        entry.answer.split('\n').for_each(|line| push_line(&mut text, '<', line));
    }
    text
}

fn push_line(text: &mut String, mark: char, line: &str) {
    text.push(mark);
    if !line.is_empty() {
        text.push(' ');
        text.push_str(line);
    }
    text.push('\n');
}

/// Reads the recording.
pub fn decode(text: &str) -> Vec<Entry> {
    let sections = text.split("\n=== ").skip(1);
    sections
        .map(|section| {
            let (name, lines) = section.split_once('\n').expect("a section has a first line");
            Entry { name: name.to_owned(), ask: marked(lines, '>'), answer: marked(lines, '<') }
        })
        .collect()
}

fn marked(lines: &str, mark: char) -> String {
    let marked = lines.lines().filter_map(|line| line.strip_prefix(mark));
    marked.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect::<Vec<_>>().join("\n")
}

/// The recording in the repository; of the main table, or of a suite.
pub fn read(suite: Option<&str>) -> Vec<Entry> {
    decode(&fs::read_to_string(path(suite)).expect("the recording is in the repository"))
}

/// Replaces it.
pub fn write(suite: Option<&str>, entries: &[Entry]) {
    fs::write(path(suite), encode(entries)).expect("the working tree can be written");
}

fn path(suite: Option<&str>) -> PathBuf {
    let name = suite.map_or_else(|| "recorded.txt".to_owned(), |suite| format!("recorded_{suite}.txt"));
    [env!("CARGO_MANIFEST_DIR"), "tests/oracle", &name].iter().collect()
}

/// A test's complaints if the cases have changed since the recording; empty if they are the same.
pub fn check(cases: &[Case], entries: &[Entry]) -> Vec<String> {
    let mut complaints = Vec::new();
    if cases.len() != entries.len() {
        complaints.push(format!("{} cases, but {} are recorded", cases.len(), entries.len()));
    }
    for (case, entry) in cases.iter().zip(entries) {
        if case.name != entry.name || case.ask.text() != entry.ask {
            complaints.push(format!("`{}` is recorded as `{}`, or with other bytes", case.name, entry.name));
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::case::Ask;

    fn entry(name: &str, ask: &str, answer: &str) -> Entry {
        Entry { name: name.to_owned(), ask: ask.to_owned(), answer: answer.to_owned() }
    }

    #[test]
    fn a_recording_reads_back_as_it_was_written() {
        let entries = [
            entry("one", "GET / HTTP/1.1\nHost: localhost\n\n{}", "200 -"),
            entry("two", "/a/b\n1: \" x\"\n2 {\n  1: 3\n}", "OK"),
        ];
        assert_eq!(decode(&encode(&entries)), entries);
    }

    #[test]
    fn a_case_that_changed_since_the_recording_is_reported() {
        let case = Case { name: "one".to_owned(), ask: Ask::Http(b"GET / HTTP/1.1\r\n\r\n".to_vec()) };
        let recorded = entry("one", "GET / HTTP/1.1", "200 -");
        assert_eq!(check(std::slice::from_ref(&case), std::slice::from_ref(&recorded)), Vec::<String>::new());
        assert_eq!(check(std::slice::from_ref(&case), &[]).len(), 1);
        assert_eq!(check(std::slice::from_ref(&case), &[entry("one", "GET /x HTTP/1.1", "200 -")]).len(), 1);
    }
}
