//! A real `tritonserver` 2.51 (CPU, Python backend) out of the `nvidia-pytriton` wheel, in its virtual environment.
//! It is the oracle of the differential test and nothing else: nothing of it is shipped or linked.

use std::{
    env, fs, iter,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use super::{
    python::Environment,
    server::{Ports, Server},
    skipped::is_asked_for,
};

/// The Pythons for which the wheel has a stub and its numpy (1, not 2) has a wheel.
const PYTHONS: &[&str] = &["python3.12", "python3.11", "python3.10", "python3.9"];

/// The flag with which models complete their configurations; without it they do not.
pub const COMPLETES: &str = "--strict-model-config=false";

/// Starts it on a model repository whose models are written for the Python backend. `None` without Python, or if
/// `DEUTERON_TESTS` does not ask for it.
pub fn start(repository: &Path) -> Option<Server> {
    start_with(repository, &[])
}

/// The same with more flags.
pub fn start_with(repository: &Path, flags: &[&str]) -> Option<Server> {
    let (command, ports) = command(repository, flags)?;
    Some(Server::start(command, ports))
}

/// The command that starts it so.
pub fn command(repository: &Path, flags: &[&str]) -> Option<(Command, Ports)> {
    if !is_asked_for("triton") {
        return None;
    }
    let environment = Environment::create("oracle", "tests/oracle/requirements.txt", PYTHONS)?;
    let root = environment.packages().join("pytriton/tritonserver");
    // Concurrent tests of one program share the environment.
    PREPARED.get_or_init(|| prepare(&environment, &root));
    let ports = Ports::free();
    let mut command = Command::new(root.join("bin/tritonserver"));
    command.envs(variables(&environment));
    let path = |flag: &str, value: PathBuf| format!("{flag}={}", value.display());
    command.arg(path("--model-repository", repository.to_path_buf()));
    command.arg(path("--backend-directory", root.join("backends")));
    command.arg(path("--cache-directory", root.join("caches")));
    if !flags.contains(&COMPLETES) {
        command.arg("--disable-auto-complete-config");
    }
    command.args(flags);
    for (flag, port) in [("http", ports.http), ("grpc", ports.grpc), ("metrics", ports.metrics)] {
        command.arg(format!("--{flag}-address=127.0.0.1")).arg(format!("--{flag}-port={port}"));
    }
    Some((command, ports))
}

/// The environment variables that the Python backend's own process needs, and the directory that has the backend.
/// `None` as [`start`] says.
pub fn python_backend() -> Option<(Vec<(&'static str, std::ffi::OsString)>, PathBuf)> {
    if !is_asked_for("triton") {
        return None;
    }
    let environment = Environment::create("oracle", "tests/oracle/requirements.txt", PYTHONS)?;
    let root = environment.packages().join("pytriton/tritonserver");
    PREPARED.get_or_init(|| prepare(&environment, &root));
    Some((variables(&environment), root.join("backends")))
}

/// The stub process loads libpython from where the interpreter has it, and takes the first `python3` of the PATH for its
/// own home.
fn variables(environment: &Environment) -> Vec<(&'static str, std::ffi::OsString)> {
    let libraries = environment.evaluate("import sysconfig; print(sysconfig.get_config_var('LIBDIR'))");
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = iter::once(environment.path().join("bin")).chain(env::split_paths(&path));
    let path = env::join_paths(folders).expect("the target folder has no colon in its name");
    vec![("LD_LIBRARY_PATH", libraries.into()), ("PATH", path)]
}

static PREPARED: OnceLock<()> = OnceLock::new();

/// Puts the stub for this Python, and numpy, where the Python backend looks for them.
fn prepare(environment: &Environment, root: &Path) {
    let backend = root.join("backends/python");
    let version = environment.evaluate("import sys; print('%d.%d' % sys.version_info[:2])");
    let stub = root.join("python_backend_stubs").join(version).join("triton_python_backend_stub");
    let place = backend.join("triton_python_backend_stub");
    // A running stub cannot be overwritten.
    if !place.exists() {
        fs::copy(&stub, place).unwrap_or_else(|error| panic!("no stub for this Python, {}: {error}", stub.display()));
    }
    for name in ["numpy", "numpy.libs"] {
        let link = backend.join(name);
        if !link.exists() {
            symlink(environment.packages().join(name), link).expect("the environment is ours");
        }
    }
}
