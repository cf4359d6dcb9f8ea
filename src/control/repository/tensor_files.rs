//! The files in which an ONNX file keeps tensors: beside it, or, if it is a link that is followed, beside the file that it
//! leads to. ONNX Runtime refuses a file of tensors whose own directory is neither of the two (from 1.24 on), as caches that
//! store each file by its hash have it (DVC), and it looks for none beside a link's target: those are copied into the ONNX
//! file, in memory.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::path::{Component, Path, PathBuf};

use crate::control::repository::beneath::LinkPolicy;
use crate::control::repository::model_source::ModelSource;
use crate::error::Error;
use crate::limits::MODEL_SIZE_MAX;
use crate::model::onnx::external_data::{ExternalPart, external_files, with_external};

/// The opened files of tensors of one ONNX file.
pub struct TensorFiles {
    /// The ONNX file.
    model: String,
    files: Vec<TensorFile>,
}

struct TensorFile {
    /// Its path in the ONNX file.
    location: String,
    /// Its path in the repository, if it was found beside the ONNX file.
    place: String,
    file: File,
    size: u64,
    /// True if it lies beside the link's target alone.
    is_elsewhere: bool,
    /// True if an engine that loads the ONNX file by its path finds this one and takes it.
    is_taken: bool,
}

/// The directories in which an engine takes files of tensors.
struct EngineDirectories {
    /// That of the ONNX file's path.
    own: Option<PathBuf>,
    /// That of the file itself, elsewhere if the path is a link.
    target: Option<PathBuf>,
}

impl TensorFiles {
    /// Opens the files that an ONNX file with these bytes refers to.
    ///
    /// # Errors
    /// `InvalidArgument` when one cannot be read, or has a path that leads up.
    pub fn open(source: &ModelSource, model: &str, bytes: &[u8]) -> Result<Self, Error> {
        let beside = model.rsplit_once('/').map_or("", |(beside, _)| beside);
        let locations = external_files(bytes)?;
        let directories = match locations.is_empty() {
            true => EngineDirectories { own: None, target: None },
            false => EngineDirectories::of(source, model, beside),
        };
        let mut files = Vec::with_capacity(locations.len());
        for location in locations {
            let refused = |why: &str| Error::invalid(format!("'{model}' keeps tensors in '{location}', {why}"));
            // ONNX: a location is relative to the model file's directory and has no "..".
            if !Path::new(&location).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
                return Err(refused("which does not lie beside it or below"));
            }
            let place = format!("{beside}/{location}");
            let (file, is_elsewhere) = match (source.repository.open_file(&place), directories.followed(source)) {
                (Ok(file), _) => (file, false),
                (Err(error), None) => {
                    return Err(refused(&format!("which cannot be read beneath the repository: {error}")));
                }
                (Err(error), Some(target)) => {
                    let file = open_plain(&target.join(&location)).map_err(|other| {
                        let other = other.kind();
                        refused(&format!(
                            "which cannot be read beneath the repository: {error}; nor beside the file that the link \
                             '{model}' leads to: {other}"
                        ))
                    })?;
                    (file, true)
                }
            };
            let size = file.metadata().map_err(|error| refused(&format!("which cannot be read: {error}")))?.len();
            let is_taken = !is_elsewhere && directories.take(&file);
            files.push(TensorFile { location, place, file, size, is_elsewhere, is_taken });
        }
        Ok(Self { model: model.to_owned(), files })
    }

    /// Returns the bytes of all files.
    pub fn size(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.size))
    }

    /// Returns the paths that they have, or would have, in the repository.
    pub fn places(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|file| file.place.as_str())
    }

    /// Checks that all lie beside the ONNX file, for an engine that gets its path alone.
    ///
    /// # Errors
    /// `InvalidArgument` with the first that does not.
    pub fn check_beside(&self) -> Result<(), Error> {
        self.files.iter().find(|file| file.is_elsewhere).map_or(Ok(()), |file| {
            let (model, location) = (&self.model, &file.location);
            Err(Error::invalid(format!(
                "'{model}' is a link, and '{location}', in which it keeps tensors, lies only beside the file that it leads \
                 to; put a link to '{location}' beside it"
            )))
        })
    }

    /// The ONNX file with the tensors in it; `None` if an engine finds the files by its path.
    ///
    /// # Errors
    /// `InvalidArgument` when a file cannot be read, or when one that no engine finds is too large.
    pub fn embedded(&self, bytes: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        if self.files.iter().all(|file| file.is_taken) {
            return Ok(None);
        }
        if self.size().saturating_add(bytes.len() as u64) >= MODEL_SIZE_MAX as u64 {
            // The embedded engine takes files by a link to anywhere.
            return self.check_beside().map(|()| None);
        }
        let read = |part: ExternalPart<'_>, contents: &mut Vec<u8>| self.read(part, contents);
        let whole = with_external(bytes, &read);
        whole.map(Some).map_err(|error| error.with_prefix(&format!("'{}' and its files of tensors: ", self.model)))
    }

    fn read(&self, part: ExternalPart<'_>, contents: &mut Vec<u8>) -> Result<(), String> {
        let ExternalPart { location, offset, length } = part;
        let found = self.files.iter().find(|file| file.location == location);
        let file = found.ok_or_else(|| format!("'{location}' was not opened"))?;
        // A tensor is no longer than its file, which bounds what is reserved here.
        let size = length.unwrap_or(u64::MAX).min(file.size.saturating_sub(offset));
        if length.is_some_and(|length| length != size) || offset > file.size {
            return Err(format!("'{location}' has {} bytes, and a tensor ends behind them", file.size));
        }
        let mut opened = &file.file;
        let outcome = opened.seek(SeekFrom::Start(offset)).and_then(|_| opened.take(size).read_to_end(contents));
        outcome.map(drop).map_err(|error| format!("'{location}' cannot be read: {error}"))
    }
}

impl EngineDirectories {
    fn of(source: &ModelSource, model: &str, beside: &str) -> Self {
        let target = source.repository.real_path(model);
        Self {
            own: source.repository.real_path(if beside.is_empty() { "." } else { beside }),
            target: target.and_then(|target| Some(target.parent()?.to_owned())),
        }
    }

    /// Returns the directory of the link's target, if the ONNX file is a link that the operator lets lead anywhere.
    fn followed(&self, source: &ModelSource) -> Option<&Path> {
        let is_followed = source.repository.links() == LinkPolicy::Followed && self.target != self.own;
        self.target.as_deref().filter(|_| is_followed)
    }

    /// Returns true if an engine takes an opened file. Without `/proc` it is asked.
    fn take(&self, file: &File) -> bool {
        let Ok(path) = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())) else { return true };
        [&self.own, &self.target].into_iter().flatten().any(|directory| path.starts_with(directory))
    }
}

/// Opens a regular file; a pipe would wait for its writer.
fn open_plain(path: &Path) -> io::Result<File> {
    if fs::metadata(path)?.is_file() { File::open(path) } else { Err(io::ErrorKind::InvalidInput.into()) }
}
