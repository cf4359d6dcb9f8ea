//! `normalize`: vectors of length one.

use base::error::Error;
use base::tensor::{Datatype, Tensor};

use crate::fields::{Field, FieldDefault, FieldKind, StepFields};
use crate::kind::{Step, StepKind, StepPort};
use crate::tensors::{floats, of_numbers, trailing};
use crate::vector::sum_of_squares;

/// The kind.
pub const KIND: StepKind = StepKind {
    name: "normalize",
    about: "Divides vectors by their L2 norm, as torch's `normalize`: `v / max(norm(v), epsilon)`, in FP32.",
    inputs: &[StepPort { name: "vector", about: "Numbers [.., dimensions].", is_optional: false }],
    outputs: &[StepPort { name: "vector", about: "FP32 of the same shape.", is_optional: false }],
    fields: &[Field {
        name: "epsilon",
        kind: FieldKind::Number(0.0, 1.0),
        default: FieldDefault::Json("1e-12"),
        about: "The least norm that is divided by. With 0, a vector of zeros becomes NaN.",
    }],
    is_short: true,
    build: |fields| Ok(Box::new(Normalize::build(fields))),
};

struct Normalize {
    norm_min: f32,
}

impl Normalize {
    fn build(fields: &StepFields<'_>) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "torch compares the norm in FP32")]
        let norm_min = fields.number("epsilon").unwrap_or_default() as f32;
        Self { norm_min }
    }
}

impl Step for Normalize {
    fn run(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let Some(Some(input)) = inputs.first() else { return Ok(Vec::new()) };
        let (_, [size]) = trailing("vector", "[dimensions]", input)?;
        let mut values = floats("vector", input)?.into_owned();
        for vector in values.chunks_exact_mut(size.max(1)) {
            #[expect(clippy::cast_possible_truncation, reason = "torch divides by a norm in FP32")]
            let norm = sum_of_squares(vector).sqrt() as f32;
            // A norm that is NaN stays.
            let norm = if norm < self.norm_min { self.norm_min } else { norm };
            vector.iter_mut().for_each(|value| *value /= norm);
        }
        Ok(vec![Some(Tensor { shape: input.shape.clone(), ..of_numbers(Datatype::Fp32, &[], values) })])
    }
}

#[cfg(test)]
mod tests {
    use crate::tensors::{floats, of_floats, of_strings};
    use crate::trial::{fault, run};

    #[test]
    fn each_vector_has_length_one_and_zeros_stay() {
        let vectors = of_floats(&[2, 1, 2], vec![3.0, 4.0, 0.0, 0.0]);
        let got = run("normalize", &[("vector", &vectors)], &["vector"], "").unwrap();
        assert_eq!(floats("", &got[0]).unwrap()[..], [0.6, 0.8, 0.0, 0.0]);
        assert_eq!(got[0].shape, vectors.shape);
        let empty = run("normalize", &[("vector", &of_floats(&[2, 0], vec![]))], &["vector"], "").unwrap();
        assert_eq!(empty[0].shape[..], [2, 0]);
        let error = fault("normalize", &[("vector", &of_strings(&[1], ["a"]))], &["vector"], "");
        assert_eq!(error, "'vector' must hold numbers, but it is BYTES");
    }
}
