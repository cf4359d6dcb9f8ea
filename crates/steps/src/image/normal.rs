//! Values of pixels as numbers of a model: each of the 256 values of each channel is computed once, by the
//! spelling that a public file has, so that every spelling is exact and costs the same.

use half::f16;

use crate::image::geometry::ImagePlan;
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

/// A table in FP32, and shorter ways to the same numbers: a lookup takes longer than most arithmetic.
pub struct Singles {
    normal: Normal,
    table: ValueTable<f32>,
    /// For each channel, a factor and an addend in FP64 that give every number of the table after rounding, if there
    /// are such: as for `x / 255`.
    lines: [Option<[f64; 2]>; CHANNELS],
}

/// The order of dimensions and channels in the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PixelLayout {
    /// Each channel is a plane; otherwise they follow each other in each pixel.
    pub is_planar: bool,
    /// Blue comes first.
    pub is_reversed: bool,
    /// Grey, one channel.
    pub is_grey: bool,
}

impl PixelLayout {
    /// Channels of the result.
    pub const fn channels(self) -> usize {
        if self.is_grey { 1 } else { CHANNELS }
    }

    /// Returns true if each channel follows the one before, as one channel always does.
    const fn has_planes(self) -> bool {
        self.is_planar || self.is_grey
    }

    /// Red, green and blue in the order of the result.
    fn ordered(self, [red, green, blue]: [&[u8]; CHANNELS]) -> [&[u8]; CHANNELS] {
        if self.is_reversed { [blue, green, red] } else { [red, green, blue] }
    }
}

impl Singles {
    /// The number of each value in each channel.
    pub const fn table(&self) -> &ValueTable<f32> {
        &self.table
    }
}

impl Normal {
    /// The numbers in FP32.
    pub fn singles(&self) -> Singles {
        let table = self
            .table(|single, double| if self.arithmetic == PixelArithmetic::Float64 { double as f32 } else { single });
        let factor = if self.arithmetic == PixelArithmetic::Transformers { self.scale } else { 1.0 / self.scale };
        let mut lines = [None; CHANNELS];
        let parameters = self.mean.into_iter().zip(self.deviation);
        for ((place, numbers), (mean, deviation)) in lines.iter_mut().zip(&table).zip(parameters) {
            let line = [factor / deviation, -mean / deviation];
            let is_equal = |(number, value): (&f32, u8)| on_line(line)(value).to_bits() == number.to_bits();
            *place = numbers.iter().zip(0..=255).all(is_equal).then_some(line);
        }
        Singles { normal: self.clone(), table, lines }
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
        match self.arithmetic {
            PixelArithmetic::Albumentations => albumentations(self, mean, deviation)(value),
            PixelArithmetic::Divide | PixelArithmetic::Float64 => divided(self, mean, deviation)(value),
            PixelArithmetic::Multiply => multiplied(self, mean, deviation)(value),
            PixelArithmetic::MultiplyFloat64 => {
                let scaled = f32::from(value) * (1.0 / self.scale) as f32;
                ((f64::from(scaled) - mean) / deviation) as f32
            }
            PixelArithmetic::Transformers => rescaled(self, mean, deviation)(value),
        }
    }
}

fn albumentations(normal: &Normal, mean: f64, deviation: f64) -> impl Fn(u8) -> f32 + Copy {
    let scale = normal.scale as f32;
    let (mean, factor) = (mean as f32 * scale, 1.0 / (deviation as f32 * scale));
    #[inline(always)]
    move |value| (f32::from(value) - mean) * factor
}

fn divided(normal: &Normal, mean: f64, deviation: f64) -> impl Fn(u8) -> f32 + Copy {
    let (scale, mean, deviation) = (normal.scale as f32, mean as f32, deviation as f32);
    #[inline(always)]
    move |value| (f32::from(value) / scale - mean) / deviation
}

fn multiplied(normal: &Normal, mean: f64, deviation: f64) -> impl Fn(u8) -> f32 + Copy {
    let (factor, mean, deviation) = ((1.0 / normal.scale) as f32, mean as f32, deviation as f32);
    #[inline(always)]
    move |value| (f32::from(value) * factor - mean) / deviation
}

fn rescaled(normal: &Normal, mean: f64, deviation: f64) -> impl Fn(u8) -> f32 + Copy {
    let (factor, mean, deviation) = (normal.scale, mean as f32, deviation as f32);
    #[inline(always)]
    move |value| ((f64::from(value) * factor) as f32 - mean) / deviation
}

/// Appends the numbers of a part at its place in the result, and those of the plan's colour around it. The table is by
/// the channels of the result.
pub fn write<T: Copy + Default>(
    part: &Pixels,
    plan: &ImagePlan,
    table: &ValueTable<T>,
    layout: PixelLayout,
    numbers: &mut Vec<T>,
) {
    if !layout.has_planes() {
        return write_interleaved(part, plan, table, layout, numbers);
    }
    for (plane, table) in layout.ordered(part.channels()).into_iter().zip(table).take(layout.channels()) {
        append_plane(
            plane,
            plan,
            #[inline(always)]
            move |value| number(table, value),
            numbers,
        );
    }
}

/// Appends the numbers of a part in FP32, likewise.
pub fn write_singles(part: &Pixels, plan: &ImagePlan, singles: &Singles, layout: PixelLayout, numbers: &mut Vec<f32>) {
    let Singles { normal, table, lines } = singles;
    if !layout.has_planes() {
        return write_interleaved(part, plan, table, layout, numbers);
    }
    let planes = layout.ordered(part.channels()).into_iter().zip(normal.mean.into_iter().zip(normal.deviation));
    let planes = planes.take(layout.channels());
    for ((plane, (mean, deviation)), (table, line)) in planes.zip(table.iter().zip(lines)) {
        match (line, normal.arithmetic) {
            (Some(line), _) => append_plane(plane, plan, on_line(*line), numbers),
            (None, PixelArithmetic::Albumentations) => {
                append_plane(plane, plan, albumentations(normal, mean, deviation), numbers);
            }
            (None, PixelArithmetic::Divide) => append_plane(plane, plan, divided(normal, mean, deviation), numbers),
            (None, PixelArithmetic::Multiply) => {
                append_plane(plane, plan, multiplied(normal, mean, deviation), numbers)
            }
            (None, PixelArithmetic::Transformers) => {
                append_plane(plane, plan, rescaled(normal, mean, deviation), numbers);
            }
            (None, PixelArithmetic::Float64 | PixelArithmetic::MultiplyFloat64) => {
                append_plane(plane, plan, |value| number(table, value), numbers);
            }
        }
    }
}

/// Appends the numbers of one channel.
fn append_plane<T: Copy>(plane: &[u8], plan: &ImagePlan, number: impl Fn(u8) -> T + Copy, numbers: &mut Vec<T>) {
    let ImagePlan { canvas, window, left, top, colour, .. } = *plan;
    let around = number(colour);
    let start = numbers.len();
    for (index, row) in plane.chunks_exact(window.width.max(1)).enumerate() {
        let at = start + (top + index) * canvas.width + left;
        // Row by row, so that the memory is in the cache when its numbers come.
        numbers.resize(at + row.len(), around);
        let places = numbers.get_mut(at..).unwrap_or_default();
        vectorized(
            #[inline(always)]
            move || {
                for (place, value) in places.iter_mut().zip(row) {
                    *place = number(*value);
                }
            },
        );
    }
    numbers.resize(start + canvas.height * canvas.width, around);
}

/// Appends the numbers of all channels, pixel by pixel.
fn write_interleaved<T: Copy + Default>(
    part: &Pixels,
    plan: &ImagePlan,
    table: &ValueTable<T>,
    layout: PixelLayout,
    numbers: &mut Vec<T>,
) {
    let ImagePlan { canvas, window, left, top, colour, .. } = *plan;
    let start = numbers.len();
    numbers.resize(start + canvas.height * canvas.width * CHANNELS, T::default());
    let pixels = numbers.get_mut(start..).unwrap_or_default().as_chunks_mut::<CHANNELS>().0;
    if window.width != canvas.width || window.height != canvas.height {
        pixels.fill(table.each_ref().map(|table| number(table, colour)));
    }
    let [a, b, c] = layout.ordered(part.channels());
    let [first, second, third] = table;
    let width = window.width.max(1);
    let rows = a.chunks_exact(width).zip(b.chunks_exact(width)).zip(c.chunks_exact(width));
    for (places, ((a, b), c)) in pixels.chunks_exact_mut(canvas.width.max(1)).skip(top).zip(rows) {
        for (((place, a), b), c) in places.iter_mut().skip(left).zip(a).zip(b).zip(c) {
            *place = [number(first, *a), number(second, *b), number(third, *c)];
        }
    }
}

fn on_line([factor, addend]: [f64; 2]) -> impl Fn(u8) -> f32 + Copy {
    #[inline(always)]
    move |value| (f64::from(value) * factor + addend) as f32
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
    use crate::image::geometry::Size;
    use crate::image::pixels::Window;

    #[test]
    fn division_by_255_alone_is_a_line() {
        let normal = |arithmetic, mean| Normal { arithmetic, scale: 255.0, mean: [mean; 3], deviation: [1.0; 3] };
        let has_lines = |arithmetic, mean| normal(arithmetic, mean).singles().lines.map(|line| line.is_some());
        assert_eq!(has_lines(PixelArithmetic::Divide, 0.0), [true; CHANNELS]);
        assert_eq!(has_lines(PixelArithmetic::Multiply, 0.0), [false; CHANNELS]);
        assert_eq!(has_lines(PixelArithmetic::Float64, 0.485), [true; CHANNELS]);
    }

    #[test]
    fn numbers_are_those_of_the_table() {
        use PixelArithmetic::{Albumentations, Divide, Float64, Multiply, MultiplyFloat64, Transformers};
        let bytes: Vec<u8> = (0..=255).collect();
        let pixels = Pixels { width: 256, height: 1, bytes };
        let canvas = Size { width: 256, height: 1 };
        let window = Window::whole(256, 1);
        let plan = ImagePlan { resized: canvas, window, canvas, left: 0, top: 0, colour: 0, ratio: 1.0 };
        for arithmetic in [Albumentations, Divide, Float64, Multiply, MultiplyFloat64, Transformers] {
            let scale = if arithmetic == Transformers { 1.0 / 255.0 } else { 255.0 };
            let normal = Normal { arithmetic, scale, mean: [0.485, 0.456, 0.406], deviation: [0.229, 0.224, 0.225] };
            let singles = normal.singles();
            let mut got = Vec::new();
            let layout = PixelLayout { is_planar: true, is_reversed: false, is_grey: false };
            write_singles(&pixels, &plan, &singles, layout, &mut got);
            assert_eq!(got, singles.table.as_flattened(), "{arithmetic:?}");
        }
    }

    #[test]
    fn the_layout_is_that_of_the_model() {
        let pixels = Pixels::from_interleaved(2, 1, &[1, 2, 3, 4, 5, 6], CHANNELS);
        let canvas = Size { width: 2, height: 1 };
        let window = Window::whole(2, 1);
        let plan = ImagePlan { resized: canvas, window, canvas, left: 0, top: 0, colour: 0, ratio: 1.0 };
        let check = |is_planar, is_reversed, want: [u8; 6]| {
            let mut got = Vec::new();
            let layout = PixelLayout { is_planar, is_reversed, is_grey: false };
            write(&pixels, &plan, &identity(), layout, &mut got);
            assert_eq!(got, want);
        };
        check(true, false, [1, 4, 2, 5, 3, 6]);
        check(true, true, [3, 6, 2, 5, 1, 4]);
        check(false, false, [1, 2, 3, 4, 5, 6]);
        check(false, true, [3, 2, 1, 6, 5, 4]);
    }

    #[test]
    fn a_part_has_a_colour_around_it() {
        let pixels = Pixels::from_interleaved(1, 2, &[1, 2], 1);
        let canvas = Size { width: 3, height: 4 };
        let window = Window::whole(1, 2);
        let plan = ImagePlan { resized: canvas, window, canvas, left: 1, top: 1, colour: 9, ratio: 1.0 };
        let plane = [9, 9, 9, 9, 1, 9, 9, 2, 9, 9, 9, 9];
        for is_planar in [true, false] {
            let mut got = Vec::new();
            let layout = PixelLayout { is_planar, is_reversed: false, is_grey: false };
            write(&pixels, &plan, &identity(), layout, &mut got);
            let want = if is_planar { plane.repeat(3) } else { plane.iter().flat_map(|value| [*value; 3]).collect() };
            assert_eq!(got, want);
        }
    }
}
