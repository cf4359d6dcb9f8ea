//! Resizing as Pillow does it, byte for byte (`Image.resize`, modes RGB and L): a filter whose support widens with
//! the scale, weights in fixed point of 22 bits, two passes with bytes between them.

use std::f64::consts::PI;
use std::ops::Range;

use crate::image::pixels::{Pixels, Window, crop, cropped, row};
use crate::image::turn::{self, Column, GROUP, turn_columns, turn_rows};
use crate::image::vector::{Lanes, vectorized};

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
    let is_vertical_first = is_vertical_first(source, width, height);
    let stride = source.width;
    source.mapped(window.width, window.height, |from, to| match (&columns, &rows) {
        (Some(columns), Some(rows)) if is_vertical_first => {
            let mut down = vec![0; stride * window.height];
            vertical(from, stride, rows, 0, &mut down);
            horizontal(&down, stride, columns, to);
        }
        (Some(columns), Some(rows)) => {
            // Only rows that the vertical pass reads are resized.
            let needed = rows.extent();
            let mut across = vec![0; window.width * needed.len()];
            horizontal(rows_of(from, stride, &needed), stride, columns, &mut across);
            vertical(&across, window.width, rows, needed.start, to);
        }
        (Some(columns), None) => {
            horizontal(rows_of(from, stride, &(window.top..window.top + window.height)), stride, columns, to);
        }
        (None, Some(rows)) => {
            let part = Window { left: window.left, top: 0, width: window.width, height: source.height };
            let mut columns = vec![0; part.width * part.height];
            crop(from, stride, part, &mut columns);
            vertical(&columns, window.width, rows, 0, to);
        }
        (None, None) => crop(from, stride, window, to),
    })
}

fn rows_of<'a>(plane: &'a [u8], stride: usize, rows: &Range<usize>) -> &'a [u8] {
    plane.get(rows.start * stride..rows.end * stride).unwrap_or_default()
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

/// The horizontal pass over rows of `from` bytes.
fn horizontal(source: &[u8], from: usize, columns: &FilterAxis, bytes: &mut [u8]) {
    let width = columns.spans.len();
    let mut turned = turn::columns(from);
    let mut results = turn::columns(width);
    let groups = source.chunks((from * GROUP).max(1));
    for (rows, to) in groups.zip(bytes.chunks_mut((width * GROUP).max(1))) {
        turn_rows(rows.chunks_exact(from.max(1)), &mut turned);
        vectorized(
            #[inline(always)]
            || horizontal_group(&turned, columns, &mut results),
        );
        turn_columns(&results, width, to);
    }
}

#[inline(always)]
fn horizontal_group(turned: &[Column], columns: &FilterAxis, results: &mut [Column]) {
    for (result, ((first, count), weights)) in results.iter_mut().zip(columns.results()) {
        let span = turned.get(first..first + count).unwrap_or_default();
        let mut sums = Lanes::of(HALF);
        for (column, weight) in span.iter().zip(weights) {
            sums = sums.plus_weighted(column, *weight);
        }
        *result = sums.shifted::<PRECISION>().clamped();
    }
}

/// The vertical pass over rows of `stride` bytes, of which the first is row `top` of the image.
fn vertical(source: &[u8], stride: usize, rows: &FilterAxis, top: usize, bytes: &mut [u8]) {
    vectorized(
        #[inline(always)]
        || {
            for (result, ((first, count), weights)) in bytes.chunks_exact_mut(stride.max(1)).zip(rows.results()) {
                let start = (first - top) * stride;
                let span = source.get(start..start + count * stride).unwrap_or_default();
                vertical_row(span, weights, result);
            }
        },
    );
}

#[inline(always)]
fn vertical_row(span: &[u8], weights: &[i32], result: &mut [u8]) {
    let stride = result.len();
    let (blocks, rest) = result.as_chunks_mut::<BLOCK>();
    let (parts, rest) = rest.as_chunks_mut::<16>();
    let mut at = 0;
    for block in blocks {
        *block = vertical_block(span, stride, at, weights);
        at += BLOCK;
    }
    for part in parts {
        *part = vertical_block(span, stride, at, weights);
        at += 16;
    }
    for (index, byte) in rest.iter_mut().enumerate() {
        let column = span.iter().skip(at + index).step_by(stride).zip(weights);
        let sum = column.fold(HALF, |sum, (byte, weight)| sum.wrapping_add(i32::from(*byte).wrapping_mul(*weight)));
        *byte = (sum >> PRECISION).clamp(0, 255) as u8;
    }
}

/// The results from a column on.
#[inline(always)]
fn vertical_block<const N: usize>(span: &[u8], stride: usize, at: usize, weights: &[i32]) -> [u8; N] {
    let mut sums = Lanes::of(HALF);
    for (row, weight) in span.chunks_exact(stride).zip(weights) {
        let from = row.get(at..).and_then(|row| row.first_chunk()).unwrap_or(&[0; N]);
        sums = sums.plus_weighted(from, *weight);
    }
    sums.shifted::<PRECISION>().clamped()
}

/// Pillow's nearest neighbour: an affine transform whose position is summed up step by step.
fn nearest(source: &Pixels, width: usize, height: usize, window: Window) -> Pixels {
    let columns = nearest_positions(source.width, width);
    let rows = nearest_positions(source.height, height);
    let columns = columns.get(window.left..window.left + window.width).unwrap_or_default();
    source.mapped(window.width, window.height, |from, to| {
        for (places, index) in to.chunks_exact_mut(window.width.max(1)).zip(rows.iter().skip(window.top)) {
            let from = row(from, source.width, *index);
            for (place, column) in places.iter_mut().zip(columns) {
                *place = from.get(*column).copied().unwrap_or(0);
            }
        }
    })
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
