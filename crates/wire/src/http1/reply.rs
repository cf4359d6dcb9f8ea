//! Encodes the head of a reply (RFC 9112 §4, RFC 9110 §15). Called by `connection::http1`. Control bytes in values are
//! replaced, so that no value can end its line and inject a field.

use crate::message::Reply;

/// The interim reply for a client that waits for it before it sends the body (RFC 9110 §10.1.1).
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// The reply's `Connection` field (RFC 9112 §9.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionOption {
    /// The connection is closed after the reply.
    Close,
    /// The connection stays open, which must be stated to an HTTP/1.0 client.
    KeepAlive,
    /// No such field: the connection stays open, the default of HTTP/1.1.
    None,
}

/// The framing of a reply's body, which marks its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
    /// By its size, which is known (RFC 9112 §6.2).
    Length,
    /// By its last chunk (RFC 9112 §7.1).
    Chunked,
    /// By the end of the connection, for a client that knows no chunks (RFC 9112 §6.3).
    Close,
}

/// Appends the head of a reply.
pub fn encode_head(reply: &Reply, option: ConnectionOption, framing: BodyFraming, out: &mut Vec<u8>) {
    out.reserve(HEAD_SIZE_USUAL);
    let mut number = itoa::Buffer::new();
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(number.format(reply.status).as_bytes());
    out.push(b' ');
    out.extend_from_slice(reason(reply.status).as_bytes());
    out.extend_from_slice(b"\r\n");
    for (name, value) in &reply.fields {
        encode_field(name, value, out);
    }
    match framing {
        BodyFraming::Length if has_length(reply.status) => {
            encode_field("Content-Length", number.format(reply.body_size()).as_bytes(), out);
        }
        BodyFraming::Chunked => encode_field("Transfer-Encoding", b"chunked", out),
        BodyFraming::Length | BodyFraming::Close => {}
    }
    match option {
        ConnectionOption::Close => out.extend_from_slice(b"Connection: close\r\n"),
        ConnectionOption::KeepAlive => out.extend_from_slice(b"Connection: keep-alive\r\n"),
        ConnectionOption::None => {}
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends a chunk (RFC 9112 §7.1). It must not be empty, which would be the last one.
pub fn encode_chunk(bytes: &[u8], out: &mut Vec<u8>) {
    debug_assert!(!bytes.is_empty(), "an empty chunk ends the body");
    out.extend_from_slice(format!("{:x}\r\n", bytes.len()).as_bytes());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// The chunk that ends a body, without trailers.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Bytes of a typical head.
const HEAD_SIZE_USUAL: usize = 256;

/// Returns true if a reply with this status has a body and a `Content-Length` (RFC 9110 §6.4.1,
/// §8.6).
#[inline]
pub const fn has_length(status: u16) -> bool {
    !matches!(status, 100..=199 | 204 | 304)
}

fn encode_field(name: &str, value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    // RFC 9110 §5.5: a recipient may replace CR, LF and NUL in a value by SP. We do so before sending.
    let is_control = |byte: u8| byte < 0x20 && byte != b'\t' || byte == 0x7f;
    out.extend(value.iter().map(|byte| if is_control(*byte) { b' ' } else { *byte }));
    out.extend_from_slice(b"\r\n");
}

/// The reason phrase of a status (RFC 9110 §15). Errors whose text is the phrase say the same.
pub const fn reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        304 => "Not Modified",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        408 => "Request Timeout",
        409 => "Conflict",
        411 => "Length Required",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        417 => "Expectation Failed",
        422 => "Unprocessable Content",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        499 => "Client Closed Request",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn head(reply: &Reply, option: ConnectionOption) -> String {
        let mut out = Vec::new();
        encode_head(reply, option, BodyFraming::Length, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_head_has_its_fields_its_length_and_its_option() {
        let mut reply = Reply::new(200, "application/json", "{}");
        reply.body.push(Bytes::from_static(b"binary"));
        let want = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 8\r\n";
        assert_eq!(head(&reply, ConnectionOption::None), format!("{want}\r\n"));
        assert_eq!(head(&reply, ConnectionOption::Close), format!("{want}Connection: close\r\n\r\n"));
        assert_eq!(head(&reply, ConnectionOption::KeepAlive), format!("{want}Connection: keep-alive\r\n\r\n"));
    }

    #[test]
    fn a_body_whose_size_is_not_known_has_chunks_or_ends_with_the_connection() {
        let reply = Reply { status: 200, ..Reply::default() };
        let mut out = Vec::new();
        encode_head(&reply, ConnectionOption::None, BodyFraming::Chunked, &mut out);
        encode_chunk(&[b'x'; 17], &mut out);
        out.extend_from_slice(LAST_CHUNK);
        let want = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n11\r\nxxxxxxxxxxxxxxxxx\r\n0\r\n\r\n";
        assert_eq!(String::from_utf8(out).unwrap(), want);
        let mut out = Vec::new();
        encode_head(&reply, ConnectionOption::Close, BodyFraming::Close, &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
    }

    #[test]
    fn statuses_without_a_body_have_no_length() {
        for (status, line) in [(204, "204 No Content"), (304, "304 Not Modified"), (199, "199 ")] {
            let reply = Reply { status, ..Reply::default() };
            assert_eq!(head(&reply, ConnectionOption::None), format!("HTTP/1.1 {line}\r\n\r\n"));
        }
    }

    #[test]
    fn an_unknown_status_has_an_empty_reason_and_405_says_what_its_body_says() {
        let line = |status| head(&Reply { status, ..Reply::default() }, ConnectionOption::None);
        assert!(line(405).starts_with("HTTP/1.1 405 Method Not Allowed\r\n"));
        assert!(line(299).starts_with("HTTP/1.1 299 \r\n"));
    }

    #[test]
    fn a_value_cannot_end_its_line() {
        let mut reply = Reply { status: 200, ..Reply::default() };
        reply.fields.push(("X", Bytes::from_static(b"a\r\nSet-Cookie: b\0\tc\xc3\xa9")));
        let want = "HTTP/1.1 200 OK\r\nX: a  Set-Cookie: b \tc\u{e9}\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(head(&reply, ConnectionOption::None), want);
    }
}
