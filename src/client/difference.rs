//! The first and the greatest difference of two answers to the same request. Pure.

use half::{bf16, f16};

use crate::tensor::Datatype;
use crate::tensor::strings::Strings;
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
    /// The difference of two floats that are equal, relative to the greater one, and absolute below 1.
    tolerance: f64,
    /// The first one beyond the tolerance.
    pub first: Option<AnswerDifference>,
    /// The greatest difference of floats, within the tolerance or beyond.
    pub greatest: Option<AnswerDifference>,
}

/// Compares two answers to `/infer`: the JSON of each, and the data of tensors behind it.
///
/// # Errors
/// A line for a person if one is not such an answer.
pub fn differences(python: (&[u8], &[u8]), steps: (&[u8], &[u8]), tolerance: f64) -> Result<Differences, String> {
    let (python, steps) = (outputs(python)?, outputs(steps)?);
    let mut found = Differences { tolerance, ..Differences::default() };
    for output in &python {
        let name = &output.name;
        let other = steps.iter().find(|other| other.name == *name);
        let left_out = || "left out".to_owned();
        let datatype = other.map_or_else(left_out, |other| other.datatype.clone());
        found.note(|| format!("{name}'s datatype"), &output.datatype, &datatype);
        let shape = other.map_or_else(left_out, |other| other.shape.clone());
        found.note(|| format!("{name}'s shape"), &output.shape, &shape);
        let others = other.map(|other| &other.values[..]).unwrap_or_default();
        for (index, (left, right)) in output.values.iter().zip(others).enumerate() {
            if left != right {
                found.note_value(&format!("{name}[{index}]"), left, right);
            }
        }
    }
    if let Some(new) = steps.iter().find(|output| !python.iter().any(|own| own.name == output.name)) {
        found.note(|| new.name.clone(), "left out", "an output");
    }
    Ok(found)
}

/// An output of an answer, as texts.
struct OutputTexts {
    name: String,
    datatype: String,
    shape: String,
    values: Vec<String>,
}

fn outputs((json, mut data): (&[u8], &[u8])) -> Result<Vec<OutputTexts>, String> {
    let document = Document::parse(json, &[]).map_err(|error| format!("an answer is no JSON: {error}"))?;
    let listed = document.root().get("outputs");
    let mut outputs = Vec::new();
    for output in listed.iter().flat_map(|outputs| outputs.elements()) {
        let Some(name) = output.get("name").and_then(JsonValue::as_str) else { continue };
        let (datatype, shape) = (text_of(output.get("datatype")), text_of(output.get("shape")));
        let size = output.get("parameters").and_then(|parameters| parameters.get("binary_data_size")?.as_u64());
        let values = match size {
            Some(size) => {
                let own = usize::try_from(size).ok().and_then(|size| data.split_at_checked(size));
                let (own, rest) = own.ok_or_else(|| format!("an answer lacks data of its output '{name}'"))?;
                data = rest;
                elements(&datatype, own).ok_or_else(|| format!("the data of '{name}' is not {datatype}"))?
            }
            None => {
                let mut flat = Vec::new();
                output.get("data").iter().for_each(|data| flatten(*data, &mut flat));
                flat
            }
        };
        outputs.push(OutputTexts { name: name.to_owned(), datatype, shape, values });
    }
    Ok(outputs)
}

/// The elements of binary data as texts; `None` if it is not of this datatype.
fn elements(datatype: &str, data: &[u8]) -> Option<Vec<String>> {
    fn each<const SIZE: usize, T: ToString>(data: &[u8], number: impl Fn([u8; SIZE]) -> T) -> Option<Vec<String>> {
        let (numbers, rest) = data.as_chunks();
        rest.is_empty().then(|| numbers.iter().map(|bytes| number(*bytes).to_string()).collect())
    }
    match Datatype::from_name(datatype)? {
        Datatype::Bool => each(data, |[byte]| byte != 0),
        Datatype::Uint8 => each(data, u8::from_le_bytes),
        Datatype::Uint16 => each(data, u16::from_le_bytes),
        Datatype::Uint32 => each(data, u32::from_le_bytes),
        Datatype::Uint64 => each(data, u64::from_le_bytes),
        Datatype::Int8 => each(data, i8::from_le_bytes),
        Datatype::Int16 => each(data, i16::from_le_bytes),
        Datatype::Int32 => each(data, i32::from_le_bytes),
        Datatype::Int64 => each(data, i64::from_le_bytes),
        Datatype::Fp16 => each(data, f16::from_le_bytes),
        Datatype::Fp32 => each(data, f32::from_le_bytes),
        Datatype::Fp64 => each(data, f64::from_le_bytes),
        Datatype::Bf16 => each(data, bf16::from_le_bytes),
        Datatype::Bytes => {
            Strings::new(data).map(|text| Some(String::from_utf8_lossy(text.ok()?).into_owned())).collect()
        }
    }
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

    /// Notes that two values of an output differ. In texts that are JSON it is their members that do.
    fn note_value(&mut self, place: &str, python: &str, steps: &str) {
        let parsed = |text| Document::parse(str::as_bytes(text), &[]).ok();
        let (Some(left), Some(right)) = (parsed(python), parsed(steps)) else {
            return self.note(|| place.to_owned(), python, steps);
        };
        let (mut lefts, mut rights) = (Vec::new(), Vec::new());
        scalars(left.root(), String::new(), &mut lefts);
        scalars(right.root(), String::new(), &mut rights);
        let places = |scalars: &[(String, String)]| scalars.iter().map(|(place, _)| place.clone()).collect::<Vec<_>>();
        if places(&lefts) != places(&rights) {
            return self.note(|| place.to_owned(), python, steps);
        }
        for ((member, left), (_, right)) in lefts.iter().zip(&rights) {
            self.note(|| format!("{place}{member}"), left, right);
        }
    }

    fn note(&mut self, place: impl Fn() -> String, python: &str, steps: &str) {
        if python == steps {
            return;
        }
        let numbers = (python.parse::<f64>(), steps.parse::<f64>());
        let (size, is_beyond) = match numbers {
            // NaN has no size, and is equal to itself alone.
            (Ok(left), Ok(right)) if !left.is_nan() && !right.is_nan() => {
                let size = (left - right).abs();
                (size, size > self.tolerance * left.abs().max(right.abs()).max(1.0))
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

/// The scalars of a document, each with its place in it; an empty list or object counts as one.
fn scalars(value: JsonValue<'_, '_>, place: String, out: &mut Vec<(String, String)>) {
    let before = out.len();
    match value.kind() {
        ValueKind::Object => value.members().for_each(|(name, own)| scalars(own, format!("{place}.{name}"), out)),
        ValueKind::Array => {
            value.elements().enumerate().for_each(|(index, own)| scalars(own, format!("{place}[{index}]"), out));
        }
        _ => return out.push((place, text_of(Some(value)))),
    }
    if out.len() == before {
        let text = if *value.kind() == ValueKind::Array { "[]" } else { "{}" };
        out.push((place, text.to_owned()));
    }
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
            let got = differences((left.as_bytes(), &[]), (right.as_bytes(), &[]), 1e-3).unwrap();
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
        assert!(differences((b"x", &[]), (b"{}", &[]), 0.0).unwrap_err().starts_with("an answer is no JSON"));

        // Numbers within a text that is JSON are numbers.
        let json = |text: &str| answer("BYTES", "[1]", &format!("[{text:?}]"));
        let scores = |score: &str| json(&format!(r#"[{{"label": "cat", "score": {score}}}]"#));
        check(&scores("0.5"), &scores("0.5001"), None, Some("y[0][0].score: 0.5 0.5001"));
        let first = Some("y[0][0].score: 0.5 0.6");
        check(&scores("0.5"), &scores("0.6"), first, first);
        let other = Some("y[0]: [] {}");
        check(&json("[]"), &json("{}"), other, other);
    }

    #[test]
    fn the_data_of_tensors_is_compared_by_its_datatype() {
        let output = |name: &str, datatype: &str, size: usize| {
            let parameters = format!(r#"{{"binary_data_size":{size}}}"#);
            format!(r#"{{"name":"{name}","datatype":"{datatype}","shape":[2],"parameters":{parameters}}}"#)
        };
        let json = format!(r#"{{"outputs":[{},{}]}}"#, output("h", "FP16", 4), output("t", "BYTES", 10));
        let data = |second: f32, text: &str| {
            let halves = [1.0, second].map(f16::from_f32);
            let mut data: Vec<u8> = halves.iter().flat_map(|half| half.to_le_bytes()).collect();
            [text, ""].iter().for_each(|text| crate::tensor::strings::encode(text.as_bytes(), &mut data));
            data
        };
        let found = |other: &[u8]| differences((json.as_bytes(), &data(2.0, "ab")), (json.as_bytes(), other), 1e-6);
        assert_eq!(found(&data(2.0, "ab")).unwrap().first, None);
        let place = |other: &[u8]| found(other).unwrap().first.map(|first| first.place);
        assert_eq!(place(&data(2.5, "ab")).as_deref(), Some("h[1]"));
        assert_eq!(place(&data(f32::NAN, "ab")).as_deref(), Some("h[1]"));
        assert_eq!(place(&data(2.0, "xy")).as_deref(), Some("t[0]"));
        assert_eq!(found(b"short").unwrap_err(), "an answer lacks data of its output 't'");
    }
}
