//! Connections that take the server's slots and give nothing: silent ones, slow ones, those that never read. On the
//! server as a process: clients with requests get through, idle connections give up their slots, each timer keeps to
//! its flag, and all of it is counted.

use std::cell::RefCell;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::folder::Folder;
use crate::support::http::{self, Connection};
use crate::support::metrics::metric;
use crate::support::protobuf::Message;
use crate::support::repository::{self, Flavour};
use crate::support::{h2, server::Server};
use socket2::SockRef;

/// The preface and SETTINGS without a setting.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const BODY: &[u8] = br#"{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[2]}]}"#;
const LIVE: &str = "/v2/health/live";
const GRPC_INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
const GRPC_LIVE: &str = "/inference.GRPCInferenceService/ServerLive";
const EVICTED: &str = "deuteron_connections_evicted_total";
const RESERVED: &str = "deuteron_connections_reserved_total";

fn server(flags: &[&str]) -> (Folder, Server) {
    let folder = repository::write(Flavour::Deuteron);
    let flags = [&["--shards=1"], flags].concat();
    let server = Server::deuteron(folder.path(), &flags);
    (folder, server)
}

fn connect(address: SocketAddr, first: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(first).unwrap();
    stream
}

fn waits_until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(20), "never: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn of_timer(server: &Server, timer: &str) -> u64 {
    metric(server.metrics(), &format!("deuteron_timeouts_by_timer_total{{timer=\"{timer}\"}}"))
}

fn infer(address: SocketAddr) -> http::Response {
    http::post(address, "/v2/models/identity_fp32/infer", BODY).unwrap()
}

fn message() -> Vec<u8> {
    let input = Message::new().bytes(1, "INPUT0").bytes(2, "FP32").packed(3, &[1, 1]);
    Message::new().bytes(1, "identity_fp32").message(5, input).bytes(7, [0; 4]).into_bytes()
}

/// The remaining bytes, until the end.
fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    rest
}

fn has_goaway(bytes: &[u8]) -> bool {
    let mut left = bytes;
    while let [a, b, c, kind, _, _, _, _, _, rest @ ..] = left {
        if *kind == 7 {
            return true;
        }
        left = rest.get(usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c)..).unwrap_or_default();
    }
    false
}

#[test]
fn silent_connections_give_their_places_to_those_that_ask() {
    for io in ["--io=auto", "--io=epoll", "--io=glommio"] {
        let (_folder, server) = server(&["--connections-max=40", io]);
        let mut oldest = connect(server.grpc(), PREFACE);
        // Its first frame: the server knows that it speaks HTTP/2.
        let mut head = [0; 9];
        oldest.read_exact(&mut head).unwrap();
        oldest.read_exact(&mut vec![0; usize::from(head[2])]).unwrap();
        let kinds: [&[u8]; 4] = [PREFACE, b"", b"PRI *", b"GET /v2 HTTP/1.1\r\nHo"];
        let held: Vec<_> = (0..100).map(|index| connect(server.http(), kinds[index % kinds.len()])).collect();
        for _ in 0..100 {
            assert_eq!(infer(server.http()).status, 200);
        }
        assert_eq!(h2::call(server.grpc(), GRPC_INFER, &[], &message())["grpc-status"], "0");
        assert!(has_goaway(&rest(&mut oldest)), "{io}: a client of HTTP/2 is told");
        waits_until("those that gave their place up are gone", || {
            metric(server.metrics(), "deuteron_connections_open") <= 41
        });
        assert!(metric(server.metrics(), EVICTED) >= 61, "{io}");
        let log = server.log();
        let lines: Vec<_> = log.lines().filter(|line| line.contains("took the place of one that was idle")).collect();
        assert!((1..4).contains(&lines.len()) && lines[0].contains("--connections-max=40"), "{io}: {lines:?}");
        drop(held);
    }
}

#[test]
fn a_kept_connection_is_closed_for_a_new_one_and_a_busy_one_is_not() {
    let (_folder, server) = server(&["--connections-max=3"]);
    let begun = http::request("POST", "/v2/models/identity_fp32/infer", &[], BODY);
    let (first, second) = begun.split_at(begun.len() - 10);
    let mut busy = connect(server.http(), first);
    let mut kept = Connection::open(server.http()).unwrap();
    kept.send(&http::request("GET", LIVE, &[], b"")).unwrap();
    assert_eq!(kept.receive().unwrap().status, 200);
    let others: Vec<_> = (0..4).map(|_| connect(server.http(), b"")).collect();
    assert!(kept.is_closed());
    busy.write_all(second).unwrap();
    let mut answer = [0; 15];
    busy.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200 OK");
    drop(others);
}

#[test]
fn where_every_connection_is_busy_probes_and_operators_get_through_and_inference_is_refused() {
    for io in ["--io=auto", "--io=glommio"] {
        let (_folder, server) = server(&["--connections-max=4", io]);
        let begun = b"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{";
        let busy = RefCell::new(Vec::new());
        waits_until("none is idle", || {
            // A connection with unread bytes has made room for the next.
            busy.borrow_mut().push(connect(server.http(), begun));
            thread::sleep(Duration::from_millis(50));
            metric(server.metrics(), RESERVED) >= 1
        });
        let mut busy = busy.into_inner();
        for _ in 0..200 {
            let answer = http::get(server.http(), LIVE).unwrap();
            assert_eq!((answer.status, answer.header("Connection")), (200, Some("close")), "{io}");
        }
        assert_eq!(http::post(server.http(), "/v2/repository/index", b"").unwrap().status, 200);
        let answer = infer(server.http());
        assert_eq!((answer.status, answer.header("Retry-After")), (503, Some("1")), "{io}");
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(text.contains("too many connections: each shard has --connections-max=4"), "{text}");
        // Over HTTP/2 as well.
        assert_eq!(h2::call(server.grpc(), GRPC_LIVE, &[], &[])["grpc-status"], "0", "{io}");
        assert_eq!(h2::call(server.grpc(), GRPC_INFER, &[], &message())["grpc-status"], "14", "{io}");
        assert_eq!(h2::post(server.http(), "/v2/models/identity_fp32/infer", BODY).0, 503, "{io}");
        // Silent connections in reserved slots are closed, the oldest first.
        let silent: Vec<_> = (0..200).map(|_| connect(server.http(), b"")).collect();
        assert_eq!(http::get(server.http(), LIVE).unwrap().status, 200);
        drop(silent);
        assert!(metric(server.metrics(), RESERVED) >= 400, "{io}");
        let told = server.log().lines().filter(|line| line.contains("new ones are answered all but inference")).count();
        assert!((1..4).contains(&told), "{io}: {told} lines");
        // There is room again when they are done.
        for stream in &mut busy {
            let _ = stream.shutdown(Shutdown::Both);
        }
        drop(busy);
        waits_until("inference is served", || infer(server.http()).status == 200);
    }
}

#[test]
fn an_address_has_as_many_connections_as_the_flag_says() {
    let (_folder, server) = server(&["--connections-per-address-max=3"]);
    let mut held: Vec<_> = (0..5).map(|_| connect(server.http(), b"")).collect();
    let name = "deuteron_connections_refused_by_address_total";
    waits_until("some are refused", || metric(server.metrics(), name) >= 2);
    assert!(held.last_mut().is_some_and(|last| rest(last).is_empty()), "it is closed at once");
    let log = server.log();
    let told: Vec<_> = log.lines().filter(|line| line.contains("--connections-per-address-max=3")).collect();
    assert!(told.len() == 1 && told[0].contains("127.0.0.1"), "{log}");
    drop(held);
    waits_until("there is room again", || {
        let mut connection = connect(server.http(), &http::request("GET", LIVE, &[("Connection", "close")], b""));
        rest(&mut connection).starts_with(b"HTTP/1.1 200")
    });
}

/// Its name, address, first bytes, the timer that ends it, that timer's milliseconds, and the expected answer.
type SilentCase<'a> = (&'a str, SocketAddr, &'a [u8], &'a str, u64, &'a str);

#[test]
fn every_timer_keeps_to_its_flag_whatever_the_protocol() {
    let flags =
        ["--http-head-timeout=0.6", "--http-body-timeout=1.2", "--http-idle-timeout=1.8", "--http-write-timeout=9"];
    let (_folder, server) = server(&flags);
    let body = b"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{";
    let get = http::request("GET", LIVE, &[], b"");
    let half_frame = [PREFACE, b"\0\0\x08\x06\0\0"].concat();
    let cases: [SilentCase<'_>; 9] = [
        ("nothing", server.http(), b"", "head", 600, ""),
        ("half a preface", server.grpc(), b"PRI * HTTP/2.0", "head", 600, ""),
        ("half a head", server.http(), b"GET /v2 HTTP/1.1\r\nHo", "head", 600, "408"),
        ("half a frame", server.grpc(), &half_frame, "head", 600, "GOAWAY"),
        ("a preface alone", server.grpc(), &PREFACE[..24], "head", 600, "GOAWAY"),
        ("half a body", server.http(), body, "body", 1_200, "408"),
        ("a request that is answered", server.http(), &get, "idle", 1_800, "200"),
        ("HTTP/2 without a stream", server.grpc(), PREFACE, "idle", 1_800, "GOAWAY"),
        ("the metrics port", server.metrics(), b"", "idle", 1_800, ""),
    ];
    let before: Vec<_> = ["head", "body", "idle"].iter().map(|timer| of_timer(&server, timer)).collect();
    thread::scope(|scope| {
        for (name, address, first, _, millis, want) in cases {
            scope.spawn(move || {
                let start = Instant::now();
                let mut stream = connect(address, first);
                let came = rest(&mut stream);
                let took = start.elapsed();
                // Which timer it was is counted.
                assert!(took >= Duration::from_millis(millis), "{name}: {took:?}");
                let text = String::from_utf8_lossy(&came).into_owned();
                let is_right = match want {
                    "GOAWAY" => has_goaway(&came),
                    "" => came.is_empty(),
                    status => text.starts_with(&format!("HTTP/1.1 {status}")),
                };
                assert!(is_right, "{name}: {text}");
            });
        }
    });
    let after = ["head", "body", "idle"].map(|timer| of_timer(&server, timer));
    let count = |timer: &str| cases.iter().filter(|case| case.3 == timer).count() as u64;
    // Scrapes and probes of the test itself may have been idle too.
    assert_eq!((after[0] - before[0], after[1] - before[1]), (count("head"), count("body")));
    assert!(after[2] - before[2] >= count("idle"));
}

#[test]
fn a_client_that_never_reads_is_closed_though_the_kernel_took_its_answer() {
    const COUNT: u64 = 8;
    for io in ["--io=auto", "--io=glommio"] {
        // The idle timer is long, so that the write timer alone can close them.
        let (_folder, server) = server(&["--http-write-timeout=2", "--http-idle-timeout=60", io]);
        for size in [1 << 20, 4 << 20] {
            let before = of_timer(&server, "write");
            let held: Vec<_> = (0..COUNT).map(|_| connect(server.http(), &http::echo_request(size))).collect();
            let start = Instant::now();
            waits_until("they are closed", || of_timer(&server, "write") == before + COUNT);
            assert!(start.elapsed() > Duration::from_secs(1), "{io}: {:?}", start.elapsed());
            waits_until("nothing is left of them", || metric(server.metrics(), "deuteron_connections_open") <= 1);
            drop(held);
        }
        // A connection that reads is not closed: it takes its time, and is idle then.
        let mut reader = connect(server.http(), &http::echo_request(4 << 20));
        let (mut piece, mut count) = (vec![0; 1 << 20], 0);
        while count < 4 << 20 {
            thread::sleep(Duration::from_millis(600));
            count += reader.read(&mut piece).unwrap();
        }
        thread::sleep(Duration::from_secs(3));
        reader.write_all(&http::request("GET", LIVE, &[("Connection", "close")], b"")).unwrap();
        assert!(rest(&mut reader).windows(15).any(|bytes| bytes == b"HTTP/1.1 200 OK"), "{io}: it is open");
    }
}

#[test]
fn a_client_of_http2_whose_window_of_tcp_stays_shut_loses_its_connection() {
    let (_folder, server) = server(&["--http-write-timeout=2", "--http-idle-timeout=60"]);
    // SETTINGS with the largest window, a WINDOW_UPDATE for the connection, and then requests whose answers are never
    // read.
    let opening =
        [&PREFACE[..24], b"\0\0\x06\x04\0\0\0\0\0\0\x04\x7f\xff\xff\xff", b"\0\0\x04\x08\0\0\0\0\0\x7f\xf0\0\0"]
            .concat();
    let open = || metric(server.metrics(), "deuteron_connections_open");
    let mut held = connect(server.http(), &opening);
    // Answers of some kilobytes: the OpenAPI document.
    for stream in (1..2_000_u32).step_by(2) {
        let path = b"/v2/docs/openapi.json";
        let block = [&b"\x82\x86\x41\x01a\x44"[..], &[path.len() as u8], path].concat();
        let size = [0, 0, block.len() as u8];
        let frame = [&size[..], &[1, 5], &stream.to_be_bytes(), &block].concat();
        if held.write_all(&frame).is_err() {
            break;
        }
    }
    waits_until("it is closed", || of_timer(&server, "write") >= 1);
    waits_until("nothing is left of it", || open() <= 1);
}

#[test]
fn clients_that_leave_behind_much_input_are_seen_to_leave() {
    const COUNT: u64 = 30;
    for io in ["--io=auto", "--io=epoll", "--io=glommio"] {
        for is_reset in [true, false] {
            let folder = repository::write(Flavour::Deuteron);
            let path = folder.path().join("slow/config.pbtxt");
            let text = fs::read_to_string(&path).unwrap().replace("\"300\"", "\"1000\"");
            fs::write(path, text).unwrap();
            let server = Server::deuteron(folder.path(), &["--shards=1", io]);
            let request = http::request("POST", "/v2/models/slow/infer", &[], BODY);
            let more = http::request("GET", LIVE, &[], b"").repeat(1_000);
            let received = "deuteron_requests_received_total";
            let cancelled = "deuteron_requests_cancelled_total{reason=\"connection_closed\"}";
            let held: Vec<_> = (0..COUNT).map(|_| connect(server.http(), &[&request[..], &more].concat())).collect();
            waits_until("all requests are there", || metric(server.metrics(), received) == COUNT);
            for stream in held {
                if is_reset {
                    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
                }
            }
            let start = Instant::now();
            // The first batches may run to their end.
            waits_until("they are cancelled", || metric(server.metrics(), cancelled) + 8 >= COUNT);
            assert!(start.elapsed() < Duration::from_secs(15), "{io} {is_reset}: {:?}", start.elapsed());
            assert_eq!(http::get(server.http(), LIVE).unwrap().status, 200);
        }
    }
}

#[test]
fn frames_of_padding_alone_are_frames_that_move_nothing() {
    let (_folder, server) = server(&["--http2-control-frames-max=100"]);
    let head = |size: usize, kind: u8, flags: u8, stream: u8| {
        let size = u32::try_from(size).unwrap().to_be_bytes();
        [&size[1..], &[kind, flags, 0, 0, 0, stream]].concat()
    };
    let block = b"\x83\x86\x41\x01a\x44\x03/v2";
    // DATA of 257 bytes, all but one of them padding.
    let padded = [&head(257, 0, 8, 1)[..], &[255, b' '], &[0; 255]].concat();
    let part = [PREFACE, &head(block.len(), 1, 4, 1), block, &padded.repeat(150)].concat();
    let mut stream = connect(server.http(), &part);
    let came = rest(&mut stream);
    assert!(has_goaway(&came));
    waits_until("it is counted", || {
        metric(server.metrics(), "deuteron_http2_calmed_total{limit=\"control_frames\"}") == 1
    });
    // Frames with content do not count.
    let full = [&head(257, 0, 0, 1)[..], &[b' '; 257]].concat();
    let part = [PREFACE, &head(block.len(), 1, 4, 1), block, &full.repeat(150)].concat();
    let mut stream = connect(server.http(), &part);
    stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(!has_goaway(&rest(&mut stream)));
}

fn resident_kib(server: &Server) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn connections_that_rest_give_the_memory_of_their_requests_back() {
    const SLICE: u64 = 200;
    let (_folder, server) = server(&[]);
    let mut held = Vec::new();
    // One slice after the other: memory that the requests of the last one took serves the next.
    let mut slice = || {
        for _ in 0..SLICE {
            let mut connection = Connection::open(server.http()).unwrap();
            connection.send(&http::request("POST", "/v2/models/identity_fp32/infer", &[], BODY)).unwrap();
            assert_eq!(connection.receive().unwrap().status, 200);
            held.push(connection);
        }
        thread::sleep(Duration::from_millis(1_600));
        resident_kib(&server)
    };
    slice();
    let before = slice();
    let after = (0..4).map(|_| slice()).last().unwrap();
    let each = after.saturating_sub(before) * 1024 / (4 * SLICE);
    println!("{each} bytes for each connection that rests");
    assert!(each < 6 * 1024, "{each} bytes for each connection that rests");
    // The connections serve on.
    for connection in held.iter_mut().step_by(50) {
        connection.send(&http::request("GET", LIVE, &[], b"")).unwrap();
        assert_eq!(connection.receive().unwrap().status, 200);
    }
}
