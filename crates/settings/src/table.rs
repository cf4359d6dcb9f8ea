//! The table of the server's flags, by the sections of `--help`. A new flag is one entry here, or
//! in `table/limit.rs` if it bounds something, and a field of [`Settings`].

mod foreign;
mod front_end;
mod keep_alive;
mod limit;
mod metrics;
mod policy;
mod store;
mod tls;
mod trace;

use std::path::PathBuf;
use std::time::Duration;

use crate::backend::AppliedSetting;
use crate::value::{
    allow, parse_cores, parse_host_policy, parse_rate, parse_resource, parse_retries, set_address, set_count, set_port,
};
use crate::{
    CUDA_POOL_WITHOUT_EFFECT, Compat, ControlMode, Engine, GpuUse, Io, Isolation, LogFormat, Pinning,
    STRICT_DEPRECATED, Settings, SpinTime, TrialLoads,
};
use flags::Fallback::{Absent, Text, Value};
use flags::Takes::{Many, One, Switch};
use flags::{Flag, Section, parse, parse_bool, set, set_one_of};

/// All flags of the server.
pub(super) const SECTIONS: &[Section<Settings>] = &[
    Section { title: "Models", flags: MODEL_FLAGS },
    Section { title: "Models in stores", flags: store::FLAGS },
    Section { title: "Flags in a file", flags: FILE_FLAGS },
    Section { title: "Model configurations and backends", flags: CONFIGURATION_FLAGS },
    Section { title: "Addresses", flags: ADDRESS_FLAGS },
    Section { title: "Front ends of hosting services", flags: front_end::FLAGS },
    Section { title: "Cores and instances", flags: CORE_FLAGS },
    Section { title: "GPUs", flags: GPU_FLAGS },
    Section { title: "Queues, caches and shared memory", flags: limit::QUEUE_FLAGS },
    Section { title: "Connections", flags: limit::CONNECTION_FLAGS },
    Section { title: "Connections with gRPC calls", flags: keep_alive::FLAGS },
    Section { title: "TLS of the HTTP port", flags: tls::HTTP_FLAGS },
    Section { title: "TLS of the gRPC port", flags: tls::GRPC_FLAGS },
    Section { title: "TLS of the metrics port", flags: tls::METRICS_FLAGS },
    Section { title: "TLS handshakes", flags: tls::HANDSHAKE_FLAGS },
    Section { title: "What clients may do", flags: policy::FLAGS },
    Section { title: "Logs and timing", flags: LOG_FLAGS },
    Section { title: "Metrics", flags: metrics::FLAGS },
    Section { title: "Traces", flags: trace::FLAGS },
    Section { title: foreign::TITLE, flags: foreign::FLAGS },
];

const BOOL: &str = "true|false";

const FILE_FLAGS: &[Flag<Settings>] = &[Flag {
    names: &["config"],
    takes: One("FILE"),
    default: Text("none"),
    help: "A TOML file of flags: a key for each, as in http-port = 9000, a list where a flag may be given more than \
           once. Flags and variables override it; `deuteron config check FILE` reports its errors",
    apply: |settings, value| {
        settings.config_file = Some(PathBuf::from(value));
        Ok(())
    },
}];

const MODEL_FLAGS: &[Flag<Settings>] = &[
    Flag {
        names: &["model-repository", "model-store"],
        takes: Many("DIRECTORY"),
        default: Absent,
        help: "A directory of models, a model's own directory, an ONNX file, or the same in a store: s3://, gs://, \
               as:// or https://; may be given more than once, and without the flag's name. Required",
        apply: |settings, value| {
            settings.repositories.push(PathBuf::from(value));
            Ok(())
        },
    },
    Flag {
        names: &["model-name"],
        takes: One("NAME"),
        default: Text("from its configuration, directory or file"),
        help: "Name of the model, if the path holds a single one",
        apply: |settings, value| {
            settings.model_name = Some(value.to_owned());
            Ok(())
        },
    },
    Flag {
        names: &["model-control-mode"],
        takes: One("none|poll|explicit"),
        default: Value("none"),
        help: "none: load all models at start; poll: also follow changes in the repositories; explicit: load models \
               when clients ask for it",
        apply: |settings, value| {
            set_one_of(
                &mut settings.control_mode,
                value,
                &[("none", ControlMode::None), ("poll", ControlMode::Poll), ("explicit", ControlMode::Explicit)],
            )
        },
    },
    Flag {
        names: &["repository-poll-secs"],
        takes: One("SECONDS"),
        default: Value("15"),
        help: "Interval between polls of the repositories, with --model-control-mode=poll; 0 for none",
        apply: |settings, value| set(&mut settings.repository_poll, parse(value).map(Duration::from_secs)),
    },
    Flag {
        names: &["load-model"],
        takes: Many("MODEL"),
        default: Absent,
        help: "Model to load at start, with --model-control-mode=explicit or --model-cache-bytes-max; may be given \
               more than once; * for all",
        apply: |settings, value| {
            settings.load_models.push(value.to_owned());
            Ok(())
        },
    },
    Flag {
        names: &["allow-model-code-upload"],
        takes: One(BOOL),
        default: Value("false"),
        help: "Let load requests bring files with code (model.py, libraries, pickles, archives) and choose the Python \
               that runs it: clients that may load models can then run any code",
        apply: |settings, value| set(&mut settings.allows_model_code_upload, parse_bool(value)),
    },
    Flag {
        names: &["allow-agents"],
        takes: One(BOOL),
        default: Value("false"),
        help: "Let configurations name repository agents that are libraries of --repoagent-directory (model_repository_agents), \
               and --cache-config a cache that is a library of --cache-directory: foreign code that runs inside the server, \
               with all its rights",
        apply: |settings, value| set(&mut settings.allows_agents, parse_bool(value)),
    },
    Flag {
        names: &["repoagent-directory"],
        takes: One("DIRECTORY"),
        default: Value("/opt/tritonserver/repoagents"),
        help: "Where repository agents are: the agent NAME is NAME/libtritonrepoagent_NAME.so of it, a shared library written \
               for Triton; without --allow-agents none is opened",
        apply: |settings, value| {
            settings.repoagent_directory = PathBuf::from(value);
            Ok(())
        },
    },
    Flag {
        names: &["model-load-thread-count"],
        takes: One("COUNT"),
        default: Value("4"),
        help: "Models that load in parallel",
        apply: |settings, value| set_count(&mut settings.load_threads, value),
    },
    Flag {
        names: &["model-load-retry-count"],
        takes: One("COUNT"),
        default: Value("0"),
        help: "Immediate retries when the load of a version fails; up to 100",
        apply: |settings, value| set(&mut settings.repository_rules.load_retries, parse_retries(value)),
    },
    Flag {
        names: &["model-namespacing"],
        takes: One(BOOL),
        default: Value("false"),
        help: "Serve models of the same name from several repositories. Requests find a model by its name if only one \
               repository has it; a step of an ensemble finds the one in the ensemble's repository first",
        apply: |settings, value| set(&mut settings.repository_rules.has_namespaces, parse_bool(value)),
    },
    Flag {
        names: &["follow-links"],
        takes: One(BOOL),
        default: Value("true"),
        help: "Follow symbolic links that lead out of a repository on a disk; those in uploaded files and stores are \
               never followed out of these",
        apply: |settings, value| {
            set(&mut settings.repository_rules.refuses_links, parse_bool(value).map(|follows| !follows))
        },
    },
    Flag {
        names: &["trial-loads"],
        takes: One("after-start|all|off"),
        default: Text("after-start; with --exit-on-error=false all"),
        help: "Which models of ONNX, OpenVINO, PyTorch and TensorFlow are first loaded in a separate process, so that \
               a file that crashes or hangs its engine fails alone: those loaded while the server serves, all, or none",
        apply: |settings, value| {
            set_one_of(
                settings.trial_loads.get_or_insert(TrialLoads::Off),
                value,
                &[("after-start", TrialLoads::AfterStart), ("all", TrialLoads::All), ("off", TrialLoads::Off)],
            )
        },
    },
    Flag {
        names: &["load-timeout-secs"],
        takes: One("SECONDS"),
        default: Value("300"),
        help: "Timeout of a trial of --trial-loads, and of the load of a model in a process of its own, after which \
               the load fails; 0 for no limit",
        apply: |settings, value| set(&mut settings.load_timeout, parse(value).map(Duration::from_secs)),
    },
    Flag {
        names: &["load-memory-bytes-max"],
        takes: One("BYTES"),
        default: Text("that of --memory-limit"),
        help: "Bytes of memory that a trial of --trial-loads may use; a load that needs more fails",
        apply: |settings, value| set_count(settings.load_memory_bytes_max.get_or_insert_default(), value),
    },
    Flag {
        names: &["model-cache-bytes-max"],
        takes: One("BYTES"),
        default: Text("models are loaded at start, or as --model-control-mode says"),
        help: "Load models on first request and keep up to this many bytes of them; the least recently used is \
               unloaded to make room. Models named by --load-model or a load request stay",
        apply: |settings, value| set_count(settings.model_cache.size_max.get_or_insert_default(), value),
    },
    Flag {
        names: &["model-cache-wait-ms"],
        takes: One("MILLISECONDS"),
        default: Value("10000"),
        help: "How long a request waits for its model to load on demand; then it is refused with 503, and the load \
               continues",
        apply: |settings, value| set(&mut settings.model_cache.wait, parse(value).map(Duration::from_millis)),
    },
    Flag {
        names: &["exit-on-error"],
        takes: One(BOOL),
        default: Value("true"),
        help: "Exit if a model fails to load at start",
        apply: |settings, value| set(&mut settings.exit_on_error, parse_bool(value)),
    },
    Flag {
        names: &["listen-first"],
        takes: Switch,
        default: Absent,
        help: "Listen before the models are loaded, and answer not ready until they are",
        apply: |settings, _| {
            settings.listens_first = true;
            Ok(())
        },
    },
    Flag {
        names: &["strict-accelerators"],
        takes: Switch,
        default: Absent,
        help: "Refuse a model with a cpu_execution_accelerator that its engine lacks; without it the model runs on the \
               CPU, with a warning",
        apply: |settings, _| {
            settings.strict_accelerators = true;
            Ok(())
        },
    },
    Flag {
        names: &["strict-readiness"],
        takes: One(BOOL),
        default: Value("true"),
        help: "Ready only while all models are ready",
        apply: |settings, value| set(&mut settings.strict_readiness, parse_bool(value)),
    },
    Flag {
        names: &["drain-delay"],
        takes: One("SECONDS"),
        default: Value("0"),
        help: "How long the server reports not ready but still serves after a stop signal, so that load balancers stop \
               sending; then it drains for --exit-timeout-secs at most",
        apply: |settings, value| set(&mut settings.drain_delay, parse(value).map(Duration::from_secs)),
    },
    Flag {
        names: &["exit-timeout-secs"],
        takes: One("SECONDS"),
        default: Value("30"),
        help: "How long a drain waits for requests in flight",
        apply: |settings, value| set(&mut settings.exit_timeout, parse(value).map(Duration::from_secs)),
    },
    Flag {
        names: &["second-signal-after-ms"],
        takes: One("MILLISECONDS"),
        default: Text("1000; with --compat=triton never"),
        help: "Time after a stop signal from which a second one ends the server at once. An earlier one is ignored: \
               wrappers forward a signal that the process group has received too",
        apply: |settings, value| {
            set(settings.second_signal_after.get_or_insert_default(), parse(value).map(Duration::from_millis))
        },
    },
    Flag {
        names: &["compat"],
        takes: One("protocol|tei|triton"),
        default: Value("protocol"),
        help: "triton: answers are tritonserver's in what its scripts look at: health has no body and is 400 when not \
               healthy, mistakes in JSON are 500, classes have six decimals, binary_data_output is for outputs that \
               are not listed, configurations show no placement, and the server's name is triton unless --id says \
               another. tei: as protocol, and the metrics of text-embeddings-inference (te_...) are added",
        apply: |settings, value| {
            let values = [("protocol", Compat::Protocol), ("tei", Compat::Tei), ("triton", Compat::Triton)];
            set_one_of(&mut settings.compat, value, &values)
        },
    },
    Flag {
        names: &["id"],
        takes: One("NAME"),
        default: Value("deuteron"),
        help: "Name of the server in its metadata",
        apply: |settings, value| {
            settings.id = value.to_owned();
            Ok(())
        },
    },
];

const CONFIGURATION_FLAGS: &[Flag<Settings>] = &[
    Flag {
        names: &["disable-auto-complete-config"],
        takes: Switch,
        default: Absent,
        help: "Do not complete configurations from model files; every model needs a configuration",
        apply: |settings, _| {
            settings.foreign.auto_complete_disabled = true;
            Ok(())
        },
    },
    Flag {
        names: &["strict-model-config"],
        takes: One(BOOL),
        default: Value("false"),
        help: "Deprecated: the same as --disable-auto-complete-config, which overrides it",
        apply: |settings, value| {
            settings.auto_complete = !parse_bool(value)?;
            settings.warnings.push(STRICT_DEPRECATED.to_owned());
            Ok(())
        },
    },
    Flag {
        names: &["steps"],
        takes: One("on|off"),
        default: Value("on"),
        help: "Use the steps.json in a version's directory: work before and behind a model without Python, in place of its \
               model.py or around its model. A model's parameter 'steps' turns its own off",
        apply: |settings, value| set_one_of(&mut settings.uses_steps, value, &[("on", true), ("off", false)]),
    },
    Flag {
        names: &["split-rows"],
        takes: One("on|off"),
        default: Value("on"),
        help: "Run the rows of one large request on several instances of its model while these are idle, where that has \
               been measured to be faster; never for Python models, backends' libraries, sequences and GPUs. A model's \
               parameter 'split_rows' turns its own off",
        apply: |settings, value| set_one_of(&mut settings.splits_rows, value, &[("on", true), ("off", false)]),
    },
    Flag {
        names: &["model-config-name"],
        takes: One("NAME"),
        default: Text("none"),
        help: "Read configs/NAME.pbtxt instead of config.pbtxt, for each model that has it",
        apply: |settings, value| {
            settings.model_config_name = Some(value.to_owned()).filter(|name| !name.is_empty());
            Ok(())
        },
    },
    Flag {
        names: &["onnx-engine"],
        takes: One("auto|onnxruntime|embedded"),
        default: Value("auto"),
        help: "Engine of ONNX models. onnxruntime: ONNX Runtime, required at start; embedded: the embedded engine; \
               auto: ONNX Runtime if its library is found, else falls back to the embedded engine. A model's parameter \
               'engine' overrides it; `deuteron doctor` shows what is found",
        apply: |settings, value| set(&mut settings.backend_config.onnxruntime.engine, Engine::from_flag(value)),
    },
    Flag {
        names: &["model-isolation"],
        takes: One("none|process"),
        default: Value("none"),
        help: "process: each instance of a model of ONNX, OpenVINO, PyTorch or TensorFlow runs in a process of its \
               own, which is restarted: an engine that crashes, hangs or runs out of memory fails only its batch. A \
               model's parameter 'isolation' overrides it; not for instances on GPUs",
        apply: |settings, value| set(&mut settings.model_isolation, Isolation::from_name(value)),
    },
    Flag {
        names: &["backend-isolation"],
        takes: One("none|process"),
        default: Value("none"),
        help: "process: each instance of a backend of Triton's (libtriton_NAME.so) runs in a process of its own, which \
               is restarted: a backend that crashes or hangs fails only the requests that it has. A model's parameter \
               'isolation' overrides it",
        apply: |settings, value| set(&mut settings.backend_isolation, Isolation::from_name(value)),
    },
    Flag {
        names: &["backend-config"],
        takes: Many("SETTING"),
        default: Absent,
        help: "BACKEND,KEY=VALUE or KEY=VALUE; may be given more than once. For onnxruntime: library (path of \
               libonnxruntime.so or of a directory that has it), engine (the same as --onnx-engine), \
               default-max-batch-size. For python: fork (auto, on or off: whether one process imports the model and is \
               copied for each instance), interpreter (path of a Python), shm-default-byte-size (memory shared with a \
               process at first), and Triton's other settings, which are ignored. For pytorch: library, runner (auto, \
               native or python), cache (folder of the compiled shim). For openvino: library, extension. For tensorflow: \
               library, engine (auto, openvino or tensorflow). For any other backend: what its library takes. \
               NAME,host=triton runs NAME by its library from --backend-directory even if the server has its own",
        apply: |settings, value| {
            match settings.backend_config.apply(value)? {
                AppliedSetting::AutoComplete(is_on) => settings.auto_complete = is_on,
                AppliedSetting::Held => {}
                AppliedSetting::Inert(warning) => settings.warnings.push(warning),
            }
            Ok(())
        },
    },
    Flag {
        names: &["backend-directory"],
        takes: One("DIRECTORY"),
        default: Value("/opt/tritonserver/backends"),
        help: "Where backends are: backend: \"NAME\" runs NAME/libtriton_NAME.so of it, a shared library written for Triton, \
               or NAME/model.py",
        apply: |settings, value| {
            settings.backend_directory = PathBuf::from(value);
            Ok(())
        },
    },
];

const ADDRESS_FLAGS: &[Flag<Settings>] = &[
    Flag {
        names: &["http-port"],
        takes: One("PORT"),
        default: Value("8000"),
        help: "Port for HTTP/1.1, and for gRPC too; 0 picks a free one",
        apply: |settings, value| set_port(&mut settings.http, value),
    },
    Flag {
        names: &["grpc-port"],
        takes: One("PORT"),
        default: Value("8001"),
        help: "Port for gRPC, and for HTTP/1.1 too; 0 picks a free one",
        apply: |settings, value| set_port(&mut settings.grpc, value),
    },
    Flag {
        names: &["metrics-port"],
        takes: One("PORT"),
        default: Value("8002"),
        help: "Port for /metrics; 0 picks a free one",
        apply: |settings, value| set_port(&mut settings.metrics, value),
    },
    Flag {
        names: &["http-address"],
        takes: One("ADDRESS"),
        default: Value("0.0.0.0"),
        help: "Address to listen on for HTTP",
        apply: |settings, value| set_address(&mut settings.http, value),
    },
    Flag {
        names: &["grpc-address"],
        takes: One("ADDRESS"),
        default: Value("0.0.0.0"),
        help: "Address to listen on for gRPC",
        apply: |settings, value| set_address(&mut settings.grpc, value),
    },
    Flag {
        names: &["metrics-address"],
        takes: One("ADDRESS"),
        default: Value("0.0.0.0"),
        help: "Address to listen on for metrics",
        apply: |settings, value| set_address(&mut settings.metrics, value),
    },
    Flag {
        names: &["allow-http"],
        takes: One(BOOL),
        default: Value("true"),
        help: "Open the HTTP port",
        apply: |settings, value| allow(&mut settings.http, value),
    },
    Flag {
        names: &["allow-grpc"],
        takes: One(BOOL),
        default: Value("true"),
        help: "Open the gRPC port",
        apply: |settings, value| allow(&mut settings.grpc, value),
    },
    Flag {
        names: &["allow-metrics"],
        takes: One(BOOL),
        default: Value("true"),
        help: "Open the metrics port",
        apply: |settings, value| allow(&mut settings.metrics, value),
    },
    Flag {
        names: &["ready-file"],
        takes: One("FILE"),
        default: Text("none"),
        help: "File to write the addresses to, as a line of JSON, when the server is ready; /dev/fd/3 for a pipe that \
               is passed as descriptor 3",
        apply: |settings, value| {
            settings.ready_file = Some(PathBuf::from(value));
            Ok(())
        },
    },
    Flag {
        names: &["exit-with-stdin"],
        takes: One(BOOL),
        default: Value("false"),
        help: "Drain and exit, as after SIGTERM, when standard input ends: a test's server ends with the process that \
               started it",
        apply: |settings, value| set(&mut settings.exits_with_stdin, parse_bool(value)),
    },
];

const CORE_FLAGS: &[Flag<Settings>] = &[
    Flag {
        names: &["shards"],
        takes: One("COUNT"),
        default: Text("all cores this process may use; where light models run on workers, a quarter of them at most"),
        help: "Threads that serve connections, one per core",
        apply: |settings, value| set_count(settings.shards.get_or_insert_default(), value),
    },
    Flag {
        names: &["worker-cores"],
        takes: One("CORES"),
        default: Text("those without a shard; all for heavy models and processes"),
        help: "Cores for models, as in 2-5,8; shards use them only if there are too few others",
        apply: |settings, value| {
            settings.worker_cores = Some(parse_cores(value)?);
            Ok(())
        },
    },
    Flag {
        names: &["pin"],
        takes: One("auto|on|off"),
        default: Value("auto"),
        help: "on: threads stay on the cores that the server gives them; auto: the same, but a thread whose core other \
               programs use may run on all cores for a minute or longer, unless --worker-cores or --host-policy is \
               given; off: the kernel places all threads",
        apply: |settings, value| {
            let names = &[("auto", Pinning::Auto), ("on", Pinning::On), ("off", Pinning::Off)];
            set_one_of(&mut settings.pinning, value, names)
        },
    },
    Flag {
        names: &["host-policy"],
        takes: Many("NAME,SETTING=VALUE"),
        default: Absent,
        help: "cpu-cores: cores of instances whose group has this host_policy, as in 2-5,8; 'cpu' for groups without one. \
               Backends of Triton's get all settings of the policy of an instance",
        apply: |settings, value| {
            let [name, setting, value] = parse_host_policy(value)?;
            match setting {
                "cpu-cores" => {
                    settings.host_policies.insert(name.to_owned(), parse_cores(value)?);
                }
                _ => settings.warnings.push(format!(
                    "--host-policy={name},{setting} is for backends of Triton's alone; 'cpu-cores' chooses the cores"
                )),
            }
            let policy = settings.host_policy_settings.entry(name.to_owned()).or_default();
            policy.insert(setting.to_owned(), value.to_owned());
            Ok(())
        },
    },
    Flag {
        names: &["run-timeout-secs"],
        takes: One("SECONDS"),
        default: Value("60"),
        help: "Timeout of a run of an ONNX model, or of a backend in a process of its own, 0 for no limit: then it is \
               stopped and its requests fail; one that cannot be stopped (embedded engine) makes its model not ready. \
               A model's parameter run_timeout_secs overrides it",
        apply: |settings, value| set(&mut settings.run_timeout, parse(value).map(Duration::from_secs)),
    },
    Flag {
        names: &["rate-limit"],
        takes: One("execution_count|off"),
        default: Value("off"),
        help: "execution_count: instances run only while they hold their rate_limiter's resources, by priority; off: \
               whenever idle",
        apply: |settings, value| {
            set_one_of(&mut settings.rate_limit.is_on, value, &[("execution_count", true), ("off", false)])
        },
    },
    Flag {
        names: &["rate-limit-resource"],
        takes: Many("NAME:COUNT[:DEVICE]"),
        default: Text("the largest amount that one instance needs"),
        help: "Amount of a resource; the CPU is device 0",
        apply: |settings, value| {
            settings.rate_limit.resources.push(parse_resource(value)?);
            Ok(())
        },
    },
    Flag {
        names: &["io"],
        takes: One("auto|ring|epoll|glommio"),
        default: Value("auto"),
        help: "I/O of the sockets: io_uring (ring, Linux 6.1), epoll or glommio; auto is io_uring, else falls back to \
               epoll",
        apply: |settings, value| {
            set_one_of(
                &mut settings.io,
                value,
                &[("auto", Io::Auto), ("epoll", Io::Epoll), ("glommio", Io::Glommio), ("ring", Io::Ring)],
            )
        },
    },
    Flag {
        names: &["spin"],
        takes: One("MICROSECONDS"),
        default: Value("auto"),
        help: "How long a shard polls for work before it sleeps, which saves wake-ups and costs CPU; auto: up to 50 \
               microseconds while that finds work, on a core that neither workers nor a CPU limit share; 0: never",
        apply: |settings, value| {
            let time = match value {
                "auto" => Ok(SpinTime::Auto),
                _ => parse(value)
                    .map(|micros| SpinTime::Fixed(Duration::from_micros(micros)))
                    .map_err(|error| format!("{error}, or auto")),
            };
            set(&mut settings.spin, time)
        },
    },
];

const GPU_FLAGS: &[Flag<Settings>] = &[
    Flag {
        names: &["gpu"],
        takes: One("auto|off|require"),
        default: Value("auto"),
        help: "auto: models whose instance groups have KIND_GPU run on GPUs, and are refused without one; off: they \
               run on the CPU, with a warning, and GPUs are not probed; require: as auto, and the server does not \
               start without a GPU",
        apply: |settings, value| {
            set_one_of(
                &mut settings.gpu,
                value,
                &[("auto", GpuUse::Auto), ("off", GpuUse::Off), ("require", GpuUse::Require)],
            )
        },
    },
    Flag {
        names: &["gpu-auto"],
        takes: One(BOOL),
        default: Value("false"),
        help: "Run models whose instance groups leave it open (KIND_AUTO, or no kind) on GPUs; KIND_GPU always does; \
               ignored with --gpu=off",
        apply: |settings, value| set(&mut settings.uses_gpu_unasked, parse_bool(value)),
    },
    Flag {
        names: &["gpu-memory-bytes-max"],
        takes: One("BYTES"),
        default: Text("all"),
        help: "Bytes of each GPU's memory that models may use, for weights and batches; a model that needs more is not \
               loaded there",
        apply: |settings, value| set_count(&mut settings.gpu_memory_bytes_max, value),
    },
    Flag {
        names: &["gpu-run-secs-max"],
        takes: One("SECONDS"),
        default: Value("60"),
        help: "Timeout of a batch on a GPU, after which its requests fail and its instance is recreated",
        apply: |settings, value| set(&mut settings.gpu_run_max, parse(value).map(Duration::from_secs)),
    },
    Flag {
        names: &["pinned-memory-pool-byte-size"],
        takes: One("BYTES"),
        default: Value("268435456"),
        help: "Bytes of pinned host memory for copies from and to GPUs",
        apply: |settings, value| set_count(&mut settings.pinned_memory_bytes_max, value),
    },
    Flag {
        names: &["cuda-memory-pool-byte-size"],
        takes: Many("GPU:BYTES"),
        default: Absent,
        help: "Accepted for compatibility with Triton and ignored: an instance allocates what its batches need when it \
               is created; see --gpu-memory-bytes-max",
        apply: |settings, value| {
            let is_pair = value
                .split_once(':')
                .is_some_and(|(gpu, bytes)| gpu.parse::<u32>().is_ok() && bytes.parse::<u64>().is_ok());
            settings.warnings.push(CUDA_POOL_WITHOUT_EFFECT.to_owned());
            if is_pair { Ok(()) } else { Err("expected GPU:BYTES, as in 0:67108864".to_owned()) }
        },
    },
];

const LOG_FLAGS: &[Flag<Settings>] = &[
    Flag {
        names: &["log-verbose"],
        takes: One("LEVEL"),
        default: Value("0"),
        help: "0 for none; 1 or more for what each load decided, and a line for each request; true for 1",
        apply: |settings, value| {
            let level = parse(value).or_else(|_| parse_bool(value).map(u32::from));
            set(&mut settings.log.verbose, level.map_err(|_| "expected a whole number, true or false".to_owned()))
        },
    },
    Flag {
        names: &["log-info"],
        takes: One(BOOL),
        default: Value("true"),
        help: "Log lines of level info",
        apply: |settings, value| set(&mut settings.log.info, parse_bool(value)),
    },
    Flag {
        names: &["log-warning"],
        takes: One(BOOL),
        default: Value("true"),
        help: "Log warnings",
        apply: |settings, value| set(&mut settings.log.warning, parse_bool(value)),
    },
    Flag {
        names: &["log-error"],
        takes: One(BOOL),
        default: Value("true"),
        help: "Log errors",
        apply: |settings, value| set(&mut settings.log.error, parse_bool(value)),
    },
    Flag {
        names: &["log-format"],
        takes: One("default|ISO8601|json"),
        default: Value("default"),
        help: "Format of a line: tritonserver's default, its ISO 8601 format, or one JSON object per line",
        apply: |settings, value| set_one_of(&mut settings.log.format, value, &LogFormat::NAMES),
    },
    Flag {
        names: &["log-file"],
        takes: One("FILE"),
        default: Text("standard error"),
        help: "File that the log is appended to; SIGHUP reopens it, for rotation",
        apply: |settings, value| {
            settings.log_file = Some(PathBuf::from(value)).filter(|path| !path.as_os_str().is_empty());
            Ok(())
        },
    },
    Flag {
        names: &["access-log"],
        takes: One("RATE"),
        default: Value("off"),
        help: "Log a line for a random sample of requests, 0.01 for one in a hundred, 1 for all: model, version, id, \
               status, duration, bytes, peer",
        apply: |settings, value| set(&mut settings.access_log_per_million, parse_rate(value)),
    },
    Flag {
        names: &["allow-log-settings"],
        takes: One(BOOL),
        default: Text("false; with --compat=triton true"),
        help: "Let clients change the log settings by /v2/logging and LogSettings; reading them is always allowed",
        apply: |settings, value| set(settings.allows_log_settings.get_or_insert_default(), parse_bool(value)),
    },
    Flag {
        names: &["server-timing"],
        takes: Switch,
        default: Absent,
        help: "Answer every inference with Server-Timing (over gRPC a trailer), not only to clients that send \
               'want-server-timing: 1'",
        apply: |settings, _| {
            settings.tells_timing = true;
            Ok(())
        },
    },
];
