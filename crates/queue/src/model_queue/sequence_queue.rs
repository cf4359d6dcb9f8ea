//! The parts of a model queue for sequences, if its model serves them: requests between two runs,
//! sequences that a client left, and the figures that any thread may read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::model_queue::ModelQueue;
use crate::model_queue::batcher::{Batcher, EndedRequest};
use crate::model_queue::iteration::Iterations;
use crate::model_queue::locked::{LockedQueue, RequestClaims, SequenceDeparture};
use crate::parkings::Parkings;
use crate::queued_request::QueuedRequest;
use crate::sync::SegQueue;
use base::time::Instant;
use model::{CorrelationId, SequenceMark};
use scheduler::sequence::{SequenceEnd, Sequences};

pub(super) struct SequenceQueue {
    pub(super) iterations: Arc<Iterations>,
    /// Ids given so far to iterative sequences whose request named none.
    ids: AtomicU64,
    pub(super) is_iterative: bool,
    /// Sequences that a client left; the next thread that drains the rings ends them. A shard cannot: it never waits
    /// for the lock.
    departures: SegQueue<SequenceDeparture>,
    counts: SequenceCounts,
}

/// The number of sequences, and the ends of the others.
#[derive(Default)]
pub struct SequenceCounts {
    active: AtomicUsize,
    backlogged: AtomicUsize,
    ends: [AtomicUsize; SequenceEnd::ALL.len()],
    unknown: AtomicUsize,
}

impl SequenceQueue {
    pub(super) fn new(parkings: &Arc<Parkings>, is_iterative: bool) -> Self {
        Self {
            iterations: Arc::new(Iterations::new(parkings)),
            ids: AtomicU64::new(0),
            is_iterative,
            departures: SegQueue::new(),
            counts: SequenceCounts::default(),
        }
    }

    pub(super) fn poll_departure(&self) -> Option<SequenceDeparture> {
        self.departures.pop()
    }
}

impl ModelQueue {
    /// The instance in a parking was lost: the duration of its batch says nothing. Waiting requests
    /// of sequences whose state it held are refused.
    pub fn handle_instance_lost(&self, instance_index: usize, is_renewed: bool, now: Instant) {
        if let Some(parking) = self.parkings.get(instance_index) {
            parking.take_run();
            parking.handle_idle(now);
        }
        if self.sequences.is_some() {
            let mut queue = self.lock();
            // Arrived requests first: one that came before the loss goes on with the lost state,
            // and is refused.
            queue.drain(now, self);
            queue.batcher.handle_instance_lost(instance_index, is_renewed, now, &mut RequestClaims(&self.admission));
            self.handle_released(&mut queue, now);
            self.refuse_ended_and_notify(&mut queue, instance_index, now);
        }
    }

    /// The instance in a parking serves again, after it could not be recreated for a time.
    pub fn handle_instance_restored(&self, instance_index: usize, now: Instant) {
        if self.sequences.is_some() {
            let mut queue = self.lock();
            queue.batcher.handle_instance_restored(instance_index, now);
            self.refuse_ended_and_notify(&mut queue, instance_index, now);
        }
    }

    /// Returns a sequence of one request, for a request that names none; `None` unless the model's
    /// sequences are iterative.
    pub fn new_sequence(&self) -> Option<SequenceMark> {
        let sequences = self.sequences.as_ref().filter(|sequences| sequences.is_iterative)?;
        let id = CorrelationId::Own(sequences.ids.fetch_add(1, Ordering::Relaxed) + 1);
        Some(SequenceMark { id, is_start: true, is_end: false })
    }

    /// A client left a sequence. `since` is the arrival of the last of its requests that the client
    /// knows of.
    pub fn depart(&self, id: CorrelationId, since: Instant) {
        if let Some(sequences) = &self.sequences {
            sequences.departures.push(SequenceDeparture { id, since });
            self.wake();
        }
    }

    /// Returns the sequences, if the model serves them.
    pub fn sequences(&self) -> Option<&SequenceCounts> {
        self.sequences.as_ref().map(|sequences| &sequences.counts)
    }

    /// Refuses the requests whose time or whose sequence ended, wakes the instances whose sequences
    /// have new work, and publishes the counts. Returns true if the calling instance has new work
    /// itself.
    pub(super) fn refuse_ended_and_notify(&self, queue: &mut LockedQueue, instance_index: usize, now: Instant) -> bool {
        while let Some(EndedRequest { waiting, error }) = queue.batcher.poll_ended(now) {
            self.refuse(waiting, error);
        }
        let mut has_work = false;
        while let Some(other) = queue.batcher.poll_attention(now) {
            has_work |= other == instance_index;
            if let Some(parking) = self.parkings.get(other).filter(|_| other != instance_index) {
                parking.unpark();
            }
        }
        for leaving in queue.leaving.iter().filter(|leaving| **leaving != instance_index) {
            if let Some(parking) = self.parkings.get(*leaving).filter(|_| queue.batcher.is_vacant(*leaving)) {
                parking.unpark();
            }
        }
        if let (Some(own), Batcher::Sequences { sequences, .. }) = (&self.sequences, &queue.batcher) {
            own.counts.set(sequences);
        }
        has_work
    }
}

impl SequenceCounts {
    /// Returns the sequences that have a slot.
    pub fn active(&self) -> usize {
        self.active.load(Ordering::Relaxed)
    }

    /// Returns the sequences that wait for a slot.
    pub fn backlogged(&self) -> usize {
        self.backlogged.load(Ordering::Relaxed)
    }

    /// Returns the sequences that ended for a reason.
    pub fn ended(&self, end: SequenceEnd) -> usize {
        self.ends.get(end as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Returns the requests that were to continue a sequence which does not exist here.
    pub fn unknown(&self) -> usize {
        self.unknown.load(Ordering::Relaxed)
    }

    fn set(&self, sequences: &Sequences<CorrelationId, QueuedRequest>) {
        self.active.store(sequences.active(), Ordering::Relaxed);
        self.backlogged.store(sequences.backlogged(), Ordering::Relaxed);
        self.unknown.store(usize::try_from(sequences.unknown()).unwrap_or(usize::MAX), Ordering::Relaxed);
        for (end, count) in SequenceEnd::ALL.into_iter().zip(&self.ends) {
            count.store(usize::try_from(sequences.ended(end)).unwrap_or(usize::MAX), Ordering::Relaxed);
        }
    }
}
