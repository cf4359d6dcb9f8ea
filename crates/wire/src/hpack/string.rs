//! String literals, plain or in the Huffman code (RFC 7541 §5.2).

use super::{DecodeError, huffman, integer};

const HUFFMAN: u8 = 0x80;

/// Takes a string from the front of the input, decodes it and appends it to `out`.
pub(super) fn decode(input: &mut &[u8], out: &mut Vec<u8>) -> Result<(), DecodeError> {
    let is_coded = input.first().is_some_and(|byte| byte & HUFFMAN != 0);
    let size = integer::decode(input, 7)?;
    let (text, rest) = input.split_at_checked(size).ok_or(DecodeError::Truncated)?;
    *input = rest;
    if is_coded {
        return huffman::decode(text, out);
    }
    out.extend_from_slice(text);
    Ok(())
}

/// Appends a string, in the Huffman code if that is shorter.
pub(super) fn encode(text: &[u8], out: &mut Vec<u8>) {
    let coded_size = huffman::encoded_size(text);
    if coded_size < text.len() {
        integer::encode(coded_size, HUFFMAN, 7, out);
        huffman::encode(text, out);
    } else {
        integer::encode(text.len(), 0, 7, out);
        out.extend_from_slice(text);
    }
}
