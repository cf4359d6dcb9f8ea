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

/// The configuration and the weights of a corpus file, which has a line `---` between them.
pub(crate) fn corpus(family: &str) -> (Vec<u8>, Vec<u8>) {
    let bytes = read(&format!("fuzz/corpus/safetensors/{family}"));
    let at = bytes.windows(5).position(|window| window == b"\n---\n").unwrap();
    (bytes[..at].to_vec(), bytes[at + 5..].to_vec())
}

/// The ONNX file of a corpus file.
fn write(family: &str, operators: Operators) -> Vec<u8> {
    let (config, weights) = corpus(family);
    let config = TransformerConfig::parse(&config).unwrap();
    let weights = SafeTensors::read(&[("model.safetensors", &weights)]).unwrap();
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

/// A tokenizer of four words.
const TOKENIZER: &str = r#"{"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": null, "decoder": null,
    "model": {"type": "WordLevel", "vocab": {"[PAD]": 0, "[UNK]": 1, "good": 2, "bad": 4}, "unk_token": "[UNK]"}}"#;

#[test]
fn a_hub_folder_without_onnx_is_served_from_its_weights() {
    let folder = Folder::new("safetensors-hub");
    let (config, weights) = corpus("bert");
    let write_folder = |name: &str, files: &[(&str, &[u8])]| {
        let path = folder.path().join(name);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("config.json"), &config).unwrap();
        fs::write(path.join("tokenizer.json"), TOKENIZER).unwrap();
        files.iter().for_each(|(file, contents)| fs::write(path.join(file), contents).unwrap());
    };
    write_folder("exported", &[("model.onnx", &write("bert", Operators::Standard))]);
    write_folder("weights", &[("model.safetensors", &weights)]);
    let header: Value = {
        let size = u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
        serde_json::from_slice(&weights[8..8 + size]).unwrap()
    };
    let names = header.as_object().unwrap().keys().filter(|name| *name != "__metadata__");
    let map: serde_json::Map<_, _> = names.map(|name| (name.clone(), json!("part-1.safetensors"))).collect();
    let index = json!({"metadata": {}, "weight_map": map}).to_string();
    write_folder("sharded", &[("model.safetensors.index.json", index.as_bytes()), ("part-1.safetensors", &weights)]);
    write_folder("torn", &[("model.safetensors", &weights[..weights.len() - 1])]);
    write_folder("pickled", &[("pytorch_model.bin", &weights)]);
    let server = Server::deuteron(folder.path(), &["--exit-on-error=false", "--strict-readiness=false"]);
    let predict = |model: &str| {
        let body = json!({"inputs": [["good bad"], ["bad"], ["other good"]]}).to_string();
        let answer = http::post(server.http(), &format!("/models/{model}/predict"), body.as_bytes()).unwrap();
        assert_eq!(answer.status, 200, "{model}: {}", String::from_utf8_lossy(&answer.body));
        let answer: Vec<Vec<Value>> = serde_json::from_slice(&answer.body).unwrap();
        let scores =
            answer.into_iter().flatten().map(|class| (class["label"].clone(), class["score"].as_f64().unwrap()));
        scores.collect::<Vec<_>>()
    };
    let want = predict("exported");
    assert!(want.len() > 3, "several classes for each text");
    for model in ["weights", "sharded"] {
        let got = predict(model);
        let is_near = |((label, score), (other, wanted)): (&(Value, f64), &(Value, f64))| {
            label == other && (score - wanted).abs() < 1e-5
        };
        assert!(got.len() == want.len() && got.iter().zip(&want).all(is_near), "{model}: {got:?} {want:?}");
    }
    let index = http::post(server.http(), "/v2/repository/index", b"{}").unwrap();
    let index: Vec<Value> = serde_json::from_slice(&index.body).unwrap();
    let reason = |model: &str| index.iter().find(|entry| entry["name"] == model).unwrap()["reason"].as_str().unwrap();
    assert!(reason("torn").contains("model.safetensors"), "{}", reason("torn"));
    assert!(reason("pickled").contains("optimum-cli export onnx"), "{}", reason("pickled"));
}
