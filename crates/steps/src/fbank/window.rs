//! The frames of samples, as kaldi cuts and weighs them. Sums are FP32 in its order.

use crate::spectrum::{FRAMES, Lane};

/// A number of each frame in FP32.
type SingleLane = [f32; FRAMES];

/// The cutting of frames.
pub struct FrameWindow {
    /// Samples from one frame to the next.
    pub shift: usize,
    /// False if a frame begins where its middle is due, with samples mirrored at both ends.
    pub snips_edges: bool,
    pub removes_offset: bool,
    /// The part of a sample that is subtracted from the next one; 0 for none.
    pub preemphasis: f32,
    /// The weight of each sample of a frame.
    pub weights: Vec<f32>,
    /// A factor of all samples.
    pub scale: f32,
    /// True for the energy of the samples before pre-emphasis and weights.
    pub is_energy_raw: bool,
}

impl FrameWindow {
    /// The count of frames of `length` samples.
    pub const fn frame_count(&self, length: usize) -> usize {
        if !self.snips_edges {
            return (length + self.shift / 2) / self.shift;
        }
        match length.checked_sub(self.weights.len()) {
            Some(room) => 1 + room / self.shift,
            None => 0,
        }
    }

    /// Cuts four frames, the last ones again if there are fewer, and returns their energies.
    #[inline(always)]
    pub fn cut(&self, samples: &[f32], first: usize, last: usize, room: &mut FrameRoom) -> SingleLane {
        let FrameRoom { singles, frames } = room;
        let size = self.weights.len();
        singles.clear();
        singles.resize(size, [0.0; FRAMES]);
        for lane in 0..FRAMES {
            self.gather(samples, (first + lane).min(last), lane, singles);
        }
        if self.removes_offset {
            let sums =
                singles.iter().fold([0.0; FRAMES], |sums, sample| lanes(sums, *sample, |sum, sample| sum + sample));
            let means = sums.map(|sum: f32| sum / size as f32);
            for sample in singles.iter_mut() {
                *sample = lanes(*sample, means, |sample, mean| sample - mean);
            }
        }
        let mut energies = if self.is_energy_raw { energy(singles) } else { [0.0; FRAMES] };
        if self.preemphasis != 0.0 {
            let mut before = singles.first().copied().unwrap_or_default();
            for sample in singles.iter_mut() {
                let own = *sample;
                *sample = lanes(own, before, |own, before| own - self.preemphasis * before);
                before = own;
            }
        }
        for (sample, weight) in singles.iter_mut().zip(&self.weights) {
            *sample = sample.map(|sample| sample * weight);
        }
        if !self.is_energy_raw {
            energies = energy(singles);
        }
        frames.clear();
        frames.extend(singles.iter().map(|sample| sample.map(f64::from)));
        energies
    }

    /// Copies the samples of a frame to its lane.
    #[inline(always)]
    fn gather(&self, samples: &[f32], frame: usize, lane: usize, singles: &mut [SingleLane]) {
        let size = self.weights.len();
        let start = if self.snips_edges {
            (frame * self.shift).cast_signed()
        } else {
            (frame * self.shift + self.shift / 2).cast_signed() - (size / 2).cast_signed()
        };
        let places = singles.iter_mut().filter_map(|places| places.get_mut(lane));
        let inside = usize::try_from(start).ok().and_then(|start| samples.get(start..)?.get(..size));
        match inside {
            Some(inside) => {
                for (place, sample) in places.zip(inside) {
                    *place = sample * self.scale;
                }
            }
            None => {
                for (place, index) in places.zip(start..) {
                    *place = samples.get(mirrored(index, samples.len())).copied().unwrap_or(0.0) * self.scale;
                }
            }
        }
    }
}

/// Memory of four frames.
#[derive(Default)]
pub struct FrameRoom {
    singles: Vec<SingleLane>,
    /// The samples of the frames that were cut.
    pub frames: Vec<Lane>,
}

/// The weights of a window of this kind.
pub fn weights(kind: &str, size: usize, blackman: f64) -> Vec<f32> {
    // "hann" is periodic, the others are symmetric.
    let steps = if kind == "hann" { size } else { size.saturating_sub(1) };
    let turn = std::f64::consts::TAU / steps as f64;
    let weight = |index: usize| {
        let angle = turn * index as f64;
        match kind {
            "hamming" => 0.54 - 0.46 * angle.cos(),
            "hann" | "hanning" => 0.5 - 0.5 * angle.cos(),
            "sine" => (0.5 * angle).sin(),
            "rectangular" => 1.0,
            "blackman" => blackman - 0.5 * angle.cos() + (0.5 - blackman) * (2.0 * angle).cos(),
            _ => (0.5 - 0.5 * angle.cos()).powf(0.85),
        }
    };
    (0..size).map(|index| weight(index) as f32).collect()
}

/// The place of a sample in a row that is mirrored at both ends, as often as need be.
fn mirrored(index: isize, length: usize) -> usize {
    let length = length.cast_signed().max(1);
    let index = index.rem_euclid(2 * length);
    index.min(2 * length - 1 - index).cast_unsigned()
}

#[inline(always)]
fn energy(samples: &[SingleLane]) -> SingleLane {
    samples.iter().fold([0.0; FRAMES], |sums, sample| lanes(sums, *sample, |sum, sample| sum + sample * sample))
}

#[inline(always)]
fn lanes(left: SingleLane, right: SingleLane, function: impl Fn(f32, f32) -> f32) -> SingleLane {
    let mut out = left;
    for (out, right) in out.iter_mut().zip(&right) {
        *out = function(*out, *right);
    }
    out
}
