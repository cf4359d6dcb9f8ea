//! The records of traces on their way from shards to the thread that writes them. Bounded in number
//! and in bytes: records that do not fit are dropped and counted, so that a slow disk or collector
//! costs no request anything.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::Thread;

use crossbeam_queue::ArrayQueue;

use crate::limits::TRACE_QUEUE_SIZE_MAX;
use trace::TraceRecord;

/// The queue: any number of shards, and one thread that reads.
pub struct TraceQueue {
    records: ArrayQueue<TraceRecord>,
    /// Bytes of the records that wait.
    size: AtomicUsize,
    /// Spans that were dropped.
    dropped: AtomicU64,
    /// Spans that were written or sent.
    written: AtomicU64,
    is_ending: AtomicBool,
    reader: OnceLock<Thread>,
}

impl TraceQueue {
    /// Creates an empty queue for `count_max` records.
    pub fn new(count_max: usize) -> Self {
        Self {
            records: ArrayQueue::new(count_max.max(1)),
            size: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
            written: AtomicU64::new(0),
            is_ending: AtomicBool::new(false),
            reader: OnceLock::new(),
        }
    }

    /// Hands a record over, or drops it.
    pub fn push(&self, record: TraceRecord) {
        let (size, spans) = (record.size(), record.span_count());
        let before = self.size.fetch_add(size, Ordering::Relaxed);
        let fits = before.saturating_add(size) <= TRACE_QUEUE_SIZE_MAX;
        if !fits || self.records.push(record).is_err() {
            self.size.fetch_sub(size, Ordering::Relaxed);
            self.count_dropped(spans);
        }
        self.wake();
    }

    /// Takes the next record.
    pub fn pop(&self) -> Option<TraceRecord> {
        let record = self.records.pop()?;
        self.size.fetch_sub(record.size(), Ordering::Relaxed);
        Some(record)
    }

    /// Returns the records that wait.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns true if no record waits.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Makes the calling thread the one that reads; [`Self::wake`] unparks it from now on.
    pub fn set_reader(&self) {
        self.reader.get_or_init(std::thread::current);
    }

    /// Unparks the thread that reads.
    pub fn wake(&self) {
        if let Some(reader) = self.reader.get() {
            reader.unpark();
        }
    }

    /// No further records come: the thread that reads ends when it has written those that wait.
    pub fn end(&self) {
        self.is_ending.store(true, Ordering::Release);
        self.wake();
    }

    /// Returns true if no further records come.
    pub fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
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
        assert_eq!((queue.len(), queue.counts()), (2, (0, 1)));
        while queue.pop().is_some() {}
        queue.push(record(TRACE_QUEUE_SIZE_MAX));
        assert_eq!((queue.len(), queue.counts()), (0, (0, 2)), "too large");
        queue.push(record(0));
        assert_eq!(queue.len(), 1, "what was dropped holds no memory");
    }
}
