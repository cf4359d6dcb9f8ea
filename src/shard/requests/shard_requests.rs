//! The requests of one shard that wait for an answer, and the admission, compression and log of all.

use std::rc::Rc;
use std::sync::Arc;

use crate::backend::Ticket;
use crate::error::Error;
use crate::limits::IN_FLIGHT_MAX;
use crate::queue::completions::Completions;
use crate::queue::deferred_wakes::DeferredWakes;
use crate::queue::request_slots::RequestSlots;
use crate::shard::ServerContext;
use crate::shard::requests::access::AccessSampler;
use crate::shard::requests::compression::CompressionShare;
use crate::shard::requests::keys::ShardKeys;

/// The requests of one shard.
pub struct ShardRequests {
    /// Those that wait for an answer.
    pub slots: Rc<RequestSlots>,
    /// Queues whose instances are woken at the end of this turn.
    pub deferred_wakes: DeferredWakes,
    /// The share of the shard's time that compression takes.
    pub compression: CompressionShare,
    /// Chooses those that the access log shows.
    pub access: AccessSampler,
    /// The clients with keys.
    pub keys: ShardKeys,
}

impl ShardRequests {
    /// No requests yet, on the shard of this index.
    pub fn new(server_context: &ServerContext, index: usize) -> Self {
        Self {
            slots: Rc::new(RequestSlots::new(Arc::new(Completions::new()))),
            deferred_wakes: DeferredWakes::default(),
            compression: CompressionShare::default(),
            access: AccessSampler::new(server_context.service.access_log_per_million, index),
            keys: ShardKeys::new(server_context.keys.initial.as_ref()),
        }
    }

    /// A free ticket.
    ///
    /// # Errors
    /// Unavailable if [`IN_FLIGHT_MAX`] are in use.
    pub(super) fn open_ticket(&self) -> Result<Ticket, Error> {
        self.slots.open().ok_or_else(|| {
            Error::unavailable(format!(
                "this shard has {IN_FLIGHT_MAX} requests in flight (the limit); try again later"
            ))
        })
    }
}
