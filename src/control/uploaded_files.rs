//! The files that a client brought with a load, in a directory of their own: engines read files, and
//! may do so as long as the model serves. It is removed with the last who uses it; what a server that
//! was killed left behind, by the next that starts, which knows it by its lock. Bounded by what one
//! order may bring.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FlockOperation, Mode, OFlags, RenameFlags};

use crate::control::model_source::ModelSource;
use crate::protocol::repository::LoadOrder;

/// How many names are tried for the directory: another process may have left some behind.
const NAMES_TRIED: u32 = 100;

/// How the directories are called.
const PREFIX: &str = "deuteron-model-";

/// A directory with one model in it.
pub struct UploadedFiles {
    root: PathBuf,
    source: ModelSource,
    /// Its lock, which ends with this process however it ends.
    _lock: OwnedFd,
}

impl UploadedFiles {
    /// Writes the files. Nobody else may look into the directory, and it is new: what lies at its
    /// name already, a link among that, is left alone.
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

    /// Where it is read.
    pub const fn source(&self) -> &ModelSource {
        &self.source
    }
}

impl Drop for UploadedFiles {
    fn drop(&mut self) {
        remove(&self.root);
    }
}

/// Removes what servers that were killed left behind; how many directories.
pub fn sweep() -> usize {
    sweep_in(&std::env::temp_dir())
}

fn sweep_in(base: &Path) -> usize {
    let Ok(entries) = fs::read_dir(base) else { return 0 };
    let names = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let ours = names
        .filter(|path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(PREFIX.as_bytes())));
    // Another's cannot be removed, and one that a server uses is locked.
    ours.filter(|path| lock(path).is_ok_and(|_held| fs::remove_dir_all(path).is_ok())).count()
}

/// Holds a directory, if nobody else does.
fn lock(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::open(path, flags, Mode::empty())?;
    rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive)?;
    Ok(directory)
}

/// A new directory, locked before it has the name by which it is swept.
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

/// The paths were checked: plain names beneath a version's directory.
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
    // What stays behind is in the way of nothing.
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
    fn what_was_left_behind_is_swept_and_what_is_in_use_or_anothers_is_not() {
        let base = std::env::temp_dir().join(format!("deuteron-sweep-{}", std::process::id()));
        let make = |name: &str| {
            fs::create_dir_all(base.join(name).join("m/1")).unwrap();
            fs::write(base.join(name).join("m/1/model.onnx"), "x").unwrap();
        };
        ["deuteron-model-1-0", "deuteron-model-2-0", "deuteron-model-2-1", "other"].iter().for_each(|name| make(name));
        std::os::unix::fs::symlink(base.join("other"), base.join("deuteron-model-link")).unwrap();
        let held = lock(&base.join("deuteron-model-2-0")).unwrap();
        assert_eq!(sweep_in(&base), 2);
        let left = || {
            let mut left: Vec<_> = fs::read_dir(&base).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            left.sort();
            left
        };
        assert_eq!(left(), ["deuteron-model-2-0", "deuteron-model-link", "other"]);
        assert!(base.join("other/m/1/model.onnx").exists());
        drop(held);
        assert_eq!((sweep_in(&base), left().len()), (1, 2), "its server has ended");
        fs::remove_dir_all(&base).unwrap();
    }
}
