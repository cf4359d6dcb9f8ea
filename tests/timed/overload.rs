//! Answers to clients, and their delay, while the server is busy: refusals at the bound, and timeouts. Times are
//! compared with the best of a few rounds: other work on the machine only makes them longer.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::folder::Folder;
use crate::support::grpc::Client;
use crate::support::http::{self, Connection};
use crate::support::metrics::{batches_left, metric};
use crate::support::over::Over;
use crate::support::protobuf::Message;
use crate::support::repository::{self, Flavour};
use crate::support::server::Server;
use crate::turn;

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
const ROUNDS: usize = 5;
const WAITING: &str = "nv_inference_pending_request_count{model=\"slow\",version=\"1\"}";

/// A model that takes a second for each batch.
fn slow_model(fields: &str) -> Folder {
    let folder = repository::write(Flavour::Deuteron);
    let path = folder.path().join("slow").join("config.pbtxt");
    let text = std::fs::read_to_string(&path).unwrap().replace("\"300\"", "\"1000\"");
    std::fs::write(path, text + fields).unwrap();
    folder
}

fn request(parameters: &str) -> Vec<u8> {
    let input = r#"{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[1]}"#;
    let body = format!(r#"{{"id":"7","parameters":{{{parameters}}},"inputs":[{input}]}}"#);
    http::request("POST", "/v2/models/slow/infer", &[], body.as_bytes())
}

fn message() -> Vec<u8> {
    let input = Message::new().bytes(1, "INPUT0").bytes(2, "FP32").packed(3, &[1, 1]);
    Message::new().bytes(1, "slow").bytes(3, "7").message(5, input).bytes(7, [0; 4]).into_bytes()
}

/// The median and the 99th percentile.
fn percentiles(mut took: Vec<Duration>) -> (Duration, Duration) {
    took.sort();
    (took[took.len() / 2], took[took.len() * 99 / 100])
}

/// Compares the best of a few rounds with the limits of a round.
fn check_best(what: &str, p50_max: Duration, p99_max: Duration, mut round: impl FnMut() -> Vec<Duration>) {
    let mut seen = Vec::new();
    for _ in 0..ROUNDS {
        let (p50, p99) = percentiles(round());
        eprintln!("{what}: p50 {p50:?}, p99 {p99:?}");
        if p50 <= p50_max && p99 <= p99_max {
            return;
        }
        seen.push((p50, p99));
    }
    panic!("{what}: p50 {p50_max:?} and p99 {p99_max:?} are allowed: {seen:?}");
}

/// Keeps one batch running and one request waiting, beside any other requests, until `body` returns.
fn while_full(server: &Server, body: impl FnOnce()) {
    let is_over = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = Over(&is_over);
        for _ in 0..3 {
            scope.spawn(|| {
                let mut connection = Connection::open(server.http()).unwrap();
                while !is_over.load(std::sync::atomic::Ordering::SeqCst) {
                    connection.send(&request("")).unwrap();
                    let status = connection.receive().unwrap().status;
                    assert!(status == 200 || status == 503, "{status}");
                    if status == 503 {
                        thread::sleep(Duration::from_millis(1));
                    }
                }
            });
        }
        let start = Instant::now();
        while batches_left(server.metrics(), "slow") == 0 || metric(server.metrics(), WAITING) < 1 {
            assert!(start.elapsed() < Duration::from_secs(30), "none waits");
            thread::sleep(Duration::from_millis(1));
        }
        body();
    });
}

#[test]
fn a_refusal_at_the_bound_comes_at_once_and_says_what_tritons_does() {
    let _turn = turn();
    const COUNT: usize = 1_000;
    let folder = slow_model("");
    let server = Server::deuteron(folder.path(), &["--shards=1", "--queue-requests-max=1"]);
    let (p50_max, p99_max) = (Duration::from_millis(1), Duration::from_millis(5));
    while_full(&server, || {
        let mut connection = Connection::open(server.http()).unwrap();
        let mut refused = || loop {
            let start = Instant::now();
            connection.send(&request("")).unwrap();
            let answer = connection.receive().unwrap();
            // Between two batches there may be room for one.
            if answer.status == 503 {
                assert_eq!(answer.body, br#"{"error":"[request id: 7] Exceeds maximum queue size"}"#);
                assert_eq!(answer.header("Retry-After"), Some("1"));
                return start.elapsed();
            }
        };
        check_best("refusals over HTTP", p50_max, p99_max, || (0..COUNT).map(|_| refused()).collect());
        let client = Client::new(server.grpc());
        let refused = || loop {
            let start = Instant::now();
            if let Err(status) = client.call(INFER, &message()) {
                let took = start.elapsed();
                assert_eq!(status.code(), tonic::Code::Unavailable);
                assert_eq!(status.message(), "[request id: 7] Exceeds maximum queue size");
                return took;
            }
        };
        check_best("refusals over gRPC", p50_max, p99_max, || (0..COUNT).map(|_| refused()).collect());
    });
    let refused = metric(server.metrics(), "deuteron_requests_refused_total{reason=\"unavailable\"}");
    assert!(refused >= 2 * COUNT as u64, "{refused}");
}

#[test]
fn a_timeout_of_a_millisecond_is_kept_to_the_millisecond_while_every_instance_is_busy() {
    let _turn = turn();
    let folder = slow_model(
        "dynamic_batching { default_queue_policy { default_timeout_microseconds: 60000000\n\
         allow_timeout_override: true } }",
    );
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    let timeout = Duration::from_millis(1);
    // The timer is one of the ring: it fires when it is due, and the shard answers in its next turn.
    let grain = Duration::from_millis(1);
    let round = || {
        let batches = batches_left(server.metrics(), "slow");
        thread::scope(|scope| {
            let busy = scope.spawn(|| http::exchange(server.http(), &request("")).unwrap().status);
            while batches_left(server.metrics(), "slow") == batches {
                thread::sleep(Duration::from_millis(1));
            }
            let mut connection = Connection::open(server.http()).unwrap();
            let took: Vec<_> = (0..100)
                .map(|_| {
                    let start = Instant::now();
                    connection.send(&request("\"timeout\":1000")).unwrap();
                    let answer = connection.receive().unwrap();
                    let took = start.elapsed();
                    assert_eq!(String::from_utf8_lossy(&answer.body), r#"{"error":"Request timeout expired"}"#);
                    assert_eq!((answer.status, answer.header("Retry-After")), (503, Some("1")));
                    assert!(took >= timeout, "{took:?}");
                    took
                })
                .collect();
            assert!(!busy.is_finished(), "the instance was busy all the while");
            assert_eq!(busy.join().unwrap(), 200);
            took
        })
    };
    check_best("timeouts of 1 ms", timeout + grain, timeout + grain * 4, round);
}
