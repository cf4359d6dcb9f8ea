//! A hosted model as a caller of other models: the callers that wait for the answer, and the thread
//! that its callbacks run on. The server answers on its shards, which foreign code must not block.

#![expect(clippy::disallowed_types, reason = "which instances run now, changed once for a batch")]

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use crate::triton::services::log_error;
use backend::details::CallChain;

/// One model version as a caller.
pub(super) struct HostedCaller {
    model: Arc<str>,
    version: u64,
    /// The instances inside a run, with the callers of their requests.
    running: Mutex<Vec<(Arc<str>, CallChain)>>,
    /// The channel to the thread of its callbacks, from the first callback on.
    callbacks: OnceLock<Option<Sender<Callback>>>,
}

/// A callback for the thread of callbacks.
pub(super) type Callback = Box<dyn FnOnce() + Send>;

/// An instance that is inside a run.
pub(super) struct RunningInstance<'a> {
    caller: &'a HostedCaller,
    name: Arc<str>,
}

impl HostedCaller {
    pub(super) fn new(qualified_name: &str, version: u64) -> Self {
        let (running, callbacks) = (Mutex::default(), OnceLock::new());
        Self { model: qualified_name.into(), version, running, callbacks }
    }

    /// An instance begins a run.
    pub(super) fn begin(&self, name: &Arc<str>, chain: CallChain) -> RunningInstance<'_> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).push((Arc::clone(name), chain));
        RunningInstance { caller: self, name: Arc::clone(name) }
    }

    /// The callers that wait for a call: a call does not name its request, so all instances that
    /// run now, and the longest chain of their callers.
    pub(super) fn chain(&self) -> CallChain {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let longest = running.iter().map(|(_, chain)| chain).max_by_key(|chain| chain.depth()).cloned();
        let mut chain = longest.unwrap_or_default();
        for (name, _) in &*running {
            chain = chain.with(Arc::clone(&self.model), self.version, Arc::clone(name));
        }
        chain
    }

    /// Starts the thread of callbacks, if it does not run.
    pub(super) fn start(&self) -> Option<&Sender<Callback>> {
        let started = self.callbacks.get_or_init(|| {
            let (sender, receiver) = channel::<Callback>();
            let run = move || receiver.into_iter().for_each(|callback: Callback| callback());
            match thread::Builder::new().name("hosted-calls".to_owned()).spawn(run) {
                Ok(_) => Some(sender),
                Err(error) => {
                    log_error(&format!("the thread for a backend's callbacks cannot start: {error}"));
                    None
                }
            }
        });
        started.as_ref()
    }

    /// Runs a callback on the thread for them. Without a thread it is dropped, which answers its
    /// waiter.
    pub(super) fn call_back(&self, callback: Callback) {
        if let Some(sender) = self.start() {
            // The thread ends when this is dropped, not before.
            let _ = sender.send(callback);
        }
    }
}

impl Drop for RunningInstance<'_> {
    fn drop(&mut self) {
        let mut running = self.caller.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = running.iter().position(|(name, _)| Arc::ptr_eq(name, &self.name)) {
            running.swap_remove(found);
        }
    }
}
