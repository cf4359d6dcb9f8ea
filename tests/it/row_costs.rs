//! Batches of the size that pays, on the server as a process: it learns the cost of rows under load, and the batches
//! follow.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::python_models::zoo::{Models, Zoo};
use crate::support::http::{self, Connection};
use crate::support::metrics::metric;
use crate::support::over::Over;

const CONFIG: &str =
    "backend: 'python' max_batch_size: 2 dynamic_batching { } instance_group { kind: KIND_CPU count: 1 }
    input { name: 'x' data_type: TYPE_FP32 dims: 1 } output { name: 'y' data_type: TYPE_FP32 dims: 1 }";
const BODY: &[u8] = br#"{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","data":[0]}]}"#;

/// A model whose batches take a time in seconds that depends on their `rows`.
fn program(seconds: &str) -> String {
    format!(
        "import time\n\nimport triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n    \
         def execute(self, requests):\n        rows = len(requests)\n        time.sleep({seconds})\n        \
         inputs = [pb_utils.get_input_tensor_by_name(request, 'x').as_numpy() for request in requests]\n        \
         return [pb_utils.InferenceResponse([pb_utils.Tensor('y', x)]) for x in inputs]\n"
    )
}

/// Keeps four clients busy until `is_enough` returns true, or for a minute.
fn load_until(zoo: &Zoo, model: &str, is_enough: impl Fn() -> bool) -> bool {
    let is_over = AtomicBool::new(false);
    let request = http::request("POST", &format!("/v2/models/{model}/infer"), &[], BODY);
    thread::scope(|scope| {
        let _over = Over(&is_over);
        for _ in 0..4 {
            scope.spawn(|| {
                let mut connection = Connection::open(zoo.server.http()).unwrap();
                while !is_over.load(Ordering::Relaxed) {
                    connection.send(&request).unwrap();
                    assert_eq!(connection.receive().unwrap().status, 200);
                }
            });
        }
        let by = Instant::now() + Duration::from_secs(60);
        let mut is_done = is_enough();
        while !is_done && Instant::now() < by {
            thread::sleep(Duration::from_millis(50));
            is_done = is_enough();
        }
        is_done
    })
}

#[test]
fn a_model_whose_rows_cost_more_together_gets_smaller_batches_and_others_do_not() {
    let Some(models) = Models::new() else { return };
    let delay = CONFIG.replace("dynamic_batching { }", "dynamic_batching { max_queue_delay_microseconds: 1 }");
    let zoo = models
        .add("costly", CONFIG, &program("0.004 * rows * rows"))
        .add("steady", CONFIG, &program("0.004"))
        .add("told", &delay, &program("0.004 * rows * rows"))
        .serve(&["--shards=1"]);
    let shown = |line: &str| zoo.metrics().lines().any(|have| have.starts_with(line));
    let chosen = |model: &str, rows: u32| {
        shown(&format!("deuteron_batch_rows_chosen{{model=\"{model}\",version=\"1\"}} {rows}"))
    };
    let is_known = |model: &str, rows: u32| {
        shown(&format!("deuteron_row_seconds{{model=\"{model}\",rows=\"{rows}\",version=\"1\"}}"))
    };
    let are_known = |model: &str| is_known(model, 1) && is_known(model, 2);
    let config = |model: &str| {
        let answer = http::get(zoo.server.http(), &format!("/v2/models/{model}/config")).unwrap();
        String::from_utf8(answer.body).unwrap()
    };
    let is_told = |model: &str| config(model).contains(r#""batch_rows_chosen":{"string_value":"1"}"#);
    // Each at some time: on a busy machine costs drift, and are measured again.
    let is_done = load_until(&zoo, "costly", || chosen("costly", 1) && is_told("costly") && are_known("costly"));
    assert!(is_done, "a row costs twice as much in a batch of two\n{}", zoo.metrics());
    let is_done = load_until(&zoo, "steady", || chosen("steady", 2) && !is_told("steady") && are_known("steady"));
    assert!(is_done, "two rows take as long as one\n{}", zoo.metrics());
    // A model with a queue delay wants the largest batches that it may have.
    let batches = || metric(zoo.server.metrics(), "nv_inference_exec_count{model=\"told\",version=\"1\"}");
    assert!(load_until(&zoo, "told", || batches() >= 40));
    assert!(!is_known("told", 1) && !is_known("told", 2), "{}", zoo.metrics());
}
