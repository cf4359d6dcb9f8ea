//! The one place that asks what time it is.

use std::sync::OnceLock;

use crate::time::Instant;

static START: OnceLock<std::time::Instant> = OnceLock::new();

/// Time since the first call, which `main` makes as it starts.
#[expect(clippy::disallowed_methods, reason = "this is the clock that everybody else is handed")]
pub fn now() -> Instant {
    let elapsed = START.get_or_init(std::time::Instant::now).elapsed();
    Instant::from_nanos(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
}
