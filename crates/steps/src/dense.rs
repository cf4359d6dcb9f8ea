//! `dense`: a matrix, a bias and an activation behind a network.

mod safetensors;

use base::error::Error;
use base::tensor::{Datatype, Tensor};

use self::safetensors::DenseWeights;
use crate::fields::{Field, FieldDefault, FieldKind, StepFields};
use crate::kind::{Step, StepKind, StepPort};
use crate::limits::TENSOR_SIZE_MAX;
use crate::tensors::{floats, of_numbers, rows_and, trailing};

/// The kind.
pub const KIND: StepKind = StepKind {
    name: "dense",
    about: "Multiplies vectors by a matrix, adds a bias and applies a function, as the module `Dense` of sentence-transformers, \
            in FP32 within 1e-6.",
    inputs: &[StepPort { name: "vector", about: "Numbers [.., columns].", is_optional: false }],
    outputs: &[StepPort { name: "vector", about: "FP32 [.., rows of the matrix].", is_optional: false }],
    fields: &[
        Field {
            name: "file",
            kind: FieldKind::File,
            default: FieldDefault::Required,
            about: "A safetensors file with `linear.weight` [rows, columns], FP32, FP16 or BF16, and `linear.bias` [rows] if there \
                    is one.",
        },
        Field {
            name: "activation",
            kind: FieldKind::Choice(&["none", "tanh", "relu", "sigmoid"]),
            default: FieldDefault::Json("\"none\""),
            about: "The function.",
        },
    ],
    is_short: false,
    build: |fields| Ok(Box::new(Dense::build(fields)?)),
};

struct Dense {
    weights: DenseWeights,
    activation: fn(f32) -> f32,
}

impl Dense {
    fn build(fields: &StepFields<'_>) -> Result<Self, Error> {
        let contents = fields.file("file")?.unwrap_or_default();
        let name = fields.text("file");
        let weights = safetensors::read(&contents).map_err(|why| fields.error("file", &format!("'{name}': {why}")))?;
        let activation: fn(f32) -> f32 = match fields.text("activation").as_str() {
            "relu" => |x| if x < 0.0 { 0.0 } else { x },
            "sigmoid" => |x| 1.0 / (1.0 + (-x).exp()),
            "tanh" => f32::tanh,
            _ => |x| x,
        };
        Ok(Self { weights, activation })
    }
}

impl Step for Dense {
    fn run(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let Some(Some(input)) = inputs.first() else { return Ok(Vec::new()) };
        let (rows, [columns]) = trailing("vector", "[columns]", input)?;
        let DenseWeights { matrix, bias, columns: wanted } = &self.weights;
        if columns != *wanted {
            return Err(Error::invalid(format!("'vector' has {columns} numbers, but the matrix has {wanted} columns")));
        }
        let size = rows.saturating_mul(bias.len());
        if size.saturating_mul(size_of::<f32>()) > TENSOR_SIZE_MAX {
            return Err(Error::invalid(format!("'vector' would become larger than {TENSOR_SIZE_MAX} bytes")));
        }
        let values = floats("vector", input)?;
        let mut out = Vec::with_capacity(size);
        for vector in values.chunks_exact(columns) {
            let products = matrix.chunks_exact(columns).map(|row| dot(row, vector));
            out.extend(products.zip(bias).map(|(product, bias)| (self.activation)(product + bias)));
        }
        Ok(vec![Some(Tensor { shape: rows_and(input, 1, &[bias.len()]), ..of_numbers(Datatype::Fp32, &[], out) })])
    }
}

/// The sum of products, in eight sums that are added last: they fill a vector register.
fn dot(one: &[f32], other: &[f32]) -> f32 {
    let (ones, others) = (one.chunks_exact(8), other.chunks_exact(8));
    let rest: f32 = ones.remainder().iter().zip(others.remainder()).map(|(a, b)| a * b).sum();
    let mut sums = [0.0_f32; 8];
    for (a, b) in ones.zip(others) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
mod tests {
    use super::safetensors::tests::file;
    use super::*;
    use crate::StepList;
    use crate::tensors::of_floats;

    fn list(file: &[u8], activation: &str) -> Result<StepList, Error> {
        let text = format!(
            r#"{{"steps": [{{"step": "dense", "input": "x", "output": "y", "file": "w", "activation": "{activation}"}}]}}"#
        );
        StepList::read(&text, &|_, _| Ok(file.to_vec()))
    }

    #[test]
    fn vectors_are_multiplied_and_functions_applied() {
        let weights: Vec<f32> = (0..18).map(|index| index as f32 / 16.0).collect();
        let contents =
            file(&[("linear.weight", "F32", &[2, 9], &weights), ("linear.bias", "F32", &[2], &[-1.0, -9.0])]);
        let x = of_floats(&[1, 2, 9], (0..18).map(|index| index as f32 - 4.0).collect());
        let want = |function: fn(f64) -> f64| -> Vec<f64> {
            let row = |row: usize, of: usize| {
                (0..9).map(|at| f64::from(weights[of * 9 + at]) * ((row * 9 + at) as f64 - 4.0)).sum::<f64>()
            };
            (0..2).flat_map(|at| [function(row(at, 0) - 1.0), function(row(at, 1) - 9.0)]).collect()
        };
        let check = |name: &str, function: fn(f64) -> f64| {
            let got = list(&contents, name).unwrap().run(|_| Some(x.clone()), &["y"]).unwrap();
            let got = got[0].clone().unwrap();
            assert_eq!(got.shape[..], [1, 2, 2]);
            for (got, want) in floats("y", &got).unwrap().iter().zip(want(function)) {
                assert!((f64::from(*got) - want).abs() < 1e-5, "{name}: {got} {want}");
            }
        };
        check("none", |x| x);
        check("relu", |x| x.max(0.0));
        check("tanh", f64::tanh);
        check("sigmoid", |x| 1.0 / (1.0 + (-x).exp()));
    }

    #[test]
    fn vectors_of_another_size_are_refused() {
        let list = list(&file(&[("linear.weight", "F32", &[1, 2], &[1.0, 2.0])]), "none").unwrap();
        let run = |shape: &[usize]| {
            let x = of_floats(shape, vec![1.0; shape.iter().product()]);
            list.run(|_| Some(x.clone()), &["y"]).map(|got| floats("y", got[0].as_ref().unwrap()).unwrap().to_vec())
        };
        assert_eq!(run(&[2]).unwrap(), [3.0]);
        let error = run(&[1, 3]).unwrap_err();
        assert_eq!(error.text(), "step 1 (dense): 'vector' has 3 numbers, but the matrix has 2 columns");
    }
}
