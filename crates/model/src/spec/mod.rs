//! A checked model configuration in the form that the rest of the server reads. Built by [`super::config`];
//! immutable afterwards.

pub mod ensemble;
pub mod hosted;
pub mod instances;
pub mod python;
pub mod refused;
pub mod rows;
pub mod sequence;
pub mod steps;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::classes::ScoreText;
use crate::identity::ModelIdentity;
use crate::labels::Labels;
use crate::name::qualified;
use crate::spec::ensemble::Ensemble;
use crate::spec::hosted::HostedLibrary;
use crate::spec::instances::InstanceSeat;
use crate::spec::python::PythonModel;
use crate::spec::refused::RefusedAxes;
use crate::spec::sequence::SequenceBatching;
use crate::spec::steps::ModelSteps;
use base::error::Error;
use base::tensor::{Datatype, Shape, Tensor};

/// The parameter in which a served configuration names the engine of an ONNX model. It is not the
/// parameter `engine`: a copy of a served configuration must not choose an engine that its user did
/// not choose.
pub const SERVED_ENGINE_PARAMETER: &str = "served_engine";
/// The parameter in which a served configuration has the most rows of a batch, if that was learned.
pub const ROWS_CHOSEN_PARAMETER: &str = "batch_rows_chosen";
/// The parameter in which a served configuration names the version of that engine.
pub const SERVED_ENGINE_VERSION_PARAMETER: &str = "served_engine_version";

/// The parameter with the names of outputs that are left out of answers and of metadata unless a request names them.
pub const ON_REQUEST_PARAMETER: &str = "outputs_on_request";

/// A checked model configuration. One is shared by all shards and instances.
#[derive(Clone, Debug)]
pub struct ModelSpec {
    /// The name of the model and of its directory.
    pub name: String,
    /// The platform in the model's metadata: the configured one, or else the backend.
    pub platform: String,
    /// The name of the backend that runs it (`onnxruntime`, `identity`); empty for an ensemble.
    pub backend: String,
    /// `max_batch_size`: 0 if the model has no batch axis.
    pub rows_max: u32,
    /// True if `rows_max` follows from open first dimensions in the model's file, and is not stated.
    pub is_batch_axis_derived: bool,
    /// Inputs in the order of the configuration.
    pub inputs: Vec<TensorSpec>,
    /// Outputs in the order of the configuration.
    pub outputs: Vec<TensorSpec>,
    /// `batch_input`: inputs of the model that the server computes from each batch.
    pub batch_inputs: Vec<BatchInput>,
    /// The batching of requests; `None` if they are not batched (no `dynamic_batching`).
    pub batching: Option<Batching>,
    /// The steps of an ensemble; `None` for any other model.
    pub ensemble: Option<Arc<Ensemble>>,
    /// The model that a Python process runs; `None` for any other model.
    pub python: Option<Arc<PythonModel>>,
    /// The shared library that runs it (`libtriton_NAME.so`); `None` for any other model.
    pub library: Option<Arc<HostedLibrary>>,
    /// The serving of sequences; `None` without `sequence_batching`.
    pub sequence: Option<Arc<SequenceBatching>>,
    /// Its `steps.json`; `None` without one.
    pub steps: Option<Arc<ModelSteps>>,
    /// The instance groups; empty for an ensemble.
    pub instance_groups: Vec<InstanceGroup>,
    /// The policy that selects the served versions.
    pub version_policy: VersionPolicy,
    /// The name of the model file inside a version's directory.
    pub default_model_filename: String,
    /// `parameters`: string values by key.
    pub parameters: BTreeMap<String, String>,
    /// Options for the engine.
    pub optimization: Optimization,
    /// `model_warmup`: samples that every instance runs before it serves.
    pub warm_ups: Vec<WarmUp>,
    /// `metric_tags` as labels of the model's metrics: each `_key="value",`.
    pub metric_labels: String,
    /// `model_metrics`: upper bounds in milliseconds of the buckets of the first responses; `None` for Triton's own.
    pub first_response_bounds: Option<Vec<f64>>,
    /// `response_cache { enable: true }`. The server clears it if it has no cache.
    pub is_cached: bool,
    /// Its identity by contents; `None` unless the server shares a cache with others.
    pub identity: Option<ModelIdentity>,
    /// Empty requests that its engine does not survive, as its load found. Set by the server.
    pub refused_axes: Vec<RefusedAxes>,
    /// `model_transaction_policy { decoupled: true }`.
    pub is_decoupled: bool,
    /// True if its answers are tritonserver's even if those differ from the protocol's
    /// (`--compat=triton`). Set by the server.
    pub follows_triton: bool,
    /// The namespace of its repository; empty without `--model-namespacing`.
    pub namespace: String,
    /// The effective configuration as `/v2/models/M/config` shows it: JSON with Triton's names,
    /// order and defaults.
    pub config_json: Arc<str>,
    /// The effective configuration as an encoded `inference.ModelConfig`, for gRPC.
    pub config_message: Arc<[u8]>,
}

/// One input or output.
#[derive(Clone, Debug)]
pub struct TensorSpec {
    /// Its name.
    pub name: String,
    /// Its datatype.
    pub datatype: Datatype,
    /// `dims` of the configuration, without the batch axis; -1 for a dimension of variable size.
    pub dims: Shape,
    /// The full shape in requests and responses: `dims`, with the batch axis (-1) in front if the
    /// model batches and this is not a shape tensor.
    pub shape: Shape,
    /// The full shape that the model sees: differs from `shape` by `reshape`, and has one value more for a shape
    /// tensor of a model that batches.
    pub model_shape: Shape,
    /// `is_shape_tensor` of a model that batches: it has no batch axis, and the model sees the number of
    /// rows in the batch in front of its values.
    pub is_shape_tensor: bool,
    /// True if the shape of this output was read from the model file and not stated by hand.
    /// Exporters write wrong ones, so the output goes to the client in its actual shape.
    pub is_derived: bool,
    /// Labels of the classes, for outputs with `label_filename`.
    pub labels: Option<Arc<Labels>>,
    /// True if a request may leave the input out.
    pub is_optional: bool,
    /// `allow_ragged_batch`: requests with different shapes of this input may share a batch, and the
    /// model sees their elements concatenated in one dimension.
    pub is_ragged: bool,
    /// `batch_output`: the index of the input whose shape each request's part of this output has; `None` if
    /// the output is not a `batch_output`.
    pub scatter_source: Option<usize>,
}

/// One target of a `batch_input`: an input that the server computes from the batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchInput {
    /// The model's input.
    pub name: String,
    /// INT32 or FP32.
    pub datatype: Datatype,
    /// The property of the batch that it reports.
    pub kind: BatchInputKind,
    /// The index of the source input.
    pub source: usize,
}

/// The property of its source input that a `batch_input` reports (`BatchInput.Kind` of
/// `model_config.proto`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchInputKind {
    /// `BATCH_ACCUMULATED_ELEMENT_COUNT`: for each request the elements up to its end.
    AccumulatedElementCount,
    /// `BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO`: the accumulated counts with a zero in front.
    AccumulatedElementCountWithZero,
    /// `BATCH_ELEMENT_COUNT`: the number of elements of each request.
    ElementCount,
    /// `BATCH_ITEM_SHAPE`: the shape of each row, one row of this input for each.
    ItemShape,
    /// `BATCH_ITEM_SHAPE_FLATTEN`: the shapes of all rows in one dimension.
    ItemShapeFlatten,
    /// `BATCH_MAX_ELEMENT_COUNT_AS_SHAPE`: an input whose size is the most elements of any request.
    MaxElementCountAsShape,
}

/// `dynamic_batching`: the queueing and batching of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batching {
    /// `preferred_batch_size` in rows, ascending, each once; empty if the model has no batch axis.
    pub rows_preferred: Vec<u32>,
    /// `max_queue_delay_microseconds`.
    pub queue_delay_max: Duration,
    /// The parameter `target_latency_us`: batch sizes are chosen to stay below this latency.
    pub latency_target: Option<Duration>,
    /// `preserve_ordering`.
    pub preserves_order: bool,
    /// `priority_levels`; 0 for a single level.
    pub priority_levels: u64,
    /// `default_priority_level`.
    pub priority_default: u64,
    /// `default_queue_policy`.
    pub queue_default: QueueRules,
    /// `priority_queue_policy`, by level.
    pub queue_by_level: BTreeMap<u64, QueueRules>,
}

/// A `ModelQueuePolicy`: the number of requests of one priority level that may wait, and their
/// longest wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueRules {
    /// `timeout_action`: true if a request whose queue timeout expired goes to the end of the queue
    /// (`DELAY`), false if it is refused (`REJECT`).
    pub is_delaying: bool,
    /// `default_timeout_microseconds`; zero for none.
    pub timeout_default: Duration,
    /// `allow_timeout_override`.
    pub may_override: bool,
    /// `max_queue_size`; 0 for no limit of its own.
    pub entries_max: u32,
}

/// An `instance_group`: instances with the same placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceGroup {
    /// Its name.
    pub name: String,
    /// Its kind, which Python models are told. `KIND_AUTO` was decided earlier.
    pub kind: InstanceKind,
    /// The number of instances; on GPUs, the number on each.
    pub count: u32,
    /// The GPUs that the instances are on; empty for the CPU.
    pub gpus: Vec<u32>,
    /// `passive`: the instances are loaded and get no work.
    pub is_passive: bool,
    /// `profile`: the optimization profiles of TensorRT, which its backend reads.
    pub profiles: Vec<String>,
    /// The host policy, which may set the cores; the default is `cpu`, `gpu_<first GPU>` or `model`, by kind.
    pub host_policy: String,
    /// The resources of each instance, under `--rate-limit=execution_count`.
    pub rate: RateRules,
}

/// `ModelInstanceGroup.Kind`, decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceKind {
    /// `KIND_CPU`.
    Cpu,
    /// `KIND_GPU`.
    Gpu,
    /// `KIND_MODEL`: the model chooses its devices itself.
    Model,
}

impl InstanceKind {
    /// The name without `KIND_`, as Triton tells it to Python models.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::Gpu => "GPU",
            Self::Model => "MODEL",
        }
    }
}

/// A `ModelRateLimiter`: the resources that an instance takes while it runs, and its priority.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateRules {
    /// `priority`: of two instances that compete for a resource, one with 2 runs half as often as one with 1;
    /// 0 counts as 1.
    pub priority: u32,
    /// `resources`.
    pub resources: Vec<ResourceRules>,
}

/// A `ModelRateLimiter.Resource`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceRules {
    /// Its name.
    pub name: String,
    /// True if all devices share it.
    pub is_global: bool,
    /// The units of it that an instance takes.
    pub count: u32,
}

/// `optimization`: options for the engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Optimization {
    /// `graph.level`, the graph optimizations of the engine: -1 for basic, 1 for extended, 2 for none, 0 for all.
    pub graph_level: i32,
    /// `execution_accelerators.cpu_execution_accelerator`.
    pub cpu_accelerators: Vec<Accelerator>,
    /// `execution_accelerators.gpu_execution_accelerator`.
    pub gpu_accelerators: Vec<Accelerator>,
    /// `model_operations.op_library_filename`: libraries with operators for an ONNX model. Empty for other models.
    pub operator_libraries: Vec<String>,
}

/// An execution accelerator: a library inside the engine that runs the operators it supports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accelerator {
    /// Its name.
    pub name: String,
    /// Its own parameters.
    pub parameters: BTreeMap<String, String>,
}

/// `version_policy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VersionPolicy {
    /// Every version.
    All,
    /// This many of the highest versions.
    Latest(u32),
    /// These versions.
    Specific(Vec<u64>),
}

impl InstanceGroup {
    /// The name of each instance, as Triton builds it, and its GPU if it is on one. With several GPUs the name
    /// contains the GPU.
    pub fn instances(&self) -> impl Iterator<Item = (String, Option<u32>)> {
        let name = |index: u32| format!("{}_{index}", self.name);
        let on_cpu = (0..self.count).filter(|_| self.gpus.is_empty()).map(move |index| (name(index), None));
        let on_gpus = self.gpus.iter().flat_map(move |gpu| {
            let named =
                move |index| if self.gpus.len() > 1 { format!("{}_gpu{gpu}", name(index)) } else { name(index) };
            (0..self.count).map(move |index| (named(index), Some(*gpu)))
        });
        on_cpu.chain(on_gpus)
    }

    /// Its instances, one by one.
    pub fn seats(&self) -> impl Iterator<Item = InstanceSeat> {
        self.instances().map(|(name, gpu)| InstanceSeat { name, group: self.clone(), gpu })
    }

    /// The number of instances, over all GPUs.
    #[inline]
    pub fn instance_count(&self) -> u64 {
        u64::from(self.count).saturating_mul(self.gpus.len().max(1) as u64)
    }
}

impl TensorSpec {
    /// A tensor with the same shape for clients and model, and no other options.
    pub fn new(name: &str, datatype: Datatype, dims: &[i64], has_batch_axis: bool) -> Self {
        let shape: Shape = has_batch_axis.then_some(-1).into_iter().chain(dims.iter().copied()).collect();
        Self {
            name: name.to_owned(),
            datatype,
            dims: Shape::from_slice(dims),
            model_shape: shape.clone(),
            shape,
            is_shape_tensor: false,
            is_derived: false,
            labels: None,
            is_optional: false,
            is_ragged: false,
            scatter_source: None,
        }
    }

    /// Returns true if clients and the model see different shapes (`reshape`).
    pub fn is_reshaped(&self) -> bool {
        !self.is_shape_tensor && self.shape != self.model_shape
    }

    /// Returns true if the dims are `[1]`, which is also how a configuration writes a scalar of the
    /// model: `dims` cannot be empty. The engine's own shape decides.
    #[inline]
    pub fn may_be_scalar(&self) -> bool {
        !self.is_reshaped() && !self.is_shape_tensor && self.dims.as_slice() == [1]
    }

    /// Maps a shape of a request to the model's; `None` if it does not fit `shape`.
    #[inline]
    pub fn to_model(&self, shape: &[i64]) -> Option<Shape> {
        reshape(shape, &self.shape, &self.model_shape)
    }

    /// Maps a shape of the model to a response's; `None` if it does not fit `model_shape`.
    #[inline]
    pub fn to_client(&self, shape: &[i64]) -> Option<Shape> {
        reshape(shape, &self.model_shape, &self.shape)
    }
}

/// Maps a shape that fits the pattern `from` to the pattern `to`. Both have the same number of variable-size
/// dimensions, in the same order: the check of the configuration sees to that.
fn reshape(shape: &[i64], from: &[i64], to: &[i64]) -> Option<Shape> {
    if shape.len() != from.len() {
        return None;
    }
    let mut variable = Shape::new();
    for (size, want) in shape.iter().zip(from) {
        match *want {
            -1 => variable.push(*size),
            want if want == *size => {}
            _ => return None,
        }
    }
    let mut variable = variable.into_iter();
    to.iter().map(|size| if *size == -1 { variable.next() } else { Some(*size) }).collect()
}

impl ModelSpec {
    /// Its name, in its namespace if it has one.
    #[inline]
    pub fn qualified_name(&self) -> String {
        qualified(&self.namespace, &self.name)
    }

    /// The names of the outputs that only requests which name them get, with commas between: the parameter
    /// `outputs_on_request`. Empty for most models.
    #[inline]
    pub fn outputs_on_request(&self) -> &str {
        self.parameters.get(ON_REQUEST_PARAMETER).map_or("", String::as_str)
    }

    /// Returns true if an output is not one of those.
    pub fn is_usual_output(&self, name: &str) -> bool {
        !self.outputs_on_request().split(',').any(|other| other == name)
    }

    /// The outputs that every request gets.
    pub fn usual_outputs(&self) -> impl Iterator<Item = &TensorSpec> {
        self.outputs.iter().filter(|output| self.is_usual_output(&output.name))
    }

    /// Gives the model's outputs for one request the shapes of the response (`reshape`). As in
    /// Triton, a Python model's output passes unchanged if it differs from the configuration or is
    /// missing. So does an output that differs from a shape read from the model file, and one on request that is left out.
    ///
    /// # Errors
    /// `Internal` if another model gave a shape that the `reshape` of the output excludes.
    pub fn to_client(&self, mut outputs: Vec<Tensor>) -> Result<Vec<Tensor>, Error> {
        // An output that was turned into classes (its datatype is `BYTES` now) has the client's shape already.
        let is_reshaped = |(output, spec): &(&mut Tensor, &TensorSpec)| {
            let is_left_out = || output.is_missing() && !self.is_usual_output(&spec.name);
            spec.is_reshaped() && output.datatype == spec.datatype && !is_left_out()
        };
        for (output, spec) in outputs.iter_mut().zip(&self.outputs).filter(is_reshaped) {
            match spec.to_client(&output.shape) {
                Some(shape) => output.shape = shape,
                None if self.takes_details() || spec.is_derived => {}
                None => {
                    let (name, model) = (&spec.name, &self.name);
                    return Err(Error::internal(format!(
                        "output '{name}' of model '{model}' has a shape that its 'reshape' excludes"
                    )));
                }
            }
        }
        Ok(outputs)
    }

    /// The format of the scores of its classes.
    pub const fn score_text(&self) -> ScoreText {
        if self.follows_triton { ScoreText::SixDecimals } else { ScoreText::Shortest }
    }

    /// Returns true if a user's Python code runs it: that code sees all of a request and may answer
    /// anything.
    #[inline]
    pub fn is_python(&self) -> bool {
        self.python.is_some()
    }

    /// Returns true if it reads the parts of a request beside its tensors, and may leave outputs
    /// out of its answers: Python models, those of hosted backends, ensembles, whose steps may
    /// be such, and lists of steps that run other models. Other models do not get them, which costs nothing.
    #[inline]
    pub fn takes_details(&self) -> bool {
        self.is_python()
            || self.library.is_some()
            || self.ensemble.is_some()
            || self.steps.as_ref().is_some_and(|steps| steps.has_calls())
    }

    /// The same model, run by another backend.
    #[cfg(any(test, feature = "testing"))]
    pub fn run_by(self, backend: &str) -> Self {
        let python = (backend == crate::platform::PYTHON_BACKEND).then(Arc::default);
        Self { backend: backend.to_owned(), python, ..self }
    }

    /// The index of the input with this name.
    #[inline]
    pub fn input_index(&self, name: &str) -> Option<usize> {
        self.inputs.iter().position(|input| input.name == name)
    }

    /// The index of the output with this name.
    #[inline]
    pub fn output_index(&self, name: &str) -> Option<usize> {
        self.outputs.iter().position(|output| output.name == name)
    }

    /// Returns true if any instance is on a GPU.
    #[inline]
    pub fn is_on_gpu(&self) -> bool {
        self.instance_groups.iter().any(|group| !group.gpus.is_empty())
    }

    /// Returns true if any instance is on the CPU.
    #[inline]
    pub fn is_on_cpu(&self) -> bool {
        self.instance_groups.is_empty() || self.instance_groups.iter().any(|group| group.gpus.is_empty())
    }

    /// Returns true if tensors have a batch axis.
    pub const fn has_batch_axis(&self) -> bool {
        self.rows_max > 0
    }
}

/// One sample of `model_warmup`: a batch and the count of its runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarmUp {
    /// Its name.
    pub name: String,
    /// `batch_size`: requests of one row in the batch.
    pub requests: u32,
    /// `count`: the runs of the batch.
    pub runs: u32,
    /// The inputs of each request, in the order of the model's inputs; `None` for an optional input left out,
    /// and for a control or state input that the server fills in.
    pub inputs: Vec<Option<WarmUpInput>>,
}

/// One input of a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarmUpInput {
    /// The full shape, as a client would send it.
    pub shape: Shape,
    /// The source of its bytes.
    pub source: WarmUpSource,
}

/// The source of a sample's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WarmUpSource {
    /// A file in the directory `warmup` of the model.
    File(String),
    /// Random numbers.
    Random,
    /// Zeros, or empty strings.
    Zero,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{CompletionRules, ConfigDraft};

    fn plain() -> ModelSpec {
        let text = "backend: 'identity' input { name: 'x' data_type: TYPE_FP32 dims: 4 } \
                    output { name: 'y' data_type: TYPE_FP32 dims: 4 }";
        let draft = ConfigDraft::new("m", Some(text.as_bytes()), &[]).unwrap();
        draft.complete(None, &BTreeMap::new(), CompletionRules::default()).unwrap()
    }

    #[test]
    fn shapes_go_from_one_pattern_to_the_other_and_back() {
        let check = |client: &[i64], model: &[i64], given: &[i64], want: Option<&[i64]>| {
            let mut tensor = TensorSpec::new("x", Datatype::Fp32, client, false);
            tensor.model_shape = Shape::from_slice(model);
            let got = tensor.to_model(given);
            assert_eq!(got.as_deref(), want, "{client:?} {model:?} {given:?}");
            if let Some(got) = got {
                assert_eq!(tensor.to_client(&got).as_deref(), Some(given), "and back");
            }
        };
        check(&[-1, 1], &[-1], &[3, 1], Some(&[3]));
        check(&[-1, 1], &[-1], &[3, 2], None);
        check(&[-1, 1], &[-1], &[3], None);
        check(&[1], &[], &[1], Some(&[]));
        check(&[4, 4], &[16], &[4, 4], Some(&[16]));
        check(&[-1, 2, 4, -1, 6], &[-1, 8, -1, 1, 6], &[7, 2, 4, 5, 6], Some(&[7, 8, 5, 1, 6]));
        check(&[-1, -1], &[1, -1, 1, -1], &[0, 9], Some(&[1, 0, 1, 9]));
    }

    #[test]
    fn outputs_unlike_the_configuration_are_a_python_models_own_affair_and_other_models_failure() {
        let check = |backend: &str, datatype, shape: &[i64], size: usize, want: Result<&[i64], &'static str>| {
            let mut output = TensorSpec::new("y", Datatype::Fp32, &[4], false);
            output.model_shape = Shape::from_slice(&[2, 2]);
            let spec = ModelSpec { outputs: vec![output], ..plain().run_by(backend) };
            let tensor = Tensor { datatype, shape: Shape::from_slice(shape), contents: vec![0; size].into() };
            let got = spec.to_client(vec![tensor]).map(|outputs| outputs[0].shape.to_vec());
            assert_eq!(got, want.map(<[_]>::to_vec).map_err(Error::internal), "{backend} {shape:?}");
        };
        let refused = Err("output 'y' of model 'm' has a shape that its 'reshape' excludes");
        check("python", Datatype::Fp32, &[2, 2], 16, Ok(&[4]));
        check("python", Datatype::Fp32, &[3], 12, Ok(&[3]));
        check("python", Datatype::Fp64, &[2, 2], 32, Ok(&[2, 2]));
        check("python", Datatype::Fp32, &[], 0, Ok(&[]));
        check("identity", Datatype::Fp32, &[2, 2], 16, Ok(&[4]));
        check("identity", Datatype::Fp32, &[3], 12, refused);
        check("identity", Datatype::Fp32, &[], 0, refused);
    }
}
