//! Frames as they come (RFC 9113 §6), and what they change. One frame at a time; of a DATA frame as
//! much as is there.

use bytes::Bytes;

use crate::connection::http2::event::ConnectionEvent;
use crate::connection::http2::flow::{ReceiveWindow, SendWindow};
use crate::connection::http2::head::CallDeadline;
use crate::connection::http2::incoming::{CallBody, CallFault, MessageBody, StreamContent};
use crate::connection::http2::stream::{ClosedStream, Http2Stream, StreamState};
use crate::connection::http2::{ConnectionPhase, DRAIN_PING, DrainState, Http2Connection, Http2Limit};
use crate::connection::input::InputBuffer;
use crate::limits::{BODY_STEP_SIZE, CONTINUATIONS_MAX, DATA_SIZE_LEAST, FRAME_SIZE_MAX, READ_SIZE};
use crate::time::Instant;
use crate::wire::grpc::Gatherer;
use crate::wire::http1::HttpRefusal;
use crate::wire::http2::StreamId;
use crate::wire::http2::error::{ErrorCode, PeerFault};
use crate::wire::http2::frame::{self, FrameHead, FrameKind};
use crate::wire::http2::settings;
use crate::wire::message::{BodyBuffer, Method};

/// A field block over several frames (§4.3).
pub(super) struct IncomingBlock {
    stream: StreamId,
    is_last: bool,
    bytes: Vec<u8>,
    continuation_count: u32,
}

/// The DATA frame in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct IncomingData {
    stream: StreamId,
    /// Bytes of content that are still to come.
    left: usize,
    padding: usize,
    is_padding_known: bool,
    is_last: bool,
}

/// What became of the bytes that there are.
enum ReceiveStep<T> {
    /// Something came of them.
    Event(ConnectionEvent<T>),
    /// A part was taken; there may be more.
    Taken,
    /// More are needed.
    Wait,
}

/// Bytes of content from which on it is read past the connection's own buffer.
const DIRECT_SIZE_MIN: usize = 2 * READ_SIZE;
/// Bytes that are asked for at once then: memory grows as they come.
const DIRECT_SIZE_MAX: usize = 256 * 1024;

/// A fault of a call, as it is told; what more comes of the call is thrown away.
pub(super) fn fault_event<B, T>(stream: &mut Http2Stream<B, T>, fault: CallFault) -> ConnectionEvent<T> {
    if stream.state == StreamState::Open {
        stream.state = StreamState::Answered;
    }
    (stream.incoming, stream.due, stream.deadline, stream.is_starved) = (None, None, None, false);
    stream.is_working = true;
    ConnectionEvent::Fault { stream: stream.id, fault }
}

impl IncomingData {
    /// The stream that it is of, and how many of its bytes are read past the connection's own buffer at once.
    pub(super) fn space(self) -> (StreamId, usize) {
        (self.stream, self.left.min(DIRECT_SIZE_MAX))
    }
}

impl<B: BodyBuffer, T: Copy> Http2Connection<B, T> {
    /// The next thing for the caller to do. To be called after input until there is none.
    pub fn poll_event(&mut self, now: Instant) -> Option<ConnectionEvent<T>> {
        let mut input = std::mem::take(&mut self.input);
        let event = self.poll_frames(&mut input, now);
        if self.phase != ConnectionPhase::Failed {
            self.input = input;
        }
        if event.is_none() {
            self.note_rest(now);
        }
        event
    }

    fn poll_frames(&mut self, input: &mut InputBuffer, now: Instant) -> Option<ConnectionEvent<T>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            if self.phase == ConnectionPhase::Failed || self.is_blocked() {
                return None;
            }
            match self.step(input, now) {
                Ok(ReceiveStep::Event(event)) => return Some(event),
                Ok(ReceiveStep::Taken) => {}
                Ok(ReceiveStep::Wait) => return None,
                Err(fault) => self.fail(&fault),
            }
        }
    }

    fn step(&mut self, input: &mut InputBuffer, now: Instant) -> Result<ReceiveStep<T>, PeerFault> {
        if let Some(frame) = self.data {
            return self.step_data(frame, input, now);
        }
        if self.skip > 0 {
            let count = self.skip.min(input.pending().len());
            input.consume(count);
            self.skip -= count;
            self.timers.frame = if self.skip == 0 { None } else { self.timers.frame };
            return Ok(if count > 0 { ReceiveStep::Taken } else { ReceiveStep::Wait });
        }
        let Some(head) = FrameHead::decode(input.pending()) else { return Ok(ReceiveStep::Wait) };
        self.check_head(&head)?;
        match head.kind {
            FrameKind::Data => {
                input.consume(frame::HEAD_SIZE);
                self.timers.frame = None;
                self.handle_data_head(&head, now)?;
                return Ok(ReceiveStep::Taken);
            }
            FrameKind::Unknown(_) | FrameKind::GoAway | FrameKind::Priority => {
                input.consume(frame::HEAD_SIZE);
                self.skip = head.size;
                self.has_peer_left |= head.kind == FrameKind::GoAway;
                // §6.3: a priority is ignored, but for its size.
                if let Err(fault) = head.check(FRAME_SIZE_MAX as usize) {
                    self.fault_stream(head.stream, fault.code, now)?;
                }
                self.budgets.handle_control_frame(now)?;
                return Ok(ReceiveStep::Taken);
            }
            _ => {}
        }
        let Some(payload) = input.pending().get(frame::HEAD_SIZE..frame::HEAD_SIZE + head.size) else {
            return Ok(ReceiveStep::Wait);
        };
        self.timers.frame = None;
        let event = self.handle_frame(&head, payload, now);
        input.consume(frame::HEAD_SIZE + head.size);
        Ok(event?.map_or(ReceiveStep::Taken, ReceiveStep::Event))
    }

    /// What a frame's head alone can be wrong in, before its payload is waited for.
    fn check_head(&mut self, head: &FrameHead) -> Result<(), PeerFault> {
        if self.phase == ConnectionPhase::Preface && (head.kind != FrameKind::Settings || head.has(frame::ACK)) {
            return Err(PeerFault::of_connection(ErrorCode::ProtocolError, "the first frame is not SETTINGS"));
        }
        // §6.10: nothing comes between the frames of a block.
        let is_within_block = self
            .block
            .as_ref()
            .is_some_and(|block| head.kind == FrameKind::Continuation && head.stream == block.stream);
        if self.block.is_some() != is_within_block || head.kind == FrameKind::Continuation && !is_within_block {
            return Err(PeerFault::of_connection(
                ErrorCode::ProtocolError,
                "a field block is cut, or continues nothing",
            ));
        }
        match head.check(FRAME_SIZE_MAX as usize) {
            Err(fault) if !fault.is_of_connection && self.is_idle(head.stream) => {
                // RST_STREAM may not be sent for a stream that is idle (§6.4).
                return Err(PeerFault::of_connection(fault.code, fault.text));
            }
            Err(fault) if fault.is_of_connection => return Err(fault),
            _ => {}
        }
        let block_size = match head.kind {
            FrameKind::Headers | FrameKind::Settings => head.size,
            FrameKind::Continuation => self.block.as_ref().map_or(0, |block| block.bytes.len()) + head.size,
            _ => 0,
        };
        if block_size > self.settings.head_size_max {
            return Err(self.budgets.exceed(Http2Limit::FieldBlock));
        }
        Ok(())
    }

    fn handle_frame(
        &mut self,
        head: &FrameHead,
        payload: &[u8],
        now: Instant,
    ) -> Result<Option<ConnectionEvent<T>>, PeerFault> {
        match head.kind {
            FrameKind::Headers => return self.handle_headers(head, payload, now),
            FrameKind::Continuation => return self.handle_continuation(head, payload, now),
            FrameKind::RstStream => self.handle_reset(head.stream, payload, now)?,
            FrameKind::Settings => self.handle_settings(head, payload, now)?,
            FrameKind::Ping => self.handle_ping(head, payload, now)?,
            FrameKind::WindowUpdate => return self.handle_window_update(head.stream, payload, now),
            FrameKind::Data
            | FrameKind::GoAway
            | FrameKind::Priority
            | FrameKind::PushPromise
            | FrameKind::Unknown(_) => {}
        }
        Ok(None)
    }

    // §6.2.
    fn handle_headers(
        &mut self,
        head: &FrameHead,
        payload: &[u8],
        now: Instant,
    ) -> Result<Option<ConnectionEvent<T>>, PeerFault> {
        let block = head.headers_block(payload)?;
        let is_last = head.has(frame::END_STREAM);
        if head.has(frame::END_HEADERS) {
            return self.handle_block(head.stream, is_last, block, now);
        }
        self.timers.block = Some(now + self.settings.head_timeout);
        self.block = Some(IncomingBlock { stream: head.stream, is_last, bytes: block.to_vec(), continuation_count: 0 });
        Ok(None)
    }

    // §6.10.
    fn handle_continuation(
        &mut self,
        head: &FrameHead,
        payload: &[u8],
        now: Instant,
    ) -> Result<Option<ConnectionEvent<T>>, PeerFault> {
        let Some(mut block) = self.block.take() else { return Ok(None) };
        block.bytes.extend_from_slice(payload);
        block.continuation_count += 1;
        if block.continuation_count > CONTINUATIONS_MAX {
            return Err(self.budgets.exceed(Http2Limit::Continuations));
        }
        if !head.has(frame::END_HEADERS) {
            self.block = Some(block);
            return Ok(None);
        }
        self.timers.block = None;
        self.handle_block(block.stream, block.is_last, &block.bytes, now)
    }

    /// A whole field block. It is decoded whatever becomes of it, since the next ones build on it
    /// (§4.3).
    fn handle_block(
        &mut self,
        id: StreamId,
        is_last: bool,
        block: &[u8],
        now: Instant,
    ) -> Result<Option<ConnectionEvent<T>>, PeerFault> {
        let (head, list_size_max) = (&mut self.head, self.settings.head_size_max);
        head.clear();
        self.decoder
            .decode(block, |field| head.handle_field(field, list_size_max))
            .map_err(|error| PeerFault::of_connection(ErrorCode::CompressionError, error.to_string()))?;
        if self.head.list_size() > list_size_max {
            return Err(self.budgets.exceed(Http2Limit::FieldList));
        }
        match self.streams.get(id).map(|stream| stream.state) {
            Some(StreamState::Open | StreamState::Answered) => self.handle_trailers(id, is_last, now),
            // §5.1, half-closed (remote).
            Some(StreamState::HalfClosed) => self.fault_stream(id, ErrorCode::StreamClosed, now),
            None if self.is_idle(id) => self.handle_request(id, is_last, now),
            Some(StreamState::Reset) | None => match self.streams.closed(id) {
                Some(ClosedStream::ByUs) => Ok(None),
                Some(ClosedStream::ByPeer) => Err(closed_fault()),
                // §5.1.1.
                None => {
                    Err(PeerFault::of_connection(ErrorCode::ProtocolError, "a stream's number is below an earlier one"))
                }
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
        if !is_last || self.head.check_trailers().is_err() {
            return self.fault_stream(id, ErrorCode::ProtocolError, now);
        }
        self.handle_end_stream(id, now)
    }

    /// A new stream.
    fn handle_request(
        &mut self,
        id: StreamId,
        is_last: bool,
        now: Instant,
    ) -> Result<Option<ConnectionEvent<T>>, PeerFault> {
        if !id.is_of_client() {
            return Err(PeerFault::of_connection(ErrorCode::ProtocolError, "a client's streams have odd numbers"));
        }
        // §6.8: what comes after the last one that was promised is as if it were not.
        if self.drain == DrainState::Final {
            self.streams.remember(id, ClosedStream::ByUs);
            self.last = id;
            return Ok(None);
        }
        self.last = id;
        // §5.1.2. Before the client knows our settings it cannot keep to them.
        if self.streams.len() >= usize::try_from(self.settings.streams_max).unwrap_or(usize::MAX) {
            self.reset(id, ErrorCode::RefusedStream);
            if self.are_settings_acknowledged {
                self.budgets.handle_server_reset(now)?;
            }
            return Ok(None);
        }
        // §8.1.1: a length of content where there is none.
        let is_short = is_last && self.head.content_length().is_some_and(|length| length > 0);
        if is_short || self.head.check_request().is_err() {
            return self.fault_stream(id, ErrorCode::ProtocolError, now);
        }
        let receive = ReceiveWindow::new(self.settings.stream_window_size);
        let stream = self.streams.open(id, receive, SendWindow::new(self.peer.initial_window_size));
        stream.is_head_only = self.head.method() == Method::Head;
        stream.content_length = self.head.content_length();
        if let Some(refusal) = self.head.refusal() {
            return self.refuse(id, is_last, refusal, now);
        }
        if self.head.is_grpc() {
            return Ok(self.begin_call(id, is_last, now));
        }
        self.begin_message(id, is_last, now);
        if is_last { self.handle_end_stream(id, now) } else { Ok(None) }
    }

    fn begin_call(&mut self, id: StreamId, is_last: bool, now: Instant) -> Option<ConnectionEvent<T>> {
        let (deadline, is_post) = (self.head.deadline(now), self.head.method() == Method::Post);
        let gatherer = Gatherer::new(self.settings.message_size_max, self.settings.aligned_field);
        let reservation = self.reservation();
        let stream = self.streams.get_mut(id)?;
        stream.path.extend_from_slice(self.head.path());
        stream.wants_timing = self.head.wants_timing();
        stream.wants_status = self.head.wants_status();
        stream.due = Some(now + self.settings.body_timeout);
        stream.deadline = if let CallDeadline::At(at) = deadline { Some(at) } else { None };
        stream.incoming = Some(StreamContent::Call(CallBody::new(gatherer, reservation)));
        if is_last {
            (stream.state, stream.due) = (StreamState::HalfClosed, None);
        }
        Some(ConnectionEvent::Call { stream: id, is_post, deadline })
    }

    fn begin_message(&mut self, id: StreamId, is_last: bool, now: Instant) {
        let size_max = self.settings.body_size_max;
        let size = self.head.content_length();
        if let Some(size) = size.filter(|size| usize::try_from(*size).is_ok_and(|size| size > size_max)) {
            return self.refuse_body(id, size, now);
        }
        let reservation = self.reservation();
        let known = size.and_then(|size| usize::try_from(size).ok()).unwrap_or(0);
        if let Err(shortage) = reservation.check(known) {
            return self.refuse_for_memory(id, shortage, now);
        }
        let number = |value: &[u8]| str::from_utf8(value).ok()?.parse().ok();
        let aligned_after = self.settings.aligned_after;
        let aligned_at = aligned_after.and_then(|name| self.head.field(name)).and_then(number).unwrap_or(0);
        let path = Bytes::copy_from_slice(self.head.path());
        let (method, expects_continue) = (self.head.method(), self.head.expects_continue());
        let body = MessageBody::new(method, path, self.head.take_fields(), aligned_at, known);
        let Some(stream) = self.streams.get_mut(id) else { return };
        stream.due = Some(now + self.settings.body_timeout);
        stream.incoming = Some(StreamContent::Message(body.with_memory(reservation)));
        if expects_continue && !is_last {
            self.send_continue(id, now);
        }
    }

    /// Answers a request that is not read.
    pub(super) fn refuse(
        &mut self,
        id: StreamId,
        is_last: bool,
        refusal: HttpRefusal,
        now: Instant,
    ) -> Result<Option<ConnectionEvent<T>>, PeerFault> {
        if let Some(stream) = self.streams.get_mut(id) {
            stream.state = if is_last { StreamState::HalfClosed } else { StreamState::Answered };
            (stream.incoming, stream.due, stream.is_starved) = (None, None, false);
            self.send_reply(id, refusal.into_reply(), now);
        }
        Ok(None)
    }

    fn refuse_body(&mut self, id: StreamId, size: u64, now: Instant) {
        let refusal = HttpRefusal::body_size(size, self.settings.body_size_max);
        let _ = self.refuse(id, false, refusal, now);
    }

    // §6.1: all of a frame counts for the windows, its padding too.
    fn handle_data_head(&mut self, head: &FrameHead, now: Instant) -> Result<(), PeerFault> {
        let (id, is_last) = (head.stream, head.has(frame::END_STREAM));
        if self.is_idle(id) {
            return Err(PeerFault::of_connection(ErrorCode::ProtocolError, "DATA on a stream that is idle"));
        }
        if !self.receive.handle_frame(head.size) {
            return Err(PeerFault::of_connection(
                ErrorCode::FlowControlError,
                "more DATA than the connection's window",
            ));
        }
        if head.size < DATA_SIZE_LEAST && !is_last {
            self.budgets.handle_control_frame(now)?;
        }
        self.budgets.handle_content(head.size);
        match self.streams.get(id).map(|stream| stream.state) {
            Some(StreamState::Open | StreamState::Answered) => {
                let has_room = self.streams.get_mut(id).is_some_and(|stream| stream.receive.handle_frame(head.size));
                if !has_room {
                    self.fault_stream(id, ErrorCode::FlowControlError, now)?;
                }
            }
            Some(StreamState::HalfClosed) => drop(self.fault_stream(id, ErrorCode::StreamClosed, now)?),
            // Looked for last: those that ended are searched one by one, and content is for one that is open.
            Some(StreamState::Reset) | None if self.streams.closed(id) == Some(ClosedStream::ByUs) => {}
            Some(StreamState::Reset) | None => return Err(closed_fault()),
        }
        let padding = head.padding_field_size();
        self.data = Some(IncomingData {
            stream: id,
            left: head.size - padding,
            padding: 0,
            is_padding_known: padding == 0,
            is_last,
        });
        Ok(())
    }

    fn step_data(
        &mut self,
        mut frame: IncomingData,
        input: &mut InputBuffer,
        now: Instant,
    ) -> Result<ReceiveStep<T>, PeerFault> {
        if !frame.is_padding_known {
            let Some(size) = input.pending().first().map(|size| usize::from(*size)) else {
                return Ok(ReceiveStep::Wait);
            };
            input.consume(1);
            frame.left = frame.left.checked_sub(size).ok_or_else(frame::padding_fault)?;
            (frame.padding, frame.is_padding_known) = (size, true);
            self.data = Some(frame);
            self.give_back(frame.stream, 1 + size, 1 + size);
        }
        if frame.left > 0 {
            let pending = input.pending();
            let bytes = pending.get(..frame.left).unwrap_or(pending);
            if bytes.is_empty() {
                return Ok(ReceiveStep::Wait);
            }
            let count = bytes.len();
            self.data = Some(IncomingData { left: frame.left - count, ..frame });
            let event = self.handle_content(frame.stream, bytes, now);
            input.consume(count);
            return Ok(event?.map_or(ReceiveStep::Taken, ReceiveStep::Event));
        }
        if frame.padding > 0 {
            let count = frame.padding.min(input.pending().len());
            input.consume(count);
            self.data = Some(IncomingData { padding: frame.padding - count, ..frame });
            return Ok(if count > 0 { ReceiveStep::Taken } else { ReceiveStep::Wait });
        }
        self.data = None;
        self.timers.frame = None;
        let event = if frame.is_last { self.handle_end_stream(frame.stream, now)? } else { None };
        self.update_windows(frame.stream);
        Ok(event.map_or(ReceiveStep::Taken, ReceiveStep::Event))
    }

    /// Content of a stream.
    fn handle_content(
        &mut self,
        id: StreamId,
        bytes: &[u8],
        now: Instant,
    ) -> Result<Option<ConnectionEvent<T>>, PeerFault> {
        let Some(stream) = self.streams.get_mut(id).filter(|stream| stream.state == StreamState::Open) else {
            self.give_back(id, bytes.len(), bytes.len());
            return Ok(None);
        };
        let outcome = match &mut stream.incoming {
            Some(StreamContent::Call(call)) => call.handle_data(bytes),
            Some(StreamContent::Message(message)) => {
                message.handle_data(bytes).map(|()| (bytes.len(), false)).map_err(CallFault::Memory)
            }
            None => Ok((bytes.len(), false)),
        };
        self.note_content(id, bytes.len(), outcome, now)
    }

    /// What came of content: where it is too much, or cannot be right, the stream ends.
    fn note_content(
        &mut self,
        id: StreamId,
        size: usize,
        outcome: Result<(usize, bool), CallFault>,
        now: Instant,
    ) -> Result<Option<ConnectionEvent<T>>, PeerFault> {
        let body_timeout = self.settings.body_timeout;
        self.give_back(id, size, outcome.map_or(size, |(placed, _)| placed));
        let Some(stream) = self.streams.get_mut(id) else { return Ok(None) };
        stream.content_size += u64::try_from(size).unwrap_or(u64::MAX);
        stream.moved = stream.moved.saturating_add(size);
        if stream.moved >= BODY_STEP_SIZE {
            (stream.moved, stream.due) = (0, Some(now + body_timeout));
        }
        // §8.1.1.
        if stream.content_length.is_some_and(|length| stream.content_size > length) {
            return self.fault_stream(id, ErrorCode::ProtocolError, now);
        }
        let is_paced = match &stream.incoming {
            Some(StreamContent::Call(call)) => call.is_paced(),
            _ => true,
        };
        stream.due = if is_paced { stream.due.or(Some(now + body_timeout)) } else { None };
        let size_max = u64::try_from(self.settings.body_size_max).unwrap_or(u64::MAX);
        if stream.content_size > size_max && matches!(stream.incoming, Some(StreamContent::Message(_))) {
            let size = stream.content_size;
            self.refuse_body(id, size, now);
            return Ok(None);
        }
        Ok(match outcome {
            Ok((_, true)) => Some(ConnectionEvent::Next(id)),
            Ok((_, false)) => None,
            Err(fault) => self.handle_body_fault(id, fault, now),
        })
    }

    /// Whether the DATA frame in progress has so much content to come that it is read past the
    /// connection's own buffer.
    pub(super) fn is_body_large(&self) -> bool {
        let Some(frame) = self.data.filter(|frame| frame.is_padding_known && frame.left >= DIRECT_SIZE_MIN) else {
            return false;
        };
        let stream = self.streams.get(frame.stream).filter(|stream| stream.state == StreamState::Open);
        match stream.and_then(|stream| stream.incoming.as_ref()) {
            Some(StreamContent::Call(call)) => call.has_space(),
            Some(StreamContent::Message(_)) => true,
            None => false,
        }
    }

    /// Whether the content of an open stream is coming in, whose own timer looks at it.
    pub(super) fn is_body_open(&self) -> bool {
        let Some(frame) = self.data.filter(|frame| frame.is_padding_known && frame.left > 0) else { return false };
        self.streams.get(frame.stream).is_some_and(|stream| stream.state == StreamState::Open && stream.due.is_some())
    }

    /// Where the content of the DATA frame in progress goes.
    pub(super) fn body_space(&mut self) -> &mut [u8] {
        let Some(frame) = self.data else { return &mut [] };
        let (id, size) = frame.space();
        match self.streams.get_mut(id).and_then(|stream| stream.incoming.as_mut()) {
            Some(StreamContent::Call(call)) => call.space(size),
            Some(StreamContent::Message(message)) => message.space(size),
            None => &mut [],
        }
    }

    /// `count` bytes were written to the front of `body_space`.
    pub(super) fn handle_body_space(&mut self, count: usize, now: Instant) {
        let Some(frame) = &mut self.data else { return };
        frame.left = frame.left.saturating_sub(count);
        let id = frame.stream;
        let outcome = match self.streams.get_mut(id).and_then(|stream| stream.incoming.as_mut()) {
            Some(StreamContent::Call(call)) => call.handle_space(count),
            Some(StreamContent::Message(message)) => {
                message.handle_space(count).map(|()| (count, false)).map_err(CallFault::Memory)
            }
            None => Ok((count, false)),
        };
        match self.note_content(id, count, outcome, now) {
            Ok(event) => self.events.extend(event),
            Err(fault) => self.fail(&fault),
        }
    }

    /// The request of a stream is whole.
    fn handle_end_stream(&mut self, id: StreamId, now: Instant) -> Result<Option<ConnectionEvent<T>>, PeerFault> {
        let Some(stream) = self.streams.get_mut(id) else { return Ok(None) };
        if stream.state == StreamState::Answered {
            stream.state = StreamState::HalfClosed;
            if !stream.is_working && !stream.outgoing.is_pending() {
                self.streams.close(id, ClosedStream::ByPeer);
            }
            return Ok(None);
        }
        // §8.1.1.
        if stream.content_length.is_some_and(|length| stream.content_size != length) {
            return self.fault_stream(id, ErrorCode::ProtocolError, now);
        }
        (stream.state, stream.due) = (StreamState::HalfClosed, None);
        if let Some(StreamContent::Call(_)) = stream.incoming {
            return Ok(self.end_call_body(id));
        }
        let Some(StreamContent::Message(mut body)) = stream.incoming.take() else { return Ok(None) };
        (stream.is_working, stream.handed) = (true, body.take_memory());
        Ok(Some(ConnectionEvent::Message { stream: id, message: body.into_message() }))
    }

    /// The request of a call is whole.
    pub(super) fn end_call_body(&mut self, id: StreamId) -> Option<ConnectionEvent<T>> {
        let stream = self.streams.get_mut(id)?;
        let Some(StreamContent::Call(call)) = &mut stream.incoming else { return None };
        if call.is_each() {
            return Some(ConnectionEvent::Next(id));
        }
        let only = call.take_only();
        stream.handed = call.take_memory(None);
        let deadline = stream.deadline.take();
        (stream.incoming, stream.is_working) = (None, true);
        Some(match only {
            Ok((token, message)) => ConnectionEvent::Whole { stream: id, token, message, deadline },
            Err(fault) => fault_event(stream, fault),
        })
    }

    // §6.4.
    fn handle_reset(&mut self, id: StreamId, payload: &[u8], now: Instant) -> Result<(), PeerFault> {
        if self.is_idle(id) {
            return Err(PeerFault::of_connection(ErrorCode::ProtocolError, "RST_STREAM on a stream that is idle"));
        }
        let is_open = self.streams.get(id).is_some_and(|stream| stream.state != StreamState::Reset);
        if !is_open {
            // It crossed the end of the stream.
            return self.budgets.handle_control_frame(now);
        }
        self.counts.client_resets += 1;
        self.drop_stream(id, ClosedStream::ByPeer, ErrorCode::from_number(frame::number(payload)));
        self.budgets.handle_client_reset(now)
    }

    // §6.5.
    fn handle_settings(&mut self, head: &FrameHead, payload: &[u8], now: Instant) -> Result<(), PeerFault> {
        self.budgets.handle_control_frame(now)?;
        if head.has(frame::ACK) {
            self.are_settings_acknowledged = true;
            return Ok(());
        }
        self.phase = ConnectionPhase::Serving;
        let before = self.peer;
        self.peer.apply(payload)?;
        self.responses.set_table_size_max(usize::try_from(self.peer.header_table_size).unwrap_or(usize::MAX));
        let change = i64::from(self.peer.initial_window_size) - i64::from(before.initial_window_size);
        // §6.9.2: for all streams that are open, and it may take them below zero.
        if change != 0 && !self.streams.iter_mut().all(|stream| stream.send.grow(change)) {
            let text = "SETTINGS_INITIAL_WINDOW_SIZE makes a window too large";
            return Err(PeerFault::of_connection(ErrorCode::FlowControlError, text));
        }
        // In its place among all frames: what we send behind it keeps to the new settings.
        self.flush_urgent();
        self.output.write(settings::encode_acknowledgement);
        self.queue_all(now);
        Ok(())
    }

    // §6.7.
    fn handle_ping(&mut self, head: &FrameHead, payload: &[u8], now: Instant) -> Result<(), PeerFault> {
        self.budgets.handle_control_frame(now)?;
        if !head.has(frame::ACK) {
            frame::encode(FrameKind::Ping, frame::ACK, StreamId::CONNECTION, payload, &mut self.urgent);
        } else if payload == DRAIN_PING && matches!(self.drain, DrainState::Announced(_)) {
            self.end_drain();
        }
        Ok(())
    }

    // §6.9.
    fn handle_window_update(
        &mut self,
        id: StreamId,
        payload: &[u8],
        now: Instant,
    ) -> Result<Option<ConnectionEvent<T>>, PeerFault> {
        self.budgets.handle_control_frame(now)?;
        let increment = frame::window_increment(payload);
        if id == StreamId::CONNECTION {
            if increment == 0 {
                return Err(PeerFault::of_connection(ErrorCode::ProtocolError, "WINDOW_UPDATE of nothing"));
            }
            if !self.send.grow(i64::from(increment)) {
                return Err(PeerFault::of_connection(
                    ErrorCode::FlowControlError,
                    "the connection's window is too large",
                ));
            }
            return Ok(None);
        }
        if self.is_idle(id) {
            return Err(PeerFault::of_connection(ErrorCode::ProtocolError, "WINDOW_UPDATE on a stream that is idle"));
        }
        let Some(stream) = self.streams.get_mut(id).filter(|stream| stream.state != StreamState::Reset) else {
            return Ok(None);
        };
        if increment == 0 {
            return self.fault_stream(id, ErrorCode::ProtocolError, now);
        }
        if !stream.send.grow(i64::from(increment)) {
            return self.fault_stream(id, ErrorCode::FlowControlError, now);
        }
        self.queue(id, now);
        Ok(None)
    }

    /// Ends a stream for a fault of the peer (§5.4.2).
    fn fault_stream(
        &mut self,
        id: StreamId,
        code: ErrorCode,
        now: Instant,
    ) -> Result<Option<ConnectionEvent<T>>, PeerFault> {
        self.reset(id, code);
        self.budgets.handle_server_reset(now).map(|()| None)
    }

    /// Whether a stream was never used (§5.1).
    fn is_idle(&self, id: StreamId) -> bool {
        id > self.last || !id.is_of_client()
    }

    /// Bytes have found their place, or none: the connection's room comes back in any case, that of the
    /// stream only for the former.
    fn give_back(&mut self, id: StreamId, size: usize, placed: usize) {
        self.receive.give_back(size);
        if let Some(stream) = self.streams.get_mut(id) {
            stream.receive.give_back(placed);
        }
    }

    /// Tells the client of the room that came back: between its frames, so that how they were cut on
    /// their way changes nothing.
    pub(super) fn update_windows(&mut self, id: StreamId) {
        if let Some(increment) = self.receive.poll_update() {
            frame::encode_window_update(StreamId::CONNECTION, increment, &mut self.urgent);
        }
        let Some(stream) = self.streams.get_mut(id).filter(|stream| stream.state == StreamState::Open) else { return };
        if stream.has_memory_for_update()
            && let Some(increment) = stream.receive.poll_update()
        {
            frame::encode_window_update(id, increment, &mut self.urgent);
        }
        self.has_starved |= stream.is_starved;
    }
}

fn closed_fault() -> PeerFault {
    PeerFault::of_connection(ErrorCode::StreamClosed, "a frame came on a stream that was closed")
}
