//! The parkings of all instances of one model version, and the wake-up protocol between them and
//! the threads that have work for them.
//!
//! The protocol is Dekker's handshake. A producer publishes its work, then a fence, then reads the
//! marks of the parkings. An instance marks itself parked, then a fence (`Parking::announce`), then
//! polls for work once more before it sleeps. With both fences sequentially consistent, at least
//! one of the two sees the other's write; without either of them both could read the old value, and
//! the work would wait for the next request. `sync/tests.rs` checks it in every order of the steps.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use crate::limits::INSTANCES_ADDED_MAX;
use crate::parking::Parking;
use crate::sync::{AtomicI64, fence};

/// The parkings of one model version's instances, by instance index. Of those of the load the passive ones are the last;
/// the places behind them are empty until instances are added.
pub struct Parkings {
    parkings: Box<[OnceLock<Arc<Parking>>]>,
    /// Rows missing until the next wake-up; 0 or less if every request must wake. Set while one
    /// instance sleeps only until the delay of a batch that may still grow: waking it for each row
    /// would cost a system call per request.
    rows_missing: AtomicI64,
}

impl Parkings {
    /// Creates the parkings, with every request waking an instance.
    pub fn new(parkings: Vec<Arc<Parking>>) -> Self {
        debug_assert!(parkings.is_sorted_by_key(|parking| parking.is_passive()), "the passive ones are the last");
        let places = parkings.into_iter().map(OnceLock::from);
        let empty = std::iter::repeat_with(OnceLock::new).take(INSTANCES_ADDED_MAX);
        Self { parkings: places.chain(empty).collect(), rows_missing: AtomicI64::new(0) }
    }

    /// Returns all, by instance index.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Parking>> {
        self.parkings.iter().map_while(OnceLock::get)
    }

    /// Returns that of one instance.
    pub fn get(&self, instance_index: usize) -> Option<&Arc<Parking>> {
        self.parkings.get(instance_index).and_then(OnceLock::get)
    }

    /// Adds the parking of another instance, and returns its index; `None` if all places are taken.
    pub(super) fn add(&self, parking: Arc<Parking>) -> Option<usize> {
        self.parkings.iter().position(|place| place.set(Arc::clone(&parking)).is_ok())
    }

    /// Returns the instances that there may be.
    pub const fn room(&self) -> usize {
        self.parkings.len()
    }

    /// Returns the times that a sleeping instance was woken.
    pub fn wakes(&self) -> usize {
        self.all().map(|parking| parking.wakes()).sum()
    }

    /// Returns the times that a lost instance was replaced.
    pub fn restarts(&self) -> usize {
        self.all().map(|parking| parking.restarts()).sum()
    }

    /// A request of `rows` rows was queued. Returns true if an instance must be woken for it; false
    /// if the batch that waits to grow still misses rows after it.
    pub fn handle_queued(&self, rows: u32) -> bool {
        // Pairs with the fence in `await_rows`: either this reads the rows that the instance waits
        // for, or the instance finds the request in the ring.
        fence(Ordering::SeqCst);
        let rows = i64::from(rows);
        let is_short =
            self.rows_missing.load(Ordering::SeqCst) > 0 && self.rows_missing.fetch_sub(rows, Ordering::SeqCst) > rows;
        !is_short
    }

    /// Every request must wake an instance from now on: the caller is about to drain the rings.
    pub fn await_any(&self) {
        self.rows_missing.store(0, Ordering::SeqCst);
    }

    /// `rows` rows must come before an instance needs to wake. The caller checks the rings
    /// afterwards.
    pub fn await_rows(&self, rows: u32) {
        self.rows_missing.store(rows.into(), Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Returns the rows set by [`Self::await_rows`], less those that came since.
    #[cfg(any(test, feature = "testing"))]
    pub fn rows_missing(&self) -> i64 {
        self.rows_missing.load(Ordering::SeqCst)
    }

    /// Wakes an instance for work that was published before.
    pub fn wake(&self) {
        // The producer's half of the handshake.
        fence(Ordering::SeqCst);
        self.wake_one();
    }

    /// Wakes the idle instance with the lowest turn: work is shared evenly, or by priority with a
    /// rate limit. Without a fence: for callers that hold the lock under which the work was found,
    /// or had a fence already.
    pub fn wake_one(&self) {
        // Another thread may unpark the chosen one first: then its work is not ours, and the next is tried.
        while let Some(idle) = self.all().filter(|parking| parking.is_idle()).min_by_key(|parking| parking.turn()) {
            if idle.unpark() {
                return;
            }
        }
    }

    /// Wakes all instances, also those that are passive.
    pub fn wake_all(&self) {
        // The producer's half of the handshake.
        fence(Ordering::SeqCst);
        for parking in self.all() {
            parking.unpark();
        }
    }
}
