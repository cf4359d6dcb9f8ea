//! At most [`LOG_CAUSE_LINES_MAX`] lines a second of one cause, which is the place in the source
//! that logs them: endless repetition must not hide a line that comes once. Pure: time is passed
//! in.

use std::collections::BTreeMap;
use std::panic::Location;
use std::time::Duration;

use crate::limits::{LOG_CAUSE_LINES_MAX, LOG_CAUSE_WINDOW};
use crate::log::format::Severity;

/// The place in the source that logs a line.
pub type Cause = &'static Location<'static>;

/// The lines of each cause within its window.
#[derive(Debug, Default)]
pub struct CauseLimits {
    windows: BTreeMap<Cause, CauseWindow>,
    /// Causes that have reached their limit.
    limited: usize,
}

#[derive(Debug)]
struct CauseWindow {
    began: Duration,
    lines: u32,
    /// Lines that were left out.
    more: u64,
    severity: Severity,
}

impl CauseLimits {
    /// A line of this cause was logged at this time since the epoch. Returns true if it is written.
    pub fn handle_line(&mut self, cause: Cause, severity: Severity, at: Duration) -> bool {
        let fresh = CauseWindow { began: at, lines: 0, more: 0, severity };
        let window = self.windows.entry(cause).or_insert(fresh);
        // The clock may have been set back: such a window has ended too.
        let is_over = at < window.began || at - window.began >= LOG_CAUSE_WINDOW;
        if is_over && window.more == 0 {
            (window.began, window.lines) = (at, 0);
        }
        if window.lines < LOG_CAUSE_LINES_MAX {
            window.lines += 1;
            return true;
        }
        self.limited += usize::from(window.more == 0);
        window.more += 1;
        false
    }

    /// Returns a cause whose window is over, and the number of lines that were left out of it.
    pub fn poll_more(&mut self, now: Duration) -> Option<(Cause, Severity, u64)> {
        if self.limited == 0 {
            return None;
        }
        let is_due = |window: &CauseWindow| window.more > 0 && (now < window.began || now >= window.ends());
        let (cause, window) = self.windows.iter_mut().find(|(_, window)| is_due(window))?;
        self.limited -= 1;
        let more = std::mem::take(&mut window.more);
        (window.began, window.lines) = (now, 0);
        Some((cause, window.severity, more))
    }

    /// Returns the time at which [`Self::poll_more`] should be called again.
    pub fn poll_timeout(&self) -> Option<Duration> {
        if self.limited == 0 {
            return None;
        }
        self.windows.values().filter(|window| window.more > 0).map(CauseWindow::ends).min()
    }
}

impl CauseWindow {
    fn ends(&self) -> Duration {
        self.began + LOG_CAUSE_WINDOW
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_that_says_too_much_is_cut_short_and_counted_and_others_are_not() {
        let (loud, quiet) = (Location::caller(), here());
        let mut limits = CauseLimits::default();
        let at = |millis| Duration::from_secs(100) + Duration::from_millis(millis);
        let say = |limits: &mut CauseLimits, cause, count: u32, millis| {
            (0..count).filter(|_| limits.handle_line(cause, Severity::Warning, at(millis))).count()
        };
        let most = LOG_CAUSE_LINES_MAX as usize;
        assert_eq!(say(&mut limits, loud, LOG_CAUSE_LINES_MAX, 0), most);
        assert_eq!(limits.poll_timeout(), None);
        assert_eq!(say(&mut limits, loud, 1_234, 500), 0);
        assert_eq!(say(&mut limits, quiet, 2, 600), 2);
        assert_eq!(limits.poll_timeout(), Some(at(1_000)));
        assert_eq!(limits.poll_more(at(999)), None);
        // Not polled yet: the count comes before the next line.
        assert_eq!(say(&mut limits, loud, 1, 1_001), 0);
        assert_eq!(limits.poll_more(at(1_002)), Some((loud, Severity::Warning, 1_235)));
        assert_eq!((limits.poll_more(at(1_002)), limits.poll_timeout()), (None, None));
        assert_eq!(say(&mut limits, loud, LOG_CAUSE_LINES_MAX + 1, 1_003), most);
        assert_eq!(limits.poll_more(at(5_000)), Some((loud, Severity::Warning, 1)));
        assert_eq!(say(&mut limits, loud, 1, 9_000), 1);
        // A window that ended without more is another's beginning.
        assert_eq!(say(&mut limits, loud, LOG_CAUSE_LINES_MAX, 11_000), most);
    }

    #[test]
    fn a_clock_that_is_set_back_silences_nobody() {
        let mut limits = CauseLimits::default();
        let at = Duration::from_secs;
        for _ in 0..=LOG_CAUSE_LINES_MAX {
            limits.handle_line(here(), Severity::Info, at(1_000));
        }
        assert_eq!(limits.poll_more(at(1)).map(|(.., more)| more), Some(1));
        assert!(limits.handle_line(here(), Severity::Info, at(2)));
    }

    fn here() -> Cause {
        Location::caller()
    }
}
