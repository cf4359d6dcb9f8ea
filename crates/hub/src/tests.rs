//! Folders in memory, and what is derived from them.

use std::collections::BTreeMap;

use base::tensor::Datatype;

use crate::limits::HUB_JSON_SIZE_MAX;
use crate::{Derived, GraphTensor, HubFolder, HubGraph, derive, is_hub_config};

/// Files by their paths.
#[derive(Clone)]
struct Files(BTreeMap<String, String>);

impl Files {
    /// A text network of this class with a tokenizer; `members` are those of `config.json` behind the class.
    fn of(class: &str, members: &str) -> Self {
        let config = format!(r#"{{"architectures": ["{class}"], "hidden_size": 8, "vocab_size": 30{members}}}"#);
        Self(BTreeMap::new()).with("config.json", &config).with("tokenizer.json", "{}")
    }

    fn with(mut self, name: &str, text: &str) -> Self {
        self.0.insert(name.to_owned(), text.to_owned());
        self
    }

    fn derive(&self, inputs: &str, outputs: &[(&str, &[i64])]) -> Result<Derived, String> {
        let names: Vec<String> = self.0.keys().cloned().collect();
        let read = |name: &str, size_max: usize| {
            assert_eq!(size_max, HUB_JSON_SIZE_MAX);
            self.0.get(name).map(|text| text.as_bytes().to_vec()).ok_or_else(|| "no such file".to_owned())
        };
        let folder = HubFolder { names: &names, read: &read };
        let tensor = |name: &str, datatype, shape: &[i64]| GraphTensor {
            name: name.to_owned(),
            datatype,
            shape: shape.to_vec(),
        };
        let inputs = inputs.split_whitespace().map(|name| tensor(name, Datatype::Int64, &[-1, -1])).collect();
        let outputs = outputs.iter().map(|(name, shape)| tensor(name, Datatype::Fp32, shape)).collect();
        let graph = HubGraph { file: "model.onnx".to_owned(), inputs, outputs };
        derive(&folder, &graph).map_err(|error| error.text().to_owned())
    }

    /// The steps of an encoder.
    fn steps(&self) -> String {
        self.derive("input_ids attention_mask", &[("last_hidden_state", &[-1, -1, 8])]).unwrap().steps
    }

    fn fault(&self) -> String {
        self.derive("input_ids attention_mask", &[("last_hidden_state", &[-1, -1, 8])]).unwrap_err()
    }
}

#[test]
fn the_two_texts_can_be_read_and_kept() {
    let files = Files::of("BertModel", r#", "max_position_embeddings": 512"#)
        .with("tokenizer_config.json", r#"{"model_max_length": 256, "pad_token": "[PAD]"}"#)
        .with(
            "modules.json",
            r#"[{"type": "sentence_transformers.models.Transformer", "path": ""},
            {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
            {"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"}]"#,
        )
        .with("1_Pooling/config.json", r#"{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}"#)
        .with("config_sentence_transformers.json", r#"{"prompts": {"query": "find: \"", "document": ""}}"#);
    let derived =
        files.derive("input_ids attention_mask token_type_ids", &[("last_hidden_state", &[-1, -1, 8])]).unwrap();
    let config = "backend: \"onnxruntime\"\n\
        default_model_filename: \"model.onnx\"\n\
        max_batch_size: 32\n\
        input { name: \"text\" data_type: TYPE_STRING dims: [ 1 ] reshape { shape: [ ] } }\n\
        input { name: \"prompt_name\" data_type: TYPE_STRING dims: [ 1 ] reshape { shape: [ ] } optional: true }\n\
        input { name: \"truncation\" data_type: TYPE_STRING dims: [ 1 ] reshape { shape: [ ] } optional: true }\n\
        input { name: \"token_ids\" data_type: TYPE_INT64 dims: [ -1 ] optional: true }\n\
        output { name: \"embedding\" data_type: TYPE_FP32 dims: [ 8 ] }\n\
        output { name: \"raw_embedding\" data_type: TYPE_FP32 dims: [ 8 ] }\n\
        output { name: \"token_count\" data_type: TYPE_INT64 dims: [ 1 ] reshape { shape: [ ] } }\n\
        output { name: \"token_embedding\" data_type: TYPE_FP32 dims: [ -1, 8 ] }\n\
        output { name: \"token_mask\" data_type: TYPE_INT64 dims: [ -1 ] }\n\
        dynamic_batching { }\n\
        parameters { key: \"outputs_on_request\" value { string_value: \"raw_embedding,token_embedding,token_mask\" } }\n";
    assert_eq!(derived.config, config);
    let steps = r#"{"steps": [
  {"step": "tokenize", "inputs": {"text": "text", "prompt_name": "prompt_name", "truncation": "truncation", "given_ids": "token_ids"}, "file": "tokenizer.json", "config": "tokenizer_config.json", "max_length": 256, "prompts": {"query": "find: \"", "document": ""}, "outputs": {"ids": "input_ids", "mask": "attention_mask", "type_ids": "token_type_ids", "length": "token_count"}},
  {"step": "model"},
  {"step": "pool", "inputs": {"states": "last_hidden_state", "mask": "attention_mask"}, "output": "raw_embedding", "mode": "cls"},
  {"step": "normalize", "input": "raw_embedding", "output": "embedding"},
  {"step": "cast", "input": "last_hidden_state", "output": "token_embedding", "datatype": "FP32"},
  {"step": "cast", "input": "attention_mask", "output": "token_mask", "datatype": "INT64"}
]}
"#;
    assert_eq!(derived.steps, steps);
}

#[test]
fn the_length_is_the_least_of_what_the_files_say() {
    let length = |files: &Files| {
        let steps = files.steps();
        let found =
            steps.split_once("\"max_length\": ").map(|(_, rest)| rest.split([',', '}']).next().unwrap().to_owned());
        found.unwrap_or_else(|| "none".to_owned())
    };
    let bert = Files::of("BertModel", r#", "max_position_embeddings": 512"#);
    assert_eq!(length(&bert), "512");
    assert_eq!(length(&bert.clone().with("tokenizer_config.json", r#"{"model_max_length": 128}"#)), "128");
    let unlimited = r#"{"model_max_length": 1000000000000000019884624838656}"#;
    assert_eq!(length(&bert.clone().with("tokenizer_config.json", unlimited)), "512");
    let stated = bert.clone().with("sentence_roberta_config.json", r#"{"max_seq_length": 100.0}"#);
    assert_eq!(length(&stated), "100");
    assert_eq!(length(&stated.clone().with("sentence_bert_config.json", r#"{"max_seq_length": null}"#)), "512");
    assert_eq!(length(&Files::of("BertModel", "")), "none");
    for (kind, want) in
        [("roberta", "512"), ("xlm-roberta", "512"), ("mpnet", "512"), ("camembert", "512"), ("bert", "514")]
    {
        let members = format!(r#", "model_type": "{kind}", "max_position_embeddings": 514, "pad_token_id": 1"#);
        assert_eq!(length(&Files::of("Model", &members)), want, "{kind}");
    }
    let none = Files::of("Model", r#", "model_type": "roberta", "max_position_embeddings": 2, "pad_token_id": 1"#);
    assert_eq!(none.fault(), "config.json: 'max_position_embeddings' is 2, which leaves no position for a token");
    let zero = bert.with("tokenizer_config.json", r#"{"model_max_length": 0}"#);
    assert_eq!(zero.fault(), "tokenizer_config.json: the most tokens of a text are 0");
}

#[test]
fn the_padding_token_is_that_of_the_first_file_that_names_one() {
    let files = Files::of("BertModel", r#", "pad_token_id": 5"#);
    assert!(files.steps().contains("\"pad_id\": 5"));
    let special = files.clone().with("special_tokens_map.json", r#"{"pad_token": {"content": "<pad>"}}"#);
    assert!(special.steps().contains("\"pad_token\": \"<pad>\""));
    let named = special.with("tokenizer_config.json", r#"{"pad_token": "[PAD]"}"#);
    assert!(!named.steps().contains("\"pad_"));
    let wrong = files.with("special_tokens_map.json", r#"{"pad_token": 1}"#);
    assert_eq!(wrong.fault(), "special_tokens_map.json: 'pad_token' must be a string, or an object with 'content'");
}

#[test]
fn inputs_and_outputs_follow_from_the_graph() {
    let files = Files::of("BertModel", "");
    let states: (&str, &[i64]) = ("last_hidden_state", &[-1, -1, 8]);
    let check = |inputs: &str, outputs: &[(&str, &[i64])], want: &str| {
        let got = files.derive(inputs, outputs);
        let text = got.map_or_else(|error| error, |derived| derived.steps);
        assert!(text.contains(want), "{inputs} {outputs:?}: {text}");
    };
    check(
        "input_ids",
        &[states],
        r#""outputs": {"ids": "input_ids", "mask": "attention_mask", "length": "token_count"}"#,
    );
    check("input_ids input_type", &[states], r#""type_ids": "input_type""#);
    check("input_ids position_ids", &[states], r#""positions": "position_ids""#);
    check("input_ids past_key_values", &[states], "model.onnx: no step makes the input 'past_key_values'");
    let offset = Files::of("Model", r#", "model_type": "roberta", "pad_token_id": 1"#);
    let steps = offset.derive("input_ids position_ids", &[states]).unwrap().steps;
    assert!(steps.contains(r#""first_position": 2"#), "{steps}");
    check("attention_mask", &[states], "model.onnx: it has no input 'input_ids': it has 'attention_mask' [-1, -1]");
    check("input_ids", &[("output_1", &[-1, -1, 8]), ("output_2", &[-1, 8])], r#""states": "output_1""#);
    check(
        "input_ids",
        &[("token_embeddings", &[-1, -1, 8]), ("sentence_embedding", &[-1, 8])],
        r#""states": "token_embeddings""#,
    );
    check(
        "input_ids",
        &[("sentence_embedding", &[-1, 8])],
        r#"{"step": "cast", "input": "sentence_embedding", "output": "embedding""#,
    );
    check("input_ids", &[("a", &[-1, -1, 8]), ("b", &[-1, -1, 8])], "it has several outputs of 3 dimensions");
    check("input_ids", &[("a", &[-1, -1, 9])], "it has no output of 3 dimensions that can be last_hidden_state");
    let short = Files::of("BertForTokenClassification", r#", "id2label": {"0": "O", "1": "A"}"#);
    let error = short.derive("input_ids", &[("logits", &[-1, -1, 3])]).unwrap_err();
    assert_eq!(error, "config.json: 'id2label' has 2 labels, but model.onnx gives 3 scores");
    // A network for masked words without its scores is an encoder.
    let masked = Files::of("BertForMaskedLM", "");
    assert_eq!(masked.derive("input_ids", &[states]).unwrap().task.name(), "text embedding");
    assert_eq!(masked.derive("input_ids", &[("logits", &[-1, -1, 30])]).unwrap().task.name(), "sparse text embedding");
    let unnamed = Files(BTreeMap::new()).with("config.json", "{}").with("tokenizer.json", "{}");
    assert_eq!(unnamed.derive("input_ids", &[states]).unwrap().task.name(), "text embedding");
}

fn check(files: Files, want: &str) {
    assert_eq!(files.fault(), want);
}

fn module(kind: &str, path: &str) -> String {
    format!(r#"{{"type": "a.{kind}", "path": "{path}"}}"#)
}

/// The text of a `modules.json`.
fn modules(rest: &[String]) -> String {
    format!("[{}]", [&[module("Transformer", "")], rest].concat().join(","))
}

#[test]
fn pooling_and_prompts_are_read_or_refused_with_the_member() {
    let pooling = |config: &str| {
        let modules = modules(&[module("Pooling", "p")]);
        Files::of("BertModel", "").with("modules.json", &modules).with("p/config.json", config)
    };
    for mean in ["{}", r#"{"pooling_mode_mean_tokens": false}"#, r#"{"pooling_mode": ["mean"]}"#] {
        assert!(pooling(mean).steps().contains("\"mode\": \"mean\""), "{mean}");
    }
    let listed = pooling(r#"{"pooling_mode": ["mean", "cls"], "pooling_mode_max_tokens": true}"#).steps();
    assert!(listed.contains(r#"{"tensors": ["pooled_mean", "pooled_cls"]}"#), "{listed}");
    assert!(pooling(r#"{"pooling_mode": "max"}"#).steps().contains("\"mode\": \"max\""));
    check(
        pooling(r#"{"pooling_mode": ["x"]}"#),
        "p/config.json: 'pooling_mode' has an unknown mode: known are cls, max, mean, mean_sqrt_len_tokens, weightedmean, lasttoken",
    );
    check(
        pooling(r#"{"pooling_mode_mean_tokens": 1}"#),
        "p/config.json: 'pooling_mode_mean_tokens' must be true or false",
    );
    let instructed =
        pooling(r#"{"include_prompt": false}"#).with("config_sentence_transformers.json", r#"{"prompts": {"a": "b"}}"#);
    check(instructed, "p/config.json: 'include_prompt' is false: pooling without the tokens of a prompt is not served");
    let prompts = |text: &str| Files::of("BertModel", "").with("config_sentence_transformers.json", text);
    check(
        prompts(r#"{"prompts": {"a": 1}}"#),
        "config_sentence_transformers.json: 'prompts' must have a string for \"a\"",
    );
    check(prompts(r#"{"prompts": 1}"#), "config_sentence_transformers.json: 'prompts' must be an object");
    let many: Vec<_> = (0..257).map(|index| format!("\"{index}\": \"\"")).collect();
    check(
        prompts(&format!("{{\"prompts\": {{{}}}}}", many.join(","))),
        "config_sentence_transformers.json: 'prompts' has 257 prompts, more than the 256 that may be",
    );
}

#[test]
fn modules_are_refused_with_the_member() {
    let with = |rest: &[String]| {
        let files = Files::of("BertModel", "").with("modules.json", &modules(rest)).with("p/config.json", "{}");
        files.with("d/config.json", r#"{"in_features": 9, "out_features": 2}"#)
    };
    check(with(&[]).with("modules.json", "{}"), "modules.json: must be a list");
    check(with(&[]).with("modules.json", "[]"), "modules.json: must have 1 to 16 modules, but has 0");
    check(with(&[]).with("modules.json", "[1]"), "modules.json: module 0 must be an object");
    check(with(&[]).with("modules.json", "[{}]"), "modules.json: module 0: 'type' must be a string");
    check(
        with(&[module("Normalize", "")]),
        "modules.json: the module behind the network must be Pooling: vectors of tokens are not served",
    );
    check(
        with(&[module("Pooling", "p"), module("Pooling", "p")]),
        "modules.json: there may be one module Pooling, and behind it Dense and Normalize",
    );
    check(with(&[module("Pooling", "q")]), "q/config.json: the folder has no such file");
    let dense = || with(&[module("Pooling", "p"), module("Dense", "d")]);
    check(dense(), "d/config.json: 'in_features' is 9, but the vector before it has 8 numbers");
    check(dense().with("d/config.json", "{}"), "d/config.json: 'in_features' or 'out_features' is missing");
    let fits = r#"{"in_features": 8, "out_features": 2, "activation_function": "torch.X"}"#;
    check(
        dense().with("d/config.json", fits),
        "d/config.json: 'activation_function' is \"torch.X\": known are Identity, Tanh, ReLU and Sigmoid of torch",
    );
    let residual = r#"{"in_features": 8, "out_features": 2, "use_residual": true}"#;
    check(dense().with("d/config.json", residual), "d/config.json: 'use_residual' is true, which is not served");
    let of_tokens = r#"{"in_features": 8, "out_features": 2, "module_input_name": "token_embeddings"}"#;
    check(
        dense().with("d/config.json", of_tokens),
        "d/config.json: 'module_input_name' is \"token_embeddings\": known is sentence_embedding",
    );
    let small = Files::of("BertModel", "").with("sentence_bert_config.json", r#"{"do_lower_case": true}"#);
    check(
        small.clone(),
        "sentence_bert_config.json: 'do_lower_case' is true, but that of tokenizer_config.json is not: small letters are the \
         tokenizer's work",
    );
    assert!(small.with("tokenizer_config.json", r#"{"do_lower_case": true}"#).steps().contains("tokenize"));
    let fits = r#"{"in_features": 8, "out_features": 2}"#;
    assert!(
        dense().with("d/config.json", fits).fault().starts_with("d/model.safetensors: the folder has no such file: ")
    );
}

#[test]
fn sparse_pooling_is_read_or_refused_with_the_member() {
    let splade = |config: &str| {
        let modules = format!("[{},{}]", module("MLMTransformer", ""), module("SpladePooling", "p"));
        let files = Files::of("BertForMaskedLM", "").with("modules.json", &modules).with("p/config.json", config);
        files.derive("input_ids", &[("logits", &[-1, -1, 30])]).map_or_else(|error| error, |derived| derived.steps)
    };
    assert!(splade(r#"{"pooling_strategy": "sum"}"#).contains("\"mode\": \"splade_sum\""));
    assert_eq!(splade(r#"{"pooling_strategy": "x"}"#), "p/config.json: 'pooling_strategy' is \"x\": max or sum");
    assert_eq!(
        splade(r#"{"activation_function": "x"}"#),
        "p/config.json: 'activation_function' is \"x\": known is relu"
    );
}

#[test]
fn classifiers_have_the_functions_of_the_pipeline() {
    let function = |class: &str, members: &str, scores: i64| {
        let derived = Files::of(class, members).derive("input_ids", &[("logits", &[-1, scores])]);
        match derived {
            Ok(derived) => {
                let (_, rest) = derived.steps.split_once("\"activation\": \"").unwrap();
                format!("{} {}", derived.task.name(), rest.split('"').next().unwrap())
            }
            Err(error) => error,
        }
    };
    let class = "BertForSequenceClassification";
    assert_eq!(function(class, "", 3), "text classification softmax");
    assert_eq!(function(class, r#", "problem_type": "multi_label_classification""#, 3), "text classification sigmoid");
    assert_eq!(function(class, r#", "problem_type": "regression""#, 3), "text classification none");
    assert_eq!(function(class, r#", "problem_type": "regression", "num_labels": 1"#, 1), "text classification none");
    assert_eq!(function(class, r#", "num_labels": 1"#, 1), "reranking sigmoid");
    assert_eq!(
        function(class, r#", "num_labels": 1, "sentence_transformers": {"activation_fn": "torch.nn.Identity"}"#, 1),
        "reranking none"
    );
    // As releases from 5 save cross encoders.
    let modules = r#"[{"type": "sentence_transformers.base.modules.transformer.Transformer", "path": ""}]"#;
    let saved = |file: &str, text: &str| {
        let files = Files::of("BertModel", r#", "num_labels": 1"#).with("modules.json", modules).with(file, text);
        files.derive("input_ids", &[("logits", &[-1, 1])]).map_or_else(|error| error, |derived| derived.steps)
    };
    let own = r#"{"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.linear.Identity"}"#;
    assert!(saved("config_sentence_transformers.json", own).contains("\"activation\": \"none\""));
    let task = saved("sentence_bert_config.json", r#"{"transformer_task": "sequence-classification"}"#);
    assert!(task.contains("\"activation\": \"sigmoid\""), "{task}");
    let other = function(class, r#", "num_labels": 1, "sbert_ce_default_activation_function": "torch.X""#, 1);
    assert_eq!(other, "config.json: 'activation_fn' is \"torch.X\": known are Sigmoid and Identity of torch");
    let other = function(class, r#", "problem_type": "x""#, 3);
    assert_eq!(
        other,
        "config.json: 'problem_type' is \"x\": must be single_label_classification, multi_label_classification or regression"
    );
    let many = function(class, "", 2000);
    assert_eq!(many, "config.json: 'id2label' is missing: it has the names of the classes");
    let none = function(class, r#", "id2label": {}"#, 3);
    assert_eq!(none, "config.json: 'id2label' must have 1 to 65536 labels, but has 0");
}

#[test]
fn a_config_of_transformers_is_told_from_one_of_this_server() {
    assert!(is_hub_config(br#"{"architectures": ["A"]}"#) && is_hub_config(br#"{"model_type": "bert"}"#));
    for other in [&b"{\"backend\": \"onnxruntime\"}"[..], b"{}", b"[]", b"{", b"\xff"] {
        assert!(!is_hub_config(other));
    }
}

#[test]
fn an_answer_has_its_place_in_the_context() {
    let files = |config: &str| {
        Files::of("BertForQuestionAnswering", r#", "max_position_embeddings": 512"#)
            .with("tokenizer_config.json", config)
    };
    let logits: [(&str, &[i64]); 2] = [("start_logits", &[-1, -1]), ("end_logits", &[-1, -1])];
    let derived = files("{}").derive("input_ids attention_mask", &logits).unwrap();
    assert_eq!(derived.task.name(), "question answering");
    for part in [
        r#""inputs": {"text": "question", "pair": "context"}"#,
        r#""max_length": 384, "truncation": "only_second", "stride": 128"#,
        r#""window_of": "window_of""#,
        r#""starts": "start_logits", "ends": "end_logits""#,
    ] {
        assert!(derived.steps.contains(part), "{part}: {}", derived.steps);
    }
    assert!(derived.config.contains("output { name: \"start\" data_type: TYPE_INT64"), "{}", derived.config);
    let left = files(r#"{"padding_side": "left"}"#).derive("input_ids", &logits).unwrap_err();
    assert!(left.starts_with("tokenizer_config.json: 'padding_side' is \"left\""), "{left}");
    let one = files("{}").derive("input_ids", &logits[..1]).unwrap_err();
    assert!(one.contains("it has no output of 2 dimensions that can be end_logits"), "{one}");
}

#[test]
fn networks_for_entailment_take_labels() {
    let derive = |members: &str, scores: i64| {
        Files::of("BartForSequenceClassification", members).derive("input_ids", &[("logits", &[-1, scores])])
    };
    let classes = |labels: &str| {
        let derived = derive(&format!(", \"id2label\": {labels}"), -1).unwrap();
        let found =
            derived.steps.split_once("\"entailment\": ").map(|(_, rest)| rest.split('}').next().unwrap().to_owned());
        format!("{}: {}", derived.task.name(), found.unwrap_or_default())
    };
    let zero = "zero-shot classification";
    let mnli = r#"{"0": "contradiction", "1": "neutral", "2": "entailment"}"#;
    assert_eq!(classes(mnli), format!("{zero}: 2, \"contradiction\": 0"));
    assert_eq!(classes(r#"{"0": "ENTAILMENT", "1": "not_entailment"}"#), format!("{zero}: 0, \"contradiction\": 1"));
    assert_eq!(classes(r#"{"0": "a", "1": "b"}"#), "text classification: ");
    let derived = derive(&format!(", \"id2label\": {mnli}"), 3).unwrap();
    assert!(derived.config.contains("max_batch_size: 0\n"), "{}", derived.config);
    let optional = "input { name: \"multi_label\" data_type: TYPE_BOOL dims: [ 1 ] optional: true }";
    assert!(derived.config.contains(optional), "{}", derived.config);
    let error = derive(&format!(", \"id2label\": {mnli}"), 2).unwrap_err();
    assert_eq!(error, "config.json: 'id2label' has 3 labels, but model.onnx gives 2 scores");
    let error = derive(r#", "id2label": {"x": "entailment", "1": "b"}"#, 2).unwrap_err();
    assert_eq!(error, "config.json: 'id2label' must have the indices of its labels as names");
    // A cross encoder scores pairs.
    let files = Files::of("BertForSequenceClassification", &format!(", \"id2label\": {mnli}"));
    let cross = files.with("config_sentence_transformers.json", r#"{"model_type": "CrossEncoder"}"#);
    let derived = cross.derive("input_ids", &[("logits", &[-1, 3])]).unwrap();
    assert_eq!(derived.task.name(), "text classification");
}

#[test]
fn pipelines_of_pylate_have_a_vector_of_each_token() {
    let files = |settings: &str| {
        let modules = r#"[{"type": "sentence_transformers.models.Transformer", "path": ""},
            {"type": "pylate.models.Dense.Dense", "path": "1_Dense"}]"#;
        Files::of("BertModel", r#", "max_position_embeddings": 512"#)
            .with("modules.json", modules)
            .with("config_sentence_transformers.json", settings)
            .with("tokenizer_config.json", r#"{"mask_token": {"content": "[MASK]"}}"#)
            .with(
                "1_Dense/config.json",
                r#"{"in_features": 8, "out_features": 4, "activation_function": "torch.nn.Identity"}"#,
            )
            .with("1_Dense/model.safetensors", "")
    };
    let states: [(&str, &[i64]); 1] = [("last_hidden_state", &[-1, -1, 8])];
    let derived = files("{}").derive("input_ids attention_mask", &states).unwrap();
    assert_eq!(derived.task.name(), "late-interaction text embedding");
    for part in [
        r#""max_length": 180"#,
        r#""prompts": {"query": "[Q] ", "document": "[D] "}"#,
        r#""expansion": {"prompt": "query", "length": 32, "token": "[MASK]", "is_seen": false}"#,
        r##""skip_tokens": ["!", "\"", "#", "$""##,
        r#"{"step": "normalize", "input": "vector_0", "output": "normal"}"#,
        r#"{"step": "token_vectors", "inputs": {"states": "normal", "keep": "keep"}"#,
    ] {
        assert!(derived.steps.contains(part), "{part}: {}", derived.steps);
    }
    assert!(
        derived.config.contains("output { name: \"vectors\" data_type: TYPE_FP32 dims: [ -1, 4 ] }"),
        "{}",
        derived.config
    );
    let own = r#"{"query_length": 40, "document_length": 300, "do_query_expansion": false, "skiplist_words": [], "query_prefix": "Q"}"#;
    let steps = files(own).derive("input_ids", &states).unwrap().steps;
    for part in [r#""max_length": 300"#, r#""query": "Q""#, r#""expansion": {"prompt": "query", "length": 40}"#] {
        assert!(steps.contains(part), "{part}: {steps}");
    }
    assert!(!steps.contains("skip_tokens"), "{steps}");
    let check = |files: Files, want: &str| {
        let error = files.derive("input_ids", &states).unwrap_err();
        assert!(error.contains(want), "{error}");
    };
    let settings = "config_sentence_transformers.json: ";
    check(files(r#"{"skiplist_words": [1]}"#), &format!("{settings}'skiplist_words' must be a list of strings"));
    let many = vec!["\"a\""; 1025].join(",");
    check(files(&format!("{{\"skiplist_words\": [{many}]}}")), "must be a list of at most 1024 strings");
    check(files(r#"{"query_length": 0}"#), &format!("{settings}'query_length' must be at least 1"));
    check(files(r#"{"query_length": 200}"#), &format!("{settings}'query_length' is 200, more than the 180 tokens"));
    check(files("{}").with("tokenizer_config.json", "{}"), "tokenizer_config.json: 'mask_token' is missing");
    check(
        files("{}").with("1_Dense/config.json", "{}"),
        "1_Dense/config.json: 'in_features' or 'out_features' is missing",
    );
    let pooled = r#"[{"type": "a.Transformer", "path": ""}, {"type": "pylate.models.Dense.Dense", "path": "1_Dense"},
        {"type": "a.Pooling", "path": "p"}]"#;
    check(
        files("{}").with("modules.json", pooled),
        "modules.json: only Dense and Normalize may be in a pipeline of pylate",
    );
}
