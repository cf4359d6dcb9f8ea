//! HEADERS and CONTINUATION (RFC 9113 §6.2, §6.10): a new stream with its call or message, or trailers.

use bytes::Bytes;

use crate::http2::event::{ConnectionEvent, RefusedMessage};
use crate::http2::flow::{ReceiveWindow, SendWindow};
use crate::http2::head::CallDeadline;
use crate::http2::incoming::{CallBody, MessageBody, StreamContent};
use crate::http2::reader::{HeadersFlags, IncomingBlock};
use crate::http2::receive::closed_fault;
use crate::http2::stream::{ClosedStream, StreamState};
use crate::http2::{Http2Connection, Http2Limit};
use crate::limits::CONTINUATIONS_MAX;
use base::time::Instant;
use wire::compression::ContentCoding;
use wire::grpc::Gatherer;
use wire::http1::HttpRefusal;
use wire::http2::StreamId;
use wire::http2::error::{ErrorCode, PeerFault};
use wire::http2::frame::{self, FrameHead};
use wire::message::{BodyBuffer, Method};

impl<B: BodyBuffer, T> Http2Connection<B, T> {
    // §6.2.
    pub(super) fn handle_headers(
        &mut self,
        head: &FrameHead,
        payload: &[u8],
        now: Instant,
    ) -> Result<Option<ConnectionEvent<T>>, PeerFault> {
        let block = head.headers_block(payload)?;
        let is_last = head.has(frame::END_STREAM);
        let flags = HeadersFlags { is_last, depends_on_itself: head.depends_on_itself(payload) };
        if head.has(frame::END_HEADERS) {
            return self.handle_block(head.stream, flags, block, now);
        }
        self.timers.block = Some(now + self.settings.head_timeout);
        self.reader.block =
            Some(IncomingBlock { stream: head.stream, flags, bytes: block.to_vec(), continuation_count: 0 });
        Ok(None)
    }

    // §6.10.
    pub(super) fn handle_continuation(
        &mut self,
        head: &FrameHead,
        payload: &[u8],
        now: Instant,
    ) -> Result<Option<ConnectionEvent<T>>, PeerFault> {
        let Some(mut block) = self.reader.block.take() else { return Ok(None) };
        block.bytes.extend_from_slice(payload);
        block.continuation_count += 1;
        if block.continuation_count > CONTINUATIONS_MAX {
            return Err(self.budgets.exceed(Http2Limit::Continuations));
        }
        if !head.has(frame::END_HEADERS) {
            self.reader.block = Some(block);
            return Ok(None);
        }
        self.timers.block = None;
        self.handle_block(block.stream, block.flags, &block.bytes, now)
    }

    /// A complete field block. It is decoded even if its stream is ignored, since it changes the dynamic table that later
    /// blocks refer to (§4.3).
    fn handle_block(
        &mut self,
        id: StreamId,
        flags: HeadersFlags,
        block: &[u8],
        now: Instant,
    ) -> Result<Option<ConnectionEvent<T>>, PeerFault> {
        let list_size_max = self.settings.head_size_max;
        self.heads.decode(block, list_size_max)?;
        if self.heads.space().list_size() > list_size_max {
            return Err(self.budgets.exceed(Http2Limit::FieldList));
        }
        match self.streams.get(id).map(|stream| stream.state) {
            Some(StreamState::Open | StreamState::Answered) if flags.depends_on_itself => {
                self.fault_stream(id, ErrorCode::ProtocolError, now)
            }
            Some(StreamState::Open | StreamState::Answered) => self.handle_trailers(id, flags.is_last, now),
            // §5.1, half-closed (remote).
            Some(StreamState::HalfClosed) => self.fault_stream(id, ErrorCode::StreamClosed, now),
            None if self.streams.is_idle(id) => self.handle_request(id, flags, now),
            Some(StreamState::Reset) | None => match self.streams.closed(id) {
                Some(ClosedStream::ByUs) => Ok(None),
                Some(ClosedStream::ByPeer) => Err(closed_fault()),
                // §5.1.1.
                None => Err(PeerFault::of_connection(
                    ErrorCode::ProtocolError,
                    "a stream's identifier is below an earlier one",
                )),
            },
        }
    }

    // §8.1: trailers end the stream and have no pseudo-header fields.
    fn handle_trailers(
        &mut self,
        id: StreamId,
        is_last: bool,
        now: Instant,
    ) -> Result<Option<ConnectionEvent<T>>, PeerFault> {
        if !is_last || self.heads.space().check_trailers().is_err() {
            return self.fault_stream(id, ErrorCode::ProtocolError, now);
        }
        self.handle_end_stream(id, now)
    }

    /// A new stream.
    fn handle_request(
        &mut self,
        id: StreamId,
        flags: HeadersFlags,
        now: Instant,
    ) -> Result<Option<ConnectionEvent<T>>, PeerFault> {
        let HeadersFlags { is_last, depends_on_itself } = flags;
        if !id.is_of_client() {
            return Err(PeerFault::of_connection(ErrorCode::ProtocolError, "a client's streams have odd identifiers"));
        }
        // §6.8: streams above the last one that GOAWAY named are ignored.
        self.streams.set_last(id);
        if self.lifecycle.is_drain_final() {
            self.streams.remember(id, ClosedStream::ByUs);
            return Ok(None);
        }
        // §5.1.2. Before the client knows our settings it cannot keep to them, and is not charged for it.
        if self.streams.len() >= usize::try_from(self.settings.streams_max).unwrap_or(usize::MAX) {
            self.reset(id, ErrorCode::RefusedStream);
            if self.lifecycle.are_settings_acknowledged() {
                self.budgets.handle_server_reset(now)?;
            }
            return Ok(None);
        }
        // §8.1.1: Content-Length promises content, and the stream has ended.
        let is_short = is_last && self.heads.space().content_length().is_some_and(|length| length > 0);
        if depends_on_itself || is_short || self.heads.space().check_request().is_err() {
            return self.fault_stream(id, ErrorCode::ProtocolError, now);
        }
        let receive = ReceiveWindow::new(self.settings.stream_window_size);
        let stream = self.streams.open(id, receive, SendWindow::new(self.sender.peer.initial_window_size));
        stream.is_head_only = self.heads.space().method() == Method::Head;
        stream.content_length = self.heads.space().content_length();
        if let Some(refusal) = self.heads.space().refusal() {
            return self.refuse(id, is_last, refusal, now);
        }
        if self.heads.space().is_grpc() {
            return Ok(self.begin_call(id, is_last, now));
        }
        self.begin_message(id, is_last, now);
        if is_last { self.handle_end_stream(id, now) } else { Ok(None) }
    }

    /// Prepares the new stream for the messages of a call.
    fn begin_call(&mut self, id: StreamId, is_last: bool, now: Instant) -> Option<ConnectionEvent<T>> {
        self.keep_alive.handle_call();
        let (deadline, is_post) = (self.heads.space().deadline(now), self.heads.space().method() == Method::Post);
        let has_trace = self.settings.reads_trace_context && self.heads.space().has_trace_context();
        // They are among the fields, which are taken out next.
        let trace_context = if has_trace { self.heads.space().trace_context().map(Box::new) } else { None };
        let sequence_id = self.heads.space().sequence_id();
        let is_below = |beginning: &[u8]| self.heads.space().path().starts_with(beginning);
        let keeps_fields = self.settings.keeps_call_fields || self.settings.fields_kept_below.is_some_and(is_below);
        let fields = keeps_fields.then(|| Box::new(self.heads.space_mut().take_fields()));
        let message_coding = self.heads.space().message_coding();
        let gatherer = Gatherer::new(self.settings.message_size_max, self.settings.aligned_field)
            .with_compressed(matches!(message_coding, ContentCoding::Coded(_)));
        let reservation = self.reservation();
        let stream = self.streams.get_mut(id)?;
        stream.path.extend_from_slice(self.heads.space().path());
        stream.fields = fields;
        stream.asked = self.heads.space().asked();
        stream.wants_status = self.heads.space().wants_status();
        stream.trace_context = trace_context;
        stream.sequence_id = sequence_id;
        stream.message_coding = message_coding;
        stream.accepted_coding = self.heads.space().answer_coding();
        stream.due = Some(now + self.settings.body_timeout);
        stream.deadline = if let CallDeadline::At(at) = deadline { Some(at) } else { None };
        stream.incoming = Some(StreamContent::Call(CallBody::new(gatherer, reservation)));
        if is_last {
            stream.set_state(StreamState::HalfClosed);
            stream.due = None;
        }
        Some(ConnectionEvent::Call { stream: id, is_post, deadline })
    }

    /// Prepares the new stream for the body of a plain message, or refuses it for its size.
    fn begin_message(&mut self, id: StreamId, is_last: bool, now: Instant) {
        let size_max = self.settings.body_size_max;
        let size = self.heads.space().content_length();
        let too_large = size.filter(|size| usize::try_from(*size).is_ok_and(|size| size > size_max));
        let reservation = self.reservation();
        let known = size.and_then(|size| usize::try_from(size).ok()).unwrap_or(0);
        let has_memory = if too_large.is_none() { reservation.check(known) } else { Ok(()) };
        // A body that is refused gets no memory.
        let known = if too_large.is_none() && has_memory.is_ok() { known } else { 0 };
        let number = |value: &[u8]| str::from_utf8(value).ok()?.parse().ok();
        let aligned_after = self.settings.aligned_after;
        let aligned_at = aligned_after.and_then(|name| self.heads.space().field(name)).and_then(number).unwrap_or(0);
        let path = Bytes::copy_from_slice(self.heads.space().path());
        let (method, expects_continue) = (self.heads.space().method(), self.heads.space().expects_continue());
        let body = MessageBody::new(method, path, self.heads.space_mut().take_fields(), aligned_at, known);
        let Some(stream) = self.streams.get_mut(id) else { return };
        stream.due = Some(now + self.settings.body_timeout);
        stream.incoming = Some(StreamContent::Message(body.with_memory(reservation)));
        if let Some(size) = too_large {
            return self.refuse_body(id, size, now);
        }
        if let Err(shortage) = has_memory {
            return self.refuse_for_memory(id, shortage, now);
        }
        if expects_continue && !is_last {
            self.send_continue(id, now);
        }
    }

    /// Answers a request without reading its body.
    pub(super) fn refuse(
        &mut self,
        id: StreamId,
        is_last: bool,
        refusal: HttpRefusal,
        now: Instant,
    ) -> Result<Option<ConnectionEvent<T>>, PeerFault> {
        if let Some(stream) = self.streams.get_mut(id) {
            stream.set_state(if is_last { StreamState::HalfClosed } else { StreamState::Answered });
            stream.due = None;
            let incoming = stream.incoming.take();
            let refusal = if self.settings.follows_triton { refusal.as_tritons() } else { refusal };
            if let Some(StreamContent::Message(body)) = incoming {
                let (path, fields) = body.into_head();
                let refused = RefusedMessage { path, fields, refusal: refusal.clone() };
                self.events.push_back(ConnectionEvent::Refused(Box::new(refused)));
            }
            self.send_reply(id, refusal.into_reply(), now);
        }
        Ok(None)
    }

    /// Refuses a plain message whose body is too large.
    pub(super) fn refuse_body(&mut self, id: StreamId, size: u64, now: Instant) {
        let refusal = HttpRefusal::body_size(size, self.settings.body_size_max);
        let _ = self.refuse(id, false, refusal, now);
    }
}
