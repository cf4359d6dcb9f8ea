//! An order of a client on its way to the control thread, and the answer on its way back. The
//! shard's task awaits [`PendingReply`]; the control thread, or whichever thread loads, holds the
//! [`ControlReply`]. Bounded by [`ControlRequests`] in number and in bytes.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use crate::error::Error;
use crate::limits::{ORDERS_MAX, ORDERS_SIZE_MAX};
use crate::model::repository::index::IndexEntry;
use crate::protocol::repository::RepositoryOrder;
use crate::queue::sync::{AtomicWaker, SegQueue};

/// What became of an order: the repository index where it was asked for, else nothing.
pub type ControlOutcome = Result<Vec<IndexEntry>, Error>;

/// What is ordered at a time, over all shards.
#[derive(Default)]
pub struct ControlRequests {
    budget: Arc<RequestBudget>,
}

#[derive(Default)]
struct RequestBudget {
    count: AtomicUsize,
    size: AtomicUsize,
}

/// The end that answers, once; dropped before, it says that the server stops.
pub struct ControlReply {
    slot: Arc<ReplySlot>,
    budget: Arc<RequestBudget>,
    size: usize,
}

/// The end that waits.
pub struct PendingReply {
    slot: Arc<ReplySlot>,
}

#[derive(Default)]
struct ReplySlot {
    outcome: SegQueue<ControlOutcome>,
    waker: AtomicWaker,
}

impl ControlRequests {
    /// Lets an order in, or refuses it at a bound.
    pub fn enter(&self, order: &RepositoryOrder) -> Result<(ControlReply, PendingReply), Error> {
        let (budget, size) = (&self.budget, order.size());
        let take = |have: &AtomicUsize, more: usize, max: usize| {
            let within = |have: usize| have.checked_add(more).filter(|sum| *sum <= max);
            have.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_ok()
        };
        if !take(&budget.count, 1, ORDERS_MAX) {
            let text = format!("{ORDERS_MAX} model control requests wait, the most that may; try again later");
            return Err(Error::unavailable(text));
        }
        if !take(&budget.size, size, ORDERS_SIZE_MAX) {
            budget.count.fetch_sub(1, Ordering::Relaxed);
            let text = format!("the model control requests that wait hold {ORDERS_SIZE_MAX} bytes, the most they may");
            return Err(Error::unavailable(text));
        }
        let slot = Arc::<ReplySlot>::default();
        Ok((ControlReply { slot: Arc::clone(&slot), budget: Arc::clone(budget), size }, PendingReply { slot }))
    }
}

impl ControlReply {
    /// Answers.
    pub fn send(self, outcome: ControlOutcome) {
        self.slot.outcome.push(outcome);
    }
}

impl Drop for ControlReply {
    fn drop(&mut self) {
        self.budget.count.fetch_sub(1, Ordering::Relaxed);
        self.budget.size.fetch_sub(self.size, Ordering::Relaxed);
        // Whoever waits takes the first: what `send` left goes before this.
        self.slot.outcome.push(Err(stopping()));
        self.slot.waker.wake();
    }
}

impl Future for PendingReply {
    type Output = ControlOutcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<ControlOutcome> {
        self.slot.waker.register(context.waker());
        self.slot.outcome.pop().map_or(Poll::Pending, Poll::Ready)
    }
}

/// What an order is told once the server drains.
pub fn stopping() -> Error {
    Error::unavailable("Server is stopping, it takes no more model control requests")
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::protocol::repository::LoadOrder;

    fn load(size: usize) -> RepositoryOrder {
        let files = vec![("1/model.onnx".to_owned(), vec![0; size].into())];
        RepositoryOrder::Load(LoadOrder { name: "m".to_owned(), config: None, files })
    }

    fn poll(awaited: &mut PendingReply) -> Option<ControlOutcome> {
        match Pin::new(awaited).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        }
    }

    #[test]
    fn an_order_is_answered_once_also_where_nobody_answers() {
        let orders = ControlRequests::default();
        let (reply, mut awaited) = orders.enter(&load(0)).unwrap();
        assert_eq!(poll(&mut awaited), None);
        reply.send(Ok(Vec::new()));
        assert_eq!(poll(&mut awaited), Some(Ok(Vec::new())));
        let (reply, mut awaited) = orders.enter(&load(0)).unwrap();
        drop(reply);
        assert_eq!(poll(&mut awaited), Some(Err(stopping())));
    }

    #[test]
    fn orders_are_bounded_in_number_and_in_bytes_and_give_back_what_they_took() {
        let orders = ControlRequests::default();
        let held: Vec<_> = (0..ORDERS_MAX).map(|_| orders.enter(&load(0)).unwrap()).collect();
        let error = orders.enter(&load(0)).err().unwrap();
        assert!(error.text().contains("256 model control requests wait"), "{error}");
        drop(held);
        let large = orders.enter(&load(ORDERS_SIZE_MAX - 100)).unwrap();
        let error = orders.enter(&load(200)).err().unwrap();
        assert!(error.text().contains("hold 268435456 bytes"), "{error}");
        drop(large);
        assert!(orders.enter(&load(200)).is_ok());
        assert_eq!(orders.budget.count.load(Ordering::Relaxed), 0);
        assert_eq!(orders.budget.size.load(Ordering::Relaxed), 0);
    }
}
