//! The tokenizer shared by the readers of this folder: a position in a text, and methods for the
//! tokens that may begin there. A method leaves the cursor after the token that it read; after an
//! error the position is unspecified.

use std::borrow::Cow;

use crate::json::{JsonError, JsonFault};

/// A position in a text.
#[derive(Clone, Copy)]
pub struct Cursor<'a> {
    /// The rest of the text.
    pub(super) rest: &'a [u8],
    /// Offset of the end of the text in the document.
    end: usize,
}

/// A part of a string.
enum StringPiece<'a> {
    /// Text without escapes.
    Text(&'a str),
    /// The character of an escape.
    Char(char),
    /// The closing quotation mark.
    End,
}

/// The form of a number, as far as its characters tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NumberForm {
    /// Only digits and a sign.
    Integer,
    /// With a fraction or an exponent.
    Decimal,
    /// `NaN`, `Inf` or `Infinity`.
    Literal,
}

impl<'a> Cursor<'a> {
    /// At the beginning of a text that is at `offset` in its document.
    pub(super) const fn new(text: &'a [u8], offset: usize) -> Self {
        Self { rest: text, end: offset.saturating_add(text.len()) }
    }

    /// Offset of the next byte in the document.
    pub(super) const fn offset(&self) -> usize {
        self.end.saturating_sub(self.rest.len())
    }

    /// A fault at the next byte.
    pub(super) const fn error(&self, fault: JsonFault) -> JsonError {
        JsonError { fault, offset: self.offset() }
    }

    /// The next byte.
    #[inline]
    pub(super) const fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    /// Skips the next byte.
    #[inline]
    pub(super) fn advance(&mut self) {
        self.rest = self.rest.get(1..).unwrap_or_default();
    }

    /// Skips the next byte if it is `byte`.
    #[inline]
    pub(super) fn consume(&mut self, byte: u8) -> bool {
        match self.rest {
            [first, rest @ ..] if *first == byte => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    /// Skips white space (RFC 8259 §2).
    #[inline]
    pub(super) fn skip_space(&mut self) {
        while let [b' ' | b'\n' | b'\r' | b'\t', rest @ ..] = self.rest {
            self.rest = rest;
        }
    }

    /// Reads the letters of a literal.
    pub(super) fn literal(&mut self, letters: &[u8]) -> Result<(), JsonError> {
        match letters.iter().all(|letter| self.consume(*letter)) {
            true => Ok(()),
            false => Err(self.error(JsonFault::Value)),
        }
    }

    /// Reads a string, from its opening quotation mark. Borrows the text if it has no escapes.
    pub(super) fn string(&mut self) -> Result<Cow<'a, str>, JsonError> {
        self.advance();
        // Most strings have no escapes, and are one piece that can be borrowed.
        let first = match self.piece()? {
            StringPiece::End => return Ok(Cow::Borrowed("")),
            StringPiece::Char(first) => String::from(first),
            StringPiece::Text(first) if self.consume(b'"') => return Ok(Cow::Borrowed(first)),
            StringPiece::Text(first) => String::from(first),
        };
        let mut text = first;
        loop {
            match self.piece()? {
                StringPiece::End => return Ok(Cow::Owned(text)),
                StringPiece::Char(letter) => text.push(letter),
                StringPiece::Text(part) => text.push_str(part),
            }
        }
    }

    /// Reads a string, from its opening quotation mark, and appends it.
    pub(super) fn string_into(&mut self, out: &mut Vec<u8>) -> Result<(), JsonError> {
        self.advance();
        loop {
            match self.piece()? {
                StringPiece::End => return Ok(()),
                StringPiece::Char(letter) => out.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes()),
                StringPiece::Text(part) => out.extend_from_slice(part.as_bytes()),
            }
        }
    }

    /// Reads up to the next escape or the end of the string, or one escape.
    fn piece(&mut self) -> Result<StringPiece<'a>, JsonError> {
        let size = find(self.rest, |byte| (byte == b'"') | (byte == b'\\') | (byte < 0x20)).unwrap_or(self.rest.len());
        let (text, rest) = self.rest.split_at_checked(size).unwrap_or((self.rest, &[]));
        if !text.is_empty() {
            let text = std::str::from_utf8(text).map_err(|error| {
                let offset = self.offset().saturating_add(error.valid_up_to());
                JsonError { fault: JsonFault::Encoding, offset }
            })?;
            self.rest = rest;
            return Ok(StringPiece::Text(text));
        }
        match self.peek() {
            Some(b'"') => {
                self.advance();
                Ok(StringPiece::End)
            }
            Some(b'\\') => self.escape().map(StringPiece::Char),
            // RapidJSON treats a NUL as the end of the text.
            Some(0) | None => Err(self.error(JsonFault::Quote)),
            Some(_) => Err(self.error(JsonFault::Escape)),
        }
    }

    /// Reads one escape; faults are reported at its backslash.
    fn escape(&mut self) -> Result<char, JsonError> {
        let at = *self;
        self.advance();
        let letter = match self.peek() {
            Some(letter @ (b'"' | b'\\' | b'/')) => char::from(letter),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                self.advance();
                return self.unicode(&at);
            }
            _ => return Err(at.error(JsonFault::Escape)),
        };
        self.advance();
        Ok(letter)
    }

    /// Reads the four digits after `\u`, and the second escape of a surrogate pair if they are its first half. Faults
    /// are reported at `at`.
    fn unicode(&mut self, at: &Self) -> Result<char, JsonError> {
        let high = self.hex().ok_or(at.error(JsonFault::Hex))?;
        let point = match high {
            0xd800..=0xdbff => {
                if !(self.consume(b'\\') && self.consume(b'u')) {
                    return Err(at.error(JsonFault::Surrogate));
                }
                let low = self.hex().ok_or(at.error(JsonFault::Hex))?;
                if !(0xdc00..=0xdfff).contains(&low) {
                    return Err(at.error(JsonFault::Surrogate));
                }
                0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00)
            }
            other => other,
        };
        char::from_u32(point).ok_or(at.error(JsonFault::Surrogate))
    }

    /// Reads four hexadecimal digits.
    fn hex(&mut self) -> Option<u32> {
        let (digits, rest) = self.rest.split_first_chunk::<4>()?;
        let value = digits.iter().try_fold(0, |value, digit| Some(value * 16 + char::from(*digit).to_digit(16)?))?;
        self.rest = rest;
        Some(value)
    }

    /// Reads a number and returns its text and form.
    pub(super) fn number(&mut self) -> Result<(&'a [u8], NumberForm), JsonError> {
        let start = *self;
        self.consume(b'-');
        let form = match self.peek() {
            Some(b'0') => {
                self.advance();
                self.decimals()?
            }
            Some(b'1'..=b'9') => {
                self.digits();
                self.decimals()?
            }
            Some(b'N' | b'I') => {
                self.named_number()?;
                NumberForm::Literal
            }
            _ => return Err(self.error(JsonFault::Value)),
        };
        let size = start.rest.len().saturating_sub(self.rest.len());
        let text = start.rest.get(..size).unwrap_or_default();
        if form != NumberForm::Literal && is_too_large(text) {
            return Err(start.error(JsonFault::Large));
        }
        Ok((text, form))
    }

    /// Reads the optional fraction and exponent after the integer part of a number.
    fn decimals(&mut self) -> Result<NumberForm, JsonError> {
        let mut form = NumberForm::Integer;
        if self.consume(b'.') {
            form = NumberForm::Decimal;
            if !self.digits() {
                return Err(self.error(JsonFault::Fraction));
            }
        }
        if self.consume(b'e') || self.consume(b'E') {
            form = NumberForm::Decimal;
            if !self.consume(b'+') {
                self.consume(b'-');
            }
            if !self.digits() {
                return Err(self.error(JsonFault::Exponent));
            }
        }
        Ok(form)
    }

    /// Skips digits; returns true if there were any.
    fn digits(&mut self) -> bool {
        let before = self.rest.len();
        while let [b'0'..=b'9', rest @ ..] = self.rest {
            self.rest = rest;
        }
        self.rest.len() != before
    }

    /// Reads `NaN`, `Inf` or `Infinity`.
    fn named_number(&mut self) -> Result<(), JsonError> {
        if self.peek() == Some(b'N') {
            return self.literal(b"NaN");
        }
        self.literal(b"Inf")?;
        if self.peek() == Some(b'i') {
            return self.literal(b"inity");
        }
        Ok(())
    }
}

/// Returns true if a number is beyond the largest double.
fn is_too_large(text: &[u8]) -> bool {
    // Cheap test first: it takes more than 300 characters or an exponent.
    let may_be = text.len() > 300 || text.iter().any(|byte| byte | 0x20 == b'e');
    may_be && fast_float2::parse::<f64, _>(text).is_ok_and(f64::is_infinite)
}

/// Index of the first byte for which `holds` is true. The first bytes, in which most strings end, are tested one by
/// one, the others in blocks, which the compiler vectorises if `holds` has no branches.
#[inline]
pub(super) fn find(text: &[u8], holds: impl Fn(u8) -> bool) -> Option<usize> {
    let (near, far) = text.split_at_checked(NEAR).unwrap_or((text, &[]));
    let at = |bytes: &[u8]| bytes.iter().position(|byte| holds(*byte));
    if let Some(index) = at(near) {
        return Some(index);
    }
    let (chunks, rest) = far.as_chunks::<32>();
    for (index, chunk) in chunks.iter().enumerate() {
        if chunk.iter().fold(0, |found, byte| found | u8::from(holds(*byte))) != 0 {
            return at(chunk).map(|at| NEAR + index * 32 + at);
        }
    }
    at(rest).map(|at| NEAR + chunks.len() * 32 + at)
}

/// Bytes that are tested one by one.
const NEAR: usize = 16;
