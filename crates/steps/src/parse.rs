//! `parse`: a member of a JSON text to a tensor.

use base::error::Error;
use base::tensor::{Datatype, Shape, Tensor, strings};
use wire::json::{Document, JsonValue, ValueKind};

use crate::fields::{Field, FieldDefault, FieldKind, StepFields};
use crate::kind::{Step, StepKind, StepPort};
use crate::limits::{PARSED_TEXTS_MAX, RANK_MAX, TENSOR_SIZE_MAX};
use crate::tensors::strings as strings_of;

/// The kind.
pub const KIND: StepKind = StepKind {
    name: "parse",
    about: "Reads a member of a JSON text as a tensor, as `np.array(json.loads(text)[…], dtype)`. One text gives one \
            value, several texts give values of one shape.",
    inputs: &[StepPort { name: "json", about: "BYTES [..]: JSON texts.", is_optional: false }],
    outputs: &[StepPort {
        name: "value",
        about: "[.., shape of the value]: a number has no dimensions of its own, a list has one, and so on.",
        is_optional: false,
    }],
    fields: &[
        Field {
            name: "path",
            kind: FieldKind::Text,
            default: FieldDefault::Json("\"\""),
            about: "The way to the value: names of members and indices of lists, separated by dots \
                    (`instances.0.age`). The whole text without it.",
        },
        Field {
            name: "datatype",
            kind: FieldKind::Choice(&["FP32", "FP64", "INT64", "INT32", "BOOL", "BYTES"]),
            default: FieldDefault::Required,
            about: "The datatype of the output. Integers must be written as such; BYTES takes strings, BOOL `true` and \
                    `false`.",
        },
        Field {
            name: "default",
            kind: FieldKind::Json,
            default: FieldDefault::Unset,
            about: "The value of a text without the member, or with `null`. Without it, such a text is refused.",
        },
    ],
    is_short: true,
    build: |fields| Ok(Box::new(Parse::build(fields)?)),
};

struct Parse {
    path: String,
    datatype: Datatype,
    default: Option<Value>,
}

/// A value of JSON as the contents of a tensor.
#[derive(Clone, Debug, PartialEq)]
struct Value {
    shape: Vec<usize>,
    contents: Vec<u8>,
}

impl Parse {
    fn build(fields: &StepFields<'_>) -> Result<Self, Error> {
        let datatype = Datatype::from_name(&fields.text("datatype")).unwrap_or(Datatype::Fp32);
        let default = match fields.json("default") {
            Some(value) => {
                let text = crate::template::literal(&value);
                let document = Document::parse(text.as_bytes(), &[])
                    .map_err(|error| fields.error("default", &error.to_string()))?;
                Some(Value::read(document.root(), datatype).map_err(|why| fields.error("default", &why))?)
            }
            None => None,
        };
        Ok(Self { path: fields.text("path"), datatype, default })
    }

    fn value(&self, text: &[u8]) -> Result<Value, String> {
        let document = Document::parse(text, &[]).map_err(|error| error.to_string())?;
        let mut value = Some(document.root());
        for name in self.path.split('.').filter(|_| !self.path.is_empty()) {
            value = value.and_then(|value| match value.kind() {
                ValueKind::Array => value.elements().nth(name.parse().ok()?),
                _ => value.get(name),
            });
        }
        match (value.filter(|value| !matches!(value.kind(), ValueKind::Null)), &self.default) {
            (Some(value), _) => Value::read(value, self.datatype).map_err(|why| format!("\"{}\" {why}", self.path)),
            (None, Some(default)) => Ok(default.clone()),
            (None, None) => Err(format!("there is no value at \"{}\"", self.path)),
        }
    }
}

impl Step for Parse {
    fn run(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let Some(Some(input)) = inputs.first() else { return Ok(Vec::new()) };
        let texts = strings_of("json", input)?;
        let shape = &input.shape[..];
        if base::tensor::element_count(shape) != Ok(texts.len()) || texts.len() > PARSED_TEXTS_MAX {
            let count = texts.len();
            return Err(Error::invalid(format!(
                "'json' must have 1 to {PARSED_TEXTS_MAX} texts, as its shape {shape:?} says, but it has {count}"
            )));
        }
        let mut all: Option<Value> = None;
        for (place, text) in texts.iter().enumerate() {
            let wrong = |why: String| Error::invalid(format!("'json', element {place}: {why}"));
            let value = self.value(text).map_err(wrong)?;
            let Some(all) = &mut all else {
                all = Some(value);
                continue;
            };
            if value.shape != all.shape {
                return Err(wrong(format!(
                    "the value has the shape {:?}, but that of element 0 is {:?}",
                    value.shape, all.shape
                )));
            }
            if all.contents.len().saturating_add(value.contents.len()) > TENSOR_SIZE_MAX {
                return Err(wrong(format!("'value' would be larger than {TENSOR_SIZE_MAX} bytes")));
            }
            all.contents.extend_from_slice(&value.contents);
        }
        let value = all.ok_or_else(|| Error::invalid("'json' must have a text"))?;
        let sizes = value.shape.iter().map(|size| i64::try_from(*size).unwrap_or(i64::MAX));
        let shape: Shape = shape.iter().copied().chain(sizes).collect();
        Ok(vec![Some(Tensor { datatype: self.datatype, shape, contents: value.contents.into() })])
    }
}

impl Value {
    /// Reads a scalar or nested lists of one shape.
    fn read(value: JsonValue<'_, '_>, datatype: Datatype) -> Result<Self, String> {
        let (mut shape, mut first) = (Vec::new(), Some(value));
        while let Some(value) = first.filter(|value| matches!(value.kind(), ValueKind::Array)) {
            shape.push(value.elements().count());
            first = value.elements().next();
            if shape.len() > RANK_MAX {
                return Err(format!("has more than {RANK_MAX} dimensions"));
            }
        }
        let mut contents = Vec::new();
        append(value, datatype, &shape, &mut contents)?;
        Ok(Self { shape, contents })
    }
}

fn append(value: JsonValue<'_, '_>, datatype: Datatype, shape: &[usize], contents: &mut Vec<u8>) -> Result<(), String> {
    let is_list = matches!(value.kind(), ValueKind::Array);
    match shape.split_first() {
        Some((size, rest)) if is_list && value.elements().count() == *size => {
            value.elements().try_for_each(|element| append(element, datatype, rest, contents))
        }
        None if !is_list => append_scalar(value, datatype, contents),
        _ => Err("has lists of different lengths or depths".to_owned()),
    }
}

fn append_scalar(value: JsonValue<'_, '_>, datatype: Datatype, contents: &mut Vec<u8>) -> Result<(), String> {
    let wrong = |expected: &str| format!("must hold {expected}");
    match datatype {
        Datatype::Bool => contents.push(u8::from(value.as_bool().ok_or_else(|| wrong("true or false"))?)),
        Datatype::Bytes => strings::encode(value.as_str().ok_or_else(|| wrong("strings"))?.as_bytes(), contents),
        Datatype::Fp64 => contents.extend(value.as_f64().ok_or_else(|| wrong("numbers"))?.to_le_bytes()),
        Datatype::Int32 => {
            let value = value.as_i64().and_then(|value| i32::try_from(value).ok());
            contents.extend(value.ok_or_else(|| wrong("integers of 32 bits"))?.to_le_bytes());
        }
        Datatype::Int64 => contents.extend(value.as_i64().ok_or_else(|| wrong("integers of 64 bits"))?.to_le_bytes()),
        _ => {
            #[expect(clippy::cast_possible_truncation, reason = "as numpy's float32")]
            let value = value.as_f64().ok_or_else(|| wrong("numbers"))? as f32;
            contents.extend(value.to_le_bytes());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::{of_floats, of_strings};
    use crate::trial::{built, fault, run};

    #[test]
    fn a_default_stands_in_for_what_is_missing() {
        let input = of_strings(&[3], ["{\"a\": {\"b\": [1, 2]}}", "{\"a\": null}", "[]"]);
        let members = r#""path": "a.b", "datatype": "INT32", "default": [3, 4]"#;
        let got = run("parse", &[("json", &input)], &["value"], members).unwrap();
        assert_eq!((&got[0].shape[..], got[0].datatype), (&[3, 2][..], Datatype::Int32));
        assert_eq!(crate::tensors::integers("", &got[0]).unwrap()[..], [1, 2, 3, 4, 3, 4]);
    }

    #[test]
    fn faults_are_named() {
        let check = |texts: &[&str], datatype: &str, want: &str| {
            let input = of_strings(&[texts.len()], texts);
            let members = format!("\"path\": \"a\", \"datatype\": \"{datatype}\"");
            assert_eq!(fault("parse", &[("json", &input)], &["value"], &members), want);
        };
        check(&["{"], "FP32", "'json', element 0: Missing a name for object member. at 1");
        check(&["{}"], "FP32", "'json', element 0: there is no value at \"a\"");
        check(&["{\"a\": \"x\"}"], "FP32", "'json', element 0: \"a\" must hold numbers");
        check(&["{\"a\": 1.0}"], "INT64", "'json', element 0: \"a\" must hold integers of 64 bits");
        check(&["{\"a\": 3000000000}"], "INT32", "'json', element 0: \"a\" must hold integers of 32 bits");
        check(&["{\"a\": 1}"], "BOOL", "'json', element 0: \"a\" must hold true or false");
        check(&["{\"a\": 1}"], "BYTES", "'json', element 0: \"a\" must hold strings");
        let ragged = "'json', element 0: \"a\" has lists of different lengths or depths";
        check(&["{\"a\": [[1], [1, 2]]}"], "FP32", ragged);
        check(&["{\"a\": [1, [1]]}"], "FP32", ragged);
        let shapes = "'json', element 1: the value has the shape [2], but that of element 0 is [1]";
        check(&["{\"a\": [1]}", "{\"a\": [1, 2]}"], "FP32", shapes);
        check(&[], "FP32", "'json' must have a text");
        let count = "'json' must have 1 to 65536 texts, as its shape [2] says, but it has 1";
        let input = of_strings(&[2], ["1"]);
        assert_eq!(fault("parse", &[("json", &input)], &["value"], "\"datatype\": \"FP32\""), count);
        let bytes = "'json' must hold BYTES, but it is FP32";
        assert_eq!(
            fault("parse", &[("json", &of_floats(&[1], vec![0.0]))], &["value"], "\"datatype\": \"FP32\""),
            bytes
        );
        let default = built("parse", &["json"], &["value"], r#""datatype": "FP32", "default": "x""#).err().unwrap();
        assert_eq!(default, "step 1: line 1: \"default\": must hold numbers");
    }
}
