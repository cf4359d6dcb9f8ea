//! Requests of iterative sequences between two runs: what stands in for the completions of one while it
//! runs, and brings it back to the queue when its model wants to see it again. Any thread may say so;
//! the queue hears of it when an instance looks. Bounded by the slots: a sequence has one request that
//! runs.

use std::sync::Arc;

use crate::backend::{
    self, Answer, AnswerPart, OutputNeeds, Request, Responder, SequenceRow, Ticket, is_answering, wake_afterwards,
};
use crate::model::SequenceMark;
use crate::queue::completions::Completions;
use crate::queue::model_queue::batcher::EndedRequest;
use crate::queue::model_queue::{LockedQueue, ModelQueue, Parking, QueuedRequest, RequestClaims};
use crate::queue::sync::{SegQueue, fence};
use crate::scheduler::sequence::RunId;
use crate::tensor::Tensor;
use crate::time::{Instant, Stamps};

/// What became of requests that ran, until an instance hears of it.
pub(super) struct Iterations {
    released: SegQueue<ReleasedRequest>,
    parkings: Box<[Arc<Parking>]>,
}

struct ReleasedRequest {
    flight: RunId,
    /// The request, where it is to run again.
    again: Option<QueuedRequest>,
}

/// Takes the answers of a request while it runs.
struct IterationSink {
    iterations: Arc<Iterations>,
    flight: RunId,
    /// Where they go: the shard's own, or what keeps the order of answers before it.
    inner: Arc<dyn backend::AnswerSink>,
    /// What makes the request anew.
    completions: Arc<Completions>,
    inputs: Vec<Tensor>,
    rows: u32,
    size: usize,
    level: u64,
    mark: Option<SequenceMark>,
    stamps: Stamps,
    /// Those of its first run, if this is another.
    first: Option<Stamps>,
}

impl Iterations {
    pub(super) fn new(parkings: &[Arc<Parking>]) -> Self {
        Self { released: SegQueue::new(), parkings: parkings.into() }
    }

    /// Nobody may be looking: an instance that runs looks afterwards, another thread must see to it.
    fn release(&self, released: ReleasedRequest) {
        self.released.push(released);
        if !is_answering() {
            self.wake();
        }
    }

    /// Has all instances look.
    pub(super) fn wake(&self) {
        // Dekker's handshake with `ModelQueue::next_batch`.
        fence(std::sync::atomic::Ordering::SeqCst);
        for parking in &self.parkings {
            parking.unpark();
        }
    }
}

impl ModelQueue {
    /// Hears what became of requests that ran.
    pub(super) fn handle_released(&self, locked: &mut LockedQueue, now: Instant) {
        let Some(iterations) = self.sequences.as_ref().map(|own| &own.iterations) else { return };
        while let Some(ReleasedRequest { flight, again }) = iterations.released.pop() {
            let over = locked.batcher.handle_released(flight, again, now, &mut RequestClaims(self));
            if let Some(EndedRequest { waiting, error }) = over {
                self.refuse(waiting, error);
            }
        }
    }

    /// A request of an iterative sequence, on its way into a batch. `turn` is the way by which its answer
    /// keeps its order, where it does.
    pub(super) fn iterate(
        &self,
        waiting: QueuedRequest,
        flight: RunId,
        sequence: Option<SequenceRow>,
        turn: Option<Arc<dyn backend::AnswerSink>>,
        batched: Instant,
    ) -> Request {
        let QueuedRequest { completions, ticket, inputs, rows, size, level, mark, stamps, again, .. } = waiting;
        debug_assert!(mark.is_some(), "a request that may run again is of a sequence");
        let now = Stamps { batched, ..stamps };
        let first = again.as_ref().map(|again| again.stamps);
        let mut responder = again.unwrap_or_else(|| {
            let own = turn.unwrap_or_else(|| Arc::clone(&completions) as Arc<dyn backend::AnswerSink>);
            Responder::new(own, ticket, now)
        });
        responder.stamps = now;
        if let Some(own) = &self.sequences {
            let (iterations, inputs) = (Arc::clone(&own.iterations), inputs.clone());
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
                    first,
                })
            });
        }
        Request { inputs, rows, responder, sequence }
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
                again: Some(again),
                output_needs: OutputNeeds::default(),
            };
            return self.iterations.release(ReleasedRequest { flight, again: Some(waiting) });
        }
        // It waited once: what lies between its first run and its last is the model's own time.
        (answer.stamps.batched, answer.stamps.input_end) = (first.batched, first.input_end);
        let is_over = answer.part != AnswerPart::More;
        self.inner.push(ticket, answer);
        wake_afterwards(Arc::clone(&self.inner));
        if is_over {
            self.iterations.release(ReleasedRequest { flight, again: None });
        }
    }

    /// The shard is woken as it is pushed, and the queue as the request is released.
    fn wake(&self) {}

    fn has_room(&self, ticket: Ticket) -> bool {
        self.inner.has_room(ticket)
    }

    fn has_left(&self, ticket: Ticket) -> bool {
        self.inner.has_left(ticket)
    }
}
