//! Resizing as OpenCV does it, byte for byte (`cv2.resize`, 8 bits, three channels, as its x86-64 wheels
//! compute): nearest, linear and area. Unlike Pillow's filters, linear does not widen with the scale. Cubic
//! is left out: where the processor allows, the wheels compute it by Intel's closed library, whose last bits
//! differ from OpenCV's own code.

use crate::image::pixels::{CHANNELS, Pixels};
use crate::image::vector::{pack, vectorized};

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
    let columns = SideScale::new(source.width, width);
    let rows = SideScale::new(source.height, height);
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

/// The pixel of the source for each place of a side that is resized with `INTER_NEAREST`.
pub fn nearest_places(from: usize, to: usize) -> Vec<usize> {
    SideScale::new(from, to).nearest()
}

/// The scale along one side.
struct SideScale {
    from: usize,
    to: usize,
    /// Pixels of the result for one of the source.
    inverse: f64,
    /// Pixels of the source for one of the result.
    scale: f64,
}

/// The first source pixel of a pixel of the result, before it is kept within the image, and the weights of it
/// and of those behind it, in 11 bits.
struct Taps {
    first: i64,
    weights: [i16; 2],
}

/// A position between two pixels of the source.
struct SourcePosition {
    /// The pixel before it.
    pixel: i64,
    /// The distance from that pixel, below 1.
    distance: f32,
}

impl SideScale {
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
    fn position(&self, result: usize) -> SourcePosition {
        let position = ((result as f64 + 0.5) * self.scale - 0.5) as f32;
        SourcePosition { pixel: position.floor() as i64, distance: position - position.floor() }
    }

    fn linear(&self) -> Vec<Taps> {
        (0..self.to).map(|result| Taps::linear(self.position(result))).collect()
    }

    /// The positions of the area method if a side grows.
    fn area_enlarged(&self) -> Vec<Taps> {
        let position = |result: usize| {
            let first = (result as f64 * self.scale).floor();
            let rest = ((result + 1) as f64 - (first + 1.0) * self.inverse) as f32;
            SourcePosition { pixel: first as i64, distance: if rest <= 0.0 { 0.0 } else { rest - rest.floor() } }
        };
        (0..self.to).map(|result| Taps::linear(position(result))).collect()
    }

    /// Columns beyond a border are its pixel, with the weights 1 and 0. ImageRows keep theirs.
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
    fn linear(position: SourcePosition) -> Self {
        let SourcePosition { pixel, distance } = position;
        Self { first: pixel, weights: [fixed(1.0 - distance), fixed(distance)] }
    }

    /// The pixels, kept within a side.
    fn kept(&self, from: usize) -> [usize; 2] {
        [self.first, self.first + 1].map(|at| at.clamp(0, from as i64 - 1) as usize)
    }
}

fn nearest(source: &Pixels, columns: &SideScale, rows: &SideScale) -> Pixels {
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

/// ImageRows of the source, resized along the columns, by the number of the row: those of a result follow each
/// other.
struct Across<'a> {
    source: &'a Pixels,
    columns: Vec<([usize; 2], [u64; 2])>,
    /// Sums, in the parts of words.
    rows: [(Option<usize>, Vec<u64>); 2],
    /// The pixels of a row: three channels in the parts of a word, which hold a byte by a weight, so that one
    /// product is that of all.
    words: Vec<u64>,
}

impl<'a> Across<'a> {
    fn new(source: &'a Pixels, columns: &[Taps]) -> Self {
        let rows = [(); 2].map(|()| (None, vec![0; columns.len()]));
        let weights = |taps: &Taps| taps.weights.map(|weight| u64::from(weight.unsigned_abs()));
        let columns = columns.iter().map(|taps| (taps.kept(source.width), weights(taps))).collect();
        Self { source, columns, rows, words: vec![0; source.width] }
    }

    /// Makes a row, unless it is there.
    #[inline(always)]
    fn make(&mut self, index: usize) {
        let Some((held, values)) = self.rows.get_mut(index % 2) else { return };
        if *held == Some(index) {
            return;
        }
        *held = Some(index);
        let pixels = self.source.row(index).as_chunks::<CHANNELS>().0;
        for (word, [red, green, blue]) in self.words.iter_mut().zip(pixels) {
            *word = u64::from(*red) | u64::from(*green) << PART | u64::from(*blue) << (2 * PART);
        }
        let words = &self.words[..];
        for (sum, ([left, right], [first, second])) in values.iter_mut().zip(&self.columns) {
            let word = |at: usize| words.get(at).copied().unwrap_or(0);
            *sum = word(*left).wrapping_mul(*first).wrapping_add(word(*right).wrapping_mul(*second));
        }
    }

    /// The rows with these numbers, which were made.
    fn rows(&self, [upper, lower]: [usize; 2]) -> [&[u64]; 2] {
        let row = |index: usize| self.rows.get(index % 2).map(|(_, values)| &values[..]).unwrap_or_default();
        [row(upper), row(lower)]
    }
}

fn linear(source: &Pixels, columns: &[Taps], rows: &[Taps]) -> Pixels {
    let stride = columns.len() * CHANNELS;
    let mut bytes = vec![0; rows.len() * stride];
    let mut across = Across::new(source, columns);
    let mut packed = vec![0; columns.len()];
    vectorized(
        #[inline(always)]
        || {
            for (result, taps) in bytes.chunks_exact_mut(stride.max(1)).zip(rows) {
                let indices = taps.kept(source.height);
                for index in indices {
                    across.make(index);
                }
                let [upper, lower] = across.rows(indices);
                let [first, second] = taps.weights.map(|weight| u64::from(weight.unsigned_abs()));
                for ((packed, upper), lower) in packed.iter_mut().zip(upper).zip(lower) {
                    let red = between(*upper, *lower, first, second);
                    let green = between(*upper >> PART, *lower >> PART, first, second);
                    let blue = between(*upper >> (2 * PART), *lower >> (2 * PART), first, second);
                    *packed = (red | green << 8 | blue << 16) as u32;
                }
                pack(&packed, result);
            }
        },
    );
    Pixels { width: columns.len(), height: rows.len(), bytes }
}

/// A channel between two rows: their sums without their last 4 bits, each product without its last 16, and
/// half a unit.
#[inline(always)]
const fn between(upper: u64, lower: u64, first: u64, second: u64) -> u64 {
    let upper = (upper >> 4 & SUM).wrapping_mul(first) >> 16;
    let lower = (lower >> 4 & SUM).wrapping_mul(second) >> 16;
    upper.wrapping_add(lower).wrapping_add(2) >> 2
}

/// A weight in 11 bits.
fn fixed(weight: f32) -> i16 {
    (weight * f32::from(ONE)).round_ties_even() as i16
}

/// Bits of a channel in a word.
const PART: u32 = 21;
/// Bits of a sum that is kept.
const SUM: u64 = 0x7FFF;
/// The weight 1.
const ONE: i16 = 2048;
