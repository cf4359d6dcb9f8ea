//! The answers of a tokenizer alone: the tokens of texts, and the texts of tokens.

use base::error::Error;
use model::ModelSpec;
use model::spec::steps::ShowsTokens;

use super::answer::TextOutcome;
use super::call::TextRequest;
use super::path::TextPath;

/// The tokens of texts, or the texts of tokens. `tokenizer` is that of the model, if it has one.
///
/// # Errors
/// `InvalidArgument` if the model has no tokenizer or takes fewer texts, and the errors of the tokenizer.
pub fn tokens(call: &TextRequest, spec: &ModelSpec, tokenizer: Option<&dyn ShowsTokens>) -> Result<TextOutcome, Error> {
    let tokenizer = tokenizer.ok_or_else(|| {
        let (model, path) = (&spec.name, call.path.name());
        Error::invalid(format!("model '{model}' does not answer {path}: it has no step 'tokenize'"))
    })?;
    let rows = call.texts.len();
    if rows > spec.rows_max as usize {
        let (most, model) = (spec.rows_max, &spec.name);
        return Err(Error::invalid(format!(
            "batch size {rows} > maximum allowed batch size {most}: send fewer texts, or raise max_batch_size of model '{model}'"
        )));
    }
    if call.path == TextPath::Decode {
        let texts = call.ids.iter().flatten().map(|ids| tokenizer.decoded(ids, call.is_without_special));
        return texts.collect::<Result<_, _>>().map(TextOutcome::Texts);
    }
    let prompt = call.prompt_name.as_deref();
    let shown = call.texts.iter().map(|text| tokenizer.shown(text, prompt, !call.is_without_special));
    shown.collect::<Result<_, _>>().map(TextOutcome::Tokens)
}
