//! The protobuf wire format: reading borrows, writing takes two passes (sizes, then bytes). Used by the hand-written
//! messages of `protocol/grpc/`; all other messages use `prost`. It accepts and refuses the same as `prost`: varints of
//! at most ten bytes and 64 bits, keys of 32 bits, no field 0, groups only as unknown fields. Nothing recurses: unknown
//! groups are skipped with a stack of open ones, bounded by [`DEPTH_MAX`].

use std::slice;

use smallvec::SmallVec;

/// Nesting of messages and groups; the same bound as `prost`'s.
pub const DEPTH_MAX: u8 = 100;

/// The reason why bytes are not a protobuf message, or not one of the expected type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// A group that is malformed or nested deeper than [`DEPTH_MAX`], or the end of a group that is not open.
    Group,
    /// A key beyond 32 bits, of field 0 or of an unknown wire type.
    Key,
    /// Fewer bytes than a length or a fixed type needs.
    Truncated,
    /// A string that is not UTF-8.
    Utf8,
    /// A varint without an end, or with more than 64 bits.
    Varint,
    /// A known field with another wire type than its own.
    WireType,
}

/// The value of a field, by its wire type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireType<'a> {
    /// Wire type 0.
    Varint(u64),
    /// Wire type 1.
    Fixed64(&'a [u8; 8]),
    /// Wire type 2: strings, bytes, messages, packed numbers.
    Bytes(&'a [u8]),
    /// Wire type 3: a group, which was skipped. Only unknown fields may be groups.
    Group,
    /// Wire type 5.
    Fixed32(&'a [u8; 4]),
}

impl<'a> WireType<'a> {
    /// The value of an integer, enum or bool.
    ///
    /// # Errors
    ///
    /// `WireType` if the field is not a varint.
    #[inline]
    pub const fn as_varint(self) -> Result<u64, WireError> {
        if let Self::Varint(value) = self { Ok(value) } else { Err(WireError::WireType) }
    }

    /// The bytes of a `bytes` field or of a message.
    ///
    /// # Errors
    ///
    /// `WireType` if the field is not length-delimited.
    #[inline]
    pub const fn as_bytes(self) -> Result<&'a [u8], WireError> {
        if let Self::Bytes(bytes) = self { Ok(bytes) } else { Err(WireError::WireType) }
    }

    /// The text of a `string` field.
    ///
    /// # Errors
    ///
    /// `WireType` if the field is not length-delimited, `Utf8` if it is not UTF-8.
    #[inline]
    pub fn as_str(self) -> Result<&'a str, WireError> {
        str::from_utf8(self.as_bytes()?).map_err(|_| WireError::Utf8)
    }

    /// The value of a `double`.
    ///
    /// # Errors
    ///
    /// `WireType` if the field is not eight bytes wide.
    #[inline]
    pub const fn as_double(self) -> Result<f64, WireError> {
        if let Self::Fixed64(bytes) = self { Ok(f64::from_le_bytes(*bytes)) } else { Err(WireError::WireType) }
    }

    /// The values that one occurrence of a repeated integer adds, packed or not.
    ///
    /// # Errors
    ///
    /// `WireType` if the field is neither a varint nor length-delimited.
    pub const fn as_varints(self) -> Result<Varints<'a>, WireError> {
        match self {
            Self::Varint(value) => Ok(Varints { single: Some(value), rest: &[] }),
            Self::Bytes(rest) => Ok(Varints { single: None, rest }),
            _ => Err(WireError::WireType),
        }
    }

    /// The values that one occurrence of a repeated 4-byte number adds, packed or not.
    ///
    /// # Errors
    ///
    /// `WireType` for another wire type, `Truncated` if packed bytes are not a multiple of four.
    pub fn as_fixed32s(self) -> Result<&'a [[u8; 4]], WireError> {
        match self {
            Self::Fixed32(value) => Ok(slice::from_ref(value)),
            Self::Bytes(bytes) => whole(bytes.as_chunks()),
            _ => Err(WireError::WireType),
        }
    }

    /// The values that one occurrence of a repeated 8-byte number adds, packed or not.
    ///
    /// # Errors
    ///
    /// `WireType` for another wire type, `Truncated` if packed bytes are not a multiple of eight.
    pub fn as_fixed64s(self) -> Result<&'a [[u8; 8]], WireError> {
        match self {
            Self::Fixed64(value) => Ok(slice::from_ref(value)),
            Self::Bytes(bytes) => whole(bytes.as_chunks()),
            _ => Err(WireError::WireType),
        }
    }
}

const fn whole<'a, const N: usize>((values, left): (&'a [[u8; N]], &[u8])) -> Result<&'a [[u8; N]], WireError> {
    if left.is_empty() { Ok(values) } else { Err(WireError::Truncated) }
}

/// Iterates over the fields of one message in order; ends after the first error.
#[derive(Clone, Debug)]
pub struct MessageFields<'a> {
    rest: &'a [u8],
    /// Messages around this one.
    depth: u8,
}

/// The fields of an outermost message.
pub const fn fields(bytes: &[u8]) -> MessageFields<'_> {
    MessageFields { rest: bytes, depth: 0 }
}

impl<'a> MessageFields<'a> {
    /// The fields of a message that is a field of this one. Counts towards [`DEPTH_MAX`].
    #[inline]
    pub const fn inner(&self, bytes: &'a [u8]) -> Self {
        Self { rest: bytes, depth: self.depth.saturating_add(1) }
    }

    /// The number of the next field, and true if it is length-delimited.
    #[inline]
    pub fn peek(&self) -> Option<(u32, bool)> {
        let (number, kind) = take_key(&mut &*self.rest).ok()?;
        Some((number, kind == KIND_BYTES))
    }

    fn take(&mut self) -> Result<(u32, WireType<'a>), WireError> {
        let (number, kind) = take_key(&mut self.rest)?;
        let wire = if kind == KIND_GROUP {
            skip_group(&mut self.rest, number, self.depth).map(|()| WireType::Group)
        } else {
            take_plain(&mut self.rest, kind)
        };
        wire.map(|wire| (number, wire))
    }
}

impl<'a> Iterator for MessageFields<'a> {
    type Item = Result<(u32, WireType<'a>), WireError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let item = self.take();
        if item.is_err() {
            self.rest = &[];
        }
        Some(item)
    }
}

/// Iterates over the values of one occurrence of a repeated integer; ends after the first error.
#[derive(Clone, Debug)]
pub struct Varints<'a> {
    single: Option<u64>,
    rest: &'a [u8],
}

impl Varints<'_> {
    /// Checks all values and counts them.
    ///
    /// # Errors
    ///
    /// `Varint` if one of them is malformed.
    pub fn check(&self) -> Result<usize, WireError> {
        if self.single.is_some() {
            return Ok(1);
        }
        // Values below 128, the most frequent ones, take one byte each: their count is the size.
        if self.rest.iter().all(|byte| *byte < 0x80) {
            return Ok(self.rest.len());
        }
        self.clone().try_fold(0_usize, |count, value| value.map(|_| count.saturating_add(1)))
    }
}

impl Iterator for Varints<'_> {
    type Item = Result<u64, WireError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if let Some(value) = self.single.take() {
            return Some(Ok(value));
        }
        if self.rest.is_empty() {
            return None;
        }
        let value = take_varint(&mut self.rest);
        if value.is_err() {
            self.rest = &[];
        }
        Some(value)
    }
}

const KIND_VARINT: u8 = 0;
const KIND_FIXED64: u8 = 1;
const KIND_BYTES: u8 = 2;
const KIND_GROUP: u8 = 3;
const KIND_GROUP_END: u8 = 4;
const KIND_FIXED32: u8 = 5;

/// Takes the key of the next field: its number and wire type.
#[inline]
fn take_key(rest: &mut &[u8]) -> Result<(u32, u8), WireError> {
    let key = u32::try_from(take_varint(rest)?).map_err(|_| WireError::Key)?;
    let kind = (key & 7) as u8;
    if kind > KIND_FIXED32 || key < 8 { Err(WireError::Key) } else { Ok((key >> 3, kind)) }
}

#[inline]
fn take_plain<'a>(rest: &mut &'a [u8], kind: u8) -> Result<WireType<'a>, WireError> {
    match kind {
        KIND_VARINT => take_varint(rest).map(WireType::Varint),
        KIND_BYTES => take_bytes(rest).map(WireType::Bytes),
        KIND_FIXED32 => take_array(rest).map(WireType::Fixed32),
        KIND_FIXED64 => take_array(rest).map(WireType::Fixed64),
        _ => Err(WireError::Group),
    }
}

#[inline]
fn take_varint(rest: &mut &[u8]) -> Result<u64, WireError> {
    // Most keys and lengths have one byte.
    if let [byte @ ..0x80, after @ ..] = *rest {
        *rest = after;
        return Ok(u64::from(*byte));
    }
    take_long_varint(rest)
}

fn take_long_varint(rest: &mut &[u8]) -> Result<u64, WireError> {
    let mut value = 0_u64;
    for (index, byte) in rest.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if *byte < 0x80 {
            // Nine bytes hold 63 bits, so that the tenth may only add one.
            let has_room = index < 9 || *byte < 2;
            *rest = rest.get(index + 1..).unwrap_or_default();
            return if has_room { Ok(value) } else { Err(WireError::Varint) };
        }
    }
    Err(WireError::Varint)
}

#[inline]
fn take_bytes<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], WireError> {
    let size = usize::try_from(take_varint(rest)?).map_err(|_| WireError::Truncated)?;
    let (bytes, after) = rest.split_at_checked(size).ok_or(WireError::Truncated)?;
    *rest = after;
    Ok(bytes)
}

#[inline]
fn take_array<'a, const N: usize>(rest: &mut &'a [u8]) -> Result<&'a [u8; N], WireError> {
    let (array, after) = rest.split_first_chunk::<N>().ok_or(WireError::Truncated)?;
    *rest = after;
    Ok(array)
}

/// Skips a group whose key was read, with the groups in it. There are `depth` messages around it.
fn skip_group(rest: &mut &[u8], number: u32, depth: u8) -> Result<(), WireError> {
    let room = usize::from(DEPTH_MAX.saturating_sub(depth));
    let mut open: SmallVec<[u32; 8]> = SmallVec::new();
    open.push(number);
    while let Some(innermost) = open.last().copied() {
        let (number, kind) = take_key(rest).map_err(|_| WireError::Group)?;
        if kind == KIND_GROUP_END && number == innermost {
            open.pop();
        } else if kind == KIND_GROUP_END || open.len() >= room {
            return Err(WireError::Group);
        } else if kind == KIND_GROUP {
            open.push(number);
        } else {
            take_plain(rest, kind).map_err(|_| WireError::Group)?;
        }
    }
    Ok(())
}

/// Size of a varint in bytes.
#[inline]
pub const fn varint_size(value: u64) -> usize {
    // 7 bits per byte, rounded up; 0 takes a byte as well.
    (70 - (value | 1).leading_zeros() as usize) / 7
}

/// Size in bytes of a length-delimited field whose value is `size` bytes.
#[inline]
pub const fn bytes_size(number: u32, size: usize) -> usize {
    varint_size(key(number, KIND_BYTES)) + varint_size(size as u64) + size
}

/// Size of a `string` field in bytes; an empty one is not written.
#[inline]
pub const fn str_size(number: u32, text: &str) -> usize {
    if text.is_empty() { 0 } else { bytes_size(number, text.len()) }
}

/// Size in bytes of the values of a packed repeated integer, without key and length.
#[inline]
pub fn packed_size(values: &[i64]) -> usize {
    values.iter().map(|value| varint_size(value.cast_unsigned())).sum()
}

/// Appends a varint.
pub fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends the key and length of a length-delimited field; the caller appends the value.
#[inline]
pub fn put_bytes_head(number: u32, size: usize, out: &mut Vec<u8>) {
    put_varint(key(number, KIND_BYTES), out);
    put_varint(size as u64, out);
}

/// Appends a `string` field; an empty one is not written.
pub fn put_str(number: u32, text: &str, out: &mut Vec<u8>) {
    if !text.is_empty() {
        put_bytes_head(number, text.len(), out);
        out.extend_from_slice(text.as_bytes());
    }
}

/// Appends a packed repeated integer; an empty one is not written.
pub fn put_packed(number: u32, values: &[i64], out: &mut Vec<u8>) {
    if !values.is_empty() {
        put_bytes_head(number, packed_size(values), out);
        values.iter().for_each(|value| put_varint(value.cast_unsigned(), out));
    }
}

const fn key(number: u32, kind: u8) -> u64 {
    (number as u64) << 3 | kind as u64
}

#[cfg(test)]
mod tests {
    use prost::encoding::{encode_varint, encoded_len_varint};

    use super::*;

    fn read(bytes: &[u8]) -> Result<Vec<(u32, WireType<'_>)>, WireError> {
        fields(bytes).collect()
    }

    #[test]
    fn fields_of_every_wire_type_are_read_in_order() {
        let bytes = [8, 150, 1, 18, 2, 7, 9, 29, 1, 2, 3, 4, 33, 1, 2, 3, 4, 5, 6, 7, 8, 43, 8, 1, 44];
        let want = vec![
            (1, WireType::Varint(150)),
            (2, WireType::Bytes(&[7, 9])),
            (3, WireType::Fixed32(&[1, 2, 3, 4])),
            (4, WireType::Fixed64(&[1, 2, 3, 4, 5, 6, 7, 8])),
            (5, WireType::Group),
        ];
        assert_eq!(read(&bytes), Ok(want));
        assert_eq!(read(&[]), Ok(vec![]));
    }

    #[test]
    fn malformed_bytes_are_refused_by_kind() {
        let check = |bytes: &[u8], want| assert_eq!(read(bytes), Err(want), "{bytes:?}");
        check(&[0x80], WireError::Varint);
        check(&[8], WireError::Varint);
        check(&[8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2], WireError::Varint);
        check(&[8, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0], WireError::Varint);
        check(&[0], WireError::Key); // field 0
        check(&[7], WireError::Key); // field 0, and an unknown wire type
        check(&[14, 0], WireError::Key); // wire type 6
        check(&[0x80, 0x80, 0x80, 0x80, 0x10, 0], WireError::Key); // 33 bits
        check(&[10, 2, 1], WireError::Truncated);
        check(&[10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1], WireError::Truncated);
        check(&[13, 1, 2, 3], WireError::Truncated);
        check(&[9, 1, 2, 3, 4, 5, 6, 7], WireError::Truncated);
        check(&[12], WireError::Group); // no group is open
        check(&[11, 20], WireError::Group); // another group is open
        check(&[11, 8, 1], WireError::Group); // never ends
        check(&[11, 8], WireError::Group);
    }

    #[test]
    fn varints_read_back_and_have_the_sizes_of_prosts() {
        for shift in 0..64 {
            for value in [(1_u64 << shift) - 1, 1 << shift, u64::MAX >> shift] {
                let (mut ours, mut theirs) = (Vec::new(), Vec::new());
                put_varint(value, &mut ours);
                encode_varint(value, &mut theirs);
                assert_eq!(ours, theirs);
                assert_eq!(varint_size(value), encoded_len_varint(value), "{value}");
                let mut rest = &ours[..];
                assert_eq!(take_varint(&mut rest), Ok(value));
                assert!(rest.is_empty());
            }
        }
    }

    #[test]
    fn groups_are_skipped_down_to_the_depth_of_prosts_and_no_further() {
        // (groups within each other, messages around them, whether the innermost has a field)
        for (groups, messages, has_field) in [
            (1, 0, true),
            (99, 0, true),
            (100, 0, false),
            (100, 0, true),
            (101, 0, false),
            (98, 1, true),
            (99, 1, true),
        ] {
            let mut bytes = Vec::new();
            (0..groups).for_each(|_| bytes.extend([0xfb, 0x01])); // field 31
            if has_field {
                bytes.extend([0xf8, 0x01, 0]);
            }
            (0..groups).for_each(|_| bytes.extend([0xfc, 0x01]));
            let ours = MessageFields { rest: &bytes, depth: messages }.next().is_some_and(|field| field.is_ok());
            let theirs = if messages == 0 {
                <crate::proto::inference::ModelMetadataRequest as prost::Message>::decode(&bytes[..]).is_ok()
            } else {
                let mut outer = vec![10];
                put_varint(bytes.len() as u64, &mut outer);
                outer.extend(&bytes);
                <crate::proto::inference::ModelConfigResponse as prost::Message>::decode(&outer[..]).is_ok()
            };
            assert_eq!(ours, theirs, "{groups} {messages} {has_field}");
        }
    }

    #[test]
    fn repeated_numbers_are_read_packed_or_not() {
        let varints = |wire: WireType<'_>| wire.as_varints().and_then(|values| values.collect::<Result<Vec<_>, _>>());
        let count = |wire: WireType<'_>| wire.as_varints().and_then(|values| values.check());
        for (wire, want) in [
            (WireType::Varint(5), Ok(vec![5])),
            (WireType::Bytes(&[1, 2, 0x80, 1]), Ok(vec![1, 2, 128])),
            (WireType::Bytes(&[1, 2, 3]), Ok(vec![1, 2, 3])),
            (WireType::Bytes(&[]), Ok(vec![])),
            (WireType::Bytes(&[1, 0x80]), Err(WireError::Varint)),
            (WireType::Fixed32(&[0; 4]), Err(WireError::WireType)),
            (WireType::Group, Err(WireError::WireType)),
        ] {
            assert_eq!(count(wire), want.clone().map(|values| values.len()), "{wire:?}");
            assert_eq!(varints(wire), want, "{wire:?}");
        }
        assert_eq!(WireType::Fixed32(&[1; 4]).as_fixed32s(), Ok(&[[1; 4]][..]));
        assert_eq!(WireType::Bytes(&[1; 8]).as_fixed32s(), Ok(&[[1; 4], [1; 4]][..]));
        assert_eq!(WireType::Bytes(&[1; 7]).as_fixed32s(), Err(WireError::Truncated));
        assert_eq!(WireType::Bytes(&[1; 16]).as_fixed64s(), Ok(&[[1; 8], [1; 8]][..]));
        assert_eq!(WireType::Varint(1).as_fixed64s(), Err(WireError::WireType));
    }

    #[test]
    fn written_fields_have_the_size_that_was_computed() {
        let mut out = Vec::new();
        put_str(1, "name", &mut out);
        put_str(2, "", &mut out);
        put_packed(300, &[-1, 4, 300], &mut out);
        put_packed(4, &[], &mut out);
        assert_eq!(out.len(), str_size(1, "name") + str_size(2, "") + bytes_size(300, packed_size(&[-1, 4, 300])));
        let got = read(&out).unwrap();
        assert_eq!(got[0], (1, WireType::Bytes(b"name")));
        let values: Vec<_> = got[1].1.as_varints().unwrap().map(|value| value.unwrap().cast_signed()).collect();
        assert_eq!((got[1].0, values), (300, vec![-1, 4, 300]));
        assert_eq!(got.len(), 2);
    }

    #[test]
    fn strings_must_be_utf8() {
        assert_eq!(WireType::Bytes("é".as_bytes()).as_str(), Ok("é"));
        assert_eq!(WireType::Bytes(&[0xff]).as_str(), Err(WireError::Utf8));
        assert_eq!(WireType::Varint(1).as_str(), Err(WireError::WireType));
    }
}
