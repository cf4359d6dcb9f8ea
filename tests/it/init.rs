//! `deuteron init KIND NAME`: each repository that it writes is served as it is, and answers the request that its README
//! names.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::folder::Folder;
use crate::support::http;
use crate::support::python::Environment;
use crate::support::server::Server;

/// Writes a model of a kind and serves the repository; `None` without Python.
fn served(folder: &Folder, kind: &str) -> Option<Server> {
    let environment = Environment::of_models()?;
    let path = folder.path().to_str().unwrap();
    let output =
        Command::new(env!("CARGO_BIN_EXE_deuteron")).args(["init", kind, "first", "--path", path]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("/v2/models/first/infer"), "{text}");
    let interpreter = format!("--backend-config=python,interpreter={}", environment.python().display());
    Some(Server::deuteron(folder.path(), &[&interpreter]))
}

fn infer(server: &Server, request: &Value) -> Value {
    let answer = http::post(server.http(), "/v2/models/first/infer", request.to_string().as_bytes()).unwrap();
    serde_json::from_slice(&answer.body).unwrap()
}

/// The request that a README gives to `curl -d`.
fn request_of_readme(folder: &Path) -> Value {
    let text = std::fs::read_to_string(folder.join("first/README.md")).unwrap();
    let request = text.split("-d '").nth(1).unwrap().split('\'').next().unwrap();
    serde_json::from_str(request).unwrap()
}

#[test]
fn a_text_model_answers_with_labels() {
    let folder = Folder::new("init-text");
    let Some(server) = served(&folder, "text") else { return };
    let answer = infer(&server, &request_of_readme(folder.path()));
    assert_eq!(answer["outputs"][0]["data"], json!(["1:1:positive"]), "{answer}");
    let two = json!({"inputs": [{"name": "TEXT", "shape": [2, 1], "datatype": "BYTES", "data": ["bad", "good, bad"]}]});
    assert_eq!(infer(&server, &two)["outputs"][0]["data"], json!([1.0, 0.0, 0.5, 0.5]));
}

#[test]
fn an_image_model_takes_a_file_as_it_is() {
    let folder = Folder::new("init-image");
    let Some(server) = served(&folder, "image") else { return };
    let image = b"P6 2 1 255\n\x00\x00\xff\x00\x00\xff";
    let ask = |file: &[u8]| {
        let request =
            http::request("POST", "/v2/models/first/infer", &[("Content-Type", "image/x-portable-pixmap")], file);
        http::exchange(server.http(), &request).unwrap()
    };
    let answer = ask(image).body;
    let scores: Vec<f32> =
        answer[answer.len() - 12..].chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
    assert_eq!(scores, [0.0, 0.0, 1.0]);
    let data = [&(image.len() as u32).to_le_bytes()[..], image].concat();
    let head = json!({
        "inputs": [{
            "name": "IMAGE", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": data.len()}
        }],
        "outputs": [{"name": "SCORES", "parameters": {"classification": 1}}]
    });
    let request = http::infer_request("first", &head.to_string(), &data);
    let answer: Value = serde_json::from_slice(&http::exchange(server.http(), &request).unwrap().body).unwrap();
    assert_eq!(answer["outputs"][0]["data"], json!(["1:2:blue"]), "{answer}");
    assert_eq!(ask(b"no image").status, 400);
}

#[test]
fn an_ensemble_connects_its_two_models() {
    let folder = Folder::new("init-ensemble");
    let Some(server) = served(&folder, "ensemble") else { return };
    let answer = infer(&server, &request_of_readme(folder.path()));
    assert_eq!(answer["outputs"][0]["data"], json!(["1:1:excited"]), "{answer}");
    let calm = json!({"inputs": [{"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": ["a day"]}]});
    assert_eq!(infer(&server, &calm)["outputs"][0]["data"], json!([1.0, 0.0]));
}
