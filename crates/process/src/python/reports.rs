//! The reports of a backend in a process of its own (`docs/decisions/0082-reports-of-backends.md`). They come behind the answers
//! that they are about, which the server has counted. The process names batches and requests by their numbers; a report on one
//! that is no longer known is dropped.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::execution::HostedExecution;
use crate::limits::{HOSTED_ANSWERS_KEPT, HOSTED_EXECUTIONS_KEPT};
use crate::python::message::WorkClaim;
use backend::{ExecutionCounter, Request};
use base::metrics::{RequestReport, WorkReport};
use base::time::Stamps;

/// The batches and answered requests of a process that it may still report on.
#[derive(Default)]
pub(super) struct OpenReports {
    /// The newest last.
    batches: VecDeque<(u64, Arc<HostedExecution>)>,
    /// By their numbers, which grow.
    answered: BTreeMap<u64, AnsweredRequest>,
}

/// A request with its last answer.
pub(super) struct AnsweredRequest {
    pub(super) counter: Arc<dyn ExecutionCounter>,
    pub(super) rows: u32,
    /// True if it was answered with outputs, and its stamps; `None` if its client has left, or the report has come.
    pub(super) counted: Option<(bool, Stamps)>,
}

impl OpenReports {
    /// A batch goes to the process: its answers are counted so that a report can replace the count.
    pub(super) fn begin(&mut self, batch: u64, requests: &mut [Request]) {
        let Some(counter) = requests.iter().find_map(|request| request.responder.executions()) else { return };
        let execution = Arc::new(HostedExecution::new(counter));
        let counted = requests.iter_mut().filter(|request| request.responder.executions().is_some());
        counted.for_each(|request| request.responder.count_in(Arc::clone(&execution) as Arc<dyn ExecutionCounter>));
        if self.batches.len() >= HOSTED_EXECUTIONS_KEPT {
            self.batches.pop_front();
        }
        self.batches.push_back((batch, execution));
    }

    /// A request is answered.
    pub(super) fn handle_answered(&mut self, request: u64, answered: AnsweredRequest) {
        if self.answered.len() >= HOSTED_ANSWERS_KEPT {
            self.answered.pop_first();
        }
        self.answered.insert(request, answered);
    }

    /// The process reports on a batch, a request or a response. `open` counts for the request if the process still has it.
    pub(super) fn handle_report(&mut self, claim: &WorkClaim, open: Option<Arc<dyn ExecutionCounter>>) {
        match *claim {
            WorkClaim::Batch { batch, rows, times } => {
                let known = self.batches.iter().find(|(number, _)| *number == batch);
                known.iter().for_each(|(_, execution)| execution.report(rows, times));
            }
            WorkClaim::Request { request, is_success, times } => {
                let Some(answered) = self.answered.get_mut(&request) else { return };
                if let Some((was_success, stamps)) = answered.counted.take() {
                    let report = RequestReport { rows: answered.rows, was_success, stamps, is_success, times };
                    answered.counter.handle_report(&WorkReport::Request(report));
                }
            }
            WorkClaim::Response { request, index, outcome, infer, output } => {
                let answered = || self.answered.get(&request).map(|answered| Arc::clone(&answered.counter));
                if let Some(counter) = open.or_else(answered) {
                    let index = usize::try_from(index).unwrap_or(usize::MAX);
                    counter.handle_report(&WorkReport::Response { index, outcome, infer, output });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use backend::AnswerOfBatch;
    use base::metrics::{ResponseOutcome, StageTimes};

    /// Counts reports on requests, and on responses in hundreds.
    #[derive(Default)]
    struct Reported(AtomicUsize);

    impl ExecutionCounter for Reported {
        fn handle_answer(&self, _: &AnswerOfBatch<'_>) -> bool {
            false
        }

        fn handle_report(&self, report: &WorkReport) {
            let amount = if matches!(report, WorkReport::Response { .. }) { 100 } else { 1 };
            self.0.fetch_add(amount, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_first_report_on_an_answered_request_counts_and_none_on_one_that_is_forgotten() {
        let counter = Arc::new(Reported::default());
        let counted = || Arc::clone(&counter) as Arc<dyn ExecutionCounter>;
        let mut reports = OpenReports::default();
        let (times, outcome) = (StageTimes::default(), ResponseOutcome::Succeeded);
        let (infer, output) = (times.infer, times.output);
        let request = |request: u64| WorkClaim::Request { request, is_success: true, times };
        let response = |request: u64| WorkClaim::Response { request, index: 0, outcome, infer, output };
        let after = |reports: &mut OpenReports, claim: WorkClaim, open| {
            reports.handle_report(&claim, open);
            counter.0.swap(0, Ordering::Relaxed)
        };
        assert_eq!(after(&mut reports, request(1), None), 0, "not answered");
        assert_eq!(after(&mut reports, response(1), Some(counted())), 100, "the process still has it");
        let answered = || AnsweredRequest { counter: counted(), rows: 1, counted: Some((true, Stamps::default())) };
        reports.handle_answered(1, answered());
        assert_eq!([(); 2].map(|()| after(&mut reports, request(1), None)), [1, 0]);
        assert_eq!(after(&mut reports, response(1), None), 100, "also behind the report on the request");
        reports.handle_answered(2, AnsweredRequest { counted: None, ..answered() });
        assert_eq!(after(&mut reports, request(2), None), 0, "its client has left");
        (3..).take(HOSTED_ANSWERS_KEPT).for_each(|request| reports.handle_answered(request, answered()));
        assert_eq!([2, 3].map(|number| after(&mut reports, response(number), None)), [0, 100]);
        assert_eq!(after(&mut reports, WorkClaim::Batch { batch: 7, rows: 1, times }, None), 0, "no such batch");
    }
}
