//! The checks of Triton's own tests of its Python backend (`L0_backend_python`) that an answer alone does not show: the
//! others are in the suites of `oracle`, against the recorded answers of tritonserver.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::zoo::{CASES, Models, WAIT_MAX, ints, texts, wait_for, with_variable};
use crate::support::grpc::Client;
use crate::support::h2::{self, Leave};
use crate::support::metrics::{batches_left, metric};
use crate::support::onnx::{self, Onnx};
use crate::support::protobuf::Message;
use crate::support::repository;

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

#[test]
fn each_instance_is_told_its_name() {
    let Some(models) = Models::new() else { return };
    let zoo = models.with("init_args").configure("init_args", "count: 1", "count: 2").serve(&[]);
    let mut seen = BTreeSet::new();
    wait_for("both instances answer", || {
        let args = zoo.ask("init_args", &[ints("x", &[1])]).unwrap();
        let name = args.as_array().unwrap().iter().find(|arg| arg.as_str().unwrap().contains("instance_name"));
        seen.insert(name.unwrap().as_str().unwrap().to_owned());
        seen.len() == 2
    });
    let names = ["model_instance_name = init_args_0_0", "model_instance_name = init_args_0_1"];
    assert!(names.iter().all(|name| seen.contains(*name)), "{seen:?}");
    assert_eq!(zoo.processes().len(), 2, "one process each");
}

#[test]
fn a_line_of_the_log_has_its_level_and_the_place_of_the_call() {
    for flags in [[].as_slice(), &["--log-verbose=1"]] {
        let Some(models) = Models::new() else { return };
        let mut zoo = models.with("logger").serve(flags);
        for case in ["levels", "thread", "streams", "hostile"] {
            assert_eq!(zoo.case("logger", case), Ok(vec!["logged".to_owned()]));
        }
        zoo.logged("initialize of logger_0_0");
        for (level, text) in [
            ('I', "by log, as it is"),
            ('I', "by log, information"),
            ('W', "by log, warning"),
            ('E', "by log, error"),
            ('I', "by its function, information"),
            ('W', "by its function, warning"),
            ('E', "by its function, error"),
            ('I', "from a thread"),
        ] {
            let line = zoo.logged(text);
            assert!(line.starts_with(level), "{line}");
            assert!(text == "from a thread" || line.contains("model.py:"), "{line}");
        }
        let text = "by its function, verbose";
        match flags {
            [] => assert!(!zoo.server.log().contains(text)),
            _ => drop(zoo.logged(text)),
        }
        for text in ["to the standard output", "to the standard error", "without an end"] {
            assert!(zoo.logged(text).contains("logger_0_0"), "it says whose it is");
        }
        zoo.logged("red");
        let log = zoo.server.log();
        assert!(!log.contains('\x1b') && !log.contains('\0'), "control characters are escaped");
        assert!(!log.lines().any(|line| line.starts_with("lines, ")), "a line feed is escaped");
        assert!(zoo.server.stop().success());
        assert!(zoo.server.log().contains("finalize of the logger"));
    }
}

#[test]
fn a_long_line_is_cut_and_the_next_are_whole() {
    let Some(models) = Models::new() else { return };
    let zoo = models.with("logger").serve(&[]);
    assert!(zoo.case("logger", "long").is_ok());
    assert!(zoo.case("logger", "levels").is_ok());
    zoo.logged("by its function, error");
    zoo.logged("yyyy");
    assert!(zoo.server.log().lines().all(|line| line.len() < 1_100_000), "no line without bounds");
}

#[test]
fn one_bad_request_of_three_fails_alone() {
    let Some(models) = Models::new() else { return };
    let batching =
        "max_batch_size: 4\ndynamic_batching { preferred_batch_size: 3 max_queue_delay_microseconds: 10000000 }";
    let zoo = models.with("error_codes").configure("error_codes", "max_batch_size: 4", batching).serve(&[]);
    let ask = |code: i32| {
        let code = json!({ "name": "code", "datatype": "INT32", "shape": [1, 1], "data": [code] });
        zoo.ask("error_codes", &[code])
    };
    let metrics = zoo.server.metrics();
    let runs = || batches_left(metrics, "error_codes");
    let waiting = "nv_inference_pending_request_count{model=\"error_codes\",version=\"1\"}";
    let pending = || metric(metrics, waiting);
    let answers = thread::scope(|scope| {
        let asked = [(2, 1), (-1, 2), (-1, 3)].map(|(code, count)| {
            let asked = scope.spawn(move || ask(code));
            // The one that fails is the first of the batch, which is counted all the same. The third closes it.
            wait_for("it waits", || pending() == count || runs() == 1);
            asked
        });
        asked.map(|answer| answer.join().unwrap())
    });
    let want = [Err((404, "error code: 2".to_owned())), Ok(json!([-1])), Ok(json!([-1]))];
    assert_eq!(answers, want);
    let statistics = zoo.statistics("error_codes");
    assert_eq!(
        (&statistics["execution_count"], &statistics["inference_count"]),
        (&json!(1), &json!(2)),
        "{statistics}"
    );
    assert_eq!(statistics["batch_stats"][0]["batch_size"], 3);
}

#[test]
fn an_exception_fails_its_batch_as_a_failure_of_the_backend() {
    let Some(models) = Models::new() else { return };
    let zoo = models.with("raises").serve(&[]);
    let count = || {
        metric(zoo.server.metrics(), "nv_inference_request_failure{model=\"raises\",reason=\"BACKEND\",version=\"1\"}")
    };
    assert_eq!(count(), 0);
    let (status, text) = zoo.case("raises", "value_error").unwrap_err();
    let start = "Failed to process the request(s) for model 'raises_0_0', message: ValueError: boom\n\nAt:\n";
    assert_eq!((status, text.starts_with(start)), (500, true), "{text}");
    assert_eq!(count(), 1);
    assert!(zoo.logged("boom").starts_with('E'), "it is in the log as an error");
    assert_eq!(zoo.case("raises", "nothing"), Ok(vec!["nothing".to_owned()]));
}

/// Output of a server that cannot start. No process of it is left.
fn start_in_vain(models: &Models) -> String {
    let mark = format!("ZOO_MARK={}", models.path().display());
    let (name, value) = mark.split_once('=').unwrap();
    let path = models.path().with_extension("log");
    let log = File::create(&path).unwrap();
    let (mut command, _) = models.command(&[]);
    command.env(name, value).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    let mut server = command.spawn().unwrap();
    let start = Instant::now();
    let status = loop {
        match server.try_wait().unwrap() {
            Some(status) => break status,
            None if start.elapsed() > WAIT_MAX => {
                server.kill().unwrap();
                panic!("it runs on:\n{}", fs::read_to_string(&path).unwrap());
            }
            None => thread::sleep(Duration::from_millis(20)),
        }
    };
    let log = fs::read_to_string(&path).unwrap();
    fs::remove_file(path).unwrap();
    assert_eq!(status.code(), Some(1), "{log}");
    wait_for("nothing is left", || with_variable(&mark).is_empty());
    log
}

#[test]
fn a_model_that_cannot_be_loaded_ends_the_server_with_its_reason() {
    let program = |line: &str| {
        format!("import os\n\n\nclass TritonPythonModel:\n    def initialize(self, args):\n        {line}\n")
    };
    for (line, want) in [
        ("raise ValueError('lorem ipsum')", "ValueError: lorem ipsum"),
        ("os._exit(1)", "Stub process 'm_0_0' is not healthy."),
        ("os.abort()", "Stub process 'm_0_0' is not healthy."),
    ] {
        let Some(models) = Models::new() else { return };
        let log = start_in_vain(&models.add("m", CASES, &program(line)).with("double"));
        assert!(log.contains(want), "{want}: {log}");
    }
    let Some(models) = Models::new() else { return };
    let models = models.add("m", CASES, "");
    fs::remove_file(models.path().join("m/1/model.py")).unwrap();
    let log = start_in_vain(&models);
    assert!(log.contains("Python model file not found in '"), "{log}");
}

#[test]
fn a_model_sees_that_its_client_has_gone() {
    let Some(models) = Models::new() else { return };
    let zoo = models.with("cancel_watch").serve(&["--shards=1"]);
    let metrics = zoo.server.metrics();
    let runs = move || batches_left(metrics, "cancel_watch");
    let grpc = [("content-type", "application/grpc"), ("te", "trailers")];
    let json = [("content-type", "application/json")];
    let input = Message::new().bytes(1, "limit_ms").bytes(2, "INT32").packed(3, &[1]);
    let message =
        Message::new().bytes(1, "cancel_watch").message(5, input).bytes(7, 20_000_i32.to_le_bytes()).into_bytes();
    let size = u32::try_from(message.len()).unwrap().to_be_bytes();
    let call = [&[0], &size[..], &message].concat();
    let body = json!({ "inputs": [ints("limit_ms", &[20_000])] }).to_string();
    let path = "/v2/models/cancel_watch/infer";
    let seen = || zoo.server.log().matches("saw the cancellation, and again: True").count();
    for round in 0..3 {
        let before = runs();
        let runs_now = move || {
            wait_for("it runs", || runs() == before + 1);
            // The model has begun to check.
            thread::sleep(Duration::from_millis(100));
        };
        match round {
            0 => h2::abandon(zoo.server.grpc(), INFER, &grpc, &call, Leave::Reset(8), runs_now),
            1 => h2::abandon(zoo.server.grpc(), INFER, &grpc, &call, Leave::Close, runs_now),
            _ => h2::abandon(zoo.server.http(), path, &json, body.as_bytes(), Leave::Close, runs_now),
        }
        let left = Instant::now();
        wait_for("the model sees it", || seen() == round + 1);
        assert!(
            left.elapsed() < Duration::from_secs(15),
            "{round}: {:?}, and it looks for twenty seconds",
            left.elapsed()
        );
    }
    assert_eq!(zoo.ask("cancel_watch", &[ints("limit_ms", &[0])]), Ok(json!([0])));
}

#[test]
fn a_decoupled_model_sees_that_its_stream_has_gone() {
    let Some(models) = Models::new() else { return };
    let zoo = models.with("cancel_stream").serve(&["--shards=1"]);
    let grpc = [("content-type", "application/grpc"), ("te", "trailers")];
    let input = Message::new().bytes(1, "limit_ms").bytes(2, "INT32").packed(3, &[1]);
    let message =
        Message::new().bytes(1, "cancel_stream").message(5, input).bytes(7, 20_000_i32.to_le_bytes()).into_bytes();
    let size = u32::try_from(message.len()).unwrap().to_be_bytes();
    let call = [&[0], &size[..], &message].concat();
    let metrics = zoo.server.metrics();
    let runs = move || {
        wait_for("it runs", || batches_left(metrics, "cancel_stream") == 1);
        thread::sleep(Duration::from_millis(100));
    };
    h2::abandon(zoo.server.grpc(), STREAM, &grpc, &call, Leave::Reset(8), runs);
    let left = Instant::now();
    zoo.logged("the stream is cancelled, says the request too: True");
    assert!(left.elapsed() < Duration::from_secs(15), "{:?}: it looks for twenty seconds", left.elapsed());
}

#[test]
fn a_stream_has_only_the_outputs_that_were_asked_for() {
    let Some(models) = Models::new() else { return };
    let zoo = models.with("token_stream").serve(&[]);
    let input = Message::new().bytes(1, "PROMPT").bytes(2, "BYTES").packed(3, &[1]);
    let asked = |name: &str| Message::new().bytes(1, name);
    let prompt = b"\x03\0\0\0a b";
    let message = Message::new().bytes(1, "token_stream").message(5, input).message(6, asked("INDEX")).bytes(7, prompt);
    let (came, end) = Client::new(zoo.server.grpc()).stream(STREAM, &[], vec![message.into_bytes()]);
    let shown: Vec<_> = came.iter().map(|message| crate::support::protobuf::dump(message)).collect();
    assert!(end.is_ok() && shown.len() == 2, "{shown:?} {end:?}");
    assert!(shown.iter().all(|text| text.contains("\"INDEX\"") && !text.contains("\"TOKEN\"")), "{shown:?}");
}

#[test]
fn metrics_of_a_model_are_with_those_of_the_server_and_go_with_it() {
    let Some(models) = Models::new() else { return };
    let flags = ["--model-control-mode=explicit", "--load-model=custom_metrics"];
    let zoo = models.with("custom_metrics").serve(&flags);
    let ask = |case: &str, value: f64| {
        let value = json!({ "name": "value", "datatype": "FP64", "shape": [1], "data": [value] });
        let answer = zoo.ask("custom_metrics", &[texts("case", &[case]), value]).unwrap();
        answer[0].as_str().unwrap().to_owned()
    };
    assert_eq!(ask("increment", 2.0), "2.0");
    assert_eq!(ask("increment", 0.5), "2.5");
    assert_eq!(ask("set_gauge", -4.0), "-4.0");
    let refused = |case: &str| {
        let text = ask(case, 1.0);
        assert!(text.starts_with("TritonModelException: "), "{case}: {text}");
    };
    ["decrement", "set_counter", "same_name_another_kind", "metric_after_its_family"].into_iter().for_each(refused);
    assert!(ask("histogram_without_buckets", 1.0).contains("Missing required buckets."));
    assert!(ask("counter_with_buckets", 1.0).contains("Unexpected buckets found."));
    assert!(ask("a_wrong_name", 1.0).starts_with("TritonModelException: "));
    assert_eq!(ask("observe", 5.0), "None");
    wait_for("all of it is shown", || zoo.metrics().contains("zoo_sizes_bucket"));
    let text = zoo.metrics();
    for line in [
        "# HELP zoo_requests_total Requests of the zoo",
        "# TYPE zoo_requests_total counter",
        "zoo_requests_total{kind=\"first\",model=\"custom_metrics\"} 2.5",
        "# TYPE zoo_level gauge",
        "zoo_level{unit=\"m\\\"\\\\\\n\"} -4",
        "# TYPE zoo_sizes histogram",
        "zoo_sizes_bucket{of=\"texts\",le=\"1\"} 0",
        "zoo_sizes_bucket{of=\"texts\",le=\"10\"} 1",
        "zoo_sizes_bucket{of=\"texts\",le=\"+Inf\"} 1",
        "zoo_sizes_sum{of=\"texts\"} 5",
        "zoo_sizes_count{of=\"texts\"} 1",
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line} is not in\n{text}");
    }
    assert_eq!(zoo.order("custom_metrics", "unload").0, 200);
    wait_for("they are gone", || !zoo.metrics().contains("zoo_"));
}

#[test]
fn a_backend_of_python_is_a_directory_with_a_program() {
    let Some(models) = Models::new() else { return };
    let program = "import os\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\nfrom words import PLUS\n\n\n\
        class TritonPythonModel:\n    def initialize(self, args):\n        self.args = args\n\n    \
        def execute(self, requests):\n        told = [__name__, self.args['model_name'], PLUS, pb_utils.get_model_dir()]\n        \
        result = pb_utils.Tensor('result', np.array(told, dtype=object))\n        \
        return [pb_utils.InferenceResponse([result]) for _ in requests]\n";
    let backends = models.path().with_extension("backends");
    fs::create_dir_all(backends.join("add_sub")).unwrap();
    fs::write(backends.join("add_sub/model.py"), program).unwrap();
    fs::write(backends.join("add_sub/words.py"), "PLUS = 'plus'\n").unwrap();
    repository::add(models.path(), "by_name", &CASES.replace("'python'", "'add_sub'"), None);
    let version = models.path().join("by_name/1").display().to_string();
    let flag = format!("--backend-directory={}", backends.display());
    let zoo = models.serve(&[&flag]);
    let want = ["model", "by_name", "plus", version.as_str()].map(str::to_owned).to_vec();
    assert_eq!(zoo.case("by_name", "any"), Ok(want));
    drop(zoo);
    fs::remove_dir_all(backends).unwrap();
}

#[test]
fn a_python_model_calls_one_of_onnx() {
    let Some(models) = Models::new() else { return };
    let graph = Onnx::default().node("Add", &["x", "x"], &["y"], &[]);
    let graph = graph.input("x", onnx::INT32, &[-1]).output("y", onnx::INT32, &[-1]).into_bytes();
    let config = "platform: \"onnxruntime_onnx\"\ninput { name: 'x' data_type: TYPE_INT32 dims: -1 }\n\
        output { name: 'y' data_type: TYPE_INT32 dims: -1 }";
    repository::add(models.path(), "onnx_double", config, Some(&graph));
    let zoo = models.with("bls_pipeline").serve(&[]);
    let ask = |values: &[i32]| zoo.ask("bls_pipeline", &[ints("x", values), texts("model", &["onnx_double"])]);
    assert_eq!(ask(&[1, 2, 3]), Ok(json!([2, 4, 6])));
    assert_eq!(ask(&[]), Ok(Value::Array(Vec::new())));
    assert_eq!(zoo.statistics("onnx_double")["inference_count"], 2, "the model is asked as by a client");
}
