//! From the samples of components to pixels: upsampling and colours, as libjpeg's `jdsample.c` and
//! `jdcolor.c`.

use super::Colour;
use super::frame::{Component, JpegFrame};
use crate::image::colour::GreyWeights;
use crate::image::pixels::{CHANNELS, Pixels};
use crate::image::vector::vectorized;

/// The pixels of a frame whose scans have come: grey, red, green and blue, or the four planes of a CMYK file as they are, in
/// which Adobe's programs write 255 for no ink.
pub fn pixels(frame: &JpegFrame, colour: Colour) -> Pixels {
    let (width, height) = (frame.width, frame.height);
    let is_luminance = is_luminance(frame, colour);
    let mut rows: Vec<_> = frame.components.iter().map(|component| Upsampled::new(frame, component)).collect();
    let mut bytes = vec![0; width * height * frame.components.len()];
    let mut planes: Vec<_> = bytes.chunks_exact_mut(width * height).collect();
    vectorized(
        #[inline(always)]
        || match (&mut rows[..], &mut planes[..]) {
            ([first, second, third], [reds, greens, blues]) => {
                let results = reds.chunks_exact_mut(width).zip(greens.chunks_exact_mut(width));
                for (index, ((red, green), blue)) in results.zip(blues.chunks_exact_mut(width)).enumerate() {
                    let (first, second, third) = (first.row(index), second.row(index), third.row(index));
                    if is_luminance {
                        from_luminance(first, second, third, [red, green, blue]);
                    } else {
                        copy(first, red);
                        copy(second, green);
                        copy(third, blue);
                    }
                }
            }
            ([grey], [plane]) => {
                for (index, result) in plane.chunks_exact_mut(width).enumerate() {
                    copy(grey.row(index), result);
                }
            }
            ([first, second, third, key], [cyans, magentas, yellows, keys]) => {
                let results = cyans.chunks_exact_mut(width).zip(magentas.chunks_exact_mut(width));
                let results = results.zip(yellows.chunks_exact_mut(width)).zip(keys.chunks_exact_mut(width));
                for (index, (((cyan, magenta), yellow), black)) in results.enumerate() {
                    let (first, second, third) = (first.row(index), second.row(index), third.row(index));
                    if is_luminance {
                        from_luminance(first, second, third, [&mut *cyan, &mut *magenta, &mut *yellow]);
                        [cyan, magenta, yellow].into_iter().flatten().for_each(|value| *value = 255 - *value);
                    } else {
                        copy(first, cyan);
                        copy(second, magenta);
                        copy(third, yellow);
                    }
                    copy(key.row(index), black);
                }
            }
            _ => {}
        },
    );
    Pixels { width, height, bytes }
}

/// The luminance alone of a frame that has it, as libjpeg decodes a file to grey; [`pixels`] of any other, in which red, green and
/// blue become grey.
pub fn grey(frame: &JpegFrame, colour: Colour) -> Pixels {
    let (width, height) = (frame.width, frame.height);
    let component = match &frame.components[..] {
        [component, _, _] if is_luminance(frame, colour) => component,
        [_, _, _] => return pixels(frame, colour).grey(GreyWeights::PILLOW),
        _ => return pixels(frame, colour),
    };
    let mut rows = Upsampled::new(frame, component);
    let mut bytes = vec![0; width * height];
    vectorized(
        #[inline(always)]
        || {
            for (index, result) in bytes.chunks_exact_mut(width).enumerate() {
                copy(rows.row(index), result);
            }
        },
    );
    Pixels { width, height, bytes }
}

#[inline(always)]
fn copy(row: &[u8], result: &mut [u8]) {
    for (place, sample) in result.iter_mut().zip(row) {
        *place = *sample;
    }
}

/// Returns true if the first three components are luminance and chrominance, by the rules of libjpeg's `jdapimin.c`.
fn is_luminance(frame: &JpegFrame, colour: Colour) -> bool {
    let ids: Vec<_> = frame.components.iter().map(|component| component.id).collect();
    match colour.adobe {
        transform if ids.len() == 4 => transform.is_some_and(|transform| transform != 0),
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

    #[inline(always)]
    fn source(&self, row: usize) -> &'a [u8] {
        let stride = self.component.stride();
        let start = row.min(self.component.height.saturating_sub(1)) * stride;
        self.component.samples.get(start..start + self.component.width).unwrap_or_default()
    }

    /// The row with this number. Samples beyond the width are those of whole blocks.
    #[inline(always)]
    fn row(&mut self, index: usize) -> &[u8] {
        // The row next to the nearest one: above it for the upper of its two rows, below it for the lower.
        let nearest = index / 2;
        let next = if index.is_multiple_of(2) { nearest.saturating_sub(1) } else { nearest + 1 };
        match self.method {
            Upsampling::Copy => return self.source(index),
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
        &self.row
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

/// Colours of a row. Factors of 16 bits behind the point are parted into whole units and a rest that fits into 16 bits:
/// red and blue then need no wider numbers, since half of a product's upper half, rounded, is the product rounded.
#[inline(always)]
fn from_luminance(luminance: &[u8], blue: &[u8], red: &[u8], results: [&mut [u8]; CHANNELS]) {
    let [reds, greens, blues] = results;
    for ((place, y), cr) in reds.iter_mut().zip(luminance).zip(red) {
        let cr = centred(*cr);
        *place = saturated(i16::from(*y).wrapping_add(cr).wrapping_add(scaled(cr, RED_REST)));
    }
    for (((place, y), cb), cr) in greens.iter_mut().zip(luminance).zip(blue).zip(red) {
        let (cb, cr) = (i32::from(centred(*cb)), i32::from(centred(*cr)));
        let sum = cb.wrapping_mul(-22_554).wrapping_add(cr.wrapping_mul(-46_802)).wrapping_add(HALF) >> 16;
        *place = saturated(i16::from(*y).wrapping_add(sum as i16));
    }
    for ((place, y), cb) in blues.iter_mut().zip(luminance).zip(blue) {
        let cb = centred(*cb);
        let whole = i16::from(*y).wrapping_add(cb.wrapping_mul(2));
        *place = saturated(whole.wrapping_add(scaled(cb, BLUE_REST)));
    }
}

#[inline(always)]
fn centred(sample: u8) -> i16 {
    i16::from(sample).wrapping_sub(128)
}

/// The product without its 16 last bits, rounded half up.
#[inline(always)]
fn scaled(value: i16, factor: i16) -> i16 {
    let upper = i32::from(value.wrapping_mul(2)).wrapping_mul(i32::from(factor)) >> 16;
    (upper as i16).wrapping_add(1) >> 1
}

#[inline(always)]
fn saturated(value: i16) -> u8 {
    value.clamp(0, 255) as u8
}

/// 1.402 less 1, with 16 bits behind the point.
const RED_REST: i16 = 26_345;
/// 1.772 less 2, likewise.
const BLUE_REST: i16 = -14_942;
/// Rounds half up.
const HALF: i32 = 1 << 15;
