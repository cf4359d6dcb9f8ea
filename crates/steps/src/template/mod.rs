//! `template`: tensors to a JSON text.

mod node;
mod view;

use base::error::Error;
use base::tensor::{Shape, Tensor};
use wire::placed::PlacedValue;

use crate::fields::{Field, FieldDefault, FieldKind, StepFields};
use crate::kind::{Step, StepKind, StepPort};
use crate::texts::TextWriter;

use self::node::TemplateNode;
use self::view::{View, check_room};

/// The kind.
pub const KIND: StepKind = StepKind {
    name: "template",
    about: "Writes JSON as Python's `json.dumps` does. Everything in `template` is written as it is, but for two forms \
            of objects. `{\"tensor\": \"NAME\"}` becomes the contents of a tensor, as `tolist()`: `\"index\": [0]` \
            takes a part of it, `\"round\": 4` rounds its floats. `{\"each\": …, \"over\": \"NAME\"}` becomes a list \
            with an element for each one along the first dimension of a tensor, in which the tensors are replaced by \
            their parts at that place, unless they have `\"whole\": true`; `\"count\": \"NAME\"` names a tensor with \
            the length of the list.",
    inputs: &[StepPort {
        name: "tensors[]",
        about: "A list of tensors, by whose names the template refers to them.",
        is_optional: false,
    }],
    outputs: &[StepPort { name: "json", about: "BYTES [1], or [rows] with `per_row`.", is_optional: false }],
    fields: &[
        Field {
            name: "template",
            kind: FieldKind::Json,
            default: FieldDefault::Required,
            about: "The template, any JSON value.",
        },
        Field {
            name: "per_row",
            kind: FieldKind::Bool,
            default: FieldDefault::Json("false"),
            about: "Writes a text for each place along the first dimension of the tensors, with their parts at that \
                    place.",
        },
        Field {
            name: "ascii",
            kind: FieldKind::Bool,
            default: FieldDefault::Json("true"),
            about: "Writes other characters as `\\u` and four digits, as `json.dumps` does unless `ensure_ascii` is false.",
        },
    ],
    is_short: true,
    build: |fields| Ok(Box::new(Template::build(fields)?)),
};

/// Writes a JSON value that has no form of a template.
pub fn literal(value: &PlacedValue) -> String {
    let mut out = String::new();
    match value {
        PlacedValue::List(list) => {
            let elements: Vec<_> = list.iter().map(|element| literal(&element.value)).collect();
            out.push_str(&format!("[{}]", elements.join(", ")));
        }
        scalar => out.push_str(&node::scalar_text(scalar, false)),
    }
    out
}

struct Template {
    node: TemplateNode,
    is_per_row: bool,
    is_ascii: bool,
    names: Vec<String>,
}

impl Template {
    fn build(fields: &StepFields<'_>) -> Result<Self, Error> {
        let names: Vec<_> = (0..).map_while(|input| fields.input_name(input).map(str::to_owned)).collect();
        let is_ascii = fields.flag("ascii");
        let template = fields.json("template").unwrap_or(PlacedValue::Null);
        let node = TemplateNode::read(&template, &names, is_ascii).map_err(|why| fields.error("template", &why))?;
        Ok(Self { node, is_per_row: fields.flag("per_row"), is_ascii, names })
    }
}

impl Step for Template {
    fn run(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let named = self.names.iter().zip(inputs.iter().flatten());
        let views = named.map(|(name, tensor)| View::of(name, tensor)).collect::<Result<Vec<_>, _>>()?;
        let writing = Writing { views: &views, is_ascii: self.is_ascii };
        let mut writer = TextWriter::default();
        let mut count = 1;
        if self.is_per_row {
            count = self.rows(&views)?;
            check_room("", count)?;
            for row in 0..count {
                writer.push("json", writing.written(&self.node, &[row])?.as_bytes())?;
            }
        } else {
            writer.push("json", writing.written(&self.node, &[])?.as_bytes())?;
        }
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        Ok(vec![Some(writer.into_tensor(Shape::from_slice(&[count])))])
    }
}

impl Template {
    /// The first dimension of the tensors, which is the same for all that are not whole.
    fn rows(&self, views: &[View<'_>]) -> Result<usize, Error> {
        let mut rows = None;
        for (view, name) in views
            .iter()
            .zip(&self.names)
            .enumerate()
            .filter(|(place, _)| self.node.divides(*place))
            .map(|(_, pair)| pair)
        {
            let own =
                view.length().ok_or_else(|| Error::invalid(format!("'{name}' must have rows for \"per_row\"")))?;
            if *rows.get_or_insert(own) != own {
                let known = rows.unwrap_or(0);
                return Err(Error::invalid(format!(
                    "'{name}' has {own} rows, but another tensor of the template has {known}"
                )));
            }
        }
        Ok(rows.unwrap_or(1))
    }
}

/// The tensors of a run.
struct Writing<'a> {
    views: &'a [View<'a>],
    is_ascii: bool,
}

impl Writing<'_> {
    fn written(&self, node: &TemplateNode, path: &[usize]) -> Result<String, Error> {
        let mut out = String::new();
        self.write(node, path, &mut out)?;
        Ok(out)
    }

    fn write(&self, node: &TemplateNode, path: &[usize], out: &mut String) -> Result<(), Error> {
        // Parts can be written again and again: a client decides how often.
        check_room(out, 1)?;
        match node {
            TemplateNode::Literal(text) => out.push_str(text),
            TemplateNode::List(nodes) => {
                out.push('[');
                for (place, node) in nodes.iter().enumerate() {
                    out.push_str(if place == 0 { "" } else { ", " });
                    self.write(node, path, out)?;
                }
                out.push(']');
            }
            TemplateNode::Object(members) => {
                out.push('{');
                for (place, (name, node)) in members.iter().enumerate() {
                    out.push_str(if place == 0 { "" } else { ", " });
                    out.push_str(name);
                    out.push_str(": ");
                    self.write(node, path, out)?;
                }
                out.push('}');
            }
            TemplateNode::Tensor { tensor, index, is_whole, digits } => {
                let Some(view) = self.views.get(*tensor) else { return Ok(()) };
                let path = if *is_whole { &[] } else { path };
                view.part(path.iter().chain(index).copied())?.write(*digits, self.is_ascii, out)?;
            }
            TemplateNode::Each { node, over, count } => {
                let length = self.length(*over, *count, path)?;
                check_room(out, length)?;
                let mut path = path.to_vec();
                path.push(0);
                out.push('[');
                for place in 0..length {
                    out.push_str(if place == 0 { "" } else { ", " });
                    if let Some(last) = path.last_mut() {
                        *last = place;
                    }
                    self.write(node, &path, out)?;
                }
                out.push(']');
            }
        }
        Ok(())
    }

    /// The length of a list over a tensor.
    fn length(&self, over: usize, count: Option<usize>, path: &[usize]) -> Result<usize, Error> {
        let Some(view) = self.views.get(over) else { return Ok(0) };
        let part = view.part(path.iter().copied())?;
        let length =
            part.length().ok_or_else(|| Error::invalid(format!("'{}' has no dimension for \"each\"", view.name)))?;
        match count.and_then(|count| self.views.get(count)) {
            Some(count) => Ok(length.min(count.part(path.iter().copied())?.count()?)),
            None => Ok(length),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::list::StepList;
    use crate::tensors::{of_floats, of_strings};

    fn run(members: &str, tensors: &[(&str, Tensor)]) -> Result<Tensor, String> {
        let names: Vec<_> = tensors.iter().map(|(name, _)| format!("\"{name}\"")).collect();
        let text = format!(
            "{{\"steps\": [{{\"step\": \"template\", \"inputs\": {{\"tensors\": [{}]}}, \"output\": \"y\", \
             {members}}}]}}",
            names.join(", ")
        );
        let list = StepList::read(&text, &|_, _| Err(String::new())).map_err(|error| error.text().to_owned())?;
        let input = |name: &str| tensors.iter().find(|(known, _)| *known == name).map(|(_, tensor)| tensor.clone());
        let got = list.run(input, &["y"]).map_err(|error| error.text().replace("step 1 (template): ", ""))?;
        Ok(got[0].clone().unwrap())
    }

    #[test]
    fn faults_are_named() {
        let check = |template: &str, want: &str| {
            let error =
                run(&format!("\"template\": {template}"), &[("x", of_floats(&[2], vec![1.0, 2.0]))]).unwrap_err();
            assert_eq!(error, want, "{template}");
        };
        let fault = |why: &str| format!("step 1: line 1: \"template\": {why}");
        check(r#"{"tensor": "y"}"#, &fault("there is no tensor \"y\"; known are \"x\""));
        check(r#"{"tensor": "x", "roud": 1}"#, &fault("unknown member \"roud\" beside \"tensor\""));
        check(r#"{"tensor": "x", "round": 16}"#, &fault("\"round\" must be an integer from 0 to 15"));
        check(r#"{"tensor": "x", "index": [-1]}"#, &fault("\"index\" must be a list of integers from 0"));
        check(r#"{"tensor": "x", "whole": 1}"#, &fault("\"whole\" must be true or false"));
        check(r#"[{"each": 1}]"#, &fault("\"each\" needs \"over\", the name of a tensor"));
        check(r#"{"each": 1, "over": "x", "of": "x"}"#, &fault("unknown member \"of\" beside \"each\""));
        check(r#"{"tensor": "x", "index": [2]}"#, "'x' has no element [2]: its shape is [2]");
        check(r#"{"tensor": "x", "index": [0, 0]}"#, "'x' has no element [0, 0]: its shape is [2]");
        check(r#"{"each": {"each": 1, "over": "x"}, "over": "x"}"#, "'x' has no dimension for \"each\"");
        check(r#"{"each": 1, "over": "x", "count": "x"}"#, "'x' must be one integer from 0, as \"count\" needs");
        let rows = run(
            r#""per_row": true, "template": [{"tensor": "x"}, {"tensor": "y"}]"#,
            &[("x", of_floats(&[2], vec![1.0, 2.0])), ("y", of_floats(&[1], vec![1.0]))],
        );
        assert_eq!(rows.unwrap_err(), "'y' has 1 rows, but another tensor of the template has 2");
        let scalar = run(r#""per_row": true, "template": {"tensor": "x"}"#, &[("x", of_floats(&[], vec![1.0]))]);
        assert_eq!(scalar.unwrap_err(), "'x' must have rows for \"per_row\"");
        let utf8 = run(r#""template": {"tensor": "x"}"#, &[("x", of_strings(&[1], [b"\xff"]))]);
        assert_eq!(utf8.unwrap_err(), "'x' must be UTF-8, but element 0 is not");
        let size = run(r#""template": {"tensor": "x"}"#, &[("x", of_floats(&[3], vec![1.0]))]);
        assert_eq!(size.unwrap_err(), "'x' has contents of another size than its shape [3]");
    }

    #[test]
    fn empty_lists_cannot_multiply_the_text() {
        let lists = run(r#""template": {"tensor": "x"}"#, &[("x", of_floats(&[1 << 40, 0], vec![]))]);
        assert_eq!(lists.unwrap_err(), "'json' would be larger than 67108864 bytes");
        let each = run(r#""template": {"each": 1, "over": "x"}"#, &[("x", of_floats(&[1 << 40, 0], vec![]))]);
        assert_eq!(each.unwrap_err(), "'json' would be larger than 67108864 bytes");
        let rows = run(r#""per_row": true, "template": {"tensor": "x"}"#, &[("x", of_floats(&[1 << 40, 0], vec![]))]);
        assert_eq!(rows.unwrap_err(), "'json' would be larger than 67108864 bytes");
    }
}
