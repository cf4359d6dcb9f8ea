//! The instant at which the process of an instance may be started again: at once after one that has
//! answered, else after pauses that grow.

use std::time::Duration;

use base::error::Error;
use base::time::Instant;

/// The first pause before a Python process is started again that ended without having answered; it doubles each time.
const PYTHON_RESTART_PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest of these pauses: long enough to cost nothing, short enough to recover soon.
const PYTHON_RESTART_PAUSE_MAX: Duration = Duration::from_secs(30);

/// The record of the starts of one instance.
#[derive(Clone, Copy, Debug, Default)]
pub struct RestartPause {
    restarted: Instant,
    /// From then until the start after that.
    pause: Duration,
}

impl RestartPause {
    /// A process was lost.
    pub const fn handle_lost(&mut self, has_answered: bool) {
        if has_answered {
            self.pause = Duration::ZERO;
        }
    }

    /// Another is started now.
    ///
    /// # Errors
    /// `Unavailable` if the last one ended soon after its start, and it is too early for the next.
    pub fn handle_restart(&mut self, now: Instant) -> Result<(), Error> {
        if now < self.restarted + self.pause {
            return Err(Error::unavailable("its process ended soon after its start: the next start is a little later"));
        }
        // Taken back when the new process has answered: then the next start need not wait.
        self.pause = (self.pause * 2).clamp(PYTHON_RESTART_PAUSE_MIN, PYTHON_RESTART_PAUSE_MAX);
        self.restarted = now;
        Ok(())
    }
}
