//! Queue policies of a model's configuration, on the server as a process: timeouts, sizes and
//! priorities while the model's only instance is busy.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::folder::Folder;
use crate::support::gate::Gate;
use crate::support::http::{self, Response};
use crate::support::metrics;
use crate::support::repository::{self, Flavour};
use crate::support::server::Server;

/// A model with these fields of `dynamic_batching` that takes as long for each batch as the test wants.
fn held_model(fields: &str) -> (Folder, Gate) {
    let folder = slow_model(fields);
    let gate = Gate::on(folder.path(), "slow");
    (folder, gate)
}

/// The same, which takes 300 ms a batch.
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
        assert!(start.elapsed() < Duration::from_secs(15), "{name} is never {want}");
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
    // The timeouts of the model and of a request in microseconds, and the one that holds: the shorter one. The other would
    // come after the client has given up.
    for (of_model, of_request, want) in
        [(60_000, None, 60), (600_000_000, Some(10_000), 10), (60_000, Some(600_000_000), 60)]
    {
        let (folder, gate) = held_model(&format!(
            "default_queue_policy {{ default_timeout_microseconds: {of_model} allow_timeout_override: true }}"
        ));
        let server = Server::deuteron(folder.path(), &["--shards=1", &gate.flag()]);
        thread::scope(|scope| {
            let busy = scope.spawn(|| infer(&server, ""));
            wait_until_busy(&server);
            let start = Instant::now();
            let refused = infer(&server, &of_request.map_or_else(String::new, |us: u64| format!(r#""timeout":{us}"#)));
            let took = start.elapsed();
            assert_eq!(String::from_utf8(refused.body).unwrap(), r#"{"error":"Request timeout expired"}"#);
            assert_eq!(refused.status, 503);
            assert!(took >= Duration::from_millis(want), "{of_model} {of_request:?}: {took:?}");
            gate.open();
            assert_eq!(busy.join().unwrap().status, 200, "its timeout passed while it ran");
        });
        assert_eq!((metric(&server, REJECTED), metric(&server, RUNS), metric(&server, WAITING)), (1, 1, 0));
    }
}

#[test]
fn the_size_of_a_models_queue_takes_the_place_of_the_flag() {
    let (folder, gate) = held_model("default_queue_policy { max_queue_size: 3 }");
    let server = Server::deuteron(folder.path(), &["--shards=2", "--queue-requests-max=1", &gate.flag()]);
    thread::scope(|scope| {
        let first = scope.spawn(|| infer(&server, ""));
        wait_until_busy(&server);
        let others: Vec<_> = (0..5).map(|_| scope.spawn(|| infer(&server, ""))).collect();
        wait_for(&server, WAITING, 3);
        wait_for(&server, REJECTED, 2);
        gate.open();
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
    let (folder, gate) = held_model("priority_levels: 2 default_priority_level: 2");
    let server = Server::deuteron(folder.path(), &["--shards=1", &gate.flag()]);
    thread::scope(|scope| {
        let send = |parameters: &'static str| scope.spawn(|| assert_eq!(infer(&server, parameters).status, 200));
        let busy = send("");
        wait_until_busy(&server);
        let low = send("");
        wait_for(&server, WAITING, 1);
        let high = send(r#""priority":1"#);
        wait_for(&server, WAITING, 2);
        gate.pass(1);
        busy.join().unwrap();
        gate.pass(1);
        high.join().unwrap();
        assert!(!low.is_finished(), "its run is held");
        gate.pass(1);
        low.join().unwrap();
    });
}

#[test]
fn a_delay_puts_requests_together_that_come_one_after_the_other() {
    const DELAY: Duration = Duration::from_secs(2);
    let folder = slow_model(&format!("max_queue_delay_microseconds: {}", DELAY.as_micros()));
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
    assert!(start.elapsed() >= DELAY + Duration::from_millis(300), "the delay, then a run: {:?}", start.elapsed());
    assert_eq!(metric(&server, RUNS), 1);
}
