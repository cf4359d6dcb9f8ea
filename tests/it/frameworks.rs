//! OpenVINO and TensorFlow: the search for their libraries, the choice between the two, conversions, checks and
//! refusals, on stand-ins for the libraries (`tests/frameworks/*.c`), compiled here. `DEUTERON_TESTS=frameworks`
//! fetches the libraries themselves and holds answers to the frameworks in Python ([`real`]).

mod real;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::support::folder::Folder;
use crate::support::http;
use crate::support::protobuf::Message;
use crate::support::server::{Ports, Server};

/// Compiles a stand-in into a folder, under the name of the library.
pub fn add_library(folder: &Path, source: &str, file: &str, arguments: &[&str]) -> PathBuf {
    fs::create_dir_all(folder).unwrap();
    let library = folder.join(file);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/frameworks").join(source);
    let mut command = Command::new("cc");
    command.args(["-std=gnu11", "-O1", "-shared", "-fPIC"]).args(arguments).arg("-o").arg(&library).arg(source);
    let output = command.output().expect("there is a C compiler, which builds of this crate need");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    library
}

pub fn openvino(folder: &Path) -> PathBuf {
    add_library(folder, "openvino.c", "libopenvino_c.so.2641", &[])
}

pub fn tensorflow(folder: &Path) -> PathBuf {
    add_library(folder, "tensorflow.c", "libtensorflow_cc.so.2", &[])
}

/// A server that finds only these libraries, by the variables that name them.
pub fn start(models: &Path, variables: &[(&str, &Path)], flags: &[&str]) -> Server {
    let ports = Ports::free();
    let mut command = Server::command(models, flags, ports);
    for name in ["INTEL_OPENVINO_DIR", "TF_DYLIB_PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX"] {
        command.env_remove(name);
    }
    command.env("PATH", "").env("HOME", models).envs(variables.iter().copied());
    Server::start(command, ports)
}

pub fn add(models: &Path, name: &str, config: &str, file: &str, contents: impl AsRef<[u8]>) {
    let path = models.join(name).join("1").join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, contents).unwrap();
    if !config.is_empty() {
        fs::write(models.join(name).join("config.pbtxt"), config).unwrap();
    }
}

/// Sends one input to a model; the status, and the data of the outputs or the error.
fn infer(server: &Server, model: &str, datatype: &str, shape: &[i64], data: &Value) -> (u16, Value) {
    let input = json!({"name": "x", "shape": shape, "datatype": datatype, "data": data});
    let path = format!("/v2/models/{model}/infer");
    let answer = http::post(server.http(), &path, json!({"inputs": [input]}).to_string().as_bytes()).unwrap();
    let mut body: Value = serde_json::from_slice(&answer.body).unwrap();
    match body["outputs"].as_array() {
        Some(outputs) => (answer.status, outputs.iter().map(|output| output["data"].clone()).collect()),
        None => (answer.status, body["error"].take()),
    }
}

fn get(server: &Server, path: &str) -> Value {
    serde_json::from_slice(&http::get(server.http(), path).unwrap().body).unwrap()
}

/// The reason for a model that is not ready, from the index.
fn why(server: &Server, model: &str) -> String {
    let index = http::post(server.http(), "/v2/repository/index", b"{}").unwrap().body;
    let index: Value = serde_json::from_slice(&index).unwrap();
    let entry = index.as_array().unwrap().iter().find(|entry| entry["name"] == model).unwrap();
    entry["reason"].as_str().unwrap_or_default().to_owned()
}

/// Flags for a repository in which some models fail to load on purpose.
const TOLERANT: [&str; 3] = ["--exit-on-error=false", "--strict-readiness=false", "--shards=1"];

const STATED: &str = "backend: 'openvino' max_batch_size: 8 input { name: 'x' data_type: TYPE_FP32 dims: 2 }
    output { name: 'y' data_type: TYPE_FP32 dims: 2 }";

#[test]
fn openvino_models_are_completed_converted_run_and_refused() {
    let folder = Folder::new("openvino");
    let (models, library) = (folder.path().join("models"), openvino(folder.path()));
    let plain = "input x 3 -1 2\noutput y 3 -1 2\n";
    add(&models, "plain", "", "model.xml", plain);
    add(&models, "fixed", STATED, "model.xml", "input x 3 1 2\noutput y 3 1 2\n");
    let unpadded = |more: &str| {
        let keep = "parameters { key: 'SKIP_OV_DYNAMIC_BATCHSIZE' value { string_value: 'YES' } }";
        format!("{STATED} {keep} {more}")
    };
    let pads = "parameters { key: 'ENABLE_BATCH_PADDING' value { string_value: 'yes' } }";
    add(&models, "kept", &unpadded(""), "model.xml", "input x 3 4 2\noutput y 3 4 2\n");
    add(&models, "padded", &unpadded(pads), "model.xml", "input x 3 4 2\noutput y 3 4 2\n");
    let converted = "backend: 'openvino' input { name: 'x' data_type: TYPE_INT64 dims: [ -1, 2 ] }
        output { name: 'y' data_type: TYPE_BOOL dims: [ -1, 2 ] }";
    let file = format!("input x 8 -1 2\noutput y 0 -1 2\n{}", ir("I32", "Convert", "BOOL"));
    add(&models, "converted", converted, "model.xml", file);
    add(&models, "lies", STATED, "model.xml", format!("{plain}lies\n"));
    add(&models, "broken", "", "model.xml", "what is this");
    add(&models, "state", STATED, "model.xml", format!("{plain}<layer id=\"0\" name=\"sum\" type=\"ReadValue\">\n"));
    add(&models, "other", &STATED.replace("'y'", "'z'"), "model.xml", plain);
    let strings = STATED.replace("name: 'x' data_type: TYPE_FP32", "name: 'x' data_type: TYPE_STRING");
    add(&models, "strings", &strings, "model.xml", plain);
    add(&models, "on_gpu", &format!("{STATED} instance_group {{ kind: KIND_GPU }}"), "model.xml", plain);
    let parameter = "parameters { key: 'NUM_STREAMS' value { string_value: 'many' } }";
    add(&models, "parameter", &format!("{STATED} {parameter}"), "model.xml", plain);
    let server = start(&models, &[("INTEL_OPENVINO_DIR", &library)], &TOLERANT);

    let config = get(&server, "/v2/models/plain/config");
    assert_eq!((&config["max_batch_size"], &config["backend"]), (&json!(4), &json!("openvino")), "{config}");
    assert_eq!(config["parameters"]["served_engine"], json!({"string_value": "openvino"}));
    assert_eq!(config["parameters"]["served_engine_version"], json!({"string_value": "2026.4.1"}));
    let log = server.log();
    assert!(log.contains("loaded 'plain' version 1 with OpenVINO 2026.4.1"), "{log}");
    let check = |model: &str, datatype: &str, shape: &[i64], data: Value, want: (u16, Value)| {
        assert_eq!(infer(&server, model, datatype, shape, &data), want, "{model}");
    };
    check("plain", "FP32", &[1, 2], json!([1.5, -2.0]), (200, json!([[3.0, -4.0]])));
    check("plain", "FP32", &[2, 2], json!([1, 2, 3, 4]), (200, json!([[2.0, 4.0, 6.0, 8.0]])));
    check("fixed", "FP32", &[3, 2], json!([1, 2, 3, 4, 5, 6]), (200, json!([[2.0, 4.0, 6.0, 8.0, 10.0, 12.0]])));
    check("padded", "FP32", &[1, 2], json!([1, 2]), (200, json!([[2.0, 4.0]])));
    check(
        "padded",
        "FP32",
        &[4, 2],
        json!([1, 2, 3, 4, 5, 6, 7, 8]),
        (200, json!([[2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0]])),
    );
    check("converted", "INT64", &[1, 2], json!([0, 5]), (200, json!([[false, true]])));
    let liked = "model 'plain': OpenVINO: 13 is no number that it likes";
    check("plain", "FP32", &[1, 2], json!([13, 0]), (500, json!(liked)));
    let shape = "output 'y' of model 'lies' must have shape [1,2] but came with [1,3]";
    check("lies", "FP32", &[1, 2], json!([1, 2]), (500, json!(shape)));
    let kept = "model 'kept' takes batches of 4 rows and not of 1: its parameter SKIP_OV_DYNAMIC_BATCHSIZE keeps it so; \
                ENABLE_BATCH_PADDING fills smaller ones up; the inputs were 'x' [1,2]";
    check("kept", "FP32", &[1, 2], json!([1, 2]), (400, json!(kept)));

    let refused = |model: &str, want: &str| {
        let why = why(&server, model);
        assert!(why.contains(want), "{model}: {why}");
        assert!(!why.contains(models.to_str().unwrap()), "{why}");
    };
    refused("broken", "unable to load model 'broken': OpenVINO: model.xml is no model");
    let kept = "it keeps a state from run to run (ReadValue 'sum'), which would go from one request to the next";
    refused("state", kept);
    refused("other", "unexpected inference output 'z', allowed outputs are: y");
    refused("strings", "input 'x' is TYPE_STRING, which OpenVINO does not take");
    refused("on_gpu", "has kind KIND_GPU but no GPUs are available");
    refused("parameter", "expected the parameter 'NUM_STREAMS' to be a non-negative number or AUTO/NUMA, got many");
}

/// The IR of one operator on `x` and `x`, as far as integers matter.
fn ir(precision: &str, operator: &str, given: &str) -> String {
    format!(
        r#"<layer id="0" name="x" type="Parameter">
<output><port id="0" precision="{precision}" names="x" /></output>
</layer>
<layer id="1" name="y" type="{operator}">
<input><port id="0" /><port id="1" /></input>
<output><port id="2" precision="{given}" /></output>
</layer>
<edge from-layer="0" from-port="0" to-layer="1" to-port="0" />
<edge from-layer="0" from-port="0" to-layer="1" to-port="1" />
"#
    )
}

#[test]
fn integers_and_fp64_that_openvino_does_not_compute_exactly_are_refused() {
    let folder = Folder::new("openvino-integers");
    let (models, library) = (folder.path().join("models"), openvino(folder.path()));
    let config = STATED.replace("FP32", "INT64");
    let narrow = format!("{config} parameters {{ key: 'NARROW_DATATYPES' value {{ string_value: 'YES' }} }}");
    let file = |operator: &str| format!("input x 9 -1 2\noutput y 9 -1 2\n{}", ir("I64", operator, "I64"));
    add(&models, "moves", &config, "model.xml", file("Concat"));
    add(&models, "squares", &config, "model.xml", file("Multiply"));
    add(&models, "divides", &config, "model.xml", file("Divide"));
    add(&models, "narrow", &narrow, "model.xml", file("Multiply"));
    add(&models, "power", &config, "model.xml", file("Power"));
    add(&models, "unknown", &config, "model.xml", "input x 9 -1 2\noutput y 9 -1 2\n");
    let double = "input x 4 -1 2\noutput y 4 -1 2\n";
    add(&models, "double", &STATED.replace("FP32", "FP64"), "model.xml", double);
    let server = start(&models, &[("INTEL_OPENVINO_DIR", &library)], &TOLERANT);

    let ends = 1_i64 << 31;
    for (model, least, most) in [
        ("moves", -ends, ends - 1),
        ("squares", -46_340, 46_340),
        ("divides", -(1 << 24), 1 << 24),
        ("narrow", -ends, ends - 1),
    ] {
        let ask = |value: i64| infer(&server, model, "INT64", &[1, 2], &json!([1, value]));
        for value in [least, 0, most] {
            assert_eq!(ask(value), (200, json!([[2, 2 * value]])), "{model}");
        }
        for value in [least - 1, most + 1, 1 << 40] {
            let want = format!(
                "input 'x' of model '{model}': OpenVINO computes the integers of this model exactly within [{least}, \
                 {most}] and cannot take the value {value}; serve the model with ONNX Runtime or TensorFlow for others"
            );
            assert_eq!(ask(value), (400, json!(want)), "{model}");
        }
    }
    for (model, reason) in [
        ("power", "operator Power 'y': it gives integers that depend on the request and may be beyond 24 bits"),
        ("unknown", "it takes integers, and what it does with them is not known of files of its kind"),
        ("double", "it has FP64, which is computed in FP32"),
    ] {
        let why = why(&server, model);
        assert!(why.contains(reason) && why.contains("set its parameter NARROW_DATATYPES to YES"), "{model}: {why}");
    }
}

#[test]
fn a_crash_of_an_isolated_openvino_model_costs_its_batch() {
    let folder = Folder::new("openvino-crash");
    let (models, library) = (folder.path().join("models"), openvino(folder.path()));
    add(&models, "m", "", "model.xml", "input x 3 -1 2\noutput y 3 -1 2\n");
    let flag = format!("--backend-config=openvino,library={}", library.display());
    let server = start(&models, &[], &[&flag, "--model-isolation=process", "--shards=1"]);
    assert_eq!(get(&server, "/v2/models/m/config")["parameters"]["isolation"], json!({"string_value": "process"}));
    assert_eq!(infer(&server, "m", "FP32", &[1, 2], &json!([1, 2])), (200, json!([[2.0, 4.0]])));
    let (status, text) = infer(&server, "m", "FP32", &[1, 2], &json!([666, 2]));
    assert!(status >= 500 && text.as_str().is_some_and(|text| text.contains("process")), "{status} {text}");
    let again = (0..100).map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        infer(&server, "m", "FP32", &[1, 2], &json!([1, 2]))
    });
    assert!(again.into_iter().any(|answer| answer == (200, json!([[2.0, 4.0]]))), "{}", server.log());
}

#[test]
fn a_release_with_other_numbers_of_datatypes_is_read_right_or_refused() {
    let folder = Folder::new("openvino-numbers");
    let models = folder.path().join("models");
    add(&models, "m", "", "model.xml", "input x 3 -1 2\noutput y 3 -1 2\n");
    let older = add_library(folder.path(), "openvino.c", "libopenvino_c.so.2460", &["-DBOOLEAN=2"]);
    let server = start(&models, &[("INTEL_OPENVINO_DIR", &older)], &["--shards=1"]);
    assert_eq!(infer(&server, "m", "FP32", &[1, 2], &json!([1, 2])), (200, json!([[2.0, 4.0]])));
    let unknown = add_library(&folder.path().join("unknown"), "openvino.c", "libopenvino_c.so.9", &["-DBOOLEAN=3"]);
    let server = start(&models, &[("INTEL_OPENVINO_DIR", &unknown)], &TOLERANT);
    let why = why(&server, "m");
    let want = "model 'm' needs OpenVINO: no library of it can be used (libopenvino_c.so.9: OpenVINO 2026.4.1 numbers its \
                datatypes as this server does not know; 2024.6 to 2026.4 are known); install the Python package 'openvino'";
    assert!(why.contains(want) && why.contains("--backend-config=openvino,library=PATH"), "{why}");
}

#[test]
fn a_long_run_on_openvino_is_cancelled_when_its_time_is_up_and_the_instance_goes_on() {
    let folder = Folder::new("openvino-long");
    let (models, library) = (folder.path().join("models"), openvino(folder.path()));
    let limit = "parameters { key: 'run_timeout_secs' value { string_value: '1' } }";
    add(&models, "m", &format!("{STATED} {limit}"), "model.xml", "input x 3 -1 2\noutput y 3 -1 2\n");
    let server = start(&models, &[("INTEL_OPENVINO_DIR", &library)], &["--shards=1"]);
    let (status, text) = infer(&server, "m", "FP32", &[1, 2], &json!([77, 2]));
    assert_eq!(status, 504, "{text}");
    assert_eq!(infer(&server, "m", "FP32", &[1, 2], &json!([1, 2])), (200, json!([[2.0, 4.0]])), "{}", server.log());
}

/// A SavedModel's file: one signature, whose tensors are `name place datatype dims`.
pub fn saved_model(name: &str, inputs: &[&str], outputs: &[&str]) -> Vec<u8> {
    let entry = |key: &str, value: Message| Message::new().bytes(1, key).message(2, value);
    let tensor = |line: &&str| {
        let words: Vec<_> = line.split(' ').collect();
        let dims = words[3].split(',').map(|size| Message::new().int(1, size.parse().unwrap()));
        let shape = dims.fold(Message::new(), |shape, size| shape.message(2, size));
        let facts = Message::new().bytes(1, words[1]).int(2, words[2].parse().unwrap()).message(3, shape);
        entry(words[0], facts)
    };
    let signature = inputs.iter().map(tensor).fold(Message::new(), |all, one| all.message(1, one));
    let signature = outputs.iter().map(tensor).fold(signature, |all, one| all.message(2, one));
    let tags = Message::new().bytes(4, "serve");
    let graph = Message::new().message(1, tags).message(5, entry(name, signature));
    Message::new().int(1, 1).message(2, graph).into_bytes()
}

pub fn add_saved_model(models: &Path, name: &str, config: &str, file: &[u8]) {
    add(models, name, config, "model.savedmodel/variables/variables.index", "");
    add(models, name, config, "model.savedmodel/saved_model.pb", file);
}

#[test]
fn tensorflow_models_are_completed_run_and_refused() {
    let folder = Folder::new("tensorflow");
    let (models, library) = (folder.path().join("models"), tensorflow(folder.path()));
    let numbers = saved_model("serving_default", &["x in_1:0 1 -1,2"], &["y call_1:1 1 -1,2"]);
    add_saved_model(&models, "numbers", "", &numbers);
    let strings = saved_model("serving_default", &["x in_7:0 7 -1"], &["y out_7:0 7 -1"]);
    add_saved_model(&models, "strings", "", &strings);
    let parameter = |key: &str, value: &str| {
        format!("platform: 'tensorflow_savedmodel' parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}")
    };
    let other = saved_model("other", &["x in_1:0 1 -1,2"], &["y out_1:0 1 -1,2"]);
    add_saved_model(&models, "other", &parameter("TF_SIGNATURE_DEF", "other"), &other);
    add_saved_model(&models, "absent", &parameter("TF_SIGNATURE_DEF", "mine"), &other);
    add_saved_model(&models, "init", &parameter("TF_INIT_OPS_FILE", "init.json"), &numbers);
    fs::write(models.join("init/init.json"), r#"{"init_ops": ["runs_1", "fails_1"]}"#).unwrap();
    let lies = saved_model("serving_default", &["x in_9:0 9 -1,2"], &["y lies_9:0 9 -1,2"]);
    add_saved_model(&models, "lies", "", &lies);
    let gone = saved_model("serving_default", &["x in_1:0 1 -1,2"], &["y gone:0 1 -1,2"]);
    add_saved_model(&models, "gone", "", &gone);
    let graph = "platform: 'tensorflow_graphdef' max_batch_size: 4 input { name: 'x' data_type: TYPE_FP32 dims: 2 }
        output { name: 'y_1' data_type: TYPE_FP32 dims: 2 }";
    add(&models, "graph", &graph.replace("'x'", "'x_1'"), "model.graphdef", "graph");
    add(&models, "no_graph", &graph.replace("'x'", "'x_1'"), "model.graphdef", "what is this");
    add(&models, "no_input", graph, "model.graphdef", "graph");
    let server = start(&models, &[("TF_DYLIB_PATH", &library)], &TOLERANT);

    let config = get(&server, "/v2/models/numbers/config");
    assert_eq!(config["parameters"]["served_engine"], json!({"string_value": "tensorflow"}));
    assert_eq!((&config["platform"], &config["max_batch_size"]), (&json!("tensorflow_savedmodel"), &json!(4)));
    let check = |model: &str, datatype: &str, shape: &[i64], data: Value, want: (u16, Value)| {
        assert_eq!(infer(&server, model, datatype, shape, &data), want, "{model}");
    };
    check("numbers", "FP32", &[2, 2], json!([1.5, -2, 3, 4]), (200, json!([[3.0, -4.0, 6.0, 8.0]])));
    check("other", "FP32", &[1, 2], json!([1, 2]), (200, json!([[2.0, 4.0]])));
    let long = "a string that is longer than those that are kept in place";
    check("strings", "BYTES", &[3, 1], json!(["a", "", long]), (200, json!([["A", "", long.to_uppercase()]])));
    let liked = "model 'numbers': TensorFlow: 13 is no number that it likes; the inputs were 'x' [1,2]";
    check("numbers", "FP32", &[1, 2], json!([13, 0]), (400, json!(liked)));
    let lies = "output 'y' of model 'lies' must be INT64 but came as INT32";
    check("lies", "INT64", &[1, 2], json!([1, 2]), (500, json!(lies)));
    let input = json!({"name": "x_1", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]});
    let body = json!({"inputs": [input]}).to_string();
    let answer = http::post(server.http(), "/v2/models/graph/infer", body.as_bytes()).unwrap();
    let answer: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(answer["outputs"][0]["data"], json!([2.0, 4.0]), "{answer}");

    let refused = |model: &str, want: &str| {
        let why = why(&server, model);
        assert!(why.contains(want) && !why.contains(models.to_str().unwrap()), "{model}: {why}");
    };
    refused("absent", "the SavedModel has no signature 'mine' (TF_SIGNATURE_DEF); it has 'other'");
    refused("init", "unable to load model 'init': TensorFlow: the operation fails");
    refused("gone", "output 'y': the graph has no tensor 'gone:0'");
    refused("no_graph", "unable to load model 'no_graph': TensorFlow: Invalid GraphDef");
    refused("no_input", "input 'x': the graph has no tensor 'x'");
}

#[test]
fn a_tensorflow_model_runs_on_openvino_unless_that_refuses_it_or_another_engine_is_asked_for() {
    let folder = Folder::new("roads");
    let models = folder.path().join("models");
    let (openvino, tensorflow) = (openvino(folder.path()), tensorflow(folder.path()));
    // The stand-in for OpenVINO reads a frozen graph as one of its models, but not a SavedModel.
    let config = |more: &str| {
        format!(
            "platform: 'tensorflow_graphdef' max_batch_size: 4 input {{ name: 'x_1' data_type: TYPE_FP32 dims: 2 }}
             output {{ name: 'y_1' data_type: TYPE_FP32 dims: 2 }} {more}"
        )
    };
    let engine = |name: &str| config(&format!("parameters {{ key: 'engine' value {{ string_value: '{name}' }} }}"));
    // A frozen graph without nodes to OpenVINO's reader of state, in the field of its text.
    let of = |text: &str| Message::new().bytes(9, text).into_bytes();
    let model = of("\ninput x_1:0 3 -1 2\noutput y_1:0 3 -1 2\n");
    add(&models, "free", &config(""), "model.graphdef", model);
    add(&models, "refused", &config(""), "model.graphdef", "graph");
    add(&models, "asking", &engine("tensorflow"), "model.graphdef", "graph");
    add(&models, "stuck", &engine("openvino"), "model.graphdef", "graph");
    add(&models, "neither", &config(""), "model.graphdef", "what is this");
    let found: [(&str, &Path); 2] = [("INTEL_OPENVINO_DIR", &openvino), ("TF_DYLIB_PATH", &tensorflow)];
    let server = start(&models, &found, &TOLERANT);
    let served = |server: &Server, model: &str| {
        let config = get(server, &format!("/v2/models/{model}/config"));
        config["parameters"]["served_engine"]["string_value"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(
        ["free", "refused", "asking"].map(|model| served(&server, model)),
        ["openvino", "tensorflow", "tensorflow"]
    );
    let log = server.log();
    let told = "'refused' falls back to TensorFlow 2.21.0, since OpenVINO 2026.4.1 does not run it: ";
    assert!(log.contains(told), "{log}");
    let no_graph = "unable to load model 'stuck': the graph is cut short or not protobuf";
    assert!(why(&server, "stuck").contains(no_graph), "{}", why(&server, "stuck"));
    let both = why(&server, "neither");
    let want = "TensorFlow: Invalid GraphDef; before: unable to load model 'neither': the graph is cut short";
    assert!(both.contains(want), "{both}");
    // A configuration that names TensorFlow's library wants it.
    fs::remove_dir_all(models.join("neither")).unwrap();
    fs::remove_dir_all(models.join("stuck")).unwrap();
    fs::write(models.join("free/1/model.graphdef"), "graph").unwrap();
    let flag = format!("--backend-config=tensorflow,library={}", tensorflow.display());
    let server = start(&models, &found, &[&flag, "--shards=1"]);
    assert_eq!(served(&server, "free"), "tensorflow");
}

#[test]
fn files_and_directories_are_served_as_they_lie_and_the_doctor_tells_the_libraries() {
    let folder = Folder::new("lone");
    let (openvino, tensorflow) = (openvino(folder.path()), tensorflow(folder.path()));
    let file = folder.path().join("net.xml");
    fs::write(&file, "input x 3 -1 2\noutput y 3 -1 2\n").unwrap();
    let server = start(&file, &[("INTEL_OPENVINO_DIR", &openvino)], &["--shards=1"]);
    assert_eq!(infer(&server, "net", "FP32", &[1, 2], &json!([1, 2])), (200, json!([[2.0, 4.0]])));
    let directory = folder.path().join("saved");
    fs::create_dir_all(directory.join("variables")).unwrap();
    let model = saved_model("serving_default", &["x in_1:0 1 -1,2"], &["y call_1:1 1 -1,2"]);
    fs::write(directory.join("saved_model.pb"), model).unwrap();
    let server = start(&directory, &[("TF_DYLIB_PATH", &tensorflow)], &["--shards=1"]);
    assert_eq!(infer(&server, "saved", "FP32", &[1, 2], &json!([1, 2])), (200, json!([[2.0, 4.0]])));

    let mut doctor = Command::new(env!("CARGO_BIN_EXE_deuteron"));
    doctor.arg("doctor").env_clear().env("INTEL_OPENVINO_DIR", &openvino);
    let text = String::from_utf8(doctor.output().unwrap().stdout).unwrap();
    let found = format!("  INTEL_OPENVINO_DIR: {}: used: OpenVINO 2026.4.1", openvino.display());
    assert!(text.contains(&found) && text.contains("  TensorFlow: not found; pip install tensorflow-cpu"), "{text}");
}
