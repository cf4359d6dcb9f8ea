//! Attribution of faults: a step of an ensemble that answers with another datatype than it declares, and requests that
//! wait for a busy process.

use super::{Deed, IN_TURN, PythonServer, write};
use crate::support::folder::Folder;
use crate::support::metrics::metric;
use crate::support::repository;
use serde_json::{Value, json};

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// Answers in FP64 where its configuration declares FP32.
const WIDE: &str = r#"
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        tensor = pb_utils.Tensor("OUT", np.array([1.0, 2.0], dtype=np.float64))
        return [pb_utils.InferenceResponse([tensor]) for _ in requests]
"#;

#[test]
fn a_step_that_answers_in_another_datatype_than_it_declares_is_the_servers_fault_and_named() {
    let unchecked = "parameters { key: 'check_outputs' value { string_value: 'no' } }";
    for (more, want) in [
        ("", "in ensemble 'both', step 1 ('wide'): output 'OUT' of model 'wide' must be FP32 but came as FP64"),
        (
            unchecked,
            "in ensemble 'both', step 2 ('plain'): its input 'X' is output 'OUT' of step 1 ('wide'), which came as FP64 [2] \
             but is declared as FP32 [2]",
        ),
    ] {
        let Some((status, text)) = answer_of_both(more) else { return };
        assert_eq!((status, text["error"].as_str()), (500, Some(want)));
    }
}

/// The answer of an ensemble of `wide`, with more of its configuration, and a model behind it.
fn answer_of_both(more: &str) -> Option<(u16, Value)> {
    let folder = Folder::new("blame");
    let tensor = |name: &str| format!("{{ name: '{name}' data_type: TYPE_FP32 dims: 2 }}");
    let group = "instance_group { kind: KIND_CPU }";
    let config = format!("input {} output {} {group} {more}", tensor("IN"), tensor("OUT"));
    write(folder.path(), "wide", &config, WIDE);
    let config = format!("backend: 'identity' input {} output {}", tensor("X"), tensor("Y"));
    repository::add(folder.path(), "plain", &config, None);
    let step = |model: &str, input: [&str; 2], output: [&str; 2]| {
        format!(
            "step {{ model_name: '{model}' model_version: -1 input_map {{ key: '{}' value: '{}' }} \
             output_map {{ key: '{}' value: '{}' }} }}",
            input[0], input[1], output[0], output[1]
        )
    };
    let steps = step("wide", ["IN", "a"], ["OUT", "b"]) + &step("plain", ["X", "b"], ["Y", "c"]);
    let config =
        format!("platform: 'ensemble' input {} output {} ensemble_scheduling {{ {steps} }}", tensor("a"), tensor("c"));
    repository::add(folder.path(), "both", &config, None);
    let server = PythonServer::on(folder, &["--shards=1"])?;
    let body = json!({ "inputs": [{ "name": "a", "datatype": "FP32", "shape": [2], "data": [1, 2] }] });
    let (status, text) = server.post("/v2/models/both/infer", &body.to_string());
    Some((status, serde_json::from_str(&text).unwrap()))
}

#[test]
fn a_request_that_was_sent_ahead_to_a_busy_process_is_pending() {
    let deed = Deed { config: IN_TURN, ..Deed::named("m") };
    let Some(server) = PythonServer::start(&[deed], &["--shards=1"]) else { return };
    let go = server.folder.path().join("go");
    let code = format!("while not os.path.exists({:?}): time.sleep(0.01)", go.display().to_string());
    let pending = || metric(server.server.metrics(), "nv_inference_pending_request_count{model=\"m\",version=\"1\"}");
    let until = |count: u64| {
        let start = Instant::now();
        while pending() != count {
            assert!(start.elapsed() < Duration::from_secs(60), "{} are pending and not {count}", pending());
            thread::sleep(Duration::from_millis(10));
        }
    };
    assert_eq!(server.well("m", "result = 1"), "1");
    thread::scope(|scope| {
        // One runs, one is sent ahead, one waits in the queue.
        let calls: Vec<_> = (0..3).map(|_| scope.spawn(|| server.well("m", &code))).collect();
        until(2);
        fs::write(&go, "").unwrap();
        calls.into_iter().for_each(|call| drop(call.join().unwrap()));
    });
    until(0);
}
