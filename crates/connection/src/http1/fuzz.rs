//! Checks the properties that must hold for any bytes on a connection. Called by the fuzz target,
//! and by a test that replays its corpus. The same bytes in any pieces give the same messages and
//! the same refusal, and memory stays within the bounds.

use bytes::Bytes;

use crate::http1::{Http1Connection, Http1Settings};
use base::limits::READ_SIZE;
use base::time::Instant;
use wire::message::{BodyBuffer, Message, Reply};

/// Small, so that short inputs reach the bounds.
const SETTINGS: Http1Settings = Http1Settings {
    head_size_max: 512,
    body_size_max: 8 * 1024,
    aligned_after: Some("inference-header-content-length"),
    head_timeout: base::limits::HEAD_TIMEOUT,
    body_timeout: base::limits::BODY_TIMEOUT,
    idle_timeout: base::limits::IDLE_TIMEOUT,
};

/// Panics if the bytes of one client give different results when they are cut differently.
pub fn fuzz_connection(input: &[u8]) {
    let whole = transcript(SETTINGS, input, || usize::MAX);
    let bytewise = transcript(SETTINGS, input, || 1);
    assert_eq!(whole, bytewise, "byte by byte as in one piece");
    // Pieces that differ from input to input, and that any run can repeat.
    let mut seed = input.iter().fold(0x9e37_79b9_7f4a_7c15_u64, |seed, byte| mix(seed ^ u64::from(*byte)));
    let pieces = transcript(SETTINGS, input, || {
        seed = mix(seed);
        usize::try_from(seed % 61).unwrap_or(0) + 1
    });
    assert_eq!(whole, pieces, "in pieces as in one");
}

/// The output of a connection, in order: each message, and the refusal that ended it, if any. The
/// input is written in pieces of the sizes asked for.
pub(super) fn transcript(settings: Http1Settings, input: &[u8], mut piece_size: impl FnMut() -> usize) -> Vec<String> {
    let mut connection = Http1Connection::<PlainBody>::new(settings);
    let (mut lines, mut input) = (Vec::new(), input);
    let held_size_max = settings.head_size_max.max(READ_SIZE) + settings.body_size_max;
    loop {
        while poll(&mut connection, &mut lines) {}
        if connection.is_closing() {
            return lines;
        }
        if input.is_empty() {
            connection.handle_end();
            while poll(&mut connection, &mut lines) {}
            assert!(connection.is_closing(), "nothing is awaited after the end");
            return lines;
        }
        let space = connection.input_space(usize::MAX);
        assert!(!space.is_empty(), "a connection that awaits bytes takes them");
        let count = piece_size().min(space.len()).min(input.len());
        let (piece, rest) = input.split_at(count);
        if let Some(space) = space.get_mut(..count) {
            space.copy_from_slice(piece);
        }
        connection.handle_input(count, Instant::ZERO);
        assert!(connection.held_size() <= held_size_max, "memory is bounded");
        input = rest;
    }
}

/// Takes one message or refusal and answers it. Returns true if there was one.
fn poll(connection: &mut Http1Connection<PlainBody>, lines: &mut Vec<String>) -> bool {
    let reply = Reply { status: 200, ..Reply::default() };
    let mut out = Vec::new();
    match connection.poll_message(Instant::ZERO) {
        Ok(None) => return false,
        Ok(Some(message)) => {
            connection.encode_head(&reply, &mut out);
            let Message { method, path, fields, body } = message;
            lines.push(format!("{method:?} {path:?} {body:?} | {fields:?}"));
        }
        Err(refusal) => {
            connection.encode_head(&reply, &mut out);
            assert!(connection.is_closing(), "a refusal ends the connection");
            lines.push(refusal.to_string());
        }
    }
    !connection.is_closing()
}

/// SplitMix64.
const fn mix(seed: u64) -> u64 {
    let seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let seed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let seed = (seed ^ (seed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    seed ^ (seed >> 31)
}

/// A body without alignment.
pub(crate) struct PlainBody(Vec<u8>);

impl BodyBuffer for PlainBody {
    fn announced(_: usize, _: usize) -> Self {
        Self(Vec::new())
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn resize(&mut self, size: usize) {
        self.0.resize(size, 0);
    }

    fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn freeze(self) -> Bytes {
        Bytes::from(self.0)
    }
}
