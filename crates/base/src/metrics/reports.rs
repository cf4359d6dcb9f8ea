//! Reports of backends on their own work, which come beside the answers, in any order with them: the statistics of a model
//! version are what its backend says, where it says something. A request is counted by its shard when it is answered, and
//! its report corrects that: the corrections are sums of differences, which may be below zero until the shard has counted.
//! Written by any thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::metrics::responses::{ResponseCells, ResponseOutcome};
use crate::metrics::{Counter, FailureReason, ModelCells, nanos_of};
use crate::time::Stamps;

/// The time of a request or a batch in an instance, by stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTimes {
    /// To prepare inputs.
    pub input: Duration,
    /// In the engine.
    pub infer: Duration,
    /// To prepare outputs.
    pub output: Duration,
}

impl StageTimes {
    /// Between the stamps of a request.
    pub const fn between(stamps: &Stamps) -> Self {
        Self {
            input: stamps.compute_input_duration(),
            infer: stamps.compute_infer_duration(),
            output: stamps.compute_output_duration(),
        }
    }
}

/// A backend's report on its work.
#[derive(Clone, Copy, Debug)]
pub enum WorkReport {
    /// On a batch: its rows and its times.
    Batch {
        /// Its rows.
        rows: u32,
        /// Its times.
        times: StageTimes,
        /// The rows and times that it was counted with before; `None` if it was not.
        replaced: Option<(u32, StageTimes)>,
    },
    /// On a request.
    Request(RequestReport),
    /// On a response of a decoupled model.
    Response {
        /// Its index among the responses to its request, from 0.
        index: usize,
        /// Its outcome.
        outcome: ResponseOutcome,
        /// Its time in the model.
        infer: Duration,
        /// The time to prepare its outputs.
        output: Duration,
    },
}

/// A backend's report on a request, beside the way in which its answer was counted.
#[derive(Clone, Copy, Debug)]
pub struct RequestReport {
    /// Its rows.
    pub rows: u32,
    /// True if it was answered with outputs.
    pub was_success: bool,
    /// The stamps of its answer.
    pub stamps: Stamps,
    /// True if it is one by its report.
    pub is_success: bool,
    /// The times of its report.
    pub times: StageTimes,
}

/// The reports on one model version.
#[derive(Debug, Default)]
pub struct ReportCells {
    /// The differences between the reports on requests and what the shards have counted.
    corrections: ModelCells,
    responses: ResponseCells,
    has_responses: AtomicBool,
}

impl ReportCells {
    /// The differences, which are summed with the cells of the shards.
    pub const fn corrections(&self) -> &ModelCells {
        &self.corrections
    }

    /// The responses, if there is a report on any: then they are all that is shown, as in Triton.
    pub fn responses(&self) -> Option<&ResponseCells> {
        self.has_responses.load(Ordering::Acquire).then_some(&self.responses)
    }

    pub(super) fn count_response(&self, index: usize, outcome: ResponseOutcome, infer: Duration, output: Duration) {
        self.responses.count_shared(index, outcome, infer, output);
        self.has_responses.store(true, Ordering::Release);
    }

    pub(super) fn count_request(&self, report: &RequestReport) {
        if report.was_success {
            self.add_success(report, &StageTimes::between(&report.stamps), false);
        }
        if report.is_success {
            self.add_success(report, &report.times, true);
        }
        if report.is_success != report.was_success {
            let cells = &self.corrections;
            let total = report.stamps.output_end.since(report.stamps.received);
            change(&cells.failure_duration, nanos_of(total), report.was_success);
            if let Some(failure) = cells.failure.get(FailureReason::Backend as usize) {
                change(failure, 1, report.was_success);
            }
        }
    }

    /// Adds a success, or takes it back.
    fn add_success(&self, report: &RequestReport, times: &StageTimes, is_added: bool) {
        let (cells, stamps) = (&self.corrections, &report.stamps);
        change(&cells.success, 1, is_added);
        change(&cells.inference, u64::from(report.rows), is_added);
        let durations = [
            (&cells.request_duration, stamps.output_end.since(stamps.received)),
            (&cells.queue_duration, stamps.queue_duration()),
            (&cells.compute_input_duration, times.input),
            (&cells.compute_infer_duration, times.infer),
            (&cells.compute_output_duration, times.output),
        ];
        durations.into_iter().for_each(|(counter, duration)| change(counter, nanos_of(duration), is_added));
    }
}

fn change(counter: &Counter, amount: u64, is_added: bool) {
    counter.add_shared(if is_added { amount } else { amount.wrapping_neg() });
}

impl Counter {
    /// Adds an amount, from any of several threads, and wraps around.
    pub(super) fn add_shared(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }
}

/// The sum of counters, of which some may be differences; 0 while those are ahead of what they correct.
pub(super) fn sum<'a>(counters: impl Iterator<Item = &'a Counter>) -> u64 {
    shown(counters.fold(0, |sum: u64, counter| sum.wrapping_add(counter.get())))
}

/// A sum of counters and differences as it is shown: 0 if it is below zero.
pub(super) fn shown(sum: u64) -> u64 {
    if i64::try_from(sum).is_ok() { sum } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{BatchCells, BatchFigures, DurationTotal, ModelFigures};
    use crate::time::Instant;

    #[test]
    fn a_report_replaces_what_was_counted_by_the_answer_in_any_order() {
        let at = Instant::from_nanos;
        let stamps =
            Stamps { received: at(10), batched: at(14), input_end: at(15), infer_end: at(35), output_end: at(38) };
        let nanos = Duration::from_nanos;
        let times = StageTimes { input: nanos(100), infer: nanos(200), output: nanos(300) };
        let figures = |was_success: bool, is_success: bool, is_late: bool| {
            let (shard, workers) = (ModelCells::new(0), BatchCells::new(8));
            let count = || match was_success {
                true => shard.count_success(&stamps, 3, 0),
                false => shard.count_failure(FailureReason::Backend, nanos(28)),
            };
            let report = || {
                workers.report(&WorkReport::Request(RequestReport { rows: 3, was_success, stamps, is_success, times }))
            };
            if is_late {
                count();
                report();
            } else {
                report();
                count();
            }
            let corrections = workers.reports().map(ReportCells::corrections);
            let cells = [&shard].into_iter().chain(corrections).collect();
            let figures = ModelFigures { cells, workers: Some(&workers), ..ModelFigures::default() }.statistics();
            let inference = figures.inference;
            let shown = [inference.success, inference.fail, inference.compute_input, inference.compute_output];
            (figures.inference_count, shown.map(|total| (total.count, total.nanos)))
        };
        for is_late in [true, false] {
            assert_eq!(figures(true, true, is_late), (3, [(1, 28), (0, 0), (1, 100), (1, 300)]));
            assert_eq!(figures(true, false, is_late), (0, [(0, 0), (1, 28), (0, 0), (0, 0)]));
            assert_eq!(figures(false, true, is_late), (3, [(1, 28), (0, 0), (1, 100), (1, 300)]));
            assert_eq!(figures(false, false, is_late), (0, [(0, 0), (1, 28), (0, 0), (0, 0)]));
        }
    }

    #[test]
    fn differences_that_are_ahead_of_what_they_correct_are_no_huge_number() {
        let (shard, corrections) = (Counter::default(), Counter::default());
        change(&corrections, 5, false);
        assert_eq!(sum([&shard, &corrections].into_iter()), 0);
        shard.add(7);
        assert_eq!(sum([&shard, &corrections].into_iter()), 2);
        assert_eq!([shown(3_u64.wrapping_sub(4)), shown(0), shown(3)], [0, 0, 3]);
    }

    #[test]
    fn a_reported_batch_replaces_the_counted_one_and_reported_responses_all_others() {
        let nanos = Duration::from_nanos;
        let times = |nanos_each: u64| {
            let each = nanos(nanos_each);
            StageTimes { input: each, infer: each, output: each }
        };
        let (cells, shard) = (BatchCells::new(8), ModelCells::new(0));
        cells.count_shared(2, &Stamps::default());
        shard.responses.count(0, ResponseOutcome::Succeeded, nanos(9), nanos(9));
        let batch = |rows, nanos_each, replaced| WorkReport::Batch { rows, times: times(nanos_each), replaced };
        cells.report(&batch(3, 5, Some((2, times(0)))));
        cells.report(&batch(3, 7, None));
        let of = |rows, count, each| BatchFigures {
            rows,
            count,
            compute_input: each,
            compute_infer: each,
            compute_output: each,
        };
        let statistics =
            || ModelFigures { cells: vec![&shard], workers: Some(&cells), ..ModelFigures::default() }.statistics();
        assert_eq!((statistics().batches, cells.rows()), (vec![of(3, 2, 12)], 6));
        let infer = |statistics: Vec<crate::metrics::ResponseFigures>| -> Vec<DurationTotal> {
            statistics.iter().map(|figures| figures.by_name()[0].1).collect()
        };
        assert_eq!(infer(statistics().responses), [DurationTotal { count: 1, nanos: 9 }]);
        let outcome = ResponseOutcome::Failed;
        cells.report(&WorkReport::Response { index: 0, outcome, infer: nanos(2), output: nanos(3) });
        assert_eq!(infer(statistics().responses), [DurationTotal { count: 1, nanos: 2 }]);
    }
}
