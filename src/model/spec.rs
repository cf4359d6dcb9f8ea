//! What was checked of a model's configuration: the form in which the rest of the server reads
//! it. Built by [`super::config`]; never changed afterwards.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::model::config::warm_up::WarmUp;
use crate::model::ensemble::Ensemble;
use crate::model::labels::Labels;
use crate::model::sequence::SequenceBatching;
use crate::tensor::{Datatype, Shape, Tensor};

/// A checked model configuration. One is shared by all shards and instances.
#[derive(Clone, Debug)]
pub struct ModelSpec {
    /// The name of the model and of its directory.
    pub name: String,
    /// What metadata calls the platform: the configured platform, or else the backend.
    pub platform: String,
    /// The name of the backend that runs it (`onnxruntime`, `identity`); empty for an ensemble.
    pub backend: String,
    /// `max_batch_size`: 0 where the model does not batch.
    pub rows_max: u32,
    /// Inputs in the order of the configuration.
    pub inputs: Vec<TensorSpec>,
    /// Outputs in the order of the configuration.
    pub outputs: Vec<TensorSpec>,
    /// `batch_input`: inputs of the model that the server makes of each batch.
    pub batch_inputs: Vec<BatchInput>,
    /// How requests are put together; `None` where they are not (no `dynamic_batching`).
    pub batching: Option<Batching>,
    /// What it is made of, where it is an ensemble.
    pub ensemble: Option<Arc<Ensemble>>,
    /// How sequences are served; `None` where the model has no `sequence_batching`.
    pub sequence: Option<Arc<SequenceBatching>>,
    /// The instances, by group.
    pub instance_groups: Vec<InstanceGroup>,
    /// Which versions are served.
    pub version_policy: VersionPolicy,
    /// The file inside a version's directory.
    pub default_model_filename: String,
    /// `parameters`, string values by key.
    pub parameters: BTreeMap<String, String>,
    /// What is asked of the engine.
    pub optimization: Optimization,
    /// `model_warmup`: what every instance runs before it serves.
    pub warm_ups: Vec<WarmUp>,
    /// `metric_tags` as labels of the model's metrics: each `_key="value",`.
    pub metric_labels: String,
    /// `response_cache { enable: true }`, where the server has a cache.
    pub is_cached: bool,
    /// `model_transaction_policy { decoupled: true }`.
    pub is_decoupled: bool,
    /// The effective configuration as `/v2/models/M/config` shows it: JSON with Triton's names,
    /// order and defaults.
    pub config_json: Arc<str>,
    /// The same as an encoded `inference.ModelConfig`.
    pub config_message: Arc<[u8]>,
}

/// One input or output.
#[derive(Clone, Debug)]
pub struct TensorSpec {
    /// Its name.
    pub name: String,
    /// Its datatype.
    pub datatype: Datatype,
    /// `dims` of the configuration, -1 where any size goes; without the batch axis.
    pub dims: Shape,
    /// The full shape that requests and responses have: `dims`, with -1 before them where the model
    /// batches and this is no shape tensor.
    pub shape: Shape,
    /// The full shape that the model has: another where `reshape` says so, and one value longer for
    /// a shape tensor of a model that batches.
    pub model_shape: Shape,
    /// `is_shape_tensor` of a model that batches: it has no batch axis, and the model sees the rows
    /// of the batch before its values.
    pub is_shape_tensor: bool,
    /// Labels of the classes, for outputs with `label_filename`.
    pub labels: Option<Arc<Labels>>,
    /// Whether a request may leave the input out.
    pub is_optional: bool,
    /// `allow_ragged_batch`: requests whose shapes of this input differ may share a batch, and the
    /// model sees the elements of all of them behind one another.
    pub is_ragged: bool,
    /// `batch_output`: the input whose shape each request's part of this output has, where the
    /// output has a variable size.
    pub scatter_source: Option<usize>,
}

/// One name of a `batch_input`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchInput {
    /// The model's input.
    pub name: String,
    /// INT32 or FP32.
    pub datatype: Datatype,
    /// What it tells of the batch.
    pub kind: BatchInputKind,
    /// The input of the requests that it is made of.
    pub source: usize,
}

/// What a `batch_input` tells of its source, in the words of `model_config.proto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchInputKind {
    /// `BATCH_ACCUMULATED_ELEMENT_COUNT`: where the elements of each request end.
    AccumulatedElementCount,
    /// `BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO`: the same, after a zero.
    AccumulatedElementCountWithZero,
    /// `BATCH_ELEMENT_COUNT`: the elements of each request.
    ElementCount,
    /// `BATCH_ITEM_SHAPE`: for each row its shape.
    ItemShape,
    /// `BATCH_ITEM_SHAPE_FLATTEN`: the same in one dimension.
    ItemShapeFlatten,
    /// `BATCH_MAX_ELEMENT_COUNT_AS_SHAPE`: the most elements of a request, told by the shape.
    MaxElementCountAsShape,
}

/// `dynamic_batching`: how requests wait for each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batching {
    /// `preferred_batch_size`, ascending, each once; empty where the model has no batch axis.
    pub rows_preferred: Vec<u32>,
    /// `max_queue_delay_microseconds`.
    pub queue_delay_max: Duration,
    /// The parameter `target_latency_us`: the latency within which batches are chosen.
    pub latency_target: Option<Duration>,
    /// `preserve_ordering`.
    pub preserves_order: bool,
    /// `priority_levels`: 0 for one queue.
    pub priority_levels: u64,
    /// `default_priority_level`.
    pub priority_default: u64,
    /// `default_queue_policy`.
    pub queue_default: QueueRules,
    /// `priority_queue_policy`, by level.
    pub queue_by_level: BTreeMap<u64, QueueRules>,
}

/// A `ModelQueuePolicy`: how long requests of one level may wait, and how many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueRules {
    /// Whether a request whose timeout has passed waits on behind the others (`DELAY`) instead of
    /// being refused (`REJECT`).
    pub is_delaying: bool,
    /// `default_timeout_microseconds`; zero for none.
    pub timeout_default: Duration,
    /// `allow_timeout_override`.
    pub may_override: bool,
    /// `max_queue_size`; 0 for no bound of its own.
    pub entries_max: u32,
}

/// Instances that are placed alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceGroup {
    /// Its name.
    pub name: String,
    /// How many instances, or how many on each GPU.
    pub count: u32,
    /// The GPUs that they are on; none where they are on the CPU.
    pub gpus: Vec<u32>,
    /// Whether they are loaded and given no work (`passive`).
    pub is_passive: bool,
    /// The host policy that may say where they run; `cpu` or `model` where none is named.
    pub host_policy: String,
    /// What each of them needs to run, under `--rate-limit=execution_count`.
    pub rate: RateRules,
}

/// A `ModelRateLimiter`: what an instance takes while it runs, and how often it may go first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateRules {
    /// `priority`: of two that want the same, one with 2 runs half as often as one with 1; 0 is 1.
    pub priority: u32,
    /// `resources`.
    pub resources: Vec<ResourceRules>,
}

/// A `ModelRateLimiter.Resource`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceRules {
    /// Its name.
    pub name: String,
    /// Whether all devices share it.
    pub is_global: bool,
    /// How much of it an instance takes.
    pub count: u32,
}

/// `optimization`: what is asked of the engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Optimization {
    /// `graph.level`: -1 for basic, 1 for extended, 2 for none; 0 for all there are.
    pub graph_level: i32,
    /// `execution_accelerators.cpu_execution_accelerator`.
    pub cpu_accelerators: Vec<Accelerator>,
    /// `execution_accelerators.gpu_execution_accelerator`.
    pub gpu_accelerators: Vec<Accelerator>,
}

/// A library inside the engine that takes over the operators that it has.
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
    /// Every version there is.
    All,
    /// The so many highest.
    Latest(u32),
    /// These.
    Specific(Vec<u64>),
}

impl InstanceGroup {
    /// Its instances: their names as Triton makes them, and the GPU of each that is on one. Where there
    /// are several, it is part of the name.
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

    /// How many there are.
    pub fn instance_count(&self) -> u64 {
        u64::from(self.count).saturating_mul(self.gpus.len().max(1) as u64)
    }
}

impl TensorSpec {
    /// A tensor that clients and the model see alike, and of which nothing else is said.
    pub fn new(name: &str, datatype: Datatype, dims: &[i64], has_batch_axis: bool) -> Self {
        let shape: Shape = has_batch_axis.then_some(-1).into_iter().chain(dims.iter().copied()).collect();
        Self {
            name: name.to_owned(),
            datatype,
            dims: Shape::from_slice(dims),
            model_shape: shape.clone(),
            shape,
            is_shape_tensor: false,
            labels: None,
            is_optional: false,
            is_ragged: false,
            scatter_source: None,
        }
    }

    /// Whether clients and the model see different shapes (`reshape`).
    pub fn is_reshaped(&self) -> bool {
        !self.is_shape_tensor && self.shape != self.model_shape
    }

    /// Whether the shape ends with the 1 that stands for a scalar of the model, which a configuration
    /// cannot express.
    pub fn has_last_one(&self) -> bool {
        !self.is_reshaped() && !self.is_shape_tensor && self.dims.as_slice() == [1]
    }

    /// What the model sees of a shape that a request gives; `None` where a request cannot give it.
    pub fn to_model(&self, shape: &[i64]) -> Option<Shape> {
        reshape(shape, &self.shape, &self.model_shape)
    }

    /// What a response shows of a shape that the model gives; `None` where it cannot give it.
    pub fn to_client(&self, shape: &[i64]) -> Option<Shape> {
        reshape(shape, &self.model_shape, &self.shape)
    }
}

/// A shape of one pattern in the form of another: sizes that the patterns leave open keep their
/// order, as the check of the configuration has seen to.
fn reshape(shape: &[i64], from: &[i64], to: &[i64]) -> Option<Shape> {
    if shape.len() != from.len() {
        return None;
    }
    let mut open = Shape::new();
    for (size, want) in shape.iter().zip(from) {
        match *want {
            -1 => open.push(*size),
            want if want == *size => {}
            _ => return None,
        }
    }
    let mut open = open.into_iter();
    to.iter().map(|size| if *size == -1 { open.next() } else { Some(*size) }).collect()
}

impl ModelSpec {
    /// The outputs that the model gave for one request, in the shapes that its response shows.
    pub fn to_client(&self, mut outputs: Vec<Tensor>) -> Result<Vec<Tensor>, Error> {
        // Classes have the shape that clients see.
        let is_reshaped =
            |(output, spec): &(&mut Tensor, &TensorSpec)| spec.is_reshaped() && output.datatype == spec.datatype;
        for (output, spec) in outputs.iter_mut().zip(&self.outputs).filter(is_reshaped) {
            output.shape = spec.to_client(&output.shape).ok_or_else(|| {
                let (name, model) = (&spec.name, &self.name);
                Error::internal(format!(
                    "output '{name}' of model '{model}' came in a shape that its 'reshape' excludes"
                ))
            })?;
        }
        Ok(outputs)
    }

    /// The index of an input.
    pub fn input_index(&self, name: &str) -> Option<usize> {
        self.inputs.iter().position(|input| input.name == name)
    }

    /// The index of an output.
    pub fn output_index(&self, name: &str) -> Option<usize> {
        self.outputs.iter().position(|output| output.name == name)
    }

    /// Whether some of its instances are on a GPU.
    pub fn is_on_gpu(&self) -> bool {
        self.instance_groups.iter().any(|group| !group.gpus.is_empty())
    }

    /// Whether some of its instances are on the CPU.
    pub fn is_on_cpu(&self) -> bool {
        self.instance_groups.is_empty() || self.instance_groups.iter().any(|group| group.gpus.is_empty())
    }

    /// Whether tensors carry a batch axis.
    pub const fn has_batch_axis(&self) -> bool {
        self.rows_max > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
