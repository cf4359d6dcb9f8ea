//! More models than memory holds (`--model-cache-bytes-max`): they are loaded on demand, over any protocol, and the
//! least recently used leave.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use deuteron::wire::proto::inference as proto;
use prost::Message as _;
use serde_json::{Value, json};

use crate::support::folder::Folder;
use crate::support::grpc::Client;
use crate::support::metrics::metric;
use crate::support::protobuf::Message;
use crate::support::python::Environment;
use crate::support::server::{Ports, Server};
use crate::support::skipped::skip_unless_ci;
use crate::support::{http, onnx, repository};

/// Rows of each model's table.
const ROWS: usize = 64 * 1024;
/// Its file is somewhat larger than its table.
const FILE_SIZE: usize = ROWS * 4 + 1024;
/// Number of different tables; each model has one of them.
const TABLES: usize = 10;

/// A repository of `count` models that look a row up: that of row 3 is 3 + 1,000 × the model's table.
fn models(name: &str, count: usize) -> Folder {
    let folder = Folder::new(&format!("many-{name}"));
    for index in 0..count {
        add_model(folder.path(), index);
    }
    folder
}

fn add_model(repository: &Path, index: usize) {
    let version = repository.join(model(index)).join("1");
    fs::create_dir_all(&version).expect("the folder is ours");
    let (file, first) = (version.join("model.onnx"), repository.join(model(index % TABLES)).join("1/model.onnx"));
    if index < TABLES {
        let table: Vec<f32> = (0..ROWS).map(|row| (row + 1_000 * index) as f32).collect();
        fs::write(file, onnx::lookup_of(&table)).expect("the folder is ours");
    } else {
        fs::hard_link(first, file).expect("the folder is ours");
    }
}

fn model(index: usize) -> String {
    format!("m{index:04}")
}

fn want(index: usize) -> f64 {
    3.0 + 1_000.0 * (index % TABLES) as f64
}

/// The flag for a cache with room for `count` models.
fn room(count: usize) -> String {
    format!("--model-cache-bytes-max={}", count * (FILE_SIZE + 256 * 1024))
}

fn infer(address: SocketAddr, model: &str) -> (u16, Value) {
    let body = json!({ "inputs": [{ "name": "ROW", "shape": [1, 1], "datatype": "INT32", "data": [3] }] });
    let answer = http::post(address, &format!("/v2/models/{model}/infer"), body.to_string().as_bytes()).unwrap();
    (answer.status, serde_json::from_slice(&answer.body).unwrap())
}

fn gives(server: &Server, index: usize) {
    let (status, body) = infer(server.http(), &model(index));
    let got = body["outputs"][0]["data"][0].as_f64();
    assert_eq!((status, got), (200, Some(want(index))), "{} {body}\n{}", model(index), server.log());
}

fn loads(server: &Server, name: &str, outcome: &str) -> u64 {
    metric(server.metrics(), &format!("deuteron_model_loads_total{{model=\"{name}\",outcome=\"{outcome}\"}}"))
}

fn is_loaded(server: &Server, name: &str) -> bool {
    let answer = http::post(server.http(), "/v2/repository/index", br#"{"ready":true}"#).unwrap();
    let entries: Vec<Value> = serde_json::from_slice(&answer.body).unwrap();
    entries.iter().any(|entry| entry["name"] == name)
}

#[test]
fn two_thousand_models_of_which_forty_are_hot_are_served_in_the_memory_of_fifty() {
    const HOT: usize = 40;
    let folder = models("thousands", 2_000);
    let server = Server::deuteron(folder.path(), &[&room(50), "--trial-loads=off", "--shards=1"]);
    let limit = metric(server.metrics(), "deuteron_model_cache_limit_bytes");
    let mut resident = Vec::new();
    for round in 0..20 {
        (0..HOT).for_each(|index| gives(&server, index));
        // Spread over the repository, so that they are cold.
        (0..5).for_each(|cold| gives(&server, HOT + (5 * round + cold) * 19));
        let size = metric(server.metrics(), "deuteron_model_cache_bytes");
        assert!(size <= limit, "{size} of {limit} bytes");
        resident.push(server.resident());
    }
    let again: Vec<_> = (0..HOT).filter(|index| loads(&server, &model(*index), "success") != 1).collect();
    assert_eq!(again, [0_usize; 0], "hot models stay");
    // 50 models of 0.5 MB and a few that are on their way out: the memory of one program with a few models, and little
    // more.
    let (first, last) = (resident[1], *resident.last().unwrap());
    assert!(last < first + 60 * 1024 * 1024, "{resident:?}");
    let waited = metric(server.metrics(), "deuteron_model_waits_total");
    println!("{waited} loads on demand; resident {} to {} MiB", first >> 20, last >> 20);
}

#[test]
fn every_way_to_ask_for_a_model_has_it_loaded() {
    let folder = models("ways", 12);
    let server = Server::deuteron(folder.path(), &[&room(20)]);
    let get = |path: &str| http::get(server.http(), path).unwrap();
    assert_eq!(get("/v2/health/ready").status, 200, "ready to load whatever is asked for");
    assert!(!is_loaded(&server, &model(0)));
    gives(&server, 0);
    assert_eq!(get("/v2/models/m0001").status, 200);
    assert_eq!(get("/v2/models/m0002/config").status, 200);
    assert_eq!(get("/v2/models/m0003/ready").status, 200);
    assert_eq!(get("/v2/models/m0004/versions/1/ready").status, 200);
    let client = Client::new(server.grpc());
    let call = |method: &str, message: Message| {
        client.call(&format!("/inference.GRPCInferenceService/{method}"), &message.into_bytes())
    };
    assert!(call("ModelReady", Message::new().bytes(1, model(5))).is_ok_and(|answer| answer == [8, 1]));
    assert!(call("ModelMetadata", Message::new().bytes(1, model(6))).is_ok());
    assert!(call("ModelConfig", Message::new().bytes(1, model(7))).is_ok());
    let request = |index: usize| {
        let input = Message::new().bytes(1, "ROW").bytes(2, "INT32").packed(3, &[1, 1]);
        Message::new().bytes(1, model(index)).message(5, input).bytes(7, 3_i32.to_le_bytes())
    };
    let value = |answer: &proto::ModelInferResponse| {
        f64::from(f32::from_le_bytes(answer.raw_output_contents[0][..].try_into().unwrap()))
    };
    let answer = call("ModelInfer", request(8)).unwrap();
    assert_eq!(value(&proto::ModelInferResponse::decode(&answer[..]).unwrap()), want(8));
    let stream = "/inference.GRPCInferenceService/ModelStreamInfer";
    let messages = [9, 0, 10, 9].map(|index| request(index).into_bytes());
    let (came, end) = client.stream(stream, &[], messages.to_vec());
    let came: Vec<_> = came
        .iter()
        .map(|answer| value(&proto::ModelStreamInferResponse::decode(&answer[..]).unwrap().infer_response.unwrap()))
        .collect();
    assert_eq!((came, end.is_ok()), (vec![want(9), want(0), want(10), want(9)], true));
    let generated = http::post(server.http(), "/v2/models/m0011/generate", br#"{"ROW":3}"#).unwrap();
    let generated: Value = serde_json::from_slice(&generated.body).unwrap();
    assert_eq!(generated["VALUE"].as_f64(), Some(want(11)), "{generated}");
    assert_eq!(metric(server.metrics(), "deuteron_model_waits_total"), 12);
    for index in 0..12 {
        assert_eq!(loads(&server, &model(index), "success"), 1, "{index}");
    }
}

#[test]
fn a_burst_for_a_cold_model_waits_for_one_load() {
    let folder = models("burst", 2);
    let server = Server::deuteron(folder.path(), &[&room(4), "--shards=2"]);
    thread::scope(|scope| {
        for _ in 0..50 {
            scope.spawn(|| gives(&server, 1));
        }
    });
    assert_eq!(loads(&server, "m0001", "success"), 1);
    assert_eq!(metric(server.metrics(), "deuteron_model_waits_late_total"), 0);
}

#[test]
fn what_is_no_model_is_not_found_and_a_model_that_comes_later_is() {
    let folder = models("later", 2);
    let server = Server::deuteron(folder.path(), &[&room(4)]);
    let unknown = |name: &str| {
        let (status, body) = infer(server.http(), name);
        assert_eq!(
            (status, body["error"].as_str()),
            (404, Some(&*format!("Request for unknown model: '{name}' is not found")))
        );
    };
    let began = Instant::now();
    (0..200).for_each(|number| unknown(&format!("nope{number}")));
    ["..", "m0000%2f1", "m0000/"].into_iter().for_each(|name| {
        let answer = http::get(server.http(), &format!("/v2/models/{name}/ready")).unwrap();
        assert_ne!(answer.status, 200, "{name}");
    });
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}: each was looked for on the disk", began.elapsed());
    add_model(folder.path(), 11);
    let until = Instant::now() + Duration::from_secs(30);
    while infer(server.http(), &model(11)).0 != 200 {
        assert!(Instant::now() < until, "{}", server.log());
        thread::sleep(Duration::from_millis(100));
    }
    // A missing version of a model that serves.
    gives(&server, 0);
    let answer = http::post(server.http(), "/v2/models/m0000/versions/7/infer", b"{}").unwrap();
    assert_eq!(answer.status, 404);
}

#[test]
fn a_model_that_fails_to_load_says_why_and_is_not_tried_for_every_request() {
    let folder = models("broken", 1);
    repository::add(folder.path(), "broken", "platform: 'onnxruntime_onnx'", Some(b"no model"));
    let server = Server::deuteron(folder.path(), &[&room(4)]);
    for _ in 0..20 {
        let (status, body) = infer(server.http(), "broken");
        let text = body["error"].as_str().unwrap();
        assert!(status == 503 && text.starts_with("model 'broken' cannot be loaded: load failed"), "{status} {text}");
        assert!(text.contains("it is tried again in"), "{text}");
        assert!(!text.contains(&*folder.path().to_string_lossy()), "a path of the server: {text}");
    }
    let failed = loads(&server, "broken", "failure");
    assert!(failed <= 5, "{failed} loads for 20 requests");
    assert_eq!(http::get(server.http(), "/v2/health/ready").unwrap().status, 200, "others are served");
    gives(&server, 0);
    fs::copy(folder.path().join("m0000/1/model.onnx"), folder.path().join("broken/1/model.onnx")).unwrap();
    let until = Instant::now() + Duration::from_secs(70);
    while infer(server.http(), "broken").0 != 200 {
        assert!(Instant::now() < until, "{}", server.log());
        thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_model_that_is_larger_than_all_may_be_together_is_refused_by_the_flags_name() {
    let folder = models("large", 1);
    let server = Server::deuteron(folder.path(), &["--model-cache-bytes-max=300000"]);
    let (status, body) = infer(server.http(), "m0000");
    assert_eq!(status, 507, "{body}");
    assert!(body["error"].as_str().unwrap().contains("--model-cache-bytes-max"), "{body}");
    assert_eq!(metric(server.metrics(), "deuteron_model_cache_bytes"), 0);
}

#[test]
fn the_least_recently_used_leaves_and_what_was_named_stays() {
    let folder = models("order", 6);
    let server = Server::deuteron(folder.path(), &[&room(3), "--load-model=m0005"]);
    for index in [0, 1] {
        gives(&server, index);
        thread::sleep(Duration::from_millis(5));
    }
    gives(&server, 0);
    thread::sleep(Duration::from_millis(5));
    gives(&server, 2);
    let loaded = |index: usize| is_loaded(&server, &model(index));
    assert_eq!([0, 1, 2, 5].map(loaded), [true, false, true, true]);
    assert_eq!(metric(server.metrics(), "deuteron_model_cache_evictions_total"), 1);
    gives(&server, 1);
    assert_eq!([0, 1, 2, 5].map(loaded), [false, true, true, true]);
}

#[test]
fn the_steps_of_an_ensemble_stay_as_long_as_it_does() {
    let folder = models("ensemble", 6);
    let maps = "input_map { key: 'ROW' value: 'ROW' } output_map { key: 'VALUE' value: 'VALUE' }";
    let tensors = "input { name: 'ROW' data_type: TYPE_INT32 dims: [ -1, 1 ] } output { name: 'VALUE' data_type: TYPE_FP32 dims: [ -1, 1 ] }";
    let config = format!(
        "platform: 'ensemble' {tensors} ensemble_scheduling {{ step {{ model_name: 'm0004' model_version: -1 {maps} }} }}"
    );
    repository::add(folder.path(), "whole", &config, None);
    let server = Server::deuteron(folder.path(), &[&room(3)]);
    let whole = || {
        let (status, body) = infer(server.http(), "whole");
        assert_eq!((status, body["outputs"][0]["data"][0].as_f64()), (200, Some(want(4))), "{body}\n{}", server.log());
    };
    whole();
    for index in [0, 1, 2, 3] {
        gives(&server, index);
        whole();
    }
    assert_eq!(loads(&server, "m0004", "success"), 1, "{}", server.log());
    assert!(metric(server.metrics(), "deuteron_model_cache_evictions_total") >= 2);
}

#[test]
fn a_model_with_an_open_sequence_stays_until_it_is_over() {
    let folder = models("sequence", 4);
    repository::add(folder.path(), "sums", repository::SUMS, None);
    let server = Server::deuteron(folder.path(), &[&room(2)]);
    let add = |value: i32, is_start: bool, is_end: bool| {
        let parameters = json!({ "sequence_id": 7, "sequence_start": is_start, "sequence_end": is_end });
        let input = json!({ "name": "INPUT", "shape": [1, 1], "datatype": "INT32", "data": [value] });
        let body = json!({ "parameters": parameters, "inputs": [input] }).to_string();
        let answer = http::post(server.http(), "/v2/models/sums/infer", body.as_bytes()).unwrap();
        let body: Value = serde_json::from_slice(&answer.body).unwrap();
        body["outputs"][0]["data"][0].as_i64().unwrap_or_else(|| panic!("{body}\n{}", server.log()))
    };
    assert_eq!(add(1, true, false), 1);
    (0..4).for_each(|index| gives(&server, index));
    assert_eq!(add(2, false, false), 3, "its state is there");
    assert_eq!(add(3, false, true), 6);
    thread::sleep(Duration::from_millis(5));
    (0..4).for_each(|index| gives(&server, index));
    assert!(!is_loaded(&server, "sums"), "it is over");
}

#[test]
fn a_request_waits_so_long_and_the_load_goes_on() {
    let Some(environment) = Environment::shared() else { return };
    let folder = models("slow", 1);
    let config = "backend: 'python' input { name: 'x' data_type: TYPE_FP32 dims: [ 1 ] } output { name: 'y' data_type: TYPE_FP32 dims: [ 1 ] }";
    repository::add(folder.path(), "slow", config, None);
    let gate = folder.path().join("gate");
    let program = format!(
        "import os, time\nimport triton_python_backend_utils as pb\nclass TritonPythonModel:\n    def initialize(self, args):\n        while not os.path.exists({gate:?}): time.sleep(0.01)\n    def execute(self, requests):\n        return [pb.InferenceResponse([pb.Tensor('y', pb.get_input_tensor_by_name(r, 'x').as_numpy())]) for r in requests]\n"
    );
    fs::create_dir_all(folder.path().join("slow/1")).unwrap();
    fs::write(folder.path().join("slow/1/model.py"), program).unwrap();
    let interpreter = format!("--backend-config=python,interpreter={}", environment.python().display());
    let flags = ["--model-cache-bytes-max=400000000", "--model-cache-wait-ms=300", &interpreter];
    let server = Server::deuteron(folder.path(), &flags);
    let body = json!({ "inputs": [{ "name": "x", "shape": [1], "datatype": "FP32", "data": [7] }] }).to_string();
    let ask = || http::post(server.http(), "/v2/models/slow/infer", body.as_bytes()).unwrap();
    let (began, answer) = (Instant::now(), ask());
    let text = String::from_utf8(answer.body.clone()).unwrap();
    assert!(answer.status == 503 && answer.header("Retry-After").is_some(), "{} {text}", answer.status);
    assert!(text.contains("model 'slow' is still loading after 300 ms (--model-cache-wait-ms)"), "{text}");
    assert!(began.elapsed() >= Duration::from_millis(300), "{:?}", began.elapsed());
    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        let until = Instant::now() + Duration::from_secs(60);
        while !is_so() {
            assert!(Instant::now() < until, "{what}\n{}", server.log());
        }
    };
    // The load of another may also take longer than its requests wait.
    until("another is loaded meanwhile", &|| infer(server.http(), &model(0)).0 == 200);
    fs::write(&gate, "").unwrap();
    until("the load ends", &|| ask().status == 200);
    assert!(metric(server.metrics(), "deuteron_model_waits_late_total") >= 1);
    assert_eq!(loads(&server, "slow", "success"), 1);
    let size = metric(server.metrics(), "deuteron_model_cache_bytes");
    assert!(size > 8_000_000, "{size}: its process counts, and not its file of some bytes");
}

/// A program that ends with the test.
struct Balancer(Child);

impl Drop for Balancer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn behind_a_balancer_each_model_is_on_one_server() {
    const COUNT: usize = 40;
    if Command::new("/usr/sbin/haproxy").arg("-v").output().is_err() {
        return skip_unless_ci("no haproxy");
    }
    let folder = models("routed", COUNT);
    let start = || Server::deuteron(folder.path(), &[&room(COUNT), "--trial-loads=off", "--shards=1"]);
    let (mut servers, ports) = (vec![start(), start(), start()], Ports::free());
    let mut command = Command::new("/usr/sbin/haproxy");
    command.args(["-f", concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/haproxy-models.cfg")]).stderr(Stdio::null());
    let bound = |port: u16| format!("127.0.0.1:{port}");
    let command = command.env("REST_BIND", bound(ports.http)).env("GRPC_BIND", bound(ports.grpc));
    for (index, server) in servers.iter().enumerate() {
        command.env(format!("REPLICA_{}", index + 1), server.http().to_string());
    }
    let _balancer = Balancer(command.spawn().expect("it starts"));
    let rest = SocketAddr::from(([127, 0, 0, 1], ports.http));
    let until = Instant::now() + Duration::from_secs(20);
    while http::get(rest, "/v2/health/ready").map_or(true, |answer| answer.status != 200) {
        assert!(Instant::now() < until, "the balancer finds its servers");
        thread::sleep(Duration::from_millis(50));
    }
    let ask = |index: usize| {
        let (status, body) = infer(rest, &model(index));
        assert_eq!((status, body["outputs"][0]["data"][0].as_f64()), (200, Some(want(index))), "{body}");
    };
    (0..3).for_each(|_| (0..COUNT).for_each(ask));
    let client = Client::new(SocketAddr::from(([127, 0, 0, 1], ports.grpc)));
    for index in 0..COUNT {
        let input = Message::new().bytes(1, "ROW").bytes(2, "INT32").packed(3, &[1, 1]);
        let message =
            Message::new().bytes(1, model(index)).message(5, input).bytes(7, 3_i32.to_le_bytes()).into_bytes();
        let name: &'static str = model(index).leak();
        let method = "/inference.GRPCInferenceService/ModelInfer";
        assert!(client.call_with(method, &[("mm-model-id", name)], &message).is_ok(), "{index}");
    }
    let loaded = |servers: &[Server]| -> Vec<u64> {
        servers.iter().map(|server| metric(server.metrics(), "deuteron_model_waits_total")).collect()
    };
    let counts = loaded(&servers);
    let loads: u64 = counts.iter().sum();
    let once = COUNT as u64..=COUNT as u64 + COUNT as u64 / 8;
    assert!(
        once.contains(&loads),
        "each was loaded once, by REST and gRPC together, but for some that spilled: {counts:?}"
    );
    assert!(counts.iter().all(|count| *count >= 5), "{counts:?}");
    // One server less: its models go to the others, and the others keep theirs.
    let at = |server: &Server| -> Vec<bool> { (0..COUNT).map(|index| is_loaded(server, &model(index))).collect() };
    let before = [at(&servers[1]), at(&servers[2])];
    drop(servers.remove(0));
    (0..2).for_each(|_| (0..COUNT).for_each(ask));
    let after = [at(&servers[0]), at(&servers[1])];
    let mut spilled = 0;
    for index in 0..COUNT {
        let (before, after) = (before.each_ref().map(|at| at[index]), after.each_ref().map(|at| at[index]));
        if before == [false, false] {
            assert_ne!(after, [false, false], "{index} was on the server that is gone");
        } else {
            assert!((0..2).all(|at| after[at] || !before[at]), "{index} has moved");
            spilled += usize::from(before != after);
        }
    }
    // A model whose server is busy at that moment goes to the next one (`hash-balance-factor`).
    assert!(spilled <= COUNT / 8, "{spilled} models are on two servers");
}
