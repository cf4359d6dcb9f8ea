//! Models with a `steps.json`: lists of steps that are a model, that stand for a model.py, and that stand around a model of ONNX.
//! Each case is a folder of files and the requests that it answers.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::folder::Folder;
use crate::support::http;
use crate::support::metrics;
use crate::support::onnx::{FLOAT, Onnx};
use crate::support::python::Environment;
use crate::support::server::Server;
use crate::support::wait::wait_until;

/// A model that is not started: its `model.py` fails at once.
const BROKEN_PYTHON: &str = "raise SystemExit('model.py must not run')\n";
/// A configuration of a list that turns scores into labels.
const HEAD_CONFIG: &str = "max_batch_size: 8\n\
    input { name: \"scores\" data_type: TYPE_FP32 dims: 3 }\n\
    output { name: \"label\" data_type: TYPE_STRING dims: 1 reshape { shape: [] } }\n\
    output { name: \"best\" data_type: TYPE_FP32 dims: 2 }\n";
/// The list.
const HEAD: &str = r#"{"steps": [
    {"step": "head", "input": "scores", "outputs": {"label": "label", "scores": "best"},
     "activation": "softmax", "top_k": 2, "labels": ["cat", "dog", "eel"]}
]}"#;

/// A warm-up, which runs through the steps: the model between them is tried by itself.
const WARM_UP: &str = "model_warmup { name: \"w\" batch_size: 1 \
    inputs { key: \"scores\" value { data_type: TYPE_FP32 dims: 3 zero_data: true } } }\n";

fn write(repository: &Path, model: &str, files: &[(&str, &str)]) {
    for (name, text) in files {
        let path = repository.join(model).join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

/// A model `y = x + x` of FP32 `[-1, 3]`.
fn doubling() -> Vec<u8> {
    let graph = Onnx::default().node("Add", &["x", "x"], &["y"], &[]);
    graph.input("x", FLOAT, &[-1, 3]).output("y", FLOAT, &[-1, 3]).into_bytes()
}

fn infer(server: &Server, model: &str, inputs: &Value) -> (u16, Value) {
    let body = json!({ "inputs": inputs }).to_string();
    let answer = http::post(server.http(), &format!("/v2/models/{model}/infer"), body.as_bytes()).unwrap();
    (answer.status, serde_json::from_slice(&answer.body).unwrap())
}

/// The values of an output.
fn output<'a>(answer: &'a Value, name: &str) -> &'a Value {
    let outputs = answer["outputs"].as_array().unwrap_or_else(|| panic!("no outputs: {answer}"));
    &outputs.iter().find(|output| output["name"] == name).unwrap()["data"]
}

fn scores(rows: &[[f32; 3]]) -> Value {
    json!([{ "name": "scores", "shape": [rows.len(), 3], "datatype": "FP32", "data": rows }])
}

#[test]
fn a_list_of_steps_is_a_model_by_itself_instead_of_a_model_py_and_around_an_onnx_file() {
    let folder = Folder::new("steps");
    let repository = folder.path();
    write(
        repository,
        "list",
        &[("config.pbtxt", &format!("backend: \"steps\"\n{HEAD_CONFIG}")), ("1/steps.json", HEAD)],
    );
    write(repository, "found", &[("config.pbtxt", HEAD_CONFIG), ("1/steps.json", HEAD)]);
    let python = format!("backend: \"python\"\n{HEAD_CONFIG}");
    write(repository, "twin", &[("config.pbtxt", &python), ("1/steps.json", HEAD), ("1/model.py", BROKEN_PYTHON)]);
    let around = HEAD.replace("\"input\": \"scores\"", "\"input\": \"y\"").replace(
        "{\"steps\": [",
        "{\"steps\": [{\"step\": \"cast\", \"input\": \"scores\", \"output\": \"x\", \"datatype\": \"FP32\"}, {\"step\": \"model\"},",
    );
    let config = format!(
        "{HEAD_CONFIG}dynamic_batching {{ max_queue_delay_microseconds: 20000 }}\ninstance_group {{ count: 1 }}\n{WARM_UP}"
    );
    write(repository, "around", &[("config.pbtxt", &config), ("1/steps.json", &around)]);
    fs::write(repository.join("around/1/model.onnx"), doubling()).unwrap();
    let server = Server::deuteron(repository, &["--onnx-engine=embedded"]);
    for model in ["list", "found", "twin", "around"] {
        let (status, answer) = infer(&server, model, &scores(&[[0.0, 2.0, 1.0], [9.0, 0.0, 0.0]]));
        assert_eq!(status, 200, "{model}: {answer}");
        assert_eq!(output(&answer, "label"), &json!(["dog", "cat"]), "{model}");
        let best: Vec<f64> = serde_json::from_value(output(&answer, "best").clone()).unwrap();
        let factor = if model == "around" { 2.0_f64 } else { 1.0 };
        let sum = 1.0 + (-factor).exp() + (-2.0 * factor).exp();
        assert!((best[0] - 1.0 / sum).abs() < 1e-6 && best.len() == 4, "{model}: {best:?}");
        let metadata = http::get(server.http(), &format!("/v2/models/{model}")).unwrap();
        let metadata: Value = serde_json::from_slice(&metadata.body).unwrap();
        assert_eq!(metadata["inputs"][0]["name"], "scores", "{model}");
        let statistics = http::get(server.http(), &format!("/v2/models/{model}/stats")).unwrap();
        let statistics: Value = serde_json::from_slice(&statistics.body).unwrap();
        assert_eq!(statistics["model_stats"][0]["inference_count"], 2, "{model}");
    }
    assert!(server.log().contains("steps.json is run instead of model.py"), "{}", server.log());
}

/// As people write them: the `model.py` runs the network by itself, so that the configuration is that of a Python model.
#[test]
fn a_list_around_a_model_onnx_stands_for_the_model_py_that_runs_it() {
    let folder = Folder::new("steps-network");
    let list = r#"{"steps": [{"step": "model"}, {"step": "head", "input": "y", "outputs": {"label": "label", "scores": "best"},
        "activation": "softmax", "top_k": 2, "labels": ["cat", "dog", "eel"]}]}"#;
    let config = format!("backend: \"python\"\n{}", HEAD_CONFIG.replace("\"scores\"", "\"x\""));
    let files = [("config.pbtxt", config.as_str()), ("1/steps.json", list), ("1/model.py", BROKEN_PYTHON)];
    write(folder.path(), "m", &files);
    fs::write(folder.path().join("m/1/model.onnx"), doubling()).unwrap();
    let server = Server::deuteron(folder.path(), &["--onnx-engine=embedded"]);
    let rows = json!([{ "name": "x", "shape": [1, 3], "datatype": "FP32", "data": [0.0, 2.0, 1.0] }]);
    let (status, answer) = infer(&server, "m", &rows);
    assert_eq!((status, output(&answer, "label")), (200, &json!(["dog"])), "{answer}");
    assert!(server.log().contains("steps.json is run around model.onnx instead of model.py"), "{}", server.log());
    drop(server);
    let off = ["--steps=off", "--exit-on-error=false", "--strict-readiness=false"];
    let server = Server::deuteron(folder.path(), &off);
    assert_ne!(http::get(server.http(), "/v2/models/m/ready").unwrap().status, 200, "the model.py is run");
}

#[test]
fn requests_of_clients_share_batches_of_the_model_between_steps() {
    let folder = Folder::new("steps-batches");
    let list =
        r#"{"steps": [{"step": "model"}, {"step": "cast", "input": "y", "output": "whole", "datatype": "INT64"}]}"#;
    let config = "max_batch_size: 8\n\
        input { name: \"x\" data_type: TYPE_FP32 dims: 3 }\n\
        output { name: \"whole\" data_type: TYPE_INT64 dims: 3 }\n\
        dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 60000000 }\n\
        instance_group { count: 1 }\n\
        parameters { key: \"placement\" value { string_value: \"worker\" } }\n";
    write(folder.path(), "m", &[("config.pbtxt", config), ("1/steps.json", list)]);
    fs::write(folder.path().join("m/1/model.onnx"), doubling()).unwrap();
    let server = Server::deuteron(folder.path(), &["--onnx-engine=embedded"]);
    // Four clients fill the preferred batch: without sharing one, each would wait for a minute.
    std::thread::scope(|scope| {
        for client in 0..4 {
            let server = &server;
            scope.spawn(move || {
                let values = [client as f32, 1.25, -1.25];
                let inputs = json!([{ "name": "x", "shape": [1, 3], "datatype": "FP32", "data": values }]);
                let (status, answer) = infer(server, "m", &inputs);
                assert_eq!(status, 200, "{answer}");
                assert_eq!(output(&answer, "whole"), &json!([2 * client, 2, -2]));
            });
        }
    });
    let statistics = http::get(server.http(), "/v2/models/m/stats").unwrap();
    let statistics: Value = serde_json::from_slice(&statistics.body).unwrap();
    let model = &statistics["model_stats"][0];
    assert_eq!((&model["inference_count"], &model["execution_count"]), (&json!(4), &json!(1)));
}

/// A batch counts as one execution, also if a step refuses its first request.
#[test]
fn a_request_that_a_step_refuses_leaves_the_rest_of_its_batch() {
    let folder = Folder::new("steps-refuse");
    let parse = r#"{"step": "parse", "input": "text", "output": "x", "datatype": "FP32"}"#;
    let cast = |input| format!(r#"{{"step": "cast", "input": "{input}", "output": "whole", "datatype": "INT64"}}"#);
    let config = "max_batch_size: 8\n\
        input { name: \"text\" data_type: TYPE_STRING dims: 1 reshape { shape: [] } }\n\
        output { name: \"whole\" data_type: TYPE_INT64 dims: 3 }\n\
        dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 60000000 }\n\
        instance_group { count: 1 }\n\
        parameters { key: \"placement\" value { string_value: \"worker\" } }\n";
    let around = format!(r#"{{"steps": [{parse}, {{"step": "model"}}, {}]}}"#, cast("y"));
    write(folder.path(), "around", &[("config.pbtxt", config), ("1/steps.json", &around)]);
    fs::write(folder.path().join("around/1/model.onnx"), doubling()).unwrap();
    let list = format!(r#"{{"steps": [{parse}, {}]}}"#, cast("x"));
    write(
        folder.path(),
        "list",
        &[("config.pbtxt", &format!("backend: \"steps\"\n{config}")), ("1/steps.json", &list)],
    );
    let server = Server::deuteron(folder.path(), &["--onnx-engine=embedded"]);
    for (model, factor) in [("around", 2), ("list", 1)] {
        let ask = |text: &str| {
            infer(&server, model, &json!([{ "name": "text", "shape": [1, 1], "datatype": "BYTES", "data": [text] }]))
        };
        let waiting = format!("nv_inference_pending_request_count{{model=\"{model}\",version=\"1\"}}");
        std::thread::scope(|scope| {
            let refused = scope.spawn(|| ask("[1, 2"));
            wait_until("the first request waits", || metrics::metric(server.metrics(), &waiting) == 1);
            for client in 0..3 {
                let ask = &ask;
                scope.spawn(move || {
                    let (status, answer) = ask(&format!("[{client}, 1, -1]"));
                    assert_eq!(status, 200, "{answer}");
                    assert_eq!(output(&answer, "whole"), &json!([factor * client, factor, -factor]), "{model}");
                });
            }
            let (status, answer) = refused.join().unwrap();
            assert_eq!(status, 400, "{answer}");
        });
        let statistics = http::get(server.http(), &format!("/v2/models/{model}/stats")).unwrap();
        let statistics: Value = serde_json::from_slice(&statistics.body).unwrap();
        let counts = &statistics["model_stats"][0];
        let counts = ["inference_count", "execution_count"].map(|name| counts[name].as_u64().unwrap());
        assert_eq!(counts, [3, 1], "{model}");
    }
}

/// Steps before a model count as its input, those behind it as its output: both are far longer here than the model.
#[test]
fn the_time_of_steps_is_that_of_input_and_output() {
    let folder = Folder::new("steps-times");
    let list = r#"{"steps": [
        {"step": "parse", "input": "text", "output": "x", "datatype": "FP32"},
        {"step": "model"},
        {"step": "template", "inputs": {"tensors": ["y"]}, "output": "json", "template": {"tensor": "y"}, "per_row": true}
    ]}"#;
    let config = "max_batch_size: 8\n\
        input { name: \"text\" data_type: TYPE_STRING dims: 1 reshape { shape: [] } }\n\
        output { name: \"json\" data_type: TYPE_STRING dims: 1 reshape { shape: [] } }\n";
    write(folder.path(), "m", &[("config.pbtxt", config), ("1/steps.json", list)]);
    let graph = Onnx::default().node("Add", &["x", "x"], &["y"], &[]);
    let graph = graph.input("x", FLOAT, &[-1, -1]).output("y", FLOAT, &[-1, -1]);
    fs::write(folder.path().join("m/1/model.onnx"), graph.into_bytes()).unwrap();
    let server = Server::deuteron(folder.path(), &["--onnx-engine=embedded"]);
    let numbers = format!("[{}]", vec!["0.5"; 200_000].join(","));
    let inputs = json!([{ "name": "text", "shape": [1, 1], "datatype": "BYTES", "data": [numbers] }]);
    let (status, answer) = infer(&server, "m", &inputs);
    assert_eq!(status, 200, "{answer}");
    assert!(output(&answer, "json")[0].as_str().unwrap().starts_with("[1.0, 1.0, "));
    let statistics = http::get(server.http(), "/v2/models/m/stats").unwrap();
    let statistics: Value = serde_json::from_slice(&statistics.body).unwrap();
    let times = &statistics["model_stats"][0]["inference_stats"];
    let [input, infer, output] =
        ["compute_input", "compute_infer", "compute_output"].map(|name| times[name]["ns"].as_u64().unwrap());
    assert!(input > infer && output > infer, "{times}");
}

#[test]
fn steps_are_turned_off_by_a_flag_or_a_parameter() {
    let folder = Folder::new("steps-off");
    let off = "parameters { key: \"steps\" value { string_value: \"off\" } }\n";
    let python = format!("backend: \"python\"\n{HEAD_CONFIG}");
    let files = [("1/steps.json", HEAD), ("1/model.py", BROKEN_PYTHON)];
    write(folder.path(), "off", &[("config.pbtxt", &format!("{python}{off}"))]);
    write(folder.path(), "on", &[("config.pbtxt", &python)]);
    ["off", "on"].iter().for_each(|model| write(folder.path(), model, &files));
    for (flags, want) in [(&[][..], ["off failed", "on ready"]), (&["--steps=off"], ["off failed", "on failed"])] {
        let flags: Vec<&str> =
            ["--exit-on-error=false", "--strict-readiness=false"].iter().chain(flags).copied().collect();
        let server = Server::deuteron(folder.path(), &flags);
        let is_ready =
            |model: &str| http::get(server.http(), &format!("/v2/models/{model}/ready")).unwrap().status == 200;
        let got = ["off", "on"].map(|model| format!("{model} {}", if is_ready(model) { "ready" } else { "failed" }));
        assert_eq!(got, want, "{flags:?}");
    }
}

/// Names of files, and their contents.
type Files = Vec<(String, String)>;

/// Lists and configurations that are refused, each with the reason that the repository's index shows.
#[test]
fn a_faulty_list_is_refused_with_its_line() {
    let list = |text: &str| vec![("1/steps.json".to_owned(), text.to_owned())];
    let config = |rest: &str| ("config.pbtxt".to_owned(), format!("backend: \"steps\"\n{HEAD_CONFIG}{rest}"));
    let with = |text: &str| [vec![config("")], list(text)].concat();
    let python = ("config.pbtxt".to_owned(), format!("backend: \"python\"\n{HEAD_CONFIG}"));
    let parameter = "parameters { key: \"steps\" value { string_value: \"no\" } }";
    let sequences = "sequence_batching { }";
    let cases: Vec<(&str, Files, &str)> = vec![
        ("missing", vec![config("")], "cannot read 'missing/1/steps.json': No such file or directory"),
        ("text", with("{"), "text/1/steps.json: line 1: "),
        (
            "kind",
            with("{\"steps\": [\n{\"step\": \"heads\"}]}"),
            "kind/1/steps.json: step 1: line 2: \"step\": unknown kind \"heads\"",
        ),
        (
            "file",
            with(&HEAD.replace("\"labels\": [\"cat\", \"dog\", \"eel\"]", "\"labels_file\": \"x.txt\"")),
            "file/1/steps.json: step 1: line 3: \"labels_file\": cannot read 'x.txt': ",
        ),
        (
            "input",
            with(&HEAD.replace("\"input\": \"scores\"", "\"input\": \"logits\"")),
            "input/1/steps.json: a step reads 'logits', which is no input of the configuration ('scores') and which no step before it writes",
        ),
        (
            "output",
            with(&HEAD.replace("\"scores\": \"best\"", "\"scores\": \"worst\"")),
            "output/1/steps.json: no step writes 'best', which is an output of the configuration",
        ),
        (
            "model",
            with("{\"steps\": [{\"step\": \"model\"}]}"),
            "model/1/steps.json: the step \"model\" needs a model of ONNX",
        ),
        (
            "twin",
            [vec![python, ("1/model.py".to_owned(), String::new())], list("{\"steps\": [{\"step\": \"model\"}]}")]
                .concat(),
            "twin/1/steps.json: the step \"model\" needs a model of ONNX",
        ),
        (
            "parameter",
            [vec![config(parameter)], list(HEAD)].concat(),
            "model 'parameter': the parameter 'steps' must be 'on' or 'off', but is 'no'",
        ),
        (
            "sequences",
            [vec![config(sequences)], list(HEAD)].concat(),
            "model 'sequences' has steps.json and 'sequence_batching', which do not go together",
        ),
    ];
    let folder = Folder::new("steps-refused");
    for (model, files, _) in &cases {
        let files: Vec<_> = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        write(folder.path(), model, &files);
        fs::create_dir_all(folder.path().join(model).join("1")).unwrap();
    }
    let server = Server::deuteron(folder.path(), &["--exit-on-error=false", "--strict-readiness=false"]);
    let index = http::post(server.http(), "/v2/repository/index", b"{}").unwrap();
    let index: Vec<Value> = serde_json::from_slice(&index.body).unwrap();
    for (model, _, want) in &cases {
        let entry =
            index.iter().find(|entry| entry["name"] == *model).unwrap_or_else(|| panic!("{model} is not listed"));
        let reason = entry["reason"].as_str().unwrap();
        assert!(reason.contains(want), "{model}: {reason}\nexpected: {want}");
    }
}

#[test]
fn a_request_that_a_step_refuses_is_the_clients_mistake_and_an_answer_of_another_shape_the_models() {
    let folder = Folder::new("steps-mistakes");
    let list =
        r#"{"steps": [{"step": "head", "input": "scores", "outputs": {"scores": "best"}, "activation": "softmax"}]}"#;
    let open = "backend: \"steps\" input { name: \"scores\" data_type: TYPE_STRING dims: [-1] } \
                output { name: \"best\" data_type: TYPE_FP32 dims: [-1] }";
    write(folder.path(), "texts", &[("config.pbtxt", open), ("1/steps.json", list)]);
    let fixed = "backend: \"steps\" input { name: \"scores\" data_type: TYPE_FP32 dims: [-1] } \
                 output { name: \"best\" data_type: TYPE_FP32 dims: [2] }";
    write(folder.path(), "fixed", &[("config.pbtxt", fixed), ("1/steps.json", list)]);
    let server = Server::deuteron(folder.path(), &[]);
    let (status, answer) =
        infer(&server, "texts", &json!([{ "name": "scores", "shape": [1], "datatype": "BYTES", "data": ["x"] }]));
    assert_eq!(
        (status, answer["error"].as_str().unwrap()),
        (400, "step 1 (head): 'scores' must hold numbers, but it is BYTES")
    );
    let three =
        |count: usize| json!([{ "name": "scores", "shape": [count], "datatype": "FP32", "data": vec![0.5; count] }]);
    assert_eq!(infer(&server, "fixed", &three(2)).0, 200);
    let (status, answer) = infer(&server, "fixed", &three(3));
    let want = "output 'best' of model 'fixed' must be FP32 with shape [2], but the steps made FP32 with shape [3]";
    assert_eq!((status, answer["error"].as_str().unwrap()), (500, want));
}

/// The list's twin in Python, as people write it.
const HEAD_PYTHON: &str = r#"
import numpy as np
import triton_python_backend_utils as pb_utils

LABELS = ["cat", "dog", "eel"]


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            scores = pb_utils.get_input_tensor_by_name(request, "scores").as_numpy()
            e = np.exp(scores - scores.max(axis=1, keepdims=True))
            e = e / e.sum(axis=1, keepdims=True)
            best = np.argsort(-e, axis=1, kind="stable")[:, :2]
            label = np.array([LABELS[row[0]] for row in best], dtype=object).reshape(-1, 1)
            values = np.take_along_axis(e, best, axis=1).astype(np.float32)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("label", label), pb_utils.Tensor("best", values)]))
        return answers
"#;

#[test]
fn steps_are_compared_with_the_model_py_beside_them() {
    let Some(python) = Environment::shared() else { return };
    let folder = Folder::new("steps-compare");
    let config = format!("backend: \"python\"\n{HEAD_CONFIG}");
    let files = [("config.pbtxt", config.as_str()), ("1/model.py", HEAD_PYTHON), ("1/steps.json", HEAD)];
    write(folder.path(), "equal", &files);
    let wrong = HEAD.replace("\"dog\"", "\"fox\"");
    write(folder.path(), "wrong", &[files[0], files[1], ("1/steps.json", &wrong)]);
    write(folder.path(), "alone", &[files[0], files[2]]);
    let compared = |arguments: &[&str]| {
        let (model, rest) = arguments.split_first().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_deuteron"));
        command.args(["steps", "compare"]).arg(folder.path().join(model)).args(rest);
        command.env("DEUTERON_BACKEND_CONFIG", format!("python,interpreter={}", python.python().display()));
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.code(), text)
    };
    let (code, text) = compared(&["equal", "--count=40"]);
    assert!(code == Some(0) && text.starts_with("40 requests: 40 equal, 0 different, 0 refused by both"), "{text}");
    assert!(text.contains("median time: model.py ") && !text.contains("first difference"), "{text}");
    let body = r#"{"inputs":[{"name":"scores","shape":[1,3],"datatype":"FP32","data":[0,1,0]}]}"#;
    let request = folder.path().join("request.json");
    fs::write(&request, body).unwrap();
    let (code, text) = compared(&["wrong", request.to_str().unwrap()]);
    let want = format!("first difference: {}, label[0]: model.py dog, steps fox\n", request.display());
    assert!(code == Some(1) && text.contains(&want), "{text}");
    let (code, text) = compared(&["alone"]);
    assert!(code == Some(1) && text.contains("model.py: No such file"), "{text}");

    // Requests that a server has recorded.
    let trace = folder.path().join("trace.json");
    let destination = format!("--trace-config=triton,file={}", trace.display());
    let flags = [&destination[..], "--trace-config=rate=1", "--trace-config=level=TENSORS"];
    let mut server = Server::deuteron(&folder.path().join("equal"), &flags);
    for row in [[0.0, 2.0, 1.0], [4.0, 0.5, 1.0]] {
        assert_eq!(infer(&server, "equal", &scores(&[row])).0, 200);
    }
    assert!(server.stop().success(), "{}", server.log());
    let (code, text) = compared(&["equal", trace.to_str().unwrap()]);
    assert!(code == Some(0) && text.starts_with("2 requests: 2 equal"), "{text}");
    let (code, text) = compared(&["wrong", trace.to_str().unwrap()]);
    let want = format!("first difference: {}, request 1, label[0]: model.py dog, steps fox\n", trace.display());
    assert!(code == Some(1) && text.contains(&want), "{text}");
    fs::write(&trace, "[]").unwrap();
    let (code, text) = compared(&["equal", trace.to_str().unwrap()]);
    assert!(code == Some(1) && text.contains("it has no inputs of 'equal': record with --trace-config"), "{text}");
}

/// Files of the crate's test, as a model's `config.pbtxt` and `model.py`.
fn suggested_model(source: &str) -> [(&'static str, String); 2] {
    let mut config = "backend: \"python\"\n".to_owned();
    for line in source.lines().map_while(|line| line.strip_prefix("# ")) {
        let words: Vec<_> = line.split(' ').collect();
        config += &match words[0] {
            "rows" => format!("max_batch_size: {}\n", words[1]),
            part => {
                let datatype = if words[2] == "BYTES" { "STRING" } else { words[2] };
                let (name, dims) = (words[1], words[3..].join(", "));
                format!("{part} {{ name: \"{name}\" data_type: TYPE_{datatype} dims: [ {dims} ] }}\n")
            }
        };
    }
    [("config.pbtxt", config), ("1/model.py", source.to_owned())]
}

/// The whole way of a user: propose, write, compare. A proposal that is not complete is marked, and nothing is written.
#[test]
fn proposed_steps_are_written_once_and_answer_as_their_model_py() {
    let Some(python) = Environment::shared() else { return };
    let folder = Folder::new("steps-suggest");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/steps/tests/suggest");
    let fixture = |name: &str| fs::read_to_string(root.join(format!("{name}.py"))).unwrap();
    let deuteron = |command: &str, model: &str, rest: &[&str]| {
        let mut run = Command::new(env!("CARGO_BIN_EXE_deuteron"));
        run.args(["steps", command]).arg(folder.path().join(model)).args(rest);
        run.env("DEUTERON_BACKEND_CONFIG", format!("python,interpreter={}", python.python().display()));
        let output = run.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let models = [
        ("softmax_argmax", None),
        ("columns_stack_scale", None),
        ("scale_in_place", None),
        ("tokenizers_encode_batch", Some("tokenizer.json")),
        ("ctc_greedy", Some("vocab.json")),
    ];
    for (model, file) in models {
        let files = suggested_model(&fixture(model));
        let files: Vec<_> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
        write(folder.path(), model, &files);
        if let Some(file) = file {
            fs::copy(root.join("files").join(file), folder.path().join(model).join("1").join(file)).unwrap();
        }
        let (code, steps, report) = deuteron("suggest", model, &[]);
        assert!(code == Some(0) && report.contains("--write writes them to"), "{model}: {steps}{report}");
        let (code, nothing, report) = deuteron("suggest", model, &["--write"]);
        assert!(
            code == Some(0) && nothing.is_empty() && report.contains("deuteron steps compare"),
            "{model}: {report}"
        );
        assert_eq!(fs::read_to_string(folder.path().join(model).join("1/steps.json")).unwrap(), steps, "{model}");
        let (code, result, errors) = deuteron("compare", model, &["--count=20"]);
        assert!(code == Some(0) && result.starts_with("20 requests: 20 equal"), "{model}: {result}{errors}");
        let (code, _, report) = deuteron("suggest", model, &["--write"]);
        assert!(code == Some(1) && report.contains("is there already and is not overwritten"), "{model}: {report}");
    }
    let files = suggested_model(&fixture("refuse_condition"));
    write(folder.path(), "open", &files.iter().map(|(name, text)| (*name, text.as_str())).collect::<Vec<_>>());
    let (code, steps, report) = deuteron("suggest", "open", &["--write"]);
    assert!(code == Some(1) && steps.is_empty(), "{steps}{report}");
    assert!(report.contains("not interpreted: line 15: 'x' depends on a condition"), "{report}");
    assert!(!folder.path().join("open/1/steps.json").exists());
    write(folder.path(), "broken", &[("config.pbtxt", HEAD_CONFIG), ("1/model.py", "x = (\n")]);
    let (code, _, report) = deuteron("suggest", "broken", &[]);
    assert!(code == Some(1) && report.contains("broken/1/model.py: line 1: "), "{report}");
    let (code, _, report) = deuteron("suggest", "nowhere", &[]);
    assert!(code == Some(1) && report.contains("nowhere: No such file"), "{report}");
}

/// A list that runs the model `doubling` on its rows, one at a time.
const CALLING: &str = r#"{"steps": [
    {"step": "cast", "input": "rows", "output": "x", "datatype": "FP32"},
    {"step": "infer", "model": "doubling", "rows": 1, "inputs": {"x": "x"}, "outputs": {"y": "twice"}},
    {"step": "cast", "input": "twice", "output": "whole", "datatype": "INT64"}
]}"#;

fn calling_config(more: &str) -> String {
    format!(
        "backend: \"steps\"\n\
         input {{ name: \"rows\" data_type: TYPE_FP32 dims: [ -1, 3 ] }}\n\
         output {{ name: \"whole\" data_type: TYPE_INT64 dims: [ -1, 3 ] }}\n{more}"
    )
}

fn rows(count: usize) -> Value {
    let data: Vec<_> = (0..3 * count).collect();
    json!([{ "name": "rows", "shape": [count, 3], "datatype": "FP32", "data": data }])
}

#[test]
fn a_step_runs_another_model_on_each_row_and_its_batcher_joins_them() {
    let folder = Folder::new("steps-infer");
    // Only a batch of four runs at once: calls that came one after the other would wait for minutes.
    let batches = "max_batch_size: 8\n\
        dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 600000000 }\n\
        instance_group { count: 1 }\n\
        parameters { key: \"placement\" value { string_value: \"worker\" } }\n";
    write(folder.path(), "doubling", &[("config.pbtxt", batches), ("1/model.onnx", "")]);
    fs::write(folder.path().join("doubling/1/model.onnx"), doubling()).unwrap();
    write(folder.path(), "calling", &[("config.pbtxt", &calling_config("")), ("1/steps.json", CALLING)]);
    let absent = CALLING.replace("doubling", "absent");
    write(folder.path(), "lost", &[("config.pbtxt", &calling_config("")), ("1/steps.json", &absent)]);
    for (model, other) in [("itself", "itself"), ("there", "back"), ("back", "there")] {
        let list = format!(
            r#"{{"steps": [{{"step": "infer", "model": "{other}", "inputs": {{"rows": "rows"}}, "outputs": {{"whole": "whole"}}}}]}}"#
        );
        write(folder.path(), model, &[("config.pbtxt", &calling_config("")), ("1/steps.json", &list)]);
    }
    let server = Server::deuteron(folder.path(), &["--onnx-engine=embedded"]);
    let counts = |model: &str| {
        let statistics = http::get(server.http(), &format!("/v2/models/{model}/stats")).unwrap();
        let statistics: Value = serde_json::from_slice(&statistics.body).unwrap();
        let of = &statistics["model_stats"][0];
        (of["inference_count"].as_u64().unwrap(), of["execution_count"].as_u64().unwrap())
    };
    let (status, answer) = infer(&server, "calling", &rows(4));
    assert_eq!(status, 200, "{answer}");
    let want: Vec<_> = (0..12).map(|value| 2 * value).collect();
    assert_eq!((output(&answer, "whole"), &answer["outputs"][0]["shape"]), (&json!(want), &json!([4, 3])));
    assert_eq!((counts("calling"), counts("doubling")), ((1, 1), (4, 1)));

    // Two requests fill one batch, while both wait in one instance.
    std::thread::scope(|scope| {
        let requests: Vec<_> = (0..2).map(|_| scope.spawn(|| infer(&server, "calling", &rows(2)))).collect();
        for request in requests {
            let (status, answer) = request.join().unwrap();
            assert_eq!((status, output(&answer, "whole")), (200, &json!([0, 2, 4, 6, 8, 10])));
        }
    });
    assert_eq!(counts("doubling"), (8, 2));

    let (status, answer) = infer(&server, "calling", &rows(0));
    assert_eq!((status, &answer["outputs"][0]["shape"]), (200, &json!([0, 3])), "{answer}");
    assert_eq!(counts("doubling"), (8, 2), "nothing runs for no rows");

    let refused = |model: &str, want: &str| {
        let (status, answer) = infer(&server, model, &rows(1));
        assert_eq!((status, answer["error"].as_str().unwrap_or_default()), (500, want), "{model}");
    };
    let not_ready = "step 2 (infer): Model absent - Error when running inference: Failed for execute the inference request. \
                     Model 'absent' is not ready.";
    refused("lost", not_ready);
    let circle = |model: &str| {
        let (status, answer) = infer(&server, model, &rows(1));
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(status == 503 && error.contains("already waits for this call"), "{model}: {status} {error}");
    };
    circle("itself");
    circle("there");
}
