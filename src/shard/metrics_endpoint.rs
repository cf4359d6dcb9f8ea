//! The metrics endpoint: `/metrics` is the sum over all shards; any other path is an empty 200, as in tritonserver.

use std::rc::Rc;

use bytes::Bytes;

use crate::error::{Code, Error};
use crate::metrics::{self, LoadFigures};
use crate::model::repository::index::{ModelOverview, VersionOverview};
use crate::protocol::rest;
use crate::runtime::socket::Socket;
use crate::shard::connections::ConnectionGuard;
use crate::shard::{Shard, http1};
use crate::wire::message::{Message, Method, Reply};

/// Serves one connection to its end.
pub async fn run(shard: &Rc<Shard>, socket: Socket, connection_guard: &ConnectionGuard) {
    let shard = Rc::clone(shard);
    let own = Rc::clone(&shard);
    let answer = move |message: Message, _| {
        let reply = reply(&own, &message);
        async move { reply }
    };
    http1::serve(&shard, socket, Vec::new(), connection_guard, answer).await;
}

fn reply(shard: &Shard, message: &Message) -> Reply {
    if !matches!(message.method, Method::Get | Method::Head) {
        return rest::error_reply(&Error::new(Code::MethodNotAllowed, "Method Not Allowed"));
    }
    let body = match &message.path[..] {
        b"/metrics" | b"/metrics/" => Bytes::from(text(shard)),
        _ => Bytes::new(),
    };
    Reply::new(200, "text/plain; charset=utf-8", body)
}

fn text(shard: &Shard) -> String {
    let served = shard.models.served();
    let models: Vec<_> = served.iter().map(|served| served.figures()).collect();
    let shards: Vec<_> = shard.server_context.metrics.shard_cells.iter().map(|cells| &**cells).collect();
    let overview = shard.models.overview();
    let loads: Vec<_> = overview.models.iter().map(load_figures).collect();
    let gpus = shard.server_context.metrics.gpus.get().map_or(&[][..], Vec::as_slice);
    metrics::encode(&models, &shards, &loads, gpus)
}

fn load_figures(model: &ModelOverview) -> LoadFigures<'_> {
    let of_version = |version: &VersionOverview| Some((version.version, version.load_time?));
    LoadFigures {
        name: &model.name,
        succeeded: model.loads.succeeded,
        failed: model.loads.failed,
        time: model.loads.time,
        versions: model.versions.iter().filter_map(of_version).collect(),
    }
}
