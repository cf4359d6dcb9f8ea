//! Rows 10 to 12: conformance to the protocols. The cases of the suites are those of `tests/it`.

use std::io::Read;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::client::{echoes_json, nonce, request};
use crate::http2::peer::{PATIENCE, Socket};
use crate::models::ECHO;
use crate::standard::{STANDARD, around};
use crate::subject::{PLAIN, Subject};
use crate::support::http::{self, Connection};
use crate::trial::{Played, Trial};
use crate::{http1_suite, http2};

/// Row 10.
pub fn http1_strictness(trial: &Trial<'_>) -> Played {
    let subject = Subject::start(trial, PLAIN)?;
    around(trial, &subject, STANDARD, || {
        let (failures, count) = http1_suite::run(&|| http1_suite::plain(subject.http));
        trial.figure(format!("{}/{count} cases", count - failures.len()));
        trial.check(failures.is_empty(), || format!("{} failed: {:.300}", failures.len(), failures.join("; ")));
    });
    Ok(())
}

/// Row 11.
pub fn http2_strictness(trial: &Trial<'_>) -> Played {
    let subject = Subject::start(trial, PLAIN)?;
    around(trial, &subject, STANDARD, || {
        let (cases, next, failed) = (http2::cases::all(), AtomicUsize::new(0), Mutex::new(Vec::new()));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let seen = Socket::connect(subject.grpc).run(case, PATIENCE);
                        if let Err(why) = case.want.judge(&seen, true) {
                            let line = format!("{} {}: {why:.100}", case.clause, case.name);
                            failed.lock().expect("no case panics").push(line);
                        }
                    }
                });
            }
        });
        let failed = failed.into_inner().unwrap_or_default();
        trial.figure(format!("{}/{} cases", cases.len() - failed.len(), cases.len()));
        trial.check(failed.is_empty(), || format!("{} failed: {:.300}", failed.len(), failed.join("; ")));
    });
    Ok(())
}

/// One request of a pipeline: its bytes, the expected status, and the expected nonce.
type Piped = (Vec<u8>, u16, Option<u64>);

/// GET, inference, an unknown model, an unknown path and a broken body in turn.
fn pipeline(count: usize) -> Vec<Piped> {
    let one = |index: usize| match index % 5 {
        0 => (http::request("GET", "/v2/health/live", &[], b""), 200, None),
        1 | 3 => {
            let nonce = nonce();
            (request(ECHO, nonce, ""), 200, Some(nonce))
        }
        2 => (http::request("GET", "/v2/nothing", &[], b""), 404, None),
        _ => (http::request("POST", "/v2/models/echo/infer", &[], b"{"), 400, None),
    };
    (0..count).map(one).collect()
}

/// Row 12.
pub fn pipelining(trial: &Trial<'_>) -> Played {
    let subject = Subject::start(trial, PLAIN)?;
    around(trial, &subject, STANDARD, || {
        let (mut tried, mut wrong) = (0, Vec::new());
        let mut try_it = |count: usize, cut: Cut| {
            tried += 1;
            if let Err(why) = play(&subject, &pipeline(count), cut) {
                wrong.push(format!("{count} requests, {cut:?}: {why}"));
            }
        };
        (1..=64).for_each(|count| try_it(count, Cut::Whole));
        try_it(8, Cut::Bytes);
        let length: usize = pipeline(4).iter().map(|(bytes, ..)| bytes.len()).sum();
        (1..length).step_by(trial.size(17, 1)).for_each(|at| try_it(4, Cut::At(at)));
        trial.figure(format!("{}/{tried} pipelines in order", tried - wrong.len()));
        trial.check(wrong.is_empty(), || format!("{} wrong: {:.300}", wrong.len(), wrong.join("; ")));
    });
    Ok(())
}

/// A way to write a pipeline.
#[derive(Clone, Copy, Debug)]
enum Cut {
    Whole,
    Bytes,
    At(usize),
}

fn play(subject: &Subject, pipeline: &[Piped], cut: Cut) -> Result<(), String> {
    let bytes = pipeline.iter().map(|(bytes, ..)| bytes.as_slice()).collect::<Vec<_>>().concat();
    let mut connection = Connection::open(subject.http).map_err(|error| error.to_string())?;
    let _ = connection.stream().set_read_timeout(Some(Duration::from_secs(5)));
    let pieces: Vec<&[u8]> = match cut {
        Cut::Whole => vec![&bytes],
        Cut::Bytes => bytes.chunks(1).collect(),
        Cut::At(at) => vec![&bytes[..at], &bytes[at..]],
    };
    for piece in pieces {
        connection.send(piece).map_err(|error| error.to_string())?;
        if matches!(cut, Cut::At(_)) {
            // The server reads the bytes so far.
            thread::sleep(Duration::from_micros(300));
        }
    }
    for (index, (_, status, nonce)) in pipeline.iter().enumerate() {
        let answer = connection.receive().map_err(|error| format!("answer {index}: {error}"))?;
        let is_echo = nonce.is_none_or(|nonce| echoes_json(&answer.body, nonce));
        if answer.status != *status || !is_echo {
            return Err(format!("answer {index}: {} for {status}, {}", answer.status, answer.body.escape_ascii()));
        }
    }
    let _ = connection.stream().set_read_timeout(Some(Duration::from_millis(1)));
    match connection.stream().read(&mut [0]) {
        Ok(1) => Err("an answer too many".to_owned()),
        _ => Ok(()),
    }
}
