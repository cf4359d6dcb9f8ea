//! Frames (RFC 9113 §4.1, §6): the nine-byte head, and the payloads of the frame types. A head is checked as soon as
//! it is decoded, so that we never wait for the payload of an invalid frame.

use super::error::{ErrorCode, PeerFault};
use super::{StreamId, WINDOW_SIZE_MAX};

/// Size of a frame's head in bytes.
pub const HEAD_SIZE: usize = 9;

/// Flag of SETTINGS and PING: an acknowledgement.
pub const ACK: u8 = 0x1;
/// Flag of DATA and HEADERS: the last frame of its stream, except for CONTINUATION.
pub const END_STREAM: u8 = 0x1;
/// Flag of HEADERS and CONTINUATION: the end of the field block.
pub const END_HEADERS: u8 = 0x4;
/// Flag of DATA and HEADERS: the payload has padding.
pub const PADDED: u8 = 0x8;
/// Flag of HEADERS: the payload has a priority.
pub const PRIORITY: u8 = 0x20;

/// Size of a priority in bytes (§6.3).
const PRIORITY_SIZE: usize = 5;
/// Size of a PING payload in bytes (§6.7).
pub const PING_SIZE: usize = 8;

/// The type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// Content (§6.1).
    Data,
    /// A field block, or the first part of one (§6.2).
    Headers,
    /// A priority, deprecated (§6.3).
    Priority,
    /// Aborts a stream (§6.4).
    RstStream,
    /// Parameters of the sender (§6.5).
    Settings,
    /// Announces a pushed stream (§6.6).
    PushPromise,
    /// A probe, answered with the same payload (§6.7).
    Ping,
    /// No further streams are accepted (§6.8).
    GoAway,
    /// Enlarges a flow-control window (§6.9).
    WindowUpdate,
    /// A further part of a field block (§6.10).
    Continuation,
    /// Any other type: ignored (§5.5).
    Unknown(u8),
}

impl FrameKind {
    const fn from_number(number: u8) -> Self {
        match number {
            0 => Self::Data,
            1 => Self::Headers,
            2 => Self::Priority,
            3 => Self::RstStream,
            4 => Self::Settings,
            5 => Self::PushPromise,
            6 => Self::Ping,
            7 => Self::GoAway,
            8 => Self::WindowUpdate,
            9 => Self::Continuation,
            number => Self::Unknown(number),
        }
    }

    const fn number(self) -> u8 {
        match self {
            Self::Data => 0,
            Self::Headers => 1,
            Self::Priority => 2,
            Self::RstStream => 3,
            Self::Settings => 4,
            Self::PushPromise => 5,
            Self::Ping => 6,
            Self::GoAway => 7,
            Self::WindowUpdate => 8,
            Self::Continuation => 9,
            Self::Unknown(number) => number,
        }
    }
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHead {
    /// Size of the payload in bytes.
    pub size: usize,
    /// Its type.
    pub kind: FrameKind,
    /// Its flags.
    pub flags: u8,
    /// Its stream.
    pub stream: StreamId,
}

impl FrameHead {
    /// Decodes a head; `None` if it is not complete. The reserved bit is ignored (§4.1).
    #[inline]
    pub fn decode(input: &[u8]) -> Option<Self> {
        let [l0, l1, l2, kind, flags, s0, s1, s2, s3] = *input.first_chunk::<HEAD_SIZE>()?;
        let size = u32::from_be_bytes([0, l0, l1, l2]);
        let stream = StreamId(u32::from_be_bytes([s0 & 0x7f, s1, s2, s3]));
        Some(Self { size: usize::try_from(size).ok()?, kind: FrameKind::from_number(kind), flags, stream })
    }

    /// Returns true if a flag is set.
    #[inline]
    pub const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Checks all that the head alone determines: the stream and the size, for its type.
    ///
    /// # Errors
    ///
    /// A connection error for a wrong stream or size; a stream error for a PRIORITY frame of wrong size (§6.3).
    #[inline]
    pub fn check(&self, size_max: usize) -> Result<(), PeerFault> {
        // A connection error for all types: §4.2 requires it for those that can change the state of the whole
        // connection, such as field blocks.
        if self.size > size_max {
            return Err(PeerFault::of_connection(
                ErrorCode::FrameSizeError,
                "a frame is larger than SETTINGS_MAX_FRAME_SIZE",
            ));
        }
        self.check_stream()?;
        self.check_size()
    }

    fn check_stream(&self) -> Result<(), PeerFault> {
        let is_connection = self.stream == StreamId::CONNECTION;
        let text = match self.kind {
            FrameKind::Data
            | FrameKind::Headers
            | FrameKind::Priority
            | FrameKind::RstStream
            | FrameKind::Continuation
                if is_connection =>
            {
                "a frame that belongs to a stream came on stream 0"
            }
            FrameKind::Settings | FrameKind::Ping | FrameKind::GoAway if !is_connection => {
                "a frame that belongs to the connection came on a stream"
            }
            FrameKind::PushPromise => "a client must not push",
            _ => return Ok(()),
        };
        Err(PeerFault::of_connection(ErrorCode::ProtocolError, text))
    }

    fn check_size(&self) -> Result<(), PeerFault> {
        let is_right = match self.kind {
            FrameKind::Priority if self.size != PRIORITY_SIZE => {
                return Err(PeerFault::of_stream(ErrorCode::FrameSizeError, "a PRIORITY frame has five bytes"));
            }
            FrameKind::RstStream | FrameKind::WindowUpdate => self.size == 4,
            FrameKind::Settings if self.has(ACK) => self.size == 0,
            FrameKind::Settings => self.size.is_multiple_of(ENTRY_SIZE),
            FrameKind::Ping => self.size == PING_SIZE,
            FrameKind::GoAway => self.size >= 8,
            FrameKind::Headers => self.size >= self.padding_field_size() + self.priority_size(),
            FrameKind::Data => self.size >= self.padding_field_size(),
            _ => true,
        };
        if is_right {
            return Ok(());
        }
        Err(PeerFault::of_connection(ErrorCode::FrameSizeError, "a frame has the wrong size for its type"))
    }

    /// Size in bytes of the payload's field for the padding length: 1 if the frame is padded.
    #[inline]
    pub const fn padding_field_size(&self) -> usize {
        if self.has(PADDED) { 1 } else { 0 }
    }

    const fn priority_size(&self) -> usize {
        if self.has(PRIORITY) { PRIORITY_SIZE } else { 0 }
    }

    /// Returns true if the priority in a HEADERS or PRIORITY payload makes the stream depend on
    /// itself. RFC 9113 ignores priorities; RFC 7540 §5.3.1, which older clients and test suites
    /// keep to, calls this an error of the stream.
    pub fn depends_on_itself(&self, payload: &[u8]) -> bool {
        let at = match self.kind {
            FrameKind::Headers if self.has(PRIORITY) => self.padding_field_size(),
            FrameKind::Priority => 0,
            _ => return false,
        };
        payload.get(at..).is_some_and(|rest| rest.len() >= 4 && number(rest) & STREAM_MASK == self.stream.0)
    }

    /// The field block in a HEADERS payload; the priority is ignored (§5.3.2).
    ///
    /// # Errors
    ///
    /// A connection error if the padding is larger than the payload.
    pub fn headers_block<'a>(&self, payload: &'a [u8]) -> Result<&'a [u8], PeerFault> {
        let (padding_size, rest) = match payload.split_first() {
            Some((size, rest)) if self.has(PADDED) => (usize::from(*size), rest),
            _ => (0, payload),
        };
        let block = rest.get(self.priority_size()..).unwrap_or_default();
        let block_size = block.len().checked_sub(padding_size).ok_or_else(padding_fault)?;
        Ok(block.get(..block_size).unwrap_or_default())
    }
}

/// The error for padding that is as long as the payload or longer (§6.1).
#[inline]
pub fn padding_fault() -> PeerFault {
    PeerFault::of_connection(ErrorCode::ProtocolError, "a frame's padding is larger than its payload")
}

/// The 32-bit number at the beginning of a payload, whose size was checked; 0 if it is shorter.
#[inline]
pub fn number(payload: &[u8]) -> u32 {
    payload.first_chunk::<4>().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

/// The increment of a WINDOW_UPDATE, without the reserved bit. The caller refuses 0 (§6.9).
#[inline]
pub fn window_increment(payload: &[u8]) -> u32 {
    number(payload) & WINDOW_SIZE_MAX
}

/// Appends the head of a frame.
#[inline]
pub fn encode_head(size: usize, kind: FrameKind, flags: u8, stream: StreamId, out: &mut Vec<u8>) {
    debug_assert!(size <= 0xff_ffff, "a payload's size has three bytes");
    let [_, l0, l1, l2] = u32::try_from(size).unwrap_or(u32::MAX).to_be_bytes();
    let [s0, s1, s2, s3] = stream.0.to_be_bytes();
    out.extend_from_slice(&[l0, l1, l2, kind.number(), flags, s0, s1, s2, s3]);
}

/// Appends a whole frame.
#[inline]
pub fn encode(kind: FrameKind, flags: u8, stream: StreamId, payload: &[u8], out: &mut Vec<u8>) {
    encode_head(payload.len(), kind, flags, stream, out);
    out.extend_from_slice(payload);
}

/// Appends RST_STREAM (§6.4).
#[inline]
pub fn encode_reset(stream: StreamId, code: ErrorCode, out: &mut Vec<u8>) {
    encode(FrameKind::RstStream, 0, stream, &(code as u32).to_be_bytes(), out);
}

/// Appends WINDOW_UPDATE (§6.9).
#[inline]
pub fn encode_window_update(stream: StreamId, increment: u32, out: &mut Vec<u8>) {
    encode(FrameKind::WindowUpdate, 0, stream, &increment.to_be_bytes(), out);
}

/// Appends GOAWAY (§6.8). The text is debug data, for a person.
pub fn encode_goaway(last: StreamId, code: ErrorCode, text: &str, out: &mut Vec<u8>) {
    encode_head(8 + text.len(), FrameKind::GoAway, 0, StreamId::CONNECTION, out);
    out.extend_from_slice(&last.0.to_be_bytes());
    out.extend_from_slice(&(code as u32).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// The bits of a stream's identifier in a dependency, whose first bit marks it as exclusive.
const STREAM_MASK: u32 = 0x7fff_ffff;
/// Size of one setting in bytes.
pub const ENTRY_SIZE: usize = 6;
