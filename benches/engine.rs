//! Cost of the engines: load time, memory and time of one run, on a thread of the embedded engine's pool and from a
//! foreign thread; and the overhead of a server around ONNX Runtime.
//!
//! `cargo bench --bench engine -- [--library=PATH] MODEL.onnx[,INPUT=1x3x48x320[@VALUE]]...`; sizes that a model leaves
//! open are 1. Without a model it measures one that adds and subtracts. With a library of ONNX Runtime both engines are
//! measured. Memory is the growth of the process: exact for the first model only, since later ones reuse freed memory.
//!
//! With `--served` the first size of each input is the batch, and a server, its one instance and
//! the bare engine take turns on core 0, a client on core 1: see `served`. It needs `wrk` and
//! `taskset`.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a benchmark stops at the first failure")]

#[path = "engine/served.rs"]
mod served;
#[path = "../tests/support/mod.rs"]
#[allow(unused_imports, reason = "the tests use the rest of it")]
mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant as Now};

use deuteron::backend::threads::enter;
use deuteron::backend::{Answer, AnswerSink, Backend, Batch, Instance, LoadedModel, Request, Responder, Ticket};
use deuteron::engines::{Onnxruntime, Rten};
use deuteron::model::config::{CompletionRules, ConfigDraft};
use deuteron::model::onnx::OnnxSignature;
use deuteron::model::{ModelSpec, TensorSpec};
use deuteron::tensor::{AlignedBuffer, Datatype, Tensor, element_count};
use deuteron::time::{Instant, Stamps};

use support::onnx::builder::{FLOAT, Onnx};

/// Measurement window of each case.
const WINDOW: Duration = Duration::from_millis(1500);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let library = arguments.iter().find_map(|argument| argument.strip_prefix("--library=")).map(PathBuf::from);
    let mut models: Vec<String> = arguments.iter().filter(|argument| !argument.starts_with("--")).cloned().collect();
    let onnxruntime = library.as_ref().map(|library| Onnxruntime::open(library).unwrap());
    if arguments.iter().any(|argument| argument == "--served") {
        let (library, onnxruntime) = library.zip(onnxruntime).expect("--served needs --library");
        return served::measure(&library, &onnxruntime, &models);
    }
    if models.is_empty() {
        let path = std::env::temp_dir().join("deuteron-addsub.onnx");
        std::fs::write(&path, Onnx::addsub(FLOAT)).unwrap();
        models.push(path.display().to_string());
    }
    println!("| model | engine | load ms | RSS MiB | inside: min, p50, p99 µs | from outside: p50, p99 µs |");
    println!("|---|---|---|---|---|---|");
    let embedded = Rten::default();
    let engines = onnxruntime.iter().map(|engine| engine as &dyn Backend).chain([&embedded as &dyn Backend]);
    let engines: Vec<_> = engines.collect();
    for argument in models {
        for engine in &engines {
            match Case::from_argument(*engine, &argument) {
                Ok(case) => case.measure(),
                Err(error) => println!("| {argument} | {} | does not run: {error} | | | |", engine.name()),
            }
        }
    }
}

struct Case {
    title: String,
    engine: String,
    spec: Arc<ModelSpec>,
    model: Box<dyn LoadedModel>,
    inputs: Vec<Tensor>,
    load: Duration,
    rss_kib: u64,
}

impl Case {
    fn from_argument(engine: &dyn Backend, argument: &str) -> Result<Self, String> {
        let mut parts = argument.split(',');
        let path = PathBuf::from(parts.next().unwrap_or_default());
        let given: BTreeMap<_, _> = parts.filter_map(|part| part.split_once('=')).collect();
        let rss_kib = rss_kib();
        let spec = Arc::new(spec(&path)?);
        let start = Now::now();
        let directory = path.parent().unwrap_or(Path::new(""));
        let model = engine.load(&spec, directory).map_err(|error| error.to_string())?;
        let load = start.elapsed();
        let inputs = spec.inputs.iter().map(|input| tensor(input, given.get(input.name.as_str()).copied())).collect();
        let title = path.components().rev().take(3).map(|part| part.as_os_str().to_string_lossy().into_owned());
        let title = title.collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("/");
        let engine = engine.name().to_owned();
        Ok(Self { title, engine, spec, model, inputs, load, rss_kib: self::rss_kib().saturating_sub(rss_kib) })
    }

    fn measure(&self) {
        let inside = enter(1, |threads| self.run(&mut *self.model.new_instance(threads).unwrap()));
        let threads = enter(1, Clone::clone);
        let outside = self.run(&mut *self.model.new_instance(&threads).unwrap());
        let at = |times: &[Duration], percent: usize| times.get(times.len() * percent / 100).map_or(0.0, micros);
        println!(
            "| {} | {} | {:.1} | {:.1} | {:.1}, {:.1}, {:.1} | {:.1}, {:.1} |",
            self.title,
            self.engine,
            self.load.as_secs_f64() * 1e3,
            self.rss_kib as f64 / 1024.0,
            at(&inside, 0),
            at(&inside, 50),
            at(&inside, 99),
            at(&outside, 50),
            at(&outside, 99)
        );
    }

    /// Run times with one request, shortest first.
    fn run(&self, instance: &mut dyn Instance) -> Vec<Duration> {
        self.run_for(instance, WINDOW)
    }

    fn run_for(&self, instance: &mut dyn Instance, window: Duration) -> Vec<Duration> {
        let sink: Arc<dyn AnswerSink> = Arc::new(Judge);
        let mut times = Vec::new();
        let start = Now::now();
        while times.len() < 10 || start.elapsed() < window {
            let ticket = Ticket { index: 0, generation: 0 };
            let responder = Responder::new(Arc::clone(&sink), ticket, Stamps::default());
            let request = Request { inputs: self.inputs.clone(), rows: 1, responder, sequence: None, details: None };
            let batch = Batch { requests: vec![request], rows: 1, clock: || Instant::ZERO, ended: Vec::new() };
            let begin = Now::now();
            instance.run(batch);
            times.push(begin.elapsed());
        }
        times.sort_unstable();
        times
    }
}

/// Checks that only successful runs are measured.
struct Judge;

impl AnswerSink for Judge {
    fn push(&self, _ticket: Ticket, answer: Answer) {
        answer.outputs.unwrap();
    }

    fn wake(&self) {}
}

fn micros(time: &Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// A configuration that takes the model as it is, without a batch axis.
fn spec(path: &Path) -> Result<ModelSpec, String> {
    let file = std::fs::read(path).map_err(|error| error.to_string())?;
    let signature = OnnxSignature::decode(&file).map_err(|error| error.to_string())?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let text = format!("backend: 'onnxruntime' default_model_filename: '{name}'");
    let draft = ConfigDraft::new("bench", Some(text.as_bytes()), &[]).map_err(|error| error.to_string())?;
    let completion = CompletionRules { rows_max_default: 0, ..CompletionRules::default() };
    draft.complete(Some(&signature), &BTreeMap::new(), completion).map_err(|error| error.to_string())
}

/// An input as `1x3x48x320[@VALUE]` says.
fn tensor(spec: &TensorSpec, given: Option<&str>) -> Tensor {
    let (sizes, value) = given.map_or(("", "1"), |given| given.split_once('@').unwrap_or((given, "1")));
    let mut shape: deuteron::tensor::Shape = spec.shape.iter().map(|size| (*size).max(1)).collect();
    if !sizes.is_empty() {
        shape = sizes.split('x').map(|size| size.parse().unwrap()).collect();
    }
    let element = match spec.datatype {
        Datatype::Fp32 => value.parse::<f32>().unwrap().to_le_bytes().to_vec(),
        Datatype::Int32 => value.parse::<i32>().unwrap().to_le_bytes().to_vec(),
        Datatype::Int64 => value.parse::<i64>().unwrap().to_le_bytes().to_vec(),
        _ => vec![value.parse().unwrap()],
    };
    let mut buffer = AlignedBuffer::with_capacity(0);
    (0..element_count(&shape).unwrap()).for_each(|_| buffer.extend_from_slice(&element));
    Tensor { datatype: spec.datatype, shape, contents: buffer.freeze() }
}

fn rss_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}
