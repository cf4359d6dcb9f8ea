//! Batching by a latency target instead of by fixed sizes and delays (`target_latency_us`): the
//! size of a batch and its wait to grow follow from measured run times. Pure; used by the
//! scheduler. Without a target no batch waits, which is Triton's default too.
//!
//! *Size.* A request may come just after a batch began: it waits for that batch and runs in the next. So a batch may
//! take at most half of the target (the rule of Nexus, SOSP 2019, section 4.1).
//!
//! *Delay.* Waiting costs an idle instance time; running two batches as one saves time. A batch waits only if the next
//! request is expected sooner than the time it would save, and after each request no longer than that saving: waiting
//! as long as the alternative costs is at most twice as bad as the best choice (the ski rental bound). Never longer
//! than the target allows.

use std::time::Duration;

use crate::policy::Policy;
use crate::run_time::RunTimes;
use base::time::Instant;

/// The latency target of a scheduler, and the time between requests.
#[derive(Clone, Debug)]
pub struct Tuning {
    target: Duration,
    /// The smoothed time between two requests, in seconds; `None` before the second.
    gap: Option<f64>,
    /// The arrival time of the last request.
    queued_at: Option<Instant>,
}

/// Weight of a new gap in the mean.
const GAP_GAIN: f64 = 0.125;

impl Tuning {
    /// Before the first request.
    pub const fn new(target: Duration) -> Self {
        Self { target, gap: None, queued_at: None }
    }

    /// A request arrived.
    pub fn handle_request(&mut self, queued_at: Instant) {
        if let Some(last) = self.queued_at.replace(queued_at) {
            let gap = queued_at.since(last).as_secs_f64();
            let mean = self.gap.unwrap_or(gap);
            let mean = GAP_GAIN.mul_add(gap - mean, mean);
            debug_assert!(mean >= 0.0 && mean.is_finite(), "a mean of times is a time");
            self.gap = Some(mean);
        }
    }

    /// Rows that a batch may have: the largest preferred size that takes half of the target at
    /// most, or the largest power of two if no sizes are preferred; the smallest in any case.
    pub fn rows_limit(&self, policy: &Policy, times: &RunTimes) -> u32 {
        let fits = |rows: &u32| times.bound(*rows).is_none_or(|bound| bound <= self.target / 2);
        let sizes = match policy.rows_preferred.as_slice() {
            [] => powers_of_two(policy.rows_max()),
            sizes => sizes.to_vec(),
        };
        sizes.iter().copied().take_while(fits).last().or_else(|| sizes.first().copied()).unwrap_or(1)
    }

    /// Returns the time until which a batch that may grow to `rows_max` waits; `None` if it should
    /// leave now.
    pub fn hold_until(&self, rows: u32, rows_max: u32, oldest: Instant, times: &RunTimes) -> Option<Instant> {
        let larger = rows.saturating_mul(2).min(rows_max);
        let added = larger.checked_sub(rows).filter(|added| *added > 0)?;
        debug_assert!(rows + added == larger && larger <= rows_max, "a batch grows to what it may have");
        let apart = times.expected(rows)? + times.expected(added)?;
        let saving = apart.checked_sub(times.expected(larger)?)? / added;
        let slack = self.target.checked_sub(times.bound(larger)?)?;
        let gap = Duration::try_from_secs_f64(self.gap?).ok()?;
        (gap < saving).then_some((oldest + slack).min(self.queued_at? + saving))
    }
}

fn powers_of_two(rows_max: u32) -> Vec<u32> {
    let powers = std::iter::successors(Some(1_u32), |rows| rows.checked_mul(2)).take_while(|rows| *rows < rows_max);
    powers.chain([rows_max]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    /// A run takes 1000 µs, and 100 µs for each row; sizes up to 16 have run.
    fn times() -> RunTimes {
        let mut times = RunTimes::new();
        for rows in [1, 2, 4, 8, 16_u32] {
            for _ in 0..100 {
                times.handle_run(rows, micros(1000 + 100 * u64::from(rows)));
            }
        }
        times
    }

    #[test]
    fn a_batch_takes_half_of_the_target_at_most() {
        let check = |target: u64, rows_preferred: &[u32], want: u32| {
            let policy = Policy { rows_max: 20, rows_preferred: rows_preferred.to_vec(), ..Policy::default() };
            let got = Tuning::new(micros(target)).rows_limit(&policy, &times());
            assert_eq!(got, want, "{target} µs, {rows_preferred:?}");
        };
        check(100, &[], 1);
        check(2400, &[], 2);
        check(2799, &[], 2);
        check(2801, &[], 4);
        check(1_000_000, &[], 20);
        check(4000, &[3, 6, 12], 6);
        check(100, &[3, 6, 12], 3);
        let unknown = Tuning::new(micros(1)).rows_limit(&Policy { rows_max: 8, ..Policy::default() }, &RunTimes::new());
        assert_eq!(unknown, 8, "before anything ran");
    }

    #[test]
    fn a_batch_is_held_while_the_next_request_comes_sooner_than_what_it_saves() {
        let check = |gap: u64, rows: u32, want: Option<u64>| {
            let mut tuning = Tuning::new(micros(10_000));
            (0..100).for_each(|count| tuning.handle_request(Instant::from_micros(count * gap)));
            let last = Instant::from_micros(99 * gap);
            let until = tuning.hold_until(rows, 16, last, &times());
            assert_eq!(until.map(|until| until.since(last).as_micros()), want.map(u128::from), "{gap} {rows}");
        };
        check(900, 1, Some(1000));
        check(1100, 1, None);
        check(400, 2, Some(500));
        check(600, 2, None);
        check(100, 8, Some(125));
        check(200, 8, None);
        check(1, 16, None);
    }

    #[test]
    fn a_batch_is_never_held_beyond_the_target() {
        let mut tuning = Tuning::new(micros(3000));
        (0..100).for_each(|count| tuning.handle_request(Instant::from_micros(count)));
        let oldest = Instant::ZERO;
        // Two rows take 1200 µs.
        let until = tuning.hold_until(1, 16, oldest, &times()).unwrap();
        assert!(until <= Instant::from_micros(1800), "{until:?}");
        let tight = Tuning { target: micros(1100), ..tuning };
        assert_eq!(tight.hold_until(1, 16, oldest, &times()), None);
    }
}
