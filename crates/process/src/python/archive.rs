//! Packed Python environments: each archive is unpacked once, into a private temporary directory, and used by all
//! models that name it until the server ends. One that has changed is unpacked again; the older directory goes with its
//! last user.

#![expect(clippy::disallowed_types, reason = "taken when a model is loaded, never for a batch")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::private_directory::{self, PrivateDirectory};
use crate::python::unpack::{ArchiveBounds, unpack};
use base::error::Error;

/// The first part of every directory's name.
const PREFIX: &str = "deuteron-python-";

/// The archives that were unpacked.
#[derive(Debug)]
pub struct Archives {
    /// The directory in which temporary directories are made.
    base: PathBuf,
    slots: Mutex<BTreeMap<PathBuf, Arc<ArchiveSlot>>>,
    bounds: ArchiveBounds,
}

/// The unpacked environment of an archive. Its directory is removed when this is dropped.
#[derive(Debug)]
pub struct UnpackedArchive {
    directory: PrivateDirectory,
}

impl UnpackedArchive {
    /// Its path.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// One version of an archive. Its lock is held while it is unpacked: a second load waits for the first.
#[derive(Debug)]
struct ArchiveSlot {
    stamp: ArchiveStamp,
    unpacked: Mutex<Option<Arc<UnpackedArchive>>>,
}

/// The values that distinguish the versions of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ArchiveStamp {
    modified: (i64, i64),
    size: u64,
    inode: u64,
}

impl ArchiveStamp {
    fn of(file: &File) -> std::io::Result<Self> {
        let metadata = file.metadata()?;
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        Ok(Self { modified, size: metadata.size(), inode: metadata.ino() })
    }
}

impl Archives {
    /// No archives yet; `base` is the system's directory for temporary files.
    pub const fn new(base: PathBuf) -> Self {
        let bounds = ArchiveBounds::new();
        Self { base, slots: Mutex::new(BTreeMap::new()), bounds }
    }

    /// The unpacked environment of an archive, given by its canonical path. Unpacks it if no other load did.
    ///
    /// # Errors
    ///
    /// If the archive is broken, has entries that no environment has, or does not fit on the disk.
    pub fn unpack(&self, path: &Path) -> Result<Arc<UnpackedArchive>, Error> {
        let refuse = |why: &dyn std::fmt::Display| {
            let path = path.display();
            Error::internal(format!("the Python environment {path} (EXECUTION_ENV_PATH) could not be unpacked: {why}"))
        };
        let file = File::open(path).map_err(|error| refuse(&error))?;
        let stamp = ArchiveStamp::of(&file).map_err(|error| refuse(&error))?;
        let slot = self.slot(path, stamp);
        let mut unpacked = slot.unpacked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(unpacked) = &*unpacked {
            return Ok(Arc::clone(unpacked));
        }
        let directory = PrivateDirectory::new(&self.base, PREFIX).map_err(|error| refuse(&error))?;
        unpack(BufReader::new(&file), directory.path(), self.bounds).map_err(|error| refuse(&error))?;
        if ArchiveStamp::of(&file).ok() != Some(stamp) {
            return Err(refuse(&"it was changed meanwhile. Replace an archive by renaming a complete one"));
        }
        // Only now: an archive that failed is tried again by the next load.
        Ok(Arc::clone(unpacked.insert(Arc::new(UnpackedArchive { directory }))))
    }

    fn slot(&self, path: &Path, stamp: ArchiveStamp) -> Arc<ArchiveSlot> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slots.get(path).filter(|slot| slot.stamp == stamp) {
            return Arc::clone(slot);
        }
        let slot = Arc::new(ArchiveSlot { stamp, unpacked: Mutex::new(None) });
        slots.insert(path.to_owned(), Arc::clone(&slot));
        slot
    }
}

/// Removes the directories of servers that were killed. Returns their number.
pub fn remove_stale(base: &Path) -> usize {
    private_directory::remove_stale(base, PREFIX)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::thread;

    use super::*;
    use crate::python::unpack::testing::{archive, directory, file};

    /// An empty directory of one test.
    fn base(name: &str) -> PathBuf {
        let base = std::env::temp_dir().join(format!("deuteron-archives-{name}-{}", std::process::id()));
        fs::create_dir_all(&base).unwrap();
        base
    }

    fn count(base: &Path) -> usize {
        fs::read_dir(base).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_dir()).count()
    }

    #[test]
    fn loads_at_once_unpack_an_archive_once() {
        let base = base("once");
        let path = base.join("a.tar.gz");
        let contents = "x".repeat(4 * 1024 * 1024);
        fs::write(&path, archive(&[directory("bin"), file("bin/activate", &contents)])).unwrap();
        let archives = Archives::new(base.clone());
        let unpacked = thread::scope(|scope| {
            let loads: Vec<_> = (0..4).map(|_| scope.spawn(|| archives.unpack(&path).unwrap())).collect();
            loads.into_iter().map(|load| load.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(unpacked.iter().all(|one| Arc::ptr_eq(one, &unpacked[0])));
        assert_eq!(fs::read_to_string(unpacked[0].path().join("bin/activate")).unwrap(), contents);
        let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(unpacked[0].path()).unwrap().permissions());
        assert_eq!((count(&base), mode & 0o777), (1, 0o700));
        drop(unpacked);
        assert_eq!(count(&base), 1, "kept for the next load");
        drop(archives);
        assert_eq!(count(&base), 0);
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn a_new_version_is_unpacked_and_the_old_one_stays_while_it_is_used() {
        let base = base("versions");
        let path = base.join("a.tar.gz");
        let archives = Archives::new(base.clone());
        let replace = |contents: &str| {
            fs::write(base.join("new"), archive(&[file("version", contents)])).unwrap();
            fs::rename(base.join("new"), &path).unwrap();
        };
        replace("1");
        let old = archives.unpack(&path).unwrap();
        replace("2");
        let new = archives.unpack(&path).unwrap();
        let version = |unpacked: &UnpackedArchive| fs::read_to_string(unpacked.path().join("version")).unwrap();
        assert_eq!((version(&old), version(&new), count(&base)), ("1".to_owned(), "2".to_owned(), 2));
        drop(old);
        assert_eq!(count(&base), 1);
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn a_broken_archive_leaves_nothing_and_is_tried_again() {
        let base = base("broken");
        let path = base.join("a.tar.gz");
        let archives = Archives::new(base.clone());
        let whole = archive(&[file("bin/activate", "x")]);
        fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        let refused = archives.unpack(&path).unwrap_err();
        let start = format!("the Python environment {} (EXECUTION_ENV_PATH) could not be unpacked: ", path.display());
        assert!(refused.text().starts_with(&start), "{refused}");
        assert_eq!(count(&base), 0);
        fs::write(&path, &whole).unwrap();
        assert!(archives.unpack(&path).is_ok());
        assert!(archives.unpack(&base.join("absent")).is_err());
        fs::remove_dir_all(&base).unwrap();
    }
}
