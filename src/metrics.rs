//! Counters as cells that one shard writes and anybody reads, and the text of `/metrics` as the
//! sum over the shards. Names and help are Triton's (`metrics.cc`) where it has the metric.

mod batches;
mod duration_total;
mod ensemble;
mod gpus;
mod histogram;
mod loads;
mod responses;
mod statistics;

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::Code;
use crate::metrics::histogram::TimeCells;
use crate::time::{Instant, Stamps};

pub use crate::metrics::batches::{BatchCells, BatchFigures};
pub use crate::metrics::duration_total::DurationTotal;
pub use crate::metrics::ensemble::StepTimes;
pub use crate::metrics::gpus::{GpuBoard, GpuCells, GpuFigures};
pub use crate::metrics::loads::LoadFigures;
pub use crate::metrics::responses::{ResponseCells, ResponseFigures, ResponseOutcome};
pub use crate::metrics::statistics::{InferenceStatistics, ModelStatistics};

use crate::metrics::statistics::nanos_of;

/// A counter with one writer: an addition is a load and a store, no locked instruction.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to it. Only the shard that owns the counter may call this.
    pub fn add(&self, amount: u64) {
        self.0.store(self.get().wrapping_add(amount), Ordering::Relaxed);
    }

    /// Adds a time in nanoseconds.
    pub fn add_duration(&self, duration: Duration) {
        self.add(nanos_of(duration));
    }

    /// Raises it to a value that is above. Only the shard that owns the counter may call this.
    pub fn raise(&self, value: u64) {
        self.0.store(self.get().max(value), Ordering::Relaxed);
    }

    /// Makes it a value, where it is no count but what there is now. Only the shard that owns it may call this.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// What was counted so far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Why a request of a model failed, as Triton names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureReason {
    /// Its client left.
    Canceled,
    /// The queue was full, or its time there was over.
    Rejected,
    /// The backend said so.
    Backend,
    /// Anything else.
    Other,
}

impl FailureReason {
    /// In the order of Triton's `/metrics`.
    pub const ALL: [Self; 4] = [Self::Canceled, Self::Rejected, Self::Backend, Self::Other];

    const fn label(self) -> &'static str {
        match self {
            Self::Canceled => "CANCELED",
            Self::Rejected => "REJECTED",
            Self::Backend => "BACKEND",
            Self::Other => "OTHER",
        }
    }
}

/// How a client left before its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// It cancelled a gRPC call.
    CallCancelled,
    /// It closed, or reset, the connection.
    ConnectionClosed,
    /// It reset another stream of HTTP/2, or a call with another code than CANCEL.
    StreamReset,
}

impl Departure {
    /// In the order of `/metrics`.
    pub const ALL: [Self; 3] = [Self::CallCancelled, Self::ConnectionClosed, Self::StreamReset];

    const fn label(self) -> &'static str {
        match self {
            Self::CallCancelled => "call_cancelled",
            Self::ConnectionClosed => "connection_closed",
            Self::StreamReset => "stream_reset",
        }
    }
}

/// What one shard counts of one model version.
#[derive(Debug, Default)]
pub struct ModelCells {
    /// The batches of the shard's own instance.
    pub batches: BatchCells,
    /// The responses of a decoupled model.
    pub responses: ResponseCells,
    success: Counter,
    failure: [Counter; FailureReason::ALL.len()],
    failure_duration: Counter,
    last_inference: Counter,
    inference: Counter,
    execution: Counter,
    request_duration: Counter,
    queue_duration: Counter,
    queue_times: TimeCells,
    compute_input_duration: Counter,
    compute_infer_duration: Counter,
    compute_output_duration: Counter,
    cache_hit: Counter,
    cache_miss: Counter,
    cache_hit_duration: Counter,
    cache_miss_duration: Counter,
}

impl ModelCells {
    /// Cells of a shard whose own instance runs batches of up to so many rows; 0 where it has none.
    pub fn new(sizes: usize) -> Self {
        Self { batches: BatchCells::new(sizes), ..Self::default() }
    }

    /// A request was answered with its outputs, so many milliseconds after the epoch.
    pub fn count_success(&self, stamps: &Stamps, rows: u32, epoch_millis: u64) {
        self.success.add(1);
        self.last_inference.raise(epoch_millis);
        self.inference.add(u64::from(rows));
        self.request_duration.add_duration(stamps.output_end.since(stamps.received));
        self.queue_duration.add_duration(stamps.queue_duration());
        self.queue_times.count(stamps.queue_duration());
        self.compute_input_duration.add_duration(stamps.compute_input_duration());
        self.compute_infer_duration.add_duration(stamps.compute_infer_duration());
        self.compute_output_duration.add_duration(stamps.compute_output_duration());
    }

    /// A request was answered with what the cache had: it was looked for from `began` until `now`, so many
    /// milliseconds after the epoch. As in Triton it is no inference.
    pub fn count_cache_hit(&self, received: Instant, began: Instant, now: Instant, epoch_millis: u64) {
        self.success.add(1);
        self.last_inference.raise(epoch_millis);
        self.request_duration.add_duration(now.since(received));
        self.queue_duration.add_duration(began.since(received));
        self.cache_hit.add(1);
        self.cache_hit_duration.add_duration(now.since(began));
    }

    /// An answer that the cache had not took so long to be looked for and kept.
    pub fn count_cache_miss(&self, duration: Duration) {
        self.cache_miss.add(1);
        self.cache_miss_duration.add_duration(duration);
    }

    /// A request that had reached the model's queue failed, so long after it was received.
    pub fn count_failure(&self, reason: FailureReason, duration: Duration) {
        if let Some(counter) = self.failure.get(reason as usize) {
            counter.add(1);
        }
        self.failure_duration.add_duration(duration);
    }

    /// Batches that the shard's own instance took.
    pub fn executions(&self) -> u64 {
        self.execution.get()
    }

    /// A batch ran inside the shard; workers count theirs in the feed.
    pub fn count_execution(&self) {
        self.execution.add(1);
    }
}

/// What one shard counts of its traffic, whatever the model.
#[derive(Debug, Default)]
pub struct ShardCells {
    /// Inference requests whose last byte was read.
    pub received: Counter,
    /// Those that were answered with outputs.
    pub succeeded: Counter,
    /// Those whose client left before the answer, by [`Departure`].
    pub cancelled: [Counter; Departure::ALL.len()],
    /// Those that were refused, by [`Code`].
    pub refused: [Counter; CODES.len()],
    /// Connections accepted.
    pub connections_opened: Counter,
    /// Connections ended.
    pub connections_closed: Counter,
    /// Connections closed at once because there were too many.
    pub connections_refused: Counter,
    /// Messages with a framing fault, answered and closed.
    pub framing_errors: Counter,
    /// Connections closed by one of their timers.
    pub timeouts: Counter,
    /// Panics that cost one connection, or made a task of the shard begin anew.
    pub panics: Counter,
    /// Times that a worker woke the shard.
    pub wakes: Counter,
    /// Bytes of memory that requests hold which are received or decoded, now.
    pub receive_memory: Counter,
    /// Requests that were refused for want of it.
    pub receive_memory_refused: Counter,
    /// HTTP/2 streams that a client reset.
    pub client_resets: Counter,
    /// HTTP/2 streams that we reset.
    pub server_resets: Counter,
    /// HTTP/2 connections that a bound ended, by [`CALMED`].
    pub calmed: [Counter; CALMED.len()],
}

/// The bounds of an HTTP/2 connection whose end is the end of the connection.
pub const CALMED: [&str; 7] =
    ["client_resets", "continuations", "control_frames", "field_block", "field_list", "frame_time", "server_resets"];

/// The codes a request may be refused with, and their labels.
const CODES: [(Code, &str); 12] = [
    (Code::AlreadyExists, "already_exists"),
    (Code::Cancelled, "cancelled"),
    (Code::DeadlineExceeded, "deadline_exceeded"),
    (Code::Exhausted, "exhausted"),
    (Code::Internal, "internal"),
    (Code::InvalidArgument, "invalid_argument"),
    (Code::MethodNotAllowed, "method_not_allowed"),
    (Code::NotFound, "not_found"),
    (Code::TooLarge, "too_large"),
    (Code::Unavailable, "unavailable"),
    (Code::Unknown, "unknown"),
    (Code::Unsupported, "unsupported"),
];

impl ShardCells {
    /// An HTTP/2 connection ended because its client reached the bound of this name.
    pub fn count_calmed(&self, label: &str) {
        if let Some(index) = CALMED.iter().position(|have| *have == label)
            && let Some(counter) = self.calmed.get(index)
        {
            counter.add(1);
        }
    }

    /// A client left before its answer.
    pub fn count_cancelled(&self, departure: Departure) {
        if let Some(counter) = self.cancelled.get(departure as usize) {
            counter.add(1);
        }
    }

    /// A request was refused, or failed.
    pub fn count_refused(&self, code: Code) {
        if let Some(index) = CODES.iter().position(|(have, _)| *have == code)
            && let Some(counter) = self.refused.get(index)
        {
            counter.add(1);
        }
    }
}

/// One model version to show: its cells on every shard, and what waits in its queue now.
#[derive(Default)]
pub struct ModelFigures<'a> {
    /// The model's name.
    pub name: &'a str,
    /// Its version.
    pub version: u64,
    /// Labels of its own, each with its comma.
    pub labels: &'a str,
    /// Whether its answers are kept.
    pub is_cached: bool,
    /// The cells of all shards.
    pub cells: Vec<&'a ModelCells>,
    /// The batches of its workers, where it has workers.
    pub workers: Option<&'a BatchCells>,
    /// Batches that left the queue, by why: every reason, those inside the shards included.
    pub releases: Vec<(&'static str, u64)>,
    /// Requests that wait.
    pub pending: u64,
    /// Where its instances run: `inline` or `worker`; `ensemble` where it has none.
    pub placement: &'static str,
    /// The shortest run of one row before it served, where it was measured.
    pub run: Option<Duration>,
    /// Its instances on workers by name, and the batches that each took.
    pub instances: Vec<(&'a str, u64)>,
    /// Times a sleeping instance was woken.
    pub wakes: u64,
    /// Requests refused because they would have been late.
    pub late: u64,
    /// Its sequences, where it serves them.
    pub sequences: Option<SequenceFigures>,
    /// Its batches on GPUs, where it has instances there.
    pub gpu: Option<GpuFigures>,
}

/// The sequences of one model version.
#[derive(Clone, Debug, Default)]
pub struct SequenceFigures {
    /// Those that have a slot.
    pub active: u64,
    /// Those that wait for a slot.
    pub backlogged: u64,
    /// Those that ended, by why: every reason.
    pub ends: Vec<(&'static str, u64)>,
}

impl ModelFigures<'_> {
    /// Batches that ran and of which at least one request succeeded.
    fn executions(&self) -> u64 {
        self.batch_cells().map(BatchCells::executions).sum()
    }

    fn batch_cells(&self) -> impl Iterator<Item = &BatchCells> {
        self.cells.iter().map(|cells| &cells.batches).chain(self.workers)
    }
}

/// The text of `/metrics` (Prometheus text format 0.0.4).
pub fn encode(
    models: &[ModelFigures<'_>],
    shards: &[&ShardCells],
    loads: &[LoadFigures<'_>],
    gpus: &[GpuCells],
) -> String {
    let mut out = String::with_capacity(4096);
    for family in &FAMILIES {
        head(&mut out, family.name, family.kind, family.help);
        for model in models {
            encode_model(&mut out, family, model);
        }
    }
    gpus::encode_models(&mut out, models);
    gpus::encode(&mut out, gpus);
    loads::encode(&mut out, loads);
    encode_shards(&mut out, shards);
    out
}

struct MetricFamily {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    value: MetricValue,
}

enum MetricValue {
    BatchSizes,
    /// Where the model's answers are kept.
    CacheCount(fn(&ModelCells) -> &Counter),
    /// The same.
    CacheMicros(fn(&ModelCells) -> &Counter),
    Count(fn(&ModelCells) -> &Counter),
    Executions,
    Failures,
    /// A number that the figures carry.
    Figure(fn(&ModelFigures<'_>) -> u64),
    Instances,
    Micros(fn(&ModelCells) -> &Counter),
    Placement,
    QueueTimes,
    Releases,
    /// Of models that serve sequences: how many there are.
    Sequences,
    /// And what ended those that were.
    SequenceEnds,
    Run,
}

impl MetricFamily {
    const fn counter(name: &'static str, help: &'static str, value: MetricValue) -> Self {
        Self { name, kind: "counter", help, value }
    }

    const fn gauge(name: &'static str, help: &'static str, value: MetricValue) -> Self {
        Self { name, kind: "gauge", help, value }
    }

    const fn histogram(name: &'static str, help: &'static str, value: MetricValue) -> Self {
        Self { name, kind: "histogram", help, value }
    }
}

const FAMILIES: [MetricFamily; 24] = [
    MetricFamily::counter(
        "nv_inference_request_success",
        "Number of successful inference requests, all batch sizes",
        MetricValue::Count(|cells| &cells.success),
    ),
    MetricFamily::counter(
        "nv_inference_request_failure",
        "Number of failed inference requests, all batch sizes",
        MetricValue::Failures,
    ),
    MetricFamily::counter(
        "nv_inference_count",
        "Number of inferences performed (does not include cached requests)",
        MetricValue::Count(|cells| &cells.inference),
    ),
    MetricFamily::counter(
        "nv_inference_exec_count",
        "Number of model executions performed (does not include cached requests)",
        MetricValue::Executions,
    ),
    MetricFamily::counter(
        "nv_inference_request_duration_us",
        "Cumulative inference request duration in microseconds (includes cached requests)",
        MetricValue::Micros(|cells| &cells.request_duration),
    ),
    MetricFamily::counter(
        "nv_inference_queue_duration_us",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        MetricValue::Micros(|cells| &cells.queue_duration),
    ),
    MetricFamily::counter(
        "nv_inference_compute_input_duration_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        MetricValue::Micros(|cells| &cells.compute_input_duration),
    ),
    MetricFamily::counter(
        "nv_inference_compute_infer_duration_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        MetricValue::Micros(|cells| &cells.compute_infer_duration),
    ),
    MetricFamily::counter(
        "nv_inference_compute_output_duration_us",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        MetricValue::Micros(|cells| &cells.compute_output_duration),
    ),
    MetricFamily::gauge(
        "nv_inference_pending_request_count",
        "Instantaneous number of pending requests awaiting execution per-model.",
        MetricValue::Figure(|model| model.pending),
    ),
    MetricFamily::counter(
        "nv_cache_num_hits_per_model",
        "Number of cache hits per model",
        MetricValue::CacheCount(|cells| &cells.cache_hit),
    ),
    MetricFamily::counter(
        "nv_cache_num_misses_per_model",
        "Number of cache misses per model",
        MetricValue::CacheCount(|cells| &cells.cache_miss),
    ),
    MetricFamily::counter(
        "nv_cache_hit_duration_per_model",
        "Total cache hit duration per model, in microseconds",
        MetricValue::CacheMicros(|cells| &cells.cache_hit_duration),
    ),
    MetricFamily::counter(
        "nv_cache_miss_duration_per_model",
        "Total cache miss (insert+lookup) duration per model, in microseconds",
        MetricValue::CacheMicros(|cells| &cells.cache_miss_duration),
    ),
    MetricFamily::counter("deuteron_batches_total", "Batches that left the queue, by why", MetricValue::Releases),
    MetricFamily::histogram("deuteron_batch_size", "Rows of the batches that ran", MetricValue::BatchSizes),
    MetricFamily::histogram(
        "deuteron_queue_duration_seconds",
        "Queue durations of successful inference requests",
        MetricValue::QueueTimes,
    ),
    MetricFamily::gauge(
        "deuteron_model_placement",
        "Where the instances of the model run: inside the shards or on workers",
        MetricValue::Placement,
    ),
    MetricFamily::gauge(
        "deuteron_model_run_seconds",
        "Shortest run of one row before the model served, where it was measured",
        MetricValue::Run,
    ),
    MetricFamily::counter(
        "deuteron_instance_batches_total",
        "Batches that the instance on a worker took",
        MetricValue::Instances,
    ),
    MetricFamily::counter(
        "deuteron_instance_wakes_total",
        "Times an instance that slept was woken",
        MetricValue::Figure(|model| model.wakes),
    ),
    MetricFamily::counter(
        "deuteron_requests_late_total",
        "Inference requests refused because they would have been late (--admission=deadline)",
        MetricValue::Figure(|model| model.late),
    ),
    MetricFamily::gauge(
        "deuteron_sequences",
        "Sequences that have a slot, and that wait for one",
        MetricValue::Sequences,
    ),
    MetricFamily::counter("deuteron_sequences_ended_total", "Sequences that ended, by why", MetricValue::SequenceEnds),
];

fn encode_model(out: &mut String, family: &MetricFamily, model: &ModelFigures<'_>) {
    let sum = |counter: fn(&ModelCells) -> &Counter| model.cells.iter().map(|cells| counter(cells).get()).sum::<u64>();
    let (name, version, own) = (model.name, model.version, model.labels);
    let line = |out: &mut String, labels: &str, value: u64| {
        let _ = writeln!(out, "{}{{{own}model=\"{name}\",{labels}version=\"{version}\"}} {value}", family.name);
    };
    let labels = || format!("{own}model=\"{name}\",version=\"{version}\"");
    match family.value {
        MetricValue::BatchSizes => {
            let rows = model.batch_cells().map(BatchCells::rows).sum();
            histogram::encode_sizes(out, family.name, &labels(), &batches::sum(model.batch_cells()), rows);
        }
        MetricValue::CacheCount(_) | MetricValue::CacheMicros(_) if !model.is_cached => {}
        MetricValue::CacheCount(counter) | MetricValue::Count(counter) => line(out, "", sum(counter)),
        MetricValue::Executions => line(out, "", model.executions()),
        MetricValue::Figure(figure) => line(out, "", figure(model)),
        MetricValue::CacheMicros(counter) | MetricValue::Micros(counter) => line(out, "", sum(counter) / 1_000),
        MetricValue::Instances => {
            for (instance, batches) in &model.instances {
                let instance = label(instance);
                let own = format!("{own}instance=\"{instance}\"");
                let _ = writeln!(out, "{}{{{own},model=\"{name}\",version=\"{version}\"}} {batches}", family.name);
            }
        }
        MetricValue::Placement => line(out, &format!("placement=\"{}\",", model.placement), 1),
        MetricValue::Run => {
            if let Some(run) = model.run {
                let _ = writeln!(out, "{}{{{}}} {:.9}", family.name, labels(), run.as_secs_f64());
            }
        }
        MetricValue::QueueTimes => {
            let cells: Vec<_> = model.cells.iter().map(|cells| &cells.queue_times).collect();
            histogram::encode_times(out, family.name, &labels(), &cells);
        }
        MetricValue::Releases => {
            for (reason, count) in &model.releases {
                line(out, &format!("reason=\"{reason}\","), *count);
            }
        }
        MetricValue::Sequences => {
            if let Some(sequences) = &model.sequences {
                line(out, "state=\"active\",", sequences.active);
                line(out, "state=\"backlog\",", sequences.backlogged);
            }
        }
        MetricValue::SequenceEnds => {
            for (reason, count) in model.sequences.iter().flat_map(|sequences| &sequences.ends) {
                line(out, &format!("reason=\"{reason}\","), *count);
            }
        }
        MetricValue::Failures => {
            for reason in FailureReason::ALL {
                let failures = model.cells.iter().filter_map(|cells| cells.failure.get(reason as usize));
                line(out, &format!("reason=\"{}\",", reason.label()), failures.map(Counter::get).sum());
            }
        }
    }
}

fn encode_shards(out: &mut String, shards: &[&ShardCells]) {
    let sum = |counter: fn(&ShardCells) -> &Counter| shards.iter().map(|cells| counter(cells).get()).sum::<u64>();
    let received = sum(|cells| &cells.received);
    let succeeded = sum(|cells| &cells.succeeded);
    let (mut refused_total, mut cancelled_total) = (0, 0);

    head(out, "deuteron_requests_refused_total", "counter", "Inference requests refused or failed, by reason");
    for (index, (_, label)) in CODES.iter().enumerate() {
        let refused: u64 = shards.iter().filter_map(|cells| cells.refused.get(index)).map(Counter::get).sum();
        refused_total += refused;
        let _ = writeln!(out, "deuteron_requests_refused_total{{reason=\"{label}\"}} {refused}");
    }
    head(
        out,
        "deuteron_http2_calmed_total",
        "counter",
        "HTTP/2 connections ended by a bound that their client reached",
    );
    for (index, label) in CALMED.iter().enumerate() {
        let count: u64 = shards.iter().filter_map(|cells| cells.calmed.get(index)).map(Counter::get).sum();
        let _ = writeln!(out, "deuteron_http2_calmed_total{{limit=\"{label}\"}} {count}");
    }
    let name = "deuteron_requests_cancelled_total";
    head(out, name, "counter", "Inference requests whose client left before the answer, by how it left");
    for departure in Departure::ALL {
        let cancelled: u64 =
            shards.iter().filter_map(|cells| cells.cancelled.get(departure as usize)).map(Counter::get).sum();
        cancelled_total += cancelled;
        let _ = writeln!(out, "{name}{{reason=\"{}\"}} {cancelled}", departure.label());
    }
    let mut single = |name: &str, kind: &str, help: &str, value: u64| {
        head(out, name, kind, help);
        let _ = writeln!(out, "{name} {value}");
    };
    single("deuteron_requests_received_total", "counter", "Inference requests whose last byte was read", received);
    single("deuteron_requests_succeeded_total", "counter", "Inference requests answered with outputs", succeeded);
    let in_flight = received.saturating_sub(succeeded + cancelled_total + refused_total);
    single("deuteron_requests_in_flight", "gauge", "Inference requests not answered yet", in_flight);
    let opened = sum(|cells| &cells.connections_opened);
    let open = opened.saturating_sub(sum(|cells| &cells.connections_closed));
    single("deuteron_connections_open", "gauge", "Connections that are open", open);
    single("deuteron_connections_total", "counter", "Connections accepted", opened);
    let refused = sum(|cells| &cells.connections_refused);
    single("deuteron_connections_refused_total", "counter", "Connections closed because there were too many", refused);
    let framing = sum(|cells| &cells.framing_errors);
    single("deuteron_framing_errors_total", "counter", "Messages with a framing fault", framing);
    let timeouts = sum(|cells| &cells.timeouts);
    single("deuteron_timeouts_total", "counter", "Connections closed by a timer", timeouts);
    single("deuteron_panics_total", "counter", "Panics that a shard survived", sum(|cells| &cells.panics));
    let held = sum(|cells| &cells.receive_memory);
    single("deuteron_receive_memory_bytes", "gauge", "Bytes that requests hold while they are received", held);
    let name = "deuteron_receive_memory_refused_total";
    let help = "Requests refused for want of memory to receive them (--receive-memory-bytes-max)";
    single(name, "counter", help, sum(|cells| &cells.receive_memory_refused));
    let (client, server) = (sum(|cells| &cells.client_resets), sum(|cells| &cells.server_resets));
    single("deuteron_http2_client_resets_total", "counter", "HTTP/2 streams reset by their client", client);
    single("deuteron_http2_server_resets_total", "counter", "HTTP/2 streams reset by the server", server);
    single("deuteron_shard_wakes_total", "counter", "Times a worker woke a shard", sum(|cells| &cells.wakes));
}

/// The value of a label that may be any text (Prometheus text format 0.0.4).
fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_sums_the_cells_of_all_shards() {
        let at = Instant::from_micros;
        let stamps =
            Stamps { received: at(10), batched: at(14), input_end: at(15), infer_end: at(35), output_end: at(36) };
        let (one, two, workers) = (ModelCells::new(8), ModelCells::default(), BatchCells::new(8));
        one.count_success(&stamps, 3, 0);
        one.count_execution();
        one.batches.count(3, &stamps);
        two.count_success(&stamps, 1, 0);
        two.count_failure(FailureReason::Rejected, Duration::ZERO);
        workers.count_shared(1, &stamps);
        workers.count_shared(8, &stamps);
        let shard = ShardCells::default();
        shard.received.add(7);
        shard.succeeded.add(2);
        shard.count_refused(Code::Unavailable);
        let departures = [Departure::StreamReset, Departure::StreamReset, Departure::CallCancelled];
        departures.into_iter().for_each(|departure| shard.count_cancelled(departure));
        let model = ModelFigures {
            name: "m",
            version: 1,
            cells: vec![&one, &two],
            workers: Some(&workers),
            releases: vec![("full", 1), ("idle", 2), ("shape", 0)],
            pending: 5,
            run: Some(Duration::from_nanos(1_500)),
            instances: vec![("m_0_0", 3), ("a\\b\"c\nd_0", 0)],
            wakes: 7,
            late: 6,
            placement: "worker",
            ..ModelFigures::default()
        };
        let text = encode(&[model], &[&shard], &[], &[]);
        for line in [
            "nv_inference_request_success{model=\"m\",version=\"1\"} 2",
            "nv_inference_request_failure{model=\"m\",reason=\"REJECTED\",version=\"1\"} 1",
            "nv_inference_request_failure{model=\"m\",reason=\"OTHER\",version=\"1\"} 0",
            "nv_inference_count{model=\"m\",version=\"1\"} 4",
            "nv_inference_exec_count{model=\"m\",version=\"1\"} 3",
            "nv_inference_request_duration_us{model=\"m\",version=\"1\"} 52",
            "nv_inference_queue_duration_us{model=\"m\",version=\"1\"} 8",
            "nv_inference_compute_infer_duration_us{model=\"m\",version=\"1\"} 40",
            "nv_inference_pending_request_count{model=\"m\",version=\"1\"} 5",
            "deuteron_batches_total{model=\"m\",reason=\"full\",version=\"1\"} 1",
            "deuteron_batches_total{model=\"m\",reason=\"idle\",version=\"1\"} 2",
            "deuteron_batches_total{model=\"m\",reason=\"shape\",version=\"1\"} 0",
            "# TYPE deuteron_batch_size histogram",
            "deuteron_batch_size_bucket{model=\"m\",version=\"1\",le=\"1\"} 1",
            "deuteron_batch_size_bucket{model=\"m\",version=\"1\",le=\"4\"} 2",
            "deuteron_batch_size_bucket{model=\"m\",version=\"1\",le=\"+Inf\"} 3",
            "deuteron_batch_size_sum{model=\"m\",version=\"1\"} 12",
            "deuteron_batch_size_count{model=\"m\",version=\"1\"} 3",
            "deuteron_queue_duration_seconds_bucket{model=\"m\",version=\"1\",le=\"0.0001\"} 2",
            "deuteron_queue_duration_seconds_sum{model=\"m\",version=\"1\"} 0.000008000",
            "deuteron_queue_duration_seconds_count{model=\"m\",version=\"1\"} 2",
            "deuteron_model_placement{model=\"m\",placement=\"worker\",version=\"1\"} 1",
            "deuteron_model_run_seconds{model=\"m\",version=\"1\"} 0.000001500",
            "deuteron_instance_batches_total{instance=\"m_0_0\",model=\"m\",version=\"1\"} 3",
            "deuteron_instance_batches_total{instance=\"a\\\\b\\\"c\\nd_0\",model=\"m\",version=\"1\"} 0",
            "deuteron_requests_refused_total{reason=\"unavailable\"} 1",
            "deuteron_requests_cancelled_total{reason=\"call_cancelled\"} 1",
            "deuteron_requests_cancelled_total{reason=\"connection_closed\"} 0",
            "deuteron_requests_cancelled_total{reason=\"stream_reset\"} 2",
            "deuteron_instance_wakes_total{model=\"m\",version=\"1\"} 7",
            "deuteron_requests_late_total{model=\"m\",version=\"1\"} 6",
            "deuteron_requests_in_flight 1",
        ] {
            assert!(text.lines().any(|have| have == line), "{line}\n{text}");
        }
    }

    #[test]
    fn sequences_are_told_by_what_they_do_and_by_what_ended_them() {
        let sequences = SequenceFigures { active: 8, backlogged: 9, ends: vec![("end", 4), ("idle", 0)] };
        let model = ModelFigures { name: "m", version: 1, sequences: Some(sequences), ..ModelFigures::default() };
        let text = encode(&[model], &[], &[], &[]);
        for line in [
            "deuteron_sequences{model=\"m\",state=\"active\",version=\"1\"} 8",
            "deuteron_sequences{model=\"m\",state=\"backlog\",version=\"1\"} 9",
            "deuteron_sequences_ended_total{model=\"m\",reason=\"end\",version=\"1\"} 4",
            "deuteron_sequences_ended_total{model=\"m\",reason=\"idle\",version=\"1\"} 0",
        ] {
            assert!(text.lines().any(|have| have == line), "{line}\n{text}");
        }
    }

    #[test]
    fn every_bound_of_a_connection_has_a_counter_and_its_line() {
        let shard = ShardCells::default();
        CALMED.iter().for_each(|label| shard.count_calmed(label));
        shard.count_calmed("nothing");
        let text = encode(&[], &[&shard], &[], &[]);
        for label in CALMED {
            assert!(text.contains(&format!("deuteron_http2_calmed_total{{limit=\"{label}\"}} 1\n")), "{text}");
        }
    }

    #[test]
    fn every_code_has_a_counter() {
        let shard = ShardCells::default();
        for (code, _) in CODES {
            shard.count_refused(code);
        }
        assert!(shard.refused.iter().all(|counter| counter.get() == 1));
    }
}
