//! What a model computes on a device: made of a model's file by [`super::plan`], or by an engine that
//! is handed our streams; run by [`super::executor`], which knows nothing of models.

use std::sync::Arc;

use crate::backend::gpu::device::OpenDevice;
use crate::backend::gpu::driver::{Blas, DevicePointer, DriverError, GpuStream};
use crate::backend::gpu::slot_sizes::SlotSizes;

/// What a model computes, before it is on any device.
pub trait ProgramSource: Send + Sync {
    /// What a batch needs.
    fn sizes(&self) -> Arc<SlotSizes>;

    /// Whether it multiplies matrices.
    fn needs_blas(&self) -> bool;

    /// Whether its programs run in the primary context of a device, through a library that knows no
    /// other.
    fn is_on_primary(&self) -> bool {
        false
    }

    /// Whether a run may fail for what is in the inputs. A batch that did is run again request by
    /// request.
    fn refuses_inputs(&self) -> bool {
        false
    }

    /// Puts its weights on a device.
    fn place(&self, opened: &Arc<OpenDevice>) -> Result<Arc<dyn GpuProgram>, DriverError>;
}

/// What a model computes, with its weights on a device. The instances there share it.
pub trait GpuProgram: Send + Sync {
    /// Enqueues the work of a batch and returns. Takes no memory.
    fn enqueue(&self, work: &mut ProgramBatch<'_>) -> Result<(), DriverError>;

    /// Writes the tables that its kernels read for a batch of so many rows, [`SlotSizes::table`] bytes, which go to
    /// the device with the inputs.
    fn write_table(&self, _rows: usize, _table: &mut [u8]) {}

    /// What enqueues on one stream in its place, where each needs something of its own. It ends before
    /// the stream.
    fn on_stream(
        &self,
        _opened: &Arc<OpenDevice>,
        _stream: GpuStream,
    ) -> Result<Option<Box<dyn StreamProgram>>, DriverError> {
        Ok(None)
    }
}

/// The same for one stream alone, by whose slot it is owned.
pub trait StreamProgram: Send {
    /// Enqueues the work of a batch and returns. Takes no memory.
    fn enqueue(&mut self, work: &mut ProgramBatch<'_>) -> Result<(), DriverError>;
}

/// One batch for a program.
pub struct ProgramBatch<'a> {
    /// Where it runs.
    pub opened: &'a OpenDevice,
    /// The stream that the inputs come by, and after which the outputs leave.
    pub stream: GpuStream,
    /// What multiplies matrices.
    pub blas: Option<&'a mut (dyn Blas + 'static)>,
    /// Rows of the batch.
    pub rows: usize,
    /// The inputs; none where the program takes them as they are staged.
    pub inputs: &'a [DevicePointer],
    /// The inputs in pinned memory, which stays as it is until the stream has passed the batch.
    pub staged: &'a [&'a [u8]],
    /// Places for the outputs.
    pub outputs: &'a [DevicePointer],
    /// What [`GpuProgram::write_table`] wrote.
    pub table: DevicePointer,
    /// Memory to work in.
    pub scratch: DevicePointer,
}
