//! Answers in the order in which batches took their requests (`preserve_ordering`): an early answer
//! is kept until all before it were sent. Sits between the instances of one model version and the
//! shards. Its lock is taken per answer, by instances only, and only if the configuration asks for
//! the order. A request that is refused while it waits has no turn yet, so no answer waits for it.

#![expect(clippy::disallowed_types, reason = "instances share the order; no shard takes the lock")]

use std::sync::{Arc, PoisonError};

use crate::sync::Mutex;
use backend::{self, Answer, AnswerPart, Ticket, wake_afterwards};
use base::limits::IN_FLIGHT_MAX;
use scheduler::{Ordering, ResponseTurn};

/// The order of one model version.
pub struct ResponseOrder {
    ordering: Mutex<Ordering<HeldAnswer>>,
}

/// An answer on its way to the shard that waits for it.
struct HeldAnswer {
    completions: Arc<dyn backend::AnswerSink>,
    ticket: Ticket,
    answer: Answer,
}

/// The sink of one request: passes its answers on when its turn has come.
struct OrderedSink {
    order: Arc<ResponseOrder>,
    turn: ResponseTurn,
    completions: Arc<dyn backend::AnswerSink>,
}

impl ResponseOrder {
    /// Creates an empty order, for `shards` shards: each has at most [`IN_FLIGHT_MAX`] requests,
    /// and each request one answer.
    pub fn new(shards: usize) -> Self {
        Self { ordering: Mutex::new(Ordering::new(shards.saturating_mul(IN_FLIGHT_MAX))) }
    }

    /// A batch took the next request: returns the sink that sends its answers to `completions` in
    /// turn.
    pub fn handle_request(self: &Arc<Self>, completions: Arc<dyn backend::AnswerSink>) -> Arc<dyn backend::AnswerSink> {
        let turn = self.ordering.lock().unwrap_or_else(PoisonError::into_inner).handle_request();
        Arc::new(OrderedSink { order: Arc::clone(self), turn, completions })
    }

    fn handle_answer(&self, turn: ResponseTurn, held: HeldAnswer) {
        let part = held.answer.part;
        let mut ordering = self.ordering.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(held) = ordering.handle_response(turn, held) {
            // Over the bound it goes out of turn: better than no answer.
            held.send();
        }
        if part != AnswerPart::More {
            ordering.handle_finished(turn);
        }
        // Sent under the lock: without it another instance could send the next answer first.
        while let Some(held) = ordering.poll_response() {
            held.send();
        }
    }
}

impl HeldAnswer {
    fn send(self) {
        self.completions.push(self.ticket, self.answer);
        wake_afterwards(self.completions);
    }
}

impl backend::AnswerSink for OrderedSink {
    fn push(&self, ticket: Ticket, answer: Answer) {
        self.order.handle_answer(self.turn, HeldAnswer { completions: Arc::clone(&self.completions), ticket, answer });
    }

    /// Nothing to do: `HeldAnswer::send` wakes the shards.
    fn wake(&self) {}

    fn has_room(&self, ticket: Ticket) -> bool {
        self.completions.has_room(ticket)
    }

    fn has_left(&self, ticket: Ticket) -> bool {
        self.completions.has_left(ticket)
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::completions::Completions;
    use crate::request_slots::RequestSlots;
    use backend::{Responder, answering};
    use base::time::Stamps;

    #[test]
    fn answers_reach_their_shards_in_turn_whichever_instance_is_first() {
        let order = Arc::new(ResponseOrder::new(2));
        let shards: [Rc<RequestSlots>; 2] =
            std::array::from_fn(|_| Rc::new(RequestSlots::new(Arc::new(Completions::new()))));
        let mut responders: Vec<_> = (0..4)
            .map(|index| {
                let request_slots = &shards[index % 2];
                let ticket = request_slots.open().unwrap();
                std::mem::forget(request_slots.pending(ticket, || ()));
                assert!(request_slots.completions().claim(ticket));
                let completions = Arc::clone(request_slots.completions()) as Arc<dyn backend::AnswerSink>;
                Some(Responder::new(order.handle_request(completions), ticket, Stamps::default()))
            })
            .collect();
        let mut answer = |index: usize| {
            answering(|| responders[index].take().unwrap().send(Ok(Vec::new())));
            shards.each_ref().map(|request_slots| request_slots.drain())
        };
        assert_eq!(answer(2), [0, 0], "held for the first");
        assert_eq!(answer(1), [0, 0]);
        assert_eq!(answer(0), [2, 1], "and all that were ready behind it");
        drop(responders);
        assert_eq!(shards[1].drain(), 1, "what an engine forgets has its turn too");
    }
}
