//! The state that one shard shares with the workers: the claims on its requests, the tensors of
//! those that wait, and the answers on their way back. Any thread may push an answer. Bounded by
//! the tickets: a shard has [`IN_FLIGHT_MAX`] of them, and each request has one answer, but for
//! decoupled models.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Waker;

use crate::limits::RESPONSES_UNREAD_MAX;
use crate::sync::{AtomicCell, AtomicU64, AtomicWaker, SegQueue};
use backend::{self, Answer, AnswerPart, RequestDetails, Ticket};
use base::limits::IN_FLIGHT_MAX;
use base::tensor::Tensor;

/// The claims, tensors and answers of one shard's requests. Ticket indices are the indices of all its tables.
pub struct Completions {
    answers: SegQueue<(Ticket, Answer)>,
    /// A [`ClaimState`] in the lower two bits, the ticket's generation above them: one
    /// compare-and-swap decides the owner of exactly one request.
    claims: Box<[AtomicU64]>,
    /// The tensors and details of queued requests. The thread that settles the claim takes them: a
    /// shard that withdraws a request frees them at once, however long the entry stays in the
    /// queue.
    inputs: Box<[AtomicCell<Option<Box<BoxedInputs>>>]>,
    /// Answers of decoupled models that the client has not read yet. Only a hint to the model to slow down, so relaxed.
    unread: Box<[AtomicU32]>,
    waker: AtomicWaker,
}

/// Under loom the assertions below are off: each load would be one more step to interleave, and the model check tests
/// the same promises itself.
const IS_INTERLEAVED: bool = cfg!(feature = "loom");

/// Boxed, because an atomic cell swaps at most a pointer without a lock.
struct BoxedInputs {
    inputs: Vec<Tensor>,
    details: Option<Arc<RequestDetails>>,
}

/// The owner of a request. `Waiting` becomes `Taken` (by a batch) or `Dropped` (by its shard),
/// once; `Taken` may become `Left`. The ticket's generation tells a request from earlier ones with
/// the same index, so a late compare-and-swap for one of those fails.
#[derive(Clone, Copy)]
#[repr(u64)]
enum ClaimState {
    Dropped = 0,
    Waiting = 1,
    Taken = 2,
    /// Taken, and its client has left.
    Left = 3,
}

impl ClaimState {
    /// Returns true if the request before this one at the same index was taken or dropped.
    const fn is_settled(before: u64, ticket: Ticket) -> bool {
        before & 0b11 != Self::Waiting as u64 && before >> 2 != ticket.generation as u64
    }

    const fn of(self, ticket: Ticket) -> u64 {
        ((ticket.generation as u64) << 2) | self as u64
    }
}

impl Completions {
    /// Creates completions without requests, for [`IN_FLIGHT_MAX`] tickets.
    pub fn new() -> Self {
        Self::with_slots(IN_FLIGHT_MAX)
    }

    /// Creates completions without requests, for `count` tickets.
    pub(super) fn with_slots(count: usize) -> Self {
        let claims = (0..count).map(|_| AtomicU64::new(0)).collect();
        let inputs = (0..count).map(|_| AtomicCell::new(None)).collect();
        let unread = (0..count).map(|_| AtomicU32::new(0)).collect();
        Self { answers: SegQueue::new(), claims, inputs, unread, waker: AtomicWaker::new() }
    }

    /// A new request begins to wait. Called by the shard, before the request is submitted.
    pub fn open(&self, ticket: Ticket) {
        if let Some(claim) = self.claims.get(ticket.index as usize) {
            debug_assert!(
                IS_INTERLEAVED || ClaimState::is_settled(claim.load(Ordering::Relaxed), ticket),
                "an index is used again only after its claim was settled"
            );
            // Release: an instance that reads `Waiting` also sees the shard's earlier writes for
            // this request.
            claim.store(ClaimState::Waiting.of(ticket), Ordering::Release);
        }
        if let Some(unread) = self.unread.get(ticket.index as usize) {
            unread.store(0, Ordering::Relaxed);
        }
    }

    /// Takes the request into a batch; false if its shard withdrew it.
    pub fn claim(&self, ticket: Ticket) -> bool {
        self.settle(ticket, ClaimState::Taken)
    }

    /// Takes the request back and frees its tensors and details; false if a batch has it, so that an answer will come.
    pub fn withdraw(&self, ticket: Ticket) -> bool {
        let is_withdrawn = self.settle(ticket, ClaimState::Dropped);
        if is_withdrawn {
            drop(self.take_inputs(ticket));
        }
        is_withdrawn
    }

    /// The request is about to be queued with these tensors and details. Called by its shard.
    pub fn put_inputs(&self, ticket: Ticket, inputs: Vec<Tensor>, details: Option<Arc<RequestDetails>>) {
        debug_assert!(IS_INTERLEAVED || self.is_waiting(ticket), "it was opened, and no batch can have claimed it yet");
        let has_any = !inputs.is_empty() || details.is_some();
        if let Some(place) = self.inputs.get(ticket.index as usize).filter(|_| has_any) {
            place.store(Some(Box::new(BoxedInputs { inputs, details })));
        }
    }

    /// Returns the tensors and details of a request that was queued, for the thread that settled
    /// its claim.
    pub fn take_inputs(&self, ticket: Ticket) -> (Vec<Tensor>, Option<Arc<RequestDetails>>) {
        debug_assert!(IS_INTERLEAVED || !self.is_waiting(ticket), "they are for whoever has settled the claim");
        let place = self.inputs.get(ticket.index as usize);
        place.and_then(AtomicCell::take).map_or_else(Default::default, |boxed| (boxed.inputs, boxed.details))
    }

    /// The client of a request that a batch has gives up on it.
    pub fn leave(&self, ticket: Ticket) {
        if let Some(claim) = self.claims.get(ticket.index as usize) {
            let (taken, left) = (ClaimState::Taken.of(ticket), ClaimState::Left.of(ticket));
            // It fails if the request is finished and its ticket reused: then there is nothing to
            // leave.
            let _ = claim.compare_exchange(taken, left, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Returns true if the request still waits. A hint: only [`Self::claim`] decides.
    pub fn is_waiting(&self, ticket: Ticket) -> bool {
        let claim = self.claims.get(ticket.index as usize);
        claim.is_some_and(|claim| claim.load(Ordering::Acquire) == ClaimState::Waiting.of(ticket))
    }

    /// The client has read one of several answers.
    pub fn handle_read(&self, ticket: Ticket) {
        if let Some(unread) = self.unread.get(ticket.index as usize) {
            let one_less = |unread: u32| unread.checked_sub(1);
            let _ = unread.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        }
    }

    /// Returns the next answer that came.
    pub fn poll_answer(&self) -> Option<(Ticket, Answer)> {
        self.answers.pop()
    }

    /// Sets the task to wake when an answer comes. The caller polls once more afterwards: an answer
    /// that came just before wakes no task.
    pub fn register(&self, waker: &Waker) {
        self.waker.register(waker);
    }

    fn settle(&self, ticket: Ticket, claim: ClaimState) -> bool {
        // The one place where exactly-once is decided: of a worker that claims and a shard that withdraws, one wins.
        let (waiting, settled) = (ClaimState::Waiting.of(ticket), claim.of(ticket));
        self.claims
            .get(ticket.index as usize)
            .is_some_and(|have| have.compare_exchange(waiting, settled, Ordering::AcqRel, Ordering::Acquire).is_ok())
    }
}

impl Default for Completions {
    fn default() -> Self {
        Self::new()
    }
}

impl backend::AnswerSink for Completions {
    fn push(&self, ticket: Ticket, mut answer: Answer) {
        if answer.part == AnswerPart::Again {
            (answer.part, answer.outputs) = (AnswerPart::Last, Err(backend::reschedule_refused()));
        }
        if answer.part == AnswerPart::More
            && let Some(unread) = self.unread.get(ticket.index as usize)
        {
            unread.fetch_add(1, Ordering::Relaxed);
        }
        self.answers.push((ticket, answer));
    }

    /// The first thread to wake takes the shard's waker; the others find none, which costs no system call.
    fn wake(&self) {
        self.waker.wake();
    }

    fn has_room(&self, ticket: Ticket) -> bool {
        let unread = self.unread.get(ticket.index as usize);
        unread.is_none_or(|unread| unread.load(Ordering::Relaxed) < RESPONSES_UNREAD_MAX)
    }

    fn has_left(&self, ticket: Ticket) -> bool {
        let claim = self.claims.get(ticket.index as usize);
        claim.is_none_or(|claim| claim.load(Ordering::Relaxed) != ClaimState::Taken.of(ticket))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_taken_or_dropped_never_both_and_never_twice() {
        let completions = Completions::new();
        let ticket = Ticket { index: 3, generation: 1 };
        assert!(!completions.claim(ticket), "nothing waits yet");
        completions.open(ticket);
        assert!(completions.is_waiting(ticket));
        assert!(completions.claim(ticket));
        assert!(!completions.claim(ticket) && !completions.withdraw(ticket) && !completions.is_waiting(ticket));

        let next = Ticket { index: 3, generation: 2 };
        completions.open(next);
        assert!(!completions.claim(ticket) && !completions.withdraw(ticket), "an old ticket touches no new request");
        assert!(completions.withdraw(next) && !completions.claim(next));
    }

    #[test]
    fn tensors_and_details_are_taken_once_and_are_free_when_the_request_is_withdrawn() {
        let completions = Completions::with_slots(1);
        let details = Arc::new(RequestDetails::default());
        let ticket = |generation| Ticket { index: 0, generation };
        completions.open(ticket(1));
        completions.put_inputs(ticket(1), Vec::new(), Some(Arc::clone(&details)));
        assert!(completions.claim(ticket(1)));
        assert_eq!(completions.take_inputs(ticket(1)), (Vec::new(), Some(Arc::clone(&details))));
        assert_eq!(completions.take_inputs(ticket(1)), (Vec::new(), None));
        completions.open(ticket(2));
        completions.put_inputs(ticket(2), Vec::new(), Some(Arc::clone(&details)));
        assert_eq!(Arc::strong_count(&details), 2);
        assert!(completions.withdraw(ticket(2)));
        assert_eq!(Arc::strong_count(&details), 1, "nobody holds them any more");
    }

    #[test]
    fn two_threads_that_race_for_a_request_agree_on_who_has_it() {
        let completions = Completions::new();
        for generation in 1..2_000 {
            let ticket = Ticket { index: 0, generation };
            completions.open(ticket);
            let (claimed, withdrawn) = std::thread::scope(|scope| {
                let claim = scope.spawn(|| completions.claim(ticket));
                let withdrawn = completions.withdraw(ticket);
                (claim.join().unwrap(), withdrawn)
            });
            assert!(claimed != withdrawn, "generation {generation}");
        }
    }
}
