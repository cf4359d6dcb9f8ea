//! Converts typed contents (`InferTensorContents`) to the bytes of a tensor. 8- and 16-bit integers are sent as
//! 32-bit ones and must be in range; FP16 and BF16 have no field and can only be sent as raw contents. Called by
//! [`super::decode()`]. A packed 64-bit integer may be one byte on the wire, so a tensor is at most eight times as
//! large as its message.

use bytes::Bytes;

use crate::grpc::message::Contents;
use base::budget::{ReceiveReservation, Shortage};
use base::error::Error;
use base::tensor::{AlignedBuffer, Datatype, strings};
use wire::protobuf::WireType;

/// The mismatch of typed contents and the datatype of their tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentsError {
    /// A second field has values as well.
    Again,
    /// The field with values belongs to this other datatype.
    Datatype(Datatype),
    /// There is no memory for the values.
    Memory(Shortage),
    /// A value is out of the datatype's range.
    Range {
        /// Its index among the values.
        index: usize,
        /// The value.
        value: i64,
    },
}

impl ContentsError {
    /// The error for a client: Triton's text, with the input's name, the model's, and the datatype that the request
    /// declares.
    pub fn into_error(self, input: &str, model: &str, datatype: Option<Datatype>) -> Error {
        let declared = datatype.map_or("<invalid>", Datatype::name);
        let tensor = format!("unexpected explicit tensor data for input tensor '{input}' for model '{model}'");
        Error::invalid(match self {
            Self::Memory(shortage) => return shortage.into(),
            Self::Again => format!("{tensor}, binary data was already supplied."),
            Self::Datatype(found) => format!("{tensor} of type '{}', expected datatype '{declared}'", found.name()),
            Self::Range { index, value } => {
                format!("element {index} of input '{input}' is {value}, which is out of the range of {declared}")
            }
        })
    }
}

/// Converts typed contents to the bytes of a tensor with the declared datatype, in memory that is reserved first.
///
/// # Errors
///
/// A [`ContentsError`] if the values are in another field than the datatype's, or out of its range, or
/// [`ContentsError::Memory`].
pub fn convert(
    contents: &Contents<'_>,
    datatype: Option<Datatype>,
    memory: &mut ReceiveReservation,
) -> Result<Bytes, ContentsError> {
    let mut filled = contents.filled();
    let Some(number) = filled.next() else { return Ok(Bytes::new()) };
    let found = field_datatype(number, datatype);
    if datatype != Some(found) {
        return Err(ContentsError::Datatype(found));
    }
    if filled.next().is_some() {
        return Err(ContentsError::Again);
    }
    let values = contents.occurrences(number);
    match found {
        Datatype::Bool => numbers(values, memory, |value| Some([u8::from(value != 0)])),
        Datatype::Int8 => numbers(values, memory, |value| Some(i8::try_from(value as i32).ok()?.to_le_bytes())),
        Datatype::Int16 => numbers(values, memory, |value| Some(i16::try_from(value as i32).ok()?.to_le_bytes())),
        Datatype::Int32 | Datatype::Uint32 => numbers(values, memory, |value| Some((value as u32).to_le_bytes())),
        Datatype::Int64 | Datatype::Uint64 => numbers(values, memory, |value| Some(value.to_le_bytes())),
        Datatype::Uint8 => numbers(values, memory, |value| Some(u8::try_from(value as u32).ok()?.to_le_bytes())),
        Datatype::Uint16 => numbers(values, memory, |value| Some(u16::try_from(value as u32).ok()?.to_le_bytes())),
        Datatype::Fp32 => concatenate(values.filter_map(|wire| Some(wire.as_fixed32s().ok()?.as_flattened())), memory),
        Datatype::Fp64 => concatenate(values.filter_map(|wire| Some(wire.as_fixed64s().ok()?.as_flattened())), memory),
        Datatype::Bytes => encode_strings(values, memory),
        // Unreachable: no field maps to them.
        Datatype::Fp16 | Datatype::Bf16 => Ok(Bytes::new()),
    }
}

/// The datatype of a field's values; a field of 32-bit integers also carries the narrower ones.
const fn field_datatype(number: u32, datatype: Option<Datatype>) -> Datatype {
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

/// Converts integers to `N` bytes each. `encode` returns `None` for a value out of range.
fn numbers<'a, const N: usize>(
    values: impl Iterator<Item = WireType<'a>> + Clone,
    memory: &mut ReceiveReservation,
    encode: impl Fn(u64) -> Option<[u8; N]>,
) -> Result<Bytes, ContentsError> {
    let values = values.filter_map(|wire| wire.as_varints().ok());
    let count: usize = values.clone().filter_map(|values| values.check().ok()).sum();
    let size = count.saturating_mul(N);
    memory.grow(size).map_err(ContentsError::Memory)?;
    let mut buffer = AlignedBuffer::zeroed(size);
    let (places, _) = buffer.as_mut_slice().as_chunks_mut::<N>();
    for (index, (place, value)) in places.iter_mut().zip(values.flatten().flatten()).enumerate() {
        *place = encode(value).ok_or(ContentsError::Range { index, value: value.cast_signed() })?;
    }
    Ok(buffer.freeze())
}

/// Concatenates fixed-width values, whose wire bytes are the tensor's.
fn concatenate<'a>(
    parts: impl Iterator<Item = &'a [u8]> + Clone,
    memory: &mut ReceiveReservation,
) -> Result<Bytes, ContentsError> {
    let size = parts.clone().map(<[u8]>::len).sum();
    memory.grow(size).map_err(ContentsError::Memory)?;
    let mut buffer = AlignedBuffer::with_capacity(size);
    parts.for_each(|part| buffer.extend_from_slice(part));
    Ok(buffer.freeze())
}

/// Encodes strings as `BYTES` elements: each after its length in 4 bytes.
fn encode_strings<'a>(
    values: impl Iterator<Item = WireType<'a>> + Clone,
    memory: &mut ReceiveReservation,
) -> Result<Bytes, ContentsError> {
    let elements = values.filter_map(|wire| wire.as_bytes().ok());
    let size = elements.clone().map(|element| element.len().saturating_add(4)).sum();
    memory.grow(size).map_err(ContentsError::Memory)?;
    let mut out = Vec::with_capacity(size);
    elements.for_each(|element| strings::encode(element, &mut out));
    Ok(out.into())
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::grpc::message::InferMessage;
    use base::limits::TENSOR_ALIGNMENT;
    use wire::proto::inference::InferTensorContents;
    use wire::protobuf::put_bytes_head;

    /// Converts the contents of one input; each part is an occurrence of its `contents`.
    fn outcome(parts: &[Vec<u8>], datatype: &str) -> Result<Bytes, String> {
        let mut input = Vec::new();
        for part in parts {
            put_bytes_head(5, part.len(), &mut input);
            input.extend(part);
        }
        let mut message = Vec::new();
        put_bytes_head(5, input.len(), &mut message);
        message.extend(input);
        let message = Bytes::from(message);
        let message = InferMessage::read(&message).unwrap();
        let datatype = Datatype::from_name(datatype);
        let contents =
            convert(message.inputs[0].contents.as_ref().unwrap(), datatype, &mut ReceiveReservation::default());
        contents.map_err(|error| error.into_error("A", "m", datatype).text().to_owned())
    }

    fn of(fill: impl FnOnce(&mut InferTensorContents)) -> Vec<u8> {
        let mut contents = InferTensorContents::default();
        fill(&mut contents);
        contents.encode_to_vec()
    }

    #[test]
    fn every_field_becomes_little_endian_bytes() {
        let check = |datatype: &str, contents: Vec<u8>, want: &[u8]| {
            let got = outcome(&[contents], datatype);
            assert_eq!(got.as_deref(), Ok(want), "{datatype}");
            let is_aligned = got.is_ok_and(|bytes| bytes.as_ptr().addr().is_multiple_of(TENSOR_ALIGNMENT));
            assert!(is_aligned || datatype == "BYTES", "{datatype}");
        };
        check("BOOL", of(|contents| contents.bool_contents = vec![true, false]), &[1, 0]);
        check("INT8", of(|contents| contents.int_contents = vec![-128, 127]), &[128, 127]);
        check("INT16", of(|contents| contents.int_contents = vec![-32768, 1]), &[0, 128, 1, 0]);
        check("INT32", of(|contents| contents.int_contents = vec![-2]), &[254, 255, 255, 255]);
        check("INT64", of(|contents| contents.int64_contents = vec![-2]), &[254, 255, 255, 255, 255, 255, 255, 255]);
        check("UINT8", of(|contents| contents.uint_contents = vec![0, 255]), &[0, 255]);
        check("UINT16", of(|contents| contents.uint_contents = vec![65535]), &[255, 255]);
        check("UINT32", of(|contents| contents.uint_contents = vec![u32::MAX]), &[255; 4]);
        check(
            "UINT64",
            of(|contents| contents.uint64_contents = vec![u64::MAX, 1]),
            &[255, 255, 255, 255, 255, 255, 255, 255, 1, 0, 0, 0, 0, 0, 0, 0],
        );
        check("FP32", of(|contents| contents.fp32_contents = vec![1.0, -0.5]), bytemuck::bytes_of(&[1.0_f32, -0.5]));
        check("FP64", of(|contents| contents.fp64_contents = vec![1.5]), &1.5_f64.to_le_bytes());
        check("BYTES", of(|contents| contents.bytes_contents = vec![b"ab".to_vec(), vec![]]), b"\x02\0\0\0ab\0\0\0\0");
    }

    #[test]
    fn values_come_packed_or_not_and_in_any_number_of_parts() {
        let parts = [vec![16, 1, 18, 2, 2, 3], vec![], vec![16, 4, 80, 9]]; // field 10 is unknown
        assert_eq!(outcome(&parts, "INT8").as_deref(), Ok(&[1, 2, 3, 4][..]));
        let float = [53, 0, 0, 128, 63].to_vec();
        assert_eq!(outcome(&[float.clone(), float], "FP32").as_deref(), Ok(&[0, 0, 128, 63, 0, 0, 128, 63][..]));
        assert_eq!(outcome(&[vec![]], "FP16").as_deref(), Ok(&[][..]));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let check = |datatype: &str, contents: Vec<u8>, want: &str| {
            assert_eq!(outcome(&[contents], datatype), Err(want.to_owned()), "{datatype}");
        };
        let range = |index: usize, value: i64, datatype: &str| {
            format!("element {index} of input 'A' is {value}, which is out of the range of {datatype}")
        };
        check("INT8", of(|contents| contents.int_contents = vec![1, -129]), &range(1, -129, "INT8"));
        check("INT16", of(|contents| contents.int_contents = vec![32768]), &range(0, 32768, "INT16"));
        check("UINT8", of(|contents| contents.uint_contents = vec![256]), &range(0, 256, "UINT8"));
        check("UINT16", of(|contents| contents.uint_contents = vec![65536]), &range(0, 65536, "UINT16"));
        let fp32 = || of(|contents| contents.fp32_contents = vec![1.0]);
        let tensor = "unexpected explicit tensor data for input tensor 'A' for model 'm'";
        check("INT32", fp32(), &format!("{tensor} of type 'FP32', expected datatype 'INT32'"));
        check("FP16", fp32(), &format!("{tensor} of type 'FP32', expected datatype 'FP16'"));
        check("float", fp32(), &format!("{tensor} of type 'FP32', expected datatype '<invalid>'"));
        let both = of(|contents| (contents.bool_contents, contents.fp32_contents) = (vec![true], vec![1.0]));
        check("BOOL", both, &format!("{tensor}, binary data was already supplied."));
    }

    #[test]
    fn values_take_memory_by_what_they_become() {
        use std::rc::Rc;

        use base::budget::{ReceiveBudget, testing};
        let check = |contents: &[u8], datatype: Datatype, size: usize| {
            let mut input = Vec::new();
            put_bytes_head(5, contents.len(), &mut input);
            input.extend(contents);
            let mut message = Vec::new();
            put_bytes_head(5, input.len(), &mut message);
            message.extend(input);
            let message = Bytes::from(message);
            let message = InferMessage::read(&message).unwrap();
            for (size_max, fits) in [(size, true), (size - 1, false)] {
                let memory = testing::Bytes::new(size_max);
                let mut reservation = ReceiveReservation::new(Some(Rc::clone(&memory) as Rc<dyn ReceiveBudget>));
                let contents = message.inputs[0].contents.as_ref().unwrap();
                let outcome = convert(contents, Some(datatype), &mut reservation);
                assert_eq!(outcome.is_ok(), fits, "{datatype:?}");
                assert_eq!((memory.reserved.get(), reservation.is_short()), (if fits { size } else { 0 }, !fits));
                if let Err(error) = outcome {
                    let error = error.into_error("A", "m", Some(datatype));
                    assert_eq!(error.code(), base::error::Code::TooLarge);
                    assert!(error.text().contains("--receive-memory-bytes-max"));
                }
            }
        };
        check(&of(|contents| contents.int64_contents = vec![1; 100]), Datatype::Int64, 800);
        check(&of(|contents| contents.int_contents = vec![1; 100]), Datatype::Int8, 100);
        check(&of(|contents| contents.fp32_contents = vec![1.0; 100]), Datatype::Fp32, 400);
        check(&of(|contents| contents.bytes_contents = vec![vec![]; 100]), Datatype::Bytes, 400);
    }
}
