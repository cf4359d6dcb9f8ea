//! A byte buffer that is 64-byte aligned at its start, or at any chosen offset. Bodies and batches are
//! gathered into it once; it grows only as bytes arrive.

use bytemuck::{Pod, Zeroable};
use bytes::Bytes;

use crate::limits::{BODY_CLAIM_MAX, TENSOR_ALIGNMENT};

/// One cache line. A `Vec` of lines is aligned without unsafe code.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; TENSOR_ALIGNMENT]);

/// Bytes that begin `lead` bytes after a 64-byte boundary.
///
/// ```
/// use base::tensor::AlignedBuffer;
///
/// // A 10-byte head, and behind it a tensor that must be aligned.
/// let mut buffer = AlignedBuffer::with_alignment_at(10, 4096);
/// buffer.extend_from_slice(b"0123456789");
/// buffer.extend_from_slice(&[7; 64]);
/// let bytes = buffer.freeze();
/// assert_eq!(bytes[10..].as_ptr() as usize % 64, 0);
/// ```
#[derive(Default)]
pub struct AlignedBuffer {
    lines: Vec<Line>,
    /// Unused bytes before the first one, below 64.
    lead: usize,
    /// Bytes in use. `lines` may be longer: shrinking keeps them.
    size: usize,
    /// Lines that all announced bytes take; 0 without an announcement.
    announced: usize,
}

impl AlignedBuffer {
    /// An empty buffer whose byte at offset `aligned_at` will be on a boundary, with room for `capacity` bytes.
    #[inline]
    pub fn with_alignment_at(aligned_at: usize, capacity: usize) -> Self {
        let mut buffer = Self { lead: lead_to(aligned_at), ..Self::default() };
        buffer.lines.reserve_exact(buffer.lead.saturating_add(capacity).div_ceil(TENSOR_ALIGNMENT));
        buffer
    }

    /// The same; `None` if the system does not give the memory.
    pub fn try_with_alignment_at(aligned_at: usize, capacity: usize) -> Option<Self> {
        let mut buffer = Self { lead: lead_to(aligned_at), ..Self::default() };
        let count = buffer.lead.saturating_add(capacity).div_ceil(TENSOR_ALIGNMENT);
        buffer.lines.try_reserve_exact(count).ok()?;
        Some(buffer)
    }

    /// The same for `size` announced bytes. It claims at most [`BODY_CLAIM_MAX`] of them; once
    /// these have come, room is made for all, which is memory only as it is written. So growth does
    /// not copy the bytes again and again, and an announcement alone costs little.
    #[inline]
    pub fn announced(aligned_at: usize, size: usize) -> Self {
        let buffer = Self::with_alignment_at(aligned_at, size.min(BODY_CLAIM_MAX));
        let announced = buffer.lead.saturating_add(size).div_ceil(TENSOR_ALIGNMENT);
        Self { announced, ..buffer }
    }

    /// An empty buffer that begins on a boundary.
    #[inline]
    pub fn with_capacity(capacity: usize) -> Self {
        Self::with_alignment_at(0, capacity)
    }

    /// A buffer of `size` zeros that begins on a boundary.
    #[inline]
    pub fn zeroed(size: usize) -> Self {
        let lines = vec![Line::zeroed(); size.div_ceil(TENSOR_ALIGNMENT)];
        Self { lines, lead: 0, size, announced: 0 }
    }

    /// The number of bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.size
    }

    /// Returns true if it has no bytes.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.size == 0
    }

    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        bytemuck::cast_slice(&self.lines).get(self.lead..self.lead + self.size).unwrap_or_default()
    }

    /// The bytes, mutable.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.lines).get_mut(self.lead..self.lead + self.size).unwrap_or_default()
    }

    /// Appends bytes. Whole lines are not zeroed before they are written: that would write a large body twice.
    #[inline]
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        let from = self.size;
        let to_boundary = (TENSOR_ALIGNMENT - (self.lead + from) % TENSOR_ALIGNMENT) % TENSOR_ALIGNMENT;
        let (begin, rest) = bytes.split_at(to_boundary.min(bytes.len()));
        self.append(begin);
        let (lines, end) = rest.as_chunks();
        // After a `resize` to a smaller size there are stale lines behind the last byte: pushing would leave a gap.
        if (self.lead + self.size).div_ceil(TENSOR_ALIGNMENT) == self.lines.len() {
            self.make_room(self.lines.len().saturating_add(lines.len()));
            self.lines.extend(lines.iter().copied().map(Line));
            self.size += lines.len() * TENSOR_ALIGNMENT;
            self.append(end);
        } else {
            self.append(rest);
        }
    }

    fn append(&mut self, bytes: &[u8]) {
        let from = self.size;
        self.resize(from.saturating_add(bytes.len()));
        if let Some(space) = self.as_mut_slice().get_mut(from..) {
            space.copy_from_slice(bytes);
        }
    }

    /// Sets the length to `size`. New bytes are zero, or those from before the buffer was shrunk.
    #[inline]
    pub fn resize(&mut self, size: usize) {
        let line_count = self.lead.saturating_add(size).div_ceil(TENSOR_ALIGNMENT);
        if line_count > self.lines.len() {
            self.make_room(line_count);
            self.lines.resize(line_count, Line::zeroed());
        }
        self.size = size;
    }

    /// Makes room for all announced bytes if `count` lines do not fit. If the allocation fails, the
    /// vector grows by itself as the bytes come.
    fn make_room(&mut self, count: usize) {
        if count > self.lines.capacity() && count <= self.announced {
            let _ = self.lines.try_reserve_exact(self.announced - self.lines.len());
        }
    }

    /// Turns the buffer into shared, immutable bytes without a copy; the alignment stays.
    #[inline]
    pub fn freeze(self) -> Bytes {
        // `from_owner` allocates a control block even for no bytes.
        if self.is_empty() { Bytes::new() } else { Bytes::from_owner(self) }
    }
}

/// Unused bytes before the first one, so that the one at this offset is on a boundary.
const fn lead_to(aligned_at: usize) -> usize {
    (TENSOR_ALIGNMENT - aligned_at % TENSOR_ALIGNMENT) % TENSOR_ALIGNMENT
}

impl AsRef<[u8]> for AlignedBuffer {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announcement_claims_little_and_what_comes_is_copied_once() {
        let size = 40 * BODY_CLAIM_MAX;
        let mut buffer = AlignedBuffer::announced(5, size);
        assert!(buffer.lines.capacity() * TENSOR_ALIGNMENT <= BODY_CLAIM_MAX + 2 * TENSOR_ALIGNMENT);
        let part = vec![7; BODY_CLAIM_MAX / 2 + 3];
        buffer.extend_from_slice(&part);
        let few = buffer.lines.capacity();
        buffer.resize(BODY_CLAIM_MAX + 100);
        let all = buffer.lines.capacity();
        assert!(few * 30 < all && all * TENSOR_ALIGNMENT < size + 2 * TENSOR_ALIGNMENT, "{few} {all}");
        let place = buffer.as_slice().as_ptr();
        while buffer.len() + part.len() <= size {
            buffer.extend_from_slice(&part);
        }
        assert_eq!((buffer.as_slice().as_ptr(), buffer.lines.capacity()), (place, all));
        // More than was announced.
        buffer.resize(size + 100);
        assert_eq!(buffer.as_slice()[size - part.len()..][..3], [7; 3]);
        // Memory that no machine has is not asked for before the bytes come.
        let mut endless = AlignedBuffer::announced(0, usize::MAX);
        endless.resize(BODY_CLAIM_MAX + 1);
        assert_eq!(endless.len(), BODY_CLAIM_MAX + 1);
    }

    #[test]
    fn the_chosen_byte_lies_on_a_boundary_and_stays_there() {
        for aligned_at in [0, 1, 63, 64, 65, 126, 1000] {
            let mut buffer = AlignedBuffer::with_alignment_at(aligned_at, 16);
            let want: Vec<u8> = (0..2000_u32).map(|value| value as u8).collect();
            for part in want.chunks(97 + aligned_at) {
                buffer.extend_from_slice(part);
            }
            assert_eq!(buffer.as_slice(), want);
            let bytes = buffer.freeze();
            assert_eq!(bytes, want);
            assert_eq!(bytes.slice(aligned_at..).as_ptr() as usize % TENSOR_ALIGNMENT, 0, "{aligned_at}");
        }
    }

    #[test]
    fn bytes_are_appended_behind_what_is_there_whatever_was_behind_it_before() {
        for (first, longer, more) in [(0, 0, 1), (10, 500, 300), (64, 64, 64), (64, 65, 640), (63, 64, 1), (1, 0, 129)]
        {
            let mut buffer = AlignedBuffer::with_alignment_at(5, 0);
            buffer.extend_from_slice(&vec![1; first]);
            buffer.resize(first + longer);
            buffer.resize(first);
            buffer.extend_from_slice(&vec![2; more]);
            assert_eq!(buffer.as_slice(), [vec![1; first], vec![2; more]].concat(), "{first} {longer} {more}");
        }
    }

    #[test]
    fn an_empty_buffer_freezes_to_no_bytes() {
        assert!(AlignedBuffer::with_capacity(0).freeze().is_empty());
        assert_eq!(AlignedBuffer::zeroed(3).as_slice(), [0, 0, 0]);
    }
}
