//! The files that a client sends with a load request, written to a temporary directory: engines read files, and may
//! read them as long as the model serves. The directory is removed with the last user. If a server is killed, the next
//! one to start removes its directories: those whose lock is free. Their size is bounded by that of one load request.

use std::fs;
use std::io;
use std::path::Path;

use crate::control::repository::model_source::ModelSource;
use crate::process::private_directory::{self, PrivateDirectory};
use crate::protocol::repository::LoadOrder;

/// The first part of every directory's name.
const PREFIX: &str = "deuteron-model-";

/// A temporary directory with the files of one model. Removed when this is dropped.
pub struct UploadedFiles {
    source: ModelSource,
    /// Removed with this.
    _directory: PrivateDirectory,
}

impl UploadedFiles {
    /// Writes the files into a new directory that only this user can read.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn new(load: &LoadOrder) -> io::Result<Self> {
        let directory = PrivateDirectory::new(&std::env::temp_dir(), PREFIX)?;
        write(directory.path(), load)?;
        let source = ModelSource::of_directory(directory.path().to_owned())?;
        Ok(Self { source, _directory: directory })
    }

    /// Returns the directory as a model source.
    pub const fn source(&self) -> &ModelSource {
        &self.source
    }
}

/// Removes the directories of servers that were killed. Returns their number.
pub fn remove_stale() -> usize {
    private_directory::remove_stale(&std::env::temp_dir(), PREFIX)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_lie_in_a_directory_of_their_own_until_it_is_dropped() {
        let file = |path: &str| (path.to_owned(), bytes::Bytes::from_static(b"x"));
        let files = vec![file("1/model.onnx"), file("1/weights/a"), file("3/model.onnx")];
        let load = LoadOrder { name: "m".to_owned(), config: None, files, ..LoadOrder::default() };
        let uploaded_files = UploadedFiles::new(&load).unwrap();
        let other = UploadedFiles::new(&load).unwrap();
        assert_ne!(uploaded_files._directory.path(), other._directory.path());
        let settings = settings::Settings::default();
        let model = uploaded_files.source().find("m", &settings).unwrap().unwrap();
        assert_eq!((model.versions, model.files), (vec![3, 1], vec!["model.onnx".to_owned(), "weights".to_owned()]));
        assert_eq!(uploaded_files.source().repository.read("m/1/weights/a", 1).unwrap(), b"x");
        let root = uploaded_files._directory.path().to_owned();
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&root).unwrap().permissions()) & 0o77, 0);
        drop(uploaded_files);
        assert!(!root.exists() && other._directory.path().exists());
    }
}
