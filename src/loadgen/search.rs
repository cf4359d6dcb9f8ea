//! The search for the highest rate that meets a goal: the rate is doubled until it misses, then bisected between the
//! highest that met and the lowest that missed. Pure.
//!
//! Arrivals of a Poisson process come in clusters, and a few requests say little about a percentile. So a step is
//! measured until [`SearchStep`] can tell, by the requests that were due and not by the rate, whose count varies.
//! While the rate is doubled, a step that is far from the goal ends early; a rate that met it so is measured in full
//! before it is the result.

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

/// The measurement of a step so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepProgress {
    /// The measured time.
    pub elapsed: Duration,
    /// Windows that have ended.
    pub windows: usize,
    /// Requests that succeeded.
    pub succeeded: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Successful requests whose latency is above the limit.
    pub above: u64,
    /// The longest latency.
    pub slowest: Duration,
    /// Requests that were due at the end of the first window and had not ended.
    pub backlog_first: u64,
    /// The same at the end of the last window.
    pub backlog: u64,
    /// Requests that ended after the first window.
    pub ended_later: u64,
}

/// One rate to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SearchStep {
    /// Requests per second.
    pub rate: f64,
    /// True if it may end early with "met": it is only to find the range.
    pub is_coarse: bool,
    /// The goal.
    pub goal: LatencyGoal,
}

impl SearchStep {
    /// Judges a step after each window; `None` to measure another window.
    pub fn judge(&self, so_far: &StepProgress) -> Option<Result<(), GoalMiss>> {
        let allowed = 1.0 - self.goal.percentile / 100.0;
        let limit = self.goal.latency_max;
        // Those that are due for longer than the limit have missed it already. The rest came within the last limit.
        let overdue = (so_far.backlog as f64 - self.rate * limit.as_secs_f64()).max(0.0);
        let bad = (so_far.failed + so_far.above) as f64 + overdue;
        let ended = (so_far.succeeded + so_far.failed) as f64;
        let all = ended + overdue;
        let planned = self.duration();
        let miss = || {
            if so_far.failed as f64 > allowed * all {
                GoalMiss::Failures
            } else if so_far.above as f64 > allowed * all {
                GoalMiss::Latency
            } else {
                GoalMiss::Throughput
            }
        };
        let is_hopeless = bad > HOPELESS * allowed * self.rate * planned.as_secs_f64() && bad > HOPELESS_SHARE * all;
        if is_hopeless && ended >= REQUESTS_MIN {
            return Some(Err(miss()));
        }
        let is_far_below = self.is_coarse
            && so_far.windows >= WINDOWS_MIN
            && ended >= REQUESTS_MIN
            && bad == 0.0
            && so_far.slowest < limit / 2
            && !self.falls_behind(so_far);
        if is_far_below {
            return Some(Ok(()));
        }
        if so_far.elapsed < planned || so_far.windows < WINDOWS_MIN {
            return None;
        }
        let is_missed = bad > allowed * all || ended == 0.0;
        let is_near = ended > 0.0 && bad <= HOPELESS * allowed * all && !self.falls_behind(so_far);
        if is_missed && is_near && so_far.elapsed < planned * EXTENSION {
            return None;
        }
        Some(if is_missed {
            Err(miss())
        } else if self.falls_behind(so_far) {
            Err(GoalMiss::Throughput)
        } else {
            Ok(())
        })
    }

    /// Returns the time that a step takes if it does not end early: enough requests for the percentile, within bounds.
    pub fn duration(&self) -> Duration {
        let needed = BEYOND_NEEDED / (1.0 - self.goal.percentile / 100.0) / self.rate;
        Duration::from_secs_f64(needed.clamp(0.0, STEP_TIME_MAX.as_secs_f64()))
    }

    /// Returns true if the backlog grows from the first window to the last by a part of the arrivals, and by more than
    /// a Poisson process explains. Needed besides the latency, which a large limit does not reach within a step.
    fn falls_behind(&self, so_far: &StepProgress) -> bool {
        let growth = so_far.backlog.saturating_sub(so_far.backlog_first) as f64;
        let due = so_far.ended_later as f64 + growth;
        growth > due * BACKLOG_GROWTH_MAX && growth > DEVIATIONS * due.sqrt()
    }
}

/// Requests that are expected beyond the percentile in a step: fewer leave too much to chance.
const BEYOND_NEEDED: f64 = 20.0;
/// The longest step: at a low rate it does not have as many requests.
const STEP_TIME_MAX: Duration = Duration::from_secs(20);
/// A step that misses by little is measured for this multiple of its time: one cluster of arrivals may be the cause.
const EXTENSION: u32 = 2;
/// Requests that end before a step may end early.
const REQUESTS_MIN: f64 = 10.0;
/// Windows before a step may end with "met": the backlog of two is compared.
const WINDOWS_MIN: usize = 2;
/// A step ends early once this multiple of the requests has missed that may miss in all of it,
const HOPELESS: f64 = 5.0;
/// and this share of all so far.
const HOPELESS_SHARE: f64 = 0.05;
/// The part of arrivals by which the backlog may grow.
const BACKLOG_GROWTH_MAX: f64 = 0.05;
/// Standard deviations of a Poisson count that the growth must exceed.
const DEVIATIONS: f64 = 3.0;

/// The rates between which a search runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SearchRange {
    /// The first rate.
    pub start: f64,
    /// The lowest, to which it goes if the first misses.
    pub rate_min: f64,
    /// The highest.
    pub rate_max: f64,
}

/// A rate that met the goal.
#[derive(Clone, Copy, Debug, PartialEq)]
struct MetRate {
    rate: f64,
    is_coarse: bool,
}

/// The state of a search.
#[derive(Clone, Debug)]
pub struct RateSearch {
    goal: LatencyGoal,
    range: SearchRange,
    precision: f64,
    /// The rates that met the goal, in ascending order.
    met: Vec<MetRate>,
    /// The lowest that did not.
    missed: Option<f64>,
}

impl RateSearch {
    /// A search that ends when the bounds are as close as `precision`: 0.05 for 5 %.
    pub const fn new(goal: LatencyGoal, range: SearchRange, precision: f64) -> Self {
        Self { goal, range, precision, met: Vec::new(), missed: None }
    }

    /// The step to measure next; `None` when the search is over.
    pub fn poll_step(&self) -> Option<SearchStep> {
        let SearchRange { start, rate_min, rate_max } = self.range;
        let step = |rate, is_coarse| Some(SearchStep { rate, is_coarse, goal: self.goal });
        match (self.met.last(), self.missed) {
            (None, None) => step(start, true),
            (None, Some(missed)) if missed <= rate_min => None,
            (None, Some(missed)) => step((missed / 2.0).max(rate_min), true),
            (Some(met), None) if met.rate < rate_max => step((met.rate * 2.0).min(rate_max), true),
            (Some(met), Some(missed)) if missed > met.rate * (1.0 + self.precision) => {
                // The geometric mean, since the precision is a ratio.
                step((met.rate * missed).sqrt(), false)
            }
            (Some(met), _) if met.is_coarse => step(met.rate, false),
            (Some(_), _) => None,
        }
    }

    /// Records the outcome of a step: `is_met` if its rate met the goal.
    pub fn handle_outcome(&mut self, step: &SearchStep, is_met: bool) {
        let SearchStep { rate, is_coarse, .. } = *step;
        self.met.retain(|met| met.rate < rate);
        if is_met {
            self.met.push(MetRate { rate, is_coarse });
        } else {
            self.missed = Some(self.missed.map_or(rate, |missed| missed.min(rate)));
        }
    }

    /// The highest rate that met the goal.
    pub fn best(&self) -> Option<f64> {
        self.met.last().map(|met| met.rate)
    }

    /// Returns true if the highest rate of the range met the goal, so that a higher one may.
    pub fn has_reached_top(&self) -> bool {
        self.missed.is_none() && self.best().is_some_and(|best| best >= self.range.rate_max)
    }
}

/// Returns the rate that a search reports: what was answered, if that is less than the rate. No server serves more than it
/// answers, whatever a window without its backlog shows.
pub const fn reported_rate(rate: f64, answered: f64) -> f64 {
    rate.min(answered)
}

#[cfg(test)]
mod tests;
