//! A one-shot channel from any thread to a task of a shard. The shard's task awaits the
//! [`OneShotReceiver`]; the thread that does the work has the [`OneShotSender`]. Sending consumes
//! it; a sender that is dropped unused sends [`Lease::closed`], so that no receiver waits forever.
//! Bounded by the leases: a channel is open as long as its sender has a share of a budget.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::sync::{AtomicWaker, SegQueue};
use base::error::Error;

/// A share of a bound on the channels of one kind, given back when it is dropped.
pub trait Lease {
    /// Returns the outcome for the receiver if the sender is dropped unused: the server is
    /// stopping.
    fn closed() -> Error;
}

/// The sending end; sends once.
pub struct OneShotSender<T, L: Lease> {
    shared: Arc<OneShot<T>>,
    lease: Option<L>,
}

/// The receiving end, a future.
pub struct OneShotReceiver<T> {
    shared: Arc<OneShot<T>>,
}

struct OneShot<T> {
    outcome: SegQueue<Result<T, Error>>,
    waker: AtomicWaker,
}

/// Creates a channel that is open as long as its sender has the lease.
pub fn one_shot<T, L: Lease>(lease: L) -> (OneShotSender<T, L>, OneShotReceiver<T>) {
    let shared = Arc::new(OneShot { outcome: SegQueue::new(), waker: AtomicWaker::new() });
    (OneShotSender { shared: Arc::clone(&shared), lease: Some(lease) }, OneShotReceiver { shared })
}

impl<T, L: Lease> OneShotSender<T, L> {
    /// Returns the lease that keeps it open.
    pub const fn lease(&self) -> Option<&L> {
        self.lease.as_ref()
    }

    /// Returns true if a receiver still waits for the outcome.
    pub fn is_awaited(&self) -> bool {
        Arc::strong_count(&self.shared) > 1
    }

    /// Sends the outcome and wakes the receiver.
    pub fn send(self, outcome: Result<T, Error>) {
        self.shared.outcome.push(outcome);
    }
}

impl<T, L: Lease> Drop for OneShotSender<T, L> {
    fn drop(&mut self) {
        // Before the receiver runs: its task may open the next channel at once, and must find room.
        debug_assert!(self.lease.is_some(), "a channel is open until its sender is dropped, once");
        drop(self.lease.take());
        // The receiver takes the first outcome only: what `send` pushed comes before this one.
        self.shared.outcome.push(Err(L::closed()));
        self.shared.waker.wake();
    }
}

impl<T> Future for OneShotReceiver<T> {
    type Output = Result<T, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Register first, then pop: an outcome that is pushed in between wakes the task once more. The other way round
        // it would be missed.
        self.shared.waker.register(context.waker());
        self.shared.outcome.pop().map_or(Poll::Pending, Poll::Ready)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[derive(Debug)]
    struct Free;

    impl Lease for Free {
        fn closed() -> Error {
            Error::unavailable("closed")
        }
    }

    fn poll<T>(receiver: &mut OneShotReceiver<T>) -> Option<Result<T, Error>> {
        match Pin::new(receiver).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        }
    }

    #[test]
    fn the_receiver_gets_what_was_sent_or_that_nobody_will() {
        let (sender, mut receiver) = one_shot(Free);
        assert_eq!(poll(&mut receiver), None);
        sender.send(Ok(1));
        assert_eq!(poll(&mut receiver), Some(Ok(1)));
        let (sender, mut receiver) = one_shot::<u8, _>(Free);
        drop(sender);
        assert_eq!(poll(&mut receiver), Some(Err(Free::closed())));
    }

    #[test]
    fn an_outcome_of_another_thread_wakes_the_task() {
        for _ in 0..1_000 {
            let (sender, receiver) = one_shot(Free);
            let other = std::thread::spawn(move || sender.send(Ok(7)));
            assert_eq!(futures_lite::future::block_on(receiver), Ok(7));
            other.join().unwrap();
        }
    }
}
