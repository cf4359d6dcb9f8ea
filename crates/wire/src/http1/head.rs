//! The head of a request (RFC 9112 §3, §5, §6): the request line, the fields, and their meaning for
//! the body and the connection. Called by `connection::http1` once per request, with a complete
//! head. Refuses a request if there is any doubt about where its body ends. Bounded by the head's
//! size and number of fields.

use std::ops::Range;

use bytes::Bytes;

use crate::http1::{HttpRefusal, is_token_byte, list};
use crate::message::{Fields, Method};
use base::limits::{HEAD_FIELDS_MAX, TARGET_SIZE_MAX};

/// Number of fields of a typical head; heads with more are parsed with a larger array on the stack.
const FIELDS_USUAL: usize = 24;
/// Largest accepted `Content-Length` (2^63 - 1).
const LENGTH_MAX: u64 = i64::MAX as u64;

/// A request head, decoded and checked.
///
/// ```
/// use wire::http1::head::{BodyLength, decode};
///
/// let head = b"POST /v2/models/m/infer?x=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n";
/// let head = decode(head, 3, None).unwrap();
/// assert_eq!(&head.path[..], b"/v2/models/m/infer");
/// assert_eq!(head.length, BodyLength::Sized(5));
/// ```
#[derive(Debug)]
pub struct RequestHead {
    /// The method.
    pub method: Method,
    /// The path, without the query.
    pub path: Bytes,
    /// The fields, in the order received.
    pub fields: Fields,
    /// The framing of the body.
    pub length: BodyLength,
    /// True if the version is HTTP/1.1, and not HTTP/1.0.
    pub is_current: bool,
    /// True if another request may follow on the connection (RFC 9112 §9.3).
    pub is_persistent: bool,
    /// True if the client waits for `100 Continue` before it sends the body (RFC 9110 §10.1.1).
    pub expects_continue: bool,
    /// The number in the field `aligned_after`, an offset in the body; 0 without the field, or if it is not a number.
    pub aligned_at: usize,
}

/// The framing of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// In chunks (RFC 9112 §7.1).
    Chunked,
    /// `Content-Length` bytes; 0 without the field.
    Sized(u64),
}

/// Decodes a complete head, its empty line included. [`SectionScan`](super::section::SectionScan) has found its end,
/// and has checked that every line ends with CRLF and that there are no control bytes but HTAB. `line_count` is at
/// least the number of its lines. The value of the field `aligned_after` becomes `aligned_at`.
///
/// # Errors
///
/// An [`HttpRefusal`] with the status that the RFC asks for, if the head is malformed or its framing ambiguous.
pub fn decode(section: &[u8], line_count: usize, aligned_after: Option<&str>) -> Result<RequestHead, HttpRefusal> {
    let line_size = section.iter().position(|byte| *byte == b'\r').unwrap_or(section.len());
    let line = section.get(..line_size).unwrap_or_default();
    let (method, target, is_current) = split_request_line(line)?;
    let path = match find_path(method, target)? {
        Some(range) => Bytes::copy_from_slice(target.get(range).unwrap_or_default()),
        None => Bytes::from_static(b"/"),
    };
    let fields = section.get(line_size + 2..).unwrap_or_default();
    let (fields, known) = match line_count <= FIELDS_USUAL {
        true => decode_fields::<FIELDS_USUAL>(fields, aligned_after)?,
        false => decode_fields::<HEAD_FIELDS_MAX>(fields, aligned_after)?,
    };
    let length = known.body_length(is_current)?;
    known.check_host(is_current)?;
    known.check_expectation()?;
    Ok(RequestHead {
        method: Method::from_token(method),
        path,
        fields,
        length,
        is_current,
        is_persistent: !known.says_close && (is_current || known.says_keep_alive),
        // A server ignores the expectation of an HTTP/1.0 client (RFC 9110 §10.1.1).
        expects_continue: known.expects_continue && is_current,
        aligned_at: known.aligned_at,
    })
}

/// Checks the trailers of a request, their empty line included. Their values are dropped: fields for framing and
/// routing are not allowed in trailers (RFC 9110 §6.5.1), and no others are used.
///
/// # Errors
///
/// An [`HttpRefusal`] if they are malformed.
#[inline]
pub fn check_trailers(section: &[u8]) -> Result<(), HttpRefusal> {
    let mut space = [httparse::EMPTY_HEADER; HEAD_FIELDS_MAX];
    parse(section, &mut space).map(drop)
}

/// Splits the request line into method, target, and true for version 1.1.
fn split_request_line(line: &[u8]) -> Result<(&[u8], &[u8], bool), HttpRefusal> {
    let mut parts = line.split(|byte| *byte == b' ');
    // RFC 9112 §3: single spaces. Parsers that are lenient about white space allow request smuggling.
    let (Some(method), Some(target), Some(version), None) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(HttpRefusal::malformed("malformed request line"));
    };
    if method.is_empty() || !method.iter().all(|byte| is_token_byte(*byte)) {
        return Err(HttpRefusal::malformed("malformed request line: the method is not a token"));
    }
    let is_current = match version {
        b"HTTP/1.1" => true,
        b"HTTP/1.0" => false,
        [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => {
            return Err(HttpRefusal::new(505, "HTTP version not supported: expecting HTTP/1.1 or HTTP/1.0"));
        }
        _ => return Err(HttpRefusal::malformed("malformed request line: the version is not one of HTTP")),
    };
    Ok((method, target, is_current))
}

/// The range of the path in the target; `None` if an absolute target has no path (RFC 9112 §3.2).
fn find_path(method: &[u8], target: &[u8]) -> Result<Option<Range<usize>>, HttpRefusal> {
    if target.len() > TARGET_SIZE_MAX {
        return Err(HttpRefusal::new(414, format!("request target exceeds the maximum of {TARGET_SIZE_MAX} bytes")));
    }
    if !target.iter().all(|byte| matches!(byte, 0x21..=0x7e) && *byte != b'#') {
        return Err(HttpRefusal::malformed("request target contains an invalid character"));
    }
    let path_from = match target {
        [b'/', ..] => 0,
        b"*" if method == b"OPTIONS" => 0,
        // RFC 9112 §3.2.3, RFC 9110 §9.3.6: the target is a host and a port, and this is no proxy.
        _ if method == b"CONNECT" && is_host(target) && target.contains(&b':') => {
            return Err(HttpRefusal::new(501, "CONNECT is not supported"));
        }
        _ => SCHEME.len() + absolute_authority(target)?,
    };
    let rest = target.get(path_from..).unwrap_or_default();
    let path_size = rest.iter().position(|byte| *byte == b'?').unwrap_or(rest.len());
    Ok((path_size > 0).then_some(path_from..path_from + path_size))
}

const SCHEME: &[u8] = b"http://";

/// Size of the authority in bytes, in a target in absolute form (RFC 9112 §3.2.2).
fn absolute_authority(target: &[u8]) -> Result<usize, HttpRefusal> {
    let malformed = || HttpRefusal::malformed("request target is neither a path nor an http URI");
    let (scheme, rest) = target.split_at_checked(SCHEME.len()).ok_or_else(malformed)?;
    let size = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    let authority = rest.get(..size).unwrap_or_default();
    let is_valid = scheme.eq_ignore_ascii_case(SCHEME) && !authority.is_empty() && is_host(authority);
    if is_valid { Ok(size) } else { Err(malformed()) }
}

fn parse<'h, 'b>(
    section: &'b [u8],
    space: &'h mut [httparse::Header<'b>],
) -> Result<&'h [httparse::Header<'b>], HttpRefusal> {
    match httparse::parse_headers(section, space) {
        Ok(httparse::Status::Complete((size, fields))) if size == section.len() => Ok(fields),
        // `SectionScan` and httparse disagree about where the head ends: we cannot trust either.
        Ok(_) => Err(HttpRefusal::malformed("malformed request head")),
        Err(httparse::Error::HeaderName) => Err(HttpRefusal::malformed("malformed field name in the request head")),
        Err(httparse::Error::TooManyHeaders) => Err(HttpRefusal::new(431, "request head has too many fields")),
        Err(_) => Err(HttpRefusal::malformed("malformed field value in the request head")),
    }
}

fn decode_fields<const COUNT: usize>(
    section: &[u8],
    aligned_after: Option<&str>,
) -> Result<(Fields, FramingFields), HttpRefusal> {
    let mut space = [httparse::EMPTY_HEADER; COUNT];
    let parsed = parse(section, &mut space)?;
    let mut fields = Fields::with_capacity(parsed.len(), section.len());
    let mut known = FramingFields::default();
    for field in parsed {
        known.note(field.name, field.value, aligned_after)?;
        fields.push(field.name, field.value);
    }
    Ok((fields, known))
}

/// The fields that concern framing and connection, as far as they were read.
#[derive(Debug, Default)]
struct FramingFields {
    content_length: Option<u64>,
    coding: Option<TransferCoding>,
    host_count: usize,
    says_close: bool,
    says_keep_alive: bool,
    expects_continue: bool,
    expects_other: bool,
    aligned_at: usize,
}

/// The value of `Transfer-Encoding`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TransferCoding {
    Chunked,
    Unknown,
}

impl FramingFields {
    // Dispatches on the length of the name first, so that most fields cost one comparison of integers.
    fn note(&mut self, name: &str, value: &[u8], aligned_after: Option<&str>) -> Result<(), HttpRefusal> {
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        match name.len() {
            4 if is("host") => self.note_host(value),
            6 if is("expect") => {
                self.note_expectation(value);
                Ok(())
            }
            10 if is("connection") => {
                self.note_connection(value);
                Ok(())
            }
            14 if is("content-length") => self.note_length(value),
            17 if is("transfer-encoding") => self.note_coding(value),
            _ if aligned_after.is_some_and(is) => {
                // Only a hint for alignment; `protocol::rest` refuses a malformed value.
                self.aligned_at = digits(value).and_then(|at| usize::try_from(at).ok()).unwrap_or(0);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    // RFC 9112 §3.2: exactly one Host, and a valid one.
    fn note_host(&mut self, value: &[u8]) -> Result<(), HttpRefusal> {
        self.host_count += 1;
        if !is_host(value) {
            return Err(HttpRefusal::malformed("invalid Host"));
        }
        Ok(())
    }

    fn note_expectation(&mut self, value: &[u8]) {
        if value.eq_ignore_ascii_case(b"100-continue") {
            self.expects_continue = true;
        } else {
            self.expects_other = true;
        }
    }

    fn note_connection(&mut self, value: &[u8]) {
        for option in list(value) {
            self.says_close |= option.eq_ignore_ascii_case(b"close");
            self.says_keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
        }
    }

    // RFC 9112 §6.3: a repeated length may be refused even if the values agree. Digits only: a sign or a list that
    // one parser accepts and the next does not allows request smuggling.
    fn note_length(&mut self, value: &[u8]) -> Result<(), HttpRefusal> {
        if self.content_length.is_some() {
            return Err(HttpRefusal::malformed("more than one Content-Length"));
        }
        let length = digits(value).filter(|length| *length <= LENGTH_MAX);
        self.content_length = Some(length.ok_or(HttpRefusal::malformed("invalid Content-Length"))?);
        Ok(())
    }

    // RFC 9112 §6.1, §6.3: an unknown coding is 501. If `chunked` is not the last one, the end of the body cannot be
    // determined, which is 400.
    fn note_coding(&mut self, value: &[u8]) -> Result<(), HttpRefusal> {
        if self.coding.is_some() {
            return Err(HttpRefusal::malformed("more than one Transfer-Encoding"));
        }
        let is_chunked = |coding: &[u8]| coding.eq_ignore_ascii_case(b"chunked");
        let chunked_count = list(value).filter(|coding| is_chunked(coding)).count();
        let is_last = list(value).last().is_some_and(is_chunked);
        let is_list = list(value).all(|coding| coding.iter().all(|byte| is_token_byte(*byte)));
        self.coding = Some(match (is_chunked(value), chunked_count, is_last && is_list) {
            (true, ..) => TransferCoding::Chunked,
            (false, 1, true) => TransferCoding::Unknown,
            _ => return Err(HttpRefusal::malformed("invalid Transfer-Encoding")),
        });
        Ok(())
    }

    // RFC 9112 §6.1, §6.3: a request with both lengths, or chunked in HTTP/1.0, may be an attempt at request
    // smuggling.
    fn body_length(&self, is_current: bool) -> Result<BodyLength, HttpRefusal> {
        match (self.coding, self.content_length) {
            (Some(_), Some(_)) => Err(HttpRefusal::malformed("both Transfer-Encoding and Content-Length")),
            (Some(_), None) if !is_current => Err(HttpRefusal::malformed("Transfer-Encoding in HTTP/1.0")),
            (Some(TransferCoding::Unknown), None) => {
                Err(HttpRefusal::new(501, "Transfer-Encoding not supported: expecting chunked"))
            }
            (Some(TransferCoding::Chunked), None) => Ok(BodyLength::Chunked),
            (None, length) => Ok(BodyLength::Sized(length.unwrap_or(0))),
        }
    }

    fn check_host(&self, is_current: bool) -> Result<(), HttpRefusal> {
        match self.host_count {
            0 if is_current => Err(HttpRefusal::malformed("missing Host")),
            0 | 1 => Ok(()),
            _ => Err(HttpRefusal::malformed("more than one Host")),
        }
    }

    fn check_expectation(&self) -> Result<(), HttpRefusal> {
        match self.expects_other {
            true => Err(HttpRefusal::new(417, "Expect not supported: expecting 100-continue")),
            false => Ok(()),
        }
    }
}

/// The value of decimal digits; `None` for anything else, and for more than 64 bits.
fn digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |value, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}

/// Returns true if a value is a host with or without a port (RFC 9110 §7.2, RFC 3986 §3.2.2). It
/// may be empty, for a target without an authority.
fn is_host(value: &[u8]) -> bool {
    let (is_valid, port) = match value {
        [b'[', rest @ ..] => {
            let Some(end) = rest.iter().position(|byte| *byte == b']') else { return false };
            let (address, after) = rest.split_at(end);
            let is_address = |byte: &u8| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.');
            (!address.is_empty() && address.iter().all(is_address), after.get(1..).unwrap_or_default())
        }
        _ => {
            let size = value.iter().position(|byte| *byte == b':').unwrap_or(value.len());
            let (name, port) = value.split_at(size);
            (name.iter().all(|byte| is_name_byte(*byte)), port)
        }
    };
    let is_port = match port {
        [] => true,
        [b':', digits @ ..] => digits.iter().all(u8::is_ascii_digit) && port.len() < value.len(),
        _ => false,
    };
    is_valid && is_port
}

const fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'%' | b'!' | b'$' | b'&' | b'\'')
        || matches!(byte, b'(' | b')' | b'*' | b'+' | b',' | b';' | b'=')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(section: &str) -> Result<RequestHead, HttpRefusal> {
        decode(section.as_bytes(), section.matches("\r\n").count(), Some("aligned-after"))
    }

    fn with_fields(fields: &str) -> Result<RequestHead, HttpRefusal> {
        whole(&format!("POST /v2 HTTP/1.1\r\nHost: a\r\n{fields}\r\n"))
    }

    #[test]
    fn request_lines_are_taken_exactly_or_refused() {
        let check = |line: &str, want: Result<&str, u16>| {
            let got = whole(&format!("{line}\r\nHost: a\r\n\r\n"));
            let got = got.as_ref().map(|head| &head.path[..]).map_err(HttpRefusal::status);
            assert_eq!(got, want.map(str::as_bytes), "{line:?}");
        };
        check("GET / HTTP/1.1", Ok("/"));
        check("GET /v2/models/a%20b?x=1?y HTTP/1.1", Ok("/v2/models/a%20b"));
        check("GET //v2 HTTP/1.0", Ok("//v2"));
        check("GET /? HTTP/1.1", Ok("/"));
        check("BREW /pot HTTP/1.1", Ok("/pot"));
        check("GET http://host:8000/v2?x HTTP/1.1", Ok("/v2"));
        check("GET HTTP://[::1]:8000/v2 HTTP/1.1", Ok("/v2"));
        check("GET http://host HTTP/1.1", Ok("/"));
        check("GET http://host?x HTTP/1.1", Ok("/"));
        check("OPTIONS * HTTP/1.1", Ok("*"));
        check("GET * HTTP/1.1", Err(400));
        check("GET https://host/ HTTP/1.1", Err(400));
        check("GET http:/// HTTP/1.1", Err(400));
        check("GET http://us er/ HTTP/1.1", Err(400));
        check("GET http://user@host/ HTTP/1.1", Err(400));
        check("CONNECT host:80 HTTP/1.1", Err(501));
        check("CONNECT [::1]:80 HTTP/1.1", Err(501));
        check("CONNECT host HTTP/1.1", Err(400));
        check("CONNECT us er:80 HTTP/1.1", Err(400));
        check("GET v2 HTTP/1.1", Err(400));
        check("GET /#part HTTP/1.1", Err(400));
        check("GET /\u{e9} HTTP/1.1", Err(400));
        check("GET /\tx HTTP/1.1", Err(400));
        check("GET  / HTTP/1.1", Err(400));
        check("GET /  HTTP/1.1", Err(400));
        check("GET / HTTP/1.1 ", Err(400));
        check(" GET / HTTP/1.1", Err(400));
        check("GET\t/ HTTP/1.1", Err(400));
        check("GET /", Err(400));
        check("GET", Err(400));
        check("", Err(400));
        check("G(T / HTTP/1.1", Err(400));
        check("G:T / HTTP/1.1", Err(400));
        for version in ["HTTP/1.2", "HTTP/2.0", "HTTP/9.9", "HTTP/0.9"] {
            check(&format!("GET / {version}"), Err(505));
        }
        for version in ["http/1.1", "HTTP/1", "HTTP/11", "HTTP/1.10", "HTTX/1.1", "HTTP/1.x", "XHTTP/1.1", "1.1"] {
            check(&format!("GET / {version}"), Err(400));
        }
    }

    #[test]
    fn the_longest_target_is_taken_and_one_byte_more_is_not() {
        let line = |size: usize| format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(size - 1));
        assert_eq!(whole(&line(TARGET_SIZE_MAX)).unwrap().path.len(), TARGET_SIZE_MAX);
        let refusal = whole(&line(TARGET_SIZE_MAX + 1)).unwrap_err();
        assert_eq!(refusal.to_string(), "414 request target exceeds the maximum of 16384 bytes");
    }

    #[test]
    fn a_body_has_one_length_or_the_request_is_refused() {
        let check = |fields: &str, want| {
            let got = with_fields(fields).map(|head| head.length).map_err(|refusal| refusal.status());
            assert_eq!(got, want, "{fields:?}");
        };
        check("", Ok(BodyLength::Sized(0)));
        check("Content-Length: 5\r\n", Ok(BodyLength::Sized(5)));
        check("CONTENT-LENGTH:\t007 \r\n", Ok(BodyLength::Sized(7)));
        check("Content-Length: 9223372036854775807\r\n", Ok(BodyLength::Sized(LENGTH_MAX)));
        check("Content-Length: 9223372036854775808\r\n", Err(400));
        check("Content-Length: 18446744073709551621\r\n", Err(400));
        for length in ["", "+5", "-5", "5 5", "5, 5", "5,6", "0x5", "5.0", "five", "5;", "\u{661}"] {
            check(&format!("Content-Length: {length}\r\n"), Err(400));
        }
        check("Content-Length: 5\r\nContent-Length: 5\r\n", Err(400));
        check("Content-Length: 5\r\ncontent-length: 6\r\n", Err(400));
        check("Transfer-Encoding: chunked\r\n", Ok(BodyLength::Chunked));
        check("transfer-encoding: CHUNKED\r\n", Ok(BodyLength::Chunked));
        check("Transfer-Encoding: gzip, chunked\r\n", Err(501));
        check("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", Err(400));
        check("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", Err(400));
        check("Content-Length: 5\r\nTransfer-Encoding: gzip, chunked\r\n", Err(400));
        check("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", Err(400));
        check("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", Err(400));
        for coding in ["", ",", "gzip", "identity", "xchunked", "chunked, chunked", "chunked, gzip", "chunked;q=1"] {
            check(&format!("Transfer-Encoding: {coding}\r\n"), Err(400));
        }
        check("Transfer-Encoding: \"chunked\"\r\n", Err(400));
        check("Transfer-Encoding: a b, chunked\r\n", Err(400));
        let old = whole("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n");
        assert_eq!(old.unwrap_err().to_string(), "400 Transfer-Encoding in HTTP/1.0");
    }

    #[test]
    fn field_lines_are_strict() {
        let check = |line: &str, want: Option<u16>| {
            let got = with_fields(&format!("{line}\r\n")).err().map(|refusal| refusal.status());
            assert_eq!(got, want, "{line:?}");
        };
        check("A: b", None);
        check("A:", None);
        check("A: \u{e9}", None);
        check("!#$%&'*+-.^_`|~9: x", None);
        check("A : b", Some(400));
        check("A\t: b", Some(400));
        check(": b", Some(400));
        check("A", Some(400));
        check(" A: b", Some(400));
        check("A: b\r\n folded", Some(400));
        check("A: b\r\n\tfolded", Some(400));
        check("A(: b", Some(400));
        check("\u{e9}: b", Some(400));
    }

    #[test]
    fn hosts_are_checked_and_counted() {
        let check = |fields: &str, version: &str, want: Option<u16>| {
            let got = whole(&format!("GET / {version}\r\n{fields}\r\n")).err().map(|refusal| refusal.status());
            assert_eq!(got, want, "{fields:?} {version}");
        };
        check("", "HTTP/1.1", Some(400));
        check("", "HTTP/1.0", None);
        for version in ["HTTP/1.0", "HTTP/1.1"] {
            check("Host: a\r\nhost: a\r\n", version, Some(400));
            for host in ["", "a", "a.b:80", "a_b", "127.0.0.1:8000", "[::1]", "[::1]:8000", "a:", "x%41", "a,b"] {
                check(&format!("Host: {host}\r\n"), version, None);
            }
            for host in
                [":80", "a b", "a/b", "a@b", "a:b", "a:80:80", "[::1", "[]", "[::g]", "[::1]a", "a\"", "<a>", "\u{e9}"]
            {
                check(&format!("Host: {host}\r\n"), version, Some(400));
            }
        }
    }

    #[test]
    fn a_connection_persists_as_version_and_options_say() {
        let check = |version: &str, option: &str, want| {
            let head = whole(&format!("GET / {version}\r\nHost: a\r\n{option}\r\n")).unwrap();
            assert_eq!(head.is_persistent, want, "{version} {option:?}");
        };
        check("HTTP/1.1", "", true);
        check("HTTP/1.1", "Connection: keep-alive\r\n", true);
        check("HTTP/1.1", "Connection: Upgrade, HTTP2-Settings\r\n", true);
        check("HTTP/1.1", "Connection: disclose\r\n", true);
        check("HTTP/1.1", "Connection: close\r\n", false);
        check("HTTP/1.1", "connection: foo ,CLOSE\r\n", false);
        check("HTTP/1.1", "Connection: keep-alive, close\r\n", false);
        check("HTTP/1.1", "Connection: keep-alive\r\nConnection: close\r\n", false);
        check("HTTP/1.0", "", false);
        check("HTTP/1.0", "Connection: Keep-Alive\r\n", true);
        check("HTTP/1.0", "Connection: close, keep-alive\r\n", false);
    }

    #[test]
    fn expectations_are_met_or_refused() {
        let check = |version: &str, fields: &str, want: Result<bool, u16>| {
            let got = whole(&format!("POST / {version}\r\nHost: a\r\n{fields}\r\n"));
            assert_eq!(got.map(|head| head.expects_continue).map_err(|refusal| refusal.status()), want, "{fields:?}");
        };
        check("HTTP/1.1", "", Ok(false));
        check("HTTP/1.1", "Expect: 100-Continue\r\n", Ok(true));
        check("HTTP/1.0", "Expect: 100-continue\r\n", Ok(false));
        check("HTTP/1.1", "Expect: 100-continue, more\r\n", Err(417));
        check("HTTP/1.1", "Expect: \r\n", Err(417));
        check("HTTP/1.1", "Expect: 100-continue\r\nExpect: tea\r\n", Err(417));
    }

    #[test]
    fn the_named_field_says_what_is_aligned() {
        let check = |fields: &str, want| assert_eq!(with_fields(fields).unwrap().aligned_at, want, "{fields:?}");
        check("", 0);
        check("Aligned-After: 123\r\n", 123);
        check("Aligned-After: -1\r\n", 0);
        check("Aligned-After: 99999999999999999999\r\n", 0);
        let head = decode(b"GET / HTTP/1.1\r\nHost: a\r\nAligned-After: 5\r\n\r\n", 4, None).unwrap();
        assert_eq!(head.aligned_at, 0);
    }

    #[test]
    fn fields_come_out_in_order_and_trimmed_through_either_array() {
        for count in [1, FIELDS_USUAL - 3, FIELDS_USUAL, HEAD_FIELDS_MAX - 1] {
            let lines: String = (0..count).map(|index| format!("F{index}:  v{index} \t\r\n")).collect();
            let head = with_fields(&lines).unwrap();
            let got: Vec<_> = head.fields.iter().skip(1).collect();
            assert_eq!(got.len(), count);
            for (index, (name, value)) in got.into_iter().enumerate() {
                assert_eq!((name, value), (format!("F{index}").as_bytes(), format!("v{index}").as_bytes()));
            }
        }
        let lines = "A: b\r\n".repeat(HEAD_FIELDS_MAX);
        assert_eq!(with_fields(&lines).unwrap_err().status(), 431);
    }

    #[test]
    fn trailers_are_checked_as_fields_are() {
        check_trailers(b"\r\n").unwrap();
        check_trailers(b"A: b\r\nContent-Length: 5\r\n\r\n").unwrap();
        for section in ["A\r\n\r\n", "A : b\r\n\r\n", "A: b\r\n c\r\n\r\n", ": b\r\n\r\n"] {
            assert_eq!(check_trailers(section.as_bytes()).unwrap_err().status(), 400, "{section:?}");
        }
    }
}
