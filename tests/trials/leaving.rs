//! Rows 5 and 6: clients that leave.

use std::io::Write;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::client::{Asker, INFER, Outcome, STREAM, message, nonce, request};
use crate::models::{ECHO, SLOW};
use crate::standard::{Counts, STANDARD, around, metric};
use crate::subject::{PLAIN, Subject};
use crate::support::h2;
use crate::trial::{Played, Trial, ms};
use socket2::SockRef;

/// Rows in a batch of [`SLOW`], and the batches that can have begun when the clients leave.
const ROWS_MAX: u64 = 8;
const BATCHES_BEGUN_MAX: u64 = 2;

/// Row 5.
pub fn client_hang_up(trial: &Trial<'_>) -> Played {
    let subject = Subject::start(trial, PLAIN)?;
    let ran = |subject: &Subject| metric(subject, "nv_inference_count{model=\"slow\"");
    around(trial, &subject, STANDARD, || {
        let (before, cancelled) = (ran(&subject), Counts::read(&subject).cancelled);
        leave_all(&subject, 160, Duration::from_millis(300));
        let start = Instant::now();
        let outcome = Asker::new(&subject, SLOW).ask(false);
        let took = start.elapsed();
        let ran = ran(&subject) - before - 1;
        let cancelled = Counts::read(&subject).cancelled - cancelled;
        trial.figure(format!("answered in {}, {cancelled} cancelled, {ran} of 160 ran", ms(took)));
        trial.check(outcome == Outcome::Answered, || format!("the request afterwards: {outcome:?}"));
        trial.within("the request afterwards", took, Duration::from_millis(450), Duration::from_secs(2));
        trial.check(ran <= BATCHES_BEGUN_MAX * ROWS_MAX, || format!("{ran} requests ran that nobody waited for"));
        // A server without such a counter shows the dropped requests by `ran`.
        let has_counter = Counts::read(&subject).received.is_some();
        trial.check(!has_counter || cancelled + ran >= 160, || format!("{cancelled} were cancelled, {ran} ran"));
    });
    Ok(())
}

/// Sends `count` whole requests, each on a connection of its own, and resets them all after a while.
pub fn leave_all(subject: &Subject, count: usize, after: Duration) {
    let start = Instant::now();
    let connections: Vec<TcpStream> = (0..count).filter_map(|_| TcpStream::connect(subject.http).ok()).collect();
    for mut connection in &connections {
        let _ = connection.write_all(&request(SLOW, nonce(), ""));
        let _ = SockRef::from(connection).set_linger(Some(Duration::ZERO));
    }
    thread::sleep(after.saturating_sub(start.elapsed()));
}

/// Row 6.
pub fn cancel_storm(trial: &Trial<'_>) -> Played {
    let subject = Subject::start(trial, PLAIN)?;
    around(trial, &subject, STANDARD, || {
        let (calls, streams) = trial.size((600, 100), (5_000, 500));
        let messages = [message(SLOW, nonce(), None), message(ECHO, nonce(), None)];
        let messages: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
        let (mut answered, mut cancelled) = (0, 0);
        // A connection may reset a thousand streams in 10 s and one more for each answer; row 16 goes beyond that.
        for (method, count) in [(INFER, calls), (STREAM, streams)] {
            for begin in (0..count).step_by(1_000) {
                let ended = h2::cancel_storm(subject.grpc, method, &messages, (count - begin).min(1_000));
                (answered, cancelled) = (answered + ended.answered, cancelled + ended.cancelled);
            }
        }
        trial.figure(format!("{calls} calls and {streams} streams: {answered} answered + {cancelled} cancelled"));
        trial.check(answered + cancelled == calls + streams, || format!("{answered} + {cancelled} are not all"));
        let is_empty = subject.waits(Duration::from_secs(3), |it| Counts::read(it).in_flight == 0);
        trial.check(is_empty, || format!("{} in flight", Counts::read(&subject).in_flight));
    });
    Ok(())
}
