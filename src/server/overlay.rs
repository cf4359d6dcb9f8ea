//! The files that a client brought with a load, in a directory of their own: engines read files, and
//! may do so as long as the model serves. It is removed with the last who uses it. Bounded by what
//! one order may bring.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::protocol::repository::Load;
use crate::server::source::Source;

/// How many names are tried for the directory: another process may have left some behind.
const NAMES_TRIED: u32 = 100;

/// A directory with one model in it.
pub struct Overlay {
    root: PathBuf,
    source: Source,
}

impl Overlay {
    /// Writes the files. Nobody else may look into the directory, and it is new: what lies at its
    /// name already, a link among that, is left alone.
    pub fn new(load: &Load) -> io::Result<Self> {
        let root = make_directory()?;
        let written = write(&root, load).and_then(|()| Source::of_directory(root.clone()));
        match written {
            Ok(source) => Ok(Self { root, source }),
            Err(error) => {
                remove(&root);
                Err(error)
            }
        }
    }

    /// Where it is read.
    pub const fn source(&self) -> &Source {
        &self.source
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        remove(&self.root);
    }
}

fn make_directory() -> io::Result<PathBuf> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let (base, process) = (std::env::temp_dir(), std::process::id());
    let mut outcome = Err(io::ErrorKind::AlreadyExists.into());
    for _ in 0..NAMES_TRIED {
        let path = base.join(format!("deuteron-model-{process}-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => outcome = Err(error),
            Err(error) => return Err(error),
        }
    }
    outcome
}

/// The paths were checked: plain names beneath a version's directory.
fn write(root: &std::path::Path, load: &Load) -> io::Result<()> {
    let model = root.join(&load.name);
    for (path, contents) in &load.files {
        let path = model.join(path);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(path, contents)?;
    }
    Ok(())
}

fn remove(root: &std::path::Path) {
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
        let load = Load { name: "m".to_owned(), config: None, files };
        let overlay = Overlay::new(&load).unwrap();
        let other = Overlay::new(&load).unwrap();
        assert_ne!(overlay.root, other.root);
        let settings = crate::config::Settings::default();
        let model = overlay.source().find("m", &settings).unwrap().unwrap();
        assert_eq!((model.versions, model.files), (vec![3, 1], vec!["model.onnx".to_owned(), "weights".to_owned()]));
        assert_eq!(overlay.source().repository.read("m/1/weights/a", 1).unwrap(), b"x");
        let root = overlay.root.clone();
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&root).unwrap().permissions()) & 0o77, 0);
        drop(overlay);
        assert!(!root.exists() && other.root.exists());
    }
}
