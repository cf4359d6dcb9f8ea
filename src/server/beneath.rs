//! Files of a model repository, opened beneath its directory only: neither `..` nor a link leads
//! out of it (`openat2` with `RESOLVE_BENEATH`).

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, openat2};

use crate::model::repository::{Entry, Listing};

/// Levels of a listing below the repository: models, their directories, their versions' files.
const LEVELS: usize = 3;
/// Names that are read in one directory; a model's directory has a handful.
const NAMES_MAX: usize = 100_000;

/// A directory that is a model repository.
pub struct Repository {
    directory: OwnedFd,
}

impl Repository {
    /// Opens it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { directory: rustix::fs::open(path, flags, Mode::empty())? })
    }

    /// The names in it, as deep as they mean something.
    pub fn list(&self) -> io::Result<Listing> {
        Ok(Listing { entries: self.entries(".", LEVELS)? })
    }

    /// The bytes of a file, at most so many.
    pub fn read(&self, path: &str, size_max: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = File::from(self.open_beneath(path, OFlags::RDONLY)?);
        let limit = u64::try_from(size_max).unwrap_or(u64::MAX);
        file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() > size_max {
            return Err(io::Error::other(format!("it is larger than {size_max} bytes")));
        }
        Ok(bytes)
    }

    fn open_beneath(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        Ok(openat2(&self.directory, path, flags | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty(), resolve)?)
    }

    fn entries(&self, path: &str, levels: usize) -> io::Result<Vec<Entry>> {
        let directory = self.open_beneath(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut entries = Vec::new();
        for found in Dir::read_from(directory)? {
            let found = found?;
            // A name that is not text names no model and no version.
            let Ok(name) = found.file_name().to_str() else { continue };
            if name == "." || name == ".." {
                continue;
            }
            if entries.len() >= NAMES_MAX {
                return Err(io::Error::other(format!("a directory holds more than {NAMES_MAX} names")));
            }
            let below = format!("{path}/{name}");
            let is_directory = match found.file_type() {
                FileType::Directory => true,
                // What a link leads to counts, as long as it lies beneath. Some file systems do not
                // say what a name is.
                FileType::Symlink | FileType::Unknown => {
                    self.open_beneath(&below, OFlags::RDONLY | OFlags::DIRECTORY).is_ok()
                }
                _ => false,
            };
            let children = if is_directory && levels > 1 { self.entries(&below, levels - 1)? } else { Vec::new() };
            entries.push(Entry { name: name.to_owned(), is_directory, children });
        }
        Ok(entries)
    }
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
        let repository = Repository::open(&inside).unwrap();
        let read = |path: &str, size_max| repository.read(path, size_max).ok();
        assert_eq!(read("m/labels.txt", 4), Some(b"one\n".to_vec()));
        assert_eq!(read("m/near", 4), Some(b"one\n".to_vec()));
        assert_eq!(read("m/labels.txt", 3), None, "one byte more than allowed");
        for path in ["../secret", "m/out", "m/absolute", "m/../../secret", "/etc/hostname"] {
            assert_eq!(read(path, 100), None, "{path}");
        }
        let listing = repository.list().unwrap();
        let model = listing.entries.iter().find(|entry| entry.name == "m").unwrap();
        assert!(model.children.iter().any(|child| child.name == "1" && child.is_directory));
        std::fs::remove_dir_all(&root).unwrap();
    }
}
