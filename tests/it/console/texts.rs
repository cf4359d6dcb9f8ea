//! The form of texts in a real browser (`tests/console/texts.mjs`), with a folder of the hub of each kind: a tokenizer of eleven words
//! and networks that look up numbers.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::Browser;
use crate::support::folder::Folder;
use crate::support::onnx::{FLOAT, INT64, Onnx};
use crate::support::repository;
use crate::support::server::Server;
use crate::text_folders::tokenizer;

const WORDS: [&str; 11] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "great", "bad", "anna", "lives", "in", "berlin"];

/// A network that looks up the numbers of each word: `entries` are words with a place and its number.
fn lookup(size: usize, entries: &[(&str, usize, f32)], output: &str) -> Onnx {
    Onnx::default()
        .constant("table", FLOAT, &[WORDS.len() as i64, size as i64], &table(size, entries))
        .input("input_ids", INT64, &[-1, -1])
        .node("Gather", &["table", "input_ids"], &[output], &[])
}

fn table(size: usize, entries: &[(&str, usize, f32)]) -> Vec<u8> {
    let mut table = vec![0.0_f32; WORDS.len() * size];
    for (word, place, value) in entries {
        let row = WORDS.iter().position(|have| have == word).unwrap();
        table[row * size + place] = *value;
    }
    table.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn write(folder: &Path, config: Value, graph: Onnx) {
    fs::create_dir_all(folder).unwrap();
    for (name, contents) in [
        ("config.json", config.to_string().into_bytes()),
        ("tokenizer.json", tokenizer(&WORDS).into_bytes()),
        ("tokenizer_config.json", br#"{"model_max_length": 16, "pad_token": "[PAD]"}"#.to_vec()),
        ("model.onnx", graph.into_bytes()),
    ] {
        fs::write(folder.join(name), contents).unwrap();
    }
}

fn labels(class: &str, names: &[&str]) -> Value {
    let labels: serde_json::Map<_, _> =
        names.iter().enumerate().map(|(index, name)| (index.to_string(), json!(name))).collect();
    json!({"architectures": [class], "id2label": labels})
}

/// The sum over the tokens.
fn sum(graph: Onnx, size: i64) -> Onnx {
    let graph = graph.constant("axis", INT64, &[1], &1_i64.to_le_bytes());
    graph.node("ReduceSum", &["each", "axis"], &["logits"], &[("keepdims", 0)]).output("logits", FLOAT, &[-1, size])
}

fn add_models(folder: &Path) {
    // The vector of a text is the mean over its tokens: of a word and the two around it.
    let vectors = [("good", 0, 3.0), ("great", 0, 2.4), ("great", 1, 1.8), ("bad", 0, -3.0)];
    let graph = lookup(2, &vectors, "last_hidden_state").output("last_hidden_state", FLOAT, &[-1, -1, 2]);
    let words = folder.join("words");
    write(&words, json!({"architectures": ["BertModel"], "hidden_size": 2}), graph);
    fs::write(words.join("config_sentence_transformers.json"), r#"{"prompts": {"query": "good "}}"#).unwrap();
    let class = "BertForSequenceClassification";
    let moods = [("good", 2, 4.0), ("good", 1, 2.0), ("bad", 0, 4.0), ("bad", 1, 2.0)];
    write(&folder.join("mood"), labels(class, &["negative", "neutral", "positive"]), sum(lookup(3, &moods, "each"), 3));
    let scores = [("great", 0, 4.0), ("bad", 0, -4.0)];
    write(&folder.join("rank"), labels(class, &["LABEL_0"]), sum(lookup(1, &scores, "each"), 1));
    let entailed = [("good", 2, 3.0), ("great", 2, 1.0), ("bad", 0, 3.0)];
    let names = ["contradiction", "neutral", "entailment"];
    write(&folder.join("topics"), labels(class, &names), sum(lookup(3, &entailed, "each"), 3));
    let weights = [("good", 4, 3.0), ("good", 5, 1.0), ("anna", 7, 4.0)];
    let graph = lookup(11, &weights, "logits").output("logits", FLOAT, &[-1, -1, 11]);
    write(&folder.join("splade"), json!({"architectures": ["BertForMaskedLM"], "vocab_size": 11}), graph);
    let mut spans = vec![("anna", 1, 20.0), ("berlin", 2, 20.0)];
    spans.extend(WORDS.iter().filter(|word| !["anna", "berlin"].contains(word)).map(|word| (*word, 0, 20.0)));
    let graph = lookup(3, &spans, "logits").output("logits", FLOAT, &[-1, -1, 3]);
    write(&folder.join("entities"), labels("BertForTokenClassification", &["O", "B-PER", "B-LOC"]), graph);
    let place = table(1, &[("berlin", 0, 20.0)]);
    let graph = Onnx::default()
        .constant("table", FLOAT, &[WORDS.len() as i64], &place)
        .input("input_ids", INT64, &[-1, -1])
        .node("Gather", &["table", "input_ids"], &["start_logits"], &[])
        .node("Gather", &["table", "input_ids"], &["end_logits"], &[])
        .output("start_logits", FLOAT, &[-1, -1])
        .output("end_logits", FLOAT, &[-1, -1]);
    write(&folder.join("answers"), json!({"architectures": ["BertForQuestionAnswering"]}), graph);
    let other = "backend: \"identity\" input { name: \"text\" data_type: TYPE_STRING dims: 1 } \
                 input { name: \"more\" data_type: TYPE_FP32 dims: 2 } \
                 output { name: \"score\" data_type: TYPE_STRING dims: 1 } \
                 output { name: \"same\" data_type: TYPE_FP32 dims: 2 }";
    repository::add(folder, "other", other, None);
}

#[test]
fn a_browser_sends_texts_and_shows_labels_ranks_cosines_tokens_and_spans() {
    let Some(browser) = Browser::find("console-texts") else { return };
    let folder = Folder::new("console-text-models");
    add_models(folder.path());
    let server = Server::deuteron(folder.path(), &["--shards=1", "--onnx-engine=embedded"]);
    let checks = browser.run("texts.mjs", &server, &[]);
    assert!(checks >= 50, "{checks}");
    for name in ["words", "mood", "rank", "splade", "entities", "answers", "topics"] {
        browser.check_pictures(&[&format!("texts-{name}.png"), &format!("texts-{name}-narrow.png")]);
    }
}
