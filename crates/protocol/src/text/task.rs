//! The task of a model by its tensors, and the request of a call to it.

use base::error::Error;
use base::tensor::{Datatype, Shape, Tensor, strings};
use bytes::Bytes;
use smallvec::SmallVec;

use super::call::{TextPath, TextRequest};
use crate::check::{self, NamedTensor};
use crate::infer::{InferRequest, ResponsePlan, SequenceParameters};
use model::ModelSpec;
use model::parameters::Parameters;

/// The work of a text model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextTask {
    /// A text to scores of classes, or to one number.
    Classify,
    /// A text to a vector.
    Embed,
    /// A query and a text to a score.
    Rerank,
    /// A text to numbers of a few dimensions.
    SparseEmbed,
}

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
            return output("score", Datatype::Fp32).then_some(Self::Rerank);
        }
        if output("embedding", Datatype::Fp32) {
            return Some(Self::Embed);
        }
        if output("index", Datatype::Int64) && output("value", Datatype::Fp32) && output("count", Datatype::Int64) {
            return Some(Self::SparseEmbed);
        }
        output("score", Datatype::Fp32).then_some(Self::Classify)
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

impl TextPath {
    /// Returns true if the path is for models of this task.
    pub const fn takes(self, task: TextTask) -> bool {
        match self {
            Self::Embed | Self::Embeddings | Self::Similarity => matches!(task, TextTask::Embed),
            Self::EmbedSparse => matches!(task, TextTask::SparseEmbed),
            Self::Predict => matches!(task, TextTask::Classify | TextTask::Rerank),
            Self::Rerank | Self::RerankDocuments => matches!(task, TextTask::Rerank),
        }
    }

    const fn wanted(self) -> &'static str {
        match self {
            Self::Embed | Self::Embeddings | Self::Similarity => {
                "an embedding model (input 'text' BYTES, output 'embedding' FP32)"
            }
            Self::EmbedSparse => "a sparse embedding model (input 'text' BYTES, outputs 'index', 'value', 'count')",
            Self::Predict => "a classifier (input 'text' BYTES, outputs 'label' and 'score') or a reranker",
            Self::Rerank | Self::RerankDocuments => "a reranker (inputs 'query' and 'text' BYTES, output 'score' FP32)",
        }
    }
}

impl TextRequest {
    /// Returns true if a model of this task answers the call: pairs of texts are for rerankers.
    pub fn is_for(&self, task: TextTask) -> bool {
        let is_pair = self.queries.as_ref().is_some_and(|queries| !queries.is_empty());
        self.path.takes(task) && (self.path != TextPath::Predict || is_pair == (task == TextTask::Rerank))
    }
}

/// The request of a call to a model.
///
/// # Errors
/// `InvalidArgument` if the model is of another task, or the call does not fit it.
pub fn request(call: &TextRequest, spec: &ModelSpec) -> Result<InferRequest, Error> {
    let task = TextTask::of(spec).filter(|task| call.path.takes(*task));
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
    let (inputs, rows) = check::check(spec, "", &mut inputs)?;
    let outputs = check::check_outputs(spec, "", &[], false)?;
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
