//! The send side of a connection: frames that wait for the socket, in the order in which they
//! leave, and the peer's limits.

use std::collections::VecDeque;

use crate::http2::flow::SendWindow;
use crate::http2::output::FrameQueue;
use crate::http2::response::ResponseEncoder;
use crate::limits::{CONTROL_BACKLOG_SIZE_MAX, TRANSMIT_SIZE_MAX};
use wire::http2::error::{ErrorCode, PeerFault};
use wire::http2::frame::{self, FrameKind};
use wire::http2::settings::{self, PeerSettings};
use wire::http2::{FRAME_SIZE_LEAST, FRAME_SIZE_MOST, StreamId, WINDOW_SIZE_INITIAL, WINDOW_SIZE_MAX};

/// Frames on their way out, and the peer's limits on them.
pub(super) struct FrameSender {
    /// The peer's settings.
    pub(super) peer: PeerSettings,
    /// The connection's window: DATA of all streams.
    pub(super) window: SendWindow,
    pub(super) responses: ResponseEncoder,
    /// Control frames. They leave before all answers that are not framed yet.
    urgent: Vec<u8>,
    pub(super) output: FrameQueue,
    /// The streams that wait for their turn to send; ids of streams that ended meanwhile stay until they are popped.
    pub(super) ready: VecDeque<StreamId>,
}

/// The payload of the PING that measures the round trip of a drain.
const DRAIN_PING: [u8; frame::PING_SIZE] = *b"deuteron";

/// The payload of the PING to a silent client.
const KEEP_ALIVE_PING: [u8; frame::PING_SIZE] = *b"is there";

impl FrameSender {
    /// Begins with the frames that `output` has.
    pub(super) fn new(output: FrameQueue) -> Self {
        Self {
            peer: PeerSettings::default(),
            window: SendWindow::new(WINDOW_SIZE_INITIAL),
            responses: ResponseEncoder::default(),
            urgent: Vec::new(),
            output,
            ready: VecDeque::new(),
        }
    }

    /// Applies the peer's SETTINGS. Returns the change of each stream's window.
    pub(super) fn apply_settings(&mut self, payload: &[u8]) -> Result<i64, PeerFault> {
        let before = self.peer.initial_window_size;
        self.peer.apply(payload)?;
        let PeerSettings { frame_size_max, initial_window_size, header_table_size, .. } = self.peer;
        debug_assert!((FRAME_SIZE_LEAST..=FRAME_SIZE_MOST).contains(&frame_size_max), "§6.5.2: {frame_size_max}");
        debug_assert!(initial_window_size <= WINDOW_SIZE_MAX, "§6.5.2: {initial_window_size}");
        self.responses.set_table_size_max(usize::try_from(header_table_size).unwrap_or(usize::MAX));
        Ok(i64::from(initial_window_size) - i64::from(before))
    }

    /// Acknowledges SETTINGS in the order of all frames: later frames keep to the new settings.
    pub(super) fn acknowledge_settings(&mut self) {
        self.flush_urgent();
        self.output.write(settings::encode_acknowledgement);
    }

    /// Queues the frames that begin a drain: a GOAWAY that excludes no stream, and a PING (§6.8).
    pub(super) fn announce_drain(&mut self) {
        self.push_goaway(StreamId::LARGEST, ErrorCode::NoError, "");
        frame::encode(FrameKind::Ping, 0, StreamId::CONNECTION, &DRAIN_PING, &mut self.urgent);
    }

    /// Returns true if an acknowledged PING is the one of a drain.
    pub(super) fn is_drain_ping(payload: &[u8]) -> bool {
        payload == DRAIN_PING
    }

    /// Queues GOAWAY.
    pub(super) fn push_goaway(&mut self, last: StreamId, code: ErrorCode, text: &str) {
        frame::encode_goaway(last, code, text, &mut self.urgent);
    }

    /// Queues the answer to a PING.
    pub(super) fn push_pong(&mut self, payload: &[u8]) {
        debug_assert_eq!(payload.len(), frame::PING_SIZE, "the size of a PING was checked with its head (§6.7)");
        frame::encode(FrameKind::Ping, frame::ACK, StreamId::CONNECTION, payload, &mut self.urgent);
    }

    /// Queues a PING to a silent client; anything that it sends then shows that it is there.
    pub(super) fn push_ping(&mut self) {
        frame::encode(FrameKind::Ping, 0, StreamId::CONNECTION, &KEEP_ALIVE_PING, &mut self.urgent);
    }

    /// Queues RST_STREAM.
    pub(super) fn push_reset(&mut self, id: StreamId, code: ErrorCode) {
        debug_assert_ne!(id, StreamId::CONNECTION, "RST_STREAM names a stream (§6.4)");
        frame::encode_reset(id, code, &mut self.urgent);
    }

    /// Queues WINDOW_UPDATE.
    pub(super) fn push_window_update(&mut self, id: StreamId, increment: u32) {
        debug_assert!((1..=WINDOW_SIZE_MAX).contains(&increment), "an increment is not 0 (§6.9): {increment}");
        frame::encode_window_update(id, increment, &mut self.urgent);
    }

    /// Moves the control frames behind the frames that are queued already.
    pub(super) fn flush_urgent(&mut self) {
        let Self { urgent, output, .. } = self;
        output.write(|out| out.extend_from_slice(urgent));
        urgent.clear();
    }

    /// Returns true if more may be framed: a frame of another stream waits behind at most this.
    pub(super) const fn has_room(&self) -> bool {
        self.output.size() < TRANSMIT_SIZE_MAX
    }

    /// Returns true if the peer does not read its output, so that it must not be read either.
    pub(super) fn is_blocked(&self) -> bool {
        self.urgent.len() >= CONTROL_BACKLOG_SIZE_MAX || self.output.size() >= 2 * TRANSMIT_SIZE_MAX
    }

    /// Returns true if nothing waits for the socket.
    pub(super) const fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.output.size() == 0
    }

    /// Bytes of control frames that are not in `output` yet.
    pub(super) const fn urgent_size(&self) -> usize {
        self.urgent.len()
    }

    /// Frees buffers beyond what an idle connection may keep.
    pub(super) fn shrink(&mut self) {
        self.output.shrink();
        self.responses.shrink();
        self.urgent.shrink_to_fit();
        self.ready.shrink_to_fit();
    }
}

const _: () = assert!(CONTROL_BACKLOG_SIZE_MAX < TRANSMIT_SIZE_MAX, "all control frames fit into the output");
