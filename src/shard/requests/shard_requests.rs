//! The requests of one shard that wait for an answer, and the admission, compression and log of all.

use std::rc::Rc;
use std::sync::Arc;

use crate::backend::Ticket;
use crate::error::Error;
use crate::limits::IN_FLIGHT_MAX;
use crate::queue::completions::Completions;
use crate::queue::deferred_wakes::DeferredWakes;
use crate::queue::request_slots::RequestSlots;
use crate::shard::requests::access::AccessSampler;
use crate::shard::requests::admission::ShardAdmission;
use crate::shard::requests::compression::CompressionShare;
use crate::shard::server_context::ShardContext;

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
    /// Admits them.
    pub admission: ShardAdmission,
}

impl ShardRequests {
    /// No requests yet.
    pub fn new(context: ShardContext) -> Self {
        Self {
            slots: Rc::new(RequestSlots::new(Arc::new(Completions::new()))),
            deferred_wakes: DeferredWakes::default(),
            compression: CompressionShare::default(),
            access: AccessSampler::new(context.server.service.access_log_per_million, context.index),
            admission: ShardAdmission::new(context),
        }
    }

    /// A free ticket.
    ///
    /// # Errors
    /// Unavailable if [`IN_FLIGHT_MAX`] are in use.
    pub(super) fn open_ticket(&self) -> Result<Ticket, Error> {
        self.slots.open().ok_or_else(|| {
            Error::overloaded(format!("this shard has {IN_FLIGHT_MAX} requests in flight (the limit); try again later"))
        })
    }

    /// `count` tickets with this one as the first; `None`, with this one alone still open, if there are too few.
    pub(super) fn open_tickets(&self, first: Ticket, count: usize) -> Option<Vec<Ticket>> {
        let mut tickets = vec![first];
        while tickets.len() < count {
            let Ok(ticket) = self.open_ticket() else {
                tickets.drain(1..).for_each(|ticket| self.slots.release(ticket));
                return None;
            };
            tickets.push(ticket);
        }
        Some(tickets)
    }
}
