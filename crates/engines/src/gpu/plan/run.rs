//! Enqueues the steps of a plan for one batch.

use crate::gpu::plan::{DevicePlan, PlanStep, StepWork, ValueLocation};
use crate::gpu::program::{self, GpuProgram};
use backend::gpu::driver::{DevicePointer, DriverError, MatrixProduct};
use backend::kernel::BufferRole;
use backend::kernel::pointwise::{Binary, activation_plan, softmax_plan};
use backend::kernel::reshape::BoxPart;
use base::error::Error;
use base::tensor::Datatype;

impl GpuProgram for DevicePlan {
    fn enqueue(&self, work: &mut program::ProgramBatch<'_>) -> Result<(), DriverError> {
        let mut table = work.table;
        for step in self.steps.iter() {
            self.enqueue_step(step, table, work)?;
            if let StepWork::Move(_) = step.work {
                table += size_of::<BoxPart>() as u64;
            }
        }
        Ok(())
    }

    fn write_table(&self, rows: usize, table: &mut [u8]) {
        let boxes = self.steps.iter().filter_map(|step| match step.work {
            StepWork::Move(part) => Some(part),
            _ => None,
        });
        for (place, part) in table.chunks_exact_mut(size_of::<BoxPart>()).zip(boxes) {
            // If there are too many rows for a box, its launch is refused.
            if let Some((part, _)) = part.of_rows(rows) {
                place.copy_from_slice(bytemuck::bytes_of(&part));
            }
        }
    }
}

impl DevicePlan {
    fn address(&self, location: ValueLocation, work: &program::ProgramBatch<'_>) -> Result<DevicePointer, DriverError> {
        let found = match location {
            ValueLocation::Input(index) => work.inputs.get(index).copied(),
            ValueLocation::Output(index) => work.outputs.get(index).copied(),
            ValueLocation::Scratch(offset) => Some(work.scratch + offset as u64),
            ValueLocation::Weight(offset) => Some(self.weights.pointer() + offset as u64),
        };
        found.ok_or_else(|| DriverError::transient("a plan names a tensor that the batch does not have"))
    }

    fn enqueue_step(
        &self,
        step: &PlanStep<ValueLocation>,
        table: DevicePointer,
        work: &mut program::ProgramBatch<'_>,
    ) -> Result<(), DriverError> {
        let rows = step.per_row.saturating_mul(work.rows);
        let (input, output) = (self.address(step.input, work)?, self.address(step.output, work)?);
        let narrow = |number: usize| {
            u32::try_from(number).map_err(|_| DriverError::transient("a matrix is too large for one launch"))
        };
        let (plan, right) = match step.work {
            StepWork::Multiply { inner, weight, is_transposed, bias, has_relu } => {
                let weight = self.address(weight, work)?;
                let bias = bias.map(|bias| self.address(bias, work)).transpose()?;
                let columns = step.columns;
                let matmul =
                    MatrixProduct { rows, inner, columns, is_transposed, has_relu, input, weight, bias, output };
                let blas = work
                    .blas
                    .as_mut()
                    .ok_or_else(|| DriverError::transient("a plan has a product, and the slot no cuBLASLt"))?;
                return blas.enqueue(work.stream, &matmul);
            }
            StepWork::Activate(activation) => {
                (activation_plan(rows.saturating_mul(step.columns), activation, Datatype::Fp32), 0)
            }
            StepWork::Combine { right, operation, activation, left, strides } => {
                let (rows, columns) = (narrow(rows)?, narrow(step.columns)?);
                let binary = Binary { rows, columns, left, right: strides, operation, activation };
                (binary.plan(Datatype::Fp32), self.address(right, work)?)
            }
            StepWork::Move(part) => (part.launch(rows), 0),
            StepWork::Softmax => (softmax_plan(narrow(rows)?, narrow(step.columns)?, Datatype::Fp32), 0),
        };
        let plan = plan.map_err(launch_refused)?;
        work.opened.launch(work.stream, &plan, |role| match role {
            BufferRole::Input => Some(input),
            BufferRole::Right => Some(right),
            BufferRole::Output => Some(output),
            BufferRole::Parts => Some(table),
            BufferRole::Indices | BufferRole::Scratch => None,
        })
    }
}

/// The error of a launch that `backend::kernel` cannot plan.
fn launch_refused(error: Error) -> DriverError {
    DriverError::transient(error.text().to_owned())
}
