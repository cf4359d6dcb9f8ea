//! The streams of a connection, and a record of those that ended.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::http2::Http2Settings;
use crate::http2::event::ConnectionEvent;
use crate::http2::flow::{ReceiveWindow, SendWindow};
use crate::http2::head::{AskedTrailers, RequestPath};
use crate::http2::incoming::{CallFault, StreamContent};
use crate::http2::response::{ResponseEnd, ResponseHead};
use base::budget::ReceiveReservation;
use base::limits::CLOSED_STREAMS_MAX;
use base::time::Instant;
use wire::compression::{Coding, ContentCoding};
use wire::http2::StreamId;
use wire::message::Fields;
use wire::trace_context::TraceContext;

/// The states of RFC 9113 §5.1 that a stream can be in here, seen from the server. An idle or
/// closed stream is not in the table, except for one whose work goes on.
///
/// ```text
///           HEADERS              END_STREAM                 the answer is out
///   (idle) ─────────► Open ──────────────────► HalfClosed ─────────────────────► (closed)
///                      │ │                       ▲    │                              ▲
///                      │ └─ the answer is known ─┼─► Answered ─ it is out: RST_STREAM(NO_ERROR) ─┤
///                      │    before its end       └─ END_STREAM ─┘                    │
///                      │                              │                              │
///                      └── RST_STREAM, a fault ───────┴─► Reset ── its work is gone ─┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamState {
    /// Its request is coming in.
    Open,
    /// Its request is coming in, and its content is thrown away.
    Answered,
    /// Its request is whole.
    HalfClosed,
    /// It was reset, and counts until its work is gone.
    Reset,
}

impl StreamState {
    /// Returns true if RFC 9113 §5.1, as drawn above, has this transition.
    const fn may_become(self, next: Self) -> bool {
        match self {
            Self::Open => !matches!(next, Self::Open),
            Self::Answered => matches!(next, Self::Answered | Self::HalfClosed | Self::Reset),
            Self::HalfClosed => matches!(next, Self::Reset),
            Self::Reset => false,
        }
    }
}

/// One stream.
pub(super) struct Http2Stream<B, T> {
    pub(super) id: StreamId,
    pub(super) state: StreamState,
    pub(super) path: RequestPath,
    /// True if it asks by HEAD, so that the answer has no body.
    pub(super) is_head_only: bool,
    /// The fields of a call, if the settings keep them, until they are taken.
    pub(super) fields: Option<Box<Fields>>,
    /// The trailers that a call's client asks for.
    pub(super) asked: AskedTrailers,
    /// True if an error must end the call with its status, instead of in band
    /// (`triton_grpc_error`).
    pub(super) wants_status: bool,
    /// The client's own trace context, if a call brings one.
    pub(super) trace_context: Option<Box<TraceContext>>,
    /// The sequence that a call's client names for balancers (`sequence-id`).
    pub(super) sequence_id: Option<Box<[u8]>>,
    /// The encoding of a call's compressed messages, and true if the message handed on last is
    /// compressed.
    pub(super) message_coding: ContentCoding,
    pub(super) is_compressed: bool,
    /// The encoding that its client takes for answers, and the one that the head of the answer names.
    pub(super) accepted_coding: Option<Coding>,
    pub(super) answer_coding: Option<Coding>,
    /// True if work on an answer is in progress.
    pub(super) is_working: bool,
    pub(super) incoming: Option<StreamContent<B, T>>,
    /// The memory of the content that was handed on last, until it is taken.
    pub(super) handed: ReceiveReservation,
    /// Bytes of content that was handed on and is worked on.
    pub(super) worked_on: usize,
    /// True if its client waits for room that there is no memory for; and the time since when.
    pub(super) is_starved: bool,
    pub(super) starved_since: Option<Instant>,
    pub(super) receive: ReceiveWindow,
    pub(super) send: SendWindow,
    pub(super) outgoing: OutgoingContent,
    /// The size that the request declares, and the size that came.
    pub(super) content_length: Option<u64>,
    pub(super) content_size: u64,
    /// The time at which a call's client gives up, while its request comes in.
    pub(super) deadline: Option<Instant>,
    /// The time by which more of the request must have come, and the bytes since that was set; once
    /// the answer is out, the time at which the rest of the request is given up.
    pub(super) due: Option<Instant>,
    pub(super) moved: usize,
}

/// The output of a stream.
#[derive(Default)]
pub(super) struct OutgoingContent {
    pub(super) head: Option<ResponseHead>,
    pub(super) is_head_sent: bool,
    pub(super) parts: VecDeque<Bytes>,
    pub(super) size: usize,
    pub(super) end: Option<ResponseEnd>,
    /// True if its end was given: nothing may follow, whether it is out or not.
    pub(super) is_ended: bool,
    /// True if it waits for its turn.
    pub(super) is_queued: bool,
    /// The time by which more must have gone, and the bytes since that was set.
    pub(super) due: Option<Instant>,
    pub(super) moved: usize,
}

impl OutgoingContent {
    /// Sets its end.
    pub(super) fn set_end(&mut self, end: ResponseEnd) {
        self.end = Some(end);
        self.is_ended = true;
    }

    /// Returns true if there is something to send.
    pub(super) const fn is_pending(&self) -> bool {
        self.head.is_some() || self.size > 0 || self.end.is_some()
    }

    /// Takes the next bytes off, at most as many as there are, piece by piece.
    pub(super) fn take_content(&mut self, mut size: usize, mut piece: impl FnMut(Bytes)) {
        debug_assert!(size <= self.size, "{size} bytes of {} are taken", self.size);
        self.size -= size;
        while let Some(part) = self.parts.front_mut().filter(|_| size > 0) {
            if part.len() > size {
                return piece(part.split_to(size));
            }
            size -= part.len();
            self.parts.pop_front().into_iter().for_each(&mut piece);
        }
    }

    pub(super) fn clear(&mut self) {
        self.parts.clear();
        let parts = std::mem::take(&mut self.parts);
        *self = Self { parts, ..Self::default() };
    }
}

impl<B, T> Http2Stream<B, T> {
    fn new(id: StreamId, receive: ReceiveWindow, send: SendWindow) -> Self {
        Self {
            id,
            state: StreamState::Open,
            path: RequestPath::new(),
            fields: None,
            is_head_only: false,
            asked: AskedTrailers::default(),
            wants_status: false,
            trace_context: None,
            sequence_id: None,
            message_coding: ContentCoding::Identity,
            is_compressed: false,
            accepted_coding: None,
            answer_coding: None,
            is_working: false,
            incoming: None,
            handed: ReceiveReservation::default(),
            worked_on: 0,
            is_starved: false,
            starved_since: None,
            receive,
            send,
            outgoing: OutgoingContent::default(),
            content_length: None,
            content_size: 0,
            deadline: None,
            due: None,
            moved: 0,
        }
    }

    /// Changes the state, along the transitions of [`StreamState`] only.
    pub(super) fn set_state(&mut self, next: StreamState) {
        debug_assert!(self.state.may_become(next), "stream {}: {:?} does not become {next:?}", self.id.0, self.state);
        self.state = next;
        // Only an open stream gets more room; without this the timer for memory would refuse a complete request.
        (self.is_starved, self.starved_since) = (false, None);
    }

    /// Gives up reading a call; the rest of its content is dropped. Returns the event that says so.
    pub(super) fn fail_call(&mut self, fault: CallFault) -> ConnectionEvent<T> {
        if self.state == StreamState::Open {
            self.set_state(StreamState::Answered);
        }
        (self.incoming, self.due, self.deadline) = (None, None, None);
        self.is_working = true;
        ConnectionEvent::Fault { stream: self.id, fault }
    }

    /// Checks the invariants between calls of the connection.
    fn invariants(&self, settings: &Http2Settings) {
        let id = self.id.0;
        debug_assert_eq!(self.receive.total(), settings.stream_window_size, "stream {id}: room was lost or made");
        debug_assert!(!self.is_starved || self.state == StreamState::Open, "stream {id}: only content needs memory");
        debug_assert!(self.outgoing.is_pending() || self.outgoing.parts.is_empty(), "stream {id}: content has a size");
        if self.state == StreamState::Reset {
            debug_assert!(self.is_working, "stream {id}: a reset stream stays for its work only");
            debug_assert!(
                self.incoming.is_none() && !self.outgoing.is_pending(),
                "stream {id}: a reset ends both sides"
            );
        }
    }

    /// Returns the time at which it must be handled even if nothing comes.
    pub(super) fn timeout(&self) -> Option<Instant> {
        let incoming = match self.state {
            StreamState::Open => [self.due, self.deadline],
            StreamState::Answered => [self.due, None],
            StreamState::HalfClosed | StreamState::Reset => [None; 2],
        };
        incoming.into_iter().chain([self.outgoing.due]).flatten().min()
    }
}

/// The way in which a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClosedStream {
    /// With both its sides, or by the client.
    ByPeer,
    /// By a reset of ours: frames on their way are no fault.
    ByUs,
}

/// The streams that are not closed, in the order of their numbers, which only rise (§5.1.1).
pub(super) struct Streams<B, T> {
    entries: Vec<Box<Http2Stream<B, T>>>,
    /// Places of earlier streams, to be used again.
    spare: Vec<Box<Http2Stream<B, T>>>,
    closed: VecDeque<(StreamId, ClosedStream)>,
    /// The largest identifier that the client used.
    last: StreamId,
    /// The number of searches of the streams that ended.
    #[cfg(test)]
    pub(super) searches: std::cell::Cell<usize>,
}

/// Places that are kept.
const SPARE_MAX: usize = 32;

impl<B, T> Streams<B, T> {
    pub(super) const fn new() -> Self {
        Self {
            entries: Vec::new(),
            spare: Vec::new(),
            closed: VecDeque::new(),
            last: StreamId::CONNECTION,
            #[cfg(test)]
            searches: std::cell::Cell::new(0),
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The largest identifier that the client used.
    pub(super) const fn last(&self) -> StreamId {
        self.last
    }

    /// The client used an identifier, above all before it (§5.1.1).
    pub(super) fn set_last(&mut self, id: StreamId) {
        debug_assert!(id.is_of_client() && id > self.last, "stream {} after {}", id.0, self.last.0);
        self.last = id;
    }

    /// Returns true if a stream was never used (§5.1).
    pub(super) fn is_idle(&self, id: StreamId) -> bool {
        id > self.last || !id.is_of_client()
    }

    /// Opens the stream that `set_last` named.
    pub(super) fn open(&mut self, id: StreamId, receive: ReceiveWindow, send: SendWindow) -> &mut Http2Stream<B, T> {
        debug_assert_eq!(id, self.last, "the newest stream is opened");
        debug_assert!(self.entries.last().is_none_or(|last| last.id < id), "entries stay sorted");
        let mut stream = self.spare.pop().unwrap_or_else(|| Box::new(Http2Stream::new(id, receive, send)));
        let outgoing = std::mem::take(&mut stream.outgoing);
        *stream = Http2Stream { outgoing, ..Http2Stream::new(id, receive, send) };
        self.entries.push(stream);
        self.entries.last_mut().expect("it was pushed just now")
    }

    pub(super) fn get(&self, id: StreamId) -> Option<&Http2Stream<B, T>> {
        self.entries.get(self.place(id)?).map(|stream| &**stream)
    }

    pub(super) fn get_mut(&mut self, id: StreamId) -> Option<&mut Http2Stream<B, T>> {
        let place = self.place(id)?;
        self.entries.get_mut(place).map(|stream| &mut **stream)
    }

    /// Ends a stream.
    pub(super) fn close(&mut self, id: StreamId, how: ClosedStream) {
        self.remember(id, how);
        let Some(place) = self.place(id) else { return };
        let mut stream = self.entries.remove(place);
        (stream.incoming, stream.fields, stream.handed) = (None, None, ReceiveReservation::default());
        stream.outgoing.clear();
        if self.spare.len() < SPARE_MAX {
            self.spare.push(stream);
        }
    }

    /// Remembers how a stream ended; the last record counts.
    pub(super) fn remember(&mut self, id: StreamId, how: ClosedStream) {
        if self.closed.len() >= CLOSED_STREAMS_MAX {
            self.closed.pop_front();
        }
        self.closed.push_back((id, how));
        debug_assert!(self.closed.len() <= CLOSED_STREAMS_MAX);
    }

    /// Returns how a stream that is not in the table ended, as far as is remembered.
    pub(super) fn closed(&self, id: StreamId) -> Option<ClosedStream> {
        #[cfg(test)]
        self.searches.set(self.searches.get() + 1);
        self.closed.iter().rev().find(|(have, _)| *have == id).map(|(_, how)| *how)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Http2Stream<B, T>> {
        self.entries.iter().map(|stream| &**stream)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Http2Stream<B, T>> {
        self.entries.iter_mut().map(|stream| &mut **stream)
    }

    /// Ends all of them.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.spare.clear();
    }

    /// Returns true if it holds only memory that an idle connection may keep.
    pub(super) const fn is_shrunk(&self) -> bool {
        self.spare.is_empty()
    }

    /// Frees memory beyond what an idle connection may keep. Forgets those ended streams that no
    /// frame is on its way to: the peer has ended them too.
    pub(super) fn shrink(&mut self) {
        self.spare = Vec::new();
        self.entries.shrink_to_fit();
        self.closed.retain(|(_, how)| *how == ClosedStream::ByUs);
        self.closed.shrink_to_fit();
    }

    /// Checks the invariants between calls of the connection.
    pub(super) fn invariants(&self, settings: &Http2Settings) {
        debug_assert!(self.len() <= usize::try_from(settings.streams_max).unwrap_or(usize::MAX), "too many streams");
        debug_assert!(self.entries.is_sorted_by_key(|stream| stream.id), "a binary search finds streams");
        debug_assert!(self.entries.last().is_none_or(|stream| stream.id <= self.last), "an open stream is not idle");
        debug_assert!(self.spare.len() <= SPARE_MAX);
        self.entries.iter().for_each(|stream| stream.invariants(settings));
    }

    fn place(&self, id: StreamId) -> Option<usize> {
        // Most often the newest is asked for.
        if self.entries.last().is_some_and(|last| last.id == id) {
            return self.entries.len().checked_sub(1);
        }
        self.entries.binary_search_by_key(&id, |stream| stream.id).ok()
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;
    use crate::http1::fuzz::PlainBody;
    use wire::http2::WINDOW_SIZE_INITIAL;

    fn open(streams: &mut Streams<PlainBody, ()>, id: u32) -> &mut Http2Stream<PlainBody, ()> {
        streams.set_last(StreamId(id));
        let (receive, send) = (ReceiveWindow::new(WINDOW_SIZE_INITIAL), SendWindow::new(WINDOW_SIZE_INITIAL));
        streams.open(StreamId(id), receive, send)
    }

    #[test]
    #[should_panic(expected = "stream 1: HalfClosed does not become Open")]
    fn a_request_that_is_complete_does_not_open_again() {
        let mut streams = Streams::new();
        let stream = open(&mut streams, 1);
        stream.set_state(StreamState::HalfClosed);
        stream.set_state(StreamState::Open);
    }

    #[test]
    #[should_panic(expected = "stream 3 after 5")]
    fn identifiers_only_rise() {
        let mut streams = Streams::new();
        open(&mut streams, 5);
        open(&mut streams, 3);
    }
}
