//! Why a model is not loaded, and the texts for the index and for the client.

use crate::error::{Code, Error};

/// Why a model is not loaded.
#[derive(Clone, Debug)]
pub enum LoadFailure {
    /// There is no such model, or there are several.
    Absent(Error),
    /// Its directory or its configuration will not do.
    Config(Error),
    /// It is an ensemble, and what it is made of will not do.
    Composition(Error),
    /// It has no version that its policy serves.
    Policy(Error),
    /// This version will not do.
    Version(u64, Error),
}

impl LoadFailure {
    /// What happened.
    pub const fn error(&self) -> &Error {
        match self {
            Self::Absent(error) | Self::Composition(error) | Self::Config(error) => error,
            Self::Policy(error) | Self::Version(_, error) => error,
        }
    }

    /// What the index says: with the kind of the failure where a version had one, as Triton does.
    pub fn reason(&self) -> String {
        match self {
            Self::Version(_, error) => format!("{}: {error}", kind(error.code())),
            other => other.error().text().to_owned(),
        }
    }

    /// What a client is told who asked for the load, in Triton's words
    /// (`model_repository_manager.cc`), and why, where Triton tells that to its log alone.
    pub fn told(&self, name: &str) -> Error {
        let unpolled = format!("failed to load '{name}', failed to poll from model repository");
        match self {
            Self::Absent(_) => Error::internal(unpolled),
            Self::Config(error) => Error::internal(format!("{unpolled}: {error}")),
            Self::Composition(error) | Self::Policy(error) => {
                Error::invalid(format!("load failed for model '{name}': {error}\n"))
            }
            Self::Version(version, _) => {
                let state = format!("version {version} is at UNAVAILABLE state: {};\n", self.reason());
                Error::invalid(format!("load failed for model '{name}': {state}"))
            }
        }
    }
}

impl From<Error> for LoadFailure {
    fn from(error: Error) -> Self {
        Self::Config(error)
    }
}

/// A code in the words of Triton's `Status`.
const fn kind(code: Code) -> &'static str {
    match code {
        Code::AlreadyExists => "Already exists",
        Code::Cancelled => "Cancelled",
        Code::Internal => "Internal",
        Code::InvalidArgument | Code::TooLarge | Code::MethodNotAllowed => "Invalid argument",
        Code::NotFound => "Not found",
        Code::Unavailable | Code::DeadlineExceeded => "Unavailable",
        Code::Unknown => "Unknown",
        Code::Unsupported => "Unsupported",
    }
}
