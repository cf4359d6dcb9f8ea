//! Finds the end of a head or trailer section as its bytes arrive. Called by `connection::http1`. Scans each byte once,
//! however small the pieces, so that a slow sender costs the same as a fast one; refuses a bad byte at once. Bounded by
//! a size and a number of lines.

use crate::http1::HttpRefusal;
use base::limits::HEAD_FIELDS_MAX;

/// Bytes scanned together.
const BLOCK_SIZE: usize = 16;

/// A scan for the empty line that ends a section.
#[derive(Debug)]
pub struct SectionScan {
    /// Bytes scanned so far.
    searched: usize,
    /// Offset at which the current line begins.
    line_from: usize,
    line_count: usize,
    line_count_max: usize,
    size_max: usize,
}

impl SectionScan {
    /// Scans a head: the request line, the fields and the empty line, in at most `size_max` bytes.
    pub const fn head(size_max: usize) -> Self {
        Self { searched: 0, line_from: 0, line_count: 0, line_count_max: HEAD_FIELDS_MAX + 1, size_max }
    }

    /// Scans the trailers after the last chunk, with the bounds of a head.
    #[inline]
    pub const fn trailers(size_max: usize) -> Self {
        Self { line_count_max: HEAD_FIELDS_MAX, ..Self::head(size_max) }
    }

    /// Continues the scan; `section` must begin at the same byte in every call. Returns the size of the section, its
    /// empty line included, once that has arrived.
    ///
    /// # Errors
    ///
    /// An [`HttpRefusal`] if a byte is not allowed, or the section has too many bytes or lines.
    pub fn poll_end(&mut self, section: &[u8]) -> Result<Option<usize>, HttpRefusal> {
        let window = section.get(..self.size_max).unwrap_or(section);
        while let Some(at) = find_control(window, self.searched) {
            match window.get(at..).unwrap_or_default() {
                [b'\t', ..] => self.searched = at + 1,
                [b'\r', b'\n', ..] => {
                    self.searched = at + 2;
                    if at == self.line_from {
                        return Ok(Some(self.searched));
                    }
                    self.handle_line()?;
                }
                [b'\r'] => {
                    self.searched = at;
                    return self.check_size(window, section);
                }
                // RFC 9112 §2.2: parsers that disagree about a bare CR or LF allow request smuggling. RFC 9110
                // §5.5: CR, LF and NUL are dangerous, other control characters invalid.
                [b'\r', ..] => return Err(HttpRefusal::malformed("bare CR in the request head")),
                [b'\n', ..] => return Err(HttpRefusal::malformed("bare LF in the request head")),
                _ => return Err(HttpRefusal::malformed("control character in the request head")),
            }
        }
        self.searched = window.len();
        self.check_size(window, section)
    }

    fn handle_line(&mut self) -> Result<(), HttpRefusal> {
        self.line_from = self.searched;
        self.line_count += 1;
        if self.line_count > self.line_count_max {
            return Err(HttpRefusal::new(431, format!("request head exceeds the maximum of {HEAD_FIELDS_MAX} fields")));
        }
        Ok(())
    }

    fn check_size(&self, window: &[u8], section: &[u8]) -> Result<Option<usize>, HttpRefusal> {
        if section.len() < self.size_max {
            return Ok(None);
        }
        let is_request_line = self.line_count == 0 && self.line_count_max > HEAD_FIELDS_MAX;
        // RFC 9112 §3: a request line is too long because of its target.
        Err(match is_request_line && window.contains(&b' ') {
            true => HttpRefusal::new(414, "request target is too long"),
            false => HttpRefusal::new(431, format!("request head exceeds the maximum of {} bytes", self.size_max)),
        })
    }

    /// Complete lines so far, without the empty one.
    pub const fn line_count(&self) -> usize {
        self.line_count
    }
}

/// Offset of the first control byte at or after `from`.
fn find_control(bytes: &[u8], from: usize) -> Option<usize> {
    let is_control = |byte: &u8| *byte < 0x20 || *byte == 0x7f;
    let rest = bytes.get(from..)?;
    let (blocks, _) = rest.as_chunks::<BLOCK_SIZE>();
    // A fold without an early exit: the compiler vectorises it to one comparison per block.
    let is_clear = |block: &&[u8; BLOCK_SIZE]| !block.iter().fold(false, |any, byte| any | is_control(byte));
    let clear = blocks.iter().take_while(is_clear).count() * BLOCK_SIZE;
    rest.get(clear..)?.iter().position(is_control).map(|at| from + clear + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(section: &[u8], size_max: usize) -> Result<Option<usize>, u16> {
        SectionScan::head(size_max).poll_end(section).map_err(|refusal| refusal.status())
    }

    #[test]
    fn the_end_is_the_first_empty_line_and_every_other_break_is_refused() {
        let check = |section: &str, want| assert_eq!(whole(section.as_bytes(), 100), want, "{section:?}");
        check("", Ok(None));
        check("GET / HTTP/1.1\r\n", Ok(None));
        check("GET / HTTP/1.1\r\n\r", Ok(None));
        check("GET / HTTP/1.1\r\n\r\n", Ok(Some(18)));
        check("GET / HTTP/1.1\r\nA:\tb\r\n\r\nGET", Ok(Some(24)));
        check("GET / HTTP/1.1\r\nA\r\n", Ok(None));
        check("\r\n", Ok(Some(2)));
        check("GET / HTTP/1.1\n", Err(400));
        check("GET / HTTP/1.1\r\nA: b\nC: d\r\n\r\n", Err(400));
        check("GET / HTTP/1.1\r\nA: b\rC: d\r\n\r\n", Err(400));
        check("GET / HTTP/1.1\r\nA: b\r\r\n\r\n", Err(400));
        check("GET / HTTP/1.1\r\nA: b\0\r\n\r\n", Err(400));
        check("GET /\x7f", Err(400));
        check("\x16\x03\x01\x02", Err(400));
    }

    #[test]
    fn a_section_fits_exactly_or_is_refused() {
        let section = b"GET / HTTP/1.1\r\nA: 1\r\n\r\n";
        assert_eq!(whole(section, section.len()), Ok(Some(section.len())));
        assert_eq!(whole(section, section.len() - 1), Err(431));
        assert_eq!(whole(section, 10), Err(414));
        assert_eq!(whole(b"GETGETGETGET", 10), Err(431));
        assert_eq!(whole(b"GETGETGET", 10), Ok(None));
        let trailers = SectionScan::trailers(10).poll_end(b"a: b c d e f g").map_err(|refusal| refusal.status());
        assert_eq!(trailers, Err(431));
    }

    #[test]
    fn so_many_fields_fit_and_no_more() {
        let head = |count: usize| format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(count));
        assert!(matches!(whole(head(HEAD_FIELDS_MAX).as_bytes(), 10_000), Ok(Some(_))));
        assert_eq!(whole(head(HEAD_FIELDS_MAX + 1).as_bytes(), 10_000), Err(431));
        let trailers = |count: usize| {
            let section = format!("{}\r\n", "A: b\r\n".repeat(count));
            SectionScan::trailers(10_000).poll_end(section.as_bytes()).map_err(|refusal| refusal.status())
        };
        assert!(matches!(trailers(HEAD_FIELDS_MAX), Ok(Some(_))));
        assert_eq!(trailers(HEAD_FIELDS_MAX + 1), Err(431));
    }

    #[test]
    fn a_section_in_pieces_ends_at_the_same_place() {
        let section = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: localhost\r\nA:\tb\r\n\r\nbody";
        for step in 1..section.len() {
            let mut scan = SectionScan::head(200);
            let first_end = (1..)
                .map(|round| (round * step).min(section.len()))
                .find_map(|size| scan.poll_end(&section[..size]).unwrap());
            assert_eq!(first_end, Some(section.len() - 4), "{step}");
        }
    }

    #[test]
    fn a_control_byte_is_found_at_every_place() {
        for at in 0..50 {
            for from in 0..=at {
                let mut bytes = [b'a'; 50];
                bytes[at] = b'\n';
                assert_eq!(find_control(&bytes, from), Some(at));
                assert_eq!(find_control(&bytes, at + 1), None);
            }
        }
    }
}
