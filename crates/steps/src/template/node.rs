//! A template, read once.

use wire::placed::{PlacedMember, PlacedValue};

use crate::fields::quoted;
use crate::python_json::{float, string};

/// A part of a template.
pub enum TemplateNode {
    /// A list with an element for each place of a tensor.
    Each {
        /// The element.
        node: Box<TemplateNode>,
        /// The tensor, by its place among the inputs.
        over: usize,
        /// The tensor with the length of the list.
        count: Option<usize>,
    },
    /// A text that is written as it is.
    Literal(String),
    /// A list.
    List(Vec<TemplateNode>),
    /// An object; the names are written as they are.
    Object(Vec<(String, TemplateNode)>),
    /// The contents of a tensor.
    Tensor {
        /// Its place among the inputs.
        tensor: usize,
        /// The part of it.
        index: Vec<usize>,
        /// The same within lists and rows.
        is_whole: bool,
        /// Digits to which floats are rounded.
        digits: Option<usize>,
    },
}

impl TemplateNode {
    /// Reads a template that refers to tensors of these names.
    ///
    /// # Errors
    /// If a form is malformed or names an unknown tensor.
    pub fn read(value: &PlacedValue, names: &[String], is_ascii: bool) -> Result<Self, String> {
        let read = |value: &PlacedValue| Self::read(value, names, is_ascii);
        match value {
            PlacedValue::List(list) => {
                Ok(Self::List(list.iter().map(|value| read(&value.value)).collect::<Result<_, _>>()?))
            }
            PlacedValue::Table(members) if member(members, "tensor").is_some() => Self::of_tensor(members, names),
            PlacedValue::Table(members) if member(members, "each").is_some() => Self::of_each(members, names, is_ascii),
            PlacedValue::Table(members) => {
                let read = |member: &PlacedMember| {
                    let mut name = String::new();
                    string(&member.name, is_ascii, &mut name);
                    Ok((name, read(&member.value.value)?))
                };
                Ok(Self::Object(members.iter().map(read).collect::<Result<_, String>>()?))
            }
            scalar => Ok(Self::Literal(scalar_text(scalar, is_ascii))),
        }
    }

    /// Returns true if the tensor of this place is written in parts: with rows, it has one for each.
    pub fn divides(&self, place: usize) -> bool {
        match self {
            Self::Each { node, over, count } => *over == place || *count == Some(place) || node.divides(place),
            Self::Literal(_) => false,
            Self::List(nodes) => nodes.iter().any(|node| node.divides(place)),
            Self::Object(members) => members.iter().any(|(_, node)| node.divides(place)),
            Self::Tensor { tensor, is_whole, .. } => *tensor == place && !is_whole,
        }
    }

    fn of_tensor(members: &[PlacedMember], names: &[String]) -> Result<Self, String> {
        known_members(members, "tensor", &["tensor", "index", "round", "whole"])?;
        let tensor = tensor_of(members, "tensor", names)?.unwrap_or(0);
        let digits = match member(members, "round") {
            None => None,
            Some(value) => {
                let digits = count_of(value).filter(|digits| *digits <= 15);
                Some(digits.ok_or_else(|| "\"round\" must be an integer from 0 to 15".to_owned())?)
            }
        };
        let index = match member(members, "index") {
            None => Some(Vec::new()),
            Some(PlacedValue::List(list)) => list.iter().map(|value| count_of(&value.value)).collect(),
            Some(_) => None,
        };
        let index = index.ok_or_else(|| "\"index\" must be a list of integers from 0".to_owned())?;
        let is_whole = match member(members, "whole") {
            None => false,
            Some(PlacedValue::Bool(is_whole)) => *is_whole,
            Some(_) => return Err("\"whole\" must be true or false".to_owned()),
        };
        Ok(Self::Tensor { tensor, index, is_whole, digits })
    }

    fn of_each(members: &[PlacedMember], names: &[String], is_ascii: bool) -> Result<Self, String> {
        known_members(members, "each", &["each", "over", "count"])?;
        let node = member(members, "each").map(|value| Self::read(value, names, is_ascii)).transpose()?;
        let over = tensor_of(members, "over", names)?;
        let (Some(node), Some(over)) = (node, over) else {
            return Err("\"each\" needs \"over\", the name of a tensor".to_owned());
        };
        Ok(Self::Each { node: Box::new(node), over, count: tensor_of(members, "count", names)? })
    }
}

fn member<'a>(members: &'a [PlacedMember], name: &str) -> Option<&'a PlacedValue> {
    members.iter().find(|member| member.name == name).map(|member| &member.value.value)
}

fn known_members(members: &[PlacedMember], form: &str, known: &[&str]) -> Result<(), String> {
    match members.iter().find(|member| !known.contains(&member.name.as_str())) {
        Some(other) => Err(format!("unknown member \"{}\" beside \"{form}\"", other.name)),
        None => Ok(()),
    }
}

/// The place of the tensor that a member names.
fn tensor_of(members: &[PlacedMember], form: &str, names: &[String]) -> Result<Option<usize>, String> {
    let Some(value) = member(members, form) else { return Ok(None) };
    let PlacedValue::String(name) = value else { return Err(format!("\"{form}\" must be the name of a tensor")) };
    let place = names.iter().position(|known| known == name);
    place.map(Some).ok_or_else(|| {
        let known: Vec<_> = names.iter().map(String::as_str).collect();
        format!("there is no tensor \"{name}\"; known are {}", quoted(&known))
    })
}

fn count_of(value: &PlacedValue) -> Option<usize> {
    if let PlacedValue::Number(text) = value { text.parse().ok() } else { None }
}

/// A scalar as Python reads and writes it.
pub fn scalar_text(value: &PlacedValue, is_ascii: bool) -> String {
    let mut out = String::new();
    match value {
        PlacedValue::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        PlacedValue::Number(text) if text.parse::<i128>().is_ok() => out.push_str(text),
        PlacedValue::Number(text) => float(text.parse().unwrap_or(f64::NAN), &mut out),
        PlacedValue::String(text) => string(text, is_ascii, &mut out),
        PlacedValue::Null | PlacedValue::List(_) | PlacedValue::Table(_) => out.push_str("null"),
    }
    out
}
