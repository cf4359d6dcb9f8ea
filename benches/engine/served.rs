//! Overhead of a server around ONNX Runtime: the same model, batch size and thread count, bare in this process and
//! served over HTTP, in turns on core 0, with the client on core 1. The ratios are of one run. Called by `engine
//! --served`; needs `wrk` and `taskset`.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use deuteron::backend::threads::enter;
use deuteron::engines::Onnxruntime;

use super::support::folder::Folder;
use super::support::http;
use super::support::server::{Ports, Server};
use super::{Case, micros};

/// Turns of each; the median counts.
const ROUNDS: usize = 5;
/// Length of each turn of the bare engine.
const WINDOW: Duration = Duration::from_secs(1);
/// Longer than a run of any measured model.
const LEFT_BEHIND: Duration = Duration::from_millis(300);

/// Measures the models, then the example on a worker with batches of 64 clients' requests.
pub fn measure(library: &Path, engine: &Onnxruntime, models: &[String]) {
    println!("{} rounds, medians; one thread; bare and server on core 0, client on core 1\n", ROUNDS);
    println!(
        "| model | bare runs/s | served/s, 2 connections | ratio | bare CPU µs | served CPU µs | ratio | bare p50 µs | \
         served p50 µs, 1 connection | added µs | served CPU µs | ratio | in the server, beside the run |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    for model in models {
        real_model(library, engine, model);
    }
    println!();
    small_model(library, engine);
}

fn real_model(library: &Path, engine: &Onnxruntime, argument: &str) {
    let case = Case::from_argument(engine, argument).expect("the model loads");
    let path = argument.split(',').next().unwrap_or_default();
    let repository = Folder::new("served");
    fs::create_dir_all(repository.path().join("m/1")).expect("the folder is ours");
    fs::copy(path, repository.path().join("m/1/model.onnx")).expect("the model is there");
    let config = "instance_group { count: 1 }\n".to_owned() + &parameter("placement", "worker");
    fs::write(repository.path().join("m/config.pbtxt"), config).expect("the folder is ours");
    let server = start(library, repository.path());
    let script = script(&case, &repository);
    let [mut bare_rate, mut bare_cpu, mut bare_p50] = [const { Vec::new() }; 3];
    let [mut rate, mut cpu, mut p50, mut cpu_of_one, mut own] = [const { Vec::new() }; 5];
    for round in 0..=ROUNDS {
        let begun = cpu_us(std::process::id());
        let times = bare(&case);
        let bare_used = cpu_us(std::process::id()) - begun;
        let begun = (cpu_us(server.id()), Statistics::of(&server, "m"));
        let two = wrk(&server, &script, "m", 2);
        let used = (cpu_us(server.id()) - begun.0) / Statistics::of(&server, "m").since(&begun.1).requests;
        // Requests left behind by the two clients end first: a request that waited for one of them would count in the
        // next window.
        std::thread::sleep(LEFT_BEHIND);
        let begun = (cpu_us(server.id()), Statistics::of(&server, "m"));
        let one = wrk(&server, &script, "m", 1);
        let since = Statistics::of(&server, "m").since(&begun.1);
        // The first round warms up.
        if round > 0 {
            bare_rate.push(times.len() as f64 / times.iter().sum::<Duration>().as_secs_f64());
            bare_cpu.push(bare_used / times.len() as f64);
            bare_p50.push(micros(&times[times.len() / 2]));
            rate.push(two.0);
            cpu.push(used);
            p50.push(one.1);
            cpu_of_one.push((cpu_us(server.id()) - begun.0) / since.requests);
            own.push((since.request_us - since.infer_us) / since.requests);
        }
    }
    let [bare_rate, bare_cpu, bare_p50] = [bare_rate, bare_cpu, bare_p50].map(median);
    let [rate, cpu, p50, cpu_of_one, own] = [rate, cpu, p50, cpu_of_one, own].map(median);
    println!(
        "| {} | {bare_rate:.1} | {rate:.1} | {:.3} | {bare_cpu:.0} | {cpu:.0} | {:.3} | {bare_p50:.0} | {p50:.0} | {:.0} | \
         {cpu_of_one:.0} | {:.3} | {own:.0} |",
        case.title,
        rate / bare_rate,
        bare_cpu / cpu,
        p50 - bare_p50,
        bare_cpu / cpu_of_one
    );
}

/// The digits of the examples, on a worker.
fn small_model(library: &Path, engine: &Onnxruntime) {
    let repository = Folder::new("served");
    super::support::repository::add_example(repository.path(), "digits");
    let config = repository.path().join("digits/config.pbtxt");
    let text = fs::read_to_string(&config).expect("the example has one") + &parameter("placement", "worker");
    fs::write(config, text).expect("the folder is ours");
    let file = repository.path().join("digits/1/model.onnx");
    let case = |rows: usize| {
        Case::from_argument(engine, &format!("{},pixels={rows}x64", file.display())).expect("the example loads")
    };
    let server = start(library, repository.path());
    let script = script(&case(1), &repository);
    let [mut cpu, mut infer, mut rows, mut rate] = [const { Vec::new() }; 4];
    for round in 0..=ROUNDS {
        let before = (cpu_us(server.id()), Statistics::of(&server, "digits"));
        let (per_second, _) = wrk(&server, &script, "digits", 64);
        let since = Statistics::of(&server, "digits").since(&before.1);
        if round > 0 {
            cpu.push((cpu_us(server.id()) - before.0) / since.requests);
            // The time of each execution is counted once for each of its requests.
            infer.push(since.infer_us / since.requests);
            rows.push(since.requests / since.executions);
            rate.push(per_second);
        }
    }
    let [cpu, infer, rows, rate] = [cpu, infer, rows, rate].map(median);
    let count = (rows.round() as usize).max(1);
    let times = bare(&case(count));
    let engine_us = micros(&times[times.len() / 2]) / count as f64;
    println!("digits on a worker, 64 connections: {rate:.0} requests/s in batches of {rows:.1}");
    println!("  server, user and system: {cpu:.1} µs a request; an execution takes {infer:.1} µs");
    println!("  bare engine at {count} rows: {engine_us:.1} µs a row; over it: {:.1} µs a request", cpu - engine_us);
}

/// Times of bare runs on core 0, shortest first.
fn bare(case: &Case) -> Vec<Duration> {
    std::thread::scope(|scope| {
        let run = || {
            core_affinity::set_for_current(core_affinity::CoreId { id: 0 });
            enter(1, |threads| case.run_for(&mut *case.model.new_instance(threads).expect("it loads"), WINDOW))
        };
        scope.spawn(run).join().expect("the engine runs")
    })
}

fn start(library: &Path, repository: &Path) -> Server {
    let ports = Ports::free();
    let mut command = Command::new("taskset");
    command.args(["-c", "0", env!("CARGO_BIN_EXE_deuteron"), "serve"]).arg(repository);
    command.arg(format!("--backend-config=onnxruntime,library={}", library.display()));
    command.args(["--backend-config=default-max-batch-size=0", "--shards=1"]);
    for (flag, port) in [("http", ports.http), ("grpc", ports.grpc), ("metrics", ports.metrics)] {
        command.arg(format!("--{flag}-port={port}"));
    }
    Server::start(command, ports)
}

fn parameter(key: &str, value: &str) -> String {
    format!("parameters {{ key: \"{key}\" value {{ string_value: \"{value}\" }} }}\n")
}

/// The script for `wrk`: it sends the inputs of the case, as binary data.
fn script(case: &Case, folder: &Folder) -> std::path::PathBuf {
    let (mut inputs, mut raw) = (Vec::new(), Vec::new());
    for (spec, tensor) in case.spec.inputs.iter().zip(&case.inputs) {
        inputs.push(serde_json::json!({
            "name": spec.name, "datatype": tensor.datatype.name(), "shape": tensor.shape.as_slice(),
            "parameters": { "binary_data_size": tensor.contents.len() },
        }));
        raw.extend_from_slice(&tensor.contents);
    }
    let head = serde_json::json!({ "inputs": inputs, "parameters": { "binary_data_output": true } }).to_string();
    let body = folder.path().join("body");
    fs::write(&body, [head.as_bytes(), &raw].concat()).expect("the folder is ours");
    let lua = format!(
        "wrk.method = \"POST\"\nlocal file = io.open(\"{}\", \"rb\")\nwrk.body = file:read(\"*a\")\nfile:close()\n\
         wrk.headers[\"Inference-Header-Content-Length\"] = \"{}\"\n\
         done = function(s, l) print(\"median\", l:percentile(50)) print(\"rate\", s.requests * 1e6 / s.duration) end\n",
        body.display(),
        head.len()
    );
    let path = folder.path().join("script.lua");
    fs::write(&path, lua).expect("the folder is ours");
    path
}

/// Requests a second, and the median latency in microseconds.
fn wrk(server: &Server, script: &Path, model: &str, connections: usize) -> (f64, f64) {
    let mut command = Command::new("taskset");
    command.args(["-c", "1", "wrk", "-t1", &format!("-c{connections}"), "-d2s", "-s"]).arg(script);
    command.arg(format!("http://{}/v2/models/{model}/infer", server.http()));
    let output = command.output().expect("wrk is installed");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && !text.contains("Non-2xx") && !text.contains("Socket errors"), "{text}");
    let number = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("the script prints it");
        line.trim().parse().expect("a number")
    };
    (number("rate"), number("median"))
}

/// A server's statistics of one model: sums since its start.
struct Statistics {
    requests: f64,
    executions: f64,
    request_us: f64,
    infer_us: f64,
}

impl Statistics {
    fn of(server: &Server, model: &str) -> Self {
        let answer = http::get(server.http(), &format!("/v2/models/{model}/stats")).expect("the server answers");
        let json: serde_json::Value = serde_json::from_slice(&answer.body).expect("statistics are JSON");
        let stats = &json["model_stats"][0];
        let number = |value: &serde_json::Value| value.as_f64().expect("a number");
        let duration = |name: &str| number(&stats["inference_stats"][name]["ns"]) / 1e3;
        Self {
            requests: number(&stats["inference_stats"]["success"]["count"]),
            executions: number(&stats["execution_count"]),
            request_us: duration("success"),
            infer_us: duration("compute_infer"),
        }
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            requests: self.requests - before.requests,
            executions: self.executions - before.executions,
            request_us: self.request_us - before.request_us,
            infer_us: self.infer_us - before.infer_us,
        }
    }
}

/// User and system time of a process so far, in microseconds.
fn cpu_us(process: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).expect("the process runs");
    // Behind the name in parentheses, which may hold blanks: utime and stime are fields 14 and 15.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    fields[11..13].iter().map(|ticks| ticks.parse::<f64>().expect("ticks are a number") * 1e4).sum()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
