//! PyTorch: TorchScript files run by the torch of the machine. Torch's interface is C++, which
//! differs between releases, so that a shim with an interface in C ([`SHIM_SOURCE`]) is compiled on
//! the user's machine against the installed torch. The server finds torch, compiles and keeps the
//! shim (`control::engines::pytorch_shim`); this backend opens it and runs modules.
//!
//! A module is loaded once for each instance, as in Triton, or once for all with `ENABLE_WEIGHT_SHARING`. It runs on
//! borrowed inputs, on as many threads as its instance has. Its memory is that of the modules and of torch's allocator.
//!
//! Reasons and design: `docs/decisions/0039-pytorch-by-a-shim.md`.

mod datatype;
mod instance;
mod library;
mod names;
mod parameters;

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crossbeam_utils::atomic::AtomicCell;

use crate::model_file::ModelFile;
use backend::engine_run::BatchedInstance;
use backend::{Backend, Computation, Instance, LoadedModel, Threads};
use base::error::Error;
use model::ModelSpec;

use instance::PytorchInstance;
use library::{TorchLibrary, TorchModule};
use names::TensorNames;
use parameters::TorchParameters;

/// The source of the shim.
pub const SHIM_SOURCE: &str = include_str!("shim.cpp");

/// The backend: an opened shim and with it torch. There is one in a process.
pub struct Pytorch {
    library: Arc<TorchLibrary>,
    path: PathBuf,
    name: String,
    warn: fn(&str),
}

impl Pytorch {
    /// Opens a shim. `warn` logs oddities of a model.
    ///
    /// # Errors
    ///
    /// If it, or the torch that it was compiled against, cannot be opened; the text names the
    /// reason.
    pub fn open(path: &Path, warn: fn(&str)) -> Result<Self, String> {
        let library = TorchLibrary::open(path)?;
        let name = format!("PyTorch {}", library.version());
        Ok(Self { library: Arc::new(library), path: path.to_owned(), name, warn })
    }

    /// The file that was opened.
    pub fn library(&self) -> &Path {
        &self.path
    }

    fn load_file(&self, spec: &Arc<ModelSpec>, file: ModelFile) -> Result<Box<dyn LoadedModel>, Error> {
        let parameters = TorchParameters::read(spec)?;
        if let Some(threads) = parameters.interop_threads
            && let Err(why) = self.library.set_interop_threads(threads)
        {
            let name = &spec.name;
            (self.warn)(&format!(
                "'{name}' asks for INTER_OP_THREAD_COUNT {threads}, which holds for the first: {why}"
            ));
        }
        let shared = SharedModule {
            spec: Arc::clone(spec),
            library: Arc::clone(&self.library),
            parameters,
            file,
            kept: AtomicCell::new(None),
        };
        let module = shared.load()?;
        let names = TensorNames::bind(spec, &module.arguments, module.output_count)?;
        names.warnings.iter().for_each(|text| (self.warn)(text));
        let module = Arc::new(module);
        let common = parameters.shares_weights.then(|| Arc::clone(&module));
        shared.kept.store(common.is_none().then_some(module));
        Ok(Box::new(PytorchModel { shared: Arc::new(shared), names: Arc::new(names), common }))
    }
}

impl Backend for Pytorch {
    fn name(&self) -> &str {
        &self.name
    }

    fn load(&self, spec: &Arc<ModelSpec>, directory: &Path) -> Result<Box<dyn LoadedModel>, Error> {
        self.load_file(spec, ModelFile::in_directory(spec, directory)?)
    }

    fn load_opened(
        &self,
        spec: &Arc<ModelSpec>,
        directory: &Path,
        file: BorrowedFd<'_>,
    ) -> Result<Box<dyn LoadedModel>, Error> {
        self.load_file(spec, ModelFile::opened(spec, directory, file)?)
    }
}

/// The parts from which the instances of a model are made.
struct SharedModule {
    spec: Arc<ModelSpec>,
    library: Arc<TorchLibrary>,
    parameters: TorchParameters,
    /// The model's file, for further instances.
    file: ModelFile,
    /// A module that no instance uses: that of the load, or of an instance that was dropped.
    kept: AtomicCell<Option<Arc<TorchModule>>>,
}

impl SharedModule {
    fn load(&self) -> Result<TorchModule, Error> {
        let name = &self.spec.name;
        let bytes = std::fs::read(&self.file.path)
            .map_err(|error| Error::invalid(format!("the file of model '{name}' cannot be read: {error}")))?;
        let loaded = TorchModule::load(&self.library, &bytes, self.parameters.options);
        loaded.map_err(|why| {
            // Files of torch.save are archives, too.
            let is_no_script = why.contains("constants.pkl") || why.contains("data.pkl");
            let hint = if is_no_script { NO_SCRIPT } else { "" };
            Error::invalid(format!("failed to load model '{name}': {why}{hint}"))
        })
    }
}

/// The advice for a file with weights alone.
const NO_SCRIPT: &str = " (it is no TorchScript: save the module by torch.jit.script or torch.jit.trace, or put its class into \
     model.py and give runtime: \"model.py\")";

/// A loaded model version.
struct PytorchModel {
    shared: Arc<SharedModule>,
    names: Arc<TensorNames>,
    /// The module of all instances, with `ENABLE_WEIGHT_SHARING`.
    common: Option<Arc<TorchModule>>,
}

impl LoadedModel for PytorchModel {
    fn new_instance(&self, threads: &Threads) -> Result<Box<dyn Instance>, Error> {
        let Self { shared, names, common } = self;
        let module = match common.clone().or_else(|| shared.kept.take()) {
            Some(module) => module,
            None => Arc::new(shared.load()?),
        };
        let names = Arc::clone(names);
        Ok(Box::new(BatchedInstance::new(PytorchInstance::new(Arc::clone(shared), module, names, threads)?)))
    }

    fn may_run_inline(&self) -> bool {
        false
    }

    fn computation(&self) -> Computation {
        Computation::OfAnyLength
    }

    fn why_not_inline(&self) -> &str {
        "its code may do anything, for any time"
    }
}
