//! Metrics of the response cache over all models, under Triton's names. Each shard counts its own.

use std::fmt::Write;

use crate::metrics::{Counter, ShardCells, head};

/// What one shard counts of its response cache. Durations are in nanoseconds.
#[derive(Debug, Default)]
pub struct CacheCells {
    /// Bytes in it (a gauge).
    pub size: Counter,
    /// Answers in it (a gauge).
    pub entries: Counter,
    /// Answers that left it because others needed the room.
    pub evictions: Counter,
    /// Lookups that found an answer.
    pub hits: Counter,
    /// Lookups that found none.
    pub misses: Counter,
    /// Time of all lookups.
    pub lookup_duration: Counter,
    /// Time of all insertions.
    pub insertion_duration: Counter,
}

/// One family: name, help, and the value.
type CacheFamily = (&'static str, &'static str, fn(&CacheCells) -> u64);

const FAMILIES: [CacheFamily; 7] = [
    ("nv_cache_num_entries", "Number of responses stored in response cache", |cache| cache.entries.get()),
    ("nv_cache_num_hits", "Number of cache hits in response cache", |cache| cache.hits.get()),
    ("nv_cache_num_misses", "Number of cache misses in response cache", |cache| cache.misses.get()),
    ("nv_cache_num_lookups", "Number of cache lookups in response cache", |cache| {
        cache.hits.get() + cache.misses.get()
    }),
    ("nv_cache_num_evictions", "Number of cache evictions in response cache", |cache| cache.evictions.get()),
    ("nv_cache_lookup_duration", "Total cache lookup duration (hit and miss), in microseconds", |cache| {
        cache.lookup_duration.get() / 1_000
    }),
    ("nv_cache_insertion_duration", "Total cache insertion duration, in microseconds", |cache| {
        cache.insertion_duration.get() / 1_000
    }),
];

const UTILIZATION: &str = "nv_cache_util";

/// The names of all families.
pub fn names() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|family| family.0).chain([UTILIZATION])
}

/// Appends the metrics of a cache of so many bytes over all shards; nothing without one.
pub fn encode(out: &mut String, shards: &[&ShardCells], size_max: usize) {
    if size_max == 0 {
        return;
    }
    head(out, UTILIZATION, "gauge", "Cache utilization [0.0 - 1.0]");
    let size: u64 = shards.iter().map(|cells| cells.cache.size.get()).sum();
    #[expect(clippy::cast_precision_loss, reason = "a figure to read")]
    let _ = writeln!(out, "{UTILIZATION} {}", size as f64 / size_max as f64);
    for (name, help, value) in FAMILIES {
        head(out, name, "gauge", help);
        let total: u64 = shards.iter().map(|cells| value(&cells.cache)).sum();
        let _ = writeln!(out, "{name} {total}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caches_of_all_shards_are_one() {
        let (one, two, mut out) = (ShardCells::default(), ShardCells::default(), String::new());
        encode(&mut out, &[&one], 0);
        assert_eq!(out, "", "there is no cache");
        for (shard, size) in [(&one, 100), (&two, 150)] {
            shard.cache.size.set(size);
            shard.cache.entries.set(2);
            shard.cache.hits.add(3);
            shard.cache.misses.add(1);
            shard.cache.lookup_duration.add(2_500);
        }
        encode(&mut out, &[&one, &two], 1_000);
        let rows: Vec<_> = out.lines().filter(|line| !line.starts_with('#')).collect();
        let want = [
            "nv_cache_util 0.25",
            "nv_cache_num_entries 4",
            "nv_cache_num_hits 6",
            "nv_cache_num_misses 2",
            "nv_cache_num_lookups 8",
            "nv_cache_num_evictions 0",
            "nv_cache_lookup_duration 4",
            "nv_cache_insertion_duration 0",
        ];
        assert_eq!(rows, want);
    }
}
