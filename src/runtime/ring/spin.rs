//! The time for which a shard looks for work before it sleeps (`--spin`). Waking a thread takes
//! longer than a small request, so a shard whose next work comes soon answers sooner if it stays
//! awake, and one whose work comes later wastes its core. Like the kernel's halt polling, which
//! decides the same for an idle virtual core, it goes by the outcomes of earlier waits. Pure: it is
//! told how waits ended and returns how long to look.

use std::time::Duration;

/// The time to look for work before a shard sleeps, if that pays off (`--spin=auto`): the cost of a
/// wake-up. Less misses a client that asks again at once, more costs more than it can save.
const SPIN_LOOK: Duration = Duration::from_micros(50);
/// Tasks of a turn after which a shard still looks: those of one request, even with a worker's run.
const SPIN_TASKS_MAX: usize = 4;
/// Waits between looks of a shard whose looks never pay off: looks this rare cost nothing.
const SPIN_TRIALS_MAX: u32 = 65_536;

/// Waits that end soon, almost all in a row, before a shard begins to look.
const TRIALS_MIN: u32 = 8;
/// Credit of a shard that begins to look, and the most that it may have. At 0 it stops.
const CREDIT_START: u32 = 4;
const CREDIT_MAX: u32 = 8;
/// The cost of a look in vain; one that finds work earns 1. So two of three must find work, or it
/// stops.
const VAIN_COST: u32 = 2;
/// Looks that found work after which looking has paid off, so that the next time begins as easily.
const WORTHWHILE: u32 = 64;
/// A sleep of up to this many times `SPIN_LOOK` counts as one that a look would have saved: it
/// includes the wake-up.
const SHORT_SLEEP: u32 = 2;

/// The time for which a shard looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spin {
    /// As long as has paid off lately, `SPIN_LOOK` at most.
    Auto,
    /// Always this long.
    Fixed(Duration),
    /// Never.
    #[default]
    Off,
}

/// The outcomes of a shard's waits so far.
#[derive(Clone, Copy, Debug)]
pub struct SpinPolicy {
    spin: Spin,
    state: SpinState,
    /// Waits that must end soon before it looks; doubled each time looking did not pay off.
    trials: u32,
}

/// ```text
///             enough sleeps that ended soon
/// sleeping ───────────────────────────────────► looking
///     ▲                                            │
///     └────────────────────────────────────────────┘
///       more than one of three looks in vain, or the core was taken
/// ```
#[derive(Clone, Copy, Debug)]
enum SpinState {
    /// Sleeps that ended soon.
    Sleeping(u32),
    /// Its credit, and the looks that have found work.
    Looking { credit: u32, found: u32 },
}

impl SpinPolicy {
    /// The policy of a shard that has not waited yet.
    pub const fn new(spin: Spin) -> Self {
        Self { spin, state: SpinState::Sleeping(0), trials: TRIALS_MIN }
    }

    /// Returns the time to look before the next sleep, after a turn that ran `tasks` tasks. If
    /// several connections are served in a turn they share a wake-up, and looking would cost more
    /// than it saves.
    pub const fn poll_look(&self, tasks: usize) -> Duration {
        match (self.spin, self.state) {
            (Spin::Fixed(time), _) => time,
            (Spin::Auto, SpinState::Looking { .. }) if tasks <= SPIN_TASKS_MAX => SPIN_LOOK,
            (Spin::Auto | Spin::Off, _) => Duration::ZERO,
        }
    }

    /// A wait without a look has ended, after a turn that ran `tasks` tasks.
    pub fn handle_slept(&mut self, slept: Duration, tasks: usize) {
        let SpinState::Sleeping(short) = self.state else { return };
        if tasks > SPIN_TASKS_MAX {
            return;
        }
        let short = if slept <= SPIN_LOOK * SHORT_SLEEP { short + 1 } else { short.saturating_sub(VAIN_COST) };
        self.state = if short < self.trials {
            SpinState::Sleeping(short)
        } else {
            SpinState::Looking { credit: CREDIT_START, found: 0 }
        };
    }

    /// A look has found work.
    pub fn handle_found(&mut self) {
        let SpinState::Looking { credit, found } = self.state else { return };
        let found = found.saturating_add(1);
        self.state = SpinState::Looking { credit: (credit + 1).min(CREDIT_MAX), found };
        if found >= WORTHWHILE {
            self.trials = TRIALS_MIN;
        }
    }

    /// A look has found nothing, after this time. If that is much longer than planned, another
    /// thread needed the core, perhaps the very one that would bring the work.
    pub fn handle_vain(&mut self, took: Duration) {
        let SpinState::Looking { credit, found } = self.state else { return };
        let left = if took >= SPIN_LOOK * SHORT_SLEEP { 0 } else { credit.saturating_sub(VAIN_COST) };
        if left > 0 {
            self.state = SpinState::Looking { credit: left, found };
            return;
        }
        self.state = SpinState::Sleeping(0);
        if found < WORTHWHILE {
            self.trials = (self.trials * 2).min(SPIN_TRIALS_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays a client that sends its next request `gaps` microseconds after the last answer, to a
    /// shard that serves it alone. Returns the looks that found work, the looks in vain, and the
    /// sleeps.
    fn play(policy: &mut SpinPolicy, gaps: impl IntoIterator<Item = u64>) -> (usize, usize, usize) {
        let (mut found, mut vain, mut slept) = (0, 0, 0);
        for gap in gaps.into_iter().map(Duration::from_micros) {
            let look = policy.poll_look(1);
            if look.is_zero() {
                policy.handle_slept(gap, 1);
                slept += 1;
            } else if gap <= look {
                policy.handle_found();
                found += 1;
            } else {
                policy.handle_vain(look);
                vain += 1;
            }
        }
        (found, vain, slept)
    }

    /// As [`play`], one line after another: a gap, its count, and the expected result.
    fn timeline(lines: &[(u64, usize, [usize; 3])]) {
        let mut policy = SpinPolicy::new(Spin::Auto);
        for (gap, count, want) in lines {
            let (found, vain, slept) = play(&mut policy, std::iter::repeat_n(*gap, *count));
            assert_eq!([found, vain, slept], *want, "{gap} x {count}: found, in vain, slept");
        }
    }

    #[test]
    fn a_client_in_a_closed_loop_is_looked_for_after_a_few_requests_and_a_pause_costs_one_look() {
        timeline(&[
            (20, 1_000, [992, 0, 8]),
            (1_000_000, 1, [0, 1, 0]),
            (20, 1_000, [1_000, 0, 0]),
            // No client asks any longer: the sweep's timer wakes the shard four times a second.
            (250_000, 1_000, [0, 4, 996]),
            (20, 1_000, [992, 0, 8]),
        ]);
    }

    #[test]
    fn requests_that_come_later_than_a_look_lasts_are_slept_for() {
        timeline(&[(1_000, 10_000, [0, 0, 10_000]), (110, 10_000, [0, 0, 10_000])]);
    }

    #[test]
    fn a_look_that_never_pays_is_tried_less_and_less() {
        // Longer than a look, and short enough for a sleep that one might have saved.
        timeline(&[(80, 100_000, [0, 26, 99_974])]);
    }

    #[test]
    fn two_of_three_looks_must_pay() {
        let mut policy = SpinPolicy::new(Spin::Auto);
        let (found, vain, slept) = play(&mut policy, [20, 20, 20, 90].into_iter().cycle().take(10_000));
        assert!(slept < 20 && found > 2 * vain, "three of four do: {found} {vain} {slept}");
        let mut policy = SpinPolicy::new(Spin::Auto);
        let (found, vain, slept) = play(&mut policy, [20, 90].into_iter().cycle().take(100_000));
        assert!(slept > 99_000 && found + vain < 1_000, "one of two does not: {found} {vain} {slept}");
    }

    #[test]
    fn a_core_that_others_need_is_left_to_them_at_once() {
        let mut policy = SpinPolicy::new(Spin::Auto);
        let mut looks = 0;
        for _ in 0..100_000 {
            if policy.poll_look(1).is_zero() {
                policy.handle_slept(Duration::from_micros(60), 1);
            } else {
                // The client ran meanwhile, on this core, until its time was over.
                policy.handle_vain(Duration::from_millis(3));
                looks += 1;
            }
        }
        assert!(looks <= 32, "{looks} looks");
    }

    #[test]
    fn where_a_turn_serves_many_it_neither_looks_nor_learns() {
        let mut policy = SpinPolicy::new(Spin::Auto);
        play(&mut policy, [20; 8]);
        assert_eq!(policy.poll_look(SPIN_TASKS_MAX), SPIN_LOOK);
        assert_eq!(policy.poll_look(SPIN_TASKS_MAX + 1), Duration::ZERO);
        let mut policy = SpinPolicy::new(Spin::Auto);
        (0..100).for_each(|_| policy.handle_slept(Duration::from_micros(5), SPIN_TASKS_MAX + 1));
        assert_eq!(policy.poll_look(1), Duration::ZERO);
    }

    #[test]
    fn what_the_flag_says_is_done() {
        let time = Duration::from_micros(7);
        let mut fixed = SpinPolicy::new(Spin::Fixed(time));
        (0..100).for_each(|_| fixed.handle_vain(time));
        assert_eq!((fixed.poll_look(1), fixed.poll_look(99)), (time, time));
        let mut off = SpinPolicy::new(Spin::Off);
        assert_eq!(play(&mut off, [20; 100]), (0, 0, 100));
    }
}
