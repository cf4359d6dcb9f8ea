//! Bodies of megabytes in JSON: other threads than the shard's read and write them, so that the shard's other clients
//! wait for none of it; and the memory of a burst goes back to the system.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::http::{self, Connection};
use crate::support::metrics::metric;
use crate::support::repository::{self, Flavour};
use crate::support::server::Server;

const PATH: &str = "/v2/models/identity_fp32/infer";
const HELD: &str = "deuteron_receive_memory_bytes";
const COLUMNS: usize = 3_000_000;

/// A request of so many elements of four characters; every value says its place.
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

/// The longest that a client waits who asks for little every few milliseconds, while `busy` goes on.
fn longest_wait(server: &Server, busy: impl FnOnce() + Send) -> (Duration, u32) {
    let is_over = AtomicBool::new(false);
    let small = br#"{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[1]}]}"#;
    thread::scope(|scope| {
        scope.spawn(|| {
            busy();
            is_over.store(true, Ordering::Release);
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
    // Reading and writing it takes most of the time, of which a client that came in between would have waited the half.
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
        // Its elements take as much memory again as its text, and a little more.
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
