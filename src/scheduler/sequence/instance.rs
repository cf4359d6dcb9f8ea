//! The slots of one instance, and what waits in them to run. Used by [`super::Sequences`] only.
//! Memory is taken as slots are used, from the lowest.

use std::collections::BTreeSet;

use smallvec::SmallVec;

use crate::scheduler::{Entry, Policy, Scheduler, ShapeKey};
use crate::time::Instant;

/// One instance.
#[derive(Debug)]
pub(super) struct InstanceSlots {
    /// The sequence of each slot, as far as slots were ever used.
    slots: Vec<Option<usize>>,
    /// Free slots among those.
    returned: BTreeSet<usize>,
    /// Of a direct strategy: slots whose sequence has a request to run.
    pub(super) ready: BTreeSet<usize>,
    /// Of an oldest strategy: the sequences with a request to run, as a queue of its own.
    pub(super) former: Option<Scheduler<RowOffer>>,
    /// Sequences that its batch has requests of, with their numbers.
    pub(super) in_flight: Vec<(usize, u64)>,
    /// Slots whose sequences were ended, until a batch tells.
    pub(super) ended: Vec<usize>,
    /// When it asked to be asked again.
    pub(super) ask_at: Option<Instant>,
    /// Whether something came for it since it asked.
    has_news: bool,
    /// Whether it died and was not made anew.
    pub(super) is_down: bool,
}

/// The first request of a sequence, as an instance sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowOffer {
    pub(super) run: usize,
    /// Tells it from one that was withdrawn.
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
            has_news: false,
            is_down: false,
        }
    }

    /// The lowest free slot, of so many.
    pub(super) fn free_slot(&self, slots: usize) -> Option<usize> {
        if self.is_down {
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
            debug_assert!(place.is_some(), "a slot is given back by who has it");
            *place = None;
            self.returned.insert(slot);
        }
        self.ready.remove(&slot);
    }

    /// The sequence in a slot.
    pub(super) fn run(&self, slot: usize) -> Option<usize> {
        self.slots.get(slot).copied().flatten()
    }

    pub(super) fn runs(&self) -> impl Iterator<Item = usize> {
        self.slots.iter().filter_map(|run| *run)
    }

    /// The sequence in a slot has a request to run.
    pub(super) fn offer(&mut self, slot: usize, run: usize, number: u64, shape_key: &ShapeKey, now: Instant) {
        debug_assert_eq!(self.run(slot), Some(run), "a request is offered in the slot of its sequence");
        self.has_news = true;
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
        // Its bound is beyond what there are sequences.
        let taken = former.handle_request(entry, now);
        debug_assert!(taken.is_ok(), "there are no more offers than slots");
    }

    /// It has none after all. In a former it is known by its number.
    pub(super) fn withdraw(&mut self, slot: usize) {
        self.ready.remove(&slot);
    }

    pub(super) fn handle_drain(&mut self) {
        if let Some(former) = &mut self.former {
            former.handle_drain();
        }
    }

    /// It asks: what came is news no more.
    pub(super) fn handle_poll(&mut self) {
        (self.has_news, self.ask_at) = (false, None);
    }

    pub(super) fn take_attention(&mut self, now: Instant) -> bool {
        let is_due = self.ask_at.is_some_and(|at| at <= now);
        if is_due {
            self.ask_at = None;
        }
        std::mem::take(&mut self.has_news) || is_due
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
