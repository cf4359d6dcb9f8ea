use super::*;
use crate::loadgen::schedule::{Distribution, Schedule, ThreadShare};

const RANGE: SearchRange = SearchRange { start: 100.0, rate_min: 100.0, rate_max: 1e6 };

fn goal() -> LatencyGoal {
    LatencyGoal::parse("p99=500ms").unwrap()
}

/// Returns all rates tried, and the search at its end, if rates up to `capacity` meet the goal.
fn search(range: SearchRange, precision: f64, capacity: f64) -> (Vec<f64>, RateSearch) {
    let (mut search, mut tried) = (RateSearch::new(goal(), range, precision), Vec::new());
    while let Some(step) = search.poll_step() {
        tried.push(step.rate);
        search.handle_outcome(&step, step.rate <= capacity);
        assert!(tried.len() < 100, "{tried:?}");
    }
    (tried, search)
}

#[test]
fn the_highest_rate_is_found_to_the_precision() {
    for capacity in [137.0, 1000.0, 98_765.4] {
        let (tried, search) = search(RANGE, 0.02, capacity);
        let best = search.best().unwrap();
        assert!(best <= capacity && best * 1.02 >= capacity, "{capacity}: {best}");
        assert!(tried.len() <= 21 && !search.has_reached_top(), "{tried:?}");
    }
}

#[test]
fn the_ends_of_the_range_end_the_search() {
    let (tried, found) = search(RANGE, 0.05, 50.0);
    assert_eq!((tried, found.best()), (vec![100.0], None));
    let (tried, found) = search(SearchRange { rate_max: 300.0, ..RANGE }, 0.05, 1e9);
    assert_eq!((tried, found.best()), (vec![100.0, 200.0, 300.0, 300.0], Some(300.0)), "the last in full");
    assert!(found.has_reached_top());
}

#[test]
fn a_start_that_misses_is_halved_down_to_the_lowest_rate() {
    let low = SearchRange { rate_min: 1.0, ..RANGE };
    let (tried, found) = search(low, 0.05, 30.0);
    assert_eq!(tried[..3], [100.0, 50.0, 25.0]);
    assert!(found.best().is_some_and(|best| (28.5..=30.0).contains(&best)), "{found:?}");
    let (tried, found) = search(low, 0.05, 0.0);
    assert_eq!((tried.last(), found.best()), (Some(&1.0), None));
}

#[test]
fn a_rate_that_met_early_is_measured_in_full_before_it_is_the_result() {
    let mut search = RateSearch::new(goal(), SearchRange { start: 10.0, rate_min: 1.0, rate_max: 40.0 }, 0.5);
    let script = [(10.0, true, true), (20.0, true, true), (40.0, true, false), (28.28, false, false)];
    for (rate, is_coarse, is_met) in script.into_iter().chain([(20.0, false, false), (14.14, false, true)]) {
        let step = search.poll_step().unwrap();
        assert!((step.rate - rate).abs() < 0.01 && step.is_coarse == is_coarse, "{rate}: {step:?}");
        search.handle_outcome(&step, is_met);
    }
    assert!(search.poll_step().is_none() && search.best().is_some_and(|best| (best - 14.14).abs() < 0.01));
}

#[test]
fn goals_are_read_or_refused() {
    let check = |text: &str, percentile, micros| {
        let want = LatencyGoal { percentile, latency_max: Duration::from_micros(micros) };
        assert_eq!(LatencyGoal::parse(text), Ok(want), "{text}");
    };
    check("p99=10ms", 99.0, 10_000);
    check("p99.9=250us", 99.9, 250);
    check("p50=1.5s", 50.0, 1_500_000);
    for text in ["99=10ms", "p99", "p99=10", "p99=ms", "p100=1ms", "p0=1ms", "p99=0ms", "p99=-1ms", "p99=10min"] {
        assert!(LatencyGoal::parse(text).is_err(), "{text}");
    }
}

#[test]
fn a_step_ends_when_the_outcome_is_clear() {
    let full = SearchStep { rate: 100.0, is_coarse: false, goal: goal() };
    let coarse = SearchStep { is_coarse: true, ..full };
    let good = StepProgress {
        elapsed: Duration::from_secs(2),
        windows: 2,
        succeeded: 200,
        slowest: Duration::from_millis(100),
        ended_later: 100,
        ..StepProgress::default()
    };
    let end =
        StepProgress { elapsed: Duration::from_secs(20), windows: 20, succeeded: 2000, ended_later: 1900, ..good };
    let check =
        |step: &SearchStep, so_far: StepProgress, want, why: &str| assert_eq!(step.judge(&so_far), want, "{why}");
    assert_eq!(full.duration(), Duration::from_secs(20), "20 requests beyond p99");
    check(&coarse, good, Some(Ok(())), "far below the goal");
    check(&full, good, None, "not enough requests");
    check(&coarse, StepProgress { windows: 1, ..good }, None, "one window says nothing of the backlog");
    check(&coarse, StepProgress { slowest: Duration::from_millis(300), ..good }, None, "near the limit");
    check(&full, end, Some(Ok(())), "all requests are in time");
    check(&full, StepProgress { above: 20, ..end }, Some(Ok(())), "as many as may be late");
    check(&full, StepProgress { above: 21, ..end }, None, "one more, which may be chance");
    let late = StepProgress { elapsed: Duration::from_secs(40), ..end };
    check(&full, StepProgress { above: 21, ..late }, Some(Err(GoalMiss::Latency)), "no chance");
    check(&full, StepProgress { failed: 30, ..late }, Some(Err(GoalMiss::Failures)), "failures count as late");
    check(&full, StepProgress { above: 150, ..good }, Some(Err(GoalMiss::Latency)), "it cannot recover");
    check(&full, StepProgress { backlog: 50, ..end }, Some(Ok(())), "due within the limit");
    check(&full, StepProgress { backlog: 90, ..late }, Some(Err(GoalMiss::Throughput)), "due for longer");
    let patient = SearchStep { goal: LatencyGoal::parse("p99=100s").unwrap(), ..full };
    check(&patient, StepProgress { backlog: 1000, ..end }, Some(Err(GoalMiss::Throughput)), "the backlog grows");
    check(&full, StepProgress { succeeded: 0, ..end }, Some(Err(GoalMiss::Throughput)), "nothing is answered");
}

/// A server that runs one request at a time, each for 20 ms, and what a load at a rate measures of it.
struct Queue {
    schedule: Schedule,
    free_at: Duration,
    /// When each request was due and when it ended.
    requests: Vec<(Duration, Duration)>,
}

const SERVICE: Duration = Duration::from_millis(20);
const WARM_UP: Duration = Duration::from_millis(300);

impl Queue {
    fn new(rate: f64, distribution: Distribution, seed: u64) -> Self {
        let schedule = Schedule::new(rate, distribution, seed, ThreadShare { index: 0, count: 1 });
        Self { schedule, free_at: Duration::ZERO, requests: Vec::new() }
    }

    /// Runs all requests that are due before `end`.
    fn run(&mut self, end: Duration) {
        while self.requests.last().is_none_or(|(due, _)| *due < end) {
            let due = self.schedule.next_due();
            self.free_at = due.max(self.free_at) + SERVICE;
            self.requests.push((due, self.free_at));
        }
    }
}

/// Measures a step in windows of a second. Returns the outcome and the answers per second.
fn measure(step: &SearchStep, distribution: Distribution, seed: u64) -> (Result<(), GoalMiss>, f64) {
    let mut queue = Queue::new(step.rate, distribution, seed);
    let mut so_far = StepProgress::default();
    loop {
        so_far.windows += 1;
        so_far.elapsed = Duration::from_secs(so_far.windows as u64);
        let end = WARM_UP + so_far.elapsed;
        queue.run(end);
        let times = |ended_from: Duration| {
            let ended = queue.requests.iter().filter(move |(_, ended)| (ended_from..end).contains(ended));
            ended.map(|(due, ended)| *ended - *due)
        };
        so_far.succeeded = times(WARM_UP).count() as u64;
        so_far.ended_later = times(WARM_UP + Duration::from_secs(1)).count() as u64;
        so_far.above = times(WARM_UP).filter(|time| *time > step.goal.latency_max).count() as u64;
        so_far.slowest = times(WARM_UP).max().unwrap_or_default();
        so_far.backlog = queue.requests.iter().filter(|(due, ended)| *due < end && *ended >= end).count() as u64;
        if so_far.windows == 1 {
            so_far.backlog_first = so_far.backlog;
        }
        if let Some(outcome) = step.judge(&so_far) {
            return (outcome, so_far.succeeded as f64 / so_far.elapsed.as_secs_f64());
        }
    }
}

/// Returns the rate that a search reports.
fn find(range: SearchRange, distribution: Distribution, seed: u64) -> Option<f64> {
    let mut search = RateSearch::new(goal(), range, 0.05);
    let mut answered = 0.0;
    while let Some(step) = search.poll_step() {
        let (outcome, rate) = measure(&step, distribution, seed);
        search.handle_outcome(&step, outcome.is_ok());
        if outcome.is_ok() {
            answered = rate;
        }
    }
    search.best().map(|best| reported_rate(best, answered))
}

/// The rate at which p99 of a queue with Poisson arrivals is 500 ms in the long run: 45.5/s, from a simulation of
/// 400,000 requests.
const TRUTH_POISSON: f64 = 45.5;

#[test]
fn a_search_does_not_depend_on_luck() {
    for (start, rate_min) in [(2.0, 2.0), (100.0, 1.0)] {
        let range = SearchRange { start, rate_min, rate_max: 1000.0 };
        for seed in 0..200 {
            let found = find(range, Distribution::Poisson, seed).unwrap_or(0.0);
            assert!((found / TRUTH_POISSON - 1.0).abs() <= 0.1, "seed {seed} from {start}: {found}");
        }
        let found = find(range, Distribution::Constant, 1).unwrap();
        assert!((45.0..=50.0).contains(&found), "a constant rate from {start}: {found}");
    }
}
