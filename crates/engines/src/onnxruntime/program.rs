//! A model whose sizes are all known beforehand, as a program of the GPU executor: a session for each of
//! its streams, which enqueues there and does not wait for the device.
//!
//! Outputs are bound to the places that the executor has for them. Inputs are handed over as they
//! are staged, in pinned memory: the library copies those that it wants on the device by the same
//! stream, and reads the others in place (sizes, or inputs of an operator on the CPU). Bound on the
//! device beforehand, the latter would be copied back on another stream, before the upload had
//! arrived. The run goes through the C interface, since the crate's own copies inputs that are
//! borrowed.

#![expect(unsafe_code, reason = "the library's interface to memory that is the executor's")]

use std::ffi::{CString, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use ort::memory::{AllocationDevice, AllocatorType, MemoryInfo, MemoryType};
use ort::session::{NoSelectedOutputs, RunOptions, Session};
use ort::{AsPointer, sys};
use smallvec::SmallVec;

use crate::gpu::program::{GpuProgram, ProgramBatch, ProgramSource, StreamProgram};
use crate::gpu::slot_sizes::SlotSizes;
use backend::gpu::OpenDevice;
use backend::gpu::driver::{DriverError, GpuStream};
use base::limits::BATCH_ROWS_RESERVED_MAX;
use base::tensor::{Datatype, Shape, byte_size};
use model::{ModelSpec, TensorSpec};

use super::bind::InputSource;
use super::cuda;
use super::datatype::element_type;
use super::session::{SessionTarget, SharedSession};
use super::told;

/// The slot sizes of a batch, for a model whose rows have one size each; `None` for any other
/// model, and if the library does not take an input as it is (BOOL has two values there, and as
/// many as a byte here).
pub(super) fn sizes(spec: &ModelSpec) -> Option<SlotSizes> {
    let row = |tensor: &TensorSpec| {
        let dims = tensor.model_shape.get(usize::from(spec.has_batch_axis())..)?;
        let is_plain = !tensor.is_ragged && !tensor.is_optional && !tensor.is_shape_tensor;
        let is_fixed = is_plain && tensor.scatter_source.is_none() && dims.iter().all(|size| *size > 0);
        if is_fixed { byte_size(tensor.datatype, dims).ok().flatten() } else { None }
    };
    let has_bool = spec.inputs.iter().any(|input| input.datatype == Datatype::Bool);
    // The buffers are for the largest batch.
    let is_reserved = spec.rows_max <= BATCH_ROWS_RESERVED_MAX;
    if !is_reserved || spec.sequence.is_some() || !spec.batch_inputs.is_empty() || has_bool {
        return None;
    }
    Some(SlotSizes {
        rows_max: usize::try_from(spec.rows_max.max(1)).ok()?,
        inputs: spec.inputs.iter().map(row).collect::<Option<_>>()?,
        outputs: spec.outputs.iter().map(row).collect::<Option<_>>()?,
        datatypes: spec.outputs.iter().map(|output| output.datatype).collect(),
        scratch: 0,
        table: 0,
        keeps_staged: true,
    })
}

/// Such a model, before it is on any device.
pub(super) struct CudaBlueprint {
    shared: Arc<SharedSession>,
    sizes: Arc<SlotSizes>,
}

impl CudaBlueprint {
    pub(super) fn new(shared: &Arc<SharedSession>, sizes: SlotSizes) -> Self {
        Self { shared: Arc::clone(shared), sizes: Arc::new(sizes) }
    }
}

impl ProgramSource for CudaBlueprint {
    fn sizes(&self) -> Arc<SlotSizes> {
        Arc::clone(&self.sizes)
    }

    fn needs_blas(&self) -> bool {
        false
    }

    fn is_on_primary(&self) -> bool {
        true
    }

    fn refuses_inputs(&self) -> bool {
        true
    }

    fn place(&self, _opened: &Arc<OpenDevice>) -> Result<Arc<dyn GpuProgram>, DriverError> {
        Ok(Arc::new(CudaPlacement { shared: Arc::clone(&self.shared) }))
    }
}

/// It is on a device when the first stream has a session.
struct CudaPlacement {
    shared: Arc<SharedSession>,
}

impl GpuProgram for CudaPlacement {
    fn enqueue(&self, _work: &mut ProgramBatch<'_>) -> Result<(), DriverError> {
        Err(DriverError::transient("a batch came to a stream without a session"))
    }

    fn on_stream(
        &self,
        opened: &Arc<OpenDevice>,
        stream: GpuStream,
    ) -> Result<Option<Box<dyn StreamProgram>>, DriverError> {
        Ok(Some(Box::new(StreamSession::new(&self.shared, opened, stream)?)))
    }
}

/// A session that enqueues on one stream.
struct StreamSession {
    session: Session,
    options: RunOptions<NoSelectedOutputs>,
    inputs: Vec<CudaBinding>,
    outputs: Vec<CudaBinding>,
    on_host: MemoryInfo<'static>,
    on_device: MemoryInfo<'static>,
    has_batch_axis: bool,
    opened: Arc<OpenDevice>,
}

/// An input or output.
struct CudaBinding {
    name: CString,
    /// Its place in the configuration.
    index: usize,
    datatype: Datatype,
    /// The shape of the model's tensor, with any number of rows.
    shape: Shape,
}

impl StreamSession {
    fn new(shared: &SharedSession, opened: &Arc<OpenDevice>, stream: GpuStream) -> Result<Self, DriverError> {
        let SharedSession { spec, recipe, .. } = shared;
        let session = recipe.open(SessionTarget::Gpu(opened, 1, Some(stream)));
        let session = session.map_err(|error| cuda::failure(error.text(), opened))?;
        let port = |tensors: &[TensorSpec], port: &super::bind::OrtBinding| {
            let tensor = tensors.get(port.index)?;
            let rank = tensor.model_shape.len() - usize::from(port.is_squeezed);
            let shape = tensor.model_shape.get(..rank)?.into();
            let name = CString::new(tensor.name.as_str()).ok()?;
            Some(CudaBinding { name, index: port.index, datatype: port.datatype, shape })
        };
        let inputs = shared.inputs.iter().map(|source| match source {
            InputSource::Request(input) => port(&spec.inputs, input),
            InputSource::Batch { .. } => None,
        });
        let outputs = shared.outputs.iter().map(|output| port(&spec.outputs, output));
        let ports = inputs.collect::<Option<Vec<_>>>().zip(outputs.collect::<Option<Vec<_>>>());
        let (inputs, outputs) = ports.ok_or_else(|| DriverError::transient("a model that is no program"))?;
        let failed = |error: ort::Error| DriverError::transient(told(&error).text());
        let options = || {
            let mut options = RunOptions::new()?;
            // The executor detects the end of a batch by an event.
            options.disable_device_sync()?;
            Ok(options)
        };
        let host = MemoryInfo::new(AllocationDevice::CPU, 0, AllocatorType::Device, MemoryType::Default);
        Ok(Self {
            session,
            options: options().map_err(failed)?,
            inputs,
            outputs,
            on_host: host.map_err(failed)?,
            on_device: recipe.device.memory(opened.context().device().index).map_err(failed)?,
            has_batch_axis: spec.has_batch_axis(),
            opened: Arc::clone(opened),
        })
    }

    fn run(&mut self, work: &ProgramBatch<'_>) -> ort::Result<()> {
        let input = |port: &CudaBinding| {
            let staged = work.staged.get(port.index).copied().unwrap_or_default();
            self.value(&self.on_host, port, work.rows, staged.as_ptr().cast_mut().cast(), Some(staged.len()))
        };
        let output = |port: &CudaBinding| {
            let place = work.outputs.get(port.index).copied().unwrap_or_default();
            self.value(&self.on_device, port, work.rows, place as *mut c_void, None)
        };
        let inputs: SmallVec<[BorrowedValue; 4]> = self.inputs.iter().map(input).collect::<Result<_, _>>()?;
        let outputs: SmallVec<[BorrowedValue; 4]> = self.outputs.iter().map(output).collect::<Result<_, _>>()?;
        let names = |ports: &[CudaBinding]| -> SmallVec<[*const std::ffi::c_char; 4]> {
            ports.iter().map(|port| port.name.as_ptr()).collect()
        };
        let (input_names, output_names) = (names(&self.inputs), names(&self.outputs));
        let input_values: SmallVec<[*const sys::OrtValue; 4]> =
            inputs.iter().map(|value| value.0.as_ptr().cast_const()).collect();
        let mut output_values: SmallVec<[*mut sys::OrtValue; 4]> =
            outputs.iter().map(|value| value.0.as_ptr()).collect();
        // SAFETY: the session and the options live; names and values match the given counts, and
        // live until the call returns. The enqueued work reads the staged memory and writes to the
        // places of the outputs, which the slot keeps for it until the stream has passed the batch.
        // No other thread runs the session meanwhile: `self` is borrowed for this alone.
        let status = unsafe {
            (ort::api().Run)(
                self.session.ptr().cast_mut(),
                self.options.ptr(),
                input_names.as_ptr(),
                input_values.as_ptr(),
                input_values.len(),
                output_names.as_ptr(),
                output_names.len(),
                output_values.as_mut_ptr(),
            )
        };
        checked(status)
    }

    /// A tensor of `rows` rows over memory at `place`; `size`, if given, must match.
    fn value(
        &self,
        memory: &MemoryInfo<'_>,
        port: &CudaBinding,
        rows: usize,
        place: *mut c_void,
        size: Option<usize>,
    ) -> ort::Result<BorrowedValue> {
        let mut shape = port.shape.clone();
        if let Some(first) = shape.first_mut().filter(|_| self.has_batch_axis) {
            *first = i64::try_from(rows).unwrap_or(i64::MAX);
        }
        let own = byte_size(port.datatype, &shape).ok().flatten().unwrap_or(usize::MAX);
        if size.is_some_and(|size| size != own) {
            return Err(ort::Error::new("an input was staged in other bytes than it has"));
        }
        let mut value = null_mut();
        // SAFETY: the place has the bytes of a tensor of `rows` rows, as the slot's layout ensures;
        // the library refuses fewer than the shape and the datatype make. It keeps only the
        // address.
        let status = unsafe {
            (ort::api().CreateTensorWithDataAsOrtValue)(
                memory.ptr(),
                place,
                own,
                shape.as_ptr(),
                shape.len(),
                element_type(port.datatype).into(),
                &raw mut value,
            )
        };
        checked(status)?;
        NonNull::new(value).map(BorrowedValue).ok_or_else(|| ort::Error::new("ONNX Runtime made no tensor"))
    }
}

impl StreamProgram for StreamSession {
    fn enqueue(&mut self, work: &mut ProgramBatch<'_>) -> Result<(), DriverError> {
        let outcome = self.run(work);
        self.opened.context().handle_foreign_call();
        outcome.map_err(|error| cuda::failure(told(&error).text(), &self.opened))
    }
}

/// A tensor in memory of another owner.
struct BorrowedValue(NonNull<sys::OrtValue>);

impl Drop for BorrowedValue {
    fn drop(&mut self) {
        // SAFETY: the library made it, and it has no other owner.
        unsafe { (ort::api().ReleaseValue)(self.0.as_ptr()) };
    }
}

fn checked(status: sys::OrtStatusPtr) -> ort::Result<()> {
    // SAFETY: the status came from a call just now, and is handed over once.
    unsafe { ort::Error::result_from_status(status) }
}
