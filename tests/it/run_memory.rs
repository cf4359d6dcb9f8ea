//! Memory bound of one run (`--run-memory-bytes-max`): a valid request whose values ask for more than any machine has is
//! refused with the flag, and the server goes on. The embedded engine computes the memory before it runs; an engine of
//! foreign code runs such a model in a process of its own, whose allocator fails.

use std::path::Path;

use crate::onnxruntime::{environment, flag};
use crate::support::folder::Folder;
use crate::support::http;
use crate::support::metrics::metric;
use crate::support::onnx::{self, FLOAT, INT64, Onnx};
use crate::support::repository;
use crate::support::server::Server;

const EMBEDDED: &str = "--backend-config=onnxruntime,engine=embedded";
const REFUSED: &str = "deuteron_run_memory_refused_total";

/// A model of one operator, with these inputs (name, datatype, dims) and constants.
fn add(repository: &Path, operator: &str, names: &[&str], inputs: &[(&str, i64, &[i64])], output: &[i64]) {
    let onnx = Onnx::default()
        .node(operator, names, &["y"], &[])
        .constant("zero", INT64, &[], &0_i64.to_le_bytes())
        .constant("one", INT64, &[], &1_i64.to_le_bytes())
        .constant("off_on", FLOAT, &[2], &[0_f32, 1.0].map(f32::to_le_bytes).concat());
    let onnx = inputs.iter().fold(onnx, |onnx, (name, datatype, dims)| onnx.input(name, *datatype, dims));
    let datatype = if operator == "Range" { INT64 } else { FLOAT };
    let name = operator.to_lowercase();
    let config = format!("name: \"{name}\"\nbackend: \"onnxruntime\"\nmax_batch_size: 0\n");
    repository::add(repository, &name, &config, Some(&onnx.output("y", datatype, output).into_bytes()));
}

fn models(repository: &Path) {
    let image: &[i64] = &[1, 1, -1, -1];
    add(repository, "Tile", &["x", "n"], &[("x", FLOAT, &[-1]), ("n", INT64, &[1])], &[-1]);
    add(repository, "Expand", &["x", "n"], &[("x", FLOAT, &[1]), ("n", INT64, &[1])], &[-1]);
    add(repository, "Range", &["zero", "n", "one"], &[("n", INT64, &[])], &[-1]);
    add(repository, "ConstantOfShape", &["n"], &[("n", INT64, &[1])], &[-1]);
    add(repository, "Pad", &["x", "n"], &[("x", FLOAT, &[-1]), ("n", INT64, &[2])], &[-1]);
    add(repository, "OneHot", &["i", "n", "off_on"], &[("i", INT64, &[-1]), ("n", INT64, &[])], &[-1, -1]);
    add(repository, "Resize", &["x", "", "", "n"], &[("x", FLOAT, image), ("n", INT64, &[4])], image);
    let square = Onnx::default()
        .node("Transpose", &["x"], &["t"], &[])
        .node("MatMul", &["x", "t"], &["square"], &[])
        .node("ReduceMax", &["square"], &["y"], &[])
        .input("x", FLOAT, &[-1, 1])
        .output("y", FLOAT, &[1, 1]);
    let config = "name: \"square\"\nbackend: \"onnxruntime\"\nmax_batch_size: 0\n";
    repository::add(repository, "square", config, Some(&square.into_bytes()));
}

/// An input as JSON.
fn input(name: &str, datatype: &str, shape: &[usize], values: &[i64]) -> String {
    format!("{{\"name\": \"{name}\", \"datatype\": \"{datatype}\", \"shape\": {shape:?}, \"data\": {values:?}}}")
}

fn infer(server: &Server, model: &str, inputs: &[String]) -> (u16, String) {
    let body = format!("{{\"inputs\": [{}]}}", inputs.join(", "));
    let answer = http::post(server.http(), &format!("/v2/models/{model}/infer"), body.as_bytes()).unwrap();
    (answer.status, String::from_utf8_lossy(&answer.body).into_owned())
}

/// Inputs that a model of one operator answers, and values that ask for too much.
type SizedCase = (&'static str, Vec<String>, Vec<String>);

/// Values of a request set the size of what these models make.
fn sized_by_values() -> [SizedCase; 7] {
    let huge = 200_000_000;
    let x = || input("x", "FP32", &[3], &[1, 2, 3]);
    let n = |shape: &[usize], values: &[i64]| input("n", "INT64", shape, values);
    let image = || input("x", "FP32", &[1, 1, 2, 2], &[1, 2, 3, 4]);
    let single = || input("x", "FP32", &[1], &[1]);
    let classes = || input("i", "INT64", &[2], &[0, 1]);
    [
        ("tile", vec![x(), n(&[1], &[2])], vec![x(), n(&[1], &[huge])]),
        ("expand", vec![single(), n(&[1], &[5])], vec![single(), n(&[1], &[huge])]),
        ("range", vec![n(&[1], &[5])], vec![n(&[1], &[huge])]),
        ("constantofshape", vec![n(&[1], &[5])], vec![n(&[1], &[huge])]),
        ("pad", vec![x(), n(&[2], &[1, 1])], vec![x(), n(&[2], &[0, huge])]),
        ("onehot", vec![classes(), n(&[1], &[3])], vec![classes(), n(&[1], &[huge])]),
        ("resize", vec![image(), n(&[4], &[1, 1, 4, 4])], vec![image(), n(&[4], &[1, 1, 40_000, 40_000])]),
    ]
}

/// A graph that takes the square of its input's size.
fn squared() -> SizedCase {
    let large = input("x", "FP32", &[20_000, 1], &vec![1; 20_000]);
    ("square", vec![input("x", "FP32", &[2, 1], &[1, 2])], vec![large])
}

#[test]
fn values_that_ask_for_more_memory_than_there_is_are_refused_with_the_flag_and_the_server_goes_on() {
    let folder = Folder::new("run-memory");
    models(folder.path());
    let mut server = Server::deuteron(folder.path(), &[EMBEDDED, "--run-memory-bytes-max=100000000"]);
    let cases = sized_by_values().into_iter().chain([squared()]);
    for (refused, (model, small, large)) in (1..).zip(cases) {
        let (status, text) = infer(&server, model, &small);
        assert_eq!(status, 200, "{model}: {text}");
        let (status, text) = infer(&server, model, &large);
        assert_eq!(status, 400, "{model}: {text}");
        assert!(text.contains("--run-memory-bytes-max") && text.contains("100000000"), "{model}: {text}");
        let (status, text) = infer(&server, model, &small);
        assert_eq!(status, 200, "{model}: {text}");
        assert_eq!(metric(server.metrics(), REFUSED), refused, "{model}");
    }
    // Their work depends on the values of a request, so no shard runs them.
    let log = server.log();
    let why = "runs on workers (a request's values set the size of what its operator 'Tile' makes)";
    assert!(log.contains(why), "{log}");
    assert!(server.is_running());
}

#[test]
fn values_that_ask_onnx_runtime_for_more_memory_than_there_is_fail_in_its_process_with_the_flag() {
    let Some(environment) = environment() else { return };
    let folder = Folder::new("run-memory-process");
    models(folder.path());
    let engine = flag(environment);
    let mut server = Server::deuteron(folder.path(), &[&engine, "--run-memory-bytes-max=100000000"]);
    for (model, small, large) in sized_by_values() {
        for inputs in [&small, &large, &small] {
            let (status, text) = infer(&server, model, inputs);
            assert_eq!(status, if inputs == &large { 400 } else { 200 }, "{model}: {text}");
            let is_refused = text.contains("--run-memory-bytes-max") && text.contains("100000000");
            assert_eq!(is_refused, inputs == &large, "{model}: {text}");
        }
        let why = format!("'{model}' runs in a process of its own, since its operator '");
        assert!(server.log().contains(&why), "{}", server.log());
    }
    assert!(server.is_running());
}

#[test]
fn a_loop_as_long_as_a_request_likes_is_refused_by_the_engine_that_cannot_be_stopped() {
    let folder = Folder::new("run-memory-loop");
    let config = "name: \"counting\"\nbackend: \"onnxruntime\"\nmax_batch_size: 0\n";
    repository::add(folder.path(), "counting", config, Some(&onnx::counting()));
    let server = Server::deuteron(folder.path(), &[EMBEDDED, "--exit-on-error=false", "--strict-readiness=false"]);
    let log = server.log();
    let why = "operator 'Loop', which makes 'y', repeats as often as the values of a request say; serve the model with \
               ONNX Runtime";
    assert!(log.contains(why), "{log}");
}
