//! Model control by real clients: `tritonclient` over HTTP and gRPC against a server in the control mode `explicit`.
//! Their checks are in `tests/repository/check.py`.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::folder::Folder;
use crate::support::python::Environment;
use crate::support::server::Server;

const CONFIG: &str = "backend: \"identity\"\nmax_batch_size: 8\n\
                      input [{ name: \"INPUT0\" data_type: TYPE_FP32 dims: [ -1 ] }]\n\
                      output [{ name: \"OUTPUT0\" data_type: TYPE_FP32 dims: [ -1 ] }]\n\
                      version_policy { all { } }\n";

#[test]
fn tritonclient_controls_the_models() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let Some(environment) = Environment::shared() else { return };
    let repository = Folder::new("controlled");
    for (name, version) in [("plain", "1"), ("many", "1"), ("many", "2")] {
        let version = repository.path().join(name).join(version);
        fs::create_dir_all(&version).expect("the folder is ours");
        fs::write(version.with_file_name("config.pbtxt"), CONFIG).expect("the folder is ours");
    }
    let server = Server::deuteron(repository.path(), &["--model-control-mode=explicit"]);
    let output = Command::new(environment.python())
        .arg(root.join("tests/repository/check.py"))
        .args(["--http", &server.http().to_string(), "--grpc", &server.grpc().to_string()])
        .arg("--model")
        .arg(root.join("examples/models/digits/1/model.onnx"))
        .output()
        .expect("the interpreter starts");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}{errors}\nits log:\n{}", server.log());
    assert_eq!(text.lines().filter(|line| line.starts_with("ok ")).count(), 11, "{text}");
}

#[test]
fn a_model_is_loaded_only_if_its_files_have_the_checksums_of_its_configuration() {
    // NVIDIA's qa/L0_repoagent_checksum, on a file beside the model and on the model's.
    let repository = Folder::new("checksums");
    let graph = crate::support::onnx::Onnx::default().node("Add", &["x", "x"], &["y"], &[]);
    let float = crate::support::onnx::FLOAT;
    let file = graph.input("x", float, &[-1, 1]).output("y", float, &[-1, 1]).into_bytes();
    let config = |model: &str| {
        let parameter = |path: &str, md5: &str| format!("parameters {{ key: 'MD5:{path}' value: '{md5}' }}");
        let sums = parameter("1/model.onnx", model) + &parameter("data_file", "5d41402abc4b2a76b9719d911017c592");
        format!("platform: 'onnxruntime_onnx' model_repository_agents {{ agents [ {{ name: 'checksum' {sums} }} ] }}")
    };
    crate::support::repository::add(repository.path(), "m", &config("invalid_checksum"), Some(&file));
    fs::write(repository.path().join("m/data_file"), "hello").unwrap();
    let flags =
        ["--model-control-mode=explicit", "--load-model=m", "--exit-on-error=false", "--strict-readiness=false"];
    let server = Server::deuteron(repository.path(), &flags);
    let load = || {
        let answer = crate::support::http::post(server.http(), "/v2/repository/models/m/load", b"").unwrap();
        (answer.status, String::from_utf8(answer.body).unwrap())
    };
    let (status, text) = load();
    let want = "Mismatched MD5 hash for file 1/model.onnx, expect: invalid_checksum, got: ";
    assert!(status == 500 && text.contains(want) && server.log().contains(want), "{status} {text}\n{}", server.log());
    let got = text.split("got: ").nth(1).unwrap()[..32].to_owned();
    fs::write(repository.path().join("m/config.pbtxt"), config(&got)).unwrap();
    assert_eq!(load().0, 200);
    fs::write(repository.path().join("m/data_file"), "Hello").unwrap();
    let (status, text) = load();
    assert!(status == 500 && text.contains("for file data_file, expect: 5d41402abc4b2a76b9719d911017c592"), "{text}");
    let body = br#"{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","data":[2]}]}"#;
    let answer = crate::support::http::post(server.http(), "/v2/models/m/infer", body).unwrap();
    assert_eq!(answer.status, 200, "what was loaded before serves on");
}

#[test]
fn a_load_that_fails_is_tried_again_as_often_as_the_flag_says() {
    let repository = Folder::new("retries");
    crate::support::repository::add(repository.path(), "m", "platform: 'onnxruntime_onnx'", Some(b"no model"));
    let flags = ["--model-control-mode=explicit", "--load-model=m", "--model-load-retry-count=2"];
    let server = Server::deuteron(
        repository.path(),
        &[&flags[..], &["--exit-on-error=false", "--strict-readiness=false"]].concat(),
    );
    let tries = |server: &Server| server.log().matches("loading it again (").count();
    assert_eq!(tries(&server), 2, "{}", server.log());
    let answer = crate::support::http::post(server.http(), "/v2/repository/models/m/load", b"").unwrap();
    assert_eq!((answer.status, tries(&server)), (400, 4), "{}", server.log());
}
