//! JSON: texts that requests bring, files, and texts that `json.dumps` writes.

use std::sync::Arc;

use crate::suggest::library::quoted;
use crate::suggest::machine::{Machine, TOO_NESTED};
use crate::suggest::op::{ExprId, JsonTemplate, Kind, Op};
use crate::suggest::value::{Arguments, ArrayKind, Called, Each, MODEL_CONFIG, NOT_ASCII, PyValue, flag_or, needed};
use wire::json::placed;
use wire::placed::PlacedValue;

impl Machine<'_> {
    pub fn loads(&mut self, value: &PyValue) -> Called {
        match value {
            PyValue::Text(text) if text == MODEL_CONFIG => Ok(self.model_config()),
            PyValue::Text(text) => self.json_value(&text.clone()),
            PyValue::Array(id, _) => {
                let mut below = *id;
                while let (Op::View | Op::Decode | Op::Row(_), Some(operand)) =
                    (self.graph.op(below), self.graph.operand(below))
                {
                    below = operand;
                }
                if !matches!(self.graph.op(below), Op::Input(_)) || self.graph.kind(below) != Kind::Raw {
                    return Err("a text that is no input is read as JSON".to_owned());
                }
                Ok(PyValue::Array(self.each(Op::Json(String::new()), *id, Kind::Json)?, ArrayKind::Python))
            }
            _ => Err("its text is not known".to_owned()),
        }
    }

    /// A JSON text as a value of Python.
    pub fn json_value(&mut self, text: &str) -> Called {
        let document = placed::read(text).map_err(|error| format!("a JSON text is malformed: {}", error.text))?;
        Ok(self.of_json(&document.value))
    }

    fn of_json(&mut self, value: &PlacedValue) -> PyValue {
        match value {
            PlacedValue::Bool(flag) => PyValue::Bool(*flag),
            PlacedValue::Null => PyValue::Nothing,
            PlacedValue::Number(text) => match text.parse::<i64>() {
                Ok(number) => PyValue::Int(number),
                Err(_) => text.parse().map_or(PyValue::Nothing, PyValue::Float),
            },
            PlacedValue::String(text) => PyValue::text(text),
            PlacedValue::List(list) => {
                let items = list.iter().map(|element| self.of_json(&element.value)).collect();
                self.new_list(items)
            }
            PlacedValue::Table(members) => {
                let entries =
                    members.iter().map(|member| (PyValue::text(&member.name), self.of_json(&member.value.value)));
                let entries = entries.collect();
                self.new_dict(entries)
            }
        }
    }

    /// `json.dumps`.
    pub fn dumps(&mut self, arguments: &Arguments) -> Called {
        let [object, ascii, indent, separators] = arguments.bind(["obj", "ensure_ascii", "indent", "separators"])?;
        if [indent, separators].iter().flatten().any(|value| *value != PyValue::Nothing) {
            return Err("a form of JSON with other spaces has no step".to_owned());
        }
        let mut tensors = Vec::new();
        let template = self.template(&needed(object, "obj")?, &mut tensors)?;
        if tensors.is_empty() {
            return Err("a text that is the same for all requests has no step".to_owned());
        }
        let template = match flag_or(&ascii, true)? {
            true => template,
            false => JsonTemplate::Table(vec![(NOT_ASCII.to_owned(), template)]),
        };
        let text = self.graph.add(Op::Dumps(Arc::new(template)), tensors, Kind::Text, Vec::new())?;
        Ok(PyValue::Array(text, ArrayKind::Python))
    }

    fn template(&mut self, value: &PyValue, tensors: &mut Vec<ExprId>) -> Result<JsonTemplate, String> {
        if !self.may_work() {
            return Err("the file has too much to go through".to_owned());
        }
        let template = if self.descend() { self.template_of(value, tensors) } else { Err(TOO_NESTED.to_owned()) };
        self.ascend();
        template
    }

    fn template_of(&mut self, value: &PyValue, tensors: &mut Vec<ExprId>) -> Result<JsonTemplate, String> {
        let mut tensor = |id: ExprId| {
            tensors.iter().position(|known| *known == id).unwrap_or_else(|| {
                tensors.push(id);
                tensors.len() - 1
            })
        };
        Ok(match value {
            PyValue::Array(id, _) => match (self.graph.op(*id).clone(), self.graph.operand(*id)) {
                (Op::Dumps(form), Some(below)) => match (&*form, self.graph.kind(*id)) {
                    (JsonTemplate::Tensor(0, places), Kind::Json) => JsonTemplate::Tensor(tensor(below), *places),
                    _ => return Err("a JSON text inside another".to_owned()),
                },
                _ if self.graph.kind(*id) == Kind::Json => {
                    return Err("a JSON text is written as it was read".to_owned());
                }
                _ => JsonTemplate::Tensor(tensor(*id), None),
            },
            PyValue::Text(text) => JsonTemplate::Literal(quoted(text)),
            PyValue::Nothing => JsonTemplate::Literal("null".to_owned()),
            PyValue::Bool(flag) => JsonTemplate::Literal(flag.to_string()),
            PyValue::Int(number) => JsonTemplate::Literal(number.to_string()),
            PyValue::Float(number) if number.is_finite() => JsonTemplate::Literal(format!("{number:?}")),
            PyValue::Dict(dict) => {
                if let Some(reason) = self.reason_of(&[value]) {
                    return Err(self.reasons.get(reason).map(|reason| reason.text.clone()).unwrap_or_default());
                }
                let mut members = Vec::new();
                for (key, value) in self.dict(*dict).to_vec() {
                    let PyValue::Text(key) = key else { return Err("a key of a JSON object is no text".to_owned()) };
                    members.push((key, self.template(&value, tensors)?));
                }
                JsonTemplate::Table(members)
            }
            PyValue::List(list) if self.list(*list).each.is_some() => {
                let each = self.list(*list).each.ok_or("a list is not known")?;
                self.each_template(&each, tensors)?
            }
            PyValue::List(_) | PyValue::Tuple(_) => {
                let items = self.items(value)?;
                JsonTemplate::List(items.iter().map(|item| self.template(item, tensors)).collect::<Result<_, _>>()?)
            }
            PyValue::Unknown(reason) => {
                return Err(self.reasons.get(*reason).map(|reason| reason.text.clone()).unwrap_or_default());
            }
            _ => return Err("a value of a JSON text is not known".to_owned()),
        })
    }

    /// A list with an element for each row of a loop.
    fn each_template(&mut self, each: &Each, tensors: &mut Vec<ExprId>) -> Result<JsonTemplate, String> {
        if let (PyValue::Array(id, _), None) = (&each.element, each.condition) {
            let whole = self.graph.lifted(*id, each.on)?;
            return self.template(&PyValue::Array(whole, ArrayKind::Numpy), tensors);
        }
        let mut inside = Vec::new();
        let element = self.template(&each.element, &mut inside)?;
        let mut places = Vec::new();
        for id in inside {
            let mut whole = self.graph.lifted(id, each.on)?;
            if let Some(condition) = each.condition {
                let mask = self.graph.lifted(condition, each.on)?;
                whole = self.rows(whole, mask, true)?;
            }
            tensors.push(whole);
            places.push(tensors.len() - 1);
        }
        let over = places.first().copied().ok_or("a list of constants for each row")?;
        Ok(JsonTemplate::Each(over, Box::new(placed_at(element, &places))))
    }
}

/// A template whose tensors have other places.
fn placed_at(template: JsonTemplate, places: &[usize]) -> JsonTemplate {
    let at = |place: usize| places.get(place).copied().unwrap_or(place);
    match template {
        JsonTemplate::Tensor(place, round) => JsonTemplate::Tensor(at(place), round),
        JsonTemplate::List(items) => {
            JsonTemplate::List(items.into_iter().map(|item| placed_at(item, places)).collect())
        }
        JsonTemplate::Table(members) => {
            JsonTemplate::Table(members.into_iter().map(|(name, value)| (name, placed_at(value, places))).collect())
        }
        JsonTemplate::Each(place, inner) => JsonTemplate::Each(at(place), Box::new(placed_at(*inner, places))),
        literal => literal,
    }
}
