//! The metrics endpoint: `/metrics` is the sum over all shards; any other path is an empty 200, as in tritonserver.

use std::rc::Rc;

use bytes::Bytes;

use crate::backend::custom_metrics::MetricFamilyView;
use crate::error::{Code, Error};
use crate::limits::METRICS_LOOK_PAUSE;
use crate::log;
use crate::metrics::{self, CustomFamily, CustomSeries, LoadFigures, ModelFigures};
use crate::model::repository::index::{ModelOverview, VersionOverview};
use crate::protocol::rest;
use crate::runtime::clock;
use crate::runtime::executor;
use crate::runtime::socket::ByteStream;
use crate::shard::connections::ConnectionGuard;
use crate::shard::{Shard, http1};
use crate::wire::message::{Message, Method, Reply};

/// Serves one connection to its end.
pub async fn run(shard: &Rc<Shard>, socket: impl ByteStream, connection_guard: &ConnectionGuard) {
    let shard = Rc::clone(shard);
    let own = Rc::clone(&shard);
    let answer = move |message: Message, _| {
        let shard = Rc::clone(&own);
        async move { Some(reply(&shard, &message).await) }
    };
    let guard = (connection_guard, Rc::default());
    http1::serve(&shard, socket, Vec::new(), guard, Rc::default(), answer).await;
}

async fn reply(shard: &Shard, message: &Message) -> Reply {
    if !matches!(message.method, Method::Get | Method::Head) {
        let mut reply = rest::error_reply(&Error::new(Code::MethodNotAllowed, "Method Not Allowed"));
        reply.fields.push(("Allow", Bytes::from_static(b"GET, HEAD")));
        return reply;
    }
    let body = match &message.path[..] {
        b"/metrics" | b"/metrics/" => Bytes::from(text(shard).await),
        _ => Bytes::new(),
    };
    Reply::new(200, "text/plain; charset=utf-8", body)
}

async fn text(shard: &Shard) -> String {
    // Before anything else is read: another thread may have the lock, and a shard waits for none.
    let custom = loop {
        match shard.server_context.metrics.custom.try_view() {
            Some(custom) => break custom,
            None => executor::sleep(METRICS_LOOK_PAUSE).await,
        }
    };
    let served = shard.models.served();
    let sources = &shard.server_context.metrics;
    let hides_durations = sources.latencies.hides_counters;
    let models = served.iter().map(|served| ModelFigures { hides_durations, ..served.figures() });
    let models: Vec<_> = models.collect();
    let shards: Vec<_> = sources.shard_cells.iter().map(|cells| &**cells).collect();
    let overview = shard.models.overview();
    // As in Triton, the series of a model go with it.
    let loads: Vec<_> = overview.models.iter().filter(|model| !model.is_unloaded()).map(load_figures).collect();
    let gpus = sources.gpus.get().map_or(&[][..], Vec::as_slice);
    let mut text = metrics::encode(&models, &shards, &loads, gpus);
    metrics::encode_latencies(&mut text, &models, &sources.latencies, clock::epoch_millis(clock::now()));
    metrics::encode_cache(&mut text, &shards, shard.server_context.memory.cache_size);
    sources.host.encode(&mut text);
    shard.server_context.tls.board.encode(&mut text);
    metrics::encode_run_memory(&mut text, sources.run_memory.refused());
    metrics::encode_log_lines(&mut text, &log::losses());
    if let Some(queue) = &shard.server_context.traces.queue {
        metrics::encode_traces(&mut text, queue.counts());
    }
    metrics::encode_custom(&mut text, &custom.iter().map(custom_family).collect::<Vec<_>>());
    text
}

fn custom_family(family: &MetricFamilyView) -> CustomFamily<'_> {
    let series = family.series.iter().map(|series| CustomSeries {
        labels: series.labels(),
        value: series.sum(),
        buckets: series.buckets().collect(),
    });
    let (name, kind, help) = (&family.name, family.kind.as_str(), &family.description);
    CustomFamily { name, kind, help, series: series.collect() }
}

fn load_figures(model: &ModelOverview) -> LoadFigures<'_> {
    let of_version =
        |version: &VersionOverview| Some((version.version, version.load_time.filter(|_| !version.is_unloaded())?));
    LoadFigures {
        name: &model.name,
        succeeded: model.loads.succeeded,
        failed: model.loads.failed,
        time: model.loads.time,
        versions: model.versions.iter().filter_map(of_version).collect(),
    }
}
