//! Base64 of files, which have a hundred thousand digits: by a table, unlike [`wire::base64`], which takes over texts with white space.

/// Decodes a text; white space is skipped and the padding may be missing. `None` if it is not base64.
pub fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let (groups, rest) = text.as_chunks::<4>();
    let (whole, last) = match (groups.split_last(), rest.is_empty()) {
        // The last group may have padding.
        (Some((last, whole)), true) => (whole, &last[..]),
        _ => (groups, rest),
    };
    let mut bytes = vec![0; whole.len() * 3];
    let mut faults = 0;
    for (place, [a, b, c, d]) in bytes.as_chunks_mut::<3>().0.iter_mut().zip(whole) {
        let [a, b, c, d] = [digit(*a), digit(*b), digit(*c), digit(*d)];
        faults |= a | b | c | d;
        *place = [a << 2 | b >> 4, b << 4 | c >> 2, c << 6 | d];
    }
    if faults & FAULT != 0 {
        return std::str::from_utf8(text).ok().and_then(wire::base64::decode);
    }
    bytes.extend(std::str::from_utf8(last).ok().and_then(wire::base64::decode)?);
    Some(bytes)
}

#[inline(always)]
fn digit(letter: u8) -> u8 {
    DIGITS.get(usize::from(letter)).copied().unwrap_or(FAULT)
}

/// The value of each letter.
const DIGITS: [u8; 256] = {
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut digits = [FAULT; 256];
    let mut value = 0;
    while value < 64 {
        #[expect(clippy::indexing_slicing, reason = "computed when it is compiled")]
        let place = &mut digits[letters[value as usize] as usize];
        *place = value;
        value += 1;
    }
    digits
};
/// A letter that is no digit.
const FAULT: u8 = 0x80;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_decode_as_with_wire() {
        let check = |text: &str| assert_eq!(decode(text.as_bytes()), wire::base64::decode(text), "{text:?}");
        for text in ["", "Z", "Zg", "Zg==", "Zm9v", "Zm9vYg", "Zm9vYg==", "Zm9vYmE=", "Zm9v\nYmFy", "Zm9v YmFyZm9v"] {
            check(text);
        }
        for text in ["=", "Zg=", "Zm9v=", "Zm9vZg==Zm9v", "Zm9%Zm9v", "Zm9vZm9%", "====", "Zm9vé", "Zg==\n"] {
            check(text);
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(wire::base64::encode(&all).as_bytes()), Some(all));
    }
}
