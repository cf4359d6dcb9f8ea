//! The slots of one instance, and the requests in them that are ready to run. Used by [`super::Sequences`] only. Memory
//! grows as slots are first used, from the lowest.

use std::collections::BTreeSet;

use smallvec::SmallVec;

use crate::{Entry, Policy, Scheduler, ShapeKey};
use base::time::Instant;

/// One instance.
#[derive(Debug)]
pub(super) struct InstanceSlots {
    /// The sequence of each slot that was ever used.
    slots: Vec<Option<usize>>,
    /// Free slots among those.
    returned: BTreeSet<usize>,
    /// Direct strategy: slots whose sequence has a request to run.
    pub(super) ready: BTreeSet<usize>,
    /// Oldest strategy: a scheduler over the sequences that have a request to run.
    pub(super) former: Option<Scheduler<RowOffer>>,
    /// Sequences with a request in its batch, as (index, number).
    pub(super) in_flight: Vec<(usize, u64)>,
    /// Slots whose sequences ended other than by their last request; the next batch reports them.
    pub(super) ended: Vec<usize>,
    /// The time at which it must poll again.
    pub(super) ask_at: Option<Instant>,
    /// True if it got new work since it polled.
    has_new_work: bool,
    /// True if it was lost and not recreated yet.
    pub(super) is_down: bool,
    /// True if it gets no other sequences: it ends with those that it has.
    pub(super) is_leaving: bool,
}

/// The first request of a sequence, as an instance sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowOffer {
    pub(super) run: usize,
    /// Unique among offers: an older one of the same sequence was withdrawn.
    pub(super) number: u64,
}

impl InstanceSlots {
    pub(super) fn new(former: Option<Policy>) -> Self {
        Self {
            slots: Vec::new(),
            returned: BTreeSet::new(),
            ready: BTreeSet::new(),
            former: former.map(Scheduler::new),
            in_flight: Vec::new(),
            ended: Vec::new(),
            ask_at: None,
            has_new_work: false,
            is_down: false,
            is_leaving: false,
        }
    }

    /// Returns the lowest free slot below `slots`.
    pub(super) fn free_slot(&self, slots: usize) -> Option<usize> {
        if self.is_down || self.is_leaving {
            return None;
        }
        let fresh = Some(self.slots.len()).filter(|slot| *slot < slots);
        self.returned.first().copied().or(fresh)
    }

    pub(super) fn take_slot(&mut self, slot: usize, run: usize) {
        debug_assert!(self.run(slot).is_none(), "a slot has one sequence");
        self.returned.remove(&slot);
        if self.slots.len() <= slot {
            self.slots.resize(slot + 1, None);
        }
        if let Some(place) = self.slots.get_mut(slot) {
            *place = Some(run);
        }
    }

    pub(super) fn give_slot(&mut self, slot: usize) {
        if let Some(place) = self.slots.get_mut(slot) {
            debug_assert!(place.is_some(), "a slot that is freed was taken");
            *place = None;
            self.returned.insert(slot);
        }
        self.ready.remove(&slot);
    }

    /// The sequence in a slot.
    pub(super) fn run(&self, slot: usize) -> Option<usize> {
        self.slots.get(slot).copied().flatten()
    }

    /// Returns true if no slot has a sequence.
    pub(super) fn is_vacant(&self) -> bool {
        self.slots.len() == self.returned.len()
    }

    pub(super) fn runs(&self) -> impl Iterator<Item = usize> {
        self.slots.iter().filter_map(|run| *run)
    }

    /// The sequence in a slot has a request to run.
    pub(super) fn offer(&mut self, slot: usize, run: usize, number: u64, shape_key: &ShapeKey, now: Instant) {
        debug_assert_eq!(self.run(slot), Some(run), "a request is offered in the slot of its sequence");
        self.has_new_work = true;
        let Some(former) = &mut self.former else {
            self.ready.insert(slot);
            return;
        };
        let entry = Entry {
            token: RowOffer { run, number },
            rows: 1,
            shape_key: SmallVec::clone(shape_key),
            queued_at: now,
            priority: 0,
            timeout: std::time::Duration::ZERO,
            deadline: None,
        };
        // It has no bound that could be reached.
        let taken = former.handle_request(entry, now);
        debug_assert!(taken.is_ok(), "there are no more offers than slots");
    }

    /// The offer in a slot is withdrawn. The former drops it when it meets it, by its number.
    pub(super) fn withdraw(&mut self, slot: usize) {
        self.ready.remove(&slot);
    }

    pub(super) fn handle_drain(&mut self) {
        if let Some(former) = &mut self.former {
            former.handle_drain();
        }
    }

    /// It polls: its new work is no longer new.
    pub(super) fn handle_poll(&mut self) {
        (self.has_new_work, self.ask_at) = (false, None);
    }

    pub(super) fn take_attention(&mut self, now: Instant) -> bool {
        let is_due = self.ask_at.is_some_and(|at| at <= now);
        if is_due {
            self.ask_at = None;
        }
        std::mem::take(&mut self.has_new_work) || is_due
    }

    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.returned.clear();
        self.ready.clear();
        self.in_flight.clear();
        self.ended.clear();
        self.ask_at = None;
    }
}
