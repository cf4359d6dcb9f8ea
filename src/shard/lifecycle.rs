//! The server's lifecycle (starting, serving, leaving, draining), set by the control thread and read by all shards.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;

use atomic_waker::AtomicWaker;

/// The state of the server (starting, serving, leaving, draining), with one waker per shard for the
/// drain.
///
/// ```text
/// starting ─► serving ─► leaving ─► draining
///                        --drain-delay: not ready, and all else goes on
/// ```
pub struct Lifecycle {
    is_started: AtomicBool,
    is_leaving: AtomicBool,
    is_draining: AtomicBool,
    is_handed_over: AtomicBool,
    wakers: Box<[AtomicWaker]>,
    /// The number of times that each shard has swept its connections: a count that stands still is
    /// a shard that hangs.
    beats: Box<[AtomicU64]>,
}

impl Lifecycle {
    /// The lifecycle of a server with this many shards, which is starting.
    pub fn new(shards: usize) -> Self {
        Self {
            is_started: AtomicBool::new(false),
            is_leaving: AtomicBool::new(false),
            is_draining: AtomicBool::new(false),
            is_handed_over: AtomicBool::new(false),
            wakers: (0..shards).map(|_| AtomicWaker::new()).collect(),
            beats: (0..shards).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// All shards listen: the server serves from now on.
    pub fn start(&self) {
        self.is_started.store(true, Ordering::SeqCst);
    }

    /// Returns true if all shards listen and the server neither leaves nor drains.
    pub fn is_serving(&self) -> bool {
        self.is_started.load(Ordering::SeqCst) && !self.is_leaving.load(Ordering::SeqCst) && !self.is_draining()
    }

    /// Says that the server is not ready, and changes nothing else: clients that look go elsewhere
    /// before the drain begins.
    pub fn leave(&self) {
        self.is_leaving.store(true, Ordering::SeqCst);
    }

    /// Makes every shard finish its work and accept nothing further.
    pub fn drain(&self) {
        self.is_draining.store(true, Ordering::SeqCst);
        for waker in &self.wakers {
            waker.wake();
        }
    }

    /// Drains; another process has the listening sockets and accepts new connections from now on.
    pub fn hand_over(&self) {
        self.is_handed_over.store(true, Ordering::SeqCst);
        self.drain();
    }

    /// Returns true if the server drains.
    pub fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::SeqCst)
    }

    /// Returns true if it drains because another process has its listening sockets.
    pub fn is_handed_over(&self) -> bool {
        self.is_handed_over.load(Ordering::SeqCst)
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

    /// A shard's tasks run.
    pub fn beat(&self, shard: usize) {
        if let Some(beats) = self.beats.get(shard) {
            beats.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The beats of all shards so far.
    pub fn beats(&self) -> Vec<u64> {
        self.beats.iter().map(|beats| beats.load(Ordering::Relaxed)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_leaves_is_not_ready_and_does_not_drain_yet() {
        let lifecycle = Lifecycle::new(2);
        let state = || (lifecycle.is_serving(), lifecycle.is_draining(), lifecycle.is_handed_over());
        assert_eq!(state(), (false, false, false));
        lifecycle.start();
        assert_eq!(state(), (true, false, false));
        lifecycle.leave();
        assert_eq!(state(), (false, false, false));
        lifecycle.hand_over();
        assert_eq!(state(), (false, true, true));
    }

    #[test]
    fn the_beats_of_each_shard_are_counted_apart() {
        let lifecycle = Lifecycle::new(2);
        lifecycle.beat(1);
        lifecycle.beat(1);
        lifecycle.beat(7);
        assert_eq!(lifecycle.beats(), [0, 2]);
    }
}
