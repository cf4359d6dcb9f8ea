//! The server as a backend sees it (`TRITONSERVER_Server`): one for each model, so that a call
//! identifies the caller. Orders block the backend's thread until they are carried out, as in
//! Triton.

use std::sync::Arc;
use std::sync::mpsc::channel;

use crate::triton::caller::HostedCaller;
use crate::triton::object::hosted_object;
use crate::triton::services;
use backend::details::RequestDetails;
use backend::gateway::{NestedOrder, OrderKind};
use base::error::Error;

/// A `TRITONSERVER_Server`.
pub(super) struct ServerObject {
    pub(super) caller: Arc<HostedCaller>,
}

hosted_object!(ServerObject, "server", 21);

impl ServerObject {
    /// Gives an order to the server and waits for the outcome.
    ///
    /// # Errors
    /// The server's error.
    pub(super) fn order(&self, kind: OrderKind, model: &str) -> Result<bool, Error> {
        let (sender, outcome) = channel();
        // This fails only if the reply is no longer awaited.
        let reply = Box::new(move |outcome| drop(sender.send(outcome)));
        let details = RequestDetails { chain: self.caller.chain(), ..RequestDetails::default() };
        services::get()?.gateway.control(NestedOrder { kind, model: model.to_owned(), details, reply });
        outcome.recv().unwrap_or_else(|_| Err(Error::unavailable("the server is stopping")))
    }
}

/// A version as the interface gives it: -1 for any.
///
/// # Errors
/// `InvalidArgument` for another number below 1.
pub(super) fn version_of(number: i64) -> Result<Option<u64>, Error> {
    match u64::try_from(number) {
        Ok(version) => Ok(Some(version)),
        Err(_) if number == -1 => Ok(None),
        Err(_) => Err(Error::invalid(format!("{number} is no version of a model, which is 1 or more, or -1 for any"))),
    }
}
