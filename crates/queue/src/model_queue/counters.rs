//! The figures of a model queue in the metrics: batches by release reason and by size, and the cost
//! of rows. No protocol rests on these numbers, so they are relaxed and may be read a moment too
//! late.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use crate::limits::BATCH_SIZES_MAX;
use backend::{AnswerOfBatch, ExecutionCounter};
use base::metrics::{BatchCells, RowCostCells, WorkReport};
use scheduler::{ReleaseReason, RowCosts};

pub(super) struct QueueCounters {
    releases: [AtomicUsize; ReleaseReason::ALL.len()],
    batches: Arc<BatchCells>,
    pub(super) row_costs: RowCostCells,
    /// For each instance, its requests that were sent ahead and have not begun. Written by its worker alone.
    ahead: Box<[AtomicUsize]>,
}

impl QueueCounters {
    pub(super) fn new(rows_max: u32, instances: usize) -> Self {
        let batches = Arc::new(BatchCells::new(batch_sizes(rows_max)));
        let ahead = (0..instances).map(|_| AtomicUsize::new(0)).collect();
        Self { releases: Default::default(), batches, row_costs: RowCostCells::default(), ahead }
    }

    /// Sets the count of an instance's requests that were sent ahead. Most instances have none, always: then the cache
    /// line is only read.
    pub(super) fn set_ahead(&self, instance_index: usize, count: usize) {
        if let Some(ahead) = self.ahead.get(instance_index).filter(|ahead| ahead.load(Ordering::Relaxed) != count) {
            ahead.store(count, Ordering::Relaxed);
        }
    }

    /// The requests of all instances that were sent ahead and have not begun.
    pub(super) fn ahead(&self) -> usize {
        self.ahead.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// The batcher has learned the cost of rows, or that it cannot be known.
    pub(super) fn handle_row_costs(&self, costs: Option<&RowCosts>) {
        match costs {
            Some(costs) => self.row_costs.set(costs.rows_chosen(), costs.costs()),
            None => self.row_costs.clear(),
        }
    }

    /// A batch left the queue.
    pub(super) fn handle_batch(&self, reason: ReleaseReason) {
        if let Some(count) = self.releases.get(reason as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the batches that left so far.
    pub(super) fn executions(&self) -> usize {
        self.releases.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Returns the batches that left so far for a reason.
    pub(super) fn released(&self, reason: ReleaseReason) -> usize {
        self.releases.get(reason as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Returns the batches that ran. The last responder of a batch counts it, which may outlive the
    /// queue.
    pub(super) const fn batches(&self) -> &Arc<BatchCells> {
        &self.batches
    }
}

/// Returns the number of batch sizes of a model version that are counted apart.
pub fn batch_sizes(rows_max: u32) -> usize {
    usize::try_from(rows_max).unwrap_or(BATCH_SIZES_MAX).clamp(1, BATCH_SIZES_MAX)
}

/// Counts a batch of several requests, of which any may fail alone: by its first, or by another if
/// the first failed.
pub(super) struct BatchExecution {
    batches: Arc<BatchCells>,
    /// The flags of the answers so far. Publishes nothing: relaxed.
    known: AtomicU8,
}

/// The first request of the batch has failed.
const FIRST_FAILED: u8 = 1;
/// Another was answered with outputs.
const OTHER_HAS_OUTPUTS: u8 = 2;

impl BatchExecution {
    /// Creates the count of a batch without an answer yet.
    pub(super) const fn new(batches: Arc<BatchCells>) -> Self {
        Self { batches, known: AtomicU8::new(0) }
    }
}

impl ExecutionCounter for BatchExecution {
    fn handle_answer(&self, answer: &AnswerOfBatch<'_>) -> bool {
        let news = match (answer.is_first, answer.has_outputs) {
            (true, true) => 0,
            (true, false) => FIRST_FAILED,
            (false, true) => OTHER_HAS_OUTPUTS,
            (false, false) => return false,
        };
        let before = self.known.fetch_or(news, Ordering::Relaxed);
        // Only the answer that makes it complete counts.
        let is_counted = news == 0 || (before & news == 0 && before | news == FIRST_FAILED | OTHER_HAS_OUTPUTS);
        if is_counted {
            self.batches.count_shared(answer.rows, answer.stamps);
        }
        is_counted
    }

    fn handle_report(&self, report: &WorkReport) {
        self.batches.report(report);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::time::Stamps;

    #[test]
    fn a_batch_is_counted_once_whichever_of_its_requests_fail_and_in_whichever_order_they_are_answered() {
        // `F` and `f` are the first request, answered with outputs and failed; `O` and `o` are others.
        let check = |answers: &str, want: u64| {
            let batches = Arc::new(BatchCells::new(4));
            let execution = BatchExecution::new(Arc::clone(&batches));
            for answer in answers.chars() {
                let (is_first, has_outputs) = (answer.eq_ignore_ascii_case(&'f'), answer.is_uppercase());
                execution.handle_answer(&AnswerOfBatch { is_first, has_outputs, rows: 3, stamps: &Stamps::default() });
            }
            assert_eq!(batches.executions(), want, "{answers}");
        };
        for counted in ["FOO", "OOF", "Foo", "OFo", "fOO", "OfO", "OOf", "ofO", "Oof"] {
            check(counted, 1);
        }
        check("foo", 0);
        check("oof", 0);
        // Run again one by one, each is the first of its own run.
        check("FfF", 2);
        check("fff", 0);
    }
}
