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

/// The cut of a row, as its request says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowCut {
    /// By the parameters of the step.
    #[default]
    Usual,
    /// The beginning is cut off.
    Left,
    /// A row that is too long is refused.
    Off,
    /// The end is cut off.
    Right,
}

impl RowCut {
    /// The names in a request.
    pub const NAMES: [(&'static str, Self); 3] = [("left", Self::Left), ("right", Self::Right), ("off", Self::Off)];

    /// The cut of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, cut)| *cut)
    }
}
