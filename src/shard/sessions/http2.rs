//! One HTTP/2 connection: moves bytes between the socket and the state machine in
//! `connection::http2`. One task reads and writes for all its streams. A request is first polled in
//! that task, since many are answered at once; one that has to wait is moved to a task of its own.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind, IoSlice};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_lite::FutureExt;
use smallvec::SmallVec;

use crate::budget::ReceiveReservation;
use crate::connection::http2::{ConnectionEvent, Http2Connection, Http2Counts, Http2Settings, RefusedMessage};
use crate::limits::{DRAIN_GRACE, INPUT_SIZE_MIN, LINGER_TIMEOUT, MEMORY_HEAVY_SIZE};
use crate::metrics::{ClientTimer, Departure, MemoryLoss};
use crate::pressure::MemoryStep;
use crate::protocol::front_end::FrontEnd;
use crate::protocol::grpc::message::RAW_INPUT_CONTENTS;
use crate::runtime::socket::{ByteStream, PARTS_MAX};
use crate::runtime::{clock, executor};
use crate::shard::connections::delivery::DeliveryWatch;
use crate::shard::connections::linger::linger;
use crate::shard::connections::{ConnectionGuard, WakeReason};
use crate::shard::requests::access::AccessEntry;
use crate::shard::requests::grpc::MessageConsumer;
use crate::shard::requests::http2_link::{Http2Link, StreamWork};
use crate::shard::requests::reply_stream::ReplyStream;
use crate::shard::requests::tei;
use crate::shard::requests::tracing::{HttpTrace, ShownFailure};
use crate::shard::requests::{grpc, rest};
use crate::shard::{ServerContext, Shard};
use crate::time::Instant;
use crate::wire::http2::error::ErrorCode;
use crate::wire::http2::{PREFACE, StreamId};
use crate::wire::message::Message;

/// Time in which a connection without streams that was told to give its place up must have closed.
const EVICTION_GRACE: Duration = Duration::from_secs(1);

/// Reads per turn of a connection, so that one busy connection does not starve the others.
const READS_MAX: usize = 8;

/// The limits of all connections of a server.
pub fn settings(context: &ServerContext) -> Http2Settings {
    let limits = &context.connection_limits;
    Http2Settings {
        streams_max: limits.http2_streams_max,
        client_resets_max: limits.http2_resets_max,
        control_frames_max: limits.http2_control_frames_max,
        keep_alive: limits.keep_alive,
        body_size_max: limits.http_input_size_max,
        message_size_max: limits.grpc_message_size_max,
        aligned_after: Some("inference-header-content-length"),
        aligned_field: RAW_INPUT_CONTENTS,
        follows_triton: context.service.follows_triton,
        reads_trace_context: context.traces.queue.is_some(),
        keeps_call_fields: context.policy.grpc.reads_fields() || context.keys.initial.is_some(),
        // The model of such a call is in its metadata.
        fields_kept_below: Some(b"/tei.v1."),
        head_timeout: limits.timeouts.head,
        body_timeout: limits.timeouts.body,
        write_timeout: limits.timeouts.write,
        idle_timeout: limits.timeouts.idle,
        ..Http2Settings::default()
    }
}

/// Serves a connection whose first bytes were read already, the preface among them.
pub async fn run<S: ByteStream>(shard: &Rc<Shard>, socket: S, first: Vec<u8>, connection_guard: &ConnectionGuard) {
    let link = Rc::new(Http2Link {
        connection: RefCell::new(
            Http2Connection::new(Rc::clone(&shard.sessions.http2_settings), clock::now())
                .with_memory(shard.sessions.receive_memory()),
        ),
        waker: RefCell::default(),
        is_running: Cell::new(false),
        peer: shard.requests.access.peer(&socket),
        rights: connection_guard.watch().rights(),
        stream_work: RefCell::default(),
    });
    let delivery = DeliveryWatch::default();
    let mut session = Http2Session {
        shard,
        socket,
        connection_guard,
        link,
        give_up_at: None,
        delivery,
        last_stream: StreamId::CONNECTION,
    };
    let rest = first.get(PREFACE.len()..).unwrap_or_default();
    session.link.connection.borrow_mut().handle_first_input(rest, clock::now());
    drop(first);
    // A socket error ends the connection; no peer is left to report it to.
    let outcome = poll_fn(|context| session.poll(context)).await;
    session.link.end();
    session.count_end();
    // The kernel's timer may expire before ours.
    if outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::TimedOut) {
        shard.cells.count_timeouts(ClientTimer::Write, 1);
    }
    if outcome.is_ok() {
        let has_failed = session.link.connection.borrow().has_failed();
        let timeout = if has_failed { LINGER_TIMEOUT } else { DRAIN_GRACE };
        let _ = linger(&mut session.socket, connection_guard.watch(), timeout).await;
    }
}

struct Http2Session<'a, S> {
    shard: &'a Rc<Shard>,
    socket: S,
    connection_guard: &'a ConnectionGuard,
    link: Rc<Http2Link>,
    /// The instant at which the connection closes even if its last frames were not sent.
    give_up_at: Option<Instant>,
    /// The check that the peer takes the kernel's bytes.
    delivery: DeliveryWatch,
    /// The last stream seen, to detect new requests of the client.
    last_stream: StreamId,
}

impl<S: ByteStream> Http2Session<'_, S> {
    /// Reads, answers and writes until there is nothing to do for now; ready when the connection is
    /// over.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.connection_guard.watch().register(context);
        let is_known = self.link.waker.borrow().as_ref().is_some_and(|have| have.will_wake(context.waker()));
        if !is_known {
            *self.link.waker.borrow_mut() = Some(context.waker().clone());
        }
        self.link.is_running.set(true);
        let polled = self.poll_turn(context);
        self.link.is_running.set(false);
        polled
    }

    fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.handle_wake()?;
        for _ in 0..READS_MAX {
            let has_read = match self.poll_read(context) {
                Poll::Ready(outcome) => outcome.map(|()| true)?,
                Poll::Pending => false,
            };
            handle_events(self.shard, &self.link, context);
            self.poll_write(context)?;
            self.end_answered(context)?;
            self.count();
            if self.link.connection.borrow().is_finished() {
                return self.poll_finish(context);
            }
            if !has_read {
                self.rest();
                return Poll::Pending;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Waits until the kernel has the last frames, at most [`LINGER_TIMEOUT`].
    fn poll_finish(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let now = clock::now();
        let give_up_at = *self.give_up_at.get_or_insert(now + LINGER_TIMEOUT);
        self.connection_guard.watch().set_deadline(Some(give_up_at));
        let polled = self.socket.poll_written(context);
        if polled.is_pending() && now >= give_up_at {
            Poll::Ready(Err(ErrorKind::ConnectionAborted.into()))
        } else {
            polled
        }
    }

    /// There is nothing to do for now: sets the instant of the next look at the connection, and if
    /// it may be closed in favour of another one.
    fn rest(&mut self) {
        let watch = self.connection_guard.watch();
        let connection = self.link.connection.borrow();
        let is_unused = connection.stream_count() == 0;
        let has_asked = std::mem::replace(&mut self.last_stream, connection.last_stream()) != self.last_stream;
        if has_asked || !is_unused {
            watch.set_active(clock::turn());
        }
        watch.set_idle(is_unused.then(|| watch.active_at()));
        let of_eviction = watch.evicted_at().filter(|_| is_unused).map(|at| at + EVICTION_GRACE);
        let all = [connection.poll_timeout(), self.delivery.poll_timeout(), of_eviction];
        watch.set_deadline(all.into_iter().flatten().min());
    }

    /// A connection in a reserved slot is answered only its first request. If memory is short, a
    /// connection ends when all is answered.
    fn end_answered(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let is_short = self.shard.server_context.memory.gives_up(MemoryStep::KeepAlive);
        if self.link.rights.reserved_for.is_none() && !is_short {
            return Ok(());
        }
        let mut connection = self.link.connection.borrow_mut();
        if connection.last_stream() == StreamId::CONNECTION || connection.stream_count() > 0 {
            return Ok(());
        }
        if connection.begin_drain(clock::now()) && is_short {
            self.shard.cells.count_memory_loss(MemoryLoss::AnsweredConnection);
        }
        drop(connection);
        self.poll_write(context)
    }

    /// Reports the size of the heaviest stream, and resets that stream if it is too large.
    fn weigh(&self) {
        let (watch, mut connection) = (self.connection_guard.watch(), self.link.connection.borrow_mut());
        if watch.is_too_heavy() {
            // It may have become light since the demand.
            if connection.heaviest_size() >= MEMORY_HEAVY_SIZE && connection.reset_heaviest() {
                self.shard.cells.count_memory_loss(MemoryLoss::HeaviestStream);
            }
            watch.handle_lightened();
        } else {
            watch.set_held(connection.heaviest_size());
        }
    }

    fn handle_wake(&mut self) -> io::Result<()> {
        let watch = self.connection_guard.watch();
        let wake_reason = watch.take_wake_reason();
        if wake_reason == Some(WakeReason::Weighed) || watch.is_too_heavy() {
            self.weigh();
        }
        let mut connection = self.link.connection.borrow_mut();
        if wake_reason == Some(WakeReason::Timeout) {
            let (now, timeout) = (clock::now(), self.shard.server_context.connection_limits.timeouts.write);
            connection.handle_timeout(now);
            if self.delivery.is_stalled(now, timeout, || self.socket.unacknowledged()) {
                self.shard.cells.count_timeouts(ClientTimer::Write, 1);
                self.socket.reset_at_close();
                return Err(ErrorKind::ConnectionReset.into());
            }
            let is_left = watch.evicted_at().is_some_and(|at| at + EVICTION_GRACE <= now);
            if is_left && connection.stream_count() == 0 {
                return Err(ErrorKind::ConnectionAborted.into());
            }
        }
        if watch.evicted_at().is_some() {
            connection.begin_drain(clock::now());
        }
        if self.shard.connections.is_draining() {
            connection.begin_drain(clock::now());
            drop(connection);
            // Streams that wait for more requests must end now.
            self.link.stream_work.borrow_mut().iter_mut().for_each(StreamWork::wake);
        }
        Ok(())
    }

    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut connection = self.link.connection.borrow_mut();
        if connection.is_resting() {
            // On the stack: a connection that is idle has no buffer.
            let mut space = [0; INPUT_SIZE_MIN];
            match std::task::ready!(self.socket.poll_read(context, &mut space))? {
                0 => connection.handle_end(),
                count => connection.handle_first_input(space.get(..count).unwrap_or_default(), clock::turn()),
            }
            return Poll::Ready(Ok(()));
        }
        let space = connection.input_space(self.socket.begin_read());
        if space.is_empty() {
            return Poll::Pending;
        }
        match std::task::ready!(self.socket.poll_read(context, space))? {
            0 => connection.handle_end(),
            count => connection.handle_input(count, clock::turn()),
        }
        Poll::Ready(Ok(()))
    }

    /// Sends as much as the kernel takes.
    fn poll_write(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let (now, write_timeout) = (clock::turn(), self.shard.server_context.connection_limits.timeouts.write);
        let mut has_sent = false;
        loop {
            let mut connection = self.link.connection.borrow_mut();
            connection.prepare_transmit(now);
            // The previous write may still be in progress; order on the wire needs it complete.
            let Poll::Ready(outcome) = self.socket.poll_written(context) else { break };
            outcome?;
            if !connection.has_output() {
                break;
            }
            // An output in one owned buffer is submitted with everything else that the shard sends in this turn.
            let behind = connection.transmit_whole().map(|whole| (whole.len(), self.socket.write_behind(whole)));
            if let Some((count, true)) = behind {
                connection.handle_transmitted(count, now);
                self.delivery.handle_sent(count, now, write_timeout);
                has_sent = true;
                continue;
            }
            let count = {
                let parts: SmallVec<[IoSlice<'_>; PARTS_MAX]> =
                    connection.transmit_parts().take(PARTS_MAX).map(IoSlice::new).collect();
                match self.socket.try_write_vectored(&parts)? {
                    // The socket buffer is full: register for when it has room.
                    0 => match self.socket.poll_write(context, parts.first().map_or(&[], |part| part)) {
                        Poll::Pending => break,
                        Poll::Ready(count) => count?,
                    },
                    count => count,
                }
            };
            connection.handle_transmitted(count, now);
            self.delivery.handle_sent(count, now, write_timeout);
            has_sent = true;
        }
        if has_sent {
            self.link.wake_writers();
        }
        Ok(())
    }

    fn count(&self) {
        let counts = self.link.connection.borrow_mut().take_counts();
        if counts != Http2Counts::default() {
            self.shard.cells.client_resets.add(counts.client_resets);
            self.shard.cells.server_resets.add(counts.server_resets);
            self.shard.cells.receive_memory_refused.add(counts.memory_refusals);
            let timeouts = counts.timeouts;
            for (timer, count) in [
                (ClientTimer::Body, timeouts.body),
                (ClientTimer::Head, timeouts.head),
                (ClientTimer::Idle, timeouts.idle),
                (ClientTimer::KeepAlive, timeouts.keep_alive),
                (ClientTimer::Write, timeouts.write),
            ] {
                self.shard.cells.count_timeouts(timer, count);
            }
            if timeouts.write > 0 && self.link.connection.borrow().is_finished() {
                // Bytes that the peer does not take must not stay in the kernel either.
                self.socket.reset_at_close();
            }
        }
    }

    fn count_end(&self) {
        let connection = self.link.connection.borrow();
        if let Some(limit) = connection.exceeded() {
            self.shard.cells.count_calmed(limit.label());
        } else if connection.has_failed() {
            self.shard.cells.framing_errors.add(1);
        }
    }
}

/// Begins the work of a connection's messages.
fn handle_events(shard: &Rc<Shard>, link: &Rc<Http2Link>, context: &mut Context<'_>) {
    let (now, owner) = (clock::now(), WorkOwner { shard, link });
    loop {
        let event = link.connection.borrow_mut().poll_event(now);
        match event {
            None => return,
            Some(ConnectionEvent::Call { stream, is_post, deadline }) => {
                let link = Rc::clone(link);
                match grpc::begin(shard, &link, stream, is_post, deadline) {
                    Some(MessageConsumer::Infer(call)) => {
                        let shard = Rc::clone(shard);
                        begin_work(owner, stream, Departure::CallCancelled, context, |departure| {
                            grpc::stream_infer(shard, link, stream, call, departure)
                        });
                    }
                    Some(MessageConsumer::Tei(call)) => {
                        let shard = Rc::clone(shard);
                        begin_work(owner, stream, Departure::CallCancelled, context, |departure| {
                            tei::stream(shard, link, stream, call, departure)
                        });
                    }
                    Some(MessageConsumer::Reflection(admission)) => {
                        let shard = Rc::clone(shard);
                        begin_work(owner, stream, Departure::CallCancelled, context, |_| {
                            grpc::reflection(shard, link, stream, admission)
                        });
                    }
                    None => {}
                }
            }
            Some(ConnectionEvent::Whole { stream, token, message, deadline }) => {
                let (shard, link) = (Rc::clone(shard), Rc::clone(link));
                let (coding, memory) = (link.coding(stream), link.take_memory(stream));
                let call = grpc::UnaryCall { stream, call: token, message, coding, memory, deadline };
                begin_work(owner, stream, Departure::CallCancelled, context, |departure| {
                    grpc::answer(shard, link, call, departure)
                });
            }
            Some(ConnectionEvent::Message { stream, message }) => {
                let (shard, link) = (Rc::clone(shard), Rc::clone(link));
                let memory = link.take_memory(stream);
                begin_work(owner, stream, Departure::StreamReset, context, |departure| {
                    answer(shard, link, stream, message, memory, departure)
                });
            }
            Some(ConnectionEvent::Fault { stream, fault }) => {
                grpc::refuse(shard, link, stream, fault);
                // The work on it has no one left to answer.
                link.reset(stream, ErrorCode::Cancel);
            }
            Some(ConnectionEvent::Refused(refused)) => trace_refused(shard, &refused),
            Some(ConnectionEvent::Next(stream)) => link.wake(stream),
            Some(ConnectionEvent::Reset { stream, code }) => link.reset(stream, code),
        }
    }
}

/// Traces a plain message whose body was refused.
fn trace_refused(shard: &Shard, refused: &RefusedMessage) {
    let http_trace = HttpTrace { front_end: Some(FrontEnd::Kserve), ..HttpTrace::default() };
    http_trace.began.set(clock::now());
    let RefusedMessage { path, fields, refusal } = refused;
    let failure = ShownFailure { code: refusal.status(), text: refusal.text() };
    rest::trace_refused_body(shard, &http_trace, path, fields, failure);
}

/// The shard and the connection that work on a stream belongs to.
#[derive(Clone, Copy)]
struct WorkOwner<'a> {
    shard: &'a Rc<Shard>,
    link: &'a Rc<Http2Link>,
}

/// Polls the work on a stream once, and spawns a task for it if it has to wait.
fn begin_work<W: Future<Output = ()> + 'static>(
    owner: WorkOwner<'_>,
    stream: StreamId,
    departure: Departure,
    context: &mut Context<'_>,
    work: impl FnOnce(Rc<Cell<Departure>>) -> W,
) {
    let WorkOwner { shard, link } = owner;
    let departure = Rc::new(Cell::new(departure));
    let mut work = Box::pin(AssertUnwindSafe(work(Rc::clone(&departure))).catch_unwind());
    if let Poll::Ready(outcome) = work.as_mut().poll(context) {
        drop(work);
        return finish(shard, link, stream, outcome);
    }
    link.begin_work(stream, departure);
    executor::spawn(continue_work(Rc::clone(shard), Rc::clone(link), stream, work)).detach();
}

type IoOutcome = Result<(), Box<dyn Any + Send>>;

/// Continues the work on a stream to its end; drops it if the stream is reset before.
async fn continue_work<W>(shard: Rc<Shard>, link: Rc<Http2Link>, stream: StreamId, mut work: Pin<Box<W>>)
where
    W: Future<Output = IoOutcome>,
{
    let outcome =
        poll_fn(
            |context| {
                if link.poll_reset(stream, context) { Poll::Ready(Ok(())) } else { work.as_mut().poll(context) }
            },
        )
        .await;
    drop(work);
    link.end_work(stream);
    finish(&shard, &link, stream, outcome);
}

fn finish(shard: &Shard, link: &Http2Link, stream: StreamId, outcome: IoOutcome) {
    if outcome.is_err() {
        shard.cells.panics.add(1);
    }
    link.with(|connection| connection.handle_gone(stream));
}

/// Answers a plain HTTP message: REST over HTTP/2.
async fn answer(
    shard: Rc<Shard>,
    link: Rc<Http2Link>,
    stream: StreamId,
    mut message: Message,
    memory: ReceiveReservation,
    departure: Rc<Cell<Departure>>,
) {
    let (received, http_trace) = (clock::now(), HttpTrace::default());
    http_trace.began.set(received);
    let entry = AccessEntry::of_http(&shard, &message, received, link.peer);
    let parts = ReplyStream::Http2(Rc::clone(&link), stream);
    let arrival = rest::HttpArrival {
        records: rest::RequestRecords { received, departure: &departure, entry: &entry, http_trace: &http_trace },
        stream: parts,
        rights: link.rights,
        front_end: FrontEnd::Kserve,
    };
    let reply = rest::handle_message(&shard, &mut message, memory, arrival).await;
    entry.settle_http(reply.as_ref());
    link.with(|connection| match reply {
        Some(reply) => connection.send_reply(stream, reply, clock::now()),
        None => connection.end_reply(stream, clock::now()),
    });
}
