//! Sequences: the sequence parameters of a request (the sequence extension), and a model's
//! `sequence_batching`, checked and immutable.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::ModelSpec;
use base::tensor::{Datatype, Tensor};

/// The correlation id of a sequence: `sequence_id` of its requests. Zero and the empty string mean no sequence
/// and are not values of this type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CorrelationId {
    /// A number.
    Number(u64),
    /// Assigned by the server to a request of an iterative sequence that has none. A variant of its own, so that
    /// no client can send it.
    Own(u64),
    /// A string, of at most `SEQUENCE_ID_SIZE_MAX` bytes.
    Text(Arc<str>),
}

/// The sequence parameters of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequenceMark {
    /// The sequence.
    pub id: CorrelationId,
    /// `sequence_start`: the request is the first of the sequence.
    pub is_start: bool,
    /// `sequence_end`: the request is the last of the sequence.
    pub is_end: bool,
}

impl CorrelationId {
    /// The id of a number; `None` for 0.
    #[inline]
    pub fn from_number(number: u64) -> Option<Self> {
        (number != 0).then_some(Self::Number(number))
    }

    /// The id of a string; `None` for the empty one.
    #[inline]
    pub fn from_text(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| Self::Text(text.into()))
    }

    /// Returns true if a text equals it as its client would write it: a number in decimal digits, a
    /// string unchanged.
    pub fn is_written_as(&self, text: &[u8]) -> bool {
        match self {
            Self::Number(number) => itoa::Buffer::new().format(*number).as_bytes() == text,
            Self::Own(_) => false,
            Self::Text(own) => own.as_bytes() == text,
        }
    }
}

/// `sequence_batching`: the serving of a model's sequences.
#[derive(Clone, Debug)]
pub struct SequenceBatching {
    /// The strategy by which requests of several sequences become batches.
    pub strategy: SequenceStrategy,
    /// `max_sequence_idle_microseconds`.
    pub idle_max: Duration,
    /// `iterative_sequence`: the model runs one request again and again until it is done; the sequence ends with
    /// the request.
    pub is_iterative: bool,
    /// Control inputs. In the engine's inputs they follow those of the requests, in this order.
    pub controls: Vec<ControlSpec>,
    /// States that the server keeps for each sequence. In the engine's inputs they follow the controls, in this
    /// order.
    pub states: Vec<StateSpec>,
    /// The number of engine outputs that requests may ask for; they come first, the others are states.
    pub outputs_asked: usize,
    /// The model as its engine sees it: controls and states are inputs, and new states are outputs behind those
    /// that requests ask for.
    pub engine: Arc<ModelSpec>,
}

/// `strategy_choice`: `direct` or `oldest`.
#[derive(Clone, Debug, PartialEq)]
pub enum SequenceStrategy {
    /// A sequence has the same row of the batch from its first request to its last.
    Direct {
        /// `max_queue_delay_microseconds`.
        queue_delay_max: Duration,
        /// `minimum_slot_utilization`.
        utilization_min: f32,
    },
    /// A batch is made of the oldest requests of the candidate sequences.
    Oldest {
        /// `max_candidate_sequences`, for each instance.
        candidates_max: u32,
        /// `preferred_batch_size` in rows, ascending, each once.
        rows_preferred: Vec<u32>,
        /// `max_queue_delay_microseconds`.
        queue_delay_max: Duration,
    },
}

/// One `control_input`.
#[derive(Clone, Debug, PartialEq)]
pub struct ControlSpec {
    /// The model's input.
    pub name: String,
    /// The property of the row that it reports.
    pub kind: ControlKind,
    /// Its datatype.
    pub datatype: Datatype,
    /// The bytes of false and of true, in native byte order; empty for a correlation id.
    pub values: [Vec<u8>; 2],
}

/// The property of a row that a control input reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlKind {
    /// `CONTROL_SEQUENCE_CORRID`: the correlation id of its sequence.
    CorrelationId,
    /// `CONTROL_SEQUENCE_END`: true if its request is the last of the sequence.
    End,
    /// `CONTROL_SEQUENCE_READY`: true if the row has a request.
    Ready,
    /// `CONTROL_SEQUENCE_START`: true if its request is the first of the sequence.
    Start,
}

/// One `state`: a tensor that the server keeps for a sequence from one run to the next.
#[derive(Clone, Debug, PartialEq)]
pub struct StateSpec {
    /// The model's input, for error messages.
    pub input_name: String,
    /// The index of the engine output with the new state.
    pub output: usize,
    /// The state at the start of a sequence, in the shape of one row (batch axis of 1 if the model batches).
    pub initial: Tensor,
}

/// The format of Triton's error texts.
impl fmt::Display for CorrelationId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) | Self::Own(number) => number.fmt(formatter),
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
