//! Requests for models that are loaded when they are first asked for (`--model-cache-bytes-max`):
//! they wait here until the control thread has the model loaded and this shard has it, or the load
//! fails.

use bytes::Bytes;

use crate::error::Error;
use crate::limits::MODEL_WAITS_MAX;
use crate::protocol::grpc::message::InferOutline;
use crate::queue::one_shot::Lease;
use crate::runtime::clock;
use crate::shard::deadline::unless_late;
use crate::shard::mailbox::ControlEvent;
use crate::shard::models::model_table::ModelTable;
use crate::shard::services::control_request::ControlLease;
use crate::time::Instant;

impl ModelTable {
    /// Returns true if a request for a model has to wait until it is loaded.
    pub fn is_wanted(&self, name: &str) -> bool {
        self.context.server.control_link.model_wait.is_some() && !self.has(name)
    }

    /// The same for a message of gRPC.
    pub fn is_wanted_by(&self, message: &Bytes) -> bool {
        self.context.server.control_link.model_wait.is_some()
            && InferOutline::read(message).is_ok_and(|outline| self.is_wanted(outline.model_name))
    }

    /// Waits for a model that is not loaded, if models are loaded on demand. If they are not, and
    /// for a name that cannot be one, the lookup of the model reports the error.
    ///
    /// # Errors
    /// The reason why it is not loaded, or not in time.
    pub async fn want(&self, name: &str, deadline: Option<Instant>) -> Result<(), Error> {
        if !self.is_wanted(name) {
            return Ok(());
        }
        // Boxed: large, and most requests find their model.
        Box::pin(self.wait_for(name, deadline)).await
    }

    /// As [`Self::want`], for the model that a message of gRPC names. The decoder reports messages
    /// that cannot be read.
    ///
    /// # Errors
    /// Likewise.
    pub async fn want_of(&self, message: &Bytes, deadline: Option<Instant>) -> Result<(), Error> {
        if !self.is_wanted_by(message) {
            return Ok(());
        }
        let name = InferOutline::read(message).map(|outline| outline.model_name.to_owned()).unwrap_or_default();
        Box::pin(self.wait_for(&name, deadline)).await
    }

    async fn wait_for(&self, name: &str, deadline: Option<Instant>) -> Result<(), Error> {
        let link = &self.context.server.control_link;
        let Some(wait) = link.model_wait else { return Ok(()) };
        if self.context.server.lifecycle.is_draining() {
            return Err(ControlLease::closed());
        }
        let cells = &self.context.cells.model_waits;
        cells.waited.add(1);
        let Some((reply, awaited)) = link.waits.admit_wait(MODEL_WAITS_MAX) else {
            cells.refused.add(1);
            return Err(Error::overloaded(format!(
                "{MODEL_WAITS_MAX} requests wait for models to be loaded (the limit); try again later"
            )));
        };
        (link.control)(ControlEvent::Wanted(name.to_owned(), reply));
        let late_at = clock::now() + wait;
        let outcome = unless_late(awaited, Some(deadline.map_or(late_at, |deadline| deadline.min(late_at)))).await;
        match outcome {
            Ok(_) => Ok(()),
            Err(_) if deadline.is_none_or(|deadline| late_at < deadline) && clock::now() >= late_at => {
                cells.late.add(1);
                Err(Error::unavailable(format!(
                    "model '{name}' is still loading after {} ms (--model-cache-wait-ms); try again later",
                    wait.as_millis()
                )))
            }
            Err(error) => Err(error),
        }
    }
}
