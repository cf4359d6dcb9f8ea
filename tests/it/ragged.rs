//! Optional and ragged inputs, on the server as a process: by JSON, binary data and gRPC.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::folder::Folder;
use crate::support::grpc::Client;
use crate::support::metrics::{batches_left, metric};
use crate::support::protobuf::Message;
use crate::support::repository;
use crate::support::{http, onnx, server::Server};
use deuteron::wire::proto::inference as proto;
use prost::Message as _;
use serde_json::{Value, json};

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";

/// The protocol and form of a request.
#[derive(Clone, Copy, Debug)]
enum By {
    Binary,
    Grpc,
    Json,
}

/// Name, shape and elements.
type Output = (String, Vec<i64>, Vec<f32>);

const WAYS: [By; 3] = [By::Json, By::Binary, By::Grpc];

/// FP32 inputs by name and shape; the outputs by name, shape and elements, or the text of the refusal.
fn infer(server: &Server, by: By, model: &str, inputs: &[(&str, &[i64], &[f32])]) -> Result<Vec<Output>, String> {
    let raw = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let path = format!("/v2/models/{model}/infer");
    let request = match by {
        By::Grpc => return infer_by_grpc(server, model, inputs),
        By::Json => {
            let input = |(name, shape, data): &(&str, &[i64], &[f32])| json!({"name": name, "shape": shape, "datatype": "FP32", "data": data});
            let body = json!({"inputs": inputs.iter().map(input).collect::<Vec<_>>()}).to_string();
            http::request("POST", &path, &[], body.as_bytes())
        }
        By::Binary => {
            let input = |(name, shape, data): &(&str, &[i64], &[f32])| {
                let size = data.len() * 4;
                json!({"name": name, "shape": shape, "datatype": "FP32", "parameters": {"binary_data_size": size}})
            };
            let head = json!({"inputs": inputs.iter().map(input).collect::<Vec<_>>()}).to_string();
            let contents: Vec<_> = inputs.iter().flat_map(|(_, _, data)| raw(data)).collect();
            let length = head.len().to_string();
            let body = [head.into_bytes(), contents].concat();
            http::request("POST", &path, &[("Inference-Header-Content-Length", &length)], &body)
        }
    };
    let answer: Value = serde_json::from_slice(&http::exchange(server.http(), &request).unwrap().body).unwrap();
    if let Some(error) = answer["error"].as_str() {
        return Err(error.to_owned());
    }
    let output = |output: &Value| {
        let shape = output["shape"].as_array().unwrap().iter().map(|size| size.as_i64().unwrap()).collect();
        let data = output["data"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap() as f32).collect();
        (output["name"].as_str().unwrap().to_owned(), shape, data)
    };
    Ok(answer["outputs"].as_array().unwrap().iter().map(output).collect())
}

fn infer_by_grpc(server: &Server, model: &str, inputs: &[(&str, &[i64], &[f32])]) -> Result<Vec<Output>, String> {
    let mut message = Message::new().bytes(1, model);
    for (name, shape, _) in inputs {
        message = message.message(5, Message::new().bytes(1, name).bytes(2, "FP32").packed(3, shape));
    }
    for (_, _, data) in inputs {
        message = message.bytes(7, data.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>());
    }
    let answer = Client::new(server.grpc()).call(INFER, &message.into_bytes());
    let answer = answer.map_err(|status| status.message().to_owned())?;
    let answer = proto::ModelInferResponse::decode(answer.as_slice()).unwrap();
    let outputs = answer.outputs.into_iter().zip(answer.raw_output_contents).map(|(output, raw)| {
        let data = raw.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
        (output.name, output.shape, data)
    });
    Ok(outputs.collect())
}

fn waits_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(10), "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Batches by their rows: `[[rows, count], …]`.
fn batch_counts(server: &Server, model: &str) -> Value {
    let answer = http::get(server.http(), &format!("/v2/models/{model}/stats")).unwrap();
    let statistics: Value = serde_json::from_slice(&answer.body).unwrap();
    let batches = statistics["model_stats"][0]["batch_stats"].as_array().unwrap();
    batches.iter().map(|batch| json!([batch["batch_size"], batch["compute_infer"]["count"]])).collect()
}

/// A model that sees the elements of all requests in one dimension.
const SEGMENTS: &str = "platform: \"onnxruntime_onnx\" max_batch_size: 8\n\
    instance_group { count: 1 kind: KIND_CPU }\n\
    dynamic_batching { preferred_batch_size: 6 max_queue_delay_microseconds: 10000000 }\n\
    input { name: \"X\" data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true }\n\
    batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO\n\
                  target_name: \"ENDS\" data_type: TYPE_INT32 source_input: \"X\" }\n\
    output { name: \"SUM\" data_type: TYPE_FP32 dims: 1 }\n\
    output { name: \"TWICE\" data_type: TYPE_FP32 dims: -1 }\n\
    batch_output { target_name: \"TWICE\" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: \"X\" }";

/// The same with the sum of all that a sequence brought so far, warmed up.
const RUNNING: &str = "platform: \"onnxruntime_onnx\" max_batch_size: 8\n\
    instance_group { count: 1 kind: KIND_CPU }\n\
    sequence_batching {\n\
        direct { max_queue_delay_microseconds: 200000 minimum_slot_utilization: 0.5 }\n\
        state { input_name: \"STATE\" output_name: \"TOTAL\" data_type: TYPE_FP32 dims: 1 } }\n\
    model_warmup { name: \"some\" batch_size: 3 inputs { key: \"X\" value { data_type: TYPE_FP32 dims: 5 \
    random_data: true } } }\n\
    input { name: \"X\" data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true }\n\
    batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO\n\
                  target_name: \"ENDS\" data_type: TYPE_INT32 source_input: \"X\" }\n\
    output { name: \"TOTAL\" data_type: TYPE_FP32 dims: 1 }\n\
    output { name: \"TWICE\" data_type: TYPE_FP32 dims: -1 }\n\
    batch_output { target_name: \"TWICE\" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: \"X\" }";

#[test]
fn requests_of_sequences_share_a_batch_where_the_input_is_ragged_and_keep_their_states() {
    let repository = Folder::new("ragged");
    repository::add(repository.path(), "running", RUNNING, Some(&onnx::running_segments()));
    let server = Server::deuteron(repository.path(), &["--shards=2"]);
    thread::scope(|scope| {
        for client in 0..6_u8 {
            let server = &server;
            scope.spawn(move || {
                let mut total = 0.0;
                for place in 0..5_u8 {
                    let values: Vec<f32> = (0..=(client + place) % 4).map(|at| f32::from(at + client * 10)).collect();
                    total += values.iter().sum::<f32>();
                    let parameters =
                        json!({"sequence_id": client + 1, "sequence_start": place == 0, "sequence_end": place == 4});
                    let input = json!({"name": "X", "shape": [1, values.len()], "datatype": "FP32", "data": values});
                    let body = json!({"parameters": parameters, "inputs": [input]}).to_string();
                    let answer = http::post(server.http(), "/v2/models/running/infer", body.as_bytes()).unwrap();
                    let answer: Value = serde_json::from_slice(&answer.body).unwrap();
                    assert_eq!(answer["outputs"][0]["data"], json!([total]), "client {client}: {answer}");
                    let twice: Vec<f32> = values.iter().map(|value| value * 2.0).collect();
                    assert_eq!(answer["outputs"][1]["data"], json!(twice), "client {client}: {answer}");
                }
            });
        }
    });
    let counts = batch_counts(&server, "running");
    let larger = counts.as_array().unwrap().iter().any(|batch| batch[0].as_u64() > Some(1));
    assert!(larger, "no two shared a batch: {counts}");
}

#[test]
fn requests_of_different_shapes_share_a_batch_where_the_input_is_ragged() {
    let repository = Folder::new("ragged");
    repository::add(repository.path(), "segments", SEGMENTS, Some(&onnx::segments()));
    let server = Server::deuteron(repository.path(), &["--shards=2"]);
    thread::scope(|scope| {
        for index in 0..6_u8 {
            let server = &server;
            scope.spawn(move || {
                let values: Vec<f32> = (0..=index % 4).map(|element| f32::from(element + index * 10)).collect();
                let shape = [1, i64::try_from(values.len()).unwrap()];
                let by = WAYS[usize::from(index) % 3];
                let got = infer(server, by, "segments", &[("X", &shape, &values)]).unwrap();
                let twice = values.iter().map(|value| value * 2.0).collect();
                let sum = ("SUM".to_owned(), vec![1, 1], vec![values.iter().sum()]);
                assert_eq!(got, [sum, ("TWICE".to_owned(), shape.to_vec(), twice)], "{by:?} {values:?}");
            });
        }
    });
    assert_eq!(batch_counts(&server, "segments"), json!([[6, 1]]));
    let metadata = http::get(server.http(), "/v2/models/segments").unwrap().body;
    let metadata: Value = serde_json::from_slice(&metadata).unwrap();
    assert_eq!(metadata["inputs"], json!([{"name": "X", "datatype": "FP32", "shape": [-1, -1]}]), "no batch input");
}

#[test]
fn requests_share_a_batch_with_the_same_set_of_inputs_alone() {
    let repository = Folder::new("optional");
    let config = "backend: \"identity\" max_batch_size: 8 dynamic_batching { }\n\
        input { name: \"INPUT0\" data_type: TYPE_FP32 dims: 1 }\n\
        input { name: \"INPUT1\" data_type: TYPE_FP32 dims: [ -1, 2 ] optional: true }\n\
        output { name: \"OUTPUT0\" data_type: TYPE_FP32 dims: 1 }\n\
        output { name: \"OUTPUT1\" data_type: TYPE_FP32 dims: [ -1, 2 ] }\n\
        parameters { key: \"execute_delay_ms\" value { string_value: \"400\" } }";
    repository::add(repository.path(), "maybe", config, None);
    let server = Server::deuteron(repository.path(), &["--shards=1"]);
    let ask = |by, value: f32, has_both: bool| {
        let both: [(&str, &[i64], &[f32]); 2] = [("INPUT0", &[1, 1], &[value]), ("INPUT1", &[1, 1, 2], &[value, 7.0])];
        let got = infer(&server, by, "maybe", &both[..if has_both { 2 } else { 1 }]).unwrap();
        let second = if has_both { vec![value, 7.0] } else { vec![0.0, 0.0] };
        let want = [("OUTPUT0".to_owned(), vec![1, 1], vec![value]), ("OUTPUT1".to_owned(), vec![1, 1, 2], second)];
        assert_eq!(got, want, "{by:?} {value}");
    };
    let pending = "nv_inference_pending_request_count{model=\"maybe\",version=\"1\"}";
    thread::scope(|scope| {
        scope.spawn(|| ask(By::Json, 0.0, true));
        waits_for("the model is busy", || batches_left(server.metrics(), "maybe") == 1);
        let waiting = [(By::Json, true), (By::Grpc, true), (By::Grpc, false), (By::Binary, false), (By::Json, false)];
        for (index, (by, has_both)) in (1_u8..).zip(waiting) {
            let ask = &ask;
            scope.spawn(move || ask(by, f32::from(index), has_both));
            waits_for("it waits", || metric(server.metrics(), pending) == u64::from(index));
        }
    });
    assert_eq!(batch_counts(&server, "maybe"), json!([[1, 1], [2, 1], [3, 1]]));
    let refused = |inputs: &[(&str, &[i64], &[f32])], want: &str| {
        for by in WAYS {
            assert_eq!(infer(&server, by, "maybe", inputs).unwrap_err(), want, "{by:?}");
        }
    };
    let missing = "inputs for model 'maybe'. Got input(s)";
    let provide = "Please provide all required input(s).";
    refused(
        &[("INPUT1", &[1, 1, 2], &[1.0, 2.0])],
        &format!(
            "[request id: <id_unknown>] expected number of inputs between 1 and 2 but got 1 {missing} ['INPUT1'], but \
             missing required input(s) ['INPUT0']. {provide}"
        ),
    );
    let input = |name| -> (&str, &[i64], &[f32]) { (name, &[1, 1], &[1.0]) };
    refused(
        &[input("INPUT0"), input("INPUT1"), input("INPUT2")],
        &format!(
            "[request id: <id_unknown>] expected number of inputs between 1 and 2 but got 3 {missing} \
             ['INPUT0','INPUT1','INPUT2'], but missing required input(s) []. {provide}"
        ),
    );
    refused(&[input("INPUT0"), input("INPUT2")], "unexpected inference input 'INPUT2' for model 'maybe'");
}

#[test]
fn an_onnx_model_uses_its_own_value_for_an_optional_input_that_is_left_out() {
    let repository = Folder::new("initial");
    let config = "platform: \"onnxruntime_onnx\"\n\
        input { name: \"x\" data_type: TYPE_FP32 dims: 2 }\n\
        input { name: \"b\" data_type: TYPE_FP32 dims: 2 optional: true }\n\
        output { name: \"y\" data_type: TYPE_FP32 dims: 2 }";
    repository::add(repository.path(), "add", config, Some(&onnx::add_default()));
    let server = Server::deuteron(repository.path(), &[]);
    for by in WAYS {
        let check = |inputs: &[(&str, &[i64], &[f32])], want: [f32; 2]| {
            let got = infer(&server, by, "add", inputs).unwrap();
            assert_eq!(got, [("y".to_owned(), vec![2], want.to_vec())], "{by:?}");
        };
        check(&[("x", &[2], &[1.0, 2.0])], [11.0, 22.0]);
        check(&[("b", &[2], &[3.0, 4.0]), ("x", &[2], &[1.0, 2.0])], [4.0, 6.0]);
    }
}
