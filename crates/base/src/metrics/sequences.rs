//! The sequences of one model version, as metrics show them.

/// The sequences of one model version.
#[derive(Clone, Debug, Default)]
pub struct SequenceFigures {
    /// Sequences that have a slot.
    pub active: u64,
    /// Sequences waiting for a slot.
    pub backlogged: u64,
    /// Requests that were to continue a sequence which does not exist here.
    pub unknown: u64,
    /// Sequences that ended, by reason; every reason is listed.
    pub ends: Vec<(&'static str, u64)>,
}
