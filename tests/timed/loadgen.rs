//! `deuteron bench` as a program: against a server of the test with set delays, against Deuteron over both protocols,
//! and with `DEUTERON_TESTS=triton` against a real tritonserver.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::folder::Folder;
use crate::support::http;
use crate::support::repository::{self, Flavour};
use crate::support::server::Server;
use crate::turn;
use serde_json::Value;

/// Behaviour of a server of the test.
#[derive(Clone, Copy, Default)]
struct Manner {
    /// Delay of each answer.
    delay: Duration,
    /// It answers 503 once in this number of requests.
    failing: Option<u64>,
    /// At this request it stops answering all clients for this time.
    stall: Option<(u64, Duration)>,
    /// True if it closes the connection after each answer.
    closes: bool,
    /// It closes the connection without an answer once in this number of requests.
    hangs_up: Option<u64>,
    /// Its metadata, if any.
    metadata: Option<&'static str>,
}

/// A server of one model `m`, `A` FP32 of one element.
struct Fake {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    manner: Manner,
    count: AtomicU64,
    /// Requests whose answer was begun, without those that are hung up on.
    failed: AtomicU64,
    hung_up: AtomicU64,
    stalled_until: Mutex<Option<Instant>>,
    bodies: Mutex<Vec<Value>>,
}

impl Fake {
    fn start(manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State { manner, ..State::default() });
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                // A client that goes away ends only its thread.
                thread::spawn(move || state.serve(stream).unwrap_or_default());
            }
        });
        Self { address, state }
    }

    fn count(&self) -> u64 {
        self.state.count.load(Ordering::SeqCst)
    }
}

impl State {
    fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let mut size = 0;
            loop {
                let mut field = String::new();
                reader.read_line(&mut field)?;
                if let Some(value) = field.to_ascii_lowercase().strip_prefix("content-length:") {
                    size = value.trim().parse().unwrap();
                }
                if field == "\r\n" {
                    break;
                }
            }
            let mut body = vec![0; size];
            reader.read_exact(&mut body)?;
            let path = line.split(' ').nth(1).unwrap().to_owned();
            let (status, text) = match path.as_str() {
                "/v2/models/m" => (200, r#"{"name":"m","inputs":[{"name":"A","datatype":"FP32","shape":[1]}]}"#),
                "/v2/models/m/infer" => match self.infer(&body) {
                    Some(answer) => answer,
                    None => return Ok(()),
                },
                "/v2" => self.manner.metadata.map_or((404, "{}"), |metadata| (200, metadata)),
                _ => (404, "{}"),
            };
            let close = if self.manner.closes { "Connection: close\r\n" } else { "" };
            let head = format!("HTTP/1.1 {status} X\r\n{close}Content-Length: {}\r\n\r\n", text.len());
            reader.get_mut().write_all(format!("{head}{text}").as_bytes())?;
            if self.manner.closes {
                return Ok(());
            }
        }
    }

    /// The answer; `None` to hang up.
    fn infer(&self, body: &[u8]) -> Option<(u16, &'static str)> {
        let number = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        if let Ok(body) = serde_json::from_slice(body) {
            self.bodies.lock().unwrap().push(body);
        }
        if let Some((_, pause)) = self.manner.stall.filter(|(at, _)| *at == number) {
            *self.stalled_until.lock().unwrap() = Some(Instant::now() + pause);
        }
        thread::sleep(self.manner.delay);
        let until = *self.stalled_until.lock().unwrap();
        thread::sleep(until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now())));
        if self.manner.hangs_up.is_some_and(|every| number.is_multiple_of(every)) {
            self.hung_up.fetch_add(1, Ordering::SeqCst);
            return None;
        }
        if self.manner.failing.is_some_and(|every| number.is_multiple_of(every)) {
            self.failed.fetch_add(1, Ordering::SeqCst);
            return Some((503, r#"{"error":"the queue is full"}"#));
        }
        Some((200, r#"{"outputs":[]}"#))
    }
}

fn bench(line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_deuteron"));
    command.arg("bench").args(line.split_whitespace());
    command.output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The JSON objects that a run prints.
fn json(line: &str) -> Vec<Value> {
    let output = bench(&format!("{line} --format=json"));
    let lines = text(&output);
    let reports: Vec<Value> =
        String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let has_failed = reports.iter().any(|report| report["total_failed"].as_u64().unwrap_or(0) > 0);
    assert_eq!(output.status.success(), !has_failed, "{line}: {lines}");
    assert!(!reports.is_empty(), "{line}: {lines}");
    reports
}

fn number(report: &Value, name: &str) -> f64 {
    report[name].as_f64().unwrap_or_else(|| panic!("{name} is {} in {report}", report[name]))
}

/// All requests of a load, by the client's count.
fn total(report: &Value) -> u64 {
    report["total_succeeded"].as_u64().unwrap() + report["total_failed"].as_u64().unwrap()
}

#[test]
fn a_known_latency_is_measured() {
    let _turn = turn();
    let server = Fake::start(Manner { delay: Duration::from_millis(20), ..Manner::default() });
    for load in ["--concurrency=4", "--rate=100"] {
        let report = &json(&format!("-m m -u {} {load} -p 400 --max-trials 1", server.address))[0];
        let p50 = number(report, "latency_p50_us");
        assert!((20_000.0..26_000.0).contains(&p50), "{load}: {p50}");
        assert!(number(report, "latency_min_us") >= 20_000.0);
        let want = if load.contains("rate") { 100.0 } else { 4.0 / 0.02 };
        let got = number(report, "throughput");
        assert!(got > want * 0.6 && got < want * 1.4, "{load}: {got}");
    }
}

#[test]
fn a_stall_shows_in_an_open_loop_as_all_the_requests_that_it_delayed() {
    let _turn = turn();
    let manner =
        Manner { delay: Duration::from_millis(1), stall: Some((200, Duration::from_secs(1))), ..Manner::default() };
    // 600 requests in 3 seconds: a third of them is due while the server stalls.
    let server = Fake::start(manner);
    let line = "--rate=200 --request-distribution=constant --request-count=600";
    let open = &json(&format!("-m m -u {} {line}", server.address))[0];
    assert!(number(open, "latency_p99_us") > 850_000.0, "{open}");
    let p90 = number(open, "latency_p90_us");
    assert!((500_000.0..900_000.0).contains(&p90), "the delays are spread evenly up to a second: {p90}");
    assert!(number(open, "latency_p50_us") < 100_000.0);
    assert!(number(open, "send_lag_p99_us") > 0.0);
    // A closed loop waits with the server, so that it sees one slow request of 600.
    let server = Fake::start(manner);
    let closed = &json(&format!("-m m -u {} --concurrency=1 --request-count=600", server.address))[0];
    assert!(number(closed, "latency_p99_us") < 100_000.0, "{closed}");
    assert!(number(closed, "latency_max_us") > 900_000.0, "{closed}");
}

#[test]
fn waiting_for_the_one_connection_counts_as_latency_in_an_open_loop() {
    let _turn = turn();
    let server = Fake::start(Manner { delay: Duration::from_millis(10), ..Manner::default() });
    let line = "--connections=1 --rate=1000 --request-distribution=constant --request-count=50";
    let report = &json(&format!("-m m -u {} {line}", server.address))[0];
    // All are due within 50 ms, and the last is sent when 49 others have taken 10 ms each.
    assert!(number(report, "latency_max_us") > 400_000.0, "{report}");
    assert!(number(report, "send_lag_p99_us") > 400_000.0, "{report}");
}

#[test]
fn an_open_loop_that_asks_more_than_is_answered_is_not_stable_however_even_it_looks() {
    let _turn = turn();
    let server = Fake::start(Manner { delay: Duration::from_millis(10), ..Manner::default() });
    // One connection serves 100 a second, and the windows may differ by any amount.
    let stable = |load: &str| {
        let line = "--connections=1 --request-distribution=constant -p 300 --max-trials=4 -s 10000";
        let report = &json(&format!("-m m -u {} {line} {load}", server.address))[0];
        report["stable"].as_bool().unwrap_or_else(|| panic!("{report}"))
    };
    assert!(stable("--rate=50"));
    assert!(!stable("--rate=300"));
}

#[test]
fn every_request_is_counted_on_both_sides_and_failures_by_kind() {
    let _turn = turn();
    for load in ["--concurrency=8", "--concurrency=8 --threads=2", "--rate=2000", "--concurrency=4 --connections=2"] {
        for manner in [
            Manner { delay: Duration::from_millis(1), failing: Some(7), ..Manner::default() },
            Manner { closes: true, failing: Some(5), ..Manner::default() },
        ] {
            let server = Fake::start(manner);
            let line = format!("-m m -u {} {load} -p 150 --warm-up 100 --max-trials 4", server.address);
            let report = &json(&line)[0];
            assert_eq!(total(report), server.count(), "{line}: {report}");
            assert_eq!(report["total_failed"].as_u64().unwrap(), server.state.failed.load(Ordering::SeqCst));
            assert!(report["failed"].as_u64().unwrap() > 0);
            assert_eq!(report["errors"].as_array().unwrap().len(), 1, "{report}");
            assert_eq!(report["errors"][0]["kind"], "HTTP 503");
            assert_eq!(report["errors"][0]["text"], "the queue is full");
        }
    }
}

#[test]
fn tensors_travel_as_the_server_says_that_it_takes_them() {
    let _turn = turn();
    let none = r#"{"name":"f","version":"1","extensions":[]}"#;
    let some = r#"{"name":"f","version":"1","extensions":["classification","binary_tensor_data"]}"#;
    // Its metadata, flags, and whether the bodies are JSON.
    let cases = [
        (None, "", false),
        (Some(some), "", false),
        (Some(none), "", true),
        (Some(none), "--binary", false),
        (Some(some), "--json", true),
        (Some(none), "--input-tensor-format=binary", false),
    ];
    for (metadata, flags, is_json) in cases {
        let fake = Fake::start(Manner { delay: Duration::from_millis(1), metadata, ..Manner::default() });
        let output = bench(&format!("-m m -u {} {flags} --measurement-interval=100 --request-count=20", fake.address));
        assert!(output.status.success(), "{flags}: {}", text(&output));
        let bodies = fake.state.bodies.lock().unwrap();
        assert_eq!(!bodies.is_empty(), is_json, "{metadata:?} {flags}");
        assert!(bodies.iter().all(|body| body["inputs"][0]["data"].is_array()), "{metadata:?} {flags}");
        assert_eq!(text(&output).contains("over HTTP as JSON"), is_json, "{metadata:?} {flags}");
    }
}

#[test]
fn a_hang_up_is_a_failure_and_the_load_goes_on() {
    let _turn = turn();
    let server = Fake::start(Manner { hangs_up: Some(10), ..Manner::default() });
    let report = &json(&format!("-m m -u {} --concurrency=4 --request-count=400", server.address))[0];
    assert_eq!(total(report), 400);
    assert_eq!(server.count(), 400);
    assert_eq!(report["failed"], server.state.hung_up.load(Ordering::SeqCst));
    assert_eq!(report["errors"][0]["kind"], "connection closed");
}

#[test]
fn an_answer_that_never_comes_is_a_timeout() {
    let _turn = turn();
    let server = Fake::start(Manner { stall: Some((3, Duration::from_secs(3))), ..Manner::default() });
    let line = format!("-m m -u {} --concurrency=1 --request-count=5 --client-timeout=300", server.address);
    let report = &json(&line)[0];
    assert_eq!((&report["succeeded"], &report["failed"]), (&2.into(), &3.into()), "{report}");
    assert_eq!(report["errors"][0]["kind"], "timeout");
    assert!(number(report, "latency_max_us") < 300_000.0, "failures are not in the latency: {report}");
}

#[test]
fn the_program_fails_where_nothing_succeeds_and_says_why() {
    let _turn = turn();
    let check = |line: &str, want: &str| {
        let output = bench(line);
        assert!(!output.status.success(), "{line}");
        assert!(text(&output).contains(want), "{line}: {}", text(&output));
    };
    let server = Fake::start(Manner { failing: Some(1), ..Manner::default() });
    let address = server.address;
    check(&format!("-m m -u {address} --request-count=10"), "error: no request succeeded");
    check(&format!("-m m -u {address} --request-count=10"), "10 x HTTP 503: the queue is full");
    check(&format!("-m other -u {address}"), "HTTP 404");
    check("-m m -u 127.0.0.1:1", "no connection: 127.0.0.1:1: Connection refused");
    check(&format!("-m m -u {address} -b 2"), "-b 2: the model takes no batches");
    check(&format!("-m m -u {address} --pid=4294967295 --request-count=1"), "process 4294967295");
    check(&format!("-m m -u {address} --streaming"), "perf_analyzer's flag '--streaming' is not supported");
    check(&format!("-m m -i grpc -u {address}"), "the server answers by HTTP/1.1: use -i http");
}

#[test]
fn sequences_begin_end_and_never_overtake_themselves() {
    let _turn = turn();
    for load in ["--concurrency=3", "--rate=400"] {
        let server = Fake::start(Manner { delay: Duration::from_millis(2), ..Manner::default() });
        let line = "--sequence-length=5 --sequence-length-variation=0 --sequence-id-range=100:100000 --json -p 200";
        let report = &json(&format!("-m m -u {} {load} {line} --warm-up 0 --max-trials 2", server.address))[0];
        assert_eq!(total(report), server.count());
        let mut sequences: BTreeMap<u64, Vec<(bool, bool)>> = BTreeMap::new();
        for body in server.state.bodies.lock().unwrap().iter() {
            let parameters = &body["parameters"];
            let flag = |name: &str| parameters[name].as_bool().unwrap();
            let id = parameters["sequence_id"].as_u64().unwrap();
            sequences.entry(id).or_default().push((flag("sequence_start"), flag("sequence_end")));
        }
        assert!(sequences.len() > 10 && sequences.keys().all(|id| *id >= 100), "{sequences:?}");
        let whole = [(true, false), (false, false), (false, false), (false, false), (false, true)];
        let cut_short = sequences.values().filter(|flags| flags[..] != whole[..]).collect::<Vec<_>>();
        // The load stops in the middle of the last requests, which are then ended.
        assert!(cut_short.len() <= 4, "{cut_short:?}");
        for flags in cut_short {
            assert!(flags.len() < 5 && flags[0].0 && flags[flags.len() - 1].1, "{flags:?}");
            assert_eq!(flags.iter().filter(|(start, end)| *start || *end).count(), 2, "{flags:?}");
        }
    }
}

#[test]
fn csv_has_a_line_for_each_load_and_a_plot_is_drawn() {
    let _turn = turn();
    let server = Fake::start(Manner { delay: Duration::from_millis(1), ..Manner::default() });
    let folder = Folder::new("bench");
    let (csv, svg) = (folder.path().join("a.csv"), folder.path().join("a.svg"));
    let line = format!(
        "-m m -u {} --concurrency-range=1:4:x2 --request-count=50 --format=csv -f {} --plot={}",
        server.address,
        csv.display(),
        svg.display()
    );
    let output = bench(&line);
    assert!(output.status.success() && output.stdout.is_empty(), "{}", text(&output));
    let read = fs::read_to_string(csv).unwrap();
    let rows: Vec<Vec<&str>> = read.lines().map(|line| line.split(',').collect()).collect();
    let column = |name: &str| rows[0].iter().position(|have| *have == name).unwrap();
    let loads: Vec<_> = rows[1..].iter().map(|row| row[column("concurrency")]).collect();
    assert_eq!(loads, ["1", "2", "4"]);
    for row in &rows[1..] {
        assert_eq!((row.len(), row[column("succeeded")]), (rows[0].len(), "50"));
        assert!(row[column("latency_p99_us")].parse::<f64>().unwrap() > 1000.0);
    }
    let drawing = fs::read_to_string(svg).unwrap();
    assert!(drawing.starts_with("<svg ") && drawing.matches("<polyline").count() == 5);
}

#[test]
fn a_server_compared_with_itself_is_as_fast_as_itself() {
    let _turn = turn();
    let server = Fake::start(Manner { delay: Duration::from_millis(5), ..Manner::default() });
    let address = server.address;
    let line = format!("-m m -u {address} --compare={address} --concurrency=4 -p 150 --rounds=4 --warm-up=50");
    let report = &json(&line)[0];
    for figure in ["throughput", "latency_mean", "latency_p50"] {
        let ratio = &report["ratios"][figure];
        assert_eq!(ratio["rounds"], 4);
        // An interval of 95 % excludes 1 in one run of 20, and then by little.
        let (low, high) = (number(ratio, "low"), number(ratio, "high"));
        assert!(low < 1.05 && high > 0.95 && low < high, "{figure}: {ratio}");
    }
    // Against a server that takes twice as long, it excludes 1 and includes 2.
    let slow = Fake::start(Manner { delay: Duration::from_millis(10), ..Manner::default() });
    let line = format!("-m m -u {address} --compare={} --concurrency=4 -p 200 --rounds=4 --warm-up=50", slow.address);
    let output = bench(&line);
    assert!(output.status.success() && text(&output).contains("A B B A"), "{}", text(&output));
    let ratio = &json(&line)[0]["ratios"]["latency_p50"];
    let (low, mean) = (number(ratio, "low"), number(ratio, "mean"));
    assert!(low > 1.2 && (1.6..2.4).contains(&mean), "{ratio}");
}

/// Successful requests, by Deuteron's count.
fn served(server: &Server, model: &str) -> u64 {
    let metrics = String::from_utf8(http::get(server.metrics(), "/metrics").unwrap().body).unwrap();
    let prefix = format!("nv_inference_request_success{{model=\"{model}\",version=\"1\"}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&prefix)).unwrap().parse().unwrap()
}

#[test]
fn deuteron_counts_what_the_client_counts_over_both_protocols() {
    let _turn = turn();
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    let (rest, grpc, pid) = (server.http(), server.grpc(), server.id());
    let mut before = 0;
    for line in [
        format!("-u {rest} --concurrency=4"),
        format!("-u {rest} --concurrency=4 --json -b 3"),
        // A rate high enough to cost the server CPU ticks of 10 ms.
        format!("-u {rest} --rate=4000 -x 1"),
        format!("-i grpc -u {grpc} --concurrency=4"),
        format!("-i grpc -u {grpc} --concurrency=200 --connections=1"),
        format!("-i grpc -u {grpc} --rate=4000 --connections=2 -b 8"),
        format!("-i grpc -u {rest} --concurrency=6 --threads=2 --count-windows --measurement-request-count=3000"),
    ] {
        let line = format!("-m identity_fp32 --shape=INPUT0:16 {line} --pid={pid} -p 200 --warm-up=100 --max-trials=3");
        let report = &json(&line)[0];
        let after = served(&server, "identity_fp32");
        assert_eq!(report["total_succeeded"].as_u64().unwrap(), after - before, "{line}: {report}");
        assert_eq!(report["errors"], Value::Array(vec![]), "{line}: {report}");
        before = after;
        // Its own durations are within the client's.
        let rows = number(report, "batch_size");
        let inferences = number(report, "server_inferences") / rows;
        assert!((inferences / number(report, "succeeded") - 1.0).abs() < 0.25, "{line}: {report}");
        assert!(number(report, "server_request_us") < number(report, "latency_mean_us"), "{line}: {report}");
        assert!(number(report, "cpu_per_request_us") > 0.0 && number(report, "rss_bytes") > 1e6, "{line}: {report}");
    }
}

#[test]
fn inputs_come_from_files_of_each_kind() {
    let _turn = turn();
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &[]);
    let files = Folder::new("inputs");
    let path = |name: &str, bytes: &[u8]| {
        let path = files.path().join(name);
        fs::write(&path, bytes).unwrap();
        path.display().to_string()
    };
    let several = path("several.json", br#"{"data":[{"INPUT0":[1,2,3]},{"INPUT0":{"b64":"AACAPwAAAEAAAEBA"}}]}"#);
    let strings = path("strings.json", br#"{"data":[{"INPUT0":{"content":["a","bcd"],"shape":[2]}}]}"#);
    path("INPUT0", &[0; 12]);
    let raw = files.path().display().to_string();
    for (protocol, address) in [("http", server.http()), ("grpc", server.grpc())] {
        for (model, input) in [
            ("identity_fp32", format!("--input-data={several} --shape=INPUT0:3 -b 2")),
            ("identity_fp32", format!("--input-data={raw} --shape=INPUT0:3")),
            ("identity_bytes", format!("--input-data={strings}")),
            ("identity_bytes", "--string-data=xyz --shape=INPUT0:4".to_owned()),
            ("identity_fp16", "--input-data=zero --shape=INPUT0:4".to_owned()),
            ("identity_bool", "--shape=INPUT0:4 --request-parameter=note:hello:string".to_owned()),
        ] {
            let line = format!("-m {model} -i {protocol} -u {address} {input} --request-count=20 --concurrency=2");
            let report = &json(&line)[0];
            assert_eq!((&report["succeeded"], &report["failed"]), (&20.into(), &0.into()), "{line}: {report}");
        }
    }
    let output = bench(&format!("-m identity_fp32 -u {} --request-count=1", server.http()));
    assert!(text(&output).contains("variable shape [-1]"), "{}", text(&output));
}

#[test]
fn the_search_finds_the_rate_that_a_model_can_serve() {
    let _turn = turn();
    let folder = Folder::new("repository");
    fs::create_dir_all(folder.path().join("slow/1")).unwrap();
    let config = "backend: \"identity\"\nmax_batch_size: 0\n\
        input { name: \"INPUT0\" data_type: TYPE_FP32 dims: [ 1 ] }\n\
        output { name: \"OUTPUT0\" data_type: TYPE_FP32 dims: [ 1 ] }\n\
        instance_group { count: 1 kind: KIND_CPU }\n\
        parameters { key: \"execute_delay_ms\" value { string_value: \"2\" } }\n";
    fs::write(folder.path().join("slow/config.pbtxt"), config).unwrap();
    let server = Server::deuteron(folder.path(), &[]);
    let line = "--search-slo=p99=150ms --search-range=100:4000 --search-precision=20 -p 500";
    let output = bench(&format!("-m slow -u {} {line}", server.http()));
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains(" met\n") && text.contains("missed: "), "every step is printed: {text}");
    let found = text.split("meets the goal: ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    let found: f64 = found.parse().unwrap();
    // One instance of 2 ms serves 500 a second; a Poisson load queues before that.
    assert!((125.0..=510.0).contains(&found), "{text}");
}

#[test]
fn triton_is_measured_as_well() {
    let folder = repository::write(Flavour::Triton);
    let Some(server) = crate::support::triton::start(folder.path()) else { return };
    for (address, line) in [
        (server.http(), "-i http --concurrency=8"),
        (server.http(), "-i http --concurrency=8 --json -b 2"),
        (server.http(), "-i http --rate=200"),
        (server.grpc(), "-i grpc --concurrency=8 --connections=2"),
        (server.grpc(), "-i grpc --rate=200"),
    ] {
        let pid = server.id();
        let line = format!("-m identity_fp32 --shape=INPUT0:16 -u {address} {line} --pid={pid} -p 500 --max-trials=3");
        let before = statistics(&server);
        let report = &json(&line)[0];
        assert_eq!(report["total_failed"], 0, "{line}: {report}");
        assert_eq!(report["total_succeeded"].as_u64().unwrap(), statistics(&server) - before, "{line}: {report}");
        assert!(number(report, "throughput") > 50.0, "{line}: {report}");
        assert!(number(report, "server_compute_infer_us") > 0.0, "{line}: {report}");
        assert!(number(report, "cpu_per_request_us") > 0.0, "{line}: {report}");
    }
}

/// Successful requests, by Triton's count.
fn statistics(server: &Server) -> u64 {
    let answer = http::get(server.http(), "/v2/models/identity_fp32/stats").unwrap();
    let all: Value = serde_json::from_slice(&answer.body).unwrap();
    all["model_stats"][0]["inference_stats"]["success"]["count"].as_u64().unwrap()
}
