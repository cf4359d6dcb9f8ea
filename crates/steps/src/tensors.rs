//! Tensors as slices of numbers or strings, and back, without a copy where the memory allows.

use std::borrow::Cow;

use base::error::Error;
use base::tensor::strings::{Strings, encode};
use base::tensor::{Datatype, Shape, Tensor};
use bytemuck::{NoUninit, Pod, try_cast_slice};
use bytes::Bytes;
use half::{bf16, f16};

/// The elements as FP32. Integers and other floats are converted; an FP32 tensor is not copied if it is aligned.
///
/// # Errors
/// `InvalidArgument` for strings: the text names the port.
pub fn floats<'a>(port: &str, tensor: &'a Tensor) -> Result<Cow<'a, [f32]>, Error> {
    let contents = &tensor.contents[..];
    #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "as numpy's astype(float32)")]
    Ok(match tensor.datatype {
        Datatype::Fp32 => elements::<f32>(contents),
        Datatype::Bf16 => elements::<bf16>(contents).iter().map(|value| value.to_f32()).collect(),
        Datatype::Bool | Datatype::Uint8 => contents.iter().map(|value| f32::from(*value)).collect(),
        Datatype::Fp16 => elements::<f16>(contents).iter().map(|value| value.to_f32()).collect(),
        Datatype::Fp64 => elements::<f64>(contents).iter().map(|value| *value as f32).collect(),
        Datatype::Int8 => elements::<i8>(contents).iter().map(|value| f32::from(*value)).collect(),
        Datatype::Int16 => elements::<i16>(contents).iter().map(|value| f32::from(*value)).collect(),
        Datatype::Int32 => elements::<i32>(contents).iter().map(|value| *value as f32).collect(),
        Datatype::Int64 => elements::<i64>(contents).iter().map(|value| *value as f32).collect(),
        Datatype::Uint16 => elements::<u16>(contents).iter().map(|value| f32::from(*value)).collect(),
        Datatype::Uint32 => elements::<u32>(contents).iter().map(|value| *value as f32).collect(),
        Datatype::Uint64 => elements::<u64>(contents).iter().map(|value| *value as f32).collect(),
        Datatype::Bytes => return Err(wrong_datatype(port, "numbers", tensor)),
    })
}

/// The elements as FP64. All numbers but the largest integers of 64 bits keep their value.
///
/// # Errors
/// `InvalidArgument` for strings: the text names the port.
pub fn doubles<'a>(port: &str, tensor: &'a Tensor) -> Result<Cow<'a, [f64]>, Error> {
    let contents = &tensor.contents[..];
    #[expect(clippy::cast_precision_loss, reason = "as numpy's astype(float64)")]
    Ok(match tensor.datatype {
        Datatype::Fp64 => elements::<f64>(contents),
        Datatype::Int64 => elements::<i64>(contents).iter().map(|value| *value as f64).collect(),
        Datatype::Uint64 => elements::<u64>(contents).iter().map(|value| *value as f64).collect(),
        Datatype::Int32 => elements::<i32>(contents).iter().map(|value| f64::from(*value)).collect(),
        Datatype::Uint32 => elements::<u32>(contents).iter().map(|value| f64::from(*value)).collect(),
        _ => floats(port, tensor)?.iter().map(|value| f64::from(*value)).collect(),
    })
}

/// The elements of a UINT64 tensor.
///
/// # Errors
/// `InvalidArgument` for another datatype: the text names the port.
pub fn unsigned<'a>(port: &str, tensor: &'a Tensor) -> Result<Cow<'a, [u64]>, Error> {
    match tensor.datatype {
        Datatype::Uint64 => Ok(elements::<u64>(&tensor.contents)),
        _ => Err(wrong_datatype(port, "UINT64", tensor)),
    }
}

/// The elements as INT64.
///
/// # Errors
/// `InvalidArgument` for floats, strings and UINT64: the text names the port.
pub fn integers<'a>(port: &str, tensor: &'a Tensor) -> Result<Cow<'a, [i64]>, Error> {
    let contents = &tensor.contents[..];
    Ok(match tensor.datatype {
        Datatype::Bool | Datatype::Uint8 => contents.iter().map(|value| i64::from(*value)).collect(),
        Datatype::Int8 => elements::<i8>(contents).iter().map(|value| i64::from(*value)).collect(),
        Datatype::Int16 => elements::<i16>(contents).iter().map(|value| i64::from(*value)).collect(),
        Datatype::Int32 => elements::<i32>(contents).iter().map(|value| i64::from(*value)).collect(),
        Datatype::Int64 => elements::<i64>(contents),
        Datatype::Uint16 => elements::<u16>(contents).iter().map(|value| i64::from(*value)).collect(),
        Datatype::Uint32 => elements::<u32>(contents).iter().map(|value| i64::from(*value)).collect(),
        Datatype::Bf16 | Datatype::Bytes | Datatype::Fp16 | Datatype::Fp32 | Datatype::Fp64 | Datatype::Uint64 => {
            return Err(wrong_datatype(port, "integers of at most 64 bits with a sign", tensor));
        }
    })
}

/// The elements of a `BYTES` tensor.
///
/// # Errors
/// `InvalidArgument` for numbers, or a length beyond the contents: the text names the port.
pub fn strings<'a>(port: &str, tensor: &'a Tensor) -> Result<Vec<&'a [u8]>, Error> {
    if tensor.datatype != Datatype::Bytes {
        return Err(wrong_datatype(port, "BYTES", tensor));
    }
    let broken = |_| Error::invalid(format!("'{port}' has an element that is longer than the contents of the tensor"));
    Strings::new(&tensor.contents).collect::<Result<_, _>>().map_err(broken)
}

/// Checks that the contents have the size of the shape; for strings, that there is room for their lengths.
///
/// # Errors
/// `InvalidArgument` if they have another: the text names the port.
pub fn check_size(port: &str, tensor: &Tensor) -> Result<(), Error> {
    if tensor.has_its_size() {
        return Ok(());
    }
    let shape = &tensor.shape[..];
    Err(Error::invalid(format!("'{port}' has contents of another size than its shape {shape:?}")))
}

/// The sizes of the last `N` dimensions, after any number of rows.
///
/// # Errors
/// `InvalidArgument` if there are fewer, or the contents have another size: the text names the port and `meaning`
/// (`[classes]`).
pub fn trailing<const N: usize>(port: &str, meaning: &str, tensor: &Tensor) -> Result<(usize, [usize; N]), Error> {
    let wrong = || {
        let shape = &tensor.shape[..];
        Error::invalid(format!("'{port}' must have a shape that ends with {meaning}, but its shape is {shape:?}"))
    };
    let start = tensor.shape.len().checked_sub(N).ok_or_else(wrong)?;
    check_size(port, tensor)?;
    let (rows, last) = tensor.shape.split_at(start);
    let mut sizes = [0; N];
    for (size, dimension) in sizes.iter_mut().zip(last) {
        *size = usize::try_from(*dimension).map_err(|_| wrong())?;
    }
    let rows = base::tensor::element_count(rows).map_err(|_| wrong())?;
    Ok((rows, sizes))
}

/// A tensor of numbers that takes over their memory.
pub fn of_numbers<T: NoUninit + Send + Sync>(datatype: Datatype, shape: &[usize], values: Vec<T>) -> Tensor {
    debug_assert_eq!(datatype.size(), Some(size_of::<T>()), "the datatype has the size of its elements");
    Tensor { datatype, shape: shape_of(shape), contents: Bytes::from_owner(OwnedNumbers(values)) }
}

/// A tensor of FP32.
pub fn of_floats(shape: &[usize], values: Vec<f32>) -> Tensor {
    of_numbers(Datatype::Fp32, shape, values)
}

/// A tensor of strings.
pub fn of_strings<S: AsRef<[u8]>>(shape: &[usize], values: impl IntoIterator<Item = S>) -> Tensor {
    let mut contents = Vec::new();
    for value in values {
        encode(value.as_ref(), &mut contents);
    }
    Tensor { datatype: Datatype::Bytes, shape: shape_of(shape), contents: contents.into() }
}

/// A shape of the wire.
pub fn shape_of(sizes: &[usize]) -> Shape {
    sizes.iter().map(|size| i64::try_from(*size).unwrap_or(i64::MAX)).collect()
}

/// The shape of an output: the dimensions of `input` before its last `count`, then `sizes`.
pub fn rows_and(input: &Tensor, count: usize, sizes: &[usize]) -> Shape {
    let leading = input.shape.get(..input.shape.len().saturating_sub(count)).unwrap_or_default();
    leading.iter().copied().chain(shape_of(sizes)).collect()
}

/// The error of a tensor of another datatype than a step takes.
pub fn wrong_datatype(port: &str, expected: &str, tensor: &Tensor) -> Error {
    Error::invalid(format!("'{port}' must hold {expected}, but it is {}", tensor.datatype.name()))
}

/// Numbers in place if they are aligned, otherwise in a copy.
fn elements<T: Pod>(contents: &[u8]) -> Cow<'_, [T]> {
    match try_cast_slice(contents) {
        Ok(elements) => Cow::Borrowed(elements),
        Err(_) => contents.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect(),
    }
}

/// Memory of numbers, seen as bytes.
struct OwnedNumbers<T>(Vec<T>);

impl<T: NoUninit> AsRef<[u8]> for OwnedNumbers<T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}
