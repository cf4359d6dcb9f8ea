//! Starts a process of a model: fork and exec, and the settings between the two. Called on the
//! python-host thread only.

#![expect(unsafe_code, reason = "calls between fork and exec")]

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Resource, Signal};
use rustix::thread::CpuSet;

use crate::python::process::{ProcessState, cpu_set};
use crate::python::program::ProcessCommand;
use base::error::Error;
use base::limits::PYTHON_OOM_SCORE_STEP;

/// Descriptors that are closed one by one for a Python process if the kernel cannot close all
/// (before Linux 5.11). Some systems allow a process a billion.
const PYTHON_DESCRIPTORS_MAX: i32 = 1024 * 1024;

/// A process that was started, and the pipes of its standard output and error.
pub(super) struct SpawnedProcess {
    pub(super) state: ProcessState,
    pub(super) stdout: ChildStdout,
    pub(super) stderr: ChildStderr,
}

/// Starts a process. It ends with the calling thread. `variables` are those of the server.
pub(super) fn spawn(command: ProcessCommand, variables: &[(OsString, OsString)]) -> Result<SpawnedProcess, Error> {
    let ProcessCommand { name, program, main, cores, memory } = command;
    let refuse = |error: io::Error| program.refuse(&error);
    let mut command = program.command(variables);
    command.stdin(main).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let (server, cores) = (rustix::process::getpid(), cpu_set(&cores));
    // SAFETY: the closure runs between fork and exec, where other threads may have held any lock: it only makes system
    // calls.
    unsafe { command.pre_exec(move || prepare(server, cores.as_ref())) };
    let mut child = spawn_unpacked(&mut command).map_err(refuse)?;
    let pid = Pid::from_child(&child);
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty());
    let pipes = child.stdout.take().zip(child.stderr.take());
    match (pidfd, pipes) {
        (Ok(pidfd), Some((stdout, stderr))) => {
            raise_oom_score(pid);
            let state = ProcessState::new(name, memory, program, pid, pidfd, child);
            Ok(SpawnedProcess { state, stdout, stderr })
        }
        (pidfd, _) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(refuse(pidfd.err().unwrap_or(Errno::BADF).into()))
        }
    }
}

/// Starts a program that may have been unpacked just now: a process that another thread starts meanwhile has the file open
/// for writing until its own program runs, and the kernel then refuses to run it.
fn spawn_unpacked(command: &mut Command) -> io::Result<Child> {
    for _ in 0..BUSY_TRIES {
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => std::thread::park_timeout(BUSY_PAUSE),
            outcome => return outcome,
        }
    }
    command.spawn()
}

/// Tries of a program that is open for writing.
const BUSY_TRIES: usize = 100;
/// The pause between two of them: longer than from a fork to its program.
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

/// Prepares a new process before exec. Allocates nothing.
fn prepare(server: Pid, cores: Option<&CpuSet>) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The server may have ended before that call.
    if rustix::process::getppid() != Some(server) {
        return Err(Errno::SRCH.into());
    }
    reset_signals();
    close_descriptors();
    if let Some(cores) = cores {
        // The cores may be forbidden by now: the process is slower then, not wrong.
        let _ = rustix::thread::sched_setaffinity(None, cores);
    }
    Ok(())
}

/// Resets ignored and blocked signals: both would outlast exec, and the server or its parent may
/// have set them.
fn reset_signals() {
    for signal in 1..=SIGNAL_MAX {
        // SAFETY: `signal` is a system call behind a thin wrapper. It refuses SIGKILL, SIGSTOP and
        // numbers that are not signals.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: all zeros is the empty set, and the calls write only to `none`.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// The highest signal of Linux.
const SIGNAL_MAX: libc::c_int = 64;

/// Closes all descriptors but the first three when the program starts: libraries of the server may open some that exec
/// does not close. Not at once: std reports a failing exec on one of its own.
fn close_descriptors() {
    // SAFETY: a system call that only changes flags of descriptors of this process, which has a copy of the table.
    let outcome = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if outcome == 0 {
        return;
    }
    // Before Linux 5.11.
    let open_max = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    for descriptor in 3..libc::c_int::try_from(open_max).unwrap_or(libc::c_int::MAX).min(PYTHON_DESCRIPTORS_MAX) {
        // SAFETY: as above; a descriptor that is not open is refused.
        unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}
