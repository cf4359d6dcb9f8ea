//! The statistics of a model version (Triton's statistics extension) as plain numbers: summed from the cells
//! on request, and encoded by the REST or the gRPC protocol.

use std::time::Duration;

use crate::metrics::batches::{self, BatchCells, BatchFigures};
use crate::metrics::reports::{self, ReportCells};
use crate::metrics::responses::{self, ResponseFigures};
use crate::metrics::{Counter, DurationTotal, ModelCells, ModelFigures};

/// The statistics of one model version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelStatistics {
    /// The model's name.
    pub name: String,
    /// Its version.
    pub version: u64,
    /// The time of the last answer with outputs, in milliseconds since the Unix epoch.
    pub last_inference: u64,
    /// Rows that were answered with outputs.
    pub inference_count: u64,
    /// Batches that ran, without those whose every request failed.
    pub execution_count: u64,
    /// Requests, and their time by stage.
    pub inference: InferenceStatistics,
    /// Responses of a decoupled model, by their index among the responses to a request.
    pub responses: Vec<ResponseFigures>,
    /// Batches that ran, by rows, ascending.
    pub batches: Vec<BatchFigures>,
}

/// Requests of one model version, and their time by stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InferenceStatistics {
    /// Requests answered with outputs, from arrival to answer. Every field below but `fail` covers a part of
    /// these requests; the `compute_*` fields leave out cache hits.
    pub success: DurationTotal,
    /// Requests refused by the queue, failed, or abandoned by their clients.
    pub fail: DurationTotal,
    /// Time in the queue.
    pub queue: DurationTotal,
    /// Time to prepare inputs.
    pub compute_input: DurationTotal,
    /// Time in the engine.
    pub compute_infer: DurationTotal,
    /// Time to prepare outputs.
    pub compute_output: DurationTotal,
    /// Lookups in the response cache that found the answer.
    pub cache_hit: DurationTotal,
    /// Lookups in the response cache that found no answer, with the insertion after the run.
    pub cache_miss: DurationTotal,
}

impl InferenceStatistics {
    /// The fields with their names in the protocol, in the protocol's order.
    pub const fn by_name(&self) -> [(&'static str, DurationTotal); 8] {
        [
            ("success", self.success),
            ("fail", self.fail),
            ("queue", self.queue),
            ("compute_input", self.compute_input),
            ("compute_infer", self.compute_infer),
            ("compute_output", self.compute_output),
            ("cache_hit", self.cache_hit),
            ("cache_miss", self.cache_miss),
        ]
    }
}

impl BatchFigures {
    /// The times with their names in the protocol, in the protocol's order.
    pub const fn by_name(&self) -> [(&'static str, DurationTotal); 3] {
        let count = self.count;
        [
            ("compute_input", DurationTotal { count, nanos: self.compute_input }),
            ("compute_infer", DurationTotal { count, nanos: self.compute_infer }),
            ("compute_output", DurationTotal { count, nanos: self.compute_output }),
        ]
    }
}

impl ModelFigures<'_> {
    /// Sums the cells into the statistics of the model version.
    pub fn statistics(&self) -> ModelStatistics {
        let sum = |counter: fn(&ModelCells) -> &Counter| reports::sum(self.cells.iter().map(|cells| counter(cells)));
        let count = sum(|cells| &cells.success);
        let hits = sum(|cells| &cells.cache_hit);
        let total = |counter| DurationTotal { count, nanos: sum(counter) };
        let computed = |counter| DurationTotal { count: count.saturating_sub(hits), nanos: sum(counter) };
        let fail = reports::sum(self.cells.iter().flat_map(|cells| &cells.failure));
        let last = self.cells.iter().map(|cells| cells.last_inference.get()).max();
        ModelStatistics {
            name: self.name.to_owned(),
            version: self.version,
            last_inference: last.unwrap_or(0),
            inference_count: sum(|cells| &cells.inference),
            execution_count: self.executions(),
            inference: InferenceStatistics {
                success: total(|cells| &cells.request_duration),
                fail: DurationTotal { count: fail, nanos: sum(|cells| &cells.failure_duration) },
                queue: total(|cells| &cells.queue_duration),
                compute_input: computed(|cells| &cells.compute_input_duration),
                compute_infer: computed(|cells| &cells.compute_infer_duration),
                compute_output: computed(|cells| &cells.compute_output_duration),
                cache_hit: DurationTotal { count: hits, nanos: sum(|cells| &cells.cache_hit_duration) },
                cache_miss: DurationTotal {
                    count: sum(|cells| &cells.cache_miss),
                    nanos: sum(|cells| &cells.cache_miss_duration),
                },
            },
            responses: match self.workers.and_then(BatchCells::reports).and_then(ReportCells::responses) {
                Some(reported) => responses::sum(std::iter::once(reported)),
                None => responses::sum(self.cells.iter().map(|cells| &cells.responses)),
            },
            batches: batches::sum(self.batch_cells()),
        }
    }
}

/// A duration in nanoseconds, the unit of all cells; saturates after 584 years.
#[inline]
pub fn nanos_of(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::FailureReason;
    use crate::time::{Instant, Stamps};

    #[test]
    fn statistics_are_the_sums_over_the_shards_and_the_workers() {
        let at = Instant::from_nanos;
        let stamps =
            Stamps { received: at(10), batched: at(14), input_end: at(15), infer_end: at(35), output_end: at(38) };
        let (one, two, workers) = (ModelCells::new(0), ModelCells::new(4), BatchCells::new(4));
        one.count_success(&stamps, 3, 1_700);
        two.count_success(&stamps, 1, 1_600);
        two.count_execution();
        two.batches.count(1, &stamps);
        workers.count_shared(3, &stamps);
        one.count_failure(FailureReason::Rejected, Duration::from_nanos(7));
        two.count_failure(FailureReason::Canceled, Duration::from_nanos(5));
        one.count_cache_hit(at(100), at(101), at(104), 1_800);
        two.count_cache_miss(Duration::from_nanos(9), 0);
        let figures = ModelFigures {
            name: "m",
            version: 2,
            labels: "",
            is_cached: true,
            hides_durations: false,
            shows_exemplars: false,
            process_memory: None,
            cells: vec![&one, &two],
            workers: Some(&workers),
            releases: vec![("full", 1), ("idle", 1)],
            pending: 0,
            pending_max: None,
            placement: "worker",
            engine: None,
            run: None,
            instances: Vec::new(),
            wakes: 0,
            restarts: 0,
            late: 0,
            row_costs: None,
            padding: None,
            sequences: None,
            gpu: None,
        };
        let total = |count, nanos| DurationTotal { count, nanos };
        let batch = |rows| BatchFigures { rows, count: 1, compute_input: 1, compute_infer: 20, compute_output: 3 };
        let want = ModelStatistics {
            name: "m".to_owned(),
            version: 2,
            last_inference: 1_800,
            inference_count: 4,
            execution_count: 2,
            inference: InferenceStatistics {
                success: total(3, 60),
                fail: total(2, 12),
                queue: total(3, 9),
                compute_input: total(2, 2),
                compute_infer: total(2, 40),
                compute_output: total(2, 6),
                cache_hit: total(1, 3),
                cache_miss: total(1, 9),
            },
            responses: Vec::new(),
            batches: vec![batch(1), batch(3)],
        };
        assert_eq!(figures.statistics(), want);
    }
}
