//! Typed contents (`InferTensorContents`) as the bytes of a tensor. 8- and 16-bit integers travel as
//! 32-bit ones and must fit; FP16 and BF16 have no field and come as raw contents only. Called by
//! [`super::decode`]. A packed 64-bit integer may take one byte on the wire, so that a tensor has at
//! most eight times the bytes of its message.

use bytes::Bytes;

use crate::error::Error;
use crate::protocol::grpc::message::Contents;
use crate::tensor::{AlignedBuffer, Datatype, strings};
use crate::wire::protobuf::Wire;

/// Why contents are not those of the tensor they came with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentsError {
    /// Values in a second field as well.
    Again,
    /// The field that has values is that of another datatype.
    Datatype(Datatype),
    /// A value that the datatype does not hold.
    Range(i64),
}

impl ContentsError {
    /// The text for an input of a model, which was declared with a datatype.
    pub fn into_error(self, input: &str, model: &str, datatype: Option<Datatype>) -> Error {
        let declared = datatype.map_or("<invalid>", Datatype::name);
        let tensor = format!("unexpected explicit tensor data for input tensor '{input}' for model '{model}'");
        Error::invalid(match self {
            Self::Again => format!("{tensor}, binary data was already supplied."),
            Self::Datatype(held) => format!("{tensor} of type '{}', expected datatype '{declared}'", held.name()),
            Self::Range(value) => {
                format!("value {value} of input tensor '{input}' for model '{model}' does not fit datatype {declared}")
            }
        })
    }
}

/// The bytes of a tensor of a datatype.
pub fn convert(contents: &Contents<'_>, datatype: Option<Datatype>) -> Result<Bytes, ContentsError> {
    let mut filled = contents.filled();
    let Some(number) = filled.next() else { return Ok(Bytes::new()) };
    let held = held(number, datatype);
    if datatype != Some(held) {
        return Err(ContentsError::Datatype(held));
    }
    if filled.next().is_some() {
        return Err(ContentsError::Again);
    }
    let values = contents.occurrences(number);
    match held {
        Datatype::Bool => numbers(values, |value| Some([u8::from(value != 0)])),
        Datatype::Int8 => numbers(values, |value| Some(i8::try_from(value as i32).ok()?.to_le_bytes())),
        Datatype::Int16 => numbers(values, |value| Some(i16::try_from(value as i32).ok()?.to_le_bytes())),
        Datatype::Int32 | Datatype::Uint32 => numbers(values, |value| Some((value as u32).to_le_bytes())),
        Datatype::Int64 | Datatype::Uint64 => numbers(values, |value| Some(value.to_le_bytes())),
        Datatype::Uint8 => numbers(values, |value| Some(u8::try_from(value as u32).ok()?.to_le_bytes())),
        Datatype::Uint16 => numbers(values, |value| Some(u16::try_from(value as u32).ok()?.to_le_bytes())),
        Datatype::Fp32 => Ok(joined(values.filter_map(|wire| Some(wire.as_fixed32s().ok()?.as_flattened())))),
        Datatype::Fp64 => Ok(joined(values.filter_map(|wire| Some(wire.as_fixed64s().ok()?.as_flattened())))),
        Datatype::Bytes => Ok(elements(values)),
        // They have no field, so that what is held is never one of them.
        Datatype::Fp16 | Datatype::Bf16 => Ok(Bytes::new()),
    }
}

/// What the values of a field are, for an input of a datatype.
const fn held(number: u32, datatype: Option<Datatype>) -> Datatype {
    match (number, datatype) {
        (1, _) => Datatype::Bool,
        (2, Some(narrow @ (Datatype::Int8 | Datatype::Int16))) => narrow,
        (2, _) => Datatype::Int32,
        (3, _) => Datatype::Int64,
        (4, Some(narrow @ (Datatype::Uint8 | Datatype::Uint16))) => narrow,
        (4, _) => Datatype::Uint32,
        (5, _) => Datatype::Uint64,
        (6, _) => Datatype::Fp32,
        (7, _) => Datatype::Fp64,
        _ => Datatype::Bytes,
    }
}

/// Each integer as `N` bytes. Where it does not fit, `encode` has nothing.
fn numbers<'a, const N: usize>(
    values: impl Iterator<Item = Wire<'a>> + Clone,
    encode: impl Fn(u64) -> Option<[u8; N]>,
) -> Result<Bytes, ContentsError> {
    let values = values.filter_map(|wire| wire.as_varints().ok());
    let count: usize = values.clone().filter_map(|values| values.check().ok()).sum();
    let mut buffer = AlignedBuffer::zeroed(count.saturating_mul(N));
    let (places, _) = buffer.as_mut_slice().as_chunks_mut::<N>();
    for (place, value) in places.iter_mut().zip(values.flatten().flatten()) {
        *place = encode(value).ok_or(ContentsError::Range(value.cast_signed()))?;
    }
    Ok(buffer.freeze())
}

fn joined<'a>(parts: impl Iterator<Item = &'a [u8]> + Clone) -> Bytes {
    let mut buffer = AlignedBuffer::with_capacity(parts.clone().map(<[u8]>::len).sum());
    parts.for_each(|part| buffer.extend_from_slice(part));
    buffer.freeze()
}

fn elements<'a>(values: impl Iterator<Item = Wire<'a>> + Clone) -> Bytes {
    let elements = values.filter_map(|wire| wire.as_bytes().ok());
    let mut out = Vec::with_capacity(elements.clone().map(|element| element.len().saturating_add(4)).sum());
    elements.for_each(|element| strings::encode(element, &mut out));
    out.into()
}
