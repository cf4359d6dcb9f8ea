//! Rows 13 to 15: connections that are held without a request, and a lack of descriptors.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::client::{Asker, Outcome};
use crate::models::{ECHO, GOOD};
use crate::standard::{Around, STANDARD, around};
use crate::subject::{OWN, PLAIN, Subject, Wish};
use crate::support::http;
use crate::trial::{Played, Trial, ms};

/// The size of an answer that is not read.
const ANSWER_SIZE: usize = 4 << 20;
/// Size of a client's writes.
const PIECE: usize = 64 << 10;

/// A connection that gives a byte now and then.
struct Drip {
    stream: TcpStream,
    is_closed: bool,
    /// The received bytes.
    came: Vec<u8>,
}

impl Drip {
    fn open(subject: &Subject, first: &[u8]) -> Option<Self> {
        let mut stream = TcpStream::connect(subject.http).ok()?;
        stream.write_all(first).ok()?;
        stream.set_nonblocking(true).ok()?;
        Some(Self { stream, is_closed: false, came: Vec::new() })
    }

    /// Sends a byte, and checks whether the server has closed.
    fn drip(&mut self) {
        let _ = self.stream.write(b"a");
        let mut piece = [0; 512];
        loop {
            match self.stream.read(&mut piece) {
                Ok(0) => break self.is_closed = true,
                Ok(count) => self.came.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => break self.is_closed = true,
            }
        }
    }
}

/// Row 13.
pub fn slow_clients(trial: &Trial<'_>) -> Played {
    let seconds = trial.size(1, 3);
    let flags: Vec<String> =
        ["head", "body", "write", "idle"].iter().map(|timer| format!("--http-{timer}-timeout={seconds}")).collect();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let subject = Subject::start(trial, Wish { deuteron: &flags, ..PLAIN })?;
    let scale = trial.size(20, 1);
    let counts = [400 / scale, 300 / scale, 300 / scale];
    around(trial, &subject, STANDARD, || hold_slowly(trial, &subject, counts, seconds));
    Ok(())
}

/// Holds connections that drip a head, that drip a body, and that never read, by `counts`, until the server has closed
/// them all.
fn hold_slowly(trial: &Trial<'_>, subject: &Subject, counts: [usize; 3], seconds: u64) {
    let (descriptors, resident) = (subject.descriptors(), subject.resident());
    let body = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n{";
    let start = Instant::now();
    let heads = (0..counts[0]).filter_map(|_| Drip::open(subject, b"GET /v2 HTTP/1.1\r\nHost: a\r\nX-Slow: "));
    let mut drips: Vec<Drip> = heads.collect();
    drips.extend((0..counts[1]).filter_map(|_| Drip::open(subject, body)));
    thread::sleep(Duration::from_millis(300));
    let each = (subject.resident() - resident) / drips.len().max(1) as i64;
    let patience = Duration::from_secs(seconds + trial.size(10, 7));
    let (closed_in, (silent_in, silent)) = thread::scope(|scope| {
        let silent = scope.spawn(|| never_read(subject, counts[2], descriptors, patience));
        let mut closed_in = None;
        while closed_in.is_none() && start.elapsed() < patience {
            drips.iter_mut().filter(|drip| !drip.is_closed).for_each(Drip::drip);
            closed_in = drips.iter().all(|drip| drip.is_closed).then(|| start.elapsed());
            thread::sleep(Duration::from_millis(100));
        }
        let told = drips.iter().filter(|drip| drip.came.starts_with(b"HTTP/1.1 408")).count();
        let closed = drips.iter().filter(|drip| drip.is_closed).count();
        trial.figure(format!("{closed} of {} slow ones closed, {told} by 408, {each} bytes each", drips.len()));
        // They would count among the descriptors of the others.
        drips.clear();
        (closed_in, silent.join().expect("the silent ones do not panic"))
    });
    let show = |took: Option<Duration>| took.map_or("never".to_owned(), |took| format!("{:.1} s", took.as_secs_f64()));
    trial.figure(format!("in {}, {silent} that never read in {}", show(closed_in), show(silent_in)));
    let bound = Duration::from_secs(seconds + 2);
    for (what, took) in [("slow", closed_in), ("silent", silent_in)] {
        match took {
            Some(took) => trial.within(&format!("the end of the {what} ones"), took, bound, patience),
            None => trial.check(false, || format!("the {what} ones are not all closed after {patience:?}")),
        }
    }
    // The memory of each is measured in the long form.
    trial.check_bytes("memory for each that is held", each, i64::MAX, 16 << 10);
}

/// Asks `count` times for an answer of 4 MB, and never reads it. Returns the time that the server kept the last
/// connection, and the number of them. A client that does not read does not see the end: the server's descriptors show
/// it.
fn never_read(subject: &Subject, count: usize, descriptors: usize, patience: Duration) -> (Option<Duration>, usize) {
    let request = http::echo_request(ANSWER_SIZE);
    let ask = |_| {
        let mut stream = TcpStream::connect(subject.http).ok()?;
        stream.set_write_timeout(Some(Duration::from_secs(5))).ok()?;
        // By pieces: the kernel keeps the core while it copies, and the good client is on the same one.
        request.chunks(PIECE).try_for_each(|piece| stream.write_all(piece)).ok().map(|()| stream)
    };
    let silent: Vec<TcpStream> = (0..count).filter_map(ask).collect();
    let asked = Instant::now();
    let is_closed = subject.waits(patience, |it| it.descriptors() <= descriptors);
    (is_closed.then(|| asked.elapsed()), silent.len())
}

/// Row 14.
pub fn idle_connections(trial: &Trial<'_>) -> Played {
    let subject = Subject::start(trial, PLAIN)?;
    // As many as this process may have open, beside its other files: 10,000 in the row.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1_024);
    let wanted = trial.size(400, 9_900).min(usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(200));
    around(trial, &subject, Around { slowdown_max: 1.2, ..STANDARD }, || {
        let resident = subject.resident();
        let open = |_| {
            let mut stream = TcpStream::connect(subject.http).ok()?;
            stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
            stream.write_all(b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n").ok()?;
            let mut answer = [0; 512];
            (stream.read(&mut answer).ok()? > 0).then_some(stream)
        };
        let held: Vec<TcpStream> = (0..wanted).filter_map(open).collect();
        thread::sleep(trial.size(Duration::from_millis(500), Duration::from_secs(5)));
        let each = (subject.resident() - resident) / held.len().max(1) as i64;
        trial.figure(format!("{} idle, {each} bytes each", held.len()));
        trial.check(held.len() == wanted, || format!("{} of {wanted} were answered", held.len()));
        trial.check_bytes("memory for each", each, i64::MAX, 4 << 10);
    });
    Ok(())
}

/// Row 15.
pub fn out_of_descriptors(trial: &Trial<'_>) -> Played {
    let subject = Subject::start(trial, Wish { shell: "ulimit -n 256", ..OWN })?;
    around(trial, &subject, Around { is_once: true, ..STANDARD }, || {});
    let mut kept = Asker::new(&subject, GOOD);
    let before = kept.ask(false);
    let lines = subject.log().lines().count();
    let held: Vec<TcpStream> = (0..400).filter_map(|_| TcpStream::connect(subject.http).ok()).collect();
    thread::sleep(Duration::from_millis(500));
    let (start, used) = (Instant::now(), subject.cpu());
    thread::sleep(trial.size(Duration::from_secs(2), Duration::from_secs(5)));
    let share = (subject.cpu() - used).as_secs_f64() / start.elapsed().as_secs_f64();
    let lines = subject.log().lines().count().saturating_sub(lines);
    let count = held.len();
    drop(held);
    let start = Instant::now();
    let mut asker = Asker::new(&subject, ECHO);
    while asker.ask(false) != Outcome::Answered && start.elapsed() < Duration::from_secs(10) {
        thread::sleep(Duration::from_millis(2));
    }
    let took = start.elapsed();
    trial.figure(format!(
        "{count} connects: {:.1} % of a core, {lines} log lines, serves after {}",
        share * 100.0,
        ms(took)
    ));
    trial.check(before == Outcome::Answered, || format!("before: {before:?}"));
    trial.check(count > 300, || format!("{count} connects alone"));
    trial.check(share <= trial.size(0.15, 0.05), || format!("{:.1} % of a core", share * 100.0));
    trial.check(lines <= 10, || format!("{lines} log lines"));
    trial.within("the first answer afterwards", took, Duration::from_millis(100), Duration::from_secs(2));
    let after = kept.ask(false);
    trial.check(after == Outcome::Answered, || format!("a connection from before: {after:?}"));
    trial.check(subject.is_running() && subject.is_live(), || "(d) it is not live".to_owned());
    Ok(())
}
