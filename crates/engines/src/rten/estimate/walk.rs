//! Walks through a graph as a run does, with the known facts about tensors in place of the tensors,
//! and adds up the engine's requests to the allocator. The engine keeps the buffers that it no
//! longer needs until the run ends, and takes the smallest that fits for the next value: so does
//! this.

use super::facts::{Interval, Sizes, TensorFacts};
use super::operands::{Made, RuleError};
use super::plan::{GraphPlan, PlannedGraph, PlannedNode};
use super::rules;

/// Rounds of a `Loop` in the embedded engine, which cannot be stopped.
const LOOP_ROUNDS_MAX: u64 = 1_000_000;
/// Rounds of a `Loop` that are walked one by one to learn the growth of their values.
const LOOP_ROUNDS_WALKED_MAX: u64 = 64;

/// The reason why a walk ended before the graph did.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Stop {
    /// It would need more than it may have.
    TooLarge {
        /// The operator that asked.
        label: String,
        /// The bytes that it asked for.
        bytes: f64,
        /// All bytes up to there.
        total: f64,
    },
    /// The run fails there: the operator, and the reason.
    Fails(String),
    /// The known facts before the run do not bound its needs: the operator, and the reason.
    Unbounded(String),
}

/// A walk through a graph.
#[derive(Clone)]
pub(super) struct Walk<'a> {
    plan: &'a GraphPlan,
    size_max: f64,
    facts: Vec<Option<TensorFacts>>,
    /// The bytes of the buffer of each slot.
    buffers: Vec<f64>,
    /// The buffers that are free again.
    free: Vec<f64>,
    held: f64,
}

/// Bytes of an element: the engine computes in 32 bits, and in 8 if the tensor has only those.
const ELEMENT_SIZE: f64 = 4.0;

impl<'a> Walk<'a> {
    /// A walk that may need `size_max` bytes.
    pub(super) fn new(plan: &'a GraphPlan, size_max: f64) -> Self {
        let slots = plan.constants.len();
        Self { plan, size_max, facts: vec![None; slots], buffers: vec![0.0; slots], free: Vec::new(), held: 0.0 }
    }

    /// Sets the facts about an input.
    pub(super) fn set(&mut self, slot: usize, facts: TensorFacts) {
        if let Some(place) = self.facts.get_mut(slot) {
            *place = Some(facts);
        }
    }

    /// Walks to the end. Returns the maximum bytes that a run needs.
    ///
    /// # Errors
    /// If it needs more than the limit, or that cannot be computed.
    pub(super) fn run(mut self) -> Result<f64, Stop> {
        self.walk(&self.plan.root)?;
        Ok(self.held)
    }

    /// The facts about a value.
    pub(super) fn facts(&self, slot: usize) -> Option<&TensorFacts> {
        let known = self.facts.get(slot).and_then(Option::as_ref);
        known.or_else(|| self.plan.constants.get(slot).and_then(Option::as_ref))
    }

    pub(super) fn walk(&mut self, graph: &PlannedGraph) -> Result<(), Stop> {
        for planned in &graph.nodes {
            let made = match planned.node.operator.as_str() {
                "If" => self.branch(planned)?,
                "Loop" => self.repeat(planned)?,
                _ => {
                    let inputs: Vec<_> = planned.inputs.iter().map(|slot| self.facts((*slot)?)).collect();
                    rules::apply(&planned.node, &inputs).map_err(|why| match why {
                        RuleError::Fails(why) => Stop::Fails(format!("{} fails: {why}", planned.label())),
                        RuleError::Unknown(why) => unbounded(planned, why),
                    })?
                }
            };
            self.keep(planned, made)?;
        }
        Ok(())
    }

    /// Takes buffers for an operator's outputs, and frees values that are no longer read.
    fn keep(&mut self, planned: &PlannedNode, made: Made) -> Result<(), Stop> {
        let workspace = self.take(planned, made.workspace)?;
        for (slot, facts) in planned.outputs.iter().zip(made.outputs) {
            let Some(slot) = *slot else { continue };
            let buffer = self.take(planned, facts.count_max)?;
            self.set(slot, facts);
            self.buffers.get_mut(slot).into_iter().for_each(|place| *place = buffer);
        }
        self.free.extend((workspace > 0.0).then_some(workspace));
        planned.frees.iter().for_each(|slot| self.release(*slot));
        Ok(())
    }

    fn take(&mut self, planned: &PlannedNode, elements: f64) -> Result<f64, Stop> {
        let bytes = elements * ELEMENT_SIZE;
        if bytes == 0.0 {
            return Ok(bytes);
        }
        if bytes.is_infinite() {
            return Err(unbounded(planned, "the size of what it makes is computed in the run"));
        }
        let fits = |(_, buffer): &(usize, &f64)| **buffer >= bytes;
        let best = self.free.iter().enumerate().filter(fits).min_by(|(_, one), (_, two)| one.total_cmp(two));
        if let Some((index, _)) = best {
            return Ok(self.free.swap_remove(index));
        }
        self.held += bytes;
        if self.held > self.size_max {
            return Err(Stop::TooLarge { label: planned.label(), bytes, total: self.held });
        }
        Ok(bytes)
    }

    fn release(&mut self, slot: usize) {
        if let Some(buffer) = self.buffers.get_mut(slot).filter(|buffer| **buffer > 0.0) {
            self.free.push(std::mem::take(buffer));
        }
    }

    /// Walks through a graph inside an operator. Its outputs pass to the operator.
    fn walk_inner(&mut self, planned: &PlannedNode, name: &str) -> Result<Vec<TensorFacts>, Stop> {
        let graph = planned.graphs.get(name).ok_or_else(|| unbounded(planned, "a graph inside it is missing"))?;
        self.walk(graph)?;
        let outputs = graph.outputs.iter().map(|slot| self.facts(*slot).cloned()).collect::<Option<Vec<_>>>();
        graph.made_outputs.iter().for_each(|slot| self.release(*slot));
        outputs.ok_or_else(|| unbounded(planned, "a graph inside it does not make its outputs"))
    }

    fn input(&self, planned: &PlannedNode, index: usize) -> Option<&TensorFacts> {
        self.facts(planned.inputs.get(index).copied().flatten()?)
    }

    fn branch(&mut self, planned: &PlannedNode) -> Result<Made, Stop> {
        let condition = self.input(planned, 0).map_or(Interval::ANY, TensorFacts::single);
        let outputs = match condition.value() {
            Some(0.0) => self.walk_inner(planned, "else_branch")?,
            Some(_) => self.walk_inner(planned, "then_branch")?,
            None => {
                let one = self.walk_inner(planned, "then_branch");
                match (one, self.walk_inner(planned, "else_branch")) {
                    (Ok(one), Ok(two)) => one.iter().zip(&two).map(|(one, two)| one.join(two)).collect(),
                    // A run that goes on takes the other branch.
                    (Ok(one), Err(Stop::Fails(_))) => one,
                    (Err(Stop::Fails(_)), two) => two?,
                    (one, two) => one.and(two)?,
                }
            }
        };
        Ok(Made { outputs, workspace: 0.0 })
    }

    fn repeat(&mut self, planned: &PlannedNode) -> Result<Made, Stop> {
        let rounds = self.input(planned, 0).map_or(Interval::up_to(f64::INFINITY), TensorFacts::single).as_size();
        if rounds.high > LOOP_ROUNDS_MAX as f64 {
            let why = format!("it may repeat more than {LOOP_ROUNDS_MAX} times, and a run cannot be stopped");
            return Err(unbounded(planned, &why));
        }
        let first: Option<Vec<TensorFacts>> =
            (2..planned.inputs.len()).map(|index| self.input(planned, index).cloned()).collect();
        let first = first.ok_or_else(|| unbounded(planned, "an input of it is left out"))?;
        let settled = self.settle(planned, rounds, &first);
        let (carried, scanned) = match settled {
            Some(settled) => settled,
            None if rounds.high <= LOOP_ROUNDS_WALKED_MAX as f64 => self.walk_rounds(planned, rounds, &first)?,
            None => return Err(unbounded(planned, "what one round passes to the next may grow")),
        };
        let mut made = Made { outputs: carried, workspace: 0.0 };
        for round in scanned {
            // All rounds are kept until they are put together.
            made.workspace += round.count_max * rounds.high;
            let sizes = round.sizes.map(|sizes| [rounds].into_iter().chain(sizes).collect::<Sizes>());
            let all = round.count_max * rounds.high;
            made.outputs.push(sizes.map_or(TensorFacts::unranked(all), TensorFacts::of).at_most(all));
        }
        Ok(made)
    }

    /// Walks through rounds as if each were any of them, until the carried values stay the same.
    /// Returns the carried values and those that each round returns; `None` if they differ.
    fn settle(&mut self, planned: &PlannedNode, rounds: Interval, first: &[TensorFacts]) -> Option<Rounds> {
        let any_round = Interval::up_to((rounds.high - 1.0).max(0.0));
        let mut carried = first.to_vec();
        for attempt in 0..SETTLING_ROUNDS {
            let mut trial = self.clone();
            let (next, scanned) = trial.walk_round(planned, any_round, &carried).ok()?;
            let joined: Vec<_> = carried.iter().zip(&next).map(|(one, two)| one.join(two)).collect();
            if joined == carried {
                *self = trial;
                return Some((carried, scanned));
            }
            // A count would never settle.
            let forget = |facts: TensorFacts| TensorFacts { elements: None, ..facts };
            carried = if attempt == 0 { joined } else { joined.into_iter().map(forget).collect() };
        }
        None
    }

    /// Walks through all rounds, one after another.
    fn walk_rounds(&mut self, planned: &PlannedNode, rounds: Interval, first: &[TensorFacts]) -> Result<Rounds, Stop> {
        let (mut carried, mut scanned) = (first.to_vec(), Vec::new());
        let mut any = carried.clone();
        for round in 0..rounds.high as u64 {
            let (next, left) = self.walk_round(planned, Interval::exact(round as f64), &carried)?;
            if (round as f64) < rounds.low {
                any.clone_from(&next);
            } else {
                any = any.iter().zip(&next).map(|(one, two)| one.join(two)).collect();
            }
            scanned = match round {
                0 => left,
                _ => left.iter().zip(&scanned).map(|(one, two): (&TensorFacts, &TensorFacts)| one.join(two)).collect(),
            };
            carried = next;
        }
        Ok((any, scanned))
    }

    fn walk_round(&mut self, planned: &PlannedNode, round: Interval, carried: &[TensorFacts]) -> Result<Rounds, Stop> {
        let body = planned.graphs.get("body").ok_or_else(|| unbounded(planned, "it has no body"))?;
        let condition = TensorFacts::whole(vec![Interval::TRUTH], true);
        let given = [TensorFacts::whole(vec![round], true), condition].into_iter().chain(carried.iter().cloned());
        body.inputs.iter().zip(given).for_each(|(slot, facts)| self.set(*slot, facts));
        let mut next = self.walk_inner(planned, "body")?.into_iter().skip(1);
        let carried = next.by_ref().take(carried.len()).collect();
        Ok((carried, next.collect()))
    }
}

/// The values that rounds pass on, and those that each returns.
type Rounds = (Vec<TensorFacts>, Vec<TensorFacts>);

/// Rounds after which the carried values of a loop are assumed to grow.
const SETTLING_ROUNDS: usize = 4;

fn unbounded(planned: &PlannedNode, why: &str) -> Stop {
    Stop::Unbounded(format!("{} has no bound that is known before a run: {why}", planned.label()))
}
