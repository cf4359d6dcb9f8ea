//! Python models by `tritonclient`, over HTTP and gRPC, sync and asyncio. The checks are in
//! `tests/python_models/check.py`.

use std::path::Path;
use std::process::Command;

use super::zoo::Models;
use crate::support::python::Environment;

#[test]
fn tritonclient_gets_what_python_models_answer() {
    let Some(models) = Models::new() else { return };
    let Some(environment) = Environment::shared() else { return };
    let names = "all_types async_execute batch_concat double late_answers layouts nms optional_inputs request_echo session_memory \
        string_forms token_stream wordpiece_tokenizer";
    let zoo = models.with(names).serve(&[]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python_models/check.py");
    let output = Command::new(environment.python())
        .arg(script)
        .args([zoo.server.http().to_string(), zoo.server.grpc().to_string()])
        .output()
        .expect("the interpreter starts");
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    assert!(output.status.success(), "{text}{}\n{}", String::from_utf8_lossy(&output.stderr), zoo.server.log());
    assert_eq!(text.lines().filter(|line| line.starts_with("ok ")).count(), 9, "{text}");
}

#[test]
fn models_of_scikit_learn_and_torch_run_where_they_are() {
    for (model, module, name, want) in [
        ("sklearn_classifier", "sklearn", "features", serde_json::json!([1, 0])),
        ("torch_mlp", "torch", "INPUT", serde_json::json!([6.0, 1.0])),
    ] {
        let Some(models) = Models::new() else { return };
        let is_there = Command::new(models.python()).args(["-c", &format!("import {module}")]).output();
        if !is_there.is_ok_and(|output| output.status.success()) {
            crate::support::skipped::skip(&format!("the models' environment has no {module}"));
            continue;
        }
        let zoo = models.with(model).serve(&[]);
        let input =
            serde_json::json!({ "name": name, "datatype": "FP32", "shape": [2, 2], "data": [5.0, 5.0, 0.0, 0.0] });
        assert_eq!(zoo.ask(model, &[input]), Ok(want), "{model}");
    }
}
