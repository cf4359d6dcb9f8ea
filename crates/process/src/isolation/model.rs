//! Loads models whose instances are in processes of their own.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use crate::isolation::instance::IsolatedInstance;
use crate::isolation::message::{EngineLibrary, EngineOrder};
use crate::isolation::shared::{FilesCheck, IsolatedShared, IsolationOptions};
use backend::{Backend, Computation, Instance, LoadedModel, Threads};
use base::error::Error;
use base::metrics::Gauge;
use model::ModelSpec;

/// Loads one model version in processes, with the engine of another backend.
pub struct IsolatedBackend {
    /// The options that all isolated models share.
    pub options: IsolationOptions,
    /// The name of the engine.
    pub name: String,
    /// The library of the engine; `None` for the embedded one.
    pub library: Option<EngineLibrary>,
    /// Checks that the files that a process opens by their paths are still those that were checked.
    pub check_files: FilesCheck,
}

impl Backend for IsolatedBackend {
    fn name(&self) -> &str {
        &self.name
    }

    fn load(&self, spec: &Arc<ModelSpec>, directory: &Path) -> Result<Box<dyn LoadedModel>, Error> {
        self.start(spec, directory, None)
    }

    fn load_opened(
        &self,
        spec: &Arc<ModelSpec>,
        directory: &Path,
        file: BorrowedFd<'_>,
    ) -> Result<Box<dyn LoadedModel>, Error> {
        let kept = file.try_clone_to_owned();
        let kept =
            kept.map_err(|error| Error::unavailable(format!("the model's file cannot be kept open: {error}")))?;
        self.start(spec, directory, Some(kept))
    }
}

impl IsolatedBackend {
    fn start(
        &self,
        spec: &Arc<ModelSpec>,
        directory: &Path,
        file: Option<OwnedFd>,
    ) -> Result<Box<dyn LoadedModel>, Error> {
        let derived = spec.outputs.iter().filter(|output| output.is_derived);
        let order = EngineOrder {
            library: self.library.clone(),
            run_memory_max: self.options.run_memory_max,
            model: spec.name.clone(),
            config: spec.config_message.to_vec(),
            derived: derived.map(|output| output.name.clone()).collect(),
            directory: directory.to_owned(),
        };
        let shared = IsolatedShared::new(spec, &self.options, &order, file, &self.check_files);
        // The first instance takes it. A refusal of the engine fails the load.
        shared.keep(shared.start(&spec.name)?);
        Ok(Box::new(IsolatedModel { shared: Arc::new(shared) }))
    }
}

/// A loaded model version.
struct IsolatedModel {
    shared: Arc<IsolatedShared>,
}

impl LoadedModel for IsolatedModel {
    fn new_instance(&self, threads: &Threads) -> Result<Box<dyn Instance>, Error> {
        let shared = &self.shared;
        let identity = threads.instance();
        let name = identity.map_or(&shared.spec.name, |identity| &identity.name);
        let mut process = shared.take(name)?;
        process.set_cores(identity.map_or(&[][..], |identity| &identity.cores));
        let made = process.make_instance(threads.count(), shared.options.load_timeout);
        made.map_err(|failure| shared.failed(name, failure))?;
        Ok(Box::new(IsolatedInstance::new(Arc::clone(shared), name.clone(), process)))
    }

    /// A thread that waits for another process sleeps.
    fn may_run_inline(&self) -> bool {
        false
    }

    fn computation(&self) -> Computation {
        Computation::OfAnyLength
    }

    fn process_memory(&self) -> Option<&Gauge> {
        Some(&self.shared.memory)
    }

    fn why_not_inline(&self) -> &str {
        "its engine is in a process of its own"
    }

    fn refuses_while_lost(&self) -> bool {
        true
    }
}
