//! The datatypes of the protocol at the boundary of ONNX Runtime, which has all of them. Requests'
//! bytes become its tensors, and its tensors' memory becomes answers' bytes, both without a copy
//! (except BYTES).

use std::sync::Arc;

use bytemuck::NoUninit;
use bytes::Bytes;
use half::{bf16, f16};
use ort::session::{SessionInputValue, SharedSessionInner};
use ort::value::{DynValue, PrimitiveTensorElementType, TensorElementType, TensorRef};

use backend::batch::InputConversion;
use backend::bits::bools_to_bits;
use base::error::Error;
use base::tensor::Datatype;

use super::{strings, told};

/// The library's name for a datatype.
pub(super) const fn element_type(datatype: Datatype) -> TensorElementType {
    match datatype {
        Datatype::Bool => TensorElementType::Bool,
        Datatype::Uint8 => TensorElementType::Uint8,
        Datatype::Uint16 => TensorElementType::Uint16,
        Datatype::Uint32 => TensorElementType::Uint32,
        Datatype::Uint64 => TensorElementType::Uint64,
        Datatype::Int8 => TensorElementType::Int8,
        Datatype::Int16 => TensorElementType::Int16,
        Datatype::Int32 => TensorElementType::Int32,
        Datatype::Int64 => TensorElementType::Int64,
        Datatype::Fp16 => TensorElementType::Float16,
        Datatype::Bf16 => TensorElementType::Bfloat16,
        Datatype::Fp32 => TensorElementType::Float32,
        Datatype::Fp64 => TensorElementType::Float64,
        Datatype::Bytes => TensorElementType::String,
    }
}

/// The datatype for a library's name; `None` if the protocol does not have it.
pub(super) fn natural(ty: TensorElementType) -> Option<Datatype> {
    Datatype::ALL.into_iter().find(|datatype| element_type(*datatype) == ty)
}

/// The conversion of inputs of a datatype for the library: none, if their address is aligned for
/// its elements. A BOOL becomes 0 or 1, since any other value is undefined behaviour in C++.
pub(super) fn conversion(datatype: Datatype) -> InputConversion {
    match datatype {
        Datatype::Bool => InputConversion { alignment: 1, convert: Some(bools_to_bits) },
        _ => InputConversion { alignment: datatype.size().unwrap_or(1), convert: None },
    }
}

/// An input as the library's tensor, which borrows the contents. They went through [`conversion`].
///
/// # Errors
///
/// Internal if the contents are not aligned or do not have the size of the shape.
pub(super) fn value<'a>(
    datatype: Datatype,
    shape: &'a [i64],
    contents: &'a [u8],
) -> Result<SessionInputValue<'a>, Error> {
    match datatype {
        Datatype::Bool => match bytemuck::checked::try_cast_slice(contents) {
            Ok(elements) => of_elements::<bool>(shape, elements),
            Err(_) => Err(Error::internal("a BOOL was staged that is neither 0 nor 1")),
        },
        Datatype::Uint8 => view::<u8>(shape, contents),
        Datatype::Uint16 => view::<u16>(shape, contents),
        Datatype::Uint32 => view::<u32>(shape, contents),
        Datatype::Uint64 => view::<u64>(shape, contents),
        Datatype::Int8 => view::<i8>(shape, contents),
        Datatype::Int16 => view::<i16>(shape, contents),
        Datatype::Int32 => view::<i32>(shape, contents),
        Datatype::Int64 => view::<i64>(shape, contents),
        Datatype::Fp16 => view::<f16>(shape, contents),
        Datatype::Bf16 => view::<bf16>(shape, contents),
        Datatype::Fp32 => view::<f32>(shape, contents),
        Datatype::Fp64 => view::<f64>(shape, contents),
        Datatype::Bytes => strings::value(shape, contents).map(SessionInputValue::from),
    }
}

/// The bytes of an output of this datatype. They are the library's own memory, which is released when
/// the last answer that has a part of it is dropped.
///
/// # Errors
///
/// The library's error if the value is of another datatype.
pub(super) fn contents(value: DynValue, datatype: Datatype, session: &Arc<SharedSessionInner>) -> Result<Bytes, Error> {
    match datatype {
        Datatype::Bool => shared::<bool>(value, session),
        Datatype::Uint8 => shared::<u8>(value, session),
        Datatype::Uint16 => shared::<u16>(value, session),
        Datatype::Uint32 => shared::<u32>(value, session),
        Datatype::Uint64 => shared::<u64>(value, session),
        Datatype::Int8 => shared::<i8>(value, session),
        Datatype::Int16 => shared::<i16>(value, session),
        Datatype::Int32 => shared::<i32>(value, session),
        Datatype::Int64 => shared::<i64>(value, session),
        Datatype::Fp16 => shared::<f16>(value, session),
        Datatype::Bf16 => shared::<bf16>(value, session),
        Datatype::Fp32 => shared::<f32>(value, session),
        Datatype::Fp64 => shared::<f64>(value, session),
        Datatype::Bytes => strings::contents(&value).map(Bytes::from),
    }
}

/// An element type that has the same layout here and in the library.
trait Element: PrimitiveTensorElementType + NoUninit + std::fmt::Debug {}

impl<T: PrimitiveTensorElementType + NoUninit + std::fmt::Debug> Element for T {}

fn view<'a, T: Element + bytemuck::AnyBitPattern>(
    shape: &'a [i64],
    contents: &'a [u8],
) -> Result<SessionInputValue<'a>, Error> {
    // That of no elements is aligned too (`tensor::mapped`).
    match bytemuck::try_cast_slice(contents) {
        Ok(elements) => of_elements::<T>(shape, elements),
        Err(_) => Err(Error::internal("an input was staged at an address that is not aligned for its elements")),
    }
}

fn of_elements<'a, T: Element>(shape: &'a [i64], elements: &'a [T]) -> Result<SessionInputValue<'a>, Error> {
    TensorRef::from_array_view((shape, elements)).map(SessionInputValue::from).map_err(|error| told(&error))
}

/// The owner of an output's bytes. It keeps the session alive as well: an output that is one of the
/// model's constants is in the session's memory.
struct SessionOutput<T> {
    value: DynValue,
    _session: Arc<SharedSessionInner>,
    _element: std::marker::PhantomData<fn() -> T>,
}

impl<T: Element> AsRef<[u8]> for SessionOutput<T> {
    fn as_ref(&self) -> &[u8] {
        let elements = self.value.try_extract_tensor::<T>();
        elements.map_or(&[], |(_, elements)| bytemuck::cast_slice(elements))
    }
}

fn shared<T: Element>(value: DynValue, session: &Arc<SharedSessionInner>) -> Result<Bytes, Error> {
    // Checked here, since `as_ref` cannot return an error.
    match value.try_extract_tensor::<T>() {
        Ok((_, [])) => return Ok(Bytes::new()),
        Ok(_) => {}
        Err(error) => return Err(told(&error)),
    }
    let _session = Arc::clone(session);
    Ok(Bytes::from_owner(SessionOutput::<T> { value, _session, _element: std::marker::PhantomData }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_datatype_has_one_name_and_a_conversion_that_suits_it() {
        for datatype in Datatype::ALL {
            assert_eq!(natural(element_type(datatype)), Some(datatype));
            let conversion = conversion(datatype);
            assert_eq!(conversion.alignment, datatype.size().unwrap_or(1), "{datatype:?}");
        }
        assert_eq!(natural(TensorElementType::Complex64), None);
        assert_eq!(natural(TensorElementType::Int4), None);
    }
}
