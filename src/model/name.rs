//! Names and paths that a configuration may hold: none of them leads out of the repository.

use crate::error::Error;
use crate::limits::NAME_SIZE_MAX;

/// Whether a name of a model or of a directory can be one: `[A-Za-z0-9._-]{1,255}`, not `.` or
/// `..`.
pub fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=NAME_SIZE_MAX).contains(&name.len()) && name.bytes().all(is_plain) && name != "." && name != ".."
}

/// The name of a model's directory.
pub fn directory(name: &str) -> Result<(), Error> {
    if is_name(name) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "'{}' cannot be the name of a model: a name has 1 to {NAME_SIZE_MAX} letters, digits, '.', '_' and '-', and is \
         not '.' or '..'",
        name.escape_debug()
    )))
}

/// A file that the configuration names: beneath its directory, by its text alone.
pub fn filename(model: &str, field: &str, path: &str) -> Result<(), Error> {
    let is_part = |part: &str| !matches!(part, "" | "." | "..");
    if path.is_empty() || (path.split('/').all(is_part) && !path.contains(['\0', '\\'])) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "model '{model}': '{field}' is '{}'; name a file beneath the model's directory, by a relative path without '..'",
        path.escape_debug()
    )))
}
