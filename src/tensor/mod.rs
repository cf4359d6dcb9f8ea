//! Tensors as the protocol carries them: a datatype, a shape, and a view of bytes. All arithmetic
//! on sizes and shapes from the wire is here, checked.

pub mod aligned;
pub mod strings;
pub mod topk;

use bytes::Bytes;
use smallvec::SmallVec;

pub use aligned::AlignedBuffer;

/// Dimensions, the batch axis first where there is one; short ones live without an allocation.
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
    /// IEEE half.
    Fp16,
    /// Brain float.
    Bf16,
    /// IEEE single.
    Fp32,
    /// IEEE double.
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

    /// The name on the wire (`FP32`).
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

    /// The datatype of a name on the wire.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|datatype| datatype.name() == name)
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// What the elements are.
    pub datatype: Datatype,
    /// The full shape, with the batch axis.
    pub shape: Shape,
    /// The elements: a view into a request's body or a batch's outputs.
    pub contents: Bytes,
}

impl Tensor {
    /// Whether a request brought it. An optional input that was left out has no shape at all: no
    /// configuration allows one without dimensions.
    pub fn is_given(&self) -> bool {
        !self.shape.is_empty()
    }
}

/// Why a size could not be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeError {
    /// More elements, or bytes, than a signed 64-bit integer counts.
    Overflow,
    /// A dimension below zero.
    Negative,
}

/// Elements of a shape; 1 for the empty one.
pub fn element_count(shape: &[i64]) -> Result<usize, SizeError> {
    if shape.iter().any(|dimension| *dimension < 0) {
        return Err(SizeError::Negative);
    }
    if shape.contains(&0) {
        return Ok(0);
    }
    let count = shape.iter().try_fold(1_i64, |product, dimension| product.checked_mul(*dimension));
    count.and_then(|count| usize::try_from(count).ok()).ok_or(SizeError::Overflow)
}

/// Bytes of a tensor of a fixed-size datatype; `None` within for `BYTES`.
pub fn byte_size(datatype: Datatype, shape: &[i64]) -> Result<Option<usize>, SizeError> {
    let count = element_count(shape)?;
    let Some(size) = datatype.size() else { return Ok(None) };
    let bytes = count.checked_mul(size).filter(|bytes| i64::try_from(*bytes).is_ok());
    bytes.map(Some).ok_or(SizeError::Overflow)
}

/// Why a range does not lie within a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeError {
    /// It begins at or behind its end.
    Offset,
    /// Its own end is no number.
    Overflow,
    /// It ends behind its end.
    End,
}

/// The size of a range within so many bytes, which begins before their end.
pub fn check_range(offset: u64, size: u64, whole: u64) -> Result<usize, RangeError> {
    if offset >= whole {
        return Err(RangeError::Offset);
    }
    let end = offset.checked_add(size).ok_or(RangeError::Overflow)?;
    if end > whole { Err(RangeError::End) } else { usize::try_from(size).map_err(|_| RangeError::End) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_lies_within_or_is_told_what_is_wrong_with_it() {
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
