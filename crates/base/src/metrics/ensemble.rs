//! Statistics of an ensemble: for each request the summed times of its steps, as in Triton (`RequestTracker`).
//! An ensemble has no queue of its own, and each request counts as one batch.

use std::time::Duration;

use crate::metrics::ModelCells;
use crate::metrics::latency::RequestDurations;
use crate::time::{Instant, Stamps};

/// Summed times of the steps of one request; more than the elapsed time if steps ran in parallel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// Time in queues.
    pub queue: Duration,
    /// Time to prepare inputs.
    pub input: Duration,
    /// Time in the engines.
    pub infer: Duration,
    /// Time to prepare outputs.
    pub output: Duration,
}

impl StepTimes {
    /// Adds the times of a step that was answered.
    pub fn add(&mut self, stamps: &Stamps) {
        self.queue += stamps.queue_duration();
        self.input += stamps.compute_input_duration();
        self.infer += stamps.compute_infer_duration();
        self.output += stamps.compute_output_duration();
    }

    /// Lays the sums out as instants between `began` and `ended`. Steps that ran in parallel can add up to more
    /// than the elapsed time, so each instant is capped at `ended`.
    pub fn stamps(&self, received: Instant, began: Instant, ended: Instant) -> Stamps {
        let batched = (began + self.queue).min(ended);
        let input_end = (batched + self.input).min(ended);
        let infer_end = (input_end + self.infer).min(ended);
        Stamps { received, batched, input_end, infer_end, output_end: ended }
    }
}

impl ModelCells {
    /// Counts a request of an ensemble that was answered with outputs: `elapsed` from its arrival to its answer,
    /// which ended at `epoch_millis` since the Unix epoch.
    pub fn count_ensemble(&self, elapsed: Duration, computed: &StepTimes, rows: u32, epoch_millis: u64) {
        self.success.add(1);
        self.last_inference.raise(epoch_millis);
        self.inference.add(u64::from(rows));
        self.request_duration.add_duration(elapsed);
        let durations = RequestDurations {
            request: elapsed,
            queue: Duration::ZERO,
            compute_input: computed.input,
            compute_infer: computed.infer,
            compute_output: computed.output,
        };
        self.latency.count(&durations, epoch_millis);
        self.compute_input_duration.add_duration(computed.input);
        self.compute_infer_duration.add_duration(computed.infer);
        self.compute_output_duration.add_duration(computed.output);
        // `BatchCells` takes stamps: only the differences between them count.
        let zero = Instant::ZERO;
        let (input_end, infer_end) = (zero + computed.input, zero + computed.input + computed.infer);
        let stamps =
            Stamps { received: zero, batched: zero, input_end, infer_end, output_end: infer_end + computed.output };
        self.batches.count(rows, &stamps);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steps_are_added_up_and_the_ensemble_waits_for_nothing() {
        let at = Instant::from_micros;
        let step = |start: u64| Stamps {
            received: at(start),
            batched: at(start + 1),
            input_end: at(start + 3),
            infer_end: at(start + 13),
            output_end: at(start + 14),
        };
        let mut computed = StepTimes::default();
        computed.add(&step(0));
        computed.add(&step(5));
        let micros = Duration::from_micros;
        let want = StepTimes { queue: micros(2), input: micros(4), infer: micros(20), output: micros(2) };
        assert_eq!(computed, want);
        let cells = ModelCells::new(4);
        cells.count_ensemble(micros(19), &computed, 3, 7);
        let sums = [&cells.request_duration, &cells.queue_duration, &cells.compute_infer_duration];
        assert_eq!(sums.map(crate::metrics::Counter::get), [19_000, 0, 20_000]);
        assert_eq!((cells.success.get(), cells.inference.get(), cells.batches.executions()), (1, 3, 1));
        let stamps = computed.stamps(at(0), at(1), at(20));
        assert_eq!((stamps.batched, stamps.infer_end, stamps.output_end), (at(3), at(20), at(20)), "none is later");
    }
}
