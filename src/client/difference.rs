//! The first and the greatest difference of two answers to the same request. Pure.

use crate::wire::json::{Document, JsonValue, ValueKind};

/// A difference of two answers.
#[derive(Clone, Debug, PartialEq)]
pub struct AnswerDifference {
    /// The output, and the element in it; empty for a difference of the whole answer.
    pub place: String,
    /// The value of the model.py.
    pub python: String,
    /// The value of the steps.
    pub steps: String,
    /// By how much two floats differ; infinite for values of other kinds.
    pub size: f64,
}

/// All differences of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Differences {
    /// The first one beyond the tolerance.
    pub first: Option<AnswerDifference>,
    /// The greatest difference of floats, within the tolerance or beyond.
    pub greatest: Option<AnswerDifference>,
}

/// Compares the bodies of two answers to `/infer`, in JSON.
///
/// # Errors
/// A line for a person if one is not such a body.
pub fn differences(python: &[u8], steps: &[u8], tolerance: f64) -> Result<Differences, String> {
    let read = |body| Document::parse(body, &[]).map_err(|error| format!("an answer is no JSON: {error}"));
    let (python, steps) = (read(python)?, read(steps)?);
    let mut found = Differences::default();
    let outputs = |document: &Document<'_>| -> Vec<String> {
        let outputs = document.root().get("outputs");
        let outputs = outputs.iter().flat_map(|outputs| outputs.elements());
        outputs.filter_map(|output| output.get("name")?.as_str().map(str::to_owned)).collect()
    };
    let (python_names, steps_names) = (outputs(&python), outputs(&steps));
    for name in &python_names {
        let of = |document: &Document<'_>, member: &str| {
            text_of(output(document, name).and_then(|output| output.get(member)))
        };
        for member in ["datatype", "shape"] {
            found.note(tolerance, || name.clone() + "'s " + member, &of(&python, member), &of(&steps, member));
        }
        let values = |document: &Document<'_>| -> Vec<String> {
            let data = output(document, name).and_then(|output| output.get("data"));
            let mut flat = Vec::new();
            data.iter().for_each(|data| flatten(*data, &mut flat));
            flat
        };
        let (left, right) = (values(&python), values(&steps));
        for (index, (left, right)) in left.iter().zip(&right).enumerate() {
            found.note(tolerance, || format!("{name}[{index}]"), left, right);
        }
    }
    if let Some(name) = steps_names.iter().find(|name| !python_names.contains(name)) {
        found.note(tolerance, || name.clone(), "left out", "an output");
    }
    Ok(found)
}

impl Differences {
    /// Adds those of another answer.
    pub fn add(&mut self, other: Self) {
        self.first = self.first.take().or(other.first);
        let size =
            |difference: &Option<AnswerDifference>| difference.as_ref().map_or(0.0, |difference| difference.size);
        if size(&other.greatest) > size(&self.greatest) {
            self.greatest = other.greatest;
        }
    }

    fn note(&mut self, tolerance: f64, place: impl Fn() -> String, python: &str, steps: &str) {
        if python == steps {
            return;
        }
        let numbers = (python.parse::<f64>(), steps.parse::<f64>());
        let (size, is_beyond) = match numbers {
            (Ok(left), Ok(right)) => {
                let size = (left - right).abs();
                (size, size > tolerance * left.abs().max(right.abs()).max(1.0))
            }
            _ => (f64::INFINITY, true),
        };
        let new = || AnswerDifference { place: place(), python: python.to_owned(), steps: steps.to_owned(), size };
        if is_beyond && self.first.is_none() {
            self.first = Some(new());
        }
        if self.greatest.as_ref().is_none_or(|greatest| size > greatest.size) {
            self.greatest = Some(new());
        }
    }
}

fn output<'d, 'a>(document: &'d Document<'a>, name: &str) -> Option<JsonValue<'d, 'a>> {
    document
        .root()
        .get("outputs")?
        .elements()
        .find(|output| output.get("name").and_then(JsonValue::as_str) == Some(name))
}

/// A value as text; an absent one as `left out`.
fn text_of(value: Option<JsonValue<'_, '_>>) -> String {
    let Some(value) = value else { return "left out".to_owned() };
    let mut flat = Vec::new();
    flatten(value, &mut flat);
    match value.kind() {
        ValueKind::Array { .. } => format!("[{}]", flat.join(", ")),
        _ => flat.concat(),
    }
}

/// The scalars of a value, in order.
fn flatten(value: JsonValue<'_, '_>, out: &mut Vec<String>) {
    match (value.as_str(), value.as_bool(), value.as_i64(), value.as_f64()) {
        (Some(text), ..) => out.push(text.to_owned()),
        (_, Some(flag), ..) => out.push(flag.to_string()),
        (_, _, Some(integer), _) => out.push(integer.to_string()),
        (.., Some(float)) => out.push(float.to_string()),
        _ => value.elements().for_each(|element| flatten(element, out)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(datatype: &str, shape: &str, data: &str) -> String {
        format!(r#"{{"outputs":[{{"name":"y","datatype":"{datatype}","shape":{shape},"data":{data}}}]}}"#)
    }

    #[test]
    fn the_first_and_the_greatest_difference_are_found() {
        let check = |left: &str, right: &str, first: Option<&str>, greatest: Option<&str>| {
            let got = differences(left.as_bytes(), right.as_bytes(), 1e-3).unwrap();
            let text = |difference: Option<AnswerDifference>| {
                difference.map(|got| format!("{}: {} {}", got.place, got.python, got.steps))
            };
            assert_eq!(
                (text(got.first).as_deref(), text(got.greatest).as_deref()),
                (first, greatest),
                "{left} {right}"
            );
        };
        let floats = |data: &str| answer("FP32", "[3]", data);
        check(&floats("[1,2,3]"), &floats("[1,2,3]"), None, None);
        check(&floats("[1,2,3]"), &floats("[1,2.0001,3]"), None, Some("y[1]: 2 2.0001"));
        check(&floats("[1,2,3]"), &floats("[1.5,2,9]"), Some("y[0]: 1 1.5"), Some("y[2]: 3 9"));
        check(&floats("[1e9,0,0]"), &floats("[1000000100,0,0]"), None, Some("y[0]: 1000000000 1000000100"));
        let texts = |data: &str| answer("BYTES", "[1]", data);
        check(&texts("[\"a\"]"), &texts("[\"b\"]"), Some("y[0]: a b"), Some("y[0]: a b"));
        let shape = "y's shape: [3] [1, 3]";
        check(&floats("[1,2,3]"), &answer("FP32", "[1,3]", "[1,2,3]"), Some(shape), Some(shape));
        let nothing = r#"{"outputs":[]}"#;
        check(&floats("[]"), nothing, Some("y's datatype: FP32 left out"), Some("y's datatype: FP32 left out"));
        check(nothing, &floats("[]"), Some("y: left out an output"), Some("y: left out an output"));
        assert!(differences(b"x", b"{}", 0.0).unwrap_err().starts_with("an answer is no JSON"));
    }
}
