//! One sequence between its first request and its end, and the table of them. Used by
//! [`super::Sequences`] only. Bounded as that is.

use std::collections::VecDeque;

use crate::ShapeKey;
use base::time::Instant;

/// One sequence.
#[derive(Debug)]
pub(super) struct SequenceRun<K, T> {
    pub(super) id: K,
    /// Its place in the order in which sequences began. Unique, unlike its index.
    pub(super) number: u64,
    pub(super) place: SequencePlace,
    /// Its waiting requests, in order.
    pub(super) queue: VecDeque<SequenceRequest<T>>,
    /// The arrival time of the last request with the START flag.
    pub(super) started_at: Instant,
    /// The end of the last batch with a request of it.
    pub(super) active_at: Instant,
    pub(super) alarm_at: Option<Instant>,
    /// The number under which its first request is offered to its instance.
    pub(super) offer: Option<u64>,
    /// Its request that runs.
    pub(super) flight: Option<RunningRequest>,
    /// True if its instance may have state of it.
    pub(super) has_run: bool,
    /// True if its client left while its request ran.
    pub(super) is_abandoned: bool,
}

/// The place of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SequencePlace {
    Backlog,
    Slot { instance: usize, slot: usize },
}

/// Record of a request that runs.
#[derive(Debug)]
pub(super) struct RunningRequest {
    /// The number of its [`RunId`](super::RunId).
    pub(super) number: u64,
    pub(super) shape_key: ShapeKey,
}

/// One request of a sequence.
#[derive(Debug)]
pub(super) struct SequenceRequest<T> {
    pub(super) token: T,
    pub(super) is_start: bool,
    pub(super) is_end: bool,
    pub(super) shape_key: ShapeKey,
    pub(super) queued_at: Instant,
    /// The time from which it has waited too long for a slot.
    pub(super) timeout_at: Option<Instant>,
}

impl<K, T> SequenceRun<K, T> {
    pub(super) const fn new(id: K, number: u64, now: Instant) -> Self {
        Self {
            id,
            number,
            place: SequencePlace::Backlog,
            queue: VecDeque::new(),
            started_at: now,
            active_at: now,
            alarm_at: None,
            offer: None,
            flight: None,
            has_run: false,
            is_abandoned: false,
        }
    }

    /// Removes the sequences of which a request has waited too long. Several sequences may wait
    /// under one id; each reaches from a request with the START flag to the next. Returns their
    /// requests, their number, and true if the last of all sequences is one of them.
    pub(super) fn take_expired(&mut self, now: Instant) -> (Vec<SequenceRequest<T>>, usize, bool) {
        let held_count = self.queue.len();
        let mut sequences: Vec<Vec<SequenceRequest<T>>> = Vec::new();
        for entry in std::mem::take(&mut self.queue) {
            match sequences.last_mut() {
                Some(sequence) if !entry.is_start => sequence.push(entry),
                _ => sequences.push(vec![entry]),
            }
        }
        let is_over = |entry: &SequenceRequest<T>| entry.timeout_at.is_some_and(|at| at <= now);
        let is_last = sequences.last().is_some_and(|last| last.iter().any(is_over));
        let (expired, kept): (Vec<_>, Vec<_>) =
            sequences.into_iter().partition(|sequence| sequence.iter().any(is_over));
        self.queue = kept.into_iter().flatten().collect();
        let count = expired.len();
        debug_assert!(
            expired.iter().map(Vec::len).sum::<usize>() + self.queue.len() == held_count,
            "each request expired or is kept"
        );
        (expired.into_iter().flatten().collect(), count, is_last)
    }
}

/// Sequences by index; the index of an ended one is reused.
#[derive(Debug)]
pub(super) struct SequenceTable<K, T> {
    table: Vec<Option<SequenceRun<K, T>>>,
    free: Vec<usize>,
}

impl<K, T> Default for SequenceTable<K, T> {
    fn default() -> Self {
        Self { table: Vec::new(), free: Vec::new() }
    }
}

impl<K, T> SequenceTable<K, T> {
    pub(super) fn insert(&mut self, run: SequenceRun<K, T>) -> usize {
        if let Some(index) = self.free.pop()
            && let Some(place) = self.table.get_mut(index)
        {
            debug_assert!(place.is_none(), "a free index has no sequence");
            *place = Some(run);
            return index;
        }
        self.table.push(Some(run));
        self.table.len() - 1
    }

    pub(super) fn remove(&mut self, index: usize) -> Option<SequenceRun<K, T>> {
        let run = self.table.get_mut(index)?.take()?;
        self.free.push(index);
        debug_assert!(self.free.len() <= self.table.len(), "an index is free once");
        Some(run)
    }

    pub(super) fn get(&self, index: usize) -> Option<&SequenceRun<K, T>> {
        self.table.get(index)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut SequenceRun<K, T>> {
        self.table.get_mut(index)?.as_mut()
    }

    pub(super) fn indices(&self) -> impl Iterator<Item = usize> {
        self.table.iter().enumerate().filter(|(_, run)| run.is_some()).map(|(index, _)| index)
    }

    pub(super) fn len(&self) -> usize {
        self.table.len() - self.free.len()
    }
}
