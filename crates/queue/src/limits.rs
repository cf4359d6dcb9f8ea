//! The bounds that several modules of this crate share, each with its reason.

use std::time::Duration;

/// Batch sizes of one model version that have counters of their own; larger batches count under the last. Each takes 32
/// bytes, once for the workers or, for an inline model, once on each shard.
pub const BATCH_SIZES_MAX: usize = 4_096;
/// Bytes of a decoupled model's responses to one request that the client has not read yet. Beyond it the request fails:
/// the model ignored the backpressure of [`RESPONSES_UNREAD_MAX`], or its responses are large.
pub const RESPONSES_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Unread responses of a decoupled model to one request at which the model is asked to wait.
pub const RESPONSES_UNREAD_MAX: u32 = 1_024;
/// Bytes that a response counts as besides its contents.
pub const RESPONSE_COST: usize = 512;
/// Interval at which requests of a model with all instances given up are refused: no hurry.
pub const GIVEN_UP_PAUSE: Duration = Duration::from_millis(10);
/// Places for the instances that updates add to a model version, beside those of its load. A place is used again for an
/// instance of the same name. Each takes a pointer and two counters; when all are taken, the model is loaded again.
pub const INSTANCES_ADDED_MAX: usize = 64;
/// Bytes of the records of traces that wait for their writer: those with tensors keep the buffers of their requests.
pub const TRACE_QUEUE_SIZE_MAX: usize = 64 * 1024 * 1024;
/// Clients that wait for one model's own code to say whether it is ready. They share one question; each holds a channel
/// until it is answered, and code that hangs never answers.
pub const MODEL_READY_ASKERS_MAX: usize = 1_024;
const _: () = assert!(
    RESPONSES_UNREAD_MAX as usize * RESPONSE_COST < RESPONSES_BYTES_MAX,
    "a model asked to wait can still send small responses"
);
const _: () = assert!(BATCH_SIZES_MAX > 1_024, "every bucket of the batch size histogram has sizes of its own");
