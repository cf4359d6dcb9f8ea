//! The program of a model's process: an interpreter of Python, or this program once more.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::python::child::ChildProgram;
use crate::python::environment::{Interpreter, child_variables, refuse_spawn, thread_variables};
use base::error::Error;
use base::metrics::Gauge;
use model::InstanceSeat;

/// A process to start.
pub struct ProcessCommand {
    /// The name of the instance.
    pub name: String,
    /// Its program.
    pub program: ProcessProgram,
    /// The main socket: file descriptor 0 of the process.
    pub main: OwnedFd,
    /// The cores that it is pinned to; empty for those of the server.
    pub cores: Vec<usize>,
    /// The memory of the processes of its model version.
    pub memory: Arc<Gauge>,
}

/// The program of a process.
pub enum ProcessProgram {
    /// This program once more.
    Own {
        /// The command.
        command: &'static str,
        /// The threads of the libraries in it, as for Python; `None` for an engine, which is told.
        threads: Option<usize>,
    },
    /// A program in an interpreter of Python.
    Python {
        /// The interpreter that runs it.
        interpreter: Interpreter,
        /// The program (`-c`).
        boot: &'static str,
        /// The number of threads for its libraries, if the user's variables do not set it.
        threads: usize,
        /// True for a template, which says so in the list of processes.
        is_template: bool,
    },
}

/// The mark of a template in the list of processes.
const TEMPLATE_MARK: &str = "(template)";

/// The start of a shared library's process.
pub trait LibraryStart: Send + Sync {
    /// The command of this program that it runs.
    fn command(&self) -> &'static str;

    /// The body of INIT for an instance: the library to open and the model to load. `None` to complete a configuration.
    fn order(&self, seat: Option<&InstanceSeat>) -> Vec<u8>;
}

impl ProcessProgram {
    /// The file that is run, with its arguments and variables. `variables` are those of the server.
    pub(super) fn child(&self, variables: &[(OsString, OsString)]) -> ChildProgram {
        match self {
            Self::Own { command, threads } => {
                let threads = threads.iter().flat_map(|threads| thread_variables(variables, *threads));
                let threads = threads.map(|(name, count)| (name.into(), count.into()));
                ChildProgram {
                    path: "/proc/self/exe".into(),
                    arguments: vec!["deuteron".into(), (*command).into()],
                    variables: variables.iter().cloned().chain(threads).collect(),
                }
            }
            Self::Python { interpreter, boot, threads, is_template } => {
                let mark = is_template.then(|| TEMPLATE_MARK.into());
                let arguments = [interpreter.path.clone().into(), "-c".into(), (*boot).into()];
                ChildProgram {
                    path: interpreter.path.clone(),
                    arguments: arguments.into_iter().chain(mark).collect(),
                    variables: child_variables(variables, interpreter, *threads),
                }
            }
        }
    }

    pub(super) fn refuse(&self, error: &io::Error) -> Error {
        match self {
            Self::Own { .. } => Error::unavailable(format!("the process of a model cannot be started: {error}")),
            Self::Python { interpreter, .. } => refuse_spawn(interpreter, error),
        }
    }
}
