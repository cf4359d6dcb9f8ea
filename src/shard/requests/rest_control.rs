//! Requests of REST that run no model: health, metadata, configurations, statistics, the repository, settings, and shared
//! memory.

use std::rc::Rc;

use crate::error::Error;
use crate::model::repository::index::{LoadProgress, RepositoryOverview};
use crate::protocol::grpc::service::ServerFacts;
use crate::protocol::logging::LogUpdate;
use crate::protocol::repository::not_explicit;
use crate::protocol::rest::{self, openapi, server, statistics};
use crate::protocol::route::{ModelPath, RegionAction, RepositoryAction, Route};
use crate::protocol::shared_memory::{self, RegionKind};
use crate::protocol::trace;
use crate::runtime::clock;
use crate::shard::Shard;
use crate::shard::requests::predict;
use crate::shard::requests::text;
use crate::shard::requests::tracing::check_traced;
use crate::shard::services::console;
use crate::shard::services::hosted;
use crate::shard::services::metrics_text;
use crate::time::Instant;
use crate::wire::message::{Fields, Method, Reply};

/// Answers a request that runs no model.
///
/// # Errors
/// The refusal of the request.
pub async fn answer_control(
    shard: &Rc<Shard>,
    route: Route<'_>,
    method: Method,
    fields: &Fields,
    body: &[u8],
) -> Result<Reply, Error> {
    match route {
        Route::ModelReady(path) => model_ready(shard, path).await,
        Route::V1Status(path) => predict::status(shard, path).await,
        Route::Repository(action) => repository(shard, action, body).await,
        Route::Logging => log_settings(shard, method, body),
        Route::SharedMemory(kind, action, name) => regions(shard, kind, action, name, body).await,
        Route::TraceSetting(path) => trace_setting(shard, path, method, body).await,
        Route::Links => Ok(links(shard, fields)),
        Route::Metrics => Ok(metrics_text::reply(shard, fields.get("accept")).await),
        Route::Hosted(action) => hosted::answer(shard, action, fields, body).await,
        route => match wanted_model(&route) {
            Some(name) => shard.models.want(name, None).await.and_then(|()| answer(shard, route)),
            None => answer(shard, route),
        },
    }
}

fn answer(shard: &Shard, route: Route<'_>) -> Result<Reply, Error> {
    Ok(match route {
        Route::TextHealth => text::health_reply(shard),
        Route::TextInfo(name) => text::info_reply(shard, name),
        Route::TextModels => text::models_reply(shard),
        Route::Models => text::with_names(shard, server::models_reply),
        Route::ServerMetadata => server::metadata_reply(shard.name(), shard.version(), shard.extensions()),
        Route::ServerLive if shard.server_context.service.follows_triton => server::bare_health_reply(true),
        Route::ServerReady if shard.server_context.service.follows_triton => {
            server::bare_health_reply(shard.is_ready())
        }
        Route::ServerLive => server::live_reply(),
        Route::ServerReady => {
            server::ready_reply(shard.is_ready(), shard.models.start_counts(), &loads(&shard.models.overview()))
        }
        Route::Docs => openapi::page_reply(),
        Route::OpenApi => openapi::reply(shard.version(), shard.requests.admission.needs_keys()),
        Route::ModelOpenApi(path) => {
            let facts = shard.model(path.name, path.version)?;
            openapi::model_reply(shard.version(), shard.requests.admission.needs_keys(), path, &facts.spec)
        }
        Route::ModelMetadata(path) => {
            let facts = shard.model(path.name, path.version)?;
            server::model_metadata_reply(&facts.spec, &facts.versions)
        }
        Route::V1Metadata(path) => predict::metadata(shard, path)?,
        Route::ModelConfig(path) => server::model_config_reply(&shard.model(path.name, path.version)?.spec),
        Route::Statistics => statistics::statistics_reply(&shard.statistics(None, None)?),
        Route::ModelStatistics(path) => statistics::statistics_reply(&shard.statistics(Some(path.name), path.version)?),
        Route::Logging
        | Route::ModelGenerate(..)
        | Route::ModelInfer(_)
        | Route::Hosted(_)
        | Route::Metrics
        | Route::Text(..)
        | Route::Links
        | Route::ModelReady(_)
        | Route::ModelPredict(_)
        | Route::V1Status(_)
        | Route::Repository(_)
        | Route::SharedMemory(..)
        | Route::TraceSetting(_) => {
            return Err(Error::internal("this route is answered asynchronously"));
        }
    })
}

/// The links at the root of the port.
fn links(shard: &Shard, fields: &Fields) -> Reply {
    let console = console::link(shard.server_context.service.console, fields);
    server::links_reply(console.as_deref(), server::prefers_html(fields.get("accept")))
}

async fn model_ready(shard: &Shard, path: ModelPath<'_>) -> Result<Reply, Error> {
    let follows_triton = shard.server_context.service.follows_triton;
    let is_ready = match shard.models.readiness(path.name, path.version).await {
        Ok(is_ready) => is_ready,
        Err(_) if follows_triton => false,
        Err(error) => return Err(error),
    };
    Ok(model_ready_reply(path, follows_triton, is_ready))
}

fn model_ready_reply(path: ModelPath<'_>, follows_triton: bool, is_ready: bool) -> Reply {
    if follows_triton {
        server::bare_model_ready_reply(is_ready)
    } else {
        server::model_ready_reply(path.name, is_ready)
    }
}

/// The model whose configuration or metadata a route asks for.
const fn wanted_model<'a>(route: &Route<'a>) -> Option<&'a str> {
    match route {
        Route::ModelConfig(path) | Route::ModelMetadata(path) | Route::ModelOpenApi(path) | Route::V1Metadata(path) => {
            Some(path.name)
        }
        Route::TextInfo(name) => *name,
        _ => None,
    }
}

fn log_settings(shard: &Shard, method: Method, body: &[u8]) -> Result<Reply, Error> {
    let update = if method == Method::Post { rest::logging::update(body)? } else { LogUpdate::default() };
    Ok(rest::logging::reply(&shard.log_settings(&update)?))
}

/// The trace setting of a model, or the global one, after the change that a POST asks for.
async fn trace_setting(
    shard: &Rc<Shard>,
    path: Option<ModelPath<'_>>,
    method: Method,
    body: &[u8],
) -> Result<Reply, Error> {
    let name = path.map_or("", |path| path.name);
    check_traced(&shard.models, name)?;
    if method == Method::Post {
        shard.server_context.send_trace_order(trace::rest::order(name, body)?).await?;
    }
    Ok(trace::rest::reply(&shard.services.traces.table(), name))
}

async fn regions(
    shard: &Rc<Shard>,
    kind: RegionKind,
    action: RegionAction,
    name: &str,
    body: &[u8],
) -> Result<Reply, Error> {
    let is_on = shard.server_context.shared_memory.is_some();
    if !is_on && action != RegionAction::Status {
        return Err(shared_memory::disabled());
    }
    let order = rest::shared_memory::order(kind, action, name, body)?;
    let found = if is_on {
        shard.server_context.send_region_request(order).await?
    } else {
        shared_memory::without_regions(&order)?
    };
    Ok(rest::shared_memory::reply(action, &found))
}

async fn repository(shard: &Rc<Shard>, action: RepositoryAction<'_>, body: &[u8]) -> Result<Reply, Error> {
    if let RepositoryAction::Index = action {
        return Ok(rest::repository::index_reply(
            &shard.server_context.send_control_request(rest::repository::index_order(body)?).await?,
        ));
    }
    if !shard.server_context.service.is_controlled {
        return Err(not_explicit());
    }
    let order = match action {
        RepositoryAction::Index => return Err(Error::internal("the index was answered before")),
        RepositoryAction::Load(name) => rest::repository::load_order(name, body)?,
        RepositoryAction::Unload(name) => rest::repository::unload_order(name, body)?,
    };
    shard.server_context.send_control_request(order).await?;
    Ok(rest::repository::done_reply())
}

/// The progress of running loads.
fn loads(overview: &RepositoryOverview) -> Vec<server::LoadNote> {
    let now = clock::now();
    let note = |(name, progress): (&str, &LoadProgress)| {
        let (done, versions) = progress.versions();
        let stage = progress.stage().as_str();
        let began = Instant::from_micros(progress.began_millis.saturating_mul(1_000));
        server::LoadNote { name: name.to_owned(), stage, done, versions, seconds: now.since(began).as_secs() }
    };
    overview.loading().map(note).collect()
}
