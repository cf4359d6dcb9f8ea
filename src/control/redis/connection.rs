//! One connection to Redis: the login, and commands and replies with a time limit. Owned by its thread, which it may
//! block as long as its limits say.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};

use crate::limits::RESP_LINE_SIZE_MAX;
use crate::runtime::clock;
use crate::settings::RedisSettings;
use crate::time::Instant;
use crate::wire::resp::{self, RespFault, RespReply};

/// Bytes that are read at once.
const READ_SIZE: usize = 64 * 1024;

/// An open connection, logged in.
pub(super) struct RedisConnection {
    stream: TcpStream,
    /// What was read and not decoded yet.
    input: Vec<u8>,
    /// Where a read goes to first.
    space: Box<[u8]>,
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum RedisFault {
    /// It cannot be reached, does not answer, or not as Redis does.
    Lost(io::Error),
    /// It takes neither this login nor this database: trying again does not help.
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
        let mut connection = Self { stream, input: Vec::new(), space: vec![0; READ_SIZE].into() };
        connection.limit(until.since(clock::now()))?;
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
        // From now on silence of this length is the end of the connection.
        connection.limit(settings.lookup_timeout)?;
        Ok(connection)
    }

    /// How long one read or write may wait.
    fn limit(&self, timeout: std::time::Duration) -> io::Result<()> {
        let timeout = Some(timeout.max(std::time::Duration::from_millis(1)));
        self.stream.set_read_timeout(timeout)?;
        self.stream.set_write_timeout(timeout)
    }

    /// A command without which the connection is of no use.
    fn demand(&mut self, command: &[&[u8]], until: Instant) -> Result<(), RedisFault> {
        let mut bytes = Vec::new();
        resp::encode(command, &mut bytes);
        self.write(&bytes, until)?;
        let refused = self.read(0, until, |reply| match reply {
            RespReply::Status(_) => Ok(None),
            RespReply::Failure(why) => Ok(Some(why.escape_ascii().to_string())),
            RespReply::Bulk(_) | RespReply::Integer(_) | RespReply::Nothing => Err(not_redis()),
        })??;
        match refused {
            None => Ok(()),
            // It loads its data, or follows another that is gone: that passes.
            Some(why) if PASSING.iter().any(|word| why.starts_with(word)) => Err(io::Error::other(why).into()),
            Some(why) => Err(RedisFault::Refused(why)),
        }
    }

    /// Sees whether the other end is there.
    pub(super) fn ping(&mut self, until: Instant) -> io::Result<()> {
        let mut bytes = Vec::new();
        resp::encode(&[b"PING"], &mut bytes);
        self.write(&bytes, until)?;
        self.read(0, until, |_| ())
    }

    /// Sends bytes.
    pub(super) fn write(&mut self, mut bytes: &[u8], until: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            let count = within(until, || self.stream.write(bytes))?;
            bytes = bytes.get(count.max(1)..).unwrap_or_default();
        }
        Ok(())
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
                    // A large answer is not remembered by the size of the buffer.
                    self.input.shrink_to(READ_SIZE);
                    return Ok(outcome);
                }
                Ok(None) => {}
                Err(RespFault::Malformed) => return Err(not_redis()),
                Err(RespFault::Size) => return Err(io::Error::other("it sent more than was asked for")),
            }
            debug_assert!(self.input.len() <= input_size_max, "the decoder refuses what is larger");
            let (stream, space) = (&mut self.stream, &mut self.space);
            let count = within(until, || stream.read(space))?;
            if count == 0 {
                return Err(io::Error::new(ErrorKind::UnexpectedEof, "it closed the connection"));
            }
            self.input.extend_from_slice(self.space.get(..count).unwrap_or_default());
        }
    }
}

/// The errors of Redis that are over after a while.
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

/// Tries again what was interrupted; silence of the other end is an error, and so is a whole that takes too long.
fn within<T>(until: Instant, mut step: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match step() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return Err(late()),
            Ok(_) if clock::now() > until => return Err(late()),
            outcome => return outcome,
        }
    }
}

fn late() -> io::Error {
    io::Error::new(ErrorKind::TimedOut, "it did not answer in time")
}

fn not_redis() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "what it sends is not Redis's protocol")
}
