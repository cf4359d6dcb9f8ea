//! Memory that backends write to, and its attributes: the buffers of outputs and states, which
//! become the tensors of responses without a copy, `TRITONBACKEND_MemoryManager`, and
//! `TRITONSERVER_BufferAttributes`.

#![expect(unsafe_code, reason = "memory that a C interface writes to")]
#![expect(clippy::disallowed_types, reason = "a table of what is allocated, held for one insertion")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

use crate::triton::object::hosted_object;
use crate::triton::types::{MEMORY_CPU, MEMORY_CPU_PINNED, MEMORY_GPU};
use base::error::Error;
use base::limits::TENSOR_ALIGNMENT;

/// Memory of the host that a backend writes to. Zeros at first: parts that a backend does not write
/// must not show a client earlier contents.
pub(super) struct HostBuffer {
    pointer: NonNull<u8>,
    size: usize,
}

// SAFETY: it owns its memory; only the backend has the pointer, and by the interface writes only
// until it gives the response away.
unsafe impl Send for HostBuffer {}
// SAFETY: as above; `as_ref` is called only after that.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// A buffer of zeros.
    ///
    /// # Errors
    /// `Unavailable` if the system does not have that much.
    pub(super) fn new(size: u64) -> Result<Self, Error> {
        let refuse = || Error::unavailable(format!("there are no {size} bytes of memory for an output"));
        let size = usize::try_from(size).map_err(|_| refuse())?;
        let layout = layout(size).ok_or_else(refuse)?;
        // SAFETY: the layout has a size above zero.
        let pointer = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(refuse)?;
        Ok(Self { pointer, size })
    }

    pub(super) const fn pointer(&self) -> *mut c_void {
        self.pointer.as_ptr().cast()
    }

    pub(super) const fn size(&self) -> usize {
        self.size
    }

    /// The bytes, which are no longer written.
    pub(super) fn freeze(self) -> Bytes {
        if self.size == 0 { Bytes::new() } else { Bytes::from_owner(self) }
    }
}

impl AsRef<[u8]> for HostBuffer {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `size` bytes were allocated, all of them set.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.size) }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        if let Some(layout) = layout(self.size) {
            // SAFETY: it was allocated with this layout in `new`.
            unsafe { dealloc(self.pointer.as_ptr(), layout) };
        }
    }
}

fn layout(size: usize) -> Option<Layout> {
    Layout::from_size_align(size.max(1), TENSOR_ALIGNMENT).ok()
}

/// The value that a pointer without a type leads to.
///
/// # Errors
/// `InvalidArgument` for a null pointer.
pub(super) fn read_value<T: Copy>(pointer: *const c_void) -> Result<T, Error> {
    if pointer.is_null() {
        return Err(Error::invalid("the value is a null pointer"));
    }
    // SAFETY: by the interface the kind of a parameter says what its pointer leads to.
    Ok(unsafe { pointer.cast::<T>().read_unaligned() })
}

/// A copy of bytes that a backend lends for the length of a call.
///
/// # Errors
/// `InvalidArgument` for a null pointer with a size.
pub(super) fn copy_bytes(pointer: *const c_void, size: usize) -> Result<Vec<u8>, Error> {
    if size == 0 {
        return Ok(Vec::new());
    }
    if pointer.is_null() || isize::try_from(size).is_err() {
        return Err(Error::invalid(format!("{size} bytes at a null pointer")));
    }
    // SAFETY: by the interface the caller lends `size` bytes, which stay as they are until the
    // request is released.
    Ok(unsafe { std::slice::from_raw_parts(pointer.cast::<u8>(), size) }.to_vec())
}

/// Copies bytes to memory that a backend's response allocator gave.
///
/// # Errors
/// `Internal` for a null pointer.
pub(super) fn write_bytes(pointer: *mut c_void, bytes: &[u8]) -> Result<(), Error> {
    if bytes.is_empty() {
        return Ok(());
    }
    if pointer.is_null() {
        return Err(Error::internal("the response allocator gave a null pointer"));
    }
    // SAFETY: by the interface the allocator gave at least as many bytes as it was asked for, which are ours to write.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), pointer.cast::<u8>(), bytes.len()) };
    Ok(())
}

/// A `TRITONBACKEND_MemoryManager`: host memory on demand.
#[derive(Default)]
pub(super) struct MemoryManagerObject {
    /// True if a model of the backend has an instance that may use a GPU.
    has_device: AtomicBool,
    /// The allocated buffers, by address.
    buffers: Mutex<HashMap<usize, HostBuffer>>,
}

hosted_object!(MemoryManagerObject, "memory manager", 4);

impl MemoryManagerObject {
    /// A model of the backend has an instance that may use a GPU.
    pub(super) fn handle_device(&self) {
        self.has_device.store(true, Ordering::Release);
    }

    /// Memory of a kind.
    ///
    /// # Errors
    /// `Unsupported` for memory that is not the host's: backends fall back to that. Pinned memory
    /// is plain host memory if there is no device to pin it for; a device that takes it for pinned
    /// could fault on it.
    pub(super) fn allocate(&self, kind: u32, size: u64) -> Result<*mut c_void, Error> {
        if kind != MEMORY_CPU_PINNED || self.has_device.load(Ordering::Acquire) {
            check_kind(kind)?;
        }
        let buffer = HostBuffer::new(size)?;
        let pointer = buffer.pointer();
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner).insert(pointer as usize, buffer);
        Ok(pointer)
    }

    /// Frees memory.
    ///
    /// # Errors
    /// `InvalidArgument` for a pointer that was not allocated here, or was freed.
    pub(super) fn free(&self, pointer: *mut c_void, kind: u32) -> Result<(), Error> {
        if kind != MEMORY_CPU_PINNED {
            check_kind(kind)?;
        }
        let found = self.buffers.lock().unwrap_or_else(PoisonError::into_inner).remove(&(pointer as usize));
        found.map(drop).ok_or_else(|| Error::invalid("the memory was not allocated here, or was freed already"))
    }
}

fn check_kind(kind: u32) -> Result<(), Error> {
    match kind {
        MEMORY_CPU => Ok(()),
        MEMORY_CPU_PINNED => Err(Error::unsupported(
            "this host allocates no pinned memory for models on GPUs: allocate memory of the CPU, or pin it in the backend",
        )),
        MEMORY_GPU => Err(Error::unsupported(
            "this host allocates memory of the CPU and not of GPUs: allocate that in the backend",
        )),
        kind => Err(Error::invalid(format!("{kind} is no TRITONSERVER_MemoryType"))),
    }
}

/// A `TRITONSERVER_BufferAttributes`.
#[derive(Debug)]
pub(super) struct BufferAttributesObject {
    pub(super) state: Mutex<BufferAttributes>,
}

hosted_object!(BufferAttributesObject, "buffer attributes", 5);

/// The known attributes of a buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct BufferAttributes {
    pub(super) size: usize,
    pub(super) memory_type: u32,
    pub(super) memory_type_id: i64,
    /// The address of a CUDA IPC handle, which is the caller's.
    pub(super) cuda_ipc_handle: usize,
}

impl BufferAttributesObject {
    /// The attributes of memory of the host.
    pub(super) const fn of_host(size: usize) -> Self {
        Self {
            state: Mutex::new(BufferAttributes {
                size,
                memory_type: MEMORY_CPU,
                memory_type_id: 0,
                cuda_ipc_handle: 0,
            }),
        }
    }

    pub(super) fn get(&self) -> BufferAttributes {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut BufferAttributes)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl BufferAttributes {
    pub(super) fn cuda_ipc_handle(&self) -> *mut c_void {
        if self.cuda_ipc_handle == 0 { null_mut() } else { self.cuda_ipc_handle as *mut c_void }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_zero_and_becomes_bytes_in_place() {
        let buffer = HostBuffer::new(100).unwrap();
        let place = buffer.pointer() as usize;
        assert_eq!((place % TENSOR_ALIGNMENT, buffer.as_ref()), (0, &[0; 100][..]));
        write_bytes(buffer.pointer(), b"abc").unwrap();
        let bytes = buffer.freeze();
        assert_eq!((bytes.as_ptr() as usize, &bytes[..4]), (place, &b"abc\0"[..]));
        assert!(HostBuffer::new(0).unwrap().freeze().is_empty());
        assert!(HostBuffer::new(u64::MAX).is_err());
    }

    #[test]
    fn memory_is_freed_once_and_only_where_it_was_allocated() {
        let manager = MemoryManagerObject::default();
        let pointer = manager.allocate(MEMORY_CPU, 10).unwrap();
        assert!(manager.allocate(MEMORY_GPU, 10).unwrap_err().text().contains("not of GPUs"));
        assert_eq!(manager.free(pointer, MEMORY_CPU), Ok(()));
        let pinned = manager.allocate(MEMORY_CPU_PINNED, 10).unwrap();
        manager.handle_device();
        assert!(manager.allocate(MEMORY_CPU_PINNED, 10).unwrap_err().text().contains("no pinned memory"));
        assert_eq!(manager.free(pinned, MEMORY_CPU_PINNED), Ok(()), "it was allocated before");
        let error = manager.free(pointer, MEMORY_CPU).unwrap_err();
        assert_eq!(error.text(), "the memory was not allocated here, or was freed already");
        assert!(manager.free(null_mut(), 9).unwrap_err().text().starts_with("9 is no"));
    }
}
