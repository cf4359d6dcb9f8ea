//! HTTP requests and replies, independent of the version that carries them (HTTP/1.1 or HTTP/2). Bodies are opaque
//! bytes.

use std::fmt;

use bytes::Bytes;
use smallvec::SmallVec;

/// The method of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// GET.
    Get,
    /// HEAD.
    Head,
    /// POST.
    Post,
    /// DELETE.
    Delete,
    /// Any other token.
    Other,
}

impl Method {
    /// The method that a token names; names are case-sensitive (RFC 9110 §9.1).
    pub fn from_token(token: &[u8]) -> Self {
        match token {
            b"GET" => Self::Get,
            b"HEAD" => Self::Head,
            b"POST" => Self::Post,
            b"DELETE" => Self::Delete,
            _ => Self::Other,
        }
    }
}

/// Number of fields of a typical request.
const FIELDS_USUAL: usize = 8;

/// The fields of a head, in the order received. Names and values are in one buffer, so that a field costs neither an
/// allocation nor a reference count.
#[derive(Clone, Default)]
pub struct Fields {
    text: Vec<u8>,
    /// The end of each name and each value; a name begins at the end of the value before it.
    ends: SmallVec<[(u32, u32); FIELDS_USUAL]>,
}

impl Fields {
    /// No fields.
    #[inline]
    pub fn new() -> Self {
        Self::default()
    }

    /// No fields yet, with room for `count` fields whose names and values are `size` bytes in total.
    #[inline]
    pub fn with_capacity(count: usize, size: usize) -> Self {
        Self { text: Vec::with_capacity(size), ends: SmallVec::with_capacity(count) }
    }

    /// Appends a field. The value must have no surrounding white space.
    pub fn push(&mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        // 32 bits are enough: the size of a head is bounded far below.
        let end = |text: &Vec<u8>| u32::try_from(text.len()).unwrap_or(u32::MAX);
        self.text.extend_from_slice(name.as_ref());
        let name_end = end(&self.text);
        self.text.extend_from_slice(value.as_ref());
        self.ends.push((name_end, end(&self.text)));
    }

    /// Removes all fields and keeps the memory.
    #[inline]
    pub fn clear(&mut self) {
        self.text.clear();
        self.ends.clear();
    }

    /// The value of the first field with a name; case is ignored (RFC 9110 §5.1).
    #[inline]
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.iter().find(|(known, _)| known.eq_ignore_ascii_case(name.as_bytes())).map(|(_, value)| value)
    }

    /// All fields as `(name, value)`, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut from = 0;
        self.ends.iter().map(move |(name_end, value_end)| {
            let (name_end, value_end) = (*name_end as usize, *value_end as usize);
            let name = self.text.get(from..name_end).unwrap_or_default();
            from = value_end;
            (name, self.text.get(name_end..value_end).unwrap_or_default())
        })
    }
}

impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        f.debug_map().entries(self.iter().map(|(name, value)| (text(name), text(value)))).finish()
    }
}

/// A whole request message.
#[derive(Clone, Debug)]
pub struct Message {
    /// The method.
    pub method: Method,
    /// The path as received, neither decoded nor normalised, without the query.
    pub path: Bytes,
    /// The fields of the head.
    pub fields: Fields,
    /// The body, without any framing.
    pub body: Bytes,
}

/// A reply: status, fields, and a body in parts, which are sent one after the other without being copied
/// together.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    /// The status code.
    pub status: u16,
    /// Fields; the connection adds `Content-Length` and `Connection`.
    pub fields: SmallVec<[(&'static str, Bytes); 2]>,
    /// The parts of the body.
    pub body: SmallVec<[Bytes; 2]>,
}

impl Reply {
    /// A reply with a content type and a body of one part.
    pub fn new(status: u16, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        let mut reply = Self { status, ..Self::default() };
        reply.fields.push(("Content-Type", Bytes::from_static(content_type.as_bytes())));
        reply.body.push(body.into());
        reply
    }

    /// Bytes of the body.
    #[inline]
    pub fn body_size(&self) -> usize {
        self.body.iter().map(Bytes::len).sum()
    }
}

/// A buffer into which a body is received. A trait, so that this layer need not know the alignment
/// of tensors: the shard implements it for its buffers.
pub trait BodyBuffer {
    /// An empty buffer for `size` announced bytes, in which the byte at offset `aligned_at` will be
    /// aligned. The announcement alone must not take much memory.
    fn announced(aligned_at: usize, size: usize) -> Self;

    /// Number of bytes in it.
    fn len(&self) -> usize;

    /// Returns true if it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, to write to.
    fn as_mut_slice(&mut self) -> &mut [u8];

    /// Makes it `size` bytes long.
    fn resize(&mut self, size: usize);

    /// Appends bytes.
    fn extend_from_slice(&mut self, bytes: &[u8]);

    /// Converts it to a shared view, without a copy; the alignment stays.
    fn freeze(self) -> Bytes;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_names_have_no_case_and_the_first_wins() {
        let mut fields = Fields::new();
        for (name, value) in [("Host", "a"), ("X", "1"), ("x", "2"), ("Empty", "")] {
            fields.push(name, value);
        }
        assert_eq!(fields.get("host"), Some(&b"a"[..]));
        assert_eq!(fields.get("X"), Some(&b"1"[..]));
        assert_eq!(fields.get("empty"), Some(&b""[..]));
        assert_eq!(fields.get("y"), None);
        assert_eq!(fields.get("a"), None, "a value is no name");
        let all: Vec<_> = fields.iter().collect();
        assert_eq!(all[1..3], [(&b"X"[..], &b"1"[..]), (b"x", b"2")]);
        assert_eq!(format!("{fields:?}"), r#"{"Host": "a", "X": "1", "x": "2", "Empty": ""}"#);
    }
}
