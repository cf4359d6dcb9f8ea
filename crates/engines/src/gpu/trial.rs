//! Test support for the executor: a model of one matrix product, on the fake driver.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a fixture of tests, which fail by panicking"
)]

use std::sync::Arc;

use smallvec::smallvec;

use crate::gpu::executor::GpuInstance;
use crate::gpu::program::{GpuProgram, ProgramBatch, ProgramSource};
use crate::gpu::slot_sizes::SlotSizes;
use backend::gpu::device::{Gpu, OpenDevice};
use backend::gpu::driver::{DriverError, MatrixProduct};
use backend::gpu::figures::GpuInstanceFigures;
use backend::gpu::memory::DeviceBuffer;
use backend::trial::{self, tensor};
use base::tensor::{Datatype, Tensor};
use model::ModelSpec;

/// `y = x [[1, 2, 3], [4, 5, 6]]`.
pub struct Product {
    /// Rows of the largest batch.
    pub rows_max: usize,
}

struct TrialProgram {
    weight: DeviceBuffer,
}

impl ProgramSource for Product {
    fn sizes(&self) -> Arc<SlotSizes> {
        Arc::new(SlotSizes {
            rows_max: self.rows_max,
            inputs: smallvec![8],
            outputs: smallvec![12],
            datatypes: smallvec![Datatype::Fp32],
            ..SlotSizes::default()
        })
    }

    fn needs_blas(&self) -> bool {
        true
    }

    fn place(&self, opened: &Arc<OpenDevice>) -> Result<Arc<dyn GpuProgram>, DriverError> {
        let weight = bytemuck::cast_slice(&[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0]).to_vec();
        Ok(Arc::new(TrialProgram { weight: DeviceBuffer::with_contents(opened, &weight)? }))
    }
}

impl GpuProgram for TrialProgram {
    fn enqueue(&self, work: &mut ProgramBatch<'_>) -> Result<(), DriverError> {
        let matmul = MatrixProduct {
            rows: work.rows,
            inner: 2,
            columns: 3,
            is_transposed: false,
            has_relu: false,
            input: work.inputs[0],
            weight: self.weight.pointer(),
            bias: None,
            output: work.outputs[0],
        };
        work.blas.as_mut().unwrap().enqueue(work.stream, &matmul)
    }
}

/// The model's configuration, for batches of this many rows; 0 for no batch axis.
pub fn spec(rows_max: u32) -> Arc<ModelSpec> {
    Arc::new(trial::spec(rows_max, &[("x", Datatype::Fp32, &[2])], &[("y", Datatype::Fp32, &[3])]))
}

/// An instance of it on a device.
pub fn instance(gpu: &Gpu, rows_max: u32, figures: &Arc<GpuInstanceFigures>) -> Result<GpuInstance, DriverError> {
    let (spec, opened) = (spec(rows_max), gpu.open()?);
    let product = Product { rows_max: rows_max.max(1) as usize };
    let program = product.place(&opened)?;
    GpuInstance::new(&spec, &product, program, &opened, figures)
}

/// A request's row.
pub fn row(first: f32, second: f32) -> Tensor {
    tensor(&[1, 2], &[first, second])
}

/// The output for that row.
pub fn product(first: f32, second: f32) -> Tensor {
    let sum = |left: f32, right: f32| first * left + second * right;
    tensor(&[1, 3], &[sum(1.0, 4.0), sum(2.0, 5.0), sum(3.0, 6.0)])
}
