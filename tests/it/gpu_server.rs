//! The server on a machine with a GPU: the example model answers as on the CPU, classes included, and `/metrics` shows
//! it; so do models that the native plan lacks, where ONNX Runtime with its CUDA provider is named (`ORT_DYLIB_PATH`;
//! its dependencies in `LD_LIBRARY_PATH`). On a machine without one: the same configurations are refused with the
//! reason, or serve on the CPU. `.ci/run gpu` runs it too.

use std::path::Path;
use std::process::Command;

use crate::support::folder::Folder;
use crate::support::gpu::{check_alike, models};
use crate::support::onnx::builder::{FLOAT, INT64, Onnx};
use crate::support::server::Server;
use crate::support::skipped::skip;
use crate::support::{http, repository};
use deuteron::engines::Onnxruntime;

#[test]
fn the_example_gives_on_a_gpu_what_it_gives_on_the_cpu_or_is_refused_with_the_reason() {
    let groups = [("gpu", "instance_group { kind: KIND_GPU count: 2 }\n")];
    let folder = models(&groups);
    if let Err(why) = backend::gpu::cuda::find() {
        let output = Command::new(env!("CARGO_BIN_EXE_deuteron"))
            .args(["serve", folder.path().to_str().unwrap(), "--http-port=0", "--grpc-port=0", "--metrics-port=0"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
        let want = format!("instance group gpu_0 of model gpu has kind KIND_GPU but no GPUs are available: {why}");
        assert!(!output.status.success() && text.contains(&want), "{text}");
        return skip(&format!("no GPU, only that it is told was tested: {why}"));
    }
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    check_alike(&server, "gpu");
    let metrics = String::from_utf8(http::get(server.metrics(), "/metrics").unwrap().body).unwrap();
    let done = "deuteron_gpu_batches_total{model=\"gpu\",version=\"1\",state=\"done\"} 6";
    assert!(metrics.contains(done) && metrics.contains("deuteron_gpu_memory_taken_bytes"), "{metrics}");
    println!("{}", server.log());
}

#[test]
fn a_group_that_does_not_say_where_it_is_serves_wherever_it_can() {
    let groups = [("auto", ""), ("said", "instance_group { kind: KIND_AUTO count: 1 }\n")];
    let folder = models(&groups);
    let server = Server::deuteron(folder.path(), &["--shards=1", "--gpu-auto=true"]);
    ["auto", "said"].iter().for_each(|model| check_alike(&server, model));
    let config = String::from_utf8(http::get(server.http(), "/v2/models/said/config").unwrap().body).unwrap();
    let log = server.log();
    match backend::gpu::cuda::find() {
        Ok(_) => assert!(config.contains("KIND_GPU") && log.contains("with the GPU's plan"), "{config}\n{log}"),
        Err(why) => {
            assert!(config.contains("KIND_CPU"), "{config}");
            assert_eq!(log.matches(&format!("no GPU is used, models run on the CPU: {why}")).count(), 1, "{log}");
            let metrics = String::from_utf8(http::get(server.metrics(), "/metrics").unwrap().body).unwrap();
            assert!(!metrics.contains("gpu"), "{metrics}");
        }
    }
}

/// Filters of 3 x 3, a ReLU, and the mean of each: `[N, 1, 8, 8]` to `[N, 4, 1, 1]`.
fn convolution() -> Vec<u8> {
    let weights: Vec<u8> = (0..36_i32).flat_map(|index| ((index * 7 % 11 - 5) as f32 / 8.0).to_le_bytes()).collect();
    Onnx::default()
        .constant("w", FLOAT, &[4, 1, 3, 3], &weights)
        .node("Conv", &["x", "w"], &["c"], &[])
        .node("Relu", &["c"], &["r"], &[])
        .node("GlobalAveragePool", &["r"], &["y"], &[])
        .input("x", FLOAT, &[-1, 1, 8, 8])
        .output("y", FLOAT, &[-1, 4, 1, 1])
        .into_bytes()
}

/// `y` is `x`, twice, of any width; `n` is that width, which the library computes on the CPU.
fn doubling() -> Vec<u8> {
    Onnx::default()
        .constant("last", INT64, &[1], &1_i64.to_le_bytes())
        .node("Concat", &["x", "x"], &["y"], &[("axis", 1)])
        .node("Shape", &["x"], &["shape"], &[])
        .node("Gather", &["shape", "last"], &["n"], &[("axis", 0)])
        .input("x", FLOAT, &[-1, -1])
        .output("y", FLOAT, &[-1, -1])
        .output("n", INT64, &[1])
        .into_bytes()
}

/// All numbers in a model's answer, output by output.
fn numbers(server: &Server, model: &str, shape: &[usize]) -> Vec<f64> {
    let count: usize = shape.iter().product();
    let values: Vec<String> = (0..count).map(|index| (index * 13 % 29).to_string()).collect();
    let body =
        format!(r#"{{"inputs":[{{"name":"x","datatype":"FP32","shape":{shape:?},"data":[{}]}}]}}"#, values.join(","));
    let response = http::post(server.http(), &format!("/v2/models/{model}/infer"), body.as_bytes()).unwrap();
    let text = String::from_utf8(response.body).unwrap();
    assert_eq!(response.status, 200, "{text}");
    let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
    let outputs = answer["outputs"].as_array().unwrap();
    outputs.iter().flat_map(|output| output["data"].as_array().unwrap()).map(|value| value.as_f64().unwrap()).collect()
}

#[test]
fn models_that_the_plan_lacks_run_on_onnx_runtime_s_cuda_provider_where_it_is_named() {
    let Some(library) = std::env::var_os("ORT_DYLIB_PATH") else {
        return skip("ORT_DYLIB_PATH names no library of ONNX Runtime");
    };
    if let Err(why) = backend::gpu::cuda::find() {
        return skip(&format!("no GPU: {why}"));
    }
    let engine = Onnxruntime::open(Path::new(&library)).unwrap();
    if let Some(why) = engine.why_no_gpu() {
        return skip(why);
    }
    let folder = Folder::new("gpu-onnxruntime");
    let io = |name: &str, side: &str, kind: &str, dims: &str| {
        format!("{side} {{ name: \"{name}\" data_type: TYPE_{kind} dims: [ {dims} ] }}\n")
    };
    let conv =
        format!("max_batch_size: 16\n{}{}", io("x", "input", "FP32", "1, 8, 8"), io("y", "output", "FP32", "4, 1, 1"));
    let twice =
        [io("x", "input", "FP32", "-1, -1"), io("y", "output", "FP32", "-1, -1"), io("n", "output", "INT64", "1")];
    for (name, config, file) in [("conv", conv, convolution()), ("twice", twice.concat(), doubling())] {
        for (suffix, group) in [("gpu", "KIND_GPU count: 2"), ("cpu", "KIND_CPU")] {
            let config = format!("backend: \"onnxruntime\"\n{config}instance_group {{ kind: {group} }}\n");
            repository::add(folder.path(), &format!("{name}_{suffix}"), &config, Some(&file));
        }
    }
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    for round in 0..3 {
        for rows in [1, 3, 16] {
            let (got, want) =
                (numbers(&server, "conv_gpu", &[rows, 1, 8, 8]), numbers(&server, "conv_cpu", &[rows, 1, 8, 8]));
            assert_eq!(got.len(), want.len(), "{round} {rows}");
            // The provider may multiply in TF32.
            let is_near = |(got, want): (&f64, &f64)| (got - want).abs() <= 1e-2 * want.abs().max(1.0);
            assert!(got.iter().zip(&want).all(is_near), "{round} {rows}: {got:?} for {want:?}");
        }
        for shape in [[1, 3], [2, 5], [4, 1]] {
            assert_eq!(
                numbers(&server, "twice_gpu", &shape),
                numbers(&server, "twice_cpu", &shape),
                "{round} {shape:?}"
            );
        }
    }
    let (log, metrics) =
        (server.log(), String::from_utf8(http::get(server.metrics(), "/metrics").unwrap().body).unwrap());
    assert_eq!(log.matches(" on GPUs in ").count(), 2, "{log}");
    let done = |model: &str| format!("deuteron_gpu_batches_total{{model=\"{model}\",version=\"1\",state=\"done\"}} 9");
    assert!(metrics.contains(&done("conv_gpu")) && metrics.contains(&done("twice_gpu")), "{metrics}");
    println!("{log}");
}
