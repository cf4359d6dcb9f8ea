//! RFC 9113 section 6: each kind of frame.

use super::Table;
use crate::http2::case::{FLOW_CONTROL, PROTOCOL, SIZE, Want, block, body, head, request};
use crate::http2::frame::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PADDED, PING, PRIORITY, PUSH_PROMISE,
    RST_STREAM, SETTINGS, WINDOW_UPDATE, WITH_PRIORITY, frame, goaway, ping, reset, settings, window,
};

pub fn add(table: &mut Table) {
    data(table);
    headers(table);
    short(table);
    settings_frames(table);
    pings(table);
    windows(table);
    continuations(table);
}

fn data(table: &mut Table) {
    table.add("9113 §6.1", "DATA on stream 0", vec![frame(DATA, 0, 0, b"x")], Want::Connection(&[PROTOCOL]));
    let begun = head(1, &block(&[]));
    let good = |payload: &[u8]| [&begun[..], &frame(DATA, PADDED | END_STREAM, 1, payload)].concat();
    table.add("9113 §6.1", "padding in DATA", vec![good(&[3, 0, 0, 0, 0, 0, 0, 0, 0])], Want::Answers(vec![1]));
    table.add("9113 §6.1", "padding of no bytes in DATA", vec![good(&[0, 0, 0, 0, 0, 0])], Want::Answers(vec![1]));
    let only = [&begun[..], &frame(DATA, PADDED, 1, &[255; 256]), &body(1)].concat();
    table.add("9113 §6.1", "DATA that is padding alone", vec![only], Want::Answers(vec![1]));
    for (name, payload) in [("as long as", &[5_u8, 0, 0, 0, 0][..]), ("longer than", &[9, 0, 0, 0, 0])] {
        let name = format!("padding {name} the payload of DATA");
        table.add("9113 §6.1", name, vec![good(payload)], Want::Connection(&[PROTOCOL]));
    }
    table.add(
        "9113 §6.1",
        "padded DATA without a padding's size",
        vec![good(&[])],
        Want::Connection(&[SIZE, PROTOCOL]),
    );
    let pieces = [
        &begun[..],
        &frame(DATA, 0, 1, &[]),
        &frame(DATA, 0, 1, &[0, 0]),
        &frame(DATA, 0, 1, &[0; 3]),
        &frame(DATA, 1, 1, &[]),
    ];
    table.add("9113 §6.1", "content in pieces, some of them empty", vec![pieces.concat()], Want::Answers(vec![1]));
}

fn headers(table: &mut Table) {
    let fields = block(&[]);
    table.add(
        "9113 §6.2",
        "HEADERS on stream 0",
        vec![frame(HEADERS, END_HEADERS, 0, &fields)],
        Want::Connection(&[PROTOCOL]),
    );
    let send = |flags, before: &[u8], after: &[u8]| {
        let headers = frame(HEADERS, END_HEADERS | flags, 1, &[before, &fields, after].concat());
        vec![[headers, body(1)].concat()]
    };
    table.add("9113 §6.2", "padding in HEADERS", send(PADDED, &[4], &[0; 4]), Want::Answers(vec![1]));
    let both = send(PADDED | WITH_PRIORITY, &[2, 0, 0, 0, 0, 9], &[0; 2]);
    table.add("9113 §6.2", "padding and a priority in HEADERS", both, Want::Answers(vec![1]));
    let large = frame(HEADERS, END_HEADERS | PADDED, 1, &[&[200][..], &fields].concat());
    table.add("9113 §6.2", "padding longer than the payload of HEADERS", vec![large], Want::Connection(&[PROTOCOL]));
    let empty = frame(HEADERS, END_HEADERS | PADDED, 1, &[]);
    table.add("9113 §6.2", "padded HEADERS without a padding's size", vec![empty], Want::Connection(&[SIZE, PROTOCOL]));
    let short = frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, &[0; 4]);
    table.add("9113 §6.2", "HEADERS too short for their priority", vec![short], Want::Connection(&[SIZE, PROTOCOL]));
    // A call of no message: any answer will do.
    let alone = frame(HEADERS, END_HEADERS | END_STREAM, 1, &fields);
    table.add("9113 §6.2", "a request of HEADERS alone is answered", vec![alone], Want::Answers(vec![1]));
}

/// Frames with a wrong size, and frames that a client may not send.
fn short(table: &mut Table) {
    table.add("9113 §6.3", "PRIORITY on stream 0", vec![frame(PRIORITY, 0, 0, &[0; 5])], Want::Connection(&[PROTOCOL]));
    for size in [4, 6] {
        let part = [head(1, &block(&[])), frame(PRIORITY, 0, 1, &vec![0; size])].concat();
        table.add("9113 §6.3", format!("PRIORITY of {size} bytes"), vec![part], Want::Stream(1, &[SIZE]));
    }
    table.add("9113 §6.4", "RST_STREAM on stream 0", vec![reset(0, 8)], Want::Connection(&[PROTOCOL]));
    for size in [3, 5] {
        let part = [head(1, &block(&[])), frame(RST_STREAM, 0, 1, &vec![0; size])].concat();
        table.add("9113 §6.4", format!("RST_STREAM of {size} bytes"), vec![part], Want::Connection(&[SIZE]));
    }
    let part = [head(1, &block(&[])), reset(1, 0xffff_ffff), request(3)].concat();
    table.add("9113 §7", "an unknown code in RST_STREAM has no effect of its own", vec![part], Want::Answers(vec![3]));
    let promise =
        [head(1, &block(&[])), frame(PUSH_PROMISE, END_HEADERS, 1, &[&[0, 0, 0, 2][..], &block(&[])].concat())];
    table.add("9113 §6.6", "PUSH_PROMISE of a client", vec![promise.concat()], Want::Connection(&[PROTOCOL]));
    table.add("9113 §6.8", "GOAWAY on a stream", vec![frame(GOAWAY, 0, 1, &[0; 8])], Want::Connection(&[PROTOCOL]));
    table.add("9113 §6.8", "GOAWAY of 7 bytes", vec![frame(GOAWAY, 0, 0, &[0; 7])], Want::Connection(&[SIZE]));
    let parts = vec![[head(1, &block(&[])), goaway(0, 0xffff, b"why not")].concat(), body(1)];
    table.add(
        "9113 §6.8",
        "a stream that is open when the client leaves is answered",
        parts,
        Want::Check(|seen| if seen.is_answered(1) { Ok(()) } else { Err(format!("closed {}", seen.is_closed)) }),
    );
}

fn settings_frames(table: &mut Table) {
    let connection = Want::Connection;
    table.add("9113 §6.5", "SETTINGS on a stream", vec![frame(SETTINGS, 0, 1, &[])], connection(&[PROTOCOL]));
    for size in [1, 5, 7] {
        let part = frame(SETTINGS, 0, 0, &vec![0; size]);
        table.add("9113 §6.5", format!("SETTINGS of {size} bytes"), vec![part], connection(&[SIZE]));
    }
    let part = frame(SETTINGS, ACK, 0, &[0, 3, 0, 0, 0, 1]);
    table.add("9113 §6.5", "an acknowledgement of SETTINGS with entries", vec![part], connection(&[SIZE]));
    for (name, entry, codes) in [
        ("SETTINGS_ENABLE_PUSH of 2", (2, 2), &[PROTOCOL][..]),
        ("SETTINGS_INITIAL_WINDOW_SIZE of 2^31", (4, 1 << 31), &[FLOW_CONTROL]),
        ("SETTINGS_MAX_FRAME_SIZE of 2^14 - 1", (5, 16_383), &[PROTOCOL]),
        ("SETTINGS_MAX_FRAME_SIZE of 2^24", (5, 1 << 24), &[PROTOCOL]),
    ] {
        table.add("9113 §6.5.2", name, vec![settings(&[entry])], connection(codes));
    }
    for (name, entry) in [
        ("SETTINGS_ENABLE_PUSH of 0", (2, 0)),
        ("SETTINGS_ENABLE_PUSH of 1", (2, 1)),
        ("SETTINGS_MAX_CONCURRENT_STREAMS of 0", (3, 0)),
        ("SETTINGS_INITIAL_WINDOW_SIZE of 2^31 - 1", (4, 0x7fff_ffff)),
        ("SETTINGS_MAX_FRAME_SIZE of 2^24 - 1", (5, 0xff_ffff)),
        ("SETTINGS_HEADER_TABLE_SIZE of 2^32 - 1", (1, u32::MAX)),
        ("SETTINGS_MAX_HEADER_LIST_SIZE of 2^32 - 1", (6, u32::MAX)),
    ] {
        let part = [settings(&[entry]), request(1)].concat();
        table.add("9113 §6.5.2", format!("{name} is taken"), vec![part], Want::Answers(vec![1]));
    }
    let part = [settings(&[(3, 7)]), settings(&[]), settings(&[(3, 8)])].concat();
    table.add(
        "9113 §6.5.3",
        "each SETTINGS is acknowledged once",
        vec![vec![], part],
        Want::Check(|seen| {
            let of_part = |part| {
                seen.frames
                    .iter()
                    .filter(|(at, f)| *at == part && f.kind == SETTINGS && f.flags == ACK && f.payload.is_empty())
                    .count()
            };
            if of_part(1) == 3 { Ok(()) } else { Err(format!("{}", of_part(1))) }
        }),
    );
}

fn pings(table: &mut Table) {
    table.add(
        "9113 §6.7",
        "PING comes back as it is",
        vec![ping(b"\x00\xff echo ")],
        Want::Check(|seen| if seen.has_pong(b"\x00\xff echo ") { Ok(()) } else { Err("it does not".into()) }),
    );
    table.add(
        "9113 §6.7",
        "the acknowledgement of a PING is not answered",
        vec![frame(PING, ACK, 0, b"unasked!")],
        Want::Check(|seen| if seen.has_pong(b"unasked!") || seen.is_closed { Err("it is".into()) } else { Ok(()) }),
    );
    table.add("9113 §6.7", "PING on a stream", vec![frame(PING, 0, 1, &[0; 8])], Want::Connection(&[PROTOCOL]));
    for size in [0, 7, 9] {
        let part = frame(PING, 0, 0, &vec![0; size]);
        table.add("9113 §6.7", format!("PING of {size} bytes"), vec![part], Want::Connection(&[SIZE]));
    }
}

fn windows(table: &mut Table) {
    let begun = head(1, &block(&[]));
    table.add("9113 §6.9", "WINDOW_UPDATE of 0 for the connection", vec![window(0, 0)], Want::Connection(&[PROTOCOL]));
    table.add(
        "9113 §6.9",
        "WINDOW_UPDATE of 0 for a stream",
        vec![[&begun[..], &window(1, 0)].concat()],
        Want::Stream(1, &[PROTOCOL]),
    );
    for size in [3, 5] {
        let part = frame(WINDOW_UPDATE, 0, 0, &vec![1; size]);
        table.add("9113 §6.9", format!("WINDOW_UPDATE of {size} bytes"), vec![part], Want::Connection(&[SIZE]));
    }
    table.add(
        "9113 §6.9.1",
        "the connection's window above 2^31 - 1",
        vec![window(0, 0x7fff_ffff)],
        Want::Connection(&[FLOW_CONTROL]),
    );
    let part = [&begun[..], &window(1, 0x7fff_ffff)].concat();
    table.add("9113 §6.9.1", "a stream's window above 2^31 - 1", vec![part], Want::Stream(1, &[FLOW_CONTROL]));
    let part = [&begun[..], &window(1, 0x7fff_0000), &settings(&[(4, 0x7fff_ffff)])].concat();
    table.add(
        "9113 §6.9.2",
        "an initial window that makes a stream's too large",
        vec![part],
        Want::Connection(&[FLOW_CONTROL]),
    );
    let part = [&window(0, 0x7fff_ffff - 65_535)[..], &request(1)].concat();
    table.add("9113 §6.9.1", "the connection's window of 2^31 - 1", vec![part], Want::Answers(vec![1]));
}

fn continuations(table: &mut Table) {
    let fields = block(&[]);
    for size in [1, 25, fields.len().div_ceil(3), fields.len() - 1] {
        let mut part = Vec::new();
        let pieces: Vec<&[u8]> =
            if size == 1 { vec![&[], &fields[..3], &[], &fields[3..]] } else { fields.chunks(size).collect() };
        for (index, piece) in pieces.iter().enumerate() {
            let kind = if index == 0 { HEADERS } else { CONTINUATION };
            let flags = if index + 1 == pieces.len() { END_HEADERS } else { 0 };
            part.extend(frame(kind, flags, 1, piece));
        }
        part.extend(body(1));
        let name = if size == 1 {
            "a block with empty frames".to_owned()
        } else {
            format!("a block in {} frames", pieces.len())
        };
        table.add("9113 §6.10", name, vec![part], Want::Answers(vec![1]));
    }
    let continuation = |stream| frame(CONTINUATION, END_HEADERS, stream, &[]);
    table.add(
        "9113 §6.10",
        "CONTINUATION behind a block that has ended",
        vec![[head(1, &fields), continuation(1)].concat()],
        Want::Connection(&[PROTOCOL]),
    );
    table.add(
        "9113 §6.10",
        "CONTINUATION behind DATA",
        vec![[head(1, &fields), frame(DATA, 0, 1, &[0; 5]), continuation(1)].concat()],
        Want::Connection(&[PROTOCOL]),
    );
    let part = [frame(HEADERS, 0, 1, &fields), continuation(0)].concat();
    table.add("9113 §6.10", "CONTINUATION on stream 0", vec![part], Want::Connection(&[PROTOCOL]));
}
