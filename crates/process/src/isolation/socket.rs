//! The socket between an instance and its process. A frame names the next step; its data is in the
//! regions.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, socketpair};

use crate::python::files::{receive_with_files, send_with_files};

/// Bytes of a frame.
const FRAME_SIZE: usize = 16;

/// A message from one side to the other. Sizes are in bytes, at the start of the region that the
/// sender writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineFrame {
    /// From the process: it has carried out the order, and its reply has this size.
    Done(u64),
    /// Make an instance on this many threads, replacing the last.
    Instance(u64),
    /// Load the model of an order of this size. With the regions for requests and responses, and the model's file if it
    /// was opened.
    Load(u64),
    /// A larger region for requests, sent along, replaces the last.
    Requests,
    /// The same for responses: answers [`Self::Room`].
    Responses,
    /// From the process: its reply needs a region of this size.
    Room(u64),
    /// Run the batch whose description has this size.
    Run(u64),
}

impl EngineFrame {
    fn encode(self) -> [u8; FRAME_SIZE] {
        let (kind, value) = match self {
            Self::Load(size) => (1_u64, size),
            Self::Instance(threads) => (2, threads),
            Self::Run(size) => (3, size),
            Self::Requests => (4, 0),
            Self::Responses => (5, 0),
            Self::Done(size) => (6, size),
            Self::Room(size) => (7, size),
        };
        let mut frame = [0; FRAME_SIZE];
        let (first, second) = frame.split_at_mut(FRAME_SIZE / 2);
        first.copy_from_slice(&kind.to_le_bytes());
        second.copy_from_slice(&value.to_le_bytes());
        frame
    }

    /// `None` for bytes that are not a frame.
    fn decode(frame: [u8; FRAME_SIZE]) -> Option<Self> {
        let [kind, value] = *frame.as_chunks().0 else { return None };
        let value = u64::from_le_bytes(value);
        Some(match u64::from_le_bytes(kind) {
            1 => Self::Load(value),
            2 => Self::Instance(value),
            3 => Self::Run(value),
            4 => Self::Requests,
            5 => Self::Responses,
            6 => Self::Done(value),
            7 => Self::Room(value),
            _ => return None,
        })
    }
}

/// The content of a socket that waits to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SocketState {
    /// Nothing, ever: the other end is gone.
    Closed,
    /// Something.
    Readable,
    /// Nothing yet.
    Silent,
}

/// One end of the socket.
pub struct EngineSocket(Arc<OwnedFd>);

impl EngineSocket {
    /// Wraps an end that was made by [`Self::pair`].
    pub fn new(end: OwnedFd) -> Self {
        Self(Arc::new(end))
    }

    /// The server's end, and that of a process. Frames stay whole.
    ///
    /// # Errors
    /// If this process has reached its limit of descriptors.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let (server, process) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self::new(server), process))
    }

    /// Readable when the other end has sent something, or is gone.
    pub const fn file(&self) -> &Arc<OwnedFd> {
        &self.0
    }

    /// Looks at what there is to read, and leaves it there.
    pub(super) fn peek(&self) -> SocketState {
        let mut first = [0];
        match retry_on_intr(|| recv(&*self.0, &mut first, RecvFlags::PEEK | RecvFlags::DONTWAIT)) {
            Err(rustix::io::Errno::AGAIN) => SocketState::Silent,
            Ok((0, _)) | Err(_) => SocketState::Closed,
            Ok(_) => SocketState::Readable,
        }
    }

    /// Sends a frame with descriptors.
    ///
    /// # Errors
    /// If the other end is gone.
    pub(super) fn send(&self, frame: EngineFrame, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        send_with_files(&*self.0, &frame.encode(), files, SendFlags::empty())?;
        Ok(())
    }

    /// Waits for a frame, and returns it with the descriptors that came with it.
    ///
    /// # Errors
    /// `UnexpectedEof` if the other end is gone, `TimedOut` if nothing came, `InvalidData` for
    /// bytes that are not a frame.
    pub(super) fn receive(&self, timeout: Option<Duration>) -> io::Result<(EngineFrame, Vec<OwnedFd>)> {
        if let Some(timeout) = timeout.and_then(|timeout| Timespec::try_from(timeout).ok())
            && retry_on_intr(|| poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&timeout)))? == 0
        {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let (mut bytes, mut files) = ([0; FRAME_SIZE], Vec::new());
        let size = match receive_with_files(&*self.0, &mut bytes, &mut files) {
            // Input that it had not read when it ended makes its end an error.
            Ok(0) | Err(rustix::io::Errno::CONNRESET) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(size) => size,
            Err(error) => return Err(error.into()),
        };
        let frame = EngineFrame::decode(bytes).filter(|_| size == FRAME_SIZE);
        frame.map(|frame| (frame, files)).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn frames_come_as_they_were_sent_with_their_files_and_the_end_is_told() {
        let (server, process) = EngineSocket::pair().unwrap();
        let process = EngineSocket::new(process);
        let all = [
            EngineFrame::Done(u64::MAX),
            EngineFrame::Instance(4),
            EngineFrame::Load(1 << 40),
            EngineFrame::Requests,
            EngineFrame::Responses,
            EngineFrame::Room(9),
            EngineFrame::Run(0),
        ];
        for (index, frame) in all.into_iter().enumerate() {
            let files = [server.0.as_fd(); 3];
            server.send(frame, &files[..index % 4]).unwrap();
            let (came, files) = process.receive(None).unwrap();
            assert_eq!((came, files.len()), (frame, index % 4));
        }
        let waited = server.receive(Some(Duration::from_millis(1)));
        assert_eq!(waited.unwrap_err().kind(), io::ErrorKind::TimedOut);
        rustix::net::send(&process.0, &[9; FRAME_SIZE], SendFlags::empty()).unwrap();
        assert_eq!(server.receive(None).unwrap_err().kind(), io::ErrorKind::InvalidData);
        rustix::net::send(&process.0, &[6; 3], SendFlags::empty()).unwrap();
        assert_eq!(server.receive(None).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(server.peek(), SocketState::Silent);
        process.send(EngineFrame::Done(1), &[]).unwrap();
        assert_eq!((server.peek(), server.peek()), (SocketState::Readable, SocketState::Readable), "it stays there");
        server.receive(None).unwrap();
        server.send(EngineFrame::Run(1), &[]).unwrap();
        drop(process);
        // Waits: another test may be starting a program, which has a copy of each descriptor until it runs.
        assert_eq!(server.receive(None).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(server.peek(), SocketState::Closed);
        assert!(server.send(EngineFrame::Run(1), &[]).is_err());
    }
}
