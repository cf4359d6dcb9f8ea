//! Requests of iterative sequences between two runs. While such a request runs, an
//! [`IterationSink`] takes its answers in place of the completions, and returns it to the queue
//! when the model reschedules it. Any thread may answer; the queue learns of it when an instance
//! polls. Bounded by the slots: each sequence has one running request.

use std::sync::Arc;

use crate::completions::Completions;
use crate::model_queue::ModelQueue;
use crate::model_queue::batcher::EndedRequest;
use crate::model_queue::locked::{LockedQueue, RequestClaims};
use crate::parkings::Parkings;
use crate::queued_request::QueuedRequest;
use crate::sync::SegQueue;
use backend::{
    self, Answer, AnswerPart, OutputNeeds, Request, RequestDetails, Responder, SequenceRow, Ticket, is_answering,
    wake_afterwards,
};
use base::tensor::Tensor;
use base::time::{Instant, Stamps};
use model::SequenceMark;
use scheduler::sequence::RunId;

/// Requests that ended a run, until an instance polls.
pub(super) struct Iterations {
    released: SegQueue<ReleasedRequest>,
    parkings: Arc<Parkings>,
}

struct ReleasedRequest {
    flight: RunId,
    /// The request, if it is to run again.
    again: Option<QueuedRequest>,
}

/// Takes the answers of a request while it runs.
struct IterationSink {
    iterations: Arc<Iterations>,
    flight: RunId,
    /// The destination of its answers: its shard's completions, or a sink that keeps their order
    /// first.
    inner: Arc<dyn backend::AnswerSink>,
    /// From here on, the parts of the request when it is queued again.
    completions: Arc<Completions>,
    inputs: Vec<Tensor>,
    rows: u32,
    size: usize,
    level: u64,
    mark: Option<SequenceMark>,
    stamps: Stamps,
    output_needs: OutputNeeds,
    details: Option<Arc<RequestDetails>>,
    /// The stamps of its first run, if it ran before.
    first: Option<Stamps>,
}

impl Iterations {
    pub(super) fn new(parkings: &Arc<Parkings>) -> Self {
        Self { released: SegQueue::new(), parkings: Arc::clone(parkings) }
    }

    /// A run ended. An instance that answers within its run polls right afterwards; any other thread must wake the
    /// instances.
    fn release(&self, released: ReleasedRequest) {
        self.released.push(released);
        if !is_answering() {
            // All of them: the sequence is served by one instance, and this thread does not know which.
            self.parkings.wake_all();
        }
    }
}

impl ModelQueue {
    /// Takes back the requests that ended a run: those to run again into the batcher, the others out of it.
    pub(super) fn handle_released(&self, queue: &mut LockedQueue, now: Instant) {
        let Some(iterations) = self.sequences.as_ref().map(|sequences| &sequences.iterations) else { return };
        while let Some(ReleasedRequest { flight, again }) = iterations.released.pop() {
            let ended = queue.batcher.handle_released(flight, again, now, &mut RequestClaims(&self.admission));
            if let Some(EndedRequest { waiting, error }) = ended {
                self.refuse(waiting, error);
            }
        }
    }

    /// Returns a request of an iterative sequence, as it goes into a batch. `sink` keeps its answer
    /// in order, if the order matters.
    pub(super) fn iterate(
        &self,
        waiting: QueuedRequest,
        flight: RunId,
        sequence: Option<SequenceRow>,
        sink: Option<Arc<dyn backend::AnswerSink>>,
        batched: Instant,
    ) -> Request {
        let QueuedRequest {
            completions,
            ticket,
            inputs,
            rows,
            size,
            level,
            mark,
            stamps,
            output_needs,
            details,
            again,
        } = waiting;
        debug_assert!(mark.is_some(), "a request that may run again belongs to a sequence");
        let now = Stamps { batched, ..stamps };
        let first = again.as_ref().map(|again| again.stamps);
        let mut responder = again.unwrap_or_else(|| {
            let sink = sink.unwrap_or_else(|| Arc::clone(&completions) as Arc<dyn backend::AnswerSink>);
            Responder::new(sink, ticket, now)
        });
        responder.stamps = now;
        responder.output_needs = output_needs.clone();
        if let Some(sequences) = &self.sequences {
            let (iterations, inputs, details) = (Arc::clone(&sequences.iterations), inputs.clone(), details.clone());
            responder.answer_through(|inner| {
                Arc::new(IterationSink {
                    iterations,
                    flight,
                    inner,
                    completions,
                    inputs,
                    rows,
                    size,
                    level,
                    mark,
                    stamps,
                    output_needs,
                    details,
                    first,
                })
            });
        }
        Request { inputs, rows, responder, sequence, details }
    }
}

impl backend::AnswerSink for IterationSink {
    fn push(&self, ticket: Ticket, mut answer: Answer) {
        let first = Stamps { received: self.stamps.received, ..self.first.unwrap_or(answer.stamps) };
        let flight = self.flight;
        if answer.part == AnswerPart::Again {
            let again = Responder::new(Arc::clone(&self.inner), ticket, first);
            let is_end = self.mark.as_ref().is_some_and(|mark| mark.is_end);
            let mark = self.mark.as_ref().map(|mark| SequenceMark { id: mark.id.clone(), is_start: false, is_end });
            let waiting = QueuedRequest {
                completions: Arc::clone(&self.completions),
                ticket,
                inputs: self.inputs.clone(),
                rows: self.rows,
                size: self.size,
                level: self.level,
                mark,
                stamps: self.stamps,
                output_needs: self.output_needs.clone(),
                details: self.details.clone().map(RequestDetails::rescheduled),
                again: Some(again),
            };
            return self.iterations.release(ReleasedRequest { flight, again: Some(waiting) });
        }
        // Its queue duration is the one before its first run: the time between two runs counts as
        // the model's.
        (answer.stamps.batched, answer.stamps.input_end) = (first.batched, first.input_end);
        let is_last = answer.part != AnswerPart::More;
        self.inner.push(ticket, answer);
        wake_afterwards(Arc::clone(&self.inner));
        if is_last {
            self.iterations.release(ReleasedRequest { flight, again: None });
        }
    }

    /// Nothing to do: `push` wakes the shard, and `release` the instances.
    fn wake(&self) {}

    fn has_room(&self, ticket: Ticket) -> bool {
        self.inner.has_room(ticket)
    }

    fn has_left(&self, ticket: Ticket) -> bool {
        self.inner.has_left(ticket)
    }
}
