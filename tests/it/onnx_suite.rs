//! The backend test suite of the `onnx` package, all of it, on both engines: a model that loads answers as the suite
//! says. `docs/embedded-engine.md` lists the refusals of the embedded engine, with reasons.

use std::path::Path;
use std::process::Command;

use crate::onnxruntime::{environment, flag};
use crate::support::folder::Folder;
use crate::support::python::Environment;
use crate::support::server::Server;

/// Cases that the embedded engine computes rightly. Raise it when there are more.
const EMBEDDED_RIGHT: u32 = 1123;
/// The same of ONNX Runtime.
const ONNXRUNTIME_RIGHT: u32 = 1432;

fn script(environment: &Environment, verb: &str, argument: &str) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/onnx_suite/check.py");
    let output = Command::new(environment.python()).arg(script).args([verb, argument]).output();
    let output = output.expect("the interpreter starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Serves the suite's models and compares. `right` is the count that must be reached.
fn hold(engine: &str, right: u32, flag: impl Fn(&Environment) -> String) {
    let Some(environment) = environment() else { return };
    let repository = Folder::new("onnx-suite");
    script(environment, "write", &repository.path().display().to_string());
    // Two thousand trials of loads are two thousand processes, and prove nothing here: `load_trials` does.
    let flags = [&flag(environment), "--trial-loads=off", "--model-control-mode=explicit"];
    let server = Server::deuteron(repository.path(), &flags);
    let text = script(environment, engine, &server.http().to_string());
    let bad: Vec<_> = text.lines().filter(|line| line.starts_with("failed ") || line.starts_with("wrong ")).collect();
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    let counts = text.lines().last().unwrap_or_default();
    println!("{engine}: {counts}");
    let count = counts.split(' ').next().and_then(|count| count.parse().ok());
    assert!(count.is_some_and(|count: u32| count >= right), "{engine}: {counts}");
}

#[test]
fn the_embedded_engine_is_right_on_the_suite_of_onnx_or_refuses_at_load() {
    hold("embedded", EMBEDDED_RIGHT, |_| "--backend-config=onnxruntime,engine=embedded".to_owned());
}

#[test]
fn onnx_runtime_answers_the_suite_of_onnx_through_the_server_as_in_python() {
    hold("onnxruntime", ONNXRUNTIME_RIGHT, flag);
}
