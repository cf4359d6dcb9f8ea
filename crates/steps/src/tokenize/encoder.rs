//! One text, or a pair of them, as tokens: by [`Bert`] where it can, else by the crate `tokenizers`.
//!
//! The parts of the crate's own pipeline are called one by one, as its release 0.23.3 on PyPI does: release
//! 0.23.2, the last one for Rust, cuts each text of a pair off before it compares their lengths, so other
//! tokens are left.

use tokenizers::processors::PostProcessorWrapper;
use tokenizers::utils::truncation::truncate_encodings;
use tokenizers::{EncodeInput, Encoding, PostProcessor, Tokenizer, TruncationParams};

use super::bert::Bert;
use super::file::guarded;
use super::rows::{RowToken, TokenRows};
use super::rules::EncodingRules;

/// A tokenizer with all that decides on the tokens of a row.
pub struct TextEncoder {
    /// Without a post-processor.
    tokenizer: Tokenizer,
    processor: Option<PostProcessorWrapper>,
    bert: Option<Bert>,
    rules: EncodingRules,
}

impl TextEncoder {
    /// The tokenizer must have no padding and no truncation.
    ///
    /// # Errors
    /// If the crate panics.
    pub fn new(mut tokenizer: Tokenizer, rules: EncodingRules) -> Result<Self, String> {
        guarded(move || {
            let processor = tokenizer.get_post_processor().cloned();
            tokenizer.with_post_processor(None::<PostProcessorWrapper>);
            let bert = Bert::new(&tokenizer, processor.as_ref(), &rules);
            // The crate then stops at the length. A text of a pair cannot stop there: its length counts.
            if let (Some(truncation), false) = (&rules.truncation, rules.is_pair) {
                tokenizer.with_truncation(Some(truncation.clone())).map_err(|why| why.to_string())?;
            }
            Ok(Self { tokenizer, processor, bert, rules })
        })
    }

    /// Adds the tokens of a text.
    ///
    /// # Errors
    /// That of the crate. It may panic: the caller catches that.
    pub fn encode(&self, text: &str, pair: Option<&str>, rows: &mut TokenRows) -> Result<(), String> {
        if self.bert.as_ref().is_some_and(|bert| bert.encode(text, pair, rows).is_ok()) {
            return Ok(());
        }
        let row = self.row(text, pair).map_err(|why| why.to_string())?;
        rows.extend(tokens(&row));
        Ok(())
    }

    /// A row as `TokenizerImpl::encode` and `TokenizerImpl::post_process` make it.
    fn row(&self, text: &str, pair: Option<&str>) -> tokenizers::Result<Encoding> {
        let mut first = self.text(text)?;
        let mut second = pair.map(|pair| self.text(pair)).transpose()?;
        if let Some(second) = &mut second {
            second.set_type_ids(vec![1; second.len()]);
        }
        if let Some(truncation) = &self.rules.truncation {
            let added = match (&self.processor, self.rules.adds_special_tokens) {
                (Some(processor), true) => processor.added_tokens(second.is_some()),
                _ => 0,
            };
            let max_length =
                truncation.max_length.checked_sub(added).ok_or("special tokens are more than \"max_length\"")?;
            let params = TruncationParams { max_length, ..truncation.clone() };
            (first, second) = truncate_encodings(first, second, &params)?;
            // The parts that were cut off. The post-processor would combine each with each.
            first.take_overflowing();
            second.iter_mut().for_each(|second| drop(second.take_overflowing()));
        }
        match &self.processor {
            Some(processor) => processor.process(first, second, self.rules.adds_special_tokens),
            None => {
                first.set_sequence_id(0);
                if let Some(mut second) = second {
                    second.set_sequence_id(1);
                    first.merge_with(second, false);
                }
                Ok(first)
            }
        }
    }

    fn text(&self, text: &str) -> tokenizers::Result<Encoding> {
        let input = EncodeInput::from(text);
        let mut encoding = match self.rules.has_offsets {
            true => self.tokenizer.encode_char_offsets(input, false),
            false => self.tokenizer.encode_fast(input, false),
        }?;
        encoding.take_overflowing();
        Ok(encoding)
    }
}

/// The tokens of an encoding.
fn tokens(encoding: &Encoding) -> impl Iterator<Item = RowToken> {
    let offset = |offset| u32::try_from(offset).unwrap_or(u32::MAX);
    let marks = encoding.get_type_ids().iter().zip(encoding.get_special_tokens_mask());
    let places = encoding.get_sequence_ids().into_iter().zip(encoding.get_word_ids());
    let tokens = encoding.get_ids().iter().zip(encoding.get_offsets()).zip(marks).zip(places);
    tokens.map(move |(((id, (start, end)), (type_id, special)), (text, word))| RowToken {
        id: *id,
        type_id: *type_id,
        is_special: *special != 0,
        offsets: [offset(*start), offset(*end)],
        text: text.and_then(|text| u32::try_from(text + 1).ok()).unwrap_or(0),
        word: word.map_or(0, |word| word.saturating_add(1)),
        ..RowToken::default()
    })
}
