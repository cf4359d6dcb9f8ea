//! The bounds that several modules of this crate share, each with its reason.

use std::time::Duration;

/// Time between two requests at the lowest rate: a quarter of an hour; rarer clients need a queue.
pub const API_KEY_INTERVAL_MAX: Duration = Duration::from_secs(1_000);
/// Requests that a client may be given at once, beyond its rate.
pub const API_KEY_BURST_MAX: u32 = 1_000_000;
/// Requests in flight that a client may be given: more than the queues hold.
pub const API_KEY_CONCURRENCY_MAX: u32 = 1_000_000;
/// Texts of one call of the text interfaces: OpenAI's bound. A model's `max_batch_size` is another.
pub const TEXTS_MAX: usize = 2_048;
/// Bytes of such a call: TEI's bound. A shard reads it by itself, in some milliseconds.
pub const TEXT_BODY_SIZE_MAX: usize = 2_000_000;
/// Token ids of such a call, padded to the longest list: as many as the step `tokenize` takes.
pub const TEXT_IDS_MAX: usize = 1 << 21;
/// Dimensions that such a call may ask for. Embedders have up to some thousand, and sparse ones as many as their vocabulary.
pub const TEXT_DIMENSIONS_MAX: usize = 1 << 20;
