//! The handling of a model whose run reaches the time limit. If the engine can stop the run it
//! does, and only the log shows it. A run that cannot be stopped keeps its thread: the instance
//! counts as lost until the run returns, so that the model is not ready. If it was the last
//! instance of workers, one thread in its place refuses requests; there are at most as many such
//! threads as workers, and each ends when the run returns or the model is unloaded. The thread of
//! an inline instance is its shard.

#![expect(clippy::disallowed_types, reason = "taken when an instance is given up, never for a batch")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{Builder, JoinHandle};

use crate::limits::GIVEN_UP_PAUSE;
use crate::model_queue::{ModelQueue, NextWork};
use crate::run_limit::RunLimit;
use crate::served_model::{Placement, ServedModel};
use backend::{Batch, InFlightState, Instance, RunObserver, answering};
use base::error::Error;
use base::time::Clock;

/// Has the runs of a new inline instance watched, if they have a limit.
pub fn watch_inline(served: &Arc<ServedModel>, instance: &mut dyn Instance) {
    if let Some(limit) = served.run_limit() {
        limit.watch(&served.spec.name, instance, Arc::new(InlineRuns(Arc::downgrade(served))));
    }
}

/// The runs of an inline instance.
struct InlineRuns(Weak<ServedModel>);

impl InlineRuns {
    fn tell(&self, tell: impl FnOnce(&ServedModel, &RunLimit)) {
        if let Some((served, limit)) = self.0.upgrade().and_then(with_limit) {
            tell(&served, &limit);
        }
    }
}

impl RunObserver for InlineRuns {
    fn handle_stopped(&self) {
        self.tell(|served, limit| limit.tell_stopped(&served.spec.name));
    }

    fn handle_given_up(&self) {
        self.tell(|served, limit| {
            served.handle_instance_lost();
            limit.tell_given_up(&served.spec.name, "its inline instance");
        });
    }

    fn handle_returned(&self) {
        self.tell(|served, limit| {
            served.handle_instance_restored();
            limit.tell_returned(&served.spec.name);
        });
    }
}

/// The runs of a worker's instance.
pub(super) struct WorkerRuns {
    served: Weak<ServedModel>,
    parking: usize,
    /// True if the instance was given up since the worker last asked.
    is_given_up: AtomicBool,
    substitute: Mutex<Option<Substitute>>,
}

/// A thread in the place of a worker that was given up.
struct Substitute {
    has_returned: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl WorkerRuns {
    /// Creates the runs of the worker with this parking.
    pub(super) fn new(served: &Arc<ServedModel>, parking: usize) -> Arc<Self> {
        let (served, is_given_up) = (Arc::downgrade(served), AtomicBool::new(false));
        Arc::new(Self { served, parking, is_given_up, substitute: Mutex::new(None) })
    }

    /// Has the runs of a new instance watched, if they have a limit.
    pub(super) fn watch(self: &Arc<Self>, served: &ServedModel, instance: &mut dyn Instance) {
        if let Some(limit) = served.run_limit() {
            limit.watch(&served.spec.name, instance, Arc::clone(self) as Arc<dyn RunObserver>);
        }
    }

    /// Returns true if the run that has just returned was given up: the instance counts as lost
    /// then.
    pub(super) fn take_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Acquire) && self.is_given_up.swap(false, Ordering::AcqRel)
    }

    fn put(&self, substitute: Option<Substitute>) -> Option<Substitute> {
        std::mem::replace(&mut *self.substitute.lock().unwrap_or_else(PoisonError::into_inner), substitute)
    }
}

impl RunObserver for WorkerRuns {
    fn handle_stopped(&self) {
        if let Some((served, limit)) = self.served.upgrade().and_then(with_limit) {
            limit.tell_stopped(&served.spec.name);
        }
    }

    fn handle_given_up(&self) {
        let Some((served, limit)) = self.served.upgrade().and_then(with_limit) else { return };
        let Placement::Worker(model_queue) = &served.placement else { return };
        self.is_given_up.store(true, Ordering::Release);
        served.handle_instance_lost();
        model_queue.retire(self.parking);
        model_queue.handle_instance_lost(self.parking, false, (limit.clock)());
        let worker = model_queue.parking(self.parking).map_or("", |parking| parking.name());
        limit.tell_given_up(&served.spec.name, &format!("instance '{worker}'"));
        // The substitute sleeps in the place of the worker, whose run goes on.
        model_queue.parking(self.parking).into_iter().for_each(|parking| parking.share());
        let has_returned = Arc::new(AtomicBool::new(false));
        let (ended, model_queue, parking) = (Arc::clone(&has_returned), Arc::clone(model_queue), self.parking);
        let name = format!("g{parking}-{}", served.spec.name);
        let thread =
            Builder::new().name(name).spawn(move || refuse(&served, limit.clock, &model_queue, parking, &ended));
        match thread {
            Ok(thread) => drop(self.put(Some(Substitute { has_returned, thread }))),
            Err(error) => {
                (limit.warn)(&format!("requests to it wait for their timeouts: no thread refuses them: {error}"))
            }
        }
    }

    fn handle_returned(&self) {
        if let Some(Substitute { has_returned, thread }) = self.put(None) {
            has_returned.store(true, Ordering::Release);
            // A panic in it was logged when it happened.
            let _ = thread.join();
        }
        if let Some((served, limit)) = self.served.upgrade().and_then(with_limit) {
            limit.tell_returned(&served.spec.name);
        }
    }
}

fn with_limit(served: Arc<ServedModel>) -> Option<(Arc<ServedModel>, RunLimit)> {
    let limit = served.run_limit()?.clone();
    Some((served, limit))
}

/// Refuses requests while the model has no instance left, until the run of this one returns. Other
/// instances answer as long as there are any.
fn refuse(served: &ServedModel, clock: Clock, model_queue: &ModelQueue, parking: usize, has_returned: &AtomicBool) {
    let is_needed = || served.lost() >= model_queue.present_instances() && !has_returned.load(Ordering::Acquire);
    let mut poll_flight = || {
        let is_stopped = model_queue.is_stopped();
        // Nothing wakes it when it is no longer needed.
        let look_again = (!is_stopped).then_some(GIVEN_UP_PAUSE);
        InFlightState { is_lost: !is_needed() && !is_stopped, look_again, ..InFlightState::default() }
    };
    while !has_returned.load(Ordering::Acquire) {
        if !is_needed() {
            if model_queue.is_stopped() {
                return;
            }
            std::thread::park_timeout(GIVEN_UP_PAUSE);
            continue;
        }
        match model_queue.next_beside(parking, clock, &mut poll_flight, None) {
            NextWork::Batch(batch) => answering(|| GivenUpInstance(&served.spec.name).run(batch)),
            NextWork::Ended => return,
            NextWork::Lost => {}
        }
    }
}

/// Refuses all requests of a model whose last instance was given up.
struct GivenUpInstance<'a>(&'a str);

impl Instance for GivenUpInstance<'_> {
    fn run(&mut self, batch: Batch) {
        let error = Error::unavailable(format!(
            "model '{}' is not ready: a run takes longer than --run-timeout-secs and cannot be stopped; load the model again",
            self.0
        ));
        batch.requests.into_iter().for_each(|request| request.responder.send(Err(error.clone())));
    }
}
