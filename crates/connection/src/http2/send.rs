//! Answers on their way out: calls and replies take their turns, each a frame or a few, so that a
//! small one does not wait for a large one to end; flow control bounds the size of each.

use std::time::Duration;

use bytes::Bytes;

use crate::http2::Http2Connection;
use crate::http2::event::ConnectionEvent;
use crate::http2::head::AskedTrailers;
use crate::http2::incoming::{CallFault, MessageDelivery, NextMessage, StreamContent};
use crate::http2::response::{CallStatus, ResponseEnd, ResponseFrames, ResponseHead};
use crate::http2::sender::FrameSender;
use crate::http2::stream::{ClosedStream, Http2Stream, OutgoingContent, StreamState};
use crate::limits::{CONTROL_BACKLOG_SIZE_MAX, SEND_QUANTUM};
use base::limits::BODY_STEP_SIZE;
use base::time::Instant;
use wire::compression::{Coding, ContentCoding};
use wire::http1::reply::has_length;
use wire::http2::StreamId;
use wire::http2::error::ErrorCode;
use wire::http2::frame::{self, FrameKind};
use wire::message::{BodyBuffer, Fields, Reply};
use wire::trace_context::TraceContext;

/// The time for which a client may go on sending to a stream after its answer.
const RESET_GRACE: Duration = Duration::from_millis(100);

/// The outcome of a stream's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendTurn {
    /// The connection's window has no room.
    Blocked,
    /// The answer is out.
    Done,
    /// All that there is so far is out.
    Idle,
    /// Others are due.
    Over,
    /// Its own window has no room.
    Stalled,
}

impl<B: BodyBuffer, T> Http2Connection<B, T> {
    /// The path of a call, without the query.
    #[inline]
    pub fn path(&self, stream: StreamId) -> &[u8] {
        self.streams.get(stream).map_or(&[], |stream| &stream.path)
    }

    /// Returns the value of a call's field, if the settings keep the fields.
    #[inline]
    pub fn field(&self, stream: StreamId, name: &str) -> Option<&[u8]> {
        self.streams.get(stream)?.fields.as_ref()?.get(name)
    }

    /// Takes the fields of a call, if the settings keep them.
    pub fn take_fields(&mut self, stream: StreamId) -> Option<Box<Fields>> {
        if !self.settings.keeps_call_fields && self.settings.fields_kept_below.is_none() {
            return None;
        }
        self.streams.get_mut(stream)?.fields.take()
    }

    /// Returns true if an error must end a call with its status, instead of in band.
    #[inline]
    pub fn wants_status(&self, stream: StreamId) -> bool {
        self.streams.get(stream).is_some_and(|stream| stream.wants_status)
    }

    /// Returns the trailers that a call's client asks for.
    #[inline]
    pub fn asked(&self, stream: StreamId) -> AskedTrailers {
        self.streams.get(stream).map_or_else(AskedTrailers::default, |stream| stream.asked)
    }

    /// Returns the trace context of a call's client.
    #[inline]
    pub fn trace_context(&self, stream: StreamId) -> Option<TraceContext> {
        self.streams.get(stream)?.trace_context.as_deref().cloned()
    }

    /// Takes the sequence that a call's client names for balancers on the way (`sequence-id`); it
    /// is no longer kept.
    #[inline]
    pub fn take_sequence_id(&mut self, stream: StreamId) -> Option<Box<[u8]>> {
        self.streams.get_mut(stream)?.sequence_id.take()
    }

    /// Returns the encoding of a call's compressed messages, by its head.
    #[inline]
    pub fn message_coding(&self, stream: StreamId) -> ContentCoding {
        self.streams.get(stream).map_or(ContentCoding::Identity, |stream| stream.message_coding)
    }

    /// Returns the encoding of the message of a call that was handed out last; `None` if it is
    /// plain.
    pub fn handed_coding(&self, stream: StreamId) -> Option<Coding> {
        match self.streams.get(stream).filter(|stream| stream.is_compressed)?.message_coding {
            ContentCoding::Coded(coding) => Some(coding),
            ContentCoding::Identity | ContentCoding::Unknown => None,
        }
    }

    /// The encoding that a call's client takes for answers.
    #[inline]
    pub fn accepted_coding(&self, stream: StreamId) -> Option<Coding> {
        self.streams.get(stream)?.accepted_coding
    }

    /// Sets the encoding of some messages of the answer to a call; its head, which was not sent,
    /// will name it.
    pub fn set_answer_coding(&mut self, stream: StreamId, coding: Coding) {
        if let Some(stream) = self.streams.get_mut(stream) {
            debug_assert!(!stream.outgoing.is_head_sent, "a head cannot be changed behind its back");
            stream.answer_coding = Some(coding);
        }
    }

    /// Sets the delivery of a call's messages. To be called once, when it begins.
    pub fn accept_call(&mut self, id: StreamId, plan: MessageDelivery<T>) {
        let Some(stream) = self.streams.get_mut(id) else { return };
        let Some(StreamContent::Call(call)) = &mut stream.incoming else { return };
        let is_each = matches!(plan, MessageDelivery::Each);
        call.set_plan(plan);
        if is_each {
            (stream.is_working, stream.due) = (true, None);
        }
        // The call consisted of its head alone.
        if stream.state == StreamState::HalfClosed {
            let end = self.end_call_body(id);
            self.events.extend(end);
        }
    }

    /// The next message of a call that is handed out one by one.
    pub fn take_next(&mut self, id: StreamId) -> Result<NextMessage, CallFault> {
        let Some(stream) = self.streams.get_mut(id) else { return Ok(NextMessage::Nothing) };
        let is_ended = stream.state == StreamState::HalfClosed;
        let Some(StreamContent::Call(call)) = &mut stream.incoming else { return Ok(NextMessage::Nothing) };
        let (taken, placed) = call.take_next(is_ended)?;
        if let NextMessage::Message(message) = &taken {
            stream.handed = call.take_memory(Some(message));
            stream.is_compressed = call.is_taken_compressed();
        }
        stream.receive.give_back(placed);
        self.update_windows(id);
        Ok(taken)
    }

    /// Answers with a plain reply.
    pub fn send_reply(&mut self, id: StreamId, mut reply: Reply, now: Instant) {
        let Some(stream) = self.unanswered(id) else { return };
        let body_size = reply.body_size();
        let body = std::mem::take(&mut reply.body);
        let outgoing = &mut stream.outgoing;
        if has_length(reply.status) && !stream.is_head_only {
            debug_assert!(outgoing.parts.is_empty(), "a message has one reply");
            outgoing.parts.extend(body.into_iter().filter(|part| !part.is_empty()));
            outgoing.size = body_size;
        }
        outgoing.head = Some(ResponseHead::Reply(Some(Box::new(reply)), Some(body_size)));
        outgoing.set_end(ResponseEnd::Plain);
        debug_assert!(outgoing.size == 0 || outgoing.size == body_size, "a body is sent whole or not at all");
        stream.is_working = false;
        self.queue(id, now);
    }

    /// Begins a reply whose body comes in parts.
    pub fn begin_reply(&mut self, id: StreamId, reply: Reply, now: Instant) {
        let Some(stream) = self.unanswered(id) else { return };
        debug_assert!(!stream.outgoing.is_head_sent, "a message has one reply");
        stream.outgoing.head = Some(ResponseHead::Reply(Some(Box::new(reply)), None));
        self.queue(id, now);
    }

    /// Sends a part of the reply in progress.
    pub fn send_part(&mut self, id: StreamId, part: Bytes, now: Instant) {
        let Some(stream) = self.unanswered(id) else { return };
        push(&mut stream.outgoing, [part]);
        self.budgets.handle_message();
        self.queue(id, now);
    }

    /// Ends the reply in progress.
    pub fn end_reply(&mut self, id: StreamId, now: Instant) {
        let Some(stream) = self.unanswered(id) else { return };
        stream.outgoing.set_end(ResponseEnd::Plain);
        stream.is_working = false;
        self.queue(id, now);
    }

    /// Tells a client that waits with its body to send it (RFC 9110 §10.1.1).
    pub(super) fn send_continue(&mut self, id: StreamId, now: Instant) {
        if let Some(stream) = self.streams.get_mut(id) {
            stream.outgoing.head = Some(ResponseHead::Reply(None, None));
            self.queue(id, now);
        }
    }

    /// Answers a call with one message, given in parts, and its end.
    pub fn send_answer(&mut self, id: StreamId, message: impl IntoIterator<Item = Bytes>, now: Instant) {
        self.send_answer_and_status(id, message, None, now);
    }

    /// The same with a status that says more than success.
    pub fn send_answer_and_status(
        &mut self,
        id: StreamId,
        message: impl IntoIterator<Item = Bytes>,
        status: Option<CallStatus>,
        now: Instant,
    ) {
        let Some(stream) = self.unanswered(id) else { return };
        stream.outgoing.head = Some(ResponseHead::Grpc(stream.answer_coding));
        push(&mut stream.outgoing, message);
        stream.outgoing.set_end(ResponseEnd::Grpc(status.map(Box::new)));
        stream.is_working = false;
        self.queue(id, now);
    }

    /// Sends a message of a call that may have more.
    pub fn send_message(&mut self, id: StreamId, message: impl IntoIterator<Item = Bytes>, now: Instant) {
        let Some(stream) = self.unanswered(id) else { return };
        if !stream.outgoing.is_head_sent {
            stream.outgoing.head = Some(ResponseHead::Grpc(stream.answer_coding));
        }
        push(&mut stream.outgoing, message);
        self.budgets.handle_message();
        self.queue(id, now);
    }

    /// Ends a call, with success if there is no status.
    pub fn end_call(&mut self, id: StreamId, status: Option<CallStatus>, now: Instant) {
        let Some(stream) = self.unanswered(id) else { return };
        if !stream.outgoing.is_head_sent {
            stream.outgoing.head = Some(ResponseHead::Grpc(stream.answer_coding));
        }
        stream.outgoing.set_end(ResponseEnd::Grpc(status.map(Box::new)));
        stream.is_working = false;
        if stream.state == StreamState::Open {
            // Further input of it is thrown away, also while its end waits for its turn.
            stream.set_state(StreamState::Answered);
            (stream.incoming, stream.due, stream.deadline) = (None, None, None);
        }
        self.queue(id, now);
    }

    /// Returns a stream that an answer may go to. A stream whose answer has its end takes nothing
    /// further, and no longer counts as working: a call that is refused while it works is ended
    /// twice.
    fn unanswered(&mut self, id: StreamId) -> Option<&mut Http2Stream<B, T>> {
        let stream = self.streams.get_mut(id).filter(|stream| stream.state != StreamState::Reset)?;
        if stream.outgoing.is_ended {
            stream.is_working = false;
            return None;
        }
        Some(stream)
    }

    /// Returns true if the connection has nothing unsent of a stream.
    #[inline]
    pub fn has_room(&self, id: StreamId) -> bool {
        self.streams.get(id).is_none_or(|stream| !stream.outgoing.is_pending())
    }

    /// The work on a stream has ended. If it gave no answer, the stream is reset.
    pub fn handle_gone(&mut self, id: StreamId) {
        match self.streams.get(id) {
            // It stays closed by the same side: frames under way to a stream that we reset are no
            // fault.
            Some(stream) if stream.state == StreamState::Reset => {
                let how = self.streams.closed(id).unwrap_or(ClosedStream::ByPeer);
                self.streams.close(id, how);
            }
            Some(stream) if stream.is_working => {
                self.reset(id, ErrorCode::InternalError);
                self.streams.close(id, ClosedStream::ByUs);
                self.events.retain(|event| !matches!(event, ConnectionEvent::Reset { stream, .. } if *stream == id));
            }
            _ => {}
        }
    }

    /// Frames the output that may be sent now. To be called before `transmit_parts`.
    pub fn prepare_transmit(&mut self, now: Instant) {
        if self.lifecycle.is_goaway_due() && self.streams.is_empty() {
            self.end_drain();
        }
        if self.sender.has_room() {
            self.sender.flush_urgent();
        }
        while self.sender.has_room()
            && let Some(id) = self.sender.ready.pop_front()
        {
            if let Some(stream) = self.streams.get_mut(id) {
                stream.outgoing.is_queued = false;
            }
            if self.take_turn(id, now) == SendTurn::Blocked {
                break;
            }
        }
        if self.has_output() {
            self.timers.handle_output(now, self.settings.write_timeout);
        }
        self.invariants();
    }

    /// Returns the output to send, in parts, one after the other.
    pub fn transmit_parts(&self) -> impl Iterator<Item = &[u8]> {
        self.sender.output.parts()
    }

    /// The same as one buffer that may be taken away, if all of it is ours.
    #[inline]
    pub fn transmit_whole(&mut self) -> Option<&mut Vec<u8>> {
        self.sender.output.whole()
    }

    /// The first `count` bytes of it were sent.
    pub fn handle_transmitted(&mut self, count: usize, now: Instant) {
        self.sender.output.consume(count);
        self.timers.handle_transmitted(count, !self.has_output(), now, self.settings.write_timeout);
        if !self.has_output() && !self.lifecycle.has_failed() {
            self.set_idle_timers(now);
        }
    }

    /// Returns true if there is something to send now.
    #[inline]
    pub fn has_output(&self) -> bool {
        self.sender.output.size() > 0
    }

    /// Resets a stream.
    pub(super) fn reset(&mut self, id: StreamId, code: ErrorCode) {
        self.sender.push_reset(id, code);
        self.counts.server_resets += 1;
        self.drop_stream(id, ClosedStream::ByUs, code);
    }

    /// Ends a stream at once; while work on it continues, it still counts.
    pub(super) fn drop_stream(&mut self, id: StreamId, how: ClosedStream, code: ErrorCode) {
        match self.streams.get_mut(id) {
            Some(stream) if stream.is_working => {
                stream.set_state(StreamState::Reset);
                stream.incoming = None;
                stream.outgoing.clear();
                self.streams.remember(id, how);
                self.events.push_back(ConnectionEvent::Reset { stream: id, code });
            }
            _ => self.streams.close(id, how),
        }
    }

    /// Lets a stream send that may have something to send: at once, unless others wait.
    pub(super) fn queue(&mut self, id: StreamId, now: Instant) {
        let Some(stream) = self.streams.get_mut(id) else { return };
        if stream.outgoing.is_queued || !stream.outgoing.is_pending() {
            return;
        }
        if self.sender.ready.is_empty() && self.sender.output.size() < CONTROL_BACKLOG_SIZE_MAX {
            self.take_turn(id, now);
            return;
        }
        stream.outgoing.is_queued = true;
        stream.outgoing.due = stream.outgoing.due.or(Some(now + self.settings.write_timeout));
        self.sender.ready.push_back(id);
    }

    /// Lets all streams send, after their windows have grown.
    pub(super) fn queue_all(&mut self, now: Instant) {
        let pending = |stream: &&Http2Stream<B, T>| stream.outgoing.size > 0 && stream.send.room() > 0;
        let ids: Vec<StreamId> = self.streams.iter().filter(pending).map(|stream| stream.id).collect();
        ids.into_iter().for_each(|id| self.queue(id, now));
    }

    fn take_turn(&mut self, id: StreamId, now: Instant) -> SendTurn {
        let turn = self.send_some(id, now);
        self.keep_alive.handle_content();
        let due = Some(now + self.settings.write_timeout);
        let Some(stream) = self.streams.get_mut(id) else { return turn };
        let outgoing = &mut stream.outgoing;
        match turn {
            SendTurn::Done => {
                (outgoing.due, stream.incoming) = (None, None);
                self.finish_answer(id, now);
            }
            SendTurn::Idle => outgoing.due = None,
            SendTurn::Stalled => outgoing.due = outgoing.due.or(due),
            SendTurn::Over | SendTurn::Blocked => {
                outgoing.due = outgoing.due.or(due);
                outgoing.is_queued = true;
                if turn == SendTurn::Over { self.sender.ready.push_back(id) } else { self.sender.ready.push_front(id) }
            }
        }
        turn
    }

    fn send_some(&mut self, id: StreamId, now: Instant) -> SendTurn {
        let Self { streams, sender, budgets, settings, .. } = self;
        let FrameSender { peer, window, responses, output, .. } = sender;
        let Some(stream) = streams.get_mut(id) else { return SendTurn::Done };
        let outgoing = &mut stream.outgoing;
        let size_max = usize::try_from(peer.frame_size_max).unwrap_or(usize::MAX);
        let frames = |is_last| ResponseFrames { stream: id, is_last, size_max };
        if let Some(head) = outgoing.head.take() {
            outgoing.is_head_sent = !matches!(head, ResponseHead::Reply(None, _));
            if let (0, ResponseHead::Grpc(_), Some(ResponseEnd::Grpc(Some(status)))) =
                (outgoing.size, &head, &outgoing.end)
            {
                // Trailers-Only: the status in the head, and nothing after it.
                output.write(|out| responses.encode_end(Some(status), true, &frames(true), out));
                outgoing.end = None;
                return SendTurn::Done;
            }
            let is_last = outgoing.size == 0 && matches!(outgoing.end, Some(ResponseEnd::Plain));
            output.write(|out| responses.encode_head(&head, &frames(is_last), out));
            if is_last {
                outgoing.end = None;
                return SendTurn::Done;
            }
        } else if outgoing.size == 0 && matches!(outgoing.end, Some(ResponseEnd::Plain)) {
            // The end of a reply whose parts are all out: an empty frame, which flow control lets pass (§6.9).
            output.write(|out| frame::encode_head(0, FrameKind::Data, frame::END_STREAM, id, out));
            outgoing.end = None;
            return SendTurn::Done;
        }
        let mut quantum = SEND_QUANTUM;
        while outgoing.size > 0 {
            let size = outgoing.size.min(size_max).min(quantum).min(stream.send.room()).min(window.room());
            if size == 0 {
                return match (quantum, stream.send.room()) {
                    (0, _) => SendTurn::Over,
                    (_, 0) => SendTurn::Stalled,
                    _ => SendTurn::Blocked,
                };
            }
            debug_assert!(size <= size_max && size <= quantum, "a frame of {size} bytes keeps to all limits");
            let is_last = size == outgoing.size && matches!(outgoing.end, Some(ResponseEnd::Plain));
            let flags = if is_last { frame::END_STREAM } else { 0 };
            output.write(|out| frame::encode_head(size, FrameKind::Data, flags, id, out));
            outgoing.take_content(size, |bytes| output.share(bytes));
            stream.send.handle_sent(size);
            window.handle_sent(size);
            budgets.handle_content(size);
            quantum -= size;
            outgoing.moved += size;
            if outgoing.moved >= BODY_STEP_SIZE {
                (outgoing.moved, outgoing.due) = (0, Some(now + settings.write_timeout));
            }
        }
        match outgoing.end.take() {
            None => SendTurn::Idle,
            Some(ResponseEnd::Plain) => SendTurn::Done,
            Some(ResponseEnd::Grpc(status)) => {
                output.write(|out| responses.encode_end(status.as_deref(), false, &frames(true), out));
                SendTurn::Done
            }
        }
    }

    /// The last frame of an answer is out. A client that is sending still gets a moment to see it:
    /// some throw away an answer that comes with a reset.
    fn finish_answer(&mut self, id: StreamId, now: Instant) {
        self.budgets.handle_answer();
        match self.streams.get_mut(id) {
            Some(stream) if stream.state == StreamState::HalfClosed => self.streams.close(id, ClosedStream::ByPeer),
            Some(stream) => {
                stream.set_state(StreamState::Answered);
                (stream.deadline, stream.due) = (None, Some(now + RESET_GRACE));
            }
            None => {}
        }
    }
}

fn push(outgoing: &mut OutgoingContent, parts: impl IntoIterator<Item = Bytes>) {
    for part in parts.into_iter().filter(|part| !part.is_empty()) {
        outgoing.size += part.len();
        outgoing.parts.push_back(part);
    }
}
