//! What sleeps on one shard, by when it is to be woken. Pure but for the wakers.

use std::collections::BTreeMap;
use std::task::Waker;

use crate::time::Instant;

/// Names one sleeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimerKey {
    at: Instant,
    /// Tells those of the same instant apart, in the order in which they came.
    number: u64,
}

/// The sleepers of one shard.
#[derive(Debug, Default)]
pub struct TimerQueue {
    sleepers: BTreeMap<TimerKey, Waker>,
    count: u64,
}

impl TimerQueue {
    /// Wakes somebody at an instant.
    pub fn insert(&mut self, at: Instant, waker: Waker) -> TimerKey {
        let key = TimerKey { at, number: self.count };
        self.count += 1;
        self.sleepers.insert(key, waker);
        key
    }

    /// Wakes somebody else instead, or the same task by another waker.
    pub fn replace(&mut self, key: TimerKey, waker: &Waker) {
        if let Some(have) = self.sleepers.get_mut(&key) {
            have.clone_from(waker);
        }
    }

    /// Nobody waits for it any more.
    pub fn remove(&mut self, key: TimerKey) {
        self.sleepers.remove(&key);
    }

    /// Those who sleep, who are woken no more.
    pub fn take_wakers(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.sleepers).into_values().collect()
    }

    /// The next of those whose time has come.
    pub fn poll_due(&mut self, now: Instant) -> Option<Waker> {
        self.sleepers.first_entry().filter(|first| first.key().at <= now).map(|first| first.remove())
    }

    /// When the first must be woken.
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
