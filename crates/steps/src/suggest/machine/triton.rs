//! `triton_python_backend_utils`: inputs, outputs, configuration; and objects whose methods are called.

use std::sync::Arc;

use crate::suggest::SuggestTensor;
use crate::suggest::library;
use crate::suggest::machine::{Flow, Machine};
use crate::suggest::op::{CompareOp, CtcForm, Dim, ExprId, Kind, Op};
use crate::suggest::value::{Arguments, ArrayKind, Called, MODEL_CONFIG, Object, PyValue, needed};
use base::tensor::Datatype;

/// An output of a model: its name, its value, and the line of its tensor.
pub(super) type Output = (String, PyValue, usize);

impl<'a> Machine<'a> {
    /// Goes through the module, `initialize` and `execute`. Returns the outputs of a request.
    pub fn outputs(&mut self) -> Result<Vec<Output>, String> {
        let root = self.tree.root().ok_or("the file is empty")?;
        if let Flow::Return(_) = self.run(&root.children("body")) {
            return Err("the file has too much to go through".to_owned());
        }
        let Some(PyValue::Class(class)) = self.lookup("TritonPythonModel") else {
            return Err("the file has no class TritonPythonModel".to_owned());
        };
        let execute = self.tree.node(class).map(|class| class.children("body")).unwrap_or_default();
        if execute.iter().any(|node| node.kind() == "AsyncFunctionDef" && node.text("name") == "execute") {
            return Err("an execute that is a coroutine is not followed".to_owned());
        }
        let model = self.instantiate(class, &Arguments::default())?;
        if self.method_of(class, "initialize").is_some() {
            let method = self.attribute(&model, "initialize")?;
            let args = self.initialize_args();
            let result = self.apply(&method, &Arguments { positional: vec![args], named: Vec::new() })?;
            if let PyValue::Unknown(reason) = result {
                return Err(self.reasons.get(reason).map(|reason| reason.text.clone()).unwrap_or_default());
            }
        }
        let method = self.attribute(&model, "execute")?;
        self.kept = Some((self.lists.len(), self.instances.len()));
        let requests = PyValue::object(Object::Requests);
        let responses = self.apply(&method, &Arguments { positional: vec![requests], named: Vec::new() })?;
        self.response(&responses)
    }

    fn initialize_args(&mut self) -> PyValue {
        let entries = [
            ("model_config", PyValue::text(MODEL_CONFIG)),
            ("model_repository", PyValue::Path(String::new())),
            ("model_version", PyValue::text(self.model.version)),
            ("model_name", PyValue::text(self.model.name)),
            ("model_instance_kind", PyValue::text("CPU")),
            ("model_instance_device_id", PyValue::text("0")),
        ];
        let entries = entries.into_iter().map(|(name, value)| (PyValue::text(name), value)).collect();
        self.new_dict(entries)
    }

    /// The configuration, as far as `config.pbtxt` is known.
    pub fn model_config(&mut self) -> PyValue {
        let tensors = |machine: &mut Self, tensors: &[SuggestTensor]| {
            let list = tensors.iter().map(|tensor| {
                let name = match tensor.datatype {
                    Datatype::Bytes => "TYPE_STRING".to_owned(),
                    other => format!("TYPE_{}", other.name()),
                };
                let dims = machine.new_list(tensor.dims.iter().map(|dim| PyValue::Int(*dim)).collect());
                machine.new_dict(vec![
                    (PyValue::text("name"), PyValue::text(&tensor.name)),
                    (PyValue::text("data_type"), PyValue::Text(name)),
                    (PyValue::text("dims"), dims),
                ])
            });
            let list = list.collect();
            machine.new_list(list)
        };
        let model = self.model;
        let (input, output) = (tensors(self, &model.inputs), tensors(self, &model.outputs));
        let parameters = model.parameters.iter().map(|(name, value)| {
            let entry = self.new_dict(vec![(PyValue::text("string_value"), PyValue::text(value))]);
            (PyValue::text(name), entry)
        });
        let parameters = parameters.collect();
        let parameters = self.new_dict(parameters);
        let rows = PyValue::Int(i64::from(model.rows_max));
        self.new_dict(vec![
            (PyValue::text("name"), PyValue::text(model.name)),
            (PyValue::text("max_batch_size"), rows),
            (PyValue::text("input"), input),
            (PyValue::text("output"), output),
            (PyValue::text("parameters"), parameters),
        ])
    }

    /// The outputs of the response to a request.
    fn response(&mut self, responses: &PyValue) -> Result<Vec<Output>, String> {
        let response = match responses {
            PyValue::List(list) => {
                let list = self.list(*list);
                if let Some(reason) = list.broken {
                    return self.response(&PyValue::Unknown(reason));
                }
                match (list.each, list.items.as_slice()) {
                    (Some(each), []) if each.on == self.requests && each.condition.is_none() => each.element,
                    (Some(_), _) => return Err("the responses are not one for each request".to_owned()),
                    (None, [one]) => {
                        self.assume("one response is returned: requests are not batched");
                        one.clone()
                    }
                    _ => return Err("the responses of execute are not known".to_owned()),
                }
            }
            PyValue::Unknown(reason) => {
                let reason = self.reasons.get(*reason).cloned();
                let text = reason.as_ref().map(|reason| reason.text.clone()).unwrap_or_default();
                return Err(format!("line {}: {text}", reason.map_or(0, |reason| reason.line)));
            }
            _ => return Err("execute does not return a list of responses".to_owned()),
        };
        match &response {
            PyValue::Object(object) => match &**object {
                Object::Response(outputs) => Ok(outputs.clone()),
                _ => Err("an element of the list that execute returns is no response".to_owned()),
            },
            PyValue::Unknown(_) => self.response(&response),
            _ => Err("an element of the list that execute returns is no response".to_owned()),
        }
    }

    pub fn call_triton(&mut self, name: &str, arguments: &Arguments) -> Called {
        match name {
            "get_input_tensor_by_name" => {
                let [request, input] = arguments.bind(["inference_request", "name"])?;
                let is_request = matches!(&request, Some(PyValue::Object(object)) if **object == Object::Request);
                let PyValue::Text(input) = needed(input, "name")? else {
                    return Err("the name of an input is not known".to_owned());
                };
                if !is_request {
                    return Err("an input of something else than a request".to_owned());
                }
                self.input(&input)
            }
            "get_output_config_by_name" | "get_input_config_by_name" => {
                let [_, wanted] = arguments.bind(["model_config", "name"])?;
                let member = if name.starts_with("get_output") { "output" } else { "input" };
                let config = self.model_config();
                let list = self.subscript(&config, &PyValue::text(member))?;
                for entry in self.items(&list)? {
                    if self.subscript(&entry, &PyValue::text("name"))? == needed(wanted.clone(), "name")? {
                        return Ok(entry);
                    }
                }
                Ok(PyValue::Nothing)
            }
            "triton_string_to_numpy" => match arguments.positional.as_slice() {
                [PyValue::Text(name)] if name == "TYPE_STRING" => Ok(PyValue::library("numpy.object_")),
                [PyValue::Text(name)] => {
                    let datatype = name.strip_prefix("TYPE_").and_then(Datatype::from_name);
                    Ok(PyValue::Library(
                        library::datatype_name(datatype.ok_or("its datatype is not known")?).to_owned(),
                    ))
                }
                _ => Err("its datatype is not known".to_owned()),
            },
            "Tensor" | "from_dlpack" => {
                let [name, value] = arguments.bind(["name", "data"])?;
                let PyValue::Text(name) = needed(name, "name")? else {
                    return Err("the name of an output is not known".to_owned());
                };
                let line = self.line();
                Ok(PyValue::object(Object::Tensor(name, Box::new(needed(value, "data")?), line)))
            }
            "InferenceResponse" => {
                let [tensors, error] = arguments.bind(["output_tensors", "error"])?;
                if error.is_some_and(|error| error != PyValue::Nothing) {
                    return Ok(PyValue::object(Object::Refusal));
                }
                let mut outputs = Vec::new();
                for tensor in self.items(&tensors.unwrap_or(PyValue::Tuple(Vec::new())))? {
                    match Self::as_object(&tensor) {
                        Some(Object::Tensor(name, value, line)) => {
                            outputs.push((name.clone(), (**value).clone(), *line))
                        }
                        _ => return Err("an output is not known".to_owned()),
                    }
                }
                Ok(PyValue::object(Object::Response(outputs)))
            }
            "TritonError" | "TritonModelException" => Ok(PyValue::object(Object::Refusal)),
            "get_model_dir" => Ok(PyValue::Path(self.model.version.to_owned())),
            "InferenceRequest" => self.request_of_other(arguments),
            "get_output_tensor_by_name" => {
                let [response, output] = arguments.bind(["inference_response", "name"])?;
                self.output_of_other(&needed(response, "inference_response")?, &needed(output, "name")?)
            }
            _ => Err("it is not known".to_owned()),
        }
    }

    fn input(&mut self, name: &str) -> Called {
        let tensor = self.model.inputs.iter().find(|input| input.name == name);
        let tensor = tensor.ok_or_else(|| format!("config.pbtxt has no input '{name}'"))?;
        if tensor.is_optional {
            return Err(format!("the input '{name}' is optional, and steps need all of theirs"));
        }
        let known = self.inputs.iter().find(|(known, _)| known == name).map(|(_, id)| *id);
        let id = match known {
            Some(id) => id,
            None => {
                let mut shape = Vec::new();
                if self.model.rows_max > 0 {
                    let rows = *self.rows.get_or_insert_with(|| self.graph.open_size(true));
                    shape.push(rows);
                }
                for dim in tensor.model_dims() {
                    shape.push(match u64::try_from(*dim) {
                        Ok(size) => Dim::Known(size),
                        Err(_) => self.graph.open_size(false),
                    });
                }
                let kind = match tensor.datatype {
                    Datatype::Bytes => Kind::Raw,
                    other => Kind::Number(other),
                };
                let id = self.graph.add(Op::Input(name.to_owned()), Vec::new(), kind, shape)?;
                self.inputs.push((name.to_owned(), id));
                id
            }
        };
        Ok(PyValue::object(Object::InputTensor(id)))
    }

    pub fn object_attribute(&mut self, object: &Arc<Object>, name: &str) -> Called {
        match (&**object, name) {
            (Object::Encoding(fields), _) => match fields.get(name) {
                Some((id, kind)) => Ok(PyValue::Array(*id, *kind)),
                None => Ok(PyValue::Method(Box::new(PyValue::Object(Arc::clone(object))), name.to_owned())),
            },
            (Object::Config, "id2label") => {
                let text = self.read_text("config.json")?;
                let config = self.json_value(&text)?;
                let labels = self.subscript(&config, &PyValue::text("id2label"))?;
                let PyValue::Dict(dict) = labels else { return Err("config.json has no id2label".to_owned()) };
                let entries = self.dict(dict).to_vec().into_iter().map(|(key, value)| match key {
                    PyValue::Text(key) => (key.parse().map_or(PyValue::Nothing, PyValue::Int), value),
                    other => (other, value),
                });
                let entries = entries.collect();
                Ok(self.new_dict(entries))
            }
            _ => Ok(PyValue::Method(Box::new(PyValue::Object(Arc::clone(object))), name.to_owned())),
        }
    }

    pub fn object_method(&mut self, object: &Arc<Object>, name: &str, arguments: &Arguments) -> Called {
        match (&**object, name) {
            (Object::InputTensor(id), "as_numpy" | "to_dlpack") => Ok(PyValue::Array(*id, ArrayKind::Numpy)),
            (Object::Response(_), _) | (Object::Refusal, _) => Err("it is not known".to_owned()),
            (Object::Tokenizer(tokenizer), _) => self.tokenizer_method(tokenizer, name, arguments),
            (Object::Encoding(fields), "items" | "keys" | "values") => {
                let pairs = fields
                    .iter()
                    .map(|(key, (id, kind))| PyValue::Tuple(vec![PyValue::text(key), PyValue::Array(*id, *kind)]));
                let pairs = pairs.collect();
                match name {
                    "items" => Ok(self.new_list(pairs)),
                    _ => Err("it is not followed".to_owned()),
                }
            }
            (Object::Encoding(_), "to") => Ok(PyValue::Object(Arc::clone(object))),
            (Object::ImageProcessor(file), "preprocess") => {
                let file = file.clone();
                self.call_image_processor(&file, arguments)
            }
            (Object::Request, "request_id" | "correlation_id" | "parameters") => {
                Err("the id or a parameter of a request is read".to_owned())
            }
            (Object::Call(_), "exec") if arguments.positional.is_empty() && arguments.named.is_empty() => {
                Ok(PyValue::Object(Arc::clone(object)))
            }
            (Object::Call(_), "has_error") => {
                self.assume("an error of the other model is that of the request");
                Ok(PyValue::Bool(false))
            }
            (Object::Call(outputs), "output_tensors") => {
                let tensors = outputs.iter().map(|(_, id)| PyValue::object(Object::InputTensor(*id))).collect();
                Ok(self.new_list(tensors))
            }
            (Object::Request | Object::Call(_), "exec" | "async_exec") => {
                Err("another model is called in a way that is not followed".to_owned())
            }
            _ => Err("it is not known".to_owned()),
        }
    }

    /// Calls an object.
    pub fn call_object(&mut self, object: &Arc<Object>, arguments: &Arguments) -> Called {
        match &**object {
            Object::Tokenizer(tokenizer) => self.call_a_tokenizer(tokenizer, arguments),
            Object::Transforms(transforms) => {
                let [image] = arguments.bind(["img"])?;
                let (mut id, kind) = needed(image, "img")?.array().ok_or("its image is not known")?;
                let mut kind = kind;
                for transform in transforms.clone() {
                    (id, kind) = self.transformed(id, kind, &transform)?;
                }
                Ok(PyValue::Array(id, kind))
            }
            Object::ImageProcessor(file) => {
                let file = file.clone();
                self.call_image_processor(&file, arguments)
            }
            Object::FeatureExtractor(file) => {
                let file = file.clone();
                self.call_feature_extractor(&file, arguments)
            }
            _ => Err("an object that cannot be called".to_owned()),
        }
    }

    /// A JSON value as numbers.
    pub fn parsed(&mut self, id: ExprId, datatype: Datatype) -> Result<ExprId, String> {
        let (mut path, mut below) = (Vec::new(), id);
        while let (op @ (Op::Json(_) | Op::View), Some(operand)) =
            (self.graph.op(below).clone(), self.graph.operand(below))
        {
            match op {
                Op::Json(key) if !key.is_empty() => path.push(key),
                _ => {}
            }
            below = operand;
        }
        path.reverse();
        let (shape, want) = (self.graph.shape(below), self.graph.shape(id));
        let kind = if datatype == Datatype::Bytes { Kind::Raw } else { Kind::Number(datatype) };
        let parsed = self.graph.add(Op::Parse { path: path.join("."), datatype }, vec![below], kind, shape)?;
        self.graph.absorb(parsed, &[id]);
        self.graph.view(parsed, want)
    }

    /// The logits, vocabulary and blank of symbols that CTC keeps: each that differs from the one before and from the blank.
    pub fn as_ctc(&mut self, symbol: ExprId, condition: ExprId) -> Result<Option<(ExprId, Vec<Dim>, CtcForm)>, String> {
        let Some((best, vocabulary, blank)) = self.kept_by_ctc(symbol, condition) else { return Ok(None) };
        let mut shape = self.graph.shape(best);
        shape.pop();
        // The row of a batch may be around the best symbols.
        let (mut loops, mut below) = (Vec::new(), best);
        while let (Op::Row(_) | Op::View | Op::Cast, Some(operand)) =
            (self.graph.op(below).clone(), self.graph.operand(below))
        {
            if let Op::Row(on) = *self.graph.op(below) {
                loops.push(on);
            }
            below = operand;
        }
        let (Op::Argmax(-1), Some(mut logits)) = (self.graph.op(below).clone(), self.graph.operand(below)) else {
            return Ok(None);
        };
        for on in loops.into_iter().rev() {
            logits = self.graph.row(on, logits)?;
        }
        Ok(Some((logits, shape, CtcForm { vocabulary, blank, separator: String::new() })))
    }

    /// The best symbols of which CTC keeps some.
    fn kept_by_ctc(&self, symbol: ExprId, condition: ExprId) -> Option<(ExprId, Vec<String>, i64)> {
        let Op::Labels(vocabulary) = self.graph.op(symbol) else { return None };
        let row = self.graph.operand(symbol)?;
        let below = |mut id: ExprId| {
            while let (Op::Cast | Op::View, Some(operand)) = (self.graph.op(id), self.graph.operand(id)) {
                id = operand;
            }
            id
        };
        let row = below(row);
        let (mut blank, mut has_before) = (None, false);
        for part in self.conjuncts(condition) {
            let inputs = self.graph.get(part).inputs.as_slice();
            let (Op::Compare(CompareOp::Unequal), [left, right]) = (self.graph.op(part), inputs) else { return None };
            let other = match (
                below(*left) == row || self.is_same_row(below(*left), row),
                below(*right) == row || self.is_same_row(below(*right), row),
            ) {
                (true, false) => *right,
                (false, true) => *left,
                _ => return None,
            };
            match (self.graph.number(other), self.graph.op(other)) {
                (Some(number), _) if blank.is_none() => blank = Some(number as i64),
                (None, Op::Carried(_)) if !has_before => {
                    let (last, _) = self.carried_value(other)?.array()?;
                    has_before = self.is_same_row(below(last), row);
                }
                _ => return None,
            }
        }
        let best = self.graph.operand(row).filter(|_| matches!(self.graph.op(row), Op::Row(_)))?;
        match (blank, has_before) {
            (Some(blank), true) => Some((best, vocabulary.to_vec(), blank)),
            _ => None,
        }
    }

    /// Returns true if two expressions are the same row of the same tensor.
    fn is_same_row(&self, left: ExprId, right: ExprId) -> bool {
        left == right
            || matches!((self.graph.op(left), self.graph.op(right)), (Op::Row(one), Op::Row(two)) if one == two)
                && self.graph.operand(left) == self.graph.operand(right)
    }

    /// The last value of a variable that a loop changes. While the loop is gone through, it is that of the variable itself.
    fn carried_value(&self, marker: ExprId) -> Option<PyValue> {
        self.carried.get(&marker).cloned()
    }
}
