//! Models that come and go while the server runs: explicit control, polling, reload under load, unload while busy,
//! readiness, memory over many rounds.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::folder::Folder;
use crate::support::gate::Gate;
use crate::support::over::Over;
use crate::support::server::Server;
use crate::support::wait::wait_until;
use crate::support::{http, repository};
use serde_json::{Value, json};

const TENSORS: &str = "max_batch_size: 8\ninput [{ name: \"INPUT0\" data_type: TYPE_FP32 dims: [ -1 ] }]\n\
                       output [{ name: \"OUTPUT0\" data_type: TYPE_FP32 dims: [ -1 ] }]\n";
const BODY: &[u8] = br#"{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[1.5]}]}"#;
/// Time limit for a change to show.
const CHANGE_MAX: Duration = Duration::from_secs(20);

fn identity(repository: &Path, name: &str, versions: &[&str], more: &str) {
    let model = repository.join(name);
    for version in versions {
        fs::create_dir_all(model.join(version)).unwrap();
    }
    fs::write(model.join("config.pbtxt"), format!("backend: \"identity\"\n{TENSORS}{more}")).unwrap();
}

fn parameter(key: &str, value: &str) -> String {
    format!("parameters {{ key: \"{key}\" value {{ string_value: \"{value}\" }} }}\n")
}

fn post(server: &Server, path: &str, body: &str) -> (u16, String) {
    let answer = http::post(server.http(), path, body.as_bytes()).unwrap();
    (answer.status, String::from_utf8(answer.body).unwrap())
}

fn get(server: &Server, path: &str) -> (u16, String) {
    let answer = http::get(server.http(), path).unwrap();
    (answer.status, String::from_utf8(answer.body).unwrap())
}

fn load(server: &Server, name: &str) -> (u16, String) {
    post(server, &format!("/v2/repository/models/{name}/load"), "")
}

fn unload(server: &Server, name: &str) -> (u16, String) {
    post(server, &format!("/v2/repository/models/{name}/unload"), "")
}

fn infer(server: &Server, path: &str) -> (u16, String) {
    let answer = http::post(server.http(), &format!("/v2/models/{path}/infer"), BODY).unwrap();
    (answer.status, String::from_utf8(answer.body).unwrap())
}

/// `name version state reason` of each line.
fn index(server: &Server) -> String {
    let (status, text) = post(server, "/v2/repository/index", "");
    assert_eq!(status, 200, "{text}");
    let lines: Vec<Value> = serde_json::from_str(&text).unwrap();
    let line = |line: &Value| {
        let word = |key: &str| line.get(key).and_then(Value::as_str).map(|word| format!(" {word}")).unwrap_or_default();
        format!("{}{}{}{}", word("name").trim_start(), word("version"), word("state"), word("reason"))
    };
    lines.iter().map(line).collect::<Vec<_>>().join("; ")
}

fn wait_index(server: &Server, want: &str) {
    let start = Instant::now();
    let mut got = index(server);
    while got != want {
        assert!(start.elapsed() < CHANGE_MAX, "the index is {got:?}, not {want:?}\n{}", server.log());
        thread::sleep(Duration::from_millis(10));
        got = index(server);
    }
}

fn metric(server: &Server, name: &str) -> u64 {
    crate::support::metrics::metric(server.metrics(), name)
}

const EXPLICIT: &str = "--model-control-mode=explicit";

#[test]
fn a_model_is_called_as_its_directory_whatever_that_is() {
    let repository = Folder::new("names");
    identity(repository.path(), "nop_FP32_-1,-1 (é)", &["1"], "");
    let server = Server::deuteron(repository.path(), &[EXPLICIT]);
    let path = "nop_FP32_-1%2C-1%20(%C3%A9)";
    assert_eq!(load(&server, path), (200, String::new()));
    assert_eq!(infer(&server, path).0, 200);
    assert_eq!(get(&server, &format!("/v2/models/{path}/ready")).0, 200);
    assert_eq!(index(&server), "nop_FP32_-1,-1 (é) 1 READY");
    let metrics = String::from_utf8(http::get(server.metrics(), "/metrics").unwrap().body).unwrap();
    assert!(metrics.contains("nv_inference_count{model=\"nop_FP32_-1,-1 (é)\",version=\"1\"} 1\n"), "{metrics}");
    assert_eq!(unload(&server, path), (200, String::new()));
}

#[test]
fn clients_load_and_unload_what_they_want() {
    let repository = Folder::new("explicit");
    identity(repository.path(), "a", &["1"], "");
    identity(repository.path(), "b", &["1", "2"], "version_policy { all { } }\n");
    let server = Server::deuteron(repository.path(), &[EXPLICIT]);
    assert_eq!(index(&server), "a; b");
    assert_eq!(infer(&server, "a").0, 404);
    assert_eq!(load(&server, "a"), (200, String::new()));
    assert_eq!(load(&server, "b"), (200, String::new()));
    assert_eq!(index(&server), "a 1 READY; b 1 READY; b 2 READY");
    assert_eq!((infer(&server, "a").0, infer(&server, "b/versions/1").0), (200, 200));
    assert_eq!(post(&server, "/v2/repository/index", r#"{"ready":true}"#).0, 200);
    assert_eq!(unload(&server, "b"), (200, String::new()));
    wait_index(&server, "a 1 READY; b 1 UNAVAILABLE unloaded; b 2 UNAVAILABLE unloaded");
    let ready = post(&server, "/v2/repository/index", r#"{"ready":true}"#).1;
    assert_eq!(ready, r#"[{"name":"a","version":"1","state":"READY"}]"#);
    let error = |text: &str| format!("{{\"error\":\"{text}\"}}");
    let unknown = |rest: &str| error(&format!("Request for unknown model: 'b' {rest}"));
    assert_eq!(infer(&server, "b"), (404, unknown("has no available versions")));
    assert_eq!(infer(&server, "b/versions/2"), (503, unknown("version 2 is not at ready state")));
    assert_eq!(infer(&server, "b/versions/7"), (404, unknown("version 7 is not found")));
    assert_eq!(get(&server, "/v2/models/b/ready"), (503, r#"{"name":"b","ready":false}"#.to_owned()));
    assert_eq!(get(&server, "/v2/health/ready").0, 200, "what was unloaded on request is not missed");
    assert_eq!(load(&server, "b").0, 200);
    assert_eq!(infer(&server, "b/versions/2").0, 200);
    let absent = error("failed to load 'nope', failed to poll from model repository");
    assert_eq!(load(&server, "nope"), (404, absent));
    assert_eq!(unload(&server, "nope").0, 200, "as in Triton");
    let traversal = "invalid model name '..', model name must not contain path traversal characters";
    assert_eq!(load(&server, ".."), (400, error(traversal)));
    let named = error("'repository_name' specification is not supported");
    assert_eq!(post(&server, "/v2/repository/r/models/a/load", ""), (501, named));
    let loads =
        |outcome: &str| metric(&server, &format!("deuteron_model_loads_total{{model=\"b\",outcome=\"{outcome}\"}}"));
    assert_eq!((loads("success"), loads("failure")), (2, 0));
    assert_eq!(load(&server, "b").0, 200);
    assert_eq!(loads("success"), 2, "nothing had changed");
}

#[test]
fn model_control_is_off_unless_it_is_asked_for() {
    let repository = Folder::new("off");
    identity(repository.path(), "a", &["1"], "");
    for flags in [&[][..], &["--model-control-mode=poll", "--repository-poll-secs=1"]] {
        let server = Server::deuteron(repository.path(), flags);
        let text = r#"{"error":"explicit model load / unload is not allowed if polling is enabled"}"#.to_owned();
        assert_eq!(load(&server, "a"), (503, text.clone()), "{flags:?}");
        assert_eq!(unload(&server, "a"), (503, text), "{flags:?}");
        assert_eq!(index(&server), "a 1 READY");
    }
}

#[test]
fn flags_name_what_is_loaded_at_start() {
    let repository = Folder::new("named");
    for name in ["a", "b", "c"] {
        identity(repository.path(), name, &["1"], "");
    }
    let server = Server::deuteron(repository.path(), &[EXPLICIT, "--load-model=a", "--load-model=c"]);
    assert_eq!(index(&server), "a 1 READY; b; c 1 READY");
    let server = Server::deuteron(repository.path(), &[EXPLICIT, "--load-model=*"]);
    assert_eq!(index(&server), "a 1 READY; b 1 READY; c 1 READY");
}

#[test]
fn what_cannot_be_loaded_at_start_ends_the_server() {
    let repository = Folder::new("absent");
    identity(repository.path(), "a", &["1"], "");
    let start = |more: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_deuteron"));
        command.arg("serve").arg(repository.path()).args([EXPLICIT, "--load-model=a", "--load-model=b"]);
        let output = command.args(["--http-port=0", "--grpc-port=0", "--metrics-port=0"]).args(more).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}");
        text
    };
    let reason = "creating server: Internal - failed to load all models";
    let text = start(&[]);
    assert!(text.contains("failed to poll model 'b': model not found in any model repository."), "{text}");
    assert!(text.contains(&format!("\nerror: {reason}")) && text.matches(reason).count() == 1, "said once: {text}");
    let text = start(&["--log-format=json"]);
    assert!(text.lines().all(|line| line.starts_with('{')) && text.matches(reason).count() == 1, "{text}");
    let file = repository.path().join(".log");
    let text = start(&[&format!("--log-file={}", file.display())]);
    assert_eq!(text.matches(reason).count(), 1, "{text}");
    assert_eq!(fs::read_to_string(file).unwrap().matches(reason).count(), 1, "the log has it too");
}

#[test]
fn a_name_in_two_repositories_is_served_by_neither() {
    let (one, two) = (Folder::new("one"), Folder::new("two"));
    identity(one.path(), "double", &["1"], "");
    identity(two.path(), "double", &["1"], "");
    identity(one.path(), "a", &["1"], "");
    identity(two.path(), "b", &["1"], "");
    let second = format!("--model-repository={}", two.path().display());
    let server = Server::deuteron(one.path(), &[EXPLICIT, "--load-model=a", "--load-model=b", &second]);
    assert_eq!(index(&server), "a 1 READY; b 1 READY; double UNAVAILABLE model appears in two or more repositories");
    let text = r#"{"error":"failed to load 'double', failed to poll from model repository"}"#.to_owned();
    assert_eq!(load(&server, "double"), (500, text));
    assert!(server.log().contains("not unique across all model repositories"), "{}", server.log());
}

#[test]
fn what_is_no_model_yet_takes_no_server_out_of_service() {
    let (one, two) = (Folder::new("one"), Folder::new("two"));
    identity(one.path(), "a", &["1"], "");
    identity(one.path(), "b", &["1"], "");
    fs::create_dir(one.path().join("notes")).unwrap();
    let second = format!("--model-repository={}", two.path().display());
    let poll = ["--model-control-mode=poll", "--repository-poll-secs=1", "--exit-on-error=false", &second];
    let server = Server::deuteron(one.path(), &poll);
    let notes = "notes UNAVAILABLE model 'notes' has no version directory; expected notes/1/model.onnx";
    assert_eq!(index(&server), format!("a 1 READY; b 1 READY; {notes}"));
    identity(two.path(), "b", &["1"], "");
    wait_until("the copy is met", || {
        index(&server).contains("b UNAVAILABLE model appears in two or more repositories")
    });
    assert_eq!(http::get(server.http(), "/v2/health/ready").unwrap().status, 200);
    fs::remove_dir_all(one.path().join("b")).unwrap();
    wait_until("the copy is served", || index(&server) == format!("a 1 READY; b 1 READY; {notes}"));
    // An existing but broken model still counts.
    fs::write(one.path().join("a/config.pbtxt"), "no configuration").unwrap();
    fs::remove_dir_all(one.path().join("notes")).unwrap();
    identity(one.path(), "c", &["1"], "");
    fs::write(one.path().join("c/config.pbtxt"), "no configuration").unwrap();
    wait_until("the broken one is met", || http::get(server.http(), "/v2/health/ready").unwrap().status == 503);
}

/// Sends requests at this rate until told to stop. Returns the counts of answers by version, in order of time.
fn load_on(server: &Server, path: &str, per_second: u64, is_over: &AtomicBool) -> Vec<String> {
    let mut versions = Vec::new();
    let mut connection = http::Connection::open(server.http()).unwrap();
    let request = http::request("POST", &format!("/v2/models/{path}/infer"), &[], BODY);
    let (start, mut count) = (Instant::now(), 0_u64);
    while !is_over.load(Ordering::Relaxed) {
        connection.send(&request).unwrap();
        let answer = connection.receive().unwrap();
        let body = String::from_utf8(answer.body).unwrap();
        assert!(answer.status == 200, "request {count}: {} {body}", answer.status);
        let json: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(json["outputs"][0]["data"][0], 1.5);
        versions.push(json["model_version"].as_str().unwrap().to_owned());
        count += 1;
        let due = Duration::from_micros(count * 1_000_000 / per_second);
        thread::sleep(due.saturating_sub(start.elapsed()));
    }
    versions
}

fn reloads_under_load(more: &str) {
    let repository = Folder::new("reload");
    identity(repository.path(), "m", &["1"], more);
    let server = Server::deuteron(repository.path(), &[EXPLICIT, "--load-model=m", "--shards=2"]);
    let is_over = AtomicBool::new(false);
    let all = thread::scope(|scope| {
        let over = Over(&is_over);
        let senders: Vec<_> = (0..4).map(|_| scope.spawn(|| load_on(&server, "m", 125, &is_over))).collect();
        let change = || {
            thread::sleep(Duration::from_millis(300));
            fs::create_dir_all(repository.path().join("m/2")).unwrap();
            assert_eq!(load(&server, "m"), (200, String::new()));
            assert!(infer(&server, "m").1.contains("\"model_version\":\"2\""), "the answer comes after the swap");
            wait_index(&server, "m 1 UNAVAILABLE unloaded; m 2 READY");
            // A version with an invalid configuration.
            fs::create_dir_all(repository.path().join("m/3")).unwrap();
            identity(repository.path(), "m", &["3"], "instance_group [{ kind: KIND_GPU }]\n");
            let (status, text) = load(&server, "m");
            assert!(
                status == 400
                    && text
                        .contains("load failed for model 'm': version 3 is at UNAVAILABLE state: Invalid argument: "),
                "{status} {text}"
            );
            let shown = index(&server);
            assert!(shown.contains("m 2 READY") && shown.contains("KIND_GPU"), "{shown}");
            assert!(server.log().contains("failed to load 'm': "), "{}", server.log());
            assert_eq!(metric(&server, "deuteron_model_loads_total{model=\"m\",outcome=\"failure\"}"), 1);
            assert_eq!(get(&server, "/v2/health/ready").0, 200, "the old one serves");
            // The same version, many times over.
            for round in 0..20 {
                identity(repository.path(), "m", &[], &format!("{more}{}", parameter("round", &round.to_string())));
                fs::remove_dir_all(repository.path().join("m/3")).ok();
                assert_eq!(load(&server, "m"), (200, String::new()), "{round}");
            }
            thread::sleep(Duration::from_millis(200));
        };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(change));
        drop(over);
        let all: Vec<_> = senders.into_iter().map(|sender| sender.join().unwrap()).collect();
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        all
    });
    for versions in &all {
        assert!(
            versions.is_sorted()
                && versions.first() == Some(&"1".to_owned())
                && versions.last() == Some(&"2".to_owned())
        );
    }
    let sent: usize = all.iter().map(Vec::len).sum();
    assert!(sent > 200, "{sent}");
    let shard = |name: &str| metric(&server, name);
    // With the request that `infer` sent in between.
    assert_eq!(shard("deuteron_requests_received_total"), shard("deuteron_requests_succeeded_total"));
}

#[test]
fn no_request_fails_while_what_runs_inside_the_shards_is_loaded_again() {
    reloads_under_load("");
}

#[test]
fn no_request_fails_while_what_runs_on_workers_is_loaded_again() {
    reloads_under_load(&format!(
        "{}dynamic_batching {{ max_queue_delay_microseconds: 500 }}\ninstance_group [{{ count: 2 }}]\n",
        parameter("placement", "worker")
    ));
}

#[test]
fn what_waits_when_a_model_is_unloaded_is_answered() {
    let repository = Folder::new("busy");
    identity(repository.path(), "slow", &["1"], "");
    let gate = Gate::on(repository.path(), "slow");
    let server = Server::deuteron(repository.path(), &[EXPLICIT, "--load-model=slow", &gate.flag()]);
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..5).map(|_| scope.spawn(|| infer(&server, "slow").0)).collect();
        wait_until("the queue", || {
            metric(&server, "nv_inference_pending_request_count{model=\"slow\",version=\"1\"}") == 4
        });
        // It does not wait for the run, which is held.
        assert_eq!(unload(&server, "slow"), (200, String::new()));
        assert_eq!(index(&server), "slow 1 UNLOADING");
        assert_eq!(get(&server, "/v2/health/ready").0, 503);
        assert_eq!(infer(&server, "slow").0, 404);
        // It is loaded again beside the instances that still answer its requests.
        assert_eq!(load(&server, "slow").0, 200);
        gate.open();
        assert_eq!(infer(&server, "slow").0, 200);
        for waiting in waiting {
            assert_eq!(waiting.join().unwrap(), 200);
        }
    });
    assert_eq!(unload(&server, "slow").0, 200);
    wait_index(&server, "slow 1 UNAVAILABLE unloaded");
}

#[test]
fn a_poll_follows_what_lies_in_the_repository() {
    let repository = Folder::new("poll");
    identity(repository.path(), "a", &["1"], "");
    let server = Server::deuteron(repository.path(), &["--model-control-mode=poll", "--repository-poll-secs=1"]);
    assert_eq!(index(&server), "a 1 READY");
    identity(repository.path(), "b", &["4"], "version_policy { all { } }\n");
    wait_index(&server, "a 1 READY; b 4 READY");
    fs::create_dir_all(repository.path().join("b/5")).unwrap();
    wait_index(&server, "a 1 READY; b 4 READY; b 5 READY");
    fs::remove_dir_all(repository.path().join("b/4")).unwrap();
    wait_index(&server, "a 1 READY; b 5 READY");
    let loads = || metric(&server, "deuteron_model_loads_total{model=\"b\",outcome=\"success\"}");
    let before = loads();
    fs::write(repository.path().join("b/5/model.bin"), "changed").unwrap();
    wait_until("the load of what changed", || loads() == before + 1);
    identity(repository.path(), "a", &[], "max_batch_size: 3\n");
    wait_until("the failure", || index(&server).starts_with("a 1 READY "));
    assert_eq!(infer(&server, "a").0, 200);
    let failures = metric(&server, "deuteron_model_loads_total{model=\"a\",outcome=\"failure\"}");
    thread::sleep(Duration::from_millis(2_500));
    let later = metric(&server, "deuteron_model_loads_total{model=\"a\",outcome=\"failure\"}");
    assert_eq!((failures, later), (1, 1), "what fails is not tried again before it changes");
    identity(repository.path(), "a", &[], "");
    wait_index(&server, "a 1 READY; b 5 READY");
    fs::remove_dir_all(repository.path().join("b")).unwrap();
    wait_index(&server, "a 1 READY");
    assert_eq!(infer(&server, "b").0, 404);
    assert_eq!(get(&server, "/v2/health/ready").0, 200);
}

#[test]
fn readiness_tells_what_loads_and_how_far_it_is() {
    let repository = Folder::new("progress");
    let more = format!("version_policy {{ all {{ }} }}\n{}", parameter("creation_delay_sec", "4"));
    identity(repository.path(), "long", &["1", "2"], &more);
    identity(repository.path(), "quick", &["1"], "");
    let server = Server::deuteron(repository.path(), &[EXPLICIT, "--model-load-thread-count=2"]);
    thread::scope(|scope| {
        let loading = scope.spawn(|| load(&server, "long"));
        wait_until("the load", || get(&server, "/v2/health/ready").1.contains("\"stage\":\"loading\""));
        assert!(index(&server).starts_with("long LOADING"), "{}", index(&server));
        let (status, text) = get(&server, "/v2/health/ready");
        assert_eq!(status, 503);
        let json: Value = serde_json::from_str(&text).unwrap();
        let load_note = &json["loading"][0];
        assert_eq!(
            (&load_note["name"], &load_note["stage"]),
            (&Value::from("long"), &Value::from("loading")),
            "{text}"
        );
        assert_eq!(load_note["versions"], 2, "{text}");
        assert_eq!(get(&server, "/v2/models/long/ready").0, 503);
        // Another model does not wait for it, and no shard does.
        assert_eq!((load(&server, "quick").0, infer(&server, "quick").0), (200, 200));
        assert!(!loading.is_finished(), "{}", server.log());
        assert_eq!(loading.join().unwrap().0, 200);
    });
    assert_eq!(get(&server, "/v2/health/ready"), (200, r#"{"live":true,"ready":true}"#.to_owned()));
    assert_eq!(infer(&server, "long").0, 200);
}

#[test]
fn a_model_that_failed_makes_the_server_not_ready_unless_that_is_not_wanted() {
    let repository = Folder::new("strict");
    identity(repository.path(), "good", &["1"], "");
    identity(repository.path(), "bad", &["1"], "instance_group [{ kind: KIND_GPU }]\n");
    let lenient = Server::deuteron(repository.path(), &[EXPLICIT, "--load-model=good", "--strict-readiness=false"]);
    let strict = Server::deuteron(repository.path(), &[EXPLICIT, "--load-model=good"]);
    for (server, want) in [(&lenient, 200), (&strict, 503)] {
        assert_eq!(load(server, "bad").0, 400);
        assert_eq!(get(server, "/v2/health/ready").0, want);
        assert_eq!((get(server, "/v2/models/bad/ready").0, infer(server, "good").0), (503, 200));
        assert_eq!(unload(server, "bad").0, 200);
        assert_eq!(get(server, "/v2/health/ready").0, 200, "it is not asked for any more");
    }
}

#[test]
fn a_server_that_drains_refuses_what_was_ordered() {
    let repository = Folder::new("drain");
    identity(repository.path(), "long", &["1"], &parameter("creation_delay_sec", "60"));
    let mut server = Server::deuteron(repository.path(), &[EXPLICIT]);
    let address = server.http();
    let loading = thread::spawn(move || http::post(address, "/v2/repository/models/long/load", b"").unwrap());
    wait_until("the load", || index(&server).starts_with("long LOADING"));
    let start = Instant::now();
    assert!(server.stop().success());
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}: it waited for the load", start.elapsed());
    let answer = loading.join().unwrap();
    assert_eq!(answer.status, 503, "{}", String::from_utf8_lossy(&answer.body));
}

/// The JSON of a load with parameters.
fn parameters(parameters: &[(&str, &str)]) -> String {
    let parameters: serde_json::Map<_, _> =
        parameters.iter().map(|(key, value)| ((*key).to_owned(), Value::from(*value))).collect();
    serde_json::json!({ "parameters": parameters }).to_string()
}

pub fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for place in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= group.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[test]
fn the_next_server_removes_what_a_killed_one_left_and_memory_is_given_back_after_loads() {
    let repository = Folder::new("killed");
    let mut server = Server::deuteron(repository.path(), &[EXPLICIT]);
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models/digits/1/model.onnx");
    let file = base64(&fs::read(digits).unwrap());
    let body = parameters(&[("config", r#"{"backend":"onnxruntime"}"#), ("file:3/model.onnx", &file)]);
    assert_eq!(post(&server, "/v2/repository/models/brought/load", &body), (200, String::new()));
    let prefix = format!("deuteron-model-{}-", server.id());
    let left = || {
        let entries = fs::read_dir(std::env::temp_dir()).unwrap().flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)).count()
    };
    let others = Server::deuteron(repository.path(), &[EXPLICIT]);
    assert_eq!(left(), 1, "what is in use is left alone");
    drop(others);
    wait_until("memory is given back", || {
        server.log().contains("returned the memory that loads and unloads had freed to the system")
    });
    server.signal("KILL");
    wait_until("it is gone", || !server.is_running());
    assert_eq!(left(), 1);
    let next = Server::deuteron(repository.path(), &[EXPLICIT]);
    assert_eq!(left(), 0, "{}", next.log());
    assert!(next.log().contains("that another server left behind"), "{}", next.log());
}

#[test]
fn another_version_policy_loads_and_unloads_single_versions() {
    let repository = Folder::new("policy");
    let policy = |versions: &str| format!("version_policy {{ specific {{ versions: [ {versions} ] }} }}");
    identity(repository.path(), "m", &["1", "2", "3"], &policy("1"));
    for flag in ["--load-model=m", "--log-info=true"] {
        let server = Server::deuteron(repository.path(), &[EXPLICIT, flag]);
        let is_loaded_first = flag == "--load-model=m" || load(&server, "m").0 == 200;
        assert!(is_loaded_first);
        let load_with = |versions: &[u32], rows_max: u32| {
            let config = json!({
                "backend": "identity", "max_batch_size": rows_max, "version_policy": {"specific": {"versions": versions}},
                "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
                "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
            });
            let body = parameters(&[("config", &config.to_string())]);
            assert_eq!(post(&server, "/v2/repository/models/m/load", &body), (200, String::new()));
        };
        let loads = || {
            let log = server.log();
            ["1", "2", "3"].map(|version| log.matches(&format!("loaded 'm' version {version} with")).count())
        };
        let served = || ["1", "2", "3"].map(|version| infer(&server, &format!("m/versions/{version}")).0 == 200);
        assert_eq!((served(), loads()), ([true, false, false], [1, 0, 0]));
        load_with(&[1, 3], 8);
        assert_eq!((served(), loads()), ([true, false, true], [1, 0, 1]), "a single version is loaded");
        load_with(&[2, 3], 8);
        assert_eq!((served(), loads()), ([false, true, true], [1, 1, 1]), "one comes and one goes");
        load_with(&[3], 8);
        assert_eq!((served(), loads()), ([false, false, true], [1, 1, 1]), "a single version is unloaded");
        load_with(&[3], 5);
        assert_eq!((served(), loads()), ([false, false, true], [1, 1, 2]), "another configuration loads it again");
        assert_eq!(load(&server, "m").0, 200);
        assert_eq!((served(), loads()), ([true, false, false], [2, 1, 2]), "as the file says");
        identity(repository.path(), "m", &[], &policy("1, 2"));
        assert_eq!(load(&server, "m").0, 200);
        assert_eq!((served(), loads()), ([true, true, false], [2, 2, 2]), "also by the file");
        fs::create_dir_all(repository.path().join("m/more")).unwrap();
        assert_eq!(load(&server, "m").0, 200);
        assert_eq!((served(), loads()), ([true, true, false], [3, 3, 2]), "something beside the versions is new");
        fs::remove_dir(repository.path().join("m/more")).unwrap();
        identity(repository.path(), "m", &[], &policy("1"));
    }
}

#[test]
fn a_client_brings_a_configuration_and_files_of_its_own() {
    let repository = Folder::new("override");
    identity(repository.path(), "m", &["1"], "");
    let server = Server::deuteron(repository.path(), &[EXPLICIT]);
    let load_with = |name: &str, brought: &[(&str, &str)]| {
        post(&server, &format!("/v2/repository/models/{name}/load"), &parameters(brought))
    };
    let rows_max = || {
        let config: Value = serde_json::from_str(&get(&server, "/v2/models/m/config").1).unwrap();
        config["max_batch_size"].as_u64().unwrap()
    };
    assert_eq!(load(&server, "m").0, 200);
    let config = get(&server, "/v2/models/m/config").1.replace("\"max_batch_size\":8", "\"max_batch_size\":5");
    assert_eq!(load_with("m", &[("config", &config)]), (200, String::new()));
    assert_eq!(rows_max(), 5);
    // Triton keeps it until a load without one.
    assert_eq!(load(&server, "m").0, 200);
    assert_eq!(rows_max(), 8);
    let other = r#"{"name":"other","backend":"identity"}"#;
    for (config, want) in [("{", "failed to poll from model repository"), (other, "directory name")] {
        let (status, text) = load_with("m", &[("config", config)]);
        assert!(status == 400 && text.contains("failed to load 'm'") && text.contains(want), "{status} {text}");
        assert_eq!((rows_max(), infer(&server, "m").0), (8, 200), "what serves goes on");
    }
    assert_eq!(load(&server, "m").0, 200, "nothing lies there that fails");

    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models/digits/1/model.onnx");
    let file = base64(&fs::read(digits).unwrap());
    let config = r#"{"backend":"onnxruntime"}"#;
    assert_eq!(load_with("brought", &[("config", config), ("file:3/model.onnx", &file)]), (200, String::new()));
    assert_eq!(index(&server), "brought 3 READY; m 1 READY");
    let metadata = get(&server, "/v2/models/brought").1;
    assert!(metadata.contains("\"versions\":[\"3\"]") && metadata.contains("onnxruntime_onnx"), "{metadata}");
    let overlays = || {
        fs::read_dir(std::env::temp_dir()).unwrap().flatten().filter(|entry| {
            entry.file_name().to_string_lossy().starts_with(&format!("deuteron-model-{}-", server.id()))
        })
    };
    assert_eq!(overlays().count(), 1);
    // The files go before those of the repository, and a plain load takes the latter again.
    assert_eq!(load_with("m", &[("config", config), ("file:7/model.onnx", &file)]), (200, String::new()));
    assert!(index(&server).contains("m 7 READY"), "{}", index(&server));
    assert_eq!(load(&server, "m").0, 200);
    wait_index(&server, "brought 3 READY; m 1 READY");
    assert_eq!((rows_max(), infer(&server, "m").0), (8, 200));
    assert_eq!(unload(&server, "brought").0, 200);
    wait_until("the end of the files", || overlays().count() == 0);

    let (status, text) = load_with("m", &[("file:1/model.onnx", &file)]);
    assert!(status == 400 && text.contains("failed to load 'm', failed to poll from model repository"), "{text}");
    assert_eq!(load(&server, "m").0, 200, "nothing lies there that fails");
    for path in ["file:../x", "file:1/../../x", "file:/etc/x", "file:x"] {
        let (status, text) = load_with("m", &[("config", config), (path, &file)]);
        assert!(status == 400 && text.contains("is not a file path"), "{path}: {status} {text}");
    }
    let code = "'1/model.py' may hold code, which a load request may bring only with --allow-model-code-upload=true";
    let (status, text) =
        load_with("m", &[("config", config), ("file:1/model.onnx", &file), ("file:1/model.py", &file)]);
    assert_eq!((status, text), (400, format!("{{\"error\":\"{code}\"}}")));
    let python = r#"{"backend":"python","parameters":{"EXECUTION_ENV_PATH":{"string_value":"/tmp/x"}}}"#;
    let (status, text) = load_with("m", &[("config", python)]);
    assert!(status == 400 && text.contains("may name another EXECUTION_ENV_PATH"), "{status} {text}");
    assert_eq!(get(&server, "/v2/health/ready").0, 200, "what is refused leaves the model as it was");
    let (status, text) = load_with("m", &[("config", config), ("file:1/model.onnx", "?")]);
    assert_eq!((status, text.as_str()), (400, r#"{"error":"load parameter 'file:1/model.onnx' is not valid base64"}"#));
    let (status, text) = load_with("m", &[("config", config), ("file:1/model.onnx", "Zm9v")]);
    assert!(status == 400 && text.contains("load failed for model 'm': version 1 is at UNAVAILABLE state"), "{text}");
    assert_eq!(infer(&server, "m").0, 200);
    assert_eq!(overlays().count(), 0);
}

/// Rounds of a set, each of which may keep a KiB.
const ROUNDS: usize = 250;

#[test]
fn hundreds_of_loads_and_unloads_leave_no_memory_behind() {
    let repository = Folder::new("rounds");
    let worker = format!("{}instance_group [{{ count: 2 }}]\n", parameter("placement", "worker"));
    identity(repository.path(), "m", &["1"], &worker);
    repository::add_example(repository.path(), "digits");
    let server = Server::deuteron(repository.path(), &[EXPLICIT, "--log-info=false"]);
    let mut connection = http::Connection::open(server.http()).unwrap();
    let mut exchange = |path: &str| {
        connection.send(&http::request("POST", path, &[], if path.ends_with("infer") { BODY } else { b"" })).unwrap();
        let answer = connection.receive().unwrap();
        assert_eq!(answer.status, 200, "{path} {}", String::from_utf8_lossy(&answer.body));
    };
    let mut round = || {
        for path in ["models/m/load", "models/digits/load"] {
            exchange(&format!("/v2/repository/{path}"));
        }
        exchange("/v2/models/m/infer");
        for path in ["models/m/unload", "models/digits/unload"] {
            exchange(&format!("/v2/repository/{path}"));
        }
    };
    (0..100).for_each(|_| round());
    thread::sleep(Duration::from_millis(300));
    // A leak grows in each set of rounds; memory that the allocator keeps on a busy machine grows in one of them.
    let mut resident = vec![server.resident() / 1024];
    let has_grown = (0..5).all(|_| {
        (0..ROUNDS).for_each(|_| round());
        thread::sleep(Duration::from_millis(300));
        resident.push(server.resident() / 1024);
        matches!(resident[..], [.., before, after] if after > before + ROUNDS)
    });
    println!("resident after each {ROUNDS} rounds: {resident:?} KiB");
    assert!(!has_grown, "{resident:?} KiB");
    let threads = fs::read_dir(format!("/proc/{}/task", server.id())).unwrap().count();
    assert!(threads < 24, "{threads} threads are left");
}
