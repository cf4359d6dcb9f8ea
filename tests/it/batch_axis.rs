//! Models that are batched without a batch size in their configuration: those whose rows run by themselves. No answer
//! may depend on concurrent requests.

mod graphs;

use std::fs;
use std::sync::Barrier;
use std::thread;

use serde_json::{Value, json};

use crate::batch_axis::graphs::{Graph, Runs, mixing, row_wise};
use crate::onnxruntime::{environment, flag, start};
use crate::support::folder::Folder;
use crate::support::http;
use crate::support::onnx::builder::{FLOAT, Onnx};
use crate::support::repository;
use crate::support::server::Server;

/// Concurrent clients.
const CLIENTS: usize = 8;
/// Rows of each of their requests.
const ROWS: usize = 2;
/// Has requests wait for each other, and leaves the batch axis to the model's file.
const WAITING: &str = "dynamic_batching { max_queue_delay_microseconds: 4000 } instance_group { count: 1 }\n";

/// Pseudo-random numbers (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }

    /// From -2 to 2.
    fn float(&mut self) -> f64 {
        (self.next() % 4000) as f64 / 1000.0 - 2.0
    }
}

/// The request of a client.
fn request(graph: &Graph, client: usize) -> String {
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ ((client as u64 + 1) * 0x1234_5671));
    let input = |(name, datatype, sizes): &(&str, &str, Vec<usize>)| {
        let count = ROWS * sizes.iter().product::<usize>();
        let value = |_| match *datatype {
            "FP32" | "FP64" => json!(random.float()),
            "BOOL" => json!(random.next() % 2 == 1),
            "BYTES" => json!(format!("word {}", random.next() % 9)),
            _ => json!(random.next() % 2),
        };
        let data: Vec<Value> = (0..count).map(value).collect();
        let shape: Vec<usize> = [ROWS].into_iter().chain(sizes.iter().copied()).collect();
        json!({ "name": name, "shape": shape, "datatype": datatype, "data": data })
    };
    let inputs: Vec<Value> = graph.inputs.iter().map(input).collect();
    json!({ "inputs": inputs }).to_string()
}

/// The outputs of an answer: shapes and values.
fn infer(server: &Server, model: &str, body: &str) -> Vec<Value> {
    let answer = http::post(server.http(), &format!("/v2/models/{model}/infer"), body.as_bytes()).unwrap();
    let text = String::from_utf8(answer.body).unwrap();
    assert_eq!(answer.status, 200, "{model}: {text}");
    let answer: Value = serde_json::from_str(&text).unwrap();
    answer["outputs"].as_array().unwrap().clone()
}

/// Returns true if two answers are the same but for rounding.
fn are_same(one: &[Value], other: &[Value]) -> bool {
    let values_are_same = |(one, other): (&Value, &Value)| match (one.as_f64(), other.as_f64()) {
        (Some(one), Some(other)) => (one - other).abs() <= 1e-5 + 1e-4 * one.abs(),
        _ => one == other,
    };
    let outputs_are_same = |(one, other): (&Value, &Value)| {
        let (values, others) = (one["data"].as_array().unwrap(), other["data"].as_array().unwrap());
        one["shape"] == other["shape"] && values.len() == others.len() && values.iter().zip(others).all(values_are_same)
    };
    one.len() == other.len() && one.iter().zip(other).all(outputs_are_same)
}

/// Counts wrong answers: clients ask together, `times` times, and each answer must be the one that its client gets
/// alone.
fn wrong_answers(server: &Server, model: &str, requests: &[String], times: usize) -> usize {
    let alone: Vec<_> = requests.iter().map(|body| infer(server, model, body)).collect();
    let together = Barrier::new(requests.len());
    let ask = |(body, alone): (&String, &Vec<Value>)| {
        let wrong = |_| {
            together.wait();
            !are_same(alone, &infer(server, model, body))
        };
        (0..times).map(wrong).filter(|is_wrong| *is_wrong).count()
    };
    thread::scope(|scope| {
        let clients: Vec<_> = requests.iter().zip(&alone).map(|client| scope.spawn(move || ask(client))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    })
}

/// `max_batch_size` of a served model.
fn rows_max(server: &Server, model: &str) -> i64 {
    let answer = http::get(server.http(), &format!("/v2/models/{model}/config")).unwrap();
    let config: Value = serde_json::from_slice(&answer.body).unwrap();
    config["max_batch_size"].as_i64().unwrap_or_else(|| panic!("{model}: {config}"))
}

fn corpus() -> Vec<Graph> {
    mixing().into_iter().chain(row_wise()).collect()
}

fn repository_of(graphs: &[Graph]) -> Folder {
    let folder = Folder::new("batch-axis");
    graphs.iter().for_each(|graph| repository::add(folder.path(), graph.name, WAITING, Some(&graph.file)));
    folder
}

/// Every graph is batched if its rows run by themselves, and not otherwise; and no answer is wrong.
fn check_corpus(server: &Server, graphs: &[Graph]) {
    let log = server.log();
    let mut faults = Vec::new();
    for Graph { name, mixes, .. } in graphs {
        let why = log.lines().find(|line| line.contains(&format!("'{name}' is not batched"))).unwrap_or_default();
        let want = if *mixes { 0 } else { 4 };
        let got = rows_max(server, name);
        if got != want || why.is_empty() == *mixes {
            faults.push(format!("{name}: max_batch_size {got} instead of {want}: {why}"));
        }
    }
    for graph in graphs {
        let requests: Vec<_> = (0..CLIENTS).map(|client| request(graph, client)).collect();
        let wrong = wrong_answers(server, graph.name, &requests, 2);
        if wrong > 0 {
            faults.push(format!("{}: {wrong} wrong answers", graph.name));
        }
    }
    assert!(faults.is_empty(), "{}\n{log}", faults.join("\n"));
}

#[test]
fn the_corpus_is_large() {
    let graphs = corpus();
    let mixes = graphs.iter().filter(|graph| graph.mixes).count();
    assert!(graphs.len() >= 60 && mixes >= 20, "{} graphs, {mixes} of which mix rows", graphs.len());
}

#[test]
fn the_embedded_engine_batches_only_rows_that_run_by_themselves() {
    let graphs: Vec<_> = corpus().into_iter().filter(|graph| graph.runs == Runs::Both).collect();
    let folder = repository_of(&graphs);
    check_corpus(&Server::deuteron(folder.path(), &[]), &graphs);
}

#[test]
fn onnx_runtime_batches_only_rows_that_run_by_themselves() {
    let Some(environment) = environment() else { return };
    let graphs = corpus();
    let folder = repository_of(&graphs);
    check_corpus(&start(&folder, &[&flag(environment)], &[]), &graphs);
}

/// Eight dense layers over tokens of 768 numbers, and attention over the tokens.
fn tokens() -> Graph {
    let width = 768_i64;
    let weights = (0..width * width).map(|index| ((index * 37 % 2311) as f32 / 1155.0 - 1.0) / 16.0);
    let weights: Vec<u8> = weights.flat_map(f32::to_le_bytes).collect();
    let onnx = Onnx::default().constant("w", FLOAT, &[width, width], &weights).node("Identity", &["x"], &["h0"], &[]);
    let onnx = (0..8).fold(onnx, |onnx, layer| {
        let (from, to, out) = (format!("h{layer}"), format!("p{layer}"), format!("h{}", layer + 1));
        onnx.node("MatMul", &[&from, "w"], &[&to], &[]).node("Tanh", &[&to], &[&out], &[])
    });
    let file = onnx
        .node("Transpose", &["h8"], &["keys"], &[])
        .node("MatMul", &["h8", "keys"], &["scores"], &[])
        .node("Softmax", &["scores"], &["shares"], &[("axis", 1)])
        .node("MatMul", &["shares", "h8"], &["y"], &[])
        .input("x", FLOAT, &[-1, width])
        .output("y", FLOAT, &[-1, width])
        .into_bytes();
    Graph { name: "tokens", mixes: true, runs: Runs::Both, file, inputs: vec![("x", "FP32", vec![768])] }
}

#[test]
fn eight_clients_of_an_attention_over_tokens_get_their_own_answers() {
    let graph = tokens();
    let folder = Folder::new("batch-axis");
    repository::add(folder.path(), graph.name, "", Some(&graph.file));
    fs::remove_file(folder.path().join("tokens/config.pbtxt")).unwrap();
    let server = Server::deuteron(folder.path(), &[]);
    let requests: Vec<_> = (0..CLIENTS).map(|client| request(&graph, client)).collect();
    assert_eq!(wrong_answers(&server, graph.name, &requests, 60), 0, "of 480 answers");
    assert_eq!(rows_max(&server, graph.name), 0);
    let log = server.log();
    let why = "'tokens' is not batched, since its first axis is not known to be a batch axis: output 'y' of a row differs by \
               up to ";
    assert!(log.contains(why), "{log}");
}

#[test]
fn a_configuration_that_says_what_the_first_axis_is_wins() {
    let folder = Folder::new("batch-axis");
    let row_wise = row_wise();
    let relu = &row_wise.iter().find(|graph| graph.name == "mlp").unwrap().file;
    let mixing = mixing();
    let softmax = &mixing.iter().find(|graph| graph.name == "softmax").unwrap().file;
    let add = |name: &str, file: &str, config: &str, onnx: &[u8]| {
        let model = folder.path().join(name);
        fs::create_dir_all(model.join("1")).unwrap();
        fs::write(model.join("1/model.onnx"), onnx).unwrap();
        fs::write(model.join(file), config).unwrap();
    };
    add("text", "config.pbtxt", "max_batch_size: 0\n", relu);
    add("json", "config.json", r#"{"max_batch_size": 0}"#, relu);
    add("toml", "config.toml", "max_batch_size = 0\n", relu);
    add("open", "config.json", r#"{"max_batch_size": null}"#, relu);
    let batched = "max_batch_size: 8\ndynamic_batching { max_queue_delay_microseconds: 4000 }\n";
    add("batched", "config.pbtxt", batched, softmax);
    add("right", "config.pbtxt", batched, relu);
    // The input leaves room for rows, and the file is silent about them.
    let listed = "input { name: \"x\" data_type: TYPE_FP32 dims: [ 4 ] }\n";
    add("listed", "config.pbtxt", listed, softmax);
    add("listed-rows", "config.pbtxt", listed, relu);
    let server = Server::deuteron(folder.path(), &[]);
    let got = ["text", "json", "toml", "open", "batched", "right", "listed", "listed-rows"]
        .map(|model| (model, rows_max(&server, model)));
    let want = [("text", 0), ("json", 0), ("toml", 0), ("open", 4), ("batched", 8), ("right", 8), ("listed", 4)];
    assert_eq!(got[..7], want);
    assert_eq!(got[7], ("listed-rows", 4));
    let log = server.log();
    let warned = "the rows of 'batched' depend on each other, and requests share batches as its configuration says: output 'y' \
                  of a row differs by up to ";
    assert!(log.contains(warned) && !log.contains("the rows of 'right'"), "{log}");
    // It has rows, but each request runs alone.
    let config = http::get(server.http(), "/v2/models/listed/config").unwrap();
    assert!(!String::from_utf8(config.body).unwrap().contains("dynamic_batching"));
    let config = http::get(server.http(), "/v2/models/listed-rows/config").unwrap();
    assert!(String::from_utf8(config.body).unwrap().contains("dynamic_batching"));
}

#[test]
fn first_axes_with_different_names_are_no_batch_axis() {
    let two = Onnx::default()
        .node("Relu", &["x"], &["y"], &[])
        .node("Abs", &["z"], &["v"], &[])
        .input("x", FLOAT, &[-1, 4])
        .input("z", FLOAT, &[-1, 4])
        .output("y", FLOAT, &[-1, 4])
        .output("v", FLOAT, &[-1, 4])
        .into_bytes();
    // The builder names dimensions by their index.
    let mut other = two.clone();
    let at = other.windows(2).position(|bytes| bytes == b"d0").unwrap();
    other[at..at + 2].copy_from_slice(b"n0");
    let folder = Folder::new("batch-axis");
    repository::add(folder.path(), "same", "", Some(&two));
    repository::add(folder.path(), "other", "", Some(&other));
    let server = Server::deuteron(folder.path(), &[]);
    assert_eq!((rows_max(&server, "same"), rows_max(&server, "other")), (4, 0));
    let log = server.log();
    let why = "'other' is not batched: the first axes of 'x' [n0] and 'z' [d0] have different names in its file";
    assert!(log.contains(why), "{log}");
}
