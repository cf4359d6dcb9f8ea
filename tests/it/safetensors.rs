//! Graphs that are written from safetensors, as models of a server: it completes their configuration, bounds the memory
//! of their runs, and answers as transformers.

use std::fs;
use std::path::Path;

use deuteron::transformer::{Operators, SafeTensors, TransformerConfig, onnx_from_safetensors};
use serde_json::{Value, json};

use crate::support::folder::Folder;
use crate::support::http;
use crate::support::server::Server;

/// The files of `fuzz/corpus/safetensors`, and the heads whose recorded answers they give.
const MODELS: [(&str, &str, &str); 3] = [
    ("bert", "ForSequenceClassification", "logits"),
    ("deberta_v3", "Model", "last_hidden_state"),
    ("modernbert", "ForTokenClassification", "logits"),
];

fn read(path: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The ONNX file of a corpus file: a configuration and, behind a line `---`, the weights.
fn write(family: &str, operators: Operators) -> Vec<u8> {
    let bytes = read(&format!("fuzz/corpus/safetensors/{family}"));
    let at = bytes.windows(5).position(|window| window == b"\n---\n").unwrap();
    let config = TransformerConfig::parse(&bytes[..at]).unwrap();
    let weights = SafeTensors::read(&[("model.safetensors", &bytes[at + 5..])]).unwrap();
    onnx_from_safetensors(&config, &weights, operators).unwrap()
}

#[test]
fn a_graph_from_safetensors_is_served_as_any_onnx_file() {
    let folder = Folder::new("safetensors");
    for (family, _, _) in MODELS {
        for operators in [Operators::Standard, Operators::OnnxRuntime] {
            let version = folder.path().join(format!("{family}_{operators:?}")).join("1");
            fs::create_dir_all(&version).unwrap();
            fs::write(version.join("model.onnx"), write(family, operators)).unwrap();
        }
    }
    let server = Server::deuteron(folder.path(), &[]);
    for (family, head, output) in MODELS {
        let heads: Value =
            serde_json::from_slice(&read(&format!("crates/transformer/tests/golden/{family}.json"))).unwrap();
        let inputs = heads["Model"]["inputs"].as_object().unwrap().iter().map(|(name, value)| {
            json!({"name": name, "datatype": "INT64", "shape": value["shape"], "data": value["values"]})
        });
        let body = json!({"inputs": inputs.collect::<Vec<_>>()}).to_string();
        let want = &heads[head]["outputs"][output];
        for operators in [Operators::Standard, Operators::OnnxRuntime] {
            let path = format!("/v2/models/{family}_{operators:?}/infer");
            let answer = http::post(server.http(), &path, body.as_bytes()).unwrap();
            let answer: Value = serde_json::from_slice(&answer.body).unwrap();
            let got = &answer["outputs"][0];
            assert_eq!((&got["name"], &got["shape"]), (&json!(output), &want["shape"]), "{path}: {answer}");
            let pairs = got["data"].as_array().unwrap().iter().zip(want["values"].as_array().unwrap());
            let worst =
                pairs.map(|(got, want)| (got.as_f64().unwrap() - want.as_f64().unwrap()).abs()).fold(0.0, f64::max);
            assert!(worst <= 1e-5, "{path}: {worst}");
        }
    }
}
