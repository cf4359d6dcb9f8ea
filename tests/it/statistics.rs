//! Statistics and metrics, on the server as a process: both protocols and `/metrics` tell the same of a model version,
//! and it agrees with the clients' counts.

use std::io::Write;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::support::folder::Folder;
use crate::support::grpc::Client;
use crate::support::protobuf::Message;
use crate::support::repository::{self, Flavour};
use crate::support::{http, server::Server};
use deuteron::wire::proto::inference as proto;
use prost::Message as _;
use serde_json::{Value, json};

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
const STATISTICS: &str = "/inference.GRPCInferenceService/ModelStatistics";

fn request(model: &str, rows: usize) -> Vec<u8> {
    let zeros = vec!["0"; rows].join(",");
    let body = format!(r#"{{"inputs":[{{"name":"INPUT0","shape":[{rows},1],"datatype":"FP32","data":[{zeros}]}}]}}"#);
    http::request("POST", &format!("/v2/models/{model}/infer"), &[], body.as_bytes())
}

fn message(model: &str, rows: usize) -> Vec<u8> {
    let shape = [i64::try_from(rows).unwrap(), 1];
    let input = Message::new().bytes(1, "INPUT0").bytes(2, "FP32").packed(3, &shape);
    Message::new().bytes(1, model).message(5, input).bytes(7, vec![0; rows * 4]).into_bytes()
}

fn metrics(server: &Server) -> String {
    String::from_utf8(http::get(server.metrics(), "/metrics").unwrap().body).unwrap()
}

/// The value of `name{model="…",labels}` in `/metrics`.
fn metric(text: &str, name: &str, labels: &str) -> f64 {
    let start = format!("{name}{{{labels}}} ");
    let value = text.lines().find_map(|line| line.strip_prefix(&start));
    value.unwrap_or_else(|| panic!("{start} is not in\n{text}")).parse().unwrap()
}

fn wait_for(server: &Server, name: &str, want: f64) {
    let start = Instant::now();
    while metric(&metrics(server), name, "model=\"slow\",version=\"1\"").to_bits() != want.to_bits() {
        assert!(start.elapsed() < Duration::from_secs(10), "{name} is never {want}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// The statistics at a path, as REST tells them.
fn rest(server: &Server, path: &str) -> Value {
    let answer = http::get(server.http(), path).unwrap();
    assert_eq!((answer.status, answer.header("Content-Type")), (200, Some("application/json")));
    let mut all: Value = serde_json::from_slice(&answer.body).unwrap();
    all["model_stats"].take()
}

/// The same, as gRPC tells them.
fn grpc(server: &Server, name: &str, version: &str) -> Value {
    let request = Message::new().bytes(1, name).bytes(2, version).into_bytes();
    let answer = Client::new(server.grpc()).call(STATISTICS, &request).unwrap();
    let response = proto::ModelStatisticsResponse::decode(answer.as_slice()).unwrap();
    response.model_stats.iter().map(in_json).collect()
}

fn in_json(model: &proto::ModelStatistics) -> Value {
    let total = |total: &Option<proto::StatisticDuration>| {
        let total = total.as_ref().expect("it is set even where it is zero");
        json!({"count": total.count, "ns": total.ns})
    };
    let of = model.inference_stats.as_ref().unwrap();
    let batch = |batch: &proto::InferBatchStatistics| {
        json!({
            "batch_size": batch.batch_size,
            "compute_input": total(&batch.compute_input),
            "compute_infer": total(&batch.compute_infer),
            "compute_output": total(&batch.compute_output),
        })
    };
    assert!(model.memory_usage.is_empty() && model.response_stats.is_empty());
    json!({
        "name": model.name,
        "version": model.version,
        "last_inference": model.last_inference,
        "inference_count": model.inference_count,
        "execution_count": model.execution_count,
        "inference_stats": {
            "success": total(&of.success),
            "fail": total(&of.fail),
            "queue": total(&of.queue),
            "compute_input": total(&of.compute_input),
            "compute_infer": total(&of.compute_infer),
            "compute_output": total(&of.compute_output),
            "cache_hit": total(&of.cache_hit),
            "cache_miss": total(&of.cache_miss),
        },
        "response_stats": {},
        "batch_stats": model.batch_stats.iter().map(batch).collect::<Vec<_>>(),
        "memory_usage": [],
    })
}

/// The statistics of a model, after comparing all ways to ask for them.
fn agreed(server: &Server, model: &str) -> Value {
    let one = rest(server, &format!("/v2/models/{model}/stats"));
    assert_eq!(one, rest(server, &format!("/v2/models/{model}/versions/1/stats")));
    assert_eq!(one, grpc(server, model, ""));
    assert_eq!(one, grpc(server, model, "1"));
    let all = rest(server, "/v2/models/stats");
    assert_eq!(all, grpc(server, "", ""));
    let all = all.as_array().unwrap();
    assert!(all.is_sorted_by_key(|model| model["name"].as_str().unwrap().to_owned()));
    let of_model: Vec<_> = all.iter().filter(|statistics| statistics["name"] == model).collect();
    assert_eq!(one.as_array().unwrap().iter().collect::<Vec<_>>(), of_model);
    assert_eq!(of_model.len(), 1);
    agrees_with_metrics(&metrics(server), model, of_model[0]);
    of_model[0].clone()
}

fn agrees_with_metrics(text: &str, model: &str, statistics: &Value) {
    let labels = format!("model=\"{model}\",version=\"1\"");
    let equals = |name: &str, want: f64| {
        let have = metric(text, name, &labels);
        assert!((have - want).abs() < 1e-3, "{name}: {have} is not {want}");
    };
    let number = |value: &Value| value.as_f64().unwrap();
    let of = &statistics["inference_stats"];
    equals("nv_inference_request_success", number(&of["success"]["count"]));
    equals("nv_inference_count", number(&statistics["inference_count"]));
    equals("nv_inference_exec_count", number(&statistics["execution_count"]));
    for (name, part) in [
        ("request", "success"),
        ("queue", "queue"),
        ("compute_input", "compute_input"),
        ("compute_infer", "compute_infer"),
        ("compute_output", "compute_output"),
    ] {
        equals(&format!("nv_inference_{name}_duration_us"), (number(&of[part]["ns"]) / 1e3).floor());
    }
    let failures = ["CANCELED", "REJECTED", "BACKEND", "OTHER"].map(|reason| {
        metric(text, "nv_inference_request_failure", &format!("model=\"{model}\",reason=\"{reason}\",version=\"1\""))
    });
    assert!((failures.iter().sum::<f64>() - number(&of["fail"]["count"])).abs() < 0.5, "{failures:?}");

    let batches = statistics["batch_stats"].as_array().unwrap();
    let count = |batch: &Value| number(&batch["compute_infer"]["count"]);
    let ran: f64 = batches.iter().map(count).sum();
    equals("deuteron_batch_size_count", ran);
    equals("nv_inference_exec_count", ran);
    equals("deuteron_batch_size_sum", batches.iter().map(|batch| count(batch) * number(&batch["batch_size"])).sum());
    equals("deuteron_queue_duration_seconds_count", number(&of["queue"]["count"]));
    let sum = metric(text, "deuteron_queue_duration_seconds_sum", &labels);
    assert!((sum * 1e9 - number(&of["queue"]["ns"])).abs() < 1.0, "{sum} s are not {} ns", of["queue"]["ns"]);
    let released = ["delay", "full", "idle", "preferred", "shape"].map(|reason| {
        metric(text, "deuteron_batches_total", &format!("model=\"{model}\",reason=\"{reason}\",version=\"1\""))
    });
    assert!((released.iter().sum::<f64>() - ran).abs() < 0.5, "{released:?}");
}

/// Batches by their rows: `[[rows, count], …]`.
fn batch_counts(statistics: &Value) -> Value {
    let batches = statistics["batch_stats"].as_array().unwrap();
    batches.iter().map(|batch| json!([batch["batch_size"], batch["compute_infer"]["count"]])).collect()
}

fn epoch_millis() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

#[test]
fn statistics_of_a_model_inside_the_shards_are_what_its_clients_sent() {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &["--shards=2"]);
    assert_eq!(agreed(&server, "identity_fp32")["inference_stats"]["success"], json!({"count": 0, "ns": 0}));
    let before = epoch_millis();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let client = Client::new(server.grpc());
                for rows in [1, 1, 2, 8] {
                    assert_eq!(http::exchange(server.http(), &request("identity_fp32", rows)).unwrap().status, 200);
                    client.call(INFER, &message("identity_fp32", rows)).unwrap();
                }
            });
        }
    });
    assert!(http::exchange(server.http(), &request("identity_fp32", 9)).unwrap().status == 400, "too many rows");
    let after = epoch_millis();
    let statistics = agreed(&server, "identity_fp32");
    assert_eq!(statistics["inference_stats"]["success"]["count"], 32);
    assert_eq!(statistics["inference_stats"]["fail"]["count"], 0, "it never reached the model");
    assert_eq!(statistics["inference_count"], 96);
    assert_eq!(statistics["execution_count"], 32);
    assert_eq!(batch_counts(&statistics), json!([[1, 16], [2, 8], [8, 8]]));
    let last = statistics["last_inference"].as_u64().unwrap();
    assert!((before.saturating_sub(2)..=after + 2).contains(&last), "{before} {last} {after}");
    let text = metrics(&server);
    for (bound, want) in [("1", 16.0), ("2", 24.0), ("4", 24.0), ("8", 32.0), ("1024", 32.0), ("+Inf", 32.0)] {
        let labels = format!("model=\"identity_fp32\",version=\"1\",le=\"{bound}\"");
        let have: f64 = metric(&text, "deuteron_batch_size_bucket", &labels);
        assert!((have - want).abs() < 0.5, "{bound}: {have}");
    }
    let idle = metric(&text, "deuteron_batches_total", "model=\"identity_fp32\",reason=\"idle\",version=\"1\"");
    assert!((idle - 32.0).abs() < 0.5, "{idle}");
}

/// The model `slow` batches, and takes a second for each batch.
fn slow_model() -> Folder {
    let folder = repository::write(Flavour::Deuteron);
    repository::set_batched(folder.path(), "slow");
    let path = folder.path().join("slow").join("config.pbtxt");
    let text = std::fs::read_to_string(&path).unwrap();
    let slower = text.replace("string_value: \"300\"", "string_value: \"1000\"");
    assert_ne!(text, slower);
    std::fs::write(path, slower).unwrap();
    folder
}

#[test]
fn statistics_of_a_model_on_workers_count_batches_refusals_and_clients_that_left() {
    let folder = slow_model();
    let server = Server::deuteron(folder.path(), &["--shards=2", "--queue-requests-max=2"]);
    thread::scope(|scope| {
        let mut leaving = TcpStream::connect(server.http()).unwrap();
        leaving.write_all(&request("slow", 3)).unwrap();
        while crate::support::metrics::batches_left(server.metrics(), "slow") == 0 {
            thread::sleep(Duration::from_millis(2));
        }
        // The only request of the running batch.
        socket2::SockRef::from(&leaving).set_linger(Some(Duration::ZERO)).unwrap();
        drop(leaving);
        let over_http = scope.spawn(|| http::exchange(server.http(), &request("slow", 2)).unwrap().status);
        let over_grpc = scope.spawn(|| Client::new(server.grpc()).call(INFER, &message("slow", 4)).is_ok());
        wait_for(&server, "nv_inference_pending_request_count", 2.0);
        assert_eq!(http::exchange(server.http(), &request("slow", 1)).unwrap().status, 503);
        assert!(Client::new(server.grpc()).call(INFER, &message("slow", 1)).is_err());
        assert_eq!((over_http.join().unwrap(), over_grpc.join().unwrap()), (200, true));
    });
    let statistics = agreed(&server, "slow");
    let of = &statistics["inference_stats"];
    assert_eq!((&of["success"]["count"], &of["fail"]["count"]), (&json!(2), &json!(3)));
    assert_eq!((&statistics["inference_count"], &statistics["execution_count"]), (&json!(6), &json!(2)));
    assert_eq!(batch_counts(&statistics), json!([[3, 1], [6, 1]]));
    for batch in statistics["batch_stats"].as_array().unwrap() {
        assert!(batch["compute_infer"]["ns"].as_u64().unwrap() >= 1_000_000_000, "{batch}");
    }
    let parts = ["queue", "compute_input", "compute_infer", "compute_output"];
    let parts: u64 = parts.iter().map(|part| of[part]["ns"].as_u64().unwrap()).sum();
    assert_eq!(of["success"]["ns"], parts, "the four durations are all of it");
    assert!(of["fail"]["ns"].as_u64().unwrap() > 0);
    let canceled = "model=\"slow\",reason=\"CANCELED\",version=\"1\"";
    assert!((metric(&metrics(&server), "nv_inference_request_failure", canceled) - 1.0).abs() < 0.5);
}

#[test]
fn statistics_of_what_is_not_there_are_refused_in_tritons_words() {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &[]);
    for (name, version, text) in [
        ("nope", "", "requested model 'nope' is not available"),
        ("nope", "1", "requested model 'nope' is not available"),
        ("slow", "2", "requested model version is not available for model 'slow'"),
    ] {
        let versions = if version.is_empty() { String::new() } else { format!("/versions/{version}") };
        let answer = http::get(server.http(), &format!("/v2/models/{name}{versions}/stats")).unwrap();
        assert_eq!((answer.status, answer.body), (400, format!("{{\"error\":\"{text}\"}}").into_bytes()));
        let request = Message::new().bytes(1, name).bytes(2, version).into_bytes();
        let refusal = Client::new(server.grpc()).call(STATISTICS, &request).unwrap_err();
        assert_eq!((refusal.code(), refusal.message()), (tonic::Code::InvalidArgument, text));
    }
}

/// A model that looks rows up in a table of four, on a worker, three requests to a batch.
fn lookup_server() -> (Folder, Server) {
    let folder = Folder::new("lookup");
    let config = "platform: \"onnxruntime_onnx\" max_batch_size: 8 instance_group { count: 1 kind: KIND_CPU }\n\
        dynamic_batching { preferred_batch_size: 3 max_queue_delay_microseconds: 10000000 }\n\
        input { name: \"ROW\" data_type: TYPE_INT32 dims: 1 }\n\
        output { name: \"VALUE\" data_type: TYPE_FP32 dims: 1 }";
    repository::add(folder.path(), "lookup", config, Some(&crate::support::onnx::lookup()));
    let inline =
        config.replace("dynamic_batching { preferred_batch_size: 3 max_queue_delay_microseconds: 10000000 }", "");
    let inline = inline + "parameters { key: \"placement\" value { string_value: \"inline\" } }";
    repository::add(folder.path(), "inline", &inline, Some(&crate::support::onnx::lookup()));
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    (folder, server)
}

/// Asks for three rows at once. Returns the statuses.
fn look_up(server: &Server, model: &str, rows: [i32; 3]) -> [u16; 3] {
    thread::scope(|scope| {
        let asked = rows.map(|row| {
            scope.spawn(move || {
                let body =
                    format!(r#"{{"inputs":[{{"name":"ROW","shape":[1,1],"datatype":"INT32","data":[{row}]}}]}}"#);
                let request = http::request("POST", &format!("/v2/models/{model}/infer"), &[], body.as_bytes());
                let answer = http::exchange(server.http(), &request).unwrap();
                let text = String::from_utf8(answer.body).unwrap();
                assert_eq!(answer.status == 200, text.contains(&format!("\"data\":[{}.0]", 10 + row)), "{text}");
                answer.status
            })
        });
        asked.map(|status| status.join().unwrap())
    })
}

/// As Triton's ONNX Runtime backend: it reports a batch unless all of its requests failed, and each request that failed
/// as failed alone. Its batch fails as one; ours is run again one by one, and each run counts for itself.
#[test]
fn a_batch_of_which_every_request_fails_is_not_counted_and_a_failed_request_is_no_inference() {
    let (_folder, server) = lookup_server();
    for model in ["lookup", "inline"] {
        let [one, three] = if model == "lookup" { [0, 1] } else { [3, 0] };
        let check = |rows, want: [u16; 3], success: u64, fail: u64, executions: Value| {
            assert_eq!(look_up(&server, model, rows), want, "{model}");
            let text = metrics(&server);
            let answer = rest(&server, &format!("/v2/models/{model}/stats"))[0].take();
            let of = &answer["inference_stats"];
            assert_eq!((&of["success"]["count"], &of["fail"]["count"]), (&json!(success), &json!(fail)), "{model}");
            for part in ["queue", "compute_input", "compute_infer", "compute_output"] {
                assert_eq!(of[part]["count"], json!(success), "{model} {part}");
            }
            assert_eq!(answer["inference_count"], json!(success), "{model}");
            assert_eq!(batch_counts(&answer), executions, "{model}");
            let count: u64 = executions.as_array().unwrap().iter().map(|pair| pair[1].as_u64().unwrap()).sum();
            assert_eq!(answer["execution_count"], json!(count), "{model}");
            let value =
                |name: &str, more: &str| metric(&text, name, &format!("model=\"{model}\",{more}version=\"1\"")) as u64;
            assert_eq!(value("nv_inference_exec_count", ""), count, "{model}");
            assert_eq!(value("nv_inference_count", ""), success, "{model}");
            assert_eq!(value("nv_inference_request_failure", "reason=\"BACKEND\","), fail, "{model}");
        };
        let counts = |ones: u64, threes: u64| {
            let all = [json!([1, ones]), json!([3, threes])];
            all.into_iter().filter(|pair| pair[1] != json!(0)).collect::<Value>()
        };
        check([1, 2, 3], [200; 3], 3, 0, counts(one, three));
        let refused = look_up(&server, model, [9, 8, 7]);
        assert!(refused.iter().all(|status| *status >= 400), "{refused:?}");
        let failed = refused[0];
        check([9, 9, 9], [failed; 3], 3, 6, counts(one, three));
        let mut mixed = [200; 3];
        mixed[1] = failed;
        check([0, 9, 3], mixed, 5, 7, counts(one + 2, three));
    }
}
