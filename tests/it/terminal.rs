//! A server at a terminal: the progress of loads, on a line that changes; errors and warnings in colour. Plain lines if
//! the output goes elsewhere.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::folder::Folder;
use crate::support::python::Environment;
use crate::support::skipped::skip_unless_ci;

/// A model that takes its time to load, several times what the line takes to change.
const SLOW: &str = "import time\n\nclass TritonPythonModel:\n    def initialize(self, args):\n        time.sleep(0.7)\n\n    \
                    def execute(self, requests):\n        return []\n";
const SLOW_CONFIG: &str = "backend: 'python'\ninput { name: 'X' data_type: TYPE_FP32 dims: 1 }\n\
                           output { name: 'Y' data_type: TYPE_FP32 dims: 1 }\ninstance_group { kind: KIND_CPU }\n";

/// Starts a server with two slow models and one that fails, waits until it is ready, ends it, and returns its output.
fn start_and_end(python: &Environment, is_terminal: bool, variables: &[(&str, &str)]) -> String {
    let folder = Folder::new("terminal");
    for name in ["slow_a", "slow_b"] {
        let version = folder.path().join("models").join(name).join("1");
        fs::create_dir_all(&version).unwrap();
        fs::write(version.join("model.py"), SLOW).unwrap();
        fs::write(version.with_file_name("config.pbtxt"), SLOW_CONFIG).unwrap();
    }
    let broken = folder.path().join("models/broken/1");
    fs::create_dir_all(&broken).unwrap();
    fs::write(broken.join("model.onnx"), "this is no model").unwrap();
    let ready = folder.path().join("ready");
    let line = format!(
        "exec '{}' serve '{}' --http-port=0 --grpc-port=0 --metrics-port=0 --exit-on-error=false --strict-readiness=false \
         --backend-config=python,interpreter='{}' --ready-file='{}'",
        env!("CARGO_BIN_EXE_deuteron"),
        folder.path().join("models").display(),
        python.python().display(),
        ready.display(),
    );
    let mut command = if is_terminal { Command::new("script") } else { Command::new("bash") };
    command.args([if is_terminal { "-qefc" } else { "-c" }, &line]);
    if is_terminal {
        command.arg("/dev/null");
    }
    command.env_remove("NO_COLOR").env("TERM", "xterm").envs(variables.iter().copied());
    // The output of `script` is what a terminal shows.
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    let process = loop {
        let text = fs::read_to_string(&ready).unwrap_or_default();
        let process = serde_json::from_str::<serde_json::Value>(&text).ok().and_then(|ready| ready["pid"].as_u64());
        if let Some(process) = process {
            break process;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "it is not ready");
        thread::sleep(Duration::from_millis(10));
    };
    assert!(Command::new("kill").arg(process.to_string()).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[test]
fn a_terminal_shows_what_loads_and_in_colour_what_fails_and_nothing_else_does() {
    let Some(python) = Environment::shared() else { return };
    if Command::new("script").arg("--version").output().is_err() {
        return skip_unless_ci("no program `script`, which makes a terminal");
    }
    let plain = start_and_end(&python, false, &[]);
    assert!(plain.contains("failed to load") && !plain.contains('\x1b') && !plain.contains("Loading ["), "{plain}");

    let coloured = start_and_end(&python, true, &[]);
    assert!(coloured.contains("] 1 of 3: slow_a ") && coloured.contains(", slow_b "), "{coloured:?}");
    let failed = coloured.lines().find(|line| line.contains("failed to load")).unwrap();
    assert!(failed.contains("\x1b[31mE") && failed.contains("\x1b[0m"), "{failed:?}");
    // The last progress line is erased before the next lines come.
    let rest = coloured.rsplit("Loading [").next().unwrap();
    assert!(rest.contains("\r\x1b[K") && rest.contains("1 of 3 models failed"), "{rest:?}");

    let without = start_and_end(&python, true, &[("NO_COLOR", "1")]);
    assert!(without.contains("Loading [") && !without.contains("\x1b[31m"), "{without:?}");

    let dumb = start_and_end(&python, true, &[("TERM", "dumb")]);
    assert!(dumb.contains("failed to load") && !dumb.contains('\x1b') && !dumb.contains("Loading ["), "{dumb:?}");
}
