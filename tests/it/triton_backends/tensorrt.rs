//! `tensorrt_plan` through hosted backends, with a stand-in library in C that behaves at the interface as the real one
//! does: no real TensorRT runs here.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::{PLACES, infer};
use crate::software_gpu::machine::Machine;
use crate::support::folder::Folder;
use crate::support::gate::add_backend;
use crate::support::server::{Ports, Server};

/// A repository with one model of a plan, and the directory of backends.
fn folders(config: &str) -> Folder {
    let folder = Folder::new("tensorrt");
    add_backend(&folder.path().join("backends"), "tensorrt", "tensorrt");
    let version = folder.path().join("models/plan/1");
    fs::create_dir_all(&version).unwrap();
    fs::write(version.join("model.plan"), "plan 3").unwrap();
    fs::write(version.with_file_name("config.pbtxt"), config).unwrap();
    folder
}

fn backends(folder: &Path) -> String {
    format!("--backend-directory={}", folder.join("backends").display())
}

/// The request of one row.
fn row(parameters: &Value) -> Value {
    json!({"parameters": parameters, "inputs": [{"name": "IN", "shape": [1, 2], "datatype": "FP32", "data": [1.5, -2.0]}]})
}

#[test]
fn a_plan_is_served_by_the_library_of_its_platform_on_a_gpu() {
    let Some(machine) = Machine::new() else { return };
    let folder = folders("platform: 'tensorrt_plan' instance_group { kind: KIND_GPU profile: [ 'small', '1' ] }");
    for place in PLACES {
        let server = machine.serve(&folder.path().join("models"), &[&backends(folder.path()), place]);
        let (status, answer) = infer(&server, "plan", &row(&json!({})));
        assert_eq!((status, &answer["outputs"][0]["data"]), (200, &json!([4.5, -6.0])), "{place} {answer}");
        let log = server.log();
        for want in [
            "loaded 'plan' version 1 with 'libtriton_tensorrt.so'",
            "plan on GPU 0 with profile small",
            "plan on GPU 0 with profile 1",
            // The backend goes on with memory of the CPU.
            "this host allocates no pinned memory for models on GPUs",
        ] {
            assert!(log.contains(want), "{place} {want}: {log}");
        }
        let (status, answer) = infer(&server, "plan", &row(&json!({"device": true})));
        let error = answer["error"].as_str().unwrap();
        assert!(status == 501 && error.contains("allocates memory of the CPU and not of GPUs"), "{status} {error}");
        let config = crate::support::http::get(server.http(), "/v2/models/plan/config").unwrap();
        let config: Value = serde_json::from_slice(&config.body).unwrap();
        assert_eq!((&config["max_batch_size"], &config["backend"]), (&json!(8), &json!("tensorrt")));
        assert_eq!(config["instance_group"][0]["profile"], json!(["small", "1"]));
    }
}

#[test]
fn without_a_gpu_a_plan_is_refused_and_the_reason_is_the_gpu() {
    let refusal = |config: &str, flags: &[&str]| {
        let folder = folders(config);
        let directory = backends(folder.path());
        let flags = [&[directory.as_str()], flags].concat();
        let output = Server::command(&folder.path().join("models"), &flags, Ports::free()).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let plain = "platform: 'tensorrt_plan'";
    // By preference of the backend, by configuration, and forced to the CPU.
    let by_library = "unable to load model 'plan', TensorRT backend supports only GPU device";
    for flags in [&["--gpu=off"][..], &["--gpu=off", "--backend-isolation=process"]] {
        let text = refusal(plain, flags);
        assert!(text.contains(by_library), "{text}");
    }
    let text = refusal("platform: 'tensorrt_plan' instance_group { kind: KIND_GPU }", &[]);
    assert!(text.contains("KIND_GPU") || text.contains("GPU"), "{text}");
    // A file that is not a plan is refused in the backend's words.
    let folder = folders(plain);
    fs::write(folder.path().join("models/plan/1/model.plan"), "no plan").unwrap();
    let directory = backends(folder.path());
    let mut command: Command = Server::command(&folder.path().join("models"), &[&directory], Ports::free());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(text.contains("unable to load plan file to auto complete config of 'plan'"), "{text}");
}
