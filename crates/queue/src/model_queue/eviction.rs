//! A shard's own work at the queue, if no instance polls in time: it drains the rings, which drops
//! cancelled requests, and refuses expired ones. It only tries the lock: a shard that waited for an
//! instance would stall all of its connections.

use std::sync::TryLockError;

use crate::model_queue::ModelQueue;
use crate::model_queue::locked::LockedQueue;
use crate::sync::MutexGuard;
use base::time::Instant;

/// No instance: the caller is a shard.
const NO_INSTANCE: usize = usize::MAX;

impl ModelQueue {
    /// Drains the rings; returns false if another thread has the lock.
    pub(crate) fn try_drain(&self, now: Instant) -> bool {
        let Some(mut queue) = self.try_lock() else { return false };
        queue.drain(now, self);
        true
    }

    /// Refuses expired requests. Returns false if another thread has the lock: it may have polled
    /// just before the expiry, so the caller must try again.
    pub fn refuse_expired(&self, now: Instant) -> bool {
        let Some(mut queue) = self.try_lock() else { return false };
        queue.drain(now, self);
        self.refuse_ended_and_notify(&mut queue, NO_INSTANCE, now);
        true
    }

    /// Takes the lock, unless another thread has it. A panic under it leaves the queue usable, as
    /// in [`Self::lock`].
    fn try_lock(&self) -> Option<MutexGuard<'_, LockedQueue>> {
        match self.queue.try_lock() {
            Ok(queue) => Some(queue),
            Err(TryLockError::Poisoned(queue)) => Some(queue.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
