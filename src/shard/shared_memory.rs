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

use crate::error::Error;
use crate::limits::SHARED_MEMORY_TASKS_MAX;
use crate::model::ModelSpec;
use crate::protocol::check;
use crate::protocol::infer::{InferRequest, ResponsePlan};
use crate::protocol::shared_memory::{self, RegionDescription, RegionKind, RegionOrder, RegionSlice, Regions};
use crate::queue::one_shot::{Lease, OneShotReceiver, OneShotSender, one_shot};
use crate::shard::Shard;
use crate::tensor::Tensor;

/// A region request with its reply: the regions for a status request, else nothing.
pub type OrderedRegions = (RegionOrder, RegionReply<Vec<RegionDescription>>);

/// Work for the thread that copies from and to GPUs.
pub enum CopyRequest {
    /// Copy out of a region.
    Read(RegionSlice, RegionReply<Bytes>),
    /// Copy into a region.
    Write(RegionSlice, Bytes, RegionReply<()>),
    /// No copy: a value whose drop blocks on a device, so that it is dropped on this thread.
    End(Box<dyn Send>),
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
        // Where the thread has ended, the dropped reply answers with `SharedMemoryLease::closed`.
        let _ = self.requests.send((order, reply));
        awaited.await
    }

    /// Copies out of GPU memory.
    ///
    /// # Errors
    /// Unavailable, where too many requests wait or the thread has ended; the error of the copy.
    pub async fn read(&self, slice: RegionSlice) -> Result<Bytes, Error> {
        let (reply, awaited) = self.reply()?;
        let _ = self.copies.send(CopyRequest::Read(slice, reply));
        awaited.await
    }

    /// Copies into GPU memory.
    ///
    /// # Errors
    /// Unavailable, where too many requests wait or the thread has ended; the error of the copy.
    pub async fn write(&self, slice: RegionSlice, bytes: Bytes) -> Result<(), Error> {
        let (reply, awaited) = self.reply()?;
        let _ = self.copies.send(CopyRequest::Write(slice, bytes, reply));
        awaited.await
    }

    fn reply<T>(&self) -> Result<(RegionReply<T>, OneShotReceiver<T>), Error> {
        let within = |waiting: usize| (waiting < SHARED_MEMORY_TASKS_MAX).then_some(waiting + 1);
        if self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_err() {
            return Err(Error::unavailable(format!(
                "{SHARED_MEMORY_TASKS_MAX} shared memory requests wait, the most that may; try again later"
            )));
        }
        Ok(one_shot(SharedMemoryLease { waiting: Arc::clone(&self.waiting) }))
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
        Error::unavailable("Server is stopping, it takes no more requests for shared memory")
    }
}

impl Shard {
    /// Registers, lists or unregisters regions, and waits until every shard has applied the change.
    ///
    /// # Errors
    /// Where shared memory is disabled, the server drains or too many requests wait; why the region was refused.
    pub async fn send_region_request(&self, order: RegionOrder) -> Result<Vec<RegionDescription>, Error> {
        if self.server_context.lifecycle.is_draining() {
            return Err(SharedMemoryLease::closed());
        }
        self.shared_memory_client()?.request(order).await
    }

    /// Copies the inputs of a request out of shared memory and checks its string tensors, which decoding could not see.
    /// It copies before it checks: what the client writes to the region later cannot change what was checked.
    ///
    /// # Errors
    /// Where a region cannot be read, or the copy contains malformed strings.
    pub async fn fetch(&self, spec: &ModelSpec, request: &mut InferRequest) -> Result<(), Error> {
        let Some(shared) = request.plan.shared.clone() else { return Ok(()) };
        for (index, slice) in &shared.sources {
            let contents = match slice.kind() {
                RegionKind::System => slice.read()?,
                RegionKind::Cuda => self.shared_memory_client()?.read(slice.clone()).await?,
            };
            if let Some(input) = request.inputs.get_mut(*index) {
                input.contents = contents;
                check::check_shared_strings(spec, &request.plan.id, *index, input)?;
            }
        }
        Ok(())
    }

    /// Moves outputs into shared memory on a GPU, once [`deliver_system`] has checked the room.
    ///
    /// # Errors
    /// Unavailable where too many copies wait, or the copying thread has ended; what the copy itself failed with.
    pub async fn deliver_gpu(&self, plan: &ResponsePlan, outputs: &mut [Tensor]) -> Result<(), Error> {
        let Some(shared) = &plan.shared else { return Ok(()) };
        for (index, slice) in shared.destinations.iter().filter(|(_, slice)| slice.kind() == RegionKind::Cuda) {
            let Some(output) = outputs.get_mut(*index) else { continue };
            self.shared_memory_client()?.write(slice.clone(), std::mem::take(&mut output.contents)).await?;
        }
        Ok(())
    }

    fn shared_memory_client(&self) -> Result<&SharedMemoryClient, Error> {
        self.server_context.shared_memory.as_ref().ok_or_else(shared_memory::disabled)
    }
}

/// Moves outputs into shared memory in system memory and leaves their contents empty; never waits. Checks the room for
/// those that go to a GPU too, so that nothing is written where one output does not fit.
///
/// # Errors
/// Internal, where an output is larger than its slice of a region.
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
