//! The server's part for Python models: its flags, its environment, its log and its services. The
//! processes are those of `process::python`.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use crate::backend::gateway::Gateway;
use crate::control::engines::config_completion::{PythonDraft, PythonEngine};
use crate::control::engines::model_services::ModelServices;
use crate::control::machine::cores;
use crate::control::machine::cpu_quota::{cores_for, cpu_quota};
use crate::control::machine::process_memory;
use crate::error::Error;
use crate::limits::PYTHON_REGION_SIZE;
use crate::log::{self, Severity};
use crate::process::python::archive::{self, Archives};
use crate::process::python::cores::ProcessCores;
use crate::process::python::host::HostLog;
use crate::process::python::message::LogLevel;
use crate::process::python::{ModelProcess, PythonBackend, PythonCompletion, PythonOptions, RegionLimit};
use crate::runtime::clock;
use crate::settings::{Compat, Settings};

/// Returns the engine of Python models, as the flags say.
pub fn engine(settings: &Settings, services: &ModelServices) -> PythonBackend {
    PythonBackend::new(options(settings, services))
}

/// Returns the options of models' processes.
pub fn options(settings: &Settings, services: &ModelServices) -> PythonOptions {
    let config = &settings.backend_config.python;
    PythonOptions {
        variables,
        interpreter: config.interpreter.clone(),
        forks: config.forks,
        archives: Archives::new(std::env::temp_dir()),
        metrics: Arc::clone(&services.metrics),
        gateway: Arc::clone(&services.gateway) as Arc<dyn Gateway>,
        log: log_line,
        host_log: HOST_LOG,
        is_verbose: settings.log.verbose > 0,
        clock: clock::now,
        region_size: config.region_size.unwrap_or(PYTHON_REGION_SIZE) as u64,
        region_limit: RegionLimit {
            size_max: process_memory::python_region_max(settings) as u64,
            flag: "--python-memory-bytes-max",
            process: "a Python process",
        },
        backend_directory: settings.backend_directory.clone(),
        cores: process_cores(settings),
        exit_timeout: settings.exit_timeout,
        passes_outputs: settings.compat == Compat::Triton,
        finalizing: AtomicUsize::new(0),
    }
}

/// The cores that the flags leave to processes of models: those of heavy models, whatever the models are.
fn process_cores(settings: &Settings) -> ProcessCores {
    let quota = cpu_quota(&|path| std::fs::read_to_string(path).ok()).map(cores_for);
    cores::of_processes(&cores::available(), settings, quota)
}

/// Removes what servers that were killed left behind, when a server starts.
pub fn remove_stale() {
    match archive::remove_stale(&std::env::temp_dir()) {
        0 => {}
        count => log::info(&format!("removed {count} Python environments that another server left behind")),
    }
}

impl PythonEngine for PythonBackend {
    fn complete_config(&self, model: &PythonDraft<'_>) -> Result<String, Error> {
        self.complete(&PythonCompletion {
            name: model.name,
            version: model.version,
            version_directory: &model.version_directory,
            backend: model.backend,
            python: model.python,
            config: &model.config,
        })
    }

    fn is_finalizing(&self) -> bool {
        Self::is_finalizing(self)
    }

    fn processes(&self) -> Vec<ModelProcess> {
        Self::processes(self)
    }
}

/// Logs what a model says through its own thread, which waits for the log.
pub fn log_line(level: LogLevel, text: &str) {
    log::from_model(severity(level), text);
}

/// Logs what a process of a model prints. The thread that reads it serves all processes and waits for no log.
fn log_printed(level: LogLevel, text: &str) {
    log::unlimited(severity(level), text);
}

/// The log for the output of models' processes.
pub const HOST_LOG: HostLog = HostLog { line: log_printed, has_room: log::has_room };

const fn severity(level: LogLevel) -> Severity {
    match level {
        LogLevel::Error => Severity::Error,
        LogLevel::Info => Severity::Info,
        LogLevel::Verbose => Severity::Verbose,
        LogLevel::Warning => Severity::Warning,
    }
}

/// The environment of this process.
pub fn variables() -> Vec<(std::ffi::OsString, std::ffi::OsString)> {
    std::env::vars_os().collect()
}
