//! Frames as they arrive (RFC 9113 §6): one at a time, checked and handed to the code for their type. A DATA frame is
//! read as far as it is here, all others once they are complete.

use crate::http2::event::ConnectionEvent;
use crate::http2::lifecycle::ConnectionPhase;
use crate::http2::stream::StreamState;
use crate::http2::{Http2Connection, Http2Limit};
use crate::input::InputBuffer;
use base::limits::FRAME_SIZE_MAX;
use base::time::Instant;
use wire::http2::StreamId;
use wire::http2::error::{ErrorCode, PeerFault};
use wire::http2::frame::{self, FrameHead, FrameKind};
use wire::message::BodyBuffer;

/// The outcome of a step over the pending bytes.
pub(super) enum ReceiveStep<T> {
    /// Consumed some, with an event for the caller.
    Event(ConnectionEvent<T>),
    /// Consumed some; there may be more.
    Taken,
    /// Nothing: more bytes are needed.
    Wait,
}

impl<B: BodyBuffer, T> Http2Connection<B, T> {
    /// The next event for the caller. Must be called after input until it returns `None`.
    pub fn poll_event(&mut self, now: Instant) -> Option<ConnectionEvent<T>> {
        // Taken out, so that a payload can be borrowed from it while the connection changes.
        let mut input = std::mem::take(&mut self.reader.input);
        let event = self.poll_frames(&mut input, now);
        if !self.lifecycle.has_failed() {
            self.reader.input = input;
        }
        if event.is_none() {
            self.handle_all_read(now);
        }
        self.invariants();
        event
    }

    fn poll_frames(&mut self, input: &mut InputBuffer, now: Instant) -> Option<ConnectionEvent<T>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            if self.lifecycle.has_failed() || self.sender.is_blocked() {
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
        if let Some(frame) = self.reader.data {
            return self.step_data(frame, input, now);
        }
        if self.reader.skip > 0 {
            let count = self.reader.skip.min(input.pending().len());
            input.consume(count);
            self.reader.skip -= count;
            self.timers.frame = if self.reader.skip == 0 { None } else { self.timers.frame };
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
            FrameKind::Unknown(_) | FrameKind::GoAway => {
                input.consume(frame::HEAD_SIZE);
                self.reader.skip = head.size;
                if head.kind == FrameKind::GoAway {
                    self.lifecycle.handle_peer_goaway();
                }
                self.budgets.handle_control_frame(now)?;
                return Ok(ReceiveStep::Taken);
            }
            // §6.3: PRIORITY is ignored, but its size is checked.
            FrameKind::Priority if head.check(FRAME_SIZE_MAX as usize).is_err() => {
                input.consume(frame::HEAD_SIZE);
                self.reader.skip = head.size;
                self.fault_stream(head.stream, ErrorCode::FrameSizeError, now)?;
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

    /// Checks a frame's head before its payload is awaited: a frame that is refused costs no memory.
    fn check_head(&mut self, head: &FrameHead) -> Result<(), PeerFault> {
        if self.lifecycle.phase() == ConnectionPhase::Preface
            && (head.kind != FrameKind::Settings || head.has(frame::ACK))
        {
            return Err(PeerFault::of_connection(ErrorCode::ProtocolError, "the first frame is not SETTINGS"));
        }
        // §6.10: the frames of a field block follow each other without another frame between them.
        let is_within_block = self
            .reader
            .block
            .as_ref()
            .is_some_and(|block| head.kind == FrameKind::Continuation && head.stream == block.stream);
        if self.reader.block.is_some() != is_within_block || head.kind == FrameKind::Continuation && !is_within_block {
            return Err(PeerFault::of_connection(
                ErrorCode::ProtocolError,
                "a field block is interrupted, or CONTINUATION has no field block",
            ));
        }
        match head.check(FRAME_SIZE_MAX as usize) {
            Err(fault) if !fault.is_of_connection && self.streams.is_idle(head.stream) => {
                // RST_STREAM must not be sent for an idle stream (§6.4).
                return Err(PeerFault::of_connection(fault.code, fault.text));
            }
            Err(fault) if fault.is_of_connection => return Err(fault),
            _ => {}
        }
        let block_size = match head.kind {
            FrameKind::Headers | FrameKind::Settings => head.size,
            FrameKind::Continuation => self.reader.block.as_ref().map_or(0, |block| block.bytes.len()) + head.size,
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
            FrameKind::Priority => self.handle_priority(head, payload, now)?,
            FrameKind::Data | FrameKind::GoAway | FrameKind::PushPromise | FrameKind::Unknown(_) => {}
        }
        Ok(None)
    }

    /// PRIORITY: ignored, unless the stream is to depend on itself.
    fn handle_priority(&mut self, head: &FrameHead, payload: &[u8], now: Instant) -> Result<(), PeerFault> {
        if head.depends_on_itself(payload) {
            if self.streams.is_idle(head.stream) {
                let text = "PRIORITY makes an idle stream depend on itself";
                return Err(PeerFault::of_connection(ErrorCode::ProtocolError, text));
            }
            if self.streams.get(head.stream).is_some_and(|stream| stream.state != StreamState::Reset) {
                self.fault_stream(head.stream, ErrorCode::ProtocolError, now)?;
            }
        }
        self.budgets.handle_control_frame(now)
    }

    /// Resets a stream because of a fault of the peer (§5.4.2).
    pub(super) fn fault_stream(
        &mut self,
        id: StreamId,
        code: ErrorCode,
        now: Instant,
    ) -> Result<Option<ConnectionEvent<T>>, PeerFault> {
        self.reset(id, code);
        self.budgets.handle_server_reset(now).map(|()| None)
    }
}

/// A frame on a stream that both sides closed.
pub(super) fn closed_fault() -> PeerFault {
    PeerFault::of_connection(ErrorCode::StreamClosed, "a frame came on a closed stream")
}
