//! Image classifiers and image embedders.

use base::error::Error;

use crate::Derived;
use crate::classify::Classes;
use crate::config_file::ConfigFile;
use crate::folder::HubFolder;
use crate::graph::HubGraph;
use crate::kind::HubTask;
use crate::write::{self, IoText, StepText, StepsText};

/// The settings of the processor.
const PREPROCESSOR: &str = "preprocessor_config.json";

/// Classes of an image in an answer, as transformers' pipeline gives them.
const TOP: usize = 5;

/// Derives the model.
///
/// # Errors
/// As [`crate::derive`].
pub fn derive(folder: &HubFolder<'_>, config: &ConfigFile, graph: &HubGraph, task: HubTask) -> Result<Derived, Error> {
    ConfigFile::required(folder, PREPROCESSOR)?;
    if let Some(other) = graph.inputs.iter().find(|input| input.name != "pixel_values") {
        return Err(graph.wrong(&format!("no step makes the input '{}' of a model for images", other.name)));
    }
    let mut steps = StepsText::default();
    steps.push(StepText::new("image").between("image", "pixel_values").with("preprocessor", PREPROCESSOR));
    steps.push_model();
    let outputs = if task == HubTask::ImageClassify {
        let logits = graph.output(&["logits"], 2, |_| true)?;
        let classes = Classes::read(config, graph, HubGraph::last_dimension(logits))?;
        let top = classes.count.map_or(TOP, |count| count.min(TOP));
        let head = StepText::new("head").with("input", &logits.name);
        let head = head.ports("outputs", &[("labels", "label"), ("scores", "score")]).with("activation", "softmax");
        steps.push(classes.name(head.raw("top_k", &top.to_string()), config)?);
        vec![IoText::list("label", "STRING", Some(top)), IoText::list("score", "FP32", Some(top))]
    } else {
        let size = vector(graph, &mut steps)?;
        vec![IoText::list("embedding", "FP32", size)]
    };
    let config = write::config(&graph.file, &[IoText::scalar("image", "STRING")], &outputs);
    Ok(Derived { task, config, steps: steps.into_text() })
}

/// The vector of an image: the network's own, else that of its first token. Returns its size.
fn vector(graph: &HubGraph, steps: &mut StepsText) -> Result<Option<usize>, Error> {
    if let Ok(own) = graph.output(&["image_embeds", "pooler_output"], 2, |_| false) {
        steps.push(StepText::new("cast").between(&own.name, "embedding").with("datatype", "FP32"));
        return Ok(HubGraph::last_dimension(own));
    }
    let states = graph.output(&["last_hidden_state"], 3, |_| true)?;
    steps.push(StepText::new("pool").between(&states.name, "embedding").with("mode", "cls"));
    Ok(HubGraph::last_dimension(states))
}
