//! Rows 16 to 19: HTTP/2 clients that endlessly send frames which cost them little.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::http2::case::{REQUEST, block, fields};
use crate::http2::frame::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, PREFACE, PRIORITY, RST_STREAM, SETTINGS,
    frame, parse, ping, reset, settings, string, window,
};
use crate::standard::{STANDARD, around};
use crate::subject::{PLAIN, Subject};
use crate::trial::{Played, Trial, mib};

/// RFC 9113 §7.
const ENHANCE_YOUR_CALM: u32 = 11;
/// Longest time that a connection may stay open and silent when all is sent.
const PATIENCE: Duration = Duration::from_secs(2);

/// Outcome of a flood.
#[derive(Clone, Copy, Debug, Default)]
struct Flooded {
    /// The number of units that the connection took.
    sent: usize,
    /// The last stream and the code of GOAWAY.
    goaway: Option<(u32, u32)>,
    is_closed: bool,
    /// Answers to PING or SETTINGS.
    acks: usize,
    resets: usize,
}

impl Flooded {
    const fn is_calmed(&self) -> bool {
        matches!(self.goaway, Some((_, ENHANCE_YOUR_CALM)))
    }
}

/// Sends units one after the other on a connection of its own until the server closes it or all are sent, and reads the
/// answers meanwhile.
fn flood(address: SocketAddr, count: usize, unit: impl Fn(u32) -> Vec<u8>) -> Flooded {
    let Ok(mut stream) = TcpStream::connect(address) else { return Flooded::default() };
    let _ = stream.set_nodelay(true);
    let _ = stream.set_write_timeout(Some(PATIENCE));
    let reader = stream.try_clone().expect("a socket can be duplicated");
    let reading = thread::spawn(move || read_all(reader));
    let mut sent = 0;
    let _ = stream.write_all(&[PREFACE, &settings(&[]), &frame(SETTINGS, ACK, 0, &[])].concat());
    let mut batch = Vec::new();
    for index in 0..count {
        batch.extend(unit(u32::try_from(index).expect("counts are small")));
        if batch.len() >= 16 << 10 || index + 1 == count {
            if stream.write_all(&batch).is_err() {
                break;
            }
            sent = index + 1;
            batch.clear();
        }
    }
    let mut seen = reading.join().expect("the reader does not panic");
    let _ = stream.shutdown(Shutdown::Both);
    seen.sent = sent;
    seen
}

/// Reads frames until the end, or until nothing has come for [`PATIENCE`].
fn read_all(mut stream: TcpStream) -> Flooded {
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let (mut seen, mut rest, mut piece) = (Flooded::default(), Vec::new(), vec![0; 64 * 1024]);
    loop {
        match stream.read(&mut piece) {
            Ok(0) => break seen.is_closed = true,
            Ok(count) => rest.extend_from_slice(&piece[..count]),
            Err(error) => {
                seen.is_closed = !matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut);
                break;
            }
        }
        let mut used = 0;
        while let Some((frame, size)) = parse(&rest[used..]) {
            used += size;
            match frame.kind {
                GOAWAY if frame.payload.len() >= 8 => {
                    let number = |at: usize| u32::from_be_bytes(frame.payload[at..at + 4].try_into().unwrap());
                    seen.goaway = Some((number(0), number(4)));
                }
                PING | SETTINGS if frame.flags & ACK != 0 => seen.acks += 1,
                RST_STREAM => seen.resets += 1,
                _ => {}
            }
        }
        rest.drain(..used);
    }
    seen
}

/// The stream that the unit of this number begins.
const fn stream(index: u32) -> u32 {
    index * 2 + 1
}

/// Row 16.
pub fn rapid_reset(trial: &Trial<'_>) -> Played {
    let subject = Subject::start(trial, PLAIN)?;
    let block = block(&[]);
    let unit = move |index: u32| [frame(HEADERS, END_HEADERS, stream(index), &block), reset(stream(index), 8)].concat();
    around(trial, &subject, STANDARD, || {
        let (count, connections, each) = (trial.size(5_000, 50_000), trial.size(5, 50), trial.size(1_500, 2_000));
        let used = subject.cpu();
        let one = flood(subject.grpc, count, &unit);
        let many: Vec<Flooded> = thread::scope(|scope| {
            let threads: Vec<_> = (0..connections).map(|_| scope.spawn(|| flood(subject.grpc, each, &unit))).collect();
            threads.into_iter().map(|thread| thread.join().expect("a flood does not panic")).collect()
        });
        let used = subject.cpu() - used;
        let taken = one.goaway.map_or(count, |(last, _)| last as usize / 2 + 1);
        let calmed = many.iter().filter(|one| one.is_calmed()).count();
        trial.figure(format!(
            "{taken} of {count} streams taken, {} CPU; of {connections} connections with {each} each {calmed} ended by GOAWAY(11)",
            crate::trial::ms(used)
        ));
        trial.check(one.is_calmed() && one.is_closed, || format!("no GOAWAY(11): {one:?}"));
        // With the streams that were on their way when the bound was reached.
        trial.check(taken <= 1_000 + 128, || format!("{taken} streams were taken, 1000 at most"));
        trial.check(calmed == connections, || format!("{calmed} of {connections} connections ended by GOAWAY(11)"));
        trial.within("CPU", used, Duration::from_millis(500), Duration::from_secs(5));
    });
    Ok(())
}

/// A small one, beside other loads.
pub fn reset_some(subject: &Subject) {
    let block = block(&[]);
    let unit = |index: u32| [frame(HEADERS, END_HEADERS, stream(index), &block), reset(stream(index), 8)].concat();
    flood(subject.grpc, 2_000, unit);
}

/// Row 17.
pub fn made_you_reset(trial: &Trial<'_>) -> Played {
    let subject = Subject::start(trial, PLAIN)?;
    let block = block(&[]);
    let half_closed = |index: u32| frame(HEADERS, END_HEADERS | END_STREAM, stream(index), &block);
    type Unit<'a> = Box<dyn Fn(u32) -> Vec<u8> + Sync + 'a>;
    let begin = |index: u32| frame(HEADERS, END_HEADERS, stream(index), &block);
    let kinds: [(&str, Unit<'_>); 3] = [
        ("window of 0", Box::new(|index| [begin(index), window(stream(index), 0)].concat())),
        ("window too large", Box::new(|index| [begin(index), window(stream(index), 0x7fff_ffff)].concat())),
        ("HEADERS on a half-closed stream", Box::new(|index| [half_closed(index), half_closed(index)].concat())),
    ];
    around(trial, &subject, STANDARD, || {
        let count = trial.size(3_000, 20_000);
        for (name, unit) in &kinds {
            let seen = flood(subject.grpc, count, unit);
            let taken = seen.goaway.map_or(count, |(last, _)| last as usize / 2 + 1);
            trial.figure(format!("{name}: {taken} taken"));
            trial.check(seen.is_closed && seen.goaway.is_some(), || format!("{name}: it goes on: {seen:?}"));
            trial.check(taken <= 200 + 128, || format!("{name}: {taken} were taken, 200 at most"));
        }
    });
    Ok(())
}

/// Row 18.
pub fn header_bombs(trial: &Trial<'_>) -> Played {
    let subject = Subject::start(trial, PLAIN)?;
    let part = [&[0][..], &string(b"x"), &string(&[b'a'; 4_000])].concat();
    around(trial, &subject, STANDARD, || {
        // All memory that a connection needs is allocated before the peak is read.
        flood(subject.grpc, 1, |index| frame(HEADERS, END_HEADERS | END_STREAM, stream(index), &block(&[])));
        let resident = subject.resident();
        subject.reset_peak();
        let continued = flood(subject.grpc, trial.size(2_000, 20_000), |index| match index {
            0 => frame(HEADERS, 0, 1, &fields(&REQUEST)),
            _ => frame(CONTINUATION, 0, 1, &part),
        });
        let continued_peak = subject.peak() - resident;
        // One field of 4 KB that goes into the table, and then its index as often as there is room: 16 MB from 8 KB.
        let large = [&[0x40][..], &string(b"x"), &string(&[b'a'; 3_900])].concat();
        let bomb = [fields(&REQUEST), large, vec![0xbe; 4_200]].concat();
        let (resident, times) = (subject.resident(), trial.size(5, 50));
        subject.reset_peak();
        let bombs = flood(subject.grpc, times, |index| frame(HEADERS, END_HEADERS | END_STREAM, stream(index), &bomb));
        let bombs_peak = subject.peak() - resident;
        trial.figure(format!("CONTINUATION {}, HPACK {}", mib(continued_peak), mib(bombs_peak)));
        trial.check(continued.is_closed, || format!("CONTINUATION goes on: {continued:?}"));
        let is_refused = bombs.is_closed || bombs.resets > 0 || bombs.sent == times;
        trial.check(is_refused, || format!("HPACK: {bombs:?}"));
        for (name, peak) in [("CONTINUATION", continued_peak), ("HPACK", bombs_peak)] {
            // The good client's own requests are in the peak too.
            trial.check_bytes(&format!("{name}: peak"), peak, 16 << 20, 1 << 20);
        }
    });
    Ok(())
}

/// Row 19.
pub fn control_floods(trial: &Trial<'_>) -> Played {
    let subject = Subject::start(trial, PLAIN)?;
    let block = block(&[]);
    let on_stream = |index: u32, payload: &[u8]| match index {
        0 => frame(HEADERS, END_HEADERS, 1, &block),
        _ => frame(DATA, 0, 1, payload),
    };
    type Unit<'a> = Box<dyn Fn(u32) -> Vec<u8> + Sync + 'a>;
    let kinds: [(&str, Unit<'_>); 5] = [
        ("PING", Box::new(|_| ping(b"12345678"))),
        ("SETTINGS", Box::new(|_| settings(&[]))),
        ("empty DATA", Box::new(|index| on_stream(index, &[]))),
        ("tiny DATA", Box::new(|index| on_stream(index, if index == 1 { &[0] } else { &[1] }))),
        ("PRIORITY", Box::new(|index| frame(PRIORITY, 0, stream(index % 100), &[0, 0, 0, 0, 16]))),
    ];
    around(trial, &subject, STANDARD, || {
        let (count, resident) = (trial.size(20_000, 100_000), subject.resident());
        subject.reset_peak();
        let start = Instant::now();
        for (name, unit) in &kinds {
            let seen = flood(subject.grpc, count, unit);
            trial.figure(format!("{name} {}", if seen.is_calmed() { "GOAWAY(11)" } else { "taken" }));
            trial.check(seen.is_calmed() && seen.is_closed, || format!("{name}: no GOAWAY(11): {seen:?}"));
            trial.check(seen.acks <= 10_001, || format!("{name}: {} answers", seen.acks));
        }
        let peak = subject.peak() - resident;
        trial.figure(format!("peak {} in {:.1} s", mib(peak), start.elapsed().as_secs_f64()));
        trial.check_bytes("peak", peak, 16 << 20, 2 << 20);
    });
    Ok(())
}
