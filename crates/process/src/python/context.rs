//! The state that the instances of one loaded Python model share, and that all Python models share:
//! options, the log, and the record of the processes that were lost.

#![expect(clippy::disallowed_types, reason = "taken when an instance is made or lost, never for a batch")]

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::python::archive::Archives;
use crate::python::cores::ProcessCores;
use crate::python::environment::{Interpreter, refuse_start};
use crate::python::exit::ExitReason;
use crate::python::flights::RunOrder;
use crate::python::host::{HostLog, LogLine};
use crate::python::memory::RegionLimit;
use crate::python::message::LogLevel;
use crate::python::process::PythonProcess;
use crate::python::restart::RestartPause;
use backend::Request;
use backend::batch::check_response;
use backend::custom_metrics::{CustomMetrics, ProcessMetrics};
use backend::gateway::Gateway;
use base::error::Error;
use base::limits::PYTHON_FINALIZE_MAX;
use base::metrics::Gauge;
use base::tensor::{Datatype, Tensor};
use base::time::{Clock, Instant};
use model::ModelSpec;

/// The time to wait for the end of a process that could not start, to report the reason.
const START_END_WAIT: Duration = Duration::from_secs(2);

/// The options that all Python models share.
pub struct PythonOptions {
    /// Reads the server's environment.
    pub variables: fn() -> Vec<(OsString, OsString)>,
    /// The interpreter of models without an environment of their own (`--backend-config=python,interpreter=PATH`).
    pub interpreter: Option<PathBuf>,
    /// `--backend-config=python,fork=`: true for `on`, false for `off`, `None` for `auto`.
    pub forks: Option<bool>,
    /// Unpacks packed environments.
    pub archives: Archives,
    /// The metrics that models register.
    pub metrics: Arc<CustomMetrics>,
    /// Calls of other models.
    pub gateway: Arc<dyn Gateway>,
    /// Takes log lines.
    pub log: LogLine,
    /// Takes what processes print.
    pub host_log: HostLog,
    /// True if models see that verbose lines are logged.
    pub is_verbose: bool,
    /// The clock of the server.
    pub clock: Clock,
    /// Bytes of a region at first.
    pub region_size: u64,
    /// The size limit of a region.
    pub region_limit: RegionLimit,
    /// The directory of Python-based backends (`--backend-directory`).
    pub backend_directory: PathBuf,
    /// The cores of processes.
    pub cores: ProcessCores,
    /// Time limit of finalize when the server ends.
    pub exit_timeout: Duration,
    /// True if an output that differs from its declaration is passed on (`--compat=triton`).
    pub passes_outputs: bool,
    /// Instances whose process finalizes now.
    pub finalizing: AtomicUsize,
}

/// One loaded version, as its instances see it.
pub(super) struct PythonModelContext {
    pub(super) name: String,
    /// Its name in its namespace, by which the server tracks the models that wait for each other.
    pub(super) qualified_name: Arc<str>,
    pub(super) version: u64,
    /// Names and datatypes of the outputs.
    pub(super) outputs: Vec<(String, Datatype)>,
    /// The configuration that outputs are compared with; `None` if they are passed on as they come.
    pub(super) declared: Option<Arc<ModelSpec>>,
    pub(super) is_decoupled: bool,
    pub(super) program: ModelProgram,
    pub(super) options: Arc<PythonOptions>,
    /// The memory of its processes.
    pub(super) memory: Arc<Gauge>,
    lost: Mutex<HashMap<String, LostProcess>>,
    /// The instant at which the version was unloaded.
    unloaded: OnceLock<Instant>,
}

/// The program of a model's processes, and their limits.
pub(super) enum ModelProgram {
    /// A backend that is a shared library, in this program once more.
    Library {
        /// The time limit of a load.
        load_timeout: Option<Duration>,
    },
    /// `model.py` in an interpreter.
    Python {
        /// The interpreter.
        interpreter: Interpreter,
        /// The time limit of a batch (`execute_timeout_ms`).
        execute_timeout: Option<Duration>,
        /// The batches that a process may run at once, where the model says it (`execute_concurrency`).
        concurrency: Option<usize>,
        /// True if instances are forked from a template, false if not; `None` if there are several.
        forks: Option<bool>,
    },
}

impl ModelProgram {
    /// The name of its process in the log.
    pub(super) const fn process(&self) -> &'static str {
        match self {
            Self::Library { .. } => "process",
            Self::Python { .. } => "Python process",
        }
    }

    /// The batches that a process runs at once.
    pub(super) const fn run_order(&self, is_async: bool, is_decoupled: bool) -> RunOrder {
        match self {
            Self::Library { .. } => RunOrder::InTurn,
            Self::Python { concurrency, .. } => RunOrder::new(*concurrency, is_async, is_decoupled),
        }
    }

    /// Returns true if it is the server's own program, which reports more about its end.
    pub(super) const fn is_library(&self) -> bool {
        matches!(self, Self::Library { .. })
    }
}

/// The record of an instance whose process was lost.
#[derive(Default)]
struct LostProcess {
    /// The requests of each batch that it had not begun.
    unbegun: Vec<Vec<Request>>,
    restart: RestartPause,
}

impl PythonModelContext {
    /// A model without outputs.
    pub(super) fn new(name: &str, version: u64, program: ModelProgram, options: &Arc<PythonOptions>) -> Self {
        Self {
            name: name.to_owned(),
            qualified_name: name.into(),
            version,
            outputs: Vec::new(),
            declared: None,
            is_decoupled: false,
            program,
            options: Arc::clone(options),
            memory: Arc::default(),
            lost: Mutex::default(),
            unloaded: OnceLock::new(),
        }
    }

    /// The context of a model in a namespace.
    pub(super) fn with_qualified_name(self, qualified_name: &str) -> Self {
        Self { qualified_name: qualified_name.into(), ..self }
    }

    /// The same with outputs.
    pub(super) fn with_outputs(self, outputs: Vec<(String, Datatype)>, is_decoupled: bool) -> Self {
        Self { outputs, is_decoupled, ..self }
    }

    /// The same with the configuration that its outputs are compared with.
    pub(super) fn with_declared(self, declared: Option<Arc<ModelSpec>>) -> Self {
        Self { declared, ..self }
    }

    /// Checks the outputs of one response to a request of this many rows, if they are compared with the configuration.
    ///
    /// # Errors
    /// `Internal` if one differs from its declaration: the model is at fault.
    pub(super) fn checked(&self, mut outputs: Vec<Tensor>, rows: u32) -> Result<Vec<Tensor>, Error> {
        if let Some(declared) = &self.declared {
            check_response(declared, &mut outputs, rows)?;
        }
        Ok(outputs)
    }

    pub(super) fn clock(&self) -> Clock {
        self.options.clock
    }

    pub(super) fn gateway(&self) -> &dyn Gateway {
        &*self.options.gateway
    }

    pub(super) fn finalize_timeout(&self) -> Duration {
        self.options.exit_timeout.min(PYTHON_FINALIZE_MAX)
    }

    pub(super) fn log(&self, level: LogLevel, text: &str) {
        (self.options.log)(level, text);
    }

    pub(super) fn log_fault(&self, instance: &str, text: &str) {
        self.log(LogLevel::Error, &format!("{instance}: {text}"));
    }

    /// The metrics of one process, which go with it.
    pub(super) fn new_metrics(&self) -> ProcessMetrics {
        self.options.metrics.for_process()
    }

    /// A process was lost: keeps the requests that it had not begun for the next one, which starts at once if this one
    /// has ever answered.
    pub(super) fn handle_lost(&self, instance: &str, unbegun: Vec<Vec<Request>>, has_answered: bool) {
        let mut lost = self.lock();
        let lost = lost.entry(instance.to_owned()).or_default();
        lost.restart.handle_lost(has_answered);
        lost.unbegun.extend(unbegun);
    }

    /// An instance gets another process now.
    ///
    /// # Errors
    /// `Unavailable` if the last one ended soon after its start, and it is too early for the next.
    pub(super) fn handle_restart(&self, instance: &str) -> Result<(), Error> {
        let now = self.clock()();
        let mut lost = self.lock();
        lost.entry(instance.to_owned()).or_default().restart.handle_restart(now)
    }

    /// The version was unloaded: a start from now on has the time limit of finalize.
    pub(super) fn handle_unload(&self) {
        self.unloaded.get_or_init(self.clock());
    }

    /// Checks that a start is still of use.
    ///
    /// # Errors
    /// `Unavailable` if the version was unloaded, and the wait takes too long.
    pub(super) fn check_wanted(&self) -> Result<(), Error> {
        let Some(unloaded) = self.unloaded.get() else { return Ok(()) };
        if self.clock()() < *unloaded + self.finalize_timeout() {
            return Ok(());
        }
        Err(Error::unavailable("the model was unloaded before its process had started"))
    }

    /// Takes the batches that the last process of an instance had not begun.
    pub(super) fn take_unbegun(&self, instance: &str) -> Vec<Vec<Request>> {
        self.lock().get_mut(instance).map(|lost| std::mem::take(&mut lost.unbegun)).unwrap_or_default()
    }

    /// The error of a process that ended before its model was initialized: if its program had begun the model is at
    /// fault, else the interpreter.
    pub(super) fn early_end(&self, instance: &str, process: &PythonProcess, has_program: bool) -> Error {
        // It closes its sockets before it ends, and its own reason is worth a moment.
        let own_reason = process.wait_ended(START_END_WAIT / 4);
        process.kill();
        let reason = own_reason.or_else(|| process.wait_ended(START_END_WAIT));
        match (&self.program, reason) {
            (ModelProgram::Library { .. }, reason) => {
                let reason = reason.unwrap_or(ExitReason::Unknown);
                self.log_fault(instance, &format!("its process ended ({reason}) while it loaded the model"));
                Error::internal(format!(
                    "unable to load model '{}': its process ended ({reason}) while it loaded the model (isolation: process)",
                    self.name
                ))
            }
            (ModelProgram::Python { .. }, None) => unhealthy(instance),
            (ModelProgram::Python { interpreter, .. }, Some(reason)) if !has_program => {
                refuse_start(interpreter, reason, &process.stderr())
            }
            (ModelProgram::Python { .. }, Some(reason)) => {
                let text = format!("its Python process ended while the model was initialized: {reason}");
                self.log_fault(instance, &text);
                unhealthy(instance)
            }
        }
    }

    /// The error of a request whose process has ended.
    pub(super) fn lost(&self, instance: &str, reason: Option<ExitReason>) -> Error {
        match (&self.program, reason) {
            (ModelProgram::Python { .. }, _) => unhealthy(instance),
            (ModelProgram::Library { .. }, reason) => {
                let reason = reason.map_or_else(String::new, |reason| format!(" ({reason})"));
                let name = &self.name;
                Error::internal(format!(
                    "the process of model '{name}' ended{reason} while it had the request; it is started again"
                ))
            }
        }
    }

    /// Checks the time that a load has taken.
    ///
    /// # Errors
    /// `Internal` if it took too long: its processes are of no use.
    pub(super) fn check_load_time(&self, began: Instant) -> Result<(), Error> {
        let ModelProgram::Library { load_timeout: Some(timeout) } = &self.program else { return Ok(()) };
        if self.clock()().since(began) < *timeout {
            return Ok(());
        }
        Err(Error::internal(format!(
            "unable to load model '{}': its process took longer than {timeout:?} (--load-timeout-secs) and was killed",
            self.name
        )))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, LostProcess>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Triton's error of a request whose process has ended.
pub(super) fn unhealthy(instance: &str) -> Error {
    Error::internal(format!("Stub process '{instance}' is not healthy."))
}
