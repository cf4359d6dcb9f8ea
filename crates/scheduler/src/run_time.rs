//! Run times of the batches of one model version, learned from those that ran. Pure; used by the
//! scheduler only. Bounded: one cell for each power of two of rows.

use std::time::Duration;

use base::limits::BATCH_ROWS_MAX;

/// Cells: sizes 1, 2, up to 4, up to 8 and so on.
pub const SIZE_CLASSES: usize = BATCH_ROWS_MAX.next_power_of_two().ilog2() as usize + 1;

/// Run times learned so far, by number of rows.
#[derive(Clone, Debug)]
pub struct RunTimes {
    cells: [Option<RunTimeCell>; SIZE_CLASSES],
}

/// Smoothed run time and mean deviation, in seconds, as TCP smooths round trips (RFC 6298 §2).
#[derive(Clone, Copy, Debug)]
struct RunTimeCell {
    mean: f64,
    deviation: f64,
}

/// Weight of a new run in the mean and in the deviation (alpha and beta in RFC 6298).
const MEAN_GAIN: f64 = 0.125;
const DEVIATION_GAIN: f64 = 0.25;
/// Nearly all runs are within this many deviations above the mean.
const DEVIATIONS: f64 = 2.0;

impl Default for RunTimes {
    fn default() -> Self {
        Self::new()
    }
}

impl RunTimes {
    /// Nothing ran yet.
    pub const fn new() -> Self {
        Self { cells: [None; SIZE_CLASSES] }
    }

    /// A batch of `rows` rows took `took`.
    pub fn handle_run(&mut self, rows: u32, took: Duration) {
        let took = took.as_secs_f64();
        let Some(cell) = self.cells.get_mut(size_class(rows)) else { return };
        match cell {
            None => *cell = Some(RunTimeCell { mean: took, deviation: took / 4.0 }),
            Some(cell) => {
                let error = took - cell.mean;
                cell.mean += MEAN_GAIN * error;
                cell.deviation += DEVIATION_GAIN * (error.abs() - cell.deviation);
                debug_assert!(cell.mean >= 0.0 && cell.deviation >= 0.0, "a time, and how far runs are from it");
            }
        }
    }

    /// Mean time of a batch of `rows` rows; `None` until a batch has run.
    #[inline]
    pub fn expected(&self, rows: u32) -> Option<Duration> {
        self.estimate(rows, |cell| cell.mean)
    }

    /// Time that nearly all batches of `rows` rows stay below; `None` until a batch has run.
    #[inline]
    pub fn bound(&self, rows: u32) -> Option<Duration> {
        self.estimate(rows, |cell| DEVIATIONS.mul_add(cell.deviation, cell.mean))
    }

    /// Returns true if a batch of about `rows` rows has run.
    pub fn has_run(&self, rows: u32) -> bool {
        self.cells.get(size_class(rows)).is_some_and(Option::is_some)
    }

    /// Mean time of the batches of a class of sizes; `None` while none ran.
    pub fn measured(&self, class: usize) -> Option<Duration> {
        let cell = self.cells.get(class)?.as_ref()?;
        Duration::try_from_secs_f64(cell.mean).ok()
    }

    /// A size that never ran is estimated from both sides: it takes no longer than a larger one, and no longer per row
    /// than a smaller one.
    fn estimate(&self, rows: u32, of: impl Fn(&RunTimeCell) -> f64) -> Option<Duration> {
        let class = size_class(rows);
        let (below, above) = self.cells.split_at_checked(class)?;
        let larger = above.iter().flatten().next().map(&of);
        let is_known = above.first().is_some_and(Option::is_some);
        let mut smaller = below.iter().rev().zip(1_i32..);
        let smaller = smaller.find_map(|(cell, steps)| Some(of(cell.as_ref()?) * 2_f64.powi(steps)));
        let seconds = match (larger, smaller.filter(|_| !is_known)) {
            (Some(larger), Some(smaller)) => larger.min(smaller),
            (larger, smaller) => larger.or(smaller)?,
        };
        Duration::try_from_secs_f64(seconds).ok()
    }
}

/// The cell of a number of rows.
#[inline]
pub fn size_class(rows: u32) -> usize {
    (u32::BITS - rows.clamp(1, BATCH_ROWS_MAX).saturating_sub(1).leading_zeros()) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    #[test]
    fn sizes_share_a_cell_up_to_each_power_of_two() {
        let got = [0, 1, 2, 3, 4, 5, 8, 9, BATCH_ROWS_MAX, u32::MAX].map(size_class);
        assert_eq!(got, [0, 0, 1, 2, 2, 3, 3, 4, SIZE_CLASSES - 1, SIZE_CLASSES - 1]);
    }

    #[test]
    fn a_size_that_never_ran_is_bounded_by_its_neighbours() {
        let mut times = RunTimes::new();
        assert_eq!(times.expected(1), None);
        times.handle_run(4, micros(100));
        let got = [1, 4, 8, 16].map(|rows| times.expected(rows));
        assert_eq!(got, [100, 100, 200, 400].map(|time| Some(micros(time))));
        times.handle_run(32, micros(300));
        let got = [1, 4, 8, 16, 32, 64].map(|rows| times.expected(rows));
        assert_eq!(got, [100, 100, 200, 300, 300, 600].map(|time| Some(micros(time))));
    }

    #[test]
    fn the_mean_follows_and_the_bound_stays_above_what_varies() {
        let mut times = RunTimes::new();
        for run in 0..1000_u64 {
            times.handle_run(1, micros(if run % 2 == 0 { 900 } else { 1100 }));
        }
        let (expected, bound) = (times.expected(1).unwrap(), times.bound(1).unwrap());
        assert!(expected > micros(950) && expected < micros(1050), "{expected:?}");
        assert!(bound > micros(1100) && bound < micros(1300), "{bound:?}");
        for _ in 0..1000 {
            times.handle_run(1, micros(50));
        }
        assert_eq!((times.expected(1).unwrap().as_micros(), times.bound(1).unwrap().as_micros()), (50, 50));
    }
}
