//! Carriers of messages: HTTP/1.1 heads, HPACK, frames of HTTP/2, and one connection with calls on it.

use std::hint::black_box;

use base::limits::CLOSED_STREAMS_MAX;
use base::tensor::AlignedBuffer;
use base::time::Instant;
use connection::http2::{ConnectionEvent, Http2Connection, Http2Settings, MessageDelivery, NextMessage};
use wire::grpc::{Gatherer, PREFIX_SIZE, prefix};
use wire::hpack::decoder::Decoder;
use wire::hpack::encoder::{Encoder, Indexing};
use wire::http1::head;
use wire::http2::frame::{self, FrameHead, FrameKind};
use wire::http2::{StreamId, settings};

use super::{Work, messages};

const HEAD: &[u8] =
    b"POST /v2/models/identity/infer HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nUser-Agent: python-requests/2.32\r\n\
    Accept-Encoding: identity\r\nAccept: */*\r\nConnection: keep-alive\r\nContent-Type: application/octet-stream\r\n\
    Inference-Header-Content-Length: 208\r\nContent-Length: 272\r\n\r\n";

/// The fields of a call, as `grpcio` sends them.
const FIELDS: &[(&str, &str)] = &[
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/inference.GRPCInferenceService/ModelInfer"),
    (":authority", "127.0.0.1:8001"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
    ("user-agent", "grpc-python/1.66.1 grpc-c/43.0.0 (linux; chttp2)"),
    ("grpc-accept-encoding", "identity, deflate, gzip"),
];

pub fn http1_head() -> (Work, usize) {
    let line_count = HEAD.split(|byte| *byte == b'\n').count();
    let work = move || {
        let head = head::decode(black_box(HEAD), line_count, Some("inference-header-content-length"));
        assert_eq!(black_box(head).expect("it is a head").aligned_at, 208);
    };
    (Box::new(work), HEAD.len())
}

/// A block of a call; if its fields are put into the table, the block of a second call.
fn block(encoder: &mut Encoder, indexing: Indexing) -> Vec<u8> {
    let mut block = Vec::new();
    encoder.begin_block(&mut block);
    FIELDS.iter().for_each(|(name, value)| encoder.encode(name.as_bytes(), value.as_bytes(), indexing, &mut block));
    block
}

fn hpack_decode(mut decoder: Decoder, block: Vec<u8>) -> (Work, usize) {
    let size = block.len();
    let work = move || {
        let mut count = 0;
        decoder.decode(black_box(&block), |field| count += usize::from(field.is_valid)).expect("it is a block");
        assert_eq!(count, FIELDS.len());
    };
    (Box::new(work), size)
}

pub fn hpack_indexed() -> (Work, usize) {
    let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
    decoder.decode(&block(&mut encoder, Indexing::Insert), |_| ()).expect("it is a block");
    hpack_decode(decoder, block(&mut encoder, Indexing::Insert))
}

pub fn hpack_literal() -> (Work, usize) {
    hpack_decode(Decoder::default(), block(&mut Encoder::default(), Indexing::Without))
}

pub fn hpack_encode() -> (Work, usize) {
    let mut encoder = Encoder::default();
    let size = block(&mut encoder, Indexing::Insert).len();
    let mut out = Vec::new();
    let work = move || {
        out.clear();
        encoder.begin_block(&mut out);
        for (name, value) in FIELDS {
            encoder.encode(name.as_bytes(), value.as_bytes(), Indexing::Insert, &mut out);
        }
        assert!(black_box(&out).len() <= size);
    };
    (Box::new(work), 0)
}

pub fn http2_frame() -> (Work, usize) {
    let mut bytes = Vec::new();
    let work = move || {
        bytes.clear();
        frame::encode_head(black_box(1_024), FrameKind::Data, frame::END_STREAM, StreamId(7), &mut bytes);
        let head = FrameHead::decode(black_box(&bytes)).expect("it is whole");
        assert!(head.check(16_384).is_ok() && head.size == 1_024);
    };
    (Box::new(work), 0)
}

pub fn grpc_frame() -> (Work, usize) {
    let message = framed(256);
    let size = message.len();
    let work = move || {
        let mut gatherer = Gatherer::<AlignedBuffer>::new(size, 7);
        let gathered = gatherer.handle_chunk(&mut &black_box(&message)[..]).expect("it is not too large");
        assert_eq!(black_box(gathered).map(|gathered| gathered.len() + 5), Some(size));
    };
    (Box::new(work), size)
}

/// A request with `count` FP32 elements behind the five-byte prefix.
fn framed(count: usize) -> Vec<u8> {
    let message = messages::message(count);
    [&prefix(message.len()).expect("it is not too large")[..], &message].concat()
}

pub fn http2_call_small() -> (Work, usize) {
    http2_call(256)
}

pub fn http2_call_large() -> (Work, usize) {
    http2_call(1 << 18)
}

type Machine = Http2Connection<AlignedBuffer, ()>;

/// Calls on a connection before a new one is made, since its windows are used up eventually.
const CALLS_MAX: u32 = 1_000;

/// A call comes in and is answered with its own message.
fn http2_call(count: usize) -> (Work, usize) {
    let message = framed(count);
    let size = message.len();
    let mut peer = Peer::new();
    let work = move || {
        if peer.calls == CALLS_MAX {
            peer = Peer::new();
        }
        peer.call(&message);
    };
    (Box::new(work), size)
}

/// Empty messages of one stream, which come faster than they are taken.
const EMPTY_MESSAGES: usize = 8_192;

/// A stream of empty messages, which are taken when all of them are here.
pub fn http2_empty_messages() -> (Work, usize) {
    let content = vec![0; EMPTY_MESSAGES * PREFIX_SIZE];
    let mut peer = Peer::new();
    let work = move || {
        let stream = peer.begin(&content);
        assert_eq!(feed(&mut peer.machine, &peer.bytes, MessageDelivery::Each), None);
        let taken = (0..).take_while(|_| matches!(peer.machine.take_next(stream), Ok(NextMessage::Message(_)))).count();
        assert_eq!(black_box(taken), EMPTY_MESSAGES);
        peer.machine.end_call(stream, None, Instant::ZERO);
        drain(&mut peer.machine);
    };
    (Box::new(work), EMPTY_MESSAGES * PREFIX_SIZE)
}

/// DATA frames of one stream on a connection that has had many.
const FRAMES: usize = 256;

/// A message in many small frames, on a connection with as many streams as it may remember.
pub fn http2_small_frames() -> (Work, usize) {
    let content = framed(FRAMES * 256 / size_of::<f32>());
    let mut peer = Peer::new();
    let mut count = 0;
    let work = move || {
        if count == 0 {
            (0..CLOSED_STREAMS_MAX).for_each(|_| peer.call(&framed(1)));
        }
        count += 1;
        let stream = peer.begin_in_frames(&content, 256);
        let answer = feed(&mut peer.machine, &peer.bytes, MessageDelivery::One(())).expect("the call is whole");
        peer.machine.send_answer(stream, [answer], Instant::ZERO);
        assert!(drain(&mut peer.machine) > 0);
    };
    (Box::new(work), FRAMES * 256)
}

/// The client's side of a connection, and the connection.
struct Peer {
    machine: Machine,
    encoder: Encoder,
    bytes: Vec<u8>,
    calls: u32,
}

impl Peer {
    fn new() -> Self {
        let settings = Http2Settings { aligned_field: 7, ..Http2Settings::default() };
        let mut machine = Machine::new(settings, Instant::ZERO);
        let mut bytes = Vec::new();
        // Windows that need no update.
        settings::encode(&[(4, (1 << 31) - 1)], &mut bytes);
        frame::encode_window_update(StreamId::CONNECTION, (1 << 31) - 1 - 65_535, &mut bytes);
        feed(&mut machine, &bytes, MessageDelivery::One(()));
        machine.prepare_transmit(Instant::ZERO);
        drain(&mut machine);
        Self { machine, encoder: Encoder::default(), bytes, calls: 0 }
    }

    fn call(&mut self, message: &[u8]) {
        let stream = self.begin(message);
        let Some(answer) = feed(&mut self.machine, &self.bytes, MessageDelivery::One(())) else {
            unreachable!("the call is whole")
        };
        self.machine.send_answer(stream, [answer], Instant::ZERO);
        let sent = drain(&mut self.machine);
        assert!(black_box(sent) > message.len() - 5);
    }

    /// Makes the frames of a call.
    fn begin(&mut self, content: &[u8]) -> StreamId {
        self.begin_in_frames(content, 16_384)
    }

    fn begin_in_frames(&mut self, content: &[u8], frame_size: usize) -> StreamId {
        let Self { encoder, bytes, calls, .. } = self;
        let stream = StreamId(2 * *calls + 1);
        *calls += 1;
        bytes.clear();
        let block = block(encoder, Indexing::Insert);
        frame::encode(FrameKind::Headers, frame::END_HEADERS, stream, &block, bytes);
        let mut frames = content.chunks(frame_size).peekable();
        while let Some(part) = frames.next() {
            let flags = if frames.peek().is_none() { frame::END_STREAM } else { 0 };
            frame::encode(FrameKind::Data, flags, stream, part, bytes);
        }
        stream
    }
}

/// Hands bytes to the connection, and accepts a call that begins. Returns its message when it is whole.
fn feed(machine: &mut Machine, mut bytes: &[u8], plan: MessageDelivery<()>) -> Option<bytes::Bytes> {
    let mut whole = None;
    while !bytes.is_empty() {
        let space = machine.input_space(usize::MAX);
        let size = space.len().min(bytes.len());
        let (now, rest) = bytes.split_at(size);
        space.get_mut(..size).expect("it is so long").copy_from_slice(now);
        machine.handle_input(size, Instant::ZERO);
        bytes = rest;
        while let Some(event) = machine.poll_event(Instant::ZERO) {
            match event {
                ConnectionEvent::Call { stream, .. } => machine.accept_call(stream, plan),
                ConnectionEvent::Whole { message, .. } => whole = Some(message),
                ConnectionEvent::Next(_) => {}
                _ => unreachable!("nothing else was sent"),
            }
        }
        // Windows open as bytes arrive.
        drain(machine);
    }
    whole
}

/// Takes all bytes that the connection sends. Returns their number.
fn drain(machine: &mut Machine) -> usize {
    let mut sent = 0;
    loop {
        machine.prepare_transmit(Instant::ZERO);
        let size: usize = machine.transmit_parts().map(<[u8]>::len).sum();
        if size == 0 {
            return sent;
        }
        machine.handle_transmitted(size, Instant::ZERO);
        sent += size;
    }
}
