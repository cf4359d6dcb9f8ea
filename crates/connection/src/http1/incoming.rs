//! One request whose head is known and whose body is coming in. Called by the connection. Large
//! runs of the body are received straight into its final buffer; small ones, and the framing of
//! chunks, go through the connection's own. Memory is taken as bytes arrive.
//!
//! ```text
//! Sized ──► done            ChunkLine ─(size 0)─► Trailers ──► done
//!                             ▲    │
//!                        ChunkEnd ◄┴─ ChunkData
//! ```

use bytes::Bytes;

use crate::input::InputBuffer;
use base::budget::{ReceiveReservation, Shortage};
use base::limits::{INPUT_SIZE_MIN, READ_SIZE};
use wire::http1::HttpRefusal;
use wire::http1::chunk::{self, Chunks};
use wire::http1::head::{self, BodyLength, RequestHead};
use wire::http1::section::SectionScan;
use wire::message::{BodyBuffer, Fields, Message};

/// Bytes of a body for which space is shown at first: a client that begins one and goes no further
/// holds little. Below a page: the allocator begins a large block anywhere in its first page.
pub(super) const SPACE_SIZE_MIN: usize = 3 * 1024;
/// Bytes of a body for which space is shown at once, as many as a system call brings on a ring: it is cleared before, which
/// takes as long as receiving.
pub(super) const SPACE_SIZE_MAX: usize = 512 * 1024;

/// A message with as much of its body as has come.
pub(super) struct IncomingMessage<B> {
    head: RequestHead,
    buffer: B,
    filled: usize,
    /// Memory for the bytes that the body has, and for those that `space` shows.
    memory: ReceiveReservation,
    part: NextPart,
    body_size_max: usize,
    head_size_max: usize,
}

/// The next part of the message.
enum NextPart {
    /// Bytes of a body of known length.
    Sized { left: usize },
    /// The line before a chunk.
    ChunkLine { chunks: Chunks },
    /// Bytes of a chunk.
    ChunkData { chunks: Chunks, left: usize },
    /// The CRLF after a chunk.
    ChunkEnd { chunks: Chunks },
    /// The trailers after the last chunk.
    Trailers { scan: SectionScan },
}

impl<B: BodyBuffer> IncomingMessage<B> {
    /// A message whose body begins with the next byte, by its head and its announced size ([`body_size`]).
    pub(super) fn new(
        head: RequestHead,
        size: usize,
        memory: ReceiveReservation,
        body_size_max: usize,
        head_size_max: usize,
    ) -> Self {
        let part = match head.length {
            BodyLength::Chunked => NextPart::ChunkLine { chunks: Chunks::default() },
            BodyLength::Sized(_) => NextPart::Sized { left: size },
        };
        let buffer = B::announced(head.aligned_at, size);
        Self { head, buffer, filled: 0, memory, part, body_size_max, head_size_max }
    }

    /// Returns true if nothing of the body has come, though something will.
    pub(super) const fn is_untouched(&self) -> bool {
        match self.part {
            NextPart::Sized { left } => left > 0 && self.filled == 0,
            NextPart::ChunkLine { .. } => self.filled == 0,
            _ => false,
        }
    }

    /// Returns true if the next bytes go straight into the body: nothing is pending before them,
    /// and enough of them follow that sparing the copy is worth a receive of its own.
    pub(super) const fn is_direct(&self, input: &InputBuffer) -> bool {
        input.is_empty() && self.run_size() >= INPUT_SIZE_MIN
    }

    /// Reserves memory for the bytes in the input, and for the space that `space` will show.
    pub(super) fn poll_memory(&mut self, input: &InputBuffer) -> Result<(), Shortage> {
        if !self.is_direct(input) {
            // Without framing in between, at most the bytes that are left belong to the body.
            let pending = input.pending().len();
            let count = if let NextPart::Sized { left } = self.part { pending.min(left) } else { pending };
            return self.memory.cover(self.filled.saturating_add(count));
        }
        match self.memory.cover(self.space_end()) {
            // The least is enough to go on.
            Err(_) => self.memory.cover(self.filled.saturating_add(self.run_size().min(SPACE_SIZE_MIN))),
            covered => covered,
        }
    }

    /// The memory of the body, once it is complete.
    pub(super) fn take_memory(&mut self) -> ReceiveReservation {
        debug_assert_eq!(self.run_size(), 0, "a complete body has no bytes left");
        self.memory.shrink_to(self.filled);
        debug_assert_eq!(self.memory.size(), self.filled, "a message takes along the memory of its body");
        std::mem::take(&mut self.memory)
    }

    /// Returns the space for the next bytes of the body. It grows with the bytes that have come,
    /// whatever length was declared.
    pub(super) fn space(&mut self, size_max: usize) -> &mut [u8] {
        let mut end = self.space_end().min(self.filled.saturating_add(size_max.max(READ_SIZE)));
        if self.memory.cover(end).is_err() {
            end = end.min(self.memory.size());
        }
        debug_assert!(end <= self.memory.size().max(self.filled), "space is shown for reserved memory only");
        if self.buffer.len() < end {
            self.buffer.resize(end);
        }
        self.buffer.as_mut_slice().get_mut(self.filled..end).unwrap_or_default()
    }

    /// Adds `count` bytes that were written to `space`.
    pub(super) fn handle_space(&mut self, count: usize) {
        debug_assert!(count <= self.buffer.len().saturating_sub(self.filled), "{count} bytes are past the space");
        let count = count.min(self.run_size()).min(self.buffer.len().saturating_sub(self.filled));
        self.filled += count;
        if let NextPart::Sized { left } | NextPart::ChunkData { left, .. } = &mut self.part {
            *left -= count;
        }
        self.invariants();
    }

    /// Checks the invariants after every change, in constant time.
    fn invariants(&self) {
        let (filled, size) = (self.filled, self.buffer.len());
        debug_assert!(filled <= size, "{filled} bytes are in a buffer of {size}");
        debug_assert!(filled.saturating_add(self.run_size()) <= self.body_size_max, "a body stays within its limit");
        debug_assert!(filled <= self.memory.size(), "{filled} bytes are here, {:?} reserved", self.memory);
    }

    /// Returns the size of the input that may have to be contiguous.
    pub(super) fn input_size_max(&self) -> usize {
        match self.part {
            NextPart::Trailers { .. } => self.head_size_max,
            _ => READ_SIZE,
        }
    }

    /// Takes what it can from the input. Returns true if the message is complete.
    pub(super) fn poll_complete(&mut self, input: &mut InputBuffer) -> Result<bool, HttpRefusal> {
        loop {
            self.copy_run(input);
            match &mut self.part {
                NextPart::Sized { left } => return Ok(*left == 0),
                NextPart::ChunkData { left, .. } if *left > 0 => return Ok(false),
                NextPart::ChunkData { chunks, .. } => {
                    self.part = NextPart::ChunkEnd { chunks: std::mem::take(chunks) };
                }
                NextPart::ChunkEnd { chunks } => {
                    if !chunk::decode_end(input.pending())? {
                        return Ok(false);
                    }
                    input.consume(2);
                    self.part = NextPart::ChunkLine { chunks: std::mem::take(chunks) };
                }
                NextPart::ChunkLine { chunks } => {
                    let Some(line) = chunks.decode_line(input.pending())? else { return Ok(false) };
                    input.consume(line.line_size);
                    let left = fit(self.filled, line.size, self.body_size_max)?;
                    self.part = match left {
                        0 => NextPart::Trailers { scan: SectionScan::trailers(self.head_size_max) },
                        _ => NextPart::ChunkData { chunks: std::mem::take(chunks), left },
                    };
                    self.invariants();
                }
                NextPart::Trailers { scan } => {
                    let Some(size) = scan.poll_end(input.pending())? else { return Ok(false) };
                    if size > 2 {
                        head::check_trailers(input.pending().get(..size).unwrap_or_default())?;
                    }
                    input.consume(size);
                    return Ok(true);
                }
            }
        }
    }

    /// The message, once it is complete.
    pub(super) fn into_message(self) -> Message {
        // The space shown never exceeds the body, so there is nothing to cut off.
        debug_assert_eq!(self.buffer.len(), self.filled);
        let RequestHead { method, path, fields, .. } = self.head;
        Message { method, path, fields, body: self.buffer.freeze() }
    }

    /// The path and the fields.
    pub(super) fn into_head(self) -> (Bytes, Fields) {
        (self.head.path, self.head.fields)
    }

    /// Bytes of memory that its body holds.
    pub(super) fn held_size(&self) -> usize {
        self.buffer.len()
    }

    /// Returns the end of the space that `space` shows, as far as there is memory for it.
    fn space_end(&self) -> usize {
        let more = self.filled.saturating_mul(3).clamp(SPACE_SIZE_MIN, SPACE_SIZE_MAX);
        self.filled.saturating_add(more.min(self.run_size()))
    }

    /// Bytes of body that follow without framing between them.
    const fn run_size(&self) -> usize {
        match self.part {
            NextPart::Sized { left } | NextPart::ChunkData { left, .. } => left,
            _ => 0,
        }
    }

    fn copy_run(&mut self, input: &mut InputBuffer) {
        let pending = input.pending();
        let run = pending.get(..self.run_size()).unwrap_or(pending);
        let (count, end) = (run.len(), self.filled.saturating_add(run.len()));
        if count == 0 {
            return;
        }
        if self.buffer.len() < end {
            self.buffer.resize(end);
        }
        if let Some(space) = self.buffer.as_mut_slice().get_mut(self.filled..end) {
            space.copy_from_slice(run);
        }
        input.consume(count);
        self.handle_space(count);
    }
}

/// The announced size of a body, which may come; 0 if it comes in chunks.
pub(super) fn body_size(
    head: &RequestHead,
    memory: &ReceiveReservation,
    body_size_max: usize,
) -> Result<usize, HttpRefusal> {
    let BodyLength::Sized(size) = head.length else { return Ok(0) };
    let size = fit(0, size, body_size_max)?;
    memory.check(size).map_err(refusal)?;
    Ok(size)
}

/// A body that there is no memory for.
pub(super) fn refusal(shortage: Shortage) -> HttpRefusal {
    HttpRefusal::memory(shortage.text(), shortage.is_passing())
}

/// Returns the size of `more` bytes after `filled`, if they fit into the largest body.
fn fit(filled: usize, more: u64, body_size_max: usize) -> Result<usize, HttpRefusal> {
    let total = u64::try_from(filled).unwrap_or(u64::MAX).saturating_add(more);
    match usize::try_from(total) {
        Ok(total) if total <= body_size_max => Ok(total - filled),
        _ => Err(HttpRefusal::body_size(total, body_size_max)),
    }
}
