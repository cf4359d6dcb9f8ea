//! The bounds that several modules of this crate share, each with its reason.

/// Runs of a batch size whose median is a row's cost in it: enough to outweigh interrupted ones.
pub const ROW_COST_RUNS: usize = 31;
/// The inverse of the part by which a batch size must be cheaper to replace another: 2 %, twice the
/// noise of a median of [`ROW_COST_RUNS`] runs that vary by 5 %.
pub const ROW_COST_MARGIN: u64 = 50;
/// Runs of one size of rows and length whose median is its cost: enough to outweigh interrupted ones, few enough to follow a change
/// within a second.
pub const PADDED_RUNS_KEPT: usize = 15;
/// Classes of length, up to each power of two: as many as the tokens of a request need. Longer rows count as the last.
pub const PADDED_LENGTH_CLASSES: usize = 22;
