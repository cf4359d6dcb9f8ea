//! The fields of a `config.json`, each read with its bounds; a refusal names the field, its value and what is expected.

use base::error::Error;
use wire::json::{Document, JsonValue, ValueKind};

use crate::limits::CONFIG_SIZE_MAX;

/// Reads a text as JSON.
///
/// # Errors
/// `InvalidArgument` if it is too long, or not a JSON object.
pub(super) fn parse(text: &[u8]) -> Result<Document<'_>, Error> {
    if text.len() > CONFIG_SIZE_MAX {
        return Err(Error::invalid(format!(
            "config.json has {} bytes; at most {CONFIG_SIZE_MAX} are read",
            text.len()
        )));
    }
    let document = Document::parse(text, &[]);
    let document = document.map_err(|error| Error::invalid(format!("config.json is not JSON: {error}")))?;
    match document.root().kind() {
        ValueKind::Object => Ok(document),
        _ => Err(Error::invalid("config.json is not a JSON object")),
    }
}

/// An object of the file; a field that is `null` counts as absent.
#[derive(Clone, Copy)]
pub(super) struct ConfigFields<'d, 'a> {
    pub(super) value: JsonValue<'d, 'a>,
}

impl<'d, 'a> ConfigFields<'d, 'a> {
    pub(super) fn find(self, name: &str) -> Option<JsonValue<'d, 'a>> {
        self.value.given(name)
    }

    /// A size from 1 to `max`.
    pub(super) fn size(self, name: &str, max: usize) -> Result<usize, Error> {
        self.size_or_absent(name, max)?.ok_or_else(|| Error::invalid(format!("config.json has no '{name}'")))
    }

    pub(super) fn size_or(self, name: &str, max: usize, default: usize) -> Result<usize, Error> {
        Ok(self.size_or_absent(name, max)?.unwrap_or(default))
    }

    fn size_or_absent(self, name: &str, max: usize) -> Result<Option<usize>, Error> {
        let Some(value) = self.find(name) else { return Ok(None) };
        let size = value.as_u64().and_then(|size| usize::try_from(size).ok());
        match size.filter(|size| (1..=max).contains(size)) {
            Some(size) => Ok(Some(size)),
            None => Err(unexpected(name, value, &format!("a size from 1 to {max}"))),
        }
    }

    /// A number from 0 to `max`.
    pub(super) fn count_or(self, name: &str, max: usize, default: usize) -> Result<usize, Error> {
        let Some(value) = self.find(name) else { return Ok(default) };
        let count = value.as_u64().and_then(|count| usize::try_from(count).ok()).filter(|count| *count <= max);
        count.ok_or_else(|| unexpected(name, value, &format!("a number from 0 to {max}")))
    }

    /// A finite number above 0 that FP32 holds.
    pub(super) fn positive_or(self, name: &str, default: f64) -> Result<f64, Error> {
        let Some(value) = self.find(name) else { return Ok(default) };
        let number = value.as_f64().filter(|number| (f64::MIN_POSITIVE..f64::from(f32::MAX)).contains(number));
        number.ok_or_else(|| unexpected(name, value, "a number above 0"))
    }

    pub(super) fn is_set(self, name: &str, default: bool) -> Result<bool, Error> {
        let Some(value) = self.find(name) else { return Ok(default) };
        value.as_bool().ok_or_else(|| unexpected(name, value, "true or false"))
    }

    pub(super) fn text_or<'t>(self, name: &str, default: &'t str) -> Result<&'t str, Error>
    where
        'd: 't,
    {
        let Some(value) = self.find(name) else { return Ok(default) };
        value.as_str().ok_or_else(|| unexpected(name, value, "a text"))
    }

    /// Another object in this one.
    pub(super) fn object(self, name: &str) -> Result<Option<Self>, Error> {
        match self.find(name) {
            Some(value) if !matches!(value.kind(), ValueKind::Object) => Err(unexpected(name, value, "an object")),
            value => Ok(value.map(|value| Self { value })),
        }
    }
}

/// An error about the value of a field.
pub(super) fn unexpected(name: &str, value: JsonValue<'_, '_>, expected: &str) -> Error {
    Error::invalid(format!("config.json: '{name}' is {}, expected {expected}", shown(value)))
}

/// A value as an error shows it.
pub(super) fn shown(value: JsonValue<'_, '_>) -> String {
    match value.kind() {
        ValueKind::Null => "null".to_owned(),
        ValueKind::Bool(value) => value.to_string(),
        ValueKind::Integer(text) | ValueKind::Decimal(text) => String::from_utf8_lossy(text).chars().take(40).collect(),
        ValueKind::String(text) => format!("'{}'", text.chars().take(80).collect::<String>()),
        ValueKind::Array | ValueKind::Raw(_) => "a list".to_owned(),
        ValueKind::Object => "an object".to_owned(),
    }
}
