//! Memory of a device and pinned memory of the host, with owners and within bounds. What is taken
//! is counted before the driver is asked: an [`MemoryBudget`] for each device and one for all pinned
//! memory, each bounded by a flag. Used when instances are made; a batch takes nothing.

#![expect(unsafe_code, reason = "pinned memory comes from the driver as an address")]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::backend::gpu::device::OpenDevice;
use crate::backend::gpu::driver::{DevicePointer, DriverError, GpuFault};

/// Bytes that are taken of one kind of memory, and how many may be.
#[derive(Debug)]
pub struct MemoryBudget {
    what: String,
    flag: &'static str,
    limit: usize,
    used: AtomicUsize,
    peak: AtomicUsize,
}

impl MemoryBudget {
    /// An account of some memory, which a flag bounds; no bytes are taken.
    pub fn new(what: String, flag: &'static str, limit: usize) -> Arc<Self> {
        Arc::new(Self { what, flag, limit, used: AtomicUsize::new(0), peak: AtomicUsize::new(0) })
    }

    /// Bytes that are taken.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// The most that were taken at a time.
    pub fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    /// Bytes that may be.
    pub const fn limit(&self) -> usize {
        self.limit
    }

    fn take(&self, size: usize) -> Result<(), DriverError> {
        let within = |used: usize| used.checked_add(size).filter(|sum| *sum <= self.limit);
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within) {
            Ok(before) => {
                self.peak.fetch_max(before + size, Ordering::Relaxed);
                Ok(())
            }
            Err(used) => {
                let Self { what, flag, limit, .. } = self;
                let text =
                    format!("{size} bytes of {what} are wanted, {used} of {limit} are taken; {flag} sets how many");
                Err(DriverError { fault: GpuFault::Memory, text })
            }
        }
    }

    fn give_back(&self, size: usize) {
        self.used.fetch_sub(size, Ordering::Relaxed);
    }
}

/// Memory of a device.
pub struct DeviceBuffer {
    opened: Arc<OpenDevice>,
    pointer: DevicePointer,
    size: usize,
}

impl DeviceBuffer {
    /// Takes so many bytes; none for none.
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

    /// The same, with these bytes in it.
    pub fn with_contents(opened: &Arc<OpenDevice>, contents: &[u8]) -> Result<Self, DriverError> {
        let buffer = Self::new(opened, contents.len())?;
        if !contents.is_empty() {
            opened.context().upload(contents, buffer.pointer)?;
        }
        Ok(buffer)
    }

    /// Where it begins.
    pub const fn pointer(&self) -> DevicePointer {
        self.pointer
    }

    /// Its bytes.
    pub const fn size(&self) -> usize {
        self.size
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.opened.is_hung() {
            return;
        }
        if self.size > 0 {
            self.opened.context().free(self.pointer);
        }
        self.opened.device_account().give_back(self.size);
    }
}

/// Memory of the host that the device reads and writes. Its owner sees to it that no stream uses it
/// when it is read, written or dropped.
pub struct PinnedBuffer {
    opened: Arc<OpenDevice>,
    pointer: NonNull<u8>,
    size: usize,
}

// SAFETY: it is plain memory with one owner, as a `Box<[u8]>`; the driver may be called by any thread.
unsafe impl Send for PinnedBuffer {}

impl PinnedBuffer {
    /// Takes so many bytes, zeros.
    pub fn new(opened: &Arc<OpenDevice>, size: usize) -> Result<Self, DriverError> {
        let account = opened.pinned_account();
        account.take(size)?;
        let pointer = match size {
            0 => Ok(NonNull::dangling()),
            _ => opened.context().alloc_pinned(size),
        };
        let pointer = pointer.inspect_err(|_| account.give_back(size))?;
        // SAFETY: the driver gave so many bytes, which nobody else knows. Zeros, because memory that was
        // never written must not be read.
        unsafe { pointer.write_bytes(0, size) };
        Ok(Self { opened: Arc::clone(opened), pointer, size })
    }

    /// Where it begins, for a copy.
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
    use crate::backend::gpu::fake::Fake;

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
