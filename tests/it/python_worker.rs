//! The program that runs in the process of a Python model, against a server in Python that speaks the protocol of
//! `docs/architecture/python.md`. The tests are in `tests/python/worker_test.py`.

use std::path::Path;
use std::process::Command;

use crate::support::python::Environment;

#[test]
fn the_process_of_a_python_model_does_what_triton_does() {
    let Some(environment) = Environment::shared() else { return };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/worker_test.py");
    let output = Command::new(environment.python()).arg(script).output().expect("the interpreter starts");
    let text = String::from_utf8_lossy(&output.stderr);
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{text}");
    let ran = text.split("Ran ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u32>().ok());
    assert!(ran.is_some_and(|ran| ran > 100), "{text}");
}
