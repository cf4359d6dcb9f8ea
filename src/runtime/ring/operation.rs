//! Keys and outcomes of I/O operations, the same for io_uring and epoll.

#![expect(unsafe_code, reason = "a descriptor that comes as a number")]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// Bytes of one receive buffer. Most requests fit; the rest of a larger one is read straight into the connection's
/// memory.
pub const BUFFER_SIZE: usize = 4096;

/// Names an operation until its last outcome was taken.
pub struct OperationKey(pub(super) usize);

/// One of the driver's buffers with received bytes in it; must be given back.
#[derive(Debug)]
pub struct FilledBuffer {
    /// The index of the driver's buffer.
    pub(super) index: u16,
    /// Bytes in it.
    pub(super) size: usize,
}

/// The outcome of an operation.
pub struct OperationOutcome {
    /// A number of bytes, a descriptor, or events, by kind of operation.
    pub result: io::Result<u32>,
    /// The received bytes.
    pub filled: Option<FilledBuffer>,
    /// True if the socket has more to read.
    pub has_more_input: bool,
    /// True if it is the last outcome; the key is used up then.
    pub is_last: bool,
}

impl OperationOutcome {
    /// Returns true if a receive or send has found the end of its connection.
    pub fn is_end(&self) -> bool {
        matches!(self.result, Ok(0)) || self.is_failure()
    }

    /// Returns true if the socket has failed, and not if the operation has merely ended or found no
    /// buffer.
    pub fn is_failure(&self) -> bool {
        let code = self.result.as_ref().err().map(io::Error::raw_os_error);
        code.is_some_and(|code| !matches!(code, Some(libc::ECANCELED | libc::ENOBUFS)))
    }
}

/// Takes ownership of a descriptor that an accept returned.
pub fn own(descriptor: u32) -> OwnedFd {
    let descriptor = i32::try_from(descriptor).expect("a descriptor is no error");
    // SAFETY: the kernel has just made it for this accept, and nothing else knows it.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}
