//! The embedded ONNX engine: `rten`, pure Rust, on the CPU. All instances share one loaded model. Its
//! memory is the weights, once, and the intermediate results of each run.
//!
//! Reasons for this engine, and its limits: `docs/decisions/0001-embedded-engine.md`.

mod bind;
mod datatype;
mod estimate;
mod instance;
mod lower;

#[cfg(test)]
mod tests;

use std::io::{Read, Seek, SeekFrom};
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use rten::{LoadError, LoadErrorKind, Model, ModelOptions, NodeId};

use crate::model_file::model_path;
use backend::batch::fits;
use backend::engine_run::BatchedInstance;
use backend::text::ShapeText;
use backend::{Backend, Instance, LoadedModel, RunMemory, Threads};
use base::error::Error;
use base::tensor::Tensor;
use model::ModelSpec;
use model::onnx::external_data::external_files;
use model::onnx::graph::OnnxGraph;
use model::onnx::initializer::take_initial_values;
use model::onnx::work::why_not_by_shape;

use bind::{BatchBinding, RtenBinding};
use datatype::ALTERNATIVE;
use estimate::RunEstimate;
use instance::RtenInstance;

/// The backend.
#[derive(Clone, Debug, Default)]
pub struct Rten {
    memory: Arc<RunMemory>,
}

impl Rten {
    /// A backend with a bound on the memory of runs.
    pub const fn new(memory: Arc<RunMemory>) -> Self {
        Self { memory }
    }
}

/// A loaded model version.
struct RtenModel {
    shared: Arc<SharedGraph>,
    why_not_by_shape: Option<String>,
}

/// The state that all instances of a model version share.
struct SharedGraph {
    spec: Arc<ModelSpec>,
    model: Model,
    inputs: Vec<RtenBinding>,
    batch_inputs: Vec<BatchBinding>,
    /// The default of each optional input, in the order of the configuration; empty if no input is
    /// optional.
    defaults: Vec<Option<Tensor>>,
    outputs: Vec<RtenBinding>,
    output_nodes: Vec<NodeId>,
    estimate: Arc<RunEstimate>,
}

impl Backend for Rten {
    fn name(&self) -> &str {
        "rten"
    }

    fn load(&self, spec: &Arc<ModelSpec>, directory: &Path) -> Result<Box<dyn LoadedModel>, Error> {
        self.load_read(spec, || read(spec, directory))
    }

    fn load_opened(
        &self,
        spec: &Arc<ModelSpec>,
        _directory: &Path,
        file: BorrowedFd<'_>,
    ) -> Result<Box<dyn LoadedModel>, Error> {
        self.load_read(spec, || read_opened(spec, file))
    }
}

/// The parts of a model version that were read.
struct WholeModel {
    model: Model,
    /// [`SharedGraph::defaults`].
    defaults: Vec<Option<Tensor>>,
    /// The graph's outputs: names and ONNX's element types.
    outputs: Vec<(String, i32)>,
    /// The outline of the graph that the engine has read.
    graph: Result<OnnxGraph, Error>,
}

impl Rten {
    fn load_read(
        &self,
        spec: &Arc<ModelSpec>,
        read: impl FnOnce() -> Result<WholeModel, Error>,
    ) -> Result<Box<dyn LoadedModel>, Error> {
        if !spec.optimization.operator_libraries.is_empty() {
            return Err(Error::unsupported(format!(
                "model '{}' names libraries with operators (model_operations.op_library_filename), which ONNX Runtime \
                 alone can load: install onnxruntime, or name its library (docs/guide/install.md)",
                spec.name
            )));
        }
        let inputs = bind::held_inputs(spec)?;
        let outputs = bind::held_outputs(spec)?;
        let WholeModel { model, defaults, outputs: graph_outputs, graph } = read()?;
        let inputs = bind::bind_inputs(spec, &model, &inputs)?;
        let batch_inputs = bind::bind_batch_inputs(spec, &model)?;
        let outputs = bind::bind_outputs(spec, &model, &graph_outputs, &outputs)?;
        // Only now: the engine and the configuration report faults of a file better.
        let graph = graph?;
        let output_nodes = outputs.iter().map(|port| port.node).collect();
        let shapes = bind::input_shapes(spec, &model, &inputs, &batch_inputs);
        let estimate = Arc::new(RunEstimate::new(spec, &graph, &shapes, Arc::clone(&self.memory))?);
        let spec = Arc::clone(spec);
        let shared = SharedGraph { spec, model, inputs, batch_inputs, defaults, outputs, output_nodes, estimate };
        Ok(Box::new(RtenModel { shared: Arc::new(shared), why_not_by_shape: why_not_by_shape(&graph) }))
    }
}

impl LoadedModel for RtenModel {
    fn new_instance(&self, threads: &Threads) -> Result<Box<dyn Instance>, Error> {
        Ok(Box::new(BatchedInstance::new(RtenInstance::new(Arc::clone(&self.shared), threads))))
    }

    fn may_run_inline(&self) -> bool {
        self.why_not_by_shape.is_none()
    }

    fn why_not_inline(&self) -> &str {
        self.why_not_by_shape.as_deref().unwrap_or_default()
    }
}

/// Reads the model's file, the files of weights that it names beside it, and the defaults of optional
/// inputs.
fn read(spec: &ModelSpec, directory: &Path) -> Result<WholeModel, Error> {
    let path = model_path(spec, directory)?;
    let beside = path.parent().unwrap_or(directory);
    catching(spec, || {
        let bytes = std::fs::read(&path).map_err(|error| Error::internal(error.to_string()))?;
        // The engine recognises the format by the extension, and finds files of weights beside the path. Those of a link
        // lie beside its target, so it is read here.
        let has_known_name = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("onnx"));
        read_whole(spec, bytes, Some(beside), (has_known_name && !path.is_symlink()).then_some(&path))
    })
}

/// Reads a model from its opened file, which refers to no other files.
fn read_opened(spec: &ModelSpec, file: BorrowedFd<'_>) -> Result<WholeModel, Error> {
    catching(spec, || {
        let mut bytes = Vec::new();
        let outcome = file.try_clone_to_owned().map(std::fs::File::from).and_then(|mut file| {
            file.rewind()?;
            file.read_to_end(&mut bytes)
        });
        outcome.map_err(|error| Error::internal(error.to_string()))?;
        read_whole(spec, bytes, None, None)
    })
}

/// Catches a panic of the engine's reader: a broken file fails this load only.
fn catching(spec: &ModelSpec, read: impl FnOnce() -> Result<WholeModel, Error>) -> Result<WholeModel, Error> {
    let outcome = catch_unwind(AssertUnwindSafe(read));
    let outcome = outcome.unwrap_or_else(|_| Err(Error::internal("the embedded engine failed to read the file")));
    outcome.map_err(|error| error.with_prefix(&format!("unable to load model '{}': ", spec.name)))
}

/// Loads a model from the bytes of its file, or from `path` if they are read unchanged: the engine
/// then holds weights once. `beside` has its files of weights.
fn read_whole(
    spec: &ModelSpec,
    bytes: Vec<u8>,
    beside: Option<&Path>,
    path: Option<&PathBuf>,
) -> Result<WholeModel, Error> {
    let (bytes, defaults) = take_defaults(spec, bytes)?;
    let bytes = Bytes::from(bytes);
    let external = |location: &str, offset: u64, length: Option<u64>| match beside {
        Some(directory) => read_part(&directory.join(location), offset, length),
        None => Err(Error::invalid(format!("it has a constant in another file, '{location}'"))),
    };
    let lowered = lower::lower(bytes.clone(), &external)?;
    let graph = OnnxGraph::outline(lowered.file.as_deref().unwrap_or(&bytes));
    let mut options = ModelOptions::with_all_ops();
    let model = match (path, lowered.file) {
        (Some(path), None) if defaults.is_empty() => {
            drop(bytes);
            options.load_file(path)
        }
        (_, file) => {
            for name in external_files(&bytes)? {
                options.external_data(&name, external(&name, 0, None)?);
            }
            options.load(file.unwrap_or_else(|| bytes.into()))
        }
    };
    Ok(WholeModel { model: model.map_err(engine_error)?, defaults, outputs: lowered.outputs, graph })
}

/// Takes the initial values of optional inputs out of a file.
fn take_defaults(spec: &ModelSpec, bytes: Vec<u8>) -> Result<(Vec<u8>, Vec<Option<Tensor>>), Error> {
    let optional = spec.inputs.iter().filter(|input| input.is_optional);
    let names: Vec<_> = optional.map(|input| input.name.as_str()).collect();
    if names.is_empty() {
        return Ok((bytes, Vec::new()));
    }
    // The engine folds initial values into the graph as constants, and would then ignore an input that a
    // request brings. So they are taken out of the model, and passed with each request that left
    // them out.
    let (bytes, values) = take_initial_values(&bytes, &names).map_err(Error::invalid)?;
    let mut values = values.into_iter();
    let mut defaults = Vec::with_capacity(spec.inputs.len());
    for input in &spec.inputs {
        let default = if input.is_optional { values.next() } else { None };
        if let Some(value) = &default
            && (value.datatype != input.datatype || !fits(&input.model_shape, &value.shape))
        {
            let (name, datatype, shape) = (&input.name, value.datatype.name(), ShapeText(&value.shape));
            let text =
                format!("input '{name}' has an initial value {datatype} {shape}, which its configuration excludes");
            return Err(Error::invalid(text));
        }
        defaults.push(default);
    }
    Ok((bytes, defaults))
}

/// Reads `length` bytes of a file of weights, or all from an offset on.
fn read_part(path: &Path, offset: u64, length: Option<u64>) -> Result<Vec<u8>, Error> {
    let read = || {
        let mut file = std::fs::File::open(path)?;
        file.seek(SeekFrom::Start(offset))?;
        let mut bytes = Vec::new();
        file.take(length.unwrap_or(u64::MAX)).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().map_err(|error: std::io::Error| Error::internal(format!("a file of weights cannot be read: {error}")))
}

fn engine_error(error: LoadError) -> Error {
    let other_engine_may_run_it = !matches!(
        error.kind(),
        LoadErrorKind::IoError
            | LoadErrorKind::ParseError
            | LoadErrorKind::UnknownFileType
            | LoadErrorKind::ExternalDataError
    );
    let alternative = if other_engine_may_run_it { format!("; {ALTERNATIVE}") } else { String::new() };
    Error::invalid(format!("the embedded engine cannot run it: {error}{alternative}"))
}
