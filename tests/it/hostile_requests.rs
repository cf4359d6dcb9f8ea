//! Hostile requests: for every operator that takes a shape, a size, an axis or an index from a request, tensors without
//! elements and integers at their extremes. Each is answered, and the server stays up. `.ci/run hostile-requests` sends
//! `DEUTERON_HOSTILE_REQUESTS` of them to each engine; `cargo test` sends a few hundred.

mod cases;
mod graphs;
mod other_domains;
mod standard;

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use self::cases::{Case, cases};
use crate::onnxruntime::{environment, flag, parameters};
use crate::support::folder::Folder;
use crate::support::onnx::builder::{FLOAT, Onnx};
use crate::support::python::Environment;
use crate::support::server::{Ports, Server};
use crate::support::skipped::is_asked_for;
use crate::support::{http, repository};

/// Requests for each engine; `DEUTERON_HOSTILE_REQUESTS` for another number, and for all models.
const REQUESTS: usize = 400;
/// Models of one server: some run in processes of their own.
const MODELS: usize = 80;
/// Time limit of a start: it loads and tries many models, some of them several times.
const START_MAX: Duration = Duration::from_secs(300);

/// Pseudo-random numbers (xorshift).
pub struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(bound.max(1)).unwrap()).unwrap()
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

const SIZES: [i64; 6] = [0, 1, 2, 3, 5, 9];
const INTEGERS: [i64; 13] = [i64::MIN, i64::MAX, i32::MIN as i64, i32::MAX as i64, -1, 0, 1, 2, 3, 7, -2, 100, 1 << 33];
const FLOATS: [f64; 8] = [0.0, 1.0, -1.0, 0.5, 1e30, -3e9, 1e-30, 2.0];
const TEXTS: [&str; 10] = ["", "a", "b", "aa", "abc", "\u{e9}", "\u{1f600}", "ac b", "-5", "1e400"];

/// One request to a case: mostly valid, with a size or a value or two that are not.
fn request(case: &Case, random: &mut Random) -> Value {
    let changed = random.below(case.inputs.len());
    let zeroed = random.below(4) == 0;
    let mut inputs = Vec::with_capacity(case.inputs.len());
    for (index, input) in case.inputs.iter().enumerate() {
        let mut shape = input.good.to_vec();
        for (axis, size) in shape.iter_mut().enumerate() {
            if input.dims[axis] < 0 && (index == changed || zeroed) && random.below(2) == 0 {
                *size = if zeroed { 0 } else { random.pick(&SIZES) };
            }
        }
        let count = shape.iter().product::<i64>();
        let is_hostile = index == changed || random.below(3) == 0;
        let data: Vec<Value> = (0..count)
            .map(|_| match (input.datatype, is_hostile) {
                (FLOAT, true) => json!(random.pick(&FLOATS)),
                (FLOAT, false) => json!(1.0),
                (cases::BOOL, _) => json!(random.below(2) == 0),
                (cases::STRING, true) => json!(random.pick(&TEXTS)),
                (cases::STRING, false) => json!("a"),
                (cases::UINT8, true) => json!(random.below(256)),
                (_, false) => json!(input.value),
                (datatype, true) => {
                    let (least, most) = cases::bounds(datatype);
                    json!(random.pick(&INTEGERS).clamp(least, most))
                }
            })
            .collect();
        let datatype = cases::kind(input.datatype);
        inputs.push(json!({"name": input.name, "shape": shape, "datatype": datatype, "data": data}));
    }
    json!({"id": format!("{}-{}", case.name, random.below(1000)), "inputs": inputs})
}

/// Serves the first cases, or all of them if asked, and sends hostile requests: each has an answer, and the servers
/// stay up.
fn hold(config: &str, flags: &[&str], variables: &[(&str, &Path)]) {
    let count = std::env::var("DEUTERON_HOSTILE_REQUESTS").ok().and_then(|count| count.parse::<usize>().ok());
    let mut all = cases();
    if count.is_some() {
        all.extend(graphs::cases());
        all.extend(cases::of_lines(standard::LINES));
        all.extend(cases::of_lines(other_domains::LINES));
    }
    let each = count.unwrap_or(REQUESTS) / all.len() + 1;
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let served: usize =
        all.chunks(MODELS).map(|cases| hold_some(cases, each, &mut random, (config, flags, variables))).sum();
    // An engine has not all operators, but most of the first; only ONNX Runtime has its own.
    let part = if count.is_some() { 4 } else { 2 };
    assert!(served * part > all.len(), "{served} of {}", all.len());
}

/// Serves these cases with a configuration, flags and variables, and sends each that many requests. Returns how many of
/// them the engine has.
fn hold_some(
    cases: &[Case],
    each: usize,
    random: &mut Random,
    (config, flags, variables): (&str, &[&str], &[(&str, &Path)]),
) -> usize {
    let folder = Folder::new("hostile-requests");
    for case in cases {
        let config = format!("{config} {}", case.config);
        repository::add(folder.path(), &case.name, &config, Some(&case.file));
    }
    let flags = [
        &[
            "--exit-on-error=false",
            "--strict-readiness=false",
            "--run-timeout-secs=10",
            "--trial-loads=all",
            // An extreme that is a size is refused before it fills the machine of the test.
            "--run-memory-bytes-max=268435456",
        ],
        flags,
    ];
    let ports = Ports::free();
    let mut command = Server::command(folder.path(), &flags.concat(), ports);
    command.envs(variables.iter().copied());
    let mut server = Server::start_within(START_MAX, command, ports);
    let served: Vec<&Case> = cases
        .iter()
        .filter(|case| http::get(server.http(), &format!("/v2/models/{}/ready", case.name)).unwrap().status == 200)
        .collect();
    let mut answers = std::collections::BTreeMap::new();
    // Those of models that the engine has not go to the others.
    let count = if served.is_empty() { 0 } else { each * cases.len() };
    for number in 0..count {
        let case = served[number % served.len()];
        let body = request(case, random).to_string();
        let answer = http::post(server.http(), &format!("/v2/models/{}/infer", case.name), body.as_bytes());
        let Ok(answer) = answer else {
            panic!("request {number} to {} ended the server: {body}\n{}", case.name, server.log());
        };
        *answers.entry(answer.status).or_insert(0_usize) += 1;
        assert!(matches!(answer.status, 200 | 400 | 500 | 503 | 504), "{} {body}", answer.status);
    }
    assert!(server.is_running(), "{}", server.log());
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    println!("{name}: {count} requests to {} models: {answers:?}", served.len());
    served.len()
}

#[test]
fn no_request_to_onnx_runtime_ends_the_server() {
    let Some(environment) = environment() else { return };
    hold("backend: 'onnxruntime'", &[&flag(environment)], &[]);
}

#[test]
fn no_request_to_the_embedded_engine_ends_the_server() {
    hold("backend: 'onnxruntime'", &[], &[]);
}

#[test]
fn no_request_to_openvino_ends_the_server() {
    if !is_asked_for("frameworks") {
        return;
    }
    let environment =
        Environment::create("openvino", "tests/frameworks/openvino.txt", &["python3"]).expect("asked for");
    let config = "backend: 'openvino' default_model_filename: 'model.onnx'";
    hold(config, &[], &[("VIRTUAL_ENV", environment.path())]);
}

/// The configuration of a case for ONNX Runtime.
fn backend(case: &Case) -> String {
    format!("backend: 'onnxruntime' {}", case.config)
}

/// A server with ONNX Runtime, its trials and these models.
fn serve(models: &[(&str, &str, Vec<u8>)], more: &[&str]) -> Option<(Folder, Server)> {
    let flag = flag(environment()?);
    let folder = Folder::new("hostile-requests");
    for (name, config, file) in models {
        repository::add(folder.path(), name, config, Some(file));
    }
    let flags = [&[flag.as_str(), "--run-timeout-secs=5"], more].concat();
    let server = Server::deuteron(folder.path(), &flags);
    Some((folder, server))
}

fn infer(server: &Server, model: &str, inputs: &Value) -> (u16, Value) {
    let body = json!({"inputs": inputs}).to_string();
    let answer = http::post(server.http(), &format!("/v2/models/{model}/infer"), body.as_bytes()).unwrap();
    (answer.status, serde_json::from_slice(&answer.body).unwrap())
}

fn floats(name: &str, shape: &[usize]) -> Value {
    json!({"name": name, "shape": shape, "datatype": "FP32", "data": vec![1.0; shape.iter().product()]})
}

fn integers(name: &str, shape: &[usize], data: &[i64]) -> Value {
    json!({"name": name, "shape": shape, "datatype": "INT64", "data": data})
}

/// Sends a model of this operator inputs that ended the server before: alone, and with usual ones afterwards.
fn check(name: &str, (hostile, want): (&Value, u16), usual: &Value) {
    let case = cases().into_iter().chain(graphs::cases()).find(|case| case.name == name).unwrap();
    let Some((_folder, mut server)) = serve(&[(name, &backend(&case), case.file)], &[]) else { return };
    let (status, answer) = infer(&server, name, hostile);
    assert_eq!(status, want, "{answer}\n{}", server.log());
    if want == 400 {
        let text = answer["error"].as_str().unwrap();
        assert!(text.contains("of size 0 in a request to model"), "{text}");
    }
    assert!(server.is_running(), "{}", server.log());
    // A process that ended is started again.
    crate::isolation::until("an answer", || infer(&server, name, usual).0 == 200);
}

#[test]
fn an_empty_tensor_is_normalized_to_an_empty_one() {
    let scale = [1_f32; 3].map(f32::to_le_bytes).concat();
    let onnx = Onnx::default().constant("s", FLOAT, &[3], &scale).constant("b", FLOAT, &[3], &scale);
    let onnx = onnx.node("InstanceNormalization", &["x", "s", "b"], &["y"], &[]).input("x", FLOAT, &[-1, 3, -1]);
    let file = onnx.output("y", FLOAT, &[-1, 3, -1]).into_bytes();
    let Some((_folder, server)) = serve(&[("normalize", "max_batch_size: 0", file)], &[]) else { return };
    let (status, answer) = infer(&server, "normalize", &json!([floats("x", &[1, 3, 0])]));
    assert_eq!((status, &answer["outputs"][0]["shape"]), (200, &json!([1, 3, 0])), "{answer}");
}

#[test]
fn a_recording_of_no_time_is_refused_by_name_and_others_are_answered() {
    check("gru", (&json!([floats("x", &[0, 1, 3])]), 400), &json!([floats("x", &[2, 1, 3])]));
}

#[test]
fn a_batch_of_no_rows_of_an_lstm_is_refused_by_name_and_others_are_answered() {
    check("lstm", (&json!([floats("x", &[2, 0, 3])]), 400), &json!([floats("x", &[2, 2, 3])]));
}

#[test]
fn the_lowest_integer_divided_by_minus_one_costs_its_request_alone() {
    let hostile = json!([integers("a", &[1], &[i64::MIN]), integers("b", &[1], &[-1])]);
    check("div", (&hostile, 500), &json!([integers("a", &[1], &[7]), integers("b", &[1], &[2])]));
}

#[test]
fn a_frame_of_no_length_costs_its_request_alone() {
    let inputs =
        |length: i64| json!([floats("x", &[1, 64, 1]), integers("step", &[1], &[8]), integers("n", &[1], &[length])]);
    check("stft", (&inputs(0), 500), &inputs(16));
}

#[test]
fn a_kernel_of_no_size_costs_its_request_alone() {
    let inputs = |size: usize| json!([floats("x", &[1, 1, 8]), floats("w", &[1, 1, size])]);
    check("conv1", (&inputs(0), 504), &inputs(3));
}

#[test]
fn an_image_that_a_pooling_leaves_nothing_of_costs_its_request_alone() {
    let inputs = |height: usize| json!([floats("x", &[1, 3, height, 8])]);
    check("pooled_average", (&inputs(6), 500), &inputs(7));
}

#[test]
fn a_sum_of_no_rows_that_is_normalized_is_refused_by_name_and_others_are_answered() {
    let inputs = |rows: usize| json!([floats("x", &[1, 2, 8]), floats("s", &[rows, 2, 8])]);
    check("normalized_sum", (&inputs(0), 400), &inputs(1));
}

#[test]
fn a_model_that_may_not_be_isolated_is_served_with_a_warning() {
    let case = cases().into_iter().find(|case| case.name == "div").unwrap();
    let config = format!("{} {}", backend(&case), parameters(&[("isolation", "none")]));
    let Some((_folder, server)) = serve(&[("div", &config, case.file)], &[]) else { return };
    let usual = json!([integers("a", &[1], &[7]), integers("b", &[1], &[2])]);
    assert_eq!(infer(&server, "div", &usual).0, 200);
    let log = server.log();
    assert!(log.contains("'div' runs in the server, though a request may end it: its operator 'Div'"), "{log}");
}

#[test]
fn without_trials_a_doubtful_model_is_served_untried() {
    let case = cases().into_iter().find(|case| case.name == "gru").unwrap();
    let models = [("gru", &*backend(&case), case.file)];
    let Some((_folder, mut server)) = serve(&models, &["--trial-loads=off"]) else { return };
    assert_eq!(infer(&server, "gru", &json!([floats("x", &[2, 1, 3])])).0, 200);
    // An input that crashes the engine ends the server, and the log says so.
    let body = json!({"id": "empty", "inputs": [floats("x", &[0, 1, 3])]}).to_string();
    let _ = http::post(server.http(), "/v2/models/gru/infer", body.as_bytes());
    assert!(!server.wait().success());
    let want = "while it ran model 'gru' version 1 instance ";
    assert!(server.log().contains(want) && server.log().contains(" request 'empty'"), "{}", server.log());
}

#[test]
fn a_k_beyond_the_axis_on_openvino_costs_its_request_alone() {
    if !is_asked_for("frameworks") {
        return;
    }
    let environment =
        Environment::create("openvino", "tests/frameworks/openvino.txt", &["python3"]).expect("asked for");
    let case = cases().into_iter().find(|case| case.name == "topk").unwrap();
    let folder = Folder::new("hostile-requests");
    let config = format!("backend: 'openvino' default_model_filename: 'model.onnx' {}", case.config);
    repository::add(folder.path(), "topk", &config, Some(&case.file));
    let ports = Ports::free();
    let mut command = Server::command(folder.path(), &["--run-timeout-secs=10"], ports);
    command.env("VIRTUAL_ENV", environment.path());
    let mut server = Server::start(command, ports);
    let inputs = |k: i64| json!([floats("x", &[500, 3]), integers("k", &[1], &[k])]);
    let (status, answer) = infer(&server, "topk", &inputs(9));
    assert!((400..505).contains(&status), "{status} {answer}");
    assert!(server.is_running(), "{}", server.log());
    crate::isolation::until("an answer", || infer(&server, "topk", &inputs(2)).0 == 200);
    let log = server.log();
    assert!(log.contains("'topk' runs in a process of its own, since its operator 'TopK'"), "{log}");
}
