//! HTTP messages as they come and replies as they go back, whatever carried them (HTTP/1.1 or
//! HTTP/2). They know nothing of what the bytes mean.

use bytes::Bytes;
use smallvec::SmallVec;

/// The verb of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// GET.
    Get,
    /// HEAD.
    Head,
    /// POST.
    Post,
    /// Any other token.
    Other,
}

impl Method {
    /// The verb of a token; names are case-sensitive (RFC 9110 §9.1).
    pub fn from_token(token: &[u8]) -> Self {
        match token {
            b"GET" => Self::Get,
            b"HEAD" => Self::Head,
            b"POST" => Self::Post,
            _ => Self::Other,
        }
    }
}

/// The fields of a head, in the order they came.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    fields: Vec<(Bytes, Bytes)>,
}

impl Fields {
    /// No fields.
    pub const fn new() -> Self {
        Self { fields: Vec::new() }
    }

    /// No fields yet, with room for `count` of them.
    pub fn with_capacity(count: usize) -> Self {
        Self { fields: Vec::with_capacity(count) }
    }

    /// Appends a field; its value comes without surrounding white space.
    pub fn push(&mut self, name: Bytes, value: Bytes) {
        self.fields.push((name, value));
    }

    /// The first value of a field, whatever the case of its name (RFC 9110 §5.1).
    pub fn get(&self, name: &str) -> Option<&Bytes> {
        self.iter().find(|(have, _)| have.eq_ignore_ascii_case(name.as_bytes())).map(|(_, value)| value)
    }

    /// All fields.
    pub fn iter(&self) -> impl Iterator<Item = (&Bytes, &Bytes)> {
        self.fields.iter().map(|(name, value)| (name, value))
    }
}

/// A whole request message.
#[derive(Clone, Debug)]
pub struct Message {
    /// The verb.
    pub method: Method,
    /// The path as it came, neither decoded nor normalised, without the query.
    pub path: Bytes,
    /// The fields of the head.
    pub fields: Fields,
    /// The body, without any framing.
    pub body: Bytes,
}

/// What goes back: a status, fields beyond the framing's own, and a body in parts that are sent
/// one after the other without being copied together.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    /// The status code.
    pub status: u16,
    /// Fields; the framing adds `Content-Length` and `Connection`.
    pub fields: SmallVec<[(&'static str, Bytes); 2]>,
    /// The parts of the body.
    pub body: SmallVec<[Bytes; 2]>,
}

impl Reply {
    /// A reply with one body part of a content type.
    pub fn new(status: u16, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        let mut reply = Self { status, ..Self::default() };
        reply.fields.push(("Content-Type", Bytes::from_static(content_type.as_bytes())));
        reply.body.push(body.into());
        reply
    }

    /// Bytes of the body.
    pub fn body_size(&self) -> usize {
        self.body.iter().map(Bytes::len).sum()
    }
}

/// What a body is gathered into. The layer above brings one, so that this one need not know
/// what the bytes are aligned for.
pub trait BodyBuffer {
    /// An empty buffer in which the byte at offset `aligned_at` will lie on a boundary, with room
    /// for `capacity` bytes.
    fn with_alignment_at(aligned_at: usize, capacity: usize) -> Self;

    /// How many bytes it holds.
    fn len(&self) -> usize;

    /// Whether it holds none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, to write to.
    fn as_mut_slice(&mut self) -> &mut [u8];

    /// Makes it `size` bytes long.
    fn resize(&mut self, size: usize);

    /// The bytes as a shared view, without a copy; the alignment stays.
    fn freeze(self) -> Bytes;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_names_have_no_case_and_the_first_wins() {
        let mut fields = Fields::new();
        for (name, value) in [("Host", "a"), ("X", "1"), ("x", "2")] {
            fields.push(Bytes::from_static(name.as_bytes()), Bytes::from_static(value.as_bytes()));
        }
        assert_eq!(fields.get("host").map(|value| &value[..]), Some(&b"a"[..]));
        assert_eq!(fields.get("X").map(|value| &value[..]), Some(&b"1"[..]));
        assert!(fields.get("y").is_none());
    }
}
