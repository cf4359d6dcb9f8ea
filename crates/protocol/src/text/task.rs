//! The task of a model by its tensors, and the request of a call to it.

use base::error::Error;
use base::tensor::{Datatype, Shape, Tensor, strings};
use bytes::Bytes;
use smallvec::SmallVec;

use super::call::{TextRequest, TextTruncation};
use super::path::{TextPath, TextTask};
use crate::check::{self, AskedOutput, NamedTensor};
use crate::infer::{InferRequest, ResponsePlan, SequenceParameters};
use crate::limits::TEXT_IDS_MAX;
use model::parameters::Parameters;
use model::spec::steps::ShowsTokens;
use model::{ModelSpec, TensorSpec};

impl TextTask {
    /// The task of a model, by the names and datatypes of its tensors; `None` if it is no text model.
    pub fn of(spec: &ModelSpec) -> Option<Self> {
        let input = |name: &str| {
            let input = spec.inputs.iter().find(|input| input.name == name);
            input.filter(|input| input.datatype == Datatype::Bytes)
        };
        let output =
            |name: &str, datatype| spec.outputs.iter().any(|output| output.name == name && output.datatype == datatype);
        let is_known = |name: &str| ["text", "query", "prompt_name"].contains(&name);
        // Requests of the interfaces have rows, and nothing else.
        let is_served = spec.rows_max > 0 && !spec.is_decoupled && spec.sequence.is_none();
        let others = spec.inputs.iter().any(|input| !is_known(&input.name) && !input.is_optional);
        if !is_served || others || input("text").is_none() {
            return None;
        }
        if input("query").is_some() {
            return output(SCORE, Datatype::Fp32).then_some(Self::Rerank);
        }
        if output("embedding", Datatype::Fp32) {
            return Some(Self::Embed);
        }
        if output("index", Datatype::Int64) && output("value", Datatype::Fp32) && output("count", Datatype::Int64) {
            return Some(Self::SparseEmbed);
        }
        output(SCORE, Datatype::Fp32).then_some(Self::Classify)
    }

    /// Its name in TEI's description of a model.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Classify => "classifier",
            Self::Embed => "embedding",
            Self::Rerank => "reranker",
            Self::SparseEmbed => "sparse-embedding",
        }
    }
}

impl TextRequest {
    /// Returns true if a model answers the call: pairs of texts are for rerankers, and tokens are of a tokenizer.
    pub fn is_for(&self, spec: &ModelSpec) -> bool {
        let Some(task) = TextTask::of(spec) else { return false };
        if self.path.is_of_tokenizer() {
            return tokenizer(spec).is_some();
        }
        let is_pair = self.queries.as_ref().is_some_and(|queries| !queries.is_empty());
        let has_tokens = self.path != TextPath::EmbedAll || spec.output_index(TOKEN_VECTORS).is_some();
        has_tokens && self.path.takes(task) && (self.path != TextPath::Predict || is_pair == (task == TextTask::Rerank))
    }
}

/// The request of a call to a model.
///
/// # Errors
/// `InvalidArgument` if the model is of another task, or the call does not fit it.
pub fn request(call: &TextRequest, spec: &ModelSpec) -> Result<InferRequest, Error> {
    check_task(call, spec)?;
    let rows = call.texts.len();
    let mut inputs: SmallVec<[NamedTensor<'_>; 4]> = SmallVec::new();
    inputs.push(column("text", call.texts.iter().map(String::as_str)));
    if let Some(queries) = &call.queries {
        inputs.push(column("query", queries.iter().map(String::as_str)));
    }
    if let Some(name) = &call.prompt_name {
        if spec.input_index("prompt_name").is_none() {
            return Err(Error::invalid(format!("model '{}' has no prompts, but 'prompt_name' is '{name}'", spec.name)));
        }
        inputs.push(column("prompt_name", std::iter::repeat_n(name.as_str(), rows)));
    }
    if let Some(truncation) = call.truncation {
        match spec.input_index("truncation") {
            Some(_) => inputs.push(column("truncation", std::iter::repeat_n(truncation.name(), rows))),
            // Models cut off at the end by themselves.
            None if truncation == TextTruncation::Right => {}
            None => return Err(no_input(spec, "truncation", "texts are cut off as the model does by itself")),
        }
    }
    if let Some(ids) = &call.ids {
        if spec.input_index(TOKEN_IDS).is_none() {
            return Err(no_input(spec, TOKEN_IDS, "it takes no token ids: send the text"));
        }
        inputs.push(id_rows(ids)?);
    }
    let (inputs, rows) = check::check(spec, "", &mut inputs)?;
    let outputs = check::check_outputs(spec, "", &asked_outputs(call, spec), false)?;
    Ok(InferRequest {
        inputs,
        rows,
        priority: 0,
        timeout: Default::default(),
        sequence: SequenceParameters::default(),
        parameters: Parameters::default(),
        plan: ResponsePlan { outputs, ..ResponsePlan::default() },
    })
}

/// Checks that a model is of the task of a call, takes its rows, and has what it asks for.
fn check_task(call: &TextRequest, spec: &ModelSpec) -> Result<(), Error> {
    let has_tokens = call.path != TextPath::EmbedAll || spec.output_index(TOKEN_VECTORS).is_some();
    let task = TextTask::of(spec).filter(|task| call.path.takes(*task) && has_tokens);
    let Some(task) = task else {
        let wanted = call.path.wanted();
        return Err(Error::invalid(format!(
            "model '{}' does not answer {}: that takes {wanted}",
            spec.name,
            call.path.name()
        )));
    };
    let rows = call.texts.len();
    if rows > spec.rows_max as usize {
        return Err(Error::invalid(format!(
            "batch size {rows} > maximum allowed batch size {}: send fewer texts, or raise max_batch_size of model '{}'",
            spec.rows_max, spec.name
        )));
    }
    let is_pair = call.queries.as_ref().is_some_and(|queries| !queries.is_empty());
    if is_pair != (task == TextTask::Rerank) {
        let text = if is_pair {
            format!("model '{}' takes single texts, not pairs", spec.name)
        } else {
            format!("model '{}' takes pairs of texts: [\"query\", \"text\"]", spec.name)
        };
        return Err(Error::invalid(text));
    }
    if call.has_raw_scores
        && matches!(task, TextTask::Classify | TextTask::Rerank)
        && spec.output_index(RAW_SCORE).is_none()
    {
        return Err(Error::invalid(format!(
            "'raw_scores' is true, but model '{}' has no output '{RAW_SCORE}': its scores are those of its head",
            spec.name
        )));
    }
    Ok(())
}

/// The vectors of tokens, which models of hub folders give on request.
pub(super) const TOKEN_VECTORS: &str = "token_embedding";
/// The tokens that are not padding.
pub(super) const TOKEN_MASK: &str = "token_mask";
/// The vector before it is normalised, which models of hub folders give on request.
pub(super) const RAW_EMBEDDING: &str = "raw_embedding";
/// The score of a row, or those of its classes.
pub(super) const SCORE: &str = "score";
/// The network's numbers behind [`SCORE`], which models of hub folders give on request.
pub(super) const RAW_SCORE: &str = "raw_score";
/// The number of tokens of each row.
const TOKEN_COUNT: &str = "token_count";
/// The tokens of a row in place of its text.
const TOKEN_IDS: &str = "token_ids";

/// The outputs that the answer is made of.
fn asked_outputs<'a>(call: &TextRequest, spec: &'a ModelSpec) -> SmallVec<[AskedOutput<'a>; 4]> {
    let asked = |name: &'a str| AskedOutput { name, is_binary: false, is_base64: false, class_count: 0 };
    if call.path == TextPath::EmbedAll {
        let names = [TOKEN_VECTORS, TOKEN_MASK, TOKEN_COUNT].into_iter();
        return names.filter(|name| spec.output_index(name).is_some()).map(asked).collect();
    }
    let names: SmallVec<[&str; 3]> = match TextTask::of(spec) {
        Some(TextTask::Embed) => SmallVec::from_slice(&[vector_output(call, spec), TOKEN_COUNT]),
        Some(TextTask::Classify) => class_outputs(call).into_iter().chain([TOKEN_COUNT]).collect(),
        Some(TextTask::Rerank) => SmallVec::from_slice(&[rank_output(spec), TOKEN_COUNT]),
        Some(TextTask::SparseEmbed) | None => {
            return spec.usual_outputs().map(|output| asked(&output.name)).collect();
        }
    };
    let own = spec.outputs.iter().filter(|output| names.contains(&output.name.as_str()));
    own.map(|output| asked(&output.name)).collect()
}

/// The output with the vectors of a call.
pub(super) fn vector_output(call: &TextRequest, spec: &ModelSpec) -> &'static str {
    if call.has_raw_vectors && spec.output_index(RAW_EMBEDDING).is_some() { RAW_EMBEDDING } else { "embedding" }
}

/// The output with the scores of a reranker.
pub(super) fn rank_output(spec: &ModelSpec) -> &'static str {
    if spec.output_index(RAW_SCORE).is_some() { RAW_SCORE } else { SCORE }
}

/// The outputs with the scores and the labels of a classifier's call.
pub(super) const fn class_outputs(call: &TextRequest) -> [&'static str; 2] {
    if call.has_raw_scores { [RAW_SCORE, "raw_label"] } else { [SCORE, "label"] }
}

fn no_input(spec: &ModelSpec, name: &str, why: &str) -> Error {
    Error::invalid(format!("model '{}' has no input '{name}': {why}", spec.name))
}

/// The tokenizer of a model's steps.
pub fn tokenizer(spec: &ModelSpec) -> Option<&dyn ShowsTokens> {
    spec.steps.as_ref()?.list.tokenizer()
}

/// The number of tokens of all texts, if the model counts them.
pub fn token_count(spec: &ModelSpec, outputs: &[Tensor]) -> Option<u64> {
    Some(token_counts(spec, outputs)?.iter().sum())
}

/// The tokens of a request by the size of its texts, before they are counted: one for each four bytes, and one for each text; and
/// the token ids in place of texts.
pub fn token_estimate(spec: &ModelSpec, inputs: &[Tensor]) -> u64 {
    let of = |input: &TensorSpec, tensor: &Tensor| match (input.name.as_str(), input.datatype) {
        ("prompt_name" | "truncation", _) => 0,
        // Each text begins with its size, in four bytes.
        (_, Datatype::Bytes) => tensor.contents.len() / ESTIMATED_TOKEN_SIZE,
        (TOKEN_IDS, Datatype::Int64) => tensor.contents.len() / size_of::<i64>(),
        _ => 0,
    };
    spec.inputs.iter().zip(inputs).map(|(input, tensor)| of(input, tensor) as u64).sum()
}

/// Bytes of a token: that of BERT's vocabularies for English.
const ESTIMATED_TOKEN_SIZE: usize = 4;

/// The number of tokens of each text, if the model counts them.
pub fn token_counts(spec: &ModelSpec, outputs: &[Tensor]) -> Option<SmallVec<[u64; 32]>> {
    let tensor = outputs.get(spec.output_index(TOKEN_COUNT)?)?;
    if tensor.is_missing() {
        return None;
    }
    match tensor.datatype {
        Datatype::Int64 => {
            Some(tensor.contents.as_chunks().0.iter().map(|count| i64::from_le_bytes(*count).unsigned_abs()).collect())
        }
        Datatype::Int32 => {
            let counts = tensor.contents.as_chunks().0.iter();
            Some(counts.map(|count| u64::from(i32::from_le_bytes(*count).unsigned_abs())).collect())
        }
        _ => None,
    }
}

/// A tensor with the token ids of each row, -1 behind the last.
///
/// # Errors
/// `InvalidArgument` for more than [`TEXT_IDS_MAX`] with padding.
fn id_rows(ids: &[Vec<u32>]) -> Result<NamedTensor<'static>, Error> {
    let width = ids.iter().map(Vec::len).max().unwrap_or_default();
    if ids.len().saturating_mul(width) > TEXT_IDS_MAX {
        return Err(Error::invalid(format!(
            "{} lists with up to {width} token ids are more than {TEXT_IDS_MAX} with padding: send fewer at a time",
            ids.len()
        )));
    }
    let mut contents = Vec::with_capacity(ids.len().saturating_mul(width).saturating_mul(size_of::<i64>()));
    for row in ids {
        let padding = std::iter::repeat_n(-1, width.saturating_sub(row.len()));
        let padded = row.iter().map(|id| i64::from(*id)).chain(padding);
        padded.for_each(|id: i64| contents.extend_from_slice(&id.to_le_bytes()));
    }
    let size = |size| i64::try_from(size).unwrap_or(i64::MAX);
    let shape = Shape::from_slice(&[size(ids.len()), size(width)]);
    Ok(NamedTensor::new(TOKEN_IDS, Some(Datatype::Int64), shape, Bytes::from(contents)))
}

/// A tensor of one text in each row.
fn column<'a>(name: &'a str, texts: impl Iterator<Item = &'a str>) -> NamedTensor<'a> {
    let (mut contents, mut rows) = (Vec::new(), 0);
    for text in texts {
        strings::encode(text.as_bytes(), &mut contents);
        rows += 1;
    }
    NamedTensor::new(name, Some(Datatype::Bytes), Shape::from_slice(&[rows, 1]), Bytes::from(contents))
}

/// An output of the model by its name.
pub(super) fn output<'t>(spec: &ModelSpec, outputs: &'t [Tensor], name: &str) -> Result<&'t Tensor, Error> {
    let found = spec.output_index(name).and_then(|index| outputs.get(index)).filter(|tensor| !tensor.is_missing());
    found.ok_or_else(|| Error::internal(format!("model '{}' did not produce the output '{name}'", spec.name)))
}
