//! Parameters of `tokenize`, completed by its two files: first what the list gives, then
//! tokenizer_config.json, then tokenizer.json.

use base::error::Error;
use base::tensor::Datatype;
use tokenizers::{
    PaddingDirection, PaddingStrategy, PostProcessor, TruncationDirection, TruncationParams, TruncationStrategy,
};

use super::file::{TokenizerConfig, TokenizerFile, guarded};
use super::rows::{Form, RowToken, TokenRows};
use crate::fields::StepFields;
use crate::limits::TOKENS_MAX;

/// The number of tokens of a row with padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// Always this.
    Fixed(usize),
    /// That of the longest row.
    Longest,
    /// All rows must have the same number.
    Unpadded,
}

/// The padding of rows.
#[derive(Clone, Copy, Debug)]
pub struct Padding {
    /// The width of a row.
    pub width: Width,
    /// The width is rounded up to a multiple of this.
    pub multiple: usize,
    /// True if padding comes before the tokens.
    pub is_left: bool,
    /// The token that pads.
    pub pad: RowToken,
}

impl Padding {
    /// The form of the outputs for these rows.
    ///
    /// # Errors
    /// If rows differ in length without padding, or are longer than a fixed width.
    pub fn form(&self, rows: &TokenRows, datatype: Datatype) -> Result<Form, Error> {
        let width = match self.width {
            Width::Fixed(width) => width.next_multiple_of(self.multiple),
            Width::Longest => rows.longest().next_multiple_of(self.multiple),
            Width::Unpadded => rows.common_length()?,
        };
        if rows.longest() > width {
            return Err(Error::invalid(format!(
                "'text' has an element of {} tokens, more than the {width} that rows are padded to; \"truncation\" shortens it",
                rows.longest()
            )));
        }
        let form = Form { datatype, width, is_left: self.is_left, pad: self.pad };
        form.check(rows)?;
        Ok(form)
    }
}

/// Reads the parameters of padding. `length` is the most tokens of a row, if truncation has one.
///
/// # Errors
/// If a parameter has no meaning without another one that is not given.
pub fn read_padding(
    fields: &StepFields<'_>,
    file: &TokenizerFile,
    config: &TokenizerConfig,
    length: Option<usize>,
) -> Result<Padding, Error> {
    let of_file = file.padding.as_ref();
    let width =
        match (fields.text("padding").as_str(), of_file.map(|padding| &padding.strategy)) {
            ("longest", _) | ("file", Some(PaddingStrategy::BatchLongest)) => Width::Longest,
            ("max_length", _) => Width::Fixed(length.ok_or_else(|| {
                fields.error("padding", "needs the parameter \"max_length\": neither file has a length")
            })?),
            ("file", Some(PaddingStrategy::Fixed(width))) => Width::Fixed(*width),
            _ => Width::Unpadded,
        };
    if matches!(width, Width::Fixed(width) if width > TOKENS_MAX) {
        return Err(fields.error("padding", &format!("pads to more than {TOKENS_MAX} tokens, the most of a request")));
    }
    // The multiple and the type id are only taken over with the rest of it: transformers does not read them.
    let taken_over = of_file.filter(|_| fields.text("padding") == "file");
    let multiple_of_file = taken_over.and_then(|padding| padding.pad_to_multiple_of).filter(|multiple| *multiple > 0);
    let multiple = fields.count("pad_to_multiple_of").or(multiple_of_file).unwrap_or(1);
    if multiple > TOKENS_MAX {
        return Err(
            fields.error("padding", &format!("the file pads to a multiple of {multiple}, at most {TOKENS_MAX} may be"))
        );
    }
    let side = Some(fields.text("padding_side")).filter(|side| !side.is_empty()).or(config.padding_side.clone());
    let is_left_in_file = of_file.is_some_and(|padding| matches!(padding.direction, PaddingDirection::Left));
    let type_id = taken_over.map_or(0, |padding| padding.pad_type_id);
    let id = match pad_id(fields, file, config)? {
        Some(id) => id,
        None if width == Width::Unpadded => 0,
        None => {
            let why = "needs \"pad_token\" or \"pad_id\": neither file names a padding token";
            return Err(fields.error("padding", why));
        }
    };
    let is_left = side.map_or(is_left_in_file, |side| side == "left");
    let pad = RowToken { id, type_id, is_special: true, ..RowToken::default() };
    Ok(Padding { width, multiple, is_left, pad })
}

/// The id of the padding token; `None` if nothing names one.
fn pad_id(fields: &StepFields<'_>, file: &TokenizerFile, config: &TokenizerConfig) -> Result<Option<u32>, Error> {
    let known = |parameter: &str, token: &str| {
        let id = file.tokenizer.token_to_id(token);
        id.map(Some)
            .ok_or_else(|| fields.error(parameter, &format!("the padding token {token:?} is not in the vocabulary")))
    };
    if fields.is_given("pad_id") && fields.is_given("pad_token") {
        return Err(fields.error("pad_id", "cannot be given with \"pad_token\""));
    }
    if let Some(id) = fields.integer("pad_id") {
        return Ok(u32::try_from(id).ok());
    }
    if fields.is_given("pad_token") {
        return known("pad_token", &fields.text("pad_token"));
    }
    match (&config.pad_token, &file.padding) {
        (Some(token), _) => known("config", token),
        (None, padding) => Ok(padding.as_ref().map(|padding| padding.pad_id)),
    }
}

/// The shortening of rows.
pub struct Truncation {
    /// Its form for the crate; `None` if nothing is shortened.
    pub params: Option<TruncationParams>,
    /// Most tokens of a row, if any of the parameters or files says.
    pub length: Option<usize>,
    /// Rows with more tokens than this are refused.
    pub refused_above: Option<usize>,
}

/// Reads the parameters of truncation.
///
/// # Errors
/// If a parameter has no meaning without another one that is not given, or the length has no room for
/// special tokens.
pub fn read_truncation(
    fields: &StepFields<'_>,
    file: &TokenizerFile,
    config: &TokenizerConfig,
    is_pair: bool,
) -> Result<Truncation, Error> {
    let of_file = &file.truncation;
    let kind = fields.text("truncation");
    let strategy = match (kind.as_str(), of_file) {
        ("longest_first", _) => Some(TruncationStrategy::LongestFirst),
        ("only_first", _) => Some(TruncationStrategy::OnlyFirst),
        ("only_second", _) => Some(TruncationStrategy::OnlySecond),
        ("file", Some(truncation)) => Some(truncation.strategy),
        _ => None,
    };
    let length_of_file = of_file.as_ref().map(|truncation| truncation.max_length);
    let length = fields.count("max_length").or(match kind.as_str() {
        "file" => length_of_file,
        _ => config.model_max_length.or(length_of_file),
    });
    let side = Some(fields.text("truncation_side")).filter(|side| !side.is_empty()).or(config.truncation_side.clone());
    let direction = match (side.as_deref(), of_file) {
        (Some("left"), _) => TruncationDirection::Left,
        (Some(_), _) | (None, None) => TruncationDirection::Right,
        (None, Some(truncation)) => truncation.direction,
    };
    let params = match (strategy, length) {
        (Some(TruncationStrategy::OnlySecond), _) if !is_pair => {
            return Err(fields.error("truncation", "\"only_second\" needs the input \"pair\""));
        }
        (Some(_), None) if fields.is_given("truncation") && kind != "file" => {
            return Err(fields.error("truncation", "needs the parameter \"max_length\": neither file has a length"));
        }
        (Some(strategy), Some(max_length)) => Some(TruncationParams { direction, max_length, strategy, stride: 0 }),
        _ => None,
    };
    if let (Some(params), true) = (&params, fields.flag("add_special_tokens")) {
        // Below this, the crate's subtraction would overflow.
        let added = guarded(|| Ok(added_tokens(file, is_pair))).unwrap_or(0);
        if params.max_length < added {
            let why = format!("is {}, but {added} special tokens are added to each row", params.max_length);
            return Err(fields.error("max_length", &why));
        }
    }
    let refused_above = length.filter(|_| kind == "refuse");
    if kind == "refuse" && length.is_none() {
        return Err(fields.error("truncation", "needs the parameter \"max_length\": neither file has a length"));
    }
    Ok(Truncation { params, length, refused_above })
}

/// The number of special tokens that are added to a row.
fn added_tokens(file: &TokenizerFile, is_pair: bool) -> usize {
    file.tokenizer.get_post_processor().map_or(0, |processor| processor.added_tokens(is_pair))
}
