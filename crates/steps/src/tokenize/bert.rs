//! WordPiece as BERT has it, without an allocation for each token: ten times as fast as the crate
//! `tokenizers`, and the same tokens.
//!
//! Only for tokenizers of the usual parts: `BertNormalizer`, `BertPreTokenizer`, `WordPiece`, and a
//! post-processor that puts special tokens around. All rules about characters are asked of the crate's own
//! parts, once for each character. A text with a character outside the tables, or with an added token
//! inside, is left to the crate.

use std::collections::HashMap;
use std::ops::ControlFlow;

use tokenizers::TruncationStrategy::{LongestFirst, OnlyFirst, OnlySecond};
use tokenizers::models::ModelWrapper;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::processors::PostProcessorWrapper;
use tokenizers::{Model, Tokenizer, TruncationDirection, TruncationParams};

use super::characters::{Character, Characters};
use super::rows::{RowToken, TokenRows};
use super::rules::EncodingRules;
use super::template::{TemplatePart, TokenTemplate};

/// A tokenizer of BERT's parts.
pub struct Bert {
    characters: Characters,
    /// Tokens that begin a word.
    initial: HashMap<Box<str>, u32>,
    /// Tokens inside a word, without the prefix of such.
    continuing: HashMap<Box<str>, u32>,
    /// Bytes of the longest of them.
    token_size_max: usize,
    unknown_id: u32,
    word_length_max: usize,
    added_tokens: Vec<String>,
    /// True for a byte that begins an added token.
    begins_added_token: Box<[bool; 256]>,
    single: TokenTemplate,
    pair: TokenTemplate,
    truncation: Option<TruncationParams>,
}

/// More added tokens than this are left to the crate, which looks for all of them at once.
const ADDED_TOKENS_MAX: usize = 64;

/// The text has something that is left to the crate.
#[derive(Debug)]
pub struct Unusual;

/// The tokens of one text, and the work on its words.
#[derive(Default)]
struct Words {
    tokens: Vec<RowToken>,
    /// The word that is being read, normalized.
    word: String,
    /// For each byte of the word, the index of the character in the text that it is from.
    origins: Vec<u32>,
    /// Characters of the word.
    length: usize,
    /// Words before it.
    count: u32,
}

impl Bert {
    /// Returns `None` if the tokenizer has other parts. May panic if the crate does.
    pub fn new(tokenizer: &Tokenizer, processor: Option<&PostProcessorWrapper>, rules: &EncodingRules) -> Option<Self> {
        let (ModelWrapper::WordPiece(model), Some(NormalizerWrapper::BertNormalizer(normalizer))) =
            (tokenizer.get_model(), tokenizer.get_normalizer())
        else {
            return None;
        };
        let Some(PreTokenizerWrapper::BertPreTokenizer(_)) = tokenizer.get_pre_tokenizer() else {
            return None;
        };
        if !matches!(processor, Some(PostProcessorWrapper::Bert(_) | PostProcessorWrapper::Template(_)) | None) {
            return None;
        }
        let added = tokenizer.get_added_tokens_decoder();
        if added.len() > ADDED_TOKENS_MAX || added.values().any(|token| token.normalized || token.content.is_empty()) {
            return None;
        }
        let added_tokens: Vec<_> = added.values().map(|token| token.content.clone()).collect();
        let mut begins_added_token = Box::new([false; 256]);
        for first in added_tokens.iter().filter_map(|token| token.as_bytes().first()) {
            *begins_added_token.get_mut(usize::from(*first))? = true;
        }
        let unknown_id = model.token_to_id(&model.unk_token)?;
        let (initial, continuing) = vocabularies(model);
        let sizes = initial.keys().chain(continuing.keys()).map(|token| token.len());
        Some(Self {
            characters: Characters::new(normalizer),
            token_size_max: sizes.max().unwrap_or(0),
            initial,
            continuing,
            unknown_id,
            word_length_max: model.max_input_chars_per_word,
            added_tokens,
            begins_added_token,
            single: TokenTemplate::of(processor, rules.adds_special_tokens, false)?,
            pair: TokenTemplate::of(processor, rules.adds_special_tokens, true)?,
            truncation: rules.truncation.clone(),
        })
    }

    /// Adds the tokens of a text.
    ///
    /// # Errors
    /// [`Unusual`] if the crate must do it; no token is added then.
    pub fn encode(&self, text: &str, pair: Option<&str>, rows: &mut TokenRows) -> Result<(), Unusual> {
        let template = if pair.is_some() { &self.pair } else { &self.single };
        // Tokens beyond the length are needed only to compare two texts, or to cut from the left.
        let limit = match &self.truncation {
            Some(truncation) if pair.is_none() && truncation.direction == TruncationDirection::Right => {
                truncation.max_length
            }
            _ => usize::MAX,
        };
        let mut first = self.tokens(text, limit)?;
        let mut second = pair.map(|pair| self.tokens(pair, limit)).transpose()?.unwrap_or_default();
        if let Some(truncation) = &self.truncation {
            let length = truncation.max_length.checked_sub(template.special_count()).ok_or(Unusual)?;
            let [kept_first, kept_second] = kept([first.len(), second.len()], length, truncation, pair.is_some())?;
            shorten(&mut first, kept_first, truncation.direction);
            shorten(&mut second, kept_second, truncation.direction);
        }
        for part in template.parts() {
            match part {
                TemplatePart::Special { id, type_id } => {
                    rows.push(RowToken { id: *id, type_id: *type_id, is_special: true, ..RowToken::default() });
                }
                TemplatePart::First { type_id } => {
                    rows.extend(first.iter().map(|token| RowToken { type_id: *type_id, text: 1, ..*token }))
                }
                TemplatePart::Second { type_id } => {
                    rows.extend(second.iter().map(|token| RowToken { type_id: *type_id, text: 2, ..*token }));
                }
            }
        }
        Ok(())
    }

    /// The tokens of a text; at least the first `limit` of them.
    fn tokens(&self, text: &str, limit: usize) -> Result<Vec<RowToken>, Unusual> {
        let mut words = Words::default();
        match self.read(text, limit, &mut words) {
            ControlFlow::Break(BertStop::Unusual) => Err(Unusual),
            ControlFlow::Break(BertStop::Full) | ControlFlow::Continue(()) => Ok(words.tokens),
        }
    }

    fn read(&self, text: &str, limit: usize, words: &mut Words) -> ControlFlow<BertStop> {
        for (index, (place, character)) in text.char_indices().enumerate() {
            let first = text.as_bytes().get(place).copied().unwrap_or(0);
            if self.begins_added_token.get(usize::from(first)).copied().unwrap_or(true) {
                let rest = text.get(place..).unwrap_or_default();
                if self.added_tokens.iter().any(|token| rest.starts_with(&**token)) {
                    return ControlFlow::Break(BertStop::Unusual);
                }
            }
            let Ok(origin) = u32::try_from(index) else { return ControlFlow::Break(BertStop::Unusual) };
            match self.characters.get(character) {
                Character::Letter(letter) => words.push(letter, origin),
                Character::Space => self.end_word(words, limit)?,
                Character::Dropped => {}
                Character::Letters(letters) => letters.chars().for_each(|letter| words.push(letter, origin)),
                Character::Word(letter) => {
                    self.end_word(words, limit)?;
                    words.push(letter, origin);
                    self.end_word(words, limit)?;
                }
                Character::Unknown => return ControlFlow::Break(BertStop::Unusual),
            }
        }
        self.end_word(words, limit)
    }

    /// Turns the word into tokens.
    fn end_word(&self, words: &mut Words, limit: usize) -> ControlFlow<BertStop> {
        if words.word.is_empty() {
            return ControlFlow::Continue(());
        }
        let known = words.tokens.len();
        if words.length > self.word_length_max || !self.split(words) {
            words.tokens.truncate(known);
            let token = words.token(self.unknown_id, 0, words.word.len());
            words.tokens.push(token);
        }
        words.count = words.count.saturating_add(1);
        words.word.clear();
        words.origins.clear();
        words.length = 0;
        if words.tokens.len() >= limit { ControlFlow::Break(BertStop::Full) } else { ControlFlow::Continue(()) }
    }

    /// Adds the longest tokens of the word, one after the other. Returns false if a part of it is no token.
    fn split(&self, words: &mut Words) -> bool {
        let (mut start, size) = (0, words.word.len());
        while start < size {
            let vocabulary = if start == 0 { &self.initial } else { &self.continuing };
            let mut end = size.min(start.saturating_add(self.token_size_max));
            let found = loop {
                if end <= start {
                    return false;
                }
                // Between the bytes of a character, there is no part to look up.
                if let Some(id) = words.word.get(start..end).and_then(|part| vocabulary.get(part)) {
                    break *id;
                }
                end -= 1;
            };
            let token = words.token(found, start, end);
            words.tokens.push(token);
            start = end;
        }
        true
    }
}

/// The end of a text before its last character.
enum BertStop {
    /// There are as many tokens as truncation keeps.
    Full,
    /// The crate must do it.
    Unusual,
}

impl Words {
    fn push(&mut self, letter: char, origin: u32) {
        self.word.push(letter);
        self.origins.extend(std::iter::repeat_n(origin, letter.len_utf8()));
        self.length += 1;
    }

    /// The token of these bytes of the word.
    fn token(&self, id: u32, start: usize, end: usize) -> RowToken {
        let first = self.origins.get(start).copied().unwrap_or(0);
        let last = self.origins.get(end.saturating_sub(1)).copied().unwrap_or(0);
        let offsets = [first, last.saturating_add(1)];
        RowToken { id, offsets, word: self.count.saturating_add(1), ..RowToken::default() }
    }
}

/// The tokens that begin a word, and those inside one without their prefix.
fn vocabularies(model: &WordPiece) -> (HashMap<Box<str>, u32>, HashMap<Box<str>, u32>) {
    let prefix = &model.continuing_subword_prefix;
    let vocabulary = model.get_vocab();
    let continuing = vocabulary.iter().filter_map(|(token, id)| Some((token.strip_prefix(&**prefix)?.into(), *id)));
    let continuing = continuing.collect();
    (vocabulary.into_iter().map(|(token, id)| (token.into(), id)).collect(), continuing)
}

/// The number of tokens that are kept of each text, as `truncate_encodings` of the crate.
///
/// # Errors
/// [`Unusual`] where the crate has an error, for it to say.
fn kept(
    lengths: [usize; 2],
    max_length: usize,
    truncation: &TruncationParams,
    is_pair: bool,
) -> Result<[usize; 2], Unusual> {
    let [first, second] = lengths;
    let total = first.saturating_add(second);
    if max_length == 0 {
        return Ok([0, 0]);
    }
    let excess = total.saturating_sub(max_length);
    if excess == 0 {
        return Ok(lengths);
    }
    let shortened = |length: usize| length.checked_sub(excess).filter(|left| *left > 0).ok_or(Unusual);
    match truncation.strategy {
        LongestFirst if !is_pair => Ok([max_length, 0]),
        LongestFirst => {
            let shorter = first.min(second);
            let longer = if shorter > max_length { shorter } else { shorter.max(max_length - shorter) };
            let [shorter, longer] = match shorter.saturating_add(longer) > max_length {
                true => [max_length / 2, max_length / 2 + max_length % 2],
                false => [shorter, longer],
            };
            Ok(if first > second { [longer, shorter] } else { [shorter, longer] })
        }
        OnlyFirst => Ok([shortened(first)?, second]),
        OnlySecond if is_pair => Ok([first, shortened(second)?]),
        OnlySecond => Err(Unusual),
    }
}

fn shorten(tokens: &mut Vec<RowToken>, length: usize, direction: TruncationDirection) {
    match direction {
        TruncationDirection::Left => drop(tokens.drain(..tokens.len().saturating_sub(length))),
        TruncationDirection::Right => tokens.truncate(length),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
mod tests {
    use tokenizers::Tokenizer;

    use super::*;
    use crate::trial_tokenizer::tokenizer_json;

    fn bert(file: &str, truncation: Option<TruncationParams>) -> Option<Bert> {
        let tokenizer = Tokenizer::from_bytes(file).unwrap();
        let processor = tokenizer.get_post_processor().cloned();
        let rules = EncodingRules { truncation, adds_special_tokens: true, has_offsets: true, is_pair: true };
        Bert::new(&tokenizer, processor.as_ref(), &rules)
    }

    #[test]
    fn usual_texts_are_read_and_unusual_ones_are_left_to_the_crate() {
        let bert = bert(&tokenizer_json(""), None).unwrap();
        let check = |text: &str, is_read: bool| {
            let mut rows = TokenRows::new(1);
            assert_eq!(bert.encode(text, None, &mut rows).is_ok(), is_read, "{text:?}");
            rows.end_row().unwrap();
            assert_eq!(rows.longest() > 0, is_read, "{text:?}");
        };
        for text in [
            "",
            "hello, world",
            "CAF\u{c9} e\u{301}",
            "\u{4e2d}\u{6587} \u{d55c}\u{ae00}",
            "\u{1f600}\u{fe0f}",
            "\0[x]",
        ] {
            check(text, true);
        }
        // An added token, a script outside the tables, a plane outside them, a mark that keeps its place by its class.
        for text in ["a [CLS] b", "\u{5e9}", "\u{e0067}", "\u{302e}", "\u{20000}"] {
            check(text, false);
        }
    }

    #[test]
    fn tokenizers_of_other_parts_are_left_to_the_crate() {
        let file = tokenizer_json("");
        let check = |from: &str, to: &str| {
            let other = file.replace(from, to);
            assert_ne!(other, file);
            assert!(bert(&other, None).is_none(), "{to}");
        };
        check("{\"type\": \"BertPreTokenizer\"}", "{\"type\": \"Whitespace\"}");
        check("{\"type\": \"BertPreTokenizer\"}", "null");
        check("\"normalized\": false", "\"normalized\": true");
        check("\"[UNK]\": 1,", "");
        check(
            "{\"type\": \"BertProcessing\", \"sep\"",
            "{\"type\": \"RobertaProcessing\", \"trim_offsets\": true, \"add_prefix_space\": true, \"sep\"",
        );
        assert!(bert(&file, None).is_some());
    }

    #[test]
    fn lengths_that_are_kept_are_those_of_the_crate() {
        let encoding = |length: usize| {
            let sequences = std::iter::empty().collect();
            let numbers = || vec![0; length];
            let (texts, words, offsets) = (vec![String::new(); length], vec![None; length], vec![(0, 0); length]);
            tokenizers::Encoding::new(
                numbers(),
                numbers(),
                texts,
                words,
                offsets,
                numbers(),
                numbers(),
                Vec::new(),
                sequences,
            )
        };
        for strategy in [LongestFirst, OnlyFirst, OnlySecond] {
            for (first, second, max_length) in
                (0..10).flat_map(|a| (0..10).flat_map(move |b| (0..12).map(move |m| (a, b, m))))
            {
                for pair in [None, Some(second)] {
                    let params =
                        TruncationParams { max_length, strategy, stride: 0, direction: TruncationDirection::Right };
                    let cut = tokenizers::truncate_encodings(encoding(first), pair.map(encoding), &params);
                    let want = cut.ok().map(|(first, second)| [first.len(), second.map_or(0, |second| second.len())]);
                    let got = kept([first, pair.unwrap_or(0)], max_length, &params, pair.is_some()).ok();
                    assert_eq!(got, want, "{first} {pair:?} {params:?}");
                }
            }
        }
    }
}
