//! The contents of `/metrics` (`--metrics-config` and its neighbours).

use std::time::Duration;

use base::limits::{METRICS_INTERVAL, SUMMARY_QUANTILES_MAX};
use flags::parse_bool;

/// The optional contents of `/metrics`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsConfig {
    /// The interval at which the machine and its GPUs are read.
    pub interval: Duration,
    /// True if the CPUs and the memory of the machine are shown.
    pub shows_cpu: bool,
    /// True if its GPUs are shown.
    pub shows_gpus: bool,
    /// True if durations are shown as counters.
    pub has_counters: bool,
    /// True if the first responses of decoupled models are shown as histograms.
    pub has_histograms: bool,
    /// True if durations are shown as summaries.
    pub has_summaries: bool,
    /// The quantiles of the summaries, in millionths.
    pub quantiles: Vec<u32>,
    /// True if every answer reports the load, and not only those to clients that ask.
    pub tells_load: bool,
}

impl Default for MetricsConfig {
    fn default() -> Self {
        Self {
            interval: METRICS_INTERVAL,
            shows_cpu: true,
            shows_gpus: true,
            has_counters: true,
            has_histograms: false,
            has_summaries: false,
            quantiles: vec![500_000, 900_000, 950_000, 990_000, 999_000],
            tells_load: false,
        }
    }
}

impl MetricsConfig {
    /// Reads a value of `--metrics-config`.
    pub(super) fn apply(&mut self, value: &str) -> Result<(), String> {
        let Some((setting, value)) = value.split_once('=') else {
            return Err("option format is '<setting>=<value>'".to_owned());
        };
        match setting {
            "counter_latencies" => self.has_counters = parse_bool(value)?,
            "histogram_latencies" => self.has_histograms = parse_bool(value)?,
            "summary_latencies" => self.has_summaries = parse_bool(value)?,
            "summary_quantiles" => self.quantiles = quantiles(value)?,
            _ => {
                return Err(format!(
                    "'{setting}' is no setting of the metrics; expected 'counter_latencies', 'histogram_latencies', \
                     'summary_latencies' or 'summary_quantiles'"
                ));
            }
        }
        Ok(())
    }
}

/// Reads `0.5:0.05,0.9:0.01`: quantiles with the errors that they may have. Ours are always nearer
/// than a client can ask for usefully, so the error is checked and not used.
fn quantiles(value: &str) -> Result<Vec<u32>, String> {
    let of_one = |pair: &str| {
        let (quantile, error) = pair.split_once(':')?;
        let share = |text: &str| text.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
        share(error)?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a million")]
        share(quantile).map(|quantile| (quantile * 1e6).round() as u32)
    };
    let wrong = |pair: &str| {
        format!("expected quantiles with their errors, each from 0 to 1, as in 0.5:0.05,0.9:0.01, got '{pair}'")
    };
    let all: Vec<_> = value.split(',').map(|pair| of_one(pair).ok_or_else(|| wrong(pair))).collect::<Result<_, _>>()?;
    if all.len() > SUMMARY_QUANTILES_MAX {
        return Err(format!("expected {SUMMARY_QUANTILES_MAX} quantiles at most, got {}", all.len()));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_metrics_are_read_as_tritons() {
        let mut config = MetricsConfig::default();
        for value in ["counter_latencies=false", "summary_latencies=true", "histogram_latencies=1"] {
            config.apply(value).unwrap();
        }
        config.apply("summary_quantiles=0.5:0.05,0.9:0.01,0.9999:0.0001").unwrap();
        let want = MetricsConfig {
            has_counters: false,
            has_histograms: true,
            has_summaries: true,
            quantiles: vec![500_000, 900_000, 999_900],
            ..MetricsConfig::default()
        };
        assert_eq!(config, want);
    }

    #[test]
    fn what_is_no_setting_of_metrics_is_told() {
        let check = |value: &str, want: &str| {
            let got = MetricsConfig::default().apply(value).unwrap_err();
            assert!(got.contains(want), "{value}: {got}");
        };
        check("summary_latencies", "option format is '<setting>=<value>'");
        check("latencies=true", "'latencies' is no setting of the metrics; expected 'counter_latencies'");
        check("counter_latencies=x", "true");
        for value in ["", "0.5", "0.5:x", "x:0.1", "1.1:0.1", "0.5:2", "0.5:0.1,", "-0.1:0.1", "NaN:0.1"] {
            check(&format!("summary_quantiles={value}"), "expected quantiles with their errors");
        }
        let many = vec!["0.5:0.1"; SUMMARY_QUANTILES_MAX + 1].join(",");
        check(&format!("summary_quantiles={many}"), "expected 32 quantiles at most, got 33");
    }
}
