//! Triton's error texts for faults in the JSON of a request.

use base::error::Error;
use wire::json::{JsonError, JsonFault};

/// The error for a body that is not JSON.
pub(crate) fn json_error(error: JsonError) -> Error {
    Error::malformed_json(match error.fault {
        JsonFault::Depth | JsonFault::Nodes => error.to_string(),
        _ => format!("failed to parse the request JSON buffer: {error}"),
    })
}

/// The error for a field whose value is not as expected.
pub(super) fn unparsable(name: &str, what: &str) -> Error {
    Error::malformed_json(format!("Unable to parse '{name}': {what}"))
}

/// Triton's text for a value that should be an array.
pub(super) const NOT_AN_ARRAY: &str = "attempt to access JSON non-array as array";
