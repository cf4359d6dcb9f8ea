//! An inference request once it was decoded and checked against its model, the same for REST and
//! gRPC; and what is kept of it to write its response.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::model::spec::sequence::CorrelationId;
use crate::model::{ModelSpec, SequenceMark};
use crate::protocol::shared_memory::SharedTensors;
use crate::tensor::Tensor;

/// A checked inference request.
#[derive(Clone, Debug)]
pub struct InferRequest {
    /// The tensors, in the order of the model's inputs (not of the request's). Those that lie in shared
    /// memory have no contents before they were read from there.
    pub inputs: Vec<Tensor>,
    /// Rows: the size of the batch axis, 1 for a model without one.
    pub rows: u32,
    /// `priority`; 0 where the request has none.
    pub priority: u64,
    /// `timeout`; zero where the request has none.
    pub timeout: Duration,
    /// Its place in a sequence, where it is part of one.
    pub sequence: Option<SequenceMark>,
    /// What the response needs.
    pub plan: ResponsePlan,
}

/// What is kept of a request to write its response.
#[derive(Clone, Debug, Default)]
pub struct ResponsePlan {
    /// The client's id; empty where it gave none.
    pub id: String,
    /// The outputs to send: those asked for, or all of the model's; in the model's order.
    pub outputs: SmallVec<[OutputPlan; 2]>,
    /// `triton_enable_empty_final_response`: the end of a decoupled model's responses is told alone.
    pub wants_empty_final: bool,
    /// The parameters of the sequence extension, where the response repeats them.
    pub repeated: Option<Box<SequenceParameters>>,
    /// What lies in shared memory, where anything does.
    pub shared: Option<Arc<SharedTensors>>,
}

impl ResponsePlan {
    /// What a response repeats of its request: that of an ensemble what the steps were given, also where the
    /// request names no sequence (`ensemble_scheduler.cc`, `CheckAndSetEnsembleOutput`). Triton repeats it
    /// once for each output, which makes keys of JSON that are there twice; here it is once.
    pub fn repeated(spec: &ModelSpec, sequence: &SequenceParameters) -> Option<Box<SequenceParameters>> {
        spec.ensemble.is_some().then(|| Box::new(sequence.clone()))
    }

    /// Whether an output goes to shared memory instead of into the response.
    pub fn is_shared(&self, index: usize) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.has_output(index))
    }
}

/// One output to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputPlan {
    /// Its index among the model's outputs.
    pub index: usize,
    /// REST only: as binary data after the JSON. gRPC always sends raw contents.
    pub is_binary: bool,
    /// The so many best classes instead of the tensor; 0 for the tensor.
    pub class_count: u32,
}

/// The parameters of the sequence extension, as a request gives them.
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
    /// The place of the request in its sequence. The flags of a request without an id mean nothing.
    pub fn into_mark(self) -> Option<SequenceMark> {
        let Self { id, is_start, is_end } = self;
        id.map(|id| SequenceMark { id, is_start, is_end })
    }
}
