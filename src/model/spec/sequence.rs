//! What a request says of the sequence that it belongs to (the sequence extension), and what a
//! configuration says of how a model serves sequences (`sequence_batching`). Never changed after it
//! was checked.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::model::ModelSpec;
use crate::tensor::{Datatype, Tensor};

/// The correlation id of a sequence: `sequence_id` of its requests. Zero and the empty string mean
/// no sequence and are never held here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CorrelationId {
    /// A number.
    Number(u64),
    /// Given by the server to a request of an iterative sequence that names none: no client can name it.
    Own(u64),
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

/// `sequence_batching`: how a model serves sequences.
#[derive(Clone, Debug)]
pub struct SequenceBatching {
    /// How requests of several sequences become batches.
    pub strategy: SequenceStrategy,
    /// `max_sequence_idle_microseconds`.
    pub idle_max: Duration,
    /// `iterative_sequence`: a request runs until its model is done with it, and its sequence with it.
    pub is_iterative: bool,
    /// What tells the model of each row's sequence, in the order of the engine's inputs behind those
    /// that requests bring.
    pub controls: Vec<ControlSpec>,
    /// What the server keeps of each sequence, in the order of the engine's inputs behind those.
    pub states: Vec<StateSpec>,
    /// How many of the engine's outputs, the first ones, requests may ask for.
    pub outputs_asked: usize,
    /// The model as its engine sees it: with controls and states as inputs like others, and the
    /// states that it gives back as outputs behind those that requests ask for.
    pub engine: Arc<ModelSpec>,
}

/// `direct` or `oldest`.
#[derive(Clone, Debug, PartialEq)]
pub enum SequenceStrategy {
    /// A sequence keeps its row of the batch.
    Direct {
        /// `max_queue_delay_microseconds`.
        queue_delay_max: Duration,
        /// `minimum_slot_utilization`.
        utilization_min: f32,
    },
    /// The oldest requests of the candidates are batched.
    Oldest {
        /// `max_candidate_sequences`, for each instance.
        candidates_max: u32,
        /// `preferred_batch_size`, ascending, each once.
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
    /// What it tells.
    pub kind: ControlKind,
    /// Its datatype.
    pub datatype: Datatype,
    /// The bytes of false and of true; empty for a correlation id.
    pub values: [Vec<u8>; 2],
}

/// What a control tells of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlKind {
    /// `CONTROL_SEQUENCE_CORRID`: whose it is.
    CorrelationId,
    /// `CONTROL_SEQUENCE_END`: it is the last.
    End,
    /// `CONTROL_SEQUENCE_READY`: there is a request in it.
    Ready,
    /// `CONTROL_SEQUENCE_START`: it is the first.
    Start,
}

/// One `state`.
#[derive(Clone, Debug, PartialEq)]
pub struct StateSpec {
    /// The model's input, for messages.
    pub input_name: String,
    /// The place among the engine's outputs of what it becomes.
    pub output: usize,
    /// What it is when a sequence begins, with a row's part of the batch axis.
    pub initial: Tensor,
}

/// As Triton writes it in its texts.
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
