//! Configurations of tree models (`backend: "fil"`): the name of the file by `model_type` or by the
//! files in the directory, and inputs and outputs from the model itself. Triton fills in none of it
//! and refuses a configuration that leaves it out.

use crate::limits::TREE_ROWS_DEFAULT;
use crate::platform::{FIL_BACKEND, TREE_FILES};
use crate::trees::TreeModel;
use wire::proto::inference::model_config::SchedulingChoice;
use wire::proto::inference::model_instance_group::Kind;
use wire::proto::inference::{DataType, ModelConfig, ModelDynamicBatching, ModelInput, ModelOutput, ModelParameter};

const MODEL_TYPE: &str = "model_type";
const IS_CLASSIFIER: &str = "is_classifier";
const OUTPUT_CLASS: &str = "output_class";
const PREDICT_PROBA: &str = "predict_proba";

/// Returns true if it is a tree model.
pub(super) fn is_trees(config: &ModelConfig) -> bool {
    config.backend == FIL_BACKEND
}

/// Returns true if the files of a version are those of a tree model. A model name that implies its
/// backend, as in `m.vllm`, takes precedence over `model.json`, which other backends have, too.
pub(super) fn is_there(model: &str, has_file: impl Fn(&str) -> bool) -> bool {
    let tells = |file: &str| file != "model.json" || !model.contains('.');
    TREE_FILES.iter().any(|(file, _)| has_file(file) && tells(file))
}

/// Fills in the name of the file.
pub(super) fn fill_filename(config: &mut ModelConfig, files: Option<&[String]>) {
    if !is_trees(config) || !config.default_model_filename.is_empty() {
        return;
    }
    let configured = config.parameters.get(MODEL_TYPE).map(|parameter| parameter.string_value.as_str());
    let is_there = |file: &str| files.unwrap_or_default().iter().any(|have| have == file);
    let fits = |kind: &str| configured.is_none_or(|configured| configured == kind);
    let found = TREE_FILES.iter().find(|(file, kind)| fits(kind) && is_there(file));
    // No such file exists: the name that Triton would look for, whose default is XGBoost's old
    // format.
    let usual = || TREE_FILES.iter().find(|(_, kind)| *kind == configured.unwrap_or("xgboost"));
    if let Some((file, _)) = found.or_else(usual) {
        (*file).clone_into(&mut config.default_model_filename);
    }
}

/// A note that instance groups for GPUs, which tree models do not use, are changed; `None` without
/// such groups.
pub(super) fn gpu_note(config: &ModelConfig) -> Option<String> {
    let asks = config.instance_group.iter().any(|group| group.kind() == Kind::Gpu || !group.gpus.is_empty());
    (is_trees(config) && asks).then(|| {
        "its instance groups are for GPUs, and tree models run on the CPU: they are taken for KIND_CPU".to_owned()
    })
}

/// Returns true if something is left to the model's file.
pub(super) fn is_incomplete(config: &ModelConfig) -> bool {
    is_trees(config) && (config.input.is_empty() || config.output.is_empty())
}

/// Fills in inputs, outputs and batching from the model. Without a word about classes, a model answers what its library's
/// `predict` does. Each row goes through the trees by itself, so that batches need no check.
pub(super) fn fill(config: &mut ModelConfig, model: &TreeModel, rows_max_default: u16, has_rows_max: bool) {
    if !has_rows_max
        && config.max_batch_size == 0
        && config.input.is_empty()
        && config.output.is_empty()
        && rows_max_default > 0
    {
        config.max_batch_size = rows_max_default.max(TREE_ROWS_DEFAULT).into();
    }
    if config.max_batch_size > 1 && config.scheduling_choice.is_none() {
        config.scheduling_choice = Some(SchedulingChoice::DynamicBatching(ModelDynamicBatching::default()));
    }
    let rows: &[i64] = if config.max_batch_size > 0 { &[] } else { &[-1] };
    let with_rows = |dims: Vec<i64>| rows.iter().copied().chain(dims).collect::<Vec<_>>();
    if config.input.is_empty() {
        let dims = with_rows(vec![i64::try_from(model.feature_count).unwrap_or(i64::MAX)]);
        let (name, data_type) = ("input__0".to_owned(), DataType::TypeFp32.into());
        config.input.push(ModelInput { name, data_type, dims, ..ModelInput::default() });
    }
    if config.output.is_empty() {
        let is_set = |key: &str| {
            let value = config.parameters.get(key).map(|parameter| parameter.string_value.trim());
            value.is_some_and(|value| value == "1" || value.eq_ignore_ascii_case("true"))
        };
        let is_class = (is_set(IS_CLASSIFIER) || is_set(OUTPUT_CLASS)) && !is_set(PREDICT_PROBA);
        let dims = with_rows(if is_class { vec![1] } else { model.output_dims() });
        let (name, data_type) = ("output__0".to_owned(), DataType::TypeFp32.into());
        config.output.push(ModelOutput { name, data_type, dims, ..ModelOutput::default() });
    }
    let says_classes = config.parameters.contains_key(OUTPUT_CLASS);
    let filled = [(MODEL_TYPE, model.format.name(), true), (IS_CLASSIFIER, "false", !says_classes)];
    for (key, value, _) in filled.into_iter().filter(|(.., is_needed)| *is_needed) {
        let parameter = || ModelParameter { string_value: value.to_owned() };
        config.parameters.entry(key.to_owned()).or_insert_with(parameter);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::config::{CompletionRules, ConfigDraft};
    use crate::trees;

    const FILE: &[u8] = include_bytes!("../../../../tests/trees/models/lightgbm-classes.txt");

    fn draft(text: &str, files: &[&str]) -> ConfigDraft {
        let files: Vec<_> = files.iter().map(|file| (*file).to_owned()).collect();
        ConfigDraft::new("m", Some(text.as_bytes()), &files).unwrap()
    }

    #[test]
    fn the_file_is_that_of_the_model_type_or_one_that_is_there() {
        let check = |text: &str, files: &[&str], want: &str| {
            assert_eq!(draft(text, files).tree_filename(), Some(want), "{text} {files:?}");
        };
        let of = |kind: &str| {
            format!("backend: 'fil' parameters {{ key: 'model_type' value {{ string_value: '{kind}' }} }}")
        };
        check("", &["xgboost.json"], "xgboost.json");
        check("", &["README.md", "model.ubj"], "model.ubj");
        check("backend: 'fil'", &["checkpoint.tl"], "checkpoint.tl");
        check("backend: 'fil'", &[], "xgboost.model");
        check(&of("lightgbm"), &[], "model.txt");
        check(&of("xgboost_json"), &["xgboost.ubj", "model.json"], "model.json");
        check(&of("treelite_checkpoint"), &["xgboost.ubj"], "checkpoint.tl");
        check("backend: 'fil' default_model_filename: 'mine.json'", &["xgboost.json"], "mine.json");
        assert_eq!(draft("", &["model.onnx", "model.txt"]).tree_filename(), None);
        let other = ConfigDraft::new("m.own", None, &["model.json".to_owned()]).unwrap();
        assert_eq!(other.tree_filename(), None);
        assert!(other.check_backend().unwrap_err().text().contains("model 'm.own': backend 'own', which this server"));
    }

    #[test]
    fn what_is_left_out_is_filled_in_from_the_model() {
        let model = trees::decode(FILE, None).unwrap();
        let (features, classes) = (model.feature_count as i64, model.class_count as i64);
        let filled = |text: &str, rules: CompletionRules| {
            let draft = draft(text, &["model.txt"]);
            assert_eq!(draft.tree_filename_to_complete(), Some("model.txt"), "{text}");
            draft.with_trees(&model, rules).complete(None, &BTreeMap::new(), rules)
        };
        let check = |text: &str, rows: u32, input: &[i64], output: &[i64]| {
            let spec = filled(text, CompletionRules::default()).unwrap();
            let (got_input, got_output) = (spec.inputs[0].dims.as_slice(), spec.outputs[0].dims.as_slice());
            assert_eq!((spec.rows_max, got_input, got_output), (rows, input, output), "{text}");
        };
        let flags = |list: &[&str]| -> String {
            list.iter().map(|key| format!("parameters {{ key: '{key}' value {{ string_value: 'true' }} }} ")).collect()
        };
        check("", 256, &[features], &[classes]);
        check("max_batch_size: 7", 7, &[features], &[classes]);
        check(&flags(&["is_classifier"]), 256, &[features], &[1]);
        check(&flags(&["output_class"]), 256, &[features], &[1]);
        check(&flags(&["is_classifier", "predict_proba"]), 256, &[features], &[classes]);
        let output = "output { name: 'output__0' data_type: TYPE_FP32 dims: [ -1, 3 ] }";
        check(output, 0, &[-1, features], &[-1, 3]);
        let spec = filled("", CompletionRules::default()).unwrap();
        assert_eq!((spec.inputs[0].name.as_str(), spec.outputs[0].name.as_str()), ("input__0", "output__0"));
        assert_eq!(spec.parameters["model_type"], "lightgbm");
        assert_eq!(spec.parameters["is_classifier"], "false");
        let off = CompletionRules { is_on: false, ..CompletionRules::default() };
        assert!(filled("", off).is_err(), "nothing is filled in with --disable-auto-complete-config");
    }

    #[test]
    fn groups_for_gpus_are_taken_for_the_cpu_and_a_note_says_so() {
        let config = "backend: 'fil' instance_group [ { kind: KIND_GPU count: 2 gpus: [ 0 ] } ]
            input { name: 'x' data_type: TYPE_FP32 dims: 2 } output { name: 'y' data_type: TYPE_FP32 dims: 1 }";
        let draft = draft(config, &[]);
        assert!(draft.notes().iter().any(|note| note.contains("tree models run on the CPU")), "{:?}", draft.notes());
        assert!(!draft.asks_for_gpu());
        draft.complete(None, &BTreeMap::new(), CompletionRules::default()).unwrap();
    }
}
