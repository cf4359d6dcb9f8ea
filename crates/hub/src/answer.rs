//! Extractive question answering: a question and a context to the answer in it.

use base::error::Error;

use crate::Derived;
use crate::config_file::ConfigFile;
use crate::folder::HubFolder;
use crate::graph::HubGraph;
use crate::kind::HubTask;
use crate::sentence::Modules;
use crate::texts::{TOKENIZER_CONFIG, TokenizeText};
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
    let starts = graph.output(&["start_logits"], 2, |_| false)?;
    let ends = graph.output(&["end_logits"], 2, |_| false)?;
    if let Some(settings) = ConfigFile::read(folder, TOKENIZER_CONFIG)?
        && settings.text("padding_side")? == Some("left")
    {
        return Err(settings.unsupported("padding_side", "is \"left\", which has the context before the question"));
    }
    let tokens = TokenizeText::new(folder, modules, config, graph, &[("text", "question"), ("pair", "context")])?;
    // A part of a context could hide the answer: a pair that is too long is refused.
    let tokens = match tokens.length_max {
        Some(_) => tokens.with("truncation", "refuse"),
        None => tokens,
    };
    let tokens = tokens.also("texts", "token_text").also("words", "token_word").also("offsets", "token_offsets");
    let mut steps = StepsText::default();
    steps.push(tokens.into_step());
    steps.push_model();
    let inputs = [
        ("starts", starts.name.as_str()),
        ("ends", &ends.name),
        ("texts", "token_text"),
        ("words", "token_word"),
        ("offsets", "token_offsets"),
        ("context", "context"),
    ];
    let outputs = [("answer", "answer"), ("score", "score"), ("start", "start"), ("end", "end")];
    steps.push(StepText::new("answer").ports("inputs", &inputs).ports("outputs", &outputs));
    let inputs = [IoText::scalar("question", "STRING"), IoText::scalar("context", "STRING")];
    let outputs = [
        IoText::scalar("answer", "STRING"),
        IoText::scalar("score", "FP32"),
        IoText::scalar("start", "INT64"),
        IoText::scalar("end", "INT64"),
    ];
    let config = write::config(&graph.file, &inputs, &outputs);
    Ok(Derived { task: HubTask::AnswerQuestion, config, steps: steps.into_text() })
}
