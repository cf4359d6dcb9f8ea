//! What a shard does at the queue itself, in an instance's place: it takes out what has gone where its
//! ring fills up, and refuses what has waited too long. It tries the lock and never waits for it: where
//! somebody else has it, the shard goes on and tries again later.

use std::sync::TryLockError;

use crate::queue::model_queue::{LockedQueue, ModelQueue, QueueProducer};
use crate::queue::sync::MutexGuard;
use crate::time::Instant;

impl QueueProducer {
    /// Empties the rings where this one is half full: of requests that have gone while no instance came
    /// by, or of more than a queue may hold of those that wait.
    pub(super) fn make_room(&mut self, now: Instant) {
        self.room_seen = self.ring.slots();
        if self.room_seen <= self.room_least
            && let Some(mut locked) = self.model_queue.try_lock()
        {
            locked.drain(now, &self.model_queue);
            drop(locked);
            self.room_seen = self.ring.slots();
            debug_assert!(self.room_seen > self.room_least, "a ring that was emptied has room");
        }
    }
}

impl ModelQueue {
    /// Refuses what has waited too long, where no instance comes by; false where somebody else is at the
    /// queue, who may have looked just before: then it must be asked again.
    pub fn refuse_over(&self, now: Instant) -> bool {
        let Some(mut locked) = self.try_lock() else { return false };
        locked.drain(now, self);
        self.handle_news(&mut locked, usize::MAX, now);
        true
    }

    /// The lock, unless somebody has it now. A panic of whoever had it leaves it as usable as in [`Self::lock`].
    fn try_lock(&self) -> Option<MutexGuard<'_, LockedQueue>> {
        match self.locked.try_lock() {
            Ok(locked) => Some(locked),
            Err(TryLockError::Poisoned(locked)) => Some(locked.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
