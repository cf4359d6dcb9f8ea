//! Whether a model runs inside the shards: measured before it serves, by running one row of zeros.
//! A run that takes less than a hop to a worker and back runs inline.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use crossbeam_queue::SegQueue;

use crate::backend::{Answer, Batch, Inbox, Instance, LoadedModel, Request, Responder, Threads, Ticket};
use crate::error::Error;
use crate::limits::{INLINE_LONGEST_MAX, INLINE_RUN_MAX};
use crate::model::{Batching, ModelSpec, QueueRules, TensorSpec};
use crate::shard::clock;
use crate::tensor::{AlignedBuffer, Shape, Tensor, byte_size, element_count};
use crate::time::Stamps;

/// Runs that are measured; the shortest counts, since whatever disturbs makes a run longer.
const RUNS: usize = 5;
/// The size that is tried, besides 1, where a dimension may have any: a long sequence.
const VARIABLE_SIZE: i64 = 512;
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
    let Some(run) = measure(spec, &mut instance, Trial { rows: 1, variable_size: 1 }) else {
        return Ok(Choice::Worker("one row of zeros is no input for it".to_owned()));
    };
    if run > INLINE_RUN_MAX {
        return Ok(Choice::Worker(format!("one row takes {run:?}")));
    }
    // The largest request must not hold up the shard's connections either.
    let largest = Trial { rows: i64::from(spec.rows_max.max(1)), variable_size: VARIABLE_SIZE };
    Ok(match measure(spec, &mut instance, largest) {
        Some(longest) if longest <= INLINE_LONGEST_MAX => Choice::Inline(format!("one row takes {run:?}")),
        Some(longest) => Choice::Worker(format!("a large request takes {longest:?}")),
        None => Choice::Worker("how long a large request takes is not known".to_owned()),
    })
}

/// What is tried: rows, and the size of dimensions that may have any.
#[derive(Clone, Copy)]
struct Trial {
    rows: i64,
    variable_size: i64,
}

/// Whether something is configured that only a queue can do: delay, sizes, levels, rules, order, a target.
fn has_queue(batching: &Batching, rows_max: u32) -> bool {
    let sizes_differ = batching.rows_preferred.iter().any(|rows| *rows != rows_max);
    let has_rules = batching.queue_default != QueueRules::default() || !batching.queue_by_level.is_empty();
    sizes_differ
        || !batching.queue_delay_max.is_zero()
        || batching.priority_levels > 0
        || has_rules
        || batching.preserves_order
        || batching.latency_target.is_some()
}

/// The shortest of some runs of zeros; `None` where the model takes no such request.
fn measure(spec: &ModelSpec, instance: &mut Box<dyn Instance>, trial: Trial) -> Option<Duration> {
    let inputs: Vec<Tensor> = spec.inputs.iter().map(|input| zeros(spec, input, trial)).collect::<Option<_>>()?;
    let rows = u32::try_from(trial.rows).ok()?;
    let mut shortest = None;
    for _ in 0..RUNS {
        let kept = Arc::new(Kept::default());
        let inbox = Arc::clone(&kept) as Arc<dyn Inbox>;
        let batched = clock::now();
        let stamps = Stamps { received: batched, batched, ..Stamps::default() };
        let mut responder = Responder::new(inbox, Ticket { index: 0, generation: 0 }, stamps);
        responder.set_batch(rows, true);
        let requests = vec![Request { inputs: inputs.clone(), rows, responder }];
        let batch = Batch { requests, rows, clock: clock::now };
        let run = std::panic::AssertUnwindSafe(|| instance.run(batch));
        std::panic::catch_unwind(run).ok()?;
        kept.answers.pop()?.outputs.ok()?;
        let took = clock::now().since(batched);
        shortest = Some(shortest.map_or(took, |shortest: Duration| shortest.min(took)));
    }
    shortest
}

fn zeros(spec: &ModelSpec, input: &TensorSpec, trial: Trial) -> Option<Tensor> {
    let datatype = input.datatype;
    let rows = spec.has_batch_axis().then_some(trial.rows);
    let dims = input.dims.iter().map(|size| if *size < 0 { trial.variable_size } else { *size });
    let shape: Shape = rows.into_iter().chain(dims).collect();
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
struct Kept {
    answers: SegQueue<Answer>,
}

impl Inbox for Kept {
    fn push(&self, _ticket: Ticket, answer: Answer) {
        self.answers.push(answer);
    }

    fn wake(&self) {}
}
