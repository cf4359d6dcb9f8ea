//! The rate limit at the queue: an instance takes a batch only when it was granted its resources. Until then requests
//! wait in the queue, where they may be cancelled and may grow into a larger batch, and never in front of the instance.

use std::sync::atomic::Ordering;

use crate::model_queue::ModelQueue;
use crate::model_queue::batcher::FormedBatch;
use crate::model_queue::locked::{LockedQueue, RequestClaims};
use crate::rate_limiter::RateLimiter;
use crate::sync::fence;
use base::time::Instant;

/// The outcome of an instance's attempt to take a batch.
pub(super) enum GateOutcome {
    /// Run this batch.
    Batch(FormedBatch),
    /// Wait to be woken: there is a batch, and its resources are not free.
    Blocked,
    /// There is no batch.
    Nothing,
}

impl ModelQueue {
    /// Takes a batch for the instance in a parking, whose last run has ended.
    pub(super) fn take_batch(&self, queue: &mut LockedQueue, instance_index: usize, now: Instant) -> GateOutcome {
        let claims = &mut RequestClaims(&self.admission);
        let Some((limiter, id)) = self.gate(instance_index) else {
            return queue
                .batcher
                .poll_batch(instance_index, now, claims)
                .map_or(GateOutcome::Nothing, GateOutcome::Batch);
        };
        let is_ready = queue.batcher.poll_ready(instance_index, now, claims);
        if !limiter.ask(id, is_ready) {
            return if is_ready { GateOutcome::Blocked } else { GateOutcome::Nothing };
        }
        debug_assert!(is_ready, "an instance without work does not run");
        let Some(batch) = queue.batcher.poll_batch(instance_index, now, claims) else {
            limiter.ask(id, false);
            return GateOutcome::Nothing;
        };
        let is_more_ready = queue.batcher.poll_ready(instance_index, now, claims);
        let siblings = self.parkings.all().filter(|_| !is_more_ready).filter_map(|parking| parking.rate_id());
        if limiter.start(id, siblings) {
            // Siblings that were blocked are idle now. Producers passed over them until now, so a request may be in a
            // ring with no instance woken for it.
            fence(Ordering::SeqCst);
            if queue.rings.iter().any(|ring| !ring.is_empty()) {
                self.parkings.wake_one();
            }
        }
        GateOutcome::Batch(batch)
    }

    /// The instance in a parking can run nothing for now: frees its resources for others.
    pub fn rest(&self, instance_index: usize) {
        if let Some((limiter, id)) = self.gate(instance_index) {
            limiter.ask(id, false);
        }
    }

    /// The instance in a parking takes no work from now on, or not for now: another one watches the
    /// time and takes its work.
    pub fn retire(&self, instance_index: usize) {
        self.lock().unwatch(instance_index);
        self.rest(instance_index);
        self.parkings.wake_one();
    }

    fn gate(&self, instance_index: usize) -> Option<(&RateLimiter, usize)> {
        Some((self.limiter.as_ref()?.limiter(), self.parkings.get(instance_index)?.rate_id()?))
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use super::*;
    use crate::completions::Completions;
    use crate::model_queue::poll::PollOutcome;
    use crate::model_queue::queue_producer::QueueProducer;
    use crate::parking::Parking;
    use crate::queued_request::{QueueRefusal, QueuedRequest};
    use crate::request_slots::RequestSlots;
    use crate::testing::now;
    use backend::InFlightState;
    use scheduler::rate::{Demand, Need};
    use scheduler::{Entry, Policy, QueueBounds, ShapeKey};

    fn request_slots() -> Rc<RequestSlots> {
        Rc::new(RequestSlots::new(Arc::new(Completions::new())))
    }

    fn entry(request_slots: &RequestSlots) -> Entry<QueuedRequest> {
        let (ticket, completions) = (request_slots.open().unwrap(), Arc::clone(request_slots.completions()));
        let token = QueuedRequest::plain(ticket, completions);
        let (shape_key, queued_at) = (ShapeKey::new(), now());
        Entry { token, rows: 1, shape_key, queued_at, priority: 0, timeout: Duration::ZERO, deadline: None }
    }

    fn submit(producer: &mut QueueProducer, entry: Entry<QueuedRequest>) -> Result<(), QueueRefusal> {
        if producer.submit(entry)? {
            producer.model_queue().wake();
        }
        Ok(())
    }

    /// Returns a model for each list; an instance for each number, which needs this much of one
    /// resource.
    fn models(needs: &[&[u64]]) -> (Vec<Arc<ModelQueue>>, Vec<QueueProducer>) {
        let need = |count: u64| Need { name: "r".to_owned(), is_global: false, count };
        let demand = |count: &u64| Demand { needs: vec![need(*count)], ..Demand::default() };
        let limiter = Arc::new(RateLimiter::new(Vec::new()));
        let model = |needs: &&[u64]| model(&limiter, &needs.iter().map(demand).collect::<Vec<_>>());
        needs.iter().map(model).unzip()
    }

    fn model(limiter: &Arc<RateLimiter>, demands: &[Demand]) -> (Arc<ModelQueue>, QueueProducer) {
        let registration = limiter.register(demands).unwrap();
        let parkings = registration.ids().map(|id| Arc::new(Parking::new(id.to_string()).limited(id))).collect();
        let policy = Policy { rows_max: 2, is_batched: true, ..Policy::default() };
        let bounds = QueueBounds { requests: 64, bytes: 64 };
        let (model_queue, mut producers) =
            ModelQueue::with_parkings(policy, bounds, 1, parkings, Some(registration), None);
        (model_queue, producers.remove(0))
    }

    fn polled(model_queue: &ModelQueue, parking: usize) -> &'static str {
        match model_queue.poll(parking, now, &InFlightState::default()) {
            PollOutcome::Batch(_) => "batch",
            PollOutcome::Blocked => "blocked",
            PollOutcome::Ended | PollOutcome::Nothing(_) | PollOutcome::Lost => "nothing",
        }
    }

    #[test]
    fn an_instance_that_waits_for_resources_while_another_serves_the_last_of_a_stopped_queue_is_woken_to_end() {
        let (model_queues, mut producers) = models(&[&[1, 1], &[1]]);
        let request_slots = request_slots();
        submit(&mut producers[1], entry(&request_slots)).ok().unwrap();
        assert_eq!(polled(&model_queues[1], 0), "batch");
        submit(&mut producers[0], entry(&request_slots)).ok().unwrap();
        model_queues[0].stop();
        for (instance_index, parking) in model_queues[0].parkings().enumerate() {
            parking.announce();
            assert_eq!(polled(&model_queues[0], instance_index), "blocked");
        }
        assert_eq!((polled(&model_queues[1], 0), polled(&model_queues[0], 0)), ("nothing", "batch"));
        assert!(model_queues[0].parking(1).unwrap().is_parked());
        assert_eq!(polled(&model_queues[0], 0), "nothing");
        assert!(!model_queues[0].parking(1).unwrap().is_parked(), "it ends too");
    }

    #[test]
    fn what_waits_for_resources_waits_in_the_queue_where_it_may_grow_and_be_withdrawn() {
        let (model_queues, mut producers) = models(&[&[1], &[1]]);
        let request_slots = request_slots();
        submit(&mut producers[0], entry(&request_slots)).ok().unwrap();
        submit(&mut producers[1], entry(&request_slots)).ok().unwrap();
        assert_eq!((polled(&model_queues[0], 0), polled(&model_queues[1], 0)), ("batch", "blocked"));
        submit(&mut producers[1], entry(&request_slots)).ok().unwrap();
        assert_eq!((polled(&model_queues[1], 0), model_queues[1].waiting()), ("blocked", 2));
        assert_eq!(polled(&model_queues[0], 0), "nothing", "its run is over");
        assert_eq!(
            (polled(&model_queues[1], 0), model_queues[1].waiting(), model_queues[1].executions()),
            ("batch", 0, 1)
        );

        let gone = entry(&request_slots);
        let (ticket, room) = (gone.token.ticket, gone.token.room());
        submit(&mut producers[0], gone).ok().unwrap();
        assert_eq!(polled(&model_queues[0], 0), "blocked");
        let model_queue = Arc::clone(&model_queues[0]);
        drop(request_slots.pending(ticket, move || model_queue.leave(room)));
        assert_eq!(polled(&model_queues[1], 0), "nothing");
        assert_eq!(polled(&model_queues[0], 0), "nothing", "it may run, and has nothing to");
        submit(&mut producers[1], entry(&request_slots)).ok().unwrap();
        assert_eq!(polled(&model_queues[1], 0), "batch", "and holds nothing for that");
    }

    #[test]
    fn an_instance_that_needs_less_runs_while_another_waits() {
        let (model_queues, mut producers) = models(&[&[2, 0], &[2]]);
        let request_slots = request_slots();
        submit(&mut producers[1], entry(&request_slots)).ok().unwrap();
        assert_eq!(polled(&model_queues[1], 0), "batch");
        submit(&mut producers[0], entry(&request_slots)).ok().unwrap();
        assert_eq!((polled(&model_queues[0], 0), polled(&model_queues[0], 1)), ("blocked", "batch"));
        assert_eq!(polled(&model_queues[1], 0), "nothing");
        submit(&mut producers[1], entry(&request_slots)).ok().unwrap();
        assert_eq!(polled(&model_queues[1], 0), "batch", "the one that waited had no work left, and holds nothing");
    }

    #[test]
    fn an_instance_that_rests_or_is_lost_holds_nothing() {
        let (model_queues, mut producers) = models(&[&[1], &[1]]);
        let request_slots = request_slots();
        for end in [ModelQueue::rest, ModelQueue::retire] {
            submit(&mut producers[0], entry(&request_slots)).ok().unwrap();
            submit(&mut producers[1], entry(&request_slots)).ok().unwrap();
            assert_eq!((polled(&model_queues[0], 0), polled(&model_queues[1], 0)), ("batch", "blocked"));
            end(&model_queues[0], 0);
            assert_eq!((polled(&model_queues[1], 0), polled(&model_queues[1], 0)), ("batch", "nothing"));
        }
    }

    #[test]
    fn loading_or_unloading_a_model_wakes_instances_that_wait_for_the_resources_it_frees() {
        let need = |count: u64| Need { name: "r".to_owned(), is_global: false, count };
        let demand = |count: u64| Demand { needs: vec![need(count)], ..Demand::default() };
        let limiter = Arc::new(RateLimiter::new(Vec::new()));
        let (old, mut old_producer) = model(&limiter, &[demand(1)]);
        let (model_queue, mut producer) = model(&limiter, &[demand(1)]);
        let request_slots = request_slots();
        let served = AtomicUsize::new(0);
        let wait_for = |count: usize| {
            while served.load(Ordering::SeqCst) < count {
                std::thread::yield_now();
            }
        };
        std::thread::scope(|scope| {
            let of_worker = Arc::clone(&model_queue);
            let served = &served;
            scope.spawn(move || {
                while of_worker.next_batch(0, now).is_some() {
                    served.fetch_add(1, Ordering::SeqCst);
                }
            });
            submit(&mut old_producer, entry(&request_slots)).ok().unwrap();
            assert_eq!(polled(&old, 0), "batch");
            submit(&mut producer, entry(&request_slots)).ok().unwrap();
            while !model_queue.parking(0).unwrap().is_parked() {
                std::thread::yield_now();
            }
            std::thread::park_timeout(Duration::from_millis(5));
            assert_eq!(model_queue.waiting(), 1, "it waits for the other");
            let large = limiter.register(&[demand(2)]).unwrap();
            wait_for(1);
            drop(large);
            submit(&mut producer, entry(&request_slots)).ok().unwrap();
            std::thread::park_timeout(Duration::from_millis(5));
            assert_eq!(model_queue.waiting(), 1, "there is one again, which the other has");
            drop((old, old_producer));
            wait_for(2);
            model_queue.stop();
        });
    }

    /// Sends requests to all models at once, `count` to each, from a thread each; returns the most
    /// of the resource that was taken at any time.
    fn run_all(
        model_queues: &[Arc<ModelQueue>],
        producers: Vec<QueueProducer>,
        needs: &[&[u64]],
        count: usize,
    ) -> usize {
        let (taken, most, served) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for (model_queue, needs) in model_queues.iter().zip(needs) {
                for (parking, need) in needs.iter().enumerate() {
                    let (taken, most, served) = (&taken, &most, &served);
                    scope.spawn(move || {
                        while let Some(batch) = model_queue.next_batch(parking, now) {
                            let sum = taken.fetch_add(*need as usize, Ordering::SeqCst) + *need as usize;
                            most.fetch_max(sum, Ordering::SeqCst);
                            std::thread::yield_now();
                            served.fetch_add(batch.requests.len(), Ordering::SeqCst);
                            taken.fetch_sub(*need as usize, Ordering::SeqCst);
                        }
                    });
                }
            }
            let shards = producers.into_iter().map(|mut producer| {
                scope.spawn(move || {
                    let request_slots = request_slots();
                    for index in 0..count {
                        loop {
                            let next = entry(&request_slots);
                            let ticket = next.token.ticket;
                            if submit(&mut producer, next).is_ok() {
                                break;
                            }
                            request_slots.release(ticket);
                            std::thread::yield_now();
                        }
                        request_slots.drain();
                        // Lets the instances fall asleep now and then.
                        while index % 64 == 0 && producer.model_queue().waiting() > 0 {
                            std::thread::yield_now();
                        }
                    }
                })
            });
            shards.collect::<Vec<_>>().into_iter().for_each(|shard| shard.join().unwrap());
            while served.load(Ordering::SeqCst) < count * model_queues.len() {
                std::thread::yield_now();
            }
            model_queues.iter().for_each(|model_queue| model_queue.stop());
        });
        most.load(Ordering::SeqCst)
    }

    #[test]
    fn no_wake_up_is_lost_and_nothing_overcommitted_among_models_that_share_a_resource() {
        for needs in [&[&[1_u64, 1][..], &[1, 1]][..], &[&[2, 1, 0], &[2], &[1, 1]]] {
            let (model_queues, producers) = models(needs);
            let limit = needs.concat().into_iter().max().unwrap() as usize;
            let most = run_all(&model_queues, producers, needs, 3_000);
            assert_eq!(most, limit, "{needs:?}");
        }
    }

    #[test]
    fn instances_share_the_work_evenly_and_one_that_is_passive_has_none() {
        let parkings = ["a", "b", "c", "d"].map(|name| Parking::new(name.to_owned()));
        let parkings =
            parkings.into_iter().map(|parking| if parking.name() == "d" { parking.passive() } else { parking });
        let policy = Policy::default();
        let bounds = QueueBounds { requests: 8, bytes: 8 };
        let (model_queue, mut producers) =
            ModelQueue::with_parkings(policy, bounds, 1, parkings.map(Arc::new).collect(), None, None);
        let served = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for (index, parking) in model_queue.parkings().enumerate() {
                let (model_queue, served) = (&model_queue, &served);
                scope.spawn(move || {
                    if parking.is_passive() {
                        return model_queue.wait_stopped(index, now, None);
                    }
                    while let Some(batch) = model_queue.next_batch(index, now) {
                        served.fetch_add(batch.requests.len(), Ordering::SeqCst);
                    }
                });
            }
            let request_slots = request_slots();
            // One at a time: a single instance could do it all.
            for index in 0..900 {
                submit(&mut producers[0], entry(&request_slots)).ok().unwrap();
                while served.load(Ordering::SeqCst) <= index {
                    std::thread::yield_now();
                }
                request_slots.drain();
                while model_queue.parkings().any(|parking| !parking.is_parked()) {
                    std::thread::yield_now();
                }
            }
            model_queue.stop();
        });
        let batches: Vec<_> = model_queue.parkings().map(|parking| parking.batches()).collect();
        // An instance that is not quite asleep again may take a batch out of turn.
        assert!(batches[..3].iter().all(|count| (200..=400).contains(count)), "{batches:?}");
        assert_eq!((batches.iter().sum::<u64>(), batches[3]), (900, 0));
    }
}
