//! The time limit of a model's runs, and the log lines of a run that reaches it.

use std::sync::Arc;
use std::time::Duration;

use base::time::Clock;

use backend::{Instance, RunObserver, RunWatch, RunWatches};

/// The time limit of a model's runs, and its watchers.
#[derive(Clone)]
pub struct RunLimit {
    /// The time that a run may take.
    pub limit: Duration,
    /// The watches of the server.
    pub watches: Arc<RunWatches>,
    /// The server's clock.
    pub clock: Clock,
    /// Logs that a run took longer.
    pub warn: fn(&str),
}

impl RunLimit {
    /// Has the runs of a new instance watched.
    pub(super) fn watch(&self, model: &str, instance: &mut dyn Instance, observer: Arc<dyn RunObserver>) {
        let watch = Arc::new(RunWatch::new(model, self.limit, observer));
        self.watches.add(&watch);
        instance.set_watch(watch);
    }

    /// A run was stopped.
    pub(super) fn tell_stopped(&self, model: &str) {
        (self.warn)(&format!(
            "a run of '{model}' took longer than {:?} (--run-timeout-secs) and is stopped",
            self.limit
        ));
    }

    /// A run cannot be stopped: its instance is given up.
    pub(super) fn tell_given_up(&self, model: &str, thread: &str) {
        (self.warn)(&format!(
            "a run of '{model}' takes longer than {:?} (--run-timeout-secs) and cannot be stopped: {thread} is given up, \
             and the model is not ready until the run ends or the model is loaded again",
            self.limit
        ));
    }

    /// The run of an instance that was given up has returned.
    pub(super) fn tell_returned(&self, model: &str) {
        (self.warn)(&format!("the run of '{model}' that took too long has ended: its instance serves again"));
    }
}
