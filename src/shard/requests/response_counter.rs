//! Counts the responses of requests to decoupled models, for the statistics of the model: each response once, by its
//! place among those of its request, and however the request ends.

use std::cell::Cell;
use std::rc::Rc;

use crate::backend::{Answer, AnswerPart};
use crate::error::Error;
use crate::metrics::ResponseOutcome;
use crate::protocol::infer::ResponsePlan;
use crate::runtime::clock;
use crate::shard::models::model_table::LocalModel;
use crate::shard::requests::infer::InferOutcome;
use crate::time::{Instant, Stamps};

/// The responses of one request so far.
pub struct ResponseCounter {
    model: Rc<LocalModel>,
    shard: usize,
    count: Cell<usize>,
    /// The instant at which the last of them was ready.
    last: Cell<Option<Instant>>,
}

impl ResponseCounter {
    /// A counter without responses, for a request of this shard.
    pub fn new(model: &Rc<LocalModel>, shard: usize) -> Rc<Self> {
        Rc::new(Self { model: Rc::clone(model), shard, count: Cell::new(0), last: Cell::new(None) })
    }

    /// Counts a response that is not the last.
    pub fn count_part(&self, answer: &Answer) {
        let stamps = &answer.stamps;
        let became = match answer.outputs {
            Ok(_) => ResponseOutcome::Succeeded,
            // The model may go on after it.
            Err(_) => ResponseOutcome::Failed,
        };
        if became == ResponseOutcome::Succeeded {
            self.count_first(stamps);
        }
        self.count(became, stamps.infer_end, stamps.output_end, stamps.input_end);
    }

    /// Counts the client's waiting time, if a response with outputs is the first.
    fn count_first(&self, stamps: &Stamps) {
        if self.count.get() == 0
            && let Some(cells) = self.model.served().cells.get(self.shard)
        {
            cells.latency.count_first_response(stamps.output_end.since(stamps.received));
        }
    }

    /// Counts the next response by the instants at which its outputs were computed and ready.
    fn count(&self, became: ResponseOutcome, infer_end: Instant, output_end: Instant, began: Instant) {
        let began = self.last.get().unwrap_or(began);
        let infer_end = infer_end.max(began).min(output_end.max(began));
        if let Some(cells) = self.model.served().cells.get(self.shard) {
            cells.responses.count(self.count.get(), became, infer_end.since(began), output_end.since(infer_end));
        }
        self.count.set(self.count.get() + 1);
        self.last.set(Some(output_end));
    }
}

/// The model of a request, the plan of its responses, and their counter.
pub type DecoupledRequest = (Rc<LocalModel>, ResponsePlan, Rc<ResponseCounter>);

/// Counts the last response of a request to a decoupled model, however it ends. Dropped before it is settled, it counts
/// as cancelled. Without a counter it counts nothing: other models have no such statistics.
#[derive(Default)]
pub struct CountedResponse {
    counter: Option<Rc<ResponseCounter>>,
    /// True if an instance ran the request, once that is known.
    pub has_run: bool,
}

impl CountedResponse {
    /// For the responses that a counter counts, if there is one.
    pub fn of(counter: Option<Rc<ResponseCounter>>) -> Self {
        Self { counter, has_run: false }
    }

    /// Begins to count the responses of a request that is about to be queued; `None` for a model that is not decoupled.
    pub fn begin(&mut self, model: &Rc<LocalModel>, plan: &ResponsePlan, shard: usize) -> Option<DecoupledRequest> {
        if !model.served().spec.is_decoupled {
            return None;
        }
        let counter = ResponseCounter::new(model, shard);
        self.counter = Some(Rc::clone(&counter));
        Some((Rc::clone(model), plan.clone(), counter))
    }

    /// The request has ended; `has_run` is false if no instance ran it.
    pub fn settle(&mut self, outcome: &Result<(InferOutcome, AnswerPart), Error>, has_run: bool) {
        self.has_run = has_run;
        let Some(counter) = self.counter.take() else { return };
        let now = clock::now();
        match outcome {
            Ok((inferred, part)) => {
                let became = if *part == AnswerPart::End { ResponseOutcome::Empty } else { ResponseOutcome::Succeeded };
                let Stamps { input_end, infer_end, output_end, .. } = inferred.stamps;
                if became == ResponseOutcome::Succeeded {
                    counter.count_first(&inferred.stamps);
                }
                let infer_end = if became == ResponseOutcome::Empty { output_end } else { infer_end };
                counter.count(became, infer_end, output_end, input_end);
            }
            Err(_) if has_run => counter.count(ResponseOutcome::Failed, now, now, now),
            Err(_) => {}
        }
    }
}

impl Drop for CountedResponse {
    fn drop(&mut self) {
        if let Some(counter) = self.counter.take() {
            let now = clock::now();
            counter.count(ResponseOutcome::Cancelled, now, now, now);
        }
    }
}
