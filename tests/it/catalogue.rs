//! Model repositories as a user may bring them: versions, instances, placement, models without a
//! configuration, and models that do not load beside some that do.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::folder::Folder;
use crate::support::gate::Gate;
use crate::support::metrics::{batches_left, metric};
use crate::support::server::Server;
use crate::support::{http, onnx};

const TENSORS: &str = "max_batch_size: 8\ninput [{ name: \"INPUT0\" data_type: TYPE_FP32 dims: [ -1 ] }]\n\
                       output [{ name: \"OUTPUT0\" data_type: TYPE_FP32 dims: [ -1 ] }]\n";

fn identity(repository: &Folder, name: &str, versions: &[&str], more: &str) {
    let model = repository.path().join(name);
    for version in versions {
        fs::create_dir_all(model.join(version)).unwrap();
    }
    fs::write(model.join("config.pbtxt"), format!("backend: \"identity\"\n{TENSORS}{more}")).unwrap();
}

fn parameter(key: &str, value: &str) -> String {
    format!("parameters {{ key: \"{key}\" value {{ string_value: \"{value}\" }} }}\n")
}

fn infer(server: &Server, path: &str) -> (u16, String) {
    let body = br#"{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[1.5]}]}"#;
    let answer = http::post(server.http(), &format!("/v2/models/{path}/infer"), body).unwrap();
    (answer.status, String::from_utf8(answer.body).unwrap())
}

fn get(server: &Server, path: &str) -> (u16, String) {
    let answer = http::get(server.http(), path).unwrap();
    (answer.status, String::from_utf8(answer.body).unwrap())
}

fn metrics(server: &Server) -> String {
    String::from_utf8(http::get(server.metrics(), "/metrics").unwrap().body).unwrap()
}

#[test]
fn the_version_policy_says_what_is_served_and_the_highest_answers_by_default() {
    let repository = Folder::new("versions");
    identity(&repository, "all", &["1", "2", "10", "007", "x"], "version_policy { all { } }\n");
    identity(&repository, "latest", &["1", "2", "10"], "");
    identity(&repository, "specific", &["1", "2", "3"], "version_policy { specific { versions: [ 1, 3 ] } }\n");
    let server = Server::deuteron(repository.path(), &[]);
    let versions = |name: &str, want: &str| {
        let (_, metadata) = get(&server, &format!("/v2/models/{name}"));
        assert!(metadata.contains(&format!("\"versions\":[{want}]")), "{metadata}");
    };
    versions("all", "\"1\",\"2\",\"10\"");
    versions("latest", "\"10\"");
    versions("specific", "\"1\",\"3\"");
    let answers = |path: &str, want: &str| {
        let (status, body) = infer(&server, path);
        assert!(status == 200 && body.contains(&format!("\"model_version\":\"{want}\"")), "{path}: {status} {body}");
    };
    answers("all", "10");
    answers("all/versions/2", "2");
    answers("specific", "3");
    let (status, body) = infer(&server, "specific/versions/2");
    assert_eq!(
        (status, body.as_str()),
        (404, r#"{"error":"Request for unknown model: 'specific' version 2 is not found"}"#)
    );
}

#[test]
fn several_instances_run_at_the_same_time() {
    let repository = Folder::new("instances");
    identity(&repository, "two", &["1"], "instance_group [{ count: 2 kind: KIND_CPU }]\n");
    let gate = Gate::on(repository.path(), "two");
    let server = Server::deuteron(repository.path(), &["--shards=1", &gate.flag()]);
    let left = || batches_left(server.metrics(), "two");
    let waiting = || metric(server.metrics(), "nv_inference_pending_request_count{model=\"two\",version=\"1\"}");
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(infer(&server, "two").0, 200));
        }
        let start = Instant::now();
        while (left(), waiting()) != (2, 2) {
            assert!(start.elapsed() < Duration::from_secs(15), "{} run, {} wait", left(), waiting());
            thread::sleep(Duration::from_millis(5));
        }
        gate.open();
    });
    assert_eq!(left(), 4);
}

#[test]
fn a_fast_model_runs_inline_unless_its_configuration_places_it() {
    let repository = Folder::new("placement");
    identity(&repository, "fast", &["1"], "");
    identity(&repository, "placed", &["1"], &parameter("placement", "worker"));
    identity(&repository, "slow", &["1"], &parameter("execute_delay_ms", "1"));
    identity(&repository, "queued", &["1"], "dynamic_batching { max_queue_delay_microseconds: 10 }\n");
    let server = Server::deuteron(repository.path(), &["--log-verbose=1"]);
    let log = server.log();
    let places = |name: &str, want: &str| {
        let line = log.lines().find(|line| line.contains(&format!("'{name}'"))).unwrap_or_default();
        assert!(line.contains(want), "{line}");
    };
    places("fast", "runs inline (one row takes");
    places("placed", "runs on workers (configured)");
    places("slow", "runs on workers (it sleeps or waits)");
    places("queued", "runs on workers (its configuration asks for a queue)");
    for name in ["fast", "placed", "slow", "queued"] {
        for _ in 0..3 {
            assert_eq!(infer(&server, name).0, 200, "{name}");
        }
        let executions = format!("nv_inference_exec_count{{model=\"{name}\",version=\"1\"}} 3");
        assert!(metrics(&server).contains(&executions), "{name}");
    }
    let metrics = metrics(&server);
    let is_measured = |name: &str| metrics.contains(&format!("deuteron_model_run_seconds{{model=\"{name}\",version"));
    for (name, placement) in [("fast", "inline"), ("placed", "worker"), ("slow", "worker"), ("queued", "worker")] {
        let (_, config) = get(&server, &format!("/v2/models/{name}/config"));
        assert!(config.contains(&format!("\"placement\":{{\"string_value\":\"{placement}\"}}")), "{config}");
        let metric =
            format!("deuteron_model_placement{{model=\"{name}\",placement=\"{placement}\",version=\"1\"}} 1\n");
        assert!(metrics.contains(&metric), "{metric}");
        assert_eq!(is_measured(name), name == "fast", "{name}");
    }
}

#[test]
fn an_onnx_file_alone_is_a_model() {
    let repository = Folder::new("onnx");
    let version = repository.path().join("addsub/1");
    fs::create_dir_all(&version).unwrap();
    fs::write(version.join("model.onnx"), onnx::addsub()).unwrap();
    let server = Server::deuteron(repository.path(), &[]);
    let (_, metadata) = get(&server, "/v2/models/addsub");
    assert_eq!(
        metadata,
        concat!(
            r#"{"name":"addsub","versions":["1"],"platform":"onnxruntime_onnx","inputs":["#,
            r#"{"name":"INPUT0","datatype":"INT32","shape":[-1,16]},{"name":"INPUT1","datatype":"INT32","shape":[-1,16]}],"#,
            r#""outputs":[{"name":"OUTPUT0","datatype":"INT32","shape":[-1,16]},{"name":"OUTPUT1","datatype":"INT32","shape":[-1,16]}]}"#
        )
    );
    let (_, config) = get(&server, "/v2/models/addsub/config");
    assert!(config.contains("\"max_batch_size\":4") && config.contains("\"preferred_batch_size\":[4]"), "{config}");
}

#[test]
fn a_broken_model_fails_alone_where_that_is_asked_for() {
    let repository = Folder::new("broken");
    identity(&repository, "good", &["1"], "");
    identity(&repository, "bad", &["1"], "instance_group [{ kind: KIND_GPU }]\n");
    let server = Server::deuteron(repository.path(), &["--exit-on-error=false", "--strict-readiness=false"]);
    assert_eq!(infer(&server, "good").0, 200);
    assert_eq!(infer(&server, "bad").0, 404);
    assert!(server.log().contains("failed to load 'bad'") && server.log().contains("KIND_GPU"), "{}", server.log());
}

fn refuses_to_start(more: &str, want: &str) {
    let repository = Folder::new("refused");
    identity(&repository, "m", &["1"], more);
    let ports = ["--http-port=0", "--grpc-port=0", "--metrics-port=0"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_deuteron"));
    let output = command.arg("serve").arg(repository.path()).args(ports).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && text.contains(want), "{want:?} is not in\n{text}");
}

#[test]
fn what_is_not_built_is_refused_by_name_at_load() {
    refuses_to_start("instance_group [{ kind: KIND_GPU }]\n", "KIND_GPU");
    refuses_to_start(
        "model_repository_agents { agents [{ name: \"x\" }] }\n",
        "'libtritonrepoagent_x.so' for repo agent",
    );
    refuses_to_start("instance_group [{ passive: true }]\n", "every instance group is passive");
    refuses_to_start("instance_group [{ name: \"a\" }, { name: \"a\" }]\n", "two instance groups are named 'a'");
    refuses_to_start("model_warmup [{ name: \"w\" batch_size: 1 }]\n", "failed to run warmup sample 'w'");
    refuses_to_start(&parameter("placement", "moon"), "expected 'inline' or 'worker'");
    refuses_to_start(&format!("{}{}", parameter("execute_delay_ms", "1"), parameter("placement", "inline")), "inline");
    refuses_to_start("max_batch_size: -1\n", "max_batch_size");
}

#[test]
fn nothing_outside_the_repository_becomes_a_model_where_links_are_refused() {
    let outside = Folder::new("outside");
    identity(&outside, "secret", &["1"], "");
    let repository = Folder::new("linked");
    identity(&repository, "good", &["1"], "");
    std::os::unix::fs::symlink(outside.path().join("secret"), repository.path().join("secret")).unwrap();
    let flags = ["--follow-links=false", "--exit-on-error=false", "--strict-readiness=false"];
    let server = Server::deuteron(repository.path(), &flags);
    assert_eq!((infer(&server, "good").0, infer(&server, "secret").0), (200, 404));
    assert!(Path::new(&outside.path().join("secret")).exists());
}
