//! Calls and orders of models on their way to the shard that runs them. Any thread pushes; the shard polls. Each is
//! answered exactly once: one that is dropped answers that the server is stopping. Bounded by [`NESTED_CALLS_MAX`],
//! which counts those that run too.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::backend::gateway::{NestedCall, NestedOrder, NestedReply};
use crate::error::Error;
use crate::limits::NESTED_CALLS_MAX;
use crate::model::parameters::Parameters;
use crate::queue::closable_queue::ClosableQueue;

/// The calls and orders of models that one shard has been given.
#[derive(Default)]
pub struct NestedQueue {
    waiting: ClosableQueue<NestedWork>,
    /// Those that wait and those that run.
    in_flight: Arc<AtomicUsize>,
}

/// The work that a model gives the server.
pub enum NestedWork {
    /// Inference on another model.
    Call(PendingCall),
    /// Model control.
    Order(PendingOrder),
}

/// A call that has not had its final reply.
pub struct PendingCall {
    /// The call. The task that runs it takes its parts.
    pub call: NestedCall,
    is_answered: bool,
    lease: Option<NestedLease>,
}

/// An order that has not had its reply.
pub struct PendingOrder {
    order: Option<NestedOrder>,
    lease: Option<NestedLease>,
}

/// The result of giving work to a shard.
pub enum PushOutcome {
    /// The shard does not run, or has closed meanwhile: this needs another one. It may be the work
    /// of another thread.
    Back(NestedWork),
    /// [`NESTED_CALLS_MAX`] are in flight.
    Full(NestedWork),
    /// The shard has it.
    Pushed,
}

/// A place among those in flight, free again when it is dropped.
struct NestedLease(Arc<AtomicUsize>);

impl Drop for NestedLease {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl NestedQueue {
    /// The shard runs and polls from now on.
    pub fn open(&self) {
        self.waiting.open();
    }

    /// The shard is about to end. It polls once more afterwards.
    pub fn close(&self) {
        self.waiting.close();
    }

    /// Returns true if the shard runs and polls.
    pub fn is_open(&self) -> bool {
        self.waiting.is_open()
    }

    /// The number of calls and orders that wait or run.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    /// Gives work to the shard, which must be woken then.
    pub fn push(&self, mut work: NestedWork) -> PushOutcome {
        if !self.is_open() {
            return PushOutcome::Back(work);
        }
        let one_more = |count: usize| (count < NESTED_CALLS_MAX).then_some(count + 1);
        if self.in_flight.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more).is_err() {
            return PushOutcome::Full(work);
        }
        work.set_lease(Some(NestedLease(Arc::clone(&self.in_flight))));
        match self.waiting.push(work) {
            Ok(()) => PushOutcome::Pushed,
            Err(mut work) => {
                work.set_lease(None);
                PushOutcome::Back(work)
            }
        }
    }

    /// The next work, in the order it came.
    pub fn poll(&self) -> Option<NestedWork> {
        self.waiting.poll()
    }
}

impl NestedWork {
    /// A call that was just made.
    pub const fn call(call: NestedCall) -> Self {
        Self::Call(PendingCall { call, is_answered: false, lease: None })
    }

    /// An order that was just given.
    pub const fn order(order: NestedOrder) -> Self {
        Self::Order(PendingOrder { order: Some(order), lease: None })
    }

    /// Answers with an error.
    pub fn refuse(self, error: Error) {
        match self {
            Self::Call(call) => call.end(Err(error)),
            Self::Order(mut order) => {
                if let Some(order) = order.take() {
                    (order.reply)(Err(error));
                }
            }
        }
    }

    fn set_lease(&mut self, lease: Option<NestedLease>) {
        match self {
            Self::Call(call) => call.lease = lease,
            Self::Order(order) => order.lease = lease,
        }
    }
}

impl PendingCall {
    /// Sends the final reply: outputs and parameters, or the error.
    pub fn end(mut self, reply: Result<NestedReply, Error>) {
        self.answer(reply);
    }

    fn answer(&mut self, reply: Result<NestedReply, Error>) {
        self.is_answered = true;
        let reply = reply.unwrap_or_else(|error| NestedReply {
            outputs: Err(error),
            parameters: Parameters::default(),
            is_final: true,
        });
        debug_assert!(reply.is_final, "nothing comes after it");
        // The caller may begin its next call at once: this one is over before.
        self.lease = None;
        self.call.replies.push(reply);
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        if !self.is_answered {
            self.answer(Err(stopping()));
        }
    }
}

impl PendingOrder {
    /// The order.
    pub const fn order(&self) -> Option<&NestedOrder> {
        self.order.as_ref()
    }

    /// The order, for the code that answers it.
    pub const fn take(&mut self) -> Option<NestedOrder> {
        self.order.take()
    }
}

impl Drop for PendingOrder {
    fn drop(&mut self) {
        if let Some(order) = self.order.take() {
            (order.reply)(Err(stopping()));
        }
    }
}

/// The error of work that no shard will run.
pub fn stopping() -> Error {
    Error::unavailable("server is stopping; BLS calls are refused")
}
