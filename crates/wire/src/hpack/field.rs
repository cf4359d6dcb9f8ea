//! A decoded field: its text, its known name, and its validity in HTTP/2 (RFC 9113 §8.2.1). Name
//! and validity are stored with the entries of a dynamic table, so that a request whose fields are
//! all indexed is checked without reading their text.

use crate::http1::is_token_byte;

/// A field of a block, borrowed from the decoder or a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderField<'a> {
    /// The name, if it is a known one.
    pub name: FieldName,
    /// The name's text.
    pub name_text: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// True if all bytes of name and value are allowed.
    pub is_valid: bool,
}

impl<'a> HeaderField<'a> {
    /// Classifies a name and checks the bytes of name and value.
    #[inline]
    pub fn new(name_text: &'a [u8], value: &'a [u8]) -> Self {
        let name = FieldName::from_text(name_text);
        let is_valid = (name != FieldName::Other || is_name(name_text)) && is_value(value);
        Self { name, name_text, value, is_valid }
    }

    /// Strips white space around the value. Only the metadata of gRPC may have it (gRPC over HTTP/2, `ASCII-Value`). `None` if the
    /// connection acts on the field, or the field has another fault.
    pub fn without_blanks(self) -> Option<Self> {
        let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
        let begin = self.value.iter().position(|byte| !is_blank(byte)).unwrap_or(self.value.len());
        let end = self.value.iter().rposition(|byte| !is_blank(byte)).map_or(begin, |last| last + 1);
        let stripped = Self::new(self.name_text, self.value.get(begin..end)?);
        (stripped.name == FieldName::Other && stripped.is_valid).then_some(stripped)
    }

    /// Bytes that it counts against the limit on a field section (RFC 9113 §6.5.2).
    #[inline]
    pub const fn size(&self) -> usize {
        self.name_text.len() + self.value.len() + FIELD_OVERHEAD
    }
}

/// Bytes that each field counts in addition to its text (RFC 7541 §4.1).
pub const FIELD_OVERHEAD: usize = 32;

/// The field names that the connection acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldName {
    /// `:authority`.
    Authority,
    /// `connection`.
    Connection,
    /// `content-length`.
    ContentLength,
    /// `content-type`.
    ContentType,
    /// `endpoint-load-metrics-format`.
    EndpointLoadMetricsFormat,
    /// `expect`.
    Expect,
    /// `grpc-accept-encoding`.
    GrpcAcceptEncoding,
    /// `grpc-encoding`.
    GrpcEncoding,
    /// `grpc-timeout`.
    GrpcTimeout,
    /// `host`.
    Host,
    /// `keep-alive`.
    KeepAlive,
    /// `:method`.
    Method,
    /// Any other name without a leading colon.
    Other,
    /// `:path`.
    Path,
    /// `proxy-connection`.
    ProxyConnection,
    /// `:scheme`.
    Scheme,
    /// `sequence-id`.
    SequenceId,
    /// `te`.
    Te,
    /// `transfer-encoding`.
    TransferEncoding,
    /// `traceparent`.
    Traceparent,
    /// `triton_grpc_error`.
    TritonGrpcError,
    /// Any other name with a leading colon: of responses, or of extensions that we do not support.
    UnknownPseudo,
    /// `upgrade`.
    Upgrade,
    /// `want-server-timing`.
    WantServerTiming,
}

impl FieldName {
    /// The name with this text.
    pub fn from_text(text: &[u8]) -> Self {
        match text {
            b":authority" => Self::Authority,
            b":method" => Self::Method,
            b":path" => Self::Path,
            b":scheme" => Self::Scheme,
            b"connection" => Self::Connection,
            b"content-length" => Self::ContentLength,
            b"content-type" => Self::ContentType,
            b"endpoint-load-metrics-format" => Self::EndpointLoadMetricsFormat,
            b"expect" => Self::Expect,
            b"grpc-accept-encoding" => Self::GrpcAcceptEncoding,
            b"grpc-encoding" => Self::GrpcEncoding,
            b"grpc-timeout" => Self::GrpcTimeout,
            b"host" => Self::Host,
            b"keep-alive" => Self::KeepAlive,
            b"proxy-connection" => Self::ProxyConnection,
            b"sequence-id" => Self::SequenceId,
            b"te" => Self::Te,
            b"transfer-encoding" => Self::TransferEncoding,
            b"traceparent" => Self::Traceparent,
            b"triton_grpc_error" => Self::TritonGrpcError,
            b"upgrade" => Self::Upgrade,
            b"want-server-timing" => Self::WantServerTiming,
            [b':', ..] => Self::UnknownPseudo,
            _ => Self::Other,
        }
    }

    /// Returns true if it is a pseudo-header field (RFC 9113 §8.3).
    #[inline]
    pub const fn is_pseudo(self) -> bool {
        matches!(self, Self::Authority | Self::Method | Self::Path | Self::Scheme | Self::UnknownPseudo)
    }
}

// RFC 9113 §8.2.1 lists the bytes that must be refused; RFC 9110 §5.1 those that are allowed. We accept the latter.
fn is_name(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|byte| is_token_byte(*byte) && !byte.is_ascii_uppercase())
}

// RFC 9113 §8.2.1: no NUL, CR or LF, and no white space around; RFC 9110 §5.5: no other control bytes.
fn is_value(text: &[u8]) -> bool {
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let is_allowed = |byte: &u8| !(*byte < 0x20 && *byte != b'\t') && *byte != 0x7f;
    !is_space(text.first()) && !is_space(text.last()) && text.iter().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_names_and_values_are_those_of_the_rfc() {
        for byte in 0..=255_u8 {
            let name = [b'a', byte];
            let is_allowed = is_token_byte(byte) && !byte.is_ascii_uppercase();
            assert_eq!(HeaderField::new(&name, b"").is_valid, is_allowed, "name {byte:#x}");
            let value = [b'a', byte, b'b'];
            let is_allowed = byte >= 0x20 && byte != 0x7f || byte == b'\t';
            assert_eq!(HeaderField::new(b"a", &value).is_valid, is_allowed, "value {byte:#x}");
        }
        for value in [&b" a"[..], b"a ", b"\ta", b"a\t", b" "] {
            assert!(!HeaderField::new(b"a", value).is_valid, "{value:?}");
            let stripped = HeaderField::new(b"a", value).without_blanks();
            let want = if value == b" " { b"" } else { &b"a"[..] };
            assert_eq!(stripped.map(|field| (field.value, field.is_valid)), Some((want, true)), "{value:?}");
        }
        assert_eq!(HeaderField::new(b"te", b"trailers ").without_blanks(), None, "the connection acts on it");
        assert_eq!(HeaderField::new(b"a", b" \n ").without_blanks(), None, "it has another fault");
        assert!(!HeaderField::new(b"", b"").is_valid);
        assert!(HeaderField::new(b":path", b"/").is_valid && !HeaderField::new(b":path", b"/\n").is_valid);
    }
}
