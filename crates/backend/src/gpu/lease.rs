//! Device memory for tensors of requests whose clients have them in CUDA shared memory. The server
//! owns it, in the context of the models: bytes are copied into it before a request is queued, and
//! out of it after the answer, so that no model touches a client's memory. Batches are gathered
//! from it and scattered to it by one launch each.
//!
//! Taken from a pool that ends with the context, bounded by `GPU_LEASE_BYTES_MAX`; tensors without
//! room go over the host.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::gpu::device::OpenDevice;
use crate::gpu::driver::{DevicePointer, DriverError};
use crate::gpu::lease_pool::piece_size;

/// The tensors of one request that lie on a device, each with its index among the model's.
#[derive(Debug, Default)]
pub struct DeviceTensors {
    /// Inputs, whose contents on the host are empty.
    pub inputs: Vec<(usize, TensorLease)>,
    /// The memory for outputs, in place of the host's.
    pub outputs: Vec<(usize, TensorLease)>,
}

/// Memory for one tensor. Its last user gives it back, so that none is used again while a batch reads or writes it.
pub struct TensorLease {
    opened: Arc<OpenDevice>,
    pointer: DevicePointer,
    size: usize,
    /// True if a batch wrote it.
    is_written: AtomicBool,
}

impl DeviceTensors {
    /// The memory of an input.
    pub fn input(&self, index: usize) -> Option<&TensorLease> {
        self.inputs.iter().find(|(input, _)| *input == index).map(|(_, lease)| lease)
    }

    /// The memory of an output.
    pub fn output(&self, index: usize) -> Option<&TensorLease> {
        self.outputs.iter().find(|(output, _)| *output == index).map(|(_, lease)| lease)
    }

    /// All leases.
    pub fn leases(&self) -> impl Iterator<Item = &TensorLease> {
        self.inputs.iter().chain(&self.outputs).map(|(_, lease)| lease)
    }
}

/// The tensors of a request equal only themselves.
impl PartialEq for DeviceTensors {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl TensorLease {
    /// Takes memory for a tensor of `size` bytes; waits for the device if no returned piece fits.
    ///
    /// # Errors
    ///
    /// If the bound is reached, or the driver refuses.
    pub fn new(opened: &Arc<OpenDevice>, size: usize) -> Result<Self, DriverError> {
        let pointer = opened.leases().take(opened.context(), opened.device_account(), piece_size(size)?)?;
        Ok(Self { opened: Arc::clone(opened), pointer, size, is_written: AtomicBool::new(false) })
    }

    /// The device and context of the memory.
    pub const fn opened(&self) -> &Arc<OpenDevice> {
        &self.opened
    }

    /// The address of its first byte.
    pub const fn pointer(&self) -> DevicePointer {
        self.pointer
    }

    /// Bytes of the tensor.
    pub const fn size(&self) -> usize {
        self.size
    }

    /// A batch wrote all of it.
    pub fn set_written(&self) {
        self.is_written.store(true, Ordering::Release);
    }

    /// Returns true if a batch wrote all of it.
    pub fn is_written(&self) -> bool {
        self.is_written.load(Ordering::Acquire)
    }
}

impl Drop for TensorLease {
    fn drop(&mut self) {
        if let Ok(piece) = piece_size(self.size) {
            self.opened.leases().give_back(piece, self.pointer);
        }
    }
}

impl fmt::Debug for TensorLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of {}", self.size, self.opened.context().device().uuid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::fake::Fake;
    use crate::limits::GPU_LEASE_BYTES_MAX;

    #[test]
    fn memory_is_used_again_by_a_tensor_of_like_size_and_ends_with_the_context() {
        let fake = Fake::new(1);
        let gpu = fake.gpu(4096, 1_000);
        assert!(gpu.opened().is_none());
        let opened = gpu.open().unwrap();
        let first = TensorLease::new(&opened, 1000).unwrap();
        let pointer = first.pointer();
        let second = TensorLease::new(&opened, 700).unwrap();
        assert_ne!(second.pointer(), pointer);
        assert_eq!((fake.held(), opened.device_account().used()), (2048, 2048));
        drop(first);
        let again = TensorLease::new(&gpu.opened().unwrap(), 513).unwrap();
        assert_eq!((again.pointer(), again.size(), fake.held()), (pointer, 513, 2048));
        let error = TensorLease::new(&opened, 2049).err().unwrap();
        assert!(error.text.contains("--gpu-memory-bytes-max"), "{error}");
        assert!(
            TensorLease::new(&opened, GPU_LEASE_BYTES_MAX + 1).is_err()
                && TensorLease::new(&opened, usize::MAX).is_err()
        );
        drop((opened, second));
        assert_eq!(fake.held(), 2048, "one is taken still");
        drop(again);
        assert_eq!((fake.held(), gpu.account().used()), (0, 0));
        assert!(gpu.opened().is_none());
    }
}
