//! The HTTP/1.1 message format (RFC 9112): request heads, chunk framing, reply heads, and refusals. Called by
//! `connection::http1`. Reads the slices it is given and keeps no bytes. Bounded by the limits on heads, targets and
//! chunks.

pub mod chunk;
pub mod head;
pub mod reply;
pub mod section;

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;

use crate::message::Reply;

/// The reason why a request is refused at the HTTP level. It is answered with status and text, and
/// the connection is closed, since the start of the next request is in doubt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRefusal {
    status: u16,
    text: Cow<'static, str>,
    is_of_memory: bool,
}

impl HttpRefusal {
    /// A refusal. The text must not quote the client, since it is put into JSON without escaping.
    pub fn new(status: u16, text: impl Into<Cow<'static, str>>) -> Self {
        let text = text.into();
        debug_assert!(!text.bytes().any(|byte| byte < 0x20 || byte == b'"' || byte == b'\\'), "needs no escapes");
        Self { status, text, is_of_memory: false }
    }

    /// A malformed request (400).
    #[inline]
    pub const fn malformed(text: &'static str) -> Self {
        Self { status: 400, text: Cow::Borrowed(text), is_of_memory: false }
    }

    /// A body of `size` bytes where `size_max` are allowed (413); Triton's text.
    pub fn body_size(size: u64, size_max: usize) -> Self {
        Self::new(
            413,
            format!(
                "request JSON size of {size} bytes exceeds the maximum allowed input size of {size_max} bytes. \
                 Use --http-max-input-size to increase the limit."
            ),
        )
    }

    /// There is no memory for the body: not now (503), or never (413).
    #[inline]
    pub fn memory(text: String, is_passing: bool) -> Self {
        Self { is_of_memory: true, ..Self::new(if is_passing { 503 } else { 413 }, text) }
    }

    /// Returns true if memory was short.
    pub const fn is_of_memory(&self) -> bool {
        self.is_of_memory
    }

    /// The status of the reply.
    pub const fn status(&self) -> u16 {
        self.status
    }

    /// The text of the reply.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The same with tritonserver's status for a body that is too large.
    pub fn as_tritons(self) -> Self {
        let status = if self.status == 413 { 400 } else { self.status };
        Self { status, ..self }
    }

    /// Returns the reply for the client.
    pub fn into_reply(self) -> Reply {
        let mut reply = Reply::new(self.status, "application/json", format!("{{\"error\":\"{}\"}}", self.text));
        if self.status == 503 {
            reply.fields.push(("Retry-After", Bytes::from_static(b"1")));
        }
        reply
    }
}

impl fmt::Display for HttpRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.status, self.text)
    }
}

impl std::error::Error for HttpRefusal {}

/// Returns true if a byte may be part of a token: a method, a field name (RFC 9110 §5.6.2).
#[inline]
pub const fn is_token_byte(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z')
        || matches!(byte, b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`')
        || matches!(byte, b'|' | b'~')
}

/// The elements of a comma-separated list, trimmed; empty ones are skipped (RFC 9110 §5.6.1).
pub fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|element| !element.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_answered_as_json() {
        let reply = HttpRefusal::body_size(11, 10).into_reply();
        let tritons = HttpRefusal::body_size(11, 10).as_tritons().into_reply();
        assert_eq!((tritons.status, &tritons.body), (400, &reply.body));
        assert_eq!(HttpRefusal::new(431, "a").as_tritons().status(), 431);
        assert_eq!(reply.status, 413);
        assert_eq!(reply.fields[0].1, "application/json");
        let want = "{\"error\":\"request JSON size of 11 bytes exceeds the maximum allowed input size of 10 bytes. \
                    Use --http-max-input-size to increase the limit.\"}";
        assert_eq!(reply.body[0], want);
    }

    #[test]
    fn lists_are_split_at_commas_and_trimmed() {
        let elements = |value: &'static str| list(value.as_bytes()).collect::<Vec<_>>();
        assert_eq!(elements("a, b\t,, c ,"), [b"a", b"b", b"c"]);
        assert!(elements(" , ").is_empty());
    }

    #[test]
    fn the_bytes_of_a_token_are_those_of_the_rfc() {
        let tokens: Vec<u8> = (0..=255).filter(|byte| is_token_byte(*byte)).collect();
        assert_eq!(tokens, b"!#$%&'*+-.0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ^_`abcdefghijklmnopqrstuvwxyz|~");
    }
}
