//! A quadrilateral of an image, made upright, byte for byte as OpenCV 5 does it with `getPerspectiveTransform` and
//! `warpPerspective` (`INTER_CUBIC`, `BORDER_REPLICATE`) on a processor with fused multiplication and addition.

use base::error::Error;

use crate::image::pixels::{CHANNELS, Pixels};
use crate::image::vector::vectorized;

/// The corners in the image, clockwise from that of the upper left corner of the result.
pub type QuadCorners = [[f32; 2]; 4];

/// The pixels of an image one after the other, with some bytes behind them: four pixels are read as 16 bytes.
pub struct WarpSource {
    width: usize,
    height: usize,
    bytes: Vec<u8>,
}

/// From a point of the result to one of the image, in homogeneous coordinates.
pub type PerspectiveMatrix = [[f32; 3]; 3];

impl WarpSource {
    /// The pixels of an image that has some.
    pub fn new(pixels: &Pixels) -> Self {
        let mut bytes = pixels.interleaved();
        bytes.extend([0; 4]);
        Self { width: pixels.width, height: pixels.height, bytes }
    }

    /// The pixels of a quadrilateral. The caller has checked the size of the result.
    pub fn warped(&self, matrix: &PerspectiveMatrix, width: usize, height: usize) -> Pixels {
        let mut bytes = vec![0; width * height * CHANNELS];
        let (reds, others) = bytes.split_at_mut(width * height);
        let (greens, blues) = others.split_at_mut(width * height);
        vectorized(
            #[inline(always)]
            || {
                let rows = reds.chunks_exact_mut(width).zip(greens.chunks_exact_mut(width));
                for (y, ((reds, greens), blues)) in rows.zip(blues.chunks_exact_mut(width)).enumerate() {
                    let line = WarpLine::new(matrix, y);
                    let blocks = reds.chunks_mut(BLOCK).zip(greens.chunks_mut(BLOCK)).zip(blues.chunks_mut(BLOCK));
                    for (((reds, greens), blues), start) in blocks.zip((0..).step_by(BLOCK)) {
                        let [x, y] = line.positions(start);
                        let (x, y) = (WarpTaps::new(&x, self.width), WarpTaps::new(&y, self.height));
                        for (places, values) in [reds, greens, blues].into_iter().zip(self.block(&x, &y)) {
                            for (place, value) in places.iter_mut().zip(values) {
                                *place = value;
                            }
                        }
                    }
                }
            },
        );
        Pixels { width, height, bytes }
    }

    /// The image at some positions, between its pixels: the values of each channel.
    #[inline(always)]
    fn block(&self, x: &WarpTaps, y: &WarpTaps) -> [[u8; BLOCK]; CHANNELS] {
        let mut totals = [[0.0_f32; BLOCK]; CHANNELS];
        let is_inner = x.is_within(self.width) && y.is_within(self.height);
        let mut words = [[0_u32; BLOCK]; 4];
        for (row, y_weights) in (0..).zip(&y.weights) {
            if is_inner {
                self.read(x, y, row, &mut words);
            } else {
                self.read_clamped(x, y, row, &mut words);
            }
            let [a, b, c, d] = &words;
            let [p, q, r, s] = &x.weights;
            for (totals, shift) in totals.iter_mut().zip([0, 8, 16]) {
                let value = |word: &u32| (*word >> shift & 0xFF).cast_signed() as f32;
                let weighted = a.iter().zip(p).zip(b.iter().zip(q)).zip(c.iter().zip(r)).zip(d.iter().zip(s));
                for ((total, ((((a, p), (b, q)), (c, r)), (d, s))), y_weight) in
                    totals.iter_mut().zip(weighted).zip(y_weights)
                {
                    let sum = value(b).mul_add(*q, value(a) * p);
                    let sum = value(d).mul_add(*s, value(c).mul_add(*r, sum));
                    *total = sum.mul_add(*y_weight, *total);
                }
            }
        }
        let mut bytes = [[0; BLOCK]; CHANNELS];
        for (bytes, totals) in bytes.iter_mut().zip(&totals) {
            for (byte, total) in bytes.iter_mut().zip(totals) {
                *byte = whole(total.clamp(0.0, 255.0)) as u8;
            }
        }
        bytes
    }

    /// Reads four pixels of a row for each position, all of which are in the image: three bytes each, and one behind them.
    #[inline(always)]
    fn read(&self, x: &WarpTaps, y: &WarpTaps, row: i32, words: &mut [[u32; BLOCK]; 4]) {
        let [a, b, c, d] = words;
        let words = a.iter_mut().zip(b).zip(c).zip(d);
        for ((((a, b), c), d), (left, top)) in words.zip(x.first.iter().zip(&y.first)) {
            let row = (top.wrapping_add(row)).cast_unsigned() as usize;
            let pixel = row.wrapping_mul(self.width).wrapping_add(left.cast_unsigned() as usize);
            let bytes = self.bytes.get(pixel.wrapping_mul(CHANNELS)..).and_then(<[u8]>::first_chunk::<16>);
            let bytes = u128::from_le_bytes(*bytes.unwrap_or(&[0; 16]));
            (*a, *b, *c, *d) = (bytes as u32, (bytes >> 24) as u32, (bytes >> 48) as u32, (bytes >> 72) as u32);
        }
    }

    /// The same for positions anywhere: pixels at the borders are repeated.
    fn read_clamped(&self, x: &WarpTaps, y: &WarpTaps, row: i32, words: &mut [[u32; BLOCK]; 4]) {
        let within = |place: i32, side: usize| usize::try_from(place).unwrap_or(0).min(side - 1);
        for (words, tap) in words.iter_mut().zip(0..) {
            for (word, (left, top)) in words.iter_mut().zip(x.first.iter().zip(&y.first)) {
                let pixel = within(top + row, self.height) * self.width + within(left + tap, self.width);
                let bytes = self.bytes.get(pixel * CHANNELS..).and_then(<[u8]>::first_chunk::<4>);
                *word = u32::from_le_bytes(*bytes.unwrap_or(&[0; 4]));
            }
        }
    }
}

/// A row of the result, as it lies in the image.
struct WarpLine {
    /// The numerators of x and y, and the denominator, at the first pixel.
    start: [f64; 3],
    /// Added for each pixel.
    step: [f64; 3],
}

impl WarpLine {
    #[inline(always)]
    fn new(matrix: &PerspectiveMatrix, y: usize) -> Self {
        Self {
            start: matrix.map(|[_, by_y, constant]| f64::from(y as f32 * by_y + constant)),
            step: matrix.map(|[by_x, ..]| f64::from(by_x)),
        }
    }

    /// The positions of pixels from `start` on.
    #[inline(always)]
    fn positions(&self, start: usize) -> [[f32; BLOCK]; 2] {
        let ([x_start, y_start, z_start], [x_step, y_step, z_step]) = (self.start, self.step);
        let mut positions = [[0.0; BLOCK]; 2];
        let [xs, ys] = &mut positions;
        let first = start as f64;
        for ((x, y), place) in xs.iter_mut().zip(ys).zip(PLACES) {
            let column = first + place;
            let inverse = 1.0 / (z_start + z_step * column);
            *x = ((x_start + x_step * column) * inverse) as f32;
            *y = ((y_start + y_step * column) * inverse) as f32;
        }
        positions
    }
}

/// The four pixels around each position along a side.
struct WarpTaps {
    first: [i32; BLOCK],
    weights: [[f32; BLOCK]; 4],
}

impl WarpTaps {
    #[inline(always)]
    fn new(positions: &[f32; BLOCK], side: usize) -> Self {
        // OpenCV keeps positions within three times the image, or what it takes for a small one.
        let bound = side.max(16) as f32;
        let mut taps = Self { first: [0; BLOCK], weights: [[0.0; BLOCK]; 4] };
        let [a, b, c, d] = &mut taps.weights;
        let weights = a.iter_mut().zip(b).zip(c).zip(d);
        for ((position, first), (((a, b), c), d)) in positions.iter().zip(&mut taps.first).zip(weights) {
            let position = position.max(-bound).min(bound * 2.0);
            let floor = position.floor();
            *first = whole(floor).wrapping_sub(1);
            [*a, *b, *c, *d] = weights_at(position - floor);
        }
        taps
    }

    /// Returns true if all pixels are within a side.
    #[inline(always)]
    fn is_within(&self, side: usize) -> bool {
        let last = side as i32 - 4;
        self.first.iter().fold(true, |within, first| within & (*first >= 0) & (*first <= last))
    }
}

/// The cubic weights at a distance from the second pixel, with the parameter -0.75.
#[inline(always)]
fn weights_at(distance: f32) -> [f32; 4] {
    const A: f32 = -0.75;
    let (squared, rest) = (distance * distance, 1.0 - distance);
    let first = A * (distance * (rest * rest));
    let last = A * (squared * rest);
    let second = squared.mul_add((A + 2.0).mul_add(distance, -(A + 3.0)), 1.0);
    [first, second, 1.0 - first - second - last, last]
}

/// The nearest integer of a number below two million, halves to the even one. Unlike a conversion, it becomes vector code.
#[inline(always)]
const fn whole(value: f32) -> i32 {
    // Adding it rounds to an integer, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    (value + ROUND).to_bits().wrapping_sub(ROUND.to_bits()).cast_signed()
}

/// Pixels whose positions are computed together.
const BLOCK: usize = 16;
/// Their places.
const PLACES: [f64; BLOCK] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];

/// The matrix from a result of this size back to the image.
///
/// # Errors
/// If three corners lie on a line.
pub fn matrix(corners: &QuadCorners, width: usize, height: usize) -> Result<PerspectiveMatrix, Error> {
    let forward = transform(corners, width as f32, height as f32);
    forward
        .and_then(|forward| inverse(&forward))
        .ok_or_else(|| Error::invalid("its corners have no perspective: three lie on a line, or nearly"))
}

/// The matrix from the corners to those of a rectangle, `getPerspectiveTransform`.
fn transform(corners: &QuadCorners, width: f32, height: f32) -> Option<[[f64; 3]; 3]> {
    let targets = [[0.0, 0.0], [width, 0.0], [width, height], [0.0, height]];
    let mut rows = [[0.0_f64; 9]; 8];
    for (place, row) in rows.iter_mut().enumerate() {
        let ([x, y], [to_x, to_y]) = corners.iter().zip(targets).nth(place % 4).map(|(from, to)| (*from, to))?;
        let target = if place < 4 { to_x } else { to_y };
        let (products, own) = ([-x * target, -y * target].map(f64::from), [x, y, 1.0].map(f64::from));
        let zeros = [0.0; 3];
        let (first, second) = if place < 4 { (own, zeros) } else { (zeros, own) };
        let values = first.into_iter().chain(second).chain(products).chain([f64::from(target)]);
        for (cell, value) in row.iter_mut().zip(values) {
            *cell = value;
        }
    }
    let system = rows;
    let [a, b, c, d, e, f, g, h] = solved(rows)?;
    // OpenCV takes another way to a matrix beyond this bound.
    let solution = [a, b, c, d, e, f, g, h];
    let fault = system.iter().map(|row| {
        let product: f64 = row.iter().zip(solution).map(|(cell, value)| cell * value).sum();
        (product - row[8]) * (product - row[8])
    });
    (fault.sum::<f64>().sqrt() < 1e-8).then_some([[a, b, c], [d, e, f], [g, h, 1.0]])
}

/// Solves a system, whose last column is the right side, in the order of operations of OpenCV's `LUImpl`.
fn solved(mut rows: [[f64; 9]; 8]) -> Option<[f64; 8]> {
    for place in 0..8 {
        let pivot = |row: &[f64; 9]| row.get(place).copied().unwrap_or(0.0).abs();
        let mut best = place;
        for other in place + 1..8 {
            if pivot(rows.get(other)?) > pivot(rows.get(best)?) {
                best = other;
            }
        }
        if pivot(rows.get(best)?) < f64::EPSILON * 100.0 {
            return None;
        }
        rows.swap(place, best);
        let own = *rows.get(place)?;
        let divisor = -1.0 / own.get(place)?;
        for row in rows.iter_mut().skip(place + 1) {
            let factor = row.get(place)? * divisor;
            for (cell, value) in row.iter_mut().zip(own).skip(place + 1) {
                *cell += factor * value;
            }
        }
    }
    let mut solution = [0.0; 8];
    for (place, row) in rows.iter().enumerate().rev() {
        let mut value = row[8];
        for (cell, known) in row.iter().zip(solution).skip(place + 1) {
            value -= cell * known;
        }
        *solution.get_mut(place)? = value / row.get(place)?;
    }
    Some(solution)
}

/// The inverse of a matrix, in FP32; `None` without one.
fn inverse(matrix: &[[f64; 3]; 3]) -> Option<PerspectiveMatrix> {
    let [[a, b, c], [d, e, f], [g, h, i]] = *matrix;
    let determinant = a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g);
    if determinant == 0.0 || !determinant.is_finite() {
        return None;
    }
    let factor = 1.0 / determinant;
    let inverse = [
        [e * i - f * h, c * h - b * i, b * f - c * e],
        [f * g - d * i, a * i - c * g, c * d - a * f],
        [d * h - e * g, b * g - a * h, a * e - b * d],
    ];
    Some(inverse.map(|row| row.map(|value| (value * factor) as f32)))
}
