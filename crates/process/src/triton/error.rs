//! Errors on their way between backends and the server: `TRITONSERVER_Error`.

use std::ffi::CString;

use crate::triton::object::{Handle, Owned, hosted_object};
use base::error::{Code, Error};

/// The result of most functions: null, or an error that the caller owns.
pub(super) type ErrorHandle = Handle<ErrorObject>;

/// A `TRITONSERVER_Error`.
pub(super) struct ErrorObject {
    /// `TRITONSERVER_Error_Code`.
    pub(super) code: u32,
    pub(super) text: CString,
}

hosted_object!(ErrorObject, "error", 1);

/// The names of the codes, by their number.
pub(super) const CODE_NAMES: [&std::ffi::CStr; 8] = [
    c"Unknown",
    c"Internal",
    c"Not found",
    c"Invalid argument",
    c"Unavailable",
    c"Unsupported",
    c"Already exists",
    c"Cancelled",
];

impl ErrorObject {
    /// An error that the backend owns.
    pub(super) fn raise(error: &Error) -> Handle<Self> {
        Owned::new(Self { code: number(error.code()), text: c_text(error.text()) }).into_handle()
    }

    /// Its contents, as the server's own error.
    pub(super) fn to_error(&self) -> Error {
        Error::new(code(self.code), self.text.to_string_lossy().into_owned())
    }
}

/// Converts the result of a backend's function: null, or an error, which is deleted.
///
/// # Errors
/// That error.
pub(super) fn outcome(returned: ErrorHandle) -> Result<(), Error> {
    if returned.is_null() {
        return Ok(());
    }
    match returned.take() {
        Ok(object) => Err(object.to_error()),
        Err(_) => Err(Error::internal("the backend returned an invalid error")),
    }
}

/// A text for C: up to its first zero.
pub(super) fn c_text(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(text.get(..end).unwrap_or_default()).unwrap_or_default()
}

const fn number(code: Code) -> u32 {
    match code {
        Code::Internal => 1,
        Code::NotFound => 2,
        Code::InvalidArgument | Code::MalformedJson | Code::TooLarge | Code::UnsupportedMedia => 3,
        Code::Unavailable
        | Code::Exhausted
        | Code::OutOfMemory
        | Code::RateLimited
        | Code::DeadlineExceeded
        | Code::Restricted
        | Code::Forbidden
        | Code::Unauthenticated => 4,
        Code::Unsupported | Code::MethodNotAllowed => 5,
        Code::AlreadyExists | Code::Conflict => 6,
        Code::Cancelled => 7,
        Code::Unknown => 0,
    }
}

const fn code(number: u32) -> Code {
    match number {
        1 => Code::Internal,
        2 => Code::NotFound,
        3 => Code::InvalidArgument,
        4 => Code::Unavailable,
        5 => Code::Unsupported,
        6 => Code::AlreadyExists,
        7 => Code::Cancelled,
        _ => Code::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_and_a_text_come_back_as_they_went() {
        for known in 0..8 {
            let error = Error::new(code(known), "why");
            assert_eq!(outcome(ErrorObject::raise(&error)), Err(error));
        }
        assert_eq!(outcome(Handle::null()), Ok(()));
        assert_eq!(code(99), Code::Unknown);
        assert_eq!(c_text("a\0b").to_bytes(), b"a");
    }
}
