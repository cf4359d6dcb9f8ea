//! An operation on a socket, by its key, and what comes of it: the same by io_uring and by epoll.

#![expect(unsafe_code, reason = "a descriptor that comes as a number")]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// Bytes of one receive buffer: most requests fit whole; what is larger is read straight to its
/// place.
pub const BUFFER_SIZE: usize = 4096;

/// An operation under way, or its outcomes that nobody took yet.
pub struct OperationKey(pub(super) usize);

/// A buffer with bytes in it, until it is given back.
#[derive(Debug)]
pub struct FilledBuffer {
    /// Which of the driver's buffers.
    pub(super) index: u16,
    /// Bytes in it.
    pub(super) size: usize,
}

/// What came of an operation.
pub struct OperationOutcome {
    /// Bytes, a descriptor, or events, by the kind of operation.
    pub result: io::Result<u32>,
    /// What was received.
    pub filled: Option<FilledBuffer>,
    /// Whether a socket had still more to read.
    pub has_more_input: bool,
    /// Whether the operation is over, and its key with it.
    pub is_last: bool,
}

/// Takes a descriptor that an accept has made.
pub fn own(descriptor: u32) -> OwnedFd {
    let descriptor = i32::try_from(descriptor).expect("a descriptor is no error");
    // SAFETY: the kernel has just made it for this accept, and nobody else was told.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}
