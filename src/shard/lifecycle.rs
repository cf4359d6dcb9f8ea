//! What the control thread tells the shards: that all of them serve, and that the server drains. Shared by all threads.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use atomic_waker::AtomicWaker;

/// Whether the server starts, serves or drains, and who to tell.
pub struct Lifecycle {
    is_started: AtomicBool,
    is_draining: AtomicBool,
    wakers: Box<[AtomicWaker]>,
}

impl Lifecycle {
    /// A server of so many shards, starting.
    pub fn new(shards: usize) -> Self {
        let wakers = (0..shards).map(|_| AtomicWaker::new()).collect();
        Self { is_started: AtomicBool::new(false), is_draining: AtomicBool::new(false), wakers }
    }

    /// Every shard listens, the one with the metrics too.
    pub fn start(&self) {
        self.is_started.store(true, Ordering::SeqCst);
    }

    /// Whether every shard has begun to listen and none was told to stop.
    pub fn is_serving(&self) -> bool {
        self.is_started.load(Ordering::SeqCst) && !self.is_draining()
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
