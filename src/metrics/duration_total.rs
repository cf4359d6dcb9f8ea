//! A count of events and their total duration: `StatisticDuration` of Triton's statistics extension.

/// How many times something happened, and how long it took in total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurationTotal {
    /// How many times.
    pub count: u64,
    /// Total duration in nanoseconds.
    pub nanos: u64,
}
