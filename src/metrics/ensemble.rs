//! What an ensemble counts of a request: its steps' time, added up, as Triton does (`RequestTracker`). It
//! waits in no queue of its own, and each request counts as one batch.

use std::time::Duration;

use crate::metrics::ModelCells;
use crate::time::{Instant, Stamps};

/// How long the steps of one request took, added up; more than has passed where some ran side by side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// They waited.
    pub queue: Duration,
    /// Their inputs were made ready.
    pub input: Duration,
    /// They were in their engines.
    pub infer: Duration,
    /// Their outputs were made ready.
    pub output: Duration,
}

impl StepTimes {
    /// A step was answered.
    pub fn add(&mut self, stamps: &Stamps) {
        self.queue += stamps.queue_duration();
        self.input += stamps.compute_input_duration();
        self.infer += stamps.compute_infer_duration();
        self.output += stamps.compute_output_duration();
    }

    /// The same as instants, from the request's first to the end of its answer, which they do not pass.
    pub fn stamps(&self, received: Instant, began: Instant, ended: Instant) -> Stamps {
        let batched = (began + self.queue).min(ended);
        let input_end = (batched + self.input).min(ended);
        let infer_end = (input_end + self.infer).min(ended);
        Stamps { received, batched, input_end, infer_end, output_end: ended }
    }
}

impl ModelCells {
    /// A request of an ensemble was answered with its outputs after so long, so many milliseconds after
    /// the epoch.
    pub fn count_ensemble(&self, took: Duration, computed: &StepTimes, rows: u32, epoch_millis: u64) {
        self.success.add(1);
        self.last_inference.raise(epoch_millis);
        self.inference.add(u64::from(rows));
        self.request_duration.add_duration(took);
        self.queue_times.count(Duration::ZERO);
        self.compute_input_duration.add_duration(computed.input);
        self.compute_infer_duration.add_duration(computed.infer);
        self.compute_output_duration.add_duration(computed.output);
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
