use super::*;
use crate::onnx::OnnxTensor;
use crate::{BatchInput, BatchInputKind};
use base::error::Code;
use base::limits::INSTANCES_MAX;
use base::tensor::Datatype;

/// The signature of an ONNX file from `x FP32 [-1,16], … > y INT8 ?`; `?` for an unknown shape.
fn onnx(text: &str) -> OnnxSignature {
    let tensor = |text: &str| {
        let words: Vec<_> = text.split_whitespace().collect();
        let shape = words[2].trim_matches(['[', ']']);
        let dims = || shape.split('x').filter(|dim| !dim.is_empty()).map(|dim| dim.parse().unwrap()).collect();
        let shape = (words[2] != "?").then(dims);
        OnnxTensor { name: words[0].to_owned(), datatype: Datatype::from_name(words[1]).unwrap(), shape }
    };
    let tensors = |text: &str| text.split(',').filter(|text| !text.trim().is_empty()).map(tensor).collect();
    let (inputs, outputs) = text.split_once('>').unwrap();
    OnnxSignature { inputs: tensors(inputs), outputs: tensors(outputs), ..OnnxSignature::default() }
}

fn spec_of(directory: &str, text: &str, file: &str, model: &str) -> Result<ModelSpec, Error> {
    let files: Vec<_> = file.split_whitespace().map(str::to_owned).collect();
    let draft = ConfigDraft::new(directory, Some(text.as_bytes()), &files)?;
    let signature = (!model.is_empty()).then(|| onnx(model));
    let labels = draft.label_filenames().into_iter().map(|name| (name.to_owned(), Arc::new(Labels::from_text(name))));
    let labels = labels.collect();
    draft.complete(signature.as_ref(), &labels, CompletionRules::default())
}

/// The model `m`, in a directory with `model.onnx`.
fn spec(text: &str, model: &str) -> Result<ModelSpec, Error> {
    spec_of("m", text, "model.onnx", model)
}

fn shown(result: Result<ModelSpec, Error>) -> String {
    match result {
        Ok(spec) => spec.config_json.to_string(),
        Err(error) => error.text().to_owned(),
    }
}

const MODEL: &str = "x FP32 [-1x16] > y FP32 [-1x4]";
const IO: &str = "input [ { name: 'x' data_type: TYPE_FP32 dims: [ 16 ] } ]\n\
                  output [ { name: 'y' data_type: TYPE_FP32 dims: [ 4 ] } ]\n";

const IDENTITY: &str = "backend: 'identity' max_batch_size: 8\n\
                        input [ { name: 'x' data_type: TYPE_FP32 dims: [ 16 ] } ]\n\
                        output [ { name: 'y' data_type: TYPE_FP32 dims: [ 4 ] } ]\n";

#[test]
fn an_onnx_file_without_a_configuration_is_completed_as_triton_does() {
    let want = concat!(
        r#"{"name":"m","platform":"onnxruntime_onnx","backend":"onnxruntime","runtime":"","#,
        r#""version_policy":{"latest":{"num_versions":1}},"max_batch_size":4,"#,
        r#""input":[{"name":"INPUT0","data_type":"TYPE_INT32","format":"FORMAT_NONE","dims":[16],"#,
        r#""is_shape_tensor":false,"allow_ragged_batch":false,"optional":false,"is_non_linear_format_io":false}],"#,
        r#""output":[{"name":"OUTPUT0","data_type":"TYPE_INT8","dims":[16],"label_filename":"","#,
        r#""is_shape_tensor":false,"is_non_linear_format_io":false}],"batch_input":[],"batch_output":[],"#,
        r#""optimization":{"priority":"PRIORITY_DEFAULT","input_pinned_memory":{"enable":true},"#,
        r#""output_pinned_memory":{"enable":true},"gather_kernel_buffer_threshold":0,"eager_batching":false},"#,
        r#""dynamic_batching":{"preferred_batch_size":[4],"max_queue_delay_microseconds":0,"#,
        r#""preserve_ordering":false,"priority_levels":0,"default_priority_level":0,"priority_queue_policy":{}},"#,
        r#""instance_group":[{"name":"m","kind":"KIND_CPU","count":2,"gpus":[],"secondary_devices":[],"profile":[],"#,
        r#""passive":false,"host_policy":""}],"default_model_filename":"model.onnx","cc_model_filenames":{},"#,
        r#""metric_tags":{},"parameters":{},"model_warmup":[]}"#
    );
    assert_eq!(shown(spec("", "INPUT0 INT32 [-1x16] > OUTPUT0 INT8 [-1x16]")), want);
}

#[test]
fn an_identity_configuration_is_shown_whole() {
    let text = format!("{IDENTITY}parameters {{ key: 'execute_delay_ms' value {{ string_value: '20' }} }}");
    let want = concat!(
        r#"{"name":"m","platform":"","backend":"identity","runtime":"","#,
        r#""version_policy":{"latest":{"num_versions":1}},"max_batch_size":8,"#,
        r#""input":[{"name":"x","data_type":"TYPE_FP32","format":"FORMAT_NONE","dims":[16],"is_shape_tensor":false,"#,
        r#""allow_ragged_batch":false,"optional":false,"is_non_linear_format_io":false}],"#,
        r#""output":[{"name":"y","data_type":"TYPE_FP32","dims":[4],"label_filename":"","is_shape_tensor":false,"#,
        r#""is_non_linear_format_io":false}],"batch_input":[],"batch_output":[],"#,
        r#""optimization":{"priority":"PRIORITY_DEFAULT","input_pinned_memory":{"enable":true},"#,
        r#""output_pinned_memory":{"enable":true},"gather_kernel_buffer_threshold":0,"eager_batching":false},"#,
        r#""instance_group":[{"name":"m","kind":"KIND_CPU","count":1,"gpus":[],"secondary_devices":[],"profile":[],"#,
        r#""passive":false,"host_policy":""}],"default_model_filename":"","cc_model_filenames":{},"#,
        r#""metric_tags":{},"parameters":{"execute_delay_ms":{"string_value":"20"}},"model_warmup":[]}"#
    );
    assert_eq!(shown(spec_of("m", &text, "", "")), want);
}

/// Checks the parts of the effective configuration that results from a text and an ONNX file.
fn check_effective(text: &str, model: &str, wants: &[&str]) {
    let got = shown(spec(text, model));
    for want in wants {
        assert!(got.contains(want), "{text}\n{model}\nwant {want}\ngot  {got}");
    }
}

#[test]
fn missing_inputs_and_outputs_are_completed_from_the_file() {
    check_effective("name: 'm'", MODEL, &[r#""name":"m","platform":"onnxruntime_onnx""#, r#""max_batch_size":4"#]);
    check_effective("platform: 'onnxruntime_onnx'", MODEL, &[r#""backend":"onnxruntime""#, r#""dims":[16]"#]);
    check_effective("backend: 'onnxruntime'", MODEL, &[r#""platform":"onnxruntime_onnx""#]);
    check_effective("max_batch_size: 0", MODEL, &[r#""max_batch_size":0"#, r#""dims":[-1,16]"#, r#""dims":[-1,4]"#]);
    check_effective("max_batch_size: 8", MODEL, &[r#""max_batch_size":8"#, r#""preferred_batch_size":[8]"#]);
    check_effective(
        "max_batch_size: 1",
        MODEL,
        &[r#""max_batch_size":1"#, r#""eager_batching":false},"instance_group""#],
    );
    check_effective(
        "",
        "x FP32 [16] > y FP32 [-1x4]",
        &[r#""max_batch_size":0"#, r#""dims":[16]"#, r#""dims":[-1,4]"#, r#""eager_batching":false},"instance_group""#],
    );
    check_effective("", "x FP32 [] > y FP32 [4]", &[r#""max_batch_size":0"#, r#""dims":[1]"#]);
    check_effective(
        "",
        "x FP32 [-1x16] > label INT64 [-1]",
        &[r#""name":"label","data_type":"TYPE_INT64","dims":[1],"reshape":{"shape":[]}"#, r#""max_batch_size":4"#],
    );
    check_effective(
        "",
        "a BYTES [-1x1], b BOOL [-1x-1x3] > y BF16 [-1x4]",
        &[
            r#"{"name":"a","data_type":"TYPE_STRING","format":"FORMAT_NONE","dims":[1],"#,
            r#"{"name":"b","data_type":"TYPE_BOOL","format":"FORMAT_NONE","dims":[-1,3],"#,
            r#""data_type":"TYPE_BF16""#,
        ],
    );
    check_effective(
        "input [ { name: 'x' data_type: TYPE_FP32 dims: [ 16 ] } ]",
        MODEL,
        &[r#""max_batch_size":4"#, r#""output":[{"name":"y","data_type":"TYPE_FP32","dims":[4]"#],
    );
    check_effective(
        "output [ { name: 'y' data_type: TYPE_FP32 dims: [ 4 ] label_filename: 'l.txt' } ]",
        MODEL,
        &[
            r#""input":[{"name":"x","data_type":"TYPE_FP32","format":"FORMAT_NONE","dims":[16]"#,
            r#""label_filename":"l.txt""#,
        ],
    );
}

#[test]
fn nothing_is_derived_if_inputs_and_outputs_are_given() {
    check_effective(&format!("{IO} max_batch_size: 2"), MODEL, &[r#""eager_batching":false},"instance_group""#]);
    check_effective(
        &format!("{IO} max_batch_size: 2 dynamic_batching {{ }}"),
        MODEL,
        &[r#""preferred_batch_size":[2]"#],
    );
    check_effective(
        &format!("{IO} max_batch_size: 2 dynamic_batching {{ preferred_batch_size: [ 2 ] }}"),
        MODEL,
        &[r#""preferred_batch_size":[2]"#],
    );
    check_effective(
        &format!("{IO} dynamic_batching {{ }}"),
        "x FP32 [16] > y FP32 [4]",
        &[r#""preferred_batch_size":[]"#],
    );
    check_effective(
        &IO.replace("[ 16 ]", "[ 2, 16 ]").replace("[ 4 ]", "[ 2, 4 ]"),
        "x FP32 [-1x16] > y FP32 [-1x4]",
        &[r#""max_batch_size":0"#, r#""dims":[2,16]"#],
    );
    check_effective(&format!("{IO} max_batch_size: 2"), "x FP32 [-1x-1] > y FP32 ?, z INT64 [1]", &[r#""dims":[16]"#]);
    check_effective(&IO.replace("[ 4 ]", "[ 1 ]"), "x FP32 [16] > y FP32 []", &[r#""dims":[1]"#]);
}

#[test]
fn supported_fields_are_in_the_effective_configuration() {
    check_effective("version_policy: { all { }}", MODEL, &[r#""version_policy":{"all":{}}"#]);
    check_effective("version_policy { }", MODEL, &[r#""version_policy":{}"#]);
    check_effective("version_policy { latest { num_versions: 3 } }", MODEL, &[r#"{"latest":{"num_versions":3}}"#]);
    check_effective(
        "version_policy { specific { versions: [ 1, 7 ] } }",
        MODEL,
        &[r#"{"specific":{"versions":[1,7]}}"#],
    );
    check_effective(
        "instance_group [ { count: 3 kind: KIND_CPU } ]",
        MODEL,
        &[r#"[{"name":"m_0","kind":"KIND_CPU","count":3,"#],
    );
    check_effective("instance_group { }", MODEL, &[r#"[{"name":"m_0","kind":"KIND_CPU","count":2,"#]);
    check_effective(
        "instance_group [ { kind: KIND_AUTO name: 'a' }, { count: 1 } ]",
        MODEL,
        &[r#"[{"name":"a","kind":"KIND_CPU","count":2,"#, r#"{"name":"m_1","kind":"KIND_CPU","count":1,"#],
    );
    check_effective(
        "optimization { priority: PRIORITY_MAX input_pinned_memory { enable: false } }",
        MODEL,
        &[
            r#"{"priority":"PRIORITY_MAX","input_pinned_memory":{"enable":false},"output_pinned_memory":{"enable":true},"#,
        ],
    );
    check_effective(
        "input [ { name: 'x' data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, -1, 224 ] } ]",
        "x FP32 [-1x3x-1x-1] > y FP32 [-1x1000]",
        &[r#""format":"FORMAT_NCHW","dims":[3,-1,224]"#],
    );
    check_effective(
        "model_transaction_policy { decoupled: false }",
        MODEL,
        &[r#""model_transaction_policy":{"decoupled":false}"#],
    );
    check_effective("response_cache { enable: false }", MODEL, &[r#""response_cache":{"enable":false}"#]);
    check_effective(
        "default_model_filename: 'other.onnx' backend: 'onnxruntime'",
        MODEL,
        &[r#""default_model_filename":"other.onnx""#],
    );
    check_effective("default_model_filename: 'model.onnx'", MODEL, &[r#""backend":"onnxruntime""#]);
    check_effective(
        "parameters { key: \"intra_op_thread_count\" value: { string_value: \"1\" } }",
        MODEL,
        &[r#""parameters":{"intra_op_thread_count":{"string_value":"1"}}"#],
    );
}

fn check(text: &str, model: &str, want: &str) {
    assert_eq!(shown(spec(text, model)), want, "{text}\n{model}");
}

#[test]
fn names_platforms_and_backends_are_refused_with_the_exact_text() {
    check("nme: 'm'", MODEL, r#"config.pbtxt:1:1: message type "inference.ModelConfig" has no field named "nme""#);
    check("name: 'n'", MODEL, "unexpected directory name 'm' for model 'n', directory name must equal model name");
    check("platform: 'nope'", MODEL, "unexpected platform type 'nope' for m");
    check(
        "platform: 'onnxruntime_onnx' backend: 'identity'",
        "",
        "unexpected 'platform' and 'backend' pair, got:onnxruntime_onnx, identity",
    );
    check(
        "platform: 'tensorrt_plan' backend: 'onnxruntime'",
        MODEL,
        "unexpected 'platform' and 'backend' pair, got:tensorrt_plan, onnxruntime",
    );
    let missing = |subject: &str, way_out: &str| {
        let backend = subject.rsplit('\'').nth(1).unwrap();
        format!(
            "unable to find backend library for backend '{backend}', try specifying runtime on the model configuration; \
             model 'm': {subject}, which this server does not have (it has 'fil', 'identity', 'onnxruntime', 'openvino', \
             'python', 'pytorch' and 'tensorflow'; \
             'libtriton_{backend}.so' is neither in the version's directory, nor in the model's, nor in '{backend}' \
             beneath --backend-directory); copy the backend there, or {way_out}"
        )
    };
    let export = "export the model to ONNX, and give platform: \"onnxruntime_onnx\", or run it in a model.py, and give \
                  backend: \"python\"";
    let want = missing("platform 'tensorrt_plan' needs backend 'tensorrt'", export);
    check("platform: 'tensorrt_plan'", MODEL, &want);
    let custom = "name a built-in backend, as in backend: \"identity\", or export the model to ONNX";
    check("platform: 'custom'", MODEL, &missing("platform 'custom' needs backend 'custom'", custom));
    check(
        "platform: 'ensemble' backend: 'identity'",
        MODEL,
        "Ensemble model 'm' must have platform type 'ensemble' and empty backend type",
    );
    check("backend: 'dali'", MODEL, &missing("backend 'dali'", export));
    check(
        "platform: 'tensorrt_plan' backend: 'python'",
        MODEL,
        "unexpected 'platform' and 'backend' pair, got:tensorrt_plan, python",
    );
}

#[test]
fn files_outside_the_models_directory_are_refused() {
    let beneath = "name a file beneath the model's directory, by a relative path without '..'";
    for path in ["../x", "/etc/passwd", "a/../b", "a//b", "./a", "a\\\\b", "a\\000b"] {
        let shown = path.replace("a\\000b", "a\\0b");
        let text = format!("default_model_filename: '{path}' backend: 'onnxruntime'");
        check(&text, MODEL, &format!("model 'm': 'default_model_filename' is '{shown}'; {beneath}"));
        let text = format!("output [ {{ name: 'y' label_filename: '{path}' }} ]");
        check(&text, MODEL, &format!("model 'm': 'label_filename' is '{shown}'; {beneath}"));
    }
}

#[test]
fn inputs_and_outputs_are_refused_with_the_exact_text() {
    check("input { }", MODEL, "model input must specify 'name' for m");
    check("output { }", MODEL, "model output must specify 'name' for m");
    check("input { name: 'x' }", MODEL, "model input 'x' must specify 'data_type' for m");
    check("output { name: 'y' }", MODEL, "model output 'y' must specify 'data_type' for m");
    check("input { name: 'x' data_type: TYPE_FP32 }", MODEL, "model input 'x' must specify 'dims' for m");
    check("output { name: 'y' data_type: TYPE_FP32 dims: [] }", MODEL, "model output 'y' must specify 'dims' for m");
    for dims in ["0", "-2", "3, 0"] {
        let want = "model input 'x' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for m";
        check(&format!("input {{ name: 'x' data_type: TYPE_FP32 dims: [ {dims} ] }}"), MODEL, want);
    }
    let deep = vec!["1"; 32].join(",");
    check(
        &format!("input {{ name: 'x' data_type: TYPE_FP32 dims: [ {deep} ] }}"),
        MODEL,
        "model input 'x' has 32 dims, more than the 31 allowed for m",
    );
    check(
        "input { name: 'x' data_type: TYPE_FP32 dims: 16 format: FORMAT_NHWC }",
        MODEL,
        "model input NHWC/NCHW require 3 dims for m",
    );
    check(
        "input { name: 'x' data_type: TYPE_FP32 dims: 16 is_shape_tensor: true }",
        MODEL,
        "model input 'x' is a shape tensor, which must be TYPE_INT32 or TYPE_INT64 with one dimension of 1 to 31 and \
         without 'reshape' for m",
    );
    check(
        "output { name: 'y' data_type: TYPE_FP32 dims: 4 is_non_linear_format_io: true }",
        MODEL,
        "Non-linear IO format is only supported for the TensorRT platform for m",
    );
    check(&format!("{IO}{IO}"), MODEL, "model 'm': input 'x' is listed twice");
    let other = "output { name: 'y' data_type: TYPE_FP32 dims: [ 4, 1 ] }";
    check(&format!("{IO}{other}"), MODEL, "model 'm': output 'y' is listed twice");
}

#[test]
fn an_output_that_is_listed_twice_alike_is_one() {
    let again = "output { name: 'y' data_type: TYPE_FP32 dims: 4 }";
    let text = format!("max_batch_size: 8 {IO}{again}{again}");
    let draft = ConfigDraft::new("m", Some(text.as_bytes()), &["model.onnx".to_owned()]).unwrap();
    let note = "output 'y' is listed twice; the first one is used";
    assert_eq!(draft.notes(), [note, note]);
    assert_eq!(shown(spec(&text, MODEL)), shown(spec(&format!("max_batch_size: 8 {IO}"), MODEL)));
}

#[test]
fn onnx_models_take_operators_from_libraries() {
    let named = format!("max_batch_size: 8 {IO}model_operations {{ op_library_filename: [ 'x.so', '/opt/y.so' ] }}");
    assert_eq!(spec(&named, MODEL).unwrap().optimization.operator_libraries, ["x.so", "/opt/y.so"]);
    let other = ConfigDraft::new("m", Some(format!("backend: 'identity' {named}").as_bytes()), &[]).unwrap();
    let note =
        "'model_operations.op_library_filename' has no effect here: only ONNX models take operators from a library";
    assert_eq!((other.notes(), other.operator_libraries().len()), (&[note.to_owned()][..], 0));
}

#[test]
fn libraries_files_and_tags_are_checked() {
    check_effective("runtime: 'libtriton_onnxruntime.so'", MODEL, &[r#""runtime":"libtriton_onnxruntime.so""#]);
    check(
        "runtime: 'x.so'",
        MODEL,
        "model 'm': 'runtime' is 'x.so', but backend 'onnxruntime' is built in; remove it, or name \
         'libtriton_onnxruntime.so'",
    );
    check_effective("cc_model_filenames { key: '7.5' value: 'x' }", MODEL, &[r#""cc_model_filenames":{"7.5":"x"}"#]);
    check(
        "cc_model_filenames { key: '7.5' value: '../x' }",
        MODEL,
        "model 'm': 'cc_model_filenames' is '../x'; name a file beneath the model's directory, by a relative path without \
         '..'",
    );
    let tags = "metric_tags { key: 'team' value: 'a\"\\\\' } metric_tags { key: '1' value: '' }";
    assert_eq!(spec(tags, MODEL).unwrap().metric_labels, r#"_1="",_team="a\"\\","#);
    for key in ["", "a-b", "é", "a b"] {
        let want = format!(
            "model 'm': 'metric_tags' has the key '{key}'; a key has letters, digits and '_' alone, as labels of Prometheus"
        );
        check(&format!("metric_tags {{ key: '{key}' value: 'v' }}"), MODEL, &want);
    }
}

#[test]
fn a_configuration_that_disagrees_with_the_file_is_refused() {
    let batched = format!("{IO} max_batch_size: 8");
    check(
        &batched,
        "x FP32 [-1x16], z FP32 [-1x1] > y FP32 [-1x4]",
        "unable to load model 'm', configuration expects 1 inputs, model provides 2",
    );
    check(
        &batched,
        "INPUT0 FP32 [-1x16] > y FP32 [-1x4]",
        "unexpected inference input 'x', allowed inputs are: INPUT0",
    );
    check(
        &batched,
        "x FP32 [-1x16] > b FP32 [-1x4], a FP32 [-1x4]",
        "unexpected inference output 'y', allowed outputs are: a, b",
    );
    check(
        &batched,
        "x FP16 [-1x16] > y FP32 [-1x4]",
        "unable to load model 'm', configuration expects datatype TYPE_FP32 for input 'x', model provides TYPE_FP16",
    );
    check(
        &batched,
        "x FP32 [-1x16] > y BYTES [-1x4]",
        "unable to load model 'm', configuration expects datatype TYPE_FP32 for output 'y', model provides TYPE_STRING",
    );
    let dimensions = |text: &str| format!("model 'm', tensor 'x': the model expects {text}");
    let batch_axis = "an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, \
                      making complete shape";
    check(
        &batched.replace("[ 16 ]", "[ 16, 1 ]"),
        MODEL,
        &dimensions(&format!(
            "2 dimensions (shape [-1,16]) but the model configuration specifies 3 dimensions ({batch_axis} [-1,16,1])"
        )),
    );
    check(
        &batched.replace("[ 16 ]", "[ -1 ]"),
        MODEL,
        &dimensions(&format!(
            "2 dimensions (shape [-1,16]) but the model configuration specifies 2 dimensions ({batch_axis} [-1,-1])"
        )),
    );
    check(
        IO,
        "x FP32 [17] > y FP32 [4]",
        &dimensions("1 dimensions (shape [17]) but the model configuration specifies 1 dimensions (shape [16])"),
    );
    check(
        IO,
        "x FP32 [] > y FP32 [4]",
        &dimensions("0 dimensions (shape []) but the model configuration specifies 1 dimensions (shape [16])"),
    );
    check(
        &batched,
        "x FP32 [1x16] > y FP32 [-1x4]",
        "model 'm', tensor 'x': for the model to support batching the shape should have at least 1 dimension and the \
         first dimension must be -1; but shape expected by the model is [1,16]",
    );
}

#[test]
fn a_configuration_that_cannot_be_completed_says_why() {
    check(
        "max_batch_size: 4",
        "x FP32 [16] > y FP32 [4]",
        "autofill failed for model 'm': model does not support batching while non-zero max_batch_size is specified",
    );
    check(
        "",
        "x FP32 [16] > y FP32 ?",
        "autofill failed for model 'm': the ONNX file does not say the shape of output 'y'; list the outputs with their \
         dims in config.pbtxt",
    );
    check("", "> y FP32 [4]", "model configuration must contain at least one input, none were specified for m");
    check(
        "",
        "x FP32 [0] > y FP32 [4]",
        "model input 'x' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for m",
    );
    // The advice of the error text.
    let text = "input { name: 'x' data_type: TYPE_FP32 dims: [ -1, 16 ] } \
                output { name: 'label' data_type: TYPE_INT64 dims: [ -1 ] }";
    assert!(spec(text, "x FP32 [-1x16] > label INT64 [-1]").is_ok());
}

#[test]
fn the_backend_is_derived_from_files_and_names() {
    let check = |directory: &str, files: &str, want: &str| {
        let files: Vec<_> = files.split_whitespace().map(str::to_owned).collect();
        let draft = ConfigDraft::new(directory, None, &files);
        let got = draft.and_then(|draft| draft.check_backend().map(|()| draft.backend().to_owned()));
        let subject = |text: &str| text.rsplit("configuration; ").next()?.split(", which").next().map(str::to_owned);
        let got = got.unwrap_or_else(|error| subject(error.text()).unwrap_or_default());
        assert_eq!(got, want, "{directory} {files:?}");
    };
    check("m", "model.onnx", "onnxruntime");
    check("m", "model.onnx model.pt", "onnxruntime");
    check("m", "model.plan model.onnx", "model 'm': backend 'tensorrt'");
    check("m", "model.savedmodel", "tensorflow");
    check("m", "model.graphdef", "tensorflow");
    check("m", "model.xml", "openvino");
    check("m", "model.pt", "pytorch");
    let packed = ConfigDraft::new("m", None, &["model.pt2".to_owned()]).unwrap_err();
    assert!(packed.text().starts_with("model 'm': platform 'torch_aoti'"), "{packed}");
    check("m", "model.py", "python");
    check("m", "helper.py model.onnx model.py", "onnxruntime");
    check("m.identity", "", "identity");
    check("a.b.c", "", "model 'a.b.c': backend 'b.c'");
    check(
        "m",
        "weights.bin",
        "nothing tells the backend of model 'm': expected model.onnx or model.py in its version's directory, as in \
         m/1/model.onnx, and found 'weights.bin'; rename the file, or set 'backend' and 'default_model_filename' in \
         m/config.pbtxt",
    );
    for pickle in ["model.pkl", "iris.joblib"] {
        let refused = ConfigDraft::new("m", None, &[pickle.to_owned()]).unwrap_err();
        let advice = crate::platform::pickle_advice(pickle).unwrap();
        assert!(advice.contains("skl2onnx") && advice.contains("model.py"), "{advice}");
        assert!(refused.text().ends_with(&format!("and found '{pickle}'; {advice}")), "{refused}");
    }
    let name = format!("cannot be the name of a model: {}", name::MODEL_NAME_RULE);
    for directory in ["", ".", "..", " ab", "a/b", "a\\b"] {
        check(directory, "model.onnx", &format!("'{}' {name}", directory.escape_debug()));
    }
    check("nop_FP32_-1,-1", "model.onnx", "onnxruntime");
}

#[test]
fn completion_can_be_turned_off_or_given_another_batch_size() {
    let complete = |text: &str, completion: CompletionRules| {
        let draft = ConfigDraft::new("m", Some(text.as_bytes()), &["model.onnx".to_owned()]).unwrap();
        let spec = draft.complete(Some(&onnx(MODEL)), &BTreeMap::new(), completion);
        spec.map(|spec| (spec.rows_max, spec.batching.is_some())).map_err(|error| error.text().to_owned())
    };
    let size = |rows_max_default| CompletionRules { rows_max_default, ..CompletionRules::default() };
    assert_eq!(complete("", size(16)), Ok((16, true)));
    assert_eq!(complete("", size(1)), Ok((1, false)));
    let off = CompletionRules { is_on: false, ..CompletionRules::default() };
    let want = "model configuration must contain at least one input, none were specified for m";
    assert_eq!(complete("", off), Err(want.to_owned()));
    assert_eq!(complete(&format!("{IO} max_batch_size: 8"), off), Ok((8, false)));
}

#[test]
fn onnx_models_without_a_count_have_the_instances_that_the_rules_say() {
    let count = |group: &str, backend: &str, onnx_instances| {
        let text = format!("backend: '{backend}' {IO} max_batch_size: 8 {group}");
        let draft = ConfigDraft::new("m", Some(text.as_bytes()), &[]).unwrap();
        let rules = CompletionRules { is_on: false, onnx_instances, ..CompletionRules::default() };
        let spec = draft.complete(None, &BTreeMap::new(), rules).unwrap();
        spec.instance_groups.iter().map(|group| group.instance_count()).sum::<u64>()
    };
    assert_eq!(count("", "onnxruntime", 2), 2);
    assert_eq!(count("", "onnxruntime", 1), 1);
    assert_eq!(count("instance_group { count: 3 }", "onnxruntime", 1), 3);
    assert_eq!(count("", "identity", 2), 1);
}

#[test]
fn the_spec_says_what_the_configuration_does() {
    let text = "max_batch_size: 8 dynamic_batching { } version_policy { specific { versions: [ 3, 1 ] } }\n\
                input [ { name: 'x' data_type: TYPE_FP32 dims: [ -1, 16 ] } ]\n\
                output [ { name: 'y' data_type: TYPE_INT64 dims: [ 1 ] label_filename: 'labels/y.txt' } ]\n\
                instance_group [ { count: 3 }, { name: 'b' count: 1 } ]\n\
                parameters { key: 'k' value { string_value: 'v' } }";
    let spec = spec(text, "").unwrap();
    assert_eq!((spec.name.as_str(), spec.platform.as_str()), ("m", "onnxruntime_onnx"));
    let batching = Batching { rows_preferred: vec![8], ..Batching::default() };
    assert_eq!((spec.rows_max, spec.batching, spec.is_decoupled), (8, Some(batching), false));
    assert_eq!(spec.inputs[0].dims.as_slice(), [-1, 16]);
    assert_eq!(spec.inputs[0].shape.as_slice(), [-1, -1, 16]);
    assert_eq!((spec.outputs[0].datatype, spec.outputs[0].shape.as_slice()), (Datatype::Int64, [-1, 1].as_slice()));
    assert_eq!(spec.outputs[0].labels.as_ref().and_then(|labels| labels.get(0)), Some("labels/y.txt"));
    assert_eq!(spec.version_policy, VersionPolicy::Specific(vec![3, 1]));
    let groups: Vec<_> = spec.instance_groups.iter().map(|group| (group.name.as_str(), group.count)).collect();
    assert_eq!(groups, [("m_0", 3), ("b", 1)]);
    assert_eq!(spec.parameters.get("k").map(String::as_str), Some("v"));
    let message = ModelConfig::decode(&*spec.config_message).unwrap();
    assert_eq!(json::encode(&message), *spec.config_json);
    let identity = spec_of("m", IDENTITY, "", "").unwrap();
    assert_eq!((identity.platform.as_str(), identity.backend.as_str()), ("identity", "identity"));
}

#[test]
fn the_spec_and_what_is_shown_say_how_requests_are_batched() {
    let text = format!(
        "{IO} max_batch_size: 8 dynamic_batching {{ preferred_batch_size: [ 8, 4, 4 ] max_queue_delay_microseconds: 100\n\
         priority_levels: 3 default_priority_level: 2\n\
         default_queue_policy {{ timeout_action: DELAY default_timeout_microseconds: 5 }}\n\
         priority_queue_policy {{ key: 3 value {{ allow_timeout_override: true max_queue_size: 7 }} }} }}"
    );
    let spec = spec(&text, MODEL).unwrap();
    let timeout_default = Duration::from_micros(5);
    let queue_default = QueueRules { is_delaying: true, timeout_default, ..QueueRules::default() };
    let own = QueueRules { may_override: true, entries_max: 7, ..QueueRules::default() };
    let want = Batching {
        rows_preferred: vec![4, 8],
        queue_delay_max: Duration::from_micros(100),
        priority_levels: 3,
        priority_default: 2,
        queue_default,
        queue_by_level: BTreeMap::from([(3, own)]),
        ..Batching::default()
    };
    assert_eq!(spec.batching, Some(want));
    let shown = concat!(
        r#""dynamic_batching":{"preferred_batch_size":[8,4,4],"max_queue_delay_microseconds":100,"#,
        r#""preserve_ordering":false,"priority_levels":3,"default_priority_level":2,"#,
        r#""default_queue_policy":{"timeout_action":"DELAY","default_timeout_microseconds":5,"#,
        r#""allow_timeout_override":false,"max_queue_size":0},"#,
        r#""priority_queue_policy":{"3":{"timeout_action":"REJECT","default_timeout_microseconds":0,"#,
        r#""allow_timeout_override":true,"max_queue_size":7}}}"#
    );
    assert!(spec.config_json.contains(shown), "{}", spec.config_json);
}

#[test]
fn a_label_file_that_was_not_read_is_an_internal_error() {
    let text = "output { name: 'y' data_type: TYPE_FP32 dims: 4 label_filename: 'l.txt' }";
    let draft = ConfigDraft::new("m", Some(text.as_bytes()), &["model.onnx".to_owned()]).unwrap();
    assert_eq!(draft.label_filenames(), ["l.txt"]);
    assert_eq!(draft.onnx_filename(), Some("model.onnx"));
    let error = draft.complete(Some(&onnx(MODEL)), &BTreeMap::new(), CompletionRules::default()).unwrap_err();
    assert_eq!((error.code(), error.text()), (Code::Internal, "model 'm': the label file 'l.txt' was not read"));
}

#[test]
fn an_output_that_cannot_be_served_must_be_left_out() {
    let refused = vec![("z".to_owned(), "'z' is a map, not a tensor".to_owned())];
    let signature = OnnxSignature { outputs_refused: refused, ..onnx(MODEL) };
    let check = |text: &str, want: Result<usize, &str>| {
        let draft = ConfigDraft::new("m", Some(text.as_bytes()), &["model.onnx".to_owned()]).unwrap();
        let got = draft.complete(Some(&signature), &BTreeMap::new(), CompletionRules::default());
        let got = got.map(|spec| spec.outputs.len()).map_err(|error| error.text().to_owned());
        assert_eq!(got, want.map_err(str::to_owned), "{text}");
    };
    let lines = "output { name: \"y\" data_type: TYPE_FP32 dims: [ 4 ] }";
    let text = "autofill failed for model 'm': output 'z' is a map, not a tensor; to serve the others, write into \
                config.pbtxt: ";
    check("", Err(&format!("{text}{lines}")));
    check(lines, Ok(1));
    check(
        "output { name: 'z' data_type: TYPE_FP32 dims: 4 }",
        Err("unable to load model 'm', output 'z' is a map, not a tensor; leave it out"),
    );
}

/// The answers of tritonserver 2.51 to `GET /v2/models/M/config` for models of its Python backend.
#[test]
fn the_effective_configuration_is_tritons_byte_for_byte() {
    let tensor = |name: &str, data_type: &str, dims: i64, rest: &str| {
        format!("[ {{ name: '{name}' data_type: {data_type} dims: [ {dims} ] {rest} }} ]\n")
    };
    let pair = |index: usize, data_type: &str, dims: i64, rest: &str| {
        let input = tensor(&format!("INPUT{index}"), data_type, dims, "");
        let output = tensor(&format!("OUTPUT{index}"), data_type, dims, rest);
        format!("input {input} output {output}")
    };
    let delay = "parameters { key: 'execute_delay_ms' value { string_value: '300' } }";
    let two = format!("{}{}", pair(0, "TYPE_FP32", -1, ""), pair(1, "TYPE_INT32", -1, ""));
    let texts = BTreeMap::from([
        ("classify", format!("max_batch_size: 8 {}", pair(0, "TYPE_FP32", 4, "label_filename: 'labels.txt'"))),
        ("identity_nobatch", pair(0, "TYPE_FP32", 4, "")),
        ("identity_two", format!("max_batch_size: 8 {two}")),
        ("slow", format!("max_batch_size: 8 {} {delay}", pair(0, "TYPE_FP32", -1, ""))),
    ]);
    let mut recorded = include_str!("tests/recorded.txt").lines();
    for (name, text) in texts {
        let got = shown(spec_of(name, &format!("backend: 'python' {text}"), "", ""));
        assert_eq!(Some(got.as_str()), recorded.next());
    }
    assert_eq!(recorded.next(), None);
}

mod batching;
mod documents;
