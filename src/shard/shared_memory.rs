//! Shared memory of clients, as a shard has it. The regions are kept by a thread of their own, which
//! takes orders and leaves what there is in every shard's mailbox; an order is answered when all shards
//! have taken that up, so that a client finds what it registered wherever its next request goes. A
//! request takes no lock for that, and one without shared memory looks at nothing.
//!
//! Bytes of system memory are copied here, between the client's memory and ours, when a request is read
//! and when it is answered. Those in memory of a GPU are copied by another thread, and awaited: no shard
//! waits for a device. Bounded by [`SHARED_MEMORY_TASKS_MAX`].

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

/// What becomes of an order: the regions that were asked for, else nothing.
pub type OrderedRegions = (RegionOrder, RegionReply<Vec<RegionDescription>>);

/// A copy that waits for a device.
pub enum CopyRequest {
    /// Out of a region.
    Read(RegionSlice, RegionReply<Bytes>),
    /// Into a region.
    Write(RegionSlice, Bytes, RegionReply<()>),
    /// None: what ends here waits for a device when it is dropped.
    End(Box<dyn Send>),
}

/// How the shards reach those who keep the regions and copy.
pub struct SharedMemoryClient {
    orders: Sender<OrderedRegions>,
    copies: Sender<CopyRequest>,
    waiting: Arc<AtomicUsize>,
    /// Bytes of inputs that one request may have in shared memory.
    request_size_max: usize,
}

/// What a shard is told: the regions from now on. The order that changed them is answered when the last
/// shard has dropped this.
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
    /// One whose orders and copies go there.
    pub fn new(orders: Sender<OrderedRegions>, copies: Sender<CopyRequest>, request_size_max: usize) -> Self {
        Self { orders, copies, waiting: Arc::default(), request_size_max }
    }

    /// The regions that there are at first: none.
    pub fn regions(&self) -> Regions {
        Regions::new(self.request_size_max)
    }

    async fn order(&self, order: RegionOrder) -> Result<Vec<RegionDescription>, Error> {
        let (reply, awaited) = self.reply()?;
        // Where nobody takes it, it is dropped, and says so.
        let _ = self.orders.send((order, reply));
        awaited.await
    }

    /// Copies out of memory of a GPU.
    pub async fn read(&self, slice: RegionSlice) -> Result<Bytes, Error> {
        let (reply, awaited) = self.reply()?;
        let _ = self.copies.send(CopyRequest::Read(slice, reply));
        awaited.await
    }

    /// Copies into memory of a GPU.
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
    /// Regions, and whoever waits until all shards know them.
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
    /// Has regions registered, listed or taken out, and waits until every shard knows.
    pub async fn order_regions(&self, order: RegionOrder) -> Result<Vec<RegionDescription>, Error> {
        if self.server_context.lifecycle.is_draining() {
            return Err(SharedMemoryLease::closed());
        }
        self.shared_memory_client()?.order(order).await
    }

    /// Copies the inputs of a request out of shared memory, and walks what was not walked before. From
    /// here on nothing that the client writes there changes the request.
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
    fn an_order_is_answered_when_the_last_shard_has_taken_up_what_it_changed() {
        let ((orders, ordered), (copies, _copied)) = (channel(), channel());
        let client = SharedMemoryClient::new(orders, copies, 8);
        let mut order = std::pin::pin!(client.order(RegionOrder::Unregister(RegionKind::System, String::new())));
        assert_eq!(poll(order.as_mut()), None);
        let (_, reply) = ordered.recv().unwrap();
        let published = Arc::new(PublishedRegions::new(Arc::default(), reply));
        let shards = [Arc::clone(&published), published];
        for shard in shards {
            assert_eq!(poll(order.as_mut()), None);
            drop(shard);
        }
        assert_eq!(poll(order.as_mut()), Some(Ok(Vec::new())));
    }

    #[test]
    fn orders_are_bounded_and_answered_also_where_nobody_answers() {
        let ((orders, ordered), (copies, _copied)) = (channel(), channel());
        let client = SharedMemoryClient::new(orders, copies, 8);
        let status = || RegionOrder::Status(RegionKind::System, String::new());
        let mut waiting: Vec<_> = (0..SHARED_MEMORY_TASKS_MAX).map(|_| Box::pin(client.order(status()))).collect();
        assert!(waiting.iter_mut().all(|order| poll(order.as_mut()).is_none()));
        let error = poll(Box::pin(client.order(status())).as_mut()).unwrap().unwrap_err();
        assert!(error.text().starts_with("256 shared memory requests wait"), "{error}");
        drop(ordered);
        assert!(waiting.iter_mut().all(|order| poll(order.as_mut()) == Some(Err(SharedMemoryLease::closed()))));
        assert_eq!(
            poll(Box::pin(client.order(status())).as_mut()),
            Some(Err(SharedMemoryLease::closed())),
            "there is room again"
        );
    }
}
