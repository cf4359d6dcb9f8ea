//! Archives for tests, including those that a careful program would not write.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{EntryType, Header};

/// An entry to write.
#[derive(Clone, Debug)]
pub struct TrialEntry {
    pub kind: EntryType,
    pub name: String,
    pub link: String,
    pub contents: Vec<u8>,
    pub mode: u32,
}

/// A file.
pub fn file(name: &str, contents: &str) -> TrialEntry {
    let (kind, mode) = (EntryType::Regular, 0o644);
    TrialEntry { kind, name: name.to_owned(), link: String::new(), contents: contents.into(), mode }
}

/// A directory.
pub fn directory(name: &str) -> TrialEntry {
    TrialEntry { kind: EntryType::Directory, mode: 0o755, ..file(name, "") }
}

/// A symbolic link.
pub fn symlink(name: &str, link: &str) -> TrialEntry {
    TrialEntry { kind: EntryType::Symlink, link: link.to_owned(), ..file(name, "") }
}

/// An archive of these entries, whose names are not checked.
pub fn archive(entries: &[TrialEntry]) -> Vec<u8> {
    let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for entry in entries {
        let mut header = Header::new_gnu();
        header.as_old_mut().name[..entry.name.len()].copy_from_slice(entry.name.as_bytes());
        header.as_old_mut().linkname[..entry.link.len()].copy_from_slice(entry.link.as_bytes());
        header.set_entry_type(entry.kind);
        header.set_mode(entry.mode);
        header.set_mtime(1_000_000_000);
        header.set_size(entry.contents.len() as u64);
        header.set_cksum();
        builder.append(&header, &*entry.contents).unwrap();
    }
    builder.into_inner().unwrap().finish().unwrap()
}

/// Bytes as gzip.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}
