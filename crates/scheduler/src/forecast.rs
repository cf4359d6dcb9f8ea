//! Estimates when a request leaves the queue (`--admission=queue`) or is answered (`deadline`),
//! from the requests before it, the runs in progress, and the run times of batches. Instances
//! publish what they measure and shards read it. Each number is an atomic of its own and the
//! numbers may be a few microseconds apart, which a forecast tolerates. Pure.
//!
//! It leaves out the time that an instance waits for resources of the rate limit. That depends on
//! the runs and priorities of other models. A measured wait would still count against a model that
//! has the resources to itself by now, and would refuse the very requests that could correct it. So
//! where models share resources, a late request may be admitted, and is refused at its deadline.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use smallvec::SmallVec;

use crate::policy::Policy;
use crate::run_time::{RunTimes, SIZE_CLASSES, size_class};
use base::policy::AdmissionRule;
use base::time::Instant;

/// Priority levels whose waiting rows a forecast counts separately; all levels above share one count.
const FORECAST_LEVELS_MAX: usize = 64;
/// Age at which a forecast of run times is tried again though it says that a request would be late:
/// a model may have been slow once, and would be refused forever.
const FORECAST_AGE_MAX: Duration = Duration::from_secs(1);

/// The idle time of an instance that takes no batches.
const ABSENT: u64 = u64::MAX;

/// The forecast of one model version.
#[derive(Debug)]
pub struct Forecast {
    /// Rows that wait, by priority level; levels past the last share its count.
    rows: Box<[AtomicUsize]>,
    /// Run times of batches by class of size, in nanoseconds: the mean or the bound, as the rule
    /// needs; 0 while unknown.
    run_times: [AtomicU64; SIZE_CLASSES],
    /// The time at which each instance will be idle, in nanoseconds; 0 for now, and [`ABSENT`] for one that is not there.
    idle_at: Box<[AtomicU64]>,
    /// Batches that each instance ran at the same time when it took the last.
    at_once: Box<[AtomicU32]>,
    rows_max: AtomicU32,
    /// The time at which the last batch was taken, in nanoseconds.
    taken_at: AtomicU64,
    rule: AdmissionRule,
    /// True if requests run together; otherwise each is a batch, of any number of rows.
    is_batched: bool,
}

impl Forecast {
    /// Nothing waits and nothing ran.
    pub fn new(policy: &Policy, instances: usize) -> Self {
        let levels = usize::try_from(policy.priority_levels).unwrap_or(usize::MAX).min(FORECAST_LEVELS_MAX);
        let rows_max = if policy.is_batched { policy.rows_preferred_max() } else { 1 };
        Self {
            rows: (0..=levels).map(|_| AtomicUsize::new(0)).collect(),
            run_times: std::array::from_fn(|_| AtomicU64::new(0)),
            idle_at: (0..instances).map(|_| AtomicU64::new(0)).collect(),
            at_once: (0..instances).map(|_| AtomicU32::new(1)).collect(),
            rows_max: AtomicU32::new(rows_max),
            taken_at: AtomicU64::new(0),
            rule: policy.admission,
            is_batched: policy.is_batched,
        }
    }

    /// The same with room for instances that come later, up to `instances_max` in all.
    pub fn with_room(self, instances_max: usize) -> Self {
        let absent = (self.idle_at.len()..instances_max).map(|_| AtomicU64::new(ABSENT));
        let at_once = (self.at_once.len()..instances_max).map(|_| AtomicU32::new(1));
        Self {
            idle_at: self.idle_at.into_iter().chain(absent).collect(),
            at_once: self.at_once.into_iter().chain(at_once).collect(),
            ..self
        }
    }

    /// An instance takes no batches from now on, until it is idle or takes one again.
    pub fn handle_gone(&self, instance: usize) {
        if let Some(cell) = self.idle_at.get(instance) {
            cell.store(ABSENT, Ordering::Relaxed);
        }
    }

    /// Returns the rule by which requests are refused.
    pub const fn rule(&self) -> AdmissionRule {
        self.rule
    }

    /// A request waits.
    #[inline]
    pub fn handle_request(&self, level: u64, rows: u32) {
        self.level(level).fetch_add(self.counted(rows), Ordering::Relaxed);
    }

    /// A request no longer waits.
    #[inline]
    pub fn handle_leave(&self, level: u64, rows: u32) {
        let have = self.level(level).fetch_sub(self.counted(rows), Ordering::Relaxed);
        debug_assert!(have >= self.counted(rows), "rows that leave a level had waited there");
    }

    /// Returns the weight of a request among those that wait, in units of `rows_max`.
    fn counted(&self, rows: u32) -> usize {
        if self.is_batched { rows.max(1) as usize } else { 1 }
    }

    /// An instance takes a batch of `rows` rows, and runs `at_once` batches at the same time, which end one after the
    /// other.
    pub fn handle_batch(&self, instance: usize, rows: u32, at_once: u32, now: Instant) {
        self.taken_at.store(now.as_nanos(), Ordering::Relaxed);
        let at_once = at_once.max(1);
        let idle_at = now + self.run_time(rows).unwrap_or_default() / at_once;
        if let Some(cell) = self.at_once.get(instance) {
            cell.store(at_once, Ordering::Relaxed);
        }
        if let Some(cell) = self.idle_at.get(instance) {
            cell.store(idle_at.as_nanos(), Ordering::Relaxed);
        }
    }

    /// An instance found nothing to run.
    #[inline]
    pub fn handle_idle(&self, instance: usize) {
        if let Some(cell) = self.idle_at.get(instance) {
            cell.store(0, Ordering::Relaxed);
        }
    }

    /// Sets the run times of batches, and their largest size to `rows_max` rows.
    pub fn handle_times(&self, times: &RunTimes, rows_max: u32) {
        let rows_max = if self.is_batched { rows_max.max(1) } else { 1 };
        self.rows_max.store(rows_max, Ordering::Relaxed);
        let estimate = if self.rule == AdmissionRule::Queue { RunTimes::expected } else { RunTimes::bound };
        for (class, cell) in self.run_times.iter().enumerate() {
            let time = estimate(times, 1_u32 << class).unwrap_or_default();
            cell.store(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    /// Returns the time at which a request that comes now would be answered, if no request of a
    /// higher level comes after it; `None` until a batch has run.
    pub fn answered_at(&self, level: u64, rows: u32, now: Instant) -> Option<Instant> {
        let rows_max = self.rows_max.load(Ordering::Relaxed).max(1);
        let full = self.run_time(rows_max)?;
        let before = self.rows_before(level);
        let (mut batches, rest) = (before / rows_max as usize, before % rows_max as usize);
        let mut rows_with = u32::try_from(rest).unwrap_or(u32::MAX).saturating_add(rows.max(1));
        if rest > 0 && rows_with > rows_max {
            (batches, rows_with) = (batches + 1, rows.max(1));
        }
        debug_assert!(rows_with <= rows_max.max(rows), "a batch is too large only where one request is");
        let own = self.run_time(rows_with)?;
        // Behind a full batch the request waits long enough for others to join its own batch, which
        // then takes as long as a full one.
        let own = if batches > 0 { own.max(full) } else { own };
        Some(self.started_at(batches, full, now) + own)
    }

    /// Returns the time at which a request that comes now would leave the queue, under the same
    /// conditions; also `None` if no full batch waits before it: the next idle instance takes it
    /// then, and its run time corrects a wrong forecast.
    #[inline]
    pub fn taken_at(&self, level: u64, now: Instant) -> Option<Instant> {
        let rows_max = self.rows_max.load(Ordering::Relaxed).max(1);
        let batches = self.rows_before(level) / rows_max as usize;
        (batches > 0).then(|| Some(self.started_at(batches, self.run_time(rows_max)?, now)))?
    }

    /// Returns true if a request that would be late should be admitted, so that its run corrects a
    /// forecast that refuses all: nothing ran for `FORECAST_AGE_MAX`. True for one of the
    /// requests that ask at the same time.
    pub fn takes_probe(&self, now: Instant) -> bool {
        let taken_at = self.taken_at.load(Ordering::Relaxed);
        let is_old = now.since(Instant::from_nanos(taken_at)) >= FORECAST_AGE_MAX;
        let now = now.as_nanos();
        is_old && self.taken_at.compare_exchange(taken_at, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Returns the time at which the batch behind `batches` full ones starts. Instances take turns:
    /// in every round, each runs one full batch.
    fn started_at(&self, batches: usize, full: Duration, now: Instant) -> Instant {
        let present = self.idle_at.iter().zip(&self.at_once).map(|(at, count)| (at.load(Ordering::Relaxed), count));
        let mut places = 0_usize;
        let mut idle_at: SmallVec<[u64; 8]> = SmallVec::new();
        for (at, count) in present.filter(|(at, _)| *at != ABSENT) {
            places += count.load(Ordering::Relaxed) as usize;
            idle_at.push(at);
        }
        idle_at.sort_unstable();
        if places > idle_at.len() {
            // Batches end one by one, and each makes a place for the next.
            let first = Instant::from_nanos(idle_at.first().copied().unwrap_or_default());
            let [batches, places] = [batches, places].map(|count| u32::try_from(count).unwrap_or(u32::MAX));
            return first.max(now) + full.saturating_mul(batches) / places.max(1);
        }
        let rounds = u32::try_from(batches / idle_at.len().max(1)).unwrap_or(u32::MAX);
        let first = idle_at.get(batches % idle_at.len().max(1)).copied().unwrap_or_default();
        Instant::from_nanos(first).max(now) + full.saturating_mul(rounds)
    }

    fn rows_before(&self, level: u64) -> usize {
        let last = self.rows.len().saturating_sub(1);
        let level = usize::try_from(level).unwrap_or(last).min(last);
        self.rows.iter().take(level + 1).map(|rows| rows.load(Ordering::Relaxed)).fold(0, usize::saturating_add)
    }

    fn level(&self, level: u64) -> &AtomicUsize {
        let last = self.rows.len().saturating_sub(1);
        let level = usize::try_from(level).unwrap_or(last).min(last);
        self.rows.get(level).expect("there is a level 0 at least, and none past the last")
    }

    fn run_time(&self, rows: u32) -> Option<Duration> {
        let nanos = self.run_times.get(size_class(rows))?.load(Ordering::Relaxed);
        (nanos > 0).then(|| Duration::from_nanos(nanos))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forecast(instances: usize, priority_levels: u64) -> Forecast {
        forecast_by(AdmissionRule::Deadline, instances, priority_levels)
    }

    /// Batches of up to 4 rows; one takes 100 µs, of one or two rows 50.
    fn forecast_by(admission: AdmissionRule, instances: usize, priority_levels: u64) -> Forecast {
        let policy = Policy { rows_max: 4, is_batched: true, priority_levels, admission, ..Policy::default() };
        let forecast = Forecast::new(&policy, instances);
        let mut times = RunTimes::new();
        for _ in 0..1000 {
            times.handle_run(1, Duration::from_micros(50));
            times.handle_run(2, Duration::from_micros(50));
            times.handle_run(4, Duration::from_micros(100));
        }
        forecast.handle_times(&times, 4);
        forecast
    }

    fn micros(forecast: &Forecast, level: u64, rows: u32, now: u64) -> u128 {
        let at = forecast.answered_at(level, rows, Instant::from_micros(now)).unwrap();
        at.since(Instant::ZERO).as_micros()
    }

    #[test]
    fn nothing_is_foretold_before_anything_ran() {
        let forecast = Forecast::new(&Policy::default(), 1);
        assert_eq!(forecast.answered_at(0, 1, Instant::ZERO), None);
    }

    #[test]
    fn a_request_waits_for_full_batches_before_it_and_is_joined_by_others_meanwhile() {
        let forecast = forecast(1, 0);
        let mut got = Vec::new();
        for _ in 0..10 {
            got.push(micros(&forecast, 0, 1, 1000));
            forecast.handle_request(0, 1);
        }
        assert_eq!(got, [1050, 1050, 1100, 1100, 1200, 1200, 1200, 1200, 1300, 1300]);
        (0..10).for_each(|_| forecast.handle_leave(0, 1));
        assert_eq!(micros(&forecast, 0, 4, 1000), 1100);
        forecast.handle_request(0, 3);
        assert_eq!(micros(&forecast, 0, 2, 1000), 1200, "both do not fit");
    }

    #[test]
    fn instances_that_come_share_what_waits_and_those_that_go_no_longer_do() {
        let forecast = forecast(1, 0).with_room(2);
        forecast.handle_request(0, 8);
        assert_eq!(micros(&forecast, 0, 4, 1000), 1300, "behind two batches");
        forecast.handle_idle(1);
        assert_eq!(micros(&forecast, 0, 4, 1000), 1200, "two at a time");
        forecast.handle_gone(0);
        assert_eq!(micros(&forecast, 0, 4, 1000), 1300);
    }

    #[test]
    fn instances_that_run_are_waited_for_and_share_what_waits() {
        let forecast = forecast(2, 0);
        forecast.handle_batch(0, 4, 1, Instant::from_micros(1000));
        assert_eq!(micros(&forecast, 0, 1, 1010), 1060, "the other is idle");
        forecast.handle_batch(1, 4, 1, Instant::from_micros(1020));
        assert_eq!(micros(&forecast, 0, 1, 1030), 1150, "the first is idle at 1100");
        forecast.handle_request(0, 4);
        assert_eq!(micros(&forecast, 0, 1, 1030), 1220, "the second at 1120");
        forecast.handle_request(0, 4);
        assert_eq!(micros(&forecast, 0, 1, 1030), 1300, "the first again, after a full batch");
    }

    #[test]
    fn batches_that_run_at_once_make_a_place_each() {
        let forecast = forecast(1, 0);
        forecast.handle_batch(0, 4, 5, Instant::from_micros(1000));
        assert_eq!(micros(&forecast, 0, 4, 1000), 1120, "one of five ends after 20");
        forecast.handle_request(0, 40);
        assert_eq!(micros(&forecast, 0, 4, 1000), 1320, "ten batches, five at a time");
        forecast.handle_batch(0, 4, 1, Instant::from_micros(1000));
        assert_eq!(micros(&forecast, 0, 4, 1000), 2200, "in turn");
    }

    #[test]
    fn a_request_leaves_the_queue_when_the_full_batches_before_it_have() {
        let forecast = forecast_by(AdmissionRule::Queue, 2, 0);
        let taken = || forecast.taken_at(0, Instant::from_micros(1000)).map(|at| at.since(Instant::ZERO).as_micros());
        forecast.handle_batch(0, 4, 1, Instant::from_micros(1000));
        let mut got = Vec::new();
        for _ in 0..6 {
            got.push(taken());
            forecast.handle_request(0, 2);
        }
        assert_eq!(
            got,
            [None, None, Some(1100), Some(1100), Some(1100), Some(1100)],
            "the other is idle, and takes four"
        );
        assert_eq!(taken(), Some(1200), "each has taken four, then the first again");
    }

    #[test]
    fn one_request_a_second_is_let_through_where_nothing_runs() {
        let forecast = forecast(1, 0);
        forecast.handle_batch(0, 1, 1, Instant::from_micros(500_000));
        let got = [600_000, 1_499_999, 1_500_000, 1_500_000, 2_499_999, 2_500_000];
        let got = got.map(|micros| forecast.takes_probe(Instant::from_micros(micros)));
        assert_eq!(got, [false, false, true, false, false, true]);
    }

    #[test]
    fn without_batching_each_request_is_a_run_however_many_rows_it_has() {
        let policy = Policy { rows_max: 8, is_batched: false, admission: AdmissionRule::Deadline, ..Policy::default() };
        let forecast = Forecast::new(&policy, 1);
        let mut times = RunTimes::new();
        (0..1000).for_each(|_| times.handle_run(8, Duration::from_micros(100)));
        forecast.handle_times(&times, 8);
        assert_eq!(micros(&forecast, 0, 8, 0), 100);
        (0..3).for_each(|_| forecast.handle_request(0, 8));
        assert_eq!(micros(&forecast, 0, 8, 0), 400);
        (0..3).for_each(|_| forecast.handle_leave(0, 8));
        assert_eq!(micros(&forecast, 0, 8, 0), 100);
    }

    #[test]
    fn what_has_a_lower_priority_is_not_before_it() {
        let forecast = forecast(1, 3);
        forecast.handle_request(3, 40);
        forecast.handle_request(2, 4);
        assert_eq!([1, 2, 3].map(|level| micros(&forecast, level, 1, 0)), [50, 200, 1200]);
    }
}
