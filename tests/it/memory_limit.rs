//! The memory of the process (`--memory-limit`): the losses as it fills, step by step; each step is counted and
//! reported, and ends when there is room again. The process keeps to its limit under many kinds of abuse at once, and a
//! client that comes again is answered.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, SockRef, Socket, Type};

use crate::support::folder::Folder;
use crate::support::h2;
use crate::support::http::{self, Connection};
use crate::support::metrics::metric;
use crate::support::over::Over;
use crate::support::protobuf::Message;
use crate::support::repository::{self, Flavour};
use crate::support::server::Server;

const MIB: usize = 1024 * 1024;
const FLAG: &str = "--memory-limit";
const STEP: &str = "deuteron_memory_step";
const USED: &str = "deuteron_memory_used_bytes";
const LIVE: &str = "/v2/health/live";
const PATH: &str = "/v2/models/identity_fp32/infer";
const GRPC_INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
const BODY: &[u8] = br#"{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[2]}]}"#;
/// The preface, SETTINGS without a setting, and an acknowledgement.
const OPENING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\0\x04\x01\0\0\0\0";

/// A server that may use `room` bytes more than an idle one, most of them for requests that come in.
fn server_with(room: usize, flags: &[&str]) -> (Folder, Server, usize) {
    server_of(repository::write(Flavour::Deuteron), room, flags)
}

/// The same for a given repository.
fn server_of(folder: Folder, room: usize, flags: &[&str]) -> (Folder, Server, usize) {
    static IDLE: OnceLock<usize> = OnceLock::new();
    let idle = *IDLE.get_or_init(|| {
        let server = Server::deuteron(folder.path(), &["--shards=1"]);
        waits_until("the memory was looked at", || metric(server.metrics(), USED) > 0);
        used(&server)
    });
    let limit = idle + room;
    let limits = [format!("{FLAG}={limit}"), format!("--receive-memory-bytes-max={limit}")];
    let flags = [&["--shards=1", &limits[0], &limits[1]], flags].concat();
    let server = Server::deuteron(folder.path(), &flags);
    waits_until("the memory was looked at", || metric(server.metrics(), USED) > 0);
    (folder, server, limit)
}

fn waits_until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(20), "never: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn used(server: &Server) -> usize {
    usize::try_from(metric(server.metrics(), USED)).unwrap()
}

fn step(server: &Server) -> u64 {
    metric(server.metrics(), STEP)
}

fn losses(server: &Server, what: &str) -> u64 {
    metric(server.metrics(), &format!("deuteron_memory_losses_total{{what=\"{what}\"}}"))
}

/// Sends `size` bytes of an unfinished body. Returns `None` if the server did not take them.
fn hold(address: SocketAddr, size: usize) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_write_timeout(Some(Duration::from_millis(500))).ok()?;
    let head = format!("POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", size + 1);
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(&vec![b' '; size]).ok()?;
    Some(stream)
}

/// Opens connections that hold bodies until the step is reached.
fn fill(server: &Server, wanted: u64, held: &mut Vec<TcpStream>) {
    let start = Instant::now();
    while step(server) < wanted {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "{} bytes are used, and step {wanted} is not there",
            used(server)
        );
        held.extend(hold(server.http(), MIB / 2));
        // Until the server has checked its memory.
        thread::sleep(Duration::from_millis(25));
    }
}

fn infer(address: SocketAddr) -> http::Response {
    http::post(address, PATH, BODY).unwrap()
}

fn message() -> Vec<u8> {
    let input = Message::new().bytes(1, "INPUT0").bytes(2, "FP32").packed(3, &[1, 1]);
    Message::new().bytes(1, "identity_fp32").message(5, input).bytes(7, [0; 4]).into_bytes()
}

/// All bytes until the end, of a peer that ends the connection soon.
fn rest(stream: &mut TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    rest
}

/// Returns true if there is a frame of this type among them.
fn has_frame(bytes: &[u8], wanted: u8) -> bool {
    let mut left = bytes;
    while let [a, b, c, kind, _, _, _, _, _, rest @ ..] = left {
        if *kind == wanted {
            return true;
        }
        left = rest.get(usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c)..).unwrap_or_default();
    }
    false
}

#[test]
fn cached_answers_go_before_any_request_is_refused() {
    let config = "backend: \"identity\" response_cache { enable: true }\n\
                  input { name: \"INPUT0\" data_type: TYPE_UINT8 dims: -1 }\n\
                  output { name: \"OUTPUT0\" data_type: TYPE_UINT8 dims: -1 }\n";
    let folder = repository::write(Flavour::Deuteron);
    repository::add(folder.path(), "kept", config, None);
    let (_folder, server, _) = server_of(folder, 96 * MIB, &["--cache-config=local,size=1000000000"]);
    let raw = [("Inference-Header-Content-Length", "0")];
    // Twice the room, in increments that the server can notice in time, on a busy machine too.
    for number in 0..3_000_u32 {
        if number % 32 == 0 {
            thread::sleep(Duration::from_millis(30));
        }
        let body = number.to_le_bytes().repeat(16 * 1_024);
        let request = http::request("POST", "/v2/models/kept/infer", &raw, &body);
        let answer = http::exchange(server.http(), &request).unwrap();
        assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
        assert!(answer.body.ends_with(&body));
    }
    assert!(metric(server.metrics(), "nv_cache_num_evictions") > 0);
    assert_eq!(losses(&server, "request"), 0);
}

#[test]
fn first_keep_alive_ends_then_new_connections_get_no_inference_and_both_come_back() {
    let (_folder, server, limit) = server_with(64 * MIB, &["--http-idle-timeout=60"]);
    let ask = |connection: &mut Connection| {
        connection.send(&http::request("POST", PATH, &[], BODY)).unwrap();
        connection.receive().unwrap()
    };
    let mut idle = Connection::open(server.http()).unwrap();
    assert_eq!((ask(&mut idle).header("Connection"), step(&server)), (None, 0));
    let mut of_http2 = TcpStream::connect(server.grpc()).unwrap();
    of_http2.write_all(OPENING).unwrap();

    let mut held = Vec::new();
    fill(&server, 1, &mut held);
    // Idle connections close, others with their answer.
    assert!(idle.is_closed());
    assert!(has_frame(&rest(&mut of_http2), 7), "a client of HTTP/2 gets GOAWAY");
    let mut new = Connection::open(server.http()).unwrap();
    let answer = ask(&mut new);
    assert_eq!((answer.status, answer.header("Connection")), (200, Some("close")));
    assert_eq!(h2::call(server.grpc(), GRPC_INFER, &[], &message())["grpc-status"], "0");
    assert!(losses(&server, "idle_connection") >= 2 && losses(&server, "answered_connection") >= 2);

    fill(&server, 2, &mut held);
    let answer = infer(server.http());
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    assert_eq!((answer.status, answer.header("Retry-After")), (503, Some("1")), "{text}");
    assert!(text.contains(&format!("{limit} bytes ({FLAG})")), "{text}");
    let called = h2::call(server.grpc(), GRPC_INFER, &[], &message());
    assert_eq!((&called["grpc-status"][..], &called["grpc-retry-pushback-ms"][..]), ("8", "1000"));
    assert!(called["grpc-message"].contains(FLAG), "{called:?}");
    // Probes and operators get through.
    for path in [LIVE, "/v2", "/v2/models/identity_fp32/stats"] {
        assert_eq!(http::get(server.http(), path).unwrap().status, 200, "{path}");
    }
    assert!(losses(&server, "new_connection") >= 5 && losses(&server, "request") >= 2);
    assert!(used(&server) <= limit);

    drop(held);
    waits_until("all steps have ended", || step(&server) == 0);
    assert_eq!(ask(&mut Connection::open(server.http()).unwrap()).header("Connection"), None);
    let log = server.log();
    assert!(log.contains("memory: the process may have ") && log.contains("by --memory-limit"), "{log}");
    let told: Vec<_> = log.lines().filter(|line| line.contains("bytes of ") && line.contains(FLAG)).collect();
    assert!((2..6).contains(&told.len()), "{told:#?}");
}

/// A request for an answer in JSON that is five times as large, of an identity of bytes.
fn large_request(size: usize) -> Vec<u8> {
    let head = format!(
        r#"{{"inputs":[{{"name":"INPUT0","shape":[1,{size}],"datatype":"INT8","parameters":{{"binary_data_size":{size}}}}}]}}"#
    );
    http::infer_request("identity_int8", &head, &vec![0x9c; size])
}

/// Connects with a small receive buffer, so that the kernel takes little of an unread answer.
fn connect_small(address: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    socket.connect(&address.into()).unwrap();
    socket.into()
}

#[test]
fn at_last_new_requests_are_refused_and_the_connections_that_hold_the_most_are_closed() {
    let (_folder, server, limit) = server_with(64 * MIB, &["--http-write-timeout=60", "--http-idle-timeout=60"]);
    // They connect before new connections are refused inferences.
    let request = http::request("POST", PATH, &[], BODY);
    let (first, second) = request.split_at(request.len() - 1);
    let mut late: Vec<_> = (0..40).map(|_| Connection::open(server.http()).unwrap()).collect();
    late.iter_mut().for_each(|connection| connection.send(first).unwrap());
    let mut heavy: Vec<_> = (0..2).map(|_| connect_small(server.http())).collect();
    let request = large_request(6 * MIB);
    let (most, last) = request.split_at(request.len() - 1);
    thread::scope(|scope| {
        for stream in &mut heavy {
            scope.spawn(|| stream.write_all(most).unwrap());
        }
    });
    waits_until("they are here", || metric(server.metrics(), "deuteron_receive_memory_bytes") >= (2 * 6 * MIB) as u64);
    // Unfinished bodies up to the second step: from there the answers, which are not bounded, pass the last.
    let mut held = Vec::new();
    fill(&server, 2, &mut held);
    thread::scope(|scope| {
        for stream in &mut heavy {
            scope.spawn(|| stream.write_all(last).unwrap());
        }
        waits_until("requests are refused", || step(&server) >= 3);
        let refused = late.iter_mut().find_map(|connection| {
            connection.send(second).unwrap();
            Some(connection.receive().unwrap()).filter(|answer| answer.status != 200)
        });
        let refused = refused.expect("it lasts for a second at least");
        let text = String::from_utf8_lossy(&refused.body).into_owned();
        assert_eq!((refused.status, refused.header("Retry-After")), (503, Some("1")), "{text}");
        assert!(text.contains(FLAG), "{text}");
        waits_until("the heaviest are closed", || losses(&server, "heaviest_connection") >= 1);
    });
    for step in ["keep_alive", "connections", "requests", "heaviest"] {
        let name = format!("deuteron_memory_steps_total{{step=\"{step}\"}}");
        assert!(metric(server.metrics(), &name) >= 1, "{step}");
    }
    assert!(losses(&server, "request") >= 1);
    // A reset, so that the kernel drops the unread bytes.
    waits_until("it is below the limit", || used(&server) < limit);
    assert_eq!(http::get(server.http(), LIVE).unwrap().status, 200);
    drop((heavy, late, held));
    waits_until("all steps have ended", || step(&server) == 0);
    assert_eq!(infer(server.http()).status, 200);
}

#[test]
fn of_a_connection_with_streams_only_the_heaviest_stream_is_reset() {
    let (_folder, server, _) = server_with(64 * MIB, &["--http-write-timeout=60", "--http-idle-timeout=60"]);
    let frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let size = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&size[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    };
    let literal = |name: &str, value: &str| {
        [
            &[0, u8::try_from(name.len()).unwrap()],
            name.as_bytes(),
            &[u8::try_from(value.len()).unwrap()],
            value.as_bytes(),
        ]
        .concat()
    };
    let request = large_request(MIB - 1_024);
    let split = request.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
    let (head, body) = (String::from_utf8_lossy(&request[..split]).into_owned(), &request[split + 4..]);
    let length = head.lines().find_map(|line| line.strip_prefix("Inference-Header-Content-Length: ")).unwrap();
    let path = literal(":path", "/v2/models/identity_int8/infer");
    let length = literal("inference-header-content-length", length);
    let block = [&b"\x83\x86\x41\x01a"[..], &path, &length].concat();
    // Answers of 5 MB, with a window of 64 KiB.
    let of_stream = |stream: u32| {
        let parts: Vec<_> = body.chunks(16_000).collect();
        let last = parts.len() - 1;
        let content = parts.iter().enumerate().map(|(index, part)| frame(0, u8::from(index == last), stream, part));
        [frame(1, 4, stream, &block)].into_iter().chain(content).collect::<Vec<_>>().concat()
    };
    let mut streams: Vec<_> = (0..4)
        .map(|_| {
            let mut stream = TcpStream::connect(server.http()).unwrap();
            stream.write_all(OPENING).unwrap();
            stream
        })
        .collect();
    thread::scope(|scope| {
        for stream in &mut streams {
            scope
                .spawn(|| (0..6_u32).map(|index| stream.write_all(&of_stream(2 * index + 1))).all(|sent| sent.is_ok()));
        }
    });
    waits_until("the heaviest are reset", || losses(&server, "heaviest_stream") >= 1);
    thread::sleep(Duration::from_millis(500));
    assert_eq!(losses(&server, "heaviest_connection"), 0);
    let came: Vec<_> = streams
        .iter_mut()
        .map(|stream| {
            SockRef::from(&*stream).shutdown(std::net::Shutdown::Write).unwrap();
            rest(stream)
        })
        .collect();
    assert!(came.iter().any(|came| has_frame(came, 3)), "RST_STREAM");
    // On a slow machine the limit may be reached while bodies still arrive: then all streams of a connection may be reset.
    let is_open = |came: &Vec<u8>| has_frame(came, 1) || has_frame(came, 3);
    assert!(came.iter().all(is_open), "each connection was answered something");
    waits_until("all steps have ended", || step(&server) == 0);
}

#[test]
fn a_model_whose_file_alone_does_not_fit_is_not_loaded() {
    let (folder, server, limit) =
        server_with(64 * MIB, &["--model-control-mode=explicit", "--load-model=identity_fp32"]);
    repository::add(folder.path(), "large", "platform: 'onnxruntime_onnx'", Some(b""));
    let file = File::options().write(true).open(folder.path().join("large/1/model.onnx")).unwrap();
    // It takes no space on the disk.
    file.set_len(80 << 20).unwrap();
    let answer = http::post(server.http(), "/v2/repository/models/large/load", b"").unwrap();
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    assert_eq!(answer.status, 400, "{text}");
    for part in ["does not fit into the memory", "its files have 83886080 bytes", &format!("{limit} bytes, by {FLAG}")]
    {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(losses(&server, "load"), 1);
    assert!(used(&server) < limit, "it was not read");
    assert_eq!(infer(server.http()).status, 200);
}

#[test]
fn under_abuse_of_many_kinds_the_process_keeps_to_its_limit_and_a_client_that_comes_again_is_answered() {
    /// Memory taken between two checks, which no step of such a small limit can hold back: the nodes of a JSON document
    /// (16 MiB at most), an answer in JSON with the buffer that it outgrew, and the freed memory of both. 16 to 34 MB
    /// were seen on a busy machine; without the limit it is hundreds.
    const MARGIN: usize = 64 * MIB;
    let (_folder, server, limit) = server_with(64 * MIB, &["--http-write-timeout=60", "--http-body-timeout=60"]);
    let (is_over, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    let start = Instant::now();
    let most = thread::scope(|scope| {
        let _over = Over(&is_over);
        // Bodies that do not end, answers that are never read, large JSON, and silent connections.
        for kind in 0..4 {
            let (server, is_over) = (&server, &is_over);
            scope.spawn(move || {
                let mut held = Vec::new();
                let large = large_request(MIB);
                let json = format!(r#"{{"inputs":[{}]}}"#, "1,".repeat(400_000));
                while !is_over.load(Ordering::SeqCst) {
                    match kind {
                        0 => held.extend(hold(server.http(), MIB)),
                        1 => {
                            let mut stream = connect_small(server.http());
                            stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
                            if stream.write_all(&large).is_ok() {
                                held.push(stream);
                            }
                        }
                        2 => drop(http::post(server.http(), PATH, json.as_bytes())),
                        _ => held.extend(TcpStream::connect(server.http())),
                    }
                    if held.len() > 400 {
                        held.drain(..100);
                    }
                    thread::sleep(Duration::from_millis(5));
                }
            });
        }
        // A client that comes again after a refusal.
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                let answer = http::post(server.http(), PATH, BODY);
                answered.fetch_add(u64::from(answer.is_ok_and(|answer| answer.status == 200)), Ordering::SeqCst);
                thread::sleep(Duration::from_millis(20));
            }
        });
        let mut most = 0;
        while start.elapsed() < Duration::from_secs(4) {
            most = most.max(resident(&server));
            thread::sleep(Duration::from_millis(5));
        }
        most
    });
    let answered = answered.into_inner();
    let given_up = ["idle_connection", "new_connection", "request"].map(|what| losses(&server, what));
    eprintln!("limit {limit}, {most} at most; {answered} answered; given up: {given_up:?}, step {}", step(&server));
    assert!(most < limit + MARGIN, "{limit} bytes are the limit, {most} were used");
    assert!(given_up.iter().sum::<u64>() > 0 && answered > 0, "{given_up:?}, {answered}");
    waits_until("all steps have ended", || step(&server) == 0);
    assert_eq!(infer(server.http()).status, 200);
    waits_until("the memory is back", || resident(&server) < limit - 40 * MIB);
}

/// Memory of the process that the kernel cannot reclaim.
fn resident(server: &Server) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
    let lines = status.lines().filter(|line| line.starts_with("RssAnon:") || line.starts_with("RssShmem:"));
    lines.map(|line| line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024).sum()
}
