//! A JSON file of a folder, read with bounds, whose members are asked for by type: an error has the file and the member.

use base::error::Error;
use wire::json::placed;
use wire::placed::{PlacedMember, PlacedValue};

use crate::folder::HubFolder;
use crate::limits::HUB_JSON_SIZE_MAX;

/// The members of a JSON object in a file.
#[derive(Debug)]
pub struct ConfigFile {
    name: String,
    members: Vec<PlacedMember>,
}

impl ConfigFile {
    /// Reads a file that must be there.
    ///
    /// # Errors
    /// `InvalidArgument` if it is missing, too large, or not a JSON object.
    pub fn required(folder: &HubFolder<'_>, name: &str) -> Result<Self, Error> {
        match Self::read(folder, name)? {
            Some(file) => Ok(file),
            None => Err(Error::invalid(format!("{name}: the folder has no such file"))),
        }
    }

    /// Reads a file; `None` if the folder does not have it.
    ///
    /// # Errors
    /// As [`Self::required`].
    pub fn read(folder: &HubFolder<'_>, name: &str) -> Result<Option<Self>, Error> {
        if !folder.has(name) {
            return Ok(None);
        }
        match read_json(folder, name)? {
            PlacedValue::Table(members) => Ok(Some(Self { name: name.to_owned(), members })),
            _ => Err(Error::invalid(format!("{name}: must be a JSON object"))),
        }
    }

    /// An error about a member.
    pub fn wrong(&self, field: &str, why: &str) -> Error {
        Error::invalid(format!("{}: '{field}' {why}", self.name))
    }

    /// An error about a member whose meaning is known and not served.
    pub fn unsupported(&self, field: &str, why: &str) -> Error {
        Error::unsupported(format!("{}: '{field}' {why}", self.name))
    }

    /// The value of a member, the last one of its name as in Python; `null` counts as absent.
    pub fn value(&self, field: &str) -> Option<&PlacedValue> {
        let found = self.members.iter().rev().find(|member| member.name == field);
        found.map(|member| &member.value.value).filter(|value| !matches!(value, PlacedValue::Null))
    }

    /// A string.
    ///
    /// # Errors
    /// `InvalidArgument` for another type.
    pub fn text(&self, field: &str) -> Result<Option<&str>, Error> {
        match self.value(field) {
            None => Ok(None),
            Some(PlacedValue::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(field, "must be a string")),
        }
    }

    /// A boolean; false if it is absent.
    ///
    /// # Errors
    /// `InvalidArgument` for another type.
    pub fn flag(&self, field: &str) -> Result<bool, Error> {
        match self.value(field) {
            None => Ok(false),
            Some(PlacedValue::Bool(value)) => Ok(*value),
            Some(_) => Err(self.wrong(field, "must be true or false")),
        }
    }

    /// An integer from 0 to `most`.
    ///
    /// # Errors
    /// `InvalidArgument` for any other value.
    pub fn count(&self, field: &str, most: usize) -> Result<Option<usize>, Error> {
        let Some(value) = self.value(field) else { return Ok(None) };
        let count = match value {
            PlacedValue::Number(text) => text.strip_suffix(".0").unwrap_or(text).parse().ok(),
            _ => None,
        };
        let count = count.filter(|count| *count <= most);
        count.map(Some).ok_or_else(|| self.wrong(field, &format!("must be an integer from 0 to {most}")))
    }

    /// The members of an object.
    ///
    /// # Errors
    /// `InvalidArgument` for another type.
    pub fn table(&self, field: &str) -> Result<Option<&[PlacedMember]>, Error> {
        match self.value(field) {
            None => Ok(None),
            Some(PlacedValue::Table(members)) => Ok(Some(members)),
            Some(_) => Err(self.wrong(field, "must be an object")),
        }
    }

    /// The first string of a list.
    ///
    /// # Errors
    /// `InvalidArgument` for another type.
    pub fn first_text(&self, field: &str) -> Result<Option<&str>, Error> {
        match self.value(field) {
            None => Ok(None),
            Some(PlacedValue::List(list)) => match list.first().map(|first| &first.value) {
                None => Ok(None),
                Some(PlacedValue::String(text)) => Ok(Some(text)),
                Some(_) => Err(self.wrong(field, "must be a list of strings")),
            },
            Some(_) => Err(self.wrong(field, "must be a list of strings")),
        }
    }
}

/// Reads any JSON value of a file that is there.
///
/// # Errors
/// `InvalidArgument` if it is too large, or not JSON.
pub fn read_json(folder: &HubFolder<'_>, name: &str) -> Result<PlacedValue, Error> {
    let bytes = folder.bytes(name, HUB_JSON_SIZE_MAX)?;
    let text = std::str::from_utf8(&bytes);
    let text = text.map_err(|error| Error::invalid(format!("{name}: byte {} is not UTF-8", error.valid_up_to())))?;
    let document = placed::read(text);
    let document = document.map_err(|error| {
        let line = text.bytes().take(error.offset).filter(|byte| *byte == b'\n').count() + 1;
        Error::invalid(format!("{name}: line {line}: {}", error.text))
    })?;
    Ok(document.value)
}
