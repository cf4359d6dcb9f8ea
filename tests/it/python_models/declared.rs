//! Outputs of Python models that differ from their declaration, which Triton passes on.

use std::thread;

use serde_json::{Value, json};

use super::zoo::{CASES, Models, Zoo, ints};
use crate::support::grpc::Client;
use crate::support::protobuf::{Message, dump};

/// Answers its input as the request's sign says: as declared, in another datatype, or in another shape. With a sender
/// if it is decoupled: once as it should be, then so, then as it should be.
const SIGNS: &str = r#"
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.is_decoupled = pb_utils.using_decoupled_model_transaction_policy(json.loads(args["model_config"]))

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        count = np.full_like(inputs[0], len(requests))
        responses = []
        for request, x in zip(requests, inputs):
            if x.flat[0] > 0:
                y = x
            elif x.flat[0] < 0:
                y = x.astype(np.int64)
            else:
                y = np.concatenate([x, x])
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", y), pb_utils.Tensor("count", count)]))
            if self.is_decoupled:
                right = pb_utils.InferenceResponse([pb_utils.Tensor("y", np.ones_like(x))])
                sender = request.get_response_sender()
                for response in [right, responses[-1], right]:
                    sender.send(response)
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None if self.is_decoupled else responses
"#;

const SIGNS_CONFIG: &str = "backend: 'python' instance_group { kind: KIND_CPU }
    input { name: 'x' data_type: TYPE_INT32 dims: 1 }
    output [ { name: 'y' data_type: TYPE_INT32 dims: 1 }, { name: 'count' data_type: TYPE_INT32 dims: 1 } ]";

const DATATYPE: &str = "output 'y' of model 'signs' must be INT32 but came as INT64";
const SHAPE: &str = "output 'y' of model 'signs' must have shape [1] but came with [2]";

fn row(value: i32) -> Value {
    json!({ "name": "x", "datatype": "INT32", "shape": [1, 1], "data": [value] })
}

fn failed(text: &str) -> Result<Value, (u16, String)> {
    Err((500, text.to_owned()))
}

#[test]
fn a_response_that_differs_from_its_declaration_fails_alone_in_its_batch() {
    let Some(models) = Models::new() else { return };
    let batching =
        "max_batch_size: 4 dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 10000000 }";
    let zoo = models.add("signs", &format!("{SIGNS_CONFIG} {batching}"), SIGNS).serve(&[]);
    let answers = thread::scope(|scope| {
        let ask = |value: i32| {
            scope.spawn({
                let zoo = &zoo;
                move || zoo.infer("signs", &json!({ "inputs": [row(value)] }))
            })
        };
        [7, -1, 0, 8].map(ask).map(|asked| asked.join().unwrap())
    });
    let [seven, wrong_type, wrong_rows, eight] = answers;
    let data = |(status, answer): (u16, Value)| {
        (status, [&answer["outputs"][0], &answer["outputs"][1]].map(|output| output["data"][0].clone()))
    };
    assert_eq!(data(seven), (200, [json!(7), json!(4)]), "four in one batch");
    assert_eq!(data(eight), (200, [json!(8), json!(4)]));
    let error = |(status, answer): (u16, Value)| (status, answer["error"].as_str().unwrap_or_default().to_owned());
    assert_eq!(error(wrong_type), (500, DATATYPE.to_owned()));
    let rows = "output 'y' of model 'signs' must have shape [1,1] but came with [2,1]";
    assert_eq!(error(wrong_rows), (500, rows.to_owned()), "the rows of two requests");
}

#[test]
fn a_response_of_a_stream_that_differs_from_its_declaration_is_an_error_between_others() {
    let Some(models) = Models::new() else { return };
    let decoupled = "model_transaction_policy { decoupled: true }";
    let zoo = models.add("signs", &format!("{SIGNS_CONFIG} {decoupled}"), SIGNS).serve(&[]);
    for (value, text) in [(-1_i32, DATATYPE), (0, SHAPE)] {
        let input = Message::new().bytes(1, "x").bytes(2, "INT32").packed(3, &[1]);
        let message = Message::new().bytes(1, "signs").message(5, input).bytes(7, value.to_le_bytes());
        let method = "/inference.GRPCInferenceService/ModelStreamInfer";
        let (came, end) = Client::new(zoo.server.grpc()).stream(method, &[], vec![message.into_bytes()]);
        let shown: Vec<_> = came.iter().map(|message| dump(message)).collect();
        assert!(end.is_ok() && shown.len() == 3, "{end:?} {shown:?}");
        let told = shown.iter().map(|message| message.contains(text)).collect::<Vec<_>>();
        assert_eq!(told, [false, true, false], "{shown:?}");
    }
}

#[test]
fn a_model_that_calls_one_whose_answer_differs_from_its_declaration_is_told() {
    let Some(models) = Models::new() else { return };
    let caller = r#"
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        x = pb_utils.Tensor("x", np.array([-1], np.int32))
        call = pb_utils.InferenceRequest(model_name="signs", requested_output_names=["y"], inputs=[x])
        told = np.array([call.exec().error().message()], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("result", told)]) for _ in requests]
"#;
    let zoo = models.add("signs", SIGNS_CONFIG, SIGNS).add("caller", CASES, caller).serve(&[]);
    assert_eq!(zoo.case("caller", ""), Ok(vec![DATATYPE.to_owned()]));
}

#[test]
fn a_parameter_or_the_compatibility_with_triton_passes_outputs_as_they_come() {
    let with = |models: Models, value: &str| {
        let parameter = format!("parameters {{ key: 'check_outputs' value {{ string_value: '{value}' }} }}");
        models.add("signs", &format!("{SIGNS_CONFIG} {parameter}"), SIGNS)
    };
    let ask = |zoo: &Zoo, value: i32| zoo.ask("signs", &[ints("x", &[value])]);
    let Some(models) = Models::new() else { return };
    let zoo = with(models.with("wrong_returns"), "no").serve(&[]);
    assert_eq!([-1, 0].map(|value| ask(&zoo, value)), [Ok(json!([-1])), Ok(json!([0, 0]))]);
    assert_eq!(zoo.case("wrong_returns", "another_shape").unwrap_err().0, 500, "without the parameter");
    drop(zoo);
    let Some(models) = Models::new() else { return };
    let zoo = with(models.with("wrong_returns"), "yes").serve(&["--compat=triton"]);
    assert_eq!([-1, 0].map(|value| ask(&zoo, value)), [failed(DATATYPE), failed(SHAPE)], "the parameter comes first");
    assert_eq!(zoo.case("wrong_returns", "another_shape"), Ok(vec!["a".to_owned(), "b".to_owned()]));
    let (_, answer) = zoo.infer("wrong_returns", &json!({ "inputs": [super::zoo::texts("case", &["a_scalar"])] }));
    assert_eq!(answer["outputs"][0]["shape"], json!([]));
}

#[test]
fn an_output_has_the_shape_that_the_model_sees_or_clients_see() {
    let Some(models) = Models::new() else { return };
    let program = r#"
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        shapes = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        outputs = [pb_utils.Tensor("y", np.zeros(shape, np.float32)) for shape in shapes]
        return [pb_utils.InferenceResponse([output]) for output in outputs]
"#;
    let config = |dims: &str| {
        format!(
            "backend: 'python' instance_group {{ kind: KIND_CPU }} input {{ name: 'x' data_type: TYPE_INT32 dims: -1 }} \
             output {{ name: 'y' data_type: TYPE_FP32 {dims} }}"
        )
    };
    let reshaped = config("dims: [2, 2] reshape { shape: 4 }");
    let zoo = models.add("reshaped", &reshaped, program).add("scalar", &config("dims: 1"), program).serve(&[]);
    let shape = |model: &str, shape: &[i32]| {
        let (status, answer) = zoo.infer(model, &json!({ "inputs": [ints("x", shape)] }));
        if status == 200 { answer["outputs"][0]["shape"].clone() } else { answer["error"].clone() }
    };
    assert_eq!(shape("reshaped", &[4]), json!([2, 2]));
    let text = "output 'y' of model 'reshaped' must have shape [4] but came with [1,4]";
    assert_eq!(shape("reshaped", &[1, 4]), text);
    assert_eq!(shape("reshaped", &[2, 2]), json!([2, 2]), "that of clients");
    assert_eq!(shape("scalar", &[]), json!([1]), "no configuration can declare a scalar");
    assert_eq!(shape("scalar", &[1]), json!([1]));
}
