//! OpenCV's cubic method (a = −0.75) in its own code, for three channels: sums of integers along the columns. Along the
//! rows it has floats in vectors of eight numbers, and integers for the numbers of a row that no vector holds.

use super::{BAND, SideScale, needed_rows};
use crate::image::pixels::{CHANNELS, Pixels, row};
use crate::image::turn::{self, Column, GROUP, turn_rows, turn_shorts};
use crate::image::vector::{Lanes, vectorized};

/// The source pixels of a pixel of the result, and their weights in 11 bits.
#[derive(Clone, Copy)]
struct CubicSpan {
    pixels: [usize; 4],
    weights: [i32; 4],
}

/// Returns the image at the scale of the sides.
pub fn resized(source: &Pixels, columns: &SideScale, rows: &SideScale) -> Pixels {
    let (across, down) = (spans(columns), spans(rows));
    let mut sums = RowSums::new(source.width, columns.to);
    // The channels of a grey pixel too may lie on both sides of the last vector's end.
    let bytes = source.channels().concat();
    let vectors_end = columns.to * CHANNELS / VECTOR * VECTOR;
    let mut channel = 0;
    Pixels { bytes, ..*source }.mapped(columns.to, rows.to, |plane, bytes| {
        let in_vectors = vectors_end.saturating_sub(channel).div_ceil(CHANNELS).min(columns.to);
        channel += 1;
        for (spans, results) in down.chunks(BAND).zip(bytes.chunks_mut((columns.to * BAND).max(1))) {
            sums.make(plane, source.width, spans, &across);
            vectorized(
                #[inline(always)]
                || {
                    for (result, span) in results.chunks_exact_mut(columns.to.max(1)).zip(spans) {
                        let rows = span.pixels.map(|index| sums.row(index));
                        let (floats, integers) = result.split_at_mut(in_vectors);
                        let behind = rows.map(|row| row.get(in_vectors..).unwrap_or_default());
                        with_floats(rows, span.weights, floats);
                        with_integers(behind, span.weights, integers);
                    }
                },
            );
        }
    })
}

/// The sums of products along the columns, of the rows that a band of the result reads.
struct RowSums {
    width: usize,
    /// The numbers of the rows, rising.
    needed: Vec<usize>,
    turned: Vec<Column>,
    /// The upper and the lower 16 bits of sums.
    halves: [Vec<[i16; GROUP]>; 2],
    halves_of_rows: [Vec<i16>; 2],
    sums: Vec<i32>,
}

impl RowSums {
    fn new(from: usize, width: usize) -> Self {
        Self {
            width,
            needed: Vec::new(),
            turned: turn::columns(from),
            halves: [(); 2].map(|()| turn::columns(width)),
            halves_of_rows: [(); 2].map(|()| vec![0; width * GROUP]),
            sums: Vec::new(),
        }
    }

    /// The sums of a row of the source.
    fn row(&self, index: usize) -> &[i32] {
        let place = self.needed.binary_search(&index).unwrap_or(0);
        self.sums.get(place * self.width..(place + 1) * self.width).unwrap_or_default()
    }

    fn make(&mut self, plane: &[u8], stride: usize, down: &[CubicSpan], across: &[CubicSpan]) {
        self.needed = needed_rows(down.iter().flat_map(|span| span.pixels));
        self.sums.resize(self.needed.len() * self.width, 0);
        for (group, sums) in self.needed.chunks(GROUP).zip(self.sums.chunks_mut((self.width * GROUP).max(1))) {
            turn_rows(group.iter().map(|index| row(plane, stride, *index)), &mut self.turned);
            let [uppers, lowers] = &mut self.halves;
            vectorized(
                #[inline(always)]
                || {
                    for ((upper, lower), span) in uppers.iter_mut().zip(lowers).zip(across) {
                        let mut sums = Lanes::of(0);
                        for (pixel, weight) in span.pixels.into_iter().zip(span.weights) {
                            sums = sums.plus_weighted(self.turned.get(pixel).unwrap_or(&[0; GROUP]), weight);
                        }
                        *lower = sums.shorts();
                        *upper = sums.shifted::<16>().shorts();
                    }
                },
            );
            for (columns, rows) in self.halves.iter().zip(&mut self.halves_of_rows) {
                turn_shorts(columns, self.width, rows);
            }
            let [uppers, lowers] = &self.halves_of_rows;
            for ((sum, upper), lower) in sums.iter_mut().zip(uppers).zip(lowers) {
                *sum = i32::from(*upper) << 16 | i32::from(lower.cast_unsigned());
            }
        }
    }
}

#[inline(always)]
fn with_floats(rows: [&[i32]; 4], weights: [i32; 4], result: &mut [u8]) {
    let [a, b, c, d] = rows;
    let [first, second, third, fourth] = weights.map(|weight| weight as f32 * (1.0 / (ONE * ONE)));
    for ((((byte, a), b), c), d) in result.iter_mut().zip(a).zip(b).zip(c).zip(d) {
        let sum = *a as f32 * first + (*b as f32 * second + (*c as f32 * third + *d as f32 * fourth));
        *byte = sum.round_ties_even().clamp(0.0, 255.0) as u8;
    }
}

#[inline(always)]
fn with_integers(rows: [&[i32]; 4], weights: [i32; 4], result: &mut [u8]) {
    let [a, b, c, d] = rows;
    let [first, second, third, fourth] = weights;
    for ((((byte, a), b), c), d) in result.iter_mut().zip(a).zip(b).zip(c).zip(d) {
        let sum = a.wrapping_mul(first).wrapping_add(b.wrapping_mul(second));
        let sum = sum.wrapping_add(c.wrapping_mul(third)).wrapping_add(d.wrapping_mul(fourth));
        *byte = (sum.wrapping_add(1 << 21) >> 22).clamp(0, 255) as u8;
    }
}

fn spans(side: &SideScale) -> Vec<CubicSpan> {
    let span = |result: usize| {
        let position = side.position(result);
        let pixel = |offset: i64| (position.pixel + offset).clamp(0, side.from as i64 - 1) as usize;
        let weights = weights(position.distance).map(|weight| (weight * ONE).round_ties_even() as i32);
        CubicSpan { pixels: [-1, 0, 1, 2].map(pixel), weights }
    };
    (0..side.to).map(span).collect()
}

/// OpenCV's `interpolateCubic`.
fn weights(x: f32) -> [f32; 4] {
    const A: f32 = -0.75;
    let first = ((A * (x + 1.0) - 5.0 * A) * (x + 1.0) + 8.0 * A) * (x + 1.0) - 4.0 * A;
    let near = |x: f32| ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
    let (second, third) = (near(x), near(1.0 - x));
    [first, second, third, 1.0 - first - second - third]
}

/// Numbers in a vector of OpenCV's code.
const VECTOR: usize = 8;
/// The weight 1.
const ONE: f32 = 2048.0;
