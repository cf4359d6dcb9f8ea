//! `model_warmup` and `metric_tags`, on the server as a process.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::folder::Folder;
use crate::support::python::Environment;
use crate::support::{http, onnx, repository, server::Server};
use serde_json::{Value, json};

/// Looks rows up in a table of four, on two instances.
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
    let flags = ["--http-port=0", "--grpc-port=0", "--metrics-port=0", "--follow-links=false"];
    let output = Command::new(env!("CARGO_BIN_EXE_deuteron"))
        .arg("serve")
        .arg(repository)
        .args(flags)
        .arg("--backend-config=onnxruntime,engine=embedded")
        .output()
        .unwrap();
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

/// Counts its batches in a file.
const COUNTING: &str = r#"import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        with open("COUNTS", "a") as file:
            file.write("batch\n")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())]) for request in requests]
"#;

#[test]
fn a_python_model_runs_its_samples_as_often_as_configured() {
    let Some(environment) = Environment::of_models() else { return };
    let folder = Folder::new("warm-up-python");
    let counts = folder.path().join("counts");
    let config = "backend: 'python' instance_group { count: 2 kind: KIND_CPU }
        input { name: 'IN' data_type: TYPE_FP32 dims: 1 } output { name: 'OUT' data_type: TYPE_FP32 dims: 1 }
        model_warmup { name: 'w' batch_size: 1 count: 3 inputs { key: 'IN' value { data_type: TYPE_FP32 dims: 1 \
        zero_data: true } } }";
    let models = folder.path().join("models");
    repository::add(&models, "m", config, None);
    let program = COUNTING.replace("COUNTS", &counts.display().to_string());
    fs::write(models.join("m/1/model.py"), program).unwrap();
    let interpreter = format!("--backend-config=python,interpreter={}", environment.python().display());
    let _server = Server::deuteron(&models, &[&interpreter]);
    assert_eq!(
        fs::read_to_string(counts).unwrap().lines().count(),
        2 * 3,
        "each instance runs each sample three times"
    );
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

#[test]
fn an_ensemble_is_ready_after_the_samples_of_its_steps() {
    let folder = Folder::new("warm-up-ensemble");
    repository::add(folder.path(), "m", &lookup("input_data_file: \"row\""), Some(&onnx::lookup()));
    let ensemble = "platform: 'ensemble' max_batch_size: 8
        input { name: 'IN' data_type: TYPE_INT32 dims: 1 } output { name: 'OUT' data_type: TYPE_FP32 dims: 1 }
        ensemble_scheduling { step { model_name: 'm' model_version: -1 input_map { key: 'ROW' value: 'IN' }
        output_map { key: 'VALUE' value: 'OUT' } } }";
    repository::add(folder.path(), "e", ensemble, None);
    fs::create_dir(folder.path().join("m/warmup")).unwrap();
    let row = folder.path().join("m/warmup/row");
    let server = Server::deuteron(folder.path(), &["--model-control-mode=explicit"]);
    let load = || http::post(server.http(), "/v2/repository/models/e/load", b"").unwrap();
    let ready = || http::get(server.http(), "/v2/models/e/ready").unwrap().status;
    fs::write(&row, 9_i32.to_le_bytes()).unwrap();
    let refused = load();
    let text = String::from_utf8(refused.body).unwrap();
    let want = "ensemble 'e' depends on 'm' which has no loaded version. Model 'm' loading failed with error";
    assert!(refused.status == 400 && text.contains(want) && text.contains("warmup sample 'rows'"), "{text}");
    assert_ne!(ready(), 200);
    fs::write(&row, 3_i32.to_le_bytes()).unwrap();
    assert_eq!((load().status, ready()), (200, 200), "{}", server.log());
    let warm = format!("{ensemble} model_warmup {{ name: 'w' batch_size: 1 }}");
    fs::write(folder.path().join("e/config.pbtxt"), warm).unwrap();
    let text = String::from_utf8(load().body).unwrap();
    assert!(
        text.contains("model_warmup can not be specified for ensemble 'e'; give it to the models of its steps"),
        "{text}"
    );
}

/// By `tritonclient`, for the words that a user sees: versions whose samples the engine cannot
/// answer.
#[test]
fn a_version_whose_samples_fail_in_the_engine_is_refused_and_the_old_one_serves_on() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let Some(environment) = Environment::shared() else { return };
    let folder = Folder::new("warm-up-engine");
    repository::add(folder.path(), "m", &lookup("input_data_file: \"row\""), Some(&onnx::lookup()));
    fs::create_dir(folder.path().join("m/warmup")).unwrap();
    fs::write(folder.path().join("m/warmup/row"), 3_i32.to_le_bytes()).unwrap();
    let mut server = Server::deuteron(folder.path(), &["--model-control-mode=explicit", "--load-model=m"]);
    let check = |verb: &str| {
        let script = root.join("tests/warm_up/check.py");
        let addresses = [server.http().to_string(), server.grpc().to_string()];
        let output = Command::new(environment.python()).arg(script).arg(verb).args(addresses).output().unwrap();
        let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{verb}: {text}{errors}\n{}", server.log());
    };
    // The sample asks for the fourth row of a table of two.
    let second = folder.path().join("m/2");
    fs::create_dir(&second).unwrap();
    fs::write(second.join("model.onnx"), onnx::lookup_of(&[20.0, 21.0])).unwrap();
    check("refused");
    // The engine failed, and no check before it; nothing is left of the load.
    assert!(server.log().contains("failed to run warmup sample 'rows': model 'm'"), "{}", server.log());
    let instances = fs::read_dir(format!("/proc/{}/task", server.id())).unwrap().count();
    check("refused");
    assert_eq!(fs::read_dir(format!("/proc/{}/task", server.id())).unwrap().count(), instances, "threads are left");
    fs::write(second.join("model.onnx"), onnx::lookup_of(&[20.0, 21.0, 22.0, 23.0])).unwrap();
    check("loaded");
    assert!(server.is_running());
}
