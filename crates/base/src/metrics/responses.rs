//! Outcomes of the responses of decoupled models, by their index among the responses to a request: the
//! `response_stats` of Triton's statistics extension. One shard writes, any thread may read. Bounded by
//! [`RESPONSE_STATISTICS_MAX`] indices; later responses count with the last.

use std::sync::OnceLock;
use std::time::Duration;

use crate::limits::RESPONSE_STATISTICS_MAX;
use crate::metrics::{Counter, DurationTotal, nanos_of};

/// Indices in one chunk. A chunk is allocated when its first response is counted: most models send few
/// responses, and cells for all indices would take 96 KiB for each model version on each shard.
const CHUNK: usize = 64;
const CHUNKS: usize = RESPONSE_STATISTICS_MAX / CHUNK;

const _: () = assert!(CHUNK * CHUNKS == RESPONSE_STATISTICS_MAX, "the indices fill whole chunks");

/// The counters of one shard for the responses of one model version.
#[derive(Debug, Default)]
pub struct ResponseCells {
    chunks: [OnceLock<Box<[ResponseCell]>>; CHUNKS],
}

/// The outcome of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseOutcome {
    /// Its client went away before it.
    Cancelled,
    /// It ends the responses and has no outputs.
    Empty,
    /// It is an error.
    Failed,
    /// It has outputs.
    Succeeded,
}

#[derive(Debug, Default)]
struct ResponseCell {
    compute_infer: TotalCell,
    compute_output: TotalCell,
    success: TotalCell,
    fail: TotalCell,
    empty_response: TotalCell,
    cancel: TotalCell,
}

#[derive(Debug, Default)]
struct TotalCell {
    count: Counter,
    nanos: Counter,
}

/// The statistics of the responses with one index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseFigures {
    /// The index among the responses to a request, from 0.
    pub index: usize,
    /// The six totals, in the protocol's order.
    totals: [DurationTotal; 6],
}

impl ResponseFigures {
    /// The totals with their names in the protocol, in the protocol's order.
    pub fn by_name(&self) -> [(&'static str, DurationTotal); 6] {
        let [compute_infer, compute_output, success, fail, empty_response, cancel] = self.totals;
        [
            ("compute_infer", compute_infer),
            ("compute_output", compute_output),
            ("success", success),
            ("fail", fail),
            ("empty_response", empty_response),
            ("cancel", cancel),
        ]
    }
}

impl ResponseCells {
    /// Counts a response: `infer` is its time in the model, `output` the time to prepare its outputs. Only the
    /// shard that owns the cells may call this.
    pub fn count(&self, index: usize, outcome: ResponseOutcome, infer: Duration, output: Duration) {
        self.count_with(index, outcome, [infer, output], Counter::add);
    }

    /// The same, from any of several threads.
    pub fn count_shared(&self, index: usize, outcome: ResponseOutcome, infer: Duration, output: Duration) {
        self.count_with(index, outcome, [infer, output], Counter::add_shared);
    }

    fn count_with(
        &self,
        index: usize,
        outcome: ResponseOutcome,
        [infer, output]: [Duration; 2],
        add: fn(&Counter, u64),
    ) {
        let index = index.min(RESPONSE_STATISTICS_MAX - 1);
        let Some(chunk) = self.chunks.get(index / CHUNK) else { return };
        let chunk = chunk.get_or_init(|| (0..CHUNK).map(|_| ResponseCell::default()).collect());
        let Some(cell) = chunk.get(index % CHUNK) else { return };

        if outcome != ResponseOutcome::Cancelled {
            cell.compute_infer.add(infer, add);
        }
        // As in Triton, one that failed has outputs only if they took time.
        if outcome == ResponseOutcome::Succeeded || (outcome == ResponseOutcome::Failed && !output.is_zero()) {
            cell.compute_output.add(output, add);
        }
        let total = infer.saturating_add(output);
        match outcome {
            ResponseOutcome::Cancelled => cell.cancel.add(total, add),
            ResponseOutcome::Empty => cell.empty_response.add(total, add),
            ResponseOutcome::Failed => cell.fail.add(total, add),
            ResponseOutcome::Succeeded => cell.success.add(total, add),
        }
    }

    fn figures(&self) -> impl Iterator<Item = ResponseFigures> {
        let chunks = self.chunks.iter().enumerate().filter_map(|(at, chunk)| Some((at * CHUNK, chunk.get()?)));
        let figures = |(at, cell): (usize, &ResponseCell)| ResponseFigures { index: at, totals: cell.totals() };
        let cells = chunks.flat_map(|(from, chunk)| chunk.iter().enumerate().map(move |(at, cell)| (from + at, cell)));
        cells.map(figures).filter(|figures| figures.totals.iter().any(|total| total.count > 0))
    }
}

impl ResponseCell {
    fn totals(&self) -> [DurationTotal; 6] {
        let Self { compute_infer, compute_output, success, fail, empty_response, cancel } = self;
        [compute_infer, compute_output, success, fail, empty_response, cancel]
            .map(|cell| DurationTotal { count: cell.count.get(), nanos: cell.nanos.get() })
    }
}

impl TotalCell {
    fn add(&self, duration: Duration, add: fn(&Counter, u64)) {
        add(&self.count, 1);
        add(&self.nanos, nanos_of(duration));
    }
}

/// Sums the cells of all shards by index.
pub fn sum<'a>(cells: impl Iterator<Item = &'a ResponseCells>) -> Vec<ResponseFigures> {
    let mut sums: std::collections::BTreeMap<usize, [DurationTotal; 6]> = std::collections::BTreeMap::new();
    for ResponseFigures { index, totals } in cells.flat_map(ResponseCells::figures) {
        for (sum, total) in sums.entry(index).or_default().iter_mut().zip(totals) {
            (sum.count, sum.nanos) = (sum.count + total.count, sum.nanos.wrapping_add(total.nanos));
        }
    }
    sums.into_iter().map(|(index, totals)| ResponseFigures { index, totals }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_summed_by_index_over_shards_and_those_past_the_last_index_together() {
        let nanos = Duration::from_nanos;
        let (one, two) = (ResponseCells::default(), ResponseCells::default());
        one.count(0, ResponseOutcome::Succeeded, nanos(5), nanos(2));
        two.count(0, ResponseOutcome::Succeeded, nanos(1), nanos(1));
        one.count(1, ResponseOutcome::Empty, nanos(4), nanos(0));
        two.count(1, ResponseOutcome::Failed, nanos(3), nanos(0));
        two.count(70, ResponseOutcome::Cancelled, nanos(9), nanos(0));
        for index in [RESPONSE_STATISTICS_MAX - 1, RESPONSE_STATISTICS_MAX, usize::MAX] {
            one.count(index, ResponseOutcome::Succeeded, nanos(1), nanos(0));
        }
        let shown = |figures: ResponseFigures| {
            let totals = figures.by_name().into_iter().filter(|(_, total)| total.count > 0);
            let totals: Vec<_> =
                totals.map(|(name, total)| format!("{name} {} {}", total.count, total.nanos)).collect();
            format!("{}: {}", figures.index, totals.join(", "))
        };
        let shown: Vec<_> = sum([&one, &two].into_iter()).into_iter().map(shown).collect();
        let want = [
            "0: compute_infer 2 6, compute_output 2 3, success 2 9",
            "1: compute_infer 2 7, fail 1 3, empty_response 1 4",
            "70: cancel 1 9",
            "1023: compute_infer 3 3, compute_output 3 0, success 3 3",
        ];
        assert_eq!(shown, want);
    }
}
