//! The elements of an array and the members of an object as texts, for values that are moved as they are: rows of a tensor
//! become columns without a node for each number. The text must be [valid](validate). No recursion; each part is looked at
//! once.

use std::borrow::Cow;

use crate::json::cursor::Cursor;
use crate::json::{JsonError, document};

/// Checks a text against the grammar: one value, with blanks around it.
///
/// # Errors
///
/// The first fault, as a [`JsonError`].
pub fn validate(text: &[u8]) -> Result<(), JsonError> {
    document::validate(text, 0, 0)
}

/// The elements of an array, without blanks around them; empty for any other value.
///
/// ```
/// use wire::json::parts::elements;
///
/// let found: Vec<_> = elements(br#"[ [1, 2], "a,b" ]"#).collect();
/// assert_eq!(found, [&b"[1, 2]"[..], br#""a,b""#]);
/// ```
pub fn elements(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    JsonParts::within(text, b'[', b']')
}

/// The members of an object, their values without blanks around them; empty for any other value.
pub fn members(text: &[u8]) -> impl Iterator<Item = (Cow<'_, str>, &[u8])> {
    JsonParts::within(text, b'{', b'}').filter_map(|part| {
        let mut cursor = Cursor::new(part, 0);
        let name = cursor.string().ok()?;
        cursor.skip_space();
        cursor.consume(b':').then(|| (name, cursor.rest.trim_ascii()))
    })
}

/// The text of a string; `None` for any other value.
pub fn string(text: &[u8]) -> Option<Cow<'_, str>> {
    if text.first() == Some(&b'"') { Cursor::new(text, 0).string().ok() } else { None }
}

/// Bytes of the string, array or object at the beginning of a text; 1 for anything else.
pub fn extent(text: &[u8]) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        match byte {
            b'[' | b'{' => depth = depth.saturating_add(1),
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'"' => at = at.saturating_add(string_size(text.get(at..).unwrap_or_default()).saturating_sub(1)),
            _ => {}
        }
        at = at.saturating_add(1);
        if depth == 0 {
            break;
        }
    }
    at
}

/// Bytes of the string at the beginning of a text, quotation marks included.
fn string_size(text: &[u8]) -> usize {
    let mut at = 1;
    while let Some(byte) = text.get(at) {
        at = at.saturating_add(1);
        match byte {
            b'"' => break,
            b'\\' => at = at.saturating_add(1),
            _ => {}
        }
    }
    at.min(text.len())
}

/// The parts between the commas of an array or object.
struct JsonParts<'a> {
    rest: &'a [u8],
}

impl<'a> JsonParts<'a> {
    fn within(text: &'a [u8], open: u8, close: u8) -> Self {
        let inner = text.trim_ascii().strip_prefix(&[open]).and_then(|text| text.strip_suffix(&[close]));
        Self { rest: inner.unwrap_or_default().trim_ascii() }
    }
}

impl<'a> Iterator for JsonParts<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let mut at = 0;
        while let Some(rest) = self.rest.get(at..).filter(|rest| !matches!(rest, [] | [b',', ..])) {
            at = at.saturating_add(extent(rest));
        }
        let (part, rest) = self.rest.split_at_checked(at)?;
        self.rest = rest.get(1..).unwrap_or_default();
        Some(part.trim_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts<'a>(parts: impl Iterator<Item = &'a [u8]>) -> Vec<&'a str> {
        parts.map(|part| std::str::from_utf8(part).unwrap()).collect()
    }

    #[test]
    fn elements_are_what_lies_between_the_commas_of_an_array() {
        let check = |text: &str, want: &[&str]| {
            assert_eq!(validate(text.as_bytes()), Ok(()), "{text}");
            assert_eq!(texts(elements(text.as_bytes())), want, "{text}");
        };
        check("[]", &[]);
        check(" [ ] ", &[]);
        check("[1]", &["1"]);
        check("[1 , -2.5e3,NaN,true\n,null]", &["1", "-2.5e3", "NaN", "true", "null"]);
        check(r#"[[1,[2]],{"a":[1,2],"b":{}},"x"]"#, &["[1,[2]]", r#"{"a":[1,2],"b":{}}"#, "\"x\""]);
        check(r#"["a,b]","\"","\\",", \\\","]"#, &[r#""a,b]""#, r#""\"""#, r#""\\""#, r#"", \\\",""#]);
        check(r#"{"a":1}"#, &[]);
        check("7", &[]);
    }

    #[test]
    fn members_have_their_names_decoded_and_their_values_as_text() {
        let found: Vec<_> = members(br#" { "a" : 1, "b\n\u00e9":[ {"c":"}"} ] ,"":"x" , "a":2 } "#).collect();
        let want: [(&str, &[u8]); 4] = [("a", b"1"), ("b\n\u{e9}", br#"[ {"c":"}"} ]"#), ("", br#""x""#), ("a", b"2")];
        assert_eq!(found.iter().map(|(name, value)| (&**name, *value)).collect::<Vec<_>>(), want);
        assert_eq!(members(b"{}").count() + members(b"[1]").count(), 0);
    }

    #[test]
    fn a_string_is_decoded_and_an_extent_ends_with_its_value() {
        assert_eq!(string(br#""a\"\u00e9""#).as_deref(), Some("a\"\u{e9}"));
        assert_eq!(string(b"1"), None);
        for (text, want) in [(r#""a]" ,1"#, 4), (r#"{"a":"}"}]"#, 9), ("[[1],[2]],3", 9), ("12", 1), ("", 0)] {
            assert_eq!(extent(text.as_bytes()), want, "{text}");
        }
        // A text that is not valid ends somewhere, and nothing panics.
        for text in ["[", "[\"", "[\"\\", "{\"a\"", "{\"a\":", "[1,,2]", "{1:2}", "]", "[\"a\"x\"]"] {
            let count = elements(text.as_bytes()).count() + members(text.as_bytes()).count();
            assert!(count <= text.len() && extent(text.as_bytes()) <= text.len(), "{text}");
        }
    }
}
