//! One load on one server: the threads are started, the windows they hand on are put together and
//! judged, and the server's own figures are read where a window ends.

use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use crate::loadgen::clock;
use crate::loadgen::control::ControlClient;
use crate::loadgen::load_thread::{self, LoadShared, Pace, ThreadPlan, WindowEnd};
use crate::loadgen::report::{LoadReport, OfferedLoad, Totals, per_second};
use crate::loadgen::request::Requests;
use crate::loadgen::schedule::{Distribution, Schedule, ThreadShare};
use crate::loadgen::sequence::{LoadSequences, SequencePlan};
use crate::loadgen::stability::{self, StabilityPoint, StabilityVerdict};
use crate::loadgen::statistics::ServerStatistics;
use crate::loadgen::usage::Usage;
use crate::loadgen::window::LoadWindow;
use crate::time::Instant;

/// Connections of an open loop where nobody says: more than most servers keep busy.
const CONNECTIONS_OPEN: usize = 64;
/// Requests of an open loop on one gRPC connection at the same time.
const STREAMS_OPEN: usize = 100;
/// How often the live line is written.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// A server with all that is sent to it.
pub struct MeasuredServer {
    /// What it is called in what is printed.
    pub name: String,
    /// Where it is.
    pub address: SocketAddr,
    /// For the questions beside the load.
    pub control: ControlClient,
    /// What is sent.
    pub requests: Arc<Requests>,
    /// How sequences are made, if requests belong to some.
    pub sequences: Option<SequencePlan>,
    /// Its processes.
    pub processes: Vec<u32>,
}

/// How a load is measured.
#[derive(Clone, Debug)]
pub struct MeasureMethod {
    /// Connections; `None` for as many as requests in flight.
    pub connections: Option<usize>,
    /// Threads.
    pub threads: usize,
    /// How the gaps of an open loop are drawn.
    pub distribution: Distribution,
    /// Decides arrivals.
    pub seed: u64,
    /// How long an answer may take.
    pub timeout: Duration,
    /// How long the load runs before it is measured.
    pub warm_up: Duration,
    /// How many requests end before it is measured.
    pub warm_up_requests: u64,
    /// When a window ends.
    pub window: WindowEnd,
    /// Exactly so many requests instead of windows.
    pub request_count: Option<u64>,
    /// Windows at most; where it is 1, nothing need be stable.
    pub trials_max: usize,
    /// Percent by which windows may differ.
    pub stability: f64,
    /// The percentile that is to be stable; the mean otherwise.
    pub percentile: Option<f64>,
    /// Whether each window is told.
    pub is_verbose: bool,
}

/// What the server says of itself at one moment.
#[derive(Clone, Copy, Debug)]
struct ServerReading {
    statistics: Option<ServerStatistics>,
    usage: Option<Usage>,
    client: Option<Usage>,
}

impl MeasuredServer {
    fn take_reading(&mut self) -> Result<ServerReading, String> {
        let usage = if self.processes.is_empty() { None } else { Some(Usage::of(&self.processes)?) };
        // Of this program itself there is nothing to complain of.
        let client = Usage::of(&[std::process::id()]).ok();
        Ok(ServerReading { usage, client, statistics: self.control.statistics() })
    }
}

/// Puts a load on a server and measures it.
pub fn measure(target: &mut MeasuredServer, load: OfferedLoad, method: &MeasureMethod) -> Result<LoadReport, String> {
    let shared = LoadShared::default();
    let plans = plan_threads(target, load, method);
    let count = plans.len();
    let barrier = Barrier::new(count);
    let (sender, receiver) = channel();
    thread::scope(|scope| {
        for plan in plans {
            let (sender, shared, barrier) = (sender.clone(), &shared, &barrier);
            scope.spawn(move || load_thread::run(plan, shared, barrier, &sender));
        }
        drop(sender);
        let watcher = Watcher { target, load, method, shared: &shared, receiver: &receiver, count };
        let report = watcher.run();
        // The threads end whatever became of the watcher.
        shared.is_stopping.store(true, Ordering::Relaxed);
        report
    })
}

fn plan_threads(target: &MeasuredServer, load: OfferedLoad, method: &MeasureMethod) -> Vec<ThreadPlan> {
    let is_grpc = target.requests.plan().protocol == crate::loadgen::target::Protocol::Grpc;
    let (parallel, connections) = match load {
        OfferedLoad::Concurrency(count) => (count, method.connections.unwrap_or(count)),
        OfferedLoad::Rate(_) => (usize::MAX, method.connections.unwrap_or(CONNECTIONS_OPEN)),
    };
    let count = method.threads.min(parallel).min(connections).max(1);
    let share = |total: usize, index: usize| total / count + usize::from(index < total % count);
    let plan = |index: usize| {
        let thread_share = ThreadShare { index, count };
        let connections = share(connections, index);
        let (pace, sequences) = match load {
            OfferedLoad::Concurrency(total) => (Pace::Closed(share(total, index)), share(total, index)),
            OfferedLoad::Rate(rate) => {
                let schedule = Schedule::new(rate, method.distribution, method.seed, thread_share);
                let total = target.sequences.as_ref().map_or(0, |plan| plan.count);
                (Pace::Open(schedule), share(total, index).max(1))
            }
        };
        let streams = match (is_grpc, &pace) {
            (false, _) => 1,
            (true, Pace::Closed(count)) => count.div_ceil(connections.max(1)),
            (true, Pace::Open(_)) => STREAMS_OPEN,
        };
        let lengths = || target.requests.stream_lengths();
        let per_thread = |total: u64| total / count as u64 + u64::from((index as u64) < total % count as u64);
        ThreadPlan {
            address: target.address,
            connections,
            streams,
            pace,
            requests: Arc::clone(&target.requests),
            sequences: target
                .sequences
                .clone()
                .map(|plan| LoadSequences::new(plan, sequences, lengths(), thread_share, method.seed)),
            warm_up: method.warm_up,
            warm_up_requests: per_thread(method.warm_up_requests),
            window: match method.window {
                WindowEnd::Count(count) => WindowEnd::Count(per_thread(count).max(1)),
                window => window,
            },
            request_count: method.request_count.map(per_thread),
            timeout: method.timeout,
        }
    };
    (0..count).map(plan).collect()
}

struct Watcher<'a> {
    target: &'a mut MeasuredServer,
    load: OfferedLoad,
    method: &'a MeasureMethod,
    shared: &'a LoadShared,
    receiver: &'a Receiver<load_thread::ThreadReport>,
    count: usize,
}

impl Watcher<'_> {
    fn run(self) -> Result<LoadReport, String> {
        let mut progress = ProgressLine::new(self.load, &self.target.name);
        let mut collected = Collected::new(self.count);
        let mut readings: Vec<ServerReading> = Vec::new();
        let mut windows: Vec<LoadWindow> = Vec::new();
        let mut verdict = None;
        while !collected.is_done() {
            let report = match self.receiver.recv_timeout(PROGRESS_INTERVAL) {
                Ok(report) => report,
                Err(RecvTimeoutError::Timeout) => {
                    progress.show(self.shared);
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => return Err("a thread of the load ended early".to_owned()),
            };
            // The first thread to end a phase decides when the server is read.
            if verdict.is_none() && report.boundary() == Some(readings.len()) {
                readings.push(self.target.take_reading()?);
            }
            collected.handle_report(report)?;
            while let Some(window) = collected.take_window() {
                windows.push(window);
                if verdict.is_some() {
                    continue;
                }
                if self.method.is_verbose {
                    progress.clear();
                    eprintln!("{}", self.describe(windows.len(), windows.last()));
                }
                verdict = self.judge(&windows);
                if verdict.is_some() {
                    self.shared.is_stopping.store(true, Ordering::Relaxed);
                }
            }
        }
        progress.clear();
        Ok(self.report(&windows, &readings, verdict.unwrap_or(StabilityVerdict::Unstable), &collected))
    }

    /// Whether it was measured long enough.
    fn judge(&self, windows: &[LoadWindow]) -> Option<StabilityVerdict> {
        if self.method.request_count.is_some() || self.method.trials_max <= 1 {
            return Some(StabilityVerdict::Stable);
        }
        let points: Vec<StabilityPoint> = windows.iter().map(|window| self.point(window)).collect();
        let verdict = stability::judge(&points, self.method.stability, self.method.trials_max);
        (verdict != StabilityVerdict::More).then_some(verdict)
    }

    fn point(&self, window: &LoadWindow) -> StabilityPoint {
        let latency = self.method.percentile.map_or_else(|| window.latency.mean(), |p| window.latency.percentile(p));
        StabilityPoint {
            throughput: per_second(window.succeeded, window.duration()),
            latency: latency.as_secs_f64(),
            ended: window.ended_count(),
            backlog: window.backlog,
        }
    }

    fn describe(&self, number: usize, window: Option<&LoadWindow>) -> String {
        let Some(window) = window else { return String::new() };
        let point = self.point(window);
        format!(
            "  window {number}: {:.1} requests/s, {} {:.0} us, {} failed",
            point.throughput,
            self.method.percentile.map_or("mean".to_owned(), |percentile| format!("p{percentile}")),
            point.latency * 1e6,
            window.failures.total()
        )
    }

    /// The last windows, as many as must agree.
    fn report(
        &self,
        windows: &[LoadWindow],
        readings: &[ServerReading],
        verdict: StabilityVerdict,
        collected: &Collected,
    ) -> LoadReport {
        let reported = windows.len().min(readings.len().saturating_sub(1)).min(stability::WINDOWS);
        let end = windows.len().min(readings.len().saturating_sub(1));
        let last = windows.get(end - reported..end).unwrap_or_default();
        let mut merged = LoadWindow::new(last.first().map_or(Instant::ZERO, |window| window.began));
        last.iter().for_each(|window| merged.merge_counts(window));
        merged.ended = last.last().map_or(merged.began, |window| window.ended);
        let between = readings.get(end - reported).zip(readings.get(end));
        let needs_stability = self.method.request_count.is_none() && self.method.trials_max > 1;
        LoadReport {
            load: self.load,
            rows: self.target.requests.plan().rows,
            duration: last.iter().map(LoadWindow::duration).sum(),
            window: merged,
            windows: reported,
            is_stable: needs_stability.then_some(verdict == StabilityVerdict::Stable),
            server: between.and_then(|(from, to)| Some(to.statistics?.since(&from.statistics?))),
            usage: between.and_then(|(from, to)| Some(to.usage?.since(&from.usage?))),
            client: between.and_then(|(from, to)| Some(to.client?.since(&from.client?))),
            totals: collected.totals(windows),
        }
    }
}

/// The windows of several threads, put together.
struct Collected {
    count: usize,
    /// Windows that not all threads have ended, by number, and how many have.
    open: Vec<(usize, usize, LoadWindow)>,
    /// Windows taken.
    taken: usize,
    done: usize,
    /// What was outside of windows.
    totals: Totals,
}

impl Collected {
    fn new(count: usize) -> Self {
        Self { count, open: Vec::new(), taken: 0, done: 0, totals: Totals::default() }
    }

    const fn is_done(&self) -> bool {
        self.done == self.count
    }

    fn handle_report(&mut self, report: load_thread::ThreadReport) -> Result<(), String> {
        match report {
            load_thread::ThreadReport::Failed(why) => return Err(why),
            load_thread::ThreadReport::WarmUp(window) => self.count_outside(&window),
            load_thread::ThreadReport::Done(window, unsent) => {
                self.count_outside(&window);
                self.totals.unsent += unsent;
                self.done += 1;
            }
            load_thread::ThreadReport::Window(number, window) => {
                match self.open.iter_mut().find(|(have, ..)| *have == number) {
                    Some((_, threads, open)) => {
                        *threads += 1;
                        open.merge_thread(&window);
                    }
                    None => self.open.push((number, 1, *window)),
                }
            }
        }
        Ok(())
    }

    /// The next window that all threads have ended.
    fn take_window(&mut self) -> Option<LoadWindow> {
        let place =
            self.open.iter().position(|(number, threads, _)| *number == self.taken && *threads == self.count)?;
        self.taken += 1;
        Some(self.open.swap_remove(place).2)
    }

    /// All that was sent, with the windows that were taken.
    fn totals(&self, taken: &[LoadWindow]) -> Totals {
        let mut totals = self.totals.clone();
        for window in taken.iter().chain(self.open.iter().map(|(.., window)| window)) {
            totals.succeeded += window.succeeded;
            totals.failures.merge(&window.failures);
        }
        totals
    }

    fn count_outside(&mut self, window: &LoadWindow) {
        self.totals.succeeded += window.succeeded;
        self.totals.failures.merge(&window.failures);
    }
}

/// The line that a person watches.
struct ProgressLine {
    is_shown: bool,
    title: String,
    began: Instant,
    last: (Instant, u64, u64),
}

impl ProgressLine {
    fn new(load: OfferedLoad, name: &str) -> Self {
        let now = clock::now();
        let title = format!("{name}  {} {load}", load.name().to_lowercase());
        Self { is_shown: std::io::stderr().is_terminal(), title, began: now, last: (now, 0, 0) }
    }

    fn show(&mut self, shared: &LoadShared) {
        if !self.is_shown {
            return;
        }
        let now = clock::now();
        let succeeded = shared.succeeded.load(Ordering::Relaxed);
        let nanos = shared.latency_nanos.load(Ordering::Relaxed);
        let failed = shared.failed.load(Ordering::Relaxed);
        let (at, count, sum) = std::mem::replace(&mut self.last, (now, succeeded, nanos));
        let fresh = succeeded.saturating_sub(count);
        let mean = nanos.saturating_sub(sum).checked_div(fresh).unwrap_or(0) as f64 / 1000.0;
        let line = format!(
            "{}  {:.1} s  {:.0} requests/s  mean {mean:.0} us  {failed} failed",
            self.title,
            now.since(self.began).as_secs_f64(),
            per_second(fresh, now.since(at)),
        );
        // A terminal that is gone ends no measurement.
        let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
    }

    fn clear(&self) {
        if self.is_shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
