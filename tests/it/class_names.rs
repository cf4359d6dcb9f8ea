//! Names of classes without a label file: from a `config.json` of Hugging Face's libraries beside a model, and from the ONNX files of
//! converters of scikit-learn. They are the labels of the classification extension.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::onnxruntime::{environment, flag};
use crate::support::folder::Folder;
use crate::support::http;
use crate::support::onnx::{FLOAT, INT64, Onnx};
use crate::support::repository;
use crate::support::server::Server;

/// `id2label` of three classes.
const HUB: &str = r#"{"architectures": ["BertForSequenceClassification"], "model_type": "bert",
    "id2label": {"0": "bad", "2": "good", "1": "fair"}, "name": 7}"#;

/// A model that returns its input, with this many classes.
fn logits(classes: i64) -> Vec<u8> {
    let onnx = Onnx::default().node("Identity", &["x"], &["logits"], &[]);
    onnx.input("x", FLOAT, &[-1, classes]).output("logits", FLOAT, &[-1, classes]).into_bytes()
}

/// Adds a model with a `config.json` in its directory, and in its version's.
fn add(folder: &Folder, name: &str, config: Option<&str>, files: &[(&str, &str)]) {
    repository::add(folder.path(), name, config.unwrap_or_default(), Some(&logits(3)));
    let model = folder.path().join(name);
    if config.is_none() {
        fs::remove_file(model.join("config.pbtxt")).unwrap();
    }
    files.iter().for_each(|(file, text)| fs::write(model.join(file), text).unwrap());
}

/// The two best classes of a row, or the error.
fn best(server: &Server, model: &str, input: &str, output: &str) -> Value {
    let body = json!({
        "inputs": [{"name": input, "datatype": "FP32", "shape": [1, 3], "data": [0.5, 0.25, 2]}],
        "outputs": [{"name": output, "parameters": {"classification": 2}}],
    });
    let answer = http::post(server.http(), &format!("/v2/models/{model}/infer"), body.to_string().as_bytes()).unwrap();
    let answer: Value = serde_json::from_slice(&answer.body).unwrap();
    if answer["error"].is_null() { answer["outputs"][0]["data"].clone() } else { answer }
}

#[test]
fn a_hub_config_beside_a_model_names_its_classes_and_configures_nothing() {
    let folder = Folder::new("hub-config");
    let config = "max_batch_size: 8 input { name: 'x' data_type: TYPE_FP32 dims: 3 }
        output { name: 'logits' data_type: TYPE_FP32 dims: 3 }";
    let labelled =
        config.replacen("dims: 3 }", "dims: 3 label_filename: 'l' }", 2).replacen(" label_filename: 'l'", "", 1);
    let other = HUB.replace("good", "splendid");
    add(&folder, "bare", None, &[("config.json", HUB)]);
    add(&folder, "configured", Some(config), &[("config.json", HUB)]);
    add(&folder, "version", None, &[("config.json", HUB), ("1/config.json", &other)]);
    add(&folder, "labelled", Some(&labelled), &[("config.json", HUB), ("l", "a\nb\nc\n")]);
    add(&folder, "fewer", None, &[("config.json", &HUB.replace(r#""2": "good", "#, ""))]);
    add(&folder, "own", None, &[("config.json", r#"{"max_batch_size": 2}"#)]);
    let server = Server::deuteron(folder.path(), &[]);
    let check = |model: &str, want: [&str; 2]| assert_eq!(best(&server, model, "x", "logits"), json!(want), "{model}");
    check("bare", ["2:2:good", "0.5:0:bad"]);
    check("configured", ["2:2:good", "0.5:0:bad"]);
    check("version", ["2:2:splendid", "0.5:0:bad"]);
    check("labelled", ["2:2:c", "0.5:0:a"]);
    check("fewer", ["2:2", "0.5:0"]);
    check("own", ["2:2", "0.5:0"]);
    let config = http::get(server.http(), "/v2/models/own/config").unwrap().body;
    let config: Value = serde_json::from_slice(&config).unwrap();
    assert_eq!(config["max_batch_size"], 2);
    // Triton takes a label file alone.
    let server =
        Server::deuteron(folder.path(), &["--compat=triton", "--exit-on-error=false", "--strict-readiness=false"]);
    assert_eq!(best(&server, "configured", "x", "logits"), json!(["2.000000:2", "0.500000:0"]));
    assert_eq!(best(&server, "labelled", "x", "logits"), json!(["2.000000:2:c", "0.500000:0:a"]));
}

#[test]
fn tritonclient_gets_the_names_of_a_hub_config() {
    let Some(environment) = environment() else { return };
    let folder = Folder::new("hub-client");
    add(&folder, "m", None, &[("config.json", HUB)]);
    let server = Server::deuteron(folder.path(), &[]);
    let program = r#"
import sys
import numpy as np
import tritonclient.grpc, tritonclient.http
for kind, address in ((tritonclient.http, sys.argv[1]), (tritonclient.grpc, sys.argv[2])):
    client = kind.InferenceServerClient(address)
    tensor = kind.InferInput("x", [2, 3], "FP32")
    tensor.set_data_from_numpy(np.array([[0, 1, 2], [5, 3, 4]], np.float32))
    result = client.infer("m", [tensor], outputs=[kind.InferRequestedOutput("logits", class_count=1)])
    print(*(text.decode() for text in result.as_numpy("logits").ravel()))
"#;
    let (http, grpc) = (server.http().to_string(), server.grpc().to_string());
    let output = Command::new(environment.python()).args(["-c", program, &http, &grpc]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text, "2:2:good 5:0:bad\n2:2:good 5:0:bad\n", "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_classes_of_a_converted_classifier_are_its_labels() {
    let Some(environment) = environment() else { return };
    let folder = Folder::new("classifier");
    // Scores that are the input, as a classifier of one coefficient for each class has them.
    let classifier = |classes: &str| {
        let coefficients = "coefficients=[1.0,0.0,0.0,0.0,1.0,0.0,0.0,0.0,1.0] intercepts=[0.0,0.0,0.0]";
        let attributes = format!("{coefficients} {classes} multi_class=0 post_transform=NONE");
        Onnx::default().node_of("ai.onnx.ml:LinearClassifier", &["x"], &["label", "scores"], &attributes)
    };
    let words = classifier("classlabels_strings=[ham,spam,eggs]").output("scores", FLOAT, &[-1, 3]);
    let encoded = classifier("classlabels_ints=[0,1,2]")
        .node_of("ai.onnx.ml:LabelEncoder", &["label"], &["word"], "keys_int64s=[0,1,2] values_strings=[low,mid,high]")
        .output("scores", FLOAT, &[-1, 3]);
    let numbers =
        classifier("classlabels_ints=[10,20,30]").output("scores", FLOAT, &[-1, -1]).output("label", INT64, &[-1]);
    let indices = classifier("classlabels_ints=[0,1,2]").output("scores", FLOAT, &[-1, 3]);
    for (name, onnx) in [("words", words), ("encoded", encoded), ("numbers", numbers), ("indices", indices)] {
        repository::add(folder.path(), name, "", Some(&onnx.input("x", FLOAT, &[-1, 3]).into_bytes()));
    }
    let server = Server::deuteron(folder.path(), &[&flag(environment)]);
    let check = |model: &str, want: [&str; 2]| assert_eq!(best(&server, model, "x", "scores"), json!(want), "{model}");
    check("words", ["2:2:eggs", "0.5:0:ham"]);
    check("encoded", ["2:2:high", "0.5:0:low"]);
    check("numbers", ["2:2:30", "0.5:0:10"]);
    check("indices", ["2:2", "0.5:0"]);
}
