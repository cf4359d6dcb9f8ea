//! Sink for the server's own runs: warm-up, the measurement of a model, the check of a GPU against the CPU.

use std::sync::Arc;

use crossbeam_queue::SegQueue;

use crate::backend::{Answer, AnswerSink, Responder, Ticket};
use crate::runtime::clock;
use crate::time::Stamps;

/// A queue of answers in order of arrival. When a run has returned, every responder has answered:
/// engines answer during the run, and a dropped responder answers with a failure. So no task has to
/// be woken.
#[derive(Default)]
pub struct InternalSink {
    answers: SegQueue<Answer>,
}

impl InternalSink {
    /// Returns a responder that answers into this sink, for request `index` of a batch of
    /// `batch_rows` rows.
    pub fn responder(self: &Arc<Self>, index: u32, batch_rows: u32) -> Responder {
        let now = clock::now();
        let stamps = Stamps { received: now, batched: now, ..Stamps::default() };
        let ticket = Ticket { index, generation: 0 };
        let mut responder = Responder::new(Arc::clone(self) as Arc<dyn AnswerSink>, ticket, stamps);
        responder.set_batch(batch_rows, index == 0);
        responder
    }

    /// Takes the oldest answer.
    pub fn pop(&self) -> Option<Answer> {
        self.answers.pop()
    }
}

impl AnswerSink for InternalSink {
    fn push(&self, _ticket: Ticket, answer: Answer) {
        self.answers.push(answer);
    }

    fn wake(&self) {}
}
