//! Effects of signals on a server as a process: no signal kills it without a drain, a second one ends it,
//! `--drain-delay` lets balancers leave first, and no client that connects meanwhile waits in vain.

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::folder::Folder;
use crate::support::grpc::Client;
use crate::support::http::{self, Connection};
use crate::support::protobuf::Message;
use crate::support::repository::{self, Flavour};
use crate::support::server::{Ports, Server};
use crate::support::wait::wait_until;
use deuteron::wire::proto::inference as proto;
use prost::Message as _;

const INFER: &str = "/v2/models/identity_fp32/infer";
const BODY: &[u8] = br#"{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[2]}]}"#;
const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

fn server(flags: &[&str]) -> (Folder, Server) {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), flags);
    (folder, server)
}

fn infer(server: &Server) -> u16 {
    http::post(server.http(), INFER, BODY).unwrap().status
}

fn status(server: &Server, path: &str) -> u16 {
    http::get(server.http(), path).unwrap().status
}

/// Time limit for an end that does not wait for a minute, on a busy machine.
const SOON: Duration = Duration::from_secs(20);

/// Waits for the end after a signal. Returns the exit code, and the time that it took.
fn end(server: &mut Server) -> (Option<i32>, Duration) {
    let start = Instant::now();
    (server.wait().code(), start.elapsed())
}

#[test]
fn no_signal_but_those_that_end_it_stops_a_server_under_load() {
    let (_folder, mut server) = server(&["--model-control-mode=poll", "--repository-poll-secs=3600"]);
    let address = server.http();
    let client = thread::spawn(move || {
        let mut connection = Connection::open(address).unwrap();
        let answered = (0..2_000).filter(|_| {
            connection.send(&http::request("POST", INFER, &[], BODY)).unwrap();
            connection.receive().unwrap().status == 200
        });
        answered.count()
    });
    for round in 0..50 {
        server.signal(["HUP", "USR1"][round % 2]);
    }
    assert_eq!(client.join().unwrap(), 2_000);
    assert!(server.is_running());
    let log = server.log();
    assert!(log.contains("polling the model repositories after SIGHUP"), "{log}");
    assert!(log.contains("state: serving for"), "{log}");
    assert_eq!(server.stop().code(), Some(0));
}

#[test]
fn a_reload_finds_a_model_that_came_since() {
    let (folder, mut server) = server(&["--model-control-mode=poll", "--repository-poll-secs=0"]);
    repository::add(folder.path(), "square", repository::SQUARE, None);
    assert_ne!(status(&server, "/v2/models/square/ready"), 200);
    server.signal("HUP");
    wait_until("the model is never found", || status(&server, "/v2/models/square/ready") == 200);
    assert!(server.stop().success());
}

#[test]
fn a_second_signal_ends_a_server_that_drains() {
    let (_folder, mut server) = server(&["--exit-timeout-secs=60", "--second-signal-after-ms=0"]);
    let mut waiting = Connection::open(server.http()).unwrap();
    waiting.send(&http::request("POST", "/v2/models/slow/infer", &[], BODY)).unwrap();
    let in_flight = || crate::support::metrics::metric(server.metrics(), "deuteron_requests_in_flight");
    wait_until("it never runs", || in_flight() == 1);
    // A body that never comes keeps the drain waiting.
    let mut silent = Connection::open(server.http()).unwrap();
    silent.send(b"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{").unwrap();
    thread::sleep(Duration::from_millis(50));
    server.signal("TERM");
    assert_eq!(waiting.receive().unwrap().status, 200, "the first drains");
    thread::sleep(Duration::from_millis(300));
    assert!(server.is_running(), "{}", server.log());
    server.signal("INT");
    let (code, took) = end(&mut server);
    assert!(code == Some(130) && took < SOON, "{code:?} {took:?}");
    assert!(server.log().contains("ended at once by a second signal (2)"), "{}", server.log());
}

#[test]
fn a_server_that_leaves_is_not_ready_and_serves_on_until_the_delay_is_over() {
    let (_folder, mut server) = server(&["--drain-delay=4", "--shards=2"]);
    let mut kept = Connection::open(server.http()).unwrap();
    let mut ask = |path: &str| {
        kept.send(&http::request("GET", path, &[], b"")).unwrap();
        let answer = kept.receive().unwrap();
        (answer.status, answer.header("Connection").is_some())
    };
    let health = || {
        let answer = Client::new(server.grpc()).call("/grpc.health.v1.Health/Check", &[]).unwrap();
        (answer == [8, 1], answer == [8, 2])
    };
    assert_eq!((ask("/v2/health/ready"), health()), ((200, false), (true, false)));
    let start = Instant::now();
    server.signal("TERM");
    wait_until("it stays ready", || ask("/v2/health/ready").0 == 503);
    // New connections, old ones, and models: all unchanged.
    let mut served = 0;
    while start.elapsed() < Duration::from_secs(1) {
        assert_eq!(
            (infer(&server), ask("/v2/health/live"), ask("/v2/health/ready")),
            (200, (200, false), (503, false))
        );
        assert_eq!((health(), ask("/v2/models/slow/ready").0), ((false, true), 200));
        served += 1;
    }
    assert!(served > 3, "{served}");
    let (code, took) = end(&mut server);
    assert!(code == Some(0) && took < SOON, "{code:?} {took:?}");
    assert!(start.elapsed() >= Duration::from_secs(4));
}

#[test]
fn a_second_signal_ends_the_delay_too() {
    let (_folder, mut server) = server(&["--drain-delay=60", "--second-signal-after-ms=0"]);
    server.signal("TERM");
    wait_until("it stays ready", || status(&server, "/v2/health/ready") == 503);
    server.signal("TERM");
    let (code, took) = end(&mut server);
    assert!(code == Some(143) && took < SOON, "{code:?} {took:?}");
}

#[test]
fn who_connects_while_a_server_ends_is_answered_or_refused_at_once() {
    let mut late = 0;
    for io in ["--io=auto", "--io=epoll", "--io=glommio"] {
        let (_folder, mut server) = server(&["--shards=2", io]);
        let address = server.http();
        let clients: Vec<_> = (0..4)
            .map(|_| {
                thread::spawn(move || {
                    let (mut answered, mut longest) = (0, Duration::ZERO);
                    loop {
                        let start = Instant::now();
                        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5));
                        longest = longest.max(start.elapsed());
                        let mut stream = match stream {
                            Ok(stream) => stream,
                            Err(error) => return (answered, longest, error.kind()),
                        };
                        let request = http::request("GET", "/v2/health/live", &[], b"");
                        let sent = std::io::Write::write_all(&mut stream, &request);
                        let mut answer = [0; 12];
                        sent.and_then(|()| stream.read_exact(&mut answer)).unwrap();
                        assert_eq!(&answer, b"HTTP/1.1 200");
                        answered += 1;
                    }
                })
            })
            .collect();
        thread::sleep(Duration::from_millis(100));
        assert_eq!(server.stop().code(), Some(0));
        for client in clients {
            let (answered, longest, last) = client.join().unwrap();
            assert_eq!(last, ErrorKind::ConnectionRefused, "{io}");
            assert!(answered > 0, "{io}");
            // A handshake whose first segment is dropped is repeated after a second. That may happen to one of them in
            // the microseconds in which the sockets of one address stop one by one.
            late += usize::from(longest > Duration::from_millis(900));
        }
    }
    assert!(late <= 1, "{late} of 12 clients waited for a handshake");
}

fn sum(id: u32, value: i32, is_start: bool, is_end: bool) -> Vec<u8> {
    let flag =
        |name: &str, value: bool| Message::new().bytes(1, name).message(2, Message::new().int(1, i64::from(value)));
    let number = Message::new().bytes(1, "sequence_id").message(2, Message::new().int(2, i64::from(id)));
    let input = Message::new().bytes(1, "INPUT").bytes(2, "INT32").packed(3, &[1, 1]);
    let message = Message::new().bytes(1, "sums").bytes(3, "r").message(4, number);
    let message = message.message(4, flag("sequence_start", is_start)).message(4, flag("sequence_end", is_end));
    message.message(5, input).bytes(7, value.to_le_bytes()).into_bytes()
}

/// The number in an answer of a stream, or its error.
fn shown(answer: Option<Vec<u8>>) -> String {
    let answer = proto::ModelStreamInferResponse::decode(answer.expect("the stream goes on").as_slice()).unwrap();
    match answer.infer_response.unwrap().raw_output_contents.first() {
        Some(raw) => i32::from_le_bytes(raw[..].try_into().unwrap()).to_string(),
        None => answer.error_message,
    }
}

#[test]
fn a_sequence_that_a_stream_has_begun_goes_on_through_the_drain_and_none_begins() {
    let folder = repository::write(Flavour::Deuteron);
    repository::add(folder.path(), "sums", repository::SUMS, None);
    let mut server = Server::deuteron(folder.path(), &["--shards=1"]);
    let client = Client::new(server.grpc());
    let mut stream = client.open_stream(STREAM, sum(1, 5, true, false)).unwrap();
    assert_eq!(shown(stream.receive().unwrap()), "5");
    server.signal("TERM");
    wait_until("the listeners stay", || TcpStream::connect(server.grpc()).is_err());
    thread::sleep(Duration::from_millis(300));
    assert!(stream.send(sum(1, 7, false, false)));
    assert_eq!(shown(stream.receive().unwrap()), "12");
    assert!(stream.send(sum(2, 1, true, false)));
    let refused = shown(stream.receive().unwrap());
    assert!(refused.contains("shutting down"), "{refused}");
    assert!(stream.send(sum(1, 8, false, true)));
    assert_eq!(shown(stream.receive().unwrap()), "20");
    let ended = stream.receive().unwrap_err();
    assert!(ended.code() == tonic::Code::Unavailable && ended.message().contains("shutting down"), "{ended:?}");
    let (code, took) = end(&mut server);
    assert!(code == Some(0) && took < SOON, "{code:?} {took:?}");
}

#[test]
fn a_sequence_that_never_ends_is_given_up_after_the_exit_timeout() {
    let folder = repository::write(Flavour::Deuteron);
    repository::add(folder.path(), "sums", repository::SUMS, None);
    let mut server = Server::deuteron(folder.path(), &["--shards=1", "--exit-timeout-secs=1"]);
    let client = Client::new(server.grpc());
    let mut stream = client.open_stream(STREAM, sum(1, 5, true, false)).unwrap();
    assert_eq!(shown(stream.receive().unwrap()), "5");
    server.signal("TERM");
    let (code, took) = end(&mut server);
    assert!(code == Some(0) && took >= Duration::from_secs(1) && took < SOON, "{code:?} {took:?}");
    assert!(stream.receive().is_err());
}

#[test]
fn a_server_can_start_again_right_after_it_was_killed() {
    let folder = repository::write(Flavour::Deuteron);
    let ports = Ports::free();
    let mut server = Server::start(Server::command(folder.path(), &["--shards=2"], ports), ports);
    for round in 0..15 {
        server.kill();
        let start = Instant::now();
        server = Server::start(Server::command(folder.path(), &["--shards=2"], ports), ports);
        assert!(start.elapsed() < SOON, "round {round}: {:?}", start.elapsed());
    }
    assert_eq!(server.stop().code(), Some(0));
}

#[test]
fn of_servers_that_start_together_on_one_address_one_serves_and_the_others_say_why_not() {
    let folder = Folder::new("together");
    repository::add(folder.path(), "square", repository::SQUARE, None);
    // The second server of a pair ends a second after its start: ten pairs at a time.
    thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| (0..5).for_each(|_| start_together(folder.path())));
        }
    });
}

fn start_together(repository: &Path) {
    let ports = Ports::free();
    let start = || {
        let mut command = Server::command(repository, &["--shards=1", "--exit-timeout-secs=1"], ports);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut pair = [start(), start()];
    let began = Instant::now();
    let loser = loop {
        if let Some(index) = pair.iter_mut().position(|child| child.try_wait().unwrap().is_some()) {
            break index;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "both serve");
        thread::sleep(Duration::from_millis(5));
    };
    let [one, other] = pair;
    let (loser, mut winner) = if loser == 0 { (one, other) } else { (other, one) };
    let output = loser.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && text.contains("already in use"), "{text}");
    let ready = || http::get(([127, 0, 0, 1], ports.http).into(), "/v2/health/ready");
    wait_until("the winner serves", || ready().is_ok_and(|answer| answer.status == 200));
    winner.kill().unwrap();
    winner.wait().unwrap();
}

#[test]
fn a_signal_that_ends_a_server_holds_while_a_model_loads() {
    let folder = repository::write(Flavour::Deuteron);
    let flags = ["--model-control-mode=explicit", "--load-model=identity_fp32", "--exit-timeout-secs=1"];
    // A named pipe without a writer keeps the load of an ONNX file waiting, or fails it at once; both must end.
    let model = folder.path().join("piped");
    std::fs::create_dir_all(model.join("1")).unwrap();
    Command::new("mkfifo").arg(model.join("1/model.onnx")).status().unwrap();
    let mut server = Server::deuteron(folder.path(), &flags);
    let address = server.http();
    let loading = thread::spawn(move || http::post(address, "/v2/repository/models/piped/load", b"{}"));
    thread::sleep(Duration::from_millis(100));
    server.signal("TERM");
    let (code, took) = end(&mut server);
    assert!(code.is_some() && took < SOON, "{code:?} {took:?}");
    drop(loading.join().unwrap());
}
