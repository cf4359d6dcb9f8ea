//! The outcome of a call to the JSON of its path.

use std::borrow::Cow;

use base::error::Error;
use base::tensor::Tensor;
use model::ModelSpec;
use model::spec::steps::ShownToken;
use wire::base64;
use wire::json::writer;

use super::call::TextRequest;
use super::path::TextPath;
use super::path::TextTask;
use super::values::{self, Vectors};

/// The facts that answers have besides the model's outputs.
#[derive(Clone, Copy, Debug)]
pub struct AnswerFacts<'a> {
    /// An id of the request.
    pub id: &'a str,
    /// Seconds since 1970.
    pub created: u64,
    /// The tokens of its texts; `None` if the model does not count them.
    pub tokens: Option<u64>,
}

/// The outcome of a call.
#[derive(Clone, Debug)]
pub enum TextOutcome {
    /// The outputs of a model.
    Outputs(Vec<Tensor>),
    /// The texts of token ids.
    Texts(Vec<String>),
    /// The tokens of texts.
    Tokens(Vec<Vec<ShownToken>>),
}

impl TextOutcome {
    /// The outputs of a model.
    ///
    /// # Errors
    /// `Internal` if the call was for its tokenizer.
    pub fn outputs(&self) -> Result<&[Tensor], Error> {
        match self {
            Self::Outputs(outputs) => Ok(outputs),
            Self::Texts(_) | Self::Tokens(_) => Err(Error::internal("the call was not answered by a model")),
        }
    }
}

/// The answer to a call.
///
/// # Errors
/// `Internal` if an output is not what the task has; `InvalidArgument` for more dimensions than a vector has.
pub fn encode(
    call: &TextRequest,
    spec: &ModelSpec,
    outcome: &TextOutcome,
    facts: AnswerFacts<'_>,
) -> Result<Vec<u8>, Error> {
    let mut json = Vec::new();
    let outputs = match outcome {
        TextOutcome::Outputs(outputs) => outputs,
        TextOutcome::Texts(texts) => {
            list(texts, &mut json, |text, json| writer::string(text, json));
            return Ok(json);
        }
        TextOutcome::Tokens(rows) => {
            list(rows, &mut json, |tokens, json| list(tokens, json, write_token));
            return Ok(json);
        }
    };
    match (call.path, TextTask::of(spec)) {
        (TextPath::EmbedSparse, _) | (TextPath::Own, Some(TextTask::SparseEmbed)) => {
            let rows = values::sparse_rows(call, spec, outputs)?;
            list(&rows, &mut json, |row, json| list(row, json, write_weight));
        }
        (TextPath::Predict, _) | (TextPath::Own, Some(TextTask::Classify)) => {
            predictions(call, &values::class_rows(call, spec, outputs)?, &mut json);
        }
        (TextPath::Embed | TextPath::Own, _) => {
            list(&vectors(call, spec, outputs)?, &mut json, |vector, json| write_floats(vector, json));
        }
        (TextPath::EmbedAll, _) => {
            let rows = values::token_vectors(call, spec, outputs)?;
            list(&rows, &mut json, |row, json| list(row, json, |vector, json| write_floats(vector, json)));
        }
        (TextPath::Embeddings, _) => embeddings(call, &vectors(call, spec, outputs)?, spec, facts, &mut json),
        (TextPath::Similarity, _) => {
            let vectors = Vectors::read(call, spec, outputs)?;
            write_floats(&vectors.similarities(call.texts.len())?, &mut json);
        }
        (TextPath::Classify, _) => classes(call, spec, &values::class_rows(call, spec, outputs)?, facts, &mut json)?,
        (TextPath::Rerank | TextPath::RerankDocuments, _) => {
            ranks(call, &values::ranking(call, spec, outputs)?, facts, &mut json);
        }
        (TextPath::Decode | TextPath::Tokenize | TextPath::Vertex, _) => {
            return Err(Error::internal("the answer of the path is not made of one model's outputs"));
        }
    }
    Ok(json)
}

/// The models of a server in the form of `/v1/models`: `names` of those that are ready. OpenAI's clients read `data`, and
/// those of KServe V1 `models`.
pub fn models_json(names: &[&str]) -> Vec<u8> {
    let mut json = b"{\"object\":\"list\",\"data\":".to_vec();
    list(names, &mut json, |name, json| {
        json.extend_from_slice(b"{\"id\":");
        writer::string(name, json);
        json.extend_from_slice(b",\"object\":\"model\",\"created\":0,\"owned_by\":\"deuteron\"}");
    });
    json.extend_from_slice(b",\"models\":");
    list(names, &mut json, |name, json| writer::string(name, json));
    json.push(b'}');
    json
}

/// The vectors of all rows.
fn vectors(call: &TextRequest, spec: &ModelSpec, outputs: &[Tensor]) -> Result<Vec<Vec<f32>>, Error> {
    let vectors = Vectors::read(call, spec, outputs)?;
    (0..call.texts.len()).map(|row| vectors.row(row).map(<[f32]>::to_vec)).collect()
}

fn embeddings(call: &TextRequest, vectors: &[Vec<f32>], spec: &ModelSpec, facts: AnswerFacts<'_>, json: &mut Vec<u8>) {
    json.extend_from_slice(b"{\"object\":\"list\",\"data\":");
    let rows: Vec<_> = vectors.iter().enumerate().collect();
    list(&rows, json, |(row, vector), json| {
        json.extend_from_slice(b"{\"object\":\"embedding\",\"embedding\":");
        if call.is_base64 {
            let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
            writer::string(&base64::encode_padded(&bytes), json);
        } else {
            write_floats(vector, json);
        }
        json.extend_from_slice(b",\"index\":");
        writer::integer(*row, json);
        json.push(b'}');
    });
    json.extend_from_slice(b",\"model\":");
    writer::string(call.model.as_deref().unwrap_or(&spec.name), json);
    write_usage(facts, json);
}

/// Ends an answer of OpenAI's with the tokens of the call.
fn write_usage(facts: AnswerFacts<'_>, json: &mut Vec<u8>) {
    let tokens = facts.tokens.unwrap_or_default();
    json.extend_from_slice(format!(",\"usage\":{{\"prompt_tokens\":{tokens},\"total_tokens\":{tokens}}}}}").as_bytes());
}

fn write_token(token: &ShownToken, json: &mut Vec<u8>) {
    json.extend_from_slice(b"{\"id\":");
    writer::integer(token.id, json);
    json.extend_from_slice(b",\"text\":");
    writer::string(&token.text, json);
    json.extend_from_slice(b",\"special\":");
    writer::boolean(token.is_special, json);
    let place = |place: Option<usize>| place.map_or_else(|| "null".to_owned(), |place| place.to_string());
    let (start, stop) = (place(token.span.map(|(start, _)| start)), place(token.span.map(|(_, stop)| stop)));
    json.extend_from_slice(format!(",\"start\":{start},\"stop\":{stop}}}").as_bytes());
}

fn write_weight((index, value): &(i64, f32), json: &mut Vec<u8>) {
    json.extend_from_slice(b"{\"index\":");
    writer::integer(*index, json);
    json.extend_from_slice(b",\"value\":");
    writer::float(*value, json);
    json.push(b'}');
}

fn predictions(call: &TextRequest, rows: &[Vec<(f32, Cow<'_, str>)>], json: &mut Vec<u8>) {
    let prediction = |(score, label): &(f32, Cow<'_, str>), json: &mut Vec<u8>| {
        json.extend_from_slice(b"{\"score\":");
        writer::float(*score, json);
        json.extend_from_slice(b",\"label\":");
        writer::string(label, json);
        json.push(b'}');
    };
    match rows.first().filter(|_| call.is_single) {
        Some(row) => list(row, json, prediction),
        None => list(rows, json, |row, json| list(row, json, prediction)),
    }
}

/// The classes of texts in the form of vLLM.
fn classes(
    call: &TextRequest,
    spec: &ModelSpec,
    rows: &[Vec<(f32, Cow<'_, str>)>],
    facts: AnswerFacts<'_>,
    json: &mut Vec<u8>,
) -> Result<(), Error> {
    let chosen = values::class_probabilities(spec, rows)?;
    json.extend_from_slice(b"{\"id\":");
    writer::string(&format!("classify-{}", facts.id), json);
    json.extend_from_slice(format!(",\"object\":\"list\",\"created\":{},\"model\":", facts.created).as_bytes());
    writer::string(call.model.as_deref().unwrap_or(&spec.name), json);
    json.extend_from_slice(b",\"data\":");
    let rows: Vec<_> = rows.iter().zip(&chosen).enumerate().collect();
    list(&rows, json, |(index, (row, scores)), json| {
        // Of equal ones the first.
        let best = row.iter().rev().max_by(|(one, _), (other, _)| one.total_cmp(other));
        json.extend_from_slice(format!("{{\"index\":{index},\"label\":").as_bytes());
        writer::string(best.map_or("", |(_, label)| label.as_ref()), json);
        json.extend_from_slice(b",\"probs\":");
        write_floats(scores, json);
        json.extend_from_slice(format!(",\"num_classes\":{}}}", scores.len()).as_bytes());
    });
    write_usage(facts, json);
    Ok(())
}

/// Writes the texts of a request with their scores.
fn ranks(call: &TextRequest, order: &[(usize, f32)], facts: AnswerFacts<'_>, json: &mut Vec<u8>) {
    if call.has_documents {
        json.extend_from_slice(b"{\"id\":");
        writer::string(facts.id, json);
        json.extend_from_slice(b",\"results\":");
    }
    let member = if call.has_documents { "relevance_score" } else { "score" };
    list(order, json, |(index, score), json| {
        json.extend_from_slice(b"{\"index\":");
        writer::integer(*index, json);
        if let Some(text) = call.texts.get(*index).filter(|_| call.returns_texts) {
            json.extend_from_slice(if call.has_documents { b",\"document\":{\"text\":" } else { b",\"text\":" });
            writer::string(text, json);
            json.extend_from_slice(if call.has_documents { b"}" } else { b"" });
        }
        json.extend_from_slice(format!(",\"{member}\":").as_bytes());
        writer::float(*score, json);
        json.push(b'}');
    });
    if call.has_documents {
        let tokens = facts.tokens.unwrap_or_default();
        json.extend_from_slice(format!(",\"meta\":{{\"tokens\":{{\"input_tokens\":{tokens}}}}}}}").as_bytes());
    }
}

fn list<T>(elements: &[T], json: &mut Vec<u8>, mut write: impl FnMut(&T, &mut Vec<u8>)) {
    json.push(b'[');
    for (index, element) in elements.iter().enumerate() {
        writer::comma(index, json);
        write(element, json);
    }
    json.push(b']');
}

fn write_floats(values: &[f32], json: &mut Vec<u8>) {
    list(values, json, |value, json| writer::float(*value, json));
}
