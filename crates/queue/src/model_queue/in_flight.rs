//! The wait of an instance for work: for its batches in flight and for the queue at the same time.
//! It takes no batch from the queue while it has no room for one in flight.

use std::os::fd::OwnedFd;

use crate::model_queue::ModelQueue;
use crate::model_queue::poll::PollOutcome;
use backend::{Batch, InFlightState};
use base::time::{Clock, Instant};

/// The next step of a worker.
pub enum NextWork {
    /// Run this batch.
    Batch(Batch),
    /// End: the queue was stopped, nothing waits and nothing is in flight.
    Ended,
    /// Recreate the instance, which was lost.
    Lost,
}

/// A step that a worker may take at once.
pub enum WorkPoll {
    /// Sleep until it is woken, at most until this instant.
    Sleep(Option<Instant>),
    /// Do this work.
    Work(NextWork),
}

impl ModelQueue {
    /// Returns the next batch for the instance in a parking; sleeps until there is one. `None` once
    /// the queue was stopped and nothing waits.
    pub fn next_batch(&self, instance_index: usize, clock: Clock) -> Option<Batch> {
        match self.next_beside(instance_index, clock, &mut InFlightState::default, None) {
            NextWork::Batch(batch) => Some(batch),
            NextWork::Ended | NextWork::Lost => None,
        }
    }

    /// Returns the next work of the instance in a parking; sleeps until there is some.
    /// `poll_flight` answers the ended batches in flight, and says whether there is room for
    /// another; the end of one wakes the parking, or makes the `file` readable, on which the thread
    /// sleeps too.
    pub fn next_beside(
        &self,
        instance_index: usize,
        clock: Clock,
        poll_flight: &mut dyn FnMut() -> InFlightState,
        file: Option<&OwnedFd>,
    ) -> NextWork {
        let Some(parking) = self.parkings.get(instance_index) else { return NextWork::Ended };
        parking.take(file.is_some());
        loop {
            match self.poll_beside(instance_index, clock, poll_flight) {
                WorkPoll::Work(work) => return work,
                WorkPoll::Sleep(until) => parking.park(until, clock, file),
            }
        }
    }

    /// [`Self::next_beside`] without the sleep: returns the next work, or the instant until which
    /// the thread may sleep, whose parking is marked then.
    pub(crate) fn poll_beside(
        &self,
        instance_index: usize,
        clock: Clock,
        poll_flight: &mut dyn FnMut() -> InFlightState,
    ) -> WorkPoll {
        let Some(parking) = self.parkings.get(instance_index) else { return WorkPoll::Work(NextWork::Ended) };
        match self.poll_with_room(instance_index, clock, &poll_flight()) {
            PollOutcome::Batch(batch) => return WorkPoll::Work(NextWork::Batch(batch)),
            PollOutcome::Ended => return WorkPoll::Work(NextWork::Ended),
            PollOutcome::Lost => return self.lose(instance_index),
            PollOutcome::Nothing(_) | PollOutcome::Blocked => {}
        }
        // The sleeper's half of the handshake with `QueueProducer::submit`, and with the end of a
        // batch in flight: this second poll sees the request or the end, or the thread that
        // published it sees us parked.
        parking.announce();
        let work = match self.poll_with_room(instance_index, clock, &poll_flight()) {
            PollOutcome::Nothing(until) => return WorkPoll::Sleep(until),
            PollOutcome::Blocked => return WorkPoll::Sleep(None),
            PollOutcome::Ended => {
                parking.clear_parked();
                return WorkPoll::Work(NextWork::Ended);
            }
            PollOutcome::Batch(batch) => NextWork::Batch(batch),
            PollOutcome::Lost => return self.lose(instance_index),
        };
        // The mark was gone already: somebody woke us, perhaps for more than this poll took. That wake-up belongs to
        // another instance.
        if !parking.clear_parked() {
            self.parkings.wake_one();
        }
        WorkPoll::Work(work)
    }

    /// An instance was lost. To make another may take minutes, so its duties go to others now: the
    /// time that it watched, its resources, and a wake-up that it had and did not use.
    fn lose(&self, instance_index: usize) -> WorkPoll {
        if let Some(parking) = self.parkings.get(instance_index) {
            parking.clear_parked();
        }
        self.retire(instance_index);
        WorkPoll::Work(NextWork::Lost)
    }

    /// Sleeps in a parking that is given no work meanwhile, until the queue is stopped or the instance leaves, at most
    /// until an instant.
    pub fn wait_stopped(&self, instance_index: usize, clock: Clock, until: Option<Instant>) {
        let Some(parking) = self.parkings.get(instance_index) else { return };
        parking.take(false);
        // A wake-up for work must go to another instance.
        parking.set_full(true);
        let is_over = || self.is_stopped() || self.is_leaving(instance_index);
        while !is_over() && until.is_none_or(|until| clock() < until) {
            parking.announce();
            if is_over() {
                parking.clear_parked();
            }
            parking.park(until, clock, None);
        }
        parking.set_full(false);
    }

    /// Polls for a batch if there is room for one.
    fn poll_with_room(&self, instance_index: usize, clock: Clock, flight: &InFlightState) -> PollOutcome {
        let Some(parking) = self.parkings.get(instance_index) else { return PollOutcome::Ended };
        self.counters.set_ahead(instance_index, flight.ahead);
        if flight.is_lost {
            parking.set_full(false);
            return PollOutcome::Lost;
        }
        debug_assert!(flight.has_room || flight.batches > 0, "an instance with nothing in flight has room");
        // With a rate limit one batch at a time: it has the instance's resources until it ends.
        let is_full = !flight.has_room || (flight.batches > 0 && parking.rate_id().is_some());
        // Before it parks: a wake-up for work that it cannot take must go to another instance.
        parking.set_full(is_full);
        let again = flight.look_again.map(|pause| clock() + pause);
        if is_full {
            return PollOutcome::Nothing(again);
        }
        match self.poll(instance_index, clock, flight) {
            PollOutcome::Ended | PollOutcome::Blocked if again.is_some() => PollOutcome::Nothing(again),
            PollOutcome::Nothing(until) => PollOutcome::Nothing(earlier(until, again)),
            polled => polled,
        }
    }
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}
