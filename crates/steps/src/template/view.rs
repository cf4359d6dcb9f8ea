//! A tensor, of which parts are written as JSON.

use std::borrow::Cow;

use base::error::Error;
use base::tensor::{Datatype, Tensor};

use crate::limits::{RANK_MAX, TEXTS_SIZE_MAX};
use crate::python_json::{float, rounded, string};
use crate::tensors::{doubles, integers, strings, unsigned};

/// A tensor and its name.
pub struct View<'a> {
    /// The name in the list of steps.
    pub name: &'a str,
    shape: Vec<usize>,
    values: Values<'a>,
}

/// The elements of a tensor.
enum Values<'a> {
    Booleans(Cow<'a, [i64]>),
    Floats(Cow<'a, [f64]>),
    Integers(Cow<'a, [i64]>),
    Texts(Vec<&'a str>),
    Unsigned(Cow<'a, [u64]>),
}

/// A part of a tensor: the dimensions that are left, and where its elements begin.
pub struct ViewPart<'v, 'a> {
    view: &'v View<'a>,
    shape: &'v [usize],
    start: usize,
}

/// Checks that `count` more elements can be written: each takes a byte at least, and two between it and the next.
///
/// # Errors
/// If the text would become larger than [`TEXTS_SIZE_MAX`].
pub fn check_room(out: &str, count: usize) -> Result<(), Error> {
    if count.saturating_mul(3).saturating_add(out.len()) <= TEXTS_SIZE_MAX {
        return Ok(());
    }
    Err(Error::invalid(format!("'json' would be larger than {TEXTS_SIZE_MAX} bytes")))
}

impl<'a> View<'a> {
    /// Returns a view of a tensor.
    ///
    /// # Errors
    /// If its contents do not fit its shape, or strings are not UTF-8: the text has the name.
    pub fn of(name: &'a str, tensor: &'a Tensor) -> Result<Self, Error> {
        let dimensions = &tensor.shape[..];
        let count = base::tensor::element_count(dimensions).ok().filter(|_| tensor.has_its_size());
        let wrong = || Error::invalid(format!("'{name}' has contents of another size than its shape {dimensions:?}"));
        let count = count.ok_or_else(wrong)?;
        if dimensions.len() > RANK_MAX {
            let rank = dimensions.len();
            return Err(Error::invalid(format!(
                "'{name}' has {rank} dimensions, but at most {RANK_MAX} are supported"
            )));
        }
        let values = match tensor.datatype {
            Datatype::Bool => Values::Booleans(integers(name, tensor)?),
            Datatype::Bytes => {
                let texts = strings(name, tensor)?;
                if texts.len() != count {
                    return Err(wrong());
                }
                let text = |(place, text): (usize, &'a [u8])| {
                    let why = |_| Error::invalid(format!("'{name}' must be UTF-8, but element {place} is not"));
                    std::str::from_utf8(text).map_err(why)
                };
                Values::Texts(texts.into_iter().enumerate().map(text).collect::<Result<_, _>>()?)
            }
            Datatype::Fp16 | Datatype::Bf16 | Datatype::Fp32 | Datatype::Fp64 => Values::Floats(doubles(name, tensor)?),
            Datatype::Uint64 => Values::Unsigned(unsigned(name, tensor)?),
            _ => Values::Integers(integers(name, tensor)?),
        };
        let shape = dimensions.iter().map(|size| usize::try_from(*size).unwrap_or(0)).collect();
        Ok(Self { name, shape, values })
    }

    /// The size of the first dimension; `None` without dimensions.
    pub fn length(&self) -> Option<usize> {
        self.shape.first().copied()
    }

    /// The part at a place, an index for each of the first dimensions.
    ///
    /// # Errors
    /// If there is no such place: the text has the name.
    pub fn part(&self, path: impl Iterator<Item = usize> + Clone) -> Result<ViewPart<'_, 'a>, Error> {
        let (mut shape, mut start) = (&self.shape[..], 0_usize);
        for index in path.clone() {
            let Some((size, rest)) = shape.split_first().filter(|(size, _)| index < **size) else {
                let (name, path, shape) = (self.name, path.collect::<Vec<_>>(), &self.shape);
                return Err(Error::invalid(format!("'{name}' has no element {path:?}: its shape is {shape:?}")));
            };
            start = start.saturating_mul(*size).saturating_add(index);
            shape = rest;
        }
        // The place is in units of what is left.
        let unit = shape.iter().fold(1_usize, |unit, size| unit.saturating_mul(*size));
        Ok(ViewPart { view: self, shape, start: start.saturating_mul(unit) })
    }
}

impl ViewPart<'_, '_> {
    /// The size of its first dimension; `None` for a single element.
    pub fn length(&self) -> Option<usize> {
        self.shape.first().copied()
    }

    /// Its only element, as a count.
    ///
    /// # Errors
    /// If it is not one integer from 0: the text has the name.
    pub fn count(&self) -> Result<usize, Error> {
        let name = self.view.name;
        let wrong = || Error::invalid(format!("'{name}' must be one integer from 0, as \"count\" needs"));
        let is_one = self.shape.iter().all(|size| *size == 1);
        let value = match &self.view.values {
            Values::Integers(values) if is_one => values.get(self.start),
            _ => None,
        };
        value.and_then(|value| usize::try_from(*value).ok()).ok_or_else(wrong)
    }

    /// Appends it as nested lists.
    ///
    /// # Errors
    /// If the text would become too large.
    pub fn write(&self, digits: Option<usize>, is_ascii: bool, out: &mut String) -> Result<(), Error> {
        let Some((size, shape)) = self.shape.split_first() else {
            check_room(out, 1)?;
            self.write_element(digits, is_ascii, out);
            return Ok(());
        };
        check_room(out, *size)?;
        let unit = shape.iter().fold(1_usize, |unit, size| unit.saturating_mul(*size));
        out.push('[');
        for place in 0..*size {
            out.push_str(if place == 0 { "" } else { ", " });
            let start = self.start.saturating_add(place.saturating_mul(unit));
            ViewPart { view: self.view, shape, start }.write(digits, is_ascii, out)?;
        }
        out.push(']');
        Ok(())
    }

    fn write_element(&self, digits: Option<usize>, is_ascii: bool, out: &mut String) {
        let at = self.start;
        match &self.view.values {
            Values::Booleans(values) => {
                out.push_str(if values.get(at).is_some_and(|value| *value != 0) { "true" } else { "false" })
            }
            Values::Floats(values) => {
                let value = values.get(at).copied().unwrap_or(f64::NAN);
                float(digits.map_or(value, |digits| rounded(value, digits)), out);
            }
            Values::Integers(values) => out.push_str(&values.get(at).copied().unwrap_or(0).to_string()),
            Values::Texts(values) => string(values.get(at).copied().unwrap_or_default(), is_ascii, out),
            Values::Unsigned(values) => out.push_str(&values.get(at).copied().unwrap_or(0).to_string()),
        }
    }
}
