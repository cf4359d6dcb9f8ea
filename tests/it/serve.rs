//! The server as a process: its ports, its signals, its metrics, its refusals to start, and
//! behaviour that only a socket shows.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::folder::Folder;
use crate::support::gate::Gate;
use crate::support::h2;
use crate::support::http::{self, Connection};
use crate::support::metrics;
use crate::support::protobuf::Message;
use crate::support::repository::{self, Flavour};
use crate::support::server::Server;

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";

fn json(value: f32) -> String {
    format!(r#"{{"inputs":[{{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[{value:?}]}}]}}"#)
}

fn infer(model: &str, value: f32) -> Vec<u8> {
    http::request("POST", &format!("/v2/models/{model}/infer"), &[], json(value).as_bytes())
}

fn message(model: &str, rows: i64) -> Vec<u8> {
    let input = Message::new().bytes(1, "INPUT0").bytes(2, "FP32").packed(3, &[rows, 1]);
    let raw = vec![0; usize::try_from(rows).unwrap() * 4];
    Message::new().bytes(1, model).message(5, input).bytes(7, raw).into_bytes()
}

fn metric(server: &Server, name: &str) -> u64 {
    metrics::metric(server.metrics(), name)
}

/// Time limit of a wait: shorter than the client of a held request waits.
const WAIT_MAX: Duration = Duration::from_secs(15);
const WAITING: &str = "nv_inference_pending_request_count{model=\"slow\",version=\"1\"}";

fn waits_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < WAIT_MAX, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_counters_add_up_to_what_the_clients_sent() {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &["--shards=2"]);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut connection = Connection::open(server.http()).unwrap();
                for value in 0..25_u8 {
                    connection.send(&infer("identity_fp32", f32::from(value))).unwrap();
                    assert_eq!(connection.receive().unwrap().status, 200);
                }
                connection.send(&infer("nope", 0.0)).unwrap();
                assert_eq!(connection.receive().unwrap().status, 404);
            });
        }
    });
    let client = crate::support::grpc::Client::new(server.grpc());
    client.call(INFER, &message("identity_fp32", 3)).unwrap();
    assert!(client.call(INFER, &message("identity_fp32", 9)).is_err(), "more rows than max_batch_size");

    let of_model =
        |name: &str| metric(&server, &format!("nv_inference_{name}{{model=\"identity_fp32\",version=\"1\"}}"));
    assert_eq!(of_model("request_success"), 201);
    assert_eq!(of_model("count"), 203);
    assert_eq!(of_model("exec_count"), 201);
    assert!(of_model("request_duration_us") >= of_model("compute_infer_duration_us"));
    assert_eq!(metric(&server, "deuteron_requests_received_total"), 210);
    assert_eq!(metric(&server, "deuteron_requests_succeeded_total"), 201);
    assert_eq!(metric(&server, "deuteron_requests_refused_total{reason=\"not_found\"}"), 8);
    assert_eq!(metric(&server, "deuteron_requests_refused_total{reason=\"invalid_argument\"}"), 1);
    assert_eq!(metric(&server, "deuteron_requests_in_flight"), 0);
}

#[test]
fn requests_that_wait_together_run_together() {
    let folder = repository::write(Flavour::Deuteron);
    repository::set_batched(folder.path(), "slow");
    let gate = Gate::on(folder.path(), "slow");
    let server = Server::deuteron(folder.path(), &["--shards=2", &gate.flag()]);
    thread::scope(|scope| {
        let ask = |index: u8| {
            let response = http::exchange(server.http(), &infer("slow", f32::from(index))).unwrap();
            let text = String::from_utf8(response.body).unwrap();
            assert!(text.contains(&format!("\"data\":[{index}.0]")), "{text}");
        };
        // One runs alone, eight wait for it.
        scope.spawn(move || ask(0));
        waits_until("the model is busy", || metrics::batches_left(server.metrics(), "slow") == 1);
        for index in 1..9 {
            scope.spawn(move || ask(index));
        }
        waits_until("all wait", || metric(&server, WAITING) == 8);
        gate.open();
    });
    assert_eq!(metric(&server, "nv_inference_exec_count{model=\"slow\",version=\"1\"}"), 2);
    assert_eq!(metric(&server, "nv_inference_count{model=\"slow\",version=\"1\"}"), 9);
}

#[test]
fn a_deadline_is_kept_by_the_server_and_a_late_request_never_runs() {
    let folder = repository::write(Flavour::Deuteron);
    let gate = Gate::on(folder.path(), "slow");
    let server = Server::deuteron(folder.path(), &["--shards=1", &gate.flag()]);
    // Its own HTTP/2, since a gRPC client would keep the deadline itself.
    let busy = thread::spawn({
        let address = server.http();
        move || http::exchange(address, &infer("slow", 1.0)).unwrap().status
    });
    waits_until("the model is busy", || metrics::batches_left(server.metrics(), "slow") == 1);
    let start = Instant::now();
    let trailers = h2::call(server.grpc(), INFER, &[("grpc-timeout", "20m")], &message("slow", 1));
    assert_eq!(trailers.get("grpc-status").unwrap(), "4", "it is answered while the model is busy");
    assert!(start.elapsed() >= Duration::from_millis(20), "{:?}", start.elapsed());
    assert_eq!(metric(&server, WAITING), 0);
    gate.open();
    assert_eq!(busy.join().unwrap(), 200);
    // One that comes later runs, and it alone.
    assert_eq!(http::exchange(server.http(), &infer("slow", 1.0)).unwrap().status, 200);
    assert_eq!(metric(&server, "nv_inference_exec_count{model=\"slow\",version=\"1\"}"), 2);
    assert_eq!(metric(&server, "deuteron_requests_refused_total{reason=\"deadline_exceeded\"}"), 1);
}

#[test]
fn a_client_that_resets_its_connection_is_not_computed_for() {
    let folder = repository::write(Flavour::Deuteron);
    // The first request runs while twenty others come and go.
    let gate = Gate::on(folder.path(), "slow");
    let server = Server::deuteron(folder.path(), &["--shards=1", &gate.flag()]);
    let busy = thread::spawn({
        let address = server.http();
        move || http::exchange(address, &infer("slow", 1.0)).unwrap().status
    });
    waits_until("the model is busy", || metrics::batches_left(server.metrics(), "slow") == 1);
    for _ in 0..20 {
        let mut stream = TcpStream::connect(server.http()).unwrap();
        stream.write_all(&infer("slow", 2.0)).unwrap();
        waits_until("the request waits", || metric(&server, WAITING) == 1);
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
        drop(stream);
        waits_until("the request has gone", || metric(&server, WAITING) == 0);
    }
    gate.open();
    assert_eq!(busy.join().unwrap(), 200);
    let cancelled = || metric(&server, "deuteron_requests_cancelled_total{reason=\"connection_closed\"}");
    waits_until("they are counted", || cancelled() == 20);
    assert_eq!(http::exchange(server.http(), &infer("slow", 3.0)).unwrap().status, 200);
    assert_eq!(metric(&server, "nv_inference_exec_count{model=\"slow\",version=\"1\"}"), 2);
}

#[test]
fn a_full_queue_refuses_at_once_and_says_when_to_come_back() {
    let folder = repository::write(Flavour::Deuteron);
    let gate = Gate::on(folder.path(), "slow");
    let server = Server::deuteron(folder.path(), &["--shards=1", "--queue-requests-max=3", &gate.flag()]);
    thread::scope(|scope| {
        let send = || scope.spawn(|| http::exchange(server.http(), &infer("slow", 1.0)).unwrap());
        let first = send();
        waits_until("the model is busy", || metrics::batches_left(server.metrics(), "slow") == 1);
        let waiting: Vec<_> = (0..3).map(|_| send()).collect();
        waits_until("three wait", || metric(&server, WAITING) == 3);
        // It is answered while no other is.
        let refused = http::exchange(server.http(), &infer("slow", 1.0)).unwrap();
        gate.open();
        assert_eq!(refused.status, 503);
        let retries: Vec<_> = refused.headers.iter().filter(|(name, _)| name == "Retry-After").collect();
        assert!(matches!(retries.as_slice(), [(_, value)] if value == "1"), "once: {retries:?}");
        assert_eq!(refused.body, br#"{"error":"[request id: <id_unknown>] Exceeds maximum queue size"}"#);
        for answer in waiting.into_iter().chain([first]) {
            assert_eq!(answer.join().unwrap().status, 200);
        }
    });
}

#[test]
fn a_server_that_drains_answers_what_it_has_takes_no_more_and_ends() {
    let folder = repository::write(Flavour::Deuteron);
    let mut server = Server::deuteron(folder.path(), &[]);
    let idle = TcpStream::connect(server.http()).unwrap();
    let mut busy = Connection::open(server.http()).unwrap();
    busy.send(&infer("slow", 7.0)).unwrap();
    waits_until("the model is busy", || metrics::batches_left(server.metrics(), "slow") == 1);
    server.signal("TERM");
    let answer = busy.receive().unwrap();
    assert_eq!((answer.status, answer.header("Connection")), (200, Some("close")));
    assert!(busy.is_closed());
    let mut rest = Vec::new();
    (&idle).read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
    let start = Instant::now();
    // A second signal would end it without a drain.
    assert_eq!(server.wait().code(), Some(0));
    assert!(start.elapsed() < WAIT_MAX, "{:?}: it waited to the end of its exit timeout", start.elapsed());
}

#[test]
fn a_drain_under_load_loses_no_request_that_was_sent() {
    let folder = repository::write(Flavour::Deuteron);
    let mut server = Server::deuteron(folder.path(), &["--shards=2"]);
    let address = server.http();
    let clients: Vec<_> = (0..8_u8)
        .map(|client| {
            thread::spawn(move || {
                let (mut answered, mut lost) = (0_u32, 0_u32);
                'connect: while let Ok(mut connection) = Connection::open(address) {
                    loop {
                        if connection.send(&infer("identity_fp32", f32::from(client))).is_err() {
                            continue 'connect;
                        }
                        let Ok(answer) = connection.receive() else {
                            lost += 1;
                            continue 'connect;
                        };
                        assert_eq!(answer.status, 200);
                        assert!(String::from_utf8_lossy(&answer.body).contains(&format!("[{client}.0]")));
                        answered += 1;
                        if answer.header("Connection") == Some("close") {
                            continue 'connect;
                        }
                    }
                }
                (answered, lost)
            })
        })
        .collect();
    waits_until("there is load", || metric(&server, "deuteron_requests_succeeded_total") > 500);
    assert_eq!(server.stop().code(), Some(0));
    let counts: Vec<(u32, u32)> = clients.into_iter().map(|client| client.join().unwrap()).collect();
    let (answered, lost) = counts.iter().fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1));
    assert!(answered > 500 && lost == 0, "{answered} answered, {lost} lost");
}

#[test]
fn who_connects_as_a_drain_begins_is_told_that_the_server_is_not_ready_and_is_served() {
    let folder = repository::write(Flavour::Deuteron);
    let mut server = Server::deuteron(folder.path(), &["--shards=2"]);
    let address = server.http();
    // Each request has a connection of its own. Returns the answers until no further connection can
    // be made.
    let ask = move |request: Vec<u8>| {
        let mut answers = Vec::new();
        while let Ok(mut connection) = Connection::open(address) {
            connection.send(&request).unwrap();
            let answer = connection.receive().unwrap();
            answers.push((answer.status, answer.header("Connection") == Some("close")));
        }
        answers
    };
    let probe = thread::spawn(move || ask(http::request("GET", "/v2/health/ready", &[], b"")));
    let client = thread::spawn(move || ask(infer("identity_fp32", 1.0)));
    waits_until("there is load", || metric(&server, "deuteron_requests_succeeded_total") > 50);
    assert_eq!(server.stop().code(), Some(0));
    let (probed, served) = (probe.join().unwrap(), client.join().unwrap());
    let unready = probed.iter().filter(|answer| **answer == (503, true)).count();
    assert!(probed[0].0 == 200 && unready > 0, "no probe of {} saw it", probed.len());
    assert!(served.iter().all(|answer| answer.0 == 200));
    assert!(served.iter().any(|answer| answer.1), "none of {} was told to go elsewhere", served.len());
}

#[test]
fn a_health_watch_whose_connection_broke_ends() {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    h2::leave(server.grpc(), "/grpc.health.v1.Health/Watch");
    waits_until("the connection is closed", || metric(&server, "deuteron_connections_open") == 1);
    let before = ticks(server.id());
    thread::sleep(Duration::from_millis(500));
    assert!(ticks(server.id()) - before < 10, "the server is idle");
}

#[test]
fn a_client_that_asks_on_without_reading_fills_no_memory() {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    let path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    let question = Message::new().bytes(4, "inference.GRPCInferenceService").into_bytes();
    let before = resident_kib(server.id());
    h2::flood(server.grpc(), path, &question, 4 << 20, || {
        let grown = resident_kib(server.id()) - before;
        assert!(grown < 64 * 1024, "the server grew by {grown} KiB");
    });
    assert_eq!(http::get(server.http(), "/v2/health/live").unwrap().status, 200);
}

#[test]
fn a_model_that_computes_on_does_not_hold_the_end_up() {
    let folder = repository::write(Flavour::Deuteron);
    let model = folder.path().join("endless");
    fs::create_dir_all(model.join("1")).unwrap();
    let config = "backend: \"identity\" max_batch_size: 1\n\
        input { name: \"INPUT0\" data_type: TYPE_FP32 dims: 1 }\n\
        output { name: \"OUTPUT0\" data_type: TYPE_FP32 dims: 1 }\n\
        parameters { key: \"execute_delay_ms\" value { string_value: \"600000\" } }";
    fs::write(model.join("config.pbtxt"), config).unwrap();
    let mut server = Server::deuteron(folder.path(), &["--exit-timeout-secs=1"]);
    let mut connection = Connection::open(server.http()).unwrap();
    connection.send(&infer("endless", 1.0)).unwrap();
    waits_until("it computes", || metric(&server, "deuteron_requests_in_flight") == 1);
    let start = Instant::now();
    assert_eq!(server.stop().code(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}: it computes for ten minutes", start.elapsed());
}

#[test]
fn a_server_whose_output_nobody_reads_drains_like_any_other() {
    let folder = repository::write(Flavour::Deuteron);
    let mut command = Command::new(env!("CARGO_BIN_EXE_deuteron"));
    command.arg("serve").arg(folder.path()).args(["--http-port=0", "--grpc-port=0", "--metrics-port=0"]);
    let (reader, writer) = std::io::pipe().unwrap();
    let mut child = command.stdout(writer).stderr(std::process::Stdio::piped()).spawn().unwrap();
    drop((command, reader));
    let mut log = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("ready after") {
        line.clear();
        assert_ne!(std::io::BufRead::read_line(&mut log, &mut line).unwrap(), 0, "it ended");
    }
    Command::new("kill").arg(child.id().to_string()).status().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// Memory that a process holds.
fn resident_kib(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn an_idle_server_ends_at_once() {
    let folder = repository::write(Flavour::Deuteron);
    let end = || {
        let mut server = Server::deuteron(folder.path(), &[]);
        let start = Instant::now();
        assert_eq!(server.stop().code(), Some(0));
        let took = start.elapsed();
        assert!(server.log().contains("Started HTTPService at"), "{}", server.log());
        took
    };
    // Were it to wait for something, it would be for a second at least, each time. Other work on the machine makes it later
    // now and then.
    let took: Vec<_> = (0..5).map(|_| end()).collect();
    assert!(took.iter().min() < Some(&Duration::from_millis(800)), "{took:?}");
}

#[test]
fn an_rpc_that_is_none_and_a_deadline_that_is_none_are_refused() {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &[]);
    let path = "/inference.GRPCInferenceService/Nothing";
    let refusal = h2::call(server.grpc(), path, &[], &message("identity_fp32", 1));
    assert_eq!(refusal["grpc-status"], "12");
    assert_eq!(refusal["grpc-accept-encoding"], "identity, deflate, gzip");
    let late = [("grpc-timeout", "soon")];
    let refusal = h2::call(server.grpc(), INFER, &late, &message("identity_fp32", 1));
    assert_eq!(refusal["grpc-status"], "3");
}

#[test]
fn both_ports_speak_both_protocols_and_rest_goes_over_http2_too() {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &[]);
    for address in [server.http(), server.grpc()] {
        assert_eq!(http::get(address, "/v2/health/live").unwrap().status, 200);
        crate::support::grpc::Client::new(address).call(INFER, &message("identity_fp32", 1)).unwrap();
        let (status, body) = h2::post(address, "/v2/models/identity_fp32/infer", json(1.5).as_bytes());
        assert_eq!(status, 200);
        assert!(String::from_utf8_lossy(&body).contains("\"data\":[1.5]"));
    }
}

#[test]
fn a_request_in_the_smallest_pieces_is_answered_like_any_other() {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &[]);
    let mut connection = Connection::open(server.http()).unwrap();
    for byte in infer("identity_fp32", 4.25) {
        connection.send(&[byte]).unwrap();
    }
    let answer = connection.receive().unwrap();
    assert!(String::from_utf8_lossy(&answer.body).contains("4.25"));
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &[]);
    let mut connection = Connection::open(server.http()).unwrap();
    let requests: Vec<u8> = (0..64_u8).flat_map(|index| infer("identity_fp32", f32::from(index))).collect();
    connection.send(&requests).unwrap();
    for index in 0..64 {
        let body = String::from_utf8(connection.receive().unwrap().body).unwrap();
        assert!(body.contains(&format!("\"data\":[{index}.0]")), "{index}: {body}");
    }
}

#[test]
fn a_tensor_of_eight_megabytes_comes_back_bit_for_bit_over_both_protocols() {
    const COUNT: i64 = 2 * 1024 * 1024;
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &[]);
    let raw: Vec<u8> = (0..COUNT).flat_map(|index| (index as f32).to_le_bytes()).collect();
    let head = format!(
        r#"{{"inputs":[{{"name":"INPUT0","shape":[1,{COUNT}],"datatype":"FP32","parameters":{{"binary_data_size":{}}}}}],"parameters":{{"binary_data_output":true}}}}"#,
        raw.len()
    );
    let length = head.len().to_string();
    let headers = [("Inference-Header-Content-Length", length.as_str())];
    let body = [head.as_bytes(), &raw].concat();
    let request = http::request("POST", "/v2/models/identity_fp32/infer", &headers, &body);
    let answer = http::exchange(server.http(), &request).unwrap();
    let head: usize = answer.header("Inference-Header-Content-Length").unwrap().parse().unwrap();
    assert!(answer.body[head..] == raw);

    let input = Message::new().bytes(1, "INPUT0").bytes(2, "FP32").packed(3, &[1, COUNT]);
    let message = Message::new().bytes(1, "identity_fp32").message(5, input).bytes(7, &raw).into_bytes();
    let answer = crate::support::grpc::Client::new(server.grpc()).call(INFER, &message).unwrap();
    assert!(answer.ends_with(&raw));
}

#[test]
fn framing_faults_are_told_and_the_connection_closed() {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &[]);
    let check = |request: &str, status: u16| {
        let mut connection = Connection::open(server.http()).unwrap();
        connection.send(request.as_bytes()).unwrap();
        assert_eq!(connection.receive().unwrap().status, status, "{request:?}");
        assert!(connection.is_closed(), "{request:?}");
    };
    check("GET / HTTP/1.1\r\n\r\n", 400);
    check("GET /v2 HTTP/1.1\nHost: a\n\n", 400);
    check("POST /v2 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400);
    check("POST /v2 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400);
    check("GET /v2 HTTP/1.1\r\nHost : a\r\n\r\n", 400);
    check("POST /v2 HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n", 413);
    waits_until("the faults are counted", || metric(&server, "deuteron_framing_errors_total") == 6);
}

#[test]
fn a_client_that_floods_is_told_the_flag_and_counted() {
    const PING: [u8; 17] = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &["--http2-control-frames-max=50"]);
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    const ANSWER: [u8; 9] = [0, 0, 8, 6, 1, 0, 0, 0, 0];
    let check = |pings: usize, want: bool| {
        let mut stream = TcpStream::connect(server.grpc()).unwrap();
        stream.write_all(&[PREFACE, &PING.repeat(pings)].concat()).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        let (mut all, mut piece) = (Vec::new(), [0; 4096]);
        let answers = |all: &[u8]| all.windows(ANSWER.len()).filter(|bytes| **bytes == ANSWER).count();
        // Until it is closed, or every ping was answered.
        while answers(&all) < pings
            && let Ok(count @ 1..) = stream.read(&mut piece)
        {
            all.extend_from_slice(&piece[..count]);
        }
        let text = String::from_utf8_lossy(&all).into_owned();
        assert_eq!(answers(&all) == pings, !want, "{text}");
        assert_eq!(text.contains("CONTROL_FRAMES_MAX (--http2-control-frames-max) is 50 in 10 s"), want, "{text}");
    };
    check(40, false);
    check(60, true);
    waits_until("it is counted", || metric(&server, "deuteron_http2_calmed_total{limit=\"control_frames\"}") == 1);
}

/// Clock ticks of CPU that a process has used.
fn ticks(process: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn a_server_out_of_descriptors_waits_quietly_and_recovers() {
    let folder = repository::write(Flavour::Deuteron);
    let ports = crate::support::server::Ports::free();
    let mut command = Command::new("sh");
    command
        .args(["-c", "ulimit -n 100; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_deuteron"), "serve"])
        .arg(folder.path());
    command.arg("--shards=1").arg(format!("--http-port={}", ports.http));
    command.args([format!("--grpc-port={}", ports.grpc), format!("--metrics-port={}", ports.metrics)]);
    let server = Server::start(command, ports);
    let held: Vec<_> = (0..150).map(|_| TcpStream::connect(server.http()).unwrap()).collect();
    thread::sleep(Duration::from_millis(300));
    let before = ticks(server.id());
    thread::sleep(Duration::from_secs(2));
    let used = ticks(server.id()) - before;
    assert!(used <= 10, "{used} ticks of 200 while it could not accept");
    let complaints = server.log().lines().filter(|line| line.contains("cannot accept")).count();
    assert!((1..10).contains(&complaints), "{}", server.log());
    drop(held);
    assert_eq!(http::exchange(server.http(), &infer("identity_fp32", 1.0)).unwrap().status, 200);
}

fn start(folder: &Folder, flags: &[&str]) -> Output {
    let ports = ["--http-port=0", "--grpc-port=0", "--metrics-port=0"];
    Command::new(env!("CARGO_BIN_EXE_deuteron"))
        .arg("serve")
        .arg(folder.path())
        .args(ports)
        .args(flags)
        .output()
        .unwrap()
}

#[test]
fn what_cannot_start_says_why_and_exits_with_one_or_for_a_wrong_command_line_with_two() {
    let folder = repository::write(Flavour::Deuteron);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!("--http-port={}", taken.local_addr().unwrap().port());
    let check = |folder: &Folder, flags: &[&str], code: i32, want: &str| {
        let output = start(folder, flags);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains(want), "{want:?} is not in\n{text}");
    };
    check(&folder, &[&port, "--http-address=127.0.0.1"], 1, "already in use");
    check(&folder, &["--nope"], 2, "unknown flag '--nope'");

    let broken = Folder::new("broken");
    let model = broken.path().join("bad");
    fs::create_dir_all(model.join("1")).unwrap();
    fs::write(model.join("config.pbtxt"), "name: \"bad\"\nbackend: \"identity\"\nnope: 1\n").unwrap();
    check(&broken, &[], 1, "config.pbtxt:3:");
    check(&broken, &[], 1, "failed to load all models");
}

#[test]
fn a_body_over_the_limit_has_tritons_status_where_its_flag_is_given() {
    let folder = repository::write(Flavour::Deuteron);
    let path = "/v2/models/identity_fp32/infer";
    for (flag, want) in [("--compat=protocol", 413), ("--compat=triton", 400)] {
        let server = Server::deuteron(folder.path(), &["--shards=1", "--http-max-input-size=1000", flag]);
        let answer = http::post(server.http(), path, &[b' '; 1001]).unwrap();
        let text = String::from_utf8(answer.body).unwrap();
        assert_eq!(answer.status, want, "{flag}: {text}");
        assert!(text.contains("--http-max-input-size"), "{text}");
        let (status, _, body) = h2::post_with(server.http(), path, &[], &[b' '; 1001]);
        assert_eq!((status, String::from_utf8(body).unwrap()), (want, text), "{flag} over HTTP/2");
    }
}
