//! One HTTP/2 connection as a state machine (RFC 9113), the server's side: bytes in, calls and
//! messages out, answers back as frames. Called by the shard, which moves the bytes and passes in
//! the time. It knows gRPC's framing, but not the meaning of a message.
//!
//! It does not push, ignores priorities, and checks request trailers without keeping them. Its memory is bounded: by
//! the window and the largest message of each stream, by `CONTROL_BACKLOG_SIZE_MAX` for answers to control frames,
//! and by `TRANSMIT_SIZE_MAX` for frames made ahead of the socket. A peer that does not read is not read.
//!
//! ```text
//!            SETTINGS               begin_drain                 the last stream ends
//!   Preface ──────────► Serving ───────────────► (GOAWAY twice) ──────────────────────► Finished
//!      └──── a fault ──────┴──► Failed: GOAWAY is the last frame ─────────────────────────┘
//! ```

mod budget;
mod content;
mod control;
mod event;
mod flow;
#[cfg(any(test, feature = "fuzz"))]
mod fuzz;
mod head;
mod incoming;
mod keep_alive;
mod lifecycle;
mod memory;
mod output;
mod reader;
mod receive;
mod request;
mod response;
mod send;
mod sender;
mod stream;
mod timers;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use crate::http2::budget::PeerBudgets;
use crate::http2::flow::ReceiveWindow;
use crate::http2::head::HeadDecoder;
use crate::http2::incoming::StreamContent;
use crate::http2::keep_alive::{KeepAlive, KeepAliveStep};
use crate::http2::lifecycle::{ConnectionPhase, Http2Lifecycle};
use crate::http2::output::FrameQueue;
use crate::http2::reader::FrameReader;
use crate::http2::sender::FrameSender;
use crate::http2::stream::{ClosedStream, StreamState, Streams};
use crate::http2::timers::ConnectionTimers;
use crate::limits::{CONNECTION_WINDOW_SIZE, CONTROL_BACKLOG_SIZE_MAX, STREAM_WINDOW_SIZE};
use base::budget::ReceiveBudget;
use base::limits::{
    BODY_SIZE_MAX, BODY_TIMEOUT, CLIENT_RESETS_MAX, CONTROL_FRAMES_MAX, DRAIN_GRACE, FRAME_SIZE_MAX,
    GRPC_MESSAGE_SIZE_MAX, HEAD_SIZE_MAX, HEAD_TIMEOUT, IDLE_TIMEOUT, INPUT_SIZE_MIN, REST_TIMEOUT, STREAMS_MAX,
    WRITE_TIMEOUT,
};
use base::policy::KeepAlivePolicy;
use base::time::Instant;
use wire::http1::HttpRefusal;
use wire::http2::error::{ErrorCode, PeerFault};
use wire::http2::frame;
use wire::http2::settings::OurSettings;
use wire::http2::{StreamId, WINDOW_SIZE_INITIAL};
use wire::message::BodyBuffer;

pub use self::budget::Http2Limit;
pub use self::event::{ConnectionEvent, RefusedMessage};
#[cfg(any(test, feature = "fuzz"))]
pub use self::fuzz::fuzz_connection;
pub use self::head::CallDeadline;
pub use self::incoming::{CallFault, MessageDelivery, NextMessage};
pub use self::response::CallStatus;

/// The limits of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Http2Settings {
    /// Streams open at a time (`--http2-streams-max`).
    pub streams_max: u32,
    /// Resets by the client in `BUDGET_INTERVAL` (`--http2-resets-max`).
    pub client_resets_max: u32,
    /// Frames without content in `BUDGET_INTERVAL` (`--http2-control-frames-max`).
    pub control_frames_max: u32,
    /// Bytes of the fields of one request.
    pub head_size_max: usize,
    /// Bytes of the body of a plain message (`--http-max-input-size`).
    pub body_size_max: usize,
    /// Bytes of a message of a call (`--grpc-max-message-size`).
    pub message_size_max: usize,
    /// Bytes that a client may send on one stream before we send WINDOW_UPDATE.
    pub stream_window_size: u32,
    /// Bytes that a client may send on all streams before we send WINDOW_UPDATE.
    pub connection_window_size: u32,
    /// The field whose value is the offset of the byte of a plain body that must be aligned, if there is one.
    pub aligned_after: Option<&'static str>,
    /// True if a body that is too large is refused with tritonserver's status.
    pub follows_triton: bool,
    /// The protobuf field of a call's message whose first payload must be aligned.
    pub aligned_field: u32,
    /// True if the trace context of a call's client is kept.
    pub reads_trace_context: bool,
    /// The rules for PINGs, and for the age of a connection.
    pub keep_alive: KeepAlivePolicy,
    /// True if the fields of a call are kept for [`Http2Connection::field`] and
    /// [`Http2Connection::take_fields`].
    pub keeps_call_fields: bool,
    /// The beginning of the paths of calls whose fields are kept in any case; `None` for no such calls.
    pub fields_kept_below: Option<&'static [u8]>,
    /// Time from the first byte of a frame, or of a field block, until it must be complete.
    pub head_timeout: Duration,
    /// Time within which a request must bring `BODY_STEP_SIZE` bytes, or its end.
    pub body_timeout: Duration,
    /// Time within which the client must take `BODY_STEP_SIZE` bytes of an answer, or its end.
    pub write_timeout: Duration,
    /// The longest time that the connection may be without streams.
    pub idle_timeout: Duration,
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
            follows_triton: false,
            aligned_field: 0,
            reads_trace_context: false,
            keep_alive: KeepAlivePolicy::default(),
            keeps_call_fields: false,
            fields_kept_below: None,
            head_timeout: HEAD_TIMEOUT,
            body_timeout: BODY_TIMEOUT,
            write_timeout: WRITE_TIMEOUT,
            idle_timeout: IDLE_TIMEOUT,
        }
    }
}

/// Counts since the caller last took them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Http2Counts {
    /// Streams that the client reset.
    pub client_resets: u64,
    /// Streams that we reset.
    pub server_resets: u64,
    /// Requests that were refused because there was no memory for them.
    pub memory_refusals: u64,
    /// Ends by timers.
    pub timeouts: Http2Timeouts,
}

/// The number of ends by each timer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Http2Timeouts {
    /// Requests whose content came too slowly.
    pub body: u64,
    /// Connections whose frames came too slowly.
    pub head: u64,
    /// Connections without streams.
    pub idle: u64,
    /// Connections that did not answer a PING, or were too old.
    pub keep_alive: u64,
    /// Answers that were taken too slowly.
    pub write: u64,
}

/// The server's side of a connection. Owned by its shard. `T` is the caller's token for a call.
pub struct Http2Connection<B, T> {
    settings: Rc<Http2Settings>,
    lifecycle: Http2Lifecycle,
    reader: FrameReader,
    heads: HeadDecoder,
    streams: Streams<B, T>,
    receive: ReceiveRoom,
    sender: FrameSender,
    budgets: PeerBudgets,
    counts: Http2Counts,
    /// Events that arose outside `poll_event`, or more than one at a time.
    events: VecDeque<ConnectionEvent<T>>,
    timers: ConnectionTimers,
    keep_alive: KeepAlive,
}

/// The room that the client has on all streams, and the memory for it.
struct ReceiveRoom {
    window: ReceiveWindow,
    /// The budget of the shard for content, if it is bounded.
    memory: Option<Rc<dyn ReceiveBudget>>,
    /// True if a stream has waited for memory since `handle_starved` ran last.
    has_starved: bool,
}

impl<B: BodyBuffer, T> Http2Connection<B, T> {
    /// A connection whose preface was read up to its SETTINGS frame. It begins by sending our SETTINGS (§3.4).
    /// All connections of a shard share their settings.
    pub fn new(settings: impl Into<Rc<Http2Settings>>, now: Instant) -> Self {
        let (settings, mut output) = (settings.into(), FrameQueue::default());
        let ours = OurSettings {
            streams_max: settings.streams_max,
            initial_window_size: settings.stream_window_size,
            frame_size_max: FRAME_SIZE_MAX,
            field_list_size_max: u32::try_from(settings.head_size_max).unwrap_or(u32::MAX),
        };
        output.write(|out| ours.encode(out));
        // SETTINGS cannot change the connection's window (§6.9.2).
        let more = settings.connection_window_size.saturating_sub(WINDOW_SIZE_INITIAL);
        if more > 0 {
            output.write(|out| frame::encode_window_update(StreamId::CONNECTION, more, out));
        }
        let window = ReceiveWindow::new(WINDOW_SIZE_INITIAL.saturating_add(more));
        let budgets = PeerBudgets::new(settings.control_frames_max, settings.client_resets_max);
        Self {
            lifecycle: Http2Lifecycle::new(),
            reader: FrameReader::default(),
            heads: HeadDecoder::default(),
            streams: Streams::new(),
            receive: ReceiveRoom { window, memory: None, has_starved: false },
            sender: FrameSender::new(output),
            budgets: budgets.with_head_timeout(settings.head_timeout),
            counts: Http2Counts::default(),
            events: VecDeque::new(),
            timers: ConnectionTimers::new(now + settings.head_timeout),
            keep_alive: KeepAlive::new(settings.keep_alive, now),
            settings,
        }
    }

    /// Counts the memory of content against a budget. To be called before any input.
    #[inline]
    pub fn with_memory(mut self, memory: Rc<dyn ReceiveBudget>) -> Self {
        debug_assert!(self.streams.is_empty(), "streams take their budget when they open");
        self.receive.memory = Some(memory);
        self
    }

    /// Returns true if the next bytes begin a frame, and there is no buffer for them: an idle
    /// connection has none. They are then read elsewhere, for [`Self::handle_first_input`].
    #[inline]
    pub fn is_resting(&self) -> bool {
        let is_ready = !self.lifecycle.has_failed() && !self.sender.is_blocked();
        is_ready && self.reader.input.held_size() == 0 && self.reader.is_between_frames()
    }

    /// These bytes came while it rested.
    pub fn handle_first_input(&mut self, mut bytes: &[u8], now: Instant) {
        while !bytes.is_empty() {
            let space = self.input_space(bytes.len());
            let (first, rest) = bytes.split_at(space.len().min(bytes.len()));
            let Some(space) = space.get_mut(..first.len()).filter(|space| !space.is_empty()) else { return };
            space.copy_from_slice(first);
            self.handle_input(first.len(), now);
            bytes = rest;
        }
    }

    /// Returns the space for the next read: in the connection's own buffer, or in the body of a
    /// large frame. Empty while nothing may be read, because the peer does not read its answers.
    /// After a fault, the input is thrown away. For a body it has at most `body_size_max` bytes, or
    /// as many as other reads have if that is more: the space is cleared before.
    pub fn input_space(&mut self, body_size_max: usize) -> &mut [u8] {
        if self.lifecycle.has_failed() {
            return self.reader.discard_space();
        }
        if self.sender.is_blocked() {
            return &mut [];
        }
        if self.reader.input.is_empty() && self.is_body_large() && self.has_memory_for_space(body_size_max) {
            self.reader.set_direct();
            return self.body_space(body_size_max);
        }
        self.reader.space(self.settings.head_size_max)
    }

    /// `count` bytes were written to the front of `input_space`.
    pub fn handle_input(&mut self, count: usize, now: Instant) {
        if self.lifecycle.has_failed() {
            return;
        }
        self.keep_alive.handle_input(now);
        if self.reader.take_direct() {
            self.handle_body_space(count, now);
        } else {
            self.reader.handle_input(count);
        }
        self.invariants();
    }

    /// The peer closed its side. An HTTP/2 client that does so does not wait for answers.
    #[inline]
    pub const fn handle_end(&mut self) {
        self.lifecycle.end();
    }

    /// A timer may have expired.
    pub fn handle_timeout(&mut self, now: Instant) {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if self.lifecycle.has_failed() {
            if is_due(self.timers.write) {
                self.lifecycle.end();
            }
            return;
        }
        if is_due(self.timers.frame) || is_due(self.timers.block) {
            self.counts.timeouts.head += 1;
            let fault = self.budgets.exceed(Http2Limit::FrameTime);
            return self.fail(&fault);
        }
        if is_due(self.timers.write) {
            // A GOAWAY would not be read either.
            self.counts.timeouts.write += 1;
            self.lifecycle.end();
        }
        if is_due(self.lifecycle.drain_timeout()) {
            self.end_drain();
        }
        if is_due(self.timers.idle) {
            // As a drain, since a request may be on its way.
            self.timers.idle = None;
            self.counts.timeouts.idle += 1;
            let _ = self.begin_drain(now);
        }
        if is_due(self.timers.starved) {
            self.handle_starved(now);
        }
        if is_due(self.timers.rest) {
            self.timers.rest = None;
            self.shrink();
        }
        while let Some(step) = self.keep_alive.poll_step(!self.streams.is_empty(), now) {
            match step {
                KeepAliveStep::Drain => drop(self.begin_drain(now)),
                KeepAliveStep::Ping => self.sender.push_ping(),
                KeepAliveStep::End => {
                    self.counts.timeouts.keep_alive += 1;
                    self.lifecycle.end();
                }
            }
        }
        self.handle_stream_timeouts(now);
        self.invariants();
    }

    /// Returns the time at which `handle_timeout` must be called, even if nothing arrives.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.lifecycle.has_failed() {
            return self.timers.poll_timeout();
        }
        let own = [self.timers.poll_timeout(), self.lifecycle.drain_timeout(), self.keep_alive.poll_timeout()];
        let own = own.into_iter().flatten().min();
        self.streams.iter().filter_map(|stream| stream.timeout()).chain(own).min()
    }

    /// Begins to drain (§6.8): tells the client, then accepts no further streams, and ends when the
    /// open ones have. Returns true if it began now.
    pub fn begin_drain(&mut self, now: Instant) -> bool {
        let can_begin = self.lifecycle.can_announce_drain();
        if can_begin {
            self.sender.announce_drain();
            self.lifecycle.announce_drain(now + DRAIN_GRACE);
        }
        can_begin
    }

    /// Returns true if the connection may be closed: nothing is left to receive or send.
    pub fn is_finished(&self) -> bool {
        let is_sent = self.sender.is_empty();
        if self.lifecycle.is_ended() {
            return true;
        }
        if self.lifecycle.has_failed() {
            return is_sent;
        }
        let is_idle = self.streams.is_empty() && self.events.is_empty();
        is_sent && is_idle && self.lifecycle.is_drain_final()
    }

    /// Returns true if a fault of the peer ended it. The peer may not have read GOAWAY yet.
    #[inline]
    pub fn has_failed(&self) -> bool {
        self.lifecycle.has_failed()
    }

    /// The limit that ended the connection, if the peer exceeded one.
    #[inline]
    pub const fn exceeded(&self) -> Option<Http2Limit> {
        self.budgets.exceeded()
    }

    /// Takes the counts, which begin again at zero.
    #[inline]
    pub fn take_counts(&mut self) -> Http2Counts {
        std::mem::take(&mut self.counts)
    }

    /// The last stream that the client opened; the connection's own before the first.
    #[inline]
    pub const fn last_stream(&self) -> StreamId {
        self.streams.last()
    }

    /// Streams that are open, or that were reset while work for them continues.
    #[inline]
    pub const fn stream_count(&self) -> usize {
        self.streams.len()
    }

    /// Sends the second GOAWAY of a drain, which names the last stream that is served.
    fn end_drain(&mut self) {
        self.sender.push_goaway(self.streams.last(), ErrorCode::NoError, "");
        self.lifecycle.finish_drain();
    }

    /// Ends the connection for a fault of the peer (§5.4.1). Its streams end with it.
    fn fail(&mut self, fault: &PeerFault) {
        debug_assert!(fault.is_of_connection, "a stream's fault resets the stream only (§5.4.2)");
        self.lifecycle.handle_fault();
        self.sender.push_goaway(self.streams.last(), fault.code, &fault.text);
        self.sender.ready.clear();
        self.streams.clear();
        self.events.clear();
        self.reader.clear();
        self.timers.keep_write();
    }

    fn handle_stream_timeouts(&mut self, now: Instant) {
        let late = |stream: &&stream::Http2Stream<B, T>| stream.timeout().is_some_and(|at| at <= now);
        let late: Vec<StreamId> = self.streams.iter().filter(late).map(|stream| stream.id).collect();
        for id in late {
            let Some(stream) = self.streams.get_mut(id) else { continue };
            let is_deadline = stream.deadline.is_some_and(|at| at <= now);
            let is_sending = stream.outgoing.due.is_some_and(|at| at <= now);
            if stream.state == StreamState::Answered && !is_sending {
                // §8.1: the answer is complete, and the rest of the request is not needed.
                self.sender.push_reset(id, ErrorCode::NoError);
                self.streams.close(id, ClosedStream::ByUs);
                continue;
            }
            match is_sending {
                true => self.counts.timeouts.write += u64::from(!is_deadline),
                false => self.counts.timeouts.body += u64::from(!is_deadline),
            }
            match stream.incoming {
                // The client gives no room, or a little now and then.
                _ if is_sending => self.reset(id, ErrorCode::Cancel),
                Some(StreamContent::Call(_)) => {
                    let fault = if is_deadline { CallFault::Deadline } else { CallFault::Late };
                    self.events.push_back(stream.fail_call(fault));
                }
                _ => {
                    let refusal = HttpRefusal::new(408, "the request body did not arrive in time");
                    let _ = self.refuse(id, false, refusal, now);
                }
            }
        }
    }

    /// Frees buffers beyond what an idle connection may keep.
    fn shrink(&mut self) {
        self.reader.input.free();
        self.sender.shrink();
        self.heads.shrink();
        self.streams.shrink();
        self.events.shrink_to_fit();
    }

    /// Sets the timers for a connection without streams, after the last one ended or a new one
    /// began.
    fn set_idle_timers(&mut self, now: Instant) {
        let input = &self.reader.input;
        let is_resting = self.streams.is_empty() && input.is_empty() && self.sender.output.size() == 0;
        let is_large = input.held_size() > 0 || !self.streams.is_shrunk();
        if !is_resting || !is_large {
            self.timers.rest = None;
        } else if self.timers.rest.is_none() {
            self.timers.rest = Some(now + REST_TIMEOUT);
        }
        let is_unused = self.streams.is_empty() && self.lifecycle.can_announce_drain();
        if !is_unused {
            self.timers.idle = None;
        } else if self.timers.idle.is_none() && self.lifecycle.phase() == ConnectionPhase::Serving {
            self.timers.idle = Some(now + self.settings.idle_timeout);
        }
    }

    /// All input was read: sets the timers for an idle connection, for memory, and for the frame that has begun.
    fn handle_all_read(&mut self, now: Instant) {
        self.set_idle_timers(now);
        let input = &self.reader.input;
        if self.receive.has_starved {
            // Due at once: memory may be released at any time, and the shard checks its timers in steps.
            self.timers.starved = self.timers.starved.or(Some(now));
        }
        let is_within = !input.is_empty() || !self.reader.is_between_frames() && !self.is_body_open();
        if self.lifecycle.phase() == ConnectionPhase::Serving && !self.sender.is_blocked() {
            self.timers.frame = match self.timers.frame {
                _ if !is_within => None,
                None => Some(now + self.settings.head_timeout),
                at => at,
            };
        }
    }

    /// Checks the invariants between calls. Costs a scan of the streams, in debug builds only.
    fn invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        self.reader.invariants();
        self.streams.invariants(&self.settings);
        let Self { settings, receive, sender, timers, .. } = self;
        debug_assert_eq!(receive.window.total(), settings.connection_window_size.max(WINDOW_SIZE_INITIAL));
        debug_assert_eq!(timers.block.is_some(), self.reader.block.is_some(), "a field block has its timer");
        if self.lifecycle.has_failed() {
            debug_assert!(self.streams.is_empty() && self.events.is_empty() && sender.ready.is_empty());
            debug_assert!(self.reader.is_between_frames(), "after a fault no frame is read");
        }
        let queued = self.streams.iter().filter(|stream| stream.outgoing.is_queued).count();
        debug_assert!(queued <= sender.ready.len(), "a stream that waits for its turn is in the queue");
        // One frame is read beyond the backlog; timers may add a reset or an update for each stream.
        let one_frame = 4 * settings.head_size_max.max(INPUT_SIZE_MIN);
        let of_streams = 64 * usize::try_from(settings.streams_max).unwrap_or(usize::MAX);
        let largest = CONTROL_BACKLOG_SIZE_MAX.saturating_add(one_frame).saturating_add(of_streams);
        debug_assert!(sender.urgent_size() <= largest, "{} bytes are urgent", sender.urgent_size());
    }
}
