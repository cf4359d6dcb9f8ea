//! Frames: the units into which the bytes of a socket are split.

use crate::limits::{PYTHON_BUFFER_KEPT, PYTHON_FRAME_SIZE_MAX};
use crate::python::message::MessageError;

/// One message as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The number of the message among those of its socket.
    pub kind: u8,
    /// The bytes after the kind.
    pub body: &'a [u8],
}

/// Bytes of the size in front of a frame.
const SIZE_SIZE: usize = 4;

/// Collects the bytes of one socket, and finds the frames in them. Memory grows with the bytes that came, never with
/// the size that a frame claims.
#[derive(Default)]
pub struct FrameBuffer {
    /// Initialised throughout, so that a read needs no zeros; `begin..end` is received and not
    /// taken.
    bytes: Vec<u8>,
    begin: usize,
    end: usize,
}

impl FrameBuffer {
    /// Space of `size` bytes for the next read, whose count goes to [`Self::commit`].
    pub fn space(&mut self, size: usize) -> &mut [u8] {
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
            if self.bytes.len() > PYTHON_BUFFER_KEPT {
                self.bytes.truncate(PYTHON_BUFFER_KEPT);
                self.bytes.shrink_to_fit();
            }
        }
        if self.bytes.len() - self.end < size && self.begin > 0 {
            self.bytes.copy_within(self.begin..self.end, 0);
            self.end -= self.begin;
            self.begin = 0;
        }
        let needed = self.end.saturating_add(size);
        if self.bytes.len() < needed {
            self.bytes.resize(needed, 0);
        }
        self.bytes.get_mut(self.end..needed).unwrap_or_default()
    }

    /// The first `count` bytes of the space were filled.
    pub fn commit(&mut self, count: usize) {
        self.end = self.end.saturating_add(count).min(self.bytes.len());
    }

    /// Takes the next frame; `None` until all of it has come.
    ///
    /// # Errors
    ///
    /// If the next frame is larger than the limit, or has no kind. The socket is no longer usable
    /// then.
    pub fn poll_frame(&mut self) -> Result<Option<Frame<'_>>, MessageError> {
        let unread = self.bytes.get(self.begin..self.end).unwrap_or_default();
        let Some((size, rest)) = unread.split_first_chunk::<SIZE_SIZE>() else { return Ok(None) };
        let size = usize::try_from(u32::from_le_bytes(*size)).map_err(|_| MessageError::FrameSize)?;
        if size == 0 || size > PYTHON_FRAME_SIZE_MAX {
            return Err(MessageError::FrameSize);
        }
        let Some((kind, body)) = rest.get(..size).and_then(<[u8]>::split_first) else { return Ok(None) };
        self.begin += SIZE_SIZE + size;
        Ok(Some(Frame { kind: *kind, body }))
    }

    /// Bytes of memory that it holds.
    pub const fn held_size(&self) -> usize {
        self.bytes.capacity()
    }
}

/// Appends one frame, whose body `put_body` appends. If that fails, or the frame would be larger
/// than the limit, nothing is appended.
pub fn put_frame(
    kind: u8,
    out: &mut Vec<u8>,
    put_body: impl FnOnce(&mut Vec<u8>) -> Result<(), MessageError>,
) -> Result<(), MessageError> {
    let begin = out.len();
    let mut put = Ok(());
    put_small_frame(kind, out, |out| put = put_body(out));
    if put.is_ok() && out.len() - begin - SIZE_SIZE > PYTHON_FRAME_SIZE_MAX {
        put = Err(MessageError::FrameSize);
    }
    if put.is_err() {
        out.truncate(begin);
    }
    put
}

/// Appends one frame whose body is known to be small.
pub fn put_small_frame(kind: u8, out: &mut Vec<u8>, put_body: impl FnOnce(&mut Vec<u8>)) {
    put_sized(out, |out| {
        out.push(kind);
        put_body(out);
    });
}

/// Appends the 32-bit size of the bytes that `put` appends, and those bytes. The size of longer
/// bytes is wrong: a frame with it is refused as too large.
pub fn put_sized(out: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>)) {
    let begin = out.len();
    out.extend_from_slice(&[0; SIZE_SIZE]);
    put(out);
    let size = u32::try_from(out.len() - begin - SIZE_SIZE).unwrap_or(u32::MAX);
    if let Some(prefix) = out.get_mut(begin..).and_then(<[u8]>::first_chunk_mut) {
        *prefix = size.to_le_bytes();
    }
}
