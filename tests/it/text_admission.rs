//! Refusals of the text interfaces before a model runs: full queues and the bounds of keys, in the forms of their paths.

use std::fs;
use std::path::{Path, PathBuf};

use prost::Message;
use serde_json::{Value, json};

use deuteron::wire::proto::tei;

use crate::keys::{KeyFile, entry};
use crate::support::folder::Folder;
use crate::support::grpc::Client;
use crate::support::http::{self, Response};
use crate::support::server::Server;
use crate::text_folders::add_models;

/// A good body of each path, and the model that takes it.
fn calls() -> Vec<(&'static str, Value)> {
    let ranked = json!({"query": "good", "documents": ["bad"]});
    vec![
        ("/embed", json!({"inputs": "good"})),
        ("/models/words", json!({"inputs": "good"})),
        ("/embed_all", json!({"inputs": "good"})),
        ("/predict", json!({"inputs": "good"})),
        ("/similarity", json!({"inputs": {"source_sentence": "good", "sentences": ["bad"]}})),
        ("/rerank", json!({"query": "good", "texts": ["bad"]})),
        ("/models/words/vertex", json!({"instances": [{"inputs": "good"}]})),
        ("/v1/embeddings", json!({"input": "good", "model": "words"})),
        ("/v1/rerank", ranked.clone()),
        ("/v2/rerank", ranked),
        ("/v1/classify", json!({"input": "good", "model": "mood"})),
    ]
}

fn post(server: &Server, path: &str, key: Option<&str>, body: &Value) -> Response {
    let fields: Vec<_> = key.map(|key| ("x-api-key", key)).into_iter().collect();
    http::exchange(server.http(), &http::request("POST", path, &fields, body.to_string().as_bytes())).unwrap()
}

/// The body of a refusal on a path.
fn refusal(path: &str, status: u16, text: &str, kind: &str) -> Value {
    match path {
        "/v1/embeddings" | "/v1/classify" => json!({"message": text, "code": status, "type": kind}),
        _ => json!({"error": text, "error_type": kind}),
    }
}

fn is_refused(answer: &Response, path: &str, status: u16, text: &str, kind: &str) {
    let body: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!((answer.status, body), (status, refusal(path, status, text, kind)), "{path}");
}

#[test]
fn a_full_queue_is_429_for_text_clients_and_503_for_others() {
    let folder = Folder::new("text-full");
    add_models(folder.path());
    let server = Server::deuteron(folder.path(), &["--onnx-engine=embedded", "--queue-bytes-max=1"]);
    for (path, body) in calls() {
        let answer = post(&server, path, None, &body);
        is_refused(&answer, path, 429, "Model is overloaded", "Overloaded");
        assert_eq!(answer.header("retry-after"), Some("1"), "{path}");
    }
    let text = json!({"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": ["good"]});
    let answer = post(&server, "/v2/models/words/infer", None, &json!({"inputs": [text]}));
    assert_eq!(answer.status, 503);
    assert!(String::from_utf8_lossy(&answer.body).contains("Exceeds maximum queue size"));
    // Tokens need no queue.
    assert_eq!(post(&server, "/models/words/tokenize", None, &json!({"inputs": "good"})).status, 200);
    let client = Client::new(server.grpc());
    let message = tei::EmbedRequest { inputs: "good".to_owned(), ..Default::default() }.encode_to_vec();
    let status = client.call_with("/tei.v1.Embed/Embed", &[("model", "words")], &message).unwrap_err();
    assert_eq!((status.code() as i32, status.message()), (8, "Model is overloaded"));
}

#[test]
fn keys_and_their_rates_hold_for_texts() {
    let folder = Folder::new("text-keys");
    add_models(folder.path());
    let file = KeyFile::new(
        &(entry("app", "s3cret-app", "'infer'", "")
            + &entry("viewer", "s3cret-viewer", "'read'", "")
            + &entry("slow", "s3cret-slow", "'infer'", "rate = 0.001\nburst = 11")),
    );
    let server = Server::deuteron(folder.path(), &["--onnx-engine=embedded", &file.flag()]);
    let missing = "an API key of class 'infer' is needed: send 'Authorization: Bearer KEY' or 'X-API-Key: KEY'";
    for (path, body) in calls() {
        let refused = |key: Option<&str>, status: u16, text: &str| {
            let answer = post(&server, path, key, &body);
            let got: Value = serde_json::from_slice(&answer.body).unwrap();
            assert_eq!((answer.status, got), (status, json!({"error": text})), "{path}");
        };
        refused(None, 401, missing);
        refused(Some("s3cret-other"), 401, "the API key is not known");
        refused(Some("s3cret-viewer"), 403, "the API key 'viewer' lacks the class 'infer'");
        assert_eq!(post(&server, path, Some("s3cret-app"), &body).status, 200, "{path}");
        assert_eq!(post(&server, path, Some("s3cret-slow"), &body).status, 200, "{path}");
    }
    for (path, body) in calls() {
        let answer = post(&server, path, Some("s3cret-slow"), &body);
        let text: Value = serde_json::from_slice(&answer.body).unwrap();
        let text = text["error"].as_str().or(text["message"].as_str()).unwrap().to_owned();
        assert!(text.starts_with("the API key 'slow' exceeds its request rate: try again in "), "{path}: {text}");
        is_refused(&answer, path, 429, &text, "Overloaded");
        let wait: u32 = answer.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=1_000).contains(&wait), "{path}: {wait}");
    }
}

/// The refusals of a client that has used up its tokens, over HTTP and gRPC.
fn check_owing(server: &Server, key: &'static str) {
    for (path, body) in calls() {
        let answer = post(server, path, Some(key), &body);
        let text: Value = serde_json::from_slice(&answer.body).unwrap();
        let text = text["error"].as_str().or(text["message"].as_str()).unwrap().to_owned();
        assert!(
            text.starts_with(&format!("the API key '{key}' exceeds its token_rate: try again in ")),
            "{path}: {text}"
        );
        is_refused(&answer, path, 429, &text, "Overloaded");
        let wait: u32 = answer.header("retry-after").unwrap().parse().unwrap();
        assert!((900..=8_000).contains(&wait), "{path}: {wait}");
    }
    let text = json!({"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": ["good"]});
    for (path, body) in [
        ("/v2/models/words/infer", json!({"inputs": [text]})),
        ("/v2/models/words/generate", json!({"text": "good"})),
        ("/v2/models/words/generate_stream", json!({"text": "good"})),
    ] {
        let answer = post(server, path, Some(key), &body);
        assert_eq!(answer.status, 429, "{path}");
        assert!(answer.header("retry-after").is_some(), "{path}");
    }
    let client = Client::new(server.grpc());
    let message = tei::EmbedRequest { inputs: "good".to_owned(), ..Default::default() }.encode_to_vec();
    let fields = [("model", "words"), ("x-api-key", key)];
    let status = client.call_with("/tei.v1.Embed/Embed", &fields, &message).unwrap_err();
    assert!(status.code() as i32 == 8 && status.message().contains("token_rate"), "{status:?}");
    // Tokens alone, and models without texts, take none.
    let tokens = post(server, "/models/words/tokenize", Some(key), &json!({"inputs": "good"}));
    assert_eq!(tokens.status, 200);
}

#[test]
fn tokens_of_a_key_have_a_rate_over_every_interface() {
    let folder = Folder::new("text-tokens");
    add_models(folder.path());
    // A text of one word is three tokens. Those that a test waits for would take a quarter of an hour each.
    let rate = "token_rate = 0.001\ntoken_burst = 4";
    let keys = ["embeds", "ids", "kserve", "hides"].map(|name| entry(name, name, "'infer'", rate)).concat();
    let file =
        KeyFile::new(&(keys + &entry("free", "free", "'infer'", "") + &entry("viewer", "viewer", "'metrics'", "")));
    let server = Server::deuteron(folder.path(), &["--onnx-engine=embedded", &file.flag()]);
    let embed = |key: &str, body: Value| post(&server, "/embed", Some(key), &body).status;
    assert_eq!(embed("embeds", json!({"inputs": "good"})), 200);
    assert_eq!(embed("embeds", json!({"inputs": "good"})), 200, "one of four tokens is left");
    check_owing(&server, "embeds");
    assert_eq!(embed("ids", json!({"inputs": [2, 4, 4, 3]})), 200);
    check_owing(&server, "ids");
    // A request that is refused takes none.
    for _ in 0..3 {
        assert_eq!(embed("kserve", json!({"inputs": "bad good good good", "truncate": false})), 422);
    }
    let infer = |key: &str, outputs: Value| {
        let text =
            json!({"name": "text", "datatype": "BYTES", "shape": [2, 1], "data": ["good", "a text that is cut off"]});
        post(&server, "/v2/models/words/infer", Some(key), &json!({"inputs": [text], "outputs": outputs})).status
    };
    assert_eq!(infer("kserve", json!([])), 200, "eight tokens are more than the burst");
    check_owing(&server, "kserve");
    assert_eq!(
        infer("hides", json!([{"name": "embedding"}])),
        200,
        "the estimate counts where the count is not asked for"
    );
    check_owing(&server, "hides");
    for _ in 0..9 {
        assert_eq!(embed("free", json!({"inputs": "good"})), 200);
    }
    let fields = [("x-api-key", "viewer")];
    let page = http::exchange(server.metrics(), &http::request("GET", "/metrics", &fields, b"")).unwrap();
    let page = String::from_utf8(page.body).unwrap();
    let value = |name: &str| {
        let line = page.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name}: {page}")).trim().parse::<u64>().unwrap()
    };
    let tokens = ["embeds", "ids", "kserve", "hides", "free"]
        .map(|key| value(&format!("deuteron_api_key_tokens_total{{key=\"{key}\"}}")));
    assert_eq!(tokens, [6, 4, 8, 8, 0]);
    let refused = ["embeds", "ids", "kserve", "hides", "free"]
        .map(|key| value(&format!("deuteron_api_key_refused_total{{key=\"{key}\",reason=\"tokens\"}}")));
    assert_eq!(refused, [15, 15, 15, 15, 0]);
    assert_eq!(value("deuteron_access_refused_total{reason=\"tokens\"}"), 60);
}

/// Memory that a client shares.
struct SharedFile(PathBuf);

impl SharedFile {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let path = Path::new("/dev/shm").join(format!("deuteron-{name}-{}", std::process::id()));
        fs::write(&path, bytes).unwrap();
        Self(path)
    }

    fn register(&self, server: &Server, region: &str, size: usize) {
        let key = format!("/{}", self.0.file_name().unwrap().to_str().unwrap());
        let path = format!("/v2/systemsharedmemory/region/{region}/register");
        let body = json!({"key": key, "offset": 0, "byte_size": size});
        assert_eq!(post(server, &path, Some("free"), &body).status, 200);
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn texts_in_shared_memory_take_tokens_and_those_that_cannot_be_read_none() {
    let folder = Folder::new("text-shared-tokens");
    add_models(folder.path());
    let rate = "token_rate = 0.001\ntoken_burst = 4";
    let keys = entry("shares", "shares", "'infer'", rate) + &entry("free", "free", "'infer', 'admin', 'metrics'", "");
    let file = KeyFile::new(&keys);
    let flags = ["--onnx-engine=embedded", "--allow-client-shm=true", &file.flag()];
    let server = Server::deuteron(folder.path(), &flags);
    // Two texts with their lengths, 3 and 5 tokens.
    let texts =
        ["good", "a text that is cut off"].map(|text| [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat());
    let bytes = texts.concat();
    let whole = SharedFile::new("whole", &bytes);
    whole.register(&server, "whole", bytes.len());
    let cut = SharedFile::new("cut", &bytes);
    cut.register(&server, "cut", bytes.len());
    fs::write(&cut.0, b"").unwrap();
    let infer = |region: &str| {
        let shared = json!({"shared_memory_region": region, "shared_memory_byte_size": bytes.len()});
        let text = json!({"name": "text", "datatype": "BYTES", "shape": [2, 1], "parameters": shared});
        // The count of tokens is not asked for, so that the estimate counts.
        let body = json!({"inputs": [text], "outputs": [{"name": "embedding"}]});
        post(&server, "/v2/models/words/infer", Some("shares"), &body)
    };
    for _ in 0..3 {
        let lost = infer("cut");
        let text = String::from_utf8_lossy(&lost.body);
        assert!(lost.status == 400 && text.contains("smaller than when it was registered"), "{}: {text}", lost.status);
    }
    assert_eq!(infer("whole").status, 200);
    let request = http::request("GET", "/metrics", &[("x-api-key", "free")], b"");
    let page = String::from_utf8(http::exchange(server.metrics(), &request).unwrap().body).unwrap();
    let line = page.lines().find_map(|line| line.strip_prefix("deuteron_api_key_tokens_total{key=\"shares\"} "));
    assert_eq!(line, Some("8"), "{page}");
    assert_eq!(infer("whole").status, 429);
}
