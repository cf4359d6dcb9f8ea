//! The soak: the mixed load of row 26 with reloads and signals, for the requested time. A line each minute; at the end
//! the good client has lost nothing, and memory, descriptors and counters are as behind the first tenth.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::{Asker, Outcome, percentile};
use crate::form::{Form, Who};
use crate::memory::{Mixed, mix_into};
use crate::models::{GOOD, VERSIONED};
use crate::standard::Counts;
use crate::subject::{Subject, Wish};
use crate::support::http;
use crate::support::over::Over;
use crate::trial::{Trial, mib, ms};

/// The time between two lines.
const MINUTE: Duration = Duration::from_secs(60);
/// Allowed growth of memory behind the first tenth, whatever the time.
const GROWTH_MAX: i64 = 8 << 20;

/// Observations of the good client since the last line.
#[derive(Default)]
struct Minute {
    latencies: Vec<Duration>,
    faults: Vec<String>,
}

/// Plays it, and prints its observations.
pub fn run(form: &Form, time: Duration) -> ExitCode {
    const FLAGS: [&str; 6] = [
        "--model-control-mode=explicit",
        "--load-model=*",
        "--http-head-timeout=3",
        "--http-body-timeout=3",
        "--http-write-timeout=3",
        "--http-idle-timeout=10",
    ];
    let trial = Trial::new(form);
    let wish = Wish { deuteron: &FLAGS, triton: &FLAGS[..2], shell: "", may_be_attached: true, has_faulty: false };
    let mut subject = match Subject::start(&trial, wish) {
        Ok(subject) => subject,
        Err(why) => {
            println!("not applicable: {}", why.0);
            return ExitCode::FAILURE;
        }
    };
    let (mixed, is_over, start) = (Mixed::default(), AtomicBool::new(false), Instant::now());
    let (mut settled, mut answered, mut faults) = (None, 0_u64, Vec::new());
    let mut begin = Counts::read(&subject);
    begin.good = begin.good.or(Some(0));
    thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| mix_into(&subject, time, &mixed, &is_over));
        scope.spawn(|| disturb(&subject, form, start, time));
        let mut asker = Asker::new(&subject, GOOD);
        while start.elapsed() < time && subject.is_running() {
            let minute = ask_for(&mut asker, MINUTE.min(time.saturating_sub(start.elapsed())));
            answered += (minute.latencies.len() - minute.faults.len()) as u64;
            println!(
                "{:>5.0} s: {} MiB, {} descriptors, p99 {}, good {answered} answered {} faults, {mixed}",
                start.elapsed().as_secs_f64(),
                subject.resident() >> 20,
                subject.descriptors(),
                ms(percentile(&minute.latencies, 0.99)),
                minute.faults.len(),
            );
            faults.extend(minute.faults);
            if settled.is_none() && start.elapsed() * 10 >= time {
                settled = Some(subject.resident());
            }
        }
    });
    // The held connections end by their timers, and free pages go back.
    subject.waits(Duration::from_secs(20), |it| Counts::read(it).in_flight == 0 && it.descriptors() < 60);
    thread::sleep(Duration::from_secs(5));
    let (end, grown) = (Counts::read(&subject), subject.resident() - settled.unwrap_or_else(|| subject.resident()));
    trial.check(faults.is_empty(), || format!("the good client: {:.400}", faults.join("; ")));
    trial.check(mixed.lost.load(Ordering::SeqCst) == 0, || format!("the mixed load: {mixed}"));
    trial.check(grown <= GROWTH_MAX, || format!("memory {} behind the first tenth", mib(grown)));
    trial.check(end.in_flight == 0, || format!("{} in flight", end.in_flight));
    if let Some(received) = end.received {
        let settled = end.succeeded + end.refused + end.cancelled;
        trial.check(received == settled, || format!("{received} received, but {end:?}"));
    }
    if let (Some(was), Some(is)) = (begin.good, end.good) {
        trial.check(is - was == answered, || {
            format!("the metrics have {} answers of the good client's {answered}", is - was)
        });
    }
    trial.check(!subject.log().contains("panicked"), || "something has panicked".to_owned());
    let status = subject.stop();
    trial.check(status.is_none_or(|status| status.success()), || format!("it ended with {status:?}"));
    let (_, failures) = trial.found();
    println!("{answered} answered, {}; memory {}; {end:?}", mixed, mib(grown));
    failures.iter().for_each(|failure| println!("FAILED: {failure}"));
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The good client for a while.
fn ask_for(asker: &mut Asker, time: Duration) -> Minute {
    let (start, mut minute) = (Instant::now(), Minute::default());
    while start.elapsed() < time {
        let asked = Instant::now();
        match asker.ask(minute.latencies.len() % 2 == 0) {
            Outcome::Answered => {}
            other => minute.faults.push(format!("{other:?}")),
        }
        minute.latencies.push(asked.elapsed());
        thread::sleep(Duration::from_millis(10));
    }
    minute
}

/// Loads a model again every five seconds, reads the metrics all the time, and sends signals that do not mean the end.
fn disturb(subject: &Subject, form: &Form, start: Instant, time: Duration) {
    for round in 0_u64.. {
        if start.elapsed() >= time {
            break;
        }
        let _ = Counts::read(subject);
        if round % 50 == 0 {
            let _ = http::post(subject.http, &format!("/v2/repository/models/{VERSIONED}/load"), b"");
            // Other servers may end at them.
            if form.who == Who::Deuteron {
                subject.signal(["HUP", "USR1"][round as usize / 50 % 2]);
            }
        }
        thread::sleep(Duration::from_millis(100));
    }
}
