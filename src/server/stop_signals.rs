//! Which signals end the server. Pure: the thread that hears them asks, with the time.
//!
//! ```text
//! the first ──────────────► drain
//! again within the grace ─► ignored: a wrapper forwards what the process group has received too
//! again after the grace ──► the process ends at once
//! ```

use std::time::Duration;

use crate::time::Instant;

/// State of the signals so far that ask for the end.
pub(super) struct StopSignals {
    /// The grace period after the first; `None` where no other one counts.
    again_after: Option<Duration>,
    /// When the first came.
    first: Option<Instant>,
}

/// Effect of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopStep {
    /// The server drains.
    Drain,
    /// The process ends at once.
    End,
    /// Nothing; with the time until another one ends the process, if one does.
    Ignored(Option<Duration>),
}

impl StopSignals {
    /// Those of a server that none has reached yet.
    pub(super) const fn new(again_after: Option<Duration>) -> Self {
        Self { again_after, first: None }
    }

    /// A signal has come.
    pub(super) fn handle_signal(&mut self, now: Instant) -> StopStep {
        match self.handle_end_of_input(now) {
            StopStep::Ignored(Some(left)) if left.is_zero() => StopStep::End,
            step => step,
        }
    }

    /// Standard input has ended, which drains the server too. It is never a second signal: a supervisor that stops a
    /// server by a signal closes its input afterwards.
    pub(super) fn handle_end_of_input(&mut self, now: Instant) -> StopStep {
        let Some(first) = self.first else {
            self.first = Some(now);
            return StopStep::Drain;
        };
        StopStep::Ignored(self.again_after.map(|after| (first + after).since(now)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Effects of signals at these milliseconds; `i` for the end of standard input.
    fn timeline(again_after: Option<u64>, arrivals: &str) -> String {
        let mut signals = StopSignals::new(again_after.map(Duration::from_millis));
        let steps = arrivals.split_whitespace().map(|arrival| {
            let at = |millis: &str| Instant::from_micros(1_000 * millis.parse::<u64>().unwrap());
            let step = match arrival.strip_prefix('i') {
                Some(millis) => signals.handle_end_of_input(at(millis)),
                None => signals.handle_signal(at(arrival)),
            };
            match step {
                StopStep::Drain => format!("{arrival}: drain"),
                StopStep::End => format!("{arrival}: end"),
                StopStep::Ignored(left) => format!("{arrival}: {left:?}"),
            }
        });
        steps.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn a_second_signal_counts_only_after_the_grace_period() {
        let check = |again_after, arrivals: &str, want: &str| assert_eq!(timeline(again_after, arrivals), want);
        check(Some(1_000), "5", "5: drain");
        check(Some(1_000), "5 5 6 1004 1005", "5: drain, 5: Some(1s), 6: Some(999ms), 1004: Some(1ms), 1005: end");
        // Ignored ones do not put off the end of the grace period.
        check(Some(10), "0 9 11", "0: drain, 9: Some(1ms), 11: end");
        check(Some(0), "7 7", "7: drain, 7: end");
        check(None, "1 2 999999", "1: drain, 2: None, 999999: None");
        check(Some(10), "i3 4 20", "i3: drain, 4: Some(9ms), 20: end");
        check(Some(10), "3 i20 21", "3: drain, i20: Some(0ns), 21: end");
    }
}
