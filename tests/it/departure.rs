//! Clients that leave while their request waits, on the server as a process: the waiting requests are dropped, and each
//! way to leave is counted apart; a client that only ended its input is answered, and one that never reads loses its
//! connection.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::folder::Folder;
use crate::support::gate::Gate;
use crate::support::h2::{self, Leave};
use crate::support::metrics::metric;
use crate::support::protobuf::Message;
use crate::support::repository::{self, Flavour};
use crate::support::skipped::skip_unless_ci;
use crate::support::{http, server::Server};
use socket2::{Domain, Socket, Type};

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
const PATH: &str = "/v2/models/slow/infer";
const BODY: &str = r#"{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[2]}]}"#;
const WAITING: &str = "nv_inference_pending_request_count{model=\"slow\",version=\"1\"}";
const LEFT: &str = "deuteron_batches_total{model=\"slow\",reason=\"idle\",version=\"1\"}";
const CANCELED: &str = "nv_inference_request_failure{model=\"slow\",reason=\"CANCELED\",version=\"1\"}";
/// Codes of RFC 9113 §7.
const INTERNAL_ERROR: u32 = 2;
const CANCEL: u32 = 8;

/// Time limit of a wait: shorter than the client of a held request waits.
const WAIT_MAX: Duration = Duration::from_secs(15);

fn waits_for(address: SocketAddr, name: &str, want: u64) {
    let start = Instant::now();
    while metric(address, name) != want {
        assert!(start.elapsed() < WAIT_MAX, "{name} is never {want}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until the counts of cancelled requests are `want`: gRPC calls, connections, other streams. A scrape may come
/// between a request's end in the queue and its count.
fn departures_become(address: SocketAddr, want: [u64; 3], what: &str) {
    let counts = || {
        ["call_cancelled", "connection_closed", "stream_reset"]
            .map(|reason| metric(address, &format!("deuteron_requests_cancelled_total{{reason=\"{reason}\"}}")))
    };
    let start = Instant::now();
    while counts() != want {
        assert!(start.elapsed() < WAIT_MAX, "{what}: {:?}, not {want:?}", counts());
        thread::sleep(Duration::from_millis(2));
    }
}

/// Kinds of sockets: each reports a client that left in its own way.
const IO: [&str; 3] = ["--io=auto", "--io=epoll", "--io=glommio"];

/// A server whose model takes `delay_ms` for each request.
fn slow_server(delay_ms: u32, io: &str) -> (Folder, Server) {
    let folder = repository::write(Flavour::Deuteron);
    let path = folder.path().join("slow").join("config.pbtxt");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(path, text.replace("\"300\"", &format!("\"{delay_ms}\""))).unwrap();
    let server = Server::deuteron(folder.path(), &["--shards=1", io]);
    (folder, server)
}

/// A server whose model takes as long for each request as the test wants.
fn held_server(io: &str) -> (Folder, Gate, Server) {
    let folder = repository::write(Flavour::Deuteron);
    let gate = Gate::on(folder.path(), "slow");
    let server = Server::deuteron(folder.path(), &["--shards=1", io, &gate.flag()]);
    (folder, gate, server)
}

fn request() -> Vec<u8> {
    http::request("POST", PATH, &[], BODY.as_bytes())
}

fn grpc_body() -> Vec<u8> {
    let input = Message::new().bytes(1, "INPUT0").bytes(2, "FP32").packed(3, &[1, 1]);
    let message = Message::new().bytes(1, "slow").message(5, input).bytes(7, [0; 4]).into_bytes();
    let size = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0], &size[..], &message].concat()
}

/// Runs `leave` while the model is busy with another request, which is answered when no request waits: what waited
/// was dropped and did not run.
fn while_busy((server, gate): (&Server, &Gate), leave: impl FnOnce()) {
    let metrics = server.metrics();
    let batches = metric(metrics, LEFT);
    thread::scope(|scope| {
        let busy = scope.spawn(|| http::exchange(server.http(), &request()).unwrap().status);
        waits_for(metrics, LEFT, batches + 1);
        leave();
        waits_for(metrics, WAITING, 0);
        assert!(!busy.is_finished(), "its run is held");
        gate.pass(1);
        assert_eq!(busy.join().unwrap(), 200);
        assert_eq!(metric(metrics, LEFT), batches + 1, "nothing else ran");
    });
}

#[test]
fn every_way_to_leave_drops_what_waits_and_is_counted_apart() {
    thread::scope(|scope| IO.iter().for_each(|io| drop(scope.spawn(|| every_way_to_leave(io)))));
}

fn every_way_to_leave(io: &str) {
    let (_folder, gate, server) = held_server(io);
    let held = (&server, &gate);
    let metrics = server.metrics();
    let waits = move || waits_for(metrics, WAITING, 1);
    let grpc = [("content-type", "application/grpc"), ("te", "trailers")];
    let json = [("content-type", "application/json")];

    while_busy(held, || h2::abandon(server.grpc(), INFER, &grpc, &grpc_body(), Leave::Reset(CANCEL), waits));
    departures_become(metrics, [1, 0, 0], "a cancelled call");
    while_busy(held, || h2::abandon(server.grpc(), INFER, &grpc, &grpc_body(), Leave::Reset(INTERNAL_ERROR), waits));
    departures_become(metrics, [1, 0, 1], "a call's stream, reset with another code");
    while_busy(held, || h2::abandon(server.grpc(), INFER, &grpc, &grpc_body(), Leave::Close, waits));
    departures_become(metrics, [1, 1, 1], "a connection closed under a call");
    while_busy(held, || h2::abandon(server.http(), PATH, &json, BODY.as_bytes(), Leave::Reset(CANCEL), waits));
    departures_become(metrics, [1, 1, 2], "a plain stream");
    while_busy(held, || h2::abandon(server.http(), PATH, &json, BODY.as_bytes(), Leave::Close, waits));
    departures_become(metrics, [1, 2, 2], "a connection closed under a plain stream");

    let leave = |is_reset: bool| {
        let mut stream = TcpStream::connect(server.http()).unwrap();
        stream.write_all(&request()).unwrap();
        waits();
        if is_reset {
            socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
        }
    };
    while_busy(held, || leave(true));
    departures_become(metrics, [1, 3, 2], "an HTTP/1.1 connection, reset");
    while_busy(held, || leave(false));
    departures_become(metrics, [1, 4, 2], "an HTTP/1.1 connection, closed");
    waits_for(metrics, CANCELED, 7);
    waits_for(metrics, "deuteron_requests_in_flight", 0);
    assert_eq!(
        metric(metrics, "deuteron_requests_received_total"),
        metric(metrics, "deuteron_requests_succeeded_total") + 7
    );
}

#[test]
fn a_client_that_is_killed_while_it_waits_is_not_computed_for() {
    let (_folder, gate, server) = held_server("--io=auto");
    let url = format!("http://{}{PATH}", server.http());
    let mut command = Command::new("curl");
    command.args(["--silent", "--data", BODY, &url]).stdout(Stdio::null()).stderr(Stdio::null());
    if Command::new("curl").arg("--version").stdout(Stdio::null()).status().is_err() {
        return skip_unless_ci("there is no curl");
    }
    while_busy((&server, &gate), || {
        let mut curl = command.spawn().unwrap();
        waits_for(server.metrics(), WAITING, 1);
        curl.kill().unwrap();
        curl.wait().unwrap();
    });
    departures_become(server.metrics(), [0, 1, 0], "a connection whose process was killed");
}

#[test]
fn a_client_that_only_ended_its_input_is_answered() {
    IO.iter().for_each(|io| half_closed(io));
}

fn half_closed(io: &str) {
    let (_folder, server) = slow_server(300, io);
    let ended = |request: &[u8]| {
        let mut stream = TcpStream::connect(server.http()).unwrap();
        stream.write_all(request).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let check = |answer: &str, is_asked: bool, answers: usize| {
        let (interim, rest) = answer.split_at(if is_asked { "HTTP/1.1 100 Continue\r\n\r\n".len() } else { 0 });
        assert_eq!(interim.is_empty(), !is_asked);
        assert!(!is_asked || interim == "HTTP/1.1 100 Continue\r\n\r\n", "{answer}");
        assert!(rest.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert_eq!(rest.matches("\"data\":[2.0]").count(), answers, "{answer}");
        assert_eq!(rest.matches("100 Continue").count(), 0, "it is asked once: {answer}");
    };
    check(&ended(&request()), true, 1);
    // The second of two pipelined requests waits after the first was answered.
    let two = ended(&[request(), request()].concat());
    check(&two, true, 2);
    let old = String::from_utf8(request()).unwrap().replace("HTTP/1.1", "HTTP/1.0");
    check(&ended(old.as_bytes()), false, 1);
    // The model answers at once, without asking whether the client has left.
    let quick = String::from_utf8(request()).unwrap().replace("slow", "identity_fp32");
    check(&ended(quick.as_bytes()), false, 1);
    departures_become(server.metrics(), [0, 0, 0], "nobody left");
}

/// A connection whose receive buffer is small, so that a large answer cannot hide in it.
fn narrow(address: SocketAddr) -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(&address.into()).unwrap();
    socket
}

#[test]
fn a_client_that_never_reads_a_large_reply_loses_its_connection() {
    const ROW_SIZE: usize = 4 * 1024 * 1024;
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    let size = 8 * ROW_SIZE;
    let head = format!(
        r#"{{"inputs":[{{"name":"INPUT0","shape":[8,{}],"datatype":"FP32","parameters":{{"binary_data_size":{size}}}}}],"parameters":{{"binary_data_output":true}}}}"#,
        ROW_SIZE / 4
    );
    let length = head.len().to_string();
    let body = [head.into_bytes(), vec![0; size]].concat();
    let request =
        http::request("POST", "/v2/models/identity_fp32/infer", &[("Inference-Header-Content-Length", &length)], &body);
    let mut silent = narrow(server.http());
    let start = Instant::now();
    silent.write_all(&request).unwrap();
    let succeeded = "deuteron_requests_succeeded_total";
    while metric(server.metrics(), succeeded) == 0 {
        thread::sleep(Duration::from_millis(5));
    }
    // The scrape holds one connection itself.
    let is_open = || metric(server.metrics(), "deuteron_connections_open") > 1;
    assert!(is_open());
    while is_open() {
        assert!(start.elapsed() < Duration::from_secs(60), "it is never closed");
        thread::sleep(Duration::from_millis(20));
    }
    let took = start.elapsed();
    assert!(took >= Duration::from_secs(29), "WRITE_TIMEOUT is 30 s: {took:?}");
    assert_eq!(metric(server.metrics(), "deuteron_timeouts_total"), 1);
    let mut rest = Vec::new();
    let outcome = silent.read_to_end(&mut rest);
    assert!(rest.len() < size, "the reply was cut: {outcome:?}, {} bytes", rest.len());
    assert_eq!(http::get(server.http(), "/v2/health/ready").unwrap().status, 200);
}
