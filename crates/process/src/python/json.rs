//! The little JSON of Python models: a writer for the server's messages, a reader for flat objects
//! of scalars, which a process sends. `NaN` and the infinities are written and read as Python's
//! `json` does. Pure; `message` bounds the size of every text.

use std::io::Write;

use model::parameters::{ParameterValue, Parameters};

/// A document to be written.
#[derive(Clone, Debug, PartialEq)]
pub enum JsonItem<'a> {
    /// An array.
    Array(Vec<Self>),
    /// A boolean.
    Bool(bool),
    /// An integer.
    Integer(i64),
    /// `null`.
    Null,
    /// An object, in this order.
    Object(Vec<(&'a str, Self)>),
    /// A document that is text already.
    Raw(&'a str),
    /// A text.
    Text(&'a str),
}

impl JsonItem<'_> {
    /// Appends the document.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Array(items) => put_list(b"[]", items, out, Self::encode),
            Self::Bool(value) => put_plain(value, out),
            Self::Integer(value) => put_plain(value, out),
            Self::Null => out.extend_from_slice(b"null"),
            Self::Object(members) => put_list(b"{}", members, out, |(name, item), out| {
                put_text(name, out);
                out.push(b':');
                item.encode(out);
            }),
            Self::Raw(text) => out.extend_from_slice(text.as_bytes()),
            Self::Text(text) => put_text(text, out),
        }
    }
}

/// Appends parameters as an object.
pub fn encode_parameters(parameters: &Parameters, out: &mut Vec<u8>) {
    put_list(b"{}", &parameters.0, out, |(name, value), out| {
        put_text(name, out);
        out.push(b':');
        match value {
            ParameterValue::Bool(value) => put_plain(value, out),
            ParameterValue::Double(value) => put_double(*value, out),
            ParameterValue::Int64(value) => put_plain(value, out),
            ParameterValue::Text(text) => put_text(text, out),
            ParameterValue::Uint64(value) => put_plain(value, out),
        }
    });
}

/// Reads an object of scalars with at most `count_max` members, each name once. An integer beyond
/// 64 bits becomes a double, half a surrogate pair U+FFFD. `None` for any other text.
pub fn decode_parameters(text: &str, count_max: usize) -> Option<Parameters> {
    let mut reader = FlatReader { rest: text };
    let mut members: Vec<(String, ParameterValue)> = Vec::new();
    reader.take_token("{")?;
    let mut has_more = reader.take_token("}").is_none();
    while has_more {
        let name = reader.take_text()?;
        reader.take_token(":")?;
        let value = reader.take_scalar()?;
        if members.len() == count_max || members.iter().any(|(have, _)| *have == name) {
            return None;
        }
        members.push((name, value));
        has_more = reader.take_token(",").is_some();
        if !has_more {
            reader.take_token("}")?;
        }
    }
    reader.skip_space();
    reader.rest.is_empty().then_some(Parameters(members))
}

fn put_list<T>(brackets: &[u8; 2], items: &[T], out: &mut Vec<u8>, put: impl Fn(&T, &mut Vec<u8>)) {
    let [open, close] = *brackets;
    out.push(open);
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        put(item, out);
    }
    out.push(close);
}

fn put_plain(value: &impl std::fmt::Display, out: &mut Vec<u8>) {
    // Writing to a vector cannot fail.
    let _ = write!(out, "{value}");
}

fn put_double(value: f64, out: &mut Vec<u8>) {
    match value {
        f64::INFINITY => out.extend_from_slice(b"Infinity"),
        f64::NEG_INFINITY => out.extend_from_slice(b"-Infinity"),
        // Unlike `Display`, `Debug` keeps the point of 1.0, so that it is read as a double again.
        _ => {
            let _ = write!(out, "{value:?}");
        }
    }
}

fn put_text(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    let mut rest = text.as_bytes();
    // In runs: almost no text has anything to escape.
    while let Some(at) = rest.iter().position(|byte| *byte < 0x20 || matches!(byte, b'"' | b'\\')) {
        let (plain, tail) = rest.split_at(at);
        out.extend_from_slice(plain);
        let Some((byte, tail)) = tail.split_first() else { break };
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', *byte]),
            _ => {
                let _ = write!(out, "\\u{byte:04x}");
            }
        }
        rest = tail;
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}

/// Reads from the front of a text.
struct FlatReader<'a> {
    rest: &'a str,
}

impl FlatReader<'_> {
    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r']);
    }

    fn take_token(&mut self, token: &str) -> Option<()> {
        self.skip_space();
        self.rest = self.rest.strip_prefix(token)?;
        Some(())
    }

    fn take_scalar(&mut self) -> Option<ParameterValue> {
        const WORDS: [(&str, ParameterValue); 5] = [
            ("false", ParameterValue::Bool(false)),
            ("true", ParameterValue::Bool(true)),
            ("NaN", ParameterValue::Double(f64::NAN)),
            ("Infinity", ParameterValue::Double(f64::INFINITY)),
            ("-Infinity", ParameterValue::Double(f64::NEG_INFINITY)),
        ];
        self.skip_space();
        if self.rest.starts_with('"') {
            return self.take_text().map(ParameterValue::Text);
        }
        let word = WORDS.into_iter().find(|(word, _)| self.take_token(word).is_some());
        word.map(|(_, value)| value).or_else(|| self.take_number())
    }

    fn take_number(&mut self) -> Option<ParameterValue> {
        let is_part = |byte: &u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
        let size = self.rest.bytes().take_while(|byte| is_part(byte)).count();
        let (number, rest) = self.rest.split_at_checked(size)?;
        self.rest = rest;
        let is_integer = is_number(number)?;
        let integer = || number.parse().map(ParameterValue::Int64).ok();
        let above = || number.parse().map(ParameterValue::Uint64).ok();
        let exact = if is_integer { integer().or_else(above) } else { None };
        exact.or_else(|| number.parse().map(ParameterValue::Double).ok())
    }

    fn take_text(&mut self) -> Option<String> {
        self.take_token("\"")?;
        let mut text = String::new();
        loop {
            let end = self.rest.find(|letter: char| letter < ' ' || matches!(letter, '"' | '\\'))?;
            let (plain, rest) = self.rest.split_at_checked(end)?;
            text.push_str(plain);
            let mut letters = rest.chars();
            let letter = letters.next();
            self.rest = letters.as_str();
            match letter {
                Some('"') => return Some(text),
                Some('\\') => text.push(self.take_escaped()?),
                _ => return None,
            }
        }
    }

    /// The character after a backslash.
    fn take_escaped(&mut self) -> Option<char> {
        let mut letters = self.rest.chars();
        let letter = letters.next()?;
        self.rest = letters.as_str();
        match letter {
            '"' | '\\' | '/' => Some(letter),
            'b' => Some('\u{8}'),
            'f' => Some('\u{c}'),
            'n' => Some('\n'),
            'r' => Some('\r'),
            't' => Some('\t'),
            'u' => {
                let unit = self.take_unit()?;
                Some(self.take_pair(unit).unwrap_or(char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER)))
            }
            _ => None,
        }
    }

    fn take_unit(&mut self) -> Option<u32> {
        let (digits, rest) = self.rest.split_at_checked(4)?;
        // `from_str_radix` would take a sign.
        let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        self.rest = rest;
        if is_hex { u32::from_str_radix(digits, 16).ok() } else { None }
    }

    /// The character of a pair of surrogates whose first was read. Without a second one nothing is taken.
    fn take_pair(&mut self, high: u32) -> Option<char> {
        let before = self.rest;
        let is_high = (0xd800..0xdc00).contains(&high);
        let low = self.rest.strip_prefix("\\u").filter(|_| is_high).and_then(|rest| {
            self.rest = rest;
            self.take_unit().filter(|low| (0xdc00..0xe000).contains(low))
        });
        let Some(low) = low else {
            self.rest = before;
            return None;
        };
        char::from_u32(0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00))
    }
}

/// Returns true if a number is an integer; `None` if it is not a number of JSON's grammar (RFC 8259
/// §6).
fn is_number(text: &str) -> Option<bool> {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    let whole = digits(unsigned);
    let has_zero_before = whole > 1 && unsigned.starts_with('0');
    let mut rest = unsigned.get(whole..).filter(|_| whole > 0 && !has_zero_before)?;
    let is_integer = rest.is_empty();
    if let Some(fraction) = rest.strip_prefix('.') {
        rest = Some(digits(fraction)).filter(|count| *count > 0).and_then(|count| fraction.get(count..))?;
    }
    if let Some(exponent) = rest.strip_prefix(['e', 'E']) {
        let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        rest = Some(digits(exponent)).filter(|count| *count > 0).and_then(|count| exponent.get(count..))?;
    }
    rest.is_empty().then_some(is_integer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(parameters: &Parameters) -> String {
        let mut out = Vec::new();
        encode_parameters(parameters, &mut out);
        String::from_utf8(out).unwrap()
    }

    fn only(text: &str) -> Option<ParameterValue> {
        decode_parameters(&format!("{{\"x\":{text}}}"), 1).map(|mut found| found.0.remove(0).1)
    }

    #[test]
    fn a_document_is_what_another_reader_reads() {
        let members = vec![
            ("mode", JsonItem::Text("serve")),
            ("a \"quoted\"\\\n\u{1f}\u{7f}é🎉", JsonItem::Null),
            (
                "sizes",
                JsonItem::Array(vec![JsonItem::Integer(i64::MIN), JsonItem::Bool(true), JsonItem::Array(vec![])]),
            ),
            ("config", JsonItem::Raw("{\"name\": \"m\"}")),
            ("args", JsonItem::Object(vec![("", JsonItem::Text(""))])),
        ];
        let mut out = Vec::new();
        JsonItem::Object(members).encode(&mut out);
        let got: serde_json::Value = serde_json::from_slice(&out).unwrap();
        let want = serde_json::json!({
            "mode": "serve",
            "a \"quoted\"\\\n\u{1f}\u{7f}é🎉": null,
            "sizes": [i64::MIN, true, []],
            "config": {"name": "m"},
            "args": {"": ""},
        });
        assert_eq!(got, want);
    }

    #[test]
    fn scalars_are_read_by_their_kind_or_refused() {
        let check = |text: &str, want| assert_eq!(only(text), want, "{text}");
        let int = |value| Some(ParameterValue::Int64(value));
        let double = |value| Some(ParameterValue::Double(value));
        let text = |value: &str| Some(ParameterValue::Text(value.to_owned()));
        check("true", Some(ParameterValue::Bool(true)));
        check(" false ", Some(ParameterValue::Bool(false)));
        check("-0", int(0));
        check("9223372036854775807", int(i64::MAX));
        check("9223372036854775808", Some(ParameterValue::Uint64(1 << 63)));
        check("-9223372036854775809", double(-9_223_372_036_854_775_809.0));
        check("18446744073709551616", double(18_446_744_073_709_551_616.0));
        check("1.0", double(1.0));
        check("-1.5e-3", double(-0.0015));
        check("2E2", double(200.0));
        check("Infinity", double(f64::INFINITY));
        check("-Infinity", double(f64::NEG_INFINITY));
        assert!(matches!(only("NaN"), Some(ParameterValue::Double(value)) if value.is_nan()));
        check(r#""a\"\\\/\b\f\n\r\t\u00e9""#, text("a\"\\/\u{8}\u{c}\n\r\té"));
        check(r#""\ud83c\udf89""#, text("🎉"));
        // Python's form of a name that is not UTF-8.
        check(r#""\udc80\ud83cx\ud83c\u0041""#, text("\u{fffd}\u{fffd}x\u{fffd}A"));
        for refused in [
            "",
            "01",
            "-",
            "1.",
            ".5",
            "+1",
            "1e",
            "1e+",
            "1.e1",
            "--1",
            "null",
            "[]",
            "{}",
            "tru",
            "nan",
            "\"",
            "\"\\",
            "\"\\u12\"",
            "\"\\u+123\"",
            "\"\\x\"",
            "\"\n\"",
            "1 2",
            "\"\\u12é4\"",
        ] {
            check(refused, None);
        }
    }

    #[test]
    fn an_object_has_each_name_once_and_no_more_than_it_may() {
        let check = |text, want: Option<usize>| {
            assert_eq!(decode_parameters(text, 2).map(|found| found.0.len()), want, "{text}");
        };
        check("{}", Some(0));
        check(" { \n} ", Some(0));
        check(r#"{"a":1,"b":2}"#, Some(2));
        check(r#"{"a":1,"b":2,"c":3}"#, None);
        check(r#"{"a":1,"\u0061":2}"#, None);
        for refused in ["", "{", "}", "{}x", "[]", "1", "{,}", r#"{"a"}"#, r#"{"a":1,}"#, r#"{"a":1"b":2}"#, "{a:1}"] {
            check(refused, None);
        }
    }

    #[test]
    fn parameters_read_back_as_they_were() {
        let doubles = [0.1, 1.0, -0.0, 1e300, 5e-324, f64::MAX, f64::INFINITY, f64::NEG_INFINITY, 1e16, 123_456_789.0];
        let texts = ["", "\0\"\\/\u{8}\u{1f}\u{7f}", "é🎉\u{fffd}\u{ffff}", "{\"a\": 1}"];
        let values = doubles.map(ParameterValue::Double).into_iter();
        let values = values.chain(texts.map(|text| ParameterValue::Text(text.to_owned()))).chain([
            ParameterValue::Bool(true),
            ParameterValue::Int64(i64::MIN),
            ParameterValue::Uint64(u64::MAX),
        ]);
        let all = Parameters(values.enumerate().map(|(index, value)| (format!("n{index}\t"), value)).collect());
        let text = object(&all);
        assert_eq!(decode_parameters(&text, 100), Some(all.clone()));
        assert_eq!(object(&Parameters::default()), "{}");
        // Another reader agrees on the doubles that standard JSON has.
        for (index, double) in doubles.into_iter().enumerate().filter(|(_, double)| double.is_finite()) {
            let one = object(&Parameters(vec![all.0[index].clone()]));
            let got: serde_json::Value = serde_json::from_str(&one).unwrap();
            assert_eq!(got[format!("n{index}\t")].as_f64().map(f64::to_bits), Some(double.to_bits()), "{one}");
        }
    }
}
