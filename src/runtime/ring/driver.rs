//! Operations under way on the sockets of one thread, and what came of them: begun now, completed
//! in a later turn. By io_uring, or where it is forbidden, as many containers have it, by epoll and
//! system calls behind the same functions. Lives on its shard.

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

/// What moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverKind {
    /// Readiness and system calls.
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
    /// The operations of this thread, which alone may use them. Fails where the kernel lacks what is
    /// needed (io_uring: Linux 6.1), or forbids it.
    pub fn new(kind: DriverKind) -> io::Result<Self> {
        Ok(match kind {
            DriverKind::Epoll => Self::Epoll(Epoll::new()?),
            DriverKind::Uring => Self::Uring(Box::new(Uring::new()?)),
        })
    }

    /// What moves the bytes.
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

    /// Receives into a buffer of the driver's choice.
    pub fn receive(&mut self, socket: &Rc<OwnedFd>) -> OperationKey {
        match self {
            Self::Epoll(driver) => driver.receive(socket),
            Self::Uring(driver) => driver.receive(socket),
        }
    }

    /// Sends all of some bytes.
    pub fn send(&mut self, socket: &Rc<OwnedFd>, bytes: Vec<u8>) -> OperationKey {
        match self {
            Self::Epoll(driver) => driver.send(socket, bytes),
            Self::Uring(driver) => driver.send(socket, bytes),
        }
    }

    /// Waits until there is something to read, or the other side has ended. To be asked for after a
    /// read that found less than it had room for.
    pub fn readable(&mut self, socket: &Rc<OwnedFd>) -> OperationKey {
        match self {
            Self::Epoll(driver) => driver.readable(socket),
            Self::Uring(driver) => driver.ready(socket, libc::POLLIN | libc::POLLRDHUP),
        }
    }

    /// Waits until there is room to write. To be asked for after a write that found none.
    pub fn writable(&mut self, socket: &Rc<OwnedFd>) -> OperationKey {
        match self {
            Self::Epoll(driver) => driver.writable(socket),
            Self::Uring(driver) => driver.ready(socket, libc::POLLOUT),
        }
    }

    /// Reads from an eventfd, for the sake of having read.
    pub fn read_event(&mut self, event: &Rc<OwnedFd>) -> OperationKey {
        match self {
            Self::Epoll(driver) => driver.read_event(event),
            Self::Uring(driver) => driver.read(event, vec![0; size_of::<u64>()]),
        }
    }

    /// The next outcome of an operation, or a promise to wake.
    pub fn poll(&mut self, key: &OperationKey, context: &Context<'_>) -> Poll<OperationOutcome> {
        match self {
            Self::Epoll(driver) => driver.poll(key, context),
            Self::Uring(driver) => driver.poll(key, context),
        }
    }

    /// Nobody waits for an operation any more: it is put away as soon as may be.
    pub fn abandon(&mut self, key: OperationKey) {
        match self {
            Self::Epoll(driver) => driver.abandon(key),
            Self::Uring(driver) => driver.abandon(key),
        }
    }

    /// Those who wait for operations, who are woken no more.
    pub fn take_wakers(&mut self) -> Vec<Waker> {
        match self {
            Self::Epoll(driver) => driver.take_wakers(),
            Self::Uring(driver) => driver.take_wakers(),
        }
    }

    /// The bytes that were received.
    pub fn bytes(&self, filled: &FilledBuffer) -> &[u8] {
        match self {
            Self::Epoll(driver) => driver.bytes(filled),
            Self::Uring(driver) => driver.bytes(filled),
        }
    }

    /// What was received has been read.
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

    /// Operations under way.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        match self {
            Self::Epoll(driver) => driver.count(),
            Self::Uring(driver) => driver.count(),
        }
    }

    /// Starts what was begun and takes in what has completed; waits for something to complete for
    /// as long as is said, `None` for ever.
    pub fn turn(&mut self, wait: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Epoll(driver) => driver.turn(wait),
            Self::Uring(driver) => driver.turn(wait),
        }
    }
}
