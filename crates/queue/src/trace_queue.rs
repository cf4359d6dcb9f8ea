//! The records of traces on their way from shards to the thread that writes them. Bounded in number
//! and in bytes: records that do not fit are dropped and counted, so that a slow disk or collector
//! costs no request anything.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::limits::TRACE_QUEUE_SIZE_MAX;
use crate::sized_queue::{QueuedSize, SizedQueue};
use trace::TraceRecord;

/// The queue: any number of shards, and one thread that reads.
pub struct TraceQueue {
    /// The records that wait.
    pub records: SizedQueue<TraceRecord>,
    /// Spans that were dropped.
    dropped: AtomicU64,
    /// Spans that were written or sent.
    written: AtomicU64,
}

impl QueuedSize for TraceRecord {
    fn queued_size(&self) -> usize {
        self.size()
    }
}

impl TraceQueue {
    /// Creates an empty queue for `count_max` records.
    pub fn new(count_max: usize) -> Self {
        Self {
            records: SizedQueue::new(count_max, TRACE_QUEUE_SIZE_MAX),
            dropped: AtomicU64::new(0),
            written: AtomicU64::new(0),
        }
    }

    /// Hands a record over, or drops it.
    pub fn push(&self, record: TraceRecord) {
        if let Err(record) = self.records.push(record) {
            self.count_dropped(record.span_count());
        }
        self.records.wake();
    }

    /// Counts spans that were lost.
    pub fn count_dropped(&self, spans: u64) {
        self.dropped.fetch_add(spans, Ordering::Relaxed);
    }

    /// Counts spans that have arrived.
    pub fn count_written(&self, spans: u64) {
        self.written.fetch_add(spans, Ordering::Relaxed);
    }

    /// Returns the spans that have arrived, and those that were lost.
    pub fn counts(&self) -> (u64, u64) {
        (self.written.load(Ordering::Relaxed), self.dropped.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use smallvec::SmallVec;

    use super::*;
    use base::time::Instant;
    use trace::{ActiveTrace, FrontSpan, TraceLevel, TraceMode, TraceSetting, TracedSpan};
    use wire::trace_context::{TraceContext, TraceParent};

    fn record(state_size: usize) -> TraceRecord {
        let setting = Arc::new(TraceSetting::new(TraceLevel::OFF, 1, -1, 0, TraceMode::Triton));
        let parent = TraceParent { trace_id: 1, span_id: 1 };
        let context = Some(Box::new(TraceContext { parent, state: "a".repeat(state_size) }));
        let front = FrontSpan { context, events: SmallVec::new(), ended: Instant::ZERO, status: None };
        TraceRecord { trace: Arc::new(ActiveTrace::root(&setting, None)), span: TracedSpan::Front(front) }
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_counted() {
        let queue = TraceQueue::new(2);
        (0..3).for_each(|_| queue.push(record(0)));
        assert_eq!((queue.records.len(), queue.counts()), (2, (0, 1)));
        while queue.records.pop().is_some() {}
        queue.push(record(TRACE_QUEUE_SIZE_MAX));
        assert_eq!((queue.records.len(), queue.counts()), (0, (0, 2)), "too large");
        queue.push(record(0));
        assert_eq!(queue.records.len(), 1, "what was dropped holds no memory");
    }
}
