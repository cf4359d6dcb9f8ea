//! Backends written for Triton, as shared libraries on the server as a process, in it and in processes of their own: those
//! of `tests/backends`, compiled here, and where `DEUTERON_TESTS=triton` asks for it the Python backend out of NVIDIA's own wheel.

mod agents;
mod caches;
mod completion;
mod crash;
mod isolation;
mod python;
mod refusals;
mod reports;
mod tensorrt;

use std::path::{Path, PathBuf};

use deuteron::wire::proto::inference as proto;
use prost::Message as _;
use serde_json::{Value, json};

use crate::support::folder::Folder;
use crate::support::gate::add_backend;
use crate::support::grpc::Client;
use crate::support::protobuf::Message;
use crate::support::server::Server;
use crate::support::{http, repository};

const IDENTITY: &str = "backend: 'identity' max_batch_size: 8 dynamic_batching { }
    input { name: 'INPUT0' data_type: TYPE_FP32 dims: -1 } output { name: 'OUTPUT0' data_type: TYPE_FP32 dims: -1 }";
const DECOUPLED: &str = "backend: 'decoupled' model_transaction_policy { decoupled: true }
    input { name: 'IN' data_type: TYPE_INT32 dims: 1 } output { name: 'OUT' data_type: TYPE_INT32 dims: 1 }";
const ACCUMULATE: &str =
    "backend: 'accumulate' instance_group { count: 2 } input { name: 'INPUT' data_type: TYPE_INT32 dims: 1 }
    output { name: 'OUTPUT' data_type: TYPE_INT32 dims: 1 }
    sequence_batching {
        control_input { name: 'START' control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
        state { input_name: 'INPUT_STATE' output_name: 'OUTPUT_STATE' data_type: TYPE_INT32 dims: 1
                initial_state { data_type: TYPE_INT32 dims: 1 zero_data: true name: 'zero' } }
    }";

/// Places where a backend runs.
pub const PLACES: [&str; 2] = ["--backend-isolation=none", "--backend-isolation=process"];

/// A repository and a directory of backends with these models, each of the backend of its name.
pub fn folders(models: &[(&str, &str)]) -> (Folder, PathBuf, PathBuf) {
    let folder = Folder::new("backends");
    let (models_path, backends) = (folder.path().join("models"), folder.path().join("backends"));
    for (name, config) in models {
        repository::add(&models_path, name, config, None);
        add_backend(&backends, name, name);
    }
    (folder, models_path, backends)
}

pub fn start(models: &Path, backends: &Path, flags: &[&str]) -> Server {
    let directory = format!("--backend-directory={}", backends.display());
    let flags = [&[directory.as_str(), "--shards=1"], flags].concat();
    Server::deuteron(models, &flags)
}

fn infer(server: &Server, model: &str, body: &Value) -> (u16, Value) {
    let path = format!("/v2/models/{model}/infer");
    let answer = http::post(server.http(), &path, body.to_string().as_bytes()).unwrap();
    (answer.status, serde_json::from_slice(&answer.body).unwrap())
}

#[test]
fn a_backend_in_c_serves_over_both_protocols_beside_our_own_of_its_name() {
    let (_folder, models, backends) = folders(&[("identity", IDENTITY)]);
    PLACES.into_iter().for_each(|place| serve_identity(&models, &backends, place));
    // Without the flag our own backend serves, and opens nothing.
    let server = start(&models, &backends, &[]);
    assert!(server.log().contains("loaded 'identity' version 1 with identity"), "{}", server.log());
}

#[test]
fn a_backend_runs_the_samples_of_its_models_as_often_as_configured() {
    let warm_up = "instance_group { count: 2 } model_warmup { name: 'w' batch_size: 1 count: 3 inputs { key: 'INPUT0' \
                   value { data_type: TYPE_FP32 dims: 3 zero_data: true } } }";
    let (_folder, models, backends) = folders(&[("identity", &format!("{IDENTITY} {warm_up}"))]);
    for place in PLACES {
        let server = start(&models, &backends, &["--backend-config=identity,host=triton", "--log-verbose=1", place]);
        let runs = server.log().matches("is running warmup sample 'w'").count();
        assert_eq!(runs, 2 * 3, "each of two instances runs it three times: {place}");
    }
}

fn serve_identity(models: &Path, backends: &Path, place: &str) {
    let mut server = start(models, backends, &["--backend-config=identity,host=triton", place]);
    let input = json!({"name": "INPUT0", "shape": [1, 3], "datatype": "FP32", "data": [1.0, 2.5, -3.0]});
    let (status, answer) = infer(&server, "identity", &json!({"inputs": [input]}));
    assert_eq!((status, &answer["outputs"][0]["data"]), (200, &json!([1.0, 2.5, -3.0])), "{answer}");

    let raw: Vec<u8> = [1.0_f32, 2.0].into_iter().flat_map(f32::to_le_bytes).collect();
    let tensor = Message::new().bytes(1, "INPUT0").bytes(2, "FP32").packed(3, &[1, 2]);
    let request = Message::new().bytes(1, "identity").message(5, tensor).bytes(7, &raw).into_bytes();
    let answer = Client::new(server.grpc()).call("/inference.GRPCInferenceService/ModelInfer", &request).unwrap();
    let answer = proto::ModelInferResponse::decode(answer.as_slice()).unwrap();
    assert_eq!(answer.raw_output_contents, [raw]);

    let (log, statistics) = (server.log(), http::get(server.http(), "/v2/models/identity/stats").unwrap());
    assert!(log.contains("loaded 'identity' version 1 with 'libtriton_identity.so'"), "{log}");
    let statistics: Value = serde_json::from_slice(&statistics.body).unwrap();
    let statistics = &statistics["model_stats"][0];
    assert_eq!(statistics["execution_count"], 2);
    // The backend reports that it computes at once, in almost no time.
    let [input, infer] = ["compute_input", "compute_infer"].map(|part| &statistics["inference_stats"][part]);
    assert!(input["count"] == 2 && infer["count"] == 2, "{statistics}");
    assert!(server.stop().success());
    let log = server.log();
    assert!(log.contains("backend finalized") && log.trim_end().ends_with("\"ended\""), "{log}");
}

#[test]
fn a_decoupled_backend_streams_and_its_errors_and_parameters_arrive() {
    let (_folder, models, backends) = folders(&[("decoupled", DECOUPLED)]);
    PLACES.into_iter().for_each(|place| serve_decoupled(&start(&models, &backends, &[place])));
}

fn serve_decoupled(server: &Server) {
    assert_eq!(play(server, "decoupled", 3), ["0", "1", "2"]);
    let (came, _) = stream(server, request("decoupled", 3, false));
    assert!(came.iter().all(|answer| answer.infer_response.as_ref().unwrap().parameters.contains_key("number")));
    let (came, end) = stream(server, request("decoupled", 2, true));
    let errors: Vec<_> = came.into_iter().map(|answer| answer.error_message).collect();
    assert_eq!((errors, end), (vec![String::new(), "on purpose".to_owned()], true));
}

fn request(model: &str, count: i32, fails: bool) -> Vec<u8> {
    let input = Message::new().bytes(1, "IN").bytes(2, "INT32").packed(3, &[1]);
    let parameter = Message::new().bytes(1, "FAIL").message(2, Message::new().int(1, 1));
    let request = Message::new().bytes(1, model).bytes(3, "r").message(5, input);
    let request = if fails { request.message(4, parameter) } else { request };
    request.bytes(7, count.to_le_bytes()).into_bytes()
}

/// The answers of a stream with one request, and true if it ended well.
fn stream(server: &Server, request: Vec<u8>) -> (Vec<proto::ModelStreamInferResponse>, bool) {
    let method = "/inference.GRPCInferenceService/ModelStreamInfer";
    let (came, end) = Client::new(server.grpc()).stream(method, &[], vec![request]);
    let decode = |answer: Vec<u8>| proto::ModelStreamInferResponse::decode(answer.as_slice()).unwrap();
    (came.into_iter().map(decode).collect(), end.is_ok())
}

/// The numbers that a decoupled model answers.
fn play(server: &Server, model: &str, count: i32) -> Vec<String> {
    let (came, end) = stream(server, request(model, count, false));
    assert!(end);
    let shown = |answer: proto::ModelStreamInferResponse| {
        let response = answer.infer_response.unwrap_or_default();
        match response.raw_output_contents.first() {
            Some(raw) => i32::from_le_bytes(raw[..].try_into().unwrap()).to_string(),
            None => answer.error_message,
        }
    };
    came.into_iter().map(shown).collect()
}

#[test]
fn a_state_that_a_backend_updates_is_kept_for_its_sequence_and_one_that_it_does_not_stays() {
    let (_folder, models, backends) = folders(&[("accumulate", ACCUMULATE)]);
    PLACES.into_iter().for_each(|place| accumulate(&start(&models, &backends, &[place])));
}

fn accumulate(server: &Server) {
    let send = |sequence: u64, value: i32, start: bool, end: bool| {
        let body = json!({
            "parameters": {"sequence_id": sequence, "sequence_start": start, "sequence_end": end},
            "inputs": [{"name": "INPUT", "shape": [1], "datatype": "INT32", "data": [value]}],
        });
        let (status, answer) = infer(server, "accumulate", &body);
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["outputs"].as_array().map(Vec::len), Some(1), "states are not sent");
        answer["outputs"][0]["data"][0].as_i64().unwrap()
    };
    assert_eq!(send(1, 5, true, false), 5);
    assert_eq!(send(2, 100, true, false), 100);
    assert_eq!(send(1, 7, false, false), 12);
    // Not updated: the sum is answered and not kept.
    assert_eq!(send(1, -2, false, false), 10);
    assert_eq!(send(1, 1, false, true), 13);
    assert_eq!(send(2, 1, false, true), 101);
    // A first request without an update begins with the initial state.
    assert_eq!(send(3, -4, true, false), -4);
    assert_eq!(send(3, 4, false, true), 4);
}

#[test]
fn a_model_whose_backend_is_nowhere_is_refused_with_the_places_and_one_that_breaks_harms_no_other() {
    let stage = |stage: &str| {
        format!(
            "backend: 'faulty' parameters {{ key: 'stage' value {{ string_value: '{stage}' }} }}
             input {{ name: 'IN' data_type: TYPE_INT32 dims: 1 }} output {{ name: 'OUT' data_type: TYPE_INT32 dims: 1 }}"
        )
    };
    let (_folder, models, backends) = folders(&[("faulty", &stage("ModelInstanceExecute"))]);
    repository::add(&models, "gone", &stage("none").replace("'faulty'", "'tensorrt'"), None);
    PLACES.into_iter().for_each(|place| refuse(&models, &backends, place));
}

fn refuse(models: &Path, backends: &Path, place: &str) {
    let flags =
        ["--exit-on-error=false", "--strict-readiness=false", "--model-control-mode=explicit", "--load-model=*", place];
    let server = start(models, backends, &flags);
    let input = json!({"inputs": [{"name": "IN", "shape": [1], "datatype": "INT32", "data": [1]}]});
    let (status, answer) = infer(&server, "faulty", &input);
    assert_eq!((status, &answer["error"]), (503, &json!("ModelInstanceExecute")), "{answer}");
    let load = |name: &str| {
        let answer = http::post(server.http(), &format!("/v2/repository/models/{name}/load"), b"").unwrap();
        String::from_utf8(answer.body).unwrap()
    };
    let refused = load("gone");
    let want = "'libtriton_tensorrt.so' is neither in the version's directory, nor in the model's, nor in 'tensorrt' \
                beneath --backend-directory";
    assert!(refused.contains(want), "{refused}");
}

/// The configuration of the probe.
const PROBE: &str = "backend: 'probe' input { name: 'INPUT' data_type: TYPE_INT32 dims: 2 }
    output { name: 'OUTPUT' data_type: TYPE_INT32 dims: 2 }";
/// The model that the probe calls, loads and unloads.
const ECHO: &str = "backend: 'identity' input { name: 'IN' data_type: TYPE_INT32 dims: 2 }
    output { name: 'OUT' data_type: TYPE_INT32 dims: 2 }";

#[test]
fn every_function_does_in_a_process_what_it_does_in_the_server_calls_of_other_models_included() {
    let (_folder, models, backends) = folders(&[("probe", PROBE)]);
    ["echo", "other"].into_iter().for_each(|name| repository::add(&models, name, ECHO, None));
    for place in PLACES {
        let flags = ["--model-control-mode=explicit", "--load-model=echo", "--load-model=probe", place];
        let server = start(&models, &backends, &flags);
        let input = json!({"name": "INPUT", "shape": [2], "datatype": "INT32", "data": [5, 6]});
        let body = json!({"id": "seven", "parameters": {"depth": 3}, "inputs": [input]});
        // The probe's findings after an answer are in the next one.
        for _ in 0..3 {
            let (status, answer) = infer(&server, "probe", &body);
            assert_eq!((status, &answer["outputs"][0]["data"]), (200, &json!([5, 6])), "{place} {answer}");
            assert_eq!(answer["parameters"]["int"], 7, "{place} {answer}");
        }
        assert!(server.log().contains("(probe.c:7) a line"), "{place} {}", server.log());
    }
}
