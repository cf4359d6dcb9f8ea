//! Faults in and around the process of a Python model, on the server as a process: ends, hangs, corruption, floods,
//! memory that runs out, reloads. The batch that ran fails; the server, other models and other instances do not.
//!
//! Most models here do what a request tells them: its input is a piece of Python. With the variable
//! `DEUTERON_EXECUTE_CONCURRENCY` set to a number their processes run this many batches at once.

mod blame;
mod bounds;
mod corruption;
mod death;
mod hang;
mod listen_first;
mod output;
mod overlap;
mod reload;
mod restart;
mod server_end;
mod start;
mod template;

use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::folder::Folder;
use crate::support::http;
use crate::support::python::Environment;
use crate::support::server::Server;
use serde_json::{Value, json};

/// A model that runs its input `CODE`, and answers with the value of `result` afterwards. Its parameters are run as
/// well: `import`, `initialize`, `is_ready` and `finalize`.
const DEED: &str = r#"
import ctypes, json, os, signal, socket, stat, sys, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

def crash():
    ctypes.string_at(0)

def sockets():
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                found.append(int(name))
        except OSError:
            pass
    return found

exec(IMPORT)

class TritonPythonModel:
    def initialize(self, args):
        self.args = args
        self.kept = []
        exec(INITIALIZE)

    def execute(self, requests):
        answers = []
        for request in requests:
            code = pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0].decode()
            scope = {**globals(), "model": self, "requests": requests, "request": request, "result": ""}
            exec(code, scope)
            if scope["result"] is None:
                answers.append(None)
                continue
            text = np.array([str(scope["result"])], dtype=object)
            outputs = [pb_utils.Tensor("RESULT", text)] + scope.get("more", [])
            answers.append(pb_utils.InferenceResponse(outputs))
        return answers

    def finalize(self):
        exec(FINALIZE)
"#;

/// Joined to [`DEED`] if the model has `is_ready`.
const DEED_IS_READY: &str = "
    def is_ready(self):
        scope = {**globals(), 'model': self, 'result': True}
        exec(IS_READY, scope)
        return scope['result']
";

/// `execute` of [`DEED`], and of a model whose code may await.
const EXECUTE: [&str; 2] = ["    def execute(", "    async def execute("];
const RUN: [&str; 2] = [
    "            exec(code, scope)\n",
    "            body = 'async def run():\\n    global result\\n    '\n            \
     exec(body + code.replace('\\n', '\\n    '), scope)\n            await scope.pop('run')()\n",
];

/// Result of a request: the contents of `result` after its code ran, or the status and text of the error.
type Outcome = Result<String, (u16, String)>;

/// One model of a repository.
#[derive(Clone, Copy, Default)]
struct Deed<'a> {
    name: &'a str,
    /// Lines of its configuration, behind the usual ones.
    config: &'a str,
    import: &'a str,
    initialize: &'a str,
    is_ready: Option<&'a str>,
    finalize: &'a str,
    /// Its `execute` is a coroutine.
    is_async: bool,
}

impl<'a> Deed<'a> {
    fn named(name: &'a str) -> Self {
        Self { name, ..Self::default() }
    }

    fn write(&self, repository: &Path) {
        let quoted = |text: &str| serde_json::to_string(text).unwrap();
        let mut code = String::new();
        let parts = [
            ("IMPORT", self.import),
            ("INITIALIZE", self.initialize),
            ("IS_READY", self.is_ready.unwrap_or_default()),
            ("FINALIZE", self.finalize),
        ];
        for (name, text) in parts {
            code += &format!("{name} = {}\n", quoted(text));
        }
        let source =
            if self.is_async { DEED.replace(EXECUTE[0], EXECUTE[1]).replace(RUN[0], RUN[1]) } else { DEED.into() };
        code += &source;
        if self.is_ready.is_some() {
            code += DEED_IS_READY;
        }
        let tensors = "input { name: 'CODE' data_type: TYPE_STRING dims: 1 }
            output { name: 'RESULT' data_type: TYPE_STRING dims: 1 }";
        let group = if self.config.contains("instance_group") { "" } else { "instance_group { kind: KIND_CPU }" };
        let is_told = ["execute_concurrency", "sequence_batching"].iter().any(|word| self.config.contains(word));
        let count = std::env::var("DEUTERON_EXECUTE_CONCURRENCY").ok().filter(|_| !is_told && !self.is_async);
        let concurrency = count.map(|count| concurrency(&count)).unwrap_or_default();
        write(repository, self.name, &format!("{tensors}\n{group}\n{concurrency}\n{}", self.config), &code);
    }
}

/// For tests of batches that run one after the other.
const IN_TURN: &str = "parameters { key: 'execute_concurrency' value { string_value: '1' } }";

/// The parameter with this value.
fn concurrency(count: &str) -> String {
    format!("parameters {{ key: 'execute_concurrency' value {{ string_value: '{count}' }} }}")
}

/// Writes a Python model of any kind. The file is replaced in one step: a server may be reading it.
fn write(repository: &Path, name: &str, config: &str, code: &str) {
    let version = repository.join(name).join("1");
    fs::create_dir_all(&version).unwrap();
    let config = format!("backend: 'python' {config}");
    for (place, text) in [(version.with_file_name("config.pbtxt"), config.as_str()), (version.join("model.py"), code)] {
        fs::write(place.with_extension("new"), text).unwrap();
        fs::rename(place.with_extension("new"), place).unwrap();
    }
}

/// A server of Python models.
struct PythonServer {
    server: Server,
    folder: Folder,
}

impl PythonServer {
    /// Serves these models; `None` without an interpreter that has numpy.
    fn start(deeds: &[Deed<'_>], flags: &[&str]) -> Option<Self> {
        let folder = Folder::new("faults");
        deeds.iter().for_each(|deed| deed.write(folder.path()));
        Self::on(folder, flags)
    }

    fn on(folder: Folder, flags: &[&str]) -> Option<Self> {
        let interpreter = interpreter()?;
        // All processes are forked where they can be; the tests of `python_models` have single instances that are not.
        let flags = [&[interpreter.as_str(), "--backend-config=python,fork=on"], flags].concat();
        let server = Server::deuteron(folder.path(), &flags);
        Some(Self { server, folder })
    }

    /// Has a model run a piece of code.
    fn run(&self, model: &str, code: &str) -> Outcome {
        run(self.server.http(), model, code)
    }

    /// The same, which must succeed.
    fn well(&self, model: &str, code: &str) -> String {
        self.run(model, code).unwrap_or_else(|error| panic!("{model}: {code}: {error:?}\n{}", self.server.log()))
    }

    /// The id of a model's process.
    fn pid(&self, model: &str) -> u32 {
        self.well(model, "result = os.getpid()").parse().unwrap()
    }

    fn post(&self, path: &str, body: &str) -> (u16, String) {
        let answer = http::post(self.server.http(), path, body.as_bytes()).unwrap();
        (answer.status, String::from_utf8(answer.body).unwrap())
    }

    fn load(&self, model: &str) -> (u16, String) {
        self.post(&format!("/v2/repository/models/{model}/load"), "")
    }

    fn unload(&self, model: &str) -> (u16, String) {
        self.post(&format!("/v2/repository/models/{model}/unload"), "")
    }

    fn is_ready(&self, model: &str) -> bool {
        http::get(self.server.http(), &format!("/v2/models/{model}/ready")).unwrap().status == 200
    }

    /// The Python processes of this server, also the unreaped ones.
    fn children(&self) -> Vec<u32> {
        children(self.server.id())
    }

    /// The templates of this server.
    fn templates(&self) -> Vec<u32> {
        all_children(self.server.id()).filter(|id| is_template(*id)).collect()
    }

    /// Counts of the server's descriptors and threads.
    fn resources(&self) -> (usize, usize) {
        let count = |what: &str| fs::read_dir(format!("/proc/{}/{what}", self.server.id())).unwrap().count();
        (count("fd"), count("task"))
    }

    /// Lines of the log with all of these words.
    fn log_count(&self, words: &[&str]) -> usize {
        self.server.log().lines().filter(|line| words.iter().all(|word| line.contains(word))).count()
    }
}

/// `--backend-config` with an interpreter that has numpy; `None` if it cannot be made.
fn interpreter() -> Option<String> {
    static FOUND: OnceLock<Option<String>> = OnceLock::new();
    let find = || {
        let python = Environment::shared()?.python();
        Some(format!("--backend-config=python,interpreter={}", python.display()))
    };
    FOUND.get_or_init(find).clone()
}

/// Has a model run a piece of code.
fn run(server: std::net::SocketAddr, model: &str, code: &str) -> Outcome {
    let body = json!({"inputs": [{"name": "CODE", "datatype": "BYTES", "shape": [1], "data": [code]}]}).to_string();
    let answer = http::post(server, &format!("/v2/models/{model}/infer"), body.as_bytes()).unwrap();
    let text = String::from_utf8(answer.body).unwrap();
    let value: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("no JSON: {text}"));
    if answer.status == 200 {
        return Ok(value["outputs"][0]["data"][0].as_str().unwrap_or_else(|| panic!("{text}")).to_owned());
    }
    Err((answer.status, value["error"].as_str().unwrap_or_else(|| panic!("{text}")).to_owned()))
}

/// The error of a batch whose process has ended.
fn unhealthy(instance: &str) -> Outcome {
    Err((500, format!("Stub process '{instance}' is not healthy.")))
}

/// The direct children of a process that run or are unreaped, but for templates.
fn children(parent: u32) -> Vec<u32> {
    all_children(parent).filter(|id| !is_template(*id)).collect()
}

fn all_children(parent: u32) -> impl Iterator<Item = u32> {
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    processes.filter(move |id| stat(*id).is_some_and(|(_, of)| of == parent))
}

fn is_template(id: u32) -> bool {
    fs::read(format!("/proc/{id}/cmdline")).is_ok_and(|line| String::from_utf8_lossy(&line).contains("(template)"))
}

/// The state letter and the parent of a process; `None` if it does not exist.
fn stat(id: u32) -> Option<(char, u32)> {
    let text = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let mut words = text.rsplit_once(')')?.1.split_whitespace();
    Some((words.next()?.chars().next()?, words.next()?.parse().ok()?))
}

/// Returns true if a process runs: an unreaped one does not.
fn is_alive(id: u32) -> bool {
    stat(id).is_some_and(|(state, _)| state != 'Z' && state != 'X')
}

fn kill(id: u32, signal: &str) {
    let status = std::process::Command::new("kill").args(["-s", signal, &id.to_string()]).status().unwrap();
    assert!(status.success(), "process {id} is gone");
}

/// Waits until a condition holds. Returns the time that it took.
fn until(what: &str, limit: Duration, mut is_so: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        thread::sleep(Duration::from_millis(2));
    }
    start.elapsed()
}
