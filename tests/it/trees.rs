//! Tree models of XGBoost, LightGBM and Treelite, served: from a file, from a repository without a configuration, and with
//! the configurations that Triton's FIL backend takes. `DEUTERON_TESTS=models` trains models of each kind at random and
//! holds their answers to the libraries' own, bit by bit.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::folder::Folder;
use crate::support::http;
use crate::support::python::Environment;
use crate::support::server::Server;
use crate::support::skipped::is_asked_for;

/// A model that the repository keeps, with rows and their answers beside it.
pub fn kept(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trees/models").join(file)
}

fn numbers(text: &str) -> Vec<f32> {
    text.split(',').map(|number| number.parse().unwrap()).collect()
}

/// The rows of a kept model and their answers.
pub fn asked(file: &str) -> (Vec<f32>, Vec<f32>) {
    let text = fs::read_to_string(kept(file).with_extension("csv")).unwrap();
    let lines: Vec<_> = text.lines().map(|line| line.split_once('=').unwrap()).collect();
    let all = |part: fn(&(&str, &str)) -> String| lines.iter().flat_map(|line| numbers(&part(line))).collect();
    (all(|(row, _)| (*row).to_owned()), all(|(_, answer)| (*answer).to_owned()))
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// A model's answer to rows.
pub fn answer(server: &Server, model: &str, rows: &[f32], count: usize) -> Vec<f32> {
    let (width, size) = (rows.len() / count, rows.len() * 4);
    let head = format!(
        r#"{{"inputs":[{{"name":"input__0","shape":[{count},{width}],"datatype":"FP32","parameters":{{"binary_data_size":{size}}}}}],"parameters":{{"binary_data_output":true}}}}"#
    );
    let response = http::exchange(server.http(), &http::infer_request(model, &head, &bytes(rows))).unwrap();
    assert_eq!(response.status, 200, "{model}: {}", String::from_utf8_lossy(&response.body));
    let head = response.header("inference-header-content-length").unwrap().parse().unwrap();
    response.body[head..].as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

/// Returns true if two answers have the same bits. Zeros of either sign are equal, and so are NaNs.
fn is_same(got: &[f32], want: &[f32]) -> bool {
    let same =
        |(got, want): (&f32, &f32)| got.to_bits() == want.to_bits() || got == want || (got.is_nan() && want.is_nan());
    got.len() == want.len() && got.iter().zip(want).all(same)
}

fn check_kept(server: &Server, model: &str, file: &str) {
    let (rows, want) = asked(file);
    let got = answer(server, model, &rows, 20);
    assert!(is_same(&got, &want), "{model}: {got:?} {want:?}");
}

/// Puts a kept model into a repository.
fn add(folder: &Folder, model: &str, file: &str, name: &str, config: Option<&str>) {
    let version = folder.path().join(model).join("1");
    fs::create_dir_all(&version).unwrap();
    fs::copy(kept(file), version.join(name)).unwrap();
    if let Some(config) = config {
        fs::write(folder.path().join(model).join("config.pbtxt"), config).unwrap();
    }
}

#[test]
fn tree_models_are_served_without_a_configuration_and_inline() {
    let folder = Folder::new("trees");
    let models = [
        ("json", "xgboost-tweedie.json", "xgboost.json"),
        ("ubj", "xgboost-classes.ubj", "xgboost.ubj"),
        ("old_name", "xgboost-classes.ubj", "xgboost.model"),
        ("old_format", "xgboost-binary.model", "xgboost.model"),
        ("without_mark", "xgboost-unmarked.model", "model.bst"),
        ("text", "lightgbm-each.txt", "model.txt"),
        ("checkpoint", "sklearn-forest.tl", "checkpoint.tl"),
        ("plain", "xgboost-logistic.json", "model.json"),
    ];
    models.iter().for_each(|(model, file, name)| add(&folder, model, file, name, None));
    let server = Server::deuteron(folder.path(), &[]);
    for (model, file, _) in models {
        check_kept(&server, model, file);
        let config = http::get(server.http(), &format!("/v2/models/{model}/config")).unwrap();
        let config = String::from_utf8(config.body).unwrap();
        let has = |text: &str| assert!(config.contains(text), "{text}: {config}");
        has(r#""backend":"fil""#);
        has(r#""max_batch_size":256"#);
        has(r#""placement":{"string_value":"inline"}"#);
        has(r#""is_classifier":{"string_value":"false"}"#);
    }
}

#[test]
fn a_file_is_a_model_by_itself() {
    for file in ["xgboost-dart.json", "xgboost-targets.ubj", "lightgbm-sqrt.txt", "sklearn-boosted.tl"] {
        let server = Server::deuteron(&kept(file), &["--model-name=m"]);
        check_kept(&server, "m", file);
    }
}

#[test]
fn a_configuration_of_tritons_fil_backend_is_served_as_it_is() {
    let folder = Folder::new("trees");
    let config = |kind: &str, features: usize, outputs: usize, parameters: &str| {
        let parameters = parameters.split_whitespace().map(|pair| pair.split_once('=').unwrap());
        let parameters: String = parameters
            .map(|(key, value)| format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}\n"))
            .collect();
        format!(
            "backend: 'fil' max_batch_size: 1048576 dynamic_batching {{}} instance_group [ {{ kind: {kind} }} ]
             input [ {{ name: 'input__0' data_type: TYPE_FP32 dims: [ {features} ] }} ]
             output [ {{ name: 'output__0' data_type: TYPE_FP32 dims: [ {outputs} ] }} ]
             {parameters}"
        )
    };
    let (rows, scores) = asked("xgboost-logistic.json");
    let features = rows.len() / 20;
    let both = config(
        "KIND_GPU",
        features,
        2,
        "model_type=xgboost_json predict_proba=true output_class=true threshold=0.5 storage_type=AUTO algo=ALGO_AUTO",
    );
    add(&folder, "both", "xgboost-logistic.json", "xgboost.json", Some(&both));
    let class = config("KIND_AUTO", features, 1, "model_type=xgboost_json is_classifier=true threshold=0.3");
    add(&folder, "class", "xgboost-logistic.json", "xgboost.json", Some(&class));
    let (class_rows, class_scores) = asked("lightgbm-classes.txt");
    let (class_features, classes) = (class_rows.len() / 20, class_scores.len() / 20);
    let best = config("KIND_CPU", class_features, 1, "model_type=lightgbm is_classifier=true threshold=0.5");
    add(&folder, "best", "lightgbm-classes.txt", "model.txt", Some(&best));
    let server = Server::deuteron(folder.path(), &[]);
    let want: Vec<f32> = scores.iter().flat_map(|score| [1.0 - score, *score]).collect();
    assert!(is_same(&answer(&server, "both", &rows, 20), &want));
    let want: Vec<f32> = scores.iter().map(|score| if *score > 0.3 { 1.0 } else { 0.0 }).collect();
    assert!(is_same(&answer(&server, "class", &rows, 20), &want));
    let largest = |scores: &[f32]| {
        let most = scores.iter().copied().fold(0.0, f32::max);
        scores.iter().position(|score| *score == most).unwrap() as f32
    };
    let want: Vec<f32> = class_scores.chunks(classes).map(largest).collect();
    assert!(is_same(&answer(&server, "best", &class_rows, 20), &want));
}

/// Models of each library for each round.
const ROUNDS: usize = 100;

#[test]
fn models_trained_at_random_answer_as_their_libraries_do_to_the_last_bit() {
    if !is_asked_for("models") {
        return;
    }
    for (name, requirements, script) in
        [("trees", "requirements.txt", "forests.py"), ("trees-binary", "requirements-binary.txt", "binary.py")]
    {
        let requirements = format!("tests/trees/{requirements}");
        let Some(environment) = Environment::create(name, &requirements, &["python3"]) else { return };
        check_trained(&environment, script);
    }
}

/// Trains models by a script and compares the server's answers with those beside them.
fn check_trained(environment: &Environment, script: &str) {
    let folder = Folder::new("trees");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trees").join(script);
    // Other models each run.
    let seed = std::env::var("DEUTERON_SEED").unwrap_or_else(|_| (std::process::id() % 10_000).to_string());
    let made = folder.path().join("made");
    let output = Command::new(environment.python())
        .args(["-W", "ignore"])
        .args([&script, &made])
        .args([&seed, &ROUNDS.to_string()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let repository = folder.path().join("models");
    let mut names = Vec::new();
    for file in made.read_dir().unwrap().map(|entry| entry.unwrap().path()) {
        let (stem, end) = (file.file_stem().unwrap().to_str().unwrap(), file.extension().unwrap().to_str().unwrap());
        let name = match end {
            "json" if stem != "made" => "xgboost.json",
            "ubj" => "xgboost.ubj",
            "txt" => "model.txt",
            "tl" => "checkpoint.tl",
            "model" => "xgboost.model",
            _ => continue,
        };
        let version = repository.join(format!("{stem}-{end}")).join("1");
        fs::create_dir_all(&version).unwrap();
        fs::copy(&file, version.join(name)).unwrap();
        names.push((format!("{stem}-{end}"), file));
    }
    assert!(names.len() >= ROUNDS, "{} models", names.len());
    let server = Server::deuteron(&repository, &[]);
    let read = |file: PathBuf| -> Vec<f32> {
        fs::read(file).unwrap().as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
    };
    for (name, file) in names {
        let (rows, want) = (read(file.with_extension("rows")), read(file.with_extension("want")));
        let got = answer(&server, &name, &rows, 97);
        assert!(is_same(&got, &want), "seed {seed}, {name}: {got:?} {want:?}");
    }
}
