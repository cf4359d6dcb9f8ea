//! The model file of one version, opened beneath the repository and pinned while an engine loads
//! it, so that the engine loads the file that was checked even if the path leads elsewhere by then.
//! An ONNX file whose outputs wrap tensors, or whose tensors lie where its engine does not look, is loaded from memory, as
//! it was rewritten.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use crate::backend::{Backend, LoadedModel};
use crate::control::repository::hub_graph::{self, OnnxPart};
use crate::control::repository::model_source::ModelSource;
use crate::control::repository::tensor_files::TensorFiles;
use crate::error::Error;
use crate::limits::MODEL_SIZE_MAX;
use crate::model::ModelSpec;
use crate::model::config::ConfigDraft;
use crate::model::onnx::work::depends_on_values;
use crate::model::onnx::wrapped_outputs::unwrap_outputs;
use crate::process::isolation::FilesCheck;
use crate::transformer::Operators;

/// The opened model file, absent for a backend without one. An engine loads it from the descriptor.
/// Two kinds are loaded by their path: an ONNX file with tensors in other files, because the engine
/// must find those, and a Python model, whose process opens any files. Their known files must be
/// beneath the repository and must not change during the load.
pub struct PinnedFiles {
    /// `None` to load by the path.
    file: Option<File>,
    /// True if a run may fail because of the values of its inputs.
    pub depends_on_values: bool,
    /// The bytes of the model file and of its files of tensors.
    pub files_size: u64,
    /// The path and the stamp of the model file and of each of its files of tensors.
    stamps: Vec<(String, u64)>,
}

impl PinnedFiles {
    /// Opens the model file in a version's directory and stamps the files that it refers to. An ONNX file that is written from
    /// weights has these operators.
    ///
    /// # Errors
    /// `InvalidArgument` when a file cannot be read beneath the repository, or a tensor's file is not beside or below
    /// the model file.
    pub fn new(
        source: &ModelSource,
        directory: &str,
        draft: &ConfigDraft,
        operators: Operators,
    ) -> Result<Self, Error> {
        if let Some(python) = draft.python()?.filter(|python| !python.is_backend) {
            let path = format!("{directory}/{}", python.file);
            open_python_file(source, &path)?;
            let stamp = source.repository.stamp(&path);
            return Ok(Self { stamps: vec![(path, stamp)], ..Self::none() });
        }
        if let Some(name) = draft.tree_filename().or_else(|| draft.pytorch_filename()) {
            return Self::of_one(source, &format!("{directory}/{name}"));
        }
        if let Some(name) = draft.framework_filename() {
            return Self::of_framework(source, &format!("{directory}/{name}"));
        }
        let Some(name) = draft.onnx_filename() else { return Ok(Self::none()) };
        let path = format!("{directory}/{name}");
        let cannot_read = |error: std::io::Error| Error::invalid(format!("cannot read '{path}': {error}"));
        let mut file = source.repository.open_file(&path).map_err(cannot_read)?;
        if hub_graph::is_written(name) {
            let written = hub_graph::read_onnx(&source.repository, directory, name, OnnxPart::Whole(operators))?;
            let stamps = vec![(path.clone(), source.repository.stamp(&path))];
            let file = Some(in_memory(&written).map_err(cannot_read)?);
            let depends_on_values = depends_on_values(&written);
            return Ok(Self { file, depends_on_values, files_size: written.len() as u64, stamps });
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).and_then(|_| file.rewind()).map_err(cannot_read)?;
        let mut stamps = vec![(path.clone(), source.repository.stamp(&path))];
        let tensors = TensorFiles::open(source, &path, &bytes)?;
        stamps.extend(tensors.places().map(|place| (place.to_owned(), source.repository.stamp(place))));
        let files_size = (bytes.len() as u64).saturating_add(tensors.size());
        let depends_on_values = depends_on_values(&bytes);
        let (bytes, mut is_rewritten) = match tensors.embedded(&bytes)? {
            Some(embedded) => (embedded, true),
            None => (bytes, false),
        };
        let unwrapped = unwrap_outputs(&bytes).map(|unwrapped| unwrapped.bytes);
        is_rewritten |= unwrapped.is_some();
        let file = match is_rewritten {
            true => Some(in_memory(&unwrapped.unwrap_or(bytes)).map_err(cannot_read)?),
            false => (stamps.len() == 1).then_some(file),
        };
        Ok(Self { file, depends_on_values, files_size, stamps })
    }

    /// Opens a model that is one file, without reading it.
    fn of_one(source: &ModelSource, path: &str) -> Result<Self, Error> {
        let opened = source.repository.open_file(path).and_then(|file| Ok((file.metadata()?.len(), file)));
        let (files_size, file) = opened.map_err(|error| Error::invalid(format!("cannot read '{path}': {error}")))?;
        let stamps = vec![(path.to_owned(), source.repository.stamp(path))];
        Ok(Self { file: Some(file), depends_on_values: true, files_size, stamps })
    }

    /// Opens a model of OpenVINO's or TensorFlow's, whose library opens it by its path: a file with
    /// its weights beside it, or a directory with all its files.
    fn of_framework(source: &ModelSource, path: &str) -> Result<Self, Error> {
        let (mut stamps, mut files_size) = (Vec::new(), 0_u64);
        if source.repository.is_directory(path) {
            files_size = stamp_directory(source, path, DIRECTORY_LEVELS_MAX, &mut stamps)?;
        } else {
            let weights = path.strip_suffix(".xml").map(|stem| format!("{stem}.bin"));
            let weights = weights.filter(|weights| source.repository.stamp(weights) != 0);
            for path in std::iter::once(path.to_owned()).chain(weights) {
                files_size = files_size.saturating_add(stamp_file(source, path, &mut stamps)?);
            }
        }
        if path.to_ascii_lowercase().ends_with(".onnx") {
            let bytes = source.read(path, MODEL_SIZE_MAX)?;
            let tensors = TensorFiles::open(source, path, &bytes)?;
            tensors.check_beside()?;
            stamps.extend(tensors.places().map(|place| (place.to_owned(), source.repository.stamp(place))));
            files_size = files_size.saturating_add(tensors.size());
        }
        Ok(Self { files_size, stamps, ..Self::none() })
    }

    /// Creates the files of a model without a file, or with files of its own.
    const fn none() -> Self {
        Self { file: None, depends_on_values: true, files_size: 0, stamps: Vec::new() }
    }

    /// Returns the paths of the files.
    pub fn paths(&self) -> impl Iterator<Item = String> {
        self.stamps.iter().map(|(path, _)| path.clone())
    }

    /// Returns true if the engine gets the file that was opened here, and opens none by a path.
    pub const fn is_opened(&self) -> bool {
        self.file.is_some()
    }

    /// Checks, after the load, that the files did not change meanwhile.
    ///
    /// # Errors
    /// `Unavailable` when one did.
    pub fn check(&self, source: &ModelSource) -> Result<(), Error> {
        match self.stamps.iter().find(|(path, stamp)| source.repository.stamp(path) != *stamp) {
            Some((path, _)) => {
                Err(Error::unavailable(format!("'{path}' was changed while it was loaded; load it again")))
            }
            None => Ok(()),
        }
    }

    /// Returns the same check for a process that opens the files by their paths later; one that
    /// gets the opened file needs none.
    ///
    /// # Errors
    /// `Unavailable` if the repository cannot be kept open.
    pub fn later_check(&self, source: &ModelSource) -> Result<FilesCheck, Error> {
        if self.file.is_some() {
            return Ok(Arc::new(|| Ok(())));
        }
        let repository = source.keep_open()?;
        let stamps = self.stamps.clone();
        Ok(Arc::new(move || match stamps.iter().find(|(path, stamp)| repository.stamp(path) != *stamp) {
            Some((path, _)) => {
                Err(Error::unavailable(format!("'{path}' was changed since it was loaded; load it again")))
            }
            None => Ok(()),
        }))
    }

    /// Loads the model with an engine. `path` is the version's directory.
    ///
    /// # Errors
    /// The engine's error.
    pub fn load(
        &self,
        backend: &dyn Backend,
        spec: &Arc<ModelSpec>,
        path: &Path,
    ) -> Result<Box<dyn LoadedModel>, Error> {
        match &self.file {
            Some(file) => backend.load_opened(spec, path, file.as_fd()),
            None => backend.load(spec, path),
        }
    }
}

/// Levels of directories in a model that is one; a SavedModel has one, and its author's files in
/// `assets`.
const DIRECTORY_LEVELS_MAX: usize = 8;

/// Opens a file, so that it is known to be beneath the repository, and stamps it. Returns its size.
fn stamp_file(source: &ModelSource, path: String, stamps: &mut Vec<(String, u64)>) -> Result<u64, Error> {
    let opened = source.repository.open_file(&path).and_then(|file| file.metadata());
    let known = opened.map_err(|error| Error::invalid(format!("cannot read '{path}': {error}")))?;
    let stamp = source.repository.stamp(&path);
    stamps.push((path, stamp));
    Ok(known.len())
}

fn stamp_directory(
    source: &ModelSource,
    path: &str,
    levels: usize,
    stamps: &mut Vec<(String, u64)>,
) -> Result<u64, Error> {
    let refuse = |why: &str| Error::invalid(format!("cannot read '{path}': {why}"));
    let entries = source.repository.list_beneath(path).map_err(|error| refuse(&error.to_string()))?;
    let mut size = 0_u64;
    for entry in entries {
        let path = format!("{path}/{}", entry.name);
        size = size.saturating_add(match (entry.is_directory, levels.checked_sub(1)) {
            (false, _) => stamp_file(source, path, stamps)?,
            (true, Some(levels)) => stamp_directory(source, &path, levels, stamps)?,
            (true, None) => return Err(refuse("its directories are too deep")),
        });
    }
    Ok(size)
}

/// Returns a file without a name that has these bytes.
fn in_memory(bytes: &[u8]) -> std::io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("deuteron-model", rustix::fs::MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}

/// Opens the first file of a Python model.
///
/// # Errors
/// `InvalidArgument` when it does not exist, in Triton's words, or does not lie beneath the
/// repository.
pub fn open_python_file(source: &ModelSource, path: &str) -> Result<File, Error> {
    source.repository.open_file(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Error::invalid(format!("Python model file not found in '{path}'")),
        _ => Error::invalid(format!("cannot read '{path}': {error}")),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::os::fd::BorrowedFd;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::model::config::CompletionRules;

    /// An engine that reports by which of the two methods it was called.
    struct Reporting;

    impl Backend for Reporting {
        fn name(&self) -> &str {
            "reporting"
        }

        fn load(&self, _: &Arc<ModelSpec>, directory: &Path) -> Result<Box<dyn LoadedModel>, Error> {
            Err(Error::internal(format!("by its path {}", directory.display())))
        }

        fn load_opened(
            &self,
            _: &Arc<ModelSpec>,
            _: &Path,
            file: BorrowedFd<'_>,
        ) -> Result<Box<dyn LoadedModel>, Error> {
            let mut bytes = Vec::new();
            File::from(file.try_clone_to_owned().unwrap()).read_to_end(&mut bytes).unwrap();
            Err(Error::internal(format!("as it was opened, {} bytes", bytes.len())))
        }
    }

    /// An ONNX file that keeps a tensor in another, or in none.
    fn onnx(place: Option<&str>) -> Vec<u8> {
        let field = |number: u8, value: &[u8]| [&[number << 3 | 2, value.len() as u8], value].concat();
        let location = |place: &str| field(13, &[field(1, b"location"), field(2, place.as_bytes())].concat());
        field(7, &field(5, &place.map_or_else(|| field(8, b"w"), location)))
    }

    #[test]
    fn a_file_without_external_tensors_is_loaded_from_its_descriptor_and_others_by_path() {
        let root = std::env::temp_dir().join(format!("deuteron-ways-{}", std::process::id()));
        let version = root.join("models/m/1");
        fs::create_dir_all(version.join("deep")).unwrap();
        for file in ["models/m/1/w.bin", "models/m/1/deep/w.bin", "models/m/x", "outside"] {
            fs::write(root.join(file), "weights").unwrap();
        }
        symlink(root.join("outside"), version.join("out")).unwrap();
        symlink("../x", version.join("in")).unwrap();
        symlink(&root, version.join("folder_out")).unwrap();
        let source = ModelSource::of_directory(root.join("models")).unwrap();
        let draft = ConfigDraft::new("m", Some(b"platform: 'onnxruntime_onnx'"), &[]).unwrap();
        let spec = {
            let text = b"backend: 'identity' input { name: 'x' data_type: TYPE_FP32 dims: 1 } \
                         output { name: 'y' data_type: TYPE_FP32 dims: 1 }";
            let draft = ConfigDraft::new("m", Some(text), &[]).unwrap();
            Arc::new(draft.complete(None, &BTreeMap::new(), CompletionRules::default()).unwrap())
        };
        let outcome = |place: Option<&str>| {
            fs::write(version.join("model.onnx"), onnx(place)).unwrap();
            let opening = PinnedFiles::new(&source, "m/1", &draft, Operators::default());
            let outcome = opening.and_then(|opening| opening.load(&Reporting, &spec, Path::new("P")));
            outcome.err().unwrap().text().to_owned()
        };
        assert_eq!(outcome(None), "as it was opened, 7 bytes");
        for beneath in ["w.bin", "./w.bin", "deep/w.bin"] {
            assert_eq!(outcome(Some(beneath)), "by its path P", "{beneath}");
        }
        assert_eq!(
            outcome(Some("in")),
            format!("as it was opened, {} bytes", onnx(Some("in")).len()),
            "ONNX Runtime takes no link out of the directory"
        );
        let outside = root.join("outside").display().to_string();
        for place in ["../x", "../../../outside", "deep/../../x", &outside] {
            let want = format!("'m/1/model.onnx' keeps tensors in '{place}', which does not lie beside it or below");
            assert_eq!(outcome(Some(place)), want);
        }
        for place in ["out", "folder_out/outside", "absent", "deep"] {
            let want =
                format!("'m/1/model.onnx' keeps tensors in '{place}', which cannot be read beneath the repository");
            assert!(outcome(Some(place)).starts_with(&want), "{place}: {}", outcome(Some(place)));
        }
        // The files of its tensors must not change either.
        fs::write(version.join("model.onnx"), onnx(Some("w.bin"))).unwrap();
        let opening = PinnedFiles::new(&source, "m/1", &draft, Operators::default()).unwrap();
        assert!(opening.check(&source).is_ok());
        fs::remove_file(version.join("w.bin")).unwrap();
        symlink(root.join("outside"), version.join("w.bin")).unwrap();
        let text = opening.check(&source).unwrap_err();
        assert_eq!(text.text(), "'m/1/w.bin' was changed while it was loaded; load it again");
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_model_whose_file_is_swapped_while_it_loads_is_refused() {
        let root = std::env::temp_dir().join(format!("deuteron-swap-{}", std::process::id()));
        let version = root.join("models/m/1");
        fs::create_dir_all(&version).unwrap();
        fs::create_dir_all(root.join("elsewhere")).unwrap();
        for path in [version.join("model.onnx"), root.join("elsewhere/model.onnx")] {
            fs::write(path, onnx(None)).unwrap();
        }
        let source = ModelSource::of_directory(root.join("models")).unwrap();
        let draft = ConfigDraft::new("m", Some(b"platform: 'onnxruntime_onnx'"), &[]).unwrap();
        let open = || PinnedFiles::new(&source, "m/1", &draft, Operators::default());
        let text = |outcome: Result<(), Error>| outcome.err().map(|error| error.text().to_owned()).unwrap_or_default();
        let opened = open().unwrap();
        assert_eq!(text(opened.check(&source)), "");
        fs::rename(&version, root.join("models/m/away")).unwrap();
        symlink(root.join("elsewhere"), &version).unwrap();
        let swapped = "'m/1/model.onnx' was changed while it was loaded; load it again";
        assert_eq!(text(opened.check(&source)), swapped, "a directory that leads out");
        assert!(text(open().map(drop)).starts_with("cannot read 'm/1/model.onnx'"));
        fs::remove_file(&version).unwrap();
        fs::rename(root.join("models/m/away"), &version).unwrap();
        assert_eq!(text(opened.check(&source)), "");
        fs::remove_file(version.join("model.onnx")).unwrap();
        fs::write(version.join("model.onnx"), [onnx(None), onnx(None)].concat()).unwrap();
        assert_eq!(text(opened.check(&source)), swapped, "another file");
        fs::remove_dir_all(&root).unwrap();
    }
}
