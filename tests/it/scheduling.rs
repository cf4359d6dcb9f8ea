//! Promises of the scheduler, seen from outside: order, refusal of late requests, and batches chosen by a latency
//! target.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::folder::Folder;
use crate::support::http::{self, Connection, Response};
use crate::support::onnx;
use crate::support::protobuf::Message;
use crate::support::server::Server;

/// Writes a model in version 1.
fn add(repository: &Folder, name: &str, config: &str, file: Option<&[u8]>) {
    let version = repository.path().join(name).join("1");
    fs::create_dir_all(&version).unwrap();
    fs::write(version.with_file_name("config.pbtxt"), config).unwrap();
    if let Some(bytes) = file {
        fs::write(version.join("model.onnx"), bytes).unwrap();
    }
}

/// A built-in model whose runs take `delay_ms`.
fn sleeper(delay_ms: u32, more: &str) -> String {
    format!(
        "backend: \"identity\" {more}\n\
         input {{ name: \"INPUT0\" data_type: TYPE_FP32 dims: 1 }}\n\
         output {{ name: \"OUTPUT0\" data_type: TYPE_FP32 dims: 1 }}\n\
         parameters {{ key: \"execute_delay_ms\" value {{ string_value: \"{delay_ms}\" }} }}"
    )
}

fn infer(model: &str, rows: usize, parameters: &str) -> Vec<u8> {
    let data = vec!["1.0"; rows].join(",");
    let input = format!(r#"{{"name":"INPUT0","shape":[{rows},1],"datatype":"FP32","data":[{data}]}}"#);
    let body = format!(r#"{{"parameters":{{{parameters}}},"inputs":[{input}]}}"#);
    http::request("POST", &format!("/v2/models/{model}/infer"), &[], body.as_bytes())
}

fn ask(server: &Server, request: &[u8]) -> (Response, Duration) {
    let start = Instant::now();
    let answer = http::exchange(server.http(), request).unwrap();
    (answer, start.elapsed())
}

/// Sends a slow request, then a quick one, to two instances. Returns true if the quick one was answered first, by more
/// than the time between the wake-ups of two clients: a quarter of the time of both.
fn is_overtaken(server: &Server, model: &str) -> bool {
    let answered_at = |request: Vec<u8>| {
        let mut connection = Connection::open(server.http()).unwrap();
        connection.send(&request).unwrap();
        thread::spawn(move || {
            let answer = connection.receive().unwrap();
            assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
            Instant::now()
        })
    };
    let start = Instant::now();
    let long = answered_at(infer(model, 2200, ""));
    thread::sleep(Duration::from_millis(20));
    let short = answered_at(infer(model, 1, ""));
    let (short, long) = (short.join().unwrap(), long.join().unwrap());
    long.saturating_duration_since(short) > (long - start) / 4
}

#[test]
fn a_quick_answer_overtakes_a_slow_one_unless_the_order_is_preserved() {
    let repository = Folder::new("order");
    let config = |more: &str| {
        format!(
            "platform: \"onnxruntime_onnx\" instance_group {{ count: 2 kind: KIND_CPU }} dynamic_batching {{ {more} }}\n\
             parameters {{ key: \"placement\" value {{ string_value: \"worker\" }} }}\n\
             input {{ name: \"INPUT0\" data_type: TYPE_FP32 dims: [ -1, 1 ] }}\n\
             output {{ name: \"OUTPUT0\" data_type: TYPE_FP32 dims: [ -1, 1 ] }}"
        )
    };
    add(&repository, "free", &config(""), Some(&onnx::cubic()));
    add(&repository, "ordered", &config("preserve_ordering: true"), Some(&onnx::cubic()));
    let server = Server::deuteron(repository.path(), &["--shards=1"]);
    for _ in 0..3 {
        assert!(is_overtaken(&server, "free"));
        assert!(!is_overtaken(&server, "ordered"));
    }
}

#[test]
fn a_request_that_would_be_late_is_refused_at_once_where_the_flag_says_so() {
    let repository = Folder::new("admission");
    add(&repository, "slow", &sleeper(200, "max_batch_size: 1"), None);
    let path = "/inference.GRPCInferenceService/ModelInfer";
    let input = Message::new().bytes(1, "INPUT0").bytes(2, "FP32").packed(3, &[1, 1]);
    let message = Message::new().bytes(1, "slow").message(5, input).bytes(7, [0; 4]).into_bytes();
    let plain = infer("slow", 1, "");
    let within = |timeout_us: u64| infer("slow", 1, &format!("\"timeout\":{timeout_us}"));

    let server = Server::deuteron(repository.path(), &["--shards=1", "--admission=deadline"]);
    let (answer, took) = ask(&server, &within(150_000));
    assert_eq!(answer.status, 200, "nothing ran yet, so nothing is known: {took:?}");
    // On a busy machine the estimate may be a second old: one request then passes to measure anew, and the next is refused.
    let answer = (0..5).map(|_| ask(&server, &within(150_000)).0).find(|answer| answer.status != 200).unwrap();
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    assert_eq!((answer.status, answer.header("Retry-After").is_some()), (503, true), "{text}");
    assert!(text.contains("after its deadline (--admission)"), "{text}");
    let call = || crate::support::h2::call(server.grpc(), path, &[("grpc-timeout", "150m")], &message);
    // One that is let through is late.
    let refused = (0..5).map(|_| call()).find(|trailers| trailers["grpc-status"] != "4").unwrap();
    assert_eq!(refused["grpc-status"], "14", "{refused:?}");
    assert_eq!(ask(&server, &within(10_000_000)).0.status, 200);
    assert_eq!(ask(&server, &plain).0.status, 200, "without a deadline nothing is late");

    let server = Server::deuteron(repository.path(), &["--shards=1"]);
    assert_eq!(ask(&server, &plain).0.status, 200);
    assert_eq!(ask(&server, &within(150_000)).0.status, 200, "by default only what waits can be late");
    let late = crate::support::h2::call(server.grpc(), path, &[("grpc-timeout", "150m")], &message);
    assert_eq!(late["grpc-status"], "4", "{late:?}");
}

#[test]
fn by_default_what_would_still_wait_at_its_timeout_is_refused_at_once() {
    let repository = Folder::new("admission-by-default");
    let policy = "default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 5000000 }";
    let more = format!("max_batch_size: 1 dynamic_batching {{ {policy} }}");
    add(&repository, "slow", &sleeper(2_000, &more), None);
    let server = Server::deuteron(repository.path(), &["--shards=1"]);
    for _ in 0..2 {
        assert_eq!(ask(&server, &infer("slow", 1, "")).0.status, 200);
    }
    // One runs, and two start within five seconds.
    let outcomes: Vec<_> = thread::scope(|scope| {
        let clients: Vec<_> = (0..10).map(|_| scope.spawn(|| ask(&server, &infer("slow", 1, "")))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let refused: Vec<_> = outcomes.iter().filter(|(answer, _)| answer.status == 503).collect();
    assert!((5..10).contains(&refused.len()), "{} of 10", refused.len());
    let is_at_once = |(answer, took): &&&(Response, Duration)| {
        String::from_utf8_lossy(&answer.body).contains("(--admission=queue)") && *took < Duration::from_secs(4)
    };
    let at_once = refused.iter().filter(is_at_once).count();
    assert!(at_once >= 5, "{at_once} of {}", refused.len());
}

#[test]
fn a_latency_target_bounds_the_batches_by_measured_run_times() {
    let repository = Folder::new("target");
    let with = |target_us: u32| {
        let target = format!("parameters {{ key: \"target_latency_us\" value {{ string_value: \"{target_us}\" }} }}");
        sleeper(5, &format!("max_batch_size: 8 dynamic_batching {{ }} {target}"))
    };
    // A batch of any size takes 5 ms: half of 8 ms has room for no batch, half of 800 ms for all, on a busy machine
    // too.
    add(&repository, "tight", &with(8_000), None);
    add(&repository, "loose", &with(800_000), None);
    let server = Server::deuteron(repository.path(), &["--shards=1"]);
    let largest = |model: &str| {
        // It learns the run time from the first request.
        assert_eq!(ask(&server, &infer(model, 1, "")).0.status, 200);
        thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    let mut connection = Connection::open(server.http()).unwrap();
                    for _ in 0..5 {
                        connection.send(&infer(model, 1, "")).unwrap();
                        assert_eq!(connection.receive().unwrap().status, 200);
                    }
                });
            }
        });
        let answer = http::get(server.http(), &format!("/v2/models/{model}/stats")).unwrap();
        let statistics: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        let sizes = statistics["model_stats"][0]["batch_stats"].as_array().unwrap().clone();
        sizes.iter().map(|size| size["batch_size"].as_u64().unwrap()).max().unwrap()
    };
    assert_eq!((largest("tight"), largest("loose")), (1, 8));
}
