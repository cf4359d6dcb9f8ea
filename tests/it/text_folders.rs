//! The interfaces of text models on folders of the hub, which show tokens, take token ids and give the vectors of tokens: one server
//! with an embedder, a reranker and a classifier, over HTTP and gRPC, and by the packages of their clients.
//! `DEUTERON_TESTS=adapters` (`.ci/run adapters`) takes LangChain's and LlamaIndex's too.

use std::fs;
use std::path::Path;
use std::process::Command;

use deuteron::wire::proto::tei;
use prost::Message;
use serde_json::{Value, json};

use crate::support::folder::Folder;
use crate::support::grpc::Client;
use crate::support::http;
use crate::support::onnx::{FLOAT, INT64, Onnx};
use crate::support::python::Environment;
use crate::support::server::Server;
use crate::support::skipped::is_asked_for;

const WORDS: [&str; 8] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "great", "bad", "awful"];

/// A tokenizer of whole words between `[CLS]` and `[SEP]`; the first four are `[PAD]`, `[UNK]` and these two.
pub fn tokenizer(words: &[&str]) -> String {
    let vocabulary: serde_json::Map<_, _> =
        words.iter().enumerate().map(|(index, word)| ((*word).to_owned(), json!(index))).collect();
    let added = |id: usize| json!({"id": id, "content": words[id], "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true});
    let token = |word: &str, kind: u8| json!({"SpecialToken": {"id": word, "type_id": kind}});
    let text = |name: &str, kind: u8| json!({"Sequence": {"id": name, "type_id": kind}});
    let special = |id: usize| json!({"id": words[id], "ids": [id], "tokens": [words[id]]});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [added(0), added(2), added(3)],
        "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "Whitespace"}, "decoder": null,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [token("[CLS]", 0), text("A", 0), token("[SEP]", 0)],
            "pair": [token("[CLS]", 0), text("A", 0), token("[SEP]", 0), text("B", 1), token("[SEP]", 1)],
            "special_tokens": {"[CLS]": special(2), "[SEP]": special(3)}
        },
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}
    })
    .to_string()
}

/// A folder with a network that looks up numbers for each word; with `place`, those of one place are the scores.
pub(crate) fn write(folder: &Path, config: &Value, table: &[f32], place: Option<i64>) {
    let bytes: Vec<u8> = table.iter().flat_map(|value| value.to_le_bytes()).collect();
    let size = (table.len() / WORDS.len()) as i64;
    let graph = Onnx::default().constant("table", FLOAT, &[8, size], &bytes).input("input_ids", INT64, &[-1, -1]);
    let graph = match place {
        None => graph.node("Gather", &["table", "input_ids"], &["last_hidden_state"], &[]).output(
            "last_hidden_state",
            FLOAT,
            &[-1, -1, size],
        ),
        Some(place) => graph
            .constant("place", INT64, &[], &place.to_le_bytes())
            .node("Gather", &["table", "input_ids"], &["each"], &[])
            .node("Gather", &["each", "place"], &["logits"], &[("axis", 1)])
            .output("logits", FLOAT, &[-1, size]),
    };
    fs::create_dir_all(folder.join("onnx")).unwrap();
    for (name, contents) in [
        ("config.json", config.to_string().into_bytes()),
        ("tokenizer.json", tokenizer(&WORDS).into_bytes()),
        ("tokenizer_config.json", br#"{"model_max_length": 5, "pad_token": "[PAD]"}"#.to_vec()),
        ("onnx/model.onnx", graph.into_bytes()),
    ] {
        fs::write(folder.join(name), contents).unwrap();
    }
}

/// `words` embeds, `rank` ranks, `mood` classifies.
pub(crate) fn add_models(folder: &Path) {
    let words = [0.0, 0.0, 0.0, 3.0, 0.0, 0.0, 0.0, 0.0, 3.0, 0.0, 2.4, 1.8, -3.0, 0.0, -2.4, 1.8];
    write(&folder.join("words"), &json!({"architectures": ["BertModel"], "hidden_size": 2}), &words, None);
    let prompts = json!({"prompts": {"query": "good ", "plain": ""}});
    fs::write(folder.join("words/config_sentence_transformers.json"), prompts.to_string()).unwrap();
    let class = "BertForSequenceClassification";
    let one = json!({"architectures": [class], "id2label": {"0": "LABEL_0"}});
    // Behind `[CLS]`, one word, and `[SEP]`.
    write(&folder.join("rank"), &one, &[0.0, 0.0, 0.0, 0.0, 200.0, 0.0, -200.0, -200.0], Some(3));
    let labels = json!({"architectures": [class], "id2label": {"0": "negative", "1": "neutral", "2": "positive"}});
    let mut moods = vec![0.0; 24];
    for (word, class) in [(4, 2), (5, 2), (6, 0), (7, 0), (1, 1)] {
        moods[word * 3 + class] = 200.0;
    }
    write(&folder.join("mood"), &labels, &moods, Some(1));
}

fn post(server: &Server, path: &str, body: &Value) -> (u16, Value) {
    let answer = http::post(server.http(), path, body.to_string().as_bytes()).unwrap();
    (answer.status, serde_json::from_slice(&answer.body).unwrap_or(Value::Null))
}

fn get(server: &Server, path: &str) -> (u16, Value) {
    let answer = http::get(server.http(), path).unwrap();
    (answer.status, serde_json::from_slice(&answer.body).unwrap_or(Value::Null))
}

/// Paths, bodies and answers.
fn table() -> Vec<(&'static str, Value, Value)> {
    let token = |id: u32, text: &str, at: usize| json!({"id": id, "text": text, "special": false, "start": at, "stop": at + text.len()});
    let special = |id: u32, text: &str| json!({"id": id, "text": text, "special": true, "start": null, "stop": null});
    let (cls, sep) = (special(2, "[CLS]"), special(3, "[SEP]"));
    let usage = |tokens: u32| json!({"prompt_tokens": tokens, "total_tokens": tokens});
    let embedding = |index: u32, vector: Value| json!({"object": "embedding", "embedding": vector, "index": index});
    let mood = [(1.0, "positive"), (0.0, "negative"), (0.0, "neutral")];
    let mood = Value::from(mood.map(|(score, label)| json!({"score": score, "label": label})).to_vec());
    vec![
        ("/embed", json!({"inputs": "good"}), json!([[1.0, 0.0]])),
        ("/embed", json!({"inputs": [2, 4, 3]}), json!([[1.0, 0.0]])),
        ("/embed", json!({"inputs": [[2, 4, 3], [2, 6, 3]]}), json!([[1.0, 0.0], [-1.0, 0.0]])),
        ("/embed", json!({"inputs": ["good", [4]], "normalize": false}), json!([[1.0, 0.0], [3.0, 0.0]])),
        ("/embed", json!({"inputs": "bad", "prompt_name": "query"}), json!([[0.0, 0.0]])),
        ("/embed", json!({"inputs": "bad good good good", "normalize": false}), json!([[0.6, 0.0]])),
        (
            "/embed",
            json!({"inputs": "bad good good good", "truncation_direction": "Left", "normalize": false}),
            json!([[1.8, 0.0]]),
        ),
        ("/embed", json!({"inputs": "good good good", "truncate": false}), json!([[1.0, 0.0]])),
        ("/embed", json!({"inputs": "good good good", "normalize": false}), json!([[1.8, 0.0]])),
        ("/embed", json!({"inputs": "great", "dimensions": 1}), json!([[1.0]])),
        ("/embed_all", json!({"inputs": "good"}), json!([[[0.0, 0.0], [3.0, 0.0], [0.0, 0.0]]])),
        (
            "/embed_all",
            json!({"inputs": ["good", [4, 6]]}),
            json!([[[0.0, 0.0], [3.0, 0.0], [0.0, 0.0]], [[3.0, 0.0], [-3.0, 0.0]]]),
        ),
        ("/models/words", json!({"inputs": "good"}), json!([[1.0, 0.0]])),
        ("/", json!({"inputs": ["good"], "model": "words"}), json!([[1.0, 0.0]])),
        ("/", json!({"inputs": "good", "model": "mood"}), mood.clone()),
        (
            "/",
            json!({"query": "good", "texts": ["bad", "good"]}),
            json!([{"index": 1, "score": 1.0}, {"index": 0, "score": 0.0}]),
        ),
        (
            "/v1/embeddings",
            json!({"input": [[2, 4, 3], [2, 6, 6, 3]], "model": "words"}),
            json!({"object": "list", "data": [embedding(0, json!([1.0, 0.0])), embedding(1, json!([-1.0, 0.0]))], "model": "words", "usage": usage(7)}),
        ),
        (
            "/models/words/tokenize",
            json!({"inputs": "Good  bad"}),
            json!([[cls, token(4, "Good", 0), token(6, "bad", 6), sep]]),
        ),
        (
            "/tokenize",
            json!({"inputs": ["good bad bad bad", "awful"], "add_special_tokens": false, "model": "words"}),
            json!([
                [token(4, "good", 0), token(6, "bad", 5), token(6, "bad", 9), token(6, "bad", 13)],
                [token(7, "awful", 0)]
            ]),
        ),
        (
            "/models/words/tokenize",
            json!({"inputs": "bad", "prompt_name": "query", "add_special_tokens": false}),
            json!([[token(4, "good", 0), token(6, "bad", 5)]]),
        ),
        ("/models/rank/decode", json!({"ids": [2, 4, 6, 3]}), json!(["good bad"])),
        (
            "/models/mood/decode",
            json!({"ids": [[2, 4, 3], [7]], "skip_special_tokens": false}),
            json!(["[CLS] good [SEP]", "awful"]),
        ),
        ("/predict", json!({"inputs": "good"}), mood.clone()),
        (
            "/predict",
            json!({"inputs": "good bad bad bad", "truncation_direction": "left"}),
            json!([{"score": 1.0, "label": "negative"}, {"score": 0.0, "label": "neutral"}, {"score": 0.0, "label": "positive"}]),
        ),
        (
            "/predict",
            json!({"inputs": "good", "raw_scores": true}),
            json!([{"score": 200.0, "label": "positive"}, {"score": 0.0, "label": "negative"}, {"score": 0.0, "label": "neutral"}]),
        ),
        (
            "/rerank",
            json!({"query": "good", "texts": ["bad", "good"], "raw_scores": true}),
            json!([{"index": 1, "score": 200.0}, {"index": 0, "score": -200.0}]),
        ),
        (
            "/rerank",
            json!({"query": "good", "texts": ["bad", "great", "good"]}),
            json!([{"index": 2, "score": 1.0}, {"index": 1, "score": 0.5}, {"index": 0, "score": 0.0}]),
        ),
        ("/rerank", json!({"query": "bad", "texts": ["good"], "truncate": false}), json!([{"index": 0, "score": 1.0}])),
        (
            "/models/words/vertex",
            json!({"instances": [{"inputs": "good"}, {"inputs": ["bad", [2, 4, 3]]}]}),
            json!({"predictions": [[[1.0, 0.0]], [[-1.0, 0.0], [1.0, 0.0]]]}),
        ),
        ("/vertex", json!({"instances": [{"inputs": "good"}], "model": "mood"}), json!({"predictions": [mood]})),
        (
            "/models/rank/vertex",
            json!({"instances": [{"query": "good", "texts": ["bad", "good"]}, {"inputs": [["good", "good"]]}]}),
            json!({"predictions": [
                [{"index": 1, "score": 1.0}, {"index": 0, "score": 0.0}],
                [[{"score": 1.0, "label": "LABEL_0"}]]
            ]}),
        ),
        (
            "/models/words/vertex",
            json!({"instances": vec![json!({"inputs": "great", "dimensions": 1}); 150]}),
            json!({"predictions": vec![[[1.0]]; 150]}),
        ),
    ]
}

/// Paths, bodies, statuses, and texts that the error has.
fn refusals() -> Vec<(&'static str, Value, u16, &'static str)> {
    let too_long = "`inputs` must have less than 5 tokens. Given: 6";
    vec![
        ("/embed", json!({"inputs": "bad good good good", "truncate": false}), 422, too_long),
        ("/embed_all", json!({"inputs": "bad good good good", "truncate": false}), 422, too_long),
        ("/embed", json!({"inputs": [4, 4, 4, 4, 4, 4], "truncate": false}), 422, too_long),
        ("/v1/embeddings", json!({"input": "bad good good good", "truncate": false}), 422, too_long),
        ("/predict", json!({"inputs": "bad good good good", "truncate": false}), 422, too_long),
        ("/rerank", json!({"query": "good", "texts": ["bad bad"], "truncate": false}), 422, too_long),
        ("/embed", json!({"inputs": [99]}), 422, "the id 99 is not in the vocabulary"),
        (
            "/embed",
            json!({"inputs": "a", "prompt_name": "x"}),
            422,
            "'prompt_name' has \"x\"; known are \"plain\", \"query\"",
        ),
        ("/predict", json!({"inputs": "a", "prompt_name": "x"}), 422, "model 'mood' has no prompts"),
        (
            "/tokenize",
            json!({"inputs": "a"}),
            422,
            "several models answer /tokenize: name one as \"model\", or in the path, as in /models/mood/tokenize",
        ),
        ("/models/words/tokenize", json!({"inputs": ""}), 400, "'inputs' cannot be empty"),
        (
            "/models/words/tokenize",
            json!({"inputs": vec!["a"; 33]}),
            422,
            "batch size 33 > maximum allowed batch size 32",
        ),
        ("/models/words/tokenize", json!({"inputs": "a", "prompt_name": "x"}), 422, "'prompt_name' has \"x\""),
        ("/models/rank/tokenize", json!({"inputs": "a", "prompt_name": "x"}), 422, "'prompt_name' has \"x\""),
        ("/models/words/decode", json!({"ids": []}), 400, "'ids' cannot be empty"),
        ("/models/words/decode", json!({"ids": ["a"]}), 422, "'ids' must have token ids"),
        (
            "/models/none/decode",
            json!({"ids": [1]}),
            404,
            "model 'none' is not found; those for /decode are: mood, rank, words",
        ),
        ("/models/none", json!({"inputs": "a"}), 404, "model 'none' is not found"),
        (
            "/models/words/vertex",
            json!({"instances": [{"inputs": "good"}, {"inputs": "bad good good good", "truncate": false}]}),
            422,
            too_long,
        ),
        ("/models/words/vertex", json!({"instances": [{"inputs": ""}]}), 400, "instance 0: 'inputs' cannot be empty"),
        ("/models/words/vertex", json!({"instances": [{"query": "q", "texts": ["a"]}]}), 422, "answer /rerank"),
        (
            "/vertex",
            json!({"instances": [{"inputs": "good"}]}),
            422,
            "several models answer /vertex: name one as \"model\", or in the path, as in /models/mood/vertex",
        ),
        (
            "/models/none/vertex",
            json!({"instances": [{"inputs": "good"}]}),
            404,
            "model 'none' is not found; those for /vertex are: mood, rank, words",
        ),
    ]
}

#[test]
fn folders_answer_every_path_of_tei_openai_cohere_and_vllm() {
    let folder = Folder::new("text-folders");
    add_models(folder.path());
    let server = Server::deuteron(folder.path(), &["--onnx-engine=embedded"]);
    for (path, body, want) in table() {
        assert_eq!(post(&server, path, &body), (200, want), "{path} {body}");
    }
    for (path, body, status, want) in refusals() {
        let (got, answer) = post(&server, path, &body);
        let text = answer["error"].as_str().or(answer["message"].as_str()).unwrap_or_default();
        assert!(got == status && text.contains(want), "{path} {body}: {got} {answer}");
        assert!(!want.starts_with('`') || text == want, "{path} {body}: {text}");
    }
    check_classes(&server);
    check_facts(&server);
    check_times(&server);
    check_tensors(&server);
    check_rpcs(&Client::new(server.grpc()));
    check_streams(&Client::new(server.grpc()));
    // In one test, since they share the server.
    if let Some(environment) = Environment::create("text", "tests/text/requirements.txt", &["python3"]) {
        assert_eq!(run(&environment, "clients.py", &server), "all clients agree\n");
    }
}

#[test]
fn the_adapters_of_langchain_and_llamaindex_work_as_they_are() {
    if !is_asked_for("adapters") {
        return;
    }
    let Some(environment) = Environment::create("text-adapters", "tests/text/adapters.txt", &["python3"]) else {
        return;
    };
    let folder = Folder::new("text-adapters");
    add_models(folder.path());
    let server = Server::deuteron(folder.path(), &["--onnx-engine=embedded"]);
    let said = run(&environment, "adapters.py", &server);
    assert_eq!(said.lines().count(), 4, "{said}");
}

/// Runs a script of `tests/text` on a server.
fn run(environment: &Environment, script: &str, server: &Server) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/text").join(script);
    let output = Command::new(environment.python()).arg(script).arg(server.http().to_string()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn check_classes(server: &Server) {
    for path in ["/classify", "/v1/classify", "/models/mood/v1/classify"] {
        let (status, answer) = post(server, path, &json!({"input": ["good", "awful"], "model": "mood"}));
        assert_eq!((status, &answer["model"], &answer["object"]), (200, &json!("mood"), &json!("list")), "{path}");
        let row = |index: u32, label: &str, probs: [f64; 3]| json!({"index": index, "label": label, "probs": probs, "num_classes": 3});
        assert_eq!(answer["data"], json!([row(0, "positive", [0.0, 0.0, 1.0]), row(1, "negative", [1.0, 0.0, 0.0])]));
        assert_eq!(answer["usage"], json!({"prompt_tokens": 6, "total_tokens": 6}));
        assert!(
            answer["id"].as_str().unwrap().starts_with("classify-") && answer["created"].as_u64() > Some(1_700_000_000)
        );
    }
    let (_, ranked) = post(server, "/v2/rerank", &json!({"query": "good", "documents": ["bad", "good"], "top_n": 1}));
    assert_eq!(ranked["meta"]["tokens"]["input_tokens"], 10);
}

fn check_facts(server: &Server) {
    let (status, facts) = get(server, "/models/words/info");
    assert_eq!((status, &facts["model_id"], &facts["model_type"]), (200, &json!("words"), &json!({"embedding": {}})));
    assert_eq!((&facts["max_input_length"], &facts["max_client_batch_size"]), (&json!(5), &json!(32)));
    assert_eq!((&facts["max_batch_tokens"], &facts["auto_truncate"]), (&json!(160), &json!(true)));
    let (_, facts) = get(server, "/models/mood/info");
    assert_eq!(facts["model_type"]["classifier"]["id2label"]["2"], "positive");
    assert_eq!(facts["model_type"]["classifier"]["label2id"]["neutral"], 1);
    let (status, several) = get(server, "/info");
    let want = "several models answer /info: name one as \"model\", or in the path, as in /models/mood/info";
    assert_eq!((status, several["error"].as_str()), (422, Some(want)));
    assert_eq!(get(server, "/models/none/info").0, 404);
    let health = http::get(server.http(), "/health").unwrap();
    assert_eq!((health.status, health.body.len()), (200, 0));
    // Triton's and KServe's answers stay as they are.
    assert_eq!(get(server, "/v2/health/ready").1["ready"], true);
    assert_eq!(http::get(server.http(), "/").unwrap().status, 200);
}

fn check_times(server: &Server) {
    let fields = |path: &str, body: &Value| {
        let answer = http::post(server.http(), path, body.to_string().as_bytes()).unwrap();
        let names =
            ["type", "characters", "tokens"].map(|name| answer.header(&format!("x-compute-{name}")).map(str::to_owned));
        let times = ["x-compute-time", "x-total-time", "x-tokenization-time", "x-queue-time", "x-inference-time"];
        let numbers = times.map(|name| answer.header(name).map(|value| value.parse::<u64>().unwrap() < 60_000));
        (names, numbers)
    };
    let text = |text: &str| Some(text.to_owned());
    let (facts, times) = fields("/embed", &json!({"inputs": ["good", "bad"]}));
    assert_eq!((facts, times), ([text("cpu"), text("7"), text("6")], [Some(true); 5]));
    let (facts, times) = fields("/rerank", &json!({"query": "good", "texts": ["bad"]}));
    assert_eq!((facts, times), ([text("cpu"), text("7"), text("5")], [Some(true); 5]));
    // No network runs.
    let (facts, times) = fields("/models/words/tokenize", &json!({"inputs": "good"}));
    assert_eq!((facts, times), ([None, text("4"), None], [Some(true), Some(true), None, None, None]));
}

/// The tensors behind the paths: those of tokens are for requests that name them.
fn check_tensors(server: &Server) {
    let (_, metadata) = get(server, "/v2/models/words");
    let names = |side: &str| {
        let tensors = metadata[side].as_array().unwrap().iter();
        tensors.map(|tensor| tensor["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names("inputs"), ["text", "prompt_name", "truncation", "token_ids"]);
    assert_eq!(names("outputs"), ["embedding", "token_count"]);
    let input = json!({"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": ["good"]});
    let outputs = |asked: Value| {
        let (status, answer) = post(server, "/v2/models/words/infer", &json!({"inputs": [input], "outputs": asked}));
        assert_eq!(status, 200, "{answer}");
        answer["outputs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|output| (output["name"].clone(), output["shape"].clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(outputs(json!([])), [(json!("embedding"), json!([1, 2])), (json!("token_count"), json!([1, 1]))]);
    assert_eq!(outputs(json!([{"name": "token_embedding"}])), [(json!("token_embedding"), json!([1, 3, 2]))]);
}

fn call<M: Message + Default>(client: &Client, method: &str, model: &'static str, message: &impl Message) -> M {
    let (_, answer) =
        client.call_with(&format!("/tei.v1.{method}"), &[("model", model)], &message.encode_to_vec()).unwrap();
    M::decode(&answer[..]).unwrap()
}

fn check_rpcs(client: &Client) {
    let inputs = || "good".to_owned();
    let facts: tei::InfoResponse = call(client, "Info/Info", "rank", &tei::InfoRequest {});
    assert_eq!(
        (facts.model_id.as_str(), facts.model_type(), facts.max_input_length),
        ("rank", tei::ModelType::Reranker, 5)
    );
    let answer: tei::EmbedResponse =
        call(client, "Embed/Embed", "words", &tei::EmbedRequest { inputs: inputs(), ..Default::default() });
    let metadata = answer.metadata.unwrap();
    assert_eq!((answer.embeddings, metadata.compute_chars, metadata.compute_tokens), (vec![1.0, 0.0], 4, 3));
    assert!(metadata.total_time_ns >= metadata.inference_time_ns && metadata.total_time_ns > 0);
    let answer: tei::EmbedAllResponse =
        call(client, "Embed/EmbedAll", "words", &tei::EmbedAllRequest { inputs: inputs(), ..Default::default() });
    assert_eq!(answer.token_embeddings.iter().map(|token| token.embeddings[0]).collect::<Vec<_>>(), [0.0, 3.0, 0.0]);
    let answer: tei::PredictResponse =
        call(client, "Predict/Predict", "mood", &tei::PredictRequest { inputs: inputs(), ..Default::default() });
    assert_eq!((answer.predictions.len(), answer.predictions[0].label.as_str()), (3, "positive"));
    let pair = tei::PredictPairRequest { inputs: vec![inputs(), inputs()], ..Default::default() };
    let answer: tei::PredictResponse = call(client, "Predict/PredictPair", "rank", &pair);
    assert_eq!(answer.predictions[0].score, 1.0);
    let texts = tei::RerankRequest {
        query: inputs(),
        texts: vec!["bad".to_owned(), inputs()],
        return_text: true,
        ..Default::default()
    };
    let answer: tei::RerankResponse = call(client, "Rerank/Rerank", "rank", &texts);
    assert_eq!((answer.ranks[0].index, answer.ranks[0].text.as_deref(), answer.ranks[1].score), (1, Some("good"), 0.0));
    let text = tei::EncodeRequest { inputs: inputs(), add_special_tokens: true, prompt_name: None };
    let answer: tei::EncodeResponse = call(client, "Tokenize/Tokenize", "words", &text);
    assert_eq!(
        (answer.tokens.len(), answer.tokens[1].id, answer.tokens[1].stop, answer.tokens[0].start),
        (3, 4, Some(4), None)
    );
    let ids = tei::DecodeRequest { ids: vec![2, 4, 3], skip_special_tokens: true };
    assert_eq!(call::<tei::DecodeResponse>(client, "Tokenize/Decode", "words", &ids).text, "good");
    let refused = |method: &str, model: &'static str, message: Vec<u8>| {
        let status = client.call_with(&format!("/tei.v1.{method}"), &[("model", model)], &message).unwrap_err();
        (status.code() as i32, status.message().to_owned())
    };
    let long = tei::EmbedRequest { inputs: "bad good good good".to_owned(), ..Default::default() };
    assert_eq!(
        refused("Embed/Embed", "words", long.encode_to_vec()),
        (3, "`inputs` must have less than 5 tokens. Given: 6".to_owned())
    );
    let cut = tei::EmbedRequest { truncate: true, truncation_direction: 1, normalize: Some(false), ..long };
    assert_eq!(call::<tei::EmbedResponse>(client, "Embed/Embed", "words", &cut).embeddings, [1.8, 0.0]);
    let raw = tei::PredictRequest { inputs: inputs(), raw_scores: true, ..Default::default() };
    assert_eq!(call::<tei::PredictResponse>(client, "Predict/Predict", "mood", &raw).predictions[0].score, 200.0);
    let raw = tei::PredictPairRequest { inputs: vec![inputs(), inputs()], raw_scores: true, ..Default::default() };
    assert_eq!(call::<tei::PredictResponse>(client, "Predict/PredictPair", "rank", &raw).predictions[0].score, 200.0);
    let raw = tei::RerankRequest { raw_scores: true, ..texts };
    assert_eq!(call::<tei::RerankResponse>(client, "Rerank/Rerank", "rank", &raw).ranks[1].score, -200.0);
    assert_eq!(refused("Embed/Embed", "none", cut.encode_to_vec()).0, 5);
    assert_eq!(refused("Embed/Embed", "words", Vec::new()).0, 3);
    assert_eq!(refused("Embed/Embed", "words", vec![0xff]).0, 13);
    let sparse = tei::EmbedSparseRequest { inputs: inputs(), ..Default::default() };
    assert_eq!(refused("Embed/EmbedSparse", "words", sparse.encode_to_vec()).0, 3);
    assert_eq!(refused("Embed/Other", "words", Vec::new()).0, 12);
}

fn check_streams(client: &Client) {
    let send = |method: &str, model: &'static str, messages: Vec<Vec<u8>>| {
        client.stream(&format!("/tei.v1.{method}"), &[("model", model)], messages)
    };
    let text = |inputs: &str| tei::EmbedRequest { inputs: inputs.to_owned(), ..Default::default() }.encode_to_vec();
    let (answers, end) = send(
        "Embed/EmbedStream",
        "words",
        (0..200).map(|index| text(if index % 2 == 0 { "good" } else { "bad" })).collect(),
    );
    let first = |answer: &Vec<u8>| tei::EmbedResponse::decode(&answer[..]).unwrap().embeddings[0];
    let signs: Vec<f32> = answers.iter().map(first).collect();
    assert!(end.is_ok() && signs == [1.0, -1.0].repeat(100), "{end:?} {signs:?}");
    let (answers, end) = send("Embed/EmbedStream", "words", vec![text("good"), text("")]);
    assert_eq!((answers.len(), end.unwrap_err().code() as i32), (1, 3));
    let ranked = |text: &str| {
        tei::RerankStreamRequest { query: "good".to_owned(), text: text.to_owned(), ..Default::default() }
            .encode_to_vec()
    };
    let (answers, end) = send("Rerank/RerankStream", "rank", vec![ranked("bad"), ranked("good"), ranked("great")]);
    let answer = tei::RerankResponse::decode(&answers[0][..]).unwrap();
    assert_eq!(answer.ranks.iter().map(|rank| rank.index).collect::<Vec<_>>(), [1, 2, 0]);
    assert!(end.is_ok() && answers.len() == 1);
    assert_eq!(send("Rerank/RerankStream", "rank", Vec::new()).1.unwrap_err().code() as i32, 3);
    let other = tei::RerankStreamRequest { query: "bad".to_owned(), text: "good".to_owned(), ..Default::default() };
    let (_, end) = send("Rerank/RerankStream", "rank", vec![ranked("bad"), other.encode_to_vec()]);
    assert_eq!(end.unwrap_err().message(), "'query' must be the same in all messages of a stream");
    let ids = |ids: &[u32]| tei::DecodeRequest { ids: ids.to_vec(), skip_special_tokens: true }.encode_to_vec();
    let (answers, end) = send("Tokenize/DecodeStream", "words", vec![ids(&[4]), ids(&[6, 4])]);
    let texts: Vec<_> = answers.iter().map(|answer| tei::DecodeResponse::decode(&answer[..]).unwrap().text).collect();
    assert!(end.is_ok() && texts == ["good", "bad good"], "{texts:?}");
}
