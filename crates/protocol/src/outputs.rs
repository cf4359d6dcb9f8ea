//! The outputs of a model that go into a response, for the encoders of both protocols.

use smallvec::SmallVec;

use crate::classification::classify;
use crate::infer::{NonFinite, ResponsePlan};
use base::error::Error;
use base::tensor::Tensor;
use model::{ModelSpec, TensorSpec};

/// One output to be written.
pub(super) struct SentOutput<'a> {
    pub(super) spec: &'a TensorSpec,
    pub(super) tensor: Tensor,
    pub(super) is_binary: bool,
    /// It was written to shared memory: the response has only its name, datatype and shape.
    pub(super) is_shared: bool,
    /// REST only: how NaN and the infinities are shown.
    pub(super) non_finite: NonFinite,
    /// REST only: the form of strings.
    pub(super) strings: StringForm,
}

/// The form of an element of `BYTES` in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum StringForm {
    /// A string of base64.
    Base64,
    /// `{"b64": …}`.
    Object,
    /// A string, or `{"b64": …}` for bytes that are not UTF-8.
    ObjectUnlessText,
    /// A string; bytes that are not UTF-8 are refused.
    #[default]
    Text,
}

/// The planned outputs, in the plan's order, classified if the plan says so; without those that a Python model, or a
/// step of an ensemble, left out.
///
/// # Errors
///
/// `Internal` if an output is missing that the model may not leave out; as [`classify`].
pub(super) fn planned_outputs<'a>(
    spec: &'a ModelSpec,
    plan: &ResponsePlan,
    outputs: Vec<Tensor>,
) -> Result<SmallVec<[SentOutput<'a>; 2]>, Error> {
    let mut outputs: SmallVec<[Option<Tensor>; 4]> = outputs.into_iter().map(Some).collect();
    let mut sent = SmallVec::new();
    for planned in &plan.outputs {
        let is_shared = plan.is_shared(planned.index);
        let expected = spec.outputs.get(planned.index);
        let missing =
            || Error::internal(format!("model '{}' did not produce every output that was asked for", spec.name));
        let (Some(expected), Some(tensor)) = (expected, outputs.get_mut(planned.index).and_then(Option::take)) else {
            return Err(missing());
        };
        // An output in shared memory no longer has contents.
        if tensor.is_missing() && !is_shared {
            if spec.takes_details() {
                continue;
            }
            return Err(missing());
        }
        let tensor = match planned.class_count {
            0 => tensor,
            count => classify(spec, expected, &tensor, count)?,
        };
        let (is_binary, non_finite) = (planned.is_binary, plan.non_finite);
        let strings = if planned.is_base64 { StringForm::Base64 } else { StringForm::Text };
        sent.push(SentOutput { spec: expected, tensor, is_binary, is_shared, non_finite, strings });
    }
    Ok(sent)
}
