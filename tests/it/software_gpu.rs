//! The GPU code without a GPU: the real server, and the real calls of the driver, cuBLASLt and NVML, on libraries that
//! `software_gpu/*.cpp` makes after NVIDIA's documentation. Properties of hardware (speed, the driver's compiler,
//! cuBLASLt's own algorithms) are for `.ci/run gpu`.

#[expect(unsafe_code, reason = "the handles of a driver are ended, and used once more")]
mod device;
mod libraries;
pub mod machine;
mod rows;

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::support::gpu::{answers, check_alike, dense, models};
use crate::support::http::Response;
use crate::support::metrics::{self, metric};
use crate::support::server::{Ports, Server};
use crate::support::{http, repository};
use machine::{Machine, until};

const ON_GPU: (&str, &str) = ("gpu", "instance_group { kind: KIND_GPU count: 2 }\n");
const SINGLE: (&str, &str) = ("gpu", "instance_group { kind: KIND_GPU count: 1 }\n");
const ANYWHERE: (&str, &str) = ("gpu", "instance_group { kind: KIND_AUTO count: 1 }\n");
const UUID: &str = "GPU-a0a7aeb5-bcc3-cad1-d8df-e6edf4fb0209";

/// A request for one row of a model, told apart by `seed`.
fn ask(server: &Server, model: &str, seed: usize) -> Response {
    let pixels: Vec<String> = (0..64).map(|index| ((index * 7 + seed * 5) % 17).to_string()).collect();
    let pixels = pixels.join(",");
    let body = format!(r#"{{"inputs":[{{"name":"pixels","datatype":"FP32","shape":[1,64],"data":[{pixels}]}}]}}"#);
    http::post(server.http(), &format!("/v2/models/{model}/infer"), body.as_bytes()).unwrap()
}

fn probabilities(response: &Response) -> Vec<f64> {
    let text = String::from_utf8_lossy(&response.body);
    assert_eq!(response.status, 200, "{text}");
    let value = serde_json::from_str::<serde_json::Value>(&text).unwrap();
    value["outputs"][0]["data"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
}

fn text(response: &Response) -> String {
    String::from_utf8_lossy(&response.body).into_owned()
}

fn gpu_metric(server: &Server, name: &str, more: &str) -> u64 {
    metric(server.metrics(), &format!("deuteron_gpu_{name}{{model=\"gpu\",version=\"1\"{more}}}"))
}

fn metrics(server: &Server) -> String {
    String::from_utf8(http::get(server.metrics(), "/metrics").unwrap().body).unwrap()
}

fn is_ready(server: &Server, model: &str) -> bool {
    http::get(server.http(), &format!("/v2/models/{model}/ready")).unwrap().status == 200
}

/// Stops a server, and checks that it released everything to the driver.
fn end(mut server: Server, machine: &Machine) {
    assert!(server.stop().success(), "{}", server.log());
    machine.check_clean();
}

/// Message of a server that does not start.
fn refusal(machine: &Machine, groups: &[(&str, &str)]) -> String {
    let folder = models(groups);
    let mut command = Server::command(folder.path(), &["--shards=1"], Ports::free());
    machine.prepare(&mut command);
    let output = command.output().unwrap();
    assert!(!output.status.success());
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[test]
fn the_server_gives_on_it_what_it_gives_on_the_cpu_and_shows_it() {
    let Some(machine) = Machine::new() else { return };
    let folder = models(&[ON_GPU]);
    let server = machine.serve(folder.path(), &[]);
    check_alike(&server, "gpu");
    for (want, state) in [(6, "begun"), (6, "done")] {
        assert_eq!(gpu_metric(&server, "batches_total", &format!(",state=\"{state}\"")), want, "{state}");
    }
    for stage in ["upload", "compute", "download"] {
        let name = format!("deuteron_gpu_time_seconds_total{{model=\"gpu\",version=\"1\",stage=\"{stage}\"}}");
        assert!(metrics::seconds(server.metrics(), &name) > 0.0, "{stage}");
    }
    let row = |name: &str, value: &str| format!("{name}{{gpu_uuid=\"{UUID}\"}} {value}\n");
    // NVML is read every other second.
    let taken = |text: &str, name: &str| {
        let start = row(name, "");
        let value = text.lines().find_map(|line| line.strip_prefix(start.trim_end_matches('\n')));
        value.map(|value| value.parse::<u64>().unwrap())
    };
    // Millijoules: 5,000, and one for each launch.
    let energy = row("nv_energy_consumption", "5.0");
    until("the memory and the energy of the runs show", || {
        let text = metrics(&server);
        taken(&text, "deuteron_gpu_memory_taken_bytes").is_some_and(|used| used > 0) && text.contains(energy.trim_end())
    });
    let text = metrics(&server);
    for (name, value) in [
        ("nv_gpu_utilization", "0.37"),
        ("nv_gpu_memory_total_bytes", "268435456"),
        ("nv_gpu_power_usage", "123.456"),
        ("nv_gpu_power_limit", "700"),
    ] {
        assert!(text.contains(&row(name, value)), "{name}:\n{text}");
    }
    let ours = taken(&text, "deuteron_gpu_memory_taken_bytes").unwrap();
    let all = taken(&text, "nv_gpu_memory_used_bytes").unwrap();
    assert_eq!(all, ours + (1 << 20), "what we count is what the driver gave, but for the context");
    let log = server.log();
    assert!(log.contains("GPU 0: Software GPU 0, compute capability 9.0, 256 MiB"), "{log}");
    end(server, &machine);
}

#[test]
fn of_a_classification_only_the_best_come_back() {
    let Some(machine) = Machine::new().map(|machine| machine.with("TRACE", "1")) else { return };
    let folder = models(&[SINGLE]);
    let server = machine.serve(folder.path(), &[]);
    let before = machine.log().len();
    let (_, classes) = answers(&server, "gpu", 64);
    assert_eq!(classes, answers(&server, "digits", 64).1);
    let log = machine.log()[before..].to_owned();
    let copies: Vec<&str> = log.lines().filter_map(|line| line.strip_prefix("out: ")).collect();
    // Inputs: 64 rows of ten values. Outputs: one value and one index of the best of each.
    assert_eq!(copies, [(64 * 10 * 4).to_string(), (64 * (4 + 4)).to_string()]);
    end(server, &machine);
}

#[test]
fn batches_of_many_clients_go_through_both_instances_and_overlap() {
    let Some(machine) = Machine::new().map(|machine| machine.with("DELAY_US", "1000")) else { return };
    let folder = models(&[ON_GPU]);
    let server = machine.serve(folder.path(), &[]);
    let want: Vec<_> = (0..16).map(|seed| probabilities(&ask(&server, "digits", seed))).collect();
    let asked = AtomicUsize::new(0);
    thread::scope(|scope| {
        for client in 0..12 {
            let (server, want, asked) = (&server, &want, &asked);
            scope.spawn(move || {
                for turn in 0..25 {
                    let seed = (client + turn) % want.len();
                    let got = probabilities(&ask(server, "gpu", seed));
                    let is_near = got.iter().zip(&want[seed]).all(|(got, want)| (got - want).abs() < 1e-5);
                    assert!(is_near, "{got:?} and not {:?}", want[seed]);
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(asked.into_inner(), 300);
    let batches = gpu_metric(&server, "batches_total", ",state=\"done\"");
    assert!((10..300).contains(&batches), "{batches} batches of 300 requests");
    assert_eq!(gpu_metric(&server, "flights_peak", ""), 2, "one is uploaded while another computes");
    for instance in ["gpu_0_0", "gpu_0_1"] {
        let name = format!("deuteron_instance_batches_total{{instance=\"{instance}\",model=\"gpu\",version=\"1\"}}");
        assert!(metric(server.metrics(), &name) > 0, "{instance}");
    }
    end(server, &machine);
}

#[test]
fn a_broken_context_costs_what_was_in_flight_and_the_instances_are_made_anew() {
    let Some(machine) = Machine::new() else { return };
    let folder = models(&[ON_GPU]);
    let server = machine.serve(folder.path(), &[]);
    for round in 1..=3 {
        machine.fail("illegal@1");
        let refused = ask(&server, "gpu", 1);
        assert_eq!(refused.status, 503, "{}", text(&refused));
        assert!(text(&refused).contains("was lost and is recreated"), "{}", text(&refused));
        until("both instances are new", || gpu_metric(&server, "restarts_total", "") == 2 * round);
        check_alike(&server, "gpu");
        assert_eq!(gpu_metric(&server, "failures_total", ",kind=\"sticky\""), 2 * round, "they shared the context");
    }
    assert!(is_ready(&server, "gpu"));
    end(server, &machine);
}

/// An illegal address, by the words of `cuda.h`: the whole process can no longer use CUDA.
#[test]
fn a_process_that_cuda_has_given_up_goes_on_without_its_gpus() {
    let Some(machine) = Machine::new().map(|machine| machine.with("STICKY", "process")) else { return };
    let folder = models(&[ON_GPU]);
    let mut server = machine.serve(folder.path(), &[]);
    machine.fail("illegal@1");
    assert_eq!(ask(&server, "gpu", 1).status, 503);
    until("the model is not ready", || !is_ready(&server, "gpu"));
    assert!(is_ready(&server, "digits"));
    assert_eq!(answers(&server, "digits", 3).0.len(), 30, "what is on the CPU goes on");
    let log = server.log();
    assert!(log.contains("was lost and cannot be recreated yet"), "{log}");
    assert!(server.stop().success());
}

#[test]
fn a_batch_that_does_not_end_is_refused_and_its_instance_made_anew() {
    let Some(machine) = Machine::new() else { return };
    let folder = models(&[SINGLE]);
    let mut server = machine.serve(folder.path(), &["--gpu-run-secs-max=1"]);
    machine.fail("hang@1");
    let refused = ask(&server, "gpu", 1);
    assert_eq!(refused.status, 503);
    assert!(text(&refused).contains("a batch was not done within 1s"), "{}", text(&refused));
    check_alike(&server, "gpu");
    assert_eq!(gpu_metric(&server, "failures_total", ",kind=\"hang\""), 1);
    assert!(server.stop().success(), "what hangs is left behind: {}", server.log());
    assert!(!machine.log().contains("misuse"), "{}", machine.log());
}

#[test]
fn a_call_that_is_refused_costs_its_batch_alone_and_a_wake_that_is_lost_nothing() {
    let Some(machine) = Machine::new() else { return };
    let folder = models(&[SINGLE]);
    let server = machine.serve(folder.path(), &[]);
    for (fault, code) in [("refuse@1", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES (701)"), ("matmul-fails@1", "")] {
        machine.fail(fault);
        let refused = ask(&server, "gpu", 1);
        assert!([500, 503].contains(&refused.status) && text(&refused).contains(code), "{}", text(&refused));
        check_alike(&server, "gpu");
    }
    assert_eq!(gpu_metric(&server, "failures_total", ",kind=\"transient\""), 1);
    machine.fail("silent@*");
    check_alike(&server, "gpu");
    end(server, &machine);
}

#[test]
fn a_model_that_memory_is_short_for_is_refused_or_runs_on_the_cpu() {
    for machine in [Machine::new().map(|machine| machine.with("FAULTS", "oom@1")), Machine::new().map(small)] {
        let Some(machine) = machine else { return };
        let log = refusal(&machine, &[ON_GPU]);
        assert!(log.contains("has an instance group of KIND_GPU and cannot run there: "), "{log}");
        assert!(log.contains("CUDA_ERROR_OUT_OF_MEMORY (2) in cuMemAlloc"), "{log}");
        machine.check_clean();
        let folder = models(&[ANYWHERE]);
        let server = machine.serve(folder.path(), &["--gpu-auto=true"]);
        check_alike(&server, "gpu");
        end(server, &machine);
    }
    let Some(machine) = Machine::new().map(|machine| machine.with("FAULTS", "oom-host@3")) else { return };
    let folder = models(&[ANYWHERE]);
    let server = machine.serve(folder.path(), &["--gpu-auto=true"]);
    let log = server.log();
    assert!(log.contains("'gpu' runs on the CPU and not on a GPU: ") && log.contains("cuMemHostAlloc"), "{log}");
    check_alike(&server, "gpu");
    end(server, &machine);
}

/// A GPU with room for one context and nothing else.
fn small(machine: Machine) -> Machine {
    machine.with("MEMORY", &((1 << 20) + 8192).to_string())
}

#[test]
fn a_model_that_comes_and_goes_leaves_nothing() {
    let Some(machine) = Machine::new() else { return };
    let folder = models(&[ON_GPU]);
    let server = machine.serve(folder.path(), &["--model-control-mode=explicit"]);
    let order = |model: &str, what: &str| {
        let response = http::post(server.http(), &format!("/v2/repository/models/{model}/{what}"), b"").unwrap();
        assert_eq!(response.status, 200, "{}", text(&response));
    };
    order("digits", "load");
    for _ in 0..3 {
        order("gpu", "load");
        check_alike(&server, "gpu");
        // Loads over a serving version.
        order("gpu", "load");
        check_alike(&server, "gpu");
        order("gpu", "unload");
    }
    let used = format!("nv_gpu_memory_used_bytes{{gpu_uuid=\"{UUID}\"}} 0\n");
    until("the memory is free again", || metrics(&server).contains(&used));
    let taken = format!("deuteron_gpu_memory_taken_bytes{{gpu_uuid=\"{UUID}\"}} 0\n");
    assert!(metrics(&server).contains(&taken));
    end(server, &machine);
}

#[test]
fn a_model_that_gives_other_numbers_there_is_not_run_there() {
    // Every product, or one alone of the largest batch.
    for fault in ["matmul@*", "matmul@3"] {
        let Some(machine) = Machine::new().map(|machine| machine.with("FAULTS", fault)) else { return };
        let log = refusal(&machine, &[SINGLE]);
        let want = "model 'gpu' has an instance group of KIND_GPU and cannot run there: the GPU's plan: a batch of ";
        assert!(log.contains(want) && log.contains("on GPU 0 gives other numbers than on the CPU: element"), "{log}");
        let folder = models(&[ANYWHERE]);
        let server = machine.serve(folder.path(), &["--gpu-auto=true"]);
        check_alike(&server, "gpu");
        let log = server.log();
        assert!(log.contains("'gpu' runs on the CPU and not on a GPU: the GPU's plan: a batch of "), "{log}");
        end(server, &machine);
    }
}

#[test]
fn a_dense_model_of_biases_and_transposed_weights_is_that_of_the_cpu() {
    let Some(machine) = Machine::new() else { return };
    let folder = models(&[]);
    let config = |name: &str, kind: &str| {
        format!("name: \"{name}\" backend: \"onnxruntime\" max_batch_size: 5 instance_group {{ kind: {kind} }}\n")
    };
    let file = dense(48, 3);
    repository::add(folder.path(), "wide", &config("wide", "KIND_GPU"), Some(&file));
    repository::add(folder.path(), "wide_cpu", &config("wide_cpu", "KIND_CPU"), Some(&file));
    let server = machine.serve(folder.path(), &[]);
    let values = |model: &str, rows: usize| {
        let x: Vec<String> = (0..rows * 48).map(|index| format!("{}", (index * 5 % 13) as f32 / 6.5 - 1.0)).collect();
        let x = x.join(",");
        let body = format!(r#"{{"inputs":[{{"name":"x","datatype":"FP32","shape":[{rows},48],"data":[{x}]}}]}}"#);
        probabilities(&http::post(server.http(), &format!("/v2/models/{model}/infer"), body.as_bytes()).unwrap())
    };
    for rows in 1..=5 {
        let (got, want) = (values("wide", rows), values("wide_cpu", rows));
        assert!(got.iter().zip(&want).all(|(got, want)| (got - want).abs() < 1e-5), "{rows}: {got:?} for {want:?}");
    }
    end(server, &machine);
}

#[test]
fn instances_are_on_all_devices() {
    let Some(machine) = Machine::new().map(|machine| machine.with("DEVICES", "2")) else { return };
    let folder = models(&[SINGLE]);
    let server = machine.serve(folder.path(), &[]);
    for _ in 0..4 {
        check_alike(&server, "gpu");
    }
    let text = metrics(&server);
    let instances = text
        .lines()
        .filter(|line| line.starts_with("deuteron_instance_batches_total{") && line.contains("model=\"gpu\""));
    assert_eq!(instances.count(), 2, "{text}");
    for last in ["09", "0a"] {
        assert!(text.contains(&format!("{last}\"}} 0.37")), "{text}");
    }
    end(server, &machine);
}

#[test]
fn a_driver_that_lacks_a_function_is_told_by_its_name_and_nothing_panics() {
    let Some(machine) = Machine::new() else { return };
    assert_eq!(device::found_with(&machine, None), "1 devices");
    let mut unused = Vec::new();
    for function in libraries::functions() {
        let Some(folder) = libraries::without("libcuda.so.1", Some(&function)) else { return };
        match device::found_with(&machine, Some(folder.path())) {
            found if found == "1 devices" => unused.push(function),
            found => {
                assert_eq!(found, format!("the CUDA driver is too old: it lacks '{function}', which CUDA 11.4 has"),)
            }
        }
    }
    assert_eq!(unused, ["cuDeviceGetUuid_v2", "cuMemcpyDtoDAsync_v2"], "those that the server calls are looked for");
}

#[test]
fn a_driver_that_cannot_be_used_is_told_once_and_models_run_on_the_cpu() {
    let serve = |machine: &Machine, libraries: &Path, want: &str| {
        let folder = models(&[ANYWHERE]);
        let mut server = machine.serve_with(folder.path(), &["--gpu-auto=true"], libraries);
        check_alike(&server, "gpu");
        let log = server.log();
        let line = format!("no GPU is used, models run on the CPU: {want}\"\n");
        assert_eq!(log.matches(&line).count(), 1, "{log}");
        assert!(!log.contains("panicked") && !metrics(&server).contains("gpu_uuid"), "{log}");
        assert!(server.stop().success());
    };
    let Some(built) = libraries::built() else { return };
    let check = |name: &str, value: &str, want: &str| {
        let Some(machine) = Machine::new().map(|machine| machine.with(name, value)) else { return };
        serve(&machine, built, want);
    };
    check("DEVICES", "0", "the CUDA driver has no device");
    check("INIT", "100", "the CUDA driver has no device");
    check("INIT", "304", "no permission to use the devices (CUDA_ERROR_OPERATING_SYSTEM (304) in cuInit)");
    check("INIT", "800", "no permission to use the devices (CUDA_ERROR_NOT_PERMITTED (800) in cuInit)");
    let mismatch = "libcuda does not go with the kernel's driver (CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803) in cuInit)";
    check("INIT", "803", mismatch);
    check("INIT", "34", "CUDA_ERROR_STUB_LIBRARY (34) in cuInit");
    check("VERSION", "11000", "the CUDA driver is too old: it is of CUDA 11.0, 11.4 is needed");
    let lacking = libraries::without("libcuda.so.1", Some("cuLaunchHostFunc"));
    let (Some(machine), Some(lacking)) = (Machine::new(), lacking) else { return };
    let want = "the CUDA driver is too old: it lacks 'cuLaunchHostFunc', which CUDA 11.4 has";
    serve(&machine, lacking.path(), want);
}

#[test]
fn without_cublaslt_products_are_refused_and_without_nvml_nothing_but_its_rows() {
    let Some(machine) = Machine::new() else { return };
    let check = |library: &str, function: Option<&str>, want: &str| {
        let Some(libraries) = libraries::without(library, function) else { return };
        let folder = models(&[ANYWHERE]);
        let mut server = machine.serve_with(folder.path(), &["--gpu-auto=true"], libraries.path());
        check_alike(&server, "gpu");
        let log = server.log();
        assert!(log.contains(want), "{want}:\n{log}");
        assert!(server.stop().success());
    };
    let on_cpu = "'gpu' runs on the CPU and not on a GPU: the GPU's plan: an instance of model 'gpu' cannot be made on \
                  GPU 0: the GPU failed: ";
    check(
        "libcublasLt.so.13",
        Some("cublasLtMatmul"),
        &format!("{on_cpu}libcublasLt.so.13 cannot be used: cuBLASLt has no 'cublasLtMatmul'"),
    );
    if Command::new("ldconfig")
        .arg("-p")
        .output()
        .is_ok_and(|output| !String::from_utf8_lossy(&output.stdout).contains("libcublasLt"))
    {
        check("libcublasLt.so.13", None, &format!("{on_cpu}cuBLASLt (libcublasLt.so.11 to .13) is not installed"));
        check("libnvidia-ml.so.1", None, "/metrics has no rows of NVML: NVML (libnvidia-ml.so.1) is not installed");
    }
    check("libnvidia-ml.so.1", Some("nvmlInit_v2"), "/metrics has no rows of NVML: NVML has no 'nvmlInit_v2'");
    let Some(stubborn) = Machine::new().map(|machine| machine.with("FAULTS", "no-algorithm@*")) else { return };
    let log = refusal(&stubborn, &[SINGLE]);
    assert!(log.contains("CUBLAS_STATUS 15 in cublasLtMatmulAlgoGetHeuristic"), "{log}");
    // If one figure is not known, the others are.
    let libraries = libraries::without("libnvidia-ml.so.1", Some("nvmlDeviceGetPowerUsage"));
    let Some(libraries) = libraries else { return };
    let folder = models(&[SINGLE]);
    let server = machine.serve_with(folder.path(), &[], libraries.path());
    until("NVML was asked", || metrics(&server).contains("nv_gpu_power_limit{"));
    assert!(!metrics(&server).contains("nv_gpu_power_usage{"));
    end(server, &machine);
}
