//! Nonblocking sockets and a poller for them: epoll, with a timerfd for timeouts in microseconds, since epoll's own timeout
//! is in milliseconds.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use socket2::{Domain, Protocol, Socket, Type};

/// Events taken from the kernel at once.
const EVENTS_MAX: usize = 256;
/// The epoll data of the timer; sockets have their indices.
const TIMER: u64 = u64::MAX;

/// A nonblocking TCP socket, connected or connecting.
#[derive(Debug)]
pub struct ClientSocket(TcpStream);

/// The result of a read or a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BytesMoved {
    /// The number of bytes; for a read, 0 is the end of the stream.
    Bytes(usize),
    /// The socket is not ready.
    Blocked,
}

impl ClientSocket {
    /// Starts to connect.
    ///
    /// # Errors
    /// The error of the system, when the connect fails at once.
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        match socket.connect(&address.into()) {
            Err(error) if error.raw_os_error() != Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => Err(error),
            _ => Ok(Self(socket.into())),
        }
    }

    /// Checks the outcome of the connect.
    ///
    /// # Errors
    /// The reason of the failure.
    pub fn take_error(&self) -> io::Result<()> {
        self.0.take_error()?.map_or(Ok(()), Err)
    }

    /// Reads the bytes that have arrived.
    ///
    /// # Errors
    /// The error of the system, but not for a socket that is not ready.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<BytesMoved> {
        moved(self.0.read(buffer))
    }

    /// Writes the bytes that fit into the socket's buffer.
    ///
    /// # Errors
    /// The error of the system, but not for a socket that is not ready.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<BytesMoved> {
        moved(self.0.write(bytes))
    }
}

fn moved(outcome: io::Result<usize>) -> io::Result<BytesMoved> {
    match outcome {
        Ok(size) => Ok(BytesMoved::Bytes(size)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(BytesMoved::Blocked)
        }
        Err(error) => Err(error),
    }
}

/// Waits for events of many sockets.
pub struct Poller {
    epoll: OwnedFd,
    timer: OwnedFd,
    events: Vec<Event>,
}

/// An event of a socket.
#[derive(Clone, Copy, Debug)]
pub struct ReadyConnection {
    /// The index that the socket was added with.
    pub index: usize,
    /// True for writable, false for readable or closed. A socket that is both gets two events.
    pub is_writable: bool,
}

impl Poller {
    /// A poller without sockets.
    ///
    /// # Errors
    /// When the process has too many open files.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN)?;
        Ok(Self { epoll, timer, events: Vec::with_capacity(EVENTS_MAX) })
    }

    /// Adds a connecting socket. It is writable when the connect has ended.
    ///
    /// # Errors
    /// The error of `epoll_ctl`.
    pub fn add(&self, stream: &ClientSocket, index: usize) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::OUT;
        Ok(epoll::add(&self.epoll, stream.0.as_fd(), EventData::new_u64(index as u64), flags)?)
    }

    /// Waits for the socket to become writable, or stops waiting for that.
    ///
    /// # Errors
    /// The error of `epoll_ctl`.
    pub fn set_writable(&self, stream: &ClientSocket, index: usize, wants: bool) -> io::Result<()> {
        let flags = if wants { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        Ok(epoll::modify(&self.epoll, stream.0.as_fd(), EventData::new_u64(index as u64), flags)?)
    }

    /// Waits for events, at most for `timeout`, and appends them to `ready`. A signal ends the wait early.
    ///
    /// # Errors
    /// The error of `epoll_wait`.
    pub fn wait(&mut self, timeout: Duration, ready: &mut Vec<ReadyConnection>) -> io::Result<()> {
        // The timer is set only for timeouts that epoll cannot express: it costs two system calls.
        let millis = Duration::from_millis(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
        if millis != timeout {
            let value = timespec(timeout);
            let once = Itimerspec { it_interval: timespec(Duration::ZERO), it_value: value };
            timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        }
        let limit = if millis == timeout { millis } else { millis + Duration::from_millis(1) };
        self.events.clear();
        let limit = timespec(limit);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), Some(&limit)) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let mut has_fired = false;
        for event in &self.events {
            match (event.data.u64(), event.flags) {
                (TIMER, _) => has_fired = true,
                (index, flags) => {
                    let index = usize::try_from(index).unwrap_or(usize::MAX);
                    let is_readable = flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR);
                    let is_writable = flags.contains(EventFlags::OUT);
                    ready.extend(is_writable.then_some(ReadyConnection { index, is_writable: true }));
                    ready.extend(is_readable.then_some(ReadyConnection { index, is_writable: false }));
                }
            }
        }
        if has_fired {
            // A timerfd stays ready until it is read.
            let _ = rustix::io::read(&self.timer, &mut [0; 8]);
        }
        Ok(())
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}
