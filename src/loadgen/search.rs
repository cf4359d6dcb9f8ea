//! The search for the highest rate that meets a goal: the rate is doubled until it misses, then bisected between the
//! highest that met and the lowest that missed. Pure.

use std::time::Duration;

/// A goal for latency: the percentile must not exceed the limit.
///
/// ```
/// use std::time::Duration;
///
/// use deuteron::loadgen::search::LatencyGoal;
///
/// let goal = LatencyGoal::parse("p99=10ms")?;
/// assert_eq!(goal, LatencyGoal { percentile: 99.0, latency_max: Duration::from_millis(10) });
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencyGoal {
    /// The percentile: 99.0 for p99.
    pub percentile: f64,
    /// The limit.
    pub latency_max: Duration,
}

impl LatencyGoal {
    /// Parses `p99=10ms`.
    ///
    /// # Errors
    /// A line for the user, when the text is not a percentile and a latency.
    pub fn parse(text: &str) -> Result<Self, String> {
        let malformed = || "expected a percentile and a latency, as in p99=10ms".to_owned();
        let (percentile, latency) = text.split_once('=').ok_or_else(malformed)?;
        let percentile: f64 =
            percentile.strip_prefix('p').and_then(|number| number.parse().ok()).ok_or_else(malformed)?;
        if !(percentile > 0.0 && percentile < 100.0) {
            return Err("a percentile lies between 0 and 100".to_owned());
        }
        let digits = latency.trim_end_matches(char::is_alphabetic);
        let unit = match latency.get(digits.len()..) {
            Some("us") => 1e-6,
            Some("ms") => 1e-3,
            Some("s") => 1.0,
            _ => return Err("expected a latency in us, ms or s, as in p99=10ms".to_owned()),
        };
        let count: f64 = digits.parse().map_err(|_| malformed())?;
        match Duration::try_from_secs_f64(count * unit) {
            Ok(latency_max) if !latency_max.is_zero() => Ok(Self { percentile, latency_max }),
            _ => Err("the latency must be greater than 0".to_owned()),
        }
    }
}

/// The reason why a rate misses the goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoalMiss {
    /// More requests failed than may exceed the limit.
    Failures,
    /// The percentile is above the limit.
    Latency,
    /// The server answered fewer requests than were due.
    Throughput,
}

impl GoalMiss {
    /// Its text in the report.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Failures => "failed requests",
            Self::Latency => "latency",
            Self::Throughput => "falls behind",
        }
    }
}

/// The measurement of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredRate {
    /// Successful requests per second.
    pub throughput: f64,
    /// The latency at the goal's percentile.
    pub latency: Duration,
    /// The share of failures among the requests that ended, from 0 to 1.
    pub failed_share: f64,
}

impl LatencyGoal {
    /// Checks the measurement of a rate.
    ///
    /// # Errors
    /// The reason why the rate misses the goal.
    pub fn check(&self, rate: f64, measured: MeasuredRate) -> Result<(), GoalMiss> {
        if measured.failed_share > 1.0 - self.percentile / 100.0 {
            Err(GoalMiss::Failures)
        } else if measured.latency > self.latency_max {
            Err(GoalMiss::Latency)
        } else if measured.throughput < rate * THROUGHPUT_SHARE_MIN {
            // Needed besides the latency, which does not yet include the requests that still wait in a growing queue.
            Err(GoalMiss::Throughput)
        } else {
            Ok(())
        }
    }
}

/// The share of the requested rate that must be answered. Below 1, because the number of arrivals of a Poisson load varies
/// in a short window.
const THROUGHPUT_SHARE_MIN: f64 = 0.9;

/// The state of a search.
#[derive(Clone, Debug)]
pub struct RateSearch {
    next: f64,
    /// The highest rate that met the goal.
    met: Option<f64>,
    /// The lowest that did not.
    missed: Option<f64>,
    rate_min: f64,
    rate_max: f64,
    precision: f64,
}

impl RateSearch {
    /// A search between two rates. It ends when the bounds are as close as `precision`: 0.05 for 5 %.
    pub const fn new(rate_min: f64, rate_max: f64, precision: f64) -> Self {
        Self { next: rate_min, met: None, missed: None, rate_min, rate_max, precision }
    }

    /// The rate to try next; `None` when the search is over.
    pub fn poll_rate(&self) -> Option<f64> {
        match (self.met, self.missed) {
            (Some(met), Some(missed)) if missed <= met * (1.0 + self.precision) => None,
            (None, Some(missed)) if missed <= self.rate_min => None,
            (Some(met), None) if met >= self.rate_max => None,
            _ => Some(self.next),
        }
    }

    /// Records the outcome of a rate: `is_met` if it met the goal.
    pub fn handle_outcome(&mut self, rate: f64, is_met: bool) {
        if is_met {
            self.met = Some(self.met.map_or(rate, |met| met.max(rate)));
        } else {
            self.missed = Some(self.missed.map_or(rate, |missed| missed.min(rate)));
        }
        self.next = match (self.met, self.missed) {
            // The geometric mean, since the precision is a ratio.
            (Some(met), Some(missed)) => (met * missed).sqrt(),
            (Some(met), None) => (met * 2.0).min(self.rate_max),
            _ => self.rate_min,
        };
    }

    /// The highest rate that met the goal.
    pub const fn best(&self) -> Option<f64> {
        self.met
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns all rates tried, and the best, if rates up to `capacity` meet the goal.
    fn search(mut search: RateSearch, capacity: f64) -> (Vec<f64>, Option<f64>) {
        let mut tried = Vec::new();
        while let Some(rate) = search.poll_rate() {
            tried.push(rate);
            search.handle_outcome(rate, rate <= capacity);
            assert!(tried.len() < 100, "{tried:?}");
        }
        (tried, search.best())
    }

    #[test]
    fn the_highest_rate_is_found_to_the_precision() {
        for capacity in [137.0, 1000.0, 98_765.4] {
            let (tried, best) = search(RateSearch::new(100.0, 1e6, 0.02), capacity);
            let best = best.unwrap();
            assert!(best <= capacity && best * 1.02 >= capacity, "{capacity}: {best}");
            assert!(tried.len() <= 20, "{tried:?}");
        }
    }

    #[test]
    fn the_ends_of_the_range_end_the_search() {
        assert_eq!(search(RateSearch::new(100.0, 1e6, 0.05), 50.0), (vec![100.0], None));
        assert_eq!(search(RateSearch::new(100.0, 300.0, 0.05), 1e9), (vec![100.0, 200.0, 300.0], Some(300.0)));
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
    fn a_rate_misses_by_failures_by_latency_and_by_falling_behind() {
        let goal = LatencyGoal::parse("p99=10ms").unwrap();
        let good = MeasuredRate { throughput: 100.0, latency: Duration::from_millis(10), failed_share: 0.01 };
        assert_eq!(goal.check(100.0, good), Ok(()));
        assert_eq!(goal.check(100.0, MeasuredRate { failed_share: 0.02, ..good }), Err(GoalMiss::Failures));
        assert_eq!(
            goal.check(100.0, MeasuredRate { latency: Duration::from_millis(11), ..good }),
            Err(GoalMiss::Latency)
        );
        assert_eq!(goal.check(120.0, good), Err(GoalMiss::Throughput));
    }
}
