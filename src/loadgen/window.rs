//! The counts of one measurement window. Pure. Each load thread fills a window, and windows of several threads or times are
//! merged. A request belongs to the window in which it ended, so it is counted exactly once.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::loadgen::failure::{FailureCounts, RequestFailure};
use crate::time::Instant;

/// The longest time that the histogram records, in nanoseconds: longer ones count as this.
const LATENCY_MAX: u64 = 3_600_000_000_000;
/// Times beyond a percentile from which on it is shown: fewer are chance.
const BEYOND_MIN: f64 = 10.0;
/// Significant decimal digits of a recorded time.
const DIGITS: u8 = 3;

/// A histogram of times.
#[derive(Clone, Debug)]
pub struct WindowTimes(Histogram<u64>);

impl WindowTimes {
    /// An empty histogram.
    pub fn new() -> Self {
        Self(Histogram::new_with_bounds(1, LATENCY_MAX, DIGITS).expect("the bounds are constants that fit"))
    }

    /// Adds a time.
    pub fn record(&mut self, time: Duration) {
        self.0.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1));
    }

    /// Adds all times of another histogram.
    pub fn merge(&mut self, other: &Self) {
        self.0.add(&other.0).expect("both have the same bounds");
    }

    /// The number of times.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The time at a percentile from 0 to 100; zero if the histogram is empty.
    pub fn percentile(&self, percentile: f64) -> Duration {
        if self.0.is_empty() { Duration::ZERO } else { Duration::from_nanos(self.0.value_at_percentile(percentile)) }
    }

    /// Returns true if enough times lie beyond a percentile to tell it.
    pub fn tells(&self, percentile: f64) -> bool {
        // Rounded: 100 * (1 - 0.9) is a little less than 10.
        (self.count() as f64 * (1.0 - percentile / 100.0)).round() >= BEYOND_MIN
    }

    /// The number of times above a limit.
    pub fn count_above(&self, limit: Duration) -> u64 {
        let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX).clamp(1, LATENCY_MAX);
        self.0.len() - self.0.count_between(0, limit)
    }

    /// The mean.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.0.mean() as u64)
    }

    /// The standard deviation.
    pub fn deviation(&self) -> Duration {
        Duration::from_nanos(if self.0.is_empty() { 0 } else { self.0.stdev() as u64 })
    }

    /// The shortest.
    pub fn min(&self) -> Duration {
        Duration::from_nanos(if self.0.is_empty() { 0 } else { self.0.min() })
    }

    /// The longest.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.0.max())
    }
}

impl Default for WindowTimes {
    fn default() -> Self {
        Self::new()
    }
}

/// One window.
#[derive(Clone, Debug, Default)]
pub struct LoadWindow {
    /// Its start.
    pub began: Instant,
    /// Its end.
    pub ended: Instant,
    /// Requests whose first byte was sent in this window.
    pub sent: u64,
    /// Latencies of successful requests: to the last byte of the answer, from the first byte sent or from when the request
    /// was due.
    pub latency: WindowTimes,
    /// The delay with which each request of an open loop was sent.
    pub lag: WindowTimes,
    /// Requests that succeeded.
    pub succeeded: u64,
    /// Requests that failed.
    pub failures: FailureCounts,
    /// Requests that were due at the end of the window and had not ended.
    pub backlog: u64,
}

impl LoadWindow {
    /// An empty window.
    pub fn new(began: Instant) -> Self {
        Self { began, ended: began, ..Self::default() }
    }

    /// Counts a request that has ended. Only successes have a latency: a fast failure must not improve it.
    pub fn handle_outcome(&mut self, latency: Duration, outcome: Result<(), RequestFailure>) {
        match outcome {
            Ok(()) => {
                self.succeeded += 1;
                self.latency.record(latency);
            }
            Err(failure) => self.failures.add(failure),
        }
    }

    /// The number of requests that ended.
    pub fn ended_count(&self) -> u64 {
        self.succeeded + self.failures.total()
    }

    /// Merges the window of another thread at the same time. The result spans both.
    pub fn merge_thread(&mut self, other: &Self) {
        self.began = self.began.min(other.began);
        self.ended = self.ended.max(other.ended);
        self.backlog += other.backlog;
        self.merge_counts(other);
    }

    /// Adds the counts of another window; the duration stays.
    pub fn merge_counts(&mut self, other: &Self) {
        self.sent += other.sent;
        self.latency.merge(&other.latency);
        self.lag.merge(&other.lag);
        self.succeeded += other.succeeded;
        self.failures.merge(&other.failures);
    }

    /// Its duration.
    pub const fn duration(&self) -> Duration {
        self.ended.since(self.began)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loadgen::failure::FailureKind;

    fn within(got: Duration, want: Duration) {
        let (got, want) = (got.as_secs_f64(), want.as_secs_f64());
        assert!((got / want - 1.0).abs() < 0.001, "{got} is not {want}");
    }

    #[test]
    fn percentiles_are_exact_to_three_digits() {
        let mut times = WindowTimes::new();
        for micros in 1..=100_000 {
            times.record(Duration::from_micros(micros));
        }
        for (percentile, micros) in [(50.0, 50_000), (90.0, 90_000), (99.0, 99_000), (99.9, 99_900), (99.99, 99_990)] {
            within(times.percentile(percentile), Duration::from_micros(micros));
        }
        within(times.mean(), Duration::from_nanos(50_000_500));
        within(times.max(), Duration::from_micros(100_000));
        let above = times.count_above(Duration::from_micros(90_000));
        assert!((9_950..=10_000).contains(&above), "{above}: equal to three digits counts as not above");
        assert_eq!(times.count_above(Duration::from_secs(7200)), 0);
        assert!(times.tells(99.99) && !times.tells(99.999));
        let mut few = WindowTimes::new();
        (0..215).for_each(|_| few.record(Duration::from_millis(1)));
        assert_eq!([50.0, 95.0, 99.0].map(|percentile| few.tells(percentile)), [true, true, false]);
        assert_eq!(times.count(), 100_000);
        assert_eq!(WindowTimes::new().percentile(99.0), Duration::ZERO);
        assert_eq!((WindowTimes::new().deviation(), WindowTimes::new().min()), (Duration::ZERO, Duration::ZERO));
    }

    #[test]
    fn failures_are_in_the_count_and_not_in_the_latency() {
        let mut window = LoadWindow::new(Instant::from_micros(5));
        window.handle_outcome(Duration::from_millis(1), Ok(()));
        window.handle_outcome(Duration::from_secs(9), Err(RequestFailure::new(FailureKind::Timeout, "")));
        assert_eq!((window.succeeded, window.ended_count(), window.latency.count()), (1, 2, 1));
        within(window.latency.max(), Duration::from_millis(1));
    }

    #[test]
    fn merged_threads_share_their_time_and_add_their_counts() {
        let mut one = LoadWindow::new(Instant::from_micros(5));
        one.ended = Instant::from_micros(9);
        one.sent = 3;
        let mut other = LoadWindow::new(Instant::from_micros(6));
        other.ended = Instant::from_micros(11);
        other.sent = 4;
        one.merge_thread(&other);
        assert_eq!((one.duration(), one.sent), (Duration::from_micros(6), 7));
    }
}
