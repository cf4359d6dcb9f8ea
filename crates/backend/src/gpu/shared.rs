//! GPU memory that a client shares by a CUDA IPC handle. It is opened in a separate context, so that bad
//! client memory breaks no model. The calls wait for the device, so only the threads for client shared
//! memory make them, never a shard or a worker.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use crate::gpu::device::Gpu;
use crate::gpu::driver::{ContextMemory, DevicePointer, DriverError, GpuContext, SharedHandle};
use crate::gpu::lease::TensorLease;

/// The contexts in which client memory is open: one for each device that has any, by its index.
#[derive(Default)]
pub struct SharedContexts(BTreeMap<u32, Weak<SharedContext>>);

/// A context for client memory. Once it breaks, the memory open in it is lost; new memory is opened in
/// another context.
struct SharedContext {
    context: Arc<dyn GpuContext>,
    is_broken: AtomicBool,
}

/// Opened client memory; closed when dropped.
pub struct SharedMemory {
    shared: Arc<SharedContext>,
    pointer: DevicePointer,
    size: usize,
}

impl SharedContexts {
    /// Opens the memory of a handle on a device.
    ///
    /// # Errors
    ///
    /// The driver's, if the handle is not valid on this device or no context can be made.
    pub fn open(&mut self, gpu: &Gpu, handle: &SharedHandle) -> Result<SharedMemory, DriverError> {
        let index = gpu.properties().index;
        let current = self.0.get(&index).and_then(Weak::upgrade);
        let shared = match current.filter(|shared| !shared.is_broken.load(Ordering::Relaxed)) {
            Some(shared) => shared,
            None => Arc::new(SharedContext { context: gpu.new_context()?, is_broken: AtomicBool::new(false) }),
        };
        self.0.insert(index, Arc::downgrade(&shared));
        let (pointer, size) = shared.noting_broken(shared.context.open_shared(handle))?;
        Ok(SharedMemory { shared, pointer, size })
    }
}

impl SharedContext {
    /// Marks the context as broken if a call's failure broke it.
    fn noting_broken<T>(&self, outcome: Result<T, DriverError>) -> Result<T, DriverError> {
        if outcome.as_ref().is_err_and(DriverError::is_sticky) {
            self.is_broken.store(true, Ordering::Relaxed);
        }
        outcome
    }
}

impl SharedMemory {
    /// Its size in bytes.
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Copies bytes out of it, and returns when the copy is done.
    ///
    /// # Errors
    ///
    /// If the range is outside, or the copy fails.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), DriverError> {
        let from = self.address(offset, out.len())?;
        if out.is_empty() { Ok(()) } else { self.shared.noting_broken(self.shared.context.download(from, out)) }
    }

    /// Copies bytes into it, and returns when the copy is done.
    ///
    /// # Errors
    ///
    /// As [`Self::read`].
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), DriverError> {
        let to = self.address(offset, bytes.len())?;
        if bytes.is_empty() { Ok(()) } else { self.shared.noting_broken(self.shared.context.upload(bytes, to)) }
    }

    /// Copies bytes out of it into memory of the models' context, and returns when the copy is done.
    ///
    /// # Errors
    ///
    /// As [`Self::read`].
    pub fn read_to(&self, offset: usize, lease: &TensorLease) -> Result<(), DriverError> {
        let from = self.memory(self.address(offset, lease.size())?);
        self.shared.noting_broken(self.shared.context.copy_across(from, memory_of(lease), lease.size()))
    }

    /// Copies bytes out of memory of the models' context into it, and returns when the copy is done.
    ///
    /// # Errors
    ///
    /// As [`Self::read`].
    pub fn write_from(&self, offset: usize, lease: &TensorLease) -> Result<(), DriverError> {
        let to = self.memory(self.address(offset, lease.size())?);
        self.shared.noting_broken(self.shared.context.copy_across(memory_of(lease), to, lease.size()))
    }

    fn memory(&self, pointer: DevicePointer) -> ContextMemory<'_> {
        ContextMemory { context: &*self.shared.context, pointer }
    }

    fn address(&self, offset: usize, size: usize) -> Result<DevicePointer, DriverError> {
        let is_within = offset.checked_add(size).is_some_and(|end| end <= self.size);
        let pointer = is_within.then(|| self.pointer.checked_add(u64::try_from(offset).ok()?)).flatten();
        pointer.ok_or_else(|| DriverError::transient("the range is outside of the shared memory"))
    }
}

/// The memory of a tensor, in the context of the models.
fn memory_of(lease: &TensorLease) -> ContextMemory<'_> {
    ContextMemory { context: lease.opened().context(), pointer: lease.pointer() }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        self.shared.context.close_shared(self.pointer);
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of {}", self.size, self.shared.context.device().uuid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::driver::GpuFault;
    use crate::gpu::fake::Fake;

    #[test]
    fn bytes_go_both_ways_and_no_further_than_the_memory() {
        let fake = Fake::new(2);
        let gpus = fake.gpus(1_000, 1_000);
        let handle = fake.share(&[7; 64]);
        let mut contexts = SharedContexts::default();
        let memory = contexts.open(gpus.find(1).unwrap(), &handle).unwrap();
        let mut out = [0; 4];
        assert_eq!((memory.size(), memory.write(60, &[1, 2, 3, 4]), memory.read(58, &mut out)), (64, Ok(()), Ok(())));
        assert_eq!(out, [7, 7, 1, 2]);
        for offset in [61, 64, usize::MAX] {
            assert!(memory.read(offset, &mut out).is_err() && memory.write(offset, &out).is_err(), "{offset}");
        }
        assert_eq!((memory.read(64, &mut []), memory.write(64, &[])), (Ok(()), Ok(())));
        assert_eq!(fake.open_count(), 1);
        drop(memory);
        assert_eq!(fake.open_count(), 0, "closed");
        assert_eq!(gpus.find(1).unwrap().account().used(), 0, "it is the client's");
    }

    #[test]
    fn all_on_a_device_share_a_context_which_is_not_that_of_models() {
        let fake = Fake::new(1);
        let gpu = fake.gpu(1_000, 1_000);
        let _models = gpu.open().unwrap();
        let mut contexts = SharedContexts::default();
        let first = contexts.open(&gpu, &fake.share(&[1; 8])).unwrap();
        let second = contexts.open(&gpu, &fake.share(&[2; 8])).unwrap();
        assert_eq!(fake.contexts(), 2);
        drop((first, second));
        let _third = contexts.open(&gpu, &fake.share(&[3; 8])).unwrap();
        assert_eq!(fake.contexts(), 3, "the context went with the last that was open in it");
    }

    #[test]
    fn a_handle_of_nothing_is_refused_and_a_context_that_breaks_is_replaced() {
        let fake = Fake::new(1);
        let gpu = fake.gpu(1_000, 1_000);
        let mut contexts = SharedContexts::default();
        assert!(contexts.open(&gpu, &[9; 64]).is_err_and(|error| !error.is_sticky()));
        let handle = fake.share(&[1; 8]);
        let lost = contexts.open(&gpu, &handle).unwrap();
        fake.fail_next("download", GpuFault::Transient);
        assert!(lost.read(0, &mut [0; 8]).is_err());
        assert_eq!(lost.read(0, &mut [0; 8]), Ok(()), "all is as before");
        fake.fail_next("upload", GpuFault::Sticky);
        assert!(lost.write(0, &[0; 8]).is_err_and(|error| error.is_sticky()));
        assert!(lost.read(0, &mut [0; 8]).is_err());
        let found = contexts.open(&gpu, &handle).unwrap();
        assert_eq!(found.read(0, &mut [0; 8]), Ok(()));
    }
}
