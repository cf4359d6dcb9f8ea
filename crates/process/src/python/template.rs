//! The template of a version: a process that has imported the model and forks those of its instances, which then share its
//! pages and need not import anything. Its program decides whether it can be forked (`worker/deuteron_template.py`). One that
//! cannot becomes the process of an instance; one that is lost is not replaced, and instances start without it.

#![expect(clippy::disallowed_types, reason = "taken when a process is started, never for a batch")]

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::python::cores::ProcessShare;
use crate::python::instance::PythonInstance;

/// The place of a version's template; empty if it has none.
#[derive(Default)]
pub(super) struct TemplateSlot(Mutex<Option<ModelTemplate>>);

/// A process that has imported the model, and can be forked.
pub(super) struct ModelTemplate {
    /// Its process as that of an instance which never runs.
    pub(super) process: PythonInstance,
    /// Its cores and threads, which libraries have counted: those of the instances that it forks.
    pub(super) share: ProcessShare,
}

impl TemplateSlot {
    /// Bytes of its memory; 0 without a template.
    pub(super) fn memory(&self) -> u64 {
        self.lock().as_ref().map_or(0, |template| template.process.process.memory())
    }

    /// The version was unloaded: no further process is needed.
    pub(super) fn handle_unload(&self) {
        // A thread that forks an instance now has it until then; it goes with the model.
        if let Ok(mut slot) = self.0.try_lock() {
            *slot = None;
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Option<ModelTemplate>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
