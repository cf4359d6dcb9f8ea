//! `scale`: numbers shifted and scaled, by column or all alike.

use base::error::Error;
use base::tensor::{Datatype, Tensor};

use crate::fields::{Field, FieldDefault, FieldKind, StepFields};
use crate::kind::{Step, StepKind, StepPort};
use crate::limits::COLUMNS_MAX;
use crate::tensors::{check_size, doubles, floats, of_numbers};

/// The kind.
pub const KIND: StepKind = StepKind {
    name: "scale",
    about: "Shifts and scales numbers. The operations that are given are done in the order of the table: subtract, \
            divide, multiply, add, clip. Each takes a list of one number, or of one for each place along the last \
            axis.",
    inputs: &[StepPort { name: "input", about: "Numbers of any shape.", is_optional: false }],
    outputs: &[StepPort { name: "output", about: "The same shape, FP32 or FP64.", is_optional: false }],
    fields: &[
        numbers("subtract", "What is subtracted, such as the mean."),
        numbers("divide", "What is divided by, such as the standard deviation."),
        numbers(
            "minimum",
            "With `maximum`: subtracts the minimum and divides by `maximum - minimum`, after the two above.",
        ),
        numbers("maximum", "See `minimum`."),
        numbers("multiply", "A factor."),
        numbers("add", "What is added."),
        Field {
            name: "clip",
            kind: FieldKind::Numbers(2),
            default: FieldDefault::Unset,
            about: "Bounds of the result, as `np.clip`.",
        },
        Field {
            name: "arithmetic",
            kind: FieldKind::Choice(&["float32", "float64", "in_place"]),
            default: FieldDefault::Json("\"float32\""),
            about: "`float32`: all in FP32, as numpy with FP32 arrays or Python numbers. `float64`: all in FP64, as \
                    numpy with FP64 arrays. `in_place`: each operation in FP64 and rounded to FP32, as `x -= mean` on \
                    an FP32 array does with FP64 parameters; so do scikit-learn's scalers.",
        },
        Field {
            name: "datatype",
            kind: FieldKind::Choice(&["FP32", "FP64"]),
            default: FieldDefault::Json("\"FP32\""),
            about: "The datatype of the output; FP64 needs `arithmetic` `float64`.",
        },
    ],
    is_short: true,
    build: |fields| Ok(Box::new(Scale::build(fields)?)),
};

const fn numbers(name: &'static str, about: &'static str) -> Field {
    Field { name, kind: FieldKind::Numbers(COLUMNS_MAX), default: FieldDefault::Unset, about }
}

struct Scale {
    operations: Vec<Operation>,
    arithmetic: ScaleArithmetic,
    is_double: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ScaleArithmetic {
    Double,
    InPlace,
    Single,
}

struct Operation {
    kind: OperationKind,
    parameter: &'static str,
    numbers: Vec<f64>,
}

#[derive(Clone, Copy)]
enum OperationKind {
    Add,
    Divide,
    Least,
    Most,
    Multiply,
    Subtract,
}

impl Scale {
    fn build(fields: &StepFields<'_>) -> Result<Self, Error> {
        let arithmetic = match fields.text("arithmetic").as_str() {
            "float64" => ScaleArithmetic::Double,
            "in_place" => ScaleArithmetic::InPlace,
            _ => ScaleArithmetic::Single,
        };
        let is_double = fields.text("datatype") == "FP64";
        if is_double && arithmetic != ScaleArithmetic::Double {
            return Err(fields.error("datatype", "FP64 needs \"arithmetic\": \"float64\""));
        }
        let mut operations = Vec::new();
        let mut push = |kind, parameter, numbers| operations.push(Operation { kind, parameter, numbers });
        for (kind, name) in [(OperationKind::Subtract, "subtract"), (OperationKind::Divide, "divide")] {
            if fields.is_given(name) {
                push(kind, name, fields.numbers(name));
            }
        }
        if fields.is_given("minimum") || fields.is_given("maximum") {
            let (least, most) = (fields.numbers("minimum"), fields.numbers("maximum"));
            if least.len() != most.len() {
                return Err(fields.error("minimum", "must have as many numbers as \"maximum\""));
            }
            push(
                OperationKind::Divide,
                "maximum",
                least.iter().zip(&most).map(|(least, most)| range(arithmetic, *least, *most)).collect(),
            );
            push(OperationKind::Subtract, "minimum", least);
            let last = operations.len().saturating_sub(1);
            operations.swap(last.saturating_sub(1), last);
        }
        let mut push = |kind, parameter, numbers| operations.push(Operation { kind, parameter, numbers });
        for (kind, name) in [(OperationKind::Multiply, "multiply"), (OperationKind::Add, "add")] {
            if fields.is_given(name) {
                push(kind, name, fields.numbers(name));
            }
        }
        match fields.numbers("clip")[..] {
            [least, most] if least <= most => {
                push(OperationKind::Least, "clip", vec![least]);
                push(OperationKind::Most, "clip", vec![most]);
            }
            [] if !fields.is_given("clip") => {}
            _ => return Err(fields.error("clip", "must have two numbers, the lower first")),
        }
        match operations.iter().find(|operation| operation.numbers.is_empty()) {
            Some(operation) => Err(fields.error(operation.parameter, "must have a number")),
            None => Ok(Self { operations, arithmetic, is_double }),
        }
    }
}

/// The range of a column, computed as the rest is.
#[expect(clippy::cast_possible_truncation, reason = "arithmetic in FP32")]
fn range(arithmetic: ScaleArithmetic, least: f64, most: f64) -> f64 {
    if arithmetic == ScaleArithmetic::Single { f64::from(most as f32 - least as f32) } else { most - least }
}

impl Step for Scale {
    fn run(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let Some(Some(input)) = inputs.first() else { return Ok(Vec::new()) };
        let shape = &input.shape[..];
        let columns = input.shape.last().and_then(|columns| usize::try_from(*columns).ok()).unwrap_or(1);
        check_size("input", input)?;
        let wrong = |operation: &&Operation| operation.numbers.len() != 1 && operation.numbers.len() != columns;
        if let Some(Operation { parameter, numbers, .. }) = self.operations.iter().find(wrong) {
            let count = numbers.len();
            return Err(Error::invalid(format!(
                "'input' has the shape {shape:?}, but \"{parameter}\" has {count} numbers: its last dimension must be \
                 {count}"
            )));
        }
        let output = match self.arithmetic {
            ScaleArithmetic::Single => {
                let mut values = floats("input", input)?.into_owned();
                for operation in &self.operations {
                    single(&mut values, columns, operation);
                }
                of_numbers(Datatype::Fp32, &[], values)
            }
            ScaleArithmetic::Double => {
                let mut values = doubles("input", input)?.into_owned();
                for operation in &self.operations {
                    each(&mut values, columns, &operation.numbers, |value, number| {
                        *value = applied(operation.kind, *value, number)
                    });
                }
                self.of_doubles(values)
            }
            ScaleArithmetic::InPlace => {
                let mut values = floats("input", input)?.into_owned();
                for operation in &self.operations {
                    in_place(&mut values, columns, operation);
                }
                of_numbers(Datatype::Fp32, &[], values)
            }
        };
        Ok(vec![Some(Tensor { shape: input.shape.clone(), ..output })])
    }
}

impl Scale {
    #[expect(clippy::cast_possible_truncation, reason = "as numpy's astype(float32)")]
    fn of_doubles(&self, values: Vec<f64>) -> Tensor {
        if self.is_double {
            return of_numbers(Datatype::Fp64, &[], values);
        }
        of_numbers(Datatype::Fp32, &[], values.into_iter().map(|value| value as f32).collect::<Vec<_>>())
    }
}

/// Calls a function with each element and its number.
fn each<T, N: Copy>(values: &mut [T], columns: usize, numbers: &[N], apply: impl Fn(&mut T, N)) {
    match numbers {
        [number] => values.iter_mut().for_each(|value| apply(value, *number)),
        numbers => {
            for row in values.chunks_exact_mut(columns.max(1)) {
                row.iter_mut().zip(numbers).for_each(|(value, number)| apply(value, *number));
            }
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "arithmetic in FP32")]
fn single(values: &mut [f32], columns: usize, operation: &Operation) {
    let numbers: Vec<_> = operation.numbers.iter().map(|number| *number as f32).collect();
    match operation.kind {
        OperationKind::Add => each(values, columns, &numbers, |value, number| *value += number),
        OperationKind::Divide => each(values, columns, &numbers, |value, number| *value /= number),
        OperationKind::Multiply => each(values, columns, &numbers, |value, number| *value *= number),
        OperationKind::Subtract => each(values, columns, &numbers, |value, number| *value -= number),
        // NaN stays.
        OperationKind::Least => {
            each(values, columns, &numbers, |value, least| *value = if *value < least { least } else { *value })
        }
        OperationKind::Most => {
            each(values, columns, &numbers, |value, most| *value = if *value > most { most } else { *value })
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "numpy rounds the result of an operation in place")]
fn in_place(values: &mut [f32], columns: usize, operation: &Operation) {
    each(values, columns, &operation.numbers, |value, number| {
        *value = applied(operation.kind, f64::from(*value), number) as f32;
    });
}

fn applied(kind: OperationKind, value: f64, number: f64) -> f64 {
    match kind {
        OperationKind::Add => value + number,
        OperationKind::Divide => value / number,
        OperationKind::Least if value < number => number,
        OperationKind::Most if value > number => number,
        OperationKind::Least | OperationKind::Most => value,
        OperationKind::Multiply => value * number,
        OperationKind::Subtract => value - number,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::{of_floats, of_strings};
    use crate::trial::{built, fault};

    #[test]
    fn faults_are_named() {
        let check = |tensor: Tensor, members: &str, want: &str| {
            assert_eq!(fault("scale", &[("input", &tensor)], &["output"], members), want);
        };
        let shape = "'input' has the shape [2, 3], but \"divide\" has 2 numbers: its last dimension must be 2";
        check(of_floats(&[2, 3], vec![0.0; 6]), r#""divide": [1, 2]"#, shape);
        check(of_strings(&[1], ["a"]), r#""add": [1]"#, "'input' must hold numbers, but it is BYTES");
        check(of_floats(&[2], vec![0.0; 3]), "", "'input' has contents of another size than its shape [2]");
        let bad = |members: &str, want: &str| {
            let error = built("scale", &["input"], &["output"], members).err().unwrap();
            assert_eq!(error, format!("step 1: line 1: {want}"));
        };
        bad(r#""add": []"#, "\"add\": must have a number");
        bad(r#""minimum": [1]"#, "\"minimum\": must have as many numbers as \"maximum\"");
        bad(r#""clip": [1]"#, "\"clip\": must have two numbers, the lower first");
        bad(r#""clip": [1, 0]"#, "\"clip\": must have two numbers, the lower first");
        bad(r#""datatype": "FP64""#, "\"datatype\": FP64 needs \"arithmetic\": \"float64\"");
    }
}
