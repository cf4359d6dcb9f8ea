//! `steps::suggest` on files of `tests/suggest`: each `NAME.py` has its configuration in the comments at its beginning, and its
//! proposal in `NAME.txt`. `UPDATE_EXPECT=1` rewrites the proposals.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test waits and fails by panicking"
)]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base::tensor::{Datatype, Shape, Tensor};
use steps::StepList;
use steps::limits::{SUGGEST_DEPTH_MAX, SUGGEST_NODES_MAX};
use steps::suggest::{SuggestModel, SuggestOther, SuggestTensor, Suggestion, TREE_SCRIPT, suggest};

#[allow(dead_code, reason = "shared with the other test programs")]
#[path = "../../../tests/support"]
mod support {
    pub mod folder;
    pub mod python;
    pub mod skipped;
    pub mod time_limit;
}

use crate::support::folder::Folder;
use crate::support::python::Environment;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suggest")
}

/// Reads a file of the folder `files`, which all models have beside them.
fn read_file(name: &str, _: usize) -> Result<Vec<u8>, String> {
    fs::read(folder().join("files").join(name)).map_err(|_| "no such file".to_owned())
}

/// The model `network` beside the others: rows of four numbers to three scores and a number.
fn find_other(name: &str) -> Result<SuggestOther, String> {
    let tensor = |name: &str, dims: &[i64]| SuggestTensor {
        name: name.to_owned(),
        datatype: Datatype::Fp32,
        dims: dims.to_vec(),
        reshape: None,
        is_optional: false,
    };
    match name {
        "network" => {
            let (inputs, outputs) = (vec![tensor("in", &[4])], vec![tensor("logits", &[3]), tensor("norm", &[1])]);
            Ok(SuggestOther { rows_max: 8, inputs, outputs })
        }
        _ => Err(format!("there is no model '{name}' beside this one")),
    }
}

/// Runs the script that prints a tree; the error is its last line.
fn tree(source: &[u8]) -> Result<String, String> {
    let limits = [SUGGEST_NODES_MAX, SUGGEST_DEPTH_MAX].map(|limit| limit.to_string());
    let mut command = Command::new("python3");
    command.args(["-I", "-S", "-W", "ignore", "-c", TREE_SCRIPT]).args(limits);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let source = source.to_vec();
    let writer = std::thread::spawn(move || input.write_all(&source));
    let output = child.wait_with_output().unwrap();
    let _ = writer.join();
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).unwrap()),
        false => Err(String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned()),
    }
}

/// The model that the comments at the beginning of a file describe.
fn model(source: &str) -> SuggestModel<'static> {
    let mut model = SuggestModel {
        name: "m",
        version: "1",
        rows_max: 0,
        inputs: Vec::new(),
        outputs: Vec::new(),
        parameters: BTreeMap::new(),
        read_file: &read_file,
        find_other: &find_other,
    };
    for line in source.lines().map_while(|line| line.strip_prefix("# ")) {
        let words: Vec<_> = line.split(' ').collect();
        let numbers = |words: &[&str]| words.iter().map(|dim| dim.parse().unwrap()).collect::<Vec<i64>>();
        let tensor = || {
            let (dims, reshape) = match words.iter().position(|word| *word == "reshape") {
                Some(place) => (&words[3..place], Some(numbers(&words[place + 1..]))),
                None => (&words[3..], None),
            };
            SuggestTensor {
                name: words[1].to_owned(),
                datatype: Datatype::from_name(words[2]).unwrap(),
                dims: numbers(dims.strip_suffix(&["optional"]).unwrap_or(dims)),
                reshape,
                is_optional: words.contains(&"optional"),
            }
        };
        match words[0] {
            "rows" => model.rows_max = words[1].parse().unwrap(),
            "input" => model.inputs.push(tensor()),
            "output" => model.outputs.push(tensor()),
            "parameter" => drop(model.parameters.insert(words[1].to_owned(), words[2..].join(" "))),
            _ => {}
        }
    }
    model
}

fn text(suggestion: &Suggestion) -> String {
    let title = if suggestion.is_complete() { "complete" } else { "not complete" };
    format!("{title}\n{}{}", suggestion.steps_json(), suggestion.report())
}

#[test]
fn files_as_people_write_them_have_their_steps_or_the_reason_that_they_have_none() {
    let is_update = std::env::var_os("UPDATE_EXPECT").is_some();
    let mut names: Vec<_> = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.retain(|path| path.extension().is_some_and(|extension| extension == "py") && !path.ends_with("play.py"));
    names.sort();
    assert!(names.len() >= 30, "{} files", names.len());
    let mut wrong = String::new();
    for path in names {
        let source = fs::read_to_string(&path).unwrap();
        let suggestion = suggest(&tree(source.as_bytes()).unwrap(), &model(&source)).unwrap();
        if suggestion.is_complete() {
            let list = StepList::read(&suggestion.steps_json(), &read_file);
            assert!(list.is_ok(), "{}: {:?}", path.display(), list.err());
        }
        let (got, want) = (text(&suggestion), path.with_extension("txt"));
        if is_update {
            fs::write(&want, got).unwrap();
        } else if fs::read_to_string(&want).unwrap_or_default() != got {
            wrong += &format!("{}:\n{got}\n", path.display());
        }
    }
    assert!(wrong.is_empty(), "other proposals than the files have:\n{wrong}");
}

struct Cases<'a> {
    rest: &'a [u8],
}

impl<'a> Cases<'a> {
    fn count(&mut self) -> usize {
        let (size, rest) = self.rest.split_first_chunk::<4>().unwrap();
        self.rest = rest;
        u32::from_le_bytes(*size) as usize
    }

    fn part(&mut self) -> &'a [u8] {
        let count = self.count();
        let (part, rest) = self.rest.split_at(count);
        self.rest = rest;
        part
    }

    fn tensors(&mut self) -> BTreeMap<String, Tensor> {
        let count = self.count();
        let tensor = |_| {
            let name = String::from_utf8(self.part().to_vec()).unwrap();
            let datatype = Datatype::from_name(std::str::from_utf8(self.part()).unwrap()).unwrap();
            let shape: Shape = self.part().as_chunks().0.iter().map(|size| i64::from_le_bytes(*size)).collect();
            (name, Tensor { datatype, shape, contents: self.part().to_vec().into() })
        };
        (0..count).map(tensor).collect()
    }
}

/// Returns true if two tensors are equal, floats within 1e-6 relative and absolute.
fn is_near(got: &Tensor, want: &Tensor, is_reshaped: bool, noise: f32) -> bool {
    // The server gives a `reshape` of the configuration back.
    if got.datatype != want.datatype || (got.shape != want.shape && !is_reshaped) {
        return false;
    }
    let near = |got: f32, want: f32| got == want || (got - want).abs() <= noise * want.abs().max(1.0);
    match got.datatype {
        Datatype::Fp32 => {
            let values = |tensor: &Tensor| {
                tensor.contents.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect::<Vec<_>>()
            };
            values(got).into_iter().zip(values(want)).all(|(got, want)| near(got, want))
        }
        Datatype::Bytes => {
            let texts = |tensor: &Tensor| {
                steps::tensors::strings("", tensor).unwrap().into_iter().map(<[u8]>::to_vec).collect::<Vec<_>>()
            };
            let json = |text: &[u8]| serde_json::from_slice::<serde_json::Value>(text);
            texts(got).iter().zip(texts(want)).all(|(got, want)| match (json(got), json(&want)) {
                (Ok(got), Ok(want)) => is_near_json(&got, &want),
                _ => *got == want,
            })
        }
        _ => got.contents == want.contents,
    }
}

/// The same for the numbers of a JSON text.
fn is_near_json(got: &serde_json::Value, want: &serde_json::Value) -> bool {
    use serde_json::Value;
    match (got, want) {
        (Value::Number(got), Value::Number(want)) => (got.as_f64().unwrap() - want.as_f64().unwrap()).abs() <= 1e-6,
        (Value::Array(got), Value::Array(want)) => {
            got.len() == want.len() && got.iter().zip(want).all(|(got, want)| is_near_json(got, want))
        }
        (Value::Object(got), Value::Object(want)) => {
            got.keys().eq(want.keys()) && got.values().zip(want.values()).all(|(got, want)| is_near_json(got, want))
        }
        _ => got == want,
    }
}

/// Proposals whose libraries are cheap to install, on the requests that `play.py` made, against the answers of their model.py.
#[test]
fn proposed_steps_give_the_answers_of_their_model_py() {
    play("steps", "requirements.txt", 21, |name| !name.starts_with("audio_") && !name.starts_with("infer_"));
}

#[test]
fn proposed_steps_of_sounds_give_the_answers_of_their_model_py() {
    play("steps-audio", "requirements-audio.txt", 3, |name| name.starts_with("audio_"));
}

/// Plays the files that an environment has the libraries of, at least `played_min` of those with these names.
fn play(environment: &str, requirements: &str, played_min: usize, is_meant: fn(&str) -> bool) {
    let requirements = format!("crates/steps/tests/exact/{requirements}");
    let Some(environment) = Environment::create(environment, &requirements, &["python3"]) else { return };
    let results = Folder::new("suggest");
    let mut names: Vec<_> =
        fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name.ends_with(".py") && name != "play.py" && !name.starts_with("refuse_") && is_meant(name));
    names.sort();
    let mut command = Command::new(environment.python());
    let output = command.arg("-B").arg(folder().join("play.py")).arg(results.path()).args(&names).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (mut played, mut wrong) = (0, String::new());
    for name in names {
        let Ok(cases) = fs::read(results.path().join(name.replace(".py", ".cases"))) else { continue };
        let source = fs::read_to_string(folder().join(&name)).unwrap();
        let suggestion = suggest(&tree(source.as_bytes()).unwrap(), &model(&source)).unwrap();
        let list = StepList::read(&suggestion.steps_json(), &read_file).unwrap();
        let mut cases = Cases { rest: &cases };
        played += 1;
        while !cases.rest.is_empty() {
            let (inputs, wanted) = (cases.tensors(), cases.tensors());
            let outputs: Vec<_> = wanted.keys().map(String::as_str).collect();
            match list.run(|name| inputs.get(name).cloned(), &outputs) {
                Err(error) => wrong += &format!("{name}: {error}\n"),
                Ok(got) => {
                    for ((output, want), got) in wanted.iter().zip(got) {
                        let got = got.unwrap();
                        // The filter banks of kaldi: as the proposal says, within 1e-3.
                        let noise = if name.contains("kaldi") || name.contains("fbank") { 1e-3 } else { 1e-6 };
                        if !is_near(&got, want, source.contains(" reshape"), noise) {
                            wrong += &format!(
                                "{name}: '{output}' is {:?} {:?}, but {:?} {:?} is expected\n",
                                got.shape, got.datatype, want.shape, want.datatype
                            );
                        }
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(played >= played_min, "{played} files were played: {}", String::from_utf8_lossy(&output.stdout));
}

/// A model with an execute of these lines, for FP32 `x` and `y` of four numbers.
fn execute(lines: &str) -> String {
    let body: Vec<_> = lines.lines().map(|line| format!("            {line}\n")).collect();
    format!(
        "# input x FP32 4\n# output y FP32 4\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n\n\
         class TritonPythonModel:\n    def execute(self, requests):\n        responses = []\n        for request in requests:\n            \
         x = pb_utils.get_input_tensor_by_name(request, \"x\").as_numpy()\n{}            \
         responses.append(pb_utils.InferenceResponse([pb_utils.Tensor(\"y\", y)]))\n        return responses\n",
        body.concat()
    )
}

fn proposed(source: &str) -> Suggestion {
    suggest(&tree(source.as_bytes()).unwrap(), &model(source)).unwrap()
}

/// Files that would run for ever, or need more memory than there is, are refused at a bound.
#[test]
fn hostile_files_are_refused_at_a_bound() {
    let check = |lines: &str, want: &str| {
        let report = proposed(&execute(lines)).report();
        assert!(report.contains(want), "{lines}\n{report}");
    };
    let nested = "the file is nested too deeply, or calls itself";
    check("f = lambda a: f(a)\ny = f(x)", nested);
    check("def f(a):\n    return f(a)\ny = f(x)", "calls are nested deeper than 8");
    check("class A:\n    b = 1\n    c = A\ny = x + 0", "");
    check("a = []\na.append(a)\ny = np.array(a)", "");
    check("a = 1\nfor i in range(200):\n    a = [a]\ny = np.array(a)", "lists are nested deeper than 16 levels");
    check("a = (1,)\nfor i in range(200):\n    a = (a, a)\ny = np.array(a)", "lists are nested deeper than 16 levels");
    check("a = [1]\nfor i in range(64):\n    a = a + a\ny = x + np.array(a)", "a list has more than 262144 elements");
    check("a = [1]\nfor i in range(64):\n    a += a\ny = x + np.array(a)", "");
    check("a = [0] * 1000000000\ny = x + np.array(a)", "a list has more than 262144 elements");
    check("a = 'x'\nfor i in range(64):\n    a = a + a\nwith open(a) as f:\n    y = x", "");
    let loops =
        (0..4).map(|level| format!("{}for i{level} in range(200):\n", "    ".repeat(level))).collect::<String>();
    check(&format!("y = x\n{loops}                y = y"), "the file has too much to go through");
    check(
        "y = x\nfor i in range(250):\n    for j in range(250):\n        y = y * 2 + 1",
        "the file makes more than 4096 tensors",
    );
    check("y = x\nfor i in range(200):\n    y = (y * 2)[[0, 1, 2, 3]]", "steps");
    check("c = x[0] > 1\nfor i in range(250):\n    c = c & (x[1] > i)\ny = x[c]", "");
    check("while True:\n    y = x", "the statement 'while' is not followed");
    check("y = 10 ** 400 * x", "");
}

/// Sources that Python's parser or the bounds of the tree refuse.
#[test]
fn sources_that_are_no_trees_are_refused_with_their_line() {
    let check = |source: &str, want: &str| assert_eq!(tree(source.as_bytes()).unwrap_err(), want);
    assert!(tree(b"x = 1\nx = = 2\n").unwrap_err().starts_with("line 2: "));
    assert!(tree(b"x = '\xff\xfe'\n").unwrap_err().contains("utf-8"));
    check(&"x = 1\n".repeat(SUGGEST_NODES_MAX), "it has more than 20000 expressions and statements");
    check(&format!("x = {}1{}", "-(".repeat(64), ")".repeat(64)), "line 1: it is nested deeper than 64 levels");
    assert!(tree(format!("x = {}1{}", "(".repeat(5000), ")".repeat(5000)).as_bytes()).is_err());
    assert!(tree(b"x = 1\0").is_err());
    assert!(tree(b"").is_ok());
}

/// Trees that the script does not print.
#[test]
fn malformed_trees_are_refused() {
    let source = execute("y = x");
    let model = model(&source);
    let check = |tree: &str, want: &str| {
        let error = suggest(tree, &model).unwrap_err();
        assert!(error.text().contains(want), "{tree}: {error}");
    };
    check("", "malformed");
    check("[]", "it is no object");
    check("{}", "\"nodes\" is no list");
    check("{\"nodes\": []}", "it must have 1 to 20000 nodes");
    check("{\"nodes\": [1]}", "node 0 is not as expected");
    check("{\"nodes\": [[\"Module\", 0, {\"body\": [0]}]]}", "node 0 is not as expected");
    check("{\"nodes\": [[\"Module\", -1, {}]]}", "node 0 is not as expected");
    check(
        &format!("{{\"nodes\": [{}]}}", vec!["[\"Pass\",1,{}]"; SUGGEST_NODES_MAX + 1].join(",")),
        "it must have 1 to 20000 nodes",
    );
    let deep: Vec<_> = (0..=SUGGEST_DEPTH_MAX)
        .map(|place| match place.checked_sub(1) {
            None => "[\"Pass\",1,{}]".to_owned(),
            Some(below) => format!("[\"Expr\",1,{{\"value\":{below}}}]"),
        })
        .collect();
    check(&format!("{{\"nodes\": [{}]}}", deep.join(",")), "it is deeper than 64 levels");
    check(&" ".repeat(steps::limits::SUGGEST_TREE_SIZE_MAX + 1), "it has more than 8388608 bytes");
    // A tree of nodes that no file has.
    let odd = r#"{"nodes": [["Name", 1, {"id": "x"}], ["Call", 1, {}], ["Expr", 1, {"value": 1}], ["Module", 0, {"body": [2, 2, 0]}]]}"#;
    assert!(!suggest(odd, &model).unwrap().is_complete());
}
