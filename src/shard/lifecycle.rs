//! The server's lifecycle (starting, serving, draining), set by the control thread and read by all shards.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use atomic_waker::AtomicWaker;

/// Whether the server starts, serves or drains, with one waker per shard for the drain.
pub struct Lifecycle {
    is_started: AtomicBool,
    is_draining: AtomicBool,
    wakers: Box<[AtomicWaker]>,
}

impl Lifecycle {
    /// The lifecycle of a server with this many shards, which is starting.
    pub fn new(shards: usize) -> Self {
        let wakers = (0..shards).map(|_| AtomicWaker::new()).collect();
        Self { is_started: AtomicBool::new(false), is_draining: AtomicBool::new(false), wakers }
    }

    /// All shards listen: the server serves from now on.
    pub fn start(&self) {
        self.is_started.store(true, Ordering::SeqCst);
    }

    /// Whether all shards listen and the server does not drain.
    pub fn is_serving(&self) -> bool {
        self.is_started.load(Ordering::SeqCst) && !self.is_draining()
    }

    /// Makes every shard finish what it has and accept no more.
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

    /// Waits until the server drains. Only one task of each shard may await it: there is one waker per shard.
    pub fn drained(&self, shard: usize) -> impl Future<Output = ()> + '_ {
        std::future::poll_fn(move |context| {
            // Register first, check after: a drain that begins between the two wakes the registered task.
            if let Some(waker) = self.wakers.get(shard) {
                waker.register(context.waker());
            }
            if self.is_draining() { Poll::Ready(()) } else { Poll::Pending }
        })
    }
}
