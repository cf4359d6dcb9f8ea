//! What metrics show of a model queue: batches by release reason and by size. No protocol rests on these numbers, so
//! they are relaxed and may be read a moment too late.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::backend::ExecutionCounter;
use crate::limits::BATCH_SIZES_MAX;
use crate::metrics::BatchCells;
use crate::scheduler::ReleaseReason;
use crate::time::Stamps;

pub(super) struct QueueCounters {
    releases: [AtomicUsize; ReleaseReason::ALL.len()],
    batches: Arc<BatchCells>,
}

impl QueueCounters {
    pub(super) fn new(rows_max: u32) -> Self {
        Self { releases: Default::default(), batches: Arc::new(BatchCells::new(batch_sizes(rows_max))) }
    }

    /// A batch left the queue.
    pub(super) fn handle_batch(&self, reason: ReleaseReason) {
        if let Some(count) = self.releases.get(reason as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Batches that left so far.
    pub(super) fn executions(&self) -> usize {
        self.releases.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Batches that left so far for a reason.
    pub(super) fn released(&self, reason: ReleaseReason) -> usize {
        self.releases.get(reason as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// The batches that ran. The last responder of a batch counts it, which may outlive the queue.
    pub(super) const fn batches(&self) -> &Arc<BatchCells> {
        &self.batches
    }
}

/// Sizes that the batches of a model version may have, as far as they are counted apart.
pub fn batch_sizes(rows_max: u32) -> usize {
    usize::try_from(rows_max).unwrap_or(BATCH_SIZES_MAX).clamp(1, BATCH_SIZES_MAX)
}

/// Workers count a batch, not shards: the clients of its requests may have left by then.
impl ExecutionCounter for BatchCells {
    fn count(&self, rows: u32, stamps: &Stamps) {
        self.count_shared(rows, stamps);
    }
}

/// Counts a batch of several requests once, by the first that is answered with outputs: any of them may fail alone.
pub(super) struct BatchExecution {
    batches: Arc<BatchCells>,
    /// Publishes nothing: relaxed.
    is_counted: AtomicBool,
}

impl BatchExecution {
    /// Of a batch that nobody has counted yet.
    pub(super) const fn new(batches: Arc<BatchCells>) -> Self {
        Self { batches, is_counted: AtomicBool::new(false) }
    }
}

impl ExecutionCounter for BatchExecution {
    fn count(&self, rows: u32, stamps: &Stamps) {
        if !self.is_counted.swap(true, Ordering::Relaxed) {
            self.batches.count_shared(rows, stamps);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_counted_by_the_first_of_its_requests_that_is_answered_with_outputs() {
        let batches = Arc::new(BatchCells::new(4));
        for _ in 0..2 {
            let execution = BatchExecution::new(Arc::clone(&batches));
            (0..3).for_each(|_| execution.count(3, &Stamps::default()));
        }
        assert_eq!((batches.executions(), batches.rows()), (2, 6));
    }
}
