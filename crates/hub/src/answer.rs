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

/// Tokens of a window: the pipeline's `max_seq_len`.
const WINDOW_LENGTH: usize = 384;
/// Tokens that windows share: its `doc_stride`.
const STRIDE: usize = 128;

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
    let inputs = [("text", "question"), ("pair", "context")];
    let tokens = TokenizeText::of_at_most(Some(WINDOW_LENGTH), folder, modules, config, graph, &inputs)?;
    // Windows of a context that is too long, as the pipeline `question-answering` of transformers makes them.
    let stride = (tokens.length_max.unwrap_or(WINDOW_LENGTH) / 2).min(STRIDE);
    let tokens = tokens.with("truncation", "only_second").raw("stride", &stride.to_string());
    let tokens = tokens.also("texts", "token_text").also("words", "token_word").also("offsets", "token_offsets");
    let tokens = tokens.also("window_of", "window_of");
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
        ("window_of", "window_of"),
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
