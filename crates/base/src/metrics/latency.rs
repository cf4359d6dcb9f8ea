//! Distributions of the times of requests: histograms that are always counted, and those that
//! `--metrics-config` adds under Triton's names (`metrics.cc`): summaries, and histograms of the
//! first responses of decoupled models. A distribution that is off costs a branch.

use std::fmt::Write;
use std::time::Duration;

use crate::metrics::exemplar::Exemplar;
use crate::metrics::histogram::{self, BoundCells, TimeCells};
use crate::metrics::reports;
use crate::metrics::summary::{self, SummaryWindow};
use crate::metrics::{Counter, ModelCells, ModelFigures, head, nanos_of};
use crate::time::Stamps;

/// Upper bounds of the first responses' buckets in milliseconds, as in Triton, for models whose
/// configuration has none (`model_metrics`).
pub const FIRST_RESPONSE_BOUNDS: [f64; 4] = [100.0, 500.0, 2_000.0, 5_000.0];

/// The latencies that `/metrics` shows (`--metrics-config`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatencyOptions {
    /// Leave out the counters of durations.
    pub hides_counters: bool,
    /// Histograms of the first responses of decoupled models.
    pub has_histograms: bool,
    /// Summaries of durations.
    pub has_summaries: bool,
    /// The quantiles of summaries, in millionths.
    pub quantiles: Vec<u32>,
}

/// The counters of one shard for the durations of one model version.
#[derive(Debug, Default)]
pub struct LatencyCells {
    request: TimeCells,
    queue: TimeCells,
    run: TimeCells,
    summaries: Option<Box<SummaryCells>>,
    first_response: Option<BoundCells>,
}

#[derive(Debug, Default)]
struct SummaryCells {
    request: SummaryWindow,
    queue: SummaryWindow,
    compute_input: SummaryWindow,
    compute_infer: SummaryWindow,
    compute_output: SummaryWindow,
    cache_hit: SummaryWindow,
    cache_miss: SummaryWindow,
}

/// The durations of one request.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestDurations {
    /// From arrival to answer.
    pub request: Duration,
    /// In the queue.
    pub queue: Duration,
    /// To prepare inputs.
    pub compute_input: Duration,
    /// In the engine.
    pub compute_infer: Duration,
    /// To prepare outputs.
    pub compute_output: Duration,
}

impl RequestDurations {
    /// Between the stages of a request.
    pub const fn between(stamps: &Stamps) -> Self {
        Self {
            request: stamps.output_end.since(stamps.received),
            queue: stamps.queue_duration(),
            compute_input: stamps.compute_input_duration(),
            compute_infer: stamps.compute_infer_duration(),
            compute_output: stamps.compute_output_duration(),
        }
    }
}

impl LatencyCells {
    /// Cells for the distributions that the options ask for; `bounds` are those of the first
    /// responses of a decoupled model.
    pub fn new(options: &LatencyOptions, bounds: Option<&[f64]>) -> Self {
        Self {
            summaries: options.has_summaries.then(Box::default),
            first_response: bounds.filter(|_| options.has_histograms).map(BoundCells::new),
            ..Self::default()
        }
    }

    /// Counts a request that ran and was answered.
    pub(super) fn count(&self, durations: &RequestDurations, epoch_millis: u64) {
        self.request.count(durations.request);
        self.queue.count(durations.queue);
        self.run.count(durations.compute_infer);
        if let Some(summaries) = &self.summaries {
            summaries.request.count(micros(durations.request), epoch_millis);
            summaries.queue.count(micros(durations.queue), epoch_millis);
            summaries.compute_input.count(micros(durations.compute_input), epoch_millis);
            summaries.compute_infer.count(micros(durations.compute_infer), epoch_millis);
            summaries.compute_output.count(micros(durations.compute_output), epoch_millis);
        }
    }

    /// Keeps a traced request that was counted with these durations.
    pub(super) fn keep_exemplar(&self, durations: &RequestDurations, exemplar: &Exemplar) {
        self.request.keep_exemplar(durations.request, exemplar);
        self.queue.keep_exemplar(durations.queue, exemplar);
        self.run.keep_exemplar(durations.compute_infer, exemplar);
    }

    /// Counts a request that the cache answered, and the lookup.
    pub(super) fn count_cache_hit(&self, request: Duration, queue: Duration, lookup: Duration, epoch_millis: u64) {
        self.request.count(request);
        self.queue.count(queue);
        if let Some(summaries) = &self.summaries {
            summaries.request.count(micros(request), epoch_millis);
            summaries.queue.count(micros(queue), epoch_millis);
            summaries.cache_hit.count(micros(lookup), epoch_millis);
        }
    }

    /// Counts a lookup that found no answer, with the insertion after the run.
    pub(super) fn count_cache_miss(&self, duration: Duration, epoch_millis: u64) {
        if let Some(summaries) = &self.summaries {
            summaries.cache_miss.count(micros(duration), epoch_millis);
        }
    }

    /// Counts the first response to a request of a decoupled model, `duration` after it was received.
    #[inline]
    pub fn count_first_response(&self, duration: Duration) {
        if let Some(cells) = &self.first_response {
            cells.count(duration);
        }
    }

    /// The histogram of the durations of requests.
    pub(super) const fn request(&self) -> &TimeCells {
        &self.request
    }

    /// The histogram of the durations in the queue.
    pub(super) const fn queue(&self) -> &TimeCells {
        &self.queue
    }

    /// The histogram of the durations in the engine.
    pub(super) const fn run(&self) -> &TimeCells {
        &self.run
    }
}

/// A summary: its name and help, the window of a shard, the counter of the duration, the counts
/// that belong to it, and true if it is shown only for models with a response cache.
struct SummaryFamily {
    name: &'static str,
    help: &'static str,
    window: fn(&SummaryCells) -> &SummaryWindow,
    duration: fn(&ModelCells) -> &Counter,
    count: fn(&ModelCells) -> u64,
    is_of_cache: bool,
}

const SUMMARIES: [SummaryFamily; 7] = [
    SummaryFamily {
        name: "nv_inference_request_summary_us",
        help: "Summary of inference request duration in microseconds (includes cached requests)",
        window: |cells| &cells.request,
        duration: |cells| &cells.request_duration,
        count: |cells| cells.success.get(),
        is_of_cache: false,
    },
    SummaryFamily {
        name: "nv_inference_queue_summary_us",
        help: "Summary of inference queuing duration in microseconds (includes cached requests)",
        window: |cells| &cells.queue,
        duration: |cells| &cells.queue_duration,
        count: |cells| cells.success.get(),
        is_of_cache: false,
    },
    SummaryFamily {
        name: "nv_inference_compute_input_summary_us",
        help: "Cumulative compute input duration in microseconds (does not include cached requests)",
        window: |cells| &cells.compute_input,
        duration: |cells| &cells.compute_input_duration,
        count: computed,
        is_of_cache: false,
    },
    SummaryFamily {
        name: "nv_inference_compute_infer_summary_us",
        help: "Cumulative compute inference duration in microseconds (does not include cached requests)",
        window: |cells| &cells.compute_infer,
        duration: |cells| &cells.compute_infer_duration,
        count: computed,
        is_of_cache: false,
    },
    SummaryFamily {
        name: "nv_inference_compute_output_summary_us",
        help: "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        window: |cells| &cells.compute_output,
        duration: |cells| &cells.compute_output_duration,
        count: computed,
        is_of_cache: false,
    },
    SummaryFamily {
        name: "nv_cache_hit_summary_per_model",
        help: "Summary of cache hit counts/durations per model, in microseconds.",
        window: |cells| &cells.cache_hit,
        duration: |cells| &cells.cache_hit_duration,
        count: |cells| cells.cache_hit.get(),
        is_of_cache: true,
    },
    SummaryFamily {
        name: "nv_cache_miss_summary_per_model",
        help: "Summary of cache miss counts/durations per model, in microseconds.",
        window: |cells| &cells.cache_miss,
        duration: |cells| &cells.cache_miss_duration,
        count: |cells| cells.cache_miss.get(),
        is_of_cache: true,
    },
];

const FIRST_RESPONSE: &str = "nv_inference_first_response_histogram_ms";
const FIRST_RESPONSE_HELP: &str = "Duration from request to first response in milliseconds";

/// The names of all families that the options may add.
pub fn names() -> impl Iterator<Item = &'static str> {
    SUMMARIES.iter().map(|family| family.name).chain([FIRST_RESPONSE])
}

/// Appends the families that the options ask for, as they are at `epoch_millis` since the Unix epoch. A family without a
/// series is left out, as in Triton.
pub fn encode(out: &mut String, models: &[ModelFigures<'_>], options: &LatencyOptions, epoch_millis: u64) {
    if options.has_histograms {
        encode_first_responses(out, models);
    }
    for family in SUMMARIES.iter().filter(|_| options.has_summaries) {
        let mut shown = models.iter().filter(|model| model.is_cached || !family.is_of_cache).peekable();
        if shown.peek().is_some() {
            head(out, family.name, "summary", family.help);
        }
        shown.for_each(|model| encode_summary(out, family, model, &options.quantiles, epoch_millis));
    }
}

fn encode_summary(
    out: &mut String,
    family: &SummaryFamily,
    model: &ModelFigures<'_>,
    wanted: &[u32],
    epoch_millis: u64,
) {
    let (name, labels) = (family.name, labels(model));
    let count = reports::shown(model.cells.iter().map(|cells| (family.count)(cells)).fold(0, u64::wrapping_add));
    let nanos = reports::sum(model.cells.iter().map(|cells| (family.duration)(cells)));
    let _ = writeln!(out, "{name}_count{{{labels}}} {count}\n{name}_sum{{{labels}}} {}", nanos / 1_000);
    let summaries = model.cells.iter().filter_map(|cells| cells.latency.summaries.as_deref());
    let windows: Vec<_> = summaries.map(family.window).collect();
    for (quantile, value) in wanted.iter().zip(summary::quantiles(&windows, wanted, epoch_millis)) {
        let quantile = f64::from(*quantile) / 1e6;
        let value = value.map_or_else(|| "NaN".to_owned(), |value| value.to_string());
        let _ = writeln!(out, "{name}{{{labels},quantile=\"{quantile}\"}} {value}");
    }
}

fn encode_first_responses(out: &mut String, models: &[ModelFigures<'_>]) {
    let mut is_first = true;
    for model in models {
        let cells: Vec<_> = model.cells.iter().filter_map(|cells| cells.latency.first_response.as_ref()).collect();
        if cells.is_empty() {
            continue;
        }
        if std::mem::take(&mut is_first) {
            head(out, FIRST_RESPONSE, "histogram", FIRST_RESPONSE_HELP);
        }
        histogram::encode_bounds(out, FIRST_RESPONSE, &labels(model), &cells);
    }
}

fn labels(model: &ModelFigures<'_>) -> String {
    format!("{}model=\"{}\",version=\"{}\"", model.labels, model.name, model.version)
}

/// Requests that ran: the successes without those that the cache answered.
fn computed(cells: &ModelCells) -> u64 {
    cells.success.get().saturating_sub(cells.cache_hit.get())
}

fn micros(duration: Duration) -> u64 {
    nanos_of(duration) / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Instant;

    #[test]
    fn summaries_count_all_requests_and_their_quantiles_those_of_the_last_minute() {
        let options =
            LatencyOptions { has_summaries: true, quantiles: vec![500_000, 999_000], ..LatencyOptions::default() };
        let cells = ModelCells::new(1).with_latencies(&options, None);
        let at = Instant::from_micros;
        let stamps =
            Stamps { received: at(10), batched: at(14), input_end: at(15), infer_end: at(35), output_end: at(36) };
        cells.count_success(&stamps, 1, 5);
        cells.count_cache_hit(at(0), at(1), at(4), 5);
        let model = ModelFigures { name: "m", version: 1, cells: vec![&cells], ..ModelFigures::default() };
        let mut out = String::new();
        encode(&mut out, std::slice::from_ref(&model), &options, 5);
        let has = |out: &str, line: &str| assert!(out.lines().any(|have| have == line), "{line}\n{out}");
        has(&out, "# TYPE nv_inference_request_summary_us summary");
        has(&out, "nv_inference_request_summary_us_count{model=\"m\",version=\"1\"} 2");
        has(&out, "nv_inference_request_summary_us_sum{model=\"m\",version=\"1\"} 30");
        has(&out, "nv_inference_request_summary_us{model=\"m\",version=\"1\",quantile=\"0.5\"} 4");
        has(&out, "nv_inference_request_summary_us{model=\"m\",version=\"1\",quantile=\"0.999\"} 26");
        has(&out, "nv_inference_compute_infer_summary_us_count{model=\"m\",version=\"1\"} 1");
        has(&out, "nv_inference_compute_infer_summary_us{model=\"m\",version=\"1\",quantile=\"0.5\"} 20");
        assert!(!out.contains("nv_cache"), "the model has no cache: {out}");
        out.clear();
        encode(&mut out, &[ModelFigures { is_cached: true, ..model }], &options, 120_000);
        has(&out, "nv_cache_hit_summary_per_model_sum{model=\"m\",version=\"1\"} 3");
        has(&out, "nv_inference_request_summary_us_count{model=\"m\",version=\"1\"} 2");
        has(&out, "nv_inference_request_summary_us{model=\"m\",version=\"1\",quantile=\"0.5\"} NaN");
    }

    #[test]
    fn first_responses_have_the_buckets_of_the_model() {
        let options = LatencyOptions { has_histograms: true, ..LatencyOptions::default() };
        let cells = ModelCells::new(1).with_latencies(&options, Some(&[1.0, 5.5]));
        let plain = ModelCells::new(1).with_latencies(&options, None);
        for micros in [1_000, 1_001, 6_000] {
            cells.latency.count_first_response(Duration::from_micros(micros));
            plain.latency.count_first_response(Duration::from_micros(micros));
        }
        let model = ModelFigures { name: "m", version: 1, cells: vec![&cells], ..ModelFigures::default() };
        let other = ModelFigures { name: "n", version: 1, cells: vec![&plain], ..ModelFigures::default() };
        let mut out = String::new();
        encode(&mut out, &[other, model], &options, 0);
        let want = "# HELP nv_inference_first_response_histogram_ms Duration from request to first response in milliseconds\n\
                    # TYPE nv_inference_first_response_histogram_ms histogram\n\
                    nv_inference_first_response_histogram_ms_count{model=\"m\",version=\"1\"} 3\n\
                    nv_inference_first_response_histogram_ms_sum{model=\"m\",version=\"1\"} 8.001\n\
                    nv_inference_first_response_histogram_ms_bucket{model=\"m\",version=\"1\",le=\"1\"} 1\n\
                    nv_inference_first_response_histogram_ms_bucket{model=\"m\",version=\"1\",le=\"5.5\"} 2\n\
                    nv_inference_first_response_histogram_ms_bucket{model=\"m\",version=\"1\",le=\"+Inf\"} 3\n";
        assert_eq!(out, want);
        out.clear();
        encode(&mut out, &[], &LatencyOptions::default(), 0);
        assert_eq!(out, "");
    }
}
