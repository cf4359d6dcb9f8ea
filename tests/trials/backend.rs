//! Rows 24 and 25: models that fail, and models that keep state.

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use crate::client::{Dice, path};
use crate::models::{FAULTY, SEQUENCE_IDLE_MS, SUMS};
use crate::standard::{STANDARD, around};
use crate::subject::{PLAIN, Subject, Wish};
use crate::support::http::{self, Connection};
use crate::trial::{Played, Trial, ms};

/// The faults of `faulty.py`.
const ERROR: i64 = -1;
const RAISE: i64 = -2;
const ABORT: i64 = -3;
const HANG: i64 = -4;
const SHAPE: i64 = -5;
const LEAK: i64 = -6;

/// Asks [`FAULTY`]. Returns the status, and the number of the answer.
fn ask(subject: &Subject, value: i64) -> (u16, Option<i64>) {
    let body = format!(r#"{{"inputs":[{{"name":"INPUT0","shape":[1,1],"datatype":"INT64","data":[{value}]}}]}}"#);
    let answer = http::post(subject.http, &path(FAULTY), body.as_bytes());
    answer.map_or((0, None), |answer| {
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        let data = text.split_once("\"data\":[").and_then(|(_, rest)| rest.split(']').next()?.parse().ok());
        (answer.status, data)
    })
}

/// Returns true if [`FAULTY`] says that it is ready.
fn is_ready(subject: &Subject) -> bool {
    http::get(subject.http, &format!("/v2/models/{FAULTY}/ready")).is_ok_and(|answer| answer.status == 200)
}

/// Row 24.
pub fn backend_failure(trial: &Trial<'_>) -> Played {
    let subject = Subject::start(trial, Wish { has_faulty: true, ..PLAIN })?;
    if ask(&subject, 1) != (200, Some(1)) {
        return Err(crate::trial::NotApplicable(
            "the server has no model 'faulty': a Python backend is needed".to_owned(),
        ));
    }
    around(trial, &subject, STANDARD, || {
        // One fault among eight that share a batch.
        for (name, fault) in [("an error", ERROR), ("an exception", RAISE), ("a wrong shape", SHAPE)] {
            let alone = name == "an error";
            let seen = batch_with(&subject, fault);
            let right = seen.iter().filter(|(value, got)| *got == (200, Some(*value))).count();
            let wrong = seen.iter().find(|(value, got)| got.0 == 200 && got.1 != Some(*value) && *value > 0);
            trial.check(wrong.is_none(), || format!("{name}: an answer of another: {wrong:?}"));
            trial.check(!alone || right == 7, || {
                format!("{name} of one in eight: {right} of 7 others are right: {seen:?}")
            });
            let failed = seen.iter().find(|(value, _)| *value == fault).map(|(_, got)| got.0);
            let is_told = failed.is_some_and(|status| status >= 400) || (fault == SHAPE && failed == Some(200));
            trial.check(is_told, || format!("{name}: {failed:?}"));
            trial.figure(format!("{name}: {right}/7 others right"));
        }
        let (status, _) = ask(&subject, LEAK);
        trial.check(status == 200, || format!("a leak: {status}"));
        for (name, fault, most) in [("an abort", ABORT, 5), ("a hang", HANG, 5)] {
            let start = Instant::now();
            let (status, _) = ask(&subject, fault);
            let told = start.elapsed();
            trial.check(status >= 500, || format!("{name}: {status} after {}", ms(told)));
            // Readiness is true: the model is not ready without a process, and a ready one answers.
            let is_told = subject.waits(Duration::from_secs(20), |it| !is_ready(it));
            trial.check(is_told, || format!("{name}: the model never says that it is not ready"));
            let is_back = subject.waits(Duration::from_secs(20), is_ready);
            let answer = ask(&subject, 7);
            trial.check(is_back && answer == (200, Some(7)), || format!("{name}: ready: {is_back}, then {answer:?}"));
            trial.figure(format!("{name}: {status} after {}, back after {}", ms(told), ms(start.elapsed())));
            trial.within(&format!("{name}: its error"), told, Duration::from_secs(most), Duration::from_secs(15));
        }
    });
    Ok(())
}

/// Eight requests at once, one of them faulty. Returns each value with its outcome.
fn batch_with(subject: &Subject, fault: i64) -> Vec<(i64, (u16, Option<i64>))> {
    let seen = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for index in 0..8 {
            let value = if index == 3 { fault } else { 1_000 + index };
            let seen = &seen;
            scope.spawn(move || {
                let got = ask(subject, value);
                seen.lock().unwrap().push((value, got));
            });
        }
    });
    seen.into_inner().unwrap()
}

/// Sends a number to a sequence. Returns the sum.
fn add(connection: &mut Connection, id: u64, flags: (bool, bool), value: i64) -> Result<i64, String> {
    let body = format!(
        r#"{{"parameters":{{"sequence_id":{id},"sequence_start":{},"sequence_end":{}}},"inputs":[{{"name":"INPUT","shape":[1,1],"datatype":"INT32","data":[{value}]}}]}}"#,
        flags.0, flags.1
    );
    let sent = connection.send(&http::request("POST", &path(SUMS), &[], body.as_bytes()));
    let answer = sent.and_then(|()| connection.receive()).map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    match text.split_once("\"data\":[") {
        Some((_, rest)) if answer.status == 200 => {
            Ok(rest.split(']').next().unwrap_or_default().parse().unwrap_or(i64::MIN))
        }
        _ => Err(format!("{} {text}", answer.status)),
    }
}

/// Number of sequences that the model has slots for.
const SLOTS: u64 = 8;

/// Row 25.
pub fn sequences(trial: &Trial<'_>) -> Played {
    let subject = Subject::start(trial, PLAIN)?;
    around(trial, &subject, STANDARD, || {
        let count = trial.size(40, 200);
        let (next, found) = (Mutex::new(1_u64), Mutex::new((0, 0, Vec::<String>::new())));
        thread::scope(|scope| {
            for _ in 0..SLOTS * 2 {
                scope.spawn(|| {
                    while let Some(id) = take(&next, count) {
                        let (steps, vanished) = play_sequence(&subject, id, &found);
                        let mut found = found.lock().unwrap();
                        found.0 += steps;
                        found.1 += vanished;
                    }
                });
            }
        });
        let (steps, vanished, wrong) = found.into_inner().unwrap();
        trial.figure(format!("{count} sequences, {steps} right sums, {vanished} vanished"));
        trial.check(wrong.is_empty(), || format!("{} wrong: {:.300}", wrong.len(), wrong.join("; ")));
        // The slots of vanished sequences stay taken for this time.
        thread::sleep(Duration::from_millis(SEQUENCE_IDLE_MS + 200));
        let freed = idle_until_freed(&subject);
        trial.figure(format!("a slot is freed after {}", ms(freed)));
        let idle = Duration::from_millis(SEQUENCE_IDLE_MS);
        trial.check(freed >= idle.mul_f64(0.9), || format!("a slot was freed after {}", ms(freed)));
        trial.within("a slot", freed, idle.mul_f64(1.1), idle * 4);
    });
    let (start, used) = (Instant::now(), subject.cpu());
    thread::sleep(trial.size(Duration::from_millis(300), Duration::from_secs(3)));
    let share = (subject.cpu() - used).as_secs_f64() / start.elapsed().as_secs_f64();
    trial.figure(format!("{:.1} % of a core at rest", share * 100.0));
    trial.check(share <= trial.size(0.1, 0.011), || format!("{:.1} % of a core at rest", share * 100.0));
    Ok(())
}

fn take(next: &Mutex<u64>, count: u64) -> Option<u64> {
    let mut next = next.lock().unwrap();
    *next += 1;
    (*next <= count + 1).then_some(*next)
}

/// Plays one sequence: one of five vanishes without its end, one of ten starts again in between.
fn play_sequence(subject: &Subject, id: u64, found: &Mutex<(u64, u64, Vec<String>)>) -> (u64, u64) {
    let mut dice = Dice::new(id);
    (0..4).for_each(|_| {
        dice.next();
    });
    let steps = 3 + dice.below(5);
    let vanishes_at = id.is_multiple_of(5).then(|| 1 + dice.below(steps - 1));
    let again_at = (id % 10 == 3).then(|| 1 + dice.below(steps - 1));
    let Ok(mut connection) = Connection::open(subject.http) else { return (0, 0) };
    let (mut sum, mut right) = (0, 0);
    for step in 0..steps {
        if vanishes_at == Some(step) {
            return (right, 1);
        }
        let value = dice.below(1_000) as i64;
        let starts = step == 0 || again_at == Some(step);
        sum = if starts { value } else { sum + value };
        match add(&mut connection, id, (starts, step + 1 == steps), value) {
            Ok(got) if got == sum => right += 1,
            other => {
                found.lock().unwrap().2.push(format!("sequence {id}, step {step}: {other:?}, not {sum}"));
                return (right, 0);
            }
        }
    }
    (right, 0)
}

/// Takes all slots with sequences that then stay silent. Returns the time that one more waits for a
/// slot.
fn idle_until_freed(subject: &Subject) -> Duration {
    let Ok(mut connection) = Connection::open(subject.http) else { return Duration::MAX };
    let start = Instant::now();
    for id in 10_000..10_000 + SLOTS {
        let _ = add(&mut connection, id, (true, false), 1);
    }
    let outcome = add(&mut connection, 20_000, (true, true), 1);
    if outcome == Ok(1) { start.elapsed() } else { Duration::MAX }
}
