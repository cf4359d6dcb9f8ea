//! Splits the rows of one large request into shares for instances that are idle: each runs its share at the same time
//! as the others, and the answer takes the time of one share. Instances publish what runs took, and shards read it; each
//! number is an atomic of its own, as in [`Forecast`](crate::Forecast). Pure.
//!
//! A split is measured like any other run. Where the shares took as long as the whole (its library has threads on all
//! cores already, or the cores are busy), the next requests stay whole. Now and then one request is treated the other
//! way, so that neither answer outlives its reason.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::run_time::{RunTimes, SIZE_CLASSES, size_class};

/// The shortest run that is split. The hand-over to another instance and the copy of the outputs take some 50 µs on both
/// sides; a fortieth is not worth a second core.
const SHARED_RUN_MIN: Duration = Duration::from_millis(2);
/// The inverse of the part of its time that a split must save: a second core for less than a quarter of the time is a
/// poor trade where others wait for it.
const SHARE_GAIN_MIN: u32 = 4;
/// Requests until one is treated the other way. The worst that a wrong guess costs is half of the run time of one
/// request in this many.
const SHARES_TRIAL_GAP: u32 = 256;

/// The shares of one model version's requests.
#[derive(Debug)]
pub struct RowShares {
    /// Mean run times by class of size, in nanoseconds; 0 while none ran.
    run_times: [AtomicU64; SIZE_CLASSES],
    /// Requests that were long enough to be split.
    long: AtomicU32,
    /// Set when the outputs of shares could not be joined.
    is_forbidden: AtomicBool,
}

impl Default for RowShares {
    fn default() -> Self {
        Self::new()
    }
}

impl RowShares {
    /// Nothing ran yet.
    pub fn new() -> Self {
        let run_times = std::array::from_fn(|_| AtomicU64::new(0));
        Self { run_times, long: AtomicU32::new(0), is_forbidden: AtomicBool::new(false) }
    }

    /// Sets the run times of batches.
    pub fn handle_times(&self, times: &RunTimes) {
        for (class, cell) in self.run_times.iter().enumerate() {
            let time = times.measured(class).map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
            cell.store(time, Ordering::Relaxed);
        }
    }

    /// The outputs of shares could not be joined: the model's rows are not on their own. All requests stay whole from
    /// now on.
    pub fn forbid(&self) {
        self.is_forbidden.store(true, Ordering::Relaxed);
    }

    /// Returns true if a run of `rows` rows takes long enough to be split, as far as is known.
    #[inline]
    pub fn is_long(&self, rows: u32) -> bool {
        rows > 1 && self.time(rows) >= SHARED_RUN_MIN && !self.is_forbidden.load(Ordering::Relaxed)
    }

    /// Returns the number of shares for a request of `rows` rows while `idle` instances have nothing to run; 1 to leave
    /// it whole. Counts the request if it [is long](Self::is_long).
    pub fn split(&self, rows: u32, idle: usize) -> u32 {
        let most = u32::try_from(idle).unwrap_or(u32::MAX).min(rows);
        if most < 2 || !self.is_long(rows) {
            return 1;
        }
        let best = self.best(rows, most);
        let is_trial = self.long.fetch_add(1, Ordering::Relaxed) % SHARES_TRIAL_GAP == SHARES_TRIAL_GAP - 1;
        match best {
            _ if !is_trial => best,
            1 => most,
            _ => 1,
        }
    }

    /// The number of shares with the shortest run. A size that never ran is taken to need its part of the time.
    fn best(&self, rows: u32, most: u32) -> u32 {
        let whole = self.time(rows);
        let time = |shares: u32| match self.time(rows.div_ceil(shares)) {
            Duration::ZERO => whole / shares,
            time => time,
        };
        let limit = whole - whole / SHARE_GAIN_MIN;
        // Of equal times, the fewest shares.
        let least = (2..=most).map(|shares| (time(shares), shares)).min();
        least.filter(|(time, _)| *time <= limit).map_or(1, |(_, shares)| shares)
    }

    /// The mean run time of batches of about `rows` rows; zero while none ran.
    fn time(&self, rows: u32) -> Duration {
        let cell = self.run_times.get(size_class(rows));
        cell.map_or(Duration::ZERO, |cell| Duration::from_nanos(cell.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shares of a model whose runs of these rows took these milliseconds.
    fn shares(runs: &[(u32, u64)]) -> RowShares {
        let (shares, mut times) = (RowShares::new(), RunTimes::new());
        runs.iter().for_each(|(rows, took)| times.handle_run(*rows, Duration::from_millis(*took)));
        shares.handle_times(&times);
        shares
    }

    #[test]
    fn a_request_is_split_where_its_shares_are_faster_or_unknown() {
        let check = |what: &str, runs: &[(u32, u64)], rows: u32, idle: usize, want: u32| {
            assert_eq!(shares(runs).split(rows, idle), want, "{what}");
        };
        check("nothing ran", &[], 32, 2, 1);
        check("another size ran", &[(8, 40)], 32, 2, 1);
        check("too short", &[(32, 1)], 32, 2, 1);
        check("halves are unknown", &[(32, 160)], 32, 2, 2);
        check("halves take half", &[(32, 160), (16, 80)], 32, 2, 2);
        check("halves take as long", &[(32, 160), (16, 150)], 32, 2, 1);
        check("no other instance is idle", &[(32, 160)], 32, 1, 1);
        check("none is", &[(32, 160)], 32, 0, 1);
        check("one row", &[(1, 160)], 1, 2, 1);
        check("two rows over many", &[(2, 160)], 2, 8, 2);
        check("four instances", &[(32, 160), (16, 80), (8, 40)], 32, 4, 4);
        check("four are no faster than three", &[(32, 160), (16, 80), (8, 80)], 32, 4, 2);
    }

    #[test]
    fn one_request_in_many_is_treated_the_other_way() {
        let seen = |shares: &RowShares| (0..1_024).map(|_| shares.split(32, 2)).collect::<Vec<_>>();
        let (split, whole) = (shares(&[(32, 160), (16, 80)]), shares(&[(32, 160), (16, 150)]));
        for (usual, other, shares) in [(2, 1, split), (1, 2, whole)] {
            let seen = seen(&shares);
            assert_eq!(seen.iter().filter(|shares| **shares == other).count(), 4);
            assert_eq!(seen.iter().filter(|shares| **shares == usual).count(), 1_020);
        }
    }

    #[test]
    fn what_cannot_be_joined_is_not_split_again() {
        let shares = shares(&[(32, 160)]);
        assert!(shares.is_long(32) && !shares.is_long(1));
        shares.forbid();
        assert!(!shares.is_long(32));
        assert_eq!(shares.split(32, 2), 1);
    }
}
