//! Queue policies of a model's configuration, on the server as a process: timeouts, sizes and
//! priorities while the model's only instance is busy.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::folder::Folder;
use crate::support::http::{self, Response};
use crate::support::metrics;
use crate::support::repository::{self, Flavour};
use crate::support::server::Server;

/// A model that takes 300 ms a batch, with these fields of `dynamic_batching`.
fn slow_model(fields: &str) -> Folder {
    let folder = repository::write(Flavour::Deuteron);
    let path = folder.path().join("slow").join("config.pbtxt");
    let text = std::fs::read_to_string(&path).unwrap() + &format!("dynamic_batching {{ {fields} }}\n");
    std::fs::write(path, text).unwrap();
    folder
}

fn infer(server: &Server, parameters: &str) -> Response {
    let zeros = ["0"; 8].join(",");
    let body = format!(
        r#"{{"parameters":{{{parameters}}},"inputs":[{{"name":"INPUT0","shape":[8,1],"datatype":"FP32","data":[{zeros}]}}]}}"#
    );
    http::exchange(server.http(), &http::request("POST", "/v2/models/slow/infer", &[], body.as_bytes())).unwrap()
}

fn metric(server: &Server, name: &str) -> u64 {
    metrics::metric(server.metrics(), name)
}

fn wait_for(server: &Server, name: &str, want: u64) {
    let start = Instant::now();
    while metric(server, name) != want {
        assert!(start.elapsed() < Duration::from_secs(10), "{name} is never {want}");
        thread::yield_now();
    }
}

/// Waits until the first batch runs.
fn wait_until_busy(server: &Server) {
    while metrics::batches_left(server.metrics(), "slow") == 0 {
        thread::yield_now();
    }
}

const RUNS: &str = "nv_inference_exec_count{model=\"slow\",version=\"1\"}";
const WAITING: &str = "nv_inference_pending_request_count{model=\"slow\",version=\"1\"}";
const REJECTED: &str = "nv_inference_request_failure{model=\"slow\",reason=\"REJECTED\",version=\"1\"}";

#[test]
fn a_queue_timeout_is_kept_while_every_instance_is_busy_and_a_request_that_runs_is_left_alone() {
    let folder =
        slow_model("default_queue_policy { default_timeout_microseconds: 60000 allow_timeout_override: true }");
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    thread::scope(|scope| {
        let busy = scope.spawn(|| infer(&server, ""));
        wait_until_busy(&server);
        for (parameters, timeout) in [(r#""timeout":10000"#, 10), ("", 60), (r#""timeout":900000"#, 60)] {
            let start = Instant::now();
            let refused = infer(&server, parameters);
            let took = start.elapsed();
            assert_eq!(String::from_utf8(refused.body).unwrap(), r#"{"error":"Request timeout expired"}"#);
            assert_eq!(refused.status, 503);
            let timeout = Duration::from_millis(timeout);
            assert!(took >= timeout && took < timeout + Duration::from_millis(40), "{parameters}: {took:?}");
        }
        assert_eq!(busy.join().unwrap().status, 200, "its timeout passed while it ran");
    });
    assert_eq!((metric(&server, REJECTED), metric(&server, RUNS), metric(&server, WAITING)), (3, 1, 0));
}

#[test]
fn the_size_of_a_models_queue_takes_the_place_of_the_flag() {
    let folder = slow_model("default_queue_policy { max_queue_size: 3 }");
    let server = Server::deuteron(folder.path(), &["--shards=2", "--queue-requests-max=1"]);
    thread::scope(|scope| {
        let first = scope.spawn(|| infer(&server, ""));
        wait_until_busy(&server);
        let others: Vec<_> = (0..5).map(|_| scope.spawn(|| infer(&server, ""))).collect();
        let statuses: Vec<_> = others.into_iter().map(|other| other.join().unwrap()).collect();
        let refused: Vec<_> = statuses.iter().filter(|response| response.status == 503).collect();
        assert_eq!(refused.len(), 2);
        assert_eq!(refused[0].body, br#"{"error":"[request id: <id_unknown>] Exceeds maximum queue size"}"#);
        assert_eq!(first.join().unwrap().status, 200);
    });
    assert_eq!((metric(&server, REJECTED), metric(&server, RUNS)), (2, 4));
}

#[test]
fn a_request_of_higher_priority_passes_those_that_wait() {
    let folder = slow_model("priority_levels: 2 default_priority_level: 2");
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    thread::scope(|scope| {
        let send = |parameters: &'static str| {
            scope.spawn(|| {
                assert_eq!(infer(&server, parameters).status, 200);
                Instant::now()
            })
        };
        let busy = send("");
        wait_until_busy(&server);
        let low = send("");
        wait_for(&server, WAITING, 1);
        let high = send(r#""priority":1"#);
        wait_for(&server, WAITING, 2);
        let [busy, low, high] = [busy, low, high].map(|request| request.join().unwrap());
        assert!(busy < high && high < low);
    });
}

#[test]
fn a_delay_puts_requests_together_that_come_one_after_the_other() {
    let folder = slow_model("max_queue_delay_microseconds: 400000");
    let server = Server::deuteron(folder.path(), &["--shards=2"]);
    let one = r#"{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[1]}]}"#;
    let request = http::request("POST", "/v2/models/slow/infer", &[], one.as_bytes());
    let start = Instant::now();
    thread::scope(|scope| {
        for waiting in 1..=3 {
            scope.spawn(|| assert_eq!(http::exchange(server.http(), &request).unwrap().status, 200));
            wait_for(&server, WAITING, waiting);
        }
    });
    assert!(start.elapsed() >= Duration::from_millis(700), "the delay, then a run: {:?}", start.elapsed());
    assert_eq!(metric(&server, RUNS), 1);
}
