//! The task of a folder: from its pipeline, the class of its network, and the outputs of the ONNX file.

use base::error::Error;
use wire::placed::PlacedValue;

use crate::config_file::ConfigFile;
use crate::folder::HubFolder;
use crate::graph::{GraphTensor, HubGraph};
use crate::limits::HUB_LABELS_MAX;
use crate::sentence::{self, ModuleKind, Modules};

/// The task of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HubTask {
    /// A question and a context to the answer in it.
    AnswerQuestion,
    /// A text to scores of classes, or to one number.
    Classify,
    /// A text to a vector.
    Embed,
    /// An image to its best classes.
    ImageClassify,
    /// An image to a vector.
    ImageEmbed,
    /// A text to a vector of each token (ColBERT).
    LateEmbed,
    /// A query and a text to a score.
    Rerank,
    /// A text to the scores of tokens of the vocabulary (SPLADE).
    SparseEmbed,
    /// A text to entities.
    TokenClassify,
    /// A text and labels to the scores of the labels, by a network for entailment.
    ZeroShotClassify,
}

impl HubTask {
    /// Its name, for the log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AnswerQuestion => "question answering",
            Self::Classify => "text classification",
            Self::Embed => "text embedding",
            Self::ImageClassify => "image classification",
            Self::ImageEmbed => "image embedding",
            Self::LateEmbed => "late-interaction text embedding",
            Self::Rerank => "reranking",
            Self::SparseEmbed => "sparse text embedding",
            Self::TokenClassify => "token classification",
            Self::ZeroShotClassify => "zero-shot classification",
        }
    }
}

/// Determines the task.
///
/// # Errors
/// `Unsupported` with the member that says so if the network is of another kind.
pub fn task(
    folder: &HubFolder<'_>,
    modules: &Modules,
    config: &ConfigFile,
    graph: &HubGraph,
) -> Result<HubTask, Error> {
    let class = config.first_text("architectures")?.unwrap_or_default();
    if takes_images(folder, graph) {
        let is_classifier = class.ends_with("ForImageClassification");
        let is_other = class.contains("For") && !is_classifier;
        return match (is_classifier, is_other) {
            (true, _) => Ok(HubTask::ImageClassify),
            (false, true) => Err(not_served(config, class)),
            (false, false) => Ok(HubTask::ImageEmbed),
        };
    }
    let is_splade = modules.behind.iter().any(|module| module.kind == ModuleKind::SpladePooling);
    if modules.is_masked_lm || is_splade {
        return Ok(HubTask::SparseEmbed);
    }
    if modules.is_late {
        return Ok(HubTask::LateEmbed);
    }
    let is_cross_encoder = is_cross_encoder(folder, modules)?;
    let is_classifier = is_cross_encoder || class.ends_with("ForSequenceClassification");
    if modules.is_there && (!is_classifier || !modules.behind.is_empty()) {
        return Ok(HubTask::Embed);
    }
    if is_classifier {
        if !is_cross_encoder && entailment(config)?.is_some() {
            return Ok(HubTask::ZeroShotClassify);
        }
        let is_one = label_count(config)? == Some(1);
        let is_regression = config.text("problem_type")? == Some("regression");
        return Ok(if is_one && !is_regression { HubTask::Rerank } else { HubTask::Classify });
    }
    if class.ends_with("ForTokenClassification") {
        return Ok(HubTask::TokenClassify);
    }
    if class.ends_with("ForQuestionAnswering") {
        return Ok(HubTask::AnswerQuestion);
    }
    // A network for masked words is exported with its scores, or as an encoder without them.
    let vocabulary = config.count("vocab_size", usize::MAX)?;
    let is_scores = |output: &GraphTensor| {
        output.shape.len() == 3 && vocabulary.is_some() && HubGraph::last_dimension(output) == vocabulary
    };
    if class.ends_with("ForMaskedLM") && graph.outputs.iter().any(is_scores) {
        return Ok(HubTask::SparseEmbed);
    }
    let is_encoder = class.is_empty() || class.ends_with("Model") || class.ends_with("ForMaskedLM");
    if is_encoder { Ok(HubTask::Embed) } else { Err(not_served(config, class)) }
}

/// Returns true if sentence-transformers saved the folder as a cross encoder: releases from 5 write a `modules.json` for these too.
fn is_cross_encoder(folder: &HubFolder<'_>, modules: &Modules) -> Result<bool, Error> {
    if let Some(settings) = ConfigFile::read(folder, crate::SETTINGS)?
        && settings.text("model_type")? == Some("CrossEncoder")
    {
        return Ok(true);
    }
    let network = sentence::settings(folder, modules)?;
    network.map_or(Ok(false), |file| Ok(file.text("transformer_task")? == Some("sequence-classification")))
}

/// The class of a text that entails another one, and that of one that contradicts it, as transformers' pipeline finds them;
/// `None` if the network has other classes.
///
/// # Errors
/// `InvalidArgument` for a malformed member.
pub fn entailment(config: &ConfigFile) -> Result<Option<(usize, usize)>, Error> {
    let Some(labels) = config.table("id2label")? else { return Ok(None) };
    let entails = |label: &PlacedValue| match label {
        PlacedValue::String(text) => text.to_lowercase().starts_with("entail"),
        _ => false,
    };
    let Some(member) = labels.iter().find(|member| entails(&member.value.value)) else { return Ok(None) };
    let class: Option<usize> = member.name.parse().ok().filter(|class| *class < labels.len());
    let class = class.ok_or_else(|| config.wrong("id2label", "must have the indices of its labels as names"))?;
    let other = if class == 0 { labels.len() - 1 } else { 0 };
    Ok((other != class).then_some((class, other)))
}

/// The number of classes that the configuration states.
///
/// # Errors
/// `InvalidArgument` for more than [`HUB_LABELS_MAX`], or a malformed member.
pub fn label_count(config: &ConfigFile) -> Result<Option<usize>, Error> {
    let count = match config.table("id2label")? {
        Some(labels) => Some(labels.len()),
        None => config.count("num_labels", HUB_LABELS_MAX)?,
    };
    match count {
        Some(count) if count == 0 || count > HUB_LABELS_MAX => {
            Err(config.wrong("id2label", &format!("must have 1 to {HUB_LABELS_MAX} labels, but has {count}")))
        }
        count => Ok(count),
    }
}

fn takes_images(folder: &HubFolder<'_>, graph: &HubGraph) -> bool {
    folder.has("preprocessor_config.json") && graph.inputs.iter().any(|input| input.name == "pixel_values")
}

fn not_served(config: &ConfigFile, class: &str) -> Error {
    let known = "served are encoders (…Model, …ForMaskedLM), …ForSequenceClassification, …ForTokenClassification, \
                 …ForQuestionAnswering and …ForImageClassification";
    config.unsupported("architectures", &format!("is \"{class}\", which is not served from a folder; {known}"))
}
