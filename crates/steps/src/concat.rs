//! `concat`: tensors one after the other, along an axis that they have.

use base::error::Error;
use base::tensor::Tensor;

use crate::axes::{axis_field, join, place};
use crate::kind::{Step, StepKind, StepPort};

/// The kind.
pub const KIND: StepKind = StepKind {
    name: "concat",
    about: "Joins tensors along an axis, as `np.concatenate`: columns [rows, 1] to a table [rows, columns].",
    inputs: &[StepPort {
        name: "tensors[]",
        about: "A list of tensors of numbers, of one datatype, and of one shape but for the axis.",
        is_optional: false,
    }],
    outputs: &[StepPort { name: "output", about: "The tensors along the axis.", is_optional: false }],
    fields: &[axis_field("-1", "The axis; a negative one counts from the end.")],
    is_short: true,
    build: |fields| Ok(Box::new(Concat { axis: fields.integer("axis").unwrap_or(-1) })),
};

struct Concat {
    axis: i64,
}

impl Step for Concat {
    fn run(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let tensors: Vec<_> = inputs.iter().flatten().map(|tensor| (*tensor).clone()).collect();
        let rank = tensors.first().map_or(0, |first| first.shape.len());
        let axis = place("axis", "tensors[0]", self.axis, rank)?;
        Ok(vec![Some(join("tensors", &tensors, axis)?)])
    }
}
