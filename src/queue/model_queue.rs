//! The way of requests from the shards to the instances of one model version: a ring per shard, a
//! scheduler that the instances take turns at, and their parking. The lock is taken once for a
//! batch, by instance threads; a shard never waits for it, and tries it only in `hold.rs`, where its
//! ring fills up with those that have gone. Their memory is not there: the tensors of a request lie
//! beside its claim in the completions, and whoever settles the claim has them. Bounded by [`Admission`].

#![expect(clippy::disallowed_types, reason = "the one lock of the design: per batch, among instance threads")]

mod batcher;
mod eviction;
mod in_flight;
mod iteration;
mod rate_gate;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::backend::{self, Batch, ExecutionCounter, InFlightState, OutputNeeds, Request, Responder, Ticket};
use crate::error::{Code, Error};
use crate::limits::{ADMISSION_SLACK, BATCH_SIZES_MAX, IN_FLIGHT_MAX};
use crate::metrics::BatchCells;
use crate::model::{CorrelationId, SequenceMark};
use crate::queue::completions::Completions;
use crate::queue::model_queue::batcher::{BatchRow, Batcher, EndedRequest, FormedBatch, RejectedRequest};
use crate::queue::model_queue::iteration::Iterations;
use crate::queue::model_queue::rate_gate::GateOutcome;
use crate::queue::parking;
use crate::queue::rate_limiter::RateRegistration;
use crate::queue::response_order::ResponseOrder;
use crate::queue::sync::{self, AtomicBool, AtomicI64, Mutex, MutexGuard, SegQueue, fence};
use crate::scheduler::sequence::{SequenceEnd, SequencePolicy, Sequences};
use crate::scheduler::{Admission, Claims, Entry, Forecast, Policy, ReleaseReason, Scheduler};
use crate::tensor::Tensor;
use crate::time::{Clock, Instant, Stamps};

pub use crate::queue::model_queue::in_flight::NextWork;
pub use crate::queue::parking::Parking;
pub use crate::scheduler::QueueBounds;

/// A request in a queue.
pub struct QueuedRequest {
    /// The shard that answers it.
    pub completions: Arc<Completions>,
    /// Its name there.
    pub ticket: Ticket,
    /// Its tensors, in the order of the model's inputs; the completions has them while it is queued.
    pub inputs: Vec<Tensor>,
    /// Its rows.
    pub rows: u32,
    /// Bytes of its tensors.
    pub size: usize,
    /// Its priority level, as the policy has it.
    pub level: u64,
    /// Its place in a sequence, where the model serves them.
    pub mark: Option<SequenceMark>,
    /// `received` is set.
    pub stamps: Stamps,
    /// What of each output its client asks for.
    pub output_needs: OutputNeeds,
    /// Takes its answer where it ran before (iterative sequences); no bound counts it then.
    pub again: Option<Responder>,
}

/// What one request takes of the bounds of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestSize {
    /// Its priority level, as the policy has it.
    pub level: u64,
    /// Its rows.
    pub rows: u32,
    /// Bytes of its tensors.
    pub size: usize,
}

/// Why a request is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueRefusal {
    /// A bound is reached.
    Full,
    /// It would be answered so long after its deadline.
    Late(Duration),
}

/// The queue of one model version, shared by shards and instances.
pub struct ModelQueue {
    locked: Mutex<LockedQueue>,
    policy: Policy,
    admission: Admission,
    /// Where requests are refused that would be late (`--admission=deadline`).
    forecast: Option<Forecast>,
    /// Where answers keep the order of their requests.
    order: Option<Arc<ResponseOrder>>,
    releases: [AtomicUsize; ReleaseReason::ALL.len()],
    /// Requests that were refused because they would be late.
    late: AtomicUsize,
    /// Where the model serves sequences.
    sequences: Option<SequenceQueue>,
    batches: Arc<BatchCells>,
    parkings: Box<[Arc<Parking>]>,
    limiter: Option<RateRegistration>,
    /// Rows that may arrive before anybody needs to wake: an instance watches the delay.
    rows_wanted: AtomicI64,
    is_stopped: AtomicBool,
}

/// What is there only where a model serves sequences.
struct SequenceQueue {
    iterations: Arc<Iterations>,
    /// Ids that were given to iterative sequences.
    ids: AtomicU64,
    is_iterative: bool,
    /// Sequences that a client left, until an instance hears of it.
    departures: SegQueue<SequenceDeparture>,
    counts: SequenceCounts,
}

struct SequenceDeparture {
    id: CorrelationId,
    since: Instant,
}

/// How many sequences there are, and what ended the others.
#[derive(Default)]
pub struct SequenceCounts {
    active: AtomicUsize,
    backlogged: AtomicUsize,
    ends: [AtomicUsize; SequenceEnd::ALL.len()],
}

struct LockedQueue {
    rings: Vec<sync::Consumer<Entry<QueuedRequest>>>,
    batcher: Batcher,
    arrived: Vec<Entry<QueuedRequest>>,
    watch: Option<TimeoutWatch>,
}

/// The one instance that sleeps only until the scheduler must be asked again.
struct TimeoutWatch {
    instance_index: usize,
    at: Instant,
}

/// What an instance is told.
enum PollOutcome {
    Batch(Batch),
    /// Nothing waits, and the queue was stopped.
    Ended,
    /// Nothing yet: to sleep, until then if it is the one that watches.
    Nothing(Option<Instant>),
    /// To sleep until its resources are free.
    Blocked,
    /// Its instance has gone.
    Lost,
}

/// One shard's end of a queue.
pub struct QueueProducer {
    ring: sync::Producer<Entry<QueuedRequest>>,
    /// Room in the ring when it was looked for last, less what was queued since.
    room_seen: usize,
    /// Where less is seen, those that have gone are taken out.
    room_least: usize,
    model_queue: Arc<ModelQueue>,
}

impl ModelQueue {
    /// The queue of a model version, with a producer for every shard and a parking for every instance.
    pub fn new(
        policy: Policy,
        bounds: QueueBounds,
        shards: usize,
        instances: usize,
    ) -> (Arc<Self>, Vec<QueueProducer>) {
        let parkings = (0..instances).map(|index| Arc::new(Parking::new(index.to_string()))).collect();
        Self::with_parkings(policy, bounds, shards, parkings, None, None)
    }

    /// The same with parkings that are given, the passive ones last; those that have an id there are
    /// registered with the limiter. A model that serves sequences does it by its name and a policy.
    pub fn with_parkings(
        policy: Policy,
        bounds: QueueBounds,
        shards: usize,
        parkings: Vec<Arc<Parking>>,
        limiter: Option<RateRegistration>,
        sequences: Option<(String, SequencePolicy)>,
    ) -> (Arc<Self>, Vec<QueueProducer>) {
        limiter.iter().for_each(|limiter| limiter.sit(&parkings));
        let instances = parkings.iter().filter(|parking| !parking.is_passive()).count();
        let admission = Admission::new(&policy, bounds);
        let requests_max = admission.requests_max();
        // A shard has a ticket for each of its requests. There is room for as many again that have gone:
        // a shard that finds the lock held leaves them there, and tries again later.
        let room_least = requests_max.min(IN_FLIGHT_MAX);
        let ring_size = room_least.saturating_mul(2);
        let (producers, rings): (Vec<_>, Vec<_>) = (0..shards).map(|_| sync::RingBuffer::new(ring_size)).unzip();
        // Those that have gone stay until they are met, or are swept out when there is no room.
        let policy = Policy { entries_max: requests_max.saturating_mul(2), ..policy };
        let own = sequences.as_ref().map(|(_, policy)| SequenceQueue {
            iterations: Arc::new(Iterations::new(&parkings)),
            ids: AtomicU64::new(0),
            is_iterative: policy.is_iterative,
            departures: SegQueue::new(),
            counts: SequenceCounts::default(),
        });
        let batcher = match sequences {
            None => Batcher::Queue(Box::new(Scheduler::new(policy.clone()))),
            Some((model, policy)) => {
                let policy = SequencePolicy { instances, ..policy };
                Batcher::Sequences { model, sequences: Box::new(Sequences::new(policy)) }
            }
        };
        let model_queue = Arc::new(Self {
            locked: Mutex::new(LockedQueue { rings, batcher, arrived: Vec::new(), watch: None }),
            batches: Arc::new(BatchCells::new(batch_sizes(policy.rows_max))),
            forecast: policy.refuses_late.then(|| Forecast::new(&policy, instances)),
            order: policy.preserves_order.then(|| Arc::new(ResponseOrder::new(shards))),
            policy,
            admission,
            releases: Default::default(),
            late: AtomicUsize::new(0),
            sequences: own,
            parkings: parkings.into(),
            limiter,
            rows_wanted: AtomicI64::new(0),
            is_stopped: AtomicBool::new(false),
        });
        let producer =
            |ring| QueueProducer { ring, room_seen: ring_size, room_least, model_queue: Arc::clone(&model_queue) };
        let locked = producers.into_iter().map(producer).collect();
        (model_queue, locked)
    }

    /// How the model version batches.
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Requests that wait.
    pub fn waiting(&self) -> usize {
        self.admission.waiting()
    }

    /// Bytes of the tensors of requests that wait.
    #[cfg(test)]
    pub fn held(&self) -> usize {
        self.admission.bytes()
    }

    /// Batches that left so far.
    pub fn executions(&self) -> usize {
        self.releases.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Batches that left so far for a reason.
    pub fn released(&self, reason: ReleaseReason) -> usize {
        self.releases.get(reason as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Times an instance that slept was woken.
    pub fn wakes(&self) -> usize {
        self.parkings.iter().map(|parking| parking.wakes()).sum()
    }

    /// Requests that were refused because they would have been late.
    pub fn late(&self) -> usize {
        self.late.load(Ordering::Relaxed)
    }

    /// The batches that ran.
    pub fn batches(&self) -> &BatchCells {
        &self.batches
    }

    /// Its instances, those that are given no work among them.
    pub fn parkings(&self) -> &[Arc<Parking>] {
        &self.parkings
    }

    fn enter(&self, room: RequestSize, deadline: Option<Instant>, now: Instant) -> Result<(), QueueRefusal> {
        let forecast = self.forecast.as_ref();
        let answered_at = forecast.and_then(|forecast| forecast.answered_at(room.level, room.rows, now));
        if let Some((answered_at, deadline)) = answered_at.zip(deadline)
            && answered_at + ADMISSION_SLACK > deadline
        {
            self.late.fetch_add(1, Ordering::Relaxed);
            return Err(QueueRefusal::Late((answered_at + ADMISSION_SLACK).since(deadline)));
        }
        self.admission.enter(room.level, room.size).map_err(|_| QueueRefusal::Full)?;
        if let Some(forecast) = forecast {
            forecast.handle_request(room.level, room.rows);
        }
        Ok(())
    }

    /// A request left the queue: it was taken, or its shard withdrew it.
    pub fn leave(&self, room: RequestSize) {
        self.admission.leave(room.level, room.size);
        if let Some(forecast) = &self.forecast {
            forecast.handle_leave(room.level, room.rows);
        }
    }

    /// The instance in a parking died: how long its batch took says nothing. Of sequences that had
    /// their state there, all that waits is refused.
    pub fn handle_death(&self, instance_index: usize, is_renewed: bool, now: Instant) {
        if let Some(parking) = self.parkings.get(instance_index) {
            parking.take_run();
        }
        if self.sequences.is_some() {
            let mut locked = self.lock();
            locked.drain(now, self);
            locked.batcher.handle_death(instance_index, is_renewed, now, &mut RequestClaims(self));
            self.handle_released(&mut locked, now);
            self.handle_news(&mut locked, instance_index, now);
        }
    }

    /// The instance in a parking serves again, after it could not be made anew for a time.
    pub fn handle_revival(&self, instance_index: usize, now: Instant) {
        if self.sequences.is_some() {
            let mut locked = self.lock();
            locked.batcher.handle_revival(instance_index, now);
            self.handle_news(&mut locked, instance_index, now);
        }
    }

    /// The place of a request in a sequence of its own, where sequences are iterative and it names none.
    pub fn own_mark(&self) -> Option<SequenceMark> {
        let own = self.sequences.as_ref().filter(|own| own.is_iterative)?;
        let id = CorrelationId::Own(own.ids.fetch_add(1, Ordering::Relaxed) + 1);
        Some(SequenceMark { id, is_start: true, is_end: false })
    }

    /// A client left a sequence. `since` is when the last of its requests that it knows of arrived.
    pub fn depart(&self, id: CorrelationId, since: Instant) {
        if let Some(sequences) = &self.sequences {
            sequences.departures.push(SequenceDeparture { id, since });
            self.wake();
        }
    }

    /// The sequences, where the model serves them.
    pub fn sequences(&self) -> Option<&SequenceCounts> {
        self.sequences.as_ref().map(|sequences| &sequences.counts)
    }

    /// Tells those whom it concerns what became of sequences. Whether there is something for the
    /// instance that looks.
    fn handle_news(&self, locked: &mut LockedQueue, instance_index: usize, now: Instant) -> bool {
        while let Some(EndedRequest { waiting, error }) = locked.batcher.poll_over(now) {
            self.refuse(waiting, error);
        }
        let mut is_concerned = false;
        while let Some(other) = locked.batcher.poll_attention(now) {
            is_concerned |= other == instance_index;
            if let Some(parking) = self.parkings.get(other).filter(|_| other != instance_index) {
                parking.unpark();
            }
        }
        if let (Some(own), Batcher::Sequences { sequences, .. }) = (&self.sequences, &locked.batcher) {
            own.counts.set(sequences);
        }
        is_concerned
    }

    /// Ends the instances: each finishes its batch and what waits, then [`Self::next_batch`]
    /// answers `None`.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        self.wake_all();
    }

    fn wake_all(&self) {
        // The handshake with `next_batch`, as in `wake`.
        fence(Ordering::SeqCst);
        for parking in &self.parkings {
            parking.unpark();
        }
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst)
    }

    /// The next batch for the instance in a parking; sleeps until there is one. `None` once the queue
    /// was stopped and nothing waits.
    pub fn next_batch(&self, instance_index: usize, clock: Clock) -> Option<Batch> {
        match self.next_beside(instance_index, clock, &mut InFlightState::default) {
            NextWork::Batch(batch) => Some(batch),
            NextWork::Ended | NextWork::Lost => None,
        }
    }

    /// Sleeps in a parking that is given no work, until the queue is stopped.
    pub fn wait_stopped(&self, instance_index: usize, clock: Clock) {
        let Some(parking) = self.parkings.get(instance_index) else { return };
        parking.take();
        while !self.is_stopped() {
            parking.set_parked(true);
            // The handshake with `stop`.
            fence(Ordering::SeqCst);
            if self.is_stopped() {
                parking.set_parked(false);
            }
            parking.park(None, clock);
        }
    }

    fn poll(&self, instance_index: usize, clock: Clock, flight: &InFlightState) -> PollOutcome {
        let now = clock();
        let mut locked = self.lock();
        self.handle_run(instance_index, &mut locked.batcher, now, flight);
        self.handle_released(&mut locked, now);
        locked.watch = locked.watch.take().filter(|watch| watch.instance_index != instance_index);
        let is_stopped = self.is_stopped();
        let taken = loop {
            self.rows_wanted.store(0, Ordering::SeqCst);
            locked.drain(now, self);
            if is_stopped {
                // Nothing is queued after the stop: what was is in.
                locked.batcher.handle_drain();
            }
            self.handle_news(&mut locked, instance_index, now);
            match self.take(&mut locked, instance_index, now) {
                GateOutcome::Batch(taken) => break taken,
                GateOutcome::Blocked => {
                    drop(locked);
                    if let Some(forecast) = &self.forecast {
                        forecast.handle_idle(instance_index);
                    }
                    // An instance that needs less may be idle.
                    self.wake_one();
                    return PollOutcome::Blocked;
                }
                // Its own sequences may have something new by now.
                GateOutcome::Nothing if self.handle_news(&mut locked, instance_index, now) => continue,
                GateOutcome::Nothing => {}
            }
            if let Some(forecast) = &self.forecast {
                forecast.handle_idle(instance_index);
            }
            // Only where it was stopped before this look: a batch that may grow would be left behind.
            if is_stopped && !locked.batcher.has_flights() {
                // Others may have slept for what was under way, or for resources to run what another ran.
                self.wake_all();
                return PollOutcome::Ended;
            }
            let until = locked.watch(instance_index);
            if locked.watch.is_none() {
                return PollOutcome::Nothing(until);
            }
            // The handshake again: what is queued now counts down what we want, or we see it.
            self.rows_wanted.store(locked.batcher.rows_wanted().into(), Ordering::SeqCst);
            fence(Ordering::SeqCst);
            if locked.rings.iter().all(sync::Consumer::is_empty) {
                return PollOutcome::Nothing(until);
            }
        };
        self.handle_news(&mut locked, instance_index, now);
        let is_more = locked.has_more();
        // Under the lock: the next batch has the next turns.
        let turns = self.turns(&taken);
        drop(locked);
        self.handle_batch(instance_index, &taken, now);
        if is_more {
            self.wake_one();
        }
        PollOutcome::Batch(self.make_batch(taken, turns, clock))
    }

    /// The ways by which the answers of a batch keep their order; none where they need not.
    fn turns(&self, taken: &FormedBatch) -> Vec<Arc<dyn backend::AnswerSink>> {
        let completions = |waiting: &QueuedRequest| Arc::clone(&waiting.completions) as Arc<dyn backend::AnswerSink>;
        let taken = || taken.rows.iter().filter_map(|row| row.request.as_ref()).filter(|row| row.again.is_none());
        let turns =
            self.order.iter().flat_map(|order| taken().map(|waiting| order.handle_request(completions(waiting))));
        turns.collect()
    }

    /// The instance in a parking takes a batch.
    fn handle_batch(&self, instance_index: usize, taken: &FormedBatch, now: Instant) {
        if let Some(count) = self.releases.get(taken.released as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(parking) = self.parkings.get(instance_index) {
            parking.set_run(taken.size, now);
            parking.count_batch();
            if self.limiter.is_none() {
                parking.set_turn(self.executions() as u64);
            }
        }
        if let Some(forecast) = &self.forecast {
            forecast.handle_batch(instance_index, taken.size, now);
        }
    }

    /// The instance in a parking is back from a batch, if it had one. How long one took that is in flight
    /// is known when it ends.
    fn handle_run(&self, instance_index: usize, batcher: &mut Batcher, now: Instant, flight: &InFlightState) {
        let Some(parking) = self.parkings.get(instance_index) else { return };
        let ran = parking.take_run().filter(|_| flight.batches == 0).map(|(rows, began)| (rows, now.since(began)));
        let Some((rows, took)) = flight.ended_batch.or(ran) else { return };
        batcher.handle_run(instance_index, rows, took, now);
        if let (Some(forecast), Batcher::Queue(scheduler)) = (&self.forecast, &*batcher) {
            forecast.handle_times(scheduler.times(), scheduler.rows_full());
        }
    }

    /// `turns` are the ways by which answers keep their order, where they do.
    fn make_batch(&self, taken: FormedBatch, turns: Vec<Arc<dyn backend::AnswerSink>>, clock: Clock) -> Batch {
        let mut turns = turns.into_iter();
        let batched = clock();
        let FormedBatch { rows: mut taken, ended, .. } = taken;
        taken.iter_mut().filter_map(|row| row.request.as_mut()).for_each(QueuedRequest::take_inputs);
        let waiting = || taken.iter().filter_map(|row| row.request.as_ref());
        let rows = waiting().fold(0_u32, |sum, waiting| sum.saturating_add(waiting.rows));
        // A row without a request has the inputs of another: the model must have some.
        let spare = waiting().next().map(|waiting| waiting.inputs.clone()).unwrap_or_default();
        let mut is_first = true;
        let is_iterative = self.sequences.as_ref().is_some_and(|own| own.is_iterative);
        let requests = taken.into_iter().map(|BatchRow { request, sequence, flight }| {
            let Some(waiting) = request else {
                return Request { inputs: spare.clone(), rows: 1, responder: Responder::nobody(), sequence };
            };
            let turn = if waiting.again.is_none() { turns.next() } else { None };
            let mut request = match flight.filter(|_| is_iterative) {
                Some(flight) => self.iterate(waiting, flight, sequence, turn, batched),
                None => {
                    let stamps = Stamps { batched, ..waiting.stamps };
                    let mut responder = Responder::new(turn.unwrap_or(waiting.completions), waiting.ticket, stamps);
                    responder.output_needs = waiting.output_needs;
                    Request { inputs: waiting.inputs, rows: waiting.rows, responder, sequence }
                }
            };
            request.responder.set_batch(rows, std::mem::take(&mut is_first));
            request.responder.count_in(Arc::clone(&self.batches) as Arc<dyn ExecutionCounter>);
            request
        });
        let requests = requests.collect();
        debug_assert!(turns.next().is_none(), "each turn is that of a request");
        Batch { requests, rows, clock, ended }
    }

    fn refuse(&self, mut waiting: QueuedRequest, error: Error) {
        if let Some(responder) = waiting.again.take() {
            responder.send(Err(error));
        } else if RequestClaims(self).claim(&waiting) {
            waiting.take_inputs();
            Responder::new(waiting.completions, waiting.ticket, waiting.stamps).send(Err(error));
        }
    }

    fn lock(&self) -> MutexGuard<'_, LockedQueue> {
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether so many rows more leave the batch that waits to grow still short.
    fn is_enough_wanted(&self, rows: u32) -> bool {
        let rows = i64::from(rows);
        self.rows_wanted.load(Ordering::SeqCst) > 0 && self.rows_wanted.fetch_sub(rows, Ordering::SeqCst) > rows
    }

    /// Sees to it that an instance looks at what was queued.
    pub fn wake(&self) {
        // Dekker's handshake with `next_batch`: what was queued is seen, or the parked instance is.
        fence(Ordering::SeqCst);
        self.wake_one();
    }

    fn wake_one(&self) {
        parking::wake_one(&self.parkings);
    }
}

impl SequenceCounts {
    /// Sequences that have a slot.
    pub fn active(&self) -> usize {
        self.active.load(Ordering::Relaxed)
    }

    /// Sequences that wait for a slot.
    pub fn backlogged(&self) -> usize {
        self.backlogged.load(Ordering::Relaxed)
    }

    /// Sequences that ended for a reason.
    pub fn ended(&self, end: SequenceEnd) -> usize {
        self.ends.get(end as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    fn set(&self, sequences: &Sequences<CorrelationId, QueuedRequest>) {
        self.active.store(sequences.active(), Ordering::Relaxed);
        self.backlogged.store(sequences.backlogged(), Ordering::Relaxed);
        for (end, count) in SequenceEnd::ALL.into_iter().zip(&self.ends) {
            count.store(usize::try_from(sequences.ended(end)).unwrap_or(usize::MAX), Ordering::Relaxed);
        }
    }
}

impl QueuedRequest {
    /// One row that nobody said more of.
    #[cfg(test)]
    pub fn plain(ticket: Ticket, completions: Arc<Completions>) -> Self {
        Self {
            completions,
            ticket,
            inputs: Vec::new(),
            rows: 1,
            size: 1,
            level: 0,
            mark: None,
            stamps: Stamps::default(),
            again: None,
            output_needs: OutputNeeds::default(),
        }
    }

    /// Takes its tensors out of the completions, where it was claimed. One that ran before has them.
    fn take_inputs(&mut self) {
        if self.again.is_none() {
            self.inputs = self.completions.take_inputs(self.ticket);
        }
    }

    /// What it takes of the queue's bounds.
    pub const fn room(&self) -> RequestSize {
        RequestSize { level: self.level, rows: self.rows, size: self.size }
    }
}

/// What the scheduler takes from the shards.
struct RequestClaims<'a>(&'a ModelQueue);

impl Claims<QueuedRequest> for RequestClaims<'_> {
    fn is_waiting(&mut self, waiting: &QueuedRequest) -> bool {
        match &waiting.again {
            None => waiting.completions.is_waiting(waiting.ticket),
            Some(responder) => !responder.has_left(),
        }
    }

    fn claim(&mut self, waiting: &QueuedRequest) -> bool {
        if waiting.again.is_some() {
            // It was claimed before.
            return self.is_waiting(waiting);
        }
        let is_claimed = waiting.completions.claim(waiting.ticket);
        if is_claimed {
            self.0.leave(waiting.room());
        }
        is_claimed
    }
}

impl LockedQueue {
    /// Moves what arrived into the scheduler, in arrival order over all shards.
    fn drain(&mut self, now: Instant, model_queue: &ModelQueue) {
        for ring in &mut self.rings {
            while let Ok(entry) = ring.pop() {
                if entry.token.completions.is_waiting(entry.token.ticket) {
                    self.arrived.push(entry);
                }
            }
        }
        self.arrived.sort_by_key(|entry| entry.queued_at);
        for entry in self.arrived.drain(..) {
            let Err(refused) = self.batcher.handle_request(entry, now) else { continue };
            let RejectedRequest { entry, error } = *refused;
            if let Some(error) = error {
                model_queue.refuse(entry.token, error);
                continue;
            }
            // Half of them at least have gone: admission lets no more wait.
            self.batcher.forget_gone(now, &mut RequestClaims(model_queue));
            if let Err(refused) = self.batcher.handle_request(entry, now) {
                model_queue.refuse(refused.entry.token, Error::unavailable("Exceeds maximum queue size"));
            }
        }
        while let Some(SequenceDeparture { id, since }) =
            model_queue.sequences.as_ref().and_then(|own| own.departures.pop())
        {
            self.batcher.handle_departure(&id, since, now, &mut RequestClaims(model_queue));
        }
    }

    /// Whether another instance should look for a batch, or should keep the time: those of sequences
    /// are named, but only one of all keeps their time.
    fn has_more(&self) -> bool {
        match &self.batcher {
            Batcher::Queue(scheduler) => !scheduler.is_empty(),
            Batcher::Sequences { sequences, .. } => {
                let watched = self.watch.as_ref().map(|watch| watch.at);
                sequences.poll_timeout().is_some_and(|at| watched.is_none_or(|watched| watched > at))
            }
        }
    }

    /// When to come back, if no other instance does so in time.
    fn watch(&mut self, instance_index: usize) -> Option<Instant> {
        let at = self.batcher.poll_timeout()?;
        if self.watch.as_ref().is_some_and(|watch| watch.at <= at) {
            return None;
        }
        self.watch = Some(TimeoutWatch { instance_index, at });
        Some(at)
    }
}

impl QueueProducer {
    /// The queue it belongs to.
    pub const fn model_queue(&self) -> &Arc<ModelQueue> {
        &self.model_queue
    }

    /// Queues a request and says whether [`ModelQueue::wake`] must be called, once for a burst. What is
    /// refused is dropped; its ticket is still its shard's.
    pub fn submit(&mut self, mut entry: Entry<QueuedRequest>) -> Result<bool, QueueRefusal> {
        let room = entry.token.room();
        self.model_queue.enter(room, entry.deadline, entry.queued_at)?;
        if self.room_seen <= self.room_least {
            self.make_room(entry.queued_at);
        }
        let inputs = std::mem::take(&mut entry.token.inputs);
        entry.token.completions.put_inputs(entry.token.ticket, inputs);
        // Of a shape that the others may not have, it may end their batch; a deadline may close it.
        let may_close = !entry.shape_key.is_empty() || entry.deadline.is_some();
        let rows = if may_close { u32::MAX } else { entry.rows.max(1) };
        if self.ring.push(entry).is_err() {
            // Each time that room was looked for, somebody else was at the queue.
            debug_assert_eq!(self.room_seen, 0, "no more room is seen than there is");
            self.model_queue.leave(room);
            return Err(QueueRefusal::Full);
        }
        self.room_seen = self.room_seen.saturating_sub(1);
        fence(Ordering::SeqCst);
        Ok(!self.model_queue.is_enough_wanted(rows))
    }
}

/// What a request is told whose queue timeout passed.
pub fn timeout_expired() -> Error {
    Error::unavailable("Request timeout expired")
}

/// What a request is told whose client has given up by now.
pub fn deadline_exceeded() -> Error {
    Error::new(Code::DeadlineExceeded, "Deadline Exceeded")
}

/// Sizes that the batches of a model version may have, as far as they are counted apart.
pub fn batch_sizes(rows_max: u32) -> usize {
    usize::try_from(rows_max).unwrap_or(BATCH_SIZES_MAX).clamp(1, BATCH_SIZES_MAX)
}

/// Whoever waited for the answers may have gone: the worker counts.
impl ExecutionCounter for BatchCells {
    fn count(&self, rows: u32, stamps: &Stamps) {
        self.count_shared(rows, stamps);
    }
}

#[cfg(test)]
mod tests;
