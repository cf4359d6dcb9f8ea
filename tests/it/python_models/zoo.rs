//! A repository of Python models, a server that serves it, and the processes of that server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::folder::Folder;
use crate::support::http;
use crate::support::python::Environment;
use crate::support::repository;
use crate::support::server::{Ports, Server};
use serde_json::{Value, json};

/// Time limit for a change to show.
pub const WAIT_MAX: Duration = Duration::from_secs(20);

/// One text in, texts out: the configuration of models that get a case by its name.
pub const CASES: &str = "backend: 'python' instance_group { kind: KIND_CPU }
    input { name: 'case' data_type: TYPE_STRING dims: 1 } output { name: 'result' data_type: TYPE_STRING dims: -1 }";

/// The configuration of [`HELD`].
pub const HELD_CONFIG: &str = "backend: 'python' instance_group { kind: KIND_CPU }
    input { name: 'x' data_type: TYPE_INT32 dims: 1 } output { name: 'y' data_type: TYPE_INT32 dims: 1 }";

/// Writes `began` into its folder when it runs, and answers its input when there is `end`.
pub const HELD: &str = r#"
import os
import time

import triton_python_backend_utils as pb_utils

FOLDER = os.path.dirname(os.path.dirname(__file__))


class TritonPythonModel:
    def execute(self, requests):
        open(os.path.join(FOLDER, "began"), "w").close()
        while not os.path.exists(os.path.join(FOLDER, "end")):
            time.sleep(0.01)
        inputs = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x)]) for x in inputs]
"#;

/// Models, written one by one.
pub struct Models {
    folder: Folder,
    environment: Environment,
}

impl Models {
    /// No models yet. `None` without a Python that can run them.
    pub fn new() -> Option<Self> {
        Some(Self { environment: Environment::of_models()?, folder: Folder::new("python-models") })
    }

    /// Models of `tests/python_models`, by name.
    pub fn with(self, names: &str) -> Self {
        names.split_whitespace().for_each(|name| self.copy(name, name));
        self
    }

    /// One of them under another name.
    pub fn copy(&self, model: &str, name: &str) {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python_models").join(model);
        let folder = self.path().join(name);
        repository::copy(&from, &folder).expect("the folder is ours");
        let config = folder.join("config.pbtxt");
        let text = fs::read_to_string(&config).expect("the model has a configuration");
        let named = |name: &str| format!("name: \"{name}\"\nbackend");
        fs::write(config, text.replace(&named(model), &named(name))).expect("the folder is ours");
    }

    /// A model of a test, in version 1.
    pub fn add(self, name: &str, config: &str, program: &str) -> Self {
        repository::add(self.path(), name, config, None);
        fs::write(self.path().join(name).join("1/model.py"), program).expect("the folder is ours");
        self
    }

    /// Rewrites the configuration of a model.
    pub fn configure(self, name: &str, from: &str, to: &str) -> Self {
        let path = self.path().join(name).join("config.pbtxt");
        let text = fs::read_to_string(&path).expect("the model is there");
        assert!(text.contains(from), "{text}");
        fs::write(path, text.replace(from, to)).expect("the folder is ours");
        self
    }

    /// Folder of the models.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The interpreter that runs them.
    pub fn python(&self) -> PathBuf {
        self.environment.python()
    }

    /// The command that would start a server, and its ports.
    pub fn command(&self, flags: &[&str]) -> (Command, Ports) {
        let interpreter = format!("--backend-config=python,interpreter={}", self.python().display());
        let flags: Vec<_> = [interpreter.as_str()].into_iter().chain(flags.iter().copied()).collect();
        let ports = Ports::free();
        (Server::command(self.path(), &flags, ports), ports)
    }

    /// Serves them.
    pub fn serve(self, flags: &[&str]) -> Zoo {
        let (command, ports) = self.command(flags);
        Zoo { server: Server::start(command, ports), models: self }
    }
}

/// A server of Python models.
pub struct Zoo {
    /// The server; it ends before its models go.
    pub server: Server,
    /// The models that it serves.
    pub models: Models,
}

impl Zoo {
    /// Sends an inference as JSON: the status, and the answer.
    pub fn infer(&self, model: &str, body: &Value) -> (u16, Value) {
        let path = format!("/v2/models/{model}/infer");
        let answer = http::post(self.server.http(), &path, body.to_string().as_bytes());
        let answer = answer.unwrap_or_else(|error| panic!("{model} {body}: {error}\n{}", self.server.log()));
        let text = String::from_utf8(answer.body).expect("an answer is text");
        (answer.status, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
    }

    /// The data of the one output, or the status and the text of the error.
    pub fn ask(&self, model: &str, inputs: &[Value]) -> Result<Value, (u16, String)> {
        match self.infer(model, &json!({ "inputs": inputs })) {
            (200, mut answer) => Ok(answer["outputs"][0]["data"].take()),
            (status, answer) => Err((status, answer["error"].as_str().expect("errors say why").to_owned())),
        }
    }

    /// Asks a model for a case by its name.
    pub fn case(&self, model: &str, case: &str) -> Result<Vec<String>, (u16, String)> {
        let data = self.ask(model, &[texts("case", &[case])])?;
        Ok(data.as_array().expect("a list").iter().map(|text| text.as_str().expect("a text").to_owned()).collect())
    }

    /// Posts to the repository's API. Returns the status, and the body.
    pub fn order(&self, model: &str, what: &str) -> (u16, String) {
        let path = format!("/v2/repository/models/{model}/{what}");
        let answer = http::post(self.server.http(), &path, b"").expect("the server answers");
        (answer.status, String::from_utf8(answer.body).expect("an answer is text"))
    }

    /// The status of `/v2/models/MODEL/ready`.
    pub fn ready(&self, model: &str) -> u16 {
        http::get(self.server.http(), &format!("/v2/models/{model}/ready")).expect("the server answers").status
    }

    /// The statistics of a model.
    pub fn statistics(&self, model: &str) -> Value {
        let answer = http::get(self.server.http(), &format!("/v2/models/{model}/stats")).expect("the server answers");
        let mut answer: Value = serde_json::from_slice(&answer.body).expect("statistics are JSON");
        answer["model_stats"][0].take()
    }

    /// The text of `/metrics`.
    pub fn metrics(&self) -> String {
        let answer = http::get(self.server.metrics(), "/metrics").expect("the server answers");
        String::from_utf8(answer.body).expect("metrics are text")
    }

    /// Waits until the log has a line with this text, and returns it.
    pub fn logged(&self, text: &str) -> String {
        let line = || self.server.log().lines().find(|line| line.contains(text)).map(str::to_owned);
        wait_for(&format!("{text:?} in the log"), || line().is_some());
        line().expect("it was there")
    }

    /// The Python processes of the server.
    pub fn processes(&self) -> Vec<u32> {
        children(self.server.id())
    }
}

/// A tensor of 32-bit integers.
pub fn ints(name: &str, values: &[i32]) -> Value {
    json!({ "name": name, "datatype": "INT32", "shape": [values.len()], "data": values })
}

/// A tensor of texts.
pub fn texts(name: &str, values: &[&str]) -> Value {
    json!({ "name": name, "datatype": "BYTES", "shape": [values.len()], "data": values })
}

/// Waits until something holds.
pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < WAIT_MAX, "not in {WAIT_MAX:?}: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A signal to one process.
pub fn kill(process: u32, signal: &str) {
    let status = Command::new("kill").arg("-s").arg(signal).arg(process.to_string()).status();
    assert!(status.is_ok_and(|status| status.success()), "{process} is there");
}

/// Returns true if a process runs; one that has ended and is not reaped does not.
pub fn is_running(process: u32) -> bool {
    stat(process).is_some_and(|(_, state, _)| state != "Z")
}

/// The children of a process that run, but for templates.
pub fn children(of: u32) -> Vec<u32> {
    let processes = all_processes().filter_map(stat);
    let processes = processes.filter(|(_, state, parent)| *parent == of && state != "Z").map(|(process, ..)| process);
    processes.filter(|process| !is_template(*process)).collect()
}

fn is_template(process: u32) -> bool {
    fs::read(format!("/proc/{process}/cmdline")).is_ok_and(|line| contains(&line, "(template)"))
}

/// The processes that have this text among their variables.
pub fn with_variable(text: &str) -> Vec<u32> {
    let has = |process: &u32| fs::read(format!("/proc/{process}/environ")).is_ok_and(|all| contains(&all, text));
    all_processes().filter(has).filter(|process| is_running(*process)).collect()
}

/// Kibibytes that a process has in memory.
pub fn resident_kib(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a process has memory");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Number of files that a process has open.
pub fn open_files(process: u32) -> usize {
    fs::read_dir(format!("/proc/{process}/fd")).expect("it runs").count()
}

fn contains(all: &[u8], text: &str) -> bool {
    all.windows(text.len()).any(|part| part == text.as_bytes())
}

fn all_processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").expect("Linux").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// A process with its state and its parent.
fn stat(process: u32) -> Option<(u32, String, u32)> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let mut words = text.rsplit_once(") ")?.1.split(' ');
    Some((process, words.next()?.to_owned(), words.next()?.parse().ok()?))
}
