//! Owned buffers in device memory and in pinned host memory. Each allocation is counted before the
//! driver is asked, in a [`MemoryBudget`](super::memory_budget::MemoryBudget) for each device and one for all
//! pinned memory, each bounded by a flag. Buffers are allocated when instances are made, never for a batch.

#![expect(unsafe_code, reason = "pinned memory comes from the driver as an address")]

use std::ptr::NonNull;
use std::sync::Arc;

use crate::gpu::device::OpenDevice;
use crate::gpu::driver::{DevicePointer, DriverError};

/// A buffer in device memory; freed when dropped.
pub struct DeviceBuffer {
    opened: Arc<OpenDevice>,
    pointer: DevicePointer,
    size: usize,
}

impl DeviceBuffer {
    /// Allocates this many bytes; for 0 the driver is not asked.
    ///
    /// # Errors
    ///
    /// If the budget is used up, or the driver refuses.
    pub fn new(opened: &Arc<OpenDevice>, size: usize) -> Result<Self, DriverError> {
        let account = opened.device_account();
        account.take(size)?;
        let pointer = match size {
            0 => Ok(0),
            _ => opened.context().alloc(size),
        };
        let pointer = pointer.inspect_err(|_| account.give_back(size))?;
        Ok(Self { opened: Arc::clone(opened), pointer, size })
    }

    /// Allocates a buffer for these bytes and uploads them.
    ///
    /// # Errors
    ///
    /// As [`Self::new`], or if the upload fails.
    pub fn with_contents(opened: &Arc<OpenDevice>, contents: &[u8]) -> Result<Self, DriverError> {
        let buffer = Self::new(opened, contents.len())?;
        if !contents.is_empty() {
            opened.context().upload(contents, buffer.pointer)?;
        }
        Ok(buffer)
    }

    /// The address of its first byte.
    pub const fn pointer(&self) -> DevicePointer {
        self.pointer
    }

    /// Its size in bytes.
    pub const fn size(&self) -> usize {
        self.size
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // Work that never ended may still use the memory: it is left to the device, and stays counted.
        if self.opened.is_hung() {
            return;
        }
        if self.size > 0 {
            self.opened.context().free(self.pointer);
        }
        self.opened.device_account().give_back(self.size);
    }
}

/// A buffer in host memory that the device reads and writes directly. The owner makes sure that no stream
/// uses it while it is read, written or dropped.
pub struct PinnedBuffer {
    opened: Arc<OpenDevice>,
    pointer: NonNull<u8>,
    size: usize,
}

// SAFETY: it is plain memory with one owner, as a `Box<[u8]>`; the driver may be called by any thread.
unsafe impl Send for PinnedBuffer {}

impl PinnedBuffer {
    /// Allocates this many bytes, all zero.
    ///
    /// # Errors
    ///
    /// If the budget is used up, or the driver refuses.
    pub fn new(opened: &Arc<OpenDevice>, size: usize) -> Result<Self, DriverError> {
        let account = opened.pinned_account();
        account.take(size)?;
        let pointer = match size {
            0 => Ok(NonNull::dangling()),
            _ => opened.context().alloc_pinned(size),
        };
        let pointer = pointer.inspect_err(|_| account.give_back(size))?;
        // SAFETY: the driver allocated this many bytes, and nothing else has the pointer. Zeroed,
        // because reading uninitialised memory is undefined behaviour.
        unsafe { pointer.write_bytes(0, size) };
        Ok(Self { opened: Arc::clone(opened), pointer, size })
    }

    /// The address of its first byte, for a copy.
    pub const fn as_ptr(&self) -> *mut u8 {
        self.pointer.as_ptr()
    }

    /// Its bytes.
    ///
    /// # Safety
    /// No stream writes them meanwhile.
    pub const unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: `new` wrote all of them, and the caller keeps the streams away.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.size) }
    }

    /// Its bytes, to write to.
    ///
    /// # Safety
    /// No stream reads or writes them meanwhile.
    pub const unsafe fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.size) }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        // As above: the device may still write there.
        if self.opened.is_hung() {
            return;
        }
        if self.size > 0 {
            // SAFETY: it came from this context, and the owner keeps the streams away.
            unsafe { self.opened.context().free_pinned(self.pointer) };
        }
        self.opened.pinned_account().give_back(self.size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::driver::GpuFault;
    use crate::gpu::fake::Fake;

    #[test]
    fn what_is_taken_is_counted_and_the_bound_names_its_flag() {
        let fake = Fake::new(1);
        let gpu = fake.gpu(1_000, 100);
        let opened = gpu.open().unwrap();
        let first = DeviceBuffer::new(&opened, 600).unwrap();
        let error = DeviceBuffer::new(&opened, 401).err().unwrap();
        assert_eq!(error.fault, GpuFault::Memory);
        let want =
            "401 bytes of memory of GPU 0 are wanted, 600 of 1000 are taken; --gpu-memory-bytes-max sets how many";
        assert_eq!(error.text, want);
        let second = DeviceBuffer::new(&opened, 400).unwrap();
        drop((first, second));
        let pinned = PinnedBuffer::new(&opened, 100).unwrap();
        // SAFETY: nothing was enqueued.
        assert_eq!(unsafe { pinned.as_slice() }, [0; 100]);
        let error = PinnedBuffer::new(&opened, 1).err().unwrap();
        assert!(error.text.ends_with("--pinned-memory-pool-byte-size sets how many"), "{error}");
        let account = opened.device_account();
        assert_eq!((account.used(), account.peak(), account.limit()), (0, 1_000, 1_000));
        drop(pinned);
        assert_eq!((opened.pinned_account().used(), fake.held()), (0, 0));
    }

    #[test]
    fn what_the_driver_refuses_is_not_counted() {
        let fake = Fake::new(1);
        let opened = fake.gpu(1_000, 1_000).open().unwrap();
        fake.fail_next("alloc", GpuFault::Memory);
        assert!(DeviceBuffer::new(&opened, 10).is_err());
        fake.fail_next("alloc_pinned", GpuFault::Memory);
        assert!(PinnedBuffer::new(&opened, 10).is_err());
        fake.fail_next("upload", GpuFault::Transient);
        assert!(DeviceBuffer::with_contents(&opened, &[1, 2]).is_err());
        assert_eq!((opened.device_account().used(), opened.pinned_account().used(), fake.held()), (0, 0, 0));
    }
}
