//! The answer of a stream, and its field blocks. Those of gRPC are the same for every call: each is
//! encoded once for a connection and copied from then on.

use std::borrow::Cow;
use std::fmt::Write;

use smallvec::SmallVec;

use wire::compression::{Coding, GRPC_CODINGS};
use wire::hpack::encoder::{Encoder, Indexing};
use wire::http1::reply::has_length;
use wire::http2::StreamId;
use wire::http2::frame::{self, FrameKind};
use wire::message::Reply;

/// The beginning of an answer.
pub(super) enum ResponseHead {
    /// Of a call, with the encoding of its compressed messages if there is one.
    Grpc(Option<Coding>),
    /// Of a plain reply, whose body is kept apart; `None` for `100 Continue`. With the size of the
    /// body, if it is known.
    Reply(Option<Box<Reply>>, Option<usize>),
}

/// The part behind the content.
pub(super) enum ResponseEnd {
    /// Nothing.
    Plain,
    /// The status of a call; `None` for success.
    Grpc(Option<Box<CallStatus>>),
}

/// The status of a call, if it says more than success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallStatus {
    /// The value of `grpc-status`.
    pub code: u8,
    /// The value of `grpc-message`, percent-encoded.
    pub text: String,
    /// Further fields, their names in lower case. Borrowed values are expected to recur.
    pub fields: SmallVec<[(&'static str, Cow<'static, str>); 1]>,
}

/// The encoding side of a connection's answers.
#[derive(Default)]
pub(super) struct ResponseEncoder {
    encoder: Encoder,
    call_head: HeadTemplate,
    call_end: HeadTemplate,
    /// The block in progress.
    block: Vec<u8>,
}

/// A block that was encoded before.
#[derive(Default)]
struct HeadTemplate {
    bytes: SmallVec<[u8; 24]>,
    /// The encoder's state that it goes with.
    generation: Option<u64>,
}

impl ResponseEncoder {
    pub(super) fn set_table_size_max(&mut self, size: usize) {
        self.encoder.set_table_size_max(size);
    }

    /// Appends the frames of a head.
    pub(super) fn encode_head(&mut self, head: &ResponseHead, frames: &ResponseFrames, out: &mut Vec<u8>) {
        match head {
            ResponseHead::Grpc(None) => {
                self.encode_template(CALL_HEAD, |responses| &mut responses.call_head, frames, out);
            }
            ResponseHead::Grpc(Some(coding)) => self.encode(frames, out, |encoder, block| {
                CALL_HEAD.iter().for_each(|(name, value)| encode_constant(name, value, encoder, block));
                encode_constant("grpc-encoding", coding.name(), encoder, block);
            }),
            ResponseHead::Reply(None, _) => self.encode(frames, out, |encoder, block| {
                encoder.encode(b":status", b"100", Indexing::Without, block);
            }),
            ResponseHead::Reply(Some(reply), body_size) => {
                self.encode(frames, out, |encoder, block| encode_reply(reply, *body_size, encoder, block));
            }
        }
    }

    /// Appends the frames of a call's end; with the head, if nothing was sent before it.
    pub(super) fn encode_end(
        &mut self,
        status: Option<&CallStatus>,
        with_head: bool,
        frames: &ResponseFrames,
        out: &mut Vec<u8>,
    ) {
        let Some(status) = status else {
            return self.encode_template(CALL_END, |responses| &mut responses.call_end, frames, out);
        };
        self.encode(frames, out, |encoder, block| {
            if with_head {
                CALL_HEAD.iter().for_each(|(name, value)| encode_constant(name, value, encoder, block));
            }
            let mut code = itoa::Buffer::new();
            encoder.encode(b"grpc-status", code.format(status.code).as_bytes(), Indexing::Insert, block);
            if !status.text.is_empty() {
                encoder.encode(b"grpc-message", status.text.as_bytes(), Indexing::Without, block);
            }
            for (name, value) in &status.fields {
                let indexing = if let Cow::Borrowed(_) = value { Indexing::Insert } else { Indexing::Without };
                encoder.encode(name.as_bytes(), value.as_bytes(), indexing, block);
            }
        });
    }

    /// Frees memory beyond what an idle connection needs.
    pub(super) fn shrink(&mut self) {
        self.block = Vec::new();
        self.encoder.shrink();
    }

    fn encode_template(
        &mut self,
        fields: &[(&str, &str)],
        template: fn(&mut Self) -> &mut HeadTemplate,
        frames: &ResponseFrames,
        out: &mut Vec<u8>,
    ) {
        let generation = self.encoder.generation();
        if !self.encoder.is_size_due() && template(self).generation == Some(generation) {
            return frames.encode(&template(self).bytes, out);
        }
        let encode = |encoder: &mut Encoder, block: &mut Vec<u8>| {
            fields.iter().for_each(|(name, value)| encode_constant(name, value, encoder, block));
        };
        self.encode(frames, out, encode);
        // A second time, now that all of it is in the table, or never will be.
        let mut block = Vec::new();
        encode(&mut self.encoder, &mut block);
        debug_assert!(!block.is_empty(), "a template has fields");
        let generation = Some(self.encoder.generation());
        *template(self) = HeadTemplate { bytes: block.into(), generation };
    }

    fn encode(&mut self, frames: &ResponseFrames, out: &mut Vec<u8>, fields: impl FnOnce(&mut Encoder, &mut Vec<u8>)) {
        self.block.clear();
        self.encoder.begin_block(&mut self.block);
        debug_assert!(!self.encoder.is_size_due(), "a block begins with the new table size (RFC 7541 §4.2)");
        fields(&mut self.encoder, &mut self.block);
        frames.encode(&self.block, out);
    }
}

/// Before the message of a call (gRPC over HTTP/2, "Responses").
const CALL_HEAD: &[(&str, &str)] =
    &[(":status", "200"), ("content-type", "application/grpc"), ("grpc-accept-encoding", GRPC_CODINGS)];
/// After it, if all went well.
const CALL_END: &[(&str, &str)] = &[("grpc-status", "0")];

fn encode_constant(name: &str, value: &str, encoder: &mut Encoder, block: &mut Vec<u8>) {
    encoder.encode(name.as_bytes(), value.as_bytes(), Indexing::Insert, block);
}

fn encode_reply(reply: &Reply, body_size: Option<usize>, encoder: &mut Encoder, block: &mut Vec<u8>) {
    let mut number = itoa::Buffer::new();
    encoder.encode(b":status", number.format(reply.status).as_bytes(), Indexing::Insert, block);
    let mut lower = String::new();
    for (name, value) in &reply.fields {
        // RFC 9113 §8.2.1: names in lower case.
        lower.clear();
        let _ = write!(lower, "{}", name.to_ascii_lowercase());
        let is_constant = lower == "content-type" || lower == "accept-encoding" || lower == "retry-after";
        let indexing = if is_constant { Indexing::Insert } else { Indexing::Without };
        // As over HTTP/1.1, a value never has bytes that would end it.
        let is_control = |byte: u8| byte < 0x20 && byte != b'\t' || byte == 0x7f;
        let value: SmallVec<[u8; 64]> = value.iter().map(|byte| if is_control(*byte) { b' ' } else { *byte }).collect();
        encoder.encode(lower.as_bytes(), value.trim_ascii(), indexing, block);
    }
    if let Some(body_size) = body_size.filter(|_| has_length(reply.status)) {
        encoder.encode(b"content-length", number.format(body_size).as_bytes(), Indexing::Without, block);
    }
}

/// The division of a block into frames.
pub(super) struct ResponseFrames {
    pub(super) stream: StreamId,
    pub(super) is_last: bool,
    pub(super) size_max: usize,
}

impl ResponseFrames {
    /// Appends HEADERS, and CONTINUATION if the block is larger than a frame (§6.10).
    fn encode(&self, block: &[u8], out: &mut Vec<u8>) {
        debug_assert!(self.size_max > 0, "a frame takes a part of the block");
        let (mut kind, mut rest) = (FrameKind::Headers, block);
        let end_stream = if self.is_last { frame::END_STREAM } else { 0 };
        loop {
            let (now, later) = rest.split_at(rest.len().min(self.size_max));
            let end_headers = if later.is_empty() { frame::END_HEADERS } else { 0 };
            let end_stream = if kind == FrameKind::Headers { end_stream } else { 0 };
            frame::encode(kind, end_headers | end_stream, self.stream, now, out);
            if later.is_empty() {
                return;
            }
            (kind, rest) = (FrameKind::Continuation, later);
        }
    }
}
