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

/// The counters of one shard for a cache that servers share, or that is a library. A lookup that failed is a miss, too.
#[derive(Debug, Default)]
pub struct SharedCacheCells {
    /// Lookups for which too many others waited.
    pub lookups_full: Counter,
    /// Lookups that were not answered in time.
    pub lookups_late: Counter,
    /// Lookups without a connection, or while every thread was stuck in the cache.
    pub lookups_unconnected: Counter,
    /// Answers that were not stored because there was no connection, or because too much waited.
    pub stores_dropped: Counter,
}

/// The counters of one thread with a connection to Redis, or that calls a library.
#[derive(Debug, Default)]
pub struct CacheLaneCells {
    /// 1 while it is connected, else 0 (a gauge).
    pub connections: Counter,
    /// The number of times that it has connected.
    pub connects: Counter,
    /// Values that are no answer: of another program, cut or changed.
    pub damaged: Counter,
    /// Lookups that a library answered with an error.
    pub lookups_failed: Counter,
    /// Answers that the cache did not take, or that are too large.
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

/// The families that only the shards' own cache has: others report their own contents.
const LOCAL: [&str; 2] = ["nv_cache_num_entries", "nv_cache_num_evictions"];

const LOOKUPS_FAILED: &str = "deuteron_redis_lookups_failed_total";
const STORES_FAILED: &str = "deuteron_redis_stores_failed_total";
const CONNECTIONS: &str = "deuteron_redis_connections";
const CONNECTS: &str = "deuteron_redis_connects_total";
const LIBRARY_LOOKUPS_FAILED: &str = "deuteron_cache_lookups_failed_total";
const LIBRARY_STORES_FAILED: &str = "deuteron_cache_stores_failed_total";

/// The names of all families.
pub fn names() -> impl Iterator<Item = &'static str> {
    let others = [LOOKUPS_FAILED, STORES_FAILED, CONNECTIONS, CONNECTS, LIBRARY_LOOKUPS_FAILED, LIBRARY_STORES_FAILED];
    FAMILIES.iter().map(|family| family.0).chain([UTILIZATION]).chain(others)
}

/// Returns true for a family of the cache as a whole, which a cache that is a library may report itself, as Triton's does.
pub fn is_reported_by_libraries(name: &str) -> bool {
    name == UTILIZATION || FAMILIES.iter().any(|family| family.0 == name)
}

/// Appends the metrics of a cache in Redis, by the shards and the threads with connections to it.
pub fn encode_redis<'a>(
    out: &mut String,
    shards: &[&ShardCells],
    threads: impl Iterator<Item = &'a CacheLaneCells> + Clone,
) {
    encode_lookups(out, shards, |_| false);
    let of_threads =
        |counter: fn(&CacheLaneCells) -> &Counter| -> u64 { threads.clone().map(|cells| counter(cells).get()).sum() };
    head(out, LOOKUPS_FAILED, "counter", "Lookups in Redis that are misses because it did not answer, by reason");
    let failed = [
        ("damaged", of_threads(|cells| &cells.damaged)),
        ("full", of_shards(shards, |cells| &cells.lookups_full)),
        ("late", of_shards(shards, |cells| &cells.lookups_late)),
        ("unconnected", of_shards(shards, |cells| &cells.lookups_unconnected)),
    ];
    encode_reasons(out, LOOKUPS_FAILED, &failed);
    head(out, STORES_FAILED, "counter", "Answers that were not stored in Redis, by reason");
    let failed = [
        ("dropped", of_shards(shards, |cells| &cells.stores_dropped)),
        ("refused", of_threads(|cells| &cells.stores_failed)),
    ];
    encode_reasons(out, STORES_FAILED, &failed);
    head(out, CONNECTIONS, "gauge", "Connections to Redis");
    let _ = writeln!(out, "{CONNECTIONS} {}", of_threads(|cells| &cells.connections));
    head(out, CONNECTS, "counter", "How often Redis was connected to");
    let _ = writeln!(out, "{CONNECTS} {}", of_threads(|cells| &cells.connects));
}

/// Appends the metrics of a cache that is a library, by the shards and the threads that call it. `is_reported` is true for the
/// families that the library reports itself.
pub fn encode_library<'a>(
    out: &mut String,
    shards: &[&ShardCells],
    threads: impl Iterator<Item = &'a CacheLaneCells> + Clone,
    is_reported: impl Fn(&str) -> bool,
) {
    encode_lookups(out, shards, is_reported);
    let of_threads =
        |counter: fn(&CacheLaneCells) -> &Counter| -> u64 { threads.clone().map(|cells| counter(cells).get()).sum() };
    let text = "Lookups that missed because the library of the response cache did not answer, by reason";
    head(out, LIBRARY_LOOKUPS_FAILED, "counter", text);
    let failed = [
        ("busy", of_shards(shards, |cells| &cells.lookups_unconnected)),
        ("damaged", of_threads(|cells| &cells.damaged)),
        ("failed", of_threads(|cells| &cells.lookups_failed)),
        ("full", of_shards(shards, |cells| &cells.lookups_full)),
        ("late", of_shards(shards, |cells| &cells.lookups_late)),
    ];
    encode_reasons(out, LIBRARY_LOOKUPS_FAILED, &failed);
    head(
        out,
        LIBRARY_STORES_FAILED,
        "counter",
        "Answers that the library of the response cache did not store, by reason",
    );
    let failed = [
        ("dropped", of_shards(shards, |cells| &cells.stores_dropped)),
        ("refused", of_threads(|cells| &cells.stores_failed)),
    ];
    encode_reasons(out, LIBRARY_STORES_FAILED, &failed);
}

/// Appends the counts and durations of lookups in a cache that is not in the shards, but those that it reports itself.
fn encode_lookups(out: &mut String, shards: &[&ShardCells], is_reported: impl Fn(&str) -> bool) {
    let shown = FAMILIES.iter().filter(|family| !LOCAL.contains(&family.0) && !is_reported(family.0));
    for (name, help, value) in shown {
        head(out, name, "gauge", help);
        let total: u64 = shards.iter().map(|cells| value(&cells.cache)).sum();
        let _ = writeln!(out, "{name} {total}");
    }
}

fn encode_reasons(out: &mut String, name: &str, counts: &[(&str, u64)]) {
    for (reason, count) in counts {
        let _ = writeln!(out, "{name}{{reason=\"{reason}\"}} {count}");
    }
}

fn of_shards(shards: &[&ShardCells], counter: fn(&SharedCacheCells) -> &Counter) -> u64 {
    shards.iter().map(|cells| counter(&cells.cache.shared).get()).sum()
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
            (ShardCells::default(), [CacheLaneCells::default(), CacheLaneCells::default()], String::new());
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

    #[test]
    fn a_library_tells_what_failed_and_may_report_lookups_itself() {
        let (shard, thread, mut out) = (ShardCells::default(), CacheLaneCells::default(), String::new());
        shard.cache.hits.add(3);
        shard.cache.misses.add(5);
        shard.cache.shared.lookups_full.add(1);
        shard.cache.shared.lookups_late.add(2);
        shard.cache.shared.lookups_unconnected.add(3);
        shard.cache.shared.stores_dropped.add(4);
        thread.damaged.add(5);
        thread.lookups_failed.add(6);
        thread.stores_failed.add(7);
        encode_library(&mut out, &[&shard], std::iter::once(&thread), |name| name == "nv_cache_num_misses");
        let rows: Vec<_> = out.lines().filter(|line| !line.starts_with('#')).collect();
        let want = [
            "nv_cache_num_hits 3",
            "nv_cache_num_lookups 8",
            "nv_cache_lookup_duration 0",
            "nv_cache_insertion_duration 0",
            "deuteron_cache_lookups_failed_total{reason=\"busy\"} 3",
            "deuteron_cache_lookups_failed_total{reason=\"damaged\"} 5",
            "deuteron_cache_lookups_failed_total{reason=\"failed\"} 6",
            "deuteron_cache_lookups_failed_total{reason=\"full\"} 1",
            "deuteron_cache_lookups_failed_total{reason=\"late\"} 2",
            "deuteron_cache_stores_failed_total{reason=\"dropped\"} 4",
            "deuteron_cache_stores_failed_total{reason=\"refused\"} 7",
        ];
        assert_eq!(rows, want);
        let reported = ["nv_cache_util", "nv_cache_num_entries", "nv_cache_num_hits"];
        assert!(reported.into_iter().all(is_reported_by_libraries));
        assert!(!is_reported_by_libraries("nv_cache_num_hits_per_model") && !is_reported_by_libraries(STORES_FAILED));
    }
}
