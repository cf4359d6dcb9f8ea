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

use std::path::Path;
use std::process::Command;

use support::folder::Folder;
use support::server::Server;
use support::{http, repository};

/// A repository with the example as it is, on the CPU, and under other names with other groups.
fn models(groups: &[(&str, &str)]) -> Folder {
    let folder = Folder::new("gpu");
    repository::add_example(folder.path(), "digits");
    let text = std::fs::read_to_string(folder.path().join("digits/config.pbtxt")).unwrap();
    for (name, group) in groups {
        repository::add_example(folder.path(), "digits");
        let to = folder.path().join(name);
        copy(&folder.path().join("digits"), &to);
        let (before, _) = text.split_once("instance_group").unwrap();
        let text = before.replace("name: \"digits\"", &format!("name: \"{name}\"")) + group;
        std::fs::write(to.join("config.pbtxt"), text).unwrap();
    }
    folder
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
        if path.is_dir() { copy(&path, &to.join(name)) } else { std::fs::copy(&path, to.join(name)).map(drop).unwrap() }
    }
}

/// What a model answers: probabilities of a batch, and the three best classes of its rows.
fn answers(server: &Server, model: &str, rows: usize) -> (Vec<f64>, Vec<String>) {
    let pixels: Vec<String> = (0..rows * 64).map(|index| (index * 7 % 17).to_string()).collect();
    let ask = |outputs: &str| {
        let body = format!(
            r#"{{"inputs":[{{"name":"pixels","datatype":"FP32","shape":[{rows},64],"data":[{}]}}],"outputs":[{outputs}]}}"#,
            pixels.join(",")
        );
        let response = http::post(server.http(), &format!("/v2/models/{model}/infer"), body.as_bytes()).unwrap();
        let text = String::from_utf8(response.body).unwrap();
        assert_eq!(response.status, 200, "{text}");
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["outputs"][0]["data"].as_array().unwrap().clone()
    };
    let floats = ask(r#"{"name":"probabilities"}"#).iter().map(|value| value.as_f64().unwrap()).collect();
    let classes = ask(r#"{"name":"probabilities","parameters":{"classification":1}}"#);
    // The number behind the probability: the last bits of that may differ.
    let index = |text: &serde_json::Value| text.as_str().unwrap().split_once(':').unwrap().1.to_owned();
    (floats, classes.iter().map(index).collect())
}

fn check_alike(server: &Server, model: &str) {
    for rows in [1, 3, 64] {
        let ((got, got_classes), (want, want_classes)) =
            (answers(server, model, rows), answers(server, "digits", rows));
        assert_eq!((got.len(), got_classes), (want.len(), want_classes), "{model}");
        assert!(got.iter().zip(&want).all(|(got, want)| (got - want).abs() < 1e-5), "{model}: {got:?} for {want:?}");
    }
}

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
