//! A configuration that its backend completes while it initializes the model (`TRITONBACKEND_ModelSetConfig`): the server
//! checks, shows and uses it.

use serde_json::{Value, json};

use super::{PLACES, folders, infer, start};
use crate::support::http;

/// A request of `rows` rows.
fn request(rows: i32, datatype: &str) -> Value {
    json!({"inputs": [{"name": "INPUT0", "shape": [rows, 1], "datatype": datatype, "data": vec![1; rows as usize]}]})
}

#[test]
fn a_configuration_that_a_backend_completes_is_checked_shown_and_used() {
    let (_folder, models, backends) = folders(&[("completing", "backend: 'completing'")]);
    for place in PLACES {
        let server = start(&models, &backends, &[place]);
        let shown = http::get(server.http(), "/v2/models/completing/config").unwrap();
        let shown: Value = serde_json::from_slice(&shown.body).unwrap();
        let groups = &shown["instance_group"][0];
        assert_eq!(
            (&shown["max_batch_size"], &shown["input"][0]["name"]),
            (&json!(8), &json!("INPUT0")),
            "{place} {shown}"
        );
        assert_eq!((&groups["kind"], &groups["count"]), (&json!("KIND_MODEL"), &json!(3)), "{place} {shown}");
        let (status, answer) = infer(&server, "completing", &request(1, "INT32"));
        assert_eq!((status, &answer["outputs"][0]["data"]), (200, &json!([1])), "{place} {answer}");
        // More rows, and another datatype, than it has set.
        assert_eq!(infer(&server, "completing", &request(9, "INT32")).0, 400, "{place}");
        assert_eq!(infer(&server, "completing", &request(1, "FP32")).0, 400, "{place}");
    }
}

#[test]
fn without_completion_a_backend_sets_nothing_and_an_incomplete_configuration_is_refused() {
    let (_folder, models, backends) = folders(&[("completing", "backend: 'completing'")]);
    for place in PLACES {
        let flags = ["--disable-auto-complete-config", "--exit-on-error=false", "--strict-readiness=false", place];
        let server = start(&models, &backends, &flags);
        let index = http::post(server.http(), "/v2/repository/index", b"").unwrap();
        let index: Value = serde_json::from_slice(&index.body).unwrap();
        let reason = index[0]["reason"].as_str().unwrap();
        let want =
            "Invalid argument: model configuration must contain at least one input, none were specified for completing";
        assert_eq!((&index[0]["state"], reason), (&json!("UNAVAILABLE"), want), "{place}");
    }
}
