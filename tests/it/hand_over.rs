//! A new server takes over the sockets of one that serves (SIGUSR2): under load, over and over, no request is lost, and
//! a new one that fails to start changes nothing.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::folder::Folder;
use crate::support::grpc::Caller;
use crate::support::http::{self, Connection};
use crate::support::protobuf::Message;
use crate::support::repository::{self, Flavour};
use crate::support::server::{Ports, Server};

const INFER: &str = "/v2/models/identity_fp32/infer";
const BODY: &[u8] = br#"{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[2]}]}"#;
const GRPC_INFER: &str = "/inference.GRPCInferenceService/ModelInfer";

/// Number of hand-overs of the sockets.
fn rounds() -> usize {
    std::env::var("DEUTERON_HAND_OVERS").ok().and_then(|count| count.parse().ok()).unwrap_or(20)
}

/// A server and its successors, which are not children of the test.
struct Lineage {
    first: Server,
    ids: Vec<u32>,
}

impl Lineage {
    fn start(repository: &Path, flags: &[&str]) -> Self {
        let ports = Ports::free();
        let first = Server::start(Server::command(repository, flags, ports), ports);
        let ids = vec![first.id()];
        Self { first, ids }
    }

    fn serving(&self) -> u32 {
        *self.ids.last().expect("there is one")
    }

    fn signal(&self, name: &str) {
        let id = self.serving().to_string();
        std::process::Command::new("kill").args(["-s", name, &id]).status().unwrap();
    }

    /// Hands over, and waits until the older server is gone.
    fn hand_over(&mut self) {
        let old = self.serving();
        self.signal("USR2");
        let start = Instant::now();
        loop {
            let log = self.first.log();
            let ids = log.lines().filter_map(|line| line.split_once("handed over to process ")?.1.split(';').next());
            let ids: Vec<u32> = ids.filter_map(|id| id.parse().ok()).collect();
            if ids.len() == self.ids.len() {
                self.ids.push(ids[ids.len() - 1]);
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "no hand-over:\n{log}");
            thread::sleep(Duration::from_millis(5));
        }
        while is_running(old) {
            assert!(start.elapsed() < Duration::from_secs(30), "the older one stays:\n{}", self.first.log());
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Lineage {
    fn drop(&mut self) {
        self.signal("KILL");
    }
}

/// Returns true if a process runs: one that has ended and was not waited for does not.
fn is_running(id: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    status.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Sends requests until told to stop, each on a connection of its own.
fn on_new_connections(address: SocketAddr, is_over: &AtomicBool) -> (usize, Vec<String>) {
    let (mut answered, mut lost) = (0, Vec::new());
    while !is_over.load(Ordering::SeqCst) {
        let request = http::request("POST", INFER, &[("Connection", "close")], BODY);
        match http::exchange(address, &request) {
            Ok(answer) if answer.status == 200 => answered += 1,
            Ok(answer) => lost.push(format!("{} {}", answer.status, String::from_utf8_lossy(&answer.body))),
            Err(error) => lost.push(format!("new connection: {error}")),
        }
    }
    (answered, lost)
}

/// Requests on one connection as long as the server keeps it. Like every client that keeps connections, it asks again
/// on a new one if an idle one was closed before it answered.
fn on_kept_connections(address: SocketAddr, is_over: &AtomicBool) -> (usize, Vec<String>) {
    let (mut answered, mut lost) = (0, Vec::new());
    let mut kept: Option<Connection> = None;
    let request = http::request("POST", INFER, &[], BODY);
    while !is_over.load(Ordering::SeqCst) {
        let is_new = kept.is_none();
        let mut exchange = || {
            let mut connection = kept.take().map_or_else(|| Connection::open(address), Ok)?;
            connection.send(&request)?;
            let answer = connection.receive()?;
            Ok::<_, std::io::Error>((connection, answer))
        };
        match exchange() {
            Ok((connection, answer)) if answer.status == 200 => {
                answered += 1;
                kept = answer.header("Connection").is_none().then_some(connection);
            }
            Ok((_, answer)) => lost.push(format!("{} {}", answer.status, String::from_utf8_lossy(&answer.body))),
            Err(error) if is_new => lost.push(format!("kept connection: {error}")),
            Err(_) => {}
        }
    }
    (answered, lost)
}

fn grpc_message() -> Vec<u8> {
    let input = Message::new().bytes(1, "INPUT0").bytes(2, "FP32").packed(3, &[1, 1]);
    Message::new().bytes(1, "identity_fp32").message(5, input).bytes(7, [0; 4]).into_bytes()
}

fn by_grpc(address: SocketAddr, is_over: &AtomicBool) -> (usize, Vec<String>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let caller = Caller::connect(address, GRPC_INFER).await;
        let (mut answered, mut lost) = (0, Vec::new());
        while !is_over.load(Ordering::SeqCst) {
            match caller.call(grpc_message(), Duration::from_secs(20)).await {
                Ok(_) => answered += 1,
                // This client's connection closed before it had sent the call, which other gRPC clients then send on a
                // new one by themselves (gRPC proposal A6, "Transparent Retries").
                Err(status) if status.message() == "operation was canceled" => {}
                Err(status) => lost.push(format!("{status:?}")),
            }
        }
        (answered, lost)
    })
}

fn hand_over_under_load(io: &str, rounds: usize) {
    let folder = repository::write(Flavour::Deuteron);
    let mut lineage = Lineage::start(folder.path(), &["--shards=2", io]);
    let (http, grpc) = (lineage.first.http(), lineage.first.grpc());
    let is_over = Arc::new(AtomicBool::new(false));
    type Client = fn(SocketAddr, &AtomicBool) -> (usize, Vec<String>);
    let clients: [(Client, SocketAddr); 6] = [
        (on_new_connections, http),
        (on_new_connections, http),
        (on_kept_connections, http),
        (on_kept_connections, http),
        (by_grpc, grpc),
        (by_grpc, grpc),
    ];
    let clients = clients.map(|(client, address)| {
        let is_over = Arc::clone(&is_over);
        thread::spawn(move || client(address, &is_over))
    });
    for _ in 0..rounds {
        lineage.hand_over();
    }
    is_over.store(true, Ordering::SeqCst);
    for (index, client) in clients.into_iter().enumerate() {
        let (answered, lost) = client.join().unwrap();
        assert!(
            lost.is_empty(),
            "{io}: client {index} lost {} of {answered}: {:?}",
            lost.len(),
            &lost[..lost.len().min(3)]
        );
        assert!(answered > rounds, "{io}: client {index} was answered {answered} times");
    }
    let mut ids = lineage.ids.clone();
    ids.dedup();
    assert_eq!(ids.len(), rounds + 1, "each round another process");
}

#[test]
fn no_request_is_lost_however_often_a_new_server_takes_over() {
    hand_over_under_load("--io=auto", rounds());
}

#[test]
fn no_request_is_lost_by_epoll_either() {
    hand_over_under_load("--io=epoll", rounds().div_ceil(4));
}

#[test]
fn requests_that_are_in_flight_end_where_they_began() {
    let folder = repository::write(Flavour::Deuteron);
    // Long enough to run while the sockets change hands.
    let path = folder.path().join("slow/config.pbtxt");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(path, text.replace("\"300\"", "\"3000\"")).unwrap();
    let mut lineage = Lineage::start(folder.path(), &["--shards=1"]);
    let mut waiting = Connection::open(lineage.first.http()).unwrap();
    waiting.send(&http::request("POST", "/v2/models/slow/infer", &[], BODY)).unwrap();
    thread::sleep(Duration::from_millis(50));
    lineage.hand_over();
    let answer = waiting.receive().unwrap();
    assert_eq!((answer.status, answer.header("Connection")), (200, Some("close")));
    // The metrics are the new server's.
    let received = crate::support::metrics::metric(lineage.first.metrics(), "deuteron_requests_received_total");
    assert_eq!(received, 0);
}

#[test]
fn a_new_server_that_does_not_start_leaves_the_old_one_as_it_was() {
    let folder = Folder::new("breaks");
    repository::add(folder.path(), "square", repository::SQUARE, None);
    let mut lineage = Lineage::start(folder.path(), &["--shards=1"]);
    std::fs::write(folder.path().join("square/config.pbtxt"), "backend: 'nothing'").unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let failures = Arc::new(AtomicUsize::new(0));
    let prober = {
        let (address, is_over, failures) = (lineage.first.http(), Arc::clone(&is_over), Arc::clone(&failures));
        thread::spawn(move || {
            while !is_over.load(Ordering::SeqCst) {
                let ready = http::get(address, "/v2/models/square/ready");
                let is_ready = ready.is_ok_and(|answer| answer.status == 200);
                failures.fetch_add(usize::from(!is_ready), Ordering::SeqCst);
            }
        })
    };
    for count in 1..=3 {
        lineage.signal("USR2");
        let start = Instant::now();
        let failed = || lineage.first.log().matches("no hand-over, this server goes on").count();
        while failed() < count {
            assert!(start.elapsed() < Duration::from_secs(20), "{}", lineage.first.log());
        }
    }
    is_over.store(true, Ordering::SeqCst);
    prober.join().unwrap();
    assert_eq!(failures.load(Ordering::SeqCst), 0);
    // Repaired, the next one takes over.
    std::fs::write(folder.path().join("square/config.pbtxt"), repository::SQUARE).unwrap();
    lineage.hand_over();
    assert_eq!(http::get(lineage.first.http(), "/v2/models/square/ready").unwrap().status, 200);
}

#[test]
fn a_signal_that_ends_a_server_ends_the_one_that_was_to_take_over_too() {
    let folder = repository::write(Flavour::Deuteron);
    let mut lineage = Lineage::start(folder.path(), &["--shards=1"]);
    // The server handles the signals in the order in which they arrive.
    lineage.signal("USR2");
    let start = Instant::now();
    let started = loop {
        let log = lineage.first.log();
        let id =
            log.lines().find_map(|line| line.split_once("started process ")?.1.split(' ').next()?.parse::<u32>().ok());
        if let Some(id) = id {
            break id;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{log}");
    };
    lineage.signal("TERM");
    assert_eq!(lineage.first.wait().code(), Some(0));
    // The new server may have served by then, and drains: in the end no process listens.
    while is_running(started) && !lineage.first.log().contains("handed over to process") {
        assert!(start.elapsed() < Duration::from_secs(30), "{}", lineage.first.log());
        thread::sleep(Duration::from_millis(5));
    }
    lineage.ids.push(started);
}

#[test]
fn sockets_of_glommio_are_not_handed_over() {
    let folder = repository::write(Flavour::Deuteron);
    let lineage = Lineage::start(folder.path(), &["--shards=1", "--io=glommio"]);
    lineage.signal("USR2");
    let start = Instant::now();
    while !lineage.first.log().contains("no hand-over: --io=glommio") {
        assert!(start.elapsed() < Duration::from_secs(20), "{}", lineage.first.log());
    }
    let mut answer = Vec::new();
    let mut stream = TcpStream::connect(lineage.first.http()).unwrap();
    std::io::Write::write_all(&mut stream, b"GET /v2/health/ready HTTP/1.0\r\n\r\n").unwrap();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200") || answer.starts_with(b"HTTP/1.0 200"), "{answer:?}");
}
