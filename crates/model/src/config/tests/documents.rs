//! The examples of Triton's model configuration document, unchanged, and configurations that its other documents
//! describe.

use super::*;

const TENSORRT: &str = "unable to find backend library for backend 'tensorrt', try specifying runtime on the model \
                        configuration; model 'mymodel': platform 'tensorrt_plan' needs backend 'tensorrt', which this server does not \
                        have (it has 'fil', 'identity', 'onnxruntime', 'openvino', 'python', 'pytorch' and 'tensorflow'; 'libtriton_tensorrt.so' is neither in \
                        the version's directory, nor in the model's, nor in 'tensorrt' beneath --backend-directory); \
                        copy the backend there, or export the model to ONNX, and give \
                        platform: \"onnxruntime_onnx\", or run it in a model.py, and give backend: \"python\"";

const MINIMAL: &str = r#"name: "mymodel"
platform: "tensorrt_plan"
max_batch_size: 8
input [
  {
    name: "input0"
    data_type: TYPE_FP32
    dims: [ 16 ]
  },
  {
    name: "input1"
    data_type: TYPE_FP32
    dims: [ 16 ]
  }
]
output [
  {
    name: "output0"
    data_type: TYPE_FP32
    dims: [ 16 ]
  }
]
"#;

const ONE_INPUT: &str = r#"name: "mymodel"
platform: "tensorrt_plan"
max_batch_size: 8
input [
  {
    name: "input0"
    data_type: TYPE_FP32
    dims: [ 16 ]
  }
]
output [
  {
    name: "output0"
    data_type: TYPE_FP32
    dims: [ 4 ]
  }
]
"#;

const SHAPE_TENSOR: &str = r#"name: "mymodel"
platform: "tensorrt_plan"
max_batch_size: 8
input [
  {
    name: "input0"
    data_type: TYPE_FP32
    dims: [ -1 ]
  },
  {
    name: "input1"
    data_type: TYPE_INT32
    dims: [ 1 ]
    is_shape_tensor: true
  }
]
output [
  {
    name: "output0"
    data_type: TYPE_FP32
    dims: [ -1 ]
  }
]
"#;

/// An example with its platform replaced by ONNX.
fn on_onnx(text: &str) -> String {
    text.replace("tensorrt_plan", "onnxruntime_onnx")
}

fn effective(text: &str) -> String {
    shown(spec_of("mymodel", text, "model.onnx", ""))
}

#[test]
fn examples_for_another_platform_are_refused_by_its_name() {
    let all = format!("{MINIMAL}version_policy: {{ all {{ }}}}\n");
    for text in [MINIMAL, ONE_INPUT, SHAPE_TENSOR, &all] {
        assert_eq!(effective(text), TENSORRT);
    }
}

#[test]
fn the_minimal_examples_are_served_on_onnx() {
    let spec = spec_of("mymodel", &on_onnx(MINIMAL), "model.onnx", "").unwrap();
    let inputs: Vec<_> = spec.inputs.iter().map(|input| (input.name.as_str(), input.shape.as_slice())).collect();
    assert_eq!(inputs, [("input0", [-1, 16].as_slice()), ("input1", [-1, 16].as_slice())]);

    let batched = spec_of("mymodel", &on_onnx(ONE_INPUT), "model.onnx", "").unwrap();
    assert_eq!(
        (batched.inputs[0].shape.as_slice(), batched.outputs[0].shape.as_slice()),
        ([-1, 16].as_slice(), [-1, 4].as_slice())
    );
    let text = on_onnx(ONE_INPUT).replace("max_batch_size: 8", "max_batch_size: 0");
    let plain = spec_of("mymodel", &text, "model.onnx", "").unwrap();
    assert_eq!(
        (plain.inputs[0].shape.as_slice(), plain.outputs[0].shape.as_slice()),
        ([16].as_slice(), [4].as_slice())
    );
}

#[test]
fn every_fragment_of_the_document_is_read_or_refused_by_name() {
    let check = |fragment: &str, want: &str| {
        let got = effective(&format!("{}{fragment}", on_onnx(ONE_INPUT)));
        assert!(got.contains(want), "{fragment}\nwant {want}\ngot  {got}");
    };
    check("version_policy: { all { }}", r#""version_policy":{"all":{}}"#);
    let gpu = "instance group mymodel_0 of model mymodel has kind KIND_GPU but server does not support GPUs";
    check("instance_group [\n  {\n    count: 2\n    kind: KIND_GPU\n  }\n]", gpu);
    check(
        "instance_group [\n  {\n    count: 1\n    kind: KIND_GPU\n    gpus: [ 0 ]\n  },\n  {\n    count: 2\n    kind: \
         KIND_GPU\n    gpus: [ 1, 2 ]\n  }\n]",
        gpu,
    );
    check(
        "instance_group [\n  {\n    count: 2\n    kind: KIND_CPU\n  }\n]",
        r#""instance_group":[{"name":"mymodel_0","kind":"KIND_CPU","count":2"#,
    );
    check(
        "dynamic_batching {\n  preferred_batch_size: [ 4, 8 ]\n}",
        r#""dynamic_batching":{"preferred_batch_size":[4,8],"max_queue_delay_microseconds":0"#,
    );
    check(
        "dynamic_batching {\n  preferred_batch_size: [ 4, 8 ]\n  max_queue_delay_microseconds: 100\n}",
        r#""dynamic_batching":{"preferred_batch_size":[4,8],"max_queue_delay_microseconds":100"#,
    );
    for side in ["input", "output"] {
        check(
            &format!("{side} [\n  {{\n    name: \"in\"\n    dims: [ 1 ]\n    reshape: {{ shape: [ ] }}\n  }}\n]"),
            &format!("model {side} 'in' must specify 'data_type' for mymodel"),
        );
    }
    let shape_tensor = spec_of("mymodel", &on_onnx(SHAPE_TENSOR), "model.onnx", "").unwrap();
    let [input0, input1] = shape_tensor.inputs.try_into().unwrap();
    assert_eq!((input0.shape.as_slice(), input0.model_shape.as_slice()), (&[-1, -1][..], &[-1, -1][..]));
    assert_eq!((input1.shape.as_slice(), input1.model_shape.as_slice()), (&[1][..], &[2][..]));
}

#[test]
fn every_datatype_of_the_document_has_its_name_on_the_wire() {
    for (name, datatype) in [
        ("TYPE_BOOL", Datatype::Bool),
        ("TYPE_UINT8", Datatype::Uint8),
        ("TYPE_UINT16", Datatype::Uint16),
        ("TYPE_UINT32", Datatype::Uint32),
        ("TYPE_UINT64", Datatype::Uint64),
        ("TYPE_INT8", Datatype::Int8),
        ("TYPE_INT16", Datatype::Int16),
        ("TYPE_INT32", Datatype::Int32),
        ("TYPE_INT64", Datatype::Int64),
        ("TYPE_FP16", Datatype::Fp16),
        ("TYPE_FP32", Datatype::Fp32),
        ("TYPE_FP64", Datatype::Fp64),
        ("TYPE_STRING", Datatype::Bytes),
        ("TYPE_BF16", Datatype::Bf16),
    ] {
        let text = on_onnx(ONE_INPUT).replacen("TYPE_FP32", name, 1);
        let spec = spec_of("mymodel", &text, "model.onnx", "").unwrap();
        assert_eq!(spec.inputs[0].datatype, datatype);
        assert_eq!(datatype::from_config(datatype::to_config(datatype)), Some(datatype));
    }
}

#[test]
fn configurations_of_other_documents_are_read_or_refused_by_name() {
    let check = |name: &str, text: &str, want: &str| {
        let got = shown(spec_of(name, text, "model.onnx", ""));
        assert!(got.contains(want), "{text}\nwant {want}\ngot  {got}");
    };
    // The quick start's image classifier.
    check(
        "densenet_onnx",
        "name: \"densenet_onnx\"\nplatform: \"onnxruntime_onnx\"\nmax_batch_size : 0\ninput [\n  {\n    name: \
         \"data_0\"\n    data_type: TYPE_FP32\n    format: FORMAT_NCHW\n    dims: [ 3, 224, 224 ]\n  }\n]\noutput [\n  \
         {\n    name: \"fc6_1\"\n    data_type: TYPE_FP32\n    dims: [ 1000 ]\n    label_filename: \
         \"densenet_labels.txt\"\n  }\n]\n",
        r#""dims":[1000],"label_filename":"densenet_labels.txt""#,
    );
    // A custom backend, as its tutorial configures it.
    check(
        "identity",
        "backend: \"identity\"\nmax_batch_size: 0\ninput [ { name: \"INPUT0\" data_type: TYPE_STRING dims: [ -1 ] } \
         ]\noutput [ { name: \"OUTPUT0\" data_type: TYPE_STRING dims: [ -1 ] } ]\ninstance_group [ { kind: KIND_CPU } \
         ]\nparameters [\n  {\n    key: \"execute_delay_ms\"\n    value: { string_value: \"100\" }\n  },\n  { key: \
         \"instance_wise_delay_multiplier\", value: { string_value: \"2\" } }\n]",
        r#""parameters":{"execute_delay_ms":{"string_value":"100"},"instance_wise_delay_multiplier":{"string_value":"2"}}"#,
    );
    check(
        "simple",
        "name: \"simple\"\nplatform: \"tensorflow_graphdef\"\nmax_batch_size: 8\n",
        "model configuration must contain at least one input, none were specified for simple",
    );
    check(
        "ensemble_model",
        "name: \"ensemble_model\"\nplatform: \"ensemble\"\nensemble_scheduling { step [ { model_name: \"a\" \
         model_version: -1 input_map { key: \"X\" value: \"Y\" } } ] }",
        "must specify 'output_map' in step 0 of ensemble 'ensemble_model'",
    );
    check(
        "stateful",
        "backend: \"onnxruntime\"\nsequence_batching\n{\n  direct { }\n  control_input [ { name: \"START\" control [ { \
         kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] } ]\n}",
        "model configuration must contain at least one input, none were specified for stateful",
    );
    check(
        "accelerated",
        "backend: \"onnxruntime\"\noptimization { execution_accelerators {\n  gpu_execution_accelerator : [ {\n    name \
         : \"tensorrt\"\n    parameters { key: \"precision_mode\" value: \"FP16\" }\n  } ]\n}}\n\
         input { name: \"x\" data_type: TYPE_FP32 dims: 1 } output { name: \"y\" data_type: TYPE_FP32 dims: 1 }",
        r#""gpu_execution_accelerator":[{"name":"tensorrt","parameters":{"precision_mode":"FP16"}}]"#,
    );
    check(
        "preprocess",
        "name: \"preprocess\"\nbackend: \"python\"\ninput [ { name: \"IN\" data_type: TYPE_UINT8 dims: [ -1 ] } ]",
        r#""output":[]"#,
    );
}
