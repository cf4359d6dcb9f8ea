//! The configuration of a model version with the instance groups of now, which an update of them replaces. Shards read it
//! when a client asks for the configuration; the load thread of an update writes it.

#![expect(
    clippy::disallowed_types,
    reason = "taken for an Arc when a client asks for a configuration, never for a request"
)]

use std::sync::{Arc, Mutex, PoisonError};

use model::ModelSpec;

/// A configuration that may be replaced.
pub(crate) struct ShownSpec(Mutex<Arc<ModelSpec>>);

impl ShownSpec {
    pub(crate) fn new(spec: &Arc<ModelSpec>) -> Self {
        Self(Mutex::new(Arc::clone(spec)))
    }

    pub(crate) fn read(&self) -> Arc<ModelSpec> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn replace(&self, spec: Arc<ModelSpec>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = spec;
    }
}
