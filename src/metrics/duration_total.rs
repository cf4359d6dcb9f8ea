//! A count and the time that it took.

/// How often something was, and how long it took altogether.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurationTotal {
    /// How often.
    pub count: u64,
    /// How long, in nanoseconds.
    pub nanos: u64,
}
