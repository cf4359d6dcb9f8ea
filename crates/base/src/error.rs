//! Errors as clients see them: a code from a closed list, and a text. One table maps a code to its
//! HTTP status and gRPC status; nothing else in the crate does.

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

/// The kinds of failure, as Triton and gRPC name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// The thing to create exists already.
    AlreadyExists,
    /// The client cancelled the request.
    Cancelled,
    /// Another one has the name, or the place.
    Conflict,
    /// The request's deadline passed before there was an answer.
    DeadlineExceeded,
    /// Not now: there is no memory left for it.
    Exhausted,
    /// The operator does not let this client do it, or no client in this way.
    Forbidden,
    /// The server's fault, or the model's.
    Internal,
    /// The client's mistake.
    InvalidArgument,
    /// The client's mistake in JSON: not well-formed, or of another type. tritonserver says 500, and so does REST here
    /// with `--compat=triton`.
    MalformedJson,
    /// The path does not support this HTTP method.
    MethodNotAllowed,
    /// No such path, model or version.
    NotFound,
    /// A model does not fit into the memory: the host may unload another and ask again.
    OutOfMemory,
    /// More requests a second, or at a time, than the operator lets this client send.
    RateLimited,
    /// The operator lets only clients with a key do this.
    Restricted,
    /// Larger than a limit that the text names.
    TooLarge,
    /// The client has sent no key, or an unknown one.
    Unauthenticated,
    /// Not now: the queue is full, or the server or model is starting or stopping.
    Unavailable,
    /// No other code fits.
    Unknown,
    /// Not implemented, or not for this model.
    Unsupported,
    /// The body has an unknown encoding.
    UnsupportedMedia,
}

impl Code {
    /// All of them, in their order.
    pub const ALL: [Self; Self::UnsupportedMedia as usize + 1] = [
        Self::AlreadyExists,
        Self::Cancelled,
        Self::Conflict,
        Self::DeadlineExceeded,
        Self::Exhausted,
        Self::Forbidden,
        Self::Internal,
        Self::InvalidArgument,
        Self::MalformedJson,
        Self::MethodNotAllowed,
        Self::NotFound,
        Self::OutOfMemory,
        Self::RateLimited,
        Self::Restricted,
        Self::TooLarge,
        Self::Unauthenticated,
        Self::Unavailable,
        Self::Unknown,
        Self::Unsupported,
        Self::UnsupportedMedia,
    ];

    /// Returns its number between processes of this program, from one.
    pub const fn number(self) -> u8 {
        self as u8 + 1
    }

    /// Returns the code of this number.
    pub fn of_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }

    /// Returns its word as a label of metrics.
    pub const fn label(self) -> &'static str {
        match self {
            Self::AlreadyExists => "already_exists",
            Self::Cancelled => "cancelled",
            Self::Conflict => "conflict",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::Exhausted => "exhausted",
            Self::Forbidden => "forbidden",
            Self::Internal => "internal",
            Self::InvalidArgument => "invalid_argument",
            Self::MalformedJson => "malformed_json",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::NotFound => "not_found",
            Self::OutOfMemory => "out_of_memory",
            Self::RateLimited => "rate_limited",
            Self::Restricted => "restricted",
            Self::TooLarge => "too_large",
            Self::Unauthenticated => "unauthenticated",
            Self::Unavailable => "unavailable",
            Self::Unknown => "unknown",
            Self::Unsupported => "unsupported",
            Self::UnsupportedMedia => "unsupported_media",
        }
    }

    /// Returns `(HTTP status, gRPC status)`, as Triton maps them (`http_server.cc`,
    /// `grpc_utils.cc`).
    pub const fn on_wire(self) -> (u16, u8) {
        match self {
            Self::AlreadyExists => (400, 6),
            Self::Cancelled => (400, 1),
            Self::Conflict => (409, 6),
            Self::DeadlineExceeded => (504, 4),
            Self::Exhausted => (503, 8),
            Self::Forbidden => (403, 7),
            Self::Internal => (500, 13),
            Self::InvalidArgument | Self::MalformedJson => (400, 3),
            Self::MethodNotAllowed => (405, 12),
            Self::NotFound => (404, 5),
            // SageMaker's contract of multi-model endpoints.
            Self::OutOfMemory => (507, 8),
            Self::RateLimited => (429, 8),
            Self::Restricted => (403, 14),
            Self::TooLarge => (413, 8),
            Self::Unauthenticated => (401, 16),
            Self::Unavailable => (503, 14),
            Self::Unknown => (400, 2),
            Self::Unsupported => (501, 12),
            Self::UnsupportedMedia => (415, 12),
        }
    }
}

/// A refused or failed request: a code, and a text with the expected value, the given value and the
/// remedy. The text quotes only what the client sent.
///
/// ```
/// use base::error::{Code, Error};
///
/// let error = Error::not_found("is not loaded").with_prefix("model 'm' ");
/// assert_eq!(error.code(), Code::NotFound);
/// assert_eq!(error.text(), "model 'm' is not loaded");
/// assert_eq!(error.code().on_wire(), (404, 5));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    code: Code,
    text: Cow<'static, str>,
    retry_after: Option<RetryAfter>,
    is_overload: bool,
}

impl Error {
    /// The text of a refusal by a full queue, as Triton words it.
    pub const QUEUE_FULL: &str = "Exceeds maximum queue size";

    /// Creates an error with this code and text.
    pub fn new(code: Code, text: impl Into<Cow<'static, str>>) -> Self {
        Self { code, text: text.into(), retry_after: None, is_overload: false }
    }

    /// The client's mistake (400, `INVALID_ARGUMENT`).
    pub fn invalid(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::InvalidArgument, text)
    }

    /// The client's mistake in JSON (400, `INVALID_ARGUMENT`).
    pub fn malformed_json(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::MalformedJson, text)
    }

    /// The server's fault, or the model's (500, `INTERNAL`).
    pub fn internal(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::Internal, text)
    }

    /// No such path, model or version (404, `NOT_FOUND`).
    pub fn not_found(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::NotFound, text)
    }

    /// Not now (503, `UNAVAILABLE`).
    pub fn unavailable(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::Unavailable, text)
    }

    /// Not now, since a queue or a bound of requests is full (503, `UNAVAILABLE`). Interfaces with a code of its own for that
    /// give it.
    pub fn overloaded(text: impl Into<Cow<'static, str>>) -> Self {
        Self { is_overload: true, ..Self::unavailable(text) }
    }

    /// Not implemented, or not for this model (501, `UNIMPLEMENTED`).
    pub fn unsupported(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::Unsupported, text)
    }

    /// Larger than a limit (413, `RESOURCE_EXHAUSTED`).
    pub fn too_large(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::TooLarge, text)
    }

    /// Returns the code.
    pub const fn code(&self) -> Code {
        self.code
    }

    /// Returns the text, as the client reads it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns true for a refusal because a queue or a bound of requests is full.
    pub const fn is_overload(&self) -> bool {
        self.is_overload
    }

    /// Puts `prefix` before the text.
    pub fn with_prefix(self, prefix: &str) -> Self {
        Self { text: Cow::Owned(format!("{prefix}{}", self.text)), ..self }
    }

    /// Puts `suffix` behind the text.
    pub fn with_suffix(self, suffix: &str) -> Self {
        Self { text: Cow::Owned(format!("{}{suffix}", self.text)), ..self }
    }

    /// The same, for a client that may try again after `wait`.
    #[must_use]
    pub fn with_retry_after(self, wait: Duration) -> Self {
        Self { retry_after: Some(RetryAfter::new(wait)), ..self }
    }

    /// Returns the wait before the client may try again: the given one, or a second for codes that
    /// mean "not now".
    pub const fn retry_after(&self) -> Option<RetryAfter> {
        match self.code {
            Code::Exhausted | Code::Unavailable if self.retry_after.is_none() => Some(RetryAfter::SECOND),
            _ => self.retry_after,
        }
    }
}

/// The wait of a client before it tries again, in milliseconds, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryAfter(NonZeroU32);

impl RetryAfter {
    /// A second: the default.
    pub const SECOND: Self = Self(NonZeroU32::MIN.saturating_add(999));

    /// Rounded up, so that no client comes too early.
    fn new(wait: Duration) -> Self {
        let millis = u32::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX);
        Self(NonZeroU32::new(millis).unwrap_or(NonZeroU32::MIN))
    }

    /// Returns milliseconds, as gRPC's clients take it.
    pub const fn millis(self) -> u32 {
        self.0.get()
    }

    /// In seconds, rounded up, as HTTP's clients take it.
    pub const fn seconds(self) -> u32 {
        self.0.get().div_ceil(1_000)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clients_mistake_is_never_a_server_error() {
        for code in [Code::InvalidArgument, Code::NotFound, Code::TooLarge, Code::MethodNotAllowed, Code::AlreadyExists]
        {
            assert_eq!(code.on_wire().0 / 100, 4, "{code:?}");
        }
    }

    #[test]
    fn every_code_has_its_place_its_number_and_its_label() {
        for (index, code) in Code::ALL.into_iter().enumerate() {
            assert_eq!(code as usize, index);
            assert_eq!(Code::of_number(code.number()), Some(code));
            assert!(Code::ALL.iter().all(|other| *other == code || other.label() != code.label()), "{code:?}");
        }
        assert_eq!((Code::of_number(0), Code::of_number(Code::ALL.len() as u8 + 1)), (None, None));
    }
}
