//! Refuses a call between models that could only wait for itself: one whose chain of callers holds
//! every instance of the model version that it reaches. Two chains that each hold an instance that
//! the other needs are not detected: deadlines end them.

use smallvec::SmallVec;

use crate::backend::details::{CallChain, CallLink};
use crate::error::Error;
use crate::model::name::split_qualified;
use crate::queue::served_model::{Placement, ServedModel};

/// Checks a request before it is queued for a model version. Requests of clients have no callers and cost nothing.
///
/// # Errors
/// Unavailable if all instances wait for the request: with more of them it could run.
pub(super) fn check_free(chain: &CallChain, served: &ServedModel) -> Result<(), Error> {
    // An instance inside a shard waits for nothing, and so blocks no request.
    let Placement::Worker(model_queue) = &served.placement else { return Ok(()) };
    let model = (&*served.spec.namespace, &*served.spec.name);
    let is_instance = |link: &&CallLink| link.version == served.version && split_qualified(&link.model) == model;
    let mut held: SmallVec<[&str; 4]> = chain.links().filter(is_instance).map(|link| &*link.instance).collect();
    if held.is_empty() {
        return Ok(());
    }
    held.sort_unstable();
    held.dedup();
    if held.len() < model_queue.active_instances() {
        return Ok(());
    }
    Err(Error::unavailable(format!(
        "every instance of model '{}' version {} already waits for this call, which would wait for ever; raise 'count' \
         of its instance_group",
        served.spec.name, served.version
    )))
}
