//! TLS on the connections of a shard: the handshake, and the socket whose bytes the machine in
//! `connection::tls` encrypts and decrypts. Protocols above it are unaware of it. Handshakes are
//! bounded in number and in time, and a turn of the shard has time for one step of one of them,
//! since a signature takes up to a millisecond.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{self, ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_lite::future::yield_now;

use crate::connection::tls::{
    HANDSHAKE_RECORD, SMALL_PLAIN_SIZE, TlsConfig, TlsConnection, TlsFault, TlsFaultKind, TlsInput,
};
use crate::limits::LINGER_TIMEOUT;
use crate::log;
use crate::metrics::HandshakeFailure;
use crate::runtime::clock;
use crate::runtime::socket::{ByteStream, Socket};
use crate::shard::Shard;
use crate::shard::connections::linger::linger;
use crate::shard::connections::tls_configs::TlsConfigs;
use crate::shard::connections::{ConnectionGuard, WakeReason};
use crate::shard::sessions::session;
use crate::time::Instant;

/// Bytes of plaintext that are encrypted before they are sent, for one connection: as many as a socket takes at once, and
/// some tens of microseconds of the shard's time.
const TLS_WRITE_SIZE: usize = 64 * 1024;
/// The interval at which a shard logs failed TLS handshakes; the next line counts those in between.
const TLS_FAILURES_PAUSE: Duration = Duration::from_secs(10);

/// The answer to a client without TLS at a port that has it.
const TLS_PORT: &str = "this port has TLS: connect with https://, or with a gRPC client's ssl options";

/// The TLS of one shard.
pub struct ShardTls {
    /// The configurations for connections from now on.
    configs: RefCell<Arc<TlsConfigs>>,
    /// Handshakes in progress.
    handshakes: Cell<usize>,
    /// The turn of the last handshake step.
    turn: Cell<Option<Instant>>,
    /// The buffer in which the parts of a send are joined before they are encrypted.
    staging: RefCell<Vec<u8>>,
    /// The instant of the last logged failure, and the count of failures since.
    logged: Cell<(Option<Instant>, u64)>,
}

impl ShardTls {
    /// With the initial configurations.
    pub fn new(configs: &Arc<TlsConfigs>) -> Self {
        Self {
            configs: RefCell::new(Arc::clone(configs)),
            handshakes: Cell::new(0),
            turn: Cell::new(None),
            staging: RefCell::default(),
            logged: Cell::new((None, 0)),
        }
    }

    /// Sets the configurations for new connections; existing ones keep theirs.
    pub fn set(&self, configs: &Arc<TlsConfigs>) {
        *self.configs.borrow_mut() = Arc::clone(configs);
    }

    /// Returns the configuration of one port, if it has TLS.
    pub fn config(&self, choose: impl FnOnce(&TlsConfigs) -> &Option<TlsConfig>) -> Option<TlsConfig> {
        choose(&self.configs.borrow()).clone()
    }

    /// Waits for a turn without a handshake step.
    async fn wait_turn(&self) {
        loop {
            let turn = clock::turn();
            if self.turn.replace(Some(turn)) != Some(turn) {
                return;
            }
            yield_now().await;
        }
    }

    /// Counts a failure. Returns the count of earlier unlogged failures if this one should be
    /// logged, at most once in [`TLS_FAILURES_PAUSE`].
    fn failure_line(&self, now: Instant) -> Option<u64> {
        let (at, count) = self.logged.get();
        if at.is_some_and(|at| now < at + TLS_FAILURES_PAUSE) {
            self.logged.set((at, count + 1));
            return None;
        }
        self.logged.set((Some(now), 0));
        Some(count)
    }
}

/// One of the bounded handshakes; leaves them when it is dropped.
struct HandshakePlace<'a>(&'a Cell<usize>);

impl<'a> HandshakePlace<'a> {
    fn take(tls: &'a ShardTls, count_max: usize) -> Option<Self> {
        let taken = tls.handshakes.get();
        (taken < count_max).then(|| {
            tls.handshakes.set(taken + 1);
            Self(&tls.handshakes)
        })
    }
}

impl Drop for HandshakePlace<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// The end of a handshake without a connection.
struct HandshakeEnd {
    reason: HandshakeFailure,
    text: String,
    /// The socket, if the client must still be told.
    socket: Option<TlsSocket>,
}

impl HandshakeEnd {
    fn new(reason: HandshakeFailure, text: &str) -> Self {
        Self { reason, text: text.to_owned(), socket: None }
    }
}

/// Accepts a connection on a port with TLS; returns its plaintext. `None` if the handshake failed;
/// the client was told the reason.
pub async fn accept(
    shard: &Rc<Shard>,
    socket: Socket,
    config: &TlsConfig,
    connection_guard: &ConnectionGuard,
) -> Option<TlsSocket> {
    let (options, cells) = (&shard.server_context.tls, &shard.cells.tls);
    let watch = connection_guard.watch();
    let peer = socket.peer();
    let Some(place) = HandshakePlace::take(&shard.sessions.tls, options.handshakes_max) else {
        let text = format!("{} are in progress already (--tls-handshakes-max)", options.handshakes_max);
        fail(shard, peer, HandshakeFailure::Limit, &text);
        return None;
    };
    watch.set_deadline(Some(clock::now() + options.handshake_timeout));
    let outcome = handshake(shard, socket, config, connection_guard).await;
    drop(place);
    match outcome {
        Ok(socket) => {
            let counter = if socket.connection.is_resumed() { &cells.resumed } else { &cells.full };
            counter.add(1);
            Some(socket)
        }
        Err(HandshakeEnd { reason, text, socket }) => {
            fail(shard, peer, reason, &text);
            match socket {
                Some(socket) if reason == HandshakeFailure::Plain => {
                    session::refuse(socket.socket, connection_guard, TLS_PORT).await;
                }
                Some(mut socket) => {
                    let told = socket.send_now();
                    if told.is_ok() {
                        let _ = linger(&mut socket.socket, watch, LINGER_TIMEOUT).await;
                    }
                }
                None => {}
            }
            None
        }
    }
}

fn fail(shard: &Shard, peer: Option<SocketAddr>, reason: HandshakeFailure, text: &str) {
    shard.cells.tls.count_failure(reason);
    if reason == HandshakeFailure::Closed {
        // Probes of TCP do this all day.
        return;
    }
    if let Some(others) = shard.sessions.tls.failure_line(clock::now()) {
        let peer = peer.map_or_else(|| "a client".to_owned(), |peer| peer.to_string());
        let others = if others == 0 { String::new() } else { format!("; {others} more since the last such line") };
        log::warning(&format!("the TLS handshake with {peer} failed: {text}{others}"));
    }
}

async fn handshake(
    shard: &Rc<Shard>,
    socket: Socket,
    config: &TlsConfig,
    connection_guard: &ConnectionGuard,
) -> Result<TlsSocket, HandshakeEnd> {
    let closed = |_| HandshakeEnd::new(HandshakeFailure::Closed, "the client closed the connection");
    let connection = TlsConnection::new(config);
    let connection = connection.map_err(|fault| HandshakeEnd::new(HandshakeFailure::Malformed, &fault.text))?;
    let mut stream = TlsSocket {
        socket,
        connection,
        out: Vec::new(),
        sent: 0,
        is_behind: false,
        tls: Rc::clone(&shard.sessions.tls),
        has_failed: false,
    };
    let mut is_first = true;
    loop {
        let count = read_some(&mut stream, is_first, connection_guard).await?;
        if count == 0 {
            return Err(closed(()));
        }
        stream.connection.handle_input(count);
        if std::mem::take(&mut is_first) && is_text(&stream.connection) {
            let text = "the client sent plain text; this port has TLS";
            return Err(HandshakeEnd { socket: Some(stream), ..HandshakeEnd::new(HandshakeFailure::Plain, text) });
        }
        shard.sessions.tls.wait_turn().await;
        let TlsSocket { connection, out, .. } = &mut stream;
        match connection.poll_handshake(out) {
            Ok(is_done) => {
                flush(&mut stream, connection_guard).await?;
                if is_done {
                    return Ok(stream);
                }
            }
            Err(fault) => {
                stream.has_failed = true;
                let end = HandshakeEnd::new(reason_of(fault.kind), &fault.text);
                return Err(HandshakeEnd { socket: Some(stream), ..end });
            }
        }
    }
}

/// Returns true if the first bytes, just read, begin a request without TLS: a method, or HTTP/2's
/// preface.
fn is_text(connection: &TlsConnection) -> bool {
    connection.first_input().is_some_and(|first| first != HANDSHAKE_RECORD && first.is_ascii_uppercase())
}

const fn reason_of(kind: TlsFaultKind) -> HandshakeFailure {
    match kind {
        TlsFaultKind::Alert => HandshakeFailure::Alert,
        TlsFaultKind::Certificate => HandshakeFailure::Certificate,
        TlsFaultKind::Incompatible => HandshakeFailure::Incompatible,
        TlsFaultKind::Malformed => HandshakeFailure::Malformed,
    }
}

/// Reads some bytes of a handshake; 0 if the client has left, or the server drains and has received
/// nothing of it yet.
async fn read_some(
    stream: &mut TlsSocket,
    is_first: bool,
    connection_guard: &ConnectionGuard,
) -> Result<usize, HandshakeEnd> {
    let watch = connection_guard.watch();
    let TlsSocket { socket, connection, .. } = stream;
    poll_fn(|context| {
        watch.register(context);
        let space = connection.input_space();
        if let Poll::Ready(count) = socket.poll_read(context, space) {
            return Poll::Ready(Ok(count.unwrap_or(0)));
        }
        match watch.take_wake_reason() {
            Some(WakeReason::Timeout) => Poll::Ready(Err(late())),
            // Checks again at the time when its first bytes would be here.
            Some(WakeReason::Drain) if is_first && clock::now() < watch.quiet_at() => {
                watch.set_deadline(Some(watch.quiet_at()));
                Poll::Pending
            }
            Some(WakeReason::Drain) if is_first => Poll::Ready(Ok(0)),
            Some(WakeReason::Evicted) => Poll::Ready(Ok(0)),
            Some(WakeReason::Drain | WakeReason::Weighed) | None => Poll::Pending,
        }
    })
    .await
}

fn late() -> HandshakeEnd {
    HandshakeEnd::new(HandshakeFailure::Timeout, "it was not done in time (--tls-handshake-timeout-secs)")
}

/// Waits until the kernel has all output of TLS.
async fn flush(stream: &mut TlsSocket, connection_guard: &ConnectionGuard) -> Result<(), HandshakeEnd> {
    let watch = connection_guard.watch();
    poll_fn(|context| {
        if let Poll::Ready(outcome) = stream.poll_written(context) {
            let failed = |_| HandshakeEnd::new(HandshakeFailure::Closed, "the client closed the connection");
            return Poll::Ready(outcome.map_err(failed));
        }
        watch.register(context);
        match watch.take_wake_reason() {
            Some(WakeReason::Timeout) => Poll::Ready(Err(late())),
            Some(WakeReason::Drain | WakeReason::Evicted | WakeReason::Weighed) | None => Poll::Pending,
        }
    })
    .await
}

/// A connection with TLS, after its handshake. Stays on its shard.
pub struct TlsSocket {
    socket: Socket,
    connection: TlsConnection,
    /// Records that the socket has not taken; those up to `sent` have left.
    out: Vec<u8>,
    sent: usize,
    /// True if the socket may still have records in a deferred send: nothing may overtake them.
    is_behind: bool,
    tls: Rc<ShardTls>,
    has_failed: bool,
}

impl TlsSocket {
    /// Sends as much as the kernel takes now; nothing while a send is in flight.
    fn send_now(&mut self) -> io::Result<()> {
        if self.is_behind {
            return Ok(());
        }
        while let Some(rest) = self.out.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match self.socket.try_write_vectored(&[IoSlice::new(rest)])? {
                0 => return Ok(()),
                count => self.sent += count,
            }
        }
        self.out = Vec::new();
        self.sent = 0;
        Ok(())
    }

    /// Returns true if records wait for the socket.
    const fn is_blocked(&self) -> bool {
        !self.out.is_empty()
    }

    fn encode(&mut self, plain: &[u8]) -> io::Result<()> {
        self.connection.encode_plain(plain, &mut self.out).map_err(|fault| self.fail(fault))
    }

    /// The error of a fault, whose alert is sent if the kernel takes it.
    fn fail(&mut self, fault: TlsFault) -> io::Error {
        self.has_failed = true;
        let _ = self.send_now();
        io::Error::new(ErrorKind::InvalidData, fault.text)
    }

    /// Sends records at the end of this turn if they are few, else at once as far as the kernel
    /// takes them.
    fn send(&mut self) -> io::Result<()> {
        if !self.is_behind && self.sent == 0 && self.is_blocked() && self.socket.write_behind(&mut self.out) {
            self.is_behind = true;
            return Ok(());
        }
        self.send_now()
    }
}

impl ByteStream for TlsSocket {
    const IS_ENCRYPTED: bool = true;

    fn has_negotiated_h2(&self) -> bool {
        self.connection.has_negotiated_h2()
    }

    fn begin_read(&mut self) -> usize {
        self.socket.begin_read()
    }

    fn poll_read(&mut self, context: &mut Context<'_>, space: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            let had_output = self.is_blocked();
            match self.connection.poll_plain(space, &mut self.out) {
                Ok(input) => {
                    // TLS's own answers to the client, and records that wait for room, for which
                    // nothing else may poll. An error comes again with the next write.
                    if had_output || self.is_blocked() {
                        let _ = self.poll_written(context);
                    }
                    match input {
                        TlsInput::Plain(count) => return Poll::Ready(Ok(count)),
                        TlsInput::End => return Poll::Ready(Ok(0)),
                        TlsInput::Wait => {}
                    }
                }
                Err(fault) => return Poll::Ready(Err(self.fail(fault))),
            }
            let room = self.connection.input_space();
            match ready!(self.socket.poll_read(context, room))? {
                // RFC 8446 §6.1: without close_notify a third party may have cut the connection.
                // The input is incomplete.
                0 => return Poll::Ready(Err(ErrorKind::UnexpectedEof.into())),
                count => self.connection.handle_input(count),
            }
        }
    }

    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_written(context))?;
        // A size that the ring sends by itself: the caller may not come back for it.
        let now = bytes.get(..SMALL_PLAIN_SIZE).unwrap_or(bytes);
        self.encode(now)?;
        self.send()?;
        Poll::Ready(Ok(now.len()))
    }

    fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.socket.poll_written(context))?;
            self.is_behind = false;
            let Some(rest) = self.out.get(self.sent..).filter(|rest| !rest.is_empty()) else {
                if self.sent > 0 {
                    self.out = Vec::new();
                    self.sent = 0;
                }
                return Poll::Ready(Ok(()));
            };
            self.sent += ready!(self.socket.poll_write(context, rest))?;
        }
    }

    fn write_behind(&mut self, bytes: &mut Vec<u8>) -> bool {
        let is_ready = !self.is_behind && !self.is_blocked() && bytes.len() <= SMALL_PLAIN_SIZE;
        if !is_ready || self.encode(bytes).is_err() {
            return false;
        }
        bytes.clear();
        // If the socket cannot defer the send, the bytes that it does not take now wait for
        // `poll_written`, as does its error.
        let _ = self.send();
        true
    }

    fn try_write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.is_behind || self.is_blocked() {
            return Ok(0);
        }
        let tls = Rc::clone(&self.tls);
        let mut staging = tls.staging.borrow_mut();
        staging.clear();
        for part in parts {
            let room = TLS_WRITE_SIZE - staging.len();
            staging.extend_from_slice(part.get(..room).unwrap_or(part));
        }
        self.encode(&staging)?;
        self.send_now()?;
        Ok(staging.len())
    }

    async fn write_all(&mut self, head: &mut Vec<u8>, body: &[Bytes], mut moved: impl FnMut(usize)) -> io::Result<()> {
        poll_fn(|context| self.poll_written(context)).await?;
        let mut waiting = 0;
        for part in std::iter::once(&head[..]).chain(body.iter().map(|part| &part[..])) {
            for piece in part.chunks(TLS_WRITE_SIZE) {
                self.encode(piece)?;
                waiting += piece.len();
                if self.out.len() >= TLS_WRITE_SIZE {
                    self.send_now()?;
                    poll_fn(|context| self.poll_written(context)).await?;
                    moved(std::mem::take(&mut waiting));
                }
            }
        }
        self.send()?;
        if self.is_blocked() {
            poll_fn(|context| self.poll_written(context)).await?;
        }
        moved(waiting);
        Ok(())
    }

    fn is_reset(&self) -> bool {
        self.socket.is_reset()
    }

    fn is_hung_up(&self) -> bool {
        self.socket.is_hung_up()
    }

    fn unacknowledged(&self) -> usize {
        self.socket.unacknowledged()
    }

    fn reset_at_close(&self) {
        self.socket.reset_at_close();
    }

    fn peer(&self) -> Option<SocketAddr> {
        self.socket.peer()
    }

    fn end_output(&mut self) {
        if !self.has_failed && !self.is_behind && !self.is_blocked() {
            self.connection.encode_end(&mut self.out);
            // Best effort: it tells clients that check that nothing was cut off.
            let _ = self.send_now();
        }
    }

    async fn shutdown_write(&mut self) -> io::Result<()> {
        self.end_output();
        self.socket.shutdown_write().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_handshakes_are_in_progress_and_no_more() {
        let tls = ShardTls::new(&Arc::default());
        let places: Vec<_> = (0..3).map(|_| HandshakePlace::take(&tls, 3).unwrap()).collect();
        assert!(HandshakePlace::take(&tls, 3).is_none());
        drop(places);
        assert!(HandshakePlace::take(&tls, 3).is_some());
    }

    #[test]
    fn failures_are_logged_once_in_a_while_with_the_number_of_the_others() {
        let tls = ShardTls::new(&Arc::default());
        let at = |millis: u64| Instant::from_micros(millis * 1_000);
        let told: Vec<_> = [0, 1, 9_999, 10_000, 10_001, 30_000].map(|millis| tls.failure_line(at(millis))).into();
        assert_eq!(told, [Some(0), None, None, Some(2), None, Some(1)]);
    }
}
