//! Received bytes of a connection that are not consumed yet. The buffer grows while a head or frame has to be
//! contiguous, rarely moves its bytes, and is freed when idle. Each call passes the largest size it may reach.

use base::limits::INPUT_SIZE_MIN;

/// A buffer of which `start..end` is pending: received and not consumed. Owned by its connection.
#[derive(Debug, Default)]
pub(crate) struct InputBuffer {
    space: Vec<u8>,
    start: usize,
    end: usize,
}

impl InputBuffer {
    /// The pending bytes.
    pub(crate) fn pending(&self) -> &[u8] {
        self.space.get(self.start..self.end).unwrap_or_default()
    }

    /// The same, for decryption in place.
    pub(crate) fn pending_mut(&mut self) -> &mut [u8] {
        self.space.get_mut(self.start..self.end).unwrap_or_default()
    }

    /// Returns true if no bytes are pending.
    pub(crate) const fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Bytes of memory allocated.
    pub(crate) const fn held_size(&self) -> usize {
        self.space.len()
    }

    /// Removes the first `count` pending bytes.
    pub(crate) fn consume(&mut self, count: usize) {
        self.start = self.start.saturating_add(count).min(self.end);
        debug_assert!(self.end <= self.space.len(), "what is pending lies within the buffer");
    }

    /// Makes the `count` bytes just written to `spare` pending.
    pub(crate) fn commit(&mut self, count: usize) {
        debug_assert!(count <= self.space.len() - self.end, "{count} bytes were written past the spare space");
        self.end = self.end.saturating_add(count).min(self.space.len());
    }

    /// Drops all pending bytes.
    pub(crate) const fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }

    /// Frees the buffer if it is larger than an idle connection may keep. Does nothing while bytes are pending.
    pub(crate) fn shrink(&mut self) {
        if self.is_empty() && self.space.len() > INPUT_SIZE_MIN {
            *self = Self::default();
        }
    }

    /// Frees the buffer. Does nothing while bytes are pending.
    pub(crate) fn free(&mut self) {
        if self.is_empty() {
            *self = Self::default();
        }
    }

    /// Free space for the next read. Empty only when the buffer has `size_max` bytes and most are pending.
    pub(crate) fn spare(&mut self, size_max: usize) -> &mut [u8] {
        if self.is_empty() {
            self.clear();
        }
        // A read into the last quarter would be small, and cost a system call for few bytes.
        if self.space.len() - self.end <= self.space.len() / 4 {
            self.make_room(size_max.max(INPUT_SIZE_MIN));
        }
        self.space.get_mut(self.end..).unwrap_or_default()
    }

    /// Grows the buffer to `size` bytes if nothing is pending. For a peer whose last read filled the buffer.
    pub(crate) fn widen(&mut self, size: usize) {
        if self.is_empty() && self.space.len() < size {
            self.space = vec![0; size];
            self.clear();
        }
    }

    /// Moves the pending bytes to the front if at most half of the buffer is pending, so that each byte is moved
    /// about once; otherwise doubles the buffer, up to `size_max`.
    fn make_room(&mut self, size_max: usize) {
        let size = self.space.len();
        let pending_size = self.end - self.start;
        if self.start > 0 && pending_size <= size / 2 {
            self.space.copy_within(self.start..self.end, 0);
        } else if size < size_max {
            let mut space = vec![0; size.saturating_mul(2).clamp(INPUT_SIZE_MIN, size_max)];
            if let Some(front) = space.get_mut(..pending_size) {
                front.copy_from_slice(self.pending());
            }
            self.space = space;
        } else {
            return;
        }
        (self.start, self.end) = (0, pending_size);
        debug_assert!(self.end < self.space.len(), "a buffer that was moved or grown has spare space");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(input: &mut InputBuffer, bytes: &[u8], size_max: usize) -> usize {
        let space = input.spare(size_max);
        let count = space.len().min(bytes.len());
        space[..count].copy_from_slice(&bytes[..count]);
        input.commit(count);
        count
    }

    #[test]
    fn it_grows_to_the_bound_and_then_takes_no_more() {
        let mut input = InputBuffer::default();
        let mut total = 0;
        loop {
            let count = write(&mut input, &[7; 1000], 10_000);
            total += count;
            if count == 0 {
                break;
            }
        }
        assert_eq!((total, input.held_size()), (10_000, 10_000));
        assert_eq!(input.pending(), [7; 10_000]);
    }

    #[test]
    fn bytes_come_out_as_they_went_in_however_they_are_cut() {
        let bytes: Vec<u8> = (0..100_000_u32).map(|value| (value % 251) as u8).collect();
        let (mut input, mut from, mut out) = (InputBuffer::default(), 0, Vec::new());
        for round in 1.. {
            from += write(&mut input, &bytes[from..(from + round * 37 % 3000).min(bytes.len())], 16_384);
            let count = input.pending().len().min(round * 53 % 2000);
            out.extend_from_slice(&input.pending()[..count]);
            input.consume(count);
            if out.len() == bytes.len() {
                break;
            }
        }
        assert_eq!(out, bytes);
        assert!(input.held_size() <= 16_384);
    }

    #[test]
    fn a_little_that_is_always_pending_does_not_make_it_grow() {
        let mut input = InputBuffer::default();
        write(&mut input, &[7; 500], 16_384);
        for _ in 0..1_000 {
            assert_eq!(write(&mut input, &[7; 500], 16_384), 500);
            input.consume(500);
        }
        assert_eq!(input.held_size(), INPUT_SIZE_MIN);
    }

    #[test]
    fn an_idle_one_keeps_little() {
        let mut input = InputBuffer::default();
        while write(&mut input, &[1; 5000], 16_384) > 0 {}
        input.shrink();
        assert_eq!(input.held_size(), 16_384, "something is pending");
        input.consume(usize::MAX);
        input.shrink();
        assert_eq!(input.held_size(), 0);
        assert_eq!(input.spare(16_384).len(), INPUT_SIZE_MIN);
    }
}
