//! The example of text in pictures, `examples/ocr`: two networks with steps before and behind them, without Python in the
//! server.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::control::base64;
use crate::support::folder::Folder;
use crate::support::http::{self, Response};
use crate::support::python::Environment;
use crate::support::server::Server;

/// The lines that rapidocr 3.10 with ONNX Runtime finds in the picture of the example: the texts, and the upper left and
/// lower right corner of each box.
const LINES: [(&str, [f64; 4]); 3] = [
    ("Invoice 2026-1130", [47.0, 41.0, 395.0, 82.0]),
    ("Total: 1,299.00 EUR", [45.0, 132.0, 414.0, 174.0]),
    ("Thank you for your order", [43.0, 222.0, 514.0, 273.0]),
];
/// Pixels by which a corner may differ: another engine computes the map.
const CORNER_MAX: f64 = 2.0;

/// A white PNG of 64 × 64 pixels.
const BLANK: &[u8] = b"\
    \x89\x50\x4e\x47\x0d\x0a\x1a\x0a\x00\x00\x00\x0d\x49\x48\x44\x52\x00\x00\x00\x40\x00\x00\x00\x40\
    \x08\x00\x00\x00\x00\x8f\x02\x2e\x02\x00\x00\x00\x29\x49\x44\x41\x54\x78\xda\xed\xcc\x41\x11\x00\
    \x00\x0c\x02\x20\xfb\x97\xd6\x10\xfb\xed\x20\x00\xe9\x51\x04\x02\x81\x40\x20\x10\x08\x04\x02\x81\
    \x40\x20\x10\x7c\x0f\x06\xa7\x0b\xf0\xe2\xaa\xf0\x0c\x32\x00\x00\x00\x00\x49\x45\x4e\x44\xae\x42\
    \x60\x82\
    ";

fn ask(server: &Server, content_type: &str, body: &[u8]) -> Value {
    let fields = [("Content-Type", content_type), ("Accept", "application/json")];
    let request = http::request("POST", "/v2/models/ocr/infer", &fields, body);
    let Response { status, body, .. } = http::exchange(server.http(), &request).unwrap();
    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&body));
    serde_json::from_slice(&body).unwrap()
}

fn check(answer: &Value) {
    let [text, score, boxes] = [0, 1, 2].map(|index| &answer["outputs"][index]);
    assert_eq!((&text["name"], &score["name"], &boxes["name"]), (&json!("text"), &json!("score"), &json!("boxes")));
    assert_eq!(text["data"], json!(LINES.map(|(text, _)| text)), "{answer}");
    assert!(score["data"].as_array().unwrap().iter().all(|score| score.as_f64().unwrap() > 0.95), "{answer}");
    assert_eq!(boxes["shape"], json!([1, 3, 4, 2]));
    let corners: Vec<f64> = boxes["data"].as_array().unwrap().iter().map(|side| side.as_f64().unwrap()).collect();
    for (found, (text, want)) in corners.chunks(8).zip(LINES) {
        let found = [found[0], found[1], found[4], found[5]];
        let differs = found.iter().zip(want).any(|(found, want)| (found - want).abs() > CORNER_MAX);
        assert!(!differs, "{text}: {found:?}, want {want:?}");
    }
}

#[test]
fn a_picture_is_read_and_one_without_text_is_too() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let Some(environment) = Environment::create("rapidocr", "tests/ocr/requirements.txt", &["python3"]) else { return };
    let models = Folder::new("ocr");
    let run = |program: &mut Command| {
        let output = program.output().expect("the program starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    run(Command::new("cp").arg("-rT").arg(root.join("examples/ocr")).arg(models.path()));
    let package = environment.packages().join("rapidocr");
    run(Command::new("python3").arg(models.path().join("fetch.py")).arg(package));
    let server = Server::deuteron(models.path(), &["--shards=1"]);

    let page = std::fs::read(root.join("examples/ocr/page.jpg")).unwrap();
    check(&ask(&server, "image/jpeg", &page));
    let encoded =
        json!({ "inputs": [{ "name": "image", "shape": [1], "datatype": "BYTES", "data": [base64(&page)] }] });
    check(&ask(&server, "application/json", encoded.to_string().as_bytes()));

    let empty = ask(&server, "image/png", BLANK);
    let shapes: Vec<_> = empty["outputs"].as_array().unwrap().iter().map(|output| output["shape"].clone()).collect();
    assert_eq!(shapes, [json!([0]), json!([0]), json!([1, 0, 4, 2])], "{empty}");
}
