//! BYTES tensors into and out of ONNX Runtime, which allocates each string separately: one copy in
//! each direction. The crate `ort` passes only text without zero bytes. The protocol's BYTES
//! may be any bytes, and so may the library's strings, so this file calls the C interface directly.
#![expect(unsafe_code, reason = "the library's interface to strings that are not text")]

use std::ffi::c_char;
use std::ptr;

use ort::AsPointer;
use ort::memory::Allocator;
use ort::value::{DynTensor, DynValue, Shape, TensorElementType};

use base::error::Error;
use base::tensor::element_count;
use base::tensor::strings::{Strings, encode};

use super::told;

/// Makes a tensor of strings from the contents of a BYTES tensor.
///
/// # Errors
///
/// Internal if the contents do not have as many strings as the shape says.
pub(super) fn value(shape: &[i64], contents: &[u8]) -> Result<DynTensor, Error> {
    let mismatch = || Error::internal("a BYTES tensor was staged whose strings do not match its shape");
    let count = element_count(shape).map_err(|_| mismatch())?;
    let shape = Shape::new(shape.iter().copied());
    let tensor = DynTensor::new(&Allocator::default(), TensorElementType::String, shape);
    let mut tensor = tensor.map_err(|error| told(&error))?;
    let mut strings = Strings::new(contents);
    for index in 0..count {
        let string = strings.next().and_then(Result::ok).ok_or_else(mismatch)?;
        set(&mut tensor, index, string)?;
    }
    if strings.next().is_none() { Ok(tensor) } else { Err(mismatch()) }
}

/// Makes the contents of a BYTES tensor from a tensor of strings.
///
/// # Errors
///
/// Internal if the value is not a tensor of strings, or the library fails.
pub(super) fn contents(value: &DynValue) -> Result<Vec<u8>, Error> {
    let Some((TensorElementType::String, shape)) = value.dtype().tensor_type().zip(value.dtype().tensor_shape()) else {
        return Err(Error::internal("an output that must be strings has another datatype"));
    };
    let count = element_count(shape).map_err(|_| Error::internal("an output has an impossible shape"))?;
    let mut size = 0;
    // SAFETY: the value lives, and is a tensor of strings, as was just seen; `size` is written to.
    let status = unsafe { (ort::api().GetStringTensorDataLength)(value.ptr(), &raw mut size) };
    check(status)?;
    let (mut bytes, mut offsets) = (vec![0_u8; size], vec![0_usize; count]);
    let (bytes_at, offsets_at) = (bytes.as_mut_ptr().cast(), offsets.as_mut_ptr());
    // SAFETY: the value is a tensor of `count` strings of `size` bytes together, which nothing
    // changes meanwhile; both buffers have the sizes passed to the call.
    let status = unsafe { (ort::api().GetStringTensorContent)(value.ptr(), bytes_at, size, offsets_at, count) };
    check(status)?;
    let mut out = Vec::with_capacity(size.saturating_add(count.saturating_mul(4)));
    let ends = offsets.iter().copied().skip(1).chain([size]);
    for (from, to) in offsets.iter().copied().zip(ends) {
        let string = bytes.get(from..to).ok_or_else(|| Error::internal("an output has strings outside its bytes"))?;
        encode(string, &mut out);
    }
    Ok(out)
}

fn set(tensor: &mut DynTensor, index: usize, string: &[u8]) -> Result<(), Error> {
    let mut place: *mut c_char = ptr::null_mut();
    // SAFETY: the tensor lives, is one of strings and borrowed exclusively; the library refuses an
    // index beyond its elements; `place` is written to.
    let status = unsafe {
        (ort::api().GetResizedStringTensorElementBuffer)(tensor.ptr_mut(), index, string.len(), &raw mut place)
    };
    check(status)?;
    if place.is_null() && !string.is_empty() {
        return Err(Error::internal("ONNX Runtime allocated no room for a string"));
    }
    if !string.is_empty() {
        // SAFETY: `place` is not null and begins `string.len()` bytes of the element, which belongs
        // to the tensor that is borrowed exclusively; `string` is not part of it.
        unsafe { ptr::copy_nonoverlapping(string.as_ptr(), place.cast(), string.len()) };
    }
    Ok(())
}

fn check(status: ort::sys::OrtStatusPtr) -> Result<(), Error> {
    // SAFETY: the status came from a call just now, and is handed over once.
    let outcome = unsafe { ort::Error::result_from_status(status) };
    outcome.map_err(|error| told(&error))
}
