//! No answer has numbers of another: on every engine, an instance answers a good request, a failing one and a good one
//! again, 1,000 times, with numbers that no other round has and sizes that grow and shrink. The failing one must be an
//! error, also if a part of its outputs was written before it failed; each good one must have its own numbers.
//!
//! One script plays a table: an engine is a server, a model, and its requests. OpenVINO, TensorFlow and PyTorch are
//! stand-ins (`tests/frameworks`, `tests/pytorch`) that fail as the libraries do; `.ci/run frameworks` plays OpenVINO
//! itself.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::{Value, json};

use crate::frameworks;
use crate::onnxruntime::{environment, flag};
use crate::python_models::zoo::Models;
use crate::software_gpu::machine::Machine;
use crate::support::folder::Folder;
use crate::support::onnx::builder::{FLOAT, INT64, Onnx};
use crate::support::server::Server;
use crate::support::{gpu, http, repository};
use crate::{pytorch, trees, triton_backends};

const ROUNDS: usize = 1000;

/// The inputs of a round's request.
type Ask = fn(usize) -> Value;

/// An engine in the table.
struct Engine {
    model: &'static str,
    /// The inputs of a good request, and the data of its outputs.
    good: fn(usize) -> (Value, Vec<Value>),
    /// Requests that fail, each in its own way; every round takes the next.
    failing: &'static [Ask],
}

fn infer(server: &Server, model: &str, inputs: &Value) -> (u16, Value) {
    let path = format!("/v2/models/{model}/infer");
    let answer = http::post(server.http(), &path, json!({ "inputs": inputs }).to_string().as_bytes()).unwrap();
    (answer.status, serde_json::from_slice(&answer.body).unwrap())
}

/// Plays the script on an engine.
fn play(server: &Server, engine: &Engine) {
    let Engine { model, good, failing } = engine;
    let check = |turn: usize| {
        let (inputs, want) = good(turn);
        let (status, answer) = infer(server, model, &inputs);
        let outputs =
            answer["outputs"].as_array().unwrap_or_else(|| panic!("{model} {turn}: {answer}\n{}", server.log()));
        let got: Vec<&Value> = outputs.iter().map(|output| &output["data"]).collect();
        assert!(status == 200 && got.into_iter().eq(&want), "{model} {turn}: {answer} for {want:?}");
    };
    for round in 0..ROUNDS {
        check(2 * round);
        let fail = failing[round % failing.len()];
        let (status, answer) = infer(server, model, &fail(round));
        let is_error = (400..600).contains(&status) && answer["error"].is_string() && answer["outputs"].is_null();
        assert!(is_error, "{model} {round}: {status} {answer}");
        check(2 * round + 1);
    }
}

/// `count` numbers that no other turn has, and that are exact as FP32.
fn numbers(turn: usize, count: usize) -> Vec<f64> {
    (0..count).map(|index| (1000 + 16 * turn + index) as f64).collect()
}

fn input(name: &str, datatype: &str, shape: &[usize], data: &[f64]) -> Value {
    json!({"name": name, "datatype": datatype, "shape": shape, "data": data})
}

fn row(data: &[f64]) -> Value {
    json!([input("x", "FP32", &[1, data.len()], data)])
}

fn list(data: &[f64]) -> Value {
    json!([input("x", "FP32", &[data.len()], data)])
}

/// Count of numbers in a turn: more and fewer than in the one before.
const fn count(turn: usize) -> usize {
    [5, 9, 2, 7, 1, 12, 3][turn % 7]
}

fn doubled(data: &[f64]) -> Value {
    data.iter().map(|number| 2.0 * number).collect()
}

/// `doubled` is computed before `top` fails, whose size comes from the request.
fn top_of() -> Vec<u8> {
    Onnx::default()
        .input("x", FLOAT, &[-1])
        .input("k", INT64, &[1])
        .node("Add", &["x", "x"], &["doubled"], &[])
        .node("TopK", &["x", "k"], &["top", "places"], &[])
        .output("doubled", FLOAT, &[-1])
        .output("top", FLOAT, &[-1])
        .into_bytes()
}

const TOP_OF: &str = "max_batch_size: 0
    input [ { name: 'x' data_type: TYPE_FP32 dims: -1 }, { name: 'k' data_type: TYPE_INT64 dims: 1 } ]
    output [ { name: 'doubled' data_type: TYPE_FP32 dims: -1 }, { name: 'top' data_type: TYPE_FP32 dims: -1 } ]";

fn ask_top(data: &[f64], places: usize) -> Value {
    let places = json!({"name": "k", "datatype": "INT64", "shape": [1], "data": [places]});
    json!([input("x", "FP32", &[data.len()], data), places])
}

const TOP: Engine = Engine {
    model: "top",
    good: |turn| {
        let data = numbers(turn, count(turn));
        let places = 1 + turn % data.len();
        let top: Value = data.iter().rev().take(places).copied().collect();
        (ask_top(&data, places), vec![doubled(&data), top])
    },
    failing: &[|round| ask_top(&numbers(round, 3), 9), |round| ask_top(&numbers(round, 12), 13)],
};

fn onnx_models(more: &str) -> Folder {
    let folder = Folder::new("stale-onnx");
    let config = format!("platform: 'onnxruntime_onnx' {TOP_OF} {more}");
    repository::add(folder.path(), "top", &config, None);
    fs::write(folder.path().join("top/1/model.onnx"), top_of()).unwrap();
    folder
}

fn served_engine(server: &Server) -> String {
    let config = http::get(server.http(), "/v2/models/top/config").unwrap().body;
    let config: Value = serde_json::from_slice(&config).unwrap();
    config["parameters"]["served_engine"]["string_value"].as_str().unwrap().to_owned()
}

const ISOLATED: &str = "parameters { key: 'isolation' value { string_value: 'process' } }";

#[test]
fn the_embedded_engine() {
    let folder = onnx_models("");
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    assert_eq!(served_engine(&server), "embedded");
    play(&server, &TOP);
}

#[test]
fn onnx_runtime_and_a_model_in_a_process_of_its_own() {
    for more in ["", ISOLATED] {
        let folder = onnx_models(more);
        let Some(environment) = environment() else { return };
        let server = Server::deuteron(folder.path(), &["--shards=1", &flag(environment)]);
        assert_eq!(served_engine(&server), "onnxruntime");
        play(&server, &TOP);
    }
}

/// Doubles what is not 0: 13 fails at once or behind written outputs, 99 leaves the outputs as they are.
const PACKED: Engine = Engine {
    model: "packed",
    good: |turn| {
        let data = numbers(turn, count(turn));
        let sent: Vec<f64> = data.iter().flat_map(|number| [0.0, *number]).collect();
        (list(&sent), vec![doubled(&data)])
    },
    failing: &[
        |_| list(&[13.0, 1.0]),
        |round| list(&[&numbers(round, 4)[..], &[13.0]].concat()),
        |round| list(&[&[99.0], &numbers(round, 2)[..]].concat()),
    ],
};

/// The same in rows, whose size follows from the request.
const ROWS: Engine = Engine {
    model: "rows",
    good: |turn| {
        let data = numbers(turn, 2);
        (row(&data), vec![doubled(&data)])
    },
    failing: &[|_| row(&[13.0, 1.0]), |round| row(&[numbers(round, 1)[0], 13.0])],
};

#[test]
fn openvino() {
    let folder = Folder::new("stale-openvino");
    // Older releases keep the state of a failed run in the model.
    let older = frameworks::add_library(folder.path(), "openvino.c", "libopenvino_c.so.2540", &["-DKEEPS"]);
    for library in [frameworks::openvino(folder.path()), older] {
        play_openvino(folder.path(), &library);
    }
}

fn play_openvino(folder: &Path, library: &Path) {
    let models = folder.join("models");
    let config = |name: &str, dims: &str, rows: u32| {
        format!(
            "backend: 'openvino' max_batch_size: {rows} input {{ name: 'x' data_type: TYPE_FP32 dims: {dims} }}
             output {{ name: '{name}' data_type: TYPE_FP32 dims: {dims} }}"
        )
    };
    frameworks::add(&models, "packed", &config("y", "-1", 0), "model.xml", "input x 3 -1\noutput y 3 -1\npacks\n");
    frameworks::add(&models, "rows", &config("y", "2", 8), "model.xml", "input x 3 -1 2\noutput y 3 -1 2\n");
    // Each run has the file's number of rows: the answer is a part of the output.
    let padded = ["SKIP_OV_DYNAMIC_BATCHSIZE", "ENABLE_BATCH_PADDING"]
        .map(|key| format!("parameters {{ key: '{key}' value {{ string_value: 'YES' }} }}"));
    let padded = format!("{} {}", config("y", "2", 8), padded.join(" "));
    frameworks::add(&models, "padded", &padded, "model.xml", "input x 3 4 2\noutput y 3 4 2\n");
    let server = frameworks::start(&models, &[("INTEL_OPENVINO_DIR", library)], &["--shards=1"]);
    play(&server, &PACKED);
    play(&server, &Engine { failing: &[|_| row(&[13.0, 1.0]), |_| row(&[99.0, 1.0])], ..ROWS });
    play(&server, &Engine { model: "padded", ..ROWS });
}

#[test]
fn tensorflow() {
    let folder = Folder::new("stale-tensorflow");
    let (models, library) = (folder.path().join("models"), frameworks::tensorflow(folder.path()));
    let file = frameworks::saved_model("serving_default", &["x in_1:0 1 -1,2"], &["y out_1:0 1 -1,2"]);
    frameworks::add_saved_model(&models, "rows", "", &file);
    play(&frameworks::start(&models, &[("TF_DYLIB_PATH", &library)], &["--shards=1"]), &ROWS);
}

#[test]
fn pytorch() {
    let folder = Folder::new("stale-pytorch");
    let (models, torch) = (folder.path().join("models"), folder.path().join("torch"));
    pytorch::stand_in(&torch);
    pytorch::add(&models, "positive", "", "stand-in\nargument x Tensor\nopen\nfail_if_negative x");
    // Cargo's own folder may be open to a group.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let library = format!("--backend-config=pytorch,library={}", torch.display());
    let cache = format!("--backend-config=pytorch,cache={}", folder.path().join("cache").display());
    let server = pytorch::start(&models, &[&library, &cache, "--shards=1"], true);
    let engine = Engine {
        model: "positive",
        good: |turn| {
            let data = numbers(turn, count(turn));
            (row(&data), vec![json!(data)])
        },
        failing: &[|round| row(&[-1.0, numbers(round, 1)[0]])],
    };
    play(&server, &engine);
}

#[test]
fn trees() {
    let server = Server::deuteron(&trees::kept("xgboost-dart.json"), &["--model-name=m", "--shards=1"]);
    let (rows, answers) = trees::asked("xgboost-dart.json");
    let (features, classes) = (rows.len() / 20, answers.len() / 20);
    let other = |turn: usize| turn * 7 % 20;
    for turn in 0..2 * ROUNDS {
        let place = other(turn);
        let row = &rows[place * features..][..features];
        let want = &answers[place * classes..][..classes];
        assert_eq!(trees::answer(&server, "m", row, 1), want, "{turn}");
        // A row of another width does not fit the model.
        let short = json!([{"name": "input__0", "datatype": "FP32", "shape": [1, 1], "data": [turn]}]);
        assert_eq!(infer(&server, "m", &short).0, 400, "{turn}");
    }
}

const PYTHON: &str = "
import numpy as np
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb.get_input_tensor_by_name(request, 'x').as_numpy()
            y = pb.Tensor('y', 2 * x[x != 0])
            if x[0] == 13:
                raise ValueError('13 is no number that it likes')
            if 13 in x:
                answers.append(pb.InferenceResponse([y], error=pb.TritonError('behind the output')))
            elif x[0] == 99:
                answers.append(pb.InferenceResponse([]))
            else:
                answers.append(pb.InferenceResponse([y]))
        return answers
";

const PACKED_CONFIG: &str = "max_batch_size: 0
    input { name: 'x' data_type: TYPE_FP32 dims: -1 } output { name: 'y' data_type: TYPE_FP32 dims: -1 }";

#[test]
fn python() {
    let Some(models) = Models::new() else { return };
    let config = format!("backend: 'python' instance_group {{ kind: KIND_CPU }} {PACKED_CONFIG}");
    let zoo = models.add("packed", &config, PYTHON).serve(&["--shards=1"]);
    // An answer without an output is the model's choice: it must be empty.
    let (status, answer) = infer(&zoo.server, "packed", &list(&[99.0, 1.0]));
    assert!(status == 200 && answer["outputs"].as_array().is_none_or(Vec::is_empty), "{status} {answer}");
    play(&zoo.server, &Engine { failing: &PACKED_FAILING, ..PACKED });
}

/// The requests of [`PACKED`] that fail on engines with responses of their own.
const PACKED_FAILING: [Ask; 2] = [|_| list(&[13.0, 1.0]), |round| list(&[&numbers(round, 4)[..], &[13.0]].concat())];

#[test]
fn backends_written_for_triton() {
    let config = format!("backend: 'packed' {PACKED_CONFIG}");
    let (_folder, models, backends) = triton_backends::folders(&[("packed", &config)]);
    for place in triton_backends::PLACES {
        let server = triton_backends::start(&models, &backends, &[place]);
        play(&server, &Engine { failing: &PACKED_FAILING, ..PACKED });
        // Bytes of a buffer that a backend does not write are zeros.
        for round in 0..ROUNDS {
            let (inputs, want) = (PACKED.good)(round);
            let (_, answer) = infer(&server, "packed", &inputs);
            assert_eq!(answer["outputs"][0]["data"], want[0], "{round}");
            let (status, answer) = infer(&server, "packed", &list(&[&[99.0], &numbers(round, 2)[..]].concat()));
            assert_eq!((status, &answer["outputs"][0]["data"]), (200, &json!([0.0, 0.0, 0.0])), "{round}");
        }
    }
}

#[test]
fn a_gpu() {
    let Some(machine) = Machine::new() else { return };
    let folder = gpu::models(&[("gpu", "instance_group { kind: KIND_GPU count: 1 }\n")]);
    let server = machine.serve(folder.path(), &[]);
    let ask = |model: &str, turn: usize| {
        let pixels: Vec<f64> = (0..64).map(|index| ((index * 7 + turn * 5) % 17) as f64).collect();
        infer(&server, model, &json!([input("pixels", "FP32", &[1, 64], &pixels)]))
    };
    let probabilities = |(status, answer): (u16, Value)| -> Vec<f64> {
        assert_eq!(status, 200, "{answer}");
        let data = answer["outputs"][0]["data"].as_array().unwrap();
        data.iter().map(|value| value.as_f64().unwrap()).collect()
    };
    let wanted: Vec<Vec<f64>> = (0..17).map(|turn| probabilities(ask("digits", turn))).collect();
    let check = |turn: usize| {
        let (got, want) = (probabilities(ask("gpu", turn)), &wanted[turn % 17]);
        assert!(got.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-5), "{turn}: {got:?} for {want:?}");
    };
    for round in 0..ROUNDS {
        check(2 * round);
        machine.fail("refuse@1");
        let (status, answer) = ask("gpu", 2 * round + 3);
        assert!([500, 503].contains(&status) && answer["outputs"].is_null(), "{round}: {status} {answer}");
        check(2 * round + 1);
    }
}

/// Keeps the table whole: a new engine needs a row.
#[test]
fn every_engine_has_a_row() {
    let folders = ["engines", "process"].map(|name| Path::new(env!("CARGO_MANIFEST_DIR")).join("crates").join(name));
    let rows = [
        "gpu",
        "isolation",
        "onnxruntime",
        "openvino",
        "python",
        "pytorch",
        "rten",
        "tensorflow",
        "trees",
        "triton",
        "triton_process",
    ];
    let files = folders.iter().flat_map(|folder| fs::read_dir(folder.join("src")).unwrap());
    let entries = files.map(|entry| entry.unwrap()).filter(|entry| entry.path().is_dir());
    let mut found: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    found.sort();
    assert_eq!(found, rows);
}
