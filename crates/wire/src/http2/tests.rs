//! Tables for frames and settings.

use super::error::{ErrorCode, PeerFault};
use super::frame::{self, FrameHead, FrameKind};
use super::settings::{self, OurSettings, PeerSettings};
use super::{FRAME_SIZE_LEAST, StreamId};

#[test]
fn heads_come_back_and_the_reserved_bit_is_ignored() {
    for number in 0..=255_u8 {
        let mut bytes = vec![0x12, 0x34, 0x56, number, 0xa5, 0xff, 0xfe, 0xfd, 0xfc];
        let head = FrameHead::decode(&bytes).unwrap();
        assert_eq!((head.size, head.flags, head.stream), (0x12_3456, 0xa5, StreamId(0x7ffe_fdfc)));
        bytes[5] = 0x7f;
        let mut out = Vec::new();
        frame::encode_head(head.size, head.kind, head.flags, head.stream, &mut out);
        assert_eq!(out, bytes);
    }
    for size in 0..frame::HEAD_SIZE {
        assert_eq!(FrameHead::decode(&[0; frame::HEAD_SIZE][..size]), None);
    }
}

#[test]
fn each_kind_has_its_stream_and_its_size() {
    let check = |kind, flags, stream, size: usize, want: Option<(ErrorCode, bool)>| {
        let head = FrameHead { size, kind, flags, stream: StreamId(stream) };
        let got = head.check(FRAME_SIZE_LEAST as usize).err().map(|fault| (fault.code, fault.is_of_connection));
        assert_eq!(got, want, "{head:?}");
    };
    let (protocol, size) = (Some((ErrorCode::ProtocolError, true)), Some((ErrorCode::FrameSizeError, true)));
    for kind in [FrameKind::Data, FrameKind::Headers, FrameKind::Continuation, FrameKind::Unknown(77)] {
        check(kind, 0, 1, 16_384, None);
        check(kind, 0, 1, 16_385, size);
        check(kind, 0, 0, 9, if kind == FrameKind::Unknown(77) { None } else { protocol });
    }
    check(FrameKind::Data, frame::PADDED, 1, 0, size);
    check(FrameKind::Headers, frame::PADDED, 1, 0, size);
    check(FrameKind::Headers, frame::PADDED | frame::PRIORITY, 1, 5, size);
    check(FrameKind::Headers, frame::PADDED | frame::PRIORITY, 1, 6, None);
    check(FrameKind::Priority, 0, 0, 5, protocol);
    check(FrameKind::Priority, 0, 1, 5, None);
    check(FrameKind::Priority, 0, 1, 4, Some((ErrorCode::FrameSizeError, false)));
    for kind in [FrameKind::RstStream, FrameKind::WindowUpdate] {
        check(kind, 0, 1, 4, None);
        check(kind, 0, 1, 3, size);
        check(kind, 0, 1, 5, size);
    }
    check(FrameKind::RstStream, 0, 0, 4, protocol);
    check(FrameKind::WindowUpdate, 0, 0, 4, None);
    check(FrameKind::Settings, 0, 0, 12, None);
    check(FrameKind::Settings, 0, 0, 13, size);
    check(FrameKind::Settings, frame::ACK, 0, 6, size);
    check(FrameKind::Settings, 0, 1, 0, protocol);
    check(FrameKind::Ping, 0, 0, 8, None);
    check(FrameKind::Ping, 0, 0, 7, size);
    check(FrameKind::Ping, 0, 1, 8, protocol);
    check(FrameKind::GoAway, 0, 0, 8, None);
    check(FrameKind::GoAway, 0, 0, 7, size);
    check(FrameKind::GoAway, 0, 1, 8, protocol);
    check(FrameKind::PushPromise, 0, 1, 4, protocol);
}

#[test]
fn the_block_of_a_headers_frame_lies_between_priority_and_padding() {
    let block = |flags, payload: &[u8]| {
        let head = FrameHead { size: payload.len(), kind: FrameKind::Headers, flags, stream: StreamId(1) };
        head.headers_block(payload).map(<[u8]>::to_vec).map_err(|fault| fault.code)
    };
    assert_eq!(block(0, b"abc"), Ok(b"abc".to_vec()));
    assert_eq!(block(frame::PRIORITY, b"12345abc"), Ok(b"abc".to_vec()));
    assert_eq!(block(frame::PADDED, b"\x02abc__"), Ok(b"abc".to_vec()));
    assert_eq!(block(frame::PADDED | frame::PRIORITY, b"\x0212345abc__"), Ok(b"abc".to_vec()));
    assert_eq!(block(frame::PADDED, b"\x03abc"), Ok(Vec::new()));
    assert_eq!(block(frame::PADDED, b"\x04abc"), Err(ErrorCode::ProtocolError));
    assert_eq!(block(frame::PADDED | frame::PRIORITY, b"\x0112345"), Err(ErrorCode::ProtocolError));
}

#[test]
fn settings_are_applied_in_order_and_checked() {
    let apply = |entries: &[(u16, u32)]| {
        let (mut frame, mut settings) = (Vec::new(), PeerSettings::default());
        settings::encode(entries, &mut frame);
        settings.apply(&frame[frame::HEAD_SIZE..]).map(|()| settings).map_err(|fault: PeerFault| fault.code)
    };
    let want = PeerSettings { header_table_size: 9, initial_window_size: 8, frame_size_max: 16_385, streams_max: 0 };
    assert_eq!(apply(&[(1, 1), (4, 8), (1, 9), (3, 0), (6, 1), (2, 0), (77, 77), (5, 16_385)]), Ok(want));
    assert_eq!(apply(&[(2, 2)]), Err(ErrorCode::ProtocolError));
    assert_eq!(apply(&[(4, 0x8000_0000)]), Err(ErrorCode::FlowControlError));
    assert_eq!(apply(&[(5, 16_383)]), Err(ErrorCode::ProtocolError));
    assert_eq!(apply(&[(5, 0x100_0000)]), Err(ErrorCode::ProtocolError));
    assert_eq!(apply(&[(9, 2)]), Err(ErrorCode::ProtocolError));
    assert!(apply(&[(4, 0x7fff_ffff), (5, 0xff_ffff), (9, 1)]).is_ok());
    let ours = OurSettings { streams_max: 1, initial_window_size: 2, frame_size_max: 16_384, field_list_size_max: 3 };
    let mut frame = Vec::new();
    ours.encode(&mut frame);
    let want = PeerSettings { initial_window_size: 2, streams_max: 1, ..PeerSettings::default() };
    let mut settings = PeerSettings::default();
    settings.apply(&frame[frame::HEAD_SIZE..]).unwrap();
    assert_eq!((settings, frame.len()), (want, frame::HEAD_SIZE + 5 * frame::ENTRY_SIZE));
}

#[test]
fn codes_come_back_from_their_numbers() {
    for number in 0..14 {
        assert_eq!(ErrorCode::from_number(number) as u32, number);
    }
    assert_eq!(ErrorCode::from_number(14), ErrorCode::InternalError);
}
