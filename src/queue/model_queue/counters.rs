//! What metrics show of a model queue: batches by release reason and by size. No protocol rests on these numbers, so
//! they are relaxed and may be read a moment too late.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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
