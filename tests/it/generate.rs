//! Generate on the server as a process: the members of a request, the framing of a stream of events, the time at which
//! its events leave, and the cost of a client that leaves. Both servers' answers to the same bytes are in
//! `oracle::suites::generate`.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::folder::Folder;
use crate::support::h2::{self, Leave};
use crate::support::http::{self, Connection};
use crate::support::metrics::metric;
use crate::support::repository::{self, Flavour};
use crate::support::server::Server;
use serde_json::Value;

/// The ways of the sockets.
const IO: [&str; 3] = ["--io=auto", "--io=epoll", "--io=glommio"];

/// The steps of a decoupled ensemble.
const SQUARES: &str = "platform: 'ensemble' input { name: 'A' data_type: TYPE_INT32 dims: 1 }
    output { name: 'B' data_type: TYPE_INT32 dims: 1 } ensemble_scheduling { step {
    model_name: 'square' model_version: -1 input_map { key: 'IN' value: 'A' } output_map { key: 'OUT' value: 'B' } } }";

fn server(flags: &[&str]) -> (Folder, Server) {
    let folder = repository::write(Flavour::Deuteron);
    repository::add(folder.path(), "square", repository::SQUARE, None);
    repository::add(folder.path(), "repeat", repository::REPEAT, None);
    repository::add(folder.path(), "sums", repository::SUMS, None);
    repository::add(folder.path(), "squares", SQUARES, None);
    let flags: Vec<_> = ["--shards=1"].iter().chain(flags).copied().collect();
    let server = Server::deuteron(folder.path(), &flags);
    (folder, server)
}

/// Path behind `/v2/models/`, body, status, answer without the names of model and version.
type Row = (&'static str, &'static str, u16, &'static str);

const MAPPED: &[Row] = &[
    ("identity_fp32/generate", r#"{"INPUT0":[1,2.5]}"#, 200, r#"{"OUTPUT0":[1.0,2.5]}"#),
    ("identity_fp32/generate", r#"{"INPUT0":3}"#, 200, r#"{"OUTPUT0":3.0}"#),
    ("identity_fp32/generate", r#"{"INPUT0":[3]}"#, 200, r#"{"OUTPUT0":3.0}"#),
    ("identity_fp32/generate", r#"{"INPUT0":[]}"#, 200, r#"{"OUTPUT0":[]}"#),
    ("identity_fp32/versions/1/generate", r#"{"INPUT0":3,"id":"a"}"#, 200, r#"{"OUTPUT0":3.0,"id":"a"}"#),
    ("identity_fp32/generate", r#"{"parameters":{"INPUT0":3,"x":1},"y":"z"}"#, 200, r#"{"OUTPUT0":3.0}"#),
    ("identity_bool/generate", r#"{"INPUT0":[true,false]}"#, 200, r#"{"OUTPUT0":[true,false]}"#),
    ("identity_bool/generate", r#"{"INPUT0":true}"#, 200, r#"{"OUTPUT0":true}"#),
    ("identity_bytes/generate", r#"{"INPUT0":"a\"\u00e9"}"#, 200, r#"{"OUTPUT0":"a\"é"}"#),
    ("identity_bytes/generate", r#"{"INPUT0":["a","",",]"]}"#, 200, r#"{"OUTPUT0":["a","",",]"]}"#),
    ("identity_int64/generate", r#"{"INPUT0":-9223372036854775808}"#, 200, r#"{"OUTPUT0":-9223372036854775808}"#),
    ("identity_square/generate", r#"{"INPUT0":[1,2,3]}"#, 200, r#"{"OUTPUT0":[1.0,2.0,3.0]}"#),
    ("identity_two/generate", r#"{"INPUT1":1,"INPUT0":[2,3]}"#, 200, r#"{"OUTPUT0":[2.0,3.0],"OUTPUT1":1}"#),
    ("identity_nobatch/generate", r#"{"INPUT0":[1,2,3,4]}"#, 200, r#"{"OUTPUT0":[1.0,2.0,3.0,4.0]}"#),
    ("identity_fp32/generate", r#"{"INPUT0":[[1,2],[3,4]]}"#, 200, r#"{"OUTPUT0":[[1.0,2.0],[3.0,4.0]]}"#),
    ("identity_bytes/generate", r#"{"INPUT0":[["a]"],["\"["]]}"#, 200, r#"{"OUTPUT0":[["a]"],["\"["]]}"#),
    ("identity_square/generate", r#"{"INPUT0":[[1,2,3]]}"#, 200, r#"{"OUTPUT0":[[[1.0,2.0,3.0]]]}"#),
    (
        "identity_two/generate",
        r#"{"INPUT1":1,"INPUT0":[[2,3],[4,5]]}"#,
        200,
        r#"{"OUTPUT0":[[2.0,3.0],[4.0,5.0]],"OUTPUT1":[[1],[1]]}"#,
    ),
    (
        "identity_two/generate",
        r#"{"INPUT1":[1,7],"INPUT0":[2,3,4,5]}"#,
        200,
        r#"{"OUTPUT0":[2.0,3.0,4.0,5.0],"OUTPUT1":[1,7]}"#,
    ),
    ("square/generate", r#"{"IN":1}"#, 200, r#"{"OUT":1}"#),
    ("squares/generate", r#"{"A":1}"#, 200, r#"{"B":1,"sequence_end":false,"sequence_id":0,"sequence_start":false}"#),
    ("sums/generate", r#"{"INPUT":5,"sequence_id":7,"sequence_start":true}"#, 200, r#"{"OUTPUT":5}"#),
    ("sums/generate", r#"{"INPUT":6,"sequence_id":7}"#, 200, r#"{"OUTPUT":11}"#),
    ("sums/generate", r#"{"INPUT":1,"parameters":{"sequence_id":7,"sequence_end":true}}"#, 200, r#"{"OUTPUT":12}"#),
];

const REFUSED: &[Row] = &[
    ("nope/generate", "{}", 404, "Request for unknown model: 'nope' is not found"),
    (
        "identity_fp32/versions/9/generate",
        "{}",
        404,
        "Request for unknown model: 'identity_fp32' version 9 is not found",
    ),
    ("identity_fp32/generate", "", 400, "failed to parse the request JSON buffer: The document is empty. at 0"),
    ("identity_fp32/generate", r#"{"INPUT0":[1}"#, 400, "failed to parse the request JSON buffer: "),
    ("identity_fp32/generate", "[]", 400, "attempt to get members for non-object"),
    ("identity_fp32/generate", r#"{"id":1}"#, 400, "Unable to parse 'id': attempt to access JSON non-string as string"),
    (
        "identity_fp32/generate",
        r#"{"INPUT0":1,"INPUT0":2}"#,
        400,
        "[request id: <id_unknown>] input 'INPUT0' already exists in request",
    ),
    (
        "identity_nobatch/generate",
        r#"{"INPUT0":[1,2]}"#,
        400,
        "The schema can not convert input 'INPUT0' to tensor with proper shape",
    ),
    ("identity_fp32/generate", r#"{"INPUT0":{"a":1}}"#, 400, "Unable to parse 'data': "),
    ("identity_fp32/generate", r#"{"INPUT0":[[1,2],[3]]}"#, 400, "The schema can not convert input 'INPUT0' to tensor"),
    ("identity_fp32/generate", r#"{"INPUT0":1,"x":[1]}"#, 400, "parameter 'x' has invalid type. It should be either"),
    ("identity_fp32/generate", r#"{"INPUT0":1,"parameters":1}"#, 400, "Expected JSON object for keyword: 'parameters'"),
    ("identity_fp32/generate", r#"{"parameters":{"INPUT0":1,"x":{}}}"#, 400, "Converting keyword: 'parameters': param"),
    ("identity_fp16/generate", r#"{"INPUT0":1}"#, 400, "receiving FP16 data via JSON is not supported."),
    ("identity_int8/generate", r#"{"INPUT0":200}"#, 400, "Unable to parse 'data': element 0 of input 'INPUT0' is 200"),
    ("identity_fp32/generate", "{}", 400, "[request id: <id_unknown>] expected 1 inputs but got 0 inputs for model"),
    ("square/generate", r#"{"IN":0}"#, 400, "generate expects model to produce exactly 1 response"),
    ("square/generate", r#"{"IN":100}"#, 400, "generate expects model to produce exactly 1 response"),
    ("square/generate", r#"{"IN":-1}"#, 400, "model 'square' answers IN times, and IN is -1"),
    ("sums/generate", r#"{"INPUT":1}"#, 400, "inference request to model 'sums' must specify a non-zero or non-empty"),
    ("sums/generate", r#"{"INPUT":1,"sequence_start":1}"#, 400, "Unable to parse 'sequence_start': "),
];

/// The same object with the names of model and version.
fn whole(path: &str, members: &str) -> Value {
    let mut value: Value = serde_json::from_str(members).unwrap();
    value["model_name"] = path.split('/').next().into();
    value["model_version"] = "1".into();
    value
}

#[test]
fn a_member_is_an_input_or_a_parameter_and_an_output_is_a_member() {
    let (_folder, server) = server(&[]);
    for (path, body, status, want) in MAPPED {
        let target = format!("/v2/models/{path}");
        let answer = http::post(server.http(), &target, body.as_bytes()).unwrap();
        let text = String::from_utf8(answer.body.clone()).unwrap();
        assert_eq!(
            (answer.status, answer.header("content-type")),
            (*status, Some("application/json")),
            "{body}: {text}"
        );
        let sorted = whole(path, want).to_string();
        assert_eq!(text, sorted, "{path} {body}");
    }
    for (path, body, status, want) in MAPPED.iter().filter(|(path, ..)| !path.starts_with("sums")) {
        let (got, answer) = h2::post(server.http(), &format!("/v2/models/{path}"), body.as_bytes());
        assert_eq!(
            (got, String::from_utf8(answer).unwrap()),
            (*status, whole(path, want).to_string()),
            "HTTP/2 {body}"
        );
        let stream = format!("/v2/models/{path}_stream");
        let answer = http::post(server.http(), &stream, body.as_bytes()).unwrap();
        let want = format!("data: {}\n\n", whole(path, want));
        assert_eq!((answer.status, String::from_utf8(answer.body).unwrap()), (200, want), "{stream} {body}");
    }
}

#[test]
fn what_is_refused_before_it_runs_is_json_with_tritons_text() {
    let (_folder, server) = server(&[]);
    for (path, body, status, want) in REFUSED {
        let answer = http::post(server.http(), &format!("/v2/models/{path}"), body.as_bytes()).unwrap();
        let error: Value = serde_json::from_slice(&answer.body).unwrap();
        let text = error["error"].as_str().unwrap();
        assert!(answer.status == *status && text.starts_with(want), "{path} {body}: {} {text}", answer.status);
        if !path.starts_with("square") {
            let answer = http::post(server.http(), &format!("/v2/models/{path}_stream"), body.as_bytes()).unwrap();
            let same: Value = serde_json::from_slice(&answer.body).unwrap();
            let kind = answer.header("content-type");
            assert_eq!((answer.status, kind, same), (*status, Some("application/json"), error), "{path} {body}");
        }
    }
    let coded = http::request("POST", "/v2/models/square/generate", &[("Content-Encoding", "deflate")], b"{}");
    let answer = http::exchange(server.http(), &coded).unwrap();
    let want: &[u8] = br#"{"error":"Unsupported content-encoding, only 'identity' is supported."}"#;
    assert_eq!((answer.status, &answer.body[..]), (400, want));
    let answer = http::get(server.http(), "/v2/models/square/generate_stream").unwrap();
    assert_eq!(answer.status, 405);
    let metric = |name: &str| metric(server.metrics(), name);
    assert_eq!(metric("deuteron_requests_in_flight"), 0);
    assert_eq!(metric("deuteron_requests_succeeded_total"), 0, "an error is none, also where the model gave it");
    let (status, body) = h2::post(server.http(), "/v2/models/square/generate_stream", br#"{"IN":-1}"#);
    assert!(status == 400 && body.starts_with(b"data: {\"error\""));
    assert_eq!(metric("deuteron_requests_succeeded_total"), 0, "nor is one that is an event");
}

/// All bytes that come until the server closes the connection.
fn wire(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_stream_is_events_in_chunks_and_its_first_response_sets_the_status() {
    let (_folder, server) = server(&[]);
    let ask = |version: &str, body: &str| {
        let head = format!("POST /v2/models/square/generate_stream {version}\r\nHost: a\r\nConnection: close\r\n");
        wire(server.http(), &format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()))
    };
    let event = r#"data: {"OUT":2,"id":"i","model_name":"square","model_version":"1"}"#;
    let size = format!("{:x}", event.len() + 2);
    let head =
        "Content-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
    let chunk = format!("{size}\r\n{event}\n\n\r\n");
    let want = format!("HTTP/1.1 200 OK\r\n{head}{chunk}{chunk}0\r\n\r\n");
    assert_eq!(ask("HTTP/1.1", r#"{"IN":2,"id":"i"}"#), want);
    assert_eq!(ask("HTTP/1.1", r#"{"IN":0}"#), format!("HTTP/1.1 200 OK\r\n{head}0\r\n\r\n"), "no response");
    let failed = "data: {\"error\":\"model 'square' answers IN times, and IN is -1\"}";
    let size = format!("{:x}", failed.len() + 2);
    let want = format!("HTTP/1.1 400 Bad Request\r\n{head}{size}\r\n{failed}\n\n\r\n0\r\n\r\n");
    assert_eq!(ask("HTTP/1.1", r#"{"IN":-1}"#), want);
    // An HTTP/1.0 client does not know chunks, not even if it would keep the connection.
    let body = r#"{"IN":2,"id":"i"}"#;
    let request = format!(
        "POST /v2/models/square/generate_stream HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let head = "Content-Type: text/event-stream; charset=utf-8\r\nConnection: close\r\n\r\n";
    assert_eq!(wire(server.http(), &request), format!("HTTP/1.1 200 OK\r\n{head}{event}\n\n{event}\n\n"));
    let (status, fields, body) =
        h2::post_with(server.http(), "/v2/models/square/generate_stream", &[], body.as_bytes());
    assert_eq!((status, String::from_utf8(body).unwrap()), (200, format!("{event}\n\n{event}\n\n")));
    assert_eq!(fields.get("content-type").map(String::as_str), Some("text/event-stream; charset=utf-8"));
    assert!(!fields.contains_key("content-length") && !fields.contains_key("transfer-encoding"), "{fields:?}");
    let (status, _, body) = h2::post_with(server.http(), "/v2/models/square/generate_stream", &[], br#"{"IN":0}"#);
    assert_eq!((status, body), (200, Vec::new()));
    let (status, _, body) = h2::post_with(server.http(), "/v2/models/square/generate_stream", &[], br#"{"IN":-1}"#);
    assert_eq!((status, String::from_utf8(body).unwrap()), (400, format!("{failed}\n\n")));
}

#[test]
fn a_connection_goes_on_after_a_stream_also_for_what_was_pipelined() {
    let (_folder, server) = server(&[]);
    let generate = |path: &str, body: &str| http::request("POST", &format!("/v2/models/{path}"), &[], body.as_bytes());
    let mut connection = Connection::open(server.http()).unwrap();
    for _ in 0..2 {
        let requests = [
            http::request("GET", "/v2/health/live", &[], b""),
            generate("repeat/generate_stream", r#"{"IN":[1,2],"DELAY":[0,50],"WAIT":0}"#),
            generate("square/generate_stream", r#"{"IN":-1}"#),
            generate("square/generate", r#"{"IN":1}"#),
            generate("square/generate_stream", r#"{"IN":100}"#),
            http::request("GET", "/v2/health/live", &[], b""),
        ];
        connection.send(&requests.concat()).unwrap();
        let answers = requests.map(|_| connection.receive().unwrap());
        let shown =
            answers.map(|answer| (answer.status, answer.body.iter().filter(|byte| **byte == b'\n').count() / 2));
        assert_eq!(shown, [(200, 0), (200, 2), (400, 1), (200, 0), (200, 100), (200, 0)]);
    }
}

#[test]
fn events_leave_when_they_come() {
    let (_folder, server) = server(&[]);
    let open = |body: &[u8]| {
        let mut stream = TcpStream::connect(server.http()).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        stream.write_all(&http::request("POST", "/v2/models/repeat/generate_stream", &[], body)).unwrap();
        stream
    };
    // The first does not wait for the second, which comes in a minute.
    read_until(&mut open(br#"{"IN":[1,2],"DELAY":[0,60000],"WAIT":0}"#), b"\"OUT\":1");
    let start = Instant::now();
    read_until(&mut open(br#"{"IN":[1,2],"DELAY":[0,1500],"WAIT":0}"#), b"\"OUT\":2");
    assert!(start.elapsed() >= Duration::from_millis(1_500), "{:?}", start.elapsed());
}

/// Time limit of a wait.
const WAIT_MAX: Duration = Duration::from_secs(20);

fn read_until(stream: &mut TcpStream, mark: &[u8]) {
    let (mut text, mut space) = (Vec::new(), [0; 4096]);
    while !text.windows(mark.len()).any(|window| window == mark) {
        let count = stream.read(&mut space).unwrap();
        assert_ne!(count, 0, "it ended with {}", String::from_utf8_lossy(&text));
        text.extend_from_slice(&space[..count]);
    }
}

fn waits_for(address: SocketAddr, name: &str, want: u64) {
    let start = Instant::now();
    while metric(address, name) != want {
        assert!(start.elapsed() < WAIT_MAX, "{name} is never {want}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_client_that_leaves_a_stream_ends_its_request() {
    thread::scope(|scope| IO.iter().for_each(|io| drop(scope.spawn(|| a_client_leaves(io)))));
}

fn a_client_leaves(io: &str) {
    const CLOSED: &str = "deuteron_requests_cancelled_total{reason=\"connection_closed\"}";
    const RESET: &str = "deuteron_requests_cancelled_total{reason=\"stream_reset\"}";
    // An event, then nothing for a minute: the server must notice without a write of the next event.
    const BODY: &[u8] = br#"{"IN":[1,2],"DELAY":[0,60000],"WAIT":0}"#;
    const PATH: &str = "/v2/models/repeat/generate_stream";
    let (_folder, server) = server(&[io]);
    let metrics = server.metrics();
    let leave = |how: fn(TcpStream)| {
        let mut stream = TcpStream::connect(server.http()).unwrap();
        stream.write_all(&http::request("POST", PATH, &[], BODY)).unwrap();
        read_until(&mut stream, b"\"OUT\":1");
        // The one that left before may still be counted.
        waits_for(metrics, "deuteron_requests_in_flight", 1);
        how(stream);
    };
    leave(drop);
    waits_for(metrics, CLOSED, 1);
    leave(|stream| socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap());
    waits_for(metrics, CLOSED, 2);
    let comes = move || waits_for(metrics, "deuteron_requests_in_flight", 1);
    h2::abandon(server.http(), PATH, &[], BODY, Leave::Reset(8), comes);
    waits_for(metrics, RESET, 1);
    h2::abandon(server.http(), PATH, &[], BODY, Leave::Close, comes);
    waits_for(metrics, CLOSED, 3);
    waits_for(metrics, "deuteron_requests_in_flight", 0);
    let stats = http::get(server.http(), "/v2/models/repeat/stats").unwrap().body;
    let stats: Value = serde_json::from_slice(&stats).unwrap();
    let places = stats["model_stats"][0]["response_stats"].as_object().unwrap().values();
    let cancelled: u64 = places.map(|place| place["cancel"]["count"].as_u64().unwrap()).sum();
    assert_eq!(cancelled, 4, "{stats}");
    // A client that only ended its input is answered to the end, in whole events.
    let mut stream = TcpStream::connect(server.http()).unwrap();
    let body = br#"{"IN":[1,2],"DELAY":[0,300],"WAIT":0}"#;
    stream.write_all(&http::request("POST", PATH, &[], body)).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("\"OUT\":2") && text.ends_with("\r\n0\r\n\r\n"), "{text}");
}

#[test]
fn a_slow_reader_gets_all_and_holds_back_the_model_not_the_memory() {
    let (_folder, server) = server(&[]);
    let count = 200_000_u64;
    let mut stream = TcpStream::connect(server.http()).unwrap();
    let body = format!("{{\"IN\":{count}}}");
    let fields = [("Connection", "close")];
    stream.write_all(&http::request("POST", "/v2/models/square/generate_stream", &fields, body.as_bytes())).unwrap();
    // Those that the sockets hold, and those that wait; the model is asked to wait behind them.
    let responses = || -> u64 {
        let stats = http::get(server.http(), "/v2/models/square/stats").unwrap().body;
        let stats: Value = serde_json::from_slice(&stats).unwrap();
        let places = stats["model_stats"][0]["response_stats"].as_object().map(|places| places.values());
        places.into_iter().flatten().map(|place| place["success"]["count"].as_u64().unwrap()).sum()
    };
    // Until the number stays.
    let (start, mut sent) = (Instant::now(), 0);
    loop {
        thread::sleep(Duration::from_millis(500));
        let before = std::mem::replace(&mut sent, responses());
        if sent > 0 && sent == before {
            break;
        }
        assert!(start.elapsed() < WAIT_MAX, "{sent} are sent, and more");
    }
    assert!(sent < count / 2, "{sent} of {count} responses were sent to a client that does not read");
    let mut text = Vec::new();
    stream.read_to_end(&mut text).unwrap();
    let events = text.windows(6).filter(|window| window == b"data: ").count();
    assert_eq!(events as u64, count);
    assert!(!String::from_utf8_lossy(&text).contains("error"));
    waits_for(server.metrics(), "deuteron_requests_succeeded_total", 1);
}

#[test]
fn a_client_that_never_reads_a_stream_loses_its_connection_and_its_request() {
    let (_folder, server) = server(&[]);
    let mut stream = TcpStream::connect(server.http()).unwrap();
    let start = Instant::now();
    stream.write_all(&http::request("POST", "/v2/models/square/generate_stream", &[], br#"{"IN":1000000}"#)).unwrap();
    let closed = "deuteron_requests_cancelled_total{reason=\"connection_closed\"}";
    waits_for(server.metrics(), "deuteron_requests_in_flight", 1);
    while metric(server.metrics(), closed) == 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "it is never closed");
        thread::sleep(Duration::from_millis(20));
    }
    assert!(start.elapsed() >= Duration::from_secs(29), "WRITE_TIMEOUT is 30 s: {:?}", start.elapsed());
    waits_for(server.metrics(), "deuteron_timeouts_total", 1);
    waits_for(server.metrics(), "deuteron_requests_in_flight", 0);
}
