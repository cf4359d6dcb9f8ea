//! A model's own readiness, and models that load and unload others.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::zoo::{CASES, Models, WAIT_MAX, wait_for};
use crate::support::http;

#[test]
fn a_model_may_say_that_it_is_not_ready() {
    let Some(models) = Models::new() else { return };
    let zoo = models.with("ready_states double").serve(&[]);
    assert_eq!(zoo.ready("ready_states"), 200);
    for (state, is_ready) in
        [("false", false), ("true", true), ("raises", false), ("number", false), ("nothing", false), ("true", true)]
    {
        assert!(zoo.case("ready_states", state).is_ok(), "it is asked all the same");
        assert_eq!(zoo.ready("ready_states") == 200, is_ready, "{state}");
    }
    assert_eq!(zoo.ready("double"), 200, "one without the function");
}

#[test]
fn a_model_that_is_late_to_say_is_not_ready_and_many_ask_at_once() {
    let Some(models) = Models::new() else { return };
    let zoo = models.with("ready_states").serve(&[]);
    assert!(zoo.case("ready_states", "slow").is_ok());
    let start = Instant::now();
    let answers: Vec<u16> = thread::scope(|scope| {
        let asked: Vec<_> = (0..4).map(|_| scope.spawn(|| zoo.ready("ready_states"))).collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    assert!(answers.iter().all(|status| *status != 200), "{answers:?}");
    let took = start.elapsed();
    // One after the other they would take four times as long.
    assert!((Duration::from_secs(4)..Duration::from_secs(15)).contains(&took), "all by one question: {took:?}");
    assert!(zoo.case("ready_states", "true").is_ok());
    wait_for("it is ready again", || zoo.ready("ready_states") == 200);
}

#[test]
fn readiness_may_be_asynchronous() {
    let Some(models) = Models::new() else { return };
    let program = "import asyncio\n\n\nclass TritonPythonModel:\n    async def is_ready(self):\n        \
        await asyncio.sleep(0.01)\n        return False\n\n    def execute(self, requests):\n        pass\n";
    let zoo = models.with("double").add("m", CASES, program).serve(&["--strict-readiness=false"]);
    assert_ne!(zoo.ready("m"), 200);
}

#[test]
fn a_model_loads_and_unloads_others() {
    let Some(models) = Models::new() else { return };
    let flags = ["--model-control-mode=explicit", "--load-model=model_control"];
    let program = "class TritonPythonModel:\n    def initialize(self, args):\n        raise ValueError('broken')\n";
    let zoo = models.with("model_control double").add("raises_in_initialize", CASES, program).serve(&flags);
    let case = |case: &str| zoo.case("model_control", case).unwrap().join("\n");
    assert_eq!(
        case("load_and_unload"),
        "double  ready: False\ndouble  ready: True\ndouble 1 ready: True\ndouble 9 ready: False\ndouble [2]\ndouble  ready: False"
    );
    assert_eq!(case("load_with_a_config"), "double [2]");
    assert_eq!(case("load_with_files"), "double [42]");
    let unknown = case("load_unknown");
    assert!(
        unknown.starts_with("TritonModelException: Failed to load model: ") && unknown.contains("nope"),
        "{unknown}"
    );
    let broken = case("load_broken");
    assert!(broken.starts_with("TritonModelException: ") && broken.contains("ValueError: broken"), "{broken}");
    assert!(case("load_with_a_wrong_config").starts_with("TritonModelException: "));
    assert_eq!(case("unload_unknown"), "unloaded: None");
    assert_eq!(case("unload_with_dependents"), "unloaded: None");
    assert_eq!(case("ready_unknown"), "nope  ready: False");
    let version = case("ready_of_a_wrong_version");
    assert!(version.starts_with("TritonModelException: ") || version.ends_with("ready: False"), "{version}");
    assert_eq!(case("itself_ready"), "model_control  ready: True");
    let start = Instant::now();
    while zoo.processes().len() > 1 {
        assert!(start.elapsed() < WAIT_MAX, "what was unloaded has no process");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_client_brings_no_code_unless_the_server_allows_it_and_a_model_does() {
    let Some(models) = Models::new() else { return };
    let flags = ["--model-control-mode=explicit", "--load-model=model_control"];
    let zoo = models.with("model_control double").serve(&flags);
    let config = json!({ "backend": "python" }).to_string();
    let order = json!({ "parameters": { "config": config, "file:1/model.py": "cHJpbnQoMSk=" } }).to_string();
    let path = "/v2/repository/models/double/load";
    let answer = http::post(zoo.server.http(), path, order.as_bytes()).unwrap();
    let text = String::from_utf8(answer.body).unwrap();
    assert!(answer.status != 200 && text.contains("--allow-model-code-upload"), "{} {text}", answer.status);
    assert_ne!(zoo.ready("double"), 200);
    // It runs code of its own already.
    assert_eq!(zoo.case("model_control", "load_with_files"), Ok(vec!["double [42]".to_owned()]));
}

#[test]
fn a_model_loads_nothing_while_it_completes_its_configuration() {
    let Some(models) = Models::new() else { return };
    let program = "import triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n    @staticmethod\n    \
        def auto_complete_config(config):\n        pb_utils.load_model('double')\n        return config\n";
    let zoo = models.with("double").add("loads", CASES, program).serve(&["--model-control-mode=explicit"]);
    let (status, text) = zoo.order("loads", "load");
    let want = "TritonModelException: Failed to load model: not supported during the 'auto_complete_config'";
    assert!(status == 400 && text.contains(want), "{status} {text}");
    assert_ne!(zoo.ready("double"), 200);
}

#[test]
fn a_model_loads_nothing_where_the_server_chooses_its_models() {
    let Some(models) = Models::new() else { return };
    let zoo = models.with("model_control double").serve(&[]);
    let refused = zoo.case("model_control", "load_unknown").unwrap().join("\n");
    assert!(refused.starts_with("TritonModelException: ") && refused.contains("explicit"), "{refused}");
}
