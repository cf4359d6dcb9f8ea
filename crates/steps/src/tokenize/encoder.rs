//! One text, or a pair of them, as tokens: by [`Bert`] where it can, else by the crate `tokenizers`.
//!
//! The parts of the crate's own pipeline are called one by one, as its release 0.23.3 on PyPI does: release
//! 0.23.2, the last one for Rust, cuts each text of a pair off before it compares their lengths, so other
//! tokens are left.

use tokenizers::processors::PostProcessorWrapper;
use tokenizers::utils::truncation::truncate_encodings;
use tokenizers::{
    EncodeInput, Encoding, Model, OffsetType, PostProcessor, PreTokenizer, Tokenizer, TruncationDirection,
    TruncationParams,
};

use super::bert::Bert;
use super::file::guarded;
use super::rows::{RowToken, TokenRows};
use super::rules::{EncodingRules, RowCut};

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
            // The crate then stops at the length. A text of a pair cannot stop there: its length counts. Nor can one that is
            // cut off from the left: its words would be counted from the first one that is left.
            let truncation = rules.truncation.as_ref().filter(|rule| rule.direction == TruncationDirection::Right);
            if let (Some(truncation), false) = (truncation, rules.is_pair) {
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

    /// The same for a row whose request says how it is cut off.
    ///
    /// # Errors
    /// Likewise, and if the row must not be cut off but is too long.
    pub fn encode_cut(&self, text: &str, pair: Option<&str>, cut: RowCut, rows: &mut TokenRows) -> Result<(), String> {
        if cut == RowCut::Usual {
            return self.encode(text, pair, rows);
        }
        let parts = (self.whole(text), pair.map(|pair| self.whole(pair)).transpose());
        let (first, second) = (parts.0.map_err(|why| why.to_string())?, parts.1.map_err(|why| why.to_string())?);
        let row = self.joined(first, second, self.truncation(cut).as_ref(), self.rules.adds_special_tokens);
        let row = row.map_err(|why| why.to_string())?;
        self.check_length(row.len(), cut)?;
        rows.extend(tokens(&row));
        Ok(())
    }

    /// Adds the tokens that a request has in place of a text.
    ///
    /// # Errors
    /// If one is not in the vocabulary, or there are too many that must not be cut off.
    pub fn take_ids(&self, ids: &[i64], cut: RowCut, rows: &mut TokenRows) -> Result<(), String> {
        self.check_length(ids.len(), cut)?;
        let length = self.length_max().unwrap_or(usize::MAX).min(ids.len());
        let is_left = self.truncation(cut).is_some_and(|rule| rule.direction == TruncationDirection::Left);
        let begin = if is_left { ids.len().saturating_sub(length) } else { 0 };
        for id in ids.iter().skip(begin).take(length) {
            let known = u32::try_from(*id).ok().filter(|id| self.tokenizer.id_to_token(*id).is_some());
            let id = known.ok_or_else(|| format!("the id {id} is not in the vocabulary"))?;
            rows.push(RowToken { id, ..RowToken::default() });
        }
        Ok(())
    }

    /// All tokens of a text with their offsets in bytes, not cut off.
    ///
    /// # Errors
    /// That of the crate. It may panic: the caller catches that.
    pub fn shown(&self, text: &str, adds_special_tokens: bool) -> Result<Encoding, String> {
        let whole = self.pieces(text, OffsetType::Byte).map_err(|why| why.to_string())?;
        self.joined(whole, None, None, adds_special_tokens).map_err(|why| why.to_string())
    }

    /// The tokenizer, for decoding.
    pub const fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Most tokens of a row; `None` without a bound.
    pub fn length_max(&self) -> Option<usize> {
        self.rules.truncation.as_ref().map(|truncation| truncation.max_length)
    }

    fn check_length(&self, length: usize, cut: RowCut) -> Result<(), String> {
        match self.length_max().filter(|most| cut == RowCut::Off && length > *most) {
            // The text of text-embeddings-inference.
            Some(most) => Err(format!("`inputs` must have less than {most} tokens. Given: {length}")),
            None => Ok(()),
        }
    }

    fn truncation(&self, cut: RowCut) -> Option<TruncationParams> {
        let usual = self.rules.truncation.clone()?;
        match cut {
            RowCut::Usual => Some(usual),
            RowCut::Off => None,
            RowCut::Left => Some(TruncationParams { direction: TruncationDirection::Left, ..usual }),
            RowCut::Right => Some(TruncationParams { direction: TruncationDirection::Right, ..usual }),
        }
    }

    /// A row as `TokenizerImpl::encode` and `TokenizerImpl::post_process` make it.
    fn row(&self, text: &str, pair: Option<&str>) -> tokenizers::Result<Encoding> {
        let first = self.text(text)?;
        let second = pair.map(|pair| self.text(pair)).transpose()?;
        self.joined(first, second, self.rules.truncation.as_ref(), self.rules.adds_special_tokens)
    }

    fn joined(
        &self,
        mut first: Encoding,
        mut second: Option<Encoding>,
        truncation: Option<&TruncationParams>,
        adds_special_tokens: bool,
    ) -> tokenizers::Result<Encoding> {
        if let Some(second) = &mut second {
            second.set_type_ids(vec![1; second.len()]);
        }
        if let Some(truncation) = truncation {
            let added = match (&self.processor, adds_special_tokens) {
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
            Some(processor) => processor.process(first, second, adds_special_tokens),
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

    /// All tokens of a text: the tokenizer itself stops at the length.
    fn whole(&self, text: &str) -> tokenizers::Result<Encoding> {
        self.pieces(text, if self.rules.has_offsets { OffsetType::Char } else { OffsetType::None })
    }

    fn pieces(&self, text: &str, offsets: OffsetType) -> tokenizers::Result<Encoding> {
        let normalizer = self.tokenizer.get_normalizer();
        let mut pieces = self.tokenizer.get_added_vocabulary().extract_and_normalize(normalizer, text);
        if let Some(pre_tokenizer) = self.tokenizer.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces)?;
        }
        self.tokenizer.get_model().tokenize_in_pretokenized(&mut pieces, None)?;
        pieces.into_encoding(None, 0, offsets)
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
