//! The bounds that several modules of this crate share, each with its reason.

use std::time::Duration;

use base::limits::GPU_BUFFER_ALIGNMENT;

/// Different input shapes that an instance remembers to be within its bound on memory: those of all lengths of a text,
/// for some batch sizes. Beyond it the memory starts again, and a run costs an estimate.
pub const RUN_SHAPES_MAX: usize = 4_096;
/// Steps of a row through all trees, by their depths, up to which a tree model may run on a shard: half a millisecond at
/// most. The time that a row of zeros takes says nothing of other rows' ways.
pub const TREE_INLINE_STEPS_MAX: usize = 200_000;
/// Batches of one instance in flight on a GPU: one computes while the next is uploaded or the last is downloaded.
pub const GPU_FLIGHTS_MAX: usize = 2;
/// Interval at which an instance polls a batch on a GPU that reports nothing: a broken context runs no callbacks.
pub const GPU_POLL: Duration = Duration::from_millis(1);
/// Bytes of a model file up to which a GPU engine opens one session for each stream of an instance, each with its own
/// copy of the weights: 256 MiB more is little on the GPUs that run it.
pub const GPU_COPIED_MODEL_SIZE_MAX: u64 = 256 * 1024 * 1024;
const _: () = assert!(GPU_BUFFER_ALIGNMENT.is_power_of_two() && GPU_FLIGHTS_MAX >= 2, "an upload can overlap a run");
