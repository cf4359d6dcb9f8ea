//! The memory of content: counted before the content comes in, promised to a client before it may
//! send more, and handed on with the content. Without memory the request is refused; before that, a
//! client that keeps to its window is left without room for a while, since others give memory back.

use std::mem;

use crate::http2::Http2Connection;
use crate::http2::event::ConnectionEvent;
use crate::http2::incoming::{CallFault, StreamContent};
use crate::http2::stream::{Http2Stream, StreamState};
use crate::limits::RECEIVE_WAIT_MAX;
use base::budget::{ReceiveReservation, Shortage};
use base::time::Instant;
use wire::http1::HttpRefusal;
use wire::http2::StreamId;
use wire::http2::error::ErrorCode;
use wire::message::BodyBuffer;

impl<B: BodyBuffer, T> Http2Connection<B, T> {
    /// Takes the memory of the message that came out last on a stream. Memory that is left here is
    /// given back at the latest when the stream ends.
    #[inline]
    pub fn take_memory(&mut self, id: StreamId) -> ReceiveReservation {
        let Some(stream) = self.streams.get_mut(id) else { return ReceiveReservation::default() };
        stream.worked_on = stream.handed.size();
        mem::take(&mut stream.handed)
    }

    /// Returns the bytes that the heaviest stream holds: of its request, as far as it came or while
    /// it is worked on, and of its answer.
    #[inline]
    pub fn heaviest_size(&self) -> usize {
        self.heaviest().map_or(0, Http2Stream::held_size)
    }

    /// Resets that stream. Returns true if there is one.
    pub fn reset_heaviest(&mut self) -> bool {
        let Some(id) = self.heaviest().map(|stream| stream.id) else { return false };
        // Clients of gRPC read it as RESOURCE_EXHAUSTED (gRPC over HTTP/2, "Errors").
        self.reset(id, ErrorCode::EnhanceYourCalm);
        self.invariants();
        true
    }

    fn heaviest(&self) -> Option<&Http2Stream<B, T>> {
        // A stream that was reset is about to be freed.
        self.streams.iter().filter(|stream| stream.state != StreamState::Reset).max_by_key(|stream| stream.held_size())
    }

    pub(super) fn reservation(&self) -> ReceiveReservation {
        ReceiveReservation::new(self.receive.memory.clone())
    }

    /// Returns true if there is memory for the space that `body_space` will show.
    pub(super) fn has_memory_for_space(&mut self, size_max: usize) -> bool {
        let Some((id, size)) = self.reader.data.map(|frame| frame.space(size_max)) else { return false };
        let incoming = self.streams.get_mut(id).and_then(|stream| stream.incoming.as_mut());
        incoming.is_some_and(|incoming| incoming.memory().prepare(size).is_ok())
    }

    /// Content of a stream cannot be taken in.
    pub(super) fn handle_body_fault(
        &mut self,
        id: StreamId,
        fault: CallFault,
        now: Instant,
    ) -> Option<ConnectionEvent<T>> {
        let stream = self.streams.get_mut(id)?;
        let is_call = matches!(stream.incoming, Some(StreamContent::Call(_)));
        if let CallFault::Memory(shortage) = fault
            && !is_call
        {
            self.refuse_for_memory(id, shortage, now);
            return None;
        }
        self.counts.memory_refusals += u64::from(matches!(fault, CallFault::Memory(_)));
        Some(stream.fail_call(fault))
    }

    /// Refuses a plain message.
    pub(super) fn refuse_for_memory(&mut self, id: StreamId, shortage: Shortage, now: Instant) {
        self.counts.memory_refusals += 1;
        let refusal = HttpRefusal::memory(shortage.text(), shortage.is_passing());
        let _ = self.refuse(id, false, refusal, now);
    }

    /// Looks again for memory for the streams that wait for room. A client that could send nothing
    /// for [`RECEIVE_WAIT_MAX`] is refused: if it waited on, requests that each have a part of the
    /// memory could wait for each other.
    pub(super) fn handle_starved(&mut self, now: Instant) {
        (self.timers.starved, self.receive.has_starved) = (None, false);
        let starved: Vec<StreamId> =
            self.streams.iter().filter(|stream| stream.is_starved).map(|stream| stream.id).collect();
        for id in starved {
            self.update_windows(id);
            let Some(stream) = self.streams.get_mut(id).filter(|stream| stream.is_starved) else { continue };
            let since = *stream.starved_since.get_or_insert(now);
            if !stream.receive.is_used_up() || now < since + RECEIVE_WAIT_MAX {
                continue;
            }
            let none = Shortage::Busy { size_max: 0 };
            let shortage = self.receive.memory.as_ref().map_or(none, |memory| memory.shortage());
            let event = self.handle_body_fault(id, CallFault::Memory(shortage), now);
            self.events.extend(event);
        }
    }
}

impl<B: BodyBuffer, T> Http2Stream<B, T> {
    /// Bytes that it holds of its request and of its answer.
    fn held_size(&self) -> usize {
        let received = self.incoming.as_ref().map_or(0, StreamContent::held_size);
        let worked_on = if self.is_working { self.worked_on } else { 0 };
        received + self.handed.size() + worked_on + self.outgoing.size
    }

    /// Returns true if there is memory for all bytes that the client may send once it is told of
    /// the room that came back. Without memory it is not told, and sends at most the bytes that it
    /// was promised before.
    pub(super) fn has_memory_for_update(&mut self) -> bool {
        if !self.receive.is_update_due() || self.state != StreamState::Open {
            return false;
        }
        let room = usize::try_from(self.receive.room_after_update()).unwrap_or(usize::MAX);
        let left = self.content_length.map(|length| length.saturating_sub(self.content_size));
        let left = left.and_then(|left| usize::try_from(left).ok()).unwrap_or(usize::MAX);
        let Some(incoming) = &mut self.incoming else { return true };
        // A stream that rests between two messages holds nothing for the next.
        let more = room.min(left).min(incoming.left().unwrap_or(usize::MAX));
        debug_assert!(more <= room, "no more is promised than the window has");
        self.is_starved = incoming.memory().prepare(more).is_err();
        if !self.is_starved {
            self.starved_since = None;
        }
        !self.is_starved
    }
}
