//! FLAC files (RFC 9639), decoded with all their checksums. Own code: of the crates, claxon was released last in August 2020,
//! and symphonia's decoder brings four packages of a framework under MPL-2.0 for the work of one file.
//!
//! Memory is bounded by a block: 65,535 samples of 8 channels. A few bytes can stand for a block of equal samples, so the
//! sink bounds the count of all.

use base::error::Error;

use crate::audio::FrameSink;
use crate::audio::bits::BitReader;

/// An opened file.
pub struct Flac<'a> {
    /// Channels of a frame.
    pub channels: usize,
    /// The sample rate in Hz.
    pub sample_rate: u32,
    /// Samples of each channel; 0 if the file does not say.
    total: u64,
    bits: u32,
    /// The frames.
    frames: &'a [u8],
    /// False for a fuzz target, which makes no right checksums.
    has_checksums: bool,
}

/// The header of a frame.
struct FlacFrame {
    block_size: usize,
    channels: ChannelCoding,
    bits: u32,
}

/// The meaning of the subframes of a frame (section 9.1.3).
#[derive(Clone, Copy, PartialEq, Eq)]
enum ChannelCoding {
    Apart(usize),
    LeftSide,
    MidSide,
    SideRight,
}

impl<'a> Flac<'a> {
    /// Returns true if the bytes begin as a FLAC file does.
    pub fn is_known(file: &[u8]) -> bool {
        file.starts_with(b"fLaC")
    }

    /// Reads the metadata.
    ///
    /// # Errors
    /// `InvalidArgument` for a file that is malformed.
    pub fn open(file: &'a [u8]) -> Result<Self, Error> {
        let mut rest = file.get(4..).unwrap_or_default();
        let mut stream = None;
        loop {
            let Some(([kind, a, b, c], after)) = rest.split_first_chunk() else { return Err(wrong("has no end")) };
            let size = u32::from_be_bytes([0, *a, *b, *c]) as usize;
            let Some((block, after)) = after.split_at_checked(size) else { return Err(wrong("has no end")) };
            rest = after;
            // The first block describes the stream (section 8.2); the others are for players.
            if stream.is_none() {
                let block = block.first_chunk::<18>().filter(|_| kind & 0x7F == 0);
                stream = Some(block.ok_or_else(|| wrong("does not begin with a STREAMINFO block"))?);
            }
            if kind & 0x80 != 0 {
                break;
            }
        }
        let mut reader = BitReader::new(stream.and_then(|block| block.get(10..)).unwrap_or_default());
        let mut field = |size| reader.bits(size).unwrap_or(0);
        let (sample_rate, channels, bits, total) =
            (field(20) as u32, field(3) as usize + 1, field(5) as u32 + 1, field(36));
        if sample_rate == 0 || bits < 4 {
            return Err(Error::invalid(format!("FLAC: the file has {sample_rate} Hz and {bits} bits for a sample")));
        }
        Ok(Self { channels, sample_rate, total, bits, frames: rest, has_checksums: true })
    }

    /// The same, but checksums are passed over.
    ///
    /// # Errors
    /// As [`Self::open`].
    #[cfg(any(test, feature = "fuzz"))]
    pub fn open_unsummed(file: &'a [u8]) -> Result<Self, Error> {
        Ok(Self { has_checksums: false, ..Self::open(file)? })
    }

    /// The count of its frames: samples of each channel. `None` if the file does not say.
    pub fn frame_count(&self) -> Option<usize> {
        usize::try_from(self.total).ok().filter(|total| *total > 0)
    }

    /// Gives all frames to `sink`.
    ///
    /// # Errors
    /// Those of `sink`, and `InvalidArgument` if the file is malformed or ends too early.
    pub fn read(&self, sink: &mut FrameSink<'_>) -> Result<(), Error> {
        let mut rest = self.frames;
        let mut left = self.frame_count().unwrap_or(usize::MAX);
        let (mut planes, mut frames) = (Vec::new(), Vec::new());
        while left > 0 && !(rest.is_empty() && self.total == 0) {
            let (frame, size) = self.frame(rest, &mut planes)?;
            let count = frame.block_size.min(left);
            interleave(&planes, &frame, count, &mut frames)?;
            sink(&frames)?;
            left -= count;
            rest = rest.get(size..).unwrap_or_default();
        }
        Ok(())
    }

    /// Decodes a frame to a plane for each channel, and returns its size in bytes too.
    fn frame(&self, bytes: &[u8], planes: &mut Vec<Vec<i64>>) -> Result<(FlacFrame, usize), Error> {
        let end = || wrong("ends in the middle of a frame, or a frame is malformed");
        let mut reader = BitReader::new(bytes);
        let frame = self.header(bytes, &mut reader)?;
        let count = match frame.channels {
            ChannelCoding::Apart(count) => count,
            _ => 2,
        };
        if count != self.channels {
            return Err(Error::invalid(format!("FLAC: a frame has {count} channels, but the file {}", self.channels)));
        }
        planes.resize_with(count, Vec::new);
        for (index, plane) in planes.iter_mut().enumerate() {
            // The difference of two channels needs a bit more.
            let is_side = matches!(
                (frame.channels, index),
                (ChannelCoding::LeftSide | ChannelCoding::MidSide, 1) | (ChannelCoding::SideRight, 0)
            );
            plane.clear();
            subframe(&mut reader, frame.bits + u32::from(is_side), frame.block_size, plane).ok_or_else(end)?;
        }
        reader.align();
        let size = reader.position();
        let sum = reader.bits(16).ok_or_else(end)?;
        if self.has_checksums && bytes.get(..size).map(crc16).map(u64::from) != Some(sum) {
            return Err(wrong("has a frame with a wrong checksum"));
        }
        Ok((frame, size + 2))
    }

    /// Reads the header of a frame (section 9.1).
    fn header(&self, bytes: &[u8], reader: &mut BitReader<'_>) -> Result<FlacFrame, Error> {
        let bad = || wrong("has a malformed frame");
        let mut field = |size| reader.bits(size).ok_or_else(|| wrong("ends before its last sample"));
        // The sync code, a reserved bit, and one that says if the number that follows counts frames or samples.
        if field(15)? != 0x7FFC {
            return Err(bad());
        }
        field(1)?;
        let (size_code, rate_code, channel_code, bits_code) = (field(4)?, field(4)?, field(4)?, field(3)?);
        if field(1)? != 0 || size_code == 0 || rate_code == 15 {
            return Err(bad());
        }
        // A number of up to 36 bits, as UTF-8 writes characters.
        let first = (field(8)? as u8).leading_ones();
        if first == 1 || first > 7 {
            return Err(bad());
        }
        for _ in 1..first.max(1) {
            if field(8)? & 0xC0 != 0x80 {
                return Err(bad());
            }
        }
        let block_size = match size_code {
            1 => 192,
            2..=5 => 144 << size_code,
            6 => field(8)? as usize + 1,
            7 => field(16)? as usize + 1,
            _ => 1 << size_code,
        };
        match rate_code {
            12 => field(8)?,
            13 | 14 => field(16)?,
            _ => 0,
        };
        let channels = match channel_code {
            0..=7 => ChannelCoding::Apart(channel_code as usize + 1),
            8 => ChannelCoding::LeftSide,
            9 => ChannelCoding::SideRight,
            10 => ChannelCoding::MidSide,
            _ => return Err(bad()),
        };
        let bits = match bits_code {
            0 => self.bits,
            1 => 8,
            2 => 12,
            4 => 16,
            5 => 20,
            6 => 24,
            7 => 32,
            _ => return Err(bad()),
        };
        let sum = field(8)?;
        let summed = bytes.get(..reader.position().saturating_sub(1));
        if self.has_checksums && summed.map(crc8).map(u64::from) != Some(sum) {
            return Err(wrong("has a frame header with a wrong checksum"));
        }
        if block_size > BLOCK_SIZE_MAX {
            return Err(bad());
        }
        Ok(FlacFrame { block_size, channels, bits })
    }
}

/// Samples of a channel in a frame (section 9.1.1).
const BLOCK_SIZE_MAX: usize = 65_535;

/// Undoes the coding of the channels, and writes FP32 from -1 to 1.
fn interleave(planes: &[Vec<i64>], frame: &FlacFrame, count: usize, out: &mut Vec<f32>) -> Result<(), Error> {
    let bound = 1_i64 << (frame.bits - 1);
    #[expect(clippy::cast_precision_loss, reason = "a power of two")]
    let scale = 1.0 / bound as f32;
    let mut faults = 0;
    #[expect(clippy::cast_precision_loss, reason = "libsndfile rounds samples of 32 bits to FP32 too")]
    let mut number = |value: i64| {
        faults |= value.wrapping_add(bound) as u64 >> frame.bits;
        // Bits beyond 32 are in `faults`.
        value as i32 as f32 * scale
    };
    out.clear();
    out.resize(planes.len() * count, 0.0);
    match (planes, frame.channels) {
        (planes, ChannelCoding::Apart(_)) => {
            for (index, plane) in planes.iter().enumerate() {
                for (place, value) in out.iter_mut().skip(index).step_by(planes.len()).zip(plane) {
                    *place = number(*value);
                }
            }
        }
        ([first, second], coding) => {
            for (place, (first, second)) in out.as_chunks_mut().0.iter_mut().zip(first.iter().zip(second)) {
                let [left, right] = match coding {
                    ChannelCoding::LeftSide => [*first, first.wrapping_sub(*second)],
                    ChannelCoding::SideRight => [first.wrapping_add(*second), *second],
                    _ => {
                        // The lowest bit of the sum is that of the difference.
                        let sum = first.wrapping_shl(1) | (second & 1);
                        [sum.wrapping_add(*second) >> 1, sum.wrapping_sub(*second) >> 1]
                    }
                };
                *place = [number(left), number(right)];
            }
        }
        _ => {}
    }
    if faults != 0 {
        return Err(wrong("has a sample that is larger than its bits allow"));
    }
    Ok(())
}

/// Decodes the samples of one channel (section 9.2). `None` if they are malformed.
fn subframe(reader: &mut BitReader<'_>, bits: u32, block_size: usize, out: &mut Vec<i64>) -> Option<()> {
    if reader.bits(1)? != 0 {
        return None;
    }
    let kind = reader.bits(6)?;
    let wasted = match reader.bits(1)? {
        0 => 0,
        _ => u32::try_from(reader.unary()?).ok()?.checked_add(1)?,
    };
    let bits = bits.checked_sub(wasted).filter(|bits| *bits > 0)?;
    match kind {
        0 => {
            let value = reader.signed(bits)?;
            out.resize(block_size, value);
        }
        1 => verbatim(reader, bits, block_size, out)?,
        8..=12 => {
            let order = kind as usize - 8;
            let coefficients: &[i64] = [&[][..], &[1], &[2, -1], &[3, -3, 1], &[4, -6, 4, -1]].get(order)?;
            verbatim(reader, bits, order.min(block_size), out)?;
            residual(reader, block_size, order, out)?;
            predict(out, coefficients, 0);
        }
        32..=63 => {
            let order = kind as usize - 31;
            verbatim(reader, bits, order.min(block_size), out)?;
            let precision = reader.bits(4)? as u32 + 1;
            let shift = u32::try_from(reader.signed(5)?).ok()?;
            if precision == 16 {
                return None;
            }
            let mut coefficients = [0; 32];
            let coefficients = coefficients.get_mut(..order)?;
            for coefficient in coefficients.iter_mut() {
                *coefficient = reader.signed(precision)?;
            }
            residual(reader, block_size, order, out)?;
            predict(out, coefficients, shift);
        }
        _ => return None,
    }
    if wasted > 0 {
        for value in out {
            *value = value.wrapping_shl(wasted);
        }
    }
    Some(())
}

fn verbatim(reader: &mut BitReader<'_>, bits: u32, count: usize, out: &mut Vec<i64>) -> Option<()> {
    for _ in 0..count {
        out.push(reader.signed(bits)?);
    }
    Some(())
}

/// Appends the differences from the prediction to the first `order` samples (section 9.2.7).
fn residual(reader: &mut BitReader<'_>, block_size: usize, order: usize, out: &mut Vec<i64>) -> Option<()> {
    let parameter_size = match reader.bits(2)? {
        0 => 4,
        1 => 5,
        _ => return None,
    };
    let partition_order = reader.bits(4)? as u32;
    let partition = block_size >> partition_order;
    if partition << partition_order != block_size || partition < order {
        return None;
    }
    for index in 0..1_usize << partition_order {
        let count = if index == 0 { partition - order } else { partition };
        let parameter = reader.bits(parameter_size)? as u32;
        if parameter == (1 << parameter_size) - 1 {
            let size = reader.bits(5)? as u32;
            verbatim(reader, size, count, out)?;
            continue;
        }
        for _ in 0..count {
            let high = reader.unary()?;
            // A difference has 32 bits (section 9.2.7.3).
            let value = (high << parameter) | reader.bits(parameter)?;
            if high >> (32 - parameter) != 0 {
                return None;
            }
            out.push((value >> 1).cast_signed() ^ -(value & 1).cast_signed());
        }
    }
    Some(())
}

/// Adds the prediction to each sample after the first ones: the sum of those before it, the last one first, by
/// `coefficients`. Samples of malformed files wrap.
fn predict(samples: &mut [i64], coefficients: &[i64], shift: u32) {
    match coefficients.len() {
        0 => {}
        1..=4 => predict_by::<4>(samples, coefficients, shift),
        5..=8 => predict_by::<8>(samples, coefficients, shift),
        9..=12 => predict_by::<12>(samples, coefficients, shift),
        _ => predict_by::<32>(samples, coefficients, shift),
    }
}

/// The same with at most `N` coefficients, so that the loop over them is unrolled. The first `N` samples may have fewer before
/// them.
fn predict_by<const N: usize>(samples: &mut [i64], coefficients: &[i64], shift: u32) {
    let mut weights = [0_i64; N];
    for (weight, coefficient) in weights.iter_mut().rev().zip(coefficients) {
        *weight = *coefficient;
    }
    for index in coefficients.len()..N.min(samples.len()) {
        let Some((before, [sample, ..])) = samples.split_at_mut_checked(index) else { return };
        let sum = before.iter().rev().zip(coefficients).fold(0_i64, |sum, (a, b)| sum.wrapping_add(a.wrapping_mul(*b)));
        *sample = sample.wrapping_add(sum >> shift);
    }
    for start in 0..samples.len().saturating_sub(N) {
        let rest = samples.get_mut(start..).unwrap_or_default();
        let Some((before, [sample, ..])) = rest.split_first_chunk_mut::<N>() else { return };
        let sum = before.iter().zip(&weights).fold(0_i64, |sum, (a, b)| sum.wrapping_add(a.wrapping_mul(*b)));
        *sample = sample.wrapping_add(sum >> shift);
    }
}

/// The sum over the header of a frame, with the polynomial x⁸ + x² + x + 1.
fn crc8(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| {
        (0..8).fold(sum ^ byte, |sum: u8, _| if sum & 0x80 == 0 { sum << 1 } else { sum << 1 ^ 0x07 })
    })
}

/// The sum over a frame, with the polynomial x¹⁶ + x¹⁵ + x² + 1.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |sum: u16, byte| {
        let [high, low] = sum.to_be_bytes();
        u16::from_be_bytes([low, 0]) ^ CRC16.get(usize::from(high ^ byte)).copied().unwrap_or(0)
    })
}

/// The sums over each byte.
const CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut sum = (index as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            sum = if sum & 0x8000 == 0 { sum << 1 } else { sum << 1 ^ 0x8005 };
            bit += 1;
        }
        #[expect(clippy::indexing_slicing, reason = "the compiler runs it, and `get_mut` is not for it")]
        {
            table[index] = sum;
        }
        index += 1;
    }
    table
};

fn wrong(what: &str) -> Error {
    Error::invalid(format!("FLAC: the file {what}"))
}
