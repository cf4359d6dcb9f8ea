//! Bodies of megabytes in JSON, and messages of megabytes in typed contents: other threads than the shard's read and
//! write them, so that the shard's other clients do not wait for it; and the memory of a burst goes back to the system.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::grpc::Client;
use crate::support::http::{self, Connection};
use crate::support::metrics::metric;
use crate::support::over::Over;
use crate::support::protobuf::Message;
use crate::support::repository::{self, Flavour};
use crate::support::server::Server;

const PATH: &str = "/v2/models/identity_fp32/infer";
const HELD: &str = "deuteron_receive_memory_bytes";
const COLUMNS: usize = 3_000_000;

/// A request of `count` elements of four characters; every value says its place.
fn body(count: usize) -> String {
    let mut text =
        format!(r#"{{"id":"large","inputs":[{{"name":"INPUT0","shape":[1,{count}],"datatype":"FP32","data":["#);
    for index in 0..count {
        let _ = write!(text, "{}{}", if index == 0 { "" } else { "," }, index % 900 + 100);
    }
    text.push_str("]}]}");
    text
}

fn wait(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// The longest wait of a client that sends a small request every few milliseconds, while `busy` goes on.
fn longest_wait(server: &Server, busy: impl FnOnce() + Send) -> (Duration, u32) {
    let is_over = AtomicBool::new(false);
    let small = br#"{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[1]}]}"#;
    thread::scope(|scope| {
        scope.spawn(|| {
            let _over = Over(&is_over);
            busy();
        });
        let mut connection = Connection::open(server.http()).unwrap();
        let (mut longest, mut count) = (Duration::ZERO, 0);
        while !is_over.load(Ordering::Acquire) {
            let start = Instant::now();
            connection.send(&http::request("POST", PATH, &[], small)).unwrap();
            assert_eq!(connection.receive().unwrap().status, 200);
            longest = longest.max(start.elapsed());
            count += 1;
            thread::sleep(Duration::from_millis(5));
        }
        (longest, count)
    })
}

#[test]
fn a_large_tensor_in_json_is_answered_whole_while_the_shard_serves_others() {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    let large = body(COLUMNS);
    let mut took = Duration::ZERO;
    let (longest, count) = longest_wait(&server, || {
        let start = Instant::now();
        let answer = http::post(server.http(), PATH, large.as_bytes()).unwrap();
        took = start.elapsed();
        assert_eq!(answer.status, 200);
        let text = String::from_utf8(answer.body).unwrap();
        let data = &text[text.find("\"data\":[").unwrap() + 8..text.rfind("]}]}").unwrap()];
        let mut values = data.split(',').map(|value| value.parse::<f32>().unwrap());
        assert!((0..COLUMNS).all(|index| values.next() == Some((index % 900 + 100) as f32)) && values.next().is_none());
    });
    // Reading and writing the body takes most of the time; a client in between would otherwise wait for half of it.
    assert!(longest < took / 4, "waited {longest:?} of {took:?}, {count} requests");
    assert_eq!(metric(server.metrics(), HELD), 0, "nothing of it is held");
}

#[test]
fn a_fault_in_a_large_body_is_told_as_in_a_small_one() {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &["--shards=1", "--receive-memory-bytes-max=8000000"]);
    let large = body(200_000);
    let ask = |path: &str, body: &str| {
        let answer = http::post(server.http(), path, body.as_bytes()).unwrap();
        (answer.status, String::from_utf8_lossy(&answer.body).into_owned())
    };
    for (body, status, want) in [
        (large.replacen("[1,200000]", "[1,200001]", 1), 400, "shape does not match true shape"),
        (large.replacen("\"data\":[100,", "\"data\":[\"100\",", 1), 400, "attempt to access JSON non-number as double"),
        (large.replacen("INPUT0", "INPUT9", 1), 400, "INPUT9"),
        (large[..large.len() - 1].to_owned(), 400, "failed to parse the request JSON buffer"),
        // Its elements take a little more memory than its text.
        (body(1_200_000), 413, "--receive-memory-bytes-max"),
    ] {
        let (have, text) = ask(PATH, &body);
        assert!(have == status && text.contains(want), "{have} {text}");
    }
    let (status, text) = ask("/v2/models/nope/infer", &large);
    assert!(status == 404 && text.contains("nope"), "{status} {text}");
    assert_eq!(ask(PATH, &large).0, 200);
    assert_eq!(metric(server.metrics(), HELD), 0);
    assert!(metric(server.metrics(), "deuteron_receive_memory_refused_total") >= 1);
}

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

/// A request whose elements are varints of two bytes.
fn typed(id: &str, count: usize) -> Vec<u8> {
    let values: Vec<i64> = (0..count).map(|index| i64::try_from(index % 900).unwrap() + 200).collect();
    let shape = [1, i64::try_from(count).unwrap()];
    let contents = Message::new().packed(3, &values);
    let input = Message::new().bytes(1, "INPUT0").bytes(2, "INT64").packed(3, &shape).message(5, contents);
    Message::new().bytes(1, "identity_int64").bytes(3, id).message(5, input).into_bytes()
}

/// Returns true if an answer ends with those values.
fn holds(answer: &[u8], count: usize) -> bool {
    let raw = &answer[answer.len() - 8 * count..];
    let values = raw.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
    values.eq((0..count).map(|index| index as u64 % 900 + 200))
}

#[test]
fn large_typed_contents_are_answered_whole_while_the_shard_serves_others() {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    let large = typed("a", 3_000_000);
    let mut took = Duration::ZERO;
    let (longest, count) = longest_wait(&server, || {
        let start = Instant::now();
        let answer = Client::new(server.grpc()).call(INFER, &large).unwrap();
        took = start.elapsed();
        assert!(holds(&answer, 3_000_000));
    });
    assert!(longest < took / 3, "waited {longest:?} of {took:?}, {count} requests");
}

#[test]
fn large_typed_contents_in_a_stream_keep_their_place_and_are_refused_in_band() {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    let mut wrong = typed("c", 100_000);
    let at = wrong.windows(6).position(|bytes| bytes == b"INPUT0").unwrap();
    wrong[at + 5] = b'7';
    let requests = vec![typed("a", 1), typed("b", 200_000), wrong, typed("d", 2), typed("e", 300_000), typed("f", 1)];
    let (came, end) = Client::new(server.grpc()).stream(STREAM, &[], requests);
    assert!(end.is_ok(), "{end:?}");
    assert_eq!(came.len(), 6);
    for (answer, count) in came.iter().zip([1, 200_000, 0, 2, 300_000, 1]) {
        match count {
            0 => assert!(String::from_utf8_lossy(answer).contains("INPUT7"), "{}", String::from_utf8_lossy(answer)),
            count => assert!(holds(answer, count), "{count}"),
        }
    }
    // A message that cannot be read ends the stream, as a small one does; alone it is refused.
    let mut cut = typed("a", 200_000);
    let last = cut.len() - 1;
    cut[last] |= 0x80;
    let (came, end) = Client::new(server.grpc()).stream(STREAM, &[], vec![cut.clone(), typed("b", 1)]);
    assert!(came.is_empty(), "{came:?}");
    assert_eq!(end.unwrap_err().message(), "Unable to parse request");
    assert_eq!(Client::new(server.grpc()).call(INFER, &cut).unwrap_err().message(), "Unable to parse request");
    assert_eq!(metric(server.metrics(), HELD), 0);
}

#[test]
fn a_client_that_leaves_takes_its_large_body_back() {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    let request = http::request("POST", PATH, &[], body(1_000_000).as_bytes());
    for _ in 0..20 {
        let mut connection = Connection::open(server.http()).unwrap();
        connection.send(&request).unwrap();
    }
    wait("all of it is given back", || {
        metric(server.metrics(), HELD) == 0 && metric(server.metrics(), "deuteron_requests_in_flight") == 0
    });
    assert_eq!(http::post(server.http(), PATH, body(3).as_bytes()).unwrap().status, 200);
}

#[test]
fn the_memory_of_a_burst_goes_back_to_the_system() {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    let before = server.resident();
    let head = format!("POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: 2000000\r\n\r\n").into_bytes();
    let mut peak = 0;
    for _ in 0..2 {
        let held: Vec<_> = (0..150)
            .map(|_| {
                let mut connection = Connection::open(server.http()).unwrap();
                connection.send(&head).unwrap();
                connection.send(&vec![b' '; 1_000_000]).unwrap();
                connection
            })
            .collect();
        wait("all of it is received", || metric(server.metrics(), HELD) >= 150_000_000);
        peak = peak.max(server.resident());
        drop(held);
    }
    assert!(peak > before + 100_000_000, "{before} {peak}");
    wait("it is given back", || server.resident() < before + 40_000_000);
}
