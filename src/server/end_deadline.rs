//! The thread that ends the process when the end of the server takes too long.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::control::loading::model_loader::ModelLoader;
use crate::control::machine::spawn::spawn;
use crate::limits::{END_MARGIN, WORKERS_END_TIMEOUT};
use crate::log;
use crate::runtime::clock;
use crate::server::end_at_once;

/// Ends the process if its threads do not: a run may keep a shard or a worker forever.
#[derive(Clone)]
pub(super) struct EndDeadline {
    /// `--exit-timeout-secs`.
    timeout: Duration,
    /// Returns true if a model finalizes, which takes a limited time; set once the models are
    /// loaded.
    is_finalizing: Arc<OnceLock<Box<dyn Fn() -> bool + Send + Sync>>>,
    is_started: Arc<AtomicBool>,
}

impl EndDeadline {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, is_finalizing: Arc::default(), is_started: Arc::default() }
    }

    /// Waits longer while a model finalizes.
    pub(super) fn wait_for_finalizing(&self, loader: &Arc<ModelLoader>) {
        // Weak: the loader's leftovers are removed when the last owner drops it.
        let loader = Arc::downgrade(loader);
        let is_finalizing = move || loader.upgrade().is_some_and(|loader| loader.is_finalizing());
        let _ = self.is_finalizing.set(Box::new(is_finalizing));
    }

    /// Starts the thread that waits for the deadline of a drain that begins after `delay`. The process usually ends
    /// before. Only the first start counts.
    pub(super) fn start(&self, delay: Duration) {
        if self.is_started.swap(true, Ordering::SeqCst) {
            return;
        }
        let deadline = self.clone();
        let body = move || {
            let end_at = clock::now() + delay + deadline.timeout + WORKERS_END_TIMEOUT + END_MARGIN;
            let is_finalizing = || deadline.is_finalizing.get().is_some_and(|is_finalizing| is_finalizing());
            while clock::now() < end_at || is_finalizing() {
                std::thread::park_timeout(end_at.since(clock::now()).max(END_MARGIN));
            }
            log::error("a shard still runs a model --exit-timeout-secs after the signal; the server ends without it");
            end_at_once(1);
        };
        if let Err(error) = spawn("end-deadline".to_owned(), body) {
            log::warning(&format!("the server may not end in --exit-timeout-secs: {error}"));
        }
    }
}
