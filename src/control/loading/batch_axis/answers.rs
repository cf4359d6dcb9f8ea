//! Compares the answer of a row that ran alone with its part of the answer of a batch. Floats may differ by rounding:
//! libraries add up the products of a matrix in another order when it has more rows. Everything else must be the same.

use half::{bf16, f16};

use crate::backend::text::ShapeText;
use crate::model::ModelSpec;
use crate::tensor::strings::{LENGTH_SIZE, Strings};
use crate::tensor::{Datatype, Tensor};

/// Allowed difference of floats, as a part of the value. Rounding of FP32 is 1e-7 for each operation and below 1e-4
/// after a deep network; the effect of other rows is far larger in one of the sets of rows.
const RELATIVE: f64 = 1e-3;
/// The same of FP16, whose rounding is 5e-4, and on a GPU, which may multiply FP32 in 19 bits.
const RELATIVE_HALF: f64 = 1e-2;
/// The same of BF16, whose rounding is 4e-3.
const RELATIVE_BRAIN: f64 = 5e-2;
/// A difference below this part of the largest value of an output is rounding, too, whatever the value: sums cancel.
const OF_LARGEST: f64 = 0.1;
/// A difference that counts for nothing: what is left of values that cancel out.
const ABSOLUTE: f64 = 1e-6;
/// Factor by which a difference may exceed that of a nudged row and still be rounding.
const NOISE_FACTOR: f64 = 8.0;
/// The part of the largest value up to which a difference that a nudge makes, too, is taken for rounding.
const NOISE_MAX: f64 = 0.05;

/// Allowed difference of floats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance(f64);

impl Tolerance {
    /// That of the coarsest datatype of a model.
    pub fn of(spec: &ModelSpec) -> Self {
        let datatypes = || spec.inputs.iter().chain(&spec.outputs).map(|tensor| tensor.datatype);
        if datatypes().any(|datatype| datatype == Datatype::Bf16) {
            return Self(RELATIVE_BRAIN);
        }
        let is_half = spec.is_on_gpu() || datatypes().any(|datatype| datatype == Datatype::Fp16);
        Self(if is_half { RELATIVE_HALF } else { RELATIVE })
    }
}

/// Result of a comparison.
#[derive(Debug, PartialEq)]
pub enum AnswerComparison {
    /// The answers are the same.
    Same,
    /// An output has no part for each row.
    Shape(String),
    /// Outputs have other values.
    Values(Vec<Difference>),
}

/// An output with other values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// The index of the output.
    output: usize,
    /// The largest difference of two values; `None` if the values are no floats.
    size: Option<f64>,
    /// The largest value.
    largest: f64,
}

/// Verdict of a difference between two answers of one row on another difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noise {
    /// It is as large, and both are small.
    Explains,
    /// It is as large, and both are large.
    Hides,
    /// It is smaller.
    Less,
}

impl Difference {
    /// Measures it beside the difference of two answers of the same row alone.
    pub fn beside(&self, alone: &[Tensor], noise: &[Tensor]) -> Noise {
        let pair = alone.get(self.output).zip(noise.get(self.output));
        let Some((alone, noise)) = pair else { return Noise::Less };
        let found = values_differ(self.output, alone, &alone.contents, noise, &noise.contents, Tolerance(0.0));
        match (self.size, found.and_then(|found| found.size.or(Some(f64::INFINITY)))) {
            (_, None) => Noise::Less,
            (None, Some(_)) => Noise::Hides,
            (Some(size), Some(noise)) if size > noise * NOISE_FACTOR => Noise::Less,
            (Some(size), Some(_)) if size <= self.largest * NOISE_MAX => Noise::Explains,
            (Some(_), Some(_)) => Noise::Hides,
        }
    }

    /// Returns true if rounding may make it, in a model that makes much of it.
    pub fn is_small(&self) -> bool {
        self.size.is_some_and(|size| size <= self.largest * NOISE_MAX)
    }

    /// Its text for the log.
    pub fn text(&self, spec: &ModelSpec) -> String {
        let name = spec.outputs.get(self.output).map_or("", |output| output.name.as_str());
        let how = match self.size {
            Some(size) if size.is_finite() => {
                format!("by up to {size:.3e} (its largest value is {:.3e})", self.largest)
            }
            Some(_) | None => "in its values".to_owned(),
        };
        format!("output '{name}' of a row differs {how} when it runs together with other rows")
    }
}

/// The answer of a batch, and the place of one of its rows.
#[derive(Clone, Copy)]
pub struct BatchAnswer<'a> {
    /// All rows of each output.
    pub outputs: &'a [Tensor],
    /// The row's place.
    pub place: usize,
    /// The number of rows.
    pub count: usize,
}

/// Compares the answer of a row with its part of a batch's answer.
pub fn compare(
    spec: &ModelSpec,
    alone: &[Tensor],
    together: BatchAnswer<'_>,
    tolerance: Tolerance,
) -> AnswerComparison {
    let mut differences = Vec::new();
    let BatchAnswer { outputs: together, place, count } = together;
    for (index, (one, many)) in alone.iter().zip(together).enumerate() {
        let has_rows = |tensor: &Tensor, rows: usize| tensor.shape.first().is_some_and(|size| *size == rows as i64);
        let is_alike = one.datatype == many.datatype && one.shape.get(1..) == many.shape.get(1..);
        let part = part(many, place, count);
        let Some(part) = part.filter(|_| is_alike && has_rows(one, 1) && has_rows(many, count)) else {
            let name = spec.outputs.get(index).map_or("", |output| output.name.as_str());
            let (one, many) = (ShapeText(&one.shape), ShapeText(&many.shape));
            return AnswerComparison::Shape(format!("output '{name}' is {one} for a row and {many} for {count} rows"));
        };
        differences.extend(values_differ(index, one, &one.contents, many, part, tolerance));
    }
    if differences.is_empty() { AnswerComparison::Same } else { AnswerComparison::Values(differences) }
}

/// Returns true if the answers of two rows differ beyond rounding.
pub fn differ(one: &[Tensor], other: &[Tensor], tolerance: Tolerance) -> bool {
    one.len() != other.len()
        || one.iter().zip(other).enumerate().any(|(index, (one, other))| {
            one.shape != other.shape
                || values_differ(index, one, &one.contents, other, &other.contents, tolerance).is_some()
        })
}

/// The bytes of one row of an output.
fn part(tensor: &Tensor, place: usize, count: usize) -> Option<&[u8]> {
    let contents = &tensor.contents[..];
    if tensor.datatype.size().is_some() {
        let size = contents.len() / count.max(1);
        return contents.get(place * size..(place + 1) * size);
    }
    let lengths: Vec<usize> =
        Strings::new(contents).map_while(Result::ok).map(|text| text.len() + LENGTH_SIZE).collect();
    let each = lengths.len() / count.max(1);
    let size = |from: usize, to: usize| lengths.get(from..to).map(|lengths| lengths.iter().sum::<usize>());
    let begin = size(0, place * each)?;
    contents.get(begin..begin + size(place * each, (place + 1) * each)?)
}

fn values_differ(
    output: usize,
    one: &Tensor,
    one_bytes: &[u8],
    other: &Tensor,
    other_bytes: &[u8],
    Tolerance(relative): Tolerance,
) -> Option<Difference> {
    if one_bytes == other_bytes {
        return None;
    }
    let floats = floats(one.datatype, one_bytes).zip(floats(other.datatype, other_bytes));
    let Some((one, other)) = floats.filter(|(one, other)| one.len() == other.len()) else {
        return Some(Difference { output, size: None, largest: 0.0 });
    };
    let finite = one.iter().chain(&other).filter(|value| value.is_finite());
    let largest = finite.fold(0.0_f64, |largest, value| largest.max(value.abs()));
    let mut size = None;
    for (one, other) in one.into_iter().zip(other) {
        let is_same = one == other || (one.is_nan() && other.is_nan());
        let difference = if is_same { 0.0 } else { (one - other).abs() };
        let difference = if difference.is_nan() { f64::INFINITY } else { difference };
        let of_value = relative * one.abs().max(other.abs()).min(largest);
        let allowed = if relative > 0.0 { relative.mul_add(largest * OF_LARGEST, of_value) + ABSOLUTE } else { 0.0 };
        if difference > allowed {
            size = Some(size.map_or(difference, |size: f64| size.max(difference)));
        }
    }
    size.map(|size| Difference { output, size: Some(size), largest })
}

/// The values of a tensor of floats; `None` for any other.
fn floats(datatype: Datatype, contents: &[u8]) -> Option<Vec<f64>> {
    Some(match datatype {
        Datatype::Bf16 => contents.as_chunks().0.iter().map(|bytes| f64::from(bf16::from_le_bytes(*bytes))).collect(),
        Datatype::Fp16 => contents.as_chunks().0.iter().map(|bytes| f64::from(f16::from_le_bytes(*bytes))).collect(),
        Datatype::Fp32 => contents.as_chunks().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect(),
        Datatype::Fp64 => contents.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::trial::{spec, tensor};
    use crate::tensor::AlignedBuffer;

    const TOLERANCE: Tolerance = Tolerance(RELATIVE);

    fn text(alone: Tensor, together: Tensor, place: usize) -> Option<String> {
        let spec = spec(4, &[], &[("y", alone.datatype, &[-1])]);
        let count = *together.shape.first().unwrap() as usize;
        match compare(&spec, &[alone], BatchAnswer { outputs: &[together], place, count }, TOLERANCE) {
            AnswerComparison::Same => None,
            AnswerComparison::Shape(text) => Some(text),
            AnswerComparison::Values(differences) => Some(differences[0].text(&spec)),
        }
    }

    #[test]
    fn a_row_of_a_batch_may_differ_by_rounding_and_by_no_more() {
        let one = || tensor(&[1, 2], &[1.0_f32, -100.0]);
        let check = |together: &[f32], want: Option<&str>| {
            let got = text(one(), tensor(&[2, 2], together), 1);
            assert_eq!(got.as_deref(), want, "{together:?}");
        };
        check(&[5.0, 6.0, 1.0, -100.0], None);
        check(&[5.0, 6.0, 1.005, -100.05], None);
        let differs = "output 'y' of a row differs by up to 5.000e-1 (its largest value is 1.000e2) when it runs together \
                       with other rows";
        check(&[1.0, -100.0, 1.5, -100.0], Some(differs));
        let values = "output 'y' of a row differs in its values when it runs together with other rows";
        check(&[1.0, -100.0, f32::NAN, -100.0], Some(values));
        check(&[1.0, -100.0, f32::INFINITY, -100.0], Some(values));
        let nan = || tensor(&[1, 1], &[f32::NAN]);
        assert_eq!(text(nan(), tensor(&[2, 1], &[1.0, f32::NAN]), 1), None, "no number in both");
        assert_eq!(text(tensor(&[1], &[7_i64]), tensor(&[2], &[8_i64, 7]), 1), None);
        assert_eq!(text(tensor(&[1], &[7_i64]), tensor(&[2], &[7_i64, 8]), 1).as_deref(), Some(values));
    }

    #[test]
    fn an_output_without_a_part_for_each_row_differs() {
        let one = || tensor(&[1, 2], &[1.0_f32, 2.0]);
        let shape = |shape: &[i64], want: &str| {
            let elements = vec![1.0_f32; shape.iter().product::<i64>() as usize];
            let spec = spec(4, &[], &[("y", Datatype::Fp32, &[-1])]);
            let got = compare(
                &spec,
                &[one()],
                BatchAnswer { outputs: &[tensor(shape, &elements)], place: 0, count: 3 },
                TOLERANCE,
            );
            assert_eq!(got, AnswerComparison::Shape(want.to_owned()));
        };
        shape(&[1, 2], "output 'y' is [1,2] for a row and [1,2] for 3 rows");
        shape(&[3, 4], "output 'y' is [1,2] for a row and [3,4] for 3 rows");
    }

    #[test]
    fn strings_are_compared_by_rows() {
        let texts = |texts: &[&str]| {
            let mut contents = Vec::new();
            texts.iter().for_each(|text| crate::tensor::strings::encode(text.as_bytes(), &mut contents));
            let mut buffer = AlignedBuffer::with_capacity(contents.len());
            buffer.extend_from_slice(&contents);
            let shape = [texts.len() as i64 / 2, 2].into_iter().collect();
            Tensor { datatype: Datatype::Bytes, shape, contents: buffer.freeze() }
        };
        let together = || texts(&["a", "long", "", "b", "c", "d"]);
        assert_eq!(text(texts(&["", "b"]), together(), 1), None);
        assert_eq!(text(texts(&["c", "d"]), together(), 2), None);
        assert!(text(texts(&["", "b"]), together(), 2).is_some());
    }

    #[test]
    fn what_a_nudge_changes_as_much_is_no_other_row() {
        let check = |size: f32, noise: f32, want: Noise| {
            let (alone, noisy) = ([tensor(&[1], &[10.0_f32])], [tensor(&[1], &[10.0 + noise])]);
            let difference = Difference { output: 0, size: Some(f64::from(size)), largest: 10.0 };
            assert_eq!(difference.beside(&alone, &noisy), want, "{size} beside {noise}");
        };
        check(0.1, 0.0, Noise::Less);
        check(0.1, 0.001, Noise::Less);
        check(0.1, 0.05, Noise::Explains);
        check(5.0, 4.0, Noise::Hides);
        let classes = Difference { output: 0, size: None, largest: 0.0 };
        let class = |class: i64| [tensor(&[1], &[class])];
        assert_eq!(classes.beside(&class(1), &class(1)), Noise::Less);
        assert_eq!(classes.beside(&class(1), &class(2)), Noise::Hides);
    }
}
