//! Test support for the backends: specs and tensors from a line of text each, and a sink that
//! stores the answers of responders.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a fixture of tests, which fail by panicking"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use bytemuck::NoUninit;

use crate::{Answer, AnswerSink, Batch, Request, Responder, Ticket};
use base::error::Error;
use base::tensor::{AlignedBuffer, Datatype, Tensor};
use base::time::{Instant, Stamps};
use model::{ModelSpec, TensorSpec, VersionPolicy};

/// A name, a datatype and dims without the batch axis.
pub type TrialTensor<'a> = (&'a str, Datatype, &'a [i64]);

/// A model `m` with the file `model.onnx`.
pub fn spec(rows_max: u32, inputs: &[TrialTensor<'_>], outputs: &[TrialTensor<'_>]) -> ModelSpec {
    let tensors = |list: &[TrialTensor<'_>]| list.iter().map(|io| tensor_spec(rows_max, *io)).collect();
    ModelSpec {
        name: "m".to_owned(),
        platform: String::new(),
        backend: String::new(),
        rows_max,
        inputs: tensors(inputs),
        outputs: tensors(outputs),
        batch_inputs: Vec::new(),
        batching: None,
        ensemble: None,
        python: None,
        library: None,
        sequence: None,
        steps: None,
        instance_groups: Vec::new(),
        version_policy: VersionPolicy::All,
        default_model_filename: "model.onnx".to_owned(),
        parameters: Default::default(),
        optimization: Default::default(),
        warm_ups: Vec::new(),
        metric_labels: String::new(),
        first_response_bounds: None,
        is_cached: false,
        is_batch_axis_derived: false,
        identity: None,
        refused_axes: Vec::new(),
        is_decoupled: false,
        follows_triton: false,
        namespace: String::new(),
        config_json: Arc::from(""),
        config_message: Arc::from([]),
    }
}

fn tensor_spec(rows_max: u32, (name, datatype, dims): TrialTensor<'_>) -> TensorSpec {
    TensorSpec::new(name, datatype, dims, rows_max > 0)
}

/// An aligned tensor whose datatype is that of its elements; `u8` makes UINT8.
pub fn tensor<T: NoUninit>(shape: &[i64], elements: &[T]) -> Tensor {
    let datatype = match std::any::type_name::<T>() {
        "f32" => Datatype::Fp32,
        "f64" => Datatype::Fp64,
        "i8" => Datatype::Int8,
        "i32" => Datatype::Int32,
        "i64" => Datatype::Int64,
        "u8" => Datatype::Uint8,
        other => panic!("no datatype for {other}"),
    };
    let mut buffer = AlignedBuffer::with_capacity(size_of_val(elements));
    buffer.extend_from_slice(bytemuck::cast_slice(elements));
    Tensor { datatype, shape: shape.iter().copied().collect(), contents: buffer.freeze() }
}

/// A tensor's bytes under another datatype of the same size.
pub fn retyped(tensor: Tensor, datatype: Datatype) -> Tensor {
    Tensor { datatype, ..tensor }
}

/// A clock that stands still.
pub fn no_clock() -> Instant {
    Instant::ZERO
}

/// Makes batches and stores their answers by ticket.
pub struct TrialAnswers {
    sink: Arc<TrialSink>,
    receiver: Receiver<(Ticket, Answer)>,
}

struct TrialSink {
    sender: Sender<(Ticket, Answer)>,
    has_left: AtomicBool,
}

impl AnswerSink for TrialSink {
    fn push(&self, ticket: Ticket, answer: Answer) {
        self.sender.send((ticket, answer)).unwrap();
    }

    fn wake(&self) {}

    fn has_left(&self, _: Ticket) -> bool {
        self.has_left.load(Ordering::SeqCst)
    }
}

impl Default for TrialAnswers {
    fn default() -> Self {
        let (sender, receiver) = channel();
        Self { sink: Arc::new(TrialSink { sender, has_left: AtomicBool::new(false) }), receiver }
    }
}

impl TrialAnswers {
    /// A batch of requests, each its inputs and its rows; the tickets count from 0.
    pub fn batch(&self, requests: Vec<(Vec<Tensor>, u32)>) -> Batch {
        let rows = requests.iter().map(|(_, rows)| rows).sum();
        let request = |(index, (inputs, request_rows))| {
            let sink = Arc::clone(&self.sink) as Arc<dyn AnswerSink>;
            let mut responder = Responder::new(sink, Ticket { index, generation: 0 }, Stamps::default());
            responder.set_batch(rows, index == 0);
            Request { inputs, rows: request_rows, responder, sequence: None, details: None }
        };
        Batch { requests: (0..).zip(requests).map(request).collect(), rows, clock: no_clock, ended: Vec::new() }
    }

    /// The clients of all requests leave.
    pub fn leave(&self) {
        self.sink.has_left.store(true, Ordering::SeqCst);
    }

    /// The answers of `count` tickets in their order: each exactly one, and no other.
    pub fn take(&self, count: u32) -> Vec<Answer> {
        let mut answers: Vec<_> = self.receiver.try_iter().collect();
        answers.sort_by_key(|(ticket, _)| ticket.index);
        let tickets: Vec<_> = answers.iter().map(|(ticket, _)| ticket.index).collect();
        assert_eq!(tickets, (0..count).collect::<Vec<_>>(), "each is answered exactly once");
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    /// The result of [`Self::take`], outputs only.
    pub fn outputs(&self, count: u32) -> Vec<Result<Vec<Tensor>, Error>> {
        self.take(count).into_iter().map(|answer| answer.outputs).collect()
    }
}
