//! Temporary directories of this server alone: only its user can read them, and a name that exists already, as a
//! directory or a link, is never used. Each is removed with its [`PrivateDirectory`]. If a server is killed, the next
//! one to start removes its directories: those whose lock is free.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FlockOperation, Mode, OFlags, RenameFlags};

/// Names tried for a new directory: a killed process with the same id may have left some behind.
const NAMES_TRIED: u32 = 100;

/// A directory, which is removed with all that is in it when this is dropped.
#[derive(Debug)]
pub struct PrivateDirectory {
    path: PathBuf,
    /// The lock on the directory. The kernel releases it at the end of this process, also after a kill.
    _lock: OwnedFd,
}

impl PrivateDirectory {
    /// Makes a directory in `base` whose name starts with `prefix`. It is locked and then renamed: without the rename,
    /// another server could remove it between its creation and its lock.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn new(base: &Path, prefix: &str) -> io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let process = std::process::id();
        let mut outcome = Err(io::ErrorKind::AlreadyExists.into());
        for _ in 0..NAMES_TRIED {
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            let path = base.join(format!("{prefix}{process}-{number}"));
            let new = base.join(format!("deuteron-new-{process}-{number}"));
            match make_locked(&new, &path) {
                Ok(lock) => return Ok(Self { path, _lock: lock }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => outcome = Err(error),
                Err(error) => return Err(error),
            }
        }
        outcome
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        // Files that cannot be removed do no harm: the next server tries again.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes the directories in `base` with this prefix whose servers were killed. Returns their number.
pub fn remove_stale(base: &Path, prefix: &str) -> usize {
    let Ok(entries) = fs::read_dir(base) else { return 0 };
    let names = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let ours = names
        .filter(|path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(prefix.as_bytes())));
    // A directory of another user cannot be removed, and one in use is locked.
    ours.filter(|path| lock(path).is_ok_and(|_lock| fs::remove_dir_all(path).is_ok())).count()
}

/// Locks a directory, if no process has locked it.
fn lock(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::open(path, flags, Mode::empty())?;
    rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive)?;
    Ok(directory)
}

fn make_locked(new: &Path, path: &Path) -> io::Result<OwnedFd> {
    DirBuilder::new().mode(0o700).create(new)?;
    let renamed = lock(new).and_then(|lock| {
        rustix::fs::renameat_with(rustix::fs::CWD, new, rustix::fs::CWD, path, RenameFlags::NOREPLACE)?;
        Ok(lock)
    });
    if renamed.is_err() {
        let _ = fs::remove_dir(new);
    }
    renamed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_directories_are_removed_but_not_those_in_use_or_of_other_names() {
        let base = std::env::temp_dir().join(format!("deuteron-sweep-{}", std::process::id()));
        let make = |name: &str| {
            fs::create_dir_all(base.join(name).join("m/1")).unwrap();
            fs::write(base.join(name).join("m/1/model.onnx"), "x").unwrap();
        };
        ["deuteron-model-1-0", "deuteron-model-2-0", "deuteron-model-2-1", "other"].iter().for_each(|name| make(name));
        std::os::unix::fs::symlink(base.join("other"), base.join("deuteron-model-link")).unwrap();
        let held = lock(&base.join("deuteron-model-2-0")).unwrap();
        let used = PrivateDirectory::new(&base, "deuteron-model-").unwrap();
        assert_eq!(remove_stale(&base, "deuteron-model-"), 2);
        assert!(used.path().exists());
        drop(used);
        let left = || {
            let mut left: Vec<_> = fs::read_dir(&base).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            left.sort();
            left
        };
        assert_eq!(left(), ["deuteron-model-2-0", "deuteron-model-link", "other"]);
        assert!(base.join("other/m/1/model.onnx").exists());
        drop(held);
        // A process that another test starts has the lock too, until its program runs.
        let removed = (0..100_000).map(|_| remove_stale(&base, "deuteron-model-")).find(|count| *count > 0);
        assert_eq!((removed, left().len()), (Some(1), 2), "its server has ended");
        fs::remove_dir_all(&base).unwrap();
    }
}
