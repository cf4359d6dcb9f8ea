//! The rows of a large request on several idle instances, on the server as a process.

use serde_json::Value;

use crate::support::folder::Folder;
use crate::support::metrics::metric;
use crate::support::onnx::builder::{FLOAT, Onnx};
use crate::support::server::Server;
use crate::support::wait::wait_until;
use crate::support::{http, repository};

/// Elements of a row.
const WIDTH: usize = 512;
/// Rows of a request.
const ROWS: usize = 32;
/// Products of the rows with one matrix: some tens of milliseconds.
const PRODUCTS: usize = 100;

/// Multiplies rows by the unit matrix, again and again.
fn slow() -> Onnx {
    let unit: Vec<u8> =
        (0..WIDTH * WIDTH).flat_map(|index| f32::from(u8::from(index % (WIDTH + 1) == 0)).to_le_bytes()).collect();
    let side = WIDTH as i64;
    let onnx = Onnx::default().constant("unit", FLOAT, &[side, side], &unit).input("x", FLOAT, &[-1, side]);
    let onnx = onnx.output("y", FLOAT, &[-1, side]);
    let name = |step: usize| match step {
        0 => "x".to_owned(),
        PRODUCTS => "y".to_owned(),
        step => format!("x{step}"),
    };
    let product = |onnx: Onnx, step| onnx.node("MatMul", &[&name(step), "unit"], &[&name(step + 1)], &[]);
    (0..PRODUCTS).fold(onnx, product)
}

fn config(more: &str) -> String {
    format!(
        "platform: \"onnxruntime_onnx\" max_batch_size: {ROWS} instance_group {{ count: 2 kind: KIND_CPU }}\n\
         input {{ name: \"x\" data_type: TYPE_FP32 dims: {WIDTH} }}\n\
         output {{ name: \"y\" data_type: TYPE_FP32 dims: {WIDTH} }}\n{more}"
    )
}

/// Rows that each have a number of their own.
fn rows() -> Vec<u8> {
    (0..ROWS).flat_map(|row| (row as f32).to_le_bytes().repeat(WIDTH)).collect()
}

/// Sends these rows, and returns the bytes of the outputs.
fn ask(server: &Server, model: &str) -> Vec<u8> {
    let rows = rows();
    let header = format!(
        r#"{{"inputs":[{{"name":"x","shape":[{ROWS},{WIDTH}],"datatype":"FP32","parameters":{{"binary_data_size":{}}}}}],"parameters":{{"binary_data_output":true}}}}"#,
        rows.len()
    );
    let length = header.len().to_string();
    let body = [header.as_bytes(), &rows].concat();
    let path = format!("/v2/models/{model}/infer");
    let request = http::request("POST", &path, &[("Inference-Header-Content-Length", &length)], &body);
    let answer = http::exchange(server.http(), &request).unwrap();
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    let at = answer.header("inference-header-content-length").unwrap().parse::<usize>().unwrap();
    answer.body[at..].to_vec()
}

fn count(server: &Server, name: &str, model: &str) -> usize {
    metric(server.metrics(), &format!("{name}{{model=\"{model}\",version=\"1\"}}")) as usize
}

/// Asks a model until one of its requests has run on both instances, and returns the number of requests. The first run
/// shows how long one takes, and an instance is idle only a moment after its answer, so that a request may stay whole.
fn ask_until_split(server: &Server, model: &str, want: &[u8]) -> usize {
    let mut asked = 0;
    wait_until("a request runs on both instances", || {
        assert!(ask(server, model) == want, "each row in its place");
        asked += 1;
        count(server, "nv_inference_exec_count", model) > asked
    });
    asked
}

#[test]
fn the_rows_of_a_large_request_run_on_idle_instances_and_it_counts_once() {
    let folder = Folder::new("row-shares");
    repository::add(folder.path(), "apart", &config("dynamic_batching { }"), Some(&slow().into_bytes()));
    let whole = config("parameters { key: \"split_rows\" value { string_value: \"off\" } }");
    repository::add(folder.path(), "whole", &whole, Some(&slow().into_bytes()));
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    let asked = ask_until_split(&server, "apart", &rows());
    assert_eq!(count(&server, "nv_inference_request_success", "apart"), asked);
    assert_eq!(count(&server, "nv_inference_count", "apart"), asked * ROWS);
    for _ in 0..4 {
        ask(&server, "whole");
    }
    assert_eq!(count(&server, "nv_inference_exec_count", "whole"), 4, "its configuration says so");
    let off = Server::deuteron(folder.path(), &["--shards=1", "--split-rows=off"]);
    for _ in 0..4 {
        ask(&off, "apart");
    }
    assert_eq!(count(&off, "nv_inference_exec_count", "apart"), 4, "the flag says so");
    let statistics = http::get(server.http(), "/v2/models/apart/stats").unwrap().body;
    let statistics: Value = serde_json::from_slice(&statistics).unwrap();
    let sizes = statistics["model_stats"][0]["batch_stats"].as_array().unwrap();
    assert!(sizes.iter().any(|size| size["batch_size"] == ROWS as u64 / 2), "{statistics}");
}

#[test]
fn a_request_whose_rows_are_not_on_their_own_runs_whole_once_more_and_later_ones_stay_whole() {
    let folder = Folder::new("rows-together");
    // The file says that the sum over all rows has a row for each of them.
    let width = WIDTH as i64;
    let sums = slow().node_listed("ReduceSum", &["y"], &["sum"], ("axes", &[0])).output("sum", FLOAT, &[-1, width]);
    let config =
        format!("platform: \"onnxruntime_onnx\" max_batch_size: {ROWS} instance_group {{ count: 2 kind: KIND_CPU }}\n");
    repository::add(folder.path(), "sums", &config, Some(&sums.into_bytes_of(11)));
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    let total = (0..ROWS).map(|row| row as f32).sum::<f32>().to_le_bytes().repeat(WIDTH);
    let want = [rows(), total].concat();
    let asked = ask_until_split(&server, "sums", &want);
    let ran = count(&server, "nv_inference_exec_count", "sums");
    assert_eq!(ran, asked + 2, "two shares, and the whole request after them");
    for _ in 0..4 {
        assert!(ask(&server, "sums") == want);
    }
    assert_eq!(count(&server, "nv_inference_exec_count", "sums"), ran + 4);
    assert_eq!(count(&server, "nv_inference_request_success", "sums"), asked + 4);
}

/// A tokenizer of two words.
const TOKENIZER: &str = r#"{"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": null, "decoder": null,
    "model": {"type": "WordLevel", "vocab": {"[PAD]": 0, "[UNK]": 1, "word": 2}, "unk_token": "[UNK]"}}"#;

#[test]
fn the_rows_of_a_list_of_steps_run_on_idle_instances_too() {
    let folder = Folder::new("row-shares-steps");
    let version = folder.path().join("tokens/1");
    std::fs::create_dir_all(&version).unwrap();
    let config = format!(
        "backend: \"steps\" max_batch_size: {ROWS} instance_group {{ count: 2 kind: KIND_CPU }}\n\
         input {{ name: \"text\" data_type: TYPE_STRING dims: 1 }}\n\
         output {{ name: \"ids\" data_type: TYPE_INT64 dims: 4 }}\n"
    );
    std::fs::write(folder.path().join("tokens/config.pbtxt"), config).unwrap();
    std::fs::write(version.join("tokenizer.json"), TOKENIZER).unwrap();
    let list = r#"{"steps": [{"step": "tokenize", "input": "text", "outputs": {"ids": "ids"}, "file": "tokenizer.json",
        "padding": "max_length", "max_length": 4, "pad_token": "[PAD]"}]}"#;
    std::fs::write(version.join("steps.json"), list).unwrap();
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    let long = "word ".repeat(4_000);
    let rows: Vec<_> = (0..ROWS).map(|row| if row == 3 { "word" } else { long.as_str() }).collect();
    let input = serde_json::json!({"name": "text", "datatype": "BYTES", "shape": [ROWS, 1], "data": rows});
    let body = serde_json::json!({ "inputs": [input] }).to_string();
    let mut want = [2; 4 * ROWS];
    want[4 * 3 + 1..4 * 4].fill(0);
    let mut asked = 0;
    wait_until("a list runs on both instances", || {
        let answer = http::post(server.http(), "/v2/models/tokens/infer", body.as_bytes()).unwrap();
        let answer: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(answer["outputs"][0]["data"], serde_json::json!(want.to_vec()), "each row in its place");
        asked += 1;
        count(&server, "nv_inference_exec_count", "tokens") > asked
    });
    assert_eq!(count(&server, "nv_inference_count", "tokens"), asked * ROWS);
}
