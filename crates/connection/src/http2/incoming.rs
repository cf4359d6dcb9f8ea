//! Stores the content of one stream as its DATA frames come: in the messages of a call, or in the
//! body of a plain message. Each is written once, to one aligned buffer.

use bytes::{Buf, Bytes, BytesMut};

use base::budget::{ReceiveReservation, Shortage};
use wire::grpc::{GatherError, Gatherer, PREFIX_SIZE};
use wire::message::{BodyBuffer, Fields, Message, Method};

/// The reason why a call cannot be read to its end. The protocol decides the text for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFault {
    /// Its deadline passed before it was here.
    Deadline,
    /// A message cannot be gathered.
    Gather(GatherError),
    /// It came too slowly.
    Late,
    /// There is no memory for it.
    Memory(Shortage),
    /// It has no message where one is due.
    Missing,
    /// It has more messages than the one that is due.
    More,
    /// The stream ended within a message.
    Truncated,
}

/// The delivery of a call's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageDelivery<T> {
    /// One message, when the stream has ended; the caller's token comes with it.
    One(T),
    /// Each when it is here and asked for, and the end after the last.
    Each,
}

/// The next item of a call whose messages are handed out one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextMessage {
    /// All messages were handed out.
    End,
    /// A message.
    Message(Bytes),
    /// Nothing yet.
    Nothing,
}

/// The content of a stream.
pub(super) enum StreamContent<B, T> {
    Call(CallBody<B, T>),
    Message(MessageBody<B>),
}

impl<B: BodyBuffer, T> StreamContent<B, T> {
    /// Bytes that are still to come of the message in progress, if that is known.
    pub(super) fn left(&self) -> Option<usize> {
        match self {
            Self::Call(call) => Some(call.gatherer.progress().map_or(0, |(_, left)| left)),
            Self::Message(_) => None,
        }
    }

    /// Bytes that its content takes.
    pub(super) const fn held_size(&self) -> usize {
        match self {
            Self::Call(call) => call.memory.size,
            Self::Message(message) => message.memory.size,
        }
    }

    /// The memory of its content.
    pub(super) const fn memory(&mut self) -> &mut Memory {
        match self {
            Self::Call(call) => &mut call.memory,
            Self::Message(message) => &mut message.memory,
        }
    }
}

/// The memory of a stream's content in the budget: for its own bytes, and for those that its client
/// was promised room for.
#[derive(Debug, Default)]
pub(super) struct Memory {
    reservation: ReceiveReservation,
    /// Bytes that are here.
    size: usize,
}

impl Memory {
    pub(super) const fn new(reservation: ReceiveReservation) -> Self {
        Self { reservation, size: 0 }
    }

    /// Reserves memory for `more` bytes in addition to those that are here.
    pub(super) fn prepare(&mut self, more: usize) -> Result<(), Shortage> {
        let size = self.size.saturating_add(more);
        self.reservation.cover(size)?;
        debug_assert!(self.reservation.size() >= size, "a promise of {more} bytes has its memory");
        Ok(())
    }

    /// Counts `count` bytes that arrived.
    pub(super) fn admit(&mut self, count: usize) -> Result<(), Shortage> {
        self.prepare(count)?;
        self.size += count;
        debug_assert!(self.size <= self.reservation.size(), "bytes that are here are reserved");
        Ok(())
    }

    /// Checks that the whole budget has memory for a message of `size` bytes.
    fn check_alone(&self, size: usize) -> Result<(), Shortage> {
        self.reservation.check(size)
    }

    /// Hands `count` bytes on, with the reservation for them.
    pub(super) fn hand_on(&mut self, count: usize) -> ReceiveReservation {
        debug_assert!(count <= self.size, "{count} bytes are handed on, and {} are here", self.size);
        self.size = self.size.saturating_sub(count);
        let handed = self.reservation.split(count);
        debug_assert!(self.size <= self.reservation.size(), "the bytes that stay keep their memory");
        handed
    }

    /// Hands all bytes on.
    pub(super) fn hand_on_all(&mut self) -> ReceiveReservation {
        self.hand_on(self.size)
    }
}

/// The messages of a call.
pub(super) struct CallBody<B, T> {
    gatherer: Gatherer<B>,
    plan: Option<MessageDelivery<T>>,
    /// The next message, and true if it is compressed.
    ready: Option<GatheredMessage>,
    /// True if the message that was taken last is compressed.
    is_taken_compressed: bool,
    /// The bytes behind the message that is ready: at most a window. They are read through a
    /// cursor, since a window of empty messages has 200,000 of them, and copying the rest for each
    /// would be quadratic.
    rest: BytesMut,
    memory: Memory,
}

/// A message of a call that is whole.
struct GatheredMessage {
    message: Bytes,
    is_compressed: bool,
}

/// The outcome of storing content.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlacedContent {
    /// The bytes that have found their place.
    pub(super) size: usize,
    /// True if there is something to take that was not there before.
    pub(super) has_next: bool,
}

impl<B: BodyBuffer, T> CallBody<B, T> {
    pub(super) fn new(gatherer: Gatherer<B>, reservation: ReceiveReservation) -> Self {
        let memory = Memory::new(reservation);
        Self { gatherer, plan: None, ready: None, is_taken_compressed: false, rest: BytesMut::new(), memory }
    }

    pub(super) fn set_plan(&mut self, plan: MessageDelivery<T>) {
        self.plan = Some(plan);
    }

    /// Returns true if its client must keep sending: a stream of messages may rest between two.
    pub(super) const fn is_paced(&self) -> bool {
        !matches!(self.plan, Some(MessageDelivery::Each)) || self.gatherer.is_within_message()
    }

    /// Takes bytes in.
    pub(super) fn handle_data(&mut self, mut bytes: &[u8]) -> Result<PlacedContent, CallFault> {
        let size = bytes.len();
        self.memory.admit(size).map_err(CallFault::Memory)?;
        if let Some(MessageDelivery::Each) = self.plan {
            if self.ready.is_some() {
                self.rest.extend_from_slice(bytes);
                return Ok(PlacedContent { size: 0, has_next: false });
            }
            debug_assert!(self.rest.is_empty(), "bytes wait behind a message only");
            self.ready = self.gather(&mut bytes)?;
            self.rest.extend_from_slice(bytes);
            return Ok(PlacedContent { size: size - bytes.len(), has_next: self.ready.is_some() });
        }
        while !bytes.is_empty() {
            let message = self.gather(&mut bytes)?;
            self.handle_only(message)?;
        }
        Ok(PlacedContent { size, has_next: false })
    }

    /// Returns true if `space` is not empty.
    pub(super) const fn has_space(&self) -> bool {
        self.ready.is_none() && self.gatherer.is_filling()
    }

    pub(super) fn space(&mut self, size_max: usize) -> &mut [u8] {
        self.gatherer.space(size_max)
    }

    /// As `handle_data`, for bytes that were written to `space`.
    pub(super) fn handle_space(&mut self, count: usize) -> Result<PlacedContent, CallFault> {
        let message = self.gatherer.handle_space(count);
        let message = message.map(|message| GatheredMessage { message, is_compressed: self.gatherer.is_compressed() });
        self.memory.admit(count).map_err(CallFault::Memory)?;
        let is_new = message.is_some() && matches!(self.plan, Some(MessageDelivery::Each));
        self.handle_only(message)?;
        Ok(PlacedContent { size: count, has_next: is_new })
    }

    /// The one message, at the end of the stream.
    pub(super) fn take_only(&mut self) -> Result<(T, Bytes), CallFault> {
        if self.gatherer.is_within_message() {
            return Err(CallFault::Truncated);
        }
        match (self.plan.take(), self.ready.take()) {
            (Some(MessageDelivery::One(token)), Some(GatheredMessage { message, is_compressed })) => {
                self.is_taken_compressed = is_compressed;
                Ok((token, message))
            }
            _ => Err(CallFault::Missing),
        }
    }

    /// Returns the memory of the message that was taken last, or all memory if there is only one
    /// message.
    pub(super) fn take_memory(&mut self, message: Option<&Bytes>) -> ReceiveReservation {
        match message {
            Some(message) => self.memory.hand_on(PREFIX_SIZE + message.len()),
            None => self.memory.hand_on_all(),
        }
    }

    /// Returns the next message, and the number of bytes behind it that have found their place.
    pub(super) fn take_next(&mut self, is_ended: bool) -> Result<(NextMessage, usize), CallFault> {
        let Some(GatheredMessage { message, is_compressed }) = self.ready.take() else {
            return match (is_ended, self.gatherer.is_within_message()) {
                (false, _) => Ok((NextMessage::Nothing, 0)),
                (true, true) => Err(CallFault::Truncated),
                (true, false) => Ok((NextMessage::End, 0)),
            };
        };
        self.is_taken_compressed = is_compressed;
        let mut rest = std::mem::take(&mut self.rest);
        let mut bytes = &rest[..];
        self.ready = self.gather(&mut bytes)?;
        let placed = rest.len() - bytes.len();
        rest.advance(placed);
        if !rest.is_empty() {
            self.rest = rest;
        }
        debug_assert!(self.ready.is_some() || self.rest.is_empty(), "bytes wait behind a message only");
        Ok((NextMessage::Message(message), placed))
    }

    /// Returns true if the message that was taken last is compressed.
    pub(super) const fn is_taken_compressed(&self) -> bool {
        self.is_taken_compressed
    }

    pub(super) const fn is_each(&self) -> bool {
        matches!(self.plan, Some(MessageDelivery::Each))
    }

    /// Gathers up to the end of a message.
    fn gather(&mut self, bytes: &mut &[u8]) -> Result<Option<GatheredMessage>, CallFault> {
        while !bytes.is_empty() {
            if let Some(message) = self.gatherer.handle_chunk(bytes).map_err(CallFault::Gather)? {
                return Ok(Some(GatheredMessage { message, is_compressed: self.gatherer.is_compressed() }));
            }
            // Reported as soon as its prefix declares the size, and not once the memory is full of
            // it.
            let (size, _) = self.gatherer.progress().unwrap_or_default();
            self.memory.check_alone(size).map_err(CallFault::Memory)?;
        }
        Ok(None)
    }

    fn handle_only(&mut self, message: Option<GatheredMessage>) -> Result<(), CallFault> {
        let Some(message) = message else { return Ok(()) };
        if self.ready.replace(message).is_some() { Err(CallFault::More) } else { Ok(()) }
    }
}

/// The body of a plain message.
pub(super) struct MessageBody<B> {
    method: Method,
    path: Bytes,
    fields: Fields,
    buffer: B,
    filled: usize,
    memory: Memory,
}

impl<B: BodyBuffer> MessageBody<B> {
    /// A body of `size` bytes, as far as is known, whose byte at `aligned_at` will be aligned.
    pub(super) fn new(method: Method, path: Bytes, fields: Fields, aligned_at: usize, size: usize) -> Self {
        let buffer = B::announced(aligned_at, size);
        Self { method, path, fields, buffer, filled: 0, memory: Memory::default() }
    }

    /// The same, whose memory is counted.
    pub(super) fn with_memory(self, reservation: ReceiveReservation) -> Self {
        Self { memory: Memory::new(reservation), ..self }
    }

    /// Returns the path and the fields of a message whose body is not needed.
    pub(super) fn into_head(self) -> (Bytes, Fields) {
        (self.path, self.fields)
    }

    pub(super) fn handle_data(&mut self, bytes: &[u8]) -> Result<(), Shortage> {
        self.memory.admit(bytes.len())?;
        if self.buffer.len() > self.filled {
            self.buffer.resize(self.filled);
        }
        self.buffer.extend_from_slice(bytes);
        self.filled += bytes.len();
        debug_assert_eq!(self.filled, self.buffer.len(), "an append ends the buffer");
        Ok(())
    }

    pub(super) fn space(&mut self, size_max: usize) -> &mut [u8] {
        self.buffer.resize(self.filled.saturating_add(size_max));
        self.buffer.as_mut_slice().get_mut(self.filled..).unwrap_or_default()
    }

    pub(super) fn handle_space(&mut self, count: usize) -> Result<(), Shortage> {
        debug_assert!(count <= self.buffer.len().saturating_sub(self.filled), "{count} bytes are past the space");
        self.filled = self.filled.saturating_add(count).min(self.buffer.len());
        self.memory.admit(count)
    }

    pub(super) fn take_memory(&mut self) -> ReceiveReservation {
        debug_assert_eq!(self.memory.size, self.filled, "each byte of the body was counted once");
        self.memory.hand_on_all()
    }

    pub(super) fn into_message(mut self) -> Message {
        debug_assert!(self.filled <= self.buffer.len(), "{} bytes in {}", self.filled, self.buffer.len());
        self.buffer.resize(self.filled);
        let Self { method, path, fields, buffer, .. } = self;
        Message { method, path, fields, body: buffer.freeze() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::fuzz::PlainBody;
    use wire::grpc::PREFIX_SIZE;

    /// Returns the number of bytes that move in memory while `count` empty messages are taken that
    /// came at once.
    fn moved_by_empty_messages(count: usize) -> usize {
        let mut call = CallBody::<PlainBody, ()>::new(Gatherer::new(0, 0), ReceiveReservation::default());
        call.set_plan(MessageDelivery::Each);
        call.handle_data(&vec![0; count * PREFIX_SIZE]).unwrap();
        let (mut moved, mut taken) = (0, 0);
        loop {
            // Reading from the front leaves the end where it is.
            let end = call.rest.as_ptr_range().end;
            match call.take_next(false).unwrap() {
                (NextMessage::Message(message), placed) => {
                    taken += 1;
                    assert!(message.is_empty() && (placed == PREFIX_SIZE || taken == count), "{taken}: {placed}");
                }
                (outcome, _) => {
                    assert_eq!((outcome, taken), (NextMessage::Nothing, count));
                    return moved;
                }
            }
            moved += if call.rest.as_ptr_range().end == end { 0 } else { call.rest.len() };
        }
    }

    #[test]
    fn what_waits_behind_a_message_stays_in_its_place() {
        for count in [1_000, 4_000] {
            assert_eq!(moved_by_empty_messages(count), 0, "{count} messages");
        }
    }

    #[test]
    fn what_comes_while_messages_are_taken_moves_less_than_it_is_long() {
        let mut call = CallBody::<PlainBody, ()>::new(Gatherer::new(0, 0), ReceiveReservation::default());
        call.set_plan(MessageDelivery::Each);
        let (mut came, mut moved, mut taken) = (0, 0, 0);
        for _ in 0..1_000 {
            let start = call.rest.as_ptr();
            call.handle_data(&[0; 20 * PREFIX_SIZE]).unwrap();
            came += 20;
            moved += if call.rest.as_ptr() == start { 0 } else { call.rest.len() };
            for _ in 0..19 {
                assert!(matches!(call.take_next(false), Ok((NextMessage::Message(_), _))));
                taken += 1;
            }
        }
        while let Ok((NextMessage::Message(_), _)) = call.take_next(true) {
            taken += 1;
        }
        assert_eq!((taken, call.rest.capacity()), (came, 0), "what is empty holds no memory");
        assert!(moved < 2 * came * PREFIX_SIZE, "{moved} of {} bytes", came * PREFIX_SIZE);
    }
}
