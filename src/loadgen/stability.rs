//! The test of stability: a load was measured long enough when the last three windows agree in throughput and in latency,
//! as in perf_analyzer, and the backlog does not grow. Pure.

/// Number of windows that must agree, and that are reported together.
pub const WINDOWS: usize = 3;

/// The figures of one window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StabilityPoint {
    /// Inferences per second.
    pub throughput: f64,
    /// The mean or a percentile of latency, in seconds.
    pub latency: f64,
    /// Requests that ended in the window.
    pub ended: u64,
    /// Requests that were due at the end of the window and had not ended.
    pub backlog: u64,
}

/// The verdict on the windows so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StabilityVerdict {
    /// Measure another window.
    More,
    /// The last windows agree.
    Stable,
    /// They do not, and the windows are used up.
    Unstable,
}

/// Judges all windows so far. In each figure, the largest of the last three may exceed the smallest by `percent`.
pub fn judge(points: &[StabilityPoint], percent: f64, trials_max: usize) -> StabilityVerdict {
    let last = points.len().checked_sub(WINDOWS).and_then(|from| points.get(from..));
    let agree = |value: fn(&StabilityPoint) -> f64| {
        last.is_some_and(|last| {
            let values = || last.iter().map(value);
            let (least, most) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
            least > 0.0 && most <= least * (1.0 + percent / 100.0)
        })
    };
    let falls_behind = last.is_some_and(falls_behind);
    if agree(|point| point.throughput) && agree(|point| point.latency) && !falls_behind {
        StabilityVerdict::Stable
    } else if points.len() >= trials_max {
        StabilityVerdict::Unstable
    } else {
        StabilityVerdict::More
    }
}

/// Returns true if the backlog grows from window to window, by more than the standard deviation of
/// a Poisson process. Needed because the windows of an overloaded server may agree: it answers at
/// an even rate, and its latency grows by a smaller share in each window. In a closed loop the
/// backlog does not grow.
fn falls_behind(last: &[StabilityPoint]) -> bool {
    let grows = last.is_sorted_by(|one, next| one.backlog < next.backlog);
    let (Some(first), Some(end)) = (last.first(), last.last()) else { return false };
    let growth = end.backlog.saturating_sub(first.backlog);
    let due = last.iter().skip(1).map(|point| point.ended).sum::<u64>().saturating_add(growth);
    // growth > sqrt(due), the standard deviation of a Poisson count.
    grows && growth.saturating_mul(growth) > due
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_windows_in_a_row_must_agree_in_both() {
        let check = |pairs: &[(f64, f64)], want| {
            let points: Vec<_> = pairs
                .iter()
                .map(|(throughput, latency)| StabilityPoint {
                    throughput: *throughput,
                    latency: *latency,
                    ended: 1,
                    backlog: 0,
                })
                .collect();
            assert_eq!(judge(&points, 10.0, 5), want, "{pairs:?}");
        };
        check(&[], StabilityVerdict::More);
        check(&[(100.0, 5.0), (100.0, 5.0)], StabilityVerdict::More);
        check(&[(100.0, 5.0), (110.0, 5.0), (105.0, 5.5)], StabilityVerdict::Stable);
        check(&[(100.0, 5.0), (111.0, 5.0), (105.0, 5.0)], StabilityVerdict::More);
        check(&[(100.0, 5.0), (100.0, 5.0), (100.0, 5.6)], StabilityVerdict::More);
        check(&[(9.0, 90.0), (100.0, 5.0), (100.0, 5.0), (100.0, 5.0)], StabilityVerdict::Stable);
        check(&[(1.0, 1.0), (2.0, 2.0), (1.0, 1.0), (2.0, 2.0), (1.0, 1.0)], StabilityVerdict::Unstable);
        check(&[(0.0, 0.0), (0.0, 0.0), (0.0, 0.0)], StabilityVerdict::More);
    }

    #[test]
    fn windows_that_agree_are_not_stable_while_the_backlog_grows() {
        // 1,000 requests end in each; all else agrees.
        let check = |backlogs: &[u64], want| {
            let point =
                |backlog: &u64| StabilityPoint { throughput: 1000.0, latency: 1.0, ended: 1000, backlog: *backlog };
            let points: Vec<_> = backlogs.iter().map(point).collect();
            assert_eq!(judge(&points, 10.0, 4), want, "{backlogs:?}");
        };
        check(&[64, 64, 64], StabilityVerdict::Stable);
        check(&[1000, 1100, 1200], StabilityVerdict::More);
        check(&[900, 1000, 1100, 1200], StabilityVerdict::Unstable);
        check(&[40_000, 40_025, 40_050], StabilityVerdict::More);
        check(&[10, 20, 30], StabilityVerdict::Stable);
        check(&[10, 54, 55], StabilityVerdict::Stable);
        check(&[10, 54, 56], StabilityVerdict::More);
        check(&[10, 100, 90], StabilityVerdict::Stable);
        check(&[1200, 1100, 1000], StabilityVerdict::Stable);
    }
}
