//! The interfaces of text models by plain HTTP: models whose tensors have the names of their task, from a tokenizer of eight words
//! and networks of one operator.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::folder::Folder;
use crate::support::http;
use crate::support::onnx::{FLOAT, INT64, Onnx};
use crate::support::server::Server;

const WORDS: [&str; 8] = ["[PAD]", "[UNK]", "good", "great", "love", "bad", "awful", "hate"];
/// The vector of each word.
const TABLE: [[f32; 3]; 8] = [
    [0.0, 0.0, 0.0],
    [0.0, 0.0, 1.0],
    [1.0, 0.0, 0.0],
    [0.8, 0.6, 0.0],
    [0.6, 0.8, 0.0],
    [-1.0, 0.0, 0.0],
    [-0.8, 0.6, 0.0],
    [-0.6, -0.8, 0.0],
];

fn tokenizer() -> String {
    let vocabulary: serde_json::Map<_, _> =
        WORDS.iter().enumerate().map(|(index, word)| ((*word).to_owned(), json!(index))).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}
    })
    .to_string()
}

/// A network from ids to the vectors of their words.
fn vectors() -> Onnx {
    let table: Vec<u8> = TABLE.iter().flatten().flat_map(|value| value.to_le_bytes()).collect();
    let graph = Onnx::default().constant("table", FLOAT, &[8, 3], &table).input("input_ids", INT64, &[-1, -1]);
    graph.node("Gather", &["table", "input_ids"], &["states"], &[]).output("states", FLOAT, &[-1, -1, 3])
}

fn write(repository: &Path, model: &str, inputs: &[&str], outputs: &str, steps: &str) {
    let version = repository.join(model).join("1");
    fs::create_dir_all(&version).unwrap();
    let inputs: String = inputs
        .iter()
        .map(|name| format!("input {{ name: \"{name}\" data_type: TYPE_STRING dims: [ 1 ] }}\n"))
        .collect();
    let config = format!("max_batch_size: 8\n{inputs}{outputs}");
    fs::write(repository.join(model).join("config.pbtxt"), config).unwrap();
    fs::write(version.join("steps.json"), steps).unwrap();
    fs::write(version.join("tokenizer.json"), tokenizer()).unwrap();
    fs::write(version.join("model.onnx"), vectors().into_bytes()).unwrap();
}

/// An embedder; with `is_pair` the vectors of query and text together, whose first number is the score of a reranker.
fn add_models(repository: &Path) {
    let tokenize = |text: &str| {
        format!(
            r#"{{"step": "tokenize", {text}, "outputs": {{"ids": "input_ids", "mask": "mask"}}, "file": "tokenizer.json", "pad_token": "[PAD]"}},
            {{"step": "model"}}, {{"step": "pool", "inputs": {{"states": "states", "mask": "mask"}}, "output": "vector", "mode": "mean"}}"#
        )
    };
    let embed = format!(
        r#"{{"steps": [{}, {{"step": "cast", "input": "vector", "output": "embedding", "datatype": "FP32"}}]}}"#,
        tokenize("\"input\": \"text\"")
    );
    write(repository, "words", &["text"], "output { name: \"embedding\" data_type: TYPE_FP32 dims: [ 3 ] }", &embed);
    let mood = format!(
        r#"{{"steps": [{}, {{"step": "head", "input": "vector", "outputs": {{"labels": "label", "scores": "score"}},
            "activation": "none", "top_k": 3, "labels": ["nice", "warm", "unknown"]}}]}}"#,
        tokenize("\"input\": \"text\"")
    );
    let outputs = "output { name: \"label\" data_type: TYPE_STRING dims: [ 3 ] }\noutput { name: \"score\" data_type: TYPE_FP32 dims: [ 3 ] }";
    write(repository, "mood", &["text"], outputs, &mood);
    let rank = format!(
        r#"{{"steps": [{}, {{"step": "select", "input": "vector", "output": "score", "indices": [0]}}]}}"#,
        tokenize(r#""inputs": {"text": "query", "pair": "text"}"#)
    );
    write(repository, "rank", &["query", "text"], "output { name: \"score\" data_type: TYPE_FP32 dims: [ 1 ] }", &rank);
}

fn post(server: &Server, path: &str, body: &Value) -> (u16, Value) {
    let answer = http::post(server.http(), path, body.to_string().as_bytes()).unwrap();
    (answer.status, serde_json::from_slice(&answer.body).unwrap_or(Value::Null))
}

#[test]
fn texts_are_embedded_classified_and_ranked_on_the_paths_of_tei_openai_and_cohere() {
    let folder = Folder::new("text-interfaces");
    add_models(folder.path());
    let server = Server::deuteron(folder.path(), &["--onnx-engine=embedded"]);
    let check =
        |path: &str, body: Value, want: Value| assert_eq!(post(&server, path, &body), (200, want), "{path} {body}");
    check("/embed", json!({"inputs": "good"}), json!([[1.0, 0.0, 0.0]]));
    check("/embed", json!({"inputs": ["Bad", "good bad"]}), json!([[-1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]));
    check("/models/words/embed", json!({"inputs": "nothing"}), json!([[0.0, 0.0, 1.0]]));
    let data = json!([{"object": "embedding", "embedding": [1.0, 0.0, 0.0], "index": 0}]);
    let usage = json!({"prompt_tokens": 0, "total_tokens": 0});
    let want = json!({"object": "list", "data": data, "model": "words", "usage": usage});
    check("/v1/embeddings", json!({"input": "good", "model": "words"}), want.clone());
    check("/embeddings", json!({"input": ["good"]}), want);
    check(
        "/similarity",
        json!({"inputs": {"source_sentence": "good", "sentences": ["bad", "good"]}}),
        json!([-1.0, 1.0]),
    );
    let scores =
        json!([{"score": 1.0, "label": "nice"}, {"score": 0.0, "label": "warm"}, {"score": 0.0, "label": "unknown"}]);
    check("/predict", json!({"inputs": "good"}), scores.clone());
    check("/predict", json!({"inputs": ["good", "great"]}), json!([{"score": 0.9, "label": "LABEL_0"}]));
    check("/models/mood/predict", json!({"inputs": [["good"]]}), json!([scores]));
    let ranked = json!([{"index": 1, "score": 1.0}, {"index": 0, "score": 0.0}]);
    check("/rerank", json!({"query": "good", "texts": ["bad", "good"]}), ranked);
    let (status, answer) = post(
        &server,
        "/v2/rerank",
        &json!({"model": "rank", "query": "good", "documents": ["bad", "good"], "top_n": 1}),
    );
    assert_eq!((status, &answer["results"]), (200, &json!([{"index": 1, "relevance_score": 1.0}])));
    let models = http::get(server.http(), "/v1/models").unwrap();
    let models: Value = serde_json::from_slice(&models.body).unwrap();
    let names: Vec<_> = models["data"].as_array().unwrap().iter().map(|model| model["id"].clone()).collect();
    assert_eq!(names, ["mood", "rank", "words"]);

    let refused = |path: &str, body: Value, status: u16, want: &str| {
        let (got, answer) = post(&server, path, &body);
        let text = answer["error"].as_str().or(answer["message"].as_str()).unwrap_or_default().to_owned();
        assert_eq!((got, text.as_str()), (status, want), "{path} {body}");
    };
    refused("/embed", json!({"inputs": ""}), 400, "'inputs' cannot be empty: a text has no characters");
    refused(
        "/embed",
        json!({"inputs": vec!["good"; 9]}),
        422,
        "batch size 9 > maximum allowed batch size 8: send fewer texts, or raise max_batch_size of model 'words'",
    );
    refused("/embed_sparse", json!({"inputs": "good"}), 404, "no model that is loaded answers /embed_sparse");
    refused(
        "/v1/embeddings",
        json!({"input": "good", "model": "other"}),
        404,
        "model 'other' is not found; those for /v1/embeddings are: words",
    );
    refused(
        "/models/mood/embed",
        json!({"inputs": "good"}),
        422,
        "model 'mood' does not answer /embed: that takes an embedding model (input 'text' BYTES, output 'embedding' FP32)",
    );
    let large = json!({"inputs": "a".repeat(2_000_001)});
    let size = large.to_string().len();
    refused("/embed", large, 413, &format!("the body has {size} bytes, more than the 2000000 allowed here"));
    // Text clients count among the requests of their models.
    let statistics = http::get(server.http(), "/v2/models/words/stats").unwrap();
    let statistics: Value = serde_json::from_slice(&statistics.body).unwrap();
    assert_eq!(statistics["model_stats"][0]["inference_stats"]["success"]["count"], 6);
}

#[test]
fn a_call_names_its_model_where_several_answer_it() {
    let folder = Folder::new("text-models");
    add_models(folder.path());
    fs::rename(folder.path().join("mood"), folder.path().join("second")).unwrap();
    let words = folder.path().join("words");
    for file in ["config.pbtxt", "1/steps.json"] {
        fs::copy(words.join(file), folder.path().join("second").join(file)).unwrap();
    }
    let server = Server::deuteron(folder.path(), &["--onnx-engine=embedded"]);
    let (status, answer) = post(&server, "/embed", &json!({"inputs": "good"}));
    let want = "several models answer /embed: name one as \"model\", or in the path, as in /models/second/embed";
    assert_eq!((status, answer["error"].as_str()), (422, Some(want)));
    assert_eq!(post(&server, "/embed", &json!({"inputs": "good", "model": "second"})).0, 200);
}

/// A text of some words, and the mean of their vectors.
fn text_of(count: usize) -> (String, [f32; 3]) {
    let words: Vec<usize> = (0..count).map(|place| 2 + (count * 7 + place * place) % 6).collect();
    let text: Vec<_> = words.iter().map(|word| WORDS[*word]).collect();
    let mean = [0, 1, 2].map(|axis| words.iter().map(|word| TABLE[*word][axis]).sum::<f32>() / count as f32);
    (text.join(" "), mean)
}

/// Texts of other lengths share runs of the network, and no client sees it.
#[test]
fn texts_have_the_same_vectors_alone_in_a_mixed_request_and_among_other_clients() {
    let folder = Folder::new("text-batches");
    add_models(folder.path());
    let config = folder.path().join("words/config.pbtxt");
    let text = fs::read_to_string(&config).unwrap().replace("max_batch_size: 8", "max_batch_size: 32");
    fs::write(&config, format!("{text}\ndynamic_batching {{ }}\n")).unwrap();
    let server = Server::deuteron(folder.path(), &["--onnx-engine=embedded"]);
    let address = server.http();
    let vectors = |texts: &[&str]| -> Vec<[f32; 3]> {
        let body = json!({ "inputs": texts, "normalize": false }).to_string();
        let answer = http::post(address, "/models/words/embed", body.as_bytes()).unwrap();
        assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
        serde_json::from_slice(&answer.body).unwrap()
    };
    let check = |texts: &[(String, [f32; 3])], got: Vec<[f32; 3]>, how: &str| {
        assert_eq!(got.len(), texts.len());
        for ((text, want), got) in texts.iter().zip(got) {
            let is_near = got.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-5);
            assert!(is_near, "{how}: {got:?}, expected {want:?} for {text}");
        }
    };
    let lengths = [1, 200, 3, 90, 2, 2, 500, 40];
    let texts: Vec<_> = lengths.iter().cycle().take(32).map(|count| text_of(*count)).collect();
    let all: Vec<_> = texts.iter().map(|(text, _)| text.as_str()).collect();
    for text in &texts[..8] {
        check(std::slice::from_ref(text), vectors(&[text.0.as_str()]), "alone");
    }
    check(&texts, vectors(&all), "the first mixed request");
    let counted = |name: &str| {
        crate::support::metrics::metric(server.metrics(), &format!("deuteron_{name}{{model=\"words\",version=\"1\"}}"))
    };
    let tokens = u64::try_from(lengths.iter().sum::<usize>()).unwrap();
    // The texts alone have no padding; the request has all that the longest text makes.
    assert_eq!(
        (counted("padded_tokens_total"), counted("padding_tokens_total")),
        (tokens + 32 * 500, 32 * 500 - 4 * tokens)
    );
    // Two runs behind the first answer may still prove that lengths may mix.
    let mut before = counted("padding_tokens_total");
    let mut tries = 0;
    let is_divided = std::iter::repeat_with(|| {
        check(&texts, vectors(&all), "a mixed request");
        let now = counted("padding_tokens_total");
        now - std::mem::replace(&mut before, now) < tokens
    });
    let is_divided = is_divided.take(100).inspect(|_| tries += 1).any(|is_divided| is_divided);
    assert!(is_divided, "texts of about one length run together, after {tries} requests");
    std::thread::scope(|scope| {
        for client in 0..8 {
            let (texts, vectors) = (&texts, &vectors);
            scope.spawn(move || {
                for round in 0..20 {
                    let begin = (client * 3 + round) % 32;
                    let some = &texts[begin..(begin + 1 + client % 3).min(32)];
                    let all: Vec<_> = some.iter().map(|(text, _)| text.as_str()).collect();
                    check(some, vectors(&all), "among others");
                }
            });
        }
    });
    let statistics = http::get(server.http(), "/v2/models/words/stats").unwrap();
    let statistics: Value = serde_json::from_slice(&statistics.body).unwrap();
    assert_eq!(statistics["model_stats"][0]["inference_stats"]["fail"]["count"], 0);
}
