//! A count of events and their total duration: `StatisticDuration` of Triton's statistics extension.

/// The number of times that something happened, and its total duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurationTotal {
    /// The number of times.
    pub count: u64,
    /// Total duration in nanoseconds.
    pub nanos: u64,
}
