//! Bytes over a Unix socket, and descriptors that come with them (`SCM_RIGHTS`).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use rustix::process::Pid;

/// Descriptors that one message has room for: one more than any brings, so that a reader notices too many.
const FILES_MAX: usize = 7;

/// Sends bytes; returns the count that the socket took. The descriptors arrive with the first.
///
/// # Errors
/// `INVAL` for more descriptors than a message has room for; else the error of the socket. A closed one raises no signal.
pub fn send_with_files(
    socket: impl AsFd,
    bytes: &[u8],
    files: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> rustix::io::Result<usize> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut room);
    if !files.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(Errno::INVAL);
    }
    let flags = flags | SendFlags::NOSIGNAL;
    retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(bytes)], &mut ancillary, flags))
}

/// Waits for bytes; returns their count, 0 at the end. Their descriptors are appended to `files`; the kernel closes
/// those without room.
///
/// # Errors
/// The error of the socket.
pub fn receive_with_files(
    socket: impl AsFd,
    space: &mut [u8],
    files: &mut impl Extend<OwnedFd>,
) -> rustix::io::Result<usize> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut room);
    let received =
        retry_on_intr(|| recvmsg(&socket, &mut [IoSliceMut::new(space)], &mut ancillary, RecvFlags::CMSG_CLOEXEC))?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            files.extend(rights);
        }
    }
    Ok(received.bytes)
}

/// Reads one byte, without waiting. Returns the id of the process that sent it, which the kernel vouches for if the
/// socket has `SO_PASSCRED`; `None` at the end.
///
/// # Errors
/// `AGAIN` if there is nothing yet; else the error of the socket.
pub fn receive_sender(socket: impl AsFd) -> rustix::io::Result<Option<Pid>> {
    let (mut room, mut byte) = ([MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))], [0]);
    let mut ancillary = RecvAncillaryBuffer::new(&mut room);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = retry_on_intr(|| recvmsg(&socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags))?;
    let sender = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmCredentials(sender) => Some(sender.pid),
        _ => None,
    });
    Ok(sender.filter(|_| received.bytes > 0))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_byte_tells_its_sender_once() {
        let (one, other) = UnixStream::pair().unwrap();
        assert_eq!(receive_sender(&other), Err(Errno::AGAIN));
        rustix::net::sockopt::set_socket_passcred(&other, true).unwrap();
        send_with_files(&one, b"ab", &[], SendFlags::DONTWAIT).unwrap();
        assert_eq!(receive_sender(&other), Ok(Some(rustix::process::getpid())));
        assert_eq!(receive_sender(&other), Ok(Some(rustix::process::getpid())));
        rustix::net::shutdown(&one, rustix::net::Shutdown::Both).unwrap();
        assert_eq!(receive_sender(&other), Ok(None));
    }

    #[test]
    fn bytes_come_with_their_descriptors_and_too_many_are_not_sent() {
        let (one, other) = UnixStream::pair().unwrap();
        let send =
            |bytes: &[u8], count: usize| send_with_files(&one, bytes, &vec![one.as_fd(); count], SendFlags::DONTWAIT);
        assert_eq!(send(b"ab", FILES_MAX), Ok(2));
        assert_eq!(send(b"c", 0), Ok(1));
        assert_eq!(send(b"d", 4 * FILES_MAX), Err(Errno::INVAL));
        let (mut space, mut files) = ([0; 8], Vec::new());
        assert_eq!(receive_with_files(&other, &mut space, &mut files), Ok(2));
        assert_eq!((&space[..2], files.len()), (&b"ab"[..], FILES_MAX));
        for file in &files {
            assert!(rustix::io::fcntl_getfd(file).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        }
        assert_eq!(receive_with_files(&other, &mut space, &mut files), Ok(1));
        assert_eq!((space[0], files.len()), (b'c', FILES_MAX));
        // Not by a drop: another test may be starting a program, which has a copy of each descriptor until it runs.
        rustix::net::shutdown(&other, rustix::net::Shutdown::Both).unwrap();
        assert_eq!(receive_with_files(&one, &mut space, &mut files), Ok(0));
        assert_eq!(send(b"e", 1), Err(Errno::PIPE), "no signal");
    }
}
