//! `infer`: a step that runs another model of the server, whole or for a few rows at a time. The list says what to run; the
//! caller of the list runs it.

use base::error::Error;
use wire::placed::{PlacedMember, PlacedValue};

use crate::fields::{Field, FieldDefault, FieldKind, StepFields, line};
use crate::limits::{CALL_ROWS_MAX, CALL_TENSORS_MAX};

/// The name of the step.
pub const NAME: &str = "infer";

/// Its work, for the reference: sentences in Markdown.
pub const ABOUT: &str = "Runs another model of the server, through its queue, as `pb_utils.InferenceRequest(…).exec()` in a \
                         `model.py`: its batcher forms batches of the rows of several requests, and its instances run at the \
                         same time. The request waits meanwhile, and its instance serves others. No rows, as the crops of a \
                         picture without a find, give outputs without rows, and the model does not run.";

/// The parameters of the step.
pub const FIELDS: &[Field] = &[
    Field {
        name: "model",
        kind: FieldKind::Text,
        default: FieldDefault::Required,
        about: "The name of the model. Not one that runs this list again.",
    },
    Field {
        name: "version",
        kind: FieldKind::Integer(1, i64::MAX),
        default: FieldDefault::Unset,
        about: "Its version; without it, the one that its `version_policy` gives.",
    },
    Field {
        name: "rows",
        kind: FieldKind::Integer(1, CALL_ROWS_MAX as i64),
        default: FieldDefault::Unset,
        about: "Rows of one call at most: more rows become several calls at the same time, whose outputs are joined. Without it, \
                one call has all rows.",
    },
];

/// A call of another model, as a list has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepCall {
    /// The name of the model.
    pub model: String,
    /// Its version; `None` for any.
    pub version: Option<u64>,
    /// Rows of one call at most; `None` for all.
    pub rows: Option<u32>,
    /// The names of the inputs of the model that the list connects.
    pub inputs: Vec<String>,
    /// The names of the outputs of the model that the list connects.
    pub outputs: Vec<String>,
}

/// The tensors of a call in the list, in the order of [`StepCall::inputs`] and [`StepCall::outputs`].
pub struct CallTensors {
    /// The names of the tensors that it reads.
    pub read: Vec<String>,
    /// The names of the tensors that it writes.
    pub written: Vec<String>,
}

impl StepCall {
    /// Builds a call from its checked parameters and the members of its step.
    ///
    /// # Errors
    /// `InvalidArgument` with the line and the member.
    pub(super) fn build(fields: &StepFields<'_>) -> Result<(Self, CallTensors), Error> {
        let model = fields.text("model");
        if model.is_empty() {
            return Err(fields.error("model", "must be the name of a model"));
        }
        let (inputs, read) = connected(fields, "inputs", "reads")?.into_iter().unzip();
        let (outputs, written) = connected(fields, "outputs", "writes")?.into_iter().unzip();
        let version = fields.integer("version").and_then(|version| u64::try_from(version).ok());
        let rows = fields.integer("rows").and_then(|rows| u32::try_from(rows).ok());
        Ok((Self { model, version, rows, inputs, outputs }, CallTensors { read, written }))
    }
}

/// The tensors of the other model and those of the list that an object connects.
fn connected(fields: &StepFields<'_>, object: &str, verb: &str) -> Result<Vec<(String, String)>, Error> {
    let wrong = |offset, why: String| Error::invalid(format!("line {}: \"{object}\" {why}", line(fields.text, offset)));
    let shape =
        || format!("must be an object from 1 to {CALL_TENSORS_MAX} tensors of the model to those that the step {verb}");
    let member = fields.members.iter().find(|member| member.name == object);
    let Some(PlacedMember { offset, value, .. }) = member else { return Err(wrong(fields.offset, shape())) };
    let PlacedValue::Table(members) = &value.value else { return Err(wrong(*offset, shape())) };
    if !(1..=CALL_TENSORS_MAX).contains(&members.len()) {
        return Err(wrong(*offset, shape()));
    }
    let mut names: Vec<(String, String)> = Vec::with_capacity(members.len());
    for PlacedMember { name, offset, value } in members {
        let PlacedValue::String(tensor) = &value.value else {
            return Err(wrong(*offset, format!("has \"{name}\", which must be the name of a tensor")));
        };
        if names.iter().any(|(known, _)| known == name) {
            return Err(wrong(*offset, format!("connects \"{name}\" twice")));
        }
        names.push((name.clone(), tensor.clone()));
    }
    Ok(names)
}
