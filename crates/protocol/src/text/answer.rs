//! The outputs of a model to the answer of a path.

use base::error::Error;
use base::tensor::strings::Strings;
use base::tensor::{Datatype, Tensor};
use model::ModelSpec;
use wire::json::writer;

use super::call::{TextPath, TextRequest};
use super::task::output;

/// The facts that answers have besides the model's outputs.
#[derive(Clone, Copy, Debug)]
pub struct AnswerFacts<'a> {
    /// An id of the request.
    pub id: &'a str,
    /// The tokens of its texts; `None` if the model does not count them.
    pub tokens: Option<u64>,
}

/// The answer to a call.
///
/// # Errors
/// `Internal` if an output is not what the task has; `InvalidArgument` for more dimensions than a vector has.
pub fn encode(
    call: &TextRequest,
    spec: &ModelSpec,
    outputs: &[Tensor],
    facts: AnswerFacts<'_>,
) -> Result<Vec<u8>, Error> {
    let rows = call.texts.len();
    let mut json = Vec::new();
    match call.path {
        TextPath::Embed => {
            let vectors = Vectors::read(call, spec, outputs)?;
            list(rows, &mut json, |row, json| vectors.write(row, json))?;
        }
        TextPath::Embeddings => embeddings(call, &Vectors::read(call, spec, outputs)?, spec, facts, &mut json)?,
        TextPath::Similarity => {
            let vectors = Vectors::read(call, spec, outputs)?;
            let source = vectors.row(0)?;
            list(rows.saturating_sub(1), &mut json, |row, json| {
                writer::float(cosine(source, vectors.row(row + 1)?), json);
                Ok(())
            })?;
        }
        TextPath::EmbedSparse => sparse(spec, outputs, rows, &mut json)?,
        TextPath::Predict => predictions(call, spec, outputs, &mut json)?,
        TextPath::Rerank | TextPath::RerankDocuments => {
            ranks(call, &floats(output(spec, outputs, "score")?, rows)?, facts, &mut json)?;
        }
    }
    Ok(json)
}

/// The models of a server in the form of `/v1/models`: `names` of those that are ready.
pub fn models_json<'a>(names: impl Iterator<Item = &'a str>) -> Vec<u8> {
    let mut json = b"{\"object\":\"list\",\"data\":[".to_vec();
    for (index, name) in names.enumerate() {
        writer::comma(index, &mut json);
        json.extend_from_slice(b"{\"id\":");
        writer::string(name, &mut json);
        json.extend_from_slice(b",\"object\":\"model\",\"created\":0,\"owned_by\":\"deuteron\"}");
    }
    json.extend_from_slice(b"]}");
    json
}

/// The vectors of a request: the first dimensions of each, if it asks for fewer than the model has.
struct Vectors {
    values: Vec<f32>,
    size: usize,
}

impl Vectors {
    fn read(call: &TextRequest, spec: &ModelSpec, outputs: &[Tensor]) -> Result<Self, Error> {
        let (tensor, rows) = (output(spec, outputs, "embedding")?, call.texts.len());
        let values = floats(tensor, rows)?;
        let size = values.len().checked_div(rows).unwrap_or_default();
        match call.dimensions {
            None => Ok(Self { values, size }),
            Some(dimensions) if dimensions > size => Err(Error::invalid(format!(
                "'dimensions' is {dimensions}, but the vectors of model '{}' have {size}",
                spec.name
            ))),
            // The first dimensions of a vector of length 1 are shorter, and clients expect length 1 again.
            Some(dimensions) => {
                let first = |row: &[f32]| normalised(row.get(..dimensions).unwrap_or_default());
                Ok(Self { values: values.chunks(size.max(1)).flat_map(first).collect(), size: dimensions })
            }
        }
    }

    fn row(&self, row: usize) -> Result<&[f32], Error> {
        let begin = row.checked_mul(self.size);
        let part = begin.and_then(|begin| self.values.get(begin..begin.checked_add(self.size)?));
        part.ok_or_else(|| Error::internal("the model gave fewer vectors than texts"))
    }

    fn write(&self, row: usize, json: &mut Vec<u8>) -> Result<(), Error> {
        write_floats(self.row(row)?, json);
        Ok(())
    }
}

fn embeddings(
    call: &TextRequest,
    vectors: &Vectors,
    spec: &ModelSpec,
    facts: AnswerFacts<'_>,
    json: &mut Vec<u8>,
) -> Result<(), Error> {
    json.extend_from_slice(b"{\"object\":\"list\",\"data\":");
    list(call.texts.len(), json, |row, json| {
        json.extend_from_slice(b"{\"object\":\"embedding\",\"embedding\":");
        if call.is_base64 {
            let bytes: Vec<u8> = vectors.row(row)?.iter().flat_map(|value| value.to_le_bytes()).collect();
            writer::string(&base64(&bytes), json);
        } else {
            vectors.write(row, json)?;
        }
        json.extend_from_slice(b",\"index\":");
        writer::integer(row, json);
        json.push(b'}');
        Ok(())
    })?;
    json.extend_from_slice(b",\"model\":");
    writer::string(call.model.as_deref().unwrap_or(&spec.name), json);
    let tokens = facts.tokens.unwrap_or_default();
    json.extend_from_slice(format!(",\"usage\":{{\"prompt_tokens\":{tokens},\"total_tokens\":{tokens}}}}}").as_bytes());
    Ok(())
}

fn sparse(spec: &ModelSpec, outputs: &[Tensor], rows: usize, json: &mut Vec<u8>) -> Result<(), Error> {
    let values = floats(output(spec, outputs, "value")?, rows)?;
    let (indices, counts) = (integers(output(spec, outputs, "index")?)?, integers(output(spec, outputs, "count")?)?);
    let width = values.len().checked_div(rows).unwrap_or_default();
    if indices.len() != values.len() || counts.len() != rows {
        return Err(Error::internal(format!("the outputs of model '{}' have different sizes", spec.name)));
    }
    list(rows, json, |row, json| {
        let count = counts.get(row).and_then(|count| usize::try_from(*count).ok()).unwrap_or_default().min(width);
        let own = indices.iter().zip(&values).skip(row * width).take(count);
        json.push(b'[');
        for (place, (index, value)) in own.enumerate() {
            writer::comma(place, json);
            json.extend_from_slice(b"{\"index\":");
            writer::integer(*index, json);
            json.extend_from_slice(b",\"value\":");
            writer::float(*value, json);
            json.push(b'}');
        }
        json.push(b']');
        Ok(())
    })
}

fn predictions(call: &TextRequest, spec: &ModelSpec, outputs: &[Tensor], json: &mut Vec<u8>) -> Result<(), Error> {
    let rows = call.texts.len();
    let scores = floats(output(spec, outputs, "score")?, rows)?;
    let classes = scores.len().checked_div(rows).unwrap_or_default();
    let labels = match spec.output_index("label") {
        Some(_) => texts(output(spec, outputs, "label")?)?,
        // The name that transformers gives to the only class of a model without names.
        None => vec!["LABEL_0"; scores.len()],
    };
    if labels.len() != scores.len() {
        return Err(Error::internal(format!(
            "model '{}' gave {} labels and {} scores",
            spec.name,
            labels.len(),
            scores.len()
        )));
    }
    let row = |row: usize, json: &mut Vec<u8>| {
        json.push(b'[');
        for (place, (label, score)) in labels.iter().zip(&scores).skip(row * classes).take(classes).enumerate() {
            writer::comma(place, json);
            json.extend_from_slice(b"{\"score\":");
            writer::float(*score, json);
            json.extend_from_slice(b",\"label\":");
            writer::string(label, json);
            json.push(b'}');
        }
        json.push(b']');
        Ok(())
    };
    if call.is_single { row(0, json) } else { list(rows, json, row) }
}

/// Writes the texts of a request with their scores, the highest first.
fn ranks(call: &TextRequest, scores: &[f32], facts: AnswerFacts<'_>, json: &mut Vec<u8>) -> Result<(), Error> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    let score = |index: usize| scores.get(index).copied().unwrap_or_default();
    order.sort_by(|one, other| score(*other).total_cmp(&score(*one)));
    order.truncate(call.top_n.unwrap_or(usize::MAX));
    if call.has_documents {
        json.extend_from_slice(b"{\"id\":");
        writer::string(facts.id, json);
        json.extend_from_slice(b",\"results\":");
    }
    let member = if call.has_documents { "relevance_score" } else { "score" };
    list(order.len(), json, |place, json| {
        let index = order.get(place).copied().unwrap_or_default();
        json.extend_from_slice(b"{\"index\":");
        writer::integer(index, json);
        if let Some(text) = call.texts.get(index).filter(|_| call.returns_texts) {
            json.extend_from_slice(if call.has_documents { b",\"document\":{\"text\":" } else { b",\"text\":" });
            writer::string(text, json);
            json.extend_from_slice(if call.has_documents { b"}" } else { b"" });
        }
        json.extend_from_slice(format!(",\"{member}\":").as_bytes());
        writer::float(score(index), json);
        json.push(b'}');
        Ok(())
    })?;
    if call.has_documents {
        let tokens = facts.tokens.unwrap_or_default();
        json.extend_from_slice(format!(",\"meta\":{{\"tokens\":{{\"input_tokens\":{tokens}}}}}}}").as_bytes());
    }
    Ok(())
}

fn list(
    count: usize,
    json: &mut Vec<u8>,
    mut element: impl FnMut(usize, &mut Vec<u8>) -> Result<(), Error>,
) -> Result<(), Error> {
    json.push(b'[');
    for index in 0..count {
        writer::comma(index, json);
        element(index, json)?;
    }
    json.push(b']');
    Ok(())
}

fn write_floats(values: &[f32], json: &mut Vec<u8>) {
    json.push(b'[');
    for (index, value) in values.iter().enumerate() {
        writer::comma(index, json);
        writer::float(*value, json);
    }
    json.push(b']');
}

/// The elements of an FP32 tensor with the same number for each row.
fn floats(tensor: &Tensor, rows: usize) -> Result<Vec<f32>, Error> {
    let elements = tensor.contents.as_chunks().0.iter();
    let values: Vec<f32> = elements.map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let has_rows = rows > 0 && values.len().is_multiple_of(rows);
    if tensor.datatype != Datatype::Fp32 || !tensor.has_its_size() || !has_rows {
        return Err(Error::internal("an output of the model does not have its rows"));
    }
    // JSON has no numbers for them.
    if values.iter().any(|value| !value.is_finite()) {
        return Err(Error::internal("an output of the model has a number that is not finite"));
    }
    Ok(values)
}

fn integers(tensor: &Tensor) -> Result<Vec<i64>, Error> {
    match tensor.datatype == Datatype::Int64 && tensor.has_its_size() {
        true => Ok(tensor.contents.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()),
        false => Err(Error::internal("an output of the model does not have its size")),
    }
}

fn texts(tensor: &Tensor) -> Result<Vec<&str>, Error> {
    let wrong = || Error::internal("the labels of the model are not texts");
    let read = Strings::new(&tensor.contents).map(|text| std::str::from_utf8(text.ok()?).ok());
    read.collect::<Option<Vec<_>>>().ok_or_else(wrong)
}

fn normalised(values: &[f32]) -> Vec<f32> {
    let length = values.iter().map(|value| value * value).sum::<f32>().sqrt().max(LENGTH_MIN);
    values.iter().map(|value| value / length).collect()
}

/// The length that a vector of zeros counts as, as in torch's `normalize`.
const LENGTH_MIN: f32 = 1e-12;

fn cosine(one: &[f32], other: &[f32]) -> f32 {
    let product = |one: &[f32], other: &[f32]| one.iter().zip(other).map(|(one, other)| one * other).sum::<f32>();
    product(one, other) / (product(one, one).sqrt() * product(other, other).sqrt()).max(LENGTH_MIN)
}

/// RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |index: usize| u32::from(group.get(index).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let digit = DIGITS.get((bits >> (18 - 6 * place) & 63) as usize).copied().unwrap_or_default();
            text.push(if place <= group.len() { char::from(digit) } else { '=' });
        }
    }
    text
}
