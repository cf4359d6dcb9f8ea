//! The clock of this room's tests. The code takes it from its callers.

use std::cell::Cell;
use std::sync::OnceLock;

use base::time::Instant;

thread_local! {
    /// The instant at which a test holds this thread's clock.
    static HELD: Cell<Option<Instant>> = const { Cell::new(None) };
}

static START: OnceLock<std::time::Instant> = OnceLock::new();

/// Time since the first call, or the instant at which this thread's clock is held.
#[expect(clippy::disallowed_methods, reason = "a clock for tests")]
pub fn now() -> Instant {
    let elapsed = || u64::try_from(START.get_or_init(std::time::Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX);
    HELD.get().unwrap_or_else(|| Instant::from_nanos(elapsed()))
}

/// Holds this thread's clock at an instant, until the next call of this.
pub fn hold_at(at: Instant) {
    HELD.set(Some(at));
}
