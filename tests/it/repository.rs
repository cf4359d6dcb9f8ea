//! Model control by real clients: `tritonclient` over HTTP and gRPC against a server in the control mode `explicit`. What
//! they check is in `tests/repository/check.py`.

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
