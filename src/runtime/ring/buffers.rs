//! Receive buffers that the kernel picks from when bytes arrive (`IORING_REGISTER_PBUF_RING`, Linux 5.19), so that an
//! idle connection needs no buffer. Stays on its shard. Bounded: [`BUFFER_COUNT`] buffers of one size. When all are
//! taken, a receive fails with `ENOBUFS` and its connection reads with a system call instead.
//!
//! A buffer belongs to the kernel from `publish` to the completion that names it, and to us from then until it is given
//! back. The ring of entries is shared memory: we write entries and the tail, the kernel only reads them.

#![expect(unsafe_code, reason = "memory that is shared with the kernel")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::Submitter;
use io_uring::types::BufRingEntry;

use crate::runtime::ring::operation::{BUFFER_SIZE, FilledBuffer};

/// Buffers of one shard; a power of two.
const BUFFER_COUNT: u16 = 256;
/// The one group of buffers.
pub const GROUP: u16 = 0;
/// The kernel requires the ring to start on a page.
const PAGE_SIZE: usize = 4096;

const _: () = assert!(BUFFER_COUNT.is_power_of_two(), "indices are masked");

/// The buffers of one ring.
pub struct ProvidedBuffers {
    entries: NonNull<BufRingEntry>,
    memory: NonNull<u8>,
    /// Entries ever put; the kernel masks it to find the slot.
    tail: u16,
    is_leaked: bool,
}

impl ProvidedBuffers {
    /// Allocates the buffers and gives all of them to a ring, which must be drained and dropped before them.
    ///
    /// # Errors
    /// If the kernel cannot register them.
    pub fn register(submitter: &Submitter<'_>) -> io::Result<Self> {
        let entries = allocate(ring_layout()).cast();
        let memory = allocate(memory_layout());
        let mut buffers = Self { entries, memory, tail: 0, is_leaked: false };
        // SAFETY: the ring is as large as is said, on a page of its own, and `buffers` frees it,
        // which its owner drops after the io_uring that it is registered with.
        unsafe { submitter.register_buf_ring_with_flags(entries.as_ptr() as u64, BUFFER_COUNT, GROUP, 0)? };
        (0..BUFFER_COUNT).for_each(|index| buffers.put(index));
        buffers.publish();
        Ok(buffers)
    }

    /// Returns the buffer that a completion names, now ours, with `size` bytes in it.
    pub fn take(&self, index: u16, size: usize) -> FilledBuffer {
        assert!(index < BUFFER_COUNT && size <= BUFFER_SIZE, "the kernel names a buffer that it was given");
        FilledBuffer { index, size }
    }

    /// The bytes in a buffer.
    pub fn bytes(&self, filled: &FilledBuffer) -> &[u8] {
        let start = usize::from(filled.index) * BUFFER_SIZE;
        // SAFETY: `take` checked index and size; the memory was zeroed at first, and the kernel
        // writes to a buffer only between `put` and the completion that `filled` stands for.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(start), filled.size) }
    }

    /// Gives a buffer back to the kernel.
    #[expect(clippy::needless_pass_by_value, reason = "who gives it back has it no more")]
    pub fn give_back(&mut self, filled: FilledBuffer) {
        self.put(filled.index);
        self.publish();
    }

    /// The kernel may still write to the buffers: never free them.
    pub fn leak(&mut self) {
        self.is_leaked = true;
    }

    fn put(&mut self, index: u16) {
        let slot = usize::from(self.tail % BUFFER_COUNT);
        let start = usize::from(index) * BUFFER_SIZE;
        // SAFETY: the slot is below the ring's size and free: there are as many slots as buffers.
        // The buffer lies inside `memory`.
        let (entry, address) = unsafe { (&mut *self.entries.as_ptr().add(slot), self.memory.as_ptr().add(start)) };
        entry.set_addr(address as u64);
        entry.set_len(u32::try_from(BUFFER_SIZE).unwrap_or(u32::MAX));
        entry.set_bid(index);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Shows the kernel the buffers that were put.
    fn publish(&self) {
        // SAFETY: the tail is inside the first entry of a ring that lives as long as `self`; the
        // kernel only reads it.
        let tail = unsafe { &*BufRingEntry::tail(self.entries.as_ptr()).cast::<AtomicU16>() };
        // Release: the kernel reads the tail with acquire, and must see the entries below it complete.
        tail.store(self.tail, Ordering::Release);
    }
}

impl Drop for ProvidedBuffers {
    fn drop(&mut self) {
        if self.is_leaked {
            return;
        }
        // SAFETY: both were allocated with these layouts, and the kernel no longer uses them:
        // `Uring`, which owns them, has waited for the end of every receive, or has called `leak`.
        unsafe {
            dealloc(self.entries.as_ptr().cast(), ring_layout());
            dealloc(self.memory.as_ptr(), memory_layout());
        }
    }
}

fn ring_layout() -> Layout {
    let size = usize::from(BUFFER_COUNT) * size_of::<BufRingEntry>();
    Layout::from_size_align(size, PAGE_SIZE).expect("a page is a power of two, and the ring is small")
}

fn memory_layout() -> Layout {
    let size = usize::from(BUFFER_COUNT) * BUFFER_SIZE;
    Layout::from_size_align(size, PAGE_SIZE).expect("a page is a power of two, and the buffers are small")
}

fn allocate(layout: Layout) -> NonNull<u8> {
    // SAFETY: no layout here has size zero.
    let memory = unsafe { alloc_zeroed(layout) };
    NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout))
}
