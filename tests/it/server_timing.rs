//! `Server-Timing` on the server as a process, over HTTP/1.1, HTTP/2 and gRPC: absent by default,
//! there for a client that asks and for all with the flag, and in agreement with the client's
//! clock.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::folder::Folder;
use crate::support::protobuf::Message;
use crate::support::repository::{self, Flavour};
use crate::support::{grpc, h2, http, server::Server};

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
const LIVE: &str = "/inference.GRPCInferenceService/ServerLive";
const ASK: (&str, &str) = ("want-server-timing", "1");
/// Runs inside the shard.
const INLINE: &str = "identity_fp32";
/// Runs on a worker, with a delay.
const SLOW: &str = "slow";
const DELAY: Duration = Duration::from_millis(100);
const NAMES: [&str; 5] = ["parse", "queue", "batch", "run", "write"];

/// The models of the tests, and the slow one with its delay.
fn models() -> Folder {
    let folder = repository::write(Flavour::Deuteron);
    let path = folder.path().join(SLOW).join("config.pbtxt");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(path, text.replace("\"300\"", &format!("\"{}\"", DELAY.as_millis()))).unwrap();
    folder
}

fn server(folder: &Path, flags: &[&str]) -> Server {
    Server::deuteron(folder, &[&["--shards=1"], flags].concat())
}

fn path(model: &str) -> String {
    format!("/v2/models/{model}/infer")
}

const BODY: &[u8] = br#"{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[2]}]}"#;

fn message(model: &str) -> Vec<u8> {
    let input = Message::new().bytes(1, "INPUT0").bytes(2, "FP32").packed(3, &[1, 1]);
    Message::new().bytes(1, model).message(5, input).bytes(7, [0; 4]).into_bytes()
}

/// The ways to ask, each returning the answer's field of durations.
type Way = fn(&Server, &str, &[(&'static str, &'static str)]) -> Option<String>;

fn over_http1(server: &Server, model: &str, fields: &[(&'static str, &'static str)]) -> Option<String> {
    let response = http::exchange(server.http(), &http::request("POST", &path(model), fields, BODY)).unwrap();
    assert_eq!(response.status, 200, "{}", String::from_utf8_lossy(&response.body));
    response.header("Server-Timing").map(str::to_owned)
}

fn over_http2(server: &Server, model: &str, fields: &[(&'static str, &'static str)]) -> Option<String> {
    let (status, fields, _) = h2::post_with(server.http(), &path(model), fields, BODY);
    assert_eq!(status, 200);
    fields.get("server-timing").cloned()
}

fn over_grpc(server: &Server, model: &str, fields: &[(&'static str, &'static str)]) -> Option<String> {
    // The answer consists of trailers, and one of them is the status.
    let trailers = h2::call(server.grpc(), INFER, fields, &message(model));
    assert_eq!(trailers["grpc-status"], "0", "{trailers:?}");
    trailers.get("server-timing").cloned()
}

const WAYS: [(&str, Way); 3] = [("HTTP/1.1", over_http1), ("HTTP/2", over_http2), ("gRPC", over_grpc)];

/// The durations in a value, which must be the five in their order.
fn spans(text: &str) -> [Duration; 5] {
    let spans = text.split(", ").map(|span| {
        let (name, milliseconds) = span.split_once(";dur=").unwrap_or_else(|| panic!("{text}"));
        let (whole, rest) = milliseconds.split_once('.').unwrap_or_else(|| panic!("{text}"));
        assert_eq!(rest.len(), 3, "{text}");
        (name.to_owned(), Duration::from_micros(format!("{whole}{rest}").parse().unwrap()))
    });
    let (names, spans): (Vec<_>, Vec<_>) = spans.unzip();
    assert_eq!(names, NAMES, "{text}");
    spans.try_into().unwrap()
}

/// The durations in a way's answer, held against the client's own clock.
fn timed(server: &Server, way: Way, model: &str, fields: &[(&'static str, &'static str)]) -> [Duration; 5] {
    let start = Instant::now();
    let text = way(server, model, fields).expect("the time is told");
    let wall = start.elapsed();
    let spans = spans(&text);
    assert!(spans.iter().sum::<Duration>() <= wall, "{text} in {wall:?}");
    spans
}

#[test]
fn nobody_is_told_who_did_not_ask() {
    let folder = models();
    let server = server(folder.path(), &[]);
    for (name, way) in WAYS {
        for model in [INLINE, SLOW] {
            assert_eq!(way(&server, model, &[]), None, "{name} {model}");
        }
        assert_eq!(way(&server, INLINE, &[("want-server-timing", "0")]), None, "{name}");
    }
}

#[test]
fn who_asks_is_told_where_the_time_went() {
    let folder = models();
    let server = server(folder.path(), &[]);
    for (name, way) in WAYS {
        let [_, _, _, run, _] = timed(&server, way, INLINE, &[ASK]);
        assert!(run < DELAY, "{name}: it runs for nothing, got {run:?}");
        let [parse, queue, batch, run, write] = timed(&server, way, SLOW, &[ASK]);
        assert!(run >= DELAY, "{name}: {run:?}");
        let rest = parse + queue + batch + write;
        assert!(rest < DELAY * 20, "{name}: nothing else takes long, got {rest:?}");
    }
}

#[test]
fn a_request_that_waits_behind_another_tells_so() {
    let folder = models();
    let server = server(folder.path(), &[]);
    for (name, way) in WAYS {
        let queues = std::thread::scope(|scope| {
            let one = || timed(&server, way, SLOW, &[ASK])[1];
            let both = [scope.spawn(one), scope.spawn(one)];
            both.map(|one| one.join().unwrap())
        });
        // They may have missed each other by the lateness of the later one, but not by more.
        let waited = queues.into_iter().max().unwrap();
        assert!(waited > Duration::from_micros(500) && waited < DELAY * 20, "{name}: {queues:?}");
    }
}

#[test]
fn the_flag_tells_all_and_only_inferences_that_went_well() {
    let folder = models();
    let server = server(folder.path(), &["--server-timing"]);
    for (_, way) in WAYS {
        timed(&server, way, INLINE, &[]);
    }
    let none = |request: &[u8], status| {
        let response = http::exchange(server.http(), request).unwrap();
        assert_eq!((response.status, response.header("Server-Timing")), (status, None));
    };
    none(&http::request("GET", "/v2/health/ready", &[], b""), 200);
    none(&http::request("POST", &path(INLINE), &[], b"{}"), 400);
    none(&http::request("POST", &path("nobody"), &[], BODY), 404);
    let trailers = |method, message: &[u8]| h2::call(server.grpc(), method, &[], message);
    assert_eq!(trailers(LIVE, b"").get("server-timing"), None);
    let refused = trailers(INFER, &message("nobody"));
    assert_eq!((refused["grpc-status"].as_str(), refused.get("server-timing")), ("5", None));
}

/// The field blocks of a connection are encoded once and copied: an answer with more fields must
/// not change the others.
#[test]
fn calls_that_ask_and_calls_that_do_not_share_a_connection() {
    let folder = models();
    let server = server(folder.path(), &[]);
    let address: SocketAddr = server.grpc();
    let client = grpc::Client::new(address);
    for round in 0..6 {
        let asks = round % 3 != 1;
        let fields = if asks { &[ASK][..] } else { &[] };
        let (metadata, _) = client.call_with(INFER, fields, &message(INLINE)).unwrap();
        let text = metadata.get("server-timing").map(|value| value.to_str().unwrap());
        assert_eq!(text.is_some(), asks, "{round}");
        text.map(spans);
    }
    let mut connection = http::Connection::open(server.http()).unwrap();
    for fields in [&[][..], &[ASK], &[]] {
        connection.send(&http::request("POST", &path(INLINE), fields, BODY)).unwrap();
        let response = connection.receive().unwrap();
        assert_eq!(response.header("Server-Timing").is_some(), !fields.is_empty());
    }
}
