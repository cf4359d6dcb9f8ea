//! Tensors as the protocol carries them: a datatype, a shape, and a view of bytes. All arithmetic
//! on sizes and shapes from the wire is here, and checked for overflow.

pub mod aligned;
pub mod empty;
pub mod strings;
pub mod topk;

use bytes::Bytes;
use smallvec::SmallVec;

pub use aligned::AlignedBuffer;
pub use empty::mapped;

/// Dimensions, the batch axis first if there is one. Up to six need no allocation.
pub type Shape = SmallVec<[i64; 6]>;

/// The datatypes of the KServe v2 protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Datatype {
    /// One byte, 0 or 1.
    Bool,
    /// Unsigned, 1 byte.
    Uint8,
    /// Unsigned, 2 bytes.
    Uint16,
    /// Unsigned, 4 bytes.
    Uint32,
    /// Unsigned, 8 bytes.
    Uint64,
    /// Signed, 1 byte.
    Int8,
    /// Signed, 2 bytes.
    Int16,
    /// Signed, 4 bytes.
    Int32,
    /// Signed, 8 bytes.
    Int64,
    /// IEEE 754 half precision, 2 bytes.
    Fp16,
    /// bfloat16, 2 bytes.
    Bf16,
    /// IEEE 754 single precision, 4 bytes.
    Fp32,
    /// IEEE 754 double precision, 8 bytes.
    Fp64,
    /// Strings: each a 4-byte little-endian length, then its bytes.
    Bytes,
}

impl Datatype {
    /// All of them, in the protocol's order.
    pub const ALL: [Self; 14] = [
        Self::Bool,
        Self::Uint8,
        Self::Uint16,
        Self::Uint32,
        Self::Uint64,
        Self::Int8,
        Self::Int16,
        Self::Int32,
        Self::Int64,
        Self::Fp16,
        Self::Bf16,
        Self::Fp32,
        Self::Fp64,
        Self::Bytes,
    ];

    /// The name in the protocol (`FP32`).
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "BOOL",
            Self::Uint8 => "UINT8",
            Self::Uint16 => "UINT16",
            Self::Uint32 => "UINT32",
            Self::Uint64 => "UINT64",
            Self::Int8 => "INT8",
            Self::Int16 => "INT16",
            Self::Int32 => "INT32",
            Self::Int64 => "INT64",
            Self::Fp16 => "FP16",
            Self::Bf16 => "BF16",
            Self::Fp32 => "FP32",
            Self::Fp64 => "FP64",
            Self::Bytes => "BYTES",
        }
    }

    /// The datatype with this name in the protocol; `None` for an unknown name.
    #[inline]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|datatype| datatype.name() == name)
    }

    /// The datatype that a name of another program means, such as `float32`, `torch.int64` or `string`; `None` for a
    /// name without such a meaning.
    pub fn meant_by(name: &str) -> Option<Self> {
        let lower = name.to_ascii_lowercase();
        let prefixes = ["torch.", "np.", "numpy.", "tf.", "type_"];
        let bare = prefixes.iter().find_map(|prefix| lower.strip_prefix(prefix)).unwrap_or(&lower);
        Some(match bare {
            "bf16" | "bfloat16" => Self::Bf16,
            "bool" | "boolean" => Self::Bool,
            "bytes" | "object" | "str" | "string" | "text" => Self::Bytes,
            "f16" | "float16" | "fp16" | "half" => Self::Fp16,
            "f32" | "float" | "float32" | "fp32" | "single" => Self::Fp32,
            "double" | "f64" | "float64" | "fp64" => Self::Fp64,
            "i8" | "int8" => Self::Int8,
            "i16" | "int16" | "short" => Self::Int16,
            "i32" | "int" | "int32" | "integer" => Self::Int32,
            "i64" | "int64" | "long" => Self::Int64,
            "byte" | "u8" | "uint8" => Self::Uint8,
            "u16" | "uint16" => Self::Uint16,
            "u32" | "uint32" => Self::Uint32,
            "u64" | "uint64" => Self::Uint64,
            _ => return None,
        })
    }

    /// Bytes of one element; `None` for `BYTES`.
    pub const fn size(self) -> Option<usize> {
        match self {
            Self::Bool | Self::Uint8 | Self::Int8 => Some(1),
            Self::Uint16 | Self::Int16 | Self::Fp16 | Self::Bf16 => Some(2),
            Self::Uint32 | Self::Int32 | Self::Fp32 => Some(4),
            Self::Uint64 | Self::Int64 | Self::Fp64 => Some(8),
            Self::Bytes => None,
        }
    }
}

/// A tensor: little-endian, row major, no padding.
///
/// ```
/// use base::tensor::{Datatype, Shape, Tensor, byte_size};
///
/// let shape = Shape::from_slice(&[2, 3]);
/// assert_eq!(byte_size(Datatype::Fp32, &shape), Ok(Some(24)));
/// let tensor = Tensor { datatype: Datatype::Fp32, shape, contents: vec![0; 24].into() };
/// assert!(tensor.is_given());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// The datatype of the elements.
    pub datatype: Datatype,
    /// The full shape, with the batch axis.
    pub shape: Shape,
    /// The elements: a view into the body of a request or the outputs of a batch.
    pub contents: Bytes,
}

impl Tensor {
    /// Returns true if the request brought it. An optional input that was left out has an empty
    /// shape, which no given input can have: a configuration must list at least one dimension.
    #[inline]
    pub fn is_given(&self) -> bool {
        !self.shape.is_empty()
    }

    /// Returns true if a model left it out of its answer. A scalar has no dimensions either, but
    /// contents.
    #[inline]
    pub fn is_missing(&self) -> bool {
        self.shape.is_empty() && self.contents.is_empty()
    }

    /// Returns true if the contents have the size that datatype and shape require. For strings,
    /// only checks that there is room for the length of each.
    pub fn has_its_size(&self) -> bool {
        match byte_size(self.datatype, &self.shape) {
            Ok(Some(size)) => size == self.contents.len(),
            Ok(None) => element_count(&self.shape).is_ok_and(|count| {
                count.checked_mul(strings::LENGTH_SIZE).is_some_and(|size| size <= self.contents.len())
            }),
            Err(_) => false,
        }
    }
}

/// The reason why a size could not be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeError {
    /// More elements, or bytes, than a signed 64-bit integer counts.
    Overflow,
    /// A dimension below zero.
    Negative,
}

/// Gives a shape to a flat list: distributes `count` elements over dimensions of which -1 is open.
/// The innermost open one takes the quotient, all outer ones are 1. `None` if the other dimensions
/// do not divide `count`.
///
/// ```
/// use base::tensor::distribute;
///
/// assert_eq!(distribute(&[-1, -1, 2], 6).as_deref(), Some(&[1, 3, 2][..]));
/// assert_eq!(distribute(&[-1, 2], 3), None);
/// assert_eq!(distribute(&[2, 2], 2), None);
/// ```
pub fn distribute(dims: &[i64], count: usize) -> Option<Shape> {
    let mut left = i64::try_from(count).ok()?;
    for size in dims.iter().filter(|size| **size != -1) {
        if left.checked_rem(*size)? != 0 {
            return None;
        }
        left = left.checked_div(*size)?;
    }
    let mut shape = Shape::from_slice(dims);
    for size in shape.iter_mut().rev().filter(|size| **size == -1) {
        *size = std::mem::replace(&mut left, 1);
    }
    (left == 1).then_some(shape)
}

/// The number of elements of a shape; 1 for the empty shape.
///
/// # Errors
/// [`SizeError`] if a dimension is negative or the number does not fit 64 bits.
pub fn element_count(shape: &[i64]) -> Result<usize, SizeError> {
    if shape.iter().any(|dimension| *dimension < 0) {
        return Err(SizeError::Negative);
    }
    // Before the product, so that `[0, huge, huge]` is empty and not an overflow.
    if shape.contains(&0) {
        return Ok(0);
    }
    let count = shape.iter().try_fold(1_i64, |product, dimension| product.checked_mul(*dimension));
    count.and_then(|count| usize::try_from(count).ok()).ok_or(SizeError::Overflow)
}

/// The size in bytes of a tensor of a fixed-size datatype; `Ok(None)` for `BYTES`.
///
/// # Errors
/// [`SizeError`] if a dimension is negative or the size does not fit 64 bits.
pub fn byte_size(datatype: Datatype, shape: &[i64]) -> Result<Option<usize>, SizeError> {
    let count = element_count(shape)?;
    let Some(size) = datatype.size() else { return Ok(None) };
    let bytes = count.checked_mul(size).filter(|bytes| i64::try_from(*bytes).is_ok());
    bytes.map(Some).ok_or(SizeError::Overflow)
}

/// The reason why a range is not inside a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeError {
    /// It begins at or after the end of the region.
    Offset,
    /// Its end does not fit 64 bits.
    Overflow,
    /// It ends after the end of the region.
    End,
}

/// Checks that `size` bytes at `offset` are inside a region of `region_size` bytes; returns `size`.
///
/// # Errors
/// [`RangeError`] if they are outside. An empty range at the end of the region is refused too.
pub fn check_range(offset: u64, size: u64, region_size: u64) -> Result<usize, RangeError> {
    if offset >= region_size {
        return Err(RangeError::Offset);
    }
    let end = offset.checked_add(size).ok_or(RangeError::Overflow)?;
    if end > region_size { Err(RangeError::End) } else { usize::try_from(size).map_err(|_| RangeError::End) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_inside_the_region_has_its_size_and_another_says_what_is_wrong() {
        let check = |offset, size, want| assert_eq!(check_range(offset, size, 64), want, "{offset} {size}");
        check(0, 64, Ok(64));
        check(63, 1, Ok(1));
        check(16, 0, Ok(0));
        check(64, 0, Err(RangeError::Offset));
        check(u64::MAX, 1, Err(RangeError::Offset));
        check(32, u64::MAX - 31, Err(RangeError::Overflow));
        check(32, u64::MAX - 32, Err(RangeError::End));
        check(1, 64, Err(RangeError::End));
    }

    #[test]
    fn names_read_back() {
        for datatype in Datatype::ALL {
            assert_eq!(Datatype::from_name(datatype.name()), Some(datatype));
        }
        assert_eq!(Datatype::from_name("fp32"), None);
    }

    #[test]
    fn names_of_other_programs_are_understood() {
        for datatype in Datatype::ALL {
            for name in
                [datatype.name().to_owned(), datatype.name().to_lowercase(), format!("TYPE_{}", datatype.name())]
            {
                assert_eq!(Datatype::meant_by(&name), Some(datatype), "{name}");
            }
        }
        for (name, want) in [
            ("float32", Datatype::Fp32),
            ("torch.float16", Datatype::Fp16),
            ("np.int64", Datatype::Int64),
            ("Long", Datatype::Int64),
            ("double", Datatype::Fp64),
            ("string", Datatype::Bytes),
            ("TYPE_STRING", Datatype::Bytes),
        ] {
            assert_eq!(Datatype::meant_by(name), Some(want), "{name}");
        }
        assert_eq!(Datatype::meant_by("complex64"), None);
    }

    #[test]
    fn sizes_are_exact_or_refused() {
        let check = |shape: &[i64], want| assert_eq!(byte_size(Datatype::Fp32, shape), want, "{shape:?}");
        check(&[], Ok(Some(4)));
        check(&[2, 3], Ok(Some(24)));
        check(&[0, i64::MAX, i64::MAX], Ok(Some(0)));
        check(&[-1, 0], Err(SizeError::Negative));
        check(&[i64::MAX], Err(SizeError::Overflow));
        check(&[1 << 32, 1 << 32], Err(SizeError::Overflow));
        assert_eq!(byte_size(Datatype::Bytes, &[7]), Ok(None));
    }
}
