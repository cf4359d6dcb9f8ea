//! One request of an ensemble on its way through the steps: the steps that can run, the tensors
//! that are still needed, the responses that are complete, and the end of the request. Pure,
//! generic over the tensor type; it knows no model and runs nothing. A step runs once per *frame*,
//! a set of tensors that belong together. The client's tensors are one frame; a decoupled step
//! opens a frame for each of its answers, and everything computed from that answer stays in it,
//! which the check of the configuration guarantees. Bounded by the steps, and by
//! [`EnsembleRun::frames`], which the caller limits.
//!
//! ```text
//! waiting ──all inputs there──► ready ──poll_step──► running ──handle_outputs──────────► done
//!                                                       │ ──handle_part (a frame each)─┐   ▲
//!                                                       └──────────────────────────────┴─handle_end
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use slab::Slab;

/// The steps of an ensemble and the tensors between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepGraph {
    steps: Vec<StepEdges>,
    /// For each tensor, the decoupled step that opens its frames, counted from 1; 0 for the
    /// client's tensors and everything computed from those alone.
    kinds: Vec<usize>,
}

/// The input and output tensors of one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepEdges {
    /// Its input tensors, by index.
    pub inputs: Vec<usize>,
    /// Its output tensors, by index.
    pub outputs: Vec<usize>,
    /// True if it answers any number of times.
    pub is_decoupled: bool,
}

/// One request; `T` is a tensor.
#[derive(Debug)]
pub struct EnsembleRun<T> {
    graph: Arc<StepGraph>,
    /// For each step: true if the requested outputs depend on it.
    is_needed: Vec<bool>,
    /// For each tensor, the number of times that it is taken in a frame: by steps, and by the
    /// response.
    takers: Vec<usize>,
    /// The tensors of a response.
    wanted: Vec<usize>,
    frames: Slab<AnswerFrame<T>>,
    /// Steps that can run, as (frame, step).
    ready: VecDeque<(usize, usize)>,
    /// Frames that still owe a response, in the order in which they were opened.
    due: VecDeque<usize>,
    /// Steps that run.
    running: usize,
    /// Responses taken so far.
    responses: usize,
}

/// Tensors that belong together.
#[derive(Debug)]
struct AnswerFrame<T> {
    slots: Vec<TensorSlot<T>>,
    /// For each step: true if it was started in this frame.
    has_begun: Vec<bool>,
    /// Steps that are ready or running in this frame.
    busy: usize,
    /// True if it still owes a response.
    is_due: bool,
}

#[derive(Clone, Debug)]
struct TensorSlot<T> {
    value: Option<T>,
    has_come: bool,
    /// The number of times that it is still to be taken; the value is dropped with the last.
    takers: usize,
}

/// A step to run now.
#[derive(Debug, PartialEq, Eq)]
pub struct StepLaunch<T> {
    /// The frame that its tensors are from.
    pub frame: usize,
    /// Its index among the steps.
    pub step: usize,
    /// Its tensors, in the order of [`StepEdges::inputs`].
    pub inputs: Vec<T>,
}

impl StepGraph {
    /// A graph of steps without cycles, over `tensors` tensors. `brought` are the tensors that the
    /// client sends.
    pub fn new(steps: Vec<StepEdges>, tensors: usize, brought: &[usize]) -> Self {
        let mut kinds: Vec<Option<usize>> = vec![None; tensors];
        for tensor in brought {
            set(&mut kinds, *tensor, Some(0));
        }
        let mut left: Vec<_> = steps.iter().enumerate().collect();
        loop {
            let before = left.len();
            left.retain(|(index, edges)| {
                let of = |tensor: &usize| kinds.get(*tensor).copied().flatten();
                let Some(inputs) = edges.inputs.iter().map(of).collect::<Option<Vec<_>>>() else { return true };
                let kind = inputs.into_iter().max().unwrap_or(0);
                let kind = if edges.is_decoupled { index + 1 } else { kind };
                edges.outputs.iter().for_each(|tensor| set(&mut kinds, *tensor, Some(kind)));
                false
            });
            if left.is_empty() || left.len() == before {
                break;
            }
        }
        let kinds = kinds.into_iter().map(Option::unwrap_or_default).collect();
        Self { steps, kinds }
    }

    fn kind(&self, tensor: usize) -> usize {
        self.kinds.get(tensor).copied().unwrap_or(0)
    }
}

fn set<V>(values: &mut [V], index: usize, value: V) {
    if let Some(have) = values.get_mut(index) {
        *have = value;
    }
}

impl<T: Clone> EnsembleRun<T> {
    /// A request with the client's tensors and the tensors to return. Steps that these do not depend on do not run.
    pub fn new(graph: Arc<StepGraph>, brought: impl IntoIterator<Item = (usize, T)>, wanted: Vec<usize>) -> Self {
        let is_needed = needed(&graph, &wanted);
        let steps = graph.steps.iter().zip(&is_needed).filter(|(_, is_needed)| **is_needed);
        let mut takers = vec![0_usize; graph.kinds.len()];
        for tensor in steps.flat_map(|(edges, _)| &edges.inputs).chain(&wanted) {
            if let Some(takers) = takers.get_mut(*tensor) {
                *takers += 1;
            }
        }
        let mut run = Self {
            graph,
            is_needed,
            takers,
            wanted,
            frames: Slab::new(),
            ready: VecDeque::new(),
            due: VecDeque::new(),
            running: 0,
            responses: 0,
        };
        let frame = run.open(0);
        run.put(frame, brought);
        run.settle(frame);
        run
    }

    /// A step ended with its output tensors, in the order of [`StepEdges::outputs`].
    pub fn handle_outputs(&mut self, frame: usize, step: usize, outputs: impl IntoIterator<Item = T>) {
        let graph = Arc::clone(&self.graph);
        let tensors = graph.steps.get(step).into_iter().flat_map(|edges| edges.outputs.iter().copied());
        self.put(frame, tensors.zip(outputs));
        self.handle_end(frame);
    }

    /// A decoupled step sent one of its answers, which opens a frame.
    pub fn handle_part(&mut self, step: usize, outputs: impl IntoIterator<Item = T>) {
        let graph = Arc::clone(&self.graph);
        let tensors = graph.steps.get(step).into_iter().flat_map(|edges| edges.outputs.iter().copied());
        let kind = graph.steps.get(step).and_then(|edges| edges.outputs.first()).map_or(0, |first| graph.kind(*first));
        let frame = self.open(kind);
        self.put(frame, tensors.zip(outputs));
        self.settle(frame);
    }

    /// A step ended without further tensors.
    pub fn handle_end(&mut self, frame: usize) {
        debug_assert!(self.running > 0, "a step that ends was running");
        self.running = self.running.saturating_sub(1);
        if let Some(open) = self.frames.get_mut(frame) {
            debug_assert!(open.busy > 0, "it ran in this frame");
            open.busy = open.busy.saturating_sub(1);
        }
        self.settle(frame);
    }

    /// The next step to run, with its tensors; it counts as running from now on.
    pub fn poll_step(&mut self) -> Option<StepLaunch<T>> {
        let (frame, step) = self.ready.pop_front()?;
        self.running += 1;
        let graph = Arc::clone(&self.graph);
        let edges = graph.steps.get(step)?;
        let slots = &mut self.frames.get_mut(frame)?.slots;
        let inputs = edges.inputs.iter().filter_map(|tensor| slots.get_mut(*tensor)?.take());
        let inputs: Vec<T> = inputs.collect();
        debug_assert_eq!(inputs.len(), edges.inputs.len(), "a step that is ready has all that it takes");
        self.invariants();
        Some(StepLaunch { frame, step, inputs })
    }

    /// The tensors of the next response, in the order of `wanted`. Responses are in the order in which
    /// their frames were opened.
    pub fn poll_response(&mut self) -> Option<Vec<T>> {
        let frame = *self.due.front()?;
        let slots = &mut self.frames.get_mut(frame)?.slots;
        if !self.wanted.iter().all(|tensor| slots.get(*tensor).is_some_and(|slot| slot.has_come)) {
            return None;
        }
        let response: Vec<T> = self.wanted.iter().filter_map(|tensor| slots.get_mut(*tensor)?.take()).collect();
        debug_assert_eq!(response.len(), self.wanted.len(), "a tensor is kept until the last has taken it");
        self.due.pop_front();
        self.responses += 1;
        if let Some(frame) = self.frames.get_mut(frame) {
            frame.is_due = false;
        }
        self.settle(frame);
        Some(response)
    }

    /// Returns true if no step runs or can run, and no response is left to take.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.running == 0 && self.ready.is_empty() && !self.has_response()
    }

    /// Returns true if [`Self::poll_response`] has a response.
    pub fn has_response(&self) -> bool {
        let frame = self.due.front().and_then(|frame| self.frames.get(*frame));
        frame.is_some_and(|frame| {
            self.wanted.iter().all(|tensor| frame.slots.get(*tensor).is_some_and(|slot| slot.has_come))
        })
    }

    /// Open frames: those with steps to run, or that owe a response.
    #[inline]
    pub fn frames(&self) -> usize {
        self.frames.len()
    }

    /// Responses taken so far.
    pub const fn responses(&self) -> usize {
        self.responses
    }

    /// Opens a frame of a kind. It owes a response if the requested tensors are of that kind.
    fn open(&mut self, kind: usize) -> usize {
        let is_due = self.wanted.first().is_some_and(|tensor| self.graph.kind(*tensor) == kind);
        let slots = self.takers.iter().map(|takers| TensorSlot { value: None, has_come: false, takers: *takers });
        let has_begun = vec![false; self.graph.steps.len()];
        let index = self.frames.insert(AnswerFrame { slots: slots.collect(), has_begun, busy: 0, is_due });
        if is_due {
            self.due.push_back(index);
        }
        index
    }

    /// Puts tensors into a frame, and queues the steps that became ready.
    fn put(&mut self, index: usize, tensors: impl IntoIterator<Item = (usize, T)>) {
        let Some(frame) = self.frames.get_mut(index) else { return };
        for (tensor, value) in tensors {
            if let Some(slot) = frame.slots.get_mut(tensor) {
                slot.has_come = true;
                slot.value = (slot.takers > 0).then_some(value);
            }
        }
        let has_come =
            |frame: &AnswerFrame<T>, tensor: &usize| frame.slots.get(*tensor).is_some_and(|slot| slot.has_come);
        for (step, (edges, is_needed)) in self.graph.steps.iter().zip(&self.is_needed).enumerate() {
            let is_ready = *is_needed && edges.inputs.iter().all(|tensor| has_come(frame, tensor));
            if is_ready && frame.has_begun.get(step) == Some(&false) {
                if let Some(has_begun) = frame.has_begun.get_mut(step) {
                    *has_begun = true;
                }
                frame.busy += 1;
                self.ready.push_back((index, step));
            }
        }
    }

    /// Closes a frame that has no steps left to run and owes no response.
    fn settle(&mut self, index: usize) {
        if self.frames.get(index).is_some_and(|frame| frame.busy == 0 && !frame.is_due) {
            self.frames.remove(index);
        }
        self.invariants();
    }

    /// Checks the invariants between two calls.
    fn invariants(&self) {
        let busy: usize = self.frames.iter().map(|(_, frame)| frame.busy).sum();
        debug_assert_eq!(busy, self.running + self.ready.len(), "a step that has begun is ready or runs");
        let is_due = |frame: &usize| self.frames.get(*frame).is_some_and(|frame| frame.is_due);
        debug_assert!(self.due.iter().all(is_due), "a frame stays until its response was taken");
    }
}

impl<T: Clone> TensorSlot<T> {
    /// The tensor: the value itself the last time, a clone before.
    fn take(&mut self) -> Option<T> {
        self.takers = self.takers.saturating_sub(1);
        if self.takers == 0 { self.value.take() } else { self.value.clone() }
    }
}

/// The steps that the requested outputs depend on.
fn needed(graph: &StepGraph, wanted: &[usize]) -> Vec<bool> {
    let mut is_needed = vec![false; graph.steps.len()];
    let mut is_wanted = vec![false; graph.kinds.len()];
    wanted.iter().for_each(|tensor| set(&mut is_wanted, *tensor, true));
    loop {
        let mut has_changed = false;
        for (edges, is_needed) in graph.steps.iter().zip(&mut is_needed) {
            let is_asked = edges.outputs.iter().any(|tensor| is_wanted.get(*tensor) == Some(&true));
            if is_asked && !std::mem::replace(is_needed, true) {
                has_changed = true;
                edges.inputs.iter().for_each(|tensor| set(&mut is_wanted, *tensor, true));
            }
        }
        if !has_changed {
            return is_needed;
        }
    }
}

#[cfg(test)]
mod tests;
