//! Shared memory of clients, on the side of a shard. A thread of its own owns the regions. It carries out requests to
//! register, list and unregister them, and pushes the resulting set into every shard's mailbox. A request is answered
//! when all shards have applied the set, so that a client may use a new region on any connection. Inference requests
//! take no lock for this.
//!
//! System memory is copied by `requests::regions`, when a request is decoded and when it is answered. GPU memory is copied by another
//! thread and awaited, so that no shard blocks on a device. At most [`SHARED_MEMORY_TASKS_MAX`] requests and copies
//! wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;

use bytes::Bytes;

use crate::backend::gpu::{DeviceTensors, Gpu, TensorLease};
use crate::error::Error;
use crate::limits::SHARED_MEMORY_TASKS_MAX;
use crate::protocol::shared_memory::{RegionDescription, RegionOrder, RegionSlice, Regions};
use crate::queue::one_shot::{Lease, OneShotReceiver, OneShotSender, one_shot};

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

    pub(in crate::shard) async fn request(&self, order: RegionOrder) -> Result<Vec<RegionDescription>, Error> {
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
    pub(in crate::shard) async fn read_to(&self, slice: RegionSlice, gpu: Arc<Gpu>) -> Result<FetchedInput, Error> {
        let (reply, awaited) = self.reply()?;
        let _ = self.copies.send(CopyRequest::Read(slice, Some(gpu), reply));
        awaited.await
    }

    /// Memory on a GPU for an output; `None` if there is no room.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(in crate::shard) async fn lease(&self, gpu: Arc<Gpu>, size: usize) -> Result<Option<TensorLease>, Error> {
        let (reply, awaited) = self.reply()?;
        let _ = self.copies.send(CopyRequest::Lease(gpu, size, reply));
        awaited.await
    }

    /// Copies an output into GPU memory from the place where a model left it on the device.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub(in crate::shard) async fn write_from(
        &self,
        slice: RegionSlice,
        tensors: Arc<DeviceTensors>,
        index: usize,
    ) -> Result<(), Error> {
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
    /// Holds no tensors yet; they are dropped by the thread of this client.
    pub(in crate::shard) fn new(client: &SharedMemoryClient) -> Self {
        Self { tensors: Some(Arc::default()), copies: client.copies.clone() }
    }

    /// The tensors.
    pub const fn tensors(&self) -> Option<&Arc<DeviceTensors>> {
        self.tensors.as_ref()
    }

    /// The same for changes, before others share them.
    pub(in crate::shard) fn tensors_mut(&mut self) -> Option<&mut DeviceTensors> {
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
    use crate::protocol::shared_memory::RegionKind;

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
