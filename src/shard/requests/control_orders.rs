//! Orders of clients and models to the control thread: models, their index, trace settings. Each is awaited.

use std::sync::Arc;

use crate::error::Error;
use crate::model::repository::index::IndexEntry;
use crate::protocol::repository::RepositoryOrder;
use crate::protocol::trace::TraceOrder;
use crate::queue::one_shot::Lease;
use crate::shard::ServerContext;
use crate::shard::mailbox::ControlEvent;
use crate::shard::services::control_request::{ControlLease, OrderOrigin};
use crate::shard::services::trace_settings::TraceLease;

impl ServerContext {
    /// Sends a request to the control thread and awaits its answer. If the future is dropped
    /// before, the request is carried out all the same.
    ///
    /// # Errors
    /// Unavailable, if the server drains or too many requests wait; else the control thread's
    /// error.
    pub async fn send_control_request(&self, order: RepositoryOrder) -> Result<Vec<IndexEntry>, Error> {
        self.send_order(order, None).await
    }

    /// As [`Self::send_control_request`], for the order of a model, with its origin.
    ///
    /// # Errors
    /// Likewise.
    pub async fn send_order(
        &self,
        order: RepositoryOrder,
        origin: Option<Arc<OrderOrigin>>,
    ) -> Result<Vec<IndexEntry>, Error> {
        if self.lifecycle.is_draining() {
            return Err(ControlLease::closed());
        }
        let (reply, awaited) = self.control_link.requests.admit(&order, origin)?;
        (self.control_link.control)(ControlEvent::Ordered(order, reply));
        awaited.await
    }

    /// Changes trace settings, and waits until every shard has the new ones.
    ///
    /// # Errors
    /// Unavailable if the server drains or too many clients wait; the reason why the settings were
    /// refused.
    pub async fn send_trace_order(&self, order: TraceOrder) -> Result<(), Error> {
        if self.lifecycle.is_draining() {
            return Err(TraceLease::closed());
        }
        let (reply, awaited) = self.traces.admit()?;
        (self.control_link.control)(ControlEvent::TraceOrdered(order, reply));
        awaited.await
    }
}
