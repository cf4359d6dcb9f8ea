//! When a load has been measured long enough: as perf_analyzer decides it, when the last three
//! windows agree in throughput and in latency. Pure.

/// Windows that must agree, and that are reported together.
pub const WINDOWS: usize = 3;

/// What one window says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Inferences per second.
    pub throughput: f64,
    /// The latency that is to be stable, the mean or a percentile.
    pub latency: f64,
}

/// What follows from the windows so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Measure another window.
    More,
    /// They agree.
    Stable,
    /// They do not, and there were as many as allowed.
    Unstable,
}

/// Looks at all windows so far. `percent` is by how much the largest of the last three may exceed
/// the smallest.
pub fn judge(points: &[Point], percent: f64, trials_max: usize) -> Verdict {
    let last = points.len().checked_sub(WINDOWS).and_then(|from| points.get(from..));
    let agree = |value: fn(&Point) -> f64| {
        last.is_some_and(|last| {
            let values = || last.iter().map(value);
            let (least, most) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
            least > 0.0 && most <= least * (1.0 + percent / 100.0)
        })
    };
    if agree(|point| point.throughput) && agree(|point| point.latency) {
        Verdict::Stable
    } else if points.len() >= trials_max {
        Verdict::Unstable
    } else {
        Verdict::More
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_windows_in_a_row_must_agree_in_both() {
        let check = |pairs: &[(f64, f64)], want| {
            let points: Vec<_> = pairs
                .iter()
                .map(|(throughput, latency)| Point { throughput: *throughput, latency: *latency })
                .collect();
            assert_eq!(judge(&points, 10.0, 5), want, "{pairs:?}");
        };
        check(&[], Verdict::More);
        check(&[(100.0, 5.0), (100.0, 5.0)], Verdict::More);
        check(&[(100.0, 5.0), (110.0, 5.0), (105.0, 5.5)], Verdict::Stable);
        check(&[(100.0, 5.0), (111.0, 5.0), (105.0, 5.0)], Verdict::More);
        check(&[(100.0, 5.0), (100.0, 5.0), (100.0, 5.6)], Verdict::More);
        check(&[(9.0, 90.0), (100.0, 5.0), (100.0, 5.0), (100.0, 5.0)], Verdict::Stable);
        check(&[(1.0, 1.0), (2.0, 2.0), (1.0, 1.0), (2.0, 2.0), (1.0, 1.0)], Verdict::Unstable);
        check(&[(0.0, 0.0), (0.0, 0.0), (0.0, 0.0)], Verdict::More);
    }
}
