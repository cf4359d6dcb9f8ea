//! Splits text-format protobuf into tokens, for [`crate::parse::text`]. Borrows the text; its only state is the
//! offset. Comments and white space are skipped.

/// A token and its byte offset.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Token<'a> {
    /// Its kind.
    pub kind: TokenKind,
    /// Its text: with its quotes for a string, empty for the end of the text.
    pub text: &'a str,
    /// The byte at which it begins.
    pub offset: usize,
}

/// The kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// The end of the text.
    End,
    /// A letter or underscore, then letters, digits and underscores.
    Identifier,
    /// Begins with a digit, or with a dot and a digit.
    Number,
    /// Quoted, with its escapes as written.
    String,
    /// Any one other character.
    Symbol,
}

/// The reason why the text at an offset is not a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenError {
    /// The byte.
    pub offset: usize,
    /// The fault.
    pub text: &'static str,
}

/// A tokenizer over a text.
#[derive(Clone, Debug)]
pub struct Tokens<'a> {
    text: &'a str,
    offset: usize,
}

impl<'a> Tokens<'a> {
    /// Starts at the beginning of a text, after a byte order mark if it has one.
    pub fn new(text: &'a str) -> Self {
        let offset = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
        Self { text, offset }
    }

    /// Reads the next token. At the end of the text it returns `End`, any number of times.
    ///
    /// # Errors
    /// [`TokenError`] for a string that is not closed on its line.
    pub fn read(&mut self) -> Result<Token<'a>, TokenError> {
        self.skip_blank();
        let offset = self.offset;
        let rest = self.text.get(offset..).unwrap_or_default();
        let second = rest.chars().nth(1);
        let (kind, size) = match rest.chars().next() {
            None => (TokenKind::End, 0),
            Some(first) if first == '_' || first.is_ascii_alphabetic() => (TokenKind::Identifier, word_size(rest)),
            Some(first) if first.is_ascii_digit() => (TokenKind::Number, number_size(rest)),
            Some('.') if second.is_some_and(|digit| digit.is_ascii_digit()) => (TokenKind::Number, number_size(rest)),
            Some(quote @ ('"' | '\'')) => (TokenKind::String, string_size(rest, quote, offset)?),
            Some(other) => (TokenKind::Symbol, other.len_utf8()),
        };
        self.offset = offset + size;
        Ok(Token { kind, text: rest.get(..size).unwrap_or_default(), offset })
    }

    fn skip_blank(&mut self) {
        loop {
            let rest = self.text.get(self.offset..).unwrap_or_default();
            let bare = rest.trim_start_matches([' ', '\t', '\r', '\n', '\u{b}', '\u{c}']);
            let comment = if bare.starts_with('#') { bare.find('\n').unwrap_or(bare.len()) } else { 0 };
            if rest.len() == bare.len() && comment == 0 {
                return;
            }
            self.offset += rest.len() - bare.len() + comment;
        }
    }
}

fn word_size(rest: &str) -> usize {
    rest.find(|next: char| next != '_' && !next.is_ascii_alphanumeric()).unwrap_or(rest.len())
}

/// A number includes the letters that follow it, so that `12abc` is one wrong number and not two tokens.
fn number_size(rest: &str) -> usize {
    let is_hex = rest.starts_with("0x") || rest.starts_with("0X");
    let mut last = ' ';
    for (index, next) in rest.char_indices() {
        let is_sign = matches!(next, '+' | '-') && matches!(last, 'e' | 'E') && !is_hex;
        if !(is_sign || next == '.' || next == '_' || next.is_ascii_alphanumeric()) {
            return index;
        }
        last = next;
    }
    rest.len()
}

fn string_size(rest: &str, quote: char, offset: usize) -> Result<usize, TokenError> {
    let mut is_escaped = false;
    for (index, next) in rest.char_indices().skip(1) {
        match next {
            '\n' => {
                let text = "string literals cannot cross line boundaries; close the quote on its line";
                return Err(TokenError { offset, text });
            }
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            _ if next == quote => return Ok(index + quote.len_utf8()),
            _ => {}
        }
    }
    Err(TokenError { offset, text: "this string is not closed before the end of the file" })
}

/// Appends the bytes of a string token, without its quotes and with its escapes resolved.
///
/// # Errors
/// For an escape that is not valid: its offset inside the token, and a text.
pub fn unquote(token: &str, into: &mut Vec<u8>) -> Result<(), (usize, &'static str)> {
    let inner = token.get(1..token.len().saturating_sub(1)).unwrap_or_default();
    let mut rest = inner;
    while let Some(at) = rest.find('\\') {
        into.extend_from_slice(rest.get(..at).unwrap_or_default().as_bytes());
        let escape = rest.get(at + 1..).unwrap_or_default();
        let Some(size) = unescape(escape, into) else {
            return Err((1 + inner.len() - rest.len() + at, "invalid escape sequence in string literal"));
        };
        rest = escape.get(size..).unwrap_or_default();
    }
    into.extend_from_slice(rest.as_bytes());
    Ok(())
}

/// Reads one escape, given without its backslash, and returns its size; `None` if it is not valid.
fn unescape(escape: &str, into: &mut Vec<u8>) -> Option<usize> {
    let plain = |byte: u8| Some((byte, 1));
    let first = escape.chars().next()?;
    let (byte, size) = match first {
        'a' => plain(0x07),
        'b' => plain(0x08),
        'f' => plain(0x0c),
        'n' => plain(b'\n'),
        'r' => plain(b'\r'),
        't' => plain(b'\t'),
        'v' => plain(0x0b),
        '\\' => plain(b'\\'),
        '\'' => plain(b'\''),
        '"' => plain(b'"'),
        '?' => plain(b'?'),
        '0'..='7' => {
            let digits = escape.chars().take(3).take_while(|digit| digit.is_digit(8)).count();
            Some((u8::from_str_radix(escape.get(..digits)?, 8).ok()?, digits))
        }
        'x' | 'X' => {
            let digits = escape.chars().skip(1).take(2).take_while(char::is_ascii_hexdigit).count();
            Some((u8::from_str_radix(escape.get(1..=digits)?, 16).ok()?, 1 + digits))
        }
        'u' => return unescape_unicode(escape, 4, into),
        'U' => return unescape_unicode(escape, 8, into),
        _ => None,
    }?;
    into.push(byte);
    Some(size)
}

fn unescape_unicode(escape: &str, digits: usize, into: &mut Vec<u8>) -> Option<usize> {
    let hex = escape.get(1..=digits).filter(|hex| hex.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
    let character = char::from_u32(u32::from_str_radix(hex, 16).ok()?)?;
    into.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
    Some(1 + digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> String {
        let mut tokens = Tokens::new(text);
        let mut got = Vec::new();
        loop {
            match tokens.read() {
                Ok(token) if token.kind == TokenKind::End => return got.join(" "),
                Ok(token) => got.push(format!("{}@{}", token.text, token.offset)),
                Err(error) => return format!("{} !{}", got.join(" "), error.offset),
            }
        }
    }

    #[test]
    fn text_is_split_at_the_right_bytes() {
        let check = |text: &str, want: &str| assert_eq!(tokens(text), want, "{text:?}");
        check("a: 1", "a@0 :@1 1@3");
        check("a#b\n#c\n d", "a@0 d@8");
        check("\u{feff}a", "a@3");
        check("1e-5-1.5f .5 0x1F", "1e-5@0 -@4 1.5f@5 .5@10 0x1F@13");
        check("12abc", "12abc@0");
        check(r#""a\"b" 'c"'"#, r#""a\"b"@0 'c"'@7"#);
        check("[{<é;,", "[@0 {@1 <@2 é@3 ;@5 ,@6");
        check("x \"a\nb\"", "x@0 !2");
        check("x \"a\\\"", "x@0 !2");
        check("#only", "");
    }

    #[test]
    fn escapes_are_bytes_or_wrong_at_their_place() {
        let check = |token: &str, want: Result<&[u8], usize>| {
            let mut got = Vec::new();
            let result = unquote(token, &mut got).map_err(|(offset, _)| offset);
            assert_eq!(result.map(|()| got.as_slice()), want, "{token}");
        };
        check(r#""plain é""#, Ok("plain é".as_bytes()));
        check(r#""\a\b\f\n\r\t\v\\\'\"\?""#, Ok(b"\x07\x08\x0c\n\r\t\x0b\\'\"?"));
        check(r#""\101\x41\u0041\U0001F600\0""#, Ok("AAA😀\0".as_bytes()));
        check(r#""\1234""#, Ok(b"S4"));
        check(r#""\777""#, Err(1));
        check(r#""ab\q""#, Err(3));
        check(r#""\xg""#, Err(1));
        check(r#""\u12""#, Err(1));
        check(r#""\ud800""#, Err(1));
        check(r#""\u+123""#, Err(1));
    }
}
