//! Responses (`TRITONBACKEND_Response`), their outputs, and the factories of decoupled models.

#![expect(clippy::disallowed_types, reason = "a response that its backend fills, one thread at a time")]

use std::ffi::CStr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use smallvec::SmallVec;

use crate::triton::answers::HostedAnswers;
use crate::triton::memory::{BufferAttributesObject, HostBuffer};
use crate::triton::model_object::HostedTensors;
use crate::triton::object::{Handle, Owned, hosted_object};
use base::error::{Code, Error};
use base::tensor::strings::Strings;
use base::tensor::{Datatype, Shape, Tensor, element_count};
use model::parameters::{ParameterValue, Parameters};

/// A `TRITONBACKEND_Response`.
pub(super) struct ResponseObject {
    answers: Arc<HostedAnswers>,
    contents: Mutex<ResponseContents>,
}

hosted_object!(ResponseObject, "response", 12);

#[derive(Default)]
struct ResponseContents {
    outputs: SmallVec<[Owned<OutputObject>; 2]>,
    parameters: Parameters,
}

/// A `TRITONBACKEND_Output`.
pub(super) struct OutputObject {
    tensors: Arc<HostedTensors>,
    /// Its index in the model's outputs.
    index: usize,
    pub(super) datatype: Datatype,
    pub(super) shape: Shape,
    buffer: Mutex<Option<HostBuffer>>,
    attributes: OnceLock<Owned<BufferAttributesObject>>,
}

hosted_object!(OutputObject, "output", 13);

/// A `TRITONBACKEND_ResponseFactory`.
pub(super) struct FactoryObject {
    pub(super) answers: Arc<HostedAnswers>,
}

hosted_object!(FactoryObject, "response factory", 14);

impl ResponseObject {
    pub(super) fn new(answers: &Arc<HostedAnswers>) -> Self {
        Self { answers: Arc::clone(answers), contents: Mutex::default() }
    }

    /// Adds an output.
    ///
    /// # Errors
    /// `InvalidArgument` for an output that the model does not have, in Triton's words, or that was
    /// added already.
    pub(super) fn add_output(
        &self,
        name: &[u8],
        datatype: Datatype,
        shape: Shape,
    ) -> Result<Handle<OutputObject>, Error> {
        let tensors = self.answers.tensors();
        let shown = || String::from_utf8_lossy(name).into_owned();
        let index = tensors.output(name).filter(|index| *index < tensors.outputs_asked);
        let index = index.ok_or_else(|| {
            Error::invalid(format!("unexpected inference output '{}' for model '{}'", shown(), tensors.model))
        })?;
        let mut contents = self.lock();
        if contents.outputs.iter().any(|output| output.index == index) {
            return Err(Error::invalid(format!("the response has an output '{}' already", shown())));
        }
        let (tensors, buffer, attributes) = (Arc::clone(tensors), Mutex::new(None), OnceLock::new());
        let output = Owned::new(OutputObject { tensors, index, datatype, shape, buffer, attributes });
        let handle = output.handle();
        contents.outputs.push(output);
        Ok(handle)
    }

    pub(super) fn set_parameter(&self, name: &str, value: ParameterValue) {
        self.lock().parameters.set(name, value);
    }

    /// Sends it, or an error in its place.
    ///
    /// # Errors
    /// As [`HostedAnswers::send`].
    pub(super) fn send(self, flags: u32, error: Option<Error>) -> Result<(), Error> {
        let ResponseContents { outputs, parameters } =
            self.contents.into_inner().unwrap_or_else(PoisonError::into_inner);
        let outcome = match error {
            Some(error) => Err(error),
            None => tensors(self.answers.tensors(), outputs),
        };
        self.answers.send(outcome, parameters, flags)
    }

    /// Reads an output by its index among those that were added, or by its name.
    pub(super) fn read_output<T>(
        &self,
        is_wanted: impl Fn(usize, &OutputObject) -> bool,
        read: impl FnOnce(&OutputObject) -> T,
    ) -> Option<T> {
        let contents = self.lock();
        let found = contents.outputs.iter().enumerate().find(|(index, output)| is_wanted(*index, output));
        found.map(|(_, output)| read(output))
    }

    pub(super) fn output_count(&self) -> usize {
        self.lock().outputs.len()
    }

    fn lock(&self) -> MutexGuard<'_, ResponseContents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OutputObject {
    pub(super) fn name(&self) -> &CStr {
        self.tensors.outputs.get(self.index).map_or(c"", |output| &output.name)
    }

    /// Memory for it, which becomes the tensor of the response.
    ///
    /// # Errors
    /// `AlreadyExists` the second time, in Triton's words; `Unavailable` if there is no memory.
    pub(super) fn allocate(&self, size: u64) -> Result<*mut std::ffi::c_void, Error> {
        let mut place = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        if place.is_some() {
            let name = self.name().to_string_lossy();
            return Err(Error::new(
                Code::AlreadyExists,
                format!("allocated buffer for output '{name}' already exists"),
            ));
        }
        let buffer = HostBuffer::new(size)?;
        let pointer = buffer.pointer();
        *place = Some(buffer);
        Ok(pointer)
    }

    /// The attributes of its buffer.
    pub(super) fn attributes(&self) -> &Owned<BufferAttributesObject> {
        self.attributes.get_or_init(|| {
            let place = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
            Owned::new(BufferAttributesObject::of_host(place.as_ref().map_or(0, HostBuffer::size)))
        })
    }
}

/// The outputs in the order of the model's; those that were left out are missing.
///
/// # Errors
/// `Internal` if a buffer does not have the bytes of its datatype and shape; tritonserver sends it
/// as it is.
fn tensors(model: &HostedTensors, outputs: SmallVec<[Owned<OutputObject>; 2]>) -> Result<Vec<Tensor>, Error> {
    let absent = |datatype| Tensor { datatype, shape: Shape::new(), contents: Bytes::new() };
    let mut all: Vec<Tensor> =
        model.outputs.iter().take(model.outputs_asked).map(|output| absent(output.datatype)).collect();
    for output in outputs {
        let Ok(OutputObject { index, datatype, shape, buffer, .. }) = output.into_handle().take() else { continue };
        let buffer = buffer.into_inner().unwrap_or_else(PoisonError::into_inner);
        let contents = buffer.map_or_else(Bytes::new, HostBuffer::freeze);
        let tensor = Tensor { datatype, shape, contents };
        check_size(model, index, &tensor)?;
        if let Some(place) = all.get_mut(index) {
            *place = tensor;
        }
    }
    Ok(all)
}

fn check_size(model: &HostedTensors, index: usize, tensor: &Tensor) -> Result<(), Error> {
    let are_strings_whole = || {
        let mut count = 0_usize;
        let are_whole = Strings::new(&tensor.contents).all(|string| {
            count += 1;
            string.is_ok()
        });
        are_whole && element_count(&tensor.shape) == Ok(count)
    };
    if tensor.has_its_size() && (tensor.datatype != Datatype::Bytes || are_strings_whole()) {
        return Ok(());
    }
    let name = model.outputs.get(index).map_or(c"", |output| &output.name).to_string_lossy();
    Err(Error::internal(format!(
        "the backend of model '{}' gave output '{name}' a buffer of {} bytes, which is no {} tensor of shape {:?}",
        model.model,
        tensor.contents.len(),
        tensor.datatype.name(),
        tensor.shape.as_slice()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_must_have_the_bytes_of_its_datatype_and_shape() {
        let model = HostedTensors {
            model: "m".to_owned(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            outputs_asked: 0,
            states: Vec::new(),
            is_decoupled: false,
            is_iterative: false,
        };
        let check = |datatype, shape: &[i64], contents: &'static [u8], want: bool| {
            let tensor = Tensor { datatype, shape: Shape::from_slice(shape), contents: Bytes::from_static(contents) };
            let outcome = check_size(&model, 0, &tensor);
            assert_eq!(outcome.is_ok(), want, "{tensor:?} {outcome:?}");
        };
        check(Datatype::Fp32, &[2], &[0; 8], true);
        check(Datatype::Fp32, &[2], &[0; 7], false);
        check(Datatype::Fp32, &[2], &[0; 12], false);
        check(Datatype::Fp32, &[0], &[], true);
        check(Datatype::Fp32, &[1], &[], false);
        check(Datatype::Bytes, &[1], b"\x01\0\0\0x", true);
        check(Datatype::Bytes, &[2], b"\x01\0\0\0xxxx", false);
        check(Datatype::Bytes, &[1], b"\x01\0\0\0x\x01\0\0\0x", false);
        check(Datatype::Bytes, &[1], b"\x09\0\0\0x", false);
    }
}
