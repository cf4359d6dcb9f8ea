//! A response to a call of a backend (`TRITONSERVER_InferenceResponse`).

use std::ffi::{CStr, CString, c_void};

use crate::triton::callback::{AllocatedOutput, AllocatorCalls};
use crate::triton::error::{ErrorObject, c_text};
use crate::triton::memory::write_bytes;
use crate::triton::object::{Owned, hosted_object};
use crate::triton::parameter::{ParameterObject, of_parameters};
use base::error::Error;
use base::tensor::{Datatype, Shape, Tensor};
use model::parameters::Parameters;

/// A `TRITONSERVER_InferenceResponse`.
pub(super) struct InferenceResponseObject {
    pub(super) model: CString,
    /// Its version; -1 if the call left it open.
    pub(super) version: i64,
    pub(super) id: CString,
    /// Owned by the response, as the interface says.
    pub(super) error: Option<Owned<ErrorObject>>,
    pub(super) outputs: Vec<ReceivedOutput>,
    pub(super) parameters: Vec<Owned<ParameterObject>>,
}

hosted_object!(InferenceResponseObject, "inference response", 24);

/// An output of it, in memory of the backend's allocator.
pub(super) struct ReceivedOutput {
    pub(super) name: CString,
    pub(super) datatype: Datatype,
    pub(super) shape: Shape,
    pub(super) size: usize,
    pub(super) memory: AllocatedOutput,
}

/// The call that a response answers.
pub(super) struct AnsweredCall {
    pub(super) model: CString,
    /// The version that it asked for; `None` if it left it open.
    pub(super) version: Option<u64>,
    pub(super) id: CString,
}

impl InferenceResponseObject {
    /// A response with its outputs in memory of the allocator; an error if that gives none.
    pub(super) fn new(
        call: AnsweredCall,
        allocator: &AllocatorCalls,
        outputs: Result<Vec<(String, Tensor)>, Error>,
        parameters: &Parameters,
    ) -> Self {
        let received = outputs.and_then(|outputs| {
            allocator.start()?;
            outputs.into_iter().map(|(name, tensor)| ReceivedOutput::new(allocator, &name, tensor)).collect()
        });
        let (error, outputs) = match received {
            Ok(outputs) => (None, outputs),
            Err(error) => (ErrorObject::raise(&error).own().ok(), Vec::new()),
        };
        let AnsweredCall { model, version, id } = call;
        let version = version.and_then(|version| i64::try_from(version).ok()).unwrap_or(-1);
        Self { model, version, id, error, outputs, parameters: of_parameters(parameters) }
    }
}

impl ReceivedOutput {
    fn new(allocator: &AllocatorCalls, name: &str, tensor: Tensor) -> Result<Self, Error> {
        let Tensor { datatype, shape, contents } = tensor;
        let name: CString = c_text(name);
        let memory = allocator.allocate(&name, contents.len())?;
        write_bytes(memory.pointer as *mut c_void, &contents)?;
        Ok(Self { name, datatype, shape, size: contents.len(), memory })
    }

    pub(super) fn name(&self) -> &CStr {
        &self.name
    }
}
