//! The libraries themselves, out of the Python packages `openvino` and `tensorflow-cpu`: answers are held to the frameworks
//! in Python, which make the models (`tests/frameworks/hold_*.py`).

use std::path::Path;
use std::process::Command;

use crate::support::folder::Folder;
use crate::support::python::Environment;
use crate::support::skipped::is_asked_for;

/// Makes models with the framework, serves them with the library of this environment, and compares.
fn hold(environment: &Environment, script: &str, openvino: Option<&Environment>) {
    let folder = Folder::new(script);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/frameworks").join(script);
    let mut command = Command::new(environment.python());
    command.arg(path).arg(env!("CARGO_BIN_EXE_deuteron")).arg(folder.path());
    if let Some(openvino) = openvino {
        command.env("OPENVINO_WHEEL", openvino.packages().join("openvino"));
    }
    command.env("VIRTUAL_ENV", environment.path()).env("TF_CPP_MIN_LOG_LEVEL", "2");
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success(), "{text}");
    println!("{text}");
}

#[test]
fn real_openvino_answers_as_in_python() {
    if !is_asked_for("frameworks") {
        return;
    }
    let requirements = "tests/frameworks/openvino.txt";
    hold(&Environment::create("openvino", requirements, &["python3"]).expect("asked for"), "hold_openvino.py", None);
}

#[test]
fn real_tensorflow_answers_as_in_python() {
    if !is_asked_for("frameworks") {
        return;
    }
    let [openvino, tensorflow] = ["openvino", "tensorflow"].map(|name| {
        let requirements = format!("tests/frameworks/{name}.txt");
        Environment::create(name, &requirements, &["python3"]).expect("asked for")
    });
    hold(&tensorflow, "hold_tensorflow.py", Some(&openvino));
}
