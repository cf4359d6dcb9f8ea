//! One HTTP/1.1 connection as a state machine: bytes in, whole messages and refusals out, replies
//! back in order. Called by the shard, which moves the bytes and tells the time. It does not know
//! the meaning of a message. Bounded by its settings: one head, one body, and a little of the input
//! behind a message that is being answered.
//!
//! ```text
//!          ┌──────────── encode_head, connection stays ────────────┐
//!          ▼                                                       │
//! new ─► Head ──head──► Body ──last byte──► (message) ────────► Replying
//!          │              │                                        │  begin_stream, encode_part, end_stream:
//!          │              │                                        │  the same for a reply in parts
//!          └─ refusal, timeout, end ─► Closed ◄── connection ends ─┘
//! ```

#[cfg(any(test, feature = "fuzz"))]
pub(super) mod fuzz;
mod incoming;

#[cfg(test)]
mod aligned_tests;
#[cfg(test)]
mod tests;

use std::mem;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;

use crate::limits::{BLANK_LINES_MAX, RECEIVE_WAIT_MAX};
use base::budget::{ReceiveBudget, ReceiveReservation, Shortage};
use base::limits::{BODY_SIZE_MAX, BODY_STEP_SIZE, BODY_TIMEOUT, HEAD_SIZE_MAX, HEAD_TIMEOUT, IDLE_TIMEOUT, READ_SIZE};
use base::time::Instant;
use wire::http1::reply::{self, BodyFraming, CONTINUE, ConnectionOption, LAST_CHUNK};
use wire::http1::section::SectionScan;
use wire::http1::{HttpRefusal, head};
use wire::message::{BodyBuffer, Fields, Message, Reply};

#[cfg(any(test, feature = "fuzz"))]
pub use self::fuzz::fuzz_connection;

use self::incoming::IncomingMessage;
use crate::input::InputBuffer;

/// The bounds of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Http1Settings {
    /// Bytes of a request head, or of the trailers of one body.
    pub head_size_max: usize,
    /// Bytes of a body (`--http-max-input-size`).
    pub body_size_max: usize,
    /// The field whose value is the offset of the byte of the body that must be aligned, if there
    /// is one.
    pub aligned_after: Option<&'static str>,
    /// A head must be complete within this time after its first byte.
    pub head_timeout: Duration,
    /// A body must bring `BODY_STEP_SIZE` bytes, or its end, within this time.
    pub body_timeout: Duration,
    /// The longest time that the connection may be idle between requests.
    pub idle_timeout: Duration,
}

impl Default for Http1Settings {
    fn default() -> Self {
        Self {
            head_size_max: HEAD_SIZE_MAX,
            body_size_max: BODY_SIZE_MAX,
            aligned_after: None,
            head_timeout: HEAD_TIMEOUT,
            body_timeout: BODY_TIMEOUT,
            idle_timeout: IDLE_TIMEOUT,
        }
    }
}

/// The part that a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AwaitedPart {
    /// The rest of a body.
    Body,
    /// The rest of a head.
    Head,
    /// The next request.
    Request,
}

/// The server's side of a connection. Lives on its shard.
pub struct Http1Connection<B> {
    settings: Http1Settings,
    input: InputBuffer,
    state: Http1State<B>,
    /// The budget for the memory of bodies, if it is bounded.
    memory: Option<Rc<dyn ReceiveBudget>>,
    /// The memory of the message that came out last, until it is taken.
    handed: ReceiveReservation,
    /// The time since when a body waits for memory. Meanwhile nothing is read.
    starved_since: Option<Instant>,
    /// The time at which the first bytes of the current message came.
    began: Instant,
    /// The time at which `handle_timeout` is due.
    deadline: Option<Instant>,
    /// The `Connection` field of the reply in progress, unless the connection ends.
    option: ConnectionOption,
    /// True if the request is of HTTP/1.1, whose clients take interim responses.
    is_current: bool,
    /// True if the request asked by HEAD, so that the reply has no body.
    is_head_only: bool,
    /// The framing of the reply in progress, if it comes in parts.
    stream: Option<BodyFraming>,
    is_draining: bool,
    is_ended: bool,
    is_interim_due: bool,
    /// The path and the fields of a message whose body was refused.
    refused: Option<Box<(Bytes, Fields)>>,
}

#[expect(clippy::large_enum_variant, reason = "a box would be an allocation for each request")]
enum Http1State<B> {
    /// Between messages, or within a head.
    Head { scan: SectionScan, blank_line_count: usize, is_begun: bool },
    /// Within a body; `moved` bytes came since its deadline was set.
    Body { incoming: IncomingMessage<B>, moved: usize },
    /// A message is out and its reply is awaited.
    Replying,
    /// No further message comes out.
    Closed,
}

impl<B: BodyBuffer> Http1Connection<B> {
    /// A connection that has just been accepted. Its idle time begins with the first
    /// `poll_message`.
    pub fn new(settings: Http1Settings) -> Self {
        Self {
            settings,
            input: InputBuffer::default(),
            state: Http1State::between(&settings),
            memory: None,
            handed: ReceiveReservation::default(),
            starved_since: None,
            began: Instant::ZERO,
            deadline: None,
            option: ConnectionOption::None,
            is_current: false,
            is_head_only: false,
            stream: None,
            is_draining: false,
            is_ended: false,
            is_interim_due: false,
            refused: None,
        }
    }

    /// The same, with messages that take their memory from a budget.
    #[inline]
    pub fn with_memory(self, memory: Rc<dyn ReceiveBudget>) -> Self {
        Self { memory: Some(memory), ..self }
    }

    /// Returns the space for the next bytes: in the connection's own buffer, or in the body's.
    /// Empty only while a message is being answered and enough input is here behind it, or while a
    /// body waits for memory. After a refusal the input is thrown away, so that the caller can read
    /// on until the client has seen the refusal. For a body it has at most `body_size_max` bytes,
    /// or [`READ_SIZE`] if that is more: the space is cleared before.
    pub fn input_space(&mut self, body_size_max: usize) -> &mut [u8] {
        let size_max = match &mut self.state {
            Http1State::Head { .. } => self.settings.head_size_max.max(READ_SIZE),
            Http1State::Body { .. } if self.starved_since.is_some() => return &mut [],
            Http1State::Body { incoming, .. } => {
                if incoming.is_direct(&self.input) {
                    return incoming.space(body_size_max);
                }
                incoming.input_size_max().max(READ_SIZE)
            }
            Http1State::Replying => READ_SIZE,
            Http1State::Closed => {
                self.input.clear();
                READ_SIZE
            }
        };
        self.input.spare(size_max)
    }

    /// `count` bytes were written to the front of `input_space`.
    pub fn handle_input(&mut self, count: usize, now: Instant) {
        match &mut self.state {
            Http1State::Head { is_begun, .. } => {
                self.input.commit(count);
                if count > 0 && !mem::replace(is_begun, true) {
                    self.began = now;
                    self.deadline = Some(now + self.settings.head_timeout);
                }
            }
            Http1State::Body { incoming, moved } => {
                if incoming.is_direct(&self.input) {
                    incoming.handle_space(count);
                } else {
                    self.input.commit(count);
                }
                self.is_interim_due &= count == 0;
                *moved = moved.saturating_add(count);
                if *moved >= BODY_STEP_SIZE {
                    *moved = 0;
                    self.deadline = Some(now + self.settings.body_timeout);
                }
            }
            Http1State::Replying => self.input.commit(count),
            Http1State::Closed => {}
        }
        self.invariants();
    }

    /// The peer closed its side: the input so far is still answered, and no further input will
    /// come.
    pub const fn handle_end(&mut self) {
        self.is_ended = true;
    }

    /// A timer may have expired. Returns a refusal to answer with before closing; `None` with
    /// `is_closing` if the connection was merely idle, and `None` without it if nothing was
    /// overdue.
    pub fn handle_timeout(&mut self, now: Instant) -> Option<HttpRefusal> {
        if self.deadline.is_none_or(|deadline| deadline > now) {
            return None;
        }
        if let Some(since) = self.starved_since {
            if now < since + RECEIVE_WAIT_MAX {
                // `poll_message` checks for memory now.
                return None;
            }
            let none = Shortage::Busy { size_max: 0 };
            let shortage = self.memory.as_ref().map_or(none, |memory| memory.shortage());
            self.close();
            return Some(incoming::refusal(shortage));
        }
        let text = match self.state {
            Http1State::Head { is_begun: false, .. } => None,
            Http1State::Head { .. } => Some("the request head did not arrive in time"),
            Http1State::Body { .. } => Some("the request body did not arrive in time"),
            Http1State::Replying | Http1State::Closed => return None,
        };
        self.close();
        text.map(|text| HttpRefusal::new(408, text))
    }

    /// Returns the next whole message, once the one before is answered. After a refusal is answered
    /// the connection ends.
    pub fn poll_message(&mut self, now: Instant) -> Result<Option<Message>, HttpRefusal> {
        let polled = self.poll_states(now);
        if polled.is_err() {
            self.close();
        }
        self.invariants();
        polled
    }

    /// Takes the path and the fields of the message whose body was refused last.
    pub fn take_refused(&mut self) -> Option<Box<(Bytes, Fields)>> {
        self.refused.take()
    }

    /// Returns the interim response for a client that waits before it sends a body, once. To be
    /// called after `poll_message` had no message.
    #[inline]
    pub fn take_interim(&mut self) -> Option<&'static [u8]> {
        let is_due = self.is_interim_due && self.starved_since.is_none();
        self.is_interim_due &= !is_due;
        is_due.then_some(CONTINUE)
    }

    /// The memory of the message that came out last.
    #[inline]
    pub fn take_memory(&mut self) -> ReceiveReservation {
        mem::take(&mut self.handed)
    }

    /// Returns the time at which the first bytes of the message that came out last were here.
    pub const fn began(&self) -> Instant {
        self.began
    }

    /// Returns true if the client of the message that came out last may be sent an interim response
    /// before its reply (RFC 9110 §15.2).
    #[inline]
    pub const fn takes_interim(&self) -> bool {
        self.is_current && self.stream.is_none() && matches!(self.state, Http1State::Replying)
    }

    /// Returns true if a reply in chunks is in progress.
    #[inline]
    pub fn takes_chunks(&self) -> bool {
        self.stream == Some(BodyFraming::Chunked)
    }

    /// Returns true if a body waits for memory, so that nothing is read, though the rest of it may
    /// be here.
    #[inline]
    pub const fn is_starved(&self) -> bool {
        self.starved_since.is_some()
    }

    /// Returns the time at which `handle_timeout` must be called, even if nothing arrives.
    pub const fn poll_timeout(&self) -> Option<Instant> {
        self.deadline
    }

    /// Appends the head of the reply to the message that came out last, or to a refusal. Returns
    /// true if the reply's body follows it.
    pub fn encode_head(&mut self, reply: &Reply, out: &mut Vec<u8>) -> bool {
        let is_last = !matches!(self.state, Http1State::Replying) || self.is_closing();
        let option = if is_last { ConnectionOption::Close } else { self.option };
        reply::encode_head(reply, option, BodyFraming::Length, out);
        let has_body = !self.is_head_only && reply::has_length(reply.status);
        self.is_head_only = false;
        self.end_reply(is_last);
        has_body
    }

    /// Appends the head of a reply in parts to the message that came out last. A client of HTTP/1.0 knows no chunks
    /// (RFC 9112 §7.1), so that its connection ends with the reply.
    pub fn begin_stream(&mut self, reply: &Reply, out: &mut Vec<u8>) {
        debug_assert!(matches!(self.state, Http1State::Replying), "a reply has its message");
        if !self.is_current {
            self.option = ConnectionOption::Close;
        }
        let option = if self.is_closing() { ConnectionOption::Close } else { self.option };
        let framing = if self.is_current { BodyFraming::Chunked } else { BodyFraming::Close };
        reply::encode_head(reply, option, framing, out);
        self.stream = Some(framing);
    }

    /// Appends a part of the reply in progress.
    pub fn encode_part(&self, part: &[u8], out: &mut Vec<u8>) {
        debug_assert!(self.stream.is_some(), "a part has its head");
        if self.takes_chunks() && !part.is_empty() {
            reply::encode_chunk(part, out);
        } else {
            out.extend_from_slice(part);
        }
    }

    /// Appends the end of the reply in progress.
    pub fn end_stream(&mut self, out: &mut Vec<u8>) {
        if self.takes_chunks() {
            out.extend_from_slice(LAST_CHUNK);
        }
        self.end_reply(self.is_closing());
    }

    /// Lets the connection end as soon as the input so far is answered: the last reply says so.
    pub const fn close_after_reply(&mut self) {
        self.is_draining = true;
    }

    /// Returns true if the connection ends after the reply in progress, or now without one.
    pub fn is_closing(&self) -> bool {
        let is_nothing_left = (self.is_draining || self.is_ended) && self.input.is_empty();
        match self.state {
            Http1State::Head { .. } => is_nothing_left,
            Http1State::Body { .. } => false,
            Http1State::Replying => self.option == ConnectionOption::Close || is_nothing_left,
            Http1State::Closed => true,
        }
    }

    /// Returns true if a part of a message has come, and the rest is awaited.
    pub fn is_within_message(&self) -> bool {
        match self.state {
            Http1State::Head { .. } => !self.input.is_empty(),
            Http1State::Body { .. } => true,
            Http1State::Replying | Http1State::Closed => false,
        }
    }

    /// Returns the time since when the connection waits for a request or for the rest of its head,
    /// where `answered_at` is the end of the last one; `None` while it has a request or its body
    /// comes in.
    pub fn waits_since(&self, answered_at: Instant) -> Option<Instant> {
        match self.state {
            Http1State::Head { .. } if self.input.is_empty() => Some(answered_at),
            Http1State::Head { .. } => Some(self.began),
            Http1State::Body { .. } | Http1State::Replying | Http1State::Closed => None,
        }
    }

    /// Returns the part whose timer `handle_timeout` would refuse by.
    pub fn awaited(&self) -> AwaitedPart {
        match self.state {
            Http1State::Head { is_begun: false, .. } => AwaitedPart::Request,
            Http1State::Head { .. } => AwaitedPart::Head,
            Http1State::Body { .. } | Http1State::Replying | Http1State::Closed => AwaitedPart::Body,
        }
    }

    /// Returns true if bytes have come that no message has taken yet.
    #[inline]
    pub fn has_unread_input(&self) -> bool {
        !self.input.is_empty()
    }

    /// Returns the bytes of memory held for input.
    pub fn held_size(&self) -> usize {
        let body_size = match &self.state {
            Http1State::Body { incoming, .. } => incoming.held_size(),
            _ => 0,
        };
        self.input.held_size().saturating_add(body_size)
    }

    fn poll_states(&mut self, now: Instant) -> Result<Option<Message>, HttpRefusal> {
        if matches!(self.state, Http1State::Head { .. }) {
            self.poll_head(now)?;
        }
        if self.poll_memory(now)?
            && let Http1State::Body { incoming, .. } = &mut self.state
            && incoming.poll_complete(&mut self.input)?
        {
            return Ok(self.take_message());
        }
        // For the next read.
        if !self.poll_memory(now)? {
            return Ok(None);
        }
        // The peer closed its side within a message: no later byte can complete it.
        if self.is_ended && self.is_within_message() {
            return Err(HttpRefusal::malformed("the connection ended within the request"));
        }
        Ok(None)
    }

    /// Returns true if there is memory for the bytes of a body that are here and for those that are
    /// read next. Without memory the connection waits: its client is not read.
    fn poll_memory(&mut self, now: Instant) -> Result<bool, HttpRefusal> {
        let Http1State::Body { incoming, .. } = &mut self.state else { return Ok(true) };
        match incoming.poll_memory(&self.input) {
            Ok(()) => {
                if self.starved_since.take().is_some() {
                    self.deadline = Some(now + self.settings.body_timeout);
                }
                Ok(true)
            }
            Err(Shortage::Busy { .. }) => {
                self.starved_since = self.starved_since.or(Some(now));
                // At the next look at timers.
                self.deadline = Some(now);
                Ok(false)
            }
            Err(shortage) => Err(incoming::refusal(shortage)),
        }
    }

    /// Goes on to the body once the head is whole.
    fn poll_head(&mut self, now: Instant) -> Result<(), HttpRefusal> {
        self.skip_blank_lines()?;
        self.set_head_deadline(now);
        let Http1State::Head { scan, .. } = &mut self.state else { return Ok(()) };
        let Some(size) = scan.poll_end(self.input.pending())? else { return Ok(()) };
        let line_count = scan.line_count();
        let section = self.input.pending().get(..size).unwrap_or_default();
        // Known before the head is decoded, since a refusal may not have a body either.
        self.is_head_only = section.starts_with(b"HEAD ");
        let head = head::decode(section, line_count, self.settings.aligned_after)?;
        self.input.consume(size);
        self.option = match (head.is_persistent, head.is_current) {
            (false, _) => ConnectionOption::Close,
            (true, false) => ConnectionOption::KeepAlive,
            (true, true) => ConnectionOption::None,
        };
        self.is_current = head.is_current;
        let expects_continue = head.expects_continue;
        let memory = ReceiveReservation::new(self.memory.clone());
        let size = match incoming::body_size(&head, &memory, self.settings.body_size_max) {
            Ok(size) => size,
            Err(refusal) => {
                self.refused = Some(Box::new((head.path, head.fields)));
                return Err(refusal);
            }
        };
        let incoming =
            IncomingMessage::new(head, size, memory, self.settings.body_size_max, self.settings.head_size_max);
        self.is_interim_due = expects_continue && incoming.is_untouched() && self.input.is_empty();
        debug_assert!(self.starved_since.is_none(), "a body waits for memory after its head");
        self.state = Http1State::Body { incoming, moved: 0 };
        self.deadline = Some(now + self.settings.body_timeout);
        Ok(())
    }

    // RFC 9112 §2.2: a server should skip an empty line before the request line.
    fn skip_blank_lines(&mut self) -> Result<(), HttpRefusal> {
        let Http1State::Head { blank_line_count, .. } = &mut self.state else { return Ok(()) };
        while self.input.pending().starts_with(b"\r\n") {
            *blank_line_count += 1;
            if *blank_line_count > BLANK_LINES_MAX {
                return Err(HttpRefusal::malformed("too many empty lines before the request line"));
            }
            self.input.consume(2);
        }
        Ok(())
    }

    /// Begins the idle time, or the time of a head that came with the message before.
    fn set_head_deadline(&mut self, now: Instant) {
        let Http1State::Head { is_begun, .. } = &mut self.state else { return };
        let was_begun = mem::replace(is_begun, !self.input.is_empty());
        if *is_begun == was_begun && self.deadline.is_some() {
            return;
        }
        if *is_begun {
            self.began = now;
            self.deadline = Some(now + self.settings.head_timeout);
        } else {
            self.deadline = Some(now + self.settings.idle_timeout);
            self.input.shrink();
        }
    }

    fn take_message(&mut self) -> Option<Message> {
        self.deadline = None;
        self.is_interim_due = false;
        match mem::replace(&mut self.state, Http1State::Replying) {
            Http1State::Body { mut incoming, .. } => {
                self.handed = incoming.take_memory();
                Some(incoming.into_message())
            }
            _ => None,
        }
    }

    /// Checks the invariants between calls, in constant time.
    fn invariants(&self) {
        let is_body = matches!(self.state, Http1State::Body { .. });
        debug_assert!(is_body || self.starved_since.is_none(), "only a body waits for memory");
        debug_assert!(is_body || !self.is_interim_due, "100 Continue is due before a body only");
        if let Http1State::Body { moved, .. } = self.state {
            debug_assert!(self.deadline.is_some(), "a body has its timer");
            debug_assert!(moved < BODY_STEP_SIZE, "a step that was made restarts the timer");
        }
        if let Http1State::Head { blank_line_count, .. } = self.state {
            debug_assert!(blank_line_count <= BLANK_LINES_MAX, "more end the connection");
        }
        if let Http1State::Closed = self.state {
            debug_assert!(self.deadline.is_none(), "a closed connection has no timer");
        }
    }

    fn end_reply(&mut self, is_last: bool) {
        self.stream = None;
        if is_last {
            self.close();
        } else {
            self.state = Http1State::between(&self.settings);
        }
    }

    fn close(&mut self) {
        if let Http1State::Body { incoming, .. } = mem::replace(&mut self.state, Http1State::Closed) {
            self.refused = Some(Box::new(incoming.into_head()));
        }
        (self.deadline, self.starved_since) = (None, None);
        self.is_interim_due = false;
        self.input.clear();
    }
}

impl<B> Http1State<B> {
    const fn between(settings: &Http1Settings) -> Self {
        Self::Head { scan: SectionScan::head(settings.head_size_max), blank_line_count: 0, is_begun: false }
    }
}
