//! The admission of requests to a model queue: the bounds on waiting requests, and the forecast by
//! which requests that would be late are refused at once (`--admission`).

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::queued_request::{QueueRefusal, RequestSize};
use base::limits::ADMISSION_SLACK;
use base::policy::AdmissionRule;
use base::time::Instant;
use scheduler::{Admission, Forecast, Policy, QueueBounds, Scheduler};

pub(super) struct AdmissionControl {
    admission: Admission,
    /// Present if requests that would be late are refused.
    forecast: Option<Forecast>,
    /// Requests that were refused because they would be late.
    late: AtomicUsize,
}

/// The instants at which a request's time is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RequestDue {
    /// The end of its time in the queue, if it is refused then.
    pub expires_at: Option<Instant>,
    /// The end of its time as a whole, if that counts.
    pub deadline: Option<Instant>,
}

impl AdmissionControl {
    /// `room` is the number of instances that there may be, with those that are added later.
    pub(super) fn new(policy: &Policy, bounds: QueueBounds, instances: usize, room: usize) -> Self {
        Self {
            admission: Admission::new(policy, bounds),
            forecast: (policy.admission != AdmissionRule::None)
                .then(|| Forecast::new(policy, instances).with_room(room)),
            late: AtomicUsize::new(0),
        }
    }

    /// Takes the share of the bounds for a request that comes now.
    pub(super) fn admit(&self, room: RequestSize, due: RequestDue, now: Instant) -> Result<(), QueueRefusal> {
        if let Some(forecast) = &self.forecast
            && let Some(refusal) = refusal(forecast, room, due, now)
        {
            self.late.fetch_add(1, Ordering::Relaxed);
            return Err(refusal);
        }
        self.admission.enter(room.level, room.size).map_err(|_| QueueRefusal::Full)?;
        if let Some(forecast) = &self.forecast {
            forecast.handle_request(room.level, room.rows);
        }
        Ok(())
    }

    pub(super) fn leave(&self, room: RequestSize) {
        self.admission.leave(room.level, room.size);
        if let Some(forecast) = &self.forecast {
            forecast.handle_leave(room.level, room.rows);
        }
    }

    /// An instance found nothing that it may run.
    pub(super) fn handle_idle(&self, instance_index: usize) {
        if let Some(forecast) = &self.forecast {
            forecast.handle_idle(instance_index);
        }
    }

    /// An instance takes no other batches.
    pub(super) fn handle_gone(&self, instance_index: usize) {
        if let Some(forecast) = &self.forecast {
            forecast.handle_gone(instance_index);
        }
    }

    /// An instance took a batch, and runs this many at the same time.
    pub(super) fn handle_batch(&self, instance_index: usize, rows: u32, at_once: u32, now: Instant) {
        if let Some(forecast) = &self.forecast {
            forecast.handle_batch(instance_index, rows, at_once, now);
        }
    }

    /// The scheduler has learned the duration of a run.
    pub(super) fn handle_times<T>(&self, scheduler: &Scheduler<T>) {
        if let Some(forecast) = &self.forecast {
            forecast.handle_times(scheduler.times(), scheduler.rows_full());
        }
    }

    /// Returns the requests that may wait, over all levels.
    pub(super) fn requests_max(&self) -> usize {
        self.admission.requests_max()
    }

    pub(super) fn waiting(&self) -> usize {
        self.admission.waiting()
    }

    #[cfg(any(test, feature = "testing"))]
    pub(super) fn bytes(&self) -> usize {
        self.admission.bytes()
    }

    pub(super) fn late(&self) -> usize {
        self.late.load(Ordering::Relaxed)
    }
}

/// Returns the refusal of a request that comes now, if it would be too late.
fn refusal(forecast: &Forecast, room: RequestSize, due: RequestDue, now: Instant) -> Option<QueueRefusal> {
    if due == RequestDue::default() {
        return None;
    }
    let after = |at: Instant, due: Option<Instant>| due.filter(|due| at > *due).map(|due| at.since(due));
    let answered = || Some(forecast.answered_at(room.level, room.rows, now)? + ADMISSION_SLACK);
    if forecast.rule() == AdmissionRule::Deadline {
        let late = after(answered()?, due.deadline).map(QueueRefusal::Late)?;
        return (!forecast.takes_probe(now)).then_some(late);
    }
    after(forecast.taken_at(room.level, now)?, due.expires_at).map(QueueRefusal::Stuck)
}
