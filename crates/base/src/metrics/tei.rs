//! The metrics of text-embeddings-inference (`--compat=tei`): TEI's names, labels, units and buckets
//! (`router/src/prometheus.rs` of 1.9), as sums over all models, since a TEI has one. Each shard counts the calls of
//! its clients in cells of its own; all instances share the cells of runs. A server without the flag has neither.

use std::array;
use std::fmt::Write;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::metrics::{Counter, head, nanos_of};

/// The number of bounds of durations.
const TIME_COUNT: usize = 35;
/// Upper bounds of durations in seconds.
const TIMES: [f64; TIME_COUNT] = times();
/// The number of bounds of a text's tokens: powers of two from 1. TEI leaves out those above the longest text that its model takes.
const LENGTH_COUNT: usize = 20;
/// The same for the texts of a run.
const SIZE_COUNT: usize = 13;
/// The same for the tokens of a run.
const TOKENS_COUNT: usize = 21;

/// TEI multiplies in this order too, so that the labels have the same digits.
#[expect(clippy::indexing_slicing, reason = "the compiler runs it, and `get_mut` is not for it")]
const fn times() -> [f64; TIME_COUNT] {
    let (mut times, mut value, mut index) = ([0.0; TIME_COUNT], 0.000_01, 0);
    while index < TIME_COUNT {
        value *= 1.5;
        times[index] = value;
        index += 1;
    }
    times
}

/// The form of a request: the label `method`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TeiMethod {
    /// A list of texts, even of one.
    Batch,
    /// One text.
    Single,
}

impl TeiMethod {
    const ALL: [Self; 2] = [Self::Batch, Self::Single];

    const fn label(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::Single => "single",
        }
    }
}

/// The reason of a failure: the label `err`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TeiFailure {
    /// More texts than a request may have.
    BatchSize,
    /// The client left, or its deadline passed.
    Dropped,
    /// The model failed.
    Inference,
    /// The model has another task.
    ModelType,
    /// The queue or the memory is full.
    Overloaded,
    /// The tokenizer refused a text, or the engine a value made of it.
    Tokenization,
    /// A wrong value.
    Validation,
}

impl TeiFailure {
    const ALL: [Self; 7] = [
        Self::BatchSize,
        Self::Dropped,
        Self::Inference,
        Self::ModelType,
        Self::Overloaded,
        Self::Tokenization,
        Self::Validation,
    ];

    const fn label(self) -> &'static str {
        match self {
            Self::BatchSize => "batch_size",
            Self::Dropped => "dropped",
            Self::Inference => "inference",
            Self::ModelType => "model_type",
            Self::Overloaded => "overloaded",
            Self::Tokenization => "tokenization",
            Self::Validation => "validation",
        }
    }
}

/// The work on a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TeiTask {
    /// A vector.
    Embed,
    /// Scores, of classes or of a pair.
    Predict,
}

impl TeiTask {
    const ALL: [Self; 2] = [Self::Embed, Self::Predict];

    const fn label(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::Predict => "predict",
        }
    }
}

/// The durations of a request. One that is not known is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TeiTimes {
    /// From arrival to answer.
    pub total: Duration,
    /// To make tokens of the texts.
    pub tokenization: Option<Duration>,
    /// In the queue.
    pub queue: Option<Duration>,
    /// In the network.
    pub inference: Option<Duration>,
}

/// Counts by bucket; `N` is one more than the number of bounds.
#[derive(Debug)]
struct BucketCells<const N: usize> {
    /// Each without the smaller buckets.
    buckets: [Counter; N],
    sum: Counter,
}

impl<const N: usize> Default for BucketCells<N> {
    fn default() -> Self {
        Self { buckets: array::from_fn(|_| Counter::default()), sum: Counter::default() }
    }
}

impl<const N: usize> BucketCells<N> {
    /// Counts the value `times` times. Only the shard that owns the cells may call this.
    fn count(&self, bucket: usize, value: u64, times: u64) {
        if let Some(bucket) = self.buckets.get(bucket) {
            bucket.add(times);
        }
        self.sum.add(value.saturating_mul(times));
    }

    /// Counts a whole number in the bucket of its power of two, from any of several threads.
    fn count_shared(&self, value: u64) {
        if let Some(bucket) = self.buckets.get(power_bucket(value, N)) {
            bucket.0.fetch_add(1, Ordering::Relaxed);
        }
        self.sum.0.fetch_add(value, Ordering::Relaxed);
    }
}

/// The bucket of a value among `count` whose bounds are powers of two from 1.
fn power_bucket(value: u64, count: usize) -> usize {
    let bits = u64::BITS - value.saturating_sub(1).leading_zeros();
    usize::try_from(bits).map_or(count, |bits| bits.min(count.saturating_sub(1)))
}

/// The histograms of the four durations.
#[derive(Debug, Default)]
struct StageCells {
    total: BucketCells<{ TIME_COUNT + 1 }>,
    tokenization: BucketCells<{ TIME_COUNT + 1 }>,
    queue: BucketCells<{ TIME_COUNT + 1 }>,
    inference: BucketCells<{ TIME_COUNT + 1 }>,
}

/// A stage: its part of the name, and its cells.
type TeiStage = (&'static str, fn(&StageCells) -> &BucketCells<{ TIME_COUNT + 1 }>);

const STAGES: [TeiStage; 4] = [
    ("duration", |cells| &cells.total),
    ("tokenization_duration", |cells| &cells.tokenization),
    ("queue_duration", |cells| &cells.queue),
    ("inference_duration", |cells| &cells.inference),
];

impl StageCells {
    fn count(&self, times: &TeiTimes, count: u64) {
        let stages = [
            (&self.total, Some(times.total)),
            (&self.tokenization, times.tokenization),
            (&self.queue, times.queue),
            (&self.inference, times.inference),
        ];
        for (cells, duration) in stages {
            let Some(duration) = duration else { continue };
            let seconds = duration.as_secs_f64();
            cells.count(TIMES.partition_point(|bound| *bound < seconds), nanos_of(duration), count);
        }
    }
}

/// The texts of one task.
#[derive(Debug, Default)]
struct TaskCells {
    count: Counter,
    success: Counter,
    stages: StageCells,
}

/// The counters of one shard. Only that shard may count.
#[derive(Debug, Default)]
pub struct TeiCells {
    requests: [Counter; TeiMethod::ALL.len()],
    successes: [Counter; TeiMethod::ALL.len()],
    failures: [Counter; TeiFailure::ALL.len()],
    stages: StageCells,
    tasks: [TaskCells; TeiTask::ALL.len()],
    lengths: BucketCells<{ LENGTH_COUNT + 1 }>,
}

impl TeiCells {
    /// Counts a request that was read.
    pub fn count_request(&self, method: TeiMethod) {
        if let Some(counter) = self.requests.get(method as usize) {
            counter.add(1);
        }
    }

    /// Counts a request that was answered.
    pub fn count_success(&self, method: TeiMethod) {
        if let Some(counter) = self.successes.get(method as usize) {
            counter.add(1);
        }
    }

    /// Counts failures.
    pub fn count_failures(&self, failure: TeiFailure, count: u64) {
        if let Some(counter) = self.failures.get(failure as usize) {
            counter.add(count);
        }
    }

    /// Counts texts that a model takes.
    pub fn count_texts(&self, task: TeiTask, texts: u64) {
        if let Some(cells) = self.tasks.get(task as usize) {
            cells.count.add(texts);
        }
    }

    /// Counts the durations of an answered request, for the request and for each of its texts.
    pub fn count_times(&self, task: TeiTask, texts: u64, times: &TeiTimes) {
        self.stages.count(times, 1);
        if let Some(cells) = self.tasks.get(task as usize) {
            cells.success.add(texts);
            cells.stages.count(times, texts);
        }
    }

    /// Counts the tokens of a text.
    pub fn count_length(&self, tokens: u64) {
        self.lengths.count(power_bucket(tokens, LENGTH_COUNT + 1), tokens, 1);
    }
}

/// The runs of all text models. Any thread may count.
#[derive(Debug, Default)]
pub struct TeiBatchCells {
    sizes: BucketCells<{ SIZE_COUNT + 1 }>,
    tokens: BucketCells<{ TOKENS_COUNT + 1 }>,
}

impl TeiBatchCells {
    /// Counts a run of a network on `texts` texts, which have `tokens` tokens without padding.
    pub fn count(&self, texts: u64, tokens: u64) {
        self.sizes.count_shared(texts);
        self.tokens.count_shared(tokens);
    }
}

const REQUEST_COUNT: &str = "te_request_count";
const REQUEST_SUCCESS: &str = "te_request_success";
const REQUEST_FAILURE: &str = "te_request_failure";
const INPUT_LENGTH: &str = "te_request_input_length";
const BATCH_SIZE: &str = "te_batch_next_size";
const BATCH_TOKENS: &str = "te_batch_next_tokens";
const QUEUE_SIZE: &str = "te_queue_size";

/// Appends all families: the sums over shards, the runs, and the requests that wait for text models.
pub fn encode(out: &mut String, shards: &[&TeiCells], batches: &TeiBatchCells, queued: u64) {
    encode_counters(out, shards);
    head(out, QUEUE_SIZE, "gauge", "Requests that wait for models of texts");
    let _ = writeln!(out, "{QUEUE_SIZE} {queued}");
    encode_stages(out, "request", "requests", &shards.iter().map(|cells| &cells.stages).collect::<Vec<_>>());
    for task in TeiTask::ALL {
        let cells = shards.iter().filter_map(|cells| Some(&cells.tasks.get(task as usize)?.stages));
        encode_stages(out, task.label(), texts_of(task), &cells.collect::<Vec<_>>());
    }
    let lengths: Vec<_> = shards.iter().map(|cells| &cells.lengths).collect();
    encode_powers(out, INPUT_LENGTH, "Tokens of a text, for models that count them", &lengths);
    encode_powers(out, BATCH_SIZE, "Texts of a run of a network", &[&batches.sizes]);
    encode_powers(out, BATCH_TOKENS, "Tokens of a run of a network, without padding", &[&batches.tokens]);
}

const fn texts_of(task: TeiTask) -> &'static str {
    match task {
        TeiTask::Embed => "texts of embedding models",
        TeiTask::Predict => "texts of classifiers and rerankers",
    }
}

fn encode_counters(out: &mut String, shards: &[&TeiCells]) {
    let sum = |cells: &dyn Fn(&TeiCells) -> Option<u64>| shards.iter().filter_map(|shard| cells(shard)).sum::<u64>();
    head(out, REQUEST_COUNT, "counter", "Requests for texts, by form");
    for method in TeiMethod::ALL {
        let count = sum(&|cells| cells.requests.get(method as usize).map(Counter::get));
        let _ = writeln!(out, "{REQUEST_COUNT}{{method=\"{}\"}} {count}", method.label());
    }
    head(out, REQUEST_SUCCESS, "counter", "Requests for texts that were answered, by form");
    for method in TeiMethod::ALL {
        let count = sum(&|cells| cells.successes.get(method as usize).map(Counter::get));
        let _ = writeln!(out, "{REQUEST_SUCCESS}{{method=\"{}\"}} {count}", method.label());
    }
    head(out, REQUEST_FAILURE, "counter", "Failures of requests for texts, by reason");
    for failure in TeiFailure::ALL {
        let count = sum(&|cells| cells.failures.get(failure as usize).map(Counter::get));
        let _ = writeln!(out, "{REQUEST_FAILURE}{{err=\"{}\"}} {count}", failure.label());
    }
    for task in TeiTask::ALL {
        let (label, texts) = (task.label(), texts_of(task));
        let count = sum(&|cells| cells.tasks.get(task as usize).map(|cells| cells.count.get()));
        head(out, &format!("te_{label}_count"), "counter", &format!("Number of {texts}"));
        let _ = writeln!(out, "te_{label}_count {count}");
        let success = sum(&|cells| cells.tasks.get(task as usize).map(|cells| cells.success.get()));
        head(out, &format!("te_{label}_success"), "counter", &format!("Number of {texts} that were answered"));
        let _ = writeln!(out, "te_{label}_success {success}");
    }
}

/// Appends the four histograms of durations in seconds.
fn encode_stages(out: &mut String, label: &str, whose: &str, all: &[&StageCells]) {
    for (stage, cells) in STAGES {
        let stage_help = match stage {
            "tokenization_duration" => "Time to make tokens",
            "queue_duration" => "Time in the queue",
            "inference_duration" => "Time in the network",
            _ => "Time from arrival to answer",
        };
        let name = format!("te_{label}_{stage}");
        head(out, &name, "histogram", &format!("{stage_help} in seconds, of {whose} that were answered"));
        let cells: Vec<_> = all.iter().map(|of_shard| cells(of_shard)).collect();
        let sum = encode_buckets(out, &name, TIMES.iter().map(f64::to_string), &cells);
        let _ = writeln!(out, "{name}_sum {}\n{name}_count {}", Duration::from_nanos(sum.0).as_secs_f64(), sum.1);
    }
}

/// Appends a histogram whose bounds are powers of two from 1.
fn encode_powers<const N: usize>(out: &mut String, name: &str, help: &str, all: &[&BucketCells<N>]) {
    head(out, name, "histogram", help);
    let bounds = (0..N.saturating_sub(1)).map(|power| (1_u64 << power).to_string());
    let (sum, count) = encode_buckets(out, name, bounds, all);
    let _ = writeln!(out, "{name}_sum {sum}\n{name}_count {count}");
}

/// Appends the lines of the buckets, which are cumulative there; returns the sum of all values and their number.
fn encode_buckets<const N: usize>(
    out: &mut String,
    name: &str,
    bounds: impl Iterator<Item = String>,
    all: &[&BucketCells<N>],
) -> (u64, u64) {
    let mut total = 0;
    for (index, bound) in bounds.chain(["+Inf".to_owned()]).enumerate() {
        total += all.iter().filter_map(|cells| cells.buckets.get(index)).map(Counter::get).sum::<u64>();
        let _ = writeln!(out, "{name}_bucket{{le=\"{bound}\"}} {total}");
    }
    (all.iter().map(|cells| cells.sum.get()).sum(), total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::to_open_metrics;

    fn page(shards: &[&TeiCells], batches: &TeiBatchCells) -> String {
        let mut out = String::new();
        encode(&mut out, shards, batches, 3);
        out
    }

    fn has(page: &str, lines: &[&str]) {
        lines.iter().for_each(|line| assert!(page.lines().any(|have| have == *line), "{line}\n{page}"));
    }

    #[test]
    fn counters_are_summed_over_shards_and_every_label_is_shown_from_the_start() {
        let (one, two) = (TeiCells::default(), TeiCells::default());
        one.count_request(TeiMethod::Single);
        two.count_request(TeiMethod::Single);
        two.count_request(TeiMethod::Batch);
        two.count_success(TeiMethod::Batch);
        one.count_failures(TeiFailure::Inference, 32);
        two.count_texts(TeiTask::Predict, 2);
        two.count_times(TeiTask::Predict, 2, &TeiTimes::default());
        let page = page(&[&one, &two], &TeiBatchCells::default());
        has(
            &page,
            &[
                "# TYPE te_request_count counter",
                "te_request_count{method=\"batch\"} 1",
                "te_request_count{method=\"single\"} 2",
                "te_request_success{method=\"batch\"} 1",
                "te_request_success{method=\"single\"} 0",
                "te_request_failure{err=\"inference\"} 32",
                "te_request_failure{err=\"overloaded\"} 0",
                "te_embed_count 0",
                "te_predict_count 2",
                "te_predict_success 2",
                "# TYPE te_queue_size gauge",
                "te_queue_size 3",
            ],
        );
        let failures = page.lines().filter(|line| line.starts_with("te_request_failure{")).count();
        assert_eq!(failures, TeiFailure::ALL.len());
    }

    #[test]
    fn durations_count_once_for_a_request_and_for_each_of_its_texts_and_unknown_ones_do_not() {
        let cells = TeiCells::default();
        let times = TeiTimes {
            total: Duration::from_micros(20),
            tokenization: None,
            queue: Some(Duration::from_nanos(15_000)),
            inference: Some(Duration::from_secs(3600)),
        };
        cells.count_times(TeiTask::Embed, 4, &times);
        let page = page(&[&cells], &TeiBatchCells::default());
        has(
            &page,
            &[
                "# TYPE te_request_duration histogram",
                "te_request_duration_bucket{le=\"0.000015000000000000002\"} 0",
                "te_request_duration_bucket{le=\"0.000022500000000000005\"} 1",
                "te_request_duration_sum 0.00002",
                "te_request_duration_count 1",
                "te_request_tokenization_duration_count 0",
                "te_request_queue_duration_bucket{le=\"0.000015000000000000002\"} 1",
                "te_request_inference_duration_bucket{le=\"+Inf\"} 1",
                "te_embed_duration_bucket{le=\"0.000022500000000000005\"} 4",
                "te_embed_duration_sum 0.00008",
                "te_embed_duration_count 4",
                "te_embed_tokenization_duration_count 0",
                "te_embed_inference_duration_sum 14400",
                "te_predict_duration_count 0",
            ],
        );
        let last = page.lines().filter(|line| line.starts_with("te_request_inference_duration_bucket")).rev().nth(1);
        assert!(last.is_some_and(|line| line.ends_with(" 0") && line.contains("le=\"14.")), "{last:?}");
        assert_eq!(page.lines().filter(|line| line.starts_with("te_request_duration_bucket")).count(), 36);
    }

    #[test]
    fn whole_numbers_fall_into_buckets_of_powers_of_two() {
        let check = |value, want| assert_eq!(power_bucket(value, 14), want, "{value}");
        for (value, want) in [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (4096, 12), (4097, 13), (u64::MAX, 13)] {
            check(value, want);
        }
        let (cells, batches) = (TeiCells::default(), TeiBatchCells::default());
        cells.count_length(3);
        cells.count_length(600_000);
        batches.count(32, 4_097);
        let page = page(&[&cells], &batches);
        has(
            &page,
            &[
                "te_request_input_length_bucket{le=\"2\"} 0",
                "te_request_input_length_bucket{le=\"4\"} 1",
                "te_request_input_length_bucket{le=\"524288\"} 1",
                "te_request_input_length_bucket{le=\"+Inf\"} 2",
                "te_request_input_length_sum 600003",
                "te_batch_next_size_bucket{le=\"16\"} 0",
                "te_batch_next_size_bucket{le=\"32\"} 1",
                "te_batch_next_size_bucket{le=\"4096\"} 1",
                "te_batch_next_size_count 1",
                "te_batch_next_tokens_bucket{le=\"4096\"} 0",
                "te_batch_next_tokens_bucket{le=\"8192\"} 1",
                "te_batch_next_tokens_bucket{le=\"1048576\"} 1",
                "te_batch_next_tokens_sum 4097",
            ],
        );
    }

    #[test]
    fn runs_that_are_counted_at_once_are_not_lost() {
        let batches = TeiBatchCells::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| batches.count(2, 7)));
            }
        });
        has(&page(&[], &batches), &["te_batch_next_size_sum 80000", "te_batch_next_tokens_count 40000"]);
    }

    #[test]
    fn in_openmetrics_the_names_stay_and_counters_have_an_unknown_type() {
        let page = to_open_metrics(&page(&[&TeiCells::default()], &TeiBatchCells::default()));
        has(
            &page,
            &[
                "# TYPE te_request_count unknown",
                "te_request_count{method=\"single\"} 0",
                "# TYPE te_request_duration histogram",
                "te_request_duration_bucket{le=\"0.000015000000000000002\"} 0",
                "te_batch_next_size_bucket{le=\"1.0\"} 0",
                "te_queue_size 3",
            ],
        );
    }
}
