//! Real models from PyPI, served as they are, without any configuration: magika's classifier
//! behind magika's own client, and a ResNet-50. Their answers are ONNX Runtime's.

use std::path::Path;
use std::process::Command;

use crate::support::folder::Folder;
use crate::support::http;
use crate::support::python::Environment;
use crate::support::server::Server;

#[test]
fn real_models_answer_as_onnx_runtime_does() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
    let Some(environment) = Environment::shared() else { return };
    let repository = Folder::new("models");
    let run = |verb: &str, argument: &str| {
        let command = [folder.join("check.py").display().to_string(), verb.to_owned(), argument.to_owned()];
        let output = Command::new(environment.python()).args(command).output().expect("the interpreter starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        text
    };
    run("write", &repository.path().display().to_string());
    let server = Server::deuteron(repository.path(), &[]);
    let config = http::get(server.http(), "/v2/models/magika/config").expect("the server answers");
    let config = String::from_utf8_lossy(&config.body).into_owned();
    assert!(config.contains("\"max_batch_size\":4") && config.contains("\"dims\":[2048]"), "{config}");
    assert_eq!(run("check", &server.http().to_string()), "ok magika\nok resnet50\n");
}
