//! The state that the task of an HTTP/2 connection shares with the tasks of its streams.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::budget::ReceiveReservation;
use crate::connection::http2::{CallFault, Http2Connection, NextMessage};
use crate::metrics::Departure;
use crate::protocol::grpc::Rpc;
use crate::shard::connections::ConnectionRights;
use crate::shard::requests::admission::AdmittedRequest;
use crate::tensor::AlignedBuffer;
use crate::wire::compression::Coding;
use crate::wire::http2::StreamId;
use crate::wire::http2::error::ErrorCode;

/// The state machine of a shard's connections.
pub type Http2Machine = Http2Connection<AlignedBuffer, AdmittedCall>;

/// A unary call that was let in, until its message is here.
pub struct AdmittedCall {
    /// The method that it calls.
    pub rpc: Rpc,
    /// Held until it is answered.
    pub admission: AdmittedRequest,
}

/// The state that a connection's task shares with the tasks of its streams. All run on one shard, so nothing is locked;
/// no borrow is held across an await.
pub struct Http2Link {
    pub(in crate::shard) connection: RefCell<Http2Machine>,
    /// The connection's own task, and true while it runs. A running task sends everything before
    /// its turn ends, so it need not be woken.
    pub(in crate::shard) waker: RefCell<Option<Waker>>,
    pub(in crate::shard) is_running: Cell<bool>,
    /// The client, for the access log.
    pub(in crate::shard) peer: Option<SocketAddr>,
    /// The rights of the connection itself.
    pub(in crate::shard) rights: ConnectionRights,
    /// The streams that a task of their own works on.
    pub(in crate::shard) stream_work: RefCell<Vec<StreamWork>>,
}

pub(in crate::shard) struct StreamWork {
    pub(in crate::shard) stream: StreamId,
    /// The client's way of leaving, as far as known; read when the work is dropped unfinished.
    pub(in crate::shard) departure: Rc<Cell<Departure>>,
    pub(in crate::shard) is_reset: bool,
    pub(in crate::shard) waits_for_room: bool,
    pub(in crate::shard) waker: Option<Waker>,
}

impl Http2Link {
    /// Calls `act` with the connection and wakes the connection's task, which sends all frames of a turn together.
    pub fn with<O>(&self, act: impl FnOnce(&mut Http2Machine) -> O) -> O {
        let outcome = act(&mut self.connection.borrow_mut());
        if !self.is_running.get()
            && let Some(waker) = self.waker.borrow().as_ref()
        {
            waker.wake_by_ref();
        }
        outcome
    }

    /// Waits for the next message of a call.
    ///
    /// # Errors
    /// The fault that ends the call.
    pub async fn next(&self, stream: StreamId) -> Result<NextMessage, CallFault> {
        poll_fn(|_| match self.connection.borrow_mut().take_next(stream) {
            Ok(NextMessage::Nothing) => Poll::Pending,
            taken => Poll::Ready(taken),
        })
        .await
    }

    /// Returns the next message of a call, if it is complete; the stream's task is woken when one
    /// is.
    ///
    /// # Errors
    /// The fault that ends the call.
    pub fn take_next(&self, stream: StreamId) -> Result<NextMessage, CallFault> {
        let taken = self.connection.borrow_mut().take_next(stream);
        // A taken message frees flow-control window: let the connection's task send the WINDOW_UPDATE.
        if let Ok(NextMessage::Message(_)) = &taken {
            self.with(|_| ());
        }
        taken
    }

    /// Returns the encoding of the stream's latest message; `None` if it is plain.
    pub fn coding(&self, stream: StreamId) -> Option<Coding> {
        self.connection.borrow().handed_coding(stream)
    }

    /// The receive memory of the stream's latest message.
    pub fn take_memory(&self, stream: StreamId) -> ReceiveReservation {
        self.connection.borrow_mut().take_memory(stream)
    }

    /// Returns true if the stream's earlier messages were handed to the kernel. If not, its task is
    /// woken when they are.
    pub fn has_room(&self, stream: StreamId) -> bool {
        let has_room = self.connection.borrow().has_room(stream);
        if !has_room {
            self.with_work(stream, |work| work.waits_for_room = true);
        }
        has_room
    }

    /// Waits until the stream's earlier messages were handed to the kernel. Without this backpressure a client that
    /// sends requests and reads no responses would fill the server's memory.
    pub async fn room(&self, stream: StreamId) {
        poll_fn(|_| {
            if self.connection.borrow().has_room(stream) {
                return Poll::Ready(());
            }
            self.with_work(stream, |work| work.waits_for_room = true);
            Poll::Pending
        })
        .await;
    }

    /// Returns true if the stream was reset; registers the task to wake when it is.
    pub(in crate::shard) fn poll_reset(&self, stream: StreamId, context: &Context<'_>) -> bool {
        let mut is_reset = true;
        self.with_work(stream, |work| {
            is_reset = work.is_reset;
            if !work.waker.as_ref().is_some_and(|have| have.will_wake(context.waker())) {
                work.waker = Some(context.waker().clone());
            }
        });
        is_reset
    }

    pub(in crate::shard) fn with_work(&self, stream: StreamId, act: impl FnOnce(&mut StreamWork)) {
        if let Some(work) = self.stream_work.borrow_mut().iter_mut().find(|work| work.stream == stream) {
            act(work);
        }
    }

    pub(in crate::shard) fn begin_work(&self, stream: StreamId, departure: Rc<Cell<Departure>>) {
        let work = StreamWork { stream, departure, is_reset: false, waits_for_room: false, waker: None };
        self.stream_work.borrow_mut().push(work);
    }

    pub(in crate::shard) fn end_work(&self, stream: StreamId) {
        self.stream_work.borrow_mut().retain(|work| work.stream != stream);
    }

    /// Wakes the task of a stream.
    pub(in crate::shard) fn wake(&self, stream: StreamId) {
        self.with_work(stream, StreamWork::wake);
    }

    pub(in crate::shard) fn reset(&self, stream: StreamId, code: ErrorCode) {
        self.with_work(stream, |work| {
            // A gRPC client cancels a call by CANCEL (gRPC over HTTP/2, "Errors"); the departure
            // says so already.
            if code != ErrorCode::Cancel {
                work.departure.set(Departure::StreamReset);
            }
            work.is_reset = true;
            work.wake();
        });
    }

    /// Wakes the tasks that waited for room and have it now.
    pub(in crate::shard) fn wake_writers(&self) {
        let connection = self.connection.borrow();
        let mut stream_work = self.stream_work.borrow_mut();
        for work in stream_work.iter_mut().filter(|work| work.waits_for_room && connection.has_room(work.stream)) {
            work.waits_for_room = false;
            work.wake();
        }
    }

    /// The connection has ended: cancels the work on its streams.
    pub(in crate::shard) fn end(&self) {
        *self.waker.borrow_mut() = None;
        for work in self.stream_work.borrow_mut().iter_mut() {
            work.departure.set(Departure::ConnectionClosed);
            work.is_reset = true;
            work.wake();
        }
    }
}

impl StreamWork {
    pub(in crate::shard) fn wake(&mut self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }
}
