//! The example of text, `examples/text`: a tokenizer and a last step in Python around an ONNX model, on the server as a
//! process.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::python::Environment;
use crate::support::{http, server::Server};
use serde_json::{Value, json};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/text")
}

/// `None` without a Python to run it.
fn server() -> Option<Server> {
    let interpreter = format!("--backend-config=python,interpreter={}", Environment::shared()?.python().display());
    Some(Server::deuteron(&folder(), &["--shards=1", &interpreter]))
}

/// The sentences that the network was not trained on, each with its language.
fn held_out() -> Vec<(String, String)> {
    let text = fs::read_to_string(folder().join("sentences.txt")).unwrap();
    let mut sentences = Vec::new();
    for block in text.split("\n\n") {
        let (language, lines) = block.split_once('\n').unwrap();
        let starred = lines.lines().filter_map(|line| line.strip_prefix("* "));
        sentences.extend(starred.map(|line| (language.to_owned(), line.to_owned())));
    }
    sentences
}

fn infer(server: &Server, body: &[u8]) -> (u16, Value) {
    let answer = http::post(server.http(), "/v2/models/language/infer", body).unwrap();
    (answer.status, serde_json::from_slice(&answer.body).unwrap())
}

fn request(sentences: &[&str]) -> Vec<u8> {
    let rows = sentences.len();
    let input = json!({"name": "sentence", "datatype": "BYTES", "shape": [rows, 1], "data": sentences});
    json!({"inputs": [input]}).to_string().into_bytes()
}

/// The data of an output, row by row.
fn rows<'a>(answer: &'a Value, output: &str) -> Vec<&'a [Value]> {
    let outputs = answer["outputs"].as_array().unwrap();
    let output = outputs.iter().find(|have| have["name"] == output).unwrap();
    output["data"].as_array().unwrap().chunks(3).collect()
}

#[test]
fn it_tells_the_language_of_sentences_that_it_was_not_trained_on() {
    let Some(server) = server() else { return };
    let (status, answer) = infer(&server, &fs::read(folder().join("request.json")).unwrap());
    assert_eq!(status, 200, "{answer}");
    let (labels, scores) = (rows(&answer, "labels"), rows(&answer, "scores"));
    assert_eq!([labels.len(), scores.len()], [2, 2], "a batch of two: {answer}");
    assert_eq!([&labels[0][0], &labels[1][0]], ["English", "German"], "{answer}");
    for scores in scores {
        let scores: Vec<_> = scores.iter().map(|score| score.as_f64().unwrap()).collect();
        assert!(scores[0] > 0.9 && scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
    }

    let sentences = held_out();
    assert_eq!(sentences.len(), 40);
    for (language, sentence) in &sentences {
        let (status, answer) = infer(&server, &request(&[sentence]));
        assert_eq!(status, 200, "{sentence}: {answer}");
        assert_eq!(rows(&answer, "labels")[0][0], language.as_str(), "{sentence}: {answer}");
    }
    // The same in one request: each row is answered by itself.
    let (languages, texts): (Vec<_>, Vec<_>) =
        sentences.iter().step_by(2).map(|(a, b)| (a.as_str(), b.as_str())).unzip();
    let (_, answer) = infer(&server, &request(&texts));
    let first: Vec<_> = rows(&answer, "labels").iter().map(|labels| labels[0].as_str().unwrap()).collect();
    assert_eq!(first, languages);
}

#[test]
fn its_last_step_answers_the_same_without_python() {
    let Some(python) = Environment::shared() else { return };
    let mut command = Command::new(env!("CARGO_BIN_EXE_deuteron"));
    command.args(["steps", "compare"]).arg(folder().join("language_labels")).args(["--count=200", "--tolerance=0"]);
    command.env("DEUTERON_BACKEND_CONFIG", format!("python,interpreter={}", python.python().display()));
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.starts_with("200 requests: 200 equal"), "{text}");
}

#[test]
fn a_sentence_without_letters_is_refused_by_the_tokenizer() {
    let Some(server) = server() else { return };
    let (status, answer) = infer(&server, &request(&["A sentence.", "?!"]));
    let want = "in ensemble 'language', step 1 ('language_tokenizer'): a sentence has no letters";
    assert_eq!((status, answer["error"].as_str()), (400, Some(want)));
    let (status, _) = infer(&server, &request(&["A sentence."]));
    assert_eq!(status, 200);
}
