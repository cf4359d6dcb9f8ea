//! Integers with a prefix (RFC 7541 §5.1).

use super::DecodeError;

/// Bytes read after the prefix. They hold 28 bits, far more than any valid length or index needs. Longer integers are
/// refused, even if they are padded with zeros (RFC 7541 §5.1).
const CONTINUATION_SIZE_MAX: usize = 4;

/// Takes an integer from the front of the input. Its prefix is the low `prefix` bits of the first byte.
pub(super) fn decode(input: &mut &[u8], prefix: u8) -> Result<usize, DecodeError> {
    let (first, rest) = input.split_first().ok_or(DecodeError::Truncated)?;
    let mask = (1_usize << prefix) - 1;
    let value = usize::from(*first) & mask;
    if value < mask {
        *input = rest;
        return Ok(value);
    }
    let mut value = mask;
    for (index, byte) in rest.iter().take(CONTINUATION_SIZE_MAX).enumerate() {
        value += usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            *input = rest.get(index + 1..).unwrap_or_default();
            return Ok(value);
        }
    }
    Err(if rest.len() < CONTINUATION_SIZE_MAX { DecodeError::Truncated } else { DecodeError::Integer })
}

/// Appends an integer. `pattern` is the first byte's bits above the low `prefix` bits.
pub(super) fn encode(value: usize, pattern: u8, prefix: u8, out: &mut Vec<u8>) {
    let mask = (1_usize << prefix) - 1;
    let low = |value: usize| u8::try_from(value & 0xff).unwrap_or(u8::MAX);
    if value < mask {
        out.push(pattern | low(value));
        return;
    }
    out.push(pattern | low(mask));
    let mut rest = value - mask;
    while rest >= 0x80 {
        out.push(low(rest & 0x7f) | 0x80);
        rest >>= 7;
    }
    out.push(low(rest));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_rfc_read_and_write() {
        // RFC 7541 C.1.1 to C.1.3.
        for (value, prefix, bytes) in [(10, 5, &[10][..]), (1337, 5, &[31, 154, 10]), (42, 8, &[42])] {
            let mut out = Vec::new();
            encode(value, 0, prefix, &mut out);
            assert_eq!(out, bytes);
            let mut input = bytes;
            assert_eq!((decode(&mut input, prefix), input.len()), (Ok(value), 0));
        }
    }

    #[test]
    fn integers_come_back_and_cut_ones_are_not_read() {
        for prefix in 4..=8_u8 {
            for value in (0..1_000).chain([1 << 14, 1 << 20, (1 << 28) - 1]) {
                let mut out = Vec::new();
                encode(value, 0, prefix, &mut out);
                for size in 0..out.len() {
                    assert_eq!(decode(&mut &out[..size], prefix), Err(DecodeError::Truncated), "{value} {size}");
                }
                out.push(0xff);
                let mut input = &out[..];
                assert_eq!((decode(&mut input, prefix), input), (Ok(value), &[0xff][..]));
            }
        }
    }

    #[test]
    fn long_ones_are_refused_even_where_they_are_small() {
        assert_eq!(decode(&mut &[0x1f, 0x80, 0x80, 0x80, 0x80, 0][..], 5), Err(DecodeError::Integer));
        assert_eq!(decode(&mut &[0xff, 0xff, 0xff, 0xff, 0xff, 0x7f][..], 7), Err(DecodeError::Integer));
        assert_eq!(decode(&mut &[0x1f, 0x80, 0x80, 0x80, 0][..], 5), Ok(31));
    }
}
