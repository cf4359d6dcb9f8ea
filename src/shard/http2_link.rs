//! What the task of an HTTP/2 connection shares with the tasks of its streams. Lives on its shard.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::budget::ReceiveReservation;
use crate::connection::http2::{CallFault, Http2Connection, NextMessage};
use crate::metrics::Departure;
use crate::protocol::grpc::Rpc;
use crate::tensor::AlignedBuffer;
use crate::wire::http2::StreamId;
use crate::wire::http2::error::ErrorCode;

/// The state machine of a shard's connections.
pub type Http2Machine = Http2Connection<AlignedBuffer, Rpc>;

/// What the task of a connection shares with those of its streams. Lives on its shard.
pub struct Http2Link {
    pub(super) connection: RefCell<Http2Machine>,
    /// The connection's own task, and whether it runs: then it looks at all that is done before it
    /// ends its turn.
    pub(super) waker: RefCell<Option<Waker>>,
    pub(super) is_running: Cell<bool>,
    /// The streams whose work waits, each in a task of its own.
    pub(super) works: RefCell<Vec<StreamWork>>,
}

pub(super) struct StreamWork {
    pub(super) stream: StreamId,
    /// How its client leaves, if it does: as far as is known before.
    pub(super) departure: Rc<Cell<Departure>>,
    pub(super) is_reset: bool,
    pub(super) waits_for_room: bool,
    pub(super) waker: Option<Waker>,
}

impl Http2Link {
    /// Does something to the connection; what it has to send then goes out with all else of this turn.
    pub fn with<O>(&self, act: impl FnOnce(&mut Http2Machine) -> O) -> O {
        let outcome = act(&mut self.connection.borrow_mut());
        if !self.is_running.get()
            && let Some(waker) = self.waker.borrow().as_ref()
        {
            waker.wake_by_ref();
        }
        outcome
    }

    /// The next message of a call.
    pub async fn next(&self, stream: StreamId) -> Result<NextMessage, CallFault> {
        poll_fn(|_| match self.connection.borrow_mut().take_next(stream) {
            Ok(NextMessage::Nothing) => Poll::Pending,
            taken => Poll::Ready(taken),
        })
        .await
    }

    /// The next message of a call, if it is here; its work is woken when it comes.
    pub fn take_next(&self, stream: StreamId) -> Result<NextMessage, CallFault> {
        let taken = self.connection.borrow_mut().take_next(stream);
        // What was taken leaves room for more: the peer is to be told.
        if let Ok(NextMessage::Message(_)) = &taken {
            self.with(|_| ());
        }
        taken
    }

    /// The memory of the message that came last on a stream.
    pub fn take_memory(&self, stream: StreamId) -> ReceiveReservation {
        self.connection.borrow_mut().take_memory(stream)
    }

    /// Whether what was sent on a stream has gone. Where it has not, its work is woken when it has.
    pub fn has_room(&self, stream: StreamId) -> bool {
        let has_room = self.connection.borrow().has_room(stream);
        if !has_room {
            self.note(stream, |work| work.waits_for_room = true);
        }
        has_room
    }

    /// Waits until what was sent on a stream has gone: what has not is kept in memory, and a client
    /// that asks on without reading would fill it.
    pub async fn room(&self, stream: StreamId) {
        poll_fn(|_| {
            if self.connection.borrow().has_room(stream) {
                return Poll::Ready(());
            }
            self.note(stream, |work| work.waits_for_room = true);
            Poll::Pending
        })
        .await;
    }

    /// Whether the stream of a work was reset, and who to wake when it is.
    pub(super) fn poll_reset(&self, stream: StreamId, context: &Context<'_>) -> bool {
        let mut is_reset = true;
        self.note(stream, |work| {
            is_reset = work.is_reset;
            if !work.waker.as_ref().is_some_and(|have| have.will_wake(context.waker())) {
                work.waker = Some(context.waker().clone());
            }
        });
        is_reset
    }

    pub(super) fn note(&self, stream: StreamId, note: impl FnOnce(&mut StreamWork)) {
        if let Some(work) = self.works.borrow_mut().iter_mut().find(|work| work.stream == stream) {
            note(work);
        }
    }

    pub(super) fn begin_work(&self, stream: StreamId, departure: Rc<Cell<Departure>>) {
        let work = StreamWork { stream, departure, is_reset: false, waits_for_room: false, waker: None };
        self.works.borrow_mut().push(work);
    }

    pub(super) fn end_work(&self, stream: StreamId) {
        self.works.borrow_mut().retain(|work| work.stream != stream);
    }

    /// Wakes the work of a stream.
    pub(super) fn wake(&self, stream: StreamId) {
        self.note(stream, StreamWork::wake);
    }

    pub(super) fn reset(&self, stream: StreamId, code: ErrorCode) {
        self.note(stream, |work| {
            // CANCEL is what a gRPC client cancels a call with (gRPC over HTTP/2, "Errors").
            if code != ErrorCode::Cancel {
                work.departure.set(Departure::StreamReset);
            }
            work.is_reset = true;
            work.wake();
        });
    }

    /// Wakes those who wait for room, where it is there.
    pub(super) fn wake_writers(&self) {
        let connection = self.connection.borrow();
        let mut works = self.works.borrow_mut();
        for work in works.iter_mut().filter(|work| work.waits_for_room && connection.has_room(work.stream)) {
            work.waits_for_room = false;
            work.wake();
        }
    }

    /// The connection has ended: so does all work on its streams.
    pub(super) fn end(&self) {
        *self.waker.borrow_mut() = None;
        for work in self.works.borrow_mut().iter_mut() {
            work.departure.set(Departure::ConnectionClosed);
            work.is_reset = true;
            work.wake();
        }
    }
}

impl StreamWork {
    pub(super) fn wake(&mut self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }
}
