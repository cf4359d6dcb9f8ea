//! The choice of the engine of PyTorch models: torch's own library through a shim that is compiled
//! for it, or processes of Python if there is no compiler or no headers, or the flag says so.
//! Chosen once, when the first such model is loaded, and shown by the log, the model's
//! configuration and `deuteron doctor`.

use std::path::Path;
use std::sync::Arc;

use crate::backend::{Backend, LoadedModel};
use crate::control::engines::config_completion::PythonEngine;
use crate::control::engines::library_search::LibrarySearch;
use crate::control::engines::pytorch_shim::{self, FoundTorch, LIBRARY_FLAG, TORCH};
use crate::engines::pytorch::Pytorch;
use crate::error::Error;
use crate::log;
use crate::model::spec::python::PYTORCH_MODULE;
use crate::model::{ModelSpec, PythonModel};
use crate::settings::{PytorchConfig, PytorchRunner};

/// The engine of PyTorch models.
pub enum PytorchEngine {
    /// Torch's library, in this process.
    Native(Pytorch),
    /// Processes of Python.
    Python(PytorchInPython),
}

/// PyTorch in processes of Python, which run a module of the server's own.
pub struct PytorchInPython {
    python: Arc<dyn PythonEngine>,
    /// The reason that it is not run natively.
    why: String,
}

impl PytorchEngine {
    /// Finds the engine that the flags ask for.
    ///
    /// # Errors
    /// The reason that it is missing: of the native engine and, if it was tried, of Python.
    pub fn find(config: &PytorchConfig, python: Option<&Arc<dyn PythonEngine>>) -> Result<Self, String> {
        let native = match config.runner {
            Some(PytorchRunner::Python) => Err("--backend-config=pytorch,runner=python is given".to_owned()),
            _ => open(config, &LibrarySearch::of_process(&TORCH)),
        };
        let why = match native {
            Ok(native) => return Ok(Self::Native(native)),
            Err(why) => why,
        };
        match python.filter(|_| config.runner != Some(PytorchRunner::Native)) {
            None => Err(why),
            Some(python) => {
                log::info(&format!("PyTorch models fall back to processes of Python: {why}"));
                Ok(Self::Python(PytorchInPython { python: Arc::clone(python), why }))
            }
        }
    }

    /// Returns it as a backend.
    pub fn as_backend(&self) -> &dyn Backend {
        match self {
            Self::Native(native) => native,
            Self::Python(python) => python,
        }
    }
}

/// Checks that the library of the flag can be used at all, before the server starts. It is opened
/// when a model needs it.
///
/// # Errors
/// `InvalidArgument` if there is no torch, or a part of it is missing.
pub fn check_named(config: &PytorchConfig) -> Result<(), Error> {
    let Some(path) = &config.library else { return Ok(()) };
    let refused = |why: String| Err(Error::invalid(format!("{LIBRARY_FLAG}={}: {why}", path.display())));
    let found = pytorch_shim::candidates(config, &LibrarySearch::nowhere(&TORCH));
    match found.iter().map(FoundTorch::of).find_map(Result::err) {
        _ if found.is_empty() => {
            refused("there is no libtorch_cpu.so in this directory, its lib or a wheel beneath it".to_owned())
        }
        Some(why) => refused(why),
        None => Ok(()),
    }
}

/// Opens the first usable torch. Unusable ones are logged.
fn open(config: &PytorchConfig, search: &LibrarySearch) -> Result<Pytorch, String> {
    let mut last = None;
    for candidate in pytorch_shim::candidates(config, search) {
        let (path, source) = (candidate.path.display(), candidate.source);
        let opened = FoundTorch::of(&candidate).and_then(|torch| {
            let shim = torch.shim(config, &pytorch_shim::process_variable)?;
            let opened = Pytorch::open(&shim, warn)?;
            log::info(&format!("opened {} from '{path}' ({source}) by '{}'", opened.name(), shim.display()));
            Ok(opened)
        });
        match opened {
            Ok(opened) => return Ok(opened),
            Err(why) => {
                log::warning(&format!("'{path}' ({source}) is not used as PyTorch: {why}"));
                last = Some(format!("'{path}' ({source}): {why}"));
            }
        }
    }
    Err(last.unwrap_or_else(|| NOT_FOUND.to_owned()))
}

/// Logs a warning about a model.
pub fn warn(text: &str) {
    log::warning(text);
}

/// The reason against the native engine if nothing was found.
const NOT_FOUND: &str = "no torch was found with its library and headers; install it (pip install torch, or Debian's \
     libtorch-dev), activate its Python environment, or name it by --backend-config=pytorch,library=PATH (`deuteron doctor` \
     shows where it was looked for)";

impl Backend for PytorchInPython {
    fn name(&self) -> &str {
        "PyTorch in Python"
    }

    fn load(&self, spec: &Arc<ModelSpec>, directory: &Path) -> Result<Box<dyn LoadedModel>, Error> {
        let python = PythonModel {
            file: PYTORCH_MODULE.to_owned(),
            is_backend: true,
            environment: spec.parameters.get(ENVIRONMENT).filter(|path| !path.is_empty()).cloned(),
            execute_timeout: None,
            concurrency: None,
            checks_outputs: None,
            is_batched: true,
            forks: None,
        };
        let spec = Arc::new(ModelSpec { python: Some(Arc::new(python)), ..ModelSpec::clone(spec) });
        self.python.load(&spec, directory).map_err(|error| {
            let text = error.text();
            // Only if torch itself is missing does the other engine matter.
            if text.contains("No module named 'torch'") {
                return Error::unavailable(format!("{text}; and it is not run without Python: {}", self.why));
            }
            error
        })
    }
}

/// The parameter that names the environment of a Python model's process.
const ENVIRONMENT: &str = "EXECUTION_ENV_PATH";
