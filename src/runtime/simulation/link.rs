//! One connection of a simulation: two pipes that cut and delay what goes through them, and the
//! behavior of a kernel at their ends. The server has a [`SimulatedStream`] in place of a socket, a
//! client's script a [`ClientEnd`].

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, ErrorKind, IoSlice};
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::limits::READ_SIZE;
use crate::runtime::simulation::{SimulatedFault, below, is_planted, is_running, note, percent, running, sleep, spawn};
use crate::time::Instant;

/// The rules by which a connection treats its bytes.
#[derive(Clone, Copy, Debug)]
pub struct LinkRules {
    /// Bytes that one read or write moves at most.
    pub cut_max: usize,
    /// The longest time on the way, in either direction.
    pub delay_max: Duration,
    /// Bytes that the server's kernel holds of what it sends.
    pub send_size: usize,
    /// Bytes that the client's kernel takes before its program reads.
    pub window_size: usize,
}

/// The outcome of a client's read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// These bytes.
    Bytes(Vec<u8>),
    /// The server has closed its side.
    End,
    /// The server has reset the connection.
    Reset,
}

/// One direction.
struct Pipe {
    /// Its pieces, each with the instant of its arrival.
    pieces: VecDeque<(Instant, VecDeque<u8>)>,
    size: usize,
    capacity: usize,
    /// The instant at which the last piece arrives: bytes stay in order.
    arrives_at: Instant,
    /// The instant at which its end arrives.
    ended_at: Option<Instant>,
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// Bytes that were read.
    taken: u64,
}

impl Pipe {
    const fn new(capacity: usize) -> Self {
        Self {
            pieces: VecDeque::new(),
            size: 0,
            capacity,
            arrives_at: Instant::ZERO,
            ended_at: None,
            reader: None,
            writer: None,
            taken: 0,
        }
    }

    fn room(&self) -> usize {
        self.capacity.saturating_sub(self.size)
    }

    fn push(&mut self, bytes: &[u8], at: Instant) {
        self.arrives_at = self.arrives_at.max(at);
        self.size += bytes.len();
        self.pieces.push_back((self.arrives_at, bytes.iter().copied().collect()));
    }

    /// Takes some of what has arrived.
    fn take(&mut self, now: Instant, most: usize) -> Vec<u8> {
        let mut taken = Vec::new();
        while let Some((at, piece)) = self.pieces.front_mut()
            && *at <= now
            && taken.len() < most
        {
            let count = piece.len().min(most - taken.len());
            taken.extend(piece.drain(..count));
            if piece.is_empty() {
                self.pieces.pop_front();
            }
        }
        self.size -= taken.len();
        self.taken += taken.len() as u64;
        taken
    }

    fn is_over(&self, now: Instant) -> bool {
        self.size == 0 && self.ended_at.is_some_and(|at| at <= now)
    }

    fn wake_reader(&mut self) {
        if let Some(waker) = self.reader.take() {
            waker.wake();
        }
    }

    fn wake_writer(&mut self) {
        if let Some(waker) = self.writer.take() {
            waker.wake();
        }
    }
}

struct LinkCore {
    number: u16,
    rules: LinkRules,
    /// From the client to the server.
    up: Pipe,
    /// From the server to the client.
    down: Pipe,
    /// Bytes that the server has given to its ring and that the kernel has no room for yet.
    behind: VecDeque<u8>,
    /// The instants at which each side learns of a reset.
    server_reset: Option<Instant>,
    client_reset: Option<Instant>,
    accepted_at: Option<Instant>,
    is_server_closed: bool,
    is_client_closed: bool,
    resets_at_close: bool,
}

type Shared = Rc<RefCell<LinkCore>>;

/// A connection: the server's end and the client's.
pub(super) fn link(number: u16, rules: LinkRules) -> (SimulatedStream, ClientEnd) {
    let shared = Rc::new(RefCell::new(LinkCore {
        number,
        rules,
        up: Pipe::new(rules.send_size + READ_SIZE),
        down: Pipe::new(rules.send_size + rules.window_size),
        behind: VecDeque::new(),
        server_reset: None,
        client_reset: None,
        accepted_at: None,
        is_server_closed: false,
        is_client_closed: false,
        resets_at_close: false,
    }));
    (SimulatedStream { shared: Rc::clone(&shared) }, ClientEnd { shared })
}

/// Looks at both ends again at an instant, when something has arrived.
fn wake_at(shared: &Shared, at: Instant) {
    let shared = Rc::clone(shared);
    spawn(async move {
        let unheard = is_planted(SimulatedFault::InputUnheard) && percent(10);
        sleep_until_exactly(at).await;
        let mut link = shared.borrow_mut();
        if !unheard {
            link.up.wake_reader();
        }
        link.up.wake_writer();
        link.down.wake_reader();
        link.down.wake_writer();
    })
    .detach();
}

/// Not [`sleep_until`], whose timers a planted fault may lose.
async fn sleep_until_exactly(at: Instant) {
    sleep(at.since(running().now.get())).await;
}

impl LinkCore {
    fn now() -> Instant {
        running().now.get()
    }

    fn later(&self) -> Instant {
        let most = u64::try_from(self.rules.delay_max.as_nanos()).unwrap_or(u64::MAX);
        Self::now() + Duration::from_nanos(below(most.max(1)))
    }

    /// Returns a number of bytes to move, of `count`.
    fn cut(&self, count: usize) -> usize {
        let most = count.min(self.rules.cut_max).max(1) as u64;
        // Mostly all at once, as kernels do.
        if percent(60) { count.min(self.rules.cut_max) } else { usize::try_from(1 + below(most)).unwrap_or(1) }
    }

    /// Sends bytes of the server on their way; returns the instant of their arrival.
    fn send_down(&mut self, bytes: &[u8]) -> Instant {
        let at = self.later();
        if self.is_client_closed {
            // The client's kernel answers with a reset.
            self.server_reset = Some(self.server_reset.map_or(at, |known| known.min(at)));
        } else {
            self.down.push(bytes, at);
            if is_planted(SimulatedFault::AnswerTwice) && percent(10) {
                self.down.push(bytes, at);
            }
        }
        at.max(self.down.arrives_at)
    }

    /// Moves bytes from `behind` into the kernel as far as there is room; returns the instant of
    /// their arrival.
    fn refill(&mut self) -> Option<Instant> {
        let count = self.behind.len().min(self.down.room());
        if count == 0 {
            return None;
        }
        let bytes: Vec<u8> = self.behind.drain(..count).collect();
        let at = self.send_down(&bytes);
        if self.behind.is_empty() {
            self.down.wake_writer();
        }
        Some(at)
    }

    fn is_reset(&self) -> bool {
        self.server_reset.is_some_and(|at| at <= Self::now())
    }

    /// The client ends, with a reset or without.
    fn close_client(&mut self, resets: bool) -> Instant {
        let at = self.later().max(self.up.arrives_at);
        self.is_client_closed = true;
        if resets {
            self.server_reset = Some(at);
        } else {
            self.up.ended_at.get_or_insert(at);
        }
        // A writer that waits for room has it now.
        self.behind.clear();
        self.down.pieces.clear();
        self.down.size = 0;
        at
    }
}

/// The server's end of a connection, in the place of a socket.
pub struct SimulatedStream {
    shared: Shared,
}

impl SimulatedStream {
    /// A shard has accepted it.
    pub(super) fn handle_accepted(&self) {
        self.shared.borrow_mut().accepted_at = Some(LinkCore::now());
    }

    /// As [`crate::runtime::socket::ByteStream::poll_read`].
    pub fn poll_read(&mut self, context: &Context<'_>, space: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut link = self.shared.borrow_mut();
        if link.is_reset() {
            return Poll::Ready(Err(ErrorKind::ConnectionReset.into()));
        }
        let (now, most) = (LinkCore::now(), link.cut(space.len()));
        let taken = link.up.take(now, most);
        if taken.is_empty() {
            if link.up.is_over(now) {
                return Poll::Ready(Ok(0));
            }
            link.up.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        space.iter_mut().zip(&taken).for_each(|(to, from)| *to = *from);
        link.up.wake_writer();
        Poll::Ready(Ok(taken.len()))
    }

    /// As [`crate::runtime::socket::ByteStream::poll_write`].
    pub fn poll_write(&mut self, context: &Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        std::task::ready!(self.poll_written(context))?;
        match self.try_write_vectored(&[IoSlice::new(bytes)]) {
            Ok(0) if !bytes.is_empty() => {
                self.shared.borrow_mut().down.writer = Some(context.waker().clone());
                Poll::Pending
            }
            outcome => Poll::Ready(outcome),
        }
    }

    /// As [`crate::runtime::socket::ByteStream::poll_written`].
    pub fn poll_written(&mut self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let mut link = self.shared.borrow_mut();
        if link.behind.is_empty() {
            return Poll::Ready(Ok(()));
        }
        if link.is_reset() {
            link.behind.clear();
            return Poll::Ready(Err(ErrorKind::ConnectionReset.into()));
        }
        link.down.writer = Some(context.waker().clone());
        Poll::Pending
    }

    /// As [`crate::runtime::socket::ByteStream::write_behind`].
    pub fn write_behind(&mut self, bytes: &mut Vec<u8>) -> bool {
        let mut link = self.shared.borrow_mut();
        if bytes.len() > READ_SIZE || !link.behind.is_empty() || link.is_reset() {
            return false;
        }
        link.behind.extend(bytes.drain(..));
        let arrives_at = link.refill();
        drop(link);
        arrives_at.into_iter().for_each(|at| wake_at(&self.shared, at));
        true
    }

    /// As [`crate::runtime::socket::ByteStream::try_write_vectored`].
    pub fn try_write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut link = self.shared.borrow_mut();
        assert!(link.behind.is_empty(), "bytes would overtake those of a send that is in flight");
        if link.is_reset() {
            return Err(ErrorKind::ConnectionReset.into());
        }
        let size: usize = parts.iter().map(|part| part.len()).sum();
        let most = size.min(link.down.room());
        if most == 0 {
            return Ok(0);
        }
        let count = link.cut(most);
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).take(count).collect();
        let at = link.send_down(&bytes);
        drop(link);
        wake_at(&self.shared, at);
        Ok(count)
    }

    /// Waits until there is room to write.
    ///
    /// # Errors
    /// If the connection was reset.
    pub async fn writable(&mut self) -> io::Result<()> {
        poll_fn(|context| {
            let mut link = self.shared.borrow_mut();
            if link.is_reset() {
                return Poll::Ready(Err(ErrorKind::ConnectionReset.into()));
            }
            if link.behind.is_empty() && link.down.room() > 0 {
                return Poll::Ready(Ok(()));
            }
            link.down.writer = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// As [`crate::runtime::socket::ByteStream::is_reset`].
    pub fn is_reset(&self) -> bool {
        self.shared.borrow().is_reset()
    }

    /// As [`crate::runtime::socket::ByteStream::is_hung_up`].
    pub fn is_hung_up(&self) -> bool {
        let link = self.shared.borrow();
        link.is_reset() || link.up.ended_at.is_some_and(|at| at <= LinkCore::now())
    }

    /// As [`crate::runtime::socket::ByteStream::unacknowledged`].
    pub fn unacknowledged(&self) -> usize {
        let (link, now) = (self.shared.borrow(), LinkCore::now());
        let arrived: usize = link.down.pieces.iter().filter(|(at, _)| *at <= now).map(|(_, piece)| piece.len()).sum();
        link.behind.len() + link.down.size - arrived.min(link.rules.window_size)
    }

    /// As [`crate::runtime::socket::ByteStream::reset_at_close`].
    pub fn reset_at_close(&self) {
        self.shared.borrow_mut().resets_at_close = true;
    }

    /// As [`crate::runtime::socket::ByteStream::peer`].
    pub fn peer(&self) -> Option<SocketAddr> {
        Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 10_000 + self.shared.borrow().number)))
    }

    /// As [`crate::runtime::socket::ByteStream::shutdown_write`].
    ///
    /// # Errors
    /// If the connection was reset.
    pub fn shutdown_write(&self) -> io::Result<()> {
        let mut link = self.shared.borrow_mut();
        if link.is_reset() {
            return Err(ErrorKind::NotConnected.into());
        }
        let at = link.later().max(link.down.arrives_at);
        let at = *link.down.ended_at.get_or_insert(at);
        drop(link);
        wake_at(&self.shared, at);
        Ok(())
    }
}

impl Drop for SimulatedStream {
    fn drop(&mut self) {
        if !is_running() {
            return;
        }
        let mut link = self.shared.borrow_mut();
        link.is_server_closed = true;
        let at = link.later().max(link.down.arrives_at);
        if link.resets_at_close || link.up.size > 0 {
            let number = link.number;
            note(|| format!("c{number} is reset by the server"));
            link.client_reset = Some(at);
        } else {
            link.down.ended_at.get_or_insert(at);
        }
        // A send that was not waited for is cancelled.
        link.behind.clear();
        drop(link);
        wake_at(&self.shared, at);
    }
}

/// The client's end of a connection.
pub struct ClientEnd {
    shared: Shared,
}

impl ClientEnd {
    /// Sends all of these bytes; returns true if the server took them into its kernel.
    pub async fn write(&self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let count = poll_fn(|context| {
                let mut link = self.shared.borrow_mut();
                if link.client_reset.is_some_and(|at| at <= LinkCore::now()) {
                    return Poll::Ready(0);
                }
                if link.is_server_closed {
                    let at = link.later();
                    link.client_reset.get_or_insert(at);
                    return Poll::Ready(0);
                }
                let most = bytes.len().min(link.up.room());
                if most == 0 {
                    link.up.writer = Some(context.waker().clone());
                    return Poll::Pending;
                }
                let (count, at) = (link.cut(most), link.later());
                link.up.push(bytes.get(..count).unwrap_or_default(), at);
                Poll::Ready(count)
            })
            .await;
            if count == 0 {
                return false;
            }
            let at = self.shared.borrow().up.arrives_at;
            wake_at(&self.shared, at);
            bytes = bytes.get(count..).unwrap_or_default();
        }
        true
    }

    /// Returns the next input, or `None` if nothing has come until an instant.
    pub async fn read(&self, until: Instant) -> Option<ReadOutcome> {
        let read = poll_fn(|context| {
            let mut link = self.shared.borrow_mut();
            let (now, most) = (LinkCore::now(), link.rules.cut_max);
            let taken = link.down.take(now, most);
            if !taken.is_empty() {
                let at = link.refill();
                link.down.wake_writer();
                drop(link);
                at.into_iter().for_each(|at| wake_at(&self.shared, at));
                return Poll::Ready(ReadOutcome::Bytes(taken));
            }
            if link.client_reset.is_some_and(|at| at <= now) {
                return Poll::Ready(ReadOutcome::Reset);
            }
            if link.down.is_over(now) {
                return Poll::Ready(ReadOutcome::End);
            }
            link.down.reader = Some(context.waker().clone());
            Poll::Pending
        });
        let late = async {
            sleep_until_exactly(until).await;
            None
        };
        futures_lite::future::or(async { Some(read.await) }, late).await
    }

    /// Returns the instant at which a shard accepted it.
    pub fn accepted_at(&self) -> Option<Instant> {
        self.shared.borrow().accepted_at
    }

    /// Bytes that the server has read.
    pub fn taken(&self) -> u64 {
        self.shared.borrow().up.taken
    }

    /// Returns true if the server has closed its end, or its sending side.
    pub fn is_server_gone(&self) -> bool {
        let link = self.shared.borrow();
        link.is_server_closed || link.down.ended_at.is_some()
    }

    /// Closes the sending side.
    pub fn shutdown_write(&self) {
        let mut link = self.shared.borrow_mut();
        let at = link.later().max(link.up.arrives_at);
        link.up.ended_at.get_or_insert(at);
        drop(link);
        wake_at(&self.shared, at);
    }

    /// Ends the connection by a reset.
    pub fn reset(self) {
        let at = self.shared.borrow_mut().close_client(true);
        wake_at(&self.shared, at);
    }
}

impl Drop for ClientEnd {
    fn drop(&mut self) {
        if !is_running() {
            return;
        }
        let mut link = self.shared.borrow_mut();
        if link.is_client_closed {
            return;
        }
        let has_unread = link.down.size > 0;
        let at = link.close_client(has_unread);
        drop(link);
        wake_at(&self.shared, at);
    }
}
