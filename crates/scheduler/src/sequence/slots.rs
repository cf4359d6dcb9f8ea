//! Assigns slots to sequences: a sequence gets the lowest free slot over all instances, or waits in
//! the backlog.

use std::collections::VecDeque;
use std::hash::Hash;

use crate::sequence::instance::InstanceSlots;
use crate::sequence::run::{SequencePlace, SequenceRun};
use crate::sequence::{SequenceEnd, Sequences};
use base::time::Instant;

impl<K: Clone + Eq + Hash, T> Sequences<K, T> {
    /// Starts a sequence, in a slot or in the backlog.
    pub(super) fn begin(&mut self, id: &K, now: Instant) -> usize {
        self.number += 1;
        let run = self.runs.insert(SequenceRun::new(id.clone(), self.number, now));
        self.open.insert(id.clone(), run);
        if !self.place(run) {
            self.backlog.insert(self.number, run);
        }
        run
    }

    /// Gives a sequence the lowest free slot over all instances, as Triton does.
    pub(super) fn place(&mut self, run: usize) -> bool {
        let slots = self.policy.slots;
        let free = |(index, instance): (usize, &InstanceSlots)| Some((instance.free_slot(slots)?, index));
        let Some((slot, index)) = self.instances.iter().enumerate().filter_map(free).min() else { return false };
        let (Some(instance), Some(held)) = (self.instances.get_mut(index), self.runs.get_mut(run)) else {
            return false;
        };
        instance.take_slot(slot, run);
        held.place = SequencePlace::Slot { instance: index, slot };
        true
    }

    /// Moves a sequence back to the backlog, to its old place: its number is its order there.
    pub(super) fn unplace(&mut self, run: usize) {
        let Some(held) = self.runs.get_mut(run) else { return };
        if let SequencePlace::Slot { instance, slot } = held.place
            && let Some(instance) = self.instances.get_mut(instance)
        {
            instance.give_slot(slot);
        }
        (held.place, held.offer) = (SequencePlace::Backlog, None);
        let replaced = self.backlog.insert(held.number, run);
        debug_assert!(replaced.is_none(), "a sequence waits for a slot once");
        self.set_alarm(run);
    }

    /// Gives free slots to the sequences that have waited longest.
    pub(super) fn fill(&mut self, now: Instant) {
        while let Some((number, run)) = self.backlog.first_key_value().map(|(number, run)| (*number, *run)) {
            if !self.place(run) {
                return;
            }
            self.backlog.remove(&number);
            self.clear_alarm(run);
            self.attend(run, now);
        }
    }

    /// Updates the wait of a sequence. In a slot: its next request is offered to the instance, or, without one, its
    /// idle timer starts. In the backlog: its timer for a slot.
    pub(super) fn attend(&mut self, run: usize, now: Instant) {
        let Some(held) = self.runs.get_mut(run) else { return };
        let SequencePlace::Slot { instance, slot } = held.place else { return self.set_alarm(run) };
        let Some(instance) = self.instances.get_mut(instance) else { return };
        if held.flight.is_some() {
            return;
        }
        match held.queue.front() {
            None if self.is_draining => self.finish(run, SequenceEnd::Unload),
            None => {
                // Frees the queue's buffer: it is much larger than an idle sequence, and there may be many of those.
                held.queue = VecDeque::new();
                self.set_alarm(run);
            }
            Some(front) if held.offer.is_none() => {
                self.number += 1;
                held.offer = Some(self.number);
                instance.offer(slot, run, self.number, &front.shape_key, now);
            }
            Some(_) => {}
        }
    }
}
