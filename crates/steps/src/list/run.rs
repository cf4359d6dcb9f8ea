//! A run of a list on tensors by name: to its end, or to a step that runs another model, after which it goes on.

use std::ops::Range;

use base::error::Error;
use base::tensor::Tensor;

use super::call::{NAME, StepCall};
use super::padding::PaddingLengths;
use super::{ListedStep, ListedWork, StepList};
use crate::tensors::integers;

/// A run of the steps on one side of the model: its tensors, and its place in the list.
#[derive(Debug)]
pub struct StepRun {
    by_index: Vec<Option<Tensor>>,
    /// The lengths of the rows without padding, if a step of the list pads them.
    lengths: Option<Tensor>,
    /// The steps that have not run.
    left: Range<usize>,
}

/// A call of another model that a run waits for.
#[derive(Debug)]
pub struct AwaitedCall<'a> {
    /// The model and the names of its tensors.
    pub call: &'a StepCall,
    /// The inputs, in the order of [`StepCall::inputs`].
    pub inputs: Vec<Tensor>,
}

/// The tensors of a run of a list.
pub struct StepTensors<'a> {
    list: &'a StepList,
    by_index: Vec<Option<Tensor>>,
    lengths: Option<Tensor>,
}

impl StepList {
    /// Runs the steps before the model, or all without a model, on the tensors that `input` has by name.
    ///
    /// # Errors
    /// That of the first step that fails, after its number and kind; that of a step that runs another model.
    pub fn begin(&self, input: impl Fn(&str) -> Option<Tensor>) -> Result<StepTensors<'_>, Error> {
        self.run_through(self.start(input))
    }

    /// Runs the steps behind the model on the tensors that `input` has by name: those that were there before the model ran
    /// and its outputs.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub fn finish(&self, input: impl Fn(&str) -> Option<Tensor>) -> Result<StepTensors<'_>, Error> {
        self.run_through(self.start_behind_model(input))
    }

    /// Runs a list without a model, and returns the tensors of these names; `None` for a name that no step writes and
    /// `input` does not have.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub fn run(&self, input: impl Fn(&str) -> Option<Tensor>, outputs: &[&str]) -> Result<Vec<Option<Tensor>>, Error> {
        let mut tensors = self.begin(&input)?;
        Ok(outputs.iter().map(|name| tensors.take(name).or_else(|| input(name))).collect())
    }

    /// Begins a run of the steps before the model, or of all without a model. No step has run yet.
    pub fn start(&self, input: impl Fn(&str) -> Option<Tensor>) -> StepRun {
        self.started(false, 0..self.model.unwrap_or(self.steps.len()), input)
    }

    /// Begins a run of the steps behind the model. No step has run yet.
    pub fn start_behind_model(&self, input: impl Fn(&str) -> Option<Tensor>) -> StepRun {
        self.started(true, self.model.unwrap_or(self.steps.len())..self.steps.len(), input)
    }

    /// Runs steps up to the end, or up to a step that runs another model: [`Self::resume`] takes the outputs of that.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub fn advance(&self, run: &mut StepRun) -> Result<Option<AwaitedCall<'_>>, Error> {
        while let Some((index, step)) = self.next_step(run) {
            let results = match &step.work {
                ListedWork::Call(call) => {
                    let inputs = call_inputs(call, step, &run.by_index);
                    let inputs = inputs.map_err(|error| self.in_step(index, error))?;
                    return Ok(Some(AwaitedCall { call, inputs }));
                }
                ListedWork::Own(..) => step.run(&run.by_index).map_err(|error| self.in_step(index, error))?,
            };
            if let Some(PaddingLengths::Port { step, port }) = self.padding_lengths()
                && step == index
            {
                run.lengths = results.get(port).cloned().flatten();
            }
            run.end_step(step, results);
        }
        Ok(None)
    }

    /// Takes the outputs of the call that a run waits for, in the order of [`StepCall::outputs`].
    ///
    /// # Errors
    /// `Internal` if the model left one out.
    pub fn resume(&self, run: &mut StepRun, outputs: Vec<Option<Tensor>>) -> Result<(), Error> {
        let Some((index, step)) = self.next_step(run) else { return Ok(()) };
        let ListedWork::Call(call) = &step.work else { return Ok(()) };
        let given = call.outputs.iter().zip(outputs.iter().map(Option::as_ref).chain(std::iter::repeat(None)));
        if let Some((name, _)) = given.into_iter().find(|(_, output)| output.is_none()) {
            let error = Error::internal(format!("the model '{}' gave no output '{name}'", call.model));
            return Err(self.in_step(index, error));
        }
        run.end_step(step, outputs);
        Ok(())
    }

    /// The error of the call that a run waits for, with its step.
    pub fn fail(&self, run: &StepRun, error: Error) -> Error {
        self.in_step(run.left.start, error)
    }

    /// The tensors of a run that is at its end.
    pub fn tensors(&self, run: StepRun) -> StepTensors<'_> {
        StepTensors { list: self, by_index: run.by_index, lengths: run.lengths }
    }

    fn run_through(&self, mut run: StepRun) -> Result<StepTensors<'_>, Error> {
        match self.advance(&mut run)? {
            None => Ok(self.tensors(run)),
            Some(pending) => {
                let model = &pending.call.model;
                let error = Error::internal(format!("the step runs the model '{model}', which only a server can"));
                Err(self.fail(&run, error))
            }
        }
    }

    fn started(&self, is_behind_model: bool, left: Range<usize>, input: impl Fn(&str) -> Option<Tensor>) -> StepRun {
        let mut by_index = vec![None; self.names.len()];
        for read in self.inputs.iter().filter(|input| input.is_behind_model == is_behind_model) {
            if let (Some(place), Some(name)) = (by_index.get_mut(read.index), self.names.get(read.index)) {
                *place = input(name);
            }
        }
        StepRun { by_index, lengths: None, left }
    }

    fn next_step(&self, run: &StepRun) -> Option<(usize, &ListedStep)> {
        let index = run.left.start;
        self.steps.get(index).filter(|_| !run.left.is_empty()).map(|step| (index, step))
    }

    fn in_step(&self, index: usize, error: Error) -> Error {
        let kind = self.steps.get(index).map_or("", ListedStep::kind_name);
        error.with_prefix(&format!("step {} ({kind}): ", self.number(index)))
    }
}

impl StepRun {
    fn end_step(&mut self, step: &ListedStep, results: Vec<Option<Tensor>>) {
        for (result, place) in results.into_iter().zip(&step.outputs) {
            if let Some(tensor) = place.and_then(|place| self.by_index.get_mut(place)) {
                *tensor = result;
            }
        }
        self.left.start += 1;
    }
}

impl StepTensors<'_> {
    /// Moves the tensor with this name out; `None` for one that no step wrote and that was not given.
    pub fn take(&mut self, name: &str) -> Option<Tensor> {
        let index = self.list.names.iter().position(|known| known == name)?;
        self.by_index.get_mut(index)?.take()
    }

    /// The tensor with this name; `None` as for [`Self::take`].
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        let index = self.list.names.iter().position(|known| known == name)?;
        self.by_index.get(index)?.as_ref()
    }

    /// The rows that the model between the steps runs for the request, if a step before it makes several of one.
    pub fn rows_for_model(&self) -> Option<u32> {
        let before = self.list.steps.get(..self.list.model?)?;
        let source = before.iter().find_map(|step| match &step.work {
            ListedWork::Own(_, work) => step.outputs.get(work.row_sources()?).copied().flatten(),
            ListedWork::Call(_) => None,
        });
        u32::try_from(*self.by_index.get(source?)?.as_ref()?.shape.first()?).ok()
    }

    /// The length of each row without padding, if the list [says how rows are padded](StepList::padding); `None` if they are
    /// no lengths.
    pub fn row_lengths(&self) -> Option<Vec<u32>> {
        let lengths = match self.list.padding_lengths()? {
            PaddingLengths::Port { .. } => self.lengths.as_ref()?,
            PaddingLengths::Tensor(index) => self.by_index.get(index)?.as_ref()?,
        };
        let lengths = integers("lengths", lengths).ok()?;
        lengths.iter().map(|length| u32::try_from(*length).ok()).collect()
    }
}

impl ListedStep {
    pub(super) fn kind_name(&self) -> &'static str {
        match &self.work {
            ListedWork::Call(_) => NAME,
            ListedWork::Own(kind, _) => kind.name,
        }
    }

    fn run(&self, tensors: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let ListedWork::Own(kind, step) = &self.work else { return Ok(Vec::new()) };
        let inputs = self.inputs.iter().map(|index| index.and_then(|index| tensors.get(index)?.as_ref()));
        let inputs: Vec<_> = inputs.collect();
        let given = kind.inputs.iter().zip(&inputs);
        if let Some((port, _)) = given.into_iter().find(|(port, tensor)| !port.is_optional && tensor.is_none()) {
            return Err(needs(port.name));
        }
        step.run(&inputs)
    }
}

fn call_inputs(call: &StepCall, step: &ListedStep, tensors: &[Option<Tensor>]) -> Result<Vec<Tensor>, Error> {
    let tensor = |index: &Option<usize>| index.and_then(|index| tensors.get(index)?.clone());
    let inputs = call.inputs.iter().zip(&step.inputs);
    inputs.map(|(name, index)| tensor(index).ok_or_else(|| needs(name))).collect()
}

fn needs(name: &str) -> Error {
    Error::invalid(format!("'{name}' needs a tensor, but none came"))
}
