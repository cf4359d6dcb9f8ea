//! Calls and answers of the text interfaces, as tables.

mod table;

use base::error::Code;
use base::tensor::{Datatype, Shape, Tensor, strings};
use bytes::Bytes;

use super::*;
use crate::limits::TEXTS_MAX;
use crate::testing::{input, output, spec};
use model::ModelSpec;

fn embedder() -> ModelSpec {
    let mut prompt = input("prompt_name", Datatype::Bytes, &[1]);
    prompt.is_optional = true;
    spec(4, vec![input("text", Datatype::Bytes, &[1]), prompt], vec![output("embedding", Datatype::Fp32, &[3])])
}

fn reranker() -> ModelSpec {
    let inputs = vec![input("query", Datatype::Bytes, &[1]), input("text", Datatype::Bytes, &[1])];
    spec(4, inputs, vec![output("score", Datatype::Fp32, &[1])])
}

fn classifier() -> ModelSpec {
    let outputs = vec![output("label", Datatype::Bytes, &[2]), output("score", Datatype::Fp32, &[2])];
    spec(4, vec![input("text", Datatype::Bytes, &[1])], outputs)
}

fn sparse() -> ModelSpec {
    let outputs = vec![
        output("index", Datatype::Int64, &[-1]),
        output("value", Datatype::Fp32, &[-1]),
        output("count", Datatype::Int64, &[1]),
    ];
    spec(4, vec![input("text", Datatype::Bytes, &[1])], outputs)
}

fn floats(shape: &[i64], values: &[f32]) -> Tensor {
    let contents: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Tensor { datatype: Datatype::Fp32, shape: Shape::from_slice(shape), contents: Bytes::from(contents) }
}

fn integers(shape: &[i64], values: &[i64]) -> Tensor {
    let contents: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Tensor { datatype: Datatype::Int64, shape: Shape::from_slice(shape), contents: Bytes::from(contents) }
}

fn texts(shape: &[i64], values: &[&str]) -> Tensor {
    let mut contents = Vec::new();
    values.iter().for_each(|text| strings::encode(text.as_bytes(), &mut contents));
    Tensor { datatype: Datatype::Bytes, shape: Shape::from_slice(shape), contents: Bytes::from(contents) }
}

fn read(path: TextPath, body: &str) -> Result<TextRequest, String> {
    TextRequest::read(path, body.as_bytes()).map_err(|error| error.text().to_owned())
}

#[test]
fn a_body_is_texts_and_options() {
    let check = |path, body: &str, texts: &[&str], is_single: bool| {
        let call = read(path, body).unwrap();
        assert_eq!(
            (call.texts.iter().map(String::as_str).collect::<Vec<_>>(), call.is_single),
            (texts.to_vec(), is_single),
            "{body}"
        );
        call
    };
    check(TextPath::Embed, r#"{"inputs": "a"}"#, &["a"], true);
    check(TextPath::Embed, r#"{"inputs": ["a", "b"], "truncate": true, "normalize": true}"#, &["a", "b"], false);
    let cut = |options: &str| read(TextPath::Embed, &format!(r#"{{"inputs": "a"{options}}}"#)).unwrap().truncation;
    assert_eq!(cut(r#", "truncate": null"#), None);
    assert_eq!(cut(r#", "truncate": true, "truncation_direction": "Right""#), Some(TextTruncation::Right));
    assert_eq!(cut(r#", "truncation_direction": "left""#), Some(TextTruncation::Left));
    assert_eq!(cut(r#", "truncate": false, "truncation_direction": "left""#), Some(TextTruncation::Off));
    let call = check(TextPath::Embeddings, r#"{"input": [1, 2]}"#, &[""], true);
    assert_eq!(call.ids, Some(vec![vec![1, 2]]));
    let call = check(TextPath::EmbedAll, r#"{"inputs": ["a", [7], "b"]}"#, &["a", "", "b"], false);
    assert_eq!((call.ids.as_ref().unwrap().len(), call.character_count()), (3, 3));
    let call = check(TextPath::EmbedSparse, r#"{"inputs": ["é"], "prompt_name": "query"}"#, &["é"], false);
    assert_eq!(call.prompt_name.as_deref(), Some("query"));
    let body = r#"{"input": "a", "model": "m", "user": "me", "encoding_format": "base64", "dimensions": 2}"#;
    let call = check(TextPath::Embeddings, body, &["a"], true);
    assert_eq!((call.model.as_deref(), call.is_base64, call.dimensions), (Some("m"), true, Some(2)));
    check(TextPath::Predict, r#"{"inputs": "a"}"#, &["a"], true);
    check(TextPath::Predict, r#"{"inputs": [["a"], ["b"]]}"#, &["a", "b"], false);
    let call = check(TextPath::Predict, r#"{"inputs": ["q", "a"], "raw_scores": false}"#, &["a"], true);
    assert_eq!(call.queries, Some(vec!["q".to_owned()]));
    let call = check(TextPath::Predict, r#"{"inputs": [["q", "a"], ["p", "b"]]}"#, &["a", "b"], false);
    assert_eq!(call.queries, Some(vec!["q".to_owned(), "p".to_owned()]));
    let similarity = r#"{"inputs": {"source_sentence": "s", "sentences": ["a", "b"]}}"#;
    check(TextPath::Similarity, similarity, &["s", "a", "b"], false);
    let call =
        check(TextPath::Rerank, r#"{"query": "q", "texts": ["a", "b"], "return_text": true}"#, &["a", "b"], false);
    assert_eq!((call.returns_texts, call.has_documents, call.queries.unwrap().len()), (true, false, 2));
    let body = r#"{"query": "q", "documents": ["a", {"text": "b"}], "top_n": 1, "return_documents": true}"#;
    for path in [TextPath::Rerank, TextPath::RerankDocuments] {
        let call = check(path, body, &["a", "b"], false);
        assert_eq!((call.returns_texts, call.has_documents, call.top_n), (true, true, Some(1)));
    }
}

/// Bodies that are refused, and the reasons.
const WRONG: &[(TextPath, &str, &str)] = &[
    (TextPath::Embed, "[]", "the body must be a JSON object"),
    (TextPath::Embed, "{}", "'inputs' is missing"),
    (TextPath::Embed, r#"{"inputs": null}"#, "'inputs' is missing"),
    (TextPath::Embed, r#"{"inputs": 1}"#, "'inputs' must be a text or a list of texts, but is a number"),
    (TextPath::Embed, r#"{"inputs": []}"#, "'inputs' cannot be empty"),
    (TextPath::Embed, r#"{"inputs": ""}"#, "'inputs' cannot be empty: a text has no characters"),
    (TextPath::Embed, r#"{"inputs": ["a", ""]}"#, "'inputs' cannot be empty: a text has no characters"),
    (
        TextPath::Embed,
        r#"{"inputs": [1, "a"]}"#,
        "'inputs' must have token ids, integers from 0 to 4294967295, but has a text",
    ),
    (
        TextPath::Embed,
        r#"{"inputs": [[1], [-2]]}"#,
        "'inputs' must have token ids, integers from 0 to 4294967295, but has a number",
    ),
    (TextPath::Embed, r#"{"inputs": [[1], []]}"#, "'inputs' cannot be empty: a list has no token ids"),
    (
        TextPath::Embed,
        r#"{"inputs": [1], "prompt_name": "q"}"#,
        "'prompt_name' is 'q', but there are token ids, which are taken as they are: send the text",
    ),
    (TextPath::Embed, r#"{"inputs": [true]}"#, "'inputs' must have texts or lists of token ids, but has true or false"),
    (TextPath::Embed, r#"{"inputs": "a", "truncate": 1}"#, "'truncate' must be true or false, but is a number"),
    (
        TextPath::Embed,
        r#"{"inputs": "a", "truncation_direction": "Up"}"#,
        "'truncation_direction' is 'up': must be 'left' or 'right'",
    ),
    (TextPath::Embed, r#"{"inputs": "a", "prompt_name": 1}"#, "'prompt_name' must be a text, but is a number"),
    (TextPath::Embed, r#"{"inputs": "a", "dimensions": 0}"#, "'dimensions' must be an integer from 1 to 1048576"),
    (TextPath::Embed, r#"{"inputs": "a", "dimensions": 1048577}"#, "'dimensions' must be an integer from 1 to 1048576"),
    (TextPath::Embeddings, r#"{"inputs": "a"}"#, "'input' is missing"),
    (
        TextPath::Embeddings,
        r#"{"input": "a", "encoding_format": "int8"}"#,
        "'encoding_format' is 'int8': must be 'float' or 'base64'",
    ),
    (TextPath::Embeddings, r#"{"input": "a", "model": {}}"#, "'model' must be a text, but is an object"),
    (
        TextPath::Predict,
        r#"{"inputs": ["a", "b", "c"]}"#,
        "'inputs' must be a text, a pair [\"a\", \"b\"], or a list of lists with one or two texts each",
    ),
    (TextPath::Predict, r#"{"inputs": [["a"], ["b", "c"]]}"#, "'inputs' must be all single texts or all pairs"),
    (TextPath::Similarity, r#"{"inputs": "a"}"#, "'inputs' must have a string 'source_sentence'"),
    (TextPath::Similarity, r#"{"inputs": {"source_sentence": "a"}}"#, "'sentences' is missing"),
    (TextPath::Rerank, r#"{"texts": ["a"]}"#, "'query' must be a text with characters"),
    (TextPath::Rerank, r#"{"query": "", "texts": ["a"]}"#, "'query' must be a text with characters"),
    (TextPath::Rerank, r#"{"query": "q"}"#, "'documents' is missing"),
    (TextPath::Rerank, r#"{"query": "q", "texts": "a"}"#, "'texts' must be a text or a list of texts, but is a text"),
    (
        TextPath::Rerank,
        r#"{"query": "q", "texts": ["a"], "return_text": "yes"}"#,
        "'return_text' must be true or false, but is a text",
    ),
    (
        TextPath::RerankDocuments,
        r#"{"query": "q", "documents": [{"title": "a"}]}"#,
        "'documents' must have texts, but has an object",
    ),
    (
        TextPath::RerankDocuments,
        r#"{"query": "q", "documents": ["a"], "top_n": 0}"#,
        "'top_n' must be an integer from 1 to 2048",
    ),
];

#[test]
fn a_wrong_body_is_refused_with_its_member() {
    for (path, body, want) in WRONG {
        assert_eq!(read(*path, body), Err((*want).to_owned()), "{body}");
    }
    let many = format!(r#"{{"inputs": [{}]}}"#, vec!["\"a\""; TEXTS_MAX + 1].join(","));
    assert_eq!(read(TextPath::Embed, &many), Err("'inputs' has 2049 texts, more than the 2048 allowed".to_owned()));
    assert_eq!(TextRequest::read(TextPath::Embed, b"{").unwrap_err().code(), Code::MalformedJson);
    assert_eq!(named_model(b"{").unwrap_err().code(), Code::MalformedJson);
    let many = format!(r#"{{"instances": [{}]}}"#, vec!["{}"; TEXTS_MAX + 1].join(","));
    let error = instances(many.as_bytes(), TextTask::Embed).unwrap_err();
    assert_eq!(error.text(), "'instances' has 2049 bodies, more than the 2048 allowed");
    let read = TextRequest::read(TextPath::Vertex, br#"{"instances": []}"#);
    assert_eq!(read.unwrap_err().code(), Code::Internal, "its bodies are read one by one");
}

#[test]
fn a_call_becomes_a_request_of_a_model_of_its_task() {
    let call = read(TextPath::Embed, r#"{"inputs": ["a", "bc"], "prompt_name": "query"}"#).unwrap();
    let request = request(&call, &embedder()).unwrap();
    assert_eq!((request.rows, request.inputs.len()), (2, 2));
    assert_eq!(request.inputs[0], texts(&[2, 1], &["a", "bc"]));
    assert_eq!(request.inputs[1], texts(&[2, 1], &["query", "query"]));
    let call = read(TextPath::Rerank, r#"{"query": "q", "texts": ["a", "b"]}"#).unwrap();
    let request = super::request(&call, &reranker()).unwrap();
    assert_eq!(request.inputs, [texts(&[2, 1], &["q", "q"]), texts(&[2, 1], &["a", "b"])]);

    let refused = |path, body: &str, spec: &ModelSpec, want: &str| {
        let error = super::request(&read(path, body).unwrap(), spec).unwrap_err();
        assert_eq!((error.code(), error.text()), (Code::InvalidArgument, want), "{body}");
    };
    let wanted =
        "model 'm' does not answer /embed: that takes an embedding model (input 'text' BYTES, output 'embedding' FP32)";
    refused(TextPath::Embed, r#"{"inputs": "a"}"#, &classifier(), wanted);
    let many = r#"{"inputs": ["a", "a", "a", "a", "a"]}"#;
    let text = "batch size 5 > maximum allowed batch size 4: send fewer texts, or raise max_batch_size of model 'm'";
    refused(TextPath::Embed, many, &embedder(), text);
    let prompt = r#"{"inputs": "a", "prompt_name": "x"}"#;
    refused(TextPath::EmbedSparse, prompt, &sparse(), "model 'm' has no prompts, but 'prompt_name' is 'x'");
    refused(TextPath::Predict, r#"{"inputs": ["q", "a"]}"#, &classifier(), "model 'm' takes single texts, not pairs");
    let pairs = r#"model 'm' takes pairs of texts: ["query", "text"]"#;
    refused(TextPath::Predict, r#"{"inputs": "a"}"#, &reranker(), pairs);
}

#[test]
fn tokens_are_estimated_by_the_size_of_texts() {
    let mut spec = embedder();
    let mut ids = input("token_ids", Datatype::Int64, &[-1, -1]);
    ids.is_optional = true;
    spec.inputs.push(ids);
    let given = |body: &str| {
        let request = request(&read(TextPath::Embed, body).unwrap(), &spec).unwrap();
        token_estimate(&spec, &request.inputs)
    };
    assert_eq!(given(r#"{"inputs": "a"}"#), 1);
    assert_eq!(given(r#"{"inputs": ["abcd", "abcdefgh"], "prompt_name": "a long name of a prompt"}"#), 5);
    assert_eq!(given(r#"{"inputs": [[1, 2, 3]]}"#), 3 + 1);
}

#[test]
fn the_task_of_a_model_follows_from_its_tensors() {
    assert_eq!(TextTask::of(&embedder()), Some(TextTask::Embed));
    assert_eq!(TextTask::of(&reranker()), Some(TextTask::Rerank));
    assert_eq!(TextTask::of(&classifier()), Some(TextTask::Classify));
    assert_eq!(TextTask::of(&sparse()), Some(TextTask::SparseEmbed));
    let none = |change: &dyn Fn(&mut ModelSpec)| {
        let mut spec = embedder();
        change(&mut spec);
        assert_eq!(TextTask::of(&spec), None);
    };
    none(&|spec| spec.rows_max = 0);
    none(&|spec| spec.is_decoupled = true);
    none(&|spec| spec.inputs[0].datatype = Datatype::Int64);
    none(&|spec| spec.inputs.push(input("language", Datatype::Bytes, &[1])));
    none(&|spec| spec.outputs[0].datatype = Datatype::Fp16);
}

fn answered(path: TextPath, body: &str, spec: &ModelSpec, outputs: &[Tensor]) -> String {
    let call = read(path, body).unwrap();
    let outcome = TextOutcome::Outputs(outputs.to_vec());
    let json = encode(&call, spec, &outcome, AnswerFacts { id: "1f", created: 9, tokens: Some(7) });
    json.map_or_else(|error| error.text().to_owned(), |json| String::from_utf8(json).unwrap())
}

#[test]
fn outputs_become_the_answer_of_the_path() {
    let check = |path, body: &str, spec: &ModelSpec, outputs: &[Tensor], want: &str| {
        assert_eq!(answered(path, body, spec, outputs), want, "{body}");
    };
    let vectors = [floats(&[2, 3], &[3.0, 4.0, 0.0, 0.0, 0.25, -1.5])];
    let two = r#"{"inputs": ["a", "b"]}"#;
    let as_they_are = r#"{"inputs": ["a", "b"], "normalize": false}"#;
    check(TextPath::Embed, as_they_are, &embedder(), &vectors, "[[3.0,4.0,0.0],[0.0,0.25,-1.5]]");
    let lengths = [floats(&[2, 3], &[3.0, 4.0, 0.0, 0.0, 0.0, 0.0])];
    check(TextPath::Embed, two, &embedder(), &lengths, "[[0.6,0.8,0.0],[0.0,0.0,0.0]]");
    let shorter = r#"{"inputs": ["a", "b"], "dimensions": 2}"#;
    check(TextPath::Embed, shorter, &embedder(), &vectors, "[[0.6,0.8],[0.0,1.0]]");
    let longer = r#"{"inputs": ["a", "b"], "dimensions": 4}"#;
    check(TextPath::Embed, longer, &embedder(), &vectors, "'dimensions' is 4, but the vectors of model 'm' have 3");
    let one = [floats(&[1, 3], &[0.0, -2.0, 0.0])];
    let usage = r#""usage":{"prompt_tokens":7,"total_tokens":7}}"#;
    check(
        TextPath::Embeddings,
        r#"{"input": "a"}"#,
        &embedder(),
        &one,
        &format!(
            r#"{{"object":"list","data":[{{"object":"embedding","embedding":[0.0,-1.0,0.0],"index":0}}],"model":"m",{usage}"#
        ),
    );
    check(
        TextPath::Embeddings,
        r#"{"input": ["a"], "encoding_format": "base64"}"#,
        &embedder(),
        &one,
        &format!(
            r#"{{"object":"list","data":[{{"object":"embedding","embedding":"AAAAAAAAgL8AAAAA","index":0}}],"model":"m",{usage}"#
        ),
    );
    let three = [floats(&[3, 3], &[1.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 1.0, 0.0])];
    let similarity = r#"{"inputs": {"source_sentence": "s", "sentences": ["a", "b"]}}"#;
    check(TextPath::Similarity, similarity, &embedder(), &three, "[1.0,0.0]");
    let outputs =
        [integers(&[2, 2], &[5, 9, 3, 0]), floats(&[2, 2], &[0.5, 0.25, 1.5, 0.0]), integers(&[2, 1], &[2, 1])];
    let want = r#"[[{"index":5,"value":0.5},{"index":9,"value":0.25}],[{"index":3,"value":1.5}]]"#;
    check(TextPath::EmbedSparse, two, &sparse(), &outputs, want);
    let classes = |rows: i64| {
        [
            texts(&[rows, 2], &["good", "bad"].repeat(rows as usize)),
            floats(&[rows, 2], &[0.75, 0.25].repeat(rows as usize)),
        ]
    };
    let row = r#"[{"score":0.75,"label":"good"},{"score":0.25,"label":"bad"}]"#;
    check(TextPath::Predict, r#"{"inputs": "a"}"#, &classifier(), &classes(1), row);
    check(TextPath::Predict, r#"{"inputs": [["a"]]}"#, &classifier(), &classes(1), &format!("[{row}]"));
    check(TextPath::Predict, r#"{"inputs": [["a"], ["b"]]}"#, &classifier(), &classes(2), &format!("[{row},{row}]"));
    let scores = [floats(&[3, 1], &[0.25, 0.75, 0.5])];
    let pair = r#"[{"score":0.5,"label":"LABEL_0"}]"#;
    check(TextPath::Predict, r#"{"inputs": ["q", "a"]}"#, &reranker(), &[floats(&[1, 1], &[0.5])], pair);
    let ranked = r#"[{"index":1,"score":0.75},{"index":2,"score":0.5},{"index":0,"score":0.25}]"#;
    check(TextPath::Rerank, r#"{"query": "q", "texts": ["a", "b", "c"]}"#, &reranker(), &scores, ranked);
    let repeated = r#"[{"index":1,"text":"b","score":0.75},{"index":2,"text":"c","score":0.5},{"index":0,"text":"a","score":0.25}]"#;
    let body = r#"{"query": "q", "texts": ["a", "b", "c"], "return_text": true}"#;
    check(TextPath::Rerank, body, &reranker(), &scores, repeated);
    let body = r#"{"query": "q", "documents": ["a", "b", "c"], "top_n": 2, "return_documents": true}"#;
    let want = r#"{"id":"1f","results":[{"index":1,"document":{"text":"b"},"relevance_score":0.75},{"index":2,"document":{"text":"c"},"relevance_score":0.5}],"meta":{"tokens":{"input_tokens":7}}}"#;
    check(TextPath::RerankDocuments, body, &reranker(), &scores, want);
    let want = r#"{"object":"list","data":[{"id":"a","object":"model","created":0,"owned_by":"deuteron"},{"id":"b\"","object":"model","created":0,"owned_by":"deuteron"}],"models":["a","b\""]}"#;
    assert_eq!(String::from_utf8(models_json(&["a", "b\""])).unwrap(), want);
}

#[test]
fn outputs_that_do_not_fit_are_the_models_fault() {
    let check = |path, body: &str, spec: &ModelSpec, outputs: &[Tensor], want: &str| {
        assert_eq!(answered(path, body, spec, outputs), want);
        let call = read(path, body).unwrap();
        let outcome = TextOutcome::Outputs(outputs.to_vec());
        let error = encode(&call, spec, &outcome, AnswerFacts { id: "", created: 0, tokens: None }).unwrap_err();
        assert_eq!(error.code(), Code::Internal);
    };
    let two = r#"{"inputs": ["a", "b"]}"#;
    let rows = "an output of the model does not have its rows";
    check(TextPath::Embed, two, &embedder(), &[floats(&[3], &[1.0; 3])], rows);
    check(TextPath::Embed, two, &embedder(), &[floats(&[2, 3], &[1.0; 3])], rows);
    let infinite = [floats(&[2, 3], &[1.0, 0.0, f32::NAN, 0.0, f32::INFINITY, 0.0])];
    check(TextPath::Embed, two, &embedder(), &infinite, "an output of the model has a number that is not finite");
    check(TextPath::Embed, two, &embedder(), &[], "model 'm' did not produce the output 'embedding'");
    let sizes = [integers(&[2, 1], &[5, 9]), floats(&[2, 2], &[0.5; 4]), integers(&[2, 1], &[2, 1])];
    check(TextPath::EmbedSparse, two, &sparse(), &sizes, "the outputs of model 'm' have different sizes");
    let few = [texts(&[1, 1], &["good"]), floats(&[1, 2], &[0.75, 0.25])];
    check(TextPath::Predict, r#"{"inputs": "a"}"#, &classifier(), &few, "model 'm' gave 1 labels and 2 scores");
}

#[test]
fn errors_have_teis_forms() {
    use base::error::Error;
    let check = |path, error: Error, status: u16, want: &str| {
        let reply = error_reply(path, &error);
        assert_eq!((reply.status, String::from_utf8(reply.body.concat()).unwrap()), (status, want.to_owned()));
    };
    check(TextPath::Embed, Error::invalid("no"), 422, r#"{"error":"no","error_type":"Validation"}"#);
    check(TextPath::Embed, Error::malformed_json("no"), 422, r#"{"error":"no","error_type":"Validation"}"#);
    let empty = "'inputs' cannot be empty";
    check(TextPath::Embed, Error::invalid(empty), 400, r#"{"error":"'inputs' cannot be empty","error_type":"Empty"}"#);
    check(TextPath::Predict, Error::internal("no"), 424, r#"{"error":"no","error_type":"Backend"}"#);
    check(TextPath::Predict, Error::new(Code::Exhausted, "no"), 429, r#"{"error":"no","error_type":"Overloaded"}"#);
    let overloaded = r#"{"error":"Model is overloaded","error_type":"Overloaded"}"#;
    let full = || Error::overloaded(Error::QUEUE_FULL).with_prefix("[request id: 7] ");
    check(TextPath::Embed, full(), 429, overloaded);
    check(TextPath::RerankDocuments, full(), 429, overloaded);
    let of_openai = r#"{"message":"Model is overloaded","code":429,"type":"Overloaded"}"#;
    check(TextPath::Embeddings, full(), 429, of_openai);
    check(TextPath::Embed, Error::overloaded("no"), 429, r#"{"error":"no","error_type":"Overloaded"}"#);
    check(TextPath::Embed, Error::new(Code::RateLimited, "no"), 429, r#"{"error":"no","error_type":"Overloaded"}"#);
    check(TextPath::Embed, Error::new(Code::Unauthenticated, "no"), 401, r#"{"error":"no","error_type":"Validation"}"#);
    let field = |error: Error, name: &str| {
        let reply = error_reply(TextPath::Embed, &error);
        reply.fields.into_iter().find(|(field, _)| *field == name).map(|(_, value)| value)
    };
    assert_eq!(field(full(), "Retry-After").as_deref(), Some(&b"1"[..]));
    let limited = Error::new(Code::RateLimited, "no").with_retry_after(std::time::Duration::from_millis(2_500));
    assert_eq!(field(limited, "Retry-After").as_deref(), Some(&b"3"[..]));
    assert_eq!(field(full(), "Content-Type").as_deref(), Some(&b"application/json"[..]));
    assert_eq!(field(Error::invalid("no"), "Retry-After"), None);
    check(TextPath::Predict, Error::unavailable("no"), 503, r#"{"error":"no","error_type":"Unhealthy"}"#);
    check(TextPath::Predict, Error::not_found("no"), 404, r#"{"error":"no","error_type":"Validation"}"#);
    check(TextPath::Embeddings, Error::invalid("no"), 422, r#"{"message":"no","code":422,"type":"Validation"}"#);
}
