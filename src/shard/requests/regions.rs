//! The shared memory regions of clients' requests: changed, read for inputs, written with outputs.

use std::sync::Arc;

use crate::backend::gpu::{DeviceTensors, Gpu};
use crate::error::Error;
use crate::model::ModelSpec;
use crate::protocol::check;
use crate::protocol::infer::{InferRequest, OutputPlan, ResponsePlan};
use crate::protocol::shared_memory::{self, RegionDescription, RegionKind, RegionOrder, RegionSlice};
use crate::queue::one_shot::Lease;
use crate::shard::ServerContext;
use crate::shard::services::shared_memory::{FetchedInput, HeldTensors, SharedMemoryClient, SharedMemoryLease};
use crate::tensor::{Tensor, byte_size};

impl ServerContext {
    /// Registers, lists or unregisters regions, and waits until every shard has applied the change.
    ///
    /// # Errors
    /// If shared memory is disabled, the server drains or too many requests wait; the reason why
    /// the region was refused.
    pub async fn send_region_request(&self, order: RegionOrder) -> Result<Vec<RegionDescription>, Error> {
        if self.lifecycle.is_draining() {
            return Err(SharedMemoryLease::closed());
        }
        self.shared_memory_client()?.request(order).await
    }

    /// Copies the inputs of a request out of shared memory and checks its string tensors, which
    /// decoding could not see. It copies before it checks: later writes of the client to the region
    /// cannot change the checked bytes.
    ///
    /// Inputs in memory of `gpu`, which all instances of the model are on, stay there: returns
    /// these inputs, and memory for the outputs that go there.
    ///
    /// # Errors
    /// If a region cannot be read, or the copy contains malformed strings.
    pub async fn fetch(
        &self,
        spec: &ModelSpec,
        gpu: Option<&Arc<Gpu>>,
        request: &mut InferRequest,
    ) -> Result<Option<HeldTensors>, Error> {
        let Some(shared) = request.plan.shared.clone() else { return Ok(None) };
        let mut held = match gpu {
            Some(_) => Some(HeldTensors::new(self.shared_memory_client()?)),
            None => None,
        };
        for (index, slice) in &shared.sources {
            let contents = match (slice.kind(), gpu.filter(|gpu| is_there(slice, gpu))) {
                (RegionKind::System, _) => slice.read()?,
                (RegionKind::Cuda, None) => self.shared_memory_client()?.read(slice.clone()).await?,
                (RegionKind::Cuda, Some(gpu)) => {
                    match self.shared_memory_client()?.read_to(slice.clone(), Arc::clone(gpu)).await? {
                        FetchedInput::Host(bytes) => bytes,
                        FetchedInput::Device(lease) => {
                            if let Some(tensors) = held.as_mut().and_then(HeldTensors::tensors_mut) {
                                tensors.inputs.push((*index, lease));
                            }
                            continue;
                        }
                    }
                }
            };
            if let Some(input) = request.inputs.get_mut(*index) {
                input.contents = contents;
                check::check_shared_strings(spec, &request.plan.id, *index, input)?;
            }
        }
        for (index, slice) in &shared.destinations {
            let Some(gpu) = gpu.filter(|gpu| is_there(slice, gpu)) else { continue };
            let is_whole = |output: &OutputPlan| output.index == *index && output.class_count == 0;
            let size = output_size(spec, *index, request.rows).filter(|size| (1..=slice.size()).contains(size));
            let (true, Some(size)) = (request.plan.outputs.iter().any(is_whole), size) else { continue };
            let lease = self.shared_memory_client()?.lease(Arc::clone(gpu), size).await?;
            if let Some(tensors) = held.as_mut().and_then(HeldTensors::tensors_mut) {
                tensors.outputs.extend(lease.map(|lease| (*index, lease)));
            }
        }
        Ok(held.filter(|held| held.tensors().is_some_and(|tensors| tensors.leases().next().is_some())))
    }

    /// Moves outputs into shared memory on a GPU, once `deliver_system` has checked the room.
    ///
    /// # Errors
    /// Unavailable if too many copies wait, or the copying thread has ended; the error of the copy
    /// itself.
    pub async fn deliver_gpu(
        &self,
        plan: &ResponsePlan,
        outputs: &mut [Tensor],
        on_device: Option<&Arc<DeviceTensors>>,
    ) -> Result<(), Error> {
        let Some(shared) = &plan.shared else { return Ok(()) };
        for (index, slice) in shared.destinations.iter().filter(|(_, slice)| slice.kind() == RegionKind::Cuda) {
            let Some(output) = outputs.get_mut(*index) else { continue };
            // If the batch had requests that need the output on the host, it is there too.
            let is_there = |tensors: &&Arc<DeviceTensors>| {
                tensors.output(*index).is_some_and(|lease| lease.is_written() || output.contents.is_empty())
            };
            if let Some(tensors) = on_device.filter(is_there) {
                output.contents.clear();
                self.shared_memory_client()?.write_from(slice.clone(), Arc::clone(tensors), *index).await?;
                continue;
            }
            self.shared_memory_client()?.write(slice.clone(), std::mem::take(&mut output.contents)).await?;
        }
        Ok(())
    }

    fn shared_memory_client(&self) -> Result<&SharedMemoryClient, Error> {
        self.shared_memory.as_ref().ok_or_else(shared_memory::disabled)
    }
}

/// Returns true if a slice has bytes, in memory of a GPU.
fn is_there(slice: &RegionSlice, gpu: &Gpu) -> bool {
    slice.size() > 0 && slice.device() == Some(u64::from(gpu.properties().index))
}

/// Bytes of an output of `rows` rows, if the model has its size.
fn output_size(spec: &ModelSpec, index: usize, rows: u32) -> Option<usize> {
    let output = spec.outputs.get(index)?;
    let mut shape = output.model_shape.clone();
    if let Some(first) = shape.first_mut().filter(|_| spec.has_batch_axis()) {
        *first = i64::from(rows);
    }
    byte_size(output.datatype, &shape).ok().flatten()
}

/// Moves outputs into shared memory in system memory and leaves their contents empty; never waits.
/// Checks the room for those that go to a GPU too, so that nothing is written if one output does
/// not fit.
///
/// # Errors
/// Internal if an output is larger than its slice of a region.
pub fn deliver_system(spec: &ModelSpec, plan: &ResponsePlan, outputs: &mut [Tensor]) -> Result<(), Error> {
    let Some(shared) = &plan.shared else { return Ok(()) };
    shared.check_room(outputs, |index| spec.outputs.get(index).map(|output| output.name.as_str()))?;
    for (index, slice) in shared.destinations.iter().filter(|(_, slice)| slice.kind() == RegionKind::System) {
        let Some(output) = outputs.get_mut(*index) else { continue };
        slice.write(&std::mem::take(&mut output.contents))?;
    }
    Ok(())
}
