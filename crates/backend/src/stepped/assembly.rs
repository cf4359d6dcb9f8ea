//! A request whose rows run in several batches of the model between the steps: its answer is put together when the last of them is
//! there, on whichever thread that is, and goes through the steps behind the model as that of one run.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_queue::{ArrayQueue, SegQueue};

use crate::batch::join_rows;
use crate::stepped::padding::{OutputAxes, PaddedInputs, PaddedOutputs, PaddedRows};
use crate::{Answer, AnswerSink, ExecutionCounter, Responder, Ticket};
use base::error::{Code, Error};
use base::tensor::Tensor;
use base::time::Stamps;
use model::parameters::Parameters;

/// A request in several runs.
pub(super) struct Assembly {
    joining: Joining,
    /// Gone once the request is answered.
    responder: ArrayQueue<Responder>,
    sink: Option<Arc<dyn AnswerSink>>,
    ticket: Ticket,
    /// Those of the request before its first run.
    stamps: Stamps,
    /// Counts the runs.
    executions: Option<Arc<dyn ExecutionCounter>>,
    parts: SegQueue<AnsweredPart>,
    /// Runs without an answer.
    left: AtomicUsize,
}

/// The way in which the outputs of the runs become those of the request.
pub(super) enum Joining {
    /// Rows in the order of their lengths, each run padded to its longest.
    Padded { inputs: Arc<PaddedInputs>, axes: OutputAxes, rows: PaddedRows },
    /// Rows one after the other, all of one shape: the number of rows in each run.
    InOrder(Vec<u32>),
}

struct AnsweredPart {
    part: PaddedOutputs,
    stamps: Stamps,
    batch_rows: u32,
    parameters: Option<Box<Parameters>>,
}

impl Assembly {
    /// A request in `runs` runs.
    pub(super) fn new(joining: Joining, mut responder: Responder, runs: usize) -> Arc<Self> {
        let (sink, ticket, stamps) = (responder.sink.clone(), responder.ticket, responder.stamps);
        let executions = responder.executions.take();
        let place = ArrayQueue::new(1);
        // There is room for one.
        let _ = place.push(responder);
        let left = AtomicUsize::new(runs);
        Arc::new(Self { joining, responder: place, sink, ticket, stamps, executions, parts: SegQueue::new(), left })
    }

    /// The responder of one run of some rows, in `width` places.
    pub(super) fn responder(self: &Arc<Self>, rows: Vec<usize>, width: u32) -> Responder {
        let sink = Arc::new(AssemblySink { assembly: Arc::clone(self), rows, width });
        let mut responder = Responder::new(sink, self.ticket, self.stamps);
        if let Some(executions) = &self.executions {
            responder.count_in(Arc::clone(executions));
        }
        responder
    }

    /// Returns true if no further run is needed: a run has failed, or the client has left.
    pub(super) fn is_over(&self) -> bool {
        if self.responder.is_empty() {
            return true;
        }
        let has_left = self.sink.as_ref().is_none_or(|sink| sink.has_left(self.ticket));
        if has_left {
            self.fail(departed(), None);
        }
        has_left
    }

    fn fail(&self, error: Error, answer: Option<(Stamps, u32)>) {
        let Some(mut responder) = self.responder.pop() else { return };
        let (stamps, batch_rows) = answer.unwrap_or((self.stamps, 0));
        responder.stamps = stamps;
        responder.set_batch(batch_rows, false);
        responder.send(Err(error));
    }

    fn handle_answer(&self, rows: &[usize], width: u32, answer: Answer) {
        let Answer { outputs, stamps, batch_rows, parameters, .. } = answer;
        match outputs {
            Err(error) => self.fail(error, Some((stamps, batch_rows))),
            Ok(outputs) => {
                let part = PaddedOutputs { rows: rows.to_vec(), width, outputs };
                self.parts.push(AnsweredPart { part, stamps, batch_rows, parameters });
                // Release and acquire: the last one sees the parts of all.
                if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    self.end();
                }
            }
        }
    }

    fn end(&self) {
        let Some(mut responder) = self.responder.pop() else { return };
        let mut answered: Vec<AnsweredPart> = std::iter::from_fn(|| self.parts.pop()).collect();
        let stamps = answered.iter().map(|part| part.stamps);
        let stamps = stamps.reduce(|one, other| Stamps {
            input_end: one.input_end.min(other.input_end),
            infer_end: one.infer_end.max(other.infer_end),
            output_end: one.output_end.max(other.output_end),
            ..one
        });
        responder.stamps = stamps.unwrap_or(self.stamps);
        responder.set_batch(answered.iter().map(|part| part.batch_rows).max().unwrap_or_default(), false);
        if let Some(parameters) = answered.iter_mut().find_map(|part| part.parameters.take()) {
            responder.set_parameters(*parameters);
        }
        let parts: Vec<_> = answered.into_iter().map(|part| part.part).collect();
        let joined = self.joining.join(parts);
        let apart = || Error::internal("the model's outputs for rows in several runs do not fit together");
        responder.send(joined.ok_or_else(apart));
    }
}

impl Joining {
    /// The outputs of all runs; `None` if they do not fit together.
    fn join(&self, mut parts: Vec<PaddedOutputs>) -> Option<Vec<Tensor>> {
        match self {
            Self::Padded { inputs, axes, rows } => inputs.join(&parts, axes, rows),
            Self::InOrder(rows) => {
                parts.sort_by_key(|part| part.rows.first().copied());
                let shares: Vec<_> = parts.into_iter().map(|part| part.outputs).collect();
                join_rows(&shares, rows)
            }
        }
    }
}

/// The error of a request whose client has left: no client reads it.
pub(super) fn departed() -> Error {
    Error::new(Code::Cancelled, "the client has left")
}

/// Takes the answer of one run.
struct AssemblySink {
    assembly: Arc<Assembly>,
    rows: Vec<usize>,
    width: u32,
}

impl AnswerSink for AssemblySink {
    fn push(&self, _: Ticket, answer: Answer) {
        self.assembly.handle_answer(&self.rows, self.width, answer);
    }

    /// Does nothing: the answer of the whole request wakes its shard.
    fn wake(&self) {}

    fn has_left(&self, ticket: Ticket) -> bool {
        self.assembly.sink.as_ref().is_none_or(|sink| sink.has_left(ticket))
    }
}
