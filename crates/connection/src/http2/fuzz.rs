//! Checks the properties that must hold for any bytes on a connection. Called by the fuzz target,
//! and by tests that replay its corpus and change it. The same bytes in any pieces give the same
//! events and the same output; after every event no window has more or less than it was given, and
//! neither input nor output is larger than its bound; once it is over, the connection ends.

use bytes::Bytes;

use crate::http1::fuzz::PlainBody;
use crate::http2::{CallStatus, ConnectionEvent, Http2Connection, Http2Settings, MessageDelivery, NextMessage};
use crate::limits::{CONTROL_BACKLOG_SIZE_MAX, SEND_QUANTUM, TRANSMIT_SIZE_MAX};
use base::limits::FRAME_SIZE_MAX;
use base::policy::KeepAlivePolicy;
use base::time::Instant;
use wire::http2::frame::{FrameHead, FrameKind, HEAD_SIZE};
use wire::message::Reply;

const KEEP_ALIVE: KeepAlivePolicy = KeepAlivePolicy {
    // The input ends without an answer to a PING.
    time: None,
    timeout: base::limits::KEEP_ALIVE_TIMEOUT,
    permits_without_calls: false,
    pings_without_data_max: 2,
    ping_interval_min: Some(base::limits::PING_INTERVAL_MIN),
    ping_strikes_max: 2,
    age_max: None,
    age_grace: None,
};

/// Small, so that short inputs reach the bounds.
const SETTINGS: Http2Settings = Http2Settings {
    reads_trace_context: true,
    streams_max: 4,
    client_resets_max: 6,
    control_frames_max: 40,
    head_size_max: 1_024,
    body_size_max: 300,
    message_size_max: 500,
    stream_window_size: 400,
    connection_window_size: 70_000,
    aligned_after: Some("inference-header-content-length"),
    follows_triton: false,
    aligned_field: 7,
    keep_alive: KEEP_ALIVE,
    keeps_call_fields: true,
    fields_kept_below: None,
    head_timeout: base::limits::HEAD_TIMEOUT,
    body_timeout: base::limits::BODY_TIMEOUT,
    write_timeout: base::limits::WRITE_TIMEOUT,
    idle_timeout: base::limits::IDLE_TIMEOUT,
};

/// Bytes of the answers to some calls: more than a client may give room for.
const ANSWER_SIZE: usize = 70_000;

/// Panics if the bytes of one client give different results when they are cut differently, or if an
/// invariant does not hold.
pub fn fuzz_connection(input: &[u8]) {
    let whole = transcript(input, || usize::MAX);
    let bytewise = transcript(input, || 1);
    assert!(whole == bytewise, "byte by byte as in one piece\n{whole:?}\n{bytewise:?}");
    // Pieces that differ from input to input, and that any run can repeat.
    let mut seed = input.iter().fold(1_u64, |seed, byte| mix(seed ^ u64::from(*byte)));
    let pieces = transcript(input, || {
        seed = mix(seed);
        usize::try_from(seed % 61).unwrap_or(0) + 1
    });
    assert!(whole == pieces, "in pieces as in one\n{whole:?}\n{pieces:?}");
}

/// The output: the events as text, and all bytes that were sent.
pub(super) type Transcript = (Vec<String>, Vec<u8>);

/// Writes the input in pieces of the sizes asked for, answers all that comes, and lets the time pass
/// at the end.
fn transcript(input: &[u8], mut piece_size: impl FnMut() -> usize) -> Transcript {
    let mut caller = Caller {
        connection: Http2Connection::new(SETTINGS, Instant::ZERO),
        lines: Vec::new(),
        sent: Vec::new(),
        each: Vec::new(),
        now: Instant::ZERO,
    };
    let mut rest = input;
    while !rest.is_empty() && !caller.connection.has_failed() {
        let space = caller.connection.input_space(usize::MAX);
        if space.is_empty() {
            caller.transmit();
            assert!(!caller.connection.input_space(usize::MAX).is_empty(), "it is read on when its output is");
            continue;
        }
        let (piece, later) = rest.split_at(piece_size().min(space.len()).min(rest.len()));
        if let Some(space) = space.get_mut(..piece.len()) {
            space.copy_from_slice(piece);
        }
        caller.connection.handle_input(piece.len(), caller.now);
        rest = later;
        caller.handle_events();
    }
    caller.finish();
    (caller.lines, caller.sent)
}

struct Caller {
    connection: Http2Connection<PlainBody, u8>,
    lines: Vec<String>,
    sent: Vec<u8>,
    /// The calls whose messages are taken one by one.
    each: Vec<wire::http2::StreamId>,
    now: Instant,
}

impl Caller {
    fn handle_events(&mut self) {
        loop {
            let event = self.connection.poll_event(self.now);
            self.connection.check();
            let Some(event) = event else { return };
            self.lines.push(format!("{event:?}"));
            self.handle_event(event);
            self.connection.check();
        }
    }

    fn handle_event(&mut self, event: ConnectionEvent<u8>) {
        let (connection, now) = (&mut self.connection, self.now);
        match event {
            // Some are read one by one, some are refused, all others have one message.
            ConnectionEvent::Call { stream, .. } => match connection.path(stream).len() % 4 {
                0 => connection.end_call(stream, Some(status()), now),
                1 => {
                    self.each.push(stream);
                    connection.accept_call(stream, MessageDelivery::Each);
                }
                _ => connection.accept_call(stream, MessageDelivery::One(7)),
            },
            ConnectionEvent::Fault { stream, .. } => connection.end_call(stream, Some(status()), now),
            ConnectionEvent::Message { stream, message } => {
                let mut reply = Reply::new(200, "text/plain", message.body);
                reply.body.push(Bytes::from_static(&[b'.'; 5_000]));
                connection.send_reply(stream, reply, now);
                connection.handle_gone(stream);
            }
            ConnectionEvent::Whole { stream, message, .. } => {
                // One in three stays without an answer: its work failed.
                match message.len() % 3 {
                    0 => connection.send_answer(stream, [message], now),
                    1 => connection.send_answer(stream, [Bytes::from(vec![0; ANSWER_SIZE]), message], now),
                    _ => {}
                }
                connection.handle_gone(stream);
            }
            ConnectionEvent::Next(stream) => loop {
                match connection.take_next(stream) {
                    Ok(NextMessage::Message(message)) => connection.send_message(stream, [message], now),
                    Ok(NextMessage::Nothing) => break,
                    Ok(NextMessage::End) => break connection.end_call(stream, None, now),
                    Err(_) => break connection.end_call(stream, Some(status()), now),
                }
            },
            ConnectionEvent::Reset { stream, .. } => connection.handle_gone(stream),
            ConnectionEvent::Refused(refused) => assert!(refused.refusal.status() >= 400, "{refused:?}"),
        }
    }

    fn transmit(&mut self) {
        self.connection.prepare_transmit(self.now);
        let bytes = self.connection.transmit_parts().collect::<Vec<_>>().concat();
        self.connection.handle_transmitted(bytes.len(), self.now);
        self.sent.extend_from_slice(&bytes);
        self.connection.check();
    }

    /// Ends the input: open streams end by their timers, and then the connection does.
    fn finish(&mut self) {
        self.transmit();
        for stream in std::mem::take(&mut self.each) {
            self.connection.end_call(stream, None, self.now);
        }
        self.connection.begin_drain(self.now);
        for _ in 0..8 {
            self.transmit();
            self.now = self.connection.poll_timeout().map_or(self.now, |at| at.max(self.now));
            self.connection.handle_timeout(self.now);
            self.handle_events();
        }
        self.transmit();
        assert_eq!(self.connection.stream_count(), 0, "no stream outlives its timers");
        assert!(self.connection.is_finished(), "a connection that has seen its end ends");
        let contents = i64::try_from(content_size(&self.sent)).unwrap_or(i64::MAX);
        assert_eq!(contents, self.connection.sender.window.sent(), "what was sent is what the window has lost");
    }
}

fn status() -> CallStatus {
    CallStatus { code: 13, text: "no%20more".to_owned(), fields: Default::default() }
}

/// Bytes in the DATA frames of some output, all of which must be frames.
fn content_size(mut output: &[u8]) -> usize {
    let mut size = 0;
    while !output.is_empty() {
        let head = FrameHead::decode(output).filter(|head| HEAD_SIZE + head.size <= output.len());
        let head = head.expect("all that is sent is whole frames");
        size += if head.kind == FrameKind::Data { head.size } else { 0 };
        output = output.get(HEAD_SIZE + head.size..).unwrap_or_default();
    }
    size
}

impl<B: wire::message::BodyBuffer, T> Http2Connection<B, T> {
    /// Checks the invariants that hold at all times.
    fn check(&self) {
        assert_eq!(self.receive.window.total(), self.settings.connection_window_size.max(65_535));
        for stream in self.streams.iter() {
            assert_eq!(stream.receive.total(), self.settings.stream_window_size);
            let parts: usize = stream.outgoing.parts.iter().map(Bytes::len).sum();
            assert_eq!(parts, stream.outgoing.size);
        }
        assert!(self.streams.len() <= usize::try_from(self.settings.streams_max).unwrap_or(usize::MAX));
        let largest = 2 * TRANSMIT_SIZE_MAX + SEND_QUANTUM + self.settings.head_size_max;
        assert!(self.sender.output.size() <= largest, "{} bytes are framed", self.sender.output.size());
        let largest = CONTROL_BACKLOG_SIZE_MAX + 4 * self.settings.head_size_max;
        assert!(self.sender.urgent_size() <= largest, "{} bytes are urgent", self.sender.urgent_size());
        assert!(self.reader.input.held_size() <= FRAME_SIZE_MAX as usize);
    }
}

/// SplitMix64.
pub(super) const fn mix(seed: u64) -> u64 {
    let seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let seed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let seed = (seed ^ (seed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    seed ^ (seed >> 31)
}
