//! The pieces of device memory that a context has for [`super::lease`]. Returned pieces are kept
//! for the next request and freed with the context. Bounded by [`GPU_LEASE_BYTES_MAX`].

#![expect(clippy::disallowed_types, reason = "taken for a request with tensors in CUDA shared memory alone")]

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::gpu::driver::{DevicePointer, DriverError, GpuContext};
use crate::gpu::memory_budget::MemoryBudget;
use crate::limits::GPU_LEASE_BYTES_MAX;
use base::limits::GPU_BUFFER_ALIGNMENT;

/// The pieces of a context, by size.
#[derive(Default)]
pub(super) struct LeasePool(Mutex<LeasedPieces>);

#[derive(Default)]
struct LeasedPieces {
    free: BTreeMap<usize, Vec<DevicePointer>>,
    /// Bytes of all pieces, taken or free.
    size: usize,
}

impl LeasePool {
    /// Takes a piece of this size: a returned one, or a new one.
    ///
    /// # Errors
    ///
    /// If the bound is reached, or the driver refuses.
    pub(super) fn take(
        &self,
        context: &dyn GpuContext,
        account: &MemoryBudget,
        piece: usize,
    ) -> Result<DevicePointer, DriverError> {
        let mut pieces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pointer) = pieces.free.get_mut(&piece).and_then(Vec::pop) {
            return Ok(pointer);
        }
        let size = pieces.size.saturating_add(piece);
        if size > GPU_LEASE_BYTES_MAX {
            return Err(DriverError::transient("too much memory is taken for tensors in CUDA shared memory"));
        }
        account.take(piece)?;
        let pointer = context.alloc(piece).inspect_err(|_| account.give_back(piece))?;
        pieces.size = size;
        Ok(pointer)
    }

    /// Keeps a piece for the next request of its size.
    pub(super) fn give_back(&self, piece: usize, pointer: DevicePointer) {
        let mut pieces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pieces.free.entry(piece).or_default().push(pointer);
    }

    /// Frees all pieces: none is in use when its context ends.
    pub(super) fn end(&mut self, context: &dyn GpuContext, account: &MemoryBudget) {
        let pieces = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        for pointer in std::mem::take(&mut pieces.free).into_values().flatten() {
            context.free(pointer);
        }
        account.give_back(std::mem::take(&mut pieces.size));
    }
}

/// Bytes of the piece for a tensor: few sizes, so that a returned piece fits the next request.
pub(super) fn piece_size(size: usize) -> Result<usize, DriverError> {
    let piece = size.max(GPU_BUFFER_ALIGNMENT).checked_next_power_of_two();
    piece.ok_or_else(|| DriverError::transient("a tensor has more bytes than can be counted"))
}
