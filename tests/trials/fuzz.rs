//! Row 22: changed bytes of every protocol, from a seed. A server may refuse them or close; it may not crash, be silent
//! for long after the client has ended its side, or answer with the id of another request.

use std::collections::HashSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::{Dice, INFER, message, nonce, request};
use crate::http2::case::fields;
use crate::http2::frame::{DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, frame, settings};
use crate::models::ECHO;
use crate::standard::{STANDARD, around};
use crate::subject::{PLAIN, Subject};
use crate::support::h2;
use crate::trial::{Played, Trial};

/// Time without an answer that counts as a hang.
const HANG: Duration = Duration::from_secs(2);
/// Clients at a time.
const CLIENTS: usize = 4;
const SEED: u64 = 22;

/// Row 22.
pub fn random_fuzz(trial: &Trial<'_>) -> Played {
    let subject = Subject::start(trial, PLAIN)?;
    let cases = trial.size(1_500, 26_000);
    around(trial, &subject, STANDARD, || {
        let (next, found, start) = (AtomicUsize::new(0), Mutex::new(Vec::new()), Instant::now());
        let answered = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= cases || !subject.is_running() {
                            break;
                        }
                        match try_case(&subject, number) {
                            Ok(has_answer) => drop(answered.fetch_add(usize::from(has_answer), Ordering::Relaxed)),
                            Err(why) => found.lock().expect("no case panics").push(format!("case {number}: {why}")),
                        }
                    }
                });
            }
        });
        let found = found.into_inner().unwrap_or_default();
        let rate = cases as f64 / start.elapsed().as_secs_f64();
        trial.figure(format!("{cases} cases from seed {SEED}, {rate:.0}/s, {} answered", answered.into_inner()));
        trial.check(found.is_empty(), || format!("{} found: {:.300}", found.len(), found.join("; ")));
    });
    Ok(())
}

/// Tries one case. Returns true if it got an answer.
fn try_case(subject: &Subject, number: usize) -> Result<bool, String> {
    let mut dice = Dice::new(SEED << 32 | number as u64);
    (0..4).for_each(|_| {
        dice.next();
    });
    let nonce = nonce();
    let (address, bytes): (SocketAddr, Vec<u8>) = match number % 3 {
        0 => (subject.http, changed(&request(ECHO, nonce, "\"timeout\":1000000"), 0, &mut dice)),
        1 => {
            let call = call(&message(ECHO, nonce, Some(1_000_000)));
            (subject.grpc, changed(&call, PREFACE.len(), &mut dice))
        }
        _ => {
            // The frames are whole, their contents are not.
            let message = changed(&message(ECHO, nonce, Some(1_000_000)), 0, &mut dice);
            (subject.grpc, call(&message))
        }
    };
    let came = exchange(address, &bytes)?;
    let known = ids(&bytes);
    match ids(&came).difference(&known).next() {
        Some(other) => Err(format!("an answer to {other}: {}", bytes.escape_ascii())),
        None => Ok(!came.is_empty()),
    }
}

/// A whole call with this message.
fn call(message: &[u8]) -> Vec<u8> {
    let block = fields(&[
        (":method", "POST"),
        (":scheme", "http"),
        (":path", INFER),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ]);
    let head = frame(HEADERS, END_HEADERS, 1, &block);
    [PREFACE, &settings(&[]), &head, &frame(DATA, END_STREAM, 1, &h2::framed(0, message))].concat()
}

/// One to eight changes behind the first bytes: changed bits or bytes; parts that are removed, doubled, or replaced by
/// large numbers.
fn changed(bytes: &[u8], from: usize, dice: &mut Dice) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=dice.below(8) {
        let at = from + dice.below((bytes.len() - from).max(1) as u64) as usize;
        let at = at.min(bytes.len().saturating_sub(1));
        let end = (at + 1 + dice.below(16) as usize).min(bytes.len());
        match dice.below(6) {
            0 => bytes[at] ^= 1 << dice.below(8),
            1 => bytes[at] = dice.below(256) as u8,
            2 => drop(bytes.drain(at..end)),
            3 => {
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part);
            }
            4 => bytes.truncate(at),
            _ => {
                const TEXTS: [&[u8]; 8] = [
                    b"\0",
                    b"\r\n",
                    b"\r\n\r\n",
                    b"99999999999999999999",
                    b"-1",
                    b"\xff\xff\xff\xff",
                    b"{[",
                    b"\x7f\xff",
                ];
                bytes.splice(at..at, TEXTS[dice.below(8) as usize].to_vec());
            }
        }
        if bytes.len() <= from {
            break;
        }
    }
    bytes
}

/// Sends and ends its side. Returns the bytes received until the server closes.
fn exchange(address: SocketAddr, bytes: &[u8]) -> Result<Vec<u8>, String> {
    let mut stream = TcpStream::connect(address).map_err(|error| format!("no connection: {error}"))?;
    let _ = stream.set_read_timeout(Some(HANG));
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let (mut came, mut piece) = (Vec::new(), [0; 8 * 1024]);
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return Ok(came),
            Ok(count) => came.extend_from_slice(&piece[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Err(format!("silence: {}", bytes.escape_ascii()));
            }
            Err(_) => return Ok(came),
        }
    }
}

/// The ids of requests (`n` and a number from [`nonce`]) in bytes.
fn ids(bytes: &[u8]) -> HashSet<u64> {
    let prefix = nonce() >> 32;
    let runs = bytes.split(|byte| !byte.is_ascii_digit());
    let numbers = runs.filter_map(|run| str::from_utf8(run).ok()?.parse::<u64>().ok());
    numbers.filter(|number| number >> 32 == prefix && *number > u64::from(u32::MAX)).collect()
}
