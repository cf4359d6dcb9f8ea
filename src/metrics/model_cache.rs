//! Models that are loaded on demand (`--model-cache-bytes-max`): what they take, who left, and who waited for them.

use std::fmt::Write;

use crate::metrics::{Counter, ShardCells, head};

/// What the control thread counts of them; it alone writes.
#[derive(Debug, Default)]
pub struct ModelCacheCells {
    /// Bytes that they take (a gauge).
    pub size: Counter,
    /// The most that they may (a gauge); 0 where none are loaded so.
    pub size_max: Counter,
    /// Models that left for others.
    pub evictions: Counter,
}

/// What a shard counts of requests whose models do not serve yet.
#[derive(Debug, Default)]
pub struct ModelWaitCells {
    /// Those that waited, in whatever way it ended.
    pub waited: Counter,
    /// Those that were refused because their model was not there in time.
    pub late: Counter,
    /// Those that were refused because too many waited.
    pub refused: Counter,
}

/// Appends their series, where models are loaded so.
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
