//! The python-host thread: it starts the processes of all Python models (and one like it those of isolated ones), hands
//! what they print to the log, reaps them, and carries out their ends. There is one, as long as the server runs: the
//! kernel kills a process with `PR_SET_PDEATHSIG` when the *thread* that started it ends, so load threads and workers
//! must not start any.
//!
//! It waits for one epoll: an eventfd for orders, and for each process a pidfd and two pipes.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use rustix::process::Signal;

use crate::backend::python::line::LineCutter;
use crate::backend::python::message::LogLevel;
use crate::backend::python::process::{HostWake, ProcessState, PythonProcess};
use crate::backend::python::program::ProcessCommand;
use crate::backend::python::roster::{ModelProcess, ProcessRoster};
use crate::backend::python::spawn::spawn;
use crate::error::Error;
use crate::limits::{PYTHON_DRAIN_SIZE_MAX, PYTHON_READ_SIZE, PYTHON_TERMINATE_WAIT};
use crate::time::{Clock, Instant};

/// Takes a line for the log, which escapes it.
pub type LogLine = fn(level: LogLevel, text: &str);

/// The python-host thread. Dropped, it kills all processes but those that were given a grace, for which it waits.
pub struct PythonHost {
    orders: Sender<HostOrder>,
    wake: Arc<HostWake>,
    roster: Arc<ProcessRoster>,
    thread: Option<JoinHandle<()>>,
}

impl PythonHost {
    /// Starts the thread, named `name`. `variables` are the environment of the server, of which processes get what is
    /// not the server's alone.
    ///
    /// # Errors
    ///
    /// Where the system has no descriptors or threads left.
    pub fn start(
        name: &str,
        log: LogLine,
        clock: Clock,
        variables: Vec<(OsString, OsString)>,
    ) -> Result<Arc<Self>, Error> {
        let refuse = |error: std::io::Error| Error::internal(format!("could not start the {name} thread: {error}"));
        let (orders, receiver) = channel();
        let mut host = HostThread::new(receiver, log, clock, variables).map_err(|errno| refuse(errno.into()))?;
        let (wake, roster) = (Arc::clone(&host.wake), Arc::clone(&host.roster));
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || host.run()).map_err(refuse)?;
        Ok(Arc::new(Self { orders, wake, roster, thread: Some(thread) }))
    }

    /// The processes that run.
    pub fn processes(&self) -> Vec<ModelProcess> {
        self.roster.running()
    }

    /// Starts a process, and returns once the interpreter's program runs.
    ///
    /// # Errors
    ///
    /// Where it cannot be started; the text names the interpreter.
    pub fn spawn(&self, command: ProcessCommand) -> Result<PythonProcess, Error> {
        let (reply, outcome) = sync_channel(1);
        let sent = self.orders.send(HostOrder::Spawn(Box::new(command), reply));
        self.wake.wake();
        let outcome = sent.ok().and_then(|()| outcome.recv().ok());
        outcome.unwrap_or_else(|| Err(Error::unavailable("the server is stopping and starts no process")))
    }
}

impl Drop for PythonHost {
    fn drop(&mut self) {
        let _ = self.orders.send(HostOrder::Stop);
        self.wake.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What other threads ask of the thread. Orders to end a process are in its [`ProcessState`].
enum HostOrder {
    Spawn(Box<ProcessCommand>, SyncSender<Result<PythonProcess, Error>>),
    Stop,
}

/// What the thread owns.
struct HostThread {
    epoll: OwnedFd,
    wake: Arc<HostWake>,
    orders: Receiver<HostOrder>,
    log: LogLine,
    clock: Clock,
    variables: Vec<(OsString, OsString)>,
    roster: Arc<ProcessRoster>,
    processes: BTreeMap<u64, HostedProcess>,
    /// The number of the next process. Never used again: an event of a process that is gone finds nothing.
    next: u64,
    /// Set when the server stops: from then on none is started, and at that instant the thread ends whatever runs.
    stop_by: Option<Instant>,
}

/// One process, until it was reaped.
struct HostedProcess {
    state: Arc<ProcessState>,
    stdout: Option<OutputPipe>,
    stderr: Option<OutputPipe>,
    /// The next signal, and when it is sent.
    ending: Option<(Instant, Signal)>,
}

/// One output of a process.
struct OutputPipe {
    pipe: OwnedFd,
    cutter: LineCutter,
}

/// What an event is about: the last two bits of its number; the others are the number of the process.
const PIDFD: u64 = 0;
const STDOUT: u64 = 1;
const STDERR: u64 = 2;
const KINDS: u64 = 4;
/// The number of the eventfd.
const WAKE: u64 = u64::MAX;

/// Events that are taken from the kernel at once.
const EVENTS: usize = 64;

impl HostThread {
    fn new(
        orders: Receiver<HostOrder>,
        log: LogLine,
        clock: Clock,
        variables: Vec<(OsString, OsString)>,
    ) -> Result<Self, Errno> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let wake = Arc::new(HostWake(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?));
        epoll::add(&epoll, &wake.0, EventData::new_u64(WAKE), EventFlags::IN)?;
        let (roster, processes) = (Arc::default(), BTreeMap::new());
        Ok(Self { epoll, wake, orders, log, clock, variables, roster, processes, next: 0, stop_by: None })
    }

    fn run(&mut self) {
        let mut events = Vec::with_capacity(EVENTS);
        let mut buffer = vec![0; PYTHON_READ_SIZE];
        while self.stop_by.is_none_or(|at| !self.processes.is_empty() && (self.clock)() < at) {
            events.clear();
            let timeout = self.poll_timeout().map(|at| timespec(at.since((self.clock)())));
            // A failure is an interruption: deadlines are looked at, and it waits again.
            let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref());
            for event in &events {
                self.handle_event(event, &mut buffer);
            }
            self.handle_deadlines();
        }
    }

    fn handle_event(&mut self, event: &Event, buffer: &mut [u8]) {
        let number = event.data.u64();
        match (number, number % KINDS) {
            (WAKE, _) => self.handle_wake(),
            (_, PIDFD) => self.handle_end(number / KINDS, buffer),
            (_, kind) => self.handle_output(number / KINDS, kind, buffer),
        }
    }

    fn handle_wake(&mut self) {
        let mut count = [0; 8];
        // Before the orders are taken: one that is given afterwards wakes again.
        let _ = rustix::io::read(&self.wake.0, &mut count);
        let mut is_stopping = false;
        while let Ok(order) = self.orders.try_recv() {
            match order {
                HostOrder::Spawn(command, reply) if self.stop_by.is_none() => {
                    // Where nobody waits for it any more, the process is dropped, and so killed.
                    let _ = reply.send(self.start(*command));
                }
                HostOrder::Spawn(..) => {}
                HostOrder::Stop => is_stopping = true,
            }
        }
        let now = (self.clock)();
        for process in self.processes.values_mut() {
            match process.state.take_grace() {
                Some(grace) => process.ending = Some((now + grace, Signal::TERM)),
                None if is_stopping && process.ending.is_none() => process.state.signal(Signal::KILL),
                None => {}
            }
        }
        if is_stopping {
            // What a driver keeps in the kernel does not even end by SIGKILL. It must not keep the server.
            let latest = self.ends().max().unwrap_or(now).max(now);
            self.stop_by = Some(latest + 2 * PYTHON_TERMINATE_WAIT);
        }
    }

    fn start(&mut self, command: ProcessCommand) -> Result<PythonProcess, Error> {
        let spawned = spawn(command, &self.variables)?;
        let state = Arc::new(spawned.state);
        let number = self.next;
        self.next += 1;
        let pipe = |pipe: OwnedFd| OutputPipe { pipe, cutter: LineCutter::default() };
        let (stdout, stderr) = (pipe(spawned.stdout.into()), pipe(spawned.stderr.into()));
        let watched = self.watch(state.pidfd(), number * KINDS + PIDFD);
        let watched = watched.and_then(|()| self.watch_pipe(&stdout, number * KINDS + STDOUT));
        let watched = watched.and_then(|()| self.watch_pipe(&stderr, number * KINDS + STDERR));
        if let Err(errno) = watched {
            let _ = epoll::delete(&self.epoll, state.pidfd());
            state.abandon();
            return Err(Error::internal(format!("could not watch a process: {errno}")));
        }
        self.roster.add(&state);
        let process = PythonProcess::new(Arc::clone(&state), Arc::clone(&self.wake));
        let hosted = HostedProcess { state, stdout: Some(stdout), stderr: Some(stderr), ending: None };
        self.processes.insert(number, hosted);
        Ok(process)
    }

    fn watch(&self, descriptor: impl AsFd, number: u64) -> Result<(), Errno> {
        epoll::add(&self.epoll, descriptor, EventData::new_u64(number), EventFlags::IN)
    }

    fn watch_pipe(&self, output: &OutputPipe, number: u64) -> Result<(), Errno> {
        rustix::io::ioctl_fionbio(&output.pipe, true)?;
        self.watch(&output.pipe, number)
    }

    /// A process has printed, or closed its output. One read: a process that prints without end must not keep the
    /// others from being served.
    fn handle_output(&mut self, number: u64, kind: u64, buffer: &mut [u8]) {
        let Some(process) = self.processes.get_mut(&number) else { return };
        if process.read(kind, buffer, self.log) == OutputState::Ended {
            process.close(kind, self.log);
        }
    }

    /// A process has ended. What it has printed is logged before anybody is told.
    fn handle_end(&mut self, number: u64, buffer: &mut [u8]) {
        let Some(process) = self.processes.get_mut(&number) else { return };
        if process.state.poll_end().is_none() {
            return;
        }
        for kind in [STDOUT, STDERR] {
            // What the process had started may have left its group and print on.
            for _ in 0..PYTHON_DRAIN_SIZE_MAX / PYTHON_READ_SIZE {
                if process.read(kind, buffer, self.log) != OutputState::More {
                    break;
                }
            }
            process.close(kind, self.log);
        }
        // The instance has the pidfd too, so closing ours would not remove it.
        let _ = epoll::delete(&self.epoll, process.state.pidfd());
        process.state.handle_drained();
        self.processes.remove(&number);
    }

    fn handle_deadlines(&mut self) {
        let now = (self.clock)();
        for process in self.processes.values_mut() {
            let Some((_, signal)) = process.ending.filter(|(at, _)| *at <= now) else { continue };
            process.state.signal(signal);
            // A process that survives SIGKILL for a while is in the kernel: it is sent once more each time.
            process.ending = Some((now + PYTHON_TERMINATE_WAIT, Signal::KILL));
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.ends().chain(self.stop_by).min()
    }

    /// When processes that were given a grace get their next signal.
    fn ends(&self) -> impl Iterator<Item = Instant> {
        self.processes.values().filter_map(|process| Some(process.ending?.0))
    }
}

/// What may still come from an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutputState {
    /// Nothing, ever.
    Ended,
    /// Nothing yet.
    Empty,
    /// Possibly more at once.
    More,
}

impl HostedProcess {
    fn read(&mut self, kind: u64, buffer: &mut [u8], log: LogLine) -> OutputState {
        let Some(output) = (if kind == STDOUT { &mut self.stdout } else { &mut self.stderr }) else {
            return OutputState::Ended;
        };
        match rustix::io::read(&output.pipe, &mut *buffer) {
            Ok(0) => OutputState::Ended,
            Ok(size) => {
                let state = &self.state;
                output
                    .cutter
                    .handle_bytes(buffer.get(..size).unwrap_or_default(), |line| report(state, kind, line, log));
                OutputState::More
            }
            Err(Errno::AGAIN) => OutputState::Empty,
            Err(Errno::INTR) => OutputState::More,
            Err(_) => OutputState::Ended,
        }
    }

    fn close(&mut self, kind: u64, log: LogLine) {
        let output = if kind == STDOUT { self.stdout.take() } else { self.stderr.take() };
        if let Some(mut output) = output {
            output.cutter.handle_end(|line| report(&self.state, kind, line, log));
        }
    }
}

/// Logs a line of a process. Standard error is a warning: libraries use it for their own, and Python for its last
/// words.
fn report(state: &ProcessState, kind: u64, line: &str, log: LogLine) {
    let text = format!("{}: {line}", state.name);
    if kind == STDOUT {
        log(LogLevel::Info, &text);
    } else {
        log(LogLevel::Warning, &text);
        state.handle_stderr(line);
    }
}

fn timespec(wait: Duration) -> Timespec {
    // A day, at most: older kernels refuse long waits.
    let wait = wait.min(Duration::from_secs(86_400));
    Timespec { tv_sec: wait.as_secs().cast_signed(), tv_nsec: i64::from(wait.subsec_nanos()) }
}

#[cfg(test)]
mod tests;
