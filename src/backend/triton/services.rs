//! What the server gives to hosted backends. Some functions of the interface say nothing of who calls (the log,
//! metrics), so there is one set of services for the process: those of the first loader.

#![expect(clippy::disallowed_types, reason = "taken when a model or an instance ends")]

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::backend::custom_metrics::CustomMetrics;
use crate::backend::gateway::Gateway;
use crate::backend::python::host::LogLine;
use crate::backend::python::message::LogLevel;
use crate::error::Error;
use crate::time::{Clock, Instant};

/// What all hosted backends share.
#[derive(Clone)]
pub struct HostServices {
    /// Takes log lines.
    pub log: LogLine,
    /// Whether verbose lines are logged.
    pub is_verbose: bool,
    /// The clock of the server.
    pub clock: Clock,
    /// Where backends register metrics of their own.
    pub metrics: Arc<CustomMetrics>,
    /// Calls of other models.
    pub gateway: Arc<dyn Gateway>,
}

/// What a loader knows of backends.
#[derive(Clone)]
pub struct HostOptions {
    /// `--backend-directory`.
    pub backend_directory: PathBuf,
    /// Whether backends may complete configurations.
    pub auto_complete: bool,
    /// How long finalizing a model may keep the server from its end.
    pub finalize_max: Duration,
    /// `--backend-config`: the settings for all backends and those of each, as they were given.
    pub settings: Vec<BackendSetting>,
}

/// One `--backend-config=BACKEND,KEY=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendSetting {
    /// The backend; empty for all.
    pub backend: String,
    /// The key.
    pub key: String,
    /// The value.
    pub value: String,
}

/// Logs what nobody can be told.
pub(super) fn log_error(text: &str) {
    if let Ok(services) = get() {
        (services.log)(LogLevel::Error, text);
    }
}

static SERVICES: OnceLock<HostServices> = OnceLock::new();

/// Sets the services, where there are none yet.
pub(super) fn set(services: &HostServices) {
    SERVICES.get_or_init(|| services.clone());
}

/// The services.
///
/// # Errors
/// `Unavailable` before the first library is opened.
pub(super) fn get() -> Result<&'static HostServices, Error> {
    SERVICES.get().ok_or_else(|| Error::unavailable("no backend is hosted yet"))
}

/// When each model or instance began to be finalized that is not yet.
static FINALIZING: Mutex<Vec<Instant>> = Mutex::new(Vec::new());

/// Something is finalized while it lives.
pub(super) struct FinalizeMark(Option<Instant>);

impl FinalizeMark {
    pub(super) fn new() -> Self {
        let began = get().ok().map(|services| (services.clock)());
        if let Some(began) = began {
            FINALIZING.lock().unwrap_or_else(PoisonError::into_inner).push(began);
        }
        Self(began)
    }
}

impl Drop for FinalizeMark {
    fn drop(&mut self) {
        let mut finalizing = FINALIZING.lock().unwrap_or_else(PoisonError::into_inner);
        let own = finalizing.iter().position(|began| Some(*began) == self.0);
        if let Some(own) = own {
            finalizing.swap_remove(own);
        }
    }
}

/// Whether anything is finalized that has begun less than this time ago.
pub(super) fn is_finalizing(longest: Duration) -> bool {
    let Some(services) = SERVICES.get() else { return false };
    let now = (services.clock)();
    let finalizing = FINALIZING.lock().unwrap_or_else(PoisonError::into_inner);
    finalizing.iter().any(|began| now.since(*began) < longest)
}
