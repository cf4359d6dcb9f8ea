//! The server's answer to a client's own mistake, on the server as a process: the status, the name of the wrong part,
//! and the count as the client's fault.

use crate::support::folder::Folder;
use crate::support::http::{self, Response};
use crate::support::metrics::metric;
use crate::support::onnx::builder::{FLOAT, INT64, Onnx};
use crate::support::repository;
use crate::support::server::Server;
use serde_json::{Value, json};

fn tensor(name: &str, datatype: &str, dims: &str) -> String {
    format!("{{ name: '{name}' data_type: TYPE_{datatype} dims: {dims} }}")
}

fn infer(server: &Server, model: &str, body: &Value) -> (u16, Value) {
    let answer = http::post(server.http(), &format!("/v2/models/{model}/infer"), body.to_string().as_bytes()).unwrap();
    (answer.status, serde_json::from_slice(&answer.body).unwrap())
}

fn input(name: &str, shape: &[i64], data: &Value) -> Value {
    json!({ "name": name, "datatype": "INT64", "shape": shape, "data": data })
}

/// `y = ids * mask`, of open shapes, and `y = table[ids]` of four rows.
fn models() -> Folder {
    let folder = Folder::new("mistakes");
    let io = format!("input [{}, {}]", tensor("ids", "INT64", "-1"), tensor("mask", "INT64", "-1"));
    let config = format!("platform: 'onnxruntime_onnx' max_batch_size: 4 {io} output {}", tensor("y", "INT64", "-1"));
    let masked = Onnx::default().node("Mul", &["ids", "mask"], &["y"], &[]);
    let masked = masked.input("ids", INT64, &[-1, -1]).input("mask", INT64, &[-1, -1]).output("y", INT64, &[-1, -1]);
    repository::add(folder.path(), "masked", &config, Some(&masked.into_bytes()));
    let table: Vec<u8> = [1_f32, 2.0, 3.0, 4.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    let lookup = Onnx::default().constant("table", FLOAT, &[4], &table).node("Gather", &["table", "ids"], &["y"], &[]);
    let lookup = lookup.input("ids", INT64, &[-1, 1]).output("y", FLOAT, &[-1, 1]);
    let io = format!("input {} output {}", tensor("ids", "INT64", "1"), tensor("y", "FP32", "1"));
    let config = format!("platform: 'onnxruntime_onnx' max_batch_size: 4 {io}");
    repository::add(folder.path(), "lookup", &config, Some(&lookup.into_bytes()));
    repository::add(
        folder.path(),
        "echo",
        &format!("backend: 'identity' input {} output {}", tensor("x", "FP32", "-1"), tensor("y", "FP32", "-1")),
        None,
    );
    folder
}

#[test]
fn tensors_and_values_that_the_engine_refuses_are_the_clients_mistake_and_named() {
    let folder = models();
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    let refused =
        |reason: &str| metric(server.metrics(), &format!("deuteron_requests_refused_total{{reason=\"{reason}\"}}"));
    let body = json!({ "inputs": [input("ids", &[1, 3], &json!([1, 2, 3])), input("mask", &[1, 2], &json!([1, 0]))] });
    let (status, answer) = infer(&server, "masked", &body);
    let text = answer["error"].as_str().unwrap();
    assert_eq!(status, 400, "{text}");
    assert!(
        text.starts_with("model 'masked': ") && text.ends_with("; the inputs were 'ids' [1,3], 'mask' [1,2]"),
        "{text}"
    );
    assert!(!text.contains('/') && !text.contains('\n'), "no place of the server or of a source: {text}");
    // A value that is in no table, as an encoder's unknown category.
    let (status, answer) = infer(&server, "lookup", &json!({ "inputs": [input("ids", &[1, 1], &json!([9]))] }));
    let text = answer["error"].as_str().unwrap();
    assert!(status == 400 && text.ends_with("; the inputs were 'ids' [1,1]"), "{status} {text}");
    assert_eq!((refused("invalid_argument"), refused("internal")), (2, 0));
    let body = json!({ "inputs": [input("ids", &[1, 2], &json!([5, 7])), input("mask", &[1, 2], &json!([1, 0]))] });
    assert_eq!(infer(&server, "masked", &body).1["outputs"][0]["data"], json!([5, 0]));
}

#[test]
fn a_batch_of_no_rows_is_told_as_that() {
    let folder = models();
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    let body = json!({ "inputs": [input("ids", &[0, 3], &json!([])), input("mask", &[0, 3], &json!([]))] });
    let (status, answer) = infer(&server, "masked", &body);
    let want = "[request id: <id_unknown>] inference request batch-size must be >= 1 for 'masked'";
    assert_eq!((status, answer["error"].as_str()), (400, Some(want)));
}

#[test]
fn what_json_cannot_say_is_null_or_a_string_where_the_client_asks() {
    let folder = models();
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    let post = |path: &str, body: &str| {
        let answer = http::post(server.http(), &format!("/v2/models/echo/{path}"), body.as_bytes()).unwrap();
        assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
        answer.body
    };
    let request = |parameters: &str| {
        let input = r#"{"name":"x","datatype":"FP32","shape":[3],"data":[NaN,1,-Infinity]}"#;
        post("infer", &format!(r#"{{{parameters}"inputs":[{input}]}}"#))
    };
    let parameter = |value: &str| format!(r#""parameters":{{"non_finite_output":"{value}"}},"#);
    let data = |body: &[u8]| serde_json::from_slice::<Value>(body).unwrap()["outputs"][0]["data"].clone();
    assert_eq!(data(&request(&parameter("null"))), json!([null, 1.0, null]));
    assert_eq!(data(&request(&parameter("string"))), json!(["NaN", 1.0, "-Infinity"]));
    for parameters in [String::new(), parameter("literal"), r#""parameters":{"non_finite_output":null},"#.to_owned()] {
        let body = request(&parameters);
        assert!(String::from_utf8_lossy(&body).contains("[NaN,1.0,-Infinity]"), "Triton's: {parameters}");
    }
    for path in ["generate", "generate_stream"] {
        let body = post(path, r#"{"x":[NaN,1],"non_finite_output":"null"}"#);
        assert!(String::from_utf8_lossy(&body).contains(r#""y":[null,1.0]"#), "{}", String::from_utf8_lossy(&body));
    }
}

#[test]
fn a_binary_body_without_the_length_of_its_json_is_told_what_it_lacks() {
    let folder = models();
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    let json = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}}]}"#;
    let body = [json.as_bytes(), &1_f32.to_le_bytes()].concat();
    let ask = |headers: &[(&str, &str)], body: &[u8]| {
        let answer =
            http::exchange(server.http(), &http::request("POST", "/v2/models/echo/infer", headers, body)).unwrap();
        (answer.status, String::from_utf8_lossy(&answer.body).into_owned())
    };
    let lacks = "the header Inference-Header-Content-Length is missing";
    let (status, text) = ask(&[("Content-Type", "Application/Octet-Stream")], &body);
    assert!(status == 400 && text.contains("failed to parse") && text.contains(lacks), "{status} {text}");
    let (status, text) = ask(&[("Content-Type", "Application/Octet-Stream")], &[0, 0, 128]);
    assert!(status == 400 && text.contains(lacks), "{status} {text}");
    let (status, text) = ask(&[], b"{");
    assert!(status == 400 && !text.contains(lacks), "{text}");
    let binary = ("Content-Type", "application/octet-stream");
    assert_eq!(ask(&[binary, ("Inference-Header-Content-Length", &json.len().to_string())], &body).0, 200);
    assert_eq!(ask(&[binary, ("Inference-Header-Content-Length", "0")], &1_f32.to_le_bytes()).0, 200, "one raw tensor");
    assert_eq!(ask(&[binary], &1_f32.to_le_bytes()).0, 200, "the same by the content type alone");
    assert_eq!(ask(&[binary], br#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]}]}"#).0, 200, "JSON");
    let (_, text) = ask(&[binary, ("Inference-Header-Content-Length", "3")], &body);
    assert!(!text.contains(lacks), "{text}");
}

#[test]
fn an_image_is_the_one_string_of_a_model() {
    let folder = models();
    let text = "backend: \"identity\" input { name: \"x\" data_type: TYPE_STRING dims: 1 } \
                output { name: \"y\" data_type: TYPE_STRING dims: 1 }";
    repository::add(folder.path(), "picture", text, None);
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    let image = b"\x89PNG\r\n\x1a\n\0\xff";
    let request = http::request("POST", "/v2/models/picture/infer", &[("Content-Type", "image/png")], image);
    let answer = http::exchange(server.http(), &request).unwrap();
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    assert!(answer.body.ends_with(&[&10_u32.to_le_bytes()[..], image].concat()));
    let fields = [("Content-Type", "image/png"), ("Accept", "application/json")];
    let request = http::request("POST", "/v2/models/picture/infer", &fields, b"text");
    let answer: Value = serde_json::from_slice(&http::exchange(server.http(), &request).unwrap().body).unwrap();
    assert_eq!(answer["outputs"][0]["data"][0], "text", "JSON where it is asked for: {answer}");
}

#[test]
fn the_reason_of_a_status_line_is_what_the_body_says() {
    let folder = models();
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    let says = |answer: &Response| {
        let body: Value = serde_json::from_slice(&answer.body).unwrap();
        (answer.status, answer.reason.clone(), body["error"].as_str().unwrap().to_owned())
    };
    let delete = http::exchange(server.http(), &http::request("DELETE", "/v2", &[], b"")).unwrap();
    assert_eq!(says(&delete), (405, "Method Not Allowed".to_owned(), "Method Not Allowed".to_owned()));
    let post = http::post(server.metrics(), "/metrics", b"").unwrap();
    assert_eq!(says(&post), (405, "Method Not Allowed".to_owned(), "Method Not Allowed".to_owned()));
    let absent = http::get(server.http(), "/v3").unwrap();
    assert_eq!(says(&absent), (404, "Not Found".to_owned(), "Not Found".to_owned()));
}

#[test]
fn a_model_that_is_not_there_is_not_found_when_it_is_loaded() {
    let folder = models();
    let load = |server: &Server, name: &str, body: &str| {
        let path = format!("/v2/repository/models/{name}/load");
        let answer = http::post(server.http(), &path, body.as_bytes()).unwrap();
        (answer.status, String::from_utf8(answer.body).unwrap())
    };
    let want = r#"{"error":"failed to load 'nope', failed to poll from model repository"}"#;
    let broken = r#"{"parameters":{"config":"{"}}"#;
    let server = Server::deuteron(folder.path(), &["--model-control-mode=explicit", "--load-model=echo"]);
    assert_eq!(load(&server, "nope", ""), (404, want.to_owned()));
    assert_eq!(load(&server, "echo", broken).0, 400, "the configuration is the client's");
    let (status, text) = load(&server, "echo", r#"{"parameter":{"config":"{}"}}"#);
    assert_eq!((status, text.as_str()), (400, r#"{"error":"unknown member 'parameter': did you mean 'parameters'?"}"#));
    let flags = ["--model-control-mode=explicit", "--load-model=echo", "--compat=triton"];
    let server = Server::deuteron(folder.path(), &flags);
    assert_eq!(load(&server, "nope", ""), (500, want.to_owned()));
    assert_eq!(load(&server, "echo", broken).0, 500);
}
