//! The sockets of a shard, on our own ring or on glommio, behind one set of functions. Stays on its shard.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
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
use crate::runtime::ring::{self, RingAcceptor, RingStream};

/// Connections that may wait in the kernel to be accepted.
const BACKLOG: i32 = 1024;
/// Silence after which the kernel probes whether a peer is still there: HTTP/2 connections may be idle without limit.
const KEEPALIVE_TIME: Duration = Duration::from_secs(60);
/// Parts of one vectored send; the rest goes into the next.
pub const PARTS_MAX: usize = 64;

/// Drops segments that begin a connection (SYN without ACK) and passes all others. The classic packet filter of a TCP
/// socket sees a segment from its TCP header on: the flags are at byte 13 (RFC 9293 §3.1).
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
    ///
    /// # Errors
    /// Where the address is not available or an option cannot be set.
    #[expect(unsafe_code, reason = "glommio takes a configured socket only by its descriptor")]
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = bind(address, true)?;
        socket.set_nonblocking(true)?;
        // Accepted sockets inherit all three options on Linux.
        socket.set_tcp_nodelay(true)?;
        // For peers that do not read: the kernel takes more into its own buffer now and then, so progress of our writes
        // does not show that the peer reads (RFC 5482, "User Timeout").
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

    /// Begins no more handshakes: drops their first segment, so that the client retries later and is refused then.
    /// Handshakes that have begun go on and are still accepted. If the kernel refuses the filter, connections are made
    /// until [`Self::stop`].
    pub fn stop_handshakes(&self) {
        let _ = self.raw.attach_filter(&HANDSHAKE_FILTER);
    }

    /// Stops listening at once, and ends [`Self::accept`] with an error. Dropping the listener alone would leave the
    /// socket open as long as the ring still polls it.
    pub fn stop(&self) {
        // It fails only on a socket that does not listen any more.
        let _ = self.raw.shutdown(Shutdown::Both);
    }

    /// The next connection.
    ///
    /// # Errors
    /// Where the listener was stopped, or the kernel has no descriptor or memory for the connection.
    pub async fn accept(&self) -> io::Result<Socket> {
        Ok(match &self.accepting {
            AcceptFuture::Glommio(listener) => Socket::Glommio(listener.accept().await.map_err(io::Error::from)?),
            AcceptFuture::Ring(acceptor) => {
                Socket::Ring(poll_fn(|context| acceptor.borrow_mut().poll_accept(context)).await?)
            }
        })
    }
}

/// Checks that no other process listens on an address, which `SO_REUSEPORT` would hide. Returns the address, with the
/// port that the kernel chose if it was 0.
///
/// # Errors
/// Where the address is in use or not available.
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

/// A connection's bytes both ways: those of a socket as they are, or what somebody makes of them. Sessions are generic
/// over it, so that each form costs what it needs and no more.
pub trait ByteStream {
    /// Whether others on the way see something else than these bytes.
    const IS_ENCRYPTED: bool;

    /// Receives into `space`; 0 when the peer has closed its side.
    fn poll_read(&mut self, context: &mut Context<'_>, space: &mut [u8]) -> Poll<io::Result<usize>>;

    /// Sends some of `bytes`.
    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;

    /// Ready when the earlier send has finished or failed.
    fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Sends `bytes` at the end of this turn and leaves an empty buffer in their place; [`Self::poll_written`] has the
    /// result. False, and nothing is taken, where that is not possible or an earlier send is in flight.
    fn write_behind(&mut self, bytes: &mut Vec<u8>) -> bool;

    /// Sends as much of all parts as the kernel takes now; 0 if it takes nothing.
    ///
    /// # Errors
    /// Where the connection failed.
    fn try_write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Sends all of a head and the parts of a body; calls `moved` with the bytes sent each time. The end may be still in
    /// flight when this returns: see [`Self::poll_written`].
    ///
    /// # Errors
    /// Where the connection failed, now or in an earlier send.
    fn write_all(
        &mut self,
        head: &mut Vec<u8>,
        body: &[Bytes],
        moved: impl FnMut(usize),
    ) -> impl Future<Output = io::Result<()>>;

    /// Whether the peer has reset the connection. Once its input has ended, neither a read nor an event would show
    /// that.
    fn is_reset(&self) -> bool;

    /// The address at the other end, where it is still connected.
    fn peer(&self) -> Option<SocketAddr>;

    /// All that was to be sent was sent ([`Self::poll_written`]), and the connection is about to be closed.
    fn end_output(&mut self);

    /// Closes the sending side.
    ///
    /// # Errors
    /// Where the socket is not connected any more.
    fn shutdown_write(&mut self) -> impl Future<Output = io::Result<()>>;
}

/// One connection.
pub enum Socket {
    /// On glommio.
    Glommio(TcpStream),
    /// On our own ring.
    Ring(RingStream),
}

impl ByteStream for Socket {
    const IS_ENCRYPTED: bool = false;

    fn poll_read(&mut self, context: &mut Context<'_>, space: &mut [u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Glommio(stream) => Pin::new(stream).poll_read(context, space),
            Self::Ring(stream) => stream.poll_read(context, space),
        }
    }

    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Glommio(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Ring(stream) => stream.poll_write(context, bytes),
        }
    }

    fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Glommio(_) => Poll::Ready(Ok(())),
            Self::Ring(stream) => stream.poll_written(context),
        }
    }

    fn write_behind(&mut self, bytes: &mut Vec<u8>) -> bool {
        match self {
            Self::Glommio(_) => false,
            Self::Ring(stream) => stream.write_behind(bytes),
        }
    }

    fn try_write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match send_vectored(&SockRef::from(&self.descriptor()), parts) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
            other => other,
        }
    }

    async fn write_all(&mut self, head: &mut Vec<u8>, body: &[Bytes], mut moved: impl FnMut(usize)) -> io::Result<()> {
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

    fn is_reset(&self) -> bool {
        SockRef::from(&self.descriptor()).take_error().is_ok_and(|error| error.is_some())
    }

    fn peer(&self) -> Option<SocketAddr> {
        SockRef::from(&self.descriptor()).peer_addr().ok()?.as_socket()
    }

    fn end_output(&mut self) {}

    async fn shutdown_write(&mut self) -> io::Result<()> {
        match self {
            Self::Glommio(stream) => stream.shutdown(Shutdown::Write).await.map_err(io::Error::from),
            Self::Ring(stream) => stream.shutdown_write(),
        }
    }
}

impl Socket {
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
