//! The reasons that a model is not loaded, and the texts for the index and for the client.

use crate::error::{Code, Error};

/// The reason that a model is not loaded.
#[derive(Clone, Debug)]
pub enum LoadFailure {
    /// No repository has the model, or more than one has.
    Absent(Error),
    /// The directory or the configuration is invalid.
    Config(Error),
    /// The model is an ensemble that does not fit its composing models.
    Composition(Error),
    /// The directory has neither a configuration nor a version.
    NoModel(Error),
    /// There is no version that the version policy selects.
    Policy(Error),
    /// A flag forbids what a client asked for. The model is as it was.
    Refused(Error),
    /// The configuration or the files that a client sent for the model are invalid.
    Uploaded(Error),
    /// This version cannot be loaded.
    Version(u64, Error),
}

impl LoadFailure {
    /// Returns the error without the context of the load.
    pub const fn error(&self) -> &Error {
        match self {
            Self::Absent(error) | Self::Composition(error) | Self::Config(error) => error,
            Self::NoModel(error) | Self::Policy(error) | Self::Refused(error) => error,
            Self::Uploaded(error) | Self::Version(_, error) => error,
        }
    }

    /// Returns the line of the log.
    pub fn log_text(&self, name: &str) -> String {
        match self {
            Self::Version(version, error) => {
                format!("failed to load '{name}': {error} (version {version}, {name}/{version})")
            }
            _ => format!("failed to load '{name}': {}", self.error()),
        }
    }

    /// Returns the reason in the index. As in Triton, the reason of a version begins with the kind
    /// of the error.
    pub fn reason(&self) -> String {
        match self {
            Self::Version(_, error) => format!("{}: {error}", kind(error.code())),
            other => other.error().text().to_owned(),
        }
    }

    /// Returns the reason as an ensemble tells it whose step the model is.
    pub fn reason_for_ensembles(&self) -> String {
        match self {
            Self::Version(version, _) => format!("version {version} is at UNAVAILABLE state: {};", self.reason()),
            _ => self.reason(),
        }
    }

    /// The answer to the client that asked for the load, in Triton's words (`model_repository_manager.cc`). For a
    /// bad configuration it has the reason too, which Triton only logs. A client's mistake is `NotFound` or
    /// `InvalidArgument`; with `follows_triton` it is `Internal`, as in Triton.
    pub fn answer(&self, name: &str, follows_triton: bool) -> Error {
        let unpolled = format!("failed to load '{name}', failed to poll from model repository");
        match self {
            Self::Absent(error) if error.code() == Code::NotFound && !follows_triton => Error::not_found(unpolled),
            Self::Absent(_) => Error::internal(unpolled),
            Self::Uploaded(error) if !follows_triton => Error::invalid(format!("{unpolled}: {error}")),
            Self::Config(error) | Self::NoModel(error) | Self::Uploaded(error) => {
                Error::internal(format!("{unpolled}: {error}"))
            }
            Self::Refused(error) => error.clone(),
            Self::Composition(error) | Self::Policy(error) => {
                Error::invalid(format!("load failed for model '{name}': {error}\n"))
            }
            Self::Version(..) => {
                let reason = self.reason_for_ensembles();
                Error::invalid(format!("load failed for model '{name}': {reason}\n"))
            }
        }
    }
}

impl From<Error> for LoadFailure {
    fn from(error: Error) -> Self {
        Self::Config(error)
    }
}

/// Returns the name of a code in Triton's `Status`.
const fn kind(code: Code) -> &'static str {
    match code {
        Code::AlreadyExists | Code::Conflict => "Already exists",
        Code::Cancelled => "Cancelled",
        Code::Internal => "Internal",
        Code::InvalidArgument | Code::MalformedJson | Code::TooLarge | Code::MethodNotAllowed => "Invalid argument",
        Code::NotFound => "Not found",
        Code::Unavailable
        | Code::DeadlineExceeded
        | Code::Exhausted
        | Code::Forbidden
        | Code::OutOfMemory
        | Code::RateLimited
        | Code::Restricted
        | Code::Unauthenticated => "Unavailable",
        Code::Unknown => "Unknown",
        Code::Unsupported | Code::UnsupportedMedia => "Unsupported",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clients_mistake_is_told_as_one_unless_triton_is_followed() {
        let codes = |failure: LoadFailure| [false, true].map(|follows| failure.answer("m", follows).code());
        let own = [Code::Internal; 2];
        assert_eq!(codes(LoadFailure::Absent(Error::not_found("x"))), [Code::NotFound, Code::Internal]);
        assert_eq!(codes(LoadFailure::Uploaded(Error::invalid("x"))), [Code::InvalidArgument, Code::Internal]);
        assert_eq!(codes(LoadFailure::Absent(Error::invalid("two repositories have it"))), own);
        assert_eq!(codes(LoadFailure::Config(Error::invalid("x"))), own, "the repository's own");
        let text = LoadFailure::Absent(Error::not_found("x")).answer("m", false);
        assert_eq!(text.text(), "failed to load 'm', failed to poll from model repository");
    }
}
