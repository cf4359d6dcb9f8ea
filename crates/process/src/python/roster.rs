//! The processes of models that run, for those that look at them from outside.

#![expect(clippy::disallowed_types, reason = "taken when a process starts or is looked at, never for a batch")]

use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::python::process::ProcessState;
use base::metrics::Gauge;

/// A process of a model.
#[derive(Clone, Debug)]
pub struct ModelProcess {
    /// The name of its instance.
    pub name: String,
    /// Its id.
    pub pid: u32,
    /// True if it shares pages of its own with other processes: a template, or one that was forked.
    pub shares_pages: bool,
    /// The memory of all processes of its model version, in bytes; set by the thread that measures it.
    pub memory: Arc<Gauge>,
}

/// The processes that one thread has started.
#[derive(Default)]
pub(super) struct ProcessRoster {
    processes: Mutex<Vec<Weak<ProcessState>>>,
}

impl ProcessRoster {
    /// A process has started.
    pub(super) fn add(&self, state: &Arc<ProcessState>) {
        let mut processes = self.processes.lock().unwrap_or_else(PoisonError::into_inner);
        processes.retain(|process| process.strong_count() > 0);
        processes.push(Arc::downgrade(state));
    }

    /// Those that have not ended.
    pub(super) fn running(&self) -> Vec<ModelProcess> {
        let processes = self.processes.lock().unwrap_or_else(PoisonError::into_inner);
        let running = processes.iter().filter_map(Weak::upgrade).filter(|state| state.is_running());
        let process = |state: Arc<ProcessState>| {
            let (name, memory) = (state.name().to_owned(), Arc::clone(&state.memory));
            ModelProcess { name, pid: state.pid(), shares_pages: state.shares_pages(), memory }
        };
        running.map(process).collect()
    }
}
