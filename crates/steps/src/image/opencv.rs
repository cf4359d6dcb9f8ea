//! Resizing as OpenCV does it, byte for byte (`cv2.resize`, 8 bits, three channels, as its x86-64 wheels
//! compute): nearest, linear, cubic and area. Unlike Pillow's filters, linear and cubic do not widen with the scale. Cubic
//! is OpenCV's own code: where the processor allows, the wheels compute it by Intel's closed library, unless they are told
//! not to (`cv2.ipp.setUseIPP(False)`), which gives one value of 25 another last bit.

use crate::image::pixels::{Pixels, row};
use crate::image::turn::{self, Column, GROUP, turn_rows, turn_shorts};
use crate::image::vector::{Lanes, vectorized};

mod area;
mod cubic;

/// A method of OpenCV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpencvFilter {
    /// `INTER_AREA`.
    Area,
    /// `INTER_CUBIC`.
    Cubic,
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
        OpencvFilter::Cubic => cubic::resized(source, &columns, &rows),
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
    let (positions, rows_read) = (columns.nearest(), rows.nearest());
    source.mapped(columns.to, rows.to, |from, to| {
        for (places, index) in to.chunks_exact_mut(columns.to.max(1)).zip(&rows_read) {
            let from = row(from, source.width, *index);
            for (place, column) in places.iter_mut().zip(&positions) {
                *place = from.get(*column).copied().unwrap_or(0);
            }
        }
    })
}

/// A pair of neighbours along a side, and their weights.
type TapPair = ([usize; 2], [i32; 2]);

/// The rows of the source that a band of the result reads, resized along the columns: for each pixel the sum of the
/// products, without its last 4 bits.
struct Across {
    columns: Vec<TapPair>,
    /// The numbers of the rows, rising.
    needed: Vec<usize>,
    turned: Vec<Column>,
    results: Vec<[i16; GROUP]>,
    sums: Vec<i16>,
}

impl Across {
    fn new(source: &Pixels, columns: &[Taps]) -> Self {
        let columns: Vec<_> =
            columns.iter().map(|taps| (taps.kept(source.width), taps.weights.map(i32::from))).collect();
        let (turned, results) = (turn::columns(source.width), turn::columns(columns.len()));
        Self { columns, needed: Vec::new(), turned, results, sums: Vec::new() }
    }

    /// The sums of a row of the source.
    fn row(&self, index: usize) -> &[i16] {
        let (width, place) = (self.columns.len(), self.needed.binary_search(&index).unwrap_or(0));
        self.sums.get(place * width..(place + 1) * width).unwrap_or_default()
    }

    fn make(&mut self, plane: &[u8], (width, height): (usize, usize), rows: &[Taps]) {
        self.needed = needed_rows(rows.iter().flat_map(|taps| taps.kept(height)));
        let stride = self.columns.len();
        self.sums.resize(self.needed.len() * stride, 0);
        for (group, sums) in self.needed.chunks(GROUP).zip(self.sums.chunks_mut((stride * GROUP).max(1))) {
            turn_rows(group.iter().map(|index| row(plane, width, *index)), &mut self.turned);
            vectorized(
                #[inline(always)]
                || {
                    for (result, ([left, right], [first, second])) in self.results.iter_mut().zip(&self.columns) {
                        let column = |at: usize| self.turned.get(at).unwrap_or(&[0; GROUP]);
                        let sums = Lanes::of(0).plus_weighted(column(*left), *first);
                        *result = sums.plus_weighted(column(*right), *second).shifted::<4>().shorts();
                    }
                },
            );
            turn_shorts(&self.results, stride, sums);
        }
    }
}

/// Each row once, rising.
fn needed_rows(rows: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut needed: Vec<_> = rows.collect();
    needed.sort_unstable();
    needed.dedup();
    needed
}

fn linear(source: &Pixels, columns: &[Taps], rows: &[Taps]) -> Pixels {
    let width = columns.len();
    let mut across = Across::new(source, columns);
    source.mapped(width, rows.len(), |plane, bytes| {
        for (rows, results) in rows.chunks(BAND).zip(bytes.chunks_mut((width * BAND).max(1))) {
            across.make(plane, (source.width, source.height), rows);
            vectorized(
                #[inline(always)]
                || {
                    for (result, taps) in results.chunks_exact_mut(width.max(1)).zip(rows) {
                        let [upper, lower] = taps.kept(source.height).map(|index| across.row(index));
                        let [first, second] = taps.weights;
                        for ((byte, upper), lower) in result.iter_mut().zip(upper).zip(lower) {
                            *byte = between(*upper, *lower, first, second);
                        }
                    }
                },
            );
        }
    })
}

/// A pixel between two rows: each product without its last 16 bits, and half a unit.
#[inline(always)]
const fn between(upper: i16, lower: i16, first: i16, second: i16) -> u8 {
    let upper = ((upper as i32).wrapping_mul(first as i32) >> 16) as i16;
    let lower = ((lower as i32).wrapping_mul(second as i32) >> 16) as i16;
    (upper.wrapping_add(lower).wrapping_add(2) >> 2) as u8
}

/// A weight in 11 bits.
fn fixed(weight: f32) -> i16 {
    (weight * f32::from(ONE)).round_ties_even() as i16
}

/// Rows of a result that are made at a time: the sums that they read then stay in the cache.
const BAND: usize = 128;
/// The weight 1.
const ONE: i16 = 2048;
