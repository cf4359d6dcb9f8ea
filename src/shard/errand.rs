//! An order of a client on its way to the control thread, and the answer on its way back. The
//! shard's task awaits [`Awaited`]; the control thread, or whichever thread loads, holds the
//! [`Reply`]. Bounded by [`Orders`] in number and in bytes.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use crate::error::Error;
use crate::limits::{ORDERS_MAX, ORDERS_SIZE_MAX};
use crate::model::index::IndexEntry;
use crate::protocol::repository::Order;
use crate::shard::sync::{AtomicWaker, SegQueue};

/// What became of an order: the repository index where it was asked for, else nothing.
pub type Outcome = Result<Vec<IndexEntry>, Error>;

/// What is ordered at a time, over all shards.
#[derive(Default)]
pub struct Orders {
    books: Arc<Books>,
}

#[derive(Default)]
struct Books {
    count: AtomicUsize,
    size: AtomicUsize,
}

/// The end that answers, once; dropped before, it says that the server stops.
pub struct Reply {
    slot: Arc<Slot>,
    books: Arc<Books>,
    size: usize,
}

/// The end that waits.
pub struct Awaited {
    slot: Arc<Slot>,
}

#[derive(Default)]
struct Slot {
    outcome: SegQueue<Outcome>,
    waker: AtomicWaker,
}

impl Orders {
    /// Lets an order in, or refuses it at a bound.
    pub fn enter(&self, order: &Order) -> Result<(Reply, Awaited), Error> {
        let (books, size) = (&self.books, order.size());
        let take = |have: &AtomicUsize, more: usize, max: usize| {
            let within = |have: usize| have.checked_add(more).filter(|sum| *sum <= max);
            have.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_ok()
        };
        if !take(&books.count, 1, ORDERS_MAX) {
            let text = format!("{ORDERS_MAX} model control requests wait, the most that may; try again later");
            return Err(Error::unavailable(text));
        }
        if !take(&books.size, size, ORDERS_SIZE_MAX) {
            books.count.fetch_sub(1, Ordering::Relaxed);
            let text = format!("the model control requests that wait hold {ORDERS_SIZE_MAX} bytes, the most they may");
            return Err(Error::unavailable(text));
        }
        let slot = Arc::<Slot>::default();
        Ok((Reply { slot: Arc::clone(&slot), books: Arc::clone(books), size }, Awaited { slot }))
    }
}

impl Reply {
    /// Answers.
    pub fn send(self, outcome: Outcome) {
        self.slot.outcome.push(outcome);
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.books.count.fetch_sub(1, Ordering::Relaxed);
        self.books.size.fetch_sub(self.size, Ordering::Relaxed);
        // Whoever waits takes the first: what `send` left goes before this.
        self.slot.outcome.push(Err(stopping()));
        self.slot.waker.wake();
    }
}

impl Future for Awaited {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
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
    use crate::protocol::repository::Load;

    fn load(size: usize) -> Order {
        let files = vec![("1/model.onnx".to_owned(), vec![0; size].into())];
        Order::Load(Load { name: "m".to_owned(), config: None, files })
    }

    fn poll(awaited: &mut Awaited) -> Option<Outcome> {
        match Pin::new(awaited).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        }
    }

    #[test]
    fn an_order_is_answered_once_also_where_nobody_answers() {
        let orders = Orders::default();
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
        let orders = Orders::default();
        let held: Vec<_> = (0..ORDERS_MAX).map(|_| orders.enter(&load(0)).unwrap()).collect();
        let error = orders.enter(&load(0)).err().unwrap();
        assert!(error.text().contains("256 model control requests wait"), "{error}");
        drop(held);
        let large = orders.enter(&load(ORDERS_SIZE_MAX - 100)).unwrap();
        let error = orders.enter(&load(200)).err().unwrap();
        assert!(error.text().contains("hold 268435456 bytes"), "{error}");
        drop(large);
        assert!(orders.enter(&load(200)).is_ok());
        assert_eq!(orders.books.count.load(Ordering::Relaxed), 0);
        assert_eq!(orders.books.size.load(Ordering::Relaxed), 0);
    }
}
