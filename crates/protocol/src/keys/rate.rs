//! The rate limit of a client: a bucket of requests that fills at a rate, as one number that all
//! shards share. Pure: the instant is an argument, and shards whose clocks differ a little only
//! move it forward.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::limits::{API_KEY_BURST_MAX, API_KEY_INTERVAL_MAX};
use base::time::Instant;

/// A number of requests per second, and of requests at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRate {
    /// The time between two requests at this rate.
    interval_nanos: u64,
    /// The time by which a client may be ahead of that pace: the burst, less the request itself.
    ahead_nanos: u64,
}

const _: () = assert!(
    (API_KEY_INTERVAL_MAX.as_nanos() as u64).checked_mul(API_KEY_BURST_MAX as u64).is_some(),
    "a bucket that is ahead by its burst is still a number"
);

impl KeyRate {
    /// A rate of at least one request in `API_KEY_INTERVAL_MAX`, and a burst of at least one.
    pub fn new(interval: Duration, burst: u32) -> Self {
        let interval_nanos = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        let ahead_nanos = interval_nanos.saturating_mul(u64::from(burst.saturating_sub(1)));
        Self { interval_nanos, ahead_nanos }
    }
}

/// The rest of a client's burst: the instant until which its requests so far last at its rate (the
/// generic cell rate algorithm). Exact over all threads, without a lock.
#[derive(Debug, Default)]
pub struct KeyBucket(AtomicU64);

impl KeyBucket {
    /// Takes one request out.
    ///
    /// # Errors
    /// The time until the next request may pass, if none may now; then nothing is taken.
    pub fn take(&self, rate: KeyRate, now: Instant) -> Result<(), Duration> {
        self.take_many(rate, 1, now)
    }

    /// Takes `count` out if one may pass: the rest is a debt, which later ones wait for. So a count above the burst passes too.
    ///
    /// # Errors
    /// The time until the next may pass, if none may now; then nothing is taken.
    pub fn take_many(&self, rate: KeyRate, count: u64, now: Instant) -> Result<(), Duration> {
        let now = now.as_nanos();
        let taken = rate.interval_nanos.saturating_mul(count);
        let later = |until: u64| {
            let ahead = until.saturating_sub(now);
            (ahead <= rate.ahead_nanos).then(|| until.max(now).saturating_add(taken))
        };
        match self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later) {
            Ok(_) => Ok(()),
            Err(until) => Err(Duration::from_nanos(until.saturating_sub(now).saturating_sub(rate.ahead_nanos))),
        }
    }

    /// Corrects a count that was taken by an estimate.
    pub fn correct(&self, rate: KeyRate, estimate: u64, count: u64) {
        let more = rate.interval_nanos.saturating_mul(count.saturating_sub(estimate));
        let less = rate.interval_nanos.saturating_mul(estimate.saturating_sub(count));
        let corrected = |until: u64| Some(until.saturating_add(more).saturating_sub(less));
        // The closure always has a next value.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, corrected);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks at each of these milliseconds; `+` if the request passes, the milliseconds to wait
    /// otherwise.
    fn asked(per_second: u64, burst: u32, at: &[u64]) -> String {
        let rate = KeyRate::new(Duration::from_nanos(1_000_000_000 / per_second), burst);
        let bucket = KeyBucket::default();
        let ask = |at: &u64| match bucket.take(rate, Instant::from_micros(at * 1_000)) {
            Ok(()) => "+".to_owned(),
            Err(wait) => wait.as_millis().to_string(),
        };
        at.iter().map(ask).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn many_pass_together_and_the_next_wait_for_all_of_them() {
        let rate = KeyRate::new(Duration::from_millis(1), 100);
        let at = |millis: u64| Instant::from_micros(millis * 1_000);
        let bucket = KeyBucket::default();
        let take = |count, millis| bucket.take_many(rate, count, at(millis)).map_err(|wait| wait.as_millis());
        assert_eq!(take(1_000, 5_000), Ok(()), "more than the burst, since nothing is owed");
        assert_eq!(take(1, 5_000), Err(901));
        assert_eq!(take(1, 5_900), Err(1));
        assert_eq!((take(7, 5_901), take(1, 5_901)), (Ok(()), Err(7)), "the burst is owed, and one may pass");
        bucket.correct(rate, 7, 3);
        assert_eq!(take(1, 5_901), Err(3));
        bucket.correct(rate, 3, 13);
        assert_eq!(take(1, 5_901), Err(13));
        bucket.correct(rate, u64::MAX, 0);
        assert_eq!(take(1, 5_901), Ok(()));
    }

    #[test]
    fn a_bucket_gives_its_burst_at_once_and_then_keeps_to_its_rate() {
        let check = |per_second, burst, at: &[u64], want: &str| {
            assert_eq!(asked(per_second, burst, at), want, "{per_second} a second, {burst} at once, at {at:?}");
        };
        check(10, 1, &[0, 0, 99, 100, 150, 200, 400, 400], "+ 100 1 + 50 + + 100");
        check(10, 3, &[0, 0, 0, 0, 100, 100], "+ + + 100 + 100");
        check(10, 3, &[0, 0, 0, 10_000, 10_000, 10_000, 10_000], "+ + + + + + 100"); // at most the burst is saved
        check(1, 2, &[500, 500, 400, 1_500], "+ + 1100 +"); // a shard whose clock is behind
        check(1_000, 1, &[5, 5, 6, 6], "+ 1 + 1");
    }

    #[test]
    fn threads_that_ask_together_get_what_one_would() {
        let rate = KeyRate::new(Duration::from_secs(1), 100);
        let bucket = KeyBucket::default();
        let ask = || (0..200).filter(|_| bucket.take(rate, Instant::from_micros(7)).is_ok()).count();
        let passed: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(passed, 100);
    }
}
