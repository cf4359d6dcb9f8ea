//! The lines on their way to the log's thread. Any thread pushes, and never waits: beyond [`LOG_QUEUE_SIZE_MAX`] bytes
//! a line is dropped and counted.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::Thread;
use std::time::Duration;

use crossbeam_queue::SegQueue;

use crate::limits::{LOG_LINE_COST, LOG_QUEUE_SIZE_MAX};
use crate::log::cause::Cause;
use crate::log::format::{AccessLine, Severity};

/// A message of the log, before it has its form.
#[derive(Debug)]
pub struct LogRecord {
    /// Its time, since the Unix epoch.
    pub at: Duration,
    /// Its content.
    pub said: Said,
}

/// The content of a message.
#[derive(Debug)]
pub enum Said {
    /// A request was answered.
    Access(Box<AccessLine>),
    /// Written as it is, to standard output or error, even if the log goes elsewhere.
    Plain(PlainTarget, Box<str>),
    /// The line below all others, on a terminal.
    Status(Option<Box<str>>),
    /// A text, from this place; the flag: limited to the lines that a cause may have.
    Text(Severity, Cause, bool, Box<str>),
}

/// The target of a plain text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlainTarget {
    /// Standard error.
    Error,
    /// Standard output.
    Output,
}

impl LogRecord {
    fn size(&self) -> usize {
        let text = match &self.said {
            Said::Access(line) => line.request.len() + line.model.len() + line.id.len(),
            Said::Plain(_, text) | Said::Text(.., text) => text.len(),
            Said::Status(text) => text.as_ref().map_or(0, |text| text.len()),
        };
        text.saturating_add(LOG_LINE_COST)
    }

    /// Returns the bytes that may wait with it: lines for every request leave room for more
    /// important ones.
    const fn size_max(&self) -> usize {
        match &self.said {
            Said::Access(_) | Said::Text(_, _, false, _) => LOG_QUEUE_SIZE_MAX - LOG_QUEUE_SIZE_MAX / 4,
            Said::Plain(..) | Said::Status(_) | Said::Text(..) => LOG_QUEUE_SIZE_MAX,
        }
    }
}

/// The queue, with one thread at its end.
#[derive(Debug)]
pub struct LogQueue {
    records: SegQueue<LogRecord>,
    size: AtomicUsize,
    pushed: AtomicU64,
    settled: AtomicU64,
    dropped: AtomicU64,
    reopens: AtomicBool,
    thread: Thread,
}

impl LogQueue {
    /// Creates a queue that wakes this thread.
    pub const fn new(thread: Thread) -> Self {
        Self {
            records: SegQueue::new(),
            size: AtomicUsize::new(0),
            pushed: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            reopens: AtomicBool::new(false),
            thread,
        }
    }

    /// Appends a record, or drops it if too much waits.
    pub fn push(&self, record: LogRecord) {
        // Relaxed, all of these are counts; the record itself is published by the queue.
        let (size, most) = (record.size(), record.size_max());
        if self.size.fetch_add(size, Ordering::Relaxed).saturating_add(size) > most {
            self.size.fetch_sub(size, Ordering::Relaxed);
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        // First the count: a flush that begins now waits for this record too, and none that was popped is not counted.
        self.pushed.fetch_add(1, Ordering::Relaxed);
        self.records.push(record);
        self.thread.unpark();
    }

    /// Returns true if less than half of the bytes that may wait do.
    pub fn has_room(&self) -> bool {
        self.size.load(Ordering::Relaxed) < LOG_QUEUE_SIZE_MAX / 2
    }

    /// Returns the next record. Only for the thread at the end.
    pub fn pop(&self) -> Option<LogRecord> {
        let record = self.records.pop()?;
        self.size.fetch_sub(record.size(), Ordering::Relaxed);
        Some(record)
    }

    /// `count` records were popped in all and are written or lost.
    pub fn set_settled(&self, count: u64) {
        self.settled.store(count, Ordering::Release);
    }

    /// Returns true if all records pushed before a count was taken are written or lost.
    pub fn is_settled(&self, pushed: u64) -> bool {
        self.settled.load(Ordering::Acquire) >= pushed
    }

    /// Records that were pushed so far, or are being pushed.
    pub fn pushed(&self) -> u64 {
        self.pushed.load(Ordering::Relaxed)
    }

    /// Returns the records that were dropped because too much waited.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Asks the thread to open its file again.
    pub fn reopen(&self) {
        self.reopens.store(true, Ordering::Release);
        self.thread.unpark();
    }

    /// Returns true if [`Self::reopen`] was called since the last call of this.
    pub fn take_reopen(&self) -> bool {
        self.reopens.swap(false, Ordering::AcqRel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_with_every_request_leaves_room_for_what_matters_more() {
        let queue = LogQueue::new(std::thread::current());
        let access = || LogRecord { at: Duration::ZERO, said: Said::Access(Box::default()) };
        while queue.dropped() == 0 {
            queue.push(access());
        }
        let full = queue.pushed();
        assert_eq!(full, (LOG_QUEUE_SIZE_MAX / 4 * 3 / LOG_LINE_COST) as u64);
        let cause = std::panic::Location::caller();
        queue.push(LogRecord { at: Duration::ZERO, said: Said::Text(Severity::Error, cause, true, "x".into()) });
        queue.push(access());
        assert_eq!((queue.pushed(), queue.dropped()), (full + 1, 2));
    }

    #[test]
    fn no_record_is_popped_before_it_is_counted() {
        let queue = LogQueue::new(std::thread::current());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..200_000 {
                    queue.push(LogRecord { at: Duration::ZERO, said: Said::Plain(PlainTarget::Error, "".into()) });
                }
            });
            let mut popped = 0;
            while popped + queue.dropped() < 200_000 {
                popped += u64::from(queue.pop().is_some());
                // A flush that took the count now would take this record for written.
                assert!(popped <= queue.pushed(), "{popped} were popped");
            }
        });
    }

    #[test]
    fn a_full_queue_drops_what_comes_and_takes_more_when_something_has_left() {
        let queue = LogQueue::new(std::thread::current());
        let record = |size: usize| LogRecord {
            at: Duration::ZERO,
            said: Said::Plain(PlainTarget::Error, "x".repeat(size).into_boxed_str()),
        };
        let half = LOG_QUEUE_SIZE_MAX / 2 - LOG_LINE_COST;
        for size in [half, half, 0, half] {
            queue.push(record(size));
        }
        assert_eq!((queue.pushed(), queue.dropped()), (2, 2));
        assert!(!queue.has_room());
        assert!(queue.pop().is_some());
        queue.push(record(half));
        queue.push(record(0));
        assert_eq!((queue.pushed(), queue.dropped()), (3, 3));
        assert_eq!(std::iter::from_fn(|| queue.pop()).count(), 2);
        assert!(queue.has_room());
        queue.set_settled(2);
        assert!(queue.is_settled(2) && !queue.is_settled(3));
        queue.reopen();
        assert!(queue.take_reopen() && !queue.take_reopen());
    }
}
