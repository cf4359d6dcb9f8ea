//! The bounds that several modules of this crate share, each with its reason.

use std::time::Duration;

/// Time between two requests at the lowest rate: a quarter of an hour; rarer clients need a queue.
pub const API_KEY_INTERVAL_MAX: Duration = Duration::from_secs(1_000);
/// Requests that a client may be given at once, beyond its rate.
pub const API_KEY_BURST_MAX: u32 = 1_000_000;
/// Requests in flight that a client may be given: more than the queues hold.
pub const API_KEY_CONCURRENCY_MAX: u32 = 1_000_000;
