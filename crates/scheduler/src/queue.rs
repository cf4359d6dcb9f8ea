//! The entries of a scheduler in the order in which they are batched: by priority level, within a
//! level by arrival, and those past their timeout last (`TimeoutAction::Delay`). Linked lists in
//! one slab, so that an entry in the middle can expire or move without a scan: every operation
//! takes constant time, except for finding the list among the non-empty ones. Used by the scheduler
//! only, which bounds it.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

/// Names an entry until it is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueuePlace(usize);

/// Names a list; lower ones are batched first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// The priority level.
    pub level: u64,
    /// True if its timeout has passed.
    pub is_delayed: bool,
}

/// The entries, in order.
#[derive(Debug)]
pub struct Queue<E> {
    slots: Vec<QueueSlot<E>>,
    vacant: Vec<QueuePlace>,
    /// The lists that are not empty.
    lists: BTreeMap<Rank, ShapeList>,
}

#[derive(Debug)]
struct QueueSlot<E> {
    held: Option<E>,
    rank: Rank,
    previous: Option<QueuePlace>,
    next: Option<QueuePlace>,
}

#[derive(Clone, Copy, Debug)]
struct ShapeList {
    first: QueuePlace,
    last: QueuePlace,
}

impl<E> Queue<E> {
    /// An empty queue.
    #[inline]
    pub const fn new() -> Self {
        Self { slots: Vec::new(), vacant: Vec::new(), lists: BTreeMap::new() }
    }

    /// Adds to the end of a list.
    pub fn push(&mut self, rank: Rank, entry: E) -> QueuePlace {
        let slot = QueueSlot { held: Some(entry), rank, previous: None, next: None };
        let place = self.vacant.pop().unwrap_or(QueuePlace(self.slots.len()));
        debug_assert!(self.get(place).is_none(), "a reused slot is vacant");
        match self.slots.get_mut(place.0) {
            Some(vacant) => *vacant = slot,
            None => self.slots.push(slot),
        }
        self.link(place, rank);
        place
    }

    /// Removes an entry.
    pub fn take(&mut self, place: QueuePlace) -> Option<E> {
        let entry = self.slots.get_mut(place.0)?.held.take()?;
        self.unlink(place);
        self.vacant.push(place);
        debug_assert_eq!(self.lists.is_empty(), self.len() == 0, "each entry is in a list, and no list is empty");
        Some(entry)
    }

    /// Moves an entry to the end of another list.
    pub fn move_to(&mut self, place: QueuePlace, rank: Rank) {
        if self.get(place).is_some() {
            self.unlink(place);
            self.link(place, rank);
        }
    }

    /// An entry, if it was not taken.
    #[inline]
    pub fn get(&self, place: QueuePlace) -> Option<&E> {
        self.slots.get(place.0)?.held.as_ref()
    }

    /// An entry to change, if it was not taken.
    #[inline]
    pub fn get_mut(&mut self, place: QueuePlace) -> Option<&mut E> {
        self.slots.get_mut(place.0)?.held.as_mut()
    }

    /// The list of an entry.
    #[inline]
    pub fn rank(&self, place: QueuePlace) -> Option<Rank> {
        self.slots.get(place.0).map(|slot| slot.rank)
    }

    /// The entry to batch first.
    #[inline]
    pub fn first(&self) -> Option<QueuePlace> {
        self.lists.first_key_value().map(|(_, ends)| ends.first)
    }

    /// Returns the place after another one.
    pub fn next(&self, place: QueuePlace) -> Option<QueuePlace> {
        let slot = self.slots.get(place.0)?;
        slot.next.or_else(|| {
            let mut later = self.lists.range((Excluded(slot.rank), Unbounded));
            later.next().map(|(_, ends)| ends.first)
        })
    }

    /// Returns the number of entries.
    #[inline]
    pub const fn len(&self) -> usize {
        self.slots.len() - self.vacant.len()
    }

    fn link(&mut self, place: QueuePlace, rank: Rank) {
        let ends = self.lists.entry(rank).or_insert(ShapeList { first: place, last: place });
        let previous = (ends.last != place).then_some(ends.last);
        ends.last = place;
        if let Some(slot) = self.slots.get_mut(place.0) {
            (slot.rank, slot.previous, slot.next) = (rank, previous, None);
        }
        self.set_next(previous, Some(place));
        debug_assert!(self.is_end(rank), "a list begins and ends where it is said to");
    }

    fn unlink(&mut self, place: QueuePlace) {
        let Some(slot) = self.slots.get(place.0) else { return };
        let (rank, previous, next) = (slot.rank, slot.previous, slot.next);
        let beside = |other: Option<QueuePlace>| other.and_then(|other| self.slots.get(other.0));
        debug_assert!(beside(previous).is_none_or(|slot| slot.next == Some(place)), "the one before leads here");
        debug_assert!(beside(next).is_none_or(|slot| slot.previous == Some(place)), "the one behind leads back");
        self.set_next(previous, next);
        if let Some(slot) = next.and_then(|next| self.slots.get_mut(next.0)) {
            slot.previous = previous;
        }
        match (self.lists.get_mut(&rank), previous, next) {
            (Some(ends), None, Some(next)) => ends.first = next,
            (Some(ends), Some(previous), None) => ends.last = previous,
            (_, None, None) => drop(self.lists.remove(&rank)),
            _ => {}
        }
        debug_assert!(self.is_end(rank), "a list begins and ends where it is said to");
    }

    /// Returns true if nothing is before the first of a list, or behind its last.
    fn is_end(&self, rank: Rank) -> bool {
        let ends = self.lists.get(&rank).map(|ends| (self.slots.get(ends.first.0), self.slots.get(ends.last.0)));
        ends.is_none_or(|(first, last)| {
            first.is_some_and(|slot| slot.previous.is_none()) && last.is_some_and(|slot| slot.next.is_none())
        })
    }

    fn set_next(&mut self, place: Option<QueuePlace>, next: Option<QueuePlace>) {
        if let Some(slot) = place.and_then(|place| self.slots.get_mut(place.0)) {
            slot.next = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(level: u64, is_delayed: bool) -> Rank {
        Rank { level, is_delayed }
    }

    fn shown(queue: &Queue<char>) -> String {
        std::iter::successors(queue.first(), |place| queue.next(*place)).filter_map(|place| queue.get(place)).collect()
    }

    #[test]
    fn the_order_is_by_level_then_delay_then_arrival() {
        let mut queue = Queue::new();
        for (entry, level, is_delayed) in [('e', 2, false), ('c', 1, true), ('a', 1, false), ('f', 2, true)] {
            queue.push(rank(level, is_delayed), entry);
        }
        let late = queue.push(rank(1, false), 'b');
        queue.push(rank(1, true), 'd');
        assert_eq!(shown(&queue), "abcdef");
        queue.move_to(late, rank(1, true));
        assert_eq!((shown(&queue).as_str(), queue.rank(late)), ("acdbef", Some(rank(1, true))));
    }

    #[test]
    fn what_leaves_from_any_place_leaves_the_others_in_order() {
        for gone in 0..5_usize {
            let mut queue = Queue::new();
            let places: Vec<_> = "abcde".chars().map(|entry| queue.push(rank(0, false), entry)).collect();
            let entry = queue.take(places[gone]).unwrap();
            assert_eq!(queue.take(places[gone]), None);
            assert_eq!(shown(&queue), "abcde".replace(entry, ""));
            queue.push(rank(0, false), 'z');
            assert_eq!(shown(&queue), "abcdez".replace(entry, ""));
            assert_eq!((queue.len(), queue.slots.len()), (5, 5), "the place is used again");
        }
    }

    #[test]
    fn an_emptied_queue_holds_no_list() {
        let mut queue = Queue::new();
        for level in 0..100 {
            let place = queue.push(rank(level, false), 'a');
            queue.take(place);
        }
        assert_eq!((queue.len(), queue.lists.len(), queue.slots.len(), queue.first()), (0, 0, 1, None));
    }
}
