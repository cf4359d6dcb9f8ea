//! Rows of a batch that are on the device: gathered into the batch, and scattered from it, by one
//! launch of `reshape_copy` each. Rows on the host go by the slot's one upload and its downloads,
//! as ever.

use crate::gpu::slot_sizes::SlotSizes;
use backend::Request;
use backend::gpu::device::OpenDevice;
use backend::gpu::driver::{DevicePointer, DriverError, GpuStream};
use backend::gpu::lease::TensorLease;
use backend::kernel::BufferRole;
use backend::kernel::reshape::{CopyPart, copy_plan};

/// The moves of a batch on the device.
pub(super) struct DeviceMoves {
    /// Rows into the batch's inputs.
    pub(super) gathered: DeviceParts,
    /// Rows from the batch's outputs.
    pub(super) scattered: DeviceParts,
    /// True if inputs of any request are on the host.
    pub(super) has_host_inputs: bool,
}

/// The parts of one launch between a batch and tensors of requests.
#[derive(Default)]
pub(super) struct DeviceParts {
    /// The table; offsets on the side of the requests count from `far`.
    pub(super) parts: Vec<CopyPart>,
    /// The lowest address of a tensor of a request.
    pub(super) far: DevicePointer,
}

/// The memory of an input on the device, if it is there.
pub(super) fn leased_input(request: &Request, index: usize) -> Option<&TensorLease> {
    request.on_device()?.input(index)
}

impl DeviceMoves {
    /// The moves of a batch whose inputs and outputs begin at these offsets.
    pub(super) fn new(requests: &[Request], [inputs, outputs]: [&[usize]; 2], sizes: &SlotSizes) -> Self {
        let is_leased = |request: &Request| request.on_device().is_some();
        if !requests.iter().any(is_leased) {
            let [gathered, scattered] = Default::default();
            return Self { gathered, scattered, has_host_inputs: true };
        }
        let (mut gathered, mut scattered) = (Vec::new(), Vec::new());
        let mut has_host_inputs = false;
        let rows = |request: &Request| usize::try_from(request.rows).unwrap_or_default();
        for (index, (begin, row)) in inputs.iter().zip(&sizes.inputs).enumerate() {
            let mut at = *begin;
            for request in requests {
                match leased_input(request, index) {
                    Some(lease) => gathered.push((at, lease)),
                    None => has_host_inputs = true,
                }
                at += row * rows(request);
            }
        }
        for (index, (begin, row)) in outputs.iter().zip(&sizes.outputs).enumerate() {
            let mut at = *begin;
            for request in requests {
                scattered
                    .extend(request.on_device().and_then(|tensors| tensors.output(index)).map(|lease| (at, lease)));
                at += row * rows(request);
            }
        }
        let into = |at: usize, far: u64, size: u64| CopyPart { source: far, target: at as u64, size };
        let from = |at: usize, far: u64, size: u64| CopyPart { source: at as u64, target: far, size };
        Self {
            gathered: DeviceParts::new(&gathered, into),
            scattered: DeviceParts::new(&scattered, from),
            has_host_inputs,
        }
    }
}

impl DeviceParts {
    fn new(places: &[(usize, &TensorLease)], part: impl Fn(usize, u64, u64) -> CopyPart) -> Self {
        let far = places.iter().map(|(_, lease)| lease.pointer()).min().unwrap_or_default();
        let part = |(at, lease): &(usize, &TensorLease)| part(*at, lease.pointer() - far, lease.size() as u64);
        Self { parts: places.iter().map(part).collect(), far }
    }

    /// Enqueues its launch, if it has parts, with the addresses of the source, the target and the table.
    pub(super) fn launch(
        &self,
        opened: &OpenDevice,
        stream: GpuStream,
        [input, output, table]: [DevicePointer; 3],
    ) -> Result<(), DriverError> {
        let plan = copy_plan(&self.parts).map_err(|error| DriverError::transient(error.text().to_owned()))?;
        opened.launch(stream, &plan, |role| match role {
            BufferRole::Input => Some(input),
            BufferRole::Output => Some(output),
            BufferRole::Parts => Some(table),
            BufferRole::Right | BufferRole::Indices | BufferRole::Scratch => None,
        })
    }
}
