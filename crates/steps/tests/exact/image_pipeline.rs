//! Whole pipelines: against those that public files write, bit by bit, and against the image processors of
//! transformers.

use std::fs::File;
use std::io::{BufReader, Read as _};
use std::path::Path;
use std::process::Command;

use base::tensor::Tensor;
use steps::StepList;
use steps::tensors::of_strings;

use crate::support::folder::Folder;
use crate::support::python::Environment;
use crate::{is_whole, played};

#[test]
fn pipelines_of_public_files_are_equal() {
    let (rounds, count) = if is_whole() { (5, "1000") } else { (1, "200") };
    let (mut cases, mut bytes, mut different) = (0, 0, Vec::new());
    for round in 0..rounds {
        let Some(folder) = played("image_pipeline.py", &["case", count, &round.to_string()]) else { return };
        each_case(folder.path(), |file, settings, want| {
            let members = settings.trim().trim_start_matches('{').trim_end_matches('}');
            let got = run(file, members, &|_, _| Err("no file".to_owned()));
            cases += 1;
            bytes += want.len();
            if got.contents[..] != *want {
                different.push(settings.to_owned());
            }
        });
    }
    println!("pipelines: {cases} cases, {bytes} bytes compared, {} cases different", different.len());
    assert!(different.is_empty(), "{} of {cases}: {:?}", different.len(), different.first());
}

#[test]
fn processors_of_transformers_are_equal() {
    if !is_whole() {
        return;
    }
    let requirements = "crates/steps/tests/exact/image_pipeline_requirements.txt";
    let Some(environment) = Environment::create("transformers", requirements, &["python3"]) else { return };
    let (mut cases, mut numbers, mut largest) = (0, 0, 0.0_f32);
    for round in 0..4 {
        let folder = Folder::new("image_preset");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/exact/image_pipeline.py");
        let mut command = Command::new(environment.python());
        command.arg("-B").arg(script).arg(folder.path()).args(["preset", "250", &round.to_string()]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        each_case(folder.path(), |file, settings, want| {
            let read = |_: &str, _| Ok(settings.as_bytes().to_vec());
            let got = run(file, r#""preprocessor": "preprocessor_config.json""#, &read);
            assert_eq!(got.contents.len(), want.len(), "{settings}");
            cases += 1;
            let single = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes);
            for (got, want) in got.contents.as_chunks().0.iter().zip(want.as_chunks().0) {
                numbers += 1;
                largest = largest.max((single(got) - single(want)).abs());
            }
        });
    }
    println!("transformers: {cases} cases, {numbers} numbers compared, largest difference {largest}");
    assert!(largest <= 1e-6, "{largest}");
}

/// Runs the step on a file.
fn run(file: &[u8], members: &str, read_file: &steps::ReadStepFile<'_>) -> Tensor {
    let text = format!(r#"{{"steps": [{{"step": "image", "input": "file", "output": "pixels", {members}}}]}}"#);
    let list = StepList::read(&text, read_file).unwrap();
    let mut got = list.run(|_| Some(of_strings(&[1], [file])), &["pixels"]).unwrap();
    got.remove(0).unwrap()
}

/// Calls back with the file, the parameters and the numbers of each case.
fn each_case(folder: &Path, mut each: impl FnMut(&[u8], &str, &[u8])) {
    let mut cases = BufReader::new(File::open(folder.join("cases")).unwrap());
    let mut part = || {
        let mut size = [0; 4];
        cases.read_exact(&mut size).ok()?;
        let mut bytes = vec![0; u32::from_le_bytes(size) as usize];
        cases.read_exact(&mut bytes).unwrap();
        Some(bytes)
    };
    while let Some(file) = part() {
        let (settings, want) = (part().unwrap(), part().unwrap());
        each(&file, std::str::from_utf8(&settings).unwrap(), &want);
    }
}
