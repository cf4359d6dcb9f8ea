//! The objects of a response cache as its own code sees them: an entry, which is a list of buffers, and the allocator that
//! copies an answer between the server and these buffers. The server's own entries have one buffer, the encoded answer.

#![expect(clippy::disallowed_types, reason = "taken when an answer is looked up or stored, on a thread of the cache")]

use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::triton::memory::{BufferAttributes, copy_bytes, write_bytes};
use crate::triton::object::hosted_object;
use crate::triton::types::{MEMORY_CPU, MEMORY_CPU_PINNED};
use base::error::Error;

/// A `TRITONCACHE_CacheEntry`.
#[derive(Default)]
pub(super) struct CacheEntryObject {
    buffers: Mutex<Vec<EntryBuffer>>,
}

hosted_object!(CacheEntryObject, "cache entry", 27);

/// A buffer of an entry: the cache's memory, or no memory yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EntryBuffer {
    address: usize,
    size: usize,
}

/// A `TRITONCACHE_Allocator`.
pub(super) struct CacheAllocatorObject {
    transfer: Mutex<CacheTransfer>,
}

hosted_object!(CacheAllocatorObject, "cache allocator", 28);

/// The direction of a copy, and its bytes.
pub(super) enum CacheTransfer {
    /// From the cache, at most as many bytes; with the bytes once they are copied.
    Load(usize, Option<Bytes>),
    /// To the cache.
    Store(Bytes),
}

impl CacheEntryObject {
    /// An entry with a buffer that the cache is to provide, as Triton's (`cache_entry.cc`, `AddPlaceholderBuffer`).
    pub(super) fn of_size(size: usize) -> Self {
        Self { buffers: Mutex::new(vec![EntryBuffer { address: 0, size }]) }
    }

    /// The number of its buffers.
    pub(super) fn count(&self) -> usize {
        self.buffers().len()
    }

    /// Adds a buffer of the cache.
    ///
    /// # Errors
    /// `InvalidArgument` in Triton's words for a null pointer, no bytes, or memory of a GPU.
    pub(super) fn add(&self, base: *mut c_void, attributes: BufferAttributes) -> Result<(), Error> {
        if base.is_null() {
            return Err(Error::invalid("entry, base, or attrs was nullptr"));
        }
        if attributes.size == 0 {
            return Err(Error::invalid("Buffer byte size was zero"));
        }
        check_memory(&attributes)?;
        self.buffers().push(EntryBuffer { address: base as usize, size: attributes.size });
        Ok(())
    }

    /// The address and the size of a buffer. The address is null until the cache has set one.
    ///
    /// # Errors
    /// `InvalidArgument` in Triton's words without such a buffer.
    pub(super) fn buffer(&self, index: usize) -> Result<(*mut c_void, usize), Error> {
        let found = self.buffers().get(index).copied();
        found.map(|buffer| (buffer.address as *mut c_void, buffer.size)).ok_or_else(no_buffer)
    }

    /// Replaces the memory of a buffer, and its size if attributes are given.
    ///
    /// # Errors
    /// `InvalidArgument` in Triton's words without such a buffer, and for memory of a GPU.
    pub(super) fn set(
        &self,
        index: usize,
        base: *mut c_void,
        attributes: Option<BufferAttributes>,
    ) -> Result<(), Error> {
        let mut buffers = self.buffers();
        let buffer = buffers.get_mut(index).ok_or_else(no_buffer)?;
        if let Some(attributes) = attributes {
            check_memory(&attributes)?;
            buffer.size = attributes.size;
        }
        buffer.address = base as usize;
        Ok(())
    }

    fn buffers(&self) -> MutexGuard<'_, Vec<EntryBuffer>> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CacheAllocatorObject {
    pub(super) const fn new(transfer: CacheTransfer) -> Self {
        Self { transfer: Mutex::new(transfer) }
    }

    /// Copies between the server and the buffers of an entry.
    ///
    /// # Errors
    /// `Internal` if the entry is not what an answer is: in Triton's words where it checks the same.
    pub(super) fn copy(&self, entry: &CacheEntryObject) -> Result<(), Error> {
        let buffers = entry.buffers().clone();
        let [EntryBuffer { address, size }] = buffers[..] else {
            return Err(Error::internal(format!(
                "Expected number of responses in cache does not match. Expected: 1, received: {}",
                buffers.len()
            )));
        };
        let base = address as *mut c_void;
        if base.is_null() {
            return Err(Error::internal("buffer was nullptr"));
        }
        match &mut *self.transfer.lock().unwrap_or_else(PoisonError::into_inner) {
            CacheTransfer::Load(size_max, _) if size > *size_max => {
                Err(Error::internal(format!("the entry has {size} bytes, and an answer at most {size_max}")))
            }
            CacheTransfer::Load(_, value) => {
                *value = Some(copy_bytes(base, size)?.into());
                Ok(())
            }
            CacheTransfer::Store(value) if value.len() != size => Err(Error::internal(format!(
                "Serialized buffer size does not match. Expected: {}, received: {size}",
                value.len()
            ))),
            CacheTransfer::Store(value) => write_bytes(base, value),
        }
    }

    /// The copied bytes of a lookup.
    pub(super) fn into_value(self) -> Option<Bytes> {
        match self.transfer.into_inner().unwrap_or_else(PoisonError::into_inner) {
            CacheTransfer::Load(_, value) => value,
            CacheTransfer::Store(_) => None,
        }
    }
}

fn check_memory(attributes: &BufferAttributes) -> Result<(), Error> {
    if [MEMORY_CPU, MEMORY_CPU_PINNED].contains(&attributes.memory_type) {
        return Ok(());
    }
    Err(Error::invalid("Only buffers in CPU memory are allowed in cache currently"))
}

fn no_buffer() -> Error {
    Error::invalid("index was greater than count")
}
