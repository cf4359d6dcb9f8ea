//! What is wrong with the JSON of a request, in Triton's words.

use crate::error::Error;
use crate::wire::json::{JsonError, JsonFault};

/// Triton's text for a body that is no JSON.
pub(super) fn json_error(error: JsonError) -> Error {
    Error::invalid(match error.fault {
        JsonFault::Depth | JsonFault::Nodes => error.to_string(),
        _ => format!("failed to parse the request JSON buffer: {error}"),
    })
}

/// What is wrong with a field.
pub(super) fn unable(name: &str, what: &str) -> Error {
    Error::invalid(format!("Unable to parse '{name}': {what}"))
}

/// RapidJSON's accessor, in Triton's words, on something that is no array.
pub(super) const NO_ARRAY: &str = "attempt to access JSON non-array as array";
