//! Starts a process of a model, with pipes for its output, or takes over one that a template has forked. Programs are
//! started on the python-host thread only.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{ChildStderr, ChildStdout};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process, pidfd_open, waitid, waitpid,
};
use rustix::thread::CpuSet;

use crate::python::child::{self, ChildProgram, ChildStreams};
use crate::python::process::{ProcessState, cpu_set};
use crate::python::program::{ProcessCommand, ProcessProgram};
use base::error::Error;
use base::limits::PYTHON_OOM_SCORE_STEP;
use base::metrics::Gauge;

/// A process that was started, and the pipes of its standard output and error.
pub(super) struct SpawnedProcess {
    pub(super) state: ProcessState,
    pub(super) stdout: ChildStdout,
    pub(super) stderr: ChildStderr,
}

/// Starts a process. It ends with the calling thread. `variables` are those of the server.
pub(super) fn spawn(command: ProcessCommand, variables: &[(OsString, OsString)]) -> Result<SpawnedProcess, Error> {
    let ProcessCommand { name, program, main, cores, memory } = command;
    let child = program.child(variables);
    let Running { pid, pidfd, stdout, stderr } =
        run(&child, &main, cpu_set(&cores)).map_err(|error| program.refuse(&error))?;
    raise_oom_score(pid);
    Ok(SpawnedProcess { state: ProcessState::new(name, memory, program, pid, pidfd), stdout, stderr })
}

/// A process that a template has forked.
pub(super) struct ForkedProcess {
    pub(super) name: String,
    /// The program of its template.
    pub(super) program: ProcessProgram,
    pub(super) memory: Arc<Gauge>,
    /// Its id, of which the kernel has told.
    pub(super) pid: Pid,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
}

/// Takes over a process that a template has forked.
///
/// # Errors
/// `CHILD` if it did not become a child of this process.
pub(super) fn adopt(forked: ForkedProcess) -> io::Result<SpawnedProcess> {
    let ForkedProcess { name, program, memory, pid, stdout, stderr } = forked;
    // One that has ended already keeps its id until it is reaped.
    waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    let state = ProcessState::new(name, memory, program, pid, pidfd);
    Ok(SpawnedProcess { state, stdout: stdout.into(), stderr: stderr.into() })
}

/// A program that runs.
struct Running {
    pid: Pid,
    pidfd: OwnedFd,
    stdout: ChildStdout,
    stderr: ChildStderr,
}

fn run(program: &ChildProgram, main: &OwnedFd, cores: Option<CpuSet>) -> io::Result<Running> {
    let (stdout, stdout_end) = io::pipe()?;
    let (stderr, stderr_end) = io::pipe()?;
    let streams = ChildStreams { stdin: main.as_fd(), stdout: stdout_end.as_fd(), stderr: stderr_end.as_fd() };
    let pid = start_unpacked(program, &streams, cores)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).inspect_err(|_| {
        let _ = kill_process(pid, Signal::KILL);
        let _ = waitpid(Some(pid), WaitOptions::empty());
    })?;
    Ok(Running { pid, pidfd, stdout: OwnedFd::from(stdout).into(), stderr: OwnedFd::from(stderr).into() })
}

/// Starts a program that may have been unpacked just now: a process that another thread starts meanwhile has the file open
/// for writing until its own program runs, and the kernel then refuses to run it.
fn start_unpacked(program: &ChildProgram, streams: &ChildStreams<'_>, cores: Option<CpuSet>) -> io::Result<Pid> {
    for _ in 0..BUSY_TRIES {
        match child::start(program, streams, cores) {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => std::thread::park_timeout(BUSY_PAUSE),
            outcome => return outcome,
        }
    }
    child::start(program, streams, cores)
}

/// Tries of a program that is open for writing.
const BUSY_TRIES: usize = 100;
/// The pause between two of them: longer than a process takes to start its program.
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// If memory runs out, such a process is killed before the server, and before an equal server
/// beside it.
fn raise_oom_score(pid: Pid) {
    let own = fs::read_to_string("/proc/self/oom_score_adj").ok().and_then(|text| text.trim().parse::<i32>().ok());
    let score = own.unwrap_or(0).saturating_add(PYTHON_OOM_SCORE_STEP).min(OOM_SCORE_MAX);
    // A system without it has no such choice.
    let _ = fs::write(format!("/proc/{pid}/oom_score_adj"), score.to_string());
}

/// The highest `oom_score_adj` (`OOM_SCORE_ADJ_MAX` of Linux).
const OOM_SCORE_MAX: i32 = 1_000;

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::python::environment::{Interpreter, InterpreterSource};

    #[test]
    fn a_process_that_is_no_child_is_not_taken_over() {
        let (path, source) = (PathBuf::from("/bin/sh"), InterpreterSource::Path);
        let interpreter = Interpreter { path, source, environment: None, archive: None };
        let ((stdout, _), (stderr, _)) = (io::pipe().unwrap(), io::pipe().unwrap());
        let forked = ForkedProcess {
            name: "m_0_0".to_owned(),
            program: ProcessProgram::Python { interpreter, boot: "", threads: 1, is_template: true },
            memory: Arc::default(),
            pid: rustix::process::getpid(),
            stdout: stdout.into(),
            stderr: stderr.into(),
        };
        assert_eq!(adopt(forked).err().and_then(|error| error.raw_os_error()), Some(libc::ECHILD));
    }
}
