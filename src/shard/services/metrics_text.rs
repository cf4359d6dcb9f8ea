//! The metrics as text: the sum over all shards, for the metrics endpoint and for requests
//! redirected to it.

use bytes::Bytes;

use crate::backend::custom_metrics::MetricFamilyView;
use crate::limits::METRICS_LOOK_PAUSE;
use crate::log;
use crate::metrics::{self, CustomFamily, CustomSeries, LoadFigures, ModelFigures};
use crate::model::config::namespace_label;
use crate::model::repository::index::{ModelOverview, VersionOverview};
use crate::protocol::text::TextTask;
use crate::queue::cache_link::CacheKind;
use crate::runtime::clock;
use crate::runtime::executor;
use crate::shard::Shard;
use crate::wire::message::Reply;

/// The metrics of the server, in the form that the field `Accept` prefers. Any shard can report them: all counters are
/// shared.
pub async fn reply(shard: &Shard, accept: Option<&[u8]>) -> Reply {
    let is_open = prefers_open_metrics(accept);
    let text = text(shard, is_open).await;
    if is_open {
        return Reply::new(200, OPEN_METRICS, Bytes::from(metrics::to_open_metrics(&text)));
    }
    Reply::new(200, CONTENT_TYPE, Bytes::from(text))
}

/// Returns true if a client asks for OpenMetrics, and not for plain text more than for it.
fn prefers_open_metrics(accept: Option<&[u8]>) -> bool {
    let accept = accept.and_then(|accept| str::from_utf8(accept).ok()).unwrap_or_default();
    // The highest weight of a type (RFC 9110 §12.4.2); 0 if it is not named.
    let weight = |wanted: &str| {
        let weights = accept.split(',').filter_map(|item| {
            let mut parts = item.split(';').map(str::trim);
            parts.next().filter(|name| name.eq_ignore_ascii_case(wanted))?;
            let weight = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f32>().ok());
            Some(weight.unwrap_or(1.0))
        });
        weights.fold(0.0, f32::max)
    };
    let open_metrics = weight("application/openmetrics-text");
    open_metrics > 0.0 && open_metrics >= weight("text/plain")
}

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The content type of the text.
pub const CONTENT_TYPE: &str = "text/plain; charset=utf-8";

/// The metrics in the plain format; with exemplars, which the plain format has not, for OpenMetrics.
async fn text(shard: &Shard, shows_exemplars: bool) -> String {
    // Before anything else is read: another thread may have the lock, and a shard never blocks on
    // one.
    let custom = loop {
        match shard.server_context.metrics.custom.try_view() {
            Some(custom) => break custom,
            None => executor::sleep(METRICS_LOOK_PAUSE).await,
        }
    };
    let served = shard.models.served();
    let sources = &shard.server_context.metrics;
    let hides_durations = sources.latencies.hides_counters;
    let models = served.iter().map(|served| ModelFigures { hides_durations, shows_exemplars, ..served.figures() });
    let models: Vec<_> = models.collect();
    let shards: Vec<_> = sources.shard_cells.iter().map(|cells| &**cells).collect();
    let overview = shard.models.overview();
    // As in Triton, the series of a model are removed with it.
    let loads: Vec<_> = overview.models.iter().filter(|model| !model.is_unloaded()).map(load_figures).collect();
    let gpus = sources.gpus.get().map_or(&[][..], Vec::as_slice);
    let mut text = metrics::encode(&models, &shards, &loads, gpus);
    metrics::encode_latencies(&mut text, &models, &sources.latencies, clock::epoch_millis(clock::now()));
    metrics::encode_cache(&mut text, &shards, shard.server_context.memory.cache_size);
    if let Some(link) = &shard.server_context.shared_cache {
        let lanes = link.lanes().iter().map(|lane| &lane.cells);
        let is_reported = |name: &str| custom.iter().any(|family| family.name == name);
        match link.kind {
            CacheKind::Library => metrics::encode_cache_library(&mut text, &shards, lanes, is_reported),
            CacheKind::Redis => metrics::encode_redis(&mut text, &shards, lanes),
        }
    }
    metrics::encode_stores(&mut text, shard.server_context.stores.iter().map(|cells| &**cells));
    sources.host.encode(&mut text);
    shard.server_context.tls.board.encode(&mut text);
    if let Some(keys) = shard.requests.admission.keys() {
        let clients = keys.clients().map(|client| (client.name(), client.all_cells()));
        metrics::encode_keys(&mut text, clients, &shard.server_context.keys.reloads);
    }
    metrics::encode_build(env!("DEUTERON_COMMIT_HASH"), &mut text);
    let connections_max = shard.server_context.connection_limits.connections_max;
    metrics::encode_connections_max(&mut text, connections_max.saturating_mul(shards.len()));
    metrics::encode_model_cache(&mut text, &sources.model_cache, &shards);
    metrics::encode_memory(&mut text, &shard.server_context.memory.board, &shards);
    metrics::encode_run_memory(&mut text, sources.run_memory.refused());
    if let Some(batches) = &sources.text_batches {
        let cells: Vec<_> = shards.iter().filter_map(|cells| cells.tei.as_deref()).collect();
        let of_texts = served.iter().zip(&models).filter(|(served, _)| TextTask::of(&served.spec).is_some());
        metrics::encode_tei(&mut text, &cells, batches, of_texts.map(|(_, figures)| figures.pending).sum());
    }
    metrics::encode_log_lines(&mut text, &log::losses());
    if let Some(queue) = &shard.server_context.traces.queue {
        let (written, dropped) = queue.counts();
        metrics::encode_traces(&mut text, written, dropped);
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
        labels: namespace_label(&model.namespace),
        succeeded: model.loads.succeeded,
        failed: model.loads.failed,
        time: model.loads.time,
        versions: model.versions.iter().filter_map(of_version).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openmetrics_is_for_those_who_prefer_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.8,application/openmetrics-text;version=0.0.1;q=0.75,\
                          text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        for (accept, want) in [
            (prometheus, true),
            ("application/openmetrics-text", true),
            ("text/plain, Application/OpenMetrics-Text; q=0.9", false),
            ("application/openmetrics-text;q=0", false),
            ("application/openmetrics-texts", false),
            ("text/plain", false),
            ("*/*", false),
            ("", false),
        ] {
            assert_eq!(prefers_open_metrics(Some(accept.as_bytes())), want, "{accept}");
        }
        assert!(!prefers_open_metrics(None) && !prefers_open_metrics(Some(b"\xff")));
    }
}
