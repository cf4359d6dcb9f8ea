//! Rows 1 to 4: load below, above and back below the server's capacity, and deadlines. And the load that other rows
//! use.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::{Asker, Code, Dice, INFER, Outcome, message, nonce, percentile, request, sleep_until};
use crate::models::{ECHO, JOB, QUEUED};
use crate::standard::{Around, STANDARD, around, metric};
use crate::subject::{PLAIN, Subject, Wish};
use crate::support::over::Over;
use crate::support::{h2, http};
use crate::trial::{Played, Trial, ms};

/// One request of a load.
pub struct Record {
    /// From the instant at which it was due.
    pub took: Duration,
    /// From the instant at which it was sent, where its deadline begins.
    pub waited: Duration,
    pub outcome: Outcome,
    pub had_retry_after: bool,
}

impl Record {
    pub fn is_answered(&self) -> bool {
        self.outcome == Outcome::Answered
    }
}

/// A load of `clients` clients, half of each protocol, each with one request at a time. Returns their records.
pub fn closed_loop(subject: &Subject, model: &'static str, clients: usize, time: Duration) -> Vec<Record> {
    let records = Mutex::new(Vec::new());
    let start = Instant::now();
    thread::scope(|scope| {
        for index in 0..clients {
            let records = &records;
            scope.spawn(move || {
                let (mut asker, mut seen) = (Asker::new(subject, model), Vec::new());
                while start.elapsed() < time {
                    let asked = Instant::now();
                    let outcome = asker.ask(index % 2 == 0);
                    let took = asked.elapsed();
                    seen.push(Record { took, waited: took, outcome, had_retry_after: asker.had_retry_after });
                }
                records.lock().expect("no client panics").extend(seen);
            });
        }
    });
    records.into_inner().expect("no client panics")
}

/// The server's greatest rate of answers, per second.
fn capacity(subject: &Subject, model: &'static str, clients: usize, time: Duration) -> f64 {
    let answered = closed_loop(subject, model, clients, time).iter().filter(|record| record.is_answered()).count();
    answered as f64 / time.as_secs_f64()
}

/// A load in an open loop.
pub struct OpenLoop {
    pub model: &'static str,
    pub rate: f64,
    pub time: Duration,
    /// Requests that may be open at once.
    pub clients: usize,
    pub timeout: Option<Duration>,
}

/// Poisson arrivals, which do not wait for answers: half of each protocol.
pub fn open_loop(subject: &Subject, load: &OpenLoop) -> Vec<Record> {
    let (mut dice, mut at, mut arrivals) = (Dice::new(load.rate as u64), 0.0, Vec::new());
    while at < load.time.as_secs_f64() {
        arrivals.push(Duration::from_secs_f64(at));
        at -= (1.0 - dice.share()).ln() / load.rate;
    }
    let (next, records) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    // Connections are made first.
    let start = Instant::now() + Duration::from_millis(200);
    thread::scope(|scope| {
        for index in 0..load.clients {
            let (next, records, arrivals) = (&next, &records, &arrivals);
            scope.spawn(move || {
                let mut asker = Asker::new(subject, load.model);
                if let Some(timeout) = load.timeout {
                    asker = asker.with_timeout(timeout);
                }
                let mut seen = Vec::new();
                while let Some(arrival) = arrivals.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let due = start + *arrival;
                    sleep_until(due);
                    let sent = Instant::now();
                    let outcome = asker.ask(index % 2 == 0);
                    let (took, waited) = (due.elapsed(), sent.elapsed());
                    seen.push(Record { took, waited, outcome, had_retry_after: asker.had_retry_after });
                }
                records.lock().expect("no client panics").extend(seen);
            });
        }
    });
    records.into_inner().expect("no client panics")
}

fn times(records: &[Record]) -> Vec<Duration> {
    records.iter().filter(|record| record.is_answered()).map(|record| record.took).collect()
}

/// All outcomes except answers and allowed refusals.
fn faults<'a>(records: &'a [Record], is_allowed: impl Fn(Code) -> bool + 'a) -> impl Iterator<Item = &'a Outcome> {
    records.iter().map(|record| &record.outcome).filter(move |outcome| match outcome {
        Outcome::Answered => false,
        Outcome::Refused(code, _) => !is_allowed(*code),
        _ => true,
    })
}

/// Row 1.
pub fn open_loop_load_held(trial: &Trial<'_>) -> Played {
    let subject = Subject::start(trial, PLAIN)?;
    let peak = capacity(&subject, ECHO, 8, trial.size(Duration::from_millis(500), Duration::from_secs(2)));
    // A busy machine does not keep the rate that it reached a moment ago.
    let rate = trial.size((peak * 0.3).min(400.0), peak * 0.7);
    let time = trial.size(Duration::from_millis(1_500), Duration::from_secs(20));
    let deadline = trial.size(Duration::from_secs(10), Duration::from_secs(1));
    around(trial, &subject, Around { is_once: true, ..STANDARD }, || {
        let load = OpenLoop { model: ECHO, rate, time, clients: 32, timeout: Some(deadline) };
        let records = open_loop(&subject, &load);
        let (p50, p99) = (percentile(&times(&records), 0.5), percentile(&times(&records), 0.99));
        let answered = times(&records).len();
        trial.figure(format!("{answered}/{} at {rate:.0}/s, p50 {} p99 {}", records.len(), ms(p50), ms(p99)));
        let first = faults(&records, |_| false).next();
        trial.check(first.is_none(), || format!("{answered} of {} answered: {first:?}", records.len()));
        let late = times(&records).iter().filter(|took| **took > deadline).count();
        trial.check(late == 0, || format!("{late} behind their deadline"));
        trial.within("p99", p99, p50 * 5, Duration::from_secs(5));
    });
    Ok(())
}

/// The server of rows 2 and 3: it refuses a request at once if it would be late.
const OVERLOADED: Wish<'_> = Wish { deuteron: &["--admission=deadline"], ..PLAIN };
const DEADLINE: Duration = Duration::from_millis(50);

/// Row 2.
pub fn overload(trial: &Trial<'_>) -> Played {
    let subject = Subject::start(trial, OVERLOADED)?;
    let peak = capacity(&subject, QUEUED, 8, trial.size(Duration::from_secs(1), Duration::from_secs(3)));
    around(trial, &subject, Around { is_once: true, ..STANDARD }, || {
        let (is_over, longest) = (AtomicBool::new(false), AtomicU64::new(0));
        let time = trial.size(Duration::from_secs(2), Duration::from_secs(15));
        let load = OpenLoop { model: QUEUED, rate: peak * 3.0, time, clients: 160, timeout: Some(DEADLINE) };
        let records = thread::scope(|scope| {
            let _over = Over(&is_over);
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    let waiting = metric(&subject, "nv_inference_pending_request_count{model=\"queued\"");
                    longest.fetch_max(waiting, Ordering::SeqCst);
                    thread::sleep(Duration::from_millis(20));
                }
            });
            open_loop(&subject, &load)
        });
        judge_overload(trial, &records, peak * time.as_secs_f64(), longest.into_inner());
    });
    Ok(())
}

fn judge_overload(trial: &Trial<'_>, records: &[Record], possible: f64, longest: u64) {
    let answered = times(records);
    let refused: Vec<&Record> =
        records.iter().filter(|record| matches!(record.outcome, Outcome::Refused(..))).collect();
    let refusals: Vec<Duration> = refused.iter().map(|record| record.took).collect();
    let (p50, p99) = (percentile(&refusals, 0.5), percentile(&refusals, 0.99));
    let goodput = answered.len() as f64 / possible;
    let latest = answered.iter().max().copied().unwrap_or_default();
    let waited = records.iter().filter(|it| it.is_answered()).map(|it| it.waited).max().unwrap_or_default();
    trial.figure(format!(
        "{} answered + {} refused = {}, goodput {:.0} %, refusals p50 {} p99 {}, latest answer {} after it was due, {} after it was \
         sent, queue {longest}",
        answered.len(),
        refused.len(),
        records.len(),
        goodput * 100.0,
        ms(p50),
        ms(p99),
        ms(latest),
        ms(waited)
    ));
    let first = faults(records, |code| code.is_busy() || code.is_late()).next();
    trial.check(first.is_none(), || format!("neither an answer nor a refusal: {first:?}"));
    trial.check(!refused.is_empty(), || "nothing was refused: that was no overload".to_owned());
    let is_busy = |outcome: &Outcome| matches!(outcome, Outcome::Refused(Code::Http(429 | 503), _));
    let by_http = refused.iter().filter(|record| is_busy(&record.outcome));
    let without: Vec<&Outcome> = by_http.filter(|it| !it.had_retry_after).map(|it| &it.outcome).collect();
    trial
        .check(without.is_empty(), || format!("{} refusals without Retry-After: {:?}", without.len(), without.first()));
    trial.check(longest <= 64, || format!("{longest} waited, 64 may"));
    trial.check(goodput >= trial.size(0.3, 0.9), || format!("goodput {:.0} %", goodput * 100.0));
    trial.within("the slowest hundredth of the refusals", p99, Duration::from_millis(5), Duration::from_secs(2));
    trial.within("the latest answer", latest, DEADLINE, Duration::from_secs(2));
}

/// Row 3.
pub fn recovery(trial: &Trial<'_>) -> Played {
    let subject = Subject::start(trial, OVERLOADED)?;
    let peak = capacity(&subject, QUEUED, 8, Duration::from_secs(1));
    around(trial, &subject, Around { is_once: true, slowdown_max: 1e9, ..STANDARD }, || {
        let play = |share: f64, time: Duration, clients: usize, timeout: Option<Duration>| {
            open_loop(&subject, &OpenLoop { model: QUEUED, rate: peak * share, time, clients, timeout })
        };
        let calm = trial.size(Duration::from_millis(800), Duration::from_secs(5));
        let quiet = percentile(&times(&play(0.3, calm, 16, None)), 0.99);
        play(3.0, trial.size(Duration::from_millis(800), Duration::from_secs(5)), 160, Some(DEADLINE));
        // Load for the second that the server has to recover.
        play(0.3, Duration::from_secs(1), 16, None);
        let waiting = metric(&subject, "nv_inference_pending_request_count{model=\"queued\"");
        let records = play(0.3, calm, 16, None);
        let after = percentile(&times(&records), 0.99);
        trial.figure(format!("p99 {} before, {} a second after, {waiting} waiting", ms(quiet), ms(after)));
        let first = faults(&records, |_| false).next();
        trial.check(first.is_none(), || format!("not answered: {first:?}"));
        trial.check(waiting <= trial.size(16, 4), || format!("{waiting} still wait"));
        // Random arrivals wait for each other: either p99 is exact only to a half.
        trial.within("p99 afterwards", after, quiet.mul_f64(1.5), Duration::from_secs(2));
    });
    Ok(())
}

/// Row 4.
pub fn deadline_honoured(trial: &Trial<'_>) -> Played {
    // A server that has measured how long the job takes refuses at once a request that would be late: its timers are
    // tried here.
    let subject = Subject::start(trial, Wish { deuteron: &["--admission=none"], ..PLAIN })?;
    let runs = |subject: &Subject| metric(subject, "nv_inference_count{model=\"job\"");
    around(trial, &subject, STANDARD, || {
        let (before, count) = (runs(&subject), trial.size(40, 200));
        let seen = Mutex::new(Vec::new());
        thread::scope(|scope| {
            let busy =
                scope.spawn(|| http::exchange(subject.http, &request(JOB, nonce(), "")).map(|answer| answer.status));
            thread::sleep(Duration::from_millis(30));
            for index in 0..count {
                let (seen, subject) = (&seen, &subject);
                scope.spawn(move || {
                    // Outside the lock: they are all sent at once.
                    let outcome = late_request(subject, index % 2 == 0);
                    seen.lock().expect("no client panics").push(outcome);
                });
            }
            let status = busy.join().expect("no client panics").ok();
            trial.check(status == Some(200), || format!("the job before them: {status:?}"));
        });
        let seen = seen.into_inner().expect("no client panics");
        subject.waits(Duration::from_secs(2), |it| metric(it, "nv_inference_pending_request_count{model=\"job\"") == 0);
        let ran = runs(&subject) - before;
        let took: Vec<Duration> = seen.iter().map(|(took, _)| *took).collect();
        let latest = took.iter().max().copied().unwrap_or_default();
        let late = seen.iter().filter(|(_, code)| code.is_some_and(Code::is_late)).count();
        trial.figure(format!(
            "{late}/{count} late, p50 {} longest {}, {} of them ran",
            ms(percentile(&took, 0.5)),
            ms(latest),
            ran.saturating_sub(1)
        ));
        let other = seen.iter().find(|(_, code)| !code.is_some_and(Code::is_late));
        trial.check(other.is_none(), || format!("{late} of {count} were told that they are late: {other:?}"));
        trial.check(ran == 1, || format!("the model ran {ran} requests, not the job alone"));
        let earliest = took.iter().min().copied().unwrap_or_default();
        trial.check(earliest >= LATE, || format!("one was told after {earliest:?}"));
        trial.within("the latest", latest, LATE * 2, LATE * 8);
    });
    Ok(())
}

const LATE: Duration = Duration::from_millis(20);

/// Sends one that has 20 ms. Returns its time, and its answer.
fn late_request(subject: &Subject, is_grpc: bool) -> (Duration, Option<Code>) {
    if is_grpc {
        let start = Instant::now();
        let content = h2::framed(0, &message(JOB, nonce(), None));
        let called = h2::call_framed(subject.grpc, INFER, &[("grpc-timeout", "20m")], content);
        return (start.elapsed(), called.status().parse().ok().map(Code::Grpc));
    }
    let Ok(mut connection) = http::Connection::open(subject.http) else { return (Duration::ZERO, None) };
    let start = Instant::now();
    let sent = connection.send(&request(JOB, nonce(), "\"timeout\":20000"));
    let answer = sent.and_then(|()| connection.receive());
    (start.elapsed(), answer.ok().map(|answer| Code::Http(answer.status)))
}
