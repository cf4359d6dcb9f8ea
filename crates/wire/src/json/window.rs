//! Parses decimal numbers within a window of sixteen bytes, in which most elements of a tensor fit, without branching
//! on their length, which the processor could not predict. Called by `number`, which parses all others. SIMD within
//! registers; no `unsafe`, since bytes become words by value.

/// Size of the window in bytes.
const SIZE: usize = 16;

/// A number with a fraction: `mantissa / 10^fraction_size`, exact, since the mantissa has at most 13 digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShortWindow {
    pub(super) is_negative: bool,
    pub(super) mantissa: u64,
    pub(super) fraction_size: usize,
    /// Size of its text in bytes.
    pub(super) size: usize,
}

/// Reads a number of the form `-12.34` at the beginning of a text, with at most seven digits before
/// the point, if it ends within the window. `None` for any other text, number or not. The caller
/// checks the bytes after it, such as an exponent.
#[inline(always)]
pub(super) fn read(text: &[u8]) -> Option<ShortWindow> {
    let window = text.first_chunk::<SIZE>()?;
    let sign_size = u32::from(window.first() == Some(&b'-'));
    // One bit per byte after the sign, set if it is not a digit. `END` makes sure that there is one.
    let non_digits = non_digits(window) >> sign_size | END;
    let whole_size = non_digits.trailing_zeros();
    let after_point = non_digits >> whole_size >> 1 | END;
    let fraction_size = after_point.trailing_zeros();
    let size = sign_size + whole_size + 1 + fraction_size;

    let bytes = u128::from_le_bytes(*window) >> (8 * sign_size);
    let is_point = (bytes >> (8 * (whole_size & 7))) as u8 == b'.';
    // RFC 8259 §6: no leading zeros.
    let has_zeros = bytes as u8 == b'0' && whole_size > 1;
    let is_short = is_point & !has_zeros & (1..8).contains(&whole_size) & (fraction_size > 0);
    // The byte after the number must be in the window: otherwise the number may be longer.
    if !is_short || size as usize >= SIZE {
        return None;
    }
    Some(ShortWindow {
        is_negative: sign_size > 0,
        mantissa: mantissa(bytes, whole_size, whole_size + fraction_size),
        fraction_size: fraction_size as usize,
        size: size as usize,
    })
}

/// The bit after those of the window: a guard that ends every run of digits.
const END: u32 = 1 << SIZE;

/// The value of the digits in `bytes`: `digit_count` of them, at most fourteen, of which `whole_size`, at most seven,
/// are before the point.
#[inline(always)]
const fn mantissa(bytes: u128, whole_size: u32, digit_count: u32) -> u64 {
    let values = bytes ^ ZEROS;
    // Removes the point: the digits after it move down by one byte.
    let (low, moved) = (values as u64, values >> 8);
    let whole = (1_u64 << (8 * (whole_size & 7))) - 1;
    let low = low & whole | moved as u64 & !whole;
    let high = (moved >> 64) as u64;
    // Moves the digits to the high end, with leading zeros; the bytes after them are shifted out.
    let digits = ((high as u128) << 64 | low as u128) << (8 * (SIZE as u32 - digit_count));
    let (first, last) = (eight(digits as u64), eight((digits >> 64) as u64));
    first * 100_000_000 + last
}

const ZEROS: u128 = u128::from_le_bytes([b'0'; SIZE]);

/// The number whose eight digits are the bytes of a word: digits are combined to pairs, pairs to fours, and the two
/// fours to the number.
#[inline(always)]
pub(super) const fn eight(word: u64) -> u64 {
    let word = word.wrapping_mul(10).wrapping_add(word >> 8);
    let low = (word & 0x0000_00ff_0000_00ff).wrapping_mul(0x000f_4240_0000_0064);
    let high = ((word >> 16) & 0x0000_00ff_0000_00ff).wrapping_mul(0x0000_2710_0000_0001);
    low.wrapping_add(high) >> 32
}

/// One bit for each byte of a window, from the lowest: set if the byte is not a digit.
#[inline(always)]
const fn non_digits(window: &[u8; SIZE]) -> u32 {
    let bytes = u128::from_le_bytes(*window);
    non_digits_in(bytes as u64) | non_digits_in((bytes >> 64) as u64) << 8
}

/// One bit for each byte of a word, from the lowest: set if the byte is not a digit. A digit minus `0` is at most 9;
/// the high bits are masked before the addition, so that no byte carries into the next.
#[inline(always)]
const fn non_digits_in(word: u64) -> u32 {
    let values = word ^ ZEROS as u64;
    let above = (values & 0x7f7f_7f7f_7f7f_7f7f).wrapping_add(0x7676_7676_7676_7676);
    let non_digits = (above | values) & 0x8080_8080_8080_8080;
    // Gathers the high bit of each byte in the highest byte.
    (non_digits.wrapping_mul(0x0002_0408_1020_4081) >> 56) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_a_fraction_are_read_to_their_end() {
        let check = |text: &str, want: Option<(bool, u64, usize, usize)>| {
            let padded = format!("{text},22222222222222222");
            let got = read(padded.as_bytes()).map(|s| (s.is_negative, s.mantissa, s.fraction_size, s.size));
            assert_eq!(got, want, "{text}");
        };
        check("0.5", Some((false, 5, 1, 3)));
        check("-0.25", Some((true, 25, 2, 5)));
        check("-0.0", Some((true, 0, 1, 4)));
        check("1234567.1234567", Some((false, 12_345_671_234_567, 7, 15)));
        check("-123456.1234567", Some((true, 1_234_561_234_567, 7, 15)));
        check("0.0000000000001", Some((false, 1, 13, 15)));
        check("9.9999999999999", Some((false, 99_999_999_999_999, 13, 15)));
        // Its end is not in the window.
        check("0.00000000000001", None);
        check("-9.9999999999999", None);
        for other in
            ["12345678.5", "1", "-1", "00.5", "01.5", "-01.5", ".5", "-.5", "1.", "-", "", "--1.5", "1..5", "a.5"]
        {
            check(other, None);
        }
    }

    #[test]
    fn what_ends_a_number_is_any_byte_but_a_digit() {
        for byte in 0..=255_u8 {
            let mut text = *b"12.34?777777777777";
            text[5] = byte;
            let got = read(&text).map(|short| short.size);
            let want = if byte.is_ascii_digit() { None } else { Some(5) };
            assert_eq!(got, want, "{byte:#x}");
            text[2] = byte;
            assert_eq!(read(&text).is_some(), byte == b'.', "only a point is one: {byte:#x}");
        }
    }

    #[test]
    fn a_text_shorter_than_the_window_is_left_to_others() {
        assert_eq!(read(b"1.5"), None);
        assert_eq!(read(b"1.5,22222222222"), None);
        assert!(read(b"1.5,222222222222").is_some());
    }

    #[test]
    fn a_byte_is_a_digit_or_not_wherever_it_stands() {
        for at in 0..SIZE {
            for byte in 0..=255_u8 {
                let mut window = [b'7'; SIZE];
                window[at] = byte;
                let want = if byte.is_ascii_digit() { 0 } else { 1 << at };
                assert_eq!(non_digits(&window), want, "{byte:#x} at {at}");
            }
        }
    }
}
