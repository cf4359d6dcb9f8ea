//! Rows of trial values for `batch_axis`: random ones and regular ones, small and large, the same at each start. Bounded by
//! `ROW_SIZE_MAX`.

use crate::model::{ModelSpec, TensorSpec};
use crate::tensor::{AlignedBuffer, Datatype, Shape, Tensor, element_count, strings};

/// Bytes of one input of a row above which a model is not tried: images have some megabytes.
const ROW_SIZE_MAX: usize = 16 * 1024 * 1024;
/// Strings that stand for texts and categories.
const WORDS: [&str; 8] = ["a", "red", "no", "The quick brown fox", "yes", "blue", "", "hello world"];

/// Open dimensions and integers of a row.
#[derive(Clone, Copy, Debug)]
pub struct RowShape {
    /// The size of each open dimension.
    pub open_size: i64,
    /// The largest integer.
    pub integer_max: u64,
}

impl RowShape {
    /// Returns true if an input has open dimensions beside the first.
    pub fn is_open(input: &TensorSpec) -> bool {
        input.model_shape.iter().skip(1).any(|size| *size < 0)
    }

    /// Returns true if the values of an input are integers.
    pub const fn has_integers(input: &TensorSpec) -> bool {
        !matches!(
            input.datatype,
            Datatype::Bf16 | Datatype::Bool | Datatype::Bytes | Datatype::Fp16 | Datatype::Fp32 | Datatype::Fp64
        )
    }
}

/// Choice of a row's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Floats of at most 0.1, integers below 3.
    Faint,
    /// Floats from 2 to 30, which pass thresholds, integers below 8.
    High,
    /// Rising values.
    Ramp,
    /// Floats of at most 30, any integers.
    Scaled,
    /// Mostly zeros.
    Sparse,
    /// Floats of at most 2, integers below 8.
    Spread,
    /// A text: ids from 1, a mask that ends within the row, one segment.
    Text,
    /// Floats from 0 to 1, integers 0 and 1.
    Unit,
}

impl Fill {
    /// The sets of three rows, in the order in which they are tried. The rows of a set have different magnitudes, so that
    /// what is computed from all of them is not nearly the same as from one.
    pub const SETS: [[Self; 3]; 5] = [
        [Self::Spread, Self::Scaled, Self::Sparse],
        [Self::Unit, Self::Text, Self::Ramp],
        [Self::Text, Self::Text, Self::Text],
        [Self::High, Self::Scaled, Self::High],
        [Self::Unit, Self::Faint, Self::Unit],
    ];

    fn float(self, random: &mut TrialNumbers, place: usize, row: usize) -> f64 {
        let (unit, other) = (random.unit(), random.unit());
        match self {
            Self::Faint => unit.mul_add(0.2, -0.1),
            Self::High => unit.mul_add(28.0, 2.0),
            Self::Ramp => small(place % 17) / 17.0 + small(row),
            Self::Scaled => unit.mul_add(60.0, -30.0),
            Self::Sparse if other < 0.6 => 0.0,
            Self::Sparse => unit.mul_add(6.0, -3.0),
            Self::Spread | Self::Text => unit.mul_add(4.0, -2.0),
            Self::Unit => unit,
        }
    }

    /// An integer of at most `max`. `name` is the input's: what it says of masks and segments is only believed in a text.
    fn integer(self, random: &mut TrialNumbers, place: usize, count: usize, row: usize, name: &str, max: u64) -> u64 {
        let number = random.next();
        let below = |bound: u64| number % bound.min(max + 1);
        match self {
            Self::Faint => below(3),
            Self::Ramp => (place + row) as u64 % (max + 1),
            Self::Scaled => below(u64::MAX),
            Self::Sparse if !random.next().is_multiple_of(4) => 0,
            Self::High | Self::Sparse | Self::Spread => below(8),
            Self::Text if name.contains("mask") => u64::from(place * 4 < count * (2 + row % 3)).min(max),
            Self::Text if name.contains("type") || name.contains("segment") => 0,
            Self::Text if name.contains("len") => (1 + below(4)).min(max),
            Self::Text => (1 + below(u64::MAX)).min(max),
            Self::Unit => below(2),
        }
    }

    fn string(self, random: &mut TrialNumbers) -> String {
        let number = random.next();
        match self {
            Self::Ramp | Self::Text => WORDS.get(number as usize % WORDS.len()).copied().unwrap_or_default().to_owned(),
            Self::Scaled => format!("{}.5", number % 100),
            Self::Faint | Self::High | Self::Sparse | Self::Spread => (number % 8).to_string(),
            Self::Unit => (number % 2).to_string(),
        }
    }
}

/// The inputs of one row.
pub struct Row {
    inputs: Vec<Tensor>,
}

impl Row {
    /// Makes row number `index` of a set; `None` if an input is too large, or a batch of rows has no place for it.
    pub fn new(spec: &ModelSpec, shape: RowShape, fill: Fill, index: usize) -> Option<Self> {
        let input = |(number, input): (usize, &TensorSpec)| {
            let seed = 1 + number as u64 * 7919 + index as u64 * 104_729 + fill as u64 * 1_299_709;
            tensor(input, shape, fill, index, TrialNumbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
        };
        let inputs = spec.inputs.iter().enumerate().map(input).collect::<Option<_>>()?;
        Some(Self { inputs })
    }

    /// The same row with its floats changed as little as rounding changes them.
    pub fn nudged(&self) -> Self {
        let nudge = |input: &Tensor| {
            let mut contents = AlignedBuffer::with_capacity(input.contents.len());
            let size = input.datatype.size().unwrap_or(1);
            for (place, value) in input.contents.chunks(size).enumerate() {
                let factor = if place % 2 == 0 { 1.0 + RELATIVE_NUDGE } else { 1.0 - RELATIVE_NUDGE };
                match (input.datatype, value) {
                    (Datatype::Fp32, [a, b, c, d]) => {
                        let value = f64::from(f32::from_le_bytes([*a, *b, *c, *d])) * factor;
                        contents.extend_from_slice(&single(value).to_le_bytes());
                    }
                    (Datatype::Fp64, &[a, b, c, d, e, f, g, h]) => {
                        let value = f64::from_le_bytes([a, b, c, d, e, f, g, h]) * factor;
                        contents.extend_from_slice(&value.to_le_bytes());
                    }
                    // The next value: the lowest bit of the fraction is the first of the bytes.
                    (Datatype::Bf16 | Datatype::Fp16, [a, b]) => contents.extend_from_slice(&[a ^ 1, *b]),
                    _ => contents.extend_from_slice(value),
                }
            }
            Tensor { contents: contents.freeze(), ..input.clone() }
        };
        Self { inputs: self.inputs.iter().map(nudge).collect() }
    }
}

/// Some steps of an FP32 value: what adding numbers up in another order makes of a layer's outputs.
const RELATIVE_NUDGE: f64 = 1e-6;

/// The inputs of a batch of these rows.
pub fn join(rows: &[&Row]) -> Vec<Tensor> {
    let [first, ..] = rows else { return Vec::new() };
    let input = |(index, input): (usize, &Tensor)| {
        let mut contents = AlignedBuffer::with_capacity(input.contents.len() * rows.len());
        let parts = rows.iter().filter_map(|row| row.inputs.get(index));
        parts.for_each(|part| contents.extend_from_slice(&part.contents));
        let mut shape = input.shape.clone();
        if let Some(first) = shape.first_mut() {
            *first = rows.len().try_into().unwrap_or(i64::MAX);
        }
        Tensor { datatype: input.datatype, shape, contents: contents.freeze() }
    };
    first.inputs.iter().enumerate().map(input).collect()
}

fn tensor(input: &TensorSpec, shape: RowShape, fill: Fill, row: usize, mut random: TrialNumbers) -> Option<Tensor> {
    if input.is_shape_tensor || input.model_shape.is_empty() {
        return None;
    }
    let size = |size: &i64| if *size < 0 { shape.open_size } else { *size };
    let mut dims: Shape = input.model_shape.iter().map(size).collect();
    if let Some(first) = dims.first_mut() {
        *first = 1;
    }
    let datatype = input.datatype;
    let count = element_count(&dims).ok()?;
    let size = datatype.size();
    if count.checked_mul(size.unwrap_or(8))? > ROW_SIZE_MAX {
        return None;
    }
    let name = input.name.to_ascii_lowercase();
    let mut contents = AlignedBuffer::with_capacity(count * size.unwrap_or(8));
    for place in 0..count {
        match datatype {
            Datatype::Fp16 => {
                let value = half::f16::from_f64(fill.float(&mut random, place, row));
                contents.extend_from_slice(&value.to_le_bytes());
            }
            Datatype::Bf16 => {
                let value = half::bf16::from_f64(fill.float(&mut random, place, row));
                contents.extend_from_slice(&value.to_le_bytes());
            }
            Datatype::Fp32 => {
                contents.extend_from_slice(&single(fill.float(&mut random, place, row)).to_le_bytes());
            }
            Datatype::Fp64 => contents.extend_from_slice(&fill.float(&mut random, place, row).to_le_bytes()),
            Datatype::Bool => {
                let value = fill.integer(&mut random, place, count, row, &name, 1);
                contents.extend_from_slice(&[u8::from(value % 2 == 1)]);
            }
            Datatype::Bytes => {
                let mut encoded = Vec::new();
                strings::encode(fill.string(&mut random).as_bytes(), &mut encoded);
                contents.extend_from_slice(&encoded);
            }
            _ => {
                // At most 100: it fits each type of integers.
                let value = fill.integer(&mut random, place, count, row, &name, shape.integer_max).to_le_bytes();
                contents.extend_from_slice(value.get(..size.unwrap_or(1)).unwrap_or_default());
            }
        }
    }
    Some(Tensor { datatype, shape: dims, contents: contents.freeze() })
}

#[expect(clippy::cast_possible_truncation, reason = "a trial value that is rounded is one, too")]
const fn single(value: f64) -> f32 {
    value as f32
}

#[expect(clippy::cast_precision_loss, reason = "the numbers of rows and of their places in a ramp are small")]
const fn small(number: usize) -> f64 {
    number as f64
}

/// Pseudo-random numbers (xorshift64*).
struct TrialNumbers(u64);

impl TrialNumbers {
    const fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// From 0 to 1.
    #[expect(clippy::cast_precision_loss, reason = "48 bits fit")]
    const fn unit(&mut self) -> f64 {
        self.next() as f64 / 281_474_976_710_656.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::trial::spec;

    #[test]
    fn rows_are_joined_in_their_order_and_differ() {
        let inputs: [(&str, Datatype, &[i64]); 4] = [
            ("x", Datatype::Fp32, &[3, -1]),
            ("ids", Datatype::Int64, &[-1]),
            ("attention_mask", Datatype::Int64, &[-1]),
            ("text", Datatype::Bytes, &[1]),
        ];
        let spec = spec(4, &inputs, &[("y", Datatype::Fp32, &[1])]);
        let shape = RowShape { open_size: 8, integer_max: 100 };
        let row = |fill, index| Row::new(&spec, shape, fill, index).unwrap();
        let (one, other) = (row(Fill::Text, 0), row(Fill::Text, 1));
        let joined = join(&[&other, &one]);
        let shapes: Vec<_> = joined.iter().map(|input| input.shape.to_vec()).collect();
        assert_eq!(shapes, [vec![2, 3, 8], vec![2, 8], vec![2, 8], vec![2, 1]]);
        for ((joined, one), other) in joined.iter().zip(&one.inputs).zip(&other.inputs) {
            assert_eq!(joined.contents, [&other.contents[..], &one.contents[..]].concat());
        }
        let ids = |row: &Row| bytemuck::cast_slice::<u8, i64>(&row.inputs[1].contents).to_vec();
        assert!(ids(&one) != ids(&other) && ids(&one).iter().all(|id| (1..=100).contains(id)), "{:?}", ids(&one));
        let mask = bytemuck::cast_slice::<u8, i64>(&one.inputs[2].contents).to_vec();
        assert_eq!(mask, [1, 1, 1, 1, 0, 0, 0, 0]);
    }

    #[test]
    fn a_row_that_is_nudged_changes_by_rounding_and_an_input_that_is_large_is_not_made() {
        let spec = spec(4, &[("x", Datatype::Fp32, &[-1])], &[("y", Datatype::Fp32, &[1])]);
        let shape = RowShape { open_size: 64, integer_max: 1 };
        let row = Row::new(&spec, shape, Fill::Scaled, 0).unwrap();
        let floats = |row: &Row| bytemuck::cast_slice::<u8, f32>(&row.inputs[0].contents).to_vec();
        let pairs: Vec<_> = floats(&row).into_iter().zip(floats(&row.nudged())).collect();
        assert!(pairs.iter().any(|(before, after)| before != after));
        assert!(pairs.iter().all(|(before, after)| (before - after).abs() <= before.abs() * 2e-6), "{pairs:?}");
        let large = RowShape { open_size: 5_000_000, integer_max: 1 };
        assert!(Row::new(&spec, large, Fill::Unit, 0).is_none());
    }
}
