//! Python models by `tritonclient`, over HTTP and gRPC, sync and asyncio. The checks are in
//! `tests/python_models/check.py`.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::zoo::Models;
use crate::support::protobuf::Message;
use crate::support::python::Environment;
use crate::support::{grpc, http};

#[test]
fn tritonclient_gets_what_python_models_answer() {
    let Some(models) = Models::new() else { return };
    let Some(environment) = Environment::shared() else { return };
    let names = "all_types async_execute batch_concat double late_answers layouts nms optional_inputs request_echo session_memory \
        string_forms token_stream wordpiece_tokenizer";
    let zoo = models.with(names).serve(&[]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python_models/check.py");
    let output = Command::new(environment.python())
        .arg(script)
        .args([zoo.server.http().to_string(), zoo.server.grpc().to_string()])
        .output()
        .expect("the interpreter starts");
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    assert!(output.status.success(), "{text}{}\n{}", String::from_utf8_lossy(&output.stderr), zoo.server.log());
    assert_eq!(text.lines().filter(|line| line.starts_with("ok ")).count(), 9, "{text}");
}

#[test]
fn models_of_scikit_learn_and_torch_run_where_they_are() {
    for (model, module, name, want) in [
        ("sklearn_classifier", "sklearn", "features", serde_json::json!([1, 0])),
        ("torch_mlp", "torch", "INPUT", serde_json::json!([6.0, 1.0])),
    ] {
        let Some(models) = Models::new() else { return };
        let is_there = Command::new(models.python()).args(["-c", &format!("import {module}")]).output();
        if !is_there.is_ok_and(|output| output.status.success()) {
            crate::support::skipped::skip(&format!("the models' environment has no {module}"));
            continue;
        }
        let zoo = models.with(model).serve(&[]);
        let input =
            serde_json::json!({ "name": name, "datatype": "FP32", "shape": [2, 2], "data": [5.0, 5.0, 0.0, 0.0] });
        assert_eq!(zoo.ask(model, &[input]), Ok(want), "{model}");
    }
}

const SOURCE: &str = "
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        two = pb_utils.Tensor('y', np.array([1, 2], np.float32))
        return [pb_utils.InferenceResponse([two]) for _ in requests]
";
const SINK: &str = "
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
";

/// Answers and refusals are those of tritonserver 2.51.
#[test]
fn a_model_may_have_no_inputs_or_no_outputs() {
    let Some(models) = Models::new() else { return };
    let models = models
        .add("source", "backend: 'python' output { name: 'y' data_type: TYPE_FP32 dims: 2 }", SOURCE)
        .add("sink", "backend: 'python' input { name: 'x' data_type: TYPE_FP32 dims: 1 }", SINK);
    let zoo = models.serve(&[]);
    let x = json!({ "name": "x", "datatype": "FP32", "shape": [1], "data": [1.0] });
    let (status, answer) = zoo.infer("source", &json!({ "inputs": [] }));
    assert_eq!((status, &answer["outputs"][0]["data"]), (200, &json!([1.0, 2.0])), "{answer}");
    let asked = zoo.infer("source", &json!({ "inputs": [], "outputs": [{ "name": "y" }] }));
    assert_eq!((asked.0, &asked.1["outputs"]), (200, &answer["outputs"]));
    let (status, refused) = zoo.infer("source", &json!({ "inputs": [x] }));
    let text = refused["error"].as_str().unwrap();
    assert!(status == 400 && text.contains("expected 0 inputs but got 1 inputs for model 'source'"), "{refused}");
    let (status, refused) = zoo.infer("source", &json!({ "inputs": [], "outputs": [{ "name": "z" }] }));
    assert_eq!((status, &refused["error"]), (400, &json!("unexpected inference output 'z' for model 'source'")));
    let generated = http::post(zoo.server.http(), "/v2/models/source/generate", b"{}").unwrap();
    let generated: Value = serde_json::from_slice(&generated.body).unwrap();
    assert_eq!(generated["y"], json!([1.0, 2.0]), "{generated}");
    let message = Message::new().bytes(1, "source").into_bytes();
    let answered = grpc::Client::new(zoo.server.grpc()).call("/inference.GRPCInferenceService/ModelInfer", &message);
    let bytes = [1.0_f32, 2.0].map(f32::to_le_bytes).concat();
    assert!(answered.unwrap().windows(bytes.len()).any(|part| part == bytes));
    let (status, answer) = zoo.infer("sink", &json!({ "inputs": [x] }));
    assert_eq!((status, &answer["outputs"]), (200, &json!([])), "{answer}");
}
