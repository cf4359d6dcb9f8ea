//! Resizing as OpenCV does it, byte for byte (`cv2.resize`, 8 bits, three channels, as its x86-64 wheels compute): nearest, linear
//! and area. Unlike Pillow's filters, linear does not widen with the scale. Cubic is left out: where the processor allows, the wheels
//! compute it by Intel's closed library, whose last bits differ from OpenCV's own code.

use crate::image::pixels::{CHANNELS, Pixels};
use crate::image::vector::vectorized;

mod area;

/// A method of OpenCV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpencvFilter {
    /// `INTER_AREA`.
    Area,
    /// `INTER_LINEAR`.
    Linear,
    /// `INTER_NEAREST`.
    Nearest,
}

/// Returns the image resized to `width` × `height`. The caller has checked that neither is 0.
pub fn resized(source: &Pixels, width: usize, height: usize, filter: OpencvFilter) -> Pixels {
    if (source.width, source.height) == (width, height) {
        return source.clone();
    }
    let columns = Side::new(source.width, width);
    let rows = Side::new(source.height, height);
    let is_halved = columns.whole_scale() == Some(2) && rows.whole_scale() == Some(2);
    match filter {
        OpencvFilter::Nearest => nearest(source, &columns, &rows),
        // OpenCV takes its area method for a linear one at exactly half the size.
        OpencvFilter::Linear if is_halved => area::resized(source, &columns, &rows),
        OpencvFilter::Linear => linear(source, &columns.clamped(columns.linear()), &rows.linear()),
        OpencvFilter::Area if columns.scale >= 1.0 && rows.scale >= 1.0 => area::resized(source, &columns, &rows),
        OpencvFilter::Area => linear(source, &columns.clamped(columns.area_enlarged()), &rows.area_enlarged()),
    }
}

/// The scale along one side.
struct Side {
    from: usize,
    to: usize,
    /// Pixels of the result for one of the source.
    inverse: f64,
    /// Pixels of the source for one of the result.
    scale: f64,
}

/// The first source pixel of a pixel of the result, before it is kept within the image, and the weights of it and of those
/// behind it, in 11 bits.
struct Taps {
    first: i64,
    weights: [i16; 2],
}

impl Side {
    fn new(from: usize, to: usize) -> Self {
        let inverse = to as f64 / from as f64;
        Self { from, to, inverse, scale: 1.0 / inverse }
    }

    /// The scale if it is an integer, as OpenCV decides it.
    fn whole_scale(&self) -> Option<usize> {
        let whole = self.scale.round_ties_even();
        ((self.scale - whole).abs() < f64::EPSILON).then_some(whole as usize)
    }

    /// The position of a pixel's centre in the source: the pixel before it, and the distance from there.
    fn position(&self, result: usize) -> (i64, f32) {
        let position = ((result as f64 + 0.5) * self.scale - 0.5) as f32;
        (position.floor() as i64, position - position.floor())
    }

    fn linear(&self) -> Vec<Taps> {
        (0..self.to).map(|result| Taps::linear(self.position(result))).collect()
    }

    /// The positions of the area method if a side grows.
    fn area_enlarged(&self) -> Vec<Taps> {
        let position = |result: usize| {
            let first = (result as f64 * self.scale).floor();
            let rest = ((result + 1) as f64 - (first + 1.0) * self.inverse) as f32;
            (first as i64, if rest <= 0.0 { 0.0 } else { rest - rest.floor() })
        };
        (0..self.to).map(|result| Taps::linear(position(result))).collect()
    }

    /// Columns beyond a border are its pixel, with the weights 1 and 0. Rows keep theirs.
    fn clamped(&self, mut taps: Vec<Taps>) -> Vec<Taps> {
        for tap in &mut taps {
            if !(0..self.from as i64 - 1).contains(&tap.first) {
                tap.weights = [ONE, 0];
            }
        }
        taps
    }

    fn nearest(&self) -> Vec<usize> {
        let last = self.from.saturating_sub(1);
        (0..self.to).map(|result| ((result as f64 * self.scale).floor() as usize).min(last)).collect()
    }
}

impl Taps {
    fn linear((first, rest): (i64, f32)) -> Self {
        Self { first, weights: [fixed(1.0 - rest), fixed(rest)] }
    }

    /// The pixels, kept within a side.
    fn kept(&self, from: usize) -> [usize; 2] {
        [self.first, self.first + 1].map(|at| at.clamp(0, from as i64 - 1) as usize)
    }
}

fn nearest(source: &Pixels, columns: &Side, rows: &Side) -> Pixels {
    let positions = columns.nearest();
    let mut bytes = Vec::with_capacity(columns.to * rows.to * CHANNELS);
    for row in rows.nearest() {
        let (pixels, _) = source.row(row).as_chunks::<CHANNELS>();
        for column in &positions {
            bytes.extend_from_slice(pixels.get(*column).unwrap_or(&[0; CHANNELS]));
        }
    }
    Pixels { width: columns.to, height: rows.to, bytes }
}

/// Rows of the source, resized along the columns, by the number of the row: those of a result follow each other.
struct Across<'a> {
    source: &'a Pixels,
    columns: Vec<([usize; 2], [i16; 2])>,
    rows: [(Option<usize>, Vec<i16>); 2],
}

impl<'a> Across<'a> {
    fn new(source: &'a Pixels, columns: &[Taps]) -> Self {
        let rows = [(); 2].map(|()| (None, vec![0; columns.len() * CHANNELS]));
        let columns = columns.iter().map(|taps| (taps.kept(source.width), taps.weights)).collect();
        Self { source, columns, rows }
    }

    /// Makes a row, unless it is there.
    #[inline(always)]
    fn make(&mut self, index: usize) {
        let Some((held, values)) = self.rows.get_mut(index % 2) else { return };
        if *held == Some(index) {
            return;
        }
        *held = Some(index);
        let (pixels, _) = self.source.row(index).as_chunks::<CHANNELS>();
        for (result, (taps, weights)) in values.as_chunks_mut::<CHANNELS>().0.iter_mut().zip(&self.columns) {
            let mut sums = [0_i32; CHANNELS];
            for (at, weight) in taps.iter().zip(weights) {
                let pixel = pixels.get(*at).unwrap_or(&[0; CHANNELS]);
                for (sum, byte) in sums.iter_mut().zip(pixel) {
                    *sum = sum.wrapping_add(i32::from(*byte).wrapping_mul(i32::from(*weight)));
                }
            }
            // A byte by a weight of 11 bits, without its last 4 bits, fits into 16.
            *result = sums.map(|sum| (sum >> 4) as i16);
        }
    }

    /// The rows with these numbers, which were made.
    fn rows(&self, indices: [usize; 2]) -> [&[i16]; 2] {
        indices.map(|index| self.rows.get(index % 2).map(|(_, values)| &values[..]).unwrap_or_default())
    }
}

fn linear(source: &Pixels, columns: &[Taps], rows: &[Taps]) -> Pixels {
    let stride = columns.len() * CHANNELS;
    let mut bytes = vec![0; rows.len() * stride];
    let mut across = Across::new(source, columns);
    vectorized(
        #[inline(always)]
        || {
            for (result, taps) in bytes.chunks_exact_mut(stride.max(1)).zip(rows) {
                let indices = taps.kept(source.height);
                for index in indices {
                    across.make(index);
                }
                let [upper, lower] = across.rows(indices);
                let [first, second] = taps.weights;
                for ((byte, upper), lower) in result.iter_mut().zip(upper).zip(lower) {
                    *byte = (scaled(*upper, first).wrapping_add(scaled(*lower, second)).wrapping_add(2) >> 2) as u8;
                }
            }
        },
    );
    Pixels { width: columns.len(), height: rows.len(), bytes }
}

#[inline(always)]
fn scaled(value: i16, weight: i16) -> i16 {
    (i32::from(value).wrapping_mul(i32::from(weight)) >> 16) as i16
}

/// A weight in 11 bits.
fn fixed(weight: f32) -> i16 {
    (weight * f32::from(ONE)).round_ties_even() as i16
}

/// The weight 1.
const ONE: i16 = 2048;
