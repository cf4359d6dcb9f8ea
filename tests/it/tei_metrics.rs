//! The metrics of text-embeddings-inference on a server with folders of the hub: calls over HTTP and gRPC, and their exact counts on
//! the page.

use std::collections::BTreeMap;

use deuteron::wire::proto::tei;
use prost::Message;
use serde_json::{Value, json};

use crate::support::folder::Folder;
use crate::support::grpc::Client;
use crate::support::http;
use crate::support::server::Server;
use crate::text_folders::{add_models, write};

const DURATIONS: [&str; 4] = ["duration", "tokenization_duration", "queue_duration", "inference_duration"];

/// The page of metrics: the value of each series.
fn page(server: &Server) -> BTreeMap<String, f64> {
    let page = http::get(server.metrics(), "/metrics").unwrap();
    let page = String::from_utf8(page.body).unwrap();
    let series = page.lines().filter(|line| line.starts_with("te_"));
    series
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap())
        })
        .collect()
}

/// The bounds of a histogram, in the order of the page.
fn bounds(server: &Server, name: &str) -> Vec<String> {
    let page = http::get(server.metrics(), "/metrics").unwrap();
    let page = String::from_utf8(page.body).unwrap();
    let prefix = format!("{name}_bucket{{le=\"");
    page.lines().filter_map(|line| Some(line.strip_prefix(&prefix)?.split_once('"')?.0.to_owned())).collect()
}

/// A server, and the counts that its page must have.
struct TeiCase {
    server: Server,
    want: BTreeMap<String, f64>,
}

impl TeiCase {
    fn add(&mut self, series: &str, count: u32) {
        *self.want.entry(series.to_owned()).or_default() += f64::from(count);
    }

    /// A request was answered: `lengths` has the tokens of its texts. `method` is empty for a text of a stream.
    fn answered(&mut self, method: &str, task: &str, lengths: &[u32]) {
        if !method.is_empty() {
            self.add(&format!("te_request_count{{method=\"{method}\"}}"), 1);
            self.add(&format!("te_request_success{{method=\"{method}\"}}"), 1);
        }
        let texts = lengths.len() as u32;
        for stage in DURATIONS {
            self.add(&format!("te_request_{stage}_count"), 1);
            self.add(&format!("te_{task}_{stage}_count"), texts);
        }
        self.add(&format!("te_{task}_success"), texts);
        self.add("te_request_input_length_count", texts);
        self.add("te_request_input_length_sum", lengths.iter().sum());
        self.taken(task, texts);
        self.ran(lengths);
    }

    /// A model took texts.
    fn taken(&mut self, task: &str, texts: u32) {
        self.add(&format!("te_{task}_count"), texts);
    }

    /// Texts ran.
    fn ran(&mut self, lengths: &[u32]) {
        self.add("te_batch_next_size_sum", lengths.len() as u32);
        self.add("te_batch_next_tokens_sum", lengths.iter().sum());
    }

    /// A request failed; `method` is empty for one that was not read.
    fn failed(&mut self, method: &str, reason: &str) {
        if !method.is_empty() {
            self.add(&format!("te_request_count{{method=\"{method}\"}}"), 1);
        }
        self.add(&format!("te_request_failure{{err=\"{reason}\"}}"), 1);
    }

    /// Checks all counts. The page has others that are 0, and those of times and buckets.
    fn check(&self, what: &str) {
        let page = page(&self.server);
        for (series, want) in &self.want {
            assert_eq!(page.get(series), Some(want), "{what}: {series}");
        }
        let is_free = |series: &str| {
            let is_time = series.contains("_bucket{") || series.ends_with("duration_sum");
            is_time || ["te_batch_next_size_count", "te_batch_next_tokens_count"].contains(&series)
        };
        for (series, value) in page.iter().filter(|(series, _)| !self.want.contains_key(*series) && !is_free(series)) {
            assert_eq!(*value, 0.0, "{what}: {series}");
        }
    }

    fn post(&self, path: &str, body: &Value) -> u16 {
        http::post(self.server.http(), path, body.to_string().as_bytes()).unwrap().status
    }

    fn call(&self, method: &str, model: &'static str, message: &impl Message) -> bool {
        let client = Client::new(self.server.grpc());
        client.call_with(&format!("/tei.v1.{method}"), &[("model", model)], &message.encode_to_vec()).is_ok()
    }
}

#[test]
fn each_call_counts_as_in_tei_and_buckets_are_tei_s() {
    let folder = Folder::new("tei-metrics");
    add_models(folder.path());
    // Its network wants a third word.
    let classifier = json!({"architectures": ["BertForSequenceClassification"], "id2label": {"0": "no", "1": "yes"}});
    write(&folder.path().join("picky"), &classifier, &[0.0; 16], Some(3));
    let server = Server::deuteron(folder.path(), &["--onnx-engine=embedded", "--compat=tei"]);
    let mut case = TeiCase { server, want: BTreeMap::new() };
    case.check("at the start");
    check_bounds(&case.server);
    http_answers(&mut case);
    case.check("after HTTP");
    http_failures(&mut case);
    case.check("after failures");
    rpcs(&mut case);
    case.check("after gRPC");
    let page = page(&case.server);
    // Each bucket has the smaller ones, and the last has all.
    for name in ["te_embed_duration", "te_request_input_length", "te_batch_next_size", "te_batch_next_tokens"] {
        assert_eq!(page[&format!("{name}_bucket{{le=\"+Inf\"}}")], page[&format!("{name}_count")], "{name}");
    }
    assert_eq!(page["te_batch_next_size_count"], page["te_batch_next_tokens_count"]);
    assert!(page["te_batch_next_size_count"] > 0.0 && page["te_embed_duration_sum"] > 0.0);
    check_open_metrics(&case.server);
}

fn http_answers(case: &mut TeiCase) {
    let calls = [
        ("/embed", json!({"inputs": "good"}), "single", "embed", &[3][..]),
        ("/embed", json!({"inputs": ["good", "bad good"]}), "batch", "embed", &[3, 4]),
        ("/embed", json!({"inputs": [2, 4, 3]}), "single", "embed", &[3]),
        ("/embed_all", json!({"inputs": ["good"]}), "batch", "embed", &[3]),
        ("/v1/embeddings", json!({"input": "good", "model": "words"}), "single", "embed", &[3]),
        (
            "/similarity",
            json!({"inputs": {"source_sentence": "good", "sentences": ["bad", "good good"]}}),
            "batch",
            "embed",
            &[3, 3, 4],
        ),
        ("/models/mood", json!({"inputs": "good"}), "single", "predict", &[3]),
        ("/models/mood/predict", json!({"inputs": "good"}), "single", "predict", &[3]),
        ("/models/mood/predict", json!({"inputs": [["good"], ["bad"]]}), "batch", "predict", &[3, 3]),
        ("/rerank", json!({"query": "good", "texts": ["bad"]}), "batch", "predict", &[5]),
        ("/v2/rerank", json!({"query": "good", "documents": ["bad", "good"]}), "batch", "predict", &[5, 5]),
    ];
    for (path, body, method, task, lengths) in calls {
        assert_eq!(case.post(path, &body), 200, "{path} {body}");
        case.answered(method, task, lengths);
    }
    assert_eq!(case.post("/models/words/tokenize", &json!({"inputs": "good"})), 200);
}

fn http_failures(case: &mut TeiCase) {
    // Form, texts that the model took, texts that ran, and reason.
    let calls = [
        ("/embed", json!({"inputs": vec!["good"; 33]}), "batch", 0, &[][..], "batch_size"),
        ("/embed", json!({"inputs": ""}), "", 0, &[], "validation"),
        ("/embed", json!({"inputs": "bad good good good", "truncate": false}), "single", 1, &[], "tokenization"),
        ("/embed", json!({"inputs": "good", "dimensions": 3}), "single", 1, &[3], "validation"),
        ("/models/mood/embed", json!({"inputs": "good"}), "single", 0, &[], "model_type"),
        ("/embed_sparse", json!({"inputs": "good"}), "single", 0, &[], "model_type"),
        ("/models/none/embed", json!({"inputs": "good"}), "single", 0, &[], "validation"),
        ("/models/words/tokenize", json!({"inputs": vec!["a"; 33]}), "", 0, &[], "batch_size"),
        ("/models/words/tokenize", json!({"inputs": "a", "prompt_name": "x"}), "", 0, &[], "tokenization"),
    ];
    for (path, body, method, taken, ran, reason) in calls {
        assert!(case.post(path, &body) >= 400, "{path} {body}");
        case.failed(method, reason);
        case.taken("embed", taken);
        case.ran(ran);
    }
    // The engine blames the input, as it does for one that the tokenizer refuses.
    assert_eq!(case.post("/models/picky/predict", &json!({"inputs": [["good"], ["bad"]]})), 422);
    case.failed("batch", "tokenization");
    case.taken("predict", 2);
    case.ran(&[3, 3]);
    // No form of a call, which TEI does not count either.
    assert_eq!(http::post(case.server.http(), "/embed", b"[").unwrap().status, 422);
}

fn rpcs(case: &mut TeiCase) {
    let (good, texts) = (|| "good".to_owned(), || vec!["bad".to_owned(), "good".to_owned()]);
    let embed = |inputs: &str| tei::EmbedRequest { inputs: inputs.to_owned(), ..Default::default() };
    assert!(case.call("Embed/Embed", "words", &embed("good")));
    case.answered("single", "embed", &[3]);
    assert!(case.call("Embed/EmbedAll", "words", &tei::EmbedAllRequest { inputs: good(), ..Default::default() }));
    case.answered("single", "embed", &[3]);
    assert!(case.call("Predict/Predict", "mood", &tei::PredictRequest { inputs: good(), ..Default::default() }));
    case.answered("single", "predict", &[3]);
    let pair = tei::PredictPairRequest { inputs: texts(), ..Default::default() };
    assert!(case.call("Predict/PredictPair", "rank", &pair));
    case.answered("single", "predict", &[5]);
    let ranked = tei::RerankRequest { query: good(), texts: texts(), ..Default::default() };
    assert!(case.call("Rerank/Rerank", "rank", &ranked));
    case.answered("batch", "predict", &[5, 5]);
    assert!(!case.call("Embed/Embed", "words", &embed("bad good good good")));
    case.failed("single", "tokenization");
    case.taken("embed", 1);
    assert!(!case.call("Embed/Embed", "words", &embed("")));
    case.failed("", "validation");
    let client = Client::new(case.server.grpc());
    let send = |method: &str, model: &'static str, messages: Vec<Vec<u8>>| {
        let (answers, end) = client.stream(&format!("/tei.v1.{method}"), &[("model", model)], messages);
        assert!(end.is_ok(), "{end:?}");
        answers.len()
    };
    assert_eq!(send("Embed/EmbedStream", "words", vec![embed("good").encode_to_vec(); 40]), 40);
    (0..40).for_each(|_| case.answered("", "embed", &[3]));
    let next = tei::RerankStreamRequest { query: good(), text: good(), ..Default::default() };
    assert_eq!(send("Rerank/RerankStream", "rank", vec![next.encode_to_vec(); 3]), 1);
    case.answered("batch", "predict", &[5, 5, 5]);
}

/// TEI's buckets: `router/src/prometheus.rs`.
fn check_bounds(server: &Server) {
    let mut bound = 0.000_01;
    let mut times: Vec<String> = Vec::new();
    for _ in 0..35 {
        bound *= 1.5;
        times.push(f64::to_string(&bound));
    }
    assert_eq!((times[0].as_str(), times.len()), ("0.000015000000000000002", 35));
    let powers = |count: u32| (0..count).map(|power| 2.0_f64.powi(power as i32).to_string()).collect::<Vec<_>>();
    let check = |name: &str, mut want: Vec<String>| {
        want.push("+Inf".to_owned());
        assert_eq!(bounds(server, name), want, "{name}");
    };
    for of in ["request", "embed", "predict"] {
        DURATIONS.iter().for_each(|stage| check(&format!("te_{of}_{stage}"), times.clone()));
    }
    check("te_request_input_length", powers(20));
    check("te_batch_next_size", powers(13));
    check("te_batch_next_tokens", powers(21));
}

fn check_open_metrics(server: &Server) {
    let accept = [("Accept", "application/openmetrics-text")];
    let page = http::exchange(server.metrics(), &http::request("GET", "/metrics", &accept, b"")).unwrap();
    let page = String::from_utf8(page.body).unwrap();
    for line in ["# TYPE te_request_count unknown", "# TYPE te_request_duration histogram", "te_queue_size 0"] {
        assert!(page.lines().any(|have| have == line), "{line}\n{page}");
    }
    assert!(page.contains("\nte_request_count{method=\"single\"} ") && page.ends_with("# EOF\n"));
}

#[test]
fn a_server_without_the_flag_has_none_of_them() {
    let folder = Folder::new("no-tei-metrics");
    add_models(folder.path());
    let server = Server::deuteron(folder.path(), &["--onnx-engine=embedded"]);
    let body = json!({"inputs": "good"}).to_string();
    assert_eq!(http::post(server.http(), "/embed", body.as_bytes()).unwrap().status, 200);
    assert!(page(&server).is_empty());
}
