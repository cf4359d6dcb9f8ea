//! How a server was asked to run: plain values, read from the command line and the environment and never changed after.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use crate::limits;
use crate::policy::{AdmissionRule, ClientPolicy, ConnectionTimeouts, ConsoleAudience, KeepAlivePolicy};
use crate::settings::{
    BackendConfig, CacheSettings, ForeignSettings, MetricsConfig, Secret, StoreSettings, TlsSettings, TraceSettings,
};

/// How a server was asked to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The file that flags were read from too.
    pub config_file: Option<PathBuf>,
    /// What that file said then: it may have secrets, and may change.
    pub config_text: Option<Secret>,
    /// Directories of models, one model's own directory, ONNX files, or URLs of stores ([`super::StoreUrl`]).
    pub repositories: Vec<PathBuf>,
    /// What holds for stores.
    pub stores: StoreSettings,
    /// The name of the only model, where a path holds one.
    pub model_name: Option<String>,
    /// The configuration that models have by this name instead of their usual one.
    pub model_config_name: Option<String>,
    /// Where HTTP is served; `None` where it is not.
    pub http: Option<(IpAddr, u16)>,
    /// Where gRPC is served; `None` where it is not.
    pub grpc: Option<(IpAddr, u16)>,
    /// Where metrics are served; `None` where they are not.
    pub metrics: Option<(IpAddr, u16)>,
    /// Where the addresses are written when the server is ready.
    pub ready_file: Option<PathBuf>,
    /// Whether it drains when its standard input ends.
    pub exits_with_stdin: bool,
    /// What hosts and tests of tritonserver ask for.
    pub foreign: ForeignSettings,
    /// The server's name in its metadata.
    pub id: String,
    /// Shards; `None` for one on every core that the workers leave.
    pub shards: Option<usize>,
    /// The cores of the workers; `None` for those that the shards leave.
    pub worker_cores: Option<Vec<usize>>,
    /// Cores by the name of the host policy that a configuration may refer to.
    pub host_policies: BTreeMap<String, Vec<usize>>,
    /// Which instances may run at the same time.
    pub rate_limit: RateSettings,
    /// When models are loaded and unloaded.
    pub control_mode: ControlMode,
    /// How often the repositories are looked at, with [`ControlMode::Poll`].
    pub repository_poll: Duration,
    /// The models that are loaded at start, with [`ControlMode::Explicit`]; `*` is all.
    pub load_models: Vec<String>,
    /// Models that load at a time.
    pub load_threads: usize,
    /// What holds for all repositories.
    pub repository_rules: RepositoryRules,
    /// Which loads are tried in a process of their own first; where it is not given, all if a model that fails to load
    /// at start does not end the server, else those after the start.
    pub trial_loads: Option<TrialLoads>,
    /// Where the engines of ONNX models are that do not say it.
    pub model_isolation: Isolation,
    /// Where Triton's backends run that do not say it themselves.
    pub backend_isolation: Isolation,
    /// How long such a trial may take; zero for any time.
    pub load_timeout: Duration,
    /// Bytes of data that its process may have; as many as this process where it is not given.
    pub load_memory_bytes_max: Option<usize>,
    /// Where models are loaded when they are first asked for; none where all are, or none, at start.
    pub model_cache: ModelCacheSettings,
    /// Whether a model that fails to load ends the server.
    pub exit_on_error: bool,
    /// Whether the server listens before its models are loaded.
    pub listens_first: bool,
    /// Whether one model that is not ready makes the server not ready.
    pub strict_readiness: bool,
    /// Whether what a configuration leaves out is taken from the model file.
    pub auto_complete: bool,
    /// What to tell of the flags when the server starts.
    pub warnings: Vec<String>,
    /// Settings of the backends.
    pub backend_config: BackendConfig,
    /// The directory of Python-based backends; it need not exist.
    pub backend_directory: PathBuf,
    /// Whether a load request may bring files that hold code.
    pub allows_model_code_upload: bool,
    /// What the metrics show.
    pub metrics_config: MetricsConfig,
    /// Who is shown the console.
    pub console: ConsoleAudience,
    /// The response cache.
    pub cache: CacheSettings,
    /// How long the server serves on after a signal, and says that it is not ready, until it drains.
    pub drain_delay: Duration,
    /// How long a drain waits for what is in flight.
    pub exit_timeout: Duration,
    /// From when on, after a signal, a second one ends the server at once; where it is not given, a second later, and
    /// never with [`Compat::Triton`].
    pub second_signal_after: Option<Duration>,
    /// How long a run of a model may take; zero for any time.
    pub run_timeout: Duration,
    /// Bytes of an HTTP body.
    pub http_input_size_max: usize,
    /// Bytes of a gRPC message; where it is not given, 64 MiB, and as tritonserver with [`Compat::Triton`].
    pub grpc_message_size_max: Option<usize>,
    /// Whether gRPC's inference responses are compressed, and how much.
    pub grpc_compression: ResponseCompression,
    /// Requests that may wait for one model version.
    pub queue_requests_max: usize,
    /// Bytes that may wait for one model version.
    pub queue_bytes_max: usize,
    /// Bytes of memory that the process may have; those of its control group or of the machine where it is not given.
    pub memory_limit: Option<usize>,
    /// Bytes of memory for requests that come in; a part of what the process may have where it is not given.
    pub receive_memory_bytes_max: Option<usize>,
    /// Bytes of state that one instance keeps for its sequences.
    pub sequence_state_bytes_max: usize,
    /// Bytes that a run of the embedded engine may take; a part of what the process may have where it is not given.
    pub run_memory_bytes_max: Option<usize>,
    /// Bytes of one region between the server and one Python process; a part of what this process may have where it is
    /// not given.
    pub python_memory_bytes_max: Option<usize>,
    /// Whether GPUs are used at all.
    pub gpu: GpuUse,
    /// Whether models run on GPUs whose configuration leaves that open.
    pub uses_gpu_unasked: bool,
    /// Bytes that are taken of the memory of each GPU.
    pub gpu_memory_bytes_max: usize,
    /// How long a batch may take on a GPU.
    pub gpu_run_max: Duration,
    /// Bytes of the host's memory that GPUs read and write by themselves.
    pub pinned_memory_bytes_max: usize,
    /// Regions of shared memory that clients register.
    pub client_shm: ClientShm,
    /// Which requests are refused at once.
    pub admission: AdmissionRule,
    /// What clients may do over REST.
    pub http_policy: ClientPolicy,
    /// What they may do over gRPC.
    pub grpc_policy: ClientPolicy,
    /// How many connections there may be, and how long they wait.
    pub connections: ConnectionSettings,
    /// Streams of one HTTP/2 connection.
    pub http2_streams_max: u32,
    /// Streams that its client may reset in a while.
    pub http2_resets_max: u32,
    /// Frames that move nothing which its client may send in a while.
    pub http2_control_frames_max: u32,
    /// PINGs and age of connections with gRPC calls.
    pub grpc_keep_alive: KeepAlivePolicy,
    /// Which ports have TLS.
    pub tls: TlsSettings,
    /// The file of API keys, where clients need one.
    pub api_keys_file: Option<PathBuf>,
    /// The path of the Unix socket that alone serves what changes the server.
    pub admin_socket: Option<PathBuf>,
    /// The way of the sockets.
    pub io: Io,
    /// How long a shard looks for work before it sleeps.
    pub spin: SpinTime,
    /// Whether every answer says where its time went, and not only those to clients that ask.
    pub tells_timing: bool,
    /// Whom the answers follow where the protocol and tritonserver differ.
    pub compat: Compat,
    /// What is logged.
    pub log: LogSettings,
    /// The file that the log goes to; `None` for standard error.
    pub log_file: Option<PathBuf>,
    /// Requests of a million that the access log shows, chosen by chance.
    pub access_log_per_million: u32,
    /// Whether clients may change what is logged; where it is not given, as tritonserver with [`Compat::Triton`].
    pub allows_log_settings: Option<bool>,
    /// Which requests are traced, and where traces go.
    pub trace: TraceSettings,
}

/// Regions of shared memory that clients register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientShm {
    /// Whether they may.
    pub is_allowed: bool,
    /// Bytes of inputs that one request may have in them.
    pub bytes_max: usize,
}

/// The bounds of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionSettings {
    /// Connections of one shard.
    pub count_max: usize,
    /// Connections of one shard from one client address; 0 for any number.
    pub address_count_max: usize,
    /// How long they wait for their clients.
    pub timeouts: ConnectionTimeouts,
}

impl Default for ConnectionSettings {
    fn default() -> Self {
        Self {
            count_max: limits::CONNECTIONS_MAX,
            address_count_max: limits::ADDRESS_CONNECTIONS_MAX,
            timeouts: ConnectionTimeouts::default(),
        }
    }
}

/// How much there is of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateResource {
    /// Its name.
    pub name: String,
    /// How much.
    pub count: u64,
    /// On which device; `None` for each.
    pub device: Option<u32>,
}

/// When models are loaded and unloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlMode {
    /// All at start, and never again.
    None,
    /// All at start, and whenever the repositories change.
    Poll,
    /// Those that a flag names at start, and what clients ask for.
    Explicit,
}

/// Models that are loaded when they are first asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelCacheSettings {
    /// Bytes that they may take together; none where models are not loaded so.
    pub size_max: Option<u64>,
    /// How long a request waits for its model.
    pub wait: Duration,
}

impl Default for ModelCacheSettings {
    fn default() -> Self {
        Self { size_max: None, wait: limits::MODEL_WAIT }
    }
}

/// Which loads are tried in a process of their own first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrialLoads {
    /// Those while the server serves.
    AfterStart,
    /// All.
    All,
    /// None.
    Off,
}

/// Where the engine of a model is (`--model-isolation`, the parameter `isolation`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// In the server.
    None,
    /// In a process for each instance.
    Process,
}

impl Isolation {
    /// By the name that the flag and the parameter have.
    ///
    /// # Errors
    /// What was expected.
    pub fn from_name(name: &str) -> Result<Self, String> {
        match name {
            "none" => Ok(Self::None),
            "process" => Ok(Self::Process),
            _ => Err("expected 'none' or 'process'".to_owned()),
        }
    }
}

/// How much time goes into compressing responses (`--grpc-infer-response-compression-level`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseCompression {
    /// None: they are sent as they are.
    None,
    /// Little.
    Low,
    /// More.
    Medium,
    /// As much as there is.
    High,
}

/// Whom the answers follow where the protocol and tritonserver differ (`--compat`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compat {
    /// The protocol.
    Protocol,
    /// tritonserver, in what its scripts look at: health has no body, and the server its name.
    Triton,
}

/// Whether GPUs are used (`--gpu`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuUse {
    /// By the models that ask for one, which are refused where there is none.
    Auto,
    /// By none: models that ask for one run on the CPU.
    Off,
    /// As [`GpuUse::Auto`], and the server does not start without one.
    Require,
}

/// The way of the sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Io {
    /// Our own ring where the kernel has what it needs, else epoll.
    Auto,
    /// Readiness and system calls.
    Epoll,
    /// glommio's sockets.
    Glommio,
    /// Our own ring, or nothing.
    Ring,
}

/// How long a shard looks for work before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpinTime {
    /// As long as it pays, where the shard has its core to itself.
    Auto,
    /// Always so long.
    Fixed(Duration),
}

/// What is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// Lines of level info.
    pub info: bool,
    /// Warnings.
    pub warning: bool,
    /// Errors.
    pub error: bool,
    /// 0 for none; from 1 what each model's load did, and a line for each request.
    pub verbose: u32,
    /// The form of a line.
    pub format: LogFormat,
}

impl LogSettings {
    /// Nothing is logged.
    pub const SILENT: Self = Self { info: false, warning: false, error: false, verbose: 0, format: LogFormat::Default };
}

impl Default for LogSettings {
    fn default() -> Self {
        Self { info: true, warning: true, error: true, ..Self::SILENT }
    }
}

/// The form of a line of the log (`--log-format`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// tritonserver's: `I0520 20:03:25.829575 3355 server/mod.rs:310] "text"`.
    Default,
    /// tritonserver's other: `2026-05-20T20:03:25Z I 3355 server/mod.rs:310] "text"`.
    Iso8601,
    /// One JSON object.
    Json,
}

impl LogFormat {
    /// All, with their names.
    pub const NAMES: [(&str, Self); 3] = [("default", Self::Default), ("ISO8601", Self::Iso8601), ("json", Self::Json)];
}

/// Every address of the machine.
const EVERYWHERE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// The rate limiter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateSettings {
    /// Whether instances run only with their resources in hand (`--rate-limit=execution_count`).
    pub is_on: bool,
    /// How much there is of what resources; where none is named, as much as one instance needs.
    pub resources: Vec<RateResource>,
}

/// What holds for the models of all repositories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RepositoryRules {
    /// How often the load of a version that failed is tried again.
    pub load_retries: usize,
    /// Whether each repository is a namespace of models (`--model-namespacing`).
    pub has_namespaces: bool,
}

impl Settings {
    /// Whether models are loaded when somebody asks for them, and at start only those that a flag names.
    pub fn loads_when_asked(&self) -> bool {
        self.control_mode == ControlMode::Explicit || self.model_cache.size_max.is_some()
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            config_file: None,
            config_text: None,
            repositories: Vec::new(),
            stores: StoreSettings::default(),
            model_name: None,
            model_config_name: None,
            http: Some((EVERYWHERE, 8000)),
            grpc: Some((EVERYWHERE, 8001)),
            metrics: Some((EVERYWHERE, 8002)),
            ready_file: None,
            exits_with_stdin: false,
            foreign: ForeignSettings::default(),
            id: "deuteron".to_owned(),
            shards: None,
            worker_cores: None,
            host_policies: BTreeMap::new(),
            rate_limit: RateSettings::default(),
            control_mode: ControlMode::None,
            repository_poll: limits::REPOSITORY_POLL,
            load_models: Vec::new(),
            load_threads: limits::MODEL_LOAD_THREADS,
            repository_rules: RepositoryRules::default(),
            trial_loads: None,
            model_isolation: Isolation::None,
            backend_isolation: Isolation::None,
            load_timeout: limits::LOAD_TIMEOUT,
            load_memory_bytes_max: None,
            model_cache: ModelCacheSettings::default(),
            exit_on_error: true,
            listens_first: false,
            strict_readiness: true,
            auto_complete: true,
            warnings: Vec::new(),
            backend_config: BackendConfig::default(),
            backend_directory: PathBuf::from("/opt/tritonserver/backends"),
            allows_model_code_upload: false,
            metrics_config: MetricsConfig::default(),
            console: ConsoleAudience::default(),
            cache: CacheSettings::default(),
            drain_delay: Duration::ZERO,
            exit_timeout: limits::EXIT_TIMEOUT,
            second_signal_after: None,
            run_timeout: limits::RUN_TIMEOUT,
            http_input_size_max: limits::BODY_SIZE_MAX,
            grpc_message_size_max: None,
            grpc_compression: ResponseCompression::None,
            queue_requests_max: limits::QUEUE_REQUESTS_MAX,
            queue_bytes_max: limits::QUEUE_BYTES_MAX,
            memory_limit: None,
            receive_memory_bytes_max: None,
            sequence_state_bytes_max: limits::SEQUENCE_STATE_BYTES_MAX,
            run_memory_bytes_max: None,
            python_memory_bytes_max: None,
            gpu: GpuUse::Auto,
            uses_gpu_unasked: false,
            gpu_memory_bytes_max: limits::GPU_MEMORY_BYTES_MAX,
            gpu_run_max: limits::GPU_RUN_MAX,
            pinned_memory_bytes_max: limits::PINNED_MEMORY_BYTES_MAX,
            client_shm: ClientShm { is_allowed: false, bytes_max: limits::SHARED_MEMORY_BYTES_MAX },
            admission: AdmissionRule::default(),
            http_policy: ClientPolicy::default(),
            grpc_policy: ClientPolicy::default(),
            connections: ConnectionSettings::default(),
            http2_streams_max: limits::STREAMS_MAX,
            http2_resets_max: limits::CLIENT_RESETS_MAX,
            http2_control_frames_max: limits::CONTROL_FRAMES_MAX,
            grpc_keep_alive: KeepAlivePolicy::default(),
            tls: TlsSettings::default(),
            api_keys_file: None,
            admin_socket: None,
            io: Io::Auto,
            spin: SpinTime::Auto,
            tells_timing: false,
            compat: Compat::Protocol,
            log: LogSettings::default(),
            log_file: None,
            access_log_per_million: 0,
            allows_log_settings: None,
            trace: TraceSettings::default(),
        }
    }
}

/// The form of a configuration that is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConfigForm {
    /// As `GET /v2/models/M/config` answers.
    Json,
    /// As a `config.pbtxt`.
    #[default]
    Pbtxt,
    /// As a `config.toml`.
    Toml,
}
