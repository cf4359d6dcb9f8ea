//! REST: from an HTTP message to its reply, over HTTP/1.1 and HTTP/2 alike. The route selects what answers: the
//! protocol code, a model, or the control thread.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;

use crate::backend::details::CallChain;
use crate::budget::ReceiveReservation;
use crate::error::Error;
use crate::metrics::{Departure, ModelStatistics};
use crate::model::repository::index::{IndexEntry, LoadProgress};
use crate::protocol::grpc::service::{ModelFacts, ServerFacts};
use crate::protocol::repository::{RepositoryOrder, not_explicit};
use crate::protocol::rest::{self, server, statistics};
use crate::protocol::route::{ModelPath, RegionAction, RepositoryAction, Route, route, unavailable_model};
use crate::protocol::shared_memory::{self, RegionKind, Regions};
use crate::protocol::timing::{self, Timing};
use crate::queue::one_shot::Lease;
use crate::queue::served_model::ServedModel;
use crate::runtime::clock;
use crate::shard::Shard;
use crate::shard::control_request::{ControlLease, OrderOrigin};
use crate::shard::infer::{Arrival, RequestMetrics};
use crate::shard::infer_pipeline::{self, NoHooks, PipelineInput, PipelineOutput};
use crate::shard::mailbox::ControlEvent;
use crate::time::Instant;
use crate::wire::message::{Fields, Message, Reply};

/// The header field with the size of a body's JSON part; binary data follows it.
const HEADER_LENGTH: &str = "Inference-Header-Content-Length";

/// The reply to a message that was received at this instant. Where the future is dropped before, the client has left,
/// and `departure` holds how.
pub async fn handle_message(
    shard: &Rc<Shard>,
    message: Message,
    memory: ReceiveReservation,
    received: Instant,
    departure: &Cell<Departure>,
) -> Reply {
    let Message { method, path, fields, body } = message;
    let outcome = match route(method, &path) {
        Ok(Route::ModelInfer(path)) => {
            let request_metrics = RequestMetrics::open(&shard.cells, departure);
            let outcome = infer(shard, path, &fields, (body, memory), received).await;
            request_metrics.settle(&outcome);
            outcome
        }
        Ok(Route::ModelReady(path)) => model_ready(shard, path).await,
        Ok(Route::Repository(action)) => repository(shard, action, &body).await,
        Ok(Route::SharedMemory(kind, action, name)) => regions(shard, (kind, action, name), &body).await,
        Ok(route) => answer(shard, route),
        Err(error) => Err(error),
    };
    outcome.unwrap_or_else(|error| {
        let mut reply = rest::error_reply(&error);
        if AskedFields::read(&fields).is_coded {
            // Lists the codings that a body may have (RFC 9110 §12.5.3).
            reply.fields.push(("Accept-Encoding", Bytes::from_static(b"identity")));
        }
        reply
    })
}

/// What the header fields of a request ask for, read in one pass.
#[derive(Default)]
struct AskedFields<'a> {
    /// Whether its body is encoded (compressed); this server decodes none.
    is_coded: bool,
    /// The size of the body's JSON part, as the client sent it.
    header_length: Option<&'a [u8]>,
    /// Whether the client asks for the times of the stages.
    wants_timing: bool,
}

impl<'a> AskedFields<'a> {
    fn read(fields: &'a Fields) -> Self {
        let mut asked = Self::default();
        for (name, value) in fields.iter() {
            if name.eq_ignore_ascii_case(HEADER_LENGTH.as_bytes()) {
                asked.header_length = asked.header_length.or(Some(value));
            } else if name.eq_ignore_ascii_case(b"Content-Encoding") {
                asked.is_coded |= has_coding(value);
            } else if name.eq_ignore_ascii_case(timing::WANT.as_bytes()) {
                asked.wants_timing |= timing::is_wanted(value);
            }
        }
        asked
    }
}

/// Whether one of a list of codings is not the identity.
fn has_coding(codings: &[u8]) -> bool {
    let mut codings = codings.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    codings.any(|coding| !coding.is_empty() && !coding.eq_ignore_ascii_case(b"identity"))
}

fn answer(shard: &Shard, route: Route<'_>) -> Result<Reply, Error> {
    Ok(match route {
        Route::ServerMetadata => server::metadata_reply(shard.name(), shard.version(), shard.extensions()),
        Route::ServerLive if shard.server_context.service.has_bare_health => server::bare_health_reply(true),
        Route::ServerReady if shard.server_context.service.has_bare_health => {
            server::bare_health_reply(shard.is_ready())
        }
        Route::ServerLive => server::live_reply(),
        Route::ServerReady => server::ready_reply(shard.is_ready(), shard.models.start_counts(), &shard.loads()),
        Route::ModelMetadata(path) => {
            let facts = shard.model(path.name, path.version)?;
            server::model_metadata_reply(&facts.spec, &facts.versions)
        }
        Route::ModelConfig(path) => server::model_config_reply(&shard.model(path.name, path.version)?.spec),
        Route::Statistics => statistics::statistics_reply(&shard.statistics(None, None)?),
        Route::ModelStatistics(path) => statistics::statistics_reply(&shard.statistics(Some(path.name), path.version)?),
        Route::ModelInfer(_) | Route::ModelReady(_) | Route::Repository(_) | Route::SharedMemory(..) => {
            return Err(Error::internal("this route is answered asynchronously"));
        }
    })
}

async fn model_ready(shard: &Shard, path: ModelPath<'_>) -> Result<Reply, Error> {
    let has_bare_health = shard.server_context.service.has_bare_health;
    let is_ready = match shard.models.find(path.name, path.version) {
        Ok(model) => shard.is_ready_by_its_code(&model).await,
        // It is loading, failed to load or was unloaded.
        Err(_) if shard.models.overview().has(path.name, path.version) => false,
        Err(_) if has_bare_health => false,
        Err(error) => return Err(error),
    };
    Ok(if has_bare_health {
        server::bare_model_ready_reply(is_ready)
    } else {
        server::model_ready_reply(path.name, is_ready)
    })
}

async fn infer(
    shard: &Rc<Shard>,
    path: ModelPath<'_>,
    fields: &Fields,
    (body, memory): (Bytes, ReceiveReservation),
    received: Instant,
) -> Result<Reply, Error> {
    let asked = AskedFields::read(fields);
    let input = PipelineInput {
        memory,
        arrival: Arrival { received, deadline: None, depth: 0, chain: CallChain::default() },
        is_timed: asked.wants_timing || shard.server_context.service.tells_timing,
    };
    let decode = move |regions: Option<&Regions>, memory: &mut ReceiveReservation| {
        let model = shard.models.find(path.name, path.version)?;
        if asked.is_coded {
            return Err(Error::unsupported("Unsupported compression type"));
        }
        let header_length = rest::HeaderLength::from_field(asked.header_length)?;
        let request = rest::decode(&model.served().spec, header_length, body, regions, memory)?;
        Ok((model, request))
    };
    let output = infer_pipeline::run(shard, input, decode, &mut NoHooks).await?;
    let PipelineOutput { model, outputs, parameters, plan, stamps, decoded_at, .. } = output;
    let served = model.served();
    let mut reply = rest::encode(&served.spec, served.version, &plan, outputs, parameters.as_deref())?;
    if let Some(decoded) = decoded_at {
        let text = Timing { stamps, decoded, encoded: clock::now() }.text();
        reply.fields.push((timing::FIELD, Bytes::from(text)));
    }
    Ok(reply)
}

async fn regions(
    shard: &Rc<Shard>,
    (kind, action, name): (RegionKind, RegionAction, &str),
    body: &[u8],
) -> Result<Reply, Error> {
    if shard.server_context.shared_memory.is_none() {
        return Err(shared_memory::disabled());
    }
    let order = rest::shared_memory::order(kind, action, name, body)?;
    Ok(rest::shared_memory::reply(action, &shard.send_region_request(order).await?))
}

async fn repository(shard: &Rc<Shard>, action: RepositoryAction<'_>, body: &[u8]) -> Result<Reply, Error> {
    if let RepositoryAction::Index = action {
        return Ok(rest::repository::index_reply(
            &shard.send_control_request(rest::repository::index_order(body)?).await?,
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
    shard.send_control_request(order).await?;
    Ok(rest::repository::done_reply())
}

impl Shard {
    /// Sends a request to the control thread and awaits its answer. Dropped before, the request is carried out all the
    /// same.
    ///
    /// # Errors
    /// Unavailable, where the server drains or too many requests wait; what the control thread answers.
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
        if self.server_context.lifecycle.is_draining() {
            return Err(ControlLease::closed());
        }
        let (reply, awaited) = self.server_context.control_link.requests.admit(&order, origin)?;
        (self.server_context.control_link.control)(ControlEvent::Ordered(order, reply));
        awaited.await
    }

    /// The progress of running loads.
    fn loads(&self) -> Vec<server::LoadNote> {
        let now = clock::now();
        let note = |(name, progress): (&str, &LoadProgress)| {
            let (done, versions) = progress.versions();
            let stage = progress.stage().as_str();
            let began = Instant::from_micros(progress.began_millis.saturating_mul(1_000));
            server::LoadNote { name: name.to_owned(), stage, done, versions, seconds: now.since(began).as_secs() }
        };
        self.models.overview().loading().map(note).collect()
    }
}

impl ServerFacts for Shard {
    fn name(&self) -> &str {
        &self.server_context.service.id
    }

    fn version(&self) -> &str {
        env!("CARGO_PKG_VERSION")
    }

    fn extensions(&self) -> &[&str] {
        if self.server_context.shared_memory.is_some() {
            &server::EXTENSIONS_WITH_SHARED_MEMORY
        } else {
            &server::EXTENSIONS
        }
    }

    fn is_live(&self) -> bool {
        true
    }

    fn is_ready(&self) -> bool {
        Self::is_ready(self)
    }

    fn model(&self, name: &str, version: Option<u64>) -> Result<ModelFacts, Error> {
        let model = self.models.find(name, version)?;
        if !self.is_model_ready(&model) {
            let version = model.served().version;
            return Err(Error::unavailable(format!(
                "Request for unknown model: '{name}' version {version} is not at ready state"
            )));
        }
        let versions = match version {
            Some(version) => vec![version],
            None => self.models.versions(name),
        };
        Ok(ModelFacts { spec: Arc::clone(&model.served().spec), versions })
    }

    fn statistics(&self, name: Option<&str>, version: Option<u64>) -> Result<Vec<ModelStatistics>, Error> {
        let is_named = |served: &ServedModel| name.is_none_or(|name| served.spec.name == name);
        let served = self.models.served();
        let mut models: Vec<_> = served.iter().filter(|served| is_named(served)).collect();
        if let Some(name) = name {
            if models.is_empty() {
                return Err(unavailable_model(name));
            }
            models.retain(|served| version.is_none_or(|version| served.version == version));
            if models.is_empty() {
                return Err(Error::invalid(format!("requested model version is not available for model '{name}'")));
            }
        }
        models.sort_by_key(|served| (&served.spec.name, served.version));
        Ok(models.into_iter().map(|served| served.figures().statistics()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_coded_unless_all_its_codings_are_the_identity() {
        let check = |codings: &[&str], want| {
            let mut fields = Fields::new();
            fields.push("Content-Type", "gzip");
            codings.iter().for_each(|coding| fields.push("content-encoding", coding));
            assert_eq!(AskedFields::read(&fields).is_coded, want, "{codings:?}");
        };
        for plain in [&[][..], &[""], &["identity"], &["Identity", "identity , identity"]] {
            check(plain, false);
        }
        for coded in [&["gzip"][..], &["deflate"], &["br"], &["identity, gzip"], &["identity", "gzip"], &["gzip;q=0"]] {
            check(coded, true);
        }
    }
}
