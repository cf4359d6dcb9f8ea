//! Sequences on the server as a process: sums that belong to one id alone, slots and backlog, the
//! ends of a sequence, and states that the server keeps for a model.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::folder::Folder;
use crate::support::h2;
use crate::support::http::{self, Response};
use crate::support::protobuf::Message;
use crate::support::server::Server;
use crate::support::wait::wait_until;
use crate::support::{metrics, onnx, repository};

const CONTROLS: &str =
    "control_input [ { name: 'START' control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } },
    { name: 'READY' control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } }";

/// A model `m` that adds up, by row of its batches.
fn by_row(rows_max: u32, instances: u32, more: &str) -> Folder {
    model("sequence", rows_max, instances, &format!("{CONTROLS} ] {more}"))
}

/// A model `m` that adds up, by id; its last answer adds the id.
fn by_id(rows_max: u32, datatype: &str, more: &str) -> Folder {
    let controls = format!(
        "{CONTROLS}, {{ name: 'END' control {{ kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] }} }},
        {{ name: 'CORRID' control {{ kind: CONTROL_SEQUENCE_CORRID data_type: {datatype} }} }} ]"
    );
    model("dyna_sequence", rows_max, 1, &format!("{controls} {more}"))
}

fn model(backend: &str, rows_max: u32, instances: u32, sequence: &str) -> Folder {
    let folder = Folder::new("sequences");
    let config = format!(
        "backend: '{backend}' max_batch_size: {rows_max} instance_group {{ count: {instances} }}
        input {{ name: 'INPUT' data_type: TYPE_INT32 dims: 1 }} output {{ name: 'OUTPUT' data_type: TYPE_INT32 dims: 1 }}
        sequence_batching {{ {sequence} }}"
    );
    repository::add(folder.path(), "m", &config, None);
    folder
}

fn infer(server: &Server, parameters: &str, shape: &str, value: i64) -> Response {
    let body = format!(
        r#"{{"parameters":{{{parameters}}},"inputs":[{{"name":"INPUT","shape":{shape},"datatype":"INT32","data":[{value}]}}]}}"#
    );
    http::exchange(server.http(), &http::request("POST", "/v2/models/m/infer", &[], body.as_bytes())).unwrap()
}

fn text(response: &Response) -> String {
    String::from_utf8(response.body.clone()).unwrap()
}

/// The one number of an answer, or the error.
fn answer(response: &Response) -> Result<i64, String> {
    let text = text(response);
    match text.split_once("\"data\":[") {
        Some((_, rest)) if response.status == 200 => Ok(rest.split(']').next().unwrap().parse().unwrap()),
        _ => Err(format!("{} {text}", response.status)),
    }
}

/// Sends one request: `^` begins, `$` ends.
fn send(server: &Server, id: &str, flags: &str, value: i64) -> Result<i64, String> {
    let parameters = format!(
        r#""sequence_id":{id},"sequence_start":{},"sequence_end":{}"#,
        flags.contains('^'),
        flags.contains('$')
    );
    answer(&infer(server, &parameters, "[1,1]", value))
}

fn unstarted(id: &str) -> Result<i64, String> {
    Err(format!(
        "400 {{\"error\":\"inference request for sequence {id} to model 'm' must specify the START flag on the first \
         request of the sequence\"}}"
    ))
}

fn ended(server: &Server, reason: &str) -> u64 {
    let name = format!("deuteron_sequences_ended_total{{model=\"m\",reason=\"{reason}\",version=\"1\"}}");
    metrics::metric(server.metrics(), &name)
}

fn sequences(server: &Server, state: &str) -> u64 {
    metrics::metric(server.metrics(), &format!("deuteron_sequences{{model=\"m\",state=\"{state}\",version=\"1\"}}"))
}

/// Runs many clients with more sequences than slots, each of which must get exactly its own sum.
fn hold_sums(server: &Server, id: impl Fn(usize) -> String + Sync, last: impl Fn(usize) -> i64 + Sync) {
    thread::scope(|scope| {
        for client in 0..16_usize {
            let (id, last) = (&id, &last);
            scope.spawn(move || {
                for round in 0..6 {
                    let (name, mut sum) = (id(client), 0);
                    for place in 0..8 {
                        let value = (client * 1_000 + round * 10 + place) as i64;
                        let flags = ["^", "", "", "", "", "", "", "$"][place];
                        sum += value;
                        let want = sum + if place == 7 { last(client) } else { 0 };
                        assert_eq!(send(server, &name, flags, value), Ok(want), "client {client}, {round} {place}");
                    }
                }
            });
        }
    });
    wait_until("the metrics tell of all", || ended(server, "end") == 96 && sequences(server, "active") == 0);
}

#[test]
fn every_sequence_has_its_own_sum_in_the_slots_of_two_instances() {
    let folder = by_row(2, 2, "");
    let server = Server::deuteron(folder.path(), &["--shards=2"]);
    hold_sums(&server, |client| (client + 1).to_string(), |_| 0);
}

#[test]
fn the_oldest_strategy_keeps_sums_by_ids_that_are_strings() {
    let folder = by_id(4, "TYPE_STRING", "oldest { max_candidate_sequences: 5 max_queue_delay_microseconds: 500 }");
    let server = Server::deuteron(folder.path(), &["--shards=2"]);
    hold_sums(&server, |client| format!("\"{}\"", client + 100), |client| client as i64 + 100);
}

#[test]
fn a_batch_that_waits_for_its_slots_and_a_model_without_a_batch_axis_keep_sums_too() {
    let delay = "direct { max_queue_delay_microseconds: 2000 minimum_slot_utilization: 0.5 }";
    let server = Server::deuteron(by_row(4, 2, delay).path(), &["--shards=1"]);
    hold_sums(&server, |client| (client + 1).to_string(), |_| 0);
    let folder = by_id(0, "TYPE_INT32", "oldest { max_candidate_sequences: 4 }");
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    let send = |flags: &str, value| {
        let (start, end) = (flags.contains('^'), flags.contains('$'));
        let parameters = format!(r#""sequence_id":7,"sequence_start":{start},"sequence_end":{end}"#);
        answer(&infer(&server, &parameters, "[1]", value))
    };
    assert_eq!([send("^", 1), send("", 2), send("$", 3)], [Ok(1), Ok(3), Ok(13)]);
}

#[test]
fn what_is_no_request_of_a_sequence_is_refused_in_tritons_words() {
    let server = Server::deuteron(by_id(4, "TYPE_UINT64", "").path(), &["--shards=1"]);
    let refused = |parameters: &str, shape: &str, want: &str| {
        let response = infer(&server, parameters, shape, 1);
        assert_eq!((response.status, text(&response)), (400, format!("{{\"error\":\"{want}\"}}")), "{parameters}");
    };
    let no_id = "inference request to model 'm' must specify a non-zero or non-empty correlation ID";
    refused("", "[1,1]", no_id);
    refused(r#""sequence_id":0,"sequence_start":true"#, "[1,1]", no_id);
    refused(r#""sequence_id":"","sequence_start":true"#, "[1,1]", no_id);
    refused(
        r#""sequence_id":"a","sequence_start":true"#,
        "[1,1]",
        "sequence batching control 'CORRID' data-type is 'BYTES', but model 'm' expects 'UINT64'",
    );
    let body = r#"{"parameters":{"sequence_id":1,"sequence_start":true},"inputs":[{"name":"INPUT","shape":[2,1],"datatype":"INT32","data":[1,2]}]}"#;
    let response = http::post(server.http(), "/v2/models/m/infer", body.as_bytes()).unwrap();
    let want = "inference request to model 'm' must specify batch-size 1 due to requirements of sequence batcher";
    assert_eq!((response.status, text(&response)), (400, format!("{{\"error\":\"{want}\"}}")));
    assert_eq!(send(&server, "9", "", 1), unstarted("9"));
    assert_eq!(send(&server, "9", "$", 1), unstarted("9"));
    let metadata = text(&http::get(server.http(), "/v2").unwrap());
    assert!(metadata.contains(r#""sequence","sequence(string_id)""#), "{metadata}");
    // Control inputs belong to the server: they are neither shown nor accepted.
    let model = text(&http::get(server.http(), "/v2/models/m").unwrap());
    assert!(!model.contains("START"), "{model}");
}

#[test]
fn a_sequence_that_begins_again_is_idle_or_is_left_ends_and_the_metrics_say_how() {
    let server = Server::deuteron(by_row(2, 1, "max_sequence_idle_microseconds: 2000000").path(), &["--shards=1"]);
    assert_eq!([send(&server, "1", "^", 5), send(&server, "1", "^", 7)], [Ok(5), Ok(7)]);
    let begun = Instant::now();
    assert_eq!(send(&server, "1", "", 1), Ok(8));
    assert_eq!(ended(&server, "restart"), 1);
    wait_until("it is idle", || ended(&server, "idle") == 1);
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(2), "{took:?}");
    assert_eq!(send(&server, "1", "", 1), unstarted("1"));
    assert_eq!(sequences(&server, "active"), 0);
}

#[test]
fn a_sequence_waits_for_a_slot_no_longer_than_its_timeout_and_no_longer_than_its_client() {
    let server = Server::deuteron(by_row(1, 1, "max_sequence_idle_microseconds: 60000000").path(), &["--shards=1"]);
    assert_eq!(send(&server, "1", "^", 5), Ok(5));
    let start = Instant::now();
    let parameters = r#""sequence_id":2,"sequence_start":true,"timeout":50000"#;
    let late = answer(&infer(&server, parameters, "[1,1]", 1));
    assert_eq!(late, Err("503 {\"error\":\"timeout of the corresponding sequence has been expired\"}".to_owned()));
    assert!(start.elapsed() >= Duration::from_millis(50) && start.elapsed() < Duration::from_secs(15));
    assert_eq!((ended(&server, "timeout"), sequences(&server, "backlog")), (1, 0));
    // A client leaves while its sequence waits: that one takes no free slot later.
    let body = r#"{"parameters":{"sequence_id":3,"sequence_start":true},"inputs":[{"name":"INPUT","shape":[1,1],"datatype":"INT32","data":[1]}]}"#;
    let mut client = http::Connection::open(server.http()).unwrap();
    client.send(&http::request("POST", "/v2/models/m/infer", &[], body.as_bytes())).unwrap();
    wait_until("it waits", || sequences(&server, "backlog") == 1);
    let of_model = |name: &str, more: &str| {
        metrics::metric(server.metrics(), &format!("nv_inference_{name}{{model=\"m\",{more}version=\"1\"}}"))
    };
    thread::scope(|scope| {
        let second = scope.spawn(|| send(&server, "3", "", 1));
        wait_until("both wait", || of_model("pending_request_count", "") == 2);
        drop(client);
        let cancelled = second.join().unwrap().unwrap_err();
        assert!(cancelled.contains("a request before this one was cancelled"), "{cancelled}");
    });
    wait_until("both are counted", || of_model("request_failure", "reason=\"CANCELED\",") == 2);
    assert_eq!(ended(&server, "cancel"), 1);
    assert_eq!((sequences(&server, "backlog"), sequences(&server, "active")), (0, 1));
    thread::scope(|scope| {
        let next = scope.spawn(|| send(&server, "4", "^$", 40));
        wait_until("it waits", || sequences(&server, "backlog") == 1);
        assert_eq!(send(&server, "1", "$", 1), Ok(6));
        assert_eq!(next.join().unwrap(), Ok(40));
    });
}

#[test]
fn the_server_keeps_the_state_of_a_model_and_never_shows_it_to_another() {
    let folder = Folder::new("sequences");
    let config = "platform: 'onnxruntime_onnx' max_batch_size: 4 instance_group { count: 2 }
        input { name: 'INPUT0' data_type: TYPE_INT32 dims: 16 } output { name: 'OUTPUT0' data_type: TYPE_INT32 dims: 16 }
        sequence_batching { oldest { max_candidate_sequences: 3 } state { input_name: 'INPUT1' output_name: 'OUTPUT0'
        data_type: TYPE_INT32 dims: 16 } }";
    repository::add(folder.path(), "m", config, Some(&onnx::addsub()));
    let server = Server::deuteron(folder.path(), &["--shards=2"]);
    thread::scope(|scope| {
        for client in 1..=12_i64 {
            let server = &server;
            scope.spawn(move || {
                for _ in 0..4 {
                    let mut sum = 0;
                    for place in 0..6 {
                        sum += client * 100 + place;
                        let (start, end) = (place == 0, place == 5);
                        let value = client * 100 + place;
                        let body = format!(
                            r#"{{"parameters":{{"sequence_id":{client},"sequence_start":{start},"sequence_end":{end}}},"inputs":[{{"name":"INPUT0","shape":[1,16],"datatype":"INT32","data":[{value},0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]}}]}}"#
                        );
                        let response = http::post(server.http(), "/v2/models/m/infer", body.as_bytes()).unwrap();
                        let want = format!("\"data\":[{sum},0,");
                        assert!(text(&response).contains(&want), "{want}: {}", text(&response));
                    }
                }
            });
        }
    });
    let shown = text(&http::get(server.http(), "/v2/models/m").unwrap());
    assert!(!shown.contains("INPUT1"), "{shown}");
}

#[test]
fn ten_thousand_idle_sequences_cost_no_processor_time_and_little_memory() {
    const COUNT: usize = 10_000;
    let more = "max_sequence_idle_microseconds: 600000000 oldest { max_candidate_sequences: 10000 }";
    let server = Server::deuteron(by_id(16, "TYPE_UINT64", more).path(), &["--shards=1"]);
    assert_eq!(send(&server, "1", "^", 1), Ok(1));
    let before = server.resident();
    thread::scope(|scope| {
        for lane in 0..8 {
            let server = &server;
            scope.spawn(move || {
                let mut client = http::Connection::open(server.http()).unwrap();
                for id in (1 + lane..=COUNT).step_by(8) {
                    let body = format!(
                        r#"{{"parameters":{{"sequence_id":{id},"sequence_start":true}},"inputs":[{{"name":"INPUT","shape":[1,1],"datatype":"INT32","data":[1]}}]}}"#
                    );
                    client.send(&http::request("POST", "/v2/models/m/infer", &[], body.as_bytes())).unwrap();
                    assert_eq!(client.receive().unwrap().status, 200);
                }
            });
        }
    });
    assert_eq!(sequences(&server, "active"), COUNT as u64);
    let each = server.resident().saturating_sub(before) / COUNT;
    thread::sleep(Duration::from_millis(200));
    let (ticks, start) = (ticks(&server), Instant::now());
    thread::sleep(Duration::from_secs(2));
    let spent = self::ticks(&server) - ticks;
    println!("{each} bytes for each sequence, {spent} ticks in {:?}", start.elapsed());
    assert!(spent <= 2, "{spent} ticks of the processor in two seconds");
    assert!(each <= 2_048, "{each} bytes for each sequence");
}

#[test]
fn an_unload_ends_all_sequences_and_the_log_says_how_many() {
    let folder = by_row(2, 1, "max_sequence_idle_microseconds: 60000000");
    let server = Server::deuteron(folder.path(), &["--shards=2", "--model-control-mode=explicit", "--load-model=m"]);
    let order = |what: &str| {
        let response = http::post(server.http(), &format!("/v2/repository/models/m/{what}"), b"").unwrap();
        assert_eq!(response.status, 200, "{what}: {}", text(&response));
    };
    assert_eq!([send(&server, "1", "^", 5), send(&server, "2", "^", 7)], [Ok(5), Ok(7)]);
    thread::scope(|scope| {
        let waits = scope.spawn(|| send(&server, "3", "^", 1));
        wait_until("it waits", || sequences(&server, "backlog") == 1);
        order("unload");
        let refused = waits.join().unwrap().unwrap_err();
        assert!(refused.starts_with("503 ") && refused.contains("Server is stopping"), "{refused}");
    });
    wait_until("it is freed", || server.log().contains("freed 'm' version 1; 3 sequences had not ended"));
    let gone = send(&server, "1", "", 5).unwrap_err();
    assert!(gone.starts_with("404 ") && gone.contains("'m' has no available versions"), "{gone}");
    order("load");
    assert_eq!(send(&server, "1", "", 5), unstarted("1"));
    assert_eq!([send(&server, "1", "^", 5), send(&server, "1", "$", 5)], [Ok(5), Ok(10)]);
}

#[test]
fn an_initial_state_that_changes_reloads_its_model() {
    let folder = Folder::new("sequences");
    let config = "platform: 'onnxruntime_onnx' max_batch_size: 4
        input { name: 'INPUT0' data_type: TYPE_INT32 dims: 16 } output { name: 'OUTPUT0' data_type: TYPE_INT32 dims: 16 }
        sequence_batching { state { input_name: 'INPUT1' output_name: 'OUTPUT0' data_type: TYPE_INT32 dims: 16
        initial_state { name: 'i' data_type: TYPE_INT32 dims: 16 data_file: 'begin' } } }";
    repository::add(folder.path(), "m", config, Some(&onnx::addsub()));
    let begin = |value: i32| {
        std::fs::create_dir_all(folder.path().join("m/initial_state")).unwrap();
        std::fs::write(folder.path().join("m/initial_state/begin"), value.to_le_bytes().repeat(16)).unwrap();
    };
    begin(100);
    let server = Server::deuteron(folder.path(), &["--model-control-mode=poll", "--repository-poll-secs=1"]);
    let first = || {
        let body = r#"{"parameters":{"sequence_id":1,"sequence_start":true,"sequence_end":true},"inputs":[{"name":"INPUT0","shape":[1,16],"datatype":"INT32","data":[1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]}]}"#;
        text(&http::post(server.http(), "/v2/models/m/infer", body.as_bytes()).unwrap())
    };
    assert!(first().contains("\"data\":[101,100,"), "{}", first());
    begin(700);
    wait_until("it is loaded again", || first().contains("\"data\":[701,700,"));
}

/// A model `m` that runs a request as often as its input says, and answers with the number of runs.
fn iterative(rows_max: u32, more: &str, sequence: &str) -> Folder {
    let folder = Folder::new("iterative");
    let config = format!(
        "backend: 'iterative_sequence' max_batch_size: {rows_max} {more}
        input {{ name: 'INPUT' data_type: TYPE_INT32 dims: 1 }} output {{ name: 'OUTPUT' data_type: TYPE_INT32 dims: 1 }}
        {sequence}"
    );
    repository::add(folder.path(), "m", &config, None);
    folder
}

#[test]
fn requests_of_iterative_sequences_run_again_and_again_in_batches_that_others_join() {
    for sequence in ["direct { }", "oldest { max_candidate_sequences: 3 preferred_batch_size: [ 2 ] }"] {
        let sequence = format!("sequence_batching {{ iterative_sequence: true {sequence} }}");
        let folder = iterative(4, "instance_group { count: 2 }", &sequence);
        let server = Server::deuteron(folder.path(), &["--shards=2"]);
        thread::scope(|scope| {
            for client in 0..12_i64 {
                let server = &server;
                scope.spawn(move || {
                    for round in 0..10 {
                        let wanted = 1 + (client * 7 + round * 3) % 20;
                        let own = if client % 3 == 0 {
                            send(server, &(client + 1).to_string(), "^", wanted)
                        } else {
                            answer(&infer(server, "", "[1,1]", wanted))
                        };
                        assert_eq!(own, Ok(wanted), "client {client}, round {round}");
                    }
                });
            }
        });
        wait_until("all have ended", || ended(&server, "model") == 120 && sequences(&server, "active") == 0);
        let runs: i64 = (0..12).flat_map(|client| (0..10).map(move |round| 1 + (client * 7 + round * 3) % 20)).sum();
        let batches = metrics::metric(server.metrics(), "nv_inference_exec_count{model=\"m\",version=\"1\"}");
        assert!((batches as i64) < runs, "{batches} batches of {runs} runs");
        let count = metrics::metric(server.metrics(), "nv_inference_count{model=\"m\",version=\"1\"}");
        assert_eq!(count, 120, "a request is one inference, however often it ran");
    }
}

#[test]
fn an_iterative_sequence_outlives_its_idle_time_and_ends_with_its_client() {
    let delay = "parameters { key: 'execute_delay_ms' value { string_value: '40' } }";
    let sequence = "sequence_batching { iterative_sequence: true max_sequence_idle_microseconds: 10000 }";
    let server = Server::deuteron(iterative(1, delay, sequence).path(), &["--shards=1"]);
    assert_eq!(answer(&infer(&server, "", "[1,1]", 4)), Ok(4));
    let body = r#"{"inputs":[{"name":"INPUT","shape":[1,1],"datatype":"INT32","data":[1000000]}]}"#;
    let mut client = http::Connection::open(server.http()).unwrap();
    client.send(&http::request("POST", "/v2/models/m/infer", &[], body.as_bytes())).unwrap();
    wait_until("it runs", || sequences(&server, "active") == 1);
    drop(client);
    wait_until("it has ended", || ended(&server, "cancel") == 1);
    // Its slot, the only one, is free for another sequence.
    assert_eq!(answer(&infer(&server, "", "[1,1]", 2)), Ok(2));
    wait_until("all are counted", || metrics::metric(server.metrics(), "deuteron_requests_in_flight") == 0);
    // A request that continues a sequence which no client may continue.
    assert_eq!(send(&server, "5", "", 1), unstarted("5"));
}

#[test]
fn a_request_that_is_to_run_again_where_it_may_not_is_refused_in_tritons_words() {
    let refused = "400 {\"error\":\"Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is \
                   not configured to handle such a flag\"}";
    for (sequence, parameters) in [
        ("sequence_batching { direct { } }", r#""sequence_id":1,"sequence_start":true"#),
        ("dynamic_batching { }", ""),
        ("", ""),
        (
            "sequence_batching { iterative_sequence: true }",
            r#""sequence_id":1,"sequence_start":true,"sequence_end":true"#,
        ),
    ] {
        let server = Server::deuteron(iterative(4, "", sequence).path(), &["--shards=1"]);
        assert_eq!(answer(&infer(&server, parameters, "[1,1]", 2)), Err(refused.to_owned()), "{sequence}");
        assert_eq!(answer(&infer(&server, parameters, "[1,1]", 1)), Ok(1), "{sequence}");
    }
}

/// Hundredths of a second that the process ran.
fn ticks(server: &Server) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/stat", server.id())).unwrap();
    let fields: Vec<_> = text.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn the_sequence_that_balancers_are_told_is_the_one_of_the_request() {
    let folder = by_row(2, 1, "");
    let server = Server::deuteron(folder.path(), &[]);
    let ask = |path: &str, field: &str, body: &str| {
        let fields = [("Sequence-Id", field)];
        answer(&http::exchange(server.http(), &http::request("POST", path, &fields, body.as_bytes())).unwrap())
    };
    let tensor = r#""inputs":[{"name":"INPUT","shape":[1,1],"datatype":"INT32","data":[5]}]"#;
    let body = |id: &str| format!(r#"{{"parameters":{{"sequence_id":{id},"sequence_start":true}},{tensor}}}"#);
    let infer = |field: &str, id: &str| ask("/v2/models/m/infer", field, &body(id));
    let differs = |field: &str, id: &str| {
        let why = format!(
            "the header 'sequence-id' is '{field}' and the parameter 'sequence_id' is '{id}': expected the same sequence"
        );
        Err(format!("400 {{\"error\":\"{why}\"}}"))
    };
    assert_eq!(infer("7", "7"), Ok(5));
    assert_eq!(infer("8", "7"), differs("8", "7"));
    assert_eq!(infer("07", "7"), differs("07", "7"), "a balancer would take it for another one");
    assert_eq!(infer("", "7"), differs("", "7"));
    let generated = |field| ask("/v2/models/m/generate", field, r#"{"INPUT":1,"sequence_id":7}"#);
    assert_eq!(generated("9"), differs("9", "7"));

    let call = |field: &str, id: Message| {
        let parameter = Message::new().bytes(1, "sequence_id").message(2, id);
        let start = Message::new().bytes(1, "sequence_start").message(2, Message::new().int(1, 1));
        let input = Message::new().bytes(1, "INPUT").bytes(2, "INT32").packed(3, &[1, 1]);
        let request = Message::new().bytes(1, "m").message(4, parameter).message(4, start).message(5, input);
        let request = request.bytes(7, 5_i32.to_le_bytes()).into_bytes();
        let method = "/inference.GRPCInferenceService/ModelInfer";
        let trailers = h2::call(server.grpc(), method, &[("sequence-id", field)], &request);
        (trailers["grpc-status"].clone(), trailers.get("grpc-message").cloned().unwrap_or_default())
    };
    let number = || Message::new().int(2, 7);
    assert_eq!(call("7", number()), ("0".to_owned(), String::new()));
    let (status, why) = call("8", number());
    assert_eq!(status, "3");
    assert!(why.starts_with("the header 'sequence-id' is '8' and the parameter 'sequence_id' is '7'"), "{why}");

    // A sequence that goes on elsewhere is counted: the balancer in front splits sequences.
    let unknown = || metrics::metric(server.metrics(), "deuteron_sequences_unknown_total{model=\"m\",version=\"1\"}");
    assert_eq!((unknown(), send(&server, "9", "", 1)), (0, unstarted("9")));
    assert_eq!(unknown(), 1);
}
