//! The parts of an encoding that parameters decide, beside the tokenizer.

use tokenizers::TruncationParams;

/// Tokens of a row beside the tokenizer.
#[derive(Clone, Debug)]
pub struct EncodingRules {
    /// The shortening of rows.
    pub truncation: Option<TruncationParams>,
    /// True if the post-processor adds its tokens.
    pub adds_special_tokens: bool,
    /// False if the offsets of tokens may be zeros.
    pub has_offsets: bool,
    /// True if rows may be pairs.
    pub is_pair: bool,
}
