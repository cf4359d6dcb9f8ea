//! Graphs against the answers of transformers: small ones, whose weights are a formula and whose answers were recorded
//! (`tests/golden`, by `graphs.py golden`), run by the embedded engine. `.ci/run graphs` makes larger ones of every
//! family, head and setting, and runs them on both engines.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "a test may read its environment")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use rten::{Model, ModelOptions};
use rten_tensor::Tensor;
use rten_tensor::prelude::*;
use serde_json::{Map, Value, json};

use transformer::{ModelHead, Operators, SafeTensors, TransformerConfig, indexed_files, onnx_from_safetensors};

/// Rounding alone, of values of about 1 in FP32.
const DIFFERENCE_MAX: f32 = 1e-5;
const COSINE_MIN: f64 = 0.999_999;

/// An input or output as the files have it.
fn tensor<T>(value: &Value, element: impl Fn(&Value) -> T) -> Tensor<T> {
    let shape: Vec<usize> =
        value["shape"].as_array().unwrap().iter().map(|size| size.as_u64().unwrap() as usize).collect();
    let values: Vec<T> = value["values"].as_array().unwrap().iter().map(element).collect();
    Tensor::from_data(&shape[..], values)
}

/// Runs a graph on the embedded engine, and compares all that it answers. Returns the largest difference.
fn compare(name: &str, model: &Model, inputs: &Value, outputs: &Value) -> f32 {
    let inputs = inputs.as_object().unwrap().iter().map(|(name, value)| {
        let tensor: Tensor<i32> = tensor(value, |number| number.as_i64().unwrap() as i32);
        (model.node_id(name).unwrap(), tensor.into())
    });
    let names: Vec<&str> = model.output_ids().iter().map(|id| model.node_info(*id).unwrap().name().unwrap()).collect();
    let answers = model.run(inputs.collect(), model.output_ids(), None).unwrap();
    let mut worst = 0.0_f32;
    for (output, answer) in names.iter().zip(answers) {
        let want: Tensor<f32> = tensor(&outputs[output], |number| number.as_f64().unwrap() as f32);
        let got: Tensor<f32> = answer.try_into().unwrap();
        assert_eq!(got.shape(), want.shape(), "{name} {output}");
        let pairs: Vec<(f32, f32)> = got.iter().copied().zip(want.iter().copied()).collect();
        let difference = pairs.iter().map(|(got, want)| (got - want).abs()).fold(0.0, f32::max);
        let sum = |of: &dyn Fn(f64, f64) -> f64| -> f64 {
            pairs.iter().map(|(got, want)| of(f64::from(*got), f64::from(*want))).sum()
        };
        let cosine = sum(&|got, want| got * want) / (sum(&|got, _| got * got) * sum(&|_, want| want * want)).sqrt();
        assert!(!got.iter().any(|value| value.is_nan()), "{name} {output}");
        assert!(difference <= DIFFERENCE_MAX && cosine >= COSINE_MIN, "{name} {output}: {difference}, cosine {cosine}");
        worst = worst.max(difference);
    }
    worst
}

fn load(onnx: Vec<u8>) -> Model {
    ModelOptions::with_all_ops().load(onnx).unwrap()
}

/// The values that `graphs.py` gives a tensor.
fn formula(name: &str, count: usize) -> Vec<f32> {
    let hash = |state: u64, byte: u8| (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let mut state = name.bytes().fold(0xcbf2_9ce4_8422_2325, hash);
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        0.5 * ((state >> 40) as f32 - 8_388_608.0) / 8_388_608.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// A safetensors file of tensors whose values are the formula's. Those of the encoder get a prefix.
fn safetensors(tensors: &Map<String, Value>, prefix: &str, own: &Map<String, Value>) -> Vec<u8> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, shape) in tensors {
        let count = shape.as_array().unwrap().iter().map(|size| size.as_u64().unwrap() as usize).product();
        let begin = data.len();
        data.extend(formula(name, count).into_iter().flat_map(f32::to_le_bytes));
        let prefix = if own.contains_key(name) { "" } else { prefix };
        header.insert(
            format!("{prefix}{name}"),
            json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()]}),
        );
    }
    let header = Value::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()
}

/// A recorded case: the text of its configuration, its weights, inputs and outputs.
struct Golden {
    name: String,
    config: Value,
    tensors: Map<String, Value>,
    /// Those of the head.
    own: Map<String, Value>,
    prefix: String,
    inputs: Value,
    outputs: Value,
}

fn golden(family: &str) -> Vec<Golden> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(family).with_extension("json");
    let heads: BTreeMap<String, Value> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let base = &heads["Model"];
    let merged = |head: &Value, field: &str| {
        let mut all = base[field].as_object().unwrap().clone();
        all.extend(head[field].as_object().unwrap().clone());
        all
    };
    let case = |(head, value): (&String, &Value)| Golden {
        name: format!("{family} {head}"),
        config: merged(value, "config").into(),
        tensors: merged(value, "tensors"),
        own: value["tensors"].as_object().unwrap().clone(),
        prefix: value["prefix"].as_str().unwrap().to_owned(),
        inputs: base["inputs"].clone(),
        outputs: value["outputs"].clone(),
    };
    heads.iter().map(case).collect()
}

impl Golden {
    fn write(&self, operators: Operators) -> Result<Vec<u8>, base::error::Error> {
        let config = TransformerConfig::parse(self.config.to_string().as_bytes())?;
        let file = safetensors(&self.tensors, &self.prefix, &self.own);
        onnx_from_safetensors(&config, &SafeTensors::read(&[("model.safetensors", &file)])?, operators)
    }
}

const FAMILIES: [&str; 9] = [
    "bert",
    "deberta_v2",
    "deberta_v3",
    "distilbert",
    "electra",
    "modernbert",
    "modernbert_biased",
    "mpnet",
    "roberta",
];

#[test]
fn graphs_of_every_family_and_head_answer_as_transformers() {
    for case in FAMILIES.iter().flat_map(|family| golden(family)) {
        for operators in [Operators::Standard, Operators::OnnxRuntime] {
            let onnx = case.write(operators).unwrap();
            compare(&format!("{} {operators:?}", case.name), &load(onnx), &case.inputs, &case.outputs);
        }
    }
}

fn case(family: &str, head: &str) -> Golden {
    golden(family).into_iter().find(|case| case.name == format!("{family} {head}")).unwrap()
}

#[test]
fn a_tensor_that_does_not_fit_is_refused_with_file_name_and_shapes() {
    let check = |family: &str, head: &str, change: &dyn Fn(&mut Golden), want: &str| {
        let mut case = case(family, head);
        change(&mut case);
        let error = case.write(Operators::Standard).unwrap_err();
        assert_eq!(error.text(), want, "{family} {head}");
    };
    const DENSE: &str = "encoder.layer.0.output.dense.weight";
    check(
        "bert",
        "Model",
        &|case| drop(case.tensors.remove(DENSE)),
        "model.safetensors: tensor 'encoder.layer.0.output.dense.weight' is missing; expected shape [8, 6]",
    );
    check(
        "bert",
        "ForMaskedLM",
        &|case| case.tensors[DENSE] = json!([6, 8]),
        "model.safetensors: tensor 'bert.encoder.layer.0.output.dense.weight' has shape [6, 8], expected [8, 6] by config.json",
    );
    check(
        "bert",
        "Model",
        &|case| case.config["num_hidden_layers"] = json!(2),
        "model.safetensors: tensor 'encoder.layer.1.attention.self.query.weight' is missing; expected shape [8, 8]",
    );
    check(
        "modernbert",
        "Model",
        &|case| drop(case.tensors.insert("layers.2.mlp.Wi.weight".to_owned(), json!([1]))),
        "model.safetensors: tensor 'layers.2.mlp.Wi.weight' of shape [1] is not part of the model that config.json describes",
    );
    // Under both names.
    check(
        "roberta",
        "ForTokenClassification",
        &|case| {
            case.own.insert(DENSE.to_owned(), json!([8, 6]));
            case.tensors.insert(format!("roberta.{DENSE}"), json!([8, 6]));
            case.own.insert(format!("roberta.{DENSE}"), json!([8, 6]));
        },
        "model.safetensors: tensor 'encoder.layer.0.output.dense.weight' of shape [8, 6] is not part of the model that \
         config.json describes",
    );
    check(
        "distilbert",
        "ForMaskedLM",
        &|case| {
            drop(
                case.own
                    .insert("vocab_projector.weight".to_owned(), json!([7, 8]))
                    .or(case.tensors.insert("vocab_projector.weight".to_owned(), json!([7, 8]))),
            )
        },
        "tensor 'vocab_projector.weight' differs from 'embeddings.word_embeddings.weight', and by 'tie_word_embeddings' in \
         config.json they are one",
    );
    check(
        "electra",
        "ForMaskedLM",
        &|case| case.config["tie_word_embeddings"] = json!(false),
        "model.safetensors: tensor 'generator_lm_head.weight' is missing; expected shape [7, 4]",
    );
}

#[test]
fn a_head_that_the_family_lacks_is_refused() {
    let case = case("distilbert", "Model");
    let file = safetensors(&case.tensors, "", &case.own);
    let config = TransformerConfig::parse(case.config.to_string().as_bytes()).unwrap().with_head(ModelHead::Pooler);
    let weights = SafeTensors::read(&[("model.safetensors", &file)]).unwrap();
    let error = onnx_from_safetensors(&config, &weights, Operators::Standard).unwrap_err();
    assert_eq!(error.text(), "a Distilbert model has no pooler");
}

/// A file whose tensors have a datatype, and only zeros. Its memory is never touched.
fn zeros(tensors: &Map<String, Value>, datatype: &str, element_size: usize) -> Vec<u8> {
    let (mut header, mut size) = (Map::new(), 0);
    for (name, shape) in tensors {
        let count: usize = shape.as_array().unwrap().iter().map(|size| size.as_u64().unwrap() as usize).product();
        let end = size + count * element_size;
        header.insert(name.clone(), json!({"dtype": datatype, "shape": shape, "data_offsets": [size, end]}));
        size = end;
    }
    let header = Value::Object(header).to_string();
    let mut file = vec![0; 8 + header.len() + size];
    file[..8].copy_from_slice(&(header.len() as u64).to_le_bytes());
    file[8..8 + header.len()].copy_from_slice(header.as_bytes());
    file
}

#[test]
fn a_model_beyond_the_limit_of_protobuf_is_refused_before_it_is_written() {
    let mut case = case("bert", "Model");
    let larger = |size: &Value| {
        json!(match size.as_u64().unwrap() {
            7 => 4 << 20,
            8 => 128,
            other => other,
        })
    };
    for shape in case.tensors.values_mut() {
        *shape = shape.as_array().unwrap().iter().map(larger).collect();
    }
    (case.config["vocab_size"], case.config["hidden_size"]) = (json!(4 << 20), json!(128));
    let config = TransformerConfig::parse(case.config.to_string().as_bytes()).unwrap();
    let write = |datatype: &str, element_size| {
        let file = zeros(&case.tensors, datatype, element_size);
        let weights = SafeTensors::read(&[("model.safetensors", &file)]).unwrap();
        onnx_from_safetensors(&config, &weights, Operators::Standard).unwrap_err().text().to_owned()
    };
    let text = write("F16", 2);
    assert!(text.starts_with("the model needs 2147") && text.contains("has at most 2147483647; export it"), "{text}");
    let text = write("I8", 1);
    assert!(text.ends_with("has a datatype of integers or F64, expected F32, F16 or BF16"), "{text}");
}

#[test]
fn names_of_old_checkpoints_and_tensors_of_other_heads_are_taken() {
    let mut case = case("bert", "ForSequenceClassification");
    let expected = case.write(Operators::Standard).unwrap();
    for (name, shape) in [("embeddings.position_ids", json!([1, 12])), ("cls.predictions.bias", json!([7]))] {
        case.tensors.insert(name.to_owned(), shape);
    }
    assert!(case.write(Operators::Standard).unwrap() == expected, "they change nothing");
    // Only the formula's values differ, which follow from names.
    let old =
        |name: &String| name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta");
    case.tensors = case.tensors.iter().map(|(name, shape)| (old(name), shape.clone())).collect();
    assert_eq!(case.write(Operators::Standard).unwrap().len(), expected.len());
}

#[test]
fn camembert_and_xlm_roberta_are_roberta_under_other_names() {
    for case in golden("roberta") {
        let expected = case.write(Operators::Standard).unwrap();
        for name in ["camembert", "xlm-roberta"] {
            let mut other =
                Golden { config: case.config.clone(), tensors: case.tensors.clone(), ..golden("roberta").remove(0) };
            other.config["model_type"] = name.into();
            (other.own, other.prefix) = (case.own.clone(), case.prefix.clone());
            assert!(other.write(Operators::Standard).unwrap() == expected, "{} as {name}", case.name);
        }
    }
}

/// The graphs of `graphs.py make` in a folder.
fn folders(path: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<_> = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    folders
}

fn write(folder: &Path, operators: Operators) -> Vec<u8> {
    let mut config = TransformerConfig::parse(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
    let names = match std::fs::read(folder.join("model.safetensors.index.json")) {
        Ok(index) => indexed_files(&index).unwrap(),
        Err(_) => vec!["model.safetensors".to_owned()],
    };
    let files: Vec<_> = names.iter().map(|name| std::fs::read(folder.join(name)).unwrap()).collect();
    let files: Vec<_> = names.iter().map(String::as_str).zip(files.iter().map(Vec::as_slice)).collect();
    let weights = SafeTensors::read(&files).unwrap();
    // The first pooler was trained with some families alone.
    let pooled = config.clone().with_head(ModelHead::Pooler);
    if config.head() == ModelHead::Encoder && onnx_from_safetensors(&pooled, &weights, operators).is_ok() {
        config = pooled;
    }
    onnx_from_safetensors(&config, &weights, operators).unwrap()
}

#[test]
fn real_transformers_answer_as_both_engines() {
    if !std::env::var("DEUTERON_TESTS").is_ok_and(|tests| tests.contains("graphs")) {
        return;
    }
    let python = std::env::var("GRAPHS_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/graphs.py");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("graphs");
    let run = |verb: &str| {
        let status = Command::new(&python).arg(&script).arg(verb).arg(&folder).status().unwrap();
        assert!(status.success(), "graphs.py {verb}: {status}");
    };
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    run("make");
    let (mut worst, mut count) = (0.0_f32, 0);
    for case in folders(&folder) {
        let standard = write(&case, Operators::Standard);
        std::fs::write(case.join("standard.onnx"), &standard).unwrap();
        std::fs::write(case.join("onnxruntime.onnx"), write(&case, Operators::OnnxRuntime)).unwrap();
        let model = load(standard);
        let cases: Vec<Value> = serde_json::from_slice(&std::fs::read(case.join("cases.json")).unwrap()).unwrap();
        for one in cases {
            worst = worst.max(compare(&case.display().to_string(), &model, &one["inputs"], &one["outputs"]));
            count += 1;
        }
    }
    println!("embedded engine: {count} batches, worst difference {worst:.2e}");
    run("check");
}
