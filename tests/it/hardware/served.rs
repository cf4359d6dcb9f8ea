//! Requests a second and their latency, from a server whose model is on the GPU and from one whose is on the CPU.

use std::process::Command;

use super::Scale;
use crate::support::gpu::{dense, models};
use crate::support::repository;
use crate::support::server::Server;

/// Measures and prints.
pub fn print(scale: &Scale) {
    let (width, layers) = if scale.is_software { (64, 2) } else { (2048, 4) };
    let folder = models(&[("digits_gpu", "instance_group { kind: KIND_GPU count: 2 }\n")]);
    let config = |name: &str, kind: &str| {
        format!(
            "name: \"{name}\" backend: \"onnxruntime\" max_batch_size: 64 dynamic_batching {{ }}\n\
             instance_group {{ kind: {kind} count: 2 }}\n"
        )
    };
    let file = dense(width, layers);
    for (name, kind) in [("wide", "KIND_CPU"), ("wide_gpu", "KIND_GPU")] {
        repository::add(folder.path(), name, &config(name, kind), Some(&file));
    }
    println!("\nserved over HTTP{}", scale.note());
    println!("| model | on | in flight | requests/s | p50 µs | p99 µs |\n|---|---|---|---|---|---|");
    let server = Server::deuteron(folder.path(), &[]);
    for (model, what) in [("digits", "digits".to_owned()), ("wide", format!("{layers} x {width} x {width}"))] {
        for in_flight in scale.in_flight {
            for (on, name) in [("CPU, embedded engine", model.to_owned()), ("GPU", format!("{model}_gpu"))] {
                let report = measured(&server, &name, in_flight, scale.interval_ms);
                let number = |key: &str| report[key].as_f64().unwrap_or_else(|| panic!("{key} is not in {report}"));
                let failed = report["total_failed"].as_u64();
                assert_eq!(failed, Some(0), "{report}");
                let [p50, p99] = ["latency_p50_us", "latency_p99_us"].map(number);
                println!("| {what} | {on} | {in_flight} | {:.0} | {p50:.0} | {p99:.0} |", number("throughput"));
            }
        }
    }
    println!("{}", server.log().lines().filter(|line| line.contains("GPU")).collect::<Vec<_>>().join("\n"));
}

/// The load generator's figures with `in_flight` requests in flight.
fn measured(server: &Server, model: &str, in_flight: usize, interval_ms: usize) -> serde_json::Value {
    let output = Command::new(env!("CARGO_BIN_EXE_deuteron"))
        .args(["bench", "-m", model, "--binary", "--max-trials=3", "--format=json"])
        .arg(format!("--url={}", server.http()))
        .arg(format!("--concurrency={in_flight}"))
        .arg(format!("--measurement-interval={interval_ms}"))
        .arg(format!("--warm-up={interval_ms}"))
        .output()
        .expect("this program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().next().unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    serde_json::from_str(line).expect("it prints JSON")
}
