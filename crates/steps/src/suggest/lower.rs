//! From the graph of a `model.py` to a list of steps: for each output the steps that make it, down to the inputs.

mod boxes;
mod call;
mod given;
mod images;
mod labels;
mod numbers;
mod sounds;
mod texts;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::tensor::Datatype;

use crate::limits::{STEPS_MAX, SUGGEST_NESTING_MAX};
use crate::suggest::SuggestTensor;
use crate::suggest::library::quoted;
use crate::suggest::machine::Machine;
use crate::suggest::op::{Dim, ExprId, Kind, Op};
use crate::suggest::value::PyValue;

/// A step that is proposed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StepDraft {
    pub kind: &'static str,
    /// The tensors of the input ports; several for a list.
    pub inputs: Vec<(&'static str, Vec<String>)>,
    pub outputs: Vec<(&'static str, String)>,
    /// Parameters in JSON.
    pub fields: Vec<(&'static str, String)>,
    pub lines: BTreeSet<usize>,
    /// The names of the tensors in the model that the step `infer` runs, in the order of its inputs and outputs.
    pub call: Option<CallNames>,
    /// Steps with the same number are one, such as the outputs of one call of a tokenizer; 0 for none.
    pub group: usize,
}

/// Names of the tensors of another model.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CallNames {
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
}

/// A tensor that steps make: its name, and the shape that they give it.
pub(super) type MadeTensor = (String, Vec<Dim>);

/// Makes steps.
pub(super) struct StepLowering<'m, 'a> {
    pub machine: &'m mut Machine<'a>,
    pub steps: Vec<StepDraft>,
    made: BTreeMap<ExprId, MadeTensor>,
    /// Names of tensors that are in use.
    names: BTreeSet<String>,
    /// Expressions inside each other that are being made.
    depth: usize,
}

impl<'m, 'a> StepLowering<'m, 'a> {
    pub fn new(machine: &'m mut Machine<'a>) -> Self {
        let tensors = machine.model.inputs.iter().chain(&machine.model.outputs);
        let names = tensors.map(|tensor| tensor.name.clone()).collect();
        Self { machine, steps: Vec::new(), made: BTreeMap::new(), names, depth: 0 }
    }

    /// Makes the steps of an output.
    pub fn output(&mut self, name: &str, value: &PyValue) -> Result<(), String> {
        let output = self.machine.model.outputs.iter().find(|output| output.name == name);
        let output = output.ok_or_else(|| format!("config.pbtxt has no output '{name}'"))?.clone();
        let id = self.machine.as_array(value)?;
        let (kind, want) = (self.machine.graph.kind(id), self.machine.graph.shape(id));
        let datatype = match kind {
            Kind::Number(datatype) => datatype,
            Kind::Raw | Kind::Text => Datatype::Bytes,
            Kind::Json => return Err("a JSON value is no tensor".to_owned()),
        };
        if datatype != output.datatype {
            return Err(format!(
                "'{name}' is {} in model.py and {} in config.pbtxt, which the steps would refuse",
                datatype.name(),
                output.datatype.name()
            ));
        }
        let want = self.output_shape(&output, &want)?;
        let made = self.raw(id)?;
        let tensor = self.fit(made, &want, id)?;
        self.rename(&tensor, name, datatype);
        Ok(())
    }

    /// The shape that the steps give an output: that of model.py if it is the one of `config.pbtxt` behind its `reshape`. Python
    /// models may also give the one before it, which clients see.
    fn output_shape(&self, output: &SuggestTensor, shape: &[Dim]) -> Result<Vec<Dim>, String> {
        let name = &output.name;
        let is_batched = self.machine.model.rows_max > 0;
        let (rows, own) = match (is_batched, shape.split_first()) {
            (false, _) => (None, shape),
            (true, Some((rows, own))) => (Some(*rows), own),
            (true, None) => return Err(format!("'{name}' has no axis of rows, which max_batch_size demands")),
        };
        let fits = |dims: &[i64]| {
            own.len() == dims.len()
                && own.iter().zip(dims).all(|(own, dim)| match own {
                    Dim::Known(size) => *dim == -1 || u64::try_from(*dim) == Ok(*size),
                    Dim::Open(_) => true,
                })
        };
        let reshaped: Option<Vec<Dim>> =
            output.model_dims().iter().map(|dim| u64::try_from(*dim).ok().map(Dim::Known)).collect();
        match reshaped {
            _ if fits(output.model_dims()) => Ok(shape.to_vec()),
            Some(reshaped) if fits(&output.dims) => Ok(rows.into_iter().chain(reshaped).collect()),
            _ => {
                let text = |dim: &Dim| if let Dim::Known(size) = dim { size.to_string() } else { "?".to_owned() };
                let text: Vec<_> = shape.iter().map(text).collect();
                let (rows, dims) = (if is_batched { "rows and " } else { "" }, output.model_dims());
                Err(format!(
                    "'{name}' has the shape [{}] in model.py, and {rows}{dims:?} in config.pbtxt",
                    text.join(", ")
                ))
            }
        }
    }

    /// Gives the tensor the name of an output.
    fn rename(&mut self, tensor: &str, name: &str, datatype: Datatype) {
        let written = self.steps.iter().any(|step| step.outputs.iter().any(|(_, known)| known == tensor));
        let is_output = self.machine.model.outputs.iter().any(|output| output.name == tensor);
        if tensor == name && written {
            return;
        }
        if !written || is_output {
            // An input as it is, or a tensor that is an output already.
            let lines = BTreeSet::from([self.machine.line()]);
            let (kind, field) = match datatype {
                Datatype::Bytes => ("shape", ("unsqueeze", "[]".to_owned())),
                other => ("cast", ("datatype", quoted(other.name()))),
            };
            let inputs = vec![("input", vec![tensor.to_owned()])];
            let outputs = vec![("output", name.to_owned())];
            self.steps.push(StepDraft { kind, inputs, outputs, fields: vec![field], lines, call: None, group: 0 });
            return;
        }
        for step in &mut self.steps {
            let written = step.outputs.iter_mut().map(|(_, output)| output);
            let read = step.inputs.iter_mut().flat_map(|(_, inputs)| inputs.iter_mut());
            written.chain(read).filter(|known| *known == tensor).for_each(|known| name.clone_into(known));
            for (field, value) in &mut step.fields {
                if *field == "template" {
                    *value = value.replace(
                        &format!("{{\"tensor\": {}", quoted(tensor)),
                        &format!("{{\"tensor\": {}", quoted(name)),
                    );
                    *value =
                        value.replace(&format!("\"over\": {}", quoted(tensor)), &format!("\"over\": {}", quoted(name)));
                }
            }
        }
        self.made.values_mut().filter(|(known, _)| known == tensor).for_each(|(known, _)| name.clone_into(known));
    }

    /// The tensor of an expression, in its shape.
    pub fn lower(&mut self, id: ExprId) -> Result<String, String> {
        let want = self.machine.graph.shape(id);
        let made = self.raw(id)?;
        self.fit(made, &want, id)
    }

    /// The tensor of an expression, in the shape that the step gives it, with the same elements in the same order.
    pub fn raw(&mut self, id: ExprId) -> Result<MadeTensor, String> {
        if let Some(made) = self.made.get(&id) {
            return Ok(made.clone());
        }
        if self.depth >= SUGGEST_NESTING_MAX || self.steps.len() > STEPS_MAX {
            return Err(format!("it needs more than {STEPS_MAX} steps"));
        }
        self.depth += 1;
        let made = self.new_raw(id);
        self.depth -= 1;
        let made = made?;
        self.made.insert(id, made.clone());
        Ok(made)
    }

    fn new_raw(&mut self, id: ExprId) -> Result<MadeTensor, String> {
        self.machine.go_to_line(self.machine.graph.get(id).lines.last().copied());
        let graph = &self.machine.graph;
        let (op, shape) = (graph.op(id).clone(), graph.shape(id));
        let operand = graph.operand(id);
        if let Some(made) = self.image(id)? {
            return Ok(made);
        }
        if let Some(made) = self.detection(id)? {
            return Ok(made);
        }
        if let Some(made) = self.given_detection(id)? {
            return Ok(made);
        }
        if let Some(made) = self.head(id)? {
            return Ok(made);
        }
        match (&op, operand) {
            (Op::Input(name), _) => Ok((name.clone(), shape)),
            (Op::View | Op::Decode | Op::Encode, Some(below)) => self.raw(below),
            (Op::Tokens(_), _) => self.tokens(id),
            (Op::Sound(_), _) => self.sound(id),
            (Op::Called(form), _) => self.call(id, &Arc::clone(form)),
            (Op::Detokenize { .. } | Op::Ctc(_) | Op::Dumps(_) | Op::Parse { .. }, _) => self.text(id),
            (
                Op::Pool(_) | Op::Normalize(_) | Op::Reduce { axis: -2, .. } | Op::Take { axis: -2, index: 0 },
                Some(_),
            ) => self.pool(id),
            _ => self.numbers(id),
        }
    }

    /// Gives a tensor another shape of the same elements.
    fn fit(&mut self, (name, have): MadeTensor, want: &[Dim], id: ExprId) -> Result<String, String> {
        let graph = &self.machine.graph;
        if graph.is_same(&have, want) {
            return Ok(name);
        }
        let have: Vec<_> = have.iter().map(|dim| graph.resolved(*dim)).collect();
        let want: Vec<_> = want.iter().map(|dim| graph.resolved(*dim)).collect();
        let field = match (removed(&have, &want), removed(&want, &have)) {
            (Some(axes), _) => ("squeeze", format!("{axes:?}")),
            (_, Some(axes)) => ("unsqueeze", format!("{axes:?}")),
            _ => {
                let open = want.iter().filter(|dim| matches!(dim, Dim::Open(_))).count();
                if open > 1 {
                    return Err("a shape with several open sizes has no step".to_owned());
                }
                let sizes: Vec<_> = want
                    .iter()
                    .map(|dim| if let Dim::Known(size) = dim { i64::try_from(*size).unwrap_or(i64::MAX) } else { -1 })
                    .collect();
                ("reshape", format!("{sizes:?}"))
            }
        };
        self.step("shape", vec![("input", vec![name])], "output", vec![field], id)
    }

    /// Adds a step with one output, or the output to a step that is the same else.
    pub fn step(
        &mut self,
        kind: &'static str,
        inputs: Vec<(&'static str, Vec<String>)>,
        port: &'static str,
        fields: Vec<(&'static str, String)>,
        id: ExprId,
    ) -> Result<String, String> {
        self.grouped_step(kind, inputs, port, fields, id, 0)
    }

    pub fn grouped_step(
        &mut self,
        kind: &'static str,
        inputs: Vec<(&'static str, Vec<String>)>,
        port: &'static str,
        fields: Vec<(&'static str, String)>,
        id: ExprId,
        group: usize,
    ) -> Result<String, String> {
        let lines = self.machine.graph.get(id).lines.clone();
        let same = self.steps.iter().position(|step| {
            step.kind == kind && step.inputs == inputs && step.fields == fields && step.group == group
        });
        if let Some(place) = same {
            let known = self.steps.get(place).and_then(|step| step.outputs.iter().find(|(known, _)| *known == port));
            if let Some((_, name)) = known {
                return Ok(name.clone());
            }
            let name = self.new_name(port);
            if let Some(step) = self.steps.get_mut(place) {
                step.outputs.push((port, name.clone()));
                step.lines.extend(lines);
            }
            return Ok(name);
        }
        let name = self.new_name(port);
        let outputs = vec![(port, name.clone())];
        self.steps.push(StepDraft { kind, inputs, outputs, fields, lines, call: None, group });
        Ok(name)
    }

    /// Counts lines to the step that writes a tensor.
    pub fn add_lines(&mut self, tensor: &str, id: ExprId) {
        let lines = self.machine.graph.get(id).lines.clone();
        let writers = self.steps.iter_mut().filter(|step| step.outputs.iter().any(|(_, name)| name == tensor));
        writers.for_each(|step| step.lines.extend(&lines));
    }

    fn new_name(&mut self, port: &str) -> String {
        let name = (1..).map(|number| if number == 1 { port.to_owned() } else { format!("{port}_{number}") });
        let name = name.filter(|name| !name.is_empty()).find(|name| !self.names.contains(name)).unwrap_or_default();
        self.names.insert(name.clone());
        name
    }

    /// A tensor of FP32, as most steps compute in; remarks on others.
    pub fn single(&mut self, id: ExprId) {
        if let Kind::Number(datatype @ (Datatype::Fp64 | Datatype::Fp16)) = self.machine.graph.kind(id) {
            let name = datatype.name();
            self.machine.assume(format!("model.py computes in {name}, the step in FP32"));
        }
    }

    /// Converts what a step made to the datatype that model.py has.
    pub fn typed(&mut self, name: String, made: Datatype, id: ExprId) -> Result<String, String> {
        match self.machine.graph.kind(id) {
            Kind::Number(datatype) if datatype != made => {
                let fields = vec![("datatype", quoted(datatype.name()))];
                self.step("cast", vec![("input", vec![name])], "output", fields, id)
            }
            _ => Ok(name),
        }
    }
}

/// The axes of size 1 that a shape has more than another one; `None` if that is not all.
fn removed(from: &[Dim], to: &[Dim]) -> Option<Vec<usize>> {
    let (mut axes, mut rest) = (Vec::new(), to.iter().peekable());
    let missing = from.len().checked_sub(to.len())?;
    for (axis, dim) in from.iter().enumerate() {
        if *dim == Dim::Known(1) && axes.len() < missing && rest.peek() != Some(&dim) {
            axes.push(axis);
        } else if rest.peek() == Some(&dim) {
            rest.next();
        } else {
            return None;
        }
    }
    // Sizes of 1 next to each other: any of them may be the one that is dropped.
    (rest.next().is_none() && axes.len() == missing && missing > 0).then_some(axes)
}
