//! Inflates a body in steps. The body is whole in memory; a step reads a slice of it and fills the
//! caller's slice, so that the caller bounds the memory and decides what runs in between.

use std::fmt;

use bytes::Bytes;
use flate2::{Decompress, FlushDecompress, Status};
use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer};

use crate::compression::Coding;
use crate::limits::INFLATE_MEMBERS_MAX;
use base::limits::INFLATE_INPUT_SLICE;

/// Bytes of a zstd body's window, as a power of two: every HTTP decoder must have it (RFC 9659).
const ZSTD_WINDOW_LOG_MAX: u32 = 23;

/// The reason why a body cannot be inflated: its client's mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InflateFault {
    /// It ends too early.
    Cut,
    /// It does not follow its coding's format, or its checksum is wrong.
    Damaged,
    /// It has no bytes.
    Empty,
    /// It has too many members.
    Members,
    /// Bytes follow its end.
    Trailing,
    /// It wants a larger window than is allowed.
    Window,
}

impl fmt::Display for InflateFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cut => f.write_str("it is cut off"),
            Self::Damaged => f.write_str("it is damaged, or has another encoding"),
            Self::Empty => f.write_str("nothing to be decompressed"),
            Self::Members => write!(f, "it has more than {INFLATE_MEMBERS_MAX} members"),
            Self::Trailing => f.write_str("bytes follow its end"),
            Self::Window => {
                write!(f, "it needs a window of more than {} bytes, compress without --long", 1 << ZSTD_WINDOW_LOG_MAX)
            }
        }
    }
}

/// A body being inflated.
pub struct Inflation {
    coding: Coding,
    body: Bytes,
    /// Bytes of the body that are read.
    at: usize,
    /// Bytes that the last step read.
    read_last: usize,
    /// Members that are complete.
    members: usize,
    decoder: InflateDecoder,
}

enum InflateDecoder {
    /// gzip, zlib or bare DEFLATE.
    Deflate(Decompress),
    Zstd(DCtx<'static>),
}

impl Inflation {
    /// Begins to inflate a body.
    ///
    /// # Errors
    /// An empty body. Lack of memory for a decoder is reported as a window that is too large.
    pub fn new(coding: Coding, body: Bytes) -> Result<Self, InflateFault> {
        if body.is_empty() {
            return Err(InflateFault::Empty);
        }
        let decoder = match coding {
            Coding::Deflate => InflateDecoder::Deflate(Decompress::new(is_zlib(&body))),
            Coding::Gzip => InflateDecoder::Deflate(Decompress::new_gzip(WINDOW_BITS)),
            Coding::Zstd => {
                let mut decoder = DCtx::try_create().ok_or(InflateFault::Window)?;
                let window = DParameter::WindowLogMax(ZSTD_WINDOW_LOG_MAX);
                decoder.set_parameter(window).map_err(|_| InflateFault::Window)?;
                InflateDecoder::Zstd(decoder)
            }
        };
        Ok(Self { coding, body, at: 0, read_last: 0, members: 0, decoder })
    }

    /// Inflates into `output`, which is not empty. Returns the number of bytes written, and true if
    /// these were the last. A step that is not the last may write nothing.
    ///
    /// # Errors
    /// The fault of the body.
    pub fn step(&mut self, output: &mut [u8]) -> Result<(usize, bool), InflateFault> {
        debug_assert!(!output.is_empty(), "a step has room to write");
        let rest = self.body.get(self.at..).unwrap_or_default();
        let input = rest.get(..INFLATE_INPUT_SLICE).unwrap_or(rest);
        let (read, written, is_end) = self.decoder.step(input, output)?;
        self.read_last = read;
        self.at += read;
        let is_all = self.at >= self.body.len();
        if !is_end {
            // Room was left, and no further input will fill it.
            return if is_all && written == 0 { Err(InflateFault::Cut) } else { Ok((written, false)) };
        }
        self.members += 1;
        match (is_all, self.coding) {
            (true, _) => Ok((written, true)),
            (false, Coding::Deflate) => Err(InflateFault::Trailing),
            (false, _) if self.members >= INFLATE_MEMBERS_MAX => Err(InflateFault::Members),
            (false, _) => {
                // Both formats may be written one after the other (RFC 1952 §2.2, RFC 8878 §3.1).
                if let InflateDecoder::Deflate(decoder) = &mut self.decoder {
                    *decoder = Decompress::new_gzip(WINDOW_BITS);
                }
                Ok((written, false))
            }
        }
    }

    /// Returns the bytes of memory that the decoder has now.
    pub fn memory_size(&self) -> usize {
        match &self.decoder {
            InflateDecoder::Deflate(_) => DEFLATE_DECODER_SIZE,
            InflateDecoder::Zstd(decoder) => decoder.sizeof(),
        }
    }

    /// Returns the bytes of the body that the last step read.
    pub const fn read_last(&self) -> usize {
        self.read_last
    }
}

/// The largest window of DEFLATE, as a power of two.
const WINDOW_BITS: u8 = 15;
/// Bytes of a decoder of DEFLATE: its window, and its tables.
const DEFLATE_DECODER_SIZE: usize = 64 * 1024;
/// zstd's code for a frame whose window is larger than was allowed (`zstd_errors.h`).
const ZSTD_WINDOW_TOO_LARGE: usize = 16;

impl InflateDecoder {
    /// Returns the numbers of bytes read and written, and true if a member ended.
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<(usize, usize, bool), InflateFault> {
        match self {
            Self::Deflate(decoder) => {
                let (read, written) = (decoder.total_in(), decoder.total_out());
                let status = decoder.decompress(input, output, FlushDecompress::None);
                let status = status.map_err(|_| InflateFault::Damaged)?;
                let moved = |now: u64, before: u64| usize::try_from(now - before).unwrap_or(usize::MAX);
                let (read, written) = (moved(decoder.total_in(), read), moved(decoder.total_out(), written));
                Ok((read, written, status == Status::StreamEnd))
            }
            Self::Zstd(decoder) => {
                let (mut input, mut output) = (InBuffer::around(input), OutBuffer::around(output));
                let left = decoder.decompress_stream(&mut output, &mut input).map_err(|code| {
                    let is_window = code.wrapping_neg() == ZSTD_WINDOW_TOO_LARGE;
                    if is_window { InflateFault::Window } else { InflateFault::Damaged }
                })?;
                Ok((input.pos(), output.pos(), left == 0))
            }
        }
    }
}

/// Returns true if a body begins with the head of zlib's format (RFC 1950 §2.2).
fn is_zlib(body: &[u8]) -> bool {
    match body {
        [method, flags, ..] => method & 0xf == 8 && u16::from_be_bytes([*method, *flags]) % 31 == 0,
        _ => false,
    }
}
