//! Writes the shortest text of an FP32 that reads back to the same value: Raffaello Giulietti's Schubfach ("The
//! Schubfach way to render doubles", 2020) for 32 bits. Digits are written to their final position without branching on
//! their number. Of several shortest texts it is the one nearest to the value. Called by `writer` for numbers without
//! an exponent. A text has at most [`SIZE_MAX`] bytes.

use std::hint::select_unpredictable;

/// Bits of the smallest magnitude written here, and of the first that is too large.
const LEAST: u32 = 1e-6_f32.to_bits();
const MOST: u32 = 1e8_f32.to_bits();

/// Size of the buffer in bytes: the longest text, or a shorter one and the words written past its end.
pub(super) const SIZE_MAX: usize = 24;

/// Writes a number to the front of a buffer and returns its size in bytes. `None` for magnitudes that are not handled
/// here: below `1e-6`, except zeros, and from `1e8` on.
#[inline(always)]
pub(super) fn write(value: f32, space: &mut [u8; SIZE_MAX]) -> Option<usize> {
    let bits = value.to_bits();
    if !(LEAST..MOST).contains(&(bits & 0x7fff_ffff)) {
        let zero = if bits == 0 { *b"0.0\0" } else { *b"-0.0" };
        *space.first_chunk_mut::<4>()? = zero;
        return (bits << 1 == 0).then_some(3 + (bits >> 31) as usize);
    }
    let (significand, exponent) = decimal(bits);
    // Nine digits: the first one, and eight others in a word, perhaps with trailing zeros.
    let count = digit_count(significand);
    let all = u64::from(significand) * u64::from(*POWERS.get(9 - count)?);
    let (first, others) = (all / 100_000_000, all % 100_000_000);
    let digits = eight_digits(others);
    let significant_count = 9 - digits.leading_zeros() as usize / 8;
    // The value is `first.others * 10^magnitude`.
    let magnitude = exponent + count as i32 - 1;

    let sign_size = (bits >> 31) as usize;
    *space.first_mut()? = b'-';
    let (first, digits) = (first as u8 | b'0', digits | ZEROS);
    match magnitude {
        -6..=-1 => {
            let zeros_size = 1 + magnitude.unsigned_abs() as usize;
            put(space, sign_size, u64::from_le_bytes(*b"0.000000"))?;
            *space.get_mut(sign_size + zeros_size)? = first;
            put(space, sign_size + zeros_size + 1, digits)?;
            Some(sign_size + zeros_size + significant_count)
        }
        0..=7 => {
            let whole_size = 1 + magnitude as usize;
            *space.get_mut(sign_size)? = first;
            put(space, sign_size + 1, digits)?;
            // The point, and the digits after it once more, one byte further. At least one digit follows it.
            put(space, sign_size + whole_size, digits >> (8 * magnitude) << 8 | u64::from(b'.'))?;
            let last = (digits >> 56) as u8;
            *space.get_mut(sign_size + 9)? = last;
            Some(sign_size + 1 + significant_count.max(whole_size + 1))
        }
        _ => None,
    }
}

/// Writes the eight bytes of a word at an offset.
#[inline(always)]
fn put(space: &mut [u8; SIZE_MAX], at: usize, word: u64) -> Option<()> {
    *space.get_mut(at..)?.first_chunk_mut::<8>()? = word.to_le_bytes();
    Some(())
}

/// The shortest decimal `significand * 10^exponent` of a number between [`LEAST`] and [`MOST`], given by its bits. The
/// significand may end with zeros. Names follow the paper: the number is `c * 2^q`, `k` is the decimal exponent.
#[inline(always)]
fn decimal(bits: u32) -> (u32, i32) {
    let (fraction, biased) = (bits & 0x007f_ffff, (bits >> 23 & 0xff) as i32);
    let (c, q) = (fraction | 0x0080_0000, biased - 150);
    // The interval of values that round to this number, in quarters: below a power of two it is narrower.
    let is_closer = u32::from(fraction == 0);
    let (low, middle, high) = (4 * c - 2 + is_closer, 4 * c, 4 * c + 2);

    // The largest power of ten that is not larger than the interval.
    let k = (q * 1_262_611 - if is_closer == 1 { 524_031 } else { 0 }) >> 22;
    let shift = q + ((-k * 1_741_647) >> 19) + 1;
    let power = usize::try_from(-k - POWER_MIN).ok().and_then(|index| TENS.get(index)).copied().unwrap_or(0);
    let [low, middle, high] = [low, middle, high].map(|bound| round_to_odd(power, bound << shift));
    // The ends of the interval round to the even number, so they belong to it only if `c` is even.
    let (low, high) = (low + (c & 1), high - (c & 1));

    // The neighbours with one digit less, and those with all digits.
    let all = middle / 4;
    let few = all / 10;
    let (is_few_below, is_few_above) = (low <= 40 * few, 40 * few + 40 <= high);
    let (is_below, is_above) = (low <= 4 * all, 4 * all + 4 <= high);
    let half = 4 * all + 2;
    let is_nearer_above = (middle > half) | (middle == half) & (all & 1 == 1);
    // Unpredictable, so selected without branches.
    let up = select_unpredictable(is_below == is_above, is_nearer_above, is_above);
    let is_few = (all >= 10) & (is_few_below != is_few_above);
    let significand = select_unpredictable(is_few, few + u32::from(is_few_above), all + u32::from(up));
    (significand, k + i32::from(is_few))
}

/// The high part of a 96-bit product; its last bit is also set if bits were cut off (round to odd).
#[inline(always)]
const fn round_to_odd(power: u64, factor: u32) -> u32 {
    let product = power as u128 * factor as u128;
    let (high, low) = ((product >> 64) as u32, (product >> 32) as u32);
    high | (low > 1) as u32
}

/// Number of decimal digits of a significand: six to nine, since a float has 24 bits.
#[inline(always)]
const fn digit_count(significand: u32) -> usize {
    debug_assert!(significand >= 100_000);
    6 + (significand >= 1_000_000) as usize
        + (significand >= 10_000_000) as usize
        + (significand >= 100_000_000) as usize
}

/// `10^i`.
const POWERS: [u32; 10] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000];

/// The eight digits of a number below 10^8 as bytes, the first digit in the lowest. Splits into halves, pairs and
/// digits, for all parts of the word at once, and divides by multiplication.
#[inline(always)]
const fn eight_digits(number: u64) -> u64 {
    let halves = (number / 10_000) | ((number % 10_000) << 32);
    let hundreds = ((halves * 10_486) >> 20) & 0x0000_007f_0000_007f;
    let pairs = hundreds | ((halves - 100 * hundreds) << 16);
    let tens = ((pairs * 103) >> 10) & 0x000f_000f_000f_000f;
    tens | ((pairs - 10 * tens) << 8)
}

const ZEROS: u64 = u64::from_le_bytes([b'0'; 8]);

/// Smallest exponent in [`TENS`].
const POWER_MIN: i32 = -31;

/// `10^i` for `i` from [`POWER_MIN`] on: the high 64 bits, rounded up.
#[expect(clippy::indexing_slicing, reason = "while compiling, a panic is an error")]
static TENS: [u64; 77] = {
    let (mut tens, mut index) = ([0; 77], 0);
    while index < tens.len() {
        tens[index] = ten(index as i32 + POWER_MIN);
        index += 1;
    }
    tens
};

const fn ten(exponent: i32) -> u64 {
    // 10^i and 5^i have the same significant bits.
    let five = 5_u128.pow(exponent.unsigned_abs());
    let size = 128 - five.leading_zeros();
    if exponent >= 0 {
        if size <= 64 {
            return (five << (64 - size)) as u64;
        }
        return (five >> (size - 64)) as u64 + 1;
    }
    // Long division of a power of two by 5^i, bit by bit.
    let (mut quotient, mut rest, mut step) = (0_u64, 1_u128, 0);
    while step < 63 + size {
        rest *= 2;
        quotient <<= 1;
        if rest >= five {
            rest -= five;
            quotient |= 1;
        }
        step += 1;
    }
    quotient + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same by another implementation of another algorithm, where it writes no exponent.
    fn check(value: f32) {
        let mut space = [b'?'; SIZE_MAX];
        let got = write(value, &mut space).map(|size| std::str::from_utf8(&space[..size]).unwrap());
        let mut buffer = zmij::Buffer::new();
        let want = buffer.format_finite(value);
        let is_plain = (1e-6..1e8).contains(&value.abs()) || value == 0.0;
        assert_eq!(got.is_some(), is_plain, "{value:e}");
        match got {
            // An exponent says the same as zeros.
            Some(got) if want.contains('e') => {
                let digits = |text: &str| -> String {
                    let number = text.split('e').next().unwrap();
                    number.chars().filter(char::is_ascii_digit).collect::<String>().trim_matches('0').to_owned()
                };
                assert_eq!((digits(got), got.parse()), (digits(want), Ok(value)));
            }
            Some(got) => assert_eq!(got, want, "{:#x}", value.to_bits()),
            None => {}
        }
    }

    #[test]
    fn texts_are_those_of_another_algorithm() {
        for text in ["0", "1", "0.1", "0.5", "123456.7", "9.999999e-7", "1e-6", "1.5e-6", "1e8", "99999990", "99999992"]
        {
            check(text.parse().unwrap());
            check(-text.parse::<f32>().unwrap());
        }
        // All powers of two and ten and the numbers around them, where the intervals change.
        let powers = (1..0xff_u32).map(|biased| biased << 23);
        let tens = (-45..39).map(|exponent| format!("1e{exponent}").parse::<f32>().unwrap().to_bits());
        for bits in powers.chain(tens) {
            (bits.saturating_sub(50)..bits + 50).map(f32::from_bits).filter(|float| float.is_normal()).for_each(check);
        }
        // Every 1,009th number. All were compared once, with a step of 1, which takes a few minutes.
        (0..f32::INFINITY.to_bits()).step_by(1_009).map(f32::from_bits).for_each(check);
        for none in (0..0x100).map(|low| f32::from_bits(f32::INFINITY.to_bits() + low)) {
            assert_eq!(write(none, &mut [0; SIZE_MAX]), None);
        }
    }

    #[test]
    fn digits_are_counted_and_taken_apart() {
        for power in POWERS {
            for number in [power.saturating_sub(1), power, power + 1, power / 2 * 3] {
                if (100_000..1_000_000_000).contains(&number) {
                    assert_eq!(digit_count(number), number.to_string().len(), "{number}");
                }
                let want = format!("{:08}", number % 100_000_000);
                let got = eight_digits(u64::from(number % 100_000_000)) | ZEROS;
                assert_eq!(got.to_le_bytes(), want.as_bytes());
            }
        }
        for number in (0..100_000_000).step_by(9_973) {
            assert_eq!((eight_digits(number) | ZEROS).to_le_bytes(), format!("{number:08}").as_bytes());
        }
    }
}
