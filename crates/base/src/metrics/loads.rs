//! Metrics of model loads. `nv_model_load_duration_secs` is Triton's.

use std::fmt::Write;
use std::time::Duration;

use crate::metrics::head;

/// The loads of one model.
#[derive(Clone, Debug, Default)]
pub struct LoadFigures<'a> {
    /// The model's name.
    pub name: &'a str,
    /// Its labels before that, each with a comma behind it.
    pub labels: String,
    /// Loads that succeeded.
    pub succeeded: u64,
    /// Loads that failed.
    pub failed: u64,
    /// Total duration of all loads.
    pub time: Duration,
    /// Each version with the duration of its last successful load.
    pub versions: Vec<(u64, Duration)>,
}

/// Appends the loads of all models.
pub fn encode(out: &mut String, loads: &[LoadFigures<'_>]) {
    head(out, "nv_model_load_duration_secs", "gauge", "Model load time in seconds");
    for load in loads {
        for (version, time) in &load.versions {
            let (LoadFigures { name, labels, .. }, seconds) = (load, time.as_secs_f64());
            let _ = writeln!(
                out,
                "nv_model_load_duration_secs{{{labels}model=\"{name}\",version=\"{version}\"}} {seconds}"
            );
        }
    }
    head(out, "deuteron_model_loads_total", "counter", "Finished loads of the model, by outcome");
    for load in loads {
        for (outcome, count) in [("failure", load.failed), ("success", load.succeeded)] {
            let LoadFigures { name, labels, .. } = load;
            let _ =
                writeln!(out, "deuteron_model_loads_total{{{labels}model=\"{name}\",outcome=\"{outcome}\"}} {count}");
        }
    }
    head(out, "deuteron_model_load_seconds_total", "counter", "Total duration of the loads of the model");
    for load in loads {
        let (LoadFigures { name, labels, .. }, seconds) = (load, load.time.as_secs_f64());
        let _ = writeln!(out, "deuteron_model_load_seconds_total{{{labels}model=\"{name}\"}} {seconds}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_counted_by_how_they_ended() {
        let time = Duration::from_millis(1_500);
        let labels = String::new();
        let loads = [LoadFigures { name: "m", labels, succeeded: 2, failed: 1, time, versions: vec![(3, time)] }];
        let mut out = String::new();
        encode(&mut out, &loads);
        let lines: Vec<_> = out.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            lines,
            [
                "nv_model_load_duration_secs{model=\"m\",version=\"3\"} 1.5",
                "deuteron_model_loads_total{model=\"m\",outcome=\"failure\"} 1",
                "deuteron_model_loads_total{model=\"m\",outcome=\"success\"} 2",
                "deuteron_model_load_seconds_total{model=\"m\"} 1.5",
            ]
        );
    }
}
