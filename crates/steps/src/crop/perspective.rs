//! A quadrilateral of an image, made upright, byte for byte as OpenCV 5 does it with `getPerspectiveTransform` and
//! `warpPerspective` (`INTER_CUBIC`, `BORDER_REPLICATE`) on a processor with fused multiplication and addition.

use base::error::Error;

use crate::image::pixels::{CHANNELS, Pixels};
use crate::image::vector::vectorized;

/// The corners in the image, clockwise from that of the upper left corner of the result.
pub type QuadCorners = [[f32; 2]; 4];

/// The pixels of an image, with a byte behind them: a pixel is read as four bytes.
pub struct WarpSource {
    width: usize,
    height: usize,
    bytes: Vec<u8>,
}

/// From a point of the result to one of the image, in homogeneous coordinates.
pub type PerspectiveMatrix = [[f32; 3]; 3];

impl WarpSource {
    /// Takes over the pixels of an image that has some.
    pub fn new(pixels: Pixels) -> Self {
        let Pixels { width, height, mut bytes } = pixels;
        bytes.push(0);
        Self { width, height, bytes }
    }

    /// The pixels of a quadrilateral. The caller has checked the size of the result.
    pub fn warped(&self, matrix: &PerspectiveMatrix, width: usize, height: usize) -> Pixels {
        let mut bytes = vec![0; width * height * CHANNELS];
        vectorized(
            #[inline(always)]
            || {
                for (y, row) in bytes.chunks_exact_mut(width * CHANNELS).enumerate() {
                    let [x_of_y, y_of_y, z_of_y] = matrix.map(|[_, by_y, constant]| y as f32 * by_y + constant);
                    let [x_by_x, y_by_x, z_by_x] = matrix.map(|[by_x, ..]| f64::from(by_x));
                    for (x, pixel) in row.as_chunks_mut::<CHANNELS>().0.iter_mut().enumerate() {
                        let x = x as f64;
                        let inverse = 1.0 / (f64::from(z_of_y) + z_by_x * x);
                        let source_x = ((f64::from(x_of_y) + x_by_x * x) * inverse) as f32;
                        let source_y = ((f64::from(y_of_y) + y_by_x * x) * inverse) as f32;
                        *pixel = self.pixel(source_x, source_y);
                    }
                }
            },
        );
        Pixels { width, height, bytes }
    }

    /// The image at a position, between its pixels.
    #[inline(always)]
    fn pixel(&self, x: f32, y: f32) -> [u8; CHANNELS] {
        let (left, x_weights) = taps(x, self.width);
        let (top, y_weights) = taps(y, self.height);
        let mut total = [0.0_f32; 4];
        for (row, y_weight) in (top..).zip(y_weights) {
            let row = row.clamp(0, self.height as i64 - 1) as usize;
            let pixels = self.four(row, left);
            let mut sum = pixels[0].map(|value| f32::from(value) * x_weights[0]);
            for (pixel, weight) in pixels.iter().zip(x_weights).skip(1) {
                for (sum, value) in sum.iter_mut().zip(pixel) {
                    *sum = f32::from(*value).mul_add(weight, *sum);
                }
            }
            for (total, sum) in total.iter_mut().zip(sum) {
                *total = sum.mul_add(y_weight, *total);
            }
        }
        let [red, green, blue, _] = total.map(|value| value.round_ties_even() as u8);
        [red, green, blue]
    }

    /// Four pixels of a row from a column on, those beyond a border repeated, each with a byte behind it.
    #[inline(always)]
    fn four(&self, row: usize, left: i64) -> [[u8; 4]; 4] {
        let start = row * self.width;
        let at = |column: i64| {
            let place = (start + column.clamp(0, self.width as i64 - 1) as usize) * CHANNELS;
            self.bytes.get(place..).and_then(<[u8]>::first_chunk::<4>).copied().unwrap_or_default()
        };
        if let Ok(column) = usize::try_from(left)
            && column + 4 <= self.width
        {
            let place = (start + column) * CHANNELS;
            let bytes = self.bytes.get(place..).and_then(<[u8]>::first_chunk::<13>);
            if let Some([a, b, c, d, e, f, g, h, i, j, k, l, m]) = bytes.copied() {
                return [[a, b, c, d], [d, e, f, g], [g, h, i, j], [j, k, l, m]];
            }
        }
        [at(left), at(left + 1), at(left + 2), at(left + 3)]
    }
}

/// The first of the four pixels around a position along a side, and their weights.
#[inline(always)]
fn taps(position: f32, side: usize) -> (i64, [f32; 4]) {
    // OpenCV keeps positions within three times the image, or what it takes for a small one.
    let bound = side.max(16) as f32;
    let position = position.max(-bound).min(bound * 2.0);
    let floor = position.floor();
    (floor as i64 - 1, weights(position - floor))
}

/// The cubic weights at a distance from the second pixel, with the parameter -0.75.
#[inline(always)]
fn weights(distance: f32) -> [f32; 4] {
    const A: f32 = -0.75;
    let (squared, rest) = (distance * distance, 1.0 - distance);
    let first = A * (distance * (rest * rest));
    let last = A * (squared * rest);
    let second = squared.mul_add((A + 2.0).mul_add(distance, -(A + 3.0)), 1.0);
    [first, second, 1.0 - first - second - last, last]
}

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

/// The inverse of a matrix, in FP32; `None` if there is none.
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
