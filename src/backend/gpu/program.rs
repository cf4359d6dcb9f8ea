//! What a model computes on a device: made of a model's file by [`super::plan`], run by
//! [`super::executor`], which knows nothing of models.

use std::sync::Arc;

use crate::backend::gpu::device::Opened;
use crate::backend::gpu::driver::{Blas, DevicePointer, DriverError, Stream};
use crate::backend::gpu::slot::Sizes;

/// What a model computes, before it is on any device.
pub trait Blueprint: Send + Sync {
    /// What a batch needs.
    fn sizes(&self) -> Arc<Sizes>;

    /// Whether it multiplies matrices.
    fn needs_blas(&self) -> bool;

    /// Puts its weights on a device.
    fn place(&self, opened: &Arc<Opened>) -> Result<Arc<dyn Program>, DriverError>;
}

/// What a model computes, with its weights on a device. The instances there share it.
pub trait Program: Send + Sync {
    /// Enqueues the work of a batch and returns. Takes no memory.
    fn enqueue(&self, work: &mut Work<'_>) -> Result<(), DriverError>;
}

/// One batch for a program.
pub struct Work<'a> {
    /// Where it runs.
    pub opened: &'a Opened,
    /// The stream that the inputs come by, and after which the outputs leave.
    pub stream: Stream,
    /// What multiplies matrices.
    pub blas: Option<&'a mut (dyn Blas + 'static)>,
    /// Rows of the batch.
    pub rows: usize,
    /// The inputs.
    pub inputs: &'a [DevicePointer],
    /// Places for the outputs.
    pub outputs: &'a [DevicePointer],
    /// Memory to work in.
    pub scratch: DevicePointer,
}
