//! The connection to one Python process: two Unix sockets, the pidfd, and an epoll over all of them that the instance's
//! thread sleeps on. Moves bytes and knows frames, not what they mean. Never blocks, but in [`PythonLink::wait`].

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, socketpair};

use crate::limits::PYTHON_UNSENT_SIZE_MAX;
use crate::python::files::send_with_files;
use crate::python::message::FrameBuffer;

/// Bytes that one read of a socket may take.
const READ_SIZE: usize = 64 * 1024;

/// Reads of one socket in a row: an endless stream of a process must be handled, not only kept.
const READS_MAX: usize = 16;

const MAIN: u64 = 0;
const AUX: u64 = 1;
const INBOX: u64 = 2;
const END: u64 = 3;

/// The sockets of one process.
pub struct PythonLink {
    /// Batches and their answers.
    pub main: Channel,
    /// Everything else.
    pub aux: Channel,
    epoll: Arc<OwnedFd>,
    has_ended: bool,
}

/// One end of a socket pair, not blocking.
pub struct Channel {
    socket: OwnedFd,
    /// Input that was not decoded yet.
    pub input: FrameBuffer,
    /// Output that could not be sent at once, in order.
    output: VecDeque<UnsentBytes>,
    /// The bytes of `output`.
    unsent: usize,
    is_closed: bool,
}

struct UnsentBytes {
    bytes: Vec<u8>,
    sent: usize,
    file: Option<OwnedFd>,
}

/// The result of a poll of the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkEvents {
    /// Another thread of the server left something in the inbox.
    pub has_inbox: bool,
    /// The process has ended, or closed its sockets, and all that it sent was read.
    pub has_ended: bool,
}

/// The ends of the two socket pairs that the process gets.
pub struct ProcessEnds {
    /// The main socket.
    pub main: OwnedFd,
    /// The aux socket.
    pub aux: OwnedFd,
}

impl PythonLink {
    /// Opens both pairs. `inbox` becomes readable when another thread of the server has something for the instance.
    ///
    /// # Errors
    /// If the process has reached its limit of descriptors.
    pub fn open(inbox: BorrowedFd<'_>) -> io::Result<(Self, ProcessEnds)> {
        let pair = || socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let ((main, main_end), (aux, aux_end)) = (pair()?, pair()?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &main, EventData::new_u64(MAIN), EventFlags::IN)?;
        epoll::add(&epoll, &aux, EventData::new_u64(AUX), EventFlags::IN)?;
        epoll::add(&epoll, inbox, EventData::new_u64(INBOX), EventFlags::IN)?;
        let (main, aux) = (Channel::new(main), Channel::new(aux));
        Ok((Self { main, aux, epoll: Arc::new(epoll), has_ended: false }, ProcessEnds { main: main_end, aux: aux_end }))
    }

    /// Watches for the end of the process as well: its children may keep the sockets open.
    ///
    /// # Errors
    /// If the kernel has no memory for it.
    pub fn watch(&self, pidfd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, pidfd, EventData::new_u64(END), EventFlags::IN)?)
    }

    /// Readable while [`Self::poll`] finds something.
    pub const fn event_source(&self) -> &Arc<OwnedFd> {
        &self.epoll
    }

    /// Sleeps until there is an event, or the time is over.
    pub fn wait(&self, timeout: Duration) {
        let timeout = Timespec::try_from(timeout).ok();
        // An interrupted sleep only ends early.
        let _ = poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], timeout.as_ref());
    }

    /// Reads input and sends waiting output.
    pub fn poll(&mut self) -> LinkEvents {
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); 4];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut found = LinkEvents::default();
        // It fails only if a signal interrupts it; then the next poll finds the events.
        let events = epoll::wait(&self.epoll, &mut events, Some(&now)).map_or(&mut [][..], |(events, _)| events);
        for event in events {
            match event.data.u64() {
                MAIN => self.main.read(),
                AUX => self.aux.read(),
                INBOX => found.has_inbox = true,
                _ => self.has_ended = true,
            }
        }
        self.flush();
        if self.has_ended {
            // Messages that it sent before its end are still in the sockets.
            self.main.read();
            self.aux.read();
        }
        found.has_ended = self.has_ended || self.main.is_closed || self.aux.is_closed;
        found
    }

    /// Returns true if more output waits for the process than for any process that reads.
    pub fn is_stuffed(&self) -> bool {
        self.main.unsent.max(self.aux.unsent) > PYTHON_UNSENT_SIZE_MAX
    }

    /// Sends waiting output, as far as the sockets take it, and has the epoll report when they take
    /// more.
    pub fn flush(&mut self) {
        for (channel, key) in [(&mut self.main, MAIN), (&mut self.aux, AUX)] {
            let had_output = !channel.output.is_empty();
            channel.flush();
            let has_output = !channel.output.is_empty();
            if had_output || has_output {
                let flags = if has_output { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
                // It fails only for a descriptor that is not registered.
                let _ = epoll::modify(&self.epoll, &channel.socket, EventData::new_u64(key), flags);
            }
        }
    }
}

impl Channel {
    fn new(socket: OwnedFd) -> Self {
        Self { socket, input: FrameBuffer::default(), output: VecDeque::new(), unsent: 0, is_closed: false }
    }

    /// Sends bytes, at once if the socket takes them; the rest goes with the next flush.
    pub fn send(&mut self, bytes: &[u8]) {
        let sent = if self.output.is_empty() { self.try_send(bytes, None) } else { 0 };
        if let Some(rest) = bytes.get(sent..).filter(|rest| !rest.is_empty()) {
            self.unsent += rest.len();
            self.output.push_back(UnsentBytes { bytes: rest.to_vec(), sent: 0, file: None });
        }
    }

    /// Sends bytes and a descriptor, which arrives with the first of them.
    pub fn send_file(&mut self, bytes: Vec<u8>, file: OwnedFd) {
        self.unsent += bytes.len();
        self.output.push_back(UnsentBytes { bytes, sent: 0, file: Some(file) });
        self.flush();
    }

    /// Sends bytes with descriptors, which an empty socket takes: the first message of all, or an order to fork.
    ///
    /// # Errors
    /// The error of the socket.
    pub fn send_with_descriptors(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<usize> {
        Ok(send_with_files(&self.socket, bytes, files, SendFlags::DONTWAIT)?)
    }

    /// The socket.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn flush(&mut self) {
        while let Some(mut first) = self.output.pop_front() {
            let file = first.file.take();
            let sent = self.try_send(first.bytes.get(first.sent..).unwrap_or_default(), file.as_ref());
            first.sent += sent;
            self.unsent -= sent;
            if sent == 0 {
                first.file = file;
            }
            if first.sent < first.bytes.len() {
                if !self.is_closed {
                    self.output.push_front(first);
                }
                return;
            }
        }
    }

    /// Bytes that the socket took.
    fn try_send(&mut self, bytes: &[u8], file: Option<&OwnedFd>) -> usize {
        let file = file.map(AsFd::as_fd);
        match send_with_files(&self.socket, bytes, file.as_slice(), SendFlags::DONTWAIT) {
            Ok(sent) => sent,
            Err(Errno::AGAIN) => 0,
            // The process has closed its end: output to it no longer matters.
            Err(_) => {
                self.is_closed = true;
                0
            }
        }
    }

    /// Reads the available input.
    fn read(&mut self) {
        for _ in 0..READS_MAX {
            if self.is_closed {
                break;
            }
            let buffer = self.input.space(READ_SIZE);
            let room = buffer.len();
            match retry_on_intr(|| recv(&self.socket, &mut *buffer, RecvFlags::DONTWAIT)) {
                Ok((0, _)) => self.is_closed = true,
                Ok((size, _)) => {
                    self.input.commit(size);
                    // A short read took all there was: another would only confirm that.
                    if size < room {
                        return;
                    }
                }
                Err(Errno::AGAIN) => return,
                Err(_) => self.is_closed = true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::python::inbox::InstanceInbox;

    #[test]
    fn a_process_that_does_not_read_is_known_by_what_waits_for_it() {
        let inbox = InstanceInbox::new().unwrap();
        let (mut link, ends) = PythonLink::open(inbox.file()).unwrap();
        let part = vec![7; 16 * 1024 * 1024];
        let count = PYTHON_UNSENT_SIZE_MAX / part.len();
        (0..count).for_each(|_| link.aux.send(&part));
        assert!(!link.is_stuffed(), "the socket took some of it");
        link.aux.send(&part);
        assert!(link.is_stuffed());
        let mut process = UnixStream::from(ends.aux);
        let reader = std::thread::spawn(move || {
            let mut all = vec![0; (count + 1) * 16 * 1024 * 1024];
            process.read_exact(&mut all).map(|()| all.iter().all(|byte| *byte == 7))
        });
        while !link.aux.output.is_empty() {
            link.wait(Duration::from_secs(1));
            link.poll();
        }
        assert!(reader.join().unwrap().unwrap());
        assert_eq!((link.is_stuffed(), link.aux.unsent), (false, 0));
    }

    #[test]
    fn what_a_process_sends_without_end_is_read_in_parts() {
        let inbox = InstanceInbox::new().unwrap();
        let (mut link, ends) = PythonLink::open(inbox.file()).unwrap();
        let mut process = UnixStream::from(ends.main);
        let writer = std::thread::spawn(move || while process.write_all(&[1; READ_SIZE]).is_ok() {});
        for _ in 0..100 {
            link.wait(Duration::from_secs(1));
            link.poll();
            let held = link.main.input.held_size();
            assert!(held <= 2 * (READS_MAX + 1) * READ_SIZE, "{held}");
            link.main.input = FrameBuffer::default();
        }
        drop(link);
        writer.join().unwrap();
    }
}
