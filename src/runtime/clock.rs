//! The only place that reads a clock.

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[cfg(test)]
use crate::runtime::simulation;
use crate::time::Instant;

/// The time for which a thread reuses a reading of the wall clock, which may be set meanwhile.
const WALL_AGE_MAX: Duration = Duration::from_secs(1);

thread_local! {
    /// The last reading of the wall clock: its instant, and the milliseconds since the epoch at
    /// [`START`].
    static WALL: Cell<Option<(Instant, u64)>> = const { Cell::new(None) };
    /// The instant at which the current turn of this thread's ring began.
    static TURN: Cell<Option<Instant>> = const { Cell::new(None) };
}

#[cfg(test)]
thread_local! {
    /// The instant at which a test holds this thread's clock.
    static HELD: Cell<Option<Instant>> = const { Cell::new(None) };
}

static START: OnceLock<std::time::Instant> = OnceLock::new();

/// Time since the first call, which `main` makes at start.
#[expect(clippy::disallowed_methods, reason = "this is the clock that all other code gets passed in")]
pub fn now() -> Instant {
    #[cfg(test)]
    if let Some(now) = simulation::now().or_else(|| HELD.get()) {
        return now;
    }
    let elapsed = START.get_or_init(std::time::Instant::now).elapsed();
    Instant::from_nanos(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
}

/// Holds this thread's clock at an instant, until the next call of this.
#[cfg(test)]
pub fn hold_at(at: Instant) {
    HELD.set(Some(at));
}

/// Returns the instant at which the current turn of this thread's ring began, for timers of
/// connections, which last for seconds: reading the clock costs 20 ns. On a thread without a ring
/// it is the time itself.
pub fn turn() -> Instant {
    TURN.get().unwrap_or_else(now)
}

/// Begins a turn.
pub(super) fn begin_turn() -> Instant {
    let now = now();
    TURN.set(Some(now));
    now
}

/// This thread runs no further turns.
pub(super) fn end_turns() {
    TURN.set(None);
}

/// Milliseconds since the epoch at an instant, which must not be older than about a second.
pub fn epoch_millis(at: Instant) -> u64 {
    let fresh = WALL.get().filter(|(asked, _)| at.since(*asked) < WALL_AGE_MAX);
    let (_, start) = fresh.unwrap_or_else(|| {
        let now = now();
        let reading = (now, wall_millis().saturating_sub(millis(now)));
        WALL.set(Some(reading));
        reading
    });
    start.saturating_add(millis(at))
}

/// Nanoseconds since the epoch at [`Instant::ZERO`], by the wall clock of now.
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub fn epoch_at_start() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX).saturating_sub(now().as_nanos())
}

/// Nanoseconds since the epoch at an instant, by the wall clock of now.
pub fn epoch_nanos(at: Instant) -> u64 {
    epoch_at_start().saturating_add(at.as_nanos())
}

/// Nanoseconds of the system's monotonic clock at [`Instant::ZERO`].
pub fn monotonic_at_start() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let nanos = time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec);
    u64::try_from(nanos).unwrap_or_default().saturating_sub(now().as_nanos())
}

#[expect(clippy::disallowed_methods, reason = "the date is read nowhere else")]
fn wall_millis() -> u64 {
    #[cfg(test)]
    if let Some(now) = simulation::now() {
        return simulation::EPOCH_MILLIS.saturating_add(millis(now));
    }
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
