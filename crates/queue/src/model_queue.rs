//! The queue of one model version, between the shards that submit requests and the instances that run them.
//!
//! Each shard pushes into a ring of its own ([`QueueProducer`]). An idle instance takes the lock,
//! drains the rings into the scheduler, takes a batch and runs it outside the lock; without one it
//! sleeps in its parking. The lock is taken once per batch, among instances. A shard only ever
//! tries it (`eviction`), if its ring fills up with cancelled requests. The tensors of a waiting
//! request are not here but in its shard's completions, next to its claim, so that withdrawing a
//! request frees them at once. Bounded by [`Admission`](scheduler::Admission).

#![expect(clippy::disallowed_types, reason = "the one lock of the design: per batch, among instance threads")]

mod admission_control;
mod batch_assembly;
mod batcher;
mod counters;
mod eviction;
mod in_flight;
mod instances;
mod iteration;
mod locked;
mod poll;
pub mod queue_producer;
mod rate_gate;
mod sequence_queue;

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use crossbeam_utils::CachePadded;

use crate::model_queue::admission_control::{AdmissionControl, RequestDue};
use crate::model_queue::batcher::Batcher;
use crate::model_queue::counters::QueueCounters;
use crate::model_queue::locked::{LockedQueue, RequestClaims};
use crate::model_queue::queue_producer::QueueProducer;
use crate::model_queue::sequence_queue::SequenceQueue;
use crate::parking::{InstanceStage, Parking};
use crate::parkings::Parkings;
use crate::queued_request::{QueueRefusal, QueuedRequest, RequestSize};
use crate::rate_limiter::RateRegistration;
use crate::response_order::ResponseOrder;
use crate::sync::{self, AtomicBool, Mutex, MutexGuard};
use backend::Responder;
use base::error::Error;
use base::limits::IN_FLIGHT_MAX;
use base::metrics::{BatchCells, RowCostFigures};
use base::policy::AdmissionRule;
use scheduler::sequence::{SequencePolicy, Sequences};
use scheduler::{Claims, Entry, Policy, QueueBounds, ReleaseReason, RowShares, Scheduler, TimeoutAction};

pub use crate::model_queue::counters::batch_sizes;
pub use crate::model_queue::in_flight::{NextWork, WorkPoll};
pub use crate::model_queue::instances::InstanceChange;
pub use crate::model_queue::sequence_queue::SequenceCounts;

/// The queue of one model version, shared by shards and instances.
///
/// Fields that shards and instances write have cache lines of their own: all shards read the rest
/// for every request.
pub struct ModelQueue {
    queue: CachePadded<Mutex<LockedQueue>>,
    policy: Policy,
    admission: CachePadded<AdmissionControl>,
    counters: CachePadded<QueueCounters>,
    /// Present if answers keep the order of their requests (`preserve_ordering`).
    order: Option<Arc<ResponseOrder>>,
    /// Present if the model serves sequences.
    sequences: Option<SequenceQueue>,
    /// Present if the rows of one request may run on several instances.
    row_shares: Option<RowShares>,
    pub(super) parkings: Arc<Parkings>,
    /// Present with a rate limit: registered as long as the queue exists.
    limiter: Option<RateRegistration>,
    is_stopped: AtomicBool,
}

/// The sequences of a queue.
pub struct QueuedSequences {
    /// The model's name.
    pub model: String,
    /// The rules of its sequences.
    pub policy: SequencePolicy,
}

impl ModelQueue {
    /// Creates the queue of a model version, with a producer for every shard and a parking for
    /// every instance.
    pub fn new(
        policy: Policy,
        bounds: QueueBounds,
        shards: usize,
        instances: usize,
    ) -> (Arc<Self>, Vec<QueueProducer>) {
        let parkings = (0..instances).map(|index| Arc::new(Parking::new(index.to_string()))).collect();
        Self::with_parkings(policy, bounds, shards, parkings, None, None)
    }

    /// Creates the queue of a model version whose parkings the caller made, the passive ones last.
    /// Those with a rate id are registered with the limiter. `sequences` is present if the model serves sequences.
    pub fn with_parkings(
        policy: Policy,
        bounds: QueueBounds,
        shards: usize,
        parkings: Vec<Arc<Parking>>,
        limiter: Option<RateRegistration>,
        sequences: Option<QueuedSequences>,
    ) -> (Arc<Self>, Vec<QueueProducer>) {
        limiter.iter().for_each(|limiter| limiter.set_parkings(&parkings));
        let instances = parkings.iter().filter(|parking| !parking.is_passive()).count();
        let parkings = Arc::new(Parkings::new(parkings));
        let admission = AdmissionControl::new(&policy, bounds, instances, parkings.room());
        let requests_max = admission.requests_max();
        // At most this many requests of one shard can wait: each takes a ticket. The ring has room
        // for as many cancelled ones again: a shard that finds the lock taken leaves them there and
        // tries again later.
        let room_least = requests_max.min(IN_FLIGHT_MAX);
        let ring_size = room_least.saturating_mul(2);
        let (producers, rings): (Vec<_>, Vec<_>) = (0..shards).map(|_| sync::RingBuffer::new(ring_size)).unzip();
        // Likewise: the scheduler keeps cancelled requests until it meets them, or evicts them when it is full.
        let policy = Policy { entries_max: requests_max.saturating_mul(2), ..policy };
        let own = sequences.as_ref().map(|sequences| SequenceQueue::new(&parkings, sequences.policy.is_iterative));
        let batcher = match sequences {
            None => Batcher::Queue(Box::new(Scheduler::new(policy.clone()))),
            Some(QueuedSequences { model, policy }) => {
                let policy = SequencePolicy { instances, ..policy };
                Batcher::Sequences { model, sequences: Box::new(Sequences::new(policy)) }
            }
        };
        let queue = LockedQueue::new(rings, batcher);
        #[cfg(feature = "test-hooks")]
        let queue = queue.with_hold(policy.hold);
        let model_queue = Arc::new(Self {
            queue: CachePadded::new(Mutex::new(queue)),
            counters: CachePadded::new(QueueCounters::new(policy.rows_max, parkings.room())),
            order: policy.preserves_order.then(|| Arc::new(ResponseOrder::new(shards))),
            row_shares: policy.splits_rows.then(RowShares::new),
            policy,
            admission: CachePadded::new(admission),
            sequences: own,
            parkings,
            limiter,
            is_stopped: AtomicBool::new(false),
        });
        let producer = |ring| QueueProducer::new(ring, ring_size, room_least, Arc::clone(&model_queue));
        let producers = producers.into_iter().map(producer).collect();
        (model_queue, producers)
    }

    /// Returns the batching policy of the model version.
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the requests that wait.
    pub fn waiting(&self) -> usize {
        self.admission.waiting()
    }

    /// Requests that have not begun: those that wait, and those that were sent ahead to a process.
    pub fn pending(&self) -> usize {
        self.waiting().saturating_add(self.counters.ahead())
    }

    /// Millionths of the requests that may wait that do.
    pub fn fill(&self) -> u64 {
        let (waiting, most) = (self.admission.waiting() as u64, self.admission.requests_max() as u64);
        waiting.saturating_mul(1_000_000).checked_div(most).unwrap_or(0)
    }

    /// Returns the bytes of the tensors of requests that wait.
    #[cfg(any(test, feature = "testing"))]
    pub fn held(&self) -> usize {
        self.admission.bytes()
    }

    /// Returns the batches that left so far.
    pub fn executions(&self) -> usize {
        self.counters.executions()
    }

    /// Returns the batches that left so far for a reason.
    pub fn released(&self, reason: ReleaseReason) -> usize {
        self.counters.released(reason)
    }

    /// Returns the times that a sleeping instance was woken.
    pub fn wakes(&self) -> usize {
        self.parkings.wakes()
    }

    /// Returns the times that a lost instance was replaced.
    pub fn restarts(&self) -> usize {
        self.parkings.restarts()
    }

    /// Returns the requests that may wait.
    pub fn waiting_max(&self) -> usize {
        self.admission.requests_max()
    }

    /// Returns the requests that were refused because they would have been late.
    pub fn late(&self) -> usize {
        self.admission.late()
    }

    /// Returns the cost of its rows by size of batch, if that decides the size and is known.
    pub fn row_costs(&self) -> Option<RowCostFigures> {
        self.counters.row_costs.read(self.policy.rows_max)
    }

    /// Returns the batches that ran.
    pub fn batches(&self) -> &BatchCells {
        self.counters.batches()
    }

    /// Returns the parkings of its instances, including the passive ones and those that are gone.
    pub fn parkings(&self) -> impl Iterator<Item = &Arc<Parking>> {
        self.parkings.all()
    }

    /// Returns the parking of one instance.
    pub fn parking(&self, instance_index: usize) -> Option<&Arc<Parking>> {
        self.parkings.get(instance_index)
    }

    /// Returns the number of instances that take batches: all but the passive ones, and those that come or go.
    pub fn active_instances(&self) -> usize {
        let is_active = |parking: &&Arc<Parking>| !parking.is_passive() && parking.stage() == InstanceStage::Serving;
        self.parkings().filter(is_active).count()
    }

    /// Returns the number of instances that may be lost: those that take batches, and those that leave and end what they have.
    pub fn present_instances(&self) -> usize {
        let is_present = |parking: &&Arc<Parking>| {
            !parking.is_passive() && matches!(parking.stage(), InstanceStage::Serving | InstanceStage::Leaving)
        };
        self.parkings().filter(is_present).count()
    }

    /// Returns the number of shares in which a request of `rows` rows should be queued: more than one while nothing waits
    /// and several instances are idle, if that makes it faster.
    pub fn row_shares(&self, rows: u32) -> u32 {
        let Some(row_shares) = self.row_shares.as_ref().filter(|row_shares| row_shares.is_long(rows)) else { return 1 };
        if self.waiting() > 0 {
            return 1;
        }
        row_shares.split(rows, self.parkings().filter(|parking| parking.is_idle()).count())
    }

    /// The outputs of shares could not be joined: requests stay whole from now on.
    pub fn forbid_row_shares(&self) {
        self.row_shares.iter().for_each(RowShares::forbid);
    }

    /// A request is about to be queued: takes its share of the bounds.
    pub(super) fn admit(&self, entry: &Entry<QueuedRequest>) -> Result<(), QueueRefusal> {
        let room = entry.token.room();
        let queue = self.policy.queue(room.level);
        let may_expire = self.policy.admission == AdmissionRule::Queue && queue.timeout_action == TimeoutAction::Reject;
        let timeout = may_expire.then(|| queue.timeout(entry.timeout)).flatten();
        // As in Triton, a client that gives up by itself learns it at that time, unless the
        // stricter rule is asked for.
        let deadline = entry.deadline.filter(|_| self.policy.admission == AdmissionRule::Deadline);
        let due = RequestDue { expires_at: timeout.map(|timeout| entry.queued_at + timeout), deadline };
        self.admission.admit(room, due, entry.queued_at)
    }

    /// A request left the queue: an instance took it, or its shard withdrew it.
    pub fn leave(&self, room: RequestSize) {
        self.admission.leave(room);
    }

    /// Stops the queue. Each instance finishes its batch and the waiting requests; then
    /// [`Self::next_batch`] returns `None`.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        self.parkings.wake_all();
    }

    /// Returns true if it was stopped.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst)
    }

    /// Wakes an instance for requests that were queued before.
    pub fn wake(&self) {
        self.parkings.wake();
    }

    /// Answers a request that waits with an error, unless its shard withdrew it first.
    fn refuse(&self, mut waiting: QueuedRequest, error: Error) {
        if let Some(responder) = waiting.again.take() {
            responder.send(Err(error));
        } else if RequestClaims(&self.admission).claim(&waiting) {
            // The claim is ours, and with it the tensors: taken here, they are freed with the request.
            waiting.take_inputs();
            Responder::new(waiting.completions, waiting.ticket, waiting.stamps).send(Err(error));
        }
    }

    /// A panic under the lock loses a batch at most, which its responders answer; the queue stays usable.
    fn lock(&self) -> MutexGuard<'_, LockedQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
