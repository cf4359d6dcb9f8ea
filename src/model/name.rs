//! Checks of model names and of the file names in a configuration: no path leads out of the repository.

use crate::error::Error;
use crate::limits::NAME_SIZE_MAX;

/// Whether `name` is valid for a model and its directory: `[A-Za-z0-9._-]{1,255}`, and not `.` or `..`.
pub fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=NAME_SIZE_MAX).contains(&name.len()) && name.bytes().all(is_plain) && name != "." && name != ".."
}

/// Checks the name of a model, which is also the name of its directory.
///
/// # Errors
/// `InvalidArgument` if the name is not valid ([`is_name`]).
pub fn check_model_name(name: &str) -> Result<(), Error> {
    if is_name(name) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "'{}' cannot be the name of a model: a name has 1 to {NAME_SIZE_MAX} letters, digits, '.', '_' and '-', and is \
         not '.' or '..'",
        name.escape_debug()
    )))
}

/// Checks a file name in field `field` of a model's configuration: a relative path without `..`. This checks the
/// text alone; that no symbolic link leads out is checked when the file is opened (`control::beneath`).
///
/// # Errors
/// `InvalidArgument` if the path is absolute or has an empty, `.` or `..` part, a NUL or a backslash.
pub fn check_filename(model: &str, field: &str, path: &str) -> Result<(), Error> {
    let is_part = |part: &str| !matches!(part, "" | "." | "..");
    if path.is_empty() || (path.split('/').all(is_part) && !path.contains(['\0', '\\'])) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "model '{model}': '{field}' is '{}'; name a file beneath the model's directory, by a relative path without '..'",
        path.escape_debug()
    )))
}
