//! Sockets that wait for nobody, and the wait for all of them: epoll, with a timer that is exact to
//! microseconds where epoll's own is to milliseconds.

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
/// What the timer is called among the sockets.
const TIMER: u64 = u64::MAX;

/// A connection that is made or being made.
#[derive(Debug)]
pub struct ClientSocket(TcpStream);

/// What a read or a write came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BytesMoved {
    /// So many bytes; of a read 0 is the end.
    Bytes(usize),
    /// None now.
    Blocked,
}

impl ClientSocket {
    /// Begins a connection.
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        match socket.connect(&address.into()) {
            Err(error) if error.raw_os_error() != Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => Err(error),
            _ => Ok(Self(socket.into())),
        }
    }

    /// Why the connection could not be made, if so.
    pub fn take_error(&self) -> io::Result<()> {
        self.0.take_error()?.map_or(Ok(()), Err)
    }

    /// Reads what is there.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<BytesMoved> {
        moved(self.0.read(buffer))
    }

    /// Writes what fits.
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

/// Waits for many sockets.
pub struct Poller {
    epoll: OwnedFd,
    timer: OwnedFd,
    events: Vec<Event>,
}

/// A socket that has something.
#[derive(Clone, Copy, Debug)]
pub struct ReadyConnection {
    /// The name it was added with.
    pub index: usize,
    /// It can be written to; otherwise it can be read, or has ended.
    pub is_writable: bool,
}

impl Poller {
    /// Waits for none yet.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN)?;
        Ok(Self { epoll, timer, events: Vec::with_capacity(EVENTS_MAX) })
    }

    /// Waits for a connection to be made, too.
    pub fn add(&self, stream: &ClientSocket, index: usize) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::OUT;
        Ok(epoll::add(&self.epoll, stream.0.as_fd(), EventData::new_u64(index as u64), flags)?)
    }

    /// Whether to wait for room to write.
    pub fn set_writable(&self, stream: &ClientSocket, index: usize, wants: bool) -> io::Result<()> {
        let flags = if wants { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        Ok(epoll::modify(&self.epoll, stream.0.as_fd(), EventData::new_u64(index as u64), flags)?)
    }

    /// Waits at most so long, exact to the timer's resolution, and adds what is ready.
    pub fn wait(&mut self, timeout: Duration, ready: &mut Vec<ReadyConnection>) -> io::Result<()> {
        // Whole milliseconds are epoll's own business; anything finer is the timer's.
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
            // Until it is read it is ready.
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
