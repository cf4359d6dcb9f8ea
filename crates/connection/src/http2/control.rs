//! Frames without content (RFC 9113 §6.4 to §6.9): RST_STREAM, SETTINGS, PING and WINDOW_UPDATE. Each costs the peer
//! some of its budget.

use crate::http2::event::ConnectionEvent;
use crate::http2::sender::FrameSender;
use crate::http2::stream::{ClosedStream, StreamState};
use crate::http2::{Http2Connection, Http2Limit};
use base::time::Instant;
use wire::http2::StreamId;
use wire::http2::error::{ErrorCode, PeerFault};
use wire::http2::frame::{self, FrameHead};
use wire::message::BodyBuffer;

impl<B: BodyBuffer, T> Http2Connection<B, T> {
    // §6.4.
    pub(super) fn handle_reset(&mut self, id: StreamId, payload: &[u8], now: Instant) -> Result<(), PeerFault> {
        if self.streams.is_idle(id) {
            return Err(PeerFault::of_connection(ErrorCode::ProtocolError, "RST_STREAM on an idle stream"));
        }
        let is_open = self.streams.get(id).is_some_and(|stream| stream.state != StreamState::Reset);
        if !is_open {
            // The stream ended while the frame was on its way.
            return self.budgets.handle_control_frame(now);
        }
        self.counts.client_resets += 1;
        self.drop_stream(id, ClosedStream::ByPeer, ErrorCode::from_number(frame::number(payload)));
        self.budgets.handle_client_reset(now)
    }

    // §6.5.
    pub(super) fn handle_settings(&mut self, head: &FrameHead, payload: &[u8], now: Instant) -> Result<(), PeerFault> {
        self.budgets.handle_control_frame(now)?;
        if head.has(frame::ACK) {
            self.lifecycle.handle_settings_acknowledgement();
            return Ok(());
        }
        self.lifecycle.handle_settings();
        let change = self.sender.apply_settings(payload)?;
        // §6.9.2: the change applies to all open streams, and may take their windows below zero.
        if change != 0 && !self.streams.iter_mut().all(|stream| stream.send.grow(change)) {
            let text = "SETTINGS_INITIAL_WINDOW_SIZE makes a window too large";
            return Err(PeerFault::of_connection(ErrorCode::FlowControlError, text));
        }
        self.sender.acknowledge_settings();
        self.queue_all(now);
        Ok(())
    }

    // §6.7.
    pub(super) fn handle_ping(&mut self, head: &FrameHead, payload: &[u8], now: Instant) -> Result<(), PeerFault> {
        self.budgets.handle_control_frame(now)?;
        if !head.has(frame::ACK) {
            if self.keep_alive.handle_ping(!self.streams.is_empty(), now) {
                return Err(self.budgets.exceed(Http2Limit::PingStrikes));
            }
            self.sender.push_pong(payload);
        } else if FrameSender::is_drain_ping(payload) && self.lifecycle.drain_timeout().is_some() {
            // A round trip after the first GOAWAY: streams opened before the client saw it have arrived.
            self.end_drain();
        }
        Ok(())
    }

    // §6.9.
    pub(super) fn handle_window_update(
        &mut self,
        id: StreamId,
        payload: &[u8],
        now: Instant,
    ) -> Result<Option<ConnectionEvent<T>>, PeerFault> {
        self.budgets.handle_control_frame(now)?;
        let increment = frame::window_increment(payload);
        if id == StreamId::CONNECTION {
            if increment == 0 {
                return Err(PeerFault::of_connection(ErrorCode::ProtocolError, "WINDOW_UPDATE with an increment of 0"));
            }
            if !self.sender.window.grow(i64::from(increment)) {
                return Err(PeerFault::of_connection(
                    ErrorCode::FlowControlError,
                    "the connection's window is too large",
                ));
            }
            return Ok(None);
        }
        if self.streams.is_idle(id) {
            return Err(PeerFault::of_connection(ErrorCode::ProtocolError, "WINDOW_UPDATE on an idle stream"));
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
}
