use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::config::{CompletionRules, ConfigDraft, ConfigSurroundings};
use crate::parse::text::Notation;
use crate::{InstanceKind, ModelSpec};

const TENSORS: &str = "input { name: 'x' data_type: TYPE_BF16 dims: [ -1, 3 ] } \
                       output { name: 'y' data_type: TYPE_STRING dims: -1 }";

/// A draft on a server whose directory of backends has `both/` with a library and a Python file, `lib/` with a library,
/// and `py/` with a Python file.
fn draft(text: &str) -> Result<ConfigDraft, Error> {
    let has = |backend: &str, file: &str| {
        let files = [
            "both/libtriton_both.so",
            "both/model.py",
            "lib/libtriton_lib.so",
            "python/libtriton_python.so",
            "py/model.py",
            "../py/model.py",
        ];
        files.contains(&format!("{backend}/{file}").as_str())
    };
    let surroundings = ConfigSurroundings { has_backend_file: &has, ..ConfigSurroundings::of_files(Some(&[])) };
    ConfigDraft::read("m", Notation::Text, text.as_bytes(), surroundings)
}

fn spec(text: &str) -> Result<ModelSpec, Error> {
    draft(&format!("{text} {TENSORS}"))?.complete(None, &BTreeMap::new(), CompletionRules::default())
}

fn python(text: &str) -> Result<Option<PythonModel>, String> {
    let spec = spec(text).map_err(|error| error.text().to_owned())?;
    Ok(spec.python.map(|python| (*python).clone()))
}

fn parameter(key: &str, value: &str) -> String {
    format!("backend: 'python' parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}")
}

#[test]
fn a_model_says_which_file_its_processes_run() {
    let file = |file: &str, is_backend| {
        let file = file.to_owned();
        Ok(Some(PythonModel { file, is_backend, ..PythonModel::default() }))
    };
    assert_eq!(python("backend: 'python'"), file("model.py", false));
    assert_eq!(python("default_model_filename: 'model.py'"), file("model.py", false));
    assert_eq!(python("backend: 'python' default_model_filename: 'a/b.py'"), file("a/b.py", false));
    assert_eq!(python("backend: 'python' runtime: 'libtriton_python.so'"), file("model.py", false));
    assert_eq!(python("backend: 'py'"), file("model.py", true));
    assert_eq!(python("backend: 'py' default_model_filename: 'weights'"), file("model.py", true));
    assert_eq!(python("backend: 'both' runtime: 'model.py'"), file("model.py", true));
    assert_eq!(python("backend: 'identity'"), Ok(None));
    assert_eq!(spec("backend: 'py'").unwrap().config_json.matches(r#""runtime":"model.py""#).count(), 1);
    assert!(python("backend: 'none'").unwrap_err().contains("which this server does not have"));
    // A library comes first, as in Triton.
    for (text, file) in [("backend: 'both'", "libtriton_both.so"), ("backend: 'lib'", "libtriton_lib.so")] {
        let spec = spec(text).unwrap();
        assert_eq!((spec.library.map(|library| library.file.clone()), spec.python), (Some(file.to_owned()), None));
    }
    for backend in ["lib", "none", "python", "../py"] {
        let want = format!(
            "unable to find Python backend based backend library 'model.py' for model 'm', searched: '{backend}/model.py' \
             beneath --backend-directory"
        );
        assert_eq!(python(&format!("backend: '{backend}' runtime: 'model.py'")), Err(want));
    }
    for built_in in ["identity", "onnxruntime"] {
        let platform = if built_in == "onnxruntime" { "platform: 'onnxruntime_onnx'" } else { "" };
        let text = python(&format!("backend: '{built_in}' {platform} runtime: 'model.py'")).unwrap_err();
        assert!(text.contains("is built in"), "{text}");
    }
    let want = "Model name must end with '.py'. Model name is \"model.txt\".";
    assert_eq!(python("backend: 'python' default_model_filename: 'model.txt'"), Err(want.to_owned()));
}

#[test]
fn parameters_of_python_models_are_checked_and_others_are_free() {
    let model = |key: &str, value: &str| python(&parameter(key, value)).map(Option::unwrap);
    assert_eq!(model("EXECUTION_ENV_PATH", "/e.tar.gz").unwrap().environment.as_deref(), Some("/e.tar.gz"));
    assert_eq!(model("EXECUTION_ENV_PATH", "").unwrap().environment, None);
    assert!(["yes", "no"].iter().all(|value| model("FORCE_CPU_ONLY_INPUT_TENSORS", value).is_ok()));
    let want = "Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: No'";
    assert_eq!(model("FORCE_CPU_ONLY_INPUT_TENSORS", "No"), Err(want.to_owned()));
    let timeout = model("execute_timeout_ms", "1500").unwrap().execute_timeout;
    assert_eq!(timeout, Some(Duration::from_millis(1500)));
    for value in ["0", "-1", "1.5", "", "x"] {
        let want =
            format!("parameter 'execute_timeout_ms' of model 'm' is '{value}', expected milliseconds, 1 or more");
        assert_eq!(model("execute_timeout_ms", value), Err(want));
    }
    assert_eq!([None, Some("1"), Some("256")].map(concurrency), [Ok(None), Ok(Some(1)), Ok(Some(256))]);
    for value in ["0", "257", "-1", "1.5", "", "x"] {
        let want =
            format!("parameter 'execute_concurrency' of model 'm' is '{value}', expected a number from 1 to 256");
        assert_eq!(concurrency(Some(value)), Err(want));
    }
    let checks = ["yes", "no"].map(|value| model("check_outputs", value).unwrap().checks_outputs);
    assert_eq!((checks, model("anything", "at all").unwrap().checks_outputs), ([Some(true), Some(false)], None));
    let want = "parameter 'check_outputs' of model 'm' is 'true', expected yes or no";
    assert_eq!(model("check_outputs", "true"), Err(want.to_owned()));
    let forks = |value| model("fork_instances", value).map(|model| model.forks);
    assert_eq!((forks("on"), forks("off")), (Ok(Some(true)), Ok(Some(false))));
    let want = "parameter 'fork_instances' of model 'm' is 'auto', expected on or off";
    assert_eq!(forks("auto"), Err(want.to_owned()));
    let other = "backend: 'identity' parameters { key: 'FORCE_CPU_ONLY_INPUT_TENSORS' value { string_value: 'x' } }";
    assert_eq!(python(other), Ok(None), "its own parameter");
}

/// `execute_concurrency` of a model with this value.
fn concurrency(value: Option<&str>) -> Result<Option<usize>, String> {
    let text = value.map_or_else(|| "backend: 'python'".to_owned(), |value| parameter("execute_concurrency", value));
    python(&text).map(|python| python.unwrap().concurrency)
}

#[test]
fn requests_of_sequences_run_in_turn() {
    let sequences =
        |value: &str| python(&format!("{} sequence_batching {{ }}", parameter("execute_concurrency", value)));
    assert_eq!(sequences("1").unwrap().unwrap().concurrency, Some(1));
    assert_eq!(python("backend: 'python' sequence_batching { }").unwrap().unwrap().concurrency, Some(1));
    let want = "parameter 'execute_concurrency' of model 'm' is '2', expected 1, because its requests belong to sequences ('sequence_batching'), which run in turn";
    assert_eq!(sequences("2"), Err(want.to_owned()));
}

#[test]
fn a_model_with_a_scheduler_may_get_several_requests_at_once() {
    let is_batched = |text: &str| {
        let spec = spec(&format!("backend: 'python' max_batch_size: 4 {text}")).unwrap();
        let engine = spec.sequence.as_ref().map(|sequence| Arc::clone(&sequence.engine));
        let of = |spec: &ModelSpec| spec.python.as_ref().unwrap().is_batched;
        (of(&spec), engine.as_deref().map(of))
    };
    assert_eq!(is_batched(""), (false, None));
    assert_eq!(is_batched("dynamic_batching { }"), (true, None));
    assert_eq!(is_batched("sequence_batching { }"), (true, Some(true)));
}

#[test]
fn an_instance_of_a_python_model_is_told_its_kind() {
    let gpus = crate::config::GpuSupport { devices: vec![0, 3], ..Default::default() };
    let groups = "backend: 'python' instance_group [ { kind: KIND_GPU }, { kind: KIND_MODEL }, { } ]";
    let draft = draft(&format!("{groups} {TENSORS}")).unwrap();
    assert!(draft.may_use_gpu());
    let spec = draft.with_gpus(gpus).complete(None, &BTreeMap::new(), CompletionRules::default()).unwrap();
    let kind = |instance: &str| {
        let has = |group: &&crate::InstanceGroup| group.instances().any(|(name, _)| name == instance);
        spec.instance_groups.iter().find(has).map(|group| group.kind)
    };
    assert_eq!(kind("m_0_0_gpu3"), Some(InstanceKind::Gpu));
    assert_eq!(kind("m_1_0"), Some(InstanceKind::Model));
    assert_eq!(kind("m_2_0"), Some(InstanceKind::Cpu));
    assert_eq!(kind("m_2_1"), None, "one instance by default");
    assert_eq!(kind("m_0_0_gpu3").map(InstanceKind::as_str), Some("GPU"));
    let text = python("backend: 'python' instance_group { kind: KIND_GPU }").unwrap_err();
    assert!(text.ends_with("has kind KIND_GPU but server does not support GPUs"), "{text}");
}

#[test]
fn a_python_model_that_serves_sequences_is_told_its_configuration_as_it_was_written() {
    let controls = "sequence_batching { control_input { name: 'START' control { kind: CONTROL_SEQUENCE_START \
                    fp32_false_true: [ 0, 1 ] } } state { input_name: 'i' output_name: 'o' data_type: TYPE_FP32 dims: 1 } }";
    let spec = spec(&format!("backend: 'python' {controls}")).unwrap();
    let sequence = spec.sequence.as_ref().unwrap();
    assert!(sequence.engine.python.is_some());
    assert_eq!((sequence.engine.inputs.len(), spec.inputs.len()), (3, 1));
    assert_eq!(sequence.engine.config_json, spec.config_json);
}

/// The served configuration after `auto_complete_config` returned `returned`, a list of edits of
/// the configuration that it was given.
fn completed(text: &str, edits: &[(&str, &str)]) -> Result<String, String> {
    let draft = draft(text).map_err(|error| error.text().to_owned())?;
    let mut returned = draft.shown();
    for (from, to) in edits {
        assert!(returned.contains(from), "{from}: {returned}");
        returned = returned.replace(from, to);
    }
    let completed = draft.with_completion(returned.as_bytes());
    let spec = completed.and_then(|draft| draft.complete(None, &BTreeMap::new(), CompletionRules::default()));
    spec.map(|spec| spec.config_json.to_string()).map_err(|error| error.text().to_owned())
}

#[test]
fn what_auto_complete_config_may_set_is_taken_over_and_the_rest_is_not() {
    let input = r#""input":[{"name":"x","data_type":"TYPE_FP32","dims":[4],"optional":true}]"#;
    let output = r#""output":[{"name":"y","data_type":"TYPE_STRING","dims":[-1]}]"#;
    let tensors = [(r#""input":[]"#, input), (r#""output":[]"#, output)];
    let with = |text: &str, edits: &[(&str, &str)]| completed(text, &[&tensors[..], edits].concat());
    let plain = with("backend: 'python'", &[]).unwrap();
    assert!(
        plain.contains(r#""dims":[4],"is_shape_tensor":false,"allow_ragged_batch":false,"optional":true"#),
        "{plain}"
    );
    let batching = [
        (r#""max_batch_size":0"#, r#""max_batch_size":16"#),
        (r#""optimization""#, r#""dynamic_batching":{},"model_transaction_policy":{"decoupled":true},"optimization""#),
    ];
    let got = with("backend: 'python'", &batching).unwrap();
    for part in [r#""max_batch_size":16"#, r#""preferred_batch_size":[16]"#, r#""decoupled":true"#] {
        assert!(got.contains(part), "{part}: {got}");
    }
    // Triton's core takes over neither instance groups nor parameters.
    let ignored =
        [(r#""count":1"#, r#""count":7"#), (r#""parameters":{}"#, r#""parameters":{"a":{"string_value":"b"}}"#)];
    assert_eq!(with("backend: 'python'", &ignored), Ok(plain));
    assert!(completed("backend: 'python'", &[]).unwrap_err().contains("must contain at least one input"));
    let [input, output] =
        ["input", "output"].map(|side| format!("{side} {{ name: 'a' data_type: TYPE_FP32 dims: 1 }}"));
    for one in [&input, &output] {
        assert!(completed(&format!("backend: 'python' {one}"), &[]).is_ok(), "{one}");
    }
    assert!(completed(&format!("backend: 'python' max_batch_size: 2 {input}"), &[]).is_ok());
    let uncounted = completed(&format!("backend: 'python' max_batch_size: 2 {output}"), &[]);
    assert!(uncounted.unwrap_err().contains("must contain at least one input"), "its rows are counted by inputs");
}

#[test]
fn what_auto_complete_config_must_not_return_fails_the_load() {
    let check = |text: &str, edits: &[(&str, &str)], want: &str| {
        let got = completed(&format!("backend: 'python' {text} {TENSORS}"), edits).unwrap_err();
        assert!(got.contains(want), "{got}");
    };
    let other = [("dynamic_batching", "sequence_batching"), (r#""preferred_batch_size":[],"#, "")];
    let other = [&other[..], &[(r#""max_queue_delay_microseconds":0,"#, "")]].concat();
    let rest = [
        (r#""preserve_ordering":false,"#, ""),
        (r#""priority_levels":0,"#, ""),
        (r#""default_priority_level":0,"#, ""),
        (r#""priority_queue_policy":{}"#, ""),
    ];
    let text = "Cannot update scheduling choice from 11 to 13 when auto-completing.";
    check("dynamic_batching { }", &[&other[..], &rest].concat(), text);
    check("", &[(r#""max_batch_size":0"#, r#""max_batch_size":"many""#)], "what its auto_complete_config returned: ");
    check("", &[("\"max_batch_size\"", "\"most_rows\"")], "what its auto_complete_config returned: ");
    check(
        "",
        &[(r#""label_filename":"""#, r#""label_filename":"../../x""#)],
        "name a file beneath the model's directory",
    );
    check("", &[("TYPE_BF16", "TYPE_INVALID")], "must specify 'data_type'");
    check("", &[(r#""max_batch_size":0"#, r#""max_batch_size":-1"#)], "must be non-negative");
}

#[test]
fn batch_inputs_of_a_python_model_are_noted() {
    let batch = "batch_input { kind: BATCH_ELEMENT_COUNT target_name: 'n' data_type: TYPE_FP32 source_input: 'x' }";
    let notes = |backend: &str| draft(&format!("backend: '{backend}' {batch} {TENSORS}")).unwrap().notes().to_vec();
    assert_eq!(notes("python"), ["'batch_input' has no effect here: a Python model gets its requests one by one"]);
    assert!(notes("identity").is_empty());
}
