//! The I/O driver of one thread: operations that start now and complete in a later turn. It uses
//! io_uring, or epoll and system calls behind the same functions if io_uring is forbidden, as in
//! many containers. Stays on its shard.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::runtime::ring::epoll::Epoll;
use crate::runtime::ring::operation::FilledBuffer;
use crate::runtime::ring::operation::OperationKey;
use crate::runtime::ring::operation::OperationOutcome;
use crate::runtime::ring::uring::Uring;

/// The way a driver does its I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverKind {
    /// epoll for readiness, and a system call per read and write.
    Epoll,
    /// io_uring.
    Uring,
}

/// The operations of one thread.
pub enum IoDriver {
    /// By epoll.
    Epoll(Epoll),
    /// By io_uring.
    Uring(Box<Uring>),
}

impl IoDriver {
    /// A driver for this thread, which alone may use it.
    ///
    /// # Errors
    /// If the kernel is too old (io_uring: before Linux 6.1) or forbids it.
    pub fn new(kind: DriverKind) -> io::Result<Self> {
        Ok(match kind {
            DriverKind::Epoll => Self::Epoll(Epoll::new()?),
            DriverKind::Uring => Self::Uring(Box::new(Uring::new()?)),
        })
    }

    /// The kind of this driver.
    pub const fn kind(&self) -> DriverKind {
        match self {
            Self::Epoll(_) => DriverKind::Epoll,
            Self::Uring(_) => DriverKind::Uring,
        }
    }

    /// Accepts connections until it is abandoned.
    pub fn accept(&mut self, listener: &Rc<OwnedFd>) -> OperationKey {
        match self {
            Self::Epoll(driver) => driver.accept(listener),
            Self::Uring(driver) => driver.accept(listener),
        }
    }

    /// Ends an accept after the connections that it has accepted already; its last outcome is an error.
    pub fn stop_accept(&mut self, key: &OperationKey) {
        match self {
            Self::Epoll(driver) => driver.stop_accept(key),
            Self::Uring(driver) => driver.stop(key),
        }
    }

    /// Receives into one of the driver's buffers.
    pub fn receive(&mut self, socket: &Rc<OwnedFd>) -> OperationKey {
        match self {
            Self::Epoll(driver) => driver.receive(socket),
            Self::Uring(driver) => driver.receive(socket),
        }
    }

    /// Receives into the driver's buffers until it is stopped; `None` if single receives are as
    /// cheap.
    pub fn receive_many(&mut self, socket: &Rc<OwnedFd>) -> Option<OperationKey> {
        match self {
            Self::Epoll(_) => None,
            Self::Uring(driver) => Some(driver.receive_many(socket)),
        }
    }

    /// Ends a multishot receive; its last outcome is an error.
    pub fn stop_receive(&mut self, key: &OperationKey) {
        match self {
            Self::Epoll(_) => {}
            Self::Uring(driver) => driver.stop(key),
        }
    }

    /// Returns true if an operation has an outcome to take.
    pub fn has_outcomes(&self, key: &OperationKey) -> bool {
        match self {
            Self::Epoll(_) => false,
            Self::Uring(driver) => driver.has_outcomes(key),
        }
    }

    /// Returns true if a receive has found that the socket failed.
    pub fn has_failed(&self, key: &OperationKey) -> bool {
        match self {
            Self::Epoll(driver) => driver.has_failed(key),
            Self::Uring(driver) => driver.has_failed(key),
        }
    }

    /// Sends all of `bytes`.
    pub fn send(&mut self, socket: &Rc<OwnedFd>, bytes: Vec<u8>) -> OperationKey {
        match self {
            Self::Epoll(driver) => driver.send(socket, bytes),
            Self::Uring(driver) => driver.send(socket, bytes),
        }
    }

    /// Waits until there is something to read, or the peer has closed its side. Only call it after a read that found
    /// less than it had room for: epoll reports edges.
    pub fn readable(&mut self, socket: &Rc<OwnedFd>) -> OperationKey {
        match self {
            Self::Epoll(driver) => driver.readable(socket),
            Self::Uring(driver) => driver.ready(socket, libc::POLLIN | libc::POLLRDHUP),
        }
    }

    /// Waits until there is room to write. Only call it after a write that found none: epoll reports edges.
    pub fn writable(&mut self, socket: &Rc<OwnedFd>) -> OperationKey {
        match self {
            Self::Epoll(driver) => driver.writable(socket),
            Self::Uring(driver) => driver.ready(socket, libc::POLLOUT),
        }
    }

    /// Reads from an eventfd to reset it.
    pub fn read_event(&mut self, event: &Rc<OwnedFd>) -> OperationKey {
        match self {
            Self::Epoll(driver) => driver.read_event(event),
            Self::Uring(driver) => driver.read(event, vec![0; size_of::<u64>()]),
        }
    }

    /// The next outcome of an operation. The key is used up with the last one (`is_last`).
    pub fn poll(&mut self, key: &OperationKey, context: &Context<'_>) -> Poll<OperationOutcome> {
        match self {
            Self::Epoll(driver) => driver.poll(key, context),
            Self::Uring(driver) => driver.poll(key, context),
        }
    }

    /// The future of an operation was dropped: cancels it, and frees it as soon as possible.
    pub fn abandon(&mut self, key: OperationKey) {
        match self {
            Self::Epoll(driver) => driver.abandon(key),
            Self::Uring(driver) => driver.abandon(key),
        }
    }

    /// Takes the wakers of all operations, which then no longer wake a task.
    pub fn take_wakers(&mut self) -> Vec<Waker> {
        match self {
            Self::Epoll(driver) => driver.take_wakers(),
            Self::Uring(driver) => driver.take_wakers(),
        }
    }

    /// Collects what has completed, for a thread that has submitted everything and looks for work without sleeping.
    ///
    /// # Errors
    /// As [`Self::turn`].
    pub fn look(&mut self) -> io::Result<()> {
        match self {
            Self::Epoll(driver) => driver.turn(Some(Duration::ZERO)),
            Self::Uring(driver) => driver.look(),
        }
    }

    /// Returns true if there may be more to collect than the last call collected.
    pub fn has_pending(&mut self) -> bool {
        match self {
            Self::Epoll(driver) => driver.has_pending(),
            Self::Uring(driver) => driver.has_pending(),
        }
    }

    /// The bytes that were received.
    pub fn bytes(&self, filled: &FilledBuffer) -> &[u8] {
        match self {
            Self::Epoll(driver) => driver.bytes(filled),
            Self::Uring(driver) => driver.bytes(filled),
        }
    }

    /// Returns a buffer whose bytes were read.
    pub fn give_back(&mut self, filled: FilledBuffer) {
        match self {
            Self::Epoll(driver) => driver.give_back(filled),
            Self::Uring(driver) => driver.give_back(filled),
        }
    }

    /// An empty buffer to write the next reply into.
    pub fn take_spare(&mut self) -> Vec<u8> {
        match self {
            Self::Epoll(driver) => driver.take_spare(),
            Self::Uring(driver) => driver.take_spare(),
        }
    }

    /// Operations in flight.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        match self {
            Self::Epoll(driver) => driver.count(),
            Self::Uring(driver) => driver.count(),
        }
    }

    /// Submits what was started and collects what has completed. Waits up to `wait` for a
    /// completion, or without limit if `None`.
    ///
    /// # Errors
    /// If the kernel refuses permanently.
    pub fn turn(&mut self, wait: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Epoll(driver) => driver.turn(wait),
            Self::Uring(driver) => driver.turn(wait),
        }
    }
}
