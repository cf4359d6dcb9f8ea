//! A list of steps, as a `steps.json` has it, checked as a whole when it is read.
//!
//! ```json
//! {"steps": [
//!   {"step": "cast", "input": "COUNTS", "output": "x", "datatype": "FP32"},
//!   {"step": "cast", "inputs": {"input": "x"}, "outputs": {"output": "HALVES"}, "datatype": "FP16"}
//! ]}
//! ```
//!
//! The tensors that no earlier step writes are the inputs of the list. Errors name the line, the step and the parameter.
//!
//! `{"step": "model"}` stands for the model that the list belongs to: it reads the tensors that have the names of its inputs and
//! writes those that have the names of its outputs. `{"step": "infer", "model": "NAME", …}` runs another model of the server.
//! `{"step": "model", "padding": {…}}` says how its inputs are padded ([`ListPadding`]).

pub mod call;
pub mod padding;
mod run;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
mod tests;

use std::fmt;
use std::ops::Range;

use base::error::Error;
use wire::json::placed;
use wire::placed::{Placed, PlacedMember, PlacedValue};

pub(crate) use self::call::NAME as CALL_NAME;
pub use self::call::StepCall;
pub use self::padding::ListPadding;
pub use self::run::{AwaitedCall, StepRun, StepTensors};
use crate::KINDS;
use crate::fields::{ReadStepFile, StepFields, line, quoted};
use crate::kind::{Step, StepKind, StepPort};
use crate::limits::{LIST_TENSORS_MAX, STEPS_MAX};
use crate::shown_token::ShowsTokens;

/// Members of a step that are not its parameters.
const STRUCTURE: [&str; 5] = ["step", "input", "inputs", "output", "outputs"];

/// The name of the step that stands for the model.
const MODEL_STEP: &str = "model";

/// Steps that run one after the other, on tensors by name, before and behind a model if there is one.
pub struct StepList {
    steps: Vec<ListedStep>,
    /// The number of steps before the model; `None` for a list without one.
    model: Option<usize>,
    /// The names of all tensors; steps refer to them by index.
    names: Vec<String>,
    /// The tensors that the steps on one side of the model read and that no step on that side has written before.
    inputs: Vec<ListInput>,
    /// The padding of the model's inputs, if the step of the model or another one says it.
    padding: Option<ListPadding>,
}

/// A tensor that the steps on one side of the model read from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ListInput {
    index: usize,
    /// Steps behind the model read it: the model wrote it, a step before the model, or the request has it.
    is_behind_model: bool,
}

struct ListedStep {
    work: ListedWork,
    /// For each input port, the index of the tensor.
    inputs: Vec<Option<usize>>,
    /// For each output port, the index of the tensor.
    outputs: Vec<Option<usize>>,
}

/// The work of a step.
enum ListedWork {
    /// Another model runs.
    Call(StepCall),
    /// The step computes.
    Own(&'static StepKind, Box<dyn Step>),
}

/// Returns true if a `steps.json` has a step that stands for the model, whatever else is wrong with it.
pub fn names_model(text: &str) -> bool {
    let is_model = |step: &Placed| {
        let PlacedValue::Table(members) = &step.value else { return false };
        let kind = member(members, "step").map(|member| &member.value.value);
        matches!(kind, Some(PlacedValue::String(name)) if name == MODEL_STEP)
    };
    placed::read(text).is_ok_and(|document| listed(text, &document).is_ok_and(|steps| steps.iter().any(is_model)))
}

impl StepList {
    /// Reads the text of a `steps.json`.
    ///
    /// # Errors
    /// `InvalidArgument` with the line, and the step and parameter if the fault is in one.
    pub fn read(text: &str, read_file: &ReadStepFile<'_>) -> Result<Self, Error> {
        let document = placed::read(text)
            .map_err(|error| Error::invalid(format!("line {}: {}", line(text, error.offset), error.text)))?;
        let steps = listed(text, &document)?;
        let mut list = Self { steps: Vec::new(), model: None, names: Vec::new(), inputs: Vec::new(), padding: None };
        for (index, step) in steps.iter().enumerate() {
            list.add(text, step, read_file).map_err(|error| error.with_prefix(&format!("step {}: ", index + 1)))?;
        }
        list.padding = list.padding.take().or_else(|| list.padding_of_steps());
        Ok(list)
    }

    /// Returns true if a step stands for the model.
    pub const fn has_model(&self) -> bool {
        self.model.is_some()
    }

    /// Returns true if all steps are short ([`StepKind::is_short`]).
    pub fn is_short(&self) -> bool {
        self.steps.iter().all(|step| matches!(step.work, ListedWork::Own(kind, _) if kind.is_short))
    }

    /// The tokenizer of the first step that has one.
    pub fn tokenizer(&self) -> Option<&dyn ShowsTokens> {
        self.steps.iter().find_map(|step| match &step.work {
            ListedWork::Own(_, step) => step.tokenizer(),
            ListedWork::Call(_) => None,
        })
    }

    /// The names of classes of the last step that knows some.
    pub fn classes(&self) -> &[String] {
        let of_step = self.steps.iter().rev().find_map(|step| match &step.work {
            ListedWork::Own(_, step) => Some(step.classes()).filter(|classes| !classes.is_empty()),
            ListedWork::Call(_) => None,
        });
        of_step.unwrap_or_default()
    }

    /// The models that steps run ([`StepCall`]), in order.
    pub fn calls(&self) -> impl Iterator<Item = &StepCall> {
        self.steps.iter().filter_map(ListedStep::call)
    }

    /// Returns true if a step behind the model runs another one.
    pub fn has_calls_behind_model(&self) -> bool {
        let behind = self.steps.get(self.model.unwrap_or(self.steps.len())..).unwrap_or_default();
        behind.iter().any(|step| step.call().is_some())
    }

    /// The names of the tensors that the steps before the model read from outside, or all without a model, in the order
    /// of their first use.
    pub fn inputs(&self) -> impl Iterator<Item = &str> {
        self.names_read(false)
    }

    /// The names of the tensors that the steps behind the model read and none of them writes before: outputs of the model,
    /// tensors that steps before the model wrote, or tensors from outside.
    pub fn inputs_behind_model(&self) -> impl Iterator<Item = &str> {
        self.names_read(true)
    }

    /// The names of the tensors that the steps before the model write, or all without a model.
    pub fn outputs(&self) -> impl Iterator<Item = &str> {
        self.names_written(0..self.model.unwrap_or(self.steps.len()))
    }

    /// The names of the tensors that the steps behind the model write.
    pub fn outputs_behind_model(&self) -> impl Iterator<Item = &str> {
        self.names_written(self.model.unwrap_or(self.steps.len())..self.steps.len())
    }

    fn names_read(&self, is_behind_model: bool) -> impl Iterator<Item = &str> {
        let inputs = self.inputs.iter().filter(move |input| input.is_behind_model == is_behind_model);
        inputs.filter_map(|input| self.names.get(input.index)).map(String::as_str)
    }

    fn names_written(&self, range: Range<usize>) -> impl Iterator<Item = &str> {
        let steps = self.steps.get(range).unwrap_or_default();
        let written = steps.iter().flat_map(|step| step.outputs.iter().flatten());
        written.filter_map(|index| self.names.get(*index)).map(String::as_str)
    }

    /// The number of a step in the file, from 1; the model's step counts too.
    fn number(&self, index: usize) -> usize {
        index + 1 + usize::from(self.model.is_some_and(|model| index >= model))
    }

    fn add(&mut self, text: &str, placed: &Placed, read_file: &ReadStepFile<'_>) -> Result<(), Error> {
        let at = |offset, why: String| Error::invalid(format!("line {}: {why}", line(text, offset)));
        let PlacedValue::Table(members) = &placed.value else {
            return Err(at(placed.offset, "a step must be an object".to_owned()));
        };
        let Some(PlacedValue::String(name)) = member(members, "step").map(|member| &member.value.value) else {
            return Err(at(placed.offset, "\"step\" must name the kind of the step".to_owned()));
        };
        if name == MODEL_STEP {
            if self.model.is_some() {
                return Err(at(placed.offset, "the step \"model\" may be there once".to_owned()));
            }
            self.padding = self.declared_padding(text, members)?;
            self.model = Some(self.steps.len());
            return Ok(());
        }
        if name == call::NAME {
            return self.add_call(text, placed.offset, members, read_file);
        }
        let Some(kind) = KINDS.iter().find(|kind| kind.name == name) else {
            let known: Vec<_> = KINDS.iter().map(|kind| kind.name).chain([call::NAME, MODEL_STEP]).collect();
            return Err(at(placed.offset, format!("\"step\": unknown kind \"{name}\"; known are {}", quoted(&known))));
        };
        let read = connections(text, members, ["input", "inputs"], kind.inputs)?;
        let written = connections(text, members, ["output", "outputs"], kind.outputs)?;
        if let Some((port, _)) = kind.inputs.iter().zip(&read).find(|(port, name)| !port.is_optional && name.is_none())
        {
            return Err(at(placed.offset, format!("\"inputs\": the tensor of \"{}\" is missing", port.member())));
        }
        if written.iter().all(Option::is_none) {
            return Err(at(placed.offset, "\"outputs\": the step must write a tensor".to_owned()));
        }
        let fields = StepFields {
            declared: kind.fields,
            members,
            wanted: written.iter().map(Option::is_some).collect(),
            connected: read.iter().map(Option::is_some).collect(),
            input_names: &read,
            read_file,
            text,
            offset: placed.offset,
        };
        fields.check(&STRUCTURE)?;
        let step = (kind.build)(&fields)?;
        let inputs = read.into_iter().map(|name| name.map(|name| self.index_of_read(name))).collect();
        let outputs = written.into_iter().map(|name| name.map(|name| self.index_of(name))).collect();
        self.steps.push(ListedStep { work: ListedWork::Own(kind, step), inputs, outputs });
        Ok(())
    }

    fn add_call(
        &mut self,
        text: &str,
        offset: usize,
        members: &[PlacedMember],
        read_file: &ReadStepFile<'_>,
    ) -> Result<(), Error> {
        let (wanted, connected) = (Vec::new(), Vec::new());
        let fields = StepFields {
            declared: call::FIELDS,
            members,
            wanted,
            connected,
            input_names: &[],
            read_file,
            text,
            offset,
        };
        if let Some(member) = members.iter().find(|member| ["input", "output"].contains(&member.name.as_str())) {
            let PlacedMember { name, offset, .. } = member;
            let line = line(text, *offset);
            return Err(Error::invalid(format!(
                "line {line}: \"{name}\": the step \"infer\" has \"{name}s\", an object from tensors of the model to those of the list"
            )));
        }
        fields.check(&STRUCTURE)?;
        let (call, tensors) = StepCall::build(&fields)?;
        let inputs = tensors.read.into_iter().map(|name| Some(self.index_of_read(name))).collect();
        let outputs = tensors.written.into_iter().map(|name| Some(self.index_of(name))).collect();
        self.steps.push(ListedStep { work: ListedWork::Call(call), inputs, outputs });
        Ok(())
    }

    /// The index of a tensor that a step reads; one that no step on its side of the model has written is an input.
    fn index_of_read(&mut self, name: String) -> usize {
        let index = self.index_of(name);
        let own_side = self.steps.get(self.model.unwrap_or(0)..).unwrap_or_default();
        let is_written =
            own_side.iter().flat_map(|step| step.outputs.iter().flatten()).any(|written| *written == index);
        let input = ListInput { index, is_behind_model: self.model.is_some() };
        if !is_written && !self.inputs.contains(&input) {
            self.inputs.push(input);
        }
        index
    }

    fn index_of(&mut self, name: String) -> usize {
        self.names.iter().position(|known| *known == name).unwrap_or_else(|| {
            self.names.push(name);
            self.names.len() - 1
        })
    }
}

impl fmt::Debug for StepList {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.steps.iter().map(ListedStep::kind_name)).finish()
    }
}

impl ListedStep {
    const fn call(&self) -> Option<&StepCall> {
        match &self.work {
            ListedWork::Call(call) => Some(call),
            ListedWork::Own(..) => None,
        }
    }
}

/// The steps of a document.
fn listed<'a>(text: &str, document: &'a Placed) -> Result<&'a [Placed], Error> {
    let wrong = |offset, why: &str| Error::invalid(format!("line {}: {why}", line(text, offset)));
    let shape = "the file must be {\"steps\": [...]}";
    let PlacedValue::Table(members) = &document.value else { return Err(wrong(document.offset, shape)) };
    if let Some(other) = members.iter().find(|member| member.name != "steps") {
        return Err(wrong(other.offset, &format!("unknown member \"{}\": {shape}", other.name)));
    }
    match members.first().map(|member| &member.value.value) {
        Some(PlacedValue::List(steps)) if !steps.is_empty() && steps.len() <= STEPS_MAX => Ok(steps),
        Some(PlacedValue::List(_)) => {
            Err(wrong(document.offset, &format!("\"steps\" must have 1 to {STEPS_MAX} elements")))
        }
        _ => Err(wrong(document.offset, shape)),
    }
}

/// The tensor of each port: `"input": "NAME"` for the first one, or `"inputs": {"PORT": "NAME"}`.
fn connections(
    text: &str,
    members: &[PlacedMember],
    [one, several]: [&str; 2],
    ports: &[StepPort],
) -> Result<Vec<Option<String>>, Error> {
    let wrong = |offset, why: String| Error::invalid(format!("line {}: {why}", line(text, offset)));
    let mut names: Vec<Option<String>> = vec![None; ports.len()];
    debug_assert!(ports.iter().rev().skip(1).all(|port| !port.is_list()), "a list is the last input");
    if let (Some(member), Some(port)) = (member(members, one), ports.first()) {
        connect(&mut names, 0, port, &member.value).map_err(|why| wrong(member.offset, format!("\"{one}\" {why}")))?;
    }
    let Some(member) = member(members, several) else { return Ok(names) };
    let PlacedValue::Table(connected) = &member.value.value else {
        return Err(wrong(member.offset, format!("\"{several}\" must be an object from ports to names of tensors")));
    };
    for PlacedMember { name, offset, value } in connected {
        let Some((index, port)) = ports.iter().enumerate().find(|(_, port)| port.member() == name) else {
            let known: Vec<_> = ports.iter().map(StepPort::member).collect();
            return Err(wrong(
                *offset,
                format!("\"{several}\": unknown port \"{name}\"; known are {}", quoted(&known)),
            ));
        };
        if names.get(index).is_some_and(Option::is_some) {
            return Err(wrong(*offset, format!("\"{several}\": \"{name}\" is connected twice")));
        }
        connect(&mut names, index, port, value)
            .map_err(|why| wrong(value.offset, format!("\"{several}\": \"{name}\" {why}")))?;
    }
    Ok(names)
}

/// Connects a port to the tensor, or tensors if it is a list, that a value names.
fn connect(names: &mut Vec<Option<String>>, index: usize, port: &StepPort, value: &Placed) -> Result<(), String> {
    let name = |value: &Placed| match &value.value {
        PlacedValue::String(name) => Some(Some(name.clone())),
        _ => None,
    };
    let several = match &value.value {
        PlacedValue::List(list) if port.is_list() && (1..=LIST_TENSORS_MAX).contains(&list.len()) => {
            list.iter().map(name).collect::<Option<Vec<_>>>()
        }
        _ => name(value).map(|name| vec![name]),
    };
    let Some(several) = several else {
        let list = format!(", or a list of 1 to {LIST_TENSORS_MAX} names");
        return Err(format!("must be the name of a tensor{}", if port.is_list() { list.as_str() } else { "" }));
    };
    // A list is the last input: its first tensor has the place of the port, and the others follow.
    names.splice(index..=index, several);
    Ok(())
}

fn member<'a>(members: &'a [PlacedMember], name: &str) -> Option<&'a PlacedMember> {
    members.iter().find(|member| member.name == name)
}
