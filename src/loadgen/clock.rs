//! The clock of the load generator, the only one it reads.

use std::sync::OnceLock;

use crate::time::Instant;

static START: OnceLock<std::time::Instant> = OnceLock::new();

/// Time since the first call, on a clock that never goes back.
#[expect(clippy::disallowed_methods, reason = "the one clock of the load generator; pure code gets the time from here")]
pub fn now() -> Instant {
    let elapsed = START.get_or_init(std::time::Instant::now).elapsed();
    Instant::from_nanos(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
}
