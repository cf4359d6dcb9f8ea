//! `TRITONBACKEND_State`: the new value of an implicit state, which the server keeps for the sequence.

#![expect(clippy::disallowed_types, reason = "a value that its backend writes, one thread at a time")]

use std::ffi::c_void;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::triton::answers::HostedAnswers;
use crate::triton::memory::{BufferAttributesObject, HostBuffer};
use crate::triton::model_object::HostedTensors;
use crate::triton::object::{Owned, hosted_object};
use base::error::Error;
use base::tensor::{Datatype, Shape, Tensor};

/// A `TRITONBACKEND_State`.
pub(super) struct StateObject {
    answers: Arc<HostedAnswers>,
    /// The index of its output.
    index: usize,
    datatype: Datatype,
    shape: Shape,
    buffer: Mutex<Option<HostBuffer>>,
    attributes: OnceLock<Owned<BufferAttributesObject>>,
}

hosted_object!(StateObject, "state", 15);

impl StateObject {
    /// The state of an output name.
    ///
    /// # Errors
    /// `InvalidArgument` if the model has none, in Triton's words.
    pub(super) fn new(
        answers: &Arc<HostedAnswers>,
        name: &[u8],
        datatype: Datatype,
        shape: Shape,
    ) -> Result<Self, Error> {
        let tensors: &HostedTensors = answers.tensors();
        let index = tensors.output(name).filter(|index| tensors.states.contains(index));
        let index = index.ok_or_else(|| {
            let name = String::from_utf8_lossy(name);
            let text = if tensors.states.is_empty() {
                format!("unable to add state '{name}'. State configuration is missing for model '{}'.", tensors.model)
            } else {
                format!("state '{name}' is not a valid state name.")
            };
            Error::invalid(text)
        })?;
        let (answers, buffer, attributes) = (Arc::clone(answers), Mutex::new(None), OnceLock::new());
        Ok(Self { answers, index, datatype, shape, buffer, attributes })
    }

    /// Memory for the value. A size other than before replaces it.
    ///
    /// # Errors
    /// `Unavailable` if there is no memory.
    pub(super) fn allocate(&self, size: u64) -> Result<*mut c_void, Error> {
        let mut place = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(buffer) = place.as_ref().filter(|buffer| buffer.size() as u64 == size) {
            return Ok(buffer.pointer());
        }
        let buffer = HostBuffer::new(size)?;
        let pointer = buffer.pointer();
        *place = Some(buffer);
        Ok(pointer)
    }

    /// Makes the value the state of the sequence.
    ///
    /// # Errors
    /// `InvalidArgument` for a value that does not have the size of its shape, or no value.
    pub(super) fn update(&self) -> Result<(), Error> {
        let buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner).take();
        let buffer =
            buffer.ok_or_else(|| Error::invalid("a state is updated once, after TRITONBACKEND_StateBuffer"))?;
        let value = Tensor { datatype: self.datatype, shape: self.shape.clone(), contents: buffer.freeze() };
        if !value.has_its_size() {
            let (shape, size) = (value.shape.as_slice(), value.contents.len());
            return Err(Error::invalid(format!("a state of shape {shape:?} has {size} bytes")));
        }
        self.answers.set_state(self.index, value)
    }

    pub(super) fn attributes(&self) -> &Owned<BufferAttributesObject> {
        self.attributes.get_or_init(|| {
            let place = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
            Owned::new(BufferAttributesObject::of_host(place.as_ref().map_or(0, HostBuffer::size)))
        })
    }
}
