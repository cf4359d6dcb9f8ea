//! The computation of a model on a device: made of a model's file by [`super::plan`], or by an
//! engine that gets our streams; run by [`super::executor`], which knows nothing of models.

use std::sync::Arc;

use crate::gpu::slot_sizes::SlotSizes;
use backend::gpu::device::OpenDevice;
use backend::gpu::driver::{Blas, DevicePointer, DriverError, GpuStream};

/// The computation of a model, before it is on any device.
pub trait ProgramSource: Send + Sync {
    /// Returns the sizes that a batch needs.
    fn sizes(&self) -> Arc<SlotSizes>;

    /// Returns true if it multiplies matrices.
    fn needs_blas(&self) -> bool;

    /// Returns true if its programs run in the primary context of a device, through a library that
    /// knows no other.
    fn is_on_primary(&self) -> bool {
        false
    }

    /// Returns true if a run may fail because of its inputs. A batch that did is run again request
    /// by request.
    fn refuses_inputs(&self) -> bool {
        false
    }

    /// Uploads its weights to a device.
    fn place(&self, opened: &Arc<OpenDevice>) -> Result<Arc<dyn GpuProgram>, DriverError>;
}

/// The computation of a model, with its weights on a device. The instances there share it.
pub trait GpuProgram: Send + Sync {
    /// Enqueues the work of a batch and returns. Allocates no memory.
    fn enqueue(&self, work: &mut ProgramBatch<'_>) -> Result<(), DriverError>;

    /// Writes the tables that its kernels read for a batch of `rows` rows, [`SlotSizes::table`]
    /// bytes, which are uploaded with the inputs.
    fn write_table(&self, _rows: usize, _table: &mut [u8]) {}

    /// Returns the program for one stream in its place, if each stream needs its own. It ends
    /// before the stream.
    fn on_stream(
        &self,
        _opened: &Arc<OpenDevice>,
        _stream: GpuStream,
    ) -> Result<Option<Box<dyn StreamProgram>>, DriverError> {
        Ok(None)
    }
}

/// The program of one stream alone, owned by its slot.
pub trait StreamProgram: Send {
    /// Enqueues the work of a batch and returns. Allocates no memory.
    fn enqueue(&mut self, work: &mut ProgramBatch<'_>) -> Result<(), DriverError>;
}

/// One batch for a program.
pub struct ProgramBatch<'a> {
    /// The device on which it runs.
    pub opened: &'a OpenDevice,
    /// The stream that brings the inputs and then takes the outputs away.
    pub stream: GpuStream,
    /// The multiplier of matrices.
    pub blas: Option<&'a mut (dyn Blas + 'static)>,
    /// Rows of the batch.
    pub rows: usize,
    /// The inputs; empty if the program takes them as they are staged.
    pub inputs: &'a [DevicePointer],
    /// The inputs in pinned memory, which stays unchanged until the stream has passed the batch.
    pub staged: &'a [&'a [u8]],
    /// The addresses of the outputs.
    pub outputs: &'a [DevicePointer],
    /// The table of [`GpuProgram::write_table`].
    pub table: DevicePointer,
    /// The scratch memory.
    pub scratch: DevicePointer,
}
