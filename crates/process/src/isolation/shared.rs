//! The state that the instances of an isolated model share: the parameters of its processes, and
//! the record of those that were lost.

#![expect(clippy::disallowed_types, reason = "taken when an instance is made or lost, never for a batch")]

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::isolation::engine_process::{EncodedOrder, EngineCommand, EngineFailure, EngineProcess};
use crate::isolation::message::EngineOrder;
use crate::python::host::{LogLine, PythonHost};
use crate::python::message::LogLevel;
use crate::python::restart::RestartPause;
use base::error::Error;
use base::metrics::Gauge;
use base::time::Clock;
use model::ModelSpec;

/// The options that all isolated models share.
#[derive(Clone)]
pub struct IsolationOptions {
    /// The command of this program that runs an engine.
    pub command: &'static str,
    /// Starts and ends the processes.
    pub host: Arc<PythonHost>,
    /// Takes log lines.
    pub log: LogLine,
    /// The clock of the server.
    pub clock: Clock,
    /// The time limit of a load, and of a run that belongs to one; `None` for no limit.
    pub load_timeout: Option<Duration>,
    /// Bytes that one run of the embedded engine may take, and a region.
    pub run_memory_max: u64,
}

/// Checks files before another process opens them.
pub type FilesCheck = Arc<dyn Fn() -> Result<(), Error> + Send + Sync>;

/// The state that the instances of a model version share.
pub(super) struct IsolatedShared {
    pub(super) spec: Arc<ModelSpec>,
    pub(super) options: IsolationOptions,
    /// The memory of its processes.
    pub(super) memory: Arc<Gauge>,
    order: Vec<u8>,
    /// `None` to load by the path.
    file: Option<OwnedFd>,
    check_files: FilesCheck,
    /// A process without an instance.
    spare: Mutex<Option<EngineProcess>>,
    /// The instances that were lost, by name.
    restarts: Mutex<HashMap<String, RestartPause>>,
}

impl IsolatedShared {
    /// `file` is the model's, if it was opened.
    pub(super) fn new(
        spec: &Arc<ModelSpec>,
        options: &IsolationOptions,
        order: &EngineOrder,
        file: Option<OwnedFd>,
        check_files: &FilesCheck,
    ) -> Self {
        Self {
            spec: Arc::clone(spec),
            options: options.clone(),
            memory: Arc::default(),
            order: order.encode(),
            file,
            check_files: Arc::clone(check_files),
            spare: Mutex::default(),
            restarts: Mutex::default(),
        }
    }

    /// A process for an instance: the spare one, or a new one, if it is not too early for that.
    pub(super) fn take(&self, name: &str) -> Result<EngineProcess, Error> {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(process) = spare.filter(|process| process.has_ended().is_none()) {
            return Ok(process);
        }
        let now = (self.options.clock)();
        if let Some(pause) = self.restarts.lock().unwrap_or_else(PoisonError::into_inner).get_mut(name) {
            pause.handle_restart(now)?;
        }
        let started = self.start(name);
        started.inspect_err(|error| self.log_fault(name, &format!("its process cannot be started: {error}")))
    }

    pub(super) fn start(&self, name: &str) -> Result<EngineProcess, Error> {
        (self.check_files)()?;
        let IsolationOptions { command, host, load_timeout, run_memory_max, .. } = &self.options;
        let command = EngineCommand { name, command, memory: &self.memory };
        let order = EncodedOrder { bytes: &self.order, file: self.file.as_ref() };
        let started = EngineProcess::start(host, &command, &order, *load_timeout, *run_memory_max);
        started.map_err(|failure| self.failed(name, failure))
    }

    /// Keeps the process of an instance that is dropped, for the next; one is enough.
    pub(super) fn keep(&self, process: EngineProcess) {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(process);
    }

    /// A process was lost.
    pub(super) fn handle_lost(&self, name: &str, why: &str, has_answered: bool) {
        self.log_fault(name, why);
        let mut restarts = self.restarts.lock().unwrap_or_else(PoisonError::into_inner);
        restarts.entry(name.to_owned()).or_default().handle_lost(has_answered);
    }

    fn log_fault(&self, name: &str, text: &str) {
        (self.options.log)(LogLevel::Error, &format!("{name}: {text}"));
    }

    /// The error of a load that failed.
    pub(super) fn failed(&self, name: &str, failure: EngineFailure) -> Error {
        match failure {
            EngineFailure::Refused(error) => error,
            EngineFailure::Lost(how) => {
                self.handle_lost(name, &format!("its process {how} while it loaded the model"), false);
                Error::internal(format!(
                    "unable to load model '{}': its process {how} while it loaded the model (isolation: process)",
                    self.spec.name
                ))
            }
        }
    }
}
