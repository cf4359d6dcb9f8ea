//! Checks of model names and of the file names in a configuration: no path leads out of the repository.

use base::error::Error;
use base::limits::NAME_SIZE_MAX;

/// The rule of [`is_model_name`], for errors.
pub const MODEL_NAME_RULE: &str = "a name is the name of a directory, of 1 to 255 bytes, without '/', '\\', '\"', \
                                   control characters and blanks at its ends, and is not '.' or '..'";

const _: () = assert!(NAME_SIZE_MAX == 255, "the rule says how many");

/// Returns true if `name` is valid for a model and its directory: any name of a directory, as in
/// Triton, of 1 to 255 bytes; but none that would have to be escaped where names are shown (`"`,
/// `\`, control characters), or read as another one (blanks at its ends).
pub fn is_model_name(name: &str) -> bool {
    let is_shown = |character: char| !character.is_control() && !matches!(character, '/' | '\\' | '"');
    (1..=NAME_SIZE_MAX).contains(&name.len())
        && name.chars().all(is_shown)
        && name.trim() == name
        && name != "."
        && name != ".."
}

/// Returns true if `name` is valid for a backend, or a file that a client uploads:
/// `[A-Za-z0-9._-]{1,255}`, and not `.` or `..`.
pub fn is_plain_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=NAME_SIZE_MAX).contains(&name.len()) && name.bytes().all(is_plain) && name != "." && name != ".."
}

/// Checks the name of a model, which is also the name of its directory.
///
/// # Errors
/// `InvalidArgument` if the name is not valid ([`is_model_name`]).
pub fn check_model_name(name: &str) -> Result<(), Error> {
    if is_model_name(name) {
        return Ok(());
    }
    Err(Error::invalid(format!("'{}' cannot be the name of a model: {MODEL_NAME_RULE}", name.escape_debug())))
}

/// The name that distinguishes a model from those of the same name in other repositories
/// (`--model-namespacing`): the path of its repository, a slash, and its name. Without a namespace
/// it is the name, which has no slash.
pub fn qualified(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") }
}

/// The namespace and the name from which [`qualified`] was made.
pub fn split_qualified(qualified: &str) -> (&str, &str) {
    qualified.rsplit_once('/').unwrap_or(("", qualified))
}

/// Checks a file name in field `field` of a model's configuration: a relative path without `..`. This checks the
/// text alone; that no symbolic link leads out is checked when the file is opened (`control::repository::beneath`).
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
