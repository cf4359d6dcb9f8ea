//! The requests of one shard that wait for an answer. A connection's task awaits a [`PendingAnswer`]; the shard's
//! completion task drains the completions that workers push, and completes it. A ticket names a slot and its
//! generation, so that a late answer never reaches the slot's next request.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::completions::Completions;
use crate::limits::{RESPONSE_COST, RESPONSES_BYTES_MAX};
use backend::{Answer, AnswerPart, Ticket};
use base::error::{Code, Error};
use base::limits::IN_FLIGHT_MAX;

/// The slots of one shard's requests; at most [`IN_FLIGHT_MAX`] are in use.
pub struct RequestSlots {
    completions: Arc<Completions>,
    table: RefCell<SlotTable>,
}

#[derive(Default)]
struct SlotTable {
    slots: Vec<RequestSlot>,
    free: Vec<u32>,
}

struct RequestSlot {
    generation: u32,
    state: SlotState,
}

enum SlotState {
    Free,
    /// No answer yet; with the waker of the task that waits, once it does.
    Open(Option<Waker>),
    Answered(Answer),
    /// Answers of a decoupled model that were not taken yet.
    Parts(Box<PartQueue>),
    /// The task was dropped while a batch has the request: the slot stays in use until the answer came and was
    /// discarded.
    Abandoned,
}

/// The answers of a decoupled model that were not taken yet, in order.
#[derive(Default)]
struct PartQueue {
    answers: VecDeque<Answer>,
    /// Bytes of their tensors and parameters.
    size: usize,
    /// True if the limit was exceeded: further answers are discarded.
    is_over: bool,
    waker: Option<Waker>,
}

/// A sink for the answers of a decoupled model, all but the last.
pub trait PartSink {
    /// Returns true if it takes another answer now. If not, it wakes the task when it does.
    fn has_room(&self) -> bool;

    /// Takes an answer that is not the last.
    fn take(&self, answer: Answer);
}

impl PartQueue {
    fn push(&mut self, mut answer: Answer) {
        if self.is_over {
            return;
        }
        let size = size(&answer);
        if self.size.saturating_add(size) > RESPONSES_BYTES_MAX {
            let text =
                format!("the client leaves more than {RESPONSES_BYTES_MAX} bytes of this request's responses unread");
            answer.outputs = Err(Error::new(Code::Unavailable, text));
            answer.part = AnswerPart::Last;
            self.is_over = true;
        }
        self.size += size;
        self.answers.push_back(answer);
    }

    fn pop(&mut self) -> Option<Answer> {
        let answer = self.answers.pop_front()?;
        self.size = self.size.saturating_sub(size(&answer));
        Some(answer)
    }
}

/// Bytes that a waiting answer counts as.
fn size(answer: &Answer) -> usize {
    let parameters = answer.parameters.as_ref().map(|parameters| parameters.size());
    let outputs = answer.outputs.iter().flatten().map(|output| output.contents.len());
    outputs.chain(parameters).fold(RESPONSE_COST, usize::saturating_add)
}

impl RequestSlots {
    /// An empty table whose answers arrive through `completions`.
    pub fn new(completions: Arc<Completions>) -> Self {
        Self { completions, table: RefCell::default() }
    }

    /// The number of slots with a request.
    #[cfg(any(test, feature = "testing"))]
    pub fn in_use(&self) -> usize {
        let table = self.table.borrow();
        table.slots.len() - table.free.len()
    }

    /// The queue that answers arrive through.
    pub const fn completions(&self) -> &Arc<Completions> {
        &self.completions
    }

    /// A ticket for a new request, or `None` when all slots are in use.
    pub fn open(&self) -> Option<Ticket> {
        let mut table = self.table.borrow_mut();
        let index = match table.free.pop() {
            Some(index) => index,
            None if table.slots.len() < IN_FLIGHT_MAX => {
                table.slots.push(RequestSlot { generation: 0, state: SlotState::Free });
                u32::try_from(table.slots.len() - 1).ok()?
            }
            None => return None,
        };
        let slot = table.slots.get_mut(index as usize)?;
        slot.generation = slot.generation.wrapping_add(1);
        slot.state = SlotState::Open(None);
        let ticket = Ticket { index, generation: slot.generation };
        self.completions.open(ticket);
        Some(ticket)
    }

    /// Waits for the answer of a ticket. Dropped early, it withdraws the request and calls `withdrawn`, unless a batch
    /// already has it.
    pub fn pending(self: &Rc<Self>, ticket: Ticket, withdrawn: impl FnOnce() + 'static) -> PendingAnswer {
        PendingAnswer { request_slots: Rc::clone(self), ticket, withdrawn: Some(Box::new(withdrawn)), sink: None }
    }

    /// Delivers the answers that have arrived; returns their number.
    pub fn drain(&self) -> usize {
        let mut count = 0;
        while let Some((ticket, answer)) = self.completions.poll_answer() {
            self.complete(ticket, answer);
            count += 1;
        }
        count
    }

    /// Drains, and registers the waker for later answers; returns true if any had arrived.
    pub fn drain_and_register(&self, waker: &Waker) -> bool {
        let had_answers = self.drain() > 0;
        loop {
            self.completions.register(waker);
            // An answer that was pushed before the waker was registered has woken no task: drain again.
            if self.drain() == 0 {
                return had_answers;
            }
        }
    }

    /// Frees the ticket of a request that was never submitted.
    pub fn release(&self, ticket: Ticket) {
        self.withdraw(ticket);
    }

    /// Withdraws a request; false if a batch has it, and its answer will come.
    fn withdraw(&self, ticket: Ticket) -> bool {
        let is_withdrawn = self.completions.withdraw(ticket);
        if is_withdrawn {
            self.table.borrow_mut().free(ticket);
        }
        is_withdrawn
    }

    fn complete(&self, ticket: Ticket, answer: Answer) {
        let mut table = self.table.borrow_mut();
        let Some(slot) = table.slot(ticket) else { return };
        match std::mem::replace(&mut slot.state, SlotState::Free) {
            SlotState::Open(waker) => {
                slot.state = if answer.part == AnswerPart::More {
                    let mut parts = PartQueue::default();
                    parts.push(answer);
                    SlotState::Parts(Box::new(parts))
                } else {
                    SlotState::Answered(answer)
                };
                drop(table);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            SlotState::Parts(mut parts) => {
                parts.push(answer);
                let waker = parts.waker.take();
                slot.state = SlotState::Parts(parts);
                drop(table);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            SlotState::Abandoned if answer.part == AnswerPart::More => slot.state = SlotState::Abandoned,
            SlotState::Abandoned => table.free(ticket),
            other => slot.state = other,
        }
    }

    fn poll_answer(&self, ticket: Ticket, waker: &Waker) -> Poll<Answer> {
        let mut table = self.table.borrow_mut();
        let Some(slot) = table.slot(ticket) else { return Poll::Pending };
        if let SlotState::Answered(_) = slot.state
            && let SlotState::Answered(answer) = std::mem::replace(&mut slot.state, SlotState::Free)
        {
            table.free(ticket);
            return Poll::Ready(answer);
        }
        if let SlotState::Parts(parts) = &mut slot.state {
            let Some(answer) = parts.pop() else {
                parts.waker = Some(waker.clone());
                return Poll::Pending;
            };
            if answer.part == AnswerPart::More {
                self.completions.handle_read(ticket);
            } else {
                // If the limit cut the answers off, this tells the backend that the client has
                // left.
                self.completions.leave(ticket);
                table.free(ticket);
            }
            return Poll::Ready(answer);
        }
        if let SlotState::Open(have) = &mut slot.state
            && !have.as_ref().is_some_and(|have| have.will_wake(waker))
        {
            *have = Some(waker.clone());
        }
        Poll::Pending
    }

    /// The waiting task was dropped. True if the request was withdrawn before a batch had it.
    fn abandon(&self, ticket: Ticket) -> bool {
        let is_withdrawn = self.completions.withdraw(ticket);
        let mut table = self.table.borrow_mut();
        let Some(slot) = table.slot(ticket) else { return is_withdrawn };
        let is_over = match &slot.state {
            SlotState::Answered(_) => true,
            SlotState::Parts(parts) => parts.answers.back().is_some_and(|last| last.part != AnswerPart::More),
            SlotState::Abandoned | SlotState::Free | SlotState::Open(_) => false,
        };
        if is_withdrawn || is_over {
            table.free(ticket);
        } else {
            slot.state = SlotState::Abandoned;
            self.completions.leave(ticket);
        }
        is_withdrawn
    }
}

impl SlotTable {
    fn slot(&mut self, ticket: Ticket) -> Option<&mut RequestSlot> {
        self.slots.get_mut(ticket.index as usize).filter(|slot| slot.generation == ticket.generation)
    }

    fn free(&mut self, ticket: Ticket) {
        if let Some(slot) = self.slot(ticket) {
            slot.state = SlotState::Free;
            self.free.push(ticket.index);
        }
    }
}

/// The future answer of one request.
pub struct PendingAnswer {
    request_slots: Rc<RequestSlots>,
    ticket: Ticket,
    withdrawn: Option<Box<dyn FnOnce()>>,
    sink: Option<Rc<dyn PartSink>>,
}

impl PendingAnswer {
    /// Adds the sink for all answers but the last.
    pub fn with_sink(mut self, sink: Option<Rc<dyn PartSink>>) -> Self {
        self.sink = sink;
        self
    }

    /// Withdraws the request if no batch has it yet, and returns true: then no answer will come and this must not be
    /// awaited. Otherwise the answer will come.
    pub fn withdraw(&mut self) -> bool {
        let is_withdrawn = self.withdrawn.is_some() && self.request_slots.withdraw(self.ticket);
        if is_withdrawn && let Some(withdrawn) = self.withdrawn.take() {
            withdrawn();
        }
        is_withdrawn
    }
}

impl Future for PendingAnswer {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        loop {
            if self.sink.as_ref().is_some_and(|sink| !sink.has_room()) {
                return Poll::Pending;
            }
            let Poll::Ready(answer) = self.request_slots.poll_answer(self.ticket, context.waker()) else {
                return Poll::Pending;
            };
            if answer.part != AnswerPart::More {
                self.withdrawn = None;
                return Poll::Ready(answer);
            }
            if let Some(sink) = &self.sink {
                sink.take(answer);
            }
        }
    }
}

impl Drop for PendingAnswer {
    fn drop(&mut self) {
        if let Some(withdrawn) = self.withdrawn.take()
            && self.request_slots.abandon(self.ticket)
        {
            withdrawn();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use backend::{AnswerSink as _, Responder};
    use base::error::Error;
    use base::time::Stamps;

    fn request_slots() -> Rc<RequestSlots> {
        Rc::new(RequestSlots::new(Arc::new(Completions::new())))
    }

    fn poll(pending: &mut PendingAnswer) -> Poll<Answer> {
        Pin::new(pending).poll(&mut Context::from_waker(Waker::noop()))
    }

    fn answer(request_slots: &RequestSlots, ticket: Ticket) {
        let completions = Arc::clone(request_slots.completions());
        Responder::new(completions, ticket, Stamps::default()).send(Err(Error::internal("x")));
    }

    #[test]
    fn an_answer_reaches_only_the_task_that_waits_for_it() {
        let request_slots = request_slots();
        let (one, two) = (request_slots.open().unwrap(), request_slots.open().unwrap());
        let (mut first, mut second) = (request_slots.pending(one, || ()), request_slots.pending(two, || ()));
        assert!(request_slots.completions().claim(two));
        answer(&request_slots, two);
        assert_eq!(request_slots.drain(), 1);
        assert!(poll(&mut first).is_pending());
        assert!(poll(&mut second).is_ready());
    }

    /// A sink with room for a number of answers.
    struct Taker {
        room: Cell<usize>,
        taken: Cell<usize>,
    }

    impl PartSink for Taker {
        fn has_room(&self) -> bool {
            self.room.get() > 0
        }

        fn take(&self, answer: Answer) {
            assert_eq!(answer.part, AnswerPart::More);
            self.room.set(self.room.get() - 1);
            self.taken.set(self.taken.get() + 1);
        }
    }

    fn output(size: usize) -> Vec<base::tensor::Tensor> {
        let (datatype, shape) = (base::tensor::Datatype::Uint8, [size as i64].into_iter().collect());
        vec![base::tensor::Tensor { datatype, shape, contents: vec![0; size].into() }]
    }

    #[test]
    fn answers_are_taken_while_the_sink_has_room_and_the_last_ends_the_request() {
        let request_slots = request_slots();
        let ticket = request_slots.open().unwrap();
        let sink = Rc::new(Taker { room: Cell::new(2), taken: Cell::new(0) });
        let mut pending = request_slots.pending(ticket, || ()).with_sink(Some(Rc::clone(&sink) as Rc<dyn PartSink>));
        assert!(request_slots.completions().claim(ticket));
        let mut responder =
            Responder::new(Arc::clone(request_slots.completions()) as Arc<_>, ticket, Stamps::default());
        (0..3).for_each(|_| responder.send_more(output(1)));
        request_slots.drain();
        assert!(poll(&mut pending).is_pending());
        assert_eq!(sink.taken.get(), 2);
        for _ in 3..crate::limits::RESPONSES_UNREAD_MAX + 2 {
            assert!(responder.has_room());
            responder.send_more(output(1));
        }
        assert!(!responder.has_room(), "the client reads nothing");
        request_slots.drain();
        sink.room.set(9_999);
        assert!(poll(&mut pending).is_pending());
        assert!(responder.has_room() && !responder.has_left());
        responder.end();
        request_slots.drain();
        let Poll::Ready(last) = poll(&mut pending) else { panic!("it is over") };
        assert_eq!((last.part, request_slots.open().unwrap().index), (AnswerPart::End, ticket.index));
    }

    #[test]
    fn a_model_that_answers_without_end_is_cut_off_at_the_limit() {
        let request_slots = request_slots();
        let ticket = request_slots.open().unwrap();
        let sink = Rc::new(Taker { room: Cell::new(0), taken: Cell::new(0) });
        let mut pending = request_slots.pending(ticket, || ()).with_sink(Some(Rc::clone(&sink) as Rc<dyn PartSink>));
        assert!(request_slots.completions().claim(ticket));
        let mut responder =
            Responder::new(Arc::clone(request_slots.completions()) as Arc<_>, ticket, Stamps::default());
        (0..3).for_each(|_| responder.send_more(output(RESPONSES_BYTES_MAX / 2 - RESPONSE_COST)));
        request_slots.drain();
        sink.room.set(9);
        let Poll::Ready(last) = poll(&mut pending) else { panic!("it is over") };
        assert_eq!((last.part, sink.taken.get()), (AnswerPart::Last, 2));
        assert!(last.outputs.unwrap_err().text().contains("bytes of this request's responses unread"));
        assert!(responder.has_left());
        let again = request_slots.open().unwrap();
        responder.send_more(output(1));
        drop(responder);
        request_slots.drain();
        assert!(poll(&mut request_slots.pending(again, || ())).is_pending(), "a late answer is discarded");
    }

    #[test]
    fn a_task_dropped_between_two_answers_frees_its_slot_after_the_last() {
        let request_slots = request_slots();
        let ticket = request_slots.open().unwrap();
        let pending = request_slots.pending(ticket, || panic!("a batch has it"));
        assert!(request_slots.completions().claim(ticket));
        let mut responder =
            Responder::new(Arc::clone(request_slots.completions()) as Arc<_>, ticket, Stamps::default());
        responder.send_more(output(1));
        request_slots.drain();
        drop(pending);
        assert!(responder.has_left());
        responder.send_more(output(1));
        request_slots.drain();
        assert_ne!(request_slots.open().unwrap().index, ticket.index);
        responder.end();
        request_slots.drain();
        assert_eq!(request_slots.open().unwrap().index, ticket.index);
    }

    #[test]
    fn a_queued_request_is_withdrawn_when_its_task_is_dropped() {
        let request_slots = request_slots();
        let withdrawn = Rc::new(Cell::new(0));
        let counter = Rc::clone(&withdrawn);
        let ticket = request_slots.open().unwrap();
        drop(request_slots.pending(ticket, move || counter.set(counter.get() + 1)));
        assert_eq!(withdrawn.get(), 1);
        assert!(!request_slots.completions().claim(ticket));
    }

    #[test]
    fn a_queued_request_is_withdrawn_once_and_one_in_a_batch_never() {
        let request_slots = request_slots();
        let (waits, runs) = (request_slots.open().unwrap(), request_slots.open().unwrap());
        let count = Rc::new(Cell::new(0));
        let counter = Rc::clone(&count);
        let mut first = request_slots.pending(waits, move || counter.set(counter.get() + 1));
        let mut second = request_slots.pending(runs, || panic!("a batch has it"));
        assert!(request_slots.completions().claim(runs));
        assert!(first.withdraw() && !first.withdraw() && !second.withdraw());
        drop(first);
        assert_eq!(count.get(), 1);
        assert_eq!(request_slots.open().unwrap().index, waits.index, "its ticket is free again");
        answer(&request_slots, runs);
        request_slots.drain();
        assert!(poll(&mut second).is_ready() && !second.withdraw());
    }

    #[test]
    fn a_slot_in_a_batch_is_reused_only_after_its_answer() {
        let request_slots = request_slots();
        let ticket = request_slots.open().unwrap();
        let pending = request_slots.pending(ticket, || panic!("a batch has it"));
        assert!(request_slots.completions().claim(ticket));
        drop(pending);
        assert_ne!(request_slots.open().unwrap().index, ticket.index);
        answer(&request_slots, ticket);
        request_slots.drain();
        let again = request_slots.open().unwrap();
        assert_eq!((again.index, again.generation), (ticket.index, ticket.generation + 1));
    }

    #[test]
    fn tickets_are_bounded_and_a_late_answer_changes_nothing() {
        let request_slots = request_slots();
        let all: Vec<_> = (0..IN_FLIGHT_MAX).map(|_| request_slots.open().unwrap()).collect();
        assert!(request_slots.open().is_none());
        request_slots.release(all[7]);
        let again = request_slots.open().unwrap();
        assert_eq!(again.index, all[7].index);
        request_slots.completions().push(
            all[7],
            Answer {
                outputs: Ok(Vec::new()),
                stamps: Stamps::default(),
                batch_rows: 1,
                is_first: true,
                part: AnswerPart::Last,
                parameters: None,
            },
        );
        request_slots.drain();
        assert!(poll(&mut request_slots.pending(again, || ())).is_pending());
    }
}
