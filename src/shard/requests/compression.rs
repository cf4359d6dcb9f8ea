//! Inflates the bodies and messages of clients and compresses answers, in slices: a turn of the
//! shard has time for one slice, of any task, then other tasks run. Dropping a request meanwhile,
//! because its client left, stops the work. Memory for the output is reserved before it is taken.

use std::cell::Cell;

use bytes::Bytes;
use futures_lite::future::yield_now;
use smallvec::SmallVec;

use crate::budget::ReceiveReservation;
use crate::error::{Code, Error};
use crate::limits::{
    BODY_CLAIM_MAX, BODY_SIZE_MAX, COMPRESS_SIZE_MIN, COMPRESSIONS_MAX, INFLATE_FREE_SIZE, INFLATE_INPUT_SLICE,
    INFLATE_OUTPUT_SLICE, INFLATE_RATIO_MAX, TENSOR_ALIGNMENT,
};
use crate::protocol::grpc::encode::FramedParts;
use crate::protocol::grpc::message::RAW_INPUT_CONTENTS;
use crate::runtime::clock;
use crate::shard::Shard;
use crate::shard::requests::http2_link::Http2Link;
use crate::tensor::AlignedBuffer;
use crate::time::Instant;
use crate::wire::compression::deflate::{DeflateLevel, Deflation};
use crate::wire::compression::inflate::{InflateFault, Inflation};
use crate::wire::compression::{AcceptedCoding, Coding};
use crate::wire::grpc::{PREFIX_SIZE, PayloadPlace, PayloadSearch, compressed_prefix};
use crate::wire::http2::StreamId;
use crate::wire::message::Reply;

/// The kind of the input: it decides the limit, and the place where tensors begin.
#[derive(Clone, Copy, Debug)]
pub enum InflatedKind {
    /// The body of an HTTP message, whose byte at this offset is aligned.
    Body(usize),
    /// A message of gRPC.
    Message,
}

/// Inflates a body or message. `memory` is its reservation, which changes to the size of the
/// result.
///
/// # Errors
/// The fault in the input, or the limit that the result exceeds.
pub async fn inflate(
    shard: &Shard,
    coding: Coding,
    kind: InflatedKind,
    body: Bytes,
    memory: &mut ReceiveReservation,
) -> Result<Bytes, Error> {
    let cells = &shard.cells.compression;
    let outcome = inflate_slices(shard, coding, kind, body, memory).await;
    match &outcome {
        Ok(inflated) => {
            cells.inflated.add(1);
            cells.inflated_size.add(inflated.len() as u64);
        }
        Err(_) => {
            cells.inflate_refused.add(1);
            shard.count_shortage(memory);
        }
    }
    outcome
}

/// A message of gRPC, inflated if it is compressed.
///
/// # Errors
/// As [`inflate`].
pub async fn plain_message(
    shard: &Shard,
    coding: Option<Coding>,
    message: Bytes,
    memory: &mut ReceiveReservation,
) -> Result<Bytes, Error> {
    match coding {
        None => Ok(message),
        // Boxed: it is large, and most messages are plain.
        Some(coding) => Box::pin(inflate(shard, coding, InflatedKind::Message, message, memory)).await,
    }
}

async fn inflate_slices(
    shard: &Shard,
    coding: Coding,
    kind: InflatedKind,
    body: Bytes,
    memory: &mut ReceiveReservation,
) -> Result<Bytes, Error> {
    let size_max = kind.size_max(shard);
    let body_size = body.len();
    let mut inflation = Inflation::new(coding, body).map_err(|fault| refusal(coding, fault))?;
    let held = memory.size();
    // One byte beyond the limit tells that there is more.
    let room_max = size_max.saturating_add(1);
    let mut room = body_size.saturating_mul(4).clamp(FIRST_ROOM_MIN, INFLATE_OUTPUT_SLICE).min(room_max);
    let mut target = InflateTarget::new(kind.aligned_at(), body_size.saturating_mul(2).max(room).min(room_max));
    let mut is_placed = matches!(kind, InflatedKind::Body(_));
    loop {
        let end = target.filled.saturating_add(room);
        let own = held.saturating_add(inflation.memory_size());
        memory.cover(own.saturating_add(end))?;
        if end > target.capacity {
            // While it is moved, both copies exist.
            memory.cover(own.saturating_add(end).saturating_add(target.filled))?;
            target.grow(end, room_max).await;
        }
        shard.requests.compression.wait_turn().await;
        let (written, is_done) = inflation.step(target.space(end)).map_err(|fault| refusal(coding, fault))?;
        shard.requests.compression.spend(written.max(inflation.read_last().saturating_mul(INPUT_COST)));
        target.filled += written;
        if target.filled > size_max {
            return Err(kind.too_large(size_max));
        }
        if target.filled > INFLATE_FREE_SIZE && target.filled / INFLATE_RATIO_MAX > body_size {
            return Err(Error::too_large(format!(
                "the {} body of {body_size} bytes inflates to more than {INFLATE_RATIO_MAX} times as many. Send it \
                 with gzip, or as it is.",
                coding.name()
            )));
        }
        if !is_placed && written > 0 {
            target.place();
            is_placed = true;
        }
        if is_done {
            break;
        }
        room = INFLATE_OUTPUT_SLICE.min(room_max - target.filled);
        shard.requests.compression.end_slice().await;
    }
    drop(inflation);
    memory.shrink_to(target.filled);
    Ok(target.into_bytes())
}

/// The minimum room for output in the first step of inflation.
const FIRST_ROOM_MIN: usize = 1_024;
/// Inflated bytes that take as long as reading one compressed byte does at worst.
const INPUT_COST: usize = INFLATE_OUTPUT_SLICE / INFLATE_INPUT_SLICE;

/// The time that a shard's compression has per turn, and the part used. Lives on its shard.
#[derive(Default)]
pub struct CompressionShare {
    /// Answers that are being compressed.
    answers: Cell<usize>,
    /// The turn of the shard in which work was done last, and its amount, in bytes as inflation
    /// writes them.
    turn: Cell<Instant>,
    spent: Cell<usize>,
}

impl CompressionShare {
    /// Returns true if there is time for a slice in this turn.
    fn has_time(&self) -> bool {
        let turn = clock::turn();
        if self.turn.replace(turn) != turn {
            self.spent.set(0);
        }
        self.spent.get() < INFLATE_OUTPUT_SLICE
    }

    /// Waits for a turn that has time for a slice.
    async fn wait_turn(&self) {
        while !self.has_time() {
            yield_now().await;
        }
    }

    /// `size` bytes were compressed at a level.
    fn spend_deflate(&self, level: DeflateLevel, size: usize) {
        let slice_size = level.slice_size();
        self.spend(size.min(slice_size).saturating_mul(INFLATE_OUTPUT_SLICE / slice_size));
    }

    fn spend(&self, cost: usize) {
        self.spent.set(self.spent.get().saturating_add(cost));
    }

    /// Lets other tasks run after a whole slice. Without a ring there are no turns, and this yield
    /// alone does it.
    async fn end_slice(&self) {
        if self.spent.get() >= INFLATE_OUTPUT_SLICE {
            yield_now().await;
        }
    }
}

impl InflatedKind {
    fn size_max(self, shard: &Shard) -> usize {
        let limits = &shard.server_context.connection_limits;
        match self {
            Self::Body(_) => limits.http_input_size_max,
            Self::Message => limits.grpc_message_size_max,
        }
    }

    const fn aligned_at(self) -> usize {
        match self {
            Self::Body(aligned_at) => aligned_at,
            Self::Message => 0,
        }
    }

    fn too_large(self, size_max: usize) -> Error {
        let (what, flag) = match self {
            Self::Body(_) => ("", "--http-max-input-size"),
            Self::Message => (" of a message", "--grpc-max-message-size"),
        };
        // Triton's text.
        Error::too_large(format!(
            "Decompressed data size{what} exceeds the maximum allowed value of {size_max} bytes. Use {flag} to \
             increase the limit."
        ))
    }
}

fn refusal(coding: Coding, fault: InflateFault) -> Error {
    Error::invalid(match fault {
        // Triton's text.
        InflateFault::Empty => fault.to_string(),
        _ => format!("the {} body cannot be inflated: {fault}", coding.name()),
    })
}

/// The buffer for inflated bytes.
struct InflateTarget {
    buffer: AlignedBuffer,
    aligned_at: usize,
    capacity: usize,
    filled: usize,
}

impl InflateTarget {
    fn new(aligned_at: usize, capacity: usize) -> Self {
        Self { buffer: AlignedBuffer::with_alignment_at(aligned_at, capacity), aligned_at, capacity, filled: 0 }
    }

    /// The bytes after those that are written, up to `end`.
    fn space(&mut self, end: usize) -> &mut [u8] {
        self.buffer.resize(end);
        self.buffer.as_mut_slice().get_mut(self.filled..).unwrap_or_default()
    }

    /// Moves to a larger buffer, in slices: twice as large, and from a megabyte on to one of the
    /// default maximum of a body. Pages that are not written take no memory, but each outgrown
    /// buffer stays with the allocator for seconds: with repeated doubling, a body of 64 MiB would
    /// take 144.
    async fn grow(&mut self, least: usize, most: usize) {
        let doubled = self.capacity.saturating_mul(2).min(most).max(least);
        let all = most.min(BODY_SIZE_MAX.saturating_add(1)).max(least);
        let for_all =
            if doubled < BODY_CLAIM_MAX { None } else { AlignedBuffer::try_with_alignment_at(self.aligned_at, all) };
        self.capacity = if for_all.is_some() { all } else { doubled };
        let mut larger = for_all.unwrap_or_else(|| AlignedBuffer::with_alignment_at(self.aligned_at, doubled));
        let written = self.buffer.as_slice().get(..self.filled).unwrap_or_default();
        for (index, slice) in written.chunks(INFLATE_OUTPUT_SLICE).enumerate() {
            if index > 0 {
                yield_now().await;
            }
            larger.extend_from_slice(slice);
        }
        self.buffer = larger;
    }

    /// Aligns the tensors of a message, once its first slice tells their offset.
    fn place(&mut self) {
        let written = self.buffer.as_slice().get(..self.filled).unwrap_or_default();
        let PayloadPlace::At(offset) = PayloadSearch::new(RAW_INPUT_CONTENTS).poll(written) else { return };
        if offset % TENSOR_ALIGNMENT > 0 {
            let mut placed = AlignedBuffer::with_alignment_at(offset, self.capacity);
            placed.extend_from_slice(written);
            (self.buffer, self.aligned_at) = (placed, offset);
        }
    }

    fn into_bytes(mut self) -> Bytes {
        self.buffer.resize(self.filled);
        self.buffer.freeze()
    }
}

/// Compresses the body of an answer with the coding that its client prefers.
/// `Inference-Header-Content-Length` is unchanged: it counts bytes of the inflated body.
pub async fn deflate_reply(shard: &Shard, accepted: AcceptedCoding, mut reply: Reply) -> Reply {
    let Some(coding) = accepted.coding else { return reply };
    if let Some(parts) = deflate(shard, coding, DeflateLevel::Low, &reply.body, accepted.is_forced).await {
        reply.body = SmallVec::from_vec(parts);
        reply.fields.push(("Content-Encoding", Bytes::from_static(coding.name().as_bytes())));
    }
    reply
}

/// The compression of an answer's messages.
#[derive(Clone, Copy, Debug)]
pub struct AnswerCompression {
    /// The encoding that the head of the answer names.
    pub coding: Coding,
    /// The level, which bounds the time it takes.
    pub level: DeflateLevel,
}

/// The compression of a call's responses; its answer then names the coding.
pub fn answer_compression(shard: &Shard, link: &Http2Link, stream: StreamId) -> Option<AnswerCompression> {
    let level = shard.server_context.service.grpc_compression?;
    let mut connection = link.connection.borrow_mut();
    let coding = connection.accepted_coding(stream)?;
    connection.set_answer_coding(stream, coding);
    Some(AnswerCompression { coding, level })
}

/// Compresses a framed message of an answer, if its client accepts that.
pub async fn deflate_message(
    shard: &Shard,
    compression: Option<AnswerCompression>,
    message: FramedParts,
) -> FramedParts {
    let Some(AnswerCompression { coding, level }) = compression else { return message };
    let deflated = deflate(shard, coding, level, &without_prefix(&message), false).await;
    deflated.and_then(framed).unwrap_or(message)
}

/// The same at once, for a message that is sent where no task can wait. One that takes more than a
/// slice stays as it is.
pub fn deflate_message_now(shard: &Shard, compression: Option<AnswerCompression>, message: FramedParts) -> FramedParts {
    let Some(AnswerCompression { coding, level }) = compression else { return message };
    let size: usize = message.iter().map(Bytes::len).sum();
    if !(COMPRESS_SIZE_MIN..=level.slice_size()).contains(&size) || !shard.requests.compression.has_time() {
        return message;
    }
    shard.requests.compression.spend_deflate(level, size);
    let deflate = || {
        let mut deflation = Deflation::new(coding, level, without_prefix(&message)).ok()?;
        while !deflation.step().ok()? {}
        shard.cells.compression.saved_size.add(size.checked_sub(deflation.size() + PREFIX_SIZE)? as u64);
        shard.cells.compression.deflated.add(1);
        framed(deflation.into_parts())
    };
    deflate().unwrap_or(message)
}

/// The parts of a message without its prefix.
fn without_prefix(message: &[Bytes]) -> Vec<Bytes> {
    let mut skipped = PREFIX_SIZE;
    let rest = message.iter().map(|part| {
        let count = skipped.min(part.len());
        skipped -= count;
        part.slice(count..)
    });
    rest.filter(|part| !part.is_empty()).collect()
}

/// A compressed message with its prefix.
fn framed(parts: Vec<Bytes>) -> Option<FramedParts> {
    let prefix = compressed_prefix(parts.iter().map(Bytes::len).sum())?;
    Some([Bytes::copy_from_slice(&prefix)].into_iter().chain(parts).collect())
}

/// The parts of an answer, compressed; `None` if it is not worth it.
async fn deflate(
    shard: &Shard,
    coding: Coding,
    level: DeflateLevel,
    parts: &[Bytes],
    is_forced: bool,
) -> Option<Vec<Bytes>> {
    let size: usize = parts.iter().map(Bytes::len).sum();
    if size < COMPRESS_SIZE_MIN && !is_forced {
        return None;
    }
    let cells = &shard.cells.compression;
    let Some(_place) = CompressionPlace::take(&shard.requests.compression) else {
        cells.deflate_skipped.add(1);
        return None;
    };
    let mut deflation = Deflation::new(coding, level, parts.to_vec()).ok()?;
    loop {
        shard.requests.compression.wait_turn().await;
        let is_done = deflation.step().ok()?;
        shard.requests.compression.spend_deflate(level, size);
        if is_done {
            break;
        }
        if deflation.size() >= size && !is_forced {
            return None;
        }
        shard.requests.compression.end_slice().await;
    }
    if deflation.size() >= size && !is_forced {
        return None;
    }
    cells.deflated.add(1);
    cells.saved_size.add(size.saturating_sub(deflation.size()) as u64);
    Some(deflation.into_parts())
}

/// A place among the answers that a shard compresses at a time.
struct CompressionPlace<'a>(&'a CompressionShare);

impl<'a> CompressionPlace<'a> {
    fn take(share: &'a CompressionShare) -> Option<Self> {
        let taken = share.answers.get();
        (taken < COMPRESSIONS_MAX).then(|| {
            share.answers.set(taken + 1);
            Self(share)
        })
    }
}

impl Drop for CompressionPlace<'_> {
    fn drop(&mut self) {
        self.0.answers.set(self.0.answers.get() - 1);
    }
}

/// The refusal of a body in a coding that is not known.
pub fn unknown_coding() -> Error {
    // Triton's text; its status is 501.
    Error::new(Code::UnsupportedMedia, "Unsupported compression type")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_answers_are_compressed_at_a_time_and_no_more() {
        let share = CompressionShare::default();
        let mut places: Vec<_> = (0..COMPRESSIONS_MAX).map(|_| CompressionPlace::take(&share).unwrap()).collect();
        assert!(CompressionPlace::take(&share).is_none());
        places.pop();
        assert!(CompressionPlace::take(&share).is_some());
    }

    #[test]
    fn a_message_without_its_prefix_is_what_follows_it_however_it_is_cut() {
        let whole = Bytes::from_static(b"\0\0\0\0\x04abcd");
        for at in 0..whole.len() {
            let parts = [whole.slice(..at), whole.slice(at..)];
            assert_eq!(without_prefix(&parts).concat(), b"abcd", "{at}");
        }
        let framed = framed(vec![Bytes::from_static(b"xy"), Bytes::from_static(b"z")]).unwrap();
        assert_eq!(framed.concat(), b"\x01\0\0\0\x03xyz");
    }
}
