//! Resizing as Pillow does it, byte for byte (`Image.resize`, mode RGB): a filter whose support widens with
//! the scale, weights in fixed point of 22 bits, two passes with bytes between them.

use std::f64::consts::PI;
use std::ops::Range;

use crate::image::pixels::{CHANNELS, Pixels, Window, cropped};
use crate::image::vector::{Lanes, transposed_bytes, vectorized};

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

/// Returns the part `window` of the image resized to `width` × `height`. The caller has checked that both
/// sizes and the window are not empty, and the window lies within.
pub fn resized(source: &Pixels, width: usize, height: usize, window: Window, filter: PillowFilter) -> Pixels {
    if (source.width, source.height) == (width, height) {
        return cropped(source, window);
    }
    if filter == PillowFilter::Nearest {
        return nearest(source, width, height, window);
    }
    let columns = (source.width != width)
        .then(|| FilterAxis::new(source.width, width, window.left..window.left + window.width, filter));
    let rows = (source.height != height)
        .then(|| FilterAxis::new(source.height, height, window.top..window.top + window.height, filter));
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

/// Returns true if the vertical pass comes first, which rounds differently: Pillow 13 does so for a height
/// that shrinks by more than twice as many pixels as the width. Found by comparison.
fn is_vertical_first(source: &Pixels, width: usize, height: usize) -> bool {
    let removed = |from: usize, to: usize| from.cast_signed() - to.cast_signed();
    removed(source.height, height) > 2 * removed(source.width, width).max(0)
}

/// The weights along one side.
struct FilterAxis {
    /// For each pixel of the result, the first source pixel and the count of them.
    spans: Vec<(usize, usize)>,
    /// For each pixel of the result, `taps` weights; those beyond its span are 0.
    weights: Vec<i32>,
    taps: usize,
}

impl FilterAxis {
    fn new(from: usize, to: usize, results: Range<usize>, filter: PillowFilter) -> Self {
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
    fn extent(&self) -> Range<usize> {
        let start = self.spans.iter().map(|(first, _)| *first).min().unwrap_or(0);
        start..self.spans.iter().map(|(first, count)| first + count).max().unwrap_or(0)
    }

    fn results(&self) -> impl Iterator<Item = ((usize, usize), &[i32])> {
        self.spans.iter().copied().zip(self.weights.chunks_exact(self.taps.max(1)))
    }
}

/// The horizontal pass over some rows. 16 rows at a time are turned to columns of 16 bytes, which are summed
/// at once.
fn horizontal(source: &Pixels, columns: &FilterAxis, rows: Range<usize>) -> Pixels {
    let width = columns.spans.len();
    let (stride, from_stride) = (width * CHANNELS, source.stride());
    let mut bytes = vec![0; rows.len() * stride];
    let from = source.bytes.get(rows.start * from_stride..rows.end * from_stride).unwrap_or_default();
    let mut turned = vec![[0; GROUP]; from_stride.next_multiple_of(8)];
    let mut results = vec![[0; GROUP]; stride.next_multiple_of(8)];
    vectorized(
        #[inline(always)]
        || {
            let groups = from.chunks(from_stride * GROUP);
            for (from, to) in groups.zip(bytes.chunks_mut(stride * GROUP)) {
                turn_rows(from, from_stride, &mut turned);
                horizontal_group(&turned, columns, &mut results);
                turn_columns(&results, stride, to);
            }
        },
    );
    Pixels { width, height: rows.len(), bytes }
}

#[inline(always)]
fn horizontal_group(turned: &[[u8; GROUP]], columns: &FilterAxis, results: &mut [[u8; GROUP]]) {
    for (pixel, ((first, count), weights)) in results.as_chunks_mut::<CHANNELS>().0.iter_mut().zip(columns.results()) {
        let span = turned.get(first * CHANNELS..(first + count) * CHANNELS).unwrap_or_default();
        let (mut red, mut green, mut blue) = (Lanes::of(HALF), Lanes::of(HALF), Lanes::of(HALF));
        for ([r, g, b], weight) in span.as_chunks::<CHANNELS>().0.iter().zip(weights) {
            red = red.plus_weighted(r, *weight);
            green = green.plus_weighted(g, *weight);
            blue = blue.plus_weighted(b, *weight);
        }
        for (place, sums) in pixel.iter_mut().zip([red, green, blue]) {
            *place = sums.shifted::<PRECISION>().clamped();
        }
    }
}

/// Turns up to 16 rows of `stride` bytes to columns.
#[inline(always)]
fn turn_rows(rows: &[u8], stride: usize, columns: &mut [[u8; GROUP]]) {
    for (half, rows) in rows.chunks(stride * 8).enumerate() {
        for (block, columns) in columns.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let mut square = [0; 8];
            for (value, row) in square.iter_mut().zip(rows.chunks_exact(stride)) {
                let rest = row.get(block * 8..).unwrap_or_default();
                *value = match rest.first_chunk() {
                    Some(bytes) => u64::from_le_bytes(*bytes),
                    None => rest.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)),
                };
            }
            for (column, value) in columns.iter_mut().zip(transposed_bytes(square)) {
                if let Some(place) = column.as_chunks_mut::<8>().0.get_mut(half) {
                    *place = value.to_le_bytes();
                }
            }
        }
    }
}

/// Turns columns to up to 16 rows of `stride` bytes.
#[inline(always)]
fn turn_columns(columns: &[[u8; GROUP]], stride: usize, rows: &mut [u8]) {
    for (half, rows) in rows.chunks_mut(stride * 8).enumerate() {
        for (block, columns) in columns.as_chunks::<8>().0.iter().enumerate() {
            let mut square = [0; 8];
            for (value, column) in square.iter_mut().zip(columns) {
                *value = column.as_chunks().0.get(half).map_or(0, |bytes| u64::from_le_bytes(*bytes));
            }
            for (row, value) in rows.chunks_exact_mut(stride).zip(transposed_bytes(square)) {
                let rest = row.get_mut(block * 8..).unwrap_or_default();
                match rest.first_chunk_mut() {
                    Some(place) => *place = value.to_le_bytes(),
                    None => rest.iter_mut().zip(value.to_le_bytes()).for_each(|(place, byte)| *place = byte),
                }
            }
        }
    }
}

/// The vertical pass over an image whose first row is `top` of the source.
fn vertical(source: &Pixels, rows: &FilterAxis, top: usize) -> Pixels {
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
    let mut at = 0;
    let (blocks, rest) = result.as_chunks_mut::<BLOCK>();
    for block in blocks {
        let mut sums = [Lanes::of(HALF); BLOCK / 16];
        for (row, weight) in span.chunks_exact(stride).zip(weights) {
            let from = row.get(at..).and_then(|row| row.first_chunk::<BLOCK>()).unwrap_or(&[0; BLOCK]);
            for (sums, from) in sums.iter_mut().zip(from.as_chunks::<16>().0) {
                *sums = sums.plus_weighted(from, *weight);
            }
        }
        for (bytes, sums) in block.as_chunks_mut::<16>().0.iter_mut().zip(sums) {
            *bytes = sums.shifted::<PRECISION>().clamped();
        }
        at += BLOCK;
    }
    for (index, byte) in rest.iter_mut().enumerate() {
        let column = span.iter().skip(at + index).step_by(stride).zip(weights);
        let sum = column.fold(HALF, |sum, (byte, weight)| sum.wrapping_add(i32::from(*byte).wrapping_mul(*weight)));
        *byte = (sum >> PRECISION).clamp(0, 255) as u8;
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

/// The pixel of the source for each place of a side that is resized with `NEAREST`.
pub fn nearest_positions(from: usize, to: usize) -> Vec<usize> {
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

/// Bits of a weight behind the point: two are left for sums below 0 and above 1.
const PRECISION: u32 = 32 - 8 - 2;
/// Rounds half up.
const HALF: i32 = 1 << (PRECISION - 1);
/// Bytes of a row that the vertical pass sums at a time: they stay in registers.
const BLOCK: usize = 64;
/// ImageRows that the horizontal pass sums at a time.
const GROUP: usize = 16;
