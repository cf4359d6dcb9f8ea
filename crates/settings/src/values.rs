//! The settings of a server: plain values, read from the command line and the environment and never
//! changed after.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use crate::{
    BackendConfig, CacheSettings, ForeignSettings, MetricsConfig, Secret, StoreSettings, TlsSettings, TraceSettings,
};
use base::limits;
use base::policy::{AdmissionRule, ClientPolicy, ConnectionTimeouts, ConsoleAudience, KeepAlivePolicy};

/// The settings of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The file that flags were read from too.
    pub config_file: Option<PathBuf>,
    /// The text of that file at that time: it may have secrets, and may change.
    pub config_text: Option<Secret>,
    /// Directories of models, one model's own directory, ONNX files, or URLs of stores ([`super::StoreUrl`]).
    pub repositories: Vec<PathBuf>,
    /// The settings of stores.
    pub stores: StoreSettings,
    /// The name of the only model, if a path holds one.
    pub model_name: Option<String>,
    /// The configuration that models have by this name instead of their usual one.
    pub model_config_name: Option<String>,
    /// The address of HTTP; `None` if it is not served.
    pub http: Option<(IpAddr, u16)>,
    /// The address of gRPC; `None` if it is not served.
    pub grpc: Option<(IpAddr, u16)>,
    /// The address of metrics; `None` if they are not served.
    pub metrics: Option<(IpAddr, u16)>,
    /// The file that the addresses are written to when the server is ready.
    pub ready_file: Option<PathBuf>,
    /// True if it drains when its standard input ends.
    pub exits_with_stdin: bool,
    /// Settings that hosts and tests of tritonserver need.
    pub foreign: ForeignSettings,
    /// The server's name in its metadata.
    pub id: String,
    /// Shards; `None` for one on every core that the workers leave.
    pub shards: Option<usize>,
    /// The cores of the workers; `None` for those that the shards leave.
    pub worker_cores: Option<Vec<usize>>,
    /// Cores by the name of the host policy that a configuration may refer to.
    pub host_policies: BTreeMap<String, Vec<usize>>,
    /// All settings of these policies as they were given: hosted backends get them.
    pub host_policy_settings: BTreeMap<String, BTreeMap<String, String>>,
    /// The rule for instances that run at the same time.
    pub rate_limit: RateSettings,
    /// The times at which models are loaded and unloaded.
    pub control_mode: ControlMode,
    /// The interval at which the repositories are scanned, with [`ControlMode::Poll`].
    pub repository_poll: Duration,
    /// The models that are loaded at start, with [`ControlMode::Explicit`]; `*` is all.
    pub load_models: Vec<String>,
    /// Models that load at a time.
    pub load_threads: usize,
    /// The rules of all repositories.
    pub repository_rules: RepositoryRules,
    /// The loads that are tried in a process of their own first; if not given, all if a model that
    /// fails to load at start does not end the server, else those after the start.
    pub trial_loads: Option<TrialLoads>,
    /// The place of the engines of ONNX models that do not choose.
    pub model_isolation: Isolation,
    /// The place of Triton's backends that do not choose.
    pub backend_isolation: Isolation,
    /// The time that such a trial may take; zero for any time.
    pub load_timeout: Duration,
    /// Bytes of data that its process may have; as many as this process if not given.
    pub load_memory_bytes_max: Option<usize>,
    /// The settings of models that are loaded on demand, if any are.
    pub model_cache: ModelCacheSettings,
    /// True if a model that fails to load ends the server.
    pub exit_on_error: bool,
    /// True if the server listens before its models are loaded.
    pub listens_first: bool,
    /// True if a model is refused whose engine lacks an execution accelerator that it names.
    pub strict_accelerators: bool,
    /// True if one model that is not ready makes the server not ready.
    pub strict_readiness: bool,
    /// True if fields that a configuration leaves out are taken from the model file.
    pub auto_complete: bool,
    /// True if the `steps.json` of a version is used.
    pub uses_steps: bool,
    /// True if the rows of a large request run on several idle instances.
    pub splits_rows: bool,
    /// Warnings about the flags, for the start of the server.
    pub warnings: Vec<String>,
    /// Settings of the backends.
    pub backend_config: BackendConfig,
    /// The directory of Python-based backends; it need not exist.
    pub backend_directory: PathBuf,
    /// True if a load request may bring files that hold code.
    pub allows_model_code_upload: bool,
    /// True if configurations may name repository agents that are libraries.
    pub allows_agents: bool,
    /// The directory of these agents.
    pub repoagent_directory: PathBuf,
    /// The directory of response caches that are libraries.
    pub cache_directory: PathBuf,
    /// The contents of the metrics.
    pub metrics_config: MetricsConfig,
    /// The audience of the console.
    pub console: ConsoleAudience,
    /// The response cache.
    pub cache: CacheSettings,
    /// The time for which the server serves on after a signal, and says that it is not ready, until
    /// it drains.
    pub drain_delay: Duration,
    /// The time that a drain waits for requests in flight.
    pub exit_timeout: Duration,
    /// From when on, after a signal, a second one ends the server at once; where it is not given, a second later, and
    /// never with [`Compat::Triton`].
    pub second_signal_after: Option<Duration>,
    /// Time limit of a model's run; zero for none.
    pub run_timeout: Duration,
    /// Bytes of an HTTP body.
    pub http_input_size_max: usize,
    /// Bytes of a gRPC message; if not given, 64 MiB, and as tritonserver with [`Compat::Triton`].
    pub grpc_message_size_max: Option<usize>,
    /// The compression of gRPC's inference responses.
    pub grpc_compression: ResponseCompression,
    /// Requests that may wait for one model version.
    pub queue_requests_max: usize,
    /// Bytes that may wait for one model version.
    pub queue_bytes_max: usize,
    /// Bytes of memory that the process may have; those of its control group or of the machine if
    /// not given.
    pub memory_limit: Option<usize>,
    /// Bytes of memory for requests that come in; a part of the process's memory if not given.
    pub receive_memory_bytes_max: Option<usize>,
    /// Bytes of state that one instance keeps for its sequences.
    pub sequence_state_bytes_max: usize,
    /// Bytes that a run of the embedded engine may take; a part of the process's memory if not
    /// given.
    pub run_memory_bytes_max: Option<usize>,
    /// Bytes of one region between the server and one Python process; a part of this process's
    /// memory if not given.
    pub python_memory_bytes_max: Option<usize>,
    /// The use of GPUs.
    pub gpu: GpuUse,
    /// True if models run on GPUs whose configuration leaves that open.
    pub uses_gpu_unasked: bool,
    /// Bytes that are taken of the memory of each GPU.
    pub gpu_memory_bytes_max: usize,
    /// The time that a batch may take on a GPU.
    pub gpu_run_max: Duration,
    /// Bytes of the host's memory that GPUs read and write by themselves.
    pub pinned_memory_bytes_max: usize,
    /// Regions of shared memory that clients register.
    pub client_shm: ClientShm,
    /// The rule by which requests are refused at once.
    pub admission: AdmissionRule,
    /// The policy for clients over REST.
    pub http_policy: ClientPolicy,
    /// The policy for clients over gRPC.
    pub grpc_policy: ClientPolicy,
    /// The bounds of connections, and their timeouts.
    pub connections: ConnectionSettings,
    /// Streams of one HTTP/2 connection.
    pub http2_streams_max: u32,
    /// Streams that its client may reset in a while.
    pub http2_resets_max: u32,
    /// Frames without data that its client may send in a while.
    pub http2_control_frames_max: u32,
    /// PINGs and age of connections with gRPC calls.
    pub grpc_keep_alive: KeepAlivePolicy,
    /// The ports that have TLS.
    pub tls: TlsSettings,
    /// The file of API keys, if clients need one.
    pub api_keys_file: Option<PathBuf>,
    /// The path of the Unix socket that alone serves changes of the server.
    pub admin_socket: Option<PathBuf>,
    /// The I/O path of the sockets.
    pub io: Io,
    /// The time for which a shard looks for work before it sleeps.
    pub spin: SpinTime,
    /// The cores of threads that have some of their own.
    pub pinning: Pinning,
    /// True if every answer reports its timing, and not only those to clients that ask.
    pub tells_timing: bool,
    /// The model of the answers if the protocol and tritonserver differ.
    pub compat: Compat,
    /// The levels and format of the log.
    pub log: LogSettings,
    /// The file that the log goes to; `None` for standard error.
    pub log_file: Option<PathBuf>,
    /// Requests of a million that the access log shows, chosen by chance.
    pub access_log_per_million: u32,
    /// True if clients may change the levels and format of the log; if not given, as tritonserver
    /// with [`Compat::Triton`].
    pub allows_log_settings: Option<bool>,
    /// The requests that are traced, and the destination of traces.
    pub trace: TraceSettings,
}

/// Regions of shared memory that clients register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientShm {
    /// True if they may.
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
    /// Their timeouts.
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

/// The supply of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateResource {
    /// Its name.
    pub name: String,
    /// The supply.
    pub count: u64,
    /// The device; `None` for each.
    pub device: Option<u32>,
}

/// The times at which models are loaded and unloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlMode {
    /// All at start, and never again.
    None,
    /// All at start, and on every change of the repositories.
    Poll,
    /// Those that a flag names at start, and those that clients ask for.
    Explicit,
}

/// The settings of models that are loaded on demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelCacheSettings {
    /// Bytes that they may take together; `None` if models are not loaded on demand.
    pub size_max: Option<u64>,
    /// The time that a request waits for its model.
    pub wait: Duration,
}

impl Default for ModelCacheSettings {
    fn default() -> Self {
        Self { size_max: None, wait: limits::MODEL_WAIT }
    }
}

/// The loads that are tried in a process of their own first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrialLoads {
    /// Those while the server serves.
    AfterStart,
    /// All.
    All,
    /// None.
    Off,
}

/// The place of the engine of a model (`--model-isolation`, the parameter `isolation`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// In the server.
    None,
    /// In a process for each instance.
    Process,
}

impl Isolation {
    /// Returns the isolation of a name, as the flag and the parameter have it.
    ///
    /// # Errors
    /// The names that were expected.
    pub fn from_name(name: &str) -> Result<Self, String> {
        match name {
            "none" => Ok(Self::None),
            "process" => Ok(Self::Process),
            _ => Err("expected 'none' or 'process'".to_owned()),
        }
    }
}

/// The effort of compressing responses (`--grpc-infer-response-compression-level`).
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

/// The server that clients and dashboards know (`--compat`): answers differ for tritonserver alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compat {
    /// The protocol.
    Protocol,
    /// The protocol, with the metrics of text-embeddings-inference beside those of Triton.
    Tei,
    /// tritonserver, where its scripts depend on it: health has no body, and the server its name.
    Triton,
}

/// The use of GPUs (`--gpu`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuUse {
    /// For the models that ask for one, which are refused without a GPU.
    Auto,
    /// Off: models that ask for one run on the CPU.
    Off,
    /// As [`GpuUse::Auto`], and the server does not start without one.
    Require,
}

/// The I/O path of the sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Io {
    /// Our own ring if the kernel supports it, else epoll.
    Auto,
    /// Readiness and system calls.
    Epoll,
    /// glommio's sockets.
    Glommio,
    /// Our own ring, without a fallback.
    Ring,
}

/// The cores of threads that have some of their own (`--pin`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pinning {
    /// They stay on these, unless other programs use them.
    Auto,
    /// They stay on these.
    On,
    /// The kernel places all threads.
    Off,
}

/// The time for which a shard looks for work before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpinTime {
    /// As long as it pays off, if the shard has its core to itself.
    Auto,
    /// Always this long.
    Fixed(Duration),
}

/// The levels and format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// Lines of level info.
    pub info: bool,
    /// Warnings.
    pub warning: bool,
    /// Errors.
    pub error: bool,
    /// The level of details: 0 is off; from 1 on the steps of each model's load, and a line for
    /// each request.
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
    /// True if instances run only with their resources in hand (`--rate-limit=execution_count`).
    pub is_on: bool,
    /// The supplies of resources; if none is named, as much as one instance needs.
    pub resources: Vec<RateResource>,
}

/// The rules for the models of all repositories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RepositoryRules {
    /// The number of times that the load of a version that failed is tried again.
    pub load_retries: usize,
    /// True if each repository is a namespace of models (`--model-namespacing`).
    pub has_namespaces: bool,
    /// True if links must not lead out of a repository (`--follow-links=false`).
    pub refuses_links: bool,
}

impl Settings {
    /// Returns true if models are loaded on request, and at start only those that a flag names.
    pub fn loads_when_asked(&self) -> bool {
        self.control_mode == ControlMode::Explicit || self.model_cache.size_max.is_some()
    }

    /// Returns true if the metrics port serves the console.
    pub fn has_console(&self) -> bool {
        self.console != ConsoleAudience::None
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
            host_policy_settings: BTreeMap::new(),
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
            strict_accelerators: false,
            strict_readiness: true,
            auto_complete: true,
            uses_steps: true,
            splits_rows: true,
            warnings: Vec::new(),
            backend_config: BackendConfig::default(),
            backend_directory: PathBuf::from("/opt/tritonserver/backends"),
            allows_model_code_upload: false,
            allows_agents: false,
            repoagent_directory: PathBuf::from("/opt/tritonserver/repoagents"),
            cache_directory: PathBuf::from("/opt/tritonserver/caches"),
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
            pinning: Pinning::Auto,
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
    /// The steps of the model, as a `steps.json`.
    Steps,
    /// As a `config.toml`.
    Toml,
}
