//! Enqueues the steps of a plan for one batch.

use crate::backend::gpu::driver::{DevicePointer, DriverError, Matmul};
use crate::backend::gpu::plan::{Place, Placed, Step, Work};
use crate::backend::gpu::program::{self, Program};
use crate::backend::kernel::Role;
use crate::backend::kernel::pointwise::{Binary, activation_plan, softmax_plan};
use crate::error::Error;
use crate::tensor::Datatype;

impl Program for Placed {
    fn enqueue(&self, work: &mut program::Work<'_>) -> Result<(), DriverError> {
        self.steps.iter().try_for_each(|step| self.enqueue_step(step, work))
    }
}

impl Placed {
    fn at(&self, place: Place, work: &program::Work<'_>) -> Result<DevicePointer, DriverError> {
        let found = match place {
            Place::Input(index) => work.inputs.get(index).copied(),
            Place::Output(index) => work.outputs.get(index).copied(),
            Place::Scratch(offset) => Some(work.scratch + offset as u64),
            Place::Weight(offset) => Some(self.weights.pointer() + offset as u64),
        };
        found.ok_or_else(|| DriverError::transient("a plan names a tensor that the batch does not have"))
    }

    fn enqueue_step(&self, step: &Step<Place>, work: &mut program::Work<'_>) -> Result<(), DriverError> {
        let rows = step.per_row.saturating_mul(work.rows);
        let (input, output) = (self.at(step.input, work)?, self.at(step.output, work)?);
        let narrow = |number: usize| {
            u32::try_from(number).map_err(|_| DriverError::transient("a matrix is too large for one launch"))
        };
        let (plan, right) = match step.work {
            Work::Multiply { inner, weight, is_transposed, bias, has_relu } => {
                let weight = self.at(weight, work)?;
                let bias = bias.map(|bias| self.at(bias, work)).transpose()?;
                let columns = step.columns;
                let matmul = Matmul { rows, inner, columns, is_transposed, has_relu, input, weight, bias, output };
                let blas = work.blas.as_mut().ok_or_else(|| DriverError::transient("nothing multiplies here"))?;
                return blas.enqueue(work.stream, &matmul);
            }
            Work::Activate(activation) => {
                (activation_plan(rows.saturating_mul(step.columns), activation, Datatype::Fp32), 0)
            }
            Work::Combine { right, operation, activation, left, strides } => {
                let (rows, columns) = (narrow(rows)?, narrow(step.columns)?);
                let binary = Binary { rows, columns, left, right: strides, operation, activation };
                (binary.plan(Datatype::Fp32), self.at(right, work)?)
            }
            Work::Softmax => (softmax_plan(narrow(rows)?, narrow(step.columns)?, Datatype::Fp32), 0),
        };
        let plan = plan.map_err(unplanned)?;
        work.opened.launch(work.stream, &plan, |role| match role {
            Role::Input => Some(input),
            Role::Right => Some(right),
            Role::Output => Some(output),
            Role::Indices | Role::Parts | Role::Scratch => None,
        })
    }
}

/// A launch that the kernels refuse to plan.
fn unplanned(error: Error) -> DriverError {
    DriverError::transient(error.text().to_owned())
}
