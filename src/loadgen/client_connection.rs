//! One connection of a load thread: a socket and its protocol. A connection that ends is connected again, after a failure
//! not before a delay. Requests submitted meanwhile wait in it, and fail if it cannot connect.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::loadgen::exchange::{Exchange, closed_failure};
use crate::loadgen::failure::{FailureKind, RequestFailure};
use crate::loadgen::request::OutgoingRequest;
use crate::loadgen::socket::{BytesMoved, ClientSocket, Poller};
use crate::time::Instant;

/// Delay after a failed connect: without it, a server that is down would be measured as very fast failures.
const RETRY_DELAY: Duration = Duration::from_millis(10);

/// Makes the protocol state of a new connection.
pub type NewExchange = Box<dyn Fn() -> Box<dyn Exchange>>;

/// One connection.
pub struct ClientConnection {
    /// Its index in the thread, and its name in the poller.
    index: usize,
    address: SocketAddr,
    new_exchange: NewExchange,
    exchange: Box<dyn Exchange>,
    state: LinkState,
    /// True if the poller waits for the socket to become writable.
    is_waiting_for_room: bool,
    /// Tokens of requests that are not sent yet.
    pub unsent: Vec<usize>,
}

/// ```text
/// Down ──► Connecting ──► Up
///   ▲──────────┴──────────┘
/// ```
enum LinkState {
    /// Not connected; connects at this time at the earliest.
    Down(Instant),
    Connecting(ClientSocket),
    Up(ClientSocket),
}

impl ClientConnection {
    /// A connection that is down and may connect at once.
    pub fn new(index: usize, address: SocketAddr, new_exchange: NewExchange) -> Self {
        let exchange = new_exchange();
        let state = LinkState::Down(Instant::ZERO);
        Self { index, address, new_exchange, exchange, state, is_waiting_for_room: false, unsent: Vec::new() }
    }

    /// Returns true if it is connected, with TLS after the handshake.
    pub fn is_up(&self) -> bool {
        matches!(self.state, LinkState::Up(_)) && self.exchange.is_ready()
    }

    /// Returns true if it is connecting, or in the handshake of TLS.
    pub fn is_connecting(&self) -> bool {
        match self.state {
            LinkState::Down(_) => false,
            LinkState::Connecting(_) => true,
            LinkState::Up(_) => !self.exchange.is_ready(),
        }
    }

    /// Returns true if it is neither connected nor connecting.
    pub const fn is_down(&self) -> bool {
        matches!(self.state, LinkState::Down(_))
    }

    /// Its protocol state.
    pub fn exchange(&mut self) -> &mut dyn Exchange {
        &mut *self.exchange
    }

    /// Submits a request. Nothing is sent before [`ClientConnection::flush`].
    pub fn submit(&mut self, token: usize, request: &OutgoingRequest) {
        self.exchange.handle_request(token, request);
        self.unsent.push(token);
    }

    /// Starts to connect, if it is down and its retry delay is over.
    ///
    /// # Errors
    /// [`FailureKind::Connect`] when the connect fails at once.
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

    /// The socket has become writable: the end of a connect, or room for more bytes.
    ///
    /// # Errors
    /// [`FailureKind::Connect`] when the connect has failed.
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

    /// The socket has become readable: reads once into the buffer. Returns true if there may be more.
    ///
    /// # Errors
    /// When the server has closed the connection or broken the protocol, or the connect has failed.
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
                let failure = closed_failure(&*self.exchange);
                self.exchange.handle_end();
                Err(failure)
            }
            BytesMoved::Bytes(size) => {
                self.exchange.handle_bytes(buffer.get(..size).unwrap_or_default())?;
                Ok(size == buffer.len())
            }
        }
    }

    /// Writes the pending bytes until the socket is full, and then waits for room.
    ///
    /// # Errors
    /// [`FailureKind::Closed`] when the write fails.
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

    /// Closes the connection. It may connect again at once, or after `RETRY_DELAY` if the failure was a connect.
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
