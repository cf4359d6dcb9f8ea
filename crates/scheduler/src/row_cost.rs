//! Learns from runs which size of batch costs least per row: most models run eight rows in little
//! more than the time of one, some take longer for each row of a batch than for one alone (a
//! convolution whose rows together no longer fit the cache). Pure; used by the scheduler where
//! neither sizes, a delay nor a latency target are configured. Bounded: one window for each power
//! of two of rows.
//!
//! The costs of sizes that the choice leaves out are kept fresh by *trials*: now and then one batch is formed as if another
//! size were the choice. Trials become rarer while they change nothing.

use std::time::Duration;

use smallvec::SmallVec;

use crate::limits::{ROW_COST_MARGIN, ROW_COST_RUNS};
use crate::run_time::size_class;

/// Runs after which the cost is known.
const ROW_COST_RUNS_MIN: usize = 5;
/// The inverse of the part by which a cost may drift before other sizes are measured again.
const ROW_COST_CHANGE: u64 = 4;
/// Least time for a row if sizes are compared: below it the work around a batch outweighs it.
const ROW_COST_MIN: Duration = Duration::from_micros(200);
/// Batches between two trials of another size: at first, so that a model's sizes are known within seconds ...
const ROW_TRIAL_GAP_MIN: u32 = 16;
/// ... and while they change nothing: trials of a size that costs twice as much then take a thousandth of the time.
const ROW_TRIAL_GAP_MAX: u32 = 1024;

/// The cost of a row by size of batch, and the size that follows.
#[derive(Clone, Debug)]
pub struct RowCosts {
    /// By class of size; the last is of the largest batch.
    windows: Box<[RowCostWindow]>,
    rows_max: u32,
    /// The cheapest class; the last unless a smaller one is cheaper.
    best: usize,
    /// A class and its cost when the others were measured.
    known: Option<(usize, u64)>,
    /// The class of the next batch, if it is a trial.
    trial: Option<usize>,
    /// The class of the trial after it.
    next_trial: usize,
    /// Batches until the next trial, and between two.
    until_trial: u32,
    trial_gap: u32,
}

/// The last runs of one class, and the median cost of a row in them.
#[derive(Clone, Debug, Default)]
struct RowCostWindow {
    /// In nanoseconds; the oldest is overwritten.
    costs: Vec<u64>,
    next: usize,
    median: Option<u64>,
}

impl RowCosts {
    /// The costs of a model that takes `rows_max` rows at once, before its first run.
    pub fn new(rows_max: u32) -> Self {
        let best = size_class(rows_max);
        Self {
            windows: vec![RowCostWindow::default(); best + 1].into(),
            rows_max,
            best,
            known: None,
            trial: None,
            next_trial: 0,
            until_trial: ROW_TRIAL_GAP_MIN,
            trial_gap: ROW_TRIAL_GAP_MIN,
        }
    }

    /// A batch of `rows` rows took `took`, with nothing else on its instance.
    pub fn handle_run(&mut self, rows: u32, took: Duration) {
        let class = size_class(rows);
        let Some(window) = self.windows.get_mut(class) else { return };
        window.push(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX) / u64::from(rows.max(1)));
        self.forget_what_is_old(class);
        let best = self.cheapest();
        if best != self.best {
            self.best = best;
            self.known = None;
            self.set_gap(ROW_TRIAL_GAP_MIN);
        }
    }

    /// A batch of `rows` rows left the queue.
    pub fn handle_batch(&mut self, rows: u32) {
        if self.trial.take().is_some() || rows == 0 || !self.pays_to_know() {
            return;
        }
        self.until_trial = self.until_trial.saturating_sub(1);
        if self.until_trial == 0 {
            self.begin_trial();
        }
    }

    /// Rows that the next batch may have.
    #[inline]
    pub fn rows_limit(&self) -> u32 {
        self.rows_of(self.trial.unwrap_or(self.best))
    }

    /// Rows that a batch may have except in trials.
    #[inline]
    pub fn rows_chosen(&self) -> u32 {
        self.rows_of(self.best)
    }

    /// Returns the cost of a row for each class of size that ran: the largest number of rows in the
    /// class, and the time.
    pub fn costs(&self) -> impl Iterator<Item = (u32, Duration)> + '_ {
        let known = |(class, window): (usize, &RowCostWindow)| {
            Some((self.rows_of(class), Duration::from_nanos(window.median?)))
        };
        self.windows.iter().enumerate().filter_map(known)
    }

    /// The largest batch of a class.
    fn rows_of(&self, class: usize) -> u32 {
        1_u32.checked_shl(class as u32).unwrap_or(u32::MAX).min(self.rows_max)
    }

    /// Forgets the costs of the other classes if the cost of the choice has changed since they were
    /// measured: theirs have changed as well then.
    fn forget_what_is_old(&mut self, class: usize) {
        let Some(cost) = self.windows.get(class).and_then(|window| window.median) else { return };
        let (known_class, known_cost) = *self.known.get_or_insert((class, cost));
        if known_class == class && cost.abs_diff(known_cost) > known_cost / ROW_COST_CHANGE {
            let others = self.windows.iter_mut().enumerate().filter(|(other, _)| *other != class);
            others.for_each(|(_, window)| *window = RowCostWindow::default());
            self.known = Some((class, cost));
            self.set_gap(ROW_TRIAL_GAP_MIN);
        }
    }

    fn set_gap(&mut self, gap: u32) {
        self.trial_gap = gap;
        self.until_trial = self.until_trial.min(gap);
    }

    /// Returns the cheapest class. The largest that ran stands for all larger ones. A smaller class
    /// must be cheaper by a margin, and so must any that replaces the choice.
    fn cheapest(&self) -> usize {
        let last = self.windows.len() - 1;
        let known = || self.windows.iter().enumerate().filter_map(|(class, window)| Some((class, window.median?)));
        let Some((largest, _)) = known().next_back() else { return last };
        let now = self.best.min(largest);
        let Some(cost) = self.windows.get(now).and_then(|window| window.median) else { return self.best };
        let least = known().min_by_key(|(class, cost)| (*cost, usize::MAX - class));
        let (class, _) = least.filter(|(_, least)| is_cheaper(*least, cost)).unwrap_or((now, cost));
        if class == largest { last } else { class }
    }

    /// Returns true if rows take so long that batches may cost more than they save.
    fn pays_to_know(&self) -> bool {
        let longest = self.windows.iter().filter_map(|window| window.median).max();
        longest.is_some_and(|cost| u128::from(cost) >= ROW_COST_MIN.as_nanos())
    }

    fn begin_trial(&mut self) {
        let known = self.windows.iter().rposition(|window| window.median.is_some()).unwrap_or(0);
        // The choice itself needs no trial: it runs anyway.
        let classes = (self.next_trial..=known).chain(0..self.next_trial.min(known));
        let trial = classes.clone().find(|class| *class != self.best.min(known));
        debug_assert!(classes.count() <= self.windows.len(), "each class is tried once in a round");
        // A round is over: the next one is later, once each class is known.
        let is_round = trial.is_none_or(|class| class < self.next_trial);
        self.trial = trial;
        self.next_trial = trial.map_or(0, |class| class + 1);
        let is_known = self.windows.iter().take(known).all(|window| window.median.is_some());
        if is_round && is_known {
            self.trial_gap = self.trial_gap.saturating_mul(2).min(ROW_TRIAL_GAP_MAX);
        }
        self.until_trial = self.trial_gap;
    }
}

impl RowCostWindow {
    fn push(&mut self, cost: u64) {
        match self.costs.get_mut(self.next) {
            Some(oldest) => *oldest = cost,
            None => self.costs.push(cost),
        }
        self.next = (self.next + 1) % ROW_COST_RUNS;
        if self.costs.len() >= ROW_COST_RUNS_MIN {
            let mut costs: SmallVec<[u64; ROW_COST_RUNS]> = SmallVec::from_slice(&self.costs);
            let middle = costs.len() / 2;
            self.median = Some(*costs.select_nth_unstable(middle).1);
        }
    }
}

/// Returns true if a cost is below another by more than the noise of both.
fn is_cheaper(cost: u64, other: u64) -> bool {
    cost < other - other / ROW_COST_MARGIN
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Claims, Entry, Policy, Scheduler, ShapeKey};
    use base::time::Instant;

    /// Time of a batch in microseconds, by its rows.
    type BatchTime = fn(u32) -> u64;

    /// No entry leaves.
    struct AllWait;

    impl Claims<()> for AllWait {
        fn is_waiting(&mut self, (): &()) -> bool {
            true
        }

        fn claim(&mut self, (): &()) -> bool {
            true
        }
    }

    const fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    fn policy(rows_max: u32) -> Policy {
        Policy { rows_max, is_batched: true, ..Policy::default() }
    }

    /// One instance and clients that each send a row as soon as they have an answer, for `rows`
    /// rows; runs vary evenly by `noise` percent both ways. Returns microseconds per row.
    fn closed_loop(scheduler: &mut Scheduler<()>, clients: u32, rows: u32, batch_time: BatchTime, noise: u64) -> f64 {
        let (mut now, mut done, mut seed) = (Instant::ZERO, 0, 0x9e37_79b9_7f4a_7c15_u64);
        let request = |scheduler: &mut Scheduler<()>, now: Instant| {
            let (token, shape_key, timeout) = ((), ShapeKey::new(), Duration::ZERO);
            let entry = Entry { token, rows: 1, shape_key, queued_at: now, priority: 0, timeout, deadline: None };
            scheduler.handle_request(entry, now).unwrap();
        };
        (scheduler.len() as u32..clients).for_each(|_| request(scheduler, now));
        while done < rows {
            let batch = scheduler.poll_batch(now, &mut AllWait).unwrap();
            (seed, done) = (seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1), done + batch.rows);
            let took = batch_time(batch.rows) * (100 - noise + (seed >> 33) % (2 * noise + 1)) / 100;
            now = now + micros(took);
            scheduler.handle_run(batch.rows, micros(took));
            scheduler.handle_lone_run(batch.rows, micros(took), now);
            (0..batch.rows).for_each(|_| request(scheduler, now));
        }
        now.since(Instant::ZERO).as_secs_f64() * 1e6 / f64::from(rows)
    }

    /// Returns the time per row of a scheduler that has learned, relative to the best size fixed by
    /// hand; and its choice.
    fn over_the_best(batch_time: BatchTime, rows_max: u32, clients: u32, noise: u64) -> (f64, u32) {
        let mut learned = Scheduler::new(policy(rows_max));
        closed_loop(&mut learned, clients, 20_000, batch_time, noise);
        let time = closed_loop(&mut learned, clients, 100_000, batch_time, noise);
        let fixed = |rows: u32| {
            let policy = Policy { rows_preferred: vec![rows], ..policy(rows) };
            closed_loop(&mut Scheduler::new(policy), clients, 100_000, batch_time, noise)
        };
        let sizes = std::iter::successors(Some(1), |rows| Some(rows * 2)).take_while(|rows| *rows < rows_max);
        let least = sizes.chain([rows_max]).map(fixed).fold(f64::INFINITY, f64::min);
        (time / least, learned.row_costs().unwrap().rows_chosen())
    }

    #[test]
    fn no_model_is_slower_than_with_the_best_size_fixed_by_hand_by_more_than_2_percent() {
        let check = |name: &str, batch_time: BatchTime, rows_max: u32, want: u32| {
            for (clients, noise) in [(8, 0), (8, 5), (8, 20), (32, 10)] {
                let (over, chosen) = over_the_best(batch_time, rows_max, clients, noise);
                assert!(over <= 1.02, "{name}, {clients} clients, {noise} %: {over:.4}, {chosen} rows");
                assert!(chosen == want || noise > 5, "{name}, {clients} clients, {noise} %: {chosen} rows");
            }
        };
        check("one run for all", |_| 5000, 8, 8);
        check("rows cost a little", |rows| 5000 + 300 * u64::from(rows), 8, 8);
        check("together 11 % more", |rows| 6020 * u64::from(rows) * [100, 105, 111, 111][size_class(rows)] / 100, 8, 1);
        check("four fit the cache", |rows| u64::from(rows) * [900, 700, 500, 650][size_class(rows)], 8, 4);
        check("six at once", |rows| 1000 + 500 * u64::from(rows) + if rows > 4 { 3000 } else { 0 }, 6, 4);
    }

    #[test]
    fn rows_that_cost_the_same_in_every_size_stay_as_they_are() {
        let mut scheduler = Scheduler::new(policy(8));
        closed_loop(&mut scheduler, 8, 50_000, |rows| 1000 * u64::from(rows), 0);
        let costs = scheduler.row_costs().unwrap();
        assert_eq!(costs.costs().collect::<Vec<_>>(), [1, 2, 4, 8].map(|rows| (rows, micros(1000))));
        assert_eq!((costs.rows_chosen(), scheduler.policy().rows_max), (8, 8));
    }

    #[test]
    fn short_runs_are_never_compared() {
        let mut scheduler = Scheduler::new(policy(8));
        closed_loop(&mut scheduler, 8, 50_000, |rows| 100 * u64::from(rows) + 10 * u64::from(rows * rows), 0);
        let costs = scheduler.row_costs().unwrap();
        assert_eq!((costs.costs().count(), costs.rows_chosen()), (1, 8), "only the size that came of itself ran");
    }

    #[test]
    fn a_model_whose_costs_change_is_learned_anew() {
        let mut scheduler = Scheduler::new(policy(8));
        let mut chosen = |batch_time: BatchTime| {
            closed_loop(&mut scheduler, 8, 50_000, batch_time, 5);
            scheduler.row_costs().unwrap().rows_chosen()
        };
        assert_eq!(chosen(|rows| 1000 * u64::from(rows) + 300 * u64::from(rows * rows)), 1);
        assert_eq!(chosen(|rows| 5000 + 100 * u64::from(rows)), 8);
        assert_eq!(chosen(|rows| 1000 * u64::from(rows) + 300 * u64::from(rows * rows)), 1);
    }

    #[test]
    fn trials_become_rarer_while_they_change_nothing() {
        let mut costs = RowCosts::new(2);
        (0..ROW_COST_RUNS_MIN).for_each(|_| costs.handle_run(2, micros(2000)));
        // Batches before each trial.
        let mut gaps = Vec::new();
        let mut gap = 0;
        while gaps.len() < 16 {
            costs.handle_batch(2);
            gap += 1;
            if costs.rows_limit() == 1 {
                costs.handle_batch(1);
                costs.handle_run(1, micros(2000));
                gaps.push(std::mem::take(&mut gap));
            }
        }
        assert_eq!(gaps[..4], [16; 4], "until one row alone is known");
        assert_eq!(gaps[14..], [ROW_TRIAL_GAP_MAX; 2], "{gaps:?}");
        assert!(gaps.is_sorted());
    }

    #[test]
    fn requests_of_another_shape_end_it() {
        let mut scheduler = Scheduler::new(policy(8));
        closed_loop(&mut scheduler, 8, 20_000, |rows| 300 * u64::from(rows * rows), 0);
        assert_eq!(scheduler.policy().rows_max, 1);
        let (shape_key, timeout, now) = (ShapeKey::from_slice(&[7]), Duration::ZERO, Instant::ZERO);
        let entry = Entry { token: (), rows: 1, shape_key, queued_at: now, priority: 0, timeout, deadline: None };
        scheduler.handle_request(entry, now).unwrap();
        assert!(scheduler.row_costs().is_none());
        assert_eq!(scheduler.policy().rows_max, 8);
    }

    #[test]
    fn rows_of_different_lengths_teach_nothing() {
        let mut scheduler = Scheduler::new(Policy { rows_differ: true, ..policy(8) });
        closed_loop(&mut scheduler, 8, 20_000, |rows| 300 * u64::from(rows * rows), 0);
        assert!(scheduler.row_costs().is_none());
        assert_eq!(scheduler.policy().rows_max, 8);
    }

    #[test]
    fn sizes_delays_and_targets_that_are_configured_are_kept() {
        assert!(policy(8).learns_row_costs());
        for other in [
            policy(1),
            Policy { is_batched: false, ..policy(8) },
            Policy { rows_preferred: vec![8], ..policy(8) },
            Policy { queue_delay_max: micros(1), ..policy(8) },
            Policy { latency_target: Some(micros(1)), ..policy(8) },
        ] {
            assert!(!other.learns_row_costs(), "{other:?}");
            assert!(Scheduler::<()>::new(other).row_costs().is_none());
        }
    }
}
