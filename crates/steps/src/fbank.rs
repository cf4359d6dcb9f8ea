//! `fbank`: samples to the energies of mel filters, as kaldi computes them.

use base::error::Error;
use base::tensor::{Datatype, Tensor};

use crate::fbank::rows::{normalize, stack, stacked_count};
use crate::fbank::settings::{ColumnNormal, FIELDS, FbankSettings};
use crate::fbank::window::FrameRoom;
use crate::image::vector::vectorized;
use crate::kind::{Step, StepKind, StepPort};
use crate::limits::{AUDIO_OUTPUT_SIZE_MAX, AUDIO_ROWS_MAX};
use crate::spectrum::{FRAMES, Lane, SpectrumRoom};
use crate::tensors::{check_size, floats, integers, of_floats, of_numbers, rows_and, trailing};

mod cmvn;
mod rows;
mod settings;
mod window;

/// The kind.
pub const KIND: StepKind = StepKind {
    name: "fbank",
    about: "Makes kaldi's filter banks of samples: `kaldi_native_fbank.OnlineFbank` with `dither` 0, within 1e-3 for logarithms \
            (kaldi's transform is FP32, this one FP64). Then, in this order and if asked for: normalisation over the frames of \
            a row, joined frames (LFR), and the means and deviations of a training set (CMVN).",
    inputs: &[
        StepPort {
            name: "samples",
            about: "Numbers [.., samples] from -1 to 1, at `sample_rate`: those of the step `audio`.",
            is_optional: false,
        },
        StepPort {
            name: "lengths",
            about: "Integers [..]: the samples of each row that count; the others are padding. All count without it.",
            is_optional: true,
        },
    ],
    outputs: &[
        StepPort {
            name: "features",
            about: "FP32 [.., frames, columns]. Rows with fewer frames than the longest end with zeros.",
            is_optional: false,
        },
        StepPort { name: "lengths", about: "INT64 [..]: the frames of each row.", is_optional: true },
    ],
    fields: FIELDS,
    is_short: false,
    build: |fields| Ok(Box::new(Fbank { settings: FbankSettings::read(fields)? })),
};

/// The step.
struct Fbank {
    settings: FbankSettings,
}

/// Memory of a row.
#[derive(Default)]
struct FbankRoom {
    frame: FrameRoom,
    spectrum: SpectrumRoom,
    powers: Vec<Lane>,
    /// The numbers of all frames, before they are joined.
    features: Vec<f32>,
}

impl Fbank {
    /// The count of frames of a row, joined ones if they are.
    const fn frame_count(&self, length: usize) -> usize {
        stacked_count(self.settings.window.frame_count(length), self.settings.stack)
    }

    /// Appends the features of a row.
    fn row(&self, samples: &[f32], room: &mut FbankRoom, out: &mut Vec<f32>) {
        let settings = &self.settings;
        let (count, width) = (settings.window.frame_count(samples.len()), settings.frame_width());
        room.features.clear();
        room.features.resize(count * width, 0.0);
        for first in (0..count).step_by(FRAMES) {
            vectorized(
                #[inline(always)]
                || self.group(samples, first, count - 1, room),
            );
        }
        normalize(&mut room.features, width, settings.normal);
        let start = out.len();
        stack(&room.features, width, settings.stack, out);
        let columns = width * settings.stack.window;
        for frame in out.get_mut(start..).unwrap_or_default().chunks_exact_mut(columns) {
            match &settings.columns {
                ColumnNormal::Deviations(means, deviations) => {
                    frame.iter_mut().zip(means).for_each(|(value, mean)| *value -= mean);
                    frame.iter_mut().zip(deviations).for_each(|(value, deviation)| *value /= deviation);
                }
                ColumnNormal::Scales(shifts, scales) => {
                    for ((value, shift), scale) in frame.iter_mut().zip(shifts).zip(scales) {
                        *value = (*value + shift) * scale;
                    }
                }
            }
        }
    }

    /// Computes up to four frames.
    #[inline(always)]
    fn group(&self, samples: &[f32], first: usize, last: usize, room: &mut FbankRoom) {
        let FbankRoom { frame, spectrum, powers, features } = room;
        let settings = &self.settings;
        let energies = settings.window.cut(samples, first, last, frame);
        powers.clear();
        settings.spectrum.run(&frame.frames, spectrum, |_, wave| {
            let mut power: Lane = [0.0; FRAMES];
            for ((power, real), imaginary) in power.iter_mut().zip(wave.real).zip(wave.imaginary) {
                *power = real * real + imaginary * imaginary;
            }
            powers.push(if settings.is_power { power } else { power.map(f64::sqrt) });
        });
        let width = settings.frame_width();
        let rest = features.get_mut(first * width..).unwrap_or_default();
        let skipped = usize::from(settings.energy.is_some_and(|energy| !energy.is_last));
        for (filter, sums) in settings.bank.energies(powers).enumerate() {
            let places = rest.iter_mut().skip(filter + skipped).step_by(width);
            for (place, sum) in places.zip(sums) {
                *place = if settings.is_log { logarithm(sum as f32) } else { sum as f32 };
            }
        }
        if let Some(energy) = settings.energy {
            let column = if energy.is_last { width - 1 } else { 0 };
            for (place, sum) in rest.iter_mut().skip(column).step_by(width).zip(energies) {
                let own = logarithm(sum);
                *place = if own < energy.floor { energy.floor } else { own };
            }
        }
    }
}

impl Step for Fbank {
    fn run(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let [Some(input), lengths] = inputs else { return Ok(Vec::new()) };
        let (rows, [own]) = trailing("samples", "[samples]", input)?;
        if rows > AUDIO_ROWS_MAX {
            return Err(Error::invalid(format!("'samples' has {rows} rows, but at most {AUDIO_ROWS_MAX} are allowed")));
        }
        let lengths = match lengths {
            Some(lengths) => lengths_of(lengths, rows, own)?,
            None => vec![own; rows],
        };
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let settings = &self.settings;
        let (width, columns) = (settings.frame_width(), settings.frame_width() * settings.stack.window);
        let frame_count = self.frame_count(longest);
        // Those of one row before frames are joined, and all after it.
        let single = settings.window.frame_count(longest).saturating_mul(width);
        let count = rows.saturating_mul(frame_count).saturating_mul(columns);
        if count.max(single).saturating_mul(size_of::<f32>()) > AUDIO_OUTPUT_SIZE_MAX {
            return Err(Error::invalid(format!(
                "'samples' makes more than the {AUDIO_OUTPUT_SIZE_MAX} bytes of output that are allowed"
            )));
        }
        let samples = floats("samples", input)?;
        let (mut out, mut room) = (Vec::with_capacity(count), FbankRoom::default());
        for (index, length) in lengths.iter().enumerate() {
            let row = samples.get(index * own..index * own + length).unwrap_or_default();
            self.row(row, &mut room, &mut out);
            out.resize((index + 1) * frame_count * columns, 0.0);
        }
        let frames = lengths.iter().map(|length| self.frame_count(*length) as i64).collect();
        let frames = Tensor { shape: rows_and(input, 1, &[]), ..of_numbers::<i64>(Datatype::Int64, &[], frames) };
        let shape = rows_and(input, 1, &[frame_count, columns]);
        Ok(vec![Some(Tensor { shape, ..of_floats(&[], out) }), Some(frames)])
    }
}

/// The samples of each row that count.
fn lengths_of(lengths: &Tensor, rows: usize, own: usize) -> Result<Vec<usize>, Error> {
    check_size("lengths", lengths)?;
    let values = integers("lengths", lengths)?;
    if values.len() != rows {
        return Err(Error::invalid(format!("'lengths' has {} numbers, but 'samples' has {rows} rows", values.len())));
    }
    let length = |value: &i64| {
        let length = usize::try_from(*value).ok().filter(|length| *length <= own);
        length.ok_or_else(|| Error::invalid(format!("'lengths' has {value}, but 'samples' has {own} samples in a row")))
    };
    values.iter().map(length).collect()
}

/// The natural logarithm, of no less than kaldi takes it of. A NaN stays one.
#[inline(always)]
fn logarithm(value: f32) -> f32 {
    (if value < f32::EPSILON { f32::EPSILON } else { value }).ln()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::of_strings;
    use crate::trial::{built, fault, run};

    #[test]
    fn rows_have_frames_of_their_own() {
        let tensor = of_floats(&[2, 800], (0..1600).map(|index| (index as f32).sin()).collect());
        let lengths = of_numbers::<i32>(Datatype::Int32, &[2], vec![800, 560]);
        let inputs = [("samples", &tensor), ("lengths", &lengths)];
        let got = run("fbank", &inputs, &["features", "lengths"], "").unwrap();
        assert_eq!((&got[0].shape[..], &integers("", &got[1]).unwrap()[..]), (&[2, 3, 80][..], &[3, 2][..]));
        let values = floats("", &got[0]).unwrap();
        assert!(
            values[5 * 80..].iter().all(|value| *value == 0.0) && values[..5 * 80].iter().all(|value| *value != 0.0)
        );
        let check = |length: usize, members: &str, want: &[i64]| {
            let tensor = of_floats(&[length], vec![0.0; length]);
            let got = run("fbank", &[("samples", &tensor)], &["features"], members).unwrap();
            assert_eq!(&got[0].shape[..], want, "{length}, {members}");
        };
        check(0, "", &[0, 80]);
        check(399, "", &[0, 80]);
        check(0, r#""snip_edges": false"#, &[0, 80]);
        check(80, r#""snip_edges": false"#, &[1, 80]);
        check(720, r#""lfr_window": 7, "lfr_shift": 6"#, &[1, 560]);
        check(720, r#""lfr_window": 4, "lfr_padding": false"#, &[0, 320]);
        check(720, r#""use_energy": true"#, &[3, 81]);
    }

    #[test]
    fn faults_are_named() {
        let bad = |members: &str, want: &str| {
            let error = built("fbank", &["samples"], &["features"], members).err().unwrap();
            assert_eq!(error, format!("step 1: line 1: {want}"));
        };
        bad(r#""frame_length_ms": 0"#, "\"frame_length_ms\": makes frames of 0 samples; they must have 2 to 16384");
        bad(
            r#""frame_length_ms": 2000"#,
            "\"frame_length_ms\": makes frames of 32000 samples; they must have 2 to 16384",
        );
        bad(r#""frame_shift_ms": 0.01"#, "\"frame_shift_ms\": is less than a sample");
        let odd = r#""frame_length_ms": 25.07, "round_to_power_of_two": false"#;
        bad(odd, "\"frame_length_ms\": makes frames of an odd size");
        let between = "\"high_freq\": the filters must lie between 0 and 8000 Hz, but they go from";
        bad(r#""high_freq": 8001"#, &format!("{between} 20 to 8001 Hz"));
        bad(r#""high_freq": -7990"#, &format!("{between} 20 to 10 Hz"));
        bad(
            r#""num_mel_bins": 400"#,
            "\"num_mel_bins\": filter 0 covers no frequency of the spectrum: there are too many",
        );
        bad(r#""mean": [1, 2]"#, "\"mean\": has 2 numbers, but there are 80 columns");
        bad(r#""std": []"#, "\"std\": has 0 numbers, but there are 80 columns");
        let check = |samples: &Tensor, lengths: &[i64], want: &str| {
            let lengths = of_numbers::<i64>(Datatype::Int64, &[lengths.len()], lengths.to_vec());
            assert_eq!(fault("fbank", &[("samples", samples), ("lengths", &lengths)], &["features"], ""), want);
        };
        let tensor = of_floats(&[1, 2], vec![0.0; 2]);
        check(&tensor, &[], "'lengths' has 0 numbers, but 'samples' has 1 rows");
        check(&tensor, &[-1], "'lengths' has -1, but 'samples' has 2 samples in a row");
        check(&tensor, &[3], "'lengths' has 3, but 'samples' has 2 samples in a row");
        check(&of_strings(&[1, 1], ["a"]), &[1], "'samples' must hold numbers, but it is BYTES");
        let rows = of_floats(&[65_537, 0], vec![]);
        check(&rows, &[], "'samples' has 65537 rows, but at most 65536 are allowed");
        let many = of_floats(&[100_000], vec![0.0; 100_000]);
        let members = r#""frame_shift_ms": 0.0625, "num_mel_bins": 128, "round_to_power_of_two": false, "high_freq": -400,
                         "frame_length_ms": 100, "lfr_window": 64"#;
        let want = "'samples' makes more than the 1073741824 bytes of output that are allowed";
        assert_eq!(fault("fbank", &[("samples", &many)], &["features"], members), want);
    }
}
