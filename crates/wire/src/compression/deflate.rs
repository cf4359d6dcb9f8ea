//! Compresses a message in steps. The output is parts of at most a slice each, so that no part is
//! copied to make it larger.

use bytes::Bytes;
use flate2::{Compress, Compression, FlushCompress, Status};
use zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd_safe::{CCtx, InBuffer, OutBuffer};

use crate::compression::Coding;
use crate::limits::DEFLATE_SLICE;

/// Bytes that are compressed in one turn of a shard at the low level: a millisecond at worst.
const DEFLATE_LOW_SLICE: usize = 32 * 1024;

/// The time spent on making a message smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeflateLevel {
    /// Little.
    Low,
    /// As much as gzip's default.
    Medium,
    /// The most.
    High,
}

impl DeflateLevel {
    /// Bytes that one step compresses.
    pub const fn slice_size(self) -> usize {
        match self {
            Self::Low => DEFLATE_LOW_SLICE,
            Self::Medium | Self::High => DEFLATE_SLICE,
        }
    }

    /// Level 1 has codes that do not fit the input, and makes tensors larger than they were. Level
    /// 9 takes three times as long as 8 for bytes of few values, and a slice of it takes too long
    /// for a shard.
    const fn of_deflate(self) -> Compression {
        Compression::new(match self {
            Self::Low => 2,
            Self::Medium => 6,
            Self::High => 8,
        })
    }

    const fn of_zstd(self) -> i32 {
        match self {
            Self::Low => 1,
            Self::Medium => 3,
            Self::High => 9,
        }
    }
}

/// The reason why a message cannot be compressed: the encoder failed, for lack of memory. It goes
/// out as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderFault;

/// A message being compressed.
pub struct Deflation {
    encoder: DeflateEncoder,
    /// The parts of the message.
    parts: Vec<Bytes>,
    slice_size: usize,
    /// The part that is read, and the offset in it.
    index: usize,
    at: usize,
    out: DeflateOutput,
}

enum DeflateEncoder {
    /// gzip or zlib.
    Deflate(Compress),
    Zstd(CCtx<'static>),
}

/// The compressed bytes: complete parts, and one that is being written.
#[derive(Default)]
struct DeflateOutput {
    done: Vec<Bytes>,
    space: Vec<u8>,
    filled: usize,
    size: usize,
    part_size: usize,
}

impl Deflation {
    /// Begins to compress a message of these parts.
    ///
    /// # Errors
    /// If there is no memory for an encoder.
    pub fn new(coding: Coding, level: DeflateLevel, parts: Vec<Bytes>) -> Result<Self, EncoderFault> {
        let size: usize = parts.iter().map(Bytes::len).sum();
        let encoder = match coding {
            Coding::Deflate => DeflateEncoder::Deflate(Compress::new(level.of_deflate(), true)),
            Coding::Gzip => DeflateEncoder::Deflate(Compress::new_gzip(level.of_deflate(), WINDOW_BITS)),
            Coding::Zstd => {
                let mut encoder = CCtx::try_create().ok_or(EncoderFault)?;
                encoder.init(level.of_zstd()).map_err(|_| EncoderFault)?;
                // Small messages then take small tables.
                let size = u64::try_from(size).ok();
                encoder.set_pledged_src_size(size).map_err(|_| EncoderFault)?;
                DeflateEncoder::Zstd(encoder)
            }
        };
        let out = DeflateOutput { part_size: size.clamp(PART_SIZE_MIN, PART_SIZE_MAX), ..DeflateOutput::default() };
        Ok(Self { encoder, parts, slice_size: level.slice_size(), index: 0, at: 0, out })
    }

    /// Compresses the next slice. Returns true if it was the last.
    ///
    /// # Errors
    /// If the encoder failed.
    pub fn step(&mut self) -> Result<bool, EncoderFault> {
        let mut budget = self.slice_size;
        while let Some(part) = self.parts.get(self.index) {
            let rest = part.get(self.at..).unwrap_or_default();
            let input = rest.get(..budget).unwrap_or(rest);
            let read = self.encoder.step(input, false, &mut self.out)?.0;
            (self.at, budget) = (self.at + read, budget - read);
            if self.at >= part.len() {
                (self.index, self.at) = (self.index + 1, 0);
            }
            if budget == 0 {
                return Ok(false);
            }
        }
        while !self.encoder.step(&[], true, &mut self.out)?.1 {}
        self.out.end_part();
        Ok(true)
    }

    /// Returns the bytes of output so far.
    pub const fn size(&self) -> usize {
        self.out.size
    }

    /// Returns the output, after the last step.
    pub fn into_parts(self) -> Vec<Bytes> {
        self.out.done
    }
}

/// The largest window of DEFLATE, as a power of two.
const WINDOW_BITS: u8 = 15;
/// Bytes of the smallest part: a message of no bytes has a head and an end.
const PART_SIZE_MIN: usize = 64;
/// Bytes of the largest part: few are written at a time by one system call.
const PART_SIZE_MAX: usize = 32 * 1024;

impl DeflateEncoder {
    /// Compresses as much as the next part has room for. Returns the number of bytes read, and true
    /// if the end is written.
    fn step(&mut self, input: &[u8], is_last: bool, out: &mut DeflateOutput) -> Result<(usize, bool), EncoderFault> {
        let space = out.space();
        let (read, written, is_end) = match self {
            Self::Deflate(encoder) => {
                let (read, written) = (encoder.total_in(), encoder.total_out());
                let flush = if is_last { FlushCompress::Finish } else { FlushCompress::None };
                let status = encoder.compress(input, space, flush).map_err(|_| EncoderFault)?;
                let moved = |now: u64, before: u64| usize::try_from(now - before).unwrap_or(usize::MAX);
                let (read, written) = (moved(encoder.total_in(), read), moved(encoder.total_out(), written));
                (read, written, status == Status::StreamEnd)
            }
            Self::Zstd(encoder) => {
                let directive =
                    if is_last { ZSTD_EndDirective::ZSTD_e_end } else { ZSTD_EndDirective::ZSTD_e_continue };
                let (mut input, mut output) = (InBuffer::around(input), OutBuffer::around(space));
                let left = encoder.compress_stream2(&mut output, &mut input, directive).map_err(|_| EncoderFault)?;
                (input.pos(), output.pos(), is_last && left == 0)
            }
        };
        out.handle_written(written);
        Ok((read, is_end))
    }
}

impl DeflateOutput {
    /// Room for the next bytes, never empty.
    fn space(&mut self) -> &mut [u8] {
        if self.filled >= self.space.len() {
            self.end_part();
            self.space = vec![0; self.part_size];
        }
        self.space.get_mut(self.filled..).unwrap_or_default()
    }

    fn handle_written(&mut self, count: usize) {
        (self.filled, self.size) = (self.filled + count, self.size + count);
    }

    fn end_part(&mut self) {
        let mut part = std::mem::take(&mut self.space);
        part.truncate(std::mem::take(&mut self.filled));
        if !part.is_empty() {
            self.done.push(part.into());
        }
    }
}
