//! Parameters of C: `TRITONSERVER_Parameter`, and those of requests and responses as backends see them.

use std::ffi::{CString, c_void};

use crate::triton::error::c_text;
use crate::triton::object::{Owned, hosted_object};
use model::parameters::{ParameterValue, Parameters};

/// A `TRITONSERVER_Parameter`: a name and a value of one of five kinds.
pub(super) struct ParameterObject {
    pub(super) name: CString,
    pub(super) value: ParameterContents,
}

hosted_object!(ParameterObject, "parameter", 3);

/// The value of a parameter, in memory that a pointer of C may lead to.
pub(super) enum ParameterContents {
    Bool(bool),
    Bytes(Box<[u8]>),
    Double(f64),
    Int(i64),
    Text(CString),
}

impl ParameterContents {
    /// `TRITONSERVER_ParameterType`.
    pub(super) const fn kind(&self) -> u32 {
        match self {
            Self::Text(_) => 0,
            Self::Int(_) => 1,
            Self::Bool(_) => 2,
            Self::Double(_) => 3,
            Self::Bytes(_) => 4,
        }
    }

    /// A pointer to the value; of a text, to its first letter.
    pub(super) fn pointer(&self) -> *const c_void {
        match self {
            Self::Bool(value) => (&raw const *value).cast(),
            Self::Bytes(value) => value.as_ptr().cast(),
            Self::Double(value) => (&raw const *value).cast(),
            Self::Int(value) => (&raw const *value).cast(),
            Self::Text(value) => value.as_ptr().cast(),
        }
    }

    fn of(value: &ParameterValue) -> Self {
        match value {
            ParameterValue::Bool(value) => Self::Bool(*value),
            ParameterValue::Double(value) => Self::Double(*value),
            ParameterValue::Int64(value) => Self::Int(*value),
            ParameterValue::Text(value) => Self::Text(c_text(value)),
            // Triton has no such parameter: as a text it is kept exactly.
            ParameterValue::Uint64(value) => Self::Text(c_text(&value.to_string())),
        }
    }
}

/// The parameters of a request or response for C. Each is an object of its own, so that its address
/// never changes.
pub(super) fn of_parameters(parameters: &Parameters) -> Vec<Owned<ParameterObject>> {
    let parameter = |(name, value): &(String, ParameterValue)| {
        Owned::new(ParameterObject { name: c_text(name), value: ParameterContents::of(value) })
    };
    parameters.0.iter().map(parameter).collect()
}
