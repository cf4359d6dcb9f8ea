//! The statistics of a model that its backend reports, its host policy, and answers before the release of their requests.

use std::fs;

use serde_json::{Value, json};

use super::{PLACES, folders, infer, start, stream};
use crate::isolation::until;
use crate::support::http;
use crate::support::metrics::metric;
use crate::support::protobuf::Message;
use crate::support::server::Server;

const REPORTING: &str = "backend: 'reporting' max_batch_size: 8 instance_group { count: 1 host_policy: 'far' }
    input { name: 'IN' data_type: TYPE_INT32 dims: 1 } output { name: 'OUT' data_type: TYPE_INT32 dims: 1 }";
const RESPONDING: &str = "backend: 'reporting' model_transaction_policy { decoupled: true } instance_group { count: 1 }
    input { name: 'IN' data_type: TYPE_INT32 dims: 1 } output { name: 'OUT' data_type: TYPE_INT32 dims: 1 }";

fn ask(server: &Server, value: i32, parameters: &Value) -> u16 {
    let input = json!({"name": "IN", "shape": [1, 1], "datatype": "INT32", "data": [value]});
    infer(server, "reporting", &json!({"parameters": parameters, "inputs": [input]})).0
}

fn statistics(server: &Server) -> Value {
    let answer = http::get(server.http(), "/v2/models/reporting/stats").unwrap();
    let all: Value = serde_json::from_slice(&answer.body).unwrap();
    all["model_stats"][0].clone()
}

#[test]
fn an_answer_that_was_sent_does_not_wait_for_the_release_of_its_request() {
    let (folder, models, backends) = folders(&[("reporting", REPORTING)]);
    let file = folder.path().join("released");
    for place in PLACES {
        let server = start(&models, &backends, &[place]);
        // The backend holds the request until the file is there, which is after the answer.
        assert_eq!(ask(&server, 5, &json!({"UNTIL": file.to_str().unwrap()})), 200, "{place}");
        assert!(!server.log().contains("it releases the request"), "{place} {}", server.log());
        fs::write(&file, "").unwrap();
        assert_eq!(ask(&server, 6, &json!({})), 200, "{place}");
        fs::remove_file(&file).unwrap();
    }
}

#[test]
fn times_and_outcomes_are_those_that_the_backend_reports() {
    let (_folder, models, backends) = folders(&[("reporting", REPORTING)]);
    PLACES.into_iter().for_each(|place| check_times_and_outcomes(&start(&models, &backends, &[place])));
}

fn check_times_and_outcomes(server: &Server) {
    // Answered with outputs and reported as one, answered and reported as a failure, and failed.
    assert_eq!([5, 13, 99].map(|value| ask(server, value, &json!({}))), [200, 200, 500]);
    let (second, count) = (1_000_000_000_u64, |count: u64, nanos: u64| json!({"count": count, "ns": nanos}));
    let batch = json!([{
        "batch_size": 7, "compute_input": count(3, 3 * second), "compute_infer": count(3, 6 * second),
        "compute_output": count(3, 9 * second),
    }]);
    // A report may come after the answer.
    until("the reports are counted", || statistics(server)["batch_stats"] == batch);
    let got = statistics(server);
    let inference = &got["inference_stats"];
    assert_eq!((&got["inference_count"], &got["execution_count"]), (&json!(1), &json!(3)), "{got}");
    assert_eq!((&inference["success"]["count"], &inference["fail"]["count"]), (&json!(1), &json!(2)), "{got}");
    let stages = ["compute_input", "compute_infer", "compute_output"].map(|stage| &inference[stage]);
    assert_eq!(stages, [&count(1, second), &count(1, 2 * second), &count(1, 3 * second)], "{got}");
    let labels = "model=\"reporting\",version=\"1\"";
    let shown = |name: &str| metric(server.metrics(), name);
    assert_eq!(shown(&format!("nv_inference_compute_infer_duration_us{{{labels}}}")), 2_000_000);
    assert_eq!(shown(&format!("nv_inference_request_success{{{labels}}}")), 1);
    assert_eq!(shown("nv_inference_request_failure{model=\"reporting\",reason=\"BACKEND\",version=\"1\"}"), 2);
}

#[test]
fn responses_are_those_that_a_decoupled_backend_reports() {
    let (_folder, models, backends) = folders(&[("reporting", RESPONDING)]);
    PLACES.into_iter().for_each(|place| check_responses(&start(&models, &backends, &[place])));
}

fn check_responses(server: &Server) {
    let input = Message::new().bytes(1, "IN").bytes(2, "INT32").packed(3, &[1]);
    let parameter = Message::new().bytes(1, "RESPONSES").message(2, Message::new().int(2, 2));
    let request = Message::new().bytes(1, "reporting").message(4, parameter).message(5, input);
    let (came, is_end) = stream(server, request.bytes(7, 5_i32.to_le_bytes()).into_bytes());
    assert!(is_end && came.len() == 3, "{came:?}");
    let count = |count: u64, nanos: u64| json!({"count": count, "ns": nanos});
    let response = |counted: [(u64, u64); 5]| {
        let [infer, output, success, fail, empty] = counted.map(|(number, nanos)| count(number, nanos));
        json!({
            "compute_infer": infer, "compute_output": output, "success": success, "fail": fail, "empty_response": empty,
            "cancel": count(0, 0),
        })
    };
    let (none, whole) = ((0, 0), response([(1, 5), (1, 2), (1, 7), (0, 0), (0, 0)]));
    let want = json!({
        "0": whole, "1": whole, "2": response([(1, 5), none, none, (1, 5), none]),
        "3": response([(1, 5), none, none, none, (1, 5)]),
    });
    until("the reports are counted", || statistics(server)["response_stats"] == want);
}

#[test]
fn a_backend_gets_all_settings_of_the_host_policy_of_an_instance() {
    let (_folder, models, backends) = folders(&[("reporting", REPORTING)]);
    for place in PLACES {
        let policies = ["--host-policy=far,numa-node=0", "--host-policy=far,colour=a red", "--host-policy=cpu,nice=1"];
        let server = start(&models, &backends, &[&policies[..], &[place]].concat());
        let log = server.log().replace("\\\"", "\"");
        let want = "host policy {\"far\":{\"colour\":\"a red\",\"numa-node\":\"0\"}}";
        assert!(log.contains(want), "{place} {log}");
    }
}
