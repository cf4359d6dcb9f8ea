//! The names of the server's own metrics, which models must not use.

use crate::metrics::{
    FAMILIES, ModelCacheCells, TeiBatchCells, cache, encode, encode_build, encode_connections_max, encode_log_lines,
    encode_memory, encode_model_cache, encode_run_memory, encode_tei, encode_traces, gpus, host, keys, latency,
    padding, process_memory, row_costs, stores, tls,
};
use crate::pressure::MemoryBoard;

/// Returns the names of all families of the server's own, including those that it does not always
/// show.
pub fn own_names() -> Vec<String> {
    let mut text = encode(&[], &[], &[], &[]);
    encode_build("985835f", &mut text);
    encode_connections_max(&mut text, 0);
    encode_log_lines(&mut text, &[]);
    encode_memory(&mut text, &MemoryBoard::new(0, 0), &[]);
    encode_model_cache(&mut text, &some_model_cache(), &[]);
    encode_run_memory(&mut text, 0);
    encode_tei(&mut text, &[], &TeiBatchCells::default(), 0);
    encode_traces(&mut text, 0, 0);
    let heads = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let others = FAMILIES.iter().map(|family| family.name).chain(gpus::names()).chain(latency::names());
    let others = others.chain(host::names()).chain(cache::names()).chain(tls::names());
    let others = others.chain(keys::names()).chain(row_costs::names()).chain(padding::names()).chain(stores::names());
    let others = others.chain([process_memory::NAME]);
    heads.map(str::to_owned).chain(others.map(str::to_owned)).collect()
}

/// The cells of a server that loads models on demand: its families are shown only there.
fn some_model_cache() -> ModelCacheCells {
    let cells = ModelCacheCells::default();
    cells.size_max.set(1);
    cells
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::time::Duration;

    use expect_test::expect_file;

    use super::*;
    use crate::metrics::gpus::Gauge;
    use crate::metrics::{
        GpuCells, GpuFigures, HostCells, LatencyOptions, LoadFigures, ModelCells, ModelFigures, PaddingFigures,
        PortExpiry, ReloadCells, RowCostFigures, SequenceFigures, StoreCells, TlsBoard, encode_cache,
        encode_cache_library, encode_keys, encode_latencies, encode_redis, encode_stores, to_open_metrics,
    };

    fn one() -> Gauge {
        let gauge = Gauge::default();
        gauge.set(Some(1));
        gauge
    }

    /// The text of a server that has everything.
    fn everything() -> String {
        let options = LatencyOptions { has_histograms: true, has_summaries: true, ..LatencyOptions::default() };
        let cells = ModelCells::new(1).with_latencies(&options, Some(&[1.0]));
        let model = ModelFigures {
            name: "m",
            version: 1,
            is_cached: true,
            cells: vec![&cells],
            pending_max: Some(1),
            engine: Some(("onnxruntime", "1")),
            run: Some(Duration::ZERO),
            instances: vec![("m_0_0", 0)],
            releases: vec![("full", 0)],
            placement: "worker",
            row_costs: Some(RowCostFigures { chosen: 1, costs: vec![(1, Duration::ZERO)] }),
            padding: Some(PaddingFigures::default()),
            sequences: Some(SequenceFigures { ends: vec![("end", 0)], ..SequenceFigures::default() }),
            gpu: Some(GpuFigures::default()),
            process_memory: Some(1),
            ..ModelFigures::default()
        };
        let load = LoadFigures {
            name: "m",
            labels: String::new(),
            succeeded: 1,
            failed: 0,
            time: Duration::ZERO,
            versions: vec![(1, Duration::ZERO)],
        };
        let gpu = GpuCells {
            uuid: "g".to_owned(),
            utilization: one(),
            memory_total: one(),
            memory_used: one(),
            memory_taken: one(),
            power_usage: one(),
            power_limit: one(),
            energy: one(),
        };
        let host = HostCells {
            cpu_utilization: one(),
            memory_total: one(),
            memory_used: one(),
            pinned_total: one(),
            pinned_used: one(),
            short_of_cores: one(),
        };
        let mut text = encode(std::slice::from_ref(&model), &[], &[load], &[gpu]);
        encode_latencies(&mut text, &[model], &options, 0);
        encode_cache(&mut text, &[], 1);
        encode_redis(&mut text, &[], std::iter::empty());
        encode_cache_library(&mut text, &[], std::iter::empty(), |_| true);
        let store = StoreCells { reachable: one(), models_refused: one(), ..StoreCells::default() };
        encode_stores(&mut text, std::iter::once(&store));
        host.encode(&mut text);
        TlsBoard { ports: vec![PortExpiry { port: "http", at: one() }], ..TlsBoard::default() }.encode(&mut text);
        encode_keys(&mut text, std::iter::empty(), &ReloadCells::default());
        encode_build("985835f", &mut text);
        encode_connections_max(&mut text, 0);
        encode_log_lines(&mut text, &[]);
        encode_memory(&mut text, &MemoryBoard::new(0, 0), &[]);
        encode_model_cache(&mut text, &some_model_cache(), &[]);
        encode_run_memory(&mut text, 0);
        encode_tei(&mut text, &[], &TeiBatchCells::default(), 0);
        encode_traces(&mut text, 0, 0);
        text
    }

    #[test]
    fn in_openmetrics_each_family_is_there_once_and_no_sample_is_of_two() {
        let text = to_open_metrics(&everything());
        let heads = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        let mut kinds: Vec<_> = heads.collect();
        // A page has one cache, that of the server or the shared one, whose families are the same.
        let is_of_cache = |name: &str| name.starts_with("nv_cache_") || name.starts_with("deuteron_cache_");
        let mut of_cache = BTreeSet::new();
        kinds.retain(|(name, _)| !is_of_cache(name) || of_cache.insert(*name));
        let suffixes = |kind: &str| match kind {
            "counter" => &["_total", "_created"][..],
            "histogram" => &["_bucket", "_count", "_created", "_sum"],
            "summary" => &["", "_count", "_created", "_sum"],
            _ => &[""],
        };
        let names = kinds.iter().flat_map(|(name, kind)| suffixes(kind).iter().map(move |end| format!("{name}{end}")));
        let mut seen = BTreeSet::new();
        names.for_each(|name| assert!(seen.insert(name.clone()), "{name}"));
        assert_eq!(kinds.iter().map(|(name, _)| *name).collect::<BTreeSet<_>>().len(), kinds.len());
        assert!(kinds.len() > 50 && text.ends_with("\n# EOF\n"));
    }

    const OF_TEI: &str = "## text-embeddings-inference's\n\n\
With `--compat=tei` the page has these too, with the names, labels, units and buckets of TEI 1.9, so that its dashboards and alerts \
stay. Each is a sum over all models, without a label for the model, and all series are there from the start. Requests for texts are \
those on [the paths and the gRPC service of text models](../protocol.md#text-models), also in the forms of OpenAI, Cohere and vLLM; \
`/tokenize` and `/decode` count only as failures, and texts of gRPC streams not in `te_request_count` and `te_request_success`, as in TEI.\n\n\
| | TEI | here |\n|---|---|---|\n\
| one text to `/predict`, gRPC's `EmbedSparse` and `EmbedAll` | an answer counts once more in `te_request_count` | in `te_request_success`, as for other calls |\n\
| a body with wrong values | some in `te_request_count`, an empty text as `err=\"tokenization\"` | `te_request_failure{err=\"validation\"}` alone |\n\
| a batch of which one text fails | `te_embed_success` counts the others | it counts none of them |\n\
| `te_embed_…_duration`, `te_predict_…_duration` | measured for each text | the time of the request, for each of its texts |\n\
| `…_queue_duration` and `…_tokenization_duration` | tokens are made before the queue | texts wait, then the batch makes its tokens |\n\
| `err=\"tokenization\"`, `\"overloaded\"`, `\"validation\"`, `\"model_type\"` | some for each text | once for each request |\n\
| `err=\"tokenization\"` | the tokenizer fails | also where the engine blames a value of the input: a token id that the network has not |\n\
| `err=\"dropped\"` | texts whose client left while they waited | texts whose client left, or whose deadline passed, before the answer |\n\
| `err=\"missing_values\"` | an internal error | does not occur |\n\
| `te_request_input_length` | buckets up to the longest text of the model; also texts that fail later | all buckets; texts that were answered, by models with an output `token_count`, as all hub folders have |\n\
| `te_batch_next_size`, `te_batch_next_tokens` | also 0 each time the queue is empty | runs of networks, for models whose rows are padded, as those of hub folders; also those of other clients |\n\
| `te_queue_size` | texts | requests of text models, also of other clients |\n";

    /// `UPDATE_EXPECT=1` writes the guide's page anew.
    #[test]
    fn the_servers_own_names_are_known_though_nothing_is_shown_and_the_guide_has_all_of_them() {
        let text = everything();
        let head = |line: &str, what: &str| {
            let (name, rest) = line.strip_prefix(what)?.split_once(' ')?;
            Some((name.to_owned(), rest.to_owned()))
        };
        let helps: BTreeMap<_, _> = text.lines().filter_map(|line| head(line, "# HELP ")).collect();
        let kinds: BTreeMap<_, _> = text.lines().filter_map(|line| head(line, "# TYPE ")).collect();
        let names: BTreeSet<_> = own_names().into_iter().collect();
        assert_eq!(names, kinds.keys().cloned().collect(), "known, and shown by a server that has everything");
        let rows = |prefix: &str| {
            let own = kinds.iter().filter(|(name, _)| name.starts_with(prefix));
            own.map(|(name, kind)| format!("| `{name}` | {kind} | {} |\n", helps[name].replace('|', "\\|")))
                .collect::<String>()
        };
        let table = "| metric | kind | meaning |\n|---|---|---|\n";
        let page = format!(
            "# Metrics\n\n`GET /metrics` on port 8002. A family without a series is not shown: metrics of GPUs, caches, keys and TLS \
             appear only when these are in use. With `Accept: application/openmetrics-text`, which Prometheus sends, the form is OpenMetrics \
             with the same names; counters without `_total` at their end are `unknown` there. A test generates this page from the source.\n\n## Triton's\n\nThese have \
             Triton's names, labels and texts.\n\n{table}{}\n## Deuteron's own\n\n{table}{}\n{OF_TEI}\n{table}{}",
            rows("nv_"),
            rows("deuteron_"),
            rows("te_")
        );
        expect_file!["../../../../docs/guide/metrics.md"].assert_eq(&page);
    }
}
