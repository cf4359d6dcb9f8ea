//! Metrics of the response cache over all models, under Triton's names. Each shard counts its own.

use std::fmt::Write;

use crate::metrics::{Counter, ShardCells, head};

/// The counters of one shard for its response cache. Durations are in nanoseconds.
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
    /// Lookups that found no answer.
    pub misses: Counter,
    /// Time of all lookups.
    pub lookup_duration: Counter,
    /// Time of all insertions.
    pub insertion_duration: Counter,
    /// Counters of a cache that servers share.
    pub shared: SharedCacheCells,
}

/// The counters of one shard for a cache that servers share. A lookup that failed is a miss, too.
#[derive(Debug, Default)]
pub struct SharedCacheCells {
    /// Lookups for which too many others waited.
    pub lookups_full: Counter,
    /// Lookups that were not answered in time.
    pub lookups_late: Counter,
    /// Lookups without a connection.
    pub lookups_unconnected: Counter,
    /// Answers that were not stored because there was no connection, or because too much waited.
    pub stores_dropped: Counter,
}

/// The counters of one thread with a connection to Redis.
#[derive(Debug, Default)]
pub struct RedisCells {
    /// 1 while it is connected, else 0 (a gauge).
    pub connections: Counter,
    /// The number of times that it has connected.
    pub connects: Counter,
    /// Values that are no answer: of another program, cut or changed.
    pub damaged: Counter,
    /// Answers that Redis did not take, or that are too large.
    pub stores_failed: Counter,
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

/// The families that only a cache in this process has: Redis reports its own contents.
const LOCAL: [&str; 2] = ["nv_cache_num_entries", "nv_cache_num_evictions"];

const LOOKUPS_FAILED: &str = "deuteron_redis_lookups_failed_total";
const STORES_FAILED: &str = "deuteron_redis_stores_failed_total";
const CONNECTIONS: &str = "deuteron_redis_connections";
const CONNECTS: &str = "deuteron_redis_connects_total";

/// The names of all families.
pub fn names() -> impl Iterator<Item = &'static str> {
    let redis = [LOOKUPS_FAILED, STORES_FAILED, CONNECTIONS, CONNECTS];
    FAMILIES.iter().map(|family| family.0).chain([UTILIZATION]).chain(redis)
}

/// Appends the metrics of a cache in Redis, by the shards and the threads with connections to it.
pub fn encode_redis<'a>(
    out: &mut String,
    shards: &[&ShardCells],
    threads: impl Iterator<Item = &'a RedisCells> + Clone,
) {
    for (name, help, value) in FAMILIES.iter().filter(|family| !LOCAL.contains(&family.0)) {
        head(out, name, "gauge", help);
        let total: u64 = shards.iter().map(|cells| value(&cells.cache)).sum();
        let _ = writeln!(out, "{name} {total}");
    }
    let of_shards = |counter: fn(&SharedCacheCells) -> &Counter| -> u64 {
        shards.iter().map(|cells| counter(&cells.cache.shared).get()).sum()
    };
    let of_threads =
        |counter: fn(&RedisCells) -> &Counter| -> u64 { threads.clone().map(|cells| counter(cells).get()).sum() };
    head(out, LOOKUPS_FAILED, "counter", "Lookups in Redis that are misses because it did not answer, by reason");
    for (reason, count) in [
        ("damaged", of_threads(|cells| &cells.damaged)),
        ("full", of_shards(|cells| &cells.lookups_full)),
        ("late", of_shards(|cells| &cells.lookups_late)),
        ("unconnected", of_shards(|cells| &cells.lookups_unconnected)),
    ] {
        let _ = writeln!(out, "{LOOKUPS_FAILED}{{reason=\"{reason}\"}} {count}");
    }
    head(out, STORES_FAILED, "counter", "Answers that were not stored in Redis, by reason");
    for (reason, count) in
        [("dropped", of_shards(|cells| &cells.stores_dropped)), ("refused", of_threads(|cells| &cells.stores_failed))]
    {
        let _ = writeln!(out, "{STORES_FAILED}{{reason=\"{reason}\"}} {count}");
    }
    head(out, CONNECTIONS, "gauge", "Connections to Redis");
    let _ = writeln!(out, "{CONNECTIONS} {}", of_threads(|cells| &cells.connections));
    head(out, CONNECTS, "counter", "How often Redis was connected to");
    let _ = writeln!(out, "{CONNECTS} {}", of_threads(|cells| &cells.connects));
}

/// Appends the metrics of a cache of `size_max` bytes over all shards; nothing without a cache.
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

    #[test]
    fn a_cache_in_redis_tells_what_failed_and_not_what_redis_knows() {
        let (shard, threads, mut out) =
            (ShardCells::default(), [RedisCells::default(), RedisCells::default()], String::new());
        shard.cache.hits.add(3);
        shard.cache.misses.add(5);
        shard.cache.shared.lookups_full.add(1);
        shard.cache.shared.lookups_late.add(2);
        shard.cache.shared.lookups_unconnected.add(3);
        shard.cache.shared.stores_dropped.add(4);
        for cells in &threads {
            cells.connections.set(1);
            cells.connects.add(2);
            cells.damaged.add(3);
            cells.stores_failed.add(4);
        }
        encode_redis(&mut out, &[&shard], threads.iter());
        let rows: Vec<_> = out.lines().filter(|line| !line.starts_with('#')).collect();
        let want = [
            "nv_cache_num_hits 3",
            "nv_cache_num_misses 5",
            "nv_cache_num_lookups 8",
            "nv_cache_lookup_duration 0",
            "nv_cache_insertion_duration 0",
            "deuteron_redis_lookups_failed_total{reason=\"damaged\"} 6",
            "deuteron_redis_lookups_failed_total{reason=\"full\"} 1",
            "deuteron_redis_lookups_failed_total{reason=\"late\"} 2",
            "deuteron_redis_lookups_failed_total{reason=\"unconnected\"} 3",
            "deuteron_redis_stores_failed_total{reason=\"dropped\"} 4",
            "deuteron_redis_stores_failed_total{reason=\"refused\"} 8",
            "deuteron_redis_connections 2",
            "deuteron_redis_connects_total 4",
        ];
        assert_eq!(rows, want);
    }
}
