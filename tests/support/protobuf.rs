//! Protobuf by hand, independent of the crate under test: a writer for requests and ONNX files, and a dump that shows
//! a message without its schema.
//!
//! The dump loses nothing (each field's number, kind and content are there, in order), so two messages are the same
//! field by field exactly when their dumps are. Bytes that look like a message are shown as one.

use std::fmt::Write as _;

use super::escape::escape;

/// A message under construction, field by field in the order of the calls.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// The empty message.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an integer, boolean or enum field; a negative number takes ten bytes, as protobuf says.
    pub fn int(mut self, field: u32, value: i64) -> Self {
        self.key(field, 0);
        varint(value.cast_unsigned(), &mut self.bytes);
        self
    }

    /// Adds a `double` field.
    pub fn double(mut self, field: u32, value: f64) -> Self {
        self.key(field, 1);
        self.bytes.extend(value.to_le_bytes());
        self
    }

    /// Adds a string or bytes field.
    pub fn bytes(mut self, field: u32, value: impl AsRef<[u8]>) -> Self {
        self.key(field, 2);
        varint(value.as_ref().len() as u64, &mut self.bytes);
        self.bytes.extend(value.as_ref());
        self
    }

    /// Adds a message field.
    pub fn message(self, field: u32, value: Self) -> Self {
        self.bytes(field, value.bytes)
    }

    /// Adds a packed field of varints.
    pub fn packed(self, field: u32, values: &[i64]) -> Self {
        let mut packed = Vec::new();
        values.iter().for_each(|value| varint(value.cast_unsigned(), &mut packed));
        self.bytes(field, packed)
    }

    /// Adds the fields of `other` behind these.
    pub fn and(mut self, other: Self) -> Self {
        self.bytes.extend(other.bytes);
        self
    }

    /// Its bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn key(&mut self, field: u32, wire: u64) {
        varint(u64::from(field) << 3 | wire, &mut self.bytes);
    }
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The message as lines of `number: value`, nested messages indented; bytes that are not a message are one line.
pub fn dump(message: &[u8]) -> String {
    match fields(message) {
        Some(fields) => {
            let mut text = String::new();
            dump_fields(&fields, 0, &mut text);
            text
        }
        None => format!("not a message: {}\n", escape(message)),
    }
}

enum Value<'a> {
    Varint(u64),
    Fixed32([u8; 4]),
    Fixed64([u8; 8]),
    Bytes(&'a [u8]),
}

fn dump_fields(fields: &[(u64, Value<'_>)], depth: usize, text: &mut String) {
    for (number, value) in fields {
        let _ = write!(text, "{:indent$}{number}", "", indent = depth * 2);
        let _ = match value {
            Value::Varint(value) => writeln!(text, ": {value}"),
            Value::Fixed32(bytes) => {
                writeln!(text, ": fixed32 {:#010x}", u32::from_le_bytes(*bytes))
            }
            Value::Fixed64(bytes) => {
                writeln!(text, ": fixed64 {:#018x}", u64::from_le_bytes(*bytes))
            }
            Value::Bytes(bytes) if is_text(bytes) => writeln!(text, ": \"{}\"", escape(bytes)),
            Value::Bytes(bytes) => match self::fields(bytes) {
                Some(nested) => {
                    text.push_str(" {\n");
                    dump_fields(&nested, depth + 1, text);
                    writeln!(text, "{:indent$}}}", "", indent = depth * 2)
                }
                None => writeln!(text, ": bytes \"{}\"", escape(bytes)),
            },
        };
    }
}

fn is_text(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|text| !text.chars().any(char::is_control))
}

fn fields(mut input: &[u8]) -> Option<Vec<(u64, Value<'_>)>> {
    let mut fields = Vec::new();
    while !input.is_empty() {
        let key = take_varint(&mut input)?;
        let value = match key & 7 {
            0 => Value::Varint(take_varint(&mut input)?),
            1 => Value::Fixed64(take(&mut input, 8)?.try_into().ok()?),
            2 => {
                let size = take_varint(&mut input)?;
                Value::Bytes(take(&mut input, usize::try_from(size).ok()?)?)
            }
            5 => Value::Fixed32(take(&mut input, 4)?.try_into().ok()?),
            _ => return None,
        };
        (key >> 3 > 0).then(|| fields.push((key >> 3, value)))?;
    }
    Some(fields)
}

fn take<'a>(input: &mut &'a [u8], size: usize) -> Option<&'a [u8]> {
    let (taken, rest) = input.split_at_checked(size)?;
    *input = rest;
    Some(taken)
}

/// A varint in its shortest form only, so that a dump means exactly one byte string.
fn take_varint(input: &mut &[u8]) -> Option<u64> {
    let size = input.iter().position(|byte| byte & 0x80 == 0)? + 1;
    let bytes = take(input, size)?;
    let value =
        bytes.iter().rev().try_fold(0u64, |value, byte| Some(value.checked_mul(128)? | u64::from(byte & 0x7f)))?;
    (size == 1 || bytes.last() != Some(&0)).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_shown_field_by_field() {
        let shape = Message::new().packed(3, &[1, -1]);
        let message = Message::new().bytes(1, "name").int(2, -1).double(4, 1.0).message(5, shape);
        let want = "1: \"name\"\n2: 18446744073709551615\n4: fixed64 0x3ff0000000000000\n5 {\n  3: bytes \"\\x01\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\x01\"\n}\n";
        assert_eq!(dump(&message.into_bytes()), want);
    }

    #[test]
    fn what_is_no_message_is_shown_as_bytes() {
        assert_eq!(dump(b"\x0a\x05abc"), "not a message: \\n\\x05abc\n");
        assert_eq!(dump(b"\x08\x80\x00"), "not a message: \\x08\\x80\\x00\n");
        assert_eq!(dump(b""), "");
    }
}
