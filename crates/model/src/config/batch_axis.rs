//! A configuration without `max_batch_size`: the first dimensions of the model's file, if all are open, may be a batch
//! axis. `control::loading::batch_axis` checks that when the model is loaded.

use crate::config::{CompletionRules, ConfigDraft};
use crate::onnx::OnnxSignature;
use wire::proto::inference::model_config::SchedulingChoice;
use wire::proto::inference::{ModelConfig, ModelDynamicBatching};

/// A draft's knowledge of its batch axis.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KnownAxis {
    /// True if the text has `max_batch_size`, if only as 0.
    pub has_rows_max: bool,
    /// True if the first dimensions of the model's file are known not to be a batch axis.
    pub is_refuted: bool,
    /// True if `max_batch_size` was derived from open first dimensions.
    pub is_derived: bool,
}

impl KnownAxis {
    /// The rule of completion for open first dimensions.
    pub(super) fn rule(self, rules: CompletionRules) -> BatchAxis {
        let rows = rules.rows_max_default.into();
        match (self.has_rows_max, self.is_refuted) {
            (true, _) => BatchAxis::Stated,
            (false, true) => BatchAxis::Refuted(rows),
            (false, false) => BatchAxis::Derived(rows),
        }
    }

    /// Notes what completion by a rule has made of `max_batch_size`.
    pub(super) const fn note(&mut self, rule: BatchAxis, before: i32, after: i32) {
        self.is_derived = matches!(rule, BatchAxis::Derived(_)) && before != after;
    }
}

impl ConfigDraft {
    /// The draft of a model whose first dimensions are known not to be a batch axis.
    pub fn without_batch_axis(mut self) -> Self {
        self.axis.is_refuted = true;
        self
    }
}

/// The batch axis that a configuration without `max_batch_size` gets from a model's file whose first dimensions are all
/// open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BatchAxis {
    /// A batch axis of this number of rows, and dynamic batching.
    Derived(i32),
    /// `max_batch_size: 0`, which the configuration says.
    Stated,
    /// `max_batch_size: 0`, since the first dimensions are not a batch axis. A request of a model whose configuration
    /// lists dims without the first dimension has at most this number of rows and runs alone.
    Refuted(i32),
}

/// Sets `max_batch_size` of a model whose first dimensions are all open, and whose listed dims leave room for them or not.
pub(super) fn fill_batching(config: &mut ModelConfig, axis: BatchAxis, has_listed_rows: bool) {
    match axis {
        BatchAxis::Derived(rows) if config.max_batch_size == 0 => config.max_batch_size = rows,
        BatchAxis::Refuted(rows) if config.max_batch_size == 0 && has_listed_rows => {
            config.max_batch_size = rows;
            if matches!(config.scheduling_choice, Some(SchedulingChoice::DynamicBatching(_))) {
                config.scheduling_choice = None;
            }
            return;
        }
        BatchAxis::Refuted(_) => {
            // No batch has such a size.
            if let Some(SchedulingChoice::DynamicBatching(batching)) = &mut config.scheduling_choice {
                batching.preferred_batch_size.retain(|size| *size <= config.max_batch_size);
            }
        }
        _ => {}
    }
    if config.max_batch_size > 1 && config.scheduling_choice.is_none() {
        config.scheduling_choice = Some(SchedulingChoice::DynamicBatching(ModelDynamicBatching::default()));
    }
}

/// Returns true if listed dims leave room for the first dimension of the file.
pub(super) fn lists_rows(config: &ModelConfig, onnx: &OnnxSignature) -> bool {
    let inputs = config.input.iter().map(|input| (&input.name, input.dims.len(), &onnx.inputs));
    let outputs = config.output.iter().map(|output| (&output.name, output.dims.len(), &onnx.outputs));
    inputs.chain(outputs).any(|(name, listed, tensors)| {
        let shape = tensors.iter().find(|tensor| tensor.name == *name).and_then(|tensor| tensor.shape.as_ref());
        shape.is_some_and(|shape| shape.len() == listed + 1)
    })
}
