//! What all threads of a server share, grouped by what it is for. Made once by the control thread's plan; nothing here
//! is locked, and what changes later is atomic or a lock-free queue.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::RunMemory;
use crate::backend::custom_metrics::CustomMetrics;
use crate::metrics::{
    GpuBoard, HostCells, LatencyOptions, LoadBoard, ModelCacheCells, ReloadCells, ShardCells, StoreCells, TlsBoard,
};
use crate::policy::{ClientPolicy, ConnectionTimeouts, ConsoleRules, KeepAlivePolicy};
use crate::pressure::MemoryBoard;
use crate::protocol::front_end::FrontEnds;
use crate::protocol::keys::KeyTable;
use crate::queue::cache_link::CacheLink;
use crate::queue::job_pool::JobPool;
use crate::runtime::executor::IoPath;
use crate::shard::control_request::ControlRequests;
use crate::shard::lifecycle::Lifecycle;
use crate::shard::mailbox::{ControlSender, ShardMailbox};
use crate::shard::receive_budget::ProcessReceiveBudget;
use crate::shard::shared_memory::SharedMemoryClient;
use crate::shard::tls_configs::TlsConfigs;
use crate::shard::trace_settings::TraceLink;
use crate::wire::compression::deflate::DeflateLevel;

/// What all threads of a server share.
pub struct ServerContext {
    /// What clients see of the server as a whole.
    pub service: ServiceOptions,
    /// What the operator lets clients do.
    pub policy: RequestPolicy,
    /// What the ports of hosting services serve.
    pub front_ends: FrontEnds,
    /// Limits of connections and of the messages on them.
    pub connection_limits: ConnectionLimits,
    /// How each shard runs.
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
    /// The thread that owns the shared memory regions; none where the server has shared memory disabled.
    pub shared_memory: Option<SharedMemoryClient>,
    /// The way to the Redis that is the response cache; none without one.
    pub redis: Option<Arc<CacheLink>>,
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

/// What clients see of the server as a whole.
pub struct ServiceOptions {
    /// The server's name in its metadata.
    pub id: String,
    /// Whether clients may load and unload models (`--model-control-mode=explicit`).
    pub is_controlled: bool,
    /// Whether one model that is not ready makes the server not ready.
    pub strict_readiness: bool,
    /// Whether every response says where its time went, also where the client did not ask.
    pub tells_timing: bool,
    /// Whether every response reports the load, also where the client did not ask.
    pub tells_load: bool,
    /// Whether answers are tritonserver's where the protocol has others (`--compat=triton`): health by the status alone,
    /// and 500 for mistakes in JSON.
    pub follows_triton: bool,
    /// What the console shows, and to whom.
    pub console: ConsoleRules,
    /// Whether clients may change what is logged.
    pub allows_log_settings: bool,
    /// How long tests hold gRPC's requests and answers back.
    #[cfg(feature = "test-hooks")]
    pub grpc_delays: GrpcDelays,
    /// Requests of a million that the access log shows.
    pub access_log_per_million: u32,
    /// How much time goes into compressing gRPC's inference responses; none where they are not compressed.
    pub grpc_compression: Option<DeflateLevel>,
}

/// How long gRPC's requests and answers are held back, for tests of clients that do not wait so long.
#[cfg(feature = "test-hooks")]
#[derive(Clone, Copy, Debug, Default)]
pub struct GrpcDelays {
    /// The answer to an RPC that is no inference.
    pub answer: Duration,
    /// A `ModelInfer`, before anything is done.
    pub infer: Duration,
    /// Its answer.
    pub infer_answer: Duration,
}

/// What the operator lets clients do, by protocol; the port that a request comes by makes no difference.
#[derive(Default)]
pub struct RequestPolicy {
    /// REST.
    pub http: ClientPolicy,
    /// gRPC.
    pub grpc: ClientPolicy,
    /// Whether what changes the server is served on the Unix socket of `--admin-socket` alone.
    pub is_admin_closed: bool,
}

/// Limits of connections and of the messages on them.
pub struct ConnectionLimits {
    /// Open connections per shard.
    pub connections_max: usize,
    /// Open connections per shard and client address; 0 for any number.
    pub address_connections_max: usize,
    /// How long connections wait for their clients.
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
    /// How long a handshake may take.
    pub handshake_timeout: Duration,
    /// Handshakes in progress per shard.
    pub handshakes_max: usize,
    /// What the metrics show of the certificates.
    pub board: Arc<TlsBoard>,
}

/// The clients with API keys.
#[derive(Default)]
pub struct KeyOptions {
    /// Those at start, where clients need keys; later ones come by the mailboxes.
    pub initial: Option<Arc<KeyTable>>,
    /// Changes of their file.
    pub reloads: Arc<ReloadCells>,
}

/// How each shard runs.
pub struct RuntimeOptions {
    /// Which kernel interface the sockets use.
    pub io: IoPath,
    /// How long a drain waits for open connections.
    pub exit_timeout: Duration,
}

/// Memory that all shards divide among themselves.
pub struct MemoryBudgets {
    /// For requests while they are received and decoded.
    pub receive: Arc<ProcessReceiveBudget>,
    /// Bytes of the response cache over all shards; 0 for no cache.
    pub cache_size: usize,
    /// What is to be given up as the memory of the process fills.
    pub board: MemoryBoard,
}

/// The counters behind the metrics endpoint.
pub struct MetricsSources {
    /// One per shard, in the order of their indexes.
    pub shard_cells: Vec<Arc<ShardCells>>,
    /// Figures of the machine.
    pub host: Arc<HostCells>,
    /// The load, for balancers.
    pub load: LoadBoard,
    /// How often the load is looked at.
    pub interval: Duration,
    /// Which latencies are shown.
    pub latencies: LatencyOptions,
    /// The models that are loaded on demand.
    pub model_cache: ModelCacheCells,
    /// Figures of the GPUs.
    pub gpus: Arc<GpuBoard>,
    /// What models count by themselves.
    pub custom: Arc<CustomMetrics>,
    /// What runs of the embedded engine may take, and how many were refused.
    pub run_memory: Arc<RunMemory>,
}

/// The queues between the shards and the control thread.
pub struct ControlLink {
    /// To the control thread.
    pub control: ControlSender,
    /// Bounds the control requests of clients.
    pub requests: ControlRequests,
    /// How long a request waits for a model that is loaded on demand; none where none are.
    pub model_wait: Option<Duration>,
    /// Bounds the requests that do.
    pub waits: ControlRequests,
    /// From the control thread: one mailbox per shard.
    pub mailboxes: Box<[ShardMailbox]>,
}
