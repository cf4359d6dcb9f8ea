//! Reshape and shape tensors, on the server as a process: by JSON, binary data and gRPC.

use std::thread;

use crate::support::folder::Folder;
use crate::support::grpc::Client;
use crate::support::onnx::{FLOAT, INT64, Onnx};
use crate::support::protobuf::Message;
use crate::support::repository;
use crate::support::{http, server::Server};
use deuteron::wire::proto::inference as proto;
use prost::Message as _;
use serde_json::{Value, json};

/// `y = x + x` of one value a row; the model's own shapes are `[N]`.
fn twice() -> Vec<u8> {
    let onnx = Onnx::default().node("Add", &["x", "x"], &["y"], &[]);
    onnx.input("x", FLOAT, &[-1]).output("y", FLOAT, &[-1]).into_bytes()
}

/// `y` is `x` in the shape that `s` holds.
fn reshaping() -> Vec<u8> {
    let onnx = Onnx::default().node("Reshape", &["x", "s"], &["y"], &[]);
    onnx.input("x", FLOAT, &[-1, 4]).input("s", INT64, &[3]).output("y", FLOAT, &[-1, -1, -1]).into_bytes()
}

fn post(server: &Server, model: &str, body: &Value) -> Value {
    let path = format!("/v2/models/{model}/infer");
    serde_json::from_slice(&http::post(server.http(), &path, body.to_string().as_bytes()).unwrap().body).unwrap()
}

fn fp32(name: &str, shape: &[i64], data: &[f32]) -> Value {
    json!({"name": name, "shape": shape, "datatype": "FP32", "data": data})
}

/// The shape and the elements of the only output, by gRPC.
fn by_grpc(server: &Server, model: &str, shape: &[i64], data: &[f32]) -> Result<(Vec<i64>, Vec<f32>), String> {
    let input = Message::new().bytes(1, "x").bytes(2, "FP32").packed(3, shape);
    let raw: Vec<u8> = data.iter().flat_map(|value| value.to_le_bytes()).collect();
    let message = Message::new().bytes(1, model).message(5, input).bytes(7, raw);
    let answer = Client::new(server.grpc()).call("/inference.GRPCInferenceService/ModelInfer", &message.into_bytes());
    let answer = answer.map_err(|status| status.message().to_owned())?;
    let answer = proto::ModelInferResponse::decode(answer.as_slice()).unwrap();
    let data = answer.raw_output_contents[0].chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap()));
    Ok((answer.outputs[0].shape.clone(), data.collect()))
}

fn tensor(side: &str, name: &str, dims: &str, reshape: &str) -> String {
    format!("{side} {{ name: \"{name}\" data_type: TYPE_FP32 dims: [ {dims} ] reshape: {{ shape: [ {reshape} ] }} }}\n")
}

#[test]
fn the_model_sees_its_own_shapes_and_clients_see_dims() {
    let repository = Folder::new("reshape");
    let scalars = format!(
        "platform: \"onnxruntime_onnx\" max_batch_size: 8 dynamic_batching {{ }}\n{}{}",
        tensor("input", "x", "1", ""),
        tensor("output", "y", "1", "")
    );
    repository::add(repository.path(), "scalars", &scalars, Some(&twice()));
    repository::add(repository.path(), "generated", "", Some(&twice()));
    let flat = format!(
        "platform: \"onnxruntime_onnx\" max_batch_size: 0\n{}{}",
        tensor("input", "x", "2, 3", "6"),
        tensor("output", "y", "3, 2", "6")
    );
    repository::add(repository.path(), "flat", &flat, Some(&twice()));
    let open = format!(
        "backend: \"identity\" max_batch_size: 8\n{}{}",
        tensor("input", "x", "-1, 2, -1", "-1, 1, 2, -1"),
        tensor("output", "y", "1, -1, 2, -1", "-1, 1, 2, -1")
    );
    repository::add(repository.path(), "open", &open, None);
    let server = Server::deuteron(repository.path(), &["--shards=1"]);

    for model in ["scalars", "generated"] {
        let answer = post(&server, model, &json!({"inputs": [fp32("x", &[3, 1], &[1.0, 2.0, 4.0])]}));
        assert_eq!(answer["outputs"], json!([fp32_shown("y", &[3, 1], &[2.0, 4.0, 8.0])]), "{model}: {answer}");
        assert_eq!(by_grpc(&server, model, &[2, 1], &[1.0, 5.0]), Ok((vec![2, 1], vec![2.0, 10.0])));
        let metadata: Value =
            serde_json::from_slice(&http::get(server.http(), &format!("/v2/models/{model}")).unwrap().body).unwrap();
        assert_eq!(metadata["inputs"], json!([{"name": "x", "datatype": "FP32", "shape": [-1, 1]}]));
        let refused = post(&server, model, &json!({"inputs": [fp32("x", &[3], &[1.0, 2.0, 4.0])]}));
        let text = refused["error"].as_str().unwrap();
        assert!(text.contains("unexpected shape for input 'x' for model"), "{text}");
        assert!(text.contains("Expected [-1,1], got [3]."), "{text}");
    }
    let six = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let answer = post(&server, "flat", &json!({"inputs": [fp32("x", &[2, 3], &six)]}));
    assert_eq!(answer["outputs"][0]["shape"], json!([3, 2]), "{answer}");
    let error = by_grpc(&server, "flat", &[6], &six).unwrap_err();
    assert!(error.contains("Expected [2,3], got [6]."), "{error}");
    let answer = post(&server, "open", &json!({"inputs": [fp32("x", &[1, 3, 2, 1], &six)]}));
    assert_eq!(answer["outputs"][0]["shape"], json!([1, 1, 3, 2, 1]), "{answer}");
    assert_eq!(by_grpc(&server, "open", &[1, 1, 2, 3], &six), Ok((vec![1, 1, 1, 2, 3], six.to_vec())));
}

fn fp32_shown(name: &str, shape: &[i64], data: &[f32]) -> Value {
    json!({"name": name, "datatype": "FP32", "shape": shape, "data": data})
}

#[test]
fn requests_share_a_batch_with_the_same_values_of_a_shape_tensor_alone() {
    let repository = Folder::new("shape-tensor");
    let config = "platform: \"onnxruntime_onnx\" max_batch_size: 8\n\
        instance_group { count: 1 kind: KIND_CPU }\n\
        dynamic_batching { preferred_batch_size: 6 max_queue_delay_microseconds: 500000 }\n\
        input [ { name: \"x\" data_type: TYPE_FP32 dims: 4 },\n\
                { name: \"s\" data_type: TYPE_INT64 dims: 2 is_shape_tensor: true } ]\n\
        output { name: \"y\" data_type: TYPE_FP32 dims: [ -1, -1 ] }";
    repository::add(repository.path(), "m", config, Some(&reshaping()));
    let server = Server::deuteron(repository.path(), &["--shards=2"]);
    let infer = |rows: i64, shape: [i64; 2]| {
        let data: Vec<f32> = (0..rows * 4).map(|index| index as f32).collect();
        let shape_tensor = json!({"name": "s", "shape": [2], "datatype": "INT64", "data": shape});
        let answer = post(&server, "m", &json!({"inputs": [fp32("x", &[rows, 4], &data), shape_tensor]}));
        assert_eq!(answer["outputs"][0]["shape"], json!([rows, shape[0], shape[1]]), "{answer}");
        assert_eq!(answer["outputs"][0]["data"], json!(data));
    };
    let together = |requests: &[(i64, [i64; 2])]| {
        thread::scope(|scope| {
            for (rows, shape) in requests {
                scope.spawn(|| infer(*rows, *shape));
            }
        });
        let statistics = http::get(server.http(), "/v2/models/m/stats").unwrap().body;
        let statistics: Value = serde_json::from_slice(&statistics).unwrap();
        let counts =
            ["inference_count", "execution_count"].map(|name| statistics["model_stats"][0][name].as_u64().unwrap());
        (counts[0], counts[1])
    };
    assert_eq!(together(&[(1, [2, 2]), (2, [2, 2]), (3, [2, 2])]), (6, 1), "the same values");
    assert_eq!(together(&[(3, [2, 2]), (3, [4, 1])]), (12, 3), "other values");
    let refused = post(
        &server,
        "m",
        &json!({"inputs": [fp32("x", &[1, 4], &[0.0; 4]),
        {"name": "s", "shape": [1, 2], "datatype": "INT64", "data": [2, 2]}]}),
    );
    let text = refused["error"].as_str().unwrap();
    assert!(text.contains("unexpected shape for input 's' for model 'm'. Expected [2], got [1,2]."), "{text}");
}
