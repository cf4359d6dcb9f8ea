//! Where answers go that no client waits for: those of runs that this server makes by itself, when it loads
//! a model.

use std::sync::Arc;

use crossbeam_queue::SegQueue;

use crate::backend::{Answer, AnswerSink, Responder, Ticket};
use crate::runtime::clock;
use crate::time::Stamps;

/// Answers, in the order in which they came. Every responder has answered when a run is over: those of
/// our engines answer while they run, and one that is dropped answers with a failure.
#[derive(Default)]
pub struct InternalSink {
    answers: SegQueue<Answer>,
}

impl InternalSink {
    /// Who answers here the request with a number of a batch of so many rows, which begins now.
    pub fn responder(self: &Arc<Self>, index: u32, batch_rows: u32) -> Responder {
        let now = clock::now();
        let stamps = Stamps { received: now, batched: now, ..Stamps::default() };
        let ticket = Ticket { index, generation: 0 };
        let mut responder = Responder::new(Arc::clone(self) as Arc<dyn AnswerSink>, ticket, stamps);
        responder.set_batch(batch_rows, index == 0);
        responder
    }

    /// The next answer.
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
