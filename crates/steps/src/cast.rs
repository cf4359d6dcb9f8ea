//! `cast`: numbers in another datatype.

use base::error::Error;
use base::tensor::{Datatype, Tensor};
use bytemuck::NoUninit;
use half::{bf16, f16};

use crate::fields::{Field, FieldDefault, FieldKind, StepFields};
use crate::kind::{Step, StepKind, StepPort};
use crate::tensors::{check_size, doubles, floats, integers, of_numbers, unsigned};

/// The kind.
pub const KIND: StepKind = StepKind {
    name: "cast",
    about: "Converts numbers to another datatype, as numpy's `astype`. A float becomes an integer towards zero; one \
            beyond the integer's range becomes its nearest value, and NaN becomes 0. An integer keeps its low bits in \
            a shorter one.",
    inputs: &[StepPort { name: "input", about: "Numbers of any shape.", is_optional: false }],
    outputs: &[StepPort { name: "output", about: "The same shape in the new datatype.", is_optional: false }],
    fields: &[Field {
        name: "datatype",
        kind: FieldKind::Choice(&[
            "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "BF16", "FP32",
            "FP64",
        ]),
        default: FieldDefault::Required,
        about: "The datatype of the output.",
    }],
    is_short: true,
    build: |fields| Ok(Box::new(Cast { datatype: datatype(fields) })),
};

struct Cast {
    datatype: Datatype,
}

fn datatype(fields: &StepFields<'_>) -> Datatype {
    Datatype::from_name(&fields.text("datatype")).unwrap_or(Datatype::Fp32)
}

impl Step for Cast {
    fn run(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let Some(Some(input)) = inputs.first() else { return Ok(vec![None]) };
        check_size("input", input)?;
        if input.datatype == self.datatype {
            return Ok(vec![Some((*input).clone())]);
        }
        Ok(vec![Some(Tensor { shape: input.shape.clone(), ..converted(input, self.datatype)? })])
    }
}

/// The elements in another datatype, in one dimension.
fn converted(input: &Tensor, datatype: Datatype) -> Result<Tensor, Error> {
    const PORT: &str = "input";
    match input.datatype {
        // Floats are converted from FP64 only where they are that: the others are exact in FP32, and half the size.
        Datatype::Fp64 => Ok(of(doubles(PORT, input)?.iter().copied(), datatype)),
        Datatype::Fp16 | Datatype::Bf16 | Datatype::Fp32 => Ok(of(floats(PORT, input)?.iter().copied(), datatype)),
        Datatype::Uint64 => Ok(of(unsigned(PORT, input)?.iter().copied(), datatype)),
        Datatype::Bool | Datatype::Uint8 if datatype == Datatype::Fp32 => {
            Ok(of_numbers(datatype, &[], floats(PORT, input)?.into_owned()))
        }
        Datatype::Bytes => Err(crate::tensors::wrong_datatype(PORT, "numbers", input)),
        _ => Ok(of(integers(PORT, input)?.iter().copied(), datatype)),
    }
}

/// A number that is converted to another one as numpy does.
trait CastNumber: Copy {
    fn is_zero(self) -> bool;
    fn to_f16(self) -> f16;
    fn to_bf16(self) -> bf16;
    fn to_f32(self) -> f32;
    fn to_f64(self) -> f64;
    fn to_i64(self) -> i64;
    fn to_u64(self) -> u64;
    fn to_i32(self) -> i32;
    fn to_u32(self) -> u32;
    fn to_i16(self) -> i16;
    fn to_u16(self) -> u16;
    fn to_i8(self) -> i8;
    fn to_u8(self) -> u8;
}

macro_rules! numbers {
    ($($number:ty, $zero:expr, $single:expr;)*) => {$(
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "documented")]
        #[allow(clippy::cast_precision_loss, clippy::cast_sign_loss, reason = "documented")]
        #[allow(clippy::cast_lossless, clippy::unnecessary_cast, reason = "one text for all types")]
        impl CastNumber for $number {
            fn is_zero(self) -> bool {
                self == $zero
            }

            fn to_f16(self) -> f16 {
                f16::from_f32($single(self))
            }

            fn to_bf16(self) -> bf16 {
                bf16::from_f32($single(self))
            }

            numbers! { @as to_f32 f32, to_f64 f64, to_i64 i64, to_u64 u64, to_i32 i32, to_u32 u32, to_i16 i16,
                       to_u16 u16, to_i8 i8, to_u8 u8 }
        }
    )*};
    (@as $($name:ident $type:ty),*) => {$(
        fn $name(self) -> $type {
            self as $type
        }
    )*};
}

numbers! {
    f32, 0.0, |value| value;
    f64, 0.0, for_shorter;
    i64, 0, |value| for_shorter(value as f64);
    u64, 0, |value| for_shorter(value as f64);
}

/// An FP32 that has the same nearest FP16 and BF16 as this FP64: rounded to the odd neighbour if it is between
/// two, so that it never becomes the middle of two shorter numbers, which would round a second time.
#[expect(clippy::cast_possible_truncation, reason = "the rounding is what it is about")]
fn for_shorter(value: f64) -> f32 {
    let near = value as f32;
    let back = f64::from(near);
    if back == value || value.is_nan() || near.to_bits() & 1 == 1 {
        return near;
    }
    // Rounded away from zero, or towards it: the odd neighbour is on the other side of the value.
    let step = if back.abs() > value.abs() { -1 } else { 1 };
    f32::from_bits(near.to_bits().wrapping_add_signed(step))
}

fn of<T: CastNumber>(values: impl Iterator<Item = T>, datatype: Datatype) -> Tensor {
    fn numbers<T: NoUninit + Send + Sync>(datatype: Datatype, values: impl Iterator<Item = T>) -> Tensor {
        of_numbers(datatype, &[], values.collect())
    }
    match datatype {
        Datatype::Bool => numbers(datatype, values.map(|value| u8::from(!value.is_zero()))),
        Datatype::Uint8 => numbers(datatype, values.map(T::to_u8)),
        Datatype::Uint16 => numbers(datatype, values.map(T::to_u16)),
        Datatype::Uint32 => numbers(datatype, values.map(T::to_u32)),
        Datatype::Uint64 => numbers(datatype, values.map(T::to_u64)),
        Datatype::Int8 => numbers(datatype, values.map(T::to_i8)),
        Datatype::Int16 => numbers(datatype, values.map(T::to_i16)),
        Datatype::Int32 => numbers(datatype, values.map(T::to_i32)),
        Datatype::Int64 => numbers(datatype, values.map(T::to_i64)),
        Datatype::Fp16 => numbers(datatype, values.map(T::to_f16)),
        Datatype::Bf16 => numbers(datatype, values.map(T::to_bf16)),
        Datatype::Fp64 => numbers(datatype, values.map(T::to_f64)),
        Datatype::Fp32 | Datatype::Bytes => numbers(Datatype::Fp32, values.map(T::to_f32)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::of_strings;
    use crate::trial::{fault, run};

    #[test]
    fn numbers_beyond_a_range_become_its_nearest_value() {
        let check = |values: Vec<f64>, datatype: &str, want: &[i64]| {
            let input = of_numbers(Datatype::Fp64, &[values.len()], values);
            let got = run("cast", &[("input", &input)], &["output"], &format!("\"datatype\": \"{datatype}\"")).unwrap();
            assert_eq!(integers("", &got[0]).unwrap()[..], *want, "{datatype}");
        };
        check(
            vec![1e300, -1e300, f64::NAN, 9_007_199_254_740_993.0],
            "INT64",
            &[i64::MAX, i64::MIN, 0, 9_007_199_254_740_992],
        );
        check(vec![300.0, -1.0, 255.9], "UINT8", &[255, 0, 255]);
        check(vec![f64::NAN, 0.0, -0.0, 1e-300], "BOOL", &[1, 0, 0, 1]);
    }

    #[test]
    fn strings_are_refused() {
        let input = of_strings(&[1], ["1"]);
        let want = "'input' must hold numbers, but it is BYTES";
        assert_eq!(fault("cast", &[("input", &input)], &["output"], "\"datatype\": \"FP32\""), want);
    }
}
