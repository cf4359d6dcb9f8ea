//! The memory of a run, computed before it is taken: the engine asks the allocator for all tensors
//! of a graph, and a process whose allocator fails is aborted. The estimate depends on the shapes
//! of the inputs, and on the values that sizes are computed from; an instance remembers those that
//! passed, so that a run like an earlier one costs a comparison.

mod elements;
mod facts;
mod layout;
mod operands;
mod plan;
mod products;
mod rules;
mod walk;
mod windows;

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::Arc;

use crate::limits::RUN_SHAPES_MAX;
use backend::RunMemory;
use base::error::Error;
use base::tensor::{Datatype, Shape};
use model::ModelSpec;
use model::onnx::graph::OnnxGraph;

use super::datatype::ALTERNATIVE;
use facts::{ELEMENTS_MAX, Interval, TensorFacts};
use plan::GraphPlan;
use walk::{Stop, Walk};

/// The needs of a model's runs, for all its instances.
pub(super) struct RunEstimate {
    plan: GraphPlan,
    /// For each input of the engine, in its order.
    inputs: Vec<EstimatedInput>,
    memory: Arc<RunMemory>,
    model: String,
}

struct EstimatedInput {
    slot: usize,
    /// True if sizes are computed from its values.
    is_sizing: bool,
}

/// One input of a run.
#[derive(Clone, Copy)]
pub(super) struct RunInput<'a> {
    pub(super) shape: &'a [i64],
    pub(super) datatype: Datatype,
    pub(super) contents: &'a [u8],
}

impl RunEstimate {
    /// The estimate of a loaded model; `inputs` are the shapes of its inputs, and the batch
    /// inputs', in the order of the configuration, with -1 for a size that a request sets.
    ///
    /// # Errors
    /// Unsupported if the memory of its runs cannot be computed before they run, or one is too
    /// large in any case.
    pub(super) fn new(
        spec: &ModelSpec,
        graph: &OnnxGraph,
        shapes: &[Shape],
        memory: Arc<RunMemory>,
    ) -> Result<Self, Error> {
        let refused = |why: &str| {
            let text =
                format!("the embedded engine cannot run model '{}' within bounds: {why}; {ALTERNATIVE}", spec.name);
            Error::unsupported(text)
        };
        let names = spec.inputs.iter().map(|input| &input.name);
        let names = names.chain(spec.batch_inputs.iter().map(|input| &input.name));
        let plan = GraphPlan::new(graph, names.clone()).map_err(|why| refused(&why))?;
        let input = |name: &String| {
            let slot = plan.inputs.get(name).copied();
            slot.map(|slot| EstimatedInput { slot, is_sizing: plan.sizing.contains(&slot) })
                .ok_or_else(|| refused(&format!("its graph has no input '{name}'")))
        };
        let inputs = names.map(input).collect::<Result<_, _>>()?;
        let estimate = Self { plan, inputs, memory, model: spec.name.clone() };
        match estimate.smallest(shapes) {
            // The model may not take sizes of one.
            Ok(_) | Err(Stop::Fails(_)) => Ok(estimate),
            Err(Stop::Unbounded(why)) => Err(refused(&why)),
            Err(stop) => Err(estimate.refusal(&stop)),
        }
    }

    /// The bytes of a small run: one row, sizes of one, values of one.
    fn smallest(&self, shapes: &[Shape]) -> Result<f64, Stop> {
        let mut walk = Walk::new(&self.plan, self.memory.size_max() as f64);
        for (input, shape) in self.inputs.iter().zip(shapes) {
            let shape: Shape = shape.iter().map(|size| if *size < 0 { 1 } else { *size }).collect();
            let facts = TensorFacts::of(elements::exact_sizes(&shape));
            let ones = facts.exact_count().filter(|_| input.is_sizing).map(|count| vec![Interval::ONE; count]);
            walk.set(input.slot, TensorFacts { is_whole: true, ..facts }.with(ones));
        }
        walk.run()
    }

    fn walk<'a>(&self, inputs: impl Iterator<Item = RunInput<'a>>) -> Result<f64, Stop> {
        let mut walk = Walk::new(&self.plan, self.memory.size_max() as f64);
        for (input, came) in self.inputs.iter().zip(inputs) {
            let contents = if input.is_sizing { came.contents } else { &[] };
            walk.set(input.slot, elements::of_contents(came.shape, came.datatype, contents));
        }
        walk.run()
    }

    fn refusal(&self, stop: &Stop) -> Error {
        let (model, size_max) = (&self.model, self.memory.size_max());
        Error::invalid(match stop {
            Stop::TooLarge { label, bytes, total } => format!(
                "model '{model}': a run on these inputs needs at least {total:.0} bytes of memory, of which {label} takes \
                 {bytes:.0}, and may have {size_max}; send less, or increase --run-memory-bytes-max"
            ),
            Stop::Fails(why) => format!("model '{model}': {why}"),
            Stop::Unbounded(why) => format!(
                "model '{model}': the memory of a run on these inputs cannot be held to --run-memory-bytes-max: {why}; \
                 {ALTERNATIVE}"
            ),
        })
    }
}

/// The estimates of one instance: the runs that passed.
pub(super) struct RunCheck {
    estimate: Arc<RunEstimate>,
    /// The values that the current run depends on.
    key: Vec<i64>,
    /// The values of the last run that passed.
    last: Vec<i64>,
    passed: HashSet<Vec<i64>>,
}

impl RunCheck {
    pub(super) fn new(estimate: Arc<RunEstimate>) -> Self {
        Self { estimate, key: Vec::new(), last: Vec::new(), passed: HashSet::new() }
    }

    /// Passes a run whose memory stays within the bound.
    ///
    /// # Errors
    /// Invalid, with the flag, if it does not.
    pub(super) fn check<'a>(&mut self, inputs: impl Iterator<Item = RunInput<'a>> + Clone) -> Result<(), Error> {
        self.key.clear();
        for (input, came) in self.estimate.inputs.iter().zip(inputs.clone()) {
            self.key.push(i64::try_from(came.shape.len()).unwrap_or(i64::MAX));
            self.key.extend_from_slice(came.shape);
            if input.is_sizing && came.contents.len() <= ELEMENTS_MAX * size_of::<i64>() {
                self.key.extend(came.contents.chunks(size_of::<i64>()).map(number));
            }
        }
        if self.key == self.last {
            return Ok(());
        }
        if !self.passed.contains(&self.key) {
            self.estimate.walk(inputs).map_err(|stop| {
                if !matches!(stop, Stop::Fails(_)) {
                    self.estimate.memory.count_refused();
                }
                self.estimate.refusal(&stop)
            })?;
            if self.passed.len() >= RUN_SHAPES_MAX {
                self.passed.clear();
            }
            self.passed.insert(self.key.clone());
        }
        self.last.clone_from(&self.key);
        Ok(())
    }
}

/// Up to eight bytes as a number.
fn number(bytes: &[u8]) -> i64 {
    let mut whole = [0; size_of::<i64>()];
    whole.iter_mut().zip(bytes).for_each(|(place, byte)| *place = *byte);
    i64::from_le_bytes(whole)
}
