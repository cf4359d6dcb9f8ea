//! Shared memory of clients, on the side of a shard. A thread of its own owns the regions. It carries out requests to
//! register, list and unregister them, and pushes the resulting set into every shard's mailbox. A request is answered
//! when all shards have applied the set, so that a client may use a new region on any connection. Inference requests
//! take no lock for this.
//!
//! System memory is copied here, when a request is decoded and when it is answered. GPU memory is copied by another
//! thread and awaited, so that no shard blocks on a device. At most [`SHARED_MEMORY_TASKS_MAX`] requests and copies
//! wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;

use bytes::Bytes;

use crate::backend::gpu::{DeviceTensors, Gpu, TensorLease};
use crate::error::Error;
use crate::limits::SHARED_MEMORY_TASKS_MAX;
use crate::model::ModelSpec;
use crate::protocol::check;
use crate::protocol::infer::{InferRequest, OutputPlan, ResponsePlan};
use crate::protocol::shared_memory::{self, RegionDescription, RegionKind, RegionOrder, RegionSlice, Regions};
use crate::queue::one_shot::{Lease, OneShotReceiver, OneShotSender, one_shot};
use crate::shard::Shard;
use crate::tensor::{Tensor, byte_size};

/// A region request with its reply: the regions for a status request, else nothing.
pub type OrderedRegions = (RegionOrder, RegionReply<Vec<RegionDescription>>);

/// Work for the thread that copies from and to GPUs.
pub enum CopyRequest {
    /// Memory of this size in the models' context of a device, if there is room.
    Lease(Arc<Gpu>, usize, RegionReply<Option<TensorLease>>),
    /// Copy out of a region, to the models' context of a device if one is given.
    Read(RegionSlice, Option<Arc<Gpu>>, RegionReply<FetchedInput>),
    /// Copy into a region.
    Write(RegionSlice, Bytes, RegionReply<()>),
    /// Copy an output from the models' context into a region on the same device.
    WriteFrom(RegionSlice, Arc<DeviceTensors>, usize, RegionReply<()>),
    /// No copy: a value whose drop blocks on a device, so that it is dropped on this thread.
    End(Box<dyn Send>),
}

/// An input that was copied out of a region.
pub enum FetchedInput {
    /// In memory where models on its device take it.
    Device(TensorLease),
    /// On the host.
    Host(Bytes),
}

/// The shards' senders to the thread that owns the regions and the thread that copies.
pub struct SharedMemoryClient {
    requests: Sender<OrderedRegions>,
    copies: Sender<CopyRequest>,
    /// Requests and copies that wait for their reply.
    waiting: Arc<AtomicUsize>,
    /// Bytes of inputs that one request may have in shared memory.
    request_size_max: usize,
}

/// A request's tensors on a device, as its task holds them. They are dropped on the thread that
/// copies: if all models have left their context meanwhile, the context ends too, which waits for
/// the device.
pub struct HeldTensors {
    /// `Some` until `drop` takes them.
    tensors: Option<Arc<DeviceTensors>>,
    copies: Sender<CopyRequest>,
}

/// The set of regions as shards receive it. It is shared by reference count, and the request that changed the regions
/// is answered when the last shard has dropped it: then all have applied it.
pub struct PublishedRegions {
    /// The regions.
    pub regions: Arc<Regions>,
    reply: Option<RegionReply<Vec<RegionDescription>>>,
}

/// Answers one request.
pub type RegionReply<T> = OneShotSender<T, SharedMemoryLease>;

/// One request's share of [`SHARED_MEMORY_TASKS_MAX`].
pub struct SharedMemoryLease {
    waiting: Arc<AtomicUsize>,
}

impl SharedMemoryClient {
    /// A client that sends to these threads; `request_size_max` in bytes.
    pub fn new(requests: Sender<OrderedRegions>, copies: Sender<CopyRequest>, request_size_max: usize) -> Self {
        Self { requests, copies, waiting: Arc::default(), request_size_max }
    }

    /// The initial, empty set of regions.
    pub fn regions(&self) -> Regions {
        Regions::new(self.request_size_max)
    }

    async fn request(&self, order: RegionOrder) -> Result<Vec<RegionDescription>, Error> {
        let (reply, awaited) = self.reply()?;
        // If the thread has ended, the dropped reply answers with `SharedMemoryLease::closed`.
        let _ = self.requests.send((order, reply));
        awaited.await
    }

    /// Copies out of GPU memory.
    ///
    /// # Errors
    /// Unavailable if too many requests wait or the thread has ended; the error of the copy.
    pub async fn read(&self, slice: RegionSlice) -> Result<Bytes, Error> {
        let (reply, awaited) = self.reply()?;
        let _ = self.copies.send(CopyRequest::Read(slice, None, reply));
        match awaited.await? {
            FetchedInput::Host(bytes) => Ok(bytes),
            FetchedInput::Device(_) => Err(Error::internal("bytes were asked for on the host")),
        }
    }

    /// Copies out of GPU memory to where models take it on that GPU, or to the host if there is no
    /// room.
    ///
    /// # Errors
    /// As [`Self::read`].
    async fn read_to(&self, slice: RegionSlice, gpu: Arc<Gpu>) -> Result<FetchedInput, Error> {
        let (reply, awaited) = self.reply()?;
        let _ = self.copies.send(CopyRequest::Read(slice, Some(gpu), reply));
        awaited.await
    }

    /// Memory on a GPU for an output; `None` if there is no room.
    ///
    /// # Errors
    /// As [`Self::read`].
    async fn lease(&self, gpu: Arc<Gpu>, size: usize) -> Result<Option<TensorLease>, Error> {
        let (reply, awaited) = self.reply()?;
        let _ = self.copies.send(CopyRequest::Lease(gpu, size, reply));
        awaited.await
    }

    /// Copies an output into GPU memory from the place where a model left it on the device.
    ///
    /// # Errors
    /// As [`Self::write`].
    async fn write_from(&self, slice: RegionSlice, tensors: Arc<DeviceTensors>, index: usize) -> Result<(), Error> {
        let (reply, awaited) = self.reply()?;
        let _ = self.copies.send(CopyRequest::WriteFrom(slice, tensors, index, reply));
        awaited.await
    }

    /// Copies into GPU memory.
    ///
    /// # Errors
    /// Unavailable if too many requests wait or the thread has ended; the error of the copy.
    pub async fn write(&self, slice: RegionSlice, bytes: Bytes) -> Result<(), Error> {
        let (reply, awaited) = self.reply()?;
        let _ = self.copies.send(CopyRequest::Write(slice, bytes, reply));
        awaited.await
    }

    fn reply<T>(&self) -> Result<(RegionReply<T>, OneShotReceiver<T>), Error> {
        let within = |waiting: usize| (waiting < SHARED_MEMORY_TASKS_MAX).then_some(waiting + 1);
        if self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_err() {
            return Err(Error::unavailable(format!(
                "{SHARED_MEMORY_TASKS_MAX} shared memory requests wait (the limit); try again later"
            )));
        }
        Ok(one_shot(SharedMemoryLease { waiting: Arc::clone(&self.waiting) }))
    }
}

impl HeldTensors {
    /// Holds no tensors yet.
    fn new(copies: Sender<CopyRequest>) -> Self {
        Self { tensors: Some(Arc::default()), copies }
    }

    /// The tensors.
    pub const fn tensors(&self) -> Option<&Arc<DeviceTensors>> {
        self.tensors.as_ref()
    }

    /// The same for changes, before others share them.
    fn tensors_mut(&mut self) -> Option<&mut DeviceTensors> {
        Arc::get_mut(self.tensors.as_mut()?)
    }
}

impl Drop for HeldTensors {
    fn drop(&mut self) {
        let _ = self.copies.send(CopyRequest::End(Box::new(self.tensors.take())));
    }
}

impl PublishedRegions {
    /// A set of regions, and the reply to send when all shards have applied it.
    pub const fn new(regions: Arc<Regions>, reply: RegionReply<Vec<RegionDescription>>) -> Self {
        Self { regions, reply: Some(reply) }
    }
}

impl Drop for PublishedRegions {
    fn drop(&mut self) {
        if let Some(reply) = self.reply.take() {
            reply.send(Ok(Vec::new()));
        }
    }
}

impl Drop for SharedMemoryLease {
    fn drop(&mut self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Lease for SharedMemoryLease {
    fn closed() -> Error {
        Error::unavailable("server is stopping; requests for shared memory are refused")
    }
}

impl Shard {
    /// Registers, lists or unregisters regions, and waits until every shard has applied the change.
    ///
    /// # Errors
    /// If shared memory is disabled, the server drains or too many requests wait; the reason why
    /// the region was refused.
    pub async fn send_region_request(&self, order: RegionOrder) -> Result<Vec<RegionDescription>, Error> {
        if self.server_context.lifecycle.is_draining() {
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
            Some(_) => Some(HeldTensors::new(self.shared_memory_client()?.copies.clone())),
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

    /// Moves outputs into shared memory on a GPU, once [`deliver_system`] has checked the room.
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
        self.server_context.shared_memory.as_ref().ok_or_else(shared_memory::disabled)
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

const fn assert_sendable<T: Send + 'static>() {}
const _: () = assert_sendable::<OrderedRegions>();
const _: () = assert_sendable::<CopyRequest>();
const _: () = assert_sendable::<PublishedRegions>();

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::mpsc::channel;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_region_request_is_answered_when_the_last_shard_has_applied_the_change() {
        let ((requests, received), (copies, _copied)) = (channel(), channel());
        let client = SharedMemoryClient::new(requests, copies, 8);
        let mut request = std::pin::pin!(client.request(RegionOrder::Unregister(RegionKind::System, String::new())));
        assert_eq!(poll(request.as_mut()), None);
        let (_, reply) = received.recv().unwrap();
        let published = Arc::new(PublishedRegions::new(Arc::default(), reply));
        let shards = [Arc::clone(&published), published];
        for shard in shards {
            assert_eq!(poll(request.as_mut()), None);
            drop(shard);
        }
        assert_eq!(poll(request.as_mut()), Some(Ok(Vec::new())));
    }

    #[test]
    fn region_requests_are_bounded_and_answered_when_the_thread_has_ended() {
        let ((requests, received), (copies, _copied)) = (channel(), channel());
        let client = SharedMemoryClient::new(requests, copies, 8);
        let status = || RegionOrder::Status(RegionKind::System, String::new());
        let mut waiting: Vec<_> = (0..SHARED_MEMORY_TASKS_MAX).map(|_| Box::pin(client.request(status()))).collect();
        assert!(waiting.iter_mut().all(|request| poll(request.as_mut()).is_none()));
        let error = poll(Box::pin(client.request(status())).as_mut()).unwrap().unwrap_err();
        assert!(error.text().starts_with("256 shared memory requests wait"), "{error}");
        drop(received);
        assert!(waiting.iter_mut().all(|request| poll(request.as_mut()) == Some(Err(SharedMemoryLease::closed()))));
        assert_eq!(
            poll(Box::pin(client.request(status())).as_mut()),
            Some(Err(SharedMemoryLease::closed())),
            "there is room again"
        );
    }
}
