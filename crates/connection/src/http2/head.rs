//! The fields of a request or of its trailers as they come out of a block (RFC 9113 §8.1 to §8.5):
//! the values that the connection needs, and the checks that they are well-formed. Reused for each
//! block.

use smallvec::SmallVec;

use base::limits::{HEAD_FIELDS_MAX, TARGET_SIZE_MAX};
use base::time::Instant;
use wire::compression::{Coding, ContentCoding};
use wire::grpc;
use wire::hpack::decoder::Decoder;
use wire::hpack::field::{FieldName, HeaderField};
use wire::http1::HttpRefusal;
use wire::http2::error::{ErrorCode, PeerFault};
use wire::message::{Fields, Method};
use wire::trace_context::TraceContext;

/// The deadline of a call, as its client sent it (`grpc-timeout`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallDeadline {
    /// At this instant.
    At(Instant),
    /// The field is there and cannot be read.
    Malformed,
    /// The call has no deadline.
    None,
}

/// A path, without an allocation if it is one of gRPC's.
pub(super) type RequestPath = SmallVec<[u8; 64]>;

/// The contents of one block.
#[derive(Debug, Default)]
pub(super) struct HeadSpace {
    fields: Fields,
    list_size: usize,
    count: usize,
    fault: Option<&'static str>,
    /// True if a value had white space around it, which only the metadata of gRPC may have.
    has_blanks: bool,
    has_regular: bool,
    method: Option<RequestVerb>,
    has_scheme: bool,
    path: RequestPath,
    has_path: bool,
    authority: RequestPath,
    has_authority: bool,
    host: RequestPath,
    has_host: bool,
    content_length: Option<u64>,
    is_grpc: bool,
    timeout: Option<Option<std::time::Duration>>,
    expects_continue: bool,
    asked: AskedTrailers,
    wants_status: bool,
    has_trace_context: bool,
    has_sequence_id: bool,
    message_coding: ContentCoding,
    answer_coding: Option<Coding>,
}

/// The trailers that a call's client asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AskedTrailers {
    /// Its times (`want-server-timing: 1`).
    pub timing: bool,
    /// The load (`endpoint-load-metrics-format`).
    pub load: bool,
}

/// Decodes field blocks, one after the other: HPACK's dynamic table lasts as long as the connection.
#[derive(Default)]
pub(super) struct HeadDecoder {
    decoder: Decoder,
    /// The fields of the last block; `None` if the connection was idle since.
    space: Option<Box<HeadSpace>>,
}

impl HeadDecoder {
    /// Decodes a complete block into `space`, to its end even if its fields are too large.
    pub(super) fn decode(&mut self, block: &[u8], list_size_max: usize) -> Result<(), PeerFault> {
        let Self { decoder, space } = self;
        let space = space.get_or_insert_default();
        space.clear();
        decoder
            .decode(block, |field| space.handle_field(field, list_size_max))
            .map_err(|error| PeerFault::of_connection(ErrorCode::CompressionError, error.to_string()))
    }

    /// Frees buffers. The dynamic table stays, since the client refers to it.
    pub(super) fn shrink(&mut self) {
        self.decoder.shrink();
        self.space = None;
    }

    /// Returns the contents of the last block.
    pub(super) fn space(&self) -> &HeadSpace {
        self.space.as_deref().expect("it is asked for when a block was decoded")
    }

    /// The same, to take something out.
    pub(super) fn space_mut(&mut self) -> &mut HeadSpace {
        self.space.as_deref_mut().expect("it is asked for when a block was decoded")
    }
}

/// RFC 9113 §8.2.1.
const FIELD_BYTES: &str = "a field has bytes that it must not have";

/// The verb, with the two that a target's form depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestVerb {
    Connect,
    Options,
    Plain(Method),
}

impl HeadSpace {
    /// Makes it ready for a block.
    pub(super) fn clear(&mut self) {
        self.fields.clear();
        self.path.clear();
        self.authority.clear();
        self.host.clear();
        let Self { fields, path, authority, host, .. } = std::mem::take(self);
        *self = Self { fields, path, authority, host, ..Self::default() };
    }

    /// Adds a field. Every one is looked at, so that the block is decoded to its end.
    pub(super) fn handle_field(&mut self, mut field: HeaderField<'_>, list_size_max: usize) {
        self.count += 1;
        self.list_size = self.list_size.saturating_add(field.size());
        if self.list_size > list_size_max || self.fault.is_some() {
            return;
        }
        if !field.is_valid
            && let Some(stripped) = field.without_blanks()
        {
            self.has_blanks = true;
            field = stripped;
        }
        if !field.is_valid {
            self.fault = Some(FIELD_BYTES);
        } else if field.name.is_pseudo() {
            self.handle_pseudo(field);
        } else {
            self.has_regular = true;
            self.handle_regular(field);
            if self.count <= HEAD_FIELDS_MAX {
                self.fields.push(field.name_text, field.value);
            }
        }
    }

    // §8.3: before all regular fields, and each at most once.
    fn handle_pseudo(&mut self, field: HeaderField<'_>) {
        let is_new = match field.name {
            FieldName::Method => self.method.replace(RequestVerb::from_token(field.value)).is_none(),
            FieldName::Scheme => !field.value.is_empty() && !std::mem::replace(&mut self.has_scheme, true),
            FieldName::Path => set(&mut self.path, &mut self.has_path, field.value),
            FieldName::Authority => set(&mut self.authority, &mut self.has_authority, field.value),
            _ => false,
        };
        if self.has_regular || !is_new {
            self.fault = Some("a pseudo-header field is unknown, comes twice or comes late");
        }
    }

    fn handle_regular(&mut self, field: HeaderField<'_>) {
        let value = field.value;
        match field.name {
            // §8.2.2.
            FieldName::Connection
            | FieldName::KeepAlive
            | FieldName::ProxyConnection
            | FieldName::TransferEncoding
            | FieldName::Upgrade => {
                self.fault = Some("a field of HTTP/1.1 connections has no place in HTTP/2");
            }
            FieldName::Te if !value.eq_ignore_ascii_case(b"trailers") => {
                self.fault = Some("TE may say trailers and nothing else");
            }
            FieldName::ContentLength => self.handle_content_length(value),
            FieldName::ContentType => self.is_grpc = value.starts_with(b"application/grpc"),
            FieldName::Expect => self.expects_continue |= value.eq_ignore_ascii_case(b"100-continue"),
            FieldName::GrpcAcceptEncoding => self.answer_coding = Coding::from_grpc_accept(value),
            FieldName::GrpcEncoding => self.message_coding = ContentCoding::from_grpc(value),
            FieldName::GrpcTimeout => self.timeout = Some(grpc::timeout(value)),
            FieldName::TritonGrpcError => self.wants_status |= value == b"true",
            FieldName::Traceparent => self.has_trace_context = true,
            FieldName::SequenceId => self.has_sequence_id = true,
            FieldName::WantServerTiming => self.asked.timing |= value == b"1",
            FieldName::EndpointLoadMetricsFormat => self.asked.load = true,
            FieldName::Host if !set(&mut self.host, &mut self.has_host, value) => {
                self.fault = Some("more than one Host")
            }
            _ => {}
        }
    }

    // RFC 9110 §8.6: digits, once; as strict as over HTTP/1.1.
    fn handle_content_length(&mut self, value: &[u8]) {
        let is_number = !value.is_empty() && value.len() <= 18 && value.iter().all(u8::is_ascii_digit);
        if !is_number || self.content_length.is_some() {
            self.fault = Some("Content-Length is no number, or comes twice");
            return;
        }
        self.content_length = Some(value.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')));
    }

    /// Bytes of the fields as they are decoded, as RFC 9113 §6.5.2 counts them.
    pub(super) const fn list_size(&self) -> usize {
        self.list_size
    }

    /// Checks the fields of trailers (§8.1): regular ones only, and none that would change the
    /// message.
    pub(super) fn check_trailers(&self) -> Result<(), &'static str> {
        match self.fault {
            Some(fault) => Err(fault),
            None if self.has_blanks => Err(FIELD_BYTES),
            None if self.method.is_some() || self.has_scheme || self.has_path || self.has_authority => {
                Err("a pseudo-header field in trailers")
            }
            None => Ok(()),
        }
    }

    /// Checks the fields of a request (§8.3.1, §8.5).
    pub(super) fn check_request(&self) -> Result<(), &'static str> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        if self.has_blanks && !self.is_grpc {
            return Err(FIELD_BYTES);
        }
        let Some(method) = self.method else { return Err("no :method") };
        if method == RequestVerb::Connect {
            let is_right = !self.has_scheme && !self.has_path && !self.authority.is_empty();
            return if is_right { Ok(()) } else { Err("CONNECT has :authority, and neither :scheme nor :path") };
        }
        if !self.has_scheme || !self.has_path {
            return Err("no :scheme or no :path");
        }
        let is_target = match self.path.first() {
            Some(b'/') => self.path.iter().all(|byte| matches!(byte, 0x21..=0x7e) && *byte != b'#'),
            Some(b'*') => method == RequestVerb::Options && self.path.len() == 1,
            _ => false,
        };
        if !is_target {
            return Err(":path is no path");
        }
        self.check_authority()
    }

    // §8.3.1: there is one, it is not empty, has no userinfo, and Host does not name another.
    fn check_authority(&self) -> Result<(), &'static str> {
        let named = [(self.has_authority, &self.authority), (self.has_host, &self.host)];
        let mut named = named.into_iter().filter(|(is_there, _)| *is_there).map(|(_, name)| name);
        let Some(first) = named.next() else { return Err("neither :authority nor Host") };
        if first.is_empty() || first.contains(&b'@') {
            return Err(":authority is empty, or names a user");
        }
        match named.next() {
            Some(second) if !second.eq_ignore_ascii_case(first) => Err("Host differs from :authority"),
            _ => Ok(()),
        }
    }

    /// Returns the refusal of a request that is well-formed and yet not taken.
    pub(super) fn refusal(&self) -> Option<HttpRefusal> {
        if self.count > HEAD_FIELDS_MAX {
            return Some(HttpRefusal::new(431, "request head has too many fields"));
        }
        if self.path.len() > TARGET_SIZE_MAX {
            let text = format!("request target exceeds the maximum of {TARGET_SIZE_MAX} bytes");
            return Some(HttpRefusal::new(414, text));
        }
        (self.method == Some(RequestVerb::Connect)).then(|| HttpRefusal::new(501, "CONNECT is not supported"))
    }

    /// Returns true if it is a call of gRPC: `Content-Type` is `application/grpc`, with or without
    /// a suffix.
    pub(super) const fn is_grpc(&self) -> bool {
        self.is_grpc
    }

    /// The verb.
    pub(super) const fn method(&self) -> Method {
        match self.method {
            Some(RequestVerb::Plain(method)) => method,
            _ => Method::Other,
        }
    }

    /// The path, without the query.
    pub(super) fn path(&self) -> &[u8] {
        self.path.split(|byte| *byte == b'?').next().unwrap_or_default()
    }

    /// The regular fields, taken out.
    pub(super) fn take_fields(&mut self) -> Fields {
        std::mem::take(&mut self.fields)
    }

    /// Returns the value of a field.
    pub(super) fn field(&self, name: &str) -> Option<&[u8]> {
        self.fields.get(name)
    }

    /// Returns the number of bytes that the request declares.
    pub(super) const fn content_length(&self) -> Option<u64> {
        self.content_length
    }

    /// Returns true if the client waits for `100 Continue` before it sends the body.
    pub(super) const fn expects_continue(&self) -> bool {
        self.expects_continue
    }

    /// Returns true if an error must end a stream of responses with its status.
    pub(super) const fn wants_status(&self) -> bool {
        self.wants_status
    }

    /// Returns the trailers that the client asks for.
    pub(super) const fn asked(&self) -> AskedTrailers {
        self.asked
    }

    /// Returns true if the client names a trace of its own that the request is a part of.
    pub(super) const fn has_trace_context(&self) -> bool {
        self.has_trace_context
    }

    /// Returns that trace.
    pub(super) fn trace_context(&self) -> Option<TraceContext> {
        TraceContext::decode(self.field("traceparent"), self.field("tracestate"))
    }

    /// Returns the sequence that the client names for balancers on the way, if it names one.
    pub(super) fn sequence_id(&self) -> Option<Box<[u8]>> {
        self.has_sequence_id.then(|| self.field("sequence-id").unwrap_or_default().into())
    }

    /// Returns the encoding of a call's compressed messages.
    pub(super) const fn message_coding(&self) -> ContentCoding {
        self.message_coding
    }

    /// The encoding that a call's client takes for answers.
    pub(super) const fn answer_coding(&self) -> Option<Coding> {
        self.answer_coding
    }

    /// Returns the deadline of the client.
    pub(super) fn deadline(&self, now: Instant) -> CallDeadline {
        match self.timeout {
            None => CallDeadline::None,
            Some(None) => CallDeadline::Malformed,
            Some(Some(timeout)) => CallDeadline::At(now + timeout),
        }
    }
}

/// Sets a value that comes once; returns false if it came before.
fn set(place: &mut RequestPath, has: &mut bool, value: &[u8]) -> bool {
    place.clear();
    place.extend_from_slice(value);
    !std::mem::replace(has, true)
}

impl RequestVerb {
    fn from_token(token: &[u8]) -> Self {
        match token {
            b"CONNECT" => Self::Connect,
            b"OPTIONS" => Self::Options,
            token => Self::Plain(Method::from_token(token)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(text: &str) -> HeadSpace {
        let mut space = HeadSpace::default();
        for line in text.split(", ") {
            let at = line[1..].find('=').unwrap() + 1;
            let (name, value) = (&line.as_bytes()[..at], &line.as_bytes()[at + 1..]);
            space.handle_field(HeaderField::new(name, value), 10_000);
        }
        space
    }

    const GET: &str = ":method=GET, :scheme=http, :path=/, :authority=a";

    #[test]
    fn requests_are_well_formed_or_not() {
        let good = |text: &str| assert_eq!(space(text).check_request(), Ok(()), "{text}");
        let bad = |text: &str| assert!(space(text).check_request().is_err(), "{text}");
        good(GET);
        good(&format!("{GET}, host=A, te=trailers, content-length=12"));
        good(":method=OPTIONS, :scheme=http, :path=*, :authority=a");
        good(":method=CONNECT, :authority=a:1");
        good(":method=GET, :scheme=http, :path=/a?b=c, host=a");
        for more in [
            ":path=/",
            ":status=200",
            ":protocol=x",
            "connection=close",
            "keep-alive=x",
            "proxy-connection=x",
            "transfer-encoding=chunked",
            "upgrade=x",
            "te=gzip",
            "te=trailers, te=gzip",
            "host=b",
            "Host=a",
            "a b=c",
            "content-length=+1",
            "content-length=",
            "content-length=1, content-length=1",
            "x= a",
            "content-length=1111111111111111111",
        ] {
            bad(&format!("{GET}, {more}"));
        }
        bad(":scheme=http, :path=/, :authority=a");
        bad(":method=GET, :path=/, :authority=a");
        bad(":method=GET, :scheme=http, :authority=a");
        bad(":method=GET, :scheme=http, :path=, :authority=a");
        bad(":method=GET, :scheme=http, :path=x, :authority=a");
        bad(":method=GET, :scheme=http, :path=*, :authority=a");
        bad(":method=GET, :scheme=http, :path=/#a, :authority=a");
        bad(":method=GET, :scheme=http, :path=/");
        bad(":method=GET, :scheme=http, :path=/, :authority=");
        bad(":method=GET, :scheme=http, :path=/, :authority=me@a");
        bad(":method=CONNECT, :authority=a, :path=/");
        bad(":method=CONNECT");
        bad(":method=GET, x=y, :scheme=http, :path=/, :authority=a");
    }

    #[test]
    fn white_space_around_the_metadata_of_grpc_is_stripped_and_of_others_refused() {
        let call = "content-type=application/grpc";
        for text in [format!("{GET}, {call}, x= a b\t"), format!("{GET}, x= a b\t, {call}")] {
            let mut space = space(&text);
            assert_eq!(space.check_request(), Ok(()), "{text}");
            assert_eq!(space.take_fields().get("x"), Some(&b"a b"[..]));
        }
        for more in ["te= trailers", "content-length=1 ", "x= a\n", ":path= /"] {
            assert!(space(&format!("{GET}, {call}, {more}")).check_request().is_err(), "{more}");
        }
        assert!(space("x= a").check_trailers().is_err());
    }

    #[test]
    fn trailers_have_regular_fields_only() {
        assert_eq!(space("grpc-status=0, x=y").check_trailers(), Ok(()));
        assert!(space("x=y, :path=/").check_trailers().is_err());
        assert!(space(":path=/").check_trailers().is_err());
        assert!(space("connection=x").check_trailers().is_err());
    }

    #[test]
    fn what_is_too_much_is_refused_and_counted_decoded() {
        let many: Vec<String> = (0..HEAD_FIELDS_MAX).map(|index| format!("n{index}=v")).collect();
        let many = space(&format!("{GET}, {}", many.join(", ")));
        assert_eq!((many.check_request(), many.refusal().map(|refusal| refusal.status())), (Ok(()), Some(431)));
        let long = space(&format!(":method=GET, :scheme=http, :path=/{}, :authority=a", "a".repeat(16_384)));
        assert_eq!(long.refusal(), None, "the list ended before");
        assert!(long.list_size() > 16_384);
        assert_eq!(space(":method=CONNECT, :authority=a").refusal().map(|refusal| refusal.status()), Some(501));
    }

    #[test]
    fn a_block_leaves_nothing_for_the_next() {
        let mut used =
            space(&format!("{GET}, content-type=application/grpc+proto, grpc-timeout=5m, expect=100-continue"));
        assert!(used.is_grpc() && used.expects_continue());
        assert_eq!(used.deadline(Instant::ZERO), CallDeadline::At(Instant::from_micros(5_000)));
        used.clear();
        assert_eq!(format!("{used:?}"), format!("{:?}", HeadSpace::default()));
    }
}
