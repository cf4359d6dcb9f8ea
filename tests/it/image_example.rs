//! The examples of pictures, `examples/image`: a classifier and a detector with a `model.py` that runs a network, and a list of steps
//! around the same network, which is what the server runs.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::folder::Folder;
use crate::support::http::{self, Response};
use crate::support::python::Environment;
use crate::support::server::Server;

/// The parts of the page that the detector finds: class, and the box in the picture.
const PARTS: [(&str, [f64; 4]); 9] = [
    ("text", [50.0, 691.0, 553.0, 751.0]),
    ("text", [48.0, 217.0, 549.0, 294.0]),
    ("text", [49.0, 101.0, 554.0, 195.0]),
    ("title", [140.0, 45.0, 414.0, 68.0]),
    ("figure", [116.0, 314.0, 509.0, 494.0]),
    ("figure_caption", [189.0, 502.0, 354.0, 512.0]),
    ("table", [83.0, 556.0, 540.0, 673.0]),
    ("table_caption", [210.0, 542.0, 348.0, 551.0]),
    ("header", [140.0, 45.0, 415.0, 68.0]),
];
/// Pixels by which a side may differ: the constants are whole numbers.
const SIDE_MAX: f64 = 2.0;

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn run(program: &mut Command) -> String {
    let output = program.output().expect("the program starts");
    assert!(output.status.success(), "{}", text(&output));
    text(&output)
}

/// The examples with their networks; `None` without a Python.
fn models() -> Option<(Folder, Environment)> {
    let environment = Environment::create("image", "tests/image/requirements.txt", &["python3"])?;
    let models = Folder::new("image");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    run(Command::new("cp").arg("-rT").arg(root.join("examples/image")).arg(models.path()));
    run(Command::new("python3").arg(models.path().join("fetch.py")).arg(environment.packages()));
    Some((models, environment))
}

fn upload(server: &Server, model: &str, kind: &str, file: &[u8]) -> (u16, Value) {
    let fields = [("Content-Type", kind), ("Accept", "application/json")];
    let request = http::request("POST", &format!("/v2/models/{model}/infer"), &fields, file);
    let Response { status, body, .. } = http::exchange(server.http(), &request).unwrap();
    (status, serde_json::from_slice(&body).unwrap())
}

fn output<'a>(answer: &'a Value, name: &str) -> &'a [Value] {
    let outputs = answer["outputs"].as_array().unwrap_or_else(|| panic!("no outputs: {answer}"));
    outputs.iter().find(|output| output["name"] == name).unwrap()["data"].as_array().unwrap()
}

#[test]
fn pictures_are_answered_as_their_model_py_files_do() {
    let (Some((models, environment)), Some(python)) = (models(), Environment::shared()) else { return };
    let server = Server::deuteron(models.path(), &["--shards=1"]);
    let log = server.log();
    assert_eq!(log.matches("steps.json is run around model.onnx instead of model.py").count(), 2, "{log}");
    let path = models.path().join("page.jpg");
    let page = std::fs::read(&path).unwrap();

    let (status, answer) = upload(&server, "page_orientation", "image/jpeg", &page);
    assert_eq!((status, &output(&answer, "labels")[0]), (200, &json!("upright")), "{answer}");
    assert!(output(&answer, "scores")[0].as_f64().unwrap() > 0.9, "{answer}");
    let (status, answer) = upload(&server, "page_layout", "image/jpeg", &page);
    assert_eq!((status, output(&answer, "labels")), (200, &PARTS.map(|(label, _)| json!(label))[..]), "{answer}");
    let sides = output(&answer, "boxes").iter().map(|side| side.as_f64().unwrap());
    for (index, (got, want)) in sides.zip(PARTS.iter().flat_map(|(_, sides)| sides)).enumerate() {
        assert!((got - want).abs() < SIDE_MAX, "{index}: {got}, want {want}");
    }
    let (status, answer) = upload(&server, "page_layout", "image/jpeg", &page[..page.len() / 2]);
    let error = answer["error"].as_str().unwrap();
    assert!(status == 400 && error.starts_with("step 1 (image): 'image', row 0: JPEG: "), "{answer}");

    let mut ask = Command::new(env!("CARGO_BIN_EXE_deuteron"));
    ask.args(["ask", "page_orientation", "--url", &format!("http://{}", server.http()), "--input"]).arg(&path);
    let asked = run(&mut ask);
    assert!(asked.contains(r#""shape":[1,2],"data":["upright","#), "{asked}");

    let mut check = Command::new(python.python());
    check.arg("-B").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/image/check.py")).arg(models.path());
    check.args([server.http().to_string(), server.grpc().to_string()]).env("PYTHONPATH", environment.packages());
    let checked = run(&mut check);
    assert_eq!(checked.lines().last(), Some("36"), "{checked}");
}

#[test]
fn their_steps_and_model_py_files_answer_the_same() {
    let Some((models, environment)) = models() else { return };
    for (model, count) in [("page_orientation", 12), ("page_layout", 3)] {
        let mut compare = Command::new(env!("CARGO_BIN_EXE_deuteron"));
        compare
            .args(["steps", "compare", "--tolerance=1e-3", &format!("--count={count}")])
            .arg(models.path().join(model));
        compare.env("DEUTERON_BACKEND_CONFIG", format!("python,interpreter={}", environment.python().display()));
        let result = run(&mut compare);
        assert!(
            result.starts_with(&format!("{count} requests: {count} equal, 0 different, 0 refused by both")),
            "{result}"
        );
    }
}
