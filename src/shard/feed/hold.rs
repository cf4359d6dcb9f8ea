//! The memory of requests in the books of a feed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that a request holds in a queue until it is taken, or forgotten after it has gone.
#[derive(Default)]
pub struct Hold {
    held: Arc<AtomicUsize>,
    size: AtomicUsize,
}

impl Hold {
    /// Takes bytes where no more than `max` are held then.
    pub(super) fn take(held: &Arc<AtomicUsize>, size: usize, max: usize) -> Option<Self> {
        let within = |have: usize| have.checked_add(size).filter(|sum| *sum <= max);
        held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).ok()?;
        Some(Self { held: Arc::clone(held), size: AtomicUsize::new(size) })
    }

    /// Gives them back, once.
    pub(super) fn release(&self) {
        self.held.fetch_sub(self.size.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.release();
    }
}
