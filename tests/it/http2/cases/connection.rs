//! RFC 9113 sections 3 and 4: the preface, frames in general, field blocks.

use super::Table;
use crate::http2::case::{COMPRESSION, PROTOCOL, SIZE, Want, block, body, head, request};
use crate::http2::frame::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PING, PREFACE, PRIORITY, SETTINGS, frame, lying, ping,
    reset, settings, window,
};

pub fn add(table: &mut Table) {
    preface(table);
    frames(table);
    field_blocks(table);
}

fn preface(table: &mut Table) {
    let _ = PREFACE;
    table.add(
        "9113 §3.4",
        "the server's first frame is SETTINGS",
        vec![vec![]],
        Want::Check(|seen| {
            let first = seen.frames.first().map(|(_, frame)| (frame.kind, frame.flags & ACK, frame.stream));
            if first == Some((SETTINGS, 0, 0)) { Ok(()) } else { Err(format!("{first:?}")) }
        }),
    );
    table.add(
        "9113 §3.4",
        "the client's SETTINGS are acknowledged",
        vec![vec![]],
        Want::Check(|seen| {
            let count =
                seen.frames.iter().filter(|(_, frame)| frame.kind == SETTINGS && frame.flags & ACK != 0).count();
            if count == 1 { Ok(()) } else { Err(format!("{count} acknowledgements")) }
        }),
    );
    for (name, opening) in [
        ("PING before SETTINGS", ping(b"too soon")),
        ("a request before SETTINGS", request(1)),
        ("an acknowledgement before SETTINGS", frame(SETTINGS, ACK, 0, &[])),
        ("an unknown frame before SETTINGS", frame(0x77, 0, 0, b"x")),
    ] {
        table.open("9113 §3.4", name, opening, vec![vec![]], Want::Connection(&[PROTOCOL]));
    }
    let eager = [settings(&[]), request(1)].concat();
    table.open("9113 §3.4", "a request follows the preface at once", eager, vec![vec![]], Want::Answers(vec![1]));
    table.open(
        "9113 §3.4",
        "SETTINGS of the client with entries",
        settings(&[(3, 100), (4, 70_000)]),
        vec![request(1)],
        Want::Answers(vec![1]),
    );
}

fn frames(table: &mut Table) {
    for stream in [0, 1, 2] {
        let name = format!("a frame of an unknown kind on stream {stream} is ignored");
        let part = [frame(0x77, 0xff, stream, b"anything"), request(1)].concat();
        table.add("9113 §4.1", name, vec![part], Want::Answers(vec![1]));
    }
    let part = [head(1, &block(&[])), frame(0xfe, 0, 1, &[7; 100]), body(1)].concat();
    table.add(
        "9113 §4.1",
        "a frame of an unknown kind within a message is ignored",
        vec![part],
        Want::Answers(vec![1]),
    );
    let unknown = !(ACK | END_HEADERS | 0x28);
    for (name, part) in [
        ("PING", frame(PING, unknown & !ACK, 0, b"12345678")),
        ("SETTINGS", frame(SETTINGS, unknown & !ACK, 0, &[])),
        ("HEADERS", [frame(HEADERS, 0x40 | 0x80 | 0x10 | 2 | END_HEADERS, 1, &block(&[])), body(1)].concat()),
        ("DATA", [head(1, &block(&[])), frame(DATA, 0xf6 & !0x08 | END_STREAM, 1, &[0; 5])].concat()),
        ("WINDOW_UPDATE", frame(8, 0xff, 0, &1_u32.to_be_bytes())),
    ] {
        let name = format!("flags of {name} that have no meaning are ignored");
        let streams = if part.len() > 60 { vec![1, 3] } else { vec![3] };
        table.add("9113 §4.1", name, vec![[part, request(3)].concat()], Want::Answers(streams));
    }
    let reserved = 0x8000_0001;
    let part =
        [frame(HEADERS, END_HEADERS, reserved, &block(&[])), frame(DATA, END_STREAM, reserved, &[0; 5])].concat();
    table.add("9113 §4.1", "the reserved bit of a stream's number is ignored", vec![part], Want::Answers(vec![1]));
    let part = [window(1 << 31, 0x8000_0001), request(1)].concat();
    table.add("9113 §6.9", "the reserved bit of WINDOW_UPDATE is ignored", vec![part], Want::Answers(vec![1]));

    let largest =
        [head(1, &block(&[])), frame(DATA, 0, 1, &[0; 5]), frame(0x77, 0, 1, &[1; 16_384]), frame(DATA, 1, 1, &[])];
    table.add("9113 §4.2", "a frame of 2^14 bytes is taken", vec![largest.concat()], Want::Answers(vec![1]));
    for (name, kind, stream) in
        [("DATA", DATA, 1), ("HEADERS", HEADERS, 3), ("SETTINGS", SETTINGS, 0), ("CONTINUATION", CONTINUATION, 5)]
    {
        let name = format!("{name} larger than any setting allows");
        let size = 0xff_ffff - if kind == SETTINGS { 3 } else { 0 };
        let before = match kind {
            DATA => head(1, &block(&[])),
            CONTINUATION => frame(HEADERS, 0, 5, &block(&[])),
            _ => Vec::new(),
        };
        let part = [before, lying(size, kind, 0, stream, b"")].concat();
        table.add("9113 §4.2", name, vec![part], Want::Connection(&[SIZE]));
    }
}

fn field_blocks(table: &mut Table) {
    let whole = block(&[]);
    for (name, code) in [("a block that is no HPACK", &[0x80][..]), ("a block that is cut", &[0x40, 0x05, b'a'])] {
        table.add("9113 §4.3", name, vec![head(1, code)], Want::Connection(&[COMPRESSION]));
    }
    let (start, rest) = whole.split_at(20);
    for (name, between) in [
        ("PING", ping(b"12345678")),
        ("SETTINGS", settings(&[])),
        ("DATA", body(1)),
        ("HEADERS of another stream", request(3)),
        ("PRIORITY", frame(PRIORITY, 0, 1, &[0; 5])),
        ("RST_STREAM", reset(1, 0)),
        ("WINDOW_UPDATE", window(0, 1)),
        ("a frame of an unknown kind", frame(0x77, 0, 1, b"x")),
    ] {
        let part = [frame(HEADERS, 0, 1, start), between, frame(CONTINUATION, END_HEADERS, 1, rest)].concat();
        let name = format!("{name} between the frames of a block");
        table.add("9113 §4.3", name, vec![part], Want::Connection(&[PROTOCOL]));
    }
    let part = [frame(HEADERS, 0, 1, start), frame(CONTINUATION, END_HEADERS, 3, rest)].concat();
    table.add("9113 §6.10", "CONTINUATION of another stream", vec![part], Want::Connection(&[PROTOCOL]));
    // The block of a stream that is reset still changes the table.
    let indexed = [&[0x40][..], &crate::http2::frame::string(b"x-kept"), &crate::http2::frame::string(b"1")].concat();
    let broken = [block(&[("connection", "close")]), indexed].concat();
    let part = [head(1, &broken), head(3, &[block(&[]), vec![0xbe]].concat()), body(3)].concat();
    table.add(
        "9113 §4.3",
        "the block of a malformed request still changes the table",
        vec![part],
        Want::Answers(vec![3]),
    );
}
