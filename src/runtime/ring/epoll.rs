//! The operations of [`driver`](crate::runtime::ring::driver) by epoll and system calls, for kernels and containers
//! without io_uring. Each descriptor is registered once, edge-triggered, for reading and writing. An operation is tried
//! at the end of the turn that started it, or waits for the next edge if its descriptor is known to have nothing. The
//! kernel keeps no reference to our memory between calls, so an operation is freed as soon as it is abandoned. Stays on
//! its shard. Bounded by the connections, which have at most three operations each, and by its buffers.

use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags};
use rustix::time::Timespec;
use slab::Slab;
use smallvec::SmallVec;

use crate::runtime::ring;
use crate::runtime::ring::operation::{BUFFER_SIZE, FilledBuffer, OperationKey, OperationOutcome, own};

/// Events taken from the kernel in one call.
const EVENTS_MAX: usize = 256;
/// Receive buffers. When all are taken a receive fails as with io_uring, and its connection reads with a system call.
const BUFFERS_MAX: usize = 256;
/// Buffers of finished sends that are kept for the next.
const SPARES_MAX: usize = 64;
/// Connections accepted in one turn, so that a burst of them does not hold up the others.
const ACCEPTS_MAX: usize = 64;

/// One epoll with its operations.
pub struct Epoll {
    epoll: OwnedFd,
    operations: Slab<EpollOperation>,
    /// Operations to try at the end of this turn.
    begun: Vec<usize>,
    /// By descriptor.
    sockets: Vec<Option<EpollEntry>>,
    /// Counts registrations. Descriptor numbers are reused, and an event may still come for the previous owner.
    generation: u32,
    events: Vec<Event>,
    buffers: Vec<Box<[u8; BUFFER_SIZE]>>,
    /// Indices of free buffers.
    free: Vec<u16>,
    /// Empty buffers of finished sends.
    spares: Vec<Vec<u8>>,
}

/// The known state of a descriptor.
struct EpollEntry {
    descriptor: Weak<OwnedFd>,
    generation: u32,
    /// An edge came since the last attempt found nothing to read, or no room to write.
    may_read: bool,
    may_write: bool,
    /// The peer has closed its side; no further edge will say so.
    has_ended: bool,
    /// The operations that wait for an edge.
    reading: Option<usize>,
    writing: Option<usize>,
}

struct EpollOperation {
    kind: EpollKind,
    descriptor: Rc<OwnedFd>,
    waker: Option<Waker>,
    outcomes: SmallVec<[OperationOutcome; 1]>,
    bytes: Vec<u8>,
    sent: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum EpollKind {
    Accept,
    Event,
    Readable,
    Receive,
    Send,
    Writable,
}

impl EpollKind {
    const fn writes(self) -> bool {
        matches!(self, Self::Send | Self::Writable)
    }
}

/// The result of trying an operation.
enum TriedOperation {
    /// It is finished.
    Done(OperationOutcome),
    /// It waits for an edge.
    Blocked,
    /// It is tried again in the next turn.
    Again,
}

impl Epoll {
    /// An epoll for this thread.
    ///
    /// # Errors
    /// If there are no descriptors left.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            operations: Slab::new(),
            begun: Vec::new(),
            sockets: Vec::new(),
            generation: 0,
            events: Vec::with_capacity(EVENTS_MAX),
            buffers: Vec::new(),
            free: Vec::new(),
            spares: Vec::new(),
        })
    }

    /// Accepts connections until it is abandoned or fails.
    pub fn accept(&mut self, listener: &Rc<OwnedFd>) -> OperationKey {
        let key = self.begin(EpollKind::Accept, listener, Vec::new());
        self.note(listener, |socket| socket.may_read = true);
        key
    }

    /// Ends an accept after the connections that it has accepted already.
    pub fn stop_accept(&mut self, key: &OperationKey) {
        let Some(operation) = self.operations.get(key.0) else { return };
        let descriptor = Rc::clone(&operation.descriptor);
        self.begun.retain(|begun| *begun != key.0);
        self.note(&descriptor, |socket| {
            socket.reading.take_if(|waiting| *waiting == key.0);
        });
        let Some(operation) = self.operations.get_mut(key.0) else { return };
        if operation.outcomes.iter().all(|outcome| !outcome.is_last) {
            operation.outcomes.push(last(Err(Errno::CANCELED)));
        }
        if let Some(waker) = operation.waker.take() {
            waker.wake();
        }
    }

    /// Receives into one of our buffers.
    pub fn receive(&mut self, socket: &Rc<OwnedFd>) -> OperationKey {
        self.begin(EpollKind::Receive, socket, Vec::new())
    }

    /// Sends all of `bytes`.
    pub fn send(&mut self, socket: &Rc<OwnedFd>, bytes: Vec<u8>) -> OperationKey {
        let key = self.begin(EpollKind::Send, socket, bytes);
        self.note(socket, |socket| socket.may_write = true);
        key
    }

    /// Waits until there is something to read.
    pub fn readable(&mut self, socket: &Rc<OwnedFd>) -> OperationKey {
        self.begin(EpollKind::Readable, socket, Vec::new())
    }

    /// Waits until there is room to write. A write found none just now, so the next edge means room.
    pub fn writable(&mut self, socket: &Rc<OwnedFd>) -> OperationKey {
        let key = self.begin(EpollKind::Writable, socket, Vec::new());
        self.note(socket, |socket| socket.may_write = false);
        key
    }

    /// Reads from an eventfd to reset it.
    pub fn read_event(&mut self, event: &Rc<OwnedFd>) -> OperationKey {
        self.begin(EpollKind::Event, event, Vec::new())
    }

    /// The next outcome of an operation. The key is used up with the last one (`is_last`).
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

    /// The future of an operation was dropped: frees the operation. A send that was not tried yet is tried once, as
    /// io_uring would have submitted it.
    #[expect(clippy::needless_pass_by_value, reason = "who abandons it has it no more")]
    pub fn abandon(&mut self, key: OperationKey) {
        let Some(operation) = self.operations.get_mut(key.0) else { return };
        let outcomes = std::mem::take(&mut operation.outcomes);
        let (kind, descriptor) = (operation.kind, Rc::clone(&operation.descriptor));
        for outcome in outcomes {
            if let Some(filled) = outcome.filled {
                self.give_back(filled);
            } else if let (EpollKind::Accept, Ok(descriptor)) = (kind, outcome.result) {
                drop(own(descriptor));
            }
        }
        if kind == EpollKind::Send && self.begun.contains(&key.0) {
            drop(self.attempt(key.0));
        }
        self.begun.retain(|begun| *begun != key.0);
        self.note(&descriptor, |socket| {
            socket.reading.take_if(|waiting| *waiting == key.0);
            socket.writing.take_if(|waiting| *waiting == key.0);
        });
        self.finish(key.0);
    }

    /// Returns true if a receive has found that the socket failed, and its outcome was not taken
    /// yet.
    pub fn has_failed(&self, key: &OperationKey) -> bool {
        let outcomes = self.operations.get(key.0).map(|operation| &operation.outcomes);
        outcomes.into_iter().flatten().any(OperationOutcome::is_failure)
    }

    /// Takes the wakers of all operations, which then no longer wake a task.
    pub fn take_wakers(&mut self) -> Vec<Waker> {
        self.operations.iter_mut().filter_map(|(_, operation)| operation.waker.take()).collect()
    }

    /// The bytes that were received.
    pub fn bytes(&self, filled: &FilledBuffer) -> &[u8] {
        let buffer = self.buffers.get(usize::from(filled.index));
        buffer.and_then(|buffer| buffer.get(..filled.size)).unwrap_or_default()
    }

    /// Returns a buffer whose bytes were read.
    #[expect(clippy::needless_pass_by_value, reason = "who gives it back has it no more")]
    pub fn give_back(&mut self, filled: FilledBuffer) {
        self.free.push(filled.index);
    }

    /// An empty buffer to write the next reply into.
    pub fn take_spare(&mut self) -> Vec<u8> {
        self.spares.pop().unwrap_or_default()
    }

    /// Operations in flight.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.operations.len()
    }

    /// Tries the operations that were started and those whose descriptor had an edge. Waits up to
    /// `wait` for an edge (without limit if `None`), but not if an operation has completed.
    ///
    /// # Errors
    /// If epoll fails; a signal is not an error.
    pub fn turn(&mut self, wait: Option<Duration>) -> io::Result<()> {
        let begun = std::mem::take(&mut self.begun);
        let mut has_completed = false;
        for key in begun {
            has_completed |= self.try_one(key);
        }
        let wait = if has_completed || !self.begun.is_empty() { Some(Duration::ZERO) } else { wait };
        // Rounded up to epoll's milliseconds: a timer may expire late by one, never early.
        let timeout = wait.map(|wait| Timespec::try_from(wait).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 }));
        self.events.clear();
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let events = std::mem::take(&mut self.events);
        events.iter().for_each(|event| self.handle_event(event));
        self.events = events;
        Ok(())
    }

    /// Returns true if there may be more events than were collected.
    pub fn has_pending(&self) -> bool {
        self.events.len() >= EVENTS_MAX
    }

    fn handle_event(&mut self, event: &Event) {
        let (data, flags) = (event.data.u64(), event.flags);
        let (number, generation) = (data & u64::from(u32::MAX), data >> 32);
        let index = usize::try_from(number).unwrap_or(usize::MAX);
        let Some(Some(socket)) = self.sockets.get_mut(index) else { return };
        if u64::from(socket.generation) != generation {
            return;
        }
        let is_over = flags.intersects(EventFlags::HUP | EventFlags::ERR);
        socket.has_ended |= is_over || flags.contains(EventFlags::RDHUP);
        let (mut reading, mut writing) = (None, None);
        if is_over || flags.intersects(EventFlags::IN | EventFlags::RDHUP) {
            socket.may_read = true;
            reading = socket.reading.take();
        }
        if is_over || flags.contains(EventFlags::OUT) {
            socket.may_write = true;
            writing = socket.writing.take();
        }
        for key in [reading, writing].into_iter().flatten() {
            self.try_one(key);
        }
    }

    /// Tries an operation, and returns true if it has an outcome.
    fn try_one(&mut self, key: usize) -> bool {
        let tried = self.attempt(key);
        let Some(operation) = self.operations.get_mut(key) else { return false };
        match tried {
            TriedOperation::Done(outcome) => {
                operation.outcomes.push(outcome);
            }
            TriedOperation::Again => self.begun.push(key),
            TriedOperation::Blocked => {
                let (writes, descriptor) = (operation.kind.writes(), Rc::clone(&operation.descriptor));
                self.note(&descriptor, |socket| {
                    let waiting = if writes { &mut socket.writing } else { &mut socket.reading };
                    *waiting = Some(key);
                });
            }
        }
        let Some(operation) = self.operations.get_mut(key).filter(|operation| !operation.outcomes.is_empty()) else {
            return false;
        };
        let is_end = operation.kind == EpollKind::Receive && operation.outcomes.iter().any(OperationOutcome::is_end);
        if let Some(waker) = operation.waker.take() {
            ring::wake(waker, is_end);
        }
        true
    }

    fn attempt(&mut self, key: usize) -> TriedOperation {
        let Some(operation) = self.operations.get(key) else { return TriedOperation::Blocked };
        let (kind, descriptor) = (operation.kind, Rc::clone(&operation.descriptor));
        let mut is_open = false;
        self.note(&descriptor, |socket| {
            is_open = if kind.writes() { socket.may_write } else { socket.may_read || socket.has_ended };
        });
        if !is_open {
            return TriedOperation::Blocked;
        }
        let tried = match kind {
            EpollKind::Accept => self.accept_some(key, &descriptor),
            EpollKind::Event => match rustix::io::read(&*descriptor, &mut [0; size_of::<u64>()]) {
                Err(Errno::AGAIN) => TriedOperation::Blocked,
                outcome => done(outcome),
            },
            EpollKind::Readable | EpollKind::Writable => done(Ok(0)),
            EpollKind::Receive => self.receive_some(&descriptor),
            EpollKind::Send => self.send_some(key, &descriptor),
        };
        // After a receive the caller drains the socket before it starts the next operation, so only another edge means
        // more. Exceptions: without a buffer nothing was read, and a finished send has left room.
        let is_open = match &tried {
            TriedOperation::Again => true,
            TriedOperation::Blocked => false,
            TriedOperation::Done(outcome) => kind == EpollKind::Send || is_without_buffer(outcome),
        };
        if !is_open {
            self.note(&descriptor, |socket| {
                *(if kind.writes() { &mut socket.may_write } else { &mut socket.may_read }) = false;
            });
        }
        tried
    }

    fn accept_some(&mut self, key: usize, listener: &OwnedFd) -> TriedOperation {
        for _ in 0..ACCEPTS_MAX {
            let accepted = match rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(accepted) => accepted.into_raw_fd(),
                Err(Errno::AGAIN) => return TriedOperation::Blocked,
                // The client has closed the connection already.
                Err(Errno::CONNABORTED | Errno::INTR) => continue,
                Err(error) => return done(Err(error)),
            };
            if let Some(operation) = self.operations.get_mut(key) {
                let result = Ok(u32::try_from(accepted).expect("a descriptor is no error"));
                let outcome = OperationOutcome { result, filled: None, has_more_input: false, is_last: false };
                operation.outcomes.push(outcome);
            }
        }
        TriedOperation::Again
    }

    fn receive_some(&mut self, socket: &OwnedFd) -> TriedOperation {
        let Some(index) = self.take_buffer() else { return done(Err(Errno::NOBUFS)) };
        let Some(buffer) = self.buffers.get_mut(usize::from(index)) else { return done(Err(Errno::NOBUFS)) };
        let received = rustix::net::recv(socket, &mut buffer[..], RecvFlags::DONTWAIT);
        let received = received.map(|(size, _)| size);
        if let Ok(size) = received
            && size > 0
        {
            let filled = Some(FilledBuffer { index, size });
            let (result, has_more_input) = (Ok(u32::try_from(size).unwrap_or(u32::MAX)), size == BUFFER_SIZE);
            return TriedOperation::Done(OperationOutcome { result, filled, has_more_input, is_last: true });
        }
        self.free.push(index);
        match received {
            Err(Errno::AGAIN) => TriedOperation::Blocked,
            Err(Errno::INTR) => TriedOperation::Again,
            outcome => done(outcome),
        }
    }

    fn send_some(&mut self, key: usize, socket: &OwnedFd) -> TriedOperation {
        let Some(operation) = self.operations.get_mut(key) else { return TriedOperation::Blocked };
        loop {
            let rest = operation.bytes.get(operation.sent..).unwrap_or_default();
            match rustix::net::send(socket, rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => operation.sent += count,
                Err(Errno::AGAIN) => return TriedOperation::Blocked,
                Err(Errno::INTR) => {}
                Err(error) => return done(Err(error)),
            }
            if operation.sent >= operation.bytes.len() {
                return done(Ok(operation.sent));
            }
        }
    }

    fn take_buffer(&mut self) -> Option<u16> {
        if let Some(index) = self.free.pop() {
            return Some(index);
        }
        let index = u16::try_from(self.buffers.len()).ok().filter(|index| usize::from(*index) < BUFFERS_MAX)?;
        self.buffers.push(Box::new([0; BUFFER_SIZE]));
        Some(index)
    }

    fn begin(&mut self, kind: EpollKind, descriptor: &Rc<OwnedFd>, bytes: Vec<u8>) -> OperationKey {
        let (outcomes, descriptor) = (SmallVec::new(), Rc::clone(descriptor));
        let registered = self.register(&descriptor);
        let key = self.operations.insert(EpollOperation { kind, descriptor, waker: None, outcomes, bytes, sent: 0 });
        match registered {
            Ok(()) => self.begun.push(key),
            Err(error) => {
                if let (Some(operation), TriedOperation::Done(outcome)) =
                    (self.operations.get_mut(key), done(Err(error)))
                {
                    operation.outcomes.push(outcome);
                }
            }
        }
        OperationKey(key)
    }

    /// Registers a descriptor with epoll if it is new. Compares the `Rc`, since descriptor numbers are reused. The
    /// first edges report its current state.
    fn register(&mut self, descriptor: &Rc<OwnedFd>) -> Result<(), Errno> {
        let index = index_of(descriptor.as_raw_fd());
        if self.sockets.len() <= index {
            self.sockets.resize_with(index + 1, || None);
        }
        let Some(slot) = self.sockets.get_mut(index) else { return Ok(()) };
        let is_known = |socket: &EpollEntry| std::ptr::eq(socket.descriptor.as_ptr(), Rc::as_ptr(descriptor));
        if slot.as_ref().is_some_and(is_known) {
            return Ok(());
        }
        self.generation = self.generation.wrapping_add(1);
        let data = u64::from(self.generation) << 32 | index as u64;
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.epoll, &**descriptor, EventData::new_u64(data), flags)?;
        *slot = Some(EpollEntry {
            descriptor: Rc::downgrade(descriptor),
            generation: self.generation,
            may_read: false,
            may_write: false,
            has_ended: false,
            reading: None,
            writing: None,
        });
        Ok(())
    }

    fn note(&mut self, descriptor: &Rc<OwnedFd>, change: impl FnOnce(&mut EpollEntry)) {
        if let Some(Some(socket)) = self.sockets.get_mut(index_of(descriptor.as_raw_fd())) {
            change(socket);
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

fn done(outcome: Result<usize, Errno>) -> TriedOperation {
    TriedOperation::Done(last(outcome))
}

fn last(outcome: Result<usize, Errno>) -> OperationOutcome {
    let result = outcome.map(|count| u32::try_from(count).unwrap_or(u32::MAX)).map_err(io::Error::from);
    OperationOutcome { result, filled: None, has_more_input: false, is_last: true }
}

fn is_without_buffer(outcome: &OperationOutcome) -> bool {
    outcome.result.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ENOBUFS))
}

fn index_of(descriptor: RawFd) -> usize {
    usize::try_from(descriptor).expect("a descriptor that is open is no error")
}
