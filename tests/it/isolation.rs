//! ONNX models whose instances run in processes of their own: they answer as in the server, and a crash, a hang or
//! growth in such a process costs the server nothing.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::onnxruntime::{environment, flag, parameters};
use crate::support::folder::Folder;
use crate::support::metrics::metric;
use crate::support::onnx::builder::{BOOL, FLOAT, INT8, INT32, INT64, Onnx, UINT8};
use crate::support::over::Over;
use crate::support::server::Server;
use crate::support::{http, onnx, repository};

/// Time limit for a process to end or to start, on a busy machine.
const SOON: Duration = Duration::from_secs(20);
/// `TensorProto.DataType`: text.
const STRING: i64 = 8;

const ISOLATED: (&str, &str) = ("isolation", "process");

fn isolated() -> String {
    parameters(&[ISOLATED])
}

/// The ids of the processes whose parent is another.
pub fn children(parent: u32) -> Vec<u32> {
    let of_parent = |entry: fs::DirEntry| {
        let id: u32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        // `PID (NAME) STATE PARENT …`
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let (state, of) = (fields.next()?, fields.next()?.parse::<u32>().ok()?);
        (of == parent && state != "Z").then_some(id)
    };
    fs::read_dir("/proc").unwrap().flatten().filter_map(of_parent).collect()
}

fn is_alive(id: u32) -> bool {
    fs::read_to_string(format!("/proc/{id}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

pub fn signal(id: u32, name: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), &id.to_string()]).status().unwrap().success());
}

pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < SOON, "{what} takes too long");
        thread::sleep(Duration::from_millis(5));
    }
}

fn infer(server: &Server, model: &str, body: &Value) -> (u16, Value) {
    let answer = http::post(server.http(), &format!("/v2/models/{model}/infer"), body.to_string().as_bytes()).unwrap();
    (answer.status, serde_json::from_slice(&answer.body).unwrap())
}

pub fn is_ready(server: &Server, model: &str) -> bool {
    http::get(server.http(), &format!("/v2/models/{model}/ready")).unwrap().status == 200
}

fn input(name: &str, datatype: &str, shape: &[usize], data: &Value) -> Value {
    json!({"name": name, "shape": shape, "datatype": datatype, "data": data})
}

/// A request to a model with one input `x` of one row, and the expected answer.
fn row(values: &[f64]) -> Value {
    json!({"inputs": [input("x", "FP32", &[1, values.len()], &json!(values))]})
}

fn identity(datatype: i64) -> Vec<u8> {
    let onnx = Onnx::default().node("Identity", &["x"], &["y"], &[]);
    onnx.input("x", datatype, &[-1, -1]).output("y", datatype, &[-1, -1]).into_bytes()
}

/// A model that doubles its input.
fn double() -> Vec<u8> {
    let onnx = Onnx::default().node("Add", &["x", "x"], &["y"], &[]);
    onnx.input("x", FLOAT, &[-1, -1]).output("y", FLOAT, &[-1, -1]).into_bytes()
}

/// Adds a model to the server, and the same once more in a process.
fn add_both(folder: &Path, name: &str, config: &str, file: &[u8]) {
    repository::add(folder, name, config, Some(file));
    repository::add(folder, &format!("{name}_alone"), &format!("{config}\n{}", isolated()), Some(file));
}

/// Checks that both give the same answer to a request: the outputs, or the error but for the model's name.
fn assert_same(server: &Server, name: &str, body: &Value) {
    let alone = format!("{name}_alone");
    let ((status, mut want), (other, mut got)) = (infer(server, name, body), infer(server, &alone, body));
    for answer in [&mut want, &mut got] {
        answer["model_name"].take();
        if let Some(text) = answer["error"].as_str() {
            answer["error"] = text.replace(&alone, name).into();
        }
    }
    assert_eq!((other, got), (status, want), "{name} {body}");
}

/// Adds the models that both engines run.
fn add_models(folder: &Path) {
    for (name, datatype) in
        [("bool", BOOL), ("uint8", UINT8), ("int8", INT8), ("int32", INT32), ("int64", INT64), ("fp32", FLOAT)]
    {
        add_both(folder, name, "", &identity(datatype));
    }
    let labels = "output { name: 'y' data_type: TYPE_FP32 dims: [ -1 ] label_filename: 'labels.txt' }";
    let double_config = format!("max_batch_size: 64 input {{ name: 'x' data_type: TYPE_FP32 dims: [ -1 ] }} {labels}");
    add_both(folder, "double", &double_config, &double());
    for name in ["double", "double_alone"] {
        fs::write(folder.join(name).join("labels.txt"), "apple\nbanana\ncherry\n").unwrap();
    }
    add_both(folder, "lookup", "", &onnx::lookup());
    let optional = "input [ { name: 'x' data_type: TYPE_FP32 dims: 2 }, { name: 'b' data_type: TYPE_FP32 dims: 2 \
                    optional: true } ] output { name: 'y' data_type: TYPE_FP32 dims: 2 }";
    add_both(folder, "optional", optional, &onnx::add_default());
    add_both(folder, "external", "", &onnx::add_external("weights.data"));
    for name in ["external", "external_alone"] {
        let weights: Vec<u8> = [0.25_f32, -4.0].into_iter().flat_map(f32::to_le_bytes).collect();
        fs::write(folder.join(name).join("1/weights.data"), weights).unwrap();
    }
}

/// Checks that all of [`add_models`] answer alike.
fn assert_alike(server: &Server) {
    for (name, datatype, data) in [
        ("bool", "BOOL", json!([true, false, true])),
        ("uint8", "UINT8", json!([0, 7, 255])),
        ("int8", "INT8", json!([-128, 0, 127])),
        ("int32", "INT32", json!([-2_147_483_648_i64, 0, 2_147_483_647_i64])),
        ("int64", "INT64", json!([-7, 0, 2_147_483_647_i64])),
        ("fp32", "FP32", json!([-0.5, 0.0, 1e30])),
    ] {
        assert_same(server, name, &json!({"inputs": [input("x", datatype, &[1, 3], &data)]}));
        assert_same(server, name, &json!({"inputs": [input("x", datatype, &[0, 3], &json!([]))]}));
        // An error of the client.
        assert_same(server, name, &json!({"inputs": [input("x", datatype, &[3], &data)]}));
    }
    // From one line to requests whose regions must grow.
    for size in [1, 17, 5_000, 100_000, 400_000] {
        let values: Vec<f64> = (0..size).map(|index| f64::from(index) * 0.5).collect();
        assert_same(server, "double", &row(&values));
    }
    let classes = json!({"inputs": [input("x", "FP32", &[2, 3], &json!([1, 3, 2, 9, 8, 7]))],
                         "outputs": [{"name": "y", "parameters": {"classification": 2}}]});
    assert_same(server, "double", &classes);
    let (_, answer) = infer(server, "double_alone", &classes);
    assert_eq!(answer["outputs"][0]["data"][0], "6:1:banana");
    assert_same(server, "lookup", &json!({"inputs": [input("ROW", "INT32", &[3, 1], &json!([3, 0, 1]))]}));
    // The engine refuses this one, in its own words.
    assert_same(server, "lookup", &json!({"inputs": [input("ROW", "INT32", &[1, 1], &json!([9]))]}));
    let x = input("x", "FP32", &[2], &json!([1, 2]));
    assert_same(server, "optional", &json!({"inputs": [x]}));
    assert_same(server, "optional", &json!({"inputs": [x, input("b", "FP32", &[2], &json!([5, 6]))]}));
    assert_same(server, "external", &json!({"inputs": [x]}));
}

#[test]
fn answers_are_those_of_the_same_model_in_the_server() {
    let folder = Folder::new("isolation");
    add_models(folder.path());
    let mut server = Server::deuteron(folder.path(), &["--shards=1"]);
    assert_alike(&server);
    let log = server.log();
    let line = log.lines().find(|line| line.contains("loaded 'double_alone' version 1")).unwrap_or(&log);
    let want = "with the embedded engine (rten";
    assert!(line.contains(want) && line.contains("runs on workers (its engine is in a process of its own)"), "{line}");
    let config = http::get(server.http(), "/v2/models/double_alone/config").unwrap();
    let config: Value = serde_json::from_slice(&config.body).unwrap();
    assert_eq!(config["parameters"]["isolation"]["string_value"], "process");
    let before = children(server.id());
    assert!(!before.is_empty());
    // Weights in another file must be those that were checked; otherwise the process is not started again.
    fs::write(folder.path().join("external_alone/1/weights.data"), [0; 8]).unwrap();
    before.iter().for_each(|id| signal(*id, "KILL"));
    let x = json!({"inputs": [input("x", "FP32", &[2], &json!([1, 2]))]});
    until("the loss", || infer(&server, "external_alone", &x).0 == 503);
    let log = server.log();
    let want =
        "its process cannot be started: 'external_alone/1/weights.data' was changed since it was loaded; load it again";
    assert!(log.contains(want), "{log}");
    until("the next processes", || infer(&server, "double_alone", &row(&[1.0])).0 == 200);
    let before = children(server.id());
    assert!(server.stop().success());
    until("the end of the processes", || !before.iter().any(|id| is_alive(*id)));
}

#[test]
fn onnx_runtime_answers_from_a_process_as_in_the_server_with_text_too() {
    let Some(environment) = environment() else { return };
    let folder = Folder::new("isolation");
    add_models(folder.path());
    add_both(folder.path(), "text", "", &identity(STRING));
    let server = Server::deuteron(folder.path(), &[&flag(environment), "--shards=1"]);
    assert_alike(&server);
    let text = json!({"inputs": [input("x", "BYTES", &[1, 3], &json!(["", "a \u{e9}", "zz"]))]});
    assert_same(&server, "text", &text);
    assert_eq!(infer(&server, "text_alone", &text).1["outputs"][0]["data"], json!(["", "a \u{e9}", "zz"]));
}

#[test]
fn all_onnx_models_are_isolated_by_the_flag_and_a_parameter_says_otherwise() {
    let folder = Folder::new("isolation");
    repository::add(folder.path(), "by_flag", "instance_group { count: 3 }", Some(&double()));
    repository::add(folder.path(), "in_server", &parameters(&[("isolation", "none")]), Some(&double()));
    repository::add(folder.path(), "wrong", &parameters(&[("isolation", "thread")]), Some(&double()));
    let inline = parameters(&[("placement", "inline")]);
    repository::add(folder.path(), "inline", &inline, Some(&double()));
    let flags = ["--model-isolation=process", "--exit-on-error=false", "--strict-readiness=false"];
    let server = Server::deuteron(folder.path(), &flags);
    for model in ["by_flag", "in_server"] {
        let (status, answer) = infer(&server, model, &row(&[1.5]));
        assert!(status == 200 && answer["outputs"][0]["data"] == json!([3.0]), "{answer}");
    }
    assert_eq!(children(server.id()).len(), 3, "one for each instance");
    let log = server.log();
    assert!(log.contains("parameter 'isolation' of model 'wrong' is 'thread', expected 'none' or 'process'"), "{log}");
    let want = "model 'inline' cannot be placed inline: its engine is in a process of its own";
    assert!(log.contains(want), "{log}");
}

#[test]
fn a_process_that_is_killed_under_load_costs_no_more_than_its_batch() {
    let folder = Folder::new("isolation");
    let config = format!("instance_group {{ count: 1 }} max_batch_size: 8\n{}", isolated());
    repository::add(folder.path(), "m", &config, Some(&double()));
    let mut server = Server::deuteron(folder.path(), &["--shards=1"]);
    let (is_over, failed, served) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let signals = ["KILL", "ABRT", "FPE", "KILL"];
    const CLIENTS: usize = 4;
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (server, is_over, failed, served) = (&server, &is_over, &failed, &served);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let (status, answer) = infer(server, "m", &row(&[client as f64, 1.0]));
                    if status == 200 {
                        assert_eq!(answer["outputs"][0]["data"], json!([2.0 * client as f64, 2.0]));
                        served.fetch_add(1, Ordering::Relaxed);
                        continue;
                    }
                    let text = answer["error"].as_str().unwrap();
                    let want = "the process of model 'm' ended (killed by signal ";
                    assert!(status == 500 && text.contains(want) && text.contains("while it ran the batch"), "{text}");
                    failed.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let _over = Over(&is_over);
        for name in signals {
            let before = served.load(Ordering::Relaxed);
            until("answers", || served.load(Ordering::Relaxed) > before + 20);
            let [process] = children(server.id())[..] else { panic!("one process") };
            signal(process, name);
            until("the next process", || children(server.id()).iter().any(|id| *id != process));
        }
        let before = served.load(Ordering::Relaxed);
        until("answers afterwards", || served.load(Ordering::Relaxed) > before + 20);
    });
    let failed = failed.load(Ordering::Relaxed);
    assert!(failed <= CLIENTS * signals.len(), "at most those of one batch each time: {failed}");
    assert!(server.is_running() && is_ready(&server, "m"));
    let log = server.log();
    assert!(log.contains("its process ended (killed by signal ") && log.contains("was lost and is recreated"), "{log}");
    let successes = "nv_inference_request_success{model=\"m\",version=\"1\"}";
    assert_eq!(metric(server.metrics(), successes), served.load(Ordering::Relaxed) as u64);
    let restarts = "deuteron_instance_restarts_total{model=\"m\",version=\"1\"}";
    assert_eq!(metric(server.metrics(), restarts), signals.len() as u64);
    assert_eq!(server.stop().code(), Some(0));
}

#[test]
fn a_process_that_ends_while_nothing_runs_is_replaced_before_the_next_request() {
    let folder = Folder::new("isolation");
    let config = format!("instance_group {{ count: 1 }}\n{}", isolated());
    repository::add(folder.path(), "m", &config, Some(&double()));
    let server = Server::deuteron(folder.path(), &[]);
    assert_eq!(infer(&server, "m", &row(&[1.0])).0, 200);
    let [process] = children(server.id())[..] else { panic!("one process") };
    signal(process, "KILL");
    until("the next process", || children(server.id()).iter().any(|id| *id != process) && is_ready(&server, "m"));
    assert_eq!(infer(&server, "m", &row(&[1.0])).0, 200);
    // The server's process is killed: none of its child processes stays.
    let left = children(server.id());
    server.signal("KILL");
    until("the end of the processes", || !left.iter().any(|id| is_alive(*id)));
}

#[test]
fn a_run_beyond_the_time_limit_ends_its_process_and_the_instance_serves_again() {
    const ROWS: usize = 2_048;
    let folder = Folder::new("isolation");
    let limit = parameters(&[ISOLATED, ("run_timeout_secs", "1")]);
    let config = format!("max_batch_size: {ROWS} instance_group {{ count: 1 }}\n{limit}");
    repository::add(folder.path(), "heavy", &config, Some(&onnx::heavy(200)));
    let mut server = Server::deuteron(folder.path(), &["--exit-timeout-secs=1", "--shards=1"]);
    let request = |rows: usize| json!({"inputs": [input("X", "FP32", &[rows, 1], &json!(vec![0; rows]))]});
    for _ in 0..2 {
        assert_eq!(infer(&server, "heavy", &request(1)).0, 200);
        let [process] = children(server.id())[..] else { panic!("one process") };
        let (status, answer) = infer(&server, "heavy", &request(ROWS));
        let text = answer["error"].as_str().unwrap();
        assert!(status == 504 && text.contains("the run took longer than 1s (--run-timeout-secs"), "{text}");
        assert!(text.contains("and was stopped") && !is_alive(process), "{text}");
    }
    assert_eq!(infer(&server, "heavy", &request(1)).0, 200);
    let began = Instant::now();
    server.stop();
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

#[test]
fn unload_ends_the_processes_of_a_model() {
    let folder = Folder::new("isolation");
    repository::add(folder.path(), "m", &isolated(), Some(&double()));
    let server = Server::deuteron(folder.path(), &["--model-control-mode=explicit"]);
    let order = |what: &str| http::post(server.http(), &format!("/v2/repository/models/m/{what}"), b"").unwrap().status;
    for _ in 0..2 {
        assert_eq!(order("load"), 200);
        assert_eq!(infer(&server, "m", &row(&[1.0])).0, 200);
        assert_eq!(children(server.id()).len(), 2, "as Triton's, a model on the CPU has two instances");
        assert_eq!(order("unload"), 200);
        until("the end of the processes", || children(server.id()).is_empty());
    }
}

/// Memory that a process shares with others, and has touched, in KiB.
fn shared_memory(id: u32) -> usize {
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssShmem:")).unwrap();
    line.trim_end_matches("kB").trim().parse().unwrap()
}

#[test]
fn memory_stays_bounded_over_many_sizes_and_a_batch_beyond_the_bound_is_refused() {
    let folder = Folder::new("isolation");
    let config = format!("max_batch_size: 8 instance_group {{ count: 1 }}\n{}", isolated());
    repository::add(folder.path(), "m", &config, Some(&double()));
    let bound = 256 * 1024 * 1024;
    let server = Server::deuteron(folder.path(), &[&format!("--run-memory-bytes-max={bound}"), "--shards=1"]);
    let send = |count: usize| {
        let head = json!({"inputs": [{"name": "x", "shape": [1, count], "datatype": "FP32",
                                      "parameters": {"binary_data_size": count * 4}}],
                          "outputs": [{"name": "y", "parameters": {"binary_data": true}}]})
        .to_string();
        let body = [head.as_bytes(), &vec![0; count * 4]].concat();
        let length = head.len().to_string();
        let headers = [("Inference-Header-Content-Length", length.as_str())];
        let answer = http::exchange(server.http(), &http::request("POST", "/v2/models/m/infer", &headers, &body));
        let answer = answer.unwrap();
        (answer.status, answer.body.len())
    };
    for round in 0..3 {
        for megabytes in [1, 3, 24, 7, 40, 2] {
            let count = megabytes * 256 * 1024 + round;
            let (status, size) = send(count);
            assert!(status == 200 && size > count * 4, "{megabytes} MiB: {status}");
        }
    }
    // Two regions of 16 MiB stay, and the memory of the last small batch.
    let [process] = children(server.id())[..] else { panic!("one process") };
    let (ours, its) = (shared_memory(server.id()), shared_memory(process));
    assert!(ours < 40 * 1024 && its < 40 * 1024, "{ours} KiB, {its} KiB");
    assert_eq!(send(1).0, 200);
    assert_eq!(children(server.id()), [process], "all of it was one process");
}

#[test]
fn a_sequence_keeps_its_state_in_the_server_and_loses_it_with_the_process() {
    let folder = Folder::new("isolation");
    let config = "platform: 'onnxruntime_onnx' max_batch_size: 4 instance_group { count: 1 }
        input { name: 'INPUT0' data_type: TYPE_INT32 dims: 16 }
        output { name: 'OUTPUT0' data_type: TYPE_INT32 dims: 16 }
        sequence_batching { oldest { max_candidate_sequences: 3 } state { input_name: 'INPUT1' output_name: 'OUTPUT0'
        data_type: TYPE_INT32 dims: 16 } }";
    repository::add(folder.path(), "m", &format!("{config}\n{}", isolated()), Some(&onnx::addsub()));
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    let send = |start: bool, value: i64| {
        infer(
            &server,
            "m",
            &json!({"parameters": {"sequence_id": 7, "sequence_start": start, "sequence_end": false},
                    "inputs": [input("INPUT0", "INT32", &[1, 16], &json!(vec![value; 16]))]}),
        )
    };
    for (start, value, sum) in [(true, 3, 3), (false, 4, 7), (false, 5, 12)] {
        assert_eq!(send(start, value).1["outputs"][0]["data"][0], sum);
    }
    let [process] = children(server.id())[..] else { panic!("one process") };
    signal(process, "KILL");
    until("the next process", || children(server.id()).iter().any(|id| *id != process) && is_ready(&server, "m"));
    let (status, answer) = send(false, 1);
    assert!(status >= 400, "{answer}");
    assert_eq!(send(true, 6).1["outputs"][0]["data"][0], 6);
}

#[test]
fn a_model_that_cannot_be_loaded_says_why_as_in_the_server() {
    let folder = Folder::new("isolation");
    let bad = Onnx::default().node("NoSuchOperator", &["x"], &["y"], &[]);
    let bad = bad.input("x", FLOAT, &[1]).output("y", FLOAT, &[1]).into_bytes();
    add_both(folder.path(), "bad", "", &bad);
    add_both(folder.path(), "good", "", &double());
    let flags = ["--exit-on-error=false", "--strict-readiness=false", "--trial-loads=off"];
    let server = Server::deuteron(folder.path(), &flags);
    assert_eq!(infer(&server, "good_alone", &row(&[1.0])).0, 200);
    let log = server.log();
    let why = |model: &str| {
        let line = log.lines().find_map(|line| line.split_once(&format!("failed to load '{model}': ")));
        line.unwrap_or_else(|| panic!("{log}")).1.replace("bad_alone", "bad")
    };
    assert_eq!(why("bad_alone"), why("bad"));
}

#[test]
fn the_configuration_shows_it_and_the_command_of_the_processes_is_not_in_the_help() {
    let folder = Folder::new("isolation");
    repository::add(folder.path(), "m", &isolated(), Some(&double()));
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_deuteron")).args(arguments).output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    let path = folder.path().join("m").display().to_string();
    let (is_well, text) = run(&["config", "show", &path, "--onnx-engine=embedded"]);
    assert!(is_well && text.contains("key: \"isolation\"") && text.contains("string_value: \"process\""), "{text}");
    assert!(!run(&["--help"]).1.contains("run-engine"));
    // Without a server the program refuses to run.
    assert!(!run(&["run-engine"]).0);
}
