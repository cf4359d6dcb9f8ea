//! The models of Triton's backends that run in processes of their own, and the start of these
//! processes.

use std::sync::{Arc, OnceLock};

use crate::control::engines::config_completion::LibraryCompletion;
use crate::control::engines::hosted_backends;
use crate::control::engines::isolation::ISOLATION;
use crate::control::engines::model_services::ModelServices;
use crate::control::engines::python;
use crate::control::machine::process_memory;
use crate::error::Error;
use crate::model::ModelSpec;
use crate::model::config::ConfigDraft;
use crate::process::python::host::PythonHost;
use crate::process::python::{LibraryProcesses, ModelProcess, PythonOptions, RegionLimit};
use crate::process::triton::{HostedChanges, HostedDraft};
use crate::process::triton_process::IsolatedLibraries;
use crate::runtime::clock;
use crate::settings::{BACKEND_COMMAND, Isolation, Settings};

/// Starts the processes of Triton's backends. Shared by all load threads.
pub struct LibraryIsolation {
    settings: Arc<Settings>,
    services: ModelServices,
    /// Set by the first such model.
    libraries: OnceLock<Result<IsolatedLibraries, Error>>,
}

impl LibraryIsolation {
    /// Creates it without starting a process.
    pub fn new(settings: &Arc<Settings>, services: &ModelServices) -> Self {
        Self { settings: Arc::clone(settings), services: services.clone(), libraries: OnceLock::new() }
    }

    /// Returns the processes that run a model of a shared library; `None` if the server runs it,
    /// and for other models.
    ///
    /// # Errors
    /// `InvalidArgument` for another value of the parameter; the reason that there are no
    /// processes.
    pub fn of(&self, spec: &ModelSpec) -> Result<Option<&IsolatedLibraries>, Error> {
        if spec.library.is_none() {
            return Ok(None);
        }
        let named = spec.parameters.get(ISOLATION).map(String::as_str);
        if is_isolated(&spec.name, named, &self.settings)? { self.libraries().map(Some) } else { Ok(None) }
    }

    /// The processes that run.
    pub fn running(&self) -> Vec<ModelProcess> {
        let libraries = self.libraries.get().and_then(|libraries| libraries.as_ref().ok());
        libraries.map(|libraries| libraries.processes.host.processes()).unwrap_or_default()
    }

    /// Returns true if any instance is finalized now.
    pub fn is_finalizing(&self) -> bool {
        matches!(self.libraries.get(), Some(Ok(libraries)) if libraries.processes.is_finalizing())
    }

    fn libraries(&self) -> Result<&IsolatedLibraries, Error> {
        let start = || {
            let settings = &*self.settings;
            let options = PythonOptions {
                region_limit: RegionLimit {
                    size_max: process_memory::run_max(settings) as u64,
                    flag: "--run-memory-bytes-max",
                    process: "the process of the model",
                },
                ..python::options(settings, &self.services)
            };
            Ok(IsolatedLibraries {
                processes: LibraryProcesses {
                    options: Arc::new(options),
                    host: PythonHost::start("backend-host", python::HOST_LOG, clock::now, python::variables())?,
                    load_timeout: Some(settings.load_timeout).filter(|timeout| !timeout.is_zero()),
                },
                options: hosted_backends::options(settings),
                is_verbose: settings.log.verbose > 0,
                command: BACKEND_COMMAND,
            })
        };
        self.libraries.get_or_init(start).as_ref().map_err(Clone::clone)
    }
}

impl LibraryCompletion for LibraryIsolation {
    fn complete(&self, draft: &ConfigDraft, hosted: &HostedDraft<'_>) -> Result<Option<HostedChanges>, Error> {
        if !is_isolated(draft.name(), draft.parameter(ISOLATION), &self.settings)? {
            return Ok(None);
        }
        self.libraries()?.complete(hosted).map(Some)
    }
}

/// Returns true if a model of a shared library runs in processes of its own: its parameter, or else
/// `--backend-isolation`.
fn is_isolated(model: &str, named: Option<&str>, settings: &Settings) -> Result<bool, Error> {
    let named = named.map(|value| {
        Isolation::from_name(value)
            .map_err(|why| Error::invalid(format!("parameter '{ISOLATION}' of model '{model}' is '{value}', {why}")))
    });
    Ok(named.transpose()?.unwrap_or(settings.backend_isolation) == Isolation::Process)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parameter_goes_before_the_flag_and_another_value_is_refused() {
        let check = |flag, named, want: Result<bool, &str>| {
            let settings = Settings { backend_isolation: flag, ..Settings::default() };
            let got = is_isolated("m", named, &settings).map_err(|error| error.text().to_owned());
            assert_eq!(got, want.map_err(str::to_owned), "{flag:?} {named:?}");
        };
        check(Isolation::None, None, Ok(false));
        check(Isolation::Process, None, Ok(true));
        check(Isolation::Process, Some("none"), Ok(false));
        check(Isolation::None, Some("process"), Ok(true));
        check(
            Isolation::None,
            Some("yes"),
            Err("parameter 'isolation' of model 'm' is 'yes', expected 'none' or 'process'"),
        );
    }
}
