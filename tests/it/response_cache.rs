//! The response cache, on the server as a process: a repeated request does not run again.

use std::time::{Duration, Instant};

use crate::support::folder::Folder;
use crate::support::{http, repository, server::Server};
use serde_json::{Value, json};

/// An identity model that takes 200 ms for a batch.
fn slow(more: &str) -> String {
    format!(
        "backend: \"identity\" max_batch_size: 8\n{more}\n\
         parameters {{ key: \"execute_delay_ms\" value {{ string_value: \"200\" }} }}\n\
         input {{ name: \"INPUT0\" data_type: TYPE_FP32 dims: 2 }}\n\
         output {{ name: \"OUTPUT0\" data_type: TYPE_FP32 dims: 2 }}\n"
    )
}

/// Returns the first output, and the time of the request.
fn infer(server: &Server, model: &str, data: [f32; 2], outputs: &Value) -> (Value, Duration) {
    let input = json!({"name": "INPUT0", "shape": [1, 2], "datatype": "FP32", "data": data});
    let body = json!({"inputs": [input], "outputs": outputs}).to_string();
    let start = Instant::now();
    let answer = http::post(server.http(), &format!("/v2/models/{model}/infer"), body.as_bytes()).unwrap();
    let took = start.elapsed();
    let answer: Value = serde_json::from_slice(&answer.body).unwrap();
    (answer["outputs"][0]["data"].clone(), took)
}

fn statistics(server: &Server, model: &str) -> Value {
    let answer = http::get(server.http(), &format!("/v2/models/{model}/stats")).unwrap();
    serde_json::from_slice::<Value>(&answer.body).unwrap()["model_stats"][0].clone()
}

const RUN: Duration = Duration::from_millis(200);

#[test]
fn the_same_request_runs_once_and_is_counted_as_triton_counts_it() {
    let folder = Folder::new("cache");
    repository::add(folder.path(), "kept", &slow("response_cache { enable: true }"), None);
    repository::add(folder.path(), "plain", &slow(""), None);
    let server = Server::deuteron(folder.path(), &["--shards=1", "--cache-config=local,size=100000"]);
    let all = json!([]);
    let classes = json!([{"name": "OUTPUT0", "parameters": {"classification": 1}}]);
    assert!(infer(&server, "kept", [1.0, 2.0], &all).1 >= RUN);
    let (data, took) = infer(&server, "kept", [1.0, 2.0], &all);
    assert!(data == json!([1.0, 2.0]) && took < RUN, "{data} {took:?}");
    let (data, took) = infer(&server, "kept", [1.0, 2.0], &classes);
    assert!(data == json!(["2:1"]) && took < RUN, "another form of the same outputs: {data} {took:?}");
    let (data, took) = infer(&server, "kept", [2.0, 1.0], &all);
    assert!(data == json!([2.0, 1.0]) && took >= RUN, "another request: {data} {took:?}");
    for _ in 0..2 {
        assert!(infer(&server, "plain", [1.0, 2.0], &all).1 >= RUN, "a model that did not ask for it");
    }
    let kept = statistics(&server, "kept");
    let counts = |name: &str| kept["inference_stats"][name]["count"].as_u64().unwrap();
    assert_eq!((&kept["inference_count"], &kept["execution_count"]), (&json!(2), &json!(2)), "{kept}");
    assert_eq!(["success", "queue", "compute_infer", "cache_hit", "cache_miss"].map(counts), [4, 4, 2, 2, 2], "{kept}");
    let metrics = String::from_utf8(http::get(server.metrics(), "/metrics").unwrap().body).unwrap();
    for line in [
        "nv_cache_num_hits_per_model{model=\"kept\",version=\"1\"} 2",
        "nv_cache_num_misses_per_model{model=\"kept\",version=\"1\"} 2",
        "nv_inference_request_success{model=\"kept\",version=\"1\"} 4",
        "nv_inference_count{model=\"kept\",version=\"1\"} 2",
    ] {
        assert!(metrics.lines().any(|have| have == line), "{line}\n{metrics}");
    }
    assert!(!metrics.contains("nv_cache_num_hits_per_model{model=\"plain\""), "{metrics}");
}

#[test]
fn without_a_cache_every_request_runs_and_the_log_says_so() {
    let folder = Folder::new("no-cache");
    repository::add(folder.path(), "kept", &slow("response_cache { enable: true }"), None);
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    for _ in 0..2 {
        assert!(infer(&server, "kept", [1.0, 2.0], &json!([])).1 >= RUN);
    }
    assert!(server.log().contains("'kept' has a response cache, but the server has none"), "{}", server.log());
}
