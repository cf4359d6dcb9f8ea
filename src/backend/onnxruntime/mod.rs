//! ONNX Runtime, the fast ONNX engine: a library that is opened when the server starts, if there
//! is one. Each instance has a session of its own, since `ort` lets one run at a time; where there
//! are many, they share weights.
//!
//! Called by the server, which finds the library and chooses the engine of each model. It knows no
//! queue and reads no environment variable. What it holds is the models' weights, and the arena of
//! each session, which stays as large as the largest run so far unless its model's parameter
//! `memory.enable_memory_arena_shrinkage` says otherwise.
//!
//! Why and how: `docs/decisions/0003-onnx-runtime.md`.

mod bind;
mod datatype;
mod instance;
mod options;
mod strings;
mod weights;

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use ort::environment::Environment;
use ort::logging::LogLevel;
use ort::session::Session;
use ort::{ErrorCode, LoadDynamicError};

use crate::backend::{Backend, Instance, LoadedModel, Threads};
use crate::error::Error;
use crate::model::ModelSpec;

use bind::{Port, Source};
use instance::OnnxruntimeInstance;
use options::Options;
use weights::Weights;

/// The oldest release whose interface is used (`api-17` of the crate `ort`).
const MINOR_VERSION_MIN: u32 = ort::MINOR_VERSION;

/// The backend: an opened library. There is one in a process.
pub struct Onnxruntime {
    environment: Environment,
    name: String,
}

/// A loaded model version.
struct OnnxruntimeModel {
    shared: Arc<Shared>,
}

/// What all instances of a model version share.
struct Shared {
    spec: Arc<ModelSpec>,
    environment: Environment,
    path: PathBuf,
    /// What the path leads to, where it is that of an opened file.
    _opened: Option<OwnedFd>,
    options: Options,
    weights: Weights,
    inputs: Vec<Source>,
    /// Inputs that a request may leave out, which the library does not list.
    optional: Vec<Port>,
    outputs: Vec<Port>,
    /// The session of the load, until an instance of as many threads wants one, and that of an
    /// instance that is gone: a large model takes a second to load.
    spare: ArrayQueue<(usize, Session)>,
}

impl Onnxruntime {
    /// Opens the library. The error says what is wrong with the file.
    pub fn open(library: &Path) -> Result<Self, String> {
        // A library of another kind, or of a later generation, breaks the crate's expectations.
        let outcome = catch_unwind(AssertUnwindSafe(|| Self::open_library(library)));
        outcome.unwrap_or_else(|_| Err("it does not answer as ONNX Runtime does".to_owned()))
    }

    fn open_library(library: &Path) -> Result<Self, String> {
        let builder = ort::init_from(library).map_err(|error| match error {
            LoadDynamicError::Dlopen { error, .. } => match std::error::Error::source(&error) {
                Some(cause) => format!("it cannot be loaded: {cause}"),
                None => format!("it cannot be loaded: {error}"),
            },
            LoadDynamicError::MissingApi { .. } => "it is not ONNX Runtime".to_owned(),
            LoadDynamicError::BadVersion { version_str, .. } => {
                format!("it is ONNX Runtime {version_str}, older than 1.{MINOR_VERSION_MIN}")
            }
            LoadDynamicError::InvalidVersionString => "it does not tell its version".to_owned(),
        })?;
        let Some(minor) = ort::util::probe(library) else {
            return Err("it is of a generation that this server does not know".to_owned());
        };
        let environment = builder.with_name("deuteron").with_telemetry(false).build();
        let environment = environment.map_err(|error| error.message().to_owned())?;
        // What a run fails of goes to the client whose request it was, not into the log.
        environment.set_log_level(LogLevel::Fatal);
        Ok(Self { environment, name: format!("ONNX Runtime 1.{minor}") })
    }
}

impl Backend for Onnxruntime {
    fn name(&self) -> &str {
        &self.name
    }

    fn load(&self, spec: &Arc<ModelSpec>, directory: &Path) -> Result<Box<dyn LoadedModel>, Error> {
        self.load_path(spec, model_path(spec, directory)?, None)
    }

    /// By the name that Linux gives to a descriptor, where `/proc` is mounted.
    fn load_opened(
        &self,
        spec: &Arc<ModelSpec>,
        directory: &Path,
        file: BorrowedFd<'_>,
    ) -> Result<Box<dyn LoadedModel>, Error> {
        let Ok(opened) = file.try_clone_to_owned() else { return self.load(spec, directory) };
        let path = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
        if !path.exists() {
            return self.load(spec, directory);
        }
        self.load_path(spec, path, Some(opened))
    }
}

impl Onnxruntime {
    fn load_path(
        &self,
        spec: &Arc<ModelSpec>,
        path: PathBuf,
        opened: Option<OwnedFd>,
    ) -> Result<Box<dyn LoadedModel>, Error> {
        let options = Options::new(spec)?;
        let weights = Weights::new(spec, &path)?;
        let session = open_session(spec, &self.environment, &options, &weights, &path, 1)?;
        let inputs = bind::bind_inputs(spec, session.inputs())?;
        let optional = bind::optional_inputs(spec);
        let outputs = bind::bind_outputs(spec, session.outputs())?;
        let spare = ArrayQueue::new(1);
        spare.force_push((1, session));
        let (spec, environment) = (Arc::clone(spec), self.environment.clone());
        let shared =
            Shared { spec, environment, path, _opened: opened, options, weights, inputs, optional, outputs, spare };
        Ok(Box::new(OnnxruntimeModel { shared: Arc::new(shared) }))
    }
}

impl LoadedModel for OnnxruntimeModel {
    fn new_instance(&self, threads: &Threads) -> Result<Box<dyn Instance>, Error> {
        Ok(Box::new(OnnxruntimeInstance::new(Arc::clone(&self.shared), threads.count())?))
    }

    fn may_run_inline(&self) -> bool {
        // A shard has one core, and what runs in it one thread: its own.
        self.shared.options.is_single_threaded()
    }
}

impl Shared {
    /// A session for an instance that may use so many threads.
    fn take_session(&self, threads: usize) -> Result<Session, Error> {
        match self.spare.pop() {
            Some((count, session)) if count == threads || self.options.fixes_threads() => Ok(session),
            _ => open_session(&self.spec, &self.environment, &self.options, &self.weights, &self.path, threads),
        }
    }

    /// Keeps the session of an instance that is no longer wanted for the next.
    fn keep_session(&self, threads: usize, session: Session) {
        // There may be one already; the other is closed.
        drop(self.spare.push((threads, session)));
    }
}

/// Where the model is.
fn model_path(spec: &ModelSpec, directory: &Path) -> Result<PathBuf, Error> {
    let name = Path::new(&spec.default_model_filename);
    if !name.components().all(|component| matches!(component, Component::Normal(_))) {
        let text = format!("file '{}' of model '{}' must lie in the version's directory", name.display(), spec.name);
        return Err(Error::invalid(text));
    }
    let path = directory.join(name);
    if path.is_file() {
        return Ok(path);
    }
    Err(Error::not_found(format!("unable to find '{}' for model '{}'", path.display(), spec.name)))
}

fn open_session(
    spec: &ModelSpec,
    environment: &Environment,
    options: &Options,
    weights: &Weights,
    path: &Path,
    threads: usize,
) -> Result<Session, Error> {
    let open = || weights.share(options.builder(environment, threads)?)?.commit_from_file(path);
    let outcome = catch_unwind(AssertUnwindSafe(open));
    let outcome = outcome.map_err(|_| Error::internal("ONNX Runtime gave what its interface does not allow"));
    let outcome = outcome.and_then(|session| session.map_err(|error| told(&error)));
    outcome.map_err(|error| error.with_prefix(&format!("unable to load model '{}': ", spec.name)))
}

/// A failure inside the library, in the words of Triton's backend.
fn told(error: &ort::Error) -> Error {
    let code = ort::sys::OrtErrorCode::from(error.code()) as i32;
    let text = format!("onnx runtime error {code}: {}", error.message());
    match error.code() {
        ErrorCode::InvalidArgument
        | ErrorCode::InvalidGraph
        | ErrorCode::InvalidProtobuf
        | ErrorCode::NoModel
        | ErrorCode::NoSuchFile
        | ErrorCode::NotImplemented => Error::invalid(text),
        _ => Error::internal(text),
    }
}
