//! Implements the connections' body buffer with an aligned buffer, so that tensors in a body need no copy. The
//! connection code knows only the trait, and limits the size.

use bytes::Bytes;

use crate::message::BodyBuffer;
use base::tensor::AlignedBuffer;

impl BodyBuffer for AlignedBuffer {
    fn announced(aligned_at: usize, size: usize) -> Self {
        Self::announced(aligned_at, size)
    }

    fn len(&self) -> usize {
        self.len()
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }

    fn resize(&mut self, size: usize) {
        self.resize(size);
    }

    fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    fn freeze(self) -> Bytes {
        self.freeze()
    }
}
