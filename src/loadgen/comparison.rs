//! Comparison of two servers that are measured in turns: the ratio of a figure, with a 95 % confidence interval by
//! Student's t over the logarithms of the rounds' ratios. The test is paired, because a disturbance of the machine slows
//! both servers of a round. Pure.

/// A ratio with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// The geometric mean over the rounds.
    pub mean: f64,
    /// The lower end; 0 after a single round, which has no spread.
    pub low: f64,
    /// The upper end; infinite after a single round.
    pub high: f64,
    /// Rounds with both figures.
    pub rounds: usize,
}

impl Ratio {
    /// The ratio of the second figure to the first, over all pairs whose figures are above zero. `None` without such a pair.
    pub fn from_pairs(pairs: &[(f64, f64)]) -> Option<Self> {
        let usable = pairs.iter().filter(|(a, b)| *a > 0.0 && *b > 0.0 && a.is_finite() && b.is_finite());
        let logs: Vec<f64> = usable.map(|(a, b)| (b / a).ln()).collect();
        let count = logs.len();
        if count == 0 {
            return None;
        }
        let mean = logs.iter().sum::<f64>() / count as f64;
        let freedom = count - 1;
        let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / freedom.max(1) as f64;
        let reach = if freedom == 0 { f64::INFINITY } else { t_quantile(freedom) * (variance / count as f64).sqrt() };
        Some(Self { mean: mean.exp(), low: (mean - reach).exp(), high: (mean + reach).exp(), rounds: count })
    }

    /// Returns true if the interval excludes 1, which means that the servers differ.
    pub fn is_significant(&self) -> bool {
        self.low > 1.0 || self.high < 1.0
    }
}

/// The 97.5 % quantile of Student's t distribution.
fn t_quantile(freedom: usize) -> f64 {
    const TABLE: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
        2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
    ];
    let n = freedom as f64;
    // Beyond the table the first terms of the expansion (Abramowitz and Stegun, 26.7.5) are exact enough.
    let z = 1.959_964_f64;
    TABLE.get(freedom.saturating_sub(1)).copied().unwrap_or_else(|| {
        let second = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * n * n);
        z + (z.powi(3) + z) / (4.0 * n) + second
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loadgen::random::Random;

    fn near(got: f64, want: f64) {
        assert!((got / want - 1.0).abs() < 1e-3, "{got} is not {want}");
    }

    #[test]
    fn the_interval_is_students() {
        // ln 2, ln 2, ln 4: mean 4/3 ln 2, standard error ln 2 / 3.
        let ratio = Ratio::from_pairs(&[(1.0, 2.0), (2.0, 4.0), (1.0, 4.0)]).unwrap();
        let ln2 = 2.0_f64.ln();
        near(ratio.mean, (4.0 / 3.0 * ln2).exp());
        near(ratio.low, (4.0 / 3.0 * ln2 - 4.303 * ln2 / 3.0).exp());
        near(ratio.high, (4.0 / 3.0 * ln2 + 4.303 * ln2 / 3.0).exp());
        assert!(!ratio.is_significant(), "three rounds that differ so much prove nothing");
    }

    #[test]
    fn rounds_without_a_figure_are_left_out() {
        let ratio = Ratio::from_pairs(&[(1.0, 2.0), (0.0, 3.0), (1.0, f64::NAN), (1.0, 2.0)]).unwrap();
        assert_eq!(ratio.rounds, 2);
        near(ratio.low, 2.0);
        assert!(ratio.is_significant());
        assert_eq!(Ratio::from_pairs(&[(0.0, 0.0)]), None);
        let single = Ratio::from_pairs(&[(1.0, 3.0)]).unwrap();
        assert!(single.low == 0.0 && single.high.is_infinite() && !single.is_significant());
    }

    #[test]
    fn the_quantile_goes_on_smoothly_beyond_the_table() {
        near(t_quantile(31), 2.040);
        near(t_quantile(60), 2.000);
        near(t_quantile(10_000), 1.960);
    }

    #[test]
    fn of_a_hundred_comparisons_of_equals_about_five_say_they_differ() {
        let mut random = Random::new(9);
        let mut noisy = || (0..12).map(|_| random.next_unit()).sum::<f64>() * 0.01 + 1.0;
        let mut wrong = 0;
        for _ in 0..1000 {
            let pairs: Vec<_> = (0..6).map(|_| (noisy(), noisy())).collect();
            wrong += usize::from(Ratio::from_pairs(&pairs).unwrap().is_significant());
        }
        assert!((30..=75).contains(&wrong), "{wrong} of 1000");
    }
}
