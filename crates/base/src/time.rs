//! Time as a plain number. The core never reads a clock: `now` is an argument, so tests and simulations
//! choose it. Only `runtime::clock` reads one; shards pass its instants on, workers get it as a [`Clock`].

use std::ops::{Add, Sub};
use std::time::Duration;

/// Nanoseconds since the process started, on a monotonic clock. Arithmetic saturates.
///
/// ```
/// use std::time::Duration;
///
/// use base::time::Instant;
///
/// let began = Instant::from_micros(5);
/// let ended = began + Duration::from_micros(2);
/// assert_eq!(ended.since(began), Duration::from_micros(2));
/// assert_eq!(began.since(ended), Duration::ZERO);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The start of the process.
    pub const ZERO: Self = Self(0);

    /// Converts nanoseconds since the start.
    #[inline]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Converts microseconds since the start.
    #[inline]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// Returns the nanoseconds since the start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time from `earlier` to this instant; zero if this one is the earlier.
    #[inline]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, after: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    fn sub(self, before: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(before.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// The function that a worker calls to stamp its work: the shards' clock, or a test's.
pub type Clock = fn() -> Instant;

/// The instants of one request that Triton's four durations are computed from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamps {
    /// The last byte of the request was read.
    pub received: Instant,
    /// The request left its queue in a batch.
    pub batched: Instant,
    /// The inputs of the batch were ready for the engine.
    pub input_end: Instant,
    /// The engine returned.
    pub infer_end: Instant,
    /// The outputs of the batch were split by request.
    pub output_end: Instant,
}

impl Stamps {
    /// Returns `nv_inference_queue_duration_us`.
    #[inline]
    pub const fn queue_duration(&self) -> Duration {
        self.batched.since(self.received)
    }

    /// Returns `nv_inference_compute_input_duration_us`.
    #[inline]
    pub const fn compute_input_duration(&self) -> Duration {
        self.input_end.since(self.batched)
    }

    /// Returns `nv_inference_compute_infer_duration_us`.
    #[inline]
    pub const fn compute_infer_duration(&self) -> Duration {
        self.infer_end.since(self.input_end)
    }

    /// Returns `nv_inference_compute_output_duration_us`.
    #[inline]
    pub const fn compute_output_duration(&self) -> Duration {
        self.output_end.since(self.infer_end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_never_go_below_zero_and_sums_never_wrap() {
        let early = Instant::from_micros(5);
        let late = Instant::from_micros(7);
        assert_eq!(late.since(early), Duration::from_micros(2));
        assert_eq!(early.since(late), Duration::ZERO);
        assert_eq!((early + Duration::MAX).as_nanos(), u64::MAX);
        assert_eq!(early - Duration::from_secs(1), Instant::ZERO);
    }

    #[test]
    fn the_four_durations_add_up_to_the_time_in_the_server() {
        let at = Instant::from_micros;
        let stamps =
            Stamps { received: at(1), batched: at(4), input_end: at(5), infer_end: at(25), output_end: at(27) };
        let sum = stamps.queue_duration()
            + stamps.compute_input_duration()
            + stamps.compute_infer_duration()
            + stamps.compute_output_duration();
        assert_eq!(sum, Duration::from_micros(26));
    }
}
