//! Activations, binary operations with broadcasting, and softmax: the launches, and the CPU twins, which compute in
//! FP32 as the kernels do (FP16 and BF16 are cast before and after). Exponentials and similar functions differ from a
//! GPU's in the last bits.

use super::KernelArgument::{Buffer, U32, U64};
use super::{BufferRole, KernelEntry, KernelLaunch, KernelModule, KernelParameter, LaunchPlan, refused};
use base::error::Error;
use base::tensor::Datatype;

/// A function of one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Activation {
    /// `x`.
    None = 0,
    /// `max(x, 0)`; NaN stays NaN.
    Relu = 1,
    /// `1 / (1 + exp(-x))`.
    Sigmoid = 2,
    /// The hyperbolic tangent.
    Tanh = 3,
    /// `x / 2 (1 + erf(x / √2))`, ONNX's Gelu.
    Gelu = 4,
    /// The approximation of Gelu by a hyperbolic tangent.
    GeluTanh = 5,
}

impl Activation {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::None, Self::Relu, Self::Sigmoid, Self::Tanh, Self::Gelu, Self::GeluTanh];

    /// The function's value.
    pub fn apply(self, x: f32) -> f32 {
        match self {
            Self::None => x,
            Self::Relu => {
                if x < 0.0 {
                    0.0
                } else {
                    x
                }
            }
            Self::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Self::Tanh => x.tanh(),
            Self::Gelu => 0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2)),
            Self::GeluTanh => 0.5 * x * (1.0 + (0.797_884_6 * (x + 0.044_715 * x * x * x)).tanh()),
        }
    }
}

/// The error function with an error of at most 1.5e-7 (Abramowitz and Stegun, Handbook of Mathematical Functions,
/// 7.1.26), about the precision of FP32 near 1.
fn erf(x: f32) -> f32 {
    let size = f64::from(x.abs());
    let t = 1.0 / (1.0 + 0.327_591_1 * size);
    let series = [1.061_405_429, -1.453_152_027, 1.421_413_741, -0.284_496_736, 0.254_829_592];
    let sum = series.iter().fold(0.0, |sum, term| (sum + term) * t);
    ((1.0 - sum * (-size * size).exp()) as f32).copysign(x)
}

/// A function of two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum PointwiseOperation {
    /// `left + right`.
    Add = 0,
    /// `left - right`.
    Subtract = 1,
    /// `left × right`.
    Multiply = 2,
    /// `left / right`.
    Divide = 3,
}

impl PointwiseOperation {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Add, Self::Subtract, Self::Multiply, Self::Divide];

    fn apply(self, left: f32, right: f32) -> f32 {
        match self {
            Self::Add => left + right,
            Self::Subtract => left - right,
            Self::Multiply => left * right,
            Self::Divide => left / right,
        }
    }
}

/// The launch that applies a function to `count` values, from [`BufferRole::Input`] to [`BufferRole::Output`], which
/// may be the same buffer.
///
/// # Errors
///
/// Unsupported, if the datatype is not FP16, BF16 or FP32.
pub fn activation_plan(count: usize, activation: Activation, datatype: Datatype) -> Result<LaunchPlan, Error> {
    let format = format(datatype)?;
    if count == 0 {
        return Ok(LaunchPlan::default());
    }
    let count = count as u64;
    let arguments =
        [Buffer(BufferRole::Input), Buffer(BufferRole::Output), U64(count), U32(activation as u32), U32(format as u32)];
    Ok(LaunchPlan::one(KernelLaunch::new(&ENTRIES[0], [blocks(count), 1], 0, &arguments)))
}

/// The CPU twin of [`activation_plan`].
pub fn activate(values: &mut [f32], activation: Activation) {
    for value in values {
        *value = activation.apply(*value);
    }
}

/// The distance in elements from one row, and from one column, to the next; 0 broadcasts the operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strides {
    /// From row to row.
    pub row: u32,
    /// From column to column.
    pub column: u32,
}

/// `output[row, column] = activation(left operation right)` over a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binary {
    /// Rows of the output.
    pub rows: u32,
    /// Columns of the output.
    pub columns: u32,
    /// Strides of [`BufferRole::Input`]. If they are those of the output, both may be the same buffer.
    pub left: Strides,
    /// Strides of [`BufferRole::Right`].
    pub right: Strides,
    /// The operation.
    pub operation: PointwiseOperation,
    /// Applied to the operation's result.
    pub activation: Activation,
}

impl Binary {
    /// Adds one value per column to a matrix, then the activation: a layer's bias and activation.
    pub const fn bias(rows: u32, columns: u32, activation: Activation) -> Self {
        let (left, right) = (Strides { row: columns, column: 1 }, Strides { row: 0, column: 1 });
        Self { rows, columns, left, right, operation: PointwiseOperation::Add, activation }
    }

    /// The launch.
    ///
    /// # Errors
    ///
    /// Unsupported, if the datatype is not FP16, BF16 or FP32.
    pub fn plan(&self, datatype: Datatype) -> Result<LaunchPlan, Error> {
        let format = format(datatype)?;
        if self.rows == 0 || self.columns == 0 {
            return Ok(LaunchPlan::default());
        }
        let arguments = [
            Buffer(BufferRole::Input),
            Buffer(BufferRole::Right),
            Buffer(BufferRole::Output),
            U32(self.rows),
            U32(self.columns),
            U32(self.left.row),
            U32(self.left.column),
            U32(self.right.row),
            U32(self.right.column),
            U32(self.operation as u32),
            U32(self.activation as u32),
            U32(format as u32),
        ];
        let count = u64::from(self.rows) * u64::from(self.columns);
        Ok(LaunchPlan::one(KernelLaunch::new(&ENTRIES[1], [blocks(count), 1], 0, &arguments)))
    }

    /// The CPU twin of [`Self::plan`]; `None` if an operand or the output is too short.
    pub fn combine(&self, left: &[f32], right: &[f32], output: &mut [f32]) -> Option<()> {
        let at = |strides: Strides, row: u32, column: u32| {
            row as usize * strides.row as usize + column as usize * strides.column as usize
        };
        for row in 0..self.rows {
            let start = row as usize * self.columns as usize;
            let target = output.get_mut(start..start + self.columns as usize)?;
            for (column, target) in (0..self.columns).zip(target) {
                let (left, right) = (left.get(at(self.left, row, column))?, right.get(at(self.right, row, column))?);
                *target = self.activation.apply(self.operation.apply(*left, *right));
            }
        }
        Some(())
    }
}

/// The launch of a softmax of each row, from [`BufferRole::Input`] to [`BufferRole::Output`], which may be the same
/// buffer.
///
/// # Errors
///
/// Unsupported, if the datatype is not FP16, BF16 or FP32.
pub fn softmax_plan(rows: u32, columns: u32, datatype: Datatype) -> Result<LaunchPlan, Error> {
    let format = format(datatype)?;
    if rows == 0 || columns == 0 {
        return Ok(LaunchPlan::default());
    }
    let arguments =
        [Buffer(BufferRole::Input), Buffer(BufferRole::Output), U32(rows), U32(columns), U32(format as u32)];
    Ok(LaunchPlan::one(if columns <= SOFTMAX_WARP_COLUMNS_MAX {
        let entry = &ENTRIES[2];
        KernelLaunch::new(entry, [rows.div_ceil(entry.threads / 32), 1], 0, &arguments)
    } else {
        // Shared memory for one FP32 sum per warp.
        KernelLaunch::new(&ENTRIES[3], [rows, 1], THREADS / 32 * 4, &arguments)
    }))
}

/// The CPU twin of [`softmax_plan`]. A row that has a NaN, or whose largest value is infinite, becomes NaN.
pub fn softmax(values: &mut [f32], columns: usize) {
    for row in values.chunks_mut(columns.max(1)) {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        row.iter_mut().for_each(|value| *value = (*value - largest).exp());
        let sum: f32 = row.iter().sum();
        row.iter_mut().for_each(|value| *value /= sum);
    }
}

/// The format of a float. `Format` in `kernels/device.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum FloatFormat {
    /// IEEE half.
    Fp16 = 4,
    /// Brain float.
    Bf16 = 5,
    /// IEEE single.
    Fp32 = 6,
}

fn format(datatype: Datatype) -> Result<FloatFormat, Error> {
    match datatype {
        Datatype::Fp16 => Ok(FloatFormat::Fp16),
        Datatype::Bf16 => Ok(FloatFormat::Bf16),
        Datatype::Fp32 => Ok(FloatFormat::Fp32),
        _ => Err(refused(format!("no arithmetic with {} on the GPU", datatype.name()))),
    }
}

/// The blocks for this many values. Beyond [`BLOCKS_MAX`] the threads loop over more values each.
fn blocks(count: u64) -> u32 {
    let wanted = count.div_ceil(u64::from(THREADS) * VALUES_PER_THREAD).clamp(1, BLOCKS_MAX);
    u32::try_from(wanted).unwrap_or(u32::MAX)
}

const THREADS: u32 = 256;
const VALUES_PER_THREAD: u64 = 4;
/// Enough to fill the largest GPU several times.
const BLOCKS_MAX: u64 = 16_384;
/// Up to this many columns a warp does a row: each of its lanes keeps 32 values in registers.
const SOFTMAX_WARP_COLUMNS_MAX: u32 = 1024;

/// Activation, binary operation, softmax by a warp, softmax by a block.
pub static ENTRIES: [KernelEntry; 4] = [
    entry(
        "pointwise_activation",
        THREADS,
        &[
            ("input", KernelParameter::Pointer),
            ("output", KernelParameter::Pointer),
            ("count", KernelParameter::U64),
            ("activation", KernelParameter::U32),
            ("format", KernelParameter::U32),
        ],
    ),
    entry(
        "pointwise_binary",
        THREADS,
        &[
            ("left", KernelParameter::Pointer),
            ("right", KernelParameter::Pointer),
            ("output", KernelParameter::Pointer),
            ("rows", KernelParameter::U32),
            ("columns", KernelParameter::U32),
            ("left_row_stride", KernelParameter::U32),
            ("left_column_stride", KernelParameter::U32),
            ("right_row_stride", KernelParameter::U32),
            ("right_column_stride", KernelParameter::U32),
            ("operation", KernelParameter::U32),
            ("activation", KernelParameter::U32),
            ("format", KernelParameter::U32),
        ],
    ),
    entry("softmax_warp", 128, SOFTMAX),
    entry("softmax_block", THREADS, SOFTMAX),
];

const SOFTMAX: &[(&str, KernelParameter)] = &[
    ("input", KernelParameter::Pointer),
    ("output", KernelParameter::Pointer),
    ("rows", KernelParameter::U32),
    ("columns", KernelParameter::U32),
    ("format", KernelParameter::U32),
];

const fn entry(
    name: &'static str,
    threads: u32,
    parameters: &'static [(&'static str, KernelParameter)],
) -> KernelEntry {
    KernelEntry { name, module: KernelModule::Pointwise, threads, parameters }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_have_their_known_values() {
        let check = |activation: Activation, x: f32, want: f32| {
            let got = activation.apply(x);
            assert!((got - want).abs() <= 2e-7 * want.abs().max(1.0), "{activation:?}({x}): {got}");
        };
        // erf(1/√2) = 0.6826894921, erf(2/√2) = 0.9544997361 (normal distribution, one and two deviations).
        check(Activation::Gelu, 1.0, 0.841_344_8);
        check(Activation::Gelu, -2.0, -0.045_500_264);
        check(Activation::GeluTanh, 1.0, 0.841_192);
        check(Activation::Sigmoid, 2.0, 0.880_797_1);
        check(Activation::Tanh, 0.5, 0.462_117_16);
        check(Activation::Relu, -3.0, 0.0);
        for activation in Activation::ALL {
            assert!(activation.apply(f32::NAN).is_nan(), "{activation:?}");
            let at_zero = if activation == Activation::Sigmoid { 0.5 } else { 0.0 };
            check(activation, 0.0, at_zero);
        }
    }

    #[test]
    fn operands_are_repeated_by_strides_of_nothing() {
        let mut output = [0.0; 6];
        let bias = Binary::bias(2, 3, Activation::Relu);
        assert_eq!(bias.combine(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[1.0, -4.0, 0.0], &mut output), Some(()));
        assert_eq!(output, [2.0, 0.0, 3.0, 5.0, 1.0, 6.0]);
        assert_eq!(bias.combine(&[1.0; 5], &[1.0; 3], &mut output), None);
        assert_eq!(bias.combine(&[1.0; 6], &[1.0; 3], &mut output[..5]), None);
        let (right, operation) = (Strides { row: 1, column: 0 }, PointwiseOperation::Divide);
        let by_row = Binary { right, operation, activation: Activation::None, ..bias };
        assert_eq!(by_row.combine(&[2.0, 4.0, 6.0, 4.0, 8.0, 12.0], &[2.0, 4.0], &mut output), Some(()));
        assert_eq!(output, [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
    }

    #[test]
    fn softmax_adds_up_to_one_unless_a_row_holds_what_is_no_number() {
        let mut values = [1.0, 2.0, 3.0, 1e30, f32::NEG_INFINITY, 1e30, f32::NAN, 0.0, 0.0, f32::INFINITY, 0.0, 1.0];
        softmax(&mut values, 3);
        assert!((values[..3].iter().sum::<f32>() - 1.0).abs() < 1e-6);
        assert!((values[2] - 0.665_240_9).abs() < 1e-6);
        assert_eq!(values[3..6], [0.5, 0.0, 0.5]);
        assert!(values[6..].iter().all(|value| value.is_nan()));
    }

    #[test]
    fn long_rows_have_a_block_and_other_datatypes_are_refused() {
        let name = |columns| softmax_plan(9, columns, Datatype::Fp32).unwrap().launches[0].entry.name;
        assert_eq!((name(1024), name(1025)), ("softmax_warp", "softmax_block"));
        assert_eq!(softmax_plan(0, 10, Datatype::Fp16).unwrap(), LaunchPlan::default());
        let refused = activation_plan(3, Activation::Relu, Datatype::Int32).unwrap_err();
        assert_eq!(refused.text(), "no arithmetic with INT32 on the GPU");
    }
}
