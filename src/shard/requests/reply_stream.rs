//! Replies in parts, which leave as they come, over HTTP/1.1 and HTTP/2. The task that answers
//! writes them here; the connection sends them. Bounded: a task asks for room before it writes, and
//! there is no room while a part waits.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;

use crate::runtime::clock;
use crate::shard::requests::http2_link::Http2Link;
use crate::wire::http2::StreamId;
use crate::wire::message::Reply;

/// The destination of a reply's parts. Lives on its shard.
#[derive(Clone)]
pub enum ReplyStream {
    /// To an HTTP/1.1 connection.
    Http1(Rc<Http1Parts>),
    /// To a stream of an HTTP/2 connection.
    Http2(Rc<Http2Link>, StreamId),
}

impl ReplyStream {
    /// Sends the head.
    pub fn begin(&self, head: Reply) {
        match self {
            Self::Http1(parts) => {
                parts.head.set(Some(head));
                parts.has_output.set(true);
            }
            Self::Http2(link, stream) => link.with(|connection| connection.begin_reply(*stream, head, clock::now())),
        }
    }

    /// Sends a part, after the head.
    pub fn send(&self, part: Bytes) {
        match self {
            Self::Http1(parts) => {
                let mut waiting = parts.waiting.take();
                waiting.push(part);
                parts.waiting.set(waiting);
                parts.has_output.set(true);
            }
            Self::Http2(link, stream) => link.with(|connection| connection.send_part(*stream, part, clock::now())),
        }
    }

    /// Returns true if all that was sent has left. If not, the task is woken when it has.
    pub fn has_room(&self) -> bool {
        match self {
            Self::Http1(parts) => !parts.has_output(),
            Self::Http2(link, stream) => link.has_room(*stream),
        }
    }
}

/// The output that waits to be sent on an HTTP/1.1 connection. The connection's task also answers,
/// and looks here after each turn of the answer, so that no wake-up is needed.
#[derive(Default)]
pub struct Http1Parts {
    head: Cell<Option<Reply>>,
    waiting: Cell<Vec<Bytes>>,
    has_output: Cell<bool>,
}

impl Http1Parts {
    /// Returns true if there is output that has not left yet.
    pub const fn has_output(&self) -> bool {
        self.has_output.get()
    }

    /// Takes the output.
    pub fn take(&self) -> (Option<Reply>, Vec<Bytes>) {
        (self.head.take(), self.waiting.take())
    }

    /// All that was taken has left.
    pub fn handle_sent(&self) {
        self.has_output.set(false);
    }
}
