//! Operations under way in one io_uring, and what came of them. An operation owns what the kernel
//! uses of it, its bytes and its descriptor, until it has completed, whoever has lost interest:
//! that is what makes dropping a future safe. Lives on its shard. Bounded by who starts operations:
//! a connection has three at most.

#![expect(unsafe_code, reason = "entries that name memory and descriptors by number")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use io_uring::squeue::Entry;
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode};
use slab::Slab;
use smallvec::SmallVec;

use crate::limits::RING_DRAIN_MAX;
use crate::runtime::clock;
use crate::time::Instant;

use crate::runtime::ring::buffers::{GROUP, ProvidedBuffers};
use crate::runtime::ring::operation::{FilledBuffer, OperationKey, OperationOutcome, own};

/// Entries of the submission queue: what one turn of a busy shard starts; more go in parts.
const SUBMISSIONS: u32 = 1024;
/// Entries of the completion queue; beyond it the kernel keeps them in a list of its own.
const COMPLETIONS: u32 = 4 * SUBMISSIONS;
/// Buffers of finished sends that are kept for the next.
const SPARES_MAX: usize = 64;
/// `IORING_RECVSEND_POLL_FIRST` (linux/io_uring.h): what was there has been read, so that a try before
/// the wait would find nothing.
const POLL_FIRST: u16 = 1;
/// Names what nobody waits for.
const NOBODY: u64 = u64::MAX;

/// One io_uring with its operations, which are drained before their memory is freed: the kernel ends
/// what is under way some time after the descriptor of a ring was closed, and writes to it until then.
pub struct Uring {
    /// Dropped before the buffers that it was told of.
    ring: IoUring,
    operations: Slab<UringOperation>,
    buffers: ProvidedBuffers,
    spares: Vec<Vec<u8>>,
}

struct UringOperation {
    kind: UringKind,
    waker: Option<Waker>,
    outcomes: SmallVec<[OperationOutcome; 1]>,
    /// Nobody waits any more: the outcomes are put away.
    is_abandoned: bool,
    /// Kept open until the kernel is done with it.
    _descriptor: Rc<OwnedFd>,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum UringKind {
    /// Its result is a descriptor.
    Accept,
    /// Its result is a count, or events.
    Other,
}

impl Uring {
    /// An io_uring of this thread, which alone may use it. Fails where the kernel lacks what is
    /// needed (Linux 6.1), or forbids io_uring.
    pub fn new() -> io::Result<Self> {
        let mut builder = IoUring::builder();
        builder.setup_single_issuer().setup_defer_taskrun().setup_submit_all().setup_cqsize(COMPLETIONS);
        let ring: IoUring = builder.build(SUBMISSIONS)?;
        if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let buffers = ProvidedBuffers::register(&ring.submitter())?;
        Ok(Self { ring, operations: Slab::new(), buffers, spares: Vec::new() })
    }

    /// Accepts connections until it is abandoned.
    pub fn accept(&mut self, listener: &Rc<OwnedFd>) -> OperationKey {
        let flags = libc::SOCK_CLOEXEC;
        let entry = opcode::AcceptMulti::new(fd(listener)).flags(flags).build();
        self.start(entry, UringKind::Accept, listener, Vec::new())
    }

    /// Receives into a buffer of the kernel's choice.
    pub fn receive(&mut self, socket: &Rc<OwnedFd>) -> OperationKey {
        let entry = opcode::Recv::new(fd(socket), std::ptr::null_mut(), 0).ioprio(POLL_FIRST).buf_group(GROUP).build();
        self.start(entry.flags(io_uring::squeue::Flags::BUFFER_SELECT), UringKind::Other, socket, Vec::new())
    }

    /// Sends all of some bytes.
    pub fn send(&mut self, socket: &Rc<OwnedFd>, bytes: Vec<u8>) -> OperationKey {
        let size = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
        let entry = opcode::Send::new(fd(socket), bytes.as_ptr(), size).flags(flags).build();
        self.start(entry, UringKind::Other, socket, bytes)
    }

    /// Waits until a descriptor can be read or written, as poll(2) has it.
    pub fn ready(&mut self, descriptor: &Rc<OwnedFd>, events: libc::c_short) -> OperationKey {
        let entry = opcode::PollAdd::new(fd(descriptor), u32::from(events.cast_unsigned())).build();
        self.start(entry, UringKind::Other, descriptor, Vec::new())
    }

    /// Reads from a descriptor that is no socket, for the sake of having read.
    pub fn read(&mut self, descriptor: &Rc<OwnedFd>, mut space: Vec<u8>) -> OperationKey {
        let size = u32::try_from(space.len()).unwrap_or(u32::MAX);
        let entry = opcode::Read::new(fd(descriptor), space.as_mut_ptr(), size).build();
        self.start(entry, UringKind::Other, descriptor, space)
    }

    /// The next outcome of an operation, or a promise to wake.
    pub fn poll(&mut self, key: &OperationKey, context: &Context<'_>) -> Poll<OperationOutcome> {
        let operation = self.operations.get_mut(key.0).expect("a key is given up with the last outcome");
        if operation.outcomes.is_empty() {
            match &mut operation.waker {
                Some(waker) => waker.clone_from(context.waker()),
                None => operation.waker = Some(context.waker().clone()),
            }
            return Poll::Pending;
        }
        let outcome = operation.outcomes.remove(0);
        if outcome.is_last {
            self.finish(key.0);
        }
        Poll::Ready(outcome)
    }

    /// Nobody waits for an operation any more: it is cancelled, and put away when the kernel is
    /// done with it.
    #[expect(clippy::needless_pass_by_value, reason = "who abandons it has it no more")]
    pub fn abandon(&mut self, key: OperationKey) {
        if let Err(error) = self.cancel(key.0) {
            panic_on(&error);
        }
    }

    /// Those who wait for operations, who are woken no more.
    pub fn take_wakers(&mut self) -> Vec<Waker> {
        self.operations.iter_mut().filter_map(|(_, operation)| operation.waker.take()).collect()
    }

    /// The bytes that were received.
    pub fn bytes(&self, filled: &FilledBuffer) -> &[u8] {
        self.buffers.bytes(filled)
    }

    /// What was received has been read.
    pub fn give_back(&mut self, filled: FilledBuffer) {
        self.buffers.give_back(filled);
    }

    /// An empty buffer to write the next reply into.
    pub fn take_spare(&mut self) -> Vec<u8> {
        self.spares.pop().unwrap_or_default()
    }

    /// Operations under way.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.operations.len()
    }

    /// Submits what was started and takes in what has completed; waits for something to complete
    /// for as long as is said, `None` for ever.
    pub fn turn(&mut self, wait: Option<Duration>) -> io::Result<()> {
        let outcome = match wait {
            Some(Duration::ZERO) => self.enter(),
            Some(wait) => {
                let timespec = Timespec::from(wait);
                self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&timespec))
            }
            None => self.ring.submit_and_wait(1),
        };
        match outcome {
            Err(error) if !is_passing(&error) => return Err(error),
            _ => self.handle_completions(),
        }
        Ok(())
    }

    fn enter(&self) -> io::Result<usize> {
        const GET_EVENTS: u32 = 1;
        let count = {
            // SAFETY: no other reference to the submission queue is alive in this function.
            let queue = unsafe { self.ring.submission_shared() };
            u32::try_from(queue.len()).unwrap_or(u32::MAX)
        };
        // SAFETY: the arguments are counts and a flag; what the entries point to was promised to
        // live in `push`.
        unsafe { self.ring.submitter().enter::<libc::sigset_t>(count, 0, GET_EVENTS, None) }
    }

    fn start(&mut self, entry: Entry, kind: UringKind, descriptor: &Rc<OwnedFd>, bytes: Vec<u8>) -> OperationKey {
        let key = self.operations.insert(UringOperation {
            kind,
            waker: None,
            outcomes: SmallVec::new(),
            is_abandoned: false,
            _descriptor: Rc::clone(descriptor),
            bytes,
        });
        self.push(&entry.user_data(key as u64));
        OperationKey(key)
    }

    fn push(&mut self, entry: &Entry) {
        if let Err(error) = self.try_push(entry) {
            // Without a queue this shard cannot serve: its thread ends, and the server says so.
            panic_on(&error);
        }
    }

    fn try_push(&mut self, entry: &Entry) -> io::Result<()> {
        loop {
            // SAFETY: bytes and descriptor that the entry names are in its `UringOperation`, which is removed
            // only after its last completion, or never (`drop`); the heap memory of a `Vec` does not move.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            if let Err(error) = self.ring.submit().map(drop)
                && !is_passing(&error)
            {
                return Err(error);
            }
        }
    }

    fn cancel(&mut self, key: usize) -> io::Result<()> {
        let Some(operation) = self.operations.get_mut(key) else { return Ok(()) };
        operation.is_abandoned = true;
        operation.waker = None;
        let outcomes = std::mem::take(&mut operation.outcomes);
        let (kind, is_over) = (operation.kind, outcomes.iter().any(|outcome| outcome.is_last));
        outcomes.into_iter().for_each(|outcome| self.put_away(kind, outcome));
        if is_over {
            self.finish(key);
            return Ok(());
        }
        self.try_push(&opcode::AsyncCancel::new(key as u64).build().user_data(NOBODY))
    }

    /// Cancels all that is under way and waits until the kernel is done with it, but not beyond an
    /// instant. False where it is not done.
    pub(super) fn drain(&mut self, until: Instant) -> bool {
        let keys: Vec<usize> = self.operations.iter().map(|(key, _)| key).collect();
        for key in keys {
            if self.cancel(key).is_err() {
                return false;
            }
        }
        while !self.operations.is_empty() {
            let left = until.since(clock::now());
            if left.is_zero() || self.turn(Some(left)).is_err() {
                return false;
            }
        }
        true
    }

    fn handle_completions(&mut self) {
        loop {
            let Some(entry) = self.ring.completion().next() else { return };
            if entry.user_data() != NOBODY {
                self.handle_completion(&entry);
            }
        }
    }

    fn handle_completion(&mut self, entry: &cqueue::Entry) {
        let Ok(key) = usize::try_from(entry.user_data()) else { return };
        let Some(operation) = self.operations.get_mut(key) else { return };
        let result = u32::try_from(entry.result()).map_err(|_| io::Error::from_raw_os_error(-entry.result()));
        let size = result.as_ref().map_or(0, |size| *size as usize);
        let outcome = OperationOutcome {
            filled: cqueue::buffer_select(entry.flags()).map(|index| self.buffers.take(index, size)),
            has_more_input: cqueue::sock_nonempty(entry.flags()),
            is_last: !cqueue::more(entry.flags()),
            result,
        };
        if operation.is_abandoned {
            let (kind, is_last) = (operation.kind, outcome.is_last);
            self.put_away(kind, outcome);
            if is_last {
                self.finish(key);
            }
            return;
        }
        operation.outcomes.push(outcome);
        if let Some(waker) = operation.waker.take() {
            waker.wake();
        }
    }

    /// Frees what nobody took.
    fn put_away(&mut self, kind: UringKind, outcome: OperationOutcome) {
        if let Some(filled) = outcome.filled {
            self.buffers.give_back(filled);
        }
        if let (UringKind::Accept, Ok(descriptor)) = (kind, outcome.result) {
            drop(own(descriptor));
        }
    }

    fn finish(&mut self, key: usize) {
        let mut bytes = self.operations.remove(key).bytes;
        if bytes.capacity() > 0
            && bytes.capacity() <= crate::runtime::ring::SPARE_SIZE_MAX
            && self.spares.len() < SPARES_MAX
        {
            bytes.clear();
            self.spares.push(bytes);
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        if !self.drain(clock::now() + RING_DRAIN_MAX) {
            // The kernel may still read and write it.
            std::mem::forget(std::mem::take(&mut self.operations));
            self.buffers.leak();
        }
    }
}

fn fd(descriptor: &Rc<OwnedFd>) -> Fd {
    Fd(descriptor.as_raw_fd())
}

/// The end of the wait, a signal, or a queue that is full for now.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN))
}

#[expect(clippy::panic, reason = "the one way out: the shard cannot go on, and its thread says why")]
fn panic_on(error: &io::Error) -> ! {
    panic!("io_uring takes nothing any more: {error}")
}
