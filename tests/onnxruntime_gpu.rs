//! The wheel of ONNX Runtime that has the CUDA provider: on a machine without CUDA it names the missing part, and
//! models run on the CPU with it as with the other wheel. `gpu_server` covers its runs on a GPU.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test waits and fails by panicking")]

mod support;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use deuteron::backend::Backend;
use deuteron::backend::gpu::cuda;
use deuteron::engines::Onnxruntime;
use support::folder::Folder;
use support::http;
use support::onnx::builder::{FLOAT, Onnx};
use support::python::Environment;
use support::server::Server;

/// The library of the wheel; `None` if no environment can be made.
fn library() -> Option<PathBuf> {
    let environment = Environment::create("onnxruntime-gpu", "tests/onnxruntime/gpu.txt", &["python3"])?;
    let folder = environment.packages().join("onnxruntime/capi");
    let is_library = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("libonnxruntime.so");
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).find(is_library)
}

/// A repository with a model that adds, in groups of different kinds.
fn repository(models: &[(&str, &str)]) -> Folder {
    let repository = Folder::new("onnxruntime-gpu");
    for (name, config) in models {
        let model = repository.path().join(name);
        fs::create_dir_all(model.join("1")).unwrap();
        fs::write(model.join("config.pbtxt"), config).unwrap();
        fs::write(model.join("1/model.onnx"), Onnx::addsub(FLOAT)).unwrap();
    }
    repository
}

#[test]
fn the_provider_that_cannot_be_loaded_says_why_in_one_line_and_models_run_on_the_cpu() {
    let Some(library) = library() else { return };
    let engine = Onnxruntime::open(&library).unwrap();
    let has_driver = !matches!(cuda::find(), Err(why) if why.contains("is not installed"));
    match engine.why_no_gpu() {
        None => assert!(has_driver, "the provider is linked to the driver"),
        Some(why) => {
            let begin =
                format!("{} has the CUDA provider, which cannot be loaded: Failed to load library ", engine.name());
            assert!(why.starts_with(&begin) && why.contains("cannot open shared object file"), "{why}");
            assert!(!why.contains('\n') && why.len() < 500 && why.contains("LD_LIBRARY_PATH"), "{why}");
            println!("{why}");
        }
    }

    let why = engine.why_no_tensorrt().expect("this wheel's TensorRT is not installed");
    let begin = format!("{} has the TensorRT provider, which cannot be loaded: ", engine.name());
    assert!(why.starts_with(&begin) && !why.contains('\n') && why.len() < 500, "{why}");
    println!("{why}");

    let flag = format!("--backend-config=onnxruntime,library={}", library.display());
    if !has_driver {
        let models = [("auto", ""), ("said", "instance_group { kind: KIND_AUTO count: 1 }")];
        let folder = repository(&models);
        let server = Server::deuteron(folder.path(), &[&flag, "--shards=1", "--gpu-auto=true"]);
        for (model, _) in models {
            let row = |value: &str| [value; 16].join(",");
            let input =
                |name: &str| format!(r#"{{"name":"{name}","shape":[1,16],"datatype":"FP32","data":[{}]}}"#, row("1.5"));
            let body = format!(r#"{{"inputs":[{},{}]}}"#, input("INPUT0"), input("INPUT1"));
            let answer = http::post(server.http(), &format!("/v2/models/{model}/infer"), body.as_bytes()).unwrap();
            let text = String::from_utf8(answer.body).unwrap();
            assert!(answer.status == 200 && text.contains(&format!("\"data\":[{}]", row("3.0"))), "{text}");
        }
        let log = server.log();
        assert_eq!(log.matches("no GPU is used, models run on the CPU: ").count(), 1, "{log}");
        assert_eq!(log.matches(&format!("with {} in ", engine.name())).count(), 2, "{log}");
    }

    let asked =
        "instance_group { kind: KIND_GPU }\nparameters { key: \"engine\" value { string_value: \"onnxruntime\" } }";
    if !has_driver || engine.why_no_gpu().is_some() {
        let folder = repository(&[("gpu", asked)]);
        let output = Command::new(env!("CARGO_BIN_EXE_deuteron"))
            .args([
                "serve",
                folder.path().to_str().unwrap(),
                &flag,
                "--http-port=0",
                "--grpc-port=0",
                "--metrics-port=0",
            ])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        let no_gpu = "instance group gpu_0 of model gpu has kind KIND_GPU but no GPUs are available: ";
        let why = engine.why_no_gpu().filter(|_| has_driver).unwrap_or(no_gpu);
        assert!(!output.status.success() && text.contains(why), "{text}");
    }
}
