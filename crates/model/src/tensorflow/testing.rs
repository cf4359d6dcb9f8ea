//! The parts of a message of protobuf, as tests write them.

use wire::protobuf::{put_bytes_head, put_str};

/// A message in a field: these parts.
pub fn message(number: u32, parts: &[Vec<u8>]) -> Vec<u8> {
    let (mut out, body) = (Vec::new(), parts.concat());
    put_bytes_head(number, body.len(), &mut out);
    out.extend(body);
    out
}

/// A text in a field.
pub fn text(number: u32, value: &str) -> Vec<u8> {
    let mut out = Vec::new();
    put_str(number, value, &mut out);
    out
}
