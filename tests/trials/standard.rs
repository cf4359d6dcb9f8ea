//! Checks of every trial, whatever its row says: a good client asks a hundred times a second, by HTTP and gRPC in turn,
//! and (a) loses nothing, (b) hardly waits longer; (c) the server's memory, descriptors and requests in flight are back
//! where they were; (d) it lives, and nothing has panicked. And its metrics agree with the client's counts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::{Asker, Outcome, percentile, sleep_until};
use crate::models::GOOD;
use crate::subject::Subject;
use crate::support::http;
use crate::support::over::Over;
use crate::trial::{Trial, mib, ms};

/// The time between two requests of the good client.
const PACE: Duration = Duration::from_millis(10);
/// A p99 below this is no basis for a factor of three: it is the client's own wake-up.
const QUIET_LEAST: Duration = Duration::from_millis(1);
/// Time in which the server must be back where it was: free pages go back after 3 s.
const SETTLE_MAX: Duration = Duration::from_secs(10);

/// Allowances of a trial for the standard four checks.
#[derive(Clone, Copy)]
pub struct Around {
    /// Allowance of (c) on top of the memory before, in the long form, which has played the load once before.
    pub kept_max: i64,
    /// The load is played once only in the long form too: it cannot be repeated on one server.
    pub is_once: bool,
    /// Allowance of (b): the good client's p99 over its quiet one.
    pub slowdown_max: f64,
}

/// The values of the rows.
pub const STANDARD: Around = Around { kept_max: 2 << 20, is_once: false, slowdown_max: 3.0 };

/// The allowance of the short form, which measures from the first load on: it includes the server's one-time
/// allocations.
const KEPT_MAX_SHORT: i64 = 48 << 20;
/// And for the good client: the machine is busy with other trials.
const LATENCY_MAX_SHORT: Duration = Duration::from_secs(2);

/// Counts of the good client.
#[derive(Default)]
struct Ledger {
    sent: u64,
    answered: u64,
    faults: Vec<String>,
    /// Each with its instant.
    latencies: Vec<(Instant, Duration)>,
}

/// Counts from `/metrics`, as far as the server has them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    pub received: Option<u64>,
    pub succeeded: u64,
    pub refused: u64,
    pub cancelled: u64,
    pub in_flight: u64,
    /// Answers of the good client's own model.
    pub good: Option<u64>,
}

impl Counts {
    pub fn read(subject: &Subject) -> Self {
        let text = scrape(subject);
        let value =
            |line: &str| line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok()).unwrap_or(0.0) as u64;
        let lines = |start: &'static str| text.lines().filter(move |line| line.starts_with(start)).map(value);
        let of_good = "nv_inference_request_success{model=\"good\"";
        Self {
            received: lines("deuteron_requests_received_total").next(),
            succeeded: lines("deuteron_requests_succeeded_total").sum(),
            refused: lines("deuteron_requests_refused_total").sum(),
            cancelled: lines("deuteron_requests_cancelled_total").sum(),
            in_flight: lines("deuteron_requests_in_flight").sum::<u64>()
                + lines("nv_inference_pending_request_count").sum::<u64>(),
            good: lines(of_good).next(),
        }
    }
}

/// The text of the metrics; empty if they cannot be read.
pub fn scrape(subject: &Subject) -> String {
    let answer = http::get(subject.metrics, "/metrics");
    answer.map(|answer| String::from_utf8_lossy(&answer.body).into_owned()).unwrap_or_default()
}

/// The sum of the values of a metric whose line starts with `start`.
pub fn metric(subject: &Subject, start: &str) -> u64 {
    let text = scrape(subject);
    let lines = text.lines().filter(|line| line.starts_with(start));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>() as u64
}

/// The good client, until told to stop. It goes before the clients of the load, which share its core: so it waits for
/// the server only. If this process may not raise its priority, it waits for them too.
fn good_client(subject: &Subject, is_over: &AtomicBool) -> Ledger {
    // Of this thread alone (setpriority(2), "C library/kernel differences").
    let _ = rustix::process::setpriority_process(None, -10);
    let (mut asker, mut ledger) = (Asker::new(subject, GOOD), Ledger::default());
    let mut due = Instant::now();
    while !is_over.load(Ordering::SeqCst) {
        due += PACE;
        let is_late = due < Instant::now();
        sleep_until(due);
        // A client that is late because of its last answer has waited since the moment at which it should have asked.
        let start = if is_late { due } else { Instant::now() };
        ledger.sent += 1;
        match asker.ask(ledger.sent % 2 == 0) {
            Outcome::Answered => ledger.answered += 1,
            other => ledger.faults.push(format!("{other:?}")),
        }
        let took = start.elapsed();
        ledger.latencies.push((start, took));
        if is_late && took > PACE * 100 {
            // A second late: one such observation is enough, a hundred are not needed.
            due = Instant::now();
        }
    }
    ledger
}

/// Plays a load with the good client beside it, and checks the standard four.
pub fn around(trial: &Trial<'_>, subject: &Subject, wanted: Around, load: impl Fn()) {
    let before = Counts::read(subject);
    let start_descriptors = resting_descriptors(subject);
    let is_over = AtomicBool::new(false);
    let (ledger, quiet_until, loaded_at, resident) = thread::scope(|scope| {
        let good = scope.spawn(|| good_client(subject, &is_over));
        let over = Over(&is_over);
        thread::sleep(trial.size(Duration::from_millis(300), Duration::from_secs(3)));
        let quiet_until = Instant::now();
        let mut loaded_at = quiet_until;
        if trial.form.is_long && !wanted.is_once {
            load();
            settle(subject, subject.resident(), start_descriptors + 2, Duration::from_secs(5));
            trial.forget_figures();
            loaded_at = Instant::now();
        }
        let resident = subject.resident();
        load();
        thread::sleep(Duration::from_millis(100));
        drop(over);
        (good.join().expect("the good client does not panic"), quiet_until, loaded_at, resident)
    });
    let kept_max = trial.size(KEPT_MAX_SHORT, wanted.kept_max);
    settle(subject, resident + kept_max, start_descriptors, SETTLE_MAX);
    judge_client(trial, &ledger, (quiet_until, loaded_at), wanted);
    judge_server(trial, subject, (before, &ledger), (start_descriptors, resident), kept_max);
}

/// The descriptors that are open without a request: the last scrape may hold one for a moment.
fn resting_descriptors(subject: &Subject) -> usize {
    let looks = (0..5).map(|_| {
        thread::sleep(Duration::from_millis(10));
        subject.descriptors()
    });
    looks.min().unwrap_or_default()
}

/// Waits until memory and descriptors are at most these, and no request is in flight.
fn settle(subject: &Subject, resident: i64, descriptors: usize, most: Duration) {
    let is_back = |it: &Subject| it.resident() <= resident && it.descriptors() <= descriptors;
    subject.waits(most, |it| is_back(it) && Counts::read(it).in_flight == 0);
}

fn judge_client(trial: &Trial<'_>, ledger: &Ledger, (quiet_until, loaded_at): (Instant, Instant), wanted: Around) {
    let p99 = |counts: &dyn Fn(Instant) -> bool| {
        let times = ledger.latencies.iter().filter(|(at, _)| counts(*at));
        percentile(&times.map(|(_, took)| *took).collect::<Vec<_>>(), 0.99)
    };
    let quiet = p99(&|at| at < quiet_until);
    let loaded = p99(&|at| at >= loaded_at);
    trial.figure(format!("good {}/{} p99 {} (quiet {})", ledger.answered, ledger.sent, ms(loaded), ms(quiet)));
    trial.check(ledger.answered == ledger.sent, || {
        format!("(a) good client: {} of {} answered: {:.300}", ledger.answered, ledger.sent, ledger.faults.join("; "))
    });
    let bound = trial.size(LATENCY_MAX_SHORT, quiet.max(QUIET_LEAST).mul_f64(wanted.slowdown_max));
    trial.check(loaded <= bound, || format!("(b) good client: p99 {}, {} at most", ms(loaded), ms(bound)));
}

fn judge_server(
    trial: &Trial<'_>,
    subject: &Subject,
    (before, ledger): (Counts, &Ledger),
    (descriptors, resident): (usize, i64),
    kept_max: i64,
) {
    let after = Counts::read(subject);
    // The scrape itself has a connection for a moment.
    subject.waits(Duration::from_secs(1), |it| it.descriptors() <= descriptors);
    let kept = subject.resident() - resident;
    trial.figure(format!("memory {}", mib(kept)));
    trial.check(kept <= kept_max, || format!("(c) memory {}, {} at most", mib(kept), mib(kept_max)));
    let open = subject.descriptors();
    trial.check(open <= descriptors, || format!("(c) {open} descriptors, {descriptors} before"));
    trial.check(after.in_flight == 0, || format!("(c) {} requests in flight", after.in_flight));
    trial.check(subject.is_running() && subject.is_live(), || "(d) it is not live".to_owned());
    let log = subject.log();
    let panic = log.lines().find(|line| line.contains("panicked"));
    trial.check(panic.is_none(), || format!("(d) {}", panic.unwrap_or_default()));
    if let (Some(was), Some(is)) = (before.good.or(Some(0)), after.good) {
        trial.check(is - was == ledger.answered, || {
            format!("(a) the metrics have {} answers of the good client, it had {}", is - was, ledger.answered)
        });
    }
    if let Some(received) = after.received {
        let settled = after.succeeded + after.refused + after.cancelled;
        trial.check(received == settled, || {
            format!("(a) {received} received, but {settled} succeeded, refused or cancelled: {after:?}")
        });
    }
}
