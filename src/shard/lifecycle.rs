//! What the control thread tells the shards: that the server drains. Shared by all threads.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use atomic_waker::AtomicWaker;

/// Whether the server serves or drains, and who to tell.
pub struct Lifecycle {
    is_draining: AtomicBool,
    wakers: Box<[AtomicWaker]>,
}

impl Lifecycle {
    /// A server of so many shards, serving.
    pub fn new(shards: usize) -> Self {
        Self { is_draining: AtomicBool::new(false), wakers: (0..shards).map(|_| AtomicWaker::new()).collect() }
    }

    /// Tells every shard to finish what it has and take no more.
    pub fn drain(&self) {
        self.is_draining.store(true, Ordering::SeqCst);
        for waker in &self.wakers {
            waker.wake();
        }
    }

    /// Whether the server drains.
    pub fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::SeqCst)
    }

    /// Ends when the server begins to drain. Awaited by one task of each shard.
    pub fn drained(&self, shard: usize) -> impl Future<Output = ()> + '_ {
        std::future::poll_fn(move |context| {
            if let Some(waker) = self.wakers.get(shard) {
                waker.register(context.waker());
            }
            if self.is_draining() { Poll::Ready(()) } else { Poll::Pending }
        })
    }
}
