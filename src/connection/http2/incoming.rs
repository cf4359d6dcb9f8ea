//! Where the content of one stream goes as its DATA frames come: into the messages of a call, or the
//! body of a plain message, each in one aligned buffer that it is written to once.

use bytes::Bytes;

use crate::limits::BODY_CLAIM_MAX;
use crate::wire::grpc::{GatherError, Gatherer};
use crate::wire::message::{BodyBuffer, Fields, Message, Method};

/// Why a call cannot be read to its end. What its client is told is the protocol's business.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFault {
    /// Its deadline passed before it was here.
    Deadline,
    /// A message cannot be gathered.
    Gather(GatherError),
    /// It came too slowly.
    Late,
    /// It has no message where one is due.
    Missing,
    /// It has more messages than the one that is due.
    More,
    /// The stream ended within a message.
    Truncated,
}

/// How a call's messages are handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageDelivery<T> {
    /// One message, when the stream has ended; the caller's token comes with it.
    One(T),
    /// Each when it is here and asked for, and the end after the last.
    Each,
}

/// The next thing of a call whose messages are handed out one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextMessage {
    /// All of them were.
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

/// The messages of a call.
pub(super) struct CallBody<B, T> {
    gatherer: Gatherer<B>,
    plan: Option<MessageDelivery<T>>,
    ready: Option<Bytes>,
    /// What came behind the message that is ready: at most a window.
    rest: Vec<u8>,
}

impl<B: BodyBuffer, T: Copy> CallBody<B, T> {
    pub(super) const fn new(gatherer: Gatherer<B>) -> Self {
        Self { gatherer, plan: None, ready: None, rest: Vec::new() }
    }

    pub(super) const fn set_plan(&mut self, plan: MessageDelivery<T>) {
        self.plan = Some(plan);
    }

    /// Whether its client must keep sending: a stream of messages may rest between two.
    pub(super) const fn is_paced(&self) -> bool {
        !matches!(self.plan, Some(MessageDelivery::Each)) || self.gatherer.is_within_message()
    }

    /// Takes bytes in. How many of them have found their place, and whether there is something to take
    /// that was not before.
    pub(super) fn handle_data(&mut self, mut bytes: &[u8]) -> Result<(usize, bool), CallFault> {
        let size = bytes.len();
        if let Some(MessageDelivery::Each) = self.plan {
            if self.ready.is_some() {
                self.rest.extend_from_slice(bytes);
                return Ok((0, false));
            }
            self.ready = self.gather(&mut bytes)?;
            self.rest.extend_from_slice(bytes);
            return Ok((size - bytes.len(), self.ready.is_some()));
        }
        while !bytes.is_empty() {
            let message = self.gather(&mut bytes)?;
            self.handle_only(message)?;
        }
        Ok((size, false))
    }

    /// Whether `space` has any.
    pub(super) const fn has_space(&self) -> bool {
        self.ready.is_none() && self.gatherer.is_filling()
    }

    pub(super) fn space(&mut self, size_max: usize) -> &mut [u8] {
        self.gatherer.space(size_max)
    }

    /// As `handle_data`, for what was written to `space`.
    pub(super) fn handle_space(&mut self, count: usize) -> Result<(usize, bool), CallFault> {
        let message = self.gatherer.handle_space(count);
        let is_new = message.is_some() && matches!(self.plan, Some(MessageDelivery::Each));
        self.handle_only(message)?;
        Ok((count, is_new))
    }

    /// The one message, at the end of the stream.
    pub(super) fn take_only(&mut self) -> Result<(T, Bytes), CallFault> {
        if self.gatherer.is_within_message() {
            return Err(CallFault::Truncated);
        }
        match (self.plan, self.ready.take()) {
            (Some(MessageDelivery::One(token)), Some(message)) => Ok((token, message)),
            _ => Err(CallFault::Missing),
        }
    }

    /// The next message, and how many bytes that waited behind it have found their place.
    pub(super) fn take_next(&mut self, is_ended: bool) -> Result<(NextMessage, usize), CallFault> {
        let Some(message) = self.ready.take() else {
            return match (is_ended, self.gatherer.is_within_message()) {
                (false, _) => Ok((NextMessage::Nothing, 0)),
                (true, true) => Err(CallFault::Truncated),
                (true, false) => Ok((NextMessage::End, 0)),
            };
        };
        let waiting = std::mem::take(&mut self.rest);
        let mut bytes = &waiting[..];
        self.ready = self.gather(&mut bytes)?;
        self.rest.extend_from_slice(bytes);
        Ok((NextMessage::Message(message), waiting.len() - self.rest.len()))
    }

    pub(super) const fn is_each(&self) -> bool {
        matches!(self.plan, Some(MessageDelivery::Each))
    }

    /// Gathers up to the end of a message.
    fn gather(&mut self, bytes: &mut &[u8]) -> Result<Option<Bytes>, CallFault> {
        while !bytes.is_empty() {
            if let Some(message) = self.gatherer.handle_chunk(bytes).map_err(CallFault::Gather)? {
                return Ok(Some(message));
            }
        }
        Ok(None)
    }

    fn handle_only(&mut self, message: Option<Bytes>) -> Result<(), CallFault> {
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
}

impl<B: BodyBuffer> MessageBody<B> {
    /// A body of `size` bytes, as far as is known, whose byte at `aligned_at` will be aligned.
    pub(super) fn new(method: Method, path: Bytes, fields: Fields, aligned_at: usize, size: usize) -> Self {
        let buffer = B::with_alignment_at(aligned_at, size.min(BODY_CLAIM_MAX));
        Self { method, path, fields, buffer, filled: 0 }
    }

    pub(super) fn handle_data(&mut self, bytes: &[u8]) {
        if self.buffer.len() > self.filled {
            self.buffer.resize(self.filled);
        }
        self.buffer.extend_from_slice(bytes);
        self.filled += bytes.len();
    }

    pub(super) fn space(&mut self, size_max: usize) -> &mut [u8] {
        self.buffer.resize(self.filled.saturating_add(size_max));
        self.buffer.as_mut_slice().get_mut(self.filled..).unwrap_or_default()
    }

    pub(super) fn handle_space(&mut self, count: usize) {
        self.filled = self.filled.saturating_add(count).min(self.buffer.len());
    }

    pub(super) fn into_message(mut self) -> Message {
        self.buffer.resize(self.filled);
        let Self { method, path, fields, buffer, .. } = self;
        Message { method, path, fields, body: buffer.freeze() }
    }
}
