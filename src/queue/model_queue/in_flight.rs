//! Instances that answer later than they run: how one of them waits for its batches in flight and for
//! the queue at the same time, and takes no batch from the queue while it has no room for it.

use std::sync::atomic::Ordering;

use crate::backend::{Batch, InFlightState};
use crate::queue::model_queue::{ModelQueue, PollOutcome};
use crate::queue::sync::fence;
use crate::time::{Clock, Instant};

/// What a worker does next.
pub enum NextWork {
    /// Run this.
    Batch(Batch),
    /// End: the queue was stopped, nothing waits and nothing is in flight.
    Ended,
    /// Make the instance anew.
    Lost,
}

impl ModelQueue {
    /// The next batch for the instance in a parking; sleeps until there is one. `poll_flight` answers what
    /// is done of those that it has in flight, and says whether there is room for another. Whoever it
    /// hears from, wakes its parking.
    pub fn next_beside(
        &self,
        instance_index: usize,
        clock: Clock,
        poll_flight: &mut dyn FnMut() -> InFlightState,
    ) -> NextWork {
        let Some(parking) = self.parkings.get(instance_index) else { return NextWork::Ended };
        parking.take();
        loop {
            match self.look(instance_index, clock, &poll_flight()) {
                PollOutcome::Batch(batch) => return NextWork::Batch(batch),
                PollOutcome::Ended => return NextWork::Ended,
                PollOutcome::Lost => return NextWork::Lost,
                PollOutcome::Nothing(_) | PollOutcome::Blocked => {}
            }
            // Dekker's handshake with `Lane::submit`, and with the end of a batch in flight: either we see
            // its entry, or its end, or it sees us parked.
            parking.set_parked(true);
            fence(Ordering::SeqCst);
            match self.look(instance_index, clock, &poll_flight()) {
                PollOutcome::Batch(batch) => {
                    // Whoever woke us meanwhile may have queued more than we took.
                    if !parking.set_parked(false) {
                        self.wake_one();
                    }
                    return NextWork::Batch(batch);
                }
                PollOutcome::Ended => {
                    parking.set_parked(false);
                    return NextWork::Ended;
                }
                PollOutcome::Lost => {
                    if !parking.set_parked(false) {
                        self.wake_one();
                    }
                    return NextWork::Lost;
                }
                PollOutcome::Nothing(until) => parking.park(until, clock),
                PollOutcome::Blocked => parking.park(None, clock),
            }
        }
    }

    /// Looks for a batch where there is room for one.
    fn look(&self, instance_index: usize, clock: Clock, flight: &InFlightState) -> PollOutcome {
        let Some(parking) = self.parkings.get(instance_index) else { return PollOutcome::Ended };
        if flight.is_lost {
            parking.set_full(false);
            return PollOutcome::Lost;
        }
        debug_assert!(flight.has_room || flight.batches > 0, "who has nothing in flight has room");
        // What a batch takes of resources it holds until it ends.
        let is_full = !flight.has_room || (flight.batches > 0 && parking.rate_id().is_some());
        // Before it parks: nobody wakes it for what it cannot take while another sleeps.
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
