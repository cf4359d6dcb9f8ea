//! The count of one batch in an instance: by its answers, until the backend reports on it
//! (`TRITONBACKEND_ModelInstanceReportBatchStatistics`). Its first report replaces the count, and each other one is another
//! batch: a backend may run the requests of one call in several.

#![expect(clippy::disallowed_types, reason = "answers and reports come from any thread; held to count a batch")]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::limits::HOSTED_EXECUTIONS_KEPT;
use backend::{AnswerOfBatch, ExecutionCounter};
use base::metrics::{ResponseOutcome, StageTimes, WorkReport};

/// A batch in an instance.
pub(crate) struct HostedExecution {
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
    pub(crate) fn new(counter: &Arc<dyn ExecutionCounter>) -> Self {
        Self { counter: Arc::clone(counter), state: Mutex::new(BatchCount::Open) }
    }

    /// Returns true if the backend has reported on it.
    pub(crate) fn is_reported(&self) -> bool {
        matches!(*self.state.lock().unwrap_or_else(PoisonError::into_inner), BatchCount::Reported)
    }

    /// The backend reports on the batch.
    pub(crate) fn report(&self, rows: u32, times: StageTimes) {
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

/// The last batches of an instance, the newest last. A report on a batch names none: it is about the oldest without a report, since
/// a backend may take a batch before it has reported on the one before; if there is no such, about the last one.
#[derive(Default)]
pub(crate) struct RecentExecutions(VecDeque<Arc<HostedExecution>>);

impl RecentExecutions {
    /// The batch that the next report is about.
    pub(crate) fn to_report(&self) -> Option<Arc<HostedExecution>> {
        self.0.iter().find(|execution| !execution.is_reported()).or_else(|| self.0.back()).cloned()
    }
}

impl Extend<Arc<HostedExecution>> for RecentExecutions {
    fn extend<I: IntoIterator<Item = Arc<HostedExecution>>>(&mut self, begun: I) {
        self.0.retain(|execution| !execution.is_reported());
        self.0.extend(begun);
        let surplus = self.0.len().saturating_sub(HOSTED_EXECUTIONS_KEPT);
        self.0.drain(..surplus);
    }
}

/// The way of reports on the responses to one request. It outlives the request's answers.
pub(crate) struct ResponseReports {
    counter: Option<Arc<dyn ExecutionCounter>>,
    /// The index of the next reported response.
    next: AtomicUsize,
}

impl ResponseReports {
    pub(crate) fn new(counter: Option<Arc<dyn ExecutionCounter>>) -> Self {
        Self { counter, next: AtomicUsize::new(0) }
    }

    /// The backend reports on the next response.
    pub(crate) fn report(&self, outcome: ResponseOutcome, times: &StageTimes) {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        let StageTimes { infer, output, .. } = *times;
        self.send(&WorkReport::Response { index, outcome, infer, output });
    }

    /// Passes a report on.
    pub(crate) fn send(&self, report: &WorkReport) {
        if let Some(counter) = &self.counter {
            counter.handle_report(report);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Uncounted;

    impl ExecutionCounter for Uncounted {
        fn handle_answer(&self, _: &AnswerOfBatch<'_>) -> bool {
            true
        }

        fn handle_report(&self, _: &WorkReport) {}
    }

    #[test]
    fn a_report_is_about_the_oldest_batch_without_one_and_then_about_the_last() {
        let counter: Arc<dyn ExecutionCounter> = Arc::new(Uncounted);
        let batches: Vec<_> = (0..=HOSTED_EXECUTIONS_KEPT).map(|_| Arc::new(HostedExecution::new(&counter))).collect();
        let mut recent = RecentExecutions::default();
        let report = |recent: &RecentExecutions| {
            let execution = recent.to_report().unwrap();
            execution.report(1, StageTimes::default());
            batches.iter().position(|batch| Arc::ptr_eq(batch, &execution)).unwrap()
        };
        assert!(recent.to_report().is_none());
        recent.extend([Arc::clone(&batches[0])]);
        recent.extend([Arc::clone(&batches[1])]);
        assert_eq!([report(&recent), report(&recent), report(&recent)], [0, 1, 1]);
        recent.extend(batches[2..4].iter().cloned());
        assert_eq!(report(&recent), 2);
        let mut silent = RecentExecutions::default();
        silent.extend(batches[3..].iter().cloned());
        silent.extend(batches[..3].iter().cloned());
        assert_eq!(silent.0.len(), HOSTED_EXECUTIONS_KEPT, "those that are never reported on are not kept for ever");
    }
}
