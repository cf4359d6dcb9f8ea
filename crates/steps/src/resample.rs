//! `resample`: samples at another sample rate, by a filter with a set of weights for each phase between the two rates.

use std::f64::consts::PI;

use base::error::Error;
use base::tensor::Tensor;

use crate::fields::{Field, FieldDefault, FieldKind, StepFields};
use crate::image::vector::vectorized;
use crate::kind::{Step, StepKind, StepPort};
use crate::limits::{AUDIO_OUTPUT_SIZE_MAX, RESAMPLE_WEIGHTS_MAX, SAMPLE_RATE_MAX};
use crate::tensors::{floats, of_floats, rows_and, trailing};

/// The kind.
pub const KIND: StepKind = StepKind {
    name: "resample",
    about: "Converts samples to another sample rate. Files are converted by the step `audio`.",
    inputs: &[StepPort { name: "samples", about: "Numbers [.., samples].", is_optional: false }],
    outputs: &[StepPort { name: "samples", about: "FP32 [.., samples].", is_optional: false }],
    fields: &[
        Field {
            name: "from",
            kind: FieldKind::Integer(1, SAMPLE_RATE_MAX as i64),
            default: FieldDefault::Required,
            about: "The sample rate of the input in Hz.",
        },
        Field {
            name: "to",
            kind: FieldKind::Integer(1, SAMPLE_RATE_MAX as i64),
            default: FieldDefault::Required,
            about: "The sample rate of the output in Hz.",
        },
        Field {
            name: "method",
            kind: FieldKind::Choice(&["torchaudio", "torchaudio_functional", "scipy"]),
            default: FieldDefault::Json("\"torchaudio\""),
            about: "`torchaudio`: `torchaudio.transforms.Resample(from, to)`. `torchaudio_functional`: \
                    `torchaudio.functional.resample(samples, from, to)`, which computes its filter in FP32. `scipy`: \
                    `scipy.signal.resample_poly(samples, to, from)`. Within 1e-6 of full scale.",
        },
    ],
    is_short: false,
    build: |fields| Ok(Box::new(Resample::build(fields)?)),
};

/// The step.
struct Resample {
    resampler: Resampler,
}

/// The library whose filter is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResampleMethod {
    /// `scipy.signal.resample_poly`.
    Scipy,
    /// `torchaudio.transforms.Resample`.
    Torchaudio,
    /// `torchaudio.functional.resample`.
    TorchaudioFunctional,
}

/// A conversion between two sample rates.
pub struct Resampler {
    method: ResampleMethod,
    from_rate: u32,
    /// The rates without their common divisor: `to` samples are made of `from`.
    from: usize,
    to: usize,
    /// For each phase, the input of its first weight: an offset from the start of the group of `from` samples.
    offsets: Vec<isize>,
    /// The weights of all phases, `width` for each.
    weights: Vec<f32>,
    width: usize,
}

impl Resample {
    fn build(fields: &StepFields<'_>) -> Result<Self, Error> {
        let rate = |name| fields.integer(name).and_then(|rate| u32::try_from(rate).ok()).unwrap_or(1);
        let method = ResampleMethod::of_name(&fields.text("method")).unwrap_or(ResampleMethod::Torchaudio);
        let resampler = Resampler::new(method, rate("from"), rate("to"));
        Ok(Self { resampler: resampler.map_err(|error| fields.error("from", error.text()))? })
    }
}

impl Step for Resample {
    fn run(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let Some(Some(input)) = inputs.first() else { return Ok(Vec::new()) };
        let (rows, [length]) = trailing("samples", "[samples]", input)?;
        let samples = floats("samples", input)?;
        let count = self.resampler.output_length(length);
        if rows.saturating_mul(count).saturating_mul(size_of::<f32>()) > AUDIO_OUTPUT_SIZE_MAX {
            return Err(Error::invalid(format!(
                "'samples' makes more than the {AUDIO_OUTPUT_SIZE_MAX} bytes of output that are allowed"
            )));
        }
        let mut out = Vec::with_capacity(rows.saturating_mul(count));
        for row in samples.chunks_exact(length.max(1)) {
            out.extend(self.resampler.run(row)?);
        }
        Ok(vec![Some(Tensor { shape: rows_and(input, 1, &[count]), ..of_floats(&[], out) })])
    }
}

impl ResampleMethod {
    /// Returns the method with this name; `None` for another name.
    pub fn of_name(name: &str) -> Option<Self> {
        match name {
            "scipy" => Some(Self::Scipy),
            "torchaudio" => Some(Self::Torchaudio),
            "torchaudio_functional" => Some(Self::TorchaudioFunctional),
            _ => None,
        }
    }
}

impl Resampler {
    /// Makes the weights.
    ///
    /// # Errors
    /// `InvalidArgument` if they are more than `RESAMPLE_WEIGHTS_MAX`.
    pub fn new(method: ResampleMethod, from_rate: u32, to_rate: u32) -> Result<Self, Error> {
        let divisor = common_divisor(from_rate, to_rate).max(1);
        let (from, to) = ((from_rate / divisor) as usize, (to_rate / divisor) as usize);
        let mut made = Self { method, from_rate, from, to, offsets: Vec::new(), weights: Vec::new(), width: 0 };
        let larger = from.max(to).max(1);
        // Both filters have about this number of weights, and that of scipy has one for each of 20 times the larger rate.
        let count = match method {
            ResampleMethod::Scipy => larger.saturating_mul(22).saturating_add(2 * to),
            _ => larger.saturating_mul(13).saturating_add(4 * to),
        };
        if count > RESAMPLE_WEIGHTS_MAX {
            return Err(Error::invalid(format!(
                "{from_rate} Hz to {to_rate} Hz takes a filter of more than {RESAMPLE_WEIGHTS_MAX} weights"
            )));
        }
        match method {
            _ if from == to => {}
            ResampleMethod::Scipy => made.make_scipy(),
            ResampleMethod::Torchaudio => made.make_torchaudio(weight),
            ResampleMethod::TorchaudioFunctional => made.make_torchaudio(weight_single),
        }
        Ok(made)
    }

    /// The sample rate that it converts from.
    pub const fn from_rate(&self) -> u32 {
        self.from_rate
    }

    /// The count of samples that it makes of `length`.
    pub fn output_length(&self, length: usize) -> usize {
        let exact = (length as u128 * self.to as u128).div_ceil(self.from.max(1) as u128);
        let exact = usize::try_from(exact).unwrap_or(usize::MAX);
        if self.method == ResampleMethod::Scipy || self.from == self.to {
            return exact;
        }
        // torchaudio divides in FP64, and rounds up in FP32. Its samples are those of whole groups.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "as there"
        )]
        let rounded = ((length.saturating_mul(self.to) as f64 / self.from as f64) as f32).ceil() as usize;
        rounded.min((length / self.from + 1).saturating_mul(self.to))
    }

    /// Converts samples.
    ///
    /// # Errors
    /// `InvalidArgument` if they make more than `AUDIO_OUTPUT_SIZE_MAX`.
    pub fn run(&self, samples: &[f32]) -> Result<Vec<f32>, Error> {
        let count = self.output_length(samples.len());
        if count.saturating_mul(size_of::<f32>()) > AUDIO_OUTPUT_SIZE_MAX {
            return Err(Error::invalid(format!(
                "the samples make more than the {AUDIO_OUTPUT_SIZE_MAX} bytes of output that are allowed"
            )));
        }
        if self.from == self.to {
            return Ok(samples.to_vec());
        }
        // Zeros around them: all weights of the first and the last sample then have one.
        let before =
            self.offsets.iter().map(|offset| offset.saturating_neg().max(0).cast_unsigned()).max().unwrap_or(0);
        let groups = count.div_ceil(self.to);
        let after = self.offsets.iter().map(|offset| (*offset).max(0).cast_unsigned()).max().unwrap_or(0) + self.width;
        let end = before + (groups * self.from + after).max(samples.len());
        let mut padded = Vec::with_capacity(end);
        padded.resize(before, 0.0);
        padded.extend_from_slice(samples);
        padded.resize(end, 0.0);
        let mut out = Vec::with_capacity(groups * self.to);
        vectorized(|| {
            for group in 0..groups {
                self.group(padded.get(group * self.from..).unwrap_or_default(), before, &mut out);
            }
        });
        out.truncate(count);
        Ok(out)
    }

    /// Appends the samples of all phases. `before` zeros precede the samples of the group.
    #[inline(always)]
    fn group(&self, samples: &[f32], before: usize, out: &mut Vec<f32>) {
        for (offset, weights) in self.offsets.iter().zip(self.weights.chunks_exact(self.width)) {
            let start = before.saturating_add_signed(*offset);
            let samples = samples.get(start..).and_then(|rest| rest.get(..self.width)).unwrap_or_default();
            out.push(dot(samples, weights));
        }
    }

    /// The filter of `torchaudio.transforms.Resample`: a sinc below a Hann window, six zero crossings wide, with a cut-off at
    /// 0.99 of the lower rate.
    fn make_torchaudio(&mut self, weight: fn(usize, isize, SincShape) -> f32) {
        let (from, to) = (self.from as f64, self.to as f64);
        let shape = SincShape { from, to, cutoff: from.min(to) * 0.99 };
        let reach = ZERO_CROSSINGS * from / shape.cutoff;
        self.width = (2.0 * reach) as usize + 3;
        for phase in 0..self.to {
            let offset = (phase as f64 * from / to - reach).floor() as isize;
            self.offsets.push(offset);
            self.weights.extend((offset..).take(self.width).map(|input| weight(phase, input, shape)));
        }
    }

    /// The filter of `scipy.signal.resample_poly`: a sinc below a Kaiser window (beta 5), ten zero crossings wide.
    fn make_scipy(&mut self) {
        let larger = self.from.max(self.to);
        let half = 10 * larger;
        let cutoff = 1.0 / larger as f64;
        let at = |index: usize| {
            let place = index as f64 - half as f64;
            let ratio = place / half as f64;
            let x = PI * cutoff * place;
            let sinc = if x == 0.0 { 1.0 } else { x.sin() / x };
            cutoff * sinc * bessel(5.0 * (1.0 - ratio * ratio).max(0.0).sqrt()) / bessel(5.0)
        };
        let filter: Vec<f64> = (0..=2 * half).map(at).collect();
        let total: f64 = filter.iter().sum();
        let filter: Vec<f32> = filter.iter().map(|value| (value / total) as f32 * self.to as f32).collect();
        self.width = 2 * half / self.to + 1;
        let (from, to, half) = (self.from.cast_signed(), self.to.cast_signed(), half.cast_signed());
        for phase in 0..to {
            // Rounded up.
            let offset = -(half - phase * from).div_euclid(to);
            let weight = |input| {
                let index = usize::try_from(phase * from + half - input * to).ok();
                index.and_then(|index| filter.get(index)).copied().unwrap_or(0.0)
            };
            self.offsets.push(offset);
            self.weights.extend((offset..).take(self.width).map(weight));
        }
    }
}

/// The sinc of a filter, in units of the reduced rates.
#[derive(Clone, Copy)]
struct SincShape {
    from: f64,
    to: f64,
    cutoff: f64,
}

/// Zero crossings of the sinc on each side: torchaudio's `lowpass_filter_width`.
const ZERO_CROSSINGS: f64 = 6.0;

/// A weight of `transforms.Resample`, in FP64 but for the place of the phase.
fn weight(phase: usize, input: isize, shape: SincShape) -> f32 {
    let place = -f64::from(phase as f32 / shape.to as f32) + input as f64 / shape.from;
    let t = (place * shape.cutoff).clamp(-ZERO_CROSSINGS, ZERO_CROSSINGS);
    let window = (t * PI / ZERO_CROSSINGS / 2.0).cos().powi(2);
    let x = t * PI;
    let sinc = if x == 0.0 { 1.0 } else { x.sin() / x };
    (sinc * (window * (shape.cutoff / shape.from))) as f32
}

/// A weight of `functional.resample`: the same in FP32.
fn weight_single(phase: usize, input: isize, shape: SincShape) -> f32 {
    let (pi, crossings) = (PI as f32, ZERO_CROSSINGS as f32);
    let place = -(phase as f32 / shape.to as f32) + input as f32 / shape.from as f32;
    let t = (place * shape.cutoff as f32).clamp(-crossings, crossings);
    let window = (t * pi / crossings / 2.0).cos().powi(2);
    let x = t * pi;
    let sinc = if x == 0.0 { 1.0 } else { x.sin() / x };
    sinc * (window * (shape.cutoff / shape.from) as f32)
}

/// The modified Bessel function of the first kind of order 0, by its series, which converges fast up to 5.
fn bessel(x: f64) -> f64 {
    let quarter = x * x / 4.0;
    let (mut term, mut sum) = (1.0, 1.0);
    for index in 1..40 {
        term *= quarter / f64::from(index * index);
        sum += term;
    }
    sum
}

/// The sum of the products.
#[inline(always)]
fn dot(left: &[f32], right: &[f32]) -> f32 {
    let ((left, left_rest), (right, right_rest)) = (left.as_chunks::<8>(), right.as_chunks::<8>());
    let mut sums = [0.0_f32; 8];
    for (left, right) in left.iter().zip(right) {
        for ((sum, left), right) in sums.iter_mut().zip(left).zip(right) {
            *sum += left * right;
        }
    }
    let [a, b, c, d, e, f, g, h] = sums;
    let rest: f32 = left_rest.iter().zip(right_rest).map(|(left, right)| left * right).sum();
    ((a + e) + (b + f)) + ((c + g) + (d + h)) + rest
}

const fn common_divisor(mut left: u32, mut right: u32) -> u32 {
    while right > 0 {
        (left, right) = (right, left % right);
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::of_strings;
    use crate::trial::{built, fault, run};

    #[test]
    fn lengths_and_shapes_follow_the_rates() {
        let tensor = of_floats(&[2, 1, 441], vec![0.5; 882]);
        let check = |members: &str, want: &[i64]| {
            let got = run("resample", &[("samples", &tensor)], &["samples"], members).unwrap();
            assert_eq!(&got[0].shape[..], want, "{members}");
        };
        check(r#""from": 44100, "to": 16000"#, &[2, 1, 160]);
        check(r#""from": 44100, "to": 44100"#, &[2, 1, 441]);
        check(r#""from": 8000, "to": 16000, "method": "scipy""#, &[2, 1, 882]);
        let got = run("resample", &[("samples", &of_floats(&[1, 0], vec![]))], &["samples"], r#""from": 2, "to": 1"#);
        assert_eq!(&got.unwrap()[0].shape[..], &[1, 0]);
    }

    #[test]
    fn faults_are_named() {
        let members = r#""from": 1, "to": 768000"#;
        let tensor = of_floats(&[1, 1], vec![0.0]);
        let error = built("resample", &["samples"], &["samples"], members).err().unwrap();
        let want = "step 1: line 1: \"from\": 1 Hz to 768000 Hz takes a filter of more than 2097152 weights";
        assert_eq!(error, want);
        let error = fault("resample", &[("samples", &tensor)], &["samples"], r#""from": 768000, "to": 767999"#);
        assert!(error.ends_with("takes a filter of more than 2097152 weights"), "{error}");
        let many = of_floats(&[1, 1 << 14], vec![0.0; 1 << 14]);
        let error = fault("resample", &[("samples", &many)], &["samples"], r#""from": 1, "to": 100000"#);
        assert_eq!(error, "'samples' makes more than the 1073741824 bytes of output that are allowed");
        let texts = of_strings(&[1, 1], ["a"]);
        let error = fault("resample", &[("samples", &texts)], &["samples"], r#""from": 1, "to": 2"#);
        assert_eq!(error, "'samples' must hold numbers, but it is BYTES");
    }
}
