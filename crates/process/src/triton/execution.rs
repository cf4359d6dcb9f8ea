//! The count of one batch in an instance: by its answers, until the backend reports on it
//! (`TRITONBACKEND_ModelInstanceReportBatchStatistics`). Its first report replaces the count, and each other one is another
//! batch: a backend may run the requests of one call in several.

#![expect(clippy::disallowed_types, reason = "answers and reports come from any thread; held to count a batch")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use backend::{AnswerOfBatch, ExecutionCounter};
use base::metrics::{ResponseOutcome, StageTimes, WorkReport};

/// A batch in an instance.
pub(super) struct HostedExecution {
    counter: Arc<dyn ExecutionCounter>,
    state: Mutex<BatchCount>,
}

#[derive(Clone, Copy)]
enum BatchCount {
    /// Not counted yet.
    Open,
    /// Counted by an answer, with these rows and times.
    Answered(u32, StageTimes),
    /// Counted by a report: answers do not count it any longer.
    Reported,
}

impl HostedExecution {
    pub(super) fn new(counter: &Arc<dyn ExecutionCounter>) -> Self {
        Self { counter: Arc::clone(counter), state: Mutex::new(BatchCount::Open) }
    }

    /// The backend reports on the batch.
    pub(super) fn report(&self, rows: u32, times: StageTimes) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let replaced = match std::mem::replace(&mut *state, BatchCount::Reported) {
            BatchCount::Answered(rows, times) => Some((rows, times)),
            BatchCount::Open | BatchCount::Reported => None,
        };
        self.counter.handle_report(&WorkReport::Batch { rows, times, replaced });
    }
}

impl ExecutionCounter for HostedExecution {
    fn handle_answer(&self, answer: &AnswerOfBatch<'_>) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, BatchCount::Reported) {
            return false;
        }
        let is_counted = self.counter.handle_answer(answer);
        if is_counted {
            *state = BatchCount::Answered(answer.rows, StageTimes::between(answer.stamps));
        }
        is_counted
    }

    fn handle_report(&self, report: &WorkReport) {
        self.counter.handle_report(report);
    }
}

/// The way of reports on the responses to one request. It outlives the request's answers.
pub(super) struct ResponseReports {
    counter: Option<Arc<dyn ExecutionCounter>>,
    /// The index of the next reported response.
    next: AtomicUsize,
}

impl ResponseReports {
    pub(super) fn new(counter: Option<Arc<dyn ExecutionCounter>>) -> Self {
        Self { counter, next: AtomicUsize::new(0) }
    }

    /// The backend reports on the next response.
    pub(super) fn report(&self, outcome: ResponseOutcome, times: &StageTimes) {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        let StageTimes { infer, output, .. } = *times;
        self.send(&WorkReport::Response { index, outcome, infer, output });
    }

    /// Passes a report on.
    pub(super) fn send(&self, report: &WorkReport) {
        if let Some(counter) = &self.counter {
            counter.handle_report(report);
        }
    }
}
