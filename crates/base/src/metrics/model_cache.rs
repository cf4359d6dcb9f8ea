//! Models that are loaded on demand (`--model-cache-bytes-max`): their memory, the evicted ones,
//! and the requests that waited for them.

use std::fmt::Write;

use crate::metrics::{Counter, ShardCells, head};

/// The control thread's counters for them; only that thread writes.
#[derive(Debug, Default)]
pub struct ModelCacheCells {
    /// Bytes that they take (a gauge).
    pub size: Counter,
    /// The most that they may take (a gauge); 0 if no models are loaded on demand.
    pub size_max: Counter,
    /// Models that were unloaded for others.
    pub evictions: Counter,
}

/// The counters of one shard for requests whose models do not serve yet.
#[derive(Debug, Default)]
pub struct ModelWaitCells {
    /// Requests that waited, whatever the outcome.
    pub waited: Counter,
    /// Requests refused because their model was not there in time.
    pub late: Counter,
    /// Requests refused because too many waited.
    pub refused: Counter,
}

/// Appends their series, if models are loaded on demand.
pub fn encode(out: &mut String, cells: &ModelCacheCells, shards: &[&ShardCells]) {
    if cells.size_max.get() == 0 {
        return;
    }
    let waits = |counter: fn(&ModelWaitCells) -> &Counter| -> u64 {
        shards.iter().map(|cells| counter(&cells.model_waits).get()).sum()
    };
    for (name, kind, help, value) in [
        ("deuteron_model_cache_bytes", "gauge", "Memory of the models that are loaded on demand", cells.size.get()),
        (
            "deuteron_model_cache_limit_bytes",
            "gauge",
            "Memory that they may take (--model-cache-bytes-max)",
            cells.size_max.get(),
        ),
        ("deuteron_model_cache_evictions_total", "counter", "Models unloaded for others", cells.evictions.get()),
        (
            "deuteron_model_waits_total",
            "counter",
            "Requests that waited for their model to be loaded",
            waits(|cells| &cells.waited),
        ),
        (
            "deuteron_model_waits_late_total",
            "counter",
            "Requests refused because their model was not loaded in time (--model-cache-wait-ms)",
            waits(|cells| &cells.late),
        ),
        (
            "deuteron_model_waits_refused_total",
            "counter",
            "Requests refused because too many waited for models",
            waits(|cells| &cells.refused),
        ),
    ] {
        head(out, name, kind, help);
        let _ = writeln!(out, "{name} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_are_there_where_models_are_loaded_on_demand() {
        let (cells, one, two) = (ModelCacheCells::default(), ShardCells::default(), ShardCells::default());
        let mut out = String::new();
        encode(&mut out, &cells, &[&one, &two]);
        assert_eq!(out, "");
        cells.size_max.set(1_000);
        cells.size.set(900);
        cells.evictions.add(2);
        one.model_waits.waited.add(3);
        two.model_waits.waited.add(4);
        two.model_waits.late.add(1);
        one.model_waits.refused.add(5);
        encode(&mut out, &cells, &[&one, &two]);
        let values: Vec<_> = out.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            values,
            [
                "deuteron_model_cache_bytes 900",
                "deuteron_model_cache_limit_bytes 1000",
                "deuteron_model_cache_evictions_total 2",
                "deuteron_model_waits_total 7",
                "deuteron_model_waits_late_total 1",
                "deuteron_model_waits_refused_total 5",
            ]
        );
    }
}
