//! The trace settings as a shard has them. The control thread changes them, and they come by the mailbox; a client that
//! changed them is answered when all shards have the new ones.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::Error;
use crate::limits::TRACE_ORDERS_MAX;
use crate::queue::one_shot::{Lease, OneShotReceiver, OneShotSender, one_shot};
use crate::queue::trace_queue::TraceQueue;
use crate::trace::TraceTable;

/// The state that all shards share for tracing.
#[derive(Default)]
pub struct TraceLink {
    /// The queue of records; `None` if no setting can turn tracing on.
    pub queue: Option<Arc<TraceQueue>>,
    /// The settings that the command line makes.
    pub initial: Arc<TraceTable>,
    /// Clients that wait for a change of the settings.
    pub waiting: Arc<AtomicUsize>,
}

/// Answers a client that changed the settings.
pub type TraceReply = OneShotSender<(), TraceLease>;

/// One client's share of [`TRACE_ORDERS_MAX`].
pub struct TraceLease {
    waiting: Arc<AtomicUsize>,
}

/// Settings as shards receive them; the client that changed them is answered when the last shard has dropped this.
pub struct PublishedTraces {
    /// The settings from now on.
    pub table: Arc<TraceTable>,
    reply: Option<TraceReply>,
}

/// The trace settings as a shard has them. Lives on its shard.
pub struct ShardTraces {
    /// The queue of records; `None` if no setting can turn tracing on.
    pub(in crate::shard) queue: Option<Arc<TraceQueue>>,
    table: RefCell<Arc<TraceTable>>,
    is_on: Cell<bool>,
}

impl TraceLink {
    /// A place among the clients that wait: the sender of the answer, and the receiver to await.
    ///
    /// # Errors
    /// Unavailable if [`TRACE_ORDERS_MAX`] wait.
    pub fn admit(&self) -> Result<(TraceReply, OneShotReceiver<()>), Error> {
        let within = |waiting: usize| (waiting < TRACE_ORDERS_MAX).then_some(waiting + 1);
        if self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_err() {
            return Err(Error::unavailable(format!(
                "{TRACE_ORDERS_MAX} changes of trace settings wait (the limit); try again later"
            )));
        }
        Ok(one_shot(TraceLease { waiting: Arc::clone(&self.waiting) }))
    }
}

impl PublishedTraces {
    /// Settings, and the reply to send when all shards have them.
    pub const fn new(table: Arc<TraceTable>, reply: TraceReply) -> Self {
        Self { table, reply: Some(reply) }
    }
}

impl Drop for PublishedTraces {
    fn drop(&mut self) {
        if let Some(reply) = self.reply.take() {
            reply.send(Ok(()));
        }
    }
}

impl Drop for TraceLease {
    fn drop(&mut self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Lease for TraceLease {
    fn closed() -> Error {
        Error::unavailable("server is stopping; changes of trace settings are refused")
    }
}

impl ShardTraces {
    /// Begins with the settings of the command line.
    pub fn new(link: &TraceLink) -> Self {
        let table = RefCell::new(Arc::clone(&link.initial));
        Self { queue: link.queue.clone(), is_on: Cell::new(link.initial.is_on()), table }
    }

    /// Takes new settings.
    pub fn set(&self, table: &Arc<TraceTable>) {
        self.is_on.set(table.is_on());
        *self.table.borrow_mut() = Arc::clone(table);
    }

    /// Returns true if any request may be traced.
    pub const fn is_on(&self) -> bool {
        self.is_on.get()
    }

    /// The settings.
    pub fn table(&self) -> Arc<TraceTable> {
        Arc::clone(&self.table.borrow())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_wait_are_bounded_and_give_their_place_back() {
        let link = TraceLink::default();
        let held: Vec<_> = (0..TRACE_ORDERS_MAX).map(|_| link.admit().unwrap()).collect();
        let error = link.admit().err().unwrap();
        assert!(error.text().contains("256 changes of trace settings wait"), "{error}");
        drop(held);
        assert!(link.admit().is_ok());
    }
}
