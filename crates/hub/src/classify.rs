//! Classifiers of texts and of tokens, and rerankers.

use base::error::Error;
use base::tensor::Datatype;

use crate::config_file::ConfigFile;
use crate::folder::HubFolder;
use crate::graph::HubGraph;
use crate::kind::{HubTask, label_count};
use crate::sentence::Modules;
use crate::texts::TokenizeText;
use crate::write::{self, IoText, StepText, StepsText};
use crate::{CONFIG, Derived, SETTINGS};

/// Derives the model.
///
/// # Errors
/// As [`crate::derive`].
pub fn derive(
    folder: &HubFolder<'_>,
    modules: &Modules,
    config: &ConfigFile,
    graph: &HubGraph,
    task: HubTask,
) -> Result<Derived, Error> {
    match task {
        HubTask::Rerank => rerank(folder, modules, config, graph),
        HubTask::TokenClassify => tokens(folder, modules, config, graph),
        _ => texts(folder, modules, config, graph),
    }
}

/// The labels of a classifier, and their count.
pub struct Classes {
    /// The count; `None` if neither the configuration nor the graph states it.
    pub count: Option<usize>,
    /// The names as a parameter of a step, if there are any.
    parameter: Option<(&'static str, String)>,
}

impl Classes {
    /// Reads `id2label`, which must fit the output of the graph.
    ///
    /// # Errors
    /// `InvalidArgument` if it does not.
    pub fn read(config: &ConfigFile, graph: &HubGraph, in_graph: Option<usize>) -> Result<Self, Error> {
        let stated = label_count(config)?;
        if let (Some(stated), Some(in_graph)) = (stated, in_graph)
            && stated != in_graph
        {
            let file = &graph.file;
            return Err(config.wrong("id2label", &format!("has {stated} labels, but {file} gives {in_graph} scores")));
        }
        let count = stated.or(in_graph);
        let parameter = match (config.value("id2label"), count) {
            (Some(_), _) => Some(("labels_file", write::quoted(CONFIG))),
            (None, Some(count)) if count <= DEFAULT_LABELS_MAX => {
                // The names that transformers gives to classes without one.
                let names: Vec<_> = (0..count).map(|index| format!("\"LABEL_{index}\"")).collect();
                Some(("labels", format!("[{}]", names.join(", "))))
            }
            _ => None,
        };
        Ok(Self { count, parameter })
    }

    /// Adds the names to a step.
    ///
    /// # Errors
    /// `InvalidArgument` if there are no names.
    pub fn name(&self, step: StepText, config: &ConfigFile) -> Result<StepText, Error> {
        match &self.parameter {
            Some((name, value)) => Ok(step.raw(name, value)),
            None => Err(config.wrong("id2label", "is missing: it has the names of the classes")),
        }
    }
}

/// Classes without names that get some.
const DEFAULT_LABELS_MAX: usize = 1024;

/// The function from a classifier's numbers to scores, as transformers' pipeline chooses it.
fn activation(config: &ConfigFile, count: Option<usize>) -> Result<&'static str, Error> {
    match config.text("problem_type")? {
        Some("regression") => Ok("none"),
        Some("multi_label_classification") => Ok("sigmoid"),
        Some("single_label_classification") => Ok("softmax"),
        None if count == Some(1) => Ok("sigmoid"),
        None => Ok("softmax"),
        Some(other) => Err(config.wrong(
            "problem_type",
            &format!("is \"{other}\": must be single_label_classification, multi_label_classification or regression"),
        )),
    }
}

fn texts(folder: &HubFolder<'_>, modules: &Modules, config: &ConfigFile, graph: &HubGraph) -> Result<Derived, Error> {
    let logits = graph.output(&["logits"], 2, |_| true)?;
    let classes = Classes::read(config, graph, HubGraph::last_dimension(logits))?;
    let activation = activation(config, classes.count)?;
    let mut steps = StepsText::default();
    let ports = [("text", "text"), ("truncation", "truncation")];
    let tokens = TokenizeText::new(folder, modules, config, graph, &ports)?.also("length", TOKEN_COUNT);
    let count = token_count(&tokens);
    steps.push(tokens.into_step());
    steps.push_model();
    let inputs = [IoText::scalar("text", "STRING"), IoText::scalar("truncation", "STRING").optional()];
    let is_number = classes.count == Some(1);
    let mut outputs = Vec::new();
    for (label, score, activation) in [("label", "score", activation), (RAW_LABEL, RAW_SCORE, "none")] {
        let head = StepText::new("head").with("input", &logits.name);
        if is_number {
            steps.push(head.ports("outputs", &[("score", score)]).with("activation", activation));
            outputs.push(IoText::scalar(score, "FP32"));
        } else {
            let all = classes.count.unwrap_or(crate::limits::HUB_LABELS_MAX);
            let head = head.ports("outputs", &[("labels", label), ("scores", score)]).with("activation", activation);
            steps.push(classes.name(head.raw("top_k", &all.to_string()), config)?);
            outputs.push(IoText::list(label, "STRING", classes.count));
            outputs.push(IoText::list(score, "FP32", classes.count));
        }
    }
    outputs.push(count);
    let raw = if is_number { &[RAW_SCORE, TOKEN_COUNT][..] } else { &[RAW_LABEL, RAW_SCORE, TOKEN_COUNT] };
    let config = write::config(&graph.file, &inputs, &outputs) + &write::on_request(raw);
    Ok(Derived { task: HubTask::Classify, config, steps: steps.into_text() })
}

fn rerank(folder: &HubFolder<'_>, modules: &Modules, config: &ConfigFile, graph: &HubGraph) -> Result<Derived, Error> {
    let logits = graph.output(&["logits"], 2, |_| true)?;
    Classes::read(config, graph, HubGraph::last_dimension(logits))?;
    let mut steps = StepsText::default();
    let ports = [("text", "query"), ("pair", "text"), ("truncation", "truncation")];
    let tokens = TokenizeText::new(folder, modules, config, graph, &ports)?.also("length", TOKEN_COUNT);
    let count = token_count(&tokens);
    steps.push(tokens.into_step());
    steps.push_model();
    for (score, activation) in [("score", score_activation(folder, config)?), (RAW_SCORE, "none")] {
        let head = StepText::new("head").with("input", &logits.name).ports("outputs", &[("score", score)]);
        steps.push(head.with("activation", activation));
    }
    let cut = IoText::scalar("truncation", "STRING").optional();
    let inputs = [IoText::scalar("query", "STRING"), IoText::scalar("text", "STRING"), cut];
    let outputs = [IoText::scalar("score", "FP32"), IoText::scalar(RAW_SCORE, "FP32"), count];
    let config = write::config(&graph.file, &inputs, &outputs) + &write::on_request(&[RAW_SCORE, TOKEN_COUNT]);
    Ok(Derived { task: HubTask::Rerank, config, steps: steps.into_text() })
}

/// The network's number behind `score`.
const RAW_SCORE: &str = "raw_score";
/// The labels of several such numbers, the highest first.
const RAW_LABEL: &str = "raw_label";
/// The output with the number of tokens.
const TOKEN_COUNT: &str = "token_count";

fn token_count(tokens: &TokenizeText) -> IoText {
    IoText::scalar(TOKEN_COUNT, if tokens.datatype == Datatype::Int32 { "INT32" } else { "INT64" })
}

/// The function of a cross encoder from its number to a score: sentence-transformers keeps the name of a class of torch at one of
/// three places, and takes the sigmoid without one.
fn score_activation(folder: &HubFolder<'_>, config: &ConfigFile) -> Result<&'static str, Error> {
    let own = ConfigFile::read(folder, SETTINGS)?;
    let of_own = match &own {
        Some(own) => own.text("activation_fn")?,
        None => None,
    };
    let in_config = config.table("sentence_transformers")?.and_then(|members| {
        let found = members.iter().find(|member| member.name == "activation_fn");
        found.and_then(|member| match &member.value.value {
            wire::placed::PlacedValue::String(text) => Some(text.as_str()),
            _ => None,
        })
    });
    let early = config.text("sbert_ce_default_activation_function")?;
    let Some(class) = of_own.or(in_config).or(early) else { return Ok("sigmoid") };
    match class.rsplit('.').next().unwrap_or_default() {
        "Sigmoid" => Ok("sigmoid"),
        "Identity" => Ok("none"),
        _ => {
            Err(config
                .unsupported("activation_fn", &format!("is \"{class}\": known are Sigmoid and Identity of torch")))
        }
    }
}

fn tokens(folder: &HubFolder<'_>, modules: &Modules, config: &ConfigFile, graph: &HubGraph) -> Result<Derived, Error> {
    let logits = graph.output(&["logits"], 3, |_| true)?;
    let classes = Classes::read(config, graph, HubGraph::last_dimension(logits))?;
    let tokens = TokenizeText::new(folder, modules, config, graph, &[("text", "text")])?;
    let mask = tokens.mask.clone();
    let mut steps = StepsText::default();
    steps.push(tokens.also("offsets", "offsets").also("special_mask", "special_mask").into_step());
    steps.push_model();
    let inputs = [
        ("logits", logits.name.as_str()),
        ("offsets", "offsets"),
        ("text", "text"),
        ("special_mask", "special_mask"),
        ("mask", &mask),
    ];
    let outputs = [
        ("labels", "label"),
        ("scores", "score"),
        ("words", "word"),
        ("starts", "start"),
        ("ends", "end"),
        ("counts", "count"),
    ];
    let spans = StepText::new("spans").ports("inputs", &inputs).ports("outputs", &outputs).with("strategy", "simple");
    steps.push(classes.name(spans, config)?);
    let inputs = [IoText::scalar("text", "STRING")];
    let outputs = [
        IoText::list("label", "STRING", None),
        IoText::list("score", "FP32", None),
        IoText::list("word", "STRING", None),
        IoText::list("start", "INT64", None),
        IoText::list("end", "INT64", None),
        IoText::scalar("count", "INT64"),
    ];
    let config = write::config(&graph.file, &inputs, &outputs);
    Ok(Derived { task: HubTask::TokenClassify, config, steps: steps.into_text() })
}
