//! From the samples of components to pixels: upsampling and colours, as libjpeg's `jdsample.c` and
//! `jdcolor.c`.

use super::Colour;
use super::frame::{Component, JpegFrame};
use crate::image::pixels::{CHANNELS, Pixels};
use crate::image::vector::{pack, vectorized};

/// The pixels of a frame whose scans have come.
pub fn pixels(frame: &JpegFrame, colour: Colour) -> Pixels {
    let stride = frame.width * CHANNELS;
    let mut bytes = vec![0; frame.height * stride];
    let is_luminance = is_luminance(frame, colour);
    // A row of each component; samples beyond the width are those of whole blocks.
    let mut packed = vec![0; frame.width];
    let mut rows: Vec<_> = frame.components.iter().map(|component| Upsampled::new(frame, component)).collect();
    vectorized(
        #[inline(always)]
        || {
            for (index, result) in bytes.chunks_exact_mut(stride.max(1)).enumerate() {
                for row in &mut rows {
                    row.make(index);
                }
                match &rows[..] {
                    [first, second, third] if is_luminance => {
                        from_luminance(first.row(), second.row(), third.row(), &mut packed, result)
                    }
                    [first, second, third] => copied(first.row(), second.row(), third.row(), result),
                    [first, ..] => copied(first.row(), first.row(), first.row(), result),
                    [] => {}
                }
            }
        },
    );
    Pixels { width: frame.width, height: frame.height, bytes }
}

/// Returns true if three components are luminance and chrominance, by the rules of libjpeg's `jdapimin.c`.
fn is_luminance(frame: &JpegFrame, colour: Colour) -> bool {
    let ids: Vec<_> = frame.components.iter().map(|component| component.id).collect();
    match colour.adobe {
        _ if colour.is_jfif => true,
        Some(transform) => transform != 0,
        None => ids != *b"RGB",
    }
}

/// A component's rows in the size of the image.
struct Upsampled<'a> {
    component: &'a Component,
    method: Upsampling,
    /// Two rows of the component as one, with a column more on both sides.
    sums: Vec<u16>,
    /// The row.
    row: Vec<u8>,
}

#[derive(Clone, Copy)]
enum Upsampling {
    /// The samples as they are.
    Copy,
    /// Twice the columns, as 3 to 1 of the two nearest.
    Across,
    /// Twice the rows, likewise.
    Down,
    /// Both.
    Both,
    /// Each sample this many times, along and down.
    Repeat(usize, usize),
}

impl<'a> Upsampled<'a> {
    fn new(frame: &JpegFrame, component: &'a Component) -> Self {
        let across = frame.sampling.across / component.sampling.across;
        let down = frame.sampling.down / component.sampling.down;
        let method = match (across, down) {
            (1, 1) => Upsampling::Copy,
            (2, 1) if component.width > 2 => Upsampling::Across,
            (1, 2) => Upsampling::Down,
            (2, 2) if component.width > 2 => Upsampling::Both,
            _ => Upsampling::Repeat(across, down),
        };
        let sums = vec![0; component.width + 2];
        let row = vec![0; component.width * across];
        Self { component, method, sums, row }
    }

    fn row(&self) -> &[u8] {
        &self.row
    }

    #[inline(always)]
    fn source(&self, row: usize) -> &'a [u8] {
        let stride = self.component.stride();
        let start = row.min(self.component.height.saturating_sub(1)) * stride;
        self.component.samples.get(start..start + self.component.width).unwrap_or_default()
    }

    /// Makes the row with this number.
    #[inline(always)]
    fn make(&mut self, index: usize) {
        // The row next to the nearest one: above it for the upper of its two rows, below it for the lower.
        let nearest = index / 2;
        let next = if index.is_multiple_of(2) { nearest.saturating_sub(1) } else { nearest + 1 };
        match self.method {
            Upsampling::Copy => {
                let source = self.source(index);
                self.row.copy_from_slice(source);
            }
            Upsampling::Across => {
                let source = self.source(index);
                self.pad(source.iter().map(|sample| u16::from(*sample)));
                self.widen(1, 2, 2);
            }
            Upsampling::Down => {
                let bias = if index.is_multiple_of(2) { 1 } else { 2 };
                let (near, far) = (self.source(nearest), self.source(next));
                for (result, (near, far)) in self.row.iter_mut().zip(near.iter().zip(far)) {
                    *result =
                        (u16::from(*near).wrapping_mul(3).wrapping_add(u16::from(*far)).wrapping_add(bias) >> 2) as u8;
                }
            }
            Upsampling::Both => {
                let (near, far) = (self.source(nearest), self.source(next));
                let sums = near.iter().zip(far);
                self.pad(sums.map(|(near, far)| u16::from(*near).wrapping_mul(3).wrapping_add(u16::from(*far))));
                self.widen(8, 7, 4);
            }
            Upsampling::Repeat(across, down) => {
                let source = self.source(index / down);
                for (results, sample) in self.row.chunks_exact_mut(across).zip(source) {
                    results.fill(*sample);
                }
            }
        }
    }

    /// Sets the sums, and repeats the first and the last one.
    #[inline(always)]
    fn pad(&mut self, values: impl Iterator<Item = u16>) {
        for (sum, value) in self.sums.iter_mut().skip(1).zip(values) {
            *sum = value;
        }
        if let [before, first, .., last, behind] = &mut self.sums[..] {
            *before = *first;
            *behind = *last;
        }
    }

    /// Twice the columns of the sums, 3 to 1 of the two nearest.
    #[inline(always)]
    fn widen(&mut self, left_bias: u16, right_bias: u16, shift: u32) {
        let middle = self.sums.get(1..).unwrap_or_default();
        let behind = self.sums.get(2..).unwrap_or_default();
        let results = self.row.as_chunks_mut::<2>().0.iter_mut();
        for (((result, before), middle), behind) in results.zip(&self.sums).zip(middle).zip(behind) {
            let threefold = middle.wrapping_mul(3);
            let left = threefold.wrapping_add(*before).wrapping_add(left_bias) >> shift;
            let right = threefold.wrapping_add(*behind).wrapping_add(right_bias) >> shift;
            *result = [left as u8, right as u8];
        }
    }
}

/// Colours of a row, four bytes each, then packed to three.
#[inline(always)]
fn from_luminance(luminance: &[u8], blue: &[u8], red: &[u8], packed: &mut [u32], result: &mut [u8]) {
    for (((packed, y), cb), cr) in packed.iter_mut().zip(luminance).zip(blue).zip(red) {
        let (y, cb, cr) = (i32::from(*y), i32::from(*cb).wrapping_sub(128), i32::from(*cr).wrapping_sub(128));
        let r = y.wrapping_add(cr.wrapping_mul(91_881).wrapping_add(HALF) >> 16);
        let g =
            y.wrapping_add(cb.wrapping_mul(-22_554).wrapping_add(cr.wrapping_mul(-46_802)).wrapping_add(HALF) >> 16);
        let b = y.wrapping_add(cb.wrapping_mul(116_130).wrapping_add(HALF) >> 16);
        *packed = (r.clamp(0, 255) | g.clamp(0, 255) << 8 | b.clamp(0, 255) << 16).cast_unsigned();
    }
    pack(packed, result);
}

#[inline(always)]
fn copied(first: &[u8], second: &[u8], third: &[u8], result: &mut [u8]) {
    let results = result.as_chunks_mut::<CHANNELS>().0;
    for (((result, first), second), third) in results.iter_mut().zip(first).zip(second).zip(third) {
        *result = [*first, *second, *third];
    }
}

/// Rounds half up.
const HALF: i32 = 1 << 15;
