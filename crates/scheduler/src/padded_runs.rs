//! Divides rows of different lengths into runs of a model that pads rows to the longest of a run. Long rows together take longer
//! than one after the other on a CPU, since the tensors between a model's layers leave its cache; short ones save the fixed cost
//! of a run. So the cost of runs is learned by rows and length, and rows run together only where that is expected to cost less.
//! Pure; used by instances of models with padded inputs. Bounded: one window for each power of two of rows and of length.
//!
//! A cost is kept beside that of a plain model: a fixed part, and equal parts for each row and place. A size that never ran is
//! taken to cost as the nearest one that did, so that the fixed part makes it look worth a try. *Trials* keep sizes known that
//! the plan leaves out: now and then the rows of one batch run in groups of another size. When a cost changes by half, all are
//! learned anew.

use std::time::Duration;

use smallvec::SmallVec;

use crate::limits::{PADDED_LENGTH_CLASSES, PADDED_RUNS_KEPT};
use crate::run_time::size_class;

/// Runs after which a cost is known.
const PADDED_RUNS_MIN: usize = 3;
/// The fixed cost of a run in places of a row: measured with six layers on one core, 20 places alone cost half as much again as in a
/// group of 32.
const FIXED_PLACES: f64 = 16.0;
/// The same where runs overlap and so are not measured: on a device a run of a thousand places takes little longer than one of ten.
const FIXED_PLACES_BESIDE: f64 = 1024.0;
/// Batches between two trials: at first, and when sizes are known.
const PADDED_TRIAL_GAP_MIN: u32 = 16;
const PADDED_TRIAL_GAP_MAX: u32 = 1024;
/// A cost that grows or shrinks by this factor from one run to the next has changed.
const PADDED_CHANGE: f64 = 1.5;
/// A trial may be expected to cost this many times as much as the plan.
const TRIAL_COST_MAX: f64 = 2.0;

/// The costs of runs by rows and length, and the plans that follow.
#[derive(Clone, Debug)]
pub struct PaddedRuns {
    rows_max: u32,
    /// By class of length, then of rows.
    windows: Box<[PaddedWindow]>,
    row_classes: usize,
    fixed_places: f64,
    /// Batches until the next trial, and between two; the rows of its groups are a power of two.
    until_trial: u32,
    trial_gap: u32,
    trial_class: usize,
}

/// The last runs of one size, beside the plain model.
#[derive(Clone, Debug, Default)]
struct PaddedWindow {
    /// Nanoseconds for a place; the oldest is overwritten.
    costs: Vec<f64>,
    next: usize,
    median: Option<f64>,
}

/// Rows that run together, by their indices.
pub type RowGroup = Vec<usize>;

impl PaddedRuns {
    /// The costs of a model that takes `rows_max` rows at once, before its first run.
    pub fn new(rows_max: u32) -> Self {
        let row_classes = size_class(rows_max) + 1;
        Self {
            rows_max: rows_max.max(1),
            windows: vec![PaddedWindow::default(); row_classes * PADDED_LENGTH_CLASSES].into(),
            row_classes,
            fixed_places: FIXED_PLACES,
            until_trial: PADDED_TRIAL_GAP_MIN,
            trial_gap: PADDED_TRIAL_GAP_MIN,
            trial_class: 0,
        }
    }

    /// A run of `rows` rows, padded to `length` places, took `took` with nothing else on its instance.
    pub fn handle_run(&mut self, rows: u32, length: u32, took: Duration) {
        let cost = took.as_secs_f64() * 1e9 / self.plain(rows, length);
        let index = self.index(size_class(rows), length_class(length));
        let Some(window) = self.windows.get_mut(index) else { return };
        let before = window.median.filter(|_| window.costs.len() == PADDED_RUNS_KEPT);
        window.push(cost);
        if before.zip(window.median).is_some_and(|(before, now)| has_changed(before, now)) {
            // Other sizes will have changed as well, and those that the plan leaves out would be taken for as dear as before.
            self.windows.iter_mut().for_each(|window| *window = PaddedWindow::default());
            self.trial_gap = PADDED_TRIAL_GAP_MIN;
            self.until_trial = PADDED_TRIAL_GAP_MIN;
        }
    }

    /// Runs of this instance overlap with others: they are not measured, and larger ones are expected to pay.
    pub const fn handle_overlap(&mut self) {
        self.fixed_places = FIXED_PLACES_BESIDE;
    }

    /// The expected cost of a run in nanoseconds, or in places before any run is known.
    pub fn cost(&self, rows: u32, length: u32) -> f64 {
        self.known(size_class(rows), length_class(length)).unwrap_or(1.0) * self.plain(rows, length)
    }

    /// Divides rows of these lengths into groups, each of at most the model's rows. Unless `may_pad`, rows of one group have the
    /// same length. Each row is in one group.
    pub fn poll_groups(&mut self, lengths: &[u32], may_pad: bool) -> Vec<RowGroup> {
        let mut order: Vec<usize> = (0..lengths.len()).collect();
        order.sort_by_key(|row| lengths.get(*row));
        let sorted: Vec<u32> = order.iter().filter_map(|row| lengths.get(*row).copied()).collect();
        let (sizes, cost) = self.cheapest(&sorted, may_pad);
        let trial = self.poll_trial(&sorted, may_pad, cost);
        let mut left = &order[..];
        let take = |size: usize| {
            let (group, rest) = left.split_at_checked(size).unwrap_or((left, &[]));
            left = rest;
            let mut group = group.to_vec();
            group.sort_unstable();
            group
        };
        let groups: Vec<RowGroup> = trial.unwrap_or(sizes).into_iter().map(take).collect();
        debug_assert_eq!(groups.iter().map(Vec::len).sum::<usize>(), lengths.len(), "each row runs once");
        groups
    }

    /// The sizes of the groups of sorted rows that cost least, and their cost. Only neighbours share a group: to swap two rows
    /// between groups never makes a longest row shorter.
    fn cheapest(&self, sorted: &[u32], may_pad: bool) -> (Vec<usize>, f64) {
        // For each count of rows from the front, the least cost and the size of the last group.
        let mut best: Vec<(f64, usize)> = Vec::with_capacity(sorted.len() + 1);
        best.push((0.0, 0));
        let mut factors: SmallVec<[f64; 12]> = SmallVec::new();
        let mut factors_of = usize::MAX;
        for (end, length) in (1..).zip(sorted) {
            if factors_of != length_class(*length) {
                factors_of = length_class(*length);
                factors = (0..self.row_classes).map(|rows| self.known(rows, factors_of).unwrap_or(1.0)).collect();
            }
            let mut least = (f64::INFINITY, 1);
            let mut rows = 0_u32;
            for begin in (0..end).rev() {
                rows += 1;
                if rows > self.rows_max || (!may_pad && sorted.get(begin) != Some(length)) {
                    break;
                }
                let before = best.get(begin).map_or(f64::INFINITY, |(cost, _)| *cost);
                let factor = factors.get(size_class(rows)).copied().unwrap_or(1.0);
                let cost = before + factor * self.plain(rows, *length);
                if cost < least.0 {
                    least = (cost, end - begin);
                }
            }
            best.push(least);
        }
        let cost = best.last().map_or(0.0, |(cost, _)| *cost);
        let (mut sizes, mut end) = (Vec::new(), sorted.len());
        while let Some((_, size)) = best.get(end).filter(|_| end > 0) {
            sizes.push(*size);
            end -= (*size).clamp(1, end);
        }
        sizes.reverse();
        (sizes, cost)
    }

    /// The sizes of the groups of a trial, if it is time for one and it does not cost too much.
    fn poll_trial(&mut self, sorted: &[u32], may_pad: bool, cost: f64) -> Option<Vec<usize>> {
        if sorted.len() < 2 {
            return None;
        }
        self.until_trial = self.until_trial.saturating_sub(1);
        if self.until_trial > 0 {
            return None;
        }
        let rows = 1_usize << self.trial_class;
        self.trial_class += 1;
        if self.trial_class >= self.row_classes {
            // A round is over: the next one is later.
            self.trial_class = 0;
            self.trial_gap = self.trial_gap.saturating_mul(2).min(PADDED_TRIAL_GAP_MAX);
        }
        self.until_trial = self.trial_gap;
        let rows_max = rows.min(usize::try_from(self.rows_max).unwrap_or(rows));
        let mut sizes: Vec<usize> = Vec::new();
        let mut left = sorted;
        let mut trial_cost = 0.0;
        while let Some(first) = left.first() {
            let group = left.iter().take(rows_max);
            let size = if may_pad { group.count() } else { group.take_while(|length| *length == first).count() };
            let longest = left.get(size - 1).copied().unwrap_or(*first);
            trial_cost += self.cost(u32::try_from(size).unwrap_or(u32::MAX), longest);
            sizes.push(size);
            left = left.get(size..).unwrap_or_default();
        }
        (trial_cost <= TRIAL_COST_MAX * cost).then_some(sizes)
    }

    /// The cost in places without any measurement.
    fn plain(&self, rows: u32, length: u32) -> f64 {
        f64::from(rows).mul_add(f64::from(length), self.fixed_places)
    }

    fn index(&self, row_class: usize, length_class: usize) -> usize {
        length_class * self.row_classes + row_class.min(self.row_classes - 1)
    }

    /// The measured cost of a place in runs of a size, or of the nearest size that ran; `None` while none did. Lengths count twice:
    /// of two known sizes, the one of as long rows says more.
    fn known(&self, row_class: usize, length_class: usize) -> Option<f64> {
        if let Some(median) = self.windows.get(self.index(row_class, length_class)).and_then(|window| window.median) {
            return Some(median);
        }
        let place = |index: usize| (index % self.row_classes, index / self.row_classes);
        let far = |index: usize| {
            let (rows, length) = place(index);
            // Of two at one distance, that of fewer rows: its runs came first.
            (rows.abs_diff(row_class) + 2 * length.abs_diff(length_class), rows)
        };
        let known = self.windows.iter().enumerate().filter_map(|(index, window)| Some((far(index), window.median?)));
        known.min_by_key(|(far, _)| *far).map(|(_, median)| median)
    }
}

impl PaddedWindow {
    fn push(&mut self, cost: f64) {
        match self.costs.get_mut(self.next) {
            Some(oldest) => *oldest = cost,
            None => self.costs.push(cost),
        }
        self.next = (self.next + 1) % PADDED_RUNS_KEPT;
        if self.costs.len() >= PADDED_RUNS_MIN {
            let mut costs: SmallVec<[f64; PADDED_RUNS_KEPT]> = SmallVec::from_slice(&self.costs);
            let middle = costs.len() / 2;
            self.median = Some(*costs.select_nth_unstable_by(middle, f64::total_cmp).1);
        }
    }
}

/// Returns true if a cost is so much another that the model, or its machine, must have changed: medians of interrupted runs vary
/// less.
fn has_changed(before: f64, now: f64) -> bool {
    now > before * PADDED_CHANGE || before > now * PADDED_CHANGE
}

/// The class of a length: up to each power of two.
fn length_class(length: u32) -> usize {
    let class = u32::BITS - length.saturating_sub(1).leading_zeros();
    usize::try_from(class).unwrap_or(usize::MAX).min(PADDED_LENGTH_CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time of a run in microseconds.
    type RunTime = fn(rows: u32, length: u32) -> u64;

    /// Short rows save the fixed cost; runs of more than 600 places cost a third more, as where they leave a cache.
    const CPU: RunTime = |rows, length| {
        let places = u64::from(rows * length);
        3000 + 250 * places + if places > 600 { 83 * places } else { 0 }
    };
    const DEVICE: RunTime = |rows, length| 5000 + u64::from(rows * length) / 4;

    fn random(seed: &mut u64, below: u32) -> u32 {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((*seed >> 33) % u64::from(below)) as u32
    }

    fn runs_of(groups: &[RowGroup], lengths: &[u32]) -> Vec<(u32, u32)> {
        groups.iter().map(|group| (group.len() as u32, group.iter().map(|row| lengths[*row]).max().unwrap())).collect()
    }

    fn check_plan(groups: &[RowGroup], lengths: &[u32], rows_max: u32, may_pad: bool) {
        let mut rows: Vec<_> = groups.iter().flatten().copied().collect();
        rows.sort_unstable();
        assert_eq!(rows, (0..lengths.len()).collect::<Vec<_>>(), "each row exactly once");
        for group in groups {
            assert!((1..=rows_max as usize).contains(&group.len()));
            assert!(may_pad || group.iter().all(|row| lengths[*row] == lengths[group[0]]), "{group:?}");
        }
    }

    /// Serves batches; returns the mean time of the last half, and that of rows one by one.
    fn serve(
        runs: &mut PaddedRuns,
        time: RunTime,
        noise: u64,
        mut lengths: impl FnMut(&mut u64) -> Vec<u32>,
    ) -> [u64; 2] {
        let (mut seed, mut sums) = (7, [0; 2]);
        for batch in 0..2000 {
            let lengths = lengths(&mut seed);
            let groups = runs.poll_groups(&lengths, true);
            check_plan(&groups, &lengths, runs.rows_max, true);
            for (rows, length) in runs_of(&groups, &lengths) {
                let mut took =
                    time(rows, length) * (100 - noise + u64::from(random(&mut seed, 2 * noise as u32 + 1))) / 100;
                // One run in ten is interrupted.
                took *= if noise > 0 && random(&mut seed, 10) == 0 { 5 } else { 1 };
                runs.handle_run(rows, length, Duration::from_micros(took));
                sums[0] += if batch >= 1000 { time(rows, length) } else { 0 };
            }
            sums[1] += if batch >= 1000 { lengths.iter().map(|length| time(1, *length)).sum::<u64>() } else { 0 };
        }
        sums
    }

    fn mixed(seed: &mut u64) -> Vec<u32> {
        // About log-normal: most are short.
        let mut length = |_| {
            let least = 8 << random(seed, 4);
            least + random(seed, least * 2)
        };
        (0..32).map(&mut length).collect()
    }

    #[test]
    fn before_anything_is_known_equal_lengths_run_together_and_long_padding_is_avoided() {
        let check = |lengths: &[u32], may_pad: bool, want: &[&[usize]]| {
            let groups = PaddedRuns::new(32).poll_groups(lengths, may_pad);
            check_plan(&groups, lengths, 32, may_pad);
            assert_eq!(groups, want, "{lengths:?}");
        };
        check(&[], true, &[]);
        check(&[7], true, &[&[0]]);
        check(&[20, 20, 20], true, &[&[0, 1, 2]]);
        check(&[20, 500, 20, 500], true, &[&[0, 2], &[1, 3]]);
        check(&[30, 20], true, &[&[0, 1]]);
        check(&[30, 20], false, &[&[1], &[0]]);
        check(&[20, 40], true, &[&[0], &[1]]);
    }

    #[test]
    fn groups_have_at_most_the_rows_of_the_model() {
        for rows_max in [1, 2, 3, 8] {
            let groups = PaddedRuns::new(rows_max).poll_groups(&[5; 20], true);
            check_plan(&groups, &[5; 20], rows_max, true);
            assert_eq!(groups.len(), 20_usize.div_ceil(rows_max as usize));
        }
    }

    #[test]
    fn no_plan_costs_more_than_one_by_one_by_its_own_costs() {
        let mut seed = 3;
        for case in 0..200_u32 {
            let mut runs = PaddedRuns::new([1, 4, 32, 100][case as usize % 4]);
            for _ in 0..random(&mut seed, 300) {
                let (rows, length) = (1 + random(&mut seed, runs.rows_max), 1 + random(&mut seed, 600));
                runs.handle_run(rows, length, Duration::from_micros(1 + u64::from(random(&mut seed, 100_000))));
            }
            let lengths: Vec<_> = (0..random(&mut seed, 60)).map(|_| 1 + random(&mut seed, 600)).collect();
            for may_pad in [true, false] {
                let groups = runs.poll_groups(&lengths, may_pad);
                check_plan(&groups, &lengths, runs.rows_max, may_pad);
                let planned: f64 =
                    runs_of(&groups, &lengths).iter().map(|(rows, length)| runs.cost(*rows, *length)).sum();
                let alone: f64 = lengths.iter().map(|length| runs.cost(1, *length)).sum();
                assert!(planned <= alone * (1.0 + 1e-9), "{planned} {alone}");
            }
        }
    }

    #[test]
    fn what_is_learned_is_near_the_best_and_never_far_from_one_by_one() {
        for noise in [0, 10] {
            let mut cpu = PaddedRuns::new(32);
            let [planned, alone] = serve(&mut cpu, CPU, noise, mixed);
            assert!(planned * 100 < alone * 99, "{planned} {alone}: short rows share runs");
            let [planned, alone] = serve(&mut cpu, CPU, noise, |_| vec![400; 8]);
            assert!(planned * 100 <= alone * 101, "{planned} {alone}: long rows run alone but for trials");
            let [planned, alone] = serve(&mut PaddedRuns::new(32), CPU, noise, |_| vec![20; 32]);
            assert!(planned * 100 < alone * 73, "{planned} {alone}: equal ones in groups of 30");
            let [planned, alone] = serve(&mut PaddedRuns::new(32), DEVICE, noise, mixed);
            assert!(planned * 5 < alone, "{planned} {alone}: on a device, many together");
        }
    }

    #[test]
    fn a_model_whose_costs_change_is_learned_anew() {
        let mut runs = PaddedRuns::new(32);
        serve(&mut runs, CPU, 5, mixed);
        let [planned, alone] = serve(&mut runs, DEVICE, 5, mixed);
        assert!(planned * 2 < alone, "{planned} {alone}");
        let [planned, alone] = serve(&mut runs, CPU, 5, mixed);
        assert!(planned < alone, "{planned} {alone}");
    }

    #[test]
    fn trials_become_rarer_and_never_cost_more_than_twice_the_plan() {
        let mut runs = PaddedRuns::new(4);
        for (rows, micros) in [(1, 100), (2, 1000), (4, 10_000)] {
            (0..3).for_each(|_| runs.handle_run(rows, 100, Duration::from_micros(micros)));
        }
        for _ in 0..4000 {
            let groups = runs.poll_groups(&[100; 4], true);
            assert_eq!(groups.len(), 4, "groups of two and four cost ten times as much");
        }
        assert_eq!(runs.trial_gap, PADDED_TRIAL_GAP_MAX);
        let mut runs = PaddedRuns::new(2);
        (0..3).for_each(|_| runs.handle_run(1, 100, Duration::from_micros(100)));
        (0..3).for_each(|_| runs.handle_run(2, 100, Duration::from_micros(300)));
        let trials = (0..64).filter(|_| runs.poll_groups(&[100; 2], true).len() == 1).count();
        assert_eq!(trials, 1, "a round of both sizes in 32 batches, the next in 64");
    }

    #[test]
    fn where_runs_overlap_more_padding_is_taken() {
        let mut runs = PaddedRuns::new(32);
        assert_eq!(runs.poll_groups(&[20, 400], true).len(), 2);
        runs.handle_overlap();
        assert_eq!(runs.poll_groups(&[20, 400], true).len(), 1);
    }

    #[test]
    fn lengths_of_any_size_have_a_class() {
        let got = [0, 1, 2, 3, 4, 5, 512, 513, u32::MAX].map(length_class);
        assert_eq!(got, [0, 0, 1, 2, 2, 3, 9, 10, PADDED_LENGTH_CLASSES - 1]);
    }
}
