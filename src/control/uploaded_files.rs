//! The files that a client sends with a load request, written to a temporary directory: engines read files, and may read
//! them as long as the model serves. The directory is removed with the last user. If a server is killed, the next one to
//! start removes its directories: those whose lock is free. Their size is bounded by that of one load request.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FlockOperation, Mode, OFlags, RenameFlags};

use crate::control::model_source::ModelSource;
use crate::protocol::repository::LoadOrder;

/// Names tried for a new directory: a killed process with the same id may have left some behind.
const NAMES_TRIED: u32 = 100;

/// The first part of every directory's name.
const PREFIX: &str = "deuteron-model-";

/// A temporary directory with the files of one model. Removed when this is dropped.
pub struct UploadedFiles {
    root: PathBuf,
    source: ModelSource,
    /// The lock on the directory. The kernel releases it at the end of this process, also after a kill.
    _lock: OwnedFd,
}

impl UploadedFiles {
    /// Writes the files into a new directory that only this user can read. A name that exists already, as a directory
    /// or a link, is never used.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn new(load: &LoadOrder) -> io::Result<Self> {
        let (root, lock) = make_directory()?;
        let written = write(&root, load).and_then(|()| ModelSource::of_directory(root.clone()));
        match written {
            Ok(source) => Ok(Self { root, source, _lock: lock }),
            Err(error) => {
                remove(&root);
                Err(error)
            }
        }
    }

    /// The directory as a model source.
    pub const fn source(&self) -> &ModelSource {
        &self.source
    }
}

impl Drop for UploadedFiles {
    fn drop(&mut self) {
        remove(&self.root);
    }
}

/// Removes the directories of servers that were killed. Returns their number.
pub fn remove_stale() -> usize {
    remove_stale_in(&std::env::temp_dir())
}

fn remove_stale_in(base: &Path) -> usize {
    let Ok(entries) = fs::read_dir(base) else { return 0 };
    let names = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let ours = names
        .filter(|path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(PREFIX.as_bytes())));
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

/// Makes a directory under a name that [`remove_stale`] ignores, locks it and renames it: without the rename, another
/// server could remove it between its creation and its lock.
fn make_directory() -> io::Result<(PathBuf, OwnedFd)> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let (base, process) = (std::env::temp_dir(), std::process::id());
    let mut outcome = Err(io::ErrorKind::AlreadyExists.into());
    for _ in 0..NAMES_TRIED {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = base.join(format!("{PREFIX}{process}-{number}"));
        let new = base.join(format!("deuteron-new-{process}-{number}"));
        match make_locked(&new, &path) {
            Ok(lock) => return Ok((path, lock)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => outcome = Err(error),
            Err(error) => return Err(error),
        }
    }
    outcome
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

/// Writes the files. Their paths were checked when the request was decoded: plain names beneath a version's directory.
fn write(root: &Path, load: &LoadOrder) -> io::Result<()> {
    let model = root.join(&load.name);
    for (path, contents) in &load.files {
        let path = model.join(path);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(path, contents)?;
    }
    Ok(())
}

fn remove(root: &Path) {
    // Files that cannot be removed do no harm: the next server tries again.
    let _ = fs::remove_dir_all(root);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_lie_in_a_directory_of_their_own_until_it_is_dropped() {
        let file = |path: &str| (path.to_owned(), bytes::Bytes::from_static(b"x"));
        let files = vec![file("1/model.onnx"), file("1/weights/a"), file("3/model.onnx")];
        let load = LoadOrder { name: "m".to_owned(), config: None, files };
        let uploaded_files = UploadedFiles::new(&load).unwrap();
        let other = UploadedFiles::new(&load).unwrap();
        assert_ne!(uploaded_files.root, other.root);
        let settings = crate::settings::Settings::default();
        let model = uploaded_files.source().find("m", &settings).unwrap().unwrap();
        assert_eq!((model.versions, model.files), (vec![3, 1], vec!["model.onnx".to_owned(), "weights".to_owned()]));
        assert_eq!(uploaded_files.source().repository.read("m/1/weights/a", 1).unwrap(), b"x");
        let root = uploaded_files.root.clone();
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&root).unwrap().permissions()) & 0o77, 0);
        drop(uploaded_files);
        assert!(!root.exists() && other.root.exists());
    }

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
        assert_eq!(remove_stale_in(&base), 2);
        let left = || {
            let mut left: Vec<_> = fs::read_dir(&base).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            left.sort();
            left
        };
        assert_eq!(left(), ["deuteron-model-2-0", "deuteron-model-link", "other"]);
        assert!(base.join("other/m/1/model.onnx").exists());
        drop(held);
        assert_eq!((remove_stale_in(&base), left().len()), (1, 2), "its server has ended");
        fs::remove_dir_all(&base).unwrap();
    }
}
