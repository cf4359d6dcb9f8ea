//! The operations of one io_uring. The kernel reads and writes an operation's bytes, and uses its descriptor, until the
//! operation has completed. So the slab here owns both until then, even if the future that waited for it was dropped:
//! that is what makes dropping a future safe. Stays on its shard. Bounded by the connections, which have at most three
//! operations each.

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

use crate::limits::{RECEIVES_AHEAD_MAX, RING_DRAIN_MAX};
use crate::runtime::{clock, ring};
use crate::time::Instant;

use crate::runtime::ring::buffers::{GROUP, ProvidedBuffers};
use crate::runtime::ring::operation::{FilledBuffer, OperationKey, OperationOutcome, own};

/// Entries of the submission queue: as many as one turn of a busy shard starts. More than that are submitted in parts.
const SUBMISSIONS: u32 = 1024;
/// Entries of the completion queue. The kernel keeps those beyond it in a list (`IORING_FEAT_NODROP`).
const COMPLETIONS: u32 = 4 * SUBMISSIONS;
/// Completions of one call from which on more may follow: the kernel does the work of some twenty
/// operations in a call (`IO_LOCAL_TW_DEFAULT_MAX`), and not each of them completes.
const COLLECTED_MANY: usize = 16;
/// Buffers of finished sends that are kept for the next.
const SPARES_MAX: usize = 64;
/// `IORING_RECVSEND_POLL_FIRST` (linux/io_uring.h): wait before the first attempt. A connection has read all input
/// before it receives again, so that attempt would find nothing.
const POLL_FIRST: u16 = 1;
/// User data of entries whose completion is ignored.
const NOBODY: u64 = u64::MAX;

/// One io_uring with its operations. Drained before their memory is freed: after a ring's descriptor is closed, the
/// kernel goes on writing to that memory for some time.
pub struct Uring {
    /// Declared first, so that it is dropped before the buffers that are registered with it.
    ring: IoUring,
    operations: Slab<UringOperation>,
    buffers: ProvidedBuffers,
    /// Empty buffers of finished sends.
    spares: Vec<Vec<u8>>,
    /// Completions that were collected last.
    collected: usize,
}

struct UringOperation {
    kind: UringKind,
    waker: Option<Waker>,
    outcomes: SmallVec<[OperationOutcome; 1]>,
    /// No future waits for it any longer: its outcomes are discarded.
    is_abandoned: bool,
    /// It was told to end, and will.
    is_stopping: bool,
    /// Keeps the descriptor open until the operation has completed.
    _descriptor: Rc<OwnedFd>,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum UringKind {
    /// Its result is a descriptor.
    Accept,
    /// Its result is a count, or events.
    Other,
    /// Its results are counts of bytes in provided buffers.
    Receive,
}

impl Uring {
    /// An io_uring for this thread, which alone may use it.
    ///
    /// # Errors
    /// If the kernel is older than Linux 6.1, or forbids io_uring.
    pub fn new() -> io::Result<Self> {
        let mut builder = IoUring::builder();
        // One thread submits, and takes completions only when it asks for them: the kernel then runs completion work in
        // that call instead of interrupting the thread.
        builder
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_cqsize(COMPLETIONS);
        let ring: IoUring = builder.build(SUBMISSIONS)?;
        // Timeouts as an argument of the call that waits, and no lost completions.
        if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let buffers = ProvidedBuffers::register(&ring.submitter())?;
        Ok(Self { ring, operations: Slab::new(), buffers, spares: Vec::new(), collected: 0 })
    }

    /// Accepts connections until it is abandoned.
    pub fn accept(&mut self, listener: &Rc<OwnedFd>) -> OperationKey {
        let flags = libc::SOCK_CLOEXEC;
        let entry = opcode::AcceptMulti::new(fd(listener)).flags(flags).build();
        self.start(entry, UringKind::Accept, listener, Vec::new())
    }

    /// Ends an accept or a multishot receive, after what it has brought already: the kernel
    /// completes it with an error behind that.
    pub fn stop(&mut self, key: &OperationKey) {
        let Some(operation) = self.operations.get_mut(key.0) else { return };
        if !std::mem::replace(&mut operation.is_stopping, true) {
            self.push(&cancel_of(key.0));
        }
    }

    /// Receives into a provided buffer that the kernel picks when bytes arrive.
    pub fn receive(&mut self, socket: &Rc<OwnedFd>) -> OperationKey {
        let entry = opcode::Recv::new(fd(socket), std::ptr::null_mut(), 0).ioprio(POLL_FIRST).buf_group(GROUP).build();
        self.start(entry.flags(io_uring::squeue::Flags::BUFFER_SELECT), UringKind::Other, socket, Vec::new())
    }

    /// Receives into provided buffers, whenever bytes arrive, until it is stopped or fails: the
    /// socket is polled once and not for each receive. Ends by itself if more than
    /// [`RECEIVES_AHEAD_MAX`] wait to be taken.
    pub fn receive_many(&mut self, socket: &Rc<OwnedFd>) -> OperationKey {
        let entry = opcode::RecvMulti::new(fd(socket), GROUP).build();
        self.start(entry, UringKind::Receive, socket, Vec::new())
    }

    /// Returns true if an operation has an outcome to take.
    pub fn has_outcomes(&self, key: &OperationKey) -> bool {
        self.operations.get(key.0).is_some_and(|operation| !operation.outcomes.is_empty())
    }

    /// Returns true if a receive has found that the socket failed, and its outcome was not taken
    /// yet.
    pub fn has_failed(&self, key: &OperationKey) -> bool {
        let outcomes = self.operations.get(key.0).map(|operation| &operation.outcomes);
        outcomes.into_iter().flatten().any(OperationOutcome::is_failure)
    }

    /// Sends all of `bytes`.
    pub fn send(&mut self, socket: &Rc<OwnedFd>, bytes: Vec<u8>) -> OperationKey {
        let size = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
        let entry = opcode::Send::new(fd(socket), bytes.as_ptr(), size).flags(flags).build();
        self.start(entry, UringKind::Other, socket, bytes)
    }

    /// Waits for events of poll(2) on a descriptor.
    pub fn ready(&mut self, descriptor: &Rc<OwnedFd>, events: libc::c_short) -> OperationKey {
        let entry = opcode::PollAdd::new(fd(descriptor), u32::from(events.cast_unsigned())).build();
        self.start(entry, UringKind::Other, descriptor, Vec::new())
    }

    /// Reads from an eventfd to reset it; the bytes are not used.
    pub fn read(&mut self, descriptor: &Rc<OwnedFd>, mut space: Vec<u8>) -> OperationKey {
        let size = u32::try_from(space.len()).unwrap_or(u32::MAX);
        let entry = opcode::Read::new(fd(descriptor), space.as_mut_ptr(), size).build();
        self.start(entry, UringKind::Other, descriptor, space)
    }

    /// The next outcome of an operation. The key is used up with the last one (`is_last`).
    pub fn poll(&mut self, key: &OperationKey, context: &Context<'_>) -> Poll<OperationOutcome> {
        let operation = self.operations.get_mut(key.0).expect("a key is given up with the last outcome");
        if operation.outcomes.is_empty() {
            match &mut operation.waker {
                Some(waker) if waker.will_wake(context.waker()) => {}
                waker => *waker = Some(context.waker().clone()),
            }
            return Poll::Pending;
        }
        let outcome = operation.outcomes.remove(0);
        if outcome.is_last {
            self.finish(key.0);
        }
        Poll::Ready(outcome)
    }

    /// The future of an operation was dropped: cancels the operation, and frees it once the kernel has completed it.
    #[expect(clippy::needless_pass_by_value, reason = "who abandons it has it no more")]
    pub fn abandon(&mut self, key: OperationKey) {
        if let Err(error) = self.cancel(key.0) {
            panic_on(&error);
        }
    }

    /// Takes the wakers of all operations, which then no longer wake a task.
    pub fn take_wakers(&mut self) -> Vec<Waker> {
        self.operations.iter_mut().filter_map(|(_, operation)| operation.waker.take()).collect()
    }

    /// The bytes that were received.
    pub fn bytes(&self, filled: &FilledBuffer) -> &[u8] {
        self.buffers.bytes(filled)
    }

    /// Returns a buffer whose bytes were read.
    pub fn give_back(&mut self, filled: FilledBuffer) {
        self.buffers.give_back(filled);
    }

    /// An empty buffer to write the next reply into.
    pub fn take_spare(&mut self) -> Vec<u8> {
        self.spares.pop().unwrap_or_default()
    }

    /// Outcomes of an operation that were not taken yet.
    #[cfg(test)]
    pub fn waiting(&self, key: &OperationKey) -> usize {
        self.operations.get(key.0).map_or(0, |operation| operation.outcomes.len())
    }

    /// Operations in flight.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.operations.len()
    }

    /// Submits what was started and collects what has completed, in one system call. Waits up to
    /// `wait` for a completion, or without limit if `None`.
    ///
    /// # Errors
    /// If the kernel refuses permanently; a timeout, a signal or a full queue is not an error.
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

    /// Collects what has completed. Enters the kernel only if it reports work for this thread, so
    /// that a loop of looks holds up no other thread.
    ///
    /// # Errors
    /// As [`Self::turn`].
    pub fn look(&mut self) -> io::Result<()> {
        if self.has_work() {
            return self.turn(Some(Duration::ZERO));
        }
        std::hint::spin_loop();
        Ok(())
    }

    /// Returns true if the kernel reports that there is more to collect.
    fn has_work(&mut self) -> bool {
        self.ring.submission().taskrun() || !self.ring.completion().is_empty()
    }

    /// Returns true if the last call had no room for all that had completed. Later completions are
    /// not looked for: under constant load that would never end.
    pub fn has_pending(&mut self) -> bool {
        self.collected >= COLLECTED_MANY && self.has_work()
    }

    fn enter(&self) -> io::Result<usize> {
        // `IORING_ENTER_GETEVENTS`, without which the kernel would not run deferred completion
        // work. The crate's `submit` does not set it if there is nothing to wait for.
        const GET_EVENTS: u32 = 1;
        let count = {
            // SAFETY: no other reference to the submission queue is alive in this function.
            let queue = unsafe { self.ring.submission_shared() };
            u32::try_from(queue.len()).unwrap_or(u32::MAX)
        };
        // SAFETY: the arguments are counts and a flag; `push` was promised that the memory of the
        // entries lives.
        unsafe { self.ring.submitter().enter::<libc::sigset_t>(count, 0, GET_EVENTS, None) }
    }

    fn start(&mut self, entry: Entry, kind: UringKind, descriptor: &Rc<OwnedFd>, bytes: Vec<u8>) -> OperationKey {
        let key = self.operations.insert(UringOperation {
            kind,
            waker: None,
            outcomes: SmallVec::new(),
            is_abandoned: false,
            is_stopping: false,
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

    /// Queues an entry; submits the queue first if it is full.
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
        outcomes.into_iter().for_each(|outcome| self.discard(kind, outcome));
        if is_over {
            self.finish(key);
            return Ok(());
        }
        self.try_push(&cancel_of(key))
    }

    /// Cancels all operations and waits until the kernel has completed them, but not beyond an instant. False if some
    /// are still in flight.
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
        self.collected = 0;
        loop {
            let Some(entry) = self.ring.completion().next() else { return };
            self.collected += 1;
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
            self.discard(kind, outcome);
            if is_last {
                self.finish(key);
            }
            return;
        }
        let (is_last, is_end) = (outcome.is_last, operation.kind != UringKind::Accept && outcome.is_end());
        operation.outcomes.push(outcome);
        match &operation.waker {
            // The operation goes on, and so does the task that waits for it.
            Some(waker) if !is_last => waker.wake_by_ref(),
            _ => {
                if let Some(waker) = operation.waker.take() {
                    ring::wake(waker, is_end);
                }
            }
        }
        // Buffers are few and belong to all connections: one that does not read is not received from.
        if operation.kind == UringKind::Receive && !is_last && operation.outcomes.len() > RECEIVES_AHEAD_MAX {
            self.stop(&OperationKey(key));
        }
    }

    /// Frees what an abandoned operation brought: a provided buffer, or an accepted connection.
    fn discard(&mut self, kind: UringKind, outcome: OperationOutcome) {
        if let Some(filled) = outcome.filled {
            self.buffers.give_back(filled);
        }
        if let (UringKind::Accept, Ok(descriptor)) = (kind, outcome.result) {
            drop(own(descriptor));
        }
    }

    fn finish(&mut self, key: usize) {
        let mut bytes = self.operations.remove(key).bytes;
        if bytes.capacity() > 0 && bytes.capacity() <= ring::SPARE_SIZE_MAX && self.spares.len() < SPARES_MAX {
            bytes.clear();
            self.spares.push(bytes);
        }
    }
}

/// An entry that asks the kernel to cancel an operation.
fn cancel_of(key: usize) -> Entry {
    opcode::AsyncCancel::new(key as u64).build().user_data(NOBODY)
}

impl Drop for Uring {
    fn drop(&mut self) {
        if !self.drain(clock::now() + RING_DRAIN_MAX) {
            // The kernel may still read and write their memory: leak it.
            std::mem::forget(std::mem::take(&mut self.operations));
            self.buffers.leak();
        }
    }
}

fn fd(descriptor: &Rc<OwnedFd>) -> Fd {
    Fd(descriptor.as_raw_fd())
}

/// Returns true for the end of a wait, a signal, or a queue that is full for now.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN))
}

#[expect(clippy::panic, reason = "the one way out: the shard cannot go on, and its thread says why")]
fn panic_on(error: &io::Error) -> ! {
    panic!("io_uring failed: {error}")
}
