//! Histograms of `/metrics`: their bucket bounds, the cells of the time histogram, and their lines. The
//! histogram of batch sizes is computed from [`BatchFigures`](crate::metrics::BatchFigures).

use std::fmt::Write;
use std::sync::OnceLock;
use std::time::Duration;

use crate::metrics::batches::BatchFigures;
use crate::metrics::exemplar::{self, Exemplar, ExemplarCell};
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
    /// A traced request for each bucket; made for the first one.
    exemplars: OnceLock<Box<[ExemplarCell; TIMES.len() + 1]>>,
}

impl TimeCells {
    /// Counts a time. Only the shard that owns the cells may call this.
    pub fn count(&self, duration: Duration) {
        let nanos = nanos_of(duration);
        if let Some(bucket) = self.buckets.get(bucket_index(nanos)) {
            bucket.add(1);
        }
        self.sum.add(nanos);
    }

    /// Keeps a traced request, which was counted with this time. Only the shard that owns the cells may call this.
    pub fn keep_exemplar(&self, duration: Duration, exemplar: &Exemplar) {
        let nanos = nanos_of(duration);
        if let Some(cell) = self.exemplars.get_or_init(Box::default).get(bucket_index(nanos)) {
            cell.set(exemplar, nanos);
        }
    }

    fn exemplar(&self, bucket: usize) -> Option<(Exemplar, u64)> {
        self.exemplars.get()?.get(bucket)?.read()
    }
}

/// The bucket of a time in nanoseconds.
fn bucket_index(nanos: u64) -> usize {
    TIMES.partition_point(|bound| *bound * 1_000 < nanos)
}

/// Appends the lines of a histogram of times, summed over several sets of cells. Prometheus wants cumulative
/// buckets: they are added up here and not when counting, which then touches one bucket only. All are in seconds, the base
/// unit (OpenMetrics 1.0, "Units and Base Units"). Exemplars are of OpenMetrics alone.
pub fn encode_times(out: &mut String, name: &str, labels: &str, all: &[&TimeCells], shows_exemplars: bool) {
    let mut total = 0;
    let bounds = TIMES.iter().map(|micros| (*micros as f64 / 1e6).to_string()).chain(["+Inf".to_owned()]);
    for (index, bound) in bounds.enumerate() {
        total += all.iter().filter_map(|cells| cells.buckets.get(index)).map(Counter::get).sum::<u64>();
        let _ = write!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {total}");
        let exemplars = all.iter().filter(|_| shows_exemplars).filter_map(|cells| cells.exemplar(index));
        if let Some((last, nanos)) = exemplars.max_by_key(|(exemplar, _)| exemplar.epoch_millis) {
            exemplar::encode(out, &last, nanos);
        }
        out.push('\n');
    }
    let sum: u64 = all.iter().map(|cells| cells.sum.get()).sum();
    let _ = writeln!(out, "{name}_sum{{{labels}}} {}.{:09}", sum / 1_000_000_000, sum % 1_000_000_000);
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
        encode_times(&mut text, "t", "model=\"m\"", &[&one, &two], false);
        let mut want = vec!["2"];
        want.extend(["3"; 17]);
        want.extend(["4", "5", "21.000020001", "5"]);
        assert_eq!(values(&text), want, "{text}");
        for line in
            ["t_bucket{model=\"m\",le=\"0.00001\"} 2", "t_bucket{model=\"m\",le=\"+Inf\"} 5", "t_count{model=\"m\"} 5"]
        {
            assert!(text.lines().any(|have| have == line), "{line}\n{text}");
        }
    }

    #[test]
    fn each_bucket_has_the_last_traced_request_of_all_cells() {
        let (one, two) = (TimeCells::default(), TimeCells::default());
        let keep = |cells: &TimeCells, micros, id, epoch_millis| {
            cells.count(Duration::from_micros(micros));
            let exemplar = Exemplar { trace_id: id, span_id: 1, epoch_millis };
            cells.keep_exemplar(Duration::from_micros(micros), &exemplar);
        };
        keep(&one, 20, 1, 3_000);
        keep(&two, 25, 2, 2_000);
        keep(&two, 99_000_000, 3, 2_000);
        let encode = |shows_exemplars| {
            let mut text = String::new();
            encode_times(&mut text, "t", "model=\"m\"", &[&one, &two], shows_exemplars);
            text
        };
        let told = encode(true);
        let own = "span_id=\"0000000000000001\"";
        for line in [
            format!("t_bucket{{model=\"m\",le=\"0.000025\"}} 2 # {{trace_id=\"{:032x}\",{own}}} 0.000020000 3.000", 1),
            "t_bucket{model=\"m\",le=\"0.00005\"} 2".to_owned(),
            format!("t_bucket{{model=\"m\",le=\"+Inf\"}} 3 # {{trace_id=\"{:032x}\",{own}}} 99.000000000 2.000", 3),
        ] {
            assert!(told.lines().any(|have| have == line), "{line}\n{told}");
        }
        assert!(!encode(false).contains('#'));
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
