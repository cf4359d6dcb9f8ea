//! RFC 9113 section 5: the states of streams, their numbers, flow control, faults.

use super::Table;
use crate::http2::case::{CLOSED, PROTOCOL, REFUSED, Seen, Want, block, body, head, request, with};
use crate::http2::frame::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PRIORITY, WITH_PRIORITY, frame, goaway, reset, settings,
    window,
};

pub fn add(table: &mut Table) {
    states(table);
    numbers(table);
    flow(table);
    for (name, priority) in [
        ("a priority in HEADERS", [0, 0, 0, 0, 200]),
        ("an exclusive priority in HEADERS", [0x80, 0, 0, 0, 1]),
        ("a priority that depends on a stream to come", [0, 0, 0, 99, 1]),
    ] {
        let headers = frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, &[&priority[..], &block(&[])].concat());
        table.add("9113 §5.3", name, vec![[headers, body(1)].concat()], Want::Answers(vec![1]));
    }
    for (name, priority) in [("", [0, 0, 0, 1, 5]), (", exclusively", [0x80, 0, 0, 1, 5])] {
        let headers = frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, &[&priority[..], &block(&[])].concat());
        let name = format!("a stream that depends on itself{name}");
        table.add("7540 §5.3.1", name, vec![headers], Want::Stream(1, &[PROTOCOL]));
    }
    let idle = frame(PRIORITY, 0, 1, &[0, 0, 0, 1, 5]);
    table.add(
        "7540 §5.3.1",
        "PRIORITY that makes an idle stream depend on itself",
        vec![idle],
        Want::Stream(1, &[PROTOCOL]),
    );
    let open = vec![head(1, &block(&[])), frame(PRIORITY, 0, 1, &[0, 0, 0, 1, 5])];
    table.add("7540 §5.3.1", "PRIORITY that makes an open stream depend on itself", open, Want::Stream(1, &[PROTOCOL]));
    let malformed = head(1, &with(":path", ""));
    table.add(
        "9113 §5.4.2",
        "a fault of one stream leaves the others",
        vec![[malformed, request(3)].concat()],
        Want::Answers(vec![3]),
    );
    let part = [settings(&[(0x7777, 7), (0xffff, 0xffff_ffff)]), request(1)].concat();
    table.add("9113 §5.5", "unknown settings are ignored", vec![part], Want::Answers(vec![1]));
}

fn states(table: &mut Table) {
    for (name, part) in [
        ("DATA", body(1)),
        ("RST_STREAM", reset(1, 8)),
        ("WINDOW_UPDATE", window(1, 1)),
        ("CONTINUATION", frame(CONTINUATION, END_HEADERS, 1, &block(&[]))),
    ] {
        table.add("9113 §5.1", format!("{name} on an idle stream"), vec![part], Want::Connection(&[PROTOCOL]));
    }
    let part = [frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 5]), request(1)].concat();
    table.add("9113 §5.1", "PRIORITY on an idle stream", vec![part], Want::Answers(vec![1]));
    // Without room for the answer's content the stream stays half-closed.
    let shut = || settings(&[(4, 0)]);
    for (name, part) in [("DATA", body(1)), ("HEADERS", head(1, &block(&[])))] {
        let name = format!("{name} on a half-closed stream");
        table.open("9113 §5.1", name, shut(), vec![request(1), part], Want::Stream(1, &[CLOSED]));
    }
    for (name, part) in [("WINDOW_UPDATE", window(1, 1)), ("PRIORITY", frame(PRIORITY, 0, 1, &[0, 0, 0, 3, 5]))] {
        let name = format!("{name} on a half-closed stream is taken");
        let rest = [part, window(1, 9_000)].concat();
        table.open("9113 §5.1", name, shut(), vec![request(1), rest], Want::Answers(vec![1]));
    }
    let parts = vec![request(1), [reset(1, 8), request(3), window(3, 9_000)].concat()];
    table.open(
        "9113 §5.1",
        "RST_STREAM on a half-closed stream ends it",
        shut(),
        parts,
        Want::Check(|seen| match (seen.is_answered(1), seen.is_answered(3), seen.is_closed) {
            (false, true, false) => Ok(()),
            other => Err(format!("{other:?}")),
        }),
    );
    for (name, part) in [
        ("DATA", body(1)),
        ("HEADERS", head(1, &block(&[]))),
        ("CONTINUATION", frame(CONTINUATION, END_HEADERS, 1, &block(&[]))),
    ] {
        let codes: &[u32] = if name == "CONTINUATION" { &[PROTOCOL, CLOSED] } else { &[CLOSED] };
        let parts = vec![[head(1, &block(&[])), reset(1, 8)].concat(), part.clone()];
        table.add("9113 §5.1", format!("{name} on a stream that the client reset"), parts, Want::Stream(1, codes));
        let parts = vec![request(1), part];
        let want =
            if name == "CONTINUATION" { Want::Connection(&[PROTOCOL, CLOSED]) } else { Want::Stream(1, &[CLOSED]) };
        table.add("9113 §5.1", format!("{name} on a stream that has ended"), parts, want);
    }
    for (name, part) in [
        ("PRIORITY", frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 5])),
        ("WINDOW_UPDATE", window(1, 9)),
        ("RST_STREAM", reset(1, 8)),
    ] {
        let name = format!("{name} on a stream that has just ended");
        let parts = vec![request(1), [part, request(3)].concat()];
        table.add("9113 §5.1", name, parts, Want::Answers(vec![1, 3]));
    }
    let fault = head(1, &with(":path", ""));
    let parts = vec![[fault, frame(DATA, END_STREAM, 1, b"was on its way"), request(3)].concat()];
    table.add(
        "9113 §5.1",
        "what was on its way to a stream that the server reset is ignored",
        parts,
        Want::Answers(vec![3]),
    );
}

fn numbers(table: &mut Table) {
    for (name, stream) in [("an even number", 2), ("number 0", 0)] {
        let name = format!("a stream of {name}");
        table.add("9113 §5.1.1", name, vec![head(stream, &block(&[]))], Want::Connection(&[PROTOCOL]));
    }
    let parts = vec![request(5), request(3)];
    table.add("9113 §5.1.1", "a stream whose number is below an earlier one", parts, Want::Connection(&[PROTOCOL]));
    let part = [request(1), request(7), request(0x7fff_ffff)].concat();
    table.add("9113 §5.1.1", "numbers may be left out", vec![part], Want::Answers(vec![1, 7, 0x7fff_ffff]));
    let many: Vec<u8> = (0..400).flat_map(|index| head(1 + 2 * index, &block(&[]))).collect();
    table.add(
        "9113 §5.1.2",
        "more streams than SETTINGS_MAX_CONCURRENT_STREAMS",
        vec![vec![], many],
        Want::Check(|seen| {
            let settings = seen.settings().map(|frame| frame.payload.clone()).unwrap_or_default();
            let limit = settings
                .chunks(6)
                .find(|entry| entry[1] == 3)
                .map_or(u32::MAX, |entry| u32::from_be_bytes(entry[2..].try_into().unwrap()));
            let refused = |stream: u32| seen.reset(stream).is_some_and(|code| code == PROTOCOL || code == REFUSED);
            let ended = matches!(seen.goaway(), Some(PROTOCOL | REFUSED));
            match limit {
                400.. => Ok(()),
                _ if ended || refused(1 + 2 * limit) && !refused(1) => Ok(()),
                _ => Err(format!("the limit is {limit}, closed {}", seen.is_closed)),
            }
        }),
    );
}

fn contents(seen: &Seen, want: &[usize]) -> Result<(), String> {
    let got: Vec<usize> = (0..want.len()).map(|part| seen.content(1, part)).collect();
    // The last part has the length of the answer.
    let (last, first) = (got.last().unwrap(), &got[..got.len() - 1]);
    let is_right = first == &want[..want.len() - 1] && *last >= *want.last().unwrap();
    if is_right && !seen.is_closed { Ok(()) } else { Err(format!("{got:?}, closed {}", seen.is_closed)) }
}

fn flow(table: &mut Table) {
    let opening = |size| settings(&[(4, size)]);
    let parts = vec![request(1), window(1, 2), window(1, 1_000)];
    table.open(
        "9113 §5.2",
        "no more content than the stream's window",
        opening(3),
        parts,
        Want::Check(|seen| contents(seen, &[3, 2, 1])),
    );
    table.open(
        "9113 §6.9",
        "heads are not held up by a window of 0",
        opening(0),
        vec![request(1), window(1, 9_000)],
        Want::Check(|seen| {
            let has_head = seen.of(1).any(|(part, frame)| *part == 0 && frame.kind == HEADERS);
            if has_head { contents(seen, &[0, 1]) } else { Err("no head".into()) }
        }),
    );
    let parts = vec![request(1), settings(&[(4, 4)]), settings(&[(4, 9_000)])];
    table.open(
        "9113 §6.9.2",
        "a larger initial window opens the streams that are open",
        opening(3),
        parts,
        Want::Check(|seen| contents(seen, &[3, 1, 1])),
    );
    let parts = vec![request(1), settings(&[(4, 0)]), window(1, 3), window(1, 1), window(1, 9_000)];
    table.open(
        "9113 §6.9.2",
        "a smaller initial window takes a stream's below 0",
        opening(3),
        parts,
        Want::Check(|seen| contents(seen, &[3, 0, 0, 1, 1])),
    );
    let parts = vec![request(1), settings(&[(4, 9), (4, 2)]), window(1, 9_000)];
    table.open(
        "9113 §6.5.3",
        "settings are taken in their order",
        opening(2),
        parts,
        Want::Check(|seen| contents(seen, &[2, 0, 1])),
    );
    let parts = vec![goaway(0, 0, b"leaving"), vec![]];
    table.add(
        "9113 §6.8",
        "a connection that the client leaves ends",
        parts,
        Want::Check(|seen| if seen.is_closed || seen.goaway().is_some() { Ok(()) } else { Err("it goes on".into()) }),
    );
}
