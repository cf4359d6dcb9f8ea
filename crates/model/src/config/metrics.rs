//! `model_metrics`: the buckets that a model's histograms have instead of Triton's.

use base::error::Error;
use base::limits::METRIC_BUCKETS_MAX;
use wire::proto::inference::ModelConfig;
use wire::proto::inference::model_metrics::metric_control::MetricOptions;

/// The only histogram of Triton's that a configuration may shape.
const FIRST_RESPONSE: &str = "nv_inference_first_response_histogram_ms";

/// Checks the names of the metrics and their buckets.
///
/// # Errors
/// `InvalidArgument` for a metric that is not such a histogram, and for buckets that Prometheus
/// does not allow.
pub fn check(config: &ModelConfig) -> Result<(), Error> {
    let controls = config.model_metrics.iter().flat_map(|metrics| &metrics.metric_control);
    for control in controls {
        let refusal = |why: String| Err(Error::invalid(format!("model '{}': 'metric_control' {why}", config.name)));
        let family = control.metric_identifier.as_ref().map_or("", |identifier| &identifier.family);
        if family != FIRST_RESPONSE {
            return refusal(format!("is of the metric '{}'; expected '{FIRST_RESPONSE}'", family.escape_debug()));
        }
        let Some(MetricOptions::HistogramOptions(histogram)) = &control.metric_options else {
            return refusal("has no 'histogram_options'; give it 'buckets'".to_owned());
        };
        let buckets = &histogram.buckets;
        let is_ascending = buckets.is_sorted_by(|bound, next| bound < next);
        if buckets.is_empty() || !is_ascending || !buckets.iter().all(|bound| bound.is_finite()) {
            return refusal("expects 'buckets' with finite numbers, each larger than the one before".to_owned());
        }
        if buckets.len() > METRIC_BUCKETS_MAX {
            return refusal(format!("has {} 'buckets', more than the {METRIC_BUCKETS_MAX} allowed", buckets.len()));
        }
    }
    Ok(())
}

/// The bounds of the first responses' buckets, if the configuration has some; the last ones if it
/// has several.
pub fn first_response_bounds(config: &ModelConfig) -> Option<Vec<f64>> {
    let control = config.model_metrics.as_ref()?.metric_control.last()?;
    match control.metric_options.as_ref()? {
        MetricOptions::HistogramOptions(histogram) => Some(histogram.buckets.clone()),
    }
}
