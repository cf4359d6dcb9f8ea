//! `audio`: WAV and FLAC files to samples. Each row is a file that is decoded, mixed to the channels that a model takes,
//! and brought to its sample rate.

use std::borrow::Cow;

use base::error::Error;
use base::tensor::{Datatype, Tensor};

use crate::audio::flac::Flac;
use crate::audio::mix::{ChannelMix, Mixer};
use crate::audio::wav::Wav;
use crate::fields::{Field, FieldDefault, FieldKind, StepFields};
use crate::image::{FileEncoding, column, decoded};
use crate::kind::{Step, StepKind, StepPort};
use crate::limits::{AUDIO_OUTPUT_SIZE_MAX, AUDIO_SAMPLES_MAX, SAMPLE_RATE_MAX};
use crate::resample::{ResampleMethod, Resampler};
use crate::tensors::{of_floats, of_numbers, wrong_datatype};

mod bits;
pub mod flac;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod mix;
pub mod wav;

/// The kind.
pub const KIND: StepKind = StepKind {
    name: "audio",
    about: "Decodes WAV files (PCM of 8, 16, 24 and 32 bits, FP32, FP64, A-law, µ-law) and FLAC files to FP32 from -1 to 1, \
            bit by bit as `soundfile.read(file, dtype=\"float32\")`. A file that is cut off keeps the samples it has if it is \
            WAV, and is refused if it is FLAC.",
    inputs: &[StepPort {
        name: "audio",
        about: "BYTES [rows] or [rows, 1]: a file in each element. UINT8 [bytes]: one file; [rows, bytes]: a file in each row, \
                with any bytes behind it.",
        is_optional: false,
    }],
    outputs: &[
        StepPort {
            name: "samples",
            about: "FP32 [rows, samples], or [rows, channels, samples] with all channels. Shorter rows end with zeros.",
            is_optional: false,
        },
        StepPort {
            name: "lengths",
            about: "INT64 [rows]: the samples of a channel before the padding.",
            is_optional: true,
        },
        StepPort { name: "sample_rate", about: "INT64 [rows]: the sample rate of the file.", is_optional: true },
    ],
    fields: FIELDS,
    is_short: false,
    build: |fields| Ok(Box::new(Audio::build(fields)?)),
};

const FIELDS: &[Field] = &[
    Field {
        name: "encoding",
        kind: FieldKind::Choice(&["auto", "raw", "base64"]),
        default: FieldDefault::Json("\"auto\""),
        about: "The strings of BYTES. `auto` takes a file as it is if it begins as WAV or FLAC does, and anything else as \
                base64.",
    },
    Field {
        name: "channels",
        kind: FieldKind::Choice(&["mean", "one", "all"]),
        default: FieldDefault::Json("\"mean\""),
        about: "`mean`: their mean, as `samples.mean(axis=1)`. `one`: that of `channel`. `all`: each for itself; all rows must \
                then have the same number.",
    },
    Field {
        name: "channel",
        kind: FieldKind::Integer(0, 1023),
        default: FieldDefault::Json("0"),
        about: "The channel that `\"channels\": \"one\"` takes.",
    },
    Field {
        name: "sample_rate",
        kind: FieldKind::Integer(1, SAMPLE_RATE_MAX as i64),
        default: FieldDefault::Unset,
        about: "The sample rate in Hz that the model needs. Without it, files keep theirs.",
    },
    Field {
        name: "resample",
        kind: FieldKind::Choice(&["none", "torchaudio", "torchaudio_functional", "scipy"]),
        default: FieldDefault::Json("\"none\""),
        about: "Converts files of another sample rate, after `channels`; see `method` of the step `resample`. With `none` they \
                are refused.",
    },
    Field {
        name: "length",
        kind: FieldKind::Integer(1, AUDIO_SAMPLES_MAX as i64),
        default: FieldDefault::Unset,
        about: "Cuts each row to this number of samples, or appends zeros. Without it, rows are as long as the longest.",
    },
];

/// Takes samples frame by frame: those of all channels at a time.
pub type FrameSink<'a> = dyn FnMut(&[f32]) -> Result<(), Error> + 'a;

/// The step.
struct Audio {
    encoding: FileEncoding,
    mix: ChannelMix,
    sample_rate: Option<u32>,
    method: Option<ResampleMethod>,
    /// Conversions from usual sample rates.
    resamplers: Vec<Resampler>,
    length: Option<usize>,
}

/// An opened file.
enum AudioFile<'a> {
    Flac(Flac<'a>),
    Wav(Wav<'a>),
}

/// One row on its way to the output.
struct AudioRow {
    /// The samples of each channel.
    channels: Vec<Vec<f32>>,
    /// The sample rate of the file.
    sample_rate: u32,
}

impl Audio {
    fn build(fields: &StepFields<'_>) -> Result<Self, Error> {
        let sample_rate = fields.integer("sample_rate").and_then(|rate| u32::try_from(rate).ok());
        let method = ResampleMethod::of_name(&fields.text("resample"));
        if method.is_some() && sample_rate.is_none() {
            return Err(fields.error("resample", "needs \"sample_rate\""));
        }
        let resamplers = match (method, sample_rate) {
            (Some(method), Some(to)) => {
                USUAL_RATES.iter().filter_map(|from| Resampler::new(method, *from, to).ok()).collect()
            }
            _ => Vec::new(),
        };
        Ok(Self {
            encoding: match fields.text("encoding").as_str() {
                "raw" => FileEncoding::Raw,
                "base64" => FileEncoding::Base64,
                _ => FileEncoding::Auto,
            },
            mix: match fields.text("channels").as_str() {
                "all" => ChannelMix::All,
                "one" => ChannelMix::One(fields.count("channel").unwrap_or(0)),
                _ => ChannelMix::Mean,
            },
            sample_rate,
            method,
            resamplers,
            length: fields.count("length"),
        })
    }

    fn row(&self, file: &[u8]) -> Result<AudioRow, Error> {
        let file = AudioFile::open(file)?;
        let (channels, sample_rate) = file.form();
        let wanted = self.sample_rate.unwrap_or(sample_rate);
        let method = match self.method {
            _ if wanted == sample_rate => None,
            None => {
                return Err(Error::invalid(format!("the file has {sample_rate} Hz, but \"sample_rate\" is {wanted}")));
            }
            method => method,
        };
        let mut mixer = Mixer::new(self.mix, channels, file.frame_count())?;
        file.read(&mut |frames| mixer.push(frames))?;
        let mut channels = mixer.into_channels();
        if let Some(method) = method {
            let known = self.resamplers.iter().find(|known| known.from_rate() == sample_rate);
            let made = if known.is_none() { Some(Resampler::new(method, sample_rate, wanted)?) } else { None };
            for (channel, resampler) in channels.iter_mut().zip(std::iter::repeat(known.or(made.as_ref()))) {
                if let Some(resampler) = resampler {
                    *channel = resampler.run(channel)?;
                }
            }
        }
        Ok(AudioRow { channels, sample_rate })
    }
}

impl Step for Audio {
    fn run(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let Some(Some(input)) = inputs.first() else { return Ok(vec![None]) };
        let mut rows: Vec<AudioRow> = Vec::new();
        let mut sample_count = 0_usize;
        for (index, file) in files(input, self.encoding)?.into_iter().enumerate() {
            let prefixed = |error: Error| error.with_prefix(&format!("'audio', row {index}: "));
            let file = file.map_err(prefixed)?;
            let row = self.row(&file).map_err(prefixed)?;
            if let (ChannelMix::All, Some(first)) = (self.mix, rows.first())
                && first.channels.len() != row.channels.len()
            {
                let (got, want) = (row.channels.len(), first.channels.len());
                return Err(prefixed(Error::invalid(format!("it has {got} channels, but row 0 has {want}"))));
            }
            sample_count = sample_count.saturating_add(row.channels.iter().map(Vec::len).sum());
            check_output(sample_count)?;
            rows.push(row);
        }
        let lengths = rows.iter().map(|row| row.channels.first().map_or(0, Vec::len));
        let length = self.length.unwrap_or_else(|| lengths.clone().max().unwrap_or(0));
        let channels = rows.first().map_or(1, |row| row.channels.len());
        check_output(rows.len().saturating_mul(channels).saturating_mul(length))?;
        let lengths = lengths.map(|own| own.min(length) as i64).collect();
        let sample_rates = rows.iter().map(|row| i64::from(row.sample_rate)).collect();
        let samples = padded(&mut rows, length, channels);
        let shape = match self.mix {
            ChannelMix::All => &[rows.len(), channels, length][..],
            _ => &[rows.len(), length],
        };
        Ok(vec![
            Some(of_floats(shape, samples)),
            Some(of_numbers::<i64>(Datatype::Int64, &[rows.len()], lengths)),
            Some(of_numbers::<i64>(Datatype::Int64, &[rows.len()], sample_rates)),
        ])
    }
}

impl<'a> AudioFile<'a> {
    fn open(file: &'a [u8]) -> Result<Self, Error> {
        if Wav::is_known(file) {
            return Wav::open(file).map(Self::Wav);
        }
        if Flac::is_known(file) {
            return Flac::open(file).map(Self::Flac);
        }
        Err(Error::invalid("the file is neither WAV nor FLAC"))
    }

    /// The channels and the sample rate.
    const fn form(&self) -> (usize, u32) {
        match self {
            Self::Flac(file) => (file.channels, file.sample_rate),
            Self::Wav(file) => (file.channels, file.sample_rate),
        }
    }

    /// Samples of each channel; `None` if the file does not say.
    fn frame_count(&self) -> Option<usize> {
        match self {
            Self::Flac(file) => file.frame_count(),
            Self::Wav(file) => Some(file.frame_count()),
        }
    }

    fn read(&self, sink: &mut FrameSink<'_>) -> Result<(), Error> {
        match self {
            Self::Flac(file) => file.read(sink),
            Self::Wav(file) => file.read(sink),
        }
    }
}

/// Sample rates of files in use.
const USUAL_RATES: [u32; 10] = [8000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000];

/// Returns true if the bytes begin as a WAV or FLAC file does.
fn is_known(file: &[u8]) -> bool {
    Wav::is_known(file) || Flac::is_known(file)
}

/// The file of a row, or its error.
type FileBytes<'a> = Result<Cow<'a, [u8]>, Error>;

/// The files of the rows.
fn files(input: &Tensor, encoding: FileEncoding) -> Result<Vec<FileBytes<'_>>, Error> {
    let shape = &input.shape[..];
    match input.datatype {
        Datatype::Bytes => {
            let elements = column("audio", input)?.into_iter();
            Ok(elements.map(|element| decoded(element, encoding, is_known, "WAV or FLAC")).collect())
        }
        Datatype::Uint8 if !input.has_its_size() => {
            Err(Error::invalid(format!("'audio' has contents of another size than its shape {shape:?}")))
        }
        Datatype::Uint8 => {
            let size = match *shape {
                [size] | [_, size] if size > 0 => usize::try_from(size).unwrap_or(usize::MAX),
                _ => {
                    let expected = "[bytes] or [rows, bytes] for UINT8";
                    return Err(Error::invalid(format!(
                        "'audio' must have the shape {expected}, but its shape is {shape:?}"
                    )));
                }
            };
            Ok(input.contents.chunks_exact(size.max(1)).map(|file| Ok(Cow::Borrowed(file))).collect())
        }
        _ => Err(wrong_datatype("audio", "BYTES or UINT8", input)),
    }
}

/// All rows one after the other, each channel with `length` samples. The rows are emptied on the way.
fn padded(rows: &mut [AudioRow], length: usize, channels: usize) -> Vec<f32> {
    if let [AudioRow { channels, .. }] = rows
        && let [samples] = &mut channels[..]
        && samples.len() >= length
    {
        samples.truncate(length);
        return std::mem::take(samples);
    }
    let mut out = Vec::with_capacity(rows.len() * channels * length);
    for channel in rows.iter().flat_map(|row| &row.channels) {
        let end = out.len() + length;
        out.extend_from_slice(channel.get(..length).unwrap_or(channel));
        out.resize(end, 0.0);
    }
    out
}

fn check_output(sample_count: usize) -> Result<(), Error> {
    if sample_count.saturating_mul(size_of::<f32>()) > AUDIO_OUTPUT_SIZE_MAX {
        return Err(Error::invalid(format!(
            "'audio' has files that make more than the {AUDIO_OUTPUT_SIZE_MAX} bytes of output that are allowed"
        )));
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
mod tests;
