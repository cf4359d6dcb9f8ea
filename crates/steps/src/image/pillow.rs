//! Resizing as Pillow does it, byte for byte (`Image.resize`, mode RGB): a filter whose support widens with the scale, weights
//! in fixed point of 22 bits, two passes with bytes between them.

use std::f64::consts::PI;

use crate::image::pixels::{CHANNELS, Pixels, Window, cropped};
use crate::image::vector::vectorized;

/// A filter of Pillow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PillowFilter {
    /// `Image.Resampling.BICUBIC`, a = −0.5.
    Bicubic,
    /// `Image.Resampling.BILINEAR`.
    Bilinear,
    /// `Image.Resampling.BOX`.
    Box,
    /// `Image.Resampling.HAMMING`.
    Hamming,
    /// `Image.Resampling.LANCZOS`.
    Lanczos,
    /// `Image.Resampling.NEAREST`.
    Nearest,
}

impl PillowFilter {
    fn support(self) -> f64 {
        match self {
            Self::Box | Self::Nearest => 0.5,
            Self::Bilinear | Self::Hamming => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    fn weight(self, x: f64) -> f64 {
        let size = x.abs();
        match self {
            Self::Box | Self::Nearest => f64::from(u8::from(x > -0.5 && x <= 0.5)),
            Self::Bilinear if size < 1.0 => 1.0 - size,
            Self::Hamming if size == 0.0 => 1.0,
            Self::Hamming if size < 1.0 => {
                let angle = size * PI;
                angle.sin() / angle * (f64::from(0.54_f32) + f64::from(0.46_f32) * angle.cos())
            }
            Self::Bicubic if size < 1.0 => ((-0.5 + 2.0) * size - (-0.5 + 3.0)) * size * size + 1.0,
            Self::Bicubic if size < 2.0 => (((size - 5.0) * size + 8.0) * size - 4.0) * -0.5,
            Self::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
            _ => 0.0,
        }
    }
}

/// Returns the part `window` of the image resized to `width` × `height`. The caller has checked that both sizes and the window are
/// not empty, and the window lies within.
pub fn resized(source: &Pixels, width: usize, height: usize, window: Window, filter: PillowFilter) -> Pixels {
    if (source.width, source.height) == (width, height) {
        return cropped(source, window);
    }
    if filter == PillowFilter::Nearest {
        return nearest(source, width, height, window);
    }
    let columns = (source.width != width)
        .then(|| Axis::new(source.width, width, window.left..window.left + window.width, filter));
    let rows = (source.height != height)
        .then(|| Axis::new(source.height, height, window.top..window.top + window.height, filter));
    match (&columns, &rows) {
        (Some(columns), Some(rows)) if is_vertical_first(source, width, height) => {
            let down = vertical(source, rows, 0);
            horizontal(&down, columns, 0..down.height)
        }
        (Some(columns), Some(rows)) => {
            // Only rows that the vertical pass reads are resized.
            let needed = rows.extent();
            vertical(&horizontal(source, columns, needed.clone()), rows, needed.start)
        }
        (Some(columns), None) => horizontal(source, columns, window.top..window.top + window.height),
        (None, Some(rows)) => {
            let part = Window { left: window.left, top: 0, width: window.width, height: source.height };
            vertical(&cropped(source, part), rows, 0)
        }
        (None, None) => cropped(source, window),
    }
}

/// Returns true if the vertical pass comes first, which rounds differently: Pillow 13 does so for a height that shrinks by more than
/// twice as many pixels as the width. Found by comparison.
fn is_vertical_first(source: &Pixels, width: usize, height: usize) -> bool {
    let removed = |from: usize, to: usize| from.cast_signed() - to.cast_signed();
    removed(source.height, height) > 2 * removed(source.width, width).max(0)
}

/// The weights along one side.
struct Axis {
    /// For each pixel of the result, the first source pixel and the count of them.
    spans: Vec<(usize, usize)>,
    /// For each pixel of the result, `taps` weights; those beyond its span are 0.
    weights: Vec<i32>,
    taps: usize,
}

impl Axis {
    fn new(from: usize, to: usize, results: std::ops::Range<usize>, filter: PillowFilter) -> Self {
        let scale = from as f64 / to as f64;
        let filter_scale = scale.max(1.0);
        let support = filter.support() * filter_scale;
        let taps = support.ceil() as usize * 2 + 1;
        let step = 1.0 / filter_scale;
        let mut spans = Vec::with_capacity(results.len());
        let mut weights = Vec::with_capacity(results.len() * taps);
        let mut exact = Vec::with_capacity(taps);
        for result in results {
            let centre = (result as f64 + 0.5) * scale;
            // A cast truncates towards 0, and to 0 below it, which is Pillow's clamp.
            let first = (centre - support + 0.5) as usize;
            let end = ((centre + support + 0.5) as usize).min(from);
            exact.clear();
            exact.extend(
                (first..end).map(|at| filter.weight(((at - first) as f64 + first as f64 - centre + 0.5) * step)),
            );
            let sum: f64 = exact.iter().sum();
            spans.push((first, exact.len()));
            for weight in &exact {
                let weight = if sum == 0.0 { *weight } else { weight / sum };
                let half = if weight < 0.0 { -0.5 } else { 0.5 };
                weights.push((half + weight * f64::from(1 << PRECISION)) as i32);
            }
            weights.resize(spans.len() * taps, 0);
        }
        Self { spans, weights, taps }
    }

    /// The source pixels that any result needs.
    fn extent(&self) -> std::ops::Range<usize> {
        let start = self.spans.iter().map(|(first, _)| *first).min().unwrap_or(0);
        start..self.spans.iter().map(|(first, count)| first + count).max().unwrap_or(0)
    }

    fn results(&self) -> impl Iterator<Item = ((usize, usize), &[i32])> {
        self.spans.iter().copied().zip(self.weights.chunks_exact(self.taps.max(1)))
    }
}

fn horizontal(source: &Pixels, columns: &Axis, rows: std::ops::Range<usize>) -> Pixels {
    let width = columns.spans.len();
    let mut bytes = vec![0; rows.len() * width * CHANNELS];
    // One more byte: each pixel is read with the byte behind it, as four bytes are one load.
    let mut padded = vec![0; source.stride() + 1];
    let results = bytes.chunks_exact_mut((width * CHANNELS).max(1));
    for (result, row) in results.zip(source.rows().skip(rows.start).take(rows.len())) {
        for (to, from) in padded.iter_mut().zip(row) {
            *to = *from;
        }
        vectorized(
            #[inline(always)]
            || horizontal_row(&padded, columns, result),
        );
    }
    Pixels { width, height: rows.len(), bytes }
}

#[inline(always)]
fn horizontal_row(padded: &[u8], columns: &Axis, result: &mut [u8]) {
    for (pixel, ((first, count), weights)) in result.chunks_exact_mut(CHANNELS).zip(columns.results()) {
        let mut sums = [HALF; 4];
        let span = padded.get(first * CHANNELS..(first + count) * CHANNELS + 1).unwrap_or_default();
        for (from, weight) in span.windows(4).step_by(CHANNELS).zip(weights) {
            for (sum, byte) in sums.iter_mut().zip(from) {
                *sum = sum.wrapping_add(i32::from(*byte).wrapping_mul(*weight));
            }
        }
        for (byte, sum) in pixel.iter_mut().zip(sums) {
            *byte = clipped(sum);
        }
    }
}

/// The vertical pass over an image whose first row is `top` of the source.
fn vertical(source: &Pixels, rows: &Axis, top: usize) -> Pixels {
    let stride = source.stride();
    let mut bytes = vec![0; rows.spans.len() * stride];
    vectorized(
        #[inline(always)]
        || {
            for (result, ((first, count), weights)) in bytes.chunks_exact_mut(stride.max(1)).zip(rows.results()) {
                let start = (first - top) * stride;
                let span = source.bytes.get(start..start + count * stride).unwrap_or_default();
                vertical_row(span, weights, result);
            }
        },
    );
    Pixels { width: source.width, height: rows.spans.len(), bytes }
}

#[inline(always)]
fn vertical_row(span: &[u8], weights: &[i32], result: &mut [u8]) {
    let stride = result.len();
    let (blocks, rest) = result.as_chunks_mut::<BLOCK>();
    for (index, block) in blocks.iter_mut().enumerate() {
        let mut sums = [HALF; BLOCK];
        for (row, weight) in span.chunks_exact(stride).zip(weights) {
            let from = row.get(index * BLOCK..).and_then(|row| row.first_chunk::<BLOCK>()).unwrap_or(&[0; BLOCK]);
            for (sum, byte) in sums.iter_mut().zip(from) {
                *sum = sum.wrapping_add(i32::from(*byte).wrapping_mul(*weight));
            }
        }
        *block = sums.map(clipped);
    }
    let start = stride - rest.len();
    let mut sums = [HALF; BLOCK];
    for (row, weight) in span.chunks_exact(stride).zip(weights) {
        for (sum, byte) in sums.iter_mut().zip(row.get(start..).unwrap_or_default()) {
            *sum = sum.wrapping_add(i32::from(*byte).wrapping_mul(*weight));
        }
    }
    for (byte, sum) in rest.iter_mut().zip(sums) {
        *byte = clipped(sum);
    }
}

/// Pillow's nearest neighbour: an affine transform whose position is summed up step by step.
fn nearest(source: &Pixels, width: usize, height: usize, window: Window) -> Pixels {
    let columns = nearest_positions(source.width, width);
    let rows = nearest_positions(source.height, height);
    let columns = columns.get(window.left..window.left + window.width).unwrap_or_default();
    let mut bytes = Vec::with_capacity(window.width * window.height * CHANNELS);
    for row in rows.iter().skip(window.top).take(window.height) {
        let (pixels, _) = source.row(*row).as_chunks::<CHANNELS>();
        for column in columns {
            bytes.extend_from_slice(pixels.get(*column).unwrap_or(&[0; CHANNELS]));
        }
    }
    Pixels { width: window.width, height: window.height, bytes }
}

fn nearest_positions(from: usize, to: usize) -> Vec<usize> {
    let step = from as f64 / to as f64;
    let mut position = step * 0.5;
    (0..to)
        .map(|_| {
            let whole = position as usize;
            position += step;
            whole.min(from.saturating_sub(1))
        })
        .collect()
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 {
        return 1.0;
    }
    let angle = x * PI;
    angle.sin() / angle
}

#[inline(always)]
fn clipped(sum: i32) -> u8 {
    (sum >> PRECISION).clamp(0, 255) as u8
}

/// Bits of a weight behind the point: two are left for sums below 0 and above 1.
const PRECISION: u32 = 32 - 8 - 2;
/// Rounds half up.
const HALF: i32 = 1 << (PRECISION - 1);
/// Bytes of a row that the vertical pass sums at a time: they stay in registers.
const BLOCK: usize = 64;
