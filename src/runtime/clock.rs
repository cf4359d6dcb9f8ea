//! The one place that asks what time it is.

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::time::Instant;

/// How long a look at the wall clock serves a thread: it may have been set since.
const WALL_AGE_MAX: Duration = Duration::from_secs(1);

thread_local! {
    /// The last look at the wall clock: when, and the milliseconds since the epoch at the start.
    static WALL: Cell<Option<(Instant, u64)>> = const { Cell::new(None) };
    /// When the turn began that this thread's ring is in.
    static TURN: Cell<Option<Instant>> = const { Cell::new(None) };
}

static START: OnceLock<std::time::Instant> = OnceLock::new();

/// Time since the first call, which `main` makes as it starts.
#[expect(clippy::disallowed_methods, reason = "this is the clock that everybody else is handed")]
pub fn now() -> Instant {
    let elapsed = START.get_or_init(std::time::Instant::now).elapsed();
    Instant::from_nanos(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
}

/// When the turn began that this thread's tasks run in, for timers of connections, which last for
/// seconds: a look at the clock costs 20 ns. The time itself where turns are not told.
pub fn turn() -> Instant {
    TURN.get().unwrap_or_else(now)
}

/// Begins a turn.
pub(super) fn begin_turn() -> Instant {
    let now = now();
    TURN.set(Some(now));
    now
}

/// No turn goes on any more.
pub(super) fn end_turns() {
    TURN.set(None);
}

/// The milliseconds since the epoch at an instant of the last second or so.
pub fn epoch_millis(at: Instant) -> u64 {
    let fresh = WALL.get().filter(|(asked, _)| at.since(*asked) < WALL_AGE_MAX);
    let (_, start) = fresh.unwrap_or_else(|| {
        let now = now();
        let look = (now, wall_millis().saturating_sub(millis(now)));
        WALL.set(Some(look));
        look
    });
    start.saturating_add(millis(at))
}

#[expect(clippy::disallowed_methods, reason = "the date is told nowhere else")]
fn wall_millis() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

const fn millis(at: Instant) -> u64 {
    at.as_nanos() / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_epoch_is_told_to_the_millisecond_and_asked_for_again_in_time() {
        let (wall, at) = (wall_millis(), now());
        let told = epoch_millis(at);
        assert!(told.abs_diff(wall) <= 20, "{told} {wall}");
        assert_eq!(epoch_millis(at + Duration::from_millis(500)), told + 500);
        WALL.set(Some((at, 0)));
        assert_eq!(epoch_millis(at), millis(at), "the look is fresh");
        assert!(epoch_millis(at + WALL_AGE_MAX) >= told, "it was too old");
    }
}
