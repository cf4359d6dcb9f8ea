//! `pb_utils.Tensor.empty`: outputs that a model writes into the memory that they are sent from.

use serde_json::json;

use super::zoo::{CASES, Models, Zoo, ints};
use crate::support::grpc::Client;
use crate::support::http;
use crate::support::protobuf::{Message, dump};

/// Answers with `x` bytes of a number that changes with each request. It keeps a part of every output, and writes to
/// all of them before it sends the next. A decoupled one sends the output three times, from a thread.
const WRITER: &str = r#"
import json
import threading

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.kept, self.count = [], 0
        config = json.loads(args["model_config"])
        self.is_decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        self.keeps = "keeps" in config["parameters"]

    def execute(self, requests):
        responses = []
        for request in requests:
            (size,) = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            self.count += 1
            y = pb_utils.Tensor.empty("y", (size,), np.uint8)
            y.as_numpy()[:] = self.count
            if self.keeps:
                for part in self.kept:
                    part[:] = 0
                self.kept = (self.kept + [y.as_numpy()[:100]])[-3:]
            responses.append(pb_utils.InferenceResponse([y]))
            if self.is_decoupled:
                sender = request.get_response_sender()
                threading.Thread(target=self.send, args=(sender, responses.pop())).start()
        return None if self.is_decoupled else responses

    def send(self, sender, response):
        for _ in range(3):
            sender.send(response)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"#;

const WRITER_CONFIG: &str = "backend: 'python' instance_group { kind: KIND_CPU }
    input { name: 'x' data_type: TYPE_INT32 dims: 1 } output { name: 'y' data_type: TYPE_UINT8 dims: -1 }";

const MIB: i32 = 1 << 20;

/// The output of [`WRITER`] for this many bytes.
fn written(zoo: &Zoo, size: i32) -> Vec<u8> {
    let body = json!({ "inputs": [ints("x", &[size])], "parameters": { "binary_data_output": true } });
    let mut answer = http::post(zoo.server.http(), "/v2/models/writer/infer", body.to_string().as_bytes()).unwrap();
    assert_eq!(answer.status, 200, "{}\n{}", String::from_utf8_lossy(&answer.body), zoo.server.log());
    answer.body.split_off(answer.body.len() - usize::try_from(size).unwrap())
}

#[test]
fn outputs_in_place_arrive_and_their_memory_is_used_again() {
    let Some(models) = Models::new() else { return };
    // Three of the largest fit into its memory.
    let zoo = models.add("writer", WRITER_CONFIG, WRITER).serve(&["--python-memory-bytes-max=67108864"]);
    let sizes = [1, 100, 65_535, 65_536, MIB, 0].into_iter().chain([16 * MIB; 12]);
    for (count, size) in (1..).zip(sizes) {
        let bytes = written(&zoo, size);
        assert!(bytes.iter().all(|byte| *byte == count) && bytes.len() as i32 == size, "{count}: {size}");
    }
    let (status, text) = zoo.ask("writer", &[ints("x", &[65 * MIB])]).unwrap_err();
    assert!(status == 500 && text.contains("--python-memory-bytes-max"), "{status} {text}");
    assert_eq!(written(&zoo, 3), [20; 3]);
}

#[test]
fn what_a_model_writes_to_an_old_output_is_in_no_later_answer() {
    let Some(models) = Models::new() else { return };
    let config = format!("{WRITER_CONFIG} parameters {{ key: 'keeps' value {{ string_value: '' }} }}");
    let zoo = models.add("writer", &config, WRITER).serve(&[]);
    for count in 1..20 {
        assert!(written(&zoo, MIB).iter().all(|byte| *byte == count), "{count}");
    }
}

#[test]
fn a_thread_sends_an_output_in_place_several_times() {
    let Some(models) = Models::new() else { return };
    let config = format!("{WRITER_CONFIG} model_transaction_policy {{ decoupled: true }}");
    let zoo = models.add("writer", &config, WRITER).serve(&["--python-memory-bytes-max=4194304"]);
    for count in 1..8_u8 {
        let input = Message::new().bytes(1, "x").bytes(2, "INT32").packed(3, &[1]);
        let message = Message::new().bytes(1, "writer").message(5, input).bytes(7, MIB.to_le_bytes());
        let method = "/inference.GRPCInferenceService/ModelStreamInfer";
        let (came, end) = Client::new(zoo.server.grpc()).stream(method, &[], vec![message.into_bytes()]);
        assert!(end.is_ok() && came.len() == 3, "{end:?} {}", came.len());
        for message in came {
            let contents = message.iter().rev().take(MIB as usize).all(|byte| *byte == count);
            assert!(contents, "{count}: {}", dump(&message[..100]));
        }
    }
}

#[test]
fn an_output_in_place_may_be_the_input_of_a_call() {
    let Some(models) = Models::new() else { return };
    let caller = r#"
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        x = pb_utils.Tensor.empty("x", 100_000, np.int32)
        x.as_numpy()[:] = np.arange(1_000, 101_000)
        call = pb_utils.InferenceRequest(model_name="double", requested_output_names=["y"], inputs=[x])
        (y,) = call.exec().output_tensors()
        told = np.array([str(int(y.as_numpy().sum()))], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("result", told)]) for _ in requests]
"#;
    let zoo = models.with("double").add("caller", CASES, caller).serve(&["--python-memory-bytes-max=2097152"]);
    for _ in 0..10 {
        assert_eq!(zoo.case("caller", ""), Ok(vec!["10199900000".to_owned()]));
    }
}
