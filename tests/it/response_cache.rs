//! The response cache, on the server as a process: a repeated request does not run again.

use crate::support::folder::Folder;
use crate::support::{http, repository, server::Server};
use serde_json::{Value, json};

/// An identity model.
fn identity(more: &str) -> String {
    format!(
        "backend: \"identity\" max_batch_size: 8\n{more}\n\
         input {{ name: \"INPUT0\" data_type: TYPE_FP32 dims: 2 }}\n\
         output {{ name: \"OUTPUT0\" data_type: TYPE_FP32 dims: 2 }}\n"
    )
}

/// The first output, and how often the model ran for it.
fn infer(server: &Server, model: &str, data: [f32; 2], outputs: &Value) -> (Value, u64) {
    let input = json!({"name": "INPUT0", "shape": [1, 2], "datatype": "FP32", "data": data});
    let body = json!({"inputs": [input], "outputs": outputs}).to_string();
    let runs = || statistics(server, model)["execution_count"].as_u64().unwrap();
    let before = runs();
    let answer = http::post(server.http(), &format!("/v2/models/{model}/infer"), body.as_bytes()).unwrap();
    let answer: Value = serde_json::from_slice(&answer.body).unwrap();
    (answer["outputs"][0]["data"].clone(), runs() - before)
}

fn statistics(server: &Server, model: &str) -> Value {
    let answer = http::get(server.http(), &format!("/v2/models/{model}/stats")).unwrap();
    serde_json::from_slice::<Value>(&answer.body).unwrap()["model_stats"][0].clone()
}

#[test]
fn the_same_request_runs_once_and_is_counted_as_triton_counts_it() {
    let folder = Folder::new("cache");
    repository::add(folder.path(), "kept", &identity("response_cache { enable: true }"), None);
    repository::add(folder.path(), "plain", &identity(""), None);
    let server = Server::deuteron(folder.path(), &["--shards=1", "--cache-config=local,size=100000"]);
    let all = json!([]);
    let classes = json!([{"name": "OUTPUT0", "parameters": {"classification": 1}}]);
    assert_eq!(infer(&server, "kept", [1.0, 2.0], &all), (json!([1.0, 2.0]), 1));
    assert_eq!(infer(&server, "kept", [1.0, 2.0], &all), (json!([1.0, 2.0]), 0));
    assert_eq!(infer(&server, "kept", [1.0, 2.0], &classes), (json!(["2:1"]), 0), "another form of the same outputs");
    assert_eq!(infer(&server, "kept", [2.0, 1.0], &all), (json!([2.0, 1.0]), 1), "another request");
    for _ in 0..2 {
        assert_eq!(infer(&server, "plain", [1.0, 2.0], &all).1, 1, "a model that did not ask for it");
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
    repository::add(folder.path(), "kept", &identity("response_cache { enable: true }"), None);
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    for _ in 0..2 {
        assert_eq!(infer(&server, "kept", [1.0, 2.0], &json!([])).1, 1);
    }
    assert!(server.log().contains("'kept' has a response cache, but the server has none"), "{}", server.log());
}
