//! Predictions in the form of KServe V1 and TensorFlow Serving on the server as a process: rows and columns, bytes, paths
//! with versions, states and metadata, and the policy, counts and codings that all inferences have.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::folder::Folder;
use crate::support::h2;
use crate::support::http;
use crate::support::metrics::metric;
use crate::support::repository::{self, Flavour};
use crate::support::server::Server;
use crate::support::skipped::skip_unless_ci;

/// A model whose second output is bytes by its name.
const PAIR: &str = "backend: 'identity' max_batch_size: 8
    input [ { name: 'INPUT0' data_type: TYPE_FP32 dims: 2 }, { name: 'INPUT1' data_type: TYPE_STRING dims: 1 } ]
    output [ { name: 'OUTPUT0' data_type: TYPE_FP32 dims: 2 }, { name: 'image_bytes' data_type: TYPE_STRING dims: 1 } ]";

fn serve(flags: &[&str]) -> (Folder, Server) {
    let folder = repository::write(Flavour::Deuteron);
    repository::add(folder.path(), "pair", PAIR, None);
    repository::add(folder.path(), "square", repository::SQUARE, None);
    let server = Server::deuteron(folder.path(), &[&["--shards=1"], flags].concat());
    (folder, server)
}

fn ask(server: &Server, method: &str, path: &str, fields: &[(&str, &str)], body: &str) -> (u16, Value) {
    let answer = http::exchange(server.http(), &http::request(method, path, fields, body.as_bytes())).unwrap();
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    (answer.status, serde_json::from_slice(&answer.body).unwrap_or_else(|_| panic!("{path}: {text}")))
}

/// Path behind `/v1/models/`, body, status, answer or the beginning of its error.
type Row = (&'static str, &'static str, u16, &'static str);

const ASKED: &[Row] = &[
    ("identity_fp32:predict", r#"{"instances":[[1,2.5],[3,4]]}"#, 200, r#"{"predictions":[[1.0,2.5],[3.0,4.0]]}"#),
    ("identity_fp32:predict", r#"{"inputs":[[1,2.5]]}"#, 200, r#"{"outputs":[[1.0,2.5]]}"#),
    ("identity_fp32/versions/1:predict", r#"{"instances":[7]}"#, 200, r#"{"predictions":[[7.0]]}"#),
    (
        "identity_two:predict",
        r#"{"instances":[{"INPUT0":[1],"INPUT1":[2]},{"INPUT1":[4],"INPUT0":[3]}],"signature_name":"serving_default"}"#,
        200,
        r#"{"predictions":[{"OUTPUT0":[1.0],"OUTPUT1":[2]},{"OUTPUT0":[3.0],"OUTPUT1":[4]}]}"#,
    ),
    (
        "identity_two:predict",
        r#"{"inputs":{"INPUT0":[[1]],"INPUT1":[[2]]}}"#,
        200,
        r#"{"outputs":{"OUTPUT0":[[1.0]],"OUTPUT1":[[2]]}}"#,
    ),
    (
        "identity_bytes_one:predict",
        r#"{"instances":["a",{"b64":"/wA="}]}"#,
        200,
        r#"{"predictions":[["a"],[{"b64":"/wA="}]]}"#,
    ),
    (
        "pair:predict",
        r#"{"instances":[{"INPUT0":[1,2],"INPUT1":{"b64":"YQ=="}}]}"#,
        200,
        r#"{"predictions":[{"OUTPUT0":[1.0,2.0],"image_bytes":[{"b64":"YQ=="}]}]}"#,
    ),
    ("identity_nobatch:predict", r#"{"instances":[1,2,3,4]}"#, 200, r#"{"predictions":[1.0,2.0,3.0,4.0]}"#),
    ("identity_nobatch:predict", r#"{"inputs":[1,2,3,4]}"#, 200, r#"{"outputs":[1.0,2.0,3.0,4.0]}"#),
    ("identity_nobatch:predict", r#"{"instances":[[1,2,3,4]]}"#, 400, "input 'INPUT0' has the shape [1,4], and model"),
    ("identity_fp32:predict", r#"{"instances":[[1,2],[3]]}"#, 400, "input 'INPUT0' is irregular"),
    ("identity_fp32:predict", r#"{"instances":1"#, 400, "failed to parse the request JSON buffer"),
    ("identity_fp32:predict", r#"{"instances":[1],"signature_name":"x"}"#, 400, "signature_name is 'x'"),
    ("identity_fp16:predict", r#"{"instances":[1]}"#, 400, "receiving FP16 data via JSON is not supported"),
    ("nope:predict", r#"{"instances":[1]}"#, 404, "Request for unknown model: 'nope' is not found"),
    ("identity_fp32/versions/9:predict", r#"{"instances":[1]}"#, 404, "Request for unknown model: 'identity_fp32' ver"),
    ("square:predict", r#"{"instances":[1]}"#, 501, "model 'square' answers any number of times (decoupled)"),
    ("identity_fp32:explain", "{}", 501, "':explain' is not served here: models answer ':predict'"),
    ("identity_fp32:classify", "{}", 501, "':classify' is not served here"),
    ("identity_fp32:regress", "{}", 501, "':regress' is not served here"),
    ("identity_fp32/labels/stable:predict", "{}", 501, "versions have no labels here, such as 'stable'"),
];

#[test]
fn rows_and_columns_are_answered_in_their_form_over_both_versions_of_http() {
    let (_folder, server) = serve(&[]);
    for (path, body, status, want) in ASKED {
        let target = format!("/v1/models/{path}");
        let (got, answer) = ask(&server, "POST", &target, &[], body);
        let (got_2, answer_2) = h2::post(server.http(), &target, body.as_bytes());
        assert_eq!(
            (got_2, serde_json::from_slice::<Value>(&answer_2).unwrap()),
            (got, answer.clone()),
            "{path} {body}"
        );
        assert_eq!(got, *status, "{path} {body}: {answer}");
        match answer["error"].as_str() {
            Some(text) => assert!(text.starts_with(want), "{path} {body}: {text}"),
            None => assert_eq!(answer, serde_json::from_str::<Value>(want).unwrap(), "{path} {body}"),
        }
    }
    let rest = ["GET", "DELETE"].map(|method| ask(&server, method, "/v1/models/identity_fp32:predict", &[], "").0);
    assert_eq!(rest, [405, 405]);
}

#[test]
fn a_large_prediction_is_read_and_written_by_other_threads() {
    let (_folder, server) = serve(&[]);
    let row: Vec<u32> = (0..40_000).collect();
    let body = json!({"instances": [row, row]}).to_string();
    assert!(body.len() > 256 * 1024);
    let (status, answer) = ask(&server, "POST", "/v1/models/identity_fp64:predict", &[], &body);
    let values: Vec<f64> = row.iter().map(|value| f64::from(*value)).collect();
    assert_eq!((status, answer), (200, json!({"predictions": [values, values]})));
}

#[test]
fn a_model_tells_its_state_and_its_tensors() {
    let folder = repository::write(Flavour::Deuteron);
    repository::add(folder.path(), "broken", "backend: 'onnxruntime'", Some(b"no model"));
    let flags = ["--shards=1", "--exit-on-error=false", "--strict-readiness=false"];
    let server = Server::deuteron(folder.path(), &flags);
    let get = |path: &str| ask(&server, "GET", path, &[], "");
    let (status, state) = get("/v1/models/identity_fp32");
    assert_eq!((status, &state["name"], &state["ready"]), (200, &json!("identity_fp32"), &json!(true)), "{state}");
    let version = json!({"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}});
    assert_eq!(state["model_version_status"], json!([version]));
    assert_eq!((&state["id"], &state["object"]), (&json!("identity_fp32"), &json!("model")));
    assert_eq!(get("/v1/models/identity_fp32/versions/1"), (200, state));
    let (status, state) = get("/v1/models/broken");
    assert_eq!((status, &state["ready"], &state["error"]), (503, &json!(false), &json!("model 'broken' is not ready")));
    for path in ["nope", "identity_fp32/versions/7"] {
        assert_eq!(get(&format!("/v1/models/{path}")).0, 404, "{path}");
    }
    let (status, metadata) = get("/v1/models/identity_bytes/versions/1/metadata");
    let signature = &metadata["metadata"]["signature_def"]["signature_def"]["serving_default"];
    assert_eq!((status, &signature["inputs"]["INPUT0"]["dtype"]), (200, &json!("DT_STRING")), "{metadata}");
    assert_eq!(metadata["model_spec"]["version"], "1");
    assert_eq!(get("/v1/models/nope/metadata").0, 404);
    let (_, list) = get("/v1/models");
    let names = list["models"].as_array().unwrap();
    assert!(names.contains(&json!("addsub")) && !names.contains(&json!("broken")), "{list}");
    assert_eq!(list["data"].as_array().unwrap().len(), names.len());
}

#[test]
fn predictions_are_admitted_counted_and_coded_as_inferences_are() {
    let flags = ["--http-restricted-api=inference:own-key=v"];
    let (_folder, server) = serve(&flags);
    let (path, body) = ("/v1/models/identity_fp32:predict", r#"{"instances":[1]}"#);
    let (status, refused) = ask(&server, "POST", path, &[], body);
    assert_eq!((status, &refused["error"]), (403, &json!("This API is restricted, expecting header 'own-key'")));
    let key = ("own-key", "v");
    assert_eq!(ask(&server, "POST", path, &[key], body).0, 200);
    assert_eq!(ask(&server, "POST", path, &[key], "{}").0, 400);
    assert_eq!(ask(&server, "GET", "/v1/models/identity_fp32", &[], "").0, 200, "health is open");
    let count = metric(server.metrics(), "nv_inference_request_success{model=\"identity_fp32\",version=\"1\"}");
    assert_eq!(count, 1);
    // The content type does not make it a raw body, and the times of the stages are told.
    let fields = [key, ("Content-Type", "application/octet-stream"), ("want-server-timing", "1")];
    assert_eq!(ask(&server, "POST", path, &fields, body).1, json!({"predictions": [[1.0]]}));
    let folder = Folder::new("predict-coded");
    let file = folder.path().join("body.gz");
    let script = format!(
        "printf '%s' '{body}' | gzip > {} && curl --fail-with-body -s http://{}{path} -H 'own-key: v' -H 'Content-Encoding: gzip' \
         --compressed --data-binary @{}",
        file.display(),
        server.http(),
        file.display()
    );
    let Ok(output) = Command::new("bash").args(["-c", &script]).output() else {
        return skip_unless_ci("bash, gzip and curl are needed");
    };
    assert_eq!(String::from_utf8_lossy(&output.stdout), r#"{"predictions":[[1.0]]}"#);
    assert!(fs::metadata(&file).unwrap().len() > 0);
}
