//! WAV files, read as libsndfile reads them: which bytes are samples, and their values as FP32, bit by bit.

use base::error::Error;

use crate::audio::FrameSink;

/// An opened file.
#[derive(Clone, Copy)]
pub struct Wav<'a> {
    /// Channels of a frame.
    pub channels: usize,
    /// The sample rate in Hz.
    pub sample_rate: u32,
    coding: SampleCoding,
    is_big_endian: bool,
    data: &'a [u8],
}

/// The coding of one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SampleCoding {
    Alaw,
    Double,
    /// Integers of this number of bytes; a single byte is unsigned.
    Integer(usize),
    Mulaw,
    Single,
}

/// The chunk `fmt `.
#[derive(Clone, Copy)]
struct WavFormat {
    channels: usize,
    sample_rate: u32,
    coding: SampleCoding,
}

impl<'a> Wav<'a> {
    /// Returns true if the bytes begin as a WAV file does.
    pub fn is_known(file: &[u8]) -> bool {
        let has = |at: usize, mark: &[u8; 4]| file.get(at..at + 4).is_some_and(|bytes| bytes == mark);
        (has(0, b"RIFF") || has(0, b"RIFX")) && has(8, b"WAVE")
    }

    /// Finds format and samples.
    ///
    /// # Errors
    /// `InvalidArgument` for a file that is malformed, or has a coding that is not supported.
    pub fn open(file: &'a [u8]) -> Result<Self, Error> {
        let is_big_endian = file.starts_with(b"RIFX");
        let number = |at: usize| {
            let bytes = file.get(at..).and_then(<[u8]>::first_chunk);
            bytes.map_or(0, |bytes| if is_big_endian { u32::from_be_bytes(*bytes) } else { u32::from_le_bytes(*bytes) })
        };
        let mut format = None;
        let mut data = None;
        // The chunks of libsndfile's wav_read_header, with its repairs: sizes beyond the file, a file that was not closed,
        // names that are no text.
        let mut at = 12_usize;
        while let Some(name) = file.get(at..).and_then(<[u8]>::first_chunk::<4>) {
            if at.saturating_add(4) >= file.len() || *name == [0; 4] {
                break;
            }
            let size = number(at + 4);
            let start = at + 8;
            let length = usize::try_from(size).unwrap_or(usize::MAX);
            match name {
                b"fmt " if format.is_none() => {
                    let chunk = file.get(start..start.saturating_add(length)).ok_or_else(|| wrong("has no end"))?;
                    format = Some(WavFormat::read(chunk, is_big_endian)?);
                }
                b"RIFF" | b"RIFX" => return Err(wrong("has a second file behind it")),
                b"data" => {
                    if format.is_none() || data.is_some() {
                        return Err(wrong("must have one \"fmt \" chunk and then one \"data\" chunk"));
                    }
                    let rest = file.get(start..).unwrap_or_default();
                    // Programs that stream write the size at the end, if they live to see it.
                    let is_open = size == 0 && number(4) == 8 && file.len() > 44;
                    data = Some(if is_open { rest } else { rest.get(..length).unwrap_or(rest) });
                }
                name if size >= 0xFFFF_0000 || !name.iter().all(|byte| (0x20..0x7F).contains(byte)) => {
                    // A byte too many or too few before it: look at the next one.
                    if size < 0xFFFF_0000 && !start.is_multiple_of(4) && length < file.len() {
                        at = start - 3 + (length & 1);
                        continue;
                    }
                    break;
                }
                _ => {}
            }
            at = start.saturating_add(length).saturating_add(length & 1);
        }
        let (Some(format), Some(data)) = (format, data) else { return Err(wrong("has no \"data\" chunk")) };
        if data.starts_with(b"wvpk") || data.starts_with(b"OggS") {
            return Err(wrong("holds WavPack or Ogg"));
        }
        let WavFormat { channels, sample_rate, coding } = format;
        Ok(Self { channels, sample_rate, coding, is_big_endian, data })
    }

    /// The count of its frames: samples of each channel.
    pub fn frame_count(&self) -> usize {
        self.data.len() / (self.channels * self.coding.size())
    }

    /// Gives all frames to `sink`.
    ///
    /// # Errors
    /// Those of `sink`.
    pub fn read(&self, sink: &mut FrameSink<'_>) -> Result<(), Error> {
        let frame_size = self.channels * self.coding.size();
        let whole = self.data.get(..self.frame_count() * frame_size).unwrap_or_default();
        let mut frames = Vec::new();
        for block in whole.chunks(BLOCK_FRAMES.saturating_mul(frame_size)) {
            frames.clear();
            self.convert(block, &mut frames);
            sink(&frames)?;
        }
        Ok(())
    }

    fn convert(&self, block: &[u8], out: &mut Vec<f32>) {
        match (self.coding, self.is_big_endian) {
            (SampleCoding::Alaw, _) => out.extend(block.iter().map(|byte| from_short(alaw(*byte)))),
            (SampleCoding::Mulaw, _) => out.extend(block.iter().map(|byte| from_short(mulaw(*byte)))),
            (SampleCoding::Double, false) => each(block, out, |bytes| f64::from_le_bytes(bytes) as f32),
            (SampleCoding::Double, true) => each(block, out, |bytes| f64::from_be_bytes(bytes) as f32),
            (SampleCoding::Single, false) => each(block, out, f32::from_le_bytes),
            (SampleCoding::Single, true) => each(block, out, f32::from_be_bytes),
            (SampleCoding::Integer(1), _) => each(block, out, |[byte]| (f32::from(byte) - 128.0) * (1.0 / 128.0)),
            (SampleCoding::Integer(2), false) => each(block, out, |bytes| from_short(i16::from_le_bytes(bytes))),
            (SampleCoding::Integer(2), true) => each(block, out, |bytes| from_short(i16::from_be_bytes(bytes))),
            (SampleCoding::Integer(3), false) => {
                each(block, out, |[a, b, c]| from_long(i32::from_le_bytes([0, a, b, c])))
            }
            (SampleCoding::Integer(3), true) => {
                each(block, out, |[a, b, c]| from_long(i32::from_be_bytes([a, b, c, 0])))
            }
            (SampleCoding::Integer(_), false) => each(block, out, |bytes| from_long(i32::from_le_bytes(bytes))),
            (SampleCoding::Integer(_), true) => each(block, out, |bytes| from_long(i32::from_be_bytes(bytes))),
        }
    }
}

impl WavFormat {
    fn read(chunk: &[u8], is_big_endian: bool) -> Result<Self, Error> {
        let short = |at: usize| {
            let bytes = chunk.get(at..).and_then(<[u8]>::first_chunk);
            bytes.map_or(0, |bytes| if is_big_endian { u16::from_be_bytes(*bytes) } else { u16::from_le_bytes(*bytes) })
        };
        if chunk.len() < 16 {
            return Err(wrong("has a \"fmt \" chunk that is too short"));
        }
        let (low, high) = if is_big_endian { (6, 4) } else { (4, 6) };
        let sample_rate = u32::from(short(low)) | u32::from(short(high)) << 16;
        let (channels, block_size, bits) = (usize::from(short(2)), usize::from(short(12)), usize::from(short(14)));
        if channels == 0 || channels > CHANNELS_MAX || sample_rate == 0 || i32::try_from(sample_rate).is_err() {
            return Err(Error::invalid(format!("WAV: the file has {channels} channels and {sample_rate} Hz")));
        }
        let integer = match bits.div_ceil(8) {
            size @ 1..=4 => Some(SampleCoding::Integer(size)),
            _ => None,
        };
        let float = if bits.div_ceil(8) == 8 { SampleCoding::Double } else { SampleCoding::Single };
        let tag = short(0);
        let coding = match (tag, chunk.get(24..40)) {
            (FORMAT_PCM, _) if bits == 24 && block_size == channels.saturating_mul(4) => {
                return Err(wrong(
                    "has 24 bits for a sample and 32 bits of space, which programs take for different codings",
                ));
            }
            (FORMAT_PCM, _) => integer,
            (FORMAT_FLOAT, _) => Some(float),
            (FORMAT_ALAW, _) => Some(SampleCoding::Alaw),
            (FORMAT_MULAW, _) => Some(SampleCoding::Mulaw),
            (FORMAT_EXTENSIBLE, Some(guid)) => {
                match (guid_tag(guid, is_big_endian), ambisonic_tag(guid, is_big_endian)) {
                    (Some(FORMAT_PCM), _) | (_, Some(FORMAT_PCM)) => integer,
                    (Some(FORMAT_FLOAT), _) | (_, Some(FORMAT_FLOAT)) => Some(float),
                    (Some(FORMAT_ALAW), _) => Some(SampleCoding::Alaw),
                    (Some(FORMAT_MULAW), _) => Some(SampleCoding::Mulaw),
                    _ => None,
                }
            }
            _ => None,
        };
        let Some(coding) = coding else {
            return Err(Error::invalid(format!(
                "WAV: the coding {tag:#x} with {bits} bits is not supported; PCM of 8 to 32 bits, floats, A-law and \
                 µ-law are"
            )));
        };
        Ok(Self { channels, sample_rate, coding })
    }
}

impl SampleCoding {
    const fn size(self) -> usize {
        match self {
            Self::Alaw | Self::Mulaw => 1,
            Self::Double => 8,
            Self::Integer(size) => size,
            Self::Single => 4,
        }
    }
}

/// Frames that are converted at once.
const BLOCK_FRAMES: usize = 4096;

/// Channels of a file: libsndfile's bound.
const CHANNELS_MAX: usize = 1024;

const FORMAT_PCM: u16 = 1;
const FORMAT_FLOAT: u16 = 3;
const FORMAT_ALAW: u16 = 6;
const FORMAT_MULAW: u16 = 7;
const FORMAT_EXTENSIBLE: u16 = 0xFFFE;

/// The fields of the GUID of a subformat: its coding, and the others.
fn guid_parts(guid: &[u8], is_big_endian: bool) -> Option<(u16, [u16; 2], [u8; 8])> {
    let (fields, rest) = guid.split_first_chunk::<8>()?;
    let rest = *rest.first_chunk::<8>()?;
    let [a, b, c, d, e, f, g, h] = *fields;
    let (first, second, third) = if is_big_endian {
        (u32::from_be_bytes([a, b, c, d]), u16::from_be_bytes([e, f]), u16::from_be_bytes([g, h]))
    } else {
        (u32::from_le_bytes([a, b, c, d]), u16::from_le_bytes([e, f]), u16::from_le_bytes([g, h]))
    };
    Some((u16::try_from(first).ok()?, [second, third], rest))
}

/// The coding in a GUID of Microsoft's.
fn guid_tag(guid: &[u8], is_big_endian: bool) -> Option<u16> {
    let (tag, fields, rest) = guid_parts(guid, is_big_endian)?;
    (fields == [0, 0x10] && rest == [0x80, 0, 0, 0xAA, 0, 0x38, 0x9B, 0x71]).then_some(tag)
}

/// The coding in a GUID of Ambisonic B.
fn ambisonic_tag(guid: &[u8], is_big_endian: bool) -> Option<u16> {
    let (tag, fields, rest) = guid_parts(guid, is_big_endian)?;
    (fields == [0x0721, 0x11D3] && rest == [0x86, 0x44, 0xC8, 0xC1, 0xCA, 0, 0, 0]).then_some(tag)
}

/// Converts each group of `N` bytes.
#[inline(always)]
fn each<const N: usize>(block: &[u8], out: &mut Vec<f32>, convert: impl Fn([u8; N]) -> f32) {
    out.extend(block.as_chunks::<N>().0.iter().map(|bytes| convert(*bytes)));
}

/// A sample of 16 bits.
#[inline(always)]
fn from_short(sample: i16) -> f32 {
    f32::from(sample) * (1.0 / 32_768.0)
}

/// A sample of 32 bits, of which FP32 keeps 24.
#[inline(always)]
fn from_long(sample: i32) -> f32 {
    sample as f32 * (1.0 / 2_147_483_648.0)
}

/// A sample in µ-law (ITU-T G.711).
const fn mulaw(byte: u8) -> i16 {
    let byte = !byte as i16;
    let size = (((byte & 0x0F) << 3) + 0x84) << ((byte & 0x70) >> 4);
    if byte & 0x80 == 0 { size - 0x84 } else { 0x84 - size }
}

/// A sample in A-law (ITU-T G.711).
const fn alaw(byte: u8) -> i16 {
    let byte = (byte ^ 0x55) as i16;
    let low = (byte & 0x0F) << 4;
    let size = match (byte & 0x70) >> 4 {
        0 => low + 8,
        segment => (low + 0x108) << (segment - 1),
    };
    if byte & 0x80 == 0 { -size } else { size }
}

fn wrong(what: &str) -> Error {
    Error::invalid(format!("WAV: the file {what}"))
}
