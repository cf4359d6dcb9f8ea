//! One HTTP/1.1 connection: moves bytes between the socket and the state machine in
//! `connection::http1`, one request after the other.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::budget::ReceiveReservation;
use crate::connection::http1::{AwaitedPart, Http1Connection, Http1Settings};
use crate::limits::{BODY_STEP_SIZE, COALESCE_SIZE_MAX, LINGER_TIMEOUT, READ_SIZE, REST_TIMEOUT};
use crate::metrics::{ClientTimer, Departure, MemoryLoss};
use crate::pressure::MemoryStep;
use crate::protocol::front_end::FrontEnd;
use crate::runtime::socket::ByteStream;
use crate::runtime::{clock, executor};
use crate::shard::Shard;
use crate::shard::connections::delivery::DeliveryWatch;
use crate::shard::connections::linger::linger;
use crate::shard::connections::{ConnectionGuard, ConnectionRights, ConnectionWatch, WakeReason};
use crate::shard::requests::access::AccessEntry;
use crate::shard::requests::reply_stream::{Http1Parts, ReplyStream};
use crate::shard::requests::rest;
use crate::shard::requests::tracing::{HttpTrace, ShownFailure};
use crate::tensor::AlignedBuffer;
use crate::time::Instant;
use crate::wire::http1::HttpRefusal;
use crate::wire::http1::reply::CONTINUE;
use crate::wire::message::{Message, Reply};

/// Free reply buffers that a shard keeps: about as many as are in use at once under load.
const BUFFERS_MAX: usize = 64;
/// Capacity up to which a free buffer is kept.
const BUFFER_SIZE_MAX: usize = 64 * 1024;

/// The first and the longest pause between two checks for a reset as the client's answer to the
/// interim response. The kernel reports no event for that on a socket whose input has ended, so it
/// must be polled; the pause doubles each time.
const PROBE_PAUSE_MIN: Duration = Duration::from_millis(1);
const PROBE_PAUSE_MAX: Duration = Duration::from_millis(250);

/// The probe for a departed client within an event stream: a chunk with a comment, which clients
/// skip.
const EVENT_PROBE: &[u8] = b"3\r\n:\n\n\r\n";

/// Serves the paths of a front end on a connection whose first bytes may have been read already.
/// Returns the stream of a connection that is between two requests and has been idle for
/// [`REST_TIMEOUT`]; `None` at its end.
pub async fn run<S: ByteStream>(
    shard: &Rc<Shard>,
    socket: S,
    first: Vec<u8>,
    connection_guard: &ConnectionGuard,
    front_end: FrontEnd,
) -> Option<S> {
    let answer = RestAnswer::new(shard, shard.requests.access.peer(&socket), connection_guard, front_end);
    let (parts, http_trace) = (Rc::clone(&answer.parts), Rc::clone(&answer.http_trace));
    let answer = move |message, memory| answer.clone().run(message, memory);
    let start = Http1Start { socket, first, may_rest: true, connection_guard, http_trace, parts };
    serve(shard, start, answer).await
}

/// Answers the requests of one connection by the paths of a front end.
#[derive(Clone)]
pub struct RestAnswer {
    shard: Rc<Shard>,
    /// The client's address, if the access log needs it.
    peer: Option<SocketAddr>,
    rights: ConnectionRights,
    front_end: FrontEnd,
    /// The destination of answers in parts.
    pub parts: Rc<Http1Parts>,
    /// The trace of the request in progress.
    pub http_trace: Rc<HttpTrace>,
}

impl RestAnswer {
    /// An answerer for a connection.
    pub fn new(
        shard: &Rc<Shard>,
        peer: Option<SocketAddr>,
        connection_guard: &ConnectionGuard,
        front_end: FrontEnd,
    ) -> Self {
        let http_trace = HttpTrace { front_end: Some(front_end), ..HttpTrace::default() };
        let (parts, http_trace) = (Rc::new(Http1Parts::default()), Rc::new(http_trace));
        let rights = connection_guard.watch().rights();
        Self { shard: Rc::clone(shard), peer, rights, front_end, parts, http_trace }
    }

    /// Answers a request; `None` if the answer went to the parts.
    pub async fn run(self, mut message: Message, memory: ReceiveReservation) -> Option<Reply> {
        let Self { shard, peer, rights, front_end, parts, http_trace } = self;
        let (departure, received) = (Cell::new(Departure::ConnectionClosed), clock::now());
        let entry = AccessEntry::of_http(&shard, &message, received, peer);
        let (departure, entry, http_trace) = (&departure, &entry, &http_trace);
        let stream = ReplyStream::Http1(parts);
        let records = rest::RequestRecords { received, departure, entry, http_trace };
        let arrival = rest::HttpArrival { records, stream, rights, front_end };
        let reply = rest::handle_message(&shard, &mut message, memory, arrival).await;
        entry.settle_http(reply.as_ref());
        reply
    }
}

/// A connection whose requests are to be served.
pub struct Http1Start<'a, S> {
    /// Its socket.
    pub socket: S,
    /// The bytes that have been read already.
    pub first: Vec<u8>,
    /// True if it may end temporarily when it is idle.
    pub may_rest: bool,
    /// Its slot.
    pub connection_guard: &'a ConnectionGuard,
    /// The trace of the request in progress.
    pub http_trace: Rc<HttpTrace>,
    /// The destination of answers in parts.
    pub parts: Rc<Http1Parts>,
}

/// Serves requests by `answer` until the connection ends, or rests if it may. An answer is a reply,
/// or `None` if it went to the parts.
pub async fn serve<S, A, F>(shard: &Rc<Shard>, start: Http1Start<'_, S>, answer: A) -> Option<S>
where
    S: ByteStream,
    A: Fn(Message, ReceiveReservation) -> F,
    F: Future<Output = Option<Reply>>,
{
    let Http1Start { socket, first, may_rest, connection_guard, http_trace, parts } = start;
    let limits = &shard.server_context.connection_limits;
    let settings = Http1Settings {
        body_size_max: limits.http_input_size_max,
        head_timeout: limits.timeouts.head,
        body_timeout: limits.timeouts.body,
        idle_timeout: limits.timeouts.idle,
        aligned_after: Some("inference-header-content-length"),
        ..Http1Settings::default()
    };
    let mut session = Http1Session {
        shard,
        socket,
        connection_guard,
        http_trace,
        connection: Http1Connection::new(settings).with_memory(shard.sessions.receive_memory()),
        out: Vec::new(),
        parts,
        parts_sent: 0,
        write_timeout: limits.timeouts.write,
        delivery: DeliveryWatch::default(),
        is_input_ended: false,
        may_rest,
        is_resting: false,
        probe: DepartureProbe::default(),
    };
    session.take_first(&first);
    drop(first);
    // A socket error ends the connection; no peer is left to report it to.
    let outcome = session.run(answer).await;
    if session.is_resting {
        return Some(session.socket);
    }
    if S::IS_ENCRYPTED && outcome.is_ok() && session.finish().await.is_ok() {
        session.socket.end_output();
    }
    None
}

/// The error of a connection that is closed because it holds too much memory.
const TOO_HEAVY: std::io::ErrorKind = std::io::ErrorKind::OutOfMemory;

/// Fails if a write was given up, because of its duration or of the memory that the connection
/// holds.
fn poll_wake(watch: &ConnectionWatch) -> Poll<std::io::Result<()>> {
    if watch.is_too_heavy() {
        return Poll::Ready(Err(TOO_HEAVY.into()));
    }
    match watch.take_wake_reason() {
        Some(WakeReason::Timeout) => Poll::Ready(Err(std::io::ErrorKind::TimedOut.into())),
        Some(WakeReason::Drain | WakeReason::Evicted | WakeReason::Weighed) | None => Poll::Pending,
    }
}

struct Http1Session<'a, S> {
    shard: &'a Rc<Shard>,
    socket: S,
    connection_guard: &'a ConnectionGuard,
    http_trace: Rc<HttpTrace>,
    connection: Http1Connection<AlignedBuffer>,
    /// Replies not sent yet: those of pipelined requests go in one send.
    out: Vec<u8>,
    /// The reply in progress, if it comes in parts.
    parts: Rc<Http1Parts>,
    /// Bytes at the front of `out` that were sent, while a reply in parts is sent.
    parts_sent: usize,
    /// The time within which the client must take some of the bytes sent.
    write_timeout: Duration,
    /// The check that the peer takes the kernel's bytes.
    delivery: DeliveryWatch,
    is_input_ended: bool,
    /// True if it may end temporarily when it is idle; then true if it does.
    may_rest: bool,
    is_resting: bool,
    probe: DepartureProbe,
}

/// Finds out if a client that closed its sending side while its request waits has left or still
/// reads: both look the same, the input has ended. The client's kernel answers data for a closed
/// socket with a reset, so the server sends an interim response, which a client that still reads
/// ignores (RFC 9110 §15.2.1). Why: `docs/decisions/0004-half-closed-connections.md`.
struct DepartureProbe {
    /// The interim response, or its replacement in an event stream.
    whole: &'static [u8],
    /// The unsent part of it.
    rest: &'static [u8],
    /// Runs until the next check for a reset.
    timer: Option<Pin<Box<dyn Future<Output = ()>>>>,
    /// The length of that wait.
    pause: Duration,
}

impl Default for DepartureProbe {
    fn default() -> Self {
        Self::new(CONTINUE)
    }
}

impl DepartureProbe {
    const fn new(whole: &'static [u8]) -> Self {
        Self { whole, rest: whole, timer: None, pause: PROBE_PAUSE_MIN }
    }

    /// Waits until the next check, longer each time.
    fn poll_pause(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let pause = self.pause;
        let timer = self.timer.get_or_insert_with(|| Box::pin(executor::sleep(pause)));
        std::task::ready!(timer.as_mut().poll(context));
        self.timer = None;
        self.pause = pause.saturating_mul(2).min(PROBE_PAUSE_MAX);
        Poll::Ready(())
    }
}

impl<S: ByteStream> Http1Session<'_, S> {
    fn take_first(&mut self, mut first: &[u8]) {
        while !first.is_empty() {
            let space = self.connection.input_space(first.len());
            let count = space.len().min(first.len());
            let (now, rest) = first.split_at(count);
            let Some(space) = space.get_mut(..count) else { return };
            if count == 0 {
                return;
            }
            space.copy_from_slice(now);
            self.connection.handle_input(count, clock::turn());
            first = rest;
        }
    }

    async fn run<A, F>(&mut self, answer: A) -> std::io::Result<()>
    where
        A: Fn(Message, ReceiveReservation) -> F,
        F: Future<Output = Option<Reply>>,
    {
        loop {
            match self.connection.poll_message(clock::turn()) {
                Ok(Some(message)) => {
                    let memory = self.connection.take_memory();
                    self.connection_guard.watch().set_held(memory.size());
                    self.http_trace.began.set(self.connection.began());
                    let Some(reply) = self.answer(|| answer(message, memory)).await? else { return Ok(()) };
                    self.close_last();
                    match reply {
                        Some(reply) => self.send(&reply).await?,
                        None => self.end_parts().await?,
                    }
                    // Ends the trace of the request, if it has one.
                    drop(self.http_trace.front.take());
                    self.connection_guard.watch().set_active(clock::turn());
                    if self.connection.is_closing() {
                        return self.end(false).await;
                    }
                }
                Ok(None) => {
                    if let Some(interim) = self.connection.take_interim() {
                        self.out.extend_from_slice(interim);
                    }
                    self.flush(&[]).await?;
                    if self.is_input_ended && !self.connection.is_starved() {
                        return Ok(());
                    }
                    match self.read().await? {
                        Some(reply) => return self.refuse(&reply).await,
                        None if self.is_resting => return Ok(()),
                        None if self.connection.is_closing() => return self.end(false).await,
                        None => {}
                    }
                }
                Err(refusal) => {
                    let cells = &self.shard.cells;
                    let counter =
                        if refusal.is_of_memory() { &cells.receive_memory_refused } else { &cells.framing_errors };
                    counter.add(1);
                    let reply = self.refusal_reply(refusal);
                    return self.refuse(&reply).await;
                }
            }
        }
    }

    /// Marks the next reply as the last, if it is.
    fn close_last(&mut self) {
        let is_short = self.shard.server_context.memory.gives_up(MemoryStep::KeepAlive);
        if !is_short && !self.shard.connections.is_draining() && !self.connection_guard.watch().is_last_answer() {
            return;
        }
        if is_short && !self.connection.is_closing() {
            self.shard.cells.count_memory_loss(MemoryLoss::AnsweredConnection);
        }
        self.connection.close_after_reply();
    }

    /// Waits for more input. Returns a reply if a timeout refuses the request that is being
    /// received.
    async fn read(&mut self) -> std::io::Result<Option<Reply>> {
        let watch = self.connection_guard.watch();
        watch.set_idle(self.connection.waits_since(watch.active_at()));
        watch.set_held(self.connection.held_size());
        let is_idle = self.connection.awaited() == AwaitedPart::Request;
        let rest_at = (self.may_rest && is_idle).then(|| watch.active_at().max(clock::turn()) + REST_TIMEOUT);
        let timers = [self.connection.poll_timeout(), self.delivery.poll_timeout(), rest_at];
        watch.set_deadline(timers.into_iter().flatten().min());
        let (connection, socket, shard) = (&mut self.connection, &mut self.socket, self.shard);
        let event = poll_fn(|context| {
            watch.register(context);
            // Input first: a request that has arrived is served even when the server drains.
            let space = connection.input_space(socket.begin_read());
            if !space.is_empty()
                && let Poll::Ready(count) = socket.poll_read(context, space)
            {
                return Poll::Ready(count.map(Some));
            }
            let wake_reason = watch.take_wake_reason();
            if watch.is_too_heavy() {
                return Poll::Ready(Err(TOO_HEAVY.into()));
            }
            if watch.evicted_at().is_some() && connection.waits_since(Instant::ZERO).is_some() {
                return Poll::Ready(Err(std::io::ErrorKind::ConnectionAborted.into()));
            }
            if !shard.connections.is_draining() || connection.is_within_message() {
                return if wake_reason == Some(WakeReason::Timeout) { Poll::Ready(Ok(None)) } else { Poll::Pending };
            }
            if clock::now() >= watch.quiet_at() {
                return Poll::Ready(Ok(None));
            }
            watch.set_deadline(Some(watch.quiet_at()));
            Poll::Pending
        });
        // The kernel's timer may expire before ours.
        let event = event.await.inspect_err(|error| self.count_failure(&Err(error.kind().into())));
        match event? {
            Some(0) => {
                self.is_input_ended = true;
                self.connection.handle_end();
            }
            Some(count) => self.connection.handle_input(count, clock::turn()),
            None => return self.handle_wake(),
        }
        Ok(None)
    }

    fn handle_wake(&mut self) -> std::io::Result<Option<Reply>> {
        if self.shard.connections.is_draining() && !self.connection.is_within_message() {
            self.connection.close_after_reply();
            return Ok(None);
        }
        let now = clock::now();
        if self.delivery.is_stalled(now, self.write_timeout, || self.socket.unacknowledged()) {
            let outcome = Err(std::io::ErrorKind::TimedOut.into());
            self.count_failure(&outcome);
            return outcome.map(|()| None);
        }
        let awaited = self.connection.awaited();
        let is_quiet = now.since(self.connection_guard.watch().active_at()) >= REST_TIMEOUT;
        if self.may_rest && is_quiet && awaited == AwaitedPart::Request && self.socket.unacknowledged() == 0 {
            self.is_resting = true;
            return Ok(None);
        }
        let refusal = self.connection.handle_timeout(now);
        if refusal.as_ref().is_some_and(HttpRefusal::is_of_memory) {
            self.shard.cells.receive_memory_refused.add(1);
        } else if refusal.is_some() || self.connection.is_closing() {
            let timer = match awaited {
                AwaitedPart::Body => ClientTimer::Body,
                AwaitedPart::Head => ClientTimer::Head,
                AwaitedPart::Request => ClientTimer::Idle,
            };
            self.shard.cells.count_timeouts(timer, 1);
        }
        Ok(refusal.map(|refusal| self.refusal_reply(refusal)))
    }

    /// The reply to a request that is refused before it is complete.
    fn refusal_reply(&mut self, refusal: HttpRefusal) -> Reply {
        let follows_triton = self.shard.server_context.service.follows_triton;
        let refusal = if follows_triton { refusal.as_tritons() } else { refusal };
        let mut cors = None;
        if let Some(refused) = self.connection.take_refused() {
            let (path, fields) = &*refused;
            cors = self.http_trace.front_end.and_then(|front_end| rest::cors_mark(self.shard, front_end, fields));
            self.http_trace.began.set(self.connection.began());
            let failure = ShownFailure { code: refusal.status(), text: refusal.text() };
            rest::trace_refused_body(self.shard, &self.http_trace, path, fields, failure);
        }
        let mut reply = refusal.into_reply();
        cors.inspect(|mark| mark.apply(&mut reply));
        reply
    }

    /// The answer to a message: a reply, or `Some(None)` if it came in parts. `None` if the client
    /// has left before. Dropping the work then cancels the request.
    async fn answer<F>(&mut self, begin: impl FnOnce() -> F) -> std::io::Result<Option<Option<Reply>>>
    where
        F: Future<Output = Option<Reply>>,
    {
        let watch = self.connection_guard.watch();
        watch.set_deadline(None);
        watch.set_idle(None);
        // Made where it stays: as an argument, kilobytes of it would be copied for each request.
        let mut work = pin!(begin());
        let mut is_first = true;
        poll_fn(|context| {
            if let Poll::Ready(reply) = work.as_mut().poll(context) {
                return Poll::Ready(Ok(Some(reply)));
            }
            // Checked only for work that waits, so that only such work is found too heavy.
            if self.connection_guard.watch().is_too_heavy() {
                return Poll::Ready(Err(TOO_HEAVY.into()));
            }
            // Earlier pipelined replies must not wait for this answer.
            if std::mem::take(&mut is_first) && !self.out.is_empty() {
                self.flush_some(context);
            }
            while self.parts.has_output() {
                match self.poll_parts(context) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        // A read in flight may have got the reason, while later calls only see that
                        // the connection is gone.
                        self.has_left(context);
                        return Poll::Ready(Err(error));
                    }
                }
                // There is room again.
                if let Poll::Ready(reply) = work.as_mut().poll(context) {
                    return Poll::Ready(Ok(Some(reply)));
                }
            }
            if self.has_left(context) { Poll::Ready(Ok(None)) } else { Poll::Pending }
        })
        .await
        .inspect(|_| self.end_probe())
        .inspect_err(|error: &std::io::Error| self.count_failure(&Err(error.kind().into())))
    }

    /// Reads while an answer is awaited; returns true if the client has left. A reset shows that at
    /// once; a client that only closed its sending side may still read.
    fn has_left(&mut self, context: &mut Context<'_>) -> bool {
        while !self.is_input_ended {
            let space = self.connection.input_space(self.socket.begin_read());
            if space.is_empty() {
                return self.has_left_behind_input(context);
            }
            match self.socket.poll_read(context, space) {
                Poll::Pending => return false,
                Poll::Ready(Err(error)) => {
                    // The kernel's timer may expire before ours.
                    self.count_failure(&Err(error));
                    return true;
                }
                Poll::Ready(Ok(0)) => {
                    self.is_input_ended = true;
                    self.connection.handle_end();
                }
                Poll::Ready(Ok(count)) => self.connection.handle_input(count, clock::turn()),
            }
        }
        self.is_input_ended && !self.parts.has_output() && self.is_probe_reset(context)
    }

    /// The same when reading has stopped, because enough later input is here. Neither a read nor an
    /// event would show that the client has left, so the socket is checked from time to time.
    fn has_left_behind_input(&mut self, context: &mut Context<'_>) -> bool {
        loop {
            if self.socket.is_hung_up() {
                return self.socket.is_reset() || !self.parts.has_output() && self.is_probe_reset(context);
            }
            if self.probe.poll_pause(context).is_pending() {
                return false;
            }
        }
    }

    /// Returns true if a client that closed its sending side is known not to read either
    /// ([`DepartureProbe`]).
    fn is_probe_reset(&mut self, context: &mut Context<'_>) -> bool {
        // RFC 9110 §15.2: an HTTP/1.0 client must not be sent one.
        if !self.connection.takes_interim() && !self.connection.takes_chunks() {
            return false;
        }
        // The answers to earlier requests go first.
        while !self.out.is_empty() {
            match self.socket.poll_write(context, &self.out) {
                Poll::Pending => return false,
                Poll::Ready(Err(_)) => return true,
                Poll::Ready(Ok(count)) => drop(self.out.drain(..count)),
            }
        }
        while !self.probe.rest.is_empty() {
            match self.socket.poll_write(context, self.probe.rest) {
                Poll::Pending => return false,
                Poll::Ready(Err(_)) => return true,
                Poll::Ready(Ok(count)) => self.probe.rest = self.probe.rest.get(count..).unwrap_or_default(),
            }
        }
        loop {
            if self.socket.is_reset() {
                return true;
            }
            if self.probe.poll_pause(context).is_pending() {
                return false;
            }
        }
    }

    /// Ends the probe. An interim response that was sent in part must be completed before the answer.
    fn end_probe(&mut self) {
        (self.probe.timer, self.probe.pause) = (None, PROBE_PAUSE_MIN);
        if !self.probe.rest.is_empty() && self.probe.rest.len() < self.probe.whole.len() {
            self.out.extend_from_slice(std::mem::take(&mut self.probe.rest));
        }
    }

    fn flush_some(&mut self, context: &mut Context<'_>) {
        if let Poll::Ready(Ok(count)) = self.socket.poll_write(context, &self.out) {
            self.out.drain(..count);
        }
    }

    /// Frames the written parts of a reply.
    fn encode_parts(&mut self) {
        let (head, parts) = self.parts.take();
        if head.is_none() && parts.is_empty() {
            return;
        }
        self.end_probe();
        if self.out.capacity() == 0 {
            self.out = self.shard.sessions.buffers.borrow_mut().pop().unwrap_or_default();
        }
        if let Some(head) = head {
            self.connection.begin_stream(&head, &mut self.out);
            self.probe = DepartureProbe::new(EVENT_PROBE);
        }
        parts.iter().for_each(|part| self.connection.encode_part(part, &mut self.out));
        self.connection_guard.watch().set_deadline(Some(clock::turn() + self.write_timeout));
    }

    /// Sends the written parts of a reply; returns true if all of them have left. The write timeout
    /// is that of [`Self::flush`].
    fn poll_parts(&mut self, context: &mut Context<'_>) -> std::io::Result<bool> {
        self.encode_parts();
        let watch = self.connection_guard.watch();
        while let Some(rest) = self.out.get(self.parts_sent..).filter(|rest| !rest.is_empty()) {
            let Poll::Ready(count) = self.socket.poll_write(context, rest) else {
                watch.register(context);
                watch.set_held(rest.len());
                return match poll_wake(watch) {
                    Poll::Pending => Ok(false),
                    Poll::Ready(outcome) => outcome.map(|()| false),
                };
            };
            let steps = self.parts_sent / BODY_STEP_SIZE;
            let count = count?;
            self.delivery.handle_sent(count, clock::turn(), self.write_timeout);
            self.parts_sent = self.parts_sent.saturating_add(count);
            if self.parts_sent / BODY_STEP_SIZE > steps {
                watch.set_deadline(Some(clock::turn() + self.write_timeout));
            }
        }
        self.out.clear();
        self.parts_sent = 0;
        self.parts.handle_sent();
        watch.set_deadline(None);
        Ok(true)
    }

    /// Ends a reply in parts.
    async fn end_parts(&mut self) -> std::io::Result<()> {
        self.encode_parts();
        self.parts.handle_sent();
        self.out.drain(..std::mem::take(&mut self.parts_sent));
        self.connection.end_stream(&mut self.out);
        self.probe = DepartureProbe::default();
        if self.out.len() > READ_SIZE { self.flush(&[]).await } else { Ok(()) }
    }

    async fn send(&mut self, reply: &Reply) -> std::io::Result<()> {
        if self.out.capacity() == 0 {
            self.out = self.shard.sessions.buffers.borrow_mut().pop().unwrap_or_default();
        }
        let has_body = self.connection.encode_head(reply, &mut self.out);
        let body = if has_body { &reply.body[..] } else { &[] };
        let size: usize = body.iter().map(bytes::Bytes::len).sum();
        if size > COALESCE_SIZE_MAX {
            return self.flush(body).await;
        }
        for part in body {
            self.out.extend_from_slice(part);
        }
        if self.out.len() > READ_SIZE { self.flush(&[]).await } else { Ok(()) }
    }

    /// Waits until the kernel has all output.
    async fn finish(&mut self) -> std::io::Result<()> {
        let watch = self.connection_guard.watch();
        watch.set_deadline(Some(clock::turn() + self.write_timeout));
        let outcome = poll_fn(|context| {
            if let Poll::Ready(outcome) = self.socket.poll_written(context) {
                return Poll::Ready(outcome);
            }
            watch.register(context);
            poll_wake(watch)
        })
        .await;
        self.count_failure(&outcome);
        outcome
    }

    /// Counts the connections that the shard itself ends.
    fn count_failure(&self, outcome: &std::io::Result<()>) {
        match outcome.as_ref().map_err(std::io::Error::kind) {
            Err(std::io::ErrorKind::TimedOut) => self.shard.cells.count_timeouts(ClientTimer::Write, 1),
            Err(TOO_HEAVY) => self.shard.cells.count_memory_loss(MemoryLoss::HeaviestConnection),
            _ => return,
        }
        // Bytes that the client does not take must not stay in the kernel either.
        self.socket.reset_at_close();
    }

    /// Sends the pending replies, then a body. The write timeout restarts with each [`BODY_STEP_SIZE`] bytes, so that
    /// it limits a stalled client, not a large body.
    async fn flush(&mut self, body: &[bytes::Bytes]) -> std::io::Result<()> {
        if self.out.is_empty() && body.is_empty() {
            return Ok(());
        }
        let (watch, write_timeout) = (self.connection_guard.watch(), self.write_timeout);
        watch.set_deadline(Some(clock::turn() + write_timeout));
        let size = self.out.len() + body.iter().map(bytes::Bytes::len).sum::<usize>();
        self.delivery.handle_sent(size, clock::turn(), write_timeout);
        watch.set_held(size);
        let mut step = 0_usize;
        let moved = |count| {
            step = step.saturating_add(count);
            if step >= BODY_STEP_SIZE {
                step = 0;
                watch.set_deadline(Some(clock::turn() + write_timeout));
            }
        };
        let outcome = {
            let mut writing = pin!(self.socket.write_all(&mut self.out, body, moved));
            poll_fn(|context| {
                if let Poll::Ready(outcome) = writing.as_mut().poll(context) {
                    return Poll::Ready(outcome);
                }
                watch.register(context);
                poll_wake(watch)
            })
            .await
        };
        self.return_buffer();
        self.count_failure(&outcome);
        outcome
    }

    /// Returns the buffer to the shard, so that an idle connection has none.
    fn return_buffer(&mut self) {
        let mut out = std::mem::take(&mut self.out);
        out.clear();
        let mut buffers = self.shard.sessions.buffers.borrow_mut();
        if out.capacity() <= BUFFER_SIZE_MAX && buffers.len() < BUFFERS_MAX {
            buffers.push(out);
        }
    }

    async fn refuse(&mut self, reply: &Reply) -> std::io::Result<()> {
        self.connection.close_after_reply();
        self.send(reply).await?;
        drop(self.http_trace.front.take());
        self.end(true).await
    }

    /// Sends the rest and closes. Closing with unread input would reset the connection, and the
    /// client could lose the last reply; so it first reads on, up to [`LINGER_TIMEOUT`].
    async fn end(&mut self, is_refused: bool) -> std::io::Result<()> {
        self.flush(&[]).await?;
        self.finish().await?;
        if self.is_input_ended || !(is_refused || self.connection.has_unread_input()) {
            return Ok(());
        }
        linger(&mut self.socket, self.connection_guard.watch(), LINGER_TIMEOUT).await
    }
}
