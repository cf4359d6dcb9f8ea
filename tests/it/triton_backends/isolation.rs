//! Backends in processes of their own: a crash, a hang or growth in one costs only its own requests, and the server's
//! counts stay right.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{folders, infer, start};
use crate::isolation::{children, is_ready, signal, until};
use crate::support::folder::Folder;
use crate::support::gate::add_backend;
use crate::support::metrics::metric;
use crate::support::server::Server;
use crate::support::{http, repository};

/// Actions of the backend `unruly` for these inputs.
const SEGV: i32 = 101;
const ABORT: i32 = 102;
const EXIT: i32 = 103;
const THREAD_SEGV: i32 = 104;
const HANG: i32 = 105;
const FORGET: i32 = 106;
const LEAK: i32 = 107;
const LATER: i32 = 108;
const UNTIL_CANCELLED: i32 = 111;

const UNRULY: &str = "backend: 'unruly' max_batch_size: 4 instance_group { count: 1 }
    input { name: 'IN' data_type: TYPE_INT32 dims: 1 } output { name: 'OUT' data_type: TYPE_INT32 dims: 1 }";

fn unruly(parameters: &[(&str, &str)]) -> String {
    let parameter =
        |(key, value): &(&str, &str)| format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}\n");
    parameters.iter().map(parameter).fold(format!("{UNRULY}\n"), |text, more| text + &more)
}

/// A request with this input. Returns its status, and its output or error.
fn ask(server: &Server, value: i32) -> (u16, String) {
    let input = json!({"name": "IN", "shape": [1, 1], "datatype": "INT32", "data": [value]});
    let (status, answer) = infer(server, "unruly", &json!({"inputs": [input]}));
    let text = answer["error"].as_str().map_or_else(|| answer["outputs"][0]["data"][0].to_string(), str::to_owned);
    (status, text)
}

fn count(server: &Server, name: &str) -> u64 {
    metric(server.metrics(), &format!("{name}{{model=\"unruly\",version=\"1\"}}"))
}

fn failures(server: &Server, reason: &str) -> u64 {
    let name = format!("nv_inference_request_failure{{model=\"unruly\",reason=\"{reason}\",version=\"1\"}}");
    metric(server.metrics(), &name)
}

#[test]
fn whatever_ends_a_process_costs_its_request_and_the_next_one_is_served() {
    let (_folder, models, backends) = folders(&[("unruly", &unruly(&[("run_timeout_secs", "1")]))]);
    let mut server = start(&models, &backends, &["--backend-isolation=process"]);
    let stopped = "the run took longer than 1s (--run-timeout-secs, or the model's parameter 'run_timeout_secs') and was \
                   stopped";
    let table = [
        (SEGV, 500, "the process of model 'unruly' ended (killed by signal 11 (SIGSEGV)) while it had the request"),
        (ABORT, 500, "ended (killed by signal 6 (SIGABRT)) while it had the request; it is started again"),
        (EXIT, 500, "ended (exit status 7) while it had the request"),
        (THREAD_SEGV, 500, "ended (killed by signal 11 (SIGSEGV)) while it had the request"),
        (HANG, 504, stopped),
        (FORGET, 504, stopped),
    ];
    let mut served = 0;
    let serve = |served: &mut u64| {
        assert_eq!(ask(&server, 5), (200, "5".to_owned()));
        assert_eq!(ask(&server, LATER), (200, LATER.to_string()));
        *served += 2;
    };
    for (value, status, text) in table {
        serve(&mut served);
        let (got, error) = ask(&server, value);
        assert!(got == status && error.contains(text), "{value}: {got} {error}");
    }
    serve(&mut served);
    let log = server.log();
    assert!(log.contains("unruly_0_0: its process has ended: killed by signal 11 (SIGSEGV)"), "{log}");
    assert!(log.contains("instance 'unruly_0_0' of 'unruly' was lost and is recreated"), "{log}");
    let failed = table.len() as u64;
    assert_eq!(count(&server, "nv_inference_request_success"), served);
    // A stopped run counts as one that did not run, as with ONNX models.
    assert_eq!((failures(&server, "BACKEND"), failures(&server, "REJECTED")), (failed - 2, 2));
    assert_eq!(count(&server, "deuteron_instance_restarts_total"), failed);
    let left = children(server.id());
    assert!(server.stop().success() && left.len() == 1);
}

#[test]
fn under_load_every_request_is_answered_once_however_often_the_process_ends() {
    const CLIENTS: u64 = 4;
    const REQUESTS: u64 = 60;
    let (_folder, models, backends) = folders(&[("unruly", UNRULY)]);
    let server = start(&models, &backends, &["--backend-isolation=process"]);
    let (served, failed) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (server, served, failed) = (&server, &served, &failed);
            scope.spawn(move || {
                for request in 0..REQUESTS {
                    let crash = [SEGV, EXIT, THREAD_SEGV][(request % 3) as usize];
                    let value = if client == 0 && request % 10 == 9 {
                        crash
                    } else {
                        (client * REQUESTS + request) as i32 % 100
                    };
                    match ask(server, value) {
                        (200, text) => {
                            assert_eq!(text, value.to_string());
                            served.fetch_add(1, Ordering::Relaxed);
                        }
                        (status, text) => {
                            assert!([500, 503].contains(&status), "{status} {text}");
                            failed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    let (served, failed) = (served.into_inner(), failed.into_inner());
    assert_eq!(served + failed, CLIENTS * REQUESTS);
    assert!((6..CLIENTS * REQUESTS / 2).contains(&failed), "{failed} failed");
    assert_eq!(count(&server, "nv_inference_request_success"), served);
    assert_eq!(failures(&server, "BACKEND") + failures(&server, "REJECTED"), failed);
    until("the model", || is_ready(&server, "unruly"));
    assert_eq!(ask(&server, 1), (200, "1".to_owned()));
}

#[test]
fn a_load_that_crashes_or_hangs_in_any_stage_fails_and_says_how() {
    let folder = Folder::new("backends");
    let (models, backends) = (folder.path().join("models"), folder.path().join("backends"));
    add_backend(&backends, "unruly", "unruly");
    let stages = [
        "ModelInitialize",
        "ModelInstanceInitialize",
        "ModelInitialize hangs",
        "ModelInstanceInitialize hangs",
        "none",
    ];
    for (index, stage) in stages.into_iter().enumerate() {
        repository::add(&models, &format!("m{index}"), &unruly(&[("stage", stage)]), None);
    }
    repository::add(&models, "wrong", &unruly(&[("isolation", "thread")]), None);
    let flags = ["--backend-isolation=process", "--model-control-mode=explicit", "--load-timeout-secs=1"];
    let server = start(&models, &backends, &flags);
    let load = |server: &Server, name: &str| {
        let answer = http::post(server.http(), &format!("/v2/repository/models/{name}/load"), b"").unwrap();
        (answer.status, String::from_utf8(answer.body).unwrap())
    };
    for (model, want) in [
        (
            "m0",
            "unable to load model 'm0': its process ended (killed by signal 11 (SIGSEGV)) while it loaded the model",
        ),
        (
            "m1",
            "unable to load model 'm1': its process ended (killed by signal 11 (SIGSEGV)) while it loaded the model",
        ),
        ("m2", "unable to load model 'm2': its process took longer than 1s (--load-timeout-secs) and was killed"),
        ("m3", "unable to load model 'm3': its process took longer than 1s (--load-timeout-secs) and was killed"),
        ("wrong", "parameter 'isolation' of model 'wrong' is 'thread', expected 'none' or 'process'"),
    ] {
        let (status, text) = load(&server, model);
        assert!(status >= 400 && text.contains(want), "{status} {text}");
    }
    assert_eq!(load(&server, "m4").0, 200);
    until("the processes of failed loads", || children(server.id()).len() == 1);
    // A backend that crashes before it has a model.
    let flags = [&flags[..], &["--backend-config=unruly,crash=yes"]].concat();
    let server = start(&models, &backends, &flags);
    let (status, text) = load(&server, "m4");
    assert!(status >= 400 && text.contains("its process ended (killed by signal 6 (SIGABRT))"), "{text}");
}

#[test]
fn a_process_that_never_answers_is_started_after_pauses_and_requests_get_503_meanwhile() {
    let (_folder, models, backends) = folders(&[("unruly", &unruly(&[("isolation", "process")]))]);
    let server = start(&models, &backends, &[]);
    // The first restart after one that never answered is at once, the next a second later.
    for _ in 0..2 {
        until("the model", || is_ready(&server, "unruly"));
        assert_eq!(ask(&server, SEGV).0, 500);
    }
    let began = Instant::now();
    let (status, text) = ask(&server, 1);
    assert!(status == 503 && text.contains("the instance was lost and cannot be recreated yet"), "{status} {text}");
    until("the next process", || ask(&server, 1).0 == 200);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(ask(&server, SEGV).0, 500);
    until("the process after one that answered", || ask(&server, 1).0 == 200);
}

#[test]
fn a_request_that_its_client_left_is_known_to_the_backend_and_what_leaks_goes_with_its_process() {
    let (_folder, models, backends) = folders(&[("unruly", UNRULY)]);
    let server = start(&models, &backends, &["--backend-isolation=process"]);
    let input = json!({"name": "IN", "shape": [1, 1], "datatype": "INT32", "data": [UNTIL_CANCELLED]});
    let body = json!({"inputs": [input]}).to_string();
    let request = http::request("POST", "/v2/models/unruly/infer", &[], body.as_bytes());
    let mut connection = http::Connection::open(server.http()).unwrap();
    connection.send(&request).unwrap();
    thread::sleep(Duration::from_millis(100));
    drop(connection);
    until("the backend", || server.log().contains("the request was cancelled"));
    let memory = |id: u32| {
        let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim_end_matches("kB").trim().parse::<u64>().unwrap() / 1024
    };
    let own = memory(server.id());
    let [process] = children(server.id())[..] else { panic!("one process") };
    (0..4).for_each(|_| assert_eq!(ask(&server, LEAK).0, 200));
    assert!(memory(process) >= 128 && memory(server.id()) < own + 64, "{} MiB", memory(process));
    // As the kernel does when memory runs out.
    signal(process, "KILL");
    until("the next process", || children(server.id()).first().is_some_and(|id| *id != process));
    assert_eq!(ask(&server, 1), (200, "1".to_owned()));
    let [process] = children(server.id())[..] else { panic!("one process") };
    assert!(memory(process) < 64, "{} MiB", memory(process));
}

#[test]
fn large_tensors_grow_the_memory_that_is_shared_up_to_its_bound() {
    let (_folder, models, backends) = folders(&[("identity", super::IDENTITY)]);
    let flags = [
        "--backend-config=identity,host=triton",
        "--backend-isolation=process",
        "--run-memory-bytes-max=134217728",
        "--http-max-input-size=268435456",
    ];
    let server = start(&models, &backends, &flags);
    let send = |megabytes: usize| {
        let count = megabytes * 256 * 1024;
        let head = json!({"inputs": [{"name": "INPUT0", "shape": [1, count], "datatype": "FP32",
                                      "parameters": {"binary_data_size": count * 4}}],
                          "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": true}}]})
        .to_string();
        let contents: Vec<u8> = (0..count * 4).map(|index| index as u8).collect();
        let body = [head.as_bytes(), &contents].concat();
        let length = head.len().to_string();
        let headers = [("Inference-Header-Content-Length", length.as_str())];
        let answer =
            http::exchange(server.http(), &http::request("POST", "/v2/models/identity/infer", &headers, &body));
        let answer = answer.unwrap();
        (answer.status, answer.body.ends_with(&contents))
    };
    for megabytes in [1, 40, 70, 3] {
        assert_eq!(send(megabytes), (200, true), "{megabytes} MiB");
    }
    // One above the bound is refused, and harms nothing.
    assert_eq!(send(130).0, 503);
    assert_eq!(send(1), (200, true));
}

#[test]
fn a_process_ends_with_its_model_and_with_its_server() {
    let (_folder, models, backends) = folders(&[("unruly", UNRULY)]);
    let server = start(&models, &backends, &["--backend-isolation=process", "--model-control-mode=explicit"]);
    let order =
        |what: &str| http::post(server.http(), &format!("/v2/repository/models/unruly/{what}"), b"").unwrap().status;
    for _ in 0..2 {
        assert_eq!(order("load"), 200);
        assert_eq!(ask(&server, 3), (200, "3".to_owned()));
        assert_eq!(children(server.id()).len(), 1);
        assert_eq!(order("unload"), 200);
        until("the end of the process", || children(server.id()).is_empty());
    }
    assert_eq!(order("load"), 200);
    let left = children(server.id());
    server.signal("KILL");
    until("the end of the process", || !left.iter().any(|id| Path::new(&format!("/proc/{id}/exe")).exists()));
}
