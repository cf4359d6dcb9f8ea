//! Parses numbers. The fast path reads eight digits per step, then multiplies or divides two exact doubles
//! (Clinger's fast path). Numbers for which that is not exact go to `fast-float2`. A float is the nearest double, cast
//! to the narrower type.
//!
//! Functions on the path of every element are `inline(always)`: as calls they took 50% longer.

use crate::json::cursor::Cursor;
use crate::json::window::{self, eight};

/// The reason why a number of a datatype could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberError {
    /// There is no number here, or the text is not JSON.
    Other,
    /// A number, but not an integer.
    Fraction,
    /// A number that the datatype cannot hold.
    Range,
}

/// A number as written: `mantissa * 10^exponent`.
struct Decimal {
    is_negative: bool,
    mantissa: u64,
    exponent: i64,
    /// True if the mantissa has all digits, and did not overflow.
    is_whole: bool,
}

/// Number of digits that always fit into 64 bits.
const DIGITS_MAX: usize = 19;
/// Powers of ten up to this one are exact doubles.
const POWER_MAX: u64 = 22;
/// `10^i`.
const POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20,
    1e21, 1e22,
];

/// Reads comma-separated decimals of the most frequent form into slots, until one has another form or the slots or the
/// array end. Leaves the cursor before the comma or bracket after the last one; returns their number.
#[inline(always)]
pub(super) fn read_run<'o, T: 'o>(
    cursor: &mut Cursor<'_>,
    slots: &mut impl Iterator<Item = &'o mut T>,
    cast: impl Fn(f64) -> T,
) -> usize {
    let mut count = 0;
    let mut rest = cursor.rest;
    while let Some(short) = window::read(rest)
        && let Some(behind @ [end @ (b',' | b']'), after @ ..]) = rest.get(short.size..)
        && let Some(slot) = slots.next()
    {
        *slot = cast(exact(&short));
        count += 1;
        cursor.rest = behind;
        if *end == b']' {
            break;
        }
        // Some writers (Python's `json`) put a space after each comma.
        rest = after.strip_prefix(b" ").unwrap_or(after);
    }
    count
}

/// The nearest double: both operands are exact, so that the quotient is rounded only once (Clinger).
#[inline(always)]
fn exact(short: &window::ShortWindow) -> f64 {
    // As a signed integer, since that converts in one instruction on x86-64; the mantissa is below 2^63.
    let value = short.mantissa.cast_signed() as f64 / POWERS.get(short.fraction_size).copied().unwrap_or(f64::NAN);
    f64::from_bits(value.to_bits() | u64::from(short.is_negative) << 63)
}

/// Reads a double.
#[inline(always)]
pub(super) fn read_f64(cursor: &mut Cursor<'_>) -> Result<f64, NumberError> {
    let start = cursor.rest;
    let Some((decimal, rest)) = decimal(start) else { return read_literal(cursor) };
    cursor.rest = rest;
    let power = decimal.exponent.unsigned_abs();
    if decimal.is_whole && decimal.mantissa <= 1 << 53 && power <= POWER_MAX {
        return Ok(scale(&decimal));
    }
    read_slowly(start, rest)
}

/// Reads a float: the nearest double, cast to `f32`.
#[inline(always)]
pub(super) fn read_f32(cursor: &mut Cursor<'_>) -> Result<f32, NumberError> {
    let start = cursor.rest;
    let Some((decimal, rest)) = decimal(start) else {
        return read_literal(cursor).map(|value| value as f32);
    };
    cursor.rest = rest;
    if decimal.is_whole && decimal.exponent.unsigned_abs() <= 2 * POWER_MAX {
        let close = scale(&decimal);
        if decimal.mantissa == 0 || is_decided(close) {
            return Ok(close as f32);
        }
    }
    let value = read_slowly(start, rest)?;
    let narrow = value as f32;
    if narrow.is_infinite() { Err(NumberError::Range) } else { Ok(narrow) }
}

/// Reads an integer.
pub(super) fn read_integer<T: TryFrom<i128>>(cursor: &mut Cursor<'_>) -> Result<T, NumberError> {
    let is_negative = cursor.consume(b'-');
    let start = cursor.rest;
    let (magnitude, rest) = digits(start, 0);
    let count = start.len().saturating_sub(rest.len());
    cursor.rest = rest;
    if count == 0 || (count > 1 && start.first() == Some(&b'0')) {
        return Err(NumberError::Other);
    }
    if matches!(rest.first(), Some(b'.' | b'e' | b'E')) {
        return Err(NumberError::Fraction);
    }
    let magnitude = if count <= DIGITS_MAX { Some(magnitude) } else { parse_u64(start, count) };
    let magnitude = i128::from(magnitude.ok_or(NumberError::Range)?);
    T::try_from(if is_negative { -magnitude } else { magnitude }).map_err(|_| NumberError::Range)
}

/// Parses digits that may not fit into 64 bits.
fn parse_u64(text: &[u8], count: usize) -> Option<u64> {
    std::str::from_utf8(text.get(..count)?).ok()?.parse().ok()
}

/// `NaN`, `Inf` and `Infinity`, the latter two with a sign.
#[cold]
fn read_literal(cursor: &mut Cursor<'_>) -> Result<f64, NumberError> {
    let is_negative = cursor.rest.first() == Some(&b'-');
    let (text, _) = cursor.number().map_err(|_| NumberError::Other)?;
    let value = if text.ends_with(b"N") { f64::NAN } else { f64::INFINITY };
    Ok(if is_negative { -value } else { value })
}

/// The nearest double, by `fast-float2`.
#[cold]
fn read_slowly(start: &[u8], rest: &[u8]) -> Result<f64, NumberError> {
    let text = start.get(..start.len().saturating_sub(rest.len())).unwrap_or_default();
    // RapidJSON refuses a number that rounds to infinity when it parses the text.
    fast_float2::parse(text).ok().filter(|value: &f64| value.is_finite()).ok_or(NumberError::Other)
}

/// `mantissa * 10^exponent` for exponents of up to twice [`POWER_MAX`]. The nearest double for mantissas of up to 53
/// bits and exponents of up to [`POWER_MAX`]; otherwise within two units in the last place of it.
fn scale(decimal: &Decimal) -> f64 {
    let power = decimal.exponent.unsigned_abs();
    let by = |value: f64, power| {
        let scale = power_of_ten(power);
        if decimal.exponent < 0 { value / scale } else { value * scale }
    };
    let mut value = by(decimal.mantissa as f64, power.min(POWER_MAX));
    if power > POWER_MAX {
        value = by(value, power - POWER_MAX);
    }
    // No branch on the sign: in tensors it is often random.
    f64::from_bits(value.to_bits() | u64::from(decimal.is_negative) << 63)
}

fn power_of_ten(power: u64) -> f64 {
    usize::try_from(power).ok().and_then(|power| POWERS.get(power)).copied().unwrap_or(f64::INFINITY)
}

/// Returns true if a value within two units of the nearest double rounds to the same `f32` as that
/// double: its distance from the midpoint between two floats is larger than that.
fn is_decided(close: f64) -> bool {
    /// Low bits of a double's significand that a float does not have.
    const LOW: u64 = (1 << 29) - 1;
    let from_midpoint = (close.to_bits() & LOW).abs_diff(1 << 28);
    // Subnormal floats have other midpoints, and above the largest there may be no float.
    let is_normal = (1.2e-38..3.4e38).contains(&close.abs());
    from_midpoint > 4 && is_normal
}

/// Reads the parts of a number in JSON's grammar; `None` for anything else.
#[inline(always)]
fn decimal(text: &[u8]) -> Option<(Decimal, &[u8])> {
    let is_negative = text.first() == Some(&b'-');
    let start = text.get(usize::from(is_negative)..)?;
    let (mut mantissa, mut rest) = match start {
        [b'0', rest @ ..] => (0, rest),
        [b'1'..=b'9', ..] => digits(start, 0),
        _ => return None,
    };
    let mut count = start.len().wrapping_sub(rest.len());
    let behind = rest.len();
    let mut exponent = 0_i64;
    if let [b'.', fraction @ ..] = rest {
        (mantissa, rest) = digits(fraction, mantissa);
        let size = fraction.len().wrapping_sub(rest.len());
        if size == 0 {
            return None;
        }
        count = count.wrapping_add(size);
        exponent = (size as i64).wrapping_neg();
    }
    let is_whole = count <= DIGITS_MAX || significant_count(start) <= DIGITS_MAX;
    if let [b'e' | b'E', after @ ..] = rest {
        let (more, after) = exponent_of(after)?;
        exponent = exponent.saturating_add(more);
        rest = after;
    }
    // `-0` is an integer and so 0; `-0.0` is a negative zero.
    let is_negative = is_negative & ((mantissa != 0) | (rest.len() != behind));
    Some((Decimal { is_negative, mantissa, exponent, is_whole }, rest))
}

/// Number of digits from the first that is not zero.
#[cold]
fn significant_count(text: &[u8]) -> usize {
    let number = text.iter().take_while(|byte| byte.is_ascii_digit() || **byte == b'.');
    number.filter(|byte| **byte != b'.').skip_while(|digit| **digit == b'0').count()
}

/// Reads an exponent with its sign; saturates.
fn exponent_of(text: &[u8]) -> Option<(i64, &[u8])> {
    let (is_negative, start) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    let (mut value, mut rest) = (0_i64, start);
    while let [digit @ b'0'..=b'9', after @ ..] = rest {
        value = value.saturating_mul(10).saturating_add(i64::from(*digit - b'0'));
        rest = after;
    }
    (rest.len() != start.len()).then_some((if is_negative { value.wrapping_neg() } else { value }, rest))
}

/// Appends the digits at the beginning of a text to a number, which wraps beyond 64 bits. Each step reads sixteen bytes
/// without branching on the number of digits, which the processor could not predict in a tensor.
#[inline(always)]
fn digits(text: &[u8], number: u64) -> (u64, &[u8]) {
    let (mut number, mut rest) = (number, text);
    while let Some((first, after)) = rest.split_first_chunk::<8>()
        && let Some((second, _)) = after.split_first_chunk::<8>()
    {
        let (first, second) = (u64::from_le_bytes(*first), u64::from_le_bytes(*second));
        let first_count = digit_count(first);
        let second_count = if first_count == 8 { digit_count(second) } else { 0 };
        number = append(number, first, first_count);
        number = append(number, second, second_count);
        let count = first_count.wrapping_add(second_count);
        rest = rest.get(count..).unwrap_or_default();
        if count < 16 {
            return (number, rest);
        }
    }
    while let [digit @ b'0'..=b'9', after @ ..] = rest {
        number = number.wrapping_mul(10).wrapping_add(u64::from(*digit - b'0'));
        rest = after;
    }
    (number, rest)
}

const ZEROS: u64 = u64::from_le_bytes([b'0'; 8]);

/// Number of bytes of a word, from the lowest, that are digits. A digit minus `0` has no bits in its high half, even
/// after adding 6. A byte that is not a digit may carry, but only into bytes after it, which do not matter.
const fn digit_count(word: u64) -> usize {
    let values = word ^ ZEROS;
    let others = (values.wrapping_add(0x0606_0606_0606_0606) | values) & 0xf0f0_f0f0_f0f0_f0f0;
    (others.trailing_zeros() / 8) as usize
}

/// Appends the first `count` digits of a word to a number.
#[inline]
fn append(number: u64, word: u64, count: usize) -> u64 {
    /// `10^i`.
    const SCALES: [u64; 9] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];
    // Moves the digits to the high end of the word, filled up with leading zeros.
    let bits = 8 * count as u32;
    let word = word.checked_shl(64 - bits).unwrap_or(0) | ZEROS.checked_shr(bits).unwrap_or(0);
    let scale = SCALES.get(count).copied().unwrap_or(1);
    number.wrapping_mul(scale).wrapping_add(eight(word.wrapping_sub(ZEROS)))
}
