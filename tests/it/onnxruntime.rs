//! ONNX Runtime as the engine: the library is that of the wheel in a Python environment, and the server's answers agree
//! with it called from Python. Then the library that is absent, broken or old, and the settings of a model.

mod engine;
mod operators;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use crate::support::folder::Folder;
use crate::support::http;
use crate::support::onnx;
use crate::support::onnx::builder::{FLOAT, Onnx};
use crate::support::python::Environment;
use crate::support::repository;
use crate::support::server::{Ports, Server};

/// The environment of all tests; `None` if it cannot be made.
pub fn environment() -> Option<&'static Environment> {
    static ENVIRONMENT: OnceLock<Option<Environment>> = OnceLock::new();
    ENVIRONMENT.get_or_init(Environment::shared).as_ref()
}

/// The library of its wheel.
fn library(environment: &Environment) -> PathBuf {
    let folder = environment.packages().join("onnxruntime/capi");
    let is_library = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("libonnxruntime.so");
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).find(is_library).expect("the wheel has it")
}

/// The flag that names the library.
pub fn flag(environment: &Environment) -> String {
    format!("--backend-config=onnxruntime,library={}", library(environment).display())
}

fn run(environment: &Environment, script: &str, verb: &str, argument: &str) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(script);
    let mut command = Command::new(environment.python());
    let output = command.arg(script).args([verb, argument]).output().expect("the interpreter starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// A server without any Python around it, with these variables.
pub fn start(repository: &Folder, flags: &[&str], variables: &[(&str, &Path)]) -> Server {
    let ports = Ports::free();
    let mut command = command(repository, flags, ports);
    command.envs(variables.iter().copied());
    Server::start(command, ports)
}

/// Runs a server that does not start for this reason.
fn assert_refuses(mut command: Command, want: &str) {
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && text.contains(want), "{want:?} is not in\n{text}");
}

pub fn command(repository: &Folder, flags: &[&str], ports: Ports) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_deuteron"));
    command.arg("serve").arg(repository.path()).args(flags);
    for (flag, port) in [("http", ports.http), ("grpc", ports.grpc), ("metrics", ports.metrics)] {
        command.arg(format!("--{flag}-port={port}"));
    }
    for variable in ["ORT_DYLIB_PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "HOME", "PYTHONUSERBASE"] {
        command.env_remove(variable);
    }
    command.env("PATH", "/nowhere");
    command
}

/// A repository of models that add and subtract, each with this much of a configuration.
fn repository(models: &[(&str, &str)]) -> Folder {
    let repository = Folder::new("onnxruntime");
    for (name, config) in models {
        let model = repository.path().join(name);
        fs::create_dir_all(model.join("1")).unwrap();
        fs::write(model.join("config.pbtxt"), config).unwrap();
        fs::write(model.join("1/model.onnx"), Onnx::addsub(FLOAT)).unwrap();
    }
    repository
}

pub fn parameters(parameters: &[(&str, &str)]) -> String {
    let line = |(key, value): &(&str, &str)| {
        format!("parameters {{ key: \"{key}\" value {{ string_value: \"{value}\" }} }}\n")
    };
    parameters.iter().map(line).collect()
}

/// Checks that the model adds.
pub fn assert_adds(server: &Server, model: &str) {
    let row = |value: &str| [value; 16].join(",");
    let input = |name: &str, value: &str| {
        format!(r#"{{"name":"{name}","shape":[1,16],"datatype":"FP32","data":[{}]}}"#, row(value))
    };
    let body = format!(r#"{{"inputs":[{},{}]}}"#, input("INPUT0", "1.5"), input("INPUT1", "2"));
    let answer = http::post(server.http(), &format!("/v2/models/{model}/infer"), body.as_bytes()).unwrap();
    let text = String::from_utf8(answer.body).unwrap();
    assert!(answer.status == 200 && text.contains(&format!("\"data\":[{}]", row("3.5"))), "{} {text}", answer.status);
}

/// The line of the log about a model's load.
fn load_line(server: &Server, model: &str) -> String {
    let log = server.log();
    log.lines().find(|line| line.contains(&format!("'{model}' version"))).unwrap_or(&log).to_owned()
}

#[test]
fn every_datatype_and_what_the_embedded_engine_lacks_is_served_as_python_computes_it() {
    let Some(environment) = environment() else { return };
    let repository = Folder::new("onnxruntime-models");
    run(environment, "onnxruntime/check.py", "write", &repository.path().display().to_string());
    let server = start(&repository, &[&flag(environment), "--exit-on-error=false", "--strict-readiness=false"], &[]);
    let text = run(environment, "onnxruntime/check.py", "check", &server.http().to_string());
    assert_eq!(text.lines().filter(|line| line.starts_with("ok ")).count(), 16, "{text}");
    let log = server.log();
    let way_out = "output 'z' is a sequence, not a tensor; to serve the others, write into config.pbtxt: output {";
    assert!(log.contains(way_out), "{log}");
    let embedded = start(&repository, &["--exit-on-error=false", "--strict-readiness=false"], &[]);
    let log = embedded.log();
    for name in ["tree", "addsub_float64", "addsub_object", "addsub_uint64"] {
        let line = log.lines().find(|line| line.contains(&format!("failed to load '{name}'"))).unwrap_or_default();
        let way_out = "serve the model with ONNX Runtime (--backend-config=onnxruntime,library=PATH)";
        assert!(line.contains(way_out), "{name}: {line}");
    }
}

#[test]
fn the_example_has_its_classes_from_the_library_too() {
    let Some(environment) = environment() else { return };
    let repository = Folder::new("onnxruntime-example");
    repository::add_example(repository.path(), "digits");
    let server = start(&repository, &[&flag(environment)], &[]);
    assert!(load_line(&server, "digits").contains("with ONNX Runtime 1.31"), "{}", server.log());
    let request = fs::read(repository.path().join("digits/request.json")).unwrap();
    let answer = http::post(server.http(), "/v2/models/digits/infer", &request).unwrap();
    assert!(String::from_utf8_lossy(&answer.body).contains(":7:seven"));
}

#[test]
fn the_wheel_of_an_active_environment_is_found_and_a_model_may_choose_otherwise() {
    let Some(environment) = environment() else { return };
    let embedded = parameters(&[("engine", "embedded")]);
    let models =
        [("m", "platform: \"onnxruntime_onnx\""), ("n", "backend: \"onnxruntime\""), ("own", embedded.as_str())];
    let repository = repository(&models);
    let check = |server: &Server, source: &str| {
        assert!(server.log().contains(&format!("({source})")), "{}", server.log());
        for (name, engine) in
            [("m", "ONNX Runtime 1.31"), ("n", "ONNX Runtime 1.31"), ("own", "the embedded engine (rten 0.27.0)")]
        {
            let line = load_line(server, name);
            assert!(line.contains(&format!("with {engine} in")), "{line}");
            assert_adds(server, name);
        }
    };
    check(&start(&repository, &[], &[("VIRTUAL_ENV", environment.path())]), "VIRTUAL_ENV");
    check(&start(&repository, &[], &[("CONDA_PREFIX", environment.path())]), "CONDA_PREFIX");
    check(&start(&repository, &[], &[("PATH", &environment.path().join("bin"))]), "python3 in PATH");
    let library = library(environment);
    check(&start(&repository, &[], &[("ORT_DYLIB_PATH", &library)]), "ORT_DYLIB_PATH");
    let server = start(&repository, &["--backend-config=onnxruntime,engine=embedded"], &[("ORT_DYLIB_PATH", &library)]);
    assert!(
        load_line(&server, "m").contains("with the embedded engine (rten ") && !server.log().contains("opened"),
        "{}",
        server.log()
    );
}

#[test]
fn a_graph_inside_an_operator_never_runs_in_a_shard() {
    let Some(environment) = environment() else { return };
    let folder = Folder::new("onnxruntime-loop");
    // By default a process has it, since a request sets the number of rounds.
    let alone = parameters(&[("isolation", "none")]);
    let config = format!("name: \"counting\"\nbackend: \"onnxruntime\"\nmax_batch_size: 0\n{alone}");
    repository::add(folder.path(), "counting", &config, Some(&onnx::counting()));
    let server = start(&folder, &[&flag(environment)], &[]);
    let line = load_line(&server, "counting");
    assert!(line.contains("runs on workers (its operator 'Loop' runs a graph inside it)"), "{line}");
}

#[test]
fn ragged_batches_and_optional_inputs_are_served_by_the_library_too() {
    let Some(environment) = environment() else { return };
    let repository = Folder::new("onnxruntime-ragged");
    let segments = "platform: \"onnxruntime_onnx\" max_batch_size: 8 instance_group { count: 1 kind: KIND_CPU }\n\
        dynamic_batching { preferred_batch_size: 3 max_queue_delay_microseconds: 10000000 }\n\
        input { name: \"X\" data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true }\n\
        batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO\n\
                      target_name: \"ENDS\" data_type: TYPE_INT32 source_input: \"X\" }\n\
        output { name: \"SUM\" data_type: TYPE_FP32 dims: 1 } output { name: \"TWICE\" data_type: TYPE_FP32 dims: -1 }\n\
        batch_output { target_name: \"TWICE\" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: \"X\" }";
    repository::add(repository.path(), "segments", segments, Some(&onnx::segments()));
    let add = "input { name: \"x\" data_type: TYPE_FP32 dims: 2 } output { name: \"y\" data_type: TYPE_FP32 dims: 2 }\n\
        input { name: \"b\" data_type: TYPE_FP32 dims: 2 optional: true }";
    repository::add(repository.path(), "add", add, Some(&onnx::add_default()));
    let server = start(&repository, &[&flag(environment), "--shards=1"], &[]);
    assert!(load_line(&server, "segments").contains("with ONNX Runtime"), "{}", server.log());
    let ask = |model: &str, inputs: &[(&str, &str, &str)], want: &[&str]| {
        let input = |(name, shape, data): &(&str, &str, &str)| {
            format!(r#"{{"name":"{name}","shape":[{shape}],"datatype":"FP32","data":[{data}]}}"#)
        };
        let inputs: Vec<_> = inputs.iter().map(input).collect();
        let body = format!(r#"{{"inputs":[{}]}}"#, inputs.join(","));
        let answer = http::post(server.http(), &format!("/v2/models/{model}/infer"), body.as_bytes()).unwrap();
        let text = String::from_utf8(answer.body).unwrap();
        assert!(answer.status == 200 && want.iter().all(|want| text.contains(want)), "{want:?} {text}");
    };
    thread::scope(|scope| {
        let ask = &ask;
        scope.spawn(move || {
            ask("segments", &[("X", "1,3", "1,2,4")], &[r#""data":[7.0]"#, r#""shape":[1,3],"data":[2.0,4.0,8.0]"#]);
        });
        scope.spawn(move || {
            ask("segments", &[("X", "1,1", "8")], &[r#""data":[8.0]"#, r#""shape":[1,1],"data":[16.0]"#])
        });
        scope.spawn(move || {
            ask("segments", &[("X", "1,2", "16,32")], &[r#""data":[48.0]"#, r#""shape":[1,2],"data":[32.0,64.0]"#]);
        });
    });
    assert_eq!(crate::support::metrics::batches_left(server.metrics(), "segments"), 1);
    ask("add", &[("x", "2", "1,2")], &["[11.0,22.0]"]);
    ask("add", &[("b", "2", "3,4"), ("x", "2", "1,2")], &["[4.0,6.0]"]);
    ask("add", &[("x", "2", "1,2")], &["[11.0,22.0]"]);
}

#[test]
fn a_file_is_loaded_as_it_was_opened_and_by_its_path_where_it_keeps_tensors_in_others() {
    let Some(environment) = environment() else { return };
    let repository = repository(&[("plain", "")]);
    let outside = Folder::new("onnxruntime-outside");
    let weights = [10_f32, 20.0].map(f32::to_le_bytes).concat();
    fs::write(outside.path().join("weights"), &weights).unwrap();
    let full = outside.path().join("weights").display().to_string();
    for (name, place) in [("beside", "w.data"), ("up", "../w.data"), ("full", &full), ("link", "out")] {
        repository::add(repository.path(), name, "", Some(&onnx::add_external(place)));
        let version = repository.path().join(name).join("1");
        fs::write(version.join("w.data"), &weights).unwrap();
        fs::write(version.with_file_name("w.data"), &weights).unwrap();
        std::os::unix::fs::symlink(outside.path().join("weights"), version.join("out")).unwrap();
    }
    for flag in [flag(environment), "--backend-config=onnxruntime,engine=embedded".to_owned()] {
        let jail = "--follow-links=false";
        let server = start(&repository, &[&flag, jail, "--exit-on-error=false", "--strict-readiness=false"], &[]);
        let is_library = flag.contains("library");
        let engine = if is_library { "with ONNX Runtime 1.31" } else { "with the embedded engine" };
        for name in ["plain", "beside"] {
            assert!(load_line(&server, name).contains(engine), "{}", server.log());
        }
        assert_adds(&server, "plain");
        let body = br#"{"inputs":[{"name":"x","shape":[2],"datatype":"FP32","data":[1,2]}]}"#;
        let answer = http::post(server.http(), "/v2/models/beside/infer", body).unwrap();
        let text = String::from_utf8(answer.body).unwrap();
        assert!(text.contains("[11.0,22.0]"), "{text}\n{}", server.log());
        if is_library {
            // The library opens the file by the name of its descriptor, which stays open for new instances.
            let folder = fs::read_dir(format!("/proc/{}/fd", server.id())).unwrap();
            let open: Vec<_> = folder.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok()).collect();
            let is_open = |name: &str| open.contains(&repository.path().join(name).join("1/model.onnx"));
            assert!(is_open("plain") && !is_open("beside"), "{open:?}");
        }
        let log = server.log();
        for (name, why) in [
            ("up", "keeps tensors in '../w.data', which does not lie beside it or below"),
            ("full", "which does not lie beside it or below"),
            ("link", "keeps tensors in 'out', which cannot be read beneath the repository"),
        ] {
            let line = log.lines().find(|line| line.contains(&format!("failed to load '{name}'"))).unwrap_or_default();
            assert!(line.contains(why), "{name}: {line}\n{log}");
        }
    }
}

/// A library that answers as ONNX Runtime of another release would.
fn old_library(folder: &Folder) -> PathBuf {
    let code = "static const char *version(void) { return \"1.16.3\"; }\n\
                static const void *api(unsigned wanted) { return 0; }\n\
                static const struct { const void *(*api)(unsigned); const char *(*version)(void); } base = { api, version };\n\
                const void *OrtGetApiBase(void) { return &base; }\n";
    compile(folder, code)
}

/// A library that is taken for ONNX Runtime, from its C code.
pub fn compile(folder: &Folder, code: &str) -> PathBuf {
    let (source, library) = (folder.path().join("old.c"), folder.path().join("libonnxruntime.so"));
    fs::write(&source, code).unwrap();
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).output();
    assert!(compiled.unwrap().status.success(), "the crates of this project need a C compiler too");
    library
}

#[test]
fn without_a_library_that_can_be_used_the_embedded_engine_serves_and_the_log_says_why() {
    let repository = repository(&[("m", "")]);
    let check = |variables: &[(&str, &Path)], want: &str| {
        let server = start(&repository, &[], variables);
        assert_adds(&server, "m");
        let log = server.log();
        assert!(load_line(&server, "m").contains("with the embedded engine (rten "), "{log}");
        assert!(
            log.contains("ONNX models fall back to the embedded engine") && log.contains(want),
            "{want:?} not in\n{log}"
        );
    };
    check(&[], "name one by --backend-config=onnxruntime,library=PATH or ORT_DYLIB_PATH");
    let folder = Folder::new("libraries");
    let text = folder.path().join("libonnxruntime.so.1");
    fs::write(&text, "this is no library").unwrap();
    check(&[("ORT_DYLIB_PATH", &text)], "(ORT_DYLIB_PATH) is not used as ONNX Runtime: it cannot be loaded");
    let old = old_library(&folder);
    check(&[("ORT_DYLIB_PATH", &old)], "is not used as ONNX Runtime: it is ONNX Runtime 1.16.3, older than 1.17");
}

#[test]
fn a_library_that_is_asked_for_and_cannot_be_used_ends_the_start() {
    let folder = Folder::new("libraries");
    let text = folder.path().join("libonnxruntime.so.1");
    fs::write(&text, "this is no library").unwrap();
    let old = old_library(&folder);
    let check = |config: &str, flags: &[&str], want: &str| {
        let output = command(&repository(&[("m", config)]), flags, Ports::free()).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && text.contains(want), "{want:?} is not in\n{text}");
    };
    let named = |library: &Path| format!("--backend-config=onnxruntime,library={}", library.display());
    check("", &[&named(&text)], "libonnxruntime.so.1: it cannot be loaded");
    check("", &[&named(&old)], "libonnxruntime.so: it is ONNX Runtime 1.16.3, older than 1.17");
    let nowhere = "--backend-config=onnxruntime,library=/nowhere/lib.so: it cannot be loaded";
    check("", &[&named(Path::new("/nowhere/lib.so"))], nowhere);
    check("", &[&named(Path::new("libc.so.6"))], "library=libc.so.6: it is not ONNX Runtime");
    check(&parameters(&[("engine", "onnxruntime")]), &[], "model 'm' needs ONNX Runtime: no library of it can be used");
    let absent = "--onnx-engine=onnxruntime: no library of it can be used";
    check("", &["--backend-config=onnxruntime,engine=onnxruntime"], absent);
    check("", &["--onnx-engine=onnxruntime", "--exit-on-error=false"], absent);
    let empty = format!("--backend-config=onnxruntime,library={}", env!("CARGO_MANIFEST_DIR"));
    check("", &[&empty], "there is no libonnxruntime.so in this directory");
    check(&parameters(&[("engine", "tract")]), &[], "expected 'embedded' or 'onnxruntime'");
}

#[test]
fn settings_of_a_model_are_honoured_or_refused_by_name() {
    let Some(environment) = environment() else { return };
    let worker = |more: &[(&str, &str)]| {
        format!("instance_group {{ count: 1 }}\n{}{}", parameters(&[("placement", "worker")]), parameters(more))
    };
    let flag = flag(environment);
    let cores = thread::available_parallelism().unwrap().get();
    let workers = if cores == 1 { "--worker-cores=0".to_owned() } else { format!("--worker-cores=1-{}", cores - 1) };
    let tasks = |config: &str| {
        let server = start(&repository(&[("m", config)]), &[&flag, "--shards=1", &workers], &[]);
        assert_adds(&server, "m");
        let count = || fs::read_dir(format!("/proc/{}/task", server.id())).unwrap().count();
        // A thread of the load may just be ending.
        let counts = (0..20).map(|_| {
            thread::sleep(Duration::from_millis(25));
            count()
        });
        counts.min().unwrap()
    };
    let left = cores.saturating_sub(1).max(1);
    let alone = tasks(&worker(&[("intra_op_thread_count", "1")]));
    assert_eq!(tasks(&worker(&[("intra_op_thread_count", "4")])), alone + 3);
    assert_eq!(tasks(&worker(&[])), alone + (left - 1), "one for each of {left} cores");
    let parallel = [("execution_mode", "1"), ("intra_op_thread_count", "1"), ("inter_op_thread_count", "3")];
    assert_eq!(tasks(&worker(&parallel)), alone + 2);
    let every = [
        ("enable_mem_arena", "0"),
        ("enable_mem_pattern", "1"),
        ("memory.enable_memory_arena_shrinkage", ""),
        ("session.intra_op.allow_spinning", "1"),
    ];
    tasks(&(worker(&every) + "optimization { graph { level: 1 } }\n"));
    // Settings for GPUs have no effect on the CPU, as in Triton.
    let accelerator =
        "gpu_execution_accelerator { name: \"tensorrt\" parameters { key: \"precision_mode\" value: \"FP16\" } }";
    let config = format!("optimization {{ execution_accelerators {{ {accelerator} }} }}");
    let server = start(&repository(&[("m", &config)]), &[&flag], &[]);
    assert_adds(&server, "m");
    let note = "'m': gpu_execution_accelerator 'tensorrt' has no effect: no instance is on a GPU";
    assert!(server.log().contains(note), "{}", server.log());
    let refused = |config: &str, want: &str| {
        assert_refuses(command(&repository(&[("m", config)]), &[&flag], Ports::free()), want)
    };
    refused(
        &parameters(&[("intra_op_thread_count", "many")]),
        "parameter 'intra_op_thread_count' of model 'm' is 'many', expected a whole number",
    );
    refused("optimization { graph { level: 3 } }", "'optimization.graph.level' of model 'm' is 3");
    let openvino = "optimization { execution_accelerators { cpu_execution_accelerator { name: \"openvino\" } } }";
    let text = "cpu_execution_accelerator 'openvino' of model 'm' is not in this ONNX Runtime library; install the package \
                onnxruntime-openvino in place of onnxruntime, or remove it";
    let server = start(&repository(&[("m", openvino)]), &[&flag], &[]);
    assert_adds(&server, "m");
    assert_eq!(server.log().matches(text).count(), 1, "{}", server.log());
    let folder = repository(&[("m", openvino)]);
    assert_refuses(command(&folder, &[&flag, "--strict-accelerators"], Ports::free()), text);
    refused(
        "optimization { execution_accelerators { cpu_execution_accelerator { name: \"other\" } } }",
        "cpu_execution_accelerator 'other' of model 'm' is not known; there are 'dnnl', 'openvino' and 'xnnpack'",
    );
    let two = [("intra_op_thread_count", "2"), ("placement", "inline")];
    refused(&parameters(&two), "model 'm' cannot be placed inline");
}

#[test]
fn instances_run_side_by_side_and_the_flag_sets_the_batch() {
    let Some(environment) = environment() else { return };
    let config = format!("instance_group {{ count: 3 }}\n{}", parameters(&[("placement", "worker")]));
    let flags = [&flag(environment), "--backend-config=default-max-batch-size=7"];
    let server = start(&repository(&[("m", &config)]), &flags, &[]);
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| (0..50).for_each(|_| assert_adds(&server, "m")));
        }
    });
    let answer = http::get(server.http(), "/v2/models/m/config").unwrap();
    let text = String::from_utf8(answer.body).unwrap();
    assert!(text.contains("\"max_batch_size\":7"), "{text}");
}

#[test]
fn many_instances_share_the_weights_of_matrix_products_and_compute_with_them() {
    let Some(environment) = environment() else { return };
    // The identity, twice: 8 MiB.
    let one = |index: u32| f32::from(u8::from(index / 1024 == index % 1024)).to_le_bytes();
    let weights: Vec<u8> = (0..1024 * 1024).flat_map(one).collect();
    let file = Onnx::default()
        .constant("v", FLOAT, &[1024, 1024], &weights)
        .constant("w", FLOAT, &[1024, 1024], &weights)
        .node("MatMul", &["x", "v"], &["h"], &[])
        .node("MatMul", &["h", "w"], &["y"], &[])
        .input("x", FLOAT, &[-1, 1024])
        .output("y", FLOAT, &[-1, 1024])
        .into_bytes();
    let values: Vec<u8> = (0..1024_u16).flat_map(|value| f32::from(value).to_le_bytes()).collect();
    let resident_mib = |instances: usize| {
        let config = format!("instance_group {{ count: {instances} }}\n{}", parameters(&[("placement", "worker")]));
        let repository = repository(&[("m", &config)]);
        fs::write(repository.path().join("m/1/model.onnx"), &file).unwrap();
        // Memory freed after a load goes back to the system, and is not counted.
        let variables = [("MALLOC_MMAP_THRESHOLD_", Path::new("131072"))];
        let server = start(&repository, &[&flag(environment)], &variables);
        for _ in 0..3 * instances {
            let head = r#"{"inputs":[{"name":"x","shape":[1,1024],"datatype":"FP32","parameters":{"binary_data_size":4096}}],"parameters":{"binary_data_output":true}}"#;
            let length = [("Inference-Header-Content-Length", &*head.len().to_string())];
            let body = [head.as_bytes(), &values].concat();
            let request = http::request("POST", "/v2/models/m/infer", &length, &body);
            let answer = http::exchange(server.http(), &request).unwrap();
            assert!(answer.status == 200 && answer.body.ends_with(&values), "{}", answer.status);
        }
        let status = fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
    };
    // Not shared, ten hold 33 MiB more than two; shared, only their memory besides the weights.
    let [two, ten] = [2, 10].map(resident_mib);
    assert!(ten - two < 15.0, "two instances hold {two} MiB, ten {ten} MiB");
}
