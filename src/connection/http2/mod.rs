//! One HTTP/2 connection as a state machine (RFC 9113), the server's side: bytes in, calls and
//! messages out, answers back as frames. Called by the shard, which moves the bytes and tells the
//! time. It knows the framing of gRPC and nothing of what a message means.
//!
//! It pushes nothing, ignores priorities, and takes no trailers but to check them. What it holds is
//! bounded: by the windows and the size of one message for each stream, by [`CONTROL_BACKLOG_SIZE_MAX`]
//! for answers to control frames, and by [`TRANSMIT_SIZE_MAX`] for frames made ahead of the socket. A
//! peer that reads nothing stops being read.
//!
//! ```text
//!            SETTINGS               begin_drain                 its last stream ended
//!   Preface ──────────► Serving ───────────────► (GOAWAY twice) ──────────────────────► Finished
//!      └──── a fault ──────┴──► Failed: GOAWAY is the last frame ─────────────────────────┘
//! ```

mod budget;
mod event;
mod flow;
mod fuzz;
mod head;
mod incoming;
mod memory;
mod output;
mod receive;
mod response;
mod send;
mod stream;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use crate::budget::ReceiveBudget;
use crate::connection::http2::budget::PeerBudgets;
use crate::connection::http2::flow::{ReceiveWindow, SendWindow};
use crate::connection::http2::head::HeadSpace;
use crate::connection::http2::incoming::StreamContent;
use crate::connection::http2::output::FrameQueue;
use crate::connection::http2::receive::{IncomingBlock, IncomingData};
use crate::connection::http2::response::ResponseEncoder;
use crate::connection::http2::stream::{ClosedStream, StreamState, Streams};
use crate::connection::input::InputBuffer;
use crate::limits::{
    BODY_SIZE_MAX, BODY_TIMEOUT, CLIENT_RESETS_MAX, CONNECTION_WINDOW_SIZE, CONTROL_BACKLOG_SIZE_MAX,
    CONTROL_FRAMES_MAX, DRAIN_GRACE, FRAME_SIZE_MAX, GRPC_MESSAGE_SIZE_MAX, HEAD_SIZE_MAX, HEAD_TIMEOUT,
    INPUT_SIZE_MIN, READ_SIZE, REST_TIMEOUT, STREAM_WINDOW_SIZE, STREAMS_MAX, TRANSMIT_SIZE_MAX, WRITE_TIMEOUT,
};
use crate::time::Instant;
use crate::wire::hpack::decoder::Decoder;
use crate::wire::http1::HttpRefusal;
use crate::wire::http2::error::{ErrorCode, PeerFault};
use crate::wire::http2::frame::{self, FrameKind};
use crate::wire::http2::settings::{OurSettings, PeerSettings};
use crate::wire::http2::{StreamId, WINDOW_SIZE_INITIAL};
use crate::wire::message::BodyBuffer;

pub use self::budget::Http2Limit;
pub use self::event::ConnectionEvent;
pub use self::fuzz::fuzz_connection;
pub use self::head::CallDeadline;
pub use self::incoming::{CallFault, MessageDelivery, NextMessage};
pub use self::response::CallStatus;

/// The bounds of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Http2Settings {
    /// Streams at a time (`--http2-streams-max`).
    pub streams_max: u32,
    /// Resets by the client in a while (`--http2-resets-max`).
    pub client_resets_max: u32,
    /// Frames that move nothing in a while (`--http2-control-frames-max`).
    pub control_frames_max: u32,
    /// Bytes of the fields of one request.
    pub head_size_max: usize,
    /// Bytes of a plain message's body (`--http-max-input-size`).
    pub body_size_max: usize,
    /// Bytes of a call's message (`--grpc-max-message-size`).
    pub message_size_max: usize,
    /// What a stream's window begins with.
    pub stream_window_size: u32,
    /// What the connection's window begins with.
    pub connection_window_size: u32,
    /// The field whose value says which byte of a plain body must be aligned, where there is one.
    pub aligned_after: Option<&'static str>,
    /// The field of a call's message whose first payload must be aligned.
    pub aligned_field: u32,
    /// A frame, and a field block, must be complete so long after its first byte.
    pub head_timeout: Duration,
    /// A request must bring `BODY_STEP_SIZE` bytes, or its end, within this time.
    pub body_timeout: Duration,
    /// An answer must move as many, or to its end, within this time.
    pub write_timeout: Duration,
}

impl Default for Http2Settings {
    fn default() -> Self {
        Self {
            streams_max: STREAMS_MAX,
            client_resets_max: CLIENT_RESETS_MAX,
            control_frames_max: CONTROL_FRAMES_MAX,
            head_size_max: HEAD_SIZE_MAX,
            body_size_max: BODY_SIZE_MAX,
            message_size_max: GRPC_MESSAGE_SIZE_MAX,
            stream_window_size: STREAM_WINDOW_SIZE,
            connection_window_size: CONNECTION_WINDOW_SIZE,
            aligned_after: None,
            aligned_field: 0,
            head_timeout: HEAD_TIMEOUT,
            body_timeout: BODY_TIMEOUT,
            write_timeout: WRITE_TIMEOUT,
        }
    }
}

/// What was counted since the caller last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Http2Counts {
    /// Streams that the client reset.
    pub client_resets: u64,
    /// Streams that we reset.
    pub server_resets: u64,
    /// Requests that were refused for want of memory.
    pub memory_refusals: u64,
    /// Requests and answers that a timer ended.
    pub timeouts: u64,
}

/// The server's side of a connection. Lives on its shard.
pub struct Http2Connection<B, T> {
    settings: Http2Settings,
    peer: PeerSettings,
    input: InputBuffer,
    /// Whether the bytes of `input_space` go to a body and not to `input`.
    is_direct: bool,
    /// What `input_space` had last, and whether all of it was used, so that more is worth having.
    space_size: usize,
    is_input_full: bool,
    phase: ConnectionPhase,
    drain: DrainState,
    has_peer_left: bool,
    is_ended: bool,
    are_settings_acknowledged: bool,
    decoder: Decoder,
    head: HeadSpace,
    /// The field block in progress, over several frames.
    block: Option<IncomingBlock>,
    /// The DATA frame in progress.
    data: Option<IncomingData>,
    /// Bytes of a frame that are thrown away.
    skip: usize,
    /// The largest stream that the client opened.
    last: StreamId,
    streams: Streams<B, T>,
    receive: ReceiveWindow,
    send: SendWindow,
    /// Where the memory of content is counted, if it is bounded.
    memory: Option<Rc<dyn ReceiveBudget>>,
    /// Whether a client waits for room that there is no memory for.
    has_starved: bool,
    budgets: PeerBudgets,
    counts: Http2Counts,
    events: VecDeque<ConnectionEvent<T>>,
    responses: ResponseEncoder,
    /// Frames that come before all answers: what control frames ask for.
    urgent: Vec<u8>,
    output: FrameQueue,
    /// The streams that wait for their turn to send.
    ready: VecDeque<StreamId>,
    timers: ConnectionTimers,
}

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionPhase {
    /// The client's SETTINGS are awaited (§3.4).
    Preface,
    /// Frames come and go.
    Serving,
    /// GOAWAY was the last frame.
    Failed,
}

/// How far a drain is (§6.8: a first GOAWAY that promises nothing, a second one a round trip later).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DrainState {
    No,
    /// Until the PING that went with it comes back, or this instant.
    Announced(Instant),
    /// No more streams are taken.
    Final,
}

/// When something is due that belongs to no stream.
#[derive(Clone, Copy, Debug, Default)]
struct ConnectionTimers {
    /// The frame that has begun must be whole.
    frame: Option<Instant>,
    /// The field block that has begun must be.
    block: Option<Instant>,
    /// Output must have moved; `moved` bytes did since that was set.
    write: Option<Instant>,
    moved: usize,
    /// The memory of the last requests is given back.
    rest: Option<Instant>,
    /// There may be memory for those who wait for some.
    starved: Option<Instant>,
}

/// Bytes that are read at once while more come than fit.
const READ_SIZE_MAX: usize = 4 * READ_SIZE;

/// The PING of a drain.
const DRAIN_PING: [u8; frame::PING_SIZE] = *b"deuteron";

impl<B: BodyBuffer, T: Copy> Http2Connection<B, T> {
    /// A connection whose preface was read up to its SETTINGS frame. Ours are the first thing that it
    /// sends (§3.4).
    pub fn new(settings: Http2Settings, now: Instant) -> Self {
        let mut output = FrameQueue::default();
        let ours = OurSettings {
            streams_max: settings.streams_max,
            initial_window_size: settings.stream_window_size,
            frame_size_max: FRAME_SIZE_MAX,
            field_list_size_max: u32::try_from(settings.head_size_max).unwrap_or(u32::MAX),
        };
        output.write(|out| ours.encode(out));
        let more = settings.connection_window_size.saturating_sub(WINDOW_SIZE_INITIAL);
        if more > 0 {
            output.write(|out| frame::encode_window_update(StreamId::CONNECTION, more, out));
        }
        Self {
            settings,
            peer: PeerSettings::default(),
            input: InputBuffer::default(),
            is_direct: false,
            space_size: 0,
            is_input_full: false,
            phase: ConnectionPhase::Preface,
            drain: DrainState::No,
            has_peer_left: false,
            is_ended: false,
            are_settings_acknowledged: false,
            decoder: Decoder::default(),
            head: HeadSpace::default(),
            block: None,
            data: None,
            skip: 0,
            last: StreamId::CONNECTION,
            streams: Streams::new(),
            receive: ReceiveWindow::new(WINDOW_SIZE_INITIAL.saturating_add(more)),
            send: SendWindow::new(WINDOW_SIZE_INITIAL),
            memory: None,
            has_starved: false,
            budgets: PeerBudgets::new(settings.control_frames_max, settings.client_resets_max),
            counts: Http2Counts::default(),
            events: VecDeque::new(),
            responses: ResponseEncoder::default(),
            urgent: Vec::new(),
            output,
            ready: VecDeque::new(),
            timers: ConnectionTimers { frame: Some(now + settings.head_timeout), ..ConnectionTimers::default() },
        }
    }

    /// The same, whose requests take their memory of a budget.
    pub fn with_memory(self, memory: Rc<dyn ReceiveBudget>) -> Self {
        Self { memory: Some(memory), ..self }
    }

    /// Where the next bytes go: the connection's own buffer, or the body of a large frame. Empty while
    /// nothing may be read, for the peer does not read what it was answered. After a fault what comes
    /// is thrown away.
    pub fn input_space(&mut self) -> &mut [u8] {
        if self.phase == ConnectionPhase::Failed {
            self.input.clear();
            return self.input.spare(READ_SIZE);
        }
        if self.is_blocked() {
            return &mut [];
        }
        self.is_direct = self.input.is_empty() && self.is_body_large() && self.has_memory_for_space();
        if self.is_direct {
            return self.body_space();
        }
        if self.is_input_full {
            self.input.widen(self.input.held_size().saturating_mul(4).min(READ_SIZE_MAX));
        }
        let space = self.input.spare(self.settings.head_size_max.saturating_mul(2).max(READ_SIZE));
        self.space_size = space.len();
        space
    }

    /// `count` bytes were written to the front of `input_space`.
    pub fn handle_input(&mut self, count: usize, now: Instant) {
        if self.phase == ConnectionPhase::Failed {
            return;
        }
        if std::mem::take(&mut self.is_direct) {
            self.handle_body_space(count, now);
        } else {
            self.is_input_full = count == self.space_size;
            self.input.commit(count);
        }
    }

    /// The peer closed its side. A client of HTTP/2 that does so has gone.
    pub const fn handle_end(&mut self) {
        self.is_ended = true;
    }

    /// Something is overdue.
    pub fn handle_timeout(&mut self, now: Instant) {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if self.phase == ConnectionPhase::Failed {
            self.is_ended |= is_due(self.timers.write);
            return;
        }
        if is_due(self.timers.frame) || is_due(self.timers.block) {
            self.counts.timeouts += 1;
            let fault = self.budgets.exceed(Http2Limit::FrameTime);
            return self.fail(&fault);
        }
        if is_due(self.timers.write) {
            // There is no telling a peer that reads nothing.
            self.counts.timeouts += 1;
            self.is_ended = true;
        }
        if let DrainState::Announced(at) = self.drain
            && at <= now
        {
            self.end_drain();
        }
        if is_due(self.timers.starved) {
            self.handle_starved(now);
        }
        if is_due(self.timers.rest) {
            self.timers.rest = None;
            self.shrink();
        }
        self.handle_stream_timeouts(now);
    }

    /// When `handle_timeout` must be called, even if nothing arrives.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let ConnectionTimers { frame, block, write, rest, starved, .. } = self.timers;
        let drain = if let DrainState::Announced(at) = self.drain { Some(at) } else { None };
        let own = [frame, block, write, rest, starved, drain].into_iter().flatten().min();
        self.streams.iter().filter_map(|stream| stream.timeout()).chain(own).min()
    }

    /// Takes no streams any more, once the client knows, and ends when those that are open have
    /// (§6.8).
    pub fn begin_drain(&mut self, now: Instant) {
        if self.drain != DrainState::No || self.phase == ConnectionPhase::Failed {
            return;
        }
        frame::encode_goaway(StreamId::LARGEST, ErrorCode::NoError, "", &mut self.urgent);
        frame::encode(FrameKind::Ping, 0, StreamId::CONNECTION, &DRAIN_PING, &mut self.urgent);
        self.drain = DrainState::Announced(now + DRAIN_GRACE);
    }

    /// Whether there is nothing more to do: it may be closed.
    pub fn is_finished(&self) -> bool {
        let is_sent = self.urgent.is_empty() && self.output.size() == 0;
        let is_idle = self.streams.is_empty() && self.events.is_empty();
        match self.phase {
            _ if self.is_ended => true,
            ConnectionPhase::Failed => is_sent,
            _ => is_sent && is_idle && self.drain == DrainState::Final,
        }
    }

    /// Whether it ended by a fault of the peer, which may not have read so far yet.
    pub fn has_failed(&self) -> bool {
        self.phase == ConnectionPhase::Failed
    }

    /// The bound that the peer reached, where one ended the connection.
    pub const fn exceeded(&self) -> Option<Http2Limit> {
        self.budgets.exceeded()
    }

    /// What was counted since this was asked last.
    pub fn take_counts(&mut self) -> Http2Counts {
        std::mem::take(&mut self.counts)
    }

    /// Streams that are open, or whose work goes on.
    pub const fn stream_count(&self) -> usize {
        self.streams.len()
    }

    /// Whether what came must wait until the peer has read what it was answered.
    fn is_blocked(&self) -> bool {
        self.urgent.len() >= CONTROL_BACKLOG_SIZE_MAX || self.output.size() >= 2 * TRANSMIT_SIZE_MAX
    }

    fn is_between_frames(&self) -> bool {
        self.data.is_none() && self.block.is_none() && self.skip == 0
    }

    fn end_drain(&mut self) {
        frame::encode_goaway(self.last, ErrorCode::NoError, "", &mut self.urgent);
        self.drain = DrainState::Final;
    }

    /// Ends the connection for a fault of the peer (§5.4.1). Its streams end with it.
    fn fail(&mut self, fault: &PeerFault) {
        debug_assert!(fault.is_of_connection);
        self.phase = ConnectionPhase::Failed;
        frame::encode_goaway(self.last, fault.code, &fault.text, &mut self.urgent);
        self.streams.clear();
        self.events.clear();
        self.ready.clear();
        (self.data, self.block, self.skip) = (None, None, 0);
        self.input.clear();
        self.timers =
            ConnectionTimers { write: self.timers.write, moved: self.timers.moved, ..ConnectionTimers::default() };
    }

    fn handle_stream_timeouts(&mut self, now: Instant) {
        let late = |stream: &&stream::Http2Stream<B, T>| stream.timeout().is_some_and(|at| at <= now);
        let late: Vec<StreamId> = self.streams.iter().filter(late).map(|stream| stream.id).collect();
        for id in late {
            let Some(stream) = self.streams.get_mut(id) else { continue };
            let is_deadline = stream.deadline.is_some_and(|at| at <= now);
            let is_sending = stream.outgoing.due.is_some_and(|at| at <= now);
            if stream.state == StreamState::Answered && !is_sending {
                // §8.1: the answer is whole, and the rest of the request is not wanted.
                frame::encode_reset(id, ErrorCode::NoError, &mut self.urgent);
                self.streams.close(id, ClosedStream::ByUs);
                continue;
            }
            self.counts.timeouts += u64::from(!is_deadline);
            match stream.incoming {
                // A client that opens no window, or a small one now and then.
                _ if is_sending => self.reset(id, ErrorCode::Cancel),
                Some(StreamContent::Call(_)) => {
                    let fault = if is_deadline { CallFault::Deadline } else { CallFault::Late };
                    self.events.push_back(receive::fault_event(stream, fault));
                }
                _ => {
                    let refusal = HttpRefusal::new(408, "the request body did not arrive in time");
                    (stream.state, stream.incoming, stream.due) = (StreamState::Answered, None, None);
                    self.send_reply(id, refusal.into_reply(), now);
                }
            }
        }
    }

    fn shrink(&mut self) {
        self.input.shrink();
        self.output.shrink();
        self.decoder.shrink();
        self.responses.shrink();
        self.streams.shrink();
        self.urgent.shrink_to_fit();
        self.head = HeadSpace::default();
    }

    /// Notes whether the connection rests, and what it waits for if not. To be called when all that
    /// came has been looked at.
    fn note_rest(&mut self, now: Instant) {
        let is_resting = self.streams.is_empty() && self.input.is_empty() && self.output.size() == 0;
        let is_large = self.input.held_size() > INPUT_SIZE_MIN || self.streams.is_large();
        if !is_resting || !is_large {
            self.timers.rest = None;
        } else if self.timers.rest.is_none() {
            self.timers.rest = Some(now + REST_TIMEOUT);
        }
        if self.has_starved {
            // At the next look at timers.
            self.timers.starved = self.timers.starved.or(Some(now));
        }
        let is_within = !self.input.is_empty() || !self.is_between_frames() && !self.is_body_open();
        if self.phase == ConnectionPhase::Serving && !self.is_blocked() {
            self.timers.frame = match self.timers.frame {
                _ if !is_within => None,
                None => Some(now + self.settings.head_timeout),
                at => at,
            };
        }
    }
}

const _: () = assert!(CONTROL_BACKLOG_SIZE_MAX < TRANSMIT_SIZE_MAX, "what is urgent fits in");
