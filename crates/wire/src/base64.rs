//! Base64 (RFC 4648 §4): decoding for bytes inside of JSON, such as uploaded files and GPU memory handles, encoding for
//! gRPC's binary metadata.

/// Decodes a text; white space is skipped and the padding may be missing. `None` if it is not base64.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let text: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let digits = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(&text);
    // Padding may be missing but not incomplete, and a single last digit is less than a byte.
    if digits.len() < text.len() && !text.len().is_multiple_of(4) || digits.len() % 4 == 1 {
        return None;
    }
    let mut out = Vec::with_capacity(digits.len() * 3 / 4);
    // Four digits are three bytes; the last group may have two or three digits.
    for group in digits.chunks(4) {
        let mut bits = 0_u32;
        for digit in group {
            bits = bits << 6 | value(*digit)?;
        }
        bits <<= 6 * (4 - group.len());
        let [_, bytes @ ..] = bits.to_be_bytes();
        out.extend(bytes.iter().take(group.len() * 3 / 4));
    }
    Some(out)
}

/// Encodes bytes, without padding.
pub fn encode(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        let digit = |shift: u32| DIGITS.get((bits >> shift & 63) as usize).map_or('A', |digit| char::from(*digit));
        // A group of one or two bytes has two or three digits.
        text.extend([18, 12, 6, 0].into_iter().map(digit).take(group.len() + 1));
    }
    text
}

/// Encodes bytes, with padding, which most decoders require.
pub fn encode_padded(bytes: &[u8]) -> String {
    let mut text = encode(bytes);
    while !text.len().is_multiple_of(4) {
        text.push('=');
    }
    text
}

fn value(digit: u8) -> Option<u32> {
    Some(u32::from(match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_has_no_padding_and_reads_back() {
        let check = |bytes: &[u8], want: &str| {
            assert_eq!(encode(bytes), want);
            assert_eq!(decode(want).as_deref(), Some(bytes));
        };
        check(b"", "");
        check(b"f", "Zg");
        check(b"fo", "Zm8");
        check(b"foo", "Zm9v");
        check(b"foob", "Zm9vYg");
        check(&[0xfb, 0xff], "+/8");
        for (bytes, want) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v")] {
            assert_eq!(encode_padded(bytes.as_bytes()), want);
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&all)), Some(all));
    }

    #[test]
    fn the_rfcs_examples_are_decoded_and_other_texts_refused() {
        let check = |text, want: Option<&[u8]>| assert_eq!(decode(text).as_deref(), want, "{text}");
        check("", Some(b""));
        check("Zg==", Some(b"f"));
        check("Zm8=", Some(b"fo"));
        check("Zm9v", Some(b"foo"));
        check("Zm9vYg", Some(b"foob")); // without the padding
        check("Zm9v\nYmFy", Some(b"foobar"));
        check("+/8=", Some(&[0xfb, 0xff]));
        for text in ["Z", "Zg=", "Zg===", "Z-8=", "Zm9v=", "Zm9vY"] {
            check(text, None);
        }
    }
}
