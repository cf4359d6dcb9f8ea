//! The one place of the load generator that asks what time it is.

use std::sync::OnceLock;

use crate::time::Instant;

static START: OnceLock<std::time::Instant> = OnceLock::new();

/// Time since the first call, on a clock that never goes back.
#[expect(clippy::disallowed_methods, reason = "a load generator measures; everything pure is handed this")]
pub fn now() -> Instant {
    let elapsed = START.get_or_init(std::time::Instant::now).elapsed();
    Instant::from_nanos(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
}
