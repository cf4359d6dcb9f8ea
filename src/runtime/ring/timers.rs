//! The timers of one shard, sorted by expiry. Pure but for the wakers.

use std::collections::BTreeMap;
use std::task::Waker;

use crate::time::Instant;

/// Names one timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimerKey {
    at: Instant,
    /// Order of insertion, for timers of the same instant.
    number: u64,
}

/// The timers of one shard.
#[derive(Debug, Default)]
pub struct TimerQueue {
    sleepers: BTreeMap<TimerKey, Waker>,
    count: u64,
}

impl TimerQueue {
    /// Wakes a task at an instant.
    pub fn insert(&mut self, at: Instant, waker: Waker) -> TimerKey {
        let key = TimerKey { at, number: self.count };
        self.count += 1;
        self.sleepers.insert(key, waker);
        key
    }

    /// Replaces the waker of a timer.
    pub fn replace(&mut self, key: TimerKey, waker: &Waker) {
        if let Some(have) = self.sleepers.get_mut(&key) {
            have.clone_from(waker);
        }
    }

    /// Removes a timer.
    pub fn remove(&mut self, key: TimerKey) {
        self.sleepers.remove(&key);
    }

    /// Removes all timers and returns their wakers.
    pub fn take_wakers(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.sleepers).into_values().collect()
    }

    /// Removes the next expired timer and returns its waker.
    pub fn poll_due(&mut self, now: Instant) -> Option<Waker> {
        self.sleepers.first_entry().filter(|first| first.key().at <= now).map(|first| first.remove())
    }

    /// Returns the instant at which the first timer expires.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.sleepers.first_key_value().map(|(key, _)| key.at)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    struct Number(usize, Arc<AtomicUsize>);

    impl Wake for Number {
        fn wake(self: Arc<Self>) {
            self.1.store(self.0, Ordering::SeqCst);
        }
    }

    #[test]
    fn sleepers_wake_in_order_and_those_that_left_do_not() {
        let woken = Arc::new(AtomicUsize::new(0));
        let waker = |number| Waker::from(Arc::new(Number(number, Arc::clone(&woken))));
        let mut timers = TimerQueue::default();
        let at = Instant::from_micros;
        timers.insert(at(20), waker(3));
        timers.insert(at(10), waker(1));
        timers.insert(at(10), waker(2));
        let gone = timers.insert(at(15), waker(9));
        timers.remove(gone);
        assert_eq!(timers.poll_timeout(), Some(at(10)));
        let mut order = Vec::new();
        for now in [9, 10, 19, 20] {
            while let Some(waker) = timers.poll_due(at(now)) {
                waker.wake();
                order.push((now, woken.load(Ordering::SeqCst)));
            }
        }
        assert_eq!((order, timers.poll_timeout()), (vec![(10, 1), (10, 2), (20, 3)], None));
    }
}
