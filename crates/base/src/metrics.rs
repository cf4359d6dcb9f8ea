//! Counters and the text of `/metrics`. Each shard writes cells of its own, any thread may read them, and a metric is their sum
//! over the shards. Names and help texts are Triton's (`metrics.cc`) if Triton has the metric.

mod batches;
mod build;
mod cache;
mod compression;
mod connections;
mod custom;
mod departure;
mod duration_total;
mod ensemble;
mod exemplar;
mod gpus;
mod histogram;
mod host;
mod keys;
mod latency;
mod load;
mod loads;
mod log_lines;
mod memory;
mod model_cache;
mod names;
mod open_metrics;
mod padding;
mod process_memory;
mod reloads;
mod reports;
mod responses;
mod row_costs;
mod sequences;
mod statistics;
mod stores;
mod summary;
mod tei;
mod tls;
mod traces;

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::Code;
use crate::metrics::histogram::TimeCells;
use crate::metrics::latency::{LatencyCells, RequestDurations};
use crate::time::{Instant, Stamps};

pub use crate::metrics::batches::{BatchCells, BatchFigures};
pub use crate::metrics::build::encode_build;
pub use crate::metrics::cache::{
    CacheCells, CacheLaneCells, encode as encode_cache, encode_library as encode_cache_library, encode_redis,
    is_reported_by_libraries,
};
pub use crate::metrics::compression::CompressionCells;
pub use crate::metrics::connections::{ClientCells, ClientTimer, encode_connections_max};
pub use crate::metrics::custom::{CustomFamily, CustomSeries, encode_custom};
pub use crate::metrics::departure::Departure;
pub use crate::metrics::duration_total::DurationTotal;
pub use crate::metrics::ensemble::StepTimes;
pub use crate::metrics::exemplar::Exemplar;
pub use crate::metrics::gpus::{Gauge, GpuBoard, GpuCells, GpuFigures};
pub use crate::metrics::host::{CpuTimes, HostCells, memory};
pub use crate::metrics::keys::{KeyCells, KeyRefusal, RefusalCells, encode_keys};
pub use crate::metrics::latency::{FIRST_RESPONSE_BOUNDS, LatencyOptions, encode as encode_latencies};
pub use crate::metrics::load::{LoadBoard, utilization};
pub use crate::metrics::loads::LoadFigures;
pub use crate::metrics::log_lines::encode_log_lines;
pub use crate::metrics::memory::{MemoryLoss, encode as encode_memory, encode_run_memory};
pub use crate::metrics::model_cache::{ModelCacheCells, ModelWaitCells, encode as encode_model_cache};
pub use crate::metrics::names::own_names;
pub use crate::metrics::open_metrics::to_open_metrics;
pub use crate::metrics::padding::{PaddingCells, PaddingFigures};
pub use crate::metrics::reloads::ReloadCells;
pub use crate::metrics::reports::{ReportCells, RequestReport, StageTimes, WorkReport};
pub use crate::metrics::responses::{ResponseCells, ResponseFigures, ResponseOutcome};
pub use crate::metrics::row_costs::{RowCostCells, RowCostFigures};
pub use crate::metrics::sequences::SequenceFigures;
pub use crate::metrics::statistics::{InferenceStatistics, ModelStatistics};
pub use crate::metrics::stores::{StoreCells, encode_stores};
pub use crate::metrics::tei::{
    TeiBatchCells, TeiCells, TeiFailure, TeiMethod, TeiTask, TeiTimes, encode as encode_tei,
};
pub use crate::metrics::tls::{HandshakeFailure, PortExpiry, TlsBoard, TlsCells};
pub use crate::metrics::traces::encode_traces;

use crate::metrics::statistics::nanos_of;

/// A counter with a single writer, so that an addition is a plain load and store and not a locked
/// instruction. All accesses are relaxed: a reader needs each count by itself, and no other memory is
/// published through one, so two counters read together may be a few requests apart.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds an amount. Only the thread that owns the counter may call this: a second writer loses counts.
    pub fn add(&self, amount: u64) {
        self.0.store(self.get().wrapping_add(amount), Ordering::Relaxed);
    }

    /// Adds a duration, in nanoseconds.
    pub fn add_duration(&self, duration: Duration) {
        self.add(nanos_of(duration));
    }

    /// Sets it to `value` if that is larger. Only the thread that owns the counter may call this.
    pub fn raise(&self, value: u64) {
        self.0.store(self.get().max(value), Ordering::Relaxed);
    }

    /// Sets the value of a gauge. Only the shard that owns it may call this.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Returns the count so far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The reason why a request of a model failed, as Triton names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureReason {
    /// Its client went away before the answer.
    Canceled,
    /// The queue was full, or its queue timeout expired.
    Rejected,
    /// The backend failed it.
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

/// The counters of one shard for one model version. Durations are in nanoseconds.
#[derive(Debug, Default)]
pub struct ModelCells {
    /// Batches of the shard's own instance, for an inline model.
    pub batches: BatchCells,
    /// Responses of a decoupled model.
    pub responses: ResponseCells,
    /// Distributions of durations.
    pub latency: LatencyCells,
    success: Counter,
    failure: [Counter; FailureReason::ALL.len()],
    failure_duration: Counter,
    last_inference: Counter,
    inference: Counter,
    execution: Counter,
    request_duration: Counter,
    queue_duration: Counter,
    compute_input_duration: Counter,
    compute_infer_duration: Counter,
    compute_output_duration: Counter,
    cache_hit: Counter,
    cache_miss: Counter,
    cache_hit_duration: Counter,
    cache_miss_duration: Counter,
}

impl ModelCells {
    /// Creates cells for a shard whose own instance runs batches of up to `sizes` rows; 0 if it has
    /// none.
    pub fn new(sizes: usize) -> Self {
        Self { batches: BatchCells::new(sizes), ..Self::default() }
    }

    /// Selects the distributions to count, before the first request; `bounds` are those of the
    /// first responses of a decoupled model.
    pub fn with_latencies(self, options: &LatencyOptions, bounds: Option<&[f64]>) -> Self {
        Self { latency: LatencyCells::new(options, bounds), ..self }
    }

    /// The end of the last inference, in milliseconds since the Unix epoch; 0 if there was none.
    pub fn last_inference(&self) -> u64 {
        self.last_inference.get()
    }

    /// Counts a request that was answered with outputs, at `epoch_millis` since the Unix epoch.
    pub fn count_success(&self, stamps: &Stamps, rows: u32, epoch_millis: u64) {
        self.success.add(1);
        self.last_inference.raise(epoch_millis);
        self.inference.add(u64::from(rows));
        let durations = RequestDurations::between(stamps);
        self.request_duration.add_duration(durations.request);
        self.queue_duration.add_duration(durations.queue);
        self.compute_input_duration.add_duration(durations.compute_input);
        self.compute_infer_duration.add_duration(durations.compute_infer);
        self.compute_output_duration.add_duration(durations.compute_output);
        self.latency.count(&durations, epoch_millis);
    }

    /// Keeps a traced request, which was counted as a success with these stamps.
    pub fn keep_exemplar(&self, stamps: &Stamps, exemplar: &Exemplar) {
        self.latency.keep_exemplar(&RequestDurations::between(stamps), exemplar);
    }

    /// Counts a request that was answered from the response cache. The lookup took from `began` to `now`.
    /// As in Triton, a hit is a success and not an inference.
    pub fn count_cache_hit(&self, received: Instant, began: Instant, now: Instant, epoch_millis: u64) {
        self.success.add(1);
        self.last_inference.raise(epoch_millis);
        self.request_duration.add_duration(now.since(received));
        self.queue_duration.add_duration(began.since(received));
        self.cache_hit.add(1);
        self.cache_hit_duration.add_duration(now.since(began));
        self.latency.count_cache_hit(now.since(received), began.since(received), now.since(began), epoch_millis);
    }

    /// Counts a cache miss: `duration` is the lookup and, after the run, the insertion.
    pub fn count_cache_miss(&self, duration: Duration, epoch_millis: u64) {
        self.latency.count_cache_miss(duration, epoch_millis);
        self.cache_miss.add(1);
        self.cache_miss_duration.add_duration(duration);
    }

    /// Counts a request that failed after it had reached the model's queue, `duration` after it was received.
    pub fn count_failure(&self, reason: FailureReason, duration: Duration) {
        if let Some(counter) = self.failure.get(reason as usize) {
            counter.add(1);
        }
        self.failure_duration.add_duration(duration);
    }

    /// Returns the batches that the shard's own instance began.
    pub fn executions(&self) -> u64 {
        self.execution.get()
    }

    /// Counts a batch that the shard's own instance begins; the model queue counts those of workers.
    pub fn count_execution(&self) {
        self.execution.add(1);
    }
}

/// The counters of one shard for all models together. `received = succeeded + refused + cancelled`
/// once nothing is in flight.
///
/// It has cache lines of its own (two, since processors fetch the neighbour too): the cells of all
/// shards are allocated one after the other, and their first counters are written for every
/// request.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ShardCells {
    /// Inference requests whose last byte was read.
    pub received: Counter,
    /// Inference requests answered with outputs.
    pub succeeded: Counter,
    /// Inference requests whose client went away before the answer, by [`Departure`].
    pub cancelled: [Counter; Departure::ALL.len()],
    /// Inference requests refused or failed, by [`Code`].
    pub refused: [Counter; Code::ALL.len()],
    /// Connections accepted.
    pub connections_opened: Counter,
    /// Connections ended.
    pub connections_closed: Counter,
    /// Connections of clients.
    pub clients: ClientCells,
    /// Connections closed at once because there were too many.
    pub connections_refused: Counter,
    /// Connections closed at once because their client's address had too many.
    pub connections_refused_by_address: Counter,
    /// Idle connections closed to make room for new ones.
    pub connections_evicted: Counter,
    /// Connections beyond the bound that got a reserved slot.
    pub connections_reserved: Counter,
    /// HTTP messages with a framing error; the connection is closed after the answer.
    pub framing_errors: Counter,
    /// Connections, requests and answers ended by a timer, by [`ClientTimer`].
    pub timeouts: [Counter; ClientTimer::ALL.len()],
    /// Panics that ended one connection or restarted a task of the shard.
    pub panics: Counter,
    /// Times a worker woke the shard.
    pub wakes: Counter,
    /// The response cache.
    pub cache: CacheCells,
    /// Requests that wait for models.
    pub model_waits: ModelWaitCells,
    /// Bytes reserved by requests that are being received or decoded (a gauge).
    pub receive_memory: Counter,
    /// Requests refused because the receive memory was used up.
    pub receive_memory_refused: Counter,
    /// Things that were given up for memory, by [`MemoryLoss`].
    pub memory_losses: [Counter; MemoryLoss::ALL.len()],
    /// Compressed requests and responses.
    pub compression: CompressionCells,
    /// TLS handshakes.
    pub tls: TlsCells,
    /// Requests that the operator's policy has refused.
    pub access_refused: RefusalCells,
    /// HTTP/2 streams that a client reset.
    pub client_resets: Counter,
    /// HTTP/2 streams that we reset.
    pub server_resets: Counter,
    /// HTTP/2 connections closed with ENHANCE_YOUR_CALM, by the limit exceeded ([`CALMED`]).
    pub calmed: [Counter; CALMED.len()],
    /// The metrics of text-embeddings-inference; `None` unless the server shows them.
    pub tei: Option<Box<TeiCells>>,
}

/// The limits of an HTTP/2 connection that close it with ENHANCE_YOUR_CALM when the client exceeds them.
pub const CALMED: [&str; 8] = [
    "client_resets",
    "continuations",
    "control_frames",
    "field_block",
    "field_list",
    "frame_time",
    "ping_strikes",
    "server_resets",
];

impl ShardCells {
    /// Counts an HTTP/2 connection closed because its client exceeded the limit of this name ([`CALMED`]).
    pub fn count_calmed(&self, label: &str) {
        if let Some(index) = CALMED.iter().position(|have| *have == label)
            && let Some(counter) = self.calmed.get(index)
        {
            counter.add(1);
        }
    }

    /// Counts connections, requests or answers that a timer ended.
    pub fn count_timeouts(&self, timer: ClientTimer, count: u64) {
        if let Some(counter) = self.timeouts.get(timer as usize) {
            counter.add(count);
        }
    }

    /// Counts a request whose client went away before the answer.
    pub fn count_cancelled(&self, departure: Departure) {
        if let Some(counter) = self.cancelled.get(departure as usize) {
            counter.add(1);
        }
    }

    /// Counts a request that was refused or failed.
    pub fn count_refused(&self, code: Code) {
        if let Some(counter) = self.refused.get(code as usize) {
            counter.add(1);
        }
    }
}

/// One model version as `/metrics` shows it: its cells on every shard, and the state of its queue now.
#[derive(Default)]
pub struct ModelFigures<'a> {
    /// The model's name.
    pub name: &'a str,
    /// Its version.
    pub version: u64,
    /// Labels from `metric_tags`, each followed by a comma.
    pub labels: &'a str,
    /// True if the response cache keeps its answers.
    pub is_cached: bool,
    /// True if the counters of durations are left out.
    pub hides_durations: bool,
    /// True if buckets have the exemplars of OpenMetrics.
    pub shows_exemplars: bool,
    /// The cells of all shards, and the corrections of reports.
    pub cells: Vec<&'a ModelCells>,
    /// The batches of its workers; `None` for a model without workers.
    pub workers: Option<&'a BatchCells>,
    /// Batches that left the queue or ran inside a shard, by release reason; every reason is listed.
    pub releases: Vec<(&'static str, u64)>,
    /// Requests waiting.
    pub pending: u64,
    /// Requests that may wait; `None` for a model without a queue.
    pub pending_max: Option<u64>,
    /// The place of its instances: `inline` or `worker`; `ensemble` for a model without instances.
    pub placement: &'static str,
    /// The engine that runs it and the engine's version; `None` unless it is an ONNX model.
    pub engine: Option<(&'a str, &'a str)>,
    /// The shortest run of one row, measured at load; `None` if it was not measured.
    pub run: Option<Duration>,
    /// Its instances on workers by name, and the batches that each took.
    pub instances: Vec<(&'a str, u64)>,
    /// Times a sleeping instance was woken.
    pub wakes: u64,
    /// Times a lost instance was replaced: a process that ended, an engine that panicked or hung.
    pub restarts: u64,
    /// Requests refused because they would have missed their deadline.
    pub late: u64,
    /// The cost of its rows by size of batch, if that decides the size.
    pub row_costs: Option<RowCostFigures>,
    /// The padding of its runs, if its inputs are padded.
    pub padding: Option<PaddingFigures>,
    /// Its sequences, if it serves sequences.
    pub sequences: Option<SequenceFigures>,
    /// Bytes of memory of its processes, if it has any and they were measured.
    pub process_memory: Option<u64>,
    /// Its batches on GPUs, if it has instances there.
    pub gpu: Option<GpuFigures>,
}

impl ModelFigures<'_> {
    /// Returns the batches that ran and had at least one request that succeeded.
    fn executions(&self) -> u64 {
        self.batch_cells().map(BatchCells::executions).sum()
    }

    fn batch_cells(&self) -> impl Iterator<Item = &BatchCells> {
        self.cells.iter().map(|cells| &cells.batches).chain(self.workers)
    }
}

/// Returns the text of `/metrics` (Prometheus text format 0.0.4).
pub fn encode(
    models: &[ModelFigures<'_>],
    shards: &[&ShardCells],
    loads: &[LoadFigures<'_>],
    gpus: &[GpuCells],
) -> String {
    let mut out = String::with_capacity(4096);
    for family in &FAMILIES {
        let before = out.len();
        head(&mut out, family.name, family.kind, family.help);
        let empty = out.len();
        for model in models {
            encode_model(&mut out, family, model);
        }
        // As in Triton, a family without a series is left out.
        if out.len() == empty {
            out.truncate(before);
        }
    }
    row_costs::encode_models(&mut out, models);
    padding::encode_models(&mut out, models);
    process_memory::encode_models(&mut out, models);
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

/// The source of a metric family's value, for one model version.
enum MetricValue {
    BatchSizes,
    /// A count; shown only for models with a response cache.
    CacheCount(fn(&ModelCells) -> &Counter),
    /// A time in microseconds; shown only for models with a response cache.
    CacheMicros(fn(&ModelCells) -> &Counter),
    Count(fn(&ModelCells) -> &Counter),
    /// The engine; shown only for ONNX models.
    Engine,
    Executions,
    Failures,
    /// A number that [`ModelFigures`] already has, summed.
    Figure(fn(&ModelFigures<'_>) -> u64),
    Instances,
    /// The number of requests that may wait; shown only for models with a queue.
    QueueBound,
    /// A time in microseconds; the cells have nanoseconds.
    Micros(fn(&ModelCells) -> &Counter),
    Placement,
    Releases,
    /// Sequences by state; shown only for models that serve sequences.
    Sequences,
    /// Sequences that ended, by reason; shown only for models that serve sequences.
    SequenceEnds,
    /// Requests of sequences that do not exist; shown only for models that serve sequences.
    SequencesUnknown,
    Run,
    /// A histogram of times.
    Times(fn(&LatencyCells) -> &TimeCells),
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

const FAMILIES: [MetricFamily; 30] = [
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
    MetricFamily::counter("deuteron_batches_total", "Batches that left the queue, by reason", MetricValue::Releases),
    MetricFamily::histogram("deuteron_batch_size", "Rows of the batches that ran", MetricValue::BatchSizes),
    MetricFamily::histogram(
        "deuteron_request_duration_seconds",
        "Durations of successful inference requests in seconds (includes cached requests)",
        MetricValue::Times(LatencyCells::request),
    ),
    MetricFamily::histogram(
        "deuteron_queue_duration_seconds",
        "Queue durations of successful inference requests in seconds (includes cached requests)",
        MetricValue::Times(LatencyCells::queue),
    ),
    MetricFamily::histogram(
        "deuteron_run_duration_seconds",
        "Durations in the engine of successful inference requests in seconds (does not include cached requests)",
        MetricValue::Times(LatencyCells::run),
    ),
    MetricFamily::gauge(
        "deuteron_model_placement",
        "Where the instances of the model run: inside the shards or on workers",
        MetricValue::Placement,
    ),
    MetricFamily::gauge(
        "deuteron_model_engine",
        "The engine that runs the ONNX model, and its version",
        MetricValue::Engine,
    ),
    MetricFamily::gauge(
        "deuteron_model_run_seconds",
        "Shortest run of one row, measured when the model was loaded",
        MetricValue::Run,
    ),
    MetricFamily::counter(
        "deuteron_instance_batches_total",
        "Batches that the instance on a worker took",
        MetricValue::Instances,
    ),
    MetricFamily::counter(
        "deuteron_instance_wakes_total",
        "Times a sleeping instance was woken",
        MetricValue::Figure(|model| model.wakes),
    ),
    MetricFamily::counter(
        "deuteron_instance_restarts_total",
        "Instances on workers that were lost and replaced: a process ended, an engine panicked or hung",
        MetricValue::Figure(|model| model.restarts),
    ),
    MetricFamily::gauge(
        "deuteron_queue_requests_max",
        "Requests that may wait for the model (--queue-requests-max, max_queue_size)",
        MetricValue::QueueBound,
    ),
    MetricFamily::counter(
        "deuteron_requests_late_total",
        "Inference requests refused at once because by measured run times they would have been late (--admission)",
        MetricValue::Figure(|model| model.late),
    ),
    MetricFamily::gauge(
        "deuteron_sequences",
        "Sequences that have a slot, and sequences waiting for one",
        MetricValue::Sequences,
    ),
    MetricFamily::counter(
        "deuteron_sequences_ended_total",
        "Sequences that ended, by reason",
        MetricValue::SequenceEnds,
    ),
    MetricFamily::counter(
        "deuteron_sequences_unknown_total",
        "Requests refused because they go on with a sequence that is not known here: behind a balancer, one begun elsewhere",
        MetricValue::SequencesUnknown,
    ),
];

fn encode_model(out: &mut String, family: &MetricFamily, model: &ModelFigures<'_>) {
    let sum = |counter: fn(&ModelCells) -> &Counter| reports::sum(model.cells.iter().map(|cells| counter(cells)));
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
        // As in Triton, the cache's counters belong to those of durations.
        MetricValue::CacheCount(_) | MetricValue::CacheMicros(_) | MetricValue::Micros(_) if model.hides_durations => {}
        MetricValue::CacheCount(counter) | MetricValue::Count(counter) => line(out, "", sum(counter)),
        MetricValue::Engine => {
            if let Some((engine, engine_version)) = model.engine {
                let (engine, engine_version) = (label(engine), label(engine_version));
                line(out, &format!("engine=\"{engine}\",engine_version=\"{engine_version}\","), 1);
            }
        }
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
        MetricValue::QueueBound => {
            model.pending_max.into_iter().for_each(|most| line(out, "", most));
        }
        MetricValue::Run => {
            if let Some(run) = model.run {
                let _ = writeln!(out, "{}{{{}}} {:.9}", family.name, labels(), run.as_secs_f64());
            }
        }
        MetricValue::Times(times) => {
            let cells: Vec<_> = model.cells.iter().map(|cells| times(&cells.latency)).collect();
            histogram::encode_times(out, family.name, &labels(), &cells, model.shows_exemplars);
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
        MetricValue::SequencesUnknown => model.sequences.iter().for_each(|found| line(out, "", found.unknown)),
        MetricValue::Failures => {
            for reason in FailureReason::ALL {
                let failures = model.cells.iter().filter_map(|cells| cells.failure.get(reason as usize));
                line(out, &format!("reason=\"{}\",", reason.label()), reports::sum(failures));
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
    for code in Code::ALL {
        let label = code.label();
        let refused: u64 = shards.iter().filter_map(|cells| cells.refused.get(code as usize)).map(Counter::get).sum();
        refused_total += refused;
        let _ = writeln!(out, "deuteron_requests_refused_total{{reason=\"{label}\"}} {refused}");
    }
    head(
        out,
        "deuteron_http2_calmed_total",
        "counter",
        "HTTP/2 connections closed because the client exceeded a limit",
    );
    for (index, label) in CALMED.iter().enumerate() {
        let count: u64 = shards.iter().filter_map(|cells| cells.calmed.get(index)).map(Counter::get).sum();
        let _ = writeln!(out, "deuteron_http2_calmed_total{{limit=\"{label}\"}} {count}");
    }
    let name = "deuteron_requests_cancelled_total";
    head(out, name, "counter", "Inference requests whose client went away before the answer, by how");
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
    // Derived and not counted, so that the four numbers of one page always add up. Shards go on
    // counting while we sum: an answer may be counted before its request, hence the saturation.
    let in_flight = received.saturating_sub(succeeded + cancelled_total + refused_total);
    single("deuteron_requests_in_flight", "gauge", "Inference requests not answered yet", in_flight);
    let framing = sum(|cells| &cells.framing_errors);
    single("deuteron_framing_errors_total", "counter", "Messages with a framing fault", framing);
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
    connections::encode(out, shards);
    compression::encode(out, shards);
    tls::encode(out, shards);
    keys::encode(out, shards);
}

/// Escapes the value of a label (Prometheus text format 0.0.4).
fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

#[cfg(test)]
mod tests;
