//! Batches counted by size. Each is counted once, when its first request is answered with outputs:
//! as in Triton, a batch whose every request failed does not count. A shard counts the batches of
//! its own instance in cells of its own; the workers of a model version share one set. Bounded by
//! the sizes given at creation.

use std::sync::OnceLock;
use std::time::Duration;

use crate::metrics::reports::{ReportCells, StageTimes, WorkReport};
use crate::metrics::{Counter, nanos_of};
use crate::time::Stamps;

/// Counters of batches by size.
#[derive(Debug, Default)]
pub struct BatchCells {
    /// Rows in all batches. Not derived from `sizes`, whose last cell has batches of several sizes.
    rows: Counter,
    /// Batches of `n` rows are at index `n - 1`.
    sizes: Box<[SizeCells]>,
    /// The reports of the backend, if it makes some.
    reports: OnceLock<Box<ReportCells>>,
}

#[derive(Debug, Default)]
struct SizeCells {
    count: Counter,
    compute_input: Counter,
    compute_infer: Counter,
    compute_output: Counter,
}

/// The batches of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchFigures {
    /// Rows in each batch.
    pub rows: u64,
    /// Batches that ran.
    pub count: u64,
    /// Total time to prepare inputs, in nanoseconds.
    pub compute_input: u64,
    /// Total time in the engine, in nanoseconds.
    pub compute_infer: u64,
    /// Total time to prepare outputs, in nanoseconds.
    pub compute_output: u64,
}

impl BatchCells {
    /// Cells for batches of up to `sizes` rows. Larger batches count under the last size.
    #[inline]
    pub fn new(sizes: usize) -> Self {
        Self { sizes: (0..sizes).map(|_| SizeCells::default()).collect(), ..Self::default() }
    }

    /// Counts a batch that ran. Only the shard that owns the cells may call this.
    #[inline]
    pub fn count(&self, rows: u32, stamps: &Stamps) {
        self.count_with(rows, &StageTimes::between(stamps), Counter::add);
    }

    /// Counts a batch that ran, from any of several threads. Several workers share these cells, so this pays
    /// for locked additions, a few for each batch and not for each request.
    #[inline]
    pub fn count_shared(&self, rows: u32, stamps: &Stamps) {
        self.count_with(rows, &StageTimes::between(stamps), Counter::add_shared);
    }

    /// The backend has reported on its work.
    pub fn report(&self, report: &WorkReport) {
        let reports = || self.reports.get_or_init(Box::default);
        match report {
            WorkReport::Batch { rows, times, replaced } => {
                self.count_with(*rows, times, Counter::add_shared);
                if let Some((rows, times)) = replaced {
                    self.count_with(*rows, times, |counter, amount| counter.add_shared(amount.wrapping_neg()));
                }
            }
            WorkReport::Request(request) => reports().count_request(request),
            WorkReport::Response { index, outcome, infer, output } => {
                reports().count_response(*index, *outcome, *infer, *output);
            }
        }
    }

    /// The reports on requests and responses; `None` before the first.
    pub fn reports(&self) -> Option<&ReportCells> {
        self.reports.get().map(|reports| &**reports)
    }

    fn count_with(&self, rows: u32, times: &StageTimes, add: impl Fn(&Counter, u64)) {
        let rows = rows.max(1);
        let Some(last) = self.sizes.len().checked_sub(1) else { return };
        let index = usize::try_from(rows - 1).map_or(last, |index| index.min(last));
        let Some(size) = self.sizes.get(index) else { return };
        let add_duration = |counter, duration: Duration| add(counter, nanos_of(duration));
        add_duration(&size.compute_input, times.input);
        add_duration(&size.compute_infer, times.infer);
        add_duration(&size.compute_output, times.output);
        add(&self.rows, u64::from(rows));
        add(&size.count, 1);
    }

    /// Batches of all sizes.
    #[inline]
    pub fn executions(&self) -> u64 {
        self.sizes.iter().map(|size| size.count.get()).sum()
    }

    /// Rows in all batches.
    #[inline]
    pub fn rows(&self) -> u64 {
        self.rows.get()
    }
}

/// Sums several sets of cells by size, ascending; sizes without a batch are left out.
pub fn sum<'a>(all: impl Iterator<Item = &'a BatchCells>) -> Vec<BatchFigures> {
    let mut figures: Vec<BatchFigures> = Vec::new();
    for cells in all {
        if figures.len() < cells.sizes.len() {
            figures.resize(cells.sizes.len(), BatchFigures::default());
        }
        for (figure, size) in figures.iter_mut().zip(&cells.sizes) {
            figure.count += size.count.get();
            figure.compute_input = figure.compute_input.wrapping_add(size.compute_input.get());
            figure.compute_infer = figure.compute_infer.wrapping_add(size.compute_infer.get());
            figure.compute_output = figure.compute_output.wrapping_add(size.compute_output.get());
        }
    }
    for (figure, rows) in figures.iter_mut().zip(1..) {
        figure.rows = rows;
    }
    figures.retain(|figure| figure.count > 0);
    figures
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Instant;

    fn stamps() -> Stamps {
        let at = Instant::from_nanos;
        Stamps { received: at(1), batched: at(4), input_end: at(5), infer_end: at(25), output_end: at(27) }
    }

    #[test]
    fn batches_of_a_size_are_summed_over_shards_and_workers() {
        let (shard, workers) = (BatchCells::new(2), BatchCells::new(8));
        shard.count(2, &stamps());
        for rows in [2, 8, 8] {
            workers.count_shared(rows, &stamps());
        }
        let of = |rows, count| BatchFigures {
            rows,
            count,
            compute_input: count,
            compute_infer: 20 * count,
            compute_output: 2 * count,
        };
        assert_eq!(sum([&shard, &workers].into_iter()), [of(2, 2), of(8, 2)]);
        assert_eq!((shard.rows(), workers.rows()), (2, 18));
    }

    #[test]
    fn a_batch_beyond_the_last_size_is_counted_there_and_its_rows_are_its_own() {
        let cells = BatchCells::new(4);
        for rows in [0, 4, 5, u32::MAX] {
            cells.count(rows, &stamps());
        }
        let sizes: Vec<_> = sum([&cells].into_iter()).iter().map(|figure| (figure.rows, figure.count)).collect();
        assert_eq!(sizes, [(1, 1), (4, 3)]);
        assert_eq!(cells.rows(), 1 + 4 + 5 + u64::from(u32::MAX));
        BatchCells::new(0).count(1, &stamps());
    }

    #[test]
    fn workers_that_count_at_once_lose_nothing() {
        let cells = BatchCells::new(1);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| cells.count_shared(1, &stamps())));
            }
        });
        assert_eq!(sum([&cells].into_iter())[0].count, 40_000);
    }
}
