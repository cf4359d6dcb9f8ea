//! `tokenizer.json` and `tokenizer_config.json`, read without trust: the crate `tokenizers` panics on some
//! malformed files (its issues 2094 and 2198, its pull request 2151), so every call of it is made here, and
//! a panic becomes an error.

use std::panic::{AssertUnwindSafe, catch_unwind};

use base::error::Error;
use tokenizers::{PaddingParams, Tokenizer, TruncationParams};
use wire::json::placed;
use wire::placed::PlacedValue;

use crate::fields::StepFields;

/// A `tokenizer.json`. Padding and truncation are kept apart: the tokenizer has neither.
pub struct TokenizerFile {
    /// All else.
    pub tokenizer: Tokenizer,
    /// Its padding.
    pub padding: Option<PaddingParams>,
    /// Its truncation.
    pub truncation: Option<TruncationParams>,
}

/// Reads the `tokenizer.json` that the parameter `file` names, and encodes and decodes one text on trial.
///
/// # Errors
/// If the file is not one, or it makes the crate panic: the text names the parameter and the file.
pub fn read_tokenizer(fields: &StepFields<'_>) -> Result<TokenizerFile, Error> {
    let contents = fields.file("file")?.unwrap_or_default();
    let name = fields.text("file");
    let wrong = |why: &str| fields.error("file", &format!("'{name}' is not a valid tokenizer.json: {why}"));
    let read = guarded(|| {
        let mut tokenizer = Tokenizer::from_bytes(&contents).map_err(|why| why.to_string())?;
        let (padding, truncation) = (tokenizer.get_padding().cloned(), tokenizer.get_truncation().cloned());
        tokenizer.with_padding(None).with_truncation(None).map_err(|why| why.to_string())?;
        // An error of the trial is no fault of the file: a vocabulary without an unknown token refuses most
        // texts. A panic is.
        for is_special in [true, false] {
            let tried = tokenizer.encode_char_offsets(TRIAL, is_special);
            let _ = tokenizer.encode_char_offsets((TRIAL, TRIAL), is_special);
            let ids = tried.map(|tried| tried.get_ids().to_vec()).unwrap_or_default();
            let _ = tokenizer.decode(&ids, is_special);
        }
        Ok(TokenizerFile { tokenizer, padding, truncation })
    });
    read.map_err(|why| wrong(&why))
}

/// A text of several scripts, which most parts of a tokenizer have to do with.
const TRIAL: &str = "A trial: caf\u{e9} \u{4e2d}\u{6587} 123\n  \u{1f600}!";

/// Runs calls of the crate; a panic in them is an error.
///
/// # Errors
/// That of `calls`, or the text of the panic.
pub fn guarded<T>(calls: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    // A half-changed value is dropped, or is a cache of the crate: its lock is marked as broken then, and the
    // crate passes over it.
    match catch_unwind(AssertUnwindSafe(calls)) {
        Ok(result) => result,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("unknown");
            Err(format!("the tokenizer panicked: {text}"))
        }
    }
}

/// The members of a `tokenizer_config.json` that `tokenize` reads.
#[derive(Debug, Default)]
pub struct TokenizerConfig {
    /// Most tokens of a row; `None` if the file has none or the huge one of transformers for "no limit".
    pub model_max_length: Option<usize>,
    /// The text of the padding token.
    pub pad_token: Option<String>,
    /// `left` or `right`.
    pub padding_side: Option<String>,
    /// `left` or `right`.
    pub truncation_side: Option<String>,
}

/// Reads the file that the parameter `config` names; without the parameter, nothing is known.
///
/// # Errors
/// If the file is not a JSON object, or a member that is read has another type.
pub fn read_config(fields: &StepFields<'_>) -> Result<TokenizerConfig, Error> {
    let Some(contents) = fields.file("config")? else { return Ok(TokenizerConfig::default()) };
    let name = fields.text("config");
    let wrong = |why: &str| fields.error("config", &format!("'{name}' is not a valid tokenizer_config.json: {why}"));
    let text = std::str::from_utf8(&contents).map_err(|_| wrong("it is not UTF-8"))?;
    let document = placed::read(text).map_err(|why| wrong(&why.text))?;
    let PlacedValue::Table(members) = &document.value else { return Err(wrong("it is not an object")) };
    let member = |name: &str| {
        let found = members.iter().rev().find(|member| member.name == name).map(|member| &member.value.value);
        found.filter(|value| !matches!(value, PlacedValue::Null))
    };
    let side = |name: &str| match member(name) {
        None => Ok(None),
        Some(PlacedValue::String(side)) if side == "left" || side == "right" => Ok(Some(side.clone())),
        Some(_) => Err(wrong(&format!("\"{name}\" must be \"left\" or \"right\""))),
    };
    Ok(TokenizerConfig {
        model_max_length: match member("model_max_length") {
            None => None,
            Some(PlacedValue::Number(number)) => finite_length(number).map_err(|why| wrong(&why))?,
            Some(_) => return Err(wrong("\"model_max_length\" must be a number")),
        },
        pad_token: member("pad_token").map(token_text).transpose().map_err(|why| wrong(&why))?,
        padding_side: side("padding_side")?,
        truncation_side: side("truncation_side")?,
    })
}

/// The length in a number; `None` if it is beyond what transformers takes for a limit.
fn finite_length(number: &str) -> Result<Option<usize>, String> {
    let value: f64 = number.parse().unwrap_or(f64::NAN);
    // LARGE_INTEGER of transformers' tokenization_utils_base.py.
    if value > 1e20 {
        return Ok(None);
    }
    let length = number.strip_suffix(".0").unwrap_or(number).parse().ok();
    length.map(Some).ok_or_else(|| format!("\"model_max_length\" must be an integer from 0, but it is {number}"))
}

/// The text of a token that is a string, or an object with its `content`.
fn token_text(value: &PlacedValue) -> Result<String, String> {
    match value {
        PlacedValue::String(text) => Ok(text.clone()),
        PlacedValue::Table(members) => match members.iter().find(|member| member.name == "content") {
            Some(member) => token_text(&member.value.value),
            None => Err("\"pad_token\" has no \"content\"".to_owned()),
        },
        _ => Err("\"pad_token\" must be a string, or an object with \"content\"".to_owned()),
    }
}
