//! The choice of the Python interpreter for a model, and the environment variables of its
//! processes. Called when a model is loaded. No interpreter is started here: that would cost every
//! load a tenth of a second. The process itself reports missing parts when it starts, and
//! [`refuse_start`] passes that on.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::python::archive::{Archives, UnpackedArchive};
use crate::python::exit::ExitReason;
use base::error::Error;

/// A Python interpreter.
#[derive(Clone, Debug)]
pub struct Interpreter {
    /// The program, with an absolute path.
    pub path: PathBuf,
    /// The setting that named it.
    pub source: InterpreterSource,
    /// The directory of the model's own execution environment, if it has one.
    pub environment: Option<PathBuf>,
    /// The archive from which that directory was unpacked: it exists as long as a reference to
    /// this.
    pub archive: Option<Arc<UnpackedArchive>>,
}

/// The setting that named an interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterpreterSource {
    /// The flag `--backend-config=python,interpreter=PATH`.
    BackendConfig,
    /// The variable `CONDA_PREFIX`.
    CondaPrefix,
    /// The model's parameter `EXECUTION_ENV_PATH`.
    ExecutionEnvironment,
    /// The first `python3` of `PATH`.
    Path,
    /// The variable `VIRTUAL_ENV`.
    VirtualEnv,
}

impl fmt::Display for InterpreterSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BackendConfig => "--backend-config=python,interpreter",
            Self::CondaPrefix => "CONDA_PREFIX",
            Self::ExecutionEnvironment => "EXECUTION_ENV_PATH",
            Self::Path => "python3 in PATH",
            Self::VirtualEnv => "VIRTUAL_ENV",
        })
    }
}

/// The inputs to the choice of an interpreter.
pub struct InterpreterSearch<'a> {
    /// The model's parameter `EXECUTION_ENV_PATH`.
    pub execution_environment: Option<&'a str>,
    /// The model's directory, for `$$TRITON_MODEL_DIRECTORY`.
    pub model_directory: &'a Path,
    /// The flag `--backend-config=python,interpreter=PATH`.
    pub configured: Option<&'a Path>,
    /// The variables of the server's environment.
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// Unpacks an archive.
    pub archives: &'a Archives,
}

impl InterpreterSearch<'_> {
    /// The interpreter: of the model's execution environment, else that of the flag, else of the active environment,
    /// else the `python3` of `PATH`.
    ///
    /// # Errors
    ///
    /// If the named interpreter does not exist, or none was named and none found.
    pub fn find(&self) -> Result<Interpreter, Error> {
        if let Some(parameter) = self.execution_environment.filter(|parameter| !parameter.is_empty()) {
            return self.in_execution_environment(parameter);
        }
        if let Some(path) = self.configured {
            // As a shell takes it: a bare name is looked for in PATH, another path starts in the server's directory.
            let is_bare = path.parent() == Some(Path::new(""));
            let found = if is_bare { self.in_path(path) } else { None };
            let path = found.unwrap_or_else(|| std::path::absolute(path).unwrap_or_else(|_| path.to_owned()));
            return Ok(Interpreter {
                path,
                source: InterpreterSource::BackendConfig,
                environment: None,
                archive: None,
            });
        }
        let in_prefix = |name, source| {
            let path = python_in(Path::new(&self.variable(name)?))?;
            Some(Interpreter { path, source, environment: None, archive: None })
        };
        let in_path = || {
            let path = self.in_path(Path::new("python3"))?;
            Some(Interpreter { path, source: InterpreterSource::Path, environment: None, archive: None })
        };
        in_prefix("VIRTUAL_ENV", InterpreterSource::VirtualEnv)
            .or_else(|| in_prefix("CONDA_PREFIX", InterpreterSource::CondaPrefix))
            .or_else(in_path)
            .ok_or_else(|| {
                Error::internal(format!("no Python interpreter was found: no python3 in PATH. {HOW_TO_NAME}"))
            })
    }

    /// A variable that is not empty.
    fn variable(&self, name: &str) -> Option<OsString> {
        (self.variable)(name).filter(|value| !value.is_empty())
    }

    /// The first program of this name in `PATH`.
    fn in_path(&self, name: &Path) -> Option<PathBuf> {
        std::env::split_paths(&self.variable("PATH")?)
            .filter(|folder| folder.is_absolute())
            .map(|folder| folder.join(name))
            .find(|path| path.is_file())
    }

    fn in_execution_environment(&self, parameter: &str) -> Result<Interpreter, Error> {
        let named = parameter.replace(MODEL_DIRECTORY, &self.model_directory.to_string_lossy());
        // Triton's texts (pb_env.cc, stub_launcher.cc).
        let named = std::fs::canonicalize(&named)
            .map_err(|_| Error::internal(format!("Failed to get the canonical path for {named}.")))?;
        let archive = if named.is_dir() { None } else { Some(self.archives.unpack(&named)?) };
        let root = archive.as_ref().map_or(named.as_path(), |archive| archive.path());
        if !root.join("bin/activate").exists() {
            let activate = named.join("bin/activate").display().to_string();
            return Err(Error::internal(format!(
                "Path {activate} does not exist. The Python environment should contain an 'activate' script."
            )));
        }
        let path = python_in(root).ok_or_else(|| {
            let named = named.display();
            Error::internal(format!("the Python environment {named} (EXECUTION_ENV_PATH) has no program bin/python"))
        })?;
        let environment = Some(root.to_owned());
        Ok(Interpreter { path, source: InterpreterSource::ExecutionEnvironment, environment, archive })
    }
}

/// In `EXECUTION_ENV_PATH` it stands for the model's directory.
const MODEL_DIRECTORY: &str = "$$TRITON_MODEL_DIRECTORY";

/// The ways to name another interpreter, for refusals.
const HOW_TO_NAME: &str = "Name a Python 3.8 or later that has numpy with --backend-config=python,interpreter=PATH, or for \
     one model with its parameter EXECUTION_ENV_PATH";

/// The interpreter of an environment's directory.
fn python_in(prefix: &Path) -> Option<PathBuf> {
    ["bin/python", "bin/python3"].iter().map(|name| prefix.join(name)).find(|path| path.is_absolute() && path.is_file())
}

/// The refusal if an interpreter cannot be started.
pub(super) fn refuse_spawn(interpreter: &Interpreter, error: &io::Error) -> Error {
    let Interpreter { path, source, .. } = interpreter;
    Error::internal(format!(
        "the Python interpreter '{}' ({source}) could not be started: {error}. {HOW_TO_NAME}",
        path.display()
    ))
}

/// The refusal if a process has ended before its program ran: because of its interpreter, if the
/// last lines of its standard error say so.
pub fn refuse_start(interpreter: &Interpreter, reason: ExitReason, stderr: &str) -> Error {
    let Interpreter { path, source, .. } = interpreter;
    let last = stderr.lines().rev().map(str::trim).find(|line| !line.is_empty());
    let why = last.map_or_else(|| reason.to_string(), |line| format!("{line} ({reason})"));
    Error::internal(format!(
        "the Python interpreter '{}' ({source}) did not start: {why}. {HOW_TO_NAME}",
        path.display()
    ))
}

/// The prefixes of variables that are the server's own: its flags may hold secrets.
const OWN_VARIABLES: &[&str] = &["DEUTERON_"];

/// The variable that most libraries follow: OpenMP, and without a variable of their own MKL, OpenBLAS, BLIS, numexpr.
const GENERAL_THREADS: &str = "OMP_NUM_THREADS";

/// The variables by which libraries take the number of their threads, and another name of the same. By default each
/// library starts as many threads as the machine has cores, in each process.
const THREAD_VARIABLES: &[(&str, Option<&str>)] = &[
    (GENERAL_THREADS, None),
    ("BLIS_NUM_THREADS", None),
    ("LOKY_MAX_CPU_COUNT", None),
    ("MKL_NUM_THREADS", None),
    ("NUMBA_NUM_THREADS", None),
    ("NUMEXPR_NUM_THREADS", Some("NUMEXPR_MAX_THREADS")),
    ("OPENBLAS_NUM_THREADS", Some("GOTO_NUM_THREADS")),
    ("OPENCV_FOR_THREADS_NUM", None),
    ("POLARS_MAX_THREADS", None),
    ("RAYON_NUM_THREADS", Some("RAYON_RS_NUM_CPUS")),
    ("TF_NUM_INTEROP_THREADS", None),
    ("TF_NUM_INTRAOP_THREADS", None),
    ("VECLIB_MAXIMUM_THREADS", None),
];

/// The names of the variables by which libraries take the number of their threads.
pub fn thread_variable_names() -> impl Iterator<Item = &'static str> {
    THREAD_VARIABLES.iter().map(|(name, _)| *name)
}

/// The threads of each library of a process: the number that the user set for OpenMP, or else `threads`. Libraries that
/// read another variable first, as torch does with MKL's, would not see the user's otherwise.
pub(super) fn general_threads(server: &[(OsString, OsString)], threads: usize) -> usize {
    let set = server.iter().find(|(name, _)| name == GENERAL_THREADS).and_then(|(_, value)| value.to_str());
    // OpenMP takes a list: the number of each nested level.
    let of_user = set.and_then(|value| value.split(',').next()?.trim().parse::<usize>().ok());
    of_user.filter(|count| *count > 0).unwrap_or(threads).max(1)
}

/// The variables of libraries that the user did not set, with the number of threads. An empty one counts as not set, as
/// it does for the libraries.
pub(super) fn thread_variables(
    server: &[(OsString, OsString)],
    threads: usize,
) -> impl Iterator<Item = (&'static str, String)> {
    let is_set = |name: &str| server.iter().any(|(known, value)| known == name && !value.is_empty());
    let count = general_threads(server, threads).to_string();
    let unset = THREAD_VARIABLES.iter().filter(move |(name, alias)| !is_set(name) && !alias.is_some_and(is_set));
    unset.map(move |(name, _)| (*name, count.clone()))
}

/// The variables of a process: the server's, less its own, with those that the interpreter and
/// `threads` require.
pub(super) fn child_variables(
    server: &[(OsString, OsString)],
    interpreter: &Interpreter,
    threads: usize,
) -> BTreeMap<OsString, OsString> {
    let is_own = |name: &OsStr| OWN_VARIABLES.iter().any(|own| name.as_encoded_bytes().starts_with(own.as_bytes()));
    let mut variables: BTreeMap<_, _> = server.iter().filter(|(name, _)| !is_own(name)).cloned().collect();
    // A line that a model prints appears when it is printed.
    variables.insert("PYTHONUNBUFFERED".into(), "1".into());
    variables.extend(thread_variables(server, threads).map(|(name, count)| (name.into(), count.into())));
    if let Some(root) = &interpreter.environment {
        // The changes of the script bin/activate, which is not run.
        variables.remove(OsStr::new("PYTHONHOME"));
        for (name, folder) in [("PATH", "bin"), ("LD_LIBRARY_PATH", "lib")] {
            let before = variables.get(OsStr::new(name)).filter(|before| !before.is_empty());
            let mut folders = root.join(folder).into_os_string();
            if let Some(before) = before {
                folders.push(":");
                folders.push(before);
            }
            variables.insert(name.into(), folders);
        }
        variables.insert("VIRTUAL_ENV".into(), root.into());
    }
    variables
}

#[cfg(test)]
mod tests;
