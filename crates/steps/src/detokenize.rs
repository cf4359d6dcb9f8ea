//! `detokenize`: texts of tokens, as Python's `tokenizers` decodes them.

use base::error::Error;
use base::tensor::Tensor;
use tokenizers::Tokenizer;

use crate::fields::{Field, FieldDefault, FieldKind, Fields};
use crate::kind::{Port, Step, StepKind};
use crate::limits::{DETOKENIZED_SIZE_MAX, TOKENS_MAX};
use crate::tensors::{integers, of_strings, trailing};
use crate::tokenize::file::{guarded, read_tokenizer};

/// The kind.
pub const KIND: StepKind = StepKind {
    name: "detokenize",
    about: "Turns tokens into texts by a `tokenizer.json`, as `decode(ids, skip_special_tokens)` of the Python package \
            `tokenizers`. Ids that the vocabulary does not have are passed over.",
    inputs: &[
        Port { name: "ids", about: "Integers [.., T].", is_optional: false },
        Port { name: "length", about: "Integers [..]: the first tokens of a row that count.", is_optional: true },
        Port { name: "mask", about: "Integers [.., T]: tokens with 0 are passed over.", is_optional: true },
    ],
    outputs: &[Port { name: "text", about: "BYTES [..].", is_optional: false }],
    fields: &[
        Field { name: "file", kind: FieldKind::File, default: FieldDefault::Required, about: "The `tokenizer.json`." },
        Field {
            name: "skip_special_tokens",
            kind: FieldKind::Bool,
            default: FieldDefault::Json("true"),
            about: "Leaves out tokens that the file marks as special, such as `[CLS]`.",
        },
    ],
    build: |fields| Ok(Box::new(Detokenize::build(fields)?)),
};

struct Detokenize {
    tokenizer: Tokenizer,
    skips_special_tokens: bool,
    /// Bytes of the longest token.
    token_size_max: usize,
}

impl Detokenize {
    fn build(fields: &Fields<'_>) -> Result<Self, Error> {
        let tokenizer = read_tokenizer(fields)?.tokenizer;
        let token_size_max = tokenizer.get_vocab(true).keys().map(String::len).max().unwrap_or(0);
        Ok(Self { tokenizer, skips_special_tokens: fields.flag("skip_special_tokens"), token_size_max })
    }

    /// The texts of rows.
    fn decoded(&self, rows: &[Vec<u32>]) -> Result<Vec<String>, String> {
        let too_large =
            || format!("'ids' stand for more than {DETOKENIZED_SIZE_MAX} bytes of text, the most of a request");
        let mut left = DETOKENIZED_SIZE_MAX;
        let mut texts = Vec::with_capacity(rows.len());
        for row in rows {
            if self.size(row) > left {
                return Err(too_large());
            }
            let decoded = self.tokenizer.decode(row, self.skips_special_tokens);
            let text = decoded.map_err(|why| format!("'ids' cannot be decoded: {why}"))?;
            left = left.checked_sub(text.len()).ok_or_else(too_large)?;
            texts.push(text);
        }
        Ok(texts)
    }

    /// Bytes of all tokens of a row and a space between; where even the longest one is short enough, a bound above that.
    fn size(&self, row: &[u32]) -> usize {
        let bound = row.len().saturating_mul(self.token_size_max.saturating_add(1));
        if bound <= ROW_SIZE {
            return 0;
        }
        row.iter().map(|id| self.tokenizer.id_to_token(*id).map_or(0, |token| token.len().saturating_add(1))).sum()
    }
}

/// Bytes of a row that are decoded without a look at its tokens.
const ROW_SIZE: usize = 1 << 20;

impl Step for Detokenize {
    fn run(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let Some(Some(ids)) = inputs.first() else { return Ok(Vec::new()) };
        let rows = rows(ids, inputs.get(1).copied().flatten(), inputs.get(2).copied().flatten())?;
        let texts = guarded(|| self.decoded(&rows)).map_err(Error::invalid)?;
        let mut text = of_strings(&[], texts);
        text.shape = ids.shape.iter().copied().take(ids.shape.len().saturating_sub(1)).collect();
        Ok(vec![Some(text)])
    }
}

/// The ids of each row that count.
fn rows(ids: &Tensor, length: Option<&Tensor>, mask: Option<&Tensor>) -> Result<Vec<Vec<u32>>, Error> {
    let (count, [width]) = trailing("ids", "[tokens]", ids)?;
    if count.saturating_mul(width.max(1)) > TOKENS_MAX {
        return Err(Error::invalid(format!("'ids' has the shape {:?}, more than {TOKENS_MAX} tokens", &ids.shape[..])));
    }
    let numbers = integers("ids", ids)?;
    let lengths = length.map(|length| lengths(length, ids)).transpose()?;
    let mask = mask.map(|mask| mask_of(mask, ids)).transpose()?;
    let mut rows = Vec::with_capacity(count);
    for index in 0..count {
        let start = index.saturating_mul(width);
        let all = numbers.get(start..).and_then(|rest| rest.get(..width)).unwrap_or_default();
        let row = match lengths.as_ref().and_then(|lengths| lengths.get(index)) {
            Some(length) => {
                let wanted = usize::try_from(*length).ok().and_then(|length| all.get(..length));
                wanted.ok_or_else(|| {
                    Error::invalid(format!("'length' has {length} for row {index}, which has {width} tokens"))
                })?
            }
            None => all,
        };
        let marks = mask.as_ref().map(|mask| mask.get(start..).unwrap_or_default());
        let id = |(place, id): (usize, &i64)| {
            if marks.is_some_and(|marks| marks.get(place).is_some_and(|mark| *mark == 0)) {
                return None;
            }
            let wrong = |_| Error::invalid(format!("'ids' has {id} in row {index}: an id is from 0 to {}", u32::MAX));
            Some(u32::try_from(*id).map_err(wrong))
        };
        rows.push(row.iter().enumerate().filter_map(id).collect::<Result<_, _>>()?);
    }
    Ok(rows)
}

fn lengths<'a>(length: &'a Tensor, ids: &Tensor) -> Result<std::borrow::Cow<'a, [i64]>, Error> {
    let wanted = ids.shape.get(..ids.shape.len().saturating_sub(1)).unwrap_or_default();
    if length.shape[..] != *wanted || !length.has_its_size() {
        let shape = &length.shape[..];
        return Err(Error::invalid(format!(
            "'length' must have the shape {wanted:?} of rows, but its shape is {shape:?}"
        )));
    }
    integers("length", length)
}

fn mask_of<'a>(mask: &'a Tensor, ids: &Tensor) -> Result<std::borrow::Cow<'a, [i64]>, Error> {
    if mask.shape != ids.shape || !mask.has_its_size() {
        let (wanted, shape) = (&ids.shape[..], &mask.shape[..]);
        return Err(Error::invalid(format!(
            "'mask' must have the shape {wanted:?} of 'ids', but its shape is {shape:?}"
        )));
    }
    integers("mask", mask)
}
