//! One connection of a load: a socket and what is spoken on it. It is made again when it ends, at
//! most so often; requests that it is given meanwhile wait in it, and fail if it cannot be made.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::loadgen::exchange::Exchange;
use crate::loadgen::failure::{FailureKind, RequestFailure};
use crate::loadgen::request::OutgoingRequest;
use crate::loadgen::socket::{BytesMoved, ClientSocket, Poller};
use crate::time::Instant;

/// How long after a connection could not be made it is tried again: a server that is gone must not
/// be counted as fast failures.
const RETRY_DELAY: Duration = Duration::from_millis(10);

/// Makes what is spoken on a new connection.
pub type NewExchange = Box<dyn Fn() -> Box<dyn Exchange>>;

/// One connection.
pub struct ClientConnection {
    index: usize,
    address: SocketAddr,
    new_exchange: NewExchange,
    exchange: Box<dyn Exchange>,
    state: LinkState,
    is_waiting_for_room: bool,
    /// Requests of which no byte was sent yet.
    pub unsent: Vec<usize>,
}

/// ```text
/// Down ──► Connecting ──► Up
///   ▲──────────┴──────────┘
/// ```
enum LinkState {
    /// Not before this.
    Down(Instant),
    Connecting(ClientSocket),
    Up(ClientSocket),
}

impl ClientConnection {
    /// A connection that is not made yet.
    pub fn new(index: usize, address: SocketAddr, new_exchange: NewExchange) -> Self {
        let exchange = new_exchange();
        let state = LinkState::Down(Instant::ZERO);
        Self { index, address, new_exchange, exchange, state, is_waiting_for_room: false, unsent: Vec::new() }
    }

    /// Whether it is made.
    pub const fn is_up(&self) -> bool {
        matches!(self.state, LinkState::Up(_))
    }

    /// Whether it is being made.
    pub const fn is_connecting(&self) -> bool {
        matches!(self.state, LinkState::Connecting(_))
    }

    /// Whether nobody is making it.
    pub const fn is_down(&self) -> bool {
        matches!(self.state, LinkState::Down(_))
    }

    /// What is spoken on it.
    pub fn exchange(&mut self) -> &mut dyn Exchange {
        &mut *self.exchange
    }

    /// Gives it a request, of which nothing is sent before [`ClientConnection::flush`].
    pub fn submit(&mut self, token: usize, request: &OutgoingRequest) {
        self.exchange.handle_request(token, request);
        self.unsent.push(token);
    }

    /// Begins to make the connection where it is down and was not tried just now.
    pub fn connect(&mut self, poller: &Poller, now: Instant) -> Result<(), RequestFailure> {
        let LinkState::Down(earliest) = self.state else { return Ok(()) };
        if now < earliest {
            return Ok(());
        }
        let stream =
            ClientSocket::connect(self.address).and_then(|stream| poller.add(&stream, self.index).map(|()| stream));
        match stream {
            Ok(stream) => {
                self.state = LinkState::Connecting(stream);
                Ok(())
            }
            Err(error) => {
                self.state = LinkState::Down(now + RETRY_DELAY);
                Err(RequestFailure::new(FailureKind::Connect, error.to_string()))
            }
        }
    }

    /// The socket can be written to.
    pub fn handle_writable(&mut self, poller: &Poller) -> Result<(), RequestFailure> {
        let LinkState::Connecting(stream) = &self.state else { return Ok(()) };
        stream.take_error().map_err(|error| RequestFailure::new(FailureKind::Connect, error.to_string()))?;
        poller.set_writable(stream, self.index, false).map_err(|error| closed(&error))?;
        self.is_waiting_for_room = false;
        if let LinkState::Connecting(stream) = std::mem::replace(&mut self.state, LinkState::Down(Instant::ZERO)) {
            self.state = LinkState::Up(stream);
        }
        Ok(())
    }

    /// The socket can be read: reads once into the buffer. `true` if there may be more.
    pub fn handle_readable(&mut self, buffer: &mut [u8]) -> Result<bool, RequestFailure> {
        let stream = match &mut self.state {
            LinkState::Up(stream) => stream,
            LinkState::Connecting(stream) => {
                let outcome = stream.take_error();
                return outcome
                    .map(|()| false)
                    .map_err(|error| RequestFailure::new(FailureKind::Connect, error.to_string()));
            }
            LinkState::Down(_) => return Ok(false),
        };
        match stream.read(buffer).map_err(|error| closed(&error))? {
            BytesMoved::Blocked => Ok(false),
            BytesMoved::Bytes(0) => {
                self.exchange.handle_end();
                Err(RequestFailure::new(FailureKind::Closed, "the server closed the connection"))
            }
            BytesMoved::Bytes(size) => {
                self.exchange.handle_bytes(buffer.get(..size).unwrap_or_default())?;
                Ok(size == buffer.len())
            }
        }
    }

    /// Sends what there is to send, as far as there is room.
    pub fn flush(&mut self, poller: &Poller) -> Result<(), RequestFailure> {
        let LinkState::Up(stream) = &mut self.state else { return Ok(()) };
        while let Some(bytes) = self.exchange.poll_output() {
            let size = bytes.len();
            match stream.write(bytes).map_err(|error| closed(&error))? {
                BytesMoved::Bytes(sent) => {
                    self.exchange.handle_sent(sent);
                    if sent == size {
                        continue;
                    }
                }
                BytesMoved::Blocked => {}
            }
            if !self.is_waiting_for_room {
                self.is_waiting_for_room = true;
                poller.set_writable(stream, self.index, true).map_err(|error| closed(&error))?;
            }
            return Ok(());
        }
        if std::mem::take(&mut self.is_waiting_for_room) {
            poller.set_writable(stream, self.index, false).map_err(|error| closed(&error))?;
        }
        Ok(())
    }

    /// Closes it; it may be made again at once, or after a failure to make it a little later.
    pub fn close(&mut self, failure: Option<&RequestFailure>, now: Instant) {
        let is_refused = failure.is_some_and(|failure| failure.kind == FailureKind::Connect);
        self.state = LinkState::Down(if is_refused { now + RETRY_DELAY } else { now });
        self.exchange = (self.new_exchange)();
        self.is_waiting_for_room = false;
        self.unsent.clear();
    }
}

fn closed(error: &io::Error) -> RequestFailure {
    RequestFailure::new(FailureKind::Closed, error.to_string())
}
