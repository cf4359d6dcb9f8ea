//! Histograms of `/metrics`: their bucket bounds, the cells of the time histogram, and their lines. The
//! histogram of batch sizes is computed from [`BatchFigures`](crate::metrics::BatchFigures).

use std::fmt::Write;
use std::time::Duration;

use crate::metrics::batches::BatchFigures;
use crate::metrics::{Counter, nanos_of};

/// Upper bounds of the batch size buckets, in rows.
const SIZES: [u64; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];

/// Upper bounds of the time buckets, in microseconds. From 10 us, about what a request of a trivial model takes in here,
/// to 10 s, when most clients have given up; three for each power of ten tell durations apart by a factor of 2.5.
const TIMES: [u64; 19] = [
    10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 10_000_000,
];

/// Counts of times by bucket.
#[derive(Debug, Default)]
pub struct TimeCells {
    /// One for each bound, each without the smaller buckets; the last is for times above all bounds.
    buckets: [Counter; TIMES.len() + 1],
    /// All times, in nanoseconds.
    sum: Counter,
}

impl TimeCells {
    /// Counts a time. Only the shard that owns the cells may call this.
    pub fn count(&self, duration: Duration) {
        let nanos = nanos_of(duration);
        if let Some(bucket) = self.buckets.get(TIMES.partition_point(|bound| *bound * 1_000 < nanos)) {
            bucket.add(1);
        }
        self.sum.add(nanos);
    }
}

/// Appends the lines of a histogram of times, summed over several sets of cells. Prometheus wants cumulative
/// buckets: they are added up here and not when counting, which then touches one bucket only.
pub fn encode_times(out: &mut String, name: &str, labels: &str, all: &[&TimeCells]) {
    let mut total = 0;
    let bounds = TIMES.iter().map(u64::to_string).chain(["+Inf".to_owned()]);
    for (index, bound) in bounds.enumerate() {
        total += all.iter().filter_map(|cells| cells.buckets.get(index)).map(Counter::get).sum::<u64>();
        let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {total}");
    }
    let sum: u64 = all.iter().map(|cells| cells.sum.get()).sum();
    let _ = writeln!(out, "{name}_sum{{{labels}}} {}.{:03}", sum / 1_000, sum % 1_000);
    let _ = writeln!(out, "{name}_count{{{labels}}} {total}");
}

/// Counts of times by bucket, the bounds of which are in milliseconds and given by a configuration.
#[derive(Debug)]
pub struct BoundCells {
    bounds: Box<[f64]>,
    /// As those of [`TimeCells`].
    buckets: Box<[Counter]>,
    /// All times, in nanoseconds.
    sum: Counter,
}

impl BoundCells {
    /// Cells for these ascending bounds.
    #[inline]
    pub fn new(bounds: &[f64]) -> Self {
        let buckets = (0..=bounds.len()).map(|_| Counter::default()).collect();
        Self { bounds: bounds.into(), buckets, sum: Counter::default() }
    }

    /// Counts a time. Only the shard that owns the cells may call this.
    pub fn count(&self, duration: Duration) {
        let millis = duration.as_secs_f64() * 1e3;
        if let Some(bucket) = self.buckets.get(self.bounds.partition_point(|bound| *bound < millis)) {
            bucket.add(1);
        }
        self.sum.add_duration(duration);
    }
}

/// Appends the lines of such a histogram, summed over cells that have the same bounds, in Triton's order.
pub fn encode_bounds(out: &mut String, name: &str, labels: &str, all: &[&BoundCells]) {
    let in_bucket =
        |index: usize| all.iter().filter_map(|cells| cells.buckets.get(index)).map(Counter::get).sum::<u64>();
    let bounds = all.first().map_or(&[][..], |cells| &cells.bounds);
    let count: u64 = (0..=bounds.len()).map(in_bucket).sum();
    let sum: u64 = all.iter().map(|cells| cells.sum.get()).sum();
    let sum = Duration::from_nanos(sum).as_secs_f64() * 1e3;
    let _ = writeln!(out, "{name}_count{{{labels}}} {count}\n{name}_sum{{{labels}}} {sum}");
    let mut total = 0;
    let bounds = bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
    for (index, bound) in bounds.enumerate() {
        total += in_bucket(index);
        let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {total}");
    }
}

/// Appends the lines of a histogram of batch sizes; `rows` is the sum over all batches.
pub fn encode_sizes(out: &mut String, name: &str, labels: &str, batches: &[BatchFigures], rows: u64) {
    let up_to = |bound| batches.iter().filter(|batch| batch.rows <= bound).map(|batch| batch.count).sum::<u64>();
    for bound in SIZES {
        let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {}", up_to(bound));
    }
    let total = up_to(u64::MAX);
    let _ = writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {total}");
    let _ = writeln!(out, "{name}_sum{{{labels}}} {rows}\n{name}_count{{{labels}}} {total}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str) -> Vec<&str> {
        text.lines().filter_map(|line| line.rsplit(' ').next()).collect()
    }

    #[test]
    fn a_time_falls_into_every_bucket_whose_bound_it_does_not_pass() {
        let (one, two) = (TimeCells::default(), TimeCells::default());
        for nanos in [0, 10_000, 10_001] {
            one.count(Duration::from_nanos(nanos));
        }
        two.count(Duration::from_secs(10));
        two.count(Duration::from_secs(11));
        let mut text = String::new();
        encode_times(&mut text, "t", "model=\"m\"", &[&one, &two]);
        let mut want = vec!["2"];
        want.extend(["3"; 17]);
        want.extend(["4", "5", "21000020.001", "5"]);
        assert_eq!(values(&text), want, "{text}");
        for line in
            ["t_bucket{model=\"m\",le=\"10\"} 2", "t_bucket{model=\"m\",le=\"+Inf\"} 5", "t_count{model=\"m\"} 5"]
        {
            assert!(text.lines().any(|have| have == line), "{line}\n{text}");
        }
    }

    #[test]
    fn the_bounds_of_times_ascend() {
        assert!(TIMES.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn batches_fall_into_every_bucket_up_to_whose_rows_they_reach() {
        let of = |rows, count| BatchFigures { rows, count, ..BatchFigures::default() };
        let mut text = String::new();
        encode_sizes(&mut text, "s", "model=\"m\"", &[of(1, 5), of(3, 2), of(1024, 1), of(4096, 1)], 5135);
        assert_eq!(values(&text), ["5", "5", "7", "7", "7", "7", "7", "7", "7", "7", "8", "9", "5135", "9"], "{text}");
        assert!(text.starts_with("s_bucket{model=\"m\",le=\"1\"} 5\n"), "{text}");
    }
}
