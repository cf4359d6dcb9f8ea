//! Files of a model repository, opened beneath its directory only: neither `..` nor a link leads
//! out of it (`openat2` with `RESOLVE_BENEATH`).

use std::collections::hash_map::DefaultHasher;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, openat2};
use rustix::io::Errno;

use crate::limits::{MODEL_ENTRIES_MAX, MODELS_MAX};
use crate::model::repository::{Listing, ListingEntry};

/// Levels below a model's directory that are looked at: a version's files, and those that they
/// refer to.
const LEVELS: usize = 6;
/// Levels at which a link to a directory is followed: models and versions may be mounted so, and
/// what lies deeper could lead back.
const LINKED_LEVELS: usize = 1;

/// A directory that is a model repository.
pub struct RepositoryRoot {
    directory: OwnedFd,
}

impl RepositoryRoot {
    /// Opens it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { directory: rustix::fs::open(path, flags, Mode::empty())? })
    }

    /// The names in it, and what each directory holds. One that cannot be looked at says so itself.
    pub fn list(&self) -> io::Result<Listing> {
        let entry = |entry: ListingEntry| match entry.is_directory && !entry.name.starts_with('.') {
            true => self.list_model(&entry.name),
            false => entry,
        };
        Ok(Listing { entries: self.names()?.into_iter().map(entry).collect() })
    }

    /// The names in it, and whether each is a directory.
    pub fn names(&self) -> io::Result<Vec<ListingEntry>> {
        let mut count = MODELS_MAX;
        self.entries(".", 0, &mut count)
    }

    /// What changes when a file does; 0 where there is none.
    pub fn stamp(&self, path: &str) -> u64 {
        let status = self.open_beneath(path, OFlags::PATH).and_then(|file| Ok(rustix::fs::fstat(file)?));
        status.as_ref().map_or(0, stamp)
    }

    /// Whether a directory of a name lies in it.
    pub fn has(&self, name: &str) -> bool {
        self.open_beneath(name, OFlags::RDONLY | OFlags::DIRECTORY).is_ok()
    }

    /// What one directory holds, with the marks by which a change is seen.
    pub fn list_model(&self, name: &str) -> ListingEntry {
        let mut count = MODEL_ENTRIES_MAX;
        let listed = self.entries(name, LEVELS, &mut count);
        let (children, fault) = match listed {
            Ok(children) => (children, None),
            Err(error) => (Vec::new(), Some(format!("its directory cannot be listed: {error}"))),
        };
        ListingEntry { name: name.to_owned(), is_directory: true, children, stamp: 0, fault }
    }

    /// The bytes of a file, at most so many. What is larger is refused unread, and what is no
    /// regular file is not read at all.
    pub fn read(&self, path: &str, size_max: usize) -> io::Result<Vec<u8>> {
        let file = self.open_file(path)?;
        let too_large = || io::Error::other(format!("it is larger than {size_max} bytes"));
        let limit = u64::try_from(size_max).unwrap_or(u64::MAX);
        if file.metadata()?.len() > limit {
            return Err(too_large());
        }
        let mut bytes = Vec::new();
        // It may grow while it is read.
        file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() > size_max { Err(too_large()) } else { Ok(bytes) }
    }

    /// A regular file.
    pub fn open_file(&self, path: &str) -> io::Result<File> {
        let file = File::from(self.open_beneath(path, OFlags::RDONLY)?);
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a regular file")) }
    }

    fn open_beneath(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        // A pipe must not hold the open up; with `O_PATH` nothing is opened, and the flag is refused.
        let extra = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NONBLOCK };
        Ok(openat2(&self.directory, path, flags | OFlags::CLOEXEC | extra, Mode::empty(), resolve)?)
    }

    /// What a directory holds, so many levels deep below it, as long as `left` lasts.
    fn entries(&self, path: &str, levels: usize, left: &mut usize) -> io::Result<Vec<ListingEntry>> {
        let directory = self.open_beneath(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut entries = Vec::new();
        for found in Dir::read_from(&directory)? {
            let found = found?;
            // A name that is not text names no model and no version.
            let Ok(name) = found.file_name().to_str() else { continue };
            if name == "." || name == ".." {
                continue;
            }
            *left = left.checked_sub(1).ok_or_else(|| io::Error::other("it holds more names than are looked at"))?;
            let below = format!("{path}/{name}");
            let is_followed = path == "." || levels + LINKED_LEVELS > LEVELS;
            entries.push(self.entry(&below, name, &directory, is_followed)?);
        }
        // Only now, so that a flood of names is refused before anything in them is opened.
        for entry in entries.iter_mut().filter(|entry| entry.is_directory && levels > 0) {
            entry.children = self.entries(&format!("{path}/{}", entry.name), levels - 1, left)?;
        }
        Ok(entries)
    }

    /// One name of a directory: a file with its stamp, or a directory. What a link leads to counts
    /// as long as it lies beneath, a directory where such links are followed.
    fn entry(&self, path: &str, name: &str, directory: &OwnedFd, is_followed: bool) -> io::Result<ListingEntry> {
        let plain = match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(plain) => plain,
            // It was there a moment ago.
            Err(Errno::NOENT) => return Ok(ListingEntry { name: name.to_owned(), ..ListingEntry::default() }),
            Err(error) => return Err(error.into()),
        };
        let is_link = FileType::from_raw_mode(plain.st_mode) == FileType::Symlink;
        let target = || self.open_beneath(path, OFlags::PATH).and_then(|file| Ok(rustix::fs::fstat(file)?));
        let status = if is_link { target().unwrap_or(plain) } else { plain };
        let is_directory = FileType::from_raw_mode(status.st_mode) == FileType::Directory && (!is_link || is_followed);
        let stamp = if is_directory { 0 } else { stamp(&status) };
        Ok(ListingEntry { name: name.to_owned(), is_directory, stamp, ..ListingEntry::default() })
    }
}

/// What changes when a file does.
fn stamp(status: &Stat) -> u64 {
    let mut hasher = DefaultHasher::new();
    (status.st_dev, status.st_ino, status.st_size, status.st_mtime, status.st_mtime_nsec).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn nothing_outside_the_repository_is_read() {
        let root = std::env::temp_dir().join(format!("deuteron-beneath-{}", std::process::id()));
        let inside = root.join("models");
        std::fs::create_dir_all(inside.join("m/1")).unwrap();
        std::fs::write(root.join("secret"), "s").unwrap();
        std::fs::write(inside.join("m/labels.txt"), "one\n").unwrap();
        symlink("../../secret", inside.join("m/out")).unwrap();
        symlink(root.join("secret"), inside.join("m/absolute")).unwrap();
        symlink("labels.txt", inside.join("m/near")).unwrap();
        let repository = RepositoryRoot::open(&inside).unwrap();
        let read = |path: &str, size_max| repository.read(path, size_max).ok();
        assert_eq!(read("m/labels.txt", 4), Some(b"one\n".to_vec()));
        assert_eq!(read("m/near", 4), Some(b"one\n".to_vec()));
        assert_eq!(read("m/labels.txt", 3), None, "one byte more than allowed");
        for path in ["../secret", "m/out", "m/absolute", "m/../../secret", "/etc/hostname"] {
            assert_eq!(read(path, 100), None, "{path}");
        }
        let stamps = ["m/near", "m/labels.txt", "m/out", "m/none"].map(|path| repository.stamp(path));
        assert!(stamps[0] != 0 && stamps[0] == stamps[1] && stamps[2..] == [0, 0], "{stamps:?}");
        let listing = repository.list().unwrap();
        let model = listing.entries.iter().find(|entry| entry.name == "m").unwrap();
        assert!(model.children.iter().any(|child| child.name == "1" && child.is_directory));
        std::fs::remove_dir_all(&root).unwrap();
    }
}
