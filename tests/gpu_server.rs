//! The server on a machine with a GPU: the example model there gives what it gives on the CPU, classes
//! included, and `/metrics` shows it. On a machine without one: the same configurations are refused
//! with the reason, or serve on the CPU. `.ci/run gpu` runs it too.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "a test waits and fails by panicking"
)]

mod support;

use std::process::Command;

use support::gpu::{check_alike, models};
use support::http;
use support::server::Server;

#[test]
fn the_example_gives_on_a_gpu_what_it_gives_on_the_cpu_or_is_refused_with_the_reason() {
    let groups = [("gpu", "instance_group { kind: KIND_GPU count: 2 }\n")];
    let folder = models(&groups);
    if let Err(why) = deuteron::backend::gpu::cuda::find() {
        let output = Command::new(env!("CARGO_BIN_EXE_deuteron"))
            .args(["serve", folder.path().to_str().unwrap(), "--http-port=0", "--grpc-port=0", "--metrics-port=0"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
        let want = format!("instance group gpu_0 of model gpu has kind KIND_GPU but no GPUs are available: {why}");
        assert!(!output.status.success() && text.contains(&want), "{text}");
        println!("no GPU: {why}");
        return;
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
    match deuteron::backend::gpu::cuda::find() {
        Ok(_) => assert!(config.contains("KIND_GPU") && log.contains("with the GPU's plan"), "{config}\n{log}"),
        Err(why) => {
            assert!(config.contains("KIND_CPU"), "{config}");
            assert_eq!(log.matches(&format!("no GPU is used, models run on the CPU: {why}")).count(), 1, "{log}");
            let metrics = String::from_utf8(http::get(server.metrics(), "/metrics").unwrap().body).unwrap();
            assert!(!metrics.contains("gpu"), "{metrics}");
        }
    }
}
