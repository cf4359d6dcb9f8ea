//! Tokens as interfaces show them to a client, apart from the tensors that a network reads.

use base::error::Error;

/// A token of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownToken {
    /// Its number in the vocabulary.
    pub id: u32,
    /// Its text: the part of the input that it stands for, or its name if it was added.
    pub text: String,
    /// True if the post-processor added it.
    pub is_special: bool,
    /// The bytes of the input that it stands for; `None` if it was added.
    pub span: Option<(usize, usize)>,
}

/// A step that can show the tokens of texts.
pub trait ShowsTokens {
    /// All tokens of a text, which is not cut off. `prompt_name` chooses the text before it, in place of the step's prefix.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown prompt, a text that is too long, or one that cannot be tokenized.
    fn shown(&self, text: &str, prompt_name: Option<&str>, adds_special_tokens: bool)
    -> Result<Vec<ShownToken>, Error>;

    /// The text of tokens. Those that the vocabulary does not have are passed over, as in the package `tokenizers`.
    ///
    /// # Errors
    /// `InvalidArgument` if there are too many, or they cannot be decoded.
    fn decoded(&self, ids: &[u32], skips_special_tokens: bool) -> Result<String, Error>;

    /// Most tokens of a row; `None` without a bound.
    fn length_max(&self) -> Option<usize>;
}
