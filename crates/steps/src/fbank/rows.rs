//! The frames of a row after their filters: normalised, and stacked.

use crate::fbank::settings::{FbankNormal, FrameStack};

/// Subtracts the mean of each column over all frames, and divides by the standard deviation if that is asked for.
pub fn normalize(frames: &mut [f32], size: usize, normal: FbankNormal) {
    let count = frames.len() / size.max(1);
    if normal == FbankNormal::Off || count == 0 {
        return;
    }
    let (mut means, mut deviations) = (vec![0.0_f64; size], vec![0.0_f64; size]);
    for frame in frames.chunks_exact(size) {
        for (mean, value) in means.iter_mut().zip(frame) {
            *mean += f64::from(*value) / count as f64;
        }
    }
    for frame in frames.chunks_exact(size) {
        for ((deviation, value), mean) in deviations.iter_mut().zip(frame).zip(&means) {
            *deviation += (f64::from(*value) - mean).powi(2) / count as f64;
        }
    }
    for frame in frames.chunks_exact_mut(size) {
        for ((value, mean), deviation) in frame.iter_mut().zip(&means).zip(&deviations) {
            let centred = f64::from(*value) - mean;
            *value = match normal {
                FbankNormal::MeanDeviation => (centred / (deviation.sqrt() + DEVIATION_MIN)) as f32,
                _ => centred as f32,
            };
        }
    }
}

/// The count of frames after stacking.
pub const fn stacked_count(count: usize, stack: FrameStack) -> usize {
    if stack.pads {
        return count.div_ceil(stack.shift);
    }
    match count.checked_sub(stack.window) {
        Some(room) => 1 + room / stack.shift,
        None => 0,
    }
}

/// Appends each frame with its neighbours: FunASR's `apply_lfr`, or without padding that of sherpa-onnx.
pub fn stack(frames: &[f32], size: usize, stack: FrameStack, out: &mut Vec<f32>) {
    let count = frames.len() / size.max(1);
    let before = if stack.pads { (stack.window - 1) / 2 } else { 0 };
    for index in 0..stacked_count(count, stack) {
        for place in 0..stack.window {
            let frame = (index * stack.shift + place).saturating_sub(before).min(count.saturating_sub(1));
            out.extend_from_slice(frames.get(frame * size..(frame + 1) * size).unwrap_or_default());
        }
    }
}

/// Added to a standard deviation, so that columns that do not change are not divided by 0.
const DEVIATION_MIN: f64 = 1e-5;
