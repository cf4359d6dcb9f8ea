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
//! writes those that have the names of its outputs.

use std::fmt;
use std::ops::Range;

use base::error::Error;
use base::tensor::Tensor;
use wire::json::placed;
use wire::placed::{Placed, PlacedMember, PlacedValue};

use crate::KINDS;
use crate::fields::{ReadStepFile, StepFields, line, quoted};
use crate::kind::{Step, StepKind, StepPort};
use crate::limits::{LIST_TENSORS_MAX, STEPS_MAX};

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
}

/// A tensor that the steps on one side of the model read from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ListInput {
    index: usize,
    /// Steps behind the model read it: the model wrote it, a step before the model, or the request has it.
    is_behind_model: bool,
}

/// The tensors of one run of a list.
pub struct StepTensors<'a> {
    list: &'a StepList,
    by_index: Vec<Option<Tensor>>,
}

struct ListedStep {
    kind: &'static StepKind,
    step: Box<dyn Step>,
    /// For each input port, the index of the tensor.
    inputs: Vec<Option<usize>>,
    /// For each output port, the index of the tensor.
    outputs: Vec<Option<usize>>,
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
        let mut list = Self { steps: Vec::new(), model: None, names: Vec::new(), inputs: Vec::new() };
        for (index, step) in steps.iter().enumerate() {
            list.add(text, step, read_file).map_err(|error| error.with_prefix(&format!("step {}: ", index + 1)))?;
        }
        Ok(list)
    }

    /// Returns true if a step stands for the model.
    pub const fn has_model(&self) -> bool {
        self.model.is_some()
    }

    /// Returns true if all steps are short ([`StepKind::is_short`]).
    pub fn is_short(&self) -> bool {
        self.steps.iter().all(|step| step.kind.is_short)
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

    /// Runs the steps before the model, or all without a model, on the tensors that `input` has by name.
    ///
    /// # Errors
    /// That of the first step that fails, after its number and kind.
    pub fn begin(&self, input: impl Fn(&str) -> Option<Tensor>) -> Result<StepTensors<'_>, Error> {
        let mut tensors = self.tensors(false, input);
        tensors.run(0..self.model.unwrap_or(self.steps.len()))?;
        Ok(tensors)
    }

    /// Runs the steps behind the model on the tensors that `input` has by name: those that were there before the model ran
    /// and its outputs.
    ///
    /// # Errors
    /// That of the first step that fails, after its number and kind.
    pub fn finish(&self, input: impl Fn(&str) -> Option<Tensor>) -> Result<StepTensors<'_>, Error> {
        let mut tensors = self.tensors(true, input);
        tensors.run(self.model.unwrap_or(self.steps.len())..self.steps.len())?;
        Ok(tensors)
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

    /// The tensors that are there before a step on one side of the model has run.
    fn tensors(&self, is_behind_model: bool, input: impl Fn(&str) -> Option<Tensor>) -> StepTensors<'_> {
        let mut by_index = vec![None; self.names.len()];
        for ListInput { index, .. } in self.inputs.iter().filter(|input| input.is_behind_model == is_behind_model) {
            if let (Some(place), Some(name)) = (by_index.get_mut(*index), self.names.get(*index)) {
                *place = input(name);
            }
        }
        StepTensors { list: self, by_index }
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
            return match (members.as_slice(), self.model.replace(self.steps.len())) {
                ([_], None) => Ok(()),
                ([_], Some(_)) => Err(at(placed.offset, "the step \"model\" may be there once".to_owned())),
                _ => Err(at(placed.offset, "the step \"model\" has no parameters and no ports".to_owned())),
            };
        }
        let Some(kind) = KINDS.iter().find(|kind| kind.name == name) else {
            let known: Vec<_> = KINDS.iter().map(|kind| kind.name).chain([MODEL_STEP]).collect();
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
        self.steps.push(ListedStep { kind, step, inputs, outputs });
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
        formatter.debug_list().entries(self.steps.iter().map(|step| step.kind.name)).finish()
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

    fn run(&mut self, range: Range<usize>) -> Result<(), Error> {
        let first = range.start;
        for (index, step) in self.list.steps.get(range).unwrap_or_default().iter().enumerate() {
            let number = self.list.number(first + index);
            let prefixed = |error: Error| error.with_prefix(&format!("step {number} ({}): ", step.kind.name));
            let results = step.run(&self.by_index).map_err(prefixed)?;
            for (result, place) in results.into_iter().zip(&step.outputs) {
                if let Some(tensor) = place.and_then(|place| self.by_index.get_mut(place)) {
                    *tensor = result;
                }
            }
        }
        Ok(())
    }
}

impl ListedStep {
    fn run(&self, tensors: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let inputs = self.inputs.iter().map(|index| index.and_then(|index| tensors.get(index)?.as_ref()));
        let inputs: Vec<_> = inputs.collect();
        let given = self.kind.inputs.iter().zip(&inputs);
        if let Some((port, _)) = given.into_iter().find(|(port, tensor)| !port.is_optional && tensor.is_none()) {
            return Err(Error::invalid(format!("'{}' needs a tensor, but none came", port.name)));
        }
        self.step.run(&inputs)
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

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::tensors::{floats, of_floats};

    fn read(text: &str) -> Result<StepList, Error> {
        StepList::read(text, &|_, _| Err("no such file".to_owned()))
    }

    #[test]
    fn steps_run_in_order_on_tensors_by_name() {
        let list = read(
            r#"{"steps": [
                {"step": "cast", "input": "x", "output": "whole", "datatype": "INT64"},
                {"step": "cast", "inputs": {"input": "whole"}, "outputs": {"output": "y"}, "datatype": "FP32"}
            ]}"#,
        );
        let list = list.unwrap();
        assert_eq!(list.inputs().collect::<Vec<_>>(), ["x"]);
        assert_eq!(list.outputs().collect::<Vec<_>>(), ["whole", "y"]);
        let x = of_floats(&[3], vec![1.7, -2.9, 0.0]);
        let got = list.run(|name| (name == "x").then(|| x.clone()), &["y", "x", "z"]).unwrap();
        assert_eq!(floats("y", got[0].as_ref().unwrap()).unwrap()[..], [1.0, -2.0, 0.0]);
        assert_eq!(got[1].as_ref(), Some(&x));
        assert_eq!(got[2], None);
        let error = list.run(|_| None, &["y"]).unwrap_err();
        assert_eq!(error.text(), "step 1 (cast): 'input' needs a tensor, but none came");
    }

    #[test]
    fn steps_behind_the_model_read_what_was_there_before_it() {
        let list = read(
            r#"{"steps": [
                {"step": "cast", "input": "x", "output": "whole", "datatype": "INT64"},
                {"step": "model"},
                {"step": "cast", "input": "whole", "output": "y", "datatype": "FP32"},
                {"step": "cast", "input": "x", "output": "z", "datatype": "FP32"},
                {"step": "cast", "input": "y", "output": "again", "datatype": "INT64"}
            ]}"#,
        );
        let list = list.unwrap();
        assert_eq!(list.inputs().collect::<Vec<_>>(), ["x"]);
        assert_eq!(list.inputs_behind_model().collect::<Vec<_>>(), ["whole", "x"]);
        let (x, whole) = (of_floats(&[1], vec![1.7]), of_floats(&[1], vec![3.0]));
        let named = |name: &str| match name {
            "x" => Some(x.clone()),
            "whole" => Some(whole.clone()),
            _ => None,
        };
        let mut got = list.finish(named).unwrap();
        assert_eq!(floats("y", &got.take("y").unwrap()).unwrap()[..], [3.0]);
        assert_eq!(floats("z", &got.take("z").unwrap()).unwrap()[..], [1.7]);
        // The steps before the model have nothing that those behind it write.
        assert!(list.begin(named).unwrap().get("y").is_none());
    }

    #[test]
    fn a_model_may_stand_between_steps() {
        let list = read(
            r#"{"steps": [
                {"step": "cast", "input": "x", "output": "whole", "datatype": "INT64"},
                {"step": "model"},
                {"step": "cast", "input": "scores", "output": "y", "datatype": "INT64"},
                {"step": "cast", "input": "extra", "output": "z", "datatype": "INT64"}
            ]}"#,
        );
        let list = list.unwrap();
        assert!(list.has_model());
        assert_eq!(list.inputs().collect::<Vec<_>>(), ["x"]);
        assert_eq!(list.outputs().collect::<Vec<_>>(), ["whole"]);
        assert_eq!(list.inputs_behind_model().collect::<Vec<_>>(), ["scores", "extra"]);
        assert_eq!(list.outputs_behind_model().collect::<Vec<_>>(), ["y", "z"]);
        let scores = of_floats(&[1], vec![2.5]);
        let error = list.finish(|name| (name == "scores").then(|| scores.clone())).err().unwrap();
        assert_eq!(error.text(), "step 4 (cast): 'input' needs a tensor, but none came");
    }

    #[test]
    fn a_fault_in_a_list_is_named_with_its_line() {
        let check = |text: &str, want: &str| assert_eq!(read(text).err().unwrap().text(), want, "{text}");
        let known = KINDS.iter().map(|kind| kind.name).chain(["model"]).collect::<Vec<_>>();
        check(
            r#"{"steps": [{"step": "model", "x": 1}]}"#,
            "step 1: line 1: the step \"model\" has no parameters and no ports",
        );
        let twice = r#"{"steps": [{"step": "model"}, {"step": "model"}]}"#;
        check(twice, "step 2: line 1: the step \"model\" may be there once");
        check("{\n\"steps\": [}", "line 2: Invalid value.");
        check("[]", "line 1: the file must be {\"steps\": [...]}");
        check("{\"steps\": []}", "line 1: \"steps\" must have 1 to 64 elements");
        let many = |count: usize| format!("{{\"steps\": [{}]}}", vec![r#"{"step": "model"}"#; count].join(","));
        check(&many(STEPS_MAX + 1), "line 1: \"steps\" must have 1 to 64 elements");
        check(&many(STEPS_MAX), "step 2: line 1: the step \"model\" may be there once");
        check("{\"steps\": [1],\n\"more\": 1}", "line 2: unknown member \"more\": the file must be {\"steps\": [...]}");
        check("{\"steps\": [1]}", "step 1: line 1: a step must be an object");
        check("{\"steps\": [\n{}]}", "step 1: line 2: \"step\" must name the kind of the step");
        let unknown = format!("step 1: line 1: \"step\": unknown kind \"x\"; known are {}", quoted(&known));
        check(r#"{"steps": [{"step": "x"}]}"#, &unknown);
        let cast = |rest: &str| format!("{{\"steps\": [{{\"step\": \"cast\",\n{rest}}}]}}");
        let bad = |rest: &str, want: &str| check(&cast(rest), want);
        bad(r#""output": "y""#, "step 1: line 1: \"inputs\": the tensor of \"input\" is missing");
        bad(r#""input": "x""#, "step 1: line 1: \"outputs\": the step must write a tensor");
        bad(r#""input": 1"#, "step 1: line 2: \"input\" must be the name of a tensor");
        bad(r#""inputs": {"in": "x"}"#, "step 1: line 2: \"inputs\": unknown port \"in\"; known are \"input\"");
        bad(r#""input": "x", "inputs": {"input": "x"}"#, "step 1: line 2: \"inputs\": \"input\" is connected twice");
        bad(
            r#""input": "x", "output": "y", "datatype": "FP8""#,
            "step 1: line 2: \"datatype\": must be one of \"BOOL\", \"UINT8\", \"UINT16\", \"UINT32\", \"UINT64\", \"INT8\", \"INT16\", \
             \"INT32\", \"INT64\", \"FP16\", \"BF16\", \"FP32\", \"FP64\"",
        );
        bad(
            r#""input": "x", "output": "y", "type": "FP32""#,
            "step 1: line 2: \"type\": unknown parameter; known are \"datatype\"",
        );
        bad(
            r#""input": "x", "output": "y", "datatype": "FP32", "datatype": "FP32""#,
            "step 1: line 2: \"datatype\": is given twice",
        );
    }
}
