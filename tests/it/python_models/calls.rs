//! Models that call models: checks that the recorded answers of tritonserver do not show.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::zoo::{CASES, Models, ints, resident_kib, texts, wait_for};

#[test]
fn two_calls_that_are_awaited_together_overlap() {
    let Some(models) = Models::new() else { return };
    let zoo = models.with("bls_async slow").serve(&[]);
    let (_, answer) = zoo.infer("bls_async", &json!({ "inputs": [ints("x", &[1]), ints("delay_ms", &[2_000])] }));
    let outputs = answer["outputs"].as_array().unwrap();
    let elapsed = outputs.iter().find(|output| output["name"] == "elapsed_ms").unwrap()["data"][0].as_i64().unwrap();
    assert!((2_000..4_000).contains(&elapsed), "{elapsed} ms, and one after the other would be 4000");
}

#[test]
fn eight_threads_of_a_model_call_at_once() {
    let Some(models) = Models::new() else { return };
    let zoo = models.with("bls double token_stream request_echo string_forms batch_concat error_codes").serve(&[]);
    for _ in 0..20 {
        let mut answers = zoo.case("bls", "eight_threads").unwrap();
        answers.sort_by_key(|answer| answer.len());
        assert_eq!(answers.len(), 8, "{answers:?}");
        for number in 0..8 {
            assert!(answers.contains(&format!("y [{}]", number * 2)), "{answers:?}");
        }
    }
}

#[test]
fn calls_leave_no_memory_behind() {
    let Some(models) = Models::new() else { return };
    let zoo = models.with("bls double token_stream").serve(&["--shards=1"]);
    let large = || assert_eq!(zoo.case("bls", "large").unwrap(), ["(1000000,)", "2001998", "True"]);
    let streamed = || assert!(zoo.case("bls", "decoupled_dropped").is_ok());
    let all = || -> u64 {
        let server = resident_kib(zoo.server.id());
        server + zoo.processes().into_iter().map(resident_kib).sum::<u64>()
    };
    for _ in 0..10 {
        large();
        streamed();
    }
    let before = all();
    for _ in 0..60 {
        large();
        streamed();
    }
    let after = all();
    // Sixty calls moved 480 MB in both directions.
    assert!(after < before + 32 * 1024, "from {before} to {after} KiB");
}

#[test]
fn a_call_that_could_only_wait_for_itself_is_refused_at_once() {
    let Some(models) = Models::new() else { return };
    models.copy("chain_first", "chain_back");
    let zoo = models
        .with("chain_first chain_second")
        .configure("chain_second", "\"double\"", "\"chain_back\"")
        .configure("chain_back", "\"chain_second\"", "\"chain_first\"")
        .serve(&[]);
    let start = Instant::now();
    let (status, text) = zoo.ask("chain_first", &[ints("x", &[1])]).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(15));
    assert_eq!(status, 503, "{text}");
    assert!(text.contains("chain_first"), "it names the model: {text}");
    assert!(zoo.ask("chain_second", &[ints("x", &[1])]).is_err(), "from whichever it begins");
}

#[test]
fn a_model_with_a_free_instance_may_call_itself() {
    let Some(models) = Models::new() else { return };
    let program = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n    \
        def execute(self, requests):\n        (request,) = requests\n        \
        case = pb_utils.get_input_tensor_by_name(request, 'case').as_numpy()[0]\n        told = case\n        \
        if case != b'0':\n            less = np.array([str(int(case) - 1)], dtype=object)\n            \
        answer = pb_utils.InferenceRequest(model_name='itself', requested_output_names=['result'],\n                \
        inputs=[pb_utils.Tensor('case', less)]).exec()\n            \
        told = answer.error().message() if answer.has_error() else answer.output_tensors()[0].as_numpy()[0] + b'<' + case\n        \
        return [pb_utils.InferenceResponse([pb_utils.Tensor('result', np.array([told], dtype=object))])]\n";
    let config = CASES.replace("KIND_CPU }", "KIND_CPU count: 3 }");
    let zoo = models.add("itself", &config, program).serve(&[]);
    assert_eq!(zoo.case("itself", "2"), Ok(vec!["0<1<2".to_owned()]), "three instances, three runs");
    let refused = zoo.case("itself", "3").unwrap();
    assert!(refused[0].contains("itself") && !refused[0].starts_with("0<"), "{refused:?}");
}

#[test]
fn a_chain_of_calls_has_an_end() {
    let Some(models) = Models::new() else { return };
    let mut models = models;
    for depth in 0..18 {
        let name = format!("link_{depth}");
        models.copy("chain_second", &name);
        let next = if depth == 17 { "\"double\"".to_owned() } else { format!("\"link_{}\"", depth + 1) };
        models = models.configure(&name, "\"double\"", &next);
    }
    let zoo = models.with("double").serve(&[]);
    assert_eq!(zoo.ask("link_4", &[ints("x", &[1])]), Ok(json!([16])), "fourteen links and the last");
    let (status, text) = zoo.ask("link_0", &[ints("x", &[1])]).unwrap_err();
    assert_eq!(status, 500, "{text}");
    assert!(text.contains("16"), "it says how deep calls may be: {text}");
}

#[test]
fn a_calls_own_timeout_ends_its_wait_in_the_queue() {
    let Some(models) = Models::new() else { return };
    let program = "import os\nimport time\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n    \
        def execute(self, requests):\n        time.sleep(0.8)\n        \
        while os.path.exists(os.path.join(os.path.dirname(__file__), 'hold.txt')):\n            time.sleep(0.01)\n        \
        return [pb_utils.InferenceResponse([pb_utils.Tensor('result', np.array([[b'slept']], dtype=object))]) for _ in requests]\n";
    let caller = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n    \
        def execute(self, requests):\n        (request,) = requests\n        \
        case = pb_utils.get_input_tensor_by_name(request, 'case').as_numpy()[0]\n        \
        answer = pb_utils.InferenceRequest(model_name='sleeper', requested_output_names=['result'], timeout=int(case),\n            \
        inputs=[pb_utils.Tensor('case', np.array([[b'x']], dtype=object))]).exec()\n        \
        told = answer.error().message() if answer.has_error() else 'answered'\n        \
        return [pb_utils.InferenceResponse([pb_utils.Tensor('result', np.array([told], dtype=object))])]\n";
    let queued = "max_batch_size: 1 dynamic_batching { default_queue_policy { timeout_action: REJECT \
        allow_timeout_override: true default_timeout_microseconds: 10000000 } }";
    let zoo = models
        .add("sleeper", &format!("{} {queued}", CASES.replace("dims: -1", "dims: 1")), program)
        .add("caller", CASES, caller)
        .serve(&[]);
    // From now on runs are known to be long: nothing is sent to the process ahead.
    assert_eq!(zoo.case("caller", "5000000"), Ok(vec!["answered".to_owned()]));
    let runs = || crate::support::metrics::batches_left(zoo.server.metrics(), "sleeper");
    let (before, hold) = (runs(), zoo.models.path().join("sleeper/1/hold.txt"));
    fs::write(&hold, "").unwrap();
    thread::scope(|scope| {
        let busy = json!({ "inputs": [{ "name": "case", "datatype": "BYTES", "shape": [1, 1], "data": ["x"] }] });
        let busy = scope.spawn({
            let zoo = &zoo;
            move || zoo.infer("sleeper", &busy).0
        });
        wait_for("it runs", || runs() == before + 1);
        // It does not wait for the instance, which is held.
        assert_eq!(zoo.case("caller", "100000"), Ok(vec!["Request timeout expired".to_owned()]));
        fs::remove_file(hold).unwrap();
        assert_eq!(busy.join().unwrap(), 200);
    });
    assert_eq!(zoo.case("caller", "5000000"), Ok(vec!["answered".to_owned()]));
}

#[test]
fn a_client_that_leaves_cancels_what_its_model_called() {
    let Some(models) = Models::new() else { return };
    let caller = "import pathlib\nimport triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n    \
        def execute(self, requests):\n        responses = []\n        for request in requests:\n            \
        answer = pb_utils.InferenceRequest(model_name='cancel_watch', requested_output_names=['looks'],\n                \
        inputs=request.inputs()).exec()\n            \
        pb_utils.Logger.log_info(f'the call ended with {answer.error().message() if answer.has_error() else None}')\n            \
        responses.append(pb_utils.InferenceResponse(answer.output_tensors(), answer.error()))\n        return responses\n";
    let models = models.with("cancel_watch");
    let config = fs::read_to_string(models.path().join("cancel_watch/config.pbtxt")).unwrap();
    let zoo = models.add("caller", &config.replace("cancel_watch", "caller"), caller).serve(&["--shards=1"]);
    let body = json!({ "inputs": [ints("limit_ms", &[20_000])] }).to_string();
    let request = crate::support::http::request("POST", "/v2/models/caller/infer", &[], body.as_bytes());
    let mut connection = crate::support::http::Connection::open(zoo.server.http()).unwrap();
    connection.send(&request).unwrap();
    wait_for("the second model runs", || {
        crate::support::metrics::batches_left(zoo.server.metrics(), "cancel_watch") == 1
    });
    thread::sleep(Duration::from_millis(100));
    drop(connection);
    let left = Instant::now();
    zoo.logged("saw the cancellation");
    zoo.logged("the call ended with ");
    assert!(left.elapsed() < Duration::from_secs(15), "{:?}: it looks for twenty seconds", left.elapsed());
    assert_eq!(zoo.ask("caller", &[ints("limit_ms", &[0])]), Ok(json!([0])), "and all goes on");
}

#[test]
fn nobody_is_called_at_the_end_of_a_model() {
    let Some(models) = Models::new() else { return };
    let mut zoo = models.with("bls double").serve(&[]);
    assert!(zoo.server.stop().success());
    let log = zoo.server.log();
    assert!(
        log.contains("in finalize: TritonModelException: BLS is only supported during the 'execute' function."),
        "{log}"
    );
}

#[test]
fn a_call_says_what_kept_it_from_a_model_that_is_gone() {
    let Some(models) = Models::new() else { return };
    let flags = ["--model-control-mode=explicit", "--load-model=bls_pipeline", "--load-model=double"];
    let zoo = models.with("bls_pipeline double").serve(&flags);
    let ask = || zoo.ask("bls_pipeline", &[ints("x", &[1]), texts("model", &["double"])]);
    assert_eq!(ask(), Ok(json!([2])));
    assert_eq!(zoo.order("double", "unload").0, 200);
    wait_for("the model is gone", || zoo.ready("double") != 200);
    let (status, text) = ask().unwrap_err();
    assert!(status == 500 && text.contains("Model 'double' is not ready."), "{text}");
    assert_eq!(zoo.order("double", "load").0, 200);
    assert_eq!(ask(), Ok(json!([2])));
}
