//! The read position of a connection: its input buffer, and the frame or field block that is not complete yet.

use crate::input::InputBuffer;
use crate::limits::CONTINUATIONS_MAX;
use base::limits::{FRAME_SIZE_MAX, READ_SIZE};
use wire::http2::StreamId;

/// Received bytes, and the frame that the next ones belong to. At most one of `block`, `data` and
/// `skip` is in progress.
#[derive(Default)]
pub(super) struct FrameReader {
    /// Taken out by `poll_event` while frames are decoded from it.
    pub(super) input: InputBuffer,
    /// True if the last `input_space` was part of a body and not of `input`.
    is_direct: bool,
    /// Bytes of the last space in `input`, and true if the peer filled it, so that a larger one
    /// saves reads.
    space_size: usize,
    is_filled: bool,
    /// The field block in progress, over several frames.
    pub(super) block: Option<IncomingBlock>,
    /// The DATA frame in progress.
    pub(super) data: Option<IncomingData>,
    /// Bytes still to come of a frame that is ignored.
    pub(super) skip: usize,
}

/// Bytes of the input buffer for a peer that fills it.
const READ_SIZE_MAX: usize = 4 * READ_SIZE;

impl FrameReader {
    /// Space for the next read. `head_size_max` bounds the field block that must be contiguous.
    pub(super) fn space(&mut self, head_size_max: usize) -> &mut [u8] {
        self.is_direct = false;
        if self.is_filled {
            self.input.widen(self.input.held_size().saturating_mul(4).min(READ_SIZE_MAX));
        }
        let space = self.input.spare(head_size_max.saturating_mul(2).max(READ_SIZE));
        self.space_size = space.len();
        space
    }

    /// Space for bytes that are thrown away.
    pub(super) fn discard_space(&mut self) -> &mut [u8] {
        self.input.clear();
        self.input.spare(READ_SIZE)
    }

    /// The next read goes to the body of the DATA frame in progress.
    pub(super) fn set_direct(&mut self) {
        debug_assert!(self.input.is_empty(), "bytes that are pending come before those of the next read");
        debug_assert!(self.data.is_some(), "a body is read directly within a DATA frame only");
        self.is_direct = true;
    }

    /// Returns true if the last read went to a body. Called once for each read.
    pub(super) const fn take_direct(&mut self) -> bool {
        std::mem::replace(&mut self.is_direct, false)
    }

    /// `count` bytes were written to the front of `space`.
    pub(super) fn handle_input(&mut self, count: usize) {
        debug_assert!(count <= self.space_size, "{count} bytes were read into {}", self.space_size);
        self.is_filled = count == self.space_size;
        self.input.commit(count);
    }

    /// Returns true if the next byte begins a frame, and no field block is open.
    pub(super) const fn is_between_frames(&self) -> bool {
        self.data.is_none() && self.block.is_none() && self.skip == 0
    }

    /// Drops all input: the connection failed.
    pub(super) fn clear(&mut self) {
        (self.data, self.block, self.skip) = (None, None, 0);
        self.input.clear();
    }

    /// Checks the invariants.
    pub(super) fn invariants(&self) {
        let begun = [self.data.is_some(), self.block.is_some(), self.skip > 0];
        let begun = begun.into_iter().filter(|is_begun| *is_begun).count();
        debug_assert!(begun <= 1, "frames do not overlap, and nothing interrupts a field block (§6.10)");
        debug_assert!(self.skip <= FRAME_SIZE_MAX as usize, "{} bytes to skip are more than a frame", self.skip);
        if let Some(data) = self.data {
            let left = data.left + data.padding;
            debug_assert!(left <= FRAME_SIZE_MAX as usize, "{left} bytes left are more than a frame");
            debug_assert!(data.is_padding_known || data.padding == 0, "padding is counted once its size was read");
        }
        if let Some(block) = &self.block {
            debug_assert!(block.continuation_count <= CONTINUATIONS_MAX, "a longer block fails the connection");
        }
    }
}

/// A field block over several frames (§4.3).
pub(super) struct IncomingBlock {
    pub(super) stream: StreamId,
    pub(super) flags: HeadersFlags,
    pub(super) bytes: Vec<u8>,
    pub(super) continuation_count: u32,
}

/// The facts that a HEADERS frame states beside its field block (§6.2).
#[derive(Clone, Copy)]
pub(super) struct HeadersFlags {
    /// True if HEADERS had END_STREAM.
    pub(super) is_last: bool,
    /// True if its priority makes the stream depend on itself.
    pub(super) depends_on_itself: bool,
}

/// The DATA frame in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct IncomingData {
    pub(super) stream: StreamId,
    /// Bytes of content still to come.
    pub(super) left: usize,
    /// Bytes of padding still to come.
    pub(super) padding: usize,
    /// True if the Pad Length field was read, or is absent (§6.1).
    pub(super) is_padding_known: bool,
    /// True if the frame had END_STREAM.
    pub(super) is_last: bool,
}

/// Bytes of content still to come from which on they are read directly into the body: below, the copy is cheaper than
/// a read of its own.
const DIRECT_SIZE_MIN: usize = 2 * READ_SIZE;
/// Bytes of one direct read: memory grows as content arrives, not as it is announced.
const DIRECT_SIZE_MAX: usize = 256 * 1024;

impl IncomingData {
    /// The stream, and the bytes of its next direct read: at most `size_max`, or [`READ_SIZE`] if
    /// that is more.
    pub(super) fn space(self, size_max: usize) -> (StreamId, usize) {
        (self.stream, self.left.min(DIRECT_SIZE_MAX).min(size_max.max(READ_SIZE)))
    }

    /// Returns true if enough content is to come for a direct read.
    pub(super) const fn is_large(self) -> bool {
        self.is_padding_known && self.left >= DIRECT_SIZE_MIN
    }

    /// Returns true if the next byte is content.
    pub(super) const fn is_within_content(self) -> bool {
        self.is_padding_known && self.left > 0
    }
}
