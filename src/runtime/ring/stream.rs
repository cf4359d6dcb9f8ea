//! Sockets on the ring. Small messages are received into a provided buffer and sent by the ring, together with
//! everything else of the same turn. Large ones are received straight into the caller's memory and sent from there by
//! system calls, to save a copy; the ring only waits for readiness. Stays on its shard.

use std::future::poll_fn;
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketFlags};
use smallvec::SmallVec;

use crate::limits::READ_SIZE;
use crate::runtime::clock;
use crate::runtime::ring::Ring;
use crate::runtime::ring::driver::DriverKind;
use crate::runtime::ring::operation::{FilledBuffer, OperationKey, OperationOutcome, own};
use crate::time::Instant;

/// Receives of a connection in a row that left nothing in the socket, after which the kernel
/// receives whenever bytes come: it is a lasting connection with small requests.
const SMALL_RECEIVES_MIN: u8 = 2;
/// Largest reply, in bytes, that the ring sends while its connection continues.
const BEHIND_SIZE_MAX: usize = READ_SIZE;
/// The time for which a connection goes on with the next piece in the same turn: a message in the
/// nearest caches is received, answered and sent while it is there.
pub(super) const PIECES_TIME_MAX: Duration = Duration::from_micros(500);
/// Turns with large pieces after which a connection's cost is known ([`Ring::poll_yield`]).
pub(super) const NEW_TURNS: u8 = 4;
const SEND_FLAGS: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);

/// A listening socket on the ring.
pub struct RingAcceptor {
    ring: Rc<Ring>,
    descriptor: Rc<OwnedFd>,
    accepting: Option<OperationKey>,
    is_stopped: bool,
}

impl RingAcceptor {
    /// For a listening socket.
    pub fn new(ring: Rc<Ring>, descriptor: OwnedFd) -> Self {
        Self { ring, descriptor: Rc::new(descriptor), accepting: None, is_stopped: false }
    }

    /// Stops accepting, and leaves the socket as it is for its other owners. [`Self::poll_accept`]
    /// still returns the connections that were accepted before, then fails with `InvalidInput`.
    pub fn stop(&mut self) {
        self.is_stopped = true;
        if let Some(key) = &self.accepting {
            self.ring.driver.borrow_mut().stop_accept(key);
        }
    }

    /// Returns the next connection.
    pub fn poll_accept(&mut self, context: &Context<'_>) -> Poll<io::Result<RingStream>> {
        if self.is_stopped && self.accepting.is_none() {
            return Poll::Ready(self.accept_left());
        }
        let mut driver = self.ring.driver.borrow_mut();
        let key = self.accepting.take().unwrap_or_else(|| driver.accept(&self.descriptor));
        let Poll::Ready(outcome) = driver.poll(&key, context) else {
            self.accepting = Some(key);
            return Poll::Pending;
        };
        self.accepting = (!outcome.is_last).then_some(key);
        drop(driver);
        if self.is_stopped && outcome.is_last && outcome.result.is_err() {
            return Poll::Ready(self.accept_left());
        }
        Poll::Ready(outcome.result.map(|descriptor| RingStream::new(Rc::clone(&self.ring), own(descriptor))))
    }
}

impl RingAcceptor {
    /// Takes a connection that waits although the ring accepts no further ones. The kernel wakes
    /// only one of all rings that wait for a connection on the same socket: if this one does not
    /// take it, no other would look for it.
    fn accept_left(&self) -> io::Result<RingStream> {
        let flags = match self.ring.kind() {
            DriverKind::Epoll => SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            DriverKind::Uring => SocketFlags::CLOEXEC,
        };
        // The listener does not block. Any error means that there is no connection to take.
        let accepted = rustix::net::accept_with(&*self.descriptor, flags).map_err(|_| ErrorKind::InvalidInput)?;
        Ok(RingStream::new(Rc::clone(&self.ring), accepted))
    }
}

impl Drop for RingAcceptor {
    fn drop(&mut self) {
        if let Some(key) = self.accepting.take() {
            self.ring.driver.borrow_mut().abandon(key);
        }
    }
}

/// A connection on the ring.
pub struct RingStream {
    ring: Rc<Ring>,
    descriptor: Rc<OwnedFd>,
    pub(super) reading: ReadState,
    /// Receives in a row that left nothing in the socket.
    small_receives: u8,
    /// The buffer received last, and the count of its bytes that were read.
    received: Option<(FilledBuffer, usize)>,
    /// True if a read should be tried before waiting, because there may be more input.
    has_more_input: bool,
    writing: WriteState,
    /// Present if the connection has moved something large.
    shares: Option<Box<TurnShares>>,
}

/// The bytes that a connection moves in a turn, each way.
#[derive(Default)]
struct TurnShares {
    receive: TurnShare,
    send: TurnShare,
    /// Turns in which it has moved something large, up to [`NEW_TURNS`].
    turns: u8,
    /// The instant since which room is made for the next receive.
    room_since: Option<Instant>,
}

/// The bytes that a connection moves one way in a turn, by system calls of its own.
#[derive(Default)]
struct TurnShare {
    turn: u64,
    /// Bytes of this piece.
    moved: usize,
    /// The instant at which the first piece of the turn began.
    began: Option<Instant>,
    /// True if the rest waits for the next turn.
    is_paused: bool,
}

impl TurnShare {
    /// Returns how many of `wanted` bytes may move now; 0 if they wait for the next turn. The last
    /// few always may, unless they come behind bytes that wait, so that nothing short is cut in two
    /// and nothing that ends a connection stays behind.
    fn grant(&mut self, wanted: usize, turn: u64, piece_size: usize) -> usize {
        if self.turn != turn {
            *self = Self { turn, ..Self::default() };
        }
        if self.is_paused {
            return 0;
        }
        if wanted <= READ_SIZE {
            return wanted;
        }
        let began = *self.began.get_or_insert_with(clock::now);
        if self.moved >= piece_size {
            self.is_paused = clock::now().since(began) >= PIECES_TIME_MAX;
            self.moved = if self.is_paused { self.moved } else { 0 };
        }
        wanted.min(piece_size.saturating_sub(self.moved))
    }

    /// `count` bytes have moved.
    const fn take(&mut self, count: usize) {
        self.moved = self.moved.saturating_add(count);
    }

    /// Nothing else moves in this turn.
    fn pause(&mut self, turn: u64) {
        *self = Self { turn, is_paused: true, ..Self::default() };
    }

    const fn is_paused(&self, turn: u64) -> bool {
        self.is_paused && self.turn == turn
    }

    /// Returns true if a piece has moved, or is about to.
    const fn has_begun(&self, turn: u64) -> bool {
        self.began.is_some() && self.turn == turn
    }
}

/// The event that a connection waits for before it can read.
pub(super) enum ReadState {
    Nothing,
    /// Bytes in the driver's buffers, whenever they come. The kernel takes them from the socket
    /// only while the ring is in the kernel, so that they precede all that a read finds afterwards.
    Many(OperationKey),
    /// Bytes in one of the driver's buffers.
    Received(OperationKey),
    /// Readability.
    Ready(OperationKey),
}

/// The send or wait of a connection that is in flight.
enum WriteState {
    Nothing,
    /// A send, and its size in bytes.
    Sent(OperationKey, usize),
    /// A wait for room to write.
    Ready(OperationKey),
}

impl RingStream {
    fn new(ring: Rc<Ring>, descriptor: OwnedFd) -> Self {
        Self::with(ring, Rc::new(descriptor))
    }

    fn with(ring: Rc<Ring>, descriptor: Rc<OwnedFd>) -> Self {
        Self {
            ring,
            descriptor,
            reading: ReadState::Nothing,
            small_receives: 0,
            received: None,
            has_more_input: false,
            writing: WriteState::Nothing,
            shares: None,
        }
    }

    /// A connection that another thread has accepted, perhaps with the other driver.
    ///
    /// # Errors
    /// If its blocking mode cannot be set.
    pub fn from_descriptor(ring: Rc<Ring>, descriptor: OwnedFd) -> io::Result<Self> {
        // io_uring fails an operation on a socket that does not block instead of waiting; epoll needs one.
        let blocks = ring.kind() == DriverKind::Uring;
        let flags = rustix::fs::fcntl_getfl(&descriptor)?;
        if blocks == flags.contains(OFlags::NONBLOCK) {
            rustix::fs::fcntl_setfl(&descriptor, flags ^ OFlags::NONBLOCK)?;
        }
        Ok(Self::new(ring, descriptor))
    }

    /// Returns the descriptor of a connection that nothing was read from or written to.
    ///
    /// # Errors
    /// The connection, if an operation is in flight.
    pub fn into_descriptor(self) -> Result<OwnedFd, Self> {
        let ring = Rc::clone(&self.ring);
        let descriptor = Rc::clone(&self.descriptor);
        drop(self);
        Rc::try_unwrap(descriptor).map_err(|descriptor| Self::with(ring, descriptor))
    }

    /// Returns true if the peer has reset the connection, and the kernel reported it to the ring
    /// instead of the socket.
    pub fn has_failed(&self) -> bool {
        let (ReadState::Many(key) | ReadState::Received(key)) = &self.reading else { return false };
        self.ring.driver.borrow().has_failed(key)
    }

    /// Returns true if the ring has brought something that was not yet read.
    fn has_outcomes(&self) -> bool {
        matches!(&self.reading, ReadState::Many(key) if self.ring.driver.borrow().has_outcomes(key))
    }

    /// The descriptor.
    pub fn descriptor(&self) -> &OwnedFd {
        &self.descriptor
    }

    /// Returns the bytes of something large that room should be made for before the next
    /// [`Self::poll_read`]: as many as it receives at once.
    pub fn begin_read(&mut self) -> usize {
        if let Some(shares) = &mut self.shares {
            shares.room_since = Some(clock::now());
        }
        self.ring.piece_size()
    }

    /// Receives into `space`; 0 when the peer has closed its side. If that takes long the rest is
    /// left for the next turn (`PIECES_TIME_MAX`), and the next pieces are smaller (`pieces`).
    pub fn poll_read(&mut self, context: &Context<'_>, space: &mut [u8]) -> Poll<io::Result<usize>> {
        let outcome = self.poll_receive(context, space);
        let since = self.shares.as_mut().and_then(|shares| shares.room_since.take());
        if let Some(since) = since.filter(|_| space.len() > READ_SIZE) {
            self.ring.handle_piece(if let Poll::Ready(Ok(count)) = outcome { count } else { 0 }, since);
        }
        outcome
    }

    fn poll_receive(&mut self, context: &Context<'_>, space: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            if let Some(count) = self.take_received(space) {
                return Poll::Ready(Ok(count));
            }
            // Bytes that the ring has brought come first.
            if std::mem::take(&mut self.has_more_input) && !self.has_outcomes() {
                let now = self.grant(|shares| &mut shares.receive, space.len());
                if now == 0 && !space.is_empty() {
                    self.has_more_input = true;
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                match self.receive_now(space.get_mut(..now).unwrap_or_default()) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    outcome => return Poll::Ready(outcome),
                }
            }
            let mut driver = self.ring.driver.borrow_mut();
            match std::mem::replace(&mut self.reading, ReadState::Nothing) {
                // Room for more than a buffer: the caller expects a large body, which is read into its place.
                ReadState::Nothing if space.len() > READ_SIZE => {
                    self.reading = ReadState::Ready(driver.readable(&self.descriptor));
                }
                ReadState::Nothing => {
                    let is_steady = self.small_receives >= SMALL_RECEIVES_MIN;
                    let many = if is_steady { driver.receive_many(&self.descriptor) } else { None };
                    self.reading = match many {
                        Some(key) => ReadState::Many(key),
                        None => ReadState::Received(driver.receive(&self.descriptor)),
                    };
                }
                ReadState::Many(key) => {
                    drop(driver);
                    match self.poll_many(key, context, space.len()) {
                        Poll::Ready(None) => {}
                        Poll::Ready(Some(end)) => return Poll::Ready(end),
                        Poll::Pending => return Poll::Pending,
                    }
                }
                ReadState::Received(key) => {
                    let Poll::Ready(outcome) = driver.poll(&key, context) else {
                        self.reading = ReadState::Received(key);
                        return Poll::Pending;
                    };
                    // All buffers are taken: wait for readability, then read with a system call.
                    if outcome.result.is_err() && !outcome.is_failure() {
                        self.reading = ReadState::Ready(driver.readable(&self.descriptor));
                        continue;
                    }
                    drop(driver);
                    if let Some(end) = self.handle_received(outcome) {
                        return Poll::Ready(end);
                    }
                }
                ReadState::Ready(key) => {
                    if driver.poll(&key, context).is_pending() {
                        self.reading = ReadState::Ready(key);
                        return Poll::Pending;
                    }
                    self.has_more_input = true;
                }
            }
        }
    }

    /// Sends some of `bytes` once an earlier send has finished; in the next turn, if this one has
    /// taken long (`PIECES_TIME_MAX`).
    pub fn poll_write(&mut self, context: &Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            std::task::ready!(self.poll_written(context))?;
            let now = self.grant(|shares| &mut shares.send, bytes.len());
            if now == 0 && !bytes.is_empty() {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let began = (now > READ_SIZE).then(clock::now);
            match rustix::net::send(&*self.descriptor, bytes.get(..now).unwrap_or(bytes), SEND_FLAGS) {
                Err(rustix::io::Errno::WOULDBLOCK) => self.wait_for_room(),
                outcome => {
                    self.take_sent(outcome.unwrap_or_default(), began);
                    return Poll::Ready(outcome.map_err(io::Error::from));
                }
            }
        }
    }

    /// Sends some of the parts at once; 0 if there is no room now or this turn has taken long:
    /// [`Self::writable`] waits for that.
    ///
    /// # Errors
    /// If the connection has failed.
    pub fn try_write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let total = parts.iter().map(|part| part.len()).sum();
        let mut left = self.grant(|shares| &mut shares.send, total);
        let began = (left > READ_SIZE).then(clock::now);
        let mut now: SmallVec<[IoSlice<'_>; 8]> = SmallVec::new();
        for part in parts {
            let taken = part.get(..left).unwrap_or(part);
            left -= taken.len();
            if !taken.is_empty() {
                now.push(IoSlice::new(taken));
            }
        }
        if now.is_empty() {
            return Ok(0);
        }
        match rustix::net::sendmsg(&*self.descriptor, &now, &mut SendAncillaryBuffer::default(), SEND_FLAGS) {
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(0),
            outcome => {
                self.take_sent(outcome.unwrap_or_default(), began);
                outcome.map_err(io::Error::from)
            }
        }
    }

    /// Sends `bytes` at the end of this turn and leaves an empty buffer in their place; the result
    /// is that of [`Self::poll_written`]. Returns false, and takes nothing, if there are too many
    /// bytes or an earlier send is in flight.
    pub fn write_behind(&mut self, bytes: &mut Vec<u8>) -> bool {
        if bytes.len() > BEHIND_SIZE_MAX || !matches!(self.writing, WriteState::Nothing) {
            return false;
        }
        let mut driver = self.ring.driver.borrow_mut();
        let bytes = std::mem::replace(bytes, driver.take_spare());
        let size = bytes.len();
        self.writing = WriteState::Sent(driver.send(&self.descriptor, bytes), size);
        true
    }

    /// Ready when the earlier send has finished or failed, or there is room to write.
    pub fn poll_written(&mut self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let mut driver = self.ring.driver.borrow_mut();
        match std::mem::replace(&mut self.writing, WriteState::Nothing) {
            WriteState::Nothing => Poll::Ready(Ok(())),
            WriteState::Sent(key, size) => match driver.poll(&key, context) {
                Poll::Pending => {
                    self.writing = WriteState::Sent(key, size);
                    Poll::Pending
                }
                Poll::Ready(outcome) => Poll::Ready(match outcome.result {
                    Ok(sent) if sent as usize == size => Ok(()),
                    // With `MSG_WAITALL` the kernel retries short sends, so a short one has failed.
                    Ok(_) => Err(ErrorKind::WriteZero.into()),
                    Err(error) => Err(error),
                }),
            },
            WriteState::Ready(key) => {
                let poll = driver.poll(&key, context).map(|_| Ok(()));
                if poll.is_pending() {
                    self.writing = WriteState::Ready(key);
                }
                poll
            }
        }
    }

    /// Waits until there is room to write, or for the next turn, if this one has taken long.
    ///
    /// # Errors
    /// If an earlier send failed.
    pub async fn writable(&mut self) -> io::Result<()> {
        let turn = self.ring.part_of_turn();
        if self.shares.as_ref().is_some_and(|shares| shares.send.is_paused(turn)) {
            futures_lite::future::yield_now().await;
        } else {
            self.wait_for_room();
        }
        poll_fn(|context| self.poll_written(context)).await
    }

    /// Closes the sending side.
    ///
    /// # Errors
    /// If the socket is no longer connected.
    pub fn shutdown_write(&self) -> io::Result<()> {
        rustix::net::shutdown(&*self.descriptor, Shutdown::Write).map_err(io::Error::from)
    }

    /// [`TurnShare::grant`] for one way, if the turn has time for it; a connection that moves
    /// little has no shares.
    fn grant(&mut self, way: impl Fn(&mut TurnShares) -> &mut TurnShare, wanted: usize) -> usize {
        if wanted <= READ_SIZE && self.shares.is_none() {
            return wanted;
        }
        let turn = self.ring.part_of_turn();
        let shares = self.shares.get_or_insert_default();
        let has_begun = shares.receive.has_begun(turn) || shares.send.has_begun(turn);
        if wanted > READ_SIZE && !has_begun && !way(shares).is_paused(turn) {
            if self.ring.poll_yield(shares.turns < NEW_TURNS) {
                way(shares).pause(turn);
            } else {
                shares.turns = NEW_TURNS.min(shares.turns + 1);
            }
        }
        way(shares).grant(wanted, turn, self.ring.piece_size())
    }

    /// `count` bytes have moved one way.
    fn take(&mut self, way: impl Fn(&mut TurnShares) -> &mut TurnShare, count: usize) {
        if let Some(shares) = &mut self.shares {
            way(shares).take(count);
        }
    }

    /// `count` bytes were sent, since an instant if it was something large.
    fn take_sent(&mut self, count: usize, since: Option<Instant>) {
        self.take(|shares| &mut shares.send, count);
        if let Some(since) = since {
            self.ring.handle_piece(count, since);
        }
    }

    fn wait_for_room(&mut self) {
        if matches!(self.writing, WriteState::Nothing) {
            self.writing = WriteState::Ready(self.ring.driver.borrow_mut().writable(&self.descriptor));
        }
    }

    /// Takes what the kernel has received by itself. Ready with the result of the read, or with
    /// `None` if it goes on.
    fn poll_many(
        &mut self,
        key: OperationKey,
        context: &Context<'_>,
        space_size: usize,
    ) -> Poll<Option<io::Result<usize>>> {
        let mut driver = self.ring.driver.borrow_mut();
        // A large body, as in `poll_read`: what comes from now on is to be read into its place.
        if space_size > READ_SIZE {
            driver.stop_receive(&key);
        }
        let Poll::Ready(outcome) = driver.poll(&key, context) else {
            self.reading = ReadState::Many(key);
            return Poll::Pending;
        };
        if !outcome.is_last {
            self.reading = ReadState::Many(key);
        } else if outcome.result.is_err() && !outcome.is_failure() {
            // It was stopped, or found no buffer.
            self.small_receives = 0;
            self.reading = ReadState::Ready(driver.readable(&self.descriptor));
            return Poll::Ready(None);
        }
        drop(driver);
        Poll::Ready(self.handle_received(outcome))
    }

    /// Bytes have come, which are copied next. Returns the result of the read if the input has
    /// ended or failed.
    fn handle_received(&mut self, outcome: OperationOutcome) -> Option<io::Result<usize>> {
        self.has_more_input = outcome.has_more_input;
        self.small_receives = if outcome.has_more_input { 0 } else { self.small_receives.saturating_add(1) };
        self.received = outcome.filled.map(|filled| (filled, 0));
        match outcome.result {
            Ok(0) => Some(Ok(0)),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// Copies received bytes; `None` if no bytes are left.
    fn take_received(&mut self, space: &mut [u8]) -> Option<usize> {
        let (filled, start) = self.received.take()?;
        let mut driver = self.ring.driver.borrow_mut();
        let rest = driver.bytes(&filled).get(start..).unwrap_or_default();
        let count = rest.len().min(space.len());
        let (now, later) = rest.split_at(count);
        space.get_mut(..count)?.copy_from_slice(now);
        if later.is_empty() {
            driver.give_back(filled);
        } else {
            self.received = Some((filled, start + count));
        }
        (count > 0 || space.is_empty()).then_some(count)
    }

    fn receive_now(&mut self, space: &mut [u8]) -> io::Result<usize> {
        let (count, _) = rustix::net::recv(&*self.descriptor, &mut *space, RecvFlags::DONTWAIT)?;
        self.take(|shares| &mut shares.receive, count);
        // It filled the whole space: there may be more.
        self.has_more_input = count > 0 && count == space.len();
        Ok(count)
    }
}

impl Drop for RingStream {
    fn drop(&mut self) {
        let mut driver = self.ring.driver.borrow_mut();
        if let Some((filled, _)) = self.received.take() {
            driver.give_back(filled);
        }
        if let ReadState::Many(key) | ReadState::Received(key) | ReadState::Ready(key) =
            std::mem::replace(&mut self.reading, ReadState::Nothing)
        {
            driver.abandon(key);
        }
        if let WriteState::Sent(key, _) | WriteState::Ready(key) =
            std::mem::replace(&mut self.writing, WriteState::Nothing)
        {
            driver.abandon(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::ring::pieces::PIECE_SIZE_MAX;

    #[test]
    fn a_share_is_used_by_pieces_and_what_comes_behind_a_pause_waits_too() {
        clock::hold_at(Instant::ZERO);
        let mut share = TurnShare::default();
        let mut moves = |wanted, turn| {
            let count = share.grant(wanted, turn, PIECE_SIZE_MAX);
            share.take(count);
            count
        };
        assert_eq!([moves(usize::MAX, 1), moves(usize::MAX, 1)], [PIECE_SIZE_MAX; 2], "it takes no time");
        assert_eq!(moves(READ_SIZE, 1), READ_SIZE, "the last few");
        clock::hold_at(Instant::ZERO + PIECES_TIME_MAX);
        assert_eq!(moves(READ_SIZE + 1, 1), 0, "the next piece");
        // HTTP/2: a frame's head, behind bytes that wait.
        assert_eq!(moves(9, 1), 0);
        assert_eq!([moves(9, 2), moves(usize::MAX, 2)], [9, PIECE_SIZE_MAX - 9]);
    }
}
