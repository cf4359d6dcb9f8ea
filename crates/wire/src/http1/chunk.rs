//! The framing of a chunked body (RFC 9112 §7.1). Called by `connection::http1` at the beginning and end of each chunk.
//! Strict about sizes and line ends; extensions are skipped. Bounded by the number of chunks and the bytes of
//! extensions of one body.

use crate::http1::HttpRefusal;
use base::limits::{CHUNK_EXTENSIONS_SIZE_MAX, CHUNKS_MAX};

/// Digits of a chunk size: 64 bits in hexadecimal.
const DIGITS_MAX: usize = 16;

/// Counts the chunks and extensions of one body against their limits.
#[derive(Debug, Default)]
pub struct Chunks {
    count: usize,
    extensions_size: usize,
}

/// The line before the data of a chunk: its size, and perhaps extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkLine {
    /// Bytes of the line, CRLF included.
    pub line_size: usize,
    /// Bytes of the data; zero in the last chunk.
    pub size: u64,
}

impl Chunks {
    /// Decodes the chunk line at the beginning of `input`; `None` until all of it is there. Each returned line is
    /// counted, so it must be decoded to its end only once.
    ///
    /// # Errors
    ///
    /// An [`HttpRefusal`] if the line is malformed, or the body has too many chunks or extensions.
    pub fn decode_line(&mut self, input: &[u8]) -> Result<Option<ChunkLine>, HttpRefusal> {
        let digits_size = input.iter().take(DIGITS_MAX + 1).take_while(|byte| byte.is_ascii_hexdigit()).count();
        let (digits, rest) = input.split_at_checked(digits_size).unwrap_or_default();
        if digits_size > DIGITS_MAX || (digits_size == 0 && !rest.is_empty()) {
            return Err(HttpRefusal::malformed("invalid chunk size"));
        }
        let Some(extensions_size) = self.find_line_end(rest)? else { return Ok(None) };
        // RFC 9112 §7.1: hexadecimal digits only; `from_str_radix` would accept a sign.
        let size = digits.iter().fold(0, |size: u64, digit| size << 4 | u64::from(hex_value(*digit)));
        self.count_chunk(size, extensions_size)?;
        Ok(Some(ChunkLine { line_size: digits_size + extensions_size + 2, size }))
    }

    /// Offset of the CRLF in the bytes after the size. Extensions may precede it (RFC 9112 §7.1.1). They are skipped
    /// and not parsed: no known client sends any, and parsers that disagree about them allow request smuggling.
    fn find_line_end(&self, rest: &[u8]) -> Result<Option<usize>, HttpRefusal> {
        let mut has_extension = false;
        for (at, byte) in rest.iter().enumerate() {
            match byte {
                b'\r' => {
                    let is_blank = at > 0 && !has_extension;
                    return match rest.get(at + 1) {
                        _ if is_blank => Err(HttpRefusal::malformed("white space after a chunk size")),
                        None => Ok(None),
                        Some(b'\n') => Ok(Some(at)),
                        Some(_) => Err(HttpRefusal::malformed("bare CR in a chunk line")),
                    };
                }
                b'\n' => return Err(HttpRefusal::malformed("bare LF in a chunk line")),
                b';' => has_extension = true,
                b' ' | b'\t' => {}
                0..0x20 | 0x7f => return Err(HttpRefusal::malformed("control character in a chunk line")),
                _ if !has_extension => return Err(HttpRefusal::malformed("invalid chunk size")),
                _ => {}
            }
            if self.extensions_size + at + 1 > CHUNK_EXTENSIONS_SIZE_MAX {
                return Err(HttpRefusal::new(
                    400,
                    format!("chunk extensions exceed the maximum of {CHUNK_EXTENSIONS_SIZE_MAX} bytes"),
                ));
            }
        }
        Ok(None)
    }

    fn count_chunk(&mut self, size: u64, extensions_size: usize) -> Result<(), HttpRefusal> {
        self.extensions_size += extensions_size;
        self.count += usize::from(size > 0);
        if self.count > CHUNKS_MAX {
            return Err(HttpRefusal::new(
                400,
                format!(
                    "Chunked request body exceeds maximum of {CHUNKS_MAX} non-empty chunks. \
                     Send fewer or larger HTTP chunks."
                ),
            ));
        }
        Ok(())
    }
}

/// Checks the CRLF after the data of a chunk: `false` until it is there.
///
/// # Errors
///
/// An [`HttpRefusal`] if there is anything else than CRLF.
pub fn decode_end(input: &[u8]) -> Result<bool, HttpRefusal> {
    match input {
        [b'\r', b'\n', ..] => Ok(true),
        [] | [b'\r'] => Ok(false),
        _ => Err(HttpRefusal::malformed("the data of a chunk does not end with CRLF")),
    }
}

const fn hex_value(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        b'A'..=b'F' => digit - b'A' + 10,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(line: &str) -> Result<Option<u64>, &'static str> {
        let decoded = Chunks::default().decode_line(line.as_bytes());
        decoded.map(|line| line.map(|line| line.size)).map_err(|_| "refused")
    }

    #[test]
    fn a_size_is_strict_hexadecimal() {
        let check = |line: &str, want| assert_eq!(size(line), want, "{line:?}");
        check("0\r\n", Ok(Some(0)));
        check("1aF\r\ndata", Ok(Some(0x1af)));
        check("00000000000000ff\r\n", Ok(Some(255)));
        check("ffffffffffffffff\r\n", Ok(Some(u64::MAX)));
        check("00000000000000001\r\n", Err("refused")); // seventeen digits
        for line in ["+1\r\n", "-1\r\n", "0x1\r\n", "1g\r\n", " 1\r\n", "\r\n", "1_0\r\n", "1,\r\n", "g", "1\n", "1\0"]
        {
            check(line, Err("refused"));
        }
        for line in ["1 \r\n", "1\t\r", "1\rx", "1\r\r\n", "1;a\n", "1;a=\"\n\"\r\n", "1;a\rb\r\n", "1 a\r\n", "1;\x7f"]
        {
            check(line, Err("refused"));
        }
        for line in ["1;name=value\r\n", "1;\r\n", "1 ;a\r\n", "1;a=\"b;c\"\r\n", "1;\u{e9}\r\n"] {
            check(line, Ok(Some(1)));
        }
    }

    #[test]
    fn a_line_in_pieces_is_decoded_once_it_is_whole() {
        let line = b"1f;name=value\r\n";
        for end in 0..line.len() {
            assert_eq!(Chunks::default().decode_line(&line[..end]), Ok(None), "{end}");
        }
        assert_eq!(Chunks::default().decode_line(line), Ok(Some(ChunkLine { line_size: line.len(), size: 31 })));
    }

    #[test]
    fn chunks_are_counted_to_the_bound() {
        let mut chunks = Chunks::default();
        for _ in 0..CHUNKS_MAX {
            chunks.decode_line(b"1\r\n").unwrap();
        }
        chunks.decode_line(b"0\r\n").unwrap();
        let refusal = chunks.decode_line(b"1\r\n").unwrap_err();
        let want = "400 Chunked request body exceeds maximum of 65536 non-empty chunks. \
                    Send fewer or larger HTTP chunks.";
        assert_eq!(refusal.to_string(), want);
    }

    #[test]
    fn extensions_are_counted_over_all_lines_to_the_bound() {
        let line = |size: usize| format!("1;{}\r\n", "a".repeat(size - 1));
        let mut chunks = Chunks::default();
        chunks.decode_line(line(CHUNK_EXTENSIONS_SIZE_MAX - 10).as_bytes()).unwrap();
        chunks.decode_line(line(10).as_bytes()).unwrap().unwrap();
        chunks.decode_line(b"1\r\n").unwrap().unwrap();
        assert_eq!(chunks.decode_line(b"1;").unwrap_err().status(), 400);
        assert!(Chunks::default().decode_line(line(CHUNK_EXTENSIONS_SIZE_MAX).as_bytes()).is_ok());
        assert!(Chunks::default().decode_line(line(CHUNK_EXTENSIONS_SIZE_MAX + 1).as_bytes()).is_err());
    }

    #[test]
    fn the_data_of_a_chunk_ends_with_crlf() {
        let check = |input: &[u8], want| assert_eq!(decode_end(input).map_err(|_| "refused"), want, "{input:?}");
        check(b"", Ok(false));
        check(b"\r", Ok(false));
        check(b"\r\n0", Ok(true));
        check(b"\n", Err("refused"));
        check(b"\rx", Err("refused"));
        check(b"x", Err("refused"));
    }
}
