//! `--model-namespacing=true` on the server as a process: NVIDIA's cases (`qa/L0_model_namespacing`), polled and by load
//! requests. Two repositories, whose models give twice their input or nothing; an ensemble in each has a step that both
//! may have.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::folder::Folder;
use crate::support::grpc::Client;
use crate::support::http;
use crate::support::onnx::{FLOAT, Onnx};
use crate::support::protobuf::Message;
use crate::support::repository;
use crate::support::server::{Ports, Server};

/// Time limit for a poll to show.
const WAIT_MAX: Duration = Duration::from_secs(20);

const ADD: f64 = 6.0;
const SUB: f64 = 0.0;

const TENSORS: &str = "max_batch_size: 0 input { name: 'x' data_type: TYPE_FP32 dims: [ 1 ] }\n\
                       output { name: 'y' data_type: TYPE_FP32 dims: [ 1 ] }\n";

struct Repositories {
    folder: Folder,
}

impl Repositories {
    fn new(name: &str) -> Self {
        Self { folder: Folder::new(&format!("namespaces-{name}")) }
    }

    fn path(&self, repository: &str) -> PathBuf {
        self.folder.path().join(repository)
    }

    /// A model that gives x + x (`Add`) or x - x (`Sub`).
    fn model(&self, repository: &str, name: &str, operator: &str) {
        let graph = Onnx::default().node(operator, &["x", "x"], &["y"], &[]);
        let file = graph.input("x", FLOAT, &[1]).output("y", FLOAT, &[1]).into_bytes();
        let config = format!("platform: 'onnxruntime_onnx' {TENSORS}");
        repository::add(&self.path(repository), name, &config, Some(&file));
    }

    fn ensemble(&self, repository: &str, name: &str, step: &str) {
        let maps = "input_map { key: 'x' value: 'x' } output_map { key: 'y' value: 'y' }";
        let steps = format!("ensemble_scheduling {{ step {{ model_name: '{step}' model_version: -1 {maps} }} }}");
        repository::add(&self.path(repository), name, &format!("platform: 'ensemble' {TENSORS}{steps}"), None);
    }

    /// Each repository has an ensemble of its own name, and both a model `composing`.
    fn duplicated(&self) {
        for (repository, operator) in [("adds", "Add"), ("subs", "Sub")] {
            self.model(repository, "composing", operator);
            self.ensemble(repository, &format!("of_{repository}"), "composing");
        }
    }

    fn start(&self, flags: &[&str]) -> Server {
        let ports = Ports::free();
        let mut command = Server::command(&self.path("adds"), &["--model-namespacing=true", "--shards=1"], ports);
        command.arg("--model-repository").arg(self.path("subs")).args(flags);
        Server::start(command, ports)
    }
}

const POLLED: &[&str] = &["--model-control-mode=poll", "--repository-poll-secs=1"];
const EXPLICIT: &[&str] = &["--model-control-mode=explicit"];

fn infer(server: &Server, model: &str) -> Result<f64, (u16, String)> {
    let body = json!({ "inputs": [{ "name": "x", "shape": [1], "datatype": "FP32", "data": [3.0] }] });
    let path = format!("/v2/models/{model}/infer");
    let answer = http::post(server.http(), &path, body.to_string().as_bytes()).unwrap();
    let body: Value = serde_json::from_slice(&answer.body).unwrap();
    match answer.status {
        200 => Ok(body["outputs"][0]["data"][0].as_f64().unwrap()),
        status => Err((status, body["error"].as_str().unwrap_or_default().to_owned())),
    }
}

fn gives(server: &Server, want: f64, models: &[&str]) {
    for model in models {
        assert_eq!(infer(server, model), Ok(want), "{model}\n{}", server.log());
    }
}

fn comes_to_give(server: &Server, want: f64, model: &str) {
    let until = Instant::now() + WAIT_MAX;
    while infer(server, model) != Ok(want) {
        assert!(Instant::now() < until, "{model} gives {:?}\n{}", infer(server, model), server.log());
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn is_ambiguous(server: &Server, model: &str) {
    let text = format!(
        "There are 2 identifiers of model '{model}' in global map, model namespace must be provided to resolve ambiguity."
    );
    assert_eq!(infer(server, model), Err((400, text.clone())));
    for path in ["", "/config", "/stats", "/versions/1"] {
        let answer = http::get(server.http(), &format!("/v2/models/{model}{path}")).unwrap();
        let body = String::from_utf8(answer.body).unwrap();
        assert!(answer.status == 400 && body.contains(&text), "{path}: {} {body}", answer.status);
    }
    let ready = http::get(server.http(), &format!("/v2/models/{model}/ready")).unwrap();
    assert_ne!(ready.status, 200, "which of them is asked for?");
}

fn order(server: &Server, verb: &str, model: &str) -> (u16, String) {
    let answer = http::post(server.http(), &format!("/v2/repository/models/{model}/{verb}"), b"").unwrap();
    (answer.status, String::from_utf8(answer.body).unwrap())
}

fn loads(server: &Server, models: &[&str]) {
    for model in models {
        assert_eq!(
            order(server, "load", model).0,
            200,
            "{model}: {:?}\n{}",
            order(server, "load", model),
            server.log()
        );
    }
}

fn index(address: SocketAddr) -> Vec<String> {
    let answer = http::post(address, "/v2/repository/index", b"").unwrap();
    let entries: Vec<Value> = serde_json::from_slice(&answer.body).unwrap();
    let text =
        |entry: &Value| format!("{} {}", entry["name"].as_str().unwrap(), entry["state"].as_str().unwrap_or("-"));
    entries.iter().map(text).collect()
}

fn is_ready(server: &Server) -> bool {
    http::get(server.http(), "/v2/health/ready").unwrap().status == 200
}

fn move_to(from: &Path, to: &Path) {
    fs::rename(from, to).expect("both are in our folder");
}

#[test]
fn models_of_different_names_are_served_as_without_namespaces() {
    let all = Repositories::new("none");
    all.model("adds", "composing_adds", "Add");
    all.model("subs", "composing_subs", "Sub");
    all.ensemble("adds", "of_adds", "composing_adds");
    all.ensemble("subs", "of_subs", "composing_subs");
    for (flags, is_explicit) in [(POLLED, false), (EXPLICIT, true)] {
        let server = all.start(flags);
        if is_explicit {
            loads(&server, &["of_adds", "of_subs"]);
        }
        gives(&server, ADD, &["of_adds", "composing_adds"]);
        gives(&server, SUB, &["of_subs", "composing_subs"]);
    }
}

#[test]
fn an_ensemble_takes_the_model_of_its_own_repository_and_a_request_by_its_name_is_ambiguous() {
    let all = Repositories::new("twice");
    all.duplicated();
    for (flags, is_explicit) in [(POLLED, false), (EXPLICIT, true)] {
        let server = all.start(flags);
        if is_explicit {
            loads(&server, &["of_adds", "of_subs"]);
        }
        gives(&server, ADD, &["of_adds"]);
        gives(&server, SUB, &["of_subs"]);
        is_ambiguous(&server, "composing");
        assert!(is_ready(&server));
        assert_eq!(index(server.http()), ["composing READY", "composing READY", "of_adds READY", "of_subs READY"]);
        let metrics = String::from_utf8(http::get(server.metrics(), "/metrics").unwrap().body).unwrap();
        for repository in ["adds", "subs"] {
            let label = format!("namespace=\"{}\",model=\"composing\",version=\"1\"", all.path(repository).display());
            assert!(metrics.contains(&format!("nv_inference_count{{{label}}} 1\n")), "{label} is not in\n{metrics}");
        }
    }
}

#[test]
fn ensembles_of_one_name_are_ambiguous_and_their_models_are_not() {
    let all = Repositories::new("ensembles");
    for (repository, operator) in [("adds", "Add"), ("subs", "Sub")] {
        all.model(repository, &format!("composing_{repository}"), operator);
        all.ensemble(repository, "ensemble", &format!("composing_{repository}"));
    }
    for (flags, is_explicit) in [(POLLED, false), (EXPLICIT, true)] {
        let server = all.start(flags);
        if is_explicit {
            // One name, two models: both are loaded, with their steps.
            loads(&server, &["ensemble"]);
        }
        gives(&server, ADD, &["composing_adds"]);
        gives(&server, SUB, &["composing_subs"]);
        is_ambiguous(&server, "ensemble");
    }
}

#[test]
fn a_step_moves_to_the_other_repository_while_its_own_has_no_such_model_and_comes_back() {
    let all = Repositories::new("moves");
    all.duplicated();
    let (here, away) = (all.path("adds").join("composing"), all.path("away"));

    let server = all.start(POLLED);
    gives(&server, ADD, &["of_adds"]);
    move_to(&here, &away);
    comes_to_give(&server, SUB, "of_adds");
    comes_to_give(&server, SUB, "composing");
    gives(&server, SUB, &["of_subs"]);
    move_to(&away, &here);
    comes_to_give(&server, ADD, "of_adds");
    gives(&server, SUB, &["of_subs"]);
    is_ambiguous(&server, "composing");
    drop(server);

    let server = all.start(EXPLICIT);
    move_to(&here, &away);
    loads(&server, &["of_adds", "of_subs"]);
    gives(&server, SUB, &["of_adds", "of_subs", "composing"]);
    move_to(&away, &here);
    loads(&server, &["of_adds"]);
    gives(&server, ADD, &["of_adds"]);
    gives(&server, SUB, &["of_subs"]);
    is_ambiguous(&server, "composing");
}

#[test]
fn a_load_and_an_unload_are_for_all_models_of_the_name_and_a_failure_of_one_is_told() {
    let all = Repositories::new("orders");
    all.duplicated();
    fs::write(all.path("subs").join("composing/1/model.onnx"), "no model").unwrap();
    let server = all.start(&["--model-control-mode=explicit", "--strict-readiness=false"]);
    let (status, text) = order(&server, "load", "composing");
    assert!(status == 400 && text.contains("load failed for model 'composing': version 1 is at UNAVAILABLE"), "{text}");
    is_ambiguous(&server, "composing");
    all.model("subs", "composing", "Sub");
    loads(&server, &["composing", "of_adds", "of_subs"]);
    gives(&server, ADD, &["of_adds"]);
    gives(&server, SUB, &["of_subs"]);
    assert_eq!(order(&server, "unload", "composing").0, 200);
    let (status, text) = infer(&server, "composing").unwrap_err();
    assert!(status == 404 && text.contains("'composing' has no available versions"), "{status} {text}");
    assert_eq!(order(&server, "load", "absent").0, 404);
    // A client cannot name a repository: names have no slash.
    let path = all.path("adds").join("composing").display().to_string();
    let client = Client::new(server.grpc());
    for rpc in ["RepositoryModelLoad", "RepositoryModelUnload"] {
        let message = Message::new().bytes(2, &path).into_bytes();
        let refusal = client.call(&format!("/inference.GRPCInferenceService/{rpc}"), &message).unwrap_err();
        assert!(refusal.message().contains("must not contain path traversal characters"), "{refusal:?}");
    }
    let message = Message::new().bytes(1, &path).into_bytes();
    let refusal = client.call("/inference.GRPCInferenceService/ModelMetadata", &message).unwrap_err();
    assert!(refusal.message().ends_with("is not found"), "{refusal:?}");
}

#[test]
fn a_step_that_two_other_repositories_have_is_refused_in_tritons_words() {
    let all = Repositories::new("third");
    all.duplicated();
    all.ensemble("third", "of_third", "composing");
    let third = all.path("third");
    let server = all.start(&[
        "--exit-on-error=false",
        "--strict-readiness=false",
        "--model-repository",
        third.to_str().unwrap(),
    ]);
    let until = Instant::now() + WAIT_MAX;
    let want = "ensemble of_third contains models that are not available or ambiguous: composing";
    while !server.log().contains(want) {
        assert!(Instant::now() < until, "{}", server.log());
        std::thread::sleep(Duration::from_millis(50));
    }
}
