//! `TRITONSERVER_Message`: a JSON document. A backend's own is checked and kept as it was written.

use crate::triton::object::hosted_object;
use base::error::Error;
use base::limits::JSON_DEPTH_MAX;

/// A `TRITONSERVER_Message`.
pub(super) struct MessageObject {
    pub(super) json: Box<str>,
}

hosted_object!(MessageObject, "message", 2);

impl MessageObject {
    pub(super) fn new(json: impl Into<Box<str>>) -> Self {
        Self { json: json.into() }
    }

    /// A message of a backend's own.
    ///
    /// # Errors
    /// `InvalidArgument` for bytes that are not a JSON document.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let refuse = |at: usize| Error::invalid(format!("failed to parse the message: no JSON at byte {at}"));
        let text = std::str::from_utf8(bytes).map_err(|error| refuse(error.valid_up_to()))?;
        let mut check = JsonCheck { bytes, at: 0 };
        check.value(0).ok_or_else(|| refuse(check.at))?;
        check.skip_space();
        if check.at < bytes.len() {
            return Err(refuse(check.at));
        }
        Ok(Self::new(text))
    }
}

/// A string as JSON.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            letter if u32::from(letter) < 0x20 => out.push_str(&format!("\\u{:04x}", u32::from(letter))),
            letter => out.push(letter),
        }
    }
    out.push('"');
    out
}

/// Checks that bytes are a JSON document (RFC 8259), no deeper than [`JSON_DEPTH_MAX`].
struct JsonCheck<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl JsonCheck<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn take(&mut self, wanted: u8) -> Option<()> {
        (self.peek() == Some(wanted)).then(|| self.at += 1)
    }

    fn value(&mut self, depth: usize) -> Option<()> {
        if depth >= JSON_DEPTH_MAX {
            return None;
        }
        self.skip_space();
        match self.peek()? {
            b'{' => self.list(b'}', depth, true),
            b'[' => self.list(b']', depth, false),
            b'"' => self.string(),
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'n' => self.word(b"null"),
            _ => self.number(),
        }
    }

    fn list(&mut self, end: u8, depth: usize, has_names: bool) -> Option<()> {
        self.at += 1;
        self.skip_space();
        if self.take(end).is_some() {
            return Some(());
        }
        loop {
            if has_names {
                self.skip_space();
                self.string()?;
                self.skip_space();
                self.take(b':')?;
            }
            self.value(depth + 1)?;
            self.skip_space();
            if self.take(b',').is_none() {
                return self.take(end);
            }
        }
    }

    fn string(&mut self) -> Option<()> {
        self.take(b'"')?;
        loop {
            match self.peek()? {
                b'"' => return self.take(b'"'),
                b'\\' => {
                    self.at += 1;
                    let escape = self.peek()?;
                    self.at += 1;
                    match escape {
                        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => {}
                        b'u' => {
                            let digits = self.bytes.get(self.at..)?.get(..4)?;
                            digits.iter().all(u8::is_ascii_hexdigit).then_some(())?;
                            self.at += 4;
                        }
                        _ => return None,
                    }
                }
                0..0x20 => return None,
                _ => self.at += 1,
            }
        }
    }

    fn word(&mut self, word: &[u8]) -> Option<()> {
        self.bytes.get(self.at..)?.starts_with(word).then(|| self.at += word.len())
    }

    fn number(&mut self) -> Option<()> {
        let _ = self.take(b'-');
        let leads_with_zero = self.peek() == Some(b'0');
        let whole = self.digits();
        if whole == 0 || (leads_with_zero && whole > 1) {
            return None;
        }
        if self.take(b'.').is_some() && self.digits() == 0 {
            return None;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            (self.digits() > 0).then_some(())?;
        }
        Some(())
    }

    fn digits(&mut self) -> usize {
        let begin = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        self.at - begin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_taken_as_it_is_and_anything_else_is_refused() {
        let check = |text: &str, is_json: bool| {
            assert_eq!(MessageObject::parse(text.as_bytes()).is_ok(), is_json, "{text}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(text).is_ok(), is_json, "{text}: not serde's");
        };
        for text in
            ["{}", "[]", " { \"a\" : [1, -2.5e+3, true, false, null, \"\\u00e9\\n\"] } ", "0", "\"\"", "{\"a\":{}}"]
        {
            check(text, true);
        }
        for text in ["", "{", "{a:1}", "[1,]", "01", "1.", "-", "1e", "\"\\x\"", "\"\n\"", "{} {}", "tru", "{\"a\" 1}"]
        {
            check(text, false);
        }
        let deep = "[".repeat(JSON_DEPTH_MAX + 1);
        assert!(MessageObject::parse(deep.as_bytes()).is_err());
        assert!(MessageObject::parse(&[b'"', 0xff, b'"']).is_err());
    }

    #[test]
    fn a_string_is_written_so_that_it_reads_back() {
        let text = "a \"b\"\\\n\u{1}é";
        assert_eq!(serde_json::from_str::<String>(&quoted(text)).unwrap(), text);
    }
}
