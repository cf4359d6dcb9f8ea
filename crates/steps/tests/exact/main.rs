//! Steps against the libraries whose results they promise: numpy, Pillow, OpenCV and tokenizers from PyPI. `cargo test` plays a
//! short form of each comparison; `.ci/run steps` plays all of it.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test waits and fails by panicking"
)]

mod audio;
mod cases;
mod detect;
mod image_files;
mod image_pipeline;
mod image_resize;
mod numbers;
mod ocr;
mod text;
mod text_files;
mod texts;
mod torch_functions;

#[allow(dead_code, reason = "shared with the other test programs")]
#[path = "../../../../tests/support"]
mod support {
    pub mod folder;
    pub mod python;
    pub mod skipped;
    pub mod time_limit;
}

use std::path::PathBuf;
use std::process::Command;

use crate::support::folder::Folder;
use crate::support::python::Environment;

/// Runs a script of this folder in the environment of the libraries, with a folder for its files and `arguments`. Returns the folder;
/// `None` if no environment can be made.
pub fn played(script: &str, arguments: &[&str]) -> Option<Folder> {
    played_in("steps", "requirements.txt", script, arguments)
}

/// The same in an environment of its own, with the packages of another list of this folder.
pub fn played_in(name: &str, requirements: &str, script: &str, arguments: &[&str]) -> Option<Folder> {
    let requirements = format!("crates/steps/tests/exact/{requirements}");
    let environment = Environment::create(name, &requirements, &["python3"])?;
    let folder = Folder::new(script);
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/exact").join(script);
    let mut command = Command::new(environment.python());
    command.arg("-B").arg(script).arg(folder.path()).args(arguments);
    let output = command.output().expect("the interpreter is there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    print!("{}", String::from_utf8_lossy(&output.stdout));
    Some(folder)
}

/// Returns true for the whole comparison and not its short form: DEUTERON_TESTS has `steps`.
pub fn is_whole() -> bool {
    support::skipped::is_asked_for("steps")
}
