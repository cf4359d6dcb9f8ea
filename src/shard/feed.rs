//! The way of requests from the shards to the instances of one model version: a ring per shard, a
//! scheduler that the instances take turns at, and their parking. The lock is taken once for a
//! batch, by instance threads only; a shard never takes it.

#![expect(clippy::disallowed_types, reason = "the one lock of the design: per batch, among instance threads")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::Thread;

use crate::backend::{Batch, Request, Responder, Ticket};
use crate::scheduler::{Claims, Entry, Policy, Refused, Scheduler};
use crate::shard::inbox::Inbox;
use crate::tensor::Tensor;
use crate::time::{Clock, Stamps};

/// A request in a queue.
pub struct Waiting {
    /// The shard that answers it.
    pub inbox: Arc<Inbox>,
    /// Its name there.
    pub ticket: Ticket,
    /// Its tensors, in the order of the model's inputs.
    pub inputs: Vec<Tensor>,
    /// Its rows.
    pub rows: u32,
    /// Bytes of its tensors.
    pub size: usize,
    /// `received` is set.
    pub stamps: Stamps,
}

/// What may wait for one model version.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Requests (`--queue-requests-max`).
    pub requests: usize,
    /// Bytes of their tensors (`--queue-bytes-max`).
    pub bytes: usize,
}

/// The queue of one model version, shared by shards and instances.
pub struct Feed {
    lanes: Mutex<Lanes>,
    bounds: Bounds,
    waiting: AtomicUsize,
    waiting_bytes: AtomicUsize,
    executions: AtomicUsize,
    seats: Box<[Seat]>,
    is_stopped: AtomicBool,
}

struct Lanes {
    rings: Vec<rtrb::Consumer<Entry<Waiting>>>,
    scheduler: Scheduler<Waiting>,
    arrived: Vec<Entry<Waiting>>,
}

/// Where an instance's thread sleeps.
#[derive(Default)]
struct Seat {
    is_parked: AtomicBool,
    thread: OnceLock<Thread>,
}

/// One shard's end of a feed.
pub struct Lane {
    ring: rtrb::Producer<Entry<Waiting>>,
    feed: Arc<Feed>,
}

impl Feed {
    /// The feed of a model version, with a lane for every shard and a seat for every instance.
    pub fn new(policy: Policy, bounds: Bounds, shards: usize, instances: usize) -> (Arc<Self>, Vec<Lane>) {
        let (producers, rings): (Vec<_>, Vec<_>) = (0..shards).map(|_| rtrb::RingBuffer::new(bounds.requests)).unzip();
        // Those that have gone stay in the queue until an instance comes by.
        let policy = Policy { entries_max: bounds.requests.saturating_mul(shards + 1), ..policy };
        let lanes = Lanes { rings, scheduler: Scheduler::new(policy), arrived: Vec::new() };
        let feed = Arc::new(Self {
            lanes: Mutex::new(lanes),
            bounds,
            waiting: AtomicUsize::new(0),
            waiting_bytes: AtomicUsize::new(0),
            executions: AtomicUsize::new(0),
            seats: (0..instances).map(|_| Seat::default()).collect(),
            is_stopped: AtomicBool::new(false),
        });
        let lanes = producers.into_iter().map(|ring| Lane { ring, feed: Arc::clone(&feed) }).collect();
        (feed, lanes)
    }

    /// Requests that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Batches that left so far.
    pub fn executions(&self) -> usize {
        self.executions.load(Ordering::Relaxed)
    }

    /// A request left the queue without being taken: its shard withdrew it.
    pub fn leave(&self, size: usize) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.waiting_bytes.fetch_sub(size, Ordering::Relaxed);
    }

    /// Ends the instances: each finishes its batch and what waits, then [`Self::next_batch`]
    /// answers `None`.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        for seat in &self.seats {
            seat.unpark();
        }
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst)
    }

    /// The next batch for the instance in a seat; sleeps until there is one. `None` once the feed
    /// was stopped and nothing waits.
    pub fn next_batch(&self, seat_index: usize, clock: Clock) -> Option<Batch> {
        let seat = self.seats.get(seat_index)?;
        seat.thread.get_or_init(std::thread::current);
        loop {
            if let Some(batch) = self.poll_batch(clock) {
                return Some(batch);
            }
            // Dekker's handshake with `Lane::submit`: either we see its entry, or it sees us parked.
            seat.is_parked.store(true, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            let batch = self.poll_batch(clock);
            if batch.is_some() || self.is_stopped() {
                seat.is_parked.store(false, Ordering::SeqCst);
                return batch;
            }
            while seat.is_parked.load(Ordering::SeqCst) {
                std::thread::park();
            }
        }
    }

    fn poll_batch(&self, clock: Clock) -> Option<Batch> {
        let now = clock();
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.drain(now, self);
        let taken = lanes.scheduler.poll_batch(now, &mut Taking(self))?;
        let is_more = !lanes.scheduler.is_empty();
        drop(lanes);
        if is_more {
            self.wake_one();
        }
        self.executions.fetch_add(1, Ordering::Relaxed);
        Some(into_batch(taken.tokens, clock))
    }

    fn enter(&self, size: usize) -> bool {
        let within = |max: usize, add: usize| move |have: usize| have.checked_add(add).filter(|sum| *sum <= max);
        let relaxed = Ordering::Relaxed;
        if self.waiting.fetch_update(relaxed, relaxed, within(self.bounds.requests, 1)).is_err() {
            return false;
        }
        let has_room = self.waiting_bytes.fetch_update(relaxed, relaxed, within(self.bounds.bytes, size)).is_ok();
        if !has_room {
            self.waiting.fetch_sub(1, relaxed);
        }
        has_room
    }

    fn wake_one(&self) {
        for seat in &self.seats {
            if seat.unpark() {
                return;
            }
        }
    }
}

/// What the scheduler takes from the shards.
struct Taking<'a>(&'a Feed);

impl Claims<Waiting> for Taking<'_> {
    fn is_waiting(&mut self, waiting: &Waiting) -> bool {
        waiting.inbox.is_waiting(waiting.ticket)
    }

    fn claim(&mut self, waiting: &Waiting) -> bool {
        let is_claimed = waiting.inbox.claim(waiting.ticket);
        if is_claimed {
            self.0.leave(waiting.size);
        }
        is_claimed
    }
}

impl Seat {
    /// Wakes its thread if it sleeps, or is about to.
    fn unpark(&self) -> bool {
        // Most of the time it is awake: a load is cheaper than a swap.
        let was_parked = self.is_parked.load(Ordering::SeqCst) && self.is_parked.swap(false, Ordering::SeqCst);
        if was_parked && let Some(thread) = self.thread.get() {
            thread.unpark();
        }
        was_parked
    }
}

impl Lanes {
    /// Moves what arrived into the scheduler, in arrival order over all shards.
    fn drain(&mut self, now: crate::time::Instant, feed: &Feed) {
        for ring in &mut self.rings {
            while let Ok(entry) = ring.pop() {
                if entry.token.inbox.is_waiting(entry.token.ticket) {
                    self.arrived.push(entry);
                }
            }
        }
        self.arrived.sort_by_key(|entry| entry.queued_at);
        for entry in self.arrived.drain(..) {
            if let Err(Refused(entry)) = self.scheduler.handle_request(entry, now)
                && entry.token.inbox.claim(entry.token.ticket)
            {
                feed.leave(entry.token.size);
                let full = crate::error::Error::unavailable("Exceeds maximum queue size");
                Responder::new(entry.token.inbox, entry.token.ticket, entry.token.stamps).send(Err(full));
            }
        }
    }
}

impl Lane {
    /// The feed it belongs to.
    pub const fn feed(&self) -> &Arc<Feed> {
        &self.feed
    }

    /// Queues a request and sees to it that an instance is awake; gives it back where the queue is
    /// full.
    #[expect(clippy::result_large_err, reason = "a refused entry goes back as it came, without an allocation")]
    pub fn submit(&mut self, entry: Entry<Waiting>) -> Result<(), Entry<Waiting>> {
        let size = entry.token.size;
        if !self.feed.enter(size) {
            return Err(entry);
        }
        if let Err(rtrb::PushError::Full(entry)) = self.ring.push(entry) {
            self.feed.leave(size);
            return Err(entry);
        }
        fence(Ordering::SeqCst);
        self.feed.wake_one();
        Ok(())
    }
}

fn into_batch(taken: Vec<Waiting>, clock: Clock) -> Batch {
    let batched = clock();
    let rows = taken.iter().fold(0_u32, |sum, waiting| sum.saturating_add(waiting.rows));
    let requests = taken.into_iter().enumerate().map(|(index, waiting)| {
        let stamps = Stamps { batched, ..waiting.stamps };
        let mut responder = Responder::new(waiting.inbox, waiting.ticket, stamps);
        responder.set_batch(rows, index == 0);
        Request { inputs: waiting.inputs, rows: waiting.rows, responder }
    });
    Batch { requests: requests.collect(), rows, clock }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::time::Duration;

    use super::*;
    use crate::scheduler::ShapeKey;
    use crate::shard::ticket::Tickets;
    use crate::time::Instant;

    fn clock() -> Instant {
        Instant::from_micros(1)
    }

    fn entry(tickets: &Tickets, micros: u64, size: usize) -> Entry<Waiting> {
        let ticket = tickets.open().unwrap();
        let inbox = Arc::clone(tickets.inbox());
        let token = Waiting { inbox, ticket, inputs: Vec::new(), rows: 1, size, stamps: Stamps::default() };
        Entry {
            token,
            rows: 1,
            shape_key: ShapeKey::new(),
            queued_at: Instant::from_micros(micros),
            priority: 0,
            timeout: Duration::ZERO,
            deadline: None,
        }
    }

    fn feed(requests: usize, bytes: usize, shards: usize) -> (Arc<Feed>, Vec<Lane>) {
        let policy = Policy { rows_max: 8, is_batched: true, ..Policy::default() };
        Feed::new(policy, Bounds { requests, bytes }, shards, 2)
    }

    fn tickets() -> Rc<Tickets> {
        Rc::new(Tickets::new(Arc::new(Inbox::new())))
    }

    #[test]
    fn a_batch_holds_what_all_shards_queued_in_arrival_order() {
        let (feed, mut lanes) = feed(16, 1000, 2);
        let tickets = tickets();
        for (lane, micros) in [(0, 10), (1, 5), (0, 20), (1, 15)] {
            lanes[lane].submit(entry(&tickets, micros, 1)).ok().unwrap();
        }
        let batch = feed.next_batch(0, clock).unwrap();
        let order: Vec<_> = batch.requests.iter().map(|request| request.responder.ticket().index).collect();
        assert_eq!(order, [1, 0, 3, 2]);
        assert_eq!((batch.rows, feed.waiting(), feed.executions()), (4, 0, 1));
    }

    #[test]
    fn the_bounds_in_requests_and_bytes_are_exact_and_come_free_again() {
        let (feed, mut lanes) = feed(3, 100, 1);
        let tickets = tickets();
        for _ in 0..3 {
            assert!(lanes[0].submit(entry(&tickets, 1, 10)).is_ok());
        }
        assert!(lanes[0].submit(entry(&tickets, 1, 10)).is_err(), "a fourth request");
        drop(feed.next_batch(0, clock));
        assert!(lanes[0].submit(entry(&tickets, 1, 101)).is_err(), "more bytes than may wait");
        assert!(lanes[0].submit(entry(&tickets, 1, 100)).is_ok());
        assert!(lanes[0].submit(entry(&tickets, 1, 1)).is_err());
        assert_eq!(feed.waiting(), 1);
    }

    #[test]
    fn a_withdrawn_request_never_runs_and_leaves_its_room() {
        let (feed, mut lanes) = feed(2, 100, 1);
        let tickets = tickets();
        let gone = entry(&tickets, 1, 1);
        let ticket = gone.token.ticket;
        lanes[0].submit(gone).ok().unwrap();
        let pending = tickets.pending(ticket, {
            let feed = Arc::clone(&feed);
            move || feed.leave(1)
        });
        drop(pending);
        assert_eq!(feed.waiting(), 0);
        lanes[0].submit(entry(&tickets, 2, 1)).ok().unwrap();
        let batch = feed.next_batch(1, clock).unwrap();
        assert_eq!(batch.requests.len(), 1);
    }

    #[test]
    fn no_wake_up_is_lost_between_a_shard_and_two_sleeping_instances() {
        const COUNT: usize = 4_000;
        let (feed, mut lanes) = feed(1_000, 1_000_000, 1);
        let served = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for seat in 0..2 {
                let (feed, served) = (Arc::clone(&feed), &served);
                scope.spawn(move || {
                    while let Some(batch) = feed.next_batch(seat, clock) {
                        served.fetch_add(batch.requests.len(), Ordering::SeqCst);
                    }
                });
            }
            let tickets = tickets();
            for index in 0..COUNT {
                let mut next = entry(&tickets, index as u64, 1);
                while let Err(back) = lanes[0].submit(next) {
                    next = back;
                    std::thread::yield_now();
                }
                // Now and then let the instances fall asleep.
                while index % 64 == 0 && served.load(Ordering::SeqCst) <= index {
                    std::thread::yield_now();
                }
                tickets.drain();
            }
            feed.stop();
        });
        assert_eq!(served.load(Ordering::SeqCst), COUNT);
    }
}
