//! Writes JSON in the format of RapidJSON's writer: compact, control characters as `\n` or `\u00XX`, everything else
//! verbatim. Floats are the shortest text that reads back to the same value of their own width; `NaN`, `Infinity` and
//! `-Infinity` are written without quotation marks.

use crate::json::cursor::find;
use crate::json::shortest;

/// Appends a comma, except before the first item.
#[inline]
pub fn comma(index: usize, out: &mut Vec<u8>) {
    if index > 0 {
        out.push(b',');
    }
}

/// Appends a string with quotation marks and escapes.
pub fn string(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    let mut rest = text.as_bytes();
    while let Some(size) = find(rest, |byte| (byte == b'"') | (byte == b'\\') | (byte < 0x20)) {
        let Some((plain, [special, after @ ..])) = rest.split_at_checked(size) else { break };
        out.extend_from_slice(plain);
        escape(*special, out);
        rest = after;
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}

fn escape(byte: u8, out: &mut Vec<u8>) {
    let letter = match byte {
        b'"' | b'\\' => byte,
        0x08 => b'b',
        0x0c => b'f',
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        _ => {
            let digit = |half| *b"0123456789ABCDEF".get(usize::from(half)).unwrap_or(&b'0');
            out.extend_from_slice(&[b'\\', b'u', b'0', b'0', digit(byte >> 4), digit(byte & 15)]);
            return;
        }
    };
    out.extend_from_slice(&[b'\\', letter]);
}

/// Appends an integer.
pub fn integer(value: impl itoa::Integer, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Appends a boolean.
#[inline]
pub fn boolean(value: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(if value { b"true" } else { b"false" });
}

/// Appends a float, `f32` or `f64`.
pub fn float<F: Float>(value: F, out: &mut Vec<u8>) {
    let mut space = [0; shortest::SIZE_MAX];
    if let Some(size) = value.write_plain(&mut space) {
        // Copies the whole buffer and truncates: a copy of constant size is faster than one of variable size.
        let end = out.len() + size;
        out.extend_from_slice(&space);
        return out.truncate(end);
    }
    let wide = value.widen();
    if wide.is_finite() {
        let mut buffer = zmij::Buffer::new();
        let text = buffer.format_finite(value).as_bytes();
        match text.iter().position(|byte| *byte == b'e') {
            Some(at) => exponential(text, at, out),
            None => out.extend_from_slice(text),
        }
    } else if wide.is_nan() {
        out.extend_from_slice(b"NaN");
    } else {
        out.extend_from_slice(if wide > 0.0 { b"Infinity" } else { b"-Infinity" });
    }
}

/// A float type: `f32` or `f64`.
pub trait Float: zmij::Float + Copy {
    /// Writes it to the front of a buffer and returns its size, if there is a fast path for it.
    fn write_plain(self, _: &mut [u8; shortest::SIZE_MAX]) -> Option<usize> {
        None
    }

    /// The value as a double; NaN and infinities are preserved.
    fn widen(self) -> f64;
}

impl Float for f32 {
    #[inline(always)]
    fn write_plain(self, space: &mut [u8; shortest::SIZE_MAX]) -> Option<usize> {
        shortest::write(self, space)
    }

    fn widen(self) -> f64 {
        f64::from(self)
    }
}

impl Float for f64 {
    fn widen(self) -> f64 {
        self
    }
}

/// Formats a number that has an exponent as RapidJSON does (`dtoa.h`, `Prettify`): without an exponent if that takes at
/// most 21 digits before the point, or at most five zeros after it.
#[cold]
fn exponential(text: &[u8], at: usize, out: &mut Vec<u8>) {
    let (number, exponent) = text.split_at_checked(at).unwrap_or((text, &[]));
    let exponent = std::str::from_utf8(exponent.get(1..).unwrap_or_default()).unwrap_or_default();
    let exponent: i32 = exponent.trim_start_matches('+').parse().unwrap_or(0);
    let number = match number {
        [b'-', number @ ..] => {
            out.push(b'-');
            number
        }
        number => number,
    };
    let digits: smallvec::SmallVec<[u8; 20]> = number.iter().copied().filter(u8::is_ascii_digit).collect();
    let count = i32::try_from(digits.len()).unwrap_or(i32::MAX);
    // Digits before the decimal point.
    let whole = exponent.saturating_add(1);
    if (count..=21).contains(&whole) {
        out.extend_from_slice(&digits);
        out.extend((count..whole).map(|_| b'0'));
        out.extend_from_slice(b".0");
    } else if (1..=21).contains(&whole) {
        let (before, after) = digits.split_at_checked(usize::try_from(whole).unwrap_or(0)).unwrap_or((&digits, &[]));
        out.extend_from_slice(before);
        out.push(b'.');
        out.extend_from_slice(after);
    } else if (-5..=0).contains(&whole) {
        out.extend_from_slice(b"0.");
        out.extend((whole..0).map(|_| b'0'));
        out.extend_from_slice(&digits);
    } else {
        let (first, rest) = digits.split_at_checked(1).unwrap_or((&digits, &[]));
        out.extend_from_slice(first);
        if !rest.is_empty() {
            out.push(b'.');
            out.extend_from_slice(rest);
        }
        out.push(b'e');
        integer(exponent, out);
    }
}
