//! `log_mel`: samples to the log-mel spectrogram that Whisper reads.

use base::error::Error;
use base::tensor::Tensor;
use wire::json::Document;

use crate::fields::{Field, FieldDefault, FieldKind, StepFields};
use crate::image::vector::vectorized;
use crate::kind::{Step, StepKind, StepPort};
use crate::limits::{AUDIO_OUTPUT_SIZE_MAX, FRAME_SIZE_MAX, MEL_FILTERS_MAX, SAMPLE_RATE_MAX};
use crate::mel::{MelBank, slaney};
use crate::spectrum::{FRAMES, Lane, Spectrum, SpectrumRoom};
use crate::tensors::{floats, of_floats, rows_and, trailing};

/// The kind.
pub const KIND: StepKind = StepKind {
    name: "log_mel",
    about: "Makes the log-mel spectrogram of samples that Whisper reads: transformers' `WhisperFeatureExtractor` without torch, \
            within 1e-5. The parameters have the names of its `preprocessor_config.json`. Samples are cut or filled up with \
            zeros to `chunk_length` seconds first.",
    inputs: &[StepPort {
        name: "samples",
        about: "Numbers [.., samples] from -1 to 1, at `sampling_rate`: those of the step `audio`.",
        is_optional: false,
    }],
    outputs: &[StepPort { name: "features", about: "FP32 [.., feature_size, frames].", is_optional: false }],
    fields: FIELDS,
    is_short: false,
    build: |fields| Ok(Box::new(LogMel::build(fields)?)),
};

const FIELDS: &[Field] = &[
    Field {
        name: "config",
        kind: FieldKind::File,
        default: FieldDefault::Unset,
        about: "A `preprocessor_config.json`, whose values stand for the parameters that are not given.",
    },
    Field {
        name: "feature_size",
        kind: FieldKind::Integer(1, MEL_FILTERS_MAX as i64),
        default: FieldDefault::Json("80"),
        about: "Mel bins: 80, or 128 for large-v3.",
    },
    Field {
        name: "sampling_rate",
        kind: FieldKind::Integer(2, SAMPLE_RATE_MAX as i64),
        default: FieldDefault::Json("16000"),
        about: "The sample rate in Hz.",
    },
    Field {
        name: "n_fft",
        kind: FieldKind::Integer(2, FRAME_SIZE_MAX as i64),
        default: FieldDefault::Json("400"),
        about: "Samples of a frame; must be even.",
    },
    Field {
        name: "hop_length",
        kind: FieldKind::Integer(1, FRAME_SIZE_MAX as i64),
        default: FieldDefault::Json("160"),
        about: "Samples from one frame to the next.",
    },
    Field {
        name: "chunk_length",
        kind: FieldKind::Integer(0, 3600),
        default: FieldDefault::Json("30"),
        about: "Seconds of each row; with 0 a row keeps its length.",
    },
];

/// The step.
struct LogMel {
    spectrum: Spectrum,
    bank: MelBank,
    window: Vec<f64>,
    hop_length: usize,
    /// Samples of a row; `None` keeps its length.
    sample_count: Option<usize>,
}

impl LogMel {
    fn build(fields: &StepFields<'_>) -> Result<Self, Error> {
        let config = fields.file("config")?;
        let config = match &config {
            Some(file) => Some(Document::parse(file, &[]).map_err(|error| fields.error("config", &error.to_string()))?),
            None => None,
        };
        if let Some(why) = config.as_ref().and_then(|config| foreign(config)) {
            return Err(fields.error("config", why));
        }
        let value = |name: &str| -> Result<usize, Error> {
            let own = fields.count(name).unwrap_or(0);
            let Some(config) = config.as_ref().filter(|_| !fields.is_given(name)) else { return Ok(own) };
            let Some((_, value)) = config.root().members().find(|(member, _)| *member == name) else { return Ok(own) };
            let (least, most) = match FIELDS.iter().find(|field| field.name == name).map(|field| field.kind) {
                Some(FieldKind::Integer(least, most)) => (least as u64, most as u64),
                _ => (0, u64::MAX),
            };
            let value = value.as_u64().filter(|value| (least..=most).contains(value));
            let value = value.and_then(|value| usize::try_from(value).ok());
            value.ok_or_else(|| {
                fields.error("config", &format!("\"{name}\" of the file must be an integer from {least} to {most}"))
            })
        };
        let (size, sampling_rate, feature_size) = (value("n_fft")?, value("sampling_rate")?, value("feature_size")?);
        let seconds = value("chunk_length")?;
        let spectrum = Spectrum::new(size).ok_or_else(|| fields.error("n_fft", "must be even"))?;
        let bank = slaney(spectrum.bin_count(), feature_size, sampling_rate as f64, FREQUENCY_MAX);
        let angle = |index: usize| std::f64::consts::TAU * index as f64 / size as f64;
        Ok(Self {
            bank,
            window: (0..size).map(|index| 0.5 - 0.5 * angle(index).cos()).collect(),
            hop_length: value("hop_length")?,
            sample_count: (seconds > 0).then(|| seconds.saturating_mul(sampling_rate)),
            spectrum,
        })
    }

    /// Writes the features of a row of `length` samples, of which those behind the end of `samples` are 0.
    fn row(&self, samples: &[f32], length: usize, room: &mut LogMelRoom, out: &mut [f32]) {
        let half = self.window.len() / 2;
        room.fill(samples, length, half);
        let frame_count = length / self.hop_length;
        // Frames behind it have zeros only: their energy is that of the floor.
        let sounding = samples.len().min(length).saturating_add(half).div_ceil(self.hop_length).min(frame_count);
        let sounding = if length < samples.len().saturating_add(half) { frame_count } else { sounding };
        let floor = ENERGY_MIN.log10() as f32;
        for row in out.chunks_exact_mut(frame_count.max(1)) {
            row.get_mut(sounding..).unwrap_or_default().fill(floor);
        }
        for first in (0..sounding).step_by(FRAMES) {
            let count = FRAMES.min(sounding - first);
            vectorized(
                #[inline(always)]
                || self.group(first, count, frame_count, room, out),
            );
        }
        let largest = out.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        for value in out {
            // A NaN stays one, as in numpy.
            let least = largest - 8.0;
            *value = ((if *value < least { least } else { *value }) + 4.0) / 4.0;
        }
    }

    /// Writes up to four frames.
    #[inline(always)]
    fn group(&self, first: usize, count: usize, frame_count: usize, room: &mut LogMelRoom, out: &mut [f32]) {
        let LogMelRoom { padded, frames, powers, spectrum } = room;
        let at = |frame: usize| {
            padded.get((first + frame.min(count - 1)) * self.hop_length..).unwrap_or_default().iter().copied()
        };
        frames.clear();
        let samples = at(0).zip(at(1)).zip(at(2)).zip(at(3)).zip(&self.window);
        frames.extend(samples.map(|((((a, b), c), d), window)| [a, b, c, d].map(|sample| f64::from(sample) * window)));
        powers.clear();
        self.spectrum.run(frames, spectrum, |_, wave| {
            let mut power: Lane = [0.0; FRAMES];
            for ((power, real), imaginary) in power.iter_mut().zip(wave.real).zip(wave.imaginary) {
                // The reference keeps its spectrum in FP32.
                let (real, imaginary) = (f64::from(real as f32), f64::from(imaginary as f32));
                *power = real * real + imaginary * imaginary;
            }
            powers.push(power);
        });
        for (row, energies) in out.chunks_exact_mut(frame_count).zip(self.bank.energies(powers)) {
            for (place, energy) in row.iter_mut().skip(first).take(count).zip(energies) {
                // Unlike `f64::max`, numpy's keeps a NaN.
                *place = (if energy < ENERGY_MIN { ENERGY_MIN } else { energy }).log10() as f32;
            }
        }
    }
}

impl Step for LogMel {
    fn run(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let Some(Some(input)) = inputs.first() else { return Ok(Vec::new()) };
        let (rows, [own]) = trailing("samples", "[samples]", input)?;
        let length = self.sample_count.unwrap_or(own);
        let frame_count = length / self.hop_length;
        let size = self.bank.len().saturating_mul(frame_count);
        let count = rows.saturating_mul(size);
        if count.max(length).saturating_mul(size_of::<f32>()) > AUDIO_OUTPUT_SIZE_MAX {
            return Err(Error::invalid(format!(
                "'samples' makes more than the {AUDIO_OUTPUT_SIZE_MAX} bytes of output that are allowed"
            )));
        }
        let samples = floats("samples", input)?;
        let mut out = vec![0.0; count];
        let mut room = LogMelRoom::default();
        for (index, row) in out.chunks_exact_mut(size.max(1)).enumerate() {
            let samples = samples.get(index * own..(index + 1) * own).unwrap_or_default();
            self.row(samples, length, &mut room, row);
        }
        let shape = rows_and(input, 1, &[self.bank.len(), frame_count]);
        Ok(vec![Some(Tensor { shape, ..of_floats(&[], out) })])
    }
}

/// Memory of a row.
#[derive(Default)]
struct LogMelRoom {
    /// The samples between their reflections.
    padded: Vec<f32>,
    frames: Vec<Lane>,
    powers: Vec<Lane>,
    spectrum: SpectrumRoom,
}

impl LogMelRoom {
    /// Takes `length` samples, zeros behind those that there are, with `half` of their reflection on each side.
    fn fill(&mut self, samples: &[f32], length: usize, half: usize) {
        let at = |index: usize| samples.get(index).copied().unwrap_or(0.0);
        let last = length.saturating_sub(1).max(1);
        let reflected = |index: usize| {
            let index = index % (2 * last);
            at(if length < 2 { 0 } else { index.min(2 * last - index) })
        };
        self.padded.clear();
        self.padded.reserve(length + 2 * half);
        self.padded.extend((1..=half).rev().map(reflected));
        self.padded.extend_from_slice(samples.get(..length).unwrap_or(samples));
        self.padded.resize(length + half, 0.0);
        self.padded.extend((length..length + half).map(reflected));
    }
}

/// Returns the reason for which a configuration asks for something else than this step makes.
fn foreign(config: &Document<'_>) -> Option<&'static str> {
    let member = |name| config.root().members().find(|(member, _)| *member == name).map(|(_, value)| value);
    if member("feature_extractor_type").is_some_and(|kind| kind.as_str() != Some("WhisperFeatureExtractor")) {
        return Some("the file is not one of a WhisperFeatureExtractor");
    }
    let is_set = |name| member(name).is_some_and(|value| value.as_f64() != Some(0.0));
    if is_set("dither") {
        return Some("\"dither\" of the file adds random noise, which is not supported");
    }
    is_set("padding_value").then_some("\"padding_value\" of the file must be 0")
}

/// The energy that stands for silence.
const ENERGY_MIN: f64 = 1e-10;

/// The highest frequency of the mel filters in Hz, at any sample rate.
const FREQUENCY_MAX: f64 = 8000.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::list::StepList;
    use crate::tensors::of_strings;
    use crate::trial::{built, fault, run};

    #[test]
    fn silence_and_short_rows_have_features() {
        let check = |length: usize, members: &str, want: [i64; 3]| {
            let tensor = of_floats(&[1, length], vec![0.0; length]);
            let got = run("log_mel", &[("samples", &tensor)], &["features"], members).unwrap();
            assert_eq!(got[0].shape[..], want, "{members}");
            assert!(floats("", &got[0]).unwrap().iter().all(|value| *value == -1.5), "{members}");
        };
        check(0, "", [1, 80, 3000]);
        check(7, r#""chunk_length": 1, "feature_size": 128"#, [1, 128, 100]);
        check(7, r#""chunk_length": 0"#, [1, 80, 0]);
        check(1, r#""chunk_length": 0, "hop_length": 1, "feature_size": 2"#, [1, 2, 1]);
        check(0, r#""chunk_length": 0"#, [1, 80, 0]);
    }

    #[test]
    fn faults_are_named() {
        let error = built("log_mel", &["samples"], &["features"], r#""n_fft": 401"#).err().unwrap();
        assert_eq!(error, "step 1: line 1: \"n_fft\": must be even");
        let check = |config: &str, want: &str| {
            let text = r#"{"steps": [{"step": "log_mel", "input": "x", "output": "y", "config": "c"}]}"#;
            let error = StepList::read(text, &|_, _| Ok(config.as_bytes().to_vec())).unwrap_err();
            assert_eq!(error.text(), format!("step 1: line 1: \"config\": {want}"), "{config}");
        };
        check(r#"{"feature_size": 0}"#, "\"feature_size\" of the file must be an integer from 1 to 1024");
        check(r#"{"feature_extractor_type": "X"}"#, "the file is not one of a WhisperFeatureExtractor");
        check(r#"{"dither": 0.1}"#, "\"dither\" of the file adds random noise, which is not supported");
        check(r#"{"dither": 0.0, "padding_value": 1}"#, "\"padding_value\" of the file must be 0");
        let many = of_floats(&[4096, 0], vec![]);
        let want = "'samples' makes more than the 1073741824 bytes of output that are allowed";
        assert_eq!(fault("log_mel", &[("samples", &many)], &["features"], ""), want);
        let texts = of_strings(&[1, 1], ["a"]);
        let want = "'samples' must hold numbers, but it is BYTES";
        assert_eq!(fault("log_mel", &[("samples", &texts)], &["features"], ""), want);
    }
}
