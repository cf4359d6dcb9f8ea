//! The memory of the requests in a queue, those among them that have gone; and room for new ones where
//! these have it all. Called by the shards.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, TryLockError};

use crate::queue::model_queue::{ModelQueue, RequestClaims};
use crate::queue::sync;
use crate::time::Instant;

/// Bytes that a request holds in a queue until it is taken, or forgotten after it has gone.
#[derive(Default)]
pub struct Reservation {
    held: Arc<AtomicUsize>,
    size: AtomicUsize,
}

impl ModelQueue {
    /// Empties the rings of a queue whose requests have gone while no instance came by. Only where
    /// a ring is full; where an instance is at it, it is doing this.
    pub(super) fn make_room(&self, now: Instant) {
        match self.locked.try_lock() {
            Ok(mut locked) => locked.drain(now, self),
            Err(TryLockError::Poisoned(locked)) => locked.into_inner().drain(now, self),
            Err(TryLockError::WouldBlock) => sync::yield_now(),
        }
    }

    /// Takes bytes for a request that was let in. Where there are not enough, those that have gone
    /// have them, and are forgotten before: while an instance is at the queue they cannot be, and
    /// that is no reason to refuse.
    pub(super) fn hold(&self, size: usize, now: Instant) -> Option<Reservation> {
        loop {
            if let Some(hold) = Reservation::take(&self.held, size, self.held_max) {
                return Some(hold);
            }
            let mut locked = match self.locked.try_lock() {
                Ok(locked) => locked,
                Err(TryLockError::Poisoned(locked)) => locked.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    sync::yield_now();
                    continue;
                }
            };
            locked.drain(now, self);
            locked.batcher.forget_gone(now, &mut RequestClaims(self));
            return Reservation::take(&self.held, size, self.held_max);
        }
    }
}

impl Reservation {
    fn take(held: &Arc<AtomicUsize>, size: usize, max: usize) -> Option<Self> {
        let within = |have: usize| have.checked_add(size).filter(|sum| *sum <= max);
        held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).ok()?;
        Some(Self { held: Arc::clone(held), size: AtomicUsize::new(size) })
    }

    pub(super) fn release(&self) {
        self.held.fetch_sub(self.size.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.release();
    }
}
