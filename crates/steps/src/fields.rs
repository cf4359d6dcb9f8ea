//! Parameters of a step: declared as data, checked when a list is read, and given to the step's `build`. Every error
//! names the step, the parameter and the line.

use base::error::Error;
use wire::json::placed;
use wire::placed::{Placed, PlacedMember, PlacedValue};

use crate::limits::STEP_FILE_SIZE_MAX;

/// Reads a file of the model by its name, up to a size; the error is a text.
pub type ReadStepFile<'a> = dyn Fn(&str, usize) -> Result<Vec<u8>, String> + 'a;

/// A parameter of a kind of step.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// The name in a `steps.json` (`top`).
    pub name: &'static str,
    /// The values that it takes.
    pub kind: FieldKind,
    /// Its value if it is not given.
    pub default: FieldDefault,
    /// Its meaning, for the reference: sentences in Markdown.
    pub about: &'static str,
}

/// The value of a parameter that is not given.
#[derive(Clone, Copy, Debug)]
pub enum FieldDefault {
    /// This JSON value.
    Json(&'static str),
    /// The parameter must be given.
    Required,
    /// The parameter has no value then.
    Unset,
}

/// The values that a parameter takes.
#[derive(Clone, Copy, Debug)]
pub enum FieldKind {
    /// `true` or `false`.
    Bool,
    /// One of these strings.
    Choice(&'static [&'static str]),
    /// The name of a file in the model's directory or its version's, without `..`.
    File,
    /// An integer from the first to the second.
    Integer(i64, i64),
    /// A list of at most `count` integers from `least` to `most`.
    Integers {
        /// Most elements.
        count: usize,
        /// Least value.
        least: i64,
        /// Greatest value.
        most: i64,
    },
    /// A number from the first to the second.
    Number(f64, f64),
    /// A list of at most this number of numbers.
    Numbers(usize),
    /// Any JSON value, which the step reads itself.
    Json,
    /// A string.
    Text,
    /// A list of strings, or an object whose members are strings, such as `id2label`: keys are then indices from 0.
    Texts,
}

impl FieldKind {
    /// Returns the words of an error: a value of this kind was expected.
    pub fn expected(self) -> String {
        match self {
            Self::Bool => "true or false".to_owned(),
            Self::Choice(names) => format!("one of {}", quoted(names)),
            Self::File => "the name of a file in the directory of the model".to_owned(),
            Self::Integer(least, most) => format!("an integer from {least} to {most}"),
            Self::Integers { count, least, most } => {
                format!("a list of at most {count} integers from {least} to {most}")
            }
            Self::Json => "a JSON value".to_owned(),
            Self::Number(f64::MIN, f64::MAX) => "a number".to_owned(),
            Self::Number(least, most) => format!("a number from {least} to {most}"),
            Self::Numbers(count) => format!("a list of at most {count} numbers"),
            Self::Text => "a string".to_owned(),
            Self::Texts => "a list of strings, or an object from indices to strings".to_owned(),
        }
    }

    pub(crate) fn accepts(self, value: &PlacedValue) -> bool {
        let integer =
            |value: &PlacedValue, least, most| integer_of(value).is_some_and(|got| (least..=most).contains(&got));
        match (self, value) {
            (Self::Bool, PlacedValue::Bool(_)) | (Self::Json, _) | (Self::Text, PlacedValue::String(_)) => true,
            (Self::Choice(names), PlacedValue::String(text)) => names.contains(&text.as_str()),
            (Self::File, PlacedValue::String(text)) => is_file_name(text),
            (Self::Integer(least, most), value) => integer(value, least, most),
            (Self::Integers { count, least, most }, PlacedValue::List(list)) => {
                list.len() <= count && list.iter().all(|element| integer(&element.value, least, most))
            }
            (Self::Number(least, most), value) => number_of(value).is_some_and(|got| (least..=most).contains(&got)),
            (Self::Numbers(count), PlacedValue::List(list)) => {
                list.len() <= count && list.iter().all(|element| number_of(&element.value).is_some_and(f64::is_finite))
            }
            (Self::Texts, value) => texts_of(value).is_some(),
            _ => false,
        }
    }
}

/// The parameters of a step in a list, checked against its kind.
pub struct StepFields<'a> {
    /// The declared parameters.
    pub(crate) declared: &'static [Field],
    /// The members of the step's object.
    pub(crate) members: &'a [PlacedMember],
    /// For each output port, true if the list connects it.
    pub(crate) wanted: Vec<bool>,
    /// For each input port, true if the list connects it.
    pub(crate) connected: Vec<bool>,
    /// The name of the tensor of each input port, those of a list one after the other.
    pub(crate) input_names: &'a [Option<String>],
    /// Reads a file of the model.
    pub(crate) read_file: &'a ReadStepFile<'a>,
    /// The text of the list, for line numbers.
    pub(crate) text: &'a str,
    /// The place in the text at which the step's object begins.
    pub(crate) offset: usize,
}

impl StepFields<'_> {
    /// Returns true if the list gives the parameter.
    pub fn is_given(&self, name: &str) -> bool {
        self.members.iter().any(|member| member.name == name)
    }

    /// Returns true if the list connects this output port, by its place among the kind's outputs.
    pub fn is_wanted(&self, output: usize) -> bool {
        self.wanted.get(output).copied().unwrap_or(false)
    }

    /// Returns true if the list connects this input port, by its place among the kind's inputs.
    pub fn is_connected(&self, input: usize) -> bool {
        self.connected.get(input).copied().unwrap_or(false)
    }

    /// Returns the name of the tensor at a place among the inputs, in which those of a list are one after the other; `None` if
    /// there is no such input.
    pub fn input_name(&self, input: usize) -> Option<&str> {
        self.input_names.get(input)?.as_deref()
    }

    /// Returns a [`FieldKind::Bool`]; false without a value.
    pub fn flag(&self, name: &str) -> bool {
        matches!(self.value(name), Some(PlacedValue::Bool(true)))
    }

    /// Returns a [`FieldKind::Integer`]; `None` without a value.
    pub fn integer(&self, name: &str) -> Option<i64> {
        self.value(name).as_ref().and_then(integer_of)
    }

    /// Returns a [`FieldKind::Integer`] that counts something; `None` without a value, or for one below 0.
    pub fn count(&self, name: &str) -> Option<usize> {
        self.integer(name).and_then(|value| usize::try_from(value).ok())
    }

    /// Returns a [`FieldKind::Number`]; `None` without a value.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.value(name).as_ref().and_then(number_of)
    }

    /// Returns a [`FieldKind::Text`], [`FieldKind::Choice`] or the name in a [`FieldKind::File`]; empty without a value.
    pub fn text(&self, name: &str) -> String {
        match self.value(name) {
            Some(PlacedValue::String(text)) => text,
            _ => String::new(),
        }
    }

    /// Returns [`FieldKind::Integers`]; empty without a value.
    pub fn integers(&self, name: &str) -> Vec<i64> {
        match self.value(name) {
            Some(PlacedValue::List(list)) => list.iter().filter_map(|element| integer_of(&element.value)).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns [`FieldKind::Numbers`]; empty without a value.
    pub fn numbers(&self, name: &str) -> Vec<f64> {
        match self.value(name) {
            Some(PlacedValue::List(list)) => list.iter().filter_map(|element| number_of(&element.value)).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns [`FieldKind::Texts`]; empty without a value.
    pub fn texts(&self, name: &str) -> Vec<String> {
        self.value(name).as_ref().and_then(texts_of).unwrap_or_default()
    }

    /// Returns a [`FieldKind::Json`], with offsets in the text of the list if it was given; `None` without a value.
    pub fn json(&self, name: &str) -> Option<PlacedValue> {
        self.value(name)
    }

    /// Returns the contents of a [`FieldKind::File`]; `None` without a value.
    ///
    /// # Errors
    /// If there is no such file, or it is larger than `STEP_FILE_SIZE_MAX`.
    pub fn file(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        let file = self.text(name);
        if file.is_empty() {
            return Ok(None);
        }
        let read = (self.read_file)(&file, STEP_FILE_SIZE_MAX);
        read.map(Some).map_err(|why| self.error(name, &format!("cannot read '{file}': {why}")))
    }

    /// An error about a parameter, or about the step if that is not given: names line and parameter.
    pub fn error(&self, name: &str, text: &str) -> Error {
        let member = self.members.iter().find(|member| member.name == name);
        let offset = member.map_or(self.offset, |member| member.offset);
        Error::invalid(format!("line {}: \"{name}\": {text}", line(self.text, offset)))
    }

    /// Checks names and values against the declaration; `others` are members that are not parameters.
    pub(crate) fn check(&self, others: &[&str]) -> Result<(), Error> {
        for (index, member) in self.members.iter().enumerate() {
            let name = member.name.as_str();
            if self.members.iter().take(index).any(|earlier| earlier.name == name) {
                return Err(self.error(name, "is given twice"));
            }
            if others.contains(&name) {
                continue;
            }
            let Some(field) = self.declared.iter().find(|field| field.name == name) else {
                let known: Vec<_> = self.declared.iter().map(|field| field.name).collect();
                return Err(self.error(name, &format!("unknown parameter; known are {}", quoted(&known))));
            };
            if !field.kind.accepts(&member.value.value) {
                return Err(self.error(name, &format!("must be {}", field.kind.expected())));
            }
        }
        let missing = |field: &&Field| matches!(field.default, FieldDefault::Required) && !self.is_given(field.name);
        match self.declared.iter().find(missing) {
            Some(field) => Err(self.error(field.name, &format!("must be given: {}", field.kind.expected()))),
            None => Ok(()),
        }
    }

    fn value(&self, name: &str) -> Option<PlacedValue> {
        if let Some(member) = self.members.iter().find(|member| member.name == name) {
            return Some(member.value.value.clone());
        }
        let field = self.declared.iter().find(|field| field.name == name);
        debug_assert!(field.is_some(), "a step reads the parameter '{name}', which its kind does not declare");
        match field?.default {
            FieldDefault::Json(text) => placed::read(text).ok().map(|Placed { value, .. }| value),
            FieldDefault::Required | FieldDefault::Unset => None,
        }
    }
}

/// The line of an offset in a text, from 1.
pub(crate) fn line(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}

/// Names in quotes, separated by commas.
pub(crate) fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
}

fn integer_of(value: &PlacedValue) -> Option<i64> {
    match value {
        PlacedValue::Number(text) => text.parse().ok(),
        _ => None,
    }
}

fn number_of(value: &PlacedValue) -> Option<f64> {
    match value {
        PlacedValue::Number(text) => text.parse().ok(),
        _ => None,
    }
}

/// Strings of a list, or of an object by indices without gaps.
fn texts_of(value: &PlacedValue) -> Option<Vec<String>> {
    let text = |value: &PlacedValue| match value {
        PlacedValue::String(text) => Some(text.clone()),
        _ => None,
    };
    match value {
        PlacedValue::List(list) => list.iter().map(|element| text(&element.value)).collect(),
        PlacedValue::Table(members) => {
            let mut texts = vec![None; members.len()];
            for member in members {
                *texts.get_mut(member.name.parse::<usize>().ok()?)? = Some(text(&member.value.value)?);
            }
            texts.into_iter().collect()
        }
        _ => None,
    }
}

fn is_file_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with('/')
        && text.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}
