//! Writes JSON as Python's `json.dumps` does: a space after commas and colons, floats as `repr` has them, and
//! characters beyond ASCII as `\u` and four digits unless they are wanted as they are.

/// Appends a string.
pub fn string(text: &str, is_ascii: bool, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            // Python escapes the delete character with the others beyond ASCII's printable ones, and not without.
            character if character < ' ' || (is_ascii && !(' '..='~').contains(&character)) => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            character => out.push(character),
        }
    }
    out.push('"');
}

/// Appends a float as `repr` has it: the shortest text that reads back to the same value.
pub fn float(value: f64, out: &mut String) {
    if value.is_nan() {
        return out.push_str("NaN");
    }
    if value.is_infinite() {
        return out.push_str(if value > 0.0 { "Infinity" } else { "-Infinity" });
    }
    let text = shortest(value);
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        plain(digits, exponent, out);
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        out.push_str(&format!("{digits}e{sign}{:02}", exponent.unsigned_abs()));
    }
}

/// The shortest text with an exponent that reads back to the value. Of two texts that are equally near, Python
/// takes the one with an even last digit, and Rust's formatter the larger one: the digits are rounded again.
fn shortest(value: f64) -> String {
    let text = format!("{value:e}");
    let digits = text.bytes().take_while(|byte| *byte != b'e').filter(u8::is_ascii_digit).count();
    let even = format!("{value:.precision$e}", precision = digits.saturating_sub(1));
    if even.parse() == Ok(value) { even } else { text }
}

/// Appends a number from its digits and exponent, without the latter.
fn plain(digits: &str, exponent: i32, out: &mut String) {
    let unsigned = digits.strip_prefix('-').inspect(|_| out.push('-')).unwrap_or(digits);
    let mut figures = unsigned.chars().filter(char::is_ascii_digit);
    if exponent < 0 {
        out.push_str("0.");
        out.extend((exponent..-1).map(|_| '0'));
        out.extend(figures);
        return;
    }
    out.extend((0..=exponent).map(|_| figures.next().unwrap_or('0')));
    out.push('.');
    let rest = out.len();
    out.extend(figures);
    if out.len() == rest {
        out.push('0');
    }
}

/// Rounds as Python's `round(value, digits)`: the decimal number that is nearest to the exact value, halves to the
/// even digit.
pub fn rounded(value: f64, digits: usize) -> f64 {
    if value.is_finite() { format!("{value:.digits$}").parse().unwrap_or(value) } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_those_of_repr() {
        let check = |value: f64, want: &str| {
            let mut out = String::new();
            float(value, &mut out);
            assert_eq!(out, want);
        };
        for (value, want) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (f64::from(0.1_f32), "0.10000000149011612"),
            (f64::from(0.840_766_9_f32), "0.8407669067382812"),
            (-120.0, "-120.0"),
            (1e16, "1e+16"),
            (9_999_999_999_999_998.0, "9999999999999998.0"),
            (123_456_789_012_345.6, "123456789012345.6"),
            (0.0001, "0.0001"),
            (0.000_012_5, "1.25e-05"),
            (-1.5e300, "-1.5e+300"),
            (5e-324, "5e-324"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
        ] {
            check(value, want);
        }
    }

    #[test]
    fn strings_are_those_of_dumps() {
        let check = |text: &str, is_ascii: bool, want: &str| {
            let mut out = String::new();
            string(text, is_ascii, &mut out);
            assert_eq!(out, want);
        };
        check("a\"\\\n\u{1}/", true, r#""a\"\\\n\u0001/""#);
        check("é𝄞\u{7f}", true, r#""\u00e9\ud834\udd1e\u007f""#);
        check("é𝄞\u{7f}", false, "\"é𝄞\u{7f}\"");
    }

    #[test]
    fn halves_are_rounded_to_even() {
        let check = |value: f64, digits, want: f64| assert_eq!(rounded(value, digits), want, "{value} {digits}");
        check(0.125, 2, 0.12);
        check(0.375, 2, 0.38);
        check(2.5, 0, 2.0);
        check(2.675, 2, 2.67);
        check(f64::INFINITY, 2, f64::INFINITY);
    }
}
