//! The producing end of a model queue: one per shard, with a ring of its own, so that a shard never
//! waits for another thread when it queues a request. The ring has room for twice the requests that
//! can wait: cancelled ones stay in it until it is drained.

use std::sync::Arc;

use crate::model_queue::ModelQueue;
use crate::queued_request::{QueueRefusal, QueuedRequest};
use crate::sync;
use base::time::Instant;
use scheduler::Entry;

/// One shard's end of a model queue.
pub struct QueueProducer {
    ring: sync::Producer<Entry<QueuedRequest>>,
    /// Lower bound of the free slots: the last count, less the requests queued since. The ring is
    /// counted again only when this gets low, because counting reads the consumer's cache line.
    room_seen: usize,
    /// At this many free slots or fewer, the shard tries to drain the ring itself.
    room_least: usize,
    model_queue: Arc<ModelQueue>,
}

impl QueueProducer {
    /// Creates the producer of a ring that is empty and has `ring_size` slots.
    pub(super) fn new(
        ring: sync::Producer<Entry<QueuedRequest>>,
        ring_size: usize,
        room_least: usize,
        model_queue: Arc<ModelQueue>,
    ) -> Self {
        debug_assert!(room_least < ring_size, "an empty ring is not low on room");
        Self { ring, room_seen: ring_size, room_least, model_queue }
    }

    /// Returns the queue it belongs to.
    pub const fn model_queue(&self) -> &Arc<ModelQueue> {
        &self.model_queue
    }

    /// Queues a request. Returns true if [`ModelQueue::wake`] must be called, once for a burst of
    /// requests.
    ///
    /// # Errors
    /// [`QueueRefusal`] if a bound is reached or the answer would be late. The request is dropped
    /// then; its ticket stays open, for the shard to release.
    pub fn submit(&mut self, mut entry: Entry<QueuedRequest>) -> Result<bool, QueueRefusal> {
        let room = entry.token.room();
        self.model_queue.admit(&entry)?;
        if self.room_seen <= self.room_least {
            self.make_room(entry.queued_at);
        }
        // Before the push: an instance may claim the entry as soon as it is in the ring.
        let (inputs, details) = (std::mem::take(&mut entry.token.inputs), entry.token.details.take());
        entry.token.completions.put_inputs(entry.token.ticket, inputs, details);
        // A request whose shape the others may not share can end their batch, and a deadline can close it early: count
        // either as enough rows, so that an instance wakes and decides.
        let may_close = !entry.shape_key.is_empty() || entry.deadline.is_some();
        let rows = if may_close { u32::MAX } else { entry.rows.max(1) };
        if self.ring.push(entry).is_err() {
            // Each attempt to drain found the lock taken by another thread.
            debug_assert_eq!(self.room_seen, 0, "no more room is seen than there is");
            self.model_queue.leave(room);
            return Err(QueueRefusal::Full);
        }
        self.room_seen = self.room_seen.saturating_sub(1);
        Ok(self.model_queue.parkings.handle_queued(rows))
    }

    /// Drains all rings into the scheduler if this one is half full: of cancelled requests because
    /// no instance has polled, or of more waiting ones than the scheduler will take.
    fn make_room(&mut self, now: Instant) {
        self.room_seen = self.ring.slots();
        // Only tries the lock: a shard must not wait for an instance.
        if self.room_seen <= self.room_least && self.model_queue.try_drain(now) {
            self.room_seen = self.ring.slots();
            debug_assert!(self.room_seen > self.room_least, "a ring that was emptied has room");
        }
    }
}
