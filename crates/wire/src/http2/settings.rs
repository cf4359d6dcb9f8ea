//! SETTINGS (RFC 9113 §6.5): decodes and checks the peer's, encodes ours.

use super::error::{ErrorCode, PeerFault};
use super::frame::{self, FrameKind};
use super::{FRAME_SIZE_LEAST, FRAME_SIZE_MOST, StreamId, WINDOW_SIZE_INITIAL, WINDOW_SIZE_MAX};

const HEADER_TABLE_SIZE: u16 = 1;
/// The permission for a server to push (§6.5.2).
pub const ENABLE_PUSH: u16 = 2;
const MAX_CONCURRENT_STREAMS: u16 = 3;
/// Window size of a new stream in bytes.
pub const INITIAL_WINDOW_SIZE: u16 = 4;
/// Largest payload of a frame that the sender accepts, in bytes.
pub const MAX_FRAME_SIZE: u16 = 5;
const MAX_HEADER_LIST_SIZE: u16 = 6;
const NO_RFC7540_PRIORITIES: u16 = 9;

/// The peer's settings that we have to respect. SETTINGS_ENABLE_PUSH is checked but not stored, since we never
/// push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerSettings {
    /// Size of the HPACK dynamic table with which it decodes, in bytes.
    pub header_table_size: u32,
    /// Window size of a new stream, in bytes.
    pub initial_window_size: u32,
    /// Largest payload of a frame that it accepts, in bytes.
    pub frame_size_max: u32,
    /// Streams that we may have open, if the peer is the server.
    pub streams_max: u32,
}

impl Default for PeerSettings {
    fn default() -> Self {
        Self {
            header_table_size: 4_096,
            initial_window_size: WINDOW_SIZE_INITIAL,
            frame_size_max: FRAME_SIZE_LEAST,
            streams_max: u32::MAX,
        }
    }
}

impl PeerSettings {
    /// Applies the entries of a SETTINGS payload in order; unknown ones are ignored (§6.5.2).
    ///
    /// # Errors
    ///
    /// A connection error if a value is out of range. Entries before it are applied.
    pub fn apply(&mut self, payload: &[u8]) -> Result<(), PeerFault> {
        // There is no remainder: `FrameHead::check` has refused other sizes.
        for entry in payload.chunks_exact(frame::ENTRY_SIZE) {
            let Ok([i0, i1, v0, v1, v2, v3]) = <[u8; frame::ENTRY_SIZE]>::try_from(entry) else { continue };
            self.apply_entry(u16::from_be_bytes([i0, i1]), u32::from_be_bytes([v0, v1, v2, v3]))?;
        }
        Ok(())
    }

    fn apply_entry(&mut self, identifier: u16, value: u32) -> Result<(), PeerFault> {
        match identifier {
            HEADER_TABLE_SIZE => self.header_table_size = value,
            ENABLE_PUSH if value > 1 => {
                return Err(PeerFault::of_connection(
                    ErrorCode::ProtocolError,
                    "SETTINGS_ENABLE_PUSH is neither 0 nor 1",
                ));
            }
            INITIAL_WINDOW_SIZE if value > WINDOW_SIZE_MAX => {
                let text = "SETTINGS_INITIAL_WINDOW_SIZE is above 2^31 - 1";
                return Err(PeerFault::of_connection(ErrorCode::FlowControlError, text));
            }
            INITIAL_WINDOW_SIZE => self.initial_window_size = value,
            MAX_FRAME_SIZE if !(FRAME_SIZE_LEAST..=FRAME_SIZE_MOST).contains(&value) => {
                let text = "SETTINGS_MAX_FRAME_SIZE is below 2^14 or above 2^24 - 1";
                return Err(PeerFault::of_connection(ErrorCode::ProtocolError, text));
            }
            MAX_FRAME_SIZE => self.frame_size_max = value,
            MAX_CONCURRENT_STREAMS => self.streams_max = value,
            // RFC 9218 §2.1.
            NO_RFC7540_PRIORITIES if value > 1 => {
                let text = "SETTINGS_NO_RFC7540_PRIORITIES is neither 0 nor 1";
                return Err(PeerFault::of_connection(ErrorCode::ProtocolError, text));
            }
            _ => {}
        }
        Ok(())
    }
}

/// The settings that we send.
#[derive(Clone, Copy, Debug)]
pub struct OurSettings {
    /// Streams that the peer may have open.
    pub streams_max: u32,
    /// Initial window size of a stream, in bytes.
    pub initial_window_size: u32,
    /// Largest payload of a frame that we accept, in bytes.
    pub frame_size_max: u32,
    /// Largest field section of a message that we accept, in bytes (§6.5.2).
    pub field_list_size_max: u32,
}

impl OurSettings {
    /// Appends a SETTINGS frame with them.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let entries = [
            (MAX_CONCURRENT_STREAMS, self.streams_max),
            (INITIAL_WINDOW_SIZE, self.initial_window_size),
            (MAX_FRAME_SIZE, self.frame_size_max),
            (MAX_HEADER_LIST_SIZE, self.field_list_size_max),
            (NO_RFC7540_PRIORITIES, 1),
        ];
        encode(&entries, out);
    }
}

/// Appends a SETTINGS frame with `(identifier, value)` entries.
pub fn encode(entries: &[(u16, u32)], out: &mut Vec<u8>) {
    frame::encode_head(entries.len() * frame::ENTRY_SIZE, FrameKind::Settings, 0, StreamId::CONNECTION, out);
    for (identifier, value) in entries {
        out.extend_from_slice(&identifier.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Appends the acknowledgement of a SETTINGS frame (§6.5.3).
#[inline]
pub fn encode_acknowledgement(out: &mut Vec<u8>) {
    frame::encode_head(0, FrameKind::Settings, frame::ACK, StreamId::CONNECTION, out);
}
