//! The services of the server for hosted backends. Some functions of the interface do not identify
//! the caller (the log, metrics), so there is one set of services for the process: those of the
//! first loader.

#![expect(clippy::disallowed_types, reason = "taken when a model or an instance ends")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::python::host::LogLine;
use crate::python::message::LogLevel;
use backend::custom_metrics::{CustomMetrics, MetricKind, MetricOperation, ProcessMetrics};
use backend::gateway::Gateway;
use base::error::Error;
use base::time::{Clock, Instant};

/// The services that all hosted backends share.
#[derive(Clone)]
pub struct HostServices {
    /// Takes log lines.
    pub log: LogLine,
    /// True if verbose lines are logged.
    pub is_verbose: bool,
    /// True in a process of its own: a question about a request is one to the server.
    pub is_remote: bool,
    /// The clock of the server.
    pub clock: Clock,
    /// The metrics that backends register.
    pub metrics: Arc<dyn MetricSource>,
    /// Calls of other models.
    pub gateway: Arc<dyn Gateway>,
}

/// Makes metrics for backends: in the server its registry, in another process a link to it.
pub trait MetricSource: Send + Sync {
    /// Metrics that are named by their own ids, empty at first. Dropped, they drop what was made.
    fn metrics(&self) -> Box<dyn BackendMetrics>;
}

/// The metrics that a backend has made. Errors are the registry's.
pub trait BackendMetrics: Send + Sync {
    /// Makes a family; returns its id.
    ///
    /// # Errors
    /// If there cannot be such a family.
    fn new_family(&self, kind: MetricKind, name: &str, description: &str) -> Result<u32, Error>;

    /// Makes a metric of a family; returns its id.
    ///
    /// # Errors
    /// If there cannot be such a metric.
    fn new_metric(&self, family: u32, labels: Vec<(String, String)>, buckets: &[f64]) -> Result<u32, Error>;

    /// Changes a metric.
    ///
    /// # Errors
    /// If it cannot be changed in this way. In another process the error is logged instead.
    fn update(&self, metric: u32, operation: MetricOperation, value: f64) -> Result<(), Error>;

    /// The value of a metric.
    ///
    /// # Errors
    /// If it has none.
    fn value(&self, metric: u32) -> Result<f64, Error>;

    /// A metric is gone.
    fn drop_metric(&self, metric: u32);

    /// A family is gone.
    fn drop_family(&self, family: u32);
}

impl MetricSource for Arc<CustomMetrics> {
    fn metrics(&self) -> Box<dyn BackendMetrics> {
        Box::new(self.for_process())
    }
}

impl BackendMetrics for ProcessMetrics {
    fn new_family(&self, kind: MetricKind, name: &str, description: &str) -> Result<u32, Error> {
        Self::new_family(self, kind, name, description)
    }

    fn new_metric(&self, family: u32, labels: Vec<(String, String)>, buckets: &[f64]) -> Result<u32, Error> {
        Self::new_metric(self, family, labels, buckets)
    }

    fn update(&self, metric: u32, operation: MetricOperation, value: f64) -> Result<(), Error> {
        Self::update(self, metric, operation, value)
    }

    fn value(&self, metric: u32) -> Result<f64, Error> {
        Self::value(self, metric)
    }

    fn drop_metric(&self, metric: u32) {
        Self::drop_metric(self, metric);
    }

    fn drop_family(&self, family: u32) {
        Self::drop_family(self, family);
    }
}

/// The options of a loader of backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostOptions {
    /// `--backend-directory`.
    pub backend_directory: PathBuf,
    /// True if the library of a backend may be a link that leads out of its repository.
    pub follows_links: bool,
    /// True if backends may complete configurations.
    pub auto_complete: bool,
    /// The time for which finalizing a model may delay the server's end.
    pub finalize_max: Duration,
    /// `--host-policy`: the settings of each policy.
    pub host_policies: HostPolicies,
    /// `--backend-config`: the settings for all backends and those of each, as they were given.
    pub settings: Vec<BackendSetting>,
}

/// The settings of host policies, as they were given, by the name of the policy.
pub type HostPolicies = BTreeMap<String, BTreeMap<String, String>>;

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

/// Logs an error that has no caller.
pub(super) fn log_error(text: &str) {
    if let Ok(services) = get() {
        (services.log)(LogLevel::Error, text);
    }
}

static SERVICES: OnceLock<HostServices> = OnceLock::new();

/// Sets the services, unless they are already set.
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

/// The instants at which models and instances began to be finalized that are not yet.
static FINALIZING: Mutex<Vec<Instant>> = Mutex::new(Vec::new());

/// Marks a finalization while it lives.
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

/// Returns true if a finalization is in progress that began less than this time ago.
pub(super) fn is_finalizing(longest: Duration) -> bool {
    let Some(services) = SERVICES.get() else { return false };
    let now = (services.clock)();
    let finalizing = FINALIZING.lock().unwrap_or_else(PoisonError::into_inner);
    finalizing.iter().any(|began| now.since(*began) < longest)
}
