//! `model_warmup` and `metric_tags`, on the server as a process.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test waits and fails by panicking"
)]

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use support::folder::Folder;
use support::{http, onnx, repository, server::Server};

/// Looks up rows of a table of four, on two instances.
fn lookup(warm_up: &str) -> String {
    format!(
        "platform: \"onnxruntime_onnx\" max_batch_size: 8\ninstance_group {{ count: 2 kind: KIND_CPU }}\n\
         metric_tags {{ key: \"team\" value: \"fruit\" }}\n\
         input {{ name: \"ROW\" data_type: TYPE_INT32 dims: 1 }}\noutput {{ name: \"VALUE\" data_type: TYPE_FP32 dims: 1 }}\n\
         model_warmup {{ name: \"rows\" batch_size: 2 count: 3 inputs {{ key: \"ROW\" value {{ data_type: TYPE_INT32 \
         dims: 1 {warm_up} }} }} }}\n"
    )
}

/// The output of a server that cannot start on a repository.
fn refusal(repository: &Path) -> String {
    let flags = ["--http-port=0", "--grpc-port=0", "--metrics-port=0", "--backend-config=onnxruntime,engine=embedded"];
    let output =
        Command::new(env!("CARGO_BIN_EXE_deuteron")).arg("serve").arg(repository).args(flags).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn samples_run_before_the_model_serves_and_count_nowhere() {
    let folder = Folder::new("warm-up");
    repository::add(folder.path(), "file", &lookup("input_data_file: \"row\""), Some(&onnx::lookup()));
    fs::create_dir(folder.path().join("file/warmup")).unwrap();
    fs::write(folder.path().join("file/warmup/row"), 3_i32.to_le_bytes()).unwrap();
    repository::add(folder.path(), "zero", &lookup("zero_data: true"), Some(&onnx::lookup()));
    let server = Server::deuteron(folder.path(), &[]);
    let statistics = http::get(server.http(), "/v2/models/stats").unwrap().body;
    let statistics: Value = serde_json::from_slice(&statistics).unwrap();
    for model in statistics["model_stats"].as_array().unwrap() {
        assert_eq!((&model["inference_count"], &model["execution_count"]), (&json!(0), &json!(0)), "{model}");
    }
    let metrics = String::from_utf8(http::get(server.metrics(), "/metrics").unwrap().body).unwrap();
    for line in [
        "nv_inference_request_success{_team=\"fruit\",model=\"zero\",version=\"1\"} 0",
        "nv_inference_request_failure{_team=\"fruit\",model=\"zero\",reason=\"REJECTED\",version=\"1\"} 0",
        "nv_inference_pending_request_count{_team=\"fruit\",model=\"file\",version=\"1\"} 0",
    ] {
        assert!(metrics.lines().any(|have| have == line), "{line}\n{metrics}");
    }
}

#[test]
fn a_sample_that_fails_fails_the_load_and_says_which() {
    let folder = Folder::new("warm-up-fails");
    repository::add(folder.path(), "m", &lookup("input_data_file: \"row\""), Some(&onnx::lookup()));
    let refused = refusal(folder.path());
    assert!(refused.contains("failed to load 'm': cannot read 'm/warmup/row'"), "{refused}");
    fs::create_dir(folder.path().join("m/warmup")).unwrap();
    let row = folder.path().join("m/warmup/row");
    fs::write(&row, 9_i32.to_le_bytes()).unwrap();
    let refused = refusal(folder.path());
    assert!(refused.contains("failed to load 'm': failed to run warmup sample 'rows': model 'm'"), "{refused}");
    fs::remove_file(&row).unwrap();
    let outside = folder.path().parent().unwrap().join("outside-row");
    fs::write(&outside, 3_i32.to_le_bytes()).unwrap();
    std::os::unix::fs::symlink(&outside, &row).unwrap();
    let refused = refusal(folder.path());
    assert!(
        refused.contains("failed to load 'm': cannot read 'm/warmup/row'"),
        "a link out of the repository: {refused}"
    );
    fs::remove_file(outside).unwrap();
}
