//! An inference request after decoding and checking, in one form for REST and gRPC, and the part of it that is kept
//! until its response is written.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::shared_memory::SharedTensors;
use base::tensor::Tensor;
use model::parameters::Parameters;
use model::spec::sequence::CorrelationId;
use model::{ModelSpec, SequenceMark};

/// A checked inference request.
#[derive(Clone, Debug)]
pub struct InferRequest {
    /// The tensors, in the order of the model's inputs, not the request's. Those in shared memory have no
    /// contents until they are copied from there.
    pub inputs: Vec<Tensor>,
    /// Size of the batch axis; 1 for a model without one.
    pub rows: u32,
    /// The parameter `priority`; 0 if absent.
    pub priority: u64,
    /// The parameter `timeout`; zero if absent.
    pub timeout: Duration,
    /// Its sequence, if it has one, and the flags.
    pub sequence: SequenceParameters,
    /// The client's own parameters. Only for models that look at them
    /// ([`ModelSpec::takes_details`]); empty for others.
    pub parameters: Parameters,
    /// Kept to write the response.
    pub plan: ResponsePlan,
}

/// The parts of a request that the encoder needs to write its response.
#[derive(Clone, Debug, Default)]
pub struct ResponsePlan {
    /// The client's request id; empty if the client gave none.
    pub id: String,
    /// The outputs to send: the requested ones, or all of the model's; in the model's order.
    pub outputs: SmallVec<[OutputPlan; 2]>,
    /// The parameter `triton_enable_empty_final_response`: after the last response of a decoupled model, send an
    /// empty one that is marked final.
    pub wants_empty_final: bool,
    /// Sequence parameters that the response echoes; `None` without any.
    pub repeated: Option<Box<SequenceParameters>>,
    /// Inputs and outputs in shared memory; `None` without any.
    pub shared: Option<Arc<SharedTensors>>,
    /// REST only: the parameter `non_finite_output`.
    pub non_finite: NonFinite,
    /// Generate only: outputs of several axes are lists within lists.
    pub is_nested: bool,
    /// Predictions only: the form of the answer.
    pub predict: PredictForm,
}

/// The form of a prediction and of its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PredictForm {
    /// `inputs` and `outputs`: whole tensors.
    #[default]
    Columns,
    /// `instances` and `predictions`: as many rows.
    Rows(usize),
}

/// The form of NaN and of the infinities in JSON, which has no numbers for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NonFinite {
    /// `NaN`, `Infinity`, `-Infinity`, as Triton does. Not JSON.
    #[default]
    Literal,
    /// `null`.
    Null,
    /// `"NaN"`, `"Infinity"`, `"-Infinity"`.
    Text,
}

impl ResponsePlan {
    /// The sequence parameters that a response echoes. Only an ensemble echoes them, even outside of a sequence, as
    /// in Triton (`ensemble_scheduler.cc`, `CheckAndSetEnsembleOutput`). Triton adds them once for each output,
    /// which duplicates JSON keys; we write them once.
    #[inline]
    pub fn repeated(spec: &ModelSpec, sequence: &SequenceParameters) -> Option<Box<SequenceParameters>> {
        spec.ensemble.is_some().then(|| Box::new(sequence.clone()))
    }

    /// Returns true if an output goes to shared memory instead of into the response.
    #[inline]
    pub fn is_shared(&self, index: usize) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.has_output(index))
    }
}

/// The way to send one output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputPlan {
    /// Its index among the model's outputs.
    pub index: usize,
    /// REST only: send it as binary data after the JSON. gRPC always sends raw contents.
    pub is_binary: bool,
    /// REST only: send its strings as base64.
    pub is_base64: bool,
    /// Number of best classes to send instead of the tensor; 0 sends the tensor.
    pub class_count: u32,
}

/// The parameters of the sequence extension in a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SequenceParameters {
    /// `sequence_id`.
    pub id: Option<CorrelationId>,
    /// `sequence_start`.
    pub is_start: bool,
    /// `sequence_end`.
    pub is_end: bool,
}

impl SequenceParameters {
    /// The mark for the scheduler. Without an id the request is outside of any sequence, and the scheduler ignores the
    /// flags.
    #[inline]
    pub fn mark(&self) -> Option<SequenceMark> {
        let Self { id, is_start, is_end } = self;
        id.clone().map(|id| SequenceMark { id, is_start: *is_start, is_end: *is_end })
    }
}
