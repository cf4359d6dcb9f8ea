//! Ensembles on the server as a process: steps that run as soon as they can, tensors between models with and without
//! batches, failures, bounds, their appearance to clients, and models that come and go beneath.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::folder::Folder;
use crate::support::gate::Gate;
use crate::support::http::{self, Response};
use crate::support::over::Over;
use crate::support::protobuf::Message;
use crate::support::python::Environment;
use crate::support::server::Server;
use crate::support::wait::wait_until;
use crate::support::{metrics, onnx, repository};
use prost::Message as _;
use serde_json::{Value, json};

/// Time limit for a change to show.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// `x INT32 16, y FP32 -1` as fields.
fn tensors(field: &str, text: &str) -> String {
    let tensor = |text: &str| {
        let words: Vec<_> = text.split_whitespace().collect();
        let (name, optional) = words[0].strip_suffix('?').map_or((words[0], ""), |name| (name, " optional: true"));
        let labels = words.get(3).map_or(String::new(), |file| format!(" label_filename: '{file}'"));
        let dims = words[2].replace('x', ", ");
        format!("{field} {{ name: '{name}' data_type: TYPE_{} dims: [ {dims} ]{optional}{labels} }}\n", words[1])
    };
    text.split(',').map(str::trim).filter(|text| !text.is_empty()).map(tensor).collect()
}

fn io(rows_max: u32, text: &str) -> String {
    let (inputs, outputs) = text.split_once('>').unwrap();
    format!("max_batch_size: {rows_max}\n{}{}", tensors("input", inputs), tensors("output", outputs))
}

/// `model: INPUT=tensor > OUTPUT=tensor; …`; `model/2` names a version.
fn steps(text: &str) -> String {
    let map = |field: &str, text: &str| -> String {
        let pairs = text.split_whitespace().map(|pair| pair.split_once('=').unwrap());
        pairs.map(|(key, value)| format!("{field} {{ key: '{key}' value: '{value}' }} ")).collect()
    };
    let step = |text: &str| {
        let (model, maps) = text.split_once(':').unwrap();
        let (model, version) = model.trim().split_once('/').unwrap_or((model.trim(), "-1"));
        let (inputs, outputs) = maps.split_once('>').unwrap();
        let maps = map("input_map", inputs) + &map("output_map", outputs);
        format!("step {{ model_name: '{model}' model_version: {version} {maps}}}\n")
    };
    text.split(';').map(step).collect()
}

fn ensemble(repository: &Path, name: &str, rows_max: u32, tensors: &str, text: &str) {
    bounded(repository, name, (rows_max, 0), tensors, text);
}

fn bounded(repository: &Path, name: &str, (rows_max, in_flight_max): (u32, u32), tensors: &str, text: &str) {
    let config = format!(
        "platform: 'ensemble' {} ensemble_scheduling {{ max_inflight_requests: {in_flight_max} {} }}",
        io(rows_max, tensors),
        steps(text)
    );
    repository::add(repository, name, &config, None);
}

fn identity(repository: &Path, name: &str, rows_max: u32, tensors: &str, more: &str) {
    repository::add(repository, name, &format!("backend: 'identity' {}{more}", io(rows_max, tensors)), None);
}

fn parameter(key: &str, value: &str) -> String {
    format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}\n")
}

/// A model that takes `delay_ms`.
fn slow(repository: &Path, name: &str, delay_ms: u32, more: &str) {
    let more = parameter("execute_delay_ms", &delay_ms.to_string()) + more;
    identity(repository, name, 8, "INPUT0 FP32 1 > OUTPUT0 FP32 1", &more);
}

fn addsub(repository: &Path) {
    let tensors = "INPUT0 INT32 16, INPUT1 INT32 16 > OUTPUT0 INT32 16, OUTPUT1 INT32 16";
    let config = format!("platform: 'onnxruntime_onnx' {}", io(8, tensors));
    repository::add(repository, "addsub", &config, Some(&onnx::addsub()));
}

fn text(response: &Response) -> String {
    String::from_utf8(response.body.clone()).unwrap()
}

fn post(server: &Server, path: &str, body: &str) -> (u16, String) {
    let answer = http::post(server.http(), path, body.as_bytes()).unwrap();
    (answer.status, text(&answer))
}

fn get(server: &Server, path: &str) -> (u16, Value) {
    let answer = http::get(server.http(), path).unwrap();
    (answer.status, serde_json::from_slice(&answer.body).unwrap_or_default())
}

fn input(name: &str, datatype: &str, shape: &[i64], data: Value) -> Value {
    json!({ "name": name, "datatype": datatype, "shape": shape, "data": data })
}

fn infer(server: &Server, model: &str, body: &Value) -> Result<Value, (u16, String)> {
    let (status, text) = post(server, &format!("/v2/models/{model}/infer"), &body.to_string());
    if status == 200 { Ok(serde_json::from_str(&text).unwrap()) } else { Err((status, text)) }
}

/// One FP32 value through a model whose input and output are `x` and `y`.
fn one(server: &Server, model: &str, value: f64) -> Result<f64, (u16, String)> {
    let answer = infer(server, model, &json!({ "inputs": [input("x", "FP32", &[1, 1], json!([value]))] }))?;
    Ok(answer["outputs"][0]["data"][0].as_f64().unwrap())
}

fn error(text: &str) -> String {
    json!({ "error": text }).to_string()
}

fn count(server: &Server, model: &str, name: &str) -> u64 {
    let (_, statistics) = get(server, &format!("/v2/models/{model}/stats"));
    statistics["model_stats"][0]["inference_stats"][name]["count"].as_u64().unwrap()
}

fn in_flight(server: &Server) -> u64 {
    metrics::metric(server.metrics(), "deuteron_requests_in_flight")
}

/// `e`: `s = a + b`, `d = a - b`, `p = s + d` (2a), `m = s - d` (2b).
fn diamond(repository: &Path) {
    addsub(repository);
    ensemble(
        repository,
        "e",
        8,
        "a INT32 16, b INT32 16 > p INT32 16, m INT32 16, s INT32 16",
        "addsub: INPUT0=s INPUT1=d > OUTPUT0=p OUTPUT1=m; addsub: INPUT0=a INPUT1=b > OUTPUT0=s OUTPUT1=d",
    );
}

fn two_inputs(rows: usize) -> Vec<Value> {
    let numbers = |base: usize| json!((0..rows * 16).map(|index| base + index).collect::<Vec<_>>());
    let shape = [rows as i64, 16];
    vec![input("a", "INT32", &shape, numbers(100)), input("b", "INT32", &shape, numbers(0))]
}

#[test]
fn steps_run_in_the_order_of_their_tensors_and_answers_have_what_was_asked_for() {
    let repository = Folder::new("ensembles");
    diamond(repository.path());
    let server = Server::deuteron(repository.path(), &["--shards=2"]);
    let answer = infer(&server, "e", &json!({ "id": "7", "inputs": two_inputs(2) })).unwrap();
    assert_eq!(
        (&answer["id"], &answer["model_name"], &answer["model_version"]),
        (&json!("7"), &json!("e"), &json!("1"))
    );
    let output = |answer: &Value, index: usize| {
        let output = &answer["outputs"][index];
        assert_eq!((&output["datatype"], &output["shape"]), (&json!("INT32"), &json!([2, 16])), "{answer}");
        let data: Vec<_> = output["data"].as_array().unwrap().iter().map(|value| value.as_i64().unwrap()).collect();
        (output["name"].as_str().unwrap().to_owned(), data)
    };
    let made = |each: &dyn Fn(i64) -> i64| (0..32).map(each).collect::<Vec<_>>();
    assert_eq!(output(&answer, 0), ("p".to_owned(), made(&|index| 2 * (100 + index))));
    assert_eq!(output(&answer, 1), ("m".to_owned(), made(&|index| 2 * index)));
    assert_eq!(output(&answer, 2), ("s".to_owned(), made(&|index| 100 + 2 * index)));

    let (_, before) = get(&server, "/v2/models/addsub/stats");
    let asked = json!({ "inputs": two_inputs(2), "outputs": [{ "name": "s" }] });
    let answer = infer(&server, "e", &asked).unwrap();
    assert_eq!((answer["outputs"].as_array().unwrap().len(), output(&answer, 0).0), (1, "s".to_owned()));
    let successes = |statistics: &Value| statistics["model_stats"][0]["inference_stats"]["success"]["count"].as_u64();
    let (_, after) = get(&server, "/v2/models/addsub/stats");
    assert_eq!(successes(&after), successes(&before).map(|count| count + 1), "only one step was needed");

    // Binary data over HTTP, and gRPC.
    let raw = |base: i32| (0..16).flat_map(|index: i32| (base + index).to_le_bytes()).collect::<Vec<u8>>();
    let binary = json!({
        "inputs": [
            { "name": "a", "datatype": "INT32", "shape": [1, 16], "parameters": { "binary_data_size": 64 } },
            { "name": "b", "datatype": "INT32", "shape": [1, 16], "parameters": { "binary_data_size": 64 } },
        ],
        "outputs": [{ "name": "m", "parameters": { "binary_data": true } }],
    });
    let head = binary.to_string();
    let body = [head.as_bytes(), &raw(100), &raw(0)].concat();
    let length = head.len().to_string();
    let headers = [("Inference-Header-Content-Length", length.as_str())];
    let response =
        http::exchange(server.http(), &http::request("POST", "/v2/models/e/infer", &headers, &body)).unwrap();
    let twice: Vec<u8> = (0..16).flat_map(|index: i32| (2 * index).to_le_bytes()).collect();
    assert_eq!(response.status, 200, "{}", text(&response));
    assert!(response.body.ends_with(&twice));
    let tensor = |name: &str| Message::new().bytes(1, name).bytes(2, "INT32").packed(3, &[1, 16]);
    let request = Message::new().bytes(1, "e").message(5, tensor("a")).message(5, tensor("b"));
    let request = request.message(6, Message::new().bytes(1, "m")).bytes(7, raw(100)).bytes(7, raw(0));
    let client = crate::support::grpc::Client::new(server.grpc());
    let answer = client.call("/inference.GRPCInferenceService/ModelInfer", &request.into_bytes()).unwrap();
    let answer = wire::proto::inference::ModelInferResponse::decode(&answer[..]).unwrap();
    assert_eq!(answer.raw_output_contents, [twice]);
    assert_eq!(in_flight(&server), 0);
}

#[test]
fn clients_see_an_ensemble_as_a_model_and_each_request_is_counted_once() {
    let repository = Folder::new("ensembles");
    diamond(repository.path());
    let server = Server::deuteron(repository.path(), &["--shards=1"]);
    let (status, metadata) = get(&server, "/v2/models/e");
    assert_eq!((status, &metadata["platform"]), (200, &json!("ensemble")));
    assert_eq!(metadata["inputs"][0], json!({ "name": "a", "datatype": "INT32", "shape": [-1, 16] }));
    let (_, config) = get(&server, "/v2/models/e/config");
    assert_eq!((&config["platform"], &config["backend"]), (&json!("ensemble"), &json!("")));
    assert_eq!(config["model_transaction_policy"], json!({ "decoupled": false }));
    assert_eq!(config["instance_group"], json!([]));
    let step = json!({ "model_name": "addsub", "model_version": -1, "model_namespace": "",
        "input_map": { "INPUT0": "a", "INPUT1": "b" }, "output_map": { "OUTPUT0": "s", "OUTPUT1": "d" } });
    assert_eq!(config["ensemble_scheduling"]["step"][1], step);
    assert_eq!(get(&server, "/v2/models/e/ready").0, 200);
    for _ in 0..3 {
        infer(&server, "e", &json!({ "inputs": two_inputs(2) })).unwrap();
    }
    let statistics = |model: &str| get(&server, &format!("/v2/models/{model}/stats")).1["model_stats"][0].clone();
    let (whole, part) = (statistics("e"), statistics("addsub"));
    let counts = |statistics: &Value| {
        let of = |name: &str| statistics[name].as_u64().unwrap();
        let success = statistics["inference_stats"]["success"]["count"].as_u64().unwrap();
        (success, of("inference_count"), of("execution_count"))
    };
    assert_eq!((counts(&whole), counts(&part)), ((3, 6, 3), (6, 12, 6)));
    let nanos = |statistics: &Value, name: &str| statistics["inference_stats"][name]["ns"].as_u64().unwrap();
    assert_eq!(nanos(&whole, "queue"), 0, "it waits for nothing itself");
    for name in ["compute_input", "compute_infer", "compute_output"] {
        assert_eq!(nanos(&whole, name), nanos(&part, name), "{name} is that of its steps");
    }
    assert!(nanos(&whole, "success") >= nanos(&part, "compute_infer"));
    assert_eq!(whole["batch_stats"][0]["batch_size"], json!(2));
    let metric = |name: &str| metrics::metric(server.metrics(), name);
    assert_eq!(metric("deuteron_requests_received_total"), 3, "steps are no requests of clients");
    assert_eq!(metric("nv_inference_request_success{model=\"e\",version=\"1\"}"), 3);
    let (_, bad) = infer(&server, "e", &json!({ "inputs": two_inputs(9) })).unwrap_err();
    assert_eq!(bad, error("[request id: <id_unknown>] inference request batch-size must be <= 8 for 'e'"));
}

#[test]
fn the_first_step_that_fails_fails_the_request_with_its_text() {
    let repository = Folder::new("ensembles");
    let lookup = format!("platform: 'onnxruntime_onnx' {}", io(8, "ROW INT32 1 > VALUE FP32 1"));
    repository::add(repository.path(), "lookup", &lookup, Some(&onnx::lookup()));
    identity(repository.path(), "slow", 8, "INPUT0 FP32 1 > OUTPUT0 FP32 1", "");
    let gate = Gate::on(repository.path(), "slow");
    let table = "row INT32 1, x FP32 1 > value FP32 1, y FP32 1";
    ensemble(repository.path(), "e", 8, table, "slow: INPUT0=x > OUTPUT0=y; lookup: ROW=row > VALUE=value");
    ensemble(repository.path(), "outer", 8, table, "e: row=row x=x > value=value y=y");
    identity(repository.path(), "any", 8, "INPUT0 FP32 -1 > OUTPUT0 FP32 -1", "");
    identity(repository.path(), "two", 8, "INPUT0 FP32 2 > OUTPUT0 FP32 2", "");
    ensemble(
        repository.path(),
        "shapes",
        8,
        "x FP32 -1 > y FP32 -1",
        "any: INPUT0=x > OUTPUT0=t; two: INPUT0=t > OUTPUT0=y",
    );
    let server = Server::deuteron(repository.path(), &["--shards=1", &gate.flag()]);
    let body = |row: i64| json!({ "inputs": [input("row", "INT32", &[1, 1], json!([row])), input("x", "FP32", &[1, 1], json!([1.5]))] });
    gate.pass(1);
    assert_eq!(infer(&server, "e", &body(2)).unwrap()["outputs"][0]["data"], json!([12.0]));
    // It does not wait for the other step, which is held.
    let (status, text) = infer(&server, "e", &body(9)).unwrap_err();
    assert_eq!(status, 400, "the table has 4 rows: {text}");
    assert!(text.starts_with("{\"error\":\"in ensemble 'e', step 2 ('lookup'): model 'lookup': "), "{text}");
    assert!(text.contains("; the inputs were 'ROW' [1,1]"), "{text}");
    let (_, text) = infer(&server, "outer", &body(9)).unwrap_err();
    assert!(
        text.starts_with("{\"error\":\"in ensemble 'outer', step 1 ('e'): in ensemble 'e', step 2 ('lookup'): "),
        "{text}"
    );
    assert_eq!((count(&server, "e", "fail"), count(&server, "lookup", "fail")), (2, 2));
    let other =
        metrics::metric(server.metrics(), "nv_inference_request_failure{model=\"e\",reason=\"OTHER\",version=\"1\"}");
    assert_eq!(other, 2);
    gate.open();
    wait_until("the end of what was left", || count(&server, "slow", "fail") == 2);

    let (status, text) = one(&server, "shapes", 1.0).unwrap_err();
    let want = "in ensemble 'shapes', step 2 ('two'): [request id: <id_unknown>] unexpected shape for input 'INPUT0' for model 'two'. \
                Expected [-1,2], got [1,1]. ";
    assert!(status == 400 && text.contains(want), "{text}");
    assert_eq!(in_flight(&server), 0);
}

#[test]
fn ensembles_of_ten_ensembles_of_ten_are_ready_at_once() {
    let folder = Folder::new("ensembles-wide");
    let path = folder.path();
    identity(path, "n0", 8, "x FP32 1 > y FP32 1", "");
    for depth in 1..=8 {
        let step = |index: u32| format!("n{}: x=t{index} > y=t{}", depth - 1, index + 1);
        let text = (0..10).map(step).collect::<Vec<_>>().join("; ");
        let text = text.replace("x=t0 ", "x=x ").replace("y=t10", "y=y");
        ensemble(path, &format!("n{depth}"), 8, "x FP32 1 > y FP32 1", &text);
    }
    let server = Server::deuteron(path, &["--shards=1"]);
    let took: Vec<_> = (0..5)
        .map(|_| {
            let began = Instant::now();
            assert_eq!(get(&server, "/v2/models/n8/ready").0, 200);
            began.elapsed()
        })
        .collect();
    // Other work on the machine makes it later now and then.
    assert!(took.iter().min() < Some(&Duration::from_secs(2)), "each of 9 models is looked at once: {took:?}");
}

#[test]
fn models_with_and_without_batches_nested_ensembles_and_optional_inputs_go_together() {
    let repository = Folder::new("ensembles");
    let path = repository.path();
    identity(path, "batched", 8, "INPUT0 FP32 2 > OUTPUT0 FP32 2", "");
    identity(path, "single", 0, "INPUT0 FP32 2 > OUTPUT0 FP32 2", "");
    identity(path, "rows", 0, "INPUT0 FP32 -1x2 > OUTPUT0 FP32 -1x2", "");
    identity(path, "optional", 8, "INPUT0 FP32 2, INPUT1? FP32 2 > OUTPUT0 FP32 2, OUTPUT1 FP32 2", "");
    let through = |name: &str, rows_max: u32, middle: &str| {
        let text =
            format!("batched: INPUT0=x > OUTPUT0=t; {middle}: INPUT0=t > OUTPUT0=u; batched: INPUT0=u > OUTPUT0=y");
        ensemble(path, name, rows_max, "x FP32 2 > y FP32 2", &text);
    };
    through("through_single", 8, "single");
    through("through_rows", 8, "rows");
    ensemble(path, "plain", 0, "x FP32 2 > y FP32 2", "batched: INPUT0=x > OUTPUT0=y");
    ensemble(path, "inner", 8, "x FP32 2 > y FP32 2", "batched: INPUT0=x > OUTPUT0=y");
    ensemble(path, "outer", 8, "x FP32 2 > y FP32 2", "inner: x=x > y=t; through_rows: x=t > y=y");
    let both = "optional: INPUT0=x INPUT1=z > OUTPUT0=y OUTPUT1=w";
    ensemble(path, "maybe", 8, "x FP32 2, z? FP32 2 > y FP32 2, w FP32 2", both);
    ensemble(path, "left_out", 8, "x FP32 2 > y FP32 2, w FP32 2", "optional: INPUT0=x > OUTPUT0=y OUTPUT1=w");
    let server = Server::deuteron(path, &["--shards=1"]);
    let go = |model: &str, shape: &[i64], data: Value| {
        let answer = infer(&server, model, &json!({ "inputs": [input("x", "FP32", shape, data.clone())] }));
        answer.map(|answer| (answer["outputs"][0]["shape"].clone(), answer["outputs"][0]["data"] == data))
    };
    let (one_row, two_rows) = (json!([1.0, 2.0]), json!([1.0, 2.0, 3.0, 4.0]));
    assert_eq!(go("through_single", &[1, 2], one_row.clone()), Ok((json!([1, 2]), true)));
    let refused = go("through_single", &[2, 2], two_rows.clone()).unwrap_err();
    assert!(refused.1.contains("unexpected shape for input 'INPUT0' for model 'single'"), "{refused:?}");
    assert_eq!(go("through_rows", &[2, 2], two_rows.clone()), Ok((json!([2, 2]), true)));
    assert_eq!(go("plain", &[2], one_row.clone()), Ok((json!([2]), true)));
    assert_eq!(go("outer", &[2, 2], two_rows.clone()), Ok((json!([2, 2]), true)));
    assert_eq!(count(&server, "inner", "success"), 1);
    let second = |answer: &Value| answer["outputs"][1]["data"].clone();
    let given = json!({ "inputs": [input("x", "FP32", &[1, 2], one_row.clone()), input("z", "FP32", &[1, 2], json!([5.0, 6.0]))] });
    assert_eq!(second(&infer(&server, "maybe", &given).unwrap()), json!([5.0, 6.0]));
    let without = json!({ "inputs": [input("x", "FP32", &[1, 2], one_row)] });
    for model in ["maybe", "left_out"] {
        assert_eq!(second(&infer(&server, model, &without).unwrap()), json!([0.0, 0.0]), "{model}");
    }
}

#[test]
fn a_full_queue_a_timeout_and_a_client_that_left_end_the_request_and_nothing_is_stuck() {
    let repository = Folder::new("ensembles");
    let path = repository.path();
    identity(
        path,
        "slow",
        8,
        "INPUT0 FP32 1 > OUTPUT0 FP32 1",
        "dynamic_batching { preferred_batch_size: 1 default_queue_policy { max_queue_size: 2 \
        allow_timeout_override: true default_timeout_microseconds: 30000000 } }",
    );
    let gate = Gate::on(path, "slow");
    ensemble(path, "e", 8, "x FP32 1 > y FP32 1", "slow: INPUT0=x > OUTPUT0=t; slow: INPUT0=t > OUTPUT0=y");
    let server = Server::deuteron(path, &["--shards=1", &gate.flag()]);
    let left = || metrics::batches_left(server.metrics(), "slow");
    let pending =
        || metrics::metric(server.metrics(), "nv_inference_pending_request_count{model=\"slow\",version=\"1\"}");
    let outcomes: Vec<_> = thread::scope(|scope| {
        let calls: Vec<_> = (0..12).map(|_| scope.spawn(|| one(&server, "e", 2.5))).collect();
        wait_until("a full queue", || calls.iter().filter(|call| call.is_finished()).count() >= 9);
        gate.open();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    let full = (503, error("in ensemble 'e', STEP[request id: <id_unknown>] Exceeds maximum queue size"));
    let outcomes = outcomes.into_iter().map(|outcome| {
        // The queue may be full at either step.
        outcome.map_err(|(status, text)| {
            (status, text.replace("step 1 ('slow'): ", "STEP").replace("step 2 ('slow'): ", "STEP"))
        })
    });
    let (served, refused): (Vec<_>, Vec<_>) = outcomes.partition(Result::is_ok);
    assert!(!served.is_empty() && !refused.is_empty(), "{} {}", served.len(), refused.len());
    assert!(refused.iter().all(|outcome| *outcome == Err(full.clone())), "{refused:?}");

    // One runs, and the next waits for too long.
    thread::scope(|scope| {
        let before = left();
        gate.limit(0);
        let first = scope.spawn(|| one(&server, "e", 1.0));
        wait_until("the first runs", || left() == before + 1);
        let late = json!({ "parameters": { "timeout": 1000 }, "inputs": [input("x", "FP32", &[1, 1], json!([1.0]))] });
        let outcome = infer(&server, "e", &late);
        assert_eq!(outcome.unwrap_err(), (503, error("in ensemble 'e', step 1 ('slow'): Request timeout expired")));
        gate.open();
        assert_eq!(first.join().unwrap(), Ok(1.0));
    });

    // Clients that leave: their waiting requests are withdrawn, and the next is served.
    let body = json!({ "inputs": [input("x", "FP32", &[1, 1], json!([1.0]))] }).to_string();
    let request = http::request("POST", "/v2/models/e/infer", &[], body.as_bytes());
    let before = left();
    gate.limit(0);
    let clients = [0, 1, 2].map(|waiting| {
        let mut connection = http::Connection::open(server.http()).unwrap();
        connection.send(&request).unwrap();
        wait_until("one runs, and the others wait", || left() == before + 1 && pending() == waiting);
        connection
    });
    drop(clients);
    wait_until("an empty queue", || pending() == 0);
    gate.open();
    wait_until("the end of those that left", || in_flight(&server) == 0);
    let canceled = "nv_inference_request_failure{model=\"e\",reason=\"CANCELED\",version=\"1\"}";
    wait_until("they are counted", || metrics::metric(server.metrics(), canceled) == 3);
    assert_eq!(one(&server, "e", 3.5), Ok(3.5));

    // The deadline of a call passes through every step: the second is held.
    gate.limit(left() + 1);
    let tensor = Message::new().bytes(1, "x").bytes(2, "FP32").packed(3, &[1, 1]);
    let call = Message::new().bytes(1, "e").message(5, tensor).bytes(7, 1.0_f32.to_le_bytes());
    // The server's clock alone: a client with a deadline of its own might give up first.
    let fields = [("grpc-timeout", "130m")];
    let path = "/inference.GRPCInferenceService/ModelInfer";
    let trailers = crate::support::h2::call(server.grpc(), path, &fields, &call.into_bytes());
    assert_eq!(trailers["grpc-status"], "4", "{trailers:?}");
    gate.open();
    wait_until("the end of the call", || in_flight(&server) == 0);
}

#[test]
fn so_many_requests_of_a_step_are_under_way_as_the_configuration_says() {
    let repository = Folder::new("ensembles");
    slow(repository.path(), "slow", 40, "instance_group { count: 4 }");
    let text = "slow: INPUT0=x > OUTPUT0=y";
    bounded(repository.path(), "one", (8, 1), "x FP32 1 > y FP32 1", text);
    bounded(repository.path(), "two", (8, 2), "x FP32 1 > y FP32 1", text);
    bounded(repository.path(), "free", (8, 0), "x FP32 1 > y FP32 1", text);
    let server = Server::deuteron(repository.path(), &["--shards=2"]);
    let took = |model: &str| {
        let start = Instant::now();
        thread::scope(|scope| {
            let calls: Vec<_> = (0..8)
                .map(|index| {
                    let server = &server;
                    scope.spawn(move || assert_eq!(one(server, model, f64::from(index)), Ok(f64::from(index))))
                })
                .collect();
            calls.into_iter().for_each(|call| call.join().unwrap());
        });
        start.elapsed()
    };
    assert!(took("one") >= Duration::from_millis(8 * 40), "one after the other, on whatever shard");
    assert!(took("two") >= Duration::from_millis(4 * 40));
    // Other work on the machine makes it later now and then.
    let free: Vec<_> = (0..5).map(|_| took("free")).collect();
    assert!(free.iter().min() < Some(&Duration::from_millis(8 * 40)), "four at a time: {free:?}");
    assert_eq!(in_flight(&server), 0);
}

#[test]
fn steps_that_do_not_need_each_other_run_side_by_side() {
    let repository = Folder::new("ensembles");
    let gates = ["left", "right"].map(|name| {
        identity(repository.path(), name, 8, "INPUT0 FP32 1 > OUTPUT0 FP32 1", "");
        Gate::on(repository.path(), name)
    });
    ensemble(
        repository.path(),
        "e",
        8,
        "x FP32 1 > y FP32 1, z FP32 1",
        "left: INPUT0=x > OUTPUT0=y; right: INPUT0=x > OUTPUT0=z",
    );
    let server = Server::deuteron(repository.path(), &["--shards=1", &gates[0].flag()]);
    thread::scope(|scope| {
        let call = scope.spawn(|| one(&server, "e", 4.5));
        let runs = |name: &str| metrics::batches_left(server.metrics(), name) == 1;
        wait_until("both run", || runs("left") && runs("right"));
        gates.iter().for_each(Gate::open);
        assert_eq!(call.join().unwrap(), Ok(4.5));
    });
}

#[test]
fn classes_have_the_labels_of_the_model_that_makes_them_and_answers_are_kept_where_its_are() {
    let repository = Folder::new("ensembles");
    let path = repository.path();
    identity(path, "classify", 8, "INPUT0 FP32 3 > OUTPUT0 FP32 3 fruit.txt", "response_cache { enable: true }");
    fs::write(path.join("classify/fruit.txt"), "apple\nbanana\ncherry\n").unwrap();
    ensemble(path, "e", 8, "x FP32 3 > y FP32 3", "classify: INPUT0=x > OUTPUT0=y");
    ensemble(path, "own", 8, "x FP32 3 > y FP32 3 pets.txt", "e: x=x > y=y");
    fs::write(path.join("own/pets.txt"), "cat\ndog\nowl\n").unwrap();
    let server = Server::deuteron(path, &["--shards=1", "--cache-config=local,size=1048576"]);
    for (model, want) in [("e", "0.7:1:banana"), ("own", "0.7:1:dog")] {
        let body = json!({
            "inputs": [input("x", "FP32", &[1, 3], json!([0.1, 0.7, 0.2]))],
            "outputs": [{ "name": "y", "parameters": { "classification": 1 } }],
        });
        assert_eq!(infer(&server, model, &body).unwrap()["outputs"][0]["data"], json!([want]));
    }
    assert_eq!((count(&server, "classify", "cache_miss"), count(&server, "classify", "cache_hit")), (1, 1));
    assert_eq!((count(&server, "e", "cache_hit"), count(&server, "e", "success")), (0, 2));
}

fn load(server: &Server, name: &str) -> (u16, String) {
    post(server, &format!("/v2/repository/models/{name}/load"), "")
}

fn unload(server: &Server, name: &str, with_dependents: bool) {
    let body = json!({ "parameters": { "unload_dependents": with_dependents } }).to_string();
    assert_eq!(post(server, &format!("/v2/repository/models/{name}/unload"), &body), (200, String::new()));
}

/// `name state` of each line.
fn index(server: &Server) -> String {
    let (_, text) = post(server, "/v2/repository/index", "");
    let lines: Vec<Value> = serde_json::from_str(&text).unwrap();
    let word = |line: &Value, key: &str| line.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let line = |line: &Value| format!("{} {}", word(line, "name"), word(line, "state")).trim_end().to_owned();
    lines.iter().map(line).collect::<Vec<_>>().join("; ")
}

fn wait_index(server: &Server, want: &str) {
    let start = Instant::now();
    while index(server) != want {
        assert!(start.elapsed() < WAIT_MAX, "the index is {:?}, not {want:?}\n{}", index(server), server.log());
        thread::sleep(Duration::from_millis(5));
    }
}

fn reason(server: &Server, name: &str) -> String {
    let (_, text) = post(server, "/v2/repository/index", "");
    let lines: Vec<Value> = serde_json::from_str(&text).unwrap();
    let line = lines.iter().find(|line| line["name"] == name).unwrap();
    line.get("reason").and_then(Value::as_str).unwrap_or_default().to_owned()
}

#[test]
fn what_a_loading_ensemble_is_made_of_is_unloaded_after_its_load() {
    let repository = Folder::new("ensembles");
    let path = repository.path();
    let slow = "parameters { key: 'creation_delay_sec' value { string_value: '1' } }";
    identity(path, "quick", 8, "INPUT0 FP32 1 > OUTPUT0 FP32 1", "");
    identity(path, "slow", 8, "INPUT0 FP32 1 > OUTPUT0 FP32 1", slow);
    ensemble(path, "e", 8, "x FP32 1 > y FP32 1", "quick: INPUT0=x > OUTPUT0=t; slow: INPUT0=t > OUTPUT0=y");
    let server = Server::deuteron(path, &["--model-control-mode=explicit", "--load-model=quick"]);
    thread::scope(|scope| {
        let loading = scope.spawn(|| load(&server, "e"));
        wait_until("the load of its slow step", || index(&server).contains("slow LOADING"));
        unload(&server, "quick", false);
        assert_eq!(loading.join().unwrap(), (200, String::new()), "the unload has waited");
    });
    wait_index(&server, "e UNAVAILABLE; quick UNAVAILABLE; slow READY");
}

#[test]
fn what_an_ensemble_is_made_of_loads_and_unloads_with_it() {
    let repository = Folder::new("ensembles");
    let path = repository.path();
    for name in ["a", "b", "shared"] {
        identity(path, name, 8, "INPUT0 FP32 1 > OUTPUT0 FP32 1", "");
    }
    ensemble(path, "inner", 8, "x FP32 1 > y FP32 1", "a: INPUT0=x > OUTPUT0=t; shared: INPUT0=t > OUTPUT0=y");
    ensemble(path, "e", 8, "x FP32 1 > y FP32 1", "inner: x=x > y=t; b: INPUT0=t > OUTPUT0=y");
    ensemble(path, "lost", 8, "x FP32 1 > y FP32 1", "a: INPUT0=x > OUTPUT0=t; nowhere: INPUT0=t > OUTPUT0=y");
    ensemble(path, "one", 8, "x FP32 1 > y FP32 1", "two: x=x > y=y");
    ensemble(path, "two", 8, "x FP32 1 > y FP32 1", "one: x=x > y=y");
    let server = Server::deuteron(path, &["--shards=2", "--model-control-mode=explicit", "--load-model=shared"]);
    assert_eq!(load(&server, "e"), (200, String::new()));
    assert_eq!(index(&server), "a READY; b READY; e READY; inner READY; lost; one; shared READY; two");
    assert_eq!(one(&server, "e", 1.5), Ok(1.5));
    unload(&server, "e", true);
    wait_index(&server, "a UNAVAILABLE; b UNAVAILABLE; e UNAVAILABLE; inner UNAVAILABLE; lost; one; shared READY; two");
    assert_eq!(one(&server, "e", 1.5).unwrap_err().0, 404);

    // Without one of its models it stops serving, and comes back when that model does.
    assert_eq!(load(&server, "e"), (200, String::new()));
    unload(&server, "a", false);
    wait_index(&server, "a UNAVAILABLE; b READY; e UNAVAILABLE; inner UNAVAILABLE; lost; one; shared READY; two");
    assert_eq!(reason(&server, "inner"), "ensemble 'inner' depends on 'a' which has no loaded version.");
    assert_eq!(
        reason(&server, "e"),
        "ensemble 'e' depends on 'inner' which is not valid. Model 'inner' failed with error: ensemble 'inner' depends \
         on 'a' which has no loaded version."
    );
    assert_eq!(get(&server, "/v2/models/e/ready").0, 503);
    assert_eq!(load(&server, "a"), (200, String::new()));
    wait_until("the ensemble", || one(&server, "e", 2.5) == Ok(2.5));
    unload(&server, "e", false);
    wait_index(&server, "a READY; b READY; e UNAVAILABLE; inner READY; lost; one; shared READY; two");

    let missing = "ensemble lost contains models that are not available or ambiguous: nowhere";
    assert_eq!(load(&server, "lost"), (400, error(&format!("load failed for model 'lost': {missing}\n"))));
    assert_eq!(reason(&server, "lost"), missing);
    let (status, text) = load(&server, "one");
    assert!(status == 400 && text.contains("circular dependency between ensembles: "), "{text}");
    let mut server = server;
    assert!(server.stop().success());
}

#[test]
fn an_ensemble_is_held_against_a_model_that_changes_beneath_it() {
    let repository = Folder::new("ensembles");
    let path = repository.path();
    identity(path, "m", 8, "INPUT0 FP32 1 > OUTPUT0 FP32 1", "");
    ensemble(path, "e", 8, "x FP32 1 > y FP32 1", "m: INPUT0=x > OUTPUT0=y");
    let server = Server::deuteron(path, &["--shards=2", "--model-control-mode=poll", "--repository-poll-secs=1"]);
    assert_eq!(one(&server, "e", 1.5), Ok(1.5));
    // Another input in front of the used one: the mapping follows.
    identity(path, "m", 8, "INPUT1? FP32 1, INPUT0 FP32 1 > OUTPUT1 FP32 1, OUTPUT0 FP32 1", "");
    wait_until("the new model", || get(&server, "/v2/models/m").1["inputs"][0]["name"] == "INPUT1");
    assert_eq!(one(&server, "e", 2.5), Ok(2.5));
    identity(path, "m", 8, "INPUT0 INT32 1 > OUTPUT0 INT32 1", "");
    wait_until("the end of the ensemble", || get(&server, "/v2/models/e/ready").0 == 503);
    let why = "in ensemble e, ensemble tensor x: inconsistent data type: TYPE_FP32 is inferred from model e while \
               TYPE_INT32 is inferred from model m";
    wait_until("the reason", || reason(&server, "e") == why);
    assert_eq!(one(&server, "e", 2.5).unwrap_err().0, 404);
    fs::remove_dir_all(path.join("m")).unwrap();
    wait_until("the model's end", || reason(&server, "e").contains("'m'") || reason(&server, "e").ends_with(": m"));
    identity(path, "m", 8, "INPUT0 FP32 1 > OUTPUT0 FP32 1", "");
    wait_until("the ensemble again", || one(&server, "e", 3.5) == Ok(3.5));
}

#[test]
fn an_ensemble_that_cannot_serve_says_why_at_the_start() {
    let repository = Folder::new("ensembles");
    let path = repository.path();
    identity(path, "m", 8, "INPUT0 FP32 1 > OUTPUT0 FP32 1", "");
    ensemble(path, "good", 8, "x FP32 1 > y FP32 1", "m: INPUT0=x > OUTPUT0=y");
    ensemble(path, "before", 8, "x FP32 1 > y FP32 1", "good: x=x > y=y");
    ensemble(path, "large", 16, "x FP32 1 > y FP32 1", "m: INPUT0=x > OUTPUT0=y");
    ensemble(path, "above", 8, "x FP32 1 > y FP32 1", "large: x=x > y=y");
    ensemble(path, "one", 8, "x FP32 1 > y FP32 1", "two: x=x > y=y");
    ensemble(path, "two", 8, "x FP32 1 > y FP32 1", "one: x=x > y=y");
    identity(path, "bad", 8, "INPUT0 FP32 1 > OUTPUT0 FP32 1, OUTPUT1 FP32 1", "");
    ensemble(path, "on_bad", 8, "x FP32 1 > y FP32 1", "bad: INPUT0=x > OUTPUT0=y");
    ensemble(path, "third", 8, "x FP32 1 > y FP32 1", "m/3: INPUT0=x > OUTPUT0=y");
    let server = Server::deuteron(path, &["--shards=1", "--exit-on-error=false", "--strict-readiness=false"]);
    assert_eq!((one(&server, "good", 1.0), one(&server, "before", 2.0)), (Ok(1.0), Ok(2.0)));
    let small = "ensemble large allows maximum batch size 16, but it contains model m which only allows maximum batch \
                 size to be 8";
    assert_eq!(reason(&server, "large"), small);
    assert_eq!(
        reason(&server, "above"),
        format!("ensemble 'above' depends on 'large' which is not valid. Model 'large' failed with error: {small}")
    );
    let circle =
        |from: &str, to: &str| format!("circular dependency between ensembles: {from} -> ... -> {to} -> {from}");
    assert_eq!((reason(&server, "one"), reason(&server, "two")), (circle("one", "two"), circle("two", "one")));
    assert_eq!(
        reason(&server, "on_bad"),
        "ensemble 'on_bad' depends on 'bad' which has no loaded version. Model 'bad' loading failed with error: version 1 \
         is at UNAVAILABLE state: Invalid argument: model configuration must have equal input/output pairs;"
    );
    assert_eq!(reason(&server, "third"), "ensemble 'third' depends on 'm' whose required version 3 is not loaded.");
}

#[test]
fn tritonclient_has_ensembles_with_sequences_and_decoupled_models_among_their_steps() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let Some(environment) = Environment::shared() else { return };
    let repository = Folder::new("ensembles");
    let path = repository.path();
    diamond(path);
    for (name, config) in [("sums", repository::SUMS), ("repeat", repository::REPEAT), ("square", repository::SQUARE)] {
        repository::add(path, name, config, None);
    }
    let number = "INPUT0 INT32 1 > OUTPUT0 INT32 1";
    identity(path, "plain", 0, number, "");
    identity(path, "rows", 8, number, "");
    identity(path, "slow", 0, number, &(parameter("execute_delay_ms", "5") + "instance_group { count: 4 }"));
    let io = "x INT32 1 > y INT32 1";
    ensemble(path, "squares", 0, io, "square: IN=x > OUT=t; plain: INPUT0=t > OUTPUT0=y");
    ensemble(path, "squares_slow", 0, io, "square: IN=x > OUT=t; slow: INPUT0=t > OUTPUT0=y");
    identity(path, "one_by_one", 0, number, &(parameter("execute_delay_ms", "100") + "instance_group { count: 1 }"));
    let steps = "square: IN=x > OUT=t; plain: INPUT0=t > OUTPUT0=u; one_by_one: INPUT0=u > OUTPUT0=y";
    ensemble(path, "squares_one_by_one", 0, io, steps);
    ensemble(path, "squares_twice", 0, io, "square: IN=x > OUT=t; square: IN=t > OUT=y");
    ensemble(path, "squares_outer", 0, io, "squares: x=x > y=t; rows: INPUT0=t > OUTPUT0=y");
    ensemble(
        path,
        "repeats",
        0,
        "x INT32 -1, delay UINT32 -1, wait UINT32 1 > y INT32 1",
        "repeat: IN=x DELAY=delay WAIT=wait > OUT=t; slow: INPUT0=t > OUTPUT0=y",
    );
    ensemble(path, "sums_through", 4, io, "rows: INPUT0=x > OUTPUT0=t; sums: INPUT=t > OUTPUT=y");
    let server = Server::deuteron(path, &["--shards=2"]);
    let output = Command::new(environment.python())
        .arg(root.join("tests/ensembles/check.py"))
        .args([server.http().to_string(), server.grpc().to_string()])
        .output()
        .expect("the interpreter starts");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}{errors}\n{}", server.log());
    assert_eq!(text.lines().filter(|line| line.starts_with("ok ")).count(), 10, "{text}");
    wait_until("the end of what was left", || in_flight(&server) == 0);
}

#[test]
fn the_example_reads_an_image_as_the_digits_model_reads_its_scan() {
    const BLOCK: usize = 4;
    const SIDE: usize = 8;
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let ensemble = examples.join("ensemble");
    let server = Server::deuteron(&examples.join("models"), &["--shards=1", ensemble.to_str().unwrap()]);
    let request: Value = serde_json::from_slice(&fs::read(ensemble.join("request.json")).unwrap()).unwrap();
    let answer = infer(&server, "read_digit", &request).unwrap();
    let best = answer["outputs"][0]["data"][0].as_str().unwrap();
    assert!(best.starts_with("0.99") && best.ends_with(":7:seven"), "{answer}");

    let held_out = fs::read(examples.join("models/digits/held_out.bin")).unwrap();
    for scan in held_out.chunks_exact(SIDE * SIDE + 1).step_by(27) {
        let pixel = |index: usize| {
            let (row, column) = (index / (SIDE * BLOCK), index % (SIDE * BLOCK));
            let rank = row % BLOCK * BLOCK + column % BLOCK;
            if usize::from(scan[row / BLOCK * SIDE + column / BLOCK]) > rank { 255 } else { 0 }
        };
        let image: Vec<u8> = (0..SIDE * BLOCK * SIDE * BLOCK).map(pixel).collect();
        let image = json!({ "inputs": [input("image", "UINT8", &[1, 32, 32], json!(image))] });
        let pixels = json!({ "inputs": [input("pixels", "FP32", &[1, 64], json!(scan[..64]))] });
        let numbers = |answer: Value| -> Vec<f64> {
            answer["outputs"][0]["data"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
        };
        let [seen, want] = [("read_digit", &image), ("digits", &pixels)]
            .map(|(model, body)| numbers(infer(&server, model, body).unwrap()));
        assert!(
            seen.len() == 10 && seen.iter().zip(&want).all(|(seen, want)| (seen - want).abs() < 1e-4),
            "{seen:?} {want:?}"
        );
    }
}

#[test]
fn a_model_that_is_loaded_anew_beneath_requests_fails_none_of_them() {
    let repository = Folder::new("ensembles");
    let path = repository.path();
    slow(path, "m", 3, "");
    ensemble(
        path,
        "e",
        8,
        "x FP32 1 > y FP32 1",
        "m: INPUT0=x > OUTPUT0=t; m: INPUT0=t > OUTPUT0=u; m: INPUT0=u > OUTPUT0=y",
    );
    let flags = ["--shards=2", "--model-control-mode=explicit", "--load-model=e"];
    let mut server = Server::deuteron(path, &flags);
    let (is_over, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    let start = Instant::now();
    thread::scope(|scope| {
        let _over = Over(&is_over);
        for _ in 0..6 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    assert_eq!(one(&server, "e", 1.5), Ok(1.5));
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut rounds = 0;
        while rounds < 25 || served.load(Ordering::Relaxed) < 100 {
            slow(path, "m", 3, &parameter("round", &rounds.to_string()));
            assert_eq!(load(&server, "m"), (200, String::new()));
            rounds += 1;
            assert!(start.elapsed() < Duration::from_secs(60), "{rounds} loads, {served:?} answers");
        }
    });
    assert_eq!(count(&server, "e", "fail"), 0);

    // A drain waits for the steps that are still to come.
    slow(path, "m", 100, "");
    assert_eq!(load(&server, "m"), (200, String::new()));
    thread::scope(|scope| {
        let address = server.http();
        let body = json!({ "inputs": [input("x", "FP32", &[1, 1], json!([2.5]))] }).to_string();
        let last = scope.spawn(move || http::post(address, "/v2/models/e/infer", body.as_bytes()).unwrap());
        thread::sleep(Duration::from_millis(50));
        assert!(server.stop().success());
        assert_eq!(last.join().unwrap().status, 200);
    });
}

/// Steps of a random ensemble on models of every kind, each on tensors that come before it.
fn random_steps(random: &mut impl FnMut(usize) -> usize) -> (String, Vec<usize>) {
    let models = ["inline", "batched", "delayed", "narrow"];
    let (mut text, mut used, mut tensors) = (Vec::new(), vec![false], 1);
    for _ in 0..4 + random(8) {
        let (one, other) = (random(tensors), random(tensors));
        (used[one], used[other]) = (true, true);
        let model = models[random(models.len())];
        text.push(format!("{model}: INPUT0=t{one} INPUT1=t{other} > OUTPUT0=t{tensors} OUTPUT1=t{}", tensors + 1));
        used.extend([false, false]);
        tensors += 2;
    }
    (text.join("; "), (1..tensors).filter(|tensor| !used[*tensor]).collect())
}

#[test]
fn random_ensembles_under_clients_that_come_and_go_lose_nothing_and_are_never_stuck() {
    let repository = Folder::new("ensembles");
    let path = repository.path();
    let two = "INPUT0 INT32 1, INPUT1 INT32 1 > OUTPUT0 INT32 1, OUTPUT1 INT32 1";
    identity(path, "inline", 8, two, "");
    identity(
        path,
        "batched",
        8,
        two,
        "dynamic_batching { max_queue_delay_microseconds: 500 } instance_group { count: 2 }",
    );
    identity(path, "delayed", 8, two, &(parameter("execute_delay_ms", "1") + "dynamic_batching { }"));
    let narrow = "dynamic_batching { default_queue_policy { max_queue_size: 6 } }";
    identity(path, "narrow", 8, two, &(parameter("execute_delay_ms", "1") + narrow));
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |bound: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % bound as u64) as usize
    };
    let mut outputs = Vec::new();
    for index in 0..12 {
        let (steps, last) = random_steps(&mut random);
        let names: Vec<_> = last.iter().map(|tensor| format!("t{tensor} INT32 1")).collect();
        let bound = if index % 3 == 0 { 2 } else { 0 };
        bounded(path, &format!("e{index}"), (8, bound), &format!("t0 INT32 1 > {}", names.join(", ")), &steps);
        outputs.push(last.len());
    }
    let server = Server::deuteron(path, &["--shards=2"]);
    let counts = thread::scope(|scope| {
        let clients: Vec<_> = (0..12_usize)
            .map(|client| {
                let (server, outputs) = (&server, &outputs);
                scope.spawn(move || {
                    let (mut served, mut refused, mut left) = (0, 0, 0);
                    for round in 0..40 {
                        let (model, value) = ((client * 7 + round) % 12, (client * 1_000 + round) as i64);
                        let body = json!({ "inputs": [input("t0", "INT32", &[1, 1], json!([value]))] });
                        if (client + round) % 5 == 0 {
                            let path = format!("/v2/models/e{model}/infer");
                            let mut connection = http::Connection::open(server.http()).unwrap();
                            let request = http::request("POST", &path, &[], body.to_string().as_bytes());
                            connection.send(&request).unwrap();
                            thread::sleep(Duration::from_micros((round as u64 * 137) % 4_000));
                            left += 1;
                            continue;
                        }
                        match infer(server, &format!("e{model}"), &body) {
                            Ok(answer) => {
                                let all = answer["outputs"].as_array().unwrap();
                                assert_eq!(all.len(), outputs[model]);
                                assert!(all.iter().all(|output| output["data"] == json!([value])), "{answer}");
                                served += 1;
                            }
                            Err((503, text)) if text.contains("Exceeds maximum queue size") => refused += 1,
                            Err(other) => panic!("{other:?}"),
                        }
                    }
                    [served, refused, left]
                })
            })
            .collect();
        clients.into_iter().fold([0; 3], |sum, client| {
            let counts = client.join().unwrap();
            [0, 1, 2].map(|index| sum[index] + counts[index])
        })
    });
    wait_until("the end of all", || in_flight(&server) == 0);
    let metric = |name: &str| metrics::metric(server.metrics(), name);
    let cancelled = metric("deuteron_requests_cancelled_total{reason=\"connection_closed\"}");
    let (received, succeeded) =
        (metric("deuteron_requests_received_total"), metric("deuteron_requests_succeeded_total"));
    let unavailable = metric("deuteron_requests_refused_total{reason=\"unavailable\"}");
    assert_eq!(received, succeeded + unavailable + cancelled, "each was counted once");
    let [served, refused, left] = counts.map(|count: u64| count);
    assert!(served > 50 && left == 96 && served + refused + left == 480, "{counts:?}");
    assert!(succeeded >= served && unavailable >= refused && received <= 480);
    for model in ["batched", "delayed", "narrow"] {
        let waiting = format!("nv_inference_pending_request_count{{model=\"{model}\",version=\"1\"}}");
        wait_until("an empty queue", || metric(&waiting) == 0);
    }
}
