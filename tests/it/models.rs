//! Real models, served as they are, without any configuration, on both ONNX engines: their answers are those of ONNX
//! Runtime in Python. `docs/models.md` has a row for each. `cargo test` asks those of the packages that all tests
//! share; `DEUTERON_TESTS=models` makes an environment of its own and asks all, with `UPDATE_EXPECT=1` writing the
//! table anew.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::folder::Folder;
use crate::support::http;
use crate::support::onnx::{FLOAT, INT64, Onnx};
use crate::support::python::Environment;
use crate::support::repository;
use crate::support::server::Server;
use crate::support::skipped::is_asked_for;

/// The first line of the table.
const HEADER: &str = "| model | from | ONNX Runtime | embedded engine |\n|---|---|---|---|\n";

/// Results by model: its source, and the result on each engine.
type Results = BTreeMap<String, (String, [String; 2])>;

#[test]
fn real_models_answer_as_onnx_runtime_does() {
    let Some(environment) = Environment::shared() else { return };
    let results = ask_both(&environment, &["--light"]);
    assert!(results.len() >= 14, "{results:?}");
    hold_to_table(&results);
}

#[test]
fn the_table_of_models_is_what_the_engines_do() {
    if !is_asked_for("models") {
        return;
    }
    let list = "tests/models/requirements.txt";
    let Some(environment) = Environment::create("table", list, &["python3"]) else { return };
    let results = ask_both(&environment, &[]);
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        let row = |(name, (source, [fast, embedded])): (&String, &(String, [String; 2]))| {
            let cell = |text: &str| text.replace('|', "\\|");
            format!("| {name} | {source} | {} | {} |\n", cell(fast), cell(embedded))
        };
        let text = fs::read_to_string(document()).expect("it is in the repository");
        let (before, _) = text.split_once(HEADER).expect("it has the table");
        let rows: String = results.iter().map(row).collect();
        fs::write(document(), format!("{before}{HEADER}{rows}")).expect("it can be written");
    }
    assert!(results.keys().eq(read_table().keys()), "docs/models.md has other models: {results:?}");
    hold_to_table(&results);
}

/// Checks that no model answers wrongly, and that each runs, or fails, as its row in the table says.
fn hold_to_table(results: &Results) {
    let table = read_table();
    for (name, (_, results)) in results {
        // The last bits depend on the processor.
        let outcomes = |results: &[String; 2]| results.each_ref().map(|result| outcome(result).to_owned());
        let came = outcomes(results);
        assert!(!came.contains(&"WRONG".to_owned()), "{name}: {results:?}");
        let written = table.get(name).map(|(_, results)| outcomes(results));
        assert_eq!(
            written,
            Some(came),
            "UPDATE_EXPECT=1 .ci/run models writes docs/models.md anew; {name}: {results:?}"
        );
    }
}

#[test]
fn shapes_that_a_file_declares_wrongly_do_no_harm_and_a_model_that_never_runs_is_not_ready() {
    let Some(environment) = Environment::shared() else { return };
    let one = 1_i64.to_le_bytes();
    let rows_of_one = Onnx::default().node("Relu", &["x"], &["y"], &[]);
    let rows_of_one = rows_of_one.input("x", FLOAT, &[-1, 2]).output("y", FLOAT, &[1, 2]).into_bytes();
    let flat = Onnx::default().constant("any", INT64, &[1], &(-1_i64).to_le_bytes());
    let flat = flat.node("Reshape", &["x", "any"], &["y"], &[]);
    let flat = flat.input("x", FLOAT, &[-1, 2]).output("y", FLOAT, &[-1, 2]).into_bytes();
    // A row more than the input has.
    let broken = Onnx::default().constant("one", INT64, &[1], &one).node("Shape", &["x"], &["s"], &[]);
    let broken = broken.node("Add", &["s", "one"], &["t"], &[]).node("Reshape", &["x", "t"], &["y"], &[]);
    let broken = broken.input("x", FLOAT, &[-1, 2]).output("y", FLOAT, &[-1, 3]).into_bytes();
    let stated = "output { name: 'y' data_type: TYPE_FP32 dims: [ 1, 2 ] }";
    let repository = Folder::new("shapes");
    let models =
        [("rows", "", &rows_of_one), ("stated", stated, &rows_of_one), ("flat", "", &flat), ("broken", "", &broken)];
    for (name, config, file) in models {
        repository::add(repository.path(), name, config, Some(file));
    }
    for engine in engines(&environment) {
        let server = Server::deuteron(repository.path(), &[&[&*engine], &OTHERS[..]].concat());
        let ask = |model: &str| {
            let body =
                r#"{"inputs": [{"name": "x", "datatype": "FP32", "shape": [3, 2], "data": [1, 2, 3, 4, 5, 6]}]}"#;
            let answer = http::post(server.http(), &format!("/v2/models/{model}/infer"), body.as_bytes()).unwrap();
            (answer.status, String::from_utf8_lossy(&answer.body).into_owned())
        };
        let check = |model: &str, status: u16, want: &str| {
            let (came, text) = ask(model);
            assert!(came == status && text.contains(want), "{engine} {model}: {came} {text}\n{}", server.log());
        };
        check("rows", 200, r#""shape":[3,2],"data":[1.0,2.0,3.0,4.0,5.0,6.0]"#);
        check("flat", 200, r#""shape":[6],"data":[1.0,2.0,3.0,4.0,5.0,6.0]"#);
        check("stated", 500, "output 'y' of model 'stated' must have shape [1,2] but came with [3,2]");
        check("broken", 404, "has no available versions");
        let index = http::post(server.http(), "/v2/repository/index", b"").unwrap();
        let index = String::from_utf8_lossy(&index.body).into_owned();
        assert!(index.contains("it can never run, since a row of zeros fails: model 'broken': "), "{engine}: {index}");
        let log = server.log();
        for (model, warning) in [
            ("rows", "declares output 'y' as [1,2], but it is [512,2] for a row of zeros; clients get the shape"),
            ("flat", "declares output 'y' as [-1,2], but it is [2] for a row of zeros; clients get the shape"),
        ] {
            let warning = format!("the file of model '{model}' {warning}");
            assert_eq!(log.matches(&warning).count(), 1, "{engine} {model}: {log}");
        }
    }
}

/// Flags for a server with models that cannot be loaded.
const OTHERS: [&str; 2] = ["--exit-on-error=false", "--strict-readiness=false"];

/// The flags that choose ONNX Runtime, and the embedded engine.
fn engines(environment: &Environment) -> [String; 2] {
    let library = format!("--backend-config=onnxruntime,library={}", library(environment).display());
    [library, "--backend-config=onnxruntime,engine=embedded".to_owned()]
}

/// Asks both engines for all models that the environment has.
fn ask_both(environment: &Environment, flags: &[&str]) -> Results {
    let repository = Folder::new("models");
    let path = repository.path().display().to_string();
    check(environment, &[&["write", path.as_str()], flags].concat());
    let mut results = Results::new();
    for (index, engine) in engines(environment).iter().enumerate() {
        let server = Server::deuteron(repository.path(), &[&[&**engine], &OTHERS[..]].concat());
        if index == 0 {
            let config = http::get(server.http(), "/v2/models/magika/config").expect("the server answers");
            let config = String::from_utf8_lossy(&config.body).into_owned();
            assert!(config.contains("\"max_batch_size\":4") && config.contains("\"dims\":[2048]"), "{config}");
        }
        for line in check(environment, &["check", &server.http().to_string(), &path]).lines() {
            let [name, source, result] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let (_, both) = results.entry(name.to_owned()).or_insert((source.to_owned(), Default::default()));
            both[index] = result.to_owned();
        }
    }
    results
}

/// Runs the checking program, and returns its output.
fn check(environment: &Environment, arguments: &[&str]) -> String {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/check.py");
    let output = Command::new(environment.python()).arg(program).args(arguments).output();
    let output = output.expect("the interpreter starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// The library of the environment's ONNX Runtime.
fn library(environment: &Environment) -> PathBuf {
    let folder = environment.packages().join("onnxruntime/capi");
    let is_library = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("libonnxruntime.so");
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).find(is_library).expect("the wheel has it")
}

/// `runs`, or the first word of a result: `refused`, `fails`, `WRONG`.
fn outcome(result: &str) -> &str {
    match result.split(':').next() {
        Some("exact" | "equal") => "runs",
        Some(word) => word,
        None => "",
    }
}

fn document() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/models.md")
}

fn read_table() -> Results {
    let text = fs::read_to_string(document()).expect("it is in the repository");
    let (_, rows) = text.split_once(HEADER).expect("it has the table");
    let row = |line: &str| {
        let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [name, source, fast, embedded] = cells[..] else { panic!("{line}") };
        (name.to_owned(), (source.to_owned(), [fast.to_owned(), embedded.to_owned()]))
    };
    rows.lines().map(row).collect()
}
