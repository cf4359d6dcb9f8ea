//! Promises of Deuteron that Triton leaves open: requests that no model answers end, errors of a model cost only its
//! batch, and a process sees of the server only its own part.

use std::time::{Duration, Instant};

use serde_json::json;

use super::zoo::{CASES, Models, ints, wait_for};
use crate::support::grpc::Client;
use crate::support::protobuf::{Message, dump};

const NO_ANSWER: &str = "the model gave no response";

#[test]
fn a_request_that_nobody_can_answer_any_more_ends_in_an_error() {
    let Some(models) = Models::new() else { return };
    let zoo = models.with("wrong_returns response_sender").serve(&[]);
    for (model, case) in [
        ("wrong_returns", "nothing"),
        ("wrong_returns", "nothing_in_a_list"),
        ("response_sender", "sender_is_dropped"),
        ("wrong_returns", "nothing"),
    ] {
        let start = Instant::now();
        let (status, text) = zoo.case(model, case).unwrap_err();
        assert!(status == 500 && text.contains(NO_ANSWER), "{model} {case}: {text}");
        assert!(start.elapsed() < Duration::from_secs(15), "{model} {case}");
    }
    let answer = zoo.case("response_sender", "response_without_end");
    assert_eq!(answer, Ok(vec!["without an end".to_owned()]), "the sender is gone: that is the end");
    assert_eq!(zoo.case("wrong_returns", "right"), Ok(vec!["fine".to_owned()]));
}

#[test]
fn what_comes_behind_an_answer_changes_nothing_of_it() {
    let Some(models) = Models::new() else { return };
    let zoo = models.with("response_sender").serve(&[]);
    for _ in 0..5 {
        assert_eq!(zoo.case("response_sender", "sent_and_returned"), Ok(vec!["sent".to_owned()]));
        assert_eq!(zoo.case("response_sender", "raises_after_the_end"), Ok(vec!["answered before".to_owned()]));
        let (status, text) = zoo.case("response_sender", "raises_before").unwrap_err();
        assert!(status == 500 && text.contains("ValueError: before an answer"), "{text}");
    }
    assert_eq!(zoo.case("response_sender", "later"), Ok(vec!["after the return".to_owned()]));
}

#[test]
fn a_stream_whose_sender_is_gone_ends() {
    let Some(models) = Models::new() else { return };
    let zoo = models.with("response_sender_decoupled").serve(&[]);
    for (case, messages) in [("dropped", 1), ("many", 200), ("none_at_all", 0)] {
        let input = Message::new().bytes(1, "case").bytes(2, "BYTES").packed(3, &[1]);
        let mut text = u32::try_from(case.len()).unwrap().to_le_bytes().to_vec();
        text.extend(case.as_bytes());
        let message =
            Message::new().bytes(1, "response_sender_decoupled").message(5, input).bytes(7, text).into_bytes();
        let method = "/inference.GRPCInferenceService/ModelStreamInfer";
        let (came, end) = Client::new(zoo.server.grpc()).stream(method, &[], vec![message]);
        let shown: Vec<_> = came.iter().map(|message| dump(message)).collect();
        assert!(end.is_ok() && came.len() == messages, "{case}: {end:?} {shown:?}");
    }
}

#[test]
fn wrong_arguments_that_end_tritonserver_are_refused() {
    let Some(models) = Models::new() else { return };
    let zoo = models.with("argument_validation double").serve(&[]);
    for _ in 0..3 {
        let lines = zoo.case("argument_validation", "crashes").unwrap();
        let told = |what: &str| {
            let line =
                lines.iter().find_map(|line| line.strip_prefix(what)).unwrap_or_else(|| panic!("{what}: {lines:?}"));
            line.trim_start_matches(": ").to_owned()
        };
        assert_eq!(told("from_dlpack of an array"), "[1, 2]");
        assert_eq!(told("from_dlpack of a numpy capsule"), "[2]");
        assert_eq!(told("from_dlpack of a capsule once"), "[2]");
        for refused in ["from_dlpack of a transposed array", "from_dlpack of complex", "from_dlpack of a capsule twice"]
        {
            let text = told(refused);
            assert!(text.starts_with("TritonModelException") || text.starts_with("TypeError"), "{refused}: {text}");
        }
        // Calls without use do no harm.
        assert_eq!(told("is_cancelled of its own request"), "False");
        assert!(!told("get_response_sender of its own request").is_empty());
    }
}

#[test]
fn a_response_has_parameters() {
    let Some(models) = Models::new() else { return };
    let zoo = models.with("response_parameters").serve(&[]);
    let ask = |case: &str| zoo.infer("response_parameters", &json!({ "inputs": [super::zoo::texts("case", &[case])] }));
    let parameters = |case: &str| ask(case).1["parameters"].clone();
    assert_eq!(parameters("each_type"), json!({ "flag": true, "number": -7, "text": "café" }));
    assert_eq!(parameters("false_and_zero"), json!({ "flag": false, "number": 0, "text": "" }));
    assert!(parameters("none").is_null() || parameters("none") == json!({}));
    for (case, text) in [
        ("a_float", "Expect parameters values to have type bool/int/str, found type <class 'float'>"),
        ("a_nested_list", "Expect parameters values to have type bool/int/str, found type <class 'list'>"),
        ("nothing", "Expect parameters values to have type bool/int/str, found type <class 'NoneType'>"),
        ("a_key_that_is_no_text", "Expect parameters keys to have type str, found type <class 'int'>"),
        ("a_list", ", got <class 'list'>"),
    ] {
        let (status, answer) = ask(case);
        assert!(status == 500 && answer["error"].as_str().unwrap().contains(text), "{case}: {answer}");
    }
}

#[test]
fn what_costs_each_batch_of_a_model_much_is_told_once_in_the_log() {
    let Some(models) = Models::new() else { return };
    let program = r#"
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        with open(__file__) as file:
            told = np.array([file.readline()], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("result", told)]) for _ in requests]
"#;
    let zoo = models.add("opens", CASES, program).serve(&[]);
    for _ in 0..20 {
        assert!(zoo.case("opens", "").is_ok());
    }
    let line = zoo.logged("hint: execute opens");
    let want = "opens/1/model.py' in each batch (8 of 8). Load it in initialize.";
    assert!(line.starts_with('W') && line.contains("model.py:8)") && line.contains(want), "{line}");
    assert_eq!(zoo.server.log().matches("hint: ").count(), 1);
}

const PROCESS: &str = r#"
import os
import socket
import stat
import sys

import numpy as np
import triton_python_backend_utils as pb_utils


def listening(number):
    try:
        one = socket.socket(fileno=os.dup(number))
    except OSError:
        return False
    with one:
        return one.family != socket.AF_UNIX


class TritonPythonModel:
    def execute(self, requests):
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]
        alive = [number for number in numbers if os.path.exists(f"/proc/self/fd/{number}")]
        told = {
            "cores": len(os.sched_getaffinity(0)),
            "files": len(alive),
            "network": sum(listening(number) for number in alive),
            "named memory": sum(
                os.readlink(f"/proc/self/fd/{number}").startswith("/dev/shm") for number in alive
            ),
            "input is null": stat.S_ISCHR(os.fstat(0).st_mode) and os.read(0, 1) == b"",
            "own group": os.getpgrp() == os.getpid(),
            "oom": int(open("/proc/self/oom_score_adj").read()),
            "unbuffered": os.environ.get("PYTHONUNBUFFERED"),
            "threads": os.environ.get("OMP_NUM_THREADS"),
            "kept": os.environ.get("ZOO_KEPT"),
            "own variables": [name for name in os.environ if name.startswith("DEUTERON_")],
            "utf-8": sys.getfilesystemencoding(),
            "directory": os.getcwd(),
            "argv": sys.argv,
        }
        lines = [f"{name}: {value}" for name, value in told.items()]
        result = pb_utils.Tensor("result", np.array(lines, dtype=object))
        return [pb_utils.InferenceResponse([result]) for _ in requests]
"#;

#[test]
fn a_process_has_what_is_its_own_and_nothing_of_the_server() {
    let Some(models) = Models::new() else { return };
    let models = models.add("m", CASES, PROCESS);
    let (mut command, ports) = models.command(&["--shards=1"]);
    let directory = std::env::temp_dir().canonicalize().unwrap();
    command
        .env("ZOO_KEPT", "yes")
        .env("DEUTERON_LOG_VERBOSE", "0")
        .env_remove("OMP_NUM_THREADS")
        .current_dir(&directory);
    let zoo = super::zoo::Zoo { server: crate::support::server::Server::start(command, ports), models };
    let lines = zoo.case("m", "any").unwrap();
    let told = |what: &str| {
        let line = lines.iter().find_map(|line| line.strip_prefix(&format!("{what}: ")));
        line.unwrap_or_else(|| panic!("{what}: {lines:?}")).to_owned()
    };
    let number = |what: &str| told(what).parse::<i64>().unwrap();
    assert!(number("cores") >= 1 && number("threads") >= 1, "{lines:?}");
    // Its standard streams, two sockets, two regions, and the files of Python itself.
    assert!(number("files") <= 12, "{lines:?}");
    assert_eq!((number("network"), number("named memory")), (0, 0), "{lines:?}");
    assert!(number("oom") >= 500, "{lines:?}");
    for (what, want) in [
        ("input is null", "True"),
        ("own group", "True"),
        ("unbuffered", "1"),
        ("kept", "yes"),
        ("own variables", "[]"),
        ("argv", "['']"),
    ] {
        assert_eq!(told(what), want, "{what}");
    }
    assert_eq!(told("utf-8"), "utf-8");
    assert_eq!(told("directory"), directory.display().to_string(), "the server's");
}

#[test]
fn inputs_that_a_model_keeps_stay_as_they_came() {
    let Some(models) = Models::new() else { return };
    let program = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n    \
        def initialize(self, args):\n        self.kept = []\n\n    def execute(self, requests):\n        responses = []\n        \
        for request in requests:\n            x = pb_utils.get_input_tensor_by_name(request, 'x').as_numpy()\n            \
        self.kept = self.kept[-40:] + [(x, int(x[0]))]\n            \
        same = all((array == number).all() for array, number in self.kept)\n            \
        y = np.array([len(self.kept), same], dtype=np.int32)\n            \
        responses.append(pb_utils.InferenceResponse([pb_utils.Tensor('y', y)]))\n        return responses\n";
    let config = "backend: 'python' instance_group { kind: KIND_CPU }
        input { name: 'x' data_type: TYPE_INT32 dims: -1 } output { name: 'y' data_type: TYPE_INT32 dims: 2 }";
    let zoo = models.add("keeper", config, program).serve(&[]);
    for number in 0..100 {
        let count = 41.min(number + 1);
        let x = vec![number; 1 + 7_000 * (number as usize % 3)];
        assert_eq!(zoo.ask("keeper", &[ints("x", &x)]), Ok(json!([count, 1])), "{number}");
    }
}

#[test]
fn tensors_may_be_larger_than_the_memory_that_a_process_begins_with() {
    let Some(models) = Models::new() else { return };
    let zoo = models.with("double").serve(&["--http-max-input-size=200000000"]);
    for size in [10, 30_000_000, 1_000, 30_000_000] {
        let header = json!({
            "inputs": [{ "name": "x", "datatype": "INT32", "shape": [size], "parameters": { "binary_data_size": size * 4 } }],
            "outputs": [{ "name": "y", "parameters": { "binary_data": true } }]
        });
        let header = header.to_string();
        let mut body = header.clone().into_bytes();
        body.extend((0..size).flat_map(|number: i32| (number % 1_000 + 1_000).to_le_bytes()));
        let length = header.len().to_string();
        let headers = [("Inference-Header-Content-Length", length.as_str())];
        let request = crate::support::http::request("POST", "/v2/models/double/infer", &headers, &body);
        let answer = crate::support::http::exchange(zoo.server.http(), &request).unwrap();
        assert_eq!(answer.status, 200, "{size}: {}", String::from_utf8_lossy(&answer.body));
        let json: usize = answer.header("inference-header-content-length").unwrap().parse().unwrap();
        let y = answer.body[json..].chunks_exact(4).map(|bytes| i32::from_le_bytes(bytes.try_into().unwrap()));
        assert!(y.eq((0..size).map(|number| (number % 1_000 + 1_000) * 2)), "{size}");
    }
}

#[test]
fn a_program_is_imported_once_by_each_instance_or_for_all_and_once_more_to_complete_its_configuration() {
    check_imports("off", 2);
    check_imports("auto", 1);
}

/// Loads two models with two instances each, which are forked as the flag says.
fn check_imports(fork: &str, of_model: usize) {
    let Some(models) = Models::new() else { return };
    let counts = models.path().with_extension("counts");
    std::fs::create_dir_all(&counts).unwrap();
    let head = format!(
        "import os\nopen(os.path.join({:?}, __name__ + str(os.getpid())), 'w').close()\n",
        counts.display().to_string()
    );
    let body = "class TritonPythonModel:\n    def execute(self, requests):\n        pass\n";
    let completes = "\n    @staticmethod\n    def auto_complete_config(config):\n        return config\n";
    let two = CASES.replace("KIND_CPU }", "KIND_CPU count: 2 }");
    let count = || std::fs::read_dir(&counts).unwrap().count();
    let zoo = models
        .add("plain", &two, &format!("{head}{body}"))
        .add("completes", &two, &format!("{head}{body}{completes}"))
        .serve(&["--model-control-mode=explicit", &format!("--backend-config=python,fork={fork}")]);
    assert_eq!((zoo.order("plain", "load").0, count()), (200, of_model));
    assert_eq!((zoo.order("completes", "load").0, count()), (200, 2 * of_model + 1));
    wait_for("the one for the configuration is gone", || zoo.processes().len() == 4);
    drop(zoo);
    std::fs::remove_dir_all(counts).unwrap();
}
