//! A model's own strategy for batches (`TRITONBACKEND_ModelBatch*`): a library that decides which
//! requests go together. The queue forms batches as the configuration says, and the strategy cuts
//! them, in order, before a request that it does not include; Triton asks it before a request joins
//! a batch, with the same outcome.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::triton::elf::AbsoluteSymbol;
use crate::triton::library::BatchLibrary;
use crate::triton::model_object::LibraryModel;
use crate::triton::object::Handle;
use crate::triton::request::RequestObject;
use crate::triton::services::log_error;
use base::error::{Code, Error};
use model::ModelSpec;

/// The parameter with the path of the library, in the directory of the version, of the model, or of the backend.
const PATH: &str = "TRITON_BATCH_STRATEGY_PATH";
/// Its name if no parameter gives one.
const FILE: &str = "batchstrategy.so";

/// A strategy of one model.
pub(super) struct HostedBatcher {
    library: BatchLibrary,
    batcher: usize,
    /// It may keep the model's pointer.
    _model: Arc<LibraryModel>,
}

impl HostedBatcher {
    /// The strategy of a model; `None` for most.
    ///
    /// # Errors
    /// `NotFound` or `InvalidArgument` if the library is missing or elsewhere, in Triton's words;
    /// the library's own error.
    pub(super) fn find(
        spec: &ModelSpec,
        model: &Arc<LibraryModel>,
        version_directory: &Path,
        backend_directory: &Path,
        functions: &[AbsoluteSymbol],
    ) -> Result<Option<Self>, Error> {
        let Some(path) = path_of(spec, version_directory, backend_directory)? else { return Ok(None) };
        let library = BatchLibrary::open(&path, functions)?;
        let batcher = library.begin(model.handle().any())?;
        Ok(Some(Self { library, batcher, _model: Arc::clone(model) }))
    }

    /// Cuts a batch and runs its parts. If the strategy fails, the rest runs as one part.
    pub(super) fn split(
        &self,
        handles: &mut [Handle<RequestObject>],
        mut run: impl FnMut(&mut [Handle<RequestObject>]),
    ) {
        let mut rest = handles;
        while !rest.is_empty() {
            let count = self.part(rest).unwrap_or_else(|error| {
                log_error(&format!("a batching strategy failed: {error}"));
                rest.len()
            });
            let (part, behind) = rest.split_at_mut(count.clamp(1, rest.len()));
            run(part);
            rest = behind;
        }
    }

    /// The number of the next requests that go together: the first in any case.
    fn part(&self, requests: &[Handle<RequestObject>]) -> Result<usize, Error> {
        let batch = self.library.begin_batch(self.batcher)?;
        let mut count = 0;
        let mut outcome = Ok(());
        for request in requests {
            match self.library.includes(request.any(), batch) {
                Ok(true) => count += 1,
                Ok(false) => break,
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        self.library.end_batch(batch)?;
        outcome.map(|()| count)
    }
}

impl Drop for HostedBatcher {
    fn drop(&mut self) {
        if let Err(error) = self.library.end(self.batcher) {
            log_error(&format!("a batching strategy failed to finalize: {error}"));
        }
    }
}

fn path_of(spec: &ModelSpec, version_directory: &Path, backend_directory: &Path) -> Result<Option<PathBuf>, Error> {
    let model_directory = version_directory.parent().unwrap_or(version_directory);
    let given = spec.parameters.get(PATH);
    let is_sequence = spec.library.as_ref().is_some_and(|library| library.is_sequence);
    if is_sequence {
        let text =
            "TRITON_BATCH_STRATEGY_PATH cannot be specified with sequence batcher, using default batching strategy";
        return given.map_or(Ok(None), |_| Err(Error::invalid(text)));
    }
    let directories = [version_directory, model_directory, backend_directory];
    let Some(given) = given else {
        let places = directories.map(|directory| directory.join(FILE));
        return Ok(places.into_iter().find(|path| path.is_file()));
    };
    // An absolute path is the same in each of them, and must lie in the model's.
    let found =
        directories.into_iter().find_map(|directory| Some((directory, directory.join(given).canonicalize().ok()?)));
    let Some((directory, real)) = found else {
        return Err(Error::new(Code::NotFound, format!("Batching library path not found: {given}")));
    };
    let directory = if Path::new(given).is_absolute() { model_directory } else { directory };
    if !directory.canonicalize().is_ok_and(|directory| real.starts_with(directory)) {
        return Err(Error::invalid("Batching library path escapes model repository."));
    }
    Ok(Some(real))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::private_directory::PrivateDirectory;
    use model::config::{CompletionRules, ConfigDraft};

    #[test]
    fn a_strategy_lies_in_the_directory_of_the_version_of_the_model_or_of_the_backend() {
        let folder = PrivateDirectory::new(&std::env::temp_dir(), "deuteron-strategies-").unwrap();
        // Without `/tmp`, which may be a link.
        let root = folder.path().canonicalize().unwrap();
        let [version, model, backend] = ["models/m/1", "models/m", "backends/b"].map(|path| root.join(path));
        for file in
            ["models/m/1/a.so", "models/m/a.so", "models/m/b.so", "models/o.so", "backends/b/a.so", "backends/b/c.so"]
        {
            std::fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
            std::fs::write(root.join(file), "").unwrap();
        }
        let found = |given: &str, scheduling: &str| {
            let given = given.replace("ROOT", root.to_str().unwrap());
            let text = format!(
                "backend: 'identity' max_batch_size: 4 {scheduling}
                 parameters {{ key: '{PATH}' value {{ string_value: '{given}' }} }}
                 input {{ name: 'x' data_type: TYPE_INT32 dims: 1 }} output {{ name: 'y' data_type: TYPE_INT32 dims: 1 }}"
            );
            let draft = ConfigDraft::new("m", Some(text.as_bytes()), &[]).unwrap();
            let spec = draft.complete(None, &Default::default(), CompletionRules::default()).unwrap();
            let found = path_of(&spec, &version, &backend).map_err(|error| error.text().to_owned())?;
            Ok::<_, String>(found.unwrap().strip_prefix(&root).unwrap().to_str().unwrap().to_owned())
        };
        let check = |given: &str, want: Result<&str, &str>| {
            assert_eq!(found(given, ""), want.map(str::to_owned).map_err(str::to_owned), "{given}");
        };
        check("a.so", Ok("models/m/1/a.so"));
        check("b.so", Ok("models/m/b.so"));
        check("c.so", Ok("backends/b/c.so"));
        check("1/a.so", Ok("models/m/1/a.so"));
        check("ROOT/models/m/b.so", Ok("models/m/b.so"));
        check("d.so", Err("Batching library path not found: d.so"));
        let escapes = Err("Batching library path escapes model repository.");
        check("../o.so", escapes);
        check("ROOT/models/o.so", escapes);
        check("ROOT/backends/b/c.so", escapes);
        assert_eq!((version.exists(), model.exists()), (true, true));
    }
}
