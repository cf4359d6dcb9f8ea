//! The Python module that the wheel has beside the program: a server for tests and notebooks, and servers that Ray
//! Serve places. The checks are in `tests/packages/module.py` and `tests/packages/ray_module.py`; `release/check` runs
//! the first by an installed wheel, and `.ci/run ray` has Ray itself.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::support::folder::Folder;
use crate::support::skipped::skip_unless_ci;

#[test]
fn a_test_or_notebook_has_a_server_that_goes_with_it() {
    run("module.py", 12);
}

#[test]
fn a_replica_of_ray_serve_is_a_server_that_clients_find() {
    run("ray_module.py", 16);
}

/// Runs a program of `tests/packages` on this checkout's module: it prints `checks` lines, one for each check that
/// holds.
fn run(program: &str, checks: usize) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    if Command::new("python3").arg("--version").output().is_err() {
        return skip_unless_ci("no python3");
    }
    // As `pip install --target` lays it out.
    let site = Folder::new("python-module");
    symlink(root.join("python/deuteron"), site.path().join("deuteron")).expect("the folder is ours");
    fs::create_dir(site.path().join("bin")).expect("the folder is ours");
    symlink(env!("CARGO_BIN_EXE_deuteron"), site.path().join("bin/deuteron")).expect("the folder is ours");
    let output = Command::new("python3")
        .arg("-B")
        .arg(root.join("tests/packages").join(program))
        .arg(root.join("examples/models"))
        .env("PYTHONPATH", site.path())
        .output()
        .expect("the interpreter starts");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}{errors}");
    assert_eq!(text.lines().filter(|line| line.starts_with("ok ")).count(), checks, "{text}");
}
