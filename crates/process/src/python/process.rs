//! One process of a model, as its instance sees it: its end, the reason, and the ways to end it.
//! The thread `python-host` ([`crate::python::host`]) starts it, and reads its output.
//!
//! The process leads a group of its own, and the end of the leader is the end of the group:
//! otherwise processes that a model has started would run on. Signals are sent, and the process is
//! reaped, under one lock: an id that was reaped may belong to another process.

#![expect(clippy::disallowed_types, reason = "taken when a process starts, ends or prints, never for a batch")]

use std::collections::VecDeque;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process_group, waitid, waitpid};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::limits::PYTHON_STDERR_KEPT_MAX;
use crate::python::exit::ExitReason;
use crate::python::program::ProcessProgram;
use base::metrics::Gauge;

/// A process of a model: of a Python interpreter, or of this program with an engine. It is killed when this is dropped,
/// unless [`Self::end`] was called.
pub struct PythonProcess {
    state: Arc<ProcessState>,
    wake: Arc<HostWake>,
}

impl PythonProcess {
    pub(super) const fn new(state: Arc<ProcessState>, wake: Arc<HostWake>) -> Self {
        Self { state, wake }
    }

    /// Ends it in the background: it has `grace` to end by itself, then SIGTERM and a few more seconds, then SIGKILL.
    pub fn end(self, grace: Duration) {
        self.state.lock().grace = Some(EndOrder::Asked(grace));
        self.wake.wake();
    }

    /// Kills the process and all that it has started, at once.
    pub fn kill(&self) {
        self.state.signal(Signal::KILL);
    }

    /// Pins all its threads to these cores. Cores that the server may not use are left out; without
    /// any, nothing changes.
    pub fn set_cores(&self, cores: &[usize]) {
        let Some(set) = cpu_set(cores) else { return };
        let end = self.state.lock();
        if end.reason.is_none() {
            // The second time for threads that started meanwhile; later ones inherit it.
            (0..2).for_each(|_| set_affinity(self.state.pid, &set));
        }
    }

    /// The reason why it has ended; `None` while it runs. Does not wait.
    pub fn has_ended(&self) -> Option<ExitReason> {
        self.state.poll_end()
    }

    /// Waits until it has ended and all its output was logged; `None` if it still runs after
    /// `limit`.
    pub fn wait_ended(&self, limit: Duration) -> Option<ExitReason> {
        let wait = self.state.drained.wait_timeout_while(self.state.lock(), limit, |end| !end.is_drained);
        let (end, _) = wait.unwrap_or_else(PoisonError::into_inner);
        end.reason.filter(|_| end.is_drained)
    }

    /// The last lines that it has written to standard error. Complete after [`Self::wait_ended`].
    pub fn stderr(&self) -> String {
        self.state.lock().stderr.iter().fold(String::new(), |text, line| text + line + "\n")
    }

    /// It was a template, and is the process of this instance from now on.
    pub(super) fn become_instance(&self, name: &str) {
        self.state.instance.get_or_init(|| name.to_owned());
    }

    /// Its id, for the log.
    pub fn pid(&self) -> u32 {
        self.state.pid()
    }

    /// Bytes of memory that it has: its own, and its part of memory shared with other processes; 0
    /// if the system does not report it.
    pub fn memory(&self) -> u64 {
        let told = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.pid())).unwrap_or_default();
        proportional_size(&told)
    }

    /// Readable once the process has ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.state.pidfd.as_fd()
    }
}

impl Drop for PythonProcess {
    fn drop(&mut self) {
        if self.state.lock().grace.is_none() {
            self.kill();
        }
    }
}

/// The state of a process that the instance and the python-host thread share.
pub(super) struct ProcessState {
    /// The name of its instance, or of its model's template.
    name: String,
    /// The name of the instance that a template became.
    instance: OnceLock<String>,
    /// The memory of the processes of its model version.
    pub(super) memory: Arc<Gauge>,
    /// Its program: the unpacked environment of an interpreter exists as long as this.
    program: ProcessProgram,
    pid: Pid,
    pidfd: OwnedFd,
    end: Mutex<ProcessEnd>,
    /// Signalled when all output was read after the end.
    drained: Condvar,
}

/// The progress of a process's end.
struct ProcessEnd {
    /// Set when it was reaped: no signal may be sent from then on.
    reason: Option<ExitReason>,
    grace: Option<EndOrder>,
    stderr: VecDeque<String>,
    /// The bytes of `stderr`.
    stderr_size: usize,
    is_drained: bool,
}

/// An order to end a process.
#[derive(Clone, Copy)]
enum EndOrder {
    /// With this grace; the python-host thread has not seen it.
    Asked(Duration),
    Taken,
}

impl ProcessState {
    pub(super) fn new(name: String, memory: Arc<Gauge>, program: ProcessProgram, pid: Pid, pidfd: OwnedFd) -> Self {
        let stderr = VecDeque::new();
        let end = ProcessEnd { reason: None, grace: None, stderr, stderr_size: 0, is_drained: false };
        Self {
            name,
            instance: OnceLock::new(),
            memory,
            program,
            pid,
            pidfd,
            end: Mutex::new(end),
            drained: Condvar::new(),
        }
    }

    /// Returns true if it shares pages of its own with other processes.
    pub(super) const fn shares_pages(&self) -> bool {
        matches!(self.program, ProcessProgram::Python { is_template: true, .. })
    }

    /// Its name in the log.
    pub(super) fn name(&self) -> &str {
        self.instance.get().unwrap_or(&self.name)
    }

    /// Sends a signal to the process and all that it has started.
    pub(super) fn signal(&self, signal: Signal) {
        let end = self.lock();
        if end.reason.is_none() {
            // Fails only if all of them have ended.
            let _ = kill_process_group(self.pid, signal);
        }
    }

    /// Reaps the process if it has ended, and kills the rest of its group.
    pub(super) fn poll_end(&self) -> Option<ExitReason> {
        let mut end = self.lock();
        if end.reason.is_none() {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            match waitid(WaitId::Pid(self.pid), options) {
                Ok(Some(_)) => {
                    // Before it is reaped: until then no other process can have its id.
                    let _ = kill_process_group(self.pid, Signal::KILL);
                    end.reason = Some(reap(self.pid));
                }
                // A library that waits for any child has already reaped it.
                Err(Errno::CHILD) => end.reason = Some(ExitReason::Unknown),
                _ => {}
            }
        }
        end.reason
    }

    /// Returns true if it has not ended, as far as is known.
    pub(super) fn is_running(&self) -> bool {
        self.lock().reason.is_none()
    }

    /// Its id.
    pub(super) const fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Kills and reaps a process that will not be watched.
    pub(super) fn abandon(&self) {
        self.signal(Signal::KILL);
        let mut end = self.lock();
        if end.reason.is_none() {
            end.reason = Some(reap(self.pid));
        }
    }

    /// The grace of an order to end it, once.
    pub(super) fn take_grace(&self) -> Option<Duration> {
        let mut end = self.lock();
        let Some(EndOrder::Asked(grace)) = end.grace else { return None };
        end.grace = Some(EndOrder::Taken);
        Some(grace)
    }

    /// A line was written to standard error.
    pub(super) fn handle_stderr(&self, line: &str) {
        let mut end = self.lock();
        end.stderr_size += line.len();
        end.stderr.push_back(line.to_owned());
        // A line is at most as long as the text that is kept.
        while end.stderr_size > PYTHON_STDERR_KEPT_MAX {
            let Some(oldest) = end.stderr.pop_front() else { break };
            end.stderr_size -= oldest.len();
        }
    }

    /// All output of the process was read.
    pub(super) fn handle_drained(&self) {
        self.lock().is_drained = true;
        self.drained.notify_all();
    }

    pub(super) fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    fn lock(&self) -> MutexGuard<'_, ProcessEnd> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes the python-host thread.
pub(super) struct HostWake(pub(super) OwnedFd);

impl HostWake {
    pub(super) fn wake(&self) {
        // Fails only if it was woken very often before: it will wake.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

/// The cores in the kernel's form; `None` without cores.
pub(super) fn cpu_set(cores: &[usize]) -> Option<CpuSet> {
    let mut set = CpuSet::new();
    cores.iter().filter(|core| **core < CpuSet::MAX_CPU).for_each(|core| set.set(*core));
    (set.count() > 0).then_some(set)
}

/// Waits for the end of a process that has ended or was killed.
fn reap(pid: Pid) -> ExitReason {
    let status = rustix::io::retry_on_intr(|| waitpid(Some(pid), WaitOptions::empty()));
    let Ok(Some((_, status))) = status else { return ExitReason::Unknown };
    ExitReason::from_status(ExitStatus::from_raw(status.as_raw()))
}

/// The bytes of `Pss` in a `smaps_rollup` of the kernel, which counts in kB.
fn proportional_size(told: &str) -> u64 {
    let line = told.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kilobytes = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kilobytes.unwrap_or(0).saturating_mul(1_024)
}

fn set_affinity(pid: Pid, set: &CpuSet) {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return };
    let ids = threads.filter_map(|thread| Pid::from_raw(thread.ok()?.file_name().to_str()?.parse().ok()?));
    ids.for_each(|id| {
        // A thread may end meanwhile.
        let _ = sched_setaffinity(Some(id), set);
    });
}
