//! One poll of the queue by an instance: its last run is taken into account, arrived requests are
//! drained, and a batch is formed if there is one.

use crate::model_queue::ModelQueue;
use crate::model_queue::batcher::{Batcher, FormedBatch};
use crate::model_queue::locked::LockedQueue;
use crate::model_queue::rate_gate::GateOutcome;
use crate::parking::InstanceStage;
use crate::sync::{self, MutexGuard};
use backend::{Batch, InFlightState};
use base::time::{Clock, Instant};

/// The outcome of a poll for an instance.
pub(super) enum PollOutcome {
    Batch(Batch),
    /// The queue was stopped and nothing waits: the instance ends.
    Ended,
    /// No batch yet: the instance sleeps, until this instant if it is the one that watches the
    /// time.
    Nothing(Option<Instant>),
    /// There is a batch, and the instance sleeps until its rate limiter resources are free.
    Blocked,
    /// The instance was lost and must be recreated.
    Lost,
}

impl ModelQueue {
    pub(super) fn poll(&self, instance_index: usize, clock: Clock, flight: &InFlightState) -> PollOutcome {
        let now = clock();
        let mut queue = self.lock();
        self.handle_run(instance_index, &mut queue.batcher, now, flight);
        self.handle_released(&mut queue, now);
        // Before the rings are drained: nothing is queued after the stop, so a drain after it sees all.
        let is_stopped = self.is_stopped();
        // An instance that ends with the queue runs what waits, like all others.
        let is_leaving = !is_stopped && self.is_leaving(instance_index);
        let formed = loop {
            // It watches only while it sleeps: the watch of an earlier poll is over too, however
            // this one ends.
            queue.unwatch(instance_index);
            self.parkings.await_any();
            queue.drain(now, self);
            if is_stopped {
                queue.batcher.handle_drain();
            }
            self.refuse_ended_and_notify(&mut queue, instance_index, now);
            #[cfg(feature = "test-hooks")]
            if !is_stopped && queue.poll_held() {
                self.admission.handle_idle(instance_index);
                // Like tritonserver, it looks again and again.
                return PollOutcome::Nothing(Some(now + std::time::Duration::from_millis(10)));
            }
            // Requests that any instance can take are no longer for this one.
            if is_leaving && queue.batcher.is_vacant(instance_index) {
                return self.leave_queue(queue, instance_index, flight);
            }
            match self.take_batch(&mut queue, instance_index, now) {
                GateOutcome::Batch(formed) => break formed,
                GateOutcome::Blocked => {
                    drop(queue);
                    self.admission.handle_idle(instance_index);
                    // An instance that needs less may be idle.
                    self.parkings.wake_one();
                    return PollOutcome::Blocked;
                }
                // Taking a batch may have ended requests, and given its own sequences new work.
                GateOutcome::Nothing if self.refuse_ended_and_notify(&mut queue, instance_index, now) => continue,
                GateOutcome::Nothing if is_leaving => return self.leave_queue(queue, instance_index, flight),
                GateOutcome::Nothing => {}
            }
            self.admission.handle_idle(instance_index);
            // Only if it was stopped before this poll: one stopped since may have a batch that still waits to grow.
            if is_stopped && !queue.batcher.has_flights() {
                // Others may sleep for a batch in flight, or for resources to run what another
                // instance ran. An instance that still has a time to look again wakes no other: it
                // would wake itself, and again.
                if flight.look_again.is_none() {
                    self.parkings.wake_all();
                }
                return PollOutcome::Ended;
            }
            if let Some(until) = self.poll_sleep(&mut queue, instance_index) {
                return PollOutcome::Nothing(until);
            }
        };
        self.refuse_ended_and_notify(&mut queue, instance_index, now);
        let has_more = queue.has_more();
        let sinks = self.ordered_sinks(&formed);
        drop(queue);
        self.handle_batch(instance_index, &formed, flight.at_once, now);
        // After the lock is free: the woken instance would wait for it.
        if has_more {
            self.parkings.wake_one();
        }
        PollOutcome::Batch(self.assemble(formed, sinks, clock))
    }

    /// Returns the instant until which an instance without a batch may sleep, if it watches the time; `None` if it may not
    /// sleep, because a request has come.
    fn poll_sleep(&self, queue: &mut LockedQueue, instance_index: usize) -> Option<Option<Instant>> {
        let until = queue.watch(instance_index);
        if queue.watch.is_none() {
            return Some(until);
        }
        // Between here and sleep producers stay silent until enough rows came. A request that was queued before they
        // could read the number is in a ring now, so the rings are checked again after the fence.
        self.parkings.await_rows(queue.batcher.rows_wanted());
        queue.rings.iter().all(sync::Consumer::is_empty).then_some(until)
    }

    /// The instance in a parking takes a batch, and runs this many at the same time.
    fn handle_batch(&self, instance_index: usize, formed: &FormedBatch, at_once: usize, now: Instant) {
        self.counters.handle_batch(formed.released);
        if let Some(parking) = self.parkings.get(instance_index) {
            debug_assert!(!parking.is_passive(), "a passive instance takes no batch");
            parking.set_run(formed.size, now);
            parking.count_batch();
            // Least recently run first; with a rate limit the limiter sets the turn.
            if self.limiter.is_none() {
                parking.set_turn(self.executions() as u64);
            }
        }
        if !self.is_leaving(instance_index) {
            let at_once = u32::try_from(at_once).unwrap_or(u32::MAX);
            self.admission.handle_batch(instance_index, formed.size, at_once, now);
        }
    }

    /// Returns true if the instance takes no other work: others have it.
    pub(crate) fn is_leaving(&self, instance_index: usize) -> bool {
        let stage = self.parkings.get(instance_index).map(|parking| parking.stage());
        matches!(stage, Some(InstanceStage::Leaving | InstanceStage::Ending | InstanceStage::Gone))
    }

    /// An instance that is leaving has nothing to run: it ends, unless batches are in flight or sequences may go on.
    fn leave_queue(
        &self,
        mut queue: MutexGuard<'_, LockedQueue>,
        instance_index: usize,
        flight: &InFlightState,
    ) -> PollOutcome {
        let is_over = flight.batches == 0 && queue.batcher.is_vacant(instance_index);
        if is_over {
            queue.leaving.retain(|leaving| *leaving != instance_index);
            self.parkings.get(instance_index).into_iter().for_each(|parking| parking.set_stage(InstanceStage::Ending));
        }
        drop(queue);
        // It may have been woken for a request that another instance takes, or have watched the time.
        self.parkings.wake_one();
        if is_over { PollOutcome::Ended } else { PollOutcome::Nothing(None) }
    }

    /// The instance in a parking is back from a batch, if it had one. While batches are in flight,
    /// only the end of one shows its duration.
    fn handle_run(&self, instance_index: usize, batcher: &mut Batcher, now: Instant, flight: &InFlightState) {
        let Some(parking) = self.parkings.get(instance_index) else { return };
        if flight.batches == 0 {
            parking.handle_idle(now);
        }
        let ran = parking.take_run().filter(|_| flight.batches == 0).map(|(rows, began)| (rows, now.since(began)));
        let Some((rows, took)) = flight.ended_batch.or(ran) else { return };
        batcher.handle_run(instance_index, rows, took, now);
        let was_alone = flight.ended_batch.is_none() || flight.was_alone;
        if was_alone {
            batcher.handle_lone_run(rows, took, now);
        }
        if let Batcher::Queue(scheduler) = &*batcher {
            if was_alone {
                self.counters.handle_row_costs(scheduler.row_costs());
            }
            self.admission.handle_times(scheduler);
            self.row_shares.iter().for_each(|row_shares| row_shares.handle_times(scheduler.times()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::completions::Completions;
    use crate::queued_request::QueuedRequest;
    use crate::request_slots::RequestSlots;
    use base::metrics::RowCostFigures;
    use scheduler::{Entry, Policy, QueueBounds, ShapeKey};

    static MICROS: AtomicU64 = AtomicU64::new(0);

    fn clock() -> Instant {
        Instant::from_micros(MICROS.load(Ordering::Relaxed))
    }

    #[test]
    fn runs_of_an_instance_become_what_a_row_costs_unless_they_overlap() {
        let policy = Policy { rows_max: 4, is_batched: true, ..Policy::default() };
        let (model_queue, mut producers) = ModelQueue::new(policy, QueueBounds { requests: 16, bytes: 1000 }, 1, 1);
        let request_slots = RequestSlots::new(Arc::new(Completions::new()));
        let mut run = |took: u64, flight: InFlightState| {
            let token = QueuedRequest::plain(request_slots.open().unwrap(), Arc::clone(request_slots.completions()));
            let (shape_key, timeout, queued_at) = (ShapeKey::new(), Duration::ZERO, clock());
            let entry = Entry { token, rows: 1, shape_key, queued_at, priority: 0, timeout, deadline: None };
            producers[0].submit(entry).ok().unwrap();
            let PollOutcome::Batch(_) = model_queue.poll(0, clock, &flight) else { panic!("one waits") };
            MICROS.fetch_add(took, Ordering::Relaxed);
        };
        let overlapping =
            InFlightState { ended_batch: Some((1, Duration::from_micros(900))), ..InFlightState::default() };
        (0..10).for_each(|_| run(900, overlapping));
        assert_eq!(model_queue.row_costs(), None);
        (0..7).for_each(|_| run(300, InFlightState::default()));
        let figures = |micros: u64| {
            let costs = vec![(1, Duration::from_micros(micros))];
            Some(RowCostFigures { chosen: 4, costs })
        };
        assert_eq!(model_queue.row_costs(), figures(300));
        // A process that runs one batch after the other.
        let in_turn = InFlightState { was_alone: true, ..overlapping };
        (0..20).for_each(|_| run(10, in_turn));
        assert_eq!(model_queue.row_costs(), figures(900));
    }
}
