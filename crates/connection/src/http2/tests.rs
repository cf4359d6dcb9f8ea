//! The corpus of the fuzz target, replayed and changed; and cases that need large answers and a
//! clock.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;

use super::fuzz::{fuzz_connection, mix};
use super::*;
use crate::http1::fuzz::PlainBody;
use crate::limits::{CONTINUATIONS_MAX, RECEIVE_WAIT_MAX, SERVER_RESETS_MAX, TRANSMIT_SIZE_MAX};
use base::budget::{ReceiveReservation, Shortage, testing};
use wire::hpack::decoder::Decoder;
use wire::hpack::encoder::{Encoder, Indexing};
use wire::http2::frame::{FrameHead, FrameKind, HEAD_SIZE};
use wire::http2::settings;
use wire::message::Reply;

fn corpus() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/http2");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

#[test]
fn the_corpus_of_the_fuzz_target_holds() {
    corpus().iter().for_each(|input| fuzz_connection(input));
}

#[test]
fn inputs_made_of_the_corpus_hold() {
    let corpus = corpus();
    let mut seed = 20_261_121;
    for round in 0..3_000 {
        let mut random = |bound: usize| {
            seed = mix(seed);
            (seed >> 16) as usize % bound
        };
        // Frames of several inputs in a row, some of them changed.
        let mut input = corpus[random(corpus.len())].clone();
        for _ in 0..random(4) {
            let other = &corpus[random(corpus.len())];
            let frames = other.get(HEAD_SIZE..).unwrap_or_default();
            input.extend_from_slice(frames);
        }
        for _ in 0..random(6) {
            let at = random(input.len());
            match random(3) {
                0 => input[at] = random(256) as u8,
                1 => input[at] ^= 1 << random(8),
                _ => drop(input.drain(at..input.len().min(at + random(9)))),
            }
        }
        let outcome = std::panic::catch_unwind(|| fuzz_connection(&input));
        assert!(outcome.is_ok(), "round {round}: {}", input.escape_ascii());
    }
}

type Machine = Http2Connection<PlainBody, ()>;

fn machine(entries: &[(u16, u32)]) -> Machine {
    machine_with(Http2Settings::default(), entries)
}

fn machine_with(settings: Http2Settings, entries: &[(u16, u32)]) -> Machine {
    let mut machine = Machine::new(settings, Instant::ZERO);
    let mut frames = Vec::new();
    settings::encode(entries, &mut frames);
    write(&mut machine, &frames, Instant::ZERO);
    machine
}

fn write(machine: &mut Machine, bytes: &[u8], now: Instant) -> Vec<ConnectionEvent<()>> {
    write_to(machine, bytes, now, || MessageDelivery::One(()))
}

fn write_to(
    machine: &mut Machine,
    mut bytes: &[u8],
    now: Instant,
    plan: fn() -> MessageDelivery<()>,
) -> Vec<ConnectionEvent<()>> {
    let mut events = Vec::new();
    while !bytes.is_empty() && !machine.has_failed() {
        let space = machine.input_space(usize::MAX);
        let count = space.len().min(bytes.len());
        if count == 0 {
            break;
        }
        space[..count].copy_from_slice(&bytes[..count]);
        machine.handle_input(count, now);
        bytes = &bytes[count..];
        while let Some(event) = machine.poll_event(now) {
            if let ConnectionEvent::Call { stream, .. } = event {
                machine.accept_call(stream, plan());
            }
            events.push(event);
        }
    }
    events
}

fn call(id: u32, flags: u8) -> Vec<u8> {
    request(id, flags, &[("content-type", "application/grpc")])
}

fn request(id: u32, flags: u8, more: &[(&str, &str)]) -> Vec<u8> {
    let usual = [(":method", "POST"), (":scheme", "http"), (":path", "/a/b"), (":authority", "a")];
    let (mut encoder, mut block, mut frames) = (Encoder::default(), Vec::new(), Vec::new());
    for (name, value) in usual.iter().chain(more) {
        encoder.encode(name.as_bytes(), value.as_bytes(), Indexing::Without, &mut block);
    }
    frame::encode(FrameKind::Headers, frame::END_HEADERS | flags, StreamId(id), &block, &mut frames);
    frames
}

fn data(id: u32, flags: u8, content: &[u8]) -> Vec<u8> {
    let mut frames = Vec::new();
    frame::encode(FrameKind::Data, flags, StreamId(id), content, &mut frames);
    frames
}

fn whole_call(id: u32) -> Vec<u8> {
    [call(id, 0), data(id, frame::END_STREAM, &[0; 5])].concat()
}

/// The frames that are sent now, until they have `size_max` bytes: head and payload.
fn sent(machine: &mut Machine, size_max: usize) -> Vec<(FrameHead, Vec<u8>)> {
    let mut bytes = Vec::new();
    while bytes.len() < size_max {
        machine.prepare_transmit(Instant::ZERO);
        let count = machine.transmit_parts().map(<[u8]>::len).sum::<usize>();
        if count == 0 {
            break;
        }
        machine.transmit_parts().for_each(|part| bytes.extend_from_slice(part));
        machine.handle_transmitted(count, Instant::ZERO);
    }
    let (mut frames, mut rest) = (Vec::new(), &bytes[..]);
    while let Some(head) = FrameHead::decode(rest) {
        let end = rest.len().min(HEAD_SIZE + head.size);
        frames.push((head, rest[HEAD_SIZE..end].to_vec()));
        rest = &rest[end..];
    }
    frames
}

fn goaway(machine: &mut Machine) -> Option<(u32, String)> {
    let frames = sent(machine, usize::MAX);
    let (_, payload) = frames.into_iter().rev().find(|(head, _)| head.kind == FrameKind::GoAway)?;
    Some((frame::number(&payload[4..]), String::from_utf8(payload[8..].to_vec()).unwrap()))
}

#[test]
fn a_small_answer_goes_out_between_the_frames_of_large_ones() {
    let mut machine = machine(&[(4, 0x7fff_ffff)]);
    let mut window = Vec::new();
    frame::encode_window_update(StreamId::CONNECTION, 0x7000_0000, &mut window);
    write(&mut machine, &[window, whole_call(1), whole_call(3), whole_call(5)].concat(), Instant::ZERO);
    let large = Bytes::from(vec![7; 100 * 1024 * 1024]);
    machine.send_answer(StreamId(1), [large.clone()], Instant::ZERO);
    machine.send_answer(StreamId(3), [large], Instant::ZERO);
    sent(&mut machine, 5_000_000);
    machine.send_answer(StreamId(5), [Bytes::from_static(b"small")], Instant::ZERO);
    let (mut before, mut by_stream) = (0, [0; 6]);
    for (head, payload) in sent(&mut machine, 2_000_000) {
        if head.stream == StreamId(5) {
            break;
        }
        before += payload.len();
        by_stream[head.stream.0 as usize] += payload.len();
    }
    // The frames made ahead, and a turn of each.
    assert!(before <= TRANSMIT_SIZE_MAX + 4 * crate::limits::SEND_QUANTUM, "{before} bytes before it");
    assert!(by_stream[1].abs_diff(by_stream[3]) <= 2 * crate::limits::SEND_QUANTUM, "{by_stream:?}");
    assert_eq!(machine.stream_count(), 2);
}

#[test]
fn a_call_that_is_refused_while_it_comes_in_is_refused_once() {
    let mut machine = machine(&[]);
    write(&mut machine, &whole_call(1), Instant::ZERO);
    // The connection's window has no room for further output, and later answers wait behind it.
    machine.send_answer(StreamId(1), [Bytes::from(vec![7; 70_000])], Instant::ZERO);
    write(&mut machine, &call(3, 0), Instant::ZERO);
    machine.end_call(
        StreamId(3),
        Some(CallStatus { code: 12, text: String::new(), fields: Default::default() }),
        Instant::ZERO,
    );
    let events = write(&mut machine, &data(3, frame::END_STREAM, &[0; 5]), Instant::ZERO);
    assert!(events.is_empty(), "{events:?}");
    let mut frames = sent(&mut machine, usize::MAX);
    let mut window = Vec::new();
    frame::encode_window_update(StreamId::CONNECTION, 10_000, &mut window);
    frame::encode_window_update(StreamId(1), 10_000, &mut window);
    write(&mut machine, &window, Instant::ZERO);
    frames.extend(sent(&mut machine, usize::MAX));
    let refused: Vec<_> = frames.into_iter().filter(|(head, _)| head.stream == StreamId(3)).collect();
    assert_eq!(refused.len(), 1);
    assert!(refused[0].1.ends_with(b"\x0212"), "{:?}", refused[0].1.escape_ascii().to_string());
    assert_eq!(machine.stream_count(), 0);
}

#[test]
fn a_call_that_is_refused_while_it_works_is_sent_nothing_more() {
    let status = |code| Some(CallStatus { code, text: String::new(), fields: Default::default() });
    let mut machine = machine(&[]);
    write_to(&mut machine, &call(1, 0), Instant::ZERO, || MessageDelivery::Each);
    machine.end_call(StreamId(1), status(4), Instant::ZERO);
    let frames = sent(&mut machine, usize::MAX);
    assert_eq!(frames.iter().filter(|(head, _)| head.stream == StreamId(1)).count(), 1);
    // Its work did not know, and the client has not ended its side.
    machine.send_message(StreamId(1), [Bytes::from_static(b"late")], Instant::ZERO);
    machine.end_call(StreamId(1), status(14), Instant::ZERO);
    let frames = sent(&mut machine, usize::MAX);
    assert!(frames.iter().all(|(head, _)| head.stream != StreamId(1)), "{frames:?}");
}

#[test]
fn answers_come_back_whole_whatever_windows_and_frames_there_are() {
    let content: Vec<u8> = (0..200_000_u32).map(|value| (value % 253) as u8).collect();
    for (window, frame_size) in [(1, 16_384), (1_000, 16_384), (65_535, 20_000), (300_000, 0xff_ffff)] {
        let mut machine = machine(&[(4, window), (5, frame_size)]);
        write(&mut machine, &whole_call(1), Instant::ZERO);
        let parts = [0..10, 10..10, 10..7_000, 7_000..199_999, 199_999..200_000];
        let parts = parts.map(|range| Bytes::copy_from_slice(&content[range]));
        machine.send_answer(StreamId(1), parts, Instant::ZERO);
        let (mut got, mut is_ended) = (Vec::new(), false);
        for _ in 0..200_000 {
            let frames = sent(&mut machine, usize::MAX);
            for (head, payload) in frames.iter().filter(|(head, _)| head.stream == StreamId(1)) {
                assert!(head.size <= frame_size as usize && !is_ended);
                is_ended = head.has(frame::END_STREAM);
                if head.kind == FrameKind::Data {
                    got.extend_from_slice(payload);
                }
            }
            if is_ended {
                break;
            }
            let mut updates = Vec::new();
            frame::encode_window_update(StreamId(1), window, &mut updates);
            frame::encode_window_update(StreamId::CONNECTION, 70_000, &mut updates);
            write(&mut machine, &updates, Instant::ZERO + base::limits::BUDGET_INTERVAL);
        }
        // A window of one byte is more frames of nothing than a budget has.
        assert!(got == content && is_ended || window == 1 && machine.has_failed(), "{window} {}", got.len());
    }
}

#[test]
fn more_than_a_window_is_a_fault_and_what_is_read_comes_back() {
    let settings =
        Http2Settings { stream_window_size: 1_000, connection_window_size: 65_535, ..Http2Settings::default() };
    let mut machine = machine_with(settings, &[]);
    write(&mut machine, &[call(1, 0), data(1, 0, &[0, 0, 1, 0, 0]), data(1, 0, &[0; 600])].concat(), Instant::ZERO);
    let updates: Vec<_> =
        sent(&mut machine, usize::MAX).into_iter().filter(|(head, _)| head.kind == FrameKind::WindowUpdate).collect();
    assert_eq!(
        updates.iter().map(|(head, payload)| (head.stream.0, frame::number(payload))).collect::<Vec<_>>(),
        [(1, 605)]
    );
    let events = write(&mut machine, &data(1, 0, &[0; 1_001]), Instant::ZERO);
    assert!(events.is_empty(), "{events:?}");
    let frames = sent(&mut machine, usize::MAX);
    let reset = frames.iter().find(|(head, _)| head.kind == FrameKind::RstStream).unwrap();
    assert_eq!(frame::number(&reset.1), ErrorCode::FlowControlError as u32);
    let mut machine = machine_with(settings, &[]);
    write(&mut machine, &call(1, 0), Instant::ZERO);
    let more = frame_of(65_536);
    write(&mut machine, &more, Instant::ZERO);
    assert_eq!(goaway(&mut machine).map(|(code, _)| code), Some(ErrorCode::FlowControlError as u32));
}

fn frame_of(size: usize) -> Vec<u8> {
    data(1, 0, &vec![0; size])
}

/// Sends a message of 900,000 bytes, with space for at most `size_max` bytes at a time. Returns the
/// most space there was.
fn read_in_place(size_max: usize) -> usize {
    let mut machine = machine(&[]);
    let message: Vec<u8> = (0..900_000_u32).map(|value| (value % 241) as u8).collect();
    let prefix = [&[0][..], &900_000_u32.to_be_bytes()].concat();
    let frames = [call(1, 0), data(1, 0, &prefix), data(1, frame::END_STREAM, &message)].concat();
    let mut rest = &frames[..];
    let (mut largest, mut whole) = (0, None);
    while !rest.is_empty() {
        let space = machine.input_space(size_max);
        largest = largest.max(space.len());
        let count = space.len().min(rest.len());
        space[..count].copy_from_slice(&rest[..count]);
        machine.handle_input(count, Instant::ZERO);
        rest = &rest[count..];
        while let Some(event) = machine.poll_event(Instant::ZERO) {
            match event {
                ConnectionEvent::Call { stream, .. } => machine.accept_call(stream, MessageDelivery::One(())),
                ConnectionEvent::Whole { message, .. } => whole = Some(message),
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(whole.is_some_and(|whole| whole == message));
    assert!(machine.reader.input.held_size() <= 128 * 1024);
    largest
}

#[test]
fn a_large_body_is_read_into_its_own_buffer_as_much_at_a_time_as_the_caller_wants() {
    for (size_max, largest) in [(usize::MAX, 256 * 1024), (100_000, 100_000)] {
        assert_eq!(read_in_place(size_max), largest);
    }
}

#[test]
fn floods_end_the_connection_by_their_bound_and_name_it() {
    let calm = ErrorCode::EnhanceYourCalm as u32;
    let check = |name: &str, frames: Vec<u8>, limit: Http2Limit, word: &str| {
        let mut machine = machine(&[]);
        let mut rounds = 0;
        while !machine.has_failed() && rounds < 20_000 {
            write(&mut machine, &frames, Instant::ZERO);
            rounds += 1;
            if rounds % 100 == 0 {
                sent(&mut machine, usize::MAX);
            }
        }
        assert_eq!(machine.exceeded(), Some(limit), "{name} after {rounds}");
        assert!(rounds <= 10_000, "{name}: {rounds}");
        let (code, text) = goaway(&mut machine).unwrap();
        assert!(code == calm && text.contains(word), "{name}: {code} {text}");
        assert!(machine.is_finished());
    };
    let one = |kind, stream, payload: &[u8]| {
        let mut out = Vec::new();
        frame::encode(kind, 0, StreamId(stream), payload, &mut out);
        out
    };
    let flag = "--http2-control-frames-max) is 10000";
    check("PING", one(FrameKind::Ping, 0, &[0; 8]), Http2Limit::ControlFrames, flag);
    check("SETTINGS", one(FrameKind::Settings, 0, &[]), Http2Limit::ControlFrames, flag);
    check("PRIORITY", one(FrameKind::Priority, 1, &[0; 5]), Http2Limit::ControlFrames, flag);
    check("unknown frames", one(FrameKind::Unknown(0x99), 0, &[]), Http2Limit::ControlFrames, flag);
    let small = one(FrameKind::WindowUpdate, 0, &[0, 0, 0, 1]);
    check("WINDOW_UPDATE", small, Http2Limit::ControlFrames, flag);
}

#[test]
fn content_of_few_bytes_and_empty_blocks_have_their_bounds() {
    for content in [&[][..], &[0; 255]] {
        let mut machine = machine_with(Http2Settings { body_size_max: usize::MAX, ..Http2Settings::default() }, &[]);
        write(&mut machine, &request(1, 0, &[]), Instant::ZERO);
        let frames = data(1, 0, content).repeat(100);
        for _ in 0..100 {
            write(&mut machine, &frames, Instant::ZERO);
            sent(&mut machine, usize::MAX);
        }
        assert_eq!(machine.exceeded(), Some(Http2Limit::ControlFrames), "{} bytes", content.len());
    }
    let mut machine = machine(&[]);
    let mut frames = Vec::new();
    frame::encode(FrameKind::Headers, 0, StreamId(1), &[], &mut frames);
    for _ in 0..=CONTINUATIONS_MAX {
        frame::encode(FrameKind::Continuation, 0, StreamId(1), &[], &mut frames);
    }
    write(&mut machine, &frames, Instant::ZERO);
    assert!(goaway(&mut machine).is_some_and(|(_, text)| text.contains("CONTINUATIONS_MAX is 32")));
    let mut machine = machine_with(Http2Settings::default(), &[]);
    let mut frames = Vec::new();
    frame::encode(FrameKind::Headers, 0, StreamId(1), &[0; 40_000], &mut frames);
    frame::encode(FrameKind::Continuation, 0, StreamId(1), &[0; 40_000], &mut frames);
    write(&mut machine, &frames, Instant::ZERO);
    assert!(goaway(&mut machine).is_some_and(|(_, text)| text.contains("HEAD_SIZE_MAX is 65536 bytes")));
}

#[test]
fn fields_are_counted_as_they_are_decoded() {
    let mut machine = machine(&[]);
    let mut block = Vec::new();
    let mut encoder = Encoder::default();
    encoder.encode(b"x", &[b'v'; 4_000], Indexing::Insert, &mut block);
    // One byte each from here on: 68 KB of 4.
    block.extend([0xbe; 20]);
    let mut frames = Vec::new();
    frame::encode(FrameKind::Headers, frame::END_HEADERS, StreamId(1), &block, &mut frames);
    write(&mut machine, &frames, Instant::ZERO);
    assert_eq!(machine.exceeded(), Some(Http2Limit::FieldList));
}

#[test]
fn streams_that_are_opened_to_be_reset_have_their_bounds() {
    let mut opened = 0;
    let mut machine = machine(&[]);
    while !machine.has_failed() && opened < 5_000 {
        let id = 2 * opened + 1;
        let mut frames = call(id, 0);
        frame::encode_reset(StreamId(id), ErrorCode::Cancel, &mut frames);
        write(&mut machine, &frames, Instant::ZERO);
        opened += 1;
    }
    assert_eq!((machine.exceeded(), opened), (Some(Http2Limit::ClientResets), 1_000));
    // The other way round: a fault of the client makes us reset.
    let (mut opened, mut machine) = (0, machine_with(Http2Settings::default(), &[]));
    while !machine.has_failed() && opened < 5_000 {
        let id = 2 * opened + 1;
        let mut frames = call(id, 0);
        frame::encode_window_update(StreamId(id), 0, &mut frames);
        write(&mut machine, &frames, Instant::ZERO);
        opened += 1;
    }
    assert_eq!((machine.exceeded(), opened), (Some(Http2Limit::ServerResets), SERVER_RESETS_MAX));
}

#[test]
fn a_long_call_outlives_any_keepalive_of_its_client_and_a_flood_of_pings_has_its_bound() {
    let mut ping = Vec::new();
    frame::encode(FrameKind::Ping, 0, StreamId::CONNECTION, &[0; 8], &mut ping);
    let pings_until_the_end = |interval: Duration, most: u32| {
        let mut machine = machine(&[]);
        write_to(&mut machine, &call(1, 0), Instant::ZERO, || MessageDelivery::Each);
        let mut now = Instant::ZERO;
        let mut count = 0;
        while count < most && !machine.has_failed() {
            now = now + interval;
            write(&mut machine, &ping, now);
            sent(&mut machine, usize::MAX);
            count += 1;
        }
        (count, machine.exceeded())
    };
    // Ten hours at 10 s, and a minute at 2 ms. The bound of all frames that move nothing is 10,000 in 10 s.
    assert_eq!(pings_until_the_end(Duration::from_secs(10), 3_600), (3_600, None));
    assert_eq!(pings_until_the_end(Duration::from_millis(2), 30_000), (30_000, None));
    assert_eq!(pings_until_the_end(Duration::from_micros(100), 30_000).1, Some(Http2Limit::ControlFrames));
}

#[test]
fn small_messages_of_a_stream_have_their_bound_unless_they_are_answered() {
    // The frames of gRPC's C core for each message, as seen on the wire.
    let mut message = Vec::new();
    frame::encode_window_update(StreamId(1), 5, &mut message);
    message.extend(data(1, 0, &[0, 0, 0, 0, 1, 7]));
    frame::encode_window_update(StreamId::CONNECTION, 5, &mut message);
    frame::encode(FrameKind::Ping, 0, StreamId::CONNECTION, &[0; 8], &mut message);
    // This test is not about PINGs.
    let keep_alive = KeepAlivePolicy { ping_strikes_max: 0, ..KeepAlivePolicy::default() };
    let settings = Http2Settings { keep_alive, ..Http2Settings::default() };
    let messages_until_the_end = |is_answered: bool| {
        let mut machine = machine_with(settings, &[]);
        write_to(&mut machine, &call(1, 0), Instant::ZERO, || MessageDelivery::Each);
        let mut count = 0;
        while count < 50_000 && !machine.has_failed() {
            write(&mut machine, &message, Instant::ZERO);
            while let Ok(NextMessage::Message(_)) = machine.take_next(StreamId(1)) {
                if is_answered {
                    machine.send_message(StreamId(1), [Bytes::from_static(&[0, 0, 0, 0, 0])], Instant::ZERO);
                }
            }
            sent(&mut machine, usize::MAX);
            count += 1;
        }
        (count, machine.exceeded())
    };
    assert_eq!(messages_until_the_end(false), (2_500, Some(Http2Limit::ControlFrames)));
    assert_eq!(messages_until_the_end(true), (50_000, None));
}

#[test]
fn a_stream_that_is_reset_counts_until_its_work_is_gone() {
    let mut machine = machine_with(Http2Settings { streams_max: 2, ..Http2Settings::default() }, &[]);
    let mut acknowledge = Vec::new();
    settings::encode_acknowledgement(&mut acknowledge);
    write(&mut machine, &[acknowledge, whole_call(1), whole_call(3)].concat(), Instant::ZERO);
    let mut resets = Vec::new();
    frame::encode_reset(StreamId(1), ErrorCode::Cancel, &mut resets);
    frame::encode_reset(StreamId(3), ErrorCode::Cancel, &mut resets);
    let events = write(&mut machine, &[resets, whole_call(5)].concat(), Instant::ZERO);
    assert!(
        matches!(
            events[..],
            [
                ConnectionEvent::Reset { stream: StreamId(1), code: ErrorCode::Cancel },
                ConnectionEvent::Reset { stream: StreamId(3), .. }
            ]
        ),
        "{events:?}"
    );
    let refused = |machine: &mut Machine, id| {
        let is_reset = |(head, payload): &(FrameHead, Vec<u8>)| {
            head.kind == FrameKind::RstStream
                && head.stream == StreamId(id)
                && frame::number(payload) == ErrorCode::RefusedStream as u32
        };
        sent(machine, usize::MAX).iter().any(is_reset)
    };
    assert!(refused(&mut machine, 5));
    machine.handle_gone(StreamId(1));
    let events = write(&mut machine, &whole_call(7), Instant::ZERO);
    assert!(matches!(events[..], [ConnectionEvent::Call { .. }, ConnectionEvent::Whole { .. }]), "{events:?}");
    machine.send_answer(StreamId(3), [Bytes::from_static(b"late")], Instant::ZERO);
    assert!(!refused(&mut machine, 7) && machine.stream_count() == 2, "the work on 3 goes on");
}

#[test]
fn timers_end_what_does_not_move() {
    let late = |after: Duration| Instant::ZERO + after;
    // A client that says nothing, and one that stops within a frame.
    let mut silent = Machine::new(Http2Settings::default(), Instant::ZERO);
    assert_eq!(silent.poll_timeout(), Some(late(HEAD_TIMEOUT)));
    silent.handle_timeout(late(HEAD_TIMEOUT));
    assert!(goaway(&mut silent).is_some_and(|(_, text)| text.contains("(--http-head-timeout) is 10 s")));
    let mut slow = machine(&[]);
    sent(&mut slow, usize::MAX);
    assert_eq!(slow.poll_timeout(), Some(late(REST_TIMEOUT)));
    slow.handle_timeout(late(REST_TIMEOUT));
    assert_eq!(slow.poll_timeout(), Some(late(IDLE_TIMEOUT)));
    write(&mut slow, &call(1, 0)[..5], Instant::ZERO);
    write(&mut slow, &call(1, 0)[5..7], late(Duration::from_secs(9)));
    assert_eq!(slow.poll_timeout(), Some(late(HEAD_TIMEOUT)), "a byte now and then does not help");
    // A request that does not go on, a call and a plain one.
    let mut machine = machine(&[]);
    sent(&mut machine, usize::MAX);
    write(&mut machine, &[call(1, 0), request(3, 0, &[])].concat(), Instant::ZERO);
    machine.handle_timeout(late(BODY_TIMEOUT));
    let event = machine.poll_event(late(BODY_TIMEOUT));
    assert!(matches!(event, Some(ConnectionEvent::Fault { stream: StreamId(1), fault: CallFault::Late })), "{event:?}");
    assert!(
        sent(&mut machine, usize::MAX).iter().any(|(head, _)| head.kind == FrameKind::Headers && head.stream.0 == 3)
    );
    let refused = machine.poll_event(late(BODY_TIMEOUT));
    let is_late = |refused: &RefusedMessage| refused.refusal.status() == 408 && refused.path == "/a/b";
    assert!(matches!(&refused, Some(ConnectionEvent::Refused(refused)) if is_late(refused)), "{refused:?}");
    assert_eq!(machine.take_counts().timeouts.body, 2);
    // An answer that its client opens no window for.
    let mut machine = machine_with(Http2Settings::default(), &[(4, 0)]);
    write(&mut machine, &whole_call(1), Instant::ZERO);
    machine.send_answer(StreamId(1), [Bytes::from_static(b"nobody takes it")], Instant::ZERO);
    sent(&mut machine, usize::MAX);
    assert_eq!(machine.poll_timeout(), Some(late(WRITE_TIMEOUT)));
    machine.handle_timeout(late(WRITE_TIMEOUT));
    assert!(sent(&mut machine, usize::MAX).iter().any(|(head, _)| head.kind == FrameKind::RstStream));
    machine.handle_timeout(late(REST_TIMEOUT));
    assert_eq!((machine.stream_count(), machine.poll_timeout()), (0, Some(late(IDLE_TIMEOUT))));
}

#[test]
fn a_deadline_passes_while_a_call_comes_in() {
    let mut machine = machine(&[]);
    write(
        &mut machine,
        &request(1, 0, &[("content-type", "application/grpc"), ("grpc-timeout", "20m")]),
        Instant::ZERO,
    );
    let at = Instant::from_micros(20_000);
    sent(&mut machine, usize::MAX);
    assert_eq!(machine.poll_timeout(), Some(at));
    machine.handle_timeout(at);
    let event = machine.poll_event(at);
    assert!(matches!(event, Some(ConnectionEvent::Fault { fault: CallFault::Deadline, .. })), "{event:?}");
}

#[test]
fn a_drain_lets_what_is_open_end_and_takes_no_more() {
    let mut machine = machine(&[]);
    write(&mut machine, &whole_call(1), Instant::ZERO);
    machine.begin_drain(Instant::ZERO);
    machine.begin_drain(Instant::ZERO);
    let frames = sent(&mut machine, usize::MAX);
    let ping = frames.iter().find(|(head, _)| head.kind == FrameKind::Ping).unwrap().1.clone();
    let last = |frames: &[(FrameHead, Vec<u8>)]| -> Vec<u32> {
        frames
            .iter()
            .filter(|(head, _)| head.kind == FrameKind::GoAway)
            .map(|(_, payload)| frame::number(payload))
            .collect()
    };
    assert_eq!(last(&frames), [0x7fff_ffff]);
    // One that was on its way is served still.
    let mut pong = Vec::new();
    frame::encode(FrameKind::Ping, frame::ACK, StreamId::CONNECTION, &ping, &mut pong);
    assert_eq!(write(&mut machine, &[whole_call(3), pong, whole_call(5)].concat(), Instant::ZERO).len(), 2);
    assert_eq!(last(&sent(&mut machine, usize::MAX)), [3]);
    assert!(!machine.is_finished());
    for id in [1, 3] {
        machine.send_answer(StreamId(id), [Bytes::from_static(b"x")], Instant::ZERO);
    }
    assert!(!machine.is_finished());
    sent(&mut machine, usize::MAX);
    assert!(machine.is_finished());
}

#[test]
fn a_client_that_reads_nothing_is_not_read() {
    let mut machine = machine(&[]);
    let mut ping = Vec::new();
    frame::encode(FrameKind::Ping, 0, StreamId::CONNECTION, &[7; 8], &mut ping);
    let pings = ping.repeat(9_000);
    let mut rest = &pings[..];
    loop {
        let space = machine.input_space(usize::MAX);
        let count = space.len().min(rest.len());
        if count == 0 {
            break;
        }
        space[..count].copy_from_slice(&rest[..count]);
        machine.handle_input(count, Instant::ZERO);
        rest = &rest[count..];
        assert!(machine.poll_event(Instant::ZERO).is_none());
    }
    assert!(!rest.is_empty() && machine.sender.urgent_size() <= CONTROL_BACKLOG_SIZE_MAX + 17, "{}", rest.len());
    assert!(sent(&mut machine, usize::MAX).len() > 3_000);
    assert!(!machine.input_space(usize::MAX).is_empty(), "it is read again");
}

// The memory of content.

fn bounded(size_max: usize, window: u32) -> (Machine, Rc<testing::Bytes>) {
    let settings = Http2Settings { stream_window_size: window, ..Http2Settings::default() };
    let memory = testing::Bytes::new(size_max);
    let machine = machine_with(settings, &[]).with_memory(Rc::clone(&memory) as Rc<dyn ReceiveBudget>);
    (machine, memory)
}

/// The status, `retry-after` and text that streams were answered with.
fn answers(machine: &mut Machine, decoder: &mut Decoder) -> Vec<String> {
    let mut answers = Vec::new();
    for (head, payload) in sent(machine, usize::MAX) {
        match head.kind {
            FrameKind::Headers => decoder
                .decode(&payload, |field| {
                    if field.name_text == b":status" || field.name_text == b"retry-after" {
                        answers.push(String::from_utf8_lossy(field.value).into_owned());
                    }
                })
                .unwrap(),
            FrameKind::Data => answers.push(String::from_utf8_lossy(&payload).into_owned()),
            _ => {}
        }
    }
    answers
}

fn fault(events: &[ConnectionEvent<()>]) -> Option<CallFault> {
    events.iter().find_map(|event| if let ConnectionEvent::Fault { fault, .. } = event { Some(*fault) } else { None })
}

#[test]
fn content_takes_memory_as_it_comes_up_to_the_bound_and_no_byte_more() {
    let ((mut machine, memory), mut decoder) = (bounded(1_000, 65_535), Decoder::default());
    write(&mut machine, &[request(1, 0, &[]), data(1, 0, &[1; 600])].concat(), Instant::ZERO);
    assert_eq!(memory.reserved.get(), 600);
    // At the bound, and one past it.
    let events =
        write(&mut machine, &[request(3, 0, &[]), data(3, frame::END_STREAM, &[1; 400])].concat(), Instant::ZERO);
    assert!(matches!(events[..], [ConnectionEvent::Message { .. }]), "{events:?}");
    let taken = machine.take_memory(StreamId(3));
    assert_eq!((taken.size(), memory.reserved.get()), (400, 1_000));
    let events = write(&mut machine, &[request(5, 0, &[]), data(5, frame::END_STREAM, &[1])].concat(), Instant::ZERO);
    assert!(matches!(events[..], [ConnectionEvent::Refused(_)]), "{events:?}");
    let answer = answers(&mut machine, &mut decoder);
    assert_eq!(answer[..2], ["503", "1"]);
    assert!(answer[2].contains("--receive-memory-bytes-max") && answer[2].contains("1000 bytes"), "{answer:?}");
    assert_eq!((machine.take_counts().memory_refusals, memory.reserved.get()), (1, 1_000));
    // A request that can never have memory is refused before it comes.
    let events = write(&mut machine, &request(7, 0, &[("content-length", "1001"), ("a", "b")]), Instant::ZERO);
    assert_eq!(answers(&mut machine, &mut decoder)[0], "413");
    let [ConnectionEvent::Refused(refused)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((refused.refusal.status(), refused.fields.get("a")), (413, Some(&b"b"[..])));
    drop(taken);
    assert_eq!(memory.reserved.get(), 600);
    let reset = [&[0, 0, 4, 3, 0, 0, 0, 0, 1][..], &8_u32.to_be_bytes()].concat();
    write(&mut machine, &reset, Instant::ZERO);
    assert_eq!(memory.reserved.get(), 0, "a reset gives it back");
    write(&mut machine, &[request(9, 0, &[]), data(9, 0, &[1; 600])].concat(), Instant::ZERO);
    drop(machine);
    assert_eq!(memory.reserved.get(), 0, "and so does the end of the connection");
}

#[test]
fn the_messages_of_calls_are_counted_with_all_that_waits_behind_them() {
    let message = |size: u8| [&[0, 0, 0, 0, size][..], &vec![1; usize::from(size)]].concat();
    let (mut machine, memory) = bounded(200, 65_535);
    let events = write(&mut machine, &[call(1, 0), data(1, frame::END_STREAM, &message(95))].concat(), Instant::ZERO);
    assert!(matches!(events[..], [ConnectionEvent::Call { .. }, ConnectionEvent::Whole { .. }]), "{events:?}");
    let whole = machine.take_memory(StreamId(1));
    assert_eq!((whole.size(), memory.reserved.get()), (100, 100));
    let each = |machine: &mut Machine, bytes: &[u8]| write_to(machine, bytes, Instant::ZERO, || MessageDelivery::Each);
    let two = [message(45), message(45)].concat();
    each(&mut machine, &[call(3, 0), data(3, 0, &two)].concat());
    assert_eq!(memory.reserved.get(), 200);
    let busy = CallFault::Memory(Shortage::Busy { size_max: 200 });
    let events = write(&mut machine, &[call(5, 0), data(5, 0, &[0])].concat(), Instant::ZERO);
    assert_eq!((fault(&events), memory.reserved.get()), (Some(busy), 200), "one past the bound");
    assert!(matches!(machine.take_next(StreamId(3)), Ok(NextMessage::Message(_))));
    let taken = machine.take_memory(StreamId(3));
    assert_eq!((taken.size(), memory.reserved.get()), (50, 200));
    drop((taken, whole));
    assert!(matches!(machine.take_next(StreamId(3)), Ok(NextMessage::Message(_))));
    drop(machine.take_memory(StreamId(3)));
    assert_eq!((machine.take_next(StreamId(3)), memory.reserved.get()), (Ok(NextMessage::Nothing), 0));
    // Its prefix says that it never fits.
    let events = each(&mut machine, &data(3, 0, &[0, 0, 0, 0, 201]));
    let never = CallFault::Memory(Shortage::TooLarge { size: 201, size_max: 200 });
    assert_eq!((fault(&events), memory.reserved.get()), (Some(never), 0));
    assert_eq!(machine.take_counts().memory_refusals, 2);
}

#[test]
fn a_client_has_room_where_there_is_memory_for_it_and_is_refused_where_none_comes() {
    let updates = |machine: &mut Machine| {
        let frames = sent(machine, usize::MAX);
        let of_stream = frames.iter().filter(|(head, _)| head.kind == FrameKind::WindowUpdate && head.stream.0 > 0);
        of_stream.map(|(head, payload)| (head.stream.0, frame::number(payload))).collect::<Vec<_>>()
    };
    for is_given_back in [true, false] {
        let ((mut machine, memory), mut decoder) = (bounded(2_600, 1_000), Decoder::default());
        let half = |id: u32| data(id, 0, &[1; 500]);
        write(&mut machine, &[request(1, 0, &[]), half(1)].concat(), Instant::ZERO);
        assert_eq!((updates(&mut machine), memory.reserved.get()), (vec![(1, 500)], 1_500), "room is reserved");
        write(&mut machine, &[request(3, 0, &[]), half(3), half(3)].concat(), Instant::ZERO);
        assert_eq!((updates(&mut machine), memory.reserved.get()), (vec![], 2_500), "no room, and nothing refused");
        assert_eq!(machine.poll_timeout(), Some(Instant::ZERO), "it looks again");
        machine.handle_timeout(Instant::ZERO);
        assert_eq!(machine.poll_event(Instant::ZERO).map(drop), None);
        let later = Instant::ZERO + RECEIVE_WAIT_MAX;
        if is_given_back {
            let events = write(&mut machine, &data(1, frame::END_STREAM, &[]), Instant::ZERO);
            assert!(matches!(events[..], [ConnectionEvent::Message { .. }]));
            drop(machine.take_memory(StreamId(1)));
            machine.handle_timeout(later);
            assert_eq!((updates(&mut machine), memory.reserved.get()), (vec![(3, 1_000)], 2_000));
        } else {
            machine.handle_timeout(later);
            assert_eq!(answers(&mut machine, &mut decoder)[..2], ["503", "1"]);
            assert_eq!((machine.take_counts().memory_refusals, memory.reserved.get()), (1, 1_500));
        }
    }
}

#[test]
fn a_stream_that_rests_between_messages_holds_no_memory() {
    let (mut machine, memory) = bounded(10_000, 1_000);
    write_to(&mut machine, &call(1, 0), Instant::ZERO, || MessageDelivery::Each);
    for _ in 0..20 {
        write(&mut machine, &data(1, 0, &[&[0, 0, 0, 0, 250][..], &[1; 250]].concat()), Instant::ZERO);
        assert!(matches!(machine.take_next(StreamId(1)), Ok(NextMessage::Message(_))));
        drop(machine.take_memory(StreamId(1)));
        assert_eq!(memory.reserved.get(), 0);
    }
}

#[test]
fn content_of_an_open_stream_is_not_looked_for_among_those_that_ended() {
    let mut machine = machine(&[]);
    for id in (1..600).step_by(2) {
        write(&mut machine, &whole_call(id), Instant::ZERO);
        machine.send_answer(StreamId(id), [Bytes::from_static(&[0; 5])], Instant::ZERO);
        sent(&mut machine, usize::MAX);
    }
    write(&mut machine, &request(601, 0, &[]), Instant::ZERO);
    let before = machine.streams.searches.get();
    (0..100).for_each(|_| drop(write(&mut machine, &data(601, 0, &[1; 300]), Instant::ZERO)));
    assert_eq!(machine.streams.searches.get(), before);
    write(&mut machine, &data(599, 0, &[1; 300]), Instant::ZERO);
    assert_eq!((machine.streams.searches.get(), machine.has_failed()), (before + 1, true), "of one that ended");
}

#[test]
fn a_call_that_was_answered_while_it_waited_for_memory_is_not_refused_too() {
    let (mut machine, memory) = bounded(5_000, 1_000);
    let mut others = ReceiveReservation::new(Some(Rc::clone(&memory) as Rc<dyn ReceiveBudget>));
    others.grow(4_000).unwrap();
    // A quarter of a message fills the window and all memory.
    let first = [&[0, 0, 0, 0x0f, 0xa0][..], &[1; 495]].concat();
    write(&mut machine, &[call(1, 0), data(1, 0, &first), data(1, 0, &[1; 500])].concat(), Instant::ZERO);
    machine.handle_timeout(Instant::ZERO);
    assert!(machine.poll_event(Instant::ZERO).is_none() && machine.poll_timeout() == Some(Instant::ZERO));
    let status = CallStatus { code: 13, text: "no".to_owned(), fields: Default::default() };
    machine.end_call(StreamId(1), Some(status), Instant::ZERO);
    let heads =
        |frames: Vec<(FrameHead, Vec<u8>)>| frames.iter().filter(|(head, _)| head.kind == FrameKind::Headers).count();
    assert_eq!(heads(sent(&mut machine, usize::MAX)), 1);
    machine.handle_timeout(Instant::ZERO + RECEIVE_WAIT_MAX);
    assert_eq!((heads(sent(&mut machine, usize::MAX)), machine.take_counts().memory_refusals), (0, 0));
}

#[cfg(debug_assertions)]
#[test]
#[should_panic(expected = "frames do not overlap")]
fn two_frames_in_progress_are_found() {
    let mut machine = machine(&[]);
    let content = data(1, 0, &[1; 300]);
    write(&mut machine, &[call(1, 0), content[..HEAD_SIZE + 10].to_vec()].concat(), Instant::ZERO);
    machine.reader.skip = 1;
    machine.handle_input(0, Instant::ZERO);
}

#[cfg(debug_assertions)]
#[test]
#[should_panic(expected = "room was lost or made")]
fn a_window_that_lost_room_is_found() {
    let mut machine = machine(&[]);
    write(&mut machine, &call(1, 0), Instant::ZERO);
    machine.streams.get_mut(StreamId(1)).unwrap().receive = ReceiveWindow::new(1);
    machine.handle_input(0, Instant::ZERO);
}

#[test]
fn the_stream_that_holds_the_most_is_reset_alone() {
    let (mut machine, memory) = bounded(10_000, 65_535);
    let part = |id, size| [request(id, 0, &[]), data(id, 0, &vec![1; size])].concat();
    write(&mut machine, &[part(1, 600), part(3, 900)].concat(), Instant::ZERO);
    // One that is worked on holds its message still.
    write(&mut machine, &[request(5, 0, &[]), data(5, frame::END_STREAM, &[1; 1_000])].concat(), Instant::ZERO);
    let taken = machine.take_memory(StreamId(5));
    assert_eq!((machine.heaviest_size(), machine.reset_heaviest(), machine.heaviest_size()), (1_000, true, 900));
    let event = machine.poll_event(Instant::ZERO);
    assert!(matches!(event, Some(ConnectionEvent::Reset { code: ErrorCode::EnhanceYourCalm, .. })), "{event:?}");
    drop(taken);
    assert_eq!((machine.reset_heaviest(), machine.heaviest_size(), memory.reserved.get()), (true, 600, 600));
    // An answer that its client does not take counts as well.
    let reply = Reply::new(200, "a", vec![0; 70_000]);
    machine.send_reply(StreamId(1), reply, Instant::ZERO);
    sent(&mut machine, usize::MAX);
    assert_eq!(machine.heaviest_size(), 70_000 - 65_535 + 600);
    assert!(machine.reset_heaviest() && !machine.reset_heaviest() && machine.heaviest_size() == 0);
    assert_eq!((machine.take_counts().server_resets, memory.reserved.get()), (3, 0));
}

#[test]
fn a_call_has_its_trace_whether_or_not_its_fields_are_kept() {
    for keeps_call_fields in [false, true] {
        let settings = Http2Settings { keeps_call_fields, reads_trace_context: true, ..Http2Settings::default() };
        let mut machine = machine_with(settings, &[]);
        let trace = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
        write(&mut machine, &request(1, 0, &[("content-type", "application/grpc"), trace]), Instant::ZERO);
        assert!(machine.trace_context(StreamId(1)).is_some(), "fields are kept: {keeps_call_fields}");
    }
}

#[test]
fn the_fields_of_calls_below_a_path_are_kept() {
    for (beginning, is_kept) in [(&b"/"[..], true), (b"/no.such.Service/", false)] {
        let settings = Http2Settings { fields_kept_below: Some(beginning), ..Http2Settings::default() };
        let mut machine = machine_with(settings, &[]);
        write(&mut machine, &request(1, 0, &[("content-type", "application/grpc"), ("model", "m")]), Instant::ZERO);
        assert_eq!(machine.field(StreamId(1), "model").is_some(), is_kept);
        assert_eq!(machine.take_fields(StreamId(1)).is_some(), is_kept);
    }
}

#[test]
fn what_comes_on_a_stream_that_was_reset_for_what_it_holds_is_no_fault_when_its_work_has_ended() {
    let (mut machine, _memory) = bounded(10_000, 65_535);
    // A stream of messages: it is worked on, and goes on.
    let opened = [request(1, 0, &[]), data(1, 0, &[1; 900])].concat();
    write_to(&mut machine, &opened, Instant::ZERO, || MessageDelivery::Each);
    assert!(machine.reset_heaviest());
    machine.handle_gone(StreamId(1));
    write(&mut machine, &data(1, 0, &[1; 10]), Instant::ZERO);
    assert!(!machine.has_failed(), "others on the connection go on");
}

#[test]
fn an_idle_connection_holds_no_buffer_and_what_comes_then_is_taken() {
    let mut machine = machine(&[]);
    let second = Instant::ZERO + REST_TIMEOUT;
    write(&mut machine, &whole_call(1), Instant::ZERO);
    machine.send_answer(StreamId(1), [], Instant::ZERO);
    sent(&mut machine, usize::MAX);
    assert!(!machine.is_resting() && machine.poll_event(Instant::ZERO).is_none());
    assert!(machine.poll_timeout().is_some_and(|at| at <= second));
    machine.handle_timeout(second);
    assert!(machine.is_resting());
    let frames = whole_call(3);
    let (first, rest) = frames.split_at(frames.len() / 2);
    machine.handle_first_input(first, second);
    assert!(!machine.is_resting(), "a part of a frame is kept");
    while let Some(event) = machine.poll_event(second) {
        if let ConnectionEvent::Call { stream, .. } = event {
            machine.accept_call(stream, MessageDelivery::One(()));
        }
    }
    let events = write(&mut machine, rest, second);
    assert!(events.iter().any(|event| matches!(event, ConnectionEvent::Whole { .. })), "{events:?}");
    assert!(!machine.has_failed());
}
