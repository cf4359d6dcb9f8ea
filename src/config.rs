//! The flags: each declared once, as data, from which parsing and `--help` come. Names are
//! tritonserver's where it has the flag.

mod backend;
mod value;

pub use self::backend::{BackendConfig, Engine, OnnxruntimeConfig};

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use crate::config::value::{
    allow, parse, parse_bool, parse_cache, parse_cores, parse_host_policy, parse_resource, set_address, set_bool,
    set_count, set_port,
};
use crate::limits;

/// How a server was asked to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Directories of models, one model's own directory, or ONNX files.
    pub repositories: Vec<PathBuf>,
    /// The name of the only model, where a path holds one.
    pub model_name: Option<String>,
    /// Where HTTP is served; `None` where it is not.
    pub http: Option<(IpAddr, u16)>,
    /// Where gRPC is served; `None` where it is not.
    pub grpc: Option<(IpAddr, u16)>,
    /// Where metrics are served; `None` where they are not.
    pub metrics: Option<(IpAddr, u16)>,
    /// The server's name in its metadata.
    pub id: String,
    /// Shards; `None` for one on every core that the workers leave.
    pub shards: Option<usize>,
    /// The cores of the workers; `None` for those that the shards leave.
    pub worker_cores: Option<Vec<usize>>,
    /// Cores by the name of the host policy that a configuration may refer to.
    pub host_policies: BTreeMap<String, Vec<usize>>,
    /// Whether instances run only with their resources in hand (`--rate-limit=execution_count`).
    pub is_rate_limited: bool,
    /// How much there is of what resources; where none is named, as much as one instance needs.
    pub rate_resources: Vec<RateResource>,
    /// When models are loaded and unloaded.
    pub control_mode: ControlMode,
    /// How often the repositories are looked at, with [`ControlMode::Poll`].
    pub repository_poll: Duration,
    /// The models that are loaded at start, with [`ControlMode::Explicit`]; `*` is all.
    pub load_models: Vec<String>,
    /// Models that load at a time.
    pub load_threads: usize,
    /// Whether a model that fails to load ends the server.
    pub exit_on_error: bool,
    /// Whether one model that is not ready makes the server not ready.
    pub strict_readiness: bool,
    /// Whether what a configuration leaves out is taken from the model file.
    pub auto_complete: bool,
    /// Whether a flag says that nothing is, whatever another says.
    pub auto_complete_disabled: bool,
    /// What to tell of the flags when the server starts.
    pub warnings: Vec<String>,
    /// Settings of the backends.
    pub backend_config: BackendConfig,
    /// Bytes of the response cache; 0 for none.
    pub cache_size: usize,
    /// How long a drain waits for what is in flight.
    pub exit_timeout: Duration,
    /// Bytes of an HTTP body.
    pub http_input_size_max: usize,
    /// Bytes of a gRPC message.
    pub grpc_message_size_max: usize,
    /// Requests that may wait for one model version.
    pub queue_requests_max: usize,
    /// Bytes that may wait for one model version.
    pub queue_bytes_max: usize,
    /// Bytes of state that one instance keeps for its sequences.
    pub sequence_state_bytes_max: usize,
    /// Whether models run on GPUs whose configuration leaves that open.
    pub uses_gpu_unasked: bool,
    /// Bytes that are taken of the memory of each GPU.
    pub gpu_memory_bytes_max: usize,
    /// How long a batch may take on a GPU.
    pub gpu_run_max: Duration,
    /// Bytes of the host's memory that GPUs read and write by themselves.
    pub pinned_memory_bytes_max: usize,
    /// Whether clients may register regions of shared memory.
    pub allows_client_shm: bool,
    /// Bytes of inputs that one request may have in them.
    pub client_shm_bytes_max: usize,
    /// Whether a request is refused at once that would be answered after its deadline.
    pub refuses_late: bool,
    /// Connections of one shard.
    pub connections_max: usize,
    /// Streams of one HTTP/2 connection.
    pub http2_streams_max: u32,
    /// Streams that its client may reset in a while.
    pub http2_resets_max: u32,
    /// Frames that move nothing which its client may send in a while.
    pub http2_control_frames_max: u32,
    /// The way of the sockets.
    pub io: Io,
    /// How long a shard looks for work before it sleeps.
    pub spin: Duration,
    /// Whether every answer says where its time went, and not only those to clients that ask.
    pub tells_timing: bool,
    /// What is logged.
    pub log: LogSettings,
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

/// What is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// Lines of level info.
    pub info: bool,
    /// Warnings.
    pub warning: bool,
    /// Errors.
    pub error: bool,
    /// 0 for none; from 1 what each model's load did.
    pub verbose: u32,
}

impl Default for Settings {
    fn default() -> Self {
        let everywhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        Self {
            repositories: Vec::new(),
            model_name: None,
            http: Some((everywhere, 8000)),
            grpc: Some((everywhere, 8001)),
            metrics: Some((everywhere, 8002)),
            id: "deuteron".to_owned(),
            shards: None,
            worker_cores: None,
            host_policies: BTreeMap::new(),
            is_rate_limited: false,
            rate_resources: Vec::new(),
            control_mode: ControlMode::None,
            repository_poll: limits::REPOSITORY_POLL,
            load_models: Vec::new(),
            load_threads: limits::MODEL_LOAD_THREADS,
            exit_on_error: true,
            strict_readiness: true,
            auto_complete: true,
            auto_complete_disabled: false,
            warnings: Vec::new(),
            backend_config: BackendConfig::default(),
            cache_size: 0,
            exit_timeout: limits::EXIT_TIMEOUT,
            http_input_size_max: limits::BODY_SIZE_MAX,
            grpc_message_size_max: limits::GRPC_MESSAGE_SIZE_MAX,
            queue_requests_max: limits::QUEUE_REQUESTS_MAX,
            queue_bytes_max: limits::QUEUE_BYTES_MAX,
            sequence_state_bytes_max: limits::SEQUENCE_STATE_BYTES_MAX,
            uses_gpu_unasked: false,
            gpu_memory_bytes_max: limits::GPU_MEMORY_BYTES_MAX,
            gpu_run_max: limits::GPU_RUN_MAX,
            pinned_memory_bytes_max: limits::PINNED_MEMORY_BYTES_MAX,
            allows_client_shm: false,
            client_shm_bytes_max: limits::SHARED_MEMORY_BYTES_MAX,
            refuses_late: false,
            connections_max: limits::CONNECTIONS_MAX,
            http2_streams_max: limits::STREAMS_MAX,
            http2_resets_max: limits::CLIENT_RESETS_MAX,
            http2_control_frames_max: limits::CONTROL_FRAMES_MAX,
            io: Io::Auto,
            spin: Duration::ZERO,
            tells_timing: false,
            log: LogSettings { info: true, warning: true, error: true, verbose: 0 },
        }
    }
}

/// What the command line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Serve models.
    Serve(Box<Settings>),
    /// Print the effective configuration of the model in the only path, in this form.
    ShowConfig(Box<Settings>, ConfigForm),
    /// Print the help.
    Help,
    /// Print the version.
    Version,
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

/// One flag.
struct Flag {
    names: &'static [&'static str],
    value: &'static str,
    help: &'static str,
    apply: fn(&mut Settings, &str) -> Result<(), String>,
}

type Endpoint = Option<(IpAddr, u16)>;

const FLAGS: &[Flag] = &[
    Flag {
        names: &["model-repository", "model-store"],
        value: "DIRECTORY",
        help: "A directory of models, a model's own directory or an ONNX file; may be given more than once, and without \
               the flag's name",
        apply: |settings, value| {
            settings.repositories.push(PathBuf::from(value));
            Ok(())
        },
    },
    Flag {
        names: &["model-name"],
        value: "NAME",
        help: "Name of the model where the path holds one [that in its configuration, or of its directory or file]",
        apply: |settings, value| {
            settings.model_name = Some(value.to_owned());
            Ok(())
        },
    },
    Flag {
        names: &["http-port"],
        value: "PORT",
        help: "Port for HTTP/1.1, and for gRPC too [8000]; 0 picks a free one",
        apply: |settings, value| set_port(&mut settings.http, value),
    },
    Flag {
        names: &["grpc-port"],
        value: "PORT",
        help: "Port for gRPC, and for HTTP/1.1 too [8001]; 0 picks a free one",
        apply: |settings, value| set_port(&mut settings.grpc, value),
    },
    Flag {
        names: &["metrics-port"],
        value: "PORT",
        help: "Port for /metrics [8002]; 0 picks a free one",
        apply: |settings, value| set_port(&mut settings.metrics, value),
    },
    Flag {
        names: &["http-address"],
        value: "ADDRESS",
        help: "Address that the HTTP port is opened on [0.0.0.0]",
        apply: |settings, value| set_address(&mut settings.http, value),
    },
    Flag {
        names: &["grpc-address"],
        value: "ADDRESS",
        help: "Address that the gRPC port is opened on [0.0.0.0]",
        apply: |settings, value| set_address(&mut settings.grpc, value),
    },
    Flag {
        names: &["metrics-address"],
        value: "ADDRESS",
        help: "Address that the metrics port is opened on [0.0.0.0]",
        apply: |settings, value| set_address(&mut settings.metrics, value),
    },
    Flag {
        names: &["allow-http"],
        value: "BOOL",
        help: "Open the HTTP port [true]",
        apply: |settings, value| allow(&mut settings.http, value),
    },
    Flag {
        names: &["allow-grpc"],
        value: "BOOL",
        help: "Open the gRPC port [true]",
        apply: |settings, value| allow(&mut settings.grpc, value),
    },
    Flag {
        names: &["allow-metrics"],
        value: "BOOL",
        help: "Open the metrics port [true]",
        apply: |settings, value| allow(&mut settings.metrics, value),
    },
    Flag {
        names: &["id"],
        value: "NAME",
        help: "Name of the server in its metadata [deuteron]",
        apply: |settings, value| {
            settings.id = value.to_owned();
            Ok(())
        },
    },
    Flag {
        names: &["shards"],
        value: "COUNT",
        help: "Threads that serve connections, one per core [all cores this process may use; where models run on \
               workers, a quarter of them at most]",
        apply: |settings, value| set_count(settings.shards.get_or_insert_default(), value),
    },
    Flag {
        names: &["worker-cores"],
        value: "CORES",
        help: "Cores that models compute on, as in 2-5,8, and no shard unless there are too few [those without a shard]",
        apply: |settings, value| {
            settings.worker_cores = Some(parse_cores(value)?);
            Ok(())
        },
    },
    Flag {
        names: &["host-policy"],
        value: "NAME,cpu-cores=CORES",
        help: "Cores of the instances whose group has this host_policy; 'cpu' for those that have none",
        apply: |settings, value| {
            let (name, cores) = parse_host_policy(value)?;
            settings.host_policies.insert(name, cores);
            Ok(())
        },
    },
    Flag {
        names: &["rate-limit"],
        value: "MODE",
        help: "execution_count: instances run with their rate_limiter's resources only, by priority; off: whenever idle [off]",
        apply: |settings, value| {
            settings.is_rate_limited = match value {
                "execution_count" => true,
                "off" => false,
                _ => return Err("expected execution_count or off".to_owned()),
            };
            Ok(())
        },
    },
    Flag {
        names: &["rate-limit-resource"],
        value: "NAME:COUNT[:DEVICE]",
        help: "How much there is of a resource; the CPU is device 0 [as much as the instance needs that needs most]",
        apply: |settings, value| {
            settings.rate_resources.push(parse_resource(value)?);
            Ok(())
        },
    },
    Flag {
        names: &["model-control-mode"],
        value: "none|poll|explicit",
        help: "Load all models at start and never again; follow what changes in the repositories; or load what clients \
               ask for [none]",
        apply: |settings, value| {
            settings.control_mode = match value {
                "none" => ControlMode::None,
                "poll" => ControlMode::Poll,
                "explicit" => ControlMode::Explicit,
                _ => return Err("expected 'none', 'poll' or 'explicit'".to_owned()),
            };
            Ok(())
        },
    },
    Flag {
        names: &["repository-poll-secs"],
        value: "SECONDS",
        help: "How often the repositories are looked at, with --model-control-mode=poll [15]; 0 for never",
        apply: |settings, value| {
            settings.repository_poll = Duration::from_secs(parse(value)?);
            Ok(())
        },
    },
    Flag {
        names: &["load-model"],
        value: "MODEL",
        help: "Load it at start, with --model-control-mode=explicit; may be given more than once; * for all",
        apply: |settings, value| {
            settings.load_models.push(value.to_owned());
            Ok(())
        },
    },
    Flag {
        names: &["model-load-thread-count"],
        value: "COUNT",
        help: "Models that load at a time [4]",
        apply: |settings, value| set_count(&mut settings.load_threads, value),
    },
    Flag {
        names: &["exit-on-error"],
        value: "BOOL",
        help: "End when a model fails to load at start [true]",
        apply: |settings, value| set_bool(&mut settings.exit_on_error, value),
    },
    Flag {
        names: &["strict-readiness"],
        value: "BOOL",
        help: "Ready only while all models are [true]",
        apply: |settings, value| set_bool(&mut settings.strict_readiness, value),
    },
    Flag {
        names: &["strict-model-config"],
        value: "BOOL",
        help: "Deprecated: the same as --disable-auto-complete-config, which overrides it [false]",
        apply: |settings, value| {
            settings.auto_complete = !parse_bool(value)?;
            settings.warnings.push(STRICT_DEPRECATED.to_owned());
            Ok(())
        },
    },
    Flag {
        names: &["disable-auto-complete-config"],
        value: "",
        help: "Take nothing from the model file that the configuration leaves out; there must be one",
        apply: |settings, _| {
            settings.auto_complete_disabled = true;
            Ok(())
        },
    },
    Flag {
        names: &["backend-config"],
        value: "SETTING",
        help: "BACKEND,KEY=VALUE or KEY=VALUE; may be given more than once. For onnxruntime: library (path of \
               libonnxruntime.so), engine (embedded or onnxruntime), default-max-batch-size",
        apply: |settings, value| {
            if let Some(is_on) = settings.backend_config.apply(value)? {
                settings.auto_complete = is_on;
            }
            Ok(())
        },
    },
    Flag {
        names: &["cache-config"],
        value: "local,size=BYTES",
        help: "Bytes of the response cache, for models with response_cache { enable: true }; each shard has its share [0]",
        apply: |settings, value| {
            settings.cache_size = parse_cache(value)?;
            Ok(())
        },
    },
    Flag {
        names: &["exit-timeout-secs"],
        value: "SECONDS",
        help: "How long a drain waits for what is in flight [30]",
        apply: |settings, value| {
            settings.exit_timeout = Duration::from_secs(parse(value)?);
            Ok(())
        },
    },
    Flag {
        names: &["http-max-input-size"],
        value: "BYTES",
        help: "Largest HTTP body [67108864]",
        apply: |settings, value| set_count(&mut settings.http_input_size_max, value),
    },
    Flag {
        names: &["grpc-max-message-size"],
        value: "BYTES",
        help: "Largest gRPC message [67108864]",
        apply: |settings, value| set_count(&mut settings.grpc_message_size_max, value),
    },
    Flag {
        names: &["queue-requests-max"],
        value: "COUNT",
        help: "Requests that may wait for one model version [1024]; beyond it 503",
        apply: |settings, value| set_count(&mut settings.queue_requests_max, value),
    },
    Flag {
        names: &["queue-bytes-max"],
        value: "BYTES",
        help: "Bytes of tensors that may wait for one model version [268435456]; beyond it 503",
        apply: |settings, value| set_count(&mut settings.queue_bytes_max, value),
    },
    Flag {
        names: &["sequence-state-bytes-max"],
        value: "BYTES",
        help: "Bytes of state that one instance keeps for its sequences [268435456]; beyond it they end",
        apply: |settings, value| set_count(&mut settings.sequence_state_bytes_max, value),
    },
    Flag {
        names: &["gpu-auto"],
        value: "BOOL",
        help: "Whether models whose instance groups leave it open (KIND_AUTO, or none) run on GPUs [false]; KIND_GPU always \
               does",
        apply: |settings, value| set_bool(&mut settings.uses_gpu_unasked, value),
    },
    Flag {
        names: &["gpu-memory-bytes-max"],
        value: "BYTES",
        help: "Bytes of each GPU's memory that models take, for weights and batches [all there is]; a model that needs more \
               is not loaded there",
        apply: |settings, value| set_count(&mut settings.gpu_memory_bytes_max, value),
    },
    Flag {
        names: &["gpu-run-secs-max"],
        value: "SECONDS",
        help: "How long a batch may take on a GPU [60]; then its requests are refused and its instance is made anew",
        apply: |settings, value| {
            settings.gpu_run_max = Duration::from_secs(parse(value)?);
            Ok(())
        },
    },
    Flag {
        names: &["pinned-memory-pool-byte-size"],
        value: "BYTES",
        help: "Bytes of the host's memory from and to which GPUs copy [268435456]",
        apply: |settings, value| set_count(&mut settings.pinned_memory_bytes_max, value),
    },
    Flag {
        names: &["cuda-memory-pool-byte-size"],
        value: "GPU:BYTES",
        help: "Taken for Triton's sake, and without effect: an instance takes what its batches need when it is made; see \
               --gpu-memory-bytes-max",
        apply: |settings, value| {
            let is_pair = value
                .split_once(':')
                .is_some_and(|(gpu, bytes)| gpu.parse::<u32>().is_ok() && bytes.parse::<u64>().is_ok());
            settings.warnings.push(CUDA_POOL_WITHOUT_EFFECT.to_owned());
            if is_pair { Ok(()) } else { Err("expected GPU:BYTES, as in 0:67108864".to_owned()) }
        },
    },
    Flag {
        names: &["allow-client-shm"],
        value: "BOOL",
        help: "Let clients have tensors in shared memory, any that this process may open: a file of /dev/shm, a GPU's [false]",
        apply: |settings, value| set_bool(&mut settings.allows_client_shm, value),
    },
    Flag {
        names: &["client-shm-bytes-max"],
        value: "BYTES",
        help: "Bytes of inputs that one request may have in shared memory [268435456]; beyond it 413",
        apply: |settings, value| set_count(&mut settings.client_shm_bytes_max, value),
    },
    Flag {
        names: &["admission"],
        value: "none|deadline",
        help: "Refuse at once what by measured run times would be late [none]",
        apply: |settings, value| match value {
            "none" | "deadline" => {
                settings.refuses_late = value == "deadline";
                Ok(())
            }
            _ => Err("expected 'none' or 'deadline'".to_owned()),
        },
    },
    Flag {
        names: &["io"],
        value: "auto|ring|epoll|glommio",
        help: "The way of the sockets: our own io_uring (Linux 6.1), epoll or glommio's [auto: io_uring, else epoll]",
        apply: |settings, value| {
            settings.io = match value {
                "auto" => Io::Auto,
                "epoll" => Io::Epoll,
                "glommio" => Io::Glommio,
                "ring" => Io::Ring,
                _ => return Err("expected 'auto', 'ring', 'epoll' or 'glommio'".to_owned()),
            };
            Ok(())
        },
    },
    Flag {
        names: &["spin"],
        value: "MICROSECONDS",
        help: "How long a shard looks for work before it sleeps: saves its wake-up, costs its core [0]",
        apply: |settings, value| {
            settings.spin = Duration::from_micros(parse(value)?);
            Ok(())
        },
    },
    Flag {
        names: &["connections-max"],
        value: "COUNT",
        help: "Connections of one shard [10000]; beyond it new ones are closed",
        apply: |settings, value| set_count(&mut settings.connections_max, value),
    },
    Flag {
        names: &["http2-streams-max"],
        value: "COUNT",
        help: "Streams of one HTTP/2 connection at a time [128]; beyond it new ones are refused",
        apply: |settings, value| set_count(&mut settings.http2_streams_max, value),
    },
    Flag {
        names: &["http2-resets-max"],
        value: "COUNT",
        help: "Streams that an HTTP/2 client may reset in 10 s [1000], one more for each answer it takes; beyond it GOAWAY",
        apply: |settings, value| set_count(&mut settings.http2_resets_max, value),
    },
    Flag {
        names: &["http2-control-frames-max"],
        value: "COUNT",
        help: "Frames an HTTP/2 client may send in 10 s that move nothing [10000]; beyond it GOAWAY",
        apply: |settings, value| set_count(&mut settings.http2_control_frames_max, value),
    },
    Flag {
        names: &["server-timing"],
        value: "",
        help: "Answer every inference with Server-Timing (over gRPC a trailer), not only to clients that send \
               'want-server-timing: 1'",
        apply: |settings, _| {
            settings.tells_timing = true;
            Ok(())
        },
    },
    Flag {
        names: &["log-verbose"],
        value: "LEVEL",
        help: "0 for none; from 1 on what each load decided [0]",
        apply: |settings, value| {
            settings.log.verbose = parse(value)?;
            Ok(())
        },
    },
    Flag {
        names: &["log-info"],
        value: "BOOL",
        help: "Log lines of level info [true]",
        apply: |settings, value| set_bool(&mut settings.log.info, value),
    },
    Flag {
        names: &["log-warning"],
        value: "BOOL",
        help: "Log warnings [true]",
        apply: |settings, value| set_bool(&mut settings.log.warning, value),
    },
    Flag {
        names: &["log-error"],
        value: "BOOL",
        help: "Log errors [true]",
        apply: |settings, value| set_bool(&mut settings.log.error, value),
    },
];

/// Triton's words for its own flag of the same name.
const STRICT_DEPRECATED: &str =
    "'--strict-model-config' has been deprecated! Please use '--disable-auto-complete-config' instead.";

/// Reads a command line, the program's name left out. The error is one line for a person.
pub fn parse_command<I>(arguments: I) -> Result<Command, String>
where
    I: IntoIterator,
    I::Item: Into<std::ffi::OsString>,
{
    use lexopt::Arg;

    let mut settings = Settings::default();
    let mut parser = lexopt::Parser::from_args(arguments);
    let mut words = 0;
    let mut form = None;
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        match argument {
            Arg::Short('h') | Arg::Long("help") => return Ok(Command::Help),
            Arg::Value(word) if words == 0 && word == "help" => return Ok(Command::Help),
            Arg::Short('V') | Arg::Long("version") => return Ok(Command::Version),
            Arg::Value(word) if words == 0 && word == "serve" => {}
            Arg::Value(word) if words == 0 && word == "config" => {
                let show = parser.next().map_err(|error| error.to_string())?;
                if !matches!(show, Some(Arg::Value(word)) if word == "show") {
                    return Err("expected `deuteron config show PATH`".to_owned());
                }
                form = Some(ConfigForm::default());
            }
            Arg::Value(path) => settings.repositories.push(PathBuf::from(path)),
            Arg::Short(letter) => return Err(format!("unknown flag '-{letter}'; --help lists them")),
            Arg::Long("format") if form.is_some() => form = Some(parse_form(&mut parser)?),
            Arg::Long(name) => {
                let flag = FLAGS.iter().find(|flag| flag.names.contains(&name));
                let flag = flag.ok_or_else(|| format!("unknown flag '--{name}'; --help lists them"))?;
                apply(flag, &mut parser, &mut settings)?;
            }
        }
        words += 1;
    }
    let settings = Box::new(check(settings)?);
    match form {
        None => Ok(Command::Serve(settings)),
        Some(_) if settings.repositories.len() > 1 => {
            Err("one path at a time, as in `deuteron config show m`".to_owned())
        }
        Some(form) => Ok(Command::ShowConfig(settings, form)),
    }
}

fn parse_form(parser: &mut lexopt::Parser) -> Result<ConfigForm, String> {
    let value = parser.value().map_err(|error| error.to_string())?;
    match value.to_str() {
        Some("json") => Ok(ConfigForm::Json),
        Some("pbtxt") => Ok(ConfigForm::Pbtxt),
        Some("toml") => Ok(ConfigForm::Toml),
        _ => Err(format!("--format={}: expected pbtxt, json or toml", value.to_string_lossy())),
    }
}

fn apply(flag: &Flag, parser: &mut lexopt::Parser, settings: &mut Settings) -> Result<(), String> {
    let name = flag.names.first().copied().unwrap_or_default();
    let value = if flag.value.is_empty() {
        String::new()
    } else {
        let value = parser.value().map_err(|error| error.to_string())?;
        value.into_string().map_err(|_| format!("--{name} takes a value in UTF-8"))?
    };
    (flag.apply)(settings, &value).map_err(|why| format!("--{name}={value}: {why}"))
}

/// There is no pool that could be sized.
const CUDA_POOL_WITHOUT_EFFECT: &str = "--cuda-memory-pool-byte-size has no effect here: memory of a GPU is taken when an instance is made, and \
     --gpu-memory-bytes-max bounds it";

fn check(mut settings: Settings) -> Result<Settings, String> {
    if settings.auto_complete_disabled {
        if settings.auto_complete && settings.warnings.iter().any(|warning| warning == STRICT_DEPRECATED) {
            settings.warnings.push(
                "Overriding deprecated '--strict-model-config' from False to True in favor of \
                 '--disable-auto-complete-config'!"
                    .to_owned(),
            );
        }
        settings.auto_complete = false;
    }
    if settings.model_name.is_some() && settings.repositories.len() > 1 {
        return Err("--model-name names one model, and there are several paths".to_owned());
    }
    if !settings.load_models.is_empty() && settings.control_mode != ControlMode::Explicit {
        return Err("--load-model names models for --model-control-mode=explicit; without it all are loaded".into());
    }
    if settings.repositories.is_empty() {
        return Err("no model repository: name a directory of models, as in `deuteron serve examples/models`".into());
    }
    let endpoints = [("HTTP", settings.http), ("GRPC", settings.grpc), ("metrics", settings.metrics)];
    for (index, (one, first)) in endpoints.iter().enumerate() {
        for (other, second) in endpoints.iter().skip(index + 1) {
            if first.is_some_and(|(_, port)| port != 0) && first == second {
                return Err(format!(
                    "The server cannot listen to {one} requests and {other} requests at the same address and port"
                ));
            }
        }
    }
    Ok(settings)
}

/// The text of `--help`.
pub fn help() -> String {
    let mut out = String::from(
        "deuteron: a light inference server\n\n\
         Usage: deuteron serve PATH... [FLAGS]\n       deuteron --model-repository=DIRECTORY [FLAGS]\n\
         \x20      deuteron config show PATH [--format=pbtxt|json|toml] [FLAGS], which prints what would be served\n\
         \x20      deuteron bench -m MODEL [FLAGS], which measures a server; `deuteron bench --help`\n\nFlags:\n",
    );
    for flag in FLAGS {
        let names: Vec<String> = flag.names.iter().map(|name| format!("--{name}")).collect();
        let value = if flag.value.is_empty() { String::new() } else { format!("={}", flag.value) };
        let _ = writeln!(out, "  {}{value}\n        {}", names.join(", "), flag.help);
    }
    out.push_str("  -h, --help\n        Print this\n  -V, --version\n        Print the version\n");
    out
}

#[cfg(test)]
mod tests;
