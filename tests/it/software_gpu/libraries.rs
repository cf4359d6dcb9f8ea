//! The libraries of the software GPU, compiled when a test first wants them, and copies that lack a function.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::{env, fs};

use crate::support::folder::Folder;
use crate::support::skipped::skip_unless_ci;

/// The folder that holds them. `None` without a compiler: the test is then skipped, with a message. In CI (`CI=true`)
/// that is a failure.
pub fn built() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOLDER.get_or_init(build).as_deref()
}

fn build() -> Option<PathBuf> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("software-gpu");
    let (stamp, sources) = (folder.join("sources"), sources(&tests));
    if fs::read(&stamp).is_ok_and(|held| held == sources) {
        return Some(folder);
    }
    if Command::new("g++").arg("--version").output().is_err() {
        skip_unless_ci("no g++ to compile the software GPU with");
        return None;
    }
    let output = Command::new(tests.join("software_gpu/build")).arg(&folder).output().expect("bash is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::write(stamp, sources).expect("the folder is ours");
    Some(folder)
}

/// The contents of all their sources.
fn sources(tests: &Path) -> Vec<u8> {
    let mut all = Vec::new();
    for folder in [tests.join("software_gpu"), tests.join("kernels"), tests.with_file_name("kernels")] {
        let mut files: Vec<_> = fs::read_dir(folder)
            .expect("the folder is ours")
            .map(|entry| entry.expect("it is listed").path())
            .collect();
        files.retain(|path| {
            let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or("build");
            ["build", "cpp", "cu", "cuh", "h"].contains(&extension)
        });
        files.sort();
        for path in files {
            all.extend(fs::read(path).expect("the file is ours"));
        }
    }
    all
}

/// Copies of them, in which one library lacks a function, or is missing.
pub fn without(library: &str, function: Option<&str>) -> Option<Folder> {
    let (from, folder) = (built()?, Folder::new("software-gpu"));
    for name in ["libcuda.so.1", "libcublasLt.so.13", "libnvidia-ml.so.1"] {
        let mut bytes = fs::read(from.join(name)).expect("it was compiled");
        match function {
            None if name == library => continue,
            Some(function) if name == library => rename(&mut bytes, function),
            _ => {}
        }
        fs::write(folder.path().join(name), bytes).expect("the folder is ours");
    }
    std::os::unix::fs::symlink("libcuda.so.1", folder.path().join("libcuda.so")).expect("the folder is ours");
    Some(folder)
}

/// Gives a function another name of the same length in the table of names: it is not found under the old one, since
/// names are compared, nor under the new one, whose hash it does not have.
fn rename(bytes: &mut [u8], function: &str) {
    let name = [b"\0", function.as_bytes(), b"\0"].concat();
    let places: Vec<usize> = (0..bytes.len() - name.len()).filter(|at| bytes[*at..].starts_with(&name)).collect();
    assert!(!places.is_empty(), "the library has no '{function}'");
    for place in places {
        bytes[place + 1] = b'X';
    }
}

/// The functions of CUDA's driver that the library has.
pub fn functions() -> Vec<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/software_gpu/cuda.cpp");
    let text = fs::read_to_string(source).expect("the file is ours");
    let names = text.lines().filter_map(|line| line.strip_prefix("EXPORTED CUresult CUDAAPI ")?.split_once('('));
    names.map(|(name, _)| name.to_owned()).collect()
}
