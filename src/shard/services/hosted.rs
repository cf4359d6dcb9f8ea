//! The models that the host of the server loads by their paths: SageMaker's multi-model contract.
//! They are listed in the overview that every shard has; loads and unloads are orders to the
//! control thread, as those of any client.

use std::rc::Rc;

use crate::error::Error;
use crate::log;
use crate::protocol::repository::{RepositoryOrder, not_explicit};
use crate::protocol::rest::hosted;
use crate::protocol::route::{HostedAction, ModelPath, Route};
use crate::shard::Shard;
use crate::wire::message::{Fields, Reply};

/// The name under which a model is served, if a request invokes it by the host's name.
pub fn invoked_model(shard: &Shard, route: &Result<Route<'_>, Error>) -> Option<Result<String, Error>> {
    let Ok(Route::Hosted(HostedAction::Invoke(name))) = route else { return None };
    Some(served_name(shard, name))
}

/// Returns the route of an invocation, which is an inference like any other, if the model exists.
///
/// # Errors
/// The error that it does not exist.
pub fn inference(model: &Result<String, Error>) -> Result<Route<'_>, Error> {
    let model = model.as_deref().map_err(Clone::clone)?;
    Ok(Route::ModelInfer(ModelPath { name: model, version: None }))
}

/// Answers requests that are not an invocation.
///
/// # Errors
/// `NotFound` for a model that the host has not loaded, `Conflict` for one that it has, and the
/// error of a load that is refused or fails.
pub async fn answer(shard: &Rc<Shard>, action: HostedAction<'_>, fields: &Fields, body: &[u8]) -> Result<Reply, Error> {
    let overview = shard.models.overview();
    match action {
        HostedAction::List => {
            let serving = overview.models.iter().filter(|model| model.is_serving());
            Ok(hosted::list_reply(serving.filter_map(|model| model.hosted.as_deref())))
        }
        HostedAction::Describe(name) => {
            let mut all = overview.models.iter().filter_map(|model| model.hosted.as_deref());
            let found = all.find(|hosted| hosted.name == name);
            found.map(hosted::model_reply).ok_or_else(|| hosted::unknown(name))
        }
        HostedAction::Load => {
            check_controlled(shard)?;
            let paths = shard.server_context.front_ends.sagemaker.as_ref();
            let root = paths.map_or("", |paths| paths.models_root.as_str());
            let order = hosted::load_order(body, root, fields.get(hosted::TARGET_MODEL))?;
            log::info(&format!("Loading SageMaker TargetModel: {}", order.model().unwrap_or_default()));
            shard.server_context.send_control_request(order).await.map_err(hosted::load_failure)?;
            Ok(hosted::done_reply())
        }
        HostedAction::Unload(name) => {
            check_controlled(shard)?;
            let name = served_name(shard, name)?;
            log::info(&format!("Unloading SageMaker TargetModel: {name}"));
            // With the steps of an ensemble that no other model uses.
            let order = RepositoryOrder::Unload { name, with_dependents: true };
            shard.server_context.send_control_request(order).await.map_err(hosted::load_failure)?;
            Ok(hosted::done_reply())
        }
        HostedAction::Invoke(_) => Err(Error::internal("an invocation is answered as an inference")),
    }
}

fn check_controlled(shard: &Shard) -> Result<(), Error> {
    if shard.server_context.service.is_controlled { Ok(()) } else { Err(not_explicit()) }
}

fn served_name(shard: &Shard, name: &str) -> Result<String, Error> {
    let overview = shard.models.overview();
    let is_it = |model: &&model::repository::index::ModelOverview| {
        model.hosted.as_ref().is_some_and(|hosted| hosted.name == name)
    };
    overview.models.iter().find(is_it).map(|model| model.name.clone()).ok_or_else(|| hosted::unknown(name))
}
