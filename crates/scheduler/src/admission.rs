//! Bounds the requests that wait for one model version: their number, by priority level where the
//! level has a bound of its own, and their bytes. Any thread enters and leaves. Each count is one
//! atomic number that never exceeds its bound, not even for an instant, so refusals are exact at
//! any concurrency.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::policy::Policy;
use base::limits::PRIORITY_LEVELS_MAX;

/// The bounds of a model version's queue where its configuration sets none.
#[derive(Clone, Copy, Debug)]
pub struct QueueBounds {
    /// Requests of all levels that have no bound of their own (`--queue-requests-max`).
    pub requests: usize,
    /// Bytes of the tensors of all waiting requests (`--queue-bytes-max`).
    pub bytes: usize,
}

/// The bound that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueFull {
    /// `--queue-bytes-max`.
    Bytes,
    /// `max_queue_size`, or `--queue-requests-max` where the level has none.
    Requests,
}

/// The counts of one model version's waiting requests.
///
/// ```
/// use scheduler::{Admission, Policy, QueueBounds};
///
/// let admission = Admission::new(&Policy::default(), QueueBounds { requests: 1, bytes: 100 });
/// assert!(admission.enter(0, 60).is_ok());
/// assert!(admission.enter(0, 10).is_err()); // one request waits already
/// admission.leave(0, 60);
/// assert!(admission.enter(0, 10).is_ok());
/// ```
#[derive(Debug)]
pub struct Admission {
    /// Of levels that have a bound of their own.
    levels: BTreeMap<u64, BoundedCount>,
    /// Of all other levels together.
    others: BoundedCount,
    bytes: BoundedCount,
}

#[derive(Debug)]
struct BoundedCount {
    value: AtomicUsize,
    max: usize,
}

impl Admission {
    /// Nothing waits yet. A level's `max_queue_size` takes the place of `bounds.requests`.
    pub fn new(policy: &Policy, bounds: QueueBounds) -> Self {
        let named = policy.queue_by_level.keys().copied();
        let levels = match policy.priority_levels {
            0 => BTreeMap::from([(0, ())]),
            // Levels past the counted ones share `others`. The check of the configuration allows none past them where the
            // default policy has a bound.
            count => (1..=count.min(PRIORITY_LEVELS_MAX)).chain(named).map(|level| (level, ())).collect(),
        };
        let bounded = levels.into_keys().filter_map(|level| {
            let max = policy.queue(level).entries_max;
            (max > 0).then(|| (level, BoundedCount::new(max)))
        });
        Self {
            levels: bounded.collect(),
            others: BoundedCount::new(bounds.requests),
            bytes: BoundedCount::new(bounds.bytes),
        }
    }

    /// Counts a request of a level and a size as waiting.
    ///
    /// # Errors
    /// [`QueueFull`] names the bound that is reached; nothing is counted then.
    pub fn enter(&self, level: u64, size: usize) -> Result<(), QueueFull> {
        let requests = self.requests(level);
        if !requests.add(1) {
            return Err(QueueFull::Requests);
        }
        if !self.bytes.add(size) {
            requests.sub(1);
            return Err(QueueFull::Bytes);
        }
        Ok(())
    }

    /// A request that entered no longer waits.
    #[inline]
    pub fn leave(&self, level: u64, size: usize) {
        self.requests(level).sub(1);
        self.bytes.sub(size);
    }

    /// Requests that wait.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.levels.values().chain([&self.others]).map(BoundedCount::get).fold(0, usize::saturating_add)
    }

    /// Bytes of the tensors of waiting requests.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes.get()
    }

    /// Requests that may wait, over all levels.
    #[inline]
    pub fn requests_max(&self) -> usize {
        self.levels.values().chain([&self.others]).map(|count| count.max).fold(0, usize::saturating_add)
    }

    fn requests(&self, level: u64) -> &BoundedCount {
        self.levels.get(&level).unwrap_or(&self.others)
    }
}

impl BoundedCount {
    const fn new(max: usize) -> Self {
        Self { value: AtomicUsize::new(0), max }
    }

    fn add(&self, amount: usize) -> bool {
        // A compare-and-swap loop, not add and undo: another thread would see the sum above the bound in between.
        let within = |have: usize| have.checked_add(amount).filter(|sum| *sum <= self.max);
        self.value.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_ok()
    }

    fn sub(&self, amount: usize) {
        let have = self.value.fetch_sub(amount, Ordering::Relaxed);
        debug_assert!(have >= amount, "a request leaves once, after it entered");
    }

    fn get(&self) -> usize {
        self.value.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::QueuePolicy;

    fn bounded(entries_max: usize) -> QueuePolicy {
        QueuePolicy { entries_max, ..QueuePolicy::default() }
    }

    const BOUNDS: QueueBounds = QueueBounds { requests: 3, bytes: 100 };

    #[test]
    fn a_level_with_a_bound_is_held_to_it_and_the_others_share_the_flags() {
        let queue_by_level = BTreeMap::from([(2, bounded(1))]);
        let policy = Policy { priority_levels: 4, priority_default: 1, queue_by_level, ..Policy::default() };
        let admission = Admission::new(&policy, BOUNDS);
        let got: Vec<_> = [2, 2, 1, 3, 4, 1].iter().map(|level| admission.enter(*level, 1)).collect();
        assert_eq!(got, [Ok(()), Err(QueueFull::Requests), Ok(()), Ok(()), Ok(()), Err(QueueFull::Requests)]);
        assert_eq!((admission.waiting(), admission.requests_max()), (4, 4));
        admission.leave(2, 1);
        assert_eq!(admission.enter(2, 1), Ok(()));
    }

    #[test]
    fn a_default_bound_holds_for_each_level_and_may_pass_the_flag() {
        let policy = Policy { priority_levels: 2, queue_default: bounded(5), ..Policy::default() };
        let admission = Admission::new(&policy, BOUNDS);
        for level in [1, 2].repeat(5) {
            assert_eq!(admission.enter(level, 1), Ok(()));
        }
        assert_eq!(
            (admission.enter(1, 1), admission.enter(2, 1)),
            (Err(QueueFull::Requests), Err(QueueFull::Requests))
        );
        let single = Admission::new(&Policy { queue_default: bounded(5), ..Policy::default() }, BOUNDS);
        assert_eq!((0..9).filter(|_| single.enter(0, 1).is_ok()).count(), 5);
    }

    #[test]
    fn a_refusal_for_bytes_takes_no_place() {
        let admission = Admission::new(&Policy::default(), BOUNDS);
        assert_eq!(admission.enter(0, 101), Err(QueueFull::Bytes));
        assert_eq!(admission.enter(0, usize::MAX), Err(QueueFull::Bytes));
        assert_eq!(admission.waiting(), 0);
        assert_eq!(admission.enter(0, 100), Ok(()));
        assert_eq!(admission.enter(0, 1), Err(QueueFull::Bytes));
        admission.leave(0, 100);
        assert_eq!(admission.enter(0, 1), Ok(()));
    }

    #[test]
    fn a_level_beyond_those_that_are_counted_apart_is_still_bounded() {
        let policy = Policy { priority_levels: u64::MAX, priority_default: 1, ..Policy::default() };
        let queue_by_level = BTreeMap::from([(u64::MAX, bounded(1))]);
        let admission = Admission::new(&Policy { queue_by_level, ..policy }, BOUNDS);
        assert_eq!((admission.enter(u64::MAX, 1), admission.enter(u64::MAX, 1)), (Ok(()), Err(QueueFull::Requests)));
        let got = (0..9).filter(|level| admission.enter(u64::MAX - 1 - level, 1).is_ok()).count();
        assert_eq!(got, 3);
    }
}
