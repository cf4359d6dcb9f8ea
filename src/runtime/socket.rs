//! The sockets of a shard, behind about ten functions, on our own ring or on glommio. Lives on its
//! shard.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, ErrorKind, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_lite::{AsyncRead, AsyncWrite, AsyncWriteExt};
use glommio::net::{TcpListener, TcpStream};
use socket2::{Domain, Protocol, SockFilter, SockRef, Socket as RawSocket, TcpKeepalive, Type};

use crate::limits::WRITE_TIMEOUT;
use crate::runtime::ring;
use crate::runtime::ring::{RingAcceptor, RingStream};

/// Connections that the kernel holds for us before they are accepted.
const BACKLOG: i32 = 1024;
/// How long a silent peer is trusted to be there before the kernel asks: HTTP/2 connections may
/// rest for as long as they like.
const KEEPALIVE_TIME: Duration = Duration::from_secs(60);
/// Parts of one vectored send: beyond it the rest goes in the next.
pub const PARTS_MAX: usize = 64;

/// Drops what begins a connection, SYN without ACK, and passes all else. The classic packet filter
/// of a TCP socket sees the segment from its header on: the flags are at byte 13 (RFC 9293 §3.1).
const HANDSHAKE_FILTER: [SockFilter; 5] = [
    SockFilter::new(0x30, 0, 0, 13),       // load the byte
    SockFilter::new(0x54, 0, 0, 0x12),     // keep ACK and SYN
    SockFilter::new(0x15, 0, 1, 0x02),     // SYN alone?
    SockFilter::new(0x06, 0, 0, 0),        // drop
    SockFilter::new(0x06, 0, 0, u32::MAX), // pass
];

/// A listening socket of one shard; all shards listen on the same address (`SO_REUSEPORT`), and
/// the kernel spreads the connections.
pub struct Listener {
    accepting: AcceptFuture,
    /// The same socket by a second descriptor, for its options.
    raw: RawSocket,
}

enum AcceptFuture {
    Glommio(TcpListener),
    Ring(RefCell<RingAcceptor>),
}

impl Listener {
    /// Listens on an address. Called inside the shard's executor.
    #[expect(unsafe_code, reason = "glommio takes a configured socket only by its descriptor")]
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = bind(address, true)?;
        socket.set_nonblocking(true)?;
        // Linux hands all three on to every accepted socket.
        socket.set_tcp_nodelay(true)?;
        // A peer that reads nothing: the kernel takes more into its own buffer now and then, so that
        // what was written says little (RFC 5482, "User Timeout").
        socket.set_tcp_user_timeout(Some(WRITE_TIMEOUT))?;
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE_TIME))?;
        socket.listen(BACKLOG)?;
        let raw = socket.try_clone()?;
        let accepting = match ring::current() {
            Some(ring) => AcceptFuture::Ring(RefCell::new(RingAcceptor::new(ring, OwnedFd::from(socket)))),
            // SAFETY: the descriptor is open, listens, and is owned by nobody else after into_raw_fd.
            None => AcceptFuture::Glommio(unsafe { TcpListener::from_raw_fd(socket.into_raw_fd()) }),
        };
        Ok(Self { accepting, raw })
    }

    /// Begins no more connections: their first segment is dropped, so that the client tries again
    /// later and is refused then. Those that were begun go on and are still to be accepted. Where
    /// the kernel does not take the filter, connections go on being made until [`Self::stop`].
    pub fn stop_handshakes(&self) {
        let _ = self.raw.attach_filter(&HANDSHAKE_FILTER);
    }

    /// Takes no more connections, from this instant on, and ends [`Self::accept`] with an error.
    /// Dropping the listener alone would leave it open for as long as the ring still polls it.
    pub fn stop(&self) {
        // A socket that is not open any more has stopped too.
        let _ = self.raw.shutdown(Shutdown::Both);
    }

    /// The next connection.
    pub async fn accept(&self) -> io::Result<Socket> {
        Ok(match &self.accepting {
            AcceptFuture::Glommio(listener) => Socket::Glommio(listener.accept().await.map_err(io::Error::from)?),
            AcceptFuture::Ring(acceptor) => {
                Socket::Ring(poll_fn(|context| acceptor.borrow_mut().poll_accept(context)).await?)
            }
        })
    }
}

/// Fails where another process listens on the address, which `SO_REUSEPORT` would hide; the
/// address with a port, where any would do.
pub fn probe(address: SocketAddr) -> io::Result<SocketAddr> {
    let bound = bind(address, false)?.local_addr()?;
    bound.as_socket().ok_or_else(|| ErrorKind::AddrNotAvailable.into())
}

fn bind(address: SocketAddr, is_shared: bool) -> io::Result<RawSocket> {
    let socket = RawSocket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(is_shared)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// One connection.
pub enum Socket {
    /// On glommio.
    Glommio(TcpStream),
    /// On our own ring.
    Ring(RingStream),
}

impl Socket {
    /// Receives into `space`; 0 when the peer has closed its side.
    pub fn poll_read(&mut self, context: &mut Context<'_>, space: &mut [u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Glommio(stream) => Pin::new(stream).poll_read(context, space),
            Self::Ring(stream) => stream.poll_read(context, space),
        }
    }

    /// Sends some of `bytes`.
    pub fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Glommio(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Ring(stream) => stream.poll_write(context, bytes),
        }
    }

    /// Ready when all that was sent has gone to the kernel.
    pub fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Glommio(_) => Poll::Ready(Ok(())),
            Self::Ring(stream) => stream.poll_written(context),
        }
    }

    /// Sends bytes as soon as this turn ends, and takes them away, where this way of the sockets can
    /// and nothing is under way; false where not. [`Self::poll_written`] tells what became of it.
    pub fn write_behind(&mut self, bytes: &mut Vec<u8>) -> bool {
        match self {
            Self::Glommio(_) => false,
            Self::Ring(stream) => stream.write_behind(bytes),
        }
    }

    /// Sends some of all parts in one system call, as far as the kernel takes it now; 0 when it
    /// takes nothing.
    pub fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match send_vectored(&SockRef::from(&self.descriptor()), parts) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
            other => other,
        }
    }

    /// Sends all of a head and the parts of a body, vectored; tells how many bytes went each time.
    /// The head may be taken away, and be on its way still when this returns: [`Self::poll_written`].
    pub async fn write_all(
        &mut self,
        head: &mut Vec<u8>,
        body: &[Bytes],
        mut moved: impl FnMut(usize),
    ) -> io::Result<()> {
        poll_fn(|context| self.poll_written(context)).await?;
        let total = head.len() + body.iter().map(Bytes::len).sum::<usize>();
        if total == head.len()
            && let Self::Ring(stream) = self
            && stream.write_behind(head)
        {
            moved(total);
            return Ok(());
        }
        let mut sent = 0;
        while sent < total {
            let rest = rest_of(head, body, sent);
            let Some(first) = rest.first() else { break };
            let mut count = match self {
                Self::Glommio(_) if rest.len() == 1 => 0,
                _ => self.try_write_vectored(&rest)?,
            };
            if count == 0 {
                count = match self {
                    Self::Glommio(stream) => stream.write(first).await?,
                    Self::Ring(stream) => {
                        stream.writable().await?;
                        continue;
                    }
                };
            }
            if count == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
            sent += count;
            moved(count);
        }
        Ok(())
    }

    /// Whether the peer has reset the connection. A socket whose input has ended does not tell by
    /// reading, nor by an event.
    pub fn is_reset(&self) -> bool {
        SockRef::from(&self.descriptor()).take_error().is_ok_and(|error| error.is_some())
    }

    /// Says that nothing more will be sent.
    pub async fn shutdown_write(&self) -> io::Result<()> {
        match self {
            Self::Glommio(stream) => stream.shutdown(Shutdown::Write).await.map_err(io::Error::from),
            Self::Ring(stream) => stream.shutdown_write(),
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            #[expect(unsafe_code, reason = "glommio's stream lends no borrowed descriptor")]
            // SAFETY: the descriptor is owned by the stream, which outlives the borrow.
            Self::Glommio(stream) => unsafe { BorrowedFd::borrow_raw(stream.as_raw_fd()) },
            Self::Ring(stream) => stream.descriptor().as_fd(),
        }
    }
}

fn send_vectored(socket: &SockRef<'_>, parts: &[IoSlice<'_>]) -> io::Result<usize> {
    let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
    let flags = i32::try_from(flags.bits()).map_err(|_| ErrorKind::InvalidInput)?;
    socket.send_vectored_with_flags(parts, flags)
}

/// The parts that follow the first `sent` bytes.
fn rest_of<'a>(head: &'a [u8], body: &'a [Bytes], sent: usize) -> Vec<IoSlice<'a>> {
    let mut skip = sent;
    let mut rest = Vec::with_capacity(body.len().saturating_add(1).min(PARTS_MAX));
    for part in std::iter::once(head).chain(body.iter().map(|part| &part[..])) {
        match part.get(skip..) {
            Some(left) if !left.is_empty() && rest.len() < PARTS_MAX => rest.push(IoSlice::new(left)),
            _ => {}
        }
        skip = skip.saturating_sub(part.len());
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_follows_what_was_sent() {
        let body = [Bytes::from_static(b"cde"), Bytes::new(), Bytes::from_static(b"f")];
        for sent in 0..=6 {
            let rest: Vec<u8> = rest_of(b"ab", &body, sent).iter().flat_map(|part| part.to_vec()).collect();
            assert_eq!(rest, b"abcdef"[sent..], "after {sent}");
        }
    }

    #[test]
    fn a_port_that_somebody_listens_on_is_found() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        assert_eq!(probe(address).unwrap_err().kind(), ErrorKind::AddrInUse);
        drop(taken);
        probe(address).unwrap();
    }
}
