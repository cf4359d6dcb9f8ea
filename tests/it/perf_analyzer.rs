//! NVIDIA's `perf_analyzer`, as the wheel of tritonclient 2.50 carries it: its modes over HTTP and gRPC,
//! each until it has a stable figure. Its gRPC is the C core's, as that of most clients is.

use std::process::Command;

use crate::support::folder::Folder;
use crate::support::python::Environment;
use crate::support::repository::{self, SQUARE, SUMS};
use crate::support::server::Server;
use crate::support::skipped::skip_unless_ci;

const TEXT: &str = "backend: 'identity' max_batch_size: 8 dynamic_batching { }
    input { name: 'INPUT0' data_type: TYPE_STRING dims: -1 } output { name: 'OUTPUT0' data_type: TYPE_STRING dims: -1 }";

/// Arguments of perf_analyzer, and its least number of requests. Over a stream there are enough to reach a budget of
/// frames for each connection and time.
const MODES: &[(&str, u32)] = &[
    ("-m digits -i http --concurrency-range 1:4:3", 300),
    ("-m digits -i http --async --concurrency-range 4 -b 4", 300),
    ("-m digits -i http --request-rate-range 300 --request-distribution poisson", 300),
    ("-m digits -i grpc --concurrency-range 4", 300),
    ("-m digits -i grpc --async --concurrency-range 8 -b 8", 300),
    ("-m digits -i grpc --streaming --concurrency-range 4", 12_000),
    ("-m digits -i grpc --grpc-compression-algorithm gzip", 300),
    ("-m text -i http --shape INPUT0:4 --string-length 10 -b 4", 300),
    ("-m text -i grpc --shape INPUT0:4 --string-data hello", 300),
    ("-m digits -i http --shared-memory system --output-shared-memory-size 1024 -b 4", 300),
    ("-m digits -i grpc --async --shared-memory system --output-shared-memory-size 1024 -b 4", 300),
    ("-m sums -i http --sequence-length 10 --num-of-sequences 4", 300),
    ("-m sums -i grpc --async --sequence-length 10 --sequence-id-range 1:100 --concurrency-range 4", 300),
    ("-m sums -i grpc --streaming --sequence-length 10 --concurrency-range 4", 3_000),
    ("-m digits -i http --trace-level TIMESTAMPS --trace-rate 10 --trace-count 20 --log-frequency 10", 300),
    ("-m digits -i grpc --trace-level TIMESTAMPS --trace-rate 10 --trace-count 20 --log-frequency 10", 300),
    ("-m square -i grpc --streaming --async --concurrency-range 2 --input-data IN", 300),
];

#[test]
fn every_mode_of_perf_analyzer_gives_a_figure() {
    let list = "tests/perf_analyzer/requirements.txt";
    let Some(environment) = Environment::create("perf-analyzer", list, &["python3"]) else { return };
    let libraries = environment.packages().join("nvidia/cuda_runtime/lib");
    let command = || {
        let mut command = Command::new(environment.path().join("bin/perf_analyzer"));
        command.env("LD_LIBRARY_PATH", &libraries);
        command
    };
    let version = command().arg("--version").output().expect("the wheel carries it");
    if !version.status.success() {
        let text = String::from_utf8_lossy(&version.stderr).into_owned();
        return skip_unless_ci(&text);
    }
    let folder = Folder::new("perf-analyzer");
    repository::add_example(folder.path(), "digits");
    for (name, config) in [("sums", SUMS), ("square", SQUARE), ("text", TEXT)] {
        repository::add(folder.path(), name, config, None);
    }
    let inputs = Folder::new("perf-analyzer-inputs");
    let file = inputs.path().join("inputs.json");
    std::fs::write(&file, r#"{ "data": [ { "IN": [3] }, { "IN": [5] } ] }"#).expect("the folder is ours");
    let traces = format!("--trace-config=triton,file={}", inputs.path().join("traces").display());
    let server = Server::deuteron(folder.path(), &["--shards=1", "--allow-client-shm=true", &traces]);
    for (mode, requests) in MODES {
        let address = if mode.contains("grpc") { server.grpc() } else { server.http() };
        let mode = mode.replace("--input-data IN", &format!("--input-data {}", file.display()));
        // A run of several loads has windows of a second at least: three, however much they differ, as the speed of a busy machine
        // does not matter here. One in which no request began and ended does not count: it then measures more, up to twenty.
        let measured = if mode.contains("range 1:4:3") {
            format!("--measurement-mode count_windows --measurement-request-count {} -s 999 -r 20", requests / 3)
        } else {
            format!("--request-count {requests}")
        };
        let arguments = format!("{mode} -u {address} {measured}");
        let output = command().args(arguments.split_whitespace()).output().expect("it starts");
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        let has_figure = text.contains("Inferences/Second vs. Client") && text.contains("infer/sec, latency");
        let is_known = text.contains("Successful request count");
        assert!(output.status.success() && has_figure && is_known, "{arguments}\n{text}\n{}", server.log());
    }
    // Two of its modes asked for twenty traces each, ten in a file.
    for index in 0..4 {
        let text = std::fs::read(inputs.path().join(format!("traces.{index}"))).expect("it is written");
        let traces: Vec<serde_json::Value> = serde_json::from_slice(&text).expect("it is JSON");
        assert_eq!(traces.iter().filter(|entry| entry["model_name"] == "digits").count(), 10, "{index}");
    }
}
