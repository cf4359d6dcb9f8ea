//! gRPC on the client's side, over our HTTP/2 frames (RFC 9113). Pure: received bytes in, bytes to
//! send and outcomes out. It checks only what it needs: a load generator is not a conformance test.
//! Bytes that it cannot decode end the connection.

use std::collections::{HashMap, VecDeque};

use crate::loadgen::call::CallInFlight;
use crate::loadgen::exchange::{Exchange, FinishedRequest};
use crate::loadgen::failure::{FailureKind, RequestFailure};
use crate::loadgen::request::OutgoingRequest;
use crate::wire::hpack::decoder::Decoder;
use crate::wire::hpack::encoder::{Encoder, Indexing};
use crate::wire::http2::error::{ErrorCode, PeerFault};
use crate::wire::http2::frame::{self, FrameHead, FrameKind as Frame};
use crate::wire::http2::settings::{self, PeerSettings};
use crate::wire::http2::{PREFACE, StreamId, WINDOW_SIZE_INITIAL, WINDOW_SIZE_MAX};

/// Our receive window, per stream and for the connection: so large that no answer waits for a WINDOW_UPDATE.
const WINDOW: u32 = 1 << 30;
/// The largest frame that we accept: large, so that a large tensor takes few frames.
const FRAME_SIZE_MAX: usize = 1 << 20;
/// Bytes of a field block, at most: heads and trailers are far smaller.
const BLOCK_SIZE_MAX: usize = 256 * 1024;
/// Streams opened before the server's SETTINGS arrive: a server should allow at least 100 (RFC 9113 §6.5.2).
const STREAMS_FIRST: u32 = 100;
/// Bytes framed ahead of the socket.
const OUTPUT_SIZE_MAX: usize = 256 * 1024;

/// The state of one connection.
#[derive(Debug)]
pub struct Http2Exchange {
    authority: String,
    scheme: &'static str,
    /// Added to the head of every request.
    fields: Vec<(String, String)>,
    /// True if bodies of successes are stored.
    keeps_bodies: bool,
    /// Requests that wait for a stream: the server limits the open ones.
    waiting: VecDeque<(usize, OutgoingRequest)>,
    calls: HashMap<StreamId, CallInFlight>,
    /// The streams with data to send and a window for it. They take turns, a frame each.
    sending: VecDeque<StreamId>,
    next_stream: StreamId,
    phase: Http2ClientPhase,
    peer: PeerSettings,
    /// The connection's flow-control window at the server, in bytes.
    send_window: i64,
    /// Bytes received since the last WINDOW_UPDATE that we sent for the connection.
    received: u32,
    encoder: Encoder,
    decoder: Decoder,
    /// Buffer for the field block of a request.
    block: Vec<u8>,
    /// The received part of an incomplete frame.
    partial: Vec<u8>,
    /// The DATA frame in progress.
    data: Option<PartialData>,
    /// The received field block in progress: its stream, true if it ends the stream, and its bytes.
    block_in_progress: Option<(StreamId, bool, Vec<u8>)>,
    output: Vec<u8>,
    /// Bytes of `output` that were sent.
    output_at: usize,
    finished: VecDeque<FinishedRequest>,
}

/// ```text
/// Greeting ──► Open ──► Leaving (GOAWAY) ──► Closed
///     └──────────┴── a fault, the end ─────────▲
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Http2ClientPhase {
    /// Before the server's SETTINGS (§3.4).
    Greeting,
    Open,
    /// No new streams; the open ones still get their answers.
    Leaving,
    Closed,
}

/// A DATA frame in progress: its payload is handled in parts, as it arrives.
#[derive(Clone, Copy, Debug)]
struct PartialData {
    head: FrameHead,
    /// Bytes of content still to arrive.
    left: usize,
    /// Bytes of padding behind the content.
    padding: usize,
}

impl Http2Exchange {
    /// A new connection. `fields` are added to every request; a field `host` replaces the authority.
    pub fn new(authority: &str, fields: &[(String, String)], keeps_bodies: bool) -> Self {
        let is_host = |name: &str| name.eq_ignore_ascii_case("host");
        let host = fields.iter().find(|(name, _)| is_host(name));
        let own = fields.iter().filter(|(name, _)| !is_host(name));
        let mut output = PREFACE.to_vec();
        // No server push (§6.5.2).
        let ours = [
            (settings::ENABLE_PUSH, 0),
            (settings::INITIAL_WINDOW_SIZE, WINDOW),
            (settings::MAX_FRAME_SIZE, FRAME_SIZE_MAX as u32),
        ];
        settings::encode(&ours, &mut output);
        frame::encode_window_update(StreamId::CONNECTION, WINDOW - WINDOW_SIZE_INITIAL, &mut output);
        Self {
            scheme: "http",
            authority: host.map_or(authority, |(_, value)| value).to_owned(),
            fields: own.map(|(name, value)| (name.to_ascii_lowercase(), value.clone())).collect(),
            keeps_bodies,
            waiting: VecDeque::new(),
            calls: HashMap::new(),
            sending: VecDeque::new(),
            next_stream: StreamId(1),
            phase: Http2ClientPhase::Greeting,
            peer: PeerSettings::default(),
            send_window: WINDOW_SIZE_INITIAL.into(),
            received: 0,
            encoder: Encoder::default(),
            decoder: Decoder::default(),
            block: Vec::new(),
            partial: Vec::new(),
            data: None,
            block_in_progress: None,
            output,
            output_at: 0,
            finished: VecDeque::new(),
        }
    }

    /// Sets the value of `:scheme`, which is `http` without it.
    pub const fn with_scheme(mut self, scheme: &'static str) -> Self {
        self.scheme = scheme;
        self
    }

    /// Returns the number of streams that may be open now.
    fn streams_max(&self) -> usize {
        let streams_max = match self.phase {
            Http2ClientPhase::Greeting => self.peer.streams_max.min(STREAMS_FIRST),
            Http2ClientPhase::Open => self.peer.streams_max,
            Http2ClientPhase::Leaving | Http2ClientPhase::Closed => 0,
        };
        usize::try_from(streams_max).unwrap_or(usize::MAX)
    }

    /// Opens streams and frames their messages, as far as the server's limits and [`OUTPUT_SIZE_MAX`] allow.
    fn fill_output(&mut self) {
        while self.output.len() < OUTPUT_SIZE_MAX && self.calls.len() < self.streams_max() {
            let Some((token, outgoing)) = self.waiting.pop_front() else { break };
            self.open(token, &outgoing);
        }
        while self.output.len() < OUTPUT_SIZE_MAX && self.send_window > 0 {
            let Some(stream) = self.sending.pop_front() else { break };
            self.send_part(stream);
        }
    }

    fn open(&mut self, token: usize, outgoing: &OutgoingRequest) {
        let stream = self.next_stream;
        self.next_stream = StreamId(stream.0 + 2);
        if self.next_stream > StreamId::LARGEST {
            // The stream ids are used up (§5.1.1): the open calls are finished, then the connection is closed.
            self.phase = Http2ClientPhase::Leaving;
        }
        self.block.clear();
        self.encoder.begin_block(&mut self.block);
        let own = self.fields.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let fields = [
            (":method", "POST"),
            (":scheme", self.scheme),
            (":path", outgoing.method.path()),
            (":authority", &self.authority),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ];
        for (name, value) in fields.into_iter().chain(own) {
            self.encoder.encode(name.as_bytes(), value.as_bytes(), Indexing::Insert, &mut self.block);
        }
        let size_max = usize::try_from(self.peer.frame_size_max).unwrap_or(usize::MAX);
        let mut rest = self.block.as_slice();
        let mut kind = Frame::Headers;
        while kind == Frame::Headers || !rest.is_empty() {
            let (part, after) = rest.split_at(rest.len().min(size_max));
            rest = after;
            let end = if rest.is_empty() { frame::END_HEADERS } else { 0 };
            let last = if kind == Frame::Headers && outgoing.bytes.is_empty() { frame::END_STREAM } else { 0 };
            frame::encode(kind, end | last, stream, part, &mut self.output);
            kind = Frame::Continuation;
        }
        self.calls
            .insert(stream, CallInFlight::new(token, outgoing.bytes.clone(), self.peer.initial_window_size.into()));
        if !outgoing.bytes.is_empty() {
            self.sending.push_back(stream);
        }
    }

    /// Sends one DATA frame of a message.
    fn send_part(&mut self, stream: StreamId) {
        let Some(call) = self.calls.get_mut(&stream) else { return };
        let room = usize::try_from(self.send_window.min(call.send_window)).unwrap_or(0);
        if room == 0 {
            call.is_blocked = true;
            return;
        }
        let size_max = usize::try_from(self.peer.frame_size_max).unwrap_or(usize::MAX);
        let part = call.unsent.split_to(call.unsent.len().min(room).min(size_max));
        let last = if call.unsent.is_empty() { frame::END_STREAM } else { 0 };
        frame::encode(Frame::Data, last, stream, &part, &mut self.output);
        call.send_window -= part.len() as i64;
        self.send_window -= part.len() as i64;
        if !call.unsent.is_empty() {
            self.sending.push_back(stream);
        }
    }

    /// Decodes all complete frames. An incomplete one is stored.
    fn decode(&mut self, bytes: &[u8]) -> Result<(), RequestFailure> {
        let mut partial = std::mem::take(&mut self.partial);
        let is_joined = !partial.is_empty();
        if is_joined {
            partial.extend_from_slice(bytes);
        }
        let mut rest = if is_joined { partial.as_slice() } else { bytes };
        while self.decode_frame(&mut rest)? {}
        let left = rest.len();
        if is_joined {
            partial.drain(..partial.len() - left);
        } else {
            partial.extend_from_slice(bytes.get(bytes.len() - left..).unwrap_or_default());
        }
        self.partial = partial;
        Ok(())
    }

    /// Decodes one frame, or the received part of a DATA frame. Returns false if more bytes are needed.
    fn decode_frame(&mut self, rest: &mut &[u8]) -> Result<bool, RequestFailure> {
        if let Some(data) = self.data.take() {
            return self.decode_data(data, rest);
        }
        let Some(head) = FrameHead::decode(rest) else { return Ok(false) };
        head.check(FRAME_SIZE_MAX).map_err(|fault| malformed(&fault))?;
        self.check_order(&head)?;
        let content = rest.get(frame::HEAD_SIZE..).unwrap_or_default();
        if head.kind == Frame::Data {
            let Some((field, content)) = content.split_at_checked(head.padding_field_size()) else { return Ok(false) };
            let padding = field.first().map_or(0, |size| usize::from(*size));
            let left = head.size.checked_sub(field.len() + padding);
            let left = left.ok_or_else(|| malformed(&frame::padding_fault()))?;
            *rest = content;
            self.update_windows(head.stream, head.size);
            self.data = Some(PartialData { head, left, padding });
            return Ok(true);
        }
        let Some(payload) = content.get(..head.size) else { return Ok(false) };
        *rest = content.get(head.size..).unwrap_or_default();
        self.handle_frame(&head, payload)?;
        Ok(true)
    }

    /// Checks that SETTINGS come first (§3.4), and that nothing comes between the parts of a field block (§4.3).
    fn check_order(&self, head: &FrameHead) -> Result<(), RequestFailure> {
        let is_greeting = head.kind == Frame::Settings && !head.has(frame::ACK);
        let block = self.block_in_progress.as_ref().map(|(stream, ..)| *stream);
        let is_next = match block {
            Some(stream) => head.kind == Frame::Continuation && head.stream == stream,
            None => head.kind != Frame::Continuation,
        };
        if is_next && (is_greeting || self.phase != Http2ClientPhase::Greeting) {
            return Ok(());
        }
        Err(RequestFailure::new(FailureKind::Malformed, format!("the frame {:?} is not allowed here", head.kind)))
    }

    fn decode_data(&mut self, mut data: PartialData, rest: &mut &[u8]) -> Result<bool, RequestFailure> {
        let (part, after) = rest.split_at(rest.len().min(data.left));
        let (_, after) = after.split_at(if part.len() == data.left { after.len().min(data.padding) } else { 0 });
        let passed = rest.len() - after.len() - part.len();
        *rest = after;
        data.left -= part.len();
        data.padding -= passed;
        if let Some(call) = self.calls.get_mut(&data.head.stream)
            && !call.handle_data(part, self.keeps_bodies)
        {
            return Err(RequestFailure::new(FailureKind::Malformed, "DATA comes before the head"));
        }
        if data.left + data.padding > 0 {
            self.data = Some(data);
            return Ok(false);
        }
        if data.head.has(frame::END_STREAM) {
            self.finish(data.head.stream);
        }
        Ok(true)
    }

    /// Counts received bytes, and opens the windows again at half, so that the server never has to wait.
    fn update_windows(&mut self, stream: StreamId, size: usize) {
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        self.received = self.received.saturating_add(size);
        if self.received > WINDOW / 2 {
            let received = std::mem::take(&mut self.received);
            frame::encode_window_update(StreamId::CONNECTION, received, &mut self.output);
        }
        let Some(call) = self.calls.get_mut(&stream) else { return };
        call.received = call.received.saturating_add(size);
        if call.received > WINDOW / 2 {
            frame::encode_window_update(stream, std::mem::take(&mut call.received), &mut self.output);
        }
    }

    fn handle_frame(&mut self, head: &FrameHead, payload: &[u8]) -> Result<(), RequestFailure> {
        match head.kind {
            Frame::Headers => {
                let block = head.headers_block(payload).map_err(|fault| malformed(&fault))?;
                self.handle_block(head, head.has(frame::END_STREAM), Vec::new(), block)
            }
            Frame::Continuation => match self.block_in_progress.take() {
                Some((_, is_last, block)) => self.handle_block(head, is_last, block, payload),
                None => Ok(()),
            },
            Frame::RstStream => {
                let code = ErrorCode::from_number(frame::number(payload));
                self.fail(head.stream, &format!("the server reset the stream: {code:?}"));
                Ok(())
            }
            Frame::Settings if head.has(frame::ACK) => Ok(()),
            Frame::Settings => self.handle_settings(payload),
            Frame::Ping if head.has(frame::ACK) => Ok(()),
            Frame::Ping => {
                frame::encode(Frame::Ping, frame::ACK, StreamId::CONNECTION, payload, &mut self.output);
                Ok(())
            }
            Frame::GoAway => {
                self.handle_goaway(payload);
                Ok(())
            }
            Frame::WindowUpdate => self.handle_window_update(head.stream, frame::window_increment(payload).into()),
            Frame::Data | Frame::Priority | Frame::PushPromise | Frame::Unknown(_) => Ok(()),
        }
    }

    /// Takes a part of a field block. Blocks of cancelled calls are decoded too: HPACK's dynamic table depends on every
    /// block.
    fn handle_block(
        &mut self,
        head: &FrameHead,
        is_last: bool,
        mut begun: Vec<u8>,
        part: &[u8],
    ) -> Result<(), RequestFailure> {
        if begun.len() + part.len() > BLOCK_SIZE_MAX {
            return Err(RequestFailure::new(FailureKind::Malformed, "a head is too large"));
        }
        if !head.has(frame::END_HEADERS) {
            begun.extend_from_slice(part);
            self.block_in_progress = Some((head.stream, is_last, begun));
            return Ok(());
        }
        let is_whole = begun.is_empty();
        if !is_whole {
            begun.extend_from_slice(part);
        }
        let mut call = self.calls.get_mut(&head.stream);
        let decoded = self.decoder.decode(if is_whole { part } else { &begun }, |field| {
            if let Some(call) = &mut call {
                call.handle_field(&field);
            }
        });
        decoded.map_err(|error| RequestFailure::new(FailureKind::Malformed, error.to_string()))?;
        if let Some(call) = call {
            call.handle_fields_end();
        }
        if is_last {
            self.finish(head.stream);
        }
        Ok(())
    }

    fn handle_settings(&mut self, payload: &[u8]) -> Result<(), RequestFailure> {
        let before = i64::from(self.peer.initial_window_size);
        self.peer.apply(payload).map_err(|fault| malformed(&fault))?;
        settings::encode_acknowledgement(&mut self.output);
        self.encoder.set_table_size_max(usize::try_from(self.peer.header_table_size).unwrap_or(usize::MAX));
        let more = i64::from(self.peer.initial_window_size) - before;
        // A new initial window changes the windows of all open streams (§6.9.2).
        let streams: Vec<_> = self.calls.keys().copied().filter(|_| more != 0).collect();
        for stream in streams {
            self.handle_window_update(stream, more)?;
        }
        if self.phase == Http2ClientPhase::Greeting {
            self.phase = Http2ClientPhase::Open;
        }
        Ok(())
    }

    fn handle_window_update(&mut self, stream: StreamId, more: i64) -> Result<(), RequestFailure> {
        let room = match self.calls.get_mut(&stream) {
            _ if stream == StreamId::CONNECTION => &mut self.send_window,
            Some(call) => {
                if call.is_blocked && call.send_window + more > 0 {
                    call.is_blocked = false;
                    self.sending.push_back(stream);
                }
                &mut call.send_window
            }
            None => return Ok(()),
        };
        *room += more;
        if *room > WINDOW_SIZE_MAX.into() {
            return Err(RequestFailure::new(FailureKind::Malformed, "a window is larger than 2^31 - 1"));
        }
        Ok(())
    }

    fn handle_goaway(&mut self, payload: &[u8]) {
        let last = StreamId(frame::number(payload) & StreamId::LARGEST.0);
        let code = ErrorCode::from_number(frame::number(payload.get(4..).unwrap_or_default()));
        let text = String::from_utf8_lossy(payload.get(8..).unwrap_or_default());
        self.phase = Http2ClientPhase::Leaving;
        let unseen: Vec<_> = self.calls.keys().copied().filter(|stream| *stream > last).collect();
        for stream in unseen {
            self.fail(stream, &format!("the server closes the connection: {code:?} {text}"));
        }
    }

    fn finish(&mut self, stream: StreamId) {
        let Some(call) = self.calls.remove(&stream) else { return };
        if !call.unsent.is_empty() {
            // Answered before the whole message was sent: the server does not want the rest (§8.1).
            frame::encode_reset(stream, ErrorCode::NoError, &mut self.output);
        }
        self.finished.push_back(FinishedRequest { token: call.token, outcome: call.into_outcome() });
    }

    fn fail(&mut self, stream: StreamId, text: &str) {
        let Some(call) = self.calls.remove(&stream) else { return };
        self.finished.push_back(FinishedRequest {
            token: call.token,
            outcome: Err(RequestFailure::new(FailureKind::Closed, text)),
        });
    }
}

fn malformed(fault: &PeerFault) -> RequestFailure {
    RequestFailure::new(FailureKind::Malformed, fault.text.clone())
}

impl Exchange for Http2Exchange {
    fn handle_request(&mut self, token: usize, request: &OutgoingRequest) {
        self.waiting.push_back((token, request.clone()));
    }

    fn handle_bytes(&mut self, bytes: &[u8]) -> Result<(), RequestFailure> {
        let outcome = self.decode(bytes);
        if outcome.is_err() {
            self.phase = Http2ClientPhase::Closed;
        }
        outcome
    }

    fn handle_end(&mut self) {
        self.phase = Http2ClientPhase::Closed;
        let streams: Vec<_> = self.calls.keys().copied().collect();
        streams.into_iter().for_each(|stream| self.fail(stream, "the server closed the connection"));
    }

    fn handle_cancel(&mut self, token: usize) -> bool {
        self.waiting.retain(|(have, _)| *have != token);
        let stream = self.calls.iter().find(|(_, call)| call.token == token).map(|(stream, _)| *stream);
        if let Some(stream) = stream {
            self.calls.remove(&stream);
            frame::encode_reset(stream, ErrorCode::Cancel, &mut self.output);
        }
        true
    }

    fn poll_finished(&mut self) -> Option<FinishedRequest> {
        self.finished.pop_front()
    }

    fn poll_output(&mut self) -> Option<&[u8]> {
        if self.output_at >= self.output.len() {
            self.output.clear();
            self.output_at = 0;
        }
        if self.output_at == 0 {
            self.fill_output();
        }
        self.output.get(self.output_at..).filter(|rest| !rest.is_empty())
    }

    fn handle_sent(&mut self, size: usize) {
        self.output_at += size;
    }

    fn is_over(&self) -> bool {
        self.phase == Http2ClientPhase::Closed || self.phase == Http2ClientPhase::Leaving && self.calls.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::loadgen::request::RequestMethod;

    fn outgoing(message: &[u8]) -> OutgoingRequest {
        OutgoingRequest { method: RequestMethod::ModelInfer, bytes: Bytes::copy_from_slice(message) }
    }

    fn sent(exchange: &mut Http2Exchange) -> Vec<u8> {
        let mut sent = Vec::new();
        while let Some(bytes) = exchange.poll_output() {
            sent.extend_from_slice(bytes);
            let size = bytes.len();
            exchange.handle_sent(size);
        }
        sent
    }

    /// The frames of some bytes: kind, flags, stream, size.
    fn frames(mut bytes: &[u8]) -> Vec<(Frame, u8, u32, usize)> {
        bytes = bytes.strip_prefix(PREFACE).unwrap_or(bytes);
        let mut frames = Vec::new();
        while let Some(head) = FrameHead::decode(bytes) {
            frames.push((head.kind, head.flags, head.stream.0, head.size));
            bytes = &bytes[frame::HEAD_SIZE + head.size..];
        }
        assert!(bytes.is_empty());
        frames
    }

    /// The frames that a server sends.
    #[derive(Default)]
    struct Script {
        encoder: Encoder,
        bytes: Vec<u8>,
    }

    impl Script {
        fn settings(mut self, entries: &[(u16, u32)]) -> Self {
            settings::encode(entries, &mut self.bytes);
            self
        }

        fn frame(mut self, kind: Frame, flags: u8, stream: u32, payload: &[u8]) -> Self {
            frame::encode(kind, flags, StreamId(stream), payload, &mut self.bytes);
            self
        }

        fn block(&mut self, fields: &[(&str, &str)]) -> Vec<u8> {
            let mut block = Vec::new();
            for (name, value) in fields {
                self.encoder.encode(name.as_bytes(), value.as_bytes(), Indexing::Insert, &mut block);
            }
            block
        }

        fn fields(mut self, flags: u8, stream: u32, fields: &[(&str, &str)]) -> Self {
            let block = self.block(fields);
            self.frame(Frame::Headers, flags | frame::END_HEADERS, stream, &block)
        }

        /// A good answer to a call.
        fn answer(self, stream: u32, message: &[u8]) -> Self {
            self.fields(0, stream, &[(":status", "200"), ("content-type", "application/grpc")])
                .frame(Frame::Data, 0, stream, message)
                .fields(frame::END_STREAM, stream, &[("grpc-status", "0"), ("grpc-message", "")])
        }
    }

    fn finished(exchange: &mut Http2Exchange) -> Vec<(usize, Result<Bytes, String>)> {
        let next = std::iter::from_fn(|| exchange.poll_finished());
        let mut finished: Vec<_> =
            next.map(|end| (end.token, end.outcome.map_err(|failure| failure.to_string()))).collect();
        finished.sort_by_key(|(token, _)| *token);
        finished
    }

    #[test]
    fn a_connection_begins_with_the_preface_and_waits_for_nobody() {
        let mut exchange = Http2Exchange::new("localhost:1", &[], true);
        let first = sent(&mut exchange);
        assert!(first.starts_with(PREFACE));
        exchange.handle_request(3, &outgoing(b"\0\0\0\0\x01x"));
        // HEADERS and DATA, without waiting for the server's SETTINGS (§3.4).
        let sent = sent(&mut exchange);
        assert!(sent.ends_with(b"\0\0\0\0\x01x"), "{sent:?}");
        let kinds: Vec<_> = frames(&sent).into_iter().map(|(kind, flags, ..)| (kind, flags)).collect();
        assert_eq!(kinds, [(Frame::Headers, frame::END_HEADERS), (Frame::Data, frame::END_STREAM)]);
        assert!(!exchange.is_over());
    }

    #[test]
    fn answers_are_the_same_however_they_are_split() {
        let script = || {
            Script::default()
                .settings(&[(settings::INITIAL_WINDOW_SIZE, 9)])
                .fields(0, 1, &[(":status", "103")])
                .answer(1, b"\0\0\0\0\x03one")
                .fields(frame::END_STREAM, 3, &[(":status", "200"), ("grpc-status", "5"), ("grpc-message", "no%20m")])
                .frame(Frame::Unknown(77), 1, 3, b"?")
                .fields(frame::END_STREAM, 5, &[(":status", "503")])
                .fields(0, 7, &[(":status", "200")])
                .frame(Frame::Data, frame::PADDED, 7, b"\x02\0\0\0\0\x04se__")
                .frame(Frame::Data, frame::END_STREAM, 7, b"ve")
        };
        let mut interleaved = script();
        let block = interleaved.block(&[("grpc-status", "0")]);
        let interleaved = interleaved
            .fields(0, 9, &[(":status", "200")])
            .frame(Frame::Headers, frame::END_STREAM, 9, &block[..1])
            .frame(Frame::Continuation, frame::END_HEADERS, 9, &block[1..])
            .frame(Frame::RstStream, 0, 11, &8_u32.to_be_bytes());
        let want = vec![
            (1, Ok(Bytes::from_static(b"one"))),
            (3, Err("gRPC 5 NOT_FOUND: no m".to_owned())),
            (5, Err("HTTP 503".to_owned())),
            (7, Err("malformed answer: no grpc-status".to_owned())),
            (9, Ok(Bytes::new())),
            (11, Err("connection closed: the server reset the stream: Cancel".to_owned())),
        ];
        for step in 1..=interleaved.bytes.len() {
            let mut exchange = Http2Exchange::new("localhost:1", &[], true);
            [1, 3, 5, 7, 9, 11].iter().for_each(|token| exchange.handle_request(*token, &outgoing(b"ask")));
            sent(&mut exchange);
            for part in interleaved.bytes.chunks(step) {
                exchange.handle_bytes(part).unwrap();
            }
            assert_eq!(finished(&mut exchange), want, "in steps of {step}");
        }
    }

    #[test]
    fn no_more_is_sent_than_there_is_room_for() {
        let mut exchange = Http2Exchange::new("localhost:1", &[], true);
        exchange
            .handle_bytes(&Script::default().settings(&[(settings::INITIAL_WINDOW_SIZE, 40_000), (3, 2)]).bytes)
            .unwrap();
        (0..3).for_each(|token| exchange.handle_request(token, &outgoing(&[7; 50_000])));
        let data = |bytes: &[u8]| -> Vec<_> {
            let frames = frames(bytes).into_iter();
            frames
                .filter(|(kind, ..)| *kind == Frame::Data)
                .map(|(_, flags, stream, size)| (flags, stream, size))
                .collect()
        };
        // Two streams, in turns, and only the connection's first 65,535 bytes.
        let first = data(&sent(&mut exchange));
        assert_eq!(first, [(0, 1, 16_384), (0, 3, 16_384), (0, 1, 16_384), (0, 3, 16_383)]);
        let more =
            |script: Script, stream: u32, size: u32| script.frame(Frame::WindowUpdate, 0, stream, &size.to_be_bytes());
        exchange.handle_bytes(&more(Script::default(), 0, 100_000).bytes).unwrap();
        // Each stream has its own window too.
        assert_eq!(data(&sent(&mut exchange)), [(0, 1, 7_232), (0, 3, 7_233)]);
        let script = Script::default().settings(&[(settings::INITIAL_WINDOW_SIZE, 45_000)]);
        exchange.handle_bytes(&more(script, 1, 5_000).bytes).unwrap();
        let mut rest = data(&sent(&mut exchange));
        rest.sort_unstable();
        assert_eq!(rest, [(0, 3, 5_000), (1, 1, 10_000)]);
        exchange.handle_bytes(&Script::default().answer(1, b"\0\0\0\0\0").bytes).unwrap();
        assert_eq!(finished(&mut exchange), [(0, Ok(Bytes::new()))]);
        let last = frames(&sent(&mut exchange));
        assert!(last.iter().any(|(kind, _, stream, _)| (*kind, *stream) == (Frame::Headers, 5)), "{last:?}");
    }

    #[test]
    fn a_server_that_leaves_answers_what_it_has_seen() {
        let mut exchange = Http2Exchange::new("localhost:1", &[], true);
        (0..3).for_each(|token| exchange.handle_request(token, &outgoing(b"ask")));
        sent(&mut exchange);
        let goaway = Script::default().settings(&[]).frame(Frame::GoAway, 0, 0, b"\0\0\0\x03\0\0\0\x0bcalm");
        exchange.handle_bytes(&goaway.bytes).unwrap();
        let unseen = "connection closed: the server closes the connection: EnhanceYourCalm calm";
        assert_eq!(finished(&mut exchange), [(2, Err(unseen.to_owned()))]);
        exchange.handle_request(3, &outgoing(b"ask"));
        assert!(!frames(&sent(&mut exchange)).iter().any(|(kind, ..)| *kind == Frame::Headers));
        assert!(!exchange.is_over());
        exchange.handle_bytes(&Script::default().answer(3, b"\0\0\0\0\0").bytes).unwrap();
        exchange.handle_end();
        let closed = "connection closed: the server closed the connection";
        assert_eq!(finished(&mut exchange), [(0, Err(closed.to_owned())), (1, Ok(Bytes::new()))]);
        assert!(exchange.is_over());
    }

    #[test]
    fn a_request_that_is_given_up_is_reset_and_its_answer_passed_over() {
        let mut exchange = Http2Exchange::new("localhost:1", &[], true);
        exchange.handle_request(1, &outgoing(b"ask"));
        sent(&mut exchange);
        assert!(exchange.handle_cancel(1));
        let reset = frames(&sent(&mut exchange));
        assert_eq!(reset, [(Frame::RstStream, 0, 1, 4)]);
        // The fields of its answer are still decoded: the next answer refers to them in the dynamic table.
        exchange.handle_request(2, &outgoing(b"ask"));
        sent(&mut exchange);
        let answers = Script::default().settings(&[]).answer(1, b"\0\0\0\0\x01a").answer(3, b"\0\0\0\0\x01b");
        exchange.handle_bytes(&answers.frame(Frame::Ping, 0, 0, b"pingpong").bytes).unwrap();
        assert_eq!(finished(&mut exchange), [(2, Ok(Bytes::from_static(b"b")))]);
        let answer = frames(&sent(&mut exchange));
        assert_eq!(answer, [(Frame::Settings, frame::ACK, 0, 0), (Frame::Ping, frame::ACK, 0, 8)]);
    }

    #[test]
    fn a_peer_that_speaks_something_else_is_malformed() {
        let settings = || Script::default().settings(&[]);
        for bytes in [
            b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
            Script::default().frame(Frame::Ping, 0, 0, b"pingpong").bytes,
            settings().frame(Frame::Data, 0, 1, b"x").bytes,
            settings().frame(Frame::Data, frame::PADDED, 1, b"\x01").bytes,
            settings().frame(Frame::Headers, frame::END_HEADERS, 1, b"\xff").bytes,
            settings().frame(Frame::Headers, 0, 1, b"").frame(Frame::Ping, 0, 0, b"pingpong").bytes,
            settings().frame(Frame::Continuation, 0, 1, b"").bytes,
            settings().frame(Frame::PushPromise, 0, 1, b"\0\0\0\x02").bytes,
            settings().frame(Frame::WindowUpdate, 0, 0, &[0x7f, 0xff, 0xff, 0xff]).bytes,
        ] {
            let mut exchange = Http2Exchange::new("localhost:1", &[], true);
            exchange.handle_request(3, &outgoing(b"ask"));
            sent(&mut exchange);
            let error = exchange.handle_bytes(&bytes).unwrap_err();
            assert_eq!((error.kind, exchange.is_over()), (FailureKind::Malformed, true), "{error} {bytes:?}");
        }
    }
}
