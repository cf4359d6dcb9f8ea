//! The scheduler under load: the mean batch and the wake-ups a request for 64 clients in closed loop, on one shard and
//! on four, with and without a queue delay; and goodput (answers within the deadline) under overload, by each rule of
//! `--admission`. The server is on core 0, the clients on core 1.
//!
//! `cargo bench --bench scheduling [-- ROUNDS]`; needs `wrk` and `taskset`.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(clippy::indexing_slicing, reason = "a benchmark stops at the first failure")]

#[path = "../tests/support/mod.rs"]
#[allow(unused_imports, reason = "the tests use the rest of it")]
mod support;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, fs};

use support::folder::Folder;
use support::protobuf::Message;
use support::server::{Ports, Server};

/// Rounds of each case; the cases take turns, so that a slow spell of the machine hits all.
const ROUNDS: usize = 3;
/// Length of one round, in seconds.
const SECONDS: u32 = 4;
/// Time within which an answer is useful.
const DEADLINE: Duration = Duration::from_millis(50);
/// Run time of the second part's model for one request, in milliseconds.
const RUN_MS: u32 = 2;

fn main() {
    let rounds = env::args().filter_map(|argument| argument.parse().ok()).next().unwrap_or(ROUNDS);
    let all: Vec<_> = core_affinity::get_core_ids().unwrap_or_default();
    if let Some(core) = all.get(1) {
        core_affinity::set_for_current(*core);
    }
    batches(rounds);
    goodput(rounds);
}

/// A model that sleeps, in version 1.
fn add(repository: &Path, name: &str, delay_ms: u32, more: &str) {
    let config = format!(
        "backend: \"identity\" {more}\n\
         input {{ name: \"INPUT0\" data_type: TYPE_FP32 dims: 1 }}\n\
         output {{ name: \"OUTPUT0\" data_type: TYPE_FP32 dims: 1 }}\n\
         parameters {{ key: \"execute_delay_ms\" value {{ string_value: \"{delay_ms}\" }} }}"
    );
    let folder = repository.join(name);
    fs::create_dir_all(folder.join("1")).expect("the folder is ours");
    fs::write(folder.join("config.pbtxt"), config).expect("the folder is ours");
}

fn start(repository: &Path, flags: &[&str]) -> Server {
    let ports = Ports::free();
    let mut command = Command::new("taskset");
    command.args(["-c", "0", env!("CARGO_BIN_EXE_deuteron"), "serve"]).arg(repository);
    for (flag, port) in [("http", ports.http), ("grpc", ports.grpc), ("metrics", ports.metrics)] {
        command.arg(format!("--{flag}-port={port}"));
    }
    command.args(flags).arg("--log-info=false");
    Server::start(command, ports)
}

/// The sum of a metric over its labels.
fn metric(server: &Server, name: &str) -> f64 {
    let metrics = support::http::get(server.metrics(), "/metrics").expect("the metrics port answers");
    let text = String::from_utf8(metrics.body).expect("metrics are text");
    let values = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        rest.starts_with(['{', ' ']).then(|| rest.rsplit(' ').next()?.parse::<f64>().ok()).flatten()
    });
    values.sum()
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// `median (min to max)`.
fn spread(values: &mut [f64]) -> String {
    let middle = median(values);
    format!("{middle:.2} ({:.2} to {:.2})", values[0], values[values.len() - 1])
}

fn batches(rounds: usize) {
    println!("64 clients in closed loop, one instance whose batches of up to 64 take 1 ms, {rounds} rounds:");
    println!("{:<24} {:>24} {:>24}", "", "mean batch", "wake-ups a request");
    let folder = Folder::new("bench");
    let (repository, scripts) = (folder.path().join("models"), folder.path().join("wrk.lua"));
    for delay_us in [0, 500] {
        let delay = format!("max_queue_delay_microseconds: {delay_us}");
        add(
            &repository,
            &format!("delay_{delay_us}"),
            1,
            &format!("max_batch_size: 64 dynamic_batching {{ {delay} }}"),
        );
    }
    let body = r#"{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[1.5]}]}"#;
    fs::write(&scripts, format!("wrk.method = \"POST\"\nwrk.body = '{body}'\n")).expect("the folder is ours");
    let servers = ["--shards=1", "--shards=4"].map(|shards| (shards, start(&repository, &[shards])));
    let mut results: Vec<(String, Vec<f64>, Vec<f64>)> = Vec::new();
    for round in 0..rounds {
        for (index, (shards, server)) in servers.iter().enumerate() {
            for (place, delay_us) in [0, 500].into_iter().enumerate() {
                let model = format!("delay_{delay_us}");
                let names = ["nv_inference_count", "nv_inference_exec_count", "deuteron_shard_wakes_total"];
                let names = [&names[..], &["deuteron_instance_wakes_total"]].concat();
                let read = || -> Vec<f64> { names.iter().map(|name| metric(server, name)).collect() };
                let before = read();
                wrk(server, &scripts, &model);
                let grown: Vec<f64> = read().iter().zip(before).map(|(after, before)| after - before).collect();
                if round == 0 {
                    results.push((format!("{shards}, delay {delay_us} us"), Vec::new(), Vec::new()));
                }
                results[index * 2 + place].1.push(grown[0] / grown[1]);
                results[index * 2 + place].2.push((grown[2] + grown[3]) / grown[0]);
            }
        }
    }
    for (name, mut sizes, mut wakes) in results {
        println!("{name:<24} {:>24} {:>24}", spread(&mut sizes), spread(&mut wakes));
    }
}

fn wrk(server: &Server, script: &Path, model: &str) {
    let mut command = Command::new("wrk");
    command.args(["-t1", "-c64", &format!("-d{SECONDS}s"), "-s"]).arg(script);
    command.arg(format!("http://{}/v2/models/{model}/infer", server.http()));
    let output = command.output().expect("wrk is installed");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !text.contains("Non-2xx") && !text.contains("Socket errors"), "{text}");
}

/// Outcomes of the requests of one round.
#[derive(Default)]
struct Outcome {
    in_time: u32,
    late: u32,
    refused_us: Vec<u64>,
}

fn goodput(rounds: usize) {
    let capacity = f64::from(1000 / RUN_MS);
    println!(
        "\nPoisson arrivals at a model of {RUN_MS} ms ({capacity} requests/s at most), gRPC deadline {} ms, {rounds} rounds:",
        DEADLINE.as_millis()
    );
    println!("{:<28} {:>30} {:>14} {:>18}", "", "answered in time a second", "late a second", "refusal p99, us");
    let folder = Folder::new("bench");
    add(folder.path(), "model", RUN_MS, "max_batch_size: 1");
    let servers = ["none", "queue", "deadline"].map(|admission| {
        let server = start(folder.path(), &["--shards=1", &format!("--admission={admission}")]);
        (admission, server)
    });
    let seconds = f64::from(SECONDS);
    let mut peak = 0.0_f64;
    let mut last = 0.0_f64;
    for load in [1.0, 2.0, 3.0] {
        let mut results = servers.each_ref().map(|(admission, _)| (*admission, Vec::new(), Vec::new(), Vec::new()));
        for round in 0..rounds {
            for ((_, server), (_, good, late, refused)) in servers.iter().zip(&mut results) {
                // Without requests of the round before.
                std::thread::sleep(Duration::from_millis(500));
                let outcome = poisson(server, capacity * load, round as u64 + 1);
                good.push(f64::from(outcome.in_time) / seconds);
                late.push(f64::from(outcome.late) / seconds);
                refused.extend(outcome.refused_us);
            }
        }
        for (admission, mut good, mut late, mut refused) in results {
            refused.sort_unstable();
            let p99 = refused.get(refused.len() * 99 / 100).map_or("-".to_owned(), u64::to_string);
            let name = format!("{load} x, --admission={admission}");
            println!("{name:<28} {:>30} {:>14.0} {p99:>18}", spread(&mut good), median(&mut late));
            peak = peak.max(median(&mut good));
            last = median(&mut good);
        }
    }
    println!("at 3 x with admission: {:.0} % of the peak", 100.0 * last / peak);
}

/// One round of open loop: the arrivals are drawn before, each is sent at its time, whether or not earlier ones were
/// answered.
fn poisson(server: &Server, rate: f64, seed: u64) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let input = Message::new().bytes(1, "INPUT0").bytes(2, "FP32").packed(3, &[1, 1]);
    let message = Message::new().bytes(1, "model").message(5, input).bytes(7, [0; 4]).into_bytes();
    runtime.block_on(async {
        let call = support::grpc::Caller::connect(server.grpc(), "/inference.GRPCInferenceService/ModelInfer").await;
        let began = Instant::now();
        let mut at = Duration::ZERO;
        let mut random = seed;
        let mut calls = tokio::task::JoinSet::new();
        loop {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let uniform = ((random >> 11) as f64 + 1.0) / (1_u64 << 53) as f64;
            at += Duration::from_secs_f64(-uniform.ln() / rate);
            if at >= Duration::from_secs(SECONDS.into()) {
                break;
            }
            tokio::time::sleep_until((began + at).into()).await;
            let (call, message) = (call.clone(), message.clone());
            calls.spawn(async move {
                // From the due time, not from the time of sending.
                let due = began + at;
                let answer = call.call(message, DEADLINE.saturating_sub(due.elapsed())).await;
                (answer, due.elapsed())
            });
        }
        let mut outcome = Outcome::default();
        while let Some(done) = calls.join_next().await {
            match done.expect("a call does not panic") {
                (Ok(_), took) if took <= DEADLINE => outcome.in_time += 1,
                (Err(status), took) if status.code() == tonic::Code::Unavailable => {
                    outcome.refused_us.push(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
                }
                _ => outcome.late += 1,
            }
        }
        outcome
    })
}
