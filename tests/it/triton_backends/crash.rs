//! The line that a crash writes: an engine's signal ends the server, and names the run.

use std::fs;
use std::os::unix::process::ExitStatusExt;

use serde_json::{Value, json};

use super::{folders, start};
use crate::support::http;
use crate::support::server::Server;

const UNRULY: &str = "backend: 'unruly' max_batch_size: 4 instance_group { count: 1 }
    input { name: 'IN' data_type: TYPE_INT32 dims: 1 } output { name: 'OUT' data_type: TYPE_INT32 dims: 1 }";
/// Actions of the backend `unruly` for these inputs; `RAISE` and the number of a signal raises it.
const SEGV: i32 = 101;
const ABORT: i32 = 102;
const THREAD_SEGV: i32 = 104;
const RAISE: i32 = 200;

/// Has the backend crash by a request with this id; the answer does not matter.
fn crash(server: &Server, value: i32, id: &str) {
    let input = json!({"name": "IN", "shape": [1, 1], "datatype": "INT32", "data": [value]});
    let body = json!({"id": id, "inputs": [input]}).to_string();
    let _ = http::post(server.http(), "/v2/models/unruly/infer", body.as_bytes());
}

#[test]
fn each_signal_of_a_crash_names_model_version_instance_and_request_and_ends_the_server() {
    let (_folder, models, backends) = folders(&[("unruly", UNRULY)]);
    let of_run = "while it ran model 'unruly' version 1 instance 'unruly_0_0' request 'request 7'";
    let of_thread = "in a thread of an engine while another ran model 'unruly' version 1 instance 'unruly_0_0' request \
                     'request 7'";
    for (value, signal, name, how) in [
        (SEGV, 11, "SIGSEGV", of_run),
        (ABORT, 6, "SIGABRT", of_run),
        (THREAD_SEGV, 11, "SIGSEGV", of_thread),
        (RAISE + 4, 4, "SIGILL", of_run),
        (RAISE + 7, 7, "SIGBUS", of_run),
        (RAISE + 8, 8, "SIGFPE", of_run),
    ] {
        let mut server = start(&models, &backends, &["--backend-isolation=none"]);
        let process = server.id();
        crash(&server, value, "request 7");
        let status = server.wait();
        assert_eq!(status.signal(), Some(signal), "{name}: {}", server.log());
        let want = format!("deuteron[{process}]: crashed with signal {signal} ({name}) {how}\n");
        assert!(server.log().contains(&want), "{want}{}", server.log());
    }
}

#[test]
fn the_line_of_a_crash_is_json_where_the_log_is_and_goes_to_its_file_too() {
    let (folder, models, backends) = folders(&[("unruly", UNRULY)]);
    let file = folder.path().join("server.log");
    let flag = format!("--log-file={}", file.display());
    let mut server = start(&models, &backends, &["--backend-isolation=none", "--log-format=json", &flag]);
    crash(&server, SEGV, "\"}\n");
    assert_eq!(server.wait().signal(), Some(11));
    let log = fs::read_to_string(&file).unwrap();
    let line = log.lines().find(|line| line.contains("crashed")).unwrap();
    let line: Value = serde_json::from_str(line).unwrap();
    let want =
        "crashed with signal 11 (SIGSEGV) while it ran model 'unruly' version 1 instance 'unruly_0_0' request '?}?'";
    assert_eq!(line, json!({"severity": "error", "process": server.id(), "message": want}));
}

#[test]
fn a_process_of_a_backend_that_crashes_writes_the_same_into_the_log_of_the_server() {
    let (_folder, models, backends) = folders(&[("unruly", UNRULY)]);
    let mut server = start(&models, &backends, &["--backend-isolation=process"]);
    crash(&server, SEGV, "request 7");
    assert!(server.is_running());
    let want = "crashed with signal 11 (SIGSEGV) while it ran model 'unruly' request 'request 7'";
    assert!(server.log().contains(want), "{}", server.log());
}
