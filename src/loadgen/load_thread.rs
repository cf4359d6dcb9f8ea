//! One load thread: an epoll, its connections and its share of the requests. It sends what is due, reads answers, and
//! reports each window of counts without stopping the load. It must be cheap, since it usually runs on the machine of the
//! server that it measures: requests are encoded before the load, one wait serves many sockets, and a request takes one
//! write and one read.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use slab::Slab;

use crate::loadgen::client_connection::ClientConnection;
use crate::loadgen::clock;
use crate::loadgen::exchange::FinishedRequest;
use crate::loadgen::failure::{FailureKind, RequestFailure};
use crate::loadgen::new_exchange::new_exchange;
use crate::loadgen::request::{OutgoingRequest, Requests};
use crate::loadgen::schedule::Schedule;
use crate::loadgen::sequence::LoadSequences;
use crate::loadgen::socket::{Poller, ReadyConnection};
use crate::loadgen::window::LoadWindow;
use crate::time::Instant;

/// The longest wait. The stop flag and the end of a window are noticed at most this late.
const WAIT_MAX: Duration = Duration::from_millis(10);
/// The thread stops sleeping and spins this long before a request is due: a sleeping thread wakes up to 100 µs late.
const SPIN: Duration = Duration::from_micros(150);
/// Time for all connections to connect before the load starts.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of the scan for requests past their timeout: each scan visits all requests in flight.
const TIMEOUT_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Bytes read from a socket at once.
const READ_SIZE: usize = 128 * 1024;

/// The work of one load thread.
#[derive(Clone, Debug)]
pub struct ThreadPlan {
    /// The server's address.
    pub address: SocketAddr,
    /// Number of connections.
    pub connections: usize,
    /// Requests in flight on each connection, at most.
    pub streams: usize,
    /// The times at which requests are sent.
    pub pace: Pace,
    /// The encoded requests.
    pub requests: Arc<Requests>,
    /// The sequences of this thread; `None` if requests belong to no sequences.
    pub sequences: Option<LoadSequences>,
    /// Minimum duration of the warm-up.
    pub warm_up: Duration,
    /// Minimum number of requests that end in the warm-up.
    pub warm_up_requests: u64,
    /// The condition that ends a window.
    pub window: WindowEnd,
    /// The total number of requests to send; `None` for no limit.
    pub request_count: Option<u64>,
    /// The time that an answer may take.
    pub timeout: Duration,
}

/// The times at which requests are sent.
#[derive(Clone, Debug)]
pub enum Pace {
    /// Closed loop: this many requests are in flight, and the next is sent when one ends.
    Closed(usize),
    /// Open loop: each request is sent when it is due, whether or not earlier ones have ended.
    Open(Schedule),
}

/// The condition that ends a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowEnd {
    /// After this many requests have ended.
    Count(u64),
    /// After this time.
    Time(Duration),
}

/// The reports of a load thread, in this order: `WarmUp` once, `Window` any number of times,
/// `Done`.
#[derive(Debug)]
pub enum ThreadReport {
    /// The warm-up is over.
    WarmUp(Box<LoadWindow>),
    /// A window is over: its number from 0, and its counts.
    Window(usize, Box<LoadWindow>),
    /// The thread ends: the counts after the last window, and the number of requests that were due but never sent.
    Done(Box<LoadWindow>, u64),
    /// The thread could not start, or its poller failed.
    Failed(String),
}

impl ThreadReport {
    /// The boundary that it marks: 0 is the end of the warm-up, n the end of window n - 1.
    pub const fn boundary(&self) -> Option<usize> {
        match self {
            Self::WarmUp(_) => Some(0),
            Self::Window(number, _) => Some(*number + 1),
            Self::Done(..) | Self::Failed(_) => None,
        }
    }
}

/// Shared by the load threads and the watcher. All orderings are relaxed: the numbers are only displayed, and the reports
/// come through a channel.
#[derive(Debug, Default)]
pub struct LoadShared {
    /// Set by the watcher: send no further requests.
    pub is_stopping: AtomicBool,
    /// Requests that succeeded so far.
    pub succeeded: AtomicU64,
    /// Requests that failed so far.
    pub failed: AtomicU64,
    /// Sum of the latencies of successes so far, in nanoseconds.
    pub latency_nanos: AtomicU64,
}

/// A request that was submitted to a connection and has not ended.
#[derive(Debug)]
struct SubmittedRequest {
    connection: usize,
    /// The instant at which it was due, if its latency counts from then.
    due: Option<Instant>,
    /// The instant at which its first byte was sent.
    sent: Option<Instant>,
    submitted: Instant,
    /// The slot of its sequence.
    slot: Option<usize>,
}

/// A request that is due and not yet submitted to a connection.
#[derive(Clone, Copy, Debug)]
struct UnsentRequest {
    due: Instant,
    /// True if it had to wait for a connection or for its sequence.
    has_waited: bool,
}

/// The phase of a load thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoadPhase {
    WarmUp,
    Measured,
    Draining,
}

struct LoadThread<'a> {
    plan: ThreadPlan,
    shared: &'a LoadShared,
    reports: &'a Sender<ThreadReport>,
    poller: Poller,
    connections: Vec<ClientConnection>,
    /// The connections that can take a request, each once per free stream. A queue, so that connections take turns.
    free_slots: VecDeque<usize>,
    /// Connections with bytes to send.
    to_flush: Vec<usize>,
    /// Connections that are down.
    to_reconnect: Vec<usize>,
    in_flight: Slab<SubmittedRequest>,
    pending: VecDeque<UnsentRequest>,
    /// The instant at which the next request of an open loop is due.
    next_due: Option<Instant>,
    start: Instant,
    window: LoadWindow,
    phase: LoadPhase,
    /// Windows reported so far.
    windows_sent: usize,
    /// Requests that have ended so far.
    ended: u64,
    /// The number of requests still to send; `None` for no limit.
    requests_left: Option<u64>,
    next_number: u64,
    unsent: u64,
    timeouts_checked: Instant,
    buffer: Vec<u8>,
}

/// Runs one load thread to its end. The barrier makes all threads start the load together, once all
/// are connected. A thread that cannot start waits there too, or the others would wait without end.
pub fn run(plan: ThreadPlan, shared: &LoadShared, barrier: &Barrier, reports: &Sender<ThreadReport>) {
    let thread = LoadThread::new(plan, shared, reports).and_then(|mut thread| thread.connect().map(|()| thread));
    barrier.wait();
    // Fails only when the watcher has given up.
    let _ = match thread.and_then(LoadThread::run) {
        Ok(done) => reports.send(done),
        Err(error) => reports.send(ThreadReport::Failed(error.to_string())),
    };
}

impl<'a> LoadThread<'a> {
    fn new(plan: ThreadPlan, shared: &'a LoadShared, reports: &'a Sender<ThreadReport>) -> std::io::Result<Self> {
        let connections = plan.connections.max(1);
        let connections_made: Vec<_> = (0..connections).map(|index| new_connection(&plan, index)).collect();
        let free_slots = (0..plan.streams.max(1)).flat_map(|_| 0..connections).collect();
        let now = clock::now();
        Ok(Self {
            shared,
            reports,
            poller: Poller::new()?,
            connections: connections_made,
            free_slots,
            to_flush: Vec::new(),
            to_reconnect: (0..connections).collect(),
            in_flight: Slab::new(),
            pending: VecDeque::new(),
            next_due: None,
            start: now,
            window: LoadWindow::new(now),
            phase: LoadPhase::WarmUp,
            windows_sent: 0,
            ended: 0,
            requests_left: plan.request_count,
            next_number: 0,
            unsent: 0,
            timeouts_checked: now,
            buffer: vec![0; READ_SIZE],
            plan,
        })
    }

    /// Connects all connections before the load, so that no latency includes a connect. A
    /// connection that fails is tried again during the load, and fails the requests submitted to
    /// it.
    fn connect(&mut self) -> std::io::Result<()> {
        let mut ready = Vec::new();
        let start = clock::now();
        for connection in &mut self.connections {
            let _ = connection.connect(&self.poller, start);
        }
        while self.connections.iter().any(ClientConnection::is_connecting)
            && clock::now().since(start) < CONNECT_TIMEOUT
        {
            self.poller.wait(WAIT_MAX, &mut ready)?;
            for ready in ready.drain(..) {
                let Some(connection) = self.connections.get_mut(ready.index) else { continue };
                let outcome = match ready.is_writable {
                    true => connection.handle_writable(&self.poller),
                    false => connection.handle_readable(&mut self.buffer).map(drop),
                };
                if let Err(failure) = outcome.and_then(|()| connection.flush(&self.poller)) {
                    connection.close(Some(&failure), clock::now());
                }
            }
        }
        Ok(())
    }

    fn run(mut self) -> std::io::Result<ThreadReport> {
        self.start = clock::now();
        self.window = LoadWindow::new(self.start);
        if let Pace::Open(schedule) = &mut self.plan.pace {
            self.next_due = Some(self.start + schedule.next_due());
        } else if let Pace::Closed(concurrency) = self.plan.pace {
            (0..concurrency).for_each(|_| self.push_pending(self.start));
        }
        let mut ready = Vec::new();
        loop {
            let now = clock::now();
            self.handle_timeout(now);
            self.send_due(now);
            if self.is_done() {
                self.window.ended = clock::now();
                return Ok(ThreadReport::Done(Box::new(self.window), self.unsent));
            }
            let timeout = self.poll_timeout(clock::now());
            self.poller.wait(timeout, &mut ready)?;
            for ready in ready.drain(..) {
                self.handle_ready(ready);
            }
        }
    }

    /// Handles everything that depends on time: the end of a window, reconnects, timeouts of
    /// requests.
    fn handle_timeout(&mut self, now: Instant) {
        if self.phase != LoadPhase::Draining && self.shared.is_stopping.load(Ordering::Relaxed) {
            self.begin_draining(now);
        }
        self.end_window(now);
        for index in std::mem::take(&mut self.to_reconnect) {
            let Some(connection) = self.connections.get_mut(index) else { continue };
            match connection.connect(&self.poller, now) {
                Ok(()) if connection.is_down() => self.to_reconnect.push(index),
                Ok(()) => {}
                Err(failure) => self.fail_connection(index, &failure, now),
            }
        }
        if now.since(self.timeouts_checked) >= TIMEOUT_CHECK_INTERVAL {
            self.timeouts_checked = now;
            self.cancel_late(now);
        }
    }

    /// Submits the requests that are due, as far as connections are free, and writes to the sockets.
    fn send_due(&mut self, now: Instant) {
        self.release_due(now);
        self.assign_pending(now);
        while let Some(index) = self.to_flush.pop() {
            self.flush(index);
        }
    }

    fn release_due(&mut self, now: Instant) {
        while let Some(due) = self.next_due.filter(|due| *due <= now) {
            if self.phase == LoadPhase::Draining || self.requests_left == Some(0) {
                self.next_due = None;
                return;
            }
            self.push_pending(due);
            let Pace::Open(schedule) = &mut self.plan.pace else { return };
            self.next_due = Some(self.start + schedule.next_due());
        }
    }

    fn push_pending(&mut self, due: Instant) {
        if self.requests_left == Some(0) {
            return;
        }
        self.requests_left = self.requests_left.map(|left| left - 1);
        self.pending.push_back(UnsentRequest { due, has_waited: false });
    }

    /// Submits pending requests to free connections. While draining, also ends the sequences that are open at the server.
    fn assign_pending(&mut self, now: Instant) {
        while let (Some(pending), Some(connection)) = (self.pending.front().copied(), self.free_slots.front().copied())
        {
            let Some((outgoing, slot)) = self.next_request() else { break };
            self.pending.pop_front();
            let counts_from_due = pending.has_waited || matches!(self.plan.pace, Pace::Open(_));
            self.submit(connection, &outgoing, slot, counts_from_due.then_some(pending.due), now);
        }
        if self.phase == LoadPhase::Draining {
            while let Some(connection) = self.free_slots.front().copied() {
                let Some(step) = self.plan.sequences.as_mut().and_then(LoadSequences::poll_final_step) else { break };
                let outgoing = self.plan.requests.for_step(&step);
                self.submit(connection, &outgoing, Some(step.slot), None, now);
            }
        }
        // The rest must wait, so their latency counts from when they were due. From the back, until the first that an
        // earlier call has marked.
        self.pending.iter_mut().rev().take_while(|pending| !pending.has_waited).for_each(|pending| {
            pending.has_waited = true;
        });
    }

    fn next_request(&mut self) -> Option<(OutgoingRequest, Option<usize>)> {
        if let Some(sequences) = &mut self.plan.sequences {
            let step = sequences.poll_step()?;
            return Some((self.plan.requests.for_step(&step), Some(step.slot)));
        }
        self.next_number += 1;
        Some((self.plan.requests.by_number(self.next_number - 1), None))
    }

    fn submit(
        &mut self,
        index: usize,
        outgoing: &OutgoingRequest,
        slot: Option<usize>,
        due: Option<Instant>,
        now: Instant,
    ) {
        self.free_slots.pop_front();
        let token =
            self.in_flight.insert(SubmittedRequest { connection: index, due, sent: None, submitted: now, slot });
        let Some(connection) = self.connections.get_mut(index) else { return };
        connection.submit(token, outgoing);
        if self.to_flush.last() != Some(&index) {
            self.to_flush.push(index);
        }
        if connection.is_down() {
            match connection.connect(&self.poller, now) {
                Ok(()) if connection.is_down() && !self.to_reconnect.contains(&index) => self.to_reconnect.push(index),
                Ok(()) => {}
                Err(failure) => self.fail_connection(index, &failure, now),
            }
        }
    }

    fn flush(&mut self, index: usize) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        if connection.is_up() && !connection.unsent.is_empty() {
            // The clock is read as late as possible, right before the write.
            let now = clock::now();
            for token in connection.unsent.drain(..) {
                let Some(request) = self.in_flight.get_mut(token) else { continue };
                request.sent = Some(now);
                self.window.sent += 1;
                if let (Some(due), Pace::Open(_)) = (request.due, &self.plan.pace) {
                    self.window.lag.record(now.since(due));
                }
            }
        }
        if let Err(failure) = connection.flush(&self.poller) {
            self.fail_connection(index, &failure, clock::now());
        }
    }

    fn handle_ready(&mut self, ready: ReadyConnection) {
        let Some(connection) = self.connections.get_mut(ready.index) else { return };
        let outcome = if ready.is_writable {
            connection.handle_writable(&self.poller)
        } else {
            let mut outcome = connection.handle_readable(&mut self.buffer);
            while outcome == Ok(true) {
                outcome = connection.handle_readable(&mut self.buffer);
            }
            outcome.map(drop)
        };
        let now = clock::now();
        let is_over = connection.exchange().is_over();
        self.take_finished(ready.index, now);
        match outcome {
            Err(failure) => self.fail_connection(ready.index, &failure, now),
            Ok(()) if is_over => {
                let failure = RequestFailure::new(
                    FailureKind::Closed,
                    "the server accepts no further requests on the connection",
                );
                self.fail_connection(ready.index, &failure, now);
            }
            Ok(()) => self.to_flush.push(ready.index),
        }
        self.end_window(now);
        self.send_due(now);
    }

    fn take_finished(&mut self, index: usize, now: Instant) {
        while let Some(FinishedRequest { token, outcome }) =
            self.connections.get_mut(index).and_then(|connection| connection.exchange().poll_finished())
        {
            self.complete(token, outcome.map(drop), now);
        }
    }

    /// Counts a request that has ended. In a closed loop the next one is due now.
    fn complete(&mut self, token: usize, outcome: Result<(), RequestFailure>, now: Instant) {
        let Some(request) = self.in_flight.try_remove(token) else { return };
        let from = request.due.or(request.sent).unwrap_or(request.submitted);
        let latency = now.since(from);
        let counter = if outcome.is_ok() { &self.shared.succeeded } else { &self.shared.failed };
        counter.fetch_add(1, Ordering::Relaxed);
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.shared.latency_nanos.fetch_add(if outcome.is_ok() { nanos } else { 0 }, Ordering::Relaxed);
        self.window.handle_outcome(latency, outcome);
        self.ended += 1;
        self.free_slots.push_back(request.connection);
        if let (Some(slot), Some(sequences)) = (request.slot, &mut self.plan.sequences) {
            sequences.handle_done(slot);
        }
        if matches!(self.plan.pace, Pace::Closed(_)) && self.phase != LoadPhase::Draining {
            self.push_pending(now);
        }
    }

    /// A connection has ended: fails all requests in flight on it.
    fn fail_connection(&mut self, index: usize, failure: &RequestFailure, now: Instant) {
        self.take_finished(index, now);
        let Some(connection) = self.connections.get_mut(index) else { return };
        connection.close(Some(failure), now);
        let tokens: Vec<usize> =
            self.in_flight.iter().filter(|(_, request)| request.connection == index).map(|(token, _)| token).collect();
        for token in tokens {
            self.complete(token, Err(failure.clone()), now);
        }
    }

    /// Cancels the requests past their timeout. If the protocol cannot cancel, the whole connection
    /// fails.
    fn cancel_late(&mut self, now: Instant) {
        let is_late = |request: &SubmittedRequest| now.since(request.submitted) > self.plan.timeout;
        let late: Vec<(usize, usize)> = self
            .in_flight
            .iter()
            .filter(|(_, request)| is_late(request))
            .map(|(token, request)| (token, request.connection))
            .collect();
        for (token, index) in late {
            let goes_on =
                self.connections.get_mut(index).is_some_and(|connection| connection.exchange().handle_cancel(token));
            self.complete(token, Err(RequestFailure::new(FailureKind::Timeout, "no answer in time")), now);
            if goes_on {
                self.to_flush.push(index);
            } else {
                let failure = RequestFailure::new(
                    FailureKind::Closed,
                    "another request on the connection was not answered in time",
                );
                self.fail_connection(index, &failure, now);
            }
        }
    }

    /// Reports the window if it is over, and starts the next.
    fn end_window(&mut self, now: Instant) {
        let is_over = match (self.phase, self.plan.window) {
            (LoadPhase::Draining, _) => false,
            (LoadPhase::WarmUp, _) => {
                now.since(self.start) >= self.plan.warm_up && self.ended >= self.plan.warm_up_requests
            }
            // All requests were sent: the last window ends with the last answer.
            _ if self.requests_left == Some(0) => self.pending.is_empty() && self.in_flight.is_empty(),
            (LoadPhase::Measured, WindowEnd::Count(count)) => self.window.ended_count() >= count,
            (LoadPhase::Measured, WindowEnd::Time(interval)) => now.since(self.window.began) >= interval,
        };
        if is_over {
            let is_last = self.phase == LoadPhase::Measured && self.requests_left == Some(0);
            let window = self.take_window(now);
            let report = if self.phase == LoadPhase::WarmUp {
                ThreadReport::WarmUp(window)
            } else {
                self.windows_sent += 1;
                ThreadReport::Window(self.windows_sent - 1, window)
            };
            let _ = self.reports.send(report);
            self.phase = if is_last { LoadPhase::Draining } else { LoadPhase::Measured };
        }
    }

    fn begin_draining(&mut self, now: Instant) {
        // The watcher takes no further windows: this one is reported with `Done` and counts only in
        // the totals.
        self.phase = LoadPhase::Draining;
        self.window.began = now;
        self.unsent = self.pending.len() as u64;
        self.pending.clear();
    }

    fn take_window(&mut self, now: Instant) -> Box<LoadWindow> {
        let mut window = std::mem::replace(&mut self.window, LoadWindow::new(now));
        window.ended = now;
        window.backlog = (self.pending.len() + self.in_flight.len()) as u64;
        Box::new(window)
    }

    fn is_done(&self) -> bool {
        self.phase == LoadPhase::Draining && self.in_flight.is_empty() && self.to_flush.is_empty()
    }

    /// Returns the time to wait for sockets. Shorter than the time until the next request is due by
    /// [`SPIN`]; then 0, which spins.
    fn poll_timeout(&self, now: Instant) -> Duration {
        let Some(due) = self.next_due else { return WAIT_MAX };
        due.since(now).checked_sub(SPIN).unwrap_or(Duration::ZERO).min(WAIT_MAX)
    }
}

fn new_connection(plan: &ThreadPlan, index: usize) -> ClientConnection {
    let requests = Arc::clone(&plan.requests);
    ClientConnection::new(index, plan.address, Box::new(move || new_exchange(requests.plan(), false)))
}
