//! Banks of triangular filters over a spectrum, in mels.

use crate::spectrum::{FRAMES, Lane};

/// A bank of filters, each with its weights of neighbouring frequencies.
pub struct MelBank {
    filters: Vec<MelFilter>,
}

struct MelFilter {
    /// The place of the first frequency.
    start: usize,
    weights: Vec<f64>,
}

impl MelBank {
    /// A bank of filters whose weights are a row each, one for each frequency of the spectrum.
    pub fn new(rows: impl IntoIterator<Item = Vec<f64>>) -> Self {
        let filter = |row: Vec<f64>| {
            let start = row.iter().position(|weight| *weight != 0.0).unwrap_or(0);
            let end = row.iter().rposition(|weight| *weight != 0.0).map_or(start, |last| last + 1);
            MelFilter { start, weights: row.get(start..end).unwrap_or_default().to_vec() }
        };
        Self { filters: rows.into_iter().map(filter).collect() }
    }

    /// The count of filters.
    pub const fn len(&self) -> usize {
        self.filters.len()
    }

    /// Returns the place of a filter that covers no frequency.
    pub fn empty_filter(&self) -> Option<usize> {
        self.filters.iter().position(|filter| filter.weights.is_empty())
    }

    /// The energies of four frames below each filter.
    #[inline(always)]
    pub fn energies(&self, powers: &[Lane]) -> impl Iterator<Item = Lane> {
        self.filters.iter().map(|filter| {
            let mut sums = [0.0; FRAMES];
            for (power, weight) in powers.get(filter.start..).unwrap_or_default().iter().zip(&filter.weights) {
                for (sum, power) in sums.iter_mut().zip(power) {
                    *sum += power * weight;
                }
            }
            sums
        })
    }
}

/// A bank as Slaney's Auditory Toolbox makes it, of which the area below each filter is the same: that of Whisper
/// (transformers' `mel_filter_bank` with `norm` and `mel_scale` "slaney").
pub fn slaney(bin_count: usize, filter_count: usize, sample_rate: f64, frequency_max: f64) -> MelBank {
    let mel_max = slaney_mel(frequency_max);
    let edge = |index: usize| slaney_hertz(mel_max * index as f64 / (filter_count + 1) as f64);
    let last = bin_count.saturating_sub(1).max(1) as f64;
    MelBank::new((0..filter_count).map(|filter| {
        let (left, centre, right) = (edge(filter), edge(filter + 1), edge(filter + 2));
        let weight = |bin: usize| {
            let hertz = bin as f64 * ((sample_rate / 2.0).floor() / last);
            let (up, down) = ((hertz - left) / (centre - left), (right - hertz) / (right - centre));
            up.min(down).max(0.0) * (2.0 / (right - left))
        };
        (0..bin_count).map(weight).collect()
    }))
}

/// Linear up to 1,000 Hz, logarithmic above.
fn slaney_mel(hertz: f64) -> f64 {
    if hertz < 1000.0 { 3.0 * hertz / 200.0 } else { 15.0 + (hertz / 1000.0).ln() * (27.0 / 6.4_f64.ln()) }
}

fn slaney_hertz(mel: f64) -> f64 {
    if mel < 15.0 { 200.0 * mel / 3.0 } else { 1000.0 * ((6.4_f64.ln() / 27.0) * (mel - 15.0)).exp() }
}

/// The edges of the first and last filter in Hz, and the count of filters.
#[derive(Clone, Copy)]
pub struct FilterEdges {
    pub low: f32,
    pub high: f32,
    pub count: usize,
}

/// The bank of kaldi (`MelBanks`): triangles in mels, in FP32. The frequency of half the sample rate is in no filter.
pub fn kaldi(frame_size: usize, sample_rate: f32, edges: FilterEdges) -> MelBank {
    let mel = |hertz: f32| 1127.0 * (1.0 + hertz / 700.0).ln();
    let (low, high) = (mel(edges.low), mel(edges.high));
    let step = (high - low) / (edges.count + 1) as f32;
    let bin_width = sample_rate / frame_size as f32;
    MelBank::new((0..edges.count).map(|filter| {
        let edge = |index: usize| low + (filter + index) as f32 * step;
        let weight = |bin: usize| triangle(mel(bin_width * bin as f32), [edge(0), edge(1), edge(2)]);
        (0..frame_size / 2).map(weight).map(f64::from).collect()
    }))
}

/// The bank of kaldi-native-fbank's `is_librosa` with the norm "slaney": triangles in Hz of equal area, in FP32.
pub fn librosa(frame_size: usize, sample_rate: f32, edges: FilterEdges) -> MelBank {
    // 27 / ln(6.4), and its inverse.
    const STEPS: f32 = 14.545_078;
    const STEP: f32 = 0.068_751_78;
    let mel = |hertz: f32| if hertz <= 1000.0 { hertz * 3.0 / 200.0 } else { 15.0 + STEPS * (hertz / 1000.0).ln() };
    let hertz = |mel: f32| if mel <= 15.0 { 200.0 / 3.0 * mel } else { 1000.0 * ((mel - 15.0) * STEP).exp() };
    let (low, high) = (mel(edges.low), mel(edges.high));
    let step = (high - low) / (edges.count + 1) as f32;
    let bin_width = sample_rate / frame_size as f32;
    MelBank::new((0..edges.count).map(|filter| {
        let edge = |index: usize| hertz(low + (filter + index) as f32 * step);
        let corners = [edge(0), edge(1), edge(2)];
        let [left, _, right] = corners;
        let weight = |bin: usize| triangle(bin_width * bin as f32, corners) * (2.0 / (right - left));
        (0..=frame_size / 2).map(weight).map(f64::from).collect()
    }))
}

/// The height of a triangle at a place, by its left corner, its top and its right corner.
fn triangle(place: f32, [left, top, right]: [f32; 3]) -> f32 {
    if place <= left || place >= right {
        return 0.0;
    }
    if place <= top { (place - left) / (top - left) } else { (right - place) / (right - top) }
}
