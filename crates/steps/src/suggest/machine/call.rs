//! Calls of other models of the server: `pb_utils.InferenceRequest(...).exec()`.

use std::sync::Arc;

use crate::suggest::machine::Machine;
use crate::suggest::op::{CallForm, Dim, ExprId, Kind, Op};
use crate::suggest::value::{Arguments, Called, Object, PyValue, needed};
use crate::suggest::{SuggestOther, SuggestTensor};
use base::tensor::Datatype;

/// Arguments that do not change the answer.
const WITHOUT_EFFECT: &[&str] = &["request_id", "preferred_memory", "timeout", "trace"];

impl Machine<'_> {
    /// `InferenceRequest(model_name=, requested_output_names=, inputs=)`.
    pub fn request_of_other(&mut self, arguments: &Arguments) -> Called {
        let arguments = WITHOUT_EFFECT.iter().fold(arguments.clone(), |rest, name| rest.without(name));
        if !arguments.positional.is_empty() {
            return Err("its arguments have no names".to_owned());
        }
        let [model, outputs, inputs, version] =
            arguments.bind(["model_name", "requested_output_names", "inputs", "model_version"])?;
        let PyValue::Text(model) = needed(model, "model_name")? else {
            return Err("the name of the model is not known".to_owned());
        };
        let version = match version {
            None | Some(PyValue::Int(-1)) => None,
            Some(version) => {
                let number = version.integer().and_then(|version| u64::try_from(version).ok());
                Some(number.ok_or("its model_version is not known")?)
            }
        };
        let other = (self.model.find_other)(&model)?;
        let mut names = Vec::new();
        let mut operands = Vec::new();
        for tensor in self.items(&needed(inputs, "inputs")?)? {
            let (name, id) = self.tensor_for_other(&tensor)?;
            self.check_input(&model, &other, &name, id)?;
            names.push(name);
            operands.push(id);
        }
        let missing = other.inputs.iter().find(|input| !input.is_optional && !names.contains(&input.name));
        if let Some(missing) = missing {
            return Err(format!("the input '{}' of the model '{model}' is missing", missing.name));
        }
        let mut made = Vec::new();
        for output in self.items(&needed(outputs, "requested_output_names")?)? {
            let PyValue::Text(output) = output else { return Err("the name of an output is not known".to_owned()) };
            let tensor = other.outputs.iter().find(|tensor| tensor.name == output);
            let tensor = tensor.ok_or_else(|| format!("config.pbtxt of '{model}' has no output '{output}'"))?;
            let shape = self.shape_of_other(&other, tensor, &operands);
            let form = CallForm { model: model.clone(), version, inputs: names.clone(), output: output.clone() };
            let id = self.graph.add(Op::Called(Arc::new(form)), operands.clone(), kind_of(tensor), shape)?;
            made.push((output, id));
        }
        Ok(PyValue::object(Object::Call(made)))
    }

    /// `get_output_tensor_by_name(response, name)`.
    pub fn output_of_other(&mut self, response: &PyValue, name: &PyValue) -> Called {
        let (PyValue::Object(object), PyValue::Text(name)) = (response, name) else {
            return Err("the response or the name of an output is not known".to_owned());
        };
        let Object::Call(outputs) = &**object else { return Err("it is no response of another model".to_owned()) };
        let found = outputs.iter().find(|(output, _)| output == name);
        let (_, id) = found.ok_or_else(|| format!("the output '{name}' was not asked for"))?;
        Ok(PyValue::object(Object::InputTensor(*id)))
    }

    /// The name and the value of a tensor that a call has as an input.
    fn tensor_for_other(&mut self, tensor: &PyValue) -> Result<(String, ExprId), String> {
        match Self::as_object(tensor) {
            Some(Object::Tensor(name, value, _)) => Ok((name.clone(), self.as_array(value)?)),
            Some(Object::InputTensor(id)) => match self.graph.op(*id) {
                Op::Input(name) => Ok((name.clone(), *id)),
                Op::Called(form) => Ok((form.output.clone(), *id)),
                _ => Err("an input of the other model is not known".to_owned()),
            },
            _ => Err("an input of the other model is not known".to_owned()),
        }
    }

    fn check_input(&self, model: &str, other: &SuggestOther, name: &str, id: ExprId) -> Result<(), String> {
        let input = other.inputs.iter().find(|input| input.name == name);
        let input = input.ok_or_else(|| format!("config.pbtxt of '{model}' has no input '{name}'"))?;
        let own = match self.graph.kind(id) {
            Kind::Number(datatype) => datatype,
            _ => Datatype::Bytes,
        };
        let rank = input.dims.len() + usize::from(other.rows_max > 0);
        if own != input.datatype || self.graph.rank(id) != rank {
            let (own, want, rank_of_own) = (own.name(), input.datatype.name(), self.graph.rank(id));
            return Err(format!(
                "the input '{name}' of the model '{model}' is {want} with {rank} axes in its config.pbtxt, and {own} with \
                 {rank_of_own} in model.py"
            ));
        }
        Ok(())
    }

    fn shape_of_other(&mut self, other: &SuggestOther, tensor: &SuggestTensor, operands: &[ExprId]) -> Vec<Dim> {
        let mut shape = Vec::new();
        if other.rows_max > 0 {
            let rows = operands.first().and_then(|id| self.graph.shape(*id).first().copied());
            shape.push(rows.unwrap_or(Dim::Known(1)));
        }
        for dim in &tensor.dims {
            shape.push(match u64::try_from(*dim) {
                Ok(size) => Dim::Known(size),
                Err(_) => self.graph.open_size(false),
            });
        }
        shape
    }
}

fn kind_of(tensor: &SuggestTensor) -> Kind {
    match tensor.datatype {
        Datatype::Bytes => Kind::Raw,
        other => Kind::Number(other),
    }
}
