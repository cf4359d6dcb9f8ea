//! DATA (RFC 9113 §6.1): the content of calls and messages up to its end, counted against both windows, and the
//! WINDOW_UPDATEs that follow.

use crate::http2::Http2Connection;
use crate::http2::event::ConnectionEvent;
use crate::http2::incoming::{CallFault, PlacedContent, StreamContent};
use crate::http2::reader::IncomingData;
use crate::http2::receive::{ReceiveStep, closed_fault};
use crate::http2::stream::{ClosedStream, StreamState};
use crate::input::InputBuffer;
use base::limits::BODY_STEP_SIZE;
use base::time::Instant;
use wire::http2::StreamId;
use wire::http2::error::{ErrorCode, PeerFault};
use wire::http2::frame::{self, FrameHead};
use wire::message::BodyBuffer;

/// Bytes below which a DATA frame counts as a control frame, unless it ends its stream.
const DATA_SIZE_LEAST: usize = 256;

impl<B: BodyBuffer, T> Http2Connection<B, T> {
    // §6.1: the windows count the whole payload, padding included.
    pub(super) fn handle_data_head(&mut self, head: &FrameHead, now: Instant) -> Result<(), PeerFault> {
        let (id, is_last) = (head.stream, head.has(frame::END_STREAM));
        if self.streams.is_idle(id) {
            return Err(PeerFault::of_connection(ErrorCode::ProtocolError, "DATA on an idle stream"));
        }
        if !self.receive.window.handle_frame(head.size) {
            return Err(PeerFault::of_connection(
                ErrorCode::FlowControlError,
                "more DATA than the connection's window",
            ));
        }
        if !head.has(frame::PADDED) {
            self.count_data(head.size, is_last, now)?;
        }
        match self.streams.get(id).map(|stream| stream.state) {
            Some(StreamState::Open | StreamState::Answered) => {
                let has_room = self.streams.get_mut(id).is_some_and(|stream| stream.receive.handle_frame(head.size));
                if !has_room {
                    self.fault_stream(id, ErrorCode::FlowControlError, now)?;
                }
            }
            Some(StreamState::HalfClosed) => drop(self.fault_stream(id, ErrorCode::StreamClosed, now)?),
            // Searched last: closed streams are a list of up to 256, and most content is for an open stream.
            Some(StreamState::Reset) | None if self.streams.closed(id) == Some(ClosedStream::ByUs) => {}
            Some(StreamState::Reset) | None => return Err(closed_fault()),
        }
        let padding = head.padding_field_size();
        self.reader.data = Some(IncomingData {
            stream: id,
            left: head.size - padding,
            padding: 0,
            is_padding_known: padding == 0,
            is_last,
        });
        Ok(())
    }

    /// Counts a DATA frame with `content_size` bytes of content against the budget of frames that
    /// move nothing. Padding is not content: a frame of padding alone moves nothing, however large.
    fn count_data(&mut self, content_size: usize, is_last: bool, now: Instant) -> Result<(), PeerFault> {
        if content_size < DATA_SIZE_LEAST && !is_last {
            self.budgets.handle_control_frame(now)?;
        }
        self.budgets.handle_content(content_size);
        Ok(())
    }

    /// Reads on in a DATA frame: its padding size, its content, its padding.
    pub(super) fn step_data(
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
            self.reader.data = Some(frame);
            self.count_data(frame.left, frame.is_last, now)?;
            self.give_back(frame.stream, 1 + size, 1 + size);
        }
        if frame.left > 0 {
            let pending = input.pending();
            let bytes = pending.get(..frame.left).unwrap_or(pending);
            if bytes.is_empty() {
                return Ok(ReceiveStep::Wait);
            }
            let count = bytes.len();
            self.reader.data = Some(IncomingData { left: frame.left - count, ..frame });
            let event = self.handle_content(frame.stream, bytes, now);
            input.consume(count);
            return Ok(event?.map_or(ReceiveStep::Taken, ReceiveStep::Event));
        }
        if frame.padding > 0 {
            let count = frame.padding.min(input.pending().len());
            input.consume(count);
            self.reader.data = Some(IncomingData { padding: frame.padding - count, ..frame });
            return Ok(if count > 0 { ReceiveStep::Taken } else { ReceiveStep::Wait });
        }
        self.reader.data = None;
        self.timers.frame = None;
        let event = if frame.is_last { self.handle_end_stream(frame.stream, now)? } else { None };
        self.update_windows(frame.stream);
        Ok(event.map_or(ReceiveStep::Taken, ReceiveStep::Event))
    }

    /// Content that is in the input buffer.
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
                message.handle_data(bytes).map(|()| whole(bytes.len())).map_err(CallFault::Memory)
            }
            None => Ok(whole(bytes.len())),
        };
        self.note_content(id, bytes.len(), outcome, now)
    }

    /// Accounts for `size` bytes of content with the `outcome` of storing them, and ends a stream with too many.
    fn note_content(
        &mut self,
        id: StreamId,
        size: usize,
        outcome: Result<PlacedContent, CallFault>,
        now: Instant,
    ) -> Result<Option<ConnectionEvent<T>>, PeerFault> {
        let body_timeout = self.settings.body_timeout;
        self.give_back(id, size, outcome.map_or(size, |placed| placed.size));
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
            Ok(PlacedContent { has_next: true, .. }) => Some(ConnectionEvent::Next(id)),
            Ok(PlacedContent { has_next: false, .. }) => None,
            Err(fault) => self.handle_body_fault(id, fault, now),
        })
    }

    /// Returns true if enough content of the DATA frame in progress is to come that it is read
    /// directly into its body.
    pub(super) fn is_body_large(&self) -> bool {
        let Some(frame) = self.reader.data.filter(|frame| frame.is_large()) else {
            return false;
        };
        let stream = self.streams.get(frame.stream).filter(|stream| stream.state == StreamState::Open);
        match stream.and_then(|stream| stream.incoming.as_ref()) {
            Some(StreamContent::Call(call)) => call.has_space(),
            Some(StreamContent::Message(_)) => true,
            None => false,
        }
    }

    /// Returns true if the next byte is content of an open stream, so that the stream's timer
    /// covers it and not the frame's.
    pub(super) fn is_body_open(&self) -> bool {
        let Some(frame) = self.reader.data.filter(|frame| frame.is_within_content()) else { return false };
        self.streams.get(frame.stream).is_some_and(|stream| stream.state == StreamState::Open && stream.due.is_some())
    }

    /// Space for the content of the DATA frame in progress, in its body.
    pub(super) fn body_space(&mut self, size_max: usize) -> &mut [u8] {
        let Some(frame) = self.reader.data else { return &mut [] };
        let (id, size) = frame.space(size_max);
        match self.streams.get_mut(id).and_then(|stream| stream.incoming.as_mut()) {
            Some(StreamContent::Call(call)) => call.space(size),
            Some(StreamContent::Message(message)) => message.space(size),
            None => &mut [],
        }
    }

    /// `count` bytes were written to the front of `body_space`.
    pub(super) fn handle_body_space(&mut self, count: usize, now: Instant) {
        let Some(frame) = &mut self.reader.data else { return };
        debug_assert!(count <= frame.left, "{count} bytes were read of {}", frame.left);
        frame.left = frame.left.saturating_sub(count);
        let id = frame.stream;
        let stream = self.streams.get_mut(id).filter(|stream| stream.state == StreamState::Open);
        let outcome = match stream.and_then(|stream| stream.incoming.as_mut()) {
            Some(StreamContent::Call(call)) => call.handle_space(count),
            Some(StreamContent::Message(message)) => {
                message.handle_space(count).map(|()| whole(count)).map_err(CallFault::Memory)
            }
            // The stream ended between the space and the read.
            None => return self.give_back(id, count, count),
        };
        match self.note_content(id, count, outcome, now) {
            Ok(event) => self.events.extend(event),
            Err(fault) => self.fail(&fault),
        }
    }

    /// END_STREAM: the request is complete.
    pub(super) fn handle_end_stream(
        &mut self,
        id: StreamId,
        now: Instant,
    ) -> Result<Option<ConnectionEvent<T>>, PeerFault> {
        let Some(stream) = self.streams.get_mut(id) else { return Ok(None) };
        if stream.state == StreamState::Answered {
            stream.set_state(StreamState::HalfClosed);
            if !stream.is_working && !stream.outgoing.is_pending() {
                self.streams.close(id, ClosedStream::ByPeer);
            }
            return Ok(None);
        }
        // §8.1.1.
        if stream.content_length.is_some_and(|length| stream.content_size != length) {
            return self.fault_stream(id, ErrorCode::ProtocolError, now);
        }
        stream.set_state(StreamState::HalfClosed);
        stream.due = None;
        if let Some(StreamContent::Call(_)) = stream.incoming {
            return Ok(self.end_call_body(id));
        }
        let Some(StreamContent::Message(mut body)) = stream.incoming.take() else { return Ok(None) };
        (stream.is_working, stream.handed) = (true, body.take_memory());
        Ok(Some(ConnectionEvent::Message { stream: id, message: body.into_message() }))
    }

    /// The content of a call is complete.
    pub(super) fn end_call_body(&mut self, id: StreamId) -> Option<ConnectionEvent<T>> {
        let stream = self.streams.get_mut(id)?;
        let Some(StreamContent::Call(call)) = &mut stream.incoming else { return None };
        if call.is_each() {
            return Some(ConnectionEvent::Next(id));
        }
        let only = call.take_only();
        stream.handed = call.take_memory(None);
        stream.is_compressed = call.is_taken_compressed();
        let deadline = stream.deadline.take();
        (stream.incoming, stream.is_working) = (None, true);
        Some(match only {
            Ok((token, message)) => ConnectionEvent::Whole { stream: id, token, message, deadline },
            Err(fault) => stream.fail_call(fault),
        })
    }

    /// Returns room after `size` bytes were read, `placed` of which were stored or dropped. The connection's window gets
    /// all of them back, so that one stream with unread messages does not stop the others.
    fn give_back(&mut self, id: StreamId, size: usize, placed: usize) {
        self.receive.window.give_back(size);
        if let Some(stream) = self.streams.get_mut(id) {
            stream.receive.give_back(placed);
        }
    }

    /// Sends WINDOW_UPDATE for the room that is due. Called between frames only, so that the output
    /// does not depend on how the input was cut into reads.
    pub(super) fn update_windows(&mut self, id: StreamId) {
        if let Some(increment) = self.receive.window.poll_update() {
            self.sender.push_window_update(StreamId::CONNECTION, increment);
        }
        let Some(stream) = self.streams.get_mut(id).filter(|stream| stream.state == StreamState::Open) else { return };
        if stream.has_memory_for_update()
            && let Some(increment) = stream.receive.poll_update()
        {
            self.sender.push_window_update(id, increment);
        }
        self.receive.has_starved |= stream.is_starved;
    }
}

/// The outcome for content of which all bytes have found their place, and none is a message to take.
const fn whole(size: usize) -> PlacedContent {
    PlacedContent { size, has_next: false }
}
