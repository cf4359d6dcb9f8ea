//! REST: bodies of inference requests to [`InferRequest`](super::infer::InferRequest), results and
//! errors to replies. Decoding borrows the body; encoding hands tensors on without a copy. Pure;
//! bounded by the size of the body and the limits on inputs, parameters and values.

mod data;
pub mod decode;
pub mod encode;
pub mod server;

pub use decode::{HeaderLength, decode};
pub use encode::{encode, error_reply};

use bytes::Bytes;

use crate::model::ModelSpec;
use crate::tensor::byte_size;

/// Decodes any bytes as a request: the first two are the length of the header, little-endian and
/// signed, or absent where they are `0xffff`; what follows is the body. See [`exercise`].
pub fn exercise_bytes(spec: &ModelSpec, bytes: &[u8]) {
    let Some((length, body)) = bytes.split_first_chunk::<2>() else { return };
    let header_length = match i16::from_le_bytes(*length) {
        -1 => HeaderLength::Absent,
        size => HeaderLength::Size(i32::from(size)),
    };
    exercise(spec, header_length, body);
}

/// Decodes any body and checks what must hold of every request that is accepted: inputs of the
/// size their shape says, rows within the model's, a binary section that is used up. For fuzzing.
pub fn exercise(spec: &ModelSpec, header_length: HeaderLength, body: &[u8]) {
    let body = Bytes::copy_from_slice(body);
    let Ok(request) = decode(spec, header_length, body.clone()) else { return };
    assert_eq!(request.inputs.len(), spec.inputs.len(), "every input has its place");
    assert!((1..=spec.rows_max.max(1)).contains(&request.rows), "rows are within the model's");
    for (input, expected) in request.inputs.iter().zip(&spec.inputs) {
        let size = byte_size(input.datatype, &input.shape).expect("an accepted shape has a size");
        let is_left_out = expected.is_optional && input.shape.is_empty();
        assert!(is_left_out || size.is_none_or(|size| size == input.contents.len()), "contents fit the shape");
    }
    assert!(request.plan.outputs.iter().all(|plan| plan.index < spec.outputs.len()), "outputs are the model's");
    let views = request.inputs.iter().filter(|input| is_within(&body, &input.contents));
    let used: usize = views.map(|input| input.contents.len()).sum();
    match header_length {
        HeaderLength::Absent => assert_eq!(used, 0, "JSON has no binary section"),
        // A raw string gets its length before it, and so is copied.
        HeaderLength::Size(0) => assert!(used == 0 || used == body.len(), "a raw body is one tensor"),
        HeaderLength::Size(size) => {
            let size = usize::try_from(size).expect("an accepted length is a size");
            assert_eq!(used, body.len().saturating_sub(size), "the binary section is used up");
        }
    }
}

/// Whether a view lies in a body.
fn is_within(body: &Bytes, view: &Bytes) -> bool {
    let start = body.as_ptr() as usize;
    (start..start.saturating_add(body.len())).contains(&(view.as_ptr() as usize)) && !view.is_empty()
}

#[cfg(test)]
mod tests;
