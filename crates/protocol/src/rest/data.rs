//! Decodes the `data` of an input: a JSON array, nested or flat, to the bytes of a tensor. Allocates memory for at most
//! the elements that the text can contain.

use bytemuck::Pod;
use bytes::Bytes;

use crate::check::shape_overflow;
use crate::rest::fault::{NOT_AN_ARRAY, json_error, unparsable};
use base::budget::ReceiveReservation;
use base::error::Error;
use base::tensor::strings::{self, Strings};
use base::tensor::{AlignedBuffer, Datatype, element_count};
use wire::base64;
use wire::json::{ArrayError, JsonValue, Number, RawArray, ValueKind, read_booleans, read_numbers, read_strings};

/// Decodes the elements of an input with the given name, datatype and shape, into memory that is
/// reserved first.
///
/// # Errors
///
/// `InvalidArgument` if the data is not an array of as many elements of the datatype as the shape says.
pub fn decode(
    name: &str,
    datatype: Option<Datatype>,
    shape: &[i64],
    value: JsonValue<'_, '_>,
    memory: &mut ReceiveReservation,
) -> Result<Bytes, Error> {
    match value.kind() {
        ValueKind::Raw(array) => decode_array(name, datatype, shape, array, memory),
        _ => match element_count(shape) {
            Ok(_) => Err(unparsable("data", NOT_AN_ARRAY)),
            Err(_) => Err(shape_overflow(name, shape)),
        },
    }
}

/// Decodes the strings of an input, which are base64.
///
/// # Errors
///
/// `InvalidArgument` for another datatype than `BYTES`, and for the first string that is not base64.
pub(super) fn from_base64(
    name: &str,
    datatype: Option<Datatype>,
    contents: &[u8],
    memory: &mut ReceiveReservation,
) -> Result<Bytes, Error> {
    if let Some(datatype) = datatype.filter(|datatype| *datatype != Datatype::Bytes) {
        let datatype = datatype.name();
        return Err(Error::invalid(format!("input '{name}' is {datatype}: content_type 'base64' is for BYTES")));
    }
    memory.grow(contents.len())?;
    let mut decoded = Vec::with_capacity(contents.len());
    for (index, element) in Strings::new(contents).map_while(Result::ok).enumerate() {
        let bytes = std::str::from_utf8(element).ok().and_then(base64::decode).ok_or_else(|| {
            let form = "is not base64 (RFC 4648, section 4), which its content_type states";
            Error::invalid(format!("element {index} of input '{name}' {form}"))
        })?;
        strings::encode(&bytes, &mut decoded);
    }
    Ok(Bytes::from(decoded))
}

/// Decodes the elements of an array in the same way.
pub(super) fn decode_array(
    name: &str,
    datatype: Option<Datatype>,
    shape: &[i64],
    array: &RawArray<'_>,
    memory: &mut ReceiveReservation,
) -> Result<Bytes, Error> {
    let count = element_count(shape).map_err(|_| shape_overflow(name, shape))?;
    if count == 0 {
        // As in Triton, any datatype passes if the shape has no elements; but the data must be empty.
        return elements(array, 0, read_booleans).map_err(|error| refusal(name, Datatype::Bool, error));
    }
    let Some(datatype) = datatype else {
        return Err(Error::invalid(format!("invalid datatype for input {name}")));
    };
    memory.grow(match datatype.size() {
        // Less is reserved if the text has fewer elements.
        Some(size) => count.min(array.text.len() / 2).saturating_mul(size),
        None => array.text.len(),
    })?;
    let outcome = match datatype {
        Datatype::Fp16 | Datatype::Bf16 => {
            return Err(Error::invalid(format!(
                "receiving {} data via JSON is not supported. Please use the binary data format for input {name}",
                datatype.name()
            )));
        }
        Datatype::Bytes => strings(array),
        Datatype::Bool => elements(array, count, read_booleans),
        Datatype::Uint8 => numbers::<u8>(array, count),
        Datatype::Uint16 => numbers::<u16>(array, count),
        Datatype::Uint32 => numbers::<u32>(array, count),
        Datatype::Uint64 => numbers::<u64>(array, count),
        Datatype::Int8 => numbers::<i8>(array, count),
        Datatype::Int16 => numbers::<i16>(array, count),
        Datatype::Int32 => numbers::<i32>(array, count),
        Datatype::Int64 => numbers::<i64>(array, count),
        Datatype::Fp32 => numbers::<f32>(array, count),
        Datatype::Fp64 => numbers::<f64>(array, count),
    };
    outcome.map_err(|error| refusal(name, datatype, error))
}

fn numbers<T: Number + Pod>(array: &RawArray<'_>, count: usize) -> Result<Bytes, ArrayError> {
    elements(array, count, read_numbers::<T>)
}

/// Reads `count` elements of fixed size into a new buffer.
fn elements<T: Pod>(
    array: &RawArray<'_>,
    count: usize,
    read: impl FnOnce(&RawArray<'_>, &mut [T]) -> Result<(), ArrayError>,
) -> Result<Bytes, ArrayError> {
    // An element is at least one character, followed by a comma or bracket. Checked before the allocation, so that a
    // large shape alone costs no memory.
    if count > array.text.len() / 2 {
        return array.validate().map_err(ArrayError::Json).and(Err(ArrayError::TooFew));
    }
    let mut buffer = AlignedBuffer::zeroed(count.saturating_mul(size_of::<T>()));
    let memory = bytemuck::try_cast_slice_mut(buffer.as_mut_slice()).unwrap_or_default();
    read(array, memory)?;
    Ok(buffer.freeze())
}

fn strings(array: &RawArray<'_>) -> Result<Bytes, ArrayError> {
    // A good estimate: two quotation marks and a comma become a length of 4 bytes.
    let mut contents = Vec::with_capacity(array.text.len());
    read_strings(array, &mut contents)?;
    Ok(Bytes::from(contents))
}

/// The error for the client: Triton's text for the faults that Triton detects.
fn refusal(name: &str, datatype: Datatype, error: ArrayError) -> Error {
    let kind = datatype.name();
    match error {
        ArrayError::Json(error) => json_error(error),
        ArrayError::Kind if datatype == Datatype::Bytes => {
            Error::malformed_json("Unable to parse JSON bytes array: attempt to access JSON non-string as string")
        }
        ArrayError::Kind => unparsable("data", kind_text(datatype)),
        ArrayError::Fraction { index, text } => unparsable(
            "data",
            &format!("element {index} of input '{name}' is {text}, which is not an integer as {kind} requires"),
        ),
        ArrayError::Range { index, text } => unparsable(
            "data",
            &format!("element {index} of input '{name}' is {text}, which is out of the range of {kind}"),
        ),
        ArrayError::TooFew => Error::malformed_json("Failed to parse 'data' field: shape does not match true shape"),
        ArrayError::TooMany => unparsable("data", "Shape does not match true shape of 'data' field"),
    }
}

/// Triton's text for an element of the wrong JSON type: it names the accessor of RapidJSON that failed.
const fn kind_text(datatype: Datatype) -> &'static str {
    match datatype {
        Datatype::Bool => "attempt to access JSON non-boolean as boolean",
        Datatype::Uint8 | Datatype::Uint16 | Datatype::Uint32 | Datatype::Uint64 => {
            "attempt to access JSON non-unsigned-integer as unsigned-integer"
        }
        Datatype::Int8 | Datatype::Int16 | Datatype::Int32 | Datatype::Int64 => {
            "attempt to access JSON non-signed-integer as signed-integer"
        }
        Datatype::Fp16 | Datatype::Bf16 | Datatype::Fp32 | Datatype::Fp64 => {
            "attempt to access JSON non-number as double"
        }
        Datatype::Bytes => "attempt to access JSON non-string as string",
    }
}
