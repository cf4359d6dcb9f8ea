//! The python-host thread: it starts the processes of all Python models (and one like it those of
//! isolated ones), hands their output to the log, reaps them, and carries out their ends. There is
//! one, as long as the server runs: the kernel kills a process with `PR_SET_PDEATHSIG` when the
//! *thread* that started it ends, so load threads and workers must not start any.
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

use crate::limits::{PYTHON_DRAIN_SIZE_MAX, PYTHON_READ_SIZE, PYTHON_TERMINATE_WAIT};
use crate::python::line::LineCutter;
use crate::python::message::LogLevel;
use crate::python::process::{HostWake, ProcessState, PythonProcess};
use crate::python::program::ProcessCommand;
use crate::python::roster::{ModelProcess, ProcessRoster};
use crate::python::spawn::{SpawnedProcess, spawn};
use base::error::Error;
use base::limits::{LOG_FLUSH_STEP, LOG_LINE_COST, LOG_MODEL_STEPS_MAX, LOG_QUEUE_SIZE_MAX};
use base::time::{Clock, Instant};

/// Takes a line for the log, which escapes it.
pub type LogLine = fn(level: LogLevel, text: &str);

/// The log for the output of processes. The thread must not wait for it: others wait for the thread.
#[derive(Clone, Copy)]
pub struct HostLog {
    /// Takes a line, or drops it where the log has no room.
    pub line: LogLine,
    /// Returns true if the log takes more. A process that prints while it does not is not read, and waits.
    pub has_room: fn() -> bool,
}

/// The python-host thread. Dropped, it kills all processes but those that were given a grace, for which it waits.
pub struct PythonHost {
    orders: Sender<HostOrder>,
    wake: Arc<HostWake>,
    roster: Arc<ProcessRoster>,
    thread: Option<JoinHandle<()>>,
}

impl PythonHost {
    /// Starts the thread, named `name`. `variables` are the environment of the server, of which
    /// processes get those that are not the server's own.
    ///
    /// # Errors
    ///
    /// If the system has no descriptors or threads left.
    pub fn start(
        name: &str,
        log: HostLog,
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
    /// If it cannot be started; the text names the interpreter.
    pub fn spawn(&self, command: ProcessCommand) -> Result<PythonProcess, Error> {
        self.order(|reply| HostOrder::Spawn(Box::new(command), reply))
    }

    /// Watches a process that a template has forked as one that this thread has started.
    ///
    /// # Errors
    ///
    /// If the kernel has no memory for it.
    pub(super) fn adopt(&self, process: SpawnedProcess) -> Result<PythonProcess, Error> {
        self.order(|reply| HostOrder::Adopt(Box::new(process), reply))
    }

    fn order(&self, order: impl FnOnce(ProcessReply) -> HostOrder) -> Result<PythonProcess, Error> {
        let (reply, outcome) = sync_channel(1);
        let sent = self.orders.send(order(reply));
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

/// The orders of other threads to the thread. Orders to end a process are in its [`ProcessState`].
enum HostOrder {
    Adopt(Box<SpawnedProcess>, ProcessReply),
    Spawn(Box<ProcessCommand>, ProcessReply),
    Stop,
}

type ProcessReply = SyncSender<Result<PythonProcess, Error>>;

/// The state that the thread owns.
struct HostThread {
    epoll: OwnedFd,
    wake: Arc<HostWake>,
    orders: Receiver<HostOrder>,
    log: HostLog,
    room: LogRoom,
    clock: Clock,
    variables: Vec<(OsString, OsString)>,
    roster: Arc<ProcessRoster>,
    processes: BTreeMap<u64, HostedProcess>,
    /// The number of the next process. Never used again: an event of a process that is gone finds nothing.
    next: u64,
    /// Set when the server stops: from then on no process is started, and at that instant the
    /// thread ends all that run.
    stop_by: Option<Instant>,
}

/// One process, until it was reaped.
struct HostedProcess {
    state: Arc<ProcessState>,
    stdout: Option<OutputPipe>,
    stderr: Option<OutputPipe>,
    /// The next signal, and its instant.
    ending: Option<(Instant, Signal)>,
    /// True if it has ended, and only its outputs are left.
    has_ended: bool,
}

/// One output of a process.
struct OutputPipe {
    pipe: OwnedFd,
    cutter: LineCutter,
    /// True if it is not watched, because the log has no room.
    is_held: bool,
    /// Reads that are left after the end of the process.
    reads_left: usize,
}

impl OutputPipe {
    fn new(pipe: OwnedFd) -> Self {
        let (cutter, reads_left) = (LineCutter::default(), PYTHON_DRAIN_SIZE_MAX / PYTHON_READ_SIZE);
        Self { pipe, cutter, is_held: false, reads_left }
    }

    /// Returns true if there is something to read beside its end.
    fn has_bytes(&self) -> bool {
        rustix::io::ioctl_fionread(&self.pipe).unwrap_or(0) > 0
    }
}

/// The source of an event: the last two bits of its number; the others are the number of the
/// process.
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
        log: HostLog,
        clock: Clock,
        variables: Vec<(OsString, OsString)>,
    ) -> Result<Self, Errno> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let wake = Arc::new(HostWake(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?));
        epoll::add(&epoll, &wake.0, EventData::new_u64(WAKE), EventFlags::IN)?;
        let (roster, room, processes) = (Arc::default(), LogRoom::default(), BTreeMap::new());
        Ok(Self { epoll, wake, orders, log, room, clock, variables, roster, processes, next: 0, stop_by: None })
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
            self.handle_room(&mut buffer);
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
                    // If the reply is no longer awaited, the process is dropped, and so killed.
                    let _ = reply.send(self.start(*command));
                }
                HostOrder::Adopt(process, reply) if self.stop_by.is_none() => {
                    let _ = reply.send(self.keep(*process));
                }
                HostOrder::Adopt(process, _) => process.state.abandon(),
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
            // A process that a driver keeps in the kernel does not end even by SIGKILL. It must not
            // keep the server.
            let latest = self.ends().max().unwrap_or(now).max(now);
            self.stop_by = Some(latest + 2 * PYTHON_TERMINATE_WAIT);
        }
    }

    fn start(&mut self, command: ProcessCommand) -> Result<PythonProcess, Error> {
        let spawned = spawn(command, &self.variables)?;
        self.keep(spawned)
    }

    /// Watches a process and its outputs.
    fn keep(&mut self, spawned: SpawnedProcess) -> Result<PythonProcess, Error> {
        let state = Arc::new(spawned.state);
        let number = self.next;
        self.next += 1;
        let (stdout, stderr) = (OutputPipe::new(spawned.stdout.into()), OutputPipe::new(spawned.stderr.into()));
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
        let hosted =
            HostedProcess { state, stdout: Some(stdout), stderr: Some(stderr), ending: None, has_ended: false };
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
    /// others from being served. Nor must the log: while it has no room, the output is not read.
    fn handle_output(&mut self, number: u64, kind: u64, buffer: &mut [u8]) {
        let has_room = self.room.poll(self.log, (self.clock)());
        let Some(process) = self.processes.get_mut(&number) else { return };
        if !has_room {
            if let Some(output) = process.output(kind) {
                // It stays readable: watched, it would keep the thread awake.
                let _ = epoll::delete(&self.epoll, &output.pipe);
                output.is_held = true;
            }
            return;
        }
        if process.read(kind, buffer, self.log.line) == OutputState::Ended {
            process.close(kind, self.log.line);
        }
    }

    /// A process has ended. What it has printed is logged before the end is told.
    fn handle_end(&mut self, number: u64, buffer: &mut [u8]) {
        let Some(process) = self.processes.get_mut(&number) else { return };
        if process.state.poll_end().is_none() {
            return;
        }
        // The instance has the pidfd too, so closing ours would not remove it.
        let _ = epoll::delete(&self.epoll, process.state.pidfd());
        process.has_ended = true;
        self.drain(number, buffer);
    }

    /// Logs the rest of what an ended process has printed, as far as the log has room for it, and tells its end after that.
    fn drain(&mut self, number: u64, buffer: &mut [u8]) {
        let (log, now) = (self.log, (self.clock)());
        let Some(process) = self.processes.get_mut(&number) else { return };
        for kind in [STDOUT, STDERR] {
            while let Some(output) = process.output(kind) {
                if output.has_bytes() && !self.room.poll(log, now) {
                    return;
                }
                // Processes that this one started may have left its group and print on.
                output.reads_left = output.reads_left.saturating_sub(1);
                let is_last = output.reads_left == 0;
                if process.read(kind, buffer, log.line) != OutputState::More || is_last {
                    process.close(kind, log.line);
                }
            }
        }
        process.state.handle_drained();
        self.processes.remove(&number);
    }

    /// The log may have room again: reads the outputs that were held back for it.
    fn handle_room(&mut self, buffer: &mut [u8]) {
        if self.room.look_at.is_none() || !self.room.poll(self.log, (self.clock)()) {
            return;
        }
        let mut ended = Vec::new();
        for (number, process) in &mut self.processes {
            for kind in [STDOUT, STDERR] {
                let Some(output) = process.output(kind).filter(|output| output.is_held) else { continue };
                output.is_held = false;
                let event = EventData::new_u64(number * KINDS + kind);
                // Without memory for it the output stays unread, and the process waits.
                let _ = epoll::add(&self.epoll, &output.pipe, event, EventFlags::IN);
            }
            ended.extend(process.has_ended.then_some(*number));
        }
        ended.into_iter().for_each(|number| self.drain(number, buffer));
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
        self.ends().chain(self.stop_by).chain(self.room.look_at).min()
    }

    /// The instants at which processes with a grace get their next signal.
    fn ends(&self) -> impl Iterator<Item = Instant> {
        self.processes.values().filter_map(|process| Some(process.ending?.0))
    }
}

/// Room in the log. A log without room for [`ROOM_WAIT_MAX`] has no reader, and drops further lines.
#[derive(Default)]
struct LogRoom {
    /// Since when it has none.
    since: Option<Instant>,
    /// When to look again.
    look_at: Option<Instant>,
}

impl LogRoom {
    fn poll(&mut self, log: HostLog, now: Instant) -> bool {
        if (log.has_room)() {
            *self = Self::default();
            return true;
        }
        let is_unread = now.since(*self.since.get_or_insert(now)) >= ROOM_WAIT_MAX;
        self.look_at = (!is_unread).then(|| now + LOG_FLUSH_STEP);
        is_unread
    }
}

/// Longest wait of an output for room in the log.
const ROOM_WAIT_MAX: Duration = LOG_FLUSH_STEP.saturating_mul(LOG_MODEL_STEPS_MAX);

const _: () = assert!(
    PYTHON_READ_SIZE / 2 * (2 + 2 * LOG_LINE_COST) <= LOG_QUEUE_SIZE_MAX / 4,
    "where the log has room, it has room for what one read brings, in lines of one character"
);

/// Expected input from an output.
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
    const fn output(&mut self, kind: u64) -> Option<&mut OutputPipe> {
        if kind == STDOUT { self.stdout.as_mut() } else { self.stderr.as_mut() }
    }

    fn read(&mut self, kind: u64, buffer: &mut [u8], log: LogLine) -> OutputState {
        let output = if kind == STDOUT { &mut self.stdout } else { &mut self.stderr };
        let Some(output) = output else { return OutputState::Ended };
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
    let text = format!("{}: {line}", state.name());
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
