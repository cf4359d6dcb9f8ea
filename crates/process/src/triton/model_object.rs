//! A model as its backend sees it (`TRITONBACKEND_Model`): from before its configuration is complete until its last
//! request was released.

#![expect(clippy::disallowed_types, reason = "a configuration that is replaced while a model is initialized")]

use std::ffi::{CString, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::triton::backend_object::HostedBackend;
use crate::triton::caller::HostedCaller;
use crate::triton::error::c_text;
use crate::triton::object::{Handle, Owned, hosted_object};
use crate::triton::server_object::ServerObject;
use crate::triton::services::{FinalizeMark, log_error};
use base::error::Error;
use base::tensor::Datatype;
use model::config::completed;
use model::{ModelSpec, TensorSpec};

/// A `TRITONBACKEND_Model`.
pub(super) struct ModelObject {
    pub(super) backend: Arc<HostedBackend>,
    pub(super) name: CString,
    pub(super) version: u64,
    /// The model's directory, which has those of its versions.
    pub(super) directory: CString,
    /// The configuration as JSON with all defaults.
    config: Mutex<Arc<str>>,
    /// The configuration that the backend completed.
    completed: Mutex<Option<Arc<str>>>,
    /// True if the backend may complete it now.
    pub(super) auto_completes: bool,
    /// True if it may still be replaced.
    is_open: AtomicBool,
    pub(super) server: Owned<ServerObject>,
    pub(super) state: AtomicPtr<c_void>,
    /// The parts that its requests need to know, once the configuration is complete.
    tensors: OnceLock<Arc<HostedTensors>>,
}

hosted_object!(ModelObject, "model", 8);

/// Inputs and outputs of a model for its requests.
pub(super) struct HostedTensors {
    pub(super) model: String,
    pub(super) inputs: Vec<HostedTensor>,
    pub(super) outputs: Vec<HostedTensor>,
    /// The outputs that clients may ask for; the others are states.
    pub(super) outputs_asked: usize,
    /// The outputs that are states.
    pub(super) states: Vec<usize>,
    pub(super) is_decoupled: bool,
    pub(super) is_iterative: bool,
}

/// The name and datatype of an input or output.
pub(super) struct HostedTensor {
    pub(super) name: CString,
    pub(super) datatype: Datatype,
}

/// A model that we own. Dropped, it is finalized.
pub(super) struct LibraryModel {
    pub(super) object: Owned<ModelObject>,
    pub(super) caller: Arc<HostedCaller>,
}

/// The identity of a model version.
pub(super) struct HostedIdentity<'a> {
    pub(super) name: &'a str,
    /// The name in its namespace.
    pub(super) qualified_name: &'a str,
    pub(super) version: u64,
    /// The directory of the version.
    pub(super) version_directory: &'a Path,
}

impl HostedTensors {
    pub(super) fn of(spec: &ModelSpec) -> Self {
        let tensors = |tensors: &[TensorSpec]| -> Vec<HostedTensor> {
            let tensor = |tensor: &TensorSpec| HostedTensor { name: c_text(&tensor.name), datatype: tensor.datatype };
            tensors.iter().map(tensor).collect()
        };
        let (outputs, library) = (tensors(&spec.outputs), spec.library.as_deref());
        Self {
            model: spec.name.clone(),
            inputs: tensors(&spec.inputs),
            outputs_asked: library.map_or(outputs.len(), |library| library.outputs_asked).min(outputs.len()),
            outputs,
            states: library.map(|library| library.states.clone()).unwrap_or_default(),
            is_decoupled: spec.is_decoupled,
            is_iterative: library.is_some_and(|library| library.is_iterative),
        }
    }

    /// The output of a name.
    pub(super) fn output(&self, name: &[u8]) -> Option<usize> {
        self.outputs.iter().position(|output| output.name.as_bytes() == name)
    }
}

impl LibraryModel {
    /// Has the backend initialize a model. As in Triton one that fails is finalized too.
    ///
    /// # Errors
    /// The backend's error.
    pub(super) fn new(
        backend: &Arc<HostedBackend>,
        identity: &HostedIdentity<'_>,
        config: &str,
        auto_completes: bool,
    ) -> Result<Self, Error> {
        let HostedIdentity { name, qualified_name, version, version_directory } = *identity;
        // Backends open files by this path, and may change the directory that they run in.
        let directory = std::path::absolute(version_directory).unwrap_or_else(|_| version_directory.to_owned());
        let directory = directory.parent().unwrap_or(&directory);
        let caller = Arc::new(HostedCaller::new(qualified_name, version));
        let object = Owned::new(ModelObject {
            backend: Arc::clone(backend),
            name: c_text(name),
            version,
            directory: c_text(&directory.to_string_lossy()),
            config: Mutex::new(config.into()),
            completed: Mutex::new(None),
            auto_completes,
            is_open: AtomicBool::new(auto_completes),
            server: Owned::new(ServerObject { caller: Arc::clone(&caller) }),
            state: AtomicPtr::new(null_mut()),
            tensors: OnceLock::new(),
        });
        let model = Self { object, caller };
        let initialized = backend.library.model_initialize(model.object.handle().any());
        model.object.is_open.store(false, Ordering::Release);
        initialized.map(|()| model)
    }

    pub(super) fn handle(&self) -> Handle<ModelObject> {
        self.object.handle()
    }

    pub(super) fn backend(&self) -> &Arc<HostedBackend> {
        &self.object.backend
    }

    /// The configuration that the backend completed; `None` if it left it as it is.
    pub(super) fn take_completed(&self) -> Option<Arc<str>> {
        lock(&self.object.completed).take()
    }

    /// The configuration is complete.
    pub(super) fn handle_completed(&self, spec: &ModelSpec) {
        *lock(&self.object.config) = Arc::clone(&spec.config_json);
        self.object.tensors.get_or_init(|| Arc::new(HostedTensors::of(spec)));
    }

    /// The tensors that its requests need.
    ///
    /// # Errors
    /// `Internal` before the configuration is complete.
    pub(super) fn tensors(&self) -> Result<&Arc<HostedTensors>, Error> {
        self.object.tensors.get().ok_or_else(|| Error::internal("the model has no complete configuration yet"))
    }
}

impl ModelObject {
    pub(super) fn config(&self) -> Arc<str> {
        Arc::clone(&lock(&self.config))
    }

    /// The backend completes the configuration.
    ///
    /// # Errors
    /// `Unsupported` at any other time than while the model is initialized; as [`completed`].
    pub(super) fn set_config(&self, json: &str) -> Result<(), Error> {
        if !self.is_open.load(Ordering::Acquire) {
            return Err(Error::unsupported(
                "the configuration of a model is set while it is initialized, and where auto-completion is on",
            ));
        }
        let mut config = lock(&self.config);
        let merged: Arc<str> = completed(&config, json.as_bytes())?.into();
        *lock(&self.completed) = Some(Arc::clone(&merged));
        *config = merged;
        Ok(())
    }
}

impl Drop for LibraryModel {
    fn drop(&mut self) {
        let _finalizing = FinalizeMark::new();
        if let Err(error) = self.backend().library.model_finalize(self.object.handle().any()) {
            let name = self.object.name.to_string_lossy();
            log_error(&format!("model '{name}' failed to finalize: {error}"));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
