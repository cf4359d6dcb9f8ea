//! Between an instance and the queue of its model version where there is a rate limit: an instance
//! takes a batch only with its resources in hand, so that requests wait in the queue, where they
//! may be cancelled and may grow into a larger batch, and never in front of the instance.

use std::sync::atomic::Ordering;

use crate::queue::model_queue::batcher::FormedBatch;
use crate::queue::model_queue::{LockedQueue, ModelQueue, RequestClaims};
use crate::queue::rate_limiter::RateLimiter;
use crate::queue::sync::fence;
use crate::time::Instant;

/// What an instance may do now.
pub(super) enum GateOutcome {
    /// Run this.
    Batch(FormedBatch),
    /// Wait to be woken: there is a batch, and its resources are not free.
    Blocked,
    /// There is no batch.
    Nothing,
}

impl ModelQueue {
    /// Takes a batch for the instance in a seat, whose last run is over.
    pub(super) fn take(&self, lanes: &mut LockedQueue, seat_index: usize, now: Instant) -> GateOutcome {
        let claims = &mut RequestClaims(self);
        let Some((limiter, id)) = self.gate(seat_index) else {
            return lanes.former.poll_batch(seat_index, now, claims).map_or(GateOutcome::Nothing, GateOutcome::Batch);
        };
        let is_ready = lanes.former.poll_ready(seat_index, now, claims);
        if !limiter.ask(id, is_ready) {
            return if is_ready { GateOutcome::Blocked } else { GateOutcome::Nothing };
        }
        let Some(batch) = lanes.former.poll_batch(seat_index, now, claims) else {
            limiter.ask(id, false);
            return GateOutcome::Nothing;
        };
        let is_more_ready = lanes.former.poll_ready(seat_index, now, claims);
        let siblings = self.seats.iter().filter(|_| !is_more_ready).filter_map(|seat| seat.rate_id());
        if limiter.start(id, siblings) {
            // They are idle from now on, and were passed over by whoever queued until now.
            fence(Ordering::SeqCst);
            if lanes.rings.iter().any(|ring| !ring.is_empty()) {
                self.wake_one();
            }
        }
        GateOutcome::Batch(batch)
    }

    /// The instance in a seat can run nothing for now: what it holds is free for others.
    pub fn rest(&self, seat_index: usize) {
        if let Some((limiter, id)) = self.gate(seat_index) {
            limiter.ask(id, false);
        }
    }

    /// The instance in a seat runs nothing any more, and watches no delay: another does.
    pub fn retire(&self, seat_index: usize) {
        let mut lanes = self.lock();
        lanes.watch = lanes.watch.take().filter(|watch| watch.seat_index != seat_index);
        drop(lanes);
        self.rest(seat_index);
        self.wake_one();
    }

    fn gate(&self, seat_index: usize) -> Option<(&RateLimiter, usize)> {
        Some((self.limiter.as_ref()?.limiter(), self.seats.get(seat_index)?.rate_id()?))
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use super::*;
    use crate::backend::InFlightState;
    use crate::scheduler::rate::{Demand, Need};
    use crate::scheduler::{Entry, Policy, QueueBounds, ShapeKey};
    use crate::runtime::clock::now;
    use crate::queue::model_queue::{Parking, PollOutcome, QueueProducer, QueueRefusal, QueuedRequest};
    use crate::queue::completions::Completions;
    use crate::shard::request_slots::RequestSlots;

    fn tickets() -> Rc<RequestSlots> {
        Rc::new(RequestSlots::new(Arc::new(Completions::new())))
    }

    fn entry(tickets: &RequestSlots) -> Entry<QueuedRequest> {
        let (ticket, inbox) = (tickets.open().unwrap(), Arc::clone(tickets.inbox()));
        let token = QueuedRequest::plain(ticket, inbox);
        let (shape_key, queued_at) = (ShapeKey::new(), now());
        Entry { token, rows: 1, shape_key, queued_at, priority: 0, timeout: Duration::ZERO, deadline: None }
    }

    fn submit(lane: &mut QueueProducer, entry: Entry<QueuedRequest>) -> Result<(), QueueRefusal> {
        if lane.submit(entry)? {
            lane.feed().wake();
        }
        Ok(())
    }

    /// A model for each list; an instance for each number, which needs so much of one resource.
    fn models(needs: &[&[u64]]) -> (Vec<Arc<ModelQueue>>, Vec<QueueProducer>) {
        let need = |count: u64| Need { name: "r".to_owned(), is_global: false, count };
        let demand = |count: &u64| Demand { needs: vec![need(*count)], ..Demand::default() };
        let limiter = Arc::new(RateLimiter::new(Vec::new()));
        let model = |needs: &&[u64]| model(&limiter, &needs.iter().map(demand).collect::<Vec<_>>());
        needs.iter().map(model).unzip()
    }

    fn model(limiter: &Arc<RateLimiter>, demands: &[Demand]) -> (Arc<ModelQueue>, QueueProducer) {
        let registration = limiter.register(demands).unwrap();
        let seats = registration.ids().map(|id| Arc::new(Parking::new(id.to_string()).limited(id))).collect();
        let policy = Policy { rows_max: 2, is_batched: true, ..Policy::default() };
        let bounds = QueueBounds { requests: 64, bytes: 64 };
        let (feed, mut lanes) = ModelQueue::with_seats(policy, bounds, 1, seats, Some(registration), None);
        (feed, lanes.remove(0))
    }

    fn polled(feed: &ModelQueue, seat: usize) -> &'static str {
        match feed.poll(seat, now, &InFlightState::default()) {
            PollOutcome::Batch(_) => "batch",
            PollOutcome::Blocked => "blocked",
            PollOutcome::Ended | PollOutcome::Nothing(_) | PollOutcome::Lost => "nothing",
        }
    }

    #[test]
    fn who_waits_for_resources_when_another_serves_the_last_of_a_stopped_feed_is_told_of_the_end() {
        let (feeds, mut lanes) = models(&[&[1, 1], &[1]]);
        let tickets = tickets();
        submit(&mut lanes[1], entry(&tickets)).ok().unwrap();
        assert_eq!(polled(&feeds[1], 0), "batch");
        submit(&mut lanes[0], entry(&tickets)).ok().unwrap();
        feeds[0].stop();
        for (seat_index, seat) in feeds[0].seats().iter().enumerate() {
            seat.set_parked(true);
            assert_eq!(polled(&feeds[0], seat_index), "blocked");
        }
        assert_eq!((polled(&feeds[1], 0), polled(&feeds[0], 0)), ("nothing", "batch"));
        assert!(feeds[0].seats()[1].is_parked());
        assert_eq!(polled(&feeds[0], 0), "nothing");
        assert!(!feeds[0].seats()[1].is_parked(), "it ends too");
    }

    #[test]
    fn what_waits_for_resources_waits_in_the_queue_where_it_may_grow_and_be_withdrawn() {
        let (feeds, mut lanes) = models(&[&[1], &[1]]);
        let tickets = tickets();
        submit(&mut lanes[0], entry(&tickets)).ok().unwrap();
        submit(&mut lanes[1], entry(&tickets)).ok().unwrap();
        assert_eq!((polled(&feeds[0], 0), polled(&feeds[1], 0)), ("batch", "blocked"));
        submit(&mut lanes[1], entry(&tickets)).ok().unwrap();
        assert_eq!((polled(&feeds[1], 0), feeds[1].waiting()), ("blocked", 2));
        assert_eq!(polled(&feeds[0], 0), "nothing", "its run is over");
        assert_eq!((polled(&feeds[1], 0), feeds[1].waiting(), feeds[1].executions()), ("batch", 0, 1));

        let gone = entry(&tickets);
        let (ticket, room) = (gone.token.ticket, gone.token.room());
        submit(&mut lanes[0], gone).ok().unwrap();
        assert_eq!(polled(&feeds[0], 0), "blocked");
        let feed = Arc::clone(&feeds[0]);
        drop(tickets.pending(ticket, move || feed.leave(room)));
        assert_eq!(polled(&feeds[1], 0), "nothing");
        assert_eq!(polled(&feeds[0], 0), "nothing", "it may run, and has nothing to");
        submit(&mut lanes[1], entry(&tickets)).ok().unwrap();
        assert_eq!(polled(&feeds[1], 0), "batch", "and holds nothing for that");
    }

    #[test]
    fn an_instance_that_needs_less_runs_while_another_waits() {
        let (feeds, mut lanes) = models(&[&[2, 0], &[2]]);
        let tickets = tickets();
        submit(&mut lanes[1], entry(&tickets)).ok().unwrap();
        assert_eq!(polled(&feeds[1], 0), "batch");
        submit(&mut lanes[0], entry(&tickets)).ok().unwrap();
        assert_eq!((polled(&feeds[0], 0), polled(&feeds[0], 1)), ("blocked", "batch"));
        assert_eq!(polled(&feeds[1], 0), "nothing");
        submit(&mut lanes[1], entry(&tickets)).ok().unwrap();
        assert_eq!(polled(&feeds[1], 0), "batch", "the one that waited had no work left, and holds nothing");
    }

    #[test]
    fn an_instance_that_rests_or_is_lost_holds_nothing() {
        let (feeds, mut lanes) = models(&[&[1], &[1]]);
        let tickets = tickets();
        for end in [ModelQueue::rest, ModelQueue::retire] {
            submit(&mut lanes[0], entry(&tickets)).ok().unwrap();
            submit(&mut lanes[1], entry(&tickets)).ok().unwrap();
            assert_eq!((polled(&feeds[0], 0), polled(&feeds[1], 0)), ("batch", "blocked"));
            end(&feeds[0], 0);
            assert_eq!((polled(&feeds[1], 0), polled(&feeds[1], 0)), ("batch", "nothing"));
        }
    }

    #[test]
    fn a_model_that_comes_or_goes_wakes_those_who_wait_for_what_that_frees() {
        let need = |count: u64| Need { name: "r".to_owned(), is_global: false, count };
        let demand = |count: u64| Demand { needs: vec![need(count)], ..Demand::default() };
        let limiter = Arc::new(RateLimiter::new(Vec::new()));
        let (old, mut of_old) = model(&limiter, &[demand(1)]);
        let (feed, mut lane) = model(&limiter, &[demand(1)]);
        let tickets = tickets();
        let served = AtomicUsize::new(0);
        let wait_for = |count: usize| {
            while served.load(Ordering::SeqCst) < count {
                std::thread::yield_now();
            }
        };
        std::thread::scope(|scope| {
            let of_feed = Arc::clone(&feed);
            let served = &served;
            scope.spawn(move || {
                while of_feed.next_batch(0, now).is_some() {
                    served.fetch_add(1, Ordering::SeqCst);
                }
            });
            submit(&mut of_old, entry(&tickets)).ok().unwrap();
            assert_eq!(polled(&old, 0), "batch");
            submit(&mut lane, entry(&tickets)).ok().unwrap();
            while !feed.seats()[0].is_parked() {
                std::thread::yield_now();
            }
            std::thread::park_timeout(Duration::from_millis(5));
            assert_eq!(feed.waiting(), 1, "it waits for the other");
            let large = limiter.register(&[demand(2)]).unwrap();
            wait_for(1);
            drop(large);
            submit(&mut lane, entry(&tickets)).ok().unwrap();
            std::thread::park_timeout(Duration::from_millis(5));
            assert_eq!(feed.waiting(), 1, "there is one again, which the other has");
            drop((old, of_old));
            wait_for(2);
            feed.stop();
        });
    }

    /// Requests to all models at once, so many to each, from a thread each; answers the most of
    /// the resource that was taken at any time.
    fn run_all(feeds: &[Arc<ModelQueue>], lanes: Vec<QueueProducer>, needs: &[&[u64]], count: usize) -> usize {
        let (taken, most, served) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for (feed, needs) in feeds.iter().zip(needs) {
                for (seat, need) in needs.iter().enumerate() {
                    let (taken, most, served) = (&taken, &most, &served);
                    scope.spawn(move || {
                        while let Some(batch) = feed.next_batch(seat, now) {
                            let sum = taken.fetch_add(*need as usize, Ordering::SeqCst) + *need as usize;
                            most.fetch_max(sum, Ordering::SeqCst);
                            std::thread::yield_now();
                            served.fetch_add(batch.requests.len(), Ordering::SeqCst);
                            taken.fetch_sub(*need as usize, Ordering::SeqCst);
                        }
                    });
                }
            }
            let shards = lanes.into_iter().map(|mut lane| {
                scope.spawn(move || {
                    let tickets = tickets();
                    for index in 0..count {
                        loop {
                            let next = entry(&tickets);
                            let ticket = next.token.ticket;
                            if submit(&mut lane, next).is_ok() {
                                break;
                            }
                            tickets.release(ticket);
                            std::thread::yield_now();
                        }
                        tickets.drain();
                        // Now and then let the instances fall asleep.
                        while index % 64 == 0 && lane.feed().waiting() > 0 {
                            std::thread::yield_now();
                        }
                    }
                })
            });
            shards.collect::<Vec<_>>().into_iter().for_each(|shard| shard.join().unwrap());
            while served.load(Ordering::SeqCst) < count * feeds.len() {
                std::thread::yield_now();
            }
            feeds.iter().for_each(|feed| feed.stop());
        });
        most.load(Ordering::SeqCst)
    }

    #[test]
    fn no_wake_up_is_lost_and_nothing_overcommitted_among_models_that_share_a_resource() {
        for needs in [&[&[1_u64, 1][..], &[1, 1]][..], &[&[2, 1, 0], &[2], &[1, 1]]] {
            let (feeds, lanes) = models(needs);
            let limit = needs.concat().into_iter().max().unwrap() as usize;
            let most = run_all(&feeds, lanes, needs, 3_000);
            assert_eq!(most, limit, "{needs:?}");
        }
    }

    #[test]
    fn instances_share_the_work_evenly_and_one_that_is_passive_has_none() {
        let seats = ["a", "b", "c", "d"].map(|name| Parking::new(name.to_owned()));
        let seats = seats.into_iter().map(|seat| if seat.name() == "d" { seat.passive() } else { seat });
        let policy = Policy::default();
        let bounds = QueueBounds { requests: 8, bytes: 8 };
        let (feed, mut lanes) = ModelQueue::with_seats(policy, bounds, 1, seats.map(Arc::new).collect(), None, None);
        let served = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for (index, seat) in feed.seats().iter().enumerate() {
                let (feed, served) = (&feed, &served);
                scope.spawn(move || {
                    if seat.is_passive() {
                        return feed.wait_stopped(index, now);
                    }
                    while let Some(batch) = feed.next_batch(index, now) {
                        served.fetch_add(batch.requests.len(), Ordering::SeqCst);
                    }
                });
            }
            let tickets = tickets();
            // One at a time: a single instance could do it all.
            for index in 0..900 {
                submit(&mut lanes[0], entry(&tickets)).ok().unwrap();
                while served.load(Ordering::SeqCst) <= index {
                    std::thread::yield_now();
                }
                tickets.drain();
                while feed.seats().iter().any(|seat| !seat.is_parked()) {
                    std::thread::yield_now();
                }
            }
            feed.stop();
        });
        let batches: Vec<_> = feed.seats().iter().map(|seat| seat.batches()).collect();
        // One that is not quite asleep again may take a batch out of turn.
        assert!(batches[..3].iter().all(|count| (200..=400).contains(count)), "{batches:?}");
        assert_eq!((batches.iter().sum::<u64>(), batches[3]), (900, 0));
    }
}
