//! A model's file, by the path in its version's directory or as it was opened.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use base::error::Error;
use model::ModelSpec;

/// A model's file for an engine that takes only a path.
pub struct ModelFile {
    /// The path of the file, valid until this is dropped.
    pub path: PathBuf,
    /// The descriptor that the path leads to, if it is that of an opened file.
    opened: Option<OwnedFd>,
}

impl ModelFile {
    /// The file in a version's directory.
    ///
    /// # Errors
    ///
    /// As [`model_path`].
    pub fn in_directory(spec: &ModelSpec, directory: &Path) -> Result<Self, Error> {
        Ok(Self { path: model_path(spec, directory)?, opened: None })
    }

    /// An opened file by the name that Linux gives to its descriptor, or the file in the directory
    /// if `/proc` is not mounted.
    ///
    /// # Errors
    ///
    /// As [`model_path`].
    pub fn opened(spec: &ModelSpec, directory: &Path, file: BorrowedFd<'_>) -> Result<Self, Error> {
        match file.try_clone_to_owned().map(Self::of_descriptor) {
            Ok(file) if file.path.exists() => Ok(file),
            _ => Self::in_directory(spec, directory),
        }
    }

    fn of_descriptor(opened: OwnedFd) -> Self {
        Self { path: PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd())), opened: Some(opened) }
    }

    /// The same file with a descriptor of its own.
    ///
    /// # Errors
    ///
    /// If the process has no descriptor left.
    pub fn try_clone(&self) -> Result<Self, Error> {
        let Some(opened) = &self.opened else { return Ok(Self { path: self.path.clone(), opened: None }) };
        let opened = opened.try_clone();
        opened
            .map(Self::of_descriptor)
            .map_err(|error| Error::unavailable(format!("the model's file cannot be kept open: {error}")))
    }
}

/// The path of a model's file in its version's directory.
///
/// # Errors
///
/// If the configured name leads out of the directory, or no such file exists.
pub fn model_path(spec: &ModelSpec, directory: &Path) -> Result<PathBuf, Error> {
    model_place(spec, directory, Path::is_file)
}

/// The path of a model that may be a directory, likewise.
///
/// # Errors
///
/// As [`model_path`].
pub fn model_file_or_directory(spec: &ModelSpec, directory: &Path) -> Result<PathBuf, Error> {
    model_place(spec, directory, Path::exists)
}

fn model_place(spec: &ModelSpec, directory: &Path, is_there: fn(&Path) -> bool) -> Result<PathBuf, Error> {
    let name = Path::new(&spec.default_model_filename);
    if !name.components().all(|component| matches!(component, Component::Normal(_))) {
        let text = format!("file '{}' of model '{}' must lie in the version's directory", name.display(), spec.name);
        return Err(Error::invalid(text));
    }
    let path = directory.join(name);
    if is_there(&path) {
        return Ok(path);
    }
    // Without the path on this machine, which clients should not see.
    Err(Error::not_found(format!("unable to find '{}' for model '{}'", name.display(), spec.name)))
}
