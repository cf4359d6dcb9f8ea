//! Models of shared libraries (`libtriton_NAME.so`) in processes of their own: each instance is a
//! process of this program, which is started, spoken to, ended and started again as that of a
//! Python model is. Its own side is `process::triton_process`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::python::context::{ModelProgram, PythonModelContext, PythonOptions};
use crate::python::host::PythonHost;
use crate::python::program::LibraryStart;
use crate::python::starter::{CurrentPlaces, ProcessStarter, StartMessage, StartMode, StartPlaces};
use crate::python::template::TemplateSlot;
use backend::LoadedModel;
use base::error::Error;
use model::{ModelSpec, TensorSpec};

/// Starts the processes of libraries. One per server.
pub struct LibraryProcesses {
    /// The options of Python models, of which a library uses some.
    pub options: Arc<PythonOptions>,
    /// The thread that starts processes.
    pub host: Arc<PythonHost>,
    /// The time limit of a load; `None` for no limit.
    pub load_timeout: Option<Duration>,
}

/// A version of a model.
#[derive(Clone, Copy)]
pub struct LibraryVersion<'a> {
    /// The model's name.
    pub name: &'a str,
    /// Its name in its namespace.
    pub qualified_name: &'a str,
    /// The number of the version.
    pub version: u64,
}

impl LibraryProcesses {
    /// Has a process complete a configuration, and returns the completed text.
    ///
    /// # Errors
    /// The backend's error, or the reason why there is no process.
    pub fn complete(&self, model: LibraryVersion<'_>, start: Arc<dyn LibraryStart>) -> Result<String, Error> {
        self.starter(model, start, StartMode::Complete).complete(model.name)
    }

    /// Starts the processes of all instances of a version.
    ///
    /// # Errors
    /// The first error of any of them.
    pub fn load(
        &self,
        model: LibraryVersion<'_>,
        spec: &ModelSpec,
        start: Arc<dyn LibraryStart>,
    ) -> Result<Box<dyn LoadedModel>, Error> {
        let tensors =
            |tensors: &[TensorSpec]| tensors.iter().map(|tensor| (tensor.name.clone(), tensor.datatype)).collect();
        let context = self.context(model).with_outputs(tensors(&spec.outputs), spec.is_decoupled);
        let starter = ProcessStarter {
            context: Arc::new(context),
            inputs: tensors(&spec.inputs),
            places: CurrentPlaces::new(StartPlaces::new(spec)),
            ..self.starter(model, start, StartMode::Serve)
        };
        starter.load()
    }

    /// Returns true if any instance is being finalized.
    pub fn is_finalizing(&self) -> bool {
        self.options.finalizing.load(Ordering::SeqCst) > 0
    }

    fn starter(&self, model: LibraryVersion<'_>, start: Arc<dyn LibraryStart>, mode: StartMode) -> ProcessStarter {
        ProcessStarter {
            context: Arc::new(self.context(model)),
            host: Arc::clone(&self.host),
            message: StartMessage::Library(start),
            inputs: Vec::new(),
            places: CurrentPlaces::default(),
            template: TemplateSlot::default(),
            mode,
        }
    }

    fn context(&self, model: LibraryVersion<'_>) -> PythonModelContext {
        let LibraryVersion { name, qualified_name, version } = model;
        let program = ModelProgram::Library { load_timeout: self.load_timeout };
        PythonModelContext::new(name, version, program, &self.options).with_qualified_name(qualified_name)
    }
}
