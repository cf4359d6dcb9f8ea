//! `deuteron steps compare`: serves a model twice, by its model.py and by its steps.json, in processes of this program, sends both
//! the same requests in turns, and reports the first and the greatest difference and both times.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use crate::client::capture::{self, CapturedRequests};
use crate::client::comparison::StepsComparison;
use crate::client::difference::{AnswerDifference, Differences, differences};
use crate::client::http_client::{HttpAnswer, HttpClient};
use crate::client::sample::{self, SampleRequest};
use crate::loadgen::clock;
use crate::loadgen::description::ModelDescription;
use crate::loadgen::random::Random;
use crate::loadgen::tls_socket::CommandTls;
use crate::wire::json::Document;

/// The longest wait for a server to load the model: imports of torch take half a minute.
const LOAD_TIMEOUT: Duration = Duration::from_secs(180);
/// The pause between two looks at a server that loads.
const LOAD_PAUSE: Duration = Duration::from_millis(20);
/// Lines of a server's log that a failed load shows.
const LOG_LINES: usize = 12;

/// Compares, and prints the result. Returns the exit code for `main`: 1 if the answers differ, or there is no comparison.
pub fn run(comparison: &StepsComparison) -> ExitCode {
    match compare(comparison) {
        Ok(result) => {
            // The caller may have closed the output, which changes nothing.
            let _ = write!(io::stdout(), "{}", result.text());
            if result.is_equal() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(why) => {
            let _ = writeln!(io::stderr(), "{why}");
            ExitCode::FAILURE
        }
    }
}

/// A request of the comparison.
struct Question {
    /// Its number or its file.
    name: String,
    kind: &'static str,
    fields: Vec<String>,
    body: Vec<u8>,
}

/// The result of a comparison.
#[derive(Default)]
struct ComparisonResult {
    equal: usize,
    differing: usize,
    refused_by_both: usize,
    /// Requests that only one of the two answered, each with the other's error.
    one_sided: Vec<String>,
    found: Differences,
    first_request: String,
    greatest_request: String,
    python_times: Vec<Duration>,
    steps_times: Vec<Duration>,
}

fn compare(comparison: &StepsComparison) -> Result<ComparisonResult, String> {
    let directory = fs::canonicalize(&comparison.directory)
        .map_err(|error| format!("{}: {error}", comparison.directory.display()))?;
    let model =
        directory.file_name().and_then(|name| name.to_str()).ok_or("the directory must be that of a model")?.to_owned();
    let list = newest_list(&directory)?;
    let mut python = Twin::start(&directory, &model, "off")?;
    let mut steps = Twin::start(&directory, &model, "on")?;
    let description = steps.description()?;
    let questions = questions(comparison, &description, &model, &list)?;
    let mut result = ComparisonResult::default();
    for question in questions {
        let (python_answer, python_time) = python.ask(&question)?;
        let (steps_answer, steps_time) = steps.ask(&question)?;
        result.python_times.push(python_time);
        result.steps_times.push(steps_time);
        result.note(&question.name, &python_answer, &steps_answer, comparison.tolerance)?;
    }
    Ok(result)
}

/// The text of the steps.json of the newest version.
fn newest_list(directory: &Path) -> Result<Vec<u8>, String> {
    let entries = fs::read_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let versions = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u64>().ok());
    let newest = versions.max().ok_or_else(|| format!("{} has no version directory", directory.display()))?;
    let read = |file: &str| {
        let path = directory.join(newest.to_string()).join(file);
        fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))
    };
    read("model.py")?;
    read("steps.json")
}

fn questions(
    comparison: &StepsComparison,
    description: &ModelDescription,
    model: &str,
    list: &[u8],
) -> Result<Vec<Question>, String> {
    let read = |path: &PathBuf| fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
    let name = |path: &PathBuf| path.display().to_string();
    let mut questions = Vec::new();
    for path in &comparison.requests {
        let file = read(path)?;
        let question = |name, body| Question { name, kind: "application/json", fields: Vec::new(), body };
        if !capture::is_trace(&file) {
            questions.push(question(name(path), file));
            continue;
        }
        let captured = capture::requests(&file, model, &description.inputs);
        let CapturedRequests { bodies, left_out } = captured.map_err(|why| format!("{}: {why}", path.display()))?;
        if left_out > 0 {
            // The caller may have closed the output, which changes nothing.
            let _ = writeln!(io::stderr(), "{}: {left_out} requests with pictures or FP16 left out", path.display());
        }
        let numbered =
            (1..).zip(bodies).map(|(number, body)| question(format!("{}, request {number}", path.display()), body));
        questions.extend(numbered);
    }
    for path in &comparison.inputs {
        let (body, kind) = (read(path)?, "application/octet-stream");
        questions.push(Question { name: name(path), kind, fields: Vec::new(), body });
    }
    if !questions.is_empty() {
        return Ok(questions);
    }
    let pictures: Vec<_> = description.inputs.iter().map(|input| sample::picture(list, &input.name)).collect();
    let mut random = Random::new(comparison.seed);
    for number in 1..=comparison.count {
        let SampleRequest { body, json_size } = sample::request(&description.inputs, &pictures, &mut random);
        let fields = vec![format!("Inference-Header-Content-Length: {json_size}")];
        questions.push(Question { name: format!("request {number}"), kind: "application/octet-stream", fields, body });
    }
    Ok(questions)
}

impl ComparisonResult {
    fn note(&mut self, name: &str, python: &HttpAnswer, steps: &HttpAnswer, tolerance: f64) -> Result<(), String> {
        let error = |answer: &HttpAnswer| String::from_utf8_lossy(&answer.body).trim().to_owned();
        match (python.status, steps.status) {
            (200, 200) => {
                let found = differences(python.parts(), steps.parts(), tolerance)?;
                *(if found.first.is_some() { &mut self.differing } else { &mut self.equal }) += 1;
                let before = self.found.greatest.clone();
                if self.found.first.is_none() && found.first.is_some() {
                    name.clone_into(&mut self.first_request);
                }
                self.found.add(found);
                if self.found.greatest != before {
                    name.clone_into(&mut self.greatest_request);
                }
            }
            (200, _) => self.one_sided.push(format!("{name}: the steps answer {}: {}", steps.status, error(steps))),
            (_, 200) => self.one_sided.push(format!("{name}: model.py answers {}: {}", python.status, error(python))),
            _ => self.refused_by_both += 1,
        }
        Ok(())
    }

    /// Returns true if each request has equal answers, and not all were refused.
    fn is_equal(&self) -> bool {
        self.differing == 0 && self.one_sided.is_empty() && self.equal > 0
    }

    fn text(&self) -> String {
        let total = self.equal + self.differing + self.refused_by_both + self.one_sided.len();
        let mut out = format!(
            "{total} requests: {} equal, {} different, {} refused by both, {} answered by one\n",
            self.equal,
            self.differing,
            self.refused_by_both,
            self.one_sided.len()
        );
        let line = |title: &str, request: &str, difference: &Option<AnswerDifference>| match difference {
            None => String::new(),
            Some(AnswerDifference { place, python, steps, size }) => {
                let size = if size.is_finite() { format!(" ({size:e})") } else { String::new() };
                format!("{title}: {request}, {place}: model.py {python}, steps {steps}{size}\n")
            }
        };
        out += &line("first difference", &self.first_request, &self.found.first);
        out += &line("greatest difference", &self.greatest_request, &self.found.greatest);
        self.one_sided.iter().take(3).for_each(|text| out += &format!("{text}\n"));
        let [python, steps] = [&self.python_times, &self.steps_times].map(|times| median(times));
        let ratio = python.as_secs_f64() / steps.as_secs_f64().max(f64::MIN_POSITIVE);
        out += &format!("median time: model.py {python:.1?}, steps {steps:.1?}, {ratio:.1} times as fast\n");
        out
    }
}

fn median(times: &[Duration]) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

#[expect(clippy::disallowed_methods, reason = "this process does nothing else meanwhile")]
fn pause() {
    std::thread::sleep(LOAD_PAUSE);
}

/// A server of the model, in a process.
struct Twin {
    child: Child,
    /// A folder of its own, removed at the end.
    folder: PathBuf,
    client: Option<HttpClient>,
    model: String,
    /// Its part in texts.
    title: &'static str,
}

impl Twin {
    fn start(directory: &Path, model: &str, steps: &str) -> Result<Self, String> {
        let title = if steps == "on" { "the steps" } else { "model.py" };
        let cannot = |error: io::Error| format!("{title} cannot be served: {error}");
        let folder = std::env::temp_dir().join(format!("deuteron-compare-{}-{steps}", std::process::id()));
        // For its owner alone: the log quotes the model's files, and a folder of another user may hold anything.
        fs::DirBuilder::new().mode(0o700).create(&folder).map_err(cannot)?;
        let log = fs::File::create(folder.join("log")).map_err(cannot)?;
        let program = std::env::current_exe().map_err(cannot)?;
        let ports = ["--http-port=0", "--grpc-port=0", "--metrics-port=0", "--http-address=127.0.0.1"];
        let child = Command::new(program)
            .arg("serve")
            .arg(directory)
            .args(ports)
            .arg(format!("--steps={steps}"))
            .arg("--ready-file")
            .arg(folder.join("ready"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(cannot)?;
        let mut twin = Self { child, folder, client: None, model: model.to_owned(), title };
        twin.connect()?;
        Ok(twin)
    }

    /// Waits until the server is ready.
    fn connect(&mut self) -> Result<(), String> {
        let began = clock::now();
        loop {
            let ready = fs::read(self.folder.join("ready")).unwrap_or_default();
            if ready.ends_with(b"\n") {
                let document = Document::parse(&ready, &[]).map_err(|_| format!("{} has no address", self.title))?;
                let address = document.root().get("http").and_then(|address| address.as_str()).unwrap_or_default();
                let client = HttpClient::connect(address, &CommandTls::default());
                self.client = Some(client.map_err(|error| format!("{} cannot be asked: {error}", self.title))?);
                return Ok(());
            }
            let has_ended = self.child.try_wait().is_ok_and(|status| status.is_some());
            if has_ended || clock::now().since(began) > LOAD_TIMEOUT {
                let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
                let lines: Vec<_> = log.lines().collect();
                let last = lines.get(lines.len().saturating_sub(LOG_LINES)..).unwrap_or_default().join("\n");
                return Err(format!("{last}\n{} of '{}' cannot be served: its log is above", self.title, self.model));
            }
            pause();
        }
    }

    fn client(&mut self) -> Result<&mut HttpClient, String> {
        self.client.as_mut().ok_or_else(|| format!("{} has no connection", self.title))
    }

    fn description(&mut self) -> Result<ModelDescription, String> {
        let path = format!("/v2/models/{}", self.model);
        let answer = self.client()?.get(&path, &[]).map_err(|error| error.to_string())?;
        ModelDescription::from_json(&answer.body)
    }

    fn ask(&mut self, question: &Question) -> Result<(HttpAnswer, Duration), String> {
        let (path, title) = (format!("/v2/models/{}/infer", self.model), self.title);
        let client = self.client()?;
        let began = clock::now();
        let answer = client.post(&path, question.kind, &question.fields, &question.body);
        let answer = answer.map_err(|error| format!("{}: {title} gives no answer: {error}", question.name))?;
        Ok((answer, clock::now().since(began)))
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        // Both fail only for a server that has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        // A folder that stays behind changes no result.
        let _ = fs::remove_dir_all(&self.folder);
    }
}
