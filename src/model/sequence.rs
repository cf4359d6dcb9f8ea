//! What a request says of the sequence that it belongs to (the sequence extension), and what a
//! configuration says of how a model serves sequences (`sequence_batching`). Never changed after it
//! was checked.

use std::fmt;
use std::sync::Arc;

/// The correlation id of a sequence: `sequence_id` of its requests. Zero and the empty string mean
/// no sequence and are never held here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CorrelationId {
    /// A number.
    Number(u64),
    /// A string, of a size that the protocol bounds.
    Text(Arc<str>),
}

/// One request's place in its sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequenceMark {
    /// Which sequence.
    pub id: CorrelationId,
    /// `sequence_start`: it is the first.
    pub is_start: bool,
    /// `sequence_end`: it is the last.
    pub is_end: bool,
}

impl CorrelationId {
    /// The id of a number; `None` for 0.
    pub fn from_number(number: u64) -> Option<Self> {
        (number != 0).then_some(Self::Number(number))
    }

    /// The id of a string; `None` for the empty one.
    pub fn from_text(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| Self::Text(text.into()))
    }
}

/// As Triton writes it in its texts.
impl fmt::Display for CorrelationId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(formatter),
            Self::Text(text) => text.fmt(formatter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_and_the_empty_string_are_no_sequence_and_a_number_is_not_its_digits() {
        assert_eq!((CorrelationId::from_number(0), CorrelationId::from_text("")), (None, None));
        let (number, text) = (CorrelationId::from_number(7).unwrap(), CorrelationId::from_text("7").unwrap());
        assert_ne!(number, text);
        assert_eq!((number.to_string(), text.to_string()), ("7".to_owned(), "7".to_owned()));
    }
}
