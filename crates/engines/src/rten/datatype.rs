//! The datatypes at the boundary of the embedded engine, which computes on f32, i32, i8 and u8: the
//! one that represents each datatype of the protocol, and the exact conversions both ways.

use bytemuck::NoUninit;
use bytes::Bytes;
use half::f16;
use rten::{DataType, Value, ValueType, ValueView};
use rten_tensor::{Layout, Tensor as RtenTensor};

use backend::batch::InputConversion;
use base::error::Error;
use base::tensor::{AlignedBuffer, Datatype};

/// The alternative for anything that this engine lacks.
pub(super) const ALTERNATIVE: &str = "serve the model with ONNX Runtime (--backend-config=onnxruntime,library=PATH)";

/// The engine's datatype that represents a datatype; `None` if no datatype represents all its
/// values, except that INT64 is 32 bits: inputs beyond them are refused. FP16 is computed in FP32
/// and rounded once, at the end.
pub(super) const fn held_as(datatype: Datatype) -> Option<DataType> {
    match datatype {
        Datatype::Fp16 | Datatype::Fp32 => Some(DataType::Float),
        Datatype::Bool | Datatype::Int32 | Datatype::Int64 => Some(DataType::Int32),
        Datatype::Int8 => Some(DataType::Int8),
        Datatype::Uint8 => Some(DataType::UInt8),
        _ => None,
    }
}

/// The datatype that an engine's datatype is without conversion.
pub(super) const fn natural(held: DataType) -> Option<Datatype> {
    match held {
        DataType::Float => Some(Datatype::Fp32),
        DataType::Int32 => Some(Datatype::Int32),
        DataType::Int8 => Some(Datatype::Int8),
        DataType::UInt8 => Some(Datatype::Uint8),
        _ => None,
    }
}

/// The conversion of inputs of a datatype for the engine.
pub(super) const fn conversion(datatype: Datatype) -> InputConversion {
    match datatype {
        Datatype::Bool => InputConversion { alignment: 4, convert: Some(bools_to_ints) },
        Datatype::Fp16 => InputConversion { alignment: 4, convert: Some(halves_to_floats) },
        Datatype::Int64 => InputConversion { alignment: 4, convert: Some(longs_to_ints) },
        Datatype::Int8 | Datatype::Uint8 => InputConversion { alignment: 1, convert: None },
        _ => InputConversion { alignment: 4, convert: None },
    }
}

/// An input as the engine's tensor, which borrows the contents. They went through [`conversion`].
pub(super) fn view<'a>(held: DataType, shape: &[usize], contents: &'a [u8]) -> Option<ValueView<'a>> {
    match held {
        DataType::Float => ValueView::from_shape::<f32>(shape, bytemuck::try_cast_slice(contents).ok()?).ok(),
        DataType::Int32 => ValueView::from_shape::<i32>(shape, bytemuck::try_cast_slice(contents).ok()?).ok(),
        DataType::Int8 => ValueView::from_shape::<i8>(shape, bytemuck::try_cast_slice(contents).ok()?).ok(),
        DataType::UInt8 => ValueView::from_shape::<u8>(shape, contents).ok(),
        _ => None,
    }
}

/// The bytes of an output in its datatype: the engine's own memory if no conversion is needed.
/// `None` if the engine's output has another datatype than that of [`held_as`].
pub(super) fn contents(value: Value, datatype: Datatype) -> Option<Bytes> {
    match (value, datatype) {
        (Value::FloatTensor(tensor), Datatype::Fp32) => Some(shared(tensor.into_data())),
        (Value::FloatTensor(tensor), Datatype::Fp16) => Some(floats_to_halves(tensor)),
        (Value::Int32Tensor(tensor), Datatype::Int32) => Some(shared(tensor.into_data())),
        (Value::Int32Tensor(tensor), Datatype::Int64) => Some(widened(tensor)),
        (Value::Int32Tensor(tensor), Datatype::Bool) => Some(ints_to_bools(tensor)),
        (Value::Int8Tensor(tensor), Datatype::Int8) => Some(shared(tensor.into_data())),
        (Value::UInt8Tensor(tensor), Datatype::Uint8) => Some(Bytes::from(tensor.into_data())),
        _ => None,
    }
}

/// The name of an output's datatype, for an error.
pub(super) fn kind_name(kind: ValueType) -> &'static str {
    match kind {
        ValueType::Tensor(held) => natural(held).map_or("an unknown datatype", Datatype::name),
        _ => "a sequence",
    }
}

/// The shape of an output.
pub(super) fn shape(value: &Value) -> impl Iterator<Item = i64> {
    let shape: smallvec::SmallVec<[usize; 6]> = value.shape().iter().copied().collect();
    shape.into_iter().map(|dimension| i64::try_from(dimension).unwrap_or(i64::MAX))
}

/// The owner of an output's bytes.
struct Elements<T>(Vec<T>);

impl<T: NoUninit> AsRef<[u8]> for Elements<T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

fn shared<T: NoUninit + Send>(elements: Vec<T>) -> Bytes {
    if elements.is_empty() { Bytes::new() } else { Bytes::from_owner(Elements(elements)) }
}

fn widened(tensor: RtenTensor<i32>) -> Bytes {
    shared(tensor.into_data().into_iter().map(i64::from).collect())
}

fn ints_to_bools(tensor: RtenTensor<i32>) -> Bytes {
    Bytes::from_iter(tensor.into_data().into_iter().map(|value| u8::from(value != 0)))
}

fn bools_to_ints(contents: &[u8], out: &mut AlignedBuffer) -> Result<(), Error> {
    let space = grown(out, contents.len().checked_mul(4));
    for (value, place) in contents.iter().zip(space.as_chunks_mut::<4>().0) {
        *place = i32::from(*value != 0).to_ne_bytes();
    }
    Ok(())
}

fn floats_to_halves(tensor: RtenTensor<f32>) -> Bytes {
    shared(tensor.into_data().into_iter().map(f16::from_f32).collect())
}

fn halves_to_floats(contents: &[u8], out: &mut AlignedBuffer) -> Result<(), Error> {
    let space = grown(out, contents.len().checked_mul(2));
    for (value, place) in contents.as_chunks::<2>().0.iter().zip(space.as_chunks_mut::<4>().0) {
        *place = f16::from_le_bytes(*value).to_f32().to_ne_bytes();
    }
    Ok(())
}

fn longs_to_ints(contents: &[u8], out: &mut AlignedBuffer) -> Result<(), Error> {
    let space = grown(out, Some(contents.len() / 2));
    for (value, place) in contents.as_chunks::<8>().0.iter().zip(space.as_chunks_mut::<4>().0) {
        let value = i64::from_le_bytes(*value);
        *place = i32::try_from(value).map_err(|_| out_of_range(value))?.to_ne_bytes();
    }
    Ok(())
}

fn out_of_range(value: i64) -> Error {
    Error::invalid(format!(
        "the embedded engine computes INT64 in 32 bits and cannot take the value {value}; serve the model with ONNX \
         Runtime for values beyond [{}, {}]",
        i32::MIN,
        i32::MAX
    ))
}

/// Appends `size` bytes to the buffer and returns them.
fn grown(out: &mut AlignedBuffer, size: Option<usize>) -> &mut [u8] {
    let from = out.len();
    out.resize(from.saturating_add(size.unwrap_or(0)));
    out.as_mut_slice().get_mut(from..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_fit_exactly_or_are_refused() {
        let check = |values: &[i64], want: Result<&[i32], &str>| {
            let mut out = AlignedBuffer::default();
            let outcome = longs_to_ints(bytemuck::cast_slice(values), &mut out);
            let text = outcome.as_ref().map_err(|error| error.text().to_owned());
            match want {
                Ok(want) => {
                    assert_eq!(text, Ok(&()));
                    assert_eq!(bytemuck::cast_slice::<u8, i32>(out.as_slice()), want);
                }
                Err(want) => assert!(text.unwrap_err().contains(want), "{values:?}"),
            }
        };
        check(&[], Ok(&[]));
        check(&[0, -1, i64::from(i32::MAX), i64::from(i32::MIN)], Ok(&[0, -1, i32::MAX, i32::MIN]));
        check(&[1, 2_147_483_648], Err("cannot take the value 2147483648; serve the model with ONNX Runtime"));
        check(&[-2_147_483_649], Err("cannot take the value -2147483649"));
        check(&[i64::MIN], Err("-9223372036854775808"));
    }

    #[test]
    fn unaligned_whole_numbers_are_read_as_well() {
        let mut bytes = vec![0];
        bytes.extend(7_i64.to_le_bytes());
        let mut out = AlignedBuffer::default();
        longs_to_ints(&bytes[1..], &mut out).unwrap();
        assert_eq!(out.as_slice(), 7_i32.to_ne_bytes());
    }

    #[test]
    fn truths_are_one_or_zero_both_ways() {
        let mut out = AlignedBuffer::default();
        bools_to_ints(&[0, 1, 2, 255], &mut out).unwrap();
        assert_eq!(bytemuck::cast_slice::<u8, i32>(out.as_slice()), [0, 1, 1, 1]);
        let value = Value::from_shape([4], vec![0_i32, 1, -1, 256]).unwrap();
        assert_eq!(contents(value, Datatype::Bool).unwrap(), [0, 1, 1, 1][..]);
    }

    #[test]
    fn outputs_keep_the_engines_memory_where_nothing_changes() {
        let elements = vec![1.5_f32, -0.0];
        let address = elements.as_ptr().addr();
        let bytes = contents(Value::from_shape([2], elements).unwrap(), Datatype::Fp32).unwrap();
        assert_eq!(bytes.as_ptr().addr(), address);
        let wide = contents(Value::from_shape([2], vec![i32::MIN, 7]).unwrap(), Datatype::Int64).unwrap();
        assert_eq!(wide, bytemuck::cast_slice::<i64, u8>(&[i64::from(i32::MIN), 7]));
        let mixed = Value::from_shape([1], vec![1_i32]).unwrap();
        assert_eq!(kind_name(mixed.dtype()), "INT32");
        assert_eq!(contents(mixed, Datatype::Fp32), None);
    }

    #[test]
    fn what_is_held_at_all_has_a_conversion_that_suits_it() {
        let names: Vec<_> = Datatype::ALL.into_iter().filter(|datatype| held_as(*datatype).is_some()).collect();
        assert_eq!(
            names.iter().map(|datatype| datatype.name()).collect::<Vec<_>>().join(" "),
            "BOOL UINT8 INT8 INT32 INT64 FP16 FP32"
        );
        for datatype in names {
            let bytes = vec![0; 8];
            let mut out = AlignedBuffer::default();
            let conversion = conversion(datatype);
            match conversion.convert {
                Some(convert) => convert(&bytes, &mut out).unwrap(),
                None => out.extend_from_slice(&bytes),
            }
            let held = held_as(datatype).unwrap();
            let size = natural(held).and_then(Datatype::size).unwrap();
            assert_eq!(conversion.alignment, size, "{datatype:?}");
            assert!(view(held, &[out.len() / size], out.as_slice()).is_some(), "{datatype:?}");
        }
    }
}
