//! The example of text, `examples/text`: a tokenizer and a last step around an ONNX model, without Python and with it, on the
//! server as a process.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::python::Environment;
use crate::support::{http, server::Server};
use serde_json::{Value, json};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/text")
}

/// No Python can run in it.
fn server() -> Server {
    Server::deuteron(&folder(), &["--shards=1", "--backend-config=python,interpreter=/nonexistent"])
}

/// The same models by their `model.py` files, as tritonserver runs them; `None` without a Python.
fn python_server() -> Option<Server> {
    let interpreter = format!("--backend-config=python,interpreter={}", Environment::shared()?.python().display());
    Some(Server::deuteron(&folder(), &["--shards=1", "--steps=off", &interpreter]))
}

/// All sentences, each with its language; with a star those that the network was not trained on.
fn sentences() -> Vec<(String, String)> {
    let text = fs::read_to_string(folder().join("sentences.txt")).unwrap();
    let mut sentences = Vec::new();
    for block in text.split("\n\n") {
        let (language, lines) = block.split_once('\n').unwrap();
        sentences.extend(lines.lines().map(|line| (language.to_owned(), line.to_owned())));
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

fn check_languages(server: &Server) {
    let (status, answer) = infer(server, &fs::read(folder().join("request.json")).unwrap());
    assert_eq!(status, 200, "{answer}");
    let (labels, scores) = (rows(&answer, "labels"), rows(&answer, "scores"));
    assert_eq!([labels.len(), scores.len()], [2, 2], "a batch of two: {answer}");
    assert_eq!([&labels[0][0], &labels[1][0]], ["English", "German"], "{answer}");
    for scores in scores {
        let scores: Vec<_> = scores.iter().map(|score| score.as_f64().unwrap()).collect();
        assert!(scores[0] > 0.9 && scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
    }

    let held_out =
        sentences().into_iter().filter_map(|(language, line)| Some((language, line.strip_prefix("* ")?.to_owned())));
    let sentences: Vec<_> = held_out.collect();
    assert_eq!(sentences.len(), 40);
    for (language, sentence) in &sentences {
        let (status, answer) = infer(server, &request(&[sentence]));
        assert_eq!(status, 200, "{sentence}: {answer}");
        assert_eq!(rows(&answer, "labels")[0][0], language.as_str(), "{sentence}: {answer}");
    }
    // The same in one request: each row is answered by itself.
    let (languages, texts): (Vec<_>, Vec<_>) =
        sentences.iter().step_by(2).map(|(a, b)| (a.as_str(), b.as_str())).unzip();
    let (_, answer) = infer(server, &request(&texts));
    let first: Vec<_> = rows(&answer, "labels").iter().map(|labels| labels[0].as_str().unwrap()).collect();
    assert_eq!(first, languages);
}

#[test]
fn it_tells_the_language_of_sentences_that_it_was_not_trained_on() {
    let server = server();
    let log = server.log();
    assert_eq!(log.matches("steps.json is run instead of model.py").count(), 2, "{log}");
    check_languages(&server);
}

#[test]
fn its_model_py_files_tell_the_same_languages_with_the_same_scores() {
    let Some(python) = python_server() else { return };
    check_languages(&python);
    let steps = server();
    let sentences = sentences();
    let mut texts: Vec<_> = sentences.iter().map(|(_, line)| line.trim_start_matches("* ")).collect();
    let long = "Parole ".repeat(200);
    texts.extend(["", "?!", "12", "\u{4e2d}\u{6587} \u{5e9}\u{5dc}\u{5d5}\u{5dd}", "[CLS] [PAD]", &long]);
    for texts in texts.chunks(26) {
        let request = request(texts);
        assert_eq!(infer(&steps, &request), infer(&python, &request), "{texts:?}");
    }
}

#[test]
fn its_steps_and_model_py_files_answer_the_same() {
    let Some(python) = Environment::shared() else { return };
    for model in ["language_tokenizer", "language_labels"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_deuteron"));
        command.args(["steps", "compare"]).arg(folder().join(model)).args(["--count=200", "--tolerance=0"]);
        command.env("DEUTERON_BACKEND_CONFIG", format!("python,interpreter={}", python.python().display()));
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        let is_equal = text.starts_with("200 requests: 200 equal, 0 different, 0 refused by both");
        assert!(output.status.success() && is_equal, "{model}: {text}");
    }
}

#[test]
fn a_sentence_without_letters_is_of_any_language() {
    let server = server();
    for sentence in ["", " ", "?!", "12"] {
        let (status, answer) = infer(&server, &request(&[sentence]));
        assert_eq!(status, 200, "{answer}");
        let scores = rows(&answer, "scores")[0].iter().map(|score| score.as_f64().unwrap());
        assert!(scores.clone().all(|score| score < 0.3), "{sentence:?}: {answer}");
    }
}

#[test]
fn a_sentence_that_is_not_utf_8_is_refused_by_the_tokenizer() {
    let check = |server: &Server, why: &str| {
        let head =
            r#"{"inputs":[{"name":"sentence","datatype":"BYTES","shape":[2,1],"parameters":{"binary_data_size":10}}]}"#;
        let request = http::infer_request("language", head, b"\x01\0\0\0a\x01\0\0\0\xff");
        let answer = http::exchange(server.http(), &request).unwrap();
        let body: Value = serde_json::from_slice(&answer.body).unwrap();
        let want = format!("in ensemble 'language', step 1 ('language_tokenizer'): {why}");
        assert_eq!((answer.status, body["error"].as_str()), (400, Some(&*want)));
        assert_eq!(infer(server, &self::request(&["A sentence."])).0, 200);
    };
    check(&server(), "step 1 (tokenize): 'text' has the element 1 that is not UTF-8");
    let Some(python) = python_server() else { return };
    check(&python, "a sentence is not UTF-8: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte");
}
