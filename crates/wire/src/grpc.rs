//! gRPC's framing over HTTP/2 (`PROTOCOL-HTTP2.md`): the five-byte prefix of each message, timeouts, and the encoding
//! of status texts. [`Gatherer`] turns the chunks of a stream into messages, each in one aligned buffer. Called by the
//! shard and by `protocol/grpc/`; knows no service. Bounded by the message size that the caller passes.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;

use crate::message::BodyBuffer;
use base::limits::READ_SIZE;

/// Bytes before each message: a compressed flag and the size in four bytes.
pub const PREFIX_SIZE: usize = 5;

/// Bytes of a message in which the first payload is searched for. They are buffered until its offset is known.
const SEARCH_SIZE_MAX: usize = READ_SIZE;

/// The reason why the rest of a stream cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatherError {
    /// The message is compressed, and its call names no encoding.
    Compressed,
    /// The first byte of a message is neither 0 nor 1.
    Flag(u8),
    /// The message is larger than the limit.
    Size {
        /// Bytes announced by the prefix.
        size: usize,
        /// The limit in bytes.
        size_max: usize,
    },
}

/// Reassembles the messages of one stream. In each message the first payload of one field (the tensor contents) is
/// aligned in memory, so that a tensor can be used in place. Memory is allocated as bytes arrive, and not for the
/// size that a prefix announces.
#[derive(Debug)]
pub struct Gatherer<B> {
    size_max: usize,
    /// Number of the field to align.
    field: u32,
    /// True if messages may be compressed; true if the latest is.
    takes_compressed: bool,
    is_compressed: bool,
    /// The first `prefix_size` bytes of the next message's prefix.
    prefix: [u8; PREFIX_SIZE],
    prefix_size: usize,
    state: GatherState<B>,
}

/// ```text
/// Prefix ──► Search ──► Body ──► Prefix
///    └──────────┴── whole at once ──┘
/// ```
#[derive(Debug)]
enum GatherState<B> {
    /// Waits for the prefix.
    Prefix,
    /// Buffers the beginning until the offset of the payload is known: it determines the buffer's alignment.
    Search { search: PayloadSearch, start: Vec<u8>, size: usize },
    /// Receives into the message's buffer; `filled` of `size` bytes have arrived.
    Body { buffer: B, filled: usize, size: usize },
}

impl<B: BodyBuffer> Gatherer<B> {
    /// For messages of at most `size_max` bytes, in which the first payload of the top-level field number `field` is
    /// to be aligned.
    pub const fn new(size_max: usize, field: u32) -> Self {
        Self {
            size_max,
            field,
            takes_compressed: false,
            is_compressed: false,
            prefix: [0; PREFIX_SIZE],
            prefix_size: 0,
            state: GatherState::Prefix,
        }
    }

    /// The same for a call that names the encoding of its compressed messages.
    #[must_use]
    pub fn with_compressed(self, takes_compressed: bool) -> Self {
        Self { takes_compressed, ..self }
    }

    /// Takes bytes from the front of a chunk, up to the end of a message, which it returns. Call it until the chunk
    /// is empty.
    ///
    /// # Errors
    ///
    /// A [`GatherError`] if a prefix is invalid; the stream cannot be read on.
    #[inline]
    pub fn handle_chunk(&mut self, chunk: &mut &[u8]) -> Result<Option<Bytes>, GatherError> {
        if let GatherState::Prefix = self.state {
            let Some(size) = self.take_prefix(chunk)? else { return Ok(None) };
            self.state = GatherState::Search { search: PayloadSearch::new(self.field), start: Vec::new(), size };
        }
        if let GatherState::Search { search, start, size } = &mut self.state {
            let Some(buffer): Option<B> = take_start(search, start, *size, chunk) else { return Ok(None) };
            self.state = GatherState::Body { filled: buffer.len(), buffer, size: *size };
        }
        Ok(self.take_body(chunk))
    }

    /// Returns the size of the message in progress, and the number of its missing bytes, once its
    /// prefix is complete.
    #[inline]
    pub const fn progress(&self) -> Option<(usize, usize)> {
        match &self.state {
            GatherState::Prefix => None,
            GatherState::Search { start, size, .. } => Some((*size, size.saturating_sub(start.len()))),
            GatherState::Body { filled, size, .. } => Some((*size, size.saturating_sub(*filled))),
        }
    }

    /// Returns true if the message in progress has a buffer of its own, so that [`Self::space`] is
    /// not empty.
    #[inline]
    pub const fn is_filling(&self) -> bool {
        matches!(self.state, GatherState::Body { .. })
    }

    /// Space in the message's own buffer for at most `size_max` of the next bytes, so that they need not be copied
    /// there. Empty if there is no buffer yet, or the message is complete.
    #[inline]
    pub fn space(&mut self, size_max: usize) -> &mut [u8] {
        let GatherState::Body { buffer, filled, size } = &mut self.state else { return &mut [] };
        buffer.resize(filled.saturating_add(size_max).min(*size));
        buffer.as_mut_slice().get_mut(*filled..).unwrap_or_default()
    }

    /// `count` bytes were written to the front of [`Self::space`]. Returns the message if it is complete.
    #[inline]
    pub fn handle_space(&mut self, count: usize) -> Option<Bytes> {
        let GatherState::Body { buffer, filled, .. } = &mut self.state else { return None };
        *filled = filled.saturating_add(count).min(buffer.len());
        self.take_body(&mut &[][..])
    }

    /// Returns true if the message that was returned last is compressed.
    pub const fn is_compressed(&self) -> bool {
        self.is_compressed
    }

    /// Returns true if a message has begun and not ended, so that the stream must not end here.
    #[inline]
    pub const fn is_within_message(&self) -> bool {
        self.prefix_size > 0 || !matches!(self.state, GatherState::Prefix)
    }

    /// The size of the next message, once its prefix is complete.
    fn take_prefix(&mut self, chunk: &mut &[u8]) -> Result<Option<usize>, GatherError> {
        let space = self.prefix.get_mut(self.prefix_size..).unwrap_or_default();
        let count = space.len().min(chunk.len());
        space.iter_mut().zip(take(chunk, count)).for_each(|(to, from)| *to = *from);
        self.prefix_size += count;
        if self.prefix_size < PREFIX_SIZE {
            return Ok(None);
        }
        let [flag, size @ ..] = self.prefix;
        match flag {
            0 => self.is_compressed = false,
            1 if self.takes_compressed => self.is_compressed = true,
            1 => return Err(GatherError::Compressed),
            flag => return Err(GatherError::Flag(flag)),
        }
        let size = u32::from_be_bytes(size) as usize;
        if size > self.size_max {
            return Err(GatherError::Size { size, size_max: self.size_max });
        }
        self.prefix_size = 0;
        Ok(Some(size))
    }

    /// Appends bytes to the message and returns it if it is complete.
    fn take_body(&mut self, chunk: &mut &[u8]) -> Option<Bytes> {
        let GatherState::Body { buffer, filled, size } = &mut self.state else { return None };
        // `space` has extended the buffer beyond the bytes that were then written.
        if buffer.len() > *filled {
            buffer.resize(*filled);
        }
        let count = size.saturating_sub(*filled).min(chunk.len());
        buffer.extend_from_slice(take(chunk, count));
        *filled += count;
        if *filled < *size {
            return None;
        }
        match std::mem::replace(&mut self.state, GatherState::Prefix) {
            GatherState::Body { buffer, .. } => Some(buffer.freeze()),
            GatherState::Prefix | GatherState::Search { .. } => None,
        }
    }
}

/// Makes the buffer for a message, with the bytes so far, once the payload's offset is known or the search has been
/// given up; until then buffers bytes in `start`. A first chunk is searched in place: mostly it is enough, and is then
/// copied only once.
fn take_start<B: BodyBuffer>(
    search: &mut PayloadSearch,
    start: &mut Vec<u8>,
    size: usize,
    chunk: &mut &[u8],
) -> Option<B> {
    let count = size.saturating_sub(start.len()).min(chunk.len());
    let is_first = start.is_empty();
    let place = if is_first {
        search.poll(chunk.get(..count).unwrap_or_default())
    } else {
        let count = count.min(SEARCH_SIZE_MAX.saturating_sub(start.len()));
        start.extend_from_slice(take(chunk, count));
        search.poll(start)
    };
    let known = if is_first { count } else { start.len() };
    if place == PayloadPlace::Unknown && known < size && known < SEARCH_SIZE_MAX {
        if is_first {
            start.extend_from_slice(take(chunk, count));
        }
        return None;
    }
    let aligned_at = if let PayloadPlace::At(offset) = place { offset } else { 0 };
    let mut buffer = B::announced(aligned_at, size);
    buffer.extend_from_slice(start);
    Some(buffer)
}

/// Takes `count` bytes from the front of a chunk that has at least as many.
fn take<'a>(chunk: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (taken, rest) = chunk.split_at_checked(count).unwrap_or_default();
    *chunk = rest;
    taken
}

/// The place where a payload begins, as far as the first bytes of a message tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadPlace {
    /// At this byte offset.
    At(usize),
    /// Nowhere: the bytes are not a message.
    Nowhere,
    /// Not within the bytes so far.
    Unknown,
}

/// Searches a message for the payload of the first length-delimited field with a number, at the top level. Skips from
/// key to key; only an incomplete key is read again.
#[derive(Clone, Copy, Debug)]
pub struct PayloadSearch {
    field: u32,
    /// Offset of the next key.
    at: usize,
}

impl PayloadSearch {
    /// Searches for a field number.
    pub const fn new(field: u32) -> Self {
        Self { field, at: 0 }
    }

    /// Continues the search. `bytes` always begin with the message's first byte, and may be more than in the last call.
    pub fn poll(&mut self, bytes: &[u8]) -> PayloadPlace {
        while let Some(mut rest) = bytes.get(self.at..).filter(|rest| !rest.is_empty()) {
            let before = rest.len();
            let Some(key) = varint(&mut rest) else { return unfinished(rest) };
            let size = match key & 7 {
                0 => varint(&mut rest).map(|_| 0),
                1 => Some(8),
                2 => varint(&mut rest),
                5 => Some(4),
                _ => return PayloadPlace::Nowhere,
            };
            let Some(size) = size else { return unfinished(rest) };
            let payload = self.at.saturating_add(before - rest.len());
            if key == u64::from(self.field) << 3 | 2 {
                return PayloadPlace::At(payload);
            }
            self.at = payload.saturating_add(usize::try_from(size).unwrap_or(usize::MAX));
        }
        PayloadPlace::Unknown
    }
}

/// A varint, if its last byte is there. Lenient about overflow: the message is read strictly later.
fn varint(rest: &mut &[u8]) -> Option<u64> {
    let size = rest.iter().take(VARINT_SIZE_MAX).position(|byte| *byte < 0x80)? + 1;
    let (digits, after) = rest.split_at_checked(size)?;
    *rest = after;
    Some(digits.iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f)))
}

/// An incomplete varint: more bytes may complete it, unless it is too long already.
const fn unfinished(rest: &[u8]) -> PayloadPlace {
    if rest.len() < VARINT_SIZE_MAX { PayloadPlace::Unknown } else { PayloadPlace::Nowhere }
}

const VARINT_SIZE_MAX: usize = 10;

/// The prefix of a message of `size` bytes; `None` if the size does not fit into 32 bits.
#[inline]
pub fn prefix(size: usize) -> Option<[u8; PREFIX_SIZE]> {
    let [a, b, c, d] = u32::try_from(size).ok()?.to_be_bytes();
    Some([0, a, b, c, d])
}

/// The same of a message that is compressed.
#[inline]
pub fn compressed_prefix(size: usize) -> Option<[u8; PREFIX_SIZE]> {
    prefix(size).map(|[_, a, b, c, d]| [1, a, b, c, d])
}

/// Parses `grpc-timeout`: at most eight digits and a unit. `None` if malformed.
pub fn timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let count = digits.iter().fold(0_u64, |count, digit| count * 10 + u64::from(digit - b'0'));
    Some(match unit {
        b'H' => Duration::from_secs(count * 3600),
        b'M' => Duration::from_secs(count * 60),
        b'S' => Duration::from_secs(count),
        b'm' => Duration::from_millis(count),
        b'u' => Duration::from_micros(count),
        b'n' => Duration::from_nanos(count),
        _ => return None,
    })
}

/// The value of `grpc-message` for a text: `%` and everything but printable ASCII is percent-encoded.
pub fn encode_status_text(text: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'%';
    if text.bytes().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len().saturating_mul(3));
    for byte in text.bytes() {
        if is_plain(byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.extend([byte >> 4, byte & 15].map(|digit| char::from(hex_digit(digit))));
        }
    }
    Cow::Owned(out)
}

const fn hex_digit(digit: u8) -> u8 {
    if digit < 10 { b'0' + digit } else { b'A' + digit - 10 }
}

#[cfg(test)]
mod tests {
    use bytes::Buf;

    use super::*;

    /// Records the offset it was asked to align.
    #[derive(Debug, Default)]
    struct Noted {
        bytes: Vec<u8>,
        aligned_at: usize,
    }

    impl BodyBuffer for Noted {
        fn announced(aligned_at: usize, _: usize) -> Self {
            Self { bytes: Vec::new(), aligned_at }
        }

        fn len(&self) -> usize {
            self.bytes.len()
        }

        fn as_mut_slice(&mut self) -> &mut [u8] {
            &mut self.bytes
        }

        fn resize(&mut self, size: usize) {
            self.bytes.resize(size, 0);
        }

        fn extend_from_slice(&mut self, bytes: &[u8]) {
            self.bytes.extend_from_slice(bytes);
        }

        /// Puts the aligned offset before the bytes, for the test.
        fn freeze(self) -> Bytes {
            [&(self.aligned_at as u32).to_be_bytes()[..], &self.bytes].concat().into()
        }
    }

    /// The messages gathered from chunks, each with its aligned offset.
    fn gather(chunks: &[&[u8]]) -> Result<Vec<(usize, Vec<u8>)>, GatherError> {
        let mut gatherer: Gatherer<Noted> = Gatherer::new(100_000, 7);
        let mut messages = Vec::new();
        for chunk in chunks {
            let mut chunk = *chunk;
            loop {
                if let Some(mut message) = gatherer.handle_chunk(&mut chunk)? {
                    messages.push((message.get_u32() as usize, message.to_vec()));
                }
                if chunk.is_empty() {
                    break;
                }
            }
        }
        assert!(!gatherer.is_within_message());
        Ok(messages)
    }

    fn framed(messages: &[&[u8]]) -> Vec<u8> {
        messages.iter().flat_map(|message| [&prefix(message.len()).unwrap()[..], message].concat()).collect()
    }

    #[test]
    fn messages_split_anywhere_are_the_same_and_aligned_alike() {
        let first = [&[10, 3, b'a', b'b', b'c', 0x30, 0x80, 1, 58, 200, 1][..], &[9; 200], &[58, 1, 2]].concat();
        let messages = [&first[..], &[], &[10, 1, b'x'], &[58, 2, 1, 2]];
        let want: Vec<_> = [11, 0, 0, 2].into_iter().zip(messages.map(<[u8]>::to_vec)).collect();
        let all = framed(&messages);
        assert_eq!(gather(&[&all]), Ok(want.clone()));
        for at in 0..all.len() {
            let (before, after) = all.split_at(at);
            assert_eq!(gather(&[before, after]), Ok(want.clone()), "{at}");
            assert_eq!(gather(&[before, &[], after]), Ok(want.clone()), "{at}");
        }
        for size in 1..9 {
            assert_eq!(gather(&all.chunks(size).collect::<Vec<_>>()), Ok(want.clone()), "{size}");
        }
    }

    #[test]
    fn what_is_written_to_the_buffer_itself_is_part_of_the_message() {
        let message = [&[10, 1, b'x', 58, 100][..], &[7; 100]].concat();
        let all = framed(&[&message, &message]);
        let mut gatherer: Gatherer<Noted> = Gatherer::new(1_000, 7);
        assert!(gatherer.space(10).is_empty(), "it has no buffer yet");
        assert_eq!(gatherer.handle_chunk(&mut &all[..30]), Ok(None));
        let mut at = 30;
        let whole = loop {
            let space = gatherer.space(60);
            let count = space.len().min(33);
            space[..count].copy_from_slice(&all[at..at + count]);
            at += count;
            if let Some(message) = gatherer.handle_space(count) {
                break message;
            }
            let mut few = &all[at..at + 3];
            assert_eq!(gatherer.handle_chunk(&mut few), Ok(None));
            at += 3;
        };
        assert_eq!((at, &whole[4..]), (5 + message.len(), &message[..]));
        assert!(gatherer.space(10).is_empty() && !gatherer.is_within_message());
        assert!(gatherer.handle_chunk(&mut &all[at..]).is_ok_and(|message| message.is_some()));
    }

    #[test]
    fn a_payload_that_begins_late_is_found_up_to_a_bound() {
        for (size, aligned_at) in [(10_000, 10_006), (SEARCH_SIZE_MAX, 0)] {
            let mut message = vec![42]; // field 5
            message.extend([(size & 0x7f) as u8 | 0x80, (size >> 7 & 0x7f) as u8 | 0x80, (size >> 14) as u8]);
            message.extend(vec![1; size]);
            message.extend([58, 1, 2]);
            let all = framed(&[&message]);
            for chunk_size in [1, 1000] {
                let got = gather(&all.chunks(chunk_size).collect::<Vec<_>>());
                assert_eq!(got, Ok(vec![(aligned_at, message.clone())]), "{size} {chunk_size}");
            }
        }
    }

    #[test]
    fn prefixes_that_lie_are_refused_before_any_of_the_message() {
        let check = |bytes: &[u8], want| assert_eq!(gather(&[bytes]), Err(want), "{bytes:?}");
        check(&[1, 0, 0, 0, 1], GatherError::Compressed);
        check(&[2, 0, 0, 0, 1], GatherError::Flag(2));
        check(&[0, 0, 1, 0x86, 0xa1], GatherError::Size { size: 100_001, size_max: 100_000 });
        check(&[0, 255, 255, 255, 255], GatherError::Size { size: u32::MAX as usize, size_max: 100_000 });
    }

    #[test]
    fn a_stream_may_end_between_messages_only() {
        let all = framed(&[&[58, 2, 1, 2]]);
        for at in 0..=all.len() {
            let mut gatherer: Gatherer<Noted> = Gatherer::new(100, 7);
            let got = gatherer.handle_chunk(&mut &all[..at]);
            assert_eq!(got.map(|message| message.is_some()), Ok(at == all.len()));
            assert_eq!(gatherer.is_within_message(), at > 0 && at < all.len(), "{at}");
        }
    }

    #[test]
    fn the_first_payload_is_found_or_known_to_be_nowhere() {
        let check = |bytes: &[u8], want| {
            assert_eq!(PayloadSearch::new(7).poll(bytes), want, "{bytes:?}");
            let mut search = PayloadSearch::new(7);
            let by_byte =
                (1..=bytes.len()).map(|size| search.poll(&bytes[..size])).find(|place| *place != PayloadPlace::Unknown);
            assert_eq!(by_byte.unwrap_or(PayloadPlace::Unknown), want, "{bytes:?} byte by byte");
        };
        check(&[], PayloadPlace::Unknown);
        check(&[58], PayloadPlace::Unknown);
        check(&[58, 0], PayloadPlace::At(2));
        check(&[58, 0x80, 1], PayloadPlace::At(3));
        check(&[8, 1, 17, 0, 0, 0, 0, 0, 0, 0, 0, 29, 0, 0, 0, 0, 58, 5], PayloadPlace::At(18));
        check(&[10, 100, 58, 1], PayloadPlace::Unknown); // inside field 1
        check(&[56, 1, 58, 1], PayloadPlace::At(4)); // the number with another wire type
        check(&[11, 58, 1], PayloadPlace::Nowhere); // a group
        check(&[0x80; 10], PayloadPlace::Nowhere);
        check(&[10, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 58, 1], PayloadPlace::Unknown);
    }

    #[test]
    fn timeouts_have_digits_and_a_unit() {
        let check = |value: &str, want| assert_eq!(timeout(value.as_bytes()), want, "{value:?}");
        check("1S", Some(Duration::from_secs(1)));
        check("100m", Some(Duration::from_millis(100)));
        check("99999999H", Some(Duration::from_secs(99_999_999 * 3600)));
        check("2M", Some(Duration::from_secs(120)));
        check("7u", Some(Duration::from_micros(7)));
        check("0n", Some(Duration::ZERO));
        for value in ["", "S", "1", "1s", "100000000n", "-1S", "+1S", " 1S", "1 S", "1.5S", "1SS", "é"] {
            check(value, None);
        }
    }

    #[test]
    fn status_texts_are_printable_ascii() {
        let check = |text: &str, want: &str| assert_eq!(encode_status_text(text), want);
        check("", "");
        check("unexpected input 'a~b'", "unexpected input 'a~b'");
        check("100%\n", "100%25%0A");
        check("\u{7f}é", "%7F%C3%A9");
    }

    #[test]
    fn a_prefix_holds_32_bits() {
        assert_eq!(prefix(258), Some([0, 0, 0, 1, 2]));
        assert_eq!(prefix(1 << 32), None);
    }
}
