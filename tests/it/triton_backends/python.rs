//! Triton's own Python backend, unmodified, out of the wheel that has tritonserver 2.51, with its own stub: our host in
//! the place of `libtritonserver`. Only where `DEUTERON_TESTS=triton` asks for it.

use std::fs;
use std::path::Path;

use serde_json::json;

use super::{PLACES, infer};
use crate::support::folder::Folder;
use crate::support::server::Ports;
use crate::support::server::Server;
use crate::support::triton;

const ADD: &str = r#"
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_name"]

    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if (x < 0).any():
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("negative")))
            else:
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", x + 1)]))
        return responses
"#;

const CALLS: &str = r#"
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "IN")
            call = pb_utils.InferenceRequest(model_name="add", requested_output_names=["OUT"], inputs=[x])
            answer = call.exec()
            if answer.has_error():
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError(answer.error().message())))
            else:
                twice = pb_utils.get_output_tensor_by_name(answer, "OUT").as_numpy() * 2
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", twice)]))
        return responses
"#;

const REPEATS: &str = r#"
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])
            for value in range(count):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([value], np.int32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None
"#;

const TENSORS: &str =
    "input { name: 'IN' data_type: TYPE_INT32 dims: 1 } output { name: 'OUT' data_type: TYPE_INT32 dims: 1 }";

fn add(repository: &Path, name: &str, code: &str, more: &str) {
    let version = repository.join(name).join("1");
    fs::create_dir_all(&version).unwrap();
    fs::write(version.join("model.py"), code).unwrap();
    fs::write(version.with_file_name("config.pbtxt"), format!("backend: 'python' {TENSORS} {more}")).unwrap();
}

#[test]
fn tritons_python_backend_serves_in_our_host() {
    let Some((variables, backends)) = triton::python_backend() else { return };
    let folder = Folder::new("hosted-python");
    let models = folder.path().join("models");
    add(&models, "add", ADD, "");
    add(&models, "calls", CALLS, "");
    add(&models, "repeats", REPEATS, "model_transaction_policy { decoupled: true }");
    for place in PLACES {
        let ports = Ports::free();
        let directory = format!("--backend-directory={}", backends.display());
        let mut command = Server::command(&models, &[&directory, "--backend-config=python,host=triton", place], ports);
        command.envs(variables.clone());
        serve(&Server::start(command, ports));
    }
}

fn serve(server: &Server) {
    let ask = |model: &str, value: i32| {
        let body = json!({"inputs": [{"name": "IN", "shape": [1], "datatype": "INT32", "data": [value]}]});
        infer(server, model, &body)
    };
    let (status, answer) = ask("add", 4);
    assert_eq!((status, &answer["outputs"][0]["data"]), (200, &json!([5])), "{answer}\n{}", server.log());
    let (status, answer) = ask("add", -4);
    assert_eq!((status, &answer["error"]), (500, &json!("negative")), "{answer}");
    let (status, answer) = ask("calls", 4);
    assert_eq!((status, &answer["outputs"][0]["data"]), (200, &json!([10])), "{answer}\n{}", server.log());
    assert_eq!(super::play(server, "repeats", 3), ["0", "1", "2"]);
    let log = server.log();
    assert!(log.contains("loaded 'add' version 1 with 'libtriton_python.so'"), "{log}");
}
