//! The memory for requests that come in (`--receive-memory-bytes-max`): the answers at the bound over each protocol,
//! its return after every end of a request, and the process's memory, which keeps to it.

use std::fmt::Write as _;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::grpc::Client;
use crate::support::h2::{self, Leave};
use crate::support::http::{self, Connection};
use crate::support::metrics::metric;
use crate::support::over::Over;
use crate::support::protobuf::Message;
use crate::support::repository::{self, Flavour};
use crate::support::server::Server;

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
const PATH: &str = "/v2/models/identity_fp32/infer";
const HELD: &str = "deuteron_receive_memory_bytes";
const REFUSED: &str = "deuteron_receive_memory_refused_total";
const FLAG: &str = "--receive-memory-bytes-max";

fn head(size: usize) -> Vec<u8> {
    format!("POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n").into_bytes()
}

/// Waits until at least `least` bytes are held; for 0, until no bytes are held.
fn wait_held(server: &Server, least: u64) {
    let start = Instant::now();
    loop {
        let held = metric(server.metrics(), HELD);
        if held >= least && (least > 0 || held == 0) {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{held} bytes are held, not {least}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A client that has sent most of a body, without its end.
fn hold(server: &Server, size: usize) -> Connection {
    let mut connection = Connection::open(server.http()).unwrap();
    connection.send(&head(size + 1)).unwrap();
    connection.send(&vec![b' '; size]).unwrap();
    wait_held(server, size as u64);
    connection
}

#[test]
fn clients_of_each_protocol_are_refused_at_the_bound_and_told_when_to_come_again() {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &["--shards=1", "--receive-memory-bytes-max=4000000"]);
    let held = hold(&server, 3_900_000);

    let start = Instant::now();
    let mut late = Connection::open(server.http()).unwrap();
    late.send(&head(1_000_000)).unwrap();
    let _ = late.send(&vec![b' '; 1_000_000]);
    let answer = late.receive().unwrap();
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    assert_eq!((answer.status, answer.header("Retry-After")), (503, Some("1")), "{text}");
    assert!(text.contains(FLAG) && text.contains("4000000 bytes"), "{text}");
    assert!(start.elapsed() >= Duration::from_millis(900), "it waited for memory: {:?}", start.elapsed());
    assert_eq!(metric(server.metrics(), REFUSED), 1);

    let (status, fields, body) = h2::post_with(server.http(), PATH, &[], &vec![b' '; 500_000]);
    let text = String::from_utf8_lossy(&body).into_owned();
    assert_eq!((status, fields.get("retry-after").map(String::as_str)), (503, Some("1")), "{text}");
    assert!(text.contains(FLAG), "{text}");

    let message = Message::new().bytes(1, "identity_fp32").bytes(7, vec![0; 500_000]).into_bytes();
    let status = Client::new(server.grpc()).call(INFER, &message).unwrap_err();
    assert_eq!(status.code(), tonic::Code::ResourceExhausted, "{status:?}");
    assert!(status.message().contains(FLAG), "{status:?}");
    assert_eq!(status.metadata().get("grpc-retry-pushback-ms").unwrap(), "1000");
    assert_eq!(metric(server.metrics(), REFUSED), 3);

    // A body that never fits is refused at once.
    let mut never = Connection::open(server.http()).unwrap();
    never.send(&head(4_000_001)).unwrap();
    let answer = never.receive().unwrap();
    assert_eq!((answer.status, answer.header("Retry-After")), (413, None));
    assert!(String::from_utf8_lossy(&answer.body).contains(FLAG));

    // Small requests are served meanwhile, and large ones once there is room.
    let small = br#"{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[1]}]}"#;
    assert_eq!(http::post(server.http(), PATH, small).unwrap().status, 200);
    drop(held);
    wait_held(&server, 0);
    let answer = http::post(server.http(), PATH, &vec![b' '; 1_000_000]).unwrap();
    assert_eq!(answer.status, 400, "it is read, and no request");
    wait_held(&server, 0);
}

#[test]
fn tensors_count_with_what_they_become() {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &["--shards=1", "--receive-memory-bytes-max=2500000"]);
    let json = |count: usize| {
        let mut body = format!(r#"{{"inputs":[{{"name":"INPUT0","shape":[1,{count}],"datatype":"FP64","data":["#);
        (0..count).for_each(|index| write!(body, "{}1", if index > 0 { "," } else { "" }).unwrap());
        http::post(server.http(), "/v2/models/identity_fp64/infer", (body + "]}]}").as_bytes()).unwrap()
    };
    assert_eq!(json(200_000).status, 200, "400,000 bytes and 1,600,000");
    let refused = json(300_000);
    assert_eq!(refused.status, 413, "600,000 bytes and 2,400,000");
    assert!(String::from_utf8_lossy(&refused.body).contains(FLAG));

    let typed = |count: usize| {
        let contents = Message::new().bytes(3, vec![1; count]).into_bytes();
        let input = Message::new().bytes(1, "INPUT0").bytes(2, "INT64").packed(3, &[1, i64::try_from(count).unwrap()]);
        let message = Message::new().bytes(1, "identity_int64").message(5, input.bytes(5, contents));
        Client::new(server.grpc()).call(INFER, &message.into_bytes()).map(drop)
    };
    assert!(typed(250_000).is_ok(), "250,000 bytes and 2,000,000");
    let status = typed(300_000).unwrap_err();
    assert_eq!(status.code(), tonic::Code::ResourceExhausted, "300,000 bytes and 2,400,000");
    assert!(status.message().contains(FLAG), "{status:?}");
    assert_eq!(metric(server.metrics(), REFUSED), 2);
    wait_held(&server, 0);
}

#[test]
fn memory_comes_back_however_a_client_leaves() {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    for leave in [Leave::Close, Leave::Reset(8)] {
        let (message, metrics) = (vec![0; 5 + 300_000], server.metrics());
        let mut message = message;
        // The announced size is larger than the message.
        message[1..5].copy_from_slice(&400_000_u32.to_be_bytes());
        let then = move || {
            while metric(metrics, HELD) < 300_000 {
                thread::sleep(Duration::from_millis(1));
            }
        };
        let fields = [("content-type", "application/grpc"), ("te", "trailers")];
        h2::abandon_part(server.grpc(), INFER, &fields, &message, leave, then);
        wait_held(&server, 0);
    }
    drop(hold(&server, 100_000));
    wait_held(&server, 0);
}

#[test]
fn forty_streams_of_large_bodies_take_no_more_memory_than_there_is() {
    const MIB: usize = 1024 * 1024;
    const BUDGET: usize = 32 * MIB;
    const SIZE: usize = 12 * MIB;
    /// Memory that the allocator keeps of buffers that grew or were freed, and the buffers of the connection: 40 to 95
    /// MiB were seen. Without the budget it would be 480.
    const MARGIN: usize = 128 * MIB;
    let folder = repository::write(Flavour::Deuteron);
    let flag = format!("{FLAG}={BUDGET}");
    let server = Server::deuteron(folder.path(), &["--shards=1", &flag]);
    let resident = || {
        let status = fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
    };
    let (before, is_over) = (resident(), AtomicBool::new(false));
    let grpc: (&str, &[(&str, &str)]) = (INFER, &[("content-type", "application/grpc"), ("te", "trailers")]);
    let rest: (&str, &[(&str, &str)]) = (PATH, &[]);
    let mut answers = Vec::new();
    let most = thread::scope(|scope| {
        let over = Over(&is_over);
        let watching = scope.spawn(|| {
            let (mut most, mut held) = (0, 0);
            while !is_over.load(Ordering::SeqCst) {
                most = most.max(resident());
                held = held.max(metric(server.metrics(), HELD));
                thread::sleep(Duration::from_millis(2));
            }
            assert!(held <= BUDGET as u64 && held > BUDGET as u64 / 2, "{held} bytes were counted");
            most
        });
        // Five bytes precede the message of a call; in a plain body they are its first bytes.
        let start = [&[0][..], &u32::try_from(SIZE).unwrap().to_be_bytes()].concat();
        answers = h2::upload(server.grpc(), &[[grpc; 20], [rest; 20]].concat(), &start, SIZE);
        drop(over);
        watching.join().unwrap()
    });
    let told = |name: &str, value: &str| {
        answers.iter().filter(|fields| fields.get(name).is_some_and(|have| have == value)).count()
    };
    let (calls, messages) = (told("grpc-status", "8"), told("status", "503"));
    assert!(answers.len() == 40 && calls > 10 && messages > 10, "{calls} and {messages} were refused: {answers:?}");
    assert_eq!((told("grpc-retry-pushback-ms", "1000"), told("retry-after", "1")), (calls, messages));
    assert_eq!(metric(server.metrics(), REFUSED), (calls + messages) as u64);
    assert!(calls + messages < 40, "some had their memory");
    eprintln!("resident: {before} bytes before, {most} at most; {calls} calls and {messages} messages were refused");
    assert!(most < before + BUDGET + MARGIN, "{before} bytes before, {most} at most");
    wait_held(&server, 0);
}
