//! Advice for a person who does not know the machine: `deuteron doctor`, the engine that serves, a flag's missing
//! requirement, and the cause of a failed start.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::folder::Folder;
use crate::support::onnx::{FLOAT, Onnx};
use crate::support::python::Environment;
use crate::support::{http, metrics, repository, server::Server};

fn twice() -> Vec<u8> {
    let onnx = Onnx::default().node("Add", &["x", "x"], &["y"], &[]);
    onnx.input("x", FLOAT, &[-1, 4]).output("y", FLOAT, &[-1, 4]).into_bytes()
}

/// The exit code and the output, standard output first.
fn deuteron(arguments: &[&str], variables: &[(&str, &Path)]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_deuteron"));
    for name in ["ORT_DYLIB_PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX"] {
        command.env_remove(name);
    }
    let output = command.args(arguments).envs(variables.iter().copied()).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn the_doctor_tells_what_was_found_where_and_fails_where_no_server_could_run() {
    let folder = Folder::new("doctor");
    let environment = folder.path().join("venv");
    let packages = environment.join("lib/python3.12/site-packages/onnxruntime/capi");
    fs::create_dir_all(&packages).unwrap();
    let library = packages.join("libonnxruntime.so.1.99.0");
    fs::write(&library, "this is no library").unwrap();
    // No variables of this machine, so that the outcome is the same on all.
    let bare = [("PATH", Path::new("")), ("HOME", folder.path()), ("VIRTUAL_ENV", &environment)];
    let (code, text) = deuteron(&[&["doctor"], PORTS].concat(), &bare);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("can run. With a path, as in `deuteron doctor DIRECTORY`, its models"), "{text}");
    let broken = format!("    VIRTUAL_ENV: {}: not used: it cannot be loaded", library.display());
    let version = concat!("deuteron ", env!("CARGO_PKG_VERSION"), " on Linux ");
    for line in [version, &broken, "    ORT_DYLIB_PATH: not set", "    pip install --user ("] {
        assert!(text.lines().any(|have| have.starts_with(line)), "{line:?} is not in\n{text}");
    }
    for part in ["  io_uring: ", "  cores: ", "  memory: ", "  open files: ", "\nGPUs\n", "no python3 in PATH"] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    let (code, text) = deuteron(&[&["doctor", "--backend-config=onnxruntime,library=/nowhere"], PORTS].concat(), &bare);
    assert!(code == Some(1) && text.contains("A server with these flags cannot run: no library of"), "{text}");
    let (code, text) = deuteron(&[&["doctor", "--worker-cores=1023"], PORTS].concat(), &bare);
    assert!(code == Some(1) && text.contains("cannot run: --worker-cores"), "{text}");
}

/// Ports that the system chooses.
const PORTS: &[&str] = &["--http-port=0", "--grpc-port=0", "--metrics-port=0"];

#[test]
fn the_doctor_checks_addresses_and_files_as_a_server_does() {
    let folder = Folder::new("doctor-files");
    repository::add(folder.path(), "m", "", Some(&twice()));
    let path = folder.path().to_str().unwrap();
    let bare = [("PATH", Path::new("")), ("HOME", folder.path())];
    let check = |flags: &[&str], want: &str| {
        let (code, text) = deuteron(&[&["doctor"], PORTS, flags].concat(), &bare);
        assert!(code == Some(1) && text.contains(want), "{want:?} is not in\n{text}");
        // A server with these flags does not start either.
        let (code, text) = deuteron(&[&["serve"], PORTS, flags].concat(), &bare);
        assert_eq!(code, Some(1), "{text}");
    };
    check(&["/nowhere"], "cannot run: --model-repository: cannot open the model repository '/nowhere': ");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!("--http-port={}", taken.local_addr().unwrap().port());
    let want = format!("--http-port, --http-address: Socket '{}' already in use; end ", taken.local_addr().unwrap());
    check(&[path, &port, "--http-address=127.0.0.1"], &want);
    let socket = folder.path().join("admin");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let admin = format!("--admin-socket={}", socket.display());
    check(&[path, &admin], "is in use: another server listens there; end ");
    let tls = ["--http-use-ssl=true", "--http-server-cert=/nowhere/c", "--http-server-key=/nowhere/k"];
    check(&[&[path], &tls[..]].concat(), "--http-server-cert '/nowhere/c' cannot be read: ");
    check(&[path, "--api-keys-file=/nowhere/keys"], "--api-keys-file '/nowhere/keys' cannot be read: ");
    let (code, text) = deuteron(&[&["doctor", path], PORTS].concat(), &bare);
    assert!(code == Some(0) && text.ends_with("\nA server with these flags can run.\n"), "{text}");
    for line in ["  HTTP: 0.0.0.0:0, free\n", "  m: the embedded engine (rten ", ", version 1\n"] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
}

#[test]
fn the_doctor_names_a_model_py_that_steps_of_the_server_could_replace() {
    let Some(environment) = Environment::shared() else { return };
    let folder = Folder::new("doctor-steps");
    for model in
        ["examples/text/language_labels", "tests/python_models/label_postprocess", "tests/python_models/double"]
    {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join(model);
        repository::copy(&from, &folder.path().join(from.file_name().unwrap())).unwrap();
    }
    // Those that it has already are used, and not proposed.
    let steps = folder.path().join("language_labels/1/steps.json");
    let interpreter = format!("--backend-config=python,interpreter={}", environment.python().display());
    let path = folder.path().to_str().unwrap();
    let part = format!(
        "    a part of its model.py can run as 2 steps without Python: deuteron steps suggest {path}/label_postprocess\n"
    );
    let whole =
        format!("    its model.py can run as 1 step without Python: deuteron steps suggest {path}/language_labels\n");
    for is_proposed in [false, true] {
        let (code, text) = deuteron(&[&["doctor", path, &interpreter], PORTS].concat(), &[]);
        assert_eq!(code, Some(0), "{text}");
        let told = text.lines().filter(|line| line.contains("steps suggest")).count();
        assert_eq!(
            (told, text.contains(&part), text.contains(&whole)),
            (1 + usize::from(is_proposed), true, is_proposed),
            "{text}"
        );
        let _ = fs::remove_file(&steps);
    }
}

#[test]
fn the_doctor_checks_the_log_the_rate_limits_and_the_default_model_as_a_server_does() {
    let folder = Folder::new("doctor-flags");
    let config = "backend: 'identity' max_batch_size: 8 input { name: 'x' data_type: TYPE_FP32 dims: 1 }
        output { name: 'y' data_type: TYPE_FP32 dims: 1 }
        instance_group { rate_limiter { resources { name: 'R' count: 5 } } }";
    repository::add(folder.path(), "a", config, None);
    repository::add(folder.path(), "b", config, None);
    let path = folder.path().to_str().unwrap();
    let vertex = [("AIP_PREDICT_ROUTE", Path::new("/predict")), ("AIP_HEALTH_ROUTE", Path::new("/health"))];
    let check = |flags: &[&str], want: Option<&str>| {
        let (code, text) = deuteron(&[&["doctor", path], PORTS, flags].concat(), &vertex);
        let Some(want) = want else { return assert_eq!(code, Some(0), "{flags:?}: {text}") };
        assert!(code == Some(1) && text.contains(want), "{want:?} is not in\n{text}");
        let (code, text) = deuteron(&[&["serve", path], PORTS, flags].concat(), &vertex);
        assert_eq!(code, Some(1), "{text}");
    };
    check(&["--log-file=/nowhere/log"], Some("--log-file: cannot open '/nowhere/log': No such file or directory"));
    check(&[&format!("--log-file={path}")], Some("Is a directory"));
    check(&["--admin-socket=/nowhere/admin"], Some("--admin-socket '/nowhere/admin' cannot be used: No such file"));
    let limited = ["--rate-limit=execution_count", "--rate-limit-resource=R:2"];
    check(&limited, Some("model 'a' cannot be served: Resource count for \"R\" is limited to 2"));
    check(&["--rate-limit=execution_count", "--rate-limit-resource=R:5"], None);
    let vertex = ["--allow-vertex-ai=true", "--vertex-ai-port=0"];
    check(&vertex, Some("Expect the model repository contains only a single model if default model is not specified"));
    check(&[&vertex[..], &["--vertex-ai-default-model=c"]].concat(), Some("Expect the default model 'c' is loaded"));
    check(&[&vertex[..], &["--vertex-ai-default-model=b"]].concat(), None);
    let log = folder.path().join("log");
    check(&[&format!("--log-file={}", log.display())], None);
    assert!(!log.exists(), "nothing is written");
}

/// A Redis that answers its first command with this line, and its address as flags.
fn redis(answer: &'static str) -> (std::thread::JoinHandle<()>, [String; 2]) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        assert!(stream.read(&mut [0; 256]).unwrap() > 0);
        stream.write_all(answer.as_bytes()).unwrap();
    });
    (server, ["--cache-config=redis,host=127.0.0.1".to_owned(), format!("--cache-config=redis,port={port}")])
}

#[test]
fn the_doctor_asks_redis_as_a_server_does() {
    let examine = |flags: &[String]| {
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        deuteron(&[&["doctor"], PORTS, &flags].concat(), &[])
    };
    let told = |answer| {
        let (server, flags) = redis(answer);
        let told = examine(&flags);
        server.join().unwrap();
        (told, flags)
    };
    let ((code, text), _) = told("+PONG\r\n");
    assert!(code == Some(0) && text.contains("\nResponse cache\n  Redis at 127.0.0.1:"), "{text}");
    assert!(text.contains(": reached\n"), "{text}");
    let ((code, text), _) = told("-NOAUTH Authentication required.\r\n");
    assert!(code == Some(1) && text.contains("refuses this server: NOAUTH Authentication required"), "{text}");
    assert!(text.contains("correct the user, the password or the database of --cache-config"), "{text}");
    // A server starts without these, so they are no fault.
    let ((code, text), flags) = told("HTTP/1.1 400 Bad Request\r\n\r\n");
    assert!(code == Some(0) && text.contains("cannot be reached: "), "{text}");
    let (code, text) = examine(&flags);
    assert!(code == Some(0) && text.contains("cannot be reached: Connection refused"), "{text}");
    assert!(text.contains("a server runs without its response cache until it can be"), "{text}");
}

#[test]
fn the_doctor_names_the_models_that_cannot_be_served_without_loading_any() {
    let folder = Folder::new("doctor-models");
    let add = |name: &str, config: &str, model: Option<&[u8]>| repository::add(folder.path(), name, config, model);
    let onnx = twice();
    add("good", "", Some(&onnx));
    add("gpu_only", "backend: 'onnxruntime' instance_group { kind: KIND_GPU }", Some(&onnx));
    add("no_file", "platform: 'onnxruntime_onnx'", None);
    add("wrong", "max_batch_size: 4 input { name: 'other' data_type: float32 dims: 1 }", Some(&onnx));
    let ensemble = |step: &str| {
        format!(
            "platform: 'ensemble' max_batch_size: 4 input {{ name: 'x' data_type: TYPE_FP32 dims: 4 }}
            output {{ name: 'y' data_type: TYPE_FP32 dims: 4 }} ensemble_scheduling {{ step {{ model_name: '{step}'
            model_version: -1 input_map {{ key: 'x' value: 'x' }} output_map {{ key: 'y' value: 'y' }} }} }}"
        )
    };
    add("of_good", &ensemble("good"), None);
    add("of_none", &ensemble("none"), None);
    add("scripted", "backend: 'python' input { name: 'x' data_type: TYPE_FP32 dims: 1 }", None);
    fs::write(folder.path().join("scripted/1/model.py"), "raise ValueError('it runs')").unwrap();
    let path = folder.path().to_str().unwrap();
    let bare = [("PATH", Path::new("")), ("HOME", folder.path()), ("CUDA_VISIBLE_DEVICES", Path::new(""))];
    let (code, text) = deuteron(&[&["doctor", path], PORTS].concat(), &bare);
    assert_eq!(code, Some(1), "{text}");
    for (name, want) in [
        ("good", "the embedded engine (rten "),
        ("gpu_only", "cannot be served: "),
        ("no_file", "cannot be served: cannot read 'no_file/1/model.onnx'"),
        ("of_good", "an ensemble of good, version 1"),
        ("of_none", "cannot be served: ensemble of_none contains models that are not available or ambiguous: none"),
        ("scripted", "cannot be served: "),
        ("wrong", "did you mean TYPE_FP32?"),
    ] {
        let line = text.lines().find(|line| line.starts_with(&format!("  {name}: "))).unwrap_or_default();
        assert!(line.contains(want), "{name}: {want:?} is not in {line:?}\n{text}");
    }
    assert!(text.contains("model 'gpu_only' cannot be served: ") && !text.contains("it runs"), "{text}");
    let (code, text) = deuteron(&[&["doctor", path, "--exit-on-error=false"], PORTS].concat(), &bare);
    assert!(code == Some(0) && text.contains("  gpu_only: cannot be served: "), "{text}");
    let (code, text) = deuteron(&[&["doctor", path, "--gpu=off", "--exit-on-error=false"], PORTS].concat(), &bare);
    assert!(code == Some(0) && text.contains("  gpu_only: the embedded engine"), "{text}");
}

#[test]
fn a_served_model_tells_its_engine_in_log_configuration_and_metrics() {
    let folder = Folder::new("engine");
    repository::add(folder.path(), "m", "", Some(&twice()));
    let server = Server::deuteron(folder.path(), &[]);
    assert!(server.log().contains("loaded 'm' version 1 with the embedded engine (rten 0."), "{}", server.log());
    let config = http::get(server.http(), "/v2/models/m/config").unwrap().body;
    let config: Value = serde_json::from_slice(&config).unwrap();
    let version = config["parameters"]["served_engine_version"]["string_value"].as_str().unwrap();
    assert_eq!(config["parameters"]["served_engine"], json!({"string_value": "embedded"}));
    assert!(version.starts_with("rten 0."), "{version}");
    let row =
        format!("deuteron_model_engine{{model=\"m\",engine=\"embedded\",engine_version=\"{version}\",version=\"1\"}}");
    assert_eq!(metrics::metric(server.metrics(), &row), 1);
}

#[test]
fn what_a_flag_requires_and_is_not_there_ends_the_start() {
    let folder = Folder::new("required");
    repository::add(folder.path(), "m", "", Some(&twice()));
    let path = folder.path().to_str().unwrap();
    let empty = [("PATH", Path::new("")), ("HOME", folder.path()), ("CUDA_VISIBLE_DEVICES", Path::new(""))];
    let (code, text) =
        deuteron(&["serve", path, "--gpu=require", "--http-port=0", "--grpc-port=0", "--metrics-port=0"], &empty);
    assert!(code == Some(1) && text.contains("error: creating server: --gpu=require: "), "{text}");
    let (code, text) = deuteron(&["config", "show", path, "--gpu=require"], &empty);
    assert!(code == Some(1) && text.starts_with("error: --gpu=require: "), "{text}");
}

#[test]
fn a_model_that_fails_is_named_at_the_end_of_the_start_with_what_to_do() {
    let folder = Folder::new("beginner");
    repository::add(folder.path(), "good", "", Some(&twice()));
    let bad = folder.path().join("bad");
    fs::create_dir(&bad).unwrap();
    fs::write(bad.join("model.onnx"), twice()).unwrap();
    let path = folder.path().to_str().unwrap();
    let (code, text) = deuteron(&["serve", path, "--http-port=0", "--grpc-port=0", "--metrics-port=0"], &[]);
    let want = "failed to load all models: 1 of 2 models failed ('bad'); --exit-on-error=false starts the server without \
                them";
    assert!(code == Some(1) && text.contains(want), "{text}");
    let why = "model 'bad' has no version directory; expected bad/1/model.onnx: move bad/model.onnx there";
    assert!(text.contains(why), "{text}");
    let server = Server::deuteron(folder.path(), &["--exit-on-error=false"]);
    let log = server.log();
    assert!(log.contains("ready, but 1 of 2 models failed ('bad'), after ") && log.contains(why), "{log}");
    let index = http::post(server.http(), "/v2/repository/index", b"").unwrap().body;
    let index = String::from_utf8(index).unwrap();
    assert!(index.contains(why) && !index.contains(path), "{index}");
}

#[test]
fn a_configuration_that_is_wrong_is_told_before_a_file_that_is_missing() {
    let folder = Folder::new("order");
    let wrong = "platform: 'onnxruntime_onnx' max_batch_size: 2 input { name: 'x' data_type: TYPE_FP32 dims: 0 }
        output { name: 'y' data_type: TYPE_FP32 dims: 1 }";
    repository::add(folder.path(), "no_file", wrong, None);
    repository::add(folder.path(), "no_version", wrong, None);
    fs::remove_dir_all(folder.path().join("no_version/1")).unwrap();
    let right = wrong.replace("dims: 0", "dims: 1");
    repository::add(folder.path(), "right", &right, None);
    let server = Server::deuteron(folder.path(), &["--exit-on-error=false", "--strict-readiness=false"]);
    let log = server.log();
    let line = |name: &str| log.lines().find(|line| line.contains(&format!("failed to load '{name}'"))).unwrap_or("");
    for name in ["no_file", "no_version"] {
        assert!(line(name).contains("dimension must be integer >= 1, or -1"), "{name}: {log}");
    }
    assert!(line("right").contains("right/1/model.onnx"), "{log}");
}

#[test]
fn the_example_of_the_load_generator_is_among_the_examples() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models");
    let server = Server::deuteron(&examples, &[]);
    let address = server.http().to_string();
    let line = ["bench", "-m", "identity", "-u", &address, "--concurrency-range=1", "--request-count=200"];
    let (code, text) = deuteron(&line, &[]);
    assert!(code == Some(0) && text.contains("infer/s"), "{text}");
}
