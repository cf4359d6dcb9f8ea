//! The rate limit as the instances of all models share it: [`Rate`] behind one lock, taken by
//! instance threads, twice for a batch, and never while anything runs; and the waking of those
//! whose resources come free. It is there only with `--rate-limit=execution_count`. Where a feed is
//! locked too, the feed's lock is taken first.

#![expect(clippy::disallowed_types, reason = "per batch, among instance threads, and only where a rate limit is set")]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use crate::scheduler::rate::Rate;
use crate::shard::feed::Seat;

/// Who may run, of all instances that take resources.
pub struct Limiter {
    rate: Mutex<Rate>,
    /// By the ids of `rate`.
    seats: Box<[Arc<Seat>]>,
}

impl Limiter {
    /// Nothing runs yet. The seats are in the order of the ids.
    pub fn new(rate: Rate, seats: Vec<Arc<Seat>>) -> Self {
        Self { rate: Mutex::new(rate), seats: seats.into() }
    }

    /// The last run of an instance, if there was one, is over, and it has work or has none.
    /// Answers whether it may run it; if not, it is woken when it may.
    pub fn ask(&self, id: usize, is_ready: bool) -> bool {
        let mut rate = self.lock();
        rate.handle_end(id);
        if is_ready {
            rate.handle_ask(id);
        } else {
            rate.handle_withdraw(id);
        }
        let granted = self.grant(&mut rate);
        let is_granted = rate.is_granted(id);
        self.set_blocked(id, rate.is_waiting(id));
        drop(rate);
        self.wake(granted.into_iter().filter(|granted| *granted != id));
        is_granted
    }

    /// An instance that may run begins to, and these others of its model have no work any more.
    /// Answers whether any of them had been waiting.
    pub fn start(&self, id: usize, siblings: impl Iterator<Item = usize>) -> bool {
        let mut rate = self.lock();
        rate.handle_start(id);
        if let Some(seat) = self.seats.get(id) {
            seat.set_turn(rate.pass(id));
        }
        let mut is_any_idle = false;
        for sibling in siblings.filter(|sibling| *sibling != id) {
            is_any_idle |= rate.is_waiting(sibling) || rate.is_granted(sibling);
            rate.handle_withdraw(sibling);
            self.set_blocked(sibling, false);
        }
        let granted = self.grant(&mut rate);
        drop(rate);
        self.wake(granted);
        is_any_idle
    }

    fn grant(&self, rate: &mut Rate) -> SmallVec<[usize; 4]> {
        let granted: SmallVec<_> = std::iter::from_fn(|| rate.poll_grant()).collect();
        granted.iter().for_each(|id| self.set_blocked(*id, false));
        granted
    }

    /// An instance that was about to sleep is not asleep yet, and asks once more before it is.
    fn wake(&self, granted: impl IntoIterator<Item = usize>) {
        for seat in granted.into_iter().filter_map(|id| self.seats.get(id)) {
            seat.unpark();
        }
    }

    fn set_blocked(&self, id: usize, is_blocked: bool) {
        if let Some(seat) = self.seats.get(id) {
            seat.set_blocked(is_blocked);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Rate> {
        self.rate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
