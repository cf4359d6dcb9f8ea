//! Values of pixels as numbers of a model: each of the 256 values of each channel is computed once, by the
//! spelling that a public file has, so that every spelling is exact and costs the same.

use half::f16;

use crate::image::pixels::{CHANNELS, Pixels};
use crate::image::vector::vectorized;

/// A spelling of the arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PixelArithmetic {
    /// albumentations: the mean and the reciprocal of the deviation are multiplied by the scale, then `(x -
    /// mean) * reciprocal`.
    Albumentations,
    /// `(x / scale - mean) / std` in FP32.
    Divide,
    /// The same in FP64, then rounded.
    Float64,
    /// `(x * (1 / scale) - mean) / std` in FP32.
    Multiply,
    /// The same with the mean and the deviation in FP64, then rounded.
    MultiplyFloat64,
    /// transformers: `x * factor` in FP64, rounded to FP32, then `(x - mean) / std`.
    Transformers,
}

/// The numbers of the arithmetic.
#[derive(Clone, Debug, PartialEq)]
pub struct Normal {
    /// The spelling.
    pub arithmetic: PixelArithmetic,
    /// The divisor; for [`PixelArithmetic::Transformers`] the factor.
    pub scale: f64,
    /// For each channel of the result.
    pub mean: [f64; CHANNELS],
    /// Likewise.
    pub deviation: [f64; CHANNELS],
}

/// Numbers for the values of each channel.
pub type ValueTable<T> = [[T; 256]; CHANNELS];

/// A table in FP32, and a shorter way to the same numbers if there is one.
pub struct Singles {
    /// The table.
    pub table: ValueTable<f32>,
    /// For each channel, a factor and an addend in FP64 that give every number of the table after rounding:
    /// as for `x / 255`. Twice as fast as a lookup.
    pub lines: Option<[[f64; 2]; CHANNELS]>,
}

/// The order of dimensions and channels in the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PixelLayout {
    /// Each channel is a plane; otherwise they follow each other in each pixel.
    pub is_planar: bool,
    /// Blue comes first.
    pub is_reversed: bool,
}

impl Normal {
    /// The numbers in FP32.
    pub fn singles(&self) -> Singles {
        let table = self
            .table(|single, double| if self.arithmetic == PixelArithmetic::Float64 { double as f32 } else { single });
        let factor = if self.arithmetic == PixelArithmetic::Transformers { self.scale } else { 1.0 / self.scale };
        let mut lines = [[0.0; 2]; CHANNELS];
        for (line, (mean, deviation)) in lines.iter_mut().zip(self.mean.into_iter().zip(self.deviation)) {
            *line = [factor / deviation, -mean / deviation];
        }
        let is_equal = table.iter().zip(&lines).all(|(numbers, line)| {
            numbers.iter().zip(0_u8..=255).all(|(number, value)| on_line(*line, value).to_bits() == number.to_bits())
        });
        Singles { table, lines: is_equal.then_some(lines) }
    }

    /// The table in FP16: FP32 or FP64 rounded once more.
    pub fn halves(&self) -> ValueTable<f16> {
        self.table(|single, double| {
            if self.arithmetic == PixelArithmetic::Float64 { f16::from_f64(double) } else { f16::from_f32(single) }
        })
    }

    fn table<T: Copy + Default>(&self, rounded: impl Fn(f32, f64) -> T) -> ValueTable<T> {
        let mut table = [[T::default(); 256]; CHANNELS];
        for (table, (mean, deviation)) in table.iter_mut().zip(self.mean.into_iter().zip(self.deviation)) {
            for (value, place) in (0_u8..=255).zip(table) {
                let double = (f64::from(value) / self.scale - mean) / deviation;
                *place = rounded(self.single(value, mean, deviation), double);
            }
        }
        table
    }

    fn single(&self, value: u8, mean: f64, deviation: f64) -> f32 {
        let single = f32::from(value);
        if self.arithmetic == PixelArithmetic::MultiplyFloat64 {
            return ((f64::from(single * (1.0 / self.scale) as f32) - mean) / deviation) as f32;
        }
        let (mean, deviation) = (mean as f32, deviation as f32);
        match self.arithmetic {
            PixelArithmetic::Albumentations => {
                let scale = self.scale as f32;
                (single - mean * scale) * (1.0 / (deviation * scale))
            }
            PixelArithmetic::Divide | PixelArithmetic::Float64 => (single / self.scale as f32 - mean) / deviation,
            PixelArithmetic::Multiply | PixelArithmetic::MultiplyFloat64 => {
                (single * (1.0 / self.scale) as f32 - mean) / deviation
            }
            PixelArithmetic::Transformers => ((f64::from(value) * self.scale) as f32 - mean) / deviation,
        }
    }
}

/// Writes the numbers of an image, which `result` has the size of. The table is by the channels of the
/// result.
pub fn write<T: Copy>(pixels: &Pixels, table: &ValueTable<T>, layout: PixelLayout, result: &mut [T]) {
    let [first, second, third] = table;
    let (red, blue) = if layout.is_reversed { (third, first) } else { (first, third) };
    let pixels = pixels.bytes.as_chunks::<CHANNELS>().0;
    vectorized(
        #[inline(always)]
        || {
            if layout.is_planar {
                let (first, rest) = result.split_at_mut(pixels.len().min(result.len()));
                let (greens, last) = rest.split_at_mut(pixels.len().min(rest.len()));
                let (reds, blues) = if layout.is_reversed { (last, first) } else { (first, last) };
                let places = reds.iter_mut().zip(greens).zip(blues);
                for (((r, g), b), pixel) in places.zip(pixels) {
                    *r = number(red, pixel[0]);
                    *g = number(second, pixel[1]);
                    *b = number(blue, pixel[2]);
                }
            } else {
                for (place, pixel) in result.as_chunks_mut::<CHANNELS>().0.iter_mut().zip(pixels) {
                    let (r, g, b) = (number(red, pixel[0]), number(second, pixel[1]), number(blue, pixel[2]));
                    *place = if layout.is_reversed { [b, g, r] } else { [r, g, b] };
                }
            }
        },
    );
}

/// Writes the numbers of an image in FP32, likewise.
pub fn write_singles(pixels: &Pixels, singles: &Singles, layout: PixelLayout, result: &mut [f32]) {
    let Some([first, second, third]) = singles.lines.filter(|_| layout.is_planar) else {
        return write(pixels, &singles.table, layout, result);
    };
    let (red, blue) = if layout.is_reversed { (third, first) } else { (first, third) };
    let pixels = pixels.bytes.as_chunks::<CHANNELS>().0;
    vectorized(
        #[inline(always)]
        || {
            let (first, rest) = result.split_at_mut(pixels.len().min(result.len()));
            let (greens, last) = rest.split_at_mut(pixels.len().min(rest.len()));
            let (reds, blues) = if layout.is_reversed { (last, first) } else { (first, last) };
            let places = reds.iter_mut().zip(greens).zip(blues);
            for (((r, g), b), pixel) in places.zip(pixels) {
                *r = on_line(red, pixel[0]);
                *g = on_line(second, pixel[1]);
                *b = on_line(blue, pixel[2]);
            }
        },
    );
}

#[inline(always)]
fn on_line([factor, addend]: [f64; 2], value: u8) -> f32 {
    (f64::from(value) * factor + addend) as f32
}

#[inline(always)]
fn number<T: Copy>(table: &[T; 256], value: u8) -> T {
    let [zero, ..] = table;
    table.get(usize::from(value)).copied().unwrap_or(*zero)
}

/// The values themselves.
pub fn identity() -> ValueTable<u8> {
    let mut table = [[0; 256]; CHANNELS];
    for channel in &mut table {
        for (value, place) in (0..=255).zip(channel) {
            *place = value;
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn division_by_255_alone_is_a_line() {
        let normal = |arithmetic, mean| Normal { arithmetic, scale: 255.0, mean: [mean; 3], deviation: [1.0; 3] };
        assert!(normal(PixelArithmetic::Divide, 0.0).singles().lines.is_some());
        assert!(normal(PixelArithmetic::Multiply, 0.0).singles().lines.is_none());
        assert!(normal(PixelArithmetic::Float64, 0.485).singles().lines.is_some());
    }

    #[test]
    fn the_layout_is_that_of_the_model() {
        let pixels = Pixels { width: 2, height: 1, bytes: vec![1, 2, 3, 4, 5, 6] };
        let check = |is_planar, is_reversed, want: [u8; 6]| {
            let mut got = [0; 6];
            write(&pixels, &identity(), PixelLayout { is_planar, is_reversed }, &mut got);
            assert_eq!(got, want);
        };
        check(true, false, [1, 4, 2, 5, 3, 6]);
        check(true, true, [3, 6, 2, 5, 1, 4]);
        check(false, false, [1, 2, 3, 4, 5, 6]);
        check(false, true, [3, 2, 1, 6, 5, 4]);
    }
}
