//! The log settings extension, the same over both protocols: the changes that a client may ask for,
//! and the answer. The names and texts are those of Triton's `http_server.cc` and `grpc_server.cc`.

use base::error::Error;

/// The forms of a line that a client may ask for.
pub const FORMATS: [&str; 3] = ["default", "ISO8601", "json"];

/// The changes that a client asks for; by default no change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogUpdate {
    /// `log_info`.
    pub info: Option<bool>,
    /// `log_warning`.
    pub warning: Option<bool>,
    /// `log_error`.
    pub error: Option<bool>,
    /// `log_verbose_level`.
    pub verbose: Option<u32>,
    /// `log_format`, one of [`FORMATS`].
    pub format: Option<&'static str>,
}

/// The settings of the log in effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogState {
    /// `log_file`.
    pub file: &'static str,
    /// `log_info`.
    pub info: bool,
    /// `log_warning`.
    pub warning: bool,
    /// `log_error`.
    pub error: bool,
    /// `log_verbose_level`.
    pub verbose: u32,
    /// `log_format`.
    pub format: &'static str,
}

/// The format of this name.
pub(super) fn format_of(name: &str) -> Option<&'static str> {
    FORMATS.into_iter().find(|have| *have == name)
}

/// The refusal of another file.
pub(super) fn file_is_fixed() -> Error {
    Error::unsupported("log file location can not be updated through network protocol")
}
