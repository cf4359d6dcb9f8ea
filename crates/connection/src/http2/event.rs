//! The events that come out of a connection.

use bytes::Bytes;

use crate::http2::head::CallDeadline;
use crate::http2::incoming::CallFault;
use base::time::Instant;
use wire::http1::HttpRefusal;
use wire::http2::StreamId;
use wire::http2::error::ErrorCode;
use wire::message::{Fields, Message};

/// A plain message whose body is refused, for the records of the caller.
#[derive(Clone, Debug)]
pub struct RefusedMessage {
    /// Its path.
    pub path: Bytes,
    /// The fields of its head.
    pub fields: Fields,
    /// The answer.
    pub refusal: HttpRefusal,
}

/// Something for the caller to do. `T` is its own token.
#[derive(Clone, Debug)]
pub enum ConnectionEvent<T> {
    /// A call begins: `accept_call` or an answer is due before the next event. Its path is `path`.
    Call {
        /// Its stream.
        stream: StreamId,
        /// True if its verb is POST, as gRPC has it.
        is_post: bool,
        /// The deadline of its client.
        deadline: CallDeadline,
    },
    /// A call cannot be read to its end and wants an answer.
    Fault {
        /// Its stream.
        stream: StreamId,
        /// The reason.
        fault: CallFault,
    },
    /// A plain message, whole.
    Message {
        /// Its stream.
        stream: StreamId,
        /// The message.
        message: Message,
    },
    /// There is something for `take_next`.
    Next(StreamId),
    /// A plain message whose body is refused before it is complete; it is answered already.
    Refused(Box<RefusedMessage>),
    /// The client is no longer interested, or broke the stream. Its work may stop, and
    /// `handle_gone` is due when it has.
    Reset {
        /// The stream.
        stream: StreamId,
        /// The code from the client, or from us.
        code: ErrorCode,
    },
    /// The one message of a call, whole.
    Whole {
        /// Its stream.
        stream: StreamId,
        /// The token that `accept_call` was given.
        token: T,
        /// The message.
        message: Bytes,
        /// The time at which its client gives up.
        deadline: Option<Instant>,
    },
}
