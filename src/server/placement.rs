//! Whether a model runs inside the shards: measured before it serves, by running one row of zeros.
//! A run that takes less than a hop to a worker and back runs inline.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use crossbeam_queue::SegQueue;

use crate::backend::{Answer, Batch, Inbox, Instance, LoadedModel, Request, Responder, Threads, Ticket};
use crate::error::Error;
use crate::limits::INLINE_RUN_MAX;
use crate::model::{Batching, ModelSpec, QueueRules};
use crate::shard::clock;
use crate::tensor::{AlignedBuffer, Datatype, Shape, Tensor, byte_size, element_count};
use crate::time::Stamps;

/// Runs that are measured; the shortest counts, since whatever disturbs makes a run longer.
const RUNS: usize = 5;
/// The size that is tried where a dimension may have any.
const VARIABLE_SIZE: i64 = 1;
/// Bytes of inputs up to which a model is measured at all: larger ones take longer than a hop.
const TRIAL_SIZE_MAX: usize = 1024 * 1024;

/// Where the instances of a model should run, and why, for the log.
#[derive(Debug, PartialEq, Eq)]
pub enum Choice {
    /// Inside each shard.
    Inline(String),
    /// On worker threads.
    Worker(String),
}

/// Chooses. `parameters { key: "placement" value: { string_value: "inline" | "worker" } }` in the
/// configuration decides where it is given.
pub fn choose(spec: &ModelSpec, loaded: &dyn LoadedModel, threads: &Threads) -> Result<Choice, Error> {
    match spec.parameters.get("placement").map(String::as_str) {
        Some("worker") => return Ok(Choice::Worker("configured".to_owned())),
        Some("inline") if loaded.may_run_inline() => return Ok(Choice::Inline("configured".to_owned())),
        Some("inline") => {
            return Err(Error::invalid(format!(
                "model '{}' cannot be placed inline: it sleeps or waits; remove the parameter 'placement'",
                spec.name
            )));
        }
        Some(other) => {
            return Err(Error::invalid(format!(
                "parameter 'placement' of model '{}' is '{other}', expected 'inline' or 'worker'",
                spec.name
            )));
        }
        None => {}
    }
    if !loaded.may_run_inline() {
        return Ok(Choice::Worker("it sleeps or waits".to_owned()));
    }
    if spec.batching.as_ref().is_some_and(|batching| has_queue(batching, spec.rows_max)) {
        return Ok(Choice::Worker("its configuration asks for a queue".to_owned()));
    }
    let mut instance = loaded.new_instance(threads)?;
    Ok(match measure(spec, &mut instance) {
        Some(run) if run <= INLINE_RUN_MAX => Choice::Inline(format!("one row takes {run:?}")),
        Some(run) => Choice::Worker(format!("one row takes {run:?}")),
        None => Choice::Worker("one row of zeros is no input for it".to_owned()),
    })
}

/// Whether something is configured that only a queue can do: delay, sizes, levels, rules.
fn has_queue(batching: &Batching, rows_max: u32) -> bool {
    let sizes_differ = batching.rows_preferred.iter().any(|rows| *rows != rows_max);
    let has_rules = batching.queue_default != QueueRules::default() || !batching.queue_by_level.is_empty();
    sizes_differ || !batching.queue_delay_max.is_zero() || batching.priority_levels > 0 || has_rules
}

/// The shortest of some runs of one row of zeros; `None` where the model takes no such row.
fn measure(spec: &ModelSpec, instance: &mut Box<dyn Instance>) -> Option<Duration> {
    let inputs: Vec<Tensor> =
        spec.inputs.iter().map(|input| zeros(input.datatype, &input.shape)).collect::<Option<_>>()?;
    let mut shortest = None;
    for _ in 0..RUNS {
        let trial = Arc::new(Trial::default());
        let inbox = Arc::clone(&trial) as Arc<dyn Inbox>;
        let batched = clock::now();
        let stamps = Stamps { received: batched, batched, ..Stamps::default() };
        let mut responder = Responder::new(inbox, Ticket { index: 0, generation: 0 }, stamps);
        responder.set_batch(1, true);
        let requests = vec![Request { inputs: inputs.clone(), rows: 1, responder }];
        let batch = Batch { requests, rows: 1, clock: clock::now };
        let run = std::panic::AssertUnwindSafe(|| instance.run(batch));
        std::panic::catch_unwind(run).ok()?;
        trial.answers.pop()?.outputs.ok()?;
        let took = clock::now().since(batched);
        shortest = Some(shortest.map_or(took, |shortest: Duration| shortest.min(took)));
    }
    shortest
}

fn zeros(datatype: Datatype, shape: &[i64]) -> Option<Tensor> {
    let shape: Shape = shape.iter().map(|size| if *size < 0 { VARIABLE_SIZE } else { *size }).collect();
    let size = match byte_size(datatype, &shape).ok()? {
        Some(size) => size,
        // Empty strings: each has a length of four bytes, zero.
        None => element_count(&shape).ok()?.checked_mul(4)?,
    };
    let contents: Bytes = (size <= TRIAL_SIZE_MAX).then(|| AlignedBuffer::zeroed(size).freeze())?;
    Some(Tensor { datatype, shape, contents })
}

/// Takes the answers of the trial runs.
#[derive(Default)]
struct Trial {
    answers: SegQueue<Answer>,
}

impl Inbox for Trial {
    fn push(&self, _ticket: Ticket, answer: Answer) {
        self.answers.push(answer);
    }

    fn wake(&self) {}
}
