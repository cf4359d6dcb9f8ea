//! Measures one load on one server: starts the load threads, merges the windows that they report, decides when the result
//! is stable, and reads the server's statistics at the end of each window.

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
use crate::loadgen::search::{SearchStep, StepProgress};
use crate::loadgen::sequence::{LoadSequences, SequencePlan};
use crate::loadgen::stability::{self, StabilityPoint, StabilityVerdict};
use crate::loadgen::statistics::ServerStatistics;
use crate::loadgen::usage::Usage;
use crate::loadgen::window::LoadWindow;
use crate::time::Instant;

/// Default number of connections of an open loop: more than most servers keep busy.
const CONNECTIONS_OPEN: usize = 64;
/// Requests in flight on one gRPC connection of an open loop, at most.
const STREAMS_OPEN: usize = 100;
/// Interval of the progress line.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// A server to measure, with the requests for it.
pub struct MeasuredServer {
    /// Its name in reports.
    pub name: String,
    /// Its address.
    pub address: SocketAddr,
    /// The client for requests outside the load.
    pub control: ControlClient,
    /// The encoded requests of the load.
    pub requests: Arc<Requests>,
    /// The plan of sequences; `None` if requests belong to no sequences.
    pub sequences: Option<SequencePlan>,
    /// Its process ids.
    pub processes: Vec<u32>,
}

/// The method of a measurement.
#[derive(Clone, Debug)]
pub struct MeasureMethod {
    /// Number of connections; `None` for one per request in flight, or in an open loop `CONNECTIONS_OPEN`.
    pub connections: Option<usize>,
    /// Load threads, at most.
    pub threads: usize,
    /// The distribution of the gaps between arrivals of an open loop.
    pub distribution: Distribution,
    /// The seed of arrivals and sequence lengths.
    pub seed: u64,
    /// The time that an answer may take.
    pub timeout: Duration,
    /// Minimum duration of the warm-up.
    pub warm_up: Duration,
    /// Minimum number of requests that end in the warm-up.
    pub warm_up_requests: u64,
    /// The condition that ends a window.
    pub window: WindowEnd,
    /// The number of requests to send, instead of windows until the result is stable.
    pub request_count: Option<u64>,
    /// The most windows; with 1, stability is not required.
    pub trials_max: usize,
    /// Percent by which windows may differ.
    pub stability: f64,
    /// The percentile of latency that must be stable; the mean if `None`.
    pub percentile: Option<f64>,
    /// True if each window is printed.
    pub is_verbose: bool,
    /// The step of a search, which decides when it was measured long enough; `None` for another measurement.
    pub step: Option<SearchStep>,
}

/// The counters of the server and of both programs' processes at one moment.
#[derive(Clone, Copy, Debug)]
struct ServerReading {
    statistics: Option<ServerStatistics>,
    usage: Option<Usage>,
    client: Option<Usage>,
}

impl MeasuredServer {
    fn take_reading(&mut self) -> Result<ServerReading, String> {
        let usage = if self.processes.is_empty() { None } else { Some(Usage::of(&self.processes)?) };
        // A failure to read our own usage is no reason to stop: the report then lacks it.
        let client = Usage::of(&[std::process::id()]).ok();
        Ok(ServerReading { usage, client, statistics: self.control.statistics() })
    }
}

/// Puts a load on a server and measures it.
///
/// # Errors
/// A line for the user: a load thread cannot start, or the usage of the server's processes cannot be read.
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
        // Also after an error of the watcher: the scope waits for the threads.
        shared.is_stopping.store(true, Ordering::Relaxed);
        report
    })
}

/// Divides a load among the load threads. No thread is without a connection and, in a closed loop, without a request.
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

/// Collects the reports of the load threads, on the thread that called [`measure`].
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
            // The server's counters are read when the first thread reports the boundary: waiting for all threads would
            // count requests of the next window.
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

    /// Returns the verdict if the load was measured long enough; `None` if not yet.
    fn judge(&self, windows: &[LoadWindow]) -> Option<StabilityVerdict> {
        if let Some(step) = &self.method.step {
            return step.judge(&step_progress(step, windows)).map(|_| StabilityVerdict::Stable);
        }
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

    /// The report over the last windows, at most [`stability::WINDOWS`], of a step of a search over all: those that were
    /// judged.
    fn report(
        &self,
        windows: &[LoadWindow],
        readings: &[ServerReading],
        verdict: StabilityVerdict,
        collected: &Collected,
    ) -> LoadReport {
        let windows_max = if self.method.step.is_some() { usize::MAX } else { stability::WINDOWS };
        let reported = windows.len().min(readings.len().saturating_sub(1)).min(windows_max);
        let end = windows.len().min(readings.len().saturating_sub(1));
        let last = windows.get(end - reported..end).unwrap_or_default();
        let mut merged = LoadWindow::new(last.first().map_or(Instant::ZERO, |window| window.began));
        last.iter().for_each(|window| merged.merge_counts(window));
        merged.ended = last.last().map_or(merged.began, |window| window.ended);
        let between = readings.get(end - reported).zip(readings.get(end));
        let needs_stability =
            self.method.request_count.is_none() && self.method.trials_max > 1 && self.method.step.is_none();
        let outcome = self.method.step.and_then(|step| step.judge(&step_progress(&step, windows)));
        LoadReport {
            outcome,
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

/// Returns the measurement of a step so far.
fn step_progress(step: &SearchStep, windows: &[LoadWindow]) -> StepProgress {
    let mut merged = LoadWindow::default();
    windows.iter().for_each(|window| merged.merge_counts(window));
    let backlog = |window: Option<&LoadWindow>| window.map_or(0, |window| window.backlog);
    StepProgress {
        elapsed: windows.iter().map(LoadWindow::duration).sum(),
        windows: windows.len(),
        succeeded: merged.succeeded,
        failed: merged.failures.total(),
        above: merged.latency.count_above(step.goal.latency_max),
        slowest: merged.latency.max(),
        backlog_first: backlog(windows.first()),
        backlog: backlog(windows.last()),
        ended_later: windows.iter().skip(1).map(LoadWindow::ended_count).sum(),
    }
}

/// Merges the windows of all load threads.
struct Collected {
    /// Number of threads.
    count: usize,
    /// Windows that some threads have not reported yet: number, threads that have, merged counts.
    open: Vec<(usize, usize, LoadWindow)>,
    /// Windows returned by [`Collected::take_window`].
    taken: usize,
    /// Threads that have ended.
    done: usize,
    /// Counts outside of windows: warm-up and drain.
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

    /// The next window, when all threads have reported it.
    fn take_window(&mut self) -> Option<LoadWindow> {
        let place =
            self.open.iter().position(|(number, threads, _)| *number == self.taken && *threads == self.count)?;
        self.taken += 1;
        Some(self.open.swap_remove(place).2)
    }

    /// The counts of the whole load, with the windows that were taken and those that are incomplete.
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

/// The progress line on a terminal.
struct ProgressLine {
    is_shown: bool,
    title: String,
    began: Instant,
    /// The time, successes and latency sum when the line was last written.
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
        // A closed terminal must not end the measurement.
        let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
    }

    fn clear(&self) {
        if self.is_shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
