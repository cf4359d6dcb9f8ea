//! The state that all threads of a server share, grouped by purpose. Made once by the control
//! thread's plan; nothing here is locked, and parts that change later are atomic or a lock-free
//! queue.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::RunMemory;
use crate::backend::custom_metrics::CustomMetrics;
use crate::metrics::{
    GpuBoard, HostCells, LatencyOptions, LoadBoard, ModelCacheCells, ReloadCells, ShardCells, StoreCells,
    TeiBatchCells, TlsBoard,
};
use crate::policy::{ClientPolicy, ConnectionTimeouts, ConsoleRules, KeepAlivePolicy};
use crate::pressure::{MemoryBoard, MemoryStep};
use crate::protocol::front_end::FrontEnds;
use crate::protocol::keys::KeyTable;
use crate::queue::cache_link::CacheLink;
use crate::queue::job_pool::JobPool;
use crate::runtime::executor::IoPath;
use crate::shard::connections::receive_budget::ProcessReceiveBudget;
use crate::shard::connections::tls_configs::TlsConfigs;
use crate::shard::lifecycle::Lifecycle;
use crate::shard::mailbox::{ControlSender, ShardMailbox};
use crate::shard::services::control_request::ControlRequests;
use crate::shard::services::shared_memory::SharedMemoryClient;
use crate::shard::services::trace_settings::TraceLink;
use crate::wire::compression::deflate::DeflateLevel;

/// The state that all threads of a server share.
pub struct ServerContext {
    /// The options of the server as a whole that clients see.
    pub service: ServiceOptions,
    /// The operator's limits on clients' requests.
    pub policy: RequestPolicy,
    /// The paths on the ports of hosting services.
    pub front_ends: FrontEnds,
    /// Limits of connections and of the messages on them.
    pub connection_limits: ConnectionLimits,
    /// The options of each shard's runtime.
    pub runtime: RuntimeOptions,
    /// Memory that all shards divide among themselves.
    pub memory: Arc<MemoryBudgets>,
    /// The counters behind the metrics endpoint.
    pub metrics: MetricsSources,
    /// Threads for work that would hold a shard for long.
    pub jobs: JobPool,
    /// Starting, serving or draining.
    pub lifecycle: Lifecycle,
    /// The queues between the shards and the control thread.
    pub control_link: ControlLink,
    /// The thread that owns the shared memory regions; `None` if shared memory is disabled.
    pub shared_memory: Option<SharedMemoryClient>,
    /// The link to the Redis or the library that is the response cache; `None` without one.
    pub shared_cache: Option<Arc<CacheLink>>,
    /// The figures of the stores that models come from.
    pub stores: Vec<Arc<StoreCells>>,
    /// The TLS of the ports that have it.
    pub tls: TlsOptions,
    /// The clients with API keys.
    pub keys: KeyOptions,
    /// The trace settings, and the queue to the thread that writes traces.
    pub traces: TraceLink,
    /// Logs a warning.
    pub warn: fn(&str),
}

/// The facts of a shard that its parts share.
#[derive(Clone)]
pub struct ShardContext {
    /// The shard's place among the shards.
    pub index: usize,
    /// The state that all threads share.
    pub server: Arc<ServerContext>,
    /// The shard's counters.
    pub cells: Arc<ShardCells>,
}

impl ShardContext {
    /// Those of the shard of this index.
    pub fn new(server: &Arc<ServerContext>, index: usize) -> Self {
        let cells = server.metrics.shard_cells.get(index).map(Arc::clone).unwrap_or_default();
        Self { index, server: Arc::clone(server), cells }
    }
}

/// The options of the server as a whole that clients see.
pub struct ServiceOptions {
    /// The server's name in its metadata.
    pub id: String,
    /// True if clients may load and unload models (`--model-control-mode=explicit`).
    pub is_controlled: bool,
    /// True if one model that is not ready makes the server not ready.
    pub strict_readiness: bool,
    /// True if every response reports its timing, even if the client did not ask.
    pub tells_timing: bool,
    /// True if every response reports the load, even if the client did not ask.
    pub tells_load: bool,
    /// True if answers are tritonserver's where the protocol has others (`--compat=triton`): health
    /// by the status alone, and 500 for mistakes in JSON.
    pub follows_triton: bool,
    /// The rules of the console: its contents and its audience.
    pub console: ConsoleRules,
    /// True if clients may change the log settings.
    pub allows_log_settings: bool,
    /// The times for which tests delay gRPC's requests and answers.
    #[cfg(feature = "test-hooks")]
    pub grpc_delays: GrpcDelays,
    /// Requests of a million that the access log shows.
    pub access_log_per_million: u32,
    /// The level at which gRPC's inference responses are compressed; `None` if they are not
    /// compressed.
    pub grpc_compression: Option<DeflateLevel>,
}

/// The delays of gRPC's requests and answers, for tests of clients with short timeouts.
#[cfg(feature = "test-hooks")]
#[derive(Clone, Copy, Debug, Default)]
pub struct GrpcDelays {
    /// The answer to an RPC that is not an inference.
    pub answer: Duration,
    /// A `ModelInfer`, before anything is done.
    pub infer: Duration,
    /// Its answer.
    pub infer_answer: Duration,
}

/// The operator's limits on clients' requests, by protocol; the port that a request comes by makes
/// no difference.
#[derive(Default)]
pub struct RequestPolicy {
    /// REST.
    pub http: ClientPolicy,
    /// gRPC.
    pub grpc: ClientPolicy,
    /// True if changes of the server are served only on the Unix socket of `--admin-socket`.
    pub is_admin_closed: bool,
}

/// Limits of connections and of the messages on them.
pub struct ConnectionLimits {
    /// Open connections per shard.
    pub connections_max: usize,
    /// Open connections per shard and client address; 0 for no limit.
    pub address_connections_max: usize,
    /// The timeouts of connections that wait for their clients.
    pub timeouts: ConnectionTimeouts,
    /// Bytes of one HTTP body.
    pub http_input_size_max: usize,
    /// Bytes of one gRPC message.
    pub grpc_message_size_max: usize,
    /// Open streams per HTTP/2 connection.
    pub http2_streams_max: u32,
    /// Streams that a client may reset within one counting window.
    pub http2_resets_max: u32,
    /// Frames without payload (PING, SETTINGS, empty DATA) that a client may send within one counting window.
    pub http2_control_frames_max: u32,
    /// PINGs and age of connections with gRPC calls.
    pub keep_alive: KeepAlivePolicy,
}

/// The TLS of the ports that have it.
#[derive(Default)]
pub struct TlsOptions {
    /// The configurations at start; later ones come by the mailboxes.
    pub initial: Arc<TlsConfigs>,
    /// The timeout of a handshake.
    pub handshake_timeout: Duration,
    /// Handshakes in progress per shard.
    pub handshakes_max: usize,
    /// The figures of the certificates for the metrics.
    pub board: Arc<TlsBoard>,
}

/// The clients with API keys.
#[derive(Default)]
pub struct KeyOptions {
    /// The clients at start, if they need keys; later ones come by the mailboxes.
    pub initial: Option<Arc<KeyTable>>,
    /// Changes of their file.
    pub reloads: Arc<ReloadCells>,
}

/// The options of each shard's runtime.
pub struct RuntimeOptions {
    /// The kernel interface that the sockets use.
    pub io: IoPath,
    /// The time that a drain waits for open connections.
    pub exit_timeout: Duration,
}

/// Memory that all shards divide among themselves.
pub struct MemoryBudgets {
    /// For requests while they are received and decoded.
    pub receive: Arc<ProcessReceiveBudget>,
    /// Bytes of the response cache over all shards; 0 for no cache.
    pub cache_size: usize,
    /// The memory to be given up as that of the process fills.
    pub board: MemoryBoard,
}

impl MemoryBudgets {
    /// Returns true if this is given up now.
    pub fn gives_up(&self, step: MemoryStep) -> bool {
        self.board.gives_up(step)
    }
}

/// The counters behind the metrics endpoint.
pub struct MetricsSources {
    /// One per shard, in the order of their indexes.
    pub shard_cells: Vec<Arc<ShardCells>>,
    /// Figures of the machine.
    pub host: Arc<HostCells>,
    /// The load, for balancers.
    pub load: LoadBoard,
    /// The interval at which the load is measured.
    pub interval: Duration,
    /// The latencies that are shown.
    pub latencies: LatencyOptions,
    /// The models that are loaded on demand.
    pub model_cache: ModelCacheCells,
    /// Figures of the GPUs.
    pub gpus: Arc<GpuBoard>,
    /// The metrics that models define.
    pub custom: Arc<CustomMetrics>,
    /// The memory that runs of the embedded engine may take, and the number of refused runs.
    pub run_memory: Arc<RunMemory>,
    /// The runs of text models (`--compat=tei`); `None` if they are not shown.
    pub text_batches: Option<Arc<TeiBatchCells>>,
}

/// The queues between the shards and the control thread.
pub struct ControlLink {
    /// To the control thread.
    pub control: ControlSender,
    /// Bounds the control requests of clients.
    pub requests: ControlRequests,
    /// The time that a request waits for a model that is loaded on demand; `None` if models are not
    /// loaded on demand.
    pub model_wait: Option<Duration>,
    /// Bounds the requests that wait so.
    pub waits: ControlRequests,
    /// From the control thread: one mailbox per shard.
    pub mailboxes: Box<[ShardMailbox]>,
}
