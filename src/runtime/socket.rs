//! The sockets of a shard, on our own ring or on glommio, behind one set of functions. Stays on its shard.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_lite::{AsyncRead, AsyncWrite, AsyncWriteExt};
use glommio::net::{TcpListener, TcpStream};
use socket2::{Domain, SockRef, Socket as RawSocket, TcpKeepalive};

use crate::runtime::ring::pieces::PIECE_SIZE_MAX;
use crate::runtime::ring::{self, RingAcceptor, RingStream};
#[cfg(test)]
use crate::runtime::simulation::{self, SimulatedListener, SimulatedStream};

/// Silence after which the kernel probes whether a peer is still there: streams of HTTP/2 may be quiet without limit.
const KEEPALIVE_TIME: Duration = Duration::from_secs(60);
/// Parts of one vectored send; the rest goes into the next.
pub const PARTS_MAX: usize = 64;

/// The number of a network device that no machine has: devices are numbered upwards from 1.
const NO_DEVICE: libc::c_int = libc::c_int::MAX;

/// A listening socket of one shard.
pub struct Listener {
    accepting: AcceptFuture,
    /// The same socket by a second descriptor, for its options.
    raw: RawSocket,
    /// True if other processes listen on it too.
    is_lent: bool,
    /// The sockets of all shards on the same address.
    group: Arc<[OwnedFd]>,
    /// True if it is a Unix socket.
    is_local: bool,
    is_stopped: Cell<bool>,
}

enum AcceptFuture {
    Glommio(TcpListener),
    Ring(RefCell<RingAcceptor>),
    #[cfg(test)]
    Simulated(SimulatedListener),
}

impl Listener {
    /// Accepts from a socket that listens; a peer has `write_timeout` to take the bytes sent to it.
    /// Called inside the shard's executor. A socket that `is_lent` belongs to other processes too:
    /// it is left as it is when this shard stops.
    ///
    /// # Errors
    /// If an option cannot be set.
    #[expect(unsafe_code, reason = "glommio takes a configured socket only by its descriptor")]
    pub fn new(socket: OwnedFd, is_lent: bool, write_timeout: Duration) -> io::Result<Self> {
        let socket = RawSocket::from(socket);
        #[cfg(test)]
        if let Some(listener) = simulation::listener(socket.as_raw_fd()) {
            let accepting = AcceptFuture::Simulated(listener);
            return Ok(Self {
                accepting,
                raw: socket,
                is_lent,
                is_local: false,
                is_stopped: Cell::new(false),
                group: Arc::new([]),
            });
        }
        socket.set_nonblocking(true)?;
        let is_local = socket.domain()? == Domain::UNIX;
        if !is_local {
            set_options(&socket, write_timeout)?;
        }
        let raw = socket.try_clone()?;
        let accepting = match ring::current() {
            Some(ring) => AcceptFuture::Ring(RefCell::new(RingAcceptor::new(ring, OwnedFd::from(socket)))),
            // SAFETY: the descriptor is open and listens, and after into_raw_fd it has no other
            // owner.
            None => AcceptFuture::Glommio(unsafe { TcpListener::from_raw_fd(socket.into_raw_fd()) }),
        };
        Ok(Self { accepting, raw, is_lent, group: Arc::new([]), is_local, is_stopped: Cell::new(false) })
    }

    /// Adds the sockets of all shards on its address: they stop handshakes together.
    #[must_use]
    pub fn in_group(self, group: Arc<[OwnedFd]>) -> Self {
        Self { group, ..self }
    }

    /// Returns true if other processes listen on the same socket.
    pub const fn is_lent(&self) -> bool {
        self.is_lent
    }

    /// Begins no new handshakes: the kernel refuses them at once, as if nothing listened.
    /// Handshakes that have begun go on and are still accepted. If the kernel does not support
    /// this, connections are made until [`Self::stop`].
    pub fn stop_handshakes(&self) {
        #[cfg(test)]
        if let AcceptFuture::Simulated(listener) = &self.accepting {
            return listener.stop_handshakes();
        }
        // A socket that is bound to a device receives only what comes by that device, even if no
        // device has that number. All of a group at once: while one is bound and another is not,
        // the kernel gives some handshakes to the one that is bound, which drops them.
        for socket in self.group.iter().map(AsFd::as_fd).chain([self.raw.as_fd()]) {
            let _ = bind_to_device(socket, NO_DEVICE);
        }
    }

    /// Stops accepting and leaves the socket to the other processes that have it. [`Self::accept`]
    /// still returns the connections that were accepted already, then fails as after
    /// [`Self::stop`]. glommio cannot tell whether a cancelled accept has taken a connection: there
    /// the socket is stopped for all.
    pub fn release(&self) {
        match &self.accepting {
            AcceptFuture::Ring(acceptor) => acceptor.borrow_mut().stop(),
            AcceptFuture::Glommio(_) => self.stop(),
            #[cfg(test)]
            AcceptFuture::Simulated(_) => self.stop(),
        }
    }

    /// Stops listening at once, and ends [`Self::accept`] with an error. Dropping the listener alone would leave the
    /// socket open as long as the ring still polls it.
    pub fn stop(&self) {
        #[cfg(test)]
        if let AcceptFuture::Simulated(listener) = &self.accepting {
            return listener.stop();
        }
        self.is_stopped.set(true);
        // It fails only on a socket that no longer listens.
        let _ = self.raw.shutdown(Shutdown::Both);
        // An accept of TCP fails then; a nonblocking one of a Unix socket only ever reports that
        // there is nothing yet.
        if let (true, AcceptFuture::Ring(acceptor)) = (self.is_local, &self.accepting) {
            acceptor.borrow_mut().stop();
        }
    }

    /// Returns the next connection.
    ///
    /// # Errors
    /// If the listener was stopped, or the kernel has no descriptor or memory for the connection.
    pub async fn accept(&self) -> io::Result<Socket> {
        Ok(match &self.accepting {
            AcceptFuture::Glommio(listener) => match listener.accept().await {
                Err(_) if self.is_stopped.get() => return Err(ErrorKind::InvalidInput.into()),
                accepted => Socket::Glommio(Box::new(accepted.map_err(io::Error::from)?)),
            },
            AcceptFuture::Ring(acceptor) => {
                Socket::Ring(Box::new(poll_fn(|context| acceptor.borrow_mut().poll_accept(context)).await?))
            }
            #[cfg(test)]
            AcceptFuture::Simulated(listener) => Socket::Simulated(listener.accept().await?),
        })
    }
}

/// The options of TCP. Accepted sockets inherit all three on Linux.
fn set_options(socket: &RawSocket, write_timeout: Duration) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    // For peers that do not read: the kernel takes more into its own buffer now and then, so progress of our writes
    // does not show that the peer reads (RFC 5482, "User Timeout").
    socket.set_tcp_user_timeout(Some(write_timeout))?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE_TIME))
}

#[expect(unsafe_code, reason = "socket2 binds a socket to a device by its number only on other systems")]
fn bind_to_device(socket: BorrowedFd<'_>, number: libc::c_int) -> io::Result<()> {
    let size = libc::socklen_t::try_from(size_of::<libc::c_int>()).map_err(|_| ErrorKind::InvalidInput)?;
    // SAFETY: the descriptor is open as long as the borrow, and the kernel reads `size` bytes of a number that lives here.
    let outcome = unsafe {
        let value = (&raw const number).cast::<libc::c_void>();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, value, size)
    };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Takes the descriptors that a supervisor has opened for this process, from `first` on. Called
/// once, before anything else is opened, so that none of them belongs to something else.
///
/// # Errors
/// If one of them is not open.
#[expect(unsafe_code, reason = "who starts a process tells its descriptors as numbers")]
pub fn take_inherited(first: RawFd, count: usize) -> io::Result<Vec<OwnedFd>> {
    let numbers = (first..).take(count);
    numbers
        .map(|number| {
            // SAFETY: borrowed for one call, which fails if nothing is open.
            let flags = rustix::io::FdFlags::CLOEXEC;
            rustix::io::fcntl_setfd(unsafe { BorrowedFd::borrow_raw(number) }, flags)?;
            // SAFETY: it is open, as the call before has shown, and was opened for this process
            // before it began: nothing here owns it.
            Ok(unsafe { OwnedFd::from_raw_fd(number) })
        })
        .collect()
}

/// A connection's bytes both ways: those of a socket as they are, or transformed, as by TLS.
/// Sessions are generic over it, so that each form costs only what it needs.
pub trait ByteStream {
    /// True if the bytes on the network differ from these.
    const IS_ENCRYPTED: bool;

    /// Returns true if the peer has promised to speak HTTP/2 and nothing else.
    fn has_negotiated_h2(&self) -> bool;

    /// Bytes of a large body that room should be made for before the next [`Self::poll_read`].
    fn begin_read(&mut self) -> usize;

    /// Receives into `space`; 0 when the peer has closed its side.
    fn poll_read(&mut self, context: &mut Context<'_>, space: &mut [u8]) -> Poll<io::Result<usize>>;

    /// Sends some of `bytes`.
    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;

    /// Ready when the earlier send has finished or failed.
    fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Sends `bytes` at the end of this turn and leaves an empty buffer in their place;
    /// [`Self::poll_written`] has the result. Returns false, and takes nothing, if that is not
    /// possible or an earlier send is in flight.
    fn write_behind(&mut self, bytes: &mut Vec<u8>) -> bool;

    /// Sends as much of all parts as the kernel takes now; 0 if it takes nothing.
    ///
    /// # Errors
    /// If the connection failed.
    fn try_write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Sends all of a head and the parts of a body; calls `moved` with the bytes sent each time.
    /// The end may still be in flight when this returns: see [`Self::poll_written`].
    ///
    /// # Errors
    /// If the connection failed, now or in an earlier send.
    fn write_all(
        &mut self,
        head: &mut Vec<u8>,
        body: &[Bytes],
        moved: impl FnMut(usize),
    ) -> impl Future<Output = io::Result<()>>;

    /// Returns true if the peer has reset the connection. After its input has ended, neither a read
    /// nor an event would show that.
    fn is_reset(&self) -> bool;

    /// Returns true if the peer has closed its side or reset the connection, even if input before
    /// that is unread.
    fn is_hung_up(&self) -> bool;

    /// Bytes that were sent and not yet acknowledged by the peer's machine.
    fn unacknowledged(&self) -> usize;

    /// Makes the connection end by a reset when it is closed, so that the kernel does not keep what
    /// the peer never takes.
    fn reset_at_close(&self);

    /// Returns the address at the other end, if it is still connected.
    fn peer(&self) -> Option<SocketAddr>;

    /// Ends the output: everything was sent ([`Self::poll_written`]), and the connection is about
    /// to be closed.
    fn end_output(&mut self);

    /// Closes the sending side.
    ///
    /// # Errors
    /// If the socket is no longer connected.
    fn shutdown_write(&mut self) -> impl Future<Output = io::Result<()>>;
}

/// One connection.
pub enum Socket {
    /// On glommio. Boxed, like the next: each future that a connection passes through reserves
    /// space for it.
    Glommio(Box<TcpStream>),
    /// On our own ring.
    Ring(Box<RingStream>),
    /// No socket: bytes that a test cuts, delays and loses.
    #[cfg(test)]
    Simulated(SimulatedStream),
}

impl ByteStream for Socket {
    const IS_ENCRYPTED: bool = false;

    fn has_negotiated_h2(&self) -> bool {
        false
    }

    fn begin_read(&mut self) -> usize {
        if let Self::Ring(stream) = self { stream.begin_read() } else { PIECE_SIZE_MAX }
    }

    fn poll_read(&mut self, context: &mut Context<'_>, space: &mut [u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Glommio(stream) => Pin::new(&mut **stream).poll_read(context, space),
            Self::Ring(stream) => stream.poll_read(context, space),
            #[cfg(test)]
            Self::Simulated(stream) => stream.poll_read(context, space),
        }
    }

    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Glommio(stream) => Pin::new(&mut **stream).poll_write(context, bytes),
            Self::Ring(stream) => stream.poll_write(context, bytes),
            #[cfg(test)]
            Self::Simulated(stream) => stream.poll_write(context, bytes),
        }
    }

    fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Glommio(_) => Poll::Ready(Ok(())),
            Self::Ring(stream) => stream.poll_written(context),
            #[cfg(test)]
            Self::Simulated(stream) => stream.poll_written(context),
        }
    }

    fn write_behind(&mut self, bytes: &mut Vec<u8>) -> bool {
        match self {
            Self::Glommio(_) => false,
            Self::Ring(stream) => stream.write_behind(bytes),
            #[cfg(test)]
            Self::Simulated(stream) => stream.write_behind(bytes),
        }
    }

    fn try_write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Glommio(_) => match send_vectored(&SockRef::from(&self.descriptor()), parts) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
                other => other,
            },
            Self::Ring(stream) => stream.try_write_vectored(parts),
            #[cfg(test)]
            Self::Simulated(stream) => stream.try_write_vectored(parts),
        }
    }

    async fn write_all(&mut self, head: &mut Vec<u8>, body: &[Bytes], mut moved: impl FnMut(usize)) -> io::Result<()> {
        poll_fn(|context| self.poll_written(context)).await?;
        let total = head.len() + body.iter().map(Bytes::len).sum::<usize>();
        if total == head.len() && self.write_behind(head) {
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
                    #[cfg(test)]
                    Self::Simulated(stream) => {
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
        #[cfg(test)]
        if let Self::Simulated(stream) = self {
            return stream.is_reset();
        }
        if let Self::Ring(stream) = self
            && stream.has_failed()
        {
            return true;
        }
        SockRef::from(&self.descriptor()).take_error().is_ok_and(|error| error.is_some())
    }

    fn is_hung_up(&self) -> bool {
        #[cfg(test)]
        if let Self::Simulated(stream) = self {
            return stream.is_hung_up();
        }
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let descriptor = self.descriptor();
        let mut polled = [PollFd::new(&descriptor, PollFlags::RDHUP)];
        let is_ready = poll(&mut polled, Some(&Timespec::default())).is_ok_and(|count| count > 0);
        is_ready && polled.iter().any(|one| !one.revents().is_empty())
    }

    fn unacknowledged(&self) -> usize {
        #[cfg(test)]
        if let Self::Simulated(stream) = self {
            return stream.unacknowledged();
        }
        let mut count: libc::c_int = 0;
        #[expect(unsafe_code, reason = "rustix has no function for this ioctl")]
        // SAFETY: SIOCOUTQ writes one int, to a place that lives for the call; the descriptor is borrowed and open.
        let outcome = unsafe { libc::ioctl(self.descriptor().as_raw_fd(), libc::TIOCOUTQ, &raw mut count) };
        if outcome == 0 { usize::try_from(count).unwrap_or(0) } else { 0 }
    }

    fn reset_at_close(&self) {
        #[cfg(test)]
        if let Self::Simulated(stream) = self {
            return stream.reset_at_close();
        }
        // It fails only on a socket that is no longer connected.
        let _ = SockRef::from(&self.descriptor()).set_linger(Some(Duration::ZERO));
    }

    fn peer(&self) -> Option<SocketAddr> {
        #[cfg(test)]
        if let Self::Simulated(stream) = self {
            return stream.peer();
        }
        SockRef::from(&self.descriptor()).peer_addr().ok()?.as_socket()
    }

    fn end_output(&mut self) {}

    async fn shutdown_write(&mut self) -> io::Result<()> {
        match self {
            Self::Glommio(stream) => stream.shutdown(Shutdown::Write).await.map_err(io::Error::from),
            Self::Ring(stream) => stream.shutdown_write(),
            #[cfg(test)]
            Self::Simulated(stream) => stream.shutdown_write(),
        }
    }
}

impl Socket {
    /// Returns the descriptor of a connection that nothing was read from or written to, to move it
    /// to another thread.
    ///
    /// # Errors
    /// The connection, if it cannot be moved.
    pub fn into_descriptor(self) -> Result<OwnedFd, Self> {
        match self {
            Self::Glommio(stream) => {
                let socket = Self::Glommio(stream);
                let descriptor = socket.descriptor().try_clone_to_owned();
                descriptor.map_err(|_| socket)
            }
            Self::Ring(stream) => stream.into_descriptor().map_err(|stream| Self::Ring(Box::new(stream))),
            #[cfg(test)]
            Self::Simulated(stream) => Err(Self::Simulated(stream)),
        }
    }

    /// A connection of this thread's executor, from a descriptor that another thread has accepted.
    ///
    /// # Errors
    /// If its blocking mode cannot be set.
    #[expect(unsafe_code, reason = "glommio takes a socket only by its descriptor")]
    pub fn from_descriptor(descriptor: OwnedFd) -> io::Result<Self> {
        match ring::current() {
            Some(ring) => Ok(Self::Ring(Box::new(RingStream::from_descriptor(ring, descriptor)?))),
            // SAFETY: the descriptor is open and connected, and after into_raw_fd it has no other
            // owner.
            None => Ok(Self::Glommio(Box::new(unsafe { TcpStream::from_raw_fd(descriptor.into_raw_fd()) }))),
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            #[expect(unsafe_code, reason = "glommio's stream lends no borrowed descriptor")]
            // SAFETY: the descriptor is owned by the stream, which outlives the borrow.
            Self::Glommio(stream) => unsafe { BorrowedFd::borrow_raw(stream.as_raw_fd()) },
            Self::Ring(stream) => stream.descriptor().as_fd(),
            #[cfg(test)]
            Self::Simulated(_) => unreachable!("what asks for a descriptor asks the simulated stream before"),
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
    use crate::runtime::clock;
    use crate::runtime::executor::{self, IoPath, Runtime};
    use crate::runtime::ring::spin::Spin;
    use std::rc::Rc;

    #[test]
    fn what_is_left_follows_what_was_sent() {
        let body = [Bytes::from_static(b"cde"), Bytes::new(), Bytes::from_static(b"f")];
        for sent in 0..=6 {
            let rest: Vec<u8> = rest_of(b"ab", &body, sent).iter().flat_map(|part| part.to_vec()).collect();
            assert_eq!(rest, b"abcdef"[sent..], "after {sent}");
        }
    }

    #[test]
    fn a_listener_that_begins_no_handshake_refuses_at_once_and_accepts_those_that_have_begun() {
        let runtime = Runtime::new(IoPath::Auto, Spin::Off).unwrap();
        let outcome = runtime.run(async {
            let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = socket.local_addr().unwrap();
            let before = std::net::TcpStream::connect(address).unwrap();
            let listener = Listener::new(OwnedFd::from(socket), false, Duration::from_secs(30)).unwrap();
            listener.stop_handshakes();
            let began = clock::now();
            let refused = std::net::TcpStream::connect(address).unwrap_err().kind();
            let took = clock::now().since(began);
            let accepted = listener.accept().await.unwrap().peer();
            assert_eq!(accepted, Some(before.local_addr().unwrap()));
            listener.stop();
            (refused, took, listener.accept().await.err().map(|error| error.kind()))
        });
        let (refused, took, stopped) = outcome.unwrap();
        assert_eq!((refused, stopped), (ErrorKind::ConnectionRefused, Some(ErrorKind::InvalidInput)));
        assert!(took < Duration::from_millis(500), "a dropped handshake is tried again after a second: {took:?}");
    }

    #[test]
    fn a_unix_socket_that_stops_has_served_those_who_came_and_ends_its_accept() {
        let path = std::env::temp_dir().join(format!("deuteron-listener-{}", std::process::id()));
        for kind in [IoPath::Auto, IoPath::Epoll, IoPath::Glommio] {
            let Ok(runtime) = Runtime::new(kind, Spin::Off) else { continue };
            let path = path.clone();
            let outcome = runtime.run(async move {
                let _ = std::fs::remove_file(&path);
                let socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
                let listener = Rc::new(Listener::new(OwnedFd::from(socket), false, Duration::from_secs(30)).unwrap());
                let _client = std::os::unix::net::UnixStream::connect(&path).unwrap();
                let accepted = listener.accept().await.unwrap().peer();
                let own = Rc::clone(&listener);
                let waiting = executor::spawn(async move { own.accept().await.err().map(|error| error.kind()) });
                executor::sleep(Duration::from_millis(20)).await;
                listener.stop();
                let refused = std::os::unix::net::UnixStream::connect(&path).unwrap_err().kind();
                std::fs::remove_file(&path).unwrap();
                (accepted, refused, waiting.await)
            });
            let want = (None, ErrorKind::ConnectionRefused, Some(ErrorKind::InvalidInput));
            assert_eq!(outcome.unwrap(), want, "{kind:?}");
        }
    }

    #[test]
    fn descriptors_that_were_not_passed_are_refused() {
        assert!(take_inherited(900_000, 1).is_err());
        assert!(take_inherited(900_000, 0).unwrap().is_empty());
    }
}
