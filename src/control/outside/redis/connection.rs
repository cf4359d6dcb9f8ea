//! One connection to Redis: the login, and commands and replies with a time limit, which go both ways at once. Owned by its
//! thread, which it may block as long as its limits say.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;

use crate::limits::RESP_LINE_SIZE_MAX;
use crate::runtime::clock;
use crate::settings::RedisSettings;
use crate::time::Instant;
use crate::wire::resp::{self, RespFault, RespReply};

/// Bytes that are read at once.
const READ_SIZE: usize = 64 * 1024;

/// An open connection, logged in.
pub(super) struct RedisConnection {
    /// Does not block.
    stream: TcpStream,
    /// Longest silence of the other end.
    silence_max: Duration,
    /// Bytes that wait to be sent, from an offset on.
    output: Vec<u8>,
    sent: usize,
    /// Bytes that were read and are not decoded yet.
    input: Vec<u8>,
    /// The space that a read goes to first.
    space: Box<[u8]>,
}

/// The reason that there is no connection.
#[derive(Debug)]
pub(super) enum RedisFault {
    /// It cannot be reached, or does not answer like Redis.
    Lost(io::Error),
    /// It refuses this login or this database: trying again does not help.
    Refused(String),
}

impl fmt::Display for RedisFault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(error) => write!(formatter, "{error}"),
            Self::Refused(why) => write!(formatter, "{why}"),
        }
    }
}

impl From<io::Error> for RedisFault {
    fn from(error: io::Error) -> Self {
        Self::Lost(error)
    }
}

impl RedisConnection {
    /// Connects and logs in, within the time for both.
    pub(super) fn open(settings: &RedisSettings) -> Result<Self, RedisFault> {
        let until = clock::now() + settings.connect_timeout;
        let stream = connect(settings, until)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let (input, output, space) = (Vec::new(), Vec::new(), vec![0; READ_SIZE].into());
        let silence_max = until.since(clock::now());
        let mut connection = Self { stream, silence_max, output, sent: 0, input, space };
        let (user, password) = (settings.user.reveal().as_bytes(), settings.password.reveal().as_bytes());
        if !password.is_empty() {
            let login = [&b"AUTH"[..], user, password];
            let without_user = [&b"AUTH"[..], password];
            connection.demand(if user.is_empty() { &without_user } else { &login }, until)?;
        }
        if settings.database > 0 {
            connection.demand(&[b"SELECT", settings.database.to_string().as_bytes()], until)?;
        }
        connection.demand(&[b"PING"], until)?;
        connection.silence_max = settings.lookup_timeout;
        Ok(connection)
    }

    /// A command without which the connection is of no use.
    fn demand(&mut self, command: &[&[u8]], until: Instant) -> Result<(), RedisFault> {
        let mut bytes = Vec::new();
        resp::encode(command, &mut bytes);
        self.write(bytes);
        let refused = self.read(0, until, |reply| match reply {
            RespReply::Status(_) => Ok(None),
            RespReply::Failure(why) => Ok(Some(why.escape_ascii().to_string())),
            RespReply::Bulk(_) | RespReply::Integer(_) | RespReply::Nothing => Err(not_redis()),
        })??;
        match refused {
            None => Ok(()),
            // It loads its data, or follows another that is gone: this passes.
            Some(why) if PASSING.iter().any(|word| why.starts_with(word)) => Err(io::Error::other(why).into()),
            Some(why) => Err(RedisFault::Refused(why)),
        }
    }

    /// Checks that the other end is there.
    pub(super) fn ping(&mut self, until: Instant) -> io::Result<()> {
        let mut bytes = Vec::new();
        resp::encode(&[b"PING"], &mut bytes);
        self.write(bytes);
        self.read(0, until, |_| ())
    }

    /// Takes bytes to send. They go out while replies are read: the other end may stop to read commands until its replies
    /// are taken, and both would wait.
    pub(super) fn write(&mut self, bytes: Vec<u8>) {
        if self.sent == self.output.len() {
            (self.output, self.sent) = (bytes, 0);
        } else {
            self.output.extend_from_slice(&bytes);
        }
    }

    /// Reads the next reply, whose value has at most `size_max` bytes.
    pub(super) fn read<T>(
        &mut self,
        size_max: usize,
        until: Instant,
        mut taken: impl FnMut(RespReply<'_>) -> T,
    ) -> io::Result<T> {
        let input_size_max = size_max.saturating_add(READ_SIZE + RESP_LINE_SIZE_MAX);
        loop {
            match resp::decode(&self.input, size_max) {
                Ok(Some((reply, used))) => {
                    let outcome = taken(reply);
                    self.input.drain(..used);
                    // The buffer does not keep the size of a large answer.
                    self.input.shrink_to(READ_SIZE);
                    return Ok(outcome);
                }
                Ok(None) => {}
                Err(RespFault::Malformed) => return Err(not_redis()),
                Err(RespFault::Size) => return Err(io::Error::other("it sent more than was asked for")),
            }
            debug_assert!(self.input.len() <= input_size_max, "the decoder refuses what is larger");
            self.advance(until)?;
        }
    }

    /// Waits until bytes can be sent or read, and does both as far as that goes without another wait.
    fn advance(&mut self, until: Instant) -> io::Result<()> {
        let left = until.since(clock::now());
        let wait = left.min(self.silence_max.max(Duration::from_millis(1)));
        let has_output = self.sent < self.output.len();
        let flags = if has_output { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let timeout = Timespec::try_from(wait).map_err(|_| late())?;
        let mut polled = [PollFd::new(&self.stream, flags)];
        if left.is_zero() || retry_on_intr(|| poll(&mut polled, Some(&timeout)))? == 0 {
            return Err(late());
        }
        let [polled] = polled;
        let events = polled.revents();
        if has_output && events.contains(PollFlags::OUT) {
            let rest = self.output.get(self.sent..).unwrap_or_default();
            self.sent += unless_blocked(self.stream.write(rest))?.unwrap_or(0);
            if self.sent == self.output.len() {
                // A large answer is not remembered by the size of the buffer.
                (self.output, self.sent) = (Vec::new(), 0);
            }
        }
        // An error of the socket, or its end, is what a read returns.
        if events != PollFlags::OUT
            && let Some(count) = unless_blocked(self.stream.read(&mut self.space))?
        {
            if count == 0 {
                return Err(io::Error::new(ErrorKind::UnexpectedEof, "it closed the connection"));
            }
            self.input.extend_from_slice(self.space.get(..count).unwrap_or_default());
        }
        Ok(())
    }
}

/// The errors of Redis that pass after a while.
const PASSING: [&str; 4] = ["BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN"];

fn connect(settings: &RedisSettings, until: Instant) -> io::Result<TcpStream> {
    let mut failure = io::Error::new(ErrorKind::NotFound, "its name has no address");
    for address in (settings.host.as_str(), settings.port).to_socket_addrs()? {
        let left = until.since(clock::now());
        if left.is_zero() {
            return Err(late());
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// The result of a socket operation; `None` if it would block.
fn unless_blocked(outcome: io::Result<usize>) -> io::Result<Option<usize>> {
    match outcome {
        Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => Ok(None),
        outcome => outcome.map(Some),
    }
}

fn late() -> io::Error {
    io::Error::new(ErrorKind::TimedOut, "it did not answer in time")
}

fn not_redis() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "what it sends is not Redis's protocol")
}
