//! The part of a model queue that is behind its lock: the consuming ends of the shards' rings, the
//! batcher, and the instance that watches the time.

use crate::model_queue::ModelQueue;
use crate::model_queue::admission_control::AdmissionControl;
use crate::model_queue::batcher::{Batcher, RejectedRequest};
use crate::queued_request::QueuedRequest;
use crate::sync;
use base::error::Error;
use base::time::Instant;
use model::CorrelationId;
use scheduler::{Claims, Entry};

pub(super) struct LockedQueue {
    pub(super) rings: Vec<sync::Consumer<Entry<QueuedRequest>>>,
    pub(super) batcher: Batcher,
    /// Empty between two calls; kept for its memory.
    arrived: Vec<Entry<QueuedRequest>>,
    pub(super) watch: Option<TimeoutWatch>,
    /// Instances that are leaving.
    pub(super) leaving: Vec<usize>,
    #[cfg(feature = "test-hooks")]
    pub(super) hold: scheduler::hold::FirstBatchHold,
}

/// The one instance that sleeps only until the scheduler must be polled again; the others sleep until they are woken.
pub(super) struct TimeoutWatch {
    pub(super) instance_index: usize,
    at: Instant,
}

impl LockedQueue {
    pub(super) fn new(rings: Vec<sync::Consumer<Entry<QueuedRequest>>>, batcher: Batcher) -> Self {
        Self {
            rings,
            batcher,
            arrived: Vec::new(),
            watch: None,
            leaving: Vec::new(),
            #[cfg(feature = "test-hooks")]
            hold: Default::default(),
        }
    }

    /// Returns the same queue, whose first batch waits for `hold`.
    #[cfg(feature = "test-hooks")]
    pub(super) fn with_hold(self, hold: scheduler::hold::FirstBatchHold) -> Self {
        Self { hold, ..self }
    }

    /// Returns true if the first batch waits for more requests.
    #[cfg(feature = "test-hooks")]
    pub(super) fn poll_held(&mut self) -> bool {
        let hold = &mut self.hold;
        self.batcher.waiting().is_some_and(|(requests, backlogged)| hold.poll_held(requests, backlogged))
    }

    /// Moves the arrived requests into the scheduler, in arrival order over all shards.
    pub(super) fn drain(&mut self, now: Instant, model_queue: &ModelQueue) {
        debug_assert!(self.arrived.is_empty(), "what arrived before is in the scheduler");
        let claims = &mut RequestClaims(&model_queue.admission);
        for ring in &mut self.rings {
            while let Ok(entry) = ring.pop() {
                // A sequence whose first request was cancelled began all the same: the requests
                // that follow are cancelled with it, and not refused for a missing start.
                let is_start = entry.token.mark.as_ref().is_some_and(|mark| mark.is_start);
                if is_start || entry.token.completions.is_waiting(entry.token.ticket) {
                    self.arrived.push(entry);
                }
            }
        }
        // Rings are in order each, not among each other.
        self.arrived.sort_by_key(|entry| entry.queued_at);
        for entry in self.arrived.drain(..) {
            let Err(refused) = self.batcher.handle_request(entry, now) else { continue };
            let RejectedRequest { entry, error } = *refused;
            if let Some(error) = error {
                model_queue.refuse(entry.token, error);
                continue;
            }
            // The scheduler is full, and has room for twice the requests that admission lets wait:
            // half of its entries at least are cancelled.
            self.batcher.evict_cancelled(now, claims);
            if let Err(refused) = self.batcher.handle_request(entry, now) {
                model_queue.refuse(refused.entry.token, Error::overloaded(Error::QUEUE_FULL));
            }
        }
        // After the rings: a client leaves a sequence after it queued the requests that it leaves.
        while let Some(SequenceDeparture { id, since }) =
            model_queue.sequences.as_ref().and_then(|sequences| sequences.poll_departure())
        {
            self.batcher.handle_departure(&id, since, now, claims);
        }
    }

    /// Returns true if another instance should be woken, for a batch or to watch the time. With
    /// sequences, the instances that have work were woken by name; only the time may still need a
    /// watcher.
    pub(super) fn has_more(&self) -> bool {
        match &self.batcher {
            Batcher::Queue(scheduler) => !scheduler.is_empty(),
            Batcher::Sequences { sequences, .. } => {
                let watched = self.watch.as_ref().map(|watch| watch.at);
                sequences.poll_timeout().is_some_and(|at| watched.is_none_or(|watched| watched > at))
            }
        }
    }

    /// Makes an instance the one that watches the time, and returns the instant of its next poll;
    /// `None` if another instance polls early enough.
    pub(super) fn watch(&mut self, instance_index: usize) -> Option<Instant> {
        let at = self.batcher.poll_timeout()?;
        debug_assert!(self.watch.as_ref().is_none_or(|watch| watch.instance_index != instance_index), "it is awake");
        if self.watch.as_ref().is_some_and(|watch| watch.at <= at) {
            return None;
        }
        self.watch = Some(TimeoutWatch { instance_index, at });
        Some(at)
    }

    /// The instance no longer watches the time.
    pub(super) fn unwatch(&mut self, instance_index: usize) {
        self.watch = self.watch.take().filter(|watch| watch.instance_index != instance_index);
    }
}

/// The scheduler's claims on requests of shards. The winner of a claim frees a request's share of
/// the bounds: the scheduler, or the shard that withdraws it.
pub(super) struct RequestClaims<'a>(pub(super) &'a AdmissionControl);

impl Claims<QueuedRequest> for RequestClaims<'_> {
    fn is_waiting(&mut self, waiting: &QueuedRequest) -> bool {
        match &waiting.again {
            None => waiting.completions.is_waiting(waiting.ticket),
            Some(responder) => !responder.has_left(),
        }
    }

    fn claim(&mut self, waiting: &QueuedRequest) -> bool {
        if waiting.again.is_some() {
            // It was claimed for its first run.
            return self.is_waiting(waiting);
        }
        let is_claimed = waiting.completions.claim(waiting.ticket);
        if is_claimed {
            self.0.leave(waiting.room());
        }
        is_claimed
    }
}

pub(super) struct SequenceDeparture {
    pub(super) id: CorrelationId,
    /// The arrival of the last request that the client knows of: a sequence that started later is
    /// another one.
    pub(super) since: Instant,
}
