//! Zero-shot classification: a text and labels to the scores of the labels, by a network that was trained on entailment.

use base::error::Error;

use crate::Derived;
use crate::config_file::ConfigFile;
use crate::folder::HubFolder;
use crate::graph::HubGraph;
use crate::kind::{self, HubTask, label_count};
use crate::sentence::Modules;
use crate::texts::TokenizeText;
use crate::write::{self, IoText, StepText, StepsText};

/// Derives the model.
///
/// # Errors
/// As [`crate::derive`].
pub fn derive(
    folder: &HubFolder<'_>,
    modules: &Modules,
    config: &ConfigFile,
    graph: &HubGraph,
) -> Result<Derived, Error> {
    let logits = graph.output(&["logits"], 2, |_| true)?;
    let (stated, in_graph) = (label_count(config)?, HubGraph::last_dimension(logits));
    if in_graph.is_some() && stated != in_graph {
        let (stated, in_graph) = (stated.unwrap_or_default(), in_graph.unwrap_or_default());
        let file = &graph.file;
        return Err(config.wrong("id2label", &format!("has {stated} labels, but {file} gives {in_graph} scores")));
    }
    let Some((entailment, contradiction)) = kind::entailment(config)? else {
        return Err(config.wrong("id2label", "must have a label for entailment and another one"));
    };
    let mut steps = StepsText::default();
    let inputs = [("text", "text"), ("labels", "labels"), ("template", "hypothesis_template")];
    let outputs = [("texts", "texts"), ("hypotheses", "hypotheses")];
    steps.push(StepText::new("hypotheses").ports("inputs", &inputs).ports("outputs", &outputs));
    let tokens = TokenizeText::new(folder, modules, config, graph, &[("text", "texts"), ("pair", "hypotheses")])?;
    let tokens = if tokens.length_max.is_some() { tokens.with("truncation", "only_first") } else { tokens };
    steps.push(tokens.into_step());
    steps.push_model();
    let inputs = [("logits", logits.name.as_str()), ("labels", "labels"), ("multi_label", "multi_label")];
    let outputs = [("labels", "label"), ("scores", "score")];
    let step = StepText::new("entailment").ports("inputs", &inputs).ports("outputs", &outputs);
    let step = step.raw("entailment", &entailment.to_string()).raw("contradiction", &contradiction.to_string());
    steps.push(step);
    let inputs = [
        IoText::list("text", "STRING", Some(1)),
        IoText::list("labels", "STRING", None),
        IoText::list("multi_label", "BOOL", Some(1)).optional(),
        IoText::list("hypothesis_template", "STRING", Some(1)).optional(),
    ];
    let outputs = [IoText::list("label", "STRING", None), IoText::list("score", "FP32", None)];
    let config = write::config_without_rows(&graph.file, &inputs, &outputs);
    Ok(Derived { task: HubTask::ZeroShotClassify, config, steps: steps.into_text() })
}
