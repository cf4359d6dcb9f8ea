//! Which requests a model queue admits: the bounds on what waits, and the forecast where requests that would be late
//! are refused (`--admission=deadline`).

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::limits::ADMISSION_SLACK;
use crate::queue::queued_request::{QueueRefusal, RequestSize};
use crate::scheduler::{Admission, Forecast, Policy, QueueBounds, Scheduler};
use crate::time::Instant;

pub(super) struct AdmissionControl {
    admission: Admission,
    /// Where requests that would be late are refused.
    forecast: Option<Forecast>,
    /// Requests that were refused because they would be late.
    late: AtomicUsize,
}

impl AdmissionControl {
    pub(super) fn new(policy: &Policy, bounds: QueueBounds, instances: usize) -> Self {
        Self {
            admission: Admission::new(policy, bounds),
            forecast: policy.refuses_late.then(|| Forecast::new(policy, instances)),
            late: AtomicUsize::new(0),
        }
    }

    pub(super) fn admit(&self, room: RequestSize, deadline: Option<Instant>, now: Instant) -> Result<(), QueueRefusal> {
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

    /// An instance took a batch.
    pub(super) fn handle_batch(&self, instance_index: usize, rows: u32, now: Instant) {
        if let Some(forecast) = &self.forecast {
            forecast.handle_batch(instance_index, rows, now);
        }
    }

    /// The scheduler has learned how long a run takes.
    pub(super) fn handle_times<T>(&self, scheduler: &Scheduler<T>) {
        if let Some(forecast) = &self.forecast {
            forecast.handle_times(scheduler.times(), scheduler.rows_full());
        }
    }

    /// Requests that may wait, over all levels.
    pub(super) fn requests_max(&self) -> usize {
        self.admission.requests_max()
    }

    pub(super) fn waiting(&self) -> usize {
        self.admission.waiting()
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.admission.bytes()
    }

    pub(super) fn late(&self) -> usize {
        self.late.load(Ordering::Relaxed)
    }
}
