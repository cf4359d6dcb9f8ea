//! ONNX Runtime, the fast ONNX engine: a shared library that the server opens when it starts, if it
//! finds one. Each instance has its own session, since `ort` lets a session run once at a time; where
//! there are many instances, they share weights.
//!
//! Called by the server, which finds the library and chooses the engine of each model. It knows no
//! queue and reads no environment variable. Its memory is the models' weights, and the arena of
//! each session, which stays as large as the largest run so far unless the model's parameter
//! `memory.enable_memory_arena_shrinkage` is set.
//!
//! On a GPU an instance is a session with the CUDA provider (`cuda`), for any model. If all sizes
//! are known at load, it is a program of the GPU executor, which has a session for each of its
//! streams (`program`). Each of these sessions has its own copy of the weights. With the
//! accelerator `tensorrt` a session has TensorRT's provider before that of CUDA.
//!
//! Reasons and design: `docs/decisions/0003-onnx-runtime.md`.

mod bind;
mod cuda;
mod datatype;
mod fence;
mod instance;
mod operator_library;
mod options;
mod program;
mod run_options;
mod session;
mod strings;
mod tensorrt;
mod weights;

#[cfg(test)]
mod tests;

use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use ort::environment::Environment;
use ort::logging::LogLevel;
use ort::{ErrorCode, LoadDynamicError};

use crate::gpu::GpuModel;
use crate::limits::GPU_COPIED_MODEL_SIZE_MAX;
use crate::model_file::ModelFile;
use backend::blame;
use backend::engine_run::BatchedInstance;
use backend::gpu::{Gpu, GpuInstanceFigures, Gpus};
use backend::{Backend, Instance, LoadedModel, Threads, threads};
use base::error::{Code, Error};
use model::onnx::graph::OnnxGraph;
use model::onnx::work::why_not_by_shape;
use model::{InstanceSeat, ModelSpec};

use cuda::SessionDevice;
use fence::DeviceFence;
use instance::OnnxruntimeInstance;
use options::SessionOptions;
use program::CudaBlueprint;
use session::{SessionRecipe, SessionTarget, SharedSession};
use weights::Weights;

/// The oldest supported minor release, 1.x: the one whose C interface is used (`api-17` of the crate `ort`).
const MINOR_VERSION_MIN: u32 = ort::MINOR_VERSION;

/// The backend: an opened library. There is one in a process.
pub struct Onnxruntime {
    environment: Environment,
    library: PathBuf,
    name: String,
    name_on_gpus: String,
    /// The reason why none of its sessions can be on a GPU; determined when it is first needed.
    why_no_gpu: OnceLock<Option<String>>,
    /// The same for TensorRT.
    why_no_tensorrt: OnceLock<Option<String>>,
}

/// The backend of models with instances on GPUs, and possibly others on the CPU.
pub struct OnnxruntimeOnGpus<'a> {
    engine: &'a Onnxruntime,
    name: &'a str,
    gpus: Gpus,
    /// True if an instance may have several batches in flight.
    answers_later: bool,
    device: SessionDevice,
}

/// A loaded model version.
struct OnnxruntimeModel {
    shared: Arc<SharedSession>,
    why_not_by_shape: OnceLock<Option<String>>,
}

impl Onnxruntime {
    /// Opens the library.
    ///
    /// # Errors
    ///
    /// If the file is not ONNX Runtime, or one that is too old; the text names the fault.
    pub fn open(library: &Path) -> Result<Self, String> {
        // The crate panics on a library that is not ONNX Runtime, or of another major version.
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
            LoadDynamicError::InvalidVersionString => "it does not report its version".to_owned(),
        })?;
        let Some(minor) = ort::util::probe(library) else {
            return Err("it is of a major version that this server does not support".to_owned());
        };
        let environment = builder.with_name("deuteron").with_telemetry(false).build();
        let environment = environment.map_err(|error| error.message().to_owned())?;
        // The reason why a run failed goes to the client, not into the log.
        environment.set_log_level(LogLevel::Fatal);
        let name = format!("ONNX Runtime 1.{minor}");
        let name_on_gpus = format!("{name} on GPUs");
        let library = library.to_owned();
        Ok(Self {
            environment,
            library,
            name,
            name_on_gpus,
            why_no_gpu: OnceLock::new(),
            why_no_tensorrt: OnceLock::new(),
        })
    }

    /// The file that was opened.
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// The names of a model's CPU accelerators that the library lacks.
    pub fn missing_accelerators<'a>(&self, spec: &'a ModelSpec) -> Vec<&'a str> {
        options::missing_accelerators(spec)
    }

    /// The reason why it can run no model on GPUs; `None` if it can.
    pub fn why_no_gpu(&self) -> Option<&str> {
        self.why_no_gpu.get_or_init(|| cuda::why_absent(&self.environment, &self.name)).as_deref()
    }

    /// The reason why no model can have the accelerator `tensorrt`; `None` if one can.
    pub fn why_no_tensorrt(&self) -> Option<&str> {
        self.why_no_tensorrt.get_or_init(|| cuda::why_no_tensorrt(&self.environment, &self.name)).as_deref()
    }

    /// The backend of models with instances on some of these devices. `answers_later` allows an
    /// instance several batches in flight: false if the next batch needs the states that the
    /// previous one returns.
    pub fn on_gpus(&self, gpus: &Gpus, answers_later: bool) -> OnnxruntimeOnGpus<'_> {
        OnnxruntimeOnGpus {
            engine: self,
            name: &self.name_on_gpus,
            gpus: gpus.clone(),
            answers_later,
            device: SessionDevice::Cuda,
        }
    }
}

impl Backend for Onnxruntime {
    fn name(&self) -> &str {
        &self.name
    }

    fn load(&self, spec: &Arc<ModelSpec>, directory: &Path) -> Result<Box<dyn LoadedModel>, Error> {
        self.load_file(spec, directory, ModelFile::in_directory(spec, directory)?)
    }

    fn load_opened(
        &self,
        spec: &Arc<ModelSpec>,
        directory: &Path,
        file: BorrowedFd<'_>,
    ) -> Result<Box<dyn LoadedModel>, Error> {
        self.load_file(spec, directory, ModelFile::opened(spec, directory, file)?)
    }
}

impl Onnxruntime {
    fn load_file(
        &self,
        spec: &Arc<ModelSpec>,
        directory: &Path,
        file: ModelFile,
    ) -> Result<Box<dyn LoadedModel>, Error> {
        let recipe = self.recipe(spec, directory, file, SessionDevice::Cuda)?;
        Ok(Box::new(OnnxruntimeModel::new(share(recipe, None)?)))
    }

    fn recipe(
        &self,
        spec: &Arc<ModelSpec>,
        directory: &Path,
        file: ModelFile,
        device: SessionDevice,
    ) -> Result<SessionRecipe, Error> {
        let (options, weights) = (SessionOptions::new(spec, directory)?, Weights::new(spec, &file.path)?);
        let (spec, environment) = (Arc::clone(spec), self.environment.clone());
        Ok(SessionRecipe { spec, environment, file, options, weights, device })
    }
}

impl Backend for OnnxruntimeOnGpus<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn load(&self, spec: &Arc<ModelSpec>, directory: &Path) -> Result<Box<dyn LoadedModel>, Error> {
        self.load_file(spec, directory, &ModelFile::in_directory(spec, directory)?)
    }

    fn load_opened(
        &self,
        spec: &Arc<ModelSpec>,
        directory: &Path,
        file: BorrowedFd<'_>,
    ) -> Result<Box<dyn LoadedModel>, Error> {
        self.load_file(spec, directory, &ModelFile::opened(spec, directory, file)?)
    }
}

impl OnnxruntimeOnGpus<'_> {
    /// Loads the model as a program of the executor if its sizes are known, it is small enough for
    /// a session on each stream, and TensorRT, which waits for the device, is not asked for; else
    /// as plain sessions. Makes an instance on each device and drops it, so that a device without
    /// room fails the load.
    fn load_file(
        &self,
        spec: &Arc<ModelSpec>,
        directory: &Path,
        file: &ModelFile,
    ) -> Result<Box<dyn LoadedModel>, Error> {
        let recipe = || self.engine.recipe(spec, directory, file.try_clone()?, self.device);
        let first = recipe()?;
        let is_small = std::fs::metadata(&first.file.path).is_ok_and(|file| file.len() <= GPU_COPIED_MODEL_SIZE_MAX);
        let has_tensorrt = first.options.gpu.tensorrt.is_some();
        if has_tensorrt
            && self.device == SessionDevice::Cuda
            && let Some(why) = self.engine.why_no_tensorrt()
        {
            let name = &spec.name;
            return Err(Error::unsupported(format!("gpu_execution_accelerator 'tensorrt' of model '{name}': {why}")));
        }
        let sizes = program::sizes(spec).filter(|_| self.answers_later && is_small && !has_tensorrt);
        if let Some(sizes) = sizes {
            let on_cpu = Box::new(OnnxruntimeModel::new(share(first, None)?));
            let blueprint = Arc::new(CudaBlueprint::new(&on_cpu.shared, sizes));
            let model = GpuModel::new(spec, blueprint, &self.gpus, Some(on_cpu));
            // The device may lack memory for the largest batch on every stream; plain sessions may still fit.
            if try_each(spec, &model).is_ok() {
                return Ok(Box::new(model));
            }
        }
        let model = OnnxruntimeModel::new(share(recipe()?, Some(&self.gpus))?);
        try_each(spec, &model)?;
        Ok(Box::new(model))
    }
}

/// Makes an instance on each device of a model, and drops it.
fn try_each(spec: &ModelSpec, model: &dyn LoadedModel) -> Result<(), Error> {
    let mut gpus: Vec<u32> = spec.instance_groups.iter().flat_map(|group| group.gpus.clone()).collect();
    gpus.sort_unstable();
    gpus.dedup();
    gpus.into_iter()
        .try_for_each(|gpu| threads::enter(1, |threads| model.new_instance(&threads.on(Some(gpu))).map(drop)))
}

/// Opens the session of the load, which is on the CPU, and checks the configuration against it.
fn share(recipe: SessionRecipe, gpus: Option<&Gpus>) -> Result<SharedSession, Error> {
    let spec = Arc::clone(&recipe.spec);
    let session = recipe.open(SessionTarget::Cpu(1))?;
    let inputs = bind::bind_inputs(&spec, session.inputs())?;
    let optional = bind::optional_inputs(&spec);
    let outputs = bind::bind_outputs(&spec, session.outputs())?;
    Ok(SharedSession::new(recipe, inputs, optional, outputs, gpus.cloned(), session))
}

impl LoadedModel for OnnxruntimeModel {
    fn new_instance(&self, threads: &Threads) -> Result<Box<dyn Instance>, Error> {
        let fence = threads.gpu().map(|index| self.fence(index)).transpose()?;
        let instance = OnnxruntimeInstance::new(Arc::clone(&self.shared), threads.count(), fence)?;
        Ok(Box::new(BatchedInstance::new(instance)))
    }

    fn prepare_instances(&self, _: &ModelSpec, seats: &[InstanceSeat]) -> Result<(), Error> {
        let (recipe, on_cpu) = (&self.shared.recipe, seats.iter().filter(|seat| seat.gpu.is_none()));
        recipe.weights.share_among(on_cpu.count() as u64, &recipe.file.path)
    }

    fn may_run_inline(&self) -> bool {
        // A shard has one core, and an inline model computes on the shard's own thread.
        self.shared.gpus.is_none()
            && self.shared.recipe.options.is_single_threaded()
            && self.why_not_by_shape().is_none()
    }

    fn why_not_inline(&self) -> &str {
        match self.why_not_by_shape() {
            Some(why) => why,
            None => "it computes on threads of its own",
        }
    }

    fn gpu_figures(&self) -> Option<Arc<GpuInstanceFigures>> {
        self.shared.gpus.as_ref().map(|_| Arc::clone(&self.shared.figures))
    }
}

impl OnnxruntimeModel {
    fn new(shared: SharedSession) -> Self {
        Self { shared: Arc::new(shared), why_not_by_shape: OnceLock::new() }
    }

    /// The reason why a run's time does not follow from the shapes of its inputs; `None` if it
    /// does. The file is read when this is first asked, which is rare.
    fn why_not_by_shape(&self) -> Option<&str> {
        let find = || match std::fs::read(&self.shared.recipe.file.path).map(|file| OnnxGraph::outline(&file)) {
            Ok(Ok(graph)) => why_not_by_shape(&graph),
            _ => Some("its graph could not be read".to_owned()),
        };
        self.why_not_by_shape.get_or_init(find).as_deref()
    }

    /// The device fence for a new instance on a GPU.
    fn fence(&self, index: u32) -> Result<DeviceFence, Error> {
        let SharedSession { spec, gpus, figures, .. } = &*self.shared;
        let name = &spec.name;
        let gpu: Option<&Arc<Gpu>> = gpus.as_ref().and_then(|gpus| gpus.find(index));
        let gpu = gpu.ok_or_else(|| {
            Error::unavailable(format!("model '{name}' needs GPU {index}, which this machine does not have"))
        })?;
        figures.admit_restart(spec)?;
        DeviceFence::new(gpu, figures).map_err(|error| {
            Error::from(error).with_prefix(&format!("an instance of model '{name}' cannot be made on GPU {index}: "))
        })
    }
}

/// The error of a run: the client's mistake where the library blames the request's shapes or values.
fn run_failure(error: &ort::Error) -> Error {
    let told = told(error);
    match blame::onnxruntime(error.message()) {
        Some(why) if matches!(told.code(), Code::Internal | Code::InvalidArgument) => {
            let code = ort::sys::OrtErrorCode::from(error.code()) as i32;
            Error::invalid(format!("onnx runtime error {code}: {why}"))
        }
        _ => told,
    }
}

/// The library's error as ours, in the words of Triton's backend.
fn told(error: &ort::Error) -> Error {
    let code = ort::sys::OrtErrorCode::from(error.code()) as i32;
    let text = format!("onnx runtime error {code}: {}", error.message());
    match error.code() {
        ErrorCode::InvalidArgument
        | ErrorCode::InvalidGraph
        | ErrorCode::InvalidProtobuf
        | ErrorCode::NoModel
        | ErrorCode::NoSuchFile => Error::invalid(text),
        // Not a client's mistake: the library lacks a kernel, and no other input changes that.
        ErrorCode::NotImplemented => Error::unsupported(text),
        _ => Error::internal(text),
    }
}
