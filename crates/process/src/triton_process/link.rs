//! The process's ends of its two sockets, and its open questions. Any thread writes, whole frames;
//! the main thread reads the main socket, and a thread of its own the aux socket. If the server is
//! gone, the process ends.

#![expect(clippy::disallowed_types, reason = "threads of a backend write to one socket, each a whole frame")]

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::retry_on_intr;
use rustix::net::{SendFlags, send};

use crate::python::files::receive_with_files;
use crate::python::message::{Frame, FrameBuffer, MessageError, ReplyValue};
use backend::gateway::NestedReply;
use base::error::Error;

/// Bytes that one read asks for.
const READ_SIZE: usize = 64 * 1024;

/// The process's link to the server.
pub(super) struct ProcessLink {
    main: SocketSender,
    aux: SocketSender,
    waiting: Mutex<HashMap<u64, Waiting>>,
    next_call: AtomicU64,
}

/// The waiter for the reply to a call.
pub(super) enum Waiting {
    /// A call of another model.
    Nested(Arc<dyn NestedWaiting>),
    /// The outcome of an order to the server.
    Order(Box<dyn FnOnce(Result<bool, Error>) + Send>),
    /// A thread that sleeps.
    Reply(SyncSender<Result<ReplyValue, Error>>),
    /// A thread that needs memory.
    Space(SyncSender<Result<(), String>>),
}

/// Takes the responses to a call of another model.
pub(super) trait NestedWaiting: Send + Sync {
    /// A response to the call with this number has come.
    fn handle_reply(&self, call: u64, link: &ProcessLink, reply: NestedReply);
}

impl ProcessLink {
    pub(super) fn new(main: OwnedFd, aux: OwnedFd) -> Self {
        Self {
            main: SocketSender::new(main),
            aux: SocketSender::new(aux),
            waiting: Mutex::new(HashMap::new()),
            next_call: AtomicU64::new(1),
        }
    }

    /// Sends whole frames on the main socket.
    pub(super) fn send_main(&self, frames: &[u8]) {
        self.main.send(frames);
    }

    /// Sends a frame on the aux socket.
    pub(super) fn send_aux(&self, put: impl FnOnce(&mut Vec<u8>)) {
        let mut frame = Vec::new();
        put(&mut frame);
        self.aux.send(&frame);
    }

    /// Asks the server and waits for the reply. Must not be called by the thread that reads the aux
    /// socket.
    pub(super) fn ask(
        &self,
        put: impl FnOnce(u64, &mut Vec<u8>) -> Result<(), MessageError>,
    ) -> Result<ReplyValue, Error> {
        let (sender, reply) = sync_channel(1);
        self.call(Waiting::Reply(sender), put)?;
        reply.recv().unwrap_or_else(|_| Err(gone()))
    }

    /// Asks for memory and waits for the reply.
    pub(super) fn ask_space(&self, put: impl FnOnce(u64, &mut Vec<u8>)) -> Result<(), String> {
        let (sender, reply) = sync_channel(1);
        let sent = self.call(Waiting::Space(sender), |call, out| {
            put(call, out);
            Ok(())
        });
        sent.map_err(|error| error.text().to_owned())?;
        reply.recv().unwrap_or_else(|_| Err(gone().text().to_owned()))
    }

    /// Makes a call, whose reply goes to `waiting`.
    ///
    /// # Errors
    /// `InvalidArgument` if it cannot be written; then the waiter is dropped.
    pub(super) fn call(
        &self,
        waiting: Waiting,
        put: impl FnOnce(u64, &mut Vec<u8>) -> Result<(), MessageError>,
    ) -> Result<u64, Error> {
        let call = self.next_call.fetch_add(1, Ordering::Relaxed);
        let mut frame = Vec::new();
        put(call, &mut frame)
            .map_err(|error| Error::invalid(format!("a call of a backend cannot be sent to the server: {error}")))?;
        self.lock().insert(call, waiting);
        self.aux.send(&frame);
        Ok(call)
    }

    /// Takes the waiter for the last reply to a call.
    pub(super) fn take_waiting(&self, call: u64) -> Option<Waiting> {
        self.lock().remove(&call)
    }

    /// The call of another model with this number.
    pub(super) fn nested(&self, call: u64) -> Option<Arc<dyn NestedWaiting>> {
        match self.lock().get(&call) {
            Some(Waiting::Nested(open)) => Some(Arc::clone(open)),
            _ => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn gone() -> Error {
    Error::unavailable("the server is stopping")
}

/// The sending half of a socket.
struct SocketSender {
    socket: OwnedFd,
    is_sending: Mutex<()>,
}

impl SocketSender {
    const fn new(socket: OwnedFd) -> Self {
        Self { socket, is_sending: Mutex::new(()) }
    }

    fn send(&self, frames: &[u8]) {
        let _turn = self.is_sending.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rest = frames;
        while !rest.is_empty() {
            match retry_on_intr(|| send(&self.socket, rest, SendFlags::NOSIGNAL)) {
                Ok(sent) => rest = rest.get(sent..).unwrap_or_default(),
                Err(_) => end_process(),
            }
        }
    }
}

/// The receiving half of a socket.
pub(super) struct FrameReceiver {
    socket: OwnedFd,
    buffer: FrameBuffer,
    files: VecDeque<OwnedFd>,
}

impl FrameReceiver {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket, buffer: FrameBuffer::default(), files: VecDeque::new() }
    }

    /// Waits for a frame, and handles it.
    ///
    /// # Errors
    /// If the server sends bytes that are not a frame.
    pub(super) fn next<T>(&mut self, handle: impl FnOnce(Frame<'_>) -> T) -> Result<T, MessageError> {
        let mut handle = Some(handle);
        loop {
            if let Some(frame) = self.buffer.poll_frame()?
                && let Some(handle) = handle.take()
            {
                return Ok(handle(frame));
            }
            let space = self.buffer.space(READ_SIZE);
            match receive_with_files(&self.socket, space, &mut self.files) {
                Ok(size) if size > 0 => self.buffer.commit(size),
                _ => end_process(),
            }
        }
    }

    /// The descriptor that came with a frame.
    pub(super) fn take_file(&mut self) -> Option<OwnedFd> {
        self.files.pop_front()
    }
}

/// Ends this process at once: it is no longer needed.
pub(super) fn end_process() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    std::process::abort()
}
