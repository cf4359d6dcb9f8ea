//! The table of configurations in `tests/configs/`, good and bad: each with the effective configuration, or the
//! refusal. `UPDATE_EXPECT=1` writes the results into the table, for a person to read before they are kept.
//!
//! A case begins with `## ` and its subject; lines `key: value` may say the `directory` [m], the `files` of the first
//! version's directory [model.onnx], the signature of the ONNX `model` (`x FP32 [-1x16] > y FP32 [-1x4]`, `?` where the
//! file leaves a shape open), the `notation` [pbtxt], `complete: no` for `--disable-auto-complete-config`, the files of
//! `backends` that the directory of backends has (`x/model.py`), the numbers of the `gpus` or the reason for having
//! none [not known], and `auto: cpu` where the model cannot run on them. Between two lines `---` stands the text;
//! behind them the effective configuration as `config.pbtxt`, or `error: ` and the refusal.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use deuteron::error::Error;
use deuteron::model::config::write;
use deuteron::model::config::{CompletionRules, ConfigDraft, ConfigSurroundings, GpuSupport};
use deuteron::model::labels::Labels;
use deuteron::model::onnx::{OnnxSignature, OnnxTensor};
use deuteron::model::parse::text::Notation;
use deuteron::tensor::Datatype;
use deuteron::wire::proto::inference::ModelConfig;
use prost::Message;

/// One case as the table has it.
pub struct Case {
    pub title: String,
    pub keys: Vec<(String, String)>,
    pub text: String,
    pub want: String,
}

impl Case {
    fn read(text: &str) -> Self {
        let mut lines = text.lines();
        let title = lines.next().unwrap().to_owned();
        let keys = lines.by_ref().take_while(|line| *line != "---").map(|line| {
            let (key, value) = line.split_once(": ").unwrap_or_else(|| panic!("{title}: {line:?} is no key"));
            (key.to_owned(), value.to_owned())
        });
        let keys = keys.collect();
        let mut read = || {
            let lines: Vec<_> = lines.by_ref().take_while(|line| *line != "---").collect();
            lines.iter().fold(String::new(), |text, line| text + line + "\n")
        };
        let (text, want) = (read(), read());
        Self { title, keys, text, want: want.trim_end().to_owned() }
    }

    pub fn write(&self, got: &str) -> String {
        let mut text = format!("## {}\n", self.title);
        self.keys.iter().for_each(|(key, value)| writeln!(text, "{key}: {value}").unwrap());
        format!("{text}---\n{}---\n{got}\n\n", self.text)
    }

    pub fn key(&self, name: &str) -> Option<&str> {
        self.keys.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The GPUs that the case has: numbers, or the reason for having none.
    fn gpus(&self) -> GpuSupport {
        let text = self.key("gpus").unwrap_or_default();
        let devices: Vec<u32> = text.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let why_absent = if devices.is_empty() { text.to_owned() } else { String::new() };
        GpuSupport { devices, why_absent, takes_auto: self.key("auto") != Some("cpu"), ..GpuSupport::default() }
    }

    fn has_backend_file(&self, backend: &str, file: &str) -> bool {
        let file = format!("{backend}/{file}");
        self.key("backends").unwrap_or_default().split_whitespace().any(|have| have == file)
    }

    /// The effective configuration, or the refusal.
    fn outcome(&self) -> String {
        match self.effective() {
            Ok(config) => write::encode(&config, Notation::Text).trim_end().to_owned(),
            Err(error) => format!("error: {error}"),
        }
    }

    fn effective(&self) -> Result<ModelConfig, Error> {
        let notation = match self.key("notation") {
            None | Some("pbtxt") => Notation::Text,
            Some("json") => Notation::Json,
            Some("toml") => Notation::Toml,
            Some(other) => panic!("{}: notation {other}", self.title),
        };
        let files = self.key("files").unwrap_or("model.onnx").split_whitespace().map(str::to_owned);
        let files: Vec<_> = files.filter(|file| file != "none").collect();
        let is_on = self.key("complete") != Some("no");
        // The last end of line is the table's.
        let text = self.text.strip_suffix('\n').unwrap_or(&self.text);
        let directory = self.key("directory").unwrap_or("m");
        let has_backend_file = |backend: &str, file: &str| self.has_backend_file(backend, file);
        let files = is_on.then_some(files.as_slice());
        let surroundings = ConfigSurroundings {
            files,
            has_backend_file: &has_backend_file,
            forced_libraries: &[],
            is_renamed: false,
            has_steps: false,
            has_onnx_between_steps: false,
            allows_agents: false,
        };
        let draft = ConfigDraft::read(directory, notation, text.as_bytes(), surroundings)?;
        let signature = self.key("model").map(signature);
        let labels = draft.label_filenames().into_iter().map(|name| (name.to_owned(), Arc::new(Labels::default())));
        let labels: BTreeMap<_, _> = labels.collect();
        let completion = CompletionRules { is_on, ..CompletionRules::default() };
        let spec = draft.with_gpus(self.gpus()).complete(signature.as_ref(), &labels, completion)?;
        Ok(ModelConfig::decode(&*spec.config_message).unwrap())
    }
}

/// `x FP32 [-1x16], … > y INT8 ?`.
pub fn signature(text: &str) -> OnnxSignature {
    let tensor = |text: &str| {
        let words: Vec<_> = text.split_whitespace().collect();
        let shape = words[2].trim_matches(['[', ']']).split('x').filter(|size| !size.is_empty());
        let shape = (words[2] != "?").then(|| shape.map(|size| size.parse().unwrap()).collect());
        OnnxTensor { name: words[0].to_owned(), datatype: Datatype::from_name(words[1]).unwrap(), shape }
    };
    let tensors = |text: &str| text.split(',').filter(|text| !text.trim().is_empty()).map(tensor).collect();
    let (inputs, outputs) = text.split_once('>').unwrap();
    OnnxSignature { inputs: tensors(inputs), outputs: tensors(outputs), ..OnnxSignature::default() }
}

fn files() -> Vec<PathBuf> {
    texts_in("")
}

/// The files with cases in a folder of `tests/configs`.
pub fn texts_in(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/configs").join(folder);
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = paths.filter(|path| path.is_file()).collect();
    files.sort();
    files
}

pub fn cases(file: &Path) -> Vec<Case> {
    let text = fs::read_to_string(file).unwrap();
    text.split("## ").skip(1).map(Case::read).collect()
}

#[test]
fn each_configuration_is_served_as_the_table_says_or_refused_with_its_text() {
    let is_update = std::env::var_os("UPDATE_EXPECT").is_some();
    let (mut count, mut differing) = (0, Vec::new());
    for file in files() {
        let mut written = String::new();
        for case in cases(&file) {
            let got = case.outcome();
            count += 1;
            written.push_str(&case.write(&got));
            if got != case.want && !is_update {
                differing.push(format!("{}: {}\nwant {}\ngot  {got}", file.display(), case.title, case.want));
            }
        }
        if is_update {
            fs::write(&file, written.trim_end().to_owned() + "\n").unwrap();
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n\n"));
    assert!(count >= 120, "the table has {count} configurations");
}

#[test]
fn what_is_served_is_a_fixed_point_in_every_notation() {
    let mut count = 0;
    for case in files().iter().flat_map(|file| cases(file)) {
        let Ok(config) = case.effective() else { continue };
        let text = write::encode(&config, Notation::Text);
        for notation in Notation::ALL {
            let written = write::encode(&config, notation);
            let has_backend_file = |backend: &str, file: &str| case.has_backend_file(backend, file);
            let surroundings =
                ConfigSurroundings { has_backend_file: &has_backend_file, ..ConfigSurroundings::of_files(Some(&[])) };
            let draft = ConfigDraft::read(&config.name, notation, written.as_bytes(), surroundings).unwrap();
            let labels = draft.label_filenames().into_iter().map(|name| (name.to_owned(), Arc::default()));
            let labels: BTreeMap<_, _> = labels.collect();
            let again = draft.with_gpus(case.gpus()).complete(None, &labels, CompletionRules::default()).unwrap();
            let again = ModelConfig::decode(&*again.config_message).unwrap();
            assert_eq!(write::encode(&again, Notation::Text), text, "{} as {notation:?}\n{written}", case.title);
        }
        count += 1;
    }
    assert!(count > 30, "{count} configurations are served");
}
